//! `walrelay setup`: reads what exists, plans without I/O ([`plan`]), and runs the statements.

pub(crate) mod plan;
pub(crate) mod xid_column;

use std::time::Duration;

use clap::Args;
use plan::{Found, Wanted};
use serde::Serialize;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::cli::config::{self, Common, DAY, duration, one_of};
use crate::cli::output::{Outcome, Output, note, print_report};
use crate::cli::steps::{How, Plan, Step};
use crate::config::{Mode, SinkKind};
use crate::conninfo::ConnInfo;
use crate::postgres::fault;
use crate::postgres::sql::SqlSession;
use crate::relay::{Waits, waits};
use crate::source::{preflight, row_key};
use walrelay_core::config::OutboxConfig;
use walrelay_core::config::unit::exact_duration;
use walrelay_core::error::{Error, Kind, NextCommand, Result, both};

#[derive(Debug, Args, Serialize)]
pub(crate) struct SetupArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// The publication; walrelay_SLOT by default
    #[arg(long, value_name = "PUBLICATION")]
    pub publication: Option<String>,
    /// The outbox table
    #[arg(long, value_name = "SCHEMA.TABLE")]
    pub table: Option<String>,
    /// The source of the relay's rows. With poll, setup creates and checks only table and column:
    /// it needs neither the right to replicate nor a logical wal_level. auto is as slot
    #[arg(long, value_name = "MODE", value_parser = one_of::<Mode>())]
    pub mode: Option<Mode>,
    /// Create the table, too, if it does not exist
    #[arg(long)]
    pub create_table: bool,
    /// Add a column for the inserting transaction, if the table has none: walrelay then knows
    /// exactly which rows are published
    #[arg(long)]
    pub add_xid_column: bool,
    /// Change nothing; print the SQL for psql
    #[arg(long)]
    pub dry_run: bool,
    /// The time limit of a statement: creating a slot waits for every open transaction
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "60s",
        value_parser = duration(Duration::from_millis(1)..=DAY, "60s or 5m")
    )]
    pub timeout: Duration,
    #[command(flatten)]
    #[serde(skip)]
    pub output: Output,
}

pub(super) const HELP: &str = "\
Examples:
  walrelay setup --slot orders --create-table
  walrelay setup --slot orders --table sales.outbox --add-xid-column
  walrelay setup --slot orders --mode poll --add-xid-column
  walrelay setup --slot orders --dry-run | psql \"$WALRELAY_DATABASE_URL\"
  walrelay setup --slot orders --dry-run --json

setup leaves existing objects alone if they fit. It creates table and column first, then the \
publication, then the slot: a slot cannot decode changes from before its publication. With --mode \
poll, setup creates neither publication nor slot. --dry-run ends with the exit code that setup \
would end with for what it finds.

Exit codes:
  0   all objects exist
  2   the configuration is not valid
  10  Postgres cannot be reached (11: refuses)
  12  the server does not fit, or creating the slot waited for transactions for longer than \
      --timeout
  14  a slot of this name does not fit
  15  publication or table do not fit";

/// Creates missing objects, keeps those that fit, and refuses those that do not fit, with the SQL
/// that mends them.
pub(crate) async fn setup(args: &SetupArgs) -> Outcome {
    let settings = config::read(args, &args.common.file)?;
    let (source, mut outboxes) = both(settings.source(), settings.outboxes())?;
    let session = SqlSession::connect(&source.database, "walrelay setup").await?;
    row_key::find(
        session.client(),
        &source,
        &settings.model().delivery,
        &mut outboxes,
    )
    .await?;
    let client = session.client();
    let found = Found::read(client, &source, &outboxes).await?;
    let wanted = Wanted {
        source: &source,
        outboxes: &outboxes,
        create_table: args.create_table,
    };
    let mut plan = Plan {
        dry_run: args.dry_run,
        ..Plan::default()
    };
    plan::tables(&mut plan, &wanted, &found)?;
    if args.add_xid_column {
        xid_column::extend(&mut plan, &session, &outboxes, &found).await?;
    }
    if !wanted.polls() {
        plan::stream(&mut plan, &wanted, &found)?;
    }
    plan::look_at_rows(&mut plan, client, &wanted, &found, args.add_xid_column).await?;
    if args.dry_run {
        let printed = print_report(
            args.output,
            &plan,
            &plan.script("setup", Some(args.timeout)),
        );
        plan.refusal()?;
        return printed;
    }
    plan.refusal()?;
    let ended = carry_out(args, &session, &source.database, &mut plan).await;
    print_report(args.output, &plan, "")?;
    ended?;
    let run = NextCommand::new("run").option("slot", &source.slot);
    let is_other_bus = settings.model().sink.kind != SinkKind::Kafka;
    let run = if is_other_bus || settings.get("kafka.brokers").is_some() {
        run
    } else {
        run.option("brokers", "HOST:PORT")
    };
    // A table that this command created is empty.
    let has_rows = found.outboxes.iter().any(|outbox| outbox.table.is_some());
    let again = if has_rows && plan.steps.iter().any(|step| step.how == How::Watched) {
        format!(
            "\n(rows that are already in the table: if a relay stored a position for this slot, \
             the next one first publishes \
             those that are unpublished; otherwise {})",
            backlog_advice(&outboxes)
        )
    } else {
        String::new()
    };
    args.output.say(format_args!("Ready. Next: {run}{again}"))
}

