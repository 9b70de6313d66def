//! The `walrelay.toml` for an existing outbox table, with a comment for each guess.
//!
//! [`words`] has the usual names of columns, and [`guess`] the purpose of each column. There is no I/O: the same table gives
//! the same file. Where the purpose of a column is not clear, the choice loses no event and no order, and the file says so.

mod guess;
mod words;

use serde::Serialize;
use sha2::{Digest, Sha256};

pub(crate) use guess::ColumnUse;
use guess::{Guess, Guesses, Missing, Role};

use crate::config::TableName;
use crate::config::written::Draft;
use crate::error::{Error, Kind, Result};
use crate::postgres::catalog::{Column, Form};
use crate::template::Template;

/// What is known beside the columns: settings, and what `setup` says of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// A connection string without a password.
    pub database_url: Option<String>,
    /// By default from the table's name.
    pub slot: Option<String>,
    /// If it is not the slot's default.
    pub publication: Option<String>,
    pub brokers: Option<String>,
    /// Why `setup` refuses the table, if it does.
    pub refused: Option<String>,
    /// Why `setup --add-xid-column` does, if it does.
    pub no_xid_column: Option<String>,
}

/// A file, and the use of each column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Suggestion {
    pub toml: String,
    /// All columns of the table, in order.
    pub columns: Vec<ColumnUse>,
    /// What the operator has to know before the next step.
    pub warnings: Vec<String>,
}

/// Makes a configuration for `table` with these `columns`.
pub(crate) fn suggest(table: &TableName, columns: &[Column], known: &Known) -> Result<Suggestion> {
    let guesses = Guesses::of(columns).map_err(|missing| unfit(table, columns, missing))?;
    let mut warnings: Vec<String> = known.refused.iter().chain(&known.no_xid_column).cloned().collect();
    if guesses.with(Role::Key).next().is_none() {
        warnings.push("no column names what an event is about: records have no key, and so no order".to_owned());
    }
    Ok(Suggestion { toml: toml(table, columns, &guesses, known), columns: guesses.column_uses(columns), warnings })
}

/// The column with the time of each row, for tables whose id is not a number.
pub(crate) fn ordering(columns: &[Column]) -> Option<&Column> {
    guess::written_at(columns)
}

fn unfit(table: &TableName, columns: &[Column], missing: Missing) -> Error {
    let there: Vec<String> = columns.iter().map(|column| format!("{} ({})", column.name, column.type_name)).collect();
    let there = if there.is_empty() { "no columns at all".to_owned() } else { there.join(", ") };
    let key: Vec<&str> = columns.iter().filter(|it| it.in_primary_key).map(|it| it.name.as_str()).collect();
    let remedy_of_id = match key.as_slice() {
        [_, _, ..] => format!(
            "an event's id is one column, and the primary key has several ({}): add a unique column, such as event_id uuid",
            key.join(", ").replace(char::is_control, " ")
        ),
        _ => "give the table a primary key".to_owned(),
    };
    let (what, remedy) = match missing {
        Missing::Id => (
            "the event's id: a primary key of one column, a unique column, a uuid, or one that is called so",
            format!("{remedy_of_id}, or name the column under [outbox.columns] in a walrelay.toml of your own"),
        ),
        Missing::Payload => (
            "the payload: json, jsonb, xml, bytea or text that is called so",
            "check that this is the table events are written into. Events made of several columns are an envelope: write \
             a walrelay.toml with [format.envelope], see docs/reference/templates.md"
                .to_owned(),
        ),
    };
    let cause = format!("table {table} has no column that looks like {what}; it has {there}");
    Error::new(Kind::Publication, cause.replace(char::is_control, " ")).remedy(remedy)
}

/// Characters of a line of comments.
const WIDTH: usize = 98;
/// The publication's name is longer by `walrelay_`.
const SLOT_BYTES_MAX: usize = 54;
/// Bytes of the number in the slot's name, of two digits each.
const NUMBER_BYTES: usize = 4;
/// The topic's name has a prefix, too.
const TOPIC_BYTES_MAX: usize = 200;
const BROKERS: &str = "localhost:9092";

