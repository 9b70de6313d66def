//! An undelivered event as `list` and `show` print it: ids and keys, and the payload only with `--payload`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cli::text::{age, aligned, cell, counted, cut, table};
use crate::dead_letters as library;
use crate::error::Error;
use crate::upkeep::parked::BEHIND;

/// Characters kept of a name or a key.
pub(super) const NAME_CHARS_MAX: usize = 200;
/// Characters kept of an error.
const ERROR_CHARS_MAX: usize = 1_000;
/// Characters of a name in a cell of a table.
const CELL_CHARS: usize = 40;
/// The columns of a list, the most important first: a terminal cuts the others. A column without a value is left out.
const COLUMNS: [&str; 11] =
    ["age", "class", "row id", "dead letter", "state", "behind it", "attempts", "key", "topic", "outbox", "error"];

/// The fields of an event in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    pub(super) row_id: Option<String>,
    pub(super) outbox: Option<String>,
    pub(super) key: Option<String>,
    /// The topic it was to be sent to.
    pub(super) topic: Option<String>,
    pub(super) class: String,
    pub(super) error: Option<String>,
    pub(super) attempts: Option<u32>,
    /// When the event was parked, or its dead letter was written.
    pub(super) stored_at: Option<String>,
    #[serde(flatten)]
    pub(super) state: State,
    #[serde(skip)]
    pub(super) stored_ms: Option<i64>,
}

/// The fields that one of the stores has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum State {
    Parked {
        next_try_at: Option<String>,
        asked: Option<String>,
        /// Later events of the aggregate.
        behind: u64,
        #[serde(skip)]
        next_ms: Option<i64>,
    },
    DeadLetter {
        /// `PARTITION:OFFSET`.
        letter: String,
        slot: Option<String>,
        original_position: Option<String>,
        value_bytes: Option<usize>,
        omitted_value_bytes: Option<u64>,
        settled: Option<String>,
        /// The time in its marker; only `show` reads it.
        #[serde(skip_serializing_if = "Option::is_none")]
        settled_at: Option<String>,
    },
}

/// All known fields of an event.
#[derive(Debug, Serialize)]
pub struct Details {
    #[serde(flatten)]
    pub(super) event: Event,
    #[serde(flatten)]
    pub(super) more: More,
}

/// The further fields that one of the stores has.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum More {
    Parked {
        commit_lsn: String,
        index: i64,
        via: String,
        committed_at: Option<String>,
        /// Earlier events of the aggregate.
        before: u64,
        columns: Vec<Column>,
    },
    DeadLetter {
        /// The headers of the intended record.
        headers: Vec<Header>,
        /// The value as text, with `--payload`.
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<String>,
        /// The value in hexadecimal digits, with `--payload` if the value is not text.
        #[serde(skip_serializing_if = "Option::is_none")]
        value_hex: Option<String>,
    },
}

/// A column of the row.
#[derive(Debug, Serialize)]
pub(super) struct Column {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) type_name: Option<String>,
    /// None for NULL.
    pub(super) bytes: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<String>,
}

/// A header of the record.
#[derive(Debug, Serialize)]
pub(super) struct Header {
    pub(super) name: String,
    pub(super) value: Option<String>,
}

/// The number of events that match.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Counts {
    pub(super) matched: u64,
    pub(super) classes: BTreeMap<String, u64>,
    #[serde(flatten)]
    pub(super) store: StoreCounts,
}

/// The counts and the name of one of the stores.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(super) enum StoreCounts {
    Parked { slot: String, aggregates: u64 },
    DeadLetters { topic: String, settled: u64, other_slots: u64, foreign: u64 },
}

/// Events that match.
#[derive(Debug, Serialize)]
pub struct Found<E> {
    #[serde(flatten)]
    pub(super) counts: Counts,
    pub(super) events: Vec<E>,
    #[serde(skip)]
    pub(super) now_ms: i64,
    /// Whether the list has the events that only `--all` lists.
    #[serde(skip)]
    pub(super) is_all: bool,
    /// Whether the list has as many events as `--limit` allows.
    #[serde(skip)]
    pub(super) is_full: bool,
    /// The error if no event matches.
    #[serde(skip)]
    pub(super) why_none: Option<Error>,
}

