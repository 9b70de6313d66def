//! The table `walrelay.parked`. `retry` and `drop` write a request into the table, and the relay
//! carries it out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::{
    Change, ChangeArgs, Chosen, Column, Counts, Details, ERROR_CHARS_MAX, Event, Found, ListArgs,
    Moment, SHOWN_MAX, ShowArgs, UNCHANGED,
};
use crate::cli::config;
use crate::cli::output::{Outcome, cut, note, print_report, time};
use crate::cli::progress::Bar;
use crate::cli::sql::{Range, column};
use crate::postgres::query::QueryError;
use crate::postgres::sql::SqlSession;
use crate::source::lease::{Holder, holder};
use walrelay_core::config::SlotName;
use walrelay_core::error::{Error, Kind, Result, both};
use walrelay_core::parked::BEHIND;
use walrelay_core::printable::counted;

const THERE: &str = include_str!("../../../sql/parked/there.sql");
/// The events that the flags select: all queries of events begin with it.
const CHOSEN: &str = include_str!("../../../sql/parked/chosen.sql");
const LIST: &str = include_str!("../../../sql/parked/list.sql");
const SHOW: &str = include_str!("../../../sql/parked/show.sql");
const COUNTS: &str = include_str!("../../../sql/parked/counts.sql");
const PLAN: &str = include_str!("../../../sql/parked/plan.sql");
const READABLE: &str = include_str!("../../../sql/parked/readable.sql");
const HOW_MANY: &str = include_str!("../../../sql/parked/how_many.sql");
const ASK: &str = include_str!("../../../sql/parked/ask.sql");
/// Rows of one transaction, which the relay may have to wait for.
const ASKED_AT_ONCE: usize = 1_000;
const NAME_CHARS_MAX: usize = 200;

/// Reads events, the oldest first, and counts all that match. That there are none is no error
/// without conditions.
pub(super) async fn list(args: &ListArgs) -> Result<Found> {
    let table = Table::open(&args.chosen).await?;
    // An event that is named is listed, also behind another one.
    let is_named = !args.chosen.named.is_empty() || !args.chosen.filters.id.is_empty();
    let is_all = args.all
        || is_named
        || args
            .chosen
            .filters
            .class
            .iter()
            .any(|class| class == BEHIND);
    let rows = table
        .rows(
            "listing parked events",
            LIST,
            &[&is_all, &i64::from(args.limit)],
        )
        .await?;
    let is_full = rows.len() as u64 >= u64::from(args.limit);
    let found = table.found(&rows, event).await?;
    let why_none = found.why_none.filter(|_| args.chosen.is_filtered());
    if !table.is_there && why_none.is_none() {
        note(
            "note: this database has no table walrelay.parked: a relay with delivery.on_error = \
             \"park\" creates it",
        );
    }
    Ok(Found {
        is_all,
        is_full,
        why_none,
        ..found
    })
}

/// Reads up to [`SHOWN_MAX`] events with all known fields.
pub(super) async fn show(args: &ShowArgs) -> Result<Found> {
    let table = Table::open(&args.chosen).await?;
    let limit = i64::try_from(SHOWN_MAX).unwrap_or(i64::MAX);
    let rows = table
        .rows("reading parked events", SHOW, &[&args.payload, &limit])
        .await?;
    table.found(&rows, detailed).await
}

/// Shows the plan of `change`, asks, and carries the plan out.
///
/// A retry goes to the first event of each aggregate, a drop to exactly the events that match.
/// Memory holds a number for each parked event, of which there are at most 100 000.
pub(super) async fn change(args: &ChangeArgs, change: Change) -> Outcome {
    let table = Table::open(&args.chosen).await?;
    let counts = table.counts().await?;
    if let Some(error) = table.why_none(&counts) {
        return Err(error.into());
    }
    let relay = holder(table.session.client(), &table.slot).await?;
    let word = change.word();
    let rows = table
        .rows("looking at parked events", PLAN, &[&word])
        .await?;
    let row = rows
        .first()
        .ok_or_else(|| Error::new(Kind::Bug, "no row about parked events"))?;
    let ids: Vec<i64> = column(row, "ids")?;
    if ids.is_empty() {
        let cause = "no such event waits for an attempt: each is behind one that is to be dropped";
        return Err(Error::new(Kind::NothingMatched, cause)
            .remedy("the relay tries it after the drop; a retry of that one takes the drop back")
            .into());
    }
    let mut plan = Request {
        change,
        dry_run: args.consent.dry_run,
        counts,
        waiting: count(row, "waiting")?,
        ids,
        asked: 0,
        relay_runs: relay.is_some(),
    };
    if !args
        .consent
        .given(&plan, &plan.text(), plan.question(), UNCHANGED)
        .await?
    {
        return Ok(());
    }
    let mut bar = Bar::new(args.consent.output);
    let of = plan.ids.len() as u64;
    // The newest first: as long as the head of an aggregate waits, the relay delivers none behind
    // it.
    for ids in plan.ids.rchunks(ASKED_AT_ONCE) {
        let doing = format!(
            "requesting {word} of {of} parked events, {} of which are requested",
            plan.asked
        );
        plan.asked += table.rows(&doing, ASK, &[&word, &ids]).await?.len() as u64;
        bar.at(plan.asked, Some(of), || "events requested".to_owned());
    }
    drop(bar);
    print_report(
        args.consent.output,
        &plan,
        &format!("{}\n", plan.result(relay.as_ref())),
    )
}

