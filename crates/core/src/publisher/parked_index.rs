//! Which events are parked, and what this process remembers of their retries. No I/O.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::SlotName;
use crate::error::{Error, Kind, NextCommand, Remedy};
use crate::event::{Place, RowId, Shown, Via};
use crate::parked::{ParkedRef, ParkedRow, short};
use crate::position::Lsn;
use crate::publisher::write_back::RowPolicy;

/// Events that may be parked: what an operator can look through, and some 40 MB of memory, twice
/// that while the table is read.
const EVENTS_MAX: usize = 100_000;
/// How many more may be parked where the table has that many at the start: requested drops are done
/// first, and take a moment.
const AT_START: usize = 10_000;

/// Which events are parked, by row and by aggregate. It has each event that the table has, or is
/// about to have.
#[derive(Debug, Clone, Default)]
pub struct ParkedIndex {
    /// By [`short`] names, as the keys are. Several of one row are several events: its id was used
    /// again.
    rows: HashMap<RowId, Vec<ParkedEntry>>,
    /// How many events.
    pub count: usize,
    /// By outbox and key.
    aggregates: HashMap<usize, HashMap<Arc<[u8]>, Aggregate>>,
    /// Topics that take no records, and how many parked events were refused by each.
    refusing: HashMap<Arc<str>, usize>,
    /// How many more may be parked.
    beyond: usize,
    /// While the table is read: events that were on their way to it, or were parked since.
    since_look: Option<Vec<ParkedRef>>,
    /// Outboxes for which it was logged that an event came again which is known by its row key
    /// alone.
    warned: HashSet<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Aggregate {
    count: usize,
    /// No parked event of it has an earlier place.
    first: Where,
    /// The first transaction of those that the table has, with its commit time in microseconds.
    first_in_table: Option<(Lsn, i64)>,
}

#[derive(Debug, Clone)]
struct ParkedEntry {
    place: Place,
    /// Shared with the other events of the aggregate.
    key: Option<Arc<[u8]>>,
    refused_by: Option<Arc<str>>,
}

/// Results of a pass of retries, sent at once: until then, later events are parked behind delivered
/// ones.
#[derive(Debug, Default)]
pub struct RetryReport {
    /// Events that were delivered or dropped.
    pub released: Vec<ParkedRef>,
    /// Topics that took a record since they refused one.
    pub accepting: BTreeSet<String>,
    /// The content of the table, read after [`ParkedIndex::begin_look`].
    pub table: Option<Vec<ParkedRef>>,
}

impl ParkedIndex {
    /// Whether any event is parked.
    pub fn is_any(&self) -> bool {
        self.count > 0
    }

    /// Whether the event of this row is parked.
    pub fn holds_row(&self, row: &RowId) -> bool {
        // One that was parked under another row key.
        let by_id = || RowId::new(row.outbox, std::iter::once(row.id()));
        self.entries(row).is_some() || self.entries(&by_id()).is_some()
    }

    /// Whether the event of this row and place is parked.
    pub fn holds(&self, row: &RowId, place: &Place) -> bool {
        self.entries(row)
            .is_some_and(|entries| entries.iter().any(|entry| entry.place.is_same_event(place)))
    }

    fn entries(&self, row: &RowId) -> Option<&Vec<ParkedEntry>> {
        self.rows.get(&*short_row(row))
    }

    /// Whether an event of this key and place has to be parked behind another.
    ///
    /// One before all parked ones was delivered before the first of them was parked: behind them a
    /// copy would be out of order.
    pub(crate) fn is_blocked(&self, outbox: usize, key: Option<&[u8]>, place: &Place) -> bool {
        self.aggregate(outbox, key)
            .is_some_and(|aggregate| place.via != Via::Slot || of(place) >= aggregate.first)
    }

    fn aggregate(&self, outbox: usize, key: Option<&[u8]>) -> Option<&Aggregate> {
        self.aggregates.get(&outbox)?.get(&*short(key?))
    }

