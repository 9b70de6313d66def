//! Which column is what, and why.

use heck::ToTitleCase as _;
use serde::Serialize;

use super::words::{self, Name};
use crate::postgres::quote::quote_literal;
use walrelay_core::catalog::{Column, Form};
use walrelay_core::config::name::quoted;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct ColumnUse {
    pub column: String,
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its uses; empty if it is not used.
    pub used_for: Vec<&'static str>,
    pub why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Id,
    Payload,
    /// A topic for each of its values, behind the prefix.
    AggregateType,
    /// Its value is the topic.
    Topic,
    Key,
    Partition,
    Timestamp,
    EventType,
    Header,
}

impl Role {
    pub(super) fn word(self) -> &'static str {
        match self {
            Role::Id => "event id",
            Role::Payload => "payload",
            Role::AggregateType | Role::Topic => "topic",
            Role::Key => "key",
            Role::Partition => "partition",
            Role::Timestamp => "timestamp",
            Role::EventType => "event type",
            Role::Header => "header",
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Guess<'t> {
    pub(super) role: Role,
    pub(super) column: &'t Column,
    pub(super) why: String,
    /// Advice for the comment in the file, with a blank before each sentence.
    pub(super) remarks: String,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Missing {
    Id,
    Payload,
}

#[derive(Debug, Clone)]
pub(super) struct Guesses<'t> {
    columns: Vec<(&'t Column, Name)>,
    all: Vec<Guess<'t>>,
    /// The column with the row's time, if the time has no zone.
    pub(super) written_at: Option<&'t Column>,
}

const BY_NAME: &str = "by its name";

/// The column with the time of each row, for tables whose id is not a number.
pub(crate) fn ordering(columns: &[Column]) -> Option<&Column> {
    let is_time = |column: &&Column| column.is_timestamp();
    let ranked = columns.iter().filter(is_time);
    let ranked =
        ranked.filter_map(|column| Some((Name::of(&column.name).rank(words::WRITTEN_AT)?, column)));
    ranked
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, column)| column)
}

impl<'t> Guesses<'t> {
    pub(super) fn of(columns: &'t [Column]) -> Result<Guesses<'t>, Missing> {
        let columns = columns
            .iter()
            .map(|column| (column, Name::of(&column.name)))
            .collect();
        let mut guesses = Guesses {
            columns,
            all: Vec::new(),
            written_at: None,
        };
        guesses.payload()?;
        guesses.id()?;
        let pair = guesses.pair();
        guesses.topic(pair.map(|(kind, _)| kind));
        guesses.key(pair.map(|(_, id)| id));
        guesses.partition();
        guesses.timestamp();
        guesses.headers();
        Ok(guesses)
    }

    pub(super) fn with(&self, role: Role) -> impl Iterator<Item = &Guess<'t>> {
        self.all.iter().filter(move |guess| guess.role == role)
    }

    pub(super) fn column_uses(&self, columns: &[Column]) -> Vec<ColumnUse> {
        let column_use = |column: &Column| {
            let used: Vec<&Guess<'_>> = self
                .all
                .iter()
                .filter(|guess| guess.column.name == column.name)
                .collect();
            let mut whys: Vec<&str> = used.iter().map(|guess| guess.why.as_str()).collect();
            whys.dedup();
            ColumnUse {
                column: column.name.clone(),
                type_name: column.type_name.clone(),
                used_for: used.iter().map(|guess| guess.role.word()).collect(),
                why: if used.is_empty() {
                    self.why_not(column).to_owned()
                } else {
                    whys.join("; ")
                },
            }
        };
        columns.iter().map(column_use).collect()
    }

