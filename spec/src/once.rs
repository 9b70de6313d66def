//! Exactly-once: events and the position after them are one transaction of the bus, and a producer
//! fences all before it.
//!
//! Two relays. One that stands still goes on later, with the producer it had. A commit request can
//! get lost, or arrive twice, the second time late.

use crate::check::{Model, Property, always, in_the_end, sometimes};
#[cfg(test)]
use crate::check::{breaks, holds};
use crate::trace::{Events, Follower, Progress, Reached, Step, expect};
use crate::world::has_repeats;

/// Event `n` is the one of commit `n`, so that a position is a number of events.
const EVENTS: u16 = 2;
const RELAYS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Outcome {
    Open,
    Committed,
    Aborted,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Record {
    event: u16,
    outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Work {
    StandsBy,
    /// It has the slot, and a producer of this epoch or a position, if any.
    Begins {
        epoch: Option<u16>,
        position: Option<u16>,
    },
    Streams(Streaming),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Streaming {
    epoch: u16,
    /// The events that the producer took.
    sent: u16,
    /// The position that is committed, as far as this relay knows.
    committed: u16,
    /// A commit was requested, and is not answered.
    waits: bool,
    /// A second copy of the request may arrive.
    is_repeated: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Relay {
    work: Work,
    /// The server ended its session, and it does not know.
    stood_still: bool,
}

/// The bus: one topic, the committed position, and the open transaction of the id.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Bus {
    topic: Vec<Record>,
    position: u16,
    /// The position in the open transaction.
    pending: Option<u16>,
    epoch: u16,
    /// The epochs of commit requests on their way.
    requests: Vec<u16>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    committed: u16,
    confirmed: u16,
    bus: Bus,
    relays: [Relay; RELAYS],
    faults: u16,
    /// The bus rejected a producer.
    has_fenced: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Write,
    TakeSlot(usize),
    Fence(usize),
    ReadPosition(usize),
    Stream(usize),
    Produce(usize),
    Commit(usize),
    StorePosition(usize),
    Handle,
    GiveUp(usize),
    Confirm(usize),
    Crash(usize),
    StandStill(usize),
    Notice(usize),
    Repeat(usize),
    LoseRequest,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    FenceNotTaken,
    PositionReadBeforeTheFence,
    PositionStoredBesideTheTransaction,
    RecordsOfAbortedTransactionsCount,
    ConfirmedBeforeTheCommit,
    /// `47-another-transaction-behind-a-commit-that-may-come-late`
    AnotherTransactionBehindALateCommit,
}

#[derive(Clone)]
struct OnceModel {
    /// How many events are written at most.
    events: u16,
    wrong: Option<Wrong>,
}

impl Bus {
    fn end_transaction(&mut self, outcome: Outcome) {
        let open = self
            .topic
            .iter_mut()
            .filter(|record| record.outcome == Outcome::Open);
        open.for_each(|record| record.outcome = outcome);
        let pending = self.pending.take();
        if outcome == Outcome::Committed {
            self.position = pending.unwrap_or(self.position);
        }
    }

    /// What a consumer has that reads only committed records.
    fn read_committed(&self) -> Vec<u16> {
        let committed = self
            .topic
            .iter()
            .filter(|record| record.outcome == Outcome::Committed);
        committed.map(|record| record.event).collect()
    }
}

impl Default for OnceModel {
    fn default() -> OnceModel {
        OnceModel {
            events: EVENTS,
            wrong: None,
        }
    }
}

impl OnceModel {
    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    fn begin(&self, number: usize, work: Work, actions: &mut Vec<Action>) {
        let Work::Begins { epoch, position } = work else {
            return;
        };
        let early = self.is(Wrong::PositionReadBeforeTheFence);
        actions.push(match (epoch, position) {
            (Some(_), Some(_)) => Action::Stream(number),
            (None, None) if early => Action::ReadPosition(number),
            (None, _) => Action::Fence(number),
            (Some(_), None) => Action::ReadPosition(number),
        });
    }

    fn stream(&self, state: &State, number: usize, of: Streaming, actions: &mut Vec<Action>) {
        let beside = self.is(Wrong::PositionStoredBesideTheTransaction);
        let goes_on = self.is(Wrong::AnotherTransactionBehindALateCommit);
        let is_over = of.is_repeated && !of.waits && !goes_on;
        let is_lost = of.waits && !state.bus.requests.contains(&of.epoch);
        if is_over || is_lost {
            actions.push(Action::GiveUp(number));
        } else if !of.waits {
            if of.sent < state.committed {
                actions.push(Action::Produce(number));
            }
            if of.sent > of.committed {
                actions.push(Action::Commit(number));
            }
        } else if state.faults > 0 {
            actions.push(Action::LoseRequest);
            if !of.is_repeated {
                actions.push(Action::Repeat(number));
            }
        }
        if beside && of.committed > state.bus.position {
            actions.push(Action::StorePosition(number));
        }
        let confirmable = self.confirmable(state, of);
        if confirmable > state.confirmed && !state.relays[number].stood_still {
            actions.push(Action::Confirm(number));
        }
    }

    fn confirmable(&self, state: &State, of: Streaming) -> u16 {
        if self.is(Wrong::ConfirmedBeforeTheCommit) {
            of.sent
        } else if self.is(Wrong::PositionStoredBesideTheTransaction) {
            of.committed.min(state.bus.position)
        } else {
            of.committed
        }
    }

    /// A producer sends, or is rejected.
    fn send(&self, state: &mut State, number: usize, commits: bool) -> Option<()> {
        let Work::Streams(mut of) = state.relays[number].work else {
            return None;
        };
        if of.epoch != state.bus.epoch {
            state.has_fenced = true;
            state.relays[number] = STANDS_BY;
            return Some(());
        }
        if commits {
            of.waits = true;
            if !self.is(Wrong::PositionStoredBesideTheTransaction) {
                state.bus.pending = Some(of.sent);
            }
            state.bus.requests.push(of.epoch);
        } else {
            let outcome = Outcome::Open;
            state.bus.topic.push(Record {
                event: of.sent,
                outcome,
            });
            of.sent += 1;
        }
        state.relays[number].work = Work::Streams(of);
        Some(())
    }

    /// The bus gets a commit request, and answers the producer that waits for it.
    fn handle(state: &mut State) {
        let epoch = state.bus.requests.remove(0);
        if epoch != state.bus.epoch {
            state.has_fenced = true;
            return;
        }
        state.bus.end_transaction(Outcome::Committed);
        for relay in &mut state.relays {
            if let Work::Streams(of) = &mut relay.work
                && of.epoch == epoch
                && of.waits
            {
                of.waits = false;
                of.committed = of.sent;
            }
        }
    }

    fn open(&self, state: &mut State, number: usize, action: Action) -> Option<()> {
        let relay = &mut state.relays[number];
        let Work::Begins { epoch, position } = relay.work else {
            return None;
        };
        relay.work = match action {
            Action::Fence(_) => {
                if !self.is(Wrong::FenceNotTaken) {
                    state.bus.epoch += 1;
                    state.bus.end_transaction(Outcome::Aborted);
                }
                Work::Begins {
                    epoch: Some(state.bus.epoch),
                    position,
                }
            }
            Action::ReadPosition(_) => {
                let counted = self.is(Wrong::RecordsOfAbortedTransactionsCount);
                let last = state.bus.topic.last().map_or(0, |record| record.event + 1);
                let read = if counted { last } else { 0 }.max(state.bus.position);
                Work::Begins {
                    epoch,
                    position: Some(read),
                }
            }
            _ => Work::Streams(Streaming {
                epoch: epoch?,
                sent: position?,
                committed: position?,
                waits: false,
                is_repeated: false,
            }),
        };
        Some(())
    }
}

const STANDS_BY: Relay = Relay {
    work: Work::StandsBy,
    stood_still: false,
};

impl Model for OnceModel {
    type State = State;
    type Action = Action;

    fn begins(&self) -> Vec<State> {
        vec![State {
            committed: 0,
            confirmed: 0,
            bus: Bus::default(),
            relays: [STANDS_BY; RELAYS],
            faults: 2,
            has_fenced: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.committed < self.events {
            actions.push(Action::Write);
        }
        if !state.bus.requests.is_empty() {
            actions.push(Action::Handle);
        }
        for (number, relay) in state.relays.iter().enumerate() {
            let has_slot = |other: &Relay| other.work != Work::StandsBy && !other.stood_still;
            match relay.work {
                Work::StandsBy if !state.relays.iter().any(has_slot) => {
                    actions.push(Action::TakeSlot(number));
                }
                Work::StandsBy => {}
                Work::Begins { .. } => self.begin(number, relay.work, actions),
                Work::Streams(of) => self.stream(state, number, of, actions),
            }
            if relay.stood_still {
                actions.push(Action::Notice(number));
            }
            if state.faults > 0 && relay.work != Work::StandsBy {
                actions.push(Action::Crash(number));
                if !relay.stood_still {
                    actions.push(Action::StandStill(number));
                }
            }
        }
    }

    fn next(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Write => state.committed += 1,
            Action::TakeSlot(of) => {
                state.relays[of].work = Work::Begins {
                    epoch: None,
                    position: None,
                };
            }
            Action::Fence(of) | Action::ReadPosition(of) | Action::Stream(of) => {
                self.open(&mut state, of, action)?;
            }
            Action::Produce(of) => self.send(&mut state, of, false)?,
            Action::Commit(of) => self.send(&mut state, of, true)?,
            Action::StorePosition(of) | Action::Confirm(of) => {
                let Work::Streams(streaming) = state.relays[of].work else {
                    return None;
                };
                if action == Action::Confirm(of) {
                    state.confirmed = self.confirmable(&state, streaming);
                } else {
                    state.bus.position = streaming.committed;
                }
            }
            Action::Handle => Self::handle(&mut state),
            Action::GiveUp(of) | Action::Notice(of) => state.relays[of] = STANDS_BY,
            Action::Crash(of) => {
                state.faults -= 1;
                state.relays[of] = STANDS_BY;
            }
            Action::StandStill(of) => {
                state.faults -= 1;
                state.relays[of].stood_still = true;
            }
            Action::Repeat(of) => {
                state.faults -= 1;
                let Work::Streams(streaming) = &mut state.relays[of].work else {
                    return None;
                };
                streaming.is_repeated = true;
                state.bus.requests.push(streaming.epoch);
            }
            Action::LoseRequest => {
                state.faults -= 1;
                state.bus.requests.pop();
            }
        }
        Some(state)
    }

    fn is_fault(&self, action: Action) -> bool {
        matches!(
            action,
            Action::Crash(_) | Action::StandStill(_) | Action::Repeat(_) | Action::LoseRequest
        )
    }

    fn properties(&self) -> Vec<Property<State>> {
        vec![
            always(P14_ONCE, |state| !has_repeats(&state.bus.read_committed())),
            always(P14_TOGETHER, |state| {
                let read = state.bus.read_committed();
                read.iter().copied().eq(0..state.bus.position)
            }),
            always(P1, |state| state.confirmed <= state.bus.position),
            in_the_end(END, |state| {
                let committed = state.committed;
                let read = state.bus.read_committed();
                read.into_iter().eq(0..committed) && state.confirmed == committed
            }),
            sometimes("a fence", |state| state.has_fenced),
            sometimes("a fence of an open transaction", |state| {
                let is_open =
                    |of: &Streaming| of.epoch != state.bus.epoch && of.sent > of.committed;
                let works = state.relays.iter().map(|relay| relay.work);
                works
                    .into_iter()
                    .any(|work| matches!(work, Work::Streams(of) if is_open(&of)))
            }),
            sometimes("a redelivery of an aborted record", |state| {
                let aborted = |record: &&Record| record.outcome == Outcome::Aborted;
                let mut aborted = state.bus.topic.iter().filter(aborted);
                aborted.any(|record| state.bus.read_committed().contains(&record.event))
            }),
            sometimes("a commit request that arrives late", |state| {
                let requests = &state.bus.requests;
                requests.iter().any(|epoch| *epoch != state.bus.epoch)
            }),
        ]
    }
}

/// Follows what two relays did with transactions of the bus, and no reads of the table.
///
/// # Errors
///
/// Fails with a text where the model does not allow a step.
pub fn follow_once(steps: &[Step]) -> Result<Reached, String> {
    let model = OnceModel {
        events: u16::MAX,
        wrong: None,
    };
    let begins = model.begins().remove(0);
    let mut events = Events::default();
    // The position that each relay stores, and whether events are with it.
    let mut storing = [None; RELAYS];
    Follower::new(model, begins).walk(steps, |at, step| {
        // As many as there are.
        at.state.faults = u16::MAX;
        match step {
            Step::Row { key } => {
                events.row(key);
                Ok(())
            }
            Step::Committed => (0..events.commit()).try_for_each(|_| at.take(Action::Write)),
            Step::TurnTaken { relay } => {
                expect("stores under way", storing, [None; RELAYS])?;
                at.take(Action::TakeSlot(relay))?;
                at.take(Action::Fence(relay))?;
                at.take(Action::ReadPosition(relay))
            }
            Step::ProducerBegun { relay, place, .. } => {
                let position = at.state.bus.position;
                expect("the position that is read", events.before(place)?, position)?;
                at.take(Action::Stream(relay))
            }
            Step::Streams { relay } => at.streaming(relay).map(|_| ()),
            Step::Enqueued { relay, event } => {
                expect("the next event", event, at.streaming(relay)?.sent)?;
                at.take(Action::Produce(relay))?;
                at.streaming(relay).map(|_| ())
            }
            Step::StoreBegun {
                relay,
                progress: Progress::Delivered(place),
            } => {
                let position = events.before(place)?;
                let of = at.streaming(relay)?;
                expect("what is stored", position, of.sent)?;
                // A position without events is stored in a transaction of its own.
                let has_events = of.sent > of.committed;
                storing[relay] = Some((position, has_events));
                match has_events {
                    true => at.take(Action::Commit(relay)),
                    false => Ok(()),
                }?;
                at.streaming(relay).map(|_| ())
            }
            Step::Stored { relay } => match storing[relay].take() {
                None => Err("no store was begun".to_owned()),
                Some((position, false)) => expect("the position", position, at.state.bus.position),
                Some((position, true)) => at.follow_commit(relay, position, &events),
            },
            Step::StoreLost { relay } => match storing[relay].take() {
                None => Err("no store was begun".to_owned()),
                Some((_, false)) => Ok(()),
                Some((_, true)) => at.take(Action::LoseRequest),
            },
            Step::Landed { event } => events.land_once(event),
            Step::Confirmed { relay, place } => at.follow_confirmed(relay, events.before(place)?),
            Step::SessionCut { relay } => at.take_if_possible(Action::StandStill(relay)),
            Step::SessionEnded { relay } | Step::Killed { relay } => {
                at.take_if_possible(Action::Crash(relay))
            }
            // A stand-by does nothing here; no server is killed.
            Step::StoodBy { .. } | Step::SlotFlushed => Ok(()),
            Step::Reads { .. }
            | Step::SlotMade { .. }
            | Step::SlotLost
            | Step::StoreBegun { .. }
            | Step::ServerCrashed => Err("the model does not know this".to_owned()),
        }
    })
}

impl Follower<OnceModel> {
    /// The relay has the slot, and a producer that nobody has fenced.
    fn streaming(&self, relay: usize) -> Result<Streaming, String> {
        match self.state.relays[relay].work {
            Work::Streams(of) if of.epoch == self.state.bus.epoch => Ok(of),
            work => Err(format!("{relay} is at work in {work:?}")),
        }
    }

    /// Its transaction is committed, and its events are in their topics.
    fn follow_commit(
        &mut self,
        relay: usize,
        position: u16,
        events: &Events,
    ) -> Result<(), String> {
        let of = self.streaming(relay)?;
        expect(
            "who is committed",
            self.state.bus.requests.first(),
            Some(&of.epoch),
        )?;
        if let Some(missing) = (of.committed..position).find(|event| !events.has_landed(*event)) {
            return Err(format!("{missing} is stored, and has not landed"));
        }
        expect("what has landed", events.landed(), usize::from(position))?;
        self.take(Action::Handle)?;
        expect("the position", position, self.state.bus.position)
    }

    fn follow_confirmed(&mut self, relay: usize, confirmed: u16) -> Result<(), String> {
        let of = self.streaming(relay)?;
        if confirmed <= self.state.confirmed {
            return Ok(());
        }
        if confirmed > self.model.confirmable(&self.state, of) {
            return Err(format!("{confirmed} is confirmed too early"));
        }
        self.take(Action::Confirm(relay))?;
        self.lower(|state| state.confirmed = confirmed)
    }
}

const P1: &str = "P1: what is confirmed is stored";
const P14_ONCE: &str = "P14: a consumer sees no event twice";
const P14_TOGETHER: &str = "P14: events and their position are committed together";
const END: &str = "in the end all that is committed is delivered and confirmed";

#[test]
fn exactly_once_keeps_its_promises() {
    holds("once", &OnceModel::default());
}

#[test]
fn wrong_rules_of_exactly_once_break_a_promise() {
    for (wrong, property) in [
        (Wrong::FenceNotTaken, P14_ONCE),
        (Wrong::PositionReadBeforeTheFence, P14_ONCE),
        (Wrong::PositionStoredBesideTheTransaction, P14_ONCE),
        (Wrong::RecordsOfAbortedTransactionsCount, P14_TOGETHER),
        (Wrong::ConfirmedBeforeTheCommit, P1),
        (Wrong::AnotherTransactionBehindALateCommit, P14_ONCE),
    ] {
        let model = OnceModel {
            wrong: Some(wrong),
            ..OnceModel::default()
        };
        breaks(wrong, &model, property);
    }
}