fn toml(table: &TableName, columns: &[Column], guesses: &Guesses<'_>, known: &Known) -> String {
    let mut file = File { draft: Draft::default() };
    file.source(table, known);
    file.columns(guesses);
    file.published(columns, known);
    file.route(table, guesses);
    file.headers(guesses);
    match &known.brokers {
        Some(brokers) => file.draft.set("kafka.brokers", brokers),
        None => {
            file.note("kafka.brokers", "SET THIS: where Kafka is cannot be guessed.");
            file.draft.set("kafka.brokers", BROKERS);
        }
    }
    file.draft.toml(&heading(table))
}

fn heading(table: &TableName) -> String {
    let text = format!(
        "Suggested by `walrelay config init` for table {table}. What each line was guessed from is above it: read them all, \
         and change what is wrong. docs/reference/templates.md has what else a route can do."
    );
    wrapped(&text).join("\n")
}

struct File {
    draft: Draft,
}

impl File {
    fn note(&mut self, path: &'static str, text: &str) {
        for line in wrapped(text) {
            self.draft.note(path, &line);
        }
    }

    fn source(&mut self, table: &TableName, known: &Known) {
        match &known.database_url {
            Some(url) => self.draft.set("database.url", url),
            None => self.note(
                "database.url",
                "Not written here: WALRELAY_DATABASE_URL, or PGHOST, PGUSER, PGDATABASE, PGPASSFILE and so on.",
            ),
        }
        match &known.slot {
            Some(slot) => self.draft.set("slot.name", slot),
            None => {
                self.note("slot.name", "Made of the table's name. One relay per slot.");
                self.draft.set("slot.name", &slot(table));
            }
        }
        if let Some(publication) = &known.publication {
            self.draft.set("slot.publication", publication);
        }
        self.draft.set("outbox.table", &table.to_string());
    }

    fn columns(&mut self, guesses: &Guesses<'_>) {
        let unused = guesses.unused();
        if !unused.is_empty() {
            let text = unused.iter().map(|(why, names)| format!("{} ({why})", names.join(", "))).collect::<Vec<_>>();
            self.note("outbox.table", &format!("Not used: {}.", text.join("; ")));
        }
        for (role, setting, what) in [
            (Role::Id, "outbox.columns.id", "the event's id"),
            (Role::Payload, "outbox.columns.payload", "the payload"),
        ] {
            for guess in guesses.with(role) {
                self.guessed(setting, guess, what);
                self.draft.set(setting, &guess.column.name);
            }
        }
    }

    /// The settings that tell which rows are published, after a loss of the slot.
    fn published(&mut self, columns: &[Column], known: &Known) {
        for refusal in known.refused.iter().chain(&known.no_xid_column) {
            self.note("outbox.table", refusal);
        }
        if known.no_xid_column.is_none() && !columns.iter().any(Column::tells_transaction) {
            let text = "No column has the transaction of each row. `walrelay setup` with --add-xid-column adds one, which \
                        polling needs: should the slot be lost, exactly what was not published is read from the table.";
            self.note("outbox.table", text);
        }
        let Some(marked) = guess::marked(columns) else { return };
        let text = format!(
            "{}. Where these say what was published, and nobody else writes them, walrelay can do so: with the words of your \
             application, and UPDATE on the table. docs/how-to/upkeep.md:",
            marked.columns
        );
        self.note("outbox.pending", &text);
        for (setting, sql) in [("outbox.pending", marked.pending), ("outbox.mark", marked.mark)] {
            let key = setting.rsplit('.').next().unwrap_or_default();
            self.draft.note(setting, &format!("{key} = {}", toml::Value::from(sql)));
        }
    }

