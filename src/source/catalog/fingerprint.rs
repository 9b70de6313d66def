//! Comparing two looks at the catalogs, by OID: dropping something and creating it again in between gives it another
//! one, whatever it looks like.

use tokio_postgres::Client;

use crate::config::TableName;
use crate::error::{Error, Kind, Result};
use crate::postgres::query::QueryError;
use crate::postgres::quote::quoted;
use crate::source::catalog::{Catalog, Member, Publication};

/// What must stay as it is for the stream to hold every event of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    publication_name: String,
    table_name: TableName,
    publication: Option<Publication>,
    publication_now_called: Option<String>,
    table_oid: Option<u32>,
    table_now_called: Option<String>,
    partitioned: bool,
    unlogged: bool,
    silent_partitions: Vec<String>,
    memberships: Vec<(String, u32)>,
    row_filter: Option<String>,
    columns: Option<Vec<String>>,
}

impl Fingerprint {
    /// What makes this publication and table these and no others.
    pub(crate) fn of(catalog: &Catalog, publication: &str, table: &TableName) -> Fingerprint {
        let own: Vec<&Member> = catalog.members.iter().filter(|member| member.level == 0).collect();
        let columns = own.iter().find_map(|member| member.columns.clone());
        Fingerprint {
            publication_name: publication.to_owned(),
            table_name: table.clone(),
            publication: catalog.publication.clone(),
            publication_now_called: catalog.publication_now_called.clone().filter(|name| name != publication),
            table_oid: catalog.table.as_ref().map(|table| table.oid),
            table_now_called: catalog.table_now_called.clone(),
            partitioned: catalog.table.as_ref().is_some_and(|table| table.kind == "p"),
            unlogged: catalog.table.as_ref().is_some_and(|table| table.persistence != "p"),
            silent_partitions: catalog.table.as_ref().map(|table| table.silent_partitions.clone()).unwrap_or_default(),
            memberships: catalog.members.iter().map(|member| (member.through.clone(), member.oid)).collect(),
            row_filter: own.iter().find_map(|member| member.row_filter.clone()),
            columns,
        }
    }

    /// OID of the publication, unless there is none.
    pub(crate) fn publication_oid(&self) -> Option<u32> {
        self.publication.as_ref().map(|publication| publication.oid)
    }

    /// Whether it is of this outbox table.
    pub(crate) fn is_of(&self, table: &TableName) -> bool {
        self.table_name == *table
    }

    /// OID of the outbox table, unless there is none.
    pub(crate) fn table_oid(&self) -> Option<u32> {
        self.table_oid
    }

    /// OIDs of the memberships that put the table into the publication: others after removing and adding it again.
    pub(crate) fn membership_oids(&self) -> Vec<u32> {
        self.memberships.iter().map(|(_, oid)| *oid).collect()
    }
}

/// Reads the catalogs again; `before` lets the answer name what something was renamed to. Times out by itself.
///
/// # Errors
/// Of the connection only: what the answer means is [`compare`]'s business.
pub(in crate::source) async fn look(
    client: &Client,
    publication: &str,
    table: &TableName,
    before: Option<&Fingerprint>,
) -> Result<Fingerprint, QueryError> {
    let known = (
        before.and_then(Fingerprint::publication_oid).unwrap_or_default(),
        before.and_then(Fingerprint::table_oid).unwrap_or_default(),
    );
    let catalog = Catalog::read(client, publication, Some(table), known).await?;
    Ok(Fingerprint::of(&catalog, publication, table))
}

