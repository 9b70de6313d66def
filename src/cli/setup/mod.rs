//! `walrelay setup`: reads what exists, plans without I/O ([`plan`]), and runs the statements.

pub mod plan;
pub mod xid_column;

use std::time::Duration;

use plan::{Found, Object, Plan, Step, Wanted};
use tokio_postgres::error::SqlState;

use crate::cli::load::Loaded;
use crate::cli::output::{Outcome, note, print, print_line, shell_word, warn};
use crate::cli::sql::{Session, column};
use crate::cli::{SetupArgs, flags, word};
use crate::config::Mode;
use crate::config::unit::exact_duration;
use crate::conninfo::ConnInfo;
use crate::error::{Error, Kind, Result};
use crate::postgres::fault::{self, While};
use crate::source::row_key;

/// Creates what is missing, leaves what fits, and refuses what does not fit with the SQL to fix it.
///
/// # Errors
/// [`crate::error::Kind::PostgresUnfit`], [`crate::error::Kind::PostgresRefused`],
/// [`crate::error::Kind::Publication`], [`crate::error::Kind::SlotUnusable`], and what connecting gives.
pub async fn setup(args: &SetupArgs) -> Outcome {
    let loaded = Loaded::new(&flags(args), args.common.config.as_deref())?;
    warn(loaded.settings.warnings());
    let (source, mut outboxes) = (loaded.settings.source()?, loaded.settings.outboxes()?);
    let session = Session::connect(&source.database, "setup").await?;
    row_key::find(session.client(), &source, &loaded.settings.delivery()?, &mut outboxes).await?;
    let found = Found::read(&session, &source, &outboxes).await?;
    let wanted = Wanted {
        slot: &source.slot,
        publication: &source.publication,
        outboxes: &outboxes,
        create_table: args.create_table,
        polls: source.mode == Mode::Poll,
    };
    let mut plan = plan::plan(&wanted, &found)?;
    if args.add_xid_column {
        xid_column::extend(&mut plan, &session, &outboxes, &found).await?;
        plan.put_tables_first();
    }
    plan::look_at_rows(&mut plan, &session, &wanted, &found, args.add_xid_column).await?;
    if args.dry_run {
        return print(&script(&plan, args.timeout));
    }
    plan.refusal()?;
    for present in &plan.present {
        print_line(present)?;
    }
    limit(&session, args.timeout).await?;
    for step in &plan.steps {
        print_line(&step.sql)?;
        match step.object {
            Object::Table | Object::Publication => session.run(&step.doing, &step.sql).await?,
            Object::Column => patiently(&session, step, args.timeout).await?,
            Object::Index => unbounded(&session, step, args.timeout).await?,
            Object::Slot => create_slot(&session, &source.database, step, args.timeout).await?,
        }
        print_line(&step.done)?;
    }
    for remark in &plan.remarks {
        print_line(format_args!("note: {remark}"))?;
    }
    for warning in &plan.warnings {
        print_line(format_args!("warning: {warning}"))?;
    }
    let brokers = if loaded.settings.get("kafka.brokers").is_some() { "" } else { " --brokers HOST:PORT" };
    // A table that was made just now is empty.
    let again = if found.tables().next().is_some() && plan.steps.iter().any(|step| step.object == Object::Slot) {
        "\n(add --backlog all, or since=TIME, the first time, if rows that are in the table already are to be published)"
    } else {
        ""
    };
    print_line(format_args!("Ready. Next: walrelay run --slot {}{}{brokers}{again}", source.slot, repeated(args)))
}

/// The flags of this `setup` that its `run` needs, too: what the environment or a file says, it finds by itself.
fn repeated(args: &SetupArgs) -> String {
    let config = args.common.config.as_ref().map(|path| path.display().to_string());
    let mode = args.mode.and_then(word);
    let flags = [
        ("config", config.as_deref()),
        ("table", args.table.as_deref()),
        ("publication", args.publication.as_deref()),
        ("mode", mode.as_deref()),
    ];
    let given = flags.into_iter().filter_map(|(flag, value)| Some(format!(" --{flag} {}", shell_word(value?))));
    given.collect()
}

/// The plan as a script for `psql`: what stands in the way is a comment, because whoever runs it may have other rights.
fn script(plan: &Plan, timeout: std::time::Duration) -> String {
    let mut lines =
        vec!["-- walrelay setup: stops at the first error.".to_owned(), "\\set ON_ERROR_STOP on".to_owned()];
    let comment = |text: &str| text.lines().map(|line| format!("-- {line}")).collect::<Vec<_>>().join("\n");
    for obstacle in &plan.obstacles {
        lines.push(comment(&format!("IN THE WAY: {obstacle}")));
        lines.extend(obstacle.what_to_do().map(|remedy| comment(&format!("    fix: {remedy}"))));
    }
    lines.extend(plan.present.iter().chain(&plan.remarks).map(|text| comment(text)));
    lines.extend(plan.warnings.iter().map(|warning| comment(&format!("warning: {warning}"))));
    if plan.steps.is_empty() {
        lines.push("-- Nothing to do.".to_owned());
    } else {
        lines.push(format!("set lock_timeout = 0;\nset statement_timeout = {};", timeout.as_millis()));
        for step in &plan.steps {
            let unbounded = if step.object == Object::Index { "set statement_timeout = 0;\n" } else { "" };
            lines.push(format!("\n{unbounded}{}", step.sql));
        }
    }
    lines.join("\n") + "\n"
}

const WAITS: &str = include_str!("../../../sql/waits.sql");
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
async fn limit(session: &Session, timeout: Duration) -> Result<()> {
    let sql = format!("set lock_timeout = 0; set statement_timeout = {}", timeout.as_millis());
    session.run("setting time limits", &sql).await
}

/// Changes a table that is in use, with a statement that gives up its place in the queue for the lock after a short while:
/// who comes behind it would wait, too.
///
/// # Errors
/// [`Kind::PostgresUnfit`] where the lock was not to be had within `timeout`; nothing is changed then.
async fn patiently(session: &Session, step: &Step, timeout: Duration) -> Result<()> {
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
async fn unbounded(session: &Session, step: &Step, timeout: Duration) -> Result<()> {
    session.run("lifting the time limit", "set statement_timeout = 0").await?;
    session.run(&step.doing, &step.sql).await?;
    limit(session, timeout).await
}

/// Creates the slot, and tells every two seconds which transactions it waits for.
///
/// # Errors
/// [`Kind::PostgresUnfit`] where it is not there after `timeout`; the server then leaves nothing behind.
async fn create_slot(session: &Session, database: &ConnInfo, step: &Step, timeout: Duration) -> Outcome {
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
    let rows = observer.rows("asking what the slot waits for", WAITS, &[&pid]).await?;
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
            object: Object::Slot,
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
