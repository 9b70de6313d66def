//! What the commands on events that were given up share: which ones are meant, and how they look.

use std::io::IsTerminal as _;

use clap::Args;

use crate::cli::output::aligned;
use crate::config::unit::parse_duration;
use crate::error::{Error, Kind, Result};

/// Which ones are meant. All that is given has to hold.
#[derive(Debug, Clone, Default, Args)]
pub struct Filters {
    /// Of rows with one of these ids; may be given again
    #[arg(long, value_name = "VALUE", num_args = 1..)]
    pub id: Vec<String>,
    /// With one of these keys; may be given again
    #[arg(long, value_name = "KEY", num_args = 1..)]
    pub aggregate: Vec<String>,
    /// Of one of these classes: unroutable, too-large, rejected, refused, and behind for parked ones; may be given again
    #[arg(long, value_name = "CLASS", num_args = 1..)]
    pub class: Vec<String>,
    /// For one of these topics; may be given again
    #[arg(long, value_name = "TOPIC", num_args = 1..)]
    pub topic: Vec<String>,
    /// Given up or parked at this time or later: a timestamp, in UTC unless it names a zone, or a duration for so long ago, such as 2h
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Given up or parked before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Given up or parked longer ago than this, such as 7d
    #[arg(long, value_name = "DURATION", conflicts_with = "until")]
    pub older_than: Option<String>,
}

/// A range of times, in milliseconds since the Unix epoch; both ends may be open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub since_ms: Option<i64>,
    /// The first behind it.
    pub until_ms: Option<i64>,
}

impl Filters {
    /// Whether nothing is given.
    pub fn is_empty(&self) -> bool {
        let lists = [&self.id, &self.aggregate, &self.class, &self.topic];
        let times = [&self.since, &self.until, &self.older_than];
        lists.iter().all(|list| list.is_empty()) && times.iter().all(|time| time.is_none())
    }

    /// Whether the classes that are given are among those there are.
    ///
    /// # Errors
    /// [`Kind::Config`] with the list.
    pub fn has_classes(&self, known: &[&str]) -> Result<()> {
        let Some(unknown) = self.class.iter().find(|class| !known.contains(&class.as_str())) else { return Ok(()) };
        Err(Error::new(Kind::Config, format!("--class: there is no class {}", cell(unknown.as_bytes(), 40)))
            .remedy(format!("the classes are {}", known.join(", "))))
    }

    /// The times that are meant, seen from `now_ms`.
    ///
    /// # Errors
    /// [`Kind::Config`] for what is no time, and an end that is not behind the beginning.
    pub fn span(&self, now_ms: i64) -> Result<Span> {
        let moment = |flag: &str, given: &Option<String>| {
            let Some(text) = given else { return Ok(None) };
            moment_ms(text, now_ms).map(Some).ok_or_else(|| {
                Error::new(Kind::Config, format!("{flag}: this is neither a timestamp nor a duration"))
                    .remedy("write '2026-03-01 12:00', '2026-03-01T12:00:00+01:00' or 2h")
            })
        };
        let older = match &self.older_than {
            None => None,
            Some(text) => Some(ago_ms(text, now_ms).ok_or_else(|| {
                Error::new(Kind::Config, "--older-than: this is no duration")
                    .remedy("write a duration such as 2h or 7d")
            })?),
        };
        let span =
            Span { since_ms: moment("--since", &self.since)?, until_ms: moment("--until", &self.until)?.or(older) };
        if let (Some(since), Some(until)) = (span.since_ms, span.until_ms)
            && until <= since
        {
            let cause = "--until or --older-than is not later than --since: nothing is in between";
            return Err(Error::new(Kind::Config, cause)
                .remedy("a duration is so long ago: the longer one comes first, as in --since 2h --until 1h"));
        }
        Ok(span)
    }
}

fn ago_ms(text: &str, now_ms: i64) -> Option<i64> {
    let ago = i64::try_from(parse_duration(text)?.as_millis()).ok()?;
    now_ms.checked_sub(ago)
}

