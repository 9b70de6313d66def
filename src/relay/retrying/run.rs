//! One pass over the events that wait: what is dropped, what is due, and what came of it.
//!
//! What stands in the way of one aggregate (a lock, a mark that is refused, an event that cannot be read) holds up that one:
//! it is told of once and comes again after a pause. Only Kafka, or a session that is gone, ends a pass.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::memory::{Memory, Who};
use super::producer::{Candidate, Refusal, RetryProducer, Sent, replay_instead};
use crate::config::Config;
use crate::error::{Disposition, Error, NextCommand, Remedy, Result};
use crate::event::{Place, RowId, Shown, Via};
use crate::failpoint;
use crate::relay::stall_watchdog::StallGuard;
use crate::relay::store::Known;
use crate::route::OwnedRecord;
use crate::state::Stored;
use crate::upkeep::parked::{Head, Held, Limit, Waiting};
use crate::upkeep::{Batch, FailedAgain, Failure, Marker};

/// How often it is looked whether any is due, while any waits.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Aggregates of one pass.
const HEADS_MAX: i64 = 200;
/// Events sent before their acks are waited for.
const BATCH_EVENTS: i64 = 200;
/// One event is this many times in memory on its way: as it comes from Postgres, as it was kept, as a record, and as
/// librdkafka's copy of that.
const COPIES: usize = 4;
/// What something stands in the way of may take this long of a pass.
const LONG: Duration = Duration::from_secs(5);
/// And so long what is to be dropped.
const DROPS: Duration = Duration::from_secs(5);

/// What a pass has come to so far. It is told at once: until then more begins to wait behind what waits no more.
#[derive(Debug, Default)]
pub(in crate::relay) struct RetryReport {
    /// Events that wait no more: sent or dropped.
    pub(in crate::relay) released: Vec<Waiting>,
    /// Topics that took records.
    pub(in crate::relay) accepting: Vec<String>,
    /// What is in the table, by a look after this census.
    pub(in crate::relay) table: Option<(u64, Vec<Waiting>)>,
}

/// What a pass came to.
#[derive(Debug, Default)]
pub(super) struct Summary {
    /// Events that were sent.
    pub(super) sent: u64,
    /// Events that were dropped.
    pub(super) dropped: u64,
    /// What it took to find out which are due.
    pub(super) looked: Duration,
}

/// What passes share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) known: Known,
    pub(super) beside: Option<StallGuard>,
    /// Theirs alone: a lock that is waited for in it holds up neither marks nor positions.
    pub(super) session: Mutex<Option<Marker>>,
    /// Whether the pass is to end with what it is at.
    pub(super) ends: AtomicBool,
}

impl Shared {
    pub(super) async fn pass(
        &self,
        summary: &mut Summary,
        census: Option<u64>,
        tell: UnboundedSender<RetryReport>,
    ) -> Result<()> {
        let Some(stored) = self.known.borrow().clone() else { return Ok(()) };
        let mut session = self.session.lock().await;
        let marker = match session.take().filter(|marker| !marker.is_closed()) {
            Some(marker) => marker,
            None => match Marker::impatient(&self.config).await? {
                Some(marker) => marker,
                None => return Ok(()),
            },
        };
        let ended = RetryRun::new(self, &marker, stored, tell).run(summary, census).await;
        if ended.is_ok() || marker.answers().await.is_ok() {
            *session = Some(marker);
        }
        ended
    }

    fn ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// What this process remembers. Never held while anything is waited for.
    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.known.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module's documentation.
pub(super) struct RetryRun<'a> {
    shared: &'a Shared,
    marker: &'a Marker,
    stored: Stored,
    tell: UnboundedSender<RetryReport>,
    /// Events that were sent, and dropped.
    sent: u64,
    dropped: u64,
}

