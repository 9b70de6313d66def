//! Marks rows, or deletes them, once they were acked.

use std::str;
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::{Client, Statement};

use crate::config::{OutboxConfig, SlotName, TableName, setting};
use crate::conninfo::ConnInfo;
use crate::error::{Error, Kind, Result};
use crate::postgres::quote::{quote_ident, quote_own_rows, quote_table, quoted as quoted_name};
use crate::postgres::sql::{Ended, SqlSession};
use crate::snapshot::Snapshot;
use crate::upkeep::table::Table;
use crate::upkeep::{Failed, answered, assignment, bound};

/// Ids of one statement: what a server does in a fraction of a second.
const ROWS_PER_STATEMENT: usize = 2_000;
/// How often a transaction is tried where others were in its way.
const ATTEMPTS: u32 = 5;
/// How soon it is looked again whether a row can be seen.
const UNSEEN_PAUSE: Duration = Duration::from_millis(5);
/// After the first attempt, and twice as long after each more.
const PAUSE: Duration = Duration::from_millis(50);

/// Marks or deletes rows once they were acked. One session of its own, off the path of events.
#[derive(Debug)]
pub struct Marker {
    session: SqlSession,
    /// By the outbox's index; none for one that nothing is written to.
    writers: Vec<Option<Writer>>,
    /// Whether a transaction may be open: a call that was cancelled leaves one.
    open: Mutex<bool>,
}

/// What is written to one table.
#[derive(Debug, Clone)]
struct Writer {
    table: TableName,
    /// What follows "while" in errors.
    doing: String,
    /// The operator's assignments, if rows are not deleted.
    mark: Option<String>,
    /// For a remedy: a role as SQL writes it.
    role: String,
    statement: Statement,
    /// Counts those of them that are pending all the same.
    still_pending: Option<Statement>,
}

impl Marker {
    /// Opens the session, looks at the tables and prepares the statements; none where no outbox is written to.
    ///
    /// Nothing is changed, no trigger fires. Once this returned, statements, columns and privileges were right. The session
    /// looks names up in `pg_catalog` alone, so functions of the operator's own need their schema in `outbox.mark`.
    ///
    /// # Errors
    /// [`Kind::Config`] for an `outbox.mark` Postgres does not take, and for one that would move rows to another partition,
    /// which publishes them again; [`Kind::PostgresRefused`] with the `GRANT` for a missing privilege;
    /// [`Kind::Publication`] for a table or an id column that is not there, and for a publication that keeps rows from being
    /// written to; and what connecting gives.
    pub async fn connect(database: &ConnInfo, slot: &SlotName, outboxes: &[OutboxConfig]) -> Result<Option<Marker>> {
        if !outboxes.iter().any(|outbox| outbox.upkeep.writes()) {
            return Ok(None);
        }
        let session = SqlSession::connect(database, &format!("walrelay {slot} upkeep")).await?;
        bound(session.client()).await?;
        let mut writers = Vec::with_capacity(outboxes.len());
        for outbox in outboxes {
            writers.push(match outbox.source.table().filter(|_| outbox.upkeep.writes()) {
                Some(table) => Some(writer(session.client(), outbox, table).await?),
                None => None,
            });
        }
        Ok(Some(Marker { session, writers, open: Mutex::new(false) }))
    }

    /// Marks or deletes these rows, in one transaction; each by the index of its outbox and the text of its id. Gives how
    /// many were written. `xids` are the lower halves of the ids of transactions that wrote them, which others may not see yet.
    ///
    /// Durable when it returns, whatever `synchronous_commit` says. Rows that are gone are no error, nor are those of
    /// outboxes that are not written to. Where several rows have one id, all of them are meant. What others' locks are in
    /// the way of is tried again for some twenty seconds at most. Memory: a copy of references. After an error nothing was
    /// written, unless the connection broke while committing; doing it again is safe as far as the assignments are.
    /// Safe to cancel: a transaction that was left open ends with the next call, or after a minute with the session.
    ///
    /// # Errors
    /// [`Kind::PostgresUnreachable`] where others stayed in the way, and for a lost connection: connect again.
    /// [`Kind::Event`] for an id that is not UTF-8. Those of [`Marker::connect`] where the table changed, and
    /// [`Kind::Config`] where constraints or triggers of the table do not let the mark be.
    pub async fn settle(&self, rows: &[(usize, Vec<u8>)], xids: &[u32]) -> Result<u64> {
        let parts = self.parts(rows)?;
        if parts.is_empty() {
            return Ok(0);
        }
        self.until_visible(xids).await?;
        let mut open = self.open.lock().await;
        let (mut attempt, mut pause) = (1, PAUSE);
        loop {
            let (writer, failed) = match self.attempt(&mut open, &parts).await {
                Ok(count) => return Ok(count),
                Err(failed) => failed,
            };
            let doing = writer.map_or("writing to the outbox", |writer| writer.doing.as_str());
            if failed.is_passing() && attempt < ATTEMPTS {
                tracing::debug!(attempt, "while {doing}: somebody was in the way, trying again");
                tokio::time::sleep(pause).await;
                (attempt, pause) = (attempt + 1, pause * 2);
                continue;
            }
            return Err(match writer {
                _ if failed.is_passing() => {
                    let told = failed.told(doing);
                    Error::new(Kind::PostgresUnreachable, format!("{}, {ATTEMPTS} times in a row", told.cause()))
                        .remedy("see in pg_stat_activity who holds locks on these rows for long")
                }
                Some(writer) => writer.told(&failed),
                None => failed.told(doing),
            });
        }
    }

