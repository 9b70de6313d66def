//! `walrelay dead-letters show`: one letter, with its payload only where that is asked for.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::ControlFlow;

use serde::Serialize;

use super::list::Listed;
use super::{ShowArgs, aside, no_topic, nothing, now_ms};
use crate::cli::given_up::{age, cell};
use crate::cli::output::{Outcome, aligned, note, print, print_json};
use crate::cli::verify::Teller;
use crate::config::layers::Flags;
use crate::dead_letters::letter::Header;
use crate::dead_letters::{Counts, Letter, Outcome as Settles, Scan, Wanted, Which};
use crate::error::Result;
use crate::sink::options::Options;

/// How many are shown.
const LETTERS_MAX: usize = 20;
/// How many headers of one, and how much of each.
const HEADERS_MAX: usize = 200;
const HEADER_CHARS_MAX: usize = 1_000;

/// All that is known of a letter.
#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    listed: Listed,
    /// When it was settled, as its marker says.
    settled_at: Option<String>,
    /// Those it had as a record.
    headers: Vec<ShownHeader>,
    /// The value, where it was asked for and is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// The same where it is none, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    value_hex: Option<String>,
}

#[derive(Debug, Serialize)]
struct ShownHeader {
    name: String,
    value: Option<String>,
}

/// Shows letters. Changes nothing.
///
/// In memory are the letters that are shown, up to 20, with their values where those were asked for.
///
/// # Errors
/// As [`list`](super::list::list).
pub async fn show(args: &ShowArgs) -> Outcome {
    let config = args.settings.load(Flags::new())?;
    let wanted = Wanted {
        letters: args.letter.iter().copied().collect(),
        ids: args.id.clone(),
        ..args.settings.wanted(&config)
    };
    let (options, topic) = (|| Options::reader(&config.kafka), config.delivery.dead_letter_topic.clone());
    let (first, second, payload) = (options()?, options()?, args.payload);
    let found = aside(move || read(first, second, &topic, wanted, payload)).await?;
    let Some((shown, counts)) = found else { return Err(no_topic(&config.delivery.dead_letter_topic).into()) };
    if shown.is_empty() {
        return Err(nothing(&config.delivery.dead_letter_topic, &counts).into());
    }
    if counts.matched > shown.len() as u64 {
        note(format_args!("note: the first {} of {} letters are shown", shown.len(), counts.matched));
    }
    if args.json {
        return print_json(&serde_json::json!({ "letters": shown }));
    }
    let texts: Vec<_> = shown.iter().map(|shown| shown.text(&config.delivery.dead_letter_topic, now_ms())).collect();
    print(&texts.join("\n"))
}

