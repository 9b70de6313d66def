//! The table `walrelay.parked`: events that wait for the relay. What is asked is written there, and the relay does it.

use std::collections::BTreeMap;

use clap::Args;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::event::{Column, Counts, Details, Event, Found, More, State, StoreCounts, error_text, name};
use super::filters::Span;
use super::help::{Help, PARKED};
use super::parked_plan::ParkedPlan;
use super::{Change, ChangeArgs, Chosen, ListArgs, SHOWN_MAX, ShowArgs, Store, agreed};
use crate::cli::Common;
use crate::cli::load::Loaded;
use crate::cli::output::{Outcome, print_report, warn};
use crate::cli::session::{Session, column};
use crate::cli::text::time;
use crate::clock::now_us;
use crate::config::SlotName;
use crate::error::{Error, Kind, Result};
use crate::postgres::fault::{self, While};
use crate::source::lease::holder;
use crate::upkeep::parked::{BEHIND, CLASSES};

const THERE: &str = include_str!("../../../sql/parked/there.sql");
const LIST: &str =
    concat!(include_str!("../../../sql/parked/chosen.sql"), include_str!("../../../sql/parked/list.sql"));
const SHOW: &str =
    concat!(include_str!("../../../sql/parked/chosen.sql"), include_str!("../../../sql/parked/show.sql"));
const COUNTS: &str =
    concat!(include_str!("../../../sql/parked/chosen.sql"), include_str!("../../../sql/parked/counts.sql"));
const PLAN: &str =
    concat!(include_str!("../../../sql/parked/chosen.sql"), include_str!("../../../sql/parked/plan.sql"));
const ASK: &str = include_str!("../../../sql/parked/ask.sql");

/// The table of parked events.
#[derive(Debug, Args)]
pub struct Parked {
    /// Of rows with one of these ids, as with --id
    #[arg(value_name = "ID")]
    pub named: Vec<String>,
    /// Slot, database, file.
    #[command(flatten)]
    pub common: Common,
}

impl Store for Parked {
    const HELP: Help = PARKED;
    const CLASSES: &'static [&'static str] = &CLASSES;
    const NOUN: &'static str = "event";
    type ChangeFlags = ();

    fn is_named(&self) -> bool {
        !self.named.is_empty()
    }

    async fn list(args: &ListArgs<Self>) -> Result<Found<Event>> {
        let table = Table::open(&args.chosen).await?;
        // An event that is named is listed wherever it stands.
        let is_named = args.chosen.store.is_named() || !args.chosen.filters.id.is_empty();
        let is_all = args.all || is_named || args.chosen.filters.class.iter().any(|class| class == BEHIND);
        let rows = table.rows("listing parked events", LIST, &[&is_all, &i64::from(args.limit)]).await?;
        let is_full = rows.len() as u64 >= u64::from(args.limit);
        Ok(Found { is_all, is_full, ..table.found(&rows, event).await? })
    }

    async fn show(args: &ShowArgs<Self>) -> Result<Found<Details>> {
        let table = Table::open(&args.chosen).await?;
        let limit = i64::try_from(SHOWN_MAX).unwrap_or(i64::MAX);
        let rows = table.rows("reading parked events", SHOW, &[&args.payload, &limit]).await?;
        table.found(&rows, details).await
    }

    /// A retry is asked of the first event of each aggregate, a drop of exactly the events that match. In memory is a number
    /// for each of the 100 000 events that may wait.
    async fn change(args: &ChangeArgs<Self>, change: Change) -> Outcome {
        let table = Table::open(&args.chosen).await?;
        let counts = table.counts().await?;
        if let Some(error) = table.why_none(&counts) {
            return Err(error.into());
        }
        let relay = holder(table.session.client(), &table.slot).await?;
        let rows = table.rows("looking at parked events", PLAN, &[]).await?;
        let row = rows.first().ok_or_else(|| Error::new(Kind::Bug, "no row about parked events"))?;
        let ids = match change {
            Change::Retry => column(row, "heads")?,
            Change::Drop => column(row, "events")?,
        };
        let (dry_run, waiting, relay_runs) = (args.dry_run, count(row, "waiting")?, relay.is_some());
        let slot = table.slot.to_string();
        let mut plan = ParkedPlan { change, dry_run, counts, slot, waiting, ids, asked: 0, relay_runs };
        if !agreed(args, &plan, &plan.text(), plan.question()).await? {
            return Ok(());
        }
        let word = match change {
            Change::Retry => "retry",
            Change::Drop => "drop",
        };
        let asked = table.session.client().execute(ASK, &[&plan.slot, &plan.ids, &word]).await;
        plan.asked = asked.map_err(|error| fault::sql(While::Querying("asking in table walrelay.parked"), &error))?;
        print_report(args.chosen.json, &plan, &format!("{}\n", plan.said(relay.as_ref())))
    }
}

/// A session beside the table, and the conditions for its events.
#[derive(Debug)]
struct Table<'a> {
    session: Session,
    is_there: bool,
    slot: SlotName,
    chosen: &'a Chosen<Parked>,
    span: Span,
}

