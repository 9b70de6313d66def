//! `walrelay verify`: the outboxes' rows against their topics' records.
//!
//! The command reads the rows first, in one transaction, and then the topics up to their ends at
//! that time: every compared row was committed before the search for its record.

mod rows;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::Args;
use rows::Plan;
use serde::Serialize;

use crate::cli::config::{self, DAY, RelaySettings, duration};
use crate::cli::output::{Grid, Outcome, Output, notes, or_dash, print_report};
use crate::cli::progress::Bar;
use crate::cli::sql::{Range, Times};
use crate::config::Config;
use crate::postgres::sql::SqlSession;
use crate::postgres::table;
use crate::sink::checks;
use crate::source::preflight::inspect;
use crate::verify::{Comparison, Counts, Example, Findings, Outbox, Reading, RecordReader};
use walrelay_core::config::{OutboxConfig, TableName, tables_of};
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result};
use walrelay_core::event::Shown;

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub settings: RelaySettings,
    #[command(flatten)]
    pub times: Times,
    /// The longest wait for the records of new rows before these rows count as missing
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "10s",
        value_parser = duration(Duration::ZERO..=DAY, "10s or 0s")
    )]
    pub grace: Duration,
    /// Fail also on duplicates
    #[arg(long)]
    pub no_duplicates: bool,
    /// List also records without a row: of deleted rows, and of other producers
    #[arg(long)]
    pub unknown: bool,
    #[command(flatten)]
    pub output: Output,
    /// The most examples of each kind to list
    #[arg(long, value_name = "EXAMPLES", default_value_t = 10)]
    pub limit: usize,
}

pub(super) const HELP: &str = "\
Examples:
  walrelay verify --config walrelay.toml
  walrelay verify --slot orders --brokers localhost:9092 --since 24h
  walrelay verify --config walrelay.toml --since 2026-03-01 --until 2026-03-02
  walrelay verify --config walrelay.toml --json | jq .missing
  walrelay verify --config walrelay.toml --no-duplicates --limit 100

The command changes nothing, joins no consumer group, and a relay may run meanwhile. It finds the \
record of each row by the id in a header. The order comes from outbox.order_by, or from an \
identity or serial column. The role needs SELECT on the table, the Kafka user Read and Describe on \
the topics. NATS JetStream is read, too. docs/how-to/verify.md describes what this proves, and its \
cost.

Exit codes:
  0   every row has its record, and the order is the table's. At-least-once delivery allows \
      duplicates; --no-duplicates does not
  1   a row has no record, or cannot be routed, or an aggregate's records are out of order
  2   the configuration or a flag is not valid
  10  Postgres cannot be reached (11: refuses)
  15  the table does not exist, or lacks a required column
  30  Kafka cannot be reached (31: refuses)";

/// The most that the broker's clock may be behind Postgres' clock.
const CLOCKS_APART_MS: i64 = 3_600_000;

pub(crate) async fn verify(args: &VerifyArgs) -> Outcome {
    let (_, config) = config::read_all(&args.settings, &args.settings.common.file)?;
    let id_headers = id_headers(&config)?;
    let source = &config.source;
    let topics = checks(config.sink.kind).reader(&config)?.ok_or_else(|| {
        let name = config.sink.kind.bus().name;
        let cause = format!("nothing is read back from {name}, so that nothing can be compared");
        let remedy = Remedy::from("see how far a running relay is with `")
            .and(NextCommand::new("status"))
            .and("`, and while none runs, what is not delivered, with `")
            .and(NextCommand::new("pending"))
            .and("`");
        Error::new(Kind::Config, cause).remedy(remedy)
    })?;
    let session = SqlSession::connect(&source.database, "walrelay verify").await?;
    session.allow_long_statements().await?;
    let range = Range::read(session.client(), &args.times).await?;
    let mut report = Report::default();
    let plans = plans(&session, &config, &range, &mut report).await?;
    let outboxes = plans.iter().map(|plan| Outbox {
        name: plan.name.to_string(),
        is_ordered: plan.order.is_some(),
    });
    let mut comparison = Comparison::new(outboxes.collect(), args.limit);
    rows::read(
        &session,
        &plans,
        &source.database.user,
        &mut comparison,
        Bar::new(args.output),
    )
    .await?;

    let deadline = Instant::now() + args.grace;
    let custom_times = config
        .outboxes
        .iter()
        .any(|outbox| outbox.route.timestamp.is_some());
    // The application's time of a record does not tell when the record was produced.
    let since_ms = range
        .records_since_ms(CLOCKS_APART_MS)
        .filter(|_| !custom_times);
    let mut reader = RecordReader::new(topics, id_headers, since_ms);
    let mut bar = Bar::new(args.output);
    let reading = move || {
        let mut say = |reading: &Reading<'_>| {
            let Reading {
                topic,
                number,
                topics,
                records,
                of,
            } = reading;
            bar.at(*records, Some(*of), || {
                format!("records of topic {topic} read (topic {number} of {topics})")
            });
        };
        let read = reader.read(&mut comparison, deadline, &mut say);
        read.map(|()| (comparison, reader))
    };
    let read = tokio::task::spawn_blocking(reading).await;
    let (mut comparison, RecordReader { absent, cut, .. }) = read
        .map_err(|error| Error::new(Kind::Bug, format!("the reader of topics ended: {error}")))??;
    rows::find_strays(&session, &plans, &mut comparison, Bar::new(args.output)).await?;

    report.found(comparison.findings(), &absent, &cut);
    print_report(args.output, &report, &report.text(args.unknown))?;
    Ok(report.verdict(args.no_duplicates)?)
}

