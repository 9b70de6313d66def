//! Which rows of a table are published, as a condition in SQL. In doubt a row is not.

use serde::Deserialize;
use tokio_postgres::Client;

use crate::config::{OutboxConfig, TableName};
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::ledger::trail::Published;
use crate::position::Lsn;
use crate::postgres::catalog::Table;
use crate::postgres::query::{one_json, one_text};
use crate::postgres::quote::{quote_ident, quote_literal};
use crate::state::Stored;

/// What tells whether a row is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Basis {
    /// The table says so itself: it is not pending any more.
    Pending(String),
    /// The transaction that inserted the row, in this column.
    Xid(String),
    /// The transaction that wrote the row last, as far as Postgres keeps it.
    Xmin,
}

impl Basis {
    /// The most exact basis that `table` has.
    pub fn of(outbox: &OutboxConfig, table: &Table) -> Basis {
        match (&outbox.upkeep.pending, table.xid_column()) {
            (Some(pending), _) => Basis::Pending(pending.clone()),
            (None, Some(column)) => Basis::Xid(column.name.clone()),
            (None, None) => Basis::Xmin,
        }
    }

    /// Whether it needs the stored state of a relay.
    pub fn needs_published(&self) -> bool {
        !matches!(self, Basis::Pending(_))
    }

    /// One word for it.
    pub fn word(&self) -> &'static str {
        match self {
            Basis::Pending(_) => "pending",
            Basis::Xid(_) => "xid",
            Basis::Xmin => "xmin",
        }
    }

    /// The condition, true for rows that are published; for others it is false or NULL.
    ///
    /// # Errors
    /// [`Kind::PositionMismatch`] where it needs `published` and there is none.
    pub fn condition(&self, table: &TableName, published: Option<&Published>) -> Result<String> {
        let needed = || published.ok_or_else(|| unknown(table));
        match self {
            // Rows for which the condition is NULL stay.
            Basis::Pending(pending) => Ok(format!("(({pending}) is false)")),
            Basis::Xid(column) => {
                let (published, column) = (needed()?, quote_ident(column)?);
                let snapshot = quote_literal(&published.pair.snapshot.to_string())?;
                let also: Vec<String> = published.also.iter().map(u64::to_string).collect();
                let seen = format!(
                    "pg_catalog.pg_visible_in_snapshot({column}, {snapshot}::pg_snapshot) or {column} = any ('{{{}}}'::xid8[])",
                    also.join(",")
                );
                Ok(match &published.floor {
                    // A row that does not tell its transaction may be from before, and was updated since.
                    Some(floor) => {
                        let floor = quote_literal(&floor.to_string())?;
                        format!("(({seen}) and not pg_catalog.pg_visible_in_snapshot({column}, {floor}::pg_snapshot))")
                    }
                    None => format!("({seen} or {column} is null and {})", by_xmin(published)),
                })
            }
            Basis::Xmin => {
                let published = needed()?;
                if published.floor.is_some() {
                    return Err(from_before(table));
                }
                Ok(format!("({})", by_xmin(published)))
            }
        }
    }
}

/// `xmin` is the lower half of an id. The greatest id with this half that anybody had is the row's, or a later one; so
/// a row is taken for younger than it is, never for older. A savepoint's id is greater than that of its transaction, which
/// errs to the same side.
fn by_xmin(published: &Published) -> String {
    // In a query of its own, so that it is asked once and not for each row.
    const NEXT: &str = "(select pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint)";
    let (xmin, id) = (published.pair.snapshot.xmin(), format!("{NEXT} - (({NEXT} - xmin::text::bigint) & 4294967295)"));
    format!("{id} < {xmin}")
}

/// Rows that an update touched since cannot be told from those that were inserted since.
fn from_before(table: &TableName) -> Error {
    let cause = format!(
        "which rows of {table} are published is not known: some are from before its slot, and no column tells the \
         transaction that inserted a row"
    );
    Error::new(Kind::PositionMismatch, cause).remedy(
        Remedy::from("add one, for the rows that come: ")
            .and(NextCommand::new("setup").flag("add-xid-column"))
            .and("; or set outbox.pending, if a column of the table says which rows are published"),
    )
}

