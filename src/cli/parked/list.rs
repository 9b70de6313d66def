//! `walrelay parked list`: a line for each event that holds up others, and counts. Never a payload.

use std::collections::BTreeMap;

use serde::Serialize;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::chosen::Chosen;
use super::{ListArgs, count, next_try, nothing, opened, slot_of};
use crate::cli::given_up::{age, cell, counted, cut, table, time, width};
use crate::cli::output::{Outcome, print, print_json};
use crate::cli::session::{Session, column};
use crate::error::{Kind, Result};
use crate::event::Shown;
use crate::upkeep::parked::{BEHIND, CLASSES};

const LIST: &str =
    concat!(include_str!("../../../sql/parked/chosen.sql"), include_str!("../../../sql/parked/list.sql"));
const COUNTS: &str =
    concat!(include_str!("../../../sql/parked/chosen.sql"), include_str!("../../../sql/parked/counts.sql"));

/// How much of a name or a key is kept.
const NAME_CHARS_MAX: usize = 200;
/// How much of what happened is kept.
const ERROR_CHARS_MAX: usize = 1_000;
/// Columns that are left out where there is no room for all, the first of them first.
const SPARE: [&str; 5] = ["topic", "error", "outbox", "key", "behind it"];
/// How much of a name a cell has.
const CELL_CHARS: usize = 40;

/// An event that waits, as much of it as is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    row_id: String,
    outbox: String,
    key: Option<String>,
    topic: Option<String>,
    class: String,
    error: Option<String>,
    attempts: i32,
    parked_at: Option<String>,
    next_try_at: Option<String>,
    asked: Option<String>,
    /// Events of its aggregate that come after it.
    behind: u64,
    #[serde(skip)]
    parked_ms: i64,
    #[serde(skip)]
    next_ms: Option<i64>,
}

/// What was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub(super) matched: u64,
    pub(super) aggregates: u64,
    pub(super) classes: BTreeMap<String, u64>,
}

/// What was found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Listing {
    slot: String,
    #[serde(flatten)]
    counts: Counts,
    events: Vec<Listed>,
    #[serde(skip)]
    now_ms: i64,
    /// Whether those are listed that wait behind another.
    #[serde(skip)]
    is_all: bool,
    /// Whether as many are listed as may be.
    #[serde(skip)]
    is_full: bool,
}

/// Lists events that wait. Changes nothing. In memory are those that are listed.
///
/// # Errors
/// [`crate::error::Kind::NothingMatched`] where there is none; [`crate::error::Kind::Config`]; what Postgres gives.
pub async fn list(args: &ListArgs) -> Outcome {
    args.choice.filters.has_classes(&CLASSES)?;
    let opened = opened(&args.common).await;
    if let Err(error) = &opened
        && args.json
        && error.kind() == Kind::NothingMatched
    {
        print_json(&Listing { slot: slot_of(&args.common)?.to_string(), ..Listing::default() })?;
    }
    let (slot, session) = opened?;
    let chosen = Chosen::new(&slot, &args.choice)?;
    let filters = &args.choice.filters;
    // One that is named is meant, wherever it stands.
    let is_all = args.all || !filters.id.is_empty() || filters.class.iter().any(|class| class == BEHIND);
    let mut listing = Listing { slot: slot.to_string(), is_all, ..Listing::default() };
    let limit = i64::from(args.limit);
    let more: [&(dyn ToSql + Sync); 2] = [&is_all, &limit];
    let values = [&chosen.values()[..], &more].concat();
    for row in session.rows("listing parked events", LIST, &values).await? {
        listing.now_ms = column(&row, "now_ms")?;
        listing.events.push(Listed::of(&row)?);
    }
    listing.is_full = listing.events.len() as u64 >= u64::from(args.limit);
    listing.counts = counts(&session, &chosen).await?;
    if args.json {
        print_json(&listing)?;
    } else if listing.counts.matched > 0 {
        print(&listing.text(width()))?;
    }
    match listing.counts.matched {
        0 => Err(nothing(&slot, !args.choice.is_empty()).into()),
        _ => Ok(()),
    }
}