/// What stands in the way.
#[derive(Debug)]
enum Trouble {
    /// Of one aggregate: what was done, and the row where it is known.
    Own { doing: &'static str, row: Option<RowId>, error: Error },
    /// Of all.
    Whole(Error),
}

/// What to do about an event that cannot be read, where Postgres says no more.
fn unreadable() -> Remedy {
    Remedy::from("see it with ")
        .and(NextCommand::new("parked list"))
        .and("; its row of walrelay.parked was not written by walrelay, or is too large: ")
        .and(replay_instead())
}

impl<'a> RetryRun<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        marker: &'a Marker,
        stored: Stored,
        tell: UnboundedSender<RetryReport>,
    ) -> RetryRun<'a> {
        RetryRun { shared, marker, stored, tell, sent: 0, dropped: 0 }
    }

    /// Does what was asked and tries what is due.
    ///
    /// # Errors
    /// What concerns all: Kafka, or the session.
    pub(super) async fn run(&mut self, summary: &mut Summary, census: Option<u64>) -> Result<()> {
        let (shared, stored) = (self.shared, self.stored.clone());
        let mut line = RetryProducer::new(&shared.config, &stored, shared.beside.as_ref());
        let ended = self.go(&mut line, summary, census).await;
        (summary.sent, summary.dropped) = (self.sent, self.dropped);
        line.end().await;
        ended
    }

    async fn go(&mut self, line: &mut RetryProducer<'_>, summary: &mut Summary, census: Option<u64>) -> Result<()> {
        if let Some(census) = census {
            let table = self.marker.waiting().await?;
            self.shared.known.dropped.fetch_add(self.marker.take_dropped(), Ordering::Relaxed);
            self.tell(RetryReport { table: Some((census, table)), ..RetryReport::default() });
        }
        let began = Instant::now();
        loop {
            self.drop_asked(Instant::now() + DROPS).await?;
            self.ask_for_pending().await?;
            // Who has mended a topic and asks for a try wants one.
            line.forget_refusals();
            let (looks, sent) = (Instant::now(), self.sent);
            let mut looked = looks;
            let resting = self.shared.memory().resting(looks);
            let mut due = self.marker.due(HEADS_MAX, &resting).await?;
            summary.looked = looks.elapsed();
            // What something stood in the way of comes last: it may take its time again.
            due.sort_by_cached_key(|head| self.shared.memory().was_blocked(head.id));
            for mut head in due {
                if self.shared.ends() {
                    return Ok(());
                }
                if began.elapsed() > LONG && self.shared.memory().was_blocked(head.id) {
                    break;
                }
                // A try may take long, and whoever asks for a drop waits for it.
                if looked.elapsed() > LOOK_INTERVAL {
                    self.drop_asked(Instant::now() + LOOK_INTERVAL).await?;
                    looked = Instant::now();
                }
                if let Err(trouble) = self.aggregate(line, &mut head).await {
                    self.blocked(&head, trouble).await?;
                }
            }
            // What came to wait meanwhile finds a producer that is ready: a new one takes half a second, and writers who
            // are faster than that would never be caught up with.
            if self.sent == sent || began.elapsed() > LONG {
                return Ok(());
            }
            match &*self.shared.known.borrow() {
                Some(newest) => self.stored.clone_from(newest),
                // Slot or lease is ours no more.
                None => return Ok(()),
            }
        }
    }

    /// What somebody asked to be dropped goes, and its row counts as given up. There may be much of it.
    async fn drop_asked(&mut self, until: Instant) -> Result<()> {
        loop {
            let resting = self.shared.memory().resting(Instant::now());
            let dropped = self.marker.dropped(BATCH_EVENTS, &resting).await?;
            if dropped.is_empty() {
                return Ok(());
            }
            self.drop_these(dropped, until).await?;
            if Instant::now() >= until {
                return Ok(());
            }
        }
    }

    async fn drop_these(&mut self, dropped: Vec<(i64, Waiting, Failure)>, until: Instant) -> Result<()> {
        let mut batch = Batch::default();
        dropped.iter().for_each(|dropped| self.drop_in(&mut batch, dropped));
        dropped.iter().for_each(|dropped| self.log_drop(dropped));
        if self.marker.settle(&batch).await.is_ok() {
            self.dropped +=
                self.gone(dropped.into_iter().map(|(id, waiting, _)| (id, waiting)), &self.shared.known.dropped);
            return Ok(());
        }
        for dropped in dropped {
            if Instant::now() >= until {
                break;
            }
            let mut alone = Batch::default();
            self.drop_in(&mut alone, &dropped);
            match self.marker.settle(&alone).await {
                Ok(_) => self.dropped += self.gone([(dropped.0, dropped.1)], &self.shared.known.dropped),
                Err(error) => {
                    let (id, Waiting { row, key, .. }, _) = dropped;
                    let trouble =
                        Trouble::Own { doing: "dropping it, as an operator asked", row: Some(row.clone()), error };
                    self.blocked(&Head { id, outbox: row.outbox, key }, trouble).await?;
                }
            }
        }
        Ok(())
    }

    fn drop_in(&self, batch: &mut Batch, (id, waiting, failure): &(i64, Waiting, Failure)) {
        batch.unparked.push(*id);
        let Some(outbox) = self.shared.config.outboxes.get(waiting.row.outbox) else { return };
        // It was delivered before somebody asked.
        let is_acked = self.shared.memory().is_acked(*id, &waiting.row, waiting.place);
        if outbox.upkeep.mark_failed.is_some() && !is_acked {
            batch.failed.push((waiting.row.clone(), failure.clone()));
        } else if outbox.upkeep.writes() {
            batch.acked.push(waiting.row.clone());
        }
    }

    /// Logged before it is done: whatever ends this process, none goes without a line.
    fn log_drop(&self, (id, waiting, failure): &(i64, Waiting, Failure)) {
        if !self.shared.memory().was_blocked(*id) {
            let (slot, row) = (&self.shared.config.source.slot, Shown::of(waiting.row.id()));
            let (class, cause) = (failure.class, &failure.cause);
            tracing::warn!(%slot, %row, class, cause, "a parked event is dropped, as an operator asked");
        }
    }

    /// These wait no more, and count as `told`. Gives how many they are.
    fn gone(&self, events: impl IntoIterator<Item = (i64, Waiting)>, told: &AtomicU64) -> u64 {
        let (ids, released): (Vec<i64>, Vec<Waiting>) = events.into_iter().unzip();
        ids.iter().for_each(|id| self.shared.memory().written(*id));
        let count = ids.len() as u64;
        told.fetch_add(count, Ordering::Relaxed);
        self.tell(RetryReport { released, ..RetryReport::default() });
        count
    }

    /// Rows of events that wait may be pending again, which asks for a try.
    async fn ask_for_pending(&mut self) -> Result<()> {
        let slot = &self.shared.config.source.slot;
        for outbox in self.marker.asked_by_pending() {
            let who = Who::Pending(outbox.to_owned());
            if self.shared.memory().rests(&who, Instant::now()) {
                continue;
            }
            match self.marker.ask_for_pending(outbox).await {
                Ok(asked) => {
                    self.shared.memory().unblock(&who);
                    if asked > 0 {
                        tracing::info!(%slot, outbox, events = asked, "rows of parked events are pending again; retrying \
                            the events");
                    }
                }
                Err(error) => {
                    self.marker.answers().await?;
                    let (pause, is_new) = self.shared.memory().block(who, Instant::now(), true);
                    if is_new {
                        tracing::warn!(%slot, outbox, %error, fix = error.what_to_do(), pause_ms = millis(pause),
                            "the search for parked events whose rows are pending again failed");
                    }
                }
            }
        }
        Ok(())
    }

    /// Something stood in the way of an aggregate: it comes again after a pause.
    ///
    /// # Errors
    /// It stands in the way of all.
    async fn blocked(&self, head: &Head, trouble: Trouble) -> Result<()> {
        let is_whole = matches!(trouble, Trouble::Whole(_));
        let (pause, is_new) = self.shared.memory().block(Who::Event(head.id), Instant::now(), !is_whole);
        let (doing, row, error) = match trouble {
            Trouble::Own { doing, row, error } => (doing, row, error),
            Trouble::Whole(error) => return Err(error),
        };
        self.marker.answers().await?;
        let Config { source, outboxes, .. } = &self.shared.config;
        let outbox = outboxes.get(head.outbox).map(|outbox| outbox.source.to_string()).unwrap_or_default();
        let row = row.map(|row| Shown::of(row.id()).to_string()).unwrap_or_default();
        let (slot, parked, pause_ms) = (&source.slot, head.id, millis(pause));
        if is_new {
            tracing::warn!(%slot, outbox, row, parked, doing, %error, fix = error.what_to_do(), pause_ms,
                "the parked events of an aggregate are blocked; the relay retries them after a pause, and others continue");
        } else {
            tracing::debug!(%slot, outbox, row, parked, doing, %error, pause_ms, "the aggregate is still blocked");
        }
        Ok(())
    }

    /// Sends the events of an aggregate from its first on, in their order, until one fails or none is left. `head` is where
    /// that came to.
    async fn aggregate(&mut self, line: &mut RetryProducer<'_>, head: &mut Head) -> Result<(), Trouble> {
        // The first one alone: a batch is refused as a whole.
        let (mut alone, mut is_row) = (true, true);
        loop {
            let held = match self.read(head, alone).await {
                Ok(held) => held,
                Err(_) if !alone => {
                    alone = true;
                    continue;
                }
                // The next pass begins with it, and knows it.
                Err(_) if !is_row => return Ok(()),
                Err(error) => return Err(Trouble::Own { doing: "reading it", row: None, error }),
            };
            let items: Vec<Candidate> = held.iter().map(|held| line.item(held)).collect();
            let Some((first, last)) = items.first().zip(items.last().map(|item| item.id)) else { return Ok(()) };
            (head.id, is_row) = (first.id, true);
            let is_acked = self.shared.memory().is_acked(first.id, &first.row, first.place);
            let (done, failure) = match is_acked {
                true => (items.len(), None),
                false => {
                    let (records, unfit) = line.route(held).map_err(|error| {
                        let (doing, row) = ("making its record", Some(first.row.clone()));
                        Trouble::Own { doing, row, error }
                    })?;
                    let Sent { acked, ended } = line.send(&records).await;
                    let done = acked.iter().position(|acked| !acked).unwrap_or(acked.len());
                    self.remember(&items, &acked);
                    self.accepting(&records, &acked);
                    failpoint::reached("retried");
                    match ended {
                        Ok(refusal) => (done, refusal.or(unfit)),
                        Err(error) => {
                            // What came before that is done.
                            self.write(head, items.get(..done).unwrap_or_default()).await?;
                            return Err(Trouble::Whole(error));
                        }
                    }
                }
            };
            self.write(head, items.get(..done).unwrap_or_default()).await?;
            match (failure, items.get(done)) {
                (Some(refusal), Some(failed)) if refusal.is_certain => {
                    head.id = failed.id;
                    return self.fail(failed, &refusal).await;
                }
                (Some(_), Some(failed)) => (head.id, alone) = (failed.id, true),
                _ if head.key.is_none() => return Ok(()),
                _ => (head.id, alone, is_row) = (last + 1, false, false),
            }
        }
    }

    /// The next events of an aggregate, of which all were delivered and that is not written down, or none.
    async fn read(&self, head: &Head, alone: bool) -> Result<Vec<Held>> {
        let events = if alone { 1 } else { BATCH_EVENTS };
        let limit = Limit { events, bytes: self.shared.config.kafka.max_in_flight_bytes / COPIES };
        let mut held = self
            .marker
            .held(head, limit)
            .await
            .map_err(|error| if error.any_remedy().is_none() { error.remedy(unreadable()) } else { error })?;
        let is_acked = |held: &Held| self.shared.memory().is_acked(held.id, &held.event.row, held.event.place);
        let first = held.first().map(is_acked);
        let goes = |held: &&Held| {
            !held.is_dropped && is_stored(held.event.place, &self.stored) && Some(is_acked(held)) == first
        };
        held.truncate(held.iter().take_while(goes).count());
        Ok(held)
    }

    fn remember(&self, items: &[Candidate], acked: &[bool]) {
        let mut memory = self.shared.memory();
        for (item, _) in items.iter().zip(acked).filter(|(_, acked)| **acked) {
            memory.acked(item.id, &item.row, item.place);
        }
    }

    /// Writes down that these were delivered, one by one where that does not work out at once. `head` is the first of which it
    /// is not.
    async fn write(&mut self, head: &mut Head, items: &[Candidate]) -> Result<(), Trouble> {
        let waiting = |item: &Candidate| {
            let (row, key) = (item.row.clone(), item.key.clone());
            (item.id, Waiting { row, place: item.place, key, refused_by: None })
        };
        if items.len() > 1 && self.marker.settle(&self.delivered(items)).await.is_ok() {
            self.sent += self.gone(items.iter().map(waiting), &self.shared.known.unparked);
            return Ok(());
        }
        for item in items {
            head.id = item.id;
            let one = std::slice::from_ref(item);
            let settled = self.marker.settle(&self.delivered(one)).await;
            let doing = "noting that it was delivered";
            settled.map_err(|error| Trouble::Own { doing, row: Some(item.row.clone()), error })?;
            self.sent += self.gone([waiting(item)], &self.shared.known.unparked);
        }
        Ok(())
    }

    fn delivered(&self, items: &[Candidate]) -> Batch {
        let writes =
            |row: &&RowId| self.shared.config.outboxes.get(row.outbox).is_some_and(|outbox| outbox.upkeep.writes());
        Batch {
            acked: items.iter().map(|item| &item.row).filter(writes).cloned().collect(),
            unparked: items.iter().map(|item| item.id).collect(),
            ..Batch::default()
        }
    }

    fn accepting(&self, records: &[OwnedRecord], acked: &[bool]) {
        let acked = records.iter().zip(acked).filter(|(_, acked)| **acked);
        let topics = acked.map(|(record, _)| record.with_record(|record| record.topic.to_owned()));
        let topics: BTreeSet<String> = topics.collect();
        self.tell(RetryReport { accepting: topics.into_iter().collect(), ..RetryReport::default() });
    }

    /// Nobody listens any more where the session has ended.
    fn tell(&self, tried: RetryReport) {
        self.tell.send(tried).unwrap_or_default();
    }

    /// It failed once more: says so, and when it is tried again.
    async fn fail(&mut self, item: &Candidate, Refusal { error, is_told, .. }: &Refusal) -> Result<(), Trouble> {
        let attempts = item.attempts.saturating_add(1);
        let failure = Failure { class: error.kind().class(), cause: error.cause().to_owned(), attempts };
        let wait = match error.kind().disposition() {
            Disposition::RetryThenGiveUp => item.retry.wait(attempts, fastrand::f64()),
            Disposition::GiveUp | Disposition::Retry | Disposition::Halt => None,
        };
        // What its topic said of another was told.
        if !is_told {
            let (slot, row) = (&self.shared.config.source.slot, Shown::of(item.row.id()));
            let wait_ms = wait.map(millis);
            tracing::warn!(%slot, %row, class = failure.class, cause = failure.cause, attempts, wait_ms, "a parked event \
                failed again");
        }
        let retry_in_ms = wait.map(millis);
        let failed =
            FailedAgain { id: item.id, version: item.version.clone(), row: item.row.clone(), failure, retry_in_ms };
        let settled = self.marker.settle(&Batch { failed_again: vec![failed], ..Batch::default() }).await;
        let doing = "noting that it failed again";
        settled.map_err(|error| Trouble::Own { doing, row: Some(item.row.clone()), error })?;
        self.shared.memory().written(item.id);
        Ok(())
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Whether an event is behind the stored position: it does not come again, and so not behind those that were parked later.
fn is_stored(place: Place, stored: &Stored) -> bool {
    let position = &stored.position;
    place.via != Via::Slot || position.covers(place.commit_lsn) || place.index < position.delivered_of(place.commit_lsn)
}
