//! `walrelay config check`: the configuration against the database, and the way of one row.
//!
//! [`sample`] reads a row as the stream would send it, [`report`] says what became of it. Kafka is not asked.

pub mod report;
pub mod sample;

use crate::cli::CheckArgs;
use crate::cli::flags;
use crate::cli::load::Loaded;
use crate::cli::output::{Outcome, note, print, print_json, warn};
use crate::cli::session::Session;
use crate::config::effective::effective;
use crate::config::{Config, OutboxConfig, TableName};
use crate::decode::Column;
use crate::error::{Error, Kind, Result};
use crate::event::{Place, Polled, Via};
use crate::poll::{as_streamed, table_facts};
use crate::position::Lsn;
use crate::postgres::catalog::Table;
use crate::route::Router;
use crate::source::catalog::Catalog;
use crate::source::preflight::{Facts, inspect, judge};
use crate::source::row_key;
use crate::upkeep::left_behind::none_left_behind;
use crate::upkeep::{self, Marker};
use report::{Found, Report, Shown};
use sample::Wanted;

/// Checks what `run` would check before it streams, and shows where a row would go. Without a database, shows the settings.
///
/// # Errors
/// [`Kind::Config`] where a setting is not valid, and where no row has the id; [`Kind::Event`] where the row cannot be routed; those of
/// [`judge`] and of [`Marker::connect`], and what connecting gives.
pub async fn check(args: &CheckArgs) -> Outcome {
    let loaded = Loaded::new(&flags(&args.settings), args.settings.relay.common.config.as_deref())?;
    let config = loaded.config(false)?;
    warn(loaded.warnings(&config));
    if args.offline || !config.source.database.names_server {
        if args.json || args.id.is_some() {
            let error = Error::new(Kind::Config, "no database is configured, and without one there is no row");
            return Err(error.remedy("set --database-url or WALRELAY_DATABASE_URL, or PGHOST and so on").into());
        }
        if !args.offline {
            note("note: no database is configured, so nothing was connected to");
        }
        return print(&effective(&loaded.settings, &config));
    }
    let source = &config.source;
    let session = Session::connect(&source.database, "config check").await?;
    let mut named = config.clone();
    let nameless = row_key::find(session.client(), source, &config.delivery, &mut named.outboxes).await.err();
    let facts = inspect(session.client(), &source.slot, &source.publication, &config.outboxes).await?;
    let tables: Vec<_> = config.outboxes.iter().filter_map(|outbox| outbox.source.table()).collect();
    let fitting = judge(&facts.as_set_up(&tables), &source.slot, &source.publication, &named.outboxes);
    let (warnings, fault) = match fitting {
        // Of a slot that is not there nothing can be said.
        Ok(warnings) if facts.slot.is_some() => (warnings.iter().map(ToString::to_string).collect(), None),
        Ok(_) => (Vec::new(), None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let mut catalogs = facts.catalogs.iter();
    let mut report = Report::new(&config.source, &facts, fault.is_none(), warnings);
    let mut refused = Vec::new();
    let mut without_id = Vec::new();
    for outbox in &config.outboxes {
        let Some(name) = outbox.source.table() else {
            report.add(outbox, None, Found::Messages);
            continue;
        };
        let catalog = catalogs.next();
        // Without a table and its columns no row can go anywhere.
        if let Some(error) = fault.clone().filter(|_| !catalog.is_some_and(|catalog| readable(catalog, outbox))) {
            return Err(error.into());
        }
        let found = match row(&session, args, outbox, name, catalog, &facts).await {
            // With several tables the id is that of a row in one of them.
            Err(error) if args.id.is_some() && tables.len() > 1 => {
                without_id.push(error);
                Found::Elsewhere
            }
            Err(error) => return Err(error.into()),
            Ok(Row::Routed(found)) => found,
            Ok(Row::Refused(found, error)) => {
                refused.push(error);
                found
            }
        };
        report.add(outbox, catalog, found);
    }
    if let Some(error) = without_id.pop().filter(|_| without_id.len() + 1 == tables.len()) {
        return Err(error.into());
    }
    if args.json {
        print_json(&report)?;
    } else {
        print(&report.text())?;
    }
    // The last is what the process ends with.
    let mut errors: Vec<Error> =
        refused.into_iter().chain(upkeep(&session, &named).await.err()).chain(nameless).chain(fault).collect();
    let Some(last) = errors.pop() else { return Ok(()) };
    for error in &errors {
        note(crate::cli::output::error_lines(error));
    }
    Err(last.into())
}

/// Has Postgres read the SQL of the configuration, as `run` does at its start, or once it has to read a table.
async fn upkeep(session: &Session, config: &Config) -> Result<()> {
    let has_sql = |outbox: &&OutboxConfig| {
        let of = &outbox.upkeep;
        of.pending.is_some() || of.order_by.is_some() || of.time.is_some()
    };
    let tables = config.outboxes.iter().filter(|outbox| outbox.source.table().is_some());
    for outbox in tables.filter(has_sql) {
        table_facts(session.client(), outbox).await?;
    }
    // What it would write, it only prepares.
    let wanted = match upkeep::Wanted::by(config) {
        // Nothing is changed by a look.
        upkeep::Wanted::Room => upkeep::Wanted::RoomIfThere,
        wanted @ (upkeep::Wanted::NoRoom | upkeep::Wanted::RoomIfThere) => wanted,
    };
    Marker::connect(&config.source.database, &config.source.slot, &config.outboxes, wanted).await?;
    none_left_behind(session.client(), config).await
}

/// Whether there is a table with the columns that are needed.
fn readable(catalog: &Catalog, outbox: &OutboxConfig) -> bool {
    let table = catalog.table.as_ref().filter(|table| matches!(table.kind.as_str(), "r" | "p"));
    let has = |name: &String| table.is_some_and(|table| table.columns.iter().any(|column| column.name == *name));
    outbox.columns.iter().all(has)
}

/// A column as the stream describes it; of one that is not there nothing is known.
pub(in crate::cli) fn described(name: &str, table: &Table) -> Column {
    let unknown = || Column { name: name.to_owned(), type_oid: 0, type_modifier: -1 };
    table.column(name).map_or_else(unknown, as_streamed)
}

enum Row {
    Routed(Found),
    Refused(Found, Error),
}

async fn row(
    session: &Session,
    args: &CheckArgs,
    outbox: &OutboxConfig,
    name: &TableName,
    catalog: Option<&Catalog>,
    facts: &Facts,
) -> Result<Row> {
    let Some(table) = Table::read(session.client(), name).await? else { return Ok(Row::Routed(Found::Nothing)) };
    let wanted = Wanted { outbox, name, table: &table, id: args.id.as_deref() };
    let row_security = catalog.and_then(|catalog| catalog.table.as_ref()).is_some_and(|table| table.row_security);
    let read = match sample::read(session, &wanted).await? {
        sample::Answer::Row(read) => read,
        sample::Answer::Empty if row_security => return Ok(Row::Routed(Found::Hidden)),
        sample::Answer::Empty => return Ok(Row::Routed(Found::Nothing)),
        sample::Answer::Forbidden => return Ok(Row::Routed(Found::Forbidden(facts.server.role.clone()))),
    };
    let columns = outbox.columns.iter().map(|name| described(name, &table)).collect();
    let values = read.values.iter().map(|value| value.as_deref().map(str::as_bytes));
    let bug = |what: String| Error::new(Kind::Bug, format!("a row that was asked for comes without {what}"));
    let mut polled = Polled::new(outbox, columns).map_err(bug)?;
    let mut router = Router::new(outbox).map_err(|unknown| Error::new(Kind::Bug, unknown))?;
    let id = read.values.first().cloned().flatten().unwrap_or_default();
    let chosen = read.chosen;
    let refused = |error| Row::Refused(Found::Refused { id: id.clone(), chosen: chosen.clone() }, error);
    let place = Place { commit_lsn: Lsn::ZERO, index: 0, via: Via::Slot };
    let event = match polled.event(place, 0, values) {
        Ok(event) => event,
        Err((place, fault)) => {
            let column = outbox.columns.get(place).map(String::as_str).unwrap_or_default();
            let cause = format!("column {column} of {name} {fault}");
            let error = Error::new(Kind::Event, cause).remedy(format_args!(
                "`run` stops at such a row. Declare column {column} NOT NULL, or name another under [outbox.columns]"
            ));
            return Ok(refused(error));
        }
    };
    match router.route(&event) {
        Err(error) => Ok(refused(error.of_sample())),
        Ok(routed) => {
            let position = outbox.route.position_header.as_deref();
            let record = routed.with_record(|record| Shown::of(record, position, !args.no_body));
            Ok(Row::Routed(Found::Row { id, chosen, record }))
        }
    }
}
