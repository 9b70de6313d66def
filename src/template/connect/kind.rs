//! A type of Postgres as Debezium takes it, and the values in texts of the type.
//!
//! <https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-data-types>; OIDs:
//! <https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat>.

use std::fmt::Write;

use crate::template::value::{ColumnType, Needed, bytea, timestamp};

/// What a text of Postgres stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    Text,
    Boolean,
    Integer,
    Single,
    Double,
    /// With this many digits, of which so many are behind the point.
    Decimal {
        precision: u32,
        scale: u32,
    },
    /// Each value with a scale of its own.
    AnyDecimal,
    Bytes,
    /// A time of a zone, as text, with so many digits behind the second.
    Instant {
        digits: usize,
    },
    /// A time of day of a zone, as text.
    InstantOfDay,
    /// A count since 1970.
    Timestamp {
        millis: bool,
    },
    /// Days since 1970.
    Date,
    /// A count since midnight.
    Time {
        millis: bool,
    },
    /// A length of time in microseconds.
    Interval,
}

/// A type as Kafka Connect knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    reads: Reads,
    /// `type` of the schema.
    basic: &'static str,
    /// `name` of the schema.
    name: Option<&'static str>,
    is_array: bool,
}

const fn plain(reads: Reads, basic: &'static str) -> Kind {
    Kind { reads, basic, name: None, is_array: false }
}

const fn named(reads: Reads, basic: &'static str, name: &'static str) -> Kind {
    Kind { reads, basic, name: Some(name), is_array: false }
}

impl Kind {
    pub(super) fn of(column: ColumnType) -> Kind {
        match element_of(column.oid) {
            Some(oid) => Kind { is_array: true, ..Kind::single(ColumnType { oid, ..column }) },
            None => Kind::single(column),
        }
    }

    fn single(column: ColumnType) -> Kind {
        // Three digits of a second and fewer are milliseconds.
        let millis = (0..=3).contains(&column.modifier);
        match column.oid {
            16 => plain(Reads::Boolean, "boolean"),
            21 => plain(Reads::Integer, "int16"),
            23 => plain(Reads::Integer, "int32"),
            20 | 26 => plain(Reads::Integer, "int64"),
            700 => plain(Reads::Single, "float"),
            701 => plain(Reads::Double, "double"),
            1700 => match decimal(column.modifier) {
                Some((precision, scale)) => {
                    named(Reads::Decimal { precision, scale }, "bytes", "org.apache.kafka.connect.data.Decimal")
                }
                None => named(Reads::AnyDecimal, "struct", "io.debezium.data.VariableScaleDecimal"),
            },
            17 => plain(Reads::Bytes, "bytes"),
            1184 => {
                let digits = usize::try_from(column.modifier).unwrap_or(6).min(6);
                named(Reads::Instant { digits }, "string", "io.debezium.time.ZonedTimestamp")
            }
            1266 => named(Reads::InstantOfDay, "string", "io.debezium.time.ZonedTime"),
            1114 if millis => named(Reads::Timestamp { millis }, "int64", "io.debezium.time.Timestamp"),
            1114 => named(Reads::Timestamp { millis }, "int64", "io.debezium.time.MicroTimestamp"),
            1082 => named(Reads::Date, "int32", "io.debezium.time.Date"),
            1083 if millis => named(Reads::Time { millis }, "int32", "io.debezium.time.Time"),
            1083 => named(Reads::Time { millis }, "int64", "io.debezium.time.MicroTime"),
            1186 => named(Reads::Interval, "int64", "io.debezium.time.MicroDuration"),
            2950 => named(Reads::Text, "string", "io.debezium.data.Uuid"),
            114 | 3802 => named(Reads::Text, "string", "io.debezium.data.Json"),
            142 => named(Reads::Text, "string", "io.debezium.data.Xml"),
            _ => plain(Reads::Text, "string"),
        }
    }

    /// Whether a value is the text that Postgres prints.
    pub(super) fn is_text(self) -> bool {
        self.reads == Reads::Text && !self.is_array
    }

    /// The schema as JSON.
    pub(super) fn schema(self, optional: bool) -> String {
        if self.is_array {
            let items = Kind { is_array: false, ..self }.schema(true);
            return format!("{{\"type\":\"array\",\"items\":{items},\"optional\":{optional}}}");
        }
        let basic = self.basic;
        if self.reads == Reads::AnyDecimal {
            let name = self.name.unwrap_or_default();
            return format!(
                "{{\"type\":\"struct\",\"fields\":[{{\"type\":\"int32\",\"optional\":false,\"field\":\"scale\"}},\
                 {{\"type\":\"bytes\",\"optional\":false,\"field\":\"value\"}}],\"optional\":{optional},\
                 \"name\":\"{name}\",\"version\":1,\"doc\":\"Variable scaled decimal\"}}"
            );
        }
        let mut schema = format!("{{\"type\":\"{basic}\",\"optional\":{optional}");
        if let Some(name) = self.name {
            schema.push_str(&format!(",\"name\":\"{name}\",\"version\":1"));
        }
        if let Reads::Decimal { precision, scale } = self.reads {
            schema.push_str(&format!(
                ",\"parameters\":{{\"scale\":\"{scale}\",\"connect.decimal.precision\":\"{precision}\"}}"
            ));
        }
        schema.push('}');
        schema
    }

