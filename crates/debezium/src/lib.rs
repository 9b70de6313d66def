//! Debezium's outbox for walrelay: a connector's configuration, and the `walrelay.toml` that does
//! the same; the forms that Debezium and Kafka Connect give to values.
//!
//! | module | contents |
//! |---|---|
//! | `given` | a file to options by one set of names, whichever form it has |
//! | `options` | every option known, and what becomes of it |
//! | `connections` | those that say where Postgres and Kafka are, and which tables are captured |
//! | `columns` | types of the database whose values or schemas are not Debezium's |
//! | [`forms`] | functions of templates |
//! | `router` | those that say what records look like: the router's and the converters' |
//!
//! Nothing of Debezium is needed to read it; what it does with an option was seen on the wire, or
//! is in its source. No option's value is shown unless it is known to be harmless: any of them may
//! be a password.

mod columns;
mod connections;
pub mod forms;
mod given;
mod options;
mod router;

use serde::Serialize;

pub use connections::properties;
use given::Given;
use walrelay_core::catalog::{Column, Table};
use walrelay_core::config::TableName;
use walrelay_core::config::draft::Draft;
use walrelay_core::error::{Error, Kind, Result};

/// Whether librdkafka takes a property with this value, and no promise forbids it.
pub type CheckProperty<'a> = &'a dyn Fn(&str, &str) -> Result<()>;

/// What consumers have to expect of an option that was not carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Records are other than they were.
    Differs,
    /// They may be: it depends on the table, or on what the file does not say.
    MayDiffer,
    /// They are the same once somebody has done something.
    ToDo,
    /// They are the same.
    NoEffect,
}

impl Effect {
    /// The word for people.
    pub fn word(self) -> &'static str {
        match self {
            Effect::Differs => "differs",
            Effect::MayDiffer => "may differ",
            Effect::ToDo => "to do",
            Effect::NoEffect => "no effect",
        }
    }

    /// Whether consumers notice it, or may.
    pub fn is_seen(self) -> bool {
        matches!(self, Effect::Differs | Effect::MayDiffer)
    }
}

/// An option that was not carried, or not to the last byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Left {
    /// Its name as the file has it; `NAME (not set)` where its default counts.
    pub option: String,
    /// What consumers have to expect.
    pub effect: Effect,
    /// Why it was not carried.
    pub why: String,
    /// What to do about it; may be empty.
    pub what_to_do: String,
}

/// The outcome. Holds no secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Import {
    /// The file.
    pub draft: Draft,
    /// What it lacks, by its effect, and then in the order of the file, and last what the file
    /// leaves to a default.
    pub left: Vec<Left>,
}

impl Import {
    /// How many of those left consumers notice, or may.
    pub fn seen(&self) -> usize {
        self.left
            .iter()
            .filter(|left| left.effect.is_seen())
            .count()
    }

    /// The options that are listed with this effect, each once.
    pub fn options(&self, effect: Effect) -> Vec<&str> {
        let mut options = Vec::new();
        for left in self.left.iter().filter(|left| left.effect == effect) {
            if !options.contains(&left.option.as_str()) {
                options.push(left.option.as_str());
            }
        }
        options
    }
}

/// A table of the database that the connector captures.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its name.
    pub name: TableName,
    /// Its columns and keys.
    pub table: Table,
}

/// The configuration of a Debezium connector for an outbox in Postgres.
pub struct Connector(Given);

impl Connector {
    /// Reads a file called `path`: Kafka Connect's JSON, with or without `name` and `config` around
    /// it, Strimzi's `KafkaConnector`, Kafka Connect's properties, or Debezium Server's properties
    /// or YAML.
    ///
    /// # Errors
    /// [`Kind::Config`], without any value of the file: it cannot be read, or is no connector of an
    /// outbox in Postgres.
    pub fn read(path: &str, text: &str) -> Result<Connector> {
        let given = Given::read(path, text.strip_prefix('\u{feff}').unwrap_or(text))?;
        of_an_outbox(path, &given)?;
        Ok(Connector(given))
    }

    /// The publication's name; an error if the file does not have it.
    pub fn publication(&self) -> Result<&str> {
        self.0
            .or("publication.name", "dbz_publication")
            .ok_or_else(|| {
                let cause = format!(
                    "{}: it is filled in elsewhere, and is needed here",
                    self.0.written("publication.name")
                );
                Error::new(Kind::Config, cause).remedy("write the publication's name into the file")
            })
    }

    /// Whether it captures the table of this name; an error if a list of tables cannot be read.
    pub fn captures(&self, name: &TableName) -> Result<bool> {
        connections::captures(&self.0, name)
    }

    /// Whether the table has the columns that the connector needs.
    pub fn fits(&self, table: &Table) -> bool {
        router::needed_columns(&self.0)
            .iter()
            .all(|column| table.column(column).is_some())
    }

    /// The `walrelay.toml` for the `tables` that were found in the database; without any, for what
    /// the file names.
    pub fn import(&self, tables: &[Found], check: CheckProperty<'_>) -> Import {
        forms::install();
        let given = &self.0;
        let mut carrying = Carrying {
            given,
            tables,
            check,
            left: Vec::new(),
            draft: Draft::default(),
        };
        options::sort_out(&mut carrying);
        connections::carry(&mut carrying);
        router::carry(&mut carrying);
        connections::carry_kafka(&mut carrying);
        let Carrying {
            mut left, draft, ..
        } = carrying;
        left.sort_by_key(|left| (left.effect, given.place(&left.option)));
        Import { draft, left }
    }
}

fn of_an_outbox(path: &str, given: &Given) -> Result<()> {
    let refused = |what: &str, remedy: &str| {
        Err(Error::new(Kind::Config, format!("{path}: {what}")).remedy(remedy))
    };
    let class = given.get("connector.class").unwrap_or_default();
    if class.is_empty() {
        return refused(
            "there is no connector.class in it: it is no configuration of a connector",
            "name the JSON or the properties of one connector, or Debezium Server's \
             application.properties",
        );
    }
    if class != "PostgresConnector" && !class.ends_with(".PostgresConnector") {
        return refused(
            "it is not a connector of Debezium for Postgres",
            "walrelay reads from Postgres only",
        );
    }
    if given.router().is_none() {
        return refused(
            "none of its transforms is Debezium's Outbox Event Router: it publishes changes of \
             tables",
            "walrelay relays outbox tables; there is nothing in it that could do the same",
        );
    }
    Ok(())
}

/// What was made so far of the options that are `given`.
struct Carrying<'a> {
    given: &'a Given,
    /// Of the database; none where it was not looked at.
    tables: &'a [Found],
    check: CheckProperty<'a>,
    left: Vec<Left>,
    draft: Draft,
}

impl Carrying<'_> {
    /// Lists an option that is not carried; `name` as [`Given`] has it.
    fn left(&mut self, name: &str, effect: Effect, why: impl Into<String>, what_to_do: &str) {
        let option = self.given.written(name);
        self.left.push(Left {
            option,
            effect,
            why: why.into(),
            what_to_do: what_to_do.to_owned(),
        });
    }

    fn columns(&self, name: &str) -> Vec<&Column> {
        self.tables
            .iter()
            .filter_map(|found| found.table.column(name))
            .collect()
    }

    /// Whether the database was looked at, and has only such columns of this name.
    fn is_known(&self, name: &str, fits: fn(&Column) -> bool) -> bool {
        let columns = self.columns(name);
        !columns.is_empty() && columns.into_iter().all(fits)
    }
}
