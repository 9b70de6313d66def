//! A row that was not in a stream, as the event it would be.

use super::{Event, Fault, Place, Polled, Via};
use crate::config::OutboxConfig;
use crate::decode::Column;
use crate::position::Lsn;

/// One row of the outbox table, kept as the event it is: as [`Polled`] makes it. Its place is not known: it is 0/0.
#[derive(Debug)]
pub struct Sample(Polled);

impl Sample {
    /// A row of these columns and their values in Postgres' text form; `None` is NULL.
    ///
    /// # Errors
    /// The first that `outbox` needs and that is not among the columns.
    pub fn new(outbox: &OutboxConfig, row: Vec<(Column, Option<&str>)>) -> Result<Sample, String> {
        let (columns, values): (Vec<_>, Vec<_>) = row.into_iter().unzip();
        let mut polled = Polled::new(outbox, columns)?;
        polled.put(values.into_iter().map(|value| value.map(str::as_bytes)));
        Ok(Sample(polled))
    }

    /// The event.
    ///
    /// # Errors
    /// The place of a column no event can be made with, and what is wrong with its value.
    pub fn event(&self) -> Result<Event<'_>, (usize, Fault)> {
        self.0.read(Place { commit_lsn: Lsn::ZERO, index: 0, via: Via::Slot }, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox(columns: &[&str]) -> OutboxConfig {
        let columns = columns.iter().map(|name| (*name).to_owned()).collect();
        OutboxConfig { columns, ..OutboxConfig::default() }
    }

    fn column(name: &str, type_oid: u32) -> Column {
        Column { name: name.to_owned(), type_oid, type_modifier: -1 }
    }

    #[test]
    fn a_sample_is_the_event_it_would_be_in_the_stream() {
        let needed = outbox(&["id", "payload", "key"]);
        let row =
            vec![(column("payload", 17), Some("\\x00")), (column("id", 2950), Some("7")), (column("key", 25), None)];
        let sample = Sample::new(&needed, row).unwrap();
        let event = sample.event().unwrap();
        assert_eq!((event.id(), event.row.get(1), event.row.get(2)), (&b"7"[..], Some(&b"\\x00"[..]), None));
        assert_eq!(event.row.type_oid(1), 17);
    }

    #[test]
    fn a_null_id_and_a_missing_column_are_named() {
        let needed = outbox(&["id", "payload"]);
        let row = || vec![(column("payload", 25), Some("")), (column("id", 25), None)];
        assert_eq!(Sample::new(&needed, row()).unwrap().event(), Err((0, Fault::Null)));
        assert_eq!(Sample::new(&needed, row()[..1].to_vec()).unwrap_err(), "id");
    }
}
