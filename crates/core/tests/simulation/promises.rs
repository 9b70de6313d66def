//! The promises that are checked, and those that are at stake.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use walrelay_core::config::OnError;
use walrelay_core::ledger::trail::Published;
use walrelay_core::stored::Stored;

use super::broker::Logged;
use super::parked::Tables;
use super::plan::{Fault, Path, Promise};
use super::server::{Row, Transaction, row_of};
use super::world::World;

/// Whether rows of the table count, and no place in the log does.
pub(super) fn is_of_table(stored: &Stored) -> bool {
    stored.catch_up.is_some() || stored.is_polled()
}

impl World {
    /// Promises that a wrong rule could break now.
    pub(super) fn at_stake(&self) -> Vec<Promise> {
        let mut promises = Vec::new();
        let position = self.stored.position;
        let unstored = self.server.log.iter().rev();
        let unstored = unstored.take_while(|it| it.end_lsn > position.end_lsn);
        let mut keys = [0; 4];
        for (aggregate, _) in unstored.flat_map(|it| &it.events) {
            keys[usize::from(*aggregate)] += 1;
        }
        let mut put = |is_so: bool, promise| {
            if is_so {
                promises.push(promise);
            }
        };
        put(keys.iter().any(|count| *count > 1), Promise::P2);
        put(self.broker.lock().unwrap().has_untaken(), Promise::P3);
        if let Some(pipeline) = &self.relay.pipeline {
            let received = pipeline.publisher.ledger.received();
            put(!position.is_at_or_after(&received), Promise::P1);
            put(!pipeline.trail.wants_pair(), Promise::P12);
        }
        let reading = self.relay.reading.as_ref().map(|it| &it.read.publisher);
        put(reading.is_some(), Promise::P12);
        let streaming = self.relay.pipeline.as_ref().map(|it| &it.publisher);
        if let Some(publisher) = reading.or(streaming) {
            let in_flight = publisher.ledger.in_flight_events();
            put(reading.is_some() && in_flight > 0, Promise::P1);
            put(!publisher.has_room(), Promise::P4);
            put(!publisher.write_backs.is_empty(), Promise::P13);
            put(publisher.transaction.is_open(), Promise::P14);
        }
        promises.sort_unstable();
        promises.dedup();
        promises
    }

    /// At every step: what is stored is delivered and written back (P1, P13), and known to be
    /// published (P12).
    pub(super) fn check_promises(&mut self) {
        let mut delivered = self.logged_once();
        let has_keys = self.server.has_keys;
        if let Some(tables) = &self.tables {
            let is_given =
                |event: &Logged| delivered.contains(event) || tables.dropped.contains(event);
            for event in self.server.log.iter().flat_map(|it| &it.events) {
                let row = row_of(*event, has_keys);
                let is_marked = row.is_some_and(|row| tables.is_marked(&row));
                assert!(!is_marked || is_given(event), "P13: {event:?} is marked");
            }
            delivered.extend(tables.parked());
            delivered.extend(&tables.dropped);
        }
        delivered.extend(self.given_up());
        let mut published = BTreeSet::new();
        for transaction in &self.server.log {
            let owed = self.owed(transaction);
            let is_inside = transaction.end_lsn > self.stored.position.end_lsn;
            if !is_inside || is_of_table(&self.stored) {
                published.extend(&owed);
            }
            for event in &owed {
                let stored = self.stored.position;
                assert!(
                    delivered.contains(event),
                    "P1: stored {stored} past {event:?}, which nobody has"
                );
                if let Some(tables) = &self.tables {
                    let row = row_of(*event, has_keys);
                    let is_written = row.is_none_or(|row| {
                        tables.is_marked(&row) || tables.pending_again.contains(&row)
                    });
                    let was_written = self.unmarked.contains(event) || self.may_lack_marks;
                    assert!(
                        is_written || was_written || tables.parked().contains(event),
                        "P13: stored {stored} past {event:?}, which is not marked"
                    );
                }
            }
        }
        let forgotten: Vec<_> = self.published.difference(&published).collect();
        assert!(
            forgotten.is_empty() || self.forgets(),
            "P12: {forgotten:?} are forgotten, and would be published again"
        );
        self.published = published;
    }

    /// Whether more rows may be published again than were not delivered, because of a promotion.
    fn forgets(&self) -> bool {
        let published = self.stored.published.as_ref();
        self.may_forget && published.is_some_and(|it| it.forgotten.is_some())
    }

