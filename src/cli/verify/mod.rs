//! `walrelay verify`: the outboxes' rows against their topics' records.
//!
//! Rows are read first, in one transaction, and topics to the ends they have afterwards: a row that is compared was
//! committed before anybody looked for its record. [`rows`] reads them, [`range`] says which, [`report`] prints.

pub mod range;
pub mod rows;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::Args;
use range::Range;
use rows::Plan;
use serde::Serialize;

use crate::cli::load::Loaded;
use crate::cli::output::{Outcome, Teller, print_report, warn};
use crate::cli::sql::Session;
use crate::cli::text::{aligned, listed, notes};
use crate::cli::{RelaySettings, flags};
use crate::config::unit::parse_duration;
use crate::config::{Config, OutboxConfig};
use crate::error::{Error, Kind, Result};
use crate::event::Shown;
use crate::postgres::catalog::Table;
use crate::sink::kafka::options::Options;
use crate::source::preflight::inspect;
use crate::verify::{Comparison, Counts, Example, Findings, Outbox, Reader};

/// `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Which relay; laid over the file as `run` would.
    #[command(flatten)]
    pub settings: RelaySettings,
    /// Compare only rows of this time or later: a timestamp as SQL reads it, in UTC unless it names a zone, or a duration
    /// for so long ago, such as 2h. The time is that of outbox.time, or of created_at and its like
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Compare only rows before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// How long the records of rows that were just committed are waited for, before they count as missing
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = grace)]
    pub grace: Duration,
    /// Fail where there are duplicates, too
    #[arg(long)]
    pub no_duplicates: bool,
    /// List records that no row has, too: those of rows that were deleted since, and of other producers
    #[arg(long)]
    pub unknown: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
    /// How many examples of each kind are listed
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub limit: usize,
}

pub(super) const HELP: &str = "\
Examples:
  walrelay verify --config walrelay.toml
  walrelay verify --slot orders --brokers localhost:9092 --since 24h
  walrelay verify --config walrelay.toml --since 2026-03-01 --until 2026-03-02
  walrelay verify --config walrelay.toml --json | jq .missing
  walrelay verify --config walrelay.toml --no-duplicates --limit 100

Nothing is changed, no consumer group is joined, and a relay may run meanwhile. Every row is held against its topic's records by the header with its id; the order is that of outbox.order_by, or of the column that is numbered. The role needs SELECT on the table, the Kafka user Read and Describe on the topics. docs/verify.md says what this proves, and what it costs.

Exit codes:
  0   every row has its record, and the order is the table's; also where there are duplicates, which at-least-once delivery allows, unless --no-duplicates is given
  1   a row has no record, or cannot be routed, or an aggregate's records run backwards
  2   the configuration or a flag cannot be meant like this
  10  Postgres cannot be reached (11: refuses)
  15  there is no such table, or it lacks a column that is needed
  30  Kafka cannot be reached (31: refuses)";

/// How far the broker's clock may be behind that of Postgres.
const CLOCKS_APART_MS: i64 = 3_600_000;

fn grace(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).filter(|duration| *duration <= Duration::from_secs(24 * 3600));
    duration.ok_or_else(|| "write a duration up to 24h, such as 10s or 0s".to_owned())
}

