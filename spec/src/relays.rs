//! Two relays of one slot: the slot and the lease decide which one is at work.
//!
//! The events are of one key, and commit one after another. The first relay makes the slot, reads
//! the rows of before from the table, and streams. A relay can crash, or stand still while the
//! server ends its session; what it sent before can arrive late, or never. So can what it stores,
//! until another relay has the slot or the lease. The slot can be lost, and somebody may make
//! another.

use crate::check::{Model, Property, always, in_the_end, sometimes};
#[cfg(test)]
use crate::check::{breaks, holds};
use crate::trace::{Events, Follower, Progress, Reached, Step, expect};
use crate::world::{first_arrivals, has_repeats};

/// Event `n` is the one of commit `n`, so that a position is a number of events.
const EVENTS: u16 = 3;
const RELAYS: usize = 2;

/// What a relay is at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Work {
    /// It looks, and waits for slot or lease.
    StandsBy,
    /// It has the lease alone, and made a slot. These rows are to be read.
    Made(Rows),
    /// It has the lease alone, and reads these rows of the table.
    Reads(Rows),
    /// It has the slot, and what it delivered.
    Streams { delivered: u16 },
}

/// Rows of the table, by the numbers of their events.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Rows {
    next: u16,
    until: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Relay {
    work: Work,
    /// Its one record on the way to the bus.
    sent: Option<u16>,
    /// It stood still for so long that the server ended its session.
    stood_still: bool,
    /// What it read of the store too early.
    read: Option<Stored>,
    /// The position that is on its way to the store.
    storing: Option<u16>,
    /// The rows before a slot that it made, and could not store before its session ended.
    made: Option<Rows>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Stored {
    position: u16,
    /// The rows that are to be read before the slot is streamed.
    catch_up: Option<Rows>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    committed: u16,
    bus: Vec<u16>,
    /// The confirmed position of the slot.
    slot: Option<u16>,
    stored: Stored,
    relays: [Relay; RELAYS],
    /// Records of sessions that ended, and may still arrive.
    late: Vec<u16>,
    faults: u16,
    /// The server found a slot or a lease taken.
    has_refused: bool,
    /// Whether a read of the table ended where the slot begins.
    has_read: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Commit,
    LookEarly(usize),
    TakeTurn(usize),
    MakeSlot(usize),
    SaveRead(usize),
    GoOn(usize),
    Stream(usize),
    Send(usize),
    Ack(usize),
    EndRead(usize),
    /// It finds the other one at work.
    Look(usize),
    BeginStore(usize),
    Store(usize),
    Confirm(usize),
    Crash(usize),
    StandStill(usize),
    Notice(usize),
    ArriveLate,
    LoseLate,
    LoseStore(usize),
    LoseSlot,
    RecreateSlot,
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
    /// `17-slot-ahead-of-the-store-accepted`
    SlotAheadOfTheStoreAccepted,
    /// A store arrives after another relay has the slot.
    StoredBehindTheNextRelay,
    /// `02-confirmed-when-received`
    ConfirmedWhenSent,
}

#[derive(Clone)]
struct RelaysModel {
    /// How many events are written at most.
    events: u16,
    wrong: Option<Wrong>,
}

impl Default for RelaysModel {
    fn default() -> RelaysModel {
        RelaysModel {
            events: EVENTS,
            wrong: None,
        }
    }
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
        let reads = |other: &Relay| matches!(other.work, Work::Made(_) | Work::Reads(_));
        let is_free = !state.others(relay).any(streams) || self.is(Wrong::SlotShared);
        is_free && (!state.others(relay).any(reads) || self.is(Wrong::LeaseNotTaken))
    }

    /// What a relay that stands by may do, which knows `stored`.
    fn begin(&self, state: &State, relay: usize, stored: Stored, actions: &mut Vec<Action>) {
        let is_of_past = |(other, of): (usize, &Relay)| {
            let has_made = of.made.is_some() || matches!(of.work, Work::Made(_));
            other != relay && (has_made || of.storing.is_some())
        };
        if self.may_read(state, relay) && state.relays.iter().enumerate().any(is_of_past) {
            actions.push(Action::TakeTurn(relay));
        }
        if state.relays[relay].made.is_some() {
            if self.may_read(state, relay) {
                actions.push(Action::GoOn(relay));
            }
            return;
        }
        let accepts = self.is(Wrong::SlotAheadOfTheStoreAccepted);
        let slot = state
            .slot
            .filter(|slot| accepts || *slot <= stored.position);
        match (slot, stored.catch_up) {
            // Also without its slot: what was begun with is finished first.
            (_, Some(_)) if self.may_read(state, relay) => actions.push(Action::GoOn(relay)),
            (None, None) if self.may_read(state, relay) => actions.push(Action::MakeSlot(relay)),
            (Some(_), None) if self.may_stream(state, relay) => {
                actions.push(Action::Stream(relay));
            }
            _ => {}
        }
    }

    fn of_relay(&self, state: &State, number: usize, actions: &mut Vec<Action>) {
        let relay = &state.relays[number];
        if relay.storing.is_some() {
            actions.push(Action::Store(number));
            if state.faults > 0 {
                actions.push(Action::LoseStore(number));
            }
        }
        if relay.stood_still && !self.is(Wrong::StandstillNotNoticed) {
            actions.push(Action::Notice(number));
            // What it was storing may still happen.
            match relay.work {
                Work::Made(_) => actions.push(Action::SaveRead(number)),
                Work::Reads(rows) if rows.next == rows.until => {
                    actions.push(Action::EndRead(number));
                }
                Work::StandsBy | Work::Reads(_) | Work::Streams { .. } => {}
            }
            return;
        }
        let others = || state.others(number);
        let is_refused = relay.work == Work::StandsBy && !state.has_refused;
        if is_refused && others().any(|other| other.work != Work::StandsBy) {
            actions.push(Action::Look(number));
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
            (work, Some(_)) => {
                actions.push(Action::Ack(number));
                if self.is(Wrong::ConfirmedWhenSent) && matches!(work, Work::Streams { .. }) {
                    actions.push(Action::Confirm(number));
                }
            }
            (Work::Made(_), None) => actions.push(Action::SaveRead(number)),
            (Work::Reads(rows), None) if rows.next < rows.until => {
                actions.push(Action::Send(number));
            }
            (Work::Reads(_), None) => actions.push(Action::EndRead(number)),
            (Work::Streams { delivered }, None) => {
                if delivered < state.committed {
                    actions.push(Action::Send(number));
                }
                if delivered != state.stored.position && relay.storing.is_none() {
                    actions.push(Action::BeginStore(number));
                }
                let is_behind = |confirmed| state.stored.position > confirmed;
                if state.slot.is_some_and(is_behind) && !relay.stood_still {
                    actions.push(Action::Confirm(number));
                }
            }
        }
        if state.faults > 0 && (relay.work != Work::StandsBy || relay.made.is_some()) {
            actions.push(Action::Crash(number));
        }
        if state.faults > 0 && relay.work != Work::StandsBy {
            actions.push(Action::StandStill(number));
        }
    }

    /// A relay has its turn. What others store has happened, or never will, and what they made is
    /// of the past.
    fn take_turn(&self, state: &mut State, number: usize) {
        for (other, relay) in state.relays.iter_mut().enumerate() {
            if !self.is(Wrong::StoredBehindTheNextRelay) {
                relay.storing = None;
            }
            if other != number {
                relay.made = None;
                if relay.stood_still && matches!(relay.work, Work::Made(_) | Work::Reads(_)) {
                    relay.work = Work::StandsBy;
                }
            }
        }
    }

    /// What a relay knows that begins to work.
    fn work_begins(&self, state: &mut State, number: usize) -> Stored {
        self.take_turn(state, number);
        state.relays[number].made = None;
        state.relays[number].read.take().unwrap_or(state.stored)
    }

    /// The session of a relay is over. The process that goes on knows what it made.
    fn end(state: &mut State, number: usize, goes_on: bool) {
        let relay = &mut state.relays[number];
        state.late.extend(relay.sent);
        *relay = Relay {
            storing: relay.storing,
            made: match relay.work {
                Work::Made(rows) if goes_on => Some(rows),
                Work::StandsBy | Work::Made(_) | Work::Reads(_) | Work::Streams { .. } => None,
            },
            ..STANDS_BY
        };
    }
}