    /// Reads the text that Postgres prints.
    ///
    /// # Errors
    /// What it should be.
    pub(super) fn read(self, text: &str) -> Result<Datum, Needed> {
        if self.is_array {
            let single = Kind { is_array: false, ..self };
            let elements = elements(text).ok_or("an array of one dimension")?;
            let read = |element: Option<String>| element.map_or(Ok(Datum::Null), |text| single.read(&text));
            return Ok(Datum::Array(elements.into_iter().map(read).collect::<Result<_, _>>()?));
        }
        let plain = |number: i64| Datum::Plain(number.to_string());
        match self.reads {
            Reads::Text => Some(Datum::Text(text.to_owned())),
            Reads::Integer => Some(Datum::Plain(text.to_owned())),
            Reads::Boolean => Some(Datum::Plain((if text == "t" { "true" } else { "false" }).to_owned())),
            Reads::Single => text.parse().ok().map(|number| floating(float(number))),
            Reads::Double => text.parse().ok().map(|number| floating(double(number))),
            Reads::Decimal { .. } => digits(text).map(|(digits, _)| Datum::Decimal(text.to_owned(), base64(&digits))),
            Reads::AnyDecimal => any_decimal(text),
            Reads::Bytes => bytea(text.as_bytes()).map(|bytes| Datum::Text(base64(&bytes))),
            Reads::Instant { digits } => timestamp(text).map(|time| Datum::Text(format!("{time:.digits$}"))),
            Reads::InstantOfDay => instant_of_day(text).map(Datum::Text),
            Reads::Timestamp { millis } => timestamp(text).map(|time| plain(count(time.as_microsecond(), millis))),
            Reads::Date => timestamp(text).map(|time| plain(time.as_second().div_euclid(86_400))),
            Reads::Time { millis } => micros_of_day(text).map(|micros| plain(count(micros, millis))),
            Reads::Interval => interval(text).map(plain),
        }
        .ok_or(self.needed())
    }

    fn needed(self) -> Needed {
        match self.reads {
            Reads::Instant { .. } | Reads::Timestamp { .. } => "a timestamp",
            Reads::Date => "a date",
            Reads::Time { .. } | Reads::InstantOfDay => "a time of day",
            Reads::Interval => "an interval",
            Reads::Bytes => "bytea in hexadecimal form",
            Reads::Single | Reads::Double | Reads::Decimal { .. } | Reads::AnyDecimal => "a finite number",
            Reads::Text | Reads::Boolean | Reads::Integer => "of its type",
        }
    }
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Datum {
    Null,
    /// Quoted in JSON, and in an array.
    Text(String),
    /// The same in every form.
    Plain(String),
    /// Digits as text, and in base64 as JSON.
    Decimal(String, String),
    Array(Vec<Datum>),
}

impl Datum {
    pub(super) fn text(self) -> String {
        match self {
            Datum::Text(text) | Datum::Plain(text) | Datum::Decimal(text, _) => text,
            Datum::Null => "null".to_owned(),
            Datum::Array(elements) => {
                let inside = |element: Datum| {
                    if let Datum::Text(text) = element {
                        return format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
                    }
                    element.text()
                };
                format!("[{}]", elements.into_iter().map(inside).collect::<Vec<_>>().join(","))
            }
        }
    }

