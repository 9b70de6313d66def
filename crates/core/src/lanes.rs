//! Lanes keep the order of each key on a bus that keeps none: at most one record of a key is on its
//! way, and many keys are.
//!
//! No I/O: [`Lanes::next`] gives the next record to send, [`Lanes::ended`] and [`Lanes::unknown`]
//! take its outcome, and time is an argument. A lane is the queue of one key. Records without a key
//! have a lane each.
//!
//! 1. [`Lanes::enqueue`] puts a record at the end of its lane.
//! 2. The first record of a lane is sent. The others wait for its ack.
//! 3. A record of which nobody knows whether the bus has it, or that the bus cannot take now, is
//!    sent again before any later record of its key. Where the bus takes other records meanwhile,
//!    it is refused in the end.
//! 4. A refused record holds its lane until the relay has decided: [`Lanes::retry`] sends it again,
//!    [`Lanes::withdraw`] takes back the whole lane. Other lanes go on.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Disposition, Error, Kind};
use crate::ledger::Ticket;
use crate::route::{OwnedRecord, Record};
use crate::sink::{Delivery, EnqueueError};

/// The wait before a record is sent again that the bus cannot take now: doubled with each attempt.
const WAIT: Duration = Duration::from_millis(500);
/// The longest such wait.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// So often the bus may not take a record while it takes others; then the record is refused. Where
/// several records are not taken in a row, the bus takes none, and that does not count.
const DELAYS_MAX: u32 = 5;

/// How one attempt to send a record ended.
#[derive(Debug)]
pub enum Outcome {
    /// The bus has the record.
    Acked,
    /// The bus does not have it, and says why. `after` is the wait that the bus asks for.
    ///
    /// An error that is retried without a limit is not reported: the record waits in its lane. It
    /// becomes a refusal, [`Kind::TopicRefused`], once the record waited for the fifth time and
    /// other records were acked since the first. Its attempts are those of all five. An attempt
    /// does not count behind that of another record which had to wait, too, with no ack between:
    /// the bus takes none then.
    Refused {
        /// Why.
        error: Error,
        /// How long the bus wants the next attempt to wait.
        after: Option<Duration>,
    },
    /// The bus has no room where the record belongs: the record waits in its lane without a limit.
    Full(Error),
}

/// A record to send.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Identifies the attempt.
    pub id: AttemptId,
    /// The record.
    pub record: Arc<OwnedRecord>,
}

/// Identifies an attempt: no two have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttemptId {
    lane: LaneId,
    number: u64,
}

type LaneId = u64;

#[derive(Debug)]
struct Queued {
    ticket: Ticket,
    record: Arc<OwnedRecord>,
    /// The attempts that the bus refused.
    refused: u32,
    delays: Delays,
}

/// The attempts that the bus could not take.
#[derive(Debug, Clone, Copy, Default)]
struct Delays {
    count: u32,
    /// Those of them that count: see [`DELAYS_MAX`].
    counted: u32,
    /// What was acked of all records at the first of them.
    acked_before: Option<u64>,
    /// Whether each is reported.
    are_refusals: bool,
}

impl Delays {
    /// Whether others were acked since the first of these, when `acked` were acked.
    fn others_acked(&mut self, acked: u64) -> bool {
        acked > *self.acked_before.get_or_insert(acked)
    }

    /// One more, when `acked` records were acked. Whether the record is refused for it.
    fn one_more(&mut self, acked: u64, counts: bool) -> bool {
        let others_acked = self.others_acked(acked);
        self.count += 1;
        self.counted += u32::from(counts);
        self.are_refusals || (counts && self.counted >= DELAYS_MAX && others_acked)
    }

    fn wait(&self) -> Duration {
        let doubled = WAIT.saturating_mul(1 << self.count.saturating_sub(1).min(10));
        doubled.min(WAIT_MAX)
    }
}

/// The lanes whose records the bus could not take since it took one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Delayed {
    #[default]
    None,
    One(LaneId),
    Several,
}

