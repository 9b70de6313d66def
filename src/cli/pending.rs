//! `walrelay pending`: what is in the slot and not delivered, or in the table of a relay that
//! polls.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::timeout;

use crate::cli::config::{self, DAY, SourceSettings, duration};
use crate::cli::output::{
    Grid, Outcome, Output, age, cell, labelled, notes, or_dash, print_report, time,
};
use crate::cli::peek::{Peek, Reading, Route, Subject, value};
use crate::cli::progress::Bar;
use crate::poll::select::extent;
use crate::poll::{Reader, Selection, table_facts};
use crate::postgres::table;
use crate::relay::{can_be_read, polls_because};
use crate::sink::json_of;
use crate::source::row_key;
use crate::state;
use crate::upkeep::cleanup::published_of;
use walrelay_core::catch_up::Rows;
use walrelay_core::clock::now_us;
use walrelay_core::config::unit::{exact_duration, human_bytes};
use walrelay_core::config::{CopiedRows, OutboxConfig};
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result};
use walrelay_core::event::Event;
use walrelay_core::position::Lsn;

#[derive(Debug, Args)]
pub(crate) struct PendingArgs {
    #[command(flatten)]
    pub settings: SourceSettings,
    /// Show the first events, one by one
    #[arg(
        long,
        value_name = "EVENTS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=10_000)
    )]
    pub show: u32,
    /// Print the payload of each shown event, too
    #[arg(long)]
    pub payload: bool,
    /// Stop reading the slot after this time, and print what was read
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = duration(Duration::from_millis(1)..=DAY, "30s or 5m")
    )]
    pub timeout: Duration,
    #[command(flatten)]
    pub output: Output,
}

pub(super) const HELP: &str = "\
Examples:
  walrelay pending --slot orders
  walrelay pending --config walrelay.toml --show 10
  walrelay pending --config walrelay.toml --show 1 --payload
  walrelay pending --config walrelay.toml --json | jq .events

The command consumes nothing: a relay that starts later delivers all these events. It reads the \
slot from its confirmed LSN up to the present end of the WAL, so no other session may have the \
slot; a relay that starts meanwhile gets the slot within a second or two, and the command prints \
what it has read. It leaves out what is delivered according to the stored position, and says where \
it cannot read that. Parked events are not in the slot: `parked list` shows them. With --mode poll, it \
counts the unpublished rows of the table. The role needs the rights of run.

Exit codes:
  0   done, whether or not events are pending
  2   the configuration is not valid
  10  Postgres cannot be reached (11: refuses), or the slot is not read within --timeout
  12  the server is not fit for logical replication
  13  a relay, or another session, has the slot or waits for it
  14  the slot is missing, lost, or not walrelay's
  15  publication or table do not fit
  16  a relay polls the table, and walrelay cannot tell which rows are published
  20  an event cannot be decoded, and those before it are printed";

/// The most groups that are counted apart: aggregate types come from rows, and rows must not grow
/// memory.
const GROUPS_MAX: usize = 1_000;
const NAME_CHARS_MAX: usize = 200;
/// Characters of a payload in the table; the data forms have all of it.
const PAYLOAD_CHARS_MAX: usize = 1_000;

pub(super) async fn pending(args: &PendingArgs) -> Outcome {
    let settings = config::read(&args.settings, &args.settings.relay.common.file)?;
    let mut subject = Subject::look(&settings, "pending").await?;
    if let Some(why) = polls_because(&subject.source, &subject.facts) {
        let report = polled(subject, &why).await?;
        return print_report(args.output, &report, &report.text(now_us() / 1_000));
    }
    for outbox in &mut subject.outboxes {
        if let Some(name) = outbox.source.table()
            && let Some(table) = table::read(subject.sql.client(), name).await?
        {
            outbox.xid_column = table.xid_column().map(|column| column.name.clone());
        }
    }
    let slot = subject.source.slot.to_string();
    let mut notes = Vec::new();
    let mut peek = Box::pin(Peek::at_slot(subject, Some(&mut notes))).await?;
    let report = Report {
        slot,
        from_lsn: Some(peek.start.end_lsn),
        to_lsn: peek.until,
        notes,
        ..Report::default()
    };
    let mut tally = Tally {
        shown_max: args.show as usize,
        with_payload: args.payload,
        groups: BTreeMap::new(),
        report,
    };
    let mut bar = Bar::new(args.output);
    let slot = tally.report.slot.clone();
    let mut stop = std::pin::pin!(stopped(peek.wanted(), slot, args.timeout));
    let read = loop {
        match peek
            .read_unless(&mut stop, &mut |route, event| tally.add(route, event))
            .await
        {
            Ok(Reading::More) => bar.at(tally.report.events, None, || "events read".to_owned()),
            Ok(Reading::Over) => break Ok(()),
            Ok(Reading::Stopped(error)) | Err(error) => break Err(error),
        }
    };
    drop(bar);
    peek.end().await;
    let report = Report {
        complete: read.is_ok(),
        ..tally.report
    }
    .with_groups(tally.groups.into_values().collect());
    print_report(args.output, &report, &report.text(now_us() / 1_000))?;
    Ok(read?)
}