fn id_headers(config: &Config) -> Result<Vec<String>> {
    if tables_of(&config.outboxes).next().is_none() {
        let cause = "all outboxes are messages, and messages have no rows to compare";
        return Err(Error::new(Kind::Config, cause).remedy("verify an outbox that is a table"));
    }
    let header = |(outbox, _): (&OutboxConfig, &TableName)| {
        outbox.route.id_header.clone().ok_or_else(|| {
            let cause = format!(
                "records of {} carry no id: route.id_header is empty",
                outbox.source
            );
            Error::new(Kind::Config, cause).remedy(
                "set id_header in [route]. verify cannot find existing records: give --since the \
                 time of the \
                 change",
            )
        })
    };
    let headers: Result<BTreeSet<_>> = tables_of(&config.outboxes).map(header).collect();
    Ok(headers?.into_iter().collect())
}

async fn plans(
    session: &SqlSession,
    config: &Config,
    range: &Range,
    report: &mut Report,
) -> Result<Vec<Plan>> {
    inspect(session.client(), &config.source, &config.outboxes).await?;
    let mut plans = Vec::new();
    for outbox in &config.outboxes {
        let Some(name) = outbox.source.table() else {
            report.notes.push(format!(
                "{} cannot be verified: messages have no rows",
                outbox.source
            ));
            continue;
        };
        let table = table::needed(session.client(), name).await?;
        if outbox.upkeep.delete || outbox.upkeep.retention.is_some() {
            report.notes.push(format!(
                "the relay or cleanup deletes published rows of {name}: their \
                               records count as unknown"
            ));
        }
        let plan = Plan::new(outbox, name, &table, range)?;
        report.notes.push(match &plan.order {
            Some(order) => format!("the order of {name} is that of {order}"),
            None => {
                format!(
                    "the order of {name} is not checked: the table has no identity or serial \
                         column, and outbox.order_by is not set"
                )
            }
        });
        plans.push(plan);
    }
    Ok(plans)
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    /// Whether every row has its record, and none is out of order. Duplicates do not count.
    sound: bool,
    total: Counts,
    #[serde(flatten)]
    findings: Findings,
    notes: Vec<String>,
}

impl Report {
    /// `absent` are topics that do not exist, `cut` those whose first records are deleted.
    pub(crate) fn found(&mut self, findings: Findings, absent: &[String], cut: &[String]) {
        let flows = &findings.flows;
        self.notes.extend(
            absent
                .iter()
                .map(|topic| format!("topic {topic} does not exist")),
        );
        for topic in cut {
            if flows
                .iter()
                .any(|flow| flow.topic == *topic && flow.counts.missing > 0)
            {
                self.notes.push(format!(
                    "retention has removed the first records of topic {topic}, and their rows \
                     count as missing: leave these rows out with --since"
                ));
            }
        }
        if flows.is_empty() {
            self.notes.push("no topic was read: no row has one".into());
        }
        self.total = findings.total();
        self.sound =
            self.total.missing == 0 && self.total.out_of_order == 0 && findings.unroutable == 0;
        self.findings = findings;
    }