impl Delayed {
    fn and(self, id: LaneId) -> Delayed {
        match self {
            Delayed::None => Delayed::One(id),
            Delayed::One(known) if known == id => self,
            Delayed::One(_) | Delayed::Several => Delayed::Several,
        }
    }
}

/// What happens to the first record of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is among those to send.
    Ready,
    /// It is on its way, by the attempt of this number.
    Sent(u64),
    /// It is sent again at this time.
    Waiting(Instant),
    /// It was refused, and the relay decides.
    Held,
}

#[derive(Debug)]
struct Lane {
    /// Never empty.
    queue: VecDeque<Queued>,
    state: State,
}

/// A number of records, and the greatest one.
#[derive(Debug, Default)]
struct Bounded {
    count: usize,
    max: usize,
}

impl Bounded {
    fn has_room(&self) -> bool {
        self.count < self.max
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: HashMap<LaneId, Lane>,
    /// The lanes of records with a key.
    by_key: HashMap<Vec<u8>, LaneId>,
    ready: VecDeque<LaneId>,
    waiting: BTreeSet<(Instant, LaneId)>,
    /// The lanes that are held, by the ticket of the refused record.
    held: HashMap<Ticket, LaneId>,
    sent: Bounded,
    queued: Bounded,
    acked: u64,
    delayed: Delayed,
    next_lane: LaneId,
    next_attempt: u64,
    deliveries: Vec<Delivery>,
}

impl Lanes {
    /// At most `sent_max` records are on their way, and `queued_max` with those that wait. The
    /// caller bounds the bytes.
    pub fn new(sent_max: usize, queued_max: usize) -> Lanes {
        let at_most = |max| Bounded { count: 0, max };
        Lanes {
            sent: at_most(sent_max),
            queued: at_most(queued_max),
            ..Lanes::default()
        }
    }

    /// Copies a record to the end of its lane.
    ///
    /// # Errors
    /// [`EnqueueError::Full`], and the record was not taken.
    pub fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        self.put(record, ticket, Delays::default())
    }

    /// The same for a record that is refused where it would have to wait.
    pub fn enqueue_apart(
        &mut self,
        record: &Record<'_>,
        ticket: Ticket,
    ) -> Result<(), EnqueueError> {
        let delays = Delays {
            are_refusals: true,
            ..Delays::default()
        };
        self.put(record, ticket, delays)
    }

    fn put(
        &mut self,
        record: &Record<'_>,
        ticket: Ticket,
        delays: Delays,
    ) -> Result<(), EnqueueError> {
        if !self.queued.has_room() {
            return Err(EnqueueError::Full);
        }
        let queued = Queued {
            ticket,
            record: Arc::new(OwnedRecord::of(record)),
            refused: 0,
            delays,
        };
        self.queued.count += 1;
        let known = record.key.and_then(|key| self.by_key.get(key).copied());
        if let Some(lane) = known.and_then(|id| self.lanes.get_mut(&id)) {
            lane.queue.push_back(queued);
            return Ok(());
        }
        let id = self.next_lane;
        self.next_lane += 1;
        if let Some(key) = record.key {
            self.by_key.insert(key.to_vec(), id);
        }
        let lane = Lane {
            queue: VecDeque::from([queued]),
            state: State::Ready,
        };
        self.lanes.insert(id, lane);
        self.ready.push_back(id);
        Ok(())
    }

    /// The next record to send, if one may be sent at `now`.
    pub fn next(&mut self, now: Instant) -> Option<Attempt> {
        while let Some((at, id)) = self.waiting.first().copied().filter(|(at, _)| *at <= now) {
            self.waiting.remove(&(at, id));
            self.make_ready(id);
        }
        if !self.sent.has_room() {
            return None;
        }
        let id = self.ready.pop_front()?;
        let lane = self.lanes.get_mut(&id)?;
        let record = Arc::clone(&lane.queue.front()?.record);
        let number = self.next_attempt;
        self.next_attempt += 1;
        lane.state = State::Sent(number);
        self.sent.count += 1;
        Some(Attempt {
            id: AttemptId { lane: id, number },
            record,
        })
    }

