//! Values of Postgres in their text form: the type of a column, times, bytes.

use jiff::{SignedDuration, ToSpan, civil};
use serde::Deserialize;

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct ColumnType {
    /// Its OID; 0 where that is not known.
    pub oid: u32,
    /// Its modifier (`atttypmod`): length, precision or scale; -1 without.
    pub modifier: i32,
}

impl ColumnType {
    /// Type `text`.
    pub const TEXT: ColumnType = ColumnType {
        oid: 25,
        modifier: -1,
    };
}

/// A time as nanoseconds since 1970 in UTC. Postgres knows years that [`jiff::Timestamp`] does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(i128);

impl Moment {
    /// Of nanoseconds since 1970 in UTC.
    pub const fn from_nanos(nanos: i128) -> Moment {
        Moment(nanos)
    }

    const DAY: i128 = 86_400_000_000_000;
    const EPOCH: civil::Date = civil::Date::constant(1970, 1, 1);
    /// Years and days after which the calendar repeats.
    const CYCLE: (i64, i64) = (400, 146_097);

    /// The time that a `timestamptz`, `timestamp` (taken as UTC) or `date` is, as Postgres prints
    /// it with `DateStyle` ISO: `0044-03-15 12:00:00+00 BC`. `None`: it is none, or one that only
    /// Postgres knows, such as `infinity`.
    ///
    /// Any other text that RFC 9557 allows is a time as well: a text column may have it.
    pub fn read(text: &str) -> Option<Moment> {
        Moment::of_rfc(text).or_else(|| Moment::of_postgres(text))
    }

    fn of_rfc(text: &str) -> Option<Moment> {
        let (date, time) = text.split_once([' ', 'T'])?;
        let zone = if time.contains(['+', '-', 'Z']) {
            ""
        } else {
            "Z"
        };
        let timestamp: jiff::Timestamp = format!("{date}T{time}{zone}").parse().ok()?;
        Some(Moment(timestamp.as_nanosecond()))
    }

    /// The year may have more than four digits, or be BC.
    fn of_postgres(text: &str) -> Option<Moment> {
        let (text, is_bc) = text
            .strip_suffix(" BC")
            .map_or((text, false), |text| (text, true));
        let (date, time) = text.split_once([' ', 'T']).unwrap_or((text, "00:00:00"));
        let (time, zone) =
            time.split_at_checked(time.find(['+', '-', 'Z']).unwrap_or(time.len()))?;
        let (year, month_and_day) = date.split_once('-').filter(|(year, _)| year.len() >= 4)?;
        let year: u32 = year.parse().ok()?;
        // The year before 1 is 1 BC.
        let year = if is_bc {
            1 - i64::from(year)
        } else {
            i64::from(year)
        };
        let (years, days) = Moment::CYCLE;
        let alike: civil::Date = format!("{}-{month_and_day}", 2000 + year.rem_euclid(years))
            .parse()
            .ok()?;
        let day = alike.duration_since(Moment::EPOCH).as_hours() / 24
            + (year.div_euclid(years) - 5) * days;
        let time = time
            .parse::<civil::Time>()
            .ok()?
            .duration_since(civil::Time::midnight())
            .as_nanos();
        let offset = if matches!(zone, "" | "Z") {
            0
        } else {
            offset_micros(zone)?
        };
        Some(Moment(
            i128::from(day) * Moment::DAY + time - i128::from(offset) * 1000,
        ))
    }

    /// Microseconds. Of more than fit, what `Conversions.toEpochMicros` of Debezium comes to.
    pub fn micros(self) -> i64 {
        let integer = |number: i128| i64::try_from(number).unwrap_or(i64::MAX);
        let seconds = self.0.div_euclid(1_000_000_000);
        let nanos = self.0.rem_euclid(1_000_000_000);
        integer(seconds)
            .saturating_mul(1_000_000)
            .wrapping_add(integer(nanos / 1000))
    }

    /// Milliseconds. `None`: they are too many.
    pub fn millis(self) -> Option<i64> {
        i64::try_from(self.0.div_euclid(1_000_000)).ok()
    }

    /// Whole days since 1970.
    pub fn days(self) -> i64 {
        // No text has so many that they do not fit.
        i64::try_from(self.0.div_euclid(Moment::DAY)).unwrap_or(i64::MAX)
    }

    /// As Java's `DateTimeFormatter.ISO_OFFSET_DATE_TIME` has it, with so many digits behind the
    /// second, or as few as can be. A year of more than four digits has a sign; 1 BC is the year 0.
    pub fn iso(self, digits: Option<usize>) -> Option<String> {
        let (years, days) = Moment::CYCLE;
        let alike = Moment::EPOCH
            .checked_add(self.days().rem_euclid(days).days())
            .ok()?;
        let year = i64::from(alike.year()) + self.days().div_euclid(days) * years;
        let sign = match year {
            0..=9999 => "",
            10_000.. => "+",
            _ => "-",
        };
        let since_midnight = SignedDuration::from_nanos_i128(self.0.rem_euclid(Moment::DAY));
        let time = civil::Time::midnight().wrapping_add(since_midnight);
        let time = digits.map_or_else(|| time.to_string(), |digits| format!("{time:.digits$}"));
        let year = year.unsigned_abs();
        let month = alike.month();
        let day = alike.day();
        Some(format!("{sign}{year:04}-{month:02}-{day:02}T{time}Z"))
    }

    /// As RFC 3339 has it, which knows the years 0 to 9999.
    pub fn rfc3339(self) -> Option<String> {
        self.iso(None).filter(|text| !text.starts_with(['+', '-']))
    }
}

/// The bytes of a `bytea`, which Postgres prints as `\x` and hexadecimal digits (`bytea_output`,
/// which the session sets).
pub fn bytea(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    let digit = |digit: u8| {
        char::from(digit)
            .to_digit(16)
            .and_then(|value| u8::try_from(value).ok())
    };
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    let bytes = text
        .strip_prefix(b"\\x")
        .and_then(|digits| digits.chunks(2).map(pair).collect());
    bytes.ok_or("bytea in hexadecimal form")
}

/// A time of day such as `07:08:09.5` in microseconds.
pub fn micros_of_day(text: &str) -> Option<i64> {
    let mut parts = text.split(':');
    let mut next = || parts.next()?.parse::<i64>().ok();
    let hours = next()?;
    let minutes = next()?;
    let seconds = parts.next()?;
    let (seconds, behind) = seconds.split_once('.').unwrap_or((seconds, ""));
    let micros: i64 = format!("{behind:0<6}").parse().ok()?;
    let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
    let seconds = minutes
        .checked_mul(60)?
        .checked_add(seconds.parse().ok()?)?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}

/// An offset such as `+05:30`. Postgres leaves minutes and seconds out where they are zero.
pub fn offset_micros(zone: &str) -> Option<i64> {
    let (sign, zone) = zone.split_at_checked(1)?;
    let offset = micros_of_day(&format!("{zone}:00:00"))?;
    if !(0..86_400_000_000).contains(&offset) {
        return None;
    }
    Some(if sign == "-" { -offset } else { offset })
}
