//! `walrelay pending`: what is in the slot and not delivered, or in the table of a relay that polls.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;

use crate::cli::output::{Outcome, Output, ProgressReporter, age, aligned, cell, counted, notes, print_report, time};
use crate::cli::peek::{Peek, PeekArgs, Subject};
use crate::clock::now_us;
use crate::config::unit::human_bytes;
use crate::config::{Config, OutboxConfig};
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::event::Event;
use crate::poll::select::extent;
use crate::poll::{Reader, Selection, table_facts};
use crate::position::Lsn;
use crate::relay::{can_be_read, polls_because, which};
use crate::route::{Record, Router};
use crate::sink::json_of;
use crate::source::row_key;
use crate::state::{self, Rows, Stored};
use crate::upkeep::cleanup::published_of;

#[derive(Debug, Args)]
pub(crate) struct PendingArgs {
    #[command(flatten)]
    pub peek: PeekArgs,
    /// Show the first events, one by one
    #[arg(long, value_name = "EVENTS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=10_000))]
    pub show: u32,
    /// Print the payload of each shown event, too
    #[arg(long)]
    pub payload: bool,
    #[command(flatten)]
    pub output: Output,
}

pub(super) const HELP: &str = "\
Examples:
  walrelay pending --slot orders
  walrelay pending --config walrelay.toml --show 10
  walrelay pending --config walrelay.toml --show 1 --payload
  walrelay pending --config walrelay.toml --json | jq .events

The command consumes nothing: a relay that starts later delivers all these events. It reads the slot from its confirmed LSN up to the present end of the WAL, so no other session may have the slot; a relay that starts meanwhile stands by until the command ends. It leaves out what is delivered according to the stored position, and says where it cannot read that. Parked events are not in the slot: walrelay parked list. With --mode poll, it counts the unpublished rows of the table. The role needs the rights of run.

Exit codes:
  0   done, whether or not events are pending
  2   the configuration is not valid
  10  Postgres cannot be reached (11: refuses)
  12  the server is not fit for logical replication
  13  a relay, or another session, has the slot
  14  the slot is missing, lost, or not walrelay's
  15  publication or table do not fit
  16  a relay polls the table, and walrelay cannot tell which rows are published
  20  an event cannot be decoded, and those before it are printed";

/// The most groups that are counted apart: aggregate types come from rows, and rows must not grow memory.
const GROUPS_MAX: usize = 1_000;
const NAME_CHARS_MAX: usize = 200;
/// Characters of a payload in the table; the data forms have all of it.
const PAYLOAD_CHARS_MAX: usize = 1_000;

/// Prints the events that are not delivered, and how many there are.
pub(super) async fn pending(args: &PendingArgs) -> Outcome {
    let subject = Subject::look(&args.peek, "pending").await?;
    if let Some(why) = polls_because(&subject.source, &subject.facts) {
        let report = polled(subject, &why).await?;
        return print_report(args.output, &report, &report.text(now_us() / 1_000));
    }
    let mut notes = Vec::new();
    let mut peek = Box::pin(Peek::at_slot(subject, &mut notes)).await?;
    let (outboxes, routers) = (peek.outboxes().to_vec(), peek.routers()?);
    let (from_lsn, to_lsn) = peek.range();
    let report = Report { slot: peek.slot().to_string(), from_lsn: Some(from_lsn), to_lsn, notes, ..Report::default() };
    let (shown_max, with_payload) = (args.show as usize, args.payload);
    let mut tally = Tally { outboxes, routers, shown_max, with_payload, groups: BTreeMap::new(), report };
    let mut reporter = ProgressReporter::new();
    let read = loop {
        match peek.read(&mut |event| tally.add(event)).await {
            Ok(true) => reporter.report(|| tally.progress()),
            Ok(false) => {
                peek.end().await;
                break Ok(());
            }
            Err(error) => break Err(error),
        }
    };
    let report = tally.finished(read.is_ok());
    print_report(args.output, &report, &report.text(now_us() / 1_000))?;
    Ok(read?)
}

/// The fields are the keys of `--json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
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

/// The events of one outbox, aggregate type and topic.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
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

#[derive(Debug, Clone, PartialEq, Serialize)]
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
    /// Why the event cannot be routed.
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<serde_json::Value>,
}

/// The parts of a record that are counted or shown.
struct Routed {
    topic: String,
    bytes: u64,
    payload: Option<serde_json::Value>,
}

/// Counts events.
struct Tally {
    outboxes: Vec<OutboxConfig>,
    routers: Vec<Router>,
    shown_max: usize,
    with_payload: bool,
    groups: BTreeMap<GroupKey, Group>,
    report: Report,
}

