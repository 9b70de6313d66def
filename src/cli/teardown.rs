//! `walrelay teardown`: the slot, then its publication; never the table.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::cli::config::{self, Common};
use crate::cli::output::{Outcome, Output, confirm, note, print_report};
use crate::cli::parked::table::ParkedCount;
use crate::cli::peek::{Peek, Route, Subject};
use crate::cli::steps::{How, Plan, Step};
use crate::config::SourceConfig;
use crate::config::layers::Settings;
use crate::postgres::quote::{quote_ident, quote_literal};
use crate::postgres::sql::SqlSession;
use crate::source::catalog::{Catalog, Catalogs, Publication, Seen};
use crate::source::preflight::{self, Slot};
use walrelay_core::config::{OutboxConfig, SlotName, TableName, tables_of};
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result, both};
use walrelay_core::event::Event;

const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args, Serialize)]
pub(crate) struct TeardownArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// The publication; walrelay_SLOT by default
    #[arg(long, value_name = "PUBLICATION")]
    pub publication: Option<String>,
    /// The outbox table
    #[arg(long, value_name = "SCHEMA.TABLE")]
    pub table: Option<String>,
    /// Change nothing; print the SQL for psql
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
    /// Also drop a slot that a relay streams from (this ends the relay's session), or that has
    /// unrelayed events (no relay will receive them from the slot)
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

--dry-run ends with the exit code that teardown would end with for what it finds. If a relay \
stored a position, it stays: the relay of a later slot of the same name first publishes the \
unpublished rows.

Exit codes:
  0   slot and publication are dropped
  2   the configuration is not valid, or the answer was not yes
  10  Postgres cannot be reached (11: refuses, or another role owns the publication)
  13  a relay streams from the slot
  14  the slot has unrelayed events, or is not walrelay's
  15  others may need the publication: its name or its tables are not those of this relay";

/// Drops the slot and the publication, after a question. A missing object is no error.
pub(crate) async fn teardown(args: &TeardownArgs) -> Outcome {
    let settings = config::read(args, &args.common.file)?;
    let (source, outboxes) = both(settings.source(), settings.outboxes())?;
    let session = SqlSession::connect(&source.database, "walrelay teardown").await?;
    let slot = preflight::slot(session.client(), &source.slot).await?;
    let catalog = match args.keep_publication {
        true => Catalog::default(),
        false => catalog_of(&session, &source.publication).await?,
    };
    let publication = catalog.publication.as_ref();
    if let Some(slot) = &slot {
        is_walrelays(&source, slot)?;
    }
    if let Some(publication) = publication {
        may_go(
            &source.publication,
            &source.slot,
            publication,
            &catalog.other_tables,
            &outboxes,
        )?;
    }
    if let Some(slot) = slot.as_ref().filter(|_| !args.force) {
        nothing_is_lost(&settings, &source, slot).await?;
    }
    let parked = ParkedCount::read(&session, &source.slot, None)
        .await
        .map_err(Error::from)?;
    if let Some(text) = parked.stay_behind(&source.slot) {
        note(format_args!("note: {text}"));
    }
    let doomed = doomed(&source, slot.as_ref(), publication);
    let backend = slot.as_ref().and_then(|slot| slot.active_pid);
    let steps = steps(&source, slot.is_some(), backend, publication.is_some())?;
    let mut plan = Plan {
        dry_run: args.dry_run,
        steps,
        ..Plan::default()
    };
    if args.dry_run {
        return print_report(args.output, &plan, &plan.script("teardown", None));
    }
    if doomed.is_empty() {
        let text = format!("Nothing to drop: slot {} does not exist.\n", source.slot);
        return print_report(args.output, &plan, &text);
    }
    if !args.yes {
        let lost = match args.force {
            true => " No relay will receive the unrelayed events from the slot.",
            false => "",
        };
        confirm(
            format!("Drop {doomed} at {}?{lost}", source.database.describe()),
            "nothing was dropped",
        )
        .await?;
    }
    let ended = carry_out(&session, args.output, &mut plan.steps).await;
    print_report(args.output, &plan, "")?;
    ended?;
    args.output.say(format_args!(
        "Dropped {doomed}. Table and stored position are unchanged: if a relay stored a position, \
         the relay of a later slot named {} begins with the unpublished rows.",
        source.slot
    ))
}

