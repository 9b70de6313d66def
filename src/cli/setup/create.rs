//! Runs the statements of a plan. Creating a slot is the one that can take long: it waits for every transaction that is
//! under way, a prepared one included.

use std::time::Duration;

use tokio_postgres::error::SqlState;

use crate::cli::output::{Outcome, note};
use crate::cli::session::{Session, column};
use crate::cli::setup::plan::Step;
use crate::cli::sql;
use crate::config::unit::exact_duration;
use crate::conninfo::ConnInfo;
use crate::error::{Error, Kind, Result};
use crate::postgres::fault::{self, While};

/// How often a waiting person is told what the slot waits for.
const REPORT_EVERY: Duration = Duration::from_secs(2);
/// How long others have the table to themselves before it is asked for again.
const LOCK_PAUSE: Duration = Duration::from_millis(500);
/// How much longer than the server we wait for the server to give up.
const GRACE: Duration = Duration::from_secs(5);

/// Bounds every statement of the session by `timeout`, and nothing by a lock timeout that role or database may have.
///
/// # Errors
/// What the session gives.
pub async fn limit(session: &Session, timeout: Duration) -> Result<()> {
    let sql = format!("set lock_timeout = 0; set statement_timeout = {}", timeout.as_millis());
    session.run("setting time limits", &sql).await
}

/// Changes a table that is in use, with a statement that gives up its place in the queue for the lock after a short while:
/// who comes behind it would wait, too.
///
/// # Errors
/// [`Kind::PostgresUnfit`] where the lock was not to be had within `timeout`; nothing is changed then.
pub async fn patiently(session: &Session, step: &Step, timeout: Duration) -> Result<()> {
    let deadline = tokio::time::Instant::now() + timeout;
    loop {
        let Err(error) = session.client().batch_execute(&step.sql).await else { return Ok(()) };
        if !error.is_closed() {
            session.run(&step.doing, "rollback").await?;
        }
        if error.code() != Some(&SqlState::LOCK_NOT_AVAILABLE) {
            return Err(fault::sql(While::Querying(&step.doing), &error));
        }
        if tokio::time::Instant::now() >= deadline {
            let cause = format!("gave up {} after {}: others use the table", step.doing, exact_duration(timeout));
            return Err(Error::new(Kind::PostgresUnfit, cause).remedy(
                "let long transactions end, or end them (pg_stat_activity has their age), or wait longer with --timeout",
            ));
        }
        note(format_args!("waiting for transactions that use the table ({})", step.doing));
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}

/// Runs a statement that takes as long as the table is large, and is in nobody's way; `timeout` bounds those after it.
///
/// # Errors
/// What the session gives.
pub async fn unbounded(session: &Session, step: &Step, timeout: Duration) -> Result<()> {
    session.run("lifting the time limit", "set statement_timeout = 0").await?;
    session.run(&step.doing, &step.sql).await?;
    limit(session, timeout).await
}

/// Creates the slot, and tells every two seconds which transactions it waits for.
///
/// # Errors
/// [`Kind::PostgresUnfit`] where it is not there after `timeout`; the server then leaves nothing behind.
pub async fn slot(session: &Session, database: &ConnInfo, step: &Step, timeout: Duration) -> Outcome {
    let pid: i32 =
        match session.row("asking for the session's pid", "select pg_catalog.pg_backend_pid() as pid", &[]).await? {
            Some(row) => column(&row, "pid")?,
            None => return Err(Error::new(Kind::Bug, "the session has no pid").into()),
        };
    // The second session is opened before it is needed: when all connections are taken, that is known first.
    let observer = Session::connect(database, "setup").await?;
    let deadline = tokio::time::sleep(timeout + GRACE);
    tokio::pin!(deadline);
    let mut report = tokio::time::interval_at(tokio::time::Instant::now() + REPORT_EVERY, REPORT_EVERY);
    let creating = session.client().batch_execute(&step.sql);
    tokio::pin!(creating);
    let mut waits = String::new();
    loop {
        tokio::select! {
            created = &mut creating => return match created {
                Ok(()) => Ok(()),
                Err(error) if timed_out(error.code()) => Err(too_late(step, timeout, &waits).into()),
                Err(error) => Err(fault::sql(While::Querying(&step.doing), &error).into()),
            },
            () = &mut deadline => return Err(too_late(step, timeout, &waits).into()),
            _ = report.tick() => {
                waits = blockers(&observer, pid).await?;
                note(if waits.is_empty() { "waiting".to_owned() } else { format!("waiting for {waits}") });
            }
        }
    }
}

/// Whether this is how `statement_timeout` ends a statement. An administrator's `pg_cancel_backend` ends it alike.
fn timed_out(code: Option<&SqlState>) -> bool {
    code == Some(&SqlState::QUERY_CANCELED)
}

fn too_late(step: &Step, timeout: Duration, waits: &str) -> Error {
    let for_whom = if waits.is_empty() { String::new() } else { format!(" for {waits}") };
    let cause = format!("gave up {} after {}, waiting{for_whom}", step.doing, exact_duration(timeout));
    Error::new(Kind::PostgresUnfit, cause).remedy(
        "let these transactions end, or end them (select pg_terminate_backend(PID); or rollback prepared 'NAME';), \
         or wait longer with --timeout; then run setup again",
    )
}

/// Who is in the way of the backend `pid`, without what they are doing: that may hold data.
async fn blockers(observer: &Session, pid: i32) -> Result<String> {
    let rows = observer.rows("asking what the slot waits for", sql::WAITS, &[&pid]).await?;
    let blockers = rows.iter().map(|row| {
        let blocker: i32 = column(row, "pid")?;
        if blocker == 0 {
            let names: Option<String> = column(row, "prepared")?;
            return Ok(format!("a prepared transaction ({})", names.as_deref().unwrap_or("of another database")));
        }
        let (role, application): (String, String) = (column(row, "role")?, column(row, "application")?);
        let age: Option<i64> = column(row, "age_seconds")?;
        let age = age.map(|seconds| format!(", in its transaction for {seconds} s")).unwrap_or_default();
        Ok(format!("pid {blocker} (role {role:?}, application {application:?}{age})"))
    });
    Ok(blockers.collect::<Result<Vec<_>>>()?.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_told_by_its_sqlstate_and_by_nothing_else() {
        assert!(timed_out(Some(&SqlState::from_code("57014"))));
        for other in ["57P01", "55P03", "53400"] {
            assert!(!timed_out(Some(&SqlState::from_code(other))), "{other}");
        }
        assert!(!timed_out(None), "a connection that broke");
    }

    #[test]
    fn who_gave_up_waiting_is_told_for_whom_and_what_to_do() {
        let step = Step {
            object: crate::cli::setup::plan::Object::Slot,
            doing: "creating slot orders".to_owned(),
            done: String::new(),
            sql: String::new(),
        };
        let error = too_late(&step, Duration::from_secs(90), "pid 7");
        assert_eq!(error.kind(), Kind::PostgresUnfit);
        assert_eq!(error.cause(), "gave up creating slot orders after 1m 30s, waiting for pid 7");
        assert!(error.what_to_do().unwrap().contains("--timeout"));
    }
}
