//! `walrelay config check`: the part of the survey that needs no bus, and the route of one row.

use clap::Args;
use serde::Serialize;
use tokio_postgres::error::SqlState;

use crate::cli::config::{self, RunSettings};
use crate::cli::output::{Outcome, Output, cell, hex, labelled, note, print, print_report};
use crate::cli::sql::is_about_value;
use crate::cli::survey::{Asked, STATEMENT_LIMIT, Sampled, SurveyedServer, Values, look, readable};
use crate::config::written::effective;
use crate::config::{Config, Mode, SourceConfig};
use crate::postgres::fault;
use crate::postgres::quote::{quote_ident, quote_literal, quoted};
use crate::postgres::sql::SqlSession;
use crate::postgres::table;
use walrelay_core::config::{EventSource, OnError, OutboxConfig, TableName};
use walrelay_core::error::{Error, Kind, NextCommand, Result};
use walrelay_core::event::Shown as Id;

use crate::sink::{Admission, AnySink, BusSink as _, checks};
use crate::source::catalog::Catalog;
use crate::source::preflight::Facts;
use crate::survey::{Check, Survey, WARNING, WRONG};
use crate::upkeep::writer;
use walrelay_core::route::Record;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub settings: RunSettings,
    /// Connect to nothing; print every setting with its value and origin, and secrets as ***
    #[arg(long, conflicts_with_all = ["form", "json"])]
    pub offline: bool,
    /// Show the record of the row with this id instead of the newest row
    #[arg(long, value_name = "ID", conflicts_with = "offline")]
    pub id: Option<String>,
    /// Leave the body out, which is the row's payload
    #[arg(long, conflicts_with = "offline")]
    pub no_body: bool,
    #[command(flatten)]
    pub output: Output,
}

pub(super) const HELP: &str = "\
Examples:
  walrelay config check --config walrelay.toml
  walrelay config check --config walrelay.toml --no-body \\
    --id 6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11
  walrelay config check --config walrelay.toml --json | \\
    jq '.outboxes[].record.topic'
  walrelay config check --config walrelay.toml --offline

The command makes the checks of `doctor` that concern Postgres, as if `setup` had made what is \
missing. It routes the newest row, or the row of --id, and shows the record. For that the role \
needs SELECT on the table, a right that `run` does not need. The client of the bus says whether \
the bus can take the record. The command changes nothing and does not connect to the bus. --json \
prints the checks as those of `doctor`, and an object in `outboxes` for each outbox. With \
--offline, or without a configured database, the command connects to nothing, and prints every \
setting with its origin.

Exit codes:
  0   `run` accepts the configuration; there may be warnings, and the table may be empty
  2   the configuration is not valid, or no row has that id
  10  Postgres cannot be reached (11: refuses)
  12  the server is not fit for logical replication
  14  the slot is not walrelay's, or is lost and run does not make it
  15  publication or table do not fit
  20  `run` stops: the row cannot be routed and delivery.on_error is stop, or its id is NULL
  21  the row makes a record that the bus can never take, likewise";

const READING: &str = "reading a row";
const OFFLINE: &str =
    "note: with --offline the database was not looked at: table, publication and slot may not fit";

/// Checks what `run` checks before it streams, and shows the record of one row. Without a database,
/// shows the settings.
pub(crate) async fn check(args: &CheckArgs) -> Outcome {
    let (settings, config) =
        config::read_all(&args.settings, &args.settings.source.relay.common.file)?;
    if args.offline || !config.source.database.names_server {
        if args.output.is_data() || args.id.is_some() {
            let error = Error::new(
                Kind::Config,
                "no database is configured, and a row can only come from a database",
            );
            return Err(error
                .remedy("set --database-url or WALRELAY_DATABASE_URL, or PGHOST and so on")
                .into());
        }
        note(if args.offline {
            OFFLINE
        } else {
            "note: no database is configured, so nothing was connected to"
        });
        return print(&effective(&settings, &config));
    }
    let mut survey = Survey::default();
    let Some(SurveyedServer { session, facts }) =
        look(&config, Asked::BeforeSetup, &mut survey).await
    else {
        let late = || {
            Error::new(
                Kind::PostgresUnreachable,
                "Postgres has not answered all questions in time",
            )
        };
        return Err(survey.ended().err().unwrap_or_else(late).into());
    };
    let admission = checks(config.sink.kind).admission(&config);
    if let Err(error) = &admission {
        survey.wrong("configuration", "", error);
    }
    let reading = Reading {
        session: &session,
        config: &config,
        id: args.id.as_deref(),
        with_body: !args.no_body,
        admission: admission.ok(),
    };
    let outboxes = reading.outboxes(&facts.catalogs, &mut survey).await?;
    let report = Report::new(&config.source, &facts, &survey.checks, outboxes);
    print_report(args.output, &report, &report.text())?;
    Ok(survey.ended()?)
}

