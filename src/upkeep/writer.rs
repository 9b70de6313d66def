//! The statements that write to the rows of one table, checked by Postgres, and their errors.

use std::ops::RangeInclusive;

use tokio_postgres::{Client, Statement};

use crate::postgres::fault::{is_about_policy, sees_all_rows};
use crate::postgres::query::{QueryError, bounded};
use crate::postgres::quote::{
    quote_ident, quote_literal, quote_own_rows, quote_table, quoted as quoted_name,
};
use crate::postgres::table;
use crate::upkeep::ANSWER_TIMEOUT;
use walrelay_core::catalog::Table;
use walrelay_core::config::name::{Piece, pieces};
use walrelay_core::config::{OutboxConfig, TableName, Upkeep};
use walrelay_core::error::{Error, Kind, Result};

#[derive(Debug, Clone)]
pub(super) struct Writer {
    pub(super) table: TableName,
    /// Quoted, for a remedy.
    pub(super) role: String,
    pub(super) acked: Option<Written>,
    pub(super) failed: Option<Written>,
    /// Writes to rows of events that were tried and parked.
    pub(super) waiting: Option<Written>,
    /// Requests retries of parked events whose rows were set to pending. `$1` the slot, `$2` the
    /// outbox.
    pub(super) ask: Option<Statement>,
    /// The least and the greatest number of values of a row key: the row's transaction need not be
    /// known.
    pub(super) key_values: RangeInclusive<usize>,
}

#[derive(Debug, Clone)]
pub(super) struct Written {
    /// What follows "while" in errors.
    pub(super) doing: String,
    /// The setting with the operator's assignments; none for deletes.
    pub(super) key: Option<&'static str>,
    /// `$1` and on are arrays, one for each value of a row key, then those of [`OF_FAILURES`].
    /// Returns, of each written row, the number of its key among them, and whether it is still
    /// pending.
    pub(super) statement: Statement,
}

/// The columns for `:name` in an assignment to rows of failed events, and their types.
const OF_FAILURES: [(&str, &str); 4] = [
    ("walrelay_error", "text"),
    ("walrelay_class", "text"),
    ("walrelay_attempts", "int4"),
    ("walrelay_wait_ms", "int8"),
];

/// The table and the columns of its row key, quoted, each with its type.
struct Rows {
    table: String,
    key: Vec<(String, String)>,
    transaction: Option<String>,
}

impl Rows {
    fn of(table: &Table, name: &TableName, outbox: &OutboxConfig) -> Result<Rows> {
        let column = |column: &String| {
            let found = table.needed_column(name, column)?;
            Ok((quote_ident(&found.name)?, found.base.sql.clone()))
        };
        let key = outbox.index_columns().map(column).collect::<Result<_>>()?;
        let transaction = outbox
            .transaction_column()
            .map(|column| quote_ident(column))
            .transpose()?;
        Ok(Rows {
            table: quote_own_rows(name, table.is_partitioned())?,
            key,
            transaction,
        })
    }

    /// The statement that marks rows by their keys, or deletes them; `mark` can use the columns of
    /// [`OF_FAILURES`].
    fn statement(&self, mark: Option<&str>, pending: Option<&str>, is_of_failures: bool) -> Sql {
        let keys = (0..*self.values().end()).map(|at| (format!("walrelay_key_{at}"), "text"));
        let failures = OF_FAILURES
            .iter()
            .filter(|_| is_of_failures)
            .map(|(name, of)| ((*name).to_owned(), *of));
        let (names, types): (Vec<String>, Vec<&str>) = keys.chain(failures).unzip();
        let with = |array: &dyn Fn(usize) -> String| {
            let arrays = types
                .iter()
                .enumerate()
                .map(|(at, of)| format!("{}::{of}[]", array(at)));
            let arrays = arrays.collect::<Vec<_>>().join(", ");
            let given = format!(
                "unnest({arrays}) with ordinality as walrelay_rows({}, walrelay_row)",
                names.join(", ")
            );
            let head = match mark {
                // On a line of its own, so that Postgres' messages point to it.
                Some(mark) => format!("update {} set\n{mark}\nfrom {given}", self.table),
                None => format!("delete from {} using {given}", self.table),
            };
            format!(
                "{head} where {} returning walrelay_row, ({}\n)",
                self.is_row(|at| format!("walrelay_key_{at}")),
                pending.unwrap_or("false")
            )
        };
        Sql {
            text: with(&|at| format!("${}", at + 1)),
            // From a query, so that the planner cannot see that there are no rows.
            explain: format!("explain {}", with(&|_| "(select '{}')".to_owned())),
            parameters: types.len(),
        }
    }

