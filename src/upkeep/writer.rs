//! What is written to the rows of one table: statements that Postgres was seen to take, and whose fault it is where it does
//! not.

use tokio_postgres::{Client, Statement};

use crate::config::{OutboxConfig, TableName, setting};
use crate::error::{Error, Kind, Result};
use crate::postgres::quote::{quote_ident, quote_own_rows, quote_table, quoted as quoted_name};
use crate::upkeep::table::Table;
use crate::upkeep::{Failed, answered, assignment};

/// What is written to one table.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    pub(super) table: TableName,
    /// For a remedy: a role as SQL writes it.
    pub(super) role: String,
    /// To rows that were acked.
    pub(super) acked: Option<Written>,
    /// To rows whose events were given up.
    pub(super) failed: Option<Written>,
    /// To rows whose events were tried and wait.
    pub(super) waiting: Option<Written>,
    /// Counts rows that are pending all the same.
    pub(super) still_pending: Option<Statement>,
}

/// A statement, and whose it is.
#[derive(Debug, Clone)]
pub(super) struct Written {
    /// What follows "while" in errors.
    pub(super) doing: String,
    /// The setting with the operator's assignments; none where rows are deleted.
    pub(super) key: Option<&'static str>,
    pub(super) statement: Statement,
    /// Whether rows may be pending after it.
    pub(super) leaves_pending: bool,
}

/// The statement up to its rows.
fn statement(table: &TableName, is_partitioned: bool, mark: Option<&str>) -> Result<String> {
    let table = quote_own_rows(table, is_partitioned)?;
    Ok(match mark {
        // On a line of its own, so that Postgres' messages point to it.
        Some(mark) => format!("update {table} set\n{mark}\nwhere "),
        None => format!("delete from {table} where "),
    })
}

/// The statement that marks rows whose events failed, up to which rows: `walrelay_…` are what is put in.
fn statement_of_failed(table: &TableName, is_partitioned: bool, mark: &str) -> Result<String> {
    const NEXT: &str = "(clock_timestamp() + walrelay_wait_ms * interval '1 millisecond')";
    let names = [
        ("error", "walrelay_error"),
        ("class", "walrelay_class"),
        ("attempts", "walrelay_attempts"),
        ("next_attempt_at", NEXT),
    ];
    let head = statement(table, is_partitioned, Some(&assignment::with_values(mark, &names)))?;
    let head = head.strip_suffix("where ").unwrap_or(&head);
    Ok(format!(
        "{head}from unnest($1::text[], $2::text[], $3::text[], $4::int4[], $5::int8[]) \
         as walrelay_failed(walrelay_id, walrelay_error, walrelay_class, walrelay_attempts, walrelay_wait_ms) where "
    ))
}