/// Adds what becomes of the row.
fn judge(found: &Found, name: &TableName, on_error: OnError, survey: &mut Survey) {
    const CHECK: &str = "row";
    if let Some(Shown { topic, .. }) = found
        .record
        .as_ref()
        .filter(|record| AnySink::is_internal(&record.topic))
    {
        let found = format!(
            "the row goes to {topic}, an internal topic of the bus that rejects records: \
             delivery.on_error decides what \
             happens to the event"
        );
        survey.warning(CHECK, name, found, None);
    }
    if let Some(error) = &found.refused {
        match on_error == OnError::Stop || found.has_no_id {
            true => survey.wrong(CHECK, name, error),
            // The relay goes on.
            false => survey.risk(CHECK, name, error),
        }
    }
}

/// How rows are looked at.
struct Reading<'r> {
    session: &'r SqlSession,
    config: &'r Config,
    /// Of the row; by default the newest.
    id: Option<&'r str>,
    with_body: bool,
    /// None where the settings make no client of the bus.
    admission: Option<Admission>,
}

impl Reading<'_> {
    /// Each outbox with its row, of which `survey` gets what becomes of it.
    async fn outboxes(&self, catalogs: &[Catalog], survey: &mut Survey) -> Result<Vec<Outbox>> {
        let mut outboxes = Vec::new();
        let mut without_id = Vec::new();
        let mut each = catalogs.iter();
        for outbox in &self.config.outboxes {
            let Some(name) = outbox.source.table() else {
                outboxes.push(Outbox::new(
                    outbox,
                    None,
                    Found::no_row("none: messages have no rows"),
                ));
                continue;
            };
            let catalog = each.next();
            let found = match self.row(outbox, name, catalog).await {
                // With several tables, one of them has the row with this id.
                Err(error) if self.id.is_some() && catalogs.len() > 1 => {
                    without_id.push(error);
                    Found::no_row("none: the id is not in this table")
                }
                found => found?,
            };
            judge(&found, name, self.config.delivery.on_error, survey);
            outboxes.push(Outbox::new(outbox, catalog, found));
        }
        if let Some(error) = without_id
            .pop()
            .filter(|_| without_id.len() + 1 == catalogs.len())
        {
            return Err(error);
        }
        Ok(outboxes)
    }

    async fn row(
        &self,
        outbox: &OutboxConfig,
        name: &TableName,
        catalog: Option<&Catalog>,
    ) -> Result<Found> {
        let Reading {
            session,
            config,
            id,
            with_body,
            admission,
        } = self;
        let is_readable = catalog.is_some_and(|catalog| readable(catalog, outbox));
        let Some(table) = table::read(session.client(), name)
            .await?
            .filter(|_| is_readable)
        else {
            return Ok(Found::no_row("none: the table or a column is missing"));
        };
        let row_security = catalog
            .and_then(|catalog| catalog.table.as_ref())
            .is_some_and(|table| table.row_security);
        let sampled = Sampled {
            outbox,
            name,
            table: &table,
        };
        let (values, chosen) = match read(session, &sampled, *id).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Found::no_row("none: the table is empty")),
            Err(error) if error.kind() == Kind::PostgresRefused && id.is_none() => {
                let role = quoted(&config.source.database.user);
                let why = match row_security {
                    true => format!(
                        "not read: row-level security hides rows from role {role}, or it has no \
                         SELECT"
                    ),
                    false => format!(
                        "not read: the role has no SELECT on the table. run needs that right only \
                         to read rows after a loss of the slot: grant select on {name} to {role}"
                    ),
                };
                return Ok(Found::no_row(why));
            }
            Err(error) => return Err(error),
        };
        let mut found = Found::of_row(values.first().cloned().flatten(), chosen);
        let position = outbox.route.position_header.as_deref();
        let routed = sampled.routed(&values, config.delivery.on_error, |record| {
            let admitted = admission.as_ref().map_or(Ok(()), |admits| admits(record));
            (Shown::of(record, position, *with_body), admitted)
        });
        match routed {
            Ok((record, admitted)) => {
                found.record = Some(record);
                let id = found.row.as_ref().map(|row| Id::of(row.id.as_bytes()));
                found.refused = admitted
                    .err()
                    .map(|error| id.into_iter().fold(error, Error::of_row));
            }
            Err(error) if error.kind() == Kind::Event => found.refused = Some(error),
            Err(error) => return Err(error),
        }
        Ok(found)
    }
}

