//! The publication, the outbox table, and whether they are still what they were (P8).
//!
//! Postgres does not report that a table left a publication, was dropped, or was added again: it streams less. So the relay reads
//! the catalogs at the start and periodically, and compares OIDs: an object that was dropped and created again has another OID.

use std::collections::HashMap;

use serde::Deserialize;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::config::TableName;
use crate::config::name::publish_whole;
use crate::error::{Error, Kind, Result};
use crate::postgres::query::{Param, QueryError, one_json};
use crate::postgres::quote::quoted;
use crate::template::ColumnType;

const SQL: &str = include_str!("../../sql/source/catalog.sql");

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Catalog {
    /// Identifies the session, to find a pooler.
    pub backend_pid: i32,
    pub publication: Option<Publication>,
    /// The present name of the publication with the OID that was seen before.
    pub publication_now_called: Option<String>,
    pub table: Option<PublishedTable>,
    /// The present name of the table with the OID that was seen before.
    pub table_now_called: Option<String>,
    /// Every way in which the table, or a partitioned table above it, is in the publication.
    pub members: Vec<Member>,
    /// Up to a hundred other tables that were added to the publication by name.
    pub other_tables: Vec<String>,
    /// Base types, with the modifiers of domains, by OID: of domains, arrays of enums, and types of the table's columns.
    #[serde(default)]
    pub base_types: HashMap<u32, ColumnType>,
}

/// A row of `pg_publication` (<https://www.postgresql.org/docs/current/catalog-pg-publication.html>).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Publication {
    pub oid: u32,
    /// Changes with every `ALTER PUBLICATION` of options, owner or name.
    pub row_version: String,
    /// An OID.
    #[serde(rename = "pubowner")]
    pub owner: String,
    /// Whether the role may alter and drop it.
    pub owned: bool,
    #[serde(rename = "puballtables")]
    pub all_tables: bool,
    /// Whether it publishes whole schemas (15+).
    pub has_schemas: bool,
    #[serde(flatten)]
    pub flags: Flags,
    /// `s` where stored generated columns are published (18+).
    #[serde(rename = "pubgencols", default)]
    pub generated_columns: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Flags {
    #[serde(rename = "pubinsert")]
    pub insert: bool,
    #[serde(rename = "pubupdate")]
    pub update: bool,
    #[serde(rename = "pubdelete")]
    pub delete: bool,
    #[serde(rename = "pubtruncate")]
    pub truncate: bool,
    /// Rows of partitions come under the name of the partitioned table.
    #[serde(rename = "pubviaroot")]
    pub via_root: bool,
}

impl Flags {
    /// Whether changes other than inserts are published.
    pub(crate) fn others(&self) -> bool {
        self.update || self.delete || self.truncate
    }

    /// The operations, as `publish = '…'` names them.
    pub(crate) fn operations(&self) -> String {
        let all =
            [(self.insert, "insert"), (self.update, "update"), (self.delete, "delete"), (self.truncate, "truncate")];
        let named: Vec<&str> = all.into_iter().filter_map(|(on, name)| on.then_some(name)).collect();
        named.join(", ")
    }
}

/// The part of a table's description that can be read without a lock: reading a column's default, as
/// [`Table`](crate::postgres::catalog::Table) has it, waits for whoever alters the table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct PublishedTable {
    pub oid: u32,
    /// `relkind`: `r` an ordinary table, `p` a partitioned one.
    pub kind: String,
    /// `relpersistence`: `p`, `u` for unlogged, `t` for temporary.
    pub persistence: String,
    pub row_security: bool,
    /// The number of tables that inherit from it, without partitions.
    pub inherited_by: u32,
    /// Unlogged and foreign partitions, whose rows are in no stream.
    pub silent_partitions: Vec<String>,
    pub columns: Vec<PublishedColumn>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct PublishedColumn {
    pub name: String,
    /// `s` or `v` for a generated column, else empty.
    pub generated: String,
    /// Its type, which may be a domain.
    #[serde(default)]
    pub type_oid: u32,
}

