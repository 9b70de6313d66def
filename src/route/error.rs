//! An event without a way to Kafka.

use super::TopicProblem;
use crate::config::SlotName;
use crate::error::{Error, Kind};
use crate::event::{Place, Shown};

/// What is wrong with an event's way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteProblem {
    /// Kafka does not take the topic.
    #[error("template {template:?} makes topic {topic}, which {problem}")]
    Topic {
        /// The template as it was written.
        template: String,
        /// What it makes of the row.
        topic: Shown,
        /// What is wrong with that.
        problem: TopicProblem,
    },
    /// There is no topic: a column that selects it is NULL.
    #[error("column {column} is NULL, and template {template:?} needs it for the topic")]
    NoTopic {
        /// The template as it was written.
        template: String,
        /// The column.
        column: String,
    },
    /// A value is not what a template needs.
    #[error("column {column} is not {needed}, which template {template:?} needs")]
    Value {
        /// The template as it was written.
        template: String,
        /// The column.
        column: String,
        /// What it should be.
        needed: &'static str,
    },
}

/// An event cannot be routed. It was not skipped: the position stays before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}, row {id}: {problem}")]
pub struct RouteError {
    /// The event.
    pub place: Place,
    /// The row's id.
    pub id: Shown,
    /// What is wrong with it.
    pub problem: RouteProblem,
}

/// Where what was meant is not what was written.
const CORRECT: &str = "If the template or its column is not the one that was meant, correct the configuration; default('…') \
                       gives NULL a value. Otherwise keep such rows out with a CHECK on the column";

impl RouteError {
    /// What an operator reads: what happened, on which slot, and what to do.
    pub fn into_error(self, slot: &SlotName) -> Error {
        Error::new(Kind::Event, self.problem)
            .about(format_args!("slot {slot}: {}, row {}", self.place, self.id))
            .remedy(format_args!(
                "nothing was skipped, and nothing behind this row is delivered. {CORRECT}. To pass this one over, {}; that \
                 gives the whole transaction up",
                self.place.give_up(slot)
            ))
    }

    /// The same of a row that is not in the stream, and whose place is not known.
    pub fn of_sample(self) -> Error {
        Error::new(Kind::Event, self.problem)
            .of_row(self.id)
            .remedy(format_args!("`run` stops at such a row. {CORRECT}"))
    }
}