    /// Whether this event was delivered before: one of a later transaction is in the table, of its
    /// aggregate, and comes there only once all before it are done. Within a transaction, the
    /// configured outboxes decide about places.
    ///
    /// The commit times tell places of another server, whose table was copied.
    pub(crate) fn is_delivered(&self, event: &ParkedRef) -> bool {
        let Place {
            commit_lsn, via, ..
        } = event.place;
        let aggregate = self.aggregate(event.row.outbox, event.key.as_deref());
        let first = aggregate.and_then(|aggregate| aggregate.first_in_table);
        first.is_some_and(|(first, committed_at_us)| {
            via == Via::Slot && commit_lsn < first && event.committed_at_us <= committed_at_us
        })
    }

    /// Whether events for this topic have to be parked.
    pub(crate) fn is_refusing(&self, topic: &str) -> bool {
        !self.refusing.is_empty() && self.refusing.contains_key(topic)
    }

    /// A parked event came again. If only its row key says so, it could be another event: that is
    /// logged, and to be counted.
    pub(crate) fn came_again(
        &mut self,
        row: &RowId,
        place: &Place,
        rows: &RowPolicy,
        slot: &SlotName,
    ) -> bool {
        // Rows of such a table are pending while their events are parked, and are found with each
        // look.
        let is_usual = rows.upkeep.pending.is_some() && place.via == Via::Table;
        let is_sure = self
            .entries(row)
            .is_some_and(|entries| entries.iter().any(|entry| entry.place == *place));
        if is_usual || is_sure {
            return false;
        }
        let outbox = &rows.outbox;
        let row_id = Shown::of(row.id());
        if place.via == Via::Replay || self.warned.insert(row.outbox) {
            tracing::warn!(event = "parked_event_repeated", %slot, outbox, row = %row_id, %place,
                "a row came whose event is parked already, by its row key; it is not published now \
                 (further ones are counted)");
        } else {
            tracing::debug!(%slot, outbox, row = %row_id, %place, "a row came whose event is \
                parked already");
        }
        true
    }

    /// This event is parked from now on.
    pub fn park(&mut self, event: ParkedRef) -> Result<(), Error> {
        if self.count >= EVENTS_MAX + self.beyond {
            let cause = format!("{} events are parked, which is the limit", self.count);
            let ask = |name| NextCommand::new(name).flag("all");
            return Err(Error::new(Kind::Event, cause).remedy(
                Remedy::from("see them with `")
                    .and(NextCommand::new("parked list"))
                    .and("`; while the relay is stopped, ask for retries with `")
                    .and(ask("parked retry"))
                    .and("`, or give them up with `")
                    .and(ask("parked drop"))
                    .and("`: the relay does that first at its next start"),
            ));
        }
        if let Some(since_look) = &mut self.since_look {
            since_look.push(event.clone());
        }
        self.put(event);
        Ok(())
    }

    fn put(&mut self, event: ParkedRef) {
        if !self.holds(&event.row, &event.place) {
            self.add(event, false);
        }
    }

    fn add(&mut self, event: ParkedRef, is_in_table: bool) {
        let ParkedRef {
            row,
            place,
            committed_at_us,
            key,
            refused_by,
        } = event;
        self.count += 1;
        let key = key.map(|key| {
            let key = short(&key);
            let aggregates = self.aggregates.entry(row.outbox).or_default();
            let shared = aggregates
                .get_key_value(&*key)
                .map(|(shared, _)| Arc::clone(shared));
            let key = shared.unwrap_or_else(|| Arc::from(key));
            let aggregate = aggregates.entry(Arc::clone(&key)).or_insert(Aggregate {
                count: 0,
                first: of(&place),
                first_in_table: None,
            });
            aggregate.count += 1;
            aggregate.first = aggregate.first.min(of(&place));
            let in_table = is_in_table.then_some((of(&place).0, committed_at_us));
            let known = aggregate.first_in_table.into_iter();
            aggregate.first_in_table = known.chain(in_table).min();
            key
        });
        let refused_by = refused_by.map(|topic| {
            let shared = self
                .refusing
                .get_key_value(topic.as_str())
                .map(|(shared, _)| Arc::clone(shared));
            let topic = shared.unwrap_or_else(|| Arc::from(topic));
            *self.refusing.entry(Arc::clone(&topic)).or_default() += 1;
            topic
        });
        // Most rows have one event.
        let entries = self
            .rows
            .entry(short_row(&row).into_owned())
            .or_insert_with(|| Vec::with_capacity(1));
        entries.push(ParkedEntry {
            place,
            key,
            refused_by,
        });
    }