/// One way in which a relation is in the publication.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Member {
    /// 0 for the outbox itself, 1 and up for the partitioned tables above it.
    pub level: u32,
    pub relation: String,
    /// `table`, `schema` or `all tables`.
    pub through: String,
    /// The membership's OID, which changes when the table is removed and added again.
    pub oid: u32,
    /// `WHERE` of the membership.
    pub row_filter: Option<String>,
    pub columns: Option<Vec<String>>,
}

impl Catalog {
    /// Reads the catalogs in one statement that waits for no lock, within ten seconds; without a table, the publication alone. With
    /// `before`, the result has the present names of a renamed publication or table.
    pub(crate) async fn read(
        client: &Client,
        publication: &str,
        table: Option<&TableName>,
        before: Option<&Fingerprint>,
    ) -> Result<Catalog, QueryError> {
        let known = |oid: fn(&Fingerprint) -> Option<u32>| before.and_then(oid).unwrap_or_default();
        let params: [Param<'_>; 5] = [
            (&publication, Type::TEXT),
            (&table.map_or("", TableName::schema), Type::TEXT),
            (&table.map_or("", TableName::table), Type::TEXT),
            (&known(Fingerprint::publication_oid), Type::OID),
            (&known(Fingerprint::table_oid), Type::OID),
        ];
        one_json(client, "reading publication and outbox table", SQL, &params).await
    }
}

/// Publication and table as they were seen: the stream has every event of the outbox as long as they stay so.
#[derive(Debug, Clone)]
pub(crate) struct Fingerprint {
    publication_name: String,
    table_name: TableName,
    seen: Catalog,
}

impl Fingerprint {
    pub(crate) fn of(catalog: &Catalog, publication: &str, table: &TableName) -> Fingerprint {
        Fingerprint { publication_name: publication.to_owned(), table_name: table.clone(), seen: catalog.clone() }
    }

    pub(crate) fn publication_oid(&self) -> Option<u32> {
        self.seen.publication.as_ref().map(|publication| publication.oid)
    }

    pub(crate) fn is_of(&self, table: &TableName) -> bool {
        self.table_name == *table
    }

    pub(crate) fn table_oid(&self) -> Option<u32> {
        self.seen.table.as_ref().map(|table| table.oid)
    }

    pub(crate) fn membership_oids(&self) -> Vec<u32> {
        self.seen.members.iter().map(|member| member.oid).collect()
    }

    /// A property of the outbox's own membership, without those of the tables above.
    fn own<'a, T>(&'a self, of: impl Fn(&'a Member) -> Option<&'a T>) -> Option<&'a T> {
        self.seen.members.iter().filter(|member| member.level == 0).find_map(of)
    }
}

/// Whether every event that was inserted between the two reads is in the stream, as far as catalogs can tell. Added columns, other
/// tables, owners and renamed columns (the assembler finds those) are harmless.
/// Errors: [`Kind::Publication`]: the change, the events that may be missing, the remedy.
pub(crate) fn compare(before: &Fingerprint, now: &Fingerprint) -> Result<()> {
    let (publication, table) = (&now.publication_name, &now.table_name);
    let sql_publication = quoted(publication);
    let Some(seen) = &now.seen.publication else {
        return Err(match now.seen.publication_now_called.as_ref().filter(|name| *name != publication) {
            Some(name) => changed(now, format!("publication {publication} was renamed to {name}")).remedy(format!(
                "{}. Then rename it back (alter publication {} rename to {sql_publication}) and start walrelay again; \
                 if the slot cannot get past the time in between, recreate the slot with `walrelay setup`",
                missing(table),
                quoted(name)
            )),
            None => changed(now, format!("publication {publication} was dropped")).remedy(format!(
                "create publication {sql_publication} for table {table} with (publish = 'insert'). {}. {NEW_SLOT}",
                missing(table)
            )),
        });
    };
    if now.publication_oid() != before.publication_oid() {
        return Err(changed(now, format!("publication {publication} was dropped and created again"))
            .remedy(format!("{}. {NEW_SLOT}", missing(table))));
    }
    if now.table_oid() != before.table_oid() {
        return Err(table_gone(before, now));
    }
    let members = &now.seen.members;
    if members.is_empty() {
        return Err(changed(now, format!("table {table} was removed from publication {publication}")).remedy(format!(
            "alter publication {sql_publication} add table {table}. {}. Then start walrelay again",
            missing(table)
        )));
    }
    let was_there =
        |now: &Member| before.seen.members.iter().any(|was| was.oid == now.oid && was.through == now.through);
    if !members.iter().any(was_there) {
        let cause = format!("table {table} was removed from publication {publication} and added again");
        let filter = now.own(|member| member.row_filter.as_ref());
        let filter = filter.map(|filter| format!(", with the row filter {filter}")).unwrap_or_default();
        return Err(
            changed(now, format!("{cause}{filter}")).remedy(format!("{}. Then start walrelay again", missing(table)))
        );
    }
    settings(before, now, seen)
}

