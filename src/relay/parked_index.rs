//! Events that wait, and those behind them. No I/O.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use crate::config::SlotName;
use crate::error::{Error, Kind, NextCommand, Remedy};
use crate::event::{Place, RowId, Shown, Via};
use crate::position::Lsn;
use crate::relay::retrying::RetryReport;
use crate::relay::write_back::RowPolicy;
use crate::route::Record;
use crate::upkeep::parked::Waiting;

/// Events that may wait: what an operator can look through, and some 30 MB of memory.
const EVENTS_MAX: usize = 100_000;
/// How many more may where that many wait at the start: what was asked meanwhile is done first, and takes a moment.
const AT_START: usize = 10_000;

/// Which events wait in the table of parked events, by their ids and by their aggregates.
#[derive(Debug, Clone, Default)]
pub(super) struct ParkedIndex {
    /// Several of one id are several events: it was used again.
    rows: HashMap<RowId, Vec<ParkedEntry>>,
    count: usize,
    /// By outbox and key.
    aggregates: HashMap<usize, HashMap<Arc<[u8]>, Aggregate>>,
    /// Topics that take no records, and how many events that wait were refused by each.
    refusing: HashMap<String, usize>,
    /// How many more may wait.
    beyond: usize,
    /// Outboxes of which it was said that an event came again which was known by its id alone.
    told: HashSet<usize>,
    /// How many came again so.
    waiting_again: u64,
    /// The number of the next that waits.
    next: u64,
}

/// Why an event that can be routed is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockedBy {
    /// It waits already: it came again.
    Itself,
    /// One of its aggregate waits.
    Aggregate,
    /// Its topic takes no records.
    Topic,
}

/// An aggregate of which events wait.
#[derive(Debug, Clone, Copy)]
struct Aggregate {
    /// How many.
    count: usize,
    /// Nothing that waits is of a place before this one.
    first: Where,
}

/// An event that waits, as far as its row does not tell.
#[derive(Debug, Clone)]
struct ParkedEntry {
    place: Place,
    /// The key of its aggregate, which it shares with the others.
    key: Option<Arc<[u8]>>,
    refused_by: Option<String>,
    /// Those that began to wait later have larger ones.
    number: u64,
}

impl ParkedIndex {
    /// Whether any event waits.
    pub(super) fn is_any(&self) -> bool {
        self.count > 0
    }

    /// How many wait.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Whether an event of this row waits.
    pub(super) fn holds_row(&self, row: &RowId) -> bool {
        // One that was parked when rows were named by the id alone.
        let by_id = || RowId::new(row.outbox, std::iter::once(row.id()));
        self.rows.contains_key(row) || self.rows.contains_key(&by_id())
    }

    /// Why the event of this row that came from `place` and has this `record` has to wait, if it has to.
    pub(super) fn behind(&self, row: &RowId, place: &Place, record: &Record<'_>) -> Option<BlockedBy> {
        if self.holds(row, place) {
            return Some(BlockedBy::Itself);
        }
        if self.is_blocked(row.outbox, record.key, place) {
            return Some(BlockedBy::Aggregate);
        }
        self.is_refusing(record.topic).then_some(BlockedBy::Topic)
    }

    /// Whether the event of this row that came from `place` waits.
    pub(super) fn holds(&self, row: &RowId, place: &Place) -> bool {
        self.rows.get(row).is_some_and(|seats| seats.iter().any(|seat| seat.place.is_same_event(place)))
    }

    /// Whether an event of this key and place has to wait.
    ///
    /// One before all that wait comes again: it was delivered before the first of them was written to the table. Behind them
    /// its copy would be out of order.
    pub(super) fn is_blocked(&self, outbox: usize, key: Option<&[u8]>, place: &Place) -> bool {
        let aggregate = key.and_then(|key| self.aggregates.get(&outbox)?.get(key));
        aggregate.is_some_and(|aggregate| place.via != Via::Slot || of(place) >= aggregate.first)
    }

    /// Whether events for this topic have to wait.
    pub(super) fn is_refusing(&self, topic: &str) -> bool {
        !self.refusing.is_empty() && self.refusing.contains_key(topic)
    }

