//! Which parked events a retry sends or drops, and in which order it reads them. No I/O.

use crate::event::{Place, Via};
use crate::parked::{AggregateHead, Limit, ParkedRow};
use crate::position::Position;
use crate::publisher::parked_index::RetryMemory;

/// Events that are sent before their acks are waited for.
const BATCH_EVENTS: i64 = 200;

/// Whether the transaction of an event is behind the `stored` position. Only then a retry sends or
/// drops it: after a crash it does not come again, and neither do those before it, even if the slot
/// is lost.
pub fn is_stored(place: Place, stored: &Position) -> bool {
    place.via != Via::Slot || stored.covers(place.commit_lsn)
}

/// A walk through the parked events of an aggregate, in their order, until one fails or none is
/// left.
#[derive(Debug)]
pub struct RetryWalk {
    /// The first event that is not done.
    pub head: AggregateHead,
    next: NextRead,
}

/// What is read next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextRead {
    /// The event of the head alone: a batch is refused as a whole.
    Event,
    /// Those behind the events that are done.
    Batch,
    /// The first of a batch that cannot be read.
    OneOfBatch,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalkStep {
    /// Events are read.
    Read,
    /// The next event has failed, or cannot be read, and the walk ends.
    Failed,
    /// The walk ends.
    End,
}

impl RetryWalk {
    /// Begins with the first event of an aggregate.
    pub fn new(head: AggregateHead) -> RetryWalk {
        RetryWalk {
            head,
            next: NextRead::Event,
        }
    }

    /// How many events are read next, from the head on; `bytes` is their greatest size.
    pub fn limit(&self, bytes: usize) -> Limit {
        let events = match self.next {
            NextRead::Event | NextRead::OneOfBatch => 1,
            NextRead::Batch => BATCH_EVENTS,
        };
        Limit { events, bytes }
    }

    /// The events cannot be read.
    pub fn unread(&mut self) -> WalkStep {
        match self.next {
            NextRead::Batch => {
                self.next = NextRead::OneOfBatch;
                WalkStep::Read
            }
            // The next walk begins with this event, and names it.
            NextRead::OneOfBatch => WalkStep::End,
            NextRead::Event => WalkStep::Failed,
        }
    }

    /// The first of `held`, which were read, that are sent now: none that is to be dropped or is
    /// not [stored](is_stored). Either the bus has all of them, which is not in the table yet, or
    /// none.
    pub fn read(
        &mut self,
        mut held: Vec<ParkedRow>,
        stored: &Position,
        memory: &RetryMemory,
    ) -> Vec<ParkedRow> {
        let is_acked = |held: &ParkedRow| memory.is_acked(held.id, held.event.place);
        let first = held.first().map(is_acked);
        let goes = |held: &&ParkedRow| {
            !held.is_dropped && is_stored(held.event.place, stored) && Some(is_acked(held)) == first
        };
        held.truncate(held.iter().take_while(goes).count());
        if let Some(first) = held.first() {
            self.head.id = first.id;
            if self.head.key.is_none() {
                self.head.key.clone_from(&first.event.key);
            }
        }
        held
    }

    /// The first `done` of `held` are delivered, which the table has. `refused`: the bus refused
    /// the next one, and whether it is known that no other one was meant.
    pub fn sent(&mut self, held: &[ParkedRow], done: usize, refused: Option<bool>) -> WalkStep {
        match (refused, held.get(done), held.last()) {
            (Some(is_certain), Some(failed), _) => {
                self.head.id = failed.id;
                self.next = NextRead::Event;
                if is_certain {
                    WalkStep::Failed
                } else {
                    WalkStep::Read
                }
            }
            (_, _, Some(last)) if self.head.key.is_some() => {
                self.head.id = last.id + 1;
                self.next = NextRead::Batch;
                WalkStep::Read
            }
            _ => WalkStep::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::{Lsn, Partial};

    #[test]
    fn an_event_is_not_stored_before_its_whole_transaction_is() {
        let place = |via| Place {
            commit_lsn: Lsn::new(120),
            index: 0,
            via,
        };
        let inside = Position {
            end_lsn: Lsn::new(100),
            partial: Some(Partial {
                commit_lsn: Lsn::new(120),
                index: 2,
            }),
        };
        let at = |lsn| Position::at(Lsn::new(lsn));
        for (stored, expected) in [(inside, false), (at(120), false), (at(121), true)] {
            assert_eq!(is_stored(place(Via::Slot), &stored), expected, "{stored}");
            // No slot sends these again.
            assert!(is_stored(place(Via::Table), &stored));
            assert!(is_stored(place(Via::Replay), &stored));
        }
    }
}