impl Tally {
    fn add(&mut self, event: &Event<'_>) -> Result<()> {
        let found = self.outboxes.get(event.outbox).zip(self.routers.get_mut(event.outbox));
        let (outbox, router) = found.ok_or_else(|| Error::new(Kind::Bug, "an event of no configured outbox"))?;
        let is_shown = self.report.shown.len() < self.shown_max;
        let with_payload = is_shown && self.with_payload;
        let take = |record: &Record<'_>| Routed {
            topic: record.topic.to_owned(),
            bytes: record.bytes() as u64,
            payload: with_payload.then(|| json_of(record.value)),
        };
        let routed = router.route(event).map(|routed| routed.with_record(take)).map_err(|error| error.to_string());
        let text = |column: &str| {
            let value = outbox.index_of(column).and_then(|place| event.row.get(place));
            value.map(|value| cell(value, NAME_CHARS_MAX))
        };
        let key = GroupKey {
            outbox: outbox.source.to_string(),
            aggregate_type: text(&outbox.aggregate_type),
            topic: routed.as_ref().ok().map(|routed| routed.topic.clone()),
        };
        let committed_ms = event.committed_at_us / 1_000;
        let bytes = routed.as_ref().ok().map(|routed| routed.bytes);
        self.report.unroutable += u64::from(routed.is_err());
        if is_shown {
            let (payload, error) = match routed {
                Ok(routed) => (routed.payload, None),
                Err(error) => (None, Some(error)),
            };
            self.report.shown.push(Shown {
                id: cell(event.id(), NAME_CHARS_MAX),
                group: key.clone(),
                aggregate_id: text(&outbox.aggregate_id),
                event_type: text(&outbox.event_type),
                commit_lsn: event.place.commit_lsn,
                index: event.place.index,
                xid: event.xid,
                committed_at: time(committed_ms),
                bytes,
                error,
                payload,
            });
        }
        self.count(key, committed_ms, bytes.unwrap_or_default());
        Ok(())
    }

    fn count(&mut self, key: GroupKey, committed_ms: i64, bytes: u64) {
        let is_new = self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&key);
        let key = if is_new { GroupKey { outbox: "(others)".to_owned(), ..GroupKey::default() } } else { key };
        let group = self.groups.entry(key).or_default();
        group.events += 1;
        group.bytes = Some(group.bytes.unwrap_or_default() + bytes);
        group.oldest_ms = Some(group.oldest_ms.map_or(committed_ms, |oldest| oldest.min(committed_ms)));
        self.report.events += 1;
    }

    fn progress(&self) -> String {
        format!("{} so far", counted(self.report.events, "event"))
    }

    fn finished(self, complete: bool) -> Report {
        let groups = self.groups.into_iter().map(|(key, group)| Group { key, ..group }).collect();
        Report { complete, ..self.report }.with_groups(groups)
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
        self.bytes = self.from_lsn.map(|_| groups.iter().filter_map(|group| group.bytes).sum());
        self.oldest_at = oldest_ms.and_then(time);
        self.oldest_age_seconds = oldest_ms.map(|oldest_ms| (now_us() / 1_000 - oldest_ms).max(0) / 1_000);
        self.groups = groups;
        self
    }

    fn text(&self, now_ms: i64) -> String {
        let dash = || "-".to_owned();
        let lsn = |lsn: Option<Lsn>| lsn.map_or_else(dash, |lsn| lsn.to_string());
        let size = |bytes: Option<u64>| bytes.map_or_else(dash, human_bytes);
        let unroutable = match self.unroutable {
            0 => String::new(),
            events => format!(", and {events} of them cannot be routed"),
        };
        let oldest = self.groups.iter().filter_map(|group| group.oldest_ms).min();
        let ago = |ms: i64| format!("{}, {} ago", time(ms).unwrap_or_else(dash), age(ms, now_ms));
        let rows = [
            ("slot", self.slot.clone()),
            ("range", format!("after {} up to {}", lsn(self.from_lsn), lsn(self.to_lsn))),
            ("events", format!("{}{unroutable}", self.events)),
            ("size", size(self.bytes)),
            ("oldest", oldest.map_or_else(dash, ago)),
        ];
        let is_table = self.from_lsn.is_none();
        let rows = rows.into_iter().filter(|(name, _)| !is_table || !["range", "size"].contains(name));
        let rows: Vec<_> = rows.map(|(name, value)| [name.to_owned(), value]).collect();
        let mut text = aligned(&rows) + "\n";
        if !self.groups.is_empty() {
            let mut rows = vec![["outbox", "aggregate type", "topic", "events", "size", "oldest"].map(str::to_owned)];
            rows.extend(self.groups.iter().map(|group| {
                let GroupKey { outbox, aggregate_type, topic } = group.key.clone();
                let oldest = group.oldest_ms.map_or_else(dash, |ms| age(ms, now_ms));
                let events = group.events.to_string();
                let (aggregate_type, topic) = (aggregate_type.unwrap_or_else(dash), topic.unwrap_or_else(dash));
                [outbox, aggregate_type, topic, events, size(group.bytes), oldest]
            }));
            text.push_str(&format!("\n{}\n", aligned(&rows)));
        }
        if !self.shown.is_empty() {
            let head = ["id", "aggregate", "type", "topic", "committed at", "commit LSN", "index", "xid", "size", ""];
            let rows = self.shown.iter().map(Shown::cells);
            let rows: Vec<_> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
            text.push_str(&format!("\n{}\n", aligned(&rows)));
        }
        text + &notes(&self.notes)
    }
}

