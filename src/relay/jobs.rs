//! The jobs of a session beside the stream, one of each kind at a time: storing a position, looking
//! at the catalogs, measuring slot and log. The loop waits for the ends of jobs and never for a
//! job.
//!
//! [`Jobs`] asks the SQL session. [`RequeueDetector`], [`RowsPersist`], [`RetentionLimit`] and
//! [`HeldCommits`] judge the answers, without I/O.

use std::collections::{HashMap, HashSet};
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::{Config, SourceConfig};
use crate::relay::recovery::can_go_on;
use crate::relay::session::Session;
use crate::relay::shared_loop::Job;
use crate::relay::store::AnyStore;
use crate::sink::{AnySink, BusSink as _, TailReader};
use crate::source::control::{Control, PendingRow, WalPosition};
use crate::source::watch::{Fingerprint, Look};
use walrelay_core::config::unit::human_bytes;
use walrelay_core::config::{SlotName, TableName};
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
    pub(super) topic: String,
    /// None where the reader is still at it.
    pub(super) tail: Option<Tail>,
    /// For the next topic.
    pub(super) reader: Option<Box<dyn TailReader>>,
    pub(super) result: Result<()>,
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
    pub(super) tails: Option<Box<dyn TailReader>>,
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
            let memberships = session.start.record.stored.membership_oids.clone();
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

    /// Looks whether the row of a delivered event is in its table.
    pub(super) fn begin_kept(
        &mut self,
        session: &Session,
        outbox: usize,
        table: TableName,
        key: Vec<(String, String)>,
    ) {
        if !self.is_running(Task::ProbeRow) {
            let control = session.control.clone();
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

/// Rows that somebody set to pending again while the slot serves.
///
/// A row is pending until the slot has delivered it and it was marked. So one look says nothing. A
/// row that was pending when the log was at some LSN, and *still* is after everything up to there
/// was delivered and marked, was set to pending again.
#[derive(Debug, Default)]
pub(super) struct RequeueDetector {
    /// Pending rows, and the end of the log after they were looked at.
    seen: Option<(HashSet<RowId>, Lsn)>,
    warned: bool,
}

impl RequeueDetector {
    /// None where rows do not say that they are pending.
    pub(super) fn of(config: &Config) -> Option<RequeueDetector> {
        config
            .outboxes
            .iter()
            .any(|outbox| outbox.upkeep.pending.is_some())
            .then(RequeueDetector::default)
    }

    /// Logs that a look failed, the first time.
    pub(super) fn warn(&mut self, slot: &SlotName, error: &Error) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(event = "pending_search_failed", %slot, %error,
                "the search for pending rows failed; an index may help");
        }
    }

    /// These rows are `pending`, and the log was at `lsn` after that look; everything up to
    /// `settled` was delivered and marked *before* it. Gives the rows that are to be published
    /// again.
    pub(super) fn looked(
        &mut self,
        pending: Vec<RowId>,
        lsn: Lsn,
        settled: &Position,
    ) -> Vec<RowId> {
        let Some((seen, reached)) = &self.seen else {
            self.seen = (!pending.is_empty()).then(|| (pending.into_iter().collect(), lsn));
            return Vec::new();
        };
        if settled.end_lsn < *reached {
            // The slot has not reached the first look, which still counts.
            return Vec::new();
        }
        let still: Vec<RowId> = pending
            .iter()
            .filter(|row| seen.contains(*row))
            .cloned()
            .collect();
        self.seen =
            (still.is_empty() && !pending.is_empty()).then(|| (pending.into_iter().collect(), lsn));
        still
    }
}

/// So many rows in a row are gone where rows do not stay.
const GONE_MAX: u32 = 3;

/// Whether rows stay in the table, which is what everything can be recovered from.
///
/// Some applications delete an event in the transaction that inserts it: the slot delivers it all
/// the same, and the table is always empty. If the slot is lost, such events are lost with it, and
/// the relay warns of that.
#[derive(Debug, Default)]
pub(super) struct RowsPersist {
    /// The row of an event that was new at the last look. Once a later event came, other sessions
    /// see it, if it exists. Only where commits wait for a standby it may be the other way round.
    waiting: Option<RowId>,
    /// By outbox: rows in a row that were gone.
    gone: HashMap<usize, u32>,
}

