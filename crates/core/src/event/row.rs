//! The values of one event from the stream, from a table or from a message, and the key of its row.

use std::borrow::Cow;
use std::sync::Arc;

use super::error::Fault;
use super::{Event, Place};
use crate::config::{MESSAGE_CONTENT, MESSAGE_LSN, MESSAGE_PREFIX, OutboxConfig, RowKey};
use crate::decode::{
    self, Insert, LogicalMessage, Message, Relation, RelationColumn, Tuple, Value,
};
use crate::template::{ColumnType, Values, each_member, text_of};

/// The values of one row or message, by the index of the column in [`OutboxConfig::columns`].
/// Values are the text of Postgres, borrowed from the receive buffer where possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<'a>(Of<'a>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Of<'a> {
    Table(Tuple<'a>, Arc<Mapping>),
    Message(Content<'a>),
}

impl<'a> Row<'a> {
    /// A row of the slot.
    pub fn new(tuple: Tuple<'a>, mapping: &Arc<Mapping>) -> Self {
        Row(Of::Table(tuple, Arc::clone(mapping)))
    }

    /// A message as a row.
    pub fn message(content: Content<'a>) -> Self {
        Row(Of::Message(content))
    }

    /// The value in this place; `None` where it is NULL.
    #[inline]
    pub fn get(&self, place: usize) -> Option<&[u8]> {
        match &self.0 {
            Of::Table(tuple, mapping) => match tuple.values().nth(mapping.position(place)?)? {
                Value::Text(text) => Some(text),
                Value::Null | Value::Unchanged | Value::Binary(_) => None,
            },
            Of::Message(content) => content.get(place),
        }
    }

    /// Whether it has all values of its row key. A row that was written before its table had all
    /// columns of the key has not.
    pub fn has_key(&self) -> bool {
        match &self.0 {
            Of::Table(_, mapping) => mapping
                .row_key
                .as_ref()
                .is_some_and(|key| key.places.iter().all(|place| self.get(*place).is_some())),
            // The key is the LSN, or an id in the content.
            Of::Message(_) => true,
        }
    }

    /// The transaction in the row's own column; `None` where there is no such column, or no number
    /// in it.
    #[inline]
    pub fn xid(&self) -> Option<u64> {
        let Of::Table(tuple, mapping) = &self.0 else {
            return None;
        };
        match tuple.values().nth(mapping.xid?)? {
            Value::Text(text) => std::str::from_utf8(text).ok()?.parse().ok(),
            Value::Null | Value::Unchanged | Value::Binary(_) => None,
        }
    }

    /// Appends the key of its [`RowId`]: the values of its row key up to the first missing one.
    #[inline]
    pub(crate) fn write_key(&self, into: &mut Vec<u8>) {
        let key = match &self.0 {
            Of::Table(_, mapping) => mapping.row_key.as_ref(),
            Of::Message(_) => None,
        };
        let places = key.map_or(&[0][..], |key| &key.places);
        let places = places
            .iter()
            .chain(key.and_then(|key| key.transaction.as_ref()));
        join(places.map_while(|place| self.get(*place)), into);
    }

    /// The OID of the type of the column in this place; 0 where there is none.
    #[inline]
    pub fn type_oid(&self, place: usize) -> u32 {
        self.column_type(place).oid
    }
}

impl Values for Row<'_> {
    #[inline]
    fn value(&self, place: usize) -> Option<&[u8]> {
        self.get(place)
    }

    #[inline]
    fn column_type(&self, place: usize) -> ColumnType {
        match &self.0 {
            Of::Table(_, mapping) => mapping.column_type(place),
            Of::Message(content) => content.column_type(place),
        }
    }

    fn is_checked(&self, place: usize) -> bool {
        match &self.0 {
            Of::Table(..) => true,
            Of::Message(content) => content.is_checked(place),
        }
    }
}

/// Separates the values of a key: text of Postgres cannot contain it.
const SEPARATOR: u8 = 0;

/// A row, by its outbox and the values of its [row key](RowKey). Of a table without one, all rows
/// of an id have the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId {
    /// Index of the outbox.
    pub outbox: usize,
    /// The values in Postgres' text form, the event's id first, separated by NUL.
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

