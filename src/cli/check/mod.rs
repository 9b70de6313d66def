//! `walrelay config check`: the configuration against the database, and the route of one row. Kafka is not asked.

pub mod report;

use tokio_postgres::error::SqlState;

use crate::cli::load::Loaded;
use crate::cli::output::{Outcome, error_lines, note, print, print_report, warn};
use crate::cli::sql::{Session, is_about_value};
use crate::cli::{CheckArgs, flags};
use crate::config::written::effective;
use crate::config::{Config, OutboxConfig, TableName};
use crate::decode::Column;
use crate::error::{Error, Kind, Result};
use crate::event::{Place, Polled, Via};
use crate::poll::{as_streamed, table_facts};
use crate::position::Lsn;
use crate::postgres::catalog::Table;
use crate::postgres::fault::{self, While};
use crate::postgres::quote::{quote_ident, quote_literal, quote_own_rows};
use crate::route::Router;
use crate::source::catalog::Catalog;
use crate::source::preflight::{inspect, judge};
use crate::source::row_key;
use crate::suggest::ordering;
use crate::upkeep::parked::none_left_behind;
use crate::upkeep::{Marker, Parking};
use report::{Found, Report, Shown};

const READING: &str = "reading a row";
/// Finding the newest row of a large table may take long, and any row serves.
const LIMIT: &str = "set statement_timeout = '10s'";

