//! A row that was not in a stream, as the event it would be.

use std::sync::Arc;

use super::mapping::Mapping;
use super::{Event, Fault, Place, Row};
use crate::decode::{self, Column, Insert, Message, Relation};
use crate::position::Lsn;

/// One row of the outbox table, put together as the server would send it.
///
/// It goes through the decoder and the mapping of the stream, so that it is taken for what it would be taken for there.
/// Its place is not known: it is 0/0.
#[derive(Debug)]
pub struct Sample {
    mapping: Arc<Mapping>,
    message: Vec<u8>,
}

impl Sample {
    /// A row of these columns and their values in Postgres' text form; `None` is NULL.
    ///
    /// # Errors
    /// The first of `needed` that is not among the columns.
    pub fn new<'n>(needed: &'n [String], row: Vec<(Column, Option<&str>)>) -> Result<Sample, &'n str> {
        let message = insert(row.iter().map(|(_, value)| *value));
        let columns = row.into_iter().map(|(column, _)| column).collect();
        let relation = Relation { oid: 0, schema: String::new(), table: String::new(), columns };
        let missing = |place: usize| needed.get(place).map(String::as_str).unwrap_or_default();
        Ok(Sample { mapping: Arc::new(Mapping::new(needed, &relation).map_err(missing)?), message })
    }

    /// Another row of the same columns, with these values in the same order.
    #[must_use]
    pub fn another<'v>(&self, values: impl ExactSizeIterator<Item = Option<&'v str>>) -> Sample {
        Sample { mapping: Arc::clone(&self.mapping), message: insert(values) }
    }

    /// The event.
    ///
    /// # Errors
    /// The place of a column no event can be made with, and what is wrong with its value.
    pub fn event(&self) -> Result<Event<'_>, (usize, Fault)> {
        let Ok(Message::Insert(Insert { tuple, .. })) = decode::decode(&self.message) else {
            return Err((0, Fault::Binary));
        };
        if let Some(fault) = self.mapping.fault(&tuple) {
            return Err(fault);
        }
        let place = Place { commit_lsn: Lsn::ZERO, index: 0, committed_at_us: 0 };
        Ok(Event { place, outbox: 0, row: Row::new(tuple, &self.mapping) })
    }
}

/// <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html#PROTOCOL-LOGICALREP-MESSAGE-FORMATS-INSERT>
fn insert<'v>(values: impl ExactSizeIterator<Item = Option<&'v str>>) -> Vec<u8> {
    let mut message = vec![b'I', 0, 0, 0, 0, b'N'];
    // A table has at most 1600 columns, and a value at most 1 GiB.
    message.extend(u16::try_from(values.len()).unwrap_or(u16::MAX).to_be_bytes());
    for value in values {
        match value {
            None => message.push(b'n'),
            Some(text) => {
                message.push(b't');
                message.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
                message.extend(text.as_bytes());
            }
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, type_oid: u32) -> Column {
        Column { name: name.to_owned(), type_oid, type_modifier: -1 }
    }

    #[test]
    fn a_sample_is_the_event_it_would_be_in_the_stream() {
        let needed = ["id", "payload", "key"].map(str::to_owned);
        let row =
            vec![(column("payload", 17), Some("\\x00")), (column("id", 2950), Some("7")), (column("key", 25), None)];
        let sample = Sample::new(&needed, row).unwrap();
        let event = sample.event().unwrap();
        assert_eq!((event.id(), event.row.get(1), event.row.get(2)), (&b"7"[..], Some(&b"\\x00"[..]), None));
        assert_eq!(event.row.type_oid(1), 17);
        let another = sample.another([None, Some("8"), Some("k")].into_iter());
        let event = another.event().unwrap();
        assert_eq!((event.id(), event.row.get(1), event.row.get(2)), (&b"8"[..], None, Some(&b"k"[..])));
    }

    #[test]
    fn a_null_id_and_a_missing_column_are_named() {
        let needed = ["id", "payload"].map(str::to_owned);
        let row = || vec![(column("payload", 25), Some("")), (column("id", 25), None)];
        assert_eq!(Sample::new(&needed, row()).unwrap().event(), Err((0, Fault::Null)));
        assert_eq!(Sample::new(&needed, row()[..1].to_vec()).unwrap_err(), "id");
    }
}