    /// This event is parked no longer. With the last one its aggregate continues, and so does the
    /// topic that refused it.
    pub fn release(&mut self, ParkedRef { row, place, .. }: &ParkedRef) {
        let name = short_row(row);
        let Some(entries) = self.rows.get_mut(&*name) else {
            return;
        };
        let exactly = entries.iter().position(|entry| entry.place == *place);
        let at = exactly.or_else(|| {
            entries
                .iter()
                .position(|entry| entry.place.is_same_event(place))
        });
        let Some(entry) = at.map(|at| entries.swap_remove(at)) else {
            return;
        };
        if entries.is_empty() {
            self.rows.remove(&*name);
        }
        self.count -= 1;
        if let Some(topic) = &entry.refused_by
            && let Some(count) = self.refusing.get_mut(topic)
        {
            *count -= 1;
            if *count == 0 {
                self.refusing.remove(topic);
            }
        }
        if let Some((aggregates, key)) = self.aggregates.get_mut(&row.outbox).zip(entry.key)
            && let Some(aggregate) = aggregates.get_mut(&key)
        {
            aggregate.count -= 1;
            if aggregate.count == 0 {
                aggregates.remove(&key);
            }
        }
    }

    /// Takes in results of a pass of retries.
    pub fn retried(
        &mut self,
        RetryReport {
            released,
            accepting,
            table,
        }: RetryReport,
        slot: &SlotName,
    ) {
        accepting.iter().for_each(|topic| self.accepts(topic));
        released.iter().for_each(|event| self.release(event));
        // Of a look that an earlier session began nothing counts.
        let Some(table) = table.filter(|_| self.since_look.is_some()) else {
            return;
        };
        let before = std::mem::take(&mut self.rows);
        self.reload(table);
        // A pass that could not report it has taken them away, or another relay, or somebody by
        // hand.
        let gone = before
            .iter()
            .flat_map(|(row, entries)| entries.iter().map(move |entry| (row, &entry.place)));
        let gone = gone.filter(|(row, place)| !self.holds(row, place)).count();
        if gone > 0 {
            tracing::info!(event = "parked_events_removed", %slot, events = gone,
                "parked events are gone from walrelay.parked; the events behind them continue");
        }
    }

    fn accepts(&mut self, topic: &str) {
        if self.refusing.remove(topic).is_some() {
            let entries = self.rows.values_mut().flatten();
            entries.for_each(|entry| {
                drop(
                    entry
                        .refused_by
                        .take_if(|refused_by| **refused_by == *topic),
                )
            });
        }
    }

    /// The table is read from here on: these events are on their way to it.
    pub fn begin_look(&mut self, under_way: Vec<ParkedRef>) {
        self.since_look = Some(under_way);
    }

    /// A session begins with what the table has.
    pub fn begin(&mut self, table: Vec<ParkedRef>) {
        self.load(table);
        self.warned.clear();
        let over = self.count.checked_sub(EVENTS_MAX);
        self.beyond = over.map_or(0, |over| over + AT_START);
    }

    /// The same while a session lasts: a topic that took a record since does not refuse for what
    /// the table says.
    fn reload(&mut self, mut table: Vec<ParkedRef>) {
        for event in table.iter_mut().chain(self.since_look.iter_mut().flatten()) {
            event
                .refused_by
                .take_if(|topic| !self.refusing.contains_key(topic.as_str()));
        }
        self.load(table);
    }

    /// The index is the content of the table, and events that were on their way there or were
    /// parked since.
    fn load(&mut self, table: Vec<ParkedRef>) {
        let since_look = self.since_look.take().unwrap_or_default();
        self.rows = HashMap::new();
        self.count = 0;
        self.aggregates = HashMap::new();
        self.refusing = HashMap::new();
        // Each is one that will be released, whatever its place says.
        table.into_iter().for_each(|event| self.add(event, true));
        since_look.into_iter().for_each(|event| self.put(event));
    }
}

/// The name of a row in the index.
fn short_row(row: &RowId) -> Cow<'_, RowId> {
    match short(&row.key) {
        Cow::Borrowed(_) => Cow::Borrowed(row),
        Cow::Owned(key) => Cow::Owned(RowId {
            outbox: row.outbox,
            key,
        }),
    }
}

