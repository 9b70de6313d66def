//! Configuration files that commands draft.

/// Table whose keys are names of headers, and whose values are templates.
pub const HEADERS: &str = "route.headers";
/// Table whose keys are the members of an envelope, and whose values are templates.
pub const ENVELOPE: &str = "format.envelope";
/// Table whose keys are librdkafka's.
pub const KAFKA_PROPERTIES: &str = "kafka.properties";

const COMMENT_CHARS_MAX: usize = 98;

/// A configuration file in the making.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Draft {
    lines: Vec<Line>,
    /// Tables of which each is an `[[outbox]]`.
    outboxes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    table: &'static str,
    text: String,
}

impl Draft {
    /// Sets the key at `path`.
    pub fn set(&mut self, path: &'static str, value: &str) {
        self.add(path, |key| format!("{key} = {}", one_line(value)));
    }

    /// Adds the key at `path` with its value as a comment.
    pub fn propose(&mut self, path: &'static str, value: &str) {
        self.add(path, |key| format!("# {key} = {}", one_line(value)));
    }

    /// Adds a comment on the key at `path`: that it has to be set, or the reason for its value.
    pub fn note(&mut self, path: &'static str, comment: &str) {
        self.add(path, |_| commented(comment));
    }

    /// Adds a header, a member of the envelope or a property of librdkafka by name; `false` where
    /// there is one of that name.
    pub fn named(&mut self, table: &'static str, name: &str, value: &str) -> bool {
        let start = format!("{} = ", one_line(name));
        if self
            .lines
            .iter()
            .any(|line| line.table == table && line.text.starts_with(&start))
        {
            return false;
        }
        self.lines.push(Line {
            table,
            text: format!("{start}{}", one_line(value)),
        });
        true
    }

    fn add(&mut self, path: &'static str, text: impl FnOnce(&str) -> String) {
        let (table, key) = path.rsplit_once('.').unwrap_or(("", path));
        self.lines.push(Line {
            table,
            text: text(key),
        });
    }

    /// Has an `[[outbox]]` for each of these tables in place of `[outbox]`, all with what was set
    /// for that.
    pub fn outboxes(&mut self, tables: Vec<String>) {
        self.outboxes = tables;
    }

    /// The file, with its sections in the order of `tables`.
    pub fn toml(&self, heading: &str, tables: &[&str]) -> String {
        let mut text = commented(heading) + "\n";
        let is_of_each =
            |table: &str| !self.outboxes.is_empty() && table.split('.').next() == Some("outbox");
        for table in tables.iter().filter(|table| !is_of_each(table)) {
            text.push_str(&self.section(table));
        }
        for outbox in &self.outboxes {
            let own = tables
                .iter()
                .filter(|table| is_of_each(table))
                .map(|table| self.section(table));
            let own = own.collect::<String>();
            text.push_str(&format!("\n[[outbox]]\ntable = {}\n", one_line(outbox)));
            text.push_str(own.strip_prefix("\n[outbox]\n").unwrap_or(&own));
        }
        text
    }

    fn section(&self, table: &str) -> String {
        let lines: Vec<&str> = self
            .lines
            .iter()
            .filter(|line| line.table == table)
            .map(|line| line.text.as_str())
            .collect();
        if lines.is_empty() {
            String::new()
        } else {
            format!("\n[{table}]\n{}\n", lines.join("\n"))
        }
    }
}

/// The lines of a comment. Control characters become spaces, because they could end a line or hide
/// a part of it.
fn commented(comment: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in comment.replace(char::is_control, " ").split(' ') {
        let is_first = lines.is_empty();
        let word_width = word.chars().count();
        width += 1 + word_width;
        if is_first || width > COMMENT_CHARS_MAX {
            lines.push_str(if is_first { "#" } else { "\n#" });
            width = word_width;
        }
        lines.push(' ');
        lines.push_str(word);
    }
    lines
}

/// A basic string of TOML on one line: <https://toml.io/en/v1.0.0#string>. It is a string of JSON
/// without DEL.
pub fn one_line(text: &str) -> String {
    serde_json::Value::from(text)
        .to_string()
        .replace('\u{7f}', "\\u007F")
}
