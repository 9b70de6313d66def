//! Connection, slot, publication and table.

use super::Carrying;
use super::Effect::{Differs, MayDiffer, ToDo};
use crate::config::name::quoted;
use crate::config::{SlotName, TableName};

/// Options of the connection and libpq's words for them.
const CONNECTION: &[(&str, &str)] = &[
    ("database.hostname", "host"),
    ("database.port", "port"),
    ("database.user", "user"),
    ("database.dbname", "dbname"),
    ("database.sslmode", "sslmode"),
    ("database.sslrootcert", "sslrootcert"),
    ("database.sslcert", "sslcert"),
    ("database.sslkey", "sslkey"),
];
const TABLES: &str = "table.include.list";

pub(super) fn carry(carrying: &mut Carrying<'_>) {
    connection(carrying);
    names(carrying);
    table(carrying);
}

fn connection(carrying: &mut Carrying<'_>) {
    let given = carrying.given;
    let parts = CONNECTION.iter().filter_map(|(name, word)| {
        let value = given.get(name).filter(|value| !value.is_empty())?;
        Some(format!("{word}={}", libpq_quoted(value)))
    });
    let url = parts.collect::<Vec<_>>().join(" ");
    let note = "No password here: PGPASSFILE, PGPASSWORD, or WALRELAY_DATABASE_URL in place of this line.";
    carrying.draft.note("database.url", note);
    if !url.is_empty() {
        carrying.draft.set("database.url", &url);
    }
    if given.get("database.sslkey").is_some_and(|value| !value.is_empty()) {
        let why = "Debezium's driver reads a key in DER form (PKCS #8), walrelay one in PEM form";
        let what_to_do = "openssl pkcs8 -inform DER -nocrypt -in KEY -out KEY.pem, and name that";
        carrying.left("database.sslkey", ToDo, why, what_to_do);
    }
}

/// <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-KEYWORD-VALUE>
fn libpq_quoted(value: &str) -> String {
    if !value.is_empty() && !value.contains([' ', '\'', '\\', '\t', '\n']) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

fn names(carrying: &mut Carrying<'_>) {
    let given = carrying.given;
    match given.or("slot.name", "debezium") {
        Some(slot) if slot.parse::<SlotName>().is_ok() => carrying.draft.set("slot.name", slot),
        unfit => {
            carrying.draft.note("slot.name", "name = …  (the slot the connector streams from)");
            if unfit.is_some() {
                let why = "this is no name of a slot";
                carrying.left("slot.name", ToDo, why, "set slot.name: select slot_name from pg_replication_slots");
            }
        }
    }
    match given.or("publication.name", "dbz_publication") {
        Some(publication) => carrying.draft.set("slot.publication", publication),
        None => carrying.draft.note("slot.publication", "publication = …  (the connector's)"),
    }
    let why = "carried; those that Debezium makes have updates and deletes too, which walrelay drops. Debezium publishes a \
               row again when its primary key is updated";
    let what_to_do = "insert a row instead of updating a primary key; alter publication NAME set (publish = 'insert') \
                      spares the traffic of the others";
    carrying.left("publication.name", ToDo, why, what_to_do);
    if given.get("plugin.name") != Some("pgoutput") {
        let why = "walrelay reads slots of pgoutput only; Debezium's default is decoderbufs";
        let what_to_do = "select plugin from pg_replication_slots: another than pgoutput needs a new slot";
        carrying.left("plugin.name", ToDo, why, what_to_do);
    }
}

fn table(carrying: &mut Carrying<'_>) {
    let given = carrying.given;
    let Some(list) = given.get(TABLES).filter(|list| !list.is_empty()) else {
        if !given.has(TABLES) {
            let why = "without it the connector takes every table; public.outbox is assumed";
            carrying.left(TABLES, MayDiffer, why, "set outbox.table");
        }
        return;
    };
    let patterns: Vec<&str> = list.split(',').map(str::trim).filter(|pattern| !pattern.is_empty()).collect();
    let mut plain = patterns.iter().filter_map(|pattern| table_of(pattern)).collect::<Vec<_>>();
    // A sort that keeps the order of equals: the first that is called an outbox, else the first.
    plain.sort_by_key(|table| !table.to_lowercase().contains("outbox"));
    match plain.first() {
        Some(table) => carrying.draft.set("outbox.table", table),
        None => carrying.draft.note("outbox.table", "table = \"SCHEMA.TABLE\"  (the connector has a pattern)"),
    }
    match (plain.len(), patterns.len()) {
        (1, 1) if list.chars().any(char::is_uppercase) => {
            let why = "carried as written. Debezium compares without case, and walrelay with it";
            carrying.left(TABLES, ToDo, why, "set outbox.table to the table's name as Postgres has it");
        }
        (1, 1) => {}
        (0, _) => {
            let why = "it is a pattern, and not a table's name as SCHEMA.TABLE; public.outbox is assumed";
            carrying.left(TABLES, MayDiffer, why, "set outbox.table");
        }
        _ => {
            let why = "the import writes one table, and this names several";
            let what_to_do = "check outbox.table; where there are further outboxes, write an [[outbox]] for each, see \
                              docs/mapping.md";
            carrying.left(TABLES, Differs, why, what_to_do);
        }
    }
}

/// The table that a regular expression without anything special names, as SQL writes it.
fn table_of(pattern: &str) -> Option<String> {
    let mut name = String::new();
    let mut characters = pattern.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => name.push(characters.next().filter(|c| !c.is_alphanumeric())?),
            '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '^' | '$' => return None,
            c => name.push(c),
        }
    }
    let (schema, table) = name.split_once('.')?;
    let sql = format!("{}.{}", quoted(schema), quoted(table));
    sql.parse::<TableName>().ok().map(|_| sql)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_without_anything_special_is_a_table() {
        for (pattern, table) in [
            ("public.outbox", Some("public.outbox")),
            (r"public\.outbox", Some("public.outbox")),
            ("Sales.Out Box", Some(r#""Sales"."Out Box""#)),
            ("public.outbox.*", None),
            ("(public|x).outbox", None),
            ("outbox", None),
            (r"public.\w", None),
        ] {
            assert_eq!(table_of(pattern).as_deref(), table, "{pattern}");
        }
    }

    #[test]
    fn a_value_is_quoted_where_libpq_needs_it() {
        assert_eq!(libpq_quoted("db.example.com"), "db.example.com");
        assert_eq!(libpq_quoted(r"o'b \x"), r"'o\'b \\x'");
    }
}