    /// The condition that a row has these values of its key.
    fn is_row(&self, value: impl Fn(usize) -> String) -> String {
        let columns = self.key.iter().enumerate();
        let columns = columns.map(|(at, (column, of))| format!("{column} = {}::{of}", value(at)));
        let value = value(self.key.len());
        // A row that was written before the column existed has no value of it in the WAL.
        let transaction = self
            .transaction
            .iter()
            .map(|xid| format!("({value} is null or {xid} = {value}::xid8)"));
        columns.chain(transaction).collect::<Vec<_>>().join(" and ")
    }

    fn values(&self) -> RangeInclusive<usize> {
        self.key.len()..=self.key.len() + usize::from(self.transaction.is_some())
    }
}

struct Sql {
    text: String,
    /// The same under EXPLAIN: the server checks the statement and writes to no row.
    explain: String,
    parameters: usize,
}

/// An assignment to rows of failed events, with the columns in place of `:name`.
fn of_failures(mark: &str) -> String {
    const NEXT: &str = "(clock_timestamp() + walrelay_wait_ms * interval '1 millisecond')";
    let names = [
        ("error", "walrelay_error"),
        ("class", "walrelay_class"),
        ("attempts", "walrelay_attempts"),
        ("next_attempt_at", NEXT),
    ];
    with_values(mark, &names)
}

/// Prepares the statements for table `name` of `outbox`; `parks` where its events can be parked.
pub(super) async fn writer(
    client: &Client,
    outbox: &OutboxConfig,
    name: &TableName,
    parks: bool,
) -> Result<Writer> {
    let table = table::needed(client, name).await?;
    let rows = Rows::of(&table, name, outbox)?;
    let upkeep = &outbox.upkeep;
    let role = quoted_name(&table.role);
    let key_values = rows.values();
    let mut writer = Writer {
        table: name.clone(),
        role,
        acked: None,
        failed: None,
        waiting: None,
        ask: None,
        key_values,
    };
    // A deleted row is no longer pending.
    let pending = upkeep.pending.as_deref().filter(|_| upkeep.mark.is_some());
    if upkeep.writes() {
        let mark = upkeep.mark.as_deref();
        let (key, doing) = match mark {
            Some(_) => (Some("outbox.mark"), format!("marking rows of {name}")),
            None => (None, format!("deleting rows of {name}")),
        };
        let sql = rows.statement(mark, pending, false);
        writer.acked = Some(
            writer
                .written(client, &table, doing, key, mark, sql)
                .await?,
        );
    }
    if let Some(mark) = &upkeep.mark_failed {
        let doing = format!("marking rows of {name} that failed");
        let sql = rows.statement(Some(&of_failures(mark)), pending, true);
        let key = Some("outbox.mark_failed");
        let mark = Some(mark.as_str());
        writer.failed = Some(
            writer
                .written(client, &table, doing, key, mark, sql)
                .await?,
        );
    }
    if let Some(mark) = &upkeep.mark_waiting {
        let doing = format!("marking rows of {name} that wait");
        // If the mark does not set a column of `outbox.pending`, the row stays pending.
        let pending = pending.filter(|_| asks_by_pending(upkeep));
        let sql = rows.statement(Some(&of_failures(mark)), pending, true);
        let key = Some("outbox.mark_waiting");
        let mark = Some(mark.as_str());
        writer.waiting = Some(
            writer
                .written(client, &table, doing, key, mark, sql)
                .await?,
        );
    }
    if parks && asks_by_pending(upkeep) {
        writer.ask = Some(ask_statement(client, outbox, name, &rows).await?);
    }
    Ok(writer)
}

