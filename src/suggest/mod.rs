//! An outbox table that exists, and the `walrelay.toml` it would suggest.
//!
//! | module | its room |
//! |---|---|
//! | `words` | what a name says, however it is written, and the names the field uses |
//! | `guess` | which column is what, and why; what the table notes down of rows that were published |
//! | `written` | the file, with a comment per guess |
//!
//! Nothing is asked here: the same table gives the same file. Where it cannot be told what a column is, the choice is the
//! one that loses no event and no order, and the file says so.

mod guess;
mod words;
mod written;

use serde::Serialize;

pub(crate) use guess::Fate;
use guess::Guesses;

use crate::config::TableName;
use crate::error::{Error, Kind, Result};
use crate::postgres::catalog::Column;

/// What is known beside the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// A connection string without a password, to be written into the file.
    pub database_url: Option<String>,
    /// The slot's name; made of the table's where there is none.
    pub slot: Option<String>,
    /// The publication's name, where it is another than the slot's default.
    pub publication: Option<String>,
    /// Kafka's bootstrap servers.
    pub brokers: Option<String>,
}

/// A file, and what it was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Suggestion {
    /// The `walrelay.toml`.
    pub toml: String,
    /// Every column of the table, in order, and what became of it.
    pub columns: Vec<Fate>,
}

/// Makes a configuration for `table` with these `columns`.
///
/// # Errors
/// [`Kind::Publication`] where no column can be the event's id, or none the payload: all columns are named.
pub(crate) fn suggest(table: &TableName, columns: &[Column], known: &Known) -> Result<Suggestion> {
    let guesses = Guesses::of(columns).map_err(|missing| unfit(table, columns, missing))?;
    Ok(Suggestion { toml: written::toml(table, columns, &guesses, known), columns: guesses.fates(columns) })
}

/// The column by which rows of a table without a number as its id can be put in the order in which they were written.
pub(crate) fn ordering(columns: &[Column]) -> Option<&Column> {
    guess::written_at(columns)
}

fn unfit(table: &TableName, columns: &[Column], missing: guess::Missing) -> Error {
    let there: Vec<String> = columns.iter().map(|column| format!("{} ({})", column.name, column.type_name)).collect();
    let there = if there.is_empty() { "no columns at all".to_owned() } else { there.join(", ") };
    let (what, remedy) = match missing {
        guess::Missing::Id => (
            "the event's id: a primary key, a unique column, a uuid, or one that is called so",
            "give the table a primary key, or name the column under [outbox.columns] in a walrelay.toml of your own",
        ),
        guess::Missing::Payload => (
            "the payload: json, jsonb, bytea or text that is called so",
            "check that this is the table events are written into. Events made of several columns are an envelope: write \
             a walrelay.toml with [format.envelope], see docs/mapping.md",
        ),
    };
    let cause = format!("table {table} has no column that looks like {what}; it has {there}");
    Error::new(Kind::Publication, cause.replace(char::is_control, " ")).remedy(remedy)
}

#[cfg(test)]
mod tests;
