//! The text of a `walrelay.toml` that a command writes.

use super::model::{ENVELOPE, HEADERS, KAFKA_PROPERTIES, tables};

/// What the file is to hold, in the order in which it was put in.
#[derive(Debug, Default)]
pub struct Draft {
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    table: &'static str,
    text: String,
}

impl Draft {
    /// Sets the key at `path`.
    pub fn set(&mut self, path: &'static str, value: &str) {
        let (table, key) = parts(path);
        self.lines.push(Line { table, text: format!("{key} = {}", quoted(value)) });
    }

    /// Adds a comment on the key at `path`: that it has to be set, or why it is as it is.
    pub fn note(&mut self, path: &'static str, comment: &str) {
        let (table, _) = parts(path);
        self.lines.push(Line { table, text: commented(comment) });
    }

    /// The same of a header.
    pub fn note_header(&mut self, comment: &str) {
        self.lines.push(Line { table: HEADERS, text: commented(comment) });
    }

    /// Adds a header by name; `false` where there is one of that name.
    pub fn header(&mut self, name: &str, template: &str) -> bool {
        self.named(HEADERS, name, template)
    }

    /// Adds a member of the envelope by name; `false` where there is one of that name.
    pub fn member(&mut self, name: &str, template: &str) -> bool {
        self.named(ENVELOPE, name, template)
    }

    /// Adds a property of librdkafka by name; `false` where there is one of that name.
    pub fn property(&mut self, name: &str, value: &str) -> bool {
        self.named(KAFKA_PROPERTIES, name, value)
    }

    fn named(&mut self, table: &'static str, name: &str, value: &str) -> bool {
        let start = format!("{} = ", quoted(name));
        if self.lines.iter().any(|line| line.table == table && line.text.starts_with(&start)) {
            return false;
        }
        self.lines.push(Line { table, text: format!("{start}{}", quoted(value)) });
        true
    }

    /// The file, with `heading` as its first lines, each a comment.
    pub fn toml(&self, heading: &str) -> String {
        let mut text = heading.lines().map(|line| commented(line) + "\n").collect::<String>();
        for table in tables() {
            let lines: Vec<&str> =
                self.lines.iter().filter(|line| line.table == table).map(|line| line.text.as_str()).collect();
            if !lines.is_empty() {
                text.push_str(&format!("\n[{table}]\n{}\n", lines.join("\n")));
            }
        }
        text
    }
}

fn parts(path: &'static str) -> (&'static str, &'static str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

/// A line of a comment: what could end the line, or hide a part of it, is a blank.
fn commented(comment: &str) -> String {
    format!("# {}", comment.replace(char::is_control, " "))
}

/// A basic string of TOML on one line, good for keys and values: <https://toml.io/en/v1.0.0#string>.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layers::Settings;

    #[test]
    fn whatever_is_put_in_is_what_the_reader_finds() {
        let odd = "a \"b\" \\ c\nd\te\u{7f}\u{1} ü ''' \"\"\"";
        let mut draft = Draft::default();
        assert!(draft.header(odd, odd) && draft.header("x.y", "{a}") && !draft.header(odd, "again"));
        draft.set("slot.name", odd);
        draft.note("kafka.brokers", "brokers = …\nlinger = 1");
        assert!(draft.property("linger.ms", "5"));
        let settings = Settings::of(&draft.toml("two\nlines")).unwrap();
        let headers: Vec<_> = settings
            .base
            .model
            .route
            .headers
            .iter()
            .map(|(name, text)| (name.as_str(), text.as_str().unwrap()))
            .collect();
        assert_eq!(headers, [(odd, odd), ("x.y", "{a}")]);
        assert_eq!(settings.get("slot.name").unwrap().text.expose(), odd);
        assert_eq!(settings.properties["linger.ms"].text.expose(), "5");
    }
}