/// Reads the row with this id, or the newest, and tells why that one. The values have the text form
/// that the stream would have: the simple protocol prints them with the output functions of their
/// types, and a cast to text does not (`true` for `t`). Takes at most ten seconds for each of two
/// attempts. Errors: [`Kind::PostgresRefused`] where the role may not read the table.
async fn read(
    session: &SqlSession,
    sampled: &Sampled<'_>,
    id: Option<&str>,
) -> Result<Option<(Values, String)>> {
    session.run(READING, STATEMENT_LIMIT).await?;
    let select = sampled.select()?;
    let name = sampled.name;
    let failed = |error: tokio_postgres::Error| fault::query(READING, &error);
    let Some(id) = id else {
        let (order, mut chosen) = match sampled.ordering() {
            Some(column) => (
                // An index has no `desc nulls last`.
                format!(
                    "where {0} is not null order by {0} desc",
                    quote_ident(&column.name)?
                ),
                format!("the newest by {}", column.name),
            ),
            None => (
                "order by ctid desc".to_owned(),
                "the last in the table's file".to_owned(),
            ),
        };
        let mut found = session.texts(&format!("{select} {order} limit 1")).await;
        let is_another = match &found {
            Ok(rows) => rows.is_empty(),
            Err(error) => error.code() == Some(&SqlState::QUERY_CANCELED),
        };
        if is_another {
            chosen = "any row: none is the newest, or the search took too long".to_owned();
            found = session.texts(&format!("{select} limit 1")).await;
        }
        return Ok(found.map_err(failed)?.pop().map(|values| (values, chosen)));
    };
    let column = &sampled.outbox.names.id;
    let by_id = format!(
        "{select} where {} = {} limit 1",
        quote_ident(column)?,
        quote_literal(id)?
    );
    let refused = |cause: String| Error::new(Kind::Config, format!("--id: {cause}"));
    let mut found = session
        .texts(&by_id)
        .await
        .map_err(|error| match error.code() {
            Some(code) if is_about_value(code) => refused(format!(
                "this cannot be a value of column {column} of {name}"
            ))
            .remedy("write the id as Postgres prints it"),
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => failed(error)
                .about(format!("--id: the role may not read {name}"))
                .remedy("grant it SELECT on the table, or leave --id out"),
            _ => failed(error),
        })?;
    let Some(values) = found.pop() else {
        return Err(refused(format!(
            "no row of {name} has this {column}, or the role may not see the row"
        ))
        .remedy("leave --id out for the newest row"));
    };
    Ok(Some((values, "the row with this id".to_owned())))
}

/// Characters of a value in the table; `--json` has all.
const SHOWN_CHARS_MAX: usize = 1_001;
/// Replaces a value that only a row in the stream has.
const WHEN_RELAYED: &str = "(known when the row is relayed)";

/// The fields are the keys of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    database: String,
    server_version: String,
    publication: String,
    publication_exists: bool,
    slot: String,
    slot_exists: bool,
    /// Whether `run` would take the configuration after `setup`.
    fit: bool,
    /// Whether the configuration has it poll the table, without publication and slot.
    polls: bool,
    checks: &'a [Check],
    outboxes: Vec<Outbox>,
}

