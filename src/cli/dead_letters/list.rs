//! `walrelay dead-letters list`. Ids and keys only, never a payload.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use serde::Serialize;

use super::{ListArgs, aside, filtered, no_topic, nothing, now_ms};
use crate::cli::given_up::{age, cell, counted, cut, table, time, width};
use crate::cli::output::{Outcome, print, print_json};
use crate::cli::verify::Teller;
use crate::config::layers::Flags;
use crate::dead_letters::{At, Counts, Letter, Outcome as Settles, Scan, Wanted, Which};
use crate::error::Result;
use crate::event::Shown;
use crate::sink::options::Options;

/// How much of a name or a key is kept.
const NAME_CHARS_MAX: usize = 200;
/// How much of what happened is kept.
const ERROR_CHARS_MAX: usize = 1_000;
/// Columns that are left out where there is no room for all, the first of them first.
const SPARE: [&str; 4] = ["original topic", "error", "outbox", "key"];
/// How much of a name a cell has.
const CELL_CHARS: usize = 40;

/// A letter, as much of it as is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    letter: String,
    given_up_at: Option<String>,
    class: String,
    error: Option<String>,
    attempts: Option<u32>,
    slot: Option<String>,
    outbox: Option<String>,
    row_id: Option<String>,
    key: Option<String>,
    original_topic: Option<String>,
    original_position: Option<String>,
    value_bytes: Option<usize>,
    omitted_value_bytes: Option<u64>,
    settled: Option<String>,
    #[serde(skip)]
    time_ms: Option<i64>,
}

/// What was found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Listing {
    topic: String,
    #[serde(flatten)]
    counts: Counts,
    letters: Vec<Listed>,
}

impl Listed {
    /// Of names and keys 200 characters are kept, of what happened 1000.
    pub fn of(letter: &Letter<'_>, outcome: Option<Settles>) -> Listed {
        let bytes = |bytes: &[u8], chars: usize| {
            let head = bytes.get(..chars.saturating_add(1).saturating_mul(4)).unwrap_or(bytes);
            cut(&String::from_utf8_lossy(head), chars)
        };
        let name = |text: &str| bytes(text.as_bytes(), NAME_CHARS_MAX);
        Listed {
            letter: letter.at().to_string(),
            given_up_at: letter.time_ms().and_then(time),
            class: name(&letter.class()),
            error: letter.error().map(|error| bytes(error.as_bytes(), ERROR_CHARS_MAX)),
            attempts: letter.attempts(),
            slot: letter.slot().as_deref().map(name),
            outbox: letter.outbox().as_deref().map(name),
            row_id: letter.row().map(|row| bytes(row, NAME_CHARS_MAX)),
            key: letter.key().map(|key| bytes(key, NAME_CHARS_MAX)),
            original_topic: letter.topic().as_deref().map(name),
            original_position: letter.position().as_deref().map(name),
            value_bytes: letter.value().map(<[u8]>::len),
            omitted_value_bytes: letter.omitted_value_bytes(),
            settled: outcome.map(|outcome| outcome.to_string()),
            time_ms: letter.time_ms(),
        }
    }
}

