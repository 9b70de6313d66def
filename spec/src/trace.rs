//! What the simulation of the core recorded, as a path of a model.
//!
//! A recorded step is what can be seen of a relay from outside. A model follows it: the actions
//! that stand for the step, and those before it that nobody records, such as acks, have to be
//! possible in the model. The properties of the model have to hold in each state on the way, and in
//! the last one those of the end. Each `follow_…` lists the steps that it passes over; all others
//! it has no actions for are refused.

use std::collections::BTreeSet;
use std::fmt::{Debug, Write as _};

use crate::check::{Model, Property};

pub use crate::once::follow_once;
pub use crate::relays::follow_relays;
pub use crate::slot::follow_slot;

/// The names of what paths had: a redelivery, a fence, a hand-over.
pub type Reached = BTreeSet<&'static str>;

/// The number of an event, in the order of the commits.
pub type Event = u16;

/// How far something is: transactions as a whole, and events of the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Place {
    /// Also those without events.
    pub transactions: u16,
    /// Of the next transaction.
    pub events: u16,
}

/// What a store is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// What is before this place is delivered.
    Delivered(Place),
    /// A slot is to be made, and the rows before it to be read from the table.
    Intended,
    /// The slot begins at this place, and rows before it are read from the table.
    Reading(Place),
    /// Rows are read from the table, or were, and no slot has a place for that: its slot is lost,
    /// or the table is polled.
    WithoutSlot,
}

/// One thing that happened. Relays have numbers from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// An event of the transaction that commits next.
    Row {
        /// Its aggregate.
        key: u8,
    },
    /// The transaction of the rows before has committed.
    Committed,
    /// A relay found another one at work.
    StoodBy {
        /// Which one.
        relay: usize,
    },
    /// A relay has the slot or the lease, and reads what is stored. It fences producers before it.
    TurnTaken {
        /// Which one.
        relay: usize,
    },
    /// A relay has a new producer, and publishes what follows a place.
    ProducerBegun {
        /// Which one.
        relay: usize,
        /// What counts as delivered.
        place: Place,
        /// Whether it looks for events in their topics.
        reads_topics: bool,
    },
    /// A relay streams from the slot.
    Streams {
        /// Which one.
        relay: usize,
    },
    /// A relay reads the table.
    Reads {
        /// Which one.
        relay: usize,
    },
    /// A slot was made.
    SlotMade {
        /// By whom; none of the relays where somebody else did.
        relay: Option<usize>,
        /// Where it begins.
        place: Place,
    },
    /// The slot was dropped.
    SlotLost,
    /// A producer took an event.
    Enqueued {
        /// Whose producer.
        relay: usize,
        /// Which event.
        event: Event,
    },
    /// An event is in its topic, from whichever producer; with transactions, once it is committed.
    Landed {
        /// Which event.
        event: Event,
    },
    /// A store was begun.
    StoreBegun {
        /// By whom.
        relay: usize,
        /// What is stored.
        progress: Progress,
    },
    /// The store that a relay began has happened.
    Stored {
        /// Whose store.
        relay: usize,
    },
    /// The store that a relay began will not happen.
    StoreLost {
        /// Whose store.
        relay: usize,
    },
    /// The server took a confirmation.
    Confirmed {
        /// By whom.
        relay: usize,
        /// All before is confirmed.
        place: Place,
    },
    /// The confirmed place of the slot is on disk.
    SlotFlushed,
    /// The server was killed, and is started again. Its slot is as it was on disk.
    ServerCrashed,
    /// The server has ended the session of a relay, which may not know.
    SessionCut {
        /// Which one.
        relay: usize,
    },
    /// The session of a relay has ended, or did not open.
    SessionEnded {
        /// Which one.
        relay: usize,
    },
    /// The process of a relay has ended, and another one starts.
    Killed {
        /// Which one.
        relay: usize,
    },
}