/// Where an event is in the log.
type Where = (Lsn, u64);

/// That of this one, and the very beginning for one that was read from the table: it may be
/// anywhere.
fn of(place: &Place) -> Where {
    if place.via == Via::Slot {
        (place.commit_lsn, place.index)
    } else {
        (Lsn::default(), 0)
    }
}

/// After the first fault, and twice as long after each further one.
const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Blocked entries that were not retried for this long are removed.
const KEPT: Duration = Duration::from_secs(600);

/// Retries since the start of the process: events that the bus and the table both have, and blocked
/// aggregates.
#[derive(Debug, Default)]
pub struct RetryMemory {
    /// By the row of the table, with their places: a table that was made anew counts from 1 again.
    acked: HashMap<i64, Place>,
    blocked: HashMap<Retry, Blocked>,
}

/// What is tried again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Retry {
    /// An event, by the row of the table, and so all behind it.
    Event(i64),
    /// The search for rows of this outbox that are pending again.
    Pending(String),
}

#[derive(Debug)]
struct Blocked {
    until: Instant,
    pause: Duration,
    is_logged: bool,
}

impl RetryMemory {
    /// A batch of `held` events was sent, and the bus has those that are `acked`.
    pub fn sent(&mut self, held: &[ParkedRow], acked: &[bool]) {
        for (held, _) in held.iter().zip(acked).filter(|(_, acked)| **acked) {
            self.acked.insert(held.id, held.event.place);
        }
    }

    /// Whether the parked event is acked.
    pub fn is_acked(&self, id: i64, place: Place) -> bool {
        self.acked.get(&id) == Some(&place)
    }

    /// The table has the outcome of the event's retry.
    pub fn written(&mut self, id: i64) {
        self.acked.remove(&id);
        self.unblock(&Retry::Event(id));
    }

    /// A fault blocks it. Gives the pause, and whether to warn: once, and only if it `warns`.
    pub fn block(&mut self, retry: Retry, now: Instant, warns: bool) -> (Duration, bool) {
        let new = Blocked {
            until: now,
            pause: PAUSE / 2,
            is_logged: false,
        };
        let blocked = self.blocked.entry(retry).or_insert(new);
        blocked.pause = (blocked.pause * 2).min(PAUSE_MAX);
        blocked.until = now + blocked.pause;
        let is_news = warns && !blocked.is_logged;
        blocked.is_logged |= warns;
        (blocked.pause, is_news)
    }

    /// It may be tried at once.
    pub fn unblock(&mut self, retry: &Retry) {
        self.blocked.remove(retry);
    }

    /// Whether it waits at `now`.
    pub fn is_paused(&self, retry: &Retry, now: Instant) -> bool {
        self.blocked
            .get(retry)
            .is_some_and(|blocked| blocked.until > now)
    }

    /// Events whose pauses are not over.
    pub fn paused(&mut self, now: Instant) -> Vec<i64> {
        self.blocked.retain(|_, blocked| blocked.until + KEPT > now);
        let paused = self
            .blocked
            .iter()
            .filter(|(_, blocked)| blocked.until > now);
        paused
            .filter_map(|(retry, _)| {
                if let Retry::Event(id) = retry {
                    Some(*id)
                } else {
                    None
                }
            })
            .collect()
    }