    /// When to ask [`Lanes::next`] again, if time alone changes its answer.
    pub fn wake_at(&self) -> Option<Instant> {
        self.waiting
            .first()
            .map(|(at, _)| *at)
            .filter(|_| self.sent.has_room())
    }

    /// An attempt ended. The outcome of an attempt that no longer counts changes nothing.
    pub fn ended(&mut self, attempt: AttemptId, outcome: Outcome, now: Instant) {
        let Some(id) = self.landed(attempt) else {
            return;
        };
        match outcome {
            Outcome::Acked => self.acked(id),
            Outcome::Refused { error, after } => self.refused(id, error, after, now),
            Outcome::Full(error) => {
                // Whatever the bus takes elsewhere says nothing of this record.
                self.delayed = Delayed::Several;
                self.refused(id, error, None, now);
            }
        }
    }

    /// The bus may have the record of this attempt, or not: the connection was lost. The record is
    /// sent again at once.
    ///
    /// Where other records were acked since it first was so, the bus takes others and not this one:
    /// it counts as refused for now, with `error`. Gives whether that is so. Without an `error`,
    /// the record had no part in it.
    pub fn unknown(&mut self, attempt: AttemptId, error: Option<Error>, now: Instant) -> bool {
        let Some(id) = self.landed(attempt) else {
            return false;
        };
        let acked = self.acked;
        let lane = self.lanes.get_mut(&id);
        let first = lane.and_then(|lane| lane.queue.front_mut());
        let is_its_own = first.is_some_and(|first| first.delays.others_acked(acked));
        match error.filter(|_| is_its_own) {
            Some(error) => {
                self.refused(id, error, None, now);
                true
            }
            None => {
                self.make_ready(id);
                false
            }
        }
    }

    /// The lane of an attempt that still counts: its record is no longer on its way.
    fn landed(&mut self, attempt: AttemptId) -> Option<LaneId> {
        let lane = self.lanes.get(&attempt.lane)?;
        if lane.state != State::Sent(attempt.number) {
            return None;
        }
        self.sent.count -= 1;
        Some(attempt.lane)
    }