/// The kept part of a name or a key.
pub(super) fn name(bytes: &[u8]) -> String {
    head(bytes, NAME_CHARS_MAX)
}

/// The kept part of an error.
pub(super) fn error_text(text: &str) -> String {
    head(text.as_bytes(), ERROR_CHARS_MAX)
}

fn head(bytes: &[u8], chars: usize) -> String {
    let head = bytes.get(..chars.saturating_add(1).saturating_mul(4)).unwrap_or(bytes);
    cut(&String::from_utf8_lossy(head), chars)
}

impl Event {
    /// The known fields with their names.
    fn fields(&self, now_ms: i64) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("row id", self.row_id.clone()),
            ("outbox", self.outbox.clone()),
            ("key", self.key.clone()),
            ("topic", self.topic.clone()),
            ("stored", self.stored_at.clone()),
            ("age", self.stored_ms.map(|stored_ms| age(stored_ms, now_ms))),
            ("class", Some(self.class.clone())),
            ("error", self.error.clone()),
            ("attempts", self.attempts.map(|attempts| attempts.to_string())),
            ("state", self.state.text(&self.class, now_ms)),
        ];
        match &self.state {
            State::Parked { behind, .. } => fields.push(("behind it", Some(behind.to_string()))),
            State::DeadLetter { letter, slot, original_position, value_bytes, omitted_value_bytes, .. } => {
                let value = match (value_bytes, omitted_value_bytes) {
                    (Some(bytes), _) => format!("{bytes} bytes"),
                    (None, Some(omitted)) => format!("none; {omitted} bytes were omitted; the row has them"),
                    (None, None) => "none".to_owned(),
                };
                fields.push(("dead letter", Some(letter.clone())));
                fields.push(("slot", slot.clone()));
                fields.push(("position", original_position.clone()));
                fields.push(("value", Some(value)));
            }
        }
        fields.into_iter().filter_map(|(name, text)| Some((name, text?))).collect()
    }
}

impl State {
    /// The next attempt of a parked event, or the resolution of a dead letter.
    fn text(&self, class: &str, now_ms: i64) -> Option<String> {
        match self {
            State::DeadLetter { settled, settled_at: None, .. } => settled.clone(),
            State::DeadLetter { settled, settled_at: Some(when), .. } => {
                Some(format!("{} at {when}", settled.as_ref()?))
            }
            State::Parked { asked: Some(asked), .. } => Some(format!("{asked} requested")),
            State::Parked { .. } if class == BEHIND => Some("behind".to_owned()),
            State::Parked { next_ms: None, .. } => Some("on request".to_owned()),
            State::Parked { next_ms: Some(next_ms), .. } if *next_ms <= now_ms => Some("now".to_owned()),
            State::Parked { next_ms: Some(next_ms), .. } => Some(format!("in {}", age(now_ms, *next_ms))),
        }
    }
}