/// Waits for a reason not to read on: a relay wants the slot, or it takes too long.
async fn stopped(wanted: impl Future<Output = ()>, slot: String, limit: Duration) -> Error {
    match timeout(limit, wanted).await {
        Ok(()) => Error::new(
            Kind::SlotActive,
            format!("a relay waits for slot {slot}, and gets it: not all was read"),
        )
        .remedy(
            Remedy::from("`")
                .and(NextCommand::new("status").option("slot", &slot))
                .and("` shows the lag of the relay"),
        ),
        Err(_) => {
            let cause = format!(
                "not all of slot {slot} was read within {}",
                exact_duration(limit)
            );
            Error::new(Kind::PostgresUnreachable, cause)
                .remedy("read for longer with --timeout, while no relay works")
        }
    }
}

/// The fields are the keys of `--json`.
#[derive(Debug, Clone, Default, Serialize)]
struct Report {
    slot: String,
    /// Events of transactions that end after this LSN are counted. None of a table.
    from_lsn: Option<Lsn>,
    to_lsn: Option<Lsn>,
    /// Whether everything was counted. If not, an error follows.
    complete: bool,
    events: u64,
    /// Of the records: keys, values and headers. None of a table.
    bytes: Option<u64>,
    /// Events that cannot be routed. A relay acts on them by `delivery.on_error`.
    unroutable: u64,
    /// The commit time of the oldest event; of a table, the time in the row.
    oldest_at: Option<String>,
    oldest_age_seconds: Option<i64>,
    groups: Vec<Group>,
    shown: Vec<Shown>,
    notes: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize)]