const STANDS_BY: Relay = Relay {
    work: Work::StandsBy,
    sent: None,
    stood_still: false,
    read: None,
    storing: None,
    made: None,
};

impl Model for RelaysModel {
    type State = State;
    type Action = Action;

    fn begins(&self) -> Vec<State> {
        vec![State {
            committed: 0,
            bus: Vec::new(),
            slot: None,
            stored: Stored::default(),
            relays: [STANDS_BY; RELAYS],
            late: Vec::new(),
            faults: 2,
            has_refused: false,
            has_read: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.committed < self.events {
            actions.push(Action::Commit);
        }
        if !state.late.is_empty() {
            actions.extend([Action::ArriveLate, Action::LoseLate]);
        }
        if state.faults > 0 {
            actions.push(match state.slot {
                Some(_) => Action::LoseSlot,
                None => Action::RecreateSlot,
            });
        }
        (0..RELAYS).for_each(|relay| self.of_relay(state, relay, actions));
    }

    fn next(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Commit => state.committed += 1,
            Action::LookEarly(of) => state.relays[of].read = Some(state.stored),
            Action::TakeTurn(of) => self.take_turn(&mut state, of),
            Action::MakeSlot(of) => {
                let next = self.work_begins(&mut state, of).position;
                let until = state.committed;
                state.slot = Some(until);
                state.relays[of].work = Work::Made(Rows { next, until });
            }
            Action::SaveRead(of) => {
                let Work::Made(rows) = state.relays[of].work else {
                    return None;
                };
                state.stored = Stored {
                    position: rows.until,
                    catch_up: Some(rows),
                };
                state.relays[of].work = Work::Reads(rows);
            }
            Action::GoOn(of) => {
                let made = state.relays[of].made;
                let known = self.work_begins(&mut state, of);
                state.relays[of].work = match made {
                    Some(rows) => Work::Made(rows),
                    None => Work::Reads(known.catch_up?),
                };
            }
            Action::Stream(of) => {
                // Postgres sends what is not confirmed.
                let confirmed = state.slot?;
                let delivered = self.work_begins(&mut state, of).position.max(confirmed);
                state.relays[of].work = Work::Streams { delivered };
            }
            Action::Send(of) => match state.relays[of].work {
                Work::StandsBy | Work::Made(_) => return None,
                Work::Reads(rows) => state.relays[of].sent = Some(rows.next),
                Work::Streams { delivered } => state.relays[of].sent = Some(delivered),
            },
            Action::Ack(of) => {
                state.bus.push(state.relays[of].sent.take()?);
                match &mut state.relays[of].work {
                    Work::StandsBy | Work::Made(_) => return None,
                    Work::Reads(Rows {
                        next: delivered, ..
                    })
                    | Work::Streams { delivered } => {
                        *delivered += 1;
                    }
                }
            }
            Action::EndRead(of) => {
                let Work::Reads(rows) = state.relays[of].work else {
                    return None;
                };
                state.stored = Stored {
                    position: rows.until,
                    catch_up: None,
                };
                state.relays[of].work = Work::StandsBy;
                state.has_read |= rows.until > 0 && state.slot == Some(rows.until);
            }
            Action::BeginStore(of) => {
                let Work::Streams { delivered } = state.relays[of].work else {
                    return None;
                };
                state.relays[of].storing = Some(delivered);
            }
            Action::Store(of) => {
                state.stored = Stored {
                    position: state.relays[of].storing.take()?,
                    catch_up: None,
                };
            }
            Action::LoseStore(of) => {
                state.faults -= 1;
                state.relays[of].storing = None;
            }
            Action::Confirm(of) => {
                state.slot = Some(match state.relays[of].work {
                    Work::Streams { delivered } if self.is(Wrong::ConfirmedWhenSent) => {
                        delivered + 1
                    }
                    _ => state.stored.position,
                });
            }
            Action::Look(_) => state.has_refused = true,
            Action::Crash(of) => {
                state.faults -= 1;
                Self::end(&mut state, of, false);
            }
            Action::StandStill(of) => {
                state.faults -= 1;
                state.relays[of].stood_still = true;
            }
            Action::Notice(of) => Self::end(&mut state, of, true),
            Action::ArriveLate => state.bus.push(state.late.remove(0)),
            Action::LoseLate => {
                state.late.remove(0);
            }
            Action::LoseSlot => {
                state.faults -= 1;
                state.slot = None;
                for relay in &mut state.relays {
                    relay.stood_still |= matches!(relay.work, Work::Streams { .. });
                }
            }
            Action::RecreateSlot => {
                state.faults -= 1;
                state.slot = Some(state.committed);
            }
        }
        Some(state)
    }

    fn is_fault(&self, action: Action) -> bool {
        matches!(
            action,
            Action::Crash(_)
                | Action::StandStill(_)
                | Action::LoseStore(_)
                | Action::LoseSlot
                | Action::RecreateSlot
        )
    }

    fn properties(&self) -> Vec<Property<State>> {
        vec![
            always(P12, |state| state.at_work().count() <= 1),
            always(P1_STORED, |state| {
                let streams = |relay: &Relay| matches!(relay.work, Work::Streams { .. });
                let is_streamed = state.at_work().any(streams);
                !is_streamed || state.slot.unwrap_or_default() <= state.stored.position
            }),
            always(P1_LOST, |state| {
                let has = |event: u16| state.bus.contains(&event);
                let Stored { position, catch_up } = state.stored;
                let slot = state.slot.unwrap_or(position);
                let streams = |relay: &Relay| matches!(relay.work, Work::Streams { .. });
                // Behind a slot that is ahead of the position, the table is read.
                let slot = match state.at_work().any(streams) {
                    true => slot,
                    false => slot.min(position),
                };
                (0..catch_up.map_or(slot, |rows| rows.next)).all(has)
            }),
            always(P2_FIRST, |state| {
                first_arrivals(&state.bus)
                    .into_iter()
                    .eq(0..state.in_order())
            }),
            in_the_end(END, |state| {
                let committed = state.committed;
                (0..committed).all(|event| state.bus.contains(&event))
                    && state.slot == Some(committed)
            }),
            sometimes("a redelivery", |state| has_repeats(&state.bus)),
            sometimes("a record that arrives late", |state| {
                state.late.is_empty() && state.bus.windows(2).any(|pair| pair[0] > pair[1])
            }),
            sometimes("a stand-by", |state| state.has_refused),
            sometimes("a hand-over to the slot", |state| {
                let streams = |relay: &Relay| matches!(relay.work, Work::Streams { .. });
                state.has_read && state.at_work().any(streams) && state.slot > Some(0)
            }),
        ]
    }
}

impl State {
    fn in_order(&self) -> u16 {
        first_arrivals(&self.bus).len() as u16
    }
}

/// Follows what two relays did, which stream or read the table for a slot that was lost. Its bus is
/// that of what they store as delivered, once that has landed.
///
/// # Errors
///
/// Fails with a text where the model does not allow a step.
pub fn follow_relays(steps: &[Step]) -> Result<Reached, String> {
    let model = RelaysModel {
        events: u16::MAX,
        wrong: None,
    };
    let mut begins = model.begins().remove(0);
    begins.slot = Some(0);
    let mut events = Events::default();
    let mut storing = [None; RELAYS];
    let mut turn = None;
    let mut reads = None;
    // Those that were cut off, and may still send the one event that waited for room.
    let mut sends_late = [false; RELAYS];
    Follower::new(model, begins).walk(steps, |at, step| {
        // As many as there are.
        at.state.faults = u16::MAX;
        match step {
            Step::Row { key } => {
                events.row(key);
                Ok(())
            }
            Step::Committed => (0..events.commit()).try_for_each(|_| at.take(Action::Commit)),
            Step::StoodBy { relay } if at.may(Action::Look(relay)) => at.take(Action::Look(relay)),
            Step::StoodBy { relay } => {
                // It may be about to make a slot.
                let has_turn = turn.is_some_and(|at_work| at_work != relay);
                let is_at_work = |other: &Relay| other.work != Work::StandsBy;
                let is_taken = has_turn || at.state.others(relay).any(is_at_work);
                expect("another relay is at work", true, is_taken)
            }
            Step::TurnTaken { relay } => {
                expect("stores under way", storing, [None; RELAYS])?;
                expect("who reads", reads.filter(|reader| *reader != relay), None)?;
                sends_late[relay] = false;
                turn = Some(relay);
                at.follow_turn(relay)
            }
            Step::Streams { relay } => {
                expect("whose turn it is", turn, Some(relay))?;
                at.take(Action::Stream(relay))
            }
            Step::Reads { relay } => {
                expect("whose turn it is", turn, Some(relay))?;
                reads = Some(relay);
                at.take_if_possible(Action::GoOn(relay))
            }
            Step::SlotMade { relay, place } => {
                if relay.is_some() {
                    expect("whose turn it is", turn, relay)?;
                }
                expect(
                    "where the slot begins",
                    events.before(place)?,
                    at.state.committed,
                )?;
                at.follow_slot_made(relay)
            }
            Step::SlotLost => at.take_if_possible(Action::LoseSlot),
            Step::Enqueued { relay, .. } if std::mem::take(&mut sends_late[relay]) => Ok(()),
            Step::Enqueued { relay, event } => {
                at.follow_enqueued(relay, event, turn == Some(relay))
            }
            Step::Landed { event } => events.land(event),
            Step::StoreBegun { relay, progress } => {
                expect("whose turn it is", turn, Some(relay))?;
                storing[relay] = Some(progress);
                match progress {
                    Progress::Delivered(place) => {
                        at.follow_begin_store(relay, events.before(place)?, &events)
                    }
                    Progress::Intended => at.deliver_rows(relay, &events),
                    Progress::Reading(_) | Progress::WithoutSlot => Ok(()),
                }
            }
            Step::StoreLost { relay } => {
                expect("a store was begun", true, storing[relay].take().is_some())?;
                at.take_if_possible(Action::LoseStore(relay))
            }
            Step::Stored { relay } => {
                let Some(progress) = storing[relay].take() else {
                    return Err("no store was begun".to_owned());
                };
                at.follow_stored(relay, progress, &events)
            }
            Step::Confirmed { relay, place } => at.follow_confirmed(relay, events.before(place)?),
            Step::SessionCut { relay } => {
                reads.take_if(|reader| *reader == relay);
                sends_late[relay] = true;
                at.take_if_possible(Action::StandStill(relay))
            }
            Step::SessionEnded { relay } | Step::Killed { relay } => {
                reads.take_if(|reader| *reader == relay);
                sends_late[relay] = false;
                turn.take_if(|at_work| *at_work == relay);
                at.take_if_possible(match step {
                    Step::Killed { .. } => Action::Crash(relay),
                    _ => Action::StandStill(relay),
                })?;
                at.take_if_possible(Action::Notice(relay))
            }
            // What counts as delivered is told by what is stored; no server is killed.
            Step::ProducerBegun { .. } | Step::SlotFlushed => Ok(()),
            Step::ServerCrashed => Err("the model does not know this".to_owned()),
        }
    })
}

impl Follower<RelaysModel> {
    fn follow_turn(&mut self, relay: usize) -> Result<(), String> {
        let is_free = self.model.may_read(&self.state, relay);
        expect("no other relay is at work", true, is_free)?;
        self.take_if_possible(Action::TakeTurn(relay))
    }