fn moment_ms(text: &str, now_ms: i64) -> Option<i64> {
    let utc = |time: jiff::civil::DateTime| time.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|time| time.timestamp());
    ago_ms(text, now_ms).or_else(|| {
        let instant = text.parse::<jiff::Timestamp>().ok();
        let local = || utc(text.parse::<jiff::civil::DateTime>().ok()?);
        let day = || utc(text.parse::<jiff::civil::Date>().ok()?.at(0, 0, 0, 0));
        instant.or_else(local).or_else(day).map(jiff::Timestamp::as_millisecond)
    })
}

/// A time as RFC 3339 has it.
pub fn time(ms: i64) -> Option<String> {
    jiff::Timestamp::from_millisecond(ms).ok().map(|time| format!("{time:.3}"))
}

/// How long ago, for people: one number. What is yet to come is `0s`.
pub fn age(ms: i64, now_ms: i64) -> String {
    let seconds = now_ms.saturating_sub(ms).max(0) / 1_000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Text for a cell or a line: escaped like a name in a log, without the quotes where it needs none, at most `chars` of it.
pub fn cell(bytes: &[u8], chars: usize) -> String {
    let head = bytes.get(..(chars + 1).saturating_mul(4)).unwrap_or(bytes);
    let text: String = String::from_utf8_lossy(head).chars().flat_map(escaped).collect();
    cut(&text, chars)
}

/// As `char::escape_debug`, which quotes have no need of here.
fn escaped(character: char) -> Vec<char> {
    match character {
        '"' | '\'' => vec![character],
        _ => character.escape_debug().collect(),
    }
}

/// At most `chars` of a text, with a sign that there was more.
pub fn cut(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars {
        return text.to_owned();
    }
    let mut head: String = text.chars().take(chars.saturating_sub(1)).collect();
    head.push('…');
    head
}

/// What of the last column is worth a look.
const LAST_CHARS: usize = 12;

/// Rows under each other, cells in line, no line longer than `width`. Columns that are too many are left out, in the order in
/// which `spare` names them, and it is said which; the last one is cut.
pub fn table<const N: usize>(rows: &[[String; N]], width: Option<usize>, spare: &[&str]) -> String {
    let Some(width) = width else { return aligned(rows) };
    let mut rows: Vec<Vec<String>> = rows.iter().map(|row| row.to_vec()).collect();
    let mut left_out = Vec::new();
    for name in spare {
        let place = rows.first().and_then(|head| head.iter().position(|head| head == name));
        if let Some(place) = place.filter(|_| !fits(&rows, N - left_out.len(), width, spare)) {
            rows.iter_mut().for_each(|row| drop(row.remove(place)));
            left_out.push(*name);
        }
    }
    let lines = aligned(&rows);
    let mut fitted: Vec<_> = lines.lines().map(|line| cut(line, width)).collect();
    if !left_out.is_empty() {
        fitted.push(cut(&format!("(no room for: {}; --json has them)", left_out.join(", ")), width));
    }
    fitted.join("\n")
}

/// Whether each of so many columns has its room; the last one, where it is spare, may be cut.
fn fits(rows: &[Vec<String>], columns: usize, width: usize, spare: &[&str]) -> bool {
    let wide = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count()).max();
    let is_spare = |column: usize| {
        let name = rows.first().and_then(|head| head.get(column));
        column + 1 == columns && name.is_some_and(|name| spare.contains(&name.as_str()))
    };
    let room = |column: usize| match (wide(column).unwrap_or_default(), is_spare(column)) {
        (wide, true) => wide.min(LAST_CHARS),
        (wide, false) => wide,
    };
    (0..columns).map(room).sum::<usize>() + 2 * columns.saturating_sub(1) <= width
}

/// The width of the terminal that standard output is; none where it is something else, and nothing is to be cut.
pub fn width() -> Option<usize> {
    let is_terminal = std::io::stdout().is_terminal();
    is_terminal.then(|| terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0.max(40))))
}

