//! Whether every event in the outbox table would be in the stream, whole.

use std::fmt;

use crate::config::{OutboxConfig, TableName};
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::postgres::quote::quoted;
use crate::source::catalog::{Column, Member, Publication, Table};

/// A publication and the outbox in it.
pub(super) struct Published<'a> {
    pub(super) name: &'a str,
    pub(super) publication: &'a Publication,
    pub(super) table: &'a Table,
    pub(super) members: &'a [Member],
    /// What else it publishes that is no outbox.
    pub(super) other_tables: &'a [String],
    /// Every table that is an outbox.
    pub(super) outbox: &'a OutboxConfig,
    pub(super) outbox_name: &'a TableName,
}

/// Whether rows of this table are in a stream at all, whatever slot and publication there are.
///
/// # Errors
/// [`Kind::Publication`].
pub(super) fn can_be_streamed(name: &TableName, table: &Table) -> Result<()> {
    if !matches!(table.kind.as_str(), "r" | "p") {
        let what = match table.kind.as_str() {
            "v" => "a view",
            "m" => "a materialized view",
            "f" => "a foreign table",
            _ => "not a table",
        };
        return Err(at_publication(format!("{name} is {what}, and only tables are in a replication stream"))
            .remedy("name the table that events are inserted into"));
    }
    match table.persistence.as_str() {
        "p" => {}
        "u" => {
            return Err(at_publication(format!("table {name} is unlogged: its rows are never in the WAL"))
                .remedy(format!("alter table {name} set logged")));
        }
        _ => {
            return Err(at_publication(format!("table {name} is temporary: its rows are never in the WAL"))
                .remedy("create a permanent outbox table"));
        }
    }
    if let Some(part) = table.silent_partitions.first() {
        return Err(at_publication(format!(
            "partition {part} of {name} is unlogged or foreign: its rows are never in the stream"
        ))
        .remedy(format!("alter table {part} set logged, or detach it from {name}")));
    }
    Ok(())
}

impl Published<'_> {
    /// The first thing that would hide an event or a part of it.
    pub(super) fn judge(&self) -> Result<()> {
        can_be_streamed(self.outbox_name, self.table)?;
        self.table_is_in()?;
        self.inserts_are_in()?;
        self.name_is_kept()?;
        self.no_row_is_hidden()?;
        self.no_column_is_hidden()
    }

    fn sql_name(&self) -> String {
        quoted(self.name)
    }

    fn table_is_in(&self) -> Result<()> {
        if self.members.is_empty() {
            let (name, table, publication) = (self.name, self.outbox_name, self.sql_name());
            if let Some(other) = self.other_tables.first() {
                // Adding this one would let the relay confirm, and so give up, what is in the stream of the other.
                return Err(at_publication(format!(
                    "publication {name} publishes {}, and not {table}",
                    self.other_tables.join(", ")
                ))
                .remedy(
                    Remedy::from(format!(
                        "name the table the slot was set up for: --table '{other}', or `table` in [outbox] of the \
                         configuration file. For {table}, set up a slot of its own: "
                    ))
                    .and(NextCommand::new("setup").option("slot", "…").option("table", format_args!("'{table}'"))),
                ));
            }
            return Err(at_publication(format!(
                "table {table} is not in publication {name}: never added, or dropped and created again since"
            ))
            .remedy(format!(
                "alter publication {publication} add table {table}. Rows inserted before that are not in the stream; where \
                 walrelay knows what was published, it reads them from the table"
            )));
        }
        Ok(())
    }

    fn inserts_are_in(&self) -> Result<()> {
        let flags = &self.publication.flags;
        if flags.insert {
            return Ok(());
        }
        Err(at_publication(format!(
            "publication {} has publish = '{}': without inserts there are no events",
            self.name,
            flags.operations()
        ))
        .remedy(format!("alter publication {} set (publish = 'insert')", self.sql_name())))
    }

    fn name_is_kept(&self) -> Result<()> {
        let (name, table, via_root) = (self.name, self.outbox_name, self.publication.flags.via_root);
        let publication = self.sql_name();
        if self.table.kind == "p" && !via_root {
            return Err(at_publication(format!(
                "table {table} is partitioned, and publication {name} publishes rows under the names of partitions"
            ))
            .remedy(format!(
                "alter publication {publication} set (publish_via_partition_root = true), and insert again what was \
                 inserted before: in the log it keeps the names of partitions"
            )));
        }
        if let Some(above) = self.members.iter().rev().find(|member| member.level > 0 && via_root) {
            return Err(at_publication(format!(
                "table {table} is a partition, and publication {name} publishes its rows under the name of {}",
                above.relation
            ))
            .remedy(format!(
                "name {} as the outbox, or alter publication {publication} set (publish_via_partition_root = false)",
                above.relation
            )));
        }
        Ok(())
    }

    /// Filters and column lists above a partition count only via the root, which was refused.
    fn own_members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.level == 0)
    }

    fn no_row_is_hidden(&self) -> Result<()> {
        let Some(filter) = self.own_members().find_map(|member| member.row_filter.as_ref()) else { return Ok(()) };
        let (name, table, publication) = (self.name, self.outbox_name, self.sql_name());
        Err(at_publication(format!(
            "publication {name} filters rows of {table}: {filter}; the others would be skipped"
        ))
        .remedy(format!("alter publication {publication} set table {table}")))
    }

    fn no_column_is_hidden(&self) -> Result<()> {
        let (name, table, publication) = (self.name, self.outbox_name, self.sql_name());
        let list = self.own_members().find_map(|member| member.columns.as_ref());
        let outbox = self.outbox;
        // A row key does without the transaction of its rows where that is not published.
        for wanted in outbox.routed_columns().iter().chain(outbox.index_columns()) {
            let Some(column) = self.table.columns.iter().find(|column| column.name == *wanted) else {
                let there: Vec<&str> = self.table.columns.iter().map(|column| column.name.as_str()).collect();
                return Err(at_publication(format!(
                    "table {table} has no column {wanted}; it has {}",
                    there.join(", ")
                ))
                .remedy("say in the configuration which column holds what, or add the column"));
            };
            match list {
                Some(list) if !list.contains(wanted) => {
                    return Err(at_publication(format!(
                        "publication {name} publishes only ({}) of {table}, without the column {wanted}",
                        list.join(", ")
                    ))
                    .remedy(format!("alter publication {publication} set table {table}")));
                }
                Some(_) => {}
                None if self.is_streamed(column) => {}
                None => {
                    return Err(at_publication(format!(
                        "column {wanted} of {table} is generated, and publication {name} leaves generated columns out"
                    ))
                    .remedy(
                        "map a column that is stored by the application, or use a trigger instead of the expression",
                    ));
                }
            }
        }
        Ok(())
    }

    fn is_streamed(&self, column: &Column) -> bool {
        let stored = self.publication.generated_columns.as_deref() == Some("s");
        column.generated.is_empty() || (column.generated == "s" && stored)
    }
}

pub(super) fn at_publication(cause: impl fmt::Display) -> Error {
    Error::new(Kind::Publication, cause)
}
