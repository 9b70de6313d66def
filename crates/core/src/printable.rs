//! Text for terminals and logs: without characters that move the cursor, colour, or show text in
//! another order (P11).

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;

/// Whether a terminal does something else with the character than show it: controls, and what
/// reorders or hides text.
pub fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
        )
        || matches!(character, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// `text` as it may be printed: lines stay lines, and each other harmful character becomes `\u` and
/// four digits.
///
/// JSON and TOML have this escape in their texts: they mean the same before and after.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_escaped = |character| is_harmful(character) && !matches!(character, '\n' | '\t');
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_escaped(character) {
            // Writing to a string cannot fail.
            write!(out, "\\u{:04x}", u32::from(character)).unwrap_or_default();
        } else {
            out.push(character);
        }
    }
    Cow::Owned(out)
}

/// `text` as one word of a shell; in the form of bash and zsh where a character has to be escaped.
pub fn shell_word(text: &str) -> String {
    if text.contains(is_harmful) {
        let text = text
            .replace('\\', "\\\\")
            .replace('\'', "\\'")
            .replace('\n', "\\n")
            .replace('\t', "\\t");
        return format!("$'{}'", printable(&text));
    }
    match text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "._-/:,=@".contains(c))
    {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// A count of things of which one is called `one`.
pub fn counted(count: u64, one: &str) -> String {
    if count == 1 {
        format!("1 {one}")
    } else {
        format!("{count} {one}s")
    }
}

/// A writer of whole texts that makes each [`printable()`].
#[derive(Debug)]
pub struct Printable<W>(pub W);

impl<W: io::Write> io::Write for Printable<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .write_all(printable(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped_and_other_text_stays() {
        let plain = "größe 日本 \u{5d0}\u{5d1} 👩\u{200d}🔧\n\tb";
        assert!(matches!(printable(plain), Cow::Borrowed(text) if text == plain));
        let hostile = "a\u{1b}[2J\r\u{7f}\u{9b}31m\u{202e}b\u{2066}\u{2028}\u{feff}\0";
        let shown = r"a\u001b[2J\u000d\u007f\u009b31m\u202eb\u2066\u2028\ufeff\u0000";
        assert_eq!(printable(hostile), shown);
        let mut written = Vec::new();
        Printable(&mut written)
            .write_all(hostile.as_bytes())
            .unwrap();
        assert_eq!(written, shown.as_bytes());
    }

    #[test]
    fn json_means_the_same_before_and_after() {
        let hostile = "a\u{1b}\u{7f}\u{9b}\u{202e}\u{feff}";
        let json = serde_json::Value::from(hostile).to_string();
        assert_eq!(
            serde_json::from_str::<String>(&printable(&json)).unwrap(),
            hostile
        );
    }
}
