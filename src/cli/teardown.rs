//! `walrelay teardown`: the slot, then its publication; never the table.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use crate::cli::config::{self, Common};
use crate::cli::output::{Outcome, Output, confirm, note, print_report};
use crate::cli::sql::{self, Session, Value, column, fill};
use crate::cli::steps::{How, Plan, Step};
use crate::cli::undelivered::parked::ParkedCount;
use crate::config::{EventSource, OutboxConfig, SourceConfig, TableName};
use crate::error::{Error, Kind, NextCommand, Remedy, Result, both};
use crate::postgres::fault::{self, While};
use crate::postgres::quote::quote_ident;
use crate::source::catalog::{Catalog, Publication};
use crate::source::preflight::{self, Slot};

const PENDING: &str = include_str!("../../sql/pending.sql");
/// The most messages of the slot that are counted: one unrelayed event is enough to refuse.
const PENDING_MESSAGES: i32 = 10_000;
const PENDING_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest wait for the end of a terminated walsender.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args, Serialize)]
pub(crate) struct TeardownArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// The publication; walrelay_SLOT by default
    #[arg(long, value_name = "PUBLICATION")]
    pub publication: Option<String>,
    /// Change nothing; print the SQL for psql
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
    /// Also drop a slot that a relay streams from (this ends the relay's session), or that has unrelayed events (no relay
    /// will receive them from the slot)
    #[arg(long)]
    pub force: bool,
    /// Keep the publication
    #[arg(long)]
    pub keep_publication: bool,
    #[command(flatten)]
    #[serde(skip)]
    pub output: Output,
}

pub(super) const HELP: &str = "\
Examples:
  walrelay teardown --slot orders
  walrelay teardown --slot orders --yes
  walrelay teardown --slot orders --dry-run

--dry-run ends with the exit code that teardown would end with for what it finds. If a relay stored a position, it stays: the relay of a later slot of the same name first publishes the unpublished rows.

Exit codes:
  0   slot and publication are dropped
  2   the configuration is not valid, or the answer was not yes
  10  Postgres cannot be reached (11: refuses, or another role owns the publication)
  13  a relay streams from the slot
  14  the slot has unrelayed events, or is not walrelay's
  15  the publication publishes more than one table, and not exactly those of the configuration";

/// Drops the slot and the publication, after a question. A missing object is no error.
pub(crate) async fn teardown(args: &TeardownArgs) -> Outcome {
    let settings = config::read(args, &args.common.file)?;
    let (source, outboxes) = both(settings.source(), settings.outboxes())?;
    let session = Session::connect(&source.database, "teardown").await?;
    let slot = preflight::slot(session.client(), &source.slot).await?;
    let catalog = match args.keep_publication {
        true => Catalog::default(),
        false => Catalog::read(session.client(), &source.publication, None, None).await.map_err(Error::from)?,
    };
    let publication = catalog.publication.as_ref();
    if let Some(publication) = publication {
        may_go(&source.publication, publication, &catalog.other_tables, &outboxes)?;
    }
    if let Some(slot) = slot.as_ref().filter(|_| !args.force) {
        nothing_is_lost(&session, &source, slot, &outboxes).await?;
    }
    let parked = ParkedCount::read(&session, &source.slot, None).await.map_err(Error::from)?;
    if let Some(text) = parked.stay_behind(&source.slot) {
        note(format_args!("note: {text}"));
    }
    let doomed: Vec<_> = [
        slot.as_ref().map(|_| format!("slot {}", source.slot)),
        publication.as_ref().map(|_| format!("publication {}", source.publication)),
    ]
    .into_iter()
    .flatten()
    .collect();
    let backend = slot.as_ref().and_then(|slot| slot.active_pid);
    let steps = steps(&source, slot.is_some(), backend, publication.is_some())?;
    let mut plan = Plan { dry_run: args.dry_run, steps, ..Plan::default() };
    if args.dry_run {
        return print_report(args.output, &plan, &plan.script("teardown", None));
    }
    if doomed.is_empty() {
        let text = format!("Nothing to drop: slot {} does not exist.\n", source.slot);
        return print_report(args.output, &plan, &text);
    }
    if !args.yes {
        let lost = if args.force { " No relay will receive the unrelayed events from the slot." } else { "" };
        let question = format!("Drop {} at {}?{lost}", doomed.join(" and "), source.database.describe());
        confirm(question, "nothing was dropped").await?;
    }
    let ended = carry_out(&session, args.output, &mut plan.steps).await;
    print_report(args.output, &plan, "")?;
    ended?;
    args.output.say(format_args!(
        "Dropped {}. Table and stored position are unchanged: if a relay stored a position, the relay of a later slot {} \
         first publishes the unpublished rows.",
        doomed.join(" and "),
        source.slot
    ))
}

