//! The `walrelay.toml` for an existing outbox table, with a comment for each guess.
//!
//! [`words`] has the usual names of columns, and [`guess`] the purpose of each column. There is no
//! I/O: the same table gives the same file. Where the purpose of a column is not clear, the choice
//! loses no event and no order, and the file says so.

mod guess;
mod words;

use serde::Serialize;
use sha2::{Digest, Sha256};

pub(crate) use guess::{ColumnUse, ordering};
use guess::{Guess, Guesses, Missing, Role};

use crate::config::model::tables;
use crate::config::{Endpoint, SinkKind};
use walrelay_core::catalog::{Column, Form};
use walrelay_core::config::TableName;
use walrelay_core::config::draft::{Draft, HEADERS};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::template::Template;

/// Facts beside the columns: settings, and the judgement of `setup` on the table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// A connection string without a password.
    pub database_url: Option<String>,
    /// By default from the table's name.
    pub slot: Option<String>,
    /// If it is not the slot's default.
    pub publication: Option<String>,
    pub sink: SinkKind,
    /// Where its bus is: `Bus::address`.
    pub address: Option<String>,
    /// What its records go to there: `Bus::endpoint`.
    pub endpoint: Option<String>,
    pub refused: Option<String>,
    /// Why `setup --add-xid-column` does, if it does.
    pub no_xid_column: Option<String>,
}

/// A file, and the use of each column.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Suggestion {
    pub toml: String,
    pub columns: Vec<ColumnUse>,
    /// Warnings to the operator before the next step.
    pub warnings: Vec<String>,
}

pub(crate) fn suggest(table: &TableName, columns: &[Column], known: &Known) -> Result<Suggestion> {
    let guesses = Guesses::of(columns).map_err(|missing| unfit(table, columns, missing))?;
    let mut warnings: Vec<String> = known
        .refused
        .iter()
        .chain(&known.no_xid_column)
        .cloned()
        .collect();
    if guesses.with(Role::Key).next().is_none() {
        warnings.push(
            "no column names what an event is about: records have no key, and so no order"
                .to_owned(),
        );
    }
    let uses = guesses.column_uses(columns);
    Ok(Suggestion {
        toml: toml(table, columns, &guesses, &uses, known),
        columns: uses,
        warnings,
    })
}

fn unfit(table: &TableName, columns: &[Column], missing: Missing) -> Error {
    let there: Vec<String> = columns
        .iter()
        .map(|column| format!("{} ({})", column.name, column.type_name))
        .collect();
    let there = if there.is_empty() {
        "no columns at all".to_owned()
    } else {
        there.join(", ")
    };
    let key: Vec<&str> = columns
        .iter()
        .filter(|it| it.indexed.in_primary_key)
        .map(|it| it.name.as_str())
        .collect();
    let remedy_of_id = match key.as_slice() {
        [_, _, ..] => format!(
            "an event's id is one column, and the primary key has several ({}): add a unique \
             column, such as event_id uuid",
            key.join(", ").replace(char::is_control, " ")
        ),
        _ => "give the table a primary key".to_owned(),
    };
    let (what, remedy) = match missing {
        Missing::Id => (
            "the event's id: a primary key of one column, a unique column, a uuid, or one that is \
             called so",
            format!(
                "{remedy_of_id}, or name the column under [outbox.columns] in a walrelay.toml \
                     of your own"
            ),
        ),
        Missing::Payload => (
            "the payload: json, jsonb, xml, bytea or text that is called so",
            "check that this is the table events are written into. Events made of several columns \
             are an envelope: write \
             a walrelay.toml with [format.envelope], see docs/reference/templates.md"
                .to_owned(),
        ),
    };
    let cause = format!("table {table} has no column that looks like {what}; it has {there}");
    Error::new(Kind::Publication, cause.replace(char::is_control, " ")).remedy(remedy)
}

/// The publication's name is longer by `walrelay_`.
const SLOT_BYTES_MAX: usize = 54;
/// Bytes of the number in the slot's name, of two digits each.
const NUMBER_BYTES: usize = 4;
/// That of sinks of this process is their address, too.
const SINK: &str = "sink.kind";
/// The topic's name has a prefix, too.
const TOPIC_BYTES_MAX: usize = 200;

fn toml(
    table: &TableName,
    columns: &[Column],
    guesses: &Guesses<'_>,
    uses: &[ColumnUse],
    known: &Known,
) -> String {
    let mut draft = Draft::default();
    source(&mut draft, table, known);
    not_used(&mut draft, uses);
    identity(&mut draft, guesses);
    published(&mut draft, columns, known);
    route(&mut draft, table, guesses);
    headers(&mut draft, guesses);
    sink(&mut draft, known);
    draft.toml(&format!(
        "Suggested by `walrelay config init` for table {table}. What each line was guessed from is \
         above it: read them all, \
         and change what is wrong. docs/reference/templates.md has what else a route can do."
    ), &tables())
}

