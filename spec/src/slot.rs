//! Slot, acks, stored position and confirmed LSN: one relay that streams.
//!
//! Transactions overlap, so that the order of their rows in the WAL is not that of their commits.
//! The process crashes, connections are lost, the server restarts with an older confirmed LSN, and
//! a producer fails. After a crash the relay reads back the tails of the topics, which may begin
//! anywhere.

use std::cmp::Ordering;

use crate::check::{Model, Property, always, in_the_end, sometimes};
#[cfg(test)]
use crate::check::{breaks, holds};
use crate::trace::{Follower, Place, Progress, Reached, Step, expect};
use crate::world::{Lsn, Partial, Position, first_arrivals, has_repeats};

/// The keys of the rows of each transaction, in the order of the rows.
const ROWS: [&[usize]; 2] = [&[0, 1], &[0]];
/// Of both transactions: three rows, two commits.
const RECORDS: usize = 5;
/// Also of what the model follows.
const KEYS: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Event {
    transaction: u16,
    index: u16,
    key: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Record {
    Row(Event),
    /// Of this transaction.
    Commit(u16),
    /// Of another table.
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Flight {
    Enqueued,
    /// The bus has it, and the ack is on its way.
    Appended,
    Acked,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct InFlight {
    event: Event,
    flight: Flight,
}

/// A transaction, or the range of WAL before a keepalive.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Span {
    commit: Lsn,
    end: Option<Lsn>,
    /// Its events that are delivered.
    before: u16,
    events: Vec<InFlight>,
}

/// What the walsender sends next: the transaction, and its row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Stream {
    from: Lsn,
    row: u16,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Relay {
    stream: Option<Stream>,
    delivered: Position,
    /// What is received and not delivered.
    spans: Vec<Span>,
    storing: Option<Position>,
    /// Of each topic, the records that were read back after a crash.
    tails: [Vec<Event>; KEYS],
    /// Whether an event of the key was published since the start.
    published: [bool; KEYS],
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    wal: Vec<Record>,
    /// The topics: one for each key.
    bus: [Vec<Event>; KEYS],
    confirmed: Lsn,
    /// The confirmed LSN that survives a restart of the server.
    flushed: Lsn,
    stored: Position,
    relay: Option<Relay>,
    /// How many more may come.
    faults: u16,
    /// Whether an event was found in its topic after a crash.
    found: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Start { unread: usize },
    Connect,
    Receive,
    Keepalive,
    Append(usize),
    Ack(usize),
    BeginStore,
    Store,
    Confirm,
    FlushSlot,
    Crash,
    LoseConnection,
    RestartServer,
    FailProducer { unread: usize },
    LoseStore,
}

/// A rule that is not the relay's, and the property that it breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    /// `01-confirmed-when-acked`
    ConfirmedWhenAcked,
    /// `02-confirmed-when-received`
    ConfirmedWhenReceived,
    /// `03-confirmed-when-store-begins`
    ConfirmedWhenStoreBegins,
    /// `04-acks-not-contiguous`
    AcksNotContiguous,
    StoredBeforeTheAck,
    /// `06-keepalive-overtakes-events`
    KeepaliveOvertakesEvents,
    /// `09-row-lsn-as-position`
    FilteredByTheLsnOfTheRow,
    /// `11-filter-takes-the-next-transaction`
    FilterTakesTheNextTransaction,
    /// `13-partial-counts-one-too-many`
    PartialCountsOneTooMany,
    /// `14-failure-taken-for-an-ack`
    FailureTakenForAnAck,
    FoundBehindOneThatIsPublishedAgain,
}

#[derive(Clone)]
struct SlotModel {
    wrong: Option<Wrong>,
}

impl Relay {
    fn at(position: Position) -> Relay {
        Relay {
            stream: None,
            delivered: position,
            spans: Vec::new(),
            storing: None,
            tails: Default::default(),
            published: [false; KEYS],
        }
    }

    fn open(&mut self) -> Option<&mut Span> {
        self.spans.last_mut().filter(|span| span.end.is_none())
    }

    /// The end of the last transaction or range that was received as a whole.
    fn received(&self) -> Lsn {
        let ends = self.spans.iter().rev().find_map(|span| span.end);
        ends.unwrap_or(self.delivered.end)
    }

    fn flights(&mut self) -> impl Iterator<Item = &mut InFlight> {
        self.spans.iter_mut().flat_map(|span| &mut span.events)
    }

    /// Counts the longest prefix of acked events as delivered.
    fn advance(&mut self) {
        while let Some(span) = self.spans.first_mut() {
            let acked = span
                .events
                .iter()
                .take_while(|event| event.flight == Flight::Acked);
            let acked = acked.count();
            span.events.drain(..acked);
            span.before += acked as u16;
            let Span {
                commit,
                before: index,
                ..
            } = *span;
            match span.end.filter(|_| span.events.is_empty()) {
                Some(end) => {
                    self.delivered = Position::at(end);
                    self.spans.remove(0);
                }
                None => {
                    if index > 0 {
                        self.delivered.partial = Some(Partial { commit, index });
                    }
                    return;
                }
            }
        }
    }
}

impl State {
    fn new(wal: Vec<Record>, relay: Option<Relay>) -> State {
        State {
            wal,
            bus: Default::default(),
            confirmed: 0,
            flushed: 0,
            stored: Position::default(),
            relay,
            faults: 1,
            found: false,
        }
    }

    fn longest_topic(&self) -> usize {
        self.bus.iter().map(Vec::len).max().unwrap_or_default()
    }

    /// What is read back of each topic: the events that have no older one behind them.
    fn tails(&self, unread: usize) -> [Vec<Event>; KEYS] {
        std::array::from_fn(|key| {
            let order = self.of_key(key);
            let place = |event: &Event| order.iter().position(|other| other == event);
            let mut oldest = None;
            let tail = self.bus[key].iter().skip(unread).rev();
            let counts = tail.filter(|event| {
                let place = place(event);
                let counts = oldest.is_none_or(|oldest| place <= oldest);
                oldest = Some(oldest.map_or(place, |oldest| place.min(oldest)));
                counts
            });
            counts.copied().collect()
        })
    }

    /// The position that has as many transactions and events as a place.
    fn position(&self, place: Place) -> Result<Position, String> {
        let mut commits = self.commits().map(|(commit, _)| commit);
        let whole = usize::from(place.transactions).checked_sub(1);
        let end = match whole {
            Some(whole) => commits.nth(whole).map(|commit| commit + 1),
            None => Some(0),
        };
        let next = commits.next();
        let partial = next.map(|commit| Partial {
            commit,
            index: place.events,
        });
        Ok(Position {
            end: end.ok_or_else(|| format!("there is no {place:?}"))?,
            partial: partial.filter(|partial| partial.index > 0),
        })
    }

    fn commits(&self) -> impl Iterator<Item = (Lsn, u16)> {
        let commit = |(lsn, record): (usize, &Record)| match record {
            Record::Commit(transaction) => Some((lsn as Lsn, *transaction)),
            Record::Row(_) | Record::Other => None,
        };
        self.wal.iter().enumerate().filter_map(commit)
    }

    /// All committed events with the LSN of their commit, in the order of the commits.
    fn committed(&self) -> impl Iterator<Item = (Lsn, Event)> {
        self.commits().flat_map(|(commit, transaction)| {
            self.rows(transaction).map(move |event| (commit, event))
        })
    }

    /// The rows of a transaction, in their order.
    fn rows(&self, of: u16) -> impl Iterator<Item = Event> {
        self.wal.iter().filter_map(move |record| match record {
            Record::Row(event) if event.transaction == of => Some(*event),
            Record::Row(_) | Record::Commit(_) | Record::Other => None,
        })
    }

    fn of_key(&self, key: usize) -> Vec<Event> {
        let of_key = self.committed().filter(|(_, event)| event.key == key);
        of_key.map(|(_, event)| event).collect()
    }

    fn is_on_bus(&self, event: Event) -> bool {
        self.bus[event.key].contains(&event)
    }
}

/// All orders of the records of the transactions behind `begun`, also with a record of another
/// table behind a commit.
fn wals(begun: &Vec<Record>) -> Vec<Vec<Record>> {
    let is_of = |record: &Record, transaction: u16| match record {
        Record::Row(event) => event.transaction == transaction,
        Record::Commit(other) => *other == transaction,
        Record::Other => false,
    };
    let next_of = |transaction: u16| {
        let index = begun
            .iter()
            .filter(|record| is_of(record, transaction))
            .count() as u16;
        let keys = ROWS[usize::from(transaction)];
        match usize::from(index).cmp(&keys.len()) {
            Ordering::Less => Some(Record::Row(Event {
                transaction,
                index,
                key: keys[usize::from(index)],
            })),
            Ordering::Equal => Some(Record::Commit(transaction)),
            Ordering::Greater => None,
        }
    };
    let is_behind_commit = matches!(begun.last(), Some(Record::Commit(_)));
    let is_next = is_behind_commit && !begun.contains(&Record::Other);
    let other = is_next.then_some(Record::Other);
    let next: Vec<_> = (0..ROWS.len() as u16)
        .filter_map(next_of)
        .chain(other)
        .collect();
    let is_whole = begun
        .iter()
        .filter(|record| **record != Record::Other)
        .count()
        == RECORDS;
    let whole = is_whole.then(|| begun.clone());
    let longer = next
        .into_iter()
        .flat_map(|next| wals(&[begun.as_slice(), &[next]].concat()));
    whole.into_iter().chain(longer).collect()
}

impl SlotModel {
    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    fn confirmable(&self, state: &State, relay: &Relay) -> Lsn {
        match self.wrong {
            Some(Wrong::ConfirmedWhenReceived) => relay.received(),
            Some(Wrong::ConfirmedWhenAcked) => relay.delivered.end,
            Some(Wrong::ConfirmedWhenStoreBegins) => relay.storing.unwrap_or(state.stored).end,
            _ => state.stored.end,
        }
    }

    /// The position that is to be stored.
    fn due(&self, relay: &Relay) -> Position {
        let open = relay.spans.last().filter(|span| span.end.is_none());
        if !self.is(Wrong::StoredBeforeTheAck) {
            return relay.delivered;
        }
        let partial = open.map(|span| Partial {
            commit: span.commit,
            index: span.before + span.events.len() as u16,
        });
        Position {
            end: relay.received(),
            partial: partial.filter(|partial| partial.index > 0),
        }
    }

    /// The next transaction that the walsender has not sent.
    fn next_commit(state: &State, relay: &Relay) -> Option<(Lsn, u16)> {
        let from = relay.stream?.from;
        state.commits().find(|(commit, _)| *commit >= from)
    }

    /// The end of what the walsender has sent of the WAL, between two transactions.
    fn keepalive_end(state: &State, relay: &Relay) -> Option<Lsn> {
        let is_open = relay.spans.last().is_some_and(|span| span.end.is_none());
        let next = Self::next_commit(state, relay).map(|(commit, _)| commit);
        let others = (0..)
            .zip(&state.wal)
            .filter(|(_, record)| **record == Record::Other);
        let sent = others
            .map(|(lsn, _)| lsn + 1)
            .find(|end| next.is_none_or(|next| *end <= next));
        sent.filter(|end| relay.stream.is_some() && !is_open && relay.received() < *end)
    }

    /// The relay takes in one message of a transaction.
    fn receive(&self, state: &mut State) -> Option<()> {
        let mut relay = state.relay.take()?;
        let (commit, transaction) = Self::next_commit(state, &relay)?;
        let mut stream = relay.stream?;
        let next = self.is(Wrong::FilterTakesTheNextTransaction);
        let reached = Position::at(relay.received() + u16::from(next));
        let is_next = |span: &Span| span.end.is_none() && span.commit == commit;
        let is_open = relay.spans.last().is_some_and(is_next);
        if !is_open && reached.covers(commit) {
            relay.stream = Some(Stream {
                from: commit + 1,
                row: 0,
            });
            state.relay = Some(relay);
            return Some(());
        }
        if !is_open {
            let more = u16::from(self.is(Wrong::PartialCountsOneTooMany));
            let of = relay.delivered.delivered_of(commit);
            let before = if of > 0 { of + more } else { 0 };
            let events = Vec::new();
            relay.spans.push(Span {
                commit,
                end: None,
                before,
                events,
            });
        }
        if stream.row == 0 {
            let span = relay.open()?;
            stream.row = span.before + span.events.len() as u16;
        }
        let row = state.rows(transaction).nth(usize::from(stream.row));
        if let Some(event) = row {
            self.take(state, &mut relay, event);
            stream.row += 1;
        } else {
            relay.open()?.end = Some(commit + 1);
            stream = Stream {
                from: commit + 1,
                row: 0,
            };
        }
        relay.stream = Some(stream);
        relay.advance();
        state.relay = Some(relay);
        Some(())
    }

    /// An event is assembled: it is enqueued, unless its topic has it.
    fn take(&self, state: &mut State, relay: &mut Relay, event: Event) {
        let key = event.key;
        let is_behind = !self.is(Wrong::FoundBehindOneThatIsPublishedAgain) && relay.published[key];
        let is_found = relay.tails[key].contains(&event) && !is_behind;
        state.found |= is_found;
        relay.published[key] |= !is_found;
        let row = state
            .wal
            .iter()
            .position(|record| *record == Record::Row(event));
        let is_below = row.is_some_and(|lsn| (lsn as Lsn) < state.stored.end);
        let is_skipped = self.is(Wrong::FilteredByTheLsnOfTheRow) && is_below;
        let flight = if is_found || is_skipped {
            Flight::Acked
        } else {
            Flight::Enqueued
        };
        if let Some(span) = relay.open() {
            span.events.push(InFlight { event, flight });
        }
    }

    fn keepalive(&self, end: Lsn, relay: &mut Relay) {
        if self.is(Wrong::KeepaliveOvertakesEvents) {
            relay.delivered = Position::at(end);
        }
        match relay.spans.last_mut() {
            Some(span) => span.end = Some(end),
            None => relay.delivered = Position::at(end),
        }
    }

    fn append(state: &mut State, relay: &mut Relay, key: usize) {
        let mut next = relay.flights().filter(|next| next.event.key == key);
        if let Some(next) = next.find(|next| next.flight == Flight::Enqueued) {
            next.flight = Flight::Appended;
            state.bus[key].push(next.event);
        }
    }

    fn ack(&self, relay: &mut Relay, key: usize) {
        let mut acked = None;
        for (number, flying) in relay.flights().enumerate() {
            let is_next = flying.event.key == key && flying.flight == Flight::Appended;
            if acked.is_none() && is_next {
                flying.flight = Flight::Acked;
                acked = Some(number);
            }
        }
        if self.is(Wrong::AcksNotContiguous) {
            let before = relay.flights().take(acked.unwrap_or_default());
            before.for_each(|flying| flying.flight = Flight::Acked);
        }
        relay.advance();
    }

    /// A new producer continues behind the delivered position.
    fn fail_producer(&self, relay: &mut Relay) {
        if self.is(Wrong::FailureTakenForAnAck) {
            relay
                .flights()
                .for_each(|flying| flying.flight = Flight::Acked);
            relay.advance();
        }
        *relay = Relay {
            storing: relay.storing,
            ..Relay::at(relay.delivered)
        };
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        if state.faults == 0 {
            return;
        }
        if state.flushed < state.confirmed {
            actions.extend([Action::FlushSlot, Action::RestartServer]);
        }
        let Some(relay) = &state.relay else { return };
        actions.push(Action::Crash);
        if relay.stream.is_some() {
            actions.push(Action::LoseConnection);
        }
        if relay.storing.is_some() {
            actions.push(Action::LoseStore);
        }
        if !relay.spans.is_empty() {
            let unread = 0..=state.longest_topic();
            actions.extend(unread.map(|unread| Action::FailProducer { unread }));
        }
    }
}

impl Model for SlotModel {
    type State = State;
    type Action = Action;

    fn begins(&self) -> Vec<State> {
        let begins = |wal| State::new(wal, Some(Relay::at(Position::default())));
        wals(&Vec::new()).into_iter().map(begins).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.faults(state, actions);
        let Some(relay) = &state.relay else {
            let unread = 0..=state.longest_topic();
            actions.extend(unread.map(|unread| Action::Start { unread }));
            return;
        };
        match relay.stream {
            None => actions.push(Action::Connect),
            Some(_) if Self::next_commit(state, relay).is_some() => actions.push(Action::Receive),
            Some(_) => {}
        }
        if Self::keepalive_end(state, relay).is_some() {
            actions.push(Action::Keepalive);
        }
        for key in 0..KEYS {
            let flights = || relay.spans.iter().flat_map(|span| &span.events);
            let is_any = |flight| flights().any(|of| of.event.key == key && of.flight == flight);
            if is_any(Flight::Enqueued) {
                actions.push(Action::Append(key));
            }
            if is_any(Flight::Appended) {
                actions.push(Action::Ack(key));
            }
        }
        match relay.storing {
            Some(_) => actions.push(Action::Store),
            None if self.due(relay) != state.stored => actions.push(Action::BeginStore),
            None => {}
        }
        if relay.stream.is_some() && self.confirmable(state, relay) > state.confirmed {
            actions.push(Action::Confirm);
        }
    }

    fn next(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let taken = state.relay.take();
        let mut relay = taken.clone().unwrap_or_else(|| Relay::at(state.stored));
        match action {
            Action::Start { unread } => {
                relay.tails = state.tails(unread);
                state.relay = Some(relay);
                return Some(state);
            }
            Action::Connect => {
                relay.stream = Some(Stream {
                    from: state.confirmed,
                    row: 0,
                })
            }
            Action::Receive => {
                state.relay = taken;
                self.receive(&mut state)?;
                return Some(state);
            }
            Action::Keepalive => {
                self.keepalive(Self::keepalive_end(&state, &relay)?, &mut relay);
            }
            Action::Append(key) => Self::append(&mut state, &mut relay, key),
            Action::Ack(key) => self.ack(&mut relay, key),
            Action::BeginStore => relay.storing = Some(self.due(&relay)),
            Action::Store => state.stored = relay.storing.take()?,
            Action::Confirm => state.confirmed = self.confirmable(&state, &relay),
            Action::FlushSlot => state.flushed = state.confirmed,
            Action::Crash => {
                state.faults -= 1;
                return Some(state);
            }
            Action::LoseConnection => relay.stream = None,
            Action::RestartServer => {
                relay.stream = None;
                state.confirmed = state.flushed;
            }
            Action::FailProducer { unread } => {
                self.fail_producer(&mut relay);
                relay.tails = state.tails(unread);
            }
            Action::LoseStore => relay.storing = None,
        }
        if matches!(
            action,
            Action::LoseConnection
                | Action::RestartServer
                | Action::FailProducer { .. }
                | Action::LoseStore
        ) {
            state.faults -= 1;
        }
        state.relay = taken.map(|_| relay);
        Some(state)
    }

    fn is_fault(&self, action: Action) -> bool {
        matches!(
            action,
            Action::Crash
                | Action::LoseConnection
                | Action::RestartServer
                | Action::FailProducer { .. }
                | Action::LoseStore
                | Action::FlushSlot
        )
    }

    fn properties(&self) -> Vec<Property<State>> {
        vec![
            always(P1_STORED, |state: &State| {
                state.confirmed <= state.stored.end
            }),
            always(P1_DELIVERED, |state: &State| {
                let is_stored = |commit, event: Event| state.stored.has(commit, event.index);
                let mut events = state.committed();
                events.all(|(commit, event)| !is_stored(commit, event) || state.is_on_bus(event))
            }),
            always(P1_LOST, |state: &State| {
                let mut gone = state
                    .committed()
                    .filter(|(commit, _)| *commit < state.confirmed);
                gone.all(|(_, event)| state.is_on_bus(event))
            }),
            always(P2_FIRST, |state: &State| {
                let is_in_order = |key: usize| {
                    state
                        .of_key(key)
                        .starts_with(&first_arrivals(&state.bus[key]))
                };
                (0..KEYS).all(is_in_order)
            }),
            in_the_end(P2_LAST, |state| {
                let is_last = |key: usize| state.of_key(key).last() == state.bus[key].last();
                (0..KEYS).all(is_last)
            }),
            in_the_end(END, |state| {
                let all = || state.committed().all(|(_, event)| state.is_on_bus(event));
                let end = state.wal.len() as Lsn;
                let is_told = || state.stored == Position::at(end) && state.confirmed == end;
                all() && is_told()
            }),
            sometimes("a redelivery", |state: &State| {
                state.bus.iter().any(|topic| has_repeats(topic))
            }),
            sometimes("an event found in its topic", |state: &State| state.found),
            sometimes("a position inside a transaction", |state: &State| {
                state.stored.partial.is_some()
            }),
            sometimes(
                "commits in another order than their first rows",
                |state: &State| {
                    let commits: Vec<u16> = state.commits().map(|(_, of)| of).collect();
                    state.wal.first()
                        == Some(&Record::Row(Event {
                            transaction: 0,
                            index: 0,
                            key: 0,
                        }))
                        && commits.last() == Some(&0)
                        && commits.len() == ROWS.len()
                },
            ),
        ]
    }
}

/// Follows what one relay did that streams.
///
/// # Errors
///
/// Fails with a text where the model does not allow a step.
pub fn follow_slot(steps: &[Step]) -> Result<Reached, String> {
    let model = SlotModel { wrong: None };
    let begins = State::new(Vec::new(), None);
    let mut transaction = 0;
    // Events by their numbers; positions that were stored.
    let mut events: Vec<Event> = Vec::new();
    let mut was_stored = vec![0];
    // The place that is being stored.
    let mut storing = None;
    Follower::new(model, begins).walk(steps, |at, step| {
        // As many as there are.
        at.state.faults = u16::MAX;
        match step {
            Step::Row { key } => {
                let event = Event {
                    transaction,
                    index: at.state.rows(transaction).count() as u16,
                    key: usize::from(key),
                };
                events.push(event);
                at.state.wal.push(Record::Row(event));
                Ok(())
            }
            Step::Committed => {
                at.state.wal.push(Record::Commit(transaction));
                transaction += 1;
                Ok(())
            }
            Step::ProducerBegun {
                place,
                reads_topics,
                ..
            } => at.follow_producer(place, reads_topics),
            Step::Streams { .. } => at.take(Action::Connect),
            Step::Enqueued { event, .. } => at.follow_enqueued(events[usize::from(event)]),
            Step::Landed { event } => {
                let event = events[usize::from(event)];
                at.take(Action::Append(event.key))?;
                let landed = at.state.bus[event.key].last().copied();
                expect("what landed", Some(event), landed)
            }
            Step::StoreBegun {
                progress: Progress::Delivered(place),
                ..
            } => {
                storing = Some(at.follow_store(place)?);
                Ok(())
            }
            // Keepalives are not recorded: a position behind them is that of the transaction before.
            Step::Stored { .. } | Step::StoreLost { .. } if storing == Some(at.state.stored) => {
                storing = None;
                Ok(())
            }
            Step::Stored { .. } => {
                at.take(Action::Store)?;
                expect("what is stored", storing.take(), Some(at.state.stored))?;
                was_stored.push(at.state.stored.end);
                Ok(())
            }
            Step::StoreLost { .. } => {
                storing = None;
                at.take(Action::LoseStore)
            }
            Step::Confirmed { place, .. } => {
                let confirmed = at.state.position(place)?.end;
                at.follow_confirmed(confirmed, was_stored.contains(&confirmed))
            }
            Step::SlotFlushed => at.take_if_possible(Action::FlushSlot),
            Step::ServerCrashed => {
                at.take_if_possible(Action::RestartServer)?;
                at.take_if_possible(Action::LoseConnection)
            }
            Step::SessionEnded { .. } => at.take_if_possible(Action::LoseConnection),
            Step::Killed { .. } => at.take_if_possible(Action::Crash),
            // There is one relay.
            Step::TurnTaken { .. } | Step::SessionCut { .. } => Ok(()),
            Step::StoodBy { .. }
            | Step::Reads { .. }
            | Step::SlotMade { .. }
            | Step::SlotLost
            | Step::StoreBegun { .. } => Err("the model does not know this".to_owned()),
        }
    })
}

impl Follower<SlotModel> {
    /// A process begins behind what is stored, and one that goes on behind what it delivered.
    fn follow_producer(&mut self, place: Place, reads_topics: bool) -> Result<(), String> {
        let unread = match reads_topics {
            true => 0,
            false => self.state.longest_topic(),
        };
        if self.state.relay.is_none() {
            self.take(Action::Start { unread })?;
        } else {
            self.deliver(place)?;
            if self.may(Action::FailProducer { unread }) {
                self.take(Action::FailProducer { unread })?;
            }
        }
        let begins = self.state.relay.as_ref().map(|relay| relay.delivered);
        expect("where it begins", Some(self.state.position(place)?), begins)
    }

    /// The relay receives up to this event, and enqueues it.
    fn follow_enqueued(&mut self, event: Event) -> Result<(), String> {
        let next = |state: &State| {
            let relay = state.relay.as_ref()?;
            let last = relay.spans.last()?.events.last()?;
            Some(last.event).filter(|_| last.flight == Flight::Enqueued)
        };
        let before = next(&self.state);
        loop {
            self.take(Action::Receive)?;
            let enqueued = next(&self.state);
            if enqueued.is_some() && enqueued != before {
                return expect("what is enqueued", Some(event), enqueued);
            }
        }
    }

    /// The acks up to a place have come, and the ends of transactions.
    fn deliver(&mut self, place: Place) -> Result<(), String> {
        let position = self.state.position(place)?;
        while let Some(relay) = &self.state.relay
            && relay.delivered != position
        {
            let flights = |span: &Span| {
                let commit = span.commit;
                let numbered = (span.before..).zip(span.events.clone());
                numbered.map(move |(index, flying)| (commit, index, flying))
            };
            let spans = relay.spans.iter();
            let next = spans.flat_map(flights).find(|(commit, index, flying)| {
                position.has(*commit, *index) && flying.flight != Flight::Acked
            });
            match next {
                Some((_, _, flying)) => {
                    expect("what is stored", flying.flight, Flight::Appended)?;
                    self.take(Action::Ack(flying.event.key))?;
                }
                None => self.take(Action::Receive)?,
            }
        }
        Ok(())
    }

    /// Gives the position that is stored.
    fn follow_store(&mut self, place: Place) -> Result<Position, String> {
        self.deliver(place)?;
        let position = self.state.position(place)?;
        if position != self.state.stored {
            self.take(Action::BeginStore)?;
        }
        Ok(position)
    }

    /// An update of the status may tell of an earlier store.
    fn follow_confirmed(&mut self, confirmed: Lsn, was_stored: bool) -> Result<(), String> {
        let relay = self.state.relay.as_ref();
        let streams = relay.is_some_and(|relay| relay.stream.is_some());
        expect("it streams", true, streams)?;
        if confirmed <= self.state.confirmed {
            return Ok(());
        }
        if !was_stored {
            return Err(format!("{confirmed} is confirmed, and was never stored"));
        }
        self.take(Action::Confirm)?;
        self.lower(|state| state.confirmed = confirmed)
    }
}

const P1_STORED: &str = "P1: what is confirmed is stored";
const P1_DELIVERED: &str = "P1: what is stored is delivered";
const P1_LOST: &str = "P1: what the slot does not send again is in the bus";
const P2_FIRST: &str = "P2: events of a key arrive first in commit order";
const P2_LAST: &str = "P2: the newest event of a key comes last";
const END: &str = "in the end all that is committed is delivered, stored and confirmed";

#[test]
fn a_relay_that_streams_keeps_its_promises() {
    holds("slot", &SlotModel { wrong: None });
}

#[test]
fn wrong_rules_of_a_relay_that_streams_break_a_promise() {
    for (wrong, property) in [
        (Wrong::ConfirmedWhenAcked, P1_STORED),
        (Wrong::ConfirmedWhenReceived, P1_LOST),
        (Wrong::ConfirmedWhenStoreBegins, P1_STORED),
        (Wrong::AcksNotContiguous, P1_DELIVERED),
        (Wrong::StoredBeforeTheAck, P1_DELIVERED),
        (Wrong::KeepaliveOvertakesEvents, P1_DELIVERED),
        (Wrong::FilteredByTheLsnOfTheRow, P1_LOST),
        (Wrong::FilterTakesTheNextTransaction, END),
        (Wrong::PartialCountsOneTooMany, P1_LOST),
        (Wrong::FailureTakenForAnAck, P1_LOST),
        (Wrong::FoundBehindOneThatIsPublishedAgain, P2_LAST),
    ] {
        breaks(wrong, &SlotModel { wrong: Some(wrong) }, property);
    }
}
