//! Kafka transactions: records and the position behind them become visible together, and of two producers with one
//! transactional id only the younger may write.
//!
//! A transaction begins with the first record after a commit. Whatever goes wrong with one ends its producer, and so does
//! what may have gone wrong unseen: librdkafka does not have KIP-890, so that a commit that was sent twice can end a *later*
//! transaction of the same producer (see `doubt`). The next producer's [`KafkaSink::transactional`] settles what became of it, and what was committed says where to go on.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer as _;

use super::context::code;
use super::doubt::Doubt;
use super::faults::{self, Subject};
use super::kafka::KafkaSink;
use super::options::Options;
use super::producer::{Inner, Producer};
use crate::config::KafkaConfig;
use crate::error::{Error, Kind, Result};
use crate::failpoint;

/// How long an answer of the coordinator is waited for before it is looked whether anybody still wants the answer.
const SLICE: Duration = Duration::from_secs(1);
/// How long a coordinator has to end what another producer left open: longer than an election of it.
const INIT_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is looked whether every record of a transaction is acked: a small part of what a commit takes.
const FLUSH_EVERY: Duration = Duration::from_millis(1);
/// How long giving up an open transaction may take. Whoever comes next does it otherwise, or the coordinator in its time.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// What no transaction begins with, where something of an earlier one may come late.
const DOUBTFUL: RDKafkaErrorCode = RDKafkaErrorCode::State;

/// Who a transactional producer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transactional {
    /// `transactional.id`: the same for every relay of a slot, and for nobody else.
    pub id: String,
    /// `transaction.timeout.ms`: the coordinator gives up a transaction that is open for longer.
    pub timeout: Duration,
}

/// The transaction of a producer that has them.
pub(super) struct Transaction {
    of: Transactional,
    is_open: Mutex<bool>,
}

impl Transaction {
    pub(super) fn new(of: Transactional) -> Transaction {
        Transaction { of, is_open: Mutex::new(false) }
    }

    fn is_open(&self) -> MutexGuard<'_, bool> {
        self.is_open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// A record is to be sent: a transaction begins with it unless one is open.
    pub(super) fn begin_transaction(&self) -> Result<(), KafkaError> {
        let Some(transaction) = &self.transaction else { return Ok(()) };
        let mut is_open = transaction.is_open();
        if !*is_open {
            if self.shared.doubts.any().is_some() {
                return Err(KafkaError::MessageProduction(DOUBTFUL));
            }
            self.client.begin_transaction()?;
            *is_open = true;
        }
        Ok(())
    }

    /// Fences every older producer of this id and waits for the end of what it left open. Blocks.
    fn init_transactions(&self, id: &str) -> Result<()> {
        let deadline = Instant::now() + INIT_TIMEOUT;
        loop {
            let Err(error) = self.client.init_transactions(SLICE) else { return Ok(()) };
            let waits = matches!(&error, KafkaError::Transaction(error) if error.is_retriable());
            if !waits || Instant::now() > deadline || self.closing.load(Ordering::Relaxed) {
                return Err(self.explain(&error).about(format_args!("transactional id {id}")));
            }
        }
    }

    /// Waits for the acks of what was sent, then commits. Blocks.
    ///
    /// On an error the producer takes no further records: nobody knows what became of the transaction.
    fn commit_transaction(&self) -> Result<()> {
        let Some(transaction) = &self.transaction else { return Err(Error::new(Kind::Bug, "no transactions here")) };
        let deadline = Instant::now() + transaction.of.timeout;
        let mut asked_at = None;
        let committed = loop {
            let waited = self.client.flush(Duration::ZERO).and_then(|()| {
                let now = Instant::now();
                asked_at.get_or_insert(now);
                let left = deadline.saturating_duration_since(now);
                self.client.commit_transaction(left.min(SLICE))
            });
            match waited {
                Ok(()) => break Ok(()),
                Err(error) if Instant::now() > deadline || self.has_failed() || !is_under_way(&error) => {
                    break Err(error);
                }
                // The library's own wait looks ten times a second.
                Err(KafkaError::Flush(_)) => std::thread::sleep(FLUSH_EVERY),
                // The commit goes on, and is waited for again. Only librdkafka itself sends it again: see `doubt`.
                Err(_) => {}
            }
        };
        let Err(error) = committed else {
            self.shared.doubts.note(asked_at.and_then(|asked_at| Doubt::of_commit(asked_at.elapsed())));
            *transaction.is_open() = false;
            return Ok(());
        };
        self.shared.failed.store(true, Ordering::Release);
        Err(self.explain(&error).about("the transaction is not known to be committed"))
    }

