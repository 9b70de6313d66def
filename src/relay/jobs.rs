//! What a session does beside the stream, one of each kind at a time: storing a position, looking at the catalogs,
//! measuring slot and log. The loop waits for their ends and never for them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::{Config, TableName};
use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::ledger::trail::Published;
use crate::position::{Lsn, Position};
use crate::relay::delivered_before::Tail;
use crate::relay::session::Session;
use crate::relay::store::AnyStore;
use crate::relay::watch::end_of;
use crate::sink;
use crate::snapshot::Snapshot;
use crate::source::catalog::Fingerprint;
use crate::source::control::{PendingRow, WalPosition};
use crate::upkeep::{Batch, Marker};

/// How often the catalogs are looked at when nothing else asks for it (P8).
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// How often slot and log are looked at for the metrics. The stream cannot tell while it is not read (P5).
const MEASURE_INTERVAL: Duration = Duration::from_secs(5);

/// How often a snapshot is taken while events come: what is sent twice after the slot is lost is at most what this and
/// the transactions kept beside it do not cover.
const PAIR_INTERVAL: Duration = Duration::from_millis(500);

/// How long pending rows are not looked for after that took too long.
const WATCH_PAUSE: Duration = Duration::from_secs(60);

/// How long the tail of a topic may take to be read. The events wait for it, so it is no longer than a broker's election.
const TAIL_TIMEOUT: Duration = Duration::from_secs(10);

/// What came to its end.
pub(super) enum Done {
    /// A store, with the store itself to be given back to the session.
    Stored(AnyStore, Position, Result<()>),
    /// A look at the catalogs, and what is to be stored if it finds the outbox published.
    Looked(Result<Vec<Fingerprint>>, Option<Position>),
    /// A measurement.
    Measured(Result<WalPosition>),
    /// Rows that are pending, and the end of the log after they were looked at; what was settled before that.
    Pending(Result<(Vec<PendingRow>, Lsn)>, Position),
    /// Whether a row that was delivered a while ago is there.
    Kept(Result<Option<bool>>, usize),
    /// Rows were marked or deleted.
    WrittenBack(Result<()>),
    /// A snapshot, and the end of the log after it.
    Paired(Result<(Snapshot, Lsn)>),
    /// The tail of a topic was read, as far as it could be.
    Tail(String, Option<Tail>, Result<()>),
}

type Job = Pin<Box<dyn Future<Output = Done> + Send>>;

/// What is under way, and when the next of each kind is due.
pub(super) struct Jobs {
    storing: Option<Job>,
    looking: Option<Job>,
    measuring: Option<Job>,
    pairing: Option<Job>,
    writing_back: Option<Job>,
    watching: Option<Job>,
    next_watch: Instant,
    probing_row: Option<Job>,
    reading: Option<Job>,
    next_pair: Instant,
    /// Events acked when the last snapshot was taken.
    paired_at: u64,
    look_asked: bool,
    next_look: Instant,
    next_measure: Instant,
}

impl Jobs {
    pub(super) fn new(now: Instant) -> Self {
        Jobs {
            storing: None,
            looking: None,
            measuring: None,
            pairing: None,
            writing_back: None,
            watching: None,
            next_watch: now,
            probing_row: None,
            reading: None,
            next_pair: now,
            paired_at: u64::MAX,
            look_asked: false,
            next_look: now + LOOK_INTERVAL,
            next_measure: now,
        }
    }

    /// The catalogs are to be looked at soon: a table was described.
    pub(super) fn ask_look(&mut self) {
        self.look_asked = true;
    }

    /// Whether a look is under way.
    pub(super) fn is_looking(&self) -> bool {
        self.looking.is_some()
    }

    /// Begins the looks and measurements that are due. Says whether a look was begun.
    pub(super) fn begin_due(&mut self, session: &Session, now: Instant) -> bool {
        if self.next_measure <= now && self.measuring.is_none() {
            self.next_measure = now + MEASURE_INTERVAL;
            let control = session.control.clone();
            self.measuring = Some(Box::pin(async move { Done::Measured(control.wal_position().await) }));
        }
        let due = (self.look_asked || self.next_look <= now) && self.looking.is_none();
        if due {
            self.begin_look(session, None, now);
        }
        due
    }

    /// Takes a snapshot where one is due, none is under way, and events were `acked` since the last.
    pub(super) fn begin_pair(&mut self, session: &Session, acked: u64, now: Instant) {
        if self.next_pair <= now && self.pairing.is_none() && self.paired_at != acked {
            self.next_pair = now + PAIR_INTERVAL;
            let control = session.control.clone();
            self.pairing = Some(Box::pin(async move { Done::Paired(control.take_pair().await) }));
        }
    }

    /// A snapshot was taken, after so many events were acked.
    pub(super) fn paired(&mut self, acked: u64) {
        self.paired_at = acked;
    }