impl Details {
    /// For people.
    pub fn text(&self, now_ms: i64) -> String {
        let mut fields = self.event.fields(now_ms);
        let (part, parts, values) = match &self.more {
            More::Parked { commit_lsn, index, via, committed_at, before, columns } => {
                let behind = if let State::Parked { behind, .. } = &self.event.state { *behind } else { 0 };
                fields.retain(|(name, _)| *name != "behind it");
                fields.push(("aggregate", format!("{before} before it, and {behind} behind it")));
                fields.push(("position", format!("{commit_lsn}, index {index}, from the {via}")));
                fields.extend(committed_at.clone().map(|committed_at| ("committed", committed_at)));
                let values = columns.iter().filter_map(|column| {
                    let title = format!("value of {}", column.name.replace(char::is_control, " "));
                    Some((title, column.value.as_ref()?))
                });
                let cells = |column: &Column| {
                    let size = column.bytes.map_or("NULL".to_owned(), |bytes| format!("{bytes} bytes"));
                    vec![format!("  {}", column.name), column.type_name.clone().unwrap_or("-".to_owned()), size]
                };
                ("columns", columns.iter().map(cells).collect(), values.collect())
            }
            More::DeadLetter { headers, value, value_hex } => {
                let value = value.as_ref().or(value_hex.as_ref()).map(|value| ("value".to_owned(), value));
                let cells = |header: &Header| {
                    vec![format!("  {}", header.name), header.value.clone().unwrap_or("(none)".to_owned())]
                };
                ("headers", headers.iter().map(cells).collect(), Vec::from_iter(value))
            }
        };
        let line = |(name, text): (&str, String)| vec![name.to_owned(), cell(text.as_bytes(), ERROR_CHARS_MAX)];
        let lines: Vec<_> = fields.into_iter().map(line).collect();
        let parts: Vec<Vec<String>> = parts;
        let mut text = aligned(&lines) + "\n";
        if !parts.is_empty() {
            text += &format!("{part}\n{}\n", aligned(&parts));
        }
        for (title, value) in values {
            // Control characters of a payload must not reach the terminal.
            let plain = |character: char| character.is_control() && !matches!(character, '\n' | '\t');
            text += &format!("{title}\n{}\n", value.replace(plain, "\u{fffd}"));
        }
        text
    }
}

impl Counts {
    /// The counts of the dead-letter topic `topic`.
    pub(super) fn of_letters(topic: &str, counts: library::Counts) -> Counts {
        let library::Counts { matched, classes, resolved: settled, other_slots, foreign } = counts;
        Counts {
            matched,
            classes,
            store: StoreCounts::DeadLetters { topic: topic.to_owned(), settled, other_slots, foreign },
        }
    }

    /// One line: the number of events, and of each class.
    pub(super) fn text(&self) -> String {
        let text = match &self.store {
            StoreCounts::Parked { aggregates, .. } => {
                format!("{} of {}", counted(self.matched, "event"), counted(*aggregates, "aggregate"))
            }
            StoreCounts::DeadLetters { .. } => counted(self.matched, "dead letter"),
        };
        let class = |(class, count): (&String, &u64)| format!("{count} {}", cell(class.as_bytes(), CELL_CHARS));
        let classes: Vec<_> = self.classes.iter().map(class).collect();
        if classes.is_empty() { text } else { format!("{text}: {}", classes.join(", ")) }
    }
}