struct Group {
    #[serde(flatten)]
    key: GroupKey,
    events: u64,
    bytes: Option<u64>,
    oldest_at: Option<String>,
    #[serde(skip)]
    oldest_ms: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct GroupKey {
    outbox: String,
    /// None where the table has no such column.
    aggregate_type: Option<String>,
    /// None where the events cannot be routed, and of a table.
    topic: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Shown {
    id: String,
    #[serde(flatten)]
    group: GroupKey,
    aggregate_id: Option<String>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    commit_lsn: Lsn,
    index: u64,
    xid: Option<u32>,
    committed_at: Option<String>,
    bytes: Option<u64>,
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<serde_json::Value>,
}

struct Tally {
    shown_max: usize,
    with_payload: bool,
    groups: BTreeMap<GroupKey, Group>,
    report: Report,
}

impl Tally {
    fn add(&mut self, Route { outbox, router }: &mut Route, event: &Event<'_>) -> Result<()> {
        if outbox.upkeep.copied_rows == CopiedRows::Skip && event.is_copied() {
            return Ok(());
        }
        let text =
            |column: &str| value(event, outbox, column).map(|value| cell(value, NAME_CHARS_MAX));
        let committed_ms = event.committed_at_us / 1_000;
        let mut shown = Shown {
            id: cell(event.id(), NAME_CHARS_MAX),
            group: GroupKey {
                outbox: outbox.source.to_string(),
                aggregate_type: text(&outbox.names.aggregatetype),
                topic: None,
            },
            aggregate_id: text(&outbox.names.aggregateid),
            event_type: text(&outbox.names.event_type),
            commit_lsn: event.place.commit_lsn,
            index: event.place.index,
            xid: event.xid,
            committed_at: time(committed_ms),
            bytes: None,
            error: None,
            payload: None,
        };
        let is_shown = self.report.shown.len() < self.shown_max;
        match router.route(event) {
            Ok(routed) => routed.with_record(|record| {
                shown.group.topic = Some(record.topic.to_owned());
                shown.bytes = Some(record.bytes() as u64);
                shown.payload = (is_shown && self.with_payload).then(|| json_of(record.value));
            }),
            Err(error) => {
                self.report.unroutable += 1;
                shown.error = Some(error.problem.to_string());
            }
        }
        self.count(
            shown.group.clone(),
            committed_ms,
            shown.bytes.unwrap_or_default(),
        );
        self.report.shown.extend(Some(shown).filter(|_| is_shown));
        Ok(())
    }

    fn count(&mut self, key: GroupKey, committed_ms: i64, bytes: u64) {
        let is_left_out = self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&key);
        let key = if is_left_out {
            GroupKey {
                outbox: "(others)".to_owned(),
                ..GroupKey::default()
            }
        } else {
            key
        };
        let group = self.groups.entry(key.clone()).or_insert_with(|| Group {
            key,
            ..Group::default()
        });
        group.events += 1;
        group.bytes = Some(group.bytes.unwrap_or_default() + bytes);
        group.oldest_ms = Some(
            group
                .oldest_ms
                .map_or(committed_ms, |oldest| oldest.min(committed_ms)),
        );
        self.report.events += 1;
    }
}

impl Report {
    fn with_groups(mut self, mut groups: Vec<Group>) -> Report {
        for group in &mut groups {
            group.oldest_at = group.oldest_ms.and_then(time);
        }
        groups.sort_by_key(|group| std::cmp::Reverse(group.events));
        let oldest_ms = groups.iter().filter_map(|group| group.oldest_ms).min();
        self.events = groups.iter().map(|group| group.events).sum();
        self.bytes = self
            .from_lsn
            .map(|_| groups.iter().filter_map(|group| group.bytes).sum());
        self.oldest_at = oldest_ms.and_then(time);
        self.oldest_age_seconds =
            oldest_ms.map(|oldest_ms| (now_us() / 1_000 - oldest_ms).max(0) / 1_000);
        self.groups = groups;
        self
    }