pub(super) async fn writer(client: &Client, outbox: &OutboxConfig, name: &TableName) -> Result<Writer> {
    let table = Table::look(client, name).await?;
    let id = table.needed(name, &outbox.id, setting::COLUMN_ID.key)?;
    let (column, id_type) = (quote_ident(&id.name)?, &id.type_name);
    let is_partitioned = table.kind == "p";
    let (upkeep, role) = (&outbox.upkeep, quoted_name(&table.role));
    let mut writer =
        Writer { table: name.clone(), role, acked: None, failed: None, waiting: None, still_pending: None };
    if upkeep.delete && !id.is_unique {
        let cause = format!("{} is acked, and several rows of {name} may have one {}", setting::DELETE.key, id.name);
        let remedy = format!(
            "create unique index on {} ({column}); or name a column with outbox.columns.id that has one",
            quote_table(name)?
        );
        return Err(Error::new(Kind::Config, cause).remedy(remedy));
    }
    if upkeep.writes() {
        let (key, doing) = match &upkeep.mark {
            Some(_) => (Some(setting::MARK.key), format!("marking rows of {name}")),
            None => (None, format!("deleting rows of {name}")),
        };
        let head = statement(name, is_partitioned, upkeep.mark.as_deref())?;
        // From a query, so that the planner cannot see that there are no rows.
        let explain = format!("explain {head}{column} = any ((select '{{}}'::text[])::{id_type}[])");
        let sql = format!("{head}{column} = any ($1::text[]::{id_type}[])");
        writer.acked =
            Some(writer.written(client, &table, (doing, key, upkeep.mark.as_deref()), (sql, 1, explain)).await?);
    }
    let failing = async |writer: &Writer, key: &'static str, doing: String, mark: &str| {
        let head = statement_of_failed(name, is_partitioned, mark)?;
        let sql = format!("{head}{column} = walrelay_id::{id_type}");
        let mut explain = format!("explain {sql}");
        for (parameter, of) in [("$1", "text"), ("$2", "text"), ("$3", "text"), ("$4", "int4"), ("$5", "int8")] {
            explain = explain.replace(parameter, &format!("(select '{{}}'::{of}[])"));
        }
        writer.written(client, &table, (doing, Some(key), Some(mark)), (sql, 5, explain)).await
    };
    if let Some(mark) = &upkeep.mark_failed {
        let doing = format!("marking rows of {name} that failed");
        writer.failed = Some(failing(&writer, setting::MARK_FAILED.key, doing, mark).await?);
    }
    if let Some(mark) = &upkeep.mark_waiting {
        let doing = format!("marking rows of {name} that wait");
        let leaves_pending = !assignment::asks_by_pending(upkeep);
        let written = failing(&writer, setting::MARK_WAITING.key, doing, mark).await?;
        writer.waiting = Some(Written { leaves_pending, ..written });
    }
    if let Some(pending) = &upkeep.pending
        && let Some(written) = writer.acked.as_ref().filter(|written| written.key.is_some())
    {
        let table = quote_table(name)?;
        let sql =
            format!("select count(*) from {table} where {column} = any ($1::text[]::{id_type}[]) and ({pending}\n)");
        let prepared = answered(&written.doing, client.prepare(&sql)).await;
        let deleting = Written { key: None, ..written.clone() };
        writer.still_pending = Some(prepared.map_err(|failed| writer.told(&deleting, &failed))?);
    }
    Ok(writer)
}

/// What asks for events that wait to be tried again where somebody set their rows to pending: what marked them as rows that
/// wait had set them to something else. `$1` the slot, `$2` the outbox.
pub(super) async fn ask_statement(client: &Client, outbox: &OutboxConfig, name: &TableName) -> Result<Statement> {
    let table = Table::look(client, name).await?;
    let id = table.needed(name, &outbox.id, setting::COLUMN_ID.key)?;
    let (column, id_type, of) = (quote_ident(&id.name)?, &id.type_name, quote_table(name)?);
    let pending = outbox.upkeep.pending.as_deref().unwrap_or("false");
    let waiting = "w.slot = $1 and w.outbox = $2 and w.class <> 'behind' and w.attempts > 0 and w.asked is null";
    let doing = format!("looking for rows of {name} that wait and are pending");
    let sql = format!(
        "update walrelay.parked as w set asked = 'retry' where {waiting} and w.row_id = any (array(
             select pg_catalog.convert_to({column}::text, 'UTF8') from {of}
             where {column} = any (array(
                 select pg_catalog.convert_from(w.row_id, 'UTF8') from walrelay.parked as w where {waiting}
             )::{id_type}[]) and ({pending}
             )))"
    );
    answered(&doing, client.prepare(&sql)).await.map_err(|failed| failed.told(&doing))
}

