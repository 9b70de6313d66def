//! The jobs of a session beside the stream, one of each kind at a time: storing a position, looking
//! at the catalogs, measuring slot and log. The loop waits for the ends of jobs and never for a
//! job.
//!
//! [`Jobs`] asks the SQL session; [`walrelay_core::watch`] judges some of the answers.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::Config;
use crate::relay::recovery::can_go_on;
use crate::relay::session::Session;
use crate::relay::shared_loop::Job;
use crate::relay::store::AnyStore;
use crate::sink::{AnySink, BusSink as _, TailReader};
use crate::source::control::{Control, PendingRow, WalPosition};
use crate::source::watch::{Fingerprint, Look};
use walrelay_core::config::{OutboxConfig, SlotName};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::event::RowId;
use walrelay_core::failpoint;
use walrelay_core::ledger::trail::Published;
use walrelay_core::position::{Lsn, Position};
use walrelay_core::publisher::delivered_before::{DeliveredBefore, Tail};
use walrelay_core::stream_record::Versioned;

/// How often the catalogs are looked at when nothing else asks for it (P8).
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// How often slot and log are looked at for the metrics. The stream cannot tell while it is not
/// read (P5).
const MEASURE_INTERVAL: Duration = Duration::from_secs(5);
/// How soon they are looked at first: the server judges a walsender by its first status.
const FIRST_MEASURE: Duration = Duration::from_millis(250);
/// How often a snapshot is taken while events come: after a lost slot, what it does not cover is
/// sent twice.
const PAIR_INTERVAL: Duration = Duration::from_millis(500);
/// How long pending rows are not looked for after that took too long.
const WATCH_PAUSE: Duration = Duration::from_secs(60);
/// How long the tail of a topic may take to be read. The events wait for it, so it is no longer
/// than a broker's election.
const TAIL_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) enum Done {
    /// A store, with the store itself to be given back to the session.
    Stored(AnyStore, Position, Result<()>),
    /// A look at the catalogs, and the position to store if it finds the outbox published.
    Looked(Result<Look>, Option<Position>),
    Measured(Result<WalPosition>),
    /// Pending rows, the end of the log after they were looked at, and up to where rows were marked
    /// before that.
    Pending(Result<(Vec<PendingRow>, Lsn)>, Position),
    /// Whether a row that was delivered a while ago is in the table of this outbox.
    Kept(Result<Option<bool>>, usize),
    /// A snapshot, the end of the log after it, and the publication then.
    Paired(Result<Versioned>),
    /// The tail of a topic was read, as far as it could be.
    Tail(ReadTail),
}

pub(super) struct ReadTail {
    topic: String,
    /// None where the reader is still at it.
    tail: Option<Tail>,
    /// For the next topic.
    reader: Option<Box<dyn TailReader>>,
    result: Result<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Task {
    Store,
    Look,
    Measure,
    Pair,
    FindPending,
    ProbeRow,
    ReadTail,
}

pub(super) struct Jobs {
    running: Vec<(Task, Job<Done>)>,
    /// When the next of a kind is due, where that is not at once.
    next: HashMap<Task, Instant>,
    /// For the tails of topics, while there are some to be read.
    tails: Option<Box<dyn TailReader>>,
    /// Events acked when the last snapshot was taken.
    pub(super) paired_at: u64,
}

impl Jobs {
    pub(super) fn new(now: Instant) -> Self {
        let next = HashMap::from([
            (Task::Look, now + LOOK_INTERVAL),
            (Task::Measure, now + FIRST_MEASURE),
        ]);
        Jobs {
            running: Vec::new(),
            next,
            tails: None,
            paired_at: u64::MAX,
        }
    }

    fn begin(&mut self, task: Task, job: impl Future<Output = Done> + Send + 'static) {
        debug_assert!(!self.is_running(task), "one job of a kind at a time");
        self.running.push((task, Box::pin(job)));
    }

    fn is_running(&self, task: Task) -> bool {
        self.running.iter().any(|(running, _)| *running == task)
    }

    /// Whether one of this kind is due, and none is running.
    fn is_due(&self, task: Task, now: Instant) -> bool {
        self.next.get(&task).is_none_or(|next| *next <= now) && !self.is_running(task)
    }

