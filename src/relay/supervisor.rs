//! The relay as a whole: sessions one after another, the producer, stand-by, the table, back-off and the end.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Client;

use crate::config::{Config, OnError, OutboxConfig, StoreKind};
use crate::error::{Error, Kind, Result};
use crate::event::RowId;
use crate::ledger::trail::Published;
use crate::position::{Lsn, Position};
use crate::postgres::replication::WalSession;
use crate::postgres::sql::SqlSession;
use crate::relay::backoff::Backoff;
use crate::relay::batches::Batches;
use crate::relay::begun::Begun;
use crate::relay::delivered_before::DeliveredBefore;
use crate::relay::lease::{Lease, Why};
use crate::relay::pipeline::Pipeline;
use crate::relay::poison::Poison;
use crate::relay::publisher::Setup;
use crate::relay::pulse::Pulse;
use crate::relay::refusals::Refusals;
use crate::relay::replication::{self, Ended};
use crate::relay::retention::Known;
use crate::relay::session::{Opened, Session};
use crate::relay::stop::{Stop, StopSignal};
use crate::relay::watch::{Process, at_once};
use crate::relay::{drain, report, table};
use crate::sink::{KafkaSink, Producer};
use crate::source::holder::{Holder, holder};
use crate::source::row_key;
use crate::state::ServerIdentity;
use crate::telemetry::{Side, Telemetry};
use crate::upkeep::left_behind::none_left_behind;

/// How long a stand-by waits between two looks, each one small query on a session that stays open. Up to as much again is
/// added, so that two of them do not come in step.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often it is looked whether it could take over.
const FIT_EVERY: Duration = Duration::from_secs(5);

/// How long Kafka has to answer before the slot is taken: a relay that cannot deliver leaves it to one that can.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// A session that lasted this long was a good one, and the next outage is another.
const LASTED: Duration = Duration::from_secs(10);

/// What outlives a session.
pub(super) struct Relay {
    /// The instant that times inside the pipeline are since.
    epoch: Instant,
    backoff: Backoff,
    life: Option<Life>,
    /// Sessions so far.
    sessions: u64,
    /// Whether topics may have what comes again: an earlier process was killed, or this one stood still.
    is_in_doubt: bool,
    /// Server and timeline of the last session.
    served: Option<ServerIdentity>,
    /// What the operator was warned of: once, not at each try.
    warned: HashSet<String>,
    /// What the current outage was reported as: one line per state, not per try (P9).
    failing: Option<Kind>,
    /// Why the table is polled for a while, although there may be a slot.
    polls_instead: Option<String>,
    /// What the last producer left to be known of events that the broker refuses.
    poison: Poison,
    /// How often something was learned of them so far.
    learned: u64,
    /// How often it was a batch that was too large, and none of its records.
    in_vain: u64,
    /// Topics that refuse records, and how often they did.
    refusals: Refusals,
    batches: Batches,
    /// What is stored of what is published.
    pub(super) known: Known,
    /// Rows the slot delivered of the transaction it went in the middle of, until the table was read.
    inside: Vec<RowId>,
    /// The transaction the last session was inside of.
    begun: Begun,
    /// Rows that somebody set to pending again.
    asked: Vec<RowId>,
    /// Whether the last session ended with all that may be confirmed told to Postgres.
    told: bool,
    /// The server's side of the last stream of this process.
    walsender_pid: Option<i32>,
    pulse: Pulse,
    config: Config,
    pub(super) telemetry: Telemetry,
}

/// A producer and everything that hangs on it.
enum Life {
    /// No session yet. It begins behind the position, or behind what is stored where there is none.
    New(Box<KafkaSink>, Option<Position>),
    /// Under way.
    Running(Box<Pipeline<KafkaSink>>),
}

impl Life {
    fn producer(&self) -> Producer {
        match self {
            Life::New(sink, _) => sink.producer(),
            Life::Running(pipeline) => pipeline.publisher.sink.producer(),
        }
    }
}