/// One outbox, and where a row of it goes.
#[derive(Debug, Clone, Serialize)]
struct Outbox {
    table: Option<String>,
    message_prefix: Option<String>,
    columns_used: Vec<String>,
    columns_not_used: Vec<String>,
    #[serde(flatten)]
    found: Found,
}

#[derive(Debug, Clone, Serialize)]
struct RowId {
    /// Empty if the id is NULL.
    id: String,
    chosen: String,
}

/// The row that was found, and its record or the reason why it has none.
#[derive(Debug, Clone, Default, Serialize)]
struct Found {
    row: Option<RowId>,
    record: Option<Shown>,
    #[serde(skip)]
    refused: Option<Error>,
    /// Its id is NULL: the relay stops whatever is configured.
    #[serde(skip)]
    has_no_id: bool,
    #[serde(skip)]
    no_row: String,
}

impl Found {
    fn of_row(id: Option<String>, chosen: String) -> Found {
        Found {
            has_no_id: id.is_none(),
            row: Some(RowId {
                id: id.unwrap_or_default(),
                chosen,
            }),
            ..Found::default()
        }
    }

    fn no_row(why: impl Into<String>) -> Found {
        Found {
            no_row: why.into(),
            ..Found::default()
        }
    }
}

#[derive(Debug, Clone, Serialize)]
struct Shown {
    topic: String,
    key: Option<Text>,
    /// `None`: the key decides.
    partition: Option<i32>,
    /// `None`: the time of sending.
    timestamp_ms: Option<i64>,
    headers: Vec<Header>,
    /// Bytes of the body; `None` is a tombstone.
    body_bytes: Option<usize>,
    /// `None` for a tombstone, and with `--no-body`.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Text>,
}

#[derive(Debug, Clone, Serialize)]
struct Header {
    name: String,
    value: Option<Text>,
    /// The relay gives this header its value.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    known_when_relayed: bool,
}

/// Bytes as text where they are UTF-8, else as hexadecimal digits.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "lowercase")]
enum Text {
    Text(String),
    Hex(String),
}

impl Text {
    fn of(bytes: &[u8]) -> Text {
        match std::str::from_utf8(bytes) {
            Ok(text) => Text::Text(text.to_owned()),
            Err(_) => Text::Hex(hex(bytes)),
        }
    }

    fn shown(&self) -> String {
        let (text, prefix) = match self {
            Text::Text(text) => (text, ""),
            Text::Hex(hex) => (hex, "\\x"),
        };
        format!("{prefix}{}", cell(text.as_bytes(), SHOWN_CHARS_MAX))
    }
}

impl Shown {
    /// Copies the record; the header `position` has no value yet.
    fn of(record: &Record<'_>, position: Option<&str>, with_body: bool) -> Shown {
        let header = |(name, value): &(&str, Option<&[u8]>)| {
            let known_when_relayed = position == Some(*name);
            let value = value.filter(|_| !known_when_relayed).map(Text::of);
            Header {
                name: (*name).to_owned(),
                value,
                known_when_relayed,
            }
        };
        Shown {
            topic: record.topic.to_owned(),
            key: record.key.map(Text::of),
            partition: record.partition,
            timestamp_ms: record.timestamp_ms,
            headers: record.headers.iter().map(header).collect(),
            body_bytes: record.value.map(<[u8]>::len),
            body: record.value.filter(|_| with_body).map(Text::of),
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("  topic", self.topic.clone())];
        let key = self.key.as_ref().map(Text::shown);
        lines.push((
            "  key",
            key.unwrap_or_else(|| "(none: no order)".to_owned()),
        ));
        let partition = self.partition.map(|number| number.to_string());
        let by_key = if self.key.is_some() {
            "(by the key)"
        } else {
            "(each in turn)"
        };
        lines.push((
            "  partition",
            partition.unwrap_or_else(|| by_key.to_owned()),
        ));
        let time = self
            .timestamp_ms
            .map(|ms| match jiff::Timestamp::from_millisecond(ms) {
                Ok(time) => time.to_string(),
                Err(_) => format!("{ms} ms"),
            });
        lines.push((
            "  timestamp",
            time.unwrap_or_else(|| "(the time of sending)".to_owned()),
        ));
        for Header {
            name,
            value,
            known_when_relayed,
        } in &self.headers
        {
            let value = match value {
                _ if *known_when_relayed => WHEN_RELAYED.to_owned(),
                Some(value) => value.shown(),
                None => "(without a value)".to_owned(),
            };
            lines.push(("  header", format!("{name}: {value}")));
        }
        lines.push(match (self.body_bytes, &self.body) {
            (None, _) => ("  body", "(none: a tombstone)".to_owned()),
            (Some(bytes), None) => ("  body", format!("({bytes} bytes)")),
            (Some(bytes), Some(body)) => ("  body", format!("({bytes} bytes) {}", body.shown())),
        });
        lines
    }
}

