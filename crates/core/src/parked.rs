//! The parked events as values, and the writes to rows of delivered events. No I/O.

use std::borrow::Cow;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, LazyLock};

use crate::config::{DeliveryConfig, OnError};
use crate::decode::RelationColumn;
use crate::error::{Error, Kind};
use crate::event::{Event, Place, RowId};
use crate::template::{ColumnType, Values as _};

/// Class of an event that is parked behind an earlier one.
pub const BEHIND: &str = "behind";
/// All classes.
pub const CLASSES: [&str; 5] = ["unroutable", "too-large", "rejected", "refused", BEHIND];

/// The reason for which an event was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The class of the failure, a stable word.
    pub class: &'static str,
    /// The cause, in one line.
    pub cause: String,
    /// The number of attempts.
    pub attempts: u32,
}

impl Failure {
    /// Of an event that `error` is about.
    pub fn of(error: &Error) -> Failure {
        Failure {
            class: error.kind().class(),
            cause: error.cause().to_owned(),
            attempts: error.attempts,
        }
    }

    /// Of an event for a topic that refuses records. That costs the event no attempt.
    pub(crate) fn untried(topic: &str) -> Failure {
        Failure {
            class: Kind::TopicRefused.class(),
            cause: format!("topic {topic} refuses records; this event was not tried"),
            attempts: 0,
        }
    }
}

/// A parked event whose retry failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAgain {
    /// The id in the table of parked events.
    pub id: i64,
    /// The version of that row at the attempt: [`ParkedRow::version`].
    pub version: String,
    /// The row of the outbox.
    pub row: RowId,
    /// The failure of the retry.
    pub failure: Failure,
    /// Milliseconds until the next retry; none if only an operator's request retries the event.
    pub retry_in_ms: Option<i64>,
}

/// An event to park.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedEvent {
    /// The row of the outbox.
    pub row: RowId,
    /// The key of its record. Events without a key have no order.
    pub key: Option<Vec<u8>>,
    /// The topic of its record; none if the event has no route.
    pub topic: Option<String>,
    /// The event's place.
    pub place: Place,
    /// The commit time of its transaction, in microseconds since the Unix epoch.
    pub committed_at_us: i64,
    /// The columns that its record is made of.
    pub columns: Vec<ParkedColumn>,
    /// The failure; none if the event is parked behind another.
    pub why: Option<Failure>,
    /// Milliseconds until the next retry; none if only an operator's request retries the event.
    pub retry_in_ms: Option<i64>,
}

/// A column of a parked event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedColumn {
    /// The name of the column.
    pub name: String,
    /// The OID and the modifier of its type.
    pub type_of: ColumnType,
    /// The value in the text form of Postgres.
    pub text: Option<Vec<u8>>,
}

impl ParkedEvent {
    /// Copies `event`, whose columns have these names. The caller adds key and topic.
    pub fn of(event: &Event<'_>, names: &[String]) -> ParkedEvent {
        let column = |(place, name): (usize, &String)| ParkedColumn {
            name: name.clone(),
            type_of: event.row.column_type(place),
            text: event.row.get(place).map(<[u8]>::to_vec),
        };
        ParkedEvent {
            row: event.row_id(),
            key: None,
            topic: None,
            place: event.place,
            committed_at_us: event.committed_at_us,
            columns: names.iter().enumerate().map(column).collect(),
            why: None,
            retry_in_ms: None,
        }
    }

    /// The value of a column; none if it is NULL or was not kept.
    pub fn text(&self, name: &str) -> Option<&[u8]> {
        self.columns
            .iter()
            .find(|column| column.name == name)?
            .text
            .as_deref()
    }

    /// The failure, if the event itself was tried. Only then the row of the outbox is marked.
    pub fn tried(&self) -> Option<&Failure> {
        self.why.as_ref().filter(|why| why.attempts > 0)
    }

    /// The event's size in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let columns = self
            .columns
            .iter()
            .map(|column| column.name.len() + column.text.as_ref().map_or(0, Vec::len));
        size_of::<ParkedEvent>()
            + self.row.key.len()
            + self.key.as_ref().map_or(0, Vec::len)
            + columns.sum::<usize>()
    }
}

/// A parked event without its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedRef {
    /// The row of the outbox.
    pub row: RowId,
    /// The place of the event.
    pub place: Place,
    /// The commit time of its transaction, in microseconds since the Unix epoch.
    pub committed_at_us: i64,
    /// The key of its record.
    pub key: Option<Vec<u8>>,
    /// The topic that refuses the event, if that is the reason for parking.
    pub refused_by: Option<String>,
}

impl ParkedRef {
    /// Of this event.
    pub fn of(event: &ParkedEvent) -> ParkedRef {
        let why = event.why.as_ref();
        let is_refused = why.is_some_and(|why| why.class == Kind::TopicRefused.class());
        ParkedRef {
            row: event.row.clone(),
            place: event.place,
            committed_at_us: event.committed_at_us,
            key: event.key.clone(),
            refused_by: event.topic.clone().filter(|_| is_refused),
        }
    }
}

/// Ids and keys of more bytes are remembered by their hashes: a row can have one of any size.
const WHOLE_MAX: usize = 64;

