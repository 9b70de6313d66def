//! A column as the catalogs have it.

use serde::Deserialize;

/// A column of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type, as SQL writes it.
    #[serde(rename = "type")]
    pub type_name: String,
    /// OID of its type; of the domain, where it is one.
    pub type_oid: u32,
    /// Its modifier (`atttypmod`).
    pub type_modifier: i32,
    /// `typname` of its type, or of what its domain is made of.
    pub base: String,
    /// `typcategory` of that: <https://www.postgresql.org/docs/current/catalog-pg-type.html#CATALOG-TYPCATEGORY-TABLE>
    pub category: String,
    /// Whether its type is a domain.
    pub domain: bool,
    /// Whether it is never NULL.
    pub not_null: bool,
    /// Whether it is computed from others, and so not in a stream.
    pub generated: bool,
    /// Its default as SQL, where it has one.
    pub default: Option<String>,
    /// Whether it is the primary key, or a part of it.
    pub in_primary_key: bool,
    /// Whether no two rows have the same value of it alone.
    pub unique: bool,
    /// Whether it alone refers to another table.
    pub references: bool,
}

/// What matters of a type here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Uuid,
    Integer,
    Numeric,
    Text,
    Enum,
    Json,
    Bytea,
    Xml,
    /// With a time zone, so that it is one moment.
    Timestamptz,
    Timestamp,
    Other,
}

impl Column {
    /// Whether it is a whole number: later rows mostly have a larger one.
    pub fn is_integer(&self) -> bool {
        self.form() == Form::Integer
    }

    pub(super) fn form(&self) -> Form {
        match (self.base.as_str(), self.category.as_str()) {
            ("uuid", _) => Form::Uuid,
            ("int2" | "int4" | "int8", _) => Form::Integer,
            ("numeric", _) => Form::Numeric,
            ("json" | "jsonb", _) => Form::Json,
            ("bytea", _) => Form::Bytea,
            ("xml", _) => Form::Xml,
            ("timestamptz", _) => Form::Timestamptz,
            ("timestamp", _) => Form::Timestamp,
            (_, "S") => Form::Text,
            (_, "E") => Form::Enum,
            _ => Form::Other,
        }
    }

    /// Whether an event can be in it.
    pub(super) fn can_hold_event(&self) -> bool {
        matches!(self.form(), Form::Json | Form::Bytea | Form::Text | Form::Xml)
    }

    /// Whether it can be part of a name.
    pub(super) fn is_word(&self) -> bool {
        matches!(self.form(), Form::Text | Form::Enum)
    }

    /// Whether it can name a thing.
    pub(super) fn can_name(&self) -> bool {
        matches!(self.form(), Form::Uuid | Form::Integer | Form::Numeric | Form::Text | Form::Enum)
    }

    /// Its name and type, for people.
    pub(super) fn described(&self) -> String {
        let mut text = format!("{}: {}", self.name, self.type_name);
        let more = [
            (self.domain, format!(" over {}", self.base)),
            (self.not_null, ", not null".to_owned()),
            (self.in_primary_key && self.unique, ", primary key".to_owned()),
            (self.in_primary_key && !self.unique, ", part of the primary key".to_owned()),
            (self.unique && !self.in_primary_key, ", unique".to_owned()),
            (self.references, ", refers to another table".to_owned()),
        ];
        text.extend(more.into_iter().filter_map(|(holds, what)| holds.then_some(what)));
        text
    }
}