    /// Waits until everybody sees what these transactions wrote, for as long as that takes.
    ///
    /// The slot delivers a commit once it is in the log, and others see it a little later, or, where the commit waits for a
    /// standby, much later: until then there is no row to be marked.
    async fn until_visible(&self, xids: &[u32]) -> Result<()> {
        const DOING: &str = "looking whether others see the rows";
        const SQL: &str = "select pg_catalog.pg_current_snapshot()::text";
        while !xids.is_empty() {
            let answer = answered(DOING, self.session.client().query_one(SQL, &[])).await;
            let text = answer.and_then(|row| row.try_get::<_, String>(0).map_err(Failed::Refused));
            let snapshot = text.map_err(|failed| failed.told(DOING))?.parse::<Snapshot>();
            let snapshot =
                snapshot.map_err(|error| Error::new(Kind::PostgresUnfit, format!("while {DOING}: {error}")))?;
            if xids.iter().all(|xid| snapshot.sees(snapshot.widen(*xid))) {
                break;
            }
            tokio::time::sleep(UNSEEN_PAUSE).await;
        }
        Ok(())
    }

    /// Waits for the end of the session and says why. Safe to cancel, to call again, and to hold while marking.
    pub fn closed(&self) -> impl Future<Output = Ended> + Send + 'static {
        self.session.closed()
    }

    /// What is written to each table, ids in their order: two that mark the same rows then wait for one another, and do not
    /// deadlock.
    fn parts<'a>(&'a self, rows: &'a [(usize, Vec<u8>)]) -> Result<Vec<(&'a Writer, Vec<&'a str>)>> {
        let mut parts = Vec::new();
        for (index, writer) in self.writers.iter().enumerate() {
            let Some(writer) = writer else { continue };
            let ids = rows.iter().filter(|(outbox, _)| *outbox == index).map(|(_, id)| str::from_utf8(id));
            let ids: Result<Vec<&str>, _> = ids.collect();
            let mut ids = ids.map_err(|_| {
                let cause = format!("while {}: an id is not UTF-8, and Postgres cannot be asked for it", writer.doing);
                Error::new(Kind::Event, cause).remedy("give the database's ids an encoding that UTF-8 is made of")
            })?;
            ids.sort_unstable();
            ids.dedup();
            parts.extend(ids.chunks(ROWS_PER_STATEMENT).map(|ids| (writer, ids.to_vec())));
        }
        Ok(parts)
    }

    async fn attempt<'a>(
        &self,
        open: &mut MutexGuard<'_, bool>,
        parts: &[(&'a Writer, Vec<&str>)],
    ) -> Result<u64, (Option<&'a Writer>, Failed)> {
        let client = self.session.client();
        let plain = |failed| (None, failed);
        if **open {
            answered("giving up a transaction", client.batch_execute("rollback")).await.map_err(plain)?;
        }
        **open = true;
        let mut written = transaction(client, parts).await;
        if written.is_ok() {
            let committed = answered("committing what was written to the outbox", client.batch_execute("commit")).await;
            written = committed.map_err(|failed| (parts.last().map(|(writer, _)| *writer), failed)).and(written);
        }
        if let Err((_, Failed::Refused(_))) = &written {
            answered("giving up a transaction", client.batch_execute("rollback")).await.map_err(plain)?;
        }
        **open = false;
        written
    }
}