    /// The events of a transaction that the store has as published.
    fn owed(&self, transaction: &Transaction) -> Vec<Logged> {
        let Stored {
            server,
            position,
            published,
            catch_up,
            ..
        } = &self.stored;
        if transaction.timeline > server.timeline {
            // It is stored of the past, and its LSNs and ids are used again.
            return Vec::new();
        }
        let events = transaction.events.iter().copied();
        let xid = transaction.xid;
        let is_known = |published: &Published| published.has(Some(xid));
        let is_published = published.as_ref().is_some_and(is_known);
        if is_of_table(&self.stored) {
            let begun = catch_up.as_ref();
            // Where a promotion came in between, it is begun again.
            let is_of_server = *server == self.server.identity;
            let until = begun.and_then(|begun| begun.until.as_ref());
            let after = begun.and_then(|begun| begun.after.as_ref());
            let is_read = |event: &Logged| {
                let is_seen = until.is_some_and(|until| until.sees(xid)) && is_of_server;
                let row = Row { event: *event, xid };
                // Rows that say that they are pending are all behind nothing.
                let has_after = after.filter(|_| !self.mode.has_pending);
                is_seen && has_after.is_some_and(|after| !row.is_after(after))
            };
            return events.filter(|it| is_published || is_read(it)).collect();
        }
        if transaction.end_lsn > position.end_lsn {
            let owed = position.delivered_of(transaction.commit_lsn);
            let is_wrong = is_published && !transaction.events.is_empty();
            assert!(!is_wrong, "P12: {xid} is taken for published");
            let sent = transaction.sent();
            return sent.take(usize::try_from(owed).unwrap()).collect();
        }
        let is_sent = transaction.sent().next().is_some();
        let is_forgotten = published.is_some() && !is_published && is_sent;
        assert!(
            !is_forgotten || self.forgets(),
            "P12: {xid} is forgotten, and would be published again"
        );
        let is_seen = |published: &Published| published.pair.snapshot.sees(xid);
        if published.as_ref().is_some_and(is_seen) {
            return events.collect();
        }
        // Until the table is read, what the slot left out is not.
        transaction.sent().collect()
    }

    /// Events of which nothing is sent: those that were refused, and no others.
    fn given_up(&self) -> BTreeSet<Logged> {
        match self.mode.on_error {
            OnError::Skip => self.broker.lock().unwrap().refused.clone(),
            OnError::Stop | OnError::DeadLetter | OnError::Park => BTreeSet::new(),
        }
    }

    fn logged_once(&self) -> BTreeSet<Logged> {
        self.broker
            .lock()
            .unwrap()
            .visible()
            .flatten()
            .map(|it| it.event)
            .collect()
    }

    /// P1 and P2: every committed event is there, nothing else is, and first occurrences are in
    /// version order.
    pub(super) fn check_delivery(&self) {
        let committed: BTreeSet<Logged> = self
            .server
            .log
            .iter()
            .flat_map(|it| it.events.iter().copied())
            .collect();
        let delivered = self.logged_once();
        let dropped = self.tables.as_ref().map(|tables| tables.dropped.clone());
        let mut dropped = dropped.unwrap_or_default();
        dropped.extend(self.given_up());
        dropped.extend(&self.gone);
        let given: BTreeSet<Logged> = delivered.union(&dropped).copied().collect();
        let lost: Vec<_> = committed.difference(&given).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
        let mut phantoms = delivered.difference(&committed);
        assert!(phantoms.all(|event| self.gone.contains(event)), "phantom");
        let log = self.server.log.iter();
        let left_out: BTreeSet<_> = log.flat_map(|it| &it.left_out).collect();
        let is_free = |event: Logged| dropped.contains(&event) || left_out.contains(&event);
        let broker = self.broker.lock().unwrap();
        for (partition, log) in broker.visible().enumerate() {
            let mut newest: HashMap<u8, u64> = HashMap::new();
            let mut last: HashMap<u8, u64> = HashMap::new();
            let is_left = |(_, event): &(usize, Logged)| !self.gone.contains(event);
            let events = || log.iter().map(|it| it.event);
            for (at, (aggregate, version)) in events().enumerate().filter(is_left) {
                let before = newest.entry(aggregate).or_default();
                let missing = (*before + 1..version).find(|it| !is_free((aggregate, *it)));
                assert_eq!(missing, None, "P2: {aggregate}-{version} came before it");
                let is_first = version > *before;
                *before = version.max(*before);
                if self.is_altered || self.marked_unstored.contains(&aggregate) {
                    continue;
                }
                // A copy of a relay that had the turn before breaks no order, and may restore it: see
                // `docs/explanation/delivery.md`.
                let event = (aggregate, version);
                let may_be_late = self.was_parked_late(event) || self.may_come_again(event);
                if broker.is_late(partition, at) || !is_first && may_be_late {
                    let last = last.entry(aggregate).or_default();
                    let is_next = (*last + 1..version).all(|it| dropped.contains(&(aggregate, it)));
                    if is_first || is_next {
                        *last = version.max(*last);
                    }
                    continue;
                }
                let previous = last.insert(aggregate, version).unwrap_or_default();
                // A copy that the broker refuses is not sent again.
                let parks = self.tables.is_some();
                let is_left_out = |of| {
                    dropped.contains(&of) || parks && !is_first && broker.refused.contains(&of)
                };
                let missing = (previous + 1..version).find(|it| !is_left_out((aggregate, *it)));
                assert_eq!(
                    missing,
                    None,
                    "P2: {aggregate}-{version} follows the copy of {aggregate}-{previous}: {:?}",
                    events().filter(|it| it.0 == aggregate).collect::<Vec<_>>()
                );
            }
            newest.retain(|aggregate, _| !self.marked_unstored.contains(aggregate));
            let is_kept = self.is_altered || last == newest;
            assert!(is_kept, "P2: {newest:?} do not come last, {last:?} do");
        }
        let unasked: Vec<_> = broker.letters.difference(&broker.refused).collect();
        // A topic is given up with events that it was not offered.
        let of_topic = self.reached.lacks(&[Path::TopicGivenUp]).is_empty();
        assert!(
            unasked.is_empty() || of_topic,
            "P3: {unasked:?} were given up, and not refused"
        );
        assert!(broker.is_empty());
    }