/// What has the rows published that are in the table before the first start, in words that `run`
/// takes.
fn backlog_advice(outboxes: &[OutboxConfig]) -> &'static str {
    if outboxes
        .iter()
        .all(|outbox| outbox.upkeep.pending.is_some())
    {
        "its first run publishes those that are pending, or all with --backlog all"
    } else if outboxes
        .iter()
        .any(|outbox| outbox.upkeep.says_for_itself())
    {
        "add --backlog all to its first run"
    } else {
        "add --backlog all, or since=TIME, to its first run"
    }
}

async fn carry_out(
    args: &SetupArgs,
    session: &SqlSession,
    database: &ConnInfo,
    plan: &mut Plan,
) -> Outcome {
    let output = args.output;
    for present in &plan.present {
        output.say(present)?;
    }
    for step in &mut plan.steps {
        output.say(&step.sql)?;
        // A concurrent build of an index blocks no other session, and takes long on a large table.
        let limit_ms = if step.how == How::Unbounded {
            0
        } else {
            args.timeout.as_millis()
        };
        let limit = format!("set lock_timeout = 0; set statement_timeout = {limit_ms}");
        session.run("setting time limits", &limit).await?;
        match step.how {
            How::Plainly | How::Unbounded => session.run(&step.doing, &step.sql).await?,
            How::Patiently => patiently(session, step, args.timeout).await?,
            How::Watched => create_slot(session, database, step, args.timeout).await?,
        }
        step.done = true;
        output.say(&step.result)?;
    }
    for note in &plan.notes {
        output.say(format_args!("note: {note}"))?;
    }
    for warning in &plan.warnings {
        output.say(format_args!("warning: {warning}"))?;
    }
    Ok(())
}

/// The time between two messages about a slot that waits.
const REPORT_EVERY: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(500);
/// The time that the server has to end a statement after its time limit.
const GRACE: Duration = Duration::from_secs(5);