impl Shown {
    /// The last cell has the error or the payload.
    fn cells(&self) -> [String; 10] {
        let dash = || "-".to_owned();
        let text = |text: &Option<String>| text.clone().unwrap_or_else(dash);
        let payload = self.payload.as_ref().map(|payload| {
            let payload = payload.as_str().map_or_else(|| payload.to_string(), str::to_owned);
            cell(payload.as_bytes(), PAYLOAD_CHARS_MAX)
        });
        let error = self.error.as_ref().map(|error| format!("cannot be routed: {error}"));
        [
            self.id.clone(),
            text(&self.aggregate_id),
            text(&self.event_type),
            text(&self.group.topic),
            text(&self.committed_at),
            self.commit_lsn.to_string(),
            self.index.to_string(),
            self.xid.map_or_else(dash, |xid| xid.to_string()),
            self.bytes.map_or_else(dash, human_bytes),
            error.or(payload).unwrap_or_default(),
        ]
    }
}

/// Counts the unpublished rows of tables that a relay polls because of `why`.
///
/// # Errors
/// Those with which the relay would refuse to read a table; [`Kind::PositionMismatch`] where nothing tells which rows are
/// published.
async fn polled(subject: Subject, why: &str) -> Result<Report> {
    let Config { source, delivery, mut outboxes, .. } = subject.relay.clone()?;
    let client = subject.sql.client();
    row_key::find(client, &source, &delivery, &mut outboxes).await?;
    let stored = match outboxes.iter().all(|outbox| outbox.upkeep.says_for_itself()) {
        true => None,
        false => state::load(subject.relay.as_ref().map_err(Clone::clone)?).await?,
    };
    let reader = Reader::connect(&source.database, "walrelay pending").await?;
    reader.begin(None, &[]).await?;
    let mut groups = Vec::new();
    for outbox in &outboxes {
        let facts = table_facts(client, outbox).await?;
        can_be_read(&facts, outbox, subject.relay.as_ref().map_err(Clone::clone)?, true)?;
        let published = match outbox.upkeep.says_for_itself() {
            true => None,
            false => Some(published_of(client, known(stored.as_ref())?, facts.oid).await?),
        };
        let Some(unpublished) = which(&Rows::Unpublished, published.as_ref(), outbox) else { continue };
        let (events, oldest, _) = reader.extent(&extent(&facts, outbox, &Selection::of(unpublished))?).await?;
        let oldest: Option<jiff::Timestamp> = oldest.and_then(|oldest| oldest.parse().ok());
        let key = GroupKey { outbox: facts.name.to_string(), ..GroupKey::default() };
        let oldest_ms = oldest.map(jiff::Timestamp::as_millisecond);
        groups.push(Group { key, events, oldest_ms, ..Group::default() });
    }
    let notes = vec![format!("the relay reads the table: {why}. The events are its unpublished rows, of any topic")];
    let report = Report { slot: source.slot.to_string(), complete: true, notes, ..Report::default() };
    Ok(report.with_groups(groups))
}