/// `1 letter`, `2 letters`.
pub fn counted(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON_MS: i64 = 1_772_366_400_000;

    fn span(since: &str, until: &str, older_than: &str) -> Result<Span> {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let filters =
            Filters { since: some(since), until: some(until), older_than: some(older_than), ..Filters::default() };
        assert_eq!(filters.is_empty(), since.is_empty() && until.is_empty() && older_than.is_empty());
        filters.span(NOON_MS)
    }

    #[test]
    fn times_are_read_in_utc_or_as_so_long_ago() {
        assert_eq!(time(NOON_MS).unwrap(), "2026-03-01T12:00:00.000Z");
        let since = |text: &str| span(text, "", "").unwrap().since_ms;
        for noon in ["2026-03-01 12:00", "2026-03-01T12:00:00Z", "2026-03-01T13:00:00+01:00", "0s"] {
            assert_eq!(since(noon), Some(NOON_MS), "{noon}");
        }
        assert_eq!(since("2026-03-01"), Some(NOON_MS - 12 * 3_600_000));
        assert_eq!(since("2h"), Some(NOON_MS - 7_200_000));
        assert_eq!(span("", "", "1d").unwrap(), Span { since_ms: None, until_ms: Some(NOON_MS - 86_400_000) });
        assert_eq!(span("2h", "1h", "").unwrap().until_ms, Some(NOON_MS - 3_600_000));
    }

    #[test]
    fn what_is_no_time_and_what_is_no_range_is_refused() {
        for (since, until, older_than) in [
            ("yesterday", "", ""),
            ("", "5", ""),
            ("", "", "2026-03-01"),
            ("", "", "99999999999y"),
            ("1h", "2h", ""),
            ("1h", "1h", ""),
            ("1h", "", "1h"),
        ] {
            let error = span(since, until, older_than).unwrap_err();
            assert!(error.kind() == Kind::Config && error.what_to_do().is_some(), "{since} {until} {older_than}");
        }
    }

    #[test]
    fn a_class_there_is_not_is_refused_with_those_there_are() {
        let of = |class: &str| Filters { class: vec!["refused".to_owned(), class.to_owned()], ..Filters::default() };
        let known = ["refused", "too-large"];
        assert!(Filters::default().has_classes(&known).is_ok() && of("too-large").has_classes(&known).is_ok());
        let error = of("toolarge").has_classes(&known).unwrap_err();
        assert_eq!((error.kind(), error.cause()), (Kind::Config, "--class: there is no class toolarge"));
        assert_eq!(error.what_to_do(), Some("the classes are refused, too-large"));
    }

    #[test]
    fn ages_are_one_number() {
        let age = |seconds: i64| age(NOON_MS - seconds * 1_000, NOON_MS);
        let ages = [-5, 0, 119, 120, 7_199, 7_200, 172_799, 172_800].map(age);
        assert_eq!(ages, ["0s", "0s", "119s", "2m", "119m", "2h", "47h", "2d"]);
    }

    #[test]
    fn a_cell_is_harmless_and_no_longer_than_it_may_be() {
        assert_eq!(cell(b"a \"b\" 'c'", 20), "a \"b\" 'c'");
        assert_eq!(cell(b"\xff\x1b[2J\n\0", 20), "\u{fffd}\\u{1b}[2J\\n\\0");
        assert_eq!(cell(&vec![b'x'; 1 << 20], 4), "xxx…");
        assert_eq!((cut("größe", 5).as_str(), cut("größe", 4).as_str()), ("größe", "grö…"));
    }

    #[test]
    fn no_line_is_longer_than_the_terminal() {
        let rows = [["a", "error"], ["b", "it is long"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows, Some(8), &[]), "a  error\nb  it i…");
        assert_eq!(table(&rows, None, &["error"]), "a  error\nb  it is long");
    }

    #[test]
    fn columns_that_are_spare_make_room_for_those_that_are_not() {
        let rows = [["id", "topic", "tries", "error"], ["17", "orders", "3", "the broker takes it not"]];
        let rows = rows.map(|row| row.map(str::to_owned));
        let of = |width| table(&rows, Some(width), &["topic", "error"]);
        assert_eq!(of(31), "id  topic   tries  error\n17  orders  3      the broker …");
        assert_eq!(of(30), "id  tries  error\n17  3      the broker takes i…\n(no room for: topic; --json h…");
        assert_eq!(of(20), "id  tries\n17  3\n(no room for: topic…");
    }
}