impl Relay {
    /// Nothing is connected, and nothing is known.
    pub(super) fn new(config: Config, telemetry: Telemetry) -> Result<Relay> {
        Ok(Relay {
            epoch: Instant::now(),
            backoff: Backoff::new(fastrand::Rng::new()),
            life: None,
            sessions: 0,
            is_in_doubt: true,
            served: None,
            warned: HashSet::new(),
            failing: None,
            told: true,
            walsender_pid: None,
            pulse: Pulse::start(config.source.wal_sender_timeout)?,
            polls_instead: None,
            poison: Poison::default(),
            learned: 0,
            in_vain: 0,
            refusals: Refusals::default(),
            batches: Batches::of(&config.kafka),
            inside: Vec::new(),
            begun: Begun::default(),
            asked: Vec::new(),
            known: Known::default(),
            config,
            telemetry,
        })
    }

    pub(super) async fn run(&mut self, stop: &mut StopSignal) -> Result<()> {
        loop {
            let ended = self.one_session(stop).await;
            let error = match ended.map_err(|error| self.unless_its_batch(error)) {
                Ok(Ended::Stopped) => return self.leave(stop).await,
                // The next session is of another kind.
                Ok(next) if next != Ended::ServerShutDown => {
                    if stop.asked() != Stop::No {
                        return self.leave(stop).await;
                    }
                    match next {
                        Ended::Asked(rows) => self.asked = rows,
                        Ended::OverBudget => self.give_up().await,
                        Ended::Held(why) => self.polls_instead = Some(why),
                        Ended::Again | Ended::Stopped | Ended::ServerShutDown => {}
                    }
                    continue;
                }
                Ok(_) => Error::new(Kind::PostgresUnreachable, "Postgres is shutting down"),
                Err(error) if error.kind().halts() => return Err(error),
                Err(error) if error.kind() == Kind::SlotActive && stop.asked() == Stop::No => {
                    tracing::debug!(%error, "standing by");
                    match Box::pin(self.stand_by(stop)).await {
                        Ok(()) if stop.asked() != Stop::No => return self.leave(stop).await,
                        Ok(()) => continue,
                        Err(error) if error.kind().halts() => return Err(error),
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            if stop.asked() == Stop::No {
                self.note_learned();
                let wait = self.failed(&error)?;
                if self.is_transactional() {
                    // What it has open is given up at once: readers do not wait for the next session.
                    self.retire().await;
                } else if error.kind().ends_producer() {
                    self.begin_new_life().await;
                }
                self.learn_of_topic(&error, wait);
                let wait = wait.unwrap_or_default();
                tokio::select! {
                    () = stop.at_least(Stop::Drain) => {}
                    () = tokio::time::sleep(wait) => {}
                }
            } else if error.kind().ends_producer() {
                // The producer is finished, and nothing more will be acked.
                return self.left(self.is_drained());
            }
            if stop.asked() != Stop::No {
                return self.leave(stop).await;
            }
        }
    }

    /// From connecting to Postgres until the connection, the producer or the relay ends.
    async fn one_session(&mut self, stop: &mut StopSignal) -> Result<Ended> {
        let given_up = self.pulse.take_given_up();
        self.is_in_doubt |= given_up;
        if self.is_transactional() {
            // Every session fences, and goes on from what is committed.
            self.retire().await;
        } else if given_up {
            self.begin_new_life().await;
        }
        if self.life.is_none() && !self.is_transactional() {
            self.life = Some(Life::New(Box::new(KafkaSink::connect(&self.config.kafka)?), None));
        }
        tokio::select! {
            () = stop.at_least(Stop::Drain) => return Ok(Ended::Stopped),
            named = self.name_rows() => named?,
        }
        if !self.asked.is_empty() {
            let asked = std::mem::take(&mut self.asked);
            return Box::pin(self.at_table(Why::Asked(asked), stop)).await;
        }
        let delivery = &self.config.delivery;
        let dead_letters =
            Some(delivery.dead_letter_topic.as_str()).filter(|_| delivery.on_error == OnError::DeadLetter);
        let (needed, mut missing): (Vec<_>, Vec<String>) = (dead_letters.into_iter().collect(), Vec::new());
        let open = async {
            match &self.life {
                Some(Life::New(sink, _)) => missing.extend(sink.missing(&needed, CHECK_TIMEOUT).await?),
                Some(Life::Running(_)) => {}
                None => {
                    let asks = KafkaSink::for_asking(&self.config.kafka)?;
                    missing.extend(asks.missing(&needed, CHECK_TIMEOUT).await?);
                }
            }
            let mut warn = |warning: String| {
                if self.warned.insert(warning.clone()) {
                    tracing::warn!(slot = %self.config.source.slot, "{warning}");
                }
            };
            missing.iter().for_each(|topic| warn(no_dead_letters(topic)));
            Session::open(
                &self.config,
                self.life.as_ref().map(Life::producer),
                Lsn::ZERO,
                (self.polls_instead.as_deref(), &self.known),
                &mut warn,
            )
            .await
        };
        let opened = tokio::select! {
            () = stop.at_least(Stop::Drain) => return Ok(Ended::Stopped),
            opened = open => opened?,
        };
        let mut session = match opened {
            Opened::Stream(session) => *session,
            Opened::Table(why) => return Box::pin(self.at_table(why, stop)).await,
        };
        if let Some(sink) = session.sink.take() {
            self.life = Some(Life::New(Box::new(sink), None));
        }
        let life = self.life.take();
        // What this process knows counts only on the server and timeline where it learned it.
        let same_server = self.served.as_ref().is_none_or(|served| served == session.server());
        self.served = Some(session.server().clone());
        self.config.state.adopt_slot = false;
        let mut pipeline = self.enter(life, session.start_position(), session.published(), same_server)?;
        self.sessions += 1;
        if self.sessions > 1 {
            self.telemetry.metrics.reconnect(Side::Postgres);
        }
        pipeline.reconnected();
        pipeline.publisher.set_origin(&session.server().system_identifier, session.server().timeline);
        pipeline.set_catalog(std::mem::take(&mut session.table_oids), std::mem::take(&mut session.base_types));
        pipeline.publisher.set_parked(std::mem::take(&mut session.waiting));
        if std::mem::take(&mut self.is_in_doubt) {
            self.expect_again(&mut pipeline, &session);
        }
        self.recovered(session.start_position());
        let (acked, began) = (pipeline.publisher.counts().acked, Instant::now());
        self.walsender_pid = Some(session.walsender_pid);
        self.pulse.guard(pipeline.publisher.sink.producer());
        let (config, telemetry, pulse, stop) = (&self.config, &self.telemetry, &self.pulse, stop.clone());
        let process = Process { config, telemetry, pulse, stop };
        let ended = replication::run(&mut pipeline, session, &self.known, self.epoch, process).await;
        if pipeline.publisher.counts().acked > acked || began.elapsed() > LASTED {
            self.backoff.reset();
        }
        self.life = Some(Life::Running(pipeline));
        // Another relay may have the slot from here on.
        self.known.send_replace(None);
        self.telemetry.health.over_budget(None);
        self.told = matches!(ended, Ok(Ended::Stopped));
        ended
    }

    /// Finds what names the rows of each table. A pipeline that knew other names starts over.
    async fn name_rows(&mut self) -> Result<()> {
        let Config { source, delivery, .. } = &self.config;
        let mut outboxes = self.config.outboxes.clone();
        let session = SqlSession::connect(&source.database, &format!("walrelay/{}/row-key", source.slot)).await?;
        row_key::find(session.client(), source, delivery, &mut outboxes).await?;
        let key = |outbox: &OutboxConfig| (outbox.columns.clone(), outbox.row_key.clone());
        let is_same = outboxes.iter().map(key).eq(self.config.outboxes.iter().map(key));
        self.config.outboxes = outboxes;
        if !is_same && matches!(self.life, Some(Life::Running(_))) {
            self.begin_new_life().await;
        }
        if !is_same {
            (self.inside, self.asked, self.begun) = (Vec::new(), Vec::new(), Begun::default());
            self.poison = Poison::default();
        }
        Ok(())
    }

    /// The pipeline that goes on behind `stored`, which the store holds and which belongs to this server and slot.
    fn enter(
        &mut self,
        life: Option<Life>,
        stored: Position,
        published: Option<Published>,
        same_server: bool,
    ) -> Result<Box<Pipeline<KafkaSink>>> {
        let (sink, start) = match life {
            Some(Life::Running(pipeline)) => {
                match belongs(pipeline.publisher.ledger.delivered(), stored, same_server) {
                    Belongs::Here => return Ok(pipeline),
                    Belongs::ToAnotherServer => {
                        let what = "another server or timeline answers; starting again behind what is stored for it";
                        return Err(Error::new(Kind::PostgresUnreachable, what));
                    }
                    Belongs::ToThePast => {
                        let what = "another relay served the slot in between; starting behind it";
                        return Err(Error::new(Kind::SlotActive, what));
                    }
                }
            }
            Some(Life::New(sink, Some(resume))) if belongs(resume, stored, same_server) == Belongs::Here => {
                (sink, resume)
            }
            Some(Life::New(sink, _)) => (sink, stored),
            None => return Err(Error::new(Kind::Bug, "a session without a producer")),
        };
        let setup = Setup::of(&self.config);
        let mut pipeline = Pipeline::new(&setup, start, stored, published, *sink, self.epoch.elapsed())?;
        pipeline.publisher.remember(std::mem::take(&mut self.poison));
        if same_server {
            pipeline.begun = std::mem::take(&mut self.begun);
        }
        Ok(Box::new(pipeline))
    }

    /// What an earlier process published and did not store comes again, or what this one had sent when it stood still.
    fn expect_again(&self, pipeline: &mut Pipeline<KafkaSink>, session: &Session) {
        // What is committed with its position does not come again.
        if !self.config.delivery.reads_tails || self.is_transactional() {
            return;
        }
        let (server, outboxes) = (session.server(), &self.config.outboxes);
        let origin = (server.system_identifier.as_str(), server.timeline);
        match DeliveredBefore::new(outboxes, origin, session.start_position(), session.wal_end) {
            Some(before) => pipeline.publisher.expect_again(before),
            None => tracing::info!(
                slot = %self.config.source.slot,
                "records have no headers that name their event (route.id_header, route.position_header): those that were \
                 published before a crash may come again"
            ),
        }
    }

    // A producer's life, and the next one's.

    /// A producer failed: nothing behind its failure counts, and the next one starts behind what was delivered.
    async fn begin_new_life(&mut self) {
        let resume = match &mut self.life {
            Some(Life::Running(pipeline)) => {
                // What cannot be marked now is published again, and marked then.
                if let Err(error) = drain::write_back(pipeline, &self.config).await {
                    tracing::debug!(%error, "rows that were acked could not be marked");
                }
                self.poison = std::mem::take(&mut pipeline.publisher.poison);
                Some(pipeline.publisher.completed())
            }
            // It has not produced anything; it may as well try again.
            Some(Life::New(..)) | None => return,
        };
        self.end_life().await;
        match KafkaSink::connect(&self.config.kafka) {
            Ok(sink) => self.life = Some(Life::New(Box::new(sink), resume)),
            Err(error) => tracing::error!(%error, "a new producer could not be made"),
        }
    }

    pub(super) async fn end_life(&mut self) {
        self.pulse.release();
        match self.life.take() {
            Some(Life::New(sink, _)) => sink.close().await,
            Some(Life::Running(pipeline)) => pipeline.publisher.sink.close().await,
            None => {}
        }
    }

    // Exactly once: each session has a producer of its own.

    /// Whether every session has a producer of its own.
    fn is_transactional(&self) -> bool {
        self.config.delivery.transactions.is_some()
    }

    /// The end of a session's own producer. Nothing of it counts but what is committed.
    async fn retire(&mut self) {
        if let Some(Life::Running(pipeline)) = &mut self.life {
            if pipeline.publisher.has_open_transaction() {
                self.telemetry.metrics.given_up_transactions.inc();
            }
            self.poison = std::mem::take(&mut pipeline.publisher.poison);
            self.inside = pipeline.inside(&pipeline.stored_position());
            self.begun = std::mem::take(&mut pipeline.begun);
        }
        self.end_life().await;
    }

    // The table, before a slot is streamed or instead.

    /// Drops the slot, so that the server can let go of its log. What is stored tells what was published, and Kafka, which
    /// may be why it kept so much, is not asked.
    async fn give_up(&mut self) {
        let source = &self.config.source;
        let dropped = async { WalSession::connect(&source.database, source).await?.drop_slot().await };
        match dropped.await {
            Ok(()) => {
                tracing::warn!(slot = %source.slot, "the slot is dropped; it is made anew once the table is caught up with");
                self.polls_instead = Some("the slot kept more log than it may".to_owned());
            }
            Err(error) => tracing::warn!(slot = %source.slot, %error, "the slot could not be given up"),
        }
    }

    /// Reads the table: before a slot is streamed, or instead.
    async fn at_table(&mut self, why: Why, stop: &mut StopSignal) -> Result<Ended> {
        self.pulse.release();
        // What a stream left in flight is known to be published, or will come again.
        let mut known = None;
        if let Some(Life::Running(pipeline)) = &mut self.life {
            let (until, before) = (Instant::now() + CHECK_TIMEOUT, pipeline.publisher.counts());
            let drained = drain::drain(pipeline, until, stop).await;
            report::tell_counts(&self.telemetry, pipeline.publisher.counts(), before);
            if !drained? {
                let what = "Kafka does not ack what is in flight; reading the table behind it";
                return Err(Error::new(Kind::KafkaUnreachable, what));
            }
            drain::write_back(pipeline, &self.config).await?;
            let position = pipeline.publisher.ledger.delivered();
            known = Some((position, pipeline.trail.published(&position).cloned(), pipeline.inside(&position)));
        }
        let producer = self.life.as_ref().map(Life::producer);
        let mut warn = |warning: String| {
            if self.warned.insert(warning.clone()) {
                tracing::warn!(slot = %self.config.source.slot, "{warning}");
            }
        };
        let lease = tokio::select! {
            () = stop.at_least(Stop::Drain) => return Ok(Ended::Stopped),
            lease = Lease::take(&self.config, producer, (&why, &self.known), &mut warn) => lease,
        };
        if lease.as_ref().is_err_and(|error| error.kind() == Kind::SlotActive) {
            // Whoever has it knows better.
            self.polls_instead = None;
        }
        let mut lease = lease?;
        if let Some(sink) = lease.sink.take() {
            self.life = Some(Life::New(Box::new(sink), None));
        }
        let same_server = self.served.as_ref().is_some_and(|served| *served == lease.stored.server);
        if let Some((position, Some(published), inside)) = known.filter(|_| same_server)
            && position.is_at_or_after(&lease.stored.position)
        {
            lease.knows(position, published);
            self.inside = inside;
        }
        self.served = Some(lease.stored.server.clone());
        let sink = match self.life.take() {
            Some(Life::Running(mut pipeline)) => {
                self.poison = std::mem::take(&mut pipeline.publisher.poison);
                pipeline.publisher.sink
            }
            Some(Life::New(sink, _)) => *sink,
            None => return Err(Error::new(Kind::Bug, "the table without a producer")),
        };
        if self.failing.take().is_some() {
            tracing::info!(slot = %self.config.source.slot, tries = self.backoff.tries(), "at the table again");
        }
        let began = Instant::now();
        // Rows that are asked for again are meant to be.
        let delivered = if matches!(why, Why::Asked(_)) { Vec::new() } else { self.inside.clone() };
        self.pulse.guard(sink.producer());
        let (config, telemetry, pulse, stop) = (&self.config, &self.telemetry, &self.pulse, stop.clone());
        let process = Process { config, telemetry, pulse, stop };
        let (sink, begun, ended) = Box::pin(table::run(lease, sink, delivered, &mut self.poison, process)).await;
        self.pulse.release();
        let sink = match sink {
            // It takes nothing any more.
            Some(sink) if self.pulse.take_given_up() => {
                sink.close().await;
                None
            }
            sink => sink,
        };
        self.life = sink.map(|sink| Life::New(Box::new(sink), None));
        self.known.send_replace(None);
        if begun {
            // What is stored from here on is what counts.
            self.config.state.adopt_slot = false;
        }
        if ended.is_ok() {
            self.inside.clear();
            self.polls_instead = None;
        }
        if ended.is_ok() || began.elapsed() > LASTED {
            self.backoff.reset();
        }
        self.told = true;
        ended
    }

    // Outages: what is logged, and how long the relay waits before the next try.

    /// A producer that ended because events are being found out about ended for a reason: the next one need not wait.
    fn note_learned(&mut self) {
        let learned = self.newest_poison().learned();
        if std::mem::replace(&mut self.learned, learned) < learned {
            self.backoff.reset();
        }
    }

    fn newest_poison(&self) -> &Poison {
        match &self.life {
            Some(Life::Running(pipeline)) => &pipeline.publisher.poison,
            Some(Life::New(..)) | None => &self.poison,
        }
    }

    /// What ended a session; another thing, where a record was called too large that may only have been in a batch that is. The
    /// next batches are smaller then.
    fn unless_its_batch(&mut self, error: Error) -> Error {
        let in_vain = self.newest_poison().in_vain();
        let is_batch = std::mem::replace(&mut self.in_vain, in_vain) < in_vain;
        let halts = error.kind() == Kind::RecordTooLarge;
        let record_bytes = error.record_bytes().filter(|_| halts).or_else(|| is_batch.then_some(0));
        let Some(bytes) = record_bytes.and_then(|record_bytes| self.batches.refused(record_bytes)) else {
            return error;
        };
        self.batches.apply(&mut self.config.kafka);
        tracing::warn!(
            slot = %self.config.source.slot, batch_bytes = bytes, cause = %error,
            "the broker refuses batches for their size; the next ones are smaller (to begin with that, set batch.size of the \
             Kafka properties below max.message.bytes of the topic)"
        );
        if halts { Error::new(Kind::KafkaUnreachable, format!("trying smaller batches: {error}")) } else { error }
    }

    /// Reports an outage once, and says how long to wait before the next try. None where a topic was tried often enough, and
    /// events for it are to be given up.
    ///
    /// # Errors
    /// The same, where the relay is to stop instead.
    fn failed(&mut self, error: &Error) -> Result<Option<Duration>> {
        if error.kind().halts() {
            return Err(error.clone());
        }
        let wait = self.backoff.next_wait();
        let side = if error.kind().ends_producer() { Side::Kafka } else { Side::Postgres };
        self.telemetry.metrics.retry(side);
        self.telemetry.metrics.error(error.kind());
        self.telemetry.connected(side, false);
        let slot = &self.config.source.slot;
        if let Some(topic) = error.topic() {
            let delivery = &self.config.delivery;
            // There is nothing else to be done with a dead letter.
            let is_of_letters = delivery.on_error == OnError::DeadLetter && topic == delivery.dead_letter_topic;
            let max_attempts = if is_of_letters { Some(u32::MAX) } else { error.max_attempts() };
            if self.newest_poison().took(topic) {
                self.refusals.took(topic);
            }
            let retry = delivery.retry.within(max_attempts);
            let (tries, wait) = self.refusals.refused(topic, &retry, Instant::now(), fastrand::f64());
            let wait_ms = wait.map(|wait| wait.as_millis());
            self.failing = Some(error.kind());
            if is_of_letters {
                let fix = error.what_to_do();
                tracing::warn!(%slot, topic, %error, fix, tries, wait_ms, "the topic of dead letters refuses one; everything waits for it");
                self.telemetry.health.dead_letters_refused(Some(topic.to_owned()));
                return Ok(wait);
            }
            if wait.is_none() && delivery.on_error == OnError::Stop {
                return Err(error.clone());
            }
            self.telemetry.health.topic_refused(wait.map(|_| topic.to_owned()));
            tracing::warn!(%slot, %error, fix = error.what_to_do(), tries, wait_ms, "a topic refuses records");
            return Ok(wait);
        }
        if self.failing.replace(error.kind()) == Some(error.kind()) {
            tracing::debug!(%slot, %error, tries = self.backoff.tries(), wait_ms = wait.as_millis(), "still failing");
        } else {
            tracing::warn!(%slot, %error, fix = error.what_to_do(), "interrupted; trying again until it works");
        }
        Ok(Some(wait))
    }

    /// A topic refused a record: whether it takes one is looked out for by the next producer. Where it was tried often enough,
    /// which is where there is no `wait`, events for it are given up for a while.
    fn learn_of_topic(&mut self, error: &Error, wait: Option<Duration>) {
        let Some(topic) = error.topic() else { return };
        self.poison.watch(topic);
        if wait.is_none() {
            let told = error.clone().after(self.refusals.tries(topic));
            self.poison.refuse(topic, &told, self.config.delivery.retry.cap);
        }
    }

    fn recovered(&mut self, start: Position) {
        self.telemetry.connected(Side::Postgres, true);
        let slot = &self.config.source.slot;
        match self.failing.take() {
            Some(Kind::TopicRefused) => tracing::info!(%slot, position = %start, "streaming, to try the topic again"),
            Some(_) => tracing::info!(%slot, tries = self.backoff.tries(), position = %start, "streaming again"),
            None => tracing::info!(%slot, position = %start, "streaming"),
        }
    }

    // Stand-by: another relay has the slot, or its table.

    /// Waits until nobody has the slot or the table, or until told to stop. Says once for each holder who it is.
    ///
    /// As soon as another relay is seen there, what this one has in flight is given up.
    ///
    /// # Errors
    /// Of the connection; and where events wait at the beginning that it would leave behind: it could not take over.
    async fn stand_by(&mut self, stop: &mut StopSignal) -> Result<()> {
        let source = self.config.source.clone();
        let mut waited_for: Option<Holder> = None;
        let waiting = async {
            // Some other reason than a holder must not make it spin.
            tokio::time::sleep(LOOK_EVERY).await;
            let name = format!("walrelay/{}/stand-by", source.slot);
            let sql = SqlSession::connect(&source.database, &name).await?;
            none_left_behind(sql.client(), &self.config).await?;
            let (mut fit_at, mut told) = (Instant::now() + FIT_EVERY, false);
            while let Some(now) = holder(sql.client(), &source.slot).await? {
                if waited_for.as_ref() != Some(&now) {
                    self.waits_for(&now).await;
                    waited_for = Some(now);
                }
                if fit_at <= Instant::now() {
                    fit_at = Instant::now() + FIT_EVERY;
                    told = self.is_unfit(sql.client(), told).await;
                }
                tokio::time::sleep(LOOK_EVERY.mul_f64(1.0 + fastrand::f64())).await;
            }
            Ok(())
        };
        let ended = tokio::select! {
            () = stop.at_least(Stop::Drain) => Ok(()),
            ended = waiting => ended,
        };
        if waited_for.is_some() {
            self.telemetry.standing_by(None);
        }
        ended
    }

    /// Whether a take-over would end this relay now, which is said unless it was `told`. It need not come to that: what waits
    /// may be gone by then.
    async fn is_unfit(&self, client: &Client, told: bool) -> bool {
        let Err(error) = none_left_behind(client, &self.config).await else { return false };
        if error.kind().halts() && !told {
            let (slot, fix) = (&self.config.source.slot, error.what_to_do());
            tracing::warn!(%slot, %error, fix, "this stand-by could not take over now: it would end");
        }
        told || error.kind().halts()
    }

    async fn waits_for(&mut self, holder: &Holder) {
        self.telemetry.standing_by(Some(holder.to_string()));
        let slot = &self.config.source.slot;
        if self.walsender_pid == Some(holder.pid) {
            tracing::info!(%slot, %holder, "the server still has this relay's last session, and ends it after wal_sender_timeout");
            return;
        }
        tracing::info!(%slot, %holder, "standing by: another relay is at work");
        if self.has_in_flight().await {
            tracing::warn!("what Kafka has not acked is given up: the other relay publishes it");
            self.begin_new_life().await;
        }
    }

    /// Whether Kafka still has to say something about events of this process.
    async fn has_in_flight(&mut self) -> bool {
        let Some(Life::Running(pipeline)) = &mut self.life else { return false };
        let mut deliveries = Vec::new();
        let _none = at_once(pipeline.publisher.next_deliveries(&mut deliveries)).await;
        pipeline.publisher.delivered(&mut deliveries).is_err() || !pipeline.publisher.is_drained()
    }

    // The end of a relay that was told to stop.

    /// A stop ends here. What a session did not wait for because Postgres went away, or was away, is waited for now.
    async fn leave(&mut self, stop: &mut StopSignal) -> Result<()> {
        let until = stop.since().unwrap_or_else(Instant::now) + self.config.process.shutdown_timeout;
        let acked = match &mut self.life {
            // A session that ended because of the stop has waited.
            Some(Life::Running(pipeline))
                if !self.told && !pipeline.publisher.is_drained() && stop.asked() == Stop::Drain =>
            {
                self.telemetry.health.stopping();
                let in_flight = pipeline.publisher.ledger.in_flight_events();
                tracing::info!(in_flight, "stopping without Postgres: waiting for acks all the same");
                drain::drain(pipeline, until, stop).await?
            }
            Some(Life::Running(_) | Life::New(..)) | None => self.is_drained(),
        };
        self.left(acked)
    }

    /// Whether nothing is in flight. What a producer had that was given up is not counted.
    fn is_drained(&self) -> bool {
        match &self.life {
            // What is acked and not committed is not there for anybody.
            Some(Life::Running(pipeline)) => {
                pipeline.publisher.is_drained() && !pipeline.publisher.has_open_transaction()
            }
            Some(Life::New(..)) | None => true,
        }
    }

    /// The last word: well where nothing was left in flight.
    fn left(&self, acked: bool) -> Result<()> {
        let (left, settled) = match &self.life {
            Some(Life::Running(pipeline)) => (
                pipeline.publisher.ledger.in_flight_events() + usize::from(pipeline.publisher.is_pending()),
                pipeline.is_settled(),
            ),
            Some(Life::New(..)) | None => (0, false),
        };
        // The slot alone remembers nothing it was not told.
        let remembered = self.told || settled && self.config.state.store != StoreKind::Slot;
        let slot = &self.config.source.slot;
        if acked {
            if remembered {
                tracing::info!("stopped: everything received was acked");
            } else {
                tracing::info!(
                    "stopped: nothing is in flight; what Postgres could not be told of is sent (again) at the next start"
                );
            }
            return Ok(());
        }
        let untold = if remembered { "" } else { ", and Postgres not told of all that were" };
        let events = if left == 1 { "1 event".to_owned() } else { format!("{left} events") };
        let cause = format!("stopped with {events} of slot {slot} not acked{untold}");
        Err(Error::new(Kind::ShutdownTimeout, cause)
            .remedy("nothing is lost: what was not confirmed is sent (again) at the next start"))
    }
}

/// Whether what this process has delivered is a position in the log that answers now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Belongs {
    /// It is, and nobody went further.
    Here,
    /// It was learned of another server or timeline, where the same LSN is another place.
    ToAnotherServer,
    /// Another relay had the slot in between and went further.
    ToThePast,
}

/// Judges `delivered`, which this process knows, by `stored`, which was just read and belongs here (P1).
fn belongs(delivered: Position, stored: Position, same_server: bool) -> Belongs {
    match (same_server, delivered.is_at_or_after(&stored)) {
        (false, _) => Belongs::ToAnotherServer,
        (true, true) => Belongs::Here,
        (true, false) => Belongs::ToThePast,
    }
}

/// What is said at start of a topic of dead letters that is not there.
fn no_dead_letters(topic: &str) -> String {
    format!(
        "topic {topic}, for dead letters, is not there, or this Kafka user may not see it: unless the brokers make it with the first \
         one, everything behind an event that is given up waits for it; create it: kafka-topics --create --topic {topic} \
         --partitions … --replication-factor …, and grant Write and Describe on it"
    )
}

#[cfg(test)]
mod tests;
