//! Numbers, strings and bytes as Java prints them.

use std::fmt::Write;

/// A number as Java's `Double.toString` and `Float.toString` have it, of digits and exponent as Rust has them:
/// <https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/lang/Double.html#toString(double)>.
fn decimal(scientific: &str) -> String {
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
        finite => decimal(&format!("{finite:e}")),
    }
}

/// `float`.
pub(super) fn float(number: f32) -> String {
    if number.is_finite() { decimal(&format!("{number:e}")) } else { double(f64::from(number)) }
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
pub(super) fn base64(bytes: &[u8]) -> String {
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
