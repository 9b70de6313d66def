//! Marks of rows, and parked events: what a position waits for, and what a retry may send.
//!
//! Three events of one key and one of another. The bus refuses some of them until an operator
//! mends that, or drops the event. The process crashes once.

use crate::check::{Model, Property, always, breaks, holds, in_the_end, sometimes};
use crate::world::{Set, first_arrivals, has_repeats};

/// The key of each event, in the order of the commits.
const KEY: [u8; 4] = [0, 0, 1, 0];
const EVENTS: u8 = KEY.len() as u8;

/// What became of an event that the relay took in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Fate {
    Sent,
    Acked,
    /// To be parked.
    Parked,
    /// It is parked already.
    Waits,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Relay {
    /// The first event that is not delivered.
    delivered: u8,
    /// Those behind it that were taken in.
    fates: Vec<Fate>,
    /// Rows to mark, and events to write to the table of parked ones, in order.
    marks: Vec<u8>,
    parks: Vec<u8>,
    /// The index of parked events, which has those that are still to be written.
    index: Set,
    /// A retry is on its way, or acked and not yet removed.
    retry: Option<Retry>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Retry {
    event: u8,
    is_acked: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    bus: Vec<u8>,
    stored: u8,
    /// The rows that are marked.
    marked: Set,
    /// The table of parked events.
    parked: Set,
    dropped: Set,
    /// The events that the bus refuses.
    refused: Set,
    relay: Option<Relay>,
    crashes: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Start,
    Receive,
    Ack(u8),
    Mark,
    Park,
    Store,
    Retry(u8),
    AckRetry,
    Remove,
    Mend(u8),
    Drop(u8),
    Crash,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    /// `42-stored-before-the-rows-are-marked`
    StoredBeforeTheMarks,
    StoredBeforeTheParkedEvents,
    MarkedBeforeTheAck,
    /// `46-later-events-overtake-one-that-waits`
    LaterEventsOvertakeOneThatWaits,
    /// `50-a-copy-behind-events-that-wait`
    ACopyBehindEventsThatWait,
    RetriedBeforeThoseInFront,
    RemovedBeforeTheAck,
    ReleasedBeforeItIsDelivered,
    /// `60-retried-before-the-position-is-stored`
    RetriedBesideACopy,
    /// `59-dropped-before-the-position-is-stored`
    DroppedBeforeThePositionIsStored,
}

#[derive(Clone)]
struct ParkingModel {
    wrong: Option<Wrong>,
}

impl Relay {
    fn at(stored: u8, index: Set) -> Relay {
        Relay {
            delivered: stored,
            fates: Vec::new(),
            marks: Vec::new(),
            parks: Vec::new(),
            index,
            retry: None,
        }
    }

    /// The event that is taken in next.
    fn next(&self) -> u8 {
        self.delivered + self.fates.len() as u8
    }

    fn fate(&self, event: u8) -> Option<Fate> {
        let at = event.checked_sub(self.delivered)?;
        self.fates.get(usize::from(at)).copied()
    }
}

fn key(event: u8) -> u8 {
    KEY[usize::from(event)]
}

/// The members that have the key of `event`.
fn of_key(set: Set, event: u8) -> impl Iterator<Item = u8> {
    (0..EVENTS).filter(move |other| set.has(*other) && key(*other) == key(event))
}

impl State {
    fn is_settled(&self, event: u8) -> bool {
        self.bus.contains(&event) || self.parked.has(event) || self.dropped.has(event)
    }

    fn of_key(&self, of: u8) -> Vec<u8> {
        self.bus
            .iter()
            .copied()
            .filter(|event| key(*event) == of)
            .collect()
    }
}

impl ParkingModel {
    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    /// Whether the event has to be parked: it is, or an earlier one of its key is.
    fn must_park(&self, relay: &Relay, event: u8) -> bool {
        let mut waiting = of_key(relay.index, event);
        if self.is(Wrong::LaterEventsOvertakeOneThatWaits) {
            return false;
        }
        if self.is(Wrong::ACopyBehindEventsThatWait) {
            return waiting.next().is_some();
        }
        waiting.any(|other| other <= event)
    }

    /// Everything before it is delivered and written back.
    fn completed(&self, relay: &Relay) -> u8 {
        let parks = relay
            .parks
            .iter()
            .filter(|_| !self.is(Wrong::StoredBeforeTheParkedEvents));
        let marks = relay
            .marks
            .iter()
            .filter(|_| !self.is(Wrong::StoredBeforeTheMarks));
        parks.chain(marks).copied().min().unwrap_or(relay.delivered)
    }

    fn receive(&self, relay: &mut Relay) {
        let event = relay.next();
        let fate = if relay.index.has(event) {
            Fate::Waits
        } else if self.must_park(relay, event) {
            Fate::Parked
        } else {
            Fate::Sent
        };
        relay.fates.push(fate);
        if fate == Fate::Parked {
            relay.index = relay.index.with(event);
        }
        if self.is(Wrong::MarkedBeforeTheAck) && fate == Fate::Sent {
            relay.marks.push(event);
        }
        self.advance(relay);
    }

    /// Queues the writes of the longest prefix of events whose fate is known.
    fn advance(&self, relay: &mut Relay) {
        while let Some(fate) = relay.fates.first().filter(|fate| **fate != Fate::Sent) {
            match fate {
                Fate::Waits => {}
                Fate::Parked => relay.parks.push(relay.delivered),
                Fate::Acked if self.is(Wrong::MarkedBeforeTheAck) => {}
                Fate::Sent | Fate::Acked => relay.marks.push(relay.delivered),
            }
            relay.fates.remove(0);
            relay.delivered += 1;
        }
    }

    /// The bus takes the event, or refuses it: then those behind it in its lane are parked, too.
    fn ack(&self, state: &mut State, relay: &mut Relay, event: u8) {
        let is_refused = state.refused.has(event);
        let first = relay.delivered;
        for (other, fate) in (first..).zip(&mut relay.fates) {
            let is_behind = other > event && key(other) == key(event);
            let overtakes = self.is(Wrong::LaterEventsOvertakeOneThatWaits);
            if other == event || is_refused && is_behind && !overtakes {
                *fate = if is_refused {
                    Fate::Parked
                } else {
                    Fate::Acked
                };
                if is_refused {
                    relay.index = relay.index.with(other);
                }
            }
        }
        if !is_refused {
            state.bus.push(event);
        }
        self.advance(relay);
    }

    fn retries(&self, state: &State, relay: &Relay, actions: &mut Vec<Action>) {
        match relay.retry {
            Some(Retry { is_acked: true, .. }) => actions.push(Action::Remove),
            Some(Retry {
                is_acked: false,
                event,
            }) => {
                let early = self.is(Wrong::RemovedBeforeTheAck) && state.parked.has(event);
                actions.push(if early {
                    Action::Remove
                } else {
                    Action::AckRetry
                });
            }
            None => {
                let due = |event: &u8| {
                    let mut waiting = of_key(relay.index, *event);
                    let copies = self.is(Wrong::ACopyBehindEventsThatWait);
                    let is_copy = |other| copies && state.bus.contains(&other);
                    let is_head = waiting.all(|other| other >= *event || is_copy(other));
                    let is_stored = state.stored > *event || self.is(Wrong::RetriedBesideACopy);
                    let is_due = is_head && is_stored || self.is(Wrong::RetriedBeforeThoseInFront);
                    state.parked.has(*event) && is_due && !state.refused.has(*event)
                };
                actions.extend((0..EVENTS).filter(due).map(Action::Retry));
            }
        }
    }

    /// The parked event is removed and its row marked, in one transaction; then the index knows.
    fn remove(&self, state: &mut State, relay: &mut Relay) -> Option<()> {
        let Retry { event, is_acked } = relay.retry?;
        state.parked = state.parked.without(event);
        state.marked = state.marked.with(event);
        if is_acked {
            relay.retry = None;
            relay.index = relay.index.without(event);
        }
        Some(())
    }

    fn ack_retry(&self, state: &mut State, relay: &mut Relay) -> Option<()> {
        let retry = relay.retry.as_mut()?;
        retry.is_acked = true;
        state.bus.push(retry.event);
        Some(())
    }
}

impl Model for ParkingModel {
    type State = State;
    type Action = Action;

    fn begins(&self) -> Vec<State> {
        let state = |refused| State {
            bus: Vec::new(),
            stored: 0,
            marked: Set::default(),
            parked: Set::default(),
            dropped: Set::default(),
            refused,
            relay: Some(Relay::at(0, Set::default())),
            crashes: 1,
        };
        let none = Set::default();
        vec![
            state(none),
            state(none.with(0)),
            state(none.with(1)),
            state(none.with(1).with(3)),
        ]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let Some(relay) = &state.relay else {
            actions.push(Action::Start);
            return;
        };
        if relay.next() < EVENTS {
            actions.push(Action::Receive);
        }
        for event in 0..EVENTS {
            // One record of a key is on its way.
            let mut before = (0..event).filter(|other| key(*other) == key(event));
            let is_first = before.all(|other| relay.fate(other) != Some(Fate::Sent));
            if relay.fate(event) == Some(Fate::Sent) && is_first {
                actions.push(Action::Ack(event));
            }
            if state.refused.has(event) && state.parked.has(event) {
                actions.push(Action::Mend(event));
                let early = self.is(Wrong::DroppedBeforeThePositionIsStored);
                if relay.retry.is_none() && (state.stored > event || early) {
                    actions.push(Action::Drop(event));
                }
            }
        }
        if !relay.marks.is_empty() {
            actions.push(Action::Mark);
        }
        if !relay.parks.is_empty() {
            actions.push(Action::Park);
        }
        if self.completed(relay) > state.stored {
            actions.push(Action::Store);
        }
        self.retries(state, relay, actions);
        if state.crashes > 0 {
            actions.push(Action::Crash);
        }
    }

    fn next(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let running = state.relay.take();
        if action == Action::Start {
            state.relay = Some(Relay::at(state.stored, state.parked));
            return Some(state);
        }
        let mut relay = running?;
        match action {
            Action::Start => return None,
            Action::Receive => self.receive(&mut relay),
            Action::Ack(event) => self.ack(&mut state, &mut relay, event),
            Action::Mark => state.marked = state.marked.with(relay.marks.remove(0)),
            Action::Park => state.parked = state.parked.with(relay.parks.remove(0)),
            Action::Store => state.stored = self.completed(&relay),
            Action::Retry(event) => {
                relay.retry = Some(Retry {
                    event,
                    is_acked: false,
                });
                if self.is(Wrong::ReleasedBeforeItIsDelivered) {
                    relay.index = relay.index.without(event);
                }
            }
            Action::AckRetry => self.ack_retry(&mut state, &mut relay)?,
            Action::Remove => self.remove(&mut state, &mut relay)?,
            Action::Mend(event) => state.refused = state.refused.without(event),
            Action::Drop(event) => {
                state.dropped = state.dropped.with(event);
                state.marked = state.marked.with(event);
                state.parked = state.parked.without(event);
                relay.index = relay.index.without(event);
            }
            Action::Crash => {
                state.crashes -= 1;
                return Some(state);
            }
        }
        state.relay = Some(relay);
        Some(state)
    }

    fn is_fault(&self, action: Action) -> bool {
        action == Action::Crash
    }

    fn properties(&self) -> Vec<Property<State>> {
        vec![
            always(P3, |state: &State| {
                (0..state.stored).all(|event| state.is_settled(event))
            }),
            always(P13, |state: &State| {
                let written = |event| state.marked.has(event) || state.parked.has(event);
                (0..state.stored).all(written)
            }),
            always(P13_MARKED, |state: &State| {
                let is_given = |event| state.bus.contains(&event) || state.dropped.has(event);
                (0..EVENTS).all(|event| !state.marked.has(event) || is_given(event))
            }),
            always(P2_FIRST, |state: &State| {
                (0..2).all(|of| first_arrivals(&state.of_key(of)).is_sorted())
            }),
            in_the_end(P2_LAST, |state: &State| {
                (0..2).all(|of| state.of_key(of).last() == state.of_key(of).iter().max())
            }),
            in_the_end(END, |state: &State| {
                let is_given = |event| state.bus.contains(&event) || state.dropped.has(event);
                state.stored == EVENTS
                    && state.parked.is_empty()
                    && (0..EVENTS).all(|event| state.marked.has(event) && is_given(event))
            }),
            sometimes("a redelivery", |state: &State| has_repeats(&state.bus)),
            sometimes("an event behind a parked one", |state: &State| {
                state.parked.has(1) && state.parked.has(3) && !state.refused.has(3)
            }),
            sometimes("a dropped event", |state: &State| !state.dropped.is_empty()),
            sometimes("a retry that delivers", |state: &State| {
                state
                    .relay
                    .as_ref()
                    .is_some_and(|relay| relay.retry.is_some_and(|retry| retry.is_acked))
            }),
        ]
    }
}

const P2_FIRST: &str = "P2: events of a key arrive first in commit order";
const P2_LAST: &str = "P2: the newest event of a key comes last";
const P3: &str = "P3: no event before the stored position is skipped";
const P13: &str = "P13: events before the stored position are written back";
const P13_MARKED: &str = "P13: no row is marked whose event is neither published nor dropped";
const END: &str = "in the end every event is delivered or dropped, and its row is marked";

#[test]
fn marks_and_parked_events_keep_the_promises() {
    holds("parking", &ParkingModel { wrong: None });
}

#[test]
fn wrong_rules_of_marks_and_parked_events_break_a_promise() {
    for (wrong, property) in [
        (Wrong::StoredBeforeTheMarks, P13),
        (Wrong::StoredBeforeTheParkedEvents, P3),
        (Wrong::MarkedBeforeTheAck, P13_MARKED),
        (Wrong::LaterEventsOvertakeOneThatWaits, P2_FIRST),
        (Wrong::ACopyBehindEventsThatWait, P2_LAST),
        (Wrong::RetriedBeforeThoseInFront, P2_FIRST),
        (Wrong::RemovedBeforeTheAck, P13_MARKED),
        (Wrong::ReleasedBeforeItIsDelivered, P2_FIRST),
        (Wrong::RetriedBesideACopy, P2_LAST),
        (Wrong::DroppedBeforeThePositionIsStored, P2_FIRST),
    ] {
        breaks(wrong, &ParkingModel { wrong: Some(wrong) }, property);
    }
}