    /// An event that waits came again. Where its row key alone says so, it could be another, and that is counted and logged.
    pub(super) fn came_again(&mut self, row: &RowId, place: &Place, rows: &RowPolicy, slot: &SlotName) {
        // Rows of such a table are pending while their events wait, and are found with each look.
        let is_usual = rows.pending && place.via == Via::Table;
        let is_sure = self.rows.get(row).is_some_and(|seats| seats.iter().any(|seat| seat.place == *place));
        if is_usual || is_sure {
            return;
        }
        self.waiting_again += 1;
        let (outbox, row_id) = (&rows.outbox, Shown::of(row.id()));
        if place.via == Via::Replay || self.told.insert(row.outbox) {
            tracing::warn!(
                %slot, outbox, row = %row_id, %place,
                "a row came whose event is parked already, by its row key; it is not published now (further ones are counted)"
            );
        } else {
            tracing::debug!(%slot, outbox, row = %row_id, %place, "a row came whose event is parked already");
        }
    }

    /// Events that came again although they wait, as far as their row keys tell.
    pub(super) fn waiting_again(&self) -> u64 {
        self.waiting_again
    }

    /// This event waits from now on.
    ///
    /// # Errors
    /// Too many do.
    pub(super) fn park(&mut self, waiting: Waiting) -> Result<(), Error> {
        if self.count >= EVENTS_MAX + self.beyond {
            let cause = format!("{} events are parked, which is the limit", self.count);
            return Err(Error::new(Kind::Event, cause)
                .remedy(Remedy::from("see them with ").and(NextCommand::new("parked list")).and(
                "; while the relay is stopped, ask for retries and drops with `parked retry` and `parked drop`: the \
                     relay does them first at its next start",
            )));
        }
        self.put(waiting);
        Ok(())
    }

    fn put(&mut self, waiting: Waiting) {
        if !self.holds(&waiting.row, &waiting.place) {
            self.add(waiting);
        }
    }

    fn add(&mut self, Waiting { row, place, key, refused_by }: Waiting) {
        self.count += 1;
        let key = key.map(|key| {
            let aggregates = self.aggregates.entry(row.outbox).or_default();
            let shared = aggregates.get_key_value(key.as_slice()).map(|(shared, _)| Arc::clone(shared));
            let key = shared.unwrap_or_else(|| Arc::from(key));
            let aggregate = aggregates.entry(Arc::clone(&key)).or_insert(Aggregate { count: 0, first: of(&place) });
            aggregate.count += 1;
            aggregate.first = aggregate.first.min(of(&place));
            key
        });
        if let Some(topic) = &refused_by {
            *self.refusing.entry(topic.clone()).or_default() += 1;
        }
        let number = self.next;
        self.next += 1;
        self.rows.entry(row).or_default().push(ParkedEntry { place, key, refused_by, number });
    }

    /// This event waits no more; its aggregate goes on with the last of them, and so does the topic that refused it.
    pub(super) fn release(&mut self, Waiting { row, place, .. }: &Waiting) {
        let Some(seats) = self.rows.get_mut(row) else { return };
        let exactly = seats.iter().position(|seat| seat.place == *place);
        let at = exactly.or_else(|| seats.iter().position(|seat| seat.place.is_same_event(place)));
        let Some(seat) = at.map(|at| seats.swap_remove(at)) else { return };
        if seats.is_empty() {
            self.rows.remove(row);
        }
        self.count -= 1;
        if let Some(topic) = &seat.refused_by {
            count_down(&mut self.refusing, topic.as_str(), |count| count);
        }
        if let Some((aggregates, key)) = self.aggregates.get_mut(&row.outbox).zip(seat.key.as_ref()) {
            count_down(aggregates, key, |aggregate| &mut aggregate.count);
        }
    }

