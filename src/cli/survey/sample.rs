//! Rows of an outbox's table, and the records they make.

use crate::poll::as_streamed;
use crate::postgres::quote::{quote_list, quote_own_rows};
use crate::source::catalog::Catalog;
use crate::suggest::ordering;
use walrelay_core::catalog::{self, Table};
use walrelay_core::config::{OnError, OutboxConfig, TableName};
use walrelay_core::decode::RelationColumn;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::event::{Place, Polled, Via};
use walrelay_core::position::Lsn;
use walrelay_core::route::{Record, Router};

/// The search for the newest row of a large table may take long.
pub(in crate::cli) const LIMIT: &str = "set statement_timeout = '10s'";

/// Whether the table exists and has the columns of `outbox`.
pub(in crate::cli) fn readable(catalog: &Catalog, outbox: &OutboxConfig) -> bool {
    let table = catalog
        .table
        .as_ref()
        .filter(|table| matches!(table.kind.as_str(), "r" | "p"));
    let has = |name: &String| {
        table.is_some_and(|table| table.columns.iter().any(|column| column.name == *name))
    };
    outbox.columns.iter().all(has)
}

/// A column as the stream describes it, without a type if the column does not exist.
pub(crate) fn described(name: &str, table: &Table) -> RelationColumn {
    let unknown = || RelationColumn {
        name: name.to_owned(),
        type_oid: 0,
        type_modifier: -1,
    };
    table.column(name).map_or_else(unknown, as_streamed)
}

/// The table of which rows are read.
pub(in crate::cli) struct Sampled<'a> {
    pub(in crate::cli) outbox: &'a OutboxConfig,
    pub(in crate::cli) name: &'a TableName,
    pub(in crate::cli) table: &'a Table,
}

/// Values of an outbox's columns, in that order; `None` is NULL.
pub(in crate::cli) type Values = Vec<Option<String>>;

impl Sampled<'_> {
    pub(in crate::cli) fn select(&self) -> Result<String> {
        let columns = quote_list(&self.outbox.columns)?;
        let rows = quote_own_rows(self.name, self.table.is_partitioned())?;
        Ok(format!("select {columns} from {rows}"))
    }

    /// The column whose largest value is the newest row's: a number, or a time.
    pub(in crate::cli) fn ordering(&self) -> Option<&catalog::Column> {
        let id = self
            .table
            .column(&self.outbox.names.id)
            .filter(|id| id.is_integer());
        id.or_else(|| ordering(&self.table.columns))
    }

    /// Gives `take` the record of a row with these values of the outbox's columns.
    /// Errors: [`Kind::Event`] for a row that `run` would not route.
    pub(in crate::cli) fn routed<T>(
        &self,
        values: &[Option<String>],
        on_error: OnError,
        take: impl FnOnce(&Record<'_>) -> T,
    ) -> Result<T> {
        let Sampled {
            outbox,
            name,
            table,
        } = self;
        let columns = outbox
            .columns
            .iter()
            .map(|name| described(name, table))
            .collect();
        let texts = values
            .iter()
            .map(|value| value.as_deref().map(str::as_bytes));
        let bug = |column: String| {
            Error::new(
                Kind::Bug,
                format!("the query of a row did not return column {column}"),
            )
        };
        let mut polled = Polled::new(outbox, columns).map_err(bug)?;
        let mut router = Router::new(outbox).map_err(|unknown| Error::new(Kind::Bug, unknown))?;
        let place = Place {
            commit_lsn: Lsn::ZERO,
            index: 0,
            via: Via::Slot,
        };
        match polled.event(place, 0, texts) {
            Err((column, fault)) => {
                let cause = format!("column {column} of {name} {fault}");
                let remedy = format!(
                    "`run` stops at such a row. Declare column {column} NOT NULL, or name another \
                     under [outbox.columns]"
                );
                Err(Error::new(Kind::Event, cause).remedy(remedy))
            }
            Ok(event) => match router.route(&event) {
                Err(error) => Err(error.of_sample(on_error)),
                Ok(routed) => Ok(routed.with_record(take)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_core::testing::column_of;

    fn table(kind: &str, columns: &[(&str, &str)]) -> Table {
        let columns = columns
            .iter()
            .map(|(name, base)| column_of(name, base))
            .collect();
        Table {
            kind: kind.to_owned(),
            columns,
            ..Table::default()
        }
    }

    #[test]
    fn the_newest_row_has_the_largest_number_or_the_latest_time() {
        let outbox = OutboxConfig::default();
        let name = TableName::debezium();
        for (columns, expected) in [
            (
                &[("id", "int8"), ("created_at", "timestamptz")][..],
                Some("id"),
            ),
            (
                &[("id", "uuid"), ("created_at", "timestamp")],
                Some("created_at"),
            ),
            (&[("id", "uuid")], None),
        ] {
            let table = table("r", columns);
            let sampled = Sampled {
                outbox: &outbox,
                name: &name,
                table: &table,
            };
            assert_eq!(
                sampled.ordering().map(|column| column.name.as_str()),
                expected
            );
        }
    }

    #[test]
    fn the_select_quotes_names_and_excludes_rows_of_inheriting_tables() {
        let name: TableName = r#""My ""S"".t""#.parse().unwrap();
        let outbox = OutboxConfig {
            columns: vec!["a\"b".to_owned(), "c".to_owned()],
            ..OutboxConfig::default()
        };
        let select = |kind: &str| {
            Sampled {
                outbox: &outbox,
                name: &name,
                table: &table(kind, &[]),
            }
            .select()
            .unwrap()
        };
        assert_eq!(
            select("r"),
            r#"select "a""b", "c" from only "public"."My ""S"".t""#
        );
        assert_eq!(
            select("p"),
            r#"select "a""b", "c" from "public"."My ""S"".t""#
        );
    }
}