    /// The report for people. Records without a row are listed only with `unknown`: deleted rows
    /// always leave some.
    pub(crate) fn text(&self, unknown: bool) -> String {
        let head = "outbox, topic, rows, records, missing, duplicated, out of order, unknown, \
                    outside, replayed";
        let flows = &self.findings.flows;
        let mut table = Grid::headed(head);
        let mut counts = |outbox: &str, topic: &str, counts: &Counts, is_ordered: bool| {
            let Counts {
                rows,
                records,
                missing,
                duplicated,
                out_of_order,
                unknown,
                outside,
                replayed,
            } = counts;
            let order = or_dash(Some(out_of_order).filter(|_| is_ordered));
            table.row([
                &outbox, &topic, rows, records, missing, duplicated, &order, unknown, outside,
                replayed,
            ]);
        };
        flows
            .iter()
            .for_each(|flow| counts(&flow.outbox, &flow.topic, &flow.counts, flow.order_checked));
        if flows.len() != 1 {
            counts(
                "total",
                "",
                &self.total,
                flows.iter().any(|flow| flow.order_checked),
            );
        }
        let mut text = table.text();
        for (what, of, list) in [
            ("missing", self.total.missing, &self.findings.missing),
            (
                "unroutable",
                self.findings.unroutable,
                &self.findings.unroutable_rows,
            ),
            (
                "out of order",
                self.total.out_of_order,
                &self.findings.out_of_order,
            ),
            (
                "duplicated",
                self.total.duplicated,
                &self.findings.duplicated,
            ),
            ("unknown", self.total.unknown, &self.findings.unknown),
        ] {
            let mut examples = Grid::default();
            list.iter()
                .filter(|_| what != "unknown" || unknown)
                .for_each(|example| add(&mut examples, example));
            text += &examples.titled(what, of);
        }
        if !self.notes.is_empty() {
            text += "\n";
        }
        text + &notes(&self.notes)
    }

    pub(crate) fn verdict(&self, no_duplicates: bool) -> Result<()> {
        let duplicated = if no_duplicates {
            self.total.duplicated
        } else {
            0
        };
        let faults = [
            (
                self.total.missing,
                "missing",
                Remedy::from("rows that wait for a relay count as missing, and are not lost: `")
                    .and(NextCommand::new("pending"))
                    .and("` counts them while none runs, `")
                    .and(NextCommand::new("status"))
                    .and("` shows the lag, and `")
                    .and(NextCommand::new("parked list"))
                    .and("` those that are parked; check the retention of the topics, too"),
            ),
            (
                self.findings.unroutable,
                "unroutable",
                Remedy::from("correct the rows that cannot be routed, or the templates of [route]"),
            ),
            (
                self.total.out_of_order,
                "out of order",
                Remedy::from(
                    "check that writers of one aggregate wait for each other, and that \
                     outbox.order_by is their order",
                ),
            ),
            (
                duplicated,
                "duplicated",
                Remedy::from(
                    "delivery is at least once: consumers recognize duplicates by their id, and \
                     verify accepts duplicates without --no-duplicates",
                ),
            ),
        ];
        let faults: Vec<_> = faults
            .into_iter()
            .filter(|(count, ..)| *count > 0)
            .collect();
        if faults.is_empty() {
            return Ok(());
        }
        let (counts, remedies): (Vec<String>, Vec<Remedy>) = faults
            .into_iter()
            .map(|(count, what, remedy)| (format!("{count} {what}"), remedy))
            .unzip();
        let error = Error::new(
            Kind::NotVerified,
            format!("outbox and topics differ: {}", counts.join(", ")),
        );
        let remedy = Remedy::joined(remedies).and("; docs/how-to/verify.md lists other causes");
        Err(error.remedy(remedy))
    }
}