#[inline]
fn join<'v>(values: impl Iterator<Item = &'v [u8]>, into: &mut Vec<u8>) {
    for (number, value) in values.enumerate() {
        if number > 0 {
            into.push(SEPARATOR);
        }
        into.extend_from_slice(value);
    }
}

/// The positions of an outbox's columns in the tuples of one version of its table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    columns: usize,
    /// By place: the position in a tuple, and the type. None for a missing column that only the row
    /// key needs.
    places: Vec<Option<(usize, ColumnType)>>,
    row_key: Option<RowKey>,
    /// The position of the column with the row's transaction.
    xid: Option<usize>,
}

impl Mapping {
    /// Finds the columns of `outbox` in `relation`. The error is the place of the first missing
    /// one; columns that only the row key needs may be missing.
    pub fn new(outbox: &OutboxConfig, relation: &Relation) -> Result<Self, usize> {
        let routed = outbox.routed_columns().len();
        let find = |(place, name): (usize, &String)| {
            let mut columns = relation.columns.iter().enumerate();
            let found = columns.find(|(_, column)| column.name == *name);
            let of = |column: &RelationColumn| ColumnType {
                oid: column.type_oid,
                modifier: column.type_modifier,
            };
            match found {
                None if place < routed => Err(place),
                found => Ok(found.map(|(position, column)| (position, of(column)))),
            }
        };
        let places = outbox
            .columns
            .iter()
            .enumerate()
            .map(find)
            .collect::<Result<_, _>>()?;
        let is_xid = |column: &RelationColumn| outbox.xid_column.as_ref() == Some(&column.name);
        let xid = relation.columns.iter().position(is_xid);
        Ok(Mapping {
            columns: relation.columns.len(),
            places,
            row_key: outbox.row_key.clone(),
            xid,
        })
    }

    pub fn columns(&self) -> usize {
        self.columns
    }

    #[inline]
    fn position(&self, place: usize) -> Option<usize> {
        self.places.get(place)?.map(|(position, _)| position)
    }

    fn column_type(&self, place: usize) -> ColumnType {
        self.places.get(place).copied().flatten().map_or(
            ColumnType {
                oid: 0,
                modifier: -1,
            },
            |(_, of)| of,
        )
    }

    /// The first invalid value of a tuple, and its place.
    #[inline]
    pub fn fault(&self, tuple: &Tuple<'_>) -> Option<(usize, Fault)> {
        let odd = tuple.values().enumerate().find_map(|(position, value)| {
            let fault = match value {
                Value::Null | Value::Text(_) => return None,
                Value::Unchanged => Fault::Unchanged,
                Value::Binary(_) => Fault::Binary,
            };
            let place = self
                .places
                .iter()
                .position(|of| of.is_some_and(|(at, _)| at == position))?;
            Some((place, fault))
        });
        let id_is_null = || {
            let id = self
                .position(0)
                .and_then(|position| tuple.values().nth(position));
            matches!(id, Some(Value::Null)).then_some((0, Fault::Null))
        };
        odd.or_else(id_is_null)
    }
}

/// OIDs of the types of members:
/// <https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat>
const TEXT: u32 = 25;
const JSON: u32 = 114;

/// The values of one message of `pg_logical_emit_message`, by place: members of the JSON object
/// that is its content, and what every message has.
///
/// A member that is missing or `null` is NULL, a string is its text, and everything else is JSON as
/// it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content<'a> {
    /// Each with the OID of its type.
    values: Vec<(Option<Cow<'a, [u8]>>, u32)>,
    /// The place of the whole content, which may be no JSON.
    whole: Option<usize>,
}

