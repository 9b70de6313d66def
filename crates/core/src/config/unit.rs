//! Sizes and durations in the forms that people write, and numbers with bounds.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserializer, Serializer};

/// Bytes of a KiB.
pub const KIB: u64 = 1024;
/// Bytes of a MiB.
pub const MIB: u64 = 1024 * KIB;
/// Bytes of a GiB.
pub const GIB: u64 = 1024 * MIB;
const TIB: u64 = 1024 * GIB;

/// Milliseconds of a second.
pub const SECOND_MS: u64 = 1000;
/// Milliseconds of an hour.
pub const HOUR_MS: u64 = 3600 * SECOND_MS;
/// Milliseconds of a day.
pub const DAY_MS: u64 = 24 * HOUR_MS;

const UNITS: [(&str, u64); 5] = [
    ("TiB", TIB),
    ("GiB", GIB),
    ("MiB", MIB),
    ("KiB", KIB),
    ("B", 1),
];

/// Bytes from `32MiB`, `32 MB`, `1024` (plain bytes). `None` for any other text, and for a size
/// that does not fit.
///
/// Units, in any case: `B`, `kB`/`MB`/`GB`/`TB` with factor 1000, `KiB`/`MiB`/`GiB`/`TiB` with
/// factor 1024.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits_end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(digits_end)?;
    let factor = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        unit => {
            UNITS
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(unit))?
                .1
        }
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Text from which [`parse_bytes`] reads the same number.
pub(crate) fn exact_bytes(bytes: u64) -> String {
    let (name, unit) = UNITS
        .iter()
        .find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit))
        .unwrap_or(&("B", 1));
    format!("{}{name}", bytes / unit)
}

/// Bytes for people, such as `1.5 MiB`: rounded down, with one decimal below 10, else without.
pub fn human_bytes(bytes: u64) -> String {
    let (name, unit) = UNITS
        .iter()
        .find(|(_, unit)| bytes >= *unit)
        .unwrap_or(&("B", 1));
    let tenths = bytes / unit * 10 + bytes % unit * 10 / unit;
    if *unit > 1 && tenths < 100 {
        return format!("{}.{} {name}", tenths / 10, tenths % 10);
    }
    format!("{} {name}", bytes / unit)
}

/// A duration from `10s`, `1m 30s`, `500ms`. `None` for a number without a unit, which is
/// ambiguous.
pub fn parse_duration(text: &str) -> Option<Duration> {
    humantime::parse_duration(text.trim()).ok()
}

/// As [`parse_duration`], and a number without a unit is one of seconds: for flags that once took
/// only these.
pub fn parse_seconds(text: &str) -> Option<Duration> {
    text.trim()
        .parse()
        .ok()
        .map(Duration::from_secs)
        .or_else(|| parse_duration(text))
}

/// Text from which [`parse_duration`] reads the same duration, in common units: `30d`, `1m 30s`.
pub fn exact_duration(duration: Duration) -> String {
    // Days are the largest unit: humantime's months and years are not whole days.
    const DAY_SECONDS: u64 = 24 * 3600;
    let days = duration.as_secs() / DAY_SECONDS;
    let rest = duration.as_secs() % DAY_SECONDS;
    let rest = Duration::new(rest, duration.subsec_nanos());
    match (days, rest.is_zero()) {
        (0, _) => humantime::format_duration(rest).to_string(),
        (days, true) => format!("{days}d"),
        (days, false) => format!("{days}d {}", humantime::format_duration(rest)),
    }
}

/// The unit of a number in the configuration.
pub trait Unit {
    /// A text that is allowed, for messages.
    const EXAMPLE: &'static str;
    /// Reads a number; `None` where the text is none.
    fn parse(text: &str) -> Option<u64>;
    /// The text from which `parse` reads the same number.
    fn exact(number: u64) -> String;
}

/// Milliseconds, from a duration with its unit.
pub struct Milliseconds;

impl Unit for Milliseconds {
    const EXAMPLE: &'static str = "a duration such as 10s";

    fn parse(text: &str) -> Option<u64> {
        parse_duration(text)?.as_millis().try_into().ok()
    }

    fn exact(number: u64) -> String {
        exact_duration(Duration::from_millis(number))
    }
}

/// Bytes, such as `16MiB`.
pub struct Bytes;

impl Unit for Bytes {
    const EXAMPLE: &'static str = "a size such as 32MiB";

    fn parse(text: &str) -> Option<u64> {
        parse_bytes(text)
    }

    fn exact(number: u64) -> String {
        exact_bytes(number)
    }
}

/// A number without a unit.
pub struct Count;

impl Unit for Count {
    const EXAMPLE: &'static str = "a number";

    fn parse(text: &str) -> Option<u64> {
        text.parse().ok()
    }