#[derive(Debug)]
struct Table<'a> {
    session: SqlSession,
    is_there: bool,
    slot: SlotName,
    chosen: &'a Chosen,
    range: Range,
}

impl Table<'_> {
    async fn open(chosen: &Chosen) -> Result<Table<'_>> {
        chosen.filters.has_classes()?;
        let common = &chosen.common;
        let settings = config::read(common, &common.file)?;
        let (slot, database) = both(settings.slot(), settings.database())?;
        let session = SqlSession::connect(&database, "walrelay parked").await?;
        let range = Range::read(session.client(), &chosen.filters.times()).await?;
        session.allow_long_statements().await?;
        let row = session
            .row("looking for table walrelay.parked", THERE, &[])
            .await?;
        let is_there = row.is_some_and(|row| row.try_get(0).unwrap_or(false));
        Ok(Table {
            session,
            is_there,
            slot,
            chosen,
            range,
        })
    }

    /// The rows of a query of the events in [`CHOSEN`]; none if there is no table.
    async fn rows(&self, what: &str, sql: &str, more: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        if !self.is_there {
            return Ok(Vec::new());
        }
        let Chosen { named, filters, .. } = self.chosen;
        let any = |texts: &[String]| (!texts.is_empty()).then(|| texts.to_vec());
        let any_bytes = |texts: &[String]| {
            any(texts).map(|texts| {
                texts
                    .into_iter()
                    .map(String::into_bytes)
                    .collect::<Vec<_>>()
            })
        };
        let chosen: [&(dyn ToSql + Sync); 8] = [
            &self.slot.as_str(),
            &any_bytes(&[&named[..], &filters.id[..]].concat()),
            &any_bytes(&filters.aggregate),
            &any(&filters.class),
            &any(&filters.topic),
            &any(&filters.outbox),
            &self.range.since,
            &self.range.until,
        ];
        self.session
            .rows(
                what,
                &format!("{CHOSEN}{sql}"),
                &[&chosen[..], more].concat(),
            )
            .await
    }

    async fn counts(&self) -> Result<Counts> {
        let mut matched = 0;
        let mut aggregates = 0;
        let mut classes = BTreeMap::new();
        for row in self.rows("counting parked events", COUNTS, &[]).await? {
            let events = count(&row, "events")?;
            match column::<Option<String>>(&row, "class")? {
                Some(class) => _ = classes.insert(class, events),
                None => (matched, aggregates) = (events, count(&row, "aggregates")?),
            }
        }
        Ok(Counts {
            matched,
            classes,
            slot: self.slot.to_string(),
            aggregates,
        })
    }

    async fn found(&self, rows: &[Row], read: fn(&Row) -> Result<Event>) -> Result<Found> {
        let counts = self.counts().await?;
        Ok(Found {
            why_none: self.why_none(&counts),
            counts,
            events: rows.iter().map(read).collect::<Result<_>>()?,
            is_all: true,
            is_full: false,
        })
    }

    fn why_none(&self, counts: &Counts) -> Option<Error> {
        if counts.matched > 0 {
            return None;
        }
        let slot = &self.slot;
        let nothing = |cause: String| Error::new(Kind::NothingMatched, cause);
        Some(match (self.is_there, self.chosen.is_filtered()) {
            (false, _) => nothing(format!(
                "nothing is parked for slot {slot}: this database has no table walrelay.parked"
            ))
            .remedy(
                "a relay with delivery.on_error = \"park\" creates the table; check that this is \
                 the database of the relay",
            ),
            (true, false) => nothing(format!("nothing is parked for slot {slot}")),
            (true, true) => nothing(format!("no parked event of slot {slot} matches")).remedy(
                "an event has to match all conditions; a delivered or dropped event is no longer \
                 parked",
            ),
        })
    }
}