impl<'a> Content<'a> {
    /// Reads the `needed` fields and members of `message`. The content is parsed only for members.
    /// The error is the place of the first needed member of a content that is no object.
    pub fn new(needed: &[String], message: &LogicalMessage<'a>) -> Result<Self, (usize, Fault)> {
        let of_every_message = |name: &str| match name {
            MESSAGE_LSN => Some((Cow::Owned(message.lsn.to_string().into_bytes()), TEXT)),
            MESSAGE_PREFIX => Some((Cow::Borrowed(message.prefix), TEXT)),
            MESSAGE_CONTENT => Some((Cow::Borrowed(message.content), JSON)),
            _ => None,
        };
        let mut member_at = None;
        let values = needed
            .iter()
            .enumerate()
            .map(|(place, name)| match of_every_message(name) {
                Some((value, type_oid)) => (Some(value), type_oid),
                None => {
                    member_at.get_or_insert(place);
                    (None, TEXT)
                }
            });
        let values = values.collect();
        let whole = needed.iter().position(|name| name == MESSAGE_CONTENT);
        let mut content = Content { values, whole };
        let Some(member_at) = member_at else {
            return Ok(content);
        };
        let read = each_member(message.content, |name, value| {
            // Of members with one name the last counts, as in `jsonb`.
            let place = needed
                .iter()
                .position(|needed| *needed == name && of_every_message(needed).is_none());
            if let Some(slot) = place.and_then(|place| content.values.get_mut(place)) {
                let type_oid = if value.get() == "null" || value.get().starts_with('"') {
                    TEXT
                } else {
                    JSON
                };
                let bytes = text_of(value.get())?.map(|text| match text {
                    Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                    Cow::Owned(text) => Cow::Owned(text.into_bytes()),
                });
                *slot = (bytes, type_oid);
            }
            Ok(())
        });
        read.map_err(|_| (member_at, Fault::NoMembers))?;
        Ok(content)
    }

    fn get(&self, place: usize) -> Option<&[u8]> {
        self.values.get(place)?.0.as_deref()
    }

    /// Whether the value is known to be valid for its type.
    fn is_checked(&self, place: usize) -> bool {
        self.whole != Some(place)
    }

    fn column_type(&self, place: usize) -> ColumnType {
        ColumnType {
            oid: self.values.get(place).map_or(0, |(_, oid)| *oid),
            modifier: -1,
        }
    }
}

const KEPT_BYTES_MAX: usize = 1 << 20;

/// Makes an event of each row that was read from a table: encodes it as the server would send it,
/// and uses the decoder and the mapping of the stream, so that the event is the same.
///
/// Holds the last row, or 1 MiB at most after a small one.
#[derive(Debug)]
pub struct Polled {
    /// The names of the columns.
    columns: Vec<String>,
    mapping: Arc<Mapping>,
    message: Vec<u8>,
}

impl Polled {
    /// For rows of these columns, in this order, with the base types of domains. The error is the
    /// first missing column of `outbox`.
    pub fn new(outbox: &OutboxConfig, columns: Vec<RelationColumn>) -> Result<Polled, String> {
        let relation = Relation {
            oid: 0,
            schema: String::new(),
            table: String::new(),
            columns,
        };
        let missing = |place: usize| outbox.columns.get(place).cloned().unwrap_or_default();
        Ok(Polled {
            columns: outbox.columns.clone(),
            mapping: Arc::new(Mapping::new(outbox, &relation).map_err(missing)?),
            message: Vec::new(),
        })
    }