    /// Waits for the next end. Safe to cancel; without a job, for ever.
    pub(super) async fn next(&mut self) -> Done {
        poll_fn(|context| {
            let polled = self
                .running
                .iter_mut()
                .enumerate()
                .find_map(|(at, (_, job))| match job.as_mut().poll(context) {
                    Poll::Ready(done) => Some((at, done)),
                    Poll::Pending => None,
                });
            let Some((at, done)) = polled else {
                return Poll::Pending;
            };
            drop(self.running.remove(at));
            Poll::Ready(done)
        })
        .await
    }

    pub(super) fn is_looking(&self) -> bool {
        self.is_running(Task::Look)
    }

    /// Begins the looks and measurements that are due. Says whether a look was begun.
    pub(super) fn begin_due(&mut self, session: &Session, config: &Config, now: Instant) -> bool {
        if self.is_due(Task::Measure, now) {
            self.next.insert(Task::Measure, now + MEASURE_INTERVAL);
            let control = session.control.clone();
            self.begin(Task::Measure, async move {
                Done::Measured(control.wal_position().await)
            });
        }
        let due = self.is_due(Task::Look, now);
        if due {
            self.begin_look(session, config, None, now);
        }
        due
    }

    /// Begins a look, after which `then_store` is to be stored if all is well.
    pub(super) fn begin_look(
        &mut self,
        session: &Session,
        config: &Config,
        then_store: Option<Position>,
        now: Instant,
    ) {
        self.next.insert(Task::Look, now + LOOK_INTERVAL);
        let control = session.control.clone();
        let before = session.fingerprints.clone();
        let config = config.clone();
        let known = session.start.record.publication_version().to_owned();
        self.begin(Task::Look, async move {
            Done::Looked(look(control, before, config, &known).await, then_store)
        });
    }

    /// Takes a snapshot where one is due, none is under way, and events were `acked` since the
    /// last.
    pub(super) fn begin_pair(&mut self, session: &Session, acked: u64, now: Instant) {
        if self.paired_at != acked && self.is_due(Task::Pair, now) {
            self.next.insert(Task::Pair, now + PAIR_INTERVAL);
            let control = session.control.clone();
            let memberships = session.start.record.stored.outboxes.membership_oids.clone();
            self.begin(Task::Pair, async move {
                Done::Paired(control.take_pair(memberships).await)
            });
        }
    }

    /// Looks for pending rows where that is due; everything up to `settled` is delivered and
    /// marked.
    pub(super) fn begin_watch(
        &mut self,
        session: &Session,
        settled: Position,
        every: Duration,
        now: Instant,
    ) {
        if self.is_due(Task::FindPending, now) {
            self.next.insert(Task::FindPending, now + every);
            let control = session.control.clone();
            self.begin(Task::FindPending, async move {
                Done::Pending(control.look_pending().await, settled)
            });
        }
    }

    /// Looks for pending rows not before a while.
    pub(super) fn put_off_watch(&mut self, now: Instant) {
        self.next.insert(Task::FindPending, now + WATCH_PAUSE);
    }

    /// Looks whether this row of a delivered event is in its table, where its key is text.
    pub(super) fn begin_kept(&mut self, session: &Session, of: &OutboxConfig, row: &RowId) {
        let key = of
            .key_columns()
            .cloned()
            .zip(row.values())
            .map(|(column, value)| Some((column, String::from_utf8(value.to_vec()).ok()?)));
        if !self.is_running(Task::ProbeRow)
            && let Some(table) = of.source.table().cloned()
            && let Some(key) = key.collect()
        {
            let control = session.control.clone();
            let outbox = row.outbox;
            self.begin(Task::ProbeRow, async move {
                Done::Kept(control.is_kept(table, key).await, outbox)
            });
        }
    }

    /// Begins to store `position`, with the session's store until [`Done::Stored`] brings it back.
    pub(super) fn begin_store(
        &mut self,
        session: &mut Session,
        position: Position,
        published: Option<Published>,
    ) {
        let Some(mut store) = session.start.store.take() else {
            return;
        };
        let stored = session.start.record.at(position, published);
        self.begin(Task::Store, async move {
            failpoint::reached("storing");
            let result = store.store(&stored).await;
            Done::Stored(store, position, result)
        });
    }

    /// Reads the tail of a topic, where none is being read. One client reads them all.
    pub(super) fn begin_tail(&mut self, config: &Config, before: Option<&DeliveredBefore>) {
        let Some(before) = before else {
            self.tails = None;
            return;
        };
        if !self.is_running(Task::ReadTail)
            && let Some(tail) = before.unread()
        {
            let reader = self.tails.take();
            self.begin(Task::ReadTail, read_tail(config.clone(), reader, tail));
        }
    }

