//! Retries of parked events: when they are due, and when an operator asks for them.
//!
//! The retries have a producer of their own, so that a refusal ends nothing but the attempt: a
//! topic without a leader can hold one for a minute. They have a session of their own, so that
//! nothing else waits for a lock on a row. Nothing else publishes events of an aggregate with
//! parked events: the relay parks those until the last one is delivered or dropped (P2).
//!
//! A fault of one aggregate (a lock, a mark that is refused, an event that cannot be read) holds up
//! that one: it is logged once, and the aggregate is retried after a pause. Only the bus, or a
//! session that is gone, ends a pass.

mod producer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::MutexGuard;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use self::producer::RetryProducer;
use crate::config::{Config, StoreKind};
use crate::relay::stall_watchdog::StallGuard;
use crate::relay::stop::Stop;
use crate::relay::store::Known;
use crate::telemetry::Metrics;
use crate::upkeep::parked::DROPPED_NAMED_MAX;
use crate::upkeep::{DatabaseIdentity, Marker};
use walrelay_core::clock::millis;
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result};
use walrelay_core::event::{RowId, Shown};
use walrelay_core::failpoint;
use walrelay_core::parked::{AggregateHead, Batch, FailedAgain, Failure, ParkedRef, ParkedRow};
use walrelay_core::publisher::Publisher;
use walrelay_core::publisher::parked_index::{Retry, RetryMemory, RetryReport};
use walrelay_core::publisher::retry_batch::{Refusal, RetryResult, replay_instead};
use walrelay_core::publisher::retry_walk::{RetryWalk, WalkStep, is_stored};
use walrelay_core::sink::Sink;
use walrelay_core::stored::Stored;

/// How often the table is asked which events are due, while any are parked.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Looks take this small a part of the time, however many events are parked. Attempts have a
/// back-off of their own.
const LOOK_SHARE: u32 = 20;
/// After a pass that could not be made.
const PAUSE: Duration = Duration::from_secs(5);
/// How often the index is loaded from the table, and how soon the first time. Postgres may commit a
/// transaction of another relay, or of a pass of an earlier session, a little later.
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);
const RELOAD_SOON: Duration = Duration::from_secs(5);
/// How long the end of a session waits for a pass.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// The same at a stop: enough for an ack and for the write to the table. A refusal takes longer.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Aggregates of one look. A topic that refuses is tried once for them.
const HEADS_MAX: i64 = 1_000;
/// Events dropped in one transaction.
const DROPPED_AT_ONCE: i64 = 200;
/// One event is this many times in memory: from Postgres, as it was parked, as a record, and as the
/// client's copy.
const COPIES: usize = 4;
/// So long of a pass may go to aggregates that were blocked before, so long to requested drops, and
/// so long to further looks.
const LONG: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Retrying {
    shared: Arc<Shared>,
    pass: Option<Running>,
    next_pass: Instant,
    next_reload: Instant,
    is_warned: bool,
    /// Whether memory and session are to be dropped once nothing is parked.
    is_used: bool,
}

/// A pass. It ends when this is dropped.
#[derive(Debug)]
struct Running {
    reports: UnboundedReceiver<RetryReport>,
    ended: JoinSet<(Summary, Result<()>)>,
}

#[derive(Debug, Default)]
struct Summary {
    sent: u64,
    dropped: u64,
    /// Dropped events that the log names.
    named: u64,
    /// How long it took to find out which events are due.
    looked: Duration,
}

impl Retrying {
    /// In `database`, where rows are written; `beside`, where the loop has a watchdog.
    pub(super) fn new(
        config: &Config,
        known: &Known,
        database: Option<DatabaseIdentity>,
        metrics: &Metrics,
        beside: Option<StallGuard>,
    ) -> Retrying {
        let now = Instant::now();
        let shared = Shared {
            config: config.clone(),
            known: Arc::clone(known),
            database,
            metrics: metrics.clone(),
            beside,
            session: Mutex::default(),
            ends: AtomicBool::default(),
        };
        Retrying {
            shared: Arc::new(shared),
            pass: None,
            next_pass: now,
            next_reload: now + RELOAD_SOON,
            is_warned: false,
            is_used: false,
        }
    }