    fn follow_slot_made(&mut self, relay: Option<usize>) -> Result<(), String> {
        let made = relay.map_or(Action::RecreateSlot, Action::MakeSlot);
        // It replaces one that begins behind WAL without events, which has no number here.
        if !self.may(made) {
            expect("no relay is at work", 0, self.state.at_work().count())?;
            let stored = self.state.stored.position;
            expect("where the slot begins", Some(stored), self.state.slot)?;
            self.take(Action::LoseSlot)?;
        }
        self.take(made)
    }

    /// One that has its turn may still have what it streamed, before it reads the table.
    fn follow_enqueued(&mut self, relay: usize, event: u16, has_turn: bool) -> Result<(), String> {
        let Relay {
            work, stood_still, ..
        } = self.state.relays[relay];
        let may_send = match work {
            Work::Reads(rows) => event < rows.until,
            Work::Streams { delivered } => delivered <= event,
            Work::StandsBy => has_turn,
            Work::Made(_) => false,
        };
        match may_send && !stood_still {
            true => Ok(()),
            false => Err(format!("{relay} sends {event} in {work:?}")),
        }
    }

    /// The next event is delivered, which has landed.
    fn deliver(&mut self, relay: usize, events: &Events) -> Result<(), String> {
        self.take(Action::Send(relay))?;
        let sent = self.state.relays[relay].sent;
        if sent.is_none_or(|event| !events.has_landed(event)) {
            return Err(format!("{sent:?} is stored, and has not landed"));
        }
        self.take(Action::Ack(relay))
    }