/// The statements for the objects that exist. `backend` is the session that streams from the slot: the first statement ends
/// it, and waits until the slot is free.
fn steps(source: &SourceConfig, has_slot: bool, backend: Option<i32>, has_publication: bool) -> Result<Vec<Step>> {
    let (slot, publication, mut steps) = (&source.slot, &source.publication, Vec::new());
    let mut add = |doing: String, sql: String| steps.push(Step::new(How::Plainly, doing, String::new(), sql));
    if let Some(pid) = backend {
        let sql = format!("select pg_catalog.pg_terminate_backend({pid}, {});", RELEASE_TIMEOUT.as_millis());
        add(format!("ending backend pid {pid}, which uses slot {slot}"), sql);
    }
    if has_slot {
        add(format!("dropping slot {slot}"), fill(sql::DROP_SLOT, &[("slot", Value::Text(slot.as_str()))])?);
    }
    if has_publication {
        let sql = fill(sql::DROP_PUBLICATION, &[("publication", Value::Name(publication))])?;
        add(format!("dropping publication {publication}"), sql);
    }
    Ok(steps)
}

/// Runs the steps, and marks those that are done.
async fn carry_out(session: &Session, output: Output, steps: &mut [Step]) -> Outcome {
    for step in steps {
        output.say(&step.sql)?;
        session.run(&step.doing, &step.sql).await?;
        step.done = true;
    }
    Ok(())
}

/// Refuses a publication that others may need. `setup` creates publications of one table, or of the configured tables. A
/// table that is dropped leaves an empty one.
fn may_go(name: &str, publication: &Publication, published: &[String], outboxes: &[OutboxConfig]) -> Result<()> {
    if !publication.owned {
        return Err(Error::new(Kind::PostgresRefused, format!("publication {name} belongs to another role"))
            .remedy("run teardown as its owner, or keep it with --keep-publication"));
    }
    let wanted: Vec<_> = outboxes.iter().filter_map(|outbox| outbox.source.table()).collect();
    let is_wanted = |name: &String| name.parse::<TableName>().is_ok_and(|name| wanted.contains(&&name));
    let made_for_it = published.len() <= 1 || published.len() == wanted.len() && published.iter().all(is_wanted);
    if made_for_it && !publication.all_tables && !publication.has_schemas {
        return Ok(());
    }
    Err(Error::new(
        Kind::Publication,
        format!(
            "publication {name} publishes more than one table, and not exactly those of this configuration: others may need it"
        ),
    )
    .remedy(
        "name the relay's configuration with --config; or keep the publication with --keep-publication, and drop the \
         publication yourself if nobody needs it",
    ))
}

async fn nothing_is_lost(
    session: &Session,
    source: &SourceConfig,
    slot: &Slot,
    outboxes: &[OutboxConfig],
) -> Result<()> {
    let name = &source.slot;
    if let Some(pid) = slot.active_pid {
        return Err(Error::new(Kind::SlotActive, format!("slot {name} is in use by backend pid {pid}"))
            .remedy("stop the relay first; --force ends its session"));
    }
    let ours = slot.plugin.as_deref() == Some("pgoutput") && slot.confirmed_flush_lsn.is_some();
    if !ours {
        return Err(Error::new(Kind::SlotUnusable, format!("slot {name} is not walrelay's"))
            .remedy("name the slot with --slot; --force drops this one anyway"));
    }
    if slot.lost().is_some() {
        return Ok(());
    }
    let limit = format!("set statement_timeout = {}", PENDING_TIMEOUT.as_millis());
    session.run("setting a time limit", &limit).await?;
    let publications = quote_ident(&source.publication)?;
    let doing = format!("counting the unrelayed events of slot {name}");
    let prefixes: Vec<_> = outboxes
        .iter()
        .filter_map(|outbox| match &outbox.source {
            EventSource::Messages(prefix) => Some(prefix.as_str()),
            EventSource::Table(_) => None,
        })
        .collect();
    let parameters: [&(dyn ToSql + Sync); 4] = [&name.as_str(), &publications, &PENDING_MESSAGES, &prefixes];
    let row = session.client().query_opt(PENDING, &parameters).await;
    let row = row.map_err(|error| {
        let unfound = error.code() == Some(&SqlState::UNDEFINED_OBJECT);
        uncountable(source.slot.as_str(), &source.publication, unfound, &fault::sql(While::Querying(&doing), &error))
    });
    session.run("lifting the time limit", "set statement_timeout = 0").await?;
    let row = row?;
    let (events, more): (i64, bool) = match &row {
        Some(row) => (column(row, "events")?, column(row, "more")?),
        None => (0, false),
    };
    if events == 0 && !more {
        return Ok(());
    }
    let at_least = if more { "at least " } else { "" };
    Err(Error::new(Kind::SlotUnusable, format!("slot {name} has {at_least}{events} unrelayed events")).remedy(
        Remedy::from(NextCommand::new("pending").option("slot", name))
            .and(" shows them; let the relay catch up and stop it; --force drops the slot anyway"),
    ))
}