    /// Begins a pass where one is due and events are parked.
    pub(super) fn begin_due(&mut self, publisher: &mut Publisher<impl Sink>, now: Instant) {
        if self.pass.is_some() || self.next_pass > now {
            return;
        }
        if !publisher.judge.parking.is_any() {
            if std::mem::take(&mut self.is_used) {
                *self.shared.memory() = RetryMemory::default();
                if let Ok(mut session) = self.shared.session.try_lock() {
                    *session = None;
                }
            }
            return;
        }
        self.is_used = true;
        let reloads = self.next_reload <= now;
        if reloads {
            publisher.begin_look();
        }
        let shared = Arc::clone(&self.shared);
        let (to, reports) = unbounded_channel();
        let pass = async move {
            let mut summary = Summary::default();
            let ended = shared.pass(&mut summary, reloads, to).await;
            (summary, ended)
        };
        self.pass = Some(Running {
            reports,
            ended: JoinSet::from_iter([pass]),
        });
    }

    /// The session ends, and slot or lease are still ours: the pass gets a moment for what it is
    /// at, and there is no other.
    pub(super) async fn finish(&mut self, asked: Stop) {
        self.shared.ends.store(true, Ordering::Relaxed);
        let ending = async {
            while self.pass.is_some() {
                self.next().await;
            }
        };
        let limit = if asked == Stop::No {
            FINISH_TIMEOUT
        } else {
            STOP_TIMEOUT
        };
        if timeout(limit, ending).await.is_err() {
            tracing::debug!("a retry of parked events was abandoned");
        }
        self.abandon().await;
    }

    /// The session ends, and slot or lease may be another's.
    pub(super) async fn abandon(&mut self) {
        if let Some(mut pass) = self.pass.take() {
            // From then on it sends nothing. Postgres may still commit its last statement: a reload
            // finds that out.
            pass.ended.shutdown().await;
        }
    }

    /// Waits for a report of the pass, or its end. Safe to cancel; without a pass, for ever.
    pub(super) async fn next(&mut self) -> RetryReport {
        let Some(pass) = &mut self.pass else {
            return std::future::pending().await;
        };
        if let Some(report) = pass.reports.recv().await {
            if report.table.is_some() {
                self.next_reload = Instant::now() + RELOAD_INTERVAL;
            }
            return report;
        }
        let ended = pass.ended.join_next().await;
        self.pass = None;
        if let Some(ended) = ended {
            let (summary, ended) = ended
                .unwrap_or_else(|error| (Summary::default(), Err(Error::new(Kind::Bug, error))));
            self.ended(summary, ended);
        }
        RetryReport::default()
    }

    fn ended(
        &mut self,
        Summary {
            sent,
            dropped,
            looked,
            ..
        }: Summary,
        ended: Result<()>,
    ) {
        let now = Instant::now();
        let slot = &self.shared.config.source.slot;
        if sent > 0 {
            tracing::info!(event = "parked_events_delivered", %slot, events = sent, "parked events \
                were delivered");
        }
        if dropped > 0 {
            tracing::info!(event = "parked_events_dropped", %slot, events = dropped,
                "parked events were dropped");
        }
        match ended {
            Ok(()) => {
                self.next_pass = now
                    + if sent + dropped > 0 {
                        Duration::ZERO
                    } else {
                        LOOK_INTERVAL.max(looked * LOOK_SHARE)
                    };
                self.is_warned = false;
            }
            Err(error) => {
                self.next_pass = now + PAUSE;
                self.next_reload = now;
                if std::mem::replace(&mut self.is_warned, true) {
                    tracing::debug!(%slot, %error, "parked events cannot be retried now");
                } else {
                    tracing::warn!(event = "parked_retry_failed", %slot, %error,
                        fix = error.what_to_do(),
                        "parked events cannot be retried now");
                }
            }
        }
    }
}