impl RowsPersist {
    /// The row to look for now, once; `newest` is the row to look for when another event came.
    pub(super) fn due(&mut self, newest: Option<RowId>) -> Option<RowId> {
        let due = std::mem::replace(&mut self.waiting, newest);
        due.filter(|due| self.waiting.as_ref() != Some(due))
    }

    /// Whether it is now sure that rows do not stay; `kept` is none where the role may not look.
    pub(super) fn found(&mut self, outbox: usize, kept: Option<bool>) -> bool {
        let gone = self.gone.entry(outbox).or_default();
        match kept {
            Some(true) => *gone = 0,
            Some(false) => *gone = gone.saturating_add(1),
            None => {}
        }
        *gone == GONE_MAX && kept == Some(false)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Or there is no limit.
    Within,
    Over {
        retained: u64,
        max: u64,
    },
    /// The slot is over its limit, and is to be dropped.
    GiveUp,
}

#[derive(Debug)]
pub(crate) struct RetentionLimit {
    max: Option<u64>,
    gives_up: bool,
    told: Told,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Nothing,
    Half,
    Over,
}

impl RetentionLimit {
    pub(crate) fn new(config: &SourceConfig) -> Self {
        RetentionLimit {
            max: config.max_retained_bytes,
            gives_up: config.gives_up_over_budget(),
            told: Told::Nothing,
        }
    }

    /// Judges `retained` bytes of WAL, and gives a warning, once for each step.
    pub(crate) fn judge(&mut self, retained: u64) -> (Verdict, Option<String>) {
        let Some(max) = self.max else {
            return (Verdict::Within, None);
        };
        let state = match retained {
            _ if retained > max => Told::Over,
            _ if retained > max / 2 => Told::Half,
            _ => Told::Nothing,
        };
        let is_news = state > self.told;
        self.told = state;
        let kept = human_bytes(retained);
        let may = human_bytes(max);
        let over = |then| format!("the slot retains {kept} of WAL, and its limit is {may}: {then}");
        let (verdict, news) = match state {
            Told::Nothing => return (Verdict::Within, None),
            Told::Half => {
                let half =
                    format!("the slot retains {kept} of WAL, more than half of its limit of {may}");
                (Verdict::Within, half)
            }
            Told::Over if self.gives_up => (
                Verdict::GiveUp,
                over("dropping the slot, and reading the table"),
            ),
            Told::Over => (
                Verdict::Over { retained, max },
                over("not ready until it retains less"),
            ),
        };
        (verdict, is_news.then_some(news))
    }
}

/// How long a relay that is a synchronous standby may hold up commits without an ack.
const HELD_MAX: Duration = Duration::from_secs(3);

/// Since when a relay that holds up commits of all sessions has confirmed and acked nothing.
#[derive(Debug, Default)]
pub(super) struct HeldCommits {
    acked: u64,
    confirmed: Lsn,
    since: Option<Instant>,
}

impl HeldCommits {
    /// Whether the relay has held up commits for too long. `holds` says whether it holds up any.
    pub(super) fn is_too_long(
        &mut self,
        holds: bool,
        acked: u64,
        confirmed: Lsn,
        now: Instant,
    ) -> bool {
        let moved = acked > self.acked || confirmed > self.confirmed;
        self.acked = acked;
        self.confirmed = confirmed;
        if moved || !holds {
            self.since = None;
            return false;
        }
        now.saturating_duration_since(*self.since.get_or_insert(now)) >= HELD_MAX
    }