/// Compares, and prints what was found. Changes nothing.
///
/// # Errors
/// [`Kind::NotVerified`] where a row has no record or no way, or the order is broken; [`Kind::Config`] for a range without a
/// time column, an outbox without an id header, and where there are only messages; what Postgres and Kafka give.
pub async fn verify(args: &VerifyArgs) -> Outcome {
    let loaded = Loaded::new(&flags(&args.settings), args.settings.common.config.as_deref())?;
    let config = loaded.config(false)?;
    warn(loaded.warnings(&config));
    let id_headers = id_headers(&config)?;
    let source = &config.source;
    let session = Session::connect(&source.database, "verify").await?;
    let range = range::read(session.client(), args.since.as_deref(), args.until.as_deref()).await?;
    let mut report = Report::default();
    let plans = plans(&session, &config, &range, &mut report).await?;
    let outboxes = plans.iter().map(|plan| Outbox { name: plan.name.to_string(), is_ordered: plan.order.is_some() });
    let mut comparison = Comparison::new(outboxes.collect(), args.limit);
    rows::read(&session, &plans, &source.database.user, &mut comparison, &mut Teller::new()).await?;

    let deadline = Instant::now() + args.grace;
    let custom_times = config.outboxes.iter().any(|outbox| outbox.route.timestamp.is_some());
    // A time that the application gives to records says nothing of when they were produced.
    let since_ms = range.records_since_ms(CLOCKS_APART_MS).filter(|_| !custom_times);
    let mut reader = Reader::new(Options::reader(&config.kafka)?, id_headers, since_ms)?;
    let reading = move || {
        let mut teller = Teller::new();
        let mut say = |topic: &str, at: usize, of: usize, records: u64| {
            teller.tell(|| format!("reading topic {topic} ({at} of {of}): {records} records"));
        };
        let read = reader.read(&mut comparison, deadline, &mut say);
        let unreadable = reader.absent_and_cut();
        read.map(|()| (comparison, unreadable))
    };
    let read = tokio::task::spawn_blocking(reading).await;
    let (mut comparison, (absent, cut)) =
        read.map_err(|error| Error::new(Kind::Bug, format!("the reader of topics ended: {error}")))??;
    rows::find_strays(&session, &plans, &mut comparison, &mut Teller::new()).await?;

    report.found(comparison.findings(), &absent, &cut);
    print_report(args.json, &report, &report.text(args.unknown))?;
    Ok(report.verdict(args.no_duplicates)?)
}

/// The headers that carry the ids of rows.
fn id_headers(config: &Config) -> Result<Vec<String>> {
    let tables: Vec<&OutboxConfig> = config.outboxes.iter().filter(|outbox| outbox.source.table().is_some()).collect();
    if tables.is_empty() {
        let cause = "all outboxes are messages, which leave no row behind to be compared";
        return Err(Error::new(Kind::Config, cause).remedy("verify an outbox that is a table"));
    }
    let header = |outbox: &&OutboxConfig| {
        outbox.route.id_header.clone().ok_or_else(|| {
            let cause = format!("records of {} carry no id: route.id_header is empty", outbox.source);
            Error::new(Kind::Config, cause).remedy(
                "set id_header in [route]. Records that are there already cannot be verified: give --since the time of \
                 the change",
            )
        })
    };
    let headers = tables.iter().map(header).collect::<Result<BTreeSet<_>>>()?;
    Ok(headers.into_iter().collect())
}

/// How each outbox that is a table is read.
async fn plans(session: &Session, config: &Config, range: &Range, report: &mut Report) -> Result<Vec<Plan>> {
    let source = &config.source;
    inspect(session.client(), &source.slot, &source.publication, &config.outboxes).await?;
    let mut plans = Vec::new();
    for outbox in &config.outboxes {
        let Some(name) = outbox.source.table() else {
            report.note(format!("{} cannot be verified: there is no row behind a message", outbox.source));
            continue;
        };
        let table = Table::needed(session.client(), name).await?;
        if outbox.upkeep.delete || outbox.upkeep.retention.is_some() {
            report.note(format!("rows of {name} are deleted once they were published: records of those are unknown"));
        }
        let plan = Plan::new(outbox, name, &table, range)?;
        report.note(match &plan.order {
            Some(order) => format!("the order of {name} is that of {order}"),
            None => {
                format!("the order of {name} is not checked: no column is numbered, and outbox.order_by is not set")
            }
        });
        plans.push(plan);
    }
    Ok(plans)
}

/// What was found, and what has to be known to read it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether every row has its record, and none is out of order. Duplicates do not count.
    sound: bool,
    /// Of all flows together.
    total: Counts,
    #[serde(flatten)]
    findings: Findings,
    notes: Vec<String>,
}

impl Report {
    /// Adds a remark.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Takes what was found; `absent` are topics that do not exist, `cut` those whose first records are gone.
    pub fn found(&mut self, findings: Findings, absent: &[String], cut: &[String]) {
        let misses = |topic: &String| findings.flows.iter().any(|flow| flow.topic == *topic && flow.counts.missing > 0);
        self.notes.extend(absent.iter().map(|topic| format!("topic {topic} does not exist")));
        self.notes.extend(cut.iter().filter(|topic| misses(topic)).map(|topic| {
            format!(
                "the first records of topic {topic} are gone, as retention has it, and rows that had them count as \
                 missing: --since leaves them out"
            )
        }));
        self.total = findings.total();
        self.sound = self.total.missing == 0 && self.total.out_of_order == 0 && findings.unroutable == 0;
        self.findings = findings;
    }