impl Table<'_> {
    async fn open(chosen: &Chosen<Parked>) -> Result<Table<'_>> {
        let span = chosen.filters.span(now_us() / 1_000)?;
        let common = &chosen.store.common;
        let loaded = Loaded::new(&common.flags(), common.config.as_deref())?;
        warn(loaded.settings.warnings());
        let (slot, database) = (loaded.settings.slot()?, loaded.settings.database()?);
        let session = Session::connect(&database, "parked").await?;
        let row = session.row("looking for table walrelay.parked", THERE, &[]).await?;
        let is_there = row.is_some_and(|row| row.try_get(0).unwrap_or(false));
        Ok(Table { session, is_there, slot, chosen, span })
    }

    /// Rows of a query that begins with `sql/parked/chosen.sql`; none where there is no table.
    async fn rows(&self, what: &str, sql: &str, more: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        if !self.is_there {
            return Ok(Vec::new());
        }
        let Chosen { store, filters, .. } = self.chosen;
        let any = |texts: &[String]| (!texts.is_empty()).then(|| texts.to_vec());
        let any_bytes =
            |texts: &[String]| any(texts).map(|texts| texts.into_iter().map(String::into_bytes).collect::<Vec<_>>());
        let chosen: [&(dyn ToSql + Sync); 8] = [
            &self.slot.as_str(),
            &any_bytes(&[&store.named[..], &filters.id[..]].concat()),
            &any_bytes(&filters.aggregate),
            &any(&filters.class),
            &any(&filters.topic),
            &any(&filters.outbox),
            &self.span.since_ms,
            &self.span.until_ms,
        ];
        self.session.rows(what, sql, &[&chosen[..], more].concat()).await
    }

    async fn counts(&self) -> Result<Counts> {
        let (mut matched, mut aggregates, mut classes) = (0, 0, BTreeMap::new());
        for row in self.rows("counting parked events", COUNTS, &[]).await? {
            let events = count(&row, "events")?;
            match column::<Option<String>>(&row, "class")? {
                Some(class) => _ = classes.insert(class, events),
                None => (matched, aggregates) = (events, count(&row, "aggregates")?),
            }
        }
        Ok(Counts { matched, classes, store: StoreCounts::Parked { slot: self.slot.to_string(), aggregates } })
    }

    async fn found<E>(&self, rows: &[Row], read: fn(&Row) -> Result<E>) -> Result<Found<E>> {
        let counts = self.counts().await?;
        Ok(Found {
            why_none: self.why_none(&counts),
            counts,
            now_ms: rows.first().map(|row| column(row, "now_ms")).transpose()?.unwrap_or_default(),
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
        let is_filtered = self.chosen.store.is_named() || !self.chosen.filters.is_empty();
        Some(match (self.is_there, is_filtered) {
            (false, _) => nothing(format!(
                "nothing is parked for slot {slot}: this database has no table walrelay.parked"
            ))
            .remedy(
                "a relay with delivery.on_error = \"park\" makes the table; or this is not the database of the relay",
            ),
            (true, false) => nothing(format!("nothing is parked for slot {slot}")),
            (true, true) => nothing(format!("no parked event of slot {slot} matches")).remedy(
                "all conditions have to hold at once; an event is not parked any more once it is delivered or dropped",
            ),
        })
    }
}

fn event(row: &Row) -> Result<Event> {
    let (stored_ms, next_ms): (i64, Option<i64>) = (column(row, "parked_ms")?, column(row, "next_ms")?);
    Ok(Event {
        row_id: Some(name(column(row, "row_id")?)),
        outbox: Some(name(column::<&str>(row, "outbox")?.as_bytes())),
        key: column::<Option<&[u8]>>(row, "key")?.map(name),
        topic: column::<Option<&str>>(row, "topic")?.map(|topic| name(topic.as_bytes())),
        class: column(row, "class")?,
        error: column::<Option<&str>>(row, "error")?.map(error_text),
        attempts: u32::try_from(column::<i32>(row, "attempts")?).ok(),
        stored_at: time(stored_ms),
        state: State::Parked {
            next_try_at: next_ms.and_then(time),
            asked: column(row, "asked")?,
            behind: count(row, "behind")?,
            next_ms,
        },
        stored_ms: Some(stored_ms),
    })
}

fn details(row: &Row) -> Result<Details> {
    let names: Vec<String> = column(row, "names")?;
    let types: Vec<Option<String>> = column(row, "types")?;
    let sizes: Vec<Option<i32>> = column(row, "sizes")?;
    let texts: Option<Vec<Option<Vec<u8>>>> = column(row, "texts")?;
    let texts = texts.unwrap_or_default().into_iter().chain(std::iter::repeat(None));
    let columns = names.iter().zip(types).zip(sizes).zip(texts);
    let columns = columns.map(|(((of, type_name), bytes), text)| Column {
        name: name(of.as_bytes()),
        type_name,
        bytes,
        value: text.map(|text| String::from_utf8_lossy(&text).into_owned()),
    });
    let more = More::Parked {
        commit_lsn: column(row, "commit_lsn")?,
        index: column(row, "index")?,
        via: column(row, "via")?,
        committed_at: time(column(row, "committed_ms")?),
        before: count(row, "before")?,
        columns: columns.collect(),
    };
    Ok(Details { event: event(row)?, more })
}

fn count(row: &Row, name: &str) -> Result<u64> {
    column::<i64>(row, name).map(|count| u64::try_from(count).unwrap_or_default())
}