/// A change for the log that looks harmless and may have hidden events. Reported once, by an update of `before`.
pub(crate) fn notice(before: &mut Fingerprint, now: &Fingerprint) -> Option<String> {
    let (was, is) = (before.seen.publication.as_mut()?, now.seen.publication.as_ref()?);
    let altered = was.row_version != is.row_version && was.owner == is.owner && was.flags == is.flags;
    altered.then(|| {
        was.row_version.clone_from(&is.row_version);
        format!(
            "publication {} was altered since the last look, and looks as before: if inserts were not published in \
             between, events of that time are missing from the stream",
            now.publication_name
        )
    })
}

const NEW_SLOT: &str = "The slot still reads WAL from the time without the publication, where Postgres 14 to 17 fail \
                        each time and 18 skips events: drop the slot, and start walrelay, which recreates it \
                        and reads from the table what was not published";

fn changed(now: &Fingerprint, what: String) -> Error {
    let table = &now.table_name;
    let cause = format!(
        "{what}: events inserted into {table} since the last look may not be in the stream, and the position is moved no further"
    );
    Error::new(Kind::Publication, cause)
}

fn missing(table: &TableName) -> String {
    format!("`walrelay verify` names rows of {table} that are missing in Kafka, `walrelay replay` publishes them")
}

fn table_gone(before: &Fingerprint, now: &Fingerprint) -> Error {
    let table = &now.table_name;
    let publication = quoted(&now.publication_name);
    match (now.table_oid(), &now.seen.table_now_called) {
        (None, Some(name)) => changed(now, format!("there is no table {table} any more: it is now called {name}"))
            .remedy(format!(
                "rename it back, or configure {name} as the outbox. Rows inserted since are in the stream under the \
                 new name, and will be relayed once the names agree"
            )),
        (None, None) => changed(now, format!("table {table} was dropped")).remedy(format!(
            "create it again, alter publication {publication} add table {table}, and start walrelay with --adopt-slot. \
             What was inserted and not relayed before the drop is still in the stream; after it, nothing is"
        )),
        (Some(_), old) => {
            let was = before.table_oid().unwrap_or_default();
            let old = old.as_deref().map(|name| format!(", which is now called {name}")).unwrap_or_default();
            let (published, add) = match now.seen.members.is_empty() {
                true => (
                    ", and the new one is not in the publication",
                    format!("alter publication {publication} add table {table}. "),
                ),
                false => ("", String::new()),
            };
            changed(now, format!("table {table} is another one than the one watched (OID {was}){old}{published}"))
                .remedy(format!("{add}{}. Then start walrelay with --adopt-slot", missing(table)))
        }
    }
}