    /// The first record of this lane is refused, or waits where the bus cannot take it now.
    fn refused(&mut self, id: LaneId, mut error: Error, after: Option<Duration>, now: Instant) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let Some(first) = lane.queue.front_mut() else {
            return;
        };
        if error.kind().disposition() == Disposition::Retry {
            self.delayed = self.delayed.and(id);
            let counts = self.delayed != Delayed::Several;
            if !first.delays.one_more(self.acked, counts) {
                let wait = first.delays.wait();
                self.wait(id, now + after.map_or(wait, |after| after.max(wait)));
                return;
            }
            error = error.with_kind(Kind::TopicRefused);
            // Each attempt counts, also those that nobody was told of.
            first.refused = first.refused.max(first.delays.counted.saturating_sub(1));
        }
        first.refused += 1;
        error.attempts = first.refused;
        error.retry_after = after;
        lane.state = State::Held;
        self.held.insert(first.ticket, id);
        self.deliveries.push(Delivery::Refused(first.ticket, error));
    }

    /// Sends a refused record again at `at`. The lane stays closed until then.
    pub fn retry(&mut self, refused: Ticket, at: Instant) {
        if let Some(id) = self.held.remove(&refused) {
            self.wait(id, at);
        }
    }

    /// Takes back a refused record, and those of its key behind it, in their order. The key has no
    /// record here any more.
    pub fn withdraw(&mut self, refused: Ticket) -> Vec<(Ticket, Arc<OwnedRecord>)> {
        let held = self.held.remove(&refused);
        let Some(lane) = held.and_then(|id| self.lanes.remove(&id)) else {
            return Vec::new();
        };
        self.queued.count -= lane.queue.len();
        let records = lane.queue.into_iter();
        let records: Vec<_> = records
            .map(|queued| (queued.ticket, queued.record))
            .collect();
        if let Some((_, record)) = records.first() {
            self.forget_key(record);
        }
        records
    }

    /// Appends what is to be reported.
    pub fn take_deliveries(&mut self, into: &mut Vec<Delivery>) {
        into.append(&mut self.deliveries);
    }

    /// Whether [`Lanes::take_deliveries`] has anything to give.
    pub fn has_deliveries(&self) -> bool {
        !self.deliveries.is_empty()
    }

    /// The oldest record that is not acked.
    pub fn oldest(&self) -> Option<Ticket> {
        let queued = self.lanes.values().flat_map(|lane| &lane.queue);
        queued.map(|queued| queued.ticket).min()
    }

    /// The records that are not acked.
    pub fn len(&self) -> usize {
        self.queued.count
    }

    /// Whether all records are acked.
    pub fn is_empty(&self) -> bool {
        self.queued.count == 0
    }

    fn make_ready(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.state = State::Ready;
            self.ready.push_back(id);
        }
    }

    fn wait(&mut self, id: LaneId, at: Instant) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.state = State::Waiting(at);
            self.waiting.insert((at, id));
        }
    }

    fn acked(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let Some(acked) = lane.queue.pop_front() else {
            return;
        };
        self.queued.count -= 1;
        self.acked += 1;
        self.delayed = Delayed::None;
        self.deliveries.push(Delivery::Acked(acked.ticket));
        if lane.queue.is_empty() {
            self.lanes.remove(&id);
            self.forget_key(&acked.record);
        } else {
            self.make_ready(id);
        }
    }

    /// The lane of this record's key is gone.
    fn forget_key(&mut self, record: &OwnedRecord) {
        if let Some(key) = &record.key {
            self.by_key.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record<'a>(key: Option<&'a [u8]>) -> Record<'a> {
        Record {
            topic: "t",
            key,
            value: None,
            headers: &[],
            partition: None,
            timestamp_ms: None,
        }
    }

    fn refused(kind: Kind) -> Outcome {
        Outcome::Refused {
            error: Error::new(kind, "no"),
            after: None,
        }
    }

    fn lost() -> Error {
        Error::new(Kind::BusUnreachable, "no")
    }

    fn deliveries(lanes: &mut Lanes) -> Vec<Delivery> {
        let mut told = Vec::new();
        lanes.take_deliveries(&mut told);
        told
    }

    #[test]
    fn a_record_that_waits_holds_its_key_and_no_other() {
        let now = Instant::now();
        let mut lanes = Lanes::new(8, 8);
        for (ticket, key) in [b"a", b"a", b"b"].iter().enumerate() {
            let ticket = Ticket(ticket as u64);
            lanes.enqueue(&record(Some(*key)), ticket).unwrap();
        }
        let a = lanes.next(now).unwrap();
        let b = lanes.next(now).unwrap();
        assert!(lanes.next(now).is_none(), "the second one of a is not sent");
        lanes.ended(a.id, refused(Kind::BusUnreachable), now);
        lanes.ended(b.id, Outcome::Acked, now);
        assert!(matches!(
            deliveries(&mut lanes)[..],
            [Delivery::Acked(Ticket(2))]
        ));
        assert!(lanes.next(now).is_none());
        assert_eq!(lanes.wake_at(), Some(now + WAIT));
        let again = lanes.next(now + WAIT).unwrap();
        // An answer to the first attempt comes too late to count.
        lanes.ended(a.id, Outcome::Acked, now);
        assert!(!lanes.has_deliveries());
        lanes.ended(again.id, Outcome::Acked, now);
        assert!(matches!(
            deliveries(&mut lanes)[..],
            [Delivery::Acked(Ticket(0))]
        ));
        assert!(lanes.next(now).is_some());
    }

    #[test]
    fn the_relay_decides_about_a_refused_record() {
        let now = Instant::now();
        let mut lanes = Lanes::new(8, 8);
        for ticket in 0..3 {
            lanes.enqueue(&record(Some(b"a")), Ticket(ticket)).unwrap();
        }
        for attempts in 1..3 {
            let sent = lanes.next(now).unwrap();
            lanes.ended(sent.id, refused(Kind::TopicRefused), now);
            let told = deliveries(&mut lanes);
            let [Delivery::Refused(Ticket(0), error)] = &told[..] else {
                panic!("{told:?}")
            };
            assert_eq!(error.attempts, attempts);
            assert!(lanes.next(now).is_none());
            if attempts == 1 {
                lanes.retry(Ticket(0), now);
            }
        }
        let withdrawn = lanes.withdraw(Ticket(0));
        let tickets: Vec<u64> = withdrawn.iter().map(|(ticket, _)| ticket.0).collect();
        assert_eq!(tickets, [0, 1, 2]);
        assert!(lanes.is_empty());
        lanes.enqueue(&record(Some(b"a")), Ticket(1)).unwrap();
        assert!(lanes.next(now).is_some(), "the key is free again");
    }

    #[test]
    fn a_record_that_the_bus_never_takes_is_refused_while_it_takes_others() {
        let mut now = Instant::now();
        for takes_others in [false, true] {
            let mut lanes = Lanes::new(8, 8);
            lanes.enqueue(&record(Some(b"a")), Ticket(0)).unwrap();
            for delays in 1..=8 {
                now += WAIT_MAX;
                let sent = lanes.next(now).unwrap();
                lanes.ended(sent.id, refused(Kind::BusUnreachable), now);
                let is_refused = takes_others && delays >= DELAYS_MAX;
                assert_eq!(lanes.has_deliveries(), is_refused, "{delays}");
                if is_refused {
                    let told = deliveries(&mut lanes);
                    let [Delivery::Refused(ticket, error)] = &told[..] else {
                        panic!("{told:?}")
                    };
                    assert_eq!(error.attempts, delays, "each attempt counts");
                    lanes.retry(*ticket, now);
                }
                if takes_others && delays == 1 {
                    lanes.enqueue(&record(Some(b"b")), Ticket(1)).unwrap();
                    let other = lanes.next(now).unwrap();
                    lanes.ended(other.id, Outcome::Acked, now);
                    deliveries(&mut lanes);
                }
            }
        }
        let mut lanes = Lanes::new(8, 8);
        lanes.enqueue_apart(&record(None), Ticket(0)).unwrap();
        let sent = lanes.next(now).unwrap();
        lanes.ended(sent.id, refused(Kind::BusUnreachable), now);
        let told = deliveries(&mut lanes);
        let [Delivery::Refused(_, error)] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(error.kind(), Kind::TopicRefused);
    }

    #[test]
    fn records_that_wait_together_are_refused_by_no_number_of_outages() {
        let mut now = Instant::now();
        let mut lanes = Lanes::new(8, 8);
        lanes.enqueue(&record(Some(b"a")), Ticket(0)).unwrap();
        lanes.enqueue(&record(Some(b"b")), Ticket(1)).unwrap();
        for outage in 0..3 {
            for _ in 0..DELAYS_MAX {
                now += WAIT_MAX;
                for _ in 0..2 {
                    let sent = lanes.next(now).unwrap();
                    lanes.ended(sent.id, refused(Kind::BusUnreachable), now);
                }
            }
            assert!(!lanes.has_deliveries(), "in outage {outage}");
            // The bus is back while both wait, and away again before they are sent.
            lanes.enqueue(&record(None), Ticket(2 + outage)).unwrap();
            let other = lanes.next(now).unwrap();
            lanes.ended(other.id, Outcome::Acked, now);
            deliveries(&mut lanes);
        }
    }

    #[test]
    fn a_record_for_which_there_is_no_room_waits_while_others_are_acked() {
        let mut now = Instant::now();
        let mut lanes = Lanes::new(8, 64);
        lanes.enqueue(&record(Some(b"a")), Ticket(0)).unwrap();
        for other in 1..=3 * u64::from(DELAYS_MAX) {
            now += WAIT_MAX;
            let sent = lanes.next(now).unwrap();
            let full = Error::new(Kind::BusUnreachable, "full");
            lanes.ended(sent.id, Outcome::Full(full), now);
            assert!(!lanes.has_deliveries());
            lanes.enqueue(&record(None), Ticket(other)).unwrap();
            let other = lanes.next(now).unwrap();
            lanes.ended(other.id, Outcome::Acked, now);
            deliveries(&mut lanes);
        }
    }

    #[test]
    fn a_record_that_ends_its_connection_is_refused_and_an_outage_refuses_none() {
        let mut now = Instant::now();
        for takes_others in [false, true] {
            let mut lanes = Lanes::new(8, 8);
            lanes.enqueue(&record(Some(b"a")), Ticket(0)).unwrap();
            for attempt in 0..=DELAYS_MAX {
                now += WAIT_MAX;
                let sent = lanes.next(now).unwrap();
                let is_its_own = lanes.unknown(sent.id, Some(lost()), now);
                assert_eq!(is_its_own, takes_others && attempt > 0);
                let is_refused = takes_others && attempt == DELAYS_MAX;
                assert_eq!(lanes.has_deliveries(), is_refused, "{attempt}");
                if takes_others && attempt == 0 {
                    lanes.enqueue(&record(Some(b"b")), Ticket(1)).unwrap();
                    let again = lanes.next(now).unwrap();
                    let other = lanes.next(now).unwrap();
                    lanes.ended(other.id, Outcome::Acked, now);
                    deliveries(&mut lanes);
                    lanes.unknown(again.id, None, now);
                }
            }
        }
    }

    /// Steps of the bus and of the relay.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Enqueue(u8),
        Send,
        End(u8, u8),
        Lost,
        Later,
        Decide(bool),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (0..5_u8).prop_map(Step::Enqueue),
            6 => Just(Step::Send),
            6 => (any::<u8>(), 0..8_u8).prop_map(|(which, how)| Step::End(which, how)),
            1 => Just(Step::Lost),
            2 => Just(Step::Later),
            3 => any::<bool>().prop_map(Step::Decide),
        ];
        proptest::collection::vec(step, 0..200)
    }

    /// What the bus and the relay know.
    struct Model {
        lanes: Lanes,
        now: Instant,
        key_of: Vec<Option<u8>>,
        on_their_way: Vec<Attempt>,
        /// Attempts whose outcome is no longer awaited.
        stale: Vec<AttemptId>,
        log: Vec<u64>,
        refused: Vec<u64>,
        ended: Vec<u64>,
    }

    impl Model {
        fn ticket(attempt: &Attempt) -> u64 {
            let value = attempt.record.value.as_deref().unwrap();
            u64::from_be_bytes(value.try_into().unwrap())
        }

        fn take(&mut self, step: Step) {
            match step {
                // Key 0 is no key.
                Step::Enqueue(key) => {
                    let ticket = self.key_of.len() as u64;
                    let bytes = [key];
                    let value = ticket.to_be_bytes();
                    let record = Record {
                        value: Some(&value),
                        ..record((key > 0).then_some(&bytes[..]))
                    };
                    if self.lanes.enqueue(&record, Ticket(ticket)).is_ok() {
                        self.key_of.push((key > 0).then_some(key));
                    }
                }
                Step::Send => {
                    let next = self.lanes.next(self.now);
                    self.on_their_way.extend(next);
                }
                Step::End(which, how) => self.end(usize::from(which), how),
                Step::Lost => {
                    for attempt in self.on_their_way.drain(..) {
                        self.lanes.unknown(attempt.id, None, self.now);
                        self.stale.push(attempt.id);
                    }
                }
                Step::Later => self.now += Duration::from_secs(40),
                Step::Decide(retries) => self.decide(retries),
            }
            self.report();
        }

        fn end(&mut self, which: usize, how: u8) {
            let Some(at) = which.checked_rem(self.on_their_way.len()) else {
                return;
            };
            if let Some(stale) = self.stale.pop() {
                self.lanes.ended(stale, Outcome::Acked, self.now);
                assert!(!self.lanes.has_deliveries(), "a stale ack counts");
            }
            let attempt = self.on_their_way.swap_remove(at);
            let outcome = match how {
                0 => Some(refused(Kind::BusUnreachable)),
                1 => Some(refused(Kind::TopicRefused)),
                2 => Some(refused(Kind::Record)),
                3 => None,
                _ => Some(Outcome::Acked),
            };
            // Of an unknown record half are there.
            if how > 3 || (how == 3 && which > 127) {
                self.log.push(Model::ticket(&attempt));
            }
            match outcome {
                Some(outcome) => self.lanes.ended(attempt.id, outcome, self.now),
                None => drop(self.lanes.unknown(attempt.id, Some(lost()), self.now)),
            }
        }

        fn decide(&mut self, retries: bool) {
            let Some(ticket) = self.refused.pop() else {
                return;
            };
            if retries {
                self.lanes.retry(Ticket(ticket), self.now);
                return;
            }
            let withdrawn = self.lanes.withdraw(Ticket(ticket));
            assert_eq!(withdrawn[0].0, Ticket(ticket));
            self.ended.push(ticket);
            for (ticket, record) in &withdrawn[1..] {
                record
                    .with_record(|record| self.lanes.enqueue(record, *ticket))
                    .expect("there is room for what was withdrawn");
            }
        }

        fn report(&mut self) {
            for delivery in deliveries(&mut self.lanes) {
                match delivery {
                    Delivery::Acked(ticket) => self.ended.push(ticket.0),
                    Delivery::Refused(ticket, _) => self.refused.push(ticket.0),
                    Delivery::Failed(..) => panic!("nothing fails"),
                }
            }
            let mut keys: Vec<u8> = self
                .on_their_way
                .iter()
                .filter_map(|attempt| self.key_of[Model::ticket(attempt) as usize])
                .collect();
            keys.sort_unstable();
            assert!(keys.windows(2).all(|two| two[0] != two[1]), "two of a key");
            assert!(self.on_their_way.len() <= 4 && self.lanes.len() <= 16);
        }

        /// Everything is sent and acked, and each record ended once.
        fn finish(mut self) {
            for _ in 0..10_000 {
                if self.lanes.is_empty() {
                    break;
                }
                self.take(Step::Later);
                self.take(Step::Decide(true));
                self.take(Step::Send);
                self.take(Step::End(0, 7));
            }
            assert!(self.lanes.is_empty(), "{:?}", self.lanes);
            assert!(self.lanes.by_key.is_empty() && self.lanes.held.is_empty());
            assert_eq!(self.lanes.sent.count, 0);
            self.ended.sort_unstable();
            let all: Vec<u64> = (0..self.key_of.len() as u64).collect();
            assert_eq!(self.ended, all);
            // Without repetitions each key is in order.
            let mut newest: HashMap<u8, u64> = HashMap::new();
            for ticket in self.log {
                if let Some(key) = self.key_of[ticket as usize] {
                    let before = newest.entry(key).or_insert(ticket);
                    assert!(
                        *before <= ticket,
                        "{ticket} of key {key} is behind {before}"
                    );
                    *before = ticket;
                }
            }
        }
    }

    proptest! {
        #[test]
        fn each_key_keeps_its_order_and_each_record_ends_once(steps in steps()) {
            let mut model = Model {
                lanes: Lanes::new(4, 16),
                now: Instant::now(),
                key_of: Vec::new(),
                on_their_way: Vec::new(),
                stale: Vec::new(),
                log: Vec::new(),
                refused: Vec::new(),
                ended: Vec::new(),
            };
            steps.into_iter().for_each(|step| model.take(step));
            model.finish();
        }
    }
}
