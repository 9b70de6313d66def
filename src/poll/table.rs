//! What has to be known of the table to read its rows.

use crate::config::{OutboxConfig, TableName};
use crate::decode;
use crate::error::{Error, Kind, Result};
use crate::postgres::catalog::{Column, Table};
use crate::postgres::quote::{quote_ident, quoted};

/// An outbox table as it is now, as far as reading its rows goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFacts {
    /// Its OID.
    pub oid: u32,
    /// Its name.
    pub name: TableName,
    /// The outbox's columns, in that order; a column of a domain has the type under it.
    pub columns: Vec<decode::Column>,
    /// The columns that name a row, the id first.
    pub key: Vec<KeyColumn>,
    /// The column with the transaction that inserted the row: an `xid8` that defaults to `pg_current_xact_id()`.
    pub xid_column: Option<String>,
    /// Whether that is never NULL.
    pub xid_not_null: bool,
    /// What rows are ordered by before the id.
    pub order: Option<Order>,
    /// The column with the event's time: a timestamp, or a date where it is configured.
    pub time: Option<String>,
    /// Whether the role may read what it has to. Where it may not look into the table's schema, the configured order is
    /// not among the facts.
    pub may_select: bool,
    /// Whether it may read the whole table, `xmin` with it, and so lock it against rewriting.
    pub may_lock: bool,
    /// Whether it has partitions.
    pub is_partitioned: bool,
}

/// A column that names a row, with others or alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyColumn {
    /// Its name.
    pub name: String,
    /// Its type, as SQL writes it; of a domain the type under it.
    pub type_name: String,
    /// Whether it is compared as text: its own type is not one that Postgres itself orders.
    pub as_text: bool,
    /// Whether it is never NULL.
    pub not_null: bool,
}

impl KeyColumn {
    fn of(column: &Column) -> KeyColumn {
        KeyColumn {
            name: column.name.clone(),
            type_name: column.base.sql.clone(),
            as_text: !column.base.is_ordered,
            not_null: column.not_null,
        }
    }

    /// As what Postgres itself compares.
    pub(super) fn comparable(&self) -> Result<String> {
        let name = quote_ident(&self.name)?;
        Ok(if self.as_text { format!("{name}::text collate \"C\"") } else { name })
    }

    /// The type of that.
    pub(super) fn comparable_type(&self) -> &str {
        if self.as_text { "text" } else { &self.type_name }
    }
}

/// What rows are ordered by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// One SQL expression.
    pub sql: String,
    /// Its type, as SQL writes it; of a domain the type under it.
    pub type_name: String,
    /// Whether it is known to be never NULL.
    pub not_null: bool,
    /// Whether it was found in the catalog, not configured.
    pub is_found: bool,
}

impl Order {
    fn of(column: &Column) -> Result<Order> {
        let (sql, type_name) = (quote_ident(&column.name)?, column.base.sql.clone());
        Ok(Order { sql, type_name, not_null: column.not_null, is_found: true })
    }
}

impl TableFacts {
    /// What rows are read in the order of, as SQL: a place that was noted in another order is none in this one.
    pub fn ordered_by(&self) -> Option<String> {
        let order = self.order.as_ref().map(|order| order.sql.clone());
        let rest = self.key.iter().skip(1).map(|column| quoted(&column.name));
        let all: Vec<String> = order.into_iter().chain(rest).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// What the catalogs alone say of `table`.
    ///
    /// # Errors
    /// [`Kind::Publication`] for what is no table, and for columns that are not there; [`Kind::Config`] for a time column that
    /// has no time.
    pub(super) fn found(table: &Table, name: &TableName, outbox: &OutboxConfig) -> Result<TableFacts> {
        if !table.is_table() {
            return Err(Error::new(Kind::Publication, format_args!("{name} is not a table"))
                .remedy("name the table that events are inserted into"));
        }
        let column = |wanted: &String| table.needed_column(name, wanted);
        let columns = outbox.columns.iter().map(|name| column(name).map(as_streamed)).collect::<Result<_>>()?;
        let id = column(&outbox.id)?;
        let key = outbox.index_columns().map(|name| column(name).map(KeyColumn::of)).collect::<Result<_>>()?;
        let xid = table.xid_column();
        let counter = table.counters().find(|column| column.is_integer());
        let order = counter.or_else(|| Some(id).filter(|id| id.is_integer()));
        Ok(TableFacts {
            oid: table.oid,
            name: name.clone(),
            columns,
            key,
            xid_column: xid.map(|column| column.name.clone()),
            xid_not_null: xid.is_some_and(|column| column.not_null),
            order: order.map(Order::of).transpose()?,
            time: table.time_of(name, outbox.upkeep.time.as_deref())?.map(|column| column.name.clone()),
            may_select: true,
            may_lock: table.may_select,
            is_partitioned: table.is_partitioned(),
        })
    }
}

/// A column as the stream describes it, and the relay sees it: without its domain.
pub fn as_streamed(column: &Column) -> decode::Column {
    decode::Column { name: column.name.clone(), type_oid: column.base.oid, type_modifier: column.type_modifier }
}

/// The remedy where no column tells the order of an aggregate's events.
pub const NEEDS_ORDER: &str = "set outbox.order_by to a column that goes up from event to event of an aggregate: a version, a \
                               sequence, the time of the insert (clock_timestamp(), not now())";

#[cfg(test)]
mod tests {
    use super::*;