fn unknown(table: &TableName) -> Error {
    let cause = format!(
        "which rows of {table} are published is not known: nothing is stored that says so, and age alone does not"
    );
    Error::new(Kind::PositionMismatch, cause).remedy(
        "keep the position with state.store = \"kafka\" or \"postgres\", and let `walrelay run` relay for a moment; or set \
         outbox.pending, if a column of the table says it",
    )
}

const SERVER: &str = include_str!("../../sql/upkeep/server.sql");
const SYSTEM: &str = include_str!("../../sql/source/system.sql");

/// What the server says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Here {
    may_read_control: bool,
    /// None where the role may not ask.
    #[serde(skip)]
    system_identifier: Option<String>,
    timeline: u32,
    wal_end: Lsn,
}

/// The published rows of the table with this OID, by the stored state of a relay.
///
/// # Errors
/// [`Kind::PositionMismatch`] where it is about another server, timeline or table, does not say, or rows of the table are
/// still being read; those of the connection.
pub async fn of_stored(client: &Client, stored: Stored, table_oid: u32) -> Result<Published> {
    judge(&here(client).await?, stored, table_oid)
}

async fn here(client: &Client) -> Result<Here> {
    const DOING: &str = "asking which server this is";
    let here: Here = one_json(client, DOING, SERVER, &[]).await?;
    let system_identifier = match here.may_read_control {
        true => one_text(client, DOING, SYSTEM, &[]).await?,
        false => None,
    };
    Ok(Here { system_identifier, ..here })
}

