//! What is in the text of a value, and how it is written.

use super::java;
use super::kind::{Kind, Reads};
use crate::template::function::{Needed, timestamp};

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
    /// As text.
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

    /// As JSON.
    pub(super) fn json(self) -> String {
        match self {
            Datum::Text(text) => java::quoted(&text),
            Datum::Decimal(_, base64) => java::quoted(&base64),
            Datum::Plain(text) => text,
            Datum::Null => "null".to_owned(),
            Datum::Array(elements) => {
                format!("[{}]", elements.into_iter().map(Datum::json).collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl Kind {
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
            Reads::Single => text.parse().ok().map(|number| floating(java::float(number))),
            Reads::Double => text.parse().ok().map(|number| floating(java::double(number))),
            Reads::Decimal { .. } => {
                digits(text).map(|(digits, _)| Datum::Decimal(text.to_owned(), java::base64(&digits)))
            }
            Reads::AnyDecimal => any_decimal(text),
            Reads::Bytes => bytes(text).map(|bytes| Datum::Text(java::base64(&bytes))),
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
    Some(Datum::Plain(format!("{{\"scale\":{scale},\"value\":\"{}\"}}", java::base64(&digits))))
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let hexadecimal = text.strip_prefix("\\x")?;
    let pair = |at: usize| u8::from_str_radix(hexadecimal.get(at..at + 2)?, 16).ok();
    (0..hexadecimal.len()).step_by(2).map(pair).collect()
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