    /// Looks for pending rows where that is due; everything up to `settled` is delivered and marked.
    pub(super) fn begin_watch(&mut self, session: &Session, settled: Position, every: Duration, now: Instant) {
        if self.next_watch <= now && self.watching.is_none() {
            self.next_watch = now + every;
            let control = session.control.clone();
            self.watching = Some(Box::pin(async move { Done::Pending(control.look_pending().await, settled) }));
        }
    }

    /// Looks for pending rows not before a while.
    pub(super) fn put_off_watch(&mut self, now: Instant) {
        self.next_watch = now + WATCH_PAUSE;
    }

    /// Looks whether the row of a delivered event is there.
    pub(super) fn begin_kept(
        &mut self,
        session: &Session,
        outbox: usize,
        table: TableName,
        key: Vec<(String, String)>,
    ) {
        if self.probing_row.is_none() {
            let control = session.control.clone();
            self.probing_row = Some(Box::pin(async move { Done::Kept(control.is_kept(table, key).await, outbox) }));
        }
    }

    /// Marks or deletes these rows.
    pub(super) fn begin_write_back(&mut self, marker: &Arc<Marker>, batch: Batch) {
        let marker = Arc::clone(marker);
        self.writing_back = Some(Box::pin(async move {
            failpoint::reached("marking");
            Done::WrittenBack(marker.settle(&batch).await.map(|_| ()))
        }));
    }

    /// Begins a look, after which `then_store` is to be stored if all is well.
    pub(super) fn begin_look(&mut self, session: &Session, then_store: Option<Position>, now: Instant) {
        debug_assert!(self.looking.is_none(), "one look at a time");
        self.look_asked = false;
        self.next_look = now + LOOK_INTERVAL;
        let (control, before) = (session.control.clone(), session.fingerprints.clone());
        let look = async move { Done::Looked(control.check_catalog(before).await, then_store) };
        self.looking = Some(Box::pin(look));
    }

    /// Begins to store `position`, with the session's store until [`Done::Stored`] brings it back.
    pub(super) fn begin_store(&mut self, session: &mut Session, position: Position, published: Option<Published>) {
        let Some(mut store) = session.store.take() else { return };
        let stored = session.stored_at(position, published);
        self.storing = Some(Box::pin(async move {
            failpoint::reached("storing");
            let result = store.store(&stored).await;
            Done::Stored(store, position, result)
        }));
    }

    /// Reads the tail of a topic, with a client of its own, where none is being read.
    pub(super) fn begin_tail(&mut self, config: &Config, unread: impl FnOnce() -> Option<Tail>) {
        if self.reading.is_none()
            && let Some(tail) = unread()
        {
            self.reading = Some(Box::pin(read_tail(config.clone(), tail)));
        }
    }

    /// Waits for the next end. Safe to cancel.
    pub(super) async fn next(&mut self) -> Done {
        let done = tokio::select! {
            biased;
            done = end_of(&mut self.storing) => done,
            done = end_of(&mut self.looking) => done,
            done = end_of(&mut self.measuring) => done,
            done = end_of(&mut self.pairing) => done,
            done = end_of(&mut self.writing_back) => done,
            done = end_of(&mut self.watching) => done,
            done = end_of(&mut self.probing_row) => done,
            done = end_of(&mut self.reading) => done,
        };
        match &done {
            Done::Stored(..) => self.storing = None,
            Done::Looked(..) => self.looking = None,
            Done::Measured(_) => self.measuring = None,
            Done::Paired(_) => self.pairing = None,
            Done::WrittenBack(_) => self.writing_back = None,
            Done::Pending(..) => self.watching = None,
            Done::Kept(..) => self.probing_row = None,
            Done::Tail(..) => self.reading = None,
        }
        done
    }

    /// When the next look or measurement is due.
    pub(super) fn wake_at(&self) -> Instant {
        self.next_look.min(self.next_measure)
    }
}

async fn read_tail(config: Config, mut tail: Tail) -> Done {
    let topic = tail.topic().to_owned();
    let until = Instant::now() + TAIL_TIMEOUT;
    let reading = tokio::task::spawn_blocking(move || {
        let topic = tail.topic().to_owned();
        let read = sink::read_back(&config, &topic, until.into_std(), &mut |record| tail.take(record));
        (tail, read)
    });
    let late = || Error::new(Kind::KafkaUnreachable, format!("topic {topic} could not be read in time"));
    // A little more, so that what was read in time is heard of.
    match tokio::time::timeout_at(until + TAIL_TIMEOUT / 10, reading).await {
        Ok(Ok((tail, read))) => Done::Tail(topic, Some(tail), read),
        Ok(Err(error)) => Done::Tail(topic, None, Err(Error::new(Kind::Bug, error))),
        Err(_) => {
            let error = late();
            Done::Tail(topic, None, Err(error))
        }
    }
}