    fn text(&self, now_ms: i64) -> String {
        let size = |bytes: Option<u64>| or_dash(bytes.map(human_bytes));
        let unroutable = match self.unroutable {
            0 => String::new(),
            events => format!(", and {events} of them cannot be routed"),
        };
        let oldest = self
            .oldest_at
            .as_ref()
            .zip(self.groups.iter().filter_map(|group| group.oldest_ms).min());
        let mut rows = vec![("slot", self.slot.clone())];
        if let Some((from, to)) = self.from_lsn.zip(self.to_lsn) {
            rows.extend([
                ("range", format!("after {from} up to {to}")),
                ("size", size(self.bytes)),
            ]);
        }
        rows.push(("events", format!("{}{unroutable}", self.events)));
        rows.push((
            "oldest",
            or_dash(oldest.map(|(at, ms)| format!("{at}, {} ago", age(ms, now_ms)))),
        ));
        let mut groups = Grid::headed("outbox, aggregate type, topic, events, size, oldest");
        let mut shown = Grid::headed(
            "id, aggregate, type, topic, committed at, commit LSN, index, xid, size, ",
        );
        for group in &self.groups {
            let key = &group.key;
            groups.row([
                &key.outbox,
                &or_dash(key.aggregate_type.as_ref()),
                &or_dash(key.topic.as_ref()),
                &group.events,
                &size(group.bytes),
                &or_dash(group.oldest_ms.map(|ms| age(ms, now_ms))),
            ]);
        }
        self.shown.iter().for_each(|event| event.add_to(&mut shown));
        labelled(rows) + &groups.section() + &shown.section() + &notes(&self.notes)
    }
}

impl Shown {
    /// The last cell has the error or the payload.
    fn add_to(&self, table: &mut Grid) {
        let payload = self.payload.as_ref().map(|payload| {
            let payload = payload
                .as_str()
                .map_or_else(|| payload.to_string(), str::to_owned);
            cell(payload.as_bytes(), PAYLOAD_CHARS_MAX)
        });
        let error = self
            .error
            .as_ref()
            .map(|error| format!("cannot be routed: {error}"));
        let last = error.or(payload).unwrap_or_default();
        let texts = [
            &self.aggregate_id,
            &self.event_type,
            &self.group.topic,
            &self.committed_at,
        ];
        let [aggregate_id, event_type, topic, at] = texts.map(|text| or_dash(text.as_ref()));
        table.row([
            &self.id,
            &aggregate_id,
            &event_type,
            &topic,
            &at,
            &self.commit_lsn,
            &self.index,
            &or_dash(self.xid),
            &or_dash(self.bytes.map(human_bytes)),
            &last,
        ]);
    }
}

/// Counts the unpublished rows of tables that a relay polls because of `why`.
/// Errors: those with which the relay would refuse to read a table; [`Kind::PositionMismatch`]
/// where nothing tells which rows are published.
async fn polled(subject: Subject, why: &str) -> Result<Report> {
    let config = subject.relay?;
    let client = subject.sql.client();
    let source = &config.source;
    let mut outboxes = config.outboxes.clone();
    row_key::find(client, source, &config.delivery, &mut outboxes).await?;
    let says_for_itself = |outbox: &OutboxConfig| outbox.upkeep.says_for_itself();
    let stored = if outboxes.iter().all(says_for_itself) {
        None
    } else {
        state::load(&config).await?
    };
    let reader = Reader::connect(&source.database, "walrelay pending").await?;
    reader.begin(None, &[]).await?;
    let mut groups = Vec::new();
    for outbox in &outboxes {
        let facts = table_facts(client, outbox).await?;
        can_be_read(&facts, outbox, &config, true)?;
        let published = match (says_for_itself(outbox), &stored) {
            (true, _) => None,
            (false, Some(stored)) => Some(published_of(client, stored.clone(), facts.oid).await?),
            (false, None) => {
                let cause = format!(
                    "no position is stored that tells which rows of {} are published",
                    facts.name
                );
                let remedy = Remedy::from("`")
                    .and(NextCommand::new("verify"))
                    .and("` compares the table with the topics");
                return Err(Error::new(Kind::PositionMismatch, cause).remedy(remedy));
            }
        };
        let Some(unpublished) = Rows::Unpublished.which(published.as_ref(), outbox) else {
            continue;
        };
        let (events, oldest, _) = reader
            .extent(&extent(&facts, outbox, &Selection::of(unpublished))?)
            .await?;
        let oldest: Option<jiff::Timestamp> = oldest.and_then(|oldest| oldest.parse().ok());
        let key = GroupKey {
            outbox: facts.name.to_string(),
            ..GroupKey::default()
        };
        groups.push(Group {
            key,
            events,
            oldest_ms: oldest.map(jiff::Timestamp::as_millisecond),
            ..Group::default()
        });
    }
    let notes = vec![format!(
        "a relay reads the table: {why}. The events are its unpublished rows, of any topic"
    )];
    let report = Report {
        slot: source.slot.to_string(),
        complete: true,
        notes,
        ..Report::default()
    };
    Ok(report.with_groups(groups))
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_core::testing::{COLUMNS, Lab, outbox};

    const NOON_US: i64 = 1_772_366_400_000_000;
    const HOUR_MS: i64 = 3_600_000;

    fn tally(shown_max: usize, with_payload: bool) -> Tally {
        let from_lsn = Some(Lsn::new(0x10));
        let to_lsn = Some(Lsn::new(0x100));
        let report = Report {
            slot: "orders".to_owned(),
            from_lsn,
            to_lsn,
            ..Report::default()
        };
        Tally {
            shown_max,
            with_payload,
            groups: BTreeMap::new(),
            report,
        }
    }

    fn add(tally: &mut Tally, id: &str, aggregate_type: &str, minutes: i64) {
        let mut route = Route::new(outbox()).unwrap();
        let values = [
            id,
            aggregate_type,
            "o-1",
            "OrderPlaced",
            "{\"card\": \"canary\"}",
        ]
        .map(Some);
        let lab = Lab::new(&route.outbox, &COLUMNS, &values);
        let event = Event {
            committed_at_us: NOON_US + minutes * 60_000_000,
            xid: Some(7),
            ..lab.event()
        };
        tally.add(&mut route, &event).unwrap();
    }

    fn finished(tally: Tally) -> Report {
        Report {
            complete: true,
            ..tally.report
        }
        .with_groups(tally.groups.into_values().collect())
    }

    #[test]
    fn events_are_counted_by_type_and_topic_and_the_first_ones_are_shown() {
        let mut tally = tally(2, false);
        for (number, (aggregate_type, minutes)) in [("a b", 3), ("order", 1), ("order", 2)]
            .into_iter()
            .enumerate()
        {
            add(&mut tally, &format!("{number}"), aggregate_type, minutes);
        }
        let report = finished(tally);
        insta::assert_snapshot!(report.text(NOON_US / 1_000 + HOUR_MS), @r#"
        slot    orders
        range   after 0/10 up to 0/100
        size    94 B
        events  3, and 1 of them cannot be routed
        oldest  2026-03-01T12:01:00.000Z, 59m ago

        outbox         aggregate type  topic               events  size  oldest
        public.outbox  order           outbox.event.order  2       94 B  59m
        public.outbox  a b             -                   1       0 B   57m

        id  aggregate  type         topic               committed at              commit LSN  index  xid  size
        0   o-1        OrderPlaced  -                   2026-03-01T12:03:00.000Z  0/64        3      7    -     cannot be routed: template "outbox.event.{aggregatetype}" makes topic "outbox.event.a b", which holds other characters than a-z, A-Z, 0-9 and ._-, which are all that a topic may have
        1   o-1        OrderPlaced  outbox.event.order  2026-03-01T12:01:00.000Z  0/64        3      7    47 B
        "#);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            (&json["groups"][0]["topic"], &json["groups"][0]["bytes"]),
            (&"outbox.event.order".into(), &94.into())
        );
        assert_eq!(
            (&json["shown"][1]["type"], &json["complete"]),
            (&"OrderPlaced".into(), &true.into())
        );
        assert!(
            !json.to_string().contains("canary") && json["oldest_age_seconds"].as_i64() > Some(0)
        );
    }

    #[test]
    fn a_payload_is_in_the_report_on_request_only() {
        let mut tally = tally(1, true);
        (0..2).for_each(|number| add(&mut tally, &format!("{number}"), "order", 0));
        let report = finished(tally);
        assert_eq!(
            report.shown[0].payload,
            Some("{\"card\": \"canary\"}".into())
        );
        assert!(
            report
                .text(NOON_US / 1_000)
                .contains("47 B  {\"card\": \"canary\"}\n")
        );
        assert_eq!(report.shown.len(), 1);
    }

    #[test]
    fn many_aggregate_types_share_a_group_after_the_first_thousand() {
        let mut tally = tally(0, false);
        (0..GROUPS_MAX + 5).for_each(|number| add(&mut tally, "1", &format!("type{number}"), 0));
        let report = finished(tally);
        assert_eq!(
            (report.groups.len(), report.events),
            (GROUPS_MAX + 1, GROUPS_MAX as u64 + 5)
        );
        assert_eq!(
            (
                report.groups[0].key.outbox.as_str(),
                report.groups[0].events
            ),
            ("(others)", 5)
        );
    }

    #[test]
    fn a_report_without_events_or_of_a_table_has_no_empty_lines() {
        let empty = finished(tally(3, false));
        assert!(empty.text(0).ends_with("oldest  -\n"), "{}", empty.text(0));
        let group = Group {
            events: 4,
            oldest_ms: Some(NOON_US / 1_000),
            ..Group::default()
        };
        let report = Report {
            slot: "orders".to_owned(),
            ..Report::default()
        }
        .with_groups(vec![group]);
        let text = report.text(NOON_US / 1_000);
        assert!(
            text.starts_with(
                "slot    orders\nevents  4\noldest  2026-03-01T12:00:00.000Z, 0s ago\n"
            ),
            "{text}"
        );
        assert_eq!((report.bytes, empty.bytes), (None, Some(0)));
    }
}