    fn why_not(&self, column: &Column) -> &'static str {
        match column {
            column if column.generated => "generated, and so not in the stream",
            column if self.written_at == Some(column) => "a time without a zone; see the file",
            column if Name::of(&column.name).has_a_word_of(words::STATE) => {
                "what a dispatcher notes down"
            }
            _ => "no name that says what for",
        }
    }

    fn take(
        &mut self,
        role: Role,
        column: &'t Column,
        why: impl Into<String>,
        remarks: &[(bool, &str)],
    ) {
        let remarks = remarks
            .iter()
            .filter(|(holds, _)| *holds)
            .map(|(_, remark)| format!(" {remark}"))
            .collect();
        self.all.push(Guess {
            role,
            column,
            why: why.into(),
            remarks,
        });
    }

    fn free(&self) -> impl Iterator<Item = (&'t Column, &Name)> {
        let taken = |column: &Column| self.all.iter().any(|guess| guess.column == column);
        self.columns
            .iter()
            .filter(move |(column, _)| !column.generated && !taken(column))
            .map(|(column, name)| (*column, name))
    }

    fn named(&self, list: &str, fits: impl Fn(&Column) -> bool) -> Option<&'t Column> {
        let fitting = self.free().filter(|(column, _)| fits(column));
        let ranked = fitting.filter_map(|(column, name)| Some((name.rank(list)?, column)));
        ranked
            .min_by_key(|(rank, _)| *rank)
            .map(|(_, column)| column)
    }

    fn payload(&mut self) -> Result<(), Missing> {
        let named = |list| {
            self.named(list, Column::can_hold_event)
                .map(|column| (column, BY_NAME.to_owned(), 1))
        };
        let found = named(words::PAYLOAD)
            .or_else(|| self.only(Form::Json, "the only JSON", "the first JSON of several"))
            .or_else(|| self.only(Form::Xml, "the only XML", "the first XML of several"))
            .or_else(|| self.only(Form::Bytea, "the only bytea", "the first bytea of several"))
            .or_else(|| named(words::PAYLOAD_PERHAPS));
        let (column, why, of) = found.ok_or(Missing::Payload)?;
        let remarks = [
            (of > 1, "Nothing says that it is this one: check it."),
            (
                !column.is_never_null(),
                "Where it is NULL, the record is a tombstone.",
            ),
        ];
        self.take(Role::Payload, column, why, &remarks);
        Ok(())
    }

    fn only(&self, form: Form, one: &str, of_several: &str) -> Option<(&'t Column, String, usize)> {
        let other = [words::METADATA, words::RECORD_KEY, words::AGGREGATE_ID];
        let is_other = |name: &Name| {
            name.before(words::ID_ENDS).is_some() || other.iter().any(|list| name.is_one_of(list))
        };
        let fits = |(column, name): &(&Column, &Name)| {
            column.form() == form && !column.indexed.in_primary_key && !is_other(name)
        };
        let mut fitting: Vec<&'t Column> =
            self.free().filter(fits).map(|(column, _)| column).collect();
        fitting.sort_by_key(|column| !column.is_never_null());
        let first = *fitting.first()?;
        Some((
            first,
            if fitting.len() == 1 { one } else { of_several }.to_owned(),
            fitting.len(),
        ))
    }

    fn id(&mut self) -> Result<(), Missing> {
        let alone = |column: &Column| column.indexed.unique && column.is_never_null();
        let known_outside =
            |column: &Column| alone(column) && matches!(column.form(), Form::Uuid | Form::Text);
        let found = self
            .named(words::EVENT_ID, known_outside)
            .map(|column| (column, "unique, and called so"))
            .or_else(|| {
                let key = self
                    .free()
                    .find(|(column, _)| column.indexed.in_primary_key && column.indexed.unique);
                key.map(|(column, _)| (column, "the primary key"))
            })
            .or_else(|| {
                Some((
                    self.named(words::ID, |column| {
                        column.is_never_null() && column.can_name()
                    })?,
                    BY_NAME,
                ))
            })
            .or_else(|| {
                self.free()
                    .find(|(column, _)| alone(column))
                    .map(|(column, _)| (column, "unique"))
            })
            .or_else(|| Some((self.named(words::ID, Column::can_name)?, BY_NAME)))
            .or_else(|| {
                // A part of a key of several columns is not unique.
                let fits = |column: &Column, name: &Name| {
                    let is_of_another = column.indexed.in_primary_key
                        || column.references
                        || name.is_one_of(words::AGGREGATE_ID);
                    column.form() == Form::Uuid && column.is_never_null() && !is_of_another
                };
                self.free()
                    .find(|(column, name)| fits(column, name))
                    .map(|(column, _)| (column, "a uuid, not null"))
            });
        let (column, why) = found.ok_or(Missing::Id)?;
        let remarks = [
            (
                !column.indexed.unique,
                "Nothing in the table keeps it unique, and consumers drop duplicates by it: check \
                 it.",
            ),
            (
                !column.is_never_null(),
                "A row where it is NULL stops the relay: declare it NOT NULL.",
            ),
        ];
        self.take(Role::Id, column, why, &remarks);
        Ok(())
    }

    /// `X_type` and `X_id`, as object-relational mappers write a reference to a row of any table.
    fn pair(&self) -> Option<(&'t Column, &'t Column)> {
        let kinds = self.free().filter(|(column, _)| column.is_word());
        kinds
            .filter_map(|(kind, name)| Some((kind, name.before("type")?)))
            .find_map(|(kind, prefix)| {
                if prefix
                    .iter()
                    .any(|word| words::has(words::OTHER_TYPES, word))
                {
                    return None;
                }
                let is_id = |(column, name): &(&Column, &Name)| {
                    column.can_be_key() && name.before(words::ID_ENDS) == Some(prefix)
                };
                self.free().find(is_id).map(|(id, _)| (kind, id))
            })
    }

    fn topic(&mut self, of_pair: Option<&'t Column>) {
        let nullable = |column: &Column| {
            (
                !column.is_never_null(),
                "A row where it is NULL stops the relay: declare it NOT NULL, or add \
                 |default('…').",
            )
        };
        if let Some(column) = self.named(words::TOPIC, Column::is_word) {
            let remarks = [(true, "Its value is the topic."), nullable(column)];
            return self.take(Role::Topic, column, BY_NAME, &remarks);
        }
        // Axon's `type` is the aggregate's, and `payload_type` the event's.
        let has_payload_type = self.named("payloadtype", Column::is_word).is_some();
        let typed = has_payload_type
            .then(|| self.named("type", Column::is_word))
            .flatten();
        let kind = self
            .named(words::AGGREGATE_TYPE, Column::is_word)
            .map(|column| (column, BY_NAME));
        let kind = kind.or_else(|| typed.map(|column| (column, "beside a payload's type")));
        if let Some((column, why)) =
            kind.or_else(|| of_pair.map(|column| (column, "with the id beside it")))
        {
            let remarks = [(true, "A topic for each of its values."), nullable(column)];
            return self.take(Role::AggregateType, column, why, &remarks);
        }
        if let Some(column) = self.named(words::SUBJECT, Column::is_word) {
            let remarks = [
                (true, "Its value is the topic: check that there are few."),
                nullable(column),
            ];
            self.take(Role::Topic, column, BY_NAME, &remarks);
        }
    }

    fn key(&mut self, of_pair: Option<&'t Column>) {
        let named = |list| {
            self.named(list, Column::can_be_key)
                .map(|column| (column, BY_NAME, ""))
        };
        let whose =
            "No column names the aggregate. This one is coarser, and so keeps the order of each.";
        let belongs = "No column names the aggregate: what belongs together keeps its order, other \
                       events do not.";
        let found = named(words::RECORD_KEY)
            .or_else(|| named(words::AGGREGATE_ID))
            .or_else(|| Some((of_pair?, "with the type beside it", "")))
            .or_else(|| self.foreign())
            .or_else(|| {
                self.named(words::TENANT, Column::can_name)
                    .map(|column| (column, BY_NAME, whose))
            })
            .or_else(|| {
                self.named(words::CORRELATION, Column::can_name)
                    .map(|column| (column, BY_NAME, belongs))
            });
        let Some((column, why, remark)) = found else {
            return;
        };
        let remarks = [
            (true, "Events with the same one keep their order."),
            (!remark.is_empty(), remark),
            (
                !column.is_never_null(),
                "A row where it is NULL has no key, and so no order.",
            ),
        ];
        let as_text = if column.form() == Form::Bytea {
            ", as the text \\x…"
        } else {
            ""
        };
        self.take(Role::Key, column, format!("{why}{as_text}"), &remarks);
    }

    /// The id of another thing, or its number.
    fn foreign(&self) -> Option<(&'t Column, &'static str, &'static str)> {
        let is_other = |name: &Name| {
            let own = [words::TENANT, words::CORRELATION, words::HEADER];
            name.has_a_word_of(words::OTHER_IDS)
                || name.has_a_word_of(words::STATE)
                || own.iter().any(|list| name.is_one_of(list))
        };
        let is_id = |name: &Name| name.before(words::ID_ENDS).is_some();
        let is_number = |name: &Name| {
            name.before(words::NUMBER_ENDS).is_some() && !name.has_a_word_of(words::COUNTED)
        };
        let ids = self.free().filter(|(column, name)| {
            column.can_be_key()
                && !is_other(name)
                && (column.references || is_id(name) || is_number(name))
        });
        let mut ids: Vec<&'t Column> = ids.map(|(column, _)| column).collect();
        // A stable sort.
        ids.sort_by_key(|column| (!column.references, !column.is_never_null()));
        let first = *ids.first()?;
        let why = match first.references {
            true => "it refers to another table",
            false if is_id(&Name::of(&first.name)) => "the id of something",
            false => "the number of something",
        };
        let several = "There are other ids: check that this is what has to keep its order.";
        Some((first, why, if ids.len() > 1 { several } else { "" }))
    }

    fn partition(&mut self) {
        if let Some(column) = self.named(words::PARTITION, |column| column.form() == Form::Integer)
        {
            let remarks = [(
                true,
                "A number the topic does not have stops the relay; where it is NULL, the key \
                 decides.",
            )];
            self.take(Role::Partition, column, BY_NAME, &remarks);
        }
    }

    fn timestamp(&mut self) {
        let written = self.named(words::WRITTEN_AT, |column| column.is_timestamp());
        let Some(column) = written else { return };
        let named_utc = self
            .columns
            .iter()
            .any(|(other, name)| *other == column && name.is_utc);
        if column.form() == Form::Timestamptz {
            self.take(Role::Timestamp, column, BY_NAME, &[]);
        } else if named_utc {
            self.take(Role::Timestamp, column, "by its name, in UTC", &[]);
        } else {
            self.written_at = Some(column);
        }
    }

    fn headers(&mut self) {
        if let Some(column) = self.named(words::EVENT_TYPE, |column| {
            column.can_name() && column.form() != Form::Uuid
        }) {
            self.take(Role::EventType, column, BY_NAME, &[]);
            self.take(Role::Header, column, BY_NAME, &[]);
        }
        let bag = |column: &Column| matches!(column.form(), Form::Json | Form::Text | Form::Xml);
        let fits = |column: &Column, name: &Name| {
            let plain = [words::HEADER, words::TENANT, words::CORRELATION]
                .iter()
                .any(|list| name.is_one_of(list));
            (plain && (column.can_name() || bag(column)))
                || (bag(column) && name.is_one_of(words::METADATA))
        };
        // A tenant or correlation id that is the key becomes a header, too.
        let is_key = |column: &Column| self.with(Role::Key).any(|guess| guess.column == column);
        let is_free = |column: &Column| {
            !column.generated && self.all.iter().all(|guess| guess.column != column)
        };
        let columns = self
            .columns
            .iter()
            .filter(|(column, name)| fits(column, name));
        let columns = columns
            .map(|(column, _)| *column)
            .filter(|column| is_key(column) || is_free(column));
        let found: Vec<&'t Column> = columns.collect();
        for column in found {
            self.take(Role::Header, column, BY_NAME, &[]);
        }
    }
}

