//! The checks of Postgres. The rules are those of the relay's start.

use std::collections::BTreeMap;

use serde::Deserialize;
use tokio_postgres::error::SqlState;

use super::Asked;
use super::sample::{LIMIT, Sampled, readable};
use crate::cli::setup::plan::{Capacity, without_transaction};
use crate::cli::slot_watch::check_counts;
use crate::cli::sql::ClockDifference;
use crate::cli::status::{self, NO_RELAY};
use crate::config::{Config, SourceConfig};
use crate::poll::{RestoredRows, TableFacts, missing_index, restored_rows, table_facts};
use crate::postgres::fault;
use crate::postgres::quote::{quote_ident, quoted};
use crate::postgres::sql::SqlSession;
use crate::postgres::table;
use crate::relay::{can_be_read, makes_slot, polls_because, start_from};
use crate::sink::checks;
use crate::source::preflight::{
    self, Facts, Finding, Slot, copy_fault, inspect, judge_server, keeps_rows,
};
use crate::source::row_key;
use crate::state;
use crate::survey::{Largest, Seen, Survey};
use crate::upkeep::cleanup::Sweeper;
use crate::upkeep::parked::none_left_behind;
use crate::upkeep::{self, DatabaseIdentity, Marker, bound, owners};
use walrelay_core::config::unit::human_bytes;
use walrelay_core::config::{OutboxConfig, tables_of};
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result};
use walrelay_core::parked::Parking;
use walrelay_core::printable::counted;
use walrelay_core::route::{OwnedRecord, Record};

/// Rows of one table that are looked at, and topics that are learnt from them.
const ROWS_MAX: usize = 1_000;
const TOPICS_MAX: usize = 100;

#[derive(Debug)]
pub(in crate::cli) struct SurveyedServer {
    pub(in crate::cli) session: SqlSession,
    pub(in crate::cli) facts: Facts,
}

/// Adds the checks of Postgres to `survey`, and what they say about the bus to `seen`. What an
/// earlier fault leaves open is left out.
pub(super) async fn look(
    config: &Config,
    asked: Asked,
    survey: &mut Survey,
    seen: &mut Seen,
) -> Option<SurveyedServer> {
    seen.topics = topics_of_templates(config);
    let source = &config.source;
    let address = source.database.describe();
    let session = match SqlSession::connect(&source.database, asked.application_name()).await {
        Ok(session) => session,
        Err(error) => {
            survey.wrong("postgres", &address, &error);
            return None;
        }
    };
    let client = session.client();
    let mut named = config.clone();
    let found = row_key::find(client, source, &config.delivery, &mut named.outboxes).await;
    let facts = match inspect(client, source, &named.outboxes).await {
        Ok(facts) => facts,
        Err(error) => {
            survey.wrong("server", "", &error);
            return None;
        }
    };
    let version = format!("PostgreSQL {}", facts.server.version);
    survey.ok("postgres", &address, version);
    let mut upkeep_is_open = found.is_ok();
    if let Err(error) = found {
        survey.wrong("row-key", "", &error);
    }
    let subject = Looked {
        config: &named,
        session: &session,
        facts: &facts,
        polls: polls_because(source, &facts),
        asked,
    };
    subject.source(survey).await;
    copies(survey, config, &facts, asked).await;
    clock(survey, &session).await;
    upkeep_is_open &= subject.tables(survey, seen).await;
    if upkeep_is_open {
        let fits = "the role may do what is configured for rows and parked events";
        survey.judged("upkeep", "", may_write(&session, &named).await, fits);
    }
    owned(survey, &session, &named).await;
    seen.system_identifier.clone_from(&facts.system_identifier);
    Some(SurveyedServer { session, facts })
}

/// The topics that templates without columns name.
fn topics_of_templates(config: &Config) -> BTreeMap<String, Option<Largest>> {
    config
        .outboxes
        .iter()
        .map(|outbox| &outbox.route.topic)
        .filter(|topic| topic.columns().next().is_none())
        .map(|topic| (topic.source().to_owned(), None))
        .collect()
}

/// What the server keeps WAL for.
#[derive(Deserialize)]
struct Held {
    /// The open transaction with the oldest id, if for a minute and the role may see it.
    oldest_transaction: Option<String>,
}

/// The server, as far as it answered.
struct Looked<'l> {
    /// With the row keys that were found.
    config: &'l Config,
    session: &'l SqlSession,
    facts: &'l Facts,
    /// Why the relay would poll, if it would.
    polls: Option<String>,
    asked: Asked,
}

