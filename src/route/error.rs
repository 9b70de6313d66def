//! An event without a way to Kafka.

use super::TopicProblem;
use crate::config::SlotName;
use crate::error::{Error, Kind};
use crate::event::{Place, Shown};

/// An event cannot be routed. It was not skipped: the position stays before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}, row {id}: aggregate type {aggregate_type} behind prefix {prefix} makes a topic that {problem}")]
pub struct RouteError {
    /// The event.
    pub place: Place,
    /// The row's id.
    pub id: Shown,
    /// What was to select the topic.
    pub aggregate_type: Shown,
    /// The configured prefix.
    pub prefix: Shown,
    /// What is wrong with the two together.
    pub problem: TopicProblem,
}

impl RouteError {
    /// What an operator reads: what happened, on which slot, and what to do.
    pub fn into_error(self, slot: &SlotName) -> Error {
        Error::new(Kind::Event, format!("slot {slot}: {self}")).remedy(format_args!(
            "nothing was skipped, and nothing behind this row is delivered. If the prefix or the column is not the one \
             that was meant, correct the configuration. Otherwise keep such rows out with a CHECK on the column. To \
             pass this one over, {}; that gives the whole transaction up",
            self.place.give_up(slot)
        ))
    }
}