fn judge(here: &Here, stored: Stored, table_oid: u32) -> Result<Published> {
    const RELAY: &str = "let `walrelay run` relay for a moment: what it stores then is about this server";
    let mismatch = |cause: String, remedy: &str| {
        let cause = format!("which rows are published is not known: {cause}");
        Err(Error::new(Kind::PositionMismatch, cause).remedy(remedy))
    };
    let server = &stored.server;
    if here.system_identifier.as_ref().is_some_and(|here| *here != server.system_identifier) {
        return mismatch(format!("what is stored is about another server ({})", server.system_identifier), RELAY);
    }
    if here.timeline != server.timeline {
        let cause = format!("what is stored is about timeline {}, the server is on {}", server.timeline, here.timeline);
        return mismatch(cause, RELAY);
    }
    if here.wal_end < stored.position.end_lsn {
        let cause = format!("the server is at {}, behind what is stored ({})", here.wal_end, stored.position.end_lsn);
        return mismatch(cause, RELAY);
    }
    if !stored.table_oids.contains(&table_oid) {
        let cause = format!("what is stored is not about the table with OID {table_oid}");
        return mismatch(cause, "let `walrelay run` relay this table first; a table made anew is another one");
    }
    if stored.catch_up.is_some() {
        let cause = "rows are still being read from the table".to_owned();
        return mismatch(cause, "let `walrelay run` finish reading them, see `walrelay status`");
    }
    match stored.published {
        Some(published) => Ok(published),
        None => mismatch("what is stored does not say".to_owned(), RELAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::ledger::trail::Pair;
    use crate::position::{Lsn, Position};
    use crate::postgres::catalog::Column;
    use crate::state::{CatchUp, Rows, ServerIdentity};

    fn table(columns: Vec<Column>) -> Table {
        Table { kind: "r".to_owned(), columns, ..Table::default() }
    }

    fn published() -> Published {
        let pair = Pair { snapshot: "10:20:10,14".parse().unwrap(), lsn: Lsn::new(1) };
        Published { pair, also: vec![14, 22], floor: None, flushed: None, earlier: Vec::new() }
    }

    #[test]
    fn the_table_itself_decides_then_the_column_then_xmin() {
        let filled = |name, base| Column::of(name, base).with_default("pg_current_xact_id()");
        let mut outbox = OutboxConfig::default();
        let with = table(vec![Column::of("x", "xid8"), filled("y", "xid8"), filled("xid", "xid8")]);
        assert_eq!(Basis::of(&outbox, &with), Basis::Xid("xid".to_owned()));
        assert_eq!(Basis::of(&outbox, &table(vec![Column::of("xid", "xid8")])), Basis::Xmin);
        assert_eq!(Basis::of(&outbox, &table(vec![filled("xid", "int8")])), Basis::Xmin);
        outbox.upkeep.pending = Some("a or b".to_owned());
        assert_eq!(Basis::of(&outbox, &with), Basis::Pending("a or b".to_owned()));
    }

    #[test]
    fn a_condition_is_true_for_what_is_published() {
        let name: TableName = "outbox".parse().unwrap();
        let pending = Basis::Pending("a or b".to_owned());
        assert_eq!(pending.condition(&name, None).unwrap(), "((a or b) is false)");
        let sql = Basis::Xid("x\"y".to_owned()).condition(&name, Some(&published())).unwrap();
        assert!(sql.starts_with(
            "(pg_catalog.pg_visible_in_snapshot(\"x\"\"y\", '10:20:10,14'::pg_snapshot) or \"x\"\"y\" = any \
             ('{14,22}'::xid8[]) or \"x\"\"y\" is null and "
        ));
        assert!(Basis::Xmin.condition(&name, Some(&published())).unwrap().ends_with("& 4294967295) < 10)"));
        // What was there before tells nothing, but where a column has the transaction.
        let since = Published { floor: Some("5:6:".parse().unwrap()), ..published() };
        let sql = Basis::Xid("x".to_owned()).condition(&name, Some(&since)).unwrap();
        assert!(
            !sql.contains("is null")
                && sql.ends_with("and not pg_catalog.pg_visible_in_snapshot(\"x\", '5:6:'::pg_snapshot))")
        );
        assert_eq!(Basis::Xmin.condition(&name, Some(&since)).unwrap_err().kind(), Kind::PositionMismatch);
        assert_eq!(Basis::Xmin.condition(&name, None).unwrap_err().kind(), Kind::PositionMismatch);
    }

    fn stored() -> Stored {
        let pair = Pair { snapshot: "10:20:".parse().unwrap(), lsn: Lsn::new(90) };
        Stored {
            server: ServerIdentity { system_identifier: "7000".to_owned(), timeline: 2 },
            slot: "orders".to_owned(),
            position: Position::at(Lsn::new(100)),
            publication_oid: 10,
            table_oids: vec![5, 6],
            membership_oids: Vec::new(),
            message_prefixes: Vec::new(),
            published: Some(Published { pair, also: Vec::new(), floor: None, flushed: None, earlier: Vec::new() }),
            stream_only: Vec::new(),
            catch_up: None,
        }
    }

    #[test]
    fn what_is_stored_counts_for_its_own_server_and_tables_only() {
        let here = |system: Option<&str>, timeline, wal_end| Here {
            may_read_control: system.is_some(),
            system_identifier: system.map(str::to_owned),
            timeline,
            wal_end: Lsn::new(wal_end),
        };
        let right = here(Some("7000"), 2, 100);
        assert!(judge(&right, stored(), 6).is_ok());
        assert!(judge(&here(None, 2, 100), stored(), 5).is_ok());
        let reading = CatchUp::new(Rows::All, None);
        for (here, stored, table_oid) in [
            (&here(Some("7001"), 2, 100), stored(), 5),
            (&here(Some("7000"), 3, 100), stored(), 5),
            (&here(Some("7000"), 2, 99), stored(), 5),
            (&right, stored(), 7),
            (&right, Stored { published: None, ..stored() }, 5),
            (&right, Stored { catch_up: Some(reading), ..stored() }, 5),
        ] {
            let error = judge(here, stored, table_oid).unwrap_err();
            assert_eq!(error.kind(), Kind::PositionMismatch);
            assert!(error.what_to_do().is_some());
        }
    }
}
