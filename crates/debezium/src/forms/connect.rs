//! A value in the forms of Kafka Connect's converters, by the type of its column: what Debezium's
//! consumers know. An error is what the value should be instead.
//!
//! As Debezium 3.7 writes it with `SimpleHeaderConverter` and `JsonConverter` of Kafka Connect 4.3
//! and their defaults (`decimal.handling.mode=precise`, `time.precision.mode=adaptive`):
//! <https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-data-types>.
//! OIDs: <https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat>.

use std::borrow::Cow;
use std::fmt::{LowerExp, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, civil};
use num_bigint::BigInt;
use walrelay_core::template::{ColumnType, Moment, bytea, micros_of_day, offset_micros};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As text: `SimpleHeaderConverter`.
    Text,
    /// As JSON: `JsonConverter` without schemas.
    Json,
    /// As JSON with its schema around it.
    Schema {
        /// Whether the schema says so: a column that is NOT NULL.
        required: bool,
        /// Whether a NULL stays one.
        tombstone: bool,
    },
}

impl Form {
    /// Of the arguments of a template's function.
    pub(super) fn new(words: &[&str]) -> Result<Form, String> {
        match words {
            [] | ["text"] => Ok(Form::Text),
            ["json"] => Ok(Form::Json),
            ["schema", more @ ..]
                if more
                    .iter()
                    .all(|word| matches!(*word, "required" | "tombstone")) =>
            {
                Ok(Form::Schema {
                    required: more.contains(&"required"),
                    tombstone: more.contains(&"tombstone"),
                })
            }
            _ => Err(
                "connect takes 'text', 'json' or 'schema', and behind 'schema' 'required' and \
                     'tombstone'"
                    .to_owned(),
            ),
        }
    }

