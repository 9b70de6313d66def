//! A table as the catalogs of Postgres describe it.

use serde::Deserialize;

use crate::config::TableName;
use crate::error::{Error, Kind, NextCommand, Remedy, Result};

const TIME_COLUMNS: [&str; 7] = [
    "created_at",
    "occurred_at",
    "inserted_at",
    "recorded_at",
    "event_time",
    "created",
    "timestamp",
];

/// A table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Table {
    /// Its OID.
    pub oid: u32,
    /// `relkind`: `r` an ordinary table, `p` a partitioned one.
    pub kind: String,
    /// `relpersistence`: `p`, `u` for unlogged, `t` for temporary.
    pub persistence: String,
    /// The role of the session.
    pub role: String,
    /// Whether that role owns it.
    pub owned: bool,
    /// Whether the role may read all of it, system columns too.
    pub may_select: bool,
    /// Its columns, in order.
    pub columns: Vec<Column>,
    /// Unique indexes that can name a row: the primary key, then those of the fewest columns.
    pub unique_keys: Vec<UniqueKey>,
    /// The parent, if the table is a partition, as SQL writes it.
    pub partition_of: Option<String>,
    /// OIDs of the parent and of all tables above it.
    pub ancestors: Vec<u32>,
    /// How it is partitioned.
    #[serde(flatten)]
    pub partitioned: Partitioned,
}

/// How a table is partitioned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Partitioned {
    /// The columns that it is partitioned by.
    #[serde(rename = "partition_columns")]
    pub columns: Vec<String>,
    /// Whether it is partitioned by an expression.
    pub by_expression: bool,
    /// The partition keys of the table and of its partitions, as in `PARTITION BY`.
    #[serde(rename = "partition_keys")]
    pub keys: Vec<String>,
}

/// A column.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The name as SQL writes it, quoted where necessary.
    pub written: String,
    /// Its type, as SQL writes it.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The modifier (`atttypmod`), or that of a domain.
    pub type_modifier: i32,
    /// Its type, or that below its domain.
    #[serde(flatten)]
    pub base: BaseType,
    /// Whether a constraint of its own forbids NULL.
    pub not_null: bool,
    /// Whether it is an identity column.
    pub is_identity: bool,
    /// Whether it is computed from other columns, and so absent from a stream.
    pub generated: bool,
    /// The expression of its default.
    pub default: Option<String>,
    /// Whether it refers to another table.
    pub references: bool,
    /// Its indexes.
    #[serde(flatten)]
    pub indexed: Indexed,
}

/// The indexes of a column.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Indexed {
    /// Whether it is in the primary key.
    pub in_primary_key: bool,
    /// Whether it is unique alone.
    pub unique: bool,
    /// Whether a btree over all rows begins with it.
    pub leads_index: bool,
}

/// The type of a column; for a domain, its base type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct BaseType {
    /// Its name.
    #[serde(rename = "base")]
    pub name: String,
    /// Of an array of an enum, of `citext` or of `ltree` that of `text[]`.
    #[serde(rename = "base_oid")]
    pub oid: u32,
    /// As SQL writes it in a cast, without a modifier.
    #[serde(rename = "base_type")]
    pub sql: String,
    /// `typcategory`:
    /// <https://www.postgresql.org/docs/current/catalog-pg-type.html#CATALOG-TYPCATEGORY-TABLE>
    pub category: String,
    /// Whether operators of Postgres itself order it.
    pub is_ordered: bool,
    /// Whether the column's type is a domain over it.
    pub domain: bool,
    /// Whether one of the column's domains is declared `NOT NULL`.
    pub domain_not_null: bool,
}

/// A unique index over all rows that is checked immediately and compares as the columns do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct UniqueKey {
    /// The columns of the key.
    pub columns: Vec<String>,
    /// Columns that may be NULL, or are compared by operators outside of `pg_catalog`.
    pub loose: Vec<String>,
}

/// What a column can hold, as far as events need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `uuid`.
    Uuid,
    /// A whole number.
    Integer,
    /// `numeric`.
    Numeric,
    /// Text.
    Text,
    /// An enumeration.
    Enum,
    /// `json` or `jsonb`.
    Json,
    /// `bytea`.
    Bytea,
    /// `xml`.
    Xml,
    /// `timestamptz`.
    Timestamptz,
    /// `timestamp`.
    Timestamp,
    /// Any other.
    Other,
}