/// Counts what is meant.
///
/// # Errors
/// What Postgres gives.
pub(super) async fn counts(session: &Session, chosen: &Chosen) -> Result<Counts> {
    let mut counts = Counts::default();
    for row in session.rows("counting parked events", COUNTS, &chosen.values()).await? {
        let events = count(&row, "events")?;
        match column::<Option<String>>(&row, "class")? {
            Some(class) => _ = counts.classes.insert(class, events),
            None => (counts.matched, counts.aggregates) = (events, count(&row, "aggregates")?),
        }
    }
    Ok(counts)
}

/// As much of a name or a key as is kept.
pub(super) fn name(bytes: &[u8]) -> String {
    let head = bytes.get(..NAME_CHARS_MAX.saturating_add(1).saturating_mul(4)).unwrap_or(bytes);
    cut(&String::from_utf8_lossy(head), NAME_CHARS_MAX)
}

impl Listed {
    /// Of names and keys 200 characters are kept, of what happened 1000.
    ///
    /// # Errors
    /// [`crate::error::Kind::Bug`] for a row of another query.
    pub(super) fn of(row: &Row) -> Result<Listed> {
        let (parked_ms, next_ms): (i64, Option<i64>) = (column(row, "parked_ms")?, column(row, "next_ms")?);
        Ok(Listed {
            row_id: name(column(row, "row_id")?),
            outbox: name(column::<&str>(row, "outbox")?.as_bytes()),
            key: column::<Option<&[u8]>>(row, "key")?.map(name),
            topic: column::<Option<&str>>(row, "topic")?.map(|topic| name(topic.as_bytes())),
            class: column(row, "class")?,
            error: column::<Option<&str>>(row, "error")?.map(|error| cut(error, ERROR_CHARS_MAX)),
            attempts: column(row, "attempts")?,
            parked_at: time(parked_ms),
            next_try_at: next_ms.and_then(time),
            asked: column(row, "asked")?,
            behind: count(row, "behind")?,
            parked_ms,
            next_ms,
        })
    }

    /// What happened, without the row, which a table names beside it.
    fn happened(&self) -> Option<&str> {
        let error = self.error.as_deref()?;
        let named = format!("row {}: ", Shown::of(self.row_id.as_bytes()));
        Some(error.split_once(&named).map_or(error, |(_, happened)| happened))
    }

    fn next(&self, now_ms: i64) -> String {
        next_try(&self.class, self.asked.as_deref(), self.next_ms, now_ms)
    }

    /// What is known of it, each with its name.
    pub(super) fn lines(&self, now_ms: i64) -> Vec<(&'static str, String)> {
        let text =
            |text: &Option<String>| text.as_ref().map_or("-".to_owned(), |text| cell(text.as_bytes(), ERROR_CHARS_MAX));
        let parked = text(&self.parked_at);
        vec![
            ("row id", cell(self.row_id.as_bytes(), NAME_CHARS_MAX)),
            ("outbox", cell(self.outbox.as_bytes(), NAME_CHARS_MAX)),
            ("key", text(&self.key)),
            ("topic", text(&self.topic)),
            ("parked", format!("{parked}, {} ago", age(self.parked_ms, now_ms))),
            ("class", cell(self.class.as_bytes(), NAME_CHARS_MAX)),
            ("error", text(&self.error)),
            ("attempts", self.attempts.to_string()),
            ("next try", self.next(now_ms)),
        ]
    }
}