#[derive(Debug)]
struct Shared {
    config: Config,
    known: Known,
    database: Option<DatabaseIdentity>,
    metrics: Metrics,
    beside: Option<StallGuard>,
    session: Mutex<Option<Marker>>,
    /// Whether the pass is to end with what it is at.
    ends: AtomicBool,
}

impl Shared {
    async fn pass(
        &self,
        summary: &mut Summary,
        reloads: bool,
        to: UnboundedSender<RetryReport>,
    ) -> Result<()> {
        let (Some(stored), Some(database)) = (self.stored(), &self.database) else {
            return Ok(());
        };
        let mut session = self.session.lock().await;
        let marker = match session.take().filter(|marker| !marker.is_closed()) {
            Some(marker) => marker,
            None => match Marker::impatient(&self.config, database).await? {
                Some(marker) => marker,
                None => return Ok(()),
            },
        };
        let server = stored.server.clone();
        let mut producer = RetryProducer::new(&self.config, server, self.beside.as_ref());
        let mut run = RetryRun {
            shared: self,
            marker: &marker,
            stored,
            to,
            summary,
            refused: Vec::new(),
        };
        let ended = run.all(&mut producer, reloads).await;
        producer.end().await;
        if ended.is_ok() || marker.answers().await {
            *session = Some(marker);
        }
        ended
    }

    /// What is stored; none where slot or lease is not ours. A slot as the store has whole
    /// transactions.
    fn stored(&self) -> Option<Stored> {
        let mut stored = self.known.stored.borrow().clone()?;
        if self.config.state.store == StoreKind::Slot {
            stored.position.partial = None;
        }
        Some(stored)
    }

    fn memory(&self) -> MutexGuard<'_, RetryMemory> {
        self.known.tried.lock()
    }

    fn is_acked(&self, held: &ParkedRow) -> bool {
        self.memory().is_acked(held.id, held.event.place)
    }
}

/// One pass: requested drops, events that are due, and the results.
struct RetryRun<'a> {
    shared: &'a Shared,
    marker: &'a Marker,
    stored: Stored,
    to: UnboundedSender<RetryReport>,
    summary: &'a mut Summary,
    /// Events that are not tried because their topics refuse, until that is written down.
    refused: Vec<Refused>,
}

#[derive(Debug)]
struct Refused {
    head: AggregateHead,
    failed: FailedAgain,
}

#[derive(Debug)]
enum Trouble {
    /// Of one aggregate: what was done, and the row where it is known.
    Own {
        doing: &'static str,
        row: Option<RowId>,
        error: Error,
    },
    /// Of all.
    Whole(Error),
}

impl Trouble {
    fn of(doing: &'static str, row: &RowId, error: Error) -> Trouble {
        Trouble::Own {
            doing,
            row: Some(row.clone()),
            error,
        }
    }
}

const NOTING_A_FAILURE: &str = "noting that it failed again";

/// What to do about an event that cannot be read, where Postgres says no more.
fn unreadable_remedy() -> Remedy {
    Remedy::from("see it with `")
        .and(NextCommand::new("parked list"))
        .and("`; its row of walrelay.parked was not written by walrelay, or is too large: ")
        .and(replay_instead())
}

