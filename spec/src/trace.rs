//! What the simulation of the core recorded, as a path of a model.
//!
//! A recorded step is what can be seen of a relay from outside. A model follows it: the actions that
//! stand for the step, and those before it that nobody sees, such as acks, have to be possible in
//! the model, and the promises have to hold in each of its states. A model follows the schedules
//! that have nothing but what it knows.

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
    /// An event is in its topic, from whichever producer.
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
        for property in &self.properties {
            if property.is_broken_by(&self.state) {
                return Err(format!("{} does not hold after {action:?}", property.name));
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
        Ok(self.reached)
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

/// What the places of a trace are as numbers of events.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    /// The events by the end of each transaction.
    ends: Vec<u16>,
    events: u16,
}

impl Places {
    /// Takes in a step. Whether it commits events, how many.
    pub(crate) fn commits(&mut self, step: Step) -> Option<u16> {
        match step {
            Step::Row { .. } => self.events += 1,
            Step::Committed => {
                let before = self.ends.last().copied().unwrap_or_default();
                self.ends.push(self.events);
                return Some(self.events - before);
            }
            _ => {}
        }
        None
    }

    pub(crate) fn events(&self, place: Place) -> u16 {
        let whole = usize::from(place.transactions).checked_sub(1);
        let whole = whole.and_then(|last| self.ends.get(last)).copied();
        whole.unwrap_or_default() + place.events
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

    /// Two transactions of an event each, of one aggregate, and a relay that streams.
    fn begins() -> Vec<Step> {
        vec![
            Step::Row { key: 0 },
            Step::Committed,
            Step::Row { key: 0 },
            Step::Committed,
            Step::TurnTaken { relay: 0 },
            Step::ProducerBegun {
                relay: 0,
                place: Place::default(),
                reads_topics: false,
            },
            Step::Streams { relay: 0 },
        ]
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

    fn confirmed(place: Place) -> Step {
        Step::Confirmed { relay: 0, place }
    }

    /// Both events are published, stored and confirmed.
    fn sound() -> Vec<Step> {
        let mut steps = begins();
        steps.extend([enqueued(0), enqueued(1)]);
        steps.extend([Step::Landed { event: 0 }, Step::Landed { event: 1 }]);
        steps.extend(stored(SECOND));
        steps.push(confirmed(SECOND));
        steps
    }

    /// The slot was lost, and the relay reads the rows behind it.
    fn read(last: Progress) -> Vec<Step> {
        let relay = 0;
        let mut steps = begins();
        steps.extend([
            Step::SlotLost,
            Step::SessionEnded { relay },
            Step::TurnTaken { relay },
            Step::Reads { relay },
            Step::SlotMade {
                relay: Some(relay),
                place: SECOND,
            },
        ]);
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
        for follow in [follow_slot as Follow, follow_once, follow_relays] {
            // Confirmed, and not stored.
            let mut steps = begins();
            steps.push(confirmed(FIRST));
            follow(&steps).expect_err("P1");
        }
        // Stored, and not in the topic.
        let mut steps = begins();
        steps.push(enqueued(0));
        steps.extend(stored(FIRST));
        refused(follow_slot, &steps, "what is stored: Enqueued");
        refused(
            follow_relays,
            &steps,
            "Some(0) is stored, and has not landed",
        );
        // Published in another order.
        let mut steps = begins();
        steps.push(enqueued(1));
        refused(follow_slot, &steps, "what is enqueued: ");
        refused(follow_once, &steps, "the next event: 1, and 0");
        // Published again after a lost connection.
        let mut steps = sound();
        steps.extend([
            Step::SessionEnded { relay: 0 },
            Step::Streams { relay: 0 },
            enqueued(1),
        ]);
        refused(follow_slot, &steps, "the model cannot do Receive");
    }

    #[test]
    fn no_model_follows_two_relays_at_work() {
        let mut steps = begins();
        steps.push(Step::Streams { relay: 1 });
        refused(follow_relays, &steps, "the model cannot do Stream(1)");
        // What the first one produced is fenced.
        let mut steps = begins();
        steps.extend([Step::TurnTaken { relay: 1 }, enqueued(0)]);
        refused(follow_once, &steps, "it is fenced: false, and true");
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
    }
}