/// The error of a failed count. A role that may not read the slot may not drop it either. If the slot's catalog does not
/// have the publication (`unfound`), no relay can read the slot.
fn uncountable(name: &str, publication: &str, unfound: bool, error: &Error) -> Error {
    let cause = format!("the unrelayed events of slot {name} cannot be counted: {error}");
    if error.kind() == Kind::PostgresRefused {
        return Error::new(Kind::PostgresRefused, cause).remedy(
            "run teardown --keep-publication as a role with REPLICATION, then teardown again as the publication's owner",
        );
    }
    let error = Error::new(Kind::SlotUnusable, cause);
    if unfound {
        return error.remedy(format!(
            "name the publication of the slot with --publication; if {publication} was dropped, or is newer than the slot, \
             no relay can read the slot, and --force drops it"
        ));
    }
    error.remedy("let the relay catch up and stop it; --force drops the slot anyway")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conninfo::ConnInfo;

    #[test]
    fn a_failed_count_of_unrelayed_events_has_a_remedy() {
        for (sqlstate, unfound, kind, remedy) in [
            ("42501", false, Kind::PostgresRefused, "run teardown --keep-publication as a role with REPLICATION"),
            ("57014", false, Kind::SlotUnusable, "let the relay catch up"),
            ("42704", true, Kind::SlotUnusable, "--publication; if walrelay_orders was dropped"),
        ] {
            let error = fault::server(While::Querying("x"), sqlstate, "no");
            let error = uncountable("orders", "walrelay_orders", unfound, &error);
            assert!(error.kind() == kind && error.what_to_do().unwrap().contains(remedy), "{error}");
        }
    }

    #[test]
    fn the_script_ends_a_session_and_drops_what_exists() {
        let database = ConnInfo::parse(Some("host=db user=relay"), &|_| None).unwrap();
        let source = SourceConfig::sample(database, "orders", "walrelay_Orders", 1);
        let script = |has_slot, backend, has_publication| {
            let steps = steps(&source, has_slot, backend, has_publication).unwrap();
            Plan { steps, ..Plan::default() }.script("teardown", None)
        };
        insta::assert_snapshot!(script(true, Some(7), true), @r#"
        -- walrelay teardown: stops at the first error.
        \set ON_ERROR_STOP on
        select pg_catalog.pg_terminate_backend(7, 10000);
        select pg_catalog.pg_drop_replication_slot('orders');
        drop publication "walrelay_Orders";
        "#);
        assert!(script(false, None, true).ends_with("STOP on\ndrop publication \"walrelay_Orders\";\n"));
        assert!(script(false, None, false).ends_with("STOP on\n-- Nothing to do.\n"));
    }

    #[test]
    fn a_publication_of_one_table_or_of_the_configured_tables_is_dropped() {
        let outbox = |source| OutboxConfig { source, ..OutboxConfig::default() };
        let table = |name: &str| outbox(EventSource::Table(name.parse().unwrap()));
        let messages = || outbox(EventSource::Messages("shop".to_owned()));
        let goes = |tables: &[&str], all_tables, outboxes: &[OutboxConfig]| {
            let publication = Publication { owned: true, all_tables, ..Publication::default() };
            let published: Vec<_> = tables.iter().map(|table| format!("public.{table}")).collect();
            may_go("walrelay_shop", &publication, &published, outboxes).is_ok()
        };
        assert!(goes(&["renamed"], false, &[table("a")]));
        assert!(goes(&["b", "a"], false, &[table("a"), table("b"), messages()]));
        assert!(goes(&[], false, &[messages()]));
        assert!(!goes(&["b", "a"], false, &[table("a")]));
        assert!(!goes(&["b", "a"], false, &[table("a"), table("c")]));
        assert!(goes(&[], false, &[table("dropped")]));
        assert!(!goes(&[], true, &[messages()]));
    }
}