/// A state of a model, and what was reached on the way there.
pub(crate) struct Follower<M: Model> {
    pub(crate) model: M,
    pub(crate) state: M::State,
    properties: Vec<Property<M::State>>,
    reached: Reached,
}

impl<M: Model<Action: PartialEq>> Follower<M> {
    pub(crate) fn new(model: M, state: M::State) -> Follower<M> {
        Follower {
            properties: model.properties(),
            model,
            state,
            reached: Reached::new(),
        }
    }

    /// Whether the model can do this now.
    pub(crate) fn may(&self, action: M::Action) -> bool {
        let mut actions = Vec::new();
        self.model.actions(&self.state, &mut actions);
        actions.contains(&action)
    }

    /// The model does this, which must be possible.
    pub(crate) fn take(&mut self, action: M::Action) -> Result<(), String> {
        let next = Some(action).filter(|_| self.may(action));
        let next = next.and_then(|action| self.model.next(&self.state, action));
        let Some(next) = next else {
            return Err(format!("the model cannot do {action:?}"));
        };
        self.state = next;
        self.judge()
    }

    /// The model does this where it can.
    pub(crate) fn take_if_possible(&mut self, action: M::Action) -> Result<(), String> {
        match self.may(action) {
            true => self.take(action),
            false => Ok(()),
        }
    }

    /// Less is so than the last action said: a number of events that is not at the end of a
    /// transaction.
    pub(crate) fn lower(&mut self, change: impl FnOnce(&mut M::State)) -> Result<(), String> {
        change(&mut self.state);
        self.judge()
    }

    fn judge(&mut self) -> Result<(), String> {
        for property in &self.properties {
            if property.is_broken_by(&self.state) {
                return Err(format!("broken: {}", property.name));
            }
            if property.is_reached_by(&self.state) {
                self.reached.insert(property.name);
            }
        }
        Ok(())
    }

    /// Follows all steps. The error has the step that the model cannot follow, and those before.
    pub(crate) fn walk(
        mut self,
        steps: &[Step],
        mut follow: impl FnMut(&mut Follower<M>, Step) -> Result<(), String>,
    ) -> Result<Reached, String> {
        for (number, step) in steps.iter().enumerate() {
            if let Err(error) = follow(&mut self, *step) {
                let mut text = format!("{error}, at step {number}:");
                for step in &steps[number.saturating_sub(TOLD)..=number] {
                    _ = write!(text, "\n{step:?}");
                }
                _ = write!(text, "\nin the state {:?}", self.state);
                return Err(text);
            }
        }
        let mut ends = self.properties.iter();
        match ends.find(|property| property.is_broken_at_end(&self.state)) {
            None => Ok(self.reached),
            Some(broken) => Err(format!("at the end: {}, {:?}", broken.name, self.state)),
        }
    }
}

/// Steps that are told of a failure.
const TOLD: usize = 30;

/// Fails unless the two are the same.
pub(crate) fn expect<T: PartialEq + Debug>(what: &str, is: T, model: T) -> Result<(), String> {
    if is == model {
        return Ok(());
    }
    Err(format!("{what}: {is:?}, and {model:?} in the model"))
}

/// The events of a trace by their numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Events {
    keys: Vec<u8>,
    /// How many there are by the end of each transaction.
    ends: Vec<u16>,
    /// Those that are in their topics.
    landed: BTreeSet<Event>,
}

impl Events {
    pub(crate) fn row(&mut self, key: u8) {
        self.keys.push(key);
    }

    /// The rows are committed. Gives how many.
    pub(crate) fn commit(&mut self) -> u16 {
        let before = self.ends.last().copied().unwrap_or_default();
        let all = self.keys.len() as u16;
        self.ends.push(all);
        all - before
    }

    /// The number of events before a place.
    pub(crate) fn before(&self, place: Place) -> Result<u16, String> {
        let whole = usize::from(place.transactions);
        let ends = [&[0], self.ends.as_slice()].concat();
        let Some(end) = ends.get(whole) else {
            return Err(format!("there is no {place:?}"));
        };
        Ok(end + place.events)
    }