/// Words in the names of columns that record the delivery.
const DONE: &str = "published processed sent dispatched delivered relayed handled completed";
const STATUS: &str = "status state";

#[derive(Debug, Clone)]
pub(super) struct Marked {
    pub(super) columns: String,
    /// True for rows that were not published.
    pub(super) pending: String,
    /// The assignment after the delivery.
    pub(super) mark: String,
    /// Whether the value of delivered rows is a number that nothing tells.
    pub(super) is_guess: bool,
}

/// A word or a number with a default, a flag that is false at first, or a time that is not set at
/// first; with a time beside it.
pub(super) fn marked(columns: &[Column]) -> Option<Marked> {
    let named = |column: &Column, list: &str| {
        !column.generated && Name::of(&column.name).has_a_word_of(list)
    };
    let is_time = |column: &&Column| column.is_timestamp();
    let at = columns
        .iter()
        .filter(is_time)
        .find(|column| !column.is_never_null() && named(column, DONE));
    let statuses = || columns.iter().filter(|column| named(column, STATUS));
    let default =
        |column: &Column, of: fn(&str) -> Option<String>| of(column.default.as_deref()?);
    let status = statuses().filter(|column| column.is_word());
    let status = status
        .filter_map(|column| Some((column, default(column, text_of)?)))
        .next();
    let number = statuses().filter(|column| column.is_integer());
    let number = number
        .filter_map(|column| Some((column, default(column, number_of)?)))
        .next();
    let is_flag =
        |column: &&Column| column.base.name == "bool" && column.default.as_deref() == Some("false");
    let flag = columns
        .iter()
        .filter(is_flag)
        .find(|column| named(column, DONE));
    let (first, pending, set) = match (status, number, flag) {
        (Some((column, text)), ..) => {
            let name = quoted(&column.name);
            let done = in_the_case_of(&text, "published");
            let text = quote_literal(&text).ok()?;
            let done = quote_literal(&done).ok()?;
            (
                Some(column),
                format!("{name} = {text}"),
                Some(format!("{name} = {done}")),
            )
        }
        (None, Some((column, ref number)), _) => {
            let name = quoted(&column.name);
            let done = if number == "1" { "2" } else { "1" };
            (
                Some(column),
                format!("{name} = {number}"),
                Some(format!("{name} = {done}")),
            )
        }
        (None, None, Some(column)) => {
            let name = quoted(&column.name);
            (
                Some(column),
                format!("not {name}"),
                Some(format!("{name} = true")),
            )
        }
        (None, None, None) => (None, format!("{} is null", quoted(&at?.name)), None),
    };
    let stamp = at.map(|column| format!("{} = now()", quoted(&column.name)));
    let described: Vec<String> = first.into_iter().chain(at).map(Column::described).collect();
    let mark: Vec<String> = set.into_iter().chain(stamp).collect();
    let is_guess = first.is_some_and(Column::is_integer);
    Some(Marked {
        columns: described.join("; "),
        pending,
        mark: mark.join(", "),
        is_guess,
    })
}

/// The number of a default, such as `0` or `'0'::smallint`.
fn number_of(default: &str) -> Option<String> {
    let text = text_of(default).unwrap_or_else(|| default.to_owned());
    text.parse::<i64>().ok().map(|number| number.to_string())
}

fn text_of(default: &str) -> Option<String> {
    let (text, rest) = default.strip_prefix('\'')?.split_once('\'')?;
    (!text.is_empty() && (rest.is_empty() || rest.starts_with("::"))).then(|| text.to_owned())
}

fn in_the_case_of(known: &str, word: &str) -> String {
    let mut letters = known.chars().filter(|c| c.is_alphabetic());
    match letters.next().is_some_and(char::is_uppercase) {
        true if letters.all(char::is_uppercase) => word.to_uppercase(),
        true => word.to_title_case(),
        false => word.to_owned(),
    }
}