/// The publication with its tables, as far as it exists.
async fn catalog_of(session: &SqlSession, publication: &str) -> Result<Catalog> {
    let found = Catalogs::read(session.client(), publication, &[], &Seen::default()).await?;
    Ok(found.of_tables.into_iter().next().unwrap_or_default())
}

/// What is dropped, for people; empty where nothing is.
fn doomed(source: &SourceConfig, slot: Option<&Slot>, publication: Option<&Publication>) -> String {
    let slot = slot.map(|_| format!("slot {}", source.slot));
    let publication = publication.map(|_| format!("publication {}", source.publication));
    let doomed: Vec<_> = slot.into_iter().chain(publication).collect();
    doomed.join(" and ")
}

/// The statements for the objects that exist. `backend` is the session that streams from the slot:
/// the first statement ends it, and waits until the slot is free.
fn steps(
    source: &SourceConfig,
    has_slot: bool,
    backend: Option<i32>,
    has_publication: bool,
) -> Result<Vec<Step>> {
    let slot = &source.slot;
    let publication = &source.publication;
    let mut steps = Vec::new();
    let mut add =
        |doing: String, sql: String| steps.push(Step::new(How::Plainly, doing, String::new(), sql));
    if let Some(pid) = backend {
        let sql = format!(
            "select pg_catalog.pg_terminate_backend({pid}, {});",
            RELEASE_TIMEOUT.as_millis()
        );
        add(
            format!("ending backend pid {pid}, which uses slot {slot}"),
            sql,
        );
    }
    if has_slot {
        let sql = format!(
            "select pg_catalog.pg_drop_replication_slot({});",
            quote_literal(slot.as_str())?
        );
        add(format!("dropping slot {slot}"), sql);
    }
    if has_publication {
        let sql = format!("drop publication {};", quote_ident(publication)?);
        add(format!("dropping publication {publication}"), sql);
    }
    Ok(steps)
}

async fn carry_out(session: &SqlSession, output: Output, steps: &mut [Step]) -> Outcome {
    for step in steps {
        output.say(&step.sql)?;
        session.run(&step.doing, &step.sql).await?;
        step.done = true;
    }
    Ok(())
}

/// Refuses a slot that no relay of this database has: another reader needs it, whatever the flags
/// say.
fn is_walrelays(source: &SourceConfig, slot: &Slot) -> Result<()> {
    let name = &source.slot;
    let database = &source.database.database;
    if slot.is_ours(database) {
        return Ok(());
    }
    let plugin = slot.plugin.as_deref().unwrap_or_default();
    let what = match (
        slot.slot_type.as_str(),
        slot.database.as_deref().unwrap_or_default(),
    ) {
        ("logical", of) if of != database => {
            format!("it belongs to database {of}, and the connection is to {database}")
        }
        ("logical", _) if plugin != "pgoutput" => {
            format!("it uses the plugin {plugin}, and walrelay pgoutput")
        }
        ("logical", _) if slot.temporary => {
            "it is temporary, and goes when its session ends".to_owned()
        }
        ("logical", _) => "it decodes prepared transactions".to_owned(),
        (kind, _) => format!("it is a {kind} slot"),
    };
    Err(Error::new(
        Kind::SlotUnusable,
        format!("slot {name} is not walrelay's: {what}"),
    )
    .remedy(format!(
        "name the relay's slot and database; if nobody needs this one: select \
         pg_drop_replication_slot('{name}')"
    )))
}