    /// The reason to leave the stream. `all_acked` says that the bus owes nothing.
    pub(super) fn error(all_acked: bool) -> Error {
        let (kind, missing) = match all_acked {
            true => (
                Kind::PostgresUnreachable,
                "nothing that was acked was parked or stored",
            ),
            false => (Kind::BusUnreachable, "no event was acked"),
        };
        let seconds = HELD_MAX.as_secs();
        let cause = format!(
            "Postgres counts this relay as a synchronous standby, and for {seconds} s {missing}: \
             leaving the stream, so that commits wait for other standbys alone"
        );
        Error::new(kind, cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_relay_without_progress_holds_up_commits_for_too_long() {
        let mut held = HeldCommits::default();
        let start = Instant::now();
        let lsn = Lsn::new;
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(
            (0..9).all(|second| !held.is_too_long(false, 0, lsn(1), at(second))),
            "none waits"
        );
        assert!(
            (10..19).all(|second| !held.is_too_long(true, second, lsn(1), at(second))),
            "events are acked"
        );
        assert!(
            (20..29).all(|second| !held.is_too_long(true, 19, lsn(second), at(second))),
            "it confirms"
        );
        assert!(
            (30..39).all(|second| !held.is_too_long(false, 19, lsn(29), at(second))),
            "none waits any more"
        );
        let late = |held: &mut HeldCommits, second| held.is_too_long(true, 19, lsn(29), at(second));
        assert!(!late(&mut held, 40) && !late(&mut held, 42) && late(&mut held, 43));
        assert_eq!(HeldCommits::error(false).kind(), Kind::BusUnreachable);
        assert_eq!(
            HeldCommits::error(true).kind(),
            Kind::PostgresUnreachable,
            "the producer stays"
        );
    }

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

    fn rows(ids: &[&str]) -> Vec<RowId> {
        ids.iter()
            .map(|id| RowId::new(0, std::iter::once(id.as_bytes())))
            .collect()
    }

    #[test]
    fn a_row_still_pending_after_the_position_passed_the_first_look_is_requeued() {
        let mut again = RequeueDetector::default();
        let at = |lsn| Position::at(Lsn::new(lsn));
        let mut look =
            |ids: &[&str], lsn, settled| again.looked(rows(ids), Lsn::new(lsn), &at(settled));
        assert_eq!(look(&["a", "b"], 100, 50), []);
        // Not there yet, however often it is looked at.
        assert_eq!(look(&["a", "b", "c"], 120, 99), []);
        // "b" was marked, "c" came later.
        assert_eq!(look(&["a", "c"], 130, 100), rows(&["a"]));
        assert_eq!(look(&["c"], 140, 135), []);
        assert_eq!(look(&[], 150, 140), []);
        assert_eq!(look(&["d"], 160, 150), []);
        assert_eq!(look(&[], 170, 160), []);
    }

    #[test]
    fn the_row_of_an_event_is_looked_up_once_when_another_event_came() {
        let mut kept = RowsPersist::default();
        let row = |id: u8| {
            Some(RowId {
                outbox: 0,
                key: vec![id],
            })
        };
        assert_eq!(kept.due(row(1)), None);
        assert_eq!(kept.due(row(1)), None, "its commit may wait for a standby");
        assert_eq!(kept.due(row(2)), row(1));
        assert_eq!(kept.due(None), row(2));
        assert_eq!(kept.due(None), None);
    }

    #[test]
    fn rows_missing_at_three_looks_in_succession_are_reported_once() {
        let mut kept = RowsPersist::default();
        let mut found = |answers: &[Option<bool>]| {
            answers
                .iter()
                .filter(|answer| kept.found(0, **answer))
                .count()
        };
        assert_eq!(
            found(&[
                Some(false),
                Some(false),
                Some(true),
                Some(false),
                None,
                Some(false)
            ]),
            0
        );
        assert_eq!(found(&[Some(false), Some(false), Some(false)]), 1);
    }

    fn judged(gives_up: bool, retained: &[u64]) -> Vec<(Verdict, bool)> {
        let mut limit = RetentionLimit {
            max: Some(100),
            gives_up,
            told: Told::Nothing,
        };
        retained
            .iter()
            .map(|bytes| limit.judge(*bytes))
            .map(|(verdict, news)| (verdict, news.is_some()))
            .collect()
    }

    #[test]
    fn each_step_of_retained_wal_is_reported_once_until_the_wal_shrinks() {
        let over = |retained| Verdict::Over { retained, max: 100 };
        let within = Verdict::Within;
        let grows = judged(false, &[50, 51, 60, 101, 102]);
        let shrinks = judged(false, &[101, 60, 101, 10, 51]);
        assert_eq!(
            grows,
            [
                (within, false),
                (within, true),
                (within, false),
                (over(101), true),
                (over(102), false)
            ]
        );
        assert_eq!(
            shrinks,
            [
                (over(101), true),
                (within, false),
                (over(101), true),
                (within, false),
                (within, true)
            ]
        );
        assert_eq!(judged(true, &[101]), [(Verdict::GiveUp, true)]);
        let mut limit = RetentionLimit {
            max: None,
            gives_up: true,
            told: Told::Nothing,
        };
        assert_eq!(limit.judge(u64::MAX), (Verdict::Within, None));
    }
}
