//! Java's `.properties`: <https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/Properties.html>.

use crate::error::{Error, Kind, Result};

/// The options in the order of the file; of two with one name the second counts, as in Java.
///
/// # Errors
/// [`Kind::Config`] with the line, without any value.
pub(super) fn read(path: &str, text: &str) -> Result<Vec<(String, String)>> {
    let mut options: Vec<(String, String)> = Vec::new();
    for (number, line) in logical_lines(text) {
        let malformed = || {
            Error::new(Kind::Config, format!("{path}:{number}: \\u is not followed by four hexadecimal digits"))
                .remedy("write a backslash as \\\\")
        };
        let (name, value) = split(&line);
        let (name, value) = (unescaped(name).ok_or_else(malformed)?, unescaped(value).ok_or_else(malformed)?);
        options.retain(|(known, _)| *known != name);
        options.push((name, value));
    }
    Ok(options)
}

const BLANKS: [char; 3] = [' ', '\t', '\u{c}'];

/// Lines without comments and blank ones, with those that a backslash continues put together, still escaped.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    for (number, line) in (1..).zip(text.split('\n')) {
        let line = line.trim_start_matches(BLANKS);
        if !continues && (line.is_empty() || line.starts_with(['#', '!'])) {
            continue;
        }
        let slashes = line.chars().rev().take_while(|&c| c == '\\').count();
        let goes_on = slashes % 2 == 1;
        let line = if goes_on { line.get(..line.len() - 1).unwrap_or_default() } else { line };
        match lines.last_mut() {
            Some((_, before)) if continues => before.push_str(line),
            _ => lines.push((number, line.to_owned())),
        }
        continues = goes_on;
    }
    lines
}

/// Name and value: between them one `=` or `:`, or blanks alone.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|c| {
        let ends = !escaped && (matches!(c, '=' | ':') || BLANKS.contains(&c));
        escaped = !escaped && c == '\\';
        ends
    });
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start_matches(BLANKS);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (name, rest.trim_start_matches(BLANKS))
}

/// `None`: a `\u` without its four digits.
fn unescaped(text: &str) -> Option<String> {
    let mut units: Vec<u16> = Vec::new();
    let mut characters = text.chars();
    let push = |units: &mut Vec<u16>, c: char| units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
    while let Some(c) = characters.next() {
        if c != '\\' {
            push(&mut units, c);
            continue;
        }
        match characters.next() {
            None => {}
            Some('t') => units.push(0x09),
            Some('n') => units.push(0x0a),
            Some('r') => units.push(0x0d),
            Some('f') => units.push(0x0c),
            Some('u') => {
                let digits: String = characters.by_ref().take(4).collect();
                let hexadecimal = digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                units.push(hexadecimal.then(|| u16::from_str_radix(&digits, 16).ok()).flatten()?);
            }
            Some(other) => push(&mut units, other),
        }
    }
    // Two halves of one character may have been written apart.
    Some(String::from_utf16_lossy(&units))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(text: &str, wanted: &[(&str, &str)]) {
        let read = read("f", text).unwrap();
        let read: Vec<_> = read.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(read, wanted, "{text:?}");
    }

    #[test]
    fn names_and_values_are_divided_by_an_equals_sign_a_colon_or_blanks() {
        reads("a=1\nb:2\nc 3\nd = 4\ne\t:\t5\n", &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")]);
        reads("a==1\nb=:2\nc: =3\nd", &[("a", "=1"), ("b", ":2"), ("c", "=3"), ("d", "")]);
        reads(r"a\=b\:c\ d=e=f:g", &[("a=b:c d", "e=f:g")]);
        reads("jaas=x required user=\"u\";", &[("jaas", "x required user=\"u\";")]);
        reads("trailing = blanks stay  \n", &[("trailing", "blanks stay  ")]);
    }

    #[test]
    fn comments_and_blank_lines_say_nothing() {
        reads("# a=1\n  ! b=2\n\n \t\n#c\\\nd=4\r\ne=5\rf=6", &[("d", "4"), ("e", "5"), ("f", "6")]);
        reads("a=1 # no comment", &[("a", "1 # no comment")]);
    }

    #[test]
    fn a_backslash_at_the_end_continues_the_line() {
        reads("a=x,\\\n   y,\\\n\tz\nb=2", &[("a", "x,y,z"), ("b", "2")]);
        reads("a=x\\\n#y\nb=2", &[("a", "x#y"), ("b", "2")]);
        reads("a=ends with \\\\\nb=2", &[("a", "ends with \\"), ("b", "2")]);
        reads("a=1\\", &[("a", "1")]);
        reads("a=\\\r\n  b", &[("a", "b")]);
    }

    #[test]
    fn escapes_are_those_of_java() {
        reads(r"a=\t\n\f\r\\\q", &[("a", "\t\n\u{c}\r\\q")]);
        reads(r"a=public\\.outbox", &[("a", r"public\.outbox")]);
        reads("a=public\\.outbox", &[("a", "public.outbox")]);
        reads(r"a=\u00e4\ud83d\ude00", &[("a", "ä😀")]);
        let error = read("f.properties", "x=1\na=canary\\u00g0").unwrap_err();
        assert!(error.cause().starts_with("f.properties:2: ") && !format!("{error:?}").contains("canary"), "{error:?}");
    }

    #[test]
    fn the_second_of_two_counts() {
        reads("a=1\nb=2\na=3", &[("b", "2"), ("a", "3")]);
    }
}
