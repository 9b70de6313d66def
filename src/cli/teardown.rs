//! `walrelay teardown`: the slot, then its publication; never the table.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use crate::cli::TeardownArgs;
use crate::cli::flags;
use crate::cli::load::Loaded;
use crate::cli::output::confirm;
use crate::cli::output::{Outcome, note, print_line, warn};
use crate::cli::setup::plan::Publication;
use crate::cli::sql::{self, Session, Value, column, fill};
use crate::cli::undelivered::parked::Waiting;
use crate::config::{EventSource, OutboxConfig, SlotName, SourceConfig};
use crate::error::{Error, Kind, Result};
use crate::postgres::fault::{self, While};
use crate::postgres::quote::quote_ident;
use crate::source::preflight::{self, Slot};

const PENDING: &str = include_str!("../../sql/pending.sql");
/// How many messages of the slot are looked at when counting what was not relayed: to refuse, one would do.
const PENDING_MESSAGES: i32 = 10_000;
/// How long decoding may take for that.
const PENDING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a walsender that was told to end may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
const RELEASE_POLL: Duration = Duration::from_millis(100);

/// Drops the slot and the publication, after asking. What is gone already is said to be gone.
///
/// # Errors
/// [`Kind::SlotActive`] and [`Kind::SlotUnusable`] where that would cut off a relay or lose events, without `--force`;
/// [`Kind::Publication`] where others use the publication.
pub async fn teardown(args: &TeardownArgs) -> Outcome {
    let loaded = Loaded::new(&flags(args), args.common.config.as_deref())?;
    warn(loaded.settings.warnings());
    let (source, outboxes) = (loaded.settings.source()?, loaded.settings.outboxes()?);
    let session = Session::connect(&source.database, "teardown").await?;
    let slot = preflight::slot(session.client(), &source.slot).await?;
    let publication = match args.keep_publication {
        true => None,
        false => Publication::read(&session, &source.publication).await?,
    };
    if let Some(publication) = &publication {
        may_go(&source.publication, publication, &outboxes)?;
    }
    if let Some(slot) = slot.as_ref().filter(|_| !args.force) {
        nothing_is_lost(&session, &source, slot, &outboxes).await?;
    }
    if let Some(text) = Waiting::read(&session, &source.slot).await?.stay_behind(&source.slot) {
        note(format_args!("note: {text}"));
    }
    let doomed: Vec<_> = [
        slot.as_ref().map(|_| format!("slot {}", source.slot)),
        publication.as_ref().map(|_| format!("publication {}", source.publication)),
    ]
    .into_iter()
    .flatten()
    .collect();
    if doomed.is_empty() {
        return print_line(format_args!("Nothing to drop: slot {} is not there.", source.slot));
    }
    if !args.yes {
        let lost = if args.force { " Events that were not relayed yet will not be." } else { "" };
        confirm(&format!("Drop {} at {}?{lost}", doomed.join(" and "), source.database.describe()))?;
    }
    if let Some(slot) = &slot {
        if args.force {
            release(&session, &source.slot, slot).await?;
        }
        let drop = fill(sql::DROP_SLOT, &[("slot", Value::Text(source.slot.as_str()))])?;
        print_line(&drop)?;
        session.run(&format!("dropping slot {}", source.slot), &drop).await?;
    }
    if publication.is_some() {
        let drop = fill(sql::DROP_PUBLICATION, &[("publication", Value::Name(&source.publication))])?;
        print_line(&drop)?;
        session.run(&format!("dropping publication {}", source.publication), &drop).await?;
    }
    print_line(format_args!(
        "Dropped {}. The table is untouched. What is stored stays too: a relay of a later slot {} publishes first what was \
         not published.",
        doomed.join(" and "),
        source.slot
    ))
}

/// Asked before the slot goes, so that not half of it is done. `setup` makes publications of one table, or of those that
/// the configuration names; what publishes others was not made for this relay alone.
fn may_go(name: &str, publication: &Publication, outboxes: &[OutboxConfig]) -> Result<()> {
    if !publication.owned {
        return Err(Error::new(Kind::PostgresRefused, format!("publication {name} belongs to another role"))
            .remedy("run teardown as its owner, or keep it with --keep-publication"));
    }
    let wanted = outboxes.iter().filter_map(|outbox| outbox.source.table());
    let wanted: BTreeSet<_> = wanted.map(|table| (table.schema(), table.table())).collect();
    let published: BTreeSet<_> = publication.tables().collect();
    let made_for_it = published.len() == 1 || wanted == published;
    if made_for_it && !publication.all_tables && !publication.publishes_schemas {
        return Ok(());
    }
    Err(Error::new(
        Kind::Publication,
        format!(
            "publication {name} publishes neither one table alone nor those of this configuration: others may need it"
        ),
    )
    .remedy(
        "name the relay's configuration with --config; or keep the publication with --keep-publication, and drop it \
         yourself if it is not needed",
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
            .remedy("stop the relay first; --force cuts it off"));
    }
    let ours = slot.plugin.as_deref() == Some("pgoutput") && slot.confirmed_flush_lsn.is_some();
    if !ours {
        return Err(Error::new(Kind::SlotUnusable, format!("slot {name} is not one of walrelay's"))
            .remedy("name the slot with --slot; --force drops it all the same"));
    }
    if slot.lost().is_some() {
        return Ok(());
    }
    let limit = format!("set statement_timeout = {}", PENDING_TIMEOUT.as_millis());
    session.run("setting a time limit", &limit).await?;
    let publications = quote_ident(&source.publication)?;
    let doing = format!("counting what slot {name} has not relayed");
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
        not_told(source.slot.as_str(), &source.publication, unfound, &fault::sql(While::Querying(&doing), &error))
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
    Err(Error::new(Kind::SlotUnusable, format!("slot {name} has {at_least}{events} events that were not relayed"))
        .remedy("let the relay catch up and stop it; --force drops the slot all the same"))
}