impl Writer {
    /// A statement with this many parameters that Postgres takes, and this role may run.
    async fn written(
        &self,
        client: &Client,
        table: &Table,
        (doing, key, mark): (String, Option<&'static str>, Option<&str>),
        (sql, parameters, explain): (String, usize, String),
    ) -> Result<Written> {
        if let (Some(key), Some(mark)) = (key, mark) {
            stays_in_place(&self.table, (key, mark), &table.partition_keys)?;
        }
        let prepared = answered(&doing, client.prepare(&sql)).await;
        let statement = prepared.map_err(|failed| told(&self.table, (&doing, key), &self.role, &failed))?;
        if let Some(key) = key
            && statement.params().len() != parameters
        {
            let cause = format!("{key} of {} has parameters such as $2, and nothing is put in for them", self.table);
            return Err(Error::new(Kind::Config, cause).remedy("write values where the parameters are"));
        }
        let written = Written { doing, key, statement, leaves_pending: false };
        // Privileges, and whether the publication lets rows be written to, are looked at when a statement starts, and this
        // one starts without running.
        let explained = answered(&written.doing, client.batch_execute(&explain)).await;
        explained.map_err(|failed| self.told(&written, &failed))?;
        Ok(written)
    }

    /// They would be published again and again.
    pub(super) fn leaves_pending(&self, written: &Written) -> Error {
        let key = written.key.unwrap_or_default();
        let cause = format!("rows of {} are pending after {key} as they were before", self.table);
        Error::new(Kind::Config, cause)
            .remedy(format!("let {key} set what outbox.pending looks at, such as status = 'PUBLISHED'"))
    }

    pub(super) fn told(&self, written: &Written, failed: &Failed) -> Error {
        told(&self.table, (&written.doing, written.key), &self.role, failed)
    }
}

/// Why rows of `table` could not be written to, and whose fault it is.
fn told(table: &TableName, (doing, key): (&str, Option<&'static str>), role: &str, failed: &Failed) -> Error {
    let error = failed.told(doing);
    let Some(sqlstate) = failed.sqlstate() else { return error };
    let name = quote_table(table).unwrap_or_else(|_| table.to_string());
    match (sqlstate, sqlstate.get(..2).unwrap_or_default(), key) {
        ("42501", ..) => {
            let verb = if key.is_some() { "update" } else { "delete" };
            Error::new(Kind::PostgresRefused, error.cause()).remedy(format!(
                "grant usage on schema {} to {role}; grant select, {verb} on {name} to {role};",
                quoted_name(table.schema())
            ))
        }
        // The table publishes updates or deletes, and nothing tells its rows apart.
        ("55000", ..) => Error::new(Kind::Publication, error.cause()).remedy(
            "a publication of updates and deletes wants a primary key: alter publication … set (publish = 'insert'); is \
             enough for walrelay",
        ),
        ("42P01" | "3F000", ..) => Error::new(Kind::Publication, error.cause()),
        // What a value is may stand in the message, and the value may be a row's.
        (_, "22" | "P0", Some(key)) => {
            Error::new(Kind::Config, format!("while {doing}: {key} does not work out for a row (SQLSTATE {sqlstate})"))
                .remedy(format!("try {key} in an update of such a row"))
        }
        (_, "42" | "0A" | "23" | "44" | "21", Some(key)) => {
            Error::new(Kind::Config, format!("{key} of table {table} cannot be used: {}", error.cause())).remedy(format!(
                "write {key} as it would stand behind UPDATE … SET, with the schemas of functions and types of your own"
            ))
        }
        (_, "23", None) => Error::new(Kind::Publication, error.cause())
            .remedy("other tables refer to these rows: give their foreign keys an on delete, or leave rows where they are"),
        _ => error,
    }
}

/// An update that moves a row to another partition is a delete and an insert in the log, and inserts are published.
fn stays_in_place(table: &TableName, (key, mark): (&str, &str), partition_keys: &[String]) -> Result<()> {
    let keys: Vec<String> = partition_keys.iter().flat_map(|key| assignment::names(key)).collect();
    let Some(moved) = assignment::assigned(mark).into_iter().find(|column| keys.contains(column)) else {
        return Ok(());
    };
    let cause = format!(
        "{key} sets {moved}, which table {table} is partitioned by: the row would move to another partition, which \
         publishes it again"
    );
    Err(Error::new(Kind::Config, cause).remedy("mark rows in a column that partitions do not depend on"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_put_in_as_it_stands_and_names_are_quoted() {
        let table: TableName = r#""Sa"".les"."out box""#.parse().unwrap();
        assert_eq!(
            statement(&table, true, Some("status = 'SENT', v = v + 1")).unwrap() + "x",
            "update \"Sa\"\".les\".\"out box\" set\nstatus = 'SENT', v = v + 1\nwhere x"
        );
        assert_eq!(statement(&table, true, None).unwrap(), r#"delete from "Sa"".les"."out box" where "#);
    }

    #[test]
    fn a_mark_that_moves_rows_to_other_partitions_is_refused() {
        let table: TableName = "outbox".parse().unwrap();
        let keys = ["RANGE (created_at)".to_owned(), "LIST (lower(status))".to_owned()];
        assert!(stays_in_place(&table, ("outbox.mark", "sent = true, note = created_at::text"), &keys).is_ok());
        let error = stays_in_place(&table, ("outbox.mark", "sent = true, Status = 'SENT'"), &keys).unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        assert!(error.cause().starts_with("outbox.mark sets status, which table public.outbox is"), "{error}");
    }
}