async fn ask_statement(
    client: &Client,
    outbox: &OutboxConfig,
    name: &TableName,
    rows: &Rows,
) -> Result<Statement> {
    let pending = outbox.upkeep.pending.as_deref().unwrap_or("false");
    let doing = format!("looking for rows of {name} that wait and are pending");
    let names = outbox
        .key_columns()
        .map(|name| quote_literal(name))
        .collect::<Result<Vec<_>>>()?;
    let name = |at: usize| names.get(at).map_or("null", String::as_str);
    let is_row = rows.is_row(|at| format!("(w.row_key operator(pg_catalog.->>) {})", name(at)));
    let sql = format!(
        "update walrelay.parked as w set asked = 'retry'
         where w.slot = $1 and w.outbox = $2 and w.class <> 'behind' and w.attempts > 0
           and w.asked is null
             and exists (select from {} where {is_row} and ({pending}\n))",
        rows.table
    );
    Ok(bounded(&doing, ANSWER_TIMEOUT, client.prepare(&sql)).await?)
}

impl Writer {
    /// A statement that Postgres accepts and the role may run.
    async fn written(
        &self,
        client: &Client,
        table: &Table,
        doing: String,
        key: Option<&'static str>,
        mark: Option<&str>,
        Sql {
            text,
            explain,
            parameters,
        }: Sql,
    ) -> Result<Written> {
        if let (Some(key), Some(mark)) = (key, mark) {
            stays_in_place(&self.table, key, mark, &table.partitioned.keys)?;
        }
        let prepared = bounded(&doing, ANSWER_TIMEOUT, client.prepare(&text)).await;
        let statement = prepared.map_err(|failed| self.fault(&doing, key, &failed))?;
        if let Some(key) = key
            && statement.params().len() != parameters
        {
            let cause = format!(
                "{key} of {} has parameters such as $2, and nothing is put in for them",
                self.table
            );
            return Err(
                Error::new(Kind::Config, cause).remedy("write values where the parameters are")
            );
        }
        let written = Written {
            doing,
            key,
            statement,
        };
        // Postgres checks privileges and the publication when a statement starts. This one starts
        // and does not run.
        let checked = bounded(
            &written.doing,
            ANSWER_TIMEOUT,
            client.batch_execute(&explain),
        )
        .await;
        checked.map_err(|failed| self.fault(&written.doing, written.key, &failed))?;
        Ok(written)
    }

    /// Rows that stay pending would be published repeatedly.
    pub(super) fn leaves_pending(&self, written: &Written) -> Error {
        let key = written.key.unwrap_or_default();
        let cause = format!(
            "rows of {} are pending after {key} as they were before",
            self.table
        );
        Error::new(Kind::Config, cause).remedy(format!(
            "let {key} set what outbox.pending looks at, such as status = 'PUBLISHED'"
        ))
    }

    pub(super) fn not_one_row(&self, written: &Written) -> Error {
        let cause = format!(
            "while {}: several rows of {} have the same key by now",
            written.doing, self.table
        );
        Error::new(Kind::Config, cause)
            .remedy("nothing was written to them; give the table the unique index back that it had")
    }

    pub(super) fn explained(&self, written: &Written, failed: &QueryError) -> Error {
        // Postgres accepted the statement at the start of the session: the table has changed since.
        if matches!(failed.sqlstate(), Some("42703" | "42P01")) {
            return Error::new(Kind::PostgresUnreachable, failed.error().cause());
        }
        self.fault(&written.doing, written.key, failed)
    }