    pub(super) fn json(self) -> String {
        match self {
            Datum::Text(text) => quoted(&text),
            Datum::Decimal(_, base64) => quoted(&base64),
            Datum::Plain(text) => text,
            Datum::Null => "null".to_owned(),
            Datum::Array(elements) => {
                format!("[{}]", elements.into_iter().map(Datum::json).collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// Precision and scale of a `numeric` with this modifier: <https://github.com/postgres/postgres/blob/master/src/backend/utils/adt/numeric.c>.
fn decimal(modifier: i32) -> Option<(u32, u32)> {
    let packed = u32::try_from(modifier.checked_sub(4)?).ok()?;
    // A scale below zero is in eleven bits, too; nobody has one.
    Some((packed >> 16, packed & 0x7ff))
}

/// The type of an array's elements.
fn element_of(oid: u32) -> Option<u32> {
    const ARRAYS: [(u32, u32); 24] = [
        (1000, 16),
        (1001, 17),
        (1002, 18),
        (1003, 19),
        (1005, 21),
        (1007, 23),
        (1009, 25),
        (1014, 1042),
        (1015, 1043),
        (1016, 20),
        (1021, 700),
        (1022, 701),
        (1028, 26),
        (1041, 869),
        (1115, 1114),
        (1182, 1082),
        (1183, 1083),
        (1185, 1184),
        (1187, 1186),
        (1231, 1700),
        (1270, 1266),
        (199, 114),
        (2951, 2950),
        (3807, 3802),
    ];
    ARRAYS.iter().find(|(array, _)| *array == oid).map(|(_, element)| *element)
}

fn floating(text: String) -> Datum {
    if text.ends_with(|c: char| c.is_ascii_digit()) { Datum::Plain(text) } else { Datum::Text(text) }
}

fn count(micros: i64, millis: bool) -> i64 {
    if millis { micros.div_euclid(1000) } else { micros }
}

/// The number without its point as a big-endian integer in two's complement, as short as can be, and its scale.
fn digits(text: &str) -> Option<(Vec<u8>, usize)> {
    let (negative, number) = text.strip_prefix('-').map_or((false, text), |number| (true, number));
    let (whole, behind) = number.split_once('.').unwrap_or((number, ""));
    let digits: Vec<u8> = whole.bytes().chain(behind.bytes()).collect();
    let mut limbs: Vec<u32> = Vec::new();
    for group in digits.chunks(9) {
        let value: u32 = std::str::from_utf8(group).ok()?.parse().ok()?;
        let base = 10_u64.pow(u32::try_from(group.len()).ok()?);
        let mut carry = u64::from(value);
        for limb in &mut limbs {
            carry += u64::from(*limb) * base;
            *limb = u32::try_from(carry & 0xffff_ffff).ok()?;
            carry >>= 32;
        }
        limbs.extend(u32::try_from(carry).ok().filter(|carry| *carry > 0));
    }
    let mut bytes: Vec<u8> =
        limbs.iter().rev().flat_map(|limb| limb.to_be_bytes()).skip_while(|byte| *byte == 0).collect();
    if negative {
        let mut carry = true;
        for byte in bytes.iter_mut().rev() {
            let (value, over) = (!*byte).overflowing_add(u8::from(carry));
            (*byte, carry) = (value, over);
        }
    }
    // The first bit is the sign.
    let filler = if negative { 0xff } else { 0 };
    if bytes.first().is_none_or(|first| (first & 0x80 != 0) != negative) && !(negative && bytes.is_empty()) {
        bytes.insert(0, filler);
    }
    Some((bytes, behind.len()))
}

/// The scale is that of the number without zeros at its end.
fn any_decimal(text: &str) -> Option<Datum> {
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text };
    let (digits, scale) = digits(short)?;
    Some(Datum::Plain(format!("{{\"scale\":{scale},\"value\":\"{}\"}}", base64(&digits))))
}

/// `07:08:09.5`.
fn micros_of_day(text: &str) -> Option<i64> {
    let mut parts = text.split(':');
    let mut next = || parts.next()?.parse::<i64>().ok();
    let (hours, minutes) = (next()?, next()?);
    let seconds = parts.next()?;
    let (seconds, behind) = seconds.split_once('.').unwrap_or((seconds, ""));
    let micros: i64 = format!("{behind:0<6}").parse().ok()?;
    let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
    let seconds = minutes.checked_mul(60)?.checked_add(seconds.parse().ok()?)?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}

/// `07:08:09.5+02` in UTC.
fn instant_of_day(text: &str) -> Option<String> {
    let (time, zone) = text.split_at_checked(text.find(['+', '-'])?)?;
    let (sign, zone) = zone.split_at_checked(1)?;
    let mut parts = zone.split(':').map(str::parse::<i64>);
    let mut next = || parts.next().map_or(Some(0), Result::ok);
    let offset_m = next()?.checked_mul(60)?.checked_add(next()?)?;
    let offset_s = offset_m.checked_mul(60)?.checked_add(next()?)?;
    let offset = if sign == "-" { offset_s.checked_neg()? } else { offset_s }.checked_mul(1_000_000)?;
    let micros = micros_of_day(time)?.checked_sub(offset)?.rem_euclid(86_400_000_000);
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    let behind = format!(".{micros:06}");
    let behind = behind.trim_end_matches('0').trim_end_matches('.');
    Some(format!("{:02}:{:02}:{:02}{behind}Z", seconds / 3600, seconds / 60 % 60, seconds % 60))
}

/// `1 year 2 mons -3 days +04:05:06.789` in microseconds; a month is a twelfth of 365.25 days.
fn interval(text: &str) -> Option<i64> {
    const DAY: i64 = 86_400_000_000;
    /// 30.4375 days.
    const MONTH: i64 = 2_629_800_000_000;
    let mut total: i64 = 0;
    let mut words = text.split(' ');
    while let Some(word) = words.next() {
        if word.contains(':') {
            let unsigned = word.trim_start_matches(['+', '-']);
            let micros = micros_of_day(unsigned)?;
            total = total.checked_add(if word.starts_with('-') { -micros } else { micros })?;
            continue;
        }
        let unit = match words.next()?.trim_end_matches('s') {
            "year" => 12 * MONTH,
            "mon" => MONTH,
            "day" => DAY,
            _ => return None,
        };
        total = total.checked_add(word.parse::<i64>().ok()?.checked_mul(unit)?)?;
    }
    Some(total)
}

/// <https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO>
fn elements(text: &str) -> Option<Vec<Option<String>>> {
    let mut rest = text.strip_prefix('{')?.strip_suffix('}')?.chars().peekable();
    let mut elements = Vec::new();
    while rest.peek().is_some() {
        let mut element = String::new();
        let mut quoted = false;
        loop {
            match rest.next() {
                None | Some(',') => break,
                Some('{') => return None,
                Some('"') => {
                    quoted = true;
                    loop {
                        match rest.next()? {
                            '"' => break,
                            '\\' => element.push(rest.next()?),
                            c => element.push(c),
                        }
                    }
                }
                Some(c) => element.push(c),
            }
        }
        elements.push((quoted || element != "NULL").then_some(element));
    }
    Some(elements)
}

/// A number as Java's `Double.toString` and `Float.toString` have it, of digits and exponent as Rust has them:
/// <https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/lang/Double.html#toString(double)>.
fn java_decimal(scientific: &str) -> String {
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific.to_owned() };
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let digits = mantissa.replace('.', "");
    let Ok(exponent) = exponent.parse::<i32>() else { return scientific.to_owned() };
    let or_zero = |text: &str| if text.is_empty() { "0".to_owned() } else { text.to_owned() };
    let split = |at: usize| digits.split_at_checked(at).unwrap_or((&digits, ""));
    match exponent {
        0..=6 => {
            let before = exponent.unsigned_abs() as usize + 1;
            if digits.len() <= before {
                return format!("{sign}{digits:0<before$}.0");
            }
            let (whole, rest) = split(before);
            format!("{sign}{whole}.{rest}")
        }
        -3..=-1 => format!("{sign}0.{}{digits}", "0".repeat(exponent.unsigned_abs() as usize - 1)),
        _ => {
            let (first, rest) = split(1);
            format!("{sign}{first}.{}E{exponent}", or_zero(rest))
        }
    }
}

/// `double`.
pub(super) fn double(number: f64) -> String {
    match number {
        infinite if infinite.is_infinite() => if infinite > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        nan if nan.is_nan() => "NaN".to_owned(),
        finite => java_decimal(&format!("{finite:e}")),
    }
}

/// `float`.
fn float(number: f32) -> String {
    if number.is_finite() { java_decimal(&format!("{number:e}")) } else { double(f64::from(number)) }
}

/// A JSON string, as Jackson escapes it: <https://www.rfc-editor.org/rfc/rfc8259#section-7>.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            // Writing to a String does not fail.
            c if !(' '..='\u{ffff}').contains(&c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(quoted, "\\u{unit:04X}").unwrap_or_default();
                }
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// <https://www.rfc-editor.org/rfc/rfc4648#section-4>
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4_usize {
            let digit = DIGITS.get((bits >> (18 - 6 * at) & 0x3f) as usize).copied().unwrap_or_default();
            text.push(if at > group.len() { '=' } else { char::from(digit) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_java() {
        for (number, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (12.5, "12.5"),
            (100.0, "100.0"),
            (9_999_999.0, "9999999.0"),
            (1e7, "1.0E7"),
            (12_345_678.9, "1.23456789E7"),
            (0.001, "0.001"),
            (0.012, "0.012"),
            (0.000_123_45, "1.2345E-4"),
            (-1e300, "-1.0E300"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(double(number), expected);
        }
        assert_eq!((float(0.1).as_str(), float(16_777_216.0).as_str()), ("0.1", "1.6777216E7"));
    }

    #[test]
    fn strings_and_bytes_are_written_as_everywhere() {
        let expected = "\"a\\\"b\\\\c\\n\\u0007\\u001Fé\u{7f}\\uD83D\\uDE00\"";
        assert_eq!(quoted("a\"b\\c\n\u{7}\u{1f}é\u{7f}😀"), expected);
        for (bytes, expected) in
            [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"\xff\xfe\x00\x3e", "//4APg==")]
        {
            assert_eq!(base64(bytes), expected);
        }
    }
}
