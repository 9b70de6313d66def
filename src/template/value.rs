//! Values of columns, and the types they are of.

/// What a value should be, where it is not.
pub(super) type Needed = &'static str;

/// A column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnType {
    /// Its OID; 0 where that is not known.
    pub oid: u32,
    /// Its modifier (`atttypmod`): length, precision or scale; -1 without.
    pub modifier: i32,
}

impl ColumnType {
    /// `text`.
    pub(super) const TEXT: ColumnType = ColumnType { oid: 25, modifier: -1 };
}

/// The time that a `timestamptz`, `timestamp` (taken as UTC) or `date` is, as Postgres prints it with `DateStyle` ISO.
/// `None`: it is none, or one that only Postgres knows, such as `infinity`.
pub(crate) fn timestamp(text: &str) -> Option<jiff::Timestamp> {
    let text = text.replacen(' ', "T", 1);
    let date_and_time = if text.contains('T') { text } else { format!("{text}T00:00:00") };
    let (date, time) = date_and_time.split_once('T')?;
    let zoned = time.contains(['+', '-', 'Z']);
    // Postgres leaves minutes of the offset out where they are zero.
    let zone = if zoned { "" } else { "Z" };
    format!("{date}T{time}{zone}").parse().ok()
}

/// The bytes of a `bytea`, which Postgres prints as `\x` and hexadecimal digits (`bytea_output`, which the session sets).
pub(crate) fn bytea(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    text.strip_prefix(b"\\x").and_then(|digits| digits.chunks(2).map(pair).collect())
}