impl Listing {
    /// For people.
    pub fn text(&self, width: Option<usize>) -> String {
        let head = ["age", "class", "outbox", "row id", "key", "topic", "attempts", "behind it", "next try", "error"];
        let name =
            |text: &Option<String>| text.as_ref().map_or("-".to_owned(), |text| cell(text.as_bytes(), CELL_CHARS));
        let row = |listed: &Listed| {
            [
                age(listed.parked_ms, self.now_ms),
                cell(listed.class.as_bytes(), CELL_CHARS),
                cell(listed.outbox.as_bytes(), CELL_CHARS),
                cell(listed.row_id.as_bytes(), CELL_CHARS),
                name(&listed.key),
                name(&listed.topic),
                listed.attempts.to_string(),
                listed.behind.to_string(),
                listed.next(self.now_ms),
                cell(listed.happened().unwrap_or("-").as_bytes(), ERROR_CHARS_MAX),
            ]
        };
        let rows: Vec<_> = std::iter::once(head.map(str::to_owned)).chain(self.events.iter().map(row)).collect();
        let lines = if self.events.is_empty() { String::new() } else { format!("{}\n\n", table(&rows, width, &SPARE)) };
        let listed = self.events.len() as u64;
        let unlisted = self.counts.matched.saturating_sub(listed);
        let more = match (unlisted, self.is_all) {
            (0, _) => String::new(),
            (_, true) => format!("The oldest {listed} are listed; --limit lists more.\n"),
            (_, false) if !self.is_full => format!("{listed} listed; --all lists those behind others, too.\n"),
            (_, false) => format!("{listed} listed; --all lists those behind others, too, and --limit more.\n"),
        };
        format!("{lines}{}\n{more}", self.counts.said())
    }
}

impl Counts {
    /// One line.
    pub(super) fn said(&self) -> String {
        let classes: Vec<_> = self
            .classes
            .iter()
            .map(|(class, count)| format!("{count} {}", cell(class.as_bytes(), CELL_CHARS)))
            .collect();
        let (events, aggregates) = (counted(self.matched, "event"), counted(self.aggregates, "aggregate"));
        format!("{events} of {aggregates}: {}", classes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_772_366_400_000;

    fn listed(row_id: &str, class: &str, behind: u64) -> Listed {
        Listed {
            row_id: row_id.to_owned(),
            outbox: "public.outbox".to_owned(),
            key: Some("order-17".to_owned()),
            topic: Some("orders".to_owned()),
            class: class.to_owned(),
            error: Some(format!("slot s: row \"{row_id}\": the broker takes no record this large")),
            attempts: 1,
            parked_at: time(NOW_MS - 5_000),
            next_try_at: None,
            asked: None,
            behind,
            parked_ms: NOW_MS - 5_000,
            next_ms: None,
        }
    }

    fn listing() -> Listing {
        let refused = Listed {
            attempts: 3,
            next_ms: Some(NOW_MS + 4_000),
            error: Some("topic a\u{1b} refuses".to_owned()),
            key: None,
            ..listed("8", "refused", 0)
        };
        let counts = Counts {
            matched: 1_205,
            aggregates: 2,
            classes: [("behind".to_owned(), 1_203), ("refused".to_owned(), 1), ("too-large".to_owned(), 1)].into(),
        };
        let events = vec![listed("7", "too-large", 1_203), refused];
        Listing { slot: "orders".to_owned(), counts, events, now_ms: NOW_MS, is_all: false, is_full: false }
    }

    #[test]
    fn an_aggregate_is_a_line_and_all_is_counted() {
        insta::assert_snapshot!(listing().text(None), @r"
        age  class      outbox         row id  key       topic   attempts  behind it  next try    error
        5s   too-large  public.outbox  7       order-17  orders  1         1203       when asked  the broker takes no record this large
        5s   refused    public.outbox  8       -         orders  3         0          in 4s       topic a\u{1b} refuses

        1205 events of 2 aggregates: 1203 behind, 1 refused, 1 too-large
        2 listed; --all lists those behind others, too.
        ");
        assert!(listing().text(Some(60)).lines().take(3).all(|line| line.chars().count() <= 60));
        let full = Listing { is_full: true, ..listing() };
        assert!(full.text(None).ends_with("--all lists those behind others, too, and --limit more.\n"));
        let all = Listing { is_all: true, ..listing() };
        assert!(all.text(None).ends_with("The oldest 2 are listed; --limit lists more.\n"));
    }

    #[test]
    fn the_json_has_the_counts_beside_the_events() {
        let json = serde_json::to_value(listing()).unwrap();
        assert_eq!((&json["matched"], &json["classes"]["behind"]), (&1_205.into(), &1_203.into()));
        assert_eq!((&json["events"][0]["behind"], &json["events"][1]["attempts"]), (&1_203.into(), &3.into()));
        assert_eq!(json["events"][0]["parked_at"], "2026-03-01T11:59:55.000Z");
    }
}