    use crate::config::Upkeep;

    fn facts_of(columns: Vec<Column>, upkeep: &Upkeep) -> Result<TableFacts> {
        let table = Table { kind: "r".to_owned(), columns, ..Table::default() };
        let outbox = OutboxConfig { columns: vec!["id".to_owned()], upkeep: upkeep.clone(), ..OutboxConfig::default() };
        TableFacts::found(&table, &TableName::debezium(), &outbox)
    }

    fn facts(columns: Vec<Column>) -> TableFacts {
        facts_of(columns, &Upkeep::default()).unwrap()
    }

    #[test]
    fn rows_are_ordered_by_what_counts_them() {
        let identity = |name| Column { is_identity: true, not_null: true, ..Column::of(name, "int8") };
        let default = |name, base, sql| Column::of(name, base).with_default(sql);
        let serial = |name| default(name, "int4", "nextval('public.s'::regclass)");
        let id = |base| Column::of("id", base);
        for (columns, expected) in [
            (vec![id("int8"), serial("n"), identity("se\"q")], Some(("\"se\"\"q\"", "bigint", true))),
            (vec![id("int8"), serial("n")], Some(("\"n\"", "integer", false))),
            (vec![id("int4"), Column::of("n", "int8")], Some(("\"id\"", "integer", false))),
            (vec![id("uuid"), Column::of("n", "int8")], None),
            // A number that is made of nothing in order, and a text that is.
            (vec![id("uuid"), default("n", "int8", "1"), default("t", "text", "nextval('s')::text")], None),
        ] {
            let facts = facts(columns);
            let found =
                facts.order.as_ref().map(|order| (order.sql.as_str(), order.type_name.as_str(), order.not_null));
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_time_is_a_column_of_a_usual_name_or_the_one_that_is_named() {
        let all = || {
            vec![
                Column::of("id", "uuid"),
                Column::of("created", "timestamptz"),
                Column::of("created_at", "text"),
                Column::of("occurred_at", "timestamptz"),
                Column::of("day", "date"),
            ]
        };
        let named = |name: &str| facts_of(all(), &Upkeep { time: Some(name.to_owned()), ..Upkeep::default() });
        assert_eq!(facts(all()).time.as_deref(), Some("occurred_at"));
        assert_eq!(named("day").unwrap().time.as_deref(), Some("day"));
        assert_eq!(facts(vec![Column::of("id", "uuid"), Column::of("timestamp", "date")]).time, None);
        for (name, what) in
            [("created_at", "outbox.time: column created_at of public.outbox is of type text"), ("x", "no column x")]
        {
            let error = named(name).unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            assert!(error.cause().contains(what), "{error}");
        }
    }

    #[test]
    fn a_missing_column_and_what_is_no_table_are_refused() {
        let error = facts_of(vec![Column::of("number", "int8")], &Upkeep::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Publication);
        assert_eq!(error.cause(), "table public.outbox has no column id; it has number");
        let view = Table { kind: "v".to_owned(), columns: vec![Column::of("id", "uuid")], ..Table::default() };
        let error = TableFacts::found(&view, &TableName::debezium(), &OutboxConfig::default()).unwrap_err();
        assert_eq!((error.kind(), error.cause()), (Kind::Publication, "public.outbox is not a table"));
    }
}