/// Whether every event inserted between the two looks is in the stream, as far as catalogs can tell.
///
/// Passes what is harmless: columns added, other tables, owners, renamed columns (the decoder notices those).
///
/// # Errors
/// [`Kind::Publication`]: what changed, what may be missing, what to do.
pub(crate) fn compare(before: &Fingerprint, now: &Fingerprint) -> Result<()> {
    let (publication, table) = (&now.publication_name, &now.table_name);
    let sql_publication = quoted(publication);
    let Some(seen) = &now.publication else {
        return Err(match &now.publication_now_called {
            Some(name) => changed(now, format!("publication {publication} was renamed to {name}")).remedy(format!(
                "{}. Then rename it back (alter publication {} rename to {sql_publication}) and start walrelay again; \
                 if the slot cannot get past the time in between, create the slot anew with `walrelay setup`",
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
    if now.table_oid != before.table_oid {
        return Err(table_gone(before, now));
    }
    if now.memberships.is_empty() {
        return Err(changed(now, format!("table {table} was removed from publication {publication}")).remedy(format!(
            "alter publication {sql_publication} add table {table}. {}. Then start walrelay again",
            missing(table)
        )));
    }
    if !now.memberships.iter().any(|membership| before.memberships.contains(membership)) {
        let cause = format!("table {table} was removed from publication {publication} and added again");
        let filter = now.row_filter.as_deref().map(|filter| format!(", with the row filter {filter}"));
        let remedy = format!("{}. Then start walrelay again", missing(table));
        return Err(changed(now, format!("{cause}{}", filter.unwrap_or_default())).remedy(remedy));
    }
    settings(before, now, seen)
}

/// Something that looks harmless and may not have been: for a log line, never for a stop. `before` says it once.
pub(crate) fn notice(before: &mut Fingerprint, now: &Fingerprint) -> Option<String> {
    let (was, is) = (before.publication.as_mut()?, now.publication.as_ref()?);
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
                        each time and 18 skips events: drop the slot, and start walrelay, which makes it anew \
                        and reads from the table what was not published";

fn changed(now: &Fingerprint, what: String) -> Error {
    Error::new(
        Kind::Publication,
        format!(
            "{what}: events inserted into {} since the last look may not be in the stream, and the position is moved \
             no further",
            now.table_name
        ),
    )
}

fn missing(table: &TableName) -> String {
    format!("`walrelay verify` names rows of {table} that are missing in Kafka, `walrelay replay` publishes them")
}

fn table_gone(before: &Fingerprint, now: &Fingerprint) -> Error {
    let table = &now.table_name;
    let publication = quoted(&now.publication_name);
    match (now.table_oid, &now.table_now_called) {
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
            let was = before.table_oid.unwrap_or_default();
            let old = old.as_deref().map(|name| format!(", which is now called {name}")).unwrap_or_default();
            let (published, add) = match now.memberships.is_empty() {
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

/// What can change without another OID.
fn settings(before: &Fingerprint, now: &Fingerprint, seen: &Publication) -> Result<()> {
    let (publication, table) = (&now.publication_name, &now.table_name);
    let sql_publication = quoted(publication);
    if let Some(filter) = now.row_filter.as_ref().filter(|_| now.row_filter != before.row_filter) {
        return Err(changed(now, format!("publication {publication} filters rows of {table}: {filter}"))
            .remedy(format!("alter publication {sql_publication} set table {table}. {}", missing(table))));
    }
    if let Some(columns) = now.columns.as_ref().filter(|_| now.columns != before.columns) {
        let columns = columns.join(", ");
        return Err(changed(now, format!("publication {publication} publishes only ({columns}) of {table}"))
            .remedy(format!("alter publication {sql_publication} set table {table}. {}", missing(table))));
    }
    if now.unlogged {
        return Err(changed(now, format!("table {table} is unlogged: none of its rows reaches a stream"))
            .remedy(format!("alter table {table} set logged. {}", missing(table))));
    }
    if let Some(part) = now.silent_partitions.iter().find(|part| !before.silent_partitions.contains(part)) {
        return Err(changed(
            now,
            format!("partition {part} of {table} is unlogged or foreign: none of its rows reaches a stream"),
        )
        .remedy(format!("alter table {part} set logged, or detach it. {}", missing(table))));
    }
    let was = before.publication.as_ref().map(|publication| publication.flags).unwrap_or_default();
    if seen.flags.via_root != was.via_root && now.partitioned {
        let value = was.via_root;
        return Err(changed(
            now,
            format!("publish_via_partition_root of publication {publication} was changed: rows of {table} come under other names"),
        )
        .remedy(format!(
            "alter publication {sql_publication} set (publish_via_partition_root = {value}). {}",
            missing(table)
        )));
    }
    if was.insert && !seen.flags.insert {
        let operations = seen.flags.operations();
        return Err(changed(
            now,
            format!("publication {publication} was changed from publish = '{}' to '{operations}'", was.operations()),
        )
        .remedy(format!("alter publication {sql_publication} set (publish = 'insert'). {}", missing(table))));
    }
    Ok(())
}

#[cfg(test)]
#[path = "fingerprint_tests.rs"]
mod tests;