    /// The value of a column of this type; `None` is NULL.
    pub(super) fn write<'v>(
        self,
        value: Option<Cow<'v, str>>,
        of: ColumnType,
    ) -> Result<Option<Cow<'v, str>>, &'static str> {
        let kind = Kind::of(of);
        match (self, value) {
            (Form::Text | Form::Json, None)
            | (
                Form::Schema {
                    tombstone: true, ..
                },
                None,
            ) => Ok(None),
            (Form::Text, Some(text)) if kind.is_text() => Ok(Some(text)),
            (Form::Text, Some(text)) => Ok(Some(Cow::Owned(kind.read(&text)?.text()))),
            (Form::Json, Some(text)) => Ok(Some(Cow::Owned(kind.read(&text)?.json()))),
            (Form::Schema { required, .. }, value) => {
                let payload = match value {
                    Some(text) => kind.read(&text)?.json(),
                    None => "null".to_owned(),
                };
                let schema = kind.schema(!required);
                Ok(Some(Cow::Owned(format!(
                    "{{\"schema\":{schema},\"payload\":{payload}}}"
                ))))
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    Text,
    Boolean,
    Integer,
    Single,
    Double,
    /// With this precision and scale.
    Decimal(u32, u32),
    /// Each value with a scale of its own.
    AnyDecimal,
    Bytes,
    /// `timestamptz`, as text with so many digits behind the second.
    Instant(usize),
    /// `timetz`, as text.
    InstantOfDay,
    /// A count since 1970, in units of so many microseconds.
    Timestamp(i64),
    Date,
    /// A count since midnight, likewise.
    Time(i64),
    Interval,
}

/// A type of Postgres as Debezium reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    reads: Reads,
    /// `type` of the schema.
    basic: &'static str,
    /// `name` of the schema; may be empty.
    name: &'static str,
    is_array: bool,
}

impl Kind {
    fn of(column: ColumnType) -> Kind {
        match element_of(column.oid) {
            Some(oid) => Kind {
                is_array: true,
                ..Kind::single(ColumnType { oid, ..column })
            },
            None => Kind::single(column),
        }
    }

    fn single(column: ColumnType) -> Kind {
        // Three digits of a second and fewer are milliseconds.
        let millis = (0..=3).contains(&column.modifier);
        let (reads, basic, name) = match column.oid {
            16 => (Reads::Boolean, "boolean", ""),
            21 => (Reads::Integer, "int16", ""),
            23 => (Reads::Integer, "int32", ""),
            20 | 26 => (Reads::Integer, "int64", ""),
            700 => (Reads::Single, "float", ""),
            701 => (Reads::Double, "double", ""),
            1700 => match decimal(column.modifier) {
                Some(decimal) => (decimal, "bytes", "org.apache.kafka.connect.data.Decimal"),
                None => (
                    Reads::AnyDecimal,
                    "struct",
                    "io.debezium.data.VariableScaleDecimal",
                ),
            },
            17 => (Reads::Bytes, "bytes", ""),
            1184 => {
                let digits = usize::try_from(column.modifier).unwrap_or(6).min(6);
                (
                    Reads::Instant(digits),
                    "string",
                    "io.debezium.time.ZonedTimestamp",
                )
            }
            1266 => (Reads::InstantOfDay, "string", "io.debezium.time.ZonedTime"),
            1114 if millis => (
                Reads::Timestamp(1000),
                "int64",
                "io.debezium.time.Timestamp",
            ),
            1114 => (
                Reads::Timestamp(1),
                "int64",
                "io.debezium.time.MicroTimestamp",
            ),
            1082 => (Reads::Date, "int32", "io.debezium.time.Date"),
            1083 if millis => (Reads::Time(1000), "int32", "io.debezium.time.Time"),
            1083 => (Reads::Time(1), "int64", "io.debezium.time.MicroTime"),
            1186 => (Reads::Interval, "int64", "io.debezium.time.MicroDuration"),
            2950 => (Reads::Text, "string", "io.debezium.data.Uuid"),
            114 | 3802 => (Reads::Text, "string", "io.debezium.data.Json"),
            142 => (Reads::Text, "string", "io.debezium.data.Xml"),
            3614 => (Reads::Text, "string", "io.debezium.data.Tsvector"),
            _ => (Reads::Text, "string", ""),
        };
        Kind {
            reads,
            basic,
            name,
            is_array: false,
        }
    }

    fn is_text(self) -> bool {
        self.reads == Reads::Text && !self.is_array
    }

    fn schema(self, optional: bool) -> String {
        let Kind {
            reads,
            basic,
            name,
            is_array,
        } = self;
        if is_array {
            let items = Kind {
                is_array: false,
                ..self
            }
            .schema(true);
            return format!(r#"{{"type":"array","items":{items},"optional":{optional}}}"#);
        }
        let mut schema = format!(r#"{{"type":"{basic}","#);
        if reads == Reads::AnyDecimal {
            let scale = r#"{"type":"int32","optional":false,"field":"scale"}"#;
            let value = r#"{"type":"bytes","optional":false,"field":"value"}"#;
            schema.push_str(&format!(r#""fields":[{scale},{value}],"#));
        }
        schema.push_str(&format!(r#""optional":{optional}"#));
        if !name.is_empty() {
            schema.push_str(&format!(r#","name":"{name}","version":1"#));
        }
        if let Reads::Decimal(precision, scale) = reads {
            schema.push_str(&format!(
                r#","parameters":{{"scale":"{scale}","connect.decimal.precision":"{precision}"}}"#
            ));
        }
        if reads == Reads::AnyDecimal {
            schema.push_str(r#","doc":"Variable scaled decimal""#);
        }
        schema.push('}');
        schema
    }

    /// Reads the text that Postgres prints.
    fn read(self, text: &str) -> Result<Datum, &'static str> {
        const NUMBER: &str = "a finite number";
        const TIME_OF_DAY: &str = "a time of day";
        if self.is_array {
            let single = Kind {
                is_array: false,
                ..self
            };
            let elements = elements(text).ok_or("an array of one dimension")?;
            let read = |element: Option<String>| {
                element.map_or(Ok(Datum::Null), |text| single.read(&text))
            };
            return Ok(Datum::Array(
                elements.into_iter().map(read).collect::<Result<_, _>>()?,
            ));
        }
        let plain = |number: i64| Datum::Plain(number.to_string());
        let time = || Moment::read(text).ok_or("a timestamp");
        Ok(match self.reads {
            Reads::Text => Datum::Text(text.to_owned()),
            Reads::Integer => Datum::Plain(text.to_owned()),
            Reads::Boolean => Datum::Plain((if text == "t" { "true" } else { "false" }).to_owned()),
            Reads::Single => text
                .parse()
                .map(|number| floating(float(number)))
                .map_err(|_| NUMBER)?,
            Reads::Double => text
                .parse()
                .map(|number| floating(double(number)))
                .map_err(|_| NUMBER)?,
            Reads::Decimal(_, scale) => {
                let text = with_scale(text, scale);
                let (digits, _) = digits(&text).ok_or(NUMBER)?;
                Datum::Number(big_decimal(&text), STANDARD.encode(digits))
            }
            Reads::AnyDecimal => {
                // The scale is that of the number without zeros at its end.
                let has_fraction = text.contains('.');
                let short = if has_fraction {
                    text.trim_end_matches('0').trim_end_matches('.')
                } else {
                    text
                };
                let (digits, scale) = digits(short).ok_or(NUMBER)?;
                Datum::Plain(format!(
                    r#"{{"scale":{scale},"value":"{}"}}"#,
                    STANDARD.encode(digits)
                ))
            }
            Reads::Bytes => Datum::Text(STANDARD.encode(bytea(text.as_bytes())?)),
            Reads::Instant(_) if endless(text).is_some() => Datum::Text(text.to_owned()),
            Reads::Instant(digits) => Datum::Text(time()?.iso(Some(digits)).ok_or("a timestamp")?),
            Reads::InstantOfDay => Datum::Text(instant_of_day(text).ok_or(TIME_OF_DAY)?),
            Reads::Timestamp(unit) => {
                let moment = endless(text).map_or_else(time, |(moment, _)| Ok(moment))?;
                plain(if unit == 1 {
                    moment.micros()
                } else {
                    moment.millis().ok_or("a timestamp")?
                })
            }
            Reads::Date => match endless(text) {
                Some((_, days)) => plain(days),
                None => plain(Moment::read(text).ok_or("a date")?.days()),
            },
            Reads::Time(unit) => plain(micros_of_day(text).ok_or(TIME_OF_DAY)?.div_euclid(unit)),
            Reads::Interval => plain(interval(text).ok_or("an interval")?),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Datum {
    Null,
    /// Quoted in JSON, and in an array.
    Text(String),
    /// The same in every form.
    Plain(String),
    /// Without quotes as text, and as a string in JSON: digits and their base64, or `NaN`.
    Number(String, String),
    Array(Vec<Datum>),
}

impl Datum {
    fn text(self) -> String {
        match self {
            Datum::Text(text) | Datum::Plain(text) | Datum::Number(text, _) => text,
            Datum::Null => "null".to_owned(),
            Datum::Array(elements) => {
                let inside = |element: Datum| {
                    if let Datum::Text(text) = element {
                        return format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
                    }
                    element.text()
                };
                format!(
                    "[{}]",
                    elements
                        .into_iter()
                        .map(inside)
                        .collect::<Vec<_>>()
                        .join(",")
                )
            }
        }
    }

    fn json(self) -> String {
        match self {
            Datum::Text(text) => quoted(&text),
            Datum::Number(_, json) => quoted(&json),
            Datum::Plain(text) => text,
            Datum::Null => "null".to_owned(),
            Datum::Array(elements) => {
                format!(
                    "[{}]",
                    elements
                        .into_iter()
                        .map(Datum::json)
                        .collect::<Vec<_>>()
                        .join(",")
                )
            }
        }
    }
}

/// Precision and scale of a `numeric` with this modifier:
/// <https://github.com/postgres/postgres/blob/master/src/backend/utils/adt/numeric.c>.
fn decimal(modifier: i32) -> Option<Reads> {
    let packed = u32::try_from(modifier.checked_sub(4)?).ok()?;
    // A scale below zero is in eleven bits, too. `TypeInfoCache.getScale` of pgjdbc takes it for
    // one of up to 2047.
    Some(Reads::Decimal(packed >> 16, packed & 0x7ff))
}

/// Arrays that Debezium reads, and the types of their elements.
const ARRAYS: [(u32, u32); 33] = [
    (1000, 16),
    (1001, 17),
    (1002, 18),
    (1003, 19),
    (1016, 20),
    (1005, 21),
    (1007, 23),
    (1009, 25),
    (1028, 26),
    (199, 114),
    (651, 650),
    (1021, 700),
    (1022, 701),
    (775, 774),
    (1040, 829),
    (1041, 869),
    (1014, 1042),
    (1015, 1043),
    (1182, 1082),
    (1183, 1083),
    (1115, 1114),
    (1185, 1184),
    (1187, 1186),
    (1270, 1266),
    (1231, 1700),
    (2951, 2950),
    (3807, 3802),
    (3905, 3904),
    (3907, 3906),
    (3909, 3908),
    (3911, 3910),
    (3913, 3912),
    (3927, 3926),
];

/// The type of an array's elements, where Debezium reads arrays of it.
fn element_of(oid: u32) -> Option<u32> {
    ARRAYS
        .iter()
        .find(|(array, _)| *array == oid)
        .map(|(_, element)| *element)
}

/// The moment and the days of `infinity` and `-infinity`: `PGStatement.DATE_POSITIVE_INFINITY` of
/// pgjdbc and what Debezium sends of such a `date`, and the negative ones. A `timestamptz` stays as
/// it is.
fn endless(text: &str) -> Option<(Moment, i64)> {
    match text {
        "infinity" => Some((
            Moment::from_nanos(9_223_372_036_825_200_000_000_000),
            2_146_033_979,
        )),
        "-infinity" => Some((
            Moment::from_nanos(-9_223_372_036_832_400_000_000_000),
            -2_147_472_691,
        )),
        _ => None,
    }
}

fn floating(text: String) -> Datum {
    if text.ends_with(|c: char| c.is_ascii_digit()) {
        Datum::Plain(text)
    } else {
        Datum::Number(text.clone(), text)
    }
}

/// The number without its point as a big-endian integer in two's complement, as short as can be,
/// and its scale.
fn digits(text: &str) -> Option<(Vec<u8>, usize)> {
    let scale = text.split_once('.').map_or(0, |(_, behind)| behind.len());
    let number: BigInt = text.replacen('.', "", 1).parse().ok()?;
    Some((number.to_signed_bytes_be(), scale))
}

/// The same number with so many digits behind the point, if it has fewer:
/// `JdbcValueConverters.withScaleAdjustedIfNeeded`.
fn with_scale(text: &str, scale: u32) -> Cow<'_, str> {
    let behind = text.split_once('.').map_or(0, |(_, behind)| behind.len());
    let missing = usize::try_from(scale)
        .unwrap_or_default()
        .saturating_sub(behind);
    if missing == 0 || !text.ends_with(|c: char| c.is_ascii_digit()) {
        return Cow::Borrowed(text);
    }
    let point = if behind == 0 { "." } else { "" };
    Cow::Owned(format!("{text}{point}{}", "0".repeat(missing)))
}

/// A number as Java's `BigDecimal.toString` has it: with an exponent where more than five zeros
/// follow the point.
/// <https://docs.oracle.com/en/java/javase/17/docs/api/java.base/java/math/BigDecimal.html#toString()>
fn big_decimal(text: &str) -> String {
    let (sign, number) = text
        .strip_prefix('-')
        .map_or(("", text), |number| ("-", number));
    let Some(behind) = number.strip_prefix("0.") else {
        return text.to_owned();
    };
    let digits = behind.trim_start_matches('0');
    let zeros = behind.len() - digits.len();
    // Of zero itself the last zero is a digit.
    let (exponent, digits) = if digits.is_empty() {
        (zeros, "0")
    } else {
        (zeros + 1, digits)
    };
    if exponent <= 6 {
        return text.to_owned();
    }
    let (first, rest) = digits.split_at_checked(1).unwrap_or((digits, ""));
    let point = if rest.is_empty() { "" } else { "." };
    format!("{sign}{first}{point}{rest}E-{exponent}")
}

/// `07:08:09.5+02` in UTC. The end of the day in UTC stays so:
/// `PostgresTimeBoundary.isTimeWithTimeZoneBoundaryAtUtc`.
fn instant_of_day(text: &str) -> Option<String> {
    let (time, zone) = text.split_at_checked(text.find(['+', '-'])?)?;
    let offset = offset_micros(zone)?;
    if time == "24:00:00" && offset == 0 {
        return Some("24:00:00Z".to_owned());
    }
    let micros = SignedDuration::from_micros(micros_of_day(time)?.checked_sub(offset)?);
    Some(format!("{}Z", civil::Time::midnight().wrapping_add(micros)))
}

/// `1 year 2 mons -3 days +04:05:06.789` in microseconds; a month is a twelfth of 365.25 days. In
/// floating point and cut off, so some are one less than they should be: pgjdbc's `PGInterval`, and
/// `MicroDuration.durationMicros` of Debezium.
fn interval(text: &str) -> Option<i64> {
    const DAYS_PER_MONTH: f64 = 365.25 / 12.0;
    let mut months = 0_i32;
    let mut days = 0_i32;
    let mut seconds = 0.0;
    let mut hours = 0_i32;
    let mut minutes = 0_i32;
    let mut words = text.split(' ');
    while let Some(word) = words.next() {
        if let Some((before, behind)) = word.split_once(':') {
            let sign = if before.starts_with('-') { -1 } else { 1 };
            let (whole_minutes, behind) = behind.split_once(':')?;
            hours = before.trim_start_matches(['+', '-']).parse::<i32>().ok()? * sign;
            minutes = whole_minutes.parse::<i32>().ok()?.checked_mul(sign)?;
            let micros = micros_of_day(&format!("0:0:{behind}"))?;
            let whole = i32::try_from(micros / 1_000_000).ok()?;
            let micros = i32::try_from(micros % 1_000_000).ok()?;
            seconds = f64::from(sign) * (f64::from(whole) + f64::from(micros) / 1e6);
            continue;
        }
        let number: i32 = word.parse().ok()?;
        match words.next()?.trim_end_matches('s') {
            "year" => months = months.checked_add(number.checked_mul(12)?)?,
            "mon" => months = months.checked_add(number)?,
            "day" => days = number,
            _ => return None,
        }
    }
    let days = f64::from(months) * DAYS_PER_MONTH + f64::from(days);
    let seconds = ((days * 24.0 + f64::from(hours)) * 60.0 + f64::from(minutes)) * 60.0 + seconds;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "cut off, as Java's cast does"
    )]
    let micros = (seconds * 1e6) as i64;
    Some(micros)
}

/// <https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO>
fn elements(text: &str) -> Option<Vec<Option<String>>> {
    let mut rest = text
        .strip_prefix('{')?
        .strip_suffix('}')?
        .chars()
        .peekable();
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

/// A number as `Double.toString` and `Float.toString` have it from Java 19 on, of digits and
/// exponent as Rust has them:
/// <https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/lang/Double.html#toString(double)>.
/// Before Java 19 some have other digits of the same number (JDK-4511638).
fn java_decimal(scientific: &str) -> String {
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific.to_owned();
    };
    let (sign, mantissa) = mantissa
        .strip_prefix('-')
        .map_or(("", mantissa), |rest| ("-", rest));
    let digits = mantissa.replace('.', "");
    let Ok(exponent) = exponent.parse::<i32>() else {
        return scientific.to_owned();
    };
    let or_zero = |text: &str| {
        if text.is_empty() {
            "0".to_owned()
        } else {
            text.to_owned()
        }
    };
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
        -3..=-1 => format!(
            "{sign}0.{}{digits}",
            "0".repeat(exponent.unsigned_abs() as usize - 1)
        ),
        _ => {
            let (first, rest) = split(1);
            format!("{sign}{first}.{}E{exponent}", or_zero(rest))
        }
    }
}

pub(super) fn double(number: f64) -> String {
    match number {
        infinite if infinite.is_infinite() => if infinite > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned(),
        nan if nan.is_nan() => "NaN".to_owned(),
        finite => java_decimal(&scientific(finite, finite.is_subnormal())),
    }
}

fn float(number: f32) -> String {
    match number {
        finite if finite.is_finite() => java_decimal(&scientific(finite, finite.is_subnormal())),
        other => double(f64::from(other)),
    }
}

/// The fewest digits that tell a number from all others, but of two at least the nearest: that
/// makes a difference to the smallest numbers only, such as 4.9E-324.
fn scientific(number: impl LowerExp, is_subnormal: bool) -> String {
    let shortest = format!("{number:e}");
    if is_subnormal && !shortest.contains('.') {
        format!("{number:.1e}")
    } else {
        shortest
    }
}

/// A JSON string, as Jackson escapes it: <https://www.rfc-editor.org/rfc/rfc8259#section-7>.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    text.chars().for_each(|c| push_escaped(&mut quoted, c));
    quoted.push('"');
    quoted
}

/// A valid JSON string, escaped likewise. One half of a surrogate pair stays so.
pub(super) fn requoted(string: &str) -> String {
    let mut quoted = String::with_capacity(string.len());
    quoted.push('"');
    let inside = string
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap_or(string);
    let mut characters = inside.chars();
    while let Some(c) = characters.next() {
        let escaped = if c == '\\' { characters.next() } else { None };
        let c = match escaped {
            None => c,
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                let digits: String = characters.by_ref().take(4).collect();
                let unit = u32::from_str_radix(&digits, 16).unwrap_or_default();
                let Some(c) = char::from_u32(unit) else {
                    push_unit(&mut quoted, unit);
                    continue;
                };
                c
            }
            Some(c) => c,
        };
        push_escaped(&mut quoted, c);
    }
    quoted.push('"');
    quoted
}

fn push_escaped(quoted: &mut String, c: char) {
    match c {
        '"' => quoted.push_str("\\\""),
        '\\' => quoted.push_str("\\\\"),
        '\n' => quoted.push_str("\\n"),
        '\r' => quoted.push_str("\\r"),
        '\t' => quoted.push_str("\\t"),
        '\u{8}' => quoted.push_str("\\b"),
        '\u{c}' => quoted.push_str("\\f"),
        c if !(' '..='\u{ffff}').contains(&c) => {
            c.encode_utf16(&mut [0; 2])
                .iter()
                .for_each(|unit| push_unit(quoted, u32::from(*unit)));
        }
        c => quoted.push(c),
    }
}

fn push_unit(quoted: &mut String, unit: u32) {
    // Writing to a String does not fail.
    write!(quoted, "\\u{unit:04X}").unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz;

    use super::*;

    #[test]
    fn numbers_are_those_of_java() {
        for (number, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (12.5, "12.5"),
            (100.0, "100.0"),
            (9_999_999.0, "9999999.0"),
            (1e7, "1.0E7"),
            (12_345_678.9, "1.23456789E7"),
            (0.001, "0.001"),
            (0.012, "0.012"),
            (0.000_123_45, "1.2345E-4"),
            (-1e300, "-1.0E300"),
            (5e-324, "4.9E-324"),
            (1e-323, "9.9E-324"),
            (1.5e-323, "1.5E-323"),
            (1e-300, "1.0E-300"),
            (1e23, "1.0E23"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(double(number), expected);
        }
        for (number, expected) in [
            (0.1, "0.1"),
            (16_777_216.0, "1.6777216E7"),
            (1e-45, "1.4E-45"),
            (f32::NAN, "NaN"),
        ] {
            assert_eq!(float(number), expected);
        }
    }

    #[test]
    fn small_decimals_have_an_exponent() {
        for (text, expected) in [
            ("0.000001", "0.000001"),
            ("0.0000001", "1E-7"),
            ("-0.00000012", "-1.2E-7"),
            ("0.00000100", "0.00000100"),
            ("0.00000010", "1.0E-7"),
            ("0.000000", "0.000000"),
            ("0.00000000", "0E-8"),
            ("10.00000000", "10.00000000"),
            ("0", "0"),
            ("-7", "-7"),
        ] {
            assert_eq!(big_decimal(text), expected);
        }
    }

    fn written(
        form: Form,
        oid: u32,
        modifier: i32,
        text: Option<&str>,
    ) -> Result<Option<String>, &'static str> {
        let value = form.write(text.map(Cow::Borrowed), ColumnType { oid, modifier })?;
        Ok(value.map(Cow::into_owned))
    }

    /// Most types are in the conformance test; these cases are in no capture.
    #[test]
    fn values_are_written_by_the_type_of_their_column() {
        const WIDE: &str = r#"{"scale":0,"value":"Ap1Ctk52cUJEyw=="}"#;
        for (oid, modifier, text, as_text, as_json) in [
            (
                1184,
                -1,
                "2024-05-06 05:08:09.1+05:30",
                "2024-05-05T23:38:09.100000Z",
                r#""2024-05-05T23:38:09.100000Z""#,
            ),
            (
                1184,
                0,
                "2024-05-06 05:08:09+00",
                "2024-05-06T05:08:09Z",
                r#""2024-05-06T05:08:09Z""#,
            ),
            (1114, -1, "1969-12-31 23:59:59.999999", "-1", "-1"),
            (1114, 3, "1969-12-31 23:59:59.999", "-1", "-1"),
            (1082, -1, "1969-12-31", "-1", "-1"),
            (1083, -1, "24:00:00", "86400000000", "86400000000"),
            (
                1266,
                -1,
                "01:00:00.25-05:30",
                "06:30:00.25Z",
                r#""06:30:00.25Z""#,
            ),
            (
                1186,
                -1,
                "-1 days +00:00:01",
                "-86399000000",
                "-86399000000",
            ),
            (1186, -1, "00:00:00", "0", "0"),
            // In floating point some are one less.
            (1186, -1, "00:00:08.322643", "8322642", "8322642"),
            (1186, -1, "-00:00:08.322643", "-8322642", "-8322642"),
            (
                1186,
                -1,
                "2 years 2 mons 4 days 16:02:43.68742",
                "68778163687419",
                "68778163687419",
            ),
            (
                1114,
                -1,
                "9999-12-31 23:59:59.999999",
                "253402300799999999",
                "253402300799999999",
            ),
            (
                1114,
                3,
                "12026-01-01 00:00:00",
                "317336745600000",
                "317336745600000",
            ),
            (
                1114,
                -1,
                "0044-03-15 12:00:00 BC",
                "-63517780800000000",
                "-63517780800000000",
            ),
            (
                1114,
                -1,
                "infinity",
                "9223372036854775807",
                "9223372036854775807",
            ),
            (
                1114,
                0,
                "-infinity",
                "-9223372036832400000",
                "-9223372036832400000",
            ),
            (1082, -1, "5874897-12-31", "2145042905", "2145042905"),
            (1082, -1, "0044-03-15 BC", "-735160", "-735160"),
            (1082, -1, "infinity", "2146033979", "2146033979"),
            (1082, -1, "-infinity", "-2147472691", "-2147472691"),
            (
                1184,
                0,
                "9999-12-31 23:59:59+00",
                "9999-12-31T23:59:59Z",
                r#""9999-12-31T23:59:59Z""#,
            ),
            (
                1184,
                -1,
                "9999-12-31 23:59:59.5-00:00:01",
                "+10000-01-01T00:00:00.500000Z",
                r#""+10000-01-01T00:00:00.500000Z""#,
            ),
            (
                1184,
                3,
                "0044-03-15 12:00:00+00 BC",
                "-0043-03-15T12:00:00.000Z",
                r#""-0043-03-15T12:00:00.000Z""#,
            ),
            (
                1184,
                0,
                "0001-01-01 00:00:00+00 BC",
                "0000-01-01T00:00:00Z",
                r#""0000-01-01T00:00:00Z""#,
            ),
            (1184, -1, "-infinity", "-infinity", r#""-infinity""#),
            (1266, -1, "24:00:00+00", "24:00:00Z", r#""24:00:00Z""#),
            (1266, -1, "24:00:00-01", "01:00:00Z", r#""01:00:00Z""#),
            (1700, 655_372, "0.00000000", "0E-8", r#""AA==""#),
            (
                1231,
                655_372,
                "{0.00000012,-1.00000000}",
                "[1.2E-7,-1.00000000]",
                r#"["DA==","+gofAA=="]"#,
            ),
            (
                651,
                -1,
                "{10.0.0.0/8,NULL}",
                r#"["10.0.0.0/8",null]"#,
                r#"["10.0.0.0/8",null]"#,
            ),
            (701, -1, "NaN", "NaN", r#""NaN""#),
            (1022, -1, "{NaN,-0}", "[NaN,-0.0]", r#"["NaN",-0.0]"#),
            (700, -1, "-Infinity", "-Infinity", r#""-Infinity""#),
            (1700, 655_366, "-2.56", "-2.56", r#""/wA=""#),
            (1700, 655_366, "1.27", "1.27", r#""fw==""#),
            (1700, -1, "12345678901234567890123", WIDE, WIDE),
            (17, -1, "\\x", "", r#""""#),
            (1001, -1, r#"{"\\xff"}"#, r#"["/w=="]"#, r#"["/w=="]"#),
            (
                1009,
                -1,
                r#"{"a\\b",c}"#,
                r#"["a\\b","c"]"#,
                r#"["a\\b","c"]"#,
            ),
            (16, -1, "f", "false", "false"),
            (
                25,
                -1,
                "a\"b\\c\n\u{7}\u{1f}é\u{7f}😀",
                "a\"b\\c\n\u{7}\u{1f}é\u{7f}😀",
                "\"a\\\"b\\\\c\\n\\u0007\\u001Fé\u{7f}\\uD83D\\uDE00\"",
            ),
        ] {
            assert_eq!(
                written(Form::Text, oid, modifier, Some(text)),
                Ok(Some(as_text.to_owned())),
                "{text}"
            );
            assert_eq!(
                written(Form::Json, oid, modifier, Some(text)),
                Ok(Some(as_json.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_not_of_its_type_is_refused() {
        for (oid, text) in [
            (1184, "2024-02-30 00:00:00+00"),
            (1082, "24-02-03"),
            (1083, "x"),
            (1186, "infinity"),
            (1266, "05:00:00"),
            (1700, "NaN"),
            (17, "\\000"),
            (1007, "{{1},{2}}"),
            (1007, "[0:1]={1,2}"),
            (701, "x"),
        ] {
            assert!(
                written(Form::Json, oid, -1, Some(text)).is_err(),
                "{oid} {text}"
            );
        }
    }

    #[test]
    fn null_is_in_the_schema_or_stays_null() {
        let schema = r#"{"schema":{"type":"boolean","optional":false},"payload":null}"#;
        for (words, expected) in [
            (&[][..], None),
            (&["text"], None),
            (&["json"], None),
            (&["schema", "required"], Some(schema.to_owned())),
            (&["schema", "tombstone", "required"], None),
        ] {
            assert_eq!(
                written(Form::new(words).unwrap(), 16, -1, None),
                Ok(expected),
                "{words:?}"
            );
        }
        for wrong in [&["avro"][..], &["json", "required"], &["schema", "x"]] {
            assert!(Form::new(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_time_or_a_precision_that_is_too_large_is_no_panic() {
        for text in [
            "2562047788:00:54.775807",
            "-2562047788:00:54.775808",
            "9223372036854775807:59:59",
            "1 day -99999999999:00:00",
            "00:00:00+9223372036854775807",
        ] {
            for oid in [1083, 1186, 1266] {
                let _written = written(Form::Text, oid, -1, Some(text));
            }
        }
        let instant = written(Form::Text, 1184, i32::MAX, Some("2024-05-06 05:08:09.5+00"));
        assert_eq!(instant, Ok(Some("2024-05-06T05:08:09.500000Z".to_owned())));
    }

    #[test]
    fn fuzzed_values_of_columns() {
        // The OID of a type, its modifier, and a value.
        let corpus = [
            (1700, 655_366, "-12.50"),
            (1700, -1, "1e-300"),
            (1184, 3, "2024-05-06 05:08:09.5+05:30"),
            (1114, -1, "0044-03-15 12:00:00 BC"),
            (1266, -1, "07:08:09.123456-01:02:03"),
            (1083, -1, "24:00:00"),
            (1186, -1, "-1 years -2 mons +3 days -04:05:06.789"),
            (1082, -1, "infinity"),
            (17, -1, r"\x00ff61"),
            (16, -1, "t"),
            (701, -1, "-Infinity"),
            (1009, -1, r#"{a,NULL,"b \"c\\\""}"#),
            (1231, 655_366, "{1.50,NaN}"),
            (3802, -1, r#"{"a": [1, null]}"#),
        ];
        let corpus = corpus.map(|(oid, modifier, text): (u16, i32, &str)| {
            [
                &oid.to_be_bytes()[..],
                &modifier.to_be_bytes(),
                text.as_bytes(),
            ]
            .concat()
        });
        let schema = Form::Schema {
            required: false,
            tombstone: false,
        };
        fuzz(
            "values as Kafka Connect writes them",
            2 << 20,
            &corpus,
            |bytes| {
                let Some((head, text)) = bytes.split_first_chunk::<6>() else {
                    return;
                };
                let [high, low, modifier @ ..] = *head;
                let oid = u32::from(u16::from_be_bytes([high, low]));
                let text = String::from_utf8_lossy(text);
                for form in [Form::Text, Form::Json, schema] {
                    drop(written(
                        form,
                        oid,
                        i32::from_be_bytes(modifier),
                        Some(&text),
                    ));
                }
            },
        );
    }
}
