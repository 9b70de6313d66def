//! Sizes and durations as people write them.

use std::time::Duration;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;
const TIB: u64 = 1024 * GIB;

/// Bytes from `32MiB`, `32 MB`, `1024` (plain bytes). `None` where it is none of that or does not fit.
///
/// Units: `B`, `kB`/`MB`/`GB`/`TB` by the thousand, `KiB`/`MiB`/`GiB`/`TiB` by 1024, in any case.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(digits_end)?;
    let factor = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => KIB,
        "mib" => MIB,
        "gib" => GIB,
        "tib" => TIB,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Bytes so that [`parse_bytes`] reads the same number back.
pub fn exact_bytes(bytes: u64) -> String {
    match bytes {
        0 => "0B".to_owned(),
        _ if bytes.is_multiple_of(TIB) => format!("{}TiB", bytes / TIB),
        _ if bytes.is_multiple_of(GIB) => format!("{}GiB", bytes / GIB),
        _ if bytes.is_multiple_of(MIB) => format!("{}MiB", bytes / MIB),
        _ if bytes.is_multiple_of(KIB) => format!("{}KiB", bytes / KIB),
        _ => format!("{bytes}B"),
    }
}

/// Bytes for people: three digits at most, `1.5 MiB`.
pub fn human_bytes(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..KIB => return format!("{bytes} B"),
        KIB..MIB => (KIB, "KiB"),
        MIB..GIB => (MIB, "MiB"),
        GIB..TIB => (GIB, "GiB"),
        _ => (TIB, "TiB"),
    };
    let tenths = bytes / (unit / 10).max(1);
    if tenths < 100 { format!("{}.{} {name}", tenths / 10, tenths % 10) } else { format!("{} {name}", bytes / unit) }
}

/// A duration from `10s`, `1m 30s`, `500ms`. A number without unit is `None`: nobody knows what was meant.
pub fn parse_duration(text: &str) -> Option<Duration> {
    humantime::parse_duration(text.trim()).ok()
}

/// A duration so that [`parse_duration`] reads the same one back, in the units people type: `30d`, `1m 30s`.
pub fn exact_duration(duration: Duration) -> String {
    // Months and years are fractions of days, which nobody types: days are the largest unit.
    const DAY_SECONDS: u64 = 24 * 3600;
    let (days, rest) = (duration.as_secs() / DAY_SECONDS, duration.as_secs() % DAY_SECONDS);
    let rest = Duration::new(rest, duration.subsec_nanos());
    match (days, rest.is_zero()) {
        (0, _) => humantime::format_duration(rest).to_string(),
        (days, true) => format!("{days}d"),
        (days, false) => format!("{days}d {}", humantime::format_duration(rest)),
    }
}

#[cfg(test)]
mod tests {
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
        for bad in ["", "MiB", "-1", "1.5MiB", "1PiB", "1 2", "99999999999999999999", "18446744073709551615GiB", "١"] {
            assert_eq!(parse_bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_read_back_as_they_were_written() {
        for bytes in [0, 1, 1023, 1024, 1025, 33_554_432, 3 << 30, 64 << 40, u64::MAX] {
            assert_eq!(parse_bytes(&exact_bytes(bytes)), Some(bytes));
        }
    }

    #[test]
    fn sizes_for_people_have_three_digits() {
        let sizes = [0, 1023, 1024, 1_600_000, 20 << 20, 5 << 30, 64 << 40];
        let shown: Vec<_> = sizes.into_iter().map(human_bytes).collect();
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "20 MiB", "5.0 GiB", "64 TiB"]);
    }

    #[test]
    fn durations_read_back_as_people_type_them() {
        let (day, hour) = (24 * 3600, 3600);
        for (text, seconds) in [("0s", 0), ("1m 30s", 90), ("12h", 12 * hour), ("1d", day), ("3660d", 3660 * day)] {
            let duration = Duration::from_secs(seconds);
            assert_eq!((exact_duration(duration).as_str(), parse_duration(text)), (text, Some(duration)));
        }
        for duration in [Duration::from_millis(40 * day * 1000 + 250), Duration::from_secs(400 * day + 1)] {
            assert_eq!(parse_duration(&exact_duration(duration)), Some(duration));
        }
    }

    #[test]
    fn a_duration_needs_a_unit() {
        assert_eq!(parse_duration("1m 30s"), Some(Duration::from_secs(90)));
        assert_eq!(parse_duration("0s"), Some(Duration::ZERO));
        for bad in ["10", "", "s", "-1s", "1 parsec"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