    /// Those that are in the table, whoever looks from now on, have numbers below this, where these are on their way there.
    pub(super) fn census<'a>(&self, under_way: impl Iterator<Item = (&'a RowId, &'a Place)>) -> u64 {
        let seats = under_way.filter_map(|(row, place)| self.rows.get(row)?.iter().find(|seat| seat.place == *place));
        seats.map(|seat| seat.number).fold(self.next, u64::min)
    }

    /// Some events wait no more, some topics take records, and the table was looked at.
    pub(super) fn retried(&mut self, RetryReport { released, accepting, table }: &RetryReport, slot: &SlotName) {
        accepting.iter().for_each(|topic| self.accepts(topic));
        released.iter().for_each(|waiting| self.release(waiting));
        let Some((census, table)) = table else { return };
        // They were taken away by a pass that could not say so, by another relay, or by hand.
        let gone = self.compare(*census, table);
        if gone > 0 {
            tracing::info!(%slot, events = gone, "parked events are gone from walrelay.parked; the events behind them continue");
        }
    }

    /// What was in the table once there was this census: others below it wait no more. Gives how many.
    pub(super) fn compare(&mut self, census: u64, table: &[Waiting]) -> usize {
        let mut there: HashMap<&RowId, Vec<&Place>> = HashMap::with_capacity(table.len());
        table.iter().for_each(|waiting| there.entry(&waiting.row).or_default().push(&waiting.place));
        let is_gone = |row: &RowId, seat: &ParkedEntry| {
            let is_there = |places: &Vec<&Place>| places.iter().any(|place| seat.place.is_same_event(place));
            seat.number < census && !there.get(row).is_some_and(is_there)
        };
        let seats = self.rows.iter().flat_map(|(row, seats)| seats.iter().map(move |seat| (row, seat)));
        let gone = seats.filter(|(row, seat)| is_gone(row, seat));
        let gone = gone.map(|(row, seat)| Waiting { row: row.clone(), place: seat.place, key: None, refused_by: None });
        let gone: Vec<Waiting> = gone.collect();
        gone.iter().for_each(|waiting| self.release(waiting));
        gone.len()
    }

    /// This topic takes records again.
    pub(super) fn accepts(&mut self, topic: &str) {
        if self.refusing.remove(topic).is_some() {
            let seats = self.rows.values_mut().flatten();
            seats.for_each(|seat| drop(seat.refused_by.take_if(|refused_by| refused_by == topic)));
        }
    }

    /// These wait in the table, and those are on their way there.
    pub(super) fn begin(&mut self, waiting: Vec<Waiting>, under_way: Vec<Waiting>) {
        let (next, waiting_again) = (self.next, self.waiting_again);
        *self = ParkedIndex { next, waiting_again, ..ParkedIndex::default() };
        // Each is one that will be released, whatever its place says.
        waiting.into_iter().for_each(|waiting| self.add(waiting));
        under_way.into_iter().for_each(|waiting| self.put(waiting));
        let over = self.count.checked_sub(EVENTS_MAX);
        self.beyond = over.map_or(0, |over| over + AT_START);
    }
}

/// Where an event is in the log.
type Where = (Lsn, u64);

/// That of this one, and the very beginning for one that was read from the table: it may be anywhere.
fn of(place: &Place) -> Where {
    if place.via == Via::Slot { (place.commit_lsn, place.index) } else { (Lsn::default(), 0) }
}

