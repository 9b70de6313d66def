//! A value in the forms of Kafka Connect's converters, by the type of its column: what Debezium's consumers know.
//!
//! As Debezium 3.7 writes it with `SimpleHeaderConverter` and `JsonConverter` of Kafka Connect 4.3 and their defaults
//! (`decimal.handling.mode=precise`, `time.precision.mode=adaptive`):
//! <https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-data-types>. OIDs:
//! <https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat>.

use std::borrow::Cow;
use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio_postgres::types;

/// A column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnType {
    /// Its OID; 0 where that is not known.
    pub oid: u32,
    /// Its modifier (`atttypmod`): length, precision or scale; -1 without.
    pub modifier: i32,
}

impl ColumnType {
    pub(super) const TEXT: ColumnType = ColumnType { oid: 25, modifier: -1 };
}

/// How a value is written.
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
    ///
    /// # Errors
    /// What is wrong, for people.
    pub(super) fn new(words: &[&str]) -> Result<Form, String> {
        match words {
            [] | ["text"] => Ok(Form::Text),
            ["json"] => Ok(Form::Json),
            ["schema", more @ ..] if more.iter().all(|word| matches!(*word, "required" | "tombstone")) => {
                Ok(Form::Schema { required: more.contains(&"required"), tombstone: more.contains(&"tombstone") })
            }
            _ => {
                Err("connect takes 'text', 'json' or 'schema', and behind 'schema' 'required' and 'tombstone'"
                    .to_owned())
            }
        }
    }

    /// The value of a column of this type; `None` is NULL.
    ///
    /// # Errors
    /// What the value should be.
    pub(super) fn write<'v>(
        self,
        value: Option<Cow<'v, str>>,
        of: ColumnType,
    ) -> Result<Option<Cow<'v, str>>, &'static str> {
        let kind = Kind::of(of);
        match (self, value) {
            (Form::Text | Form::Json, None) | (Form::Schema { tombstone: true, .. }, None) => Ok(None),
            (Form::Text, Some(text)) if kind.is_text() => Ok(Some(text)),
            (Form::Text, Some(text)) => Ok(Some(Cow::Owned(kind.read(&text)?.text()))),
            (Form::Json, Some(text)) => Ok(Some(Cow::Owned(kind.read(&text)?.json()))),
            (Form::Schema { required, .. }, value) => {
                let payload = match value {
                    Some(text) => kind.read(&text)?.json(),
                    None => "null".to_owned(),
                };
                let schema = kind.schema(!required);
                Ok(Some(Cow::Owned(format!("{{\"schema\":{schema},\"payload\":{payload}}}"))))
            }
        }
    }
}