fn add(table: &mut Grid, example: &Example) {
    let Example {
        topic,
        partition,
        offset,
        id,
        key,
        ..
    } = example;
    let shown = |text: &Option<String>| text.as_deref().map(|text| Shown::of(text.as_bytes()));
    let topic = topic.as_deref().unwrap_or_default();
    let place = match (partition, offset) {
        (Some(partition), Some(offset)) => format!("{topic}[{partition}]@{offset}"),
        _ => topic.to_owned(),
    };
    let place = if place.is_empty() {
        example.outbox.clone().unwrap_or_default()
    } else {
        place
    };
    let behind = example
        .behind_offset
        .map(|offset| format!("after a later row at {offset}"));
    let id = shown(id).map_or_else(|| "no id".to_owned(), |id| format!("id {id}"));
    let key = shown(key)
        .map(|key| format!("key {key}"))
        .unwrap_or_default();
    let why = example.why.clone().or(behind).unwrap_or_default();
    table.row([&format_args!("  {place}"), &id, &key, &why]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::Delivered;

    fn report() -> Report {
        let outbox = |name: &str, is_ordered| Outbox {
            name: name.to_owned(),
            is_ordered,
        };
        let mut comparison = Comparison::new(
            vec![outbox("public.outbox", true), outbox("b.events", false)],
            2,
        );
        for (rank, id) in (1..).zip(["1", "2", "3", "4", "5\n"]) {
            comparison.row(0, "orders", id.as_bytes(), Some(b"o-1"), rank);
        }
        comparison.row(1, "invoices", b"9", None, 0);
        comparison.unroutable(1, b"10", "column kind is NULL".to_owned());
        for (offset, id) in (0..).zip([Some("2"), Some("1"), Some("1"), Some("8"), None]) {
            let id = id.map(str::as_bytes);
            let key = Some(b"o-7".as_slice());
            comparison.record(
                "orders",
                &Delivered {
                    partition: 1,
                    offset,
                    id,
                    key,
                    is_replay: false,
                },
            );
        }
        let mut report = Report::default();
        report
            .notes
            .push("the order of public.outbox is that of \"id\"".to_owned());
        report.found(
            comparison.findings(),
            &["invoices".to_owned()],
            &["orders".to_owned(), "sound".to_owned()],
        );
        report
    }

    #[test]
    fn the_report_aligns_counts_and_names_ids_keys_and_offsets_of_examples() {
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
          orders[1]@1  id "1"  key "o-1"  after a later row at 0

        duplicated
          orders[1]@2  id "1"  key "o-1"

        unknown
          orders[1]@4  no id   key "o-7"
          orders[1]@3  id "8"  key "o-7"

        note: the order of public.outbox is that of "id"
        note: topic invoices does not exist
        note: retention has removed the first records of topic orders, and their rows count as missing: leave these rows out with --since
        "#);
    }

    #[test]
    fn duplicates_alone_are_a_failure_only_with_the_flag_no_duplicates() {
        let verdict = |counts: Counts, unroutable, no_duplicates| {
            let report = Report {
                total: counts,
                findings: Findings {
                    unroutable,
                    ..Findings::default()
                },
                ..Report::default()
            };
            report.verdict(no_duplicates).map_err(|error| {
                let remedy = error.what_to_do().unwrap().to_owned();
                (error.kind(), error.cause().to_owned(), remedy)
            })
        };
        let duplicated = Counts {
            duplicated: 2,
            unknown: 3,
            outside: 4,
            replayed: 5,
            ..Counts::default()
        };
        assert_eq!(verdict(duplicated.clone(), 0, false), Ok(()));
        let (kind, cause, remedy) = verdict(duplicated, 0, true).unwrap_err();
        assert_eq!(
            (kind.exit_code(), cause.as_str()),
            (1, "outbox and topics differ: 2 duplicated")
        );
        assert!(
            remedy.contains("at least once") && !remedy.contains("lag"),
            "{remedy}"
        );
        for (counts, unroutable, what_to_do) in [
            (
                Counts {
                    missing: 1,
                    ..Counts::default()
                },
                0,
                "rows that wait for a relay count as missing, and are not lost: `walrelay pending` \
                 counts them while none runs, `walrelay status` shows the lag, and `walrelay parked \
                 list` those that are parked",
            ),
            (
                Counts {
                    out_of_order: 1,
                    ..Counts::default()
                },
                0,
                "check that writers",
            ),
            (
                Counts::default(),
                1,
                "correct the rows that cannot be routed",
            ),
        ] {
            let (kind, _, remedy) = verdict(counts, unroutable, false).unwrap_err();
            assert!(
                kind == Kind::NotVerified && remedy.starts_with(what_to_do),
                "{remedy}"
            );
        }
    }
}