impl Table {
    /// Whether it is a table, partitioned or not.
    pub fn is_table(&self) -> bool {
        matches!(self.kind.as_str(), "r" | "p")
    }

    /// Whether it is partitioned.
    pub fn is_partitioned(&self) -> bool {
        self.kind == "p"
    }

    /// The column of this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// A column that has to exist; `name` is the table's.
    /// Errors: [`Kind::Publication`] with the columns of the table.
    pub fn needed_column(&self, name: &TableName, wanted: &str) -> Result<&Column> {
        let there = self.columns.iter().map(|column| column.name.as_str());
        self.column(wanted)
            .ok_or_else(|| no_column(name, wanted, there))
    }

    /// The column with the transaction that inserted the row, as `setup --add-xid-column` creates
    /// it, under any name.
    pub fn xid_column(&self) -> Option<&Column> {
        let all = || {
            self.columns
                .iter()
                .filter(|column| column.tells_transaction())
        };
        all()
            .find(|column| column.name == "xid")
            .or_else(|| all().next())
    }

    /// Columns that number the rows: an identity column, then those whose default is a sequence.
    pub fn counters(&self) -> impl Iterator<Item = &Column> {
        let identity = self.columns.iter().filter(|column| column.is_identity);
        let is_serial = |sql: &String| sql.starts_with("nextval(");
        identity.chain(
            self.columns
                .iter()
                .filter(move |column| column.default.as_ref().is_some_and(is_serial)),
        )
    }

    /// The column with the time of a row, by its usual name and type.
    pub fn time_column(&self) -> Option<&Column> {
        TIME_COLUMNS
            .iter()
            .find_map(|name| self.column(name).filter(|column| column.is_timestamp()))
    }

    /// The column with the time of a row: the configured one, or one of a usual name and type.
    pub fn time_of(&self, name: &TableName, configured: Option<&str>) -> Result<Option<&Column>> {
        let Some(wanted) = configured else {
            return Ok(self.time_column());
        };
        let cause = match self.column(wanted) {
            Some(column) if column.is_timestamp() || column.base.name == "date" => {
                return Ok(Some(column));
            }
            Some(column) => format!("column {wanted} of {name} is of type {}", column.base.sql),
            None => format!("table {name} has no column {wanted}"),
        };
        Err(Error::new(Kind::Config, format!("outbox.time: {cause}"))
            .remedy("name a column of type timestamptz, timestamp or date, or leave it out"))
    }

    /// The columns that identify a row whose id is in column `id`: the id alone, or else those of
    /// the first unique key that fits. A row without an id is no event, so only the id may be
    /// loose.
    pub fn row_key(&self, id: &str) -> Option<&[String]> {
        let fits = |key: &&UniqueKey| key.loose.iter().all(|column| column == id);
        let all = || {
            self.unique_keys
                .iter()
                .filter(fits)
                .map(|key| key.columns.as_slice())
        };
        all()
            .find(|columns| *columns == [id])
            .or_else(|| all().next())
    }
}