impl Looked<'_> {
    /// Adds the checks of what a relay reads from.
    async fn source(&self, survey: &mut Survey) {
        let facts = self.facts;
        match &self.polls {
            // A poller needs neither slot nor publication. On a standby it waits, too.
            Some(why) if !facts.server.in_recovery => polled(survey, self.config, facts, why),
            Some(_) => survey.judged("server", "", judge_server(&facts.server), ""),
            None => {
                let slot = &self.config.source.slot;
                let held = status::look::<Held>(self.session, slot).await.ok();
                let held = held.and_then(|held| held.oldest_transaction);
                streamed(survey, self.config, facts, self.asked, held);
                // The relay would make the slot.
                if facts.slot.is_none()
                    && self.asked == Asked::Both
                    && let Ok(capacity) = Capacity::read(self.session.client(), "").await
                {
                    capacity
                        .full()
                        .for_each(|error| survey.wrong("server", "", &error));
                }
            }
        }
    }

    /// Adds the checks of the tables, and to `seen` what their rows say of topics. Whether all of
    /// them can be read.
    async fn tables(&self, survey: &mut Survey, seen: &mut Seen) -> bool {
        let session = self.session;
        let mut are_readable = true;
        let tables = tables_of(&self.config.outboxes);
        for ((outbox, name), catalog) in tables.zip(&self.facts.catalogs) {
            let is_readable = readable(catalog, outbox);
            are_readable &= is_readable;
            // Where the relay streams, the check of the table has told what is missing.
            if is_readable || self.polls.is_some() {
                recovery(survey, session, self.config, outbox, self.polls.is_some()).await;
            }
            let Ok(Some(table)) = table::read(session.client(), name).await else {
                continue;
            };
            // They tell what the bus is asked.
            if is_readable && self.asked == Asked::Both {
                let sampled = Sampled {
                    outbox,
                    name,
                    table: &table,
                };
                rows(survey, session, &sampled, self.config, seen).await;
            }
        }
        are_readable
    }
}

/// Prepares the SQL of the configuration, as `run` does.
async fn may_write(session: &SqlSession, config: &Config) -> Result<()> {
    for (outbox, _) in tables_of(&config.outboxes) {
        let of = &outbox.upkeep;
        if of.pending.is_some() || of.order_by.is_some() || of.time.is_some() {
            table_facts(session.client(), outbox).await?;
        }
        if of.failed.is_some() {
            check_counts(session, outbox).await?;
        }
    }
    state::may_open(config, session.client()).await?;
    // A check creates no table, and only prepares the statements.
    let parking = match Parking::of(&config.delivery) {
        Parking::On => Parking::IfTableExists,
        parking @ (Parking::Off | Parking::IfTableExists) => parking,
    };
    let identity = DatabaseIdentity::of(session.client()).await?;
    if let Some(marker) = Marker::connect(config, parking, &identity).await? {
        marker.takes_writes().await?;
    }
    let retained = config.outboxes.iter();
    let retained = retained.filter_map(|of| Some((of, of.upkeep.retention?)));
    let retained: Vec<_> = retained.collect();
    if !retained.is_empty() {
        let session = upkeep::connect(&config.source, "walrelay doctor").await?;
        bound(session.client()).await?;
        for (outbox, retention) in retained {
            Sweeper::look_to_delete(session.client(), outbox, retention).await?;
        }
    }
    none_left_behind(session.client(), config).await
}

/// Whether code of others runs in the sessions that write.
async fn owned(survey: &mut Survey, session: &SqlSession, config: &Config) {
    const CHECK: &str = "owners";
    match owners::risks(session.client(), config).await {
        Ok(risks) => risks.iter().for_each(|risk| survey.risk(CHECK, "", risk)),
        Err(error) => survey.risk(CHECK, "", &error),
    }
}

/// Adds what the relay's start makes of the stored position. Call after the bus was seen to answer.
pub(super) async fn position(
    config: &Config,
    server: &SurveyedServer,
    cluster_id: Option<String>,
    survey: &mut Survey,
) {
    const CHECK: &str = "position";
    let subject = config.source.slot.to_string();
    let found = async {
        let stored = state::load(config).await?;
        start_from(
            config,
            server.session.client(),
            &server.facts,
            stored.as_ref(),
            cluster_id,
        )
        .await
    };
    match found.await {
        // Perhaps a relay has the last connection for replication.
        Err(error) if !error.kind().halts() => {
            survey.risk(CHECK, subject, &error.about("the position is not known"))
        }
        found => survey.finding(
            Finding {
                check: CHECK,
                subject,
                found,
            },
            "none is stored, or it belongs to this server, slot and cluster",
        ),
    }
}