/// Why what the slot still has could not be counted. A role that may not read the slot may not drop it either. With a
/// publication that is `unfound` where the slot reads, no relay would get further than this.
fn not_told(name: &str, publication: &str, unfound: bool, error: &Error) -> Error {
    let cause = format!("whether slot {name} has events that were not relayed cannot be told: {error}");
    if error.kind() == Kind::PostgresRefused {
        return Error::new(Kind::PostgresRefused, cause).remedy(
            "run teardown --keep-publication as a role with REPLICATION, then teardown again as the publication's owner",
        );
    }
    let told = Error::new(Kind::SlotUnusable, cause);
    if unfound {
        return told.remedy(format!(
            "name the publication the slot was made for with --publication; if {publication} was dropped, or made after \
             the slot, nobody can read what the slot still has, and --force drops it"
        ));
    }
    told.remedy("let the relay catch up and stop it; --force drops the slot all the same")
}

/// Ends the session that uses the slot, and waits until the slot is free.
async fn release(session: &Session, name: &SlotName, slot: &Slot) -> Result<()> {
    let Some(pid) = slot.active_pid else { return Ok(()) };
    let doing = format!("ending backend pid {pid}, which uses slot {name}");
    session.row(&doing, "select pg_catalog.pg_terminate_backend($1::int)", &[&pid]).await?;
    let deadline = tokio::time::Instant::now() + RELEASE_TIMEOUT;
    while preflight::slot(session.client(), name).await?.is_some_and(|slot| slot.active_pid == Some(pid)) {
        if tokio::time::Instant::now() >= deadline {
            return Err(Error::new(
                Kind::SlotActive,
                format!("backend pid {pid} was told to end and still uses slot {name}"),
            )
            .remedy("stop the relay, then try again"));
        }
        tokio::time::sleep(RELEASE_POLL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(sqlstate: &str, unfound: bool) -> Error {
        not_told("orders", "walrelay_orders", unfound, &fault::server(While::Querying("x"), sqlstate, "no"))
    }

    #[test]
    fn a_role_that_may_not_read_the_slot_is_told_who_may() {
        let refused = told("42501", false);
        assert_eq!(refused.kind(), Kind::PostgresRefused);
        assert!(
            refused.what_to_do().unwrap().starts_with("run teardown --keep-publication as a role with REPLICATION")
        );
        let slow = told("57014", false);
        assert_eq!(slow.kind(), Kind::SlotUnusable);
        assert!(slow.what_to_do().unwrap().contains("let the relay catch up"));
    }

    #[test]
    fn a_slot_whose_publication_is_gone_is_not_to_be_caught_up_with() {
        let error = told("42704", true);
        assert_eq!(error.kind(), Kind::SlotUnusable);
        let remedy = error.what_to_do().unwrap();
        assert!(remedy.contains("--publication; if walrelay_orders was dropped"), "{remedy}");
        assert!(remedy.ends_with("--force drops it") && !remedy.contains("catch up"), "{remedy}");
    }

    #[test]
    fn a_publication_goes_that_publishes_one_table_or_what_the_configuration_names() {
        let outbox = |source| OutboxConfig { source, ..OutboxConfig::default() };
        let table = |name: &str| outbox(EventSource::Table(name.parse().unwrap()));
        let messages = || outbox(EventSource::Messages("shop".to_owned()));
        let goes = |tables: &[&str], all_tables, outboxes: &[OutboxConfig]| {
            let mut publication = Publication::default().of(tables);
            (publication.owned, publication.all_tables) = (true, all_tables);
            may_go("walrelay_shop", &publication, outboxes).is_ok()
        };
        assert!(goes(&["renamed"], false, &[table("a")]));
        assert!(goes(&["b", "a"], false, &[table("a"), table("b"), messages()]));
        assert!(goes(&[], false, &[messages()]));
        assert!(!goes(&["b", "a"], false, &[table("a")]));
        assert!(!goes(&["b", "a"], false, &[table("a"), table("c")]));
        assert!(!goes(&[], false, &[table("a")]));
        assert!(!goes(&[], true, &[messages()]));
    }
}
