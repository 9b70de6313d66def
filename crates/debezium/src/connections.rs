//! Where Postgres and Kafka are: connection, slot, publication and tables; options of Kafka's Java
//! producer.

use regex::Regex;

use crate::Carrying;
use crate::Effect::{Differs, MayDiffer, ToDo};
use crate::given::{Given, LOGIN, PRODUCER_PREFIX};
use crate::options::{Fate, OPTIONS, PRODUCER};
use walrelay_core::config::draft::KAFKA_PROPERTIES;
use walrelay_core::config::name::quoted;
use walrelay_core::config::{SlotName, TableName};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::template::of_java;

pub(crate) const TABLES: &str = "table.include.list";
const NOT_SEEN: &str = "carried as written. Debezium compares without case. Of the table nothing \
                        is known: no type that Java \
                        writes as another text, no default that Debezium sends for NULL, no row \
                        filter of the publication";
const LOOK: &str = "give --database-url, which writes an [[outbox]] for each table that the \
                    connector captures; or set \
                    outbox.table, and compare the columns with docs/how-to/move-from-debezium.md";

pub(crate) fn carry(carrying: &mut Carrying<'_>) {
    connection(carrying);
    names(carrying);
    snapshot(carrying);
    let tables: Vec<String> = carrying
        .tables
        .iter()
        .map(|found| found.name.to_string())
        .collect();
    let named = patterns(carrying.given.get(TABLES).unwrap_or_default());
    let are_names = !named.is_empty() && named.iter().all(|pattern| table_of(pattern).is_some());
    if !tables.is_empty() && !are_names {
        let why = "the file has the tables that exist now. Debezium also captures those that are \
                   created later";
        carrying.left(
            TABLES,
            MayDiffer,
            why,
            "add an [[outbox]] before rows of another table are written",
        );
    }
    match tables.as_slice() {
        [] => table(carrying),
        [one] => carrying.draft.set("outbox.table", one),
        _ => carrying.draft.outboxes(tables),
    }
}

fn connection(carrying: &mut Carrying<'_>) {
    let given = carrying.given;
    let parts = OPTIONS.iter().filter_map(|row| {
        let Fate::Libpq(word) = row.fate else {
            return None;
        };
        let value = given.get(row.patterns).filter(|value| !value.is_empty())?;
        Some(format!("{word}={}", libpq_quoted(value)))
    });
    let url = parts.collect::<Vec<_>>().join(" ");
    let note =
        "No password here: PGPASSFILE, PGPASSWORD, or WALRELAY_DATABASE_URL in place of this line.";
    carrying.draft.note("database.url", note);
    if !url.is_empty() {
        carrying.draft.set("database.url", &url);
    }
    if given
        .get("database.sslkey")
        .is_some_and(|value| !value.is_empty())
    {
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
            carrying.draft.note(
                "slot.name",
                "name = …  (the slot the connector streams from)",
            );
            if unfit.is_some() {
                let why = "this is no name of a slot";
                carrying.left(
                    "slot.name",
                    ToDo,
                    why,
                    "set slot.name: select slot_name from pg_replication_slots",
                );
            }
        }
    }
    match given.or("publication.name", "dbz_publication") {
        Some(publication) => carrying.draft.set("slot.publication", publication),
        None => carrying
            .draft
            .note("slot.publication", "publication = …  (the connector's)"),
    }
    let why = "carried; those that Debezium makes have updates and deletes too, which walrelay \
               drops. Debezium publishes a \
               row again when its primary key is updated";
    let what_to_do = "insert a row instead of updating a primary key; alter publication NAME set \
                      (publish = 'insert') \
                      spares the traffic of the others";
    carrying.left("publication.name", ToDo, why, what_to_do);
    if given.get("plugin.name") != Some("pgoutput") {
        let why = "walrelay reads slots of pgoutput only; Debezium's default is decoderbufs";
        let what_to_do =
            "select plugin from pg_replication_slots: another than pgoutput needs a new slot";
        carrying.left("plugin.name", ToDo, why, what_to_do);
    }
}

