//! Settings to the text of a `walrelay.toml`.

use super::setting::{self, ENVELOPE, HEADERS, KAFKA_PROPERTIES, Setting};

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
    /// Sets a setting.
    pub fn set(&mut self, setting: &Setting, value: &str) {
        let (table, key) = parts(setting);
        self.lines.push(Line { table, text: format!("{key} = {}", quoted(value)) });
    }

    /// Says something about a setting: that it has to be set, or why it is as it is.
    pub fn note(&mut self, setting: &Setting, comment: &str) {
        let (table, _) = parts(setting);
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
        let mut tables: Vec<&str> = Vec::new();
        for setting in setting::ALL {
            // What belongs to a table stands behind it.
            let of = parts(setting).0;
            let more = match of {
                "route" => Some(HEADERS),
                "format" => Some(ENVELOPE),
                "kafka" => Some(KAFKA_PROPERTIES),
                _ => None,
            };
            for table in [Some(of), more].into_iter().flatten() {
                if !tables.contains(&table) {
                    tables.push(table);
                }
            }
        }
        let mut text = heading.lines().map(|line| commented(line) + "\n").collect::<String>();
        for table in tables {
            let lines: Vec<&str> =
                self.lines.iter().filter(|line| line.table == table).map(|line| line.text.as_str()).collect();
            if !lines.is_empty() {
                text.push_str(&format!("\n[{table}]\n{}\n", lines.join("\n")));
            }
        }
        text
    }
}

fn parts(setting: &Setting) -> (&'static str, &'static str) {
    setting.key.rsplit_once('.').unwrap_or(("", setting.key))
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
    use crate::config::file;

    #[test]
    fn whatever_is_put_in_is_what_the_reader_finds() {
        let odd = "a \"b\" \\ c\nd\te\u{7f}\u{1} ü ''' \"\"\"";
        let mut draft = Draft::default();
        assert!(draft.header(odd, odd) && draft.header("x.y", "{a}") && !draft.header(odd, "again"));
        draft.set(&setting::SLOT, odd);
        draft.note(&setting::BROKERS, "brokers = …\nlinger = 1");
        assert!(draft.property("linger.ms", "5"));
        let read = file::parse("w.toml", &draft.toml("two\nlines")).unwrap();
        let headers: Vec<_> = read.headers.iter().map(|(name, entry)| (name.as_str(), entry.text.as_str())).collect();
        assert_eq!(headers, [(odd, odd), ("x.y", "{a}")]);
        assert_eq!(read.settings.get("slot.name").unwrap().text, odd);
        assert_eq!(read.properties.get("linger.ms").unwrap().text, "5");
    }
}