    /// The event of a row with these values, in Postgres' text form and one for each column; `None`
    /// is NULL. The error is the column of an invalid value, and its fault.
    pub fn event<'a, 'v>(
        &'a mut self,
        place: Place,
        outbox: usize,
        values: impl ExactSizeIterator<Item = Option<&'v [u8]>>,
    ) -> Result<Event<'a>, (String, Fault)> {
        // <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html#PROTOCOL-LOGICALREP-MESSAGE-FORMATS-INSERT>
        let message = &mut self.message;
        message.clear();
        message.shrink_to(KEPT_BYTES_MAX);
        message.extend([b'I', 0, 0, 0, 0, b'N']);
        // A table has at most 1600 columns, and a value at most 1 GiB.
        message.extend(
            u16::try_from(values.len())
                .unwrap_or(u16::MAX)
                .to_be_bytes(),
        );
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
        let unfit = |(place, fault): (usize, Fault)| {
            let column = self.columns.get(place).cloned();
            Err((column.unwrap_or_default(), fault))
        };
        let Ok(Message::Insert(Insert { tuple, .. })) = decode::decode(&self.message) else {
            return unfit((0, Fault::Binary));
        };
        if tuple.values().count() != self.mapping.columns() {
            return unfit((0, Fault::Unchanged));
        }
        if let Some(fault) = self.mapping.fault(&tuple) {
            return unfit(fault);
        }
        Ok(Event {
            place,
            committed_at_us: 0,
            xid: None,
            outbox,
            row: Row::new(tuple, &self.mapping),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::decode;
    use crate::event::Via;
    use crate::position::Lsn;
    use crate::testing::wire;

    #[test]
    fn a_row_id_gives_back_its_values_the_id_first() {
        for values in [
            &[&b"7"[..]][..],
            &[b"o-1", b"2026-01-01 00:00:00+00", b"x"],
            &[b"", b"5"],
            &[b""],
        ] {
            let row = RowId::new(1, values.iter().copied());
            assert_eq!(row.values().collect::<Vec<_>>(), values);
            assert_eq!(row.id(), values[0]);
        }
    }

    fn relation(columns: &[&str]) -> Relation {
        let described = wire::relation(1, "public", "outbox", columns);
        let Ok(Message::Relation(relation)) = decode(&described) else {
            panic!("not a relation")
        };
        relation
    }

    fn tuple(bytes: &[u8]) -> Tuple<'_> {
        let Ok(Message::Insert(insert)) = decode(bytes) else {
            panic!("not an insert")
        };
        insert.tuple
    }

    fn needed(names: &[&str]) -> OutboxConfig {
        let columns = names.iter().map(|name| (*name).to_owned()).collect();
        OutboxConfig {
            columns,
            ..OutboxConfig::default()
        }
    }

    #[test]
    fn what_is_wrong_with_a_needed_value_is_named_and_with_another_is_not() {
        let mapping =
            Mapping::new(&needed(&["id", "a"]), &relation(&["other", "a", "id"])).unwrap();
        let fault = |values: &[Value<'_>]| mapping.fault(&tuple(&wire::insert(1, values)));
        let id = Value::Text(b"7");
        assert_eq!(fault(&[Value::Unchanged, Value::Null, id]), None);
        assert_eq!(
            fault(&[Value::Null, Value::Unchanged, id]),
            Some((1, Fault::Unchanged))
        );
        assert_eq!(
            fault(&[Value::Null, Value::Binary(b""), id]),
            Some((1, Fault::Binary))
        );
        assert_eq!(
            fault(&[Value::Null, Value::Null, Value::Null]),
            Some((0, Fault::Null))
        );
    }

    #[test]
    fn a_row_is_named_by_its_key_as_far_as_it_has_the_columns() {
        let mut outbox = needed(&["id", "payload"]);
        outbox.name_rows_by(&["seq".to_owned(), "id".to_owned()], Some("xid"));
        let key = |columns: &[&str]| {
            let mapping = Arc::new(Mapping::new(&outbox, &relation(columns)).unwrap());
            let values: Vec<_> = columns
                .iter()
                .map(|name| Value::Text(name.as_bytes()))
                .collect();
            let bytes = wire::insert(1, &values);
            let mut key = Vec::new();
            let row = Row::new(tuple(&bytes), &mapping);
            row.write_key(&mut key);
            (key, row.has_key())
        };
        assert_eq!(
            key(&["xid", "seq", "payload", "id"]),
            (b"id\0seq\0xid".to_vec(), true)
        );
        assert_eq!(key(&["seq", "payload", "id"]), (b"id\0seq".to_vec(), true));
        assert_eq!(key(&["xid", "payload", "id"]), (b"id".to_vec(), false));
        assert_eq!(
            Mapping::new(&outbox, &relation(&["id", "seq", "Payload"])),
            Err(1),
            "case matters"
        );
    }

    fn content<'a>(needed: &[&str], content: &'a [u8]) -> Result<Content<'a>, (usize, Fault)> {
        let needed: Vec<_> = needed.iter().map(|name| (*name).to_owned()).collect();
        let message = LogicalMessage {
            transactional: true,
            lsn: Lsn::new(0x1f),
            prefix: b"shop",
            content,
        };
        Content::new(&needed, &message)
    }