    /// All rows that are read are delivered.
    fn deliver_rows(&mut self, relay: usize, events: &Events) -> Result<(), String> {
        while let Work::Reads(rows) = self.state.relays[relay].work
            && rows.next < rows.until
        {
            self.deliver(relay, events)?;
        }
        Ok(())
    }

    fn follow_begin_store(
        &mut self,
        relay: usize,
        position: u16,
        events: &Events,
    ) -> Result<(), String> {
        self.deliver_rows(relay, events)?;
        while let Work::Streams { delivered } = self.state.relays[relay].work {
            if delivered < position {
                self.deliver(relay, events)?;
                continue;
            }
            expect("what is stored", position, delivered)?;
            // Without events, it is a place behind them.
            return match position == self.state.stored.position {
                true => Ok(()),
                false => self.take(Action::BeginStore(relay)),
            };
        }
        Ok(())
    }

    fn follow_stored(
        &mut self,
        relay: usize,
        progress: Progress,
        events: &Events,
    ) -> Result<(), String> {
        match progress {
            Progress::Reading(_) | Progress::WithoutSlot => {
                self.take_if_possible(Action::SaveRead(relay))?;
            }
            Progress::Delivered(_) if self.may(Action::Store(relay)) => {
                self.take(Action::Store(relay))?;
            }
            Progress::Delivered(_) | Progress::Intended => {
                self.follow_end_of_read(relay, events)?
            }
        }
        match progress {
            Progress::Delivered(place) | Progress::Reading(place) => {
                let stored = self.state.stored.position;
                expect("what is stored", events.before(place)?, stored)
            }
            Progress::Intended | Progress::WithoutSlot => Ok(()),
        }
    }