/// What stands for an id or a key in memory, in this process: itself, or 128 bits of hash under
/// random keys. A hash is longer than what stands for itself.
pub fn short(bytes: &[u8]) -> Cow<'_, [u8]> {
    static HASHES: LazyLock<[RandomState; 2]> =
        LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    const HASH: [u8; WHOLE_MAX] = [0; WHOLE_MAX];
    if bytes.len() <= WHOLE_MAX
        || bytes.len() == WHOLE_MAX + size_of::<[u64; 2]>() && bytes.starts_with(&HASH)
    {
        return Cow::Borrowed(bytes);
    }
    let hashes = HASHES
        .iter()
        .flat_map(|hash| hash.hash_one(bytes).to_ne_bytes());
    Cow::Owned(HASH.into_iter().chain(hashes).collect())
}

/// The first parked event of an aggregate, or an event without an aggregate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregateHead {
    /// The id in the table of parked events.
    pub id: i64,
    /// The index of the outbox.
    pub outbox: usize,
    /// The aggregate's key; none if the event has no key, or was not read yet.
    pub key: Option<Vec<u8>>,
    /// Whether an operator requested the retry.
    pub is_asked: bool,
}

/// A parked event, read from the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedRow {
    /// The id in the table of parked events.
    pub id: i64,
    /// The event.
    pub event: ParkedEvent,
    /// The class of its failure; [`BEHIND`] if it was not tried.
    pub class: String,
    /// The cause of its failure.
    pub error: Option<String>,
    /// The number of attempts.
    pub attempts: u32,
    /// Whether an operator requested to drop the event.
    pub is_dropped: bool,
    /// Changes with every write to the row of the table, such as an operator's request.
    pub version: String,
}

/// The limits of one read of an aggregate's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The greatest number of events.
    pub events: i64,
    /// The greatest size of their values, in bytes. A single event may exceed it.
    pub bytes: usize,
}

impl ParkedRow {
    /// Its columns, described as those of a table.
    pub fn described(&self) -> Vec<RelationColumn> {
        let columns = self.event.columns.iter();
        columns
            .map(|ParkedColumn { name, type_of, .. }| RelationColumn {
                name: name.clone(),
                type_oid: type_of.oid,
                type_modifier: type_of.modifier,
            })
            .collect()
    }
}

/// Whether events are parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parking {
    /// No events are parked.
    Off,
    /// Events are parked where the table exists; the table is not made.
    IfTableExists,
    /// Events are parked, and a missing table is made.
    On,
}

impl Parking {
    /// Whether this configuration parks events.
    pub fn of(delivery: &DeliveryConfig) -> Parking {
        if delivery.on_error == OnError::Park {
            Parking::On
        } else {
            Parking::Off
        }
    }
}

/// The writes of one transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Rows of acked events.
    pub acked: Vec<RowId>,
    /// Rows of events that were given up.
    pub failed: Vec<(RowId, Failure)>,
    /// Events to park.
    pub parked: Vec<Arc<ParkedEvent>>,
    /// Parked events whose rows are marked.
    pub waiting: Vec<Arc<ParkedEvent>>,
    /// Whether the relay itself may be a synchronous standby. A commit that parks events would wait
    /// for its own confirmation.
    pub is_synchronous: bool,
    /// Parked events whose retry failed.
    pub failed_again: Vec<FailedAgain>,
    /// Ids of events that are no longer parked.
    pub unparked: Vec<i64>,
    /// The lower halves of the ids of the rows' transactions, which other sessions may not see yet:
    /// they are marked once they are seen.
    pub xids: Vec<u32>,
}

impl Batch {
    /// The retries of these events delivered them.
    pub fn delivered(events: &[ParkedRow]) -> Batch {
        Batch {
            acked: events.iter().map(|held| held.event.row.clone()).collect(),
            unparked: events.iter().map(|held| held.id).collect(),
            ..Batch::default()
        }
    }

    /// Whether the commit waits for synchronous standbys: a promoted one has the parked events that
    /// it has no slot for, and none that was delivered or dropped. It would be sent again behind
    /// later ones.
    pub fn on_standbys(&self) -> bool {
        !self.unparked.is_empty() || !(self.parked.is_empty() || self.is_synchronous)
    }

    /// Whether rows of the outbox are written to.
    pub fn marks_rows(&self) -> bool {
        !(self.acked.is_empty() && self.failed.is_empty() && self.waiting.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strum::VariantArray as _;

    #[test]
    fn every_kind_of_error_has_a_known_class() {
        for kind in Kind::VARIANTS {
            assert!(CLASSES.contains(&kind.class()), "{kind:?}");
        }
    }

    #[test]
    fn commits_that_park_events_or_end_that_wait_for_standbys() {
        let marks = Batch {
            acked: vec![RowId::new(0, std::iter::once(b"7".as_slice()))],
            ..Batch::default()
        };
        assert!(!marks.on_standbys());
        let unparks = Batch {
            unparked: vec![1],
            ..marks
        };
        assert!(unparks.on_standbys(), "a promoted one would send it again");
        let of_standby = Batch {
            is_synchronous: true,
            ..unparks
        };
        assert!(of_standby.on_standbys(), "the stream confirms meanwhile");
    }

    #[test]
    fn long_names_are_short_in_memory_and_remain_different() {
        for bytes in [0, 1, WHOLE_MAX] {
            let whole = vec![b'x'; bytes];
            assert_eq!(short(&whole), whole);
        }
        let long = vec![b'x'; 3_000_000];
        let named = short(&long).into_owned();
        assert_eq!(
            (named.len(), &*short(&long), &*short(&named)),
            (WHOLE_MAX + 16, &*named, &*named)
        );
        assert_ne!(short(&long[1..]), named);
    }
}