/// What was asked for by an id is looked for first: what settles a letter is known once its place is.
fn read(
    first: Options,
    second: Options,
    topic: &str,
    mut wanted: Wanted,
    payload: bool,
) -> Result<Option<(Vec<Shown>, Counts)>> {
    let mut teller = Teller::new();
    let mut say = |read: u64, of: u64| teller.tell(|| format!("reading topic {topic}: {read} of {of} records"));
    let mut found = None;
    if wanted.letters.is_empty() {
        let Some(scan) = Scan::open(first, topic, &wanted, &mut say)? else { return Ok(None) };
        let mut places = BTreeSet::new();
        let counts = scan.letters(&wanted, Which::All, &mut say, &mut |letter, _| {
            if places.len() < LETTERS_MAX {
                places.insert(letter.at());
            }
            ControlFlow::Continue(())
        })?;
        if places.is_empty() {
            return Ok(Some((Vec::new(), counts)));
        }
        wanted.letters = places;
        found = Some(counts);
    }
    let Some(scan) = Scan::open(second, topic, &wanted, &mut say)? else { return Ok(None) };
    let (mut shown, mut left) = (Vec::new(), wanted.letters.len());
    let counts = scan.letters(&wanted, Which::All, &mut say, &mut |letter, outcome| {
        if shown.len() < LETTERS_MAX {
            let when = scan.marker(letter.at()).and_then(|marker| marker.when.clone());
            shown.push((letter.at(), Shown::of(letter, outcome, when, payload)));
        }
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    shown.sort_by_key(|(at, _)| *at);
    Ok(Some((shown.into_iter().map(|(_, shown)| shown).collect(), found.unwrap_or(counts))))
}

impl Shown {
    fn of(letter: &Letter<'_>, outcome: Option<Settles>, settled_at: Option<String>, payload: bool) -> Shown {
        let header = |(name, value): &Header<'_>| ShownHeader {
            name: cell(name.as_bytes(), HEADER_CHARS_MAX),
            value: value.map(|value| cell(value, HEADER_CHARS_MAX)),
        };
        let value = letter.value().filter(|_| payload).map(|value| String::from_utf8(value.to_vec()));
        let (value, value_hex) = match value {
            None => (None, None),
            Some(Ok(text)) => (Some(text), None),
            Some(Err(bytes)) => (None, Some(hex(bytes.as_bytes()))),
        };
        let headers = letter.original_headers().iter().take(HEADERS_MAX).map(header).collect();
        let settled_at = settled_at.map(|when| cell(when.as_bytes(), 64));
        Shown { listed: Listed::of(letter, outcome), settled_at, headers, value, value_hex }
    }

    fn text(&self, topic: &str, now_ms: i64) -> String {
        let mut rows: Vec<_> =
            self.listed.lines(topic).into_iter().map(|(name, text)| [name.to_owned(), text]).collect();
        if let (Some([_, text]), Some(time_ms)) = (rows.get_mut(1), self.listed.time_ms()) {
            write!(text, ", {} ago", age(time_ms, now_ms)).unwrap_or_default();
        }
        let settled = match (self.listed.settled(), &self.settled_at) {
            (None, _) => "no".to_owned(),
            (Some(outcome), None) => outcome.to_owned(),
            (Some(outcome), Some(when)) => format!("{outcome} at {when}"),
        };
        rows.push(["settled".to_owned(), settled]);
        let mut text = aligned(&rows) + "\n";
        if !self.headers.is_empty() {
            let value = |header: &ShownHeader| header.value.clone().unwrap_or_else(|| "(none)".to_owned());
            let rows: Vec<_> =
                self.headers.iter().map(|header| [format!("  {}", header.name), value(header)]).collect();
            text += &format!("headers\n{}\n", aligned(&rows));
        }
        if let Some(value) = self.value.as_ref().or(self.value_hex.as_ref()) {
            // A payload is not to steer the terminal it is printed on.
            let plain = |character: char| character.is_control() && !matches!(character, '\n' | '\t');
            text += &format!("value\n{}\n", value.replace(plain, "\u{fffd}"));
        }
        text
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String does not fail.
        write!(text, "{byte:02x}").unwrap_or_default();
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letters::Entry;
    use crate::dead_letters::letter::Incoming;
    use crate::route::dead_letter::{ATTEMPTS_HEADER, CLASS_HEADER, OMITTED_HEADER, ROW_HEADER};

    fn shown(value: Option<&[u8]>, payload: bool) -> Shown {
        let headers: [Header<'_>; 6] = [
            ("id", Some(b"7\n")),
            ("empty", None),
            (CLASS_HEADER, Some(b"rejected")),
            (ROW_HEADER, Some(b"7")),
            (ATTEMPTS_HEADER, Some(b"-1")),
            (OMITTED_HEADER, Some(b"2000000")),
        ];
        let at = "0:17".parse().unwrap();
        let record = Incoming { at, time_ms: Some(60_000), key: None, value, headers: Some(headers.to_vec()) };
        let Entry::Letter(letter) = Entry::of(&record) else { panic!("no letter") };
        Shown::of(&letter, Some(Settles::Discarded), Some("2026\n".to_owned()), payload)
    }

    #[test]
    fn it_says_all_that_is_known_and_no_payload_unasked() {
        insta::assert_snapshot!(shown(Some(b"canary"), false).text("dead", 120_000), @r"
        letter          0:17 of topic dead
        given up        1970-01-01T00:01:00.000Z, 60s ago
        class           rejected
        error           -
        attempts        -
        slot            -
        outbox          -
        row id          7
        position        -
        original topic  -
        key             -
        value           6 bytes
        settled         discarded at 2026\n
        headers
          id     7\n
          empty  (none)
        ");
        let json = serde_json::to_string(&shown(Some(b"canary"), false)).unwrap();
        assert!(!json.contains("canary") && !json.contains("value_hex"), "{json}");
        assert!(json.contains(r#""settled_at":"2026\\n""#), "{json}");
    }

    #[test]
    fn a_payload_that_is_asked_for_is_text_or_digits_and_steers_no_terminal() {
        let text = shown(Some(b"{\"a\":\n\x1b[2J1}"), true).text("dead", 0);
        assert!(text.ends_with("value\n{\"a\":\n\u{fffd}[2J1}\n"), "{text}");
        assert!(shown(Some(b"\xff\x00"), true).text("dead", 0).ends_with("value\nff00\n"));
        assert_eq!(shown(Some(b"\xff\x00"), true).value_hex.as_deref(), Some("ff00"));
        assert!(shown(None, true).text("dead", 0).contains("none; 2000000 bytes were left out"));
    }
}