/// The names in the SQL of the configuration: some may be no columns.
fn used_by_upkeep(outbox: &OutboxConfig) -> Vec<String> {
    let of = &outbox.upkeep;
    let sql = [&of.pending, &of.mark, &of.order_by]
        .into_iter()
        .flatten()
        .flat_map(|sql| writer::names(sql));
    sql.chain(of.time.clone()).collect()
}

impl Report<'_> {
    fn new<'a>(
        source: &SourceConfig,
        facts: &Facts,
        checks: &'a [Check],
        outboxes: Vec<Outbox>,
    ) -> Report<'a> {
        Report {
            database: source.database.describe(),
            server_version: facts.server.version.clone(),
            publication: source.publication.clone(),
            publication_exists: facts.publication().is_some(),
            slot: source.slot.to_string(),
            slot_exists: facts.slot.is_some(),
            fit: checks.iter().all(|check| check.state != WRONG),
            polls: source.mode == Mode::Poll,
            checks,
            outboxes,
        }
    }

    fn text(&self) -> String {
        let setup = NextCommand::new("setup").option("slot", &self.slot);
        let warnings = || self.checks.iter().filter(|check| check.state == WARNING);
        let there = |of, name: &str, exists: bool| {
            let text = match (exists, self.fit) {
                (true, true) if warnings().all(|warning| warning.check != of) => {
                    format!("{name}, fit")
                }
                (true, _) => name.to_owned(),
                (false, true) => format!("{name} is not there yet: `{setup}` creates it"),
                (false, false) => format!("{name} is not there"),
            };
            (of, text)
        };
        let mut lines = vec![(
            "database",
            format!("{}, PostgreSQL {}", self.database, self.server_version),
        )];
        if self.polls {
            lines.push((
                "polled",
                "the table, without publication and slot".to_owned(),
            ));
        } else {
            lines.extend([
                there("publication", &self.publication, self.publication_exists),
                there("slot", &self.slot, self.slot_exists),
            ]);
        }
        for Check { found, fix, .. } in warnings() {
            lines.push(("warning", found.clone()));
            lines.extend(
                fix.iter()
                    .flat_map(|fix| fix.lines())
                    .map(|line| ("  fix", line.to_owned())),
            );
        }
        lines.extend(self.outboxes.iter().flat_map(Outbox::lines));
        labelled(lines)
    }
}