    fn fault(&self, doing: &str, key: Option<&'static str>, failed: &QueryError) -> Error {
        let Writer { table, role, .. } = self;
        let error = failed.error();
        let Some(sqlstate) = failed.sqlstate() else {
            return error.clone();
        };
        let name = quote_table(table).unwrap_or_else(|_| table.to_string());
        match (sqlstate, sqlstate.get(..2).unwrap_or_default(), key) {
            ("42501", ..) if is_about_policy(error) => error.clone().remedy(sees_all_rows(role)),
            ("42501", ..) => {
                let verb = if key.is_some() { "update" } else { "delete" };
                Error::new(Kind::PostgresRefused, error.cause()).remedy(format!(
                    "grant usage on schema {} to {role}; grant select, {verb} on {name} to {role};",
                    quoted_name(table.schema())
                ))
            }
            // The table publishes updates or deletes, and has no replica identity.
            ("55000", ..) => Error::new(Kind::Publication, error.cause()).remedy(
                "a publication of updates and deletes wants a primary key: alter publication … set \
                 (publish = 'insert'); is \
                 enough for walrelay",
            ),
            ("42P01" | "3F000", ..) => Error::new(Kind::Publication, error.cause()),
            // The message may contain the value of a row.
            (_, "22" | "P0", Some(key)) => Error::new(
                Kind::Config,
                format!(
                    "while {doing}: {key} does not work out for a row \
                                                  (SQLSTATE {sqlstate})"
                ),
            )
            .remedy(format!("try {key} in an update of such a row")),
            (_, "42" | "0A" | "23" | "44" | "21", Some(key)) => Error::new(
                Kind::Config,
                format!("{key} of table {table} cannot be used: {}", error.cause()),
            )
            .remedy(format!(
                "write {key} as it would stand behind UPDATE … SET, with the schemas of \
                     functions and types of your own"
            )),
            (_, "23", None) => Error::new(Kind::Publication, error.cause()).remedy(
                "other tables refer to these rows: give their foreign keys an on delete, \
                         or leave rows where they are",
            ),
            _ => error.clone(),
        }
    }
}

/// An update that moves a row to another partition is a delete and an insert in the WAL, and
/// inserts are published.
fn stays_in_place(
    table: &TableName,
    key: &str,
    mark: &str,
    partition_keys: &[String],
) -> Result<()> {
    let keys: Vec<String> = partition_keys.iter().flat_map(|key| names(key)).collect();
    let Some(moved) = assigned(mark)
        .into_iter()
        .find(|column| keys.contains(column))
    else {
        return Ok(());
    };
    let cause = format!(
        "{key} sets {moved}, which table {table} is partitioned by: the row would move to another \
         partition, which \
         publishes it again"
    );
    Err(Error::new(Kind::Config, cause)
        .remedy("mark rows in a column that partitions do not depend on"))
}

/// The names in `sql`, keywords among them.
pub(crate) fn names(sql: &str) -> Vec<String> {
    let name = |piece| match piece {
        Piece::Name(name) => Some(name),
        Piece::Sign(_) => None,
    };
    pieces(sql).0.into_iter().filter_map(name).collect()
}

/// The columns that `assignments`, as in `UPDATE … SET`, set.
fn assigned(assignments: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let mut is_target = true;
    let mut targets = Vec::new();
    for piece in pieces(assignments).0 {
        match piece {
            Piece::Name(name) if is_target => targets.push(name),
            Piece::Name(_) => {}
            Piece::Sign('(' | '[') => depth += 1,
            Piece::Sign(')' | ']') => depth = depth.saturating_sub(1),
            Piece::Sign('=') if depth == 0 => is_target = false,
            Piece::Sign(',') if depth == 0 => is_target = true,
            Piece::Sign(_) => {}
        }
    }
    targets
}

/// Whether a marked row of a parked event is pending only where an operator set it so:
/// `outbox.mark_waiting` sets a column that `outbox.pending` uses.
pub(super) fn asks_by_pending(upkeep: &Upkeep) -> bool {
    let (Some(mark), Some(pending)) = (&upkeep.mark_waiting, &upkeep.pending) else {
        return false;
    };
    let looked_at = names(pending);
    assigned(mark)
        .iter()
        .any(|column| looked_at.contains(column))
}