    /// Gives up what is open, so that nobody who reads has to wait for it. Blocks.
    pub(super) fn abort_transaction(&self) {
        let Some(transaction) = &self.transaction else { return };
        if *transaction.is_open()
            && let Err(error) = self.client.abort_transaction(ABORT_TIMEOUT)
        {
            tracing::debug!(%error, "an open transaction was left to whoever comes next");
        }
    }

    /// Why `error` says that nothing more is sent, where it is no word of librdkafka's.
    pub(super) fn doubt(&self, error: &KafkaError) -> Option<Error> {
        let doubt = self.shared.doubts.any().filter(|_| code(error) == DOUBTFUL)?;
        let what =
            format!("{doubt}, and something of this producer may come late; the next transaction is another one's");
        Some(Error::new(Kind::KafkaUnreachable, what))
    }

    fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Acquire) || self.closing.load(Ordering::Relaxed)
    }

    fn explain(&self, error: &KafkaError) -> Error {
        let transactional_id = self.transaction.as_ref().map(|transaction| transaction.of.id.as_str());
        let subject = Subject { transactional_id, ..Subject::default() };
        self.fatal(subject).unwrap_or_else(|| faults::explain(code(error), subject))
    }
}

/// Whether what was asked for is still being done.
fn is_under_way(error: &KafkaError) -> bool {
    let is_timeout = code(error) == RDKafkaErrorCode::OperationTimedOut;
    let goes_on = matches!(error, KafkaError::Transaction(error) if error.is_retriable());
    is_timeout && (goes_on || matches!(error, KafkaError::Flush(_)))
}

impl KafkaSink {
    /// Makes a producer that writes in transactions. When it returns, no older producer of this id can write any more,
    /// and what it left open is committed or given up for good: read where to go on *after* that.
    ///
    /// # Errors
    /// As [`KafkaSink::connect`]; [`Kind::KafkaUnreachable`] where no coordinator answers; [`Kind::KafkaRefused`] where it
    /// refuses us.
    pub async fn transactional(config: &KafkaConfig, of: &Transactional) -> Result<KafkaSink> {
        let sink = Self::with_options(Options::transactional(config, of)?, false, Some(of.clone()))?;
        let (inner, id) = (Arc::clone(sink.inner()), of.id.clone());
        let init = tokio::task::spawn_blocking(move || inner.init_transactions(&id));
        let producer = sink.producer();
        tokio::select! {
            done = init => done.map_err(|error| Error::new(Kind::Bug, error))??,
            refusal = producer.unusable() => return Err(refusal),
        }
        Ok(sink)
    }
}

impl Producer {
    /// Whether records become visible by [`Producer::commit`] only.
    pub fn is_transactional(&self) -> bool {
        self.inner.upgrade().is_some_and(|inner| inner.transaction.is_some())
    }

    /// Sends one record behind all others of the open transaction and commits them together. Nothing else may be sent
    /// meanwhile.
    ///
    /// # Errors
    /// It is not known to be committed. The producer is finished: what was committed has to be read.
    pub async fn commit(&self, topic: &str, partition: i32, key: &[u8], value: &[u8]) -> Result<()> {
        let delivered = self.sent(topic, partition, key, value).await?;
        failpoint::reached("committing");
        let inner = self.alive()?;
        let committed = tokio::task::spawn_blocking(move || inner.commit_transaction());
        committed.await.map_err(|error| Error::new(Kind::Bug, error))??;
        delivered.await.unwrap_or_else(|_| Err(super::producer::closed()))
    }
}
