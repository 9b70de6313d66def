//! The content of a message of `pg_logical_emit_message`, as a row has it.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::config::{MESSAGE_CONTENT, MESSAGE_LSN, MESSAGE_PREFIX};
use crate::decode::LogicalMessage;
use crate::event::error::Fault;
use crate::template::{ColumnType, text_of};

/// OIDs of the types that members are said to have: <https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat>
const TEXT: u32 = 25;
const JSON: u32 = 114;

/// The values of one message, by place: members of the JSON object that is its content, and what every message has.
///
/// A member that is missing or `null` is NULL, a string is its text, and everything else is JSON as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content<'a> {
    /// With the OID of what would be the column's type.
    values: Vec<(Option<Cow<'a, [u8]>>, u32)>,
    /// The place of the whole content, which need not be JSON.
    whole: Option<usize>,
}

impl<'a> Content<'a> {
    /// Takes what `needed` names out of `message`. Content is looked into only if a member is needed.
    ///
    /// # Errors
    /// The place that is needed, and that the content has no members.
    pub(super) fn new(needed: &[String], message: &LogicalMessage<'a>) -> Result<Self, (usize, Fault)> {
        let of_every_message = |name: &str| match name {
            MESSAGE_LSN => Some((Cow::Owned(message.lsn.to_string().into_bytes()), TEXT)),
            MESSAGE_PREFIX => Some((Cow::Borrowed(message.prefix), TEXT)),
            MESSAGE_CONTENT => Some((Cow::Borrowed(message.content), JSON)),
            _ => None,
        };
        let mut member_at = None;
        let values = needed.iter().enumerate().map(|(place, name)| match of_every_message(name) {
            Some((value, type_oid)) => (Some(value), type_oid),
            None => {
                member_at.get_or_insert(place);
                (None, TEXT)
            }
        });
        let values = values.collect();
        let whole = needed.iter().position(|name| name == MESSAGE_CONTENT);
        let mut content = Content { values, whole };
        let Some(member_at) = member_at else { return Ok(content) };
        let mut json = serde_json::Deserializer::from_slice(message.content);
        let read = json.deserialize_map(Members { needed, content: &mut content }).and_then(|()| json.end());
        read.map_err(|_| (member_at, Fault::NoMembers))?;
        Ok(content)
    }

    pub(super) fn get(&self, place: usize) -> Option<&[u8]> {
        self.values.get(place)?.0.as_deref()
    }

    /// Whether a value here is what its type says.
    pub(super) fn is_checked(&self, place: usize) -> bool {
        self.whole != Some(place)
    }

    pub(super) fn column_type(&self, place: usize) -> ColumnType {
        ColumnType { oid: self.values.get(place).map_or(0, |(_, oid)| *oid), modifier: -1 }
    }
}

/// Takes the members that are needed and passes over the others.
struct Members<'n, 'a> {
    needed: &'n [String],
    content: &'n mut Content<'a>,
}

impl<'a> Visitor<'a> for Members<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut members: A) -> Result<(), A::Error> {
        use serde::de::Error;
        while let Some((name, value)) = members.next_entry::<String, &'a RawValue>()? {
            let reserved = [MESSAGE_LSN, MESSAGE_PREFIX, MESSAGE_CONTENT].contains(&name.as_str());
            let place = self.needed.iter().position(|needed| *needed == name).filter(|_| !reserved);
            let Some(slot) = place.and_then(|place| self.content.values.get_mut(place)) else { continue };
            // Of members with one name the last counts, as in `jsonb`.
            let type_oid = if value.get() == "null" || value.get().starts_with('"') { TEXT } else { JSON };
            let text = text_of(value.get()).map_err(A::Error::custom)?;
            let bytes = text.map(|text| match text {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            });
            *slot = (bytes, type_oid);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::Lsn;

    fn content<'a>(needed: &[&str], content: &'a [u8]) -> Result<Content<'a>, (usize, Fault)> {
        let needed: Vec<_> = needed.iter().map(|name| (*name).to_owned()).collect();
        let message = LogicalMessage { transactional: true, lsn: Lsn::new(0x1f), prefix: b"shop", content };
        Content::new(&needed, &message)
    }

    #[test]
    fn members_are_values_and_what_is_no_string_stays_json() {
        let needed = ["id", "message_lsn", "s", "n", "o", "b", "null", "missing"];
        let json =
            br#" {"o": {"a": [1, 2]}, "x": 1, "s": "a \"b\" \u00e9", "n": 12.50, "b": true, "null": null, "id": "7"} "#;
        let row = content(&needed, json).unwrap();
        let values: Vec<_> =
            (0..9).map(|place| row.get(place).map(|value| std::str::from_utf8(value).unwrap())).collect();
        assert_eq!(
            values,
            [
                Some("7"),
                Some("0/1F"),
                Some("a \"b\" é"),
                Some("12.50"),
                Some(r#"{"a": [1, 2]}"#),
                Some("true"),
                None,
                None,
                None
            ]
        );
        assert_eq!(
            (row.column_type(2).oid, row.column_type(3).oid, row.column_type(4).oid, row.column_type(99).oid),
            (TEXT, JSON, JSON, 0)
        );
    }

    #[test]
    fn content_is_looked_into_only_for_members() {
        let whole = ["message_lsn", "message_prefix", "message_content"];
        for bytes in [&b"\xff\x00 anything"[..], b"", b"[1]"] {
            let row = content(&whole, bytes).unwrap();
            assert_eq!((row.get(1), row.get(2)), (Some(&b"shop"[..]), Some(bytes)));
            assert_eq!((row.is_checked(1), row.is_checked(2)), (true, false));
            assert_eq!(content(&["message_lsn", "id"], bytes), Err((1, Fault::NoMembers)));
        }
        assert_eq!(content(&["id"], b"{\"id\": 1} {}"), Err((0, Fault::NoMembers)));
    }

    #[test]
    fn a_member_cannot_pass_for_what_every_message_has_and_the_last_of_two_counts() {
        let row = content(&["message_lsn", "a"], br#"{"message_lsn": "x", "a": 1, "a": null, "a": 2}"#).unwrap();
        assert_eq!((row.get(0), row.get(1)), (Some(&b"0/1F"[..]), Some(&b"2"[..])));
    }
}