/// One less of `key`, which is gone with the last.
fn count_down<K: Eq + Hash + Borrow<Q>, Q: Eq + Hash + ?Sized, V>(
    of: &mut HashMap<K, V>,
    key: &Q,
    count: fn(&mut V) -> &mut usize,
) {
    if let Some(count) = of.get_mut(key).map(count) {
        *count -= 1;
        if *count == 0 {
            of.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: Place = Place { commit_lsn: Lsn::new(100), index: 0, via: Via::Slot };

    fn row(id: u8) -> RowId {
        RowId { outbox: 0, key: vec![id] }
    }

    fn waiting(outbox: usize, id: u8, key: Option<&str>) -> Waiting {
        Waiting { row: RowId { outbox, key: vec![id] }, place: SLOT, key: key.map(|key| key.into()), refused_by: None }
    }

    fn at(commit_lsn: u64, index: u64, via: Via) -> Waiting {
        Waiting { place: Place { commit_lsn: Lsn::new(commit_lsn), index, via }, ..waiting(0, 1, Some("a")) }
    }

    #[test]
    fn an_aggregate_waits_until_the_last_of_its_events_goes() {
        let mut parking = ParkedIndex::default();
        assert!(!parking.is_any() && !parking.is_blocked(0, Some(b"a"), &SLOT));
        parking.park(waiting(0, 1, Some("a"))).unwrap();
        parking.park(waiting(0, 2, Some("a"))).unwrap();
        // It is on its way and read back at once.
        parking.park(waiting(0, 2, Some("a"))).unwrap();
        parking.park(waiting(0, 3, None)).unwrap();
        assert!(parking.is_blocked(0, Some(b"a"), &SLOT) && parking.holds(&row(3), &SLOT));
        assert!(
            !parking.is_blocked(1, Some(b"a"), &SLOT)
                && !parking.is_blocked(0, Some(b"b"), &SLOT)
                && !parking.is_blocked(0, None, &SLOT)
        );
        parking.release(&waiting(0, 1, Some("a")));
        parking.release(&waiting(0, 1, Some("a")));
        assert!(parking.is_blocked(0, Some(b"a"), &SLOT));
        parking.release(&waiting(0, 2, Some("a")));
        assert!(!parking.is_blocked(0, Some(b"a"), &SLOT) && parking.is_any());
        parking.release(&waiting(0, 3, None));
        assert_eq!((parking.is_any(), parking.count()), (false, 0));
    }

    #[test]
    fn what_comes_again_from_before_all_that_wait_goes_before_them() {
        use Via::{Slot, Table};
        let mut parking = ParkedIndex::default();
        let is_blocked = |parking: &ParkedIndex, of: &Waiting| parking.is_blocked(0, Some(b"a"), &of.place);
        parking.park(at(200, 3, Slot)).unwrap();
        parking.park(at(300, 0, Slot)).unwrap();
        assert!(!is_blocked(&parking, &at(200, 2, Slot)) && !is_blocked(&parking, &at(100, 9, Slot)));
        for later in [at(200, 3, Slot), at(200, 4, Slot), at(250, 0, Slot), at(400, 0, Slot), at(100, 0, Table)] {
            assert!(is_blocked(&parking, &later), "{later:?}");
        }
        // What was read from the table may be of any time.
        parking.park(Waiting { row: row(2), ..at(500, 0, Table) }).unwrap();
        assert!(is_blocked(&parking, &at(100, 0, Slot)));
    }

    #[test]
    fn an_id_that_is_used_again_is_another_event() {
        use Via::{Replay, Slot, Table};
        let mut parking = ParkedIndex::default();
        parking.park(at(100, 0, Slot)).unwrap();
        let holds = |parking: &ParkedIndex, of: &Waiting| parking.holds(&of.row, &of.place);
        // From the slot its place tells; from the table, whether it was there by then.
        for same in [at(100, 0, Slot), at(101, 7, Table), at(300, 0, Replay)] {
            assert!(holds(&parking, &same), "{same:?}");
        }
        for other in [at(100, 1, Slot), at(200, 0, Slot), at(100, 0, Table)] {
            assert!(!holds(&parking, &other) && parking.holds_row(&other.row), "{other:?}");
        }
        parking.park(at(200, 0, Slot)).unwrap();
        assert_eq!(parking.count(), 2);
        parking.release(&at(100, 0, Slot));
        assert!(parking.is_blocked(0, Some(b"a"), &SLOT) && holds(&parking, &at(200, 0, Slot)));
        assert!(!holds(&parking, &at(100, 0, Slot)));
        parking.release(&at(200, 0, Slot));
        assert!(!parking.is_any() && !parking.is_blocked(0, Some(b"a"), &SLOT));

        // What was read from the table had committed by then.
        parking.park(at(500, 3, Table)).unwrap();
        assert!(holds(&parking, &at(499, 0, Slot)) && holds(&parking, &at(900, 0, Table)));
        assert!(!holds(&parking, &at(500, 0, Slot)));
    }

    #[test]
    fn what_is_on_its_way_to_the_table_and_there_already_is_one_event() {
        let (mut parking, one) = (ParkedIndex::default(), at(100, 0, Via::Slot));
        let copy = at(700, 0, Via::Table);
        // The table can have a copy that two relays made at once: both go one day.
        parking.begin(vec![one.clone(), copy.clone()], vec![one.clone(), at(300, 0, Via::Slot)]);
        assert_eq!(parking.count(), 2, "the last was there when the copy was read");
        parking.release(&one);
        assert!(parking.is_blocked(0, Some(b"a"), &SLOT));
        parking.release(&copy);
        assert!(!parking.is_any() && !parking.is_blocked(0, Some(b"a"), &SLOT));
    }

    #[test]
    fn what_is_gone_from_the_table_waits_no_more_unless_it_is_on_its_way_there() {
        let mut parking = ParkedIndex::default();
        let (gone, stays, under_way, later) =
            (waiting(0, 1, Some("a")), waiting(0, 2, Some("b")), waiting(0, 3, Some("c")), waiting(0, 4, Some("a")));
        parking.begin(vec![gone.clone(), stays.clone()], Vec::new());
        parking.park(under_way.clone()).unwrap();
        parking.park(waiting(0, 5, None)).unwrap();
        let census = parking.census([(&under_way.row, &under_way.place)].into_iter());
        parking.park(later.clone()).unwrap();
        assert_eq!(parking.compare(census, std::slice::from_ref(&stays)), 1);
        assert!(!parking.holds_row(&gone.row) && parking.is_blocked(0, Some(b"a"), &SLOT), "a later one waits");
        assert!(parking.holds_row(&under_way.row) && parking.holds_row(&row(5)) && parking.count() == 4);
        // A session of before looked: nothing it says is news.
        assert_eq!(parking.compare(0, &[]), 0);
        let census = parking.census(std::iter::empty());
        assert_eq!(parking.compare(census, &[later, under_way]), 2);
        assert!(
            !parking.is_blocked(0, Some(b"b"), &SLOT)
                && parking.is_blocked(0, Some(b"a"), &SLOT)
                && parking.count() == 2
        );
        let census = parking.census(std::iter::empty());
        assert_eq!((parking.compare(census, &[]), parking.is_any()), (2, false));
        assert!(!parking.is_blocked(0, Some(b"a"), &SLOT) && !parking.is_blocked(0, Some(b"c"), &SLOT));
        // What the table has another place of is the same event.
        parking.begin(vec![at(100, 0, Via::Slot)], Vec::new());
        let census = parking.census(std::iter::empty());
        assert_eq!(parking.compare(census, &[at(300, 0, Via::Table)]), 0);
        assert_eq!(parking.compare(census, &[at(200, 0, Via::Slot)]), 1);
    }

    #[test]
    fn a_topic_that_refuses_does_so_until_it_takes_one_or_none_waits_for_it() {
        let mut parking = ParkedIndex::default();
        let refused = |id| Waiting { refused_by: Some("orders".to_owned()), ..waiting(0, id, Some("a")) };
        parking.begin(vec![refused(1)], Vec::new());
        assert!(
            parking.is_refusing("orders") && !parking.is_refusing("mail") && parking.is_blocked(0, Some(b"a"), &SLOT)
        );
        parking.accepts("orders");
        assert!(!parking.is_refusing("orders"));
        parking.park(refused(2)).unwrap();
        parking.park(refused(3)).unwrap();
        parking.park(waiting(0, 4, Some("a"))).unwrap();
        // It took one since this was refused.
        parking.release(&refused(1));
        parking.release(&refused(2));
        assert!(parking.is_refusing("orders"));
        parking.release(&waiting(0, 3, Some("a")));
        assert!(!parking.is_refusing("orders") && parking.is_any(), "they were dropped");
        parking.begin(Vec::new(), Vec::new());
        assert!(!parking.is_any() && !parking.is_blocked(0, Some(b"a"), &SLOT));
    }

    #[test]
    fn no_more_than_somebody_can_look_through_wait() {
        let mut parking = ParkedIndex::default();
        let id = |number: usize| RowId { outbox: 0, key: number.to_be_bytes().to_vec() };
        let one = |number| Waiting { row: id(number), ..waiting(0, 0, None) };
        let of = |count: usize| (1..=count).map(one).collect();
        // Whoever stopped for that and was told what to do gets the time for it.
        parking.begin(of(EVENTS_MAX), Vec::new());
        parking.park(waiting(0, 1, None)).unwrap();
        parking.begin(of(EVENTS_MAX - 1), Vec::new());
        parking.park(waiting(0, 2, None)).unwrap();
        let error = parking.park(waiting(0, 1, None)).unwrap_err();
        assert!(error.kind().halts() && error.what_to_do().is_some(), "{error}");
        parking.release(&one(7));
        parking.park(waiting(0, 3, None)).unwrap();
    }
}