    fn route(&mut self, table: &TableName, guesses: &Guesses<'_>) {
        let kind = guesses.with(Role::AggregateType).next();
        match (kind, guesses.with(Role::Topic).next()) {
            (Some(guess), _) => {
                self.guessed("route.topic", guess, "the aggregate's type");
                let topic = format!("outbox.event.{}", field(guess.column, "|topic"));
                self.draft.set("route.topic", &topic);
            }
            (None, Some(guess)) => {
                self.guessed("route.topic", guess, "the topic");
                self.draft.set("route.topic", &field(guess.column, "|topic"));
            }
            (None, None) => {
                let text = "No column says where events go, so all go to one topic, made of the table's name: put the one your \
                            consumers know.";
                self.note("route.topic", text);
                self.draft.set("route.topic", &topic(table));
            }
        }
        match guesses.with(Role::Key).next() {
            Some(guess) => {
                self.guessed("route.key", guess, "the key");
                self.draft.set("route.key", &field(guess.column, ""));
            }
            None => {
                let text = "No column names what an event is about: records have no key, and so NO ORDER. A template over any \
                            columns gives them one.";
                self.note("route.key", text);
                self.draft.set("route.key", "");
            }
        }
        for (role, setting) in [(Role::Partition, "route.partition"), (Role::Timestamp, "route.timestamp")] {
            for guess in guesses.with(role) {
                self.guessed(setting, guess, &format!("the record's {}", role.word()));
                self.draft.set(setting, &guess.column.name);
            }
        }
        if let Some(column) = guesses.written_at {
            let text = format!(
                "{}. Without a zone it is no moment, so records have the time they are produced. Where the application \
                 writes UTC, this gives them the row's:",
                column.described()
            );
            self.note("route.timestamp", &text);
            self.draft.note("route.timestamp", &format!("timestamp = {}", toml::Value::from(column.name.as_str())));
        }
    }

    fn headers(&mut self, guesses: &Guesses<'_>) {
        for guess in guesses.with(Role::Header) {
            let mut text = comment(guess, "a header");
            if guess.column.form() == Form::Json {
                text.push_str(&format!(
                    " All of it in one; {} would be one of its members, and headers_from = '{}' above makes a header of each.",
                    field(guess.column, ".member"),
                    field(guess.column, "")
                ));
            }
            for line in wrapped(&text) {
                self.draft.note_header(&line);
            }
            // No two columns share a name.
            self.draft.header(&header(&guess.column.name), &field(guess.column, ""));
        }
    }

    fn guessed(&mut self, path: &'static str, guess: &Guess<'_>, what: &str) {
        self.note(path, &comment(guess, what));
    }
}

fn comment(guess: &Guess<'_>, what: &str) -> String {
    let mut text = format!("{}. Taken for {what}: {}.", guess.column.described(), guess.why);
    for remark in &guess.remarks {
        text.push(' ');
        text.push_str(remark);
    }
    text
}

/// W3C's names are in small letters, whatever the column's are: <https://www.w3.org/TR/trace-context/#traceparent-header>
fn header(column: &str) -> String {
    let small = column.to_lowercase();
    if matches!(small.as_str(), "traceparent" | "tracestate" | "baggage") { small } else { column.to_owned() }
}

fn field(column: &Column, functions: &str) -> String {
    let plain = Template::column(&column.name);
    let inside = plain.source().strip_suffix('}').unwrap_or_default();
    format!("{inside}{functions}}}")
}

/// `public` is left out: most slots serve that schema.
fn named(table: &TableName, separator: &str) -> String {
    match table.schema() {
        "public" => table.table().to_owned(),
        schema => format!("{schema}{separator}{}", table.table()),
    }
}

/// Slots have fewer letters than tables: a table that is named in others gets a number, so that no two share a slot.
fn slot(table: &TableName) -> String {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let name = named(table, "_");
    let slot: String = name.to_lowercase().chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    let slot = slot.trim_matches('_');
    if slot == name && slot.len() <= SLOT_BYTES_MAX {
        return slot.to_owned();
    }
    let digest = Sha256::digest(table.to_string());
    let number: String = digest.iter().take(NUMBER_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let slot = if slot.is_empty() { "outbox" } else { slot };
    let letters: String = slot.chars().take(SLOT_BYTES_MAX - 1 - 2 * NUMBER_BYTES).collect();
    format!("{letters}_{number}")
}

fn topic(table: &TableName) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name = named(table, ".");
    let name: String = name.chars().map(|c| if allowed(c) { c } else { '_' }).take(TOPIC_BYTES_MAX).collect();
    format!("outbox.event.{name}")
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests;