    fn exact(number: u64) -> String {
        number.to_string()
    }
}

/// For `#[serde(with)]`: a number of the unit `U`, never outside `MIN..=MAX`.
pub struct Within<U, const MIN: u64, const MAX: u64>(PhantomData<U>);

impl<U: Unit, const MIN: u64, const MAX: u64> Within<U, MIN, MAX> {
    /// Writes the number in its unit.
    pub fn serialize<N: Copy + TryInto<u64>, S: Serializer>(
        number: &N,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(&U::exact((*number).try_into().unwrap_or(u64::MAX)))
    }

    /// Reads a number within the bounds.
    pub fn deserialize<'de, N: TryFrom<u64>, D: Deserializer<'de>>(from: D) -> Result<N, D::Error> {
        let number = from.deserialize_any(Within::<U, MIN, MAX>(PhantomData))?;
        number
            .try_into()
            .map_err(|_| D::Error::custom(format_args!("{number} does not fit")))
    }
}

impl<U: Unit, const MIN: u64, const MAX: u64> Visitor<'_> for Within<U, MIN, MAX> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, from {} to {}",
            U::EXAMPLE,
            U::exact(MIN),
            U::exact(MAX)
        )
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        let number = U::parse(text).filter(|number| (MIN..=MAX).contains(number));
        number.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        self.visit_str(&number.to_string())
    }
}

/// For `#[serde(with)]`: a duration of whole milliseconds, never outside `MIN_MS..=MAX_MS`.
pub struct Lasting<const MIN_MS: u64, const MAX_MS: u64>;

impl<const MIN_MS: u64, const MAX_MS: u64> Lasting<MIN_MS, MAX_MS> {
    /// Writes the duration in common units.
    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&exact_duration(*duration))
    }

    /// Reads a duration within the bounds.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        Within::<Milliseconds, MIN_MS, MAX_MS>::deserialize(from).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        let table = [
            ("0", 0),
            ("17", 17),
            ("17B", 17),
            ("2kB", 2_000),
            ("32MiB", 33_554_432),
            ("32 mib", 33_554_432),
            ("1GiB", 1 << 30),
            ("64TiB", 64 << 40),
        ];
        for (text, bytes) in table {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for bytes in [
            0,
            1,
            1023,
            1024,
            1025,
            33_554_432,
            3 << 30,
            64 << 40,
            u64::MAX,
        ] {
            assert_eq!(parse_bytes(&exact_bytes(bytes)), Some(bytes));
        }
        for bad in [
            "",
            "MiB",
            "-1",
            "1.5MiB",
            "1PiB",
            "1 2",
            "99999999999999999999",
            "18446744073709551615GiB",
            "١",
        ] {
            assert_eq!(parse_bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_displayed_size_has_a_unit_and_is_rounded_down() {
        let sizes = [
            0,
            1023,
            1024,
            5_000,
            10_239,
            1_600_000,
            20 << 20,
            5 << 30,
            64 << 40,
        ];
        let shown: Vec<_> = sizes.into_iter().map(human_bytes).collect();
        assert_eq!(
            shown,
            [
                "0 B", "1023 B", "1.0 KiB", "4.8 KiB", "9.9 KiB", "1.5 MiB", "20 MiB", "5.0 GiB",
                "64 TiB"
            ]
        );
    }

    #[test]
    fn an_exactly_written_duration_parses_to_the_same_duration() {
        let day = 24 * 3600;
        let hour = 3600;
        for (text, seconds) in [
            ("0s", 0),
            ("1m 30s", 90),
            ("12h", 12 * hour),
            ("1d", day),
            ("3660d", 3660 * day),
        ] {
            let duration = Duration::from_secs(seconds);
            assert_eq!(
                (exact_duration(duration).as_str(), parse_duration(text)),
                (text, Some(duration))
            );
        }
        for duration in [
            Duration::from_millis(40 * day * 1000 + 250),
            Duration::from_secs(400 * day + 1),
        ] {
            assert_eq!(parse_duration(&exact_duration(duration)), Some(duration));
        }
        for bad in ["10", "", "s", "-1s", "1 parsec"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn fuzzed_units() {
        let corpus = ["32 MiB", "64TiB", "1m 30s", "30d 1h", "500ms", "17"];
        fuzz_text("sizes and durations", 64 << 10, &corpus, |text| {
            if let Some(bytes) = parse_bytes(text) {
                assert_eq!(parse_bytes(&exact_bytes(bytes)), Some(bytes));
                let _shown = human_bytes(bytes);
            }
            if let Some(duration) = parse_seconds(text) {
                assert_eq!(parse_duration(&exact_duration(duration)), Some(duration));
            }
        });
    }
}