    fn follow_end_of_read(&mut self, relay: usize, events: &Events) -> Result<(), String> {
        loop {
            match self.state.relays[relay].work {
                // It read all before, and could not store that.
                Work::StandsBy if self.may(Action::GoOn(relay)) => {
                    self.take(Action::GoOn(relay))?;
                }
                Work::Made(_) => self.take(Action::SaveRead(relay))?,
                Work::Reads(_) => {
                    self.deliver_rows(relay, events)?;
                    return self.take(Action::EndRead(relay));
                }
                Work::StandsBy | Work::Streams { .. } => return Ok(()),
            }
        }
    }

    fn follow_confirmed(&mut self, relay: usize, confirmed: u16) -> Result<(), String> {
        let Work::Streams { .. } = self.state.relays[relay].work else {
            return Err(format!("{relay} confirms, and does not stream"));
        };
        if self.state.slot.is_some_and(|before| confirmed <= before) {
            return Ok(());
        }
        if confirmed > self.state.stored.position {
            return Err(format!("{confirmed} is confirmed, and not stored"));
        }
        self.take(Action::Confirm(relay))?;
        self.lower(|state| state.slot = Some(confirmed))
    }
}

const P1_STORED: &str = "P1: what is confirmed is stored";
const P1_LOST: &str = "P1: what neither slot nor table offers is in the bus";
const P2_FIRST: &str = "P2: events of a key arrive first in commit order";
const P12: &str = "P12: one relay is at work";
const END: &str = "in the end all that is committed is delivered and confirmed";

#[test]
fn two_relays_keep_the_promises() {
    holds("relays", &RelaysModel::default());
}

#[test]
fn wrong_rules_of_two_relays_break_a_promise() {
    for (wrong, property) in [
        (Wrong::LeaseNotTaken, P12),
        (Wrong::PositionReadBeforeTheLease, P1_STORED),
        (Wrong::StandstillNotNoticed, P1_STORED),
        (Wrong::SlotShared, P12),
        (Wrong::SlotAheadOfTheStoreAccepted, P1_LOST),
        (Wrong::StoredBehindTheNextRelay, P1_STORED),
        (Wrong::ConfirmedWhenSent, P1_LOST),
    ] {
        let model = RelaysModel {
            wrong: Some(wrong),
            ..RelaysModel::default()
        };
        breaks(wrong, &model, property);
    }
}
