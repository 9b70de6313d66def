//! `walrelay parked show`: all that is known of an event that waits. Values only where they are asked for.

use serde::Serialize;
use tokio_postgres::Row;

use super::list::{Listed, name};
use super::{ShowArgs, count, nothing, opened};
use crate::cli::given_up::time;
use crate::cli::output::{Outcome, aligned, print, print_json};
use crate::cli::session::column;
use crate::error::Result;

const SHOW: &str = include_str!("../../../sql/parked/show.sql");
/// An id may be in several outboxes.
const EVENTS_MAX: i64 = 20;

/// An event with its columns.
#[derive(Debug, Serialize)]
struct Event {
    #[serde(flatten)]
    listed: Listed,
    commit_lsn: String,
    index: i64,
    via: String,
    committed_at: Option<String>,
    /// Events of its aggregate that come before it.
    before: u64,
    columns: Vec<ShownColumn>,
    #[serde(skip)]
    behind: u64,
    #[serde(skip)]
    now_ms: i64,
}

#[derive(Debug, Serialize)]
struct ShownColumn {
    name: String,
    #[serde(rename = "type")]
    type_name: Option<String>,
    /// None where it is NULL.
    bytes: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
}

/// Shows an event that waits. Changes nothing.
///
/// # Errors
/// [`crate::error::Kind::NothingMatched`] where there is none; what Postgres gives.
pub(super) async fn show(args: &ShowArgs) -> Outcome {
    let (slot, session) = opened(&args.common).await?;
    let (name, id) = (slot.as_str(), args.id.as_bytes());
    let rows = session.rows("reading a parked event", SHOW, &[&name, &id, &args.payload, &EVENTS_MAX]).await?;
    let events: Vec<_> = rows.iter().map(Event::of).collect::<Result<_>>()?;
    if events.is_empty() {
        return Err(nothing(&slot, true).into());
    }
    if args.json {
        return print_json(&serde_json::json!({ "slot": name, "events": events }));
    }
    let texts: Vec<_> = events.iter().map(Event::text).collect();
    print(&texts.join("\n"))
}

impl Event {
    fn of(row: &Row) -> Result<Event> {
        let names: Vec<String> = column(row, "names")?;
        let types: Vec<Option<String>> = column(row, "types")?;
        let sizes: Vec<Option<i32>> = column(row, "sizes")?;
        let texts: Option<Vec<Option<Vec<u8>>>> = column(row, "texts")?;
        let texts = texts.unwrap_or_default().into_iter().chain(std::iter::repeat(None));
        let columns = names.iter().zip(types).zip(sizes).zip(texts);
        let columns = columns.map(|(((of, type_name), bytes), text)| ShownColumn {
            name: name(of.as_bytes()),
            type_name,
            bytes,
            value: text.map(|text| String::from_utf8_lossy(&text).into_owned()),
        });
        Ok(Event {
            listed: Listed::of(row)?,
            commit_lsn: column(row, "commit_lsn")?,
            index: column(row, "index")?,
            via: column(row, "via")?,
            committed_at: time(column(row, "committed_ms")?),
            before: count(row, "before")?,
            columns: columns.collect(),
            behind: count(row, "behind")?,
            now_ms: column(row, "now_ms")?,
        })
    }

    fn text(&self) -> String {
        let mut lines = self.listed.lines(self.now_ms);
        let committed = self.committed_at.as_deref().unwrap_or("-");
        lines.push(("aggregate", format!("{} before it, and {} behind it", self.before, self.behind)));
        lines.push(("position", format!("{}, index {}, from the {}", self.commit_lsn, self.index, self.via)));
        lines.push(("committed", committed.to_owned()));
        let rows: Vec<_> = lines.into_iter().map(|(name, text)| [name.to_owned(), text]).collect();
        let column = |column: &ShownColumn| {
            let size = column.bytes.map_or("NULL".to_owned(), |bytes| format!("{bytes} bytes"));
            [format!("  {}", column.name), column.type_name.clone().unwrap_or("-".to_owned()), size]
        };
        let columns: Vec<_> = self.columns.iter().map(column).collect();
        let mut text = format!("{}\ncolumns\n{}\n", aligned(&rows), aligned(&columns));
        for ShownColumn { name, value, .. } in &self.columns {
            let Some(value) = value else { continue };
            // A payload is not to steer the terminal it is printed on.
            let plain = |character: char| character.is_control() && !matches!(character, '\n' | '\t');
            let name = name.replace(char::is_control, " ");
            text += &format!("value of {name}\n{}\n", value.replace(plain, "\u{fffd}"));
        }
        text
    }
}