    /// For people. Records of no row are counted, and listed only where `unknown` says so: where rows are deleted, there are
    /// always some.
    pub fn text(&self, unknown: bool) -> String {
        let head = [
            "outbox",
            "topic",
            "rows",
            "records",
            "missing",
            "duplicated",
            "out of order",
            "unknown",
            "outside",
            "replayed",
        ];
        let counts = |outbox: &str, topic: &str, counts: &Counts, ordered: bool| {
            let number = |number: u64| number.to_string();
            [
                outbox.to_owned(),
                topic.to_owned(),
                number(counts.rows),
                number(counts.records),
                number(counts.missing),
                number(counts.duplicated),
                if ordered { number(counts.out_of_order) } else { "-".to_owned() },
                number(counts.unknown),
                number(counts.outside),
                number(counts.replayed),
            ]
        };
        let flows = &self.findings.flows;
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(flows.iter().map(|flow| counts(&flow.outbox, &flow.topic, &flow.counts, flow.order_checked)));
        if flows.len() != 1 {
            let ordered = flows.iter().any(|flow| flow.order_checked);
            rows.push(counts("total", "", &self.total, ordered));
        }
        let mut text = aligned(&rows) + "\n";
        for (what, of, list) in [
            ("missing", self.total.missing, &self.findings.missing),
            ("unroutable", self.findings.unroutable, &self.findings.unroutable_rows),
            ("out of order", self.total.out_of_order, &self.findings.out_of_order),
            ("duplicated", self.total.duplicated, &self.findings.duplicated),
            ("unknown", self.total.unknown, &self.findings.unknown),
        ] {
            if list.is_empty() || what == "unknown" && !unknown {
                continue;
            }
            let lines: Vec<[String; 4]> = list.iter().map(line).collect();
            text += &listed(what, of, &lines);
        }
        if !self.notes.is_empty() {
            text += "\n";
        }
        text += &notes(&self.notes);
        text
    }

    /// Whether it is as it should be.
    ///
    /// # Errors
    /// [`Kind::NotVerified`] where it is not.
    pub fn verdict(&self, no_duplicates: bool) -> Result<()> {
        let duplicated = if no_duplicates { self.total.duplicated } else { 0 };
        let faults = [
            (
                self.total.missing,
                "missing",
                "see whether the relay is behind (walrelay status), or the topics do not keep what the table keeps",
            ),
            (
                self.findings.unroutable,
                "unroutable",
                "`run` stops at rows that cannot be routed: correct them, or the templates of [route]",
            ),
            (
                self.total.out_of_order,
                "out of order",
                "see whether writers of one aggregate wait for each other, and outbox.order_by is their order",
            ),
            (
                duplicated,
                "duplicated",
                "delivery is at least once: consumers drop by id what they know, and without --no-duplicates it is no fault",
            ),
        ];
        let faults: Vec<_> = faults.into_iter().filter(|(count, ..)| *count > 0).collect();
        if faults.is_empty() {
            return Ok(());
        }
        let (counts, remedies): (Vec<String>, Vec<&str>) =
            faults.into_iter().map(|(count, what, remedy)| (format!("{count} {what}"), remedy)).unzip();
        let error = Error::new(Kind::NotVerified, format!("outbox and topics differ: {}", counts.join(", ")));
        Err(error.remedy(format!("{}; docs/verify.md says what else it can be", remedies.join("; "))))
    }
}