/// `held`: the oldest open transaction, for which the server may keep WAL.
fn streamed(
    survey: &mut Survey,
    config: &Config,
    facts: &Facts,
    asked: Asked,
    held: Option<String>,
) {
    let source = &config.source;
    let held = held.map(|held| format!("; oldest open transaction: {held}"));
    let slot = facts
        .slot
        .as_ref()
        .map(|slot| described_slot(slot, facts) + &held.unwrap_or_default());
    let slot = slot.unwrap_or_default();
    let tables: Vec<_> = tables_of(&config.outboxes).map(|(_, name)| name).collect();
    let judged = if asked == Asked::BeforeSetup {
        &facts.as_set_up(&tables)
    } else {
        facts
    };
    for finding in preflight::survey(judged, &source.slot, &source.publication, &config.outboxes) {
        if let ("slot", Err(error)) = (finding.check, &finding.found)
            && makes_slot(config, facts)
        {
            survey.risk("slot", &finding.subject, error);
            continue;
        }
        let fits = match finding.check {
            "server" => "wal_level is logical, and the server is no standby",
            "role" => "may use replication slots",
            "slot" => &slot,
            "publication" => "publishes inserts into the outbox",
            "table" => "every row is in the stream",
            _ => "no risk",
        };
        survey.finding(finding, fits);
    }
    let synchronous = "synchronous";
    let found = &facts.synchronous;
    let fault = found.fault(&source.slot);
    match (found.names_relay(&source.slot), asked) {
        (false, _) if found.is_unattended => {
            let text = format!(
                "commits wait for standbys that are not connected: {}",
                found.names
            );
            let fix = format!("start one; only if they are lost:\n{}", found.remedy());
            survey.warning(synchronous, &source.slot, text, Some(fix.into()));
        }
        (false, _) => survey.ok(synchronous, &source.slot, "no commit waits for the relay"),
        // `run` starts nevertheless.
        (true, Asked::BeforeSetup) => survey.risk(synchronous, &source.slot, &fault),
        (true, Asked::Both) => survey.wrong(synchronous, &source.slot, &fault),
    }
    if let (_, Some(news)) = source.retention_limit().judge(facts.retained_bytes()) {
        let fix = Remedy::from("see what holds the slot back: ").and(NextCommand::new("status"));
        survey.warning("wal-retention", &source.slot, news, Some(fix));
    }
}

fn polled(survey: &mut Survey, config: &Config, facts: &Facts, why: &str) {
    survey.ok(
        "server",
        "",
        format!("the relay polls the table, without a slot: {why}"),
    );
    for ((_, name), catalog) in tables_of(&config.outboxes).zip(&facts.catalogs) {
        if let Some(table) = &catalog.table {
            survey.judged("table", name, keeps_rows(name, table), "every row is in it");
        }
    }
}

async fn clock(survey: &mut Survey, session: &SqlSession) {
    let judged = |difference: ClockDifference| difference.fault().map_or(Ok(difference), Err);
    match ClockDifference::read(session).await.and_then(judged) {
        Ok(difference) => survey.ok("clock", "", difference),
        Err(error) => survey.risk("clock", "", &error),
    }
}

/// Judges the copies of the slot, where the configuration names several servers.
async fn copies(survey: &mut Survey, config: &Config, facts: &Facts, asked: Asked) {
    const CHECK: &str = "standby-slots";
    if facts
        .slot
        .as_ref()
        .is_none_or(|slot| slot.failover != Some(true))
    {
        return;
    }
    let SourceConfig { database, slot, .. } = &config.source;
    let servers = database.targets.iter().map(|target| database.only(target));
    for server in servers.filter(|_| database.targets.len() > 1) {
        let found = async {
            let session = SqlSession::connect(&server, asked.application_name()).await?;
            let is_standby = preflight::server(session.client()).await?.in_recovery;
            Ok((is_standby, preflight::slot(session.client(), slot).await?))
        };
        let subject = server.describe();
        match found.await {
            Err(error) => {
                let error: Error = error;
                survey.risk(
                    CHECK,
                    subject,
                    &error.about(format_args!("the copy of slot {slot} is not known")),
                );
            }
            Ok((false, _)) => {}
            Ok((true, copy)) => {
                survey.finding(
                    Finding {
                        check: CHECK,
                        subject,
                        found: Ok(copy_fault(copy.as_ref(), slot).into_iter().collect()),
                    },
                    "the copy of the slot survives a promotion",
                );
            }
        }
    }
}