impl Column {
    /// What it can hold.
    pub fn form(&self) -> Form {
        match (self.base.name.as_str(), self.base.category.as_str()) {
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

    /// Whether it is an integer: later rows mostly have a larger one.
    pub fn is_integer(&self) -> bool {
        self.form() == Form::Integer
    }

    /// Whether it is a time with a date.
    pub fn is_timestamp(&self) -> bool {
        matches!(self.form(), Form::Timestamptz | Form::Timestamp)
    }

    /// Whether it can hold an event's payload.
    pub fn can_hold_event(&self) -> bool {
        matches!(
            self.form(),
            Form::Json | Form::Bytea | Form::Text | Form::Xml
        )
    }

    /// Whether it can hold a type or a topic.
    pub fn is_word(&self) -> bool {
        matches!(self.form(), Form::Text | Form::Enum)
    }

    /// Whether it can hold an id.
    pub fn can_name(&self) -> bool {
        matches!(
            self.form(),
            Form::Uuid | Form::Integer | Form::Numeric | Form::Text | Form::Enum
        )
    }

    /// Whether a record's key can be made of it: a key of bytes is Postgres' text of them.
    pub fn can_be_key(&self) -> bool {
        self.can_name() || self.form() == Form::Bytea
    }

    /// Whether it is never NULL, by its own constraint or by its domain's.
    pub fn is_never_null(&self) -> bool {
        self.not_null || self.base.domain_not_null
    }

    /// Whether it has the transaction that inserted the row: an `xid8` that defaults to
    /// `pg_current_xact_id()`. `pg_get_expr` omits a schema on the search path, and `pg_catalog` is
    /// always on it.
    pub fn tells_transaction(&self) -> bool {
        let default = self.default.as_deref().unwrap_or_default();
        self.base.name == "xid8"
            && default.strip_prefix("pg_catalog.").unwrap_or(default) == "pg_current_xact_id()"
    }

    /// The column in a line.
    pub fn described(&self) -> String {
        let Indexed {
            in_primary_key,
            unique,
            ..
        } = self.indexed;
        let mut text = format!("{}: {}", self.name, self.type_name);
        let more = [
            (self.base.domain, format!(" over {}", self.base.name)),
            (self.is_never_null(), ", not null".to_owned()),
            (in_primary_key && unique, ", primary key".to_owned()),
            (
                in_primary_key && !unique,
                ", part of the primary key".to_owned(),
            ),
            (unique && !in_primary_key, ", unique".to_owned()),
            (self.references, ", refers to another table".to_owned()),
        ];
        text.extend(
            more.into_iter()
                .filter_map(|(holds, what)| holds.then_some(what)),
        );
        text
    }
}

/// The error for a missing table `name` in `place`; `setup`, if any, could create the table.
pub fn no_table(name: &TableName, place: &str, setup: Option<NextCommand>) -> Error {
    let remedy = Remedy::from(
        "check schema, name and database, and whether it was renamed. A name with capitals needs \
         SQL's quotes within the file's, as in table = '\"Outbox\"'",
    );
    let created = setup.map(|setup| {
        Remedy::from(". `")
            .and(setup.flag("create-table"))
            .and("` creates an empty table")
    });
    Error::new(
        Kind::Publication,
        format!("there is no table {name} in {place}"),
    )
    .remedy(created.into_iter().fold(remedy, Remedy::and))
}

/// The error for table `name`, which lacks the column `wanted` and has those in `there`.
pub fn no_column<'a>(
    name: &TableName,
    wanted: &str,
    there: impl Iterator<Item = &'a str>,
) -> Error {
    let there = there.collect::<Vec<_>>().join(", ");
    Error::new(
        Kind::Publication,
        format!("table {name} has no column {wanted}; it has {there}"),
    )
    .remedy("say in the configuration which column holds what, or add the column")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{column_of, with_default};

    fn table(columns: Vec<Column>) -> Table {
        Table {
            kind: "r".to_owned(),
            columns,
            ..Table::default()
        }
    }

    #[test]
    fn an_xid_column_is_an_xid8_with_the_current_transaction_as_default() {
        let with = |base, default: Option<&str>| {
            let told = Column {
                default: default.map(str::to_owned),
                ..column_of("x", base)
            };
            table(vec![column_of("id", "uuid"), told])
                .xid_column()
                .map(|column| column.name.clone())
        };
        assert_eq!(
            with("xid8", Some("pg_current_xact_id()")),
            Some("x".to_owned())
        );
        assert_eq!(
            with("xid8", Some("pg_catalog.pg_current_xact_id()")),
            Some("x".to_owned())
        );
        assert_eq!(with("xid8", None), None);
        assert_eq!(with("xid8", Some("public.pg_current_xact_id()")), None);
        assert_eq!(with("text", Some("pg_current_xact_id()")), None);
        let filled = |name| with_default(column_of(name, "xid8"), "pg_current_xact_id()");
        assert_eq!(
            table(vec![filled("y"), filled("xid")])
                .xid_column()
                .unwrap()
                .name,
            "xid"
        );
    }

    #[test]
    fn the_row_key_is_the_unique_id_or_else_the_first_key_without_nulls() {
        let key = |columns: &[&str], loose: &[&str]| UniqueKey {
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
            loose: loose.iter().map(|name| (*name).to_owned()).collect(),
        };
        let with = |unique_keys: Vec<UniqueKey>| {
            let table = Table {
                unique_keys,
                ..Table::default()
            };
            table.row_key("id").map(|columns| columns.join(" "))
        };
        assert_eq!(
            with(vec![key(&["n"], &[]), key(&["id"], &["id"])]).as_deref(),
            Some("id")
        );
        assert_eq!(
            with(vec![key(&["a", "b"], &["b"]), key(&["n"], &[])]).as_deref(),
            Some("n")
        );
        assert_eq!(with(vec![key(&["n"], &["n"])]), None);
    }
}