impl RetryRun<'_> {
    async fn all(&mut self, producer: &mut RetryProducer<'_>, reloads: bool) -> Result<()> {
        if reloads {
            let table = Some(self.marker.waiting().await?);
            self.shared
                .metrics
                .dropped_events
                .inc_by(self.marker.take_dropped());
            self.report(RetryReport {
                table,
                ..RetryReport::default()
            });
        }
        let began = Instant::now();
        self.ask_for_pending().await?;
        let asked = began.elapsed();
        let mut until = None;
        loop {
            self.drop_asked(Instant::now() + LONG).await?;
            let looks = Instant::now();
            let sent = self.summary.sent;
            let mut looked = looks;
            let paused = self.shared.memory().paused(looks.into_std());
            let mut due = self.marker.due(HEADS_MAX, &paused).await?;
            self.summary.looked = asked + looks.elapsed();
            // Who has repaired a topic and asks for a retry wants one.
            if due.iter().any(|head| head.is_asked) {
                producer.retries.asked();
            }
            // Aggregates that were blocked come last: they may take their time again.
            due.sort_by_cached_key(|head| self.shared.memory().was_blocked(head.id));
            for head in due {
                if self.shared.ends.load(Ordering::Relaxed) {
                    return Ok(());
                }
                if began.elapsed() > LONG && self.shared.memory().was_blocked(head.id) {
                    break;
                }
                // An attempt may take long, and a requested drop waits for it.
                if looked.elapsed() > LOOK_INTERVAL {
                    self.drop_asked(Instant::now() + LOOK_INTERVAL).await?;
                    looked = Instant::now();
                }
                let mut walk = RetryWalk::new(head);
                if let Err(trouble) = self.aggregate(producer, &mut walk).await {
                    self.blocked(&walk.head, trouble).await?;
                }
            }
            let is_refused = !self.refused.is_empty();
            self.note_refused().await?;
            // What was parked meanwhile finds a producer that is ready: a new one takes half a
            // second, and writers who are faster than that would never be caught up with. It also
            // knows the topics that refuse.
            let until = *until.get_or_insert_with(|| Instant::now() + LONG);
            if !is_refused && self.summary.sent == sent || Instant::now() > until {
                return Ok(());
            }
            match self.shared.stored() {
                Some(newest) => self.stored = newest,
                // Slot or lease is ours no more.
                None => return Ok(()),
            }
        }
    }

    /// Drops what an operator asked to drop; the rows count as given up. There may be much of it.
    async fn drop_asked(&mut self, until: Instant) -> Result<()> {
        // The slot would send these again after a crash, behind later ones of their aggregates.
        let mut early = Vec::new();
        loop {
            let now = Instant::now().into_std();
            let mut except = self.shared.memory().paused(now);
            except.extend_from_slice(&early);
            let asked = self.marker.dropped(DROPPED_AT_ONCE, &except).await?;
            if asked.is_empty() {
                return Ok(());
            }
            let position = &self.stored.position;
            let (dropped, later): (Vec<_>, Vec<_>) = asked
                .into_iter()
                .partition(|(_, waiting, _)| is_stored(waiting.place, position));
            early.extend(later.iter().map(|(id, ..)| *id));
            self.drop_these(dropped, until).await?;
            if Instant::now() >= until {
                return Ok(());
            }
        }
    }

    async fn drop_these(
        &mut self,
        dropped: Vec<(i64, ParkedRef, Failure)>,
        until: Instant,
    ) -> Result<()> {
        let mut batch = Batch::default();
        dropped
            .iter()
            .for_each(|dropped| self.drop_in(&mut batch, dropped));
        dropped.iter().for_each(|dropped| self.log_drop(dropped));
        if self.settled(&batch).await? {
            let events = dropped.into_iter().map(|(id, waiting, _)| (id, waiting));
            self.summary.dropped += self.release(events, &self.shared.metrics.dropped_events);
            return Ok(());
        }
        for dropped in dropped {
            if Instant::now() >= until {
                break;
            }
            let mut alone = Batch::default();
            self.drop_in(&mut alone, &dropped);
            match self.marker.settle(&alone).await {
                Ok(_) => {
                    self.summary.dropped += self.release(
                        [(dropped.0, dropped.1)],
                        &self.shared.metrics.dropped_events,
                    )
                }
                Err(error) => {
                    let (id, ParkedRef { row, .. }, _) = dropped;
                    let trouble = Trouble::of("dropping it, as an operator asked", &row, error);
                    let head = AggregateHead {
                        id,
                        outbox: row.outbox,
                        key: None,
                        is_asked: true,
                    };
                    self.blocked(&head, trouble).await?;
                }
            }
        }
        Ok(())
    }

    fn drop_in(&self, batch: &mut Batch, (id, waiting, failure): &(i64, ParkedRef, Failure)) {
        batch.unparked.push(*id);
        let Some(outbox) = self.shared.config.outboxes.get(waiting.row.outbox) else {
            return;
        };
        // It was delivered before somebody asked.
        let is_acked = self.shared.memory().is_acked(*id, waiting.place);
        if outbox.upkeep.mark_failed.is_some() && !is_acked {
            batch.failed.push((waiting.row.clone(), failure.clone()));
        } else {
            batch.acked.push(waiting.row.clone());
        }
    }

    /// Logged before it is done. The first ones are named; a line at the end of the pass has the
    /// number of all.
    fn log_drop(&mut self, (id, waiting, failure): &(i64, ParkedRef, Failure)) {
        if self.shared.memory().was_blocked(*id) {
            return;
        }
        self.summary.named += 1;
        let slot = &self.shared.config.source.slot;
        let outbox = self.outbox_of(waiting.row.outbox);
        let row = Shown::of(waiting.row.id());
        let place = waiting.place;
        let class = failure.class;
        let cause = &failure.cause;
        if self.summary.named <= DROPPED_NAMED_MAX {
            tracing::warn!(event = "parked_event_dropped", %slot, outbox, %row, %place, class,
                cause,
                "a parked event is dropped, as an operator asked");
        } else {
            tracing::debug!(%slot, outbox, %row, %place, class, cause, "a further parked event is \
                dropped");
        }
    }

    /// These are parked no longer, which `counter` counts. Gives how many they are.
    fn release(
        &self,
        events: impl IntoIterator<Item = (i64, ParkedRef)>,
        counter: &Counter,
    ) -> u64 {
        let (ids, released): (Vec<i64>, Vec<ParkedRef>) = events.into_iter().unzip();
        ids.iter().for_each(|id| self.shared.memory().written(*id));
        let count = ids.len() as u64;
        counter.inc_by(count);
        self.report(RetryReport {
            released,
            ..RetryReport::default()
        });
        count
    }

    /// Rows of parked events may be pending again, which asks for a retry.
    async fn ask_for_pending(&mut self) -> Result<()> {
        let slot = &self.shared.config.source.slot;
        for (index, outbox) in self.marker.asked_by_pending() {
            let search = Retry::Pending(outbox.to_owned());
            if self
                .shared
                .memory()
                .is_paused(&search, Instant::now().into_std())
            {
                continue;
            }
            match self.marker.ask_for_pending(index, outbox).await {
                Ok(asked) => {
                    self.shared.memory().unblock(&search);
                    if asked > 0 {
                        tracing::info!(event = "parked_retries_requested", %slot, outbox,
                            events = asked,
                            "rows of parked events are pending again; retrying the events");
                    }
                }
                Err(error) if !self.marker.answers().await => return Err(error),
                Err(error) => {
                    let (pause, is_new) =
                        self.shared
                            .memory()
                            .block(search, Instant::now().into_std(), true);
                    if is_new {
                        tracing::warn!(event = "parked_search_failed", %slot, outbox, %error,
                            fix = error.what_to_do(),
                            pause_ms = millis(pause),
                            "the search for parked events whose rows are pending again failed");
                    }
                }
            }
        }
        Ok(())
    }

    fn outbox_of(&self, outbox: usize) -> String {
        self.shared
            .config
            .outboxes
            .get(outbox)
            .map(|outbox| outbox.source.to_string())
            .unwrap_or_default()
    }

    /// A fault blocks an aggregate: it is retried after a pause.
    /// Errors: the fault is not of this aggregate alone.
    async fn blocked(&self, head: &AggregateHead, trouble: Trouble) -> Result<()> {
        let is_whole = matches!(trouble, Trouble::Whole(_));
        let (pause, is_new) =
            self.shared
                .memory()
                .block(Retry::Event(head.id), Instant::now().into_std(), !is_whole);
        let (doing, row, error) = match trouble {
            Trouble::Own { doing, row, error } => (doing, row, error),
            Trouble::Whole(error) => return Err(error),
        };
        if !self.marker.answers().await {
            return Err(error);
        }
        let source = &self.shared.config.source;
        let outbox = self.outbox_of(head.outbox);
        let row = row
            .map(|row| Shown::of(row.id()).to_string())
            .unwrap_or_default();
        let slot = &source.slot;
        let parked = head.id;
        let pause_ms = millis(pause);
        if is_new {
            tracing::warn!(event = "aggregate_blocked", %slot, outbox, row, parked, doing, %error,
                fix = error.what_to_do(), pause_ms,
                "the parked events of an aggregate are blocked; the relay retries them after a \
                 pause, and others continue");
        } else {
            tracing::debug!(%slot, outbox, row, parked, doing, %error, pause_ms, "the aggregate is \
                still blocked");
        }
        Ok(())
    }

    /// Walks through the events of an aggregate.
    async fn aggregate(
        &mut self,
        producer: &mut RetryProducer<'_>,
        walk: &mut RetryWalk,
    ) -> Result<(), Trouble> {
        loop {
            let held = match self.read(walk).await {
                Ok(held) => held,
                Err(error) => match walk.unread() {
                    WalkStep::Read => continue,
                    WalkStep::End => return Ok(()),
                    WalkStep::Failed => {
                        return Err(Trouble::Own {
                            doing: "reading it",
                            row: None,
                            error,
                        });
                    }
                },
            };
            let [first, ..] = held.as_slice() else {
                return Ok(());
            };
            let (done, refused) = self.send(producer, &held, first).await?;
            // Events before an error are delivered.
            self.write(&mut walk.head, held.get(..done).unwrap_or_default())
                .await?;
            let refusal = refused.map_err(Trouble::Whole)?;
            let is_certain = refusal.as_ref().map(|refusal| refusal.is_certain);
            match (walk.sent(&held, done, is_certain), &refusal, held.get(done)) {
                (WalkStep::Read, ..) => {}
                (WalkStep::Failed, Some(refusal), Some(held)) => {
                    let failed = producer.retries.failed(held, &refusal.error);
                    return self.fail(&walk.head, held, refusal, failed).await;
                }
                (WalkStep::Failed | WalkStep::End, ..) => return Ok(()),
            }
            if self.shared.ends.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }

    /// Sends `held`, which begins with `first`, unless the bus has them. Gives how many come before
    /// the first that it has not, and why it has not that one.
    async fn send(
        &self,
        producer: &mut RetryProducer<'_>,
        held: &[ParkedRow],
        first: &ParkedRow,
    ) -> Result<(usize, Result<Option<Refusal>>), Trouble> {
        if self.shared.is_acked(first) {
            return Ok((held.len(), Ok(None)));
        }
        let sent = producer.send(held).await;
        let result =
            sent.map_err(|error| Trouble::of("making its record", &first.event.row, error))?;
        self.shared.memory().sent(held, &result.acked);
        let done = result.done();
        let RetryResult {
            accepting, ended, ..
        } = result;
        self.report(RetryReport {
            accepting,
            ..RetryReport::default()
        });
        failpoint::reached("retried");
        Ok((done, ended))
    }

    /// The next events of an aggregate that are sent now.
    async fn read(&self, walk: &mut RetryWalk) -> Result<Vec<ParkedRow>> {
        let limit = walk.limit(self.shared.config.sink.max_in_flight_bytes / COPIES);
        let held = self.marker.held(&walk.head, limit).await;
        let held = held.map_err(|error| {
            let is_read = error.kind() != Kind::PostgresUnreachable;
            if is_read && error.any_remedy().is_none() {
                error.remedy(unreadable_remedy())
            } else {
                error
            }
        })?;
        let memory = self.shared.memory();
        Ok(walk.read(held, &self.stored.position, &memory))
    }

    /// Writes down that these were delivered, one by one where that fails at once. `head` is the
    /// first of which it is not.
    async fn write(
        &mut self,
        head: &mut AggregateHead,
        events: &[ParkedRow],
    ) -> Result<(), Trouble> {
        let entry = |held: &ParkedRow| (held.id, ParkedRef::of(&held.event));
        if events.len() > 1
            && self
                .settled(&Batch::delivered(events))
                .await
                .map_err(Trouble::Whole)?
        {
            self.summary.sent += self.release(
                events.iter().map(entry),
                &self.shared.metrics.unparked_events,
            );
            return Ok(());
        }
        for held in events {
            head.id = held.id;
            let settled = self
                .marker
                .settle(&Batch::delivered(std::slice::from_ref(held)))
                .await;
            settled.map_err(|error| {
                Trouble::of("noting that it was delivered", &held.event.row, error)
            })?;
            self.summary.sent += self.release([entry(held)], &self.shared.metrics.unparked_events);
        }
        Ok(())
    }

    /// Writes `batch`, or gives false where Postgres refuses that.
    /// Errors: the session does not answer.
    async fn settled(&self, batch: &Batch) -> Result<bool> {
        match self.marker.settle(batch).await {
            Err(error) if !self.marker.answers().await => Err(error),
            settled => Ok(settled.is_ok()),
        }
    }

    /// After the end of the session, reports are dropped.
    fn report(&self, report: RetryReport) {
        self.to.send(report).unwrap_or_default();
    }

    /// The event failed once more: writes that to the table, and when it is retried. What is known
    /// of its topic is written down for all such events together.
    async fn fail(
        &mut self,
        head: &AggregateHead,
        held: &ParkedRow,
        refusal: &Refusal,
        failed: FailedAgain,
    ) -> Result<(), Trouble> {
        let row = &held.event.row;
        let failure = &failed.failure;
        // The error of its topic was logged for another event.
        if !refusal.is_logged {
            let slot = &self.shared.config.source.slot;
            let outbox = self.outbox_of(row.outbox);
            let row = Shown::of(row.id());
            tracing::warn!(event = "parked_event_failed", %slot, outbox, %row,
                place = %held.event.place,
                class = failure.class, cause = failure.cause, attempts = failure.attempts,
                wait_ms = failed.retry_in_ms, fix = refusal.error.what_to_do(),
                "a parked event failed again");
        }
        self.shared.metrics.failed_attempts(failure.class, 1);
        if refusal.is_logged {
            self.refused.push(Refused {
                head: head.clone(),
                failed,
            });
            return Ok(());
        }
        self.note_failed(vec![failed])
            .await
            .map_err(|error| Trouble::of(NOTING_A_FAILURE, row, error))
    }

    async fn note_failed(&self, failed_again: Vec<FailedAgain>) -> Result<()> {
        let batch = Batch {
            failed_again,
            ..Batch::default()
        };
        self.marker.settle(&batch).await?;
        batch
            .failed_again
            .iter()
            .for_each(|failed| self.shared.memory().written(failed.id));
        Ok(())
    }

    /// Writes down which events were not tried because their topics refuse, one by one where that
    /// fails at once.
    async fn note_refused(&mut self) -> Result<()> {
        let refused = std::mem::take(&mut self.refused);
        if self
            .note_failed(
                refused
                    .iter()
                    .map(|refused| refused.failed.clone())
                    .collect(),
            )
            .await
            .is_ok()
        {
            return Ok(());
        }
        for Refused { head, failed } in refused {
            let row = failed.row.clone();
            if let Err(error) = self.note_failed(vec![failed]).await {
                self.blocked(&head, Trouble::of(NOTING_A_FAILURE, &row, error))
                    .await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::supervisor::tests::config;

    #[tokio::test(start_paused = true)]
    async fn a_retry_that_is_not_acked_holds_up_a_stop_for_a_second_at_most() {
        let mut retrying = Retrying::new(
            &config("stop"),
            &Known::default(),
            None,
            &Metrics::new(),
            None,
        );
        let (to, reports) = unbounded_channel();
        let pass = async move {
            let _to: UnboundedSender<RetryReport> = to;
            std::future::pending().await
        };
        retrying.pass = Some(Running {
            reports,
            ended: JoinSet::from_iter([pass]),
        });
        let began = Instant::now();
        retrying.finish(Stop::Drain).await;
        assert!(
            began.elapsed() <= Duration::from_secs(1),
            "{:?}",
            began.elapsed()
        );
    }
}