    /// Whether a fault blocked the event when it was tried last.
    pub fn was_blocked(&self, id: i64) -> bool {
        self.blocked.contains_key(&Retry::Event(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: Place = Place {
        commit_lsn: Lsn::new(100),
        index: 0,
        via: Via::Slot,
    };

    fn row(id: u8) -> RowId {
        RowId {
            outbox: 0,
            key: vec![id],
        }
    }

    fn waiting(outbox: usize, id: u8, key: Option<&str>) -> ParkedRef {
        let row = RowId {
            outbox,
            key: vec![id],
        };
        ParkedRef {
            row,
            place: SLOT,
            committed_at_us: 0,
            key: key.map(|key| key.into()),
            refused_by: None,
        }
    }

    fn of_a(id: u8) -> ParkedRef {
        waiting(0, id, Some("a"))
    }

    fn blocks(parking: &ParkedIndex, key: &str) -> bool {
        parking.is_blocked(0, Some(key.as_bytes()), &SLOT)
    }

    /// A session begins while these are in the table, and those on their way there.
    fn begin(parking: &mut ParkedIndex, table: Vec<ParkedRef>, under_way: Vec<ParkedRef>) {
        parking.begin_look(under_way);
        parking.begin(table);
    }

    /// The table was read. Gives how many events fewer are parked.
    fn read(parking: &mut ParkedIndex, table: Vec<ParkedRef>) -> usize {
        let before = parking.count;
        parking.retried(
            RetryReport {
                table: Some(table),
                ..RetryReport::default()
            },
            &"orders".parse().unwrap(),
        );
        before - parking.count
    }

    fn at(commit_lsn: u64, index: u64, via: Via) -> ParkedRef {
        ParkedRef {
            place: Place {
                commit_lsn: Lsn::new(commit_lsn),
                index,
                via,
            },
            ..of_a(1)
        }
    }

    #[test]
    fn an_aggregate_is_blocked_until_its_last_parked_event_is_released() {
        let mut parking = ParkedIndex::default();
        assert!(!parking.is_any() && !blocks(&parking, "a"));
        // The second is on its way and read back at once.
        for event in [of_a(1), of_a(2), of_a(2), waiting(0, 3, None)] {
            parking.park(event).unwrap();
        }
        assert!(blocks(&parking, "a") && parking.holds(&row(3), &SLOT));
        assert!(
            !parking.is_blocked(1, Some(b"a"), &SLOT)
                && !blocks(&parking, "b")
                && !parking.is_blocked(0, None, &SLOT)
        );
        parking.release(&of_a(1));
        parking.release(&of_a(1));
        assert!(blocks(&parking, "a"));
        parking.release(&of_a(2));
        assert!(!blocks(&parking, "a") && parking.is_any());
        parking.release(&waiting(0, 3, None));
        assert_eq!((parking.is_any(), parking.count), (false, 0));
    }

    #[test]
    fn a_repeated_event_from_before_all_parked_ones_is_not_blocked() {
        use Via::{Slot, Table};
        let mut parking = ParkedIndex::default();
        let is_blocked =
            |parking: &ParkedIndex, of: &ParkedRef| parking.is_blocked(0, Some(b"a"), &of.place);
        parking.park(at(200, 3, Slot)).unwrap();
        parking.park(at(300, 0, Slot)).unwrap();
        assert!(
            !is_blocked(&parking, &at(200, 2, Slot)) && !is_blocked(&parking, &at(100, 9, Slot))
        );
        for later in [
            at(200, 3, Slot),
            at(200, 4, Slot),
            at(250, 0, Slot),
            at(400, 0, Slot),
            at(100, 0, Table),
        ] {
            assert!(is_blocked(&parking, &later), "{later:?}");
        }
        // Rows that were read from the table may be of any time.
        parking
            .park(ParkedRef {
                row: row(2),
                ..at(500, 0, Table)
            })
            .unwrap();
        assert!(is_blocked(&parking, &at(100, 0, Slot)));
    }

    #[test]
    fn an_event_before_all_of_its_aggregate_in_the_table_was_delivered() {
        use Via::{Slot, Table};
        let timed = |committed_at_us, of: ParkedRef| ParkedRef {
            committed_at_us,
            ..of
        };
        let mut parking = ParkedIndex::default();
        let is_before = timed(6, at(199, 9, Slot));
        // One on its way to the table says nothing: this one may still be in flight.
        parking.park(timed(7, at(200, 3, Slot))).unwrap();
        assert!(!parking.is_delivered(&is_before));
        begin(
            &mut parking,
            vec![timed(9, at(300, 0, Slot)), timed(7, at(200, 3, Slot))],
            Vec::new(),
        );
        assert!(parking.is_delivered(&is_before));
        for other in [
            timed(7, at(200, 2, Slot)),
            timed(7, at(200, 3, Slot)),
            timed(8, at(250, 0, Slot)),
            timed(6, at(100, 0, Table)),
            // Of another server, to which the table was copied.
            timed(10, at(100, 0, Slot)),
            ParkedRef {
                key: None,
                ..is_before.clone()
            },
        ] {
            assert!(!parking.is_delivered(&other), "{other:?}");
        }
        // A row that was read from the table may be of any time.
        begin(&mut parking, vec![at(500, 0, Table)], Vec::new());
        assert!(!parking.is_delivered(&is_before));
    }

    #[test]
    fn a_reused_id_at_another_place_is_another_event() {
        use Via::{Replay, Slot, Table};
        let mut parking = ParkedIndex::default();
        parking.park(at(100, 0, Slot)).unwrap();
        let holds = |parking: &ParkedIndex, of: &ParkedRef| parking.holds(&of.row, &of.place);
        // By the slot its place decides; from the table, whether it was there by then.
        for same in [at(100, 0, Slot), at(101, 7, Table), at(300, 0, Replay)] {
            assert!(holds(&parking, &same), "{same:?}");
        }
        for other in [at(100, 1, Slot), at(200, 0, Slot), at(100, 0, Table)] {
            assert!(
                !holds(&parking, &other) && parking.holds_row(&other.row),
                "{other:?}"
            );
        }
        parking.park(at(200, 0, Slot)).unwrap();
        assert_eq!(parking.count, 2);
        parking.release(&at(100, 0, Slot));
        assert!(blocks(&parking, "a") && holds(&parking, &at(200, 0, Slot)));
        assert!(!holds(&parking, &at(100, 0, Slot)));
        parking.release(&at(200, 0, Slot));
        assert!(!parking.is_any() && !blocks(&parking, "a"));

        // Rows that were read from the table had committed by then.
        parking.park(at(500, 3, Table)).unwrap();
        assert!(holds(&parking, &at(499, 0, Slot)) && holds(&parking, &at(900, 0, Table)));
        assert!(!holds(&parking, &at(500, 0, Slot)));
    }

    #[test]
    fn an_event_being_parked_and_already_in_the_table_counts_once() {
        let mut parking = ParkedIndex::default();
        let one = at(100, 0, Via::Slot);
        let copy = at(700, 0, Via::Table);
        // The table can have a copy that two relays made at once: both go one day.
        begin(
            &mut parking,
            vec![one.clone(), copy.clone()],
            vec![one.clone(), at(300, 0, Via::Slot)],
        );
        assert_eq!(
            parking.count, 2,
            "the last was there when the copy was read"
        );
        parking.release(&one);
        assert!(blocks(&parking, "a"));
        parking.release(&copy);
        assert!(!parking.is_any() && !blocks(&parking, "a"));
        // The table has another place of the same event.
        parking.park(one.clone()).unwrap();
        parking.begin_look(Vec::new());
        read(&mut parking, vec![at(300, 0, Via::Table)]);
        assert_eq!(parking.count, 1);
        parking.release(&at(300, 0, Via::Table));
        assert!(!parking.is_any());
    }

    #[test]
    fn an_event_missing_from_the_table_is_released_unless_still_being_parked() {
        let mut parking = ParkedIndex::default();
        let [gone, stays, under_way, later] =
            [(1, "a"), (2, "b"), (3, "c"), (4, "a")].map(|(id, key)| waiting(0, id, Some(key)));
        begin(&mut parking, vec![gone.clone(), stays.clone()], Vec::new());
        parking.park(under_way.clone()).unwrap();
        parking.begin_look(vec![under_way.clone()]);
        parking.park(later.clone()).unwrap();
        // It is parked since the look began, and in the table by now.
        parking.park(waiting(0, 5, None)).unwrap();
        assert_eq!(
            read(&mut parking, vec![stays.clone(), waiting(0, 5, None)]),
            1
        );
        assert!(
            !parking.holds_row(&gone.row) && blocks(&parking, "a"),
            "a later one is parked"
        );
        assert!(
            parking.holds_row(&under_way.row) && parking.holds_row(&row(5)) && parking.count == 4
        );
        assert_eq!(
            read(&mut parking, Vec::new()),
            0,
            "an earlier session began that look"
        );
        parking.begin_look(Vec::new());
        assert_eq!(read(&mut parking, vec![later, under_way]), 2);
        assert!(!blocks(&parking, "b") && blocks(&parking, "a"));
        parking.begin_look(Vec::new());
        assert_eq!(
            (read(&mut parking, Vec::new()), parking.is_any()),
            (2, false)
        );
        assert!(!blocks(&parking, "a") && !blocks(&parking, "c"));
    }

    #[test]
    fn a_topic_counts_as_refusing_until_a_record_is_accepted_or_none_is_parked() {
        let mut parking = ParkedIndex::default();
        let refused = |id, topic: &str| ParkedRef {
            refused_by: Some(topic.to_owned()),
            ..of_a(id)
        };
        begin(
            &mut parking,
            vec![refused(1, "orders"), refused(2, "mail")],
            Vec::new(),
        );
        assert!(
            parking.is_refusing("orders")
                && parking.is_refusing("mail")
                && !parking.is_refusing("other")
        );
        // It is on its way to the table while the topic takes a record.
        parking.park(refused(3, "orders")).unwrap();
        parking.accepts("orders");
        parking.begin_look(vec![refused(3, "orders")]);
        read(&mut parking, vec![refused(1, "orders"), refused(2, "mail")]);
        assert!(
            !parking.is_refusing("orders")
                && parking.is_refusing("mail")
                && parking.holds_row(&row(3))
        );
        for event in [refused(4, "orders"), refused(5, "orders"), of_a(6)] {
            parking.park(event).unwrap();
        }
        // The topic took one since this was refused.
        parking.release(&refused(1, "orders"));
        parking.release(&refused(4, "orders"));
        assert!(parking.is_refusing("orders"));
        parking.release(&of_a(5));
        assert!(
            !parking.is_refusing("orders") && parking.is_any(),
            "they were dropped"
        );
        begin(&mut parking, Vec::new(), Vec::new());
        assert!(!parking.is_any() && !blocks(&parking, "a"));
    }

    #[test]
    fn the_number_of_parked_events_is_limited() {
        let mut parking = ParkedIndex::default();
        let id = |number: usize| RowId {
            outbox: 0,
            key: number.to_be_bytes().to_vec(),
        };
        let one = |number| ParkedRef {
            row: id(number),
            ..waiting(0, 0, None)
        };
        let of = |count: usize| (1..=count).map(one).collect();
        // A relay that stopped for the limit gets the time to do what was asked.
        begin(&mut parking, of(EVENTS_MAX), Vec::new());
        parking.park(waiting(0, 1, None)).unwrap();
        begin(&mut parking, of(EVENTS_MAX - 1), Vec::new());
        parking.park(waiting(0, 2, None)).unwrap();
        let error = parking.park(waiting(0, 1, None)).unwrap_err();
        assert!(error.kind().halts(), "{error}");
        let fix = error.what_to_do().unwrap();
        for command in ["parked list", "parked retry --all", "parked drop --all"] {
            assert!(fix.contains(&format!("`walrelay {command}`")), "{fix}");
        }
        parking.release(&one(7));
        parking.park(waiting(0, 3, None)).unwrap();
    }

    #[test]
    fn an_acked_event_is_remembered_until_the_ack_is_written() {
        let mut memory = RetryMemory::default();
        memory.acked.insert(1, SLOT);
        assert!(memory.is_acked(1, SLOT) && !memory.is_acked(2, SLOT));
        assert!(
            !memory.is_acked(1, Place { index: 1, ..SLOT }),
            "another event of a table that was made anew"
        );
        memory.written(1);
        assert!(!memory.is_acked(1, SLOT));
    }

    #[test]
    fn a_blocked_aggregate_is_paused_longer_each_time_and_logged_once() {
        let mut memory = RetryMemory::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for round in 0..6 {
            let (pause, is_news) = memory.block(Retry::Event(1), now, true);
            assert_eq!((is_news, memory.paused(now)), (round == 0, vec![1]));
            now += pause;
            assert!(memory.paused(now).is_empty() && memory.was_blocked(1));
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
        let pending = Retry::Pending("outbox".to_owned());
        memory.block(pending.clone(), now, true);
        assert!(memory.is_paused(&pending, now) && memory.paused(now).is_empty());
        memory.unblock(&pending);
        memory.written(1);
        assert!(!memory.is_paused(&pending, now) && !memory.was_blocked(1));
        assert!(
            !memory.block(Retry::Event(2), now, false).1
                && memory.block(Retry::Event(2), now, true).1
        );
        assert!(memory.paused(now + 2 * KEPT).is_empty() && !memory.was_blocked(2));
    }
}