fn sink(draft: &mut Draft, known: &Known) {
    let bus = known.sink.bus();
    if known.sink != SinkKind::default() && bus.address != SINK {
        draft.set(SINK, known.sink.into());
    }
    match &known.address {
        Some(address) => draft.set(bus.address, address),
        None => {
            let name = bus.name;
            draft.note(
                bus.address,
                &format!("SET THIS: where {name} is cannot be guessed."),
            );
            draft.set(bus.address, bus.example);
        }
    }
    if let Some(Endpoint { key, example, what }) = bus.endpoint {
        if known.endpoint.is_none() {
            draft.note(key, &format!("SET THIS: {what}."));
        }
        draft.set(key, known.endpoint.as_deref().unwrap_or(example));
    }
}

fn source(draft: &mut Draft, table: &TableName, known: &Known) {
    match &known.database_url {
        Some(url) => draft.set("database.url", url),
        None => draft.note(
            "database.url",
            "Not written here: WALRELAY_DATABASE_URL, or PGHOST, PGUSER, PGDATABASE, PGPASSFILE \
             and so on.",
        ),
    }
    match &known.slot {
        Some(slot) => draft.set("slot.name", slot),
        None => {
            draft.note("slot.name", "Made of the table's name. One relay per slot.");
            draft.set("slot.name", &slot(table));
        }
    }
    if let Some(publication) = &known.publication {
        draft.set("slot.publication", publication);
    }
    draft.set("outbox.table", &table.to_string());
}

fn not_used(draft: &mut Draft, uses: &[ColumnUse]) {
    let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
    for ColumnUse { column, why, .. } in uses.iter().filter(|column| column.used_for.is_empty()) {
        match by_reason.iter_mut().find(|(known, _)| known == why) {
            Some((_, names)) => names.push(column),
            None => by_reason.push((why, vec![column])),
        }
    }
    if !by_reason.is_empty() {
        let text = by_reason
            .iter()
            .map(|(why, names)| format!("{} ({why})", names.join(", ")))
            .collect::<Vec<_>>();
        draft.note("outbox.table", &format!("Not sent: {}.", text.join("; ")));
    }
}

fn identity(draft: &mut Draft, guesses: &Guesses<'_>) {
    for (role, setting, what) in [
        (Role::Id, "outbox.columns.id", "the event's id"),
        (Role::Payload, "outbox.columns.payload", "the payload"),
    ] {
        for guess in guesses.with(role) {
            draft.note(setting, &comment(guess, what));
            draft.set(setting, &guess.column.name);
        }
    }
    let named = [
        (Role::AggregateType, "outbox.columns.aggregatetype"),
        (Role::Key, "outbox.columns.aggregateid"),
        (Role::EventType, "outbox.columns.type"),
    ];
    let found =
        named.map(|(role, setting)| guesses.with(role).next().map(|guess| (setting, guess)));
    for (place, (setting, guess)) in found.into_iter().flatten().enumerate() {
        if place == 0 {
            draft.note(
                setting,
                "What commands select events by, as with --aggregate and --type. \
                                 The route is below.",
            );
        }
        draft.set(setting, &guess.column.name);
    }
}

/// The settings that tell which rows are published, after a loss of the slot.
fn published(draft: &mut Draft, columns: &[Column], known: &Known) {
    for refusal in known.refused.iter().chain(&known.no_xid_column) {
        draft.note("outbox.table", refusal);
    }
    if known.no_xid_column.is_none() && !columns.iter().any(Column::tells_transaction) {
        let text = "No column has the transaction of each row. `walrelay setup` with \
                    --add-xid-column adds one, which \
                    polling needs: should the slot be lost, exactly what was not published is read \
                    from the table.";
        draft.note("outbox.table", text);
    }
    let Some(marked) = guess::marked(columns) else {
        return;
    };
    let number = if marked.is_guess {
        " Which number means published is a guess."
    } else {
        ""
    };
    let text = format!(
        "{}. Where these say what was published, and nobody else writes them, walrelay can do so: \
         with the words of your \
         application, and UPDATE on the table.{number} docs/how-to/upkeep.md:",
        marked.columns
    );
    draft.note("outbox.pending", &text);
    draft.propose("outbox.pending", &marked.pending);
    draft.propose("outbox.mark", &marked.mark);
}

