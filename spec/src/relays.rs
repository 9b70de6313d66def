//! Two relays of one slot: the slot and the lease decide which one is at work.
//!
//! The events are of one key, and commit one after another. The first relay makes the slot, reads
//! the rows of before from the table, and streams. A relay can crash, or stand still while the
//! server ends its session; what it sent before can arrive late, or never.

use crate::check::{Model, Property, always, breaks, holds, in_the_end, sometimes};
use crate::world::{first_arrivals, has_repeats};

/// Event `n` is the one of commit `n`, so that a position is a number of events.
const EVENTS: u8 = 3;
const RELAYS: usize = 2;

/// What a relay is at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Work {
    /// It looks, and waits for slot or lease.
    StandsBy,
    /// It has the lease alone, and reads these rows of the table.
    Reads { next: u8, until: u8 },
    /// It has the slot, and what it delivered.
    Streams { delivered: u8 },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Relay {
    work: Work,
    /// Its one record on the way to the bus.
    sent: Option<u8>,
    /// It stood still for so long that the server ended its session.
    stood_still: bool,
    /// What it read of the store too early.
    read: Option<Stored>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Stored {
    position: u8,
    /// The rows that are to be read before the slot is streamed: up to this one.
    catch_up: Option<u8>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    committed: u8,
    bus: Vec<u8>,
    /// The confirmed position of the slot.
    slot: Option<u8>,
    stored: Stored,
    relays: [Relay; RELAYS],
    /// Records of sessions that ended, and may still arrive.
    late: Vec<u8>,
    faults: u8,
    /// The server found a slot or a lease taken.
    has_refused: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Commit,
    LookEarly(usize),
    MakeSlot(usize),
    GoOn(usize),
    Stream(usize),
    Send(usize),
    Ack(usize),
    Store(usize),
    Confirm(usize),
    Crash(usize),
    StandStill(usize),
    Notice(usize),
    ArriveLate,
    LoseLate,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    LeaseNotTaken,
    /// The position is read before slot or lease is had.
    PositionReadBeforeTheLease,
    /// A relay goes on after its session was ended.
    StandstillNotNoticed,
    /// The slot is had, and another streams from it.
    SlotShared,
}

#[derive(Clone)]
struct RelaysModel {
    wrong: Option<Wrong>,
}

impl State {
    fn others(&self, relay: usize) -> impl Iterator<Item = &Relay> {
        let others = self
            .relays
            .iter()
            .enumerate()
            .filter(move |(other, _)| *other != relay);
        // The server ended the sessions of those that stood still.
        others
            .map(|(_, other)| other)
            .filter(|other| !other.stood_still)
    }

    fn at_work(&self) -> impl Iterator<Item = &Relay> {
        let is_at_work = |relay: &&Relay| relay.work != Work::StandsBy && !relay.stood_still;
        self.relays.iter().filter(is_at_work)
    }
}

impl RelaysModel {
    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    fn may_read(&self, state: &State, relay: usize) -> bool {
        let is_free = state
            .others(relay)
            .all(|other| other.work == Work::StandsBy);
        is_free || self.is(Wrong::LeaseNotTaken)
    }

    fn may_stream(&self, state: &State, relay: usize) -> bool {
        let streams = |other: &Relay| matches!(other.work, Work::Streams { .. });
        let reads = |other: &Relay| matches!(other.work, Work::Reads { .. });
        let is_free = !state.others(relay).any(streams) || self.is(Wrong::SlotShared);
        is_free && (!state.others(relay).any(reads) || self.is(Wrong::LeaseNotTaken))
    }

    /// What a relay that stands by may do, which knows `stored`.
    fn begin(&self, state: &State, relay: usize, stored: Stored, actions: &mut Vec<Action>) {
        match (state.slot, stored.catch_up) {
            (None, _) if self.may_read(state, relay) => actions.push(Action::MakeSlot(relay)),
            (Some(_), Some(_)) if self.may_read(state, relay) => {
                actions.push(Action::GoOn(relay));
            }
            (Some(_), None) if self.may_stream(state, relay) => {
                actions.push(Action::Stream(relay));
            }
            _ => {}
        }
    }

    fn of_relay(&self, state: &State, number: usize, actions: &mut Vec<Action>) {
        let relay = &state.relays[number];
        if relay.stood_still && !self.is(Wrong::StandstillNotNoticed) {
            actions.push(Action::Notice(number));
            return;
        }
        match (relay.work, relay.sent) {
            (Work::StandsBy, _) => {
                let early = self.is(Wrong::PositionReadBeforeTheLease);
                if early && relay.read.is_none() {
                    actions.push(Action::LookEarly(number));
                } else {
                    self.begin(state, number, relay.read.unwrap_or(state.stored), actions);
                }
            }
            (_, Some(_)) => actions.push(Action::Ack(number)),
            (Work::Reads { next, until }, None) if next < until => {
                actions.push(Action::Send(number));
            }
            (Work::Reads { .. }, None) => actions.push(Action::Store(number)),
            (Work::Streams { delivered }, None) => {
                if delivered < state.committed {
                    actions.push(Action::Send(number));
                }
                if delivered != state.stored.position {
                    actions.push(Action::Store(number));
                }
                let confirmed = state.slot.unwrap_or_default();
                if state.stored.position > confirmed && !relay.stood_still {
                    actions.push(Action::Confirm(number));
                }
            }
        }
        if state.faults > 0 && relay.work != Work::StandsBy {
            actions.extend([Action::Crash(number), Action::StandStill(number)]);
        }
    }

    fn store(&self, state: &mut State, number: usize) {
        state.stored.catch_up = None;
        match state.relays[number].work {
            Work::StandsBy => {}
            Work::Reads { until, .. } => {
                state.stored.position = until;
                state.relays[number].work = Work::StandsBy;
            }
            Work::Streams { delivered } => state.stored.position = delivered,
        }
    }

    fn ended() -> Relay {
        Relay {
            work: Work::StandsBy,
            sent: None,
            stood_still: false,
            read: None,
        }
    }
}

impl Model for RelaysModel {
    type State = State;
    type Action = Action;

    fn begins(&self) -> Vec<State> {
        vec![State {
            committed: 0,
            bus: Vec::new(),
            slot: None,
            stored: Stored::default(),
            relays: [Self::ended(), Self::ended()],
            late: Vec::new(),
            faults: 2,
            has_refused: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.committed < EVENTS {
            actions.push(Action::Commit);
        }
        if !state.late.is_empty() {
            actions.extend([Action::ArriveLate, Action::LoseLate]);
        }
        (0..RELAYS).for_each(|relay| self.of_relay(state, relay, actions));
    }

    fn next(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Commit => state.committed += 1,
            Action::LookEarly(of) => state.relays[of].read = Some(state.stored),
            Action::MakeSlot(of) => {
                let until = state.committed;
                state.slot = Some(until);
                state.stored = Stored {
                    position: until,
                    catch_up: Some(until),
                };
                state.relays[of].work = Work::Reads { next: 0, until };
            }
            Action::GoOn(of) => {
                let known = state.relays[of].read.take().unwrap_or(state.stored);
                let until = known.catch_up?;
                state.relays[of].work = Work::Reads { next: 0, until };
            }
            Action::Stream(of) => {
                let known = state.relays[of].read.take().unwrap_or(state.stored);
                let delivered = known.position;
                state.relays[of].work = Work::Streams { delivered };
            }
            Action::Send(of) => match state.relays[of].work {
                Work::StandsBy => return None,
                Work::Reads { next, .. } => state.relays[of].sent = Some(next),
                Work::Streams { delivered } => state.relays[of].sent = Some(delivered),
            },
            Action::Ack(of) => {
                state.bus.push(state.relays[of].sent.take()?);
                match &mut state.relays[of].work {
                    Work::StandsBy => return None,
                    Work::Reads {
                        next: delivered, ..
                    }
                    | Work::Streams { delivered } => {
                        *delivered += 1;
                    }
                }
            }
            Action::Store(of) => self.store(&mut state, of),
            Action::Confirm(_) => state.slot = Some(state.stored.position),
            Action::Crash(of) => {
                state.faults -= 1;
                state.late.extend(state.relays[of].sent);
                state.relays[of] = Self::ended();
            }
            Action::StandStill(of) => {
                state.faults -= 1;
                state.relays[of].stood_still = true;
            }
            Action::Notice(of) => {
                state.late.extend(state.relays[of].sent);
                state.relays[of] = Self::ended();
            }
            Action::ArriveLate => state.bus.push(state.late.remove(0)),
            Action::LoseLate => {
                state.late.remove(0);
            }
        }
        state.has_refused |= state.at_work().count() == 1
            && state
                .relays
                .iter()
                .any(|relay| relay.work == Work::StandsBy);
        Some(state)
    }

    fn is_fault(&self, action: Action) -> bool {
        matches!(action, Action::Crash(_) | Action::StandStill(_))
    }

    fn properties(&self) -> Vec<Property<State>> {
        vec![
            always(P12, |state| state.at_work().count() <= 1),
            always(P1_STORED, |state| {
                let read = state.stored.catch_up.is_some();
                read || state.slot.unwrap_or_default() <= state.stored.position
            }),
            always(P1_LOST, |state| {
                let confirmed = state.slot.unwrap_or_default();
                let offered = state.stored.catch_up.unwrap_or_default();
                (offered..confirmed).all(|event| state.bus.contains(&event))
            }),
            always(P2_FIRST, |state| {
                first_arrivals(&state.bus)
                    .into_iter()
                    .eq(0..state.in_order())
            }),
            in_the_end(END, |state| {
                (0..EVENTS).all(|event| state.bus.contains(&event)) && state.slot == Some(EVENTS)
            }),
            sometimes("a redelivery", |state| has_repeats(&state.bus)),
            sometimes("a record that arrives late", |state| {
                state.late.is_empty() && state.bus.windows(2).any(|pair| pair[0] > pair[1])
            }),
            sometimes("a stand-by", |state| state.has_refused),
            sometimes("a hand-over to the slot", |state| {
                let streams = |relay: &Relay| matches!(relay.work, Work::Streams { .. });
                state.relays.iter().any(streams) && state.slot > Some(0)
            }),
        ]
    }
}

impl State {
    fn in_order(&self) -> u8 {
        first_arrivals(&self.bus).len() as u8
    }
}

const P1_STORED: &str = "P1: what is confirmed is stored";
const P1_LOST: &str = "P1: what neither slot nor table offers is in the bus";
const P2_FIRST: &str = "P2: events of a key arrive first in commit order";
const P12: &str = "P12: one relay is at work";
const END: &str = "in the end all that is committed is delivered and confirmed";

#[test]
fn two_relays_keep_the_promises() {
    holds("relays", &RelaysModel { wrong: None });
}

#[test]
fn wrong_rules_of_two_relays_break_a_promise() {
    for (wrong, property) in [
        (Wrong::LeaseNotTaken, P12),
        (Wrong::PositionReadBeforeTheLease, P1_STORED),
        (Wrong::StandstillNotNoticed, P1_STORED),
        (Wrong::SlotShared, P12),
    ] {
        breaks(wrong, &RelaysModel { wrong: Some(wrong) }, property);
    }
}