/// Changes a table that is in use. The statement waits for its lock for a short time only, because
/// other sessions queue behind it.
async fn patiently(session: &SqlSession, step: &Step, timeout: Duration) -> Result<()> {
    let deadline = tokio::time::Instant::now() + timeout;
    loop {
        let Err(error) = session.client().batch_execute(&step.sql).await else {
            return Ok(());
        };
        if !error.is_closed() {
            session.run(&step.doing, "rollback").await?;
        }
        if error.code() != Some(&SqlState::LOCK_NOT_AVAILABLE) {
            return Err(fault::query(&step.doing, &error));
        }
        if tokio::time::Instant::now() >= deadline {
            let cause = format!(
                "gave up {} after {}: other transactions use the table",
                step.doing,
                exact_duration(timeout)
            );
            return Err(Error::new(Kind::PostgresUnfit, cause).remedy(
                "wait for long transactions, or end them (pg_stat_activity has their age), or wait \
                 longer with --timeout",
            ));
        }
        note(format_args!(
            "waiting for transactions that use the table ({})",
            step.doing
        ));
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}

/// Creates the slot.
async fn create_slot(
    session: &SqlSession,
    database: &ConnInfo,
    step: &Step,
    timeout: Duration,
) -> Outcome {
    let pid = preflight::server(session.client()).await?.backend_pid;
    // Opened first: a server without a free connection then fails before the slot is created.
    let observer = SqlSession::connect(database, "walrelay setup").await?;
    let mut whom = String::new();
    let creating = session.client().batch_execute(&step.sql);
    let creating = telling(observer.client(), pid, creating, &mut whom);
    match tokio::time::timeout(timeout + GRACE, creating).await {
        Ok(Ok(())) => Ok(()),
        // An administrator's `pg_cancel_backend` gives the same code.
        Ok(Err(error)) if error.code() != Some(&SqlState::QUERY_CANCELED) => {
            Err(fault::query(&step.doing, &error).into())
        }
        Ok(Err(_)) | Err(_) => Err(too_late(step, timeout, &whom).into()),
    }
}

/// Waits until a slot is made by the session `pid`, and prints every two seconds the transactions
/// that it waits for; `whom` gets the last ones.
pub(crate) async fn telling<T>(
    observer: &Client,
    pid: i32,
    making: impl Future<Output = T>,
    whom: &mut String,
) -> T {
    let mut making = std::pin::pin!(making);
    loop {
        if let Ok(made) = tokio::time::timeout(REPORT_EVERY, &mut making).await {
            return made;
        }
        match waits(observer, pid).await {
            Ok(Waits { text, .. }) if !text.is_empty() => {
                note(format_args!("waiting for {text}"));
                *whom = format!("; it last waited for {text}");
            }
            Ok(_) | Err(_) => note("waiting"),
        }
    }
}

/// The error of a step that took too long; `whom` begins with a semicolon, or is empty.
fn too_late(step: &Step, timeout: Duration, whom: &str) -> Error {
    let cause = format!(
        "gave up {} after {}{whom}",
        step.doing,
        exact_duration(timeout)
    );
    Error::new(Kind::PostgresUnfit, cause).remedy(
        "wait for these transactions, or end them (select pg_terminate_backend(PID); or rollback \
         prepared 'NAME';), \
         or wait longer with --timeout; then run setup again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(how: How, doing: &str, sql: &str) -> Step {
        Step::new(how, doing.to_owned(), String::new(), sql.to_owned())
    }

    #[test]
    fn the_advice_for_rows_of_before_is_one_that_run_takes() {
        let outbox = |pending: Option<&str>, delete| {
            let mut outbox = OutboxConfig::default();
            outbox.upkeep.pending = pending.map(str::to_owned);
            outbox.upkeep.delete = delete;
            outbox
        };
        let [plain, deletes, pending] = [
            outbox(None, false),
            outbox(None, true),
            outbox(Some("x"), false),
        ];
        assert!(backlog_advice(std::slice::from_ref(&plain)).contains("since=TIME"));
        for outboxes in [&[deletes][..], &[pending.clone(), plain], &[pending]] {
            let advice = backlog_advice(outboxes);
            assert!(
                !advice.contains("since") && advice.contains("--backlog all"),
                "{advice}"
            );
        }
    }

    #[test]
    fn a_setup_step_that_times_out_names_its_blocker_and_the_timeout_flag() {
        let error = too_late(
            &step(How::Watched, "creating slot orders", ""),
            Duration::from_secs(90),
            "; it last waited for pid 7",
        );
        assert_eq!(error.kind(), Kind::PostgresUnfit);
        assert_eq!(
            error.cause(),
            "gave up creating slot orders after 1m 30s; it last waited for pid 7"
        );
        assert!(error.what_to_do().unwrap().contains("--timeout"));
    }

    #[test]
    fn a_plan_is_printed_as_data_and_as_a_script() {
        let steps = vec![
            step(How::Plainly, "creating table a", "create table a"),
            step(How::Unbounded, "b", "c"),
        ];
        let obstacles = vec![Error::new(Kind::PostgresUnfit, "f").remedy("g\nh")];
        let present = vec!["d".to_owned()];
        let warnings = vec!["e".to_owned()];
        let mut plan = Plan {
            dry_run: true,
            steps,
            present,
            warnings,
            obstacles,
            ..Plan::default()
        };
        insta::assert_snapshot!(plan.script("setup", Some(Duration::from_secs(1))), @r"
        -- walrelay setup: stops at the first error.
        \set ON_ERROR_STOP on
        -- OBSTACLE: f
        --     fix: g
        -- h
        -- d
        -- warning: e
        set lock_timeout = 0;
        set statement_timeout = 1000;
        create table a
        set statement_timeout = 0;
        c
        ");
        plan.steps[0].done = true;
        insta::assert_snapshot!(serde_json::to_string(&plan).unwrap(), @r#"{"dry_run":true,"steps":[{"step":"creating table a","sql":"create table a","done":true},{"step":"b","sql":"c","done":false}],"present":["d"],"notes":[],"warnings":["e"]}"#);
        plan.steps.clear();
        let script = plan.script("setup", None);
        assert!(
            script.ends_with("\n-- No statements: remove the obstacles first.\n"),
            "{script}"
        );
    }
}
