//! Rows that were read from the table, as the events they would be in the stream.

use std::sync::Arc;

use super::row::Mapping;
use super::{Event, Fault, Place, Row};
use crate::config::OutboxConfig;
use crate::decode::{self, Column, Insert, Message, Relation};

/// What the buffer may keep between two rows.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Makes an event of each row: puts it together as the server would send it, and takes it through the decoder and the
/// mapping of the stream, so that it is taken for what it would be taken for there.
///
/// Holds one row: the one whose event was made last, or 1 MiB at most where that was a small one.
#[derive(Debug)]
pub struct Polled {
    mapping: Arc<Mapping>,
    message: Vec<u8>,
}

impl Polled {
    /// For rows of these columns, in this order, of which those of `outbox` become the event's; a column of a domain has
    /// the type under it.
    ///
    /// # Errors
    /// The first that `outbox` needs and that is not among the columns.
    pub fn new(outbox: &OutboxConfig, columns: Vec<Column>) -> Result<Polled, String> {
        let relation = Relation { oid: 0, schema: String::new(), table: String::new(), columns };
        let missing = |place: usize| outbox.columns.get(place).cloned().unwrap_or_default();
        Ok(Polled { mapping: Arc::new(Mapping::new(outbox, &relation).map_err(missing)?), message: Vec::new() })
    }

    /// The event of a row with these values, in Postgres' text form and one for each column; `None` is NULL. `place` and
    /// `outbox` are the caller's to say.
    ///
    /// # Errors
    /// The place of a column no event can be made with, and what is wrong with its value.
    pub fn event<'a, 'v>(
        &'a mut self,
        place: Place,
        outbox: usize,
        values: impl ExactSizeIterator<Item = Option<&'v [u8]>>,
    ) -> Result<Event<'a>, (usize, Fault)> {
        // <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html#PROTOCOL-LOGICALREP-MESSAGE-FORMATS-INSERT>
        let message = &mut self.message;
        message.clear();
        message.shrink_to(KEPT_BYTES_MAX);
        message.extend([b'I', 0, 0, 0, 0, b'N']);
        // A table has at most 1600 columns, and a value at most 1 GiB.
        message.extend(u16::try_from(values.len()).unwrap_or(u16::MAX).to_be_bytes());
        for value in values {
            match value {
                None => message.push(b'n'),
                Some(text) => {
                    message.push(b't');
                    message.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
                    message.extend(text);
                }
            }
        }
        let Ok(Message::Insert(Insert { tuple, .. })) = decode::decode(&self.message) else {
            return Err((0, Fault::Binary));
        };
        if tuple.values().count() != self.mapping.columns() {
            return Err((0, Fault::Unchanged));
        }
        if let Some(fault) = self.mapping.fault(&tuple) {
            return Err(fault);
        }
        Ok(Event { place, committed_at_us: 0, xid: None, outbox, row: Row::new(tuple, &self.mapping) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::Lsn;

    const PLACE: Place = Place { commit_lsn: Lsn::new(7), index: 3, via: crate::event::Via::Table };

    fn polled(needed: &[&str], columns: &[(&str, u32)]) -> Result<Polled, String> {
        let needed = needed.iter().map(|name| (*name).to_owned()).collect();
        let outbox = OutboxConfig { columns: needed, ..OutboxConfig::default() };
        let column = |(name, type_oid): &(&str, u32)| Column {
            name: (*name).to_owned(),
            type_oid: *type_oid,
            type_modifier: -1,
        };
        Polled::new(&outbox, columns.iter().map(column).collect())
    }

    #[test]
    fn rows_become_events_one_after_the_other_wherever_their_columns_stand() {
        let mut polled = polled(&["id", "payload"], &[("payload", 17), ("other", 25), ("id", 2950)]).unwrap();
        for (payload, id) in [(Some(&b"\\x00"[..]), &b"7"[..]), (None, b"8"), (Some(b""), "größe".as_bytes())] {
            let event = polled.event(PLACE, 2, [payload, None, Some(id)].into_iter()).unwrap();
            assert_eq!((event.place, event.outbox, event.id()), (PLACE, 2, id));
            assert_eq!((event.row.get(1), event.row.get(2), event.row.type_oid(1)), (payload, None, 17));
        }
    }

    #[test]
    fn a_null_id_a_missing_column_and_a_row_of_another_width_are_no_events() {
        let of = || polled(&["id", "v"], &[("v", 25), ("id", 20)]);
        assert_eq!(of().unwrap().event(PLACE, 0, [Some(&b"1"[..]), None].into_iter()), Err((0, Fault::Null)));
        assert_eq!(of().unwrap().event(PLACE, 0, [Some(&b"1"[..])].into_iter()), Err((0, Fault::Unchanged)));
        assert_eq!(polled(&["id", "w"], &[("v", 25), ("id", 20)]).unwrap_err(), "w");
    }

    #[test]
    fn the_buffer_of_a_large_row_is_given_back_with_the_next_one() {
        let mut polled = polled(&["id"], &[("id", 25)]).unwrap();
        let large = vec![b'x'; 4 * KEPT_BYTES_MAX];
        assert_eq!(polled.event(PLACE, 0, [Some(&large[..])].into_iter()).unwrap().id().len(), large.len());
        polled.event(PLACE, 0, [Some(&b"1"[..])].into_iter()).unwrap();
        assert!(polled.message.capacity() <= KEPT_BYTES_MAX, "{}", polled.message.capacity());
    }
}