/// Refuses a publication that others may need. `setup` creates publications of one table, or of the
/// configured tables. A table that is dropped leaves an empty one.
fn may_go(
    name: &str,
    slot: &SlotName,
    publication: &Publication,
    published: &[String],
    outboxes: &[OutboxConfig],
) -> Result<()> {
    if !publication.owned {
        return Err(Error::new(
            Kind::PostgresRefused,
            format!("publication {name} belongs to another role"),
        )
        .remedy("run `teardown` as its owner, or keep it with --keep-publication"));
    }
    let wanted: Vec<_> = tables_of(outboxes).map(|(_, name)| name).collect();
    let is_wanted = |name: &String| {
        name.parse::<TableName>()
            .is_ok_and(|name| wanted.contains(&&name))
    };
    let made_for_it =
        published.len() <= 1 || published.len() == wanted.len() && published.iter().all(is_wanted);
    let is_anothers = name
        .strip_prefix("walrelay_")
        .is_some_and(|of| of != slot.as_str());
    if made_for_it && !is_anothers && !publication.all_tables && !publication.has_schemas {
        return Ok(());
    }
    Err(Error::new(
        Kind::Publication,
        format!(
            "publication {name} has the name of another slot's, or publishes more than one table \
             and not exactly those of this configuration: others may need it"
        ),
    )
    .remedy(
        "name the relay's configuration with --config; or keep the publication with \
         --keep-publication, and drop the \
         publication yourself if nobody needs it",
    ))
}

/// Reads the slot as a relay does, up to its first event.
async fn nothing_is_lost(settings: &Settings, source: &SourceConfig, slot: &Slot) -> Result<()> {
    let name = &source.slot;
    if let Some(pid) = slot.active_pid {
        return Err(Error::new(
            Kind::SlotActive,
            format!("slot {name} is in use by backend pid {pid}"),
        )
        .remedy("stop the relay first; --force ends its session"));
    }
    if slot.lost().is_some() {
        return Ok(());
    }
    let mut peek = match Box::pin(Peek::at_slot(
        Subject::look(settings, "teardown").await?,
        None,
    ))
    .await
    {
        Ok(peek) => peek,
        Err(error) => return Err(unread(source, &error)),
    };
    let mut has_event = false;
    let read = loop {
        let mut take = |_: &mut Route, _: &Event<'_>| {
            has_event = true;
            Ok(())
        };
        match peek.read(&mut take).await {
            Ok(true) if !has_event => {}
            read => break read,
        }
    };
    peek.end().await;
    if has_event {
        return Err(Error::new(
            Kind::SlotUnusable,
            format!("slot {name} has unrelayed events"),
        )
        .remedy(
            Remedy::from("`")
                .and(NextCommand::new("pending").option("slot", name))
                .and(
                    "` shows them; let the relay catch up and stop it, or drop the slot with \
                     --force",
                ),
        ));
    }
    read.map(|_| ()).map_err(|error| unread(source, &error))
}

