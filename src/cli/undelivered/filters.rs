//! Which events that were not delivered are meant.

use clap::Args;

use super::text::cell;
use crate::config::unit::parse_duration;
use crate::error::{Error, Kind, Result};

/// Which ones are meant. All that is given has to hold.
#[derive(Debug, Clone, Default, Args)]
pub struct Filters {
    /// Of rows with one of these ids; may be given again
    #[arg(long, value_name = "VALUE", num_args = 1.., conflicts_with = "named")]
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
    /// Of one of these outboxes, such as public.outbox; may be given again
    #[arg(long, value_name = "TABLE", num_args = 1..)]
    pub outbox: Vec<String>,
    /// Stored as undelivered at this time or later: a timestamp, in UTC unless it names a zone, or a duration for so long ago, such as 2h
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Stored as undelivered before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Stored as undelivered longer ago than this, such as 7d
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
        let lists = [&self.id, &self.aggregate, &self.class, &self.topic, &self.outbox];
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
        assert_eq!(error.what_to_do().as_deref(), Some("the classes are refused, too-large"));
    }
}
