//! A row's values, checked once and then walked without any way to fail.

use super::cursor::{Cursor, DecodeError, Problem};

/// A row's values: a number of columns and their still encoded bytes, which were checked to hold exactly that many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tuple<'a> {
    columns: u16,
    bytes: &'a [u8],
}

/// One value of a [`Tuple`], borrowed from the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// SQL NULL.
    Null,
    /// A toasted value that did not change: never in an insert.
    Unchanged,
    /// In text form.
    Text(&'a [u8]),
    /// In binary form.
    Binary(&'a [u8]),
}

impl<'a> Tuple<'a> {
    /// Reads a whole tuple, so that walking it cannot fail.
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let columns = cursor.count16("a row's number of columns")?;
        let before = cursor.rest();
        for _ in 0..columns {
            value(cursor)?;
        }
        // What is read is a prefix of what was there, so the difference is its length.
        let length = before.len().saturating_sub(cursor.rest().len());
        let bytes = before.get(..length).unwrap_or_default();
        Ok(Tuple { columns, bytes })
    }

    /// Its values in the order of the relation's columns. Allocates nothing.
    pub(crate) fn values(&self) -> Values<'a> {
        Values { left: self.columns, cursor: Cursor::new(self.bytes) }
    }

    /// How many values it has.
    pub(crate) fn len(&self) -> usize {
        self.columns.into()
    }
}

/// The values of a [`Tuple`], in order.
#[derive(Debug, Clone)]
pub(crate) struct Values<'a> {
    left: u16,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    #[inline]
    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        value(&mut self.cursor).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for Values<'_> {}

#[inline]
fn value<'a>(cursor: &mut Cursor<'a>) -> Result<Value<'a>, DecodeError> {
    match cursor.u8("a value's kind")? {
        b'n' => Ok(Value::Null),
        b'u' => Ok(Value::Unchanged),
        b't' => sized(cursor).map(Value::Text),
        b'b' => sized(cursor).map(Value::Binary),
        found => Err(cursor.error(1, "a value's kind", Problem::Unknown { found })),
    }
}

#[inline]
fn sized<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], DecodeError> {
    let length = cursor.count32("a value's length")?;
    cursor.take(length, "a value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuple_gives_back_each_value_and_leaves_what_is_behind_it() {
        let bytes = b"\0\x04nt\0\0\0\x02hiub\0\0\0\0rest";
        let mut cursor = Cursor::new(bytes);
        let tuple = Tuple::read(&mut cursor).unwrap();
        assert_eq!(cursor.rest(), b"rest");
        assert_eq!(tuple.len(), 4);
        assert!(tuple.len() > 0);
        assert_eq!(
            tuple.values().collect::<Vec<_>>(),
            [Value::Null, Value::Text(b"hi"), Value::Unchanged, Value::Binary(b"")]
        );
    }

    #[test]
    fn a_tuple_without_columns_is_empty() {
        let tuple = Tuple::read(&mut Cursor::new(&[0, 0])).unwrap();
        assert_eq!(tuple.len(), 0);
        assert_eq!(tuple.values().next(), None);
    }

    #[test]
    fn a_tuple_that_claims_more_than_there_is_is_refused() {
        for (bytes, offset) in [
            (&b"\0\x02n"[..], 3),
            (b"\0\x01t\x7f\xff\xff\xffx", 7),
            (b"\0\x01t\xff\xff\xff\xffx", 3),
            (b"\x80\0", 0),
            (b"\0\x01x", 2),
            (b"\0", 0),
        ] {
            let error = Tuple::read(&mut Cursor::new(bytes)).unwrap_err();
            assert_eq!(error.offset, offset, "{bytes:?}: {error}");
        }
    }
}