async fn transaction<'a>(
    client: &Client,
    parts: &[(&'a Writer, Vec<&str>)],
) -> Result<u64, (Option<&'a Writer>, Failed)> {
    // Whatever role, database and server prefer, and whatever session a pooler gives us.
    const BEGIN: &str = "begin isolation level read committed; set local synchronous_commit = on";
    answered("beginning a transaction", client.batch_execute(BEGIN)).await.map_err(|failed| (None, failed))?;
    let mut count = 0;
    for (writer, ids) in parts {
        let executed = answered(&writer.doing, client.execute(&writer.statement, &[ids])).await;
        count += executed.map_err(|failed| (Some(*writer), failed))?;
        if let Some(still_pending) = &writer.still_pending {
            let answer = answered(&writer.doing, client.query_one(still_pending, &[ids])).await;
            let still = answer.and_then(|row| row.try_get::<_, i64>(0).map_err(Failed::Refused));
            if still.map_err(|failed| (Some(*writer), failed))? > 0 {
                return Err((Some(*writer), Failed::Broken(writer.leaves_pending())));
            }
        }
    }
    Ok(count)
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

async fn writer(client: &Client, outbox: &OutboxConfig, name: &TableName) -> Result<Writer> {
    let table = Table::look(client, name).await?;
    let id = table.needed(name, &outbox.id, setting::COLUMN_ID.key)?;
    let mark = outbox.upkeep.mark.clone();
    if let Some(mark) = &mark {
        stays_in_place(name, mark, &table.partition_keys)?;
    }
    let doing = match &mark {
        Some(_) => format!("marking rows of {name}"),
        None => format!("deleting rows of {name}"),
    };
    let (column, id_type) = (quote_ident(&id.name)?, &id.type_name);
    let head = statement(name, table.kind == "p", mark.as_deref())?;
    let sql = format!("{head}{column} = any ($1::text[]::{id_type}[])");
    let role = quoted_name(&table.role);
    let prepared = answered(&doing, client.prepare(&sql)).await;
    let statement = prepared.map_err(|failed| told(name, &doing, mark.as_deref(), &role, &failed))?;
    if statement.params().len() != 1 {
        let cause =
            format!("{} of {name} has parameters such as $2, and nothing is put in for them", setting::MARK.key);
        return Err(Error::new(Kind::Config, cause).remedy("write values where the parameters are"));
    }
    let still_pending = match &outbox.upkeep.pending {
        Some(pending) if mark.is_some() => {
            let table = quote_table(name)?;
            let sql = format!(
                "select count(*) from {table} where {column} = any ($1::text[]::{id_type}[]) and ({pending}\n)"
            );
            let prepared = answered(&doing, client.prepare(&sql)).await;
            Some(prepared.map_err(|failed| told(name, &doing, None, &role, &failed))?)
        }
        _ => None,
    };
    let writer = Writer { table: name.clone(), doing, mark, role, statement, still_pending };
    // Privileges, and whether the publication lets rows be written to, are looked at when a statement starts, and this
    // one starts without running. From a query, so that the planner cannot see that there are no rows.
    let explain = format!("explain {head}{column} = any ((select '{{}}'::text[])::{id_type}[])");
    let explained = answered(&writer.doing, client.batch_execute(&explain)).await;
    explained.map_err(|failed| writer.told(&failed))?;
    Ok(writer)
}

impl Writer {
    /// They would be published again and again.
    fn leaves_pending(&self) -> Error {
        let cause = format!("rows of {} are pending after {} as they were before", self.table, setting::MARK.key);
        Error::new(Kind::Config, cause)
            .remedy("let outbox.mark set what outbox.pending looks at, such as status = 'PUBLISHED'")
    }

    fn told(&self, failed: &Failed) -> Error {
        told(&self.table, &self.doing, self.mark.as_deref(), &self.role, failed)
    }
}

/// Why rows of `table` could not be written to, and whose fault it is.
fn told(table: &TableName, doing: &str, mark: Option<&str>, role: &str, failed: &Failed) -> Error {
    let error = failed.told(doing);
    let Some(sqlstate) = failed.sqlstate() else { return error };
    let name = quote_table(table).unwrap_or_else(|_| table.to_string());
    let key = setting::MARK.key;
    match (sqlstate, sqlstate.get(..2).unwrap_or_default(), mark) {
        ("42501", ..) => {
            let verb = if mark.is_some() { "update" } else { "delete" };
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
        (_, "22" | "P0", Some(_)) => {
            Error::new(Kind::Config, format!("while {doing}: {key} does not work out for a row (SQLSTATE {sqlstate})"))
                .remedy(format!("try {key} in an update of such a row"))
        }
        (_, "42" | "0A" | "23" | "44" | "21", Some(_)) => {
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
fn stays_in_place(table: &TableName, mark: &str, partition_keys: &[String]) -> Result<()> {
    let keys: Vec<String> = partition_keys.iter().flat_map(|key| assignment::names(key)).collect();
    let Some(moved) = assignment::assigned(mark).into_iter().find(|column| keys.contains(column)) else {
        return Ok(());
    };
    let cause = format!(
        "{} sets {moved}, which table {table} is partitioned by: the row would move to another partition, which \
         publishes it again",
        setting::MARK.key
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
        assert!(stays_in_place(&table, "sent = true, note = created_at::text", &keys).is_ok());
        let error = stays_in_place(&table, "sent = true, Status = 'SENT'", &keys).unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        assert!(error.cause().starts_with("outbox.mark sets status, which table public.outbox is"), "{error}");
    }
}