fn known(stored: Option<&Stored>) -> Result<Stored> {
    stored.cloned().ok_or_else(|| {
        let cause = "no position is stored, so walrelay cannot tell which rows of the table are published";
        Error::new(Kind::PositionMismatch, cause)
            .remedy(Remedy::from("compare the table with the topics: ").and(NextCommand::new("verify")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tests::{COLUMNS, Lab, outbox};

    const NOON_US: i64 = 1_772_366_400_000_000;
    const HOUR_MS: i64 = 3_600_000;

    fn tally(shown_max: usize, with_payload: bool) -> Tally {
        let mut outbox = outbox();
        let described = [&outbox.aggregate_type, &outbox.aggregate_id, &outbox.event_type].map(Clone::clone);
        outbox.name_rows_by(&described, None);
        let routers = vec![Router::new(&outbox).unwrap()];
        let (from_lsn, to_lsn) = (Some(Lsn::new(0x10)), Some(Lsn::new(0x100)));
        let report = Report { slot: "orders".to_owned(), from_lsn, to_lsn, ..Report::default() };
        Tally { outboxes: vec![outbox], routers, shown_max, with_payload, groups: BTreeMap::new(), report }
    }

    fn add(tally: &mut Tally, id: &str, aggregate_type: &str, minutes: i64) {
        let values = [id, aggregate_type, "o-1", "OrderPlaced", "{\"card\": \"canary\"}"].map(Some);
        let lab = Lab::new(&tally.outboxes[0], &COLUMNS, &values);
        let event = Event { committed_at_us: NOON_US + minutes * 60_000_000, xid: Some(7), ..lab.event() };
        tally.add(&event).unwrap();
    }

    #[test]
    fn events_are_counted_by_type_and_topic_and_the_first_ones_are_shown() {
        let mut tally = tally(2, false);
        for (number, (aggregate_type, minutes)) in [("a b", 3), ("order", 1), ("order", 2)].into_iter().enumerate() {
            add(&mut tally, &format!("{number}"), aggregate_type, minutes);
        }
        let report = tally.finished(true);
        insta::assert_snapshot!(report.text(NOON_US / 1_000 + HOUR_MS), @r#"
        slot    orders
        range   after 0/10 up to 0/100
        events  3, and 1 of them cannot be routed
        size    86 B
        oldest  2026-03-01T12:01:00.000Z, 59m ago

        outbox         aggregate type  topic               events  size  oldest
        public.outbox  order           outbox.event.order  2       86 B  59m
        public.outbox  a b             -                   1       0 B   57m

        id  aggregate  type         topic               committed at              commit LSN  index  xid  size
        0   o-1        OrderPlaced  -                   2026-03-01T12:03:00.000Z  0/64        3      7    -     cannot be routed: event at index 3 of the transaction at 0/64, row "0": template "outbox.event.{aggregatetype}" makes topic "outbox.event.a b", which holds other characters than a-z, A-Z, 0-9, dot, underscore and hyphen, which are all Kafka takes
        1   o-1        OrderPlaced  outbox.event.order  2026-03-01T12:01:00.000Z  0/64        3      7    43 B
        "#);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            (&json["groups"][0]["topic"], &json["groups"][0]["bytes"]),
            (&"outbox.event.order".into(), &86.into())
        );
        assert_eq!((&json["shown"][1]["type"], &json["complete"]), (&"OrderPlaced".into(), &true.into()));
        assert!(!json.to_string().contains("canary") && json["oldest_age_seconds"].as_i64() > Some(0));
    }

    #[test]
    fn a_payload_is_in_the_report_on_request_only() {
        let mut tally = tally(1, true);
        (0..2).for_each(|number| add(&mut tally, &format!("{number}"), "order", 0));
        let report = tally.finished(false);
        assert_eq!(report.shown[0].payload, Some("{\"card\": \"canary\"}".into()));
        assert!(report.text(NOON_US / 1_000).contains("43 B  {\"card\": \"canary\"}\n"));
        assert!(report.shown.len() == 1 && !report.complete);
    }

    #[test]
    fn many_aggregate_types_share_a_group_after_the_first_thousand() {
        let mut tally = tally(0, false);
        (0..GROUPS_MAX + 5).for_each(|number| add(&mut tally, "1", &format!("type{number}"), 0));
        let report = tally.finished(true);
        assert_eq!((report.groups.len(), report.events), (GROUPS_MAX + 1, GROUPS_MAX as u64 + 5));
        assert_eq!((report.groups[0].key.outbox.as_str(), report.groups[0].events), ("(others)", 5));
    }

    #[test]
    fn a_report_without_events_or_of_a_table_has_no_empty_lines() {
        let empty = tally(3, false).finished(true);
        assert!(empty.text(0).ends_with("oldest  -\n"), "{}", empty.text(0));
        let group = Group { events: 4, oldest_ms: Some(NOON_US / 1_000), ..Group::default() };
        let report = Report { slot: "orders".to_owned(), ..Report::default() }.with_groups(vec![group]);
        let text = report.text(NOON_US / 1_000);
        assert!(text.starts_with("slot    orders\nevents  4\noldest  2026-03-01T12:00:00.000Z, 0s ago\n"), "{text}");
        assert_eq!((report.bytes, empty.bytes), (None, Some(0)));
    }
}