    #[test]
    fn members_are_values_and_what_is_no_string_stays_json() {
        let needed = ["id", "message_lsn", "s", "n", "o", "b", "null", "missing"];
        let json = concat!(
            r#" {"o": {"a": [1, 2]}, "x": 1, "s": "a \"b\" \u00e9", "n": 12.50, "b": true, "#,
            r#""null": null, "id": "7"} "#
        )
        .as_bytes();
        let row = content(&needed, json).unwrap();
        for (place, value, type_oid) in [
            (0, Some("7"), TEXT),
            (1, Some("0/1F"), TEXT),
            (2, Some("a \"b\" é"), TEXT),
            (3, Some("12.50"), JSON),
            (4, Some(r#"{"a": [1, 2]}"#), JSON),
            (5, Some("true"), JSON),
            (6, None, TEXT),
            (7, None, TEXT),
            (99, None, 0),
        ] {
            let found = (
                row.get(place)
                    .map(|value| std::str::from_utf8(value).unwrap()),
                row.column_type(place).oid,
            );
            assert_eq!(found, (value, type_oid), "{:?}", needed.get(place));
        }
    }

    #[test]
    fn a_member_cannot_replace_a_field_of_the_message_and_the_last_of_two_counts() {
        assert_eq!(
            content(&["message_lsn", "id"], b"[1]"),
            Err((1, Fault::NoMembers))
        );
        assert_eq!(
            content(&["id"], b"{\"id\": 1} {}"),
            Err((0, Fault::NoMembers))
        );
        let whole = content(&["message_prefix", "message_content"], b"\xff\x00 anything").unwrap();
        assert_eq!(
            (whole.get(0), whole.get(1)),
            (Some(&b"shop"[..]), Some(&b"\xff\x00 anything"[..]))
        );
        assert_eq!((whole.is_checked(0), whole.is_checked(1)), (true, false));
        let row = content(
            &["message_lsn", "a"],
            br#"{"message_lsn": "x", "a": 1, "a": null, "a": 2}"#,
        )
        .unwrap();
        assert_eq!(
            (row.get(0), row.get(1)),
            (Some(&b"0/1F"[..]), Some(&b"2"[..]))
        );
    }

    const PLACE: Place = Place {
        commit_lsn: Lsn::new(7),
        index: 3,
        via: Via::Table,
    };

    fn polled(needed: &[&str], columns: &[&str]) -> Result<Polled, String> {
        Polled::new(&self::needed(needed), relation(columns).columns)
    }

    #[test]
    fn a_null_id_a_missing_column_and_a_row_of_another_width_are_no_events() {
        let mut of = polled(&["id", "v"], &["v", "id"]).unwrap();
        assert_eq!(
            of.event(PLACE, 0, [Some(&b"1"[..]), None].into_iter()),
            Err(("id".to_owned(), Fault::Null))
        );
        assert_eq!(
            of.event(PLACE, 0, [Some(&b"1"[..])].into_iter()),
            Err(("id".to_owned(), Fault::Unchanged))
        );
        assert_eq!(polled(&["id", "w"], &["v", "id"]).unwrap_err(), "w");
    }

    #[test]
    fn the_buffer_of_a_large_row_is_freed_for_the_next_row() {
        let mut polled = polled(&["id"], &["id"]).unwrap();
        let large = vec![b'x'; 4 * KEPT_BYTES_MAX];
        assert_eq!(
            polled
                .event(PLACE, 0, [Some(&large[..])].into_iter())
                .unwrap()
                .id()
                .len(),
            large.len()
        );
        polled
            .event(PLACE, 0, [Some(&b"1"[..])].into_iter())
            .unwrap();
        assert!(
            polled.message.capacity() <= KEPT_BYTES_MAX,
            "{}",
            polled.message.capacity()
        );
    }
}