fn event(row: &Row) -> Result<Event> {
    let now_ms = column(row, "now_ms")?;
    let moment = |ms| Moment { ms, now_ms };
    Ok(Event {
        row_id: head(column(row, "row_id")?, NAME_CHARS_MAX),
        outbox: head(column::<&str>(row, "outbox")?.as_bytes(), NAME_CHARS_MAX),
        key: column::<Option<&[u8]>>(row, "key")?.map(|key| head(key, NAME_CHARS_MAX)),
        topic: column::<Option<&str>>(row, "topic")?
            .map(|topic| head(topic.as_bytes(), NAME_CHARS_MAX)),
        stored_at: moment(column(row, "parked_ms")?),
        error: column::<Option<&str>>(row, "error")?
            .map(|error| head(error.as_bytes(), ERROR_CHARS_MAX)),
        attempts: column(row, "attempts")?,
        next_try_at: column::<Option<i64>>(row, "next_ms")?.map(moment),
        behind: count(row, "behind")?,
        class: column(row, "class")?,
        asked: column(row, "asked")?,
        details: None,
    })
}

fn head(bytes: &[u8], chars: usize) -> String {
    let head = bytes
        .get(..chars.saturating_add(1).saturating_mul(4))
        .unwrap_or(bytes);
    cut(&String::from_utf8_lossy(head), chars)
}

/// The event with all that is known.
fn detailed(row: &Row) -> Result<Event> {
    let names: Vec<String> = column(row, "names")?;
    let types: Vec<Option<String>> = column(row, "types")?;
    let sizes: Vec<Option<i32>> = column(row, "sizes")?;
    let texts: Option<Vec<Option<Vec<u8>>>> = column(row, "texts")?;
    let texts = texts
        .unwrap_or_default()
        .into_iter()
        .chain(std::iter::repeat(None));
    let columns =
        names
            .iter()
            .zip(types)
            .zip(sizes)
            .zip(texts)
            .map(|(((name, type_name), bytes), text)| Column {
                name: head(name.as_bytes(), NAME_CHARS_MAX),
                type_name,
                bytes,
                value: text.map(|text| String::from_utf8_lossy(&text).into_owned()),
            });
    let details = Details {
        committed_at: time(column(row, "committed_ms")?),
        before: count(row, "before")?,
        commit_lsn: column(row, "commit_lsn")?,
        index: column(row, "index")?,
        via: column(row, "via")?,
        columns: columns.collect(),
    };
    Ok(Event {
        details: Some(details),
        ..event(row)?
    })
}

fn count(row: &Row, name: &str) -> Result<u64> {
    column::<i64>(row, name).map(|count| u64::try_from(count).unwrap_or_default())
}

/// A retry or drop of parked events: the plan, and then the request.
#[derive(Debug, Serialize)]
struct Request {
    #[serde(rename = "ask")]
    change: Change,
    dry_run: bool,
    #[serde(flatten)]
    counts: Counts,
    /// All parked events of these aggregates.
    waiting: u64,
    /// The rows of the table that get the request.
    #[serde(skip)]
    ids: Vec<i64>,
    asked: u64,
    /// Whether a relay has the slot, or reads its table.
    relay_runs: bool,
}

impl Request {
    fn text(&self) -> String {
        let counts = self.counts.text();
        match self.change {
            Change::Retry => {
                let tried = self.ids.len() as u64;
                let behind = self.waiting.saturating_sub(tried);
                format!(
                    "{counts}\nTo be tried: {}, then {} behind\n",
                    counted(tried, "event"),
                    counted(behind, "event")
                )
            }
            Change::Drop => {
                let stay = self.waiting.saturating_sub(self.counts.matched);
                format!(
                    "{counts}\nTo be dropped: {}; the relay never delivers these events. {} of the \
                     same aggregates {}\n",
                    counted(self.ids.len() as u64, "event"),
                    counted(stay, "other event"),
                    if stay == 1 { "stays" } else { "stay" }
                )
            }
        }
    }

    fn question(&self) -> String {
        let count = self.ids.len() as u64;
        match self.change {
            Change::Retry => format!(
                "Have the relay of slot {} try {} again?",
                self.counts.slot,
                counted(count, "event")
            ),
            Change::Drop => format!(
                "Drop {}? The relay of slot {} never delivers these events.",
                counted(count, "event"),
                self.counts.slot
            ),
        }
    }

    /// The result in one line, and the relay that carries the request out.
    fn result(&self, relay: Option<&Holder>) -> String {
        let who = match relay {
            Some(relay) => format!("the relay ({relay}) carries this out within a second or so"),
            None => format!(
                "no relay has slot {} now: the next one carries this out",
                self.counts.slot
            ),
        };
        let word = self.change.word();
        let gone = (self.ids.len() as u64).saturating_sub(self.asked);
        let gone = if gone > 0 {
            let were = if gone == 1 { "was" } else { "were" };
            format!(
                "; {} {were} delivered meanwhile, or a drop was requested",
                counted(gone, "event")
            )
        } else {
            String::new()
        };
        let asked = counted(self.asked, "event");
        format!("{word} requested for {asked}{gone}; {who}")
    }
}