/// How the text of a value is read.
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
    /// Days since 1970.
    Date,
    /// A count since midnight, likewise.
    Time(i64),
    /// A duration in microseconds.
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
            Some(oid) => Kind { is_array: true, ..Kind::single(ColumnType { oid, ..column }) },
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
                None => (Reads::AnyDecimal, "struct", "io.debezium.data.VariableScaleDecimal"),
            },
            17 => (Reads::Bytes, "bytes", ""),
            1184 => {
                let digits = usize::try_from(column.modifier).unwrap_or(6).min(6);
                (Reads::Instant(digits), "string", "io.debezium.time.ZonedTimestamp")
            }
            1266 => (Reads::InstantOfDay, "string", "io.debezium.time.ZonedTime"),
            1114 if millis => (Reads::Timestamp(1000), "int64", "io.debezium.time.Timestamp"),
            1114 => (Reads::Timestamp(1), "int64", "io.debezium.time.MicroTimestamp"),
            1082 => (Reads::Date, "int32", "io.debezium.time.Date"),
            1083 if millis => (Reads::Time(1000), "int32", "io.debezium.time.Time"),
            1083 => (Reads::Time(1), "int64", "io.debezium.time.MicroTime"),
            1186 => (Reads::Interval, "int64", "io.debezium.time.MicroDuration"),
            2950 => (Reads::Text, "string", "io.debezium.data.Uuid"),
            114 | 3802 => (Reads::Text, "string", "io.debezium.data.Json"),
            142 => (Reads::Text, "string", "io.debezium.data.Xml"),
            _ => (Reads::Text, "string", ""),
        };
        Kind { reads, basic, name, is_array: false }
    }

    /// Whether a value is the text that Postgres prints.
    fn is_text(self) -> bool {
        self.reads == Reads::Text && !self.is_array
    }

    /// The schema as JSON.
    fn schema(self, optional: bool) -> String {
        let Kind { reads, basic, name, is_array } = self;
        if is_array {
            let items = Kind { is_array: false, ..self }.schema(true);
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
            schema
                .push_str(&format!(r#","parameters":{{"scale":"{scale}","connect.decimal.precision":"{precision}"}}"#));
        }
        if reads == Reads::AnyDecimal {
            schema.push_str(r#","doc":"Variable scaled decimal""#);
        }
        schema.push('}');
        schema
    }

    /// Reads the text that Postgres prints.
    ///
    /// # Errors
    /// What it should be.
    fn read(self, text: &str) -> Result<Datum, &'static str> {
        const NUMBER: &str = "a finite number";
        const TIME_OF_DAY: &str = "a time of day";
        if self.is_array {
            let single = Kind { is_array: false, ..self };
            let elements = elements(text).ok_or("an array of one dimension")?;
            let read = |element: Option<String>| element.map_or(Ok(Datum::Null), |text| single.read(&text));
            return Ok(Datum::Array(elements.into_iter().map(read).collect::<Result<_, _>>()?));
        }
        let plain = |number: i64| Datum::Plain(number.to_string());
        let time = || timestamp(text).ok_or("a timestamp");
        Ok(match self.reads {
            Reads::Text => Datum::Text(text.to_owned()),
            Reads::Integer => Datum::Plain(text.to_owned()),
            Reads::Boolean => Datum::Plain((if text == "t" { "true" } else { "false" }).to_owned()),
            Reads::Single => text.parse().map(|number| floating(float(number))).map_err(|_| NUMBER)?,
            Reads::Double => text.parse().map(|number| floating(double(number))).map_err(|_| NUMBER)?,
            Reads::Decimal(..) => {
                let (digits, _) = digits(text).ok_or(NUMBER)?;
                Datum::Decimal(text.to_owned(), STANDARD.encode(digits))
            }
            Reads::AnyDecimal => {
                // The scale is that of the number without zeros at its end.
                let has_fraction = text.contains('.');
                let short = if has_fraction { text.trim_end_matches('0').trim_end_matches('.') } else { text };
                let (digits, scale) = digits(short).ok_or(NUMBER)?;
                Datum::Plain(format!(r#"{{"scale":{scale},"value":"{}"}}"#, STANDARD.encode(digits)))
            }
            Reads::Bytes => Datum::Text(STANDARD.encode(bytea(text.as_bytes())?)),
            Reads::Instant(digits) => Datum::Text(format!("{:.digits$}", time()?)),
            Reads::InstantOfDay => Datum::Text(instant_of_day(text).ok_or(TIME_OF_DAY)?),
            Reads::Timestamp(unit) => plain(time()?.as_microsecond().div_euclid(unit)),
            Reads::Date => plain(timestamp(text).ok_or("a date")?.as_second().div_euclid(86_400)),
            Reads::Time(unit) => plain(micros_of_day(text).ok_or(TIME_OF_DAY)?.div_euclid(unit)),
            Reads::Interval => plain(interval(text).ok_or("an interval")?),
        })
    }
}

/// A value of Kafka Connect.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Datum {
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
    fn text(self) -> String {
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

    fn json(self) -> String {
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
fn decimal(modifier: i32) -> Option<Reads> {
    let packed = u32::try_from(modifier.checked_sub(4)?).ok()?;
    // A scale below zero is in eleven bits, too; nobody has one.
    Some(Reads::Decimal(packed >> 16, packed & 0x7ff))
}

/// The type of an array's elements, where Debezium reads arrays of it.
fn element_of(oid: u32) -> Option<u32> {
    const ELEMENTS: [u32; 24] = [
        16, 17, 18, 19, 20, 21, 23, 25, 26, 114, 700, 701, 869, 1042, 1043, 1082, 1083, 1114, 1184, 1186, 1266, 1700,
        2950, 3802,
    ];
    let array = types::Type::from_oid(oid)?;
    let types::Kind::Array(element) = array.kind() else { return None };
    Some(element.oid()).filter(|oid| ELEMENTS.contains(oid))
}

/// The time that a `timestamptz`, `timestamp` (taken as UTC) or `date` is, as Postgres prints it with `DateStyle` ISO.
/// `None`: it is none, or one that only Postgres knows, such as `infinity`.
pub(crate) fn timestamp(text: &str) -> Option<jiff::Timestamp> {
    let text = text.replacen(' ', "T", 1);
    let date_and_time = if text.contains('T') { text } else { format!("{text}T00:00:00") };
    let (date, time) = date_and_time.split_once('T')?;
    let zoned = time.contains(['+', '-', 'Z']);
    // Postgres leaves minutes of the offset out where they are zero.
    let zone = if zoned { "" } else { "Z" };
    format!("{date}T{time}{zone}").parse().ok()
}

/// The bytes of a `bytea`, which Postgres prints as `\x` and hexadecimal digits (`bytea_output`, which the session sets).
///
/// # Errors
/// What the text should be.
pub(crate) fn bytea(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    let bytes = text.strip_prefix(b"\\x").and_then(|digits| digits.chunks(2).map(pair).collect());
    bytes.ok_or("bytea in hexadecimal form")
}

fn floating(text: String) -> Datum {
    if text.ends_with(|c: char| c.is_ascii_digit()) { Datum::Plain(text) } else { Datum::Text(text) }
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
    // Postgres leaves minutes and seconds of the offset out where they are zero.
    let offset = micros_of_day(&format!("{zone}:00:00"))?;
    let offset = if sign == "-" { offset.checked_neg()? } else { offset };
    let micros = jiff::SignedDuration::from_micros(micros_of_day(time)?.checked_sub(offset)?);
    Some(format!("{}Z", jiff::civil::Time::midnight().wrapping_add(micros)))
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
    text.chars().for_each(|c| push_escaped(&mut quoted, c));
    quoted.push('"');
    quoted
}

/// A valid JSON string, escaped likewise. One half of a surrogate pair stays so.
pub(super) fn requoted(string: &str) -> String {
    let mut quoted = String::with_capacity(string.len());
    quoted.push('"');
    let inside = string.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(string);
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
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| push_unit(quoted, u32::from(*unit)));
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
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(double(number), expected);
        }
        assert_eq!((float(0.1).as_str(), float(16_777_216.0).as_str()), ("0.1", "1.6777216E7"));
    }

    fn written(form: Form, oid: u32, modifier: i32, text: Option<&str>) -> Result<Option<String>, &'static str> {
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
            (1184, 0, "2024-05-06 05:08:09+00", "2024-05-06T05:08:09Z", r#""2024-05-06T05:08:09Z""#),
            (1114, -1, "1969-12-31 23:59:59.999999", "-1", "-1"),
            (1114, 3, "1969-12-31 23:59:59.999", "-1", "-1"),
            (1082, -1, "1969-12-31", "-1", "-1"),
            (1083, -1, "24:00:00", "86400000000", "86400000000"),
            (1266, -1, "01:00:00.25-05:30", "06:30:00.25Z", r#""06:30:00.25Z""#),
            (1186, -1, "-1 days +00:00:01", "-86399000000", "-86399000000"),
            (1186, -1, "00:00:00", "0", "0"),
            (701, -1, "NaN", "NaN", r#""NaN""#),
            (700, -1, "-Infinity", "-Infinity", r#""-Infinity""#),
            (1700, 655_366, "-2.56", "-2.56", r#""/wA=""#),
            (1700, 655_366, "1.27", "1.27", r#""fw==""#),
            (1700, -1, "12345678901234567890123", WIDE, WIDE),
            (17, -1, "\\x", "", r#""""#),
            (1001, -1, r#"{"\\xff"}"#, r#"["/w=="]"#, r#"["/w=="]"#),
            (1009, -1, r#"{"a\\b",c}"#, r#"["a\\b","c"]"#, r#"["a\\b","c"]"#),
            (16, -1, "f", "false", "false"),
            (
                25,
                -1,
                "a\"b\\c\n\u{7}\u{1f}é\u{7f}😀",
                "a\"b\\c\n\u{7}\u{1f}é\u{7f}😀",
                "\"a\\\"b\\\\c\\n\\u0007\\u001Fé\u{7f}\\uD83D\\uDE00\"",
            ),
        ] {
            assert_eq!(written(Form::Text, oid, modifier, Some(text)), Ok(Some(as_text.to_owned())), "{text}");
            assert_eq!(written(Form::Json, oid, modifier, Some(text)), Ok(Some(as_json.to_owned())), "{text}");
        }
    }

    #[test]
    fn what_is_not_of_its_type_is_refused() {
        for (oid, text) in [
            (1184, "infinity"),
            (1114, "-infinity"),
            (1082, "infinity"),
            (1083, "x"),
            (1186, "infinity"),
            (1266, "05:00:00"),
            (1700, "NaN"),
            (17, "\\000"),
            (1007, "{{1},{2}}"),
            (1007, "[0:1]={1,2}"),
            (701, "x"),
        ] {
            assert!(written(Form::Json, oid, -1, Some(text)).is_err(), "{oid} {text}");
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
            assert_eq!(written(Form::new(words).unwrap(), 16, -1, None), Ok(expected), "{words:?}");
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

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in proptest::prelude::any::<String>(), oid in 0_u32..4000, modifier in -1_i32..700_000) {
            for form in [Form::Text, Form::Json, Form::Schema { required: false, tombstone: false }] {
                let _written = written(form, oid, modifier, Some(&text));
            }
        }
    }
}