/// Checks what `run` checks before it streams, and shows the record of one row. Without a database, shows the settings.
///
/// # Errors
/// [`Kind::Config`] if a setting is not valid, and if no row has the id; [`Kind::Event`] if the row cannot be routed; those
/// of [`judge`], of [`Marker::connect`], and of the connection.
pub async fn check(args: &CheckArgs) -> Outcome {
    let loaded = Loaded::new(&flags(&args.settings), args.settings.relay.common.config.as_deref())?;
    let config = loaded.config(false)?;
    warn(loaded.warnings(&config));
    if args.offline || !config.source.database.names_server {
        if args.json || args.id.is_some() {
            let error = Error::new(Kind::Config, "no database is configured, and a row can only come from a database");
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
    let (warnings, fault) = match judge(&facts.as_set_up(&tables), &source.slot, &source.publication, &named.outboxes) {
        // Nothing is known of a slot that does not exist.
        Ok(warnings) if facts.slot.is_some() => (warnings.iter().map(ToString::to_string).collect(), None),
        Ok(_) => (Vec::new(), None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let mut report = Report::new(source, &facts, fault.is_none(), warnings);
    let (mut catalogs, mut without_id) = (facts.catalogs.iter(), Vec::new());
    for outbox in &config.outboxes {
        let Some(name) = outbox.source.table() else {
            report.add(outbox, None, Found::Messages);
            continue;
        };
        let catalog = catalogs.next();
        // A row needs a table and its columns.
        if let Some(error) = fault.clone().filter(|_| !catalog.is_some_and(|catalog| readable(catalog, outbox))) {
            return Err(error.into());
        }
        let found = match row(&session, args, outbox, name, catalog, &facts.server.role).await {
            // With several tables, one of them has the row with this id.
            Err(error) if args.id.is_some() && tables.len() > 1 => {
                without_id.push(error);
                Found::Elsewhere
            }
            found => found?,
        };
        report.add(outbox, catalog, found);
    }
    if let Some(error) = without_id.pop().filter(|_| without_id.len() + 1 == tables.len()) {
        return Err(error.into());
    }
    print_report(args.json, &report, &report.text())?;
    // The last error decides the exit code.
    let upkeep = upkeep(&session, &named).await.err();
    let mut errors: Vec<Error> = report.refused().cloned().chain(upkeep).chain(nameless).chain(fault).collect();
    let Some(last) = errors.pop() else { return Ok(()) };
    for error in &errors {
        note(error_lines(error));
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
    // A check makes no table, and only prepares what would be written.
    let parking = match Parking::of(config) {
        Parking::On => Parking::IfTableExists,
        parking @ (Parking::Off | Parking::IfTableExists) => parking,
    };
    Marker::connect(&config.source.database, &config.source.slot, &config.outboxes, parking).await?;
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

/// Reads a row and routes it.
async fn row(
    session: &Session,
    args: &CheckArgs,
    outbox: &OutboxConfig,
    name: &TableName,
    catalog: Option<&Catalog>,
    role: &str,
) -> Result<Found> {
    let Some(table) = Table::read(session.client(), name).await? else { return Ok(Found::Nothing) };
    let row_security = catalog.and_then(|catalog| catalog.table.as_ref()).is_some_and(|table| table.row_security);
    let (values, chosen) = match read(session, &Sampled { outbox, name, table: &table }, args.id.as_deref()).await? {
        Answer::Row { values, chosen } => (values, chosen),
        Answer::Empty if row_security => return Ok(Found::Hidden),
        Answer::Empty => return Ok(Found::Nothing),
        Answer::Forbidden => return Ok(Found::Forbidden(role.to_owned())),
    };
    let columns = outbox.columns.iter().map(|name| described(name, &table)).collect();
    let texts = values.iter().map(|value| value.as_deref().map(str::as_bytes));
    let bug = |column: String| Error::new(Kind::Bug, format!("the query of a row did not return column {column}"));
    let mut polled = Polled::new(outbox, columns).map_err(bug)?;
    let mut router = Router::new(outbox).map_err(|unknown| Error::new(Kind::Bug, unknown))?;
    let id = values.first().cloned().flatten().unwrap_or_default();
    let place = Place { commit_lsn: Lsn::ZERO, index: 0, via: Via::Slot };
    let event = match polled.event(place, 0, texts) {
        Ok(event) => event,
        Err((place, fault)) => {
            let column = outbox.columns.get(place).map(String::as_str).unwrap_or_default();
            let error = Error::new(Kind::Event, format!("column {column} of {name} {fault}")).remedy(format_args!(
                "`run` stops at such a row. Declare column {column} NOT NULL, or name another under [outbox.columns]"
            ));
            return Ok(Found::Refused { id, chosen, error });
        }
    };
    match router.route(&event) {
        Err(error) => Ok(Found::Refused { id, chosen, error: error.of_sample() }),
        Ok(routed) => {
            let position = outbox.route.position_header.as_deref();
            let record = routed.with_record(|record| Shown::of(record, position, !args.no_body));
            Ok(Found::Row { id, chosen, record })
        }
    }
}

/// The table of which one row is read.
struct Sampled<'a> {
    outbox: &'a OutboxConfig,
    name: &'a TableName,
    table: &'a Table,
}

enum Answer {
    Row {
        /// Values of the outbox's columns, in that order; `None` is NULL.
        values: Vec<Option<String>>,
        /// The reason for the choice of the row, for people.
        chosen: String,
    },
    Empty,
    /// The role may not read the table.
    Forbidden,
}

impl Sampled<'_> {
    fn select(&self) -> Result<String> {
        let columns = self.outbox.columns.iter().map(|column| quote_ident(column)).collect::<Result<Vec<_>>>()?;
        let rows = quote_own_rows(self.name, self.table.is_partitioned())?;
        Ok(format!("select {} from {rows}", columns.join(", ")))
    }

    /// The column whose largest value is the newest row's: a number, or a time.
    fn ordering(&self) -> Option<&str> {
        let id = self.table.column(&self.outbox.id).filter(|id| id.is_integer());
        id.or_else(|| ordering(&self.table.columns)).map(|column| column.name.as_str())
    }
}

/// Reads the row with this id, or the newest. The values have the text form that the stream would have: the simple protocol
/// prints them with the output functions of their types, and a cast to text does not (`true` for `t`). Takes at most ten
/// seconds for each of two attempts.
///
/// # Errors
/// [`Kind::Config`] if no row has the id, or none can have the id; those of the session.
async fn read(session: &Session, sampled: &Sampled<'_>, id: Option<&str>) -> Result<Answer> {
    session.run(READING, LIMIT).await?;
    let (select, name) = (sampled.select()?, sampled.name);
    let Some(id) = id else {
        let (order, chosen) = match sampled.ordering() {
            Some(column) => (format!("{} desc nulls last", quote_ident(column)?), format!("the newest by {column}")),
            None => ("ctid desc".to_owned(), "the last in the table's file".to_owned()),
        };
        return match first(session, &format!("{select} order by {order} limit 1")).await {
            Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => {
                let chosen = "any row: the search for the newest took too long".to_owned();
                answer(first(session, &format!("{select} limit 1")).await, chosen)
            }
            found => answer(found, chosen),
        };
    };
    let column = &sampled.outbox.id;
    let by_id = format!("{select} where {} = {} limit 1", quote_ident(column)?, quote_literal(id)?);
    let found = first(session, &by_id).await;
    if let Err(error) = &found
        && error.code().is_some_and(is_about_value)
    {
        let cause = format!("--id: this cannot be a value of column {column} of {name}");
        return Err(Error::new(Kind::Config, cause).remedy("write the id as Postgres prints it"));
    }
    match answer(found, "the row with this id".to_owned())? {
        Answer::Empty => {
            let cause = format!("--id: no row of {name} has this {column}, or the role may not see the row");
            Err(Error::new(Kind::Config, cause).remedy("leave --id out for the newest row"))
        }
        Answer::Forbidden => {
            let cause = format!("--id: the role may not read {name}");
            Err(Error::new(Kind::PostgresRefused, cause).remedy("grant it SELECT on the table, or leave --id out"))
        }
        row @ Answer::Row { .. } => Ok(row),
    }
}

async fn first(session: &Session, sql: &str) -> Result<Option<Vec<Option<String>>>, tokio_postgres::Error> {
    Ok(session.texts(sql).await?.into_iter().next())
}

fn answer(found: Result<Option<Vec<Option<String>>>, tokio_postgres::Error>, chosen: String) -> Result<Answer> {
    match found {
        Ok(Some(values)) => Ok(Answer::Row { values, chosen }),
        Ok(None) => Ok(Answer::Empty),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(Answer::Forbidden),
        Err(error) => Err(fault::sql(While::Querying(READING), &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::catalog::Column;

    fn table(kind: &str, columns: &[(&str, &str)]) -> Table {
        let columns = columns.iter().map(|(name, base)| Column::of(name, base)).collect();
        Table { kind: kind.to_owned(), columns, ..Table::default() }
    }

    #[test]
    fn the_newest_row_has_the_largest_number_or_the_latest_time() {
        let (outbox, name) = (OutboxConfig::default(), TableName::debezium());
        for (columns, expected) in [
            (&[("id", "int8"), ("created_at", "timestamptz")][..], Some("id")),
            (&[("id", "uuid"), ("created_at", "timestamp")], Some("created_at")),
            (&[("id", "uuid")], None),
        ] {
            let table = table("r", columns);
            assert_eq!(Sampled { outbox: &outbox, name: &name, table: &table }.ordering(), expected);
        }
    }

    #[test]
    fn names_are_quoted_and_rows_of_heirs_left_out() {
        let name: TableName = r#""My ""S"".t""#.parse().unwrap();
        let outbox = OutboxConfig { columns: vec!["a\"b".to_owned(), "c".to_owned()], ..OutboxConfig::default() };
        let select = |kind: &str| Sampled { outbox: &outbox, name: &name, table: &table(kind, &[]) }.select().unwrap();
        assert_eq!(select("r"), r#"select "a""b", "c" from only "public"."My ""S"".t""#);
        assert_eq!(select("p"), r#"select "a""b", "c" from "public"."My ""S"".t""#);
    }
}