impl Listed {
    /// Each thing that is known of it, with its name; the second is when it was given up.
    pub(super) fn lines(&self, topic: &str) -> [(&'static str, String); 12] {
        let text =
            |text: &Option<String>| text.as_ref().map_or("-".to_owned(), |text| cell(text.as_bytes(), ERROR_CHARS_MAX));
        let value = match (self.value_bytes, self.omitted_value_bytes) {
            (Some(bytes), _) => format!("{bytes} bytes"),
            (None, Some(omitted)) => format!("none; {omitted} bytes were left out, and the row has them"),
            (None, None) => "none".to_owned(),
        };
        [
            ("letter", format!("{} of topic {topic}", self.letter)),
            ("given up", text(&self.given_up_at)),
            ("class", cell(self.class.as_bytes(), NAME_CHARS_MAX)),
            ("error", text(&self.error)),
            ("attempts", self.attempts.map_or("-".to_owned(), |attempts| attempts.to_string())),
            ("slot", text(&self.slot)),
            ("outbox", text(&self.outbox)),
            ("row id", text(&self.row_id)),
            ("position", text(&self.original_position)),
            ("original topic", text(&self.original_topic)),
            ("key", text(&self.key)),
            ("value", value),
        ]
    }

    /// What happened, without the row, which a table names beside it.
    fn happened(&self) -> Option<&str> {
        let (error, row) = (self.error.as_deref()?, self.row_id.as_deref().unwrap_or_default());
        let named = format!("row {}: ", Shown::of(row.as_bytes()));
        Some(error.split_once(&named).map_or(error, |(_, happened)| happened))
    }

    pub(super) fn time_ms(&self) -> Option<i64> {
        self.time_ms
    }

    pub(super) fn settled(&self) -> Option<&str> {
        self.settled.as_deref()
    }
}

/// Keeps the oldest letters, no more than the limit.
#[derive(Debug)]
struct Oldest {
    limit: usize,
    kept: BTreeMap<(Option<i64>, At), Listed>,
}

impl Oldest {
    fn take(&mut self, letter: &Letter<'_>, outcome: Option<Settles>) {
        let place = (letter.time_ms(), letter.at());
        let is_full = self.kept.len() >= self.limit;
        if is_full && self.kept.last_key_value().is_none_or(|(last, _)| *last < place) {
            return;
        }
        self.kept.insert(place, Listed::of(letter, outcome));
        if is_full {
            self.kept.pop_last();
        }
    }
}

/// Lists letters. Changes nothing.
///
/// Reads the topic twice: what settles a letter is behind it. In memory are the letters that are listed, two bits for each
/// that is settled, and what is fetched ahead.
///
/// # Errors
/// [`crate::error::Kind::NothingMatched`] where there is none, or no topic; [`crate::error::Kind::Config`]; what Kafka gives.
pub async fn list(args: &ListArgs) -> Outcome {
    let config = args.settings.load(Flags::new())?;
    let now_ms = now_ms();
    let wanted = filtered(args.settings.wanted(&config), &args.filters, now_ms)?;
    let which = if args.settled { Which::All } else { Which::Unsettled };
    let (options, topic) = (Options::reader(&config.kafka)?, config.delivery.dead_letter_topic.clone());
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let found = aside(move || read(options, topic, &wanted, which, limit)).await?;
    let Some(listing) = found else {
        let topic = &config.delivery.dead_letter_topic;
        if args.json {
            print_json(&Listing { topic: topic.clone(), ..Listing::default() })?;
        }
        return Err(no_topic(topic).into());
    };
    if args.json {
        print_json(&listing)?;
    } else {
        print(&listing.text(args.settled, now_ms, width()))?;
    }
    if listing.counts.matched == 0 {
        return Err(nothing(&listing.topic, &listing.counts).into());
    }
    Ok(())
}

fn read(options: Options, topic: String, wanted: &Wanted, which: Which, limit: usize) -> Result<Option<Listing>> {
    let mut teller = Teller::new();
    let mut say = |what: &str, read: u64, of: u64| teller.tell(|| format!("reading {what}: {read} of {of} records"));
    let scan = Scan::open(options, &topic, wanted, &mut |read, of| say("what is settled", read, of))?;
    let Some(scan) = scan else { return Ok(None) };
    let mut oldest = Oldest { limit, kept: BTreeMap::new() };
    let counts = scan.letters(wanted, which, &mut |read, of| say("letters", read, of), &mut |letter, outcome| {
        oldest.take(letter, outcome);
        ControlFlow::Continue(())
    })?;
    Ok(Some(Listing { topic, counts, letters: oldest.kept.into_values().collect() }))
}

impl Listing {
    /// For people. `settled` says whether there are letters among them that are settled.
    pub fn text(&self, settled: bool, now_ms: i64, width: Option<usize>) -> String {
        let mut text = String::new();
        if !self.letters.is_empty() {
            let head =
                ["age", "class", "outbox", "row id", "key", "original topic", "letter", "error"].map(str::to_owned);
            let name =
                |text: &Option<String>| text.as_ref().map_or("-".to_owned(), |text| cell(text.as_bytes(), CELL_CHARS));
            let row = |listed: &Listed| {
                let error = listed.happened().unwrap_or("-");
                [
                    listed.time_ms.map_or("-".to_owned(), |time_ms| age(time_ms, now_ms)),
                    cell(listed.class.as_bytes(), CELL_CHARS),
                    name(&listed.outbox),
                    name(&listed.row_id),
                    name(&listed.key),
                    name(&listed.original_topic),
                    listed.letter.clone(),
                    cell(error.as_bytes(), ERROR_CHARS_MAX),
                ]
            };
            let rows: Vec<_> = std::iter::once(head).chain(self.letters.iter().map(row)).collect();
            let lines = match settled {
                false => table(&rows, width, &SPARE),
                true => {
                    let states = self.letters.iter().map(|listed| listed.settled.clone().unwrap_or("-".to_owned()));
                    let states = std::iter::once("settled".to_owned()).chain(states);
                    let rows: Vec<_> = states
                        .zip(rows)
                        .map(|(state, [a, b, c, d, e, f, g, h])| [a, state, b, c, d, e, f, g, h])
                        .collect();
                    table(&rows, width, &SPARE)
                }
            };
            text += &format!("{lines}\n\n");
        }
        text + &self.said(settled)
    }