/// Where, id, key, and what is to say.
fn line(example: &Example) -> [String; 4] {
    let shown = |text: &Option<String>| text.as_deref().map(|text| Shown::of(text.as_bytes()).to_string());
    let topic = example.topic.as_deref().unwrap_or_default();
    let place = match (example.partition, example.offset) {
        (Some(partition), Some(offset)) => format!("{topic}[{partition}]@{offset}"),
        _ => topic.to_owned(),
    };
    let place = if place.is_empty() { example.outbox.clone().unwrap_or_default() } else { place };
    let behind = example.behind_offset.map(|offset| format!("behind a later row at {offset}"));
    [
        format!("  {place}"),
        shown(&example.id).map_or_else(|| "no id".to_owned(), |id| format!("id {id}")),
        shown(&example.key).map(|key| format!("key {key}")).unwrap_or_default(),
        example.why.clone().or(behind).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::Delivered;

    fn report() -> Report {
        let outbox = |name: &str, is_ordered| Outbox { name: name.to_owned(), is_ordered };
        let mut comparison = Comparison::new(vec![outbox("public.outbox", true), outbox("b.events", false)], 2);
        for (rank, id) in (1..).zip(["1", "2", "3", "4", "5\n"]) {
            comparison.row(0, "orders", id.as_bytes(), Some(b"o-1"), rank);
        }
        comparison.row(1, "invoices", b"9", None, 0);
        comparison.unroutable(1, b"10", "column kind is NULL".to_owned());
        for (offset, id) in (0..).zip([Some("2"), Some("1"), Some("1"), Some("8"), None]) {
            let (id, key) = (id.map(str::as_bytes), Some(b"o-7".as_slice()));
            comparison.record("orders", &Delivered { partition: 1, offset, id, key, is_replay: false });
        }
        let mut report = Report::default();
        report.note("the order of public.outbox is that of \"id\"".to_owned());
        report.found(comparison.findings(), &["invoices".to_owned()], &["orders".to_owned(), "sound".to_owned()]);
        report
    }

    #[test]
    fn counts_line_up_and_examples_name_ids_keys_and_places() {
        assert!(!report().text(false).contains("id \"8\""));
        insta::assert_snapshot!(report().text(true), @r#"
        outbox         topic     rows  records  missing  duplicated  out of order  unknown  outside  replayed
        public.outbox  orders    5     5        3        1           1             2        0        0
        b.events       invoices  1     0        1        0           -             0        0        0
        total                    6     5        4        1           1             2        0        0

        missing (2 of 4)
          orders  id "3"  key "o-1"
          orders  id "4"  key "o-1"

        unroutable
          b.events  id "10"    column kind is NULL

        out of order
          orders[1]@1  id "1"  key "o-1"  behind a later row at 0

        duplicated
          orders[1]@2  id "1"  key "o-1"

        unknown
          orders[1]@4  no id   key "o-7"
          orders[1]@3  id "8"  key "o-7"

        note: the order of public.outbox is that of "id"
        note: topic invoices does not exist
        note: the first records of topic orders are gone, as retention has it, and rows that had them count as missing: --since leaves them out
        "#);
    }

    #[test]
    fn the_json_has_the_same() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!((json["sound"].as_bool(), json["total"]["missing"].as_u64()), (Some(false), Some(4)));
        assert_eq!((&json["flows"][0]["topic"], &json["flows"][0]["out_of_order"]), (&"orders".into(), &1.into()));
        assert_eq!(
            json["missing"][0],
            serde_json::json!({
                "outbox": "public.outbox", "topic": "orders", "id": "3", "key": "o-1",
            })
        );
        assert_eq!(
            (&json["out_of_order"][0]["offset"], &json["out_of_order"][0]["behind_offset"]),
            (&1.into(), &0.into())
        );
    }

    #[test]
    fn duplicates_alone_fail_only_where_they_are_not_wanted() {
        let verdict = |counts: Counts, unroutable, no_duplicates| {
            let report =
                Report { total: counts, findings: Findings { unroutable, ..Findings::default() }, ..Report::default() };
            report.verdict(no_duplicates).map_err(|error| {
                let remedy = error.what_to_do().unwrap().to_owned();
                (error.kind(), error.cause().to_owned(), remedy)
            })
        };
        let duplicated = Counts { duplicated: 2, unknown: 3, outside: 4, replayed: 5, ..Counts::default() };
        assert_eq!(verdict(duplicated.clone(), 0, false), Ok(()));
        let (kind, cause, remedy) = verdict(duplicated, 0, true).unwrap_err();
        assert_eq!((kind.exit_code(), cause.as_str()), (1, "outbox and topics differ: 2 duplicated"));
        assert!(remedy.contains("at least once") && !remedy.contains("behind"), "{remedy}");
        for (counts, unroutable, what_to_do) in [
            (Counts { missing: 1, ..Counts::default() }, 0, "see whether the relay is behind"),
            (Counts { out_of_order: 1, ..Counts::default() }, 0, "see whether writers"),
            (Counts::default(), 1, "`run` stops at rows"),
        ] {
            let (kind, _, remedy) = verdict(counts, unroutable, false).unwrap_err();
            assert!(kind == Kind::NotVerified && remedy.starts_with(what_to_do), "{remedy}");
        }
    }
}