    /// Takes in what was read of a topic's tail, for `before`.
    pub(super) fn tail_read(
        &mut self,
        ReadTail {
            topic,
            tail,
            reader,
            result,
        }: ReadTail,
        slot: &SlotName,
        before: Option<&mut DeliveredBefore>,
    ) {
        self.tails = reader;
        let records = tail.as_ref().map_or(0, |tail| tail.count);
        tracing::debug!(%slot, topic, records, "looked for what was published before");
        if let Err(error) = &result {
            let fix = error.what_to_do();
            tracing::warn!(event = "tail_read_failed", %slot, topic, %error, fix,
                "the topic cannot be read: events that were published before a crash may be \
                 published again");
        }
        match (before, tail) {
            (Some(before), Some(tail)) => before.read(tail, result.is_err()),
            (Some(before), None) => before.unreadable(&topic),
            (None, _) => {}
        }
    }

    /// The catalogs are to be looked at now, or after the look that is under way.
    pub(super) fn look_soon(&mut self) {
        self.next.insert(Task::Look, Instant::now());
    }

    /// When the next look or measurement is due.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let idle = [Task::Look, Task::Measure]
            .into_iter()
            .filter(|task| !self.is_running(*task));
        idle.filter_map(|task| self.next.get(&task)).min().copied()
    }
}

/// Looks at the catalogs, and where the publication was altered, whether the tables can be read.
async fn look(
    control: Control,
    before: Vec<Fingerprint>,
    config: Config,
    known: &str,
) -> Result<Look> {
    let mut look = control.check_catalog(before).await?;
    if look.is_altered(known) {
        let readable = control
            .ask(async move |session| Ok(can_go_on(session.client(), &config).await))
            .await?;
        look.unreadable = why_unreadable(readable)?;
        look.next_xid = control.next_xid().await?;
    }
    Ok(look)
}

/// Why the tables cannot be read, if they cannot.
/// Errors: a lock or a lost connection, which says nothing of the tables: the next look asks again.
fn why_unreadable(readable: Result<()>) -> Result<Option<Error>> {
    match readable {
        Err(error) if !error.kind().halts() => Err(error),
        readable => Ok(readable.err()),
    }
}

async fn read_tail(config: Config, reader: Option<Box<dyn TailReader>>, mut tail: Tail) -> Done {
    let topic = tail.topic.clone();
    let until = Instant::now() + TAIL_TIMEOUT;
    let reading = tokio::task::spawn_blocking(move || {
        let topic = tail.topic.clone();
        let (reader, result) = match reader
            .map_or_else(|| AnySink::tails(&config), |reader| Ok(Some(reader)))
        {
            Ok(None) => (None, Ok(())),
            Ok(Some(mut reader)) => {
                let result = reader.read_tail(&topic, until.into_std(), &mut |record, offset| {
                    tail.take(record, offset)
                });
                (Some(reader), result)
            }
            Err(error) => (None, Err(error)),
        };
        ReadTail {
            topic,
            tail: Some(tail),
            reader,
            result,
        }
    });
    let lost = |error| ReadTail {
        topic: topic.clone(),
        tail: None,
        reader: None,
        result: Err(error),
    };
    // A little more than the time-out, so that what was read in time arrives.
    Done::Tail(
        match tokio::time::timeout_at(until + TAIL_TIMEOUT / 10, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => lost(Error::new(Kind::Bug, error)),
            Err(_) => {
                let what = format!("topic {topic} could not be read in time");
                lost(Error::new(Kind::BusUnreachable, what))
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passing_fault_does_not_say_that_the_table_cannot_be_read() {
        for kind in [
            Kind::PostgresUnreachable,
            Kind::PostgresUnwritable,
            Kind::SlotActive,
        ] {
            let passing = Error::new(kind, "a lock was held for long");
            assert_eq!(
                why_unreadable(Err(passing)).map_err(|error| error.kind()),
                Err(kind)
            );
        }
        let unfit = why_unreadable(Err(Error::new(
            Kind::Publication,
            "there is no table outbox",
        )))
        .unwrap();
        assert_eq!(unfit.map(|error| error.kind()), Some(Kind::Publication));
        assert_eq!(why_unreadable(Ok(())).unwrap(), None);
    }
}