fn route(draft: &mut Draft, table: &TableName, guesses: &Guesses<'_>) {
    let kind = guesses.with(Role::AggregateType).next();
    match (kind, guesses.with(Role::Topic).next()) {
        (Some(guess), _) => {
            draft.note("route.topic", &comment(guess, "the aggregate's type"));
            let topic = format!(
                "outbox.event.{}",
                Template::written(&guess.column.name, "|topic")
            );
            draft.set("route.topic", &topic);
        }
        (None, Some(guess)) => {
            draft.note("route.topic", &comment(guess, "the topic"));
            draft.set(
                "route.topic",
                &Template::written(&guess.column.name, "|topic"),
            );
        }
        (None, None) => {
            let text = "No column says where events go, so all go to one topic, made of the \
                        table's name: put the one your \
                        consumers know.";
            draft.note("route.topic", text);
            draft.set("route.topic", &topic(table));
        }
    }
    match guesses.with(Role::Key).next() {
        Some(guess) => {
            draft.note("route.key", &comment(guess, "the key"));
            draft.set("route.key", &Template::written(&guess.column.name, ""));
        }
        None => {
            let text = "No column names what an event is about: records have no key, and so NO \
                        ORDER. A template over any \
                        columns gives them one.";
            draft.note("route.key", text);
            draft.set("route.key", "");
        }
    }
    for (role, setting) in [
        (Role::Partition, "route.partition"),
        (Role::Timestamp, "route.timestamp"),
    ] {
        for guess in guesses.with(role) {
            draft.note(
                setting,
                &comment(guess, &format!("the record's {}", role.word())),
            );
            draft.set(setting, &guess.column.name);
        }
    }
    if let Some(column) = guesses.written_at {
        let text = format!(
            "{}. Without a zone it is no moment, so records have the time they are produced. Where \
             the application \
             writes UTC, this gives them the row's:",
            column.described()
        );
        draft.note("route.timestamp", &text);
        draft.propose("route.timestamp", &column.name);
    }
}

fn headers(draft: &mut Draft, guesses: &Guesses<'_>) {
    for guess in guesses.with(Role::Header) {
        let mut text = comment(guess, "a header");
        if guess.column.form() == Form::Json {
            text.push_str(&format!(
                " All of it in one; {} would be one of its members, and headers_from = '{}' above \
                 makes a header of each.",
                Template::written(&guess.column.name, ".member"),
                Template::written(&guess.column.name, "")
            ));
        }
        draft.note("route.headers.*", &text);
        // No two columns share a name, but two may be spellings of one.
        let column = guess.column.name.as_str();
        let usual = header(column);
        let is_taken = usual != column
            && guesses
                .with(Role::Header)
                .any(|other| other.column.name == usual);
        let name = if is_taken { column } else { usual };
        draft.named(HEADERS, name, &Template::written(column, ""));
    }
}

fn comment(guess: &Guess<'_>, what: &str) -> String {
    format!(
        "{}. Taken for {what}: {}.{}",
        guess.column.described(),
        guess.why,
        guess.remarks
    )
}

/// W3C's names are in small letters and one word, however the column is spelled:
/// <https://www.w3.org/TR/trace-context/#traceparent-header>
fn header(column: &str) -> &str {
    let names = ["traceparent", "tracestate", "baggage"];
    let known = names
        .into_iter()
        .find(|name| words::Name::of(column).is_one_of(name));
    known.unwrap_or(column)
}

/// `public` is left out: most slots serve that schema.
fn named(table: &TableName, separator: &str) -> String {
    match table.schema() {
        "public" => table.table().to_owned(),
        schema => format!("{schema}{separator}{}", table.table()),
    }
}

/// Slots have fewer letters than tables: a table that is named in others gets a number, so that no
/// two share a slot.
fn slot(table: &TableName) -> String {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let name = named(table, "_");
    let slot: String = name
        .to_lowercase()
        .chars()
        .map(|c| if allowed(c) { c } else { '_' })
        .collect();
    let slot = slot.trim_matches('_');
    if slot == name && slot.len() <= SLOT_BYTES_MAX {
        return slot.to_owned();
    }
    let digest = Sha256::digest(table.to_string());
    let number: String = digest
        .iter()
        .take(NUMBER_BYTES)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let slot = if slot.is_empty() { "outbox" } else { slot };
    let letters: String = slot
        .chars()
        .take(SLOT_BYTES_MAX - 1 - 2 * NUMBER_BYTES)
        .collect();
    format!("{letters}_{number}")
}

fn topic(table: &TableName) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name = named(table, ".");
    let name: String = name
        .chars()
        .map(|c| if allowed(c) { c } else { '_' })
        .take(TOPIC_BYTES_MAX)
        .collect();
    format!("outbox.event.{name}")
}

#[cfg(test)]
mod tests;