/// Compares settings that can change without another OID.
fn settings(before: &Fingerprint, now: &Fingerprint, seen: &Publication) -> Result<()> {
    let (publication, table) = (&now.publication_name, &now.table_name);
    let sql_publication = quoted(publication);
    let fault = |cause: String, remedy: &str| Err(changed(now, cause).remedy(format!("{remedy}. {}", missing(table))));
    let set_table = publish_whole(&sql_publication, table);
    let filter = |of: &'_ Fingerprint| of.own(|member| member.row_filter.as_ref()).cloned();
    if let Some(filter) = filter(now).filter(|now| Some(now) != filter(before).as_ref()) {
        return fault(format!("publication {publication} filters rows of {table}: {filter}"), &set_table);
    }
    let columns = |of: &'_ Fingerprint| of.own(|member| member.columns.as_ref()).cloned();
    if let Some(columns) = columns(now).filter(|now| Some(now) != columns(before).as_ref()) {
        let columns = columns.join(", ");
        return fault(format!("publication {publication} publishes only ({columns}) of {table}"), &set_table);
    }
    let Some(is) = &now.seen.table else { return Ok(()) };
    if is.persistence != "p" {
        let cause = format!("table {table} is unlogged: none of its rows reaches a stream");
        return fault(cause, &format!("alter table {table} set logged"));
    }
    let silent_before = before.seen.table.as_ref().map(|table| table.silent_partitions.as_slice()).unwrap_or_default();
    if let Some(part) = is.silent_partitions.iter().find(|part| !silent_before.contains(part)) {
        let cause = format!("partition {part} of {table} is unlogged or foreign: none of its rows reaches a stream");
        return fault(cause, &format!("alter table {part} set logged, or detach it"));
    }
    let was = before.seen.publication.as_ref().map(|publication| publication.flags).unwrap_or_default();
    let set = |option: &str| format!("alter publication {sql_publication} set ({option})");
    if seen.flags.via_root != was.via_root && is.kind == "p" {
        let cause = format!(
            "publish_via_partition_root of publication {publication} was changed: rows of {table} come under other names"
        );
        return fault(cause, &set(&format!("publish_via_partition_root = {}", was.via_root)));
    }
    if was.insert && !seen.flags.insert {
        let (before, now) = (was.operations(), seen.flags.operations());
        let cause = format!("publication {publication} was changed from publish = '{before}' to '{now}'");
        return fault(cause, &set("publish = 'insert'"));
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    type Change = fn(&mut Catalog);

    /// A publication with the table `outbox`, nothing can be said against.
    pub(in crate::source) fn fit() -> Catalog {
        let column = |name: &str| PublishedColumn { name: name.to_owned(), ..PublishedColumn::default() };
        Catalog {
            publication: Some(Publication {
                oid: 10,
                row_version: "700".to_owned(),
                owner: "16".to_owned(),
                flags: Flags { insert: true, ..Flags::default() },
                ..Publication::default()
            }),
            table: Some(PublishedTable {
                oid: 20,
                kind: "r".to_owned(),
                persistence: "p".to_owned(),
                columns: ["id", "aggregatetype", "aggregateid", "type", "payload"].map(column).to_vec(),
                ..PublishedTable::default()
            }),
            table_now_called: Some("outbox".to_owned()),
            members: vec![member(0, "outbox")],
            ..Catalog::default()
        }
    }

    pub(in crate::source) fn member(level: u32, relation: &str) -> Member {
        Member { level, relation: relation.to_owned(), through: "table".to_owned(), oid: 30, ..Member::default() }
    }

    fn changed_by(change: impl FnOnce(&mut Catalog)) -> Fingerprint {
        let mut catalog = fit();
        change(&mut catalog);
        Fingerprint::of(&catalog, "walrelay_orders", &"outbox".parse().unwrap())
    }

    fn publication(catalog: &mut Catalog) -> &mut Publication {
        catalog.publication.as_mut().unwrap()
    }

    fn table(catalog: &mut Catalog) -> &mut PublishedTable {
        catalog.table.as_mut().unwrap()
    }

    #[test]
    fn every_change_that_can_hide_events_is_named() {
        let another = "table public.outbox is another one than the one watched (OID 20), which is now called old, and the new \
                       one is not in the publication:";
        let filtered = "table public.outbox was removed from publication walrelay_orders and added again, with the row \
                        filter (id > 1):";
        let rows: [(&str, Change); 16] = [
            ("publication walrelay_orders was dropped:", |now| now.publication = None),
            ("publication walrelay_orders was renamed to old:", |now| {
                (now.publication, now.publication_now_called) = (None, Some("old".to_owned()));
            }),
            ("publication walrelay_orders was dropped and created again:", |now| publication(now).oid = 11),
            ("table public.outbox was dropped:", |now| {
                (now.table, now.table_now_called, now.members) = (None, None, Vec::new());
            }),
            ("there is no table public.outbox any more: it is now called sales.events:", |now| {
                (now.table, now.table_now_called) = (None, Some("sales.events".to_owned()));
                now.members.clear();
            }),
            (another, |now| {
                (table(now).oid, now.table_now_called) = (21, Some("old".to_owned()));
                now.members.clear();
            }),
            ("table public.outbox is another one than the one watched (OID 20):", |now| {
                (table(now).oid, now.table_now_called) = (21, None);
            }),
            ("table public.outbox was removed from publication walrelay_orders:", |now| now.members.clear()),
            ("table public.outbox was removed from publication walrelay_orders and added again:", |now| {
                now.members[0].oid = 31;
            }),
            (filtered, |now| (now.members[0].oid, now.members[0].row_filter) = (31, Some("(id > 1)".to_owned()))),
            ("publication walrelay_orders filters rows of public.outbox: (id > 1):", |now| {
                now.members[0].row_filter = Some("(id > 1)".to_owned());
            }),
            ("publication walrelay_orders publishes only (id, type) of public.outbox:", |now| {
                now.members[0].columns = Some(vec!["id".to_owned(), "type".to_owned()]);
            }),
            ("table public.outbox is unlogged:", |now| table(now).persistence = "u".to_owned()),
            ("partition p7 of public.outbox is unlogged or foreign:", |now| {
                table(now).silent_partitions = vec!["p7".to_owned()];
            }),
            ("publication walrelay_orders was changed from publish = 'insert' to '':", |now| {
                publication(now).flags.insert = false;
            }),
            ("publication walrelay_orders was changed from publish = 'insert' to 'update, truncate':", |now| {
                publication(now).flags = Flags { update: true, truncate: true, ..Flags::default() };
            }),
        ];
        for (cause, change) in rows {
            let now = changed_by(change);
            let error = compare(&changed_by(|_| {}), &now).unwrap_err();
            assert_eq!(error.kind(), Kind::Publication, "{cause}");
            assert!(error.cause().starts_with(cause), "{cause:?} does not start {:?}", error.cause());
            assert!(error.cause().contains("since the last look may not be in the stream"), "{}", error.cause());
            let remedy = error.what_to_do().unwrap();
            assert!(
                ["alter", "walrelay replay", "rename"].iter().any(|verb| remedy.contains(verb)),
                "{cause}: {remedy}"
            );
        }
    }

    #[test]
    fn a_change_of_via_root_is_refused_for_a_partitioned_table_only() {
        let before = changed_by(|before| table(before).kind = "p".to_owned());
        let mut now = before.clone();
        publication(&mut now.seen).flags.via_root = true;
        assert!(compare(&before, &now).unwrap_err().cause().contains("under other names"));
        let not_partitioned = changed_by(|now| publication(now).flags.via_root = true);
        assert_eq!(compare(&changed_by(|_| {}), &not_partitioned), Ok(()));
    }

    #[test]
    fn harmless_changes_of_the_catalog_are_accepted() {
        let harmless: [Change; 6] = [
            |_| {},
            |now| publication(now).owner = "17".to_owned(),
            |now| publication(now).row_version = "701".to_owned(),
            |now| publication(now).generated_columns = Some("s".to_owned()),
            |now| now.members.push(Member { through: "schema".to_owned(), oid: 40, ..Member::default() }),
            // More operations than before: they are dropped.
            |now| {
                let flags = &mut publication(now).flags;
                (flags.update, flags.delete, flags.truncate) = (true, true, true);
            },
        ];
        for change in harmless {
            let now = changed_by(change);
            assert_eq!(compare(&changed_by(|_| {}), &now), Ok(()), "{now:?}");
        }
    }

    #[test]
    fn a_publication_altered_and_altered_back_is_logged_once() {
        let there_and_back = changed_by(|now| publication(now).row_version = "702".to_owned());
        let mut before = changed_by(|_| {});
        assert!(notice(&mut before, &there_and_back).unwrap().contains("publication walrelay_orders was altered"));
        assert_eq!(notice(&mut before, &there_and_back), None);
        let new_owner = changed_by(|now| {
            (publication(now).row_version, publication(now).owner) = ("701".to_owned(), "17".to_owned());
        });
        assert_eq!(notice(&mut changed_by(|_| {}), &new_owner), None);
        assert_eq!(notice(&mut changed_by(|_| {}), &changed_by(|_| {})), None);
    }
}