impl Outbox {
    fn new(outbox: &OutboxConfig, catalog: Option<&Catalog>, found: Found) -> Outbox {
        let table = catalog.and_then(|catalog| catalog.table.as_ref());
        let columns = table
            .into_iter()
            .flat_map(|table| &table.columns)
            .map(|column| column.name.clone());
        let by_upkeep = used_by_upkeep(outbox);
        let is_used =
            |column: &String| outbox.columns.contains(column) || by_upkeep.contains(column);
        let (used, not_used): (Vec<_>, Vec<_>) = columns.partition(is_used);
        // In the order in which they are read, and then in that of the table.
        let more = used
            .into_iter()
            .filter(|column| !outbox.columns.contains(column));
        let (table, message_prefix) = match &outbox.source {
            EventSource::Table(table) => (Some(table.to_string()), None),
            EventSource::Messages(prefix) => (None, Some(prefix.clone())),
        };
        let columns_used = outbox.columns.iter().cloned().chain(more).collect();
        Outbox {
            table,
            message_prefix,
            columns_used,
            columns_not_used: not_used,
            found,
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let listed = |columns: &[String]| {
            if columns.is_empty() {
                "none".to_owned()
            } else {
                columns.join(", ")
            }
        };
        let mut lines = match (&self.table, &self.message_prefix) {
            (Some(table), _) => vec![("table", table.clone())],
            (None, prefix) => vec![(
                "messages",
                format!("with prefix {:?}", prefix.as_deref().unwrap_or_default()),
            )],
        };
        lines.push(("used", listed(&self.columns_used)));
        if self.table.is_some() {
            lines.push(("not sent", listed(&self.columns_not_used)));
        }
        let Found {
            row,
            record,
            no_row,
            ..
        } = &self.found;
        let goes = record
            .as_ref()
            .map_or(": cannot be routed", |_| ", goes to");
        let of =
            |RowId { id, chosen }: &RowId| format!("{}, {chosen}{goes}", Id::of(id.as_bytes()));
        lines.push(("row", row.as_ref().map_or(no_row.clone(), of)));
        lines.extend(record.iter().flat_map(Shown::lines));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layers::{Flags, Settings};
    use crate::source::catalog;
    use crate::source::preflight::Server;

    fn report(found: Found) -> Report<'static> {
        report_of(&OutboxConfig::default(), found, &[])
    }

    fn report_of<'a>(outbox: &OutboxConfig, found: Found, checks: &'a [Check]) -> Report<'a> {
        let given = [
            ("slot.name", "orders"),
            ("database.url", "postgres://relay@db/shop"),
        ];
        let flags: Flags = given
            .into_iter()
            .map(|(key, text)| (key, text.to_owned()))
            .collect();
        let source = Settings::new(&flags, &Default::default(), None)
            .unwrap()
            .source()
            .unwrap();
        let mut facts = Facts {
            server: Server {
                version: "17.11".to_owned(),
                ..Server::default()
            },
            ..Facts::default()
        };
        let columns = ["id", "aggregatetype", "aggregateid", "payload", "type"];
        let column = |name: &str| catalog::PublishedColumn {
            name: name.to_owned(),
            ..catalog::PublishedColumn::default()
        };
        let table = Some(catalog::PublishedTable {
            columns: columns.map(column).to_vec(),
            ..catalog::PublishedTable::default()
        });
        facts.catalogs = vec![Catalog {
            table,
            ..Catalog::default()
        }];
        let outboxes = vec![Outbox::new(outbox, facts.catalogs.first(), found)];
        Report::new(&source, &facts, checks, outboxes)
    }

    fn record(value: Option<&[u8]>, with_body: bool) -> Shown {
        let headers: &[(&str, Option<&[u8]>)] = &[
            ("id", Some(b"7")),
            ("tenant", None),
            ("walrelay-position", Some(b"x")),
        ];
        let record = Record {
            topic: "orders",
            key: Some(b"o-1"),
            value,
            headers,
            partition: None,
            timestamp_ms: Some(1_500),
        };
        Shown::of(&record, Some("walrelay-position"), with_body)
    }

    fn row(record: Shown) -> Found {
        let row = RowId {
            id: "7".to_owned(),
            chosen: "the newest by id".to_owned(),
        };
        Found {
            row: Some(row),
            record: Some(record),
            ..Found::default()
        }
    }

    #[test]
    fn a_column_that_pending_names_is_reported_as_used() {
        let mut outbox = OutboxConfig::default();
        outbox.upkeep.pending = Some("Type = 'no_column'".to_owned());
        let report = report_of(&outbox, Found::default(), &[]);
        assert!(
            report
                .text()
                .contains("used         id, aggregatetype, aggregateid, payload, type\n"),
            "{}",
            report.text()
        );
        assert!(report.outboxes[0].columns_not_used.is_empty());
    }

    #[test]
    fn the_report_shows_the_record_of_a_row_in_aligned_columns() {
        let mut survey = Survey::default();
        survey.warning(
            "recovery",
            "",
            "a warning",
            Some("create index;\nanalyze".into()),
        );
        let found = row(record(Some(b"{\"a\":\n 1}"), true));
        let report = report_of(&OutboxConfig::default(), found, &survey.checks);
        insta::assert_snapshot!(report.text(), @r#"
        database     db:5432/shop as relay, PostgreSQL 17.11
        publication  walrelay_orders is not there yet: `walrelay setup --slot orders` creates it
        slot         orders is not there yet: `walrelay setup --slot orders` creates it
        warning      a warning
          fix        create index;
          fix        analyze
        table        public.outbox
        used         id, aggregatetype, aggregateid, payload
        not sent     type
        row          "7", the newest by id, goes to
          topic      orders
          key        o-1
          partition  (by the key)
          timestamp  1970-01-01T00:00:01.5Z
          header     id: 7
          header     tenant: (without a value)
          header     walrelay-position: (known when the row is relayed)
          body       (9 bytes) {"a":\n 1}
        "#);
    }

    #[test]
    fn a_slot_with_a_warning_is_not_said_to_be_fit() {
        let mut survey = Survey::default();
        survey.ok("slot", "orders", "active");
        let line = |survey: &Survey| {
            let mut report = report_of(&OutboxConfig::default(), Found::default(), &survey.checks);
            report.slot_exists = true;
            let text = report.text();
            text.lines()
                .find(|line| line.starts_with("slot"))
                .map(str::to_owned)
        };
        assert_eq!(line(&survey).as_deref(), Some("slot         orders, fit"));
        survey.warning("slot", "orders", "slot orders is lost", None);
        assert_eq!(line(&survey).as_deref(), Some("slot         orders"));
    }

    #[test]
    fn a_row_stops_the_relay_as_configured_or_without_an_id() {
        let table = TableName::debezium();
        for (on_error, has_no_id, state) in [
            (OnError::Park, false, WARNING),
            (OnError::Park, true, WRONG),
            (OnError::Stop, false, WRONG),
        ] {
            let found = Found {
                refused: Some(Error::new(Kind::Event, "column id is NULL")),
                has_no_id,
                ..Found::default()
            };
            let mut survey = Survey::default();
            judge(&found, &table, on_error, &mut survey);
            assert_eq!(survey.checks[0].state, state, "{on_error:?} {has_no_id}");
        }
    }

    #[test]
    fn a_body_is_shown_as_shortened_text_or_hex_or_by_its_size_alone() {
        let body =
            |value: Option<&[u8]>, with_body| record(value, with_body).lines().pop().unwrap().1;
        assert_eq!(body(Some(b"\x00\xff"), true), "(2 bytes) \\x00ff");
        assert_eq!(
            body(Some("ü\u{1b}\u{202e}".as_bytes()), true),
            "(6 bytes) ü\\u{1b}\\u{202e}"
        );
        assert_eq!(body(Some(b"canary"), false), "(6 bytes)");
        assert_eq!(body(None, true), "(none: a tombstone)");
        let long = body(Some("ü".repeat(5_000).as_bytes()), true);
        assert_eq!(long, format!("(10000 bytes) {}…", "ü".repeat(1_000)));
    }

    #[test]
    fn each_outbox_has_its_own_row_in_the_report_and_messages_have_none() {
        let mut report = report(row(record(None, true)));
        let source = EventSource::Messages("shop".to_owned());
        let outbox = OutboxConfig {
            source,
            ..OutboxConfig::default()
        };
        report.outboxes.push(Outbox::new(
            &outbox,
            None,
            Found::no_row("none: messages have no rows"),
        ));
        let text = report.text();
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        assert_eq!(
            last,
            [
                "row          none: messages have no rows",
                "used         id, aggregatetype, aggregateid, payload",
                "messages     with prefix \"shop\"",
            ]
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["outboxes"][1]["message_prefix"], "shop");
    }

    #[test]
    fn the_json_has_the_whole_body_and_no_value_for_the_position_header() {
        let long = "x".repeat(3_000);
        let json = serde_json::to_value(report(row(record(Some(long.as_bytes()), true)))).unwrap();
        assert_eq!(json["outboxes"][0]["record"]["body"]["text"], long);
        assert_eq!(
            json["outboxes"][0]["record"]["headers"][2]["known_when_relayed"],
            true
        );
        assert_eq!(
            (
                json["outboxes"][0]["record"]["topic"].as_str(),
                json["slot_exists"].as_bool()
            ),
            (Some("orders"), Some(false))
        );
        let without = serde_json::to_value(report(row(record(Some(b"canary"), false)))).unwrap();
        assert!(
            !without.to_string().contains("canary")
                && without["outboxes"][0]["record"]["body_bytes"] == 6
        );
    }
}