    /// The counts, a line each.
    fn said(&self, settled: bool) -> String {
        let counts = &self.counts;
        let classes: Vec<_> = counts
            .classes
            .iter()
            .map(|(class, count)| format!("{count} {}", cell(class.as_bytes(), CELL_CHARS)))
            .collect();
        let mut text = counted(counts.matched, "letter");
        if !classes.is_empty() {
            text += &format!(": {}", classes.join(", "));
        }
        text.push('\n');
        let shown = self.letters.len() as u64;
        if shown < counts.matched {
            text += &format!("The oldest {shown} are listed; --limit lists more.\n");
        }
        let mut more = |count: u64, what: &str| {
            if count > 0 {
                text += &format!("{count} more {}{what}\n", if count == 1 { "is" } else { "are" });
            }
        };
        if !settled {
            more(counts.settled, " settled; --settled lists them.");
        }
        more(counts.other_slots, " of other slots; --all-slots lists them.");
        match counts.foreign {
            0 => {}
            1 => text += &format!("1 record in topic {} is no dead letter.\n", self.topic),
            count => text += &format!("{count} records in topic {} are no dead letters.\n", self.topic),
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letters::Entry;
    use crate::dead_letters::letter::{Header, Incoming};
    use crate::route::dead_letter::{CLASS_HEADER, ERROR_HEADER, OUTBOX_HEADER, ROW_HEADER, TOPIC_HEADER};

    const NOW_MS: i64 = 1_772_366_400_000;

    fn listed(at: &str, ago_ms: i64, outcome: Option<Settles>, headers: &[Header<'_>], oldest: &mut Oldest) {
        let headers = Some([&[(CLASS_HEADER, Some(&b"too-large"[..]))], headers].concat());
        let at = at.parse().unwrap();
        let record =
            Incoming { at, time_ms: Some(NOW_MS - ago_ms), key: Some(b"order-17"), value: Some(b"canary"), headers };
        let Entry::Letter(letter) = Entry::of(&record) else { panic!("no letter") };
        oldest.take(&letter, outcome);
    }

    fn listing() -> Listing {
        let mut oldest = Oldest { limit: 3, kept: BTreeMap::new() };
        let long = "slot s: row \"6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11\": a record for topic orders has 2000000 bytes, more than message.max.bytes, 1048588";
        let headers: [Header<'_>; 4] = [
            (ERROR_HEADER, Some(long.as_bytes())),
            (TOPIC_HEADER, Some(b"orders")),
            (OUTBOX_HEADER, Some(b"public.outbox")),
            (ROW_HEADER, Some(b"6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11")),
        ];
        listed("1:3", 5_000, None, &headers, &mut oldest);
        listed("0:9", 300_000, Some(Settles::Replayed), &[(ROW_HEADER, Some(b"7\n\x1b[2J"))], &mut oldest);
        listed("0:11", 1_000, None, &[], &mut oldest);
        listed("0:10", 2_000, None, &[], &mut oldest);
        let counts = Counts {
            matched: 4,
            classes: [("rejected".to_owned(), 1), ("too-large".to_owned(), 3)].into(),
            settled: 2,
            other_slots: 1,
            foreign: 1,
        };
        Listing { topic: "dead".to_owned(), counts, letters: oldest.kept.into_values().collect() }
    }

    #[test]
    fn the_oldest_are_listed_and_lines_fit_the_terminal() {
        insta::assert_snapshot!(listing().text(false, NOW_MS, Some(120)), @r"
        age  class      outbox         row id                                key       original topic  letter  error
        5m   too-large  -              7\n\u{1b}[2J                          order-17  -               0:9     -
        5s   too-large  public.outbox  6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11  order-17  orders          1:3     a record for top…
        2s   too-large  -              -                                     order-17  -               0:10    -

        4 letters: 1 rejected, 3 too-large
        The oldest 3 are listed; --limit lists more.
        2 more are settled; --settled lists them.
        1 more is of other slots; --all-slots lists them.
        1 record in topic dead is no dead letter.
        ");
        let text = listing().text(true, NOW_MS, Some(60));
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        let lines: Vec<_> = text.lines().take(3).collect();
        assert!(
            lines[0].starts_with("age  settled   class ") && lines[1].starts_with("5m   replayed  too-large "),
            "{text}"
        );
        assert!(lines[2].starts_with("5s   -         too-large ") && !text.contains("more are settled"), "{text}");
    }

    #[test]
    fn the_json_has_everything_but_the_payload() {
        let json = serde_json::to_value(listing()).unwrap();
        let letter = &json["letters"][1];
        assert_eq!((&letter["letter"], &letter["key"]), (&"1:3".into(), &"order-17".into()));
        assert_eq!((&letter["value_bytes"], &letter["given_up_at"]), (&6.into(), &"2026-03-01T11:59:55.000Z".into()));
        assert_eq!(
            (&json["matched"], &json["classes"]["too-large"], &json["settled"]),
            (&4.into(), &3.into(), &2.into())
        );
        assert_eq!(
            (&json["letters"][0]["settled"], &letter["settled"]),
            (&"replayed".into(), &serde_json::Value::Null)
        );
        assert!(!json.to_string().contains("canary"));
    }

    #[test]
    fn nothing_is_said_of_what_is_not_there() {
        let listing = Listing { topic: "dead".to_owned(), ..Listing::default() };
        assert_eq!(listing.text(false, NOW_MS, None), "0 letters\n");
    }
}