/// Lists what becomes of the rows that are in the table at the first start. Each later start
/// continues at the slot.
fn snapshot(carrying: &mut Carrying<'_>) {
    const MODE: &str = "snapshot.mode";
    let Some(mode) = carrying.given.or(MODE, "initial") else {
        return;
    };
    let (effect, why, what_to_do) = match mode.to_ascii_lowercase().as_str() {
        "initial" => (
            ToDo,
            "the connector's first start publishes the rows of the table; walrelay does that only \
             if it creates the slot",
            "if the connector has never run, start walrelay once with --backlog all. If it has \
             run, do not: the rows would \
             be published again",
        ),
        "no_data" | "never" => (
            ToDo,
            "the connector's first start publishes no rows of the table; walrelay does if it \
             creates the slot",
            "if there is no slot yet, create it with walrelay setup",
        ),
        _ => (
            MayDiffer,
            "walrelay takes no snapshot: it publishes rows from before the slot only if it creates \
             the slot",
            "publish such rows with walrelay replay",
        ),
    };
    carrying.left(MODE, effect, why, what_to_do);
}

fn table(carrying: &mut Carrying<'_>) {
    let given = carrying.given;
    let patterns = patterns(given.get(TABLES).unwrap_or_default());
    let mut plain = patterns
        .iter()
        .filter_map(|pattern| table_of(pattern))
        .collect::<Vec<_>>();
    // A sort that keeps the order of equals: the first that is called an outbox, else the first.
    plain.sort_by_key(|table| !table.to_lowercase().contains("outbox"));
    match plain.first() {
        Some(table) => carrying.draft.set("outbox.table", table),
        None => carrying.draft.note(
            "outbox.table",
            "table = \"SCHEMA.TABLE\"  (the connector has none, or a pattern)",
        ),
    }
    let (effect, why) = match (plain.len(), patterns.len()) {
        (0, _) => (
            MayDiffer,
            "no table is named here as SCHEMA.TABLE, and public.outbox is assumed; the default is \
             every table",
        ),
        (1, 1) => (MayDiffer, NOT_SEEN),
        _ => (
            Differs,
            "without the database the import writes one table, and this names several",
        ),
    };
    carrying.left(TABLES, effect, why, LOOK);
}