/// The error of a slot whose events are not known. A role that may not read the slot may not drop
/// it either.
fn unread(source: &SourceConfig, error: &Error) -> Error {
    let SourceConfig {
        slot, publication, ..
    } = source;
    let cause = format!("the unrelayed events of slot {slot} are not known: {error}");
    if error.kind() == Kind::PostgresRefused {
        return Error::new(error.kind(), cause).remedy(
            "run `teardown --keep-publication` as a role with REPLICATION, then `teardown` again \
             as the publication's owner",
        );
    }
    if error.kind() == Kind::PostgresUnreachable {
        return Error::new(error.kind(), cause);
    }
    Error::new(Kind::SlotUnusable, cause).remedy(format!(
        "name the slot with --slot, and its publication with --publication; if {publication} was \
         dropped, or is newer \
         than the slot, no relay can read the slot, and --force drops it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StreamConfig;
    use crate::conninfo::ConnInfo;
    use walrelay_core::config::EventSource;

    #[test]
    fn a_slot_that_cannot_be_read_has_a_remedy() {
        let database = ConnInfo::parse(Some("host=db user=relay"), &|_| None).unwrap();
        let source = SourceConfig::sample(
            database,
            "orders",
            "walrelay_orders",
            StreamConfig::default(),
        );
        for (kind, expected, remedy) in [
            (
                Kind::PostgresRefused,
                Kind::PostgresRefused,
                "run `teardown --keep-publication` as a role with REPLICATION",
            ),
            (
                Kind::Publication,
                Kind::SlotUnusable,
                "--publication; if walrelay_orders was dropped",
            ),
        ] {
            let error = unread(&source, &Error::new(kind, "no"));
            assert!(
                error.kind() == expected && error.what_to_do().unwrap().contains(remedy),
                "{error}"
            );
        }
    }

    #[test]
    fn a_slot_of_another_reader_is_refused() {
        let database = ConnInfo::parse(Some("host=db user=relay dbname=shop"), &|_| None).unwrap();
        let source =
            SourceConfig::sample(database, "other", "walrelay_other", StreamConfig::default());
        let ours = || Slot {
            slot_type: "logical".to_owned(),
            plugin: Some("pgoutput".to_owned()),
            database: Some("shop".to_owned()),
            ..Slot::default()
        };
        assert_eq!(is_walrelays(&source, &ours()), Ok(()));
        for (slot, why) in [
            (
                Slot {
                    plugin: Some("test_decoding".to_owned()),
                    ..ours()
                },
                "plugin test_decoding",
            ),
            (
                Slot {
                    database: Some("crm".to_owned()),
                    ..ours()
                },
                "database crm, and the connection is to shop",
            ),
            (
                Slot {
                    temporary: true,
                    ..ours()
                },
                "temporary",
            ),
            (
                Slot {
                    two_phase: true,
                    ..ours()
                },
                "prepared",
            ),
            (
                Slot {
                    slot_type: "physical".to_owned(),
                    plugin: None,
                    database: None,
                    ..ours()
                },
                "a physical slot",
            ),
        ] {
            let error = is_walrelays(&source, &slot).unwrap_err();
            assert!(
                error.kind() == Kind::SlotUnusable && error.cause().contains(why),
                "{error}"
            );
            assert!(!error.what_to_do().unwrap().contains("--force"));
        }
    }

    #[test]
    fn the_script_ends_a_session_and_drops_what_exists() {
        let database = ConnInfo::parse(Some("host=db user=relay"), &|_| None).unwrap();
        let source = SourceConfig::sample(
            database,
            "orders",
            "walrelay_Orders",
            StreamConfig::default(),
        );
        let script = |has_slot, backend, has_publication| {
            let steps = steps(&source, has_slot, backend, has_publication).unwrap();
            Plan {
                steps,
                ..Plan::default()
            }
            .script("teardown", None)
        };
        insta::assert_snapshot!(script(true, Some(7), true), @r#"
        -- walrelay teardown: stops at the first error.
        \set ON_ERROR_STOP on
        select pg_catalog.pg_terminate_backend(7, 10000);
        select pg_catalog.pg_drop_replication_slot('orders');
        drop publication "walrelay_Orders";
        "#);
        assert!(
            script(false, None, true).ends_with("STOP on\ndrop publication \"walrelay_Orders\";\n")
        );
        assert!(script(false, None, false).ends_with("STOP on\n-- Nothing to do.\n"));
    }

    #[test]
    fn a_publication_of_one_table_or_of_the_configured_tables_is_dropped() {
        let outbox = |source| OutboxConfig {
            source,
            ..OutboxConfig::default()
        };
        let table = |name: &str| outbox(EventSource::Table(name.parse().unwrap()));
        let messages = || outbox(EventSource::Messages("shop".to_owned()));
        let goes = |tables: &[&str], all_tables, outboxes: &[OutboxConfig]| {
            let publication = Publication {
                owned: true,
                all_tables,
                ..Publication::default()
            };
            let published: Vec<_> = tables
                .iter()
                .map(|table| format!("public.{table}"))
                .collect();
            let slot = "shop".parse().unwrap();
            assert!(may_go("walrelay_mail", &slot, &publication, &published, outboxes).is_err());
            may_go("walrelay_shop", &slot, &publication, &published, outboxes).is_ok()
        };
        assert!(goes(&["renamed"], false, &[table("a")]));
        assert!(goes(
            &["b", "a"],
            false,
            &[table("a"), table("b"), messages()]
        ));
        assert!(goes(&[], false, &[messages()]));
        assert!(!goes(&["b", "a"], false, &[table("a")]));
        assert!(!goes(&["b", "a"], false, &[table("a"), table("c")]));
        assert!(goes(&[], false, &[table("dropped")]));
        assert!(!goes(&[], true, &[messages()]));
    }
}