fn described_slot(slot: &Slot, facts: &Facts) -> String {
    let status = slot.wal_status.as_deref().unwrap_or("unknown");
    let safe = slot
        .safe_wal_size
        .and_then(|bytes| u64::try_from(bytes).ok())
        .map(|bytes| format!(", {} more are safe", human_bytes(bytes)))
        .unwrap_or_default();
    let active = slot.active_pid.map_or(NO_RELAY.to_owned(), |pid| {
        format!("active (backend pid {pid})")
    });
    format!(
        "{active}, retains {} of WAL, wal_status {status}{safe}",
        human_bytes(facts.retained_bytes())
    )
}

/// Whether the rows of the table could take the place of a lost slot, or be polled.
async fn recovery(
    survey: &mut Survey,
    session: &SqlSession,
    config: &Config,
    outbox: &OutboxConfig,
    polls: bool,
) {
    const CHECK: &str = "recovery";
    let facts = match table_facts(session.client(), outbox).await {
        Ok(facts) => facts,
        Err(error) => return survey.wrong(CHECK, &outbox.source, &error),
    };
    id_may_be_null(survey, outbox, &facts);
    let restored = async {
        session.run("bounding the search", LIMIT).await?;
        restored_rows(session, &facts).await
    };
    match restored.await {
        Ok(None) => {}
        Ok(Some(RestoredRows { cause, fix })) => {
            let fix = Remedy::from("once `")
                .and(NextCommand::new("pending").option("slot", &config.source.slot))
                .and("` counts no event: ")
                .and(fix);
            survey.warning(CHECK, &outbox.source, cause, Some(fix));
        }
        Err(error) => survey.risk(CHECK, &outbox.source, &error),
    }
    match missing_index(session.client(), outbox, &facts).await {
        Ok(Some(missing)) => survey.warning(
            CHECK,
            &outbox.source,
            missing.text,
            Some(missing.remedy.into()),
        ),
        Ok(None) => {}
        Err(error) => survey.risk(CHECK, &outbox.source, &error),
    }
    match can_be_read(&facts, outbox, config, polls) {
        Err(error) if polls => survey.wrong(CHECK, &outbox.source, &error),
        Err(error) => survey.risk(CHECK, &outbox.source, &error),
        Ok(()) if facts.xid_column.is_none() && !outbox.upkeep.says_for_itself() => {
            let setup = NextCommand::new("setup").option("slot", &config.source.slot);
            let fix = Remedy::from(
                setup
                    .option("table", format_args!("'{}'", facts.name))
                    .flag("add-xid-column"),
            );
            survey.warning(
                CHECK,
                &outbox.source,
                without_transaction(&facts.name),
                Some(fix),
            );
        }
        Ok(()) => survey.ok(
            CHECK,
            &outbox.source,
            "rows can be read in their order, and tell what was published",
        ),
    }
}

fn id_may_be_null(survey: &mut Survey, outbox: &OutboxConfig, facts: &TableFacts) {
    if let Some(id) = facts.key.first().filter(|id| !id.not_null)
        && let Ok(column) = quote_ident(&id.name)
    {
        let found = format!(
            "column {} may be NULL, and such a row stops the relay",
            quoted(&id.name)
        );
        let fix = format!(
            "alter table {} alter column {column} set not null",
            facts.name
        );
        survey.warning("table", &outbox.source, found, Some(fix.into()));
    }
}