    /// Whether this event was parked, and a later one of its aggregate and transaction: places
    /// within a transaction do not tell which of them is a copy.
    fn was_parked_late(&self, event: Logged) -> bool {
        let mut log = self.server.log.iter();
        let transaction = log.find(|it| it.events.contains(&event));
        let Some((transaction, tables)) = transaction.zip(self.tables.as_ref()) else {
            return false;
        };
        let is_later = |of: &&Logged| of.0 == event.0 && of.1 > event.1;
        let mut later = transaction.events.iter().filter(is_later);
        tables.ever.contains(&event) && later.any(|of| tables.ever.contains(of))
    }

    /// Whether the row of an event may be pending again after it was published.
    fn may_come_again(&self, event: Logged) -> bool {
        let is_requeued = |tables: &Tables| tables.requeued.contains_key(&event);
        let was_unmarked = self.unmarked.contains(&event) || self.may_lack_marks;
        let is_requeued = self.tables.as_ref().is_some_and(is_requeued);
        self.mode.has_pending && (was_unmarked || is_requeued)
    }

    /// P12: rows that nobody set to pending are not taken for such rows.
    pub(super) fn assert_asked(&self, event: Logged) {
        let mut log = self.server.log.iter();
        let is_left_out = log.any(|it| it.left_out.contains(&event));
        let is_asked = is_left_out || self.may_come_again(event);
        assert!(
            is_asked,
            "P12: {event:?} comes again, and nobody asked for it"
        );
    }

    /// Notes the events that the stored snapshot sees: no later alteration publishes them again.
    pub(super) fn note_finished(&mut self) {
        let published = self.stored.published.as_ref();
        let Some(published) = published.filter(|_| self.faults.is_only(Fault::Altered)) else {
            return;
        };
        let is_seen = |it: &&Transaction| published.pair.snapshot.sees(it.xid);
        let seen = self.server.log.iter().filter(is_seen);
        let seen: Vec<Logged> = seen.flat_map(|it| it.events.iter().copied()).collect();
        let count = |event| (event, self.times_logged(event));
        let counted: Vec<_> = seen.into_iter().map(count).collect();
        self.finished.extend(counted);
    }

    /// P12: what a snapshot from before an alteration saw does not come again.
    pub(super) fn check_finished(&self) {
        for (event, times) in &self.finished {
            let now = self.times_logged(*event);
            assert_eq!(now, *times, "P12: {event:?} came again");
        }
    }

    fn times_logged(&self, event: Logged) -> usize {
        let broker = self.broker.lock().unwrap();
        let logged = broker.visible().flatten();
        logged.filter(|it| it.event == event).count()
    }

    /// Events that are there more often than they were asked for, unless a record of their key came
    /// late.
    pub(super) fn duplicates(&self) -> Vec<Logged> {
        let mut seen: BTreeMap<Logged, usize> = BTreeMap::new();
        let requeued = self.tables.as_ref().map(|tables| &tables.requeued);
        let times = |event: &Logged| requeued.and_then(|it| it.get(event)).copied();
        let broker = self.broker.lock().unwrap();
        let came_late = broker.that_came_late();
        let logged = broker.visible().flatten().map(|it| it.event);
        let logged = logged.filter(|event| !came_late.contains(&event.0));
        let is_more = |event: &Logged| {
            let count = seen.entry(*event).or_default();
            *count += 1;
            *count > 1 + times(event).unwrap_or_default()
        };
        logged.filter(is_more).collect()
    }
}