/// `sql` with the value for each `:name` outside of text constants and quoted names; `::` is a
/// cast.
fn with_values(sql: &str, values: &[(&str, &str)]) -> String {
    let mut made = String::with_capacity(sql.len());
    let mut quote = None;
    let mut before = ' ';
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let name = rest
            .strip_prefix(':')
            .filter(|_| quote.is_none() && before != ':')
            .and_then(|behind| {
                let end = behind
                    .find(|next: char| !next.is_alphanumeric() && next != '_')
                    .unwrap_or(behind.len());
                let (name, rest) = behind.split_at_checked(end)?;
                values
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| (value, rest))
            });
        if let Some((value, behind)) = name {
            made.push_str(value);
            rest = behind;
            before = ' ';
            continue;
        }
        match (first, quote) {
            ('\'' | '"', None) => quote = Some(first),
            (first, Some(open)) if first == open => quote = None,
            _ => {}
        }
        made.push(first);
        rest = rest.get(first.len_utf8()..).unwrap_or_default();
        before = first;
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_that_moves_rows_to_other_partitions_is_refused() {
        let table: TableName = "outbox".parse().unwrap();
        let keys = [
            "RANGE (created_at)".to_owned(),
            "LIST (lower(status))".to_owned(),
        ];
        assert!(
            stays_in_place(
                &table,
                "outbox.mark",
                "sent = true, note = created_at::text",
                &keys
            )
            .is_ok()
        );
        let error = stays_in_place(&table, "outbox.mark", "sent = true, Status = 'SENT'", &keys)
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        assert!(
            error
                .cause()
                .starts_with("outbox.mark sets status, which table public.outbox is"),
            "{error}"
        );
    }

    #[test]
    fn the_columns_that_a_mark_assigns_are_found() {
        for (sql, expected) in [
            (
                "status = 'PUBLISHED', Published_At = now()",
                vec!["status", "published_at"],
            ),
            ("sent = true", vec!["sent"]),
            (
                r#""Sent At" = case when a = b then c else d end, n=n+1"#,
                vec!["Sent At", "n"],
            ),
            ("(a, b) = (c, d), e = f(g, h => i)", vec!["a", "b", "e"]),
            (
                "payload['sent'] = to_jsonb(x), l[2] = 1",
                vec!["payload", "l"],
            ),
            (
                r"a = 'it''s, b = 1', c = E'\', d = 2', e = 3",
                vec!["a", "c", "e"],
            ),
            ("", vec![]),
        ] {
            assert_eq!(assigned(sql), expected, "{sql}");
        }
    }

    #[test]
    fn a_parked_row_set_to_pending_is_a_request_only_if_its_mark_clears_pending() {
        let asks = |pending: Option<&str>, mark: Option<&str>| {
            let pending = pending.map(str::to_owned);
            let mark_waiting = mark.map(str::to_owned);
            asks_by_pending(&Upkeep {
                pending,
                mark_waiting,
                ..Upkeep::default()
            })
        };
        assert!(asks(
            Some("status in ('NEW', 'AGAIN')"),
            Some("n = 1, Status = 'FAILED'")
        ));
        assert!(!asks(
            Some("sent = false"),
            Some("last_error = :error, n = sent::int")
        ));
        assert!(!asks(None, Some("status = 'FAILED'")) && !asks(Some("status = 'NEW'"), None));
    }

    #[test]
    fn placeholders_of_a_mark_are_replaced_and_quoted_text_is_not() {
        for (sql, expected) in [
            (
                "last_error = left(:error, 200), n = :attempts::int",
                "last_error = left(e.x, 200), n = e.n::int",
            ),
            (
                "a = ':error', \":error\" = 'it''s :error'||:error",
                "a = ':error', \":error\" = 'it''s :error'||e.x",
            ),
            (
                "a = b::error, c = :errors, l = x[1:2], d = ':",
                "a = b::error, c = :errors, l = x[1:2], d = ':",
            ),
        ] {
            assert_eq!(
                with_values(sql, &[("error", "e.x"), ("attempts", "e.n")]),
                expected
            );
        }
    }
}