    /// P2: earlier events of the key have landed.
    pub(crate) fn land(&mut self, event: Event) -> Result<(), String> {
        let key = |event: &Event| self.keys.get(usize::from(*event));
        let mut earlier = (0..event).filter(|earlier| key(earlier) == key(&event));
        if let Some(missing) = earlier.find(|earlier| !self.landed.contains(earlier)) {
            return Err(format!("{event} has landed, and {missing} has not"));
        }
        self.landed.insert(event);
        Ok(())
    }

    /// The same of a consumer that reads what is committed, and sees nothing twice.
    pub(crate) fn land_once(&mut self, event: Event) -> Result<(), String> {
        expect("it has landed before", false, self.has_landed(event))?;
        self.land(event)
    }

    pub(crate) fn landed(&self) -> usize {
        self.landed.len()
    }

    pub(crate) fn has_landed(&self, event: Event) -> bool {
        self.landed.contains(&event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Place = Place {
        transactions: 1,
        events: 0,
    };
    const SECOND: Place = Place {
        transactions: 2,
        events: 0,
    };

    /// A relay begins to stream.
    fn streams(relay: usize) -> [Step; 3] {
        [
            Step::TurnTaken { relay },
            Step::ProducerBegun {
                relay,
                place: Place::default(),
                reads_topics: false,
            },
            Step::Streams { relay },
        ]
    }

    /// Two transactions of an event each, of one aggregate, and a relay that streams.
    fn begins() -> Vec<Step> {
        let mut steps = [Step::Row { key: 0 }, Step::Committed].repeat(2);
        steps.extend(streams(0));
        steps
    }

    fn enqueued(event: Event) -> Step {
        Step::Enqueued { relay: 0, event }
    }

    fn stored(place: Place) -> [Step; 2] {
        let progress = Progress::Delivered(place);
        [
            Step::StoreBegun { relay: 0, progress },
            Step::Stored { relay: 0 },
        ]
    }

    fn landed(event: Event) -> Step {
        Step::Landed { event }
    }

    fn confirmed(place: Place) -> Step {
        Step::Confirmed { relay: 0, place }
    }

    /// Both events are published, stored and confirmed.
    fn sound() -> Vec<Step> {
        let mut steps = begins();
        steps.extend([enqueued(0), enqueued(1)]);
        steps.extend([landed(0), landed(1)]);
        steps.extend(stored(SECOND));
        steps.push(confirmed(SECOND));
        steps
    }

    /// The slot is lost, and the relay begins to read the table.
    fn reads() -> Vec<Step> {
        let relay = 0;
        let mut steps = begins();
        steps.extend([
            Step::SlotLost,
            Step::SessionEnded { relay },
            Step::TurnTaken { relay },
            Step::Reads { relay },
        ]);
        steps
    }

    /// It reads the rows behind the slot that was lost.
    fn read(last: Progress) -> Vec<Step> {
        let relay = 0;
        let mut steps = reads();
        steps.push(Step::SlotMade {
            relay: Some(relay),
            place: SECOND,
        });
        for progress in [Progress::Reading(SECOND), last] {
            steps.extend([Step::StoreBegun { relay, progress }, Step::Stored { relay }]);
        }
        steps.extend([
            Step::SessionEnded { relay },
            Step::TurnTaken { relay },
            Step::Streams { relay },
        ]);
        steps
    }

    type Follow = fn(&[Step]) -> Result<Reached, String>;

    fn refused(follow: Follow, steps: &[Step], because: &str) {
        let refusal = follow(steps).expect_err(because);
        assert!(refusal.starts_with(because), "{refusal}");
    }

    #[test]
    fn each_model_follows_what_is_sound() {
        for follow in [follow_slot as Follow, follow_once, follow_relays] {
            follow(&sound()).unwrap();
        }
    }

    #[test]
    fn no_model_follows_what_breaks_a_promise() {
        let relay = 0;
        for follow in [follow_slot as Follow, follow_once, follow_relays] {
            // Nothing is delivered in the end.
            refused(follow, &begins(), "at the end: ");
            // Confirmed, and not stored.
            let mut steps = begins();
            steps.push(confirmed(FIRST));
            follow(&steps).expect_err("P1");
            // A place that is not there.
            let mut steps = sound();
            steps.push(confirmed(Place {
                transactions: 9,
                events: 0,
            }));
            refused(follow, &steps, "there is no Place");
            // Stored, and not in the topic.
            let mut steps = begins();
            steps.extend([enqueued(0), enqueued(1), landed(0)]);
            steps.extend(stored(SECOND));
            follow(&steps).expect_err("P1");
            // In the topic in another order.
            let mut steps = begins();
            steps.extend([enqueued(0), enqueued(1), landed(1)]);
            follow(&steps).expect_err("P2");
            // Published again after a lost connection.
            let mut steps = sound();
            steps.extend([
                Step::SessionEnded { relay },
                Step::Streams { relay },
                enqueued(1),
            ]);
            follow(&steps).expect_err("a copy");
        }
        // Published in another order.
        let mut steps = begins();
        steps.push(enqueued(1));
        refused(follow_slot, &steps, "what is enqueued: ");
        refused(follow_once, &steps, "the next event: 1, and 0");
        // Seen twice by a consumer that reads what is committed.
        let mut steps = sound();
        steps.push(landed(1));
        refused(follow_once, &steps, "it has landed before");
    }

    #[test]
    fn no_model_follows_two_relays_at_work() {
        let second = streams(1);
        let mut steps = begins();
        steps.extend(second);
        refused(follow_relays, &steps, "no other relay is at work");
        refused(follow_once, &steps, "the model cannot do TakeSlot(1)");
        // The first one was cut off, and sends, or commits.
        let mut steps = begins();
        steps.push(Step::SessionCut { relay: 0 });
        steps.extend(second);
        let with = |last: &[Step]| [steps.as_slice(), last].concat();
        refused(
            follow_relays,
            &with(&[enqueued(0), enqueued(1)]),
            "0 sends 1",
        );
        refused(follow_once, &with(&[enqueued(0)]), "0 is at work in");
        refused(follow_relays, &with(&stored(FIRST)), "whose turn it is");
        refused(follow_once, &with(&stored(FIRST)), "0 is at work in");
        // Two relays read the table.
        let mut steps = reads();
        steps.push(Step::TurnTaken { relay: 1 });
        refused(follow_relays, &steps, "who reads");
        let relay = 0;
        // A store arrives after the turn of the other one.
        let progress = Progress::Delivered(Place::default());
        let mut steps = begins();
        steps.extend([
            Step::StoreBegun { relay, progress },
            Step::SessionCut { relay },
            Step::TurnTaken { relay: 1 },
        ]);
        refused(follow_relays, &steps, "stores under way");
        refused(follow_once, &steps, "stores under way");
        // A stand-by streams or reads without its turn.
        for step in [Step::Streams { relay: 1 }, Step::Reads { relay: 1 }] {
            let mut steps = begins();
            steps.push(step);
            refused(follow_relays, &steps, "whose turn it is");
        }
    }

    #[test]
    fn no_model_follows_a_stream_before_the_table_is_read() {
        let progress = Progress::Delivered(SECOND);
        refused(
            follow_relays,
            &read(progress),
            "Some(0) is stored, and has not landed",
        );
        let progress = Progress::Reading(SECOND);
        refused(
            follow_relays,
            &read(progress),
            "the model cannot do Stream(0)",
        );
        refused(follow_slot, &read(progress), "the model does not know this");
        refused(follow_once, &read(progress), "the model does not know this");
        // What the slot has is sent before the rows.
        let mut steps = read(progress);
        steps.truncate(14);
        steps.extend([Step::Row { key: 0 }, Step::Committed, enqueued(2)]);
        refused(follow_relays, &steps, "0 sends 2");
    }
}