/// The regular expressions of a list. A backslash makes a comma a part of one:
/// `Strings.RegExSplitter` of Debezium.
fn patterns(list: &str) -> Vec<String> {
    let mut patterns = vec![String::new()];
    let mut escaped = false;
    for c in list.chars() {
        match patterns.last_mut() {
            Some(pattern) if escaped || c != ',' => pattern.push(c),
            _ => patterns.push(String::new()),
        }
        escaped = !escaped && c == '\\';
    }
    let parts = patterns
        .iter()
        .map(|pattern| pattern.trim().replace("\\,", ","));
    parts.filter(|pattern| !pattern.is_empty()).collect()
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

/// Whether the connector captures a table: its schema and its name with the schema are both in the
/// lists of that kind.
///
/// Of two lists of a kind the one that includes counts, and an expression has to match the whole in
/// whatever case: `Selectors.TableSelectionPredicateBuilder.build` and `Predicates.includes` of
/// Debezium.
pub(crate) fn captures(given: &Given, table: &TableName) -> Result<bool> {
    let schema = table.schema();
    let name = format!("{schema}.{}", table.table());
    Ok(listed(
        given,
        ["schema.include.list", "schema.exclude.list"],
        schema,
    )? && listed(given, [TABLES, "table.exclude.list"], &name)?)
}

fn listed(given: &Given, [include, exclude]: [&str; 2], text: &str) -> Result<bool> {
    let is_given = |name: &str| given.as_written(name).is_some_and(|list| !list.is_empty());
    let Some(list) = [include, exclude].into_iter().find(|name| is_given(name)) else {
        return Ok(true);
    };
    let unreadable = || {
        let cause = format!(
            "{}: an expression is Java's alone, or is filled in elsewhere",
            given.written(list)
        );
        Error::new(Kind::Config, cause)
            .remedy("write the names of the tables: SCHEMA.TABLE, with commas between")
    };
    for pattern in patterns(given.get(list).ok_or_else(unreadable)?) {
        let compiled = of_java(&format!("(?i){pattern}"));
        let compiled = compiled.and_then(|pattern| Regex::new(&format!("^(?:{pattern})$")).ok());
        if compiled.ok_or_else(unreadable)?.is_match(text) {
            return Ok(list == include);
        }
    }
    Ok(list == exclude)
}

pub(crate) fn carry_kafka(carrying: &mut Carrying<'_>) {
    let given = carrying.given;
    let of = |name: &str| given.get(&format!("{PRODUCER_PREFIX}{name}"));
    match of("bootstrap.servers") {
        Some(brokers) => carrying.draft.set("kafka.brokers", brokers),
        None => {
            carrying.draft.note(
                "kafka.brokers",
                "brokers = \"HOST:PORT\"  (the worker's bootstrap.servers)",
            );
            let name = format!("{PRODUCER_PREFIX}bootstrap.servers");
            if !given.has(&name) {
                let why = "the worker's configuration says where Kafka is, and how to log in \
                           there; this file does not";
                carrying.left(
                    &name,
                    ToDo,
                    why,
                    "set kafka.brokers, and kafka.properties as the worker has them",
                );
            }
        }
    }
    for (java, ours) in properties() {
        if let Some(value) = of(java) {
            property(carrying, java, ours, value);
        }
    }
    if let Some(value) = of("ssl.endpoint.identification.algorithm") {
        let ours = if value.is_empty() { "none" } else { value };
        property(
            carrying,
            "ssl.endpoint.identification.algorithm",
            "ssl.endpoint.identification.algorithm",
            ours,
        );
    }
    stores(carrying);
    // Mostly it is the password in it that is filled in elsewhere, and the name is there.
    if let Some(value) = given.as_written(LOGIN) {
        login(carrying, value);
    }
}

/// Options of the producer and librdkafka's names for them, where the values mean the same.
pub fn properties() -> impl Iterator<Item = (&'static str, &'static str)> {
    PRODUCER.iter().flat_map(|row| {
        row.patterns
            .split_whitespace()
            .filter_map(|java| match row.fate {
                Fate::Property(ours) => Some((java, ours.unwrap_or(java))),
                Fate::Carried | Fate::Libpq(_) | Fate::Left { .. } => None,
            })
    })
}

fn property(carrying: &mut Carrying<'_>, java: &str, ours: &str, value: &str) {
    match (carrying.check)(ours, value) {
        Ok(()) => {
            carrying.draft.named(KAFKA_PROPERTIES, ours, value);
        }
        Err(error) => {
            let name = format!("{PRODUCER_PREFIX}{java}");
            carrying.left(
                &name,
                ToDo,
                error.cause(),
                "set in kafka.properties what librdkafka has for it",
            );
        }
    }
}

/// Files of certificates: PEM is read by both, PKCS #12 for the client's own, and Java's own form
/// by Java alone.
fn stores(carrying: &mut Carrying<'_>) {
    const TRUST: (&str, &str) = (
        "librdkafka reads authorities from a PEM file",
        "keytool -exportcert -rfc … > ca.pem, and set ssl.ca.location in kafka.properties",
    );
    const KEY: (&str, &str) = (
        "librdkafka reads its certificate from a PEM or PKCS #12 file",
        "keytool -importkeystore -deststoretype PKCS12 …, and set ssl.keystore.location in \
         kafka.properties",
    );
    for (store, pem, pkcs12, (why, what_to_do)) in [
        ("ssl.truststore", &["ssl.ca.location"][..], &[][..], TRUST),
        (
            "ssl.keystore",
            &["ssl.certificate.location", "ssl.key.location"],
            &["ssl.keystore.location"],
            KEY,
        ),
    ] {
        let of = |option: &str| {
            carrying
                .given
                .get(&format!("{PRODUCER_PREFIX}{store}.{option}"))
        };
        let Some(path) = of("location") else { continue };
        let ours = match of("type").unwrap_or_default().to_uppercase().as_str() {
            "PEM" => pem,
            "PKCS12" => pkcs12,
            _ => &[],
        };
        for ours in ours {
            carrying.draft.named(KAFKA_PROPERTIES, ours, path);
        }
        if ours.is_empty() {
            carrying.left(
                &format!("{PRODUCER_PREFIX}{store}.location"),
                ToDo,
                why,
                what_to_do,
            );
        }
    }
}

fn login(carrying: &mut Carrying<'_>, jaas: &str) {
    let module = jaas.split_whitespace().next().unwrap_or_default();
    let by_password =
        module.ends_with(".PlainLoginModule") || module.ends_with(".ScramLoginModule");
    match jaas_option(jaas, "username").filter(|user| by_password && !user.contains("${")) {
        Some(user) => {
            carrying
                .draft
                .named(KAFKA_PROPERTIES, "sasl.username", &user);
            let why = "the name is carried as sasl.username; a password never is";
            carrying.left(
                LOGIN,
                ToDo,
                why,
                "set WALRELAY_KAFKA_PROPERTY_SASL_PASSWORD",
            );
        }
        None => {
            let why = "it is no login with name and password that could be told apart";
            carrying.left(
                LOGIN,
                ToDo,
                why,
                "set librdkafka's sasl.* properties in kafka.properties",
            );
        }
    }
}

/// An option of a login module, `name="value"`, behind the module's name and its flag. `None` also
/// where the text is no list of such.
fn jaas_option(jaas: &str, wanted: &str) -> Option<String> {
    const OPTION: &str =
        r#"\s+([\w.]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s;"'][^\s;]*))"#;
    let whole = Regex::new(&format!(r"(?s)^\s*\S+\s+\S+(?:{OPTION})*\s*;?\s*$")).ok()?;
    let option = Regex::new(&format!("(?s){OPTION}")).ok()?;
    let escape = Regex::new(r"(?s)\\(.)").ok()?;
    let mut options = option.captures_iter(jaas).filter(|_| whole.is_match(jaas));
    let option =
        options.find(|option| option.get(1).is_some_and(|name| name.as_str() == wanted))?;
    let quoted = option.get(2).or_else(|| option.get(3));
    quoted.map_or_else(
        || option.get(4).map(|value| value.as_str().to_owned()),
        |value| Some(escape.replace_all(value.as_str(), "$1").into_owned()),
    )
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
    fn a_list_is_split_at_commas_that_are_not_escaped() {
        for (list, wanted) in [
            ("a.b, c.d ,", &["a.b", "c.d"][..]),
            (r"a.b\,c,d", &["a.b,c", "d"]),
            (r"a\\,b", &[r"a\\", "b"]),
            ("", &[]),
        ] {
            assert_eq!(patterns(list), wanted, "{list}");
        }
    }

    #[test]
    fn tables_are_captured_as_debezium_captures_them() {
        let captured = |options: &str, table: &str| {
            let given = Given::read("f", options).unwrap();
            captures(&given, &table.parse().unwrap()).map_err(|error| error.cause().to_owned())
        };
        for (options, table, wanted) in [
            ("", "x.y", true),
            ("table.include.list=public.outbox", "public.outbox", true),
            // Whatever the case, on both sides.
            ("table.include.list=Public.OutBox", "public.outbox", true),
            (
                "table.include.list=public.outbox",
                "\"Public\".\"OutBox\"",
                true,
            ),
            // The whole name.
            (
                "table.include.list=public.outbox",
                "public.outbox_old",
                false,
            ),
            ("table.include.list=outbox", "public.outbox", false),
            (
                r"table.include.list=.*\\.outbox_[a-z]+,b.c",
                "shop.outbox_de",
                true,
            ),
            (r"table.include.list=.*\\.outbox_[a-z]+,b.c", "b.c", true),
            ("schema.include.list=Shop", "shop.outbox", true),
            ("schema.include.list=shop.*", "app.outbox", false),
            ("schema.exclude.list=shop", "shop.outbox", false),
            ("schema.exclude.list=shop", "app.outbox", true),
            (
                "schema.include.list=shop\ntable.include.list=app.outbox",
                "app.outbox",
                false,
            ),
            ("table.exclude.list=shop.orders", "shop.ORDERS", false),
            (
                "table.include.list=shop.orders\ntable.exclude.list=shop.orders",
                "shop.orders",
                true,
            ),
        ] {
            assert_eq!(captured(options, table), Ok(wanted), "{options} {table}");
        }
        for options in [
            "table.include.list=(?!a).*",
            "schema.include.list=${env:X}",
            "table.exclude.list=(",
        ] {
            assert!(
                captured(options, "a.b")
                    .unwrap_err()
                    .contains("an expression is Java's alone"),
                "{options}"
            );
        }
    }

    #[test]
    fn a_name_is_found_among_a_login_modules_options() {
        for (jaas, user) in [
            (
                r#"x.PlainLoginModule required username="relay" password="canary";"#,
                Some("relay"),
            ),
            (
                r#"x.ScramLoginModule required password="a username=\"no\"" username='re"lay';"#,
                Some("re\"lay"),
            ),
            (
                r"x.PlainLoginModule required username = relay password=canary;",
                Some("relay"),
            ),
            (
                r#"x.PlainLoginModule required password="username=canary"#,
                None,
            ),
            (r"x.PlainLoginModule required;", None),
            ("", None),
        ] {
            assert_eq!(jaas_option(jaas, "username").as_deref(), user, "{jaas}");
        }
    }
}