impl Found<Event> {
    /// For people: a table whose lines are cut to `width`, the counts, and how to list the others.
    pub fn text(&self, width: Option<usize>) -> String {
        let known: Vec<BTreeMap<_, _>> =
            self.events.iter().map(|event| event.fields(self.now_ms).into_iter().collect()).collect();
        let has_one = |column: &&str| known.iter().any(|fields| fields.contains_key(column));
        let columns: Vec<_> = COLUMNS.into_iter().filter(has_one).collect();
        let mut rows: Vec<Vec<String>> = vec![columns.iter().map(|column| (*column).to_owned()).collect()];
        for fields in &known {
            let text = |column: &&str| {
                let chars = if *column == "error" { ERROR_CHARS_MAX } else { CELL_CHARS };
                fields.get(column).map_or("-".to_owned(), |text| cell(text.as_bytes(), chars))
            };
            rows.push(columns.iter().map(text).collect());
        }
        let lines = if self.events.is_empty() { String::new() } else { table(&rows, width) + "\n\n" };
        let mut text = format!("{lines}{}\n", self.counts.text());
        let listed = self.events.len() as u64;
        let is_parked = matches!(self.counts.store, StoreCounts::Parked { .. });
        text += &match (listed < self.counts.matched, self.is_full, is_parked && !self.is_all) {
            (true, true, true) => {
                format!("The oldest {listed} are listed; --limit lists more, and --all those behind others, too.\n")
            }
            (true, true, false) => format!("The oldest {listed} are listed; --limit lists more.\n"),
            (true, false, true) => format!("{listed} listed; --all lists those behind others, too.\n"),
            (true, false, false) | (false, ..) => String::new(),
        };
        let mut more = |count: u64, what: &str| {
            if count > 0 {
                text += &format!("{count} more {} {what}\n", if count == 1 { "is" } else { "are" });
            }
        };
        if let StoreCounts::DeadLetters { topic, settled, other_slots, foreign } = &self.counts.store {
            if !self.is_all {
                more(*settled, "resolved; --all lists them.");
            }
            more(*other_slots, "of other slots; --all-slots lists them.");
            match foreign {
                0 => {}
                1 => text += &format!("1 record in topic {topic} is not a dead letter.\n"),
                count => text += &format!("{count} records in topic {topic} are not dead letters.\n"),
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::text::time;

    const NOW_MS: i64 = 1_772_366_400_000;

    fn parked(row_id: &str, class: &str, behind: u64, next_ms: Option<i64>) -> Event {
        Event {
            row_id: Some(row_id.to_owned()),
            outbox: Some("public.outbox".to_owned()),
            key: Some("order-17".to_owned()),
            topic: Some("orders".to_owned()),
            class: class.to_owned(),
            error: Some("the broker takes no record this large".to_owned()),
            attempts: Some(1),
            stored_at: time(NOW_MS - 5_000),
            state: State::Parked { next_try_at: next_ms.and_then(time), asked: None, behind, next_ms },
            stored_ms: Some(NOW_MS - 5_000),
        }
    }

    fn found() -> Found<Event> {
        let refused = Event {
            attempts: Some(3),
            error: Some("topic a\u{1b} refuses".to_owned()),
            key: None,
            ..parked("8", "refused", 0, Some(NOW_MS + 4_000))
        };
        let classes = [("behind".to_owned(), 1_203), ("refused".to_owned(), 1), ("too-large".to_owned(), 1)].into();
        let store = StoreCounts::Parked { slot: "orders".to_owned(), aggregates: 2 };
        Found {
            counts: Counts { matched: 1_205, classes, store },
            events: vec![parked("7", "too-large", 1_203, None), refused],
            now_ms: NOW_MS,
            is_all: false,
            is_full: false,
            why_none: None,
        }
    }

    #[test]
    fn an_aggregate_is_a_line_and_all_is_counted() {
        insta::assert_snapshot!(found().text(None), @r"
        age  class      row id  state       behind it  attempts  key       topic   outbox         error
        5s   too-large  7       on request  1203       1         order-17  orders  public.outbox  the broker takes no record this large
        5s   refused    8       in 4s       0          3         -         orders  public.outbox  topic a\u{1b} refuses

        1205 events of 2 aggregates: 1203 behind, 1 refused, 1 too-large
        2 listed; --all lists those behind others, too.
        ");
        assert!(found().text(Some(60)).lines().take(3).all(|line| line.chars().count() <= 60));
        let full = Found { is_full: true, ..found() };
        assert!(full.text(None).ends_with("--limit lists more, and --all those behind others, too.\n"));
        let all = Found { is_all: true, is_full: true, ..found() };
        assert!(all.text(None).ends_with("The oldest 2 are listed; --limit lists more.\n"));
    }

    #[test]
    fn it_is_said_when_an_event_is_tried_next() {
        let next = |class, asked: Option<&str>, next_ms| {
            let asked = asked.map(str::to_owned);
            let state = State::Parked { next_try_at: None, asked, behind: 0, next_ms };
            state.text(class, 100_000).unwrap()
        };
        assert_eq!(next("refused", None, Some(104_000)), "in 4s");
        assert_eq!(next("refused", None, Some(400_000)), "in 5m");
        assert_eq!(next("refused", None, Some(99_000)), "now");
        assert_eq!(next("too-large", None, None), "on request");
        assert_eq!(next("behind", None, None), "behind");
        assert_eq!(next("behind", Some("drop"), None), "drop requested");
        assert_eq!(next("refused", Some("retry"), Some(104_000)), "retry requested");
    }
}
