//! What names one row of an outbox.

/// Between two values of a key: no text of Postgres has it.
const SEPARATOR: u8 = 0;

/// A row, by its outbox and the values of its [row key](crate::config::RowKey). Of a table without one, all rows of an id
/// have the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId {
    /// Index of the outbox.
    pub outbox: usize,
    /// The values in Postgres' text form, the event's id first, with a NUL between two.
    pub key: Vec<u8>,
}

impl RowId {
    /// The row of these values.
    pub fn new<'v>(outbox: usize, values: impl Iterator<Item = &'v [u8]>) -> RowId {
        let mut key = Vec::new();
        join(values, &mut key);
        RowId { outbox, key }
    }

    /// The event's id.
    pub fn id(&self) -> &[u8] {
        self.values().next().unwrap_or_default()
    }

    /// The values of the key, in its order.
    pub fn values(&self) -> impl Iterator<Item = &[u8]> {
        self.key.split(|byte| *byte == SEPARATOR)
    }
}

/// Appends these values as a [`RowId`] has them.
#[inline]
pub(super) fn join<'v>(values: impl Iterator<Item = &'v [u8]>, into: &mut Vec<u8>) {
    for (number, value) in values.enumerate() {
        if number > 0 {
            into.push(SEPARATOR);
        }
        into.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_id_gives_back_its_values_the_id_first() {
        for values in [&[&b"7"[..]][..], &[b"o-1", b"2026-01-01 00:00:00+00", b"x"], &[b"", b"5"], &[b""]] {
            let mut key = Vec::new();
            join(values.iter().copied(), &mut key);
            let row = RowId { outbox: 1, key };
            assert_eq!(row.values().collect::<Vec<_>>(), values);
            assert_eq!(row.id(), values[0]);
        }
    }
}