/// The parked events of a slot: two keys of `status --json`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct ParkedCount {
    /// None if there is no such table, or the role may not read it.
    #[serde(rename = "parked_events")]
    pub(crate) events: Option<i64>,
    #[serde(rename = "oldest_parked_seconds")]
    pub(crate) oldest_seconds: Option<f64>,
}

impl ParkedCount {
    /// Counts up to `max` events, where there is a limit.
    pub(crate) async fn read(
        session: &SqlSession,
        slot: &SlotName,
        max: Option<i64>,
    ) -> Result<ParkedCount, QueryError> {
        let row = session
            .row("looking for table walrelay.parked", READABLE, &[])
            .await?;
        if !row.is_some_and(|row| row.try_get(0).unwrap_or(false)) {
            return Ok(ParkedCount::default());
        }
        let row = session
            .row("counting parked events", HOW_MANY, &[&slot.as_str(), &max])
            .await?;
        let Some(row) = row else {
            return Ok(ParkedCount::default());
        };
        Ok(ParkedCount {
            events: column(&row, "events").map_err(QueryError::refused)?,
            oldest_seconds: column(&row, "oldest_seconds").map_err(QueryError::refused)?,
        })
    }

    /// The fate of the events after the slot is dropped; none if there are no events.
    pub(crate) fn stay_behind(&self, slot: &SlotName) -> Option<String> {
        let events = counted(
            u64::try_from(self.events?)
                .ok()
                .filter(|events| *events > 0)?,
            "event",
        );
        Some(format!(
            "{events} of slot {slot} wait in table walrelay.parked and stay there; list them with \
             walrelay parked list --slot \
             {slot}. A relay of a later slot {slot} delivers them, and does not start without \
             delivery.on_error = \"park\". If \
             nobody needs them: delete from walrelay.parked where slot = '{slot}'"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(change: Change, ids: usize) -> Request {
        let classes = [("behind".to_owned(), 3), ("too-large".to_owned(), 2)].into();
        let counts = Counts {
            matched: 5,
            classes,
            slot: "s".to_owned(),
            aggregates: 2,
        };
        let ids = (0..).take(ids).collect();
        Request {
            change,
            dry_run: false,
            counts,
            waiting: 1_205,
            ids,
            asked: 2,
            relay_runs: false,
        }
    }

    #[test]
    fn a_retry_counts_aggregates_and_a_drop_counts_events() {
        insta::assert_snapshot!(plan(Change::Retry, 2).text(), @r"
        5 events of 2 aggregates: 3 behind, 2 too-large
        To be tried: 2 events, then 1203 events behind
        ");
        insta::assert_snapshot!(plan(Change::Retry, 1).text(), @r"
        5 events of 2 aggregates: 3 behind, 2 too-large
        To be tried: 1 event, then 1204 events behind
        ");
        insta::assert_snapshot!(plan(Change::Drop, 5).text(), @r"
        5 events of 2 aggregates: 3 behind, 2 too-large
        To be dropped: 5 events; the relay never delivers these events. 1200 other events of the same aggregates stay
        ");
        let question = plan(Change::Drop, 5).question();
        assert_eq!(
            question,
            "Drop 5 events? The relay of slot s never delivers these events."
        );
        assert_eq!(
            plan(Change::Retry, 2).question(),
            "Have the relay of slot s try 2 events again?"
        );
    }

    #[test]
    fn the_result_names_the_relay_that_carries_out_the_request_and_when() {
        let relay = Holder {
            pid: 7,
            streams: true,
            application: None,
            client: None,
            stranger: None,
        };
        assert_eq!(
            plan(Change::Retry, 2).result(Some(&relay)),
            "retry requested for 2 events; the relay (backend pid 7, streams) carries this out \
             within a second or so"
        );
        assert_eq!(
            plan(Change::Drop, 3).result(None),
            "drop requested for 2 events; 1 event was delivered meanwhile, or a drop was \
             requested; no relay has slot s now: the next one carries this out"
        );
    }

    #[test]
    fn parked_events_that_remain_after_teardown_are_counted() {
        let slot: SlotName = "shop".parse().unwrap();
        let text = |events| {
            ParkedCount {
                events,
                oldest_seconds: None,
            }
            .stay_behind(&slot)
        };
        assert_eq!((text(None), text(Some(0))), (None, None));
        let text = text(Some(5)).unwrap();
        assert!(
            text.starts_with("5 events of slot shop wait") && text.ends_with("where slot = 'shop'"),
            "{text}"
        );
    }
}
