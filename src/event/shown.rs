//! Untrusted text, fit for a log line.

use std::fmt;

/// How much of a text is shown.
const SHOWN_CHARS_MAX: usize = 100;

/// Text from a row, made harmless for a terminal or a log: quoted, escaped, cut after about 100 characters (P11).
///
/// For ids and names only. Payloads and keys are never shown at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown(String);

impl Shown {
    /// Makes `bytes` showable; what is not UTF-8 becomes U+FFFD.
    pub fn of(bytes: &[u8]) -> Self {
        // A character is at most four bytes, so this holds one more than is shown, however long the text.
        let head = bytes.get(..(SHOWN_CHARS_MAX + 1) * 4).unwrap_or(bytes);
        let text = String::from_utf8_lossy(head);
        let mut shown = String::from("\"");
        let mut chars = 0;
        for character in text.chars() {
            let escaped = character.escape_debug();
            chars += escaped.len();
            if chars > SHOWN_CHARS_MAX {
                shown.push('…');
                break;
            }
            shown.extend(escaped);
        }
        shown.push('"');
        Shown(shown)
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_forge_a_log_line_is_escaped() {
        let shown = Shown::of(b"a\n2026 ERROR \x1b[2J\0\"\xff\xe2\x80\xaeb").to_string();
        assert_eq!(shown, "\"a\\n2026 ERROR \\u{1b}[2J\\0\\\"\u{fffd}\\u{202e}b\"");
        assert_eq!(Shown::of("größe".as_bytes()).to_string(), "\"größe\"");
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() {
        for long in ["x".repeat(1_000_000), "\n".repeat(101), "ß".repeat(101), "🦀".repeat(1_000)] {
            let shown = Shown::of(long.as_bytes()).to_string();
            assert!(shown.chars().count() <= 103 && shown.ends_with("…\""), "{shown}");
        }
        assert_eq!(Shown::of("x".repeat(100).as_bytes()).to_string(), format!("\"{}\"", "x".repeat(100)));
    }
}