async fn rows(
    survey: &mut Survey,
    session: &SqlSession,
    sampled: &Sampled<'_>,
    config: &Config,
    seen: &mut Seen,
) {
    const CHECK: &str = "rows";
    let subject = sampled.name.to_string();
    let values = match largest(session, sampled).await {
        Ok(values) => values,
        Err(error) => {
            return survey.risk(
                CHECK,
                subject,
                &error.about("topics and sizes of records are not known"),
            );
        }
    };
    let mut routed = Ok(());
    let bus = checks(config.sink.kind);
    // Of settings that make no client, the check of the bus tells.
    let admission = bus.admission(config).ok();
    for row in &values {
        let id = row.first().cloned().flatten().unwrap_or_default();
        let largest = |record: &Record<'_>| {
            let found = Largest {
                record: OwnedRecord::of(record),
                bytes: bus.record_bytes(record),
                row: id,
                admitted: admission.as_ref().map_or(Ok(()), |admits| admits(record)),
            };
            (record.topic.to_owned(), found)
        };
        match sampled.routed(row, config.delivery.on_error, largest) {
            Ok((topic, found)) => {
                let largest = seen.topics.entry(topic).or_default();
                let known = largest.take().into_iter();
                let rank = |one: &Largest| (one.admitted.is_err(), one.bytes);
                *largest = known.chain([found]).max_by_key(rank);
            }
            // Without an id it is no event, which on_error could be for.
            Err(error) if matches!(row.first(), Some(None)) => survey.risk(CHECK, &subject, &error),
            Err(error) => routed = Err(error),
        }
    }
    if let Some(number) = large_object(session, sampled, &values).await {
        survey.risk(CHECK, &subject, &numbers_for_content(sampled, &number));
    }
    let fits = match values.len() as u64 {
        0 => "no row is there that could tell topics and sizes of records".to_owned(),
        topics => {
            let topics = counted(topics, "topic");
            format!("{topics} in the {ROWS_MAX} rows at most that were read")
        }
    };
    survey.of_rows(CHECK, subject, routed, config.delivery.on_error, &fits);
}

fn numbers_for_content(sampled: &Sampled<'_>, number: &str) -> Error {
    let column = &sampled.outbox.names.payload;
    let name = sampled.name;
    let found = format!(
        "column {column} has the numbers of large objects, such as {number}: consumers get the \
         number, and not its content"
    );
    Error::new(Kind::Unhealthy, found).remedy(format!(
        "alter table {name} alter column {0} type text using convert_from(lo_get({0}::oid), \
         'UTF8'); -- and map it as text",
        quoted(column)
    ))
}

/// A payload of these rows that is the number of a large object, as a mapping of `@Lob` to text
/// stores it.
async fn large_object(
    session: &SqlSession,
    sampled: &Sampled<'_>,
    values: &[Vec<Option<String>>],
) -> Option<String> {
    let place = sampled.outbox.index_of(&sampled.outbox.names.payload)?;
    let payloads = values.iter().filter_map(|row| row.get(place)?.as_deref());
    let number = payloads
        .filter(|text| text.len() <= 10)
        .find_map(|text| text.parse::<u32>().ok())?;
    let sql = format!("select 1 from pg_catalog.pg_largeobject_metadata where oid = {number}");
    let found = session.texts(&sql).await.ok()?;
    (!found.is_empty()).then(|| number.to_string())
}

/// Of the newest rows, those with the largest values, one for each topic. Without an index that has
/// the newest, or where the newest are not found in time, of any rows.
async fn largest(session: &SqlSession, sampled: &Sampled<'_>) -> Result<Vec<Vec<Option<String>>>> {
    const DOING: &str = "reading rows";
    let newest = match sampled
        .ordering()
        .filter(|column| column.indexed.leads_index)
    {
        Some(column) => {
            let column = quote_ident(&column.name)?;
            format!("and {column} is not null order by {column} desc")
        }
        None => String::new(),
    };
    // Rows whose events were given up are no news.
    let given_up = sampled.outbox.upkeep.failed.as_deref().unwrap_or("false");
    let columns = sampled
        .outbox
        .columns
        .iter()
        .map(|name| quote_ident(name))
        .collect::<Result<Vec<_>>>()?;
    let bytes = columns
        .iter()
        .map(|name| format!("coalesce(pg_catalog.octet_length({name}::text), 0)"));
    let bytes = bytes.collect::<Vec<_>>().join(" + ");
    // A template without columns makes one topic.
    let mut topic = "(1 = 1)".to_owned();
    for column in sampled.outbox.route.topic.columns() {
        topic.push_str(&format!(", {}::text", quote_ident(column)?));
    }
    let select = sampled.select()?;
    let columns = columns.join(", ");
    let of = |which: &str| {
        format!(
            "select distinct on ({topic}) {columns} from ({select} where ({given_up}\n) is not \
             true {which} limit {ROWS_MAX}) sample \
             order by {topic}, {bytes} desc limit {TOPICS_MAX}"
        )
    };
    session.run(DOING, LIMIT).await?;
    let rows = match session.texts(&of(&newest)).await {
        Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => {
            session.texts(&of("")).await
        }
        rows => rows,
    };
    rows.map_err(|error| fault::query(DOING, &error))
}
