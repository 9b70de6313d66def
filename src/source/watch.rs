//! Whether publication and outbox tables are still what they were (P8).
//!
//! Postgres does not report that a table left a publication, was dropped, or was added again: it
//! streams less. So the relay reads the catalogs at the start and periodically, and compares. An
//! object that was dropped and created again has another OID. An object that was altered and
//! altered back has another row version (`xmin`):
//!
//! - of the publication: rows may be missing from the stream, and the relay reads those from the
//!   table ([`Look::is_altered`]);
//! - of a table: `vacuum full`, `truncate` and `grant` change it, too, so the relay warns only
//!   ([`notices`]).
//!
//! What a start refuses or warns of, a look refuses or warns of as well: both ask [`preflight`].

use std::fmt::Display;

use crate::postgres::quote::quoted;
use crate::source::catalog::{Catalog, Member, Publication, PublishedTable, Seen};
use crate::source::preflight;
use walrelay_core::config::TableName;

use walrelay_core::config::name::publish_whole;

use walrelay_core::error::{Error, Kind, Remedy, Result};

/// What was seen of publication and tables.
pub(crate) fn seen(before: &[Fingerprint]) -> Seen {
    Seen {
        publication_oid: before
            .iter()
            .find_map(Fingerprint::publication_oid)
            .unwrap_or_default(),
        table_oids: before
            .iter()
            .map(|before| before.table_oid().unwrap_or_default())
            .collect(),
    }
}

/// A look at publication and tables under way.
#[derive(Debug, Clone)]
pub(crate) struct Look {
    /// One for each table.
    pub now: Vec<Fingerprint>,
    /// A transaction id that was assigned after it, where the publication was altered.
    pub next_xid: Option<u64>,
    /// Why rows cannot be read from the tables, where that was asked.
    pub unreadable: Option<Error>,
}

impl Look {
    pub(crate) fn publication_version(&self) -> Option<&str> {
        self.now.iter().find_map(Fingerprint::publication_version)
    }

    /// Whether the publication is not of the version `known` any more: rows may be missing from the
    /// stream.
    pub(crate) fn is_altered(&self, known: &str) -> bool {
        self.publication_version().is_some_and(|now| now != known)
    }
}

/// Publication and table as they were seen: the stream has every event of the outbox as long as
/// they stay so.
#[derive(Debug, Clone)]
pub(crate) struct Fingerprint {
    publication_name: String,
    table_name: TableName,
    seen: Catalog,
}

impl Fingerprint {
    pub(crate) fn of(catalog: &Catalog, publication: &str, table: &TableName) -> Fingerprint {
        Fingerprint {
            publication_name: publication.to_owned(),
            table_name: table.clone(),
            seen: catalog.clone(),
        }
    }

    pub(crate) fn publication_oid(&self) -> Option<u32> {
        self.seen
            .publication
            .as_ref()
            .map(|publication| publication.oid)
    }

    pub(crate) fn publication_version(&self) -> Option<&str> {
        self.seen
            .publication
            .as_ref()
            .map(|publication| publication.row_version.as_str())
    }

    pub(crate) fn is_of(&self, table: &TableName) -> bool {
        self.table_name == *table
    }

    /// See [`preflight::keeps_rows`].
    pub(crate) fn keeps_rows(&self) -> Result<()> {
        self.seen.table.as_ref().map_or(Ok(()), |table| {
            preflight::keeps_rows(&self.table_name, table)
        })
    }

    pub(crate) fn table_oid(&self) -> Option<u32> {
        self.seen.table.as_ref().map(|table| table.oid)
    }

    pub(crate) fn membership_oids(&self) -> Vec<u32> {
        self.seen.members.iter().map(|member| member.oid).collect()
    }

    /// A property of the outbox's own membership, without those of the tables above.
    fn own<'a, T>(&'a self, of: impl Fn(&'a Member) -> Option<&'a T>) -> Option<&'a T> {
        self.seen
            .members
            .iter()
            .filter(|member| member.level == 0)
            .find_map(of)
    }
}

/// Whether the publication was altered to what it was: nothing but a there and back, or no change
/// at all, explains that.
pub(crate) fn looks_as_before(before: &Fingerprint, now: &Fingerprint) -> bool {
    let settings = |of: &Fingerprint| {
        let publication = of.seen.publication.as_ref()?;
        Some((
            publication.flags,
            publication.owner.clone(),
            publication.generated_columns.clone(),
        ))
    };
    settings(before) == settings(now)
}

/// Whether every event that was inserted between the two reads is in the stream, as far as catalogs
/// can tell. Added columns, other tables, owners and renamed columns (the assembler finds those)
/// are harmless. Errors: [`Kind::Publication`]: the change, the events that may be missing, the
/// remedy.
pub(crate) fn compare(before: &Fingerprint, now: &Fingerprint) -> Result<()> {
    let publication = &now.publication_name;
    let table = &now.table_name;
    let sql_publication = quoted(publication);
    let Some(seen) = &now.seen.publication else {
        return Err(publication_gone(now));
    };
    if now.publication_oid() != before.publication_oid() {
        return Err(changed(
            now,
            format!("publication {publication} was dropped and created again"),
        )
        .remedy(mend(None, table, NEW_SLOT)));
    }
    if now.table_oid() != before.table_oid() {
        return Err(table_gone(before, now));
    }
    let members = &now.seen.members;
    let removed = format!("table {table} was removed from publication {publication}");
    if members.is_empty() {
        let first = format!("alter publication {sql_publication} add table {table};");
        let remedy = mend(Some(first), table, "Then start walrelay again");
        return Err(changed(now, removed).remedy(remedy));
    }
    let was_there = |now: &Member| {
        before
            .seen
            .members
            .iter()
            .any(|was| was.oid == now.oid && was.through == now.through)
    };
    if !members.iter().any(was_there) {
        let filter = now.own(|member| member.row_filter.as_ref());
        let whole = filter.map(|_| publish_whole(&sql_publication, table));
        let filter = filter
            .map(|filter| format!(", with the row filter {filter}"))
            .unwrap_or_default();
        let remedy = mend(whole, table, "Then start walrelay again");
        return Err(changed(now, format!("{removed} and added again{filter}")).remedy(remedy));
    }
    settings(before, now, seen)
}

/// What a start warns of and was not so before, and a table that was altered and looks as before.
/// Each is reported once, by an update of `before`.
pub(crate) fn notices(before: &mut Fingerprint, now: &Fingerprint) -> Vec<String> {
    let table = &now.table_name;
    let (Some(was), Some(is)) = (&before.seen.table, &now.seen.table) else {
        return Vec::new();
    };
    let of = |catalog: &Catalog, seen: &PublishedTable| {
        preflight::table_warnings(catalog, seen, table, preflight::MAJOR_MIN)
    };
    let known = of(&before.seen, was);
    let mut news: Vec<String> = of(&now.seen, is)
        .into_iter()
        .filter(|text| !known.contains(text))
        .collect();
    let as_before = PublishedTable {
        row_version: was.row_version.clone(),
        ..is.clone()
    } == *was;
    if was.row_version != is.row_version && as_before {
        news.push(format!(
            "table {table} was altered, truncated or rewritten since the last look, and looks as \
             before: rows that were \
             written while it was unlogged, had another name, a rule or a child table are not in \
             the stream; {}",
            missing(table)
        ));
    }
    before.seen.table.clone_from(&now.seen.table);
    before.seen.publication.clone_from(&now.seen.publication);
    news
}

const NEW_SLOT: &str = "The slot cannot read WAL from the time without the publication: drop the \
                        slot, and start walrelay, which recreates it and reads from the table \
                        what was not published";

fn changed(now: &Fingerprint, what: String) -> Error {
    let table = &now.table_name;
    let cause = format!(
        "{what}: events inserted into {table} since the last look may not be in the stream, and \
         the position is moved no further"
    );
    Error::new(Kind::Publication, cause)
}

/// The publication was altered, and the relay does not read the table because of `why`.
pub(crate) fn altered_and_unread(now: &Fingerprint, why: impl Display) -> Error {
    let publication = &now.publication_name;
    changed(
        now,
        format!("publication {publication} was altered, and the table is not read: {why}"),
    )
    .remedy(mend(
        None,
        &now.table_name,
        "Then start walrelay with --adopt-slot",
    ))
}

/// `sql`, then what publishes missing rows, then `last`.
fn mend(sql: Option<String>, table: &TableName, last: &str) -> Remedy {
    let sql = sql.map(Remedy::from);
    Remedy::joined(sql.into_iter().chain([missing(table)]))
        .and(". ")
        .and(last)
}

fn missing(table: &TableName) -> Remedy {
    Remedy::of_missing(format_args!("rows of {table}"))
}

fn publication_gone(now: &Fingerprint) -> Error {
    let publication = &now.publication_name;
    let table = &now.table_name;
    let sql_publication = quoted(publication);
    let renamed = now.seen.publication_now_called.as_ref();
    match renamed.filter(|name| *name != publication) {
        Some(name) => changed(
            now,
            format!("publication {publication} was renamed to {name}"),
        )
        .remedy(mend(
            Some(format!(
                "alter publication {} rename to {sql_publication};",
                quoted(name)
            )),
            table,
            "Then start walrelay again; if the slot cannot get past the time in between, drop the \
             slot: walrelay recreates it",
        )),
        None => changed(now, format!("publication {publication} was dropped")).remedy(mend(
            Some(format!(
                "with the table of each outbox: create publication {sql_publication} for table \
                 {table} with (publish = 'insert', publish_via_partition_root = true);"
            )),
            table,
            NEW_SLOT,
        )),
    }
}

fn table_gone(before: &Fingerprint, now: &Fingerprint) -> Error {
    let table = &now.table_name;
    let publication = quoted(&now.publication_name);
    match (now.table_oid(), &now.seen.table_now_called) {
        (None, Some(name)) => changed(
            now,
            format!(
                "there is no table {table} any more: it is now \
                                                    called {name}"
            ),
        )
        .remedy(format!(
            "rename it back, or configure {name} as the outbox. Rows inserted since are in the \
                 stream under the \
                 new name, and will be relayed once the names agree"
        )),
        (None, None) => changed(now, format!("table {table} was dropped")).remedy(format!(
            "create it again, alter publication {publication} add table {table}, and start \
             walrelay with --adopt-slot. \
             What was inserted and not relayed before the drop is still in the stream; after it, \
             nothing is"
        )),
        (Some(_), old) => {
            let was = before.table_oid().unwrap_or_default();
            let old = old
                .as_deref()
                .map(|name| format!(", which is now called {name}"))
                .unwrap_or_default();
            let (published, add) = match now.seen.members.is_empty() {
                true => (
                    ", and the new one is not in the publication",
                    Some(format!(
                        "alter publication {publication} add table {table};"
                    )),
                ),
                false => ("", None),
            };
            changed(
                now,
                format!(
                    "table {table} is another one than the one watched (OID \
                                  {was}){old}{published}"
                ),
            )
            .remedy(mend(add, table, "Then start walrelay with --adopt-slot"))
        }
    }
}

/// Compares what can change without another OID: as a start judges it, and the list of columns.
fn settings(before: &Fingerprint, now: &Fingerprint, seen: &Publication) -> Result<()> {
    let publication = &now.publication_name;
    let table = &now.table_name;
    let columns = |of: &'_ Fingerprint| of.own(|member| member.columns.as_ref()).cloned();
    let judged = match columns(now).filter(|now| Some(now) != columns(before).as_ref()) {
        None => preflight::judge_published(publication, seen, &now.seen, table),
        Some(columns) => {
            let cause = format!(
                "publication {publication} publishes only ({}) of {table}",
                columns.join(", ")
            );
            let whole = publish_whole(&quoted(publication), table);
            Err(Error::new(Kind::Publication, cause).remedy(whole))
        }
    };
    judged.map_err(|error| {
        let remedies = error.any_remedy().into_iter().chain([missing(table)]);
        changed(now, error.cause().to_owned()).remedy(Remedy::joined(remedies))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::catalog::tests::{fit, member};
    use crate::source::catalog::{Flags, PublishedColumn};

    type Change = fn(&mut Catalog);

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
    fn the_sql_that_is_printed_makes_the_publication_what_setup_makes() {
        let told = |change: Change| {
            compare(&changed_by(|_| {}), &changed_by(change))
                .unwrap_err()
                .what_to_do()
                .unwrap()
        };
        let made = "with the table of each outbox: create publication \"walrelay_orders\" for \
                    table public.outbox with (publish = 'insert', \
                    publish_via_partition_root = true); `walrelay verify`";
        let dropped = told(|now| now.publication = None);
        assert!(dropped.starts_with(made), "{dropped}");
        let renamed = told(|now| {
            (now.publication, now.publication_now_called) = (None, Some("old".to_owned()))
        });
        assert!(
            renamed.starts_with("alter publication \"old\" rename to \"walrelay_orders\"; `"),
            "{renamed}"
        );
        let filtered = told(|now| {
            (now.members[0].oid, now.members[0].row_filter) = (31, Some("(id > 1)".to_owned()))
        });
        assert!(
            filtered.starts_with(
                "begin; alter publication \"walrelay_orders\" drop table public.outbox;"
            ),
            "{filtered}"
        );
        let added_again = told(|now| now.members[0].oid = 31);
        assert!(
            added_again.starts_with("`walrelay verify`"),
            "{added_again}"
        );
    }

    #[test]
    fn every_change_that_can_hide_events_is_named() {
        let another = "table public.outbox is another one than the one watched (OID 20), which is \
                       now called old, and the new \
                       one is not in the publication:";
        let filtered = "table public.outbox was removed from publication walrelay_orders and added \
                        again, with the row \
                        filter (id > 1):";
        let rows: [(&str, Change); 22] = [
            ("publication walrelay_orders was dropped:", |now| {
                now.publication = None
            }),
            ("publication walrelay_orders was renamed to old:", |now| {
                now.publication = None;
                now.publication_now_called = Some("old".to_owned());
            }),
            (
                "publication walrelay_orders was dropped and created again:",
                |now| publication(now).oid = 11,
            ),
            ("table public.outbox was dropped:", |now| {
                now.table = None;
                now.table_now_called = None;
                now.members = Vec::new();
            }),
            (
                "there is no table public.outbox any more: it is now called sales.events:",
                |now| {
                    now.table = None;
                    now.table_now_called = Some("sales.events".to_owned());
                    now.members.clear();
                },
            ),
            (another, |now| {
                (table(now).oid, now.table_now_called) = (21, Some("old".to_owned()));
                now.members.clear();
            }),
            (
                "table public.outbox is another one than the one watched (OID 20):",
                |now| {
                    (table(now).oid, now.table_now_called) = (21, None);
                },
            ),
            (
                "table public.outbox was removed from publication walrelay_orders:",
                |now| now.members.clear(),
            ),
            (
                "table public.outbox was removed from publication walrelay_orders and added again:",
                |now| {
                    now.members[0].oid = 31;
                },
            ),
            (filtered, |now| {
                (now.members[0].oid, now.members[0].row_filter) = (31, Some("(id > 1)".to_owned()))
            }),
            (
                "publication walrelay_orders filters rows of public.outbox: (id > 1); the others \
                 would be skipped:",
                |now| {
                    now.members[0].row_filter = Some("(id > 1)".to_owned());
                },
            ),
            (
                "publication walrelay_orders publishes only (id, type) of public.outbox:",
                |now| {
                    now.members[0].columns = Some(vec!["id".to_owned(), "type".to_owned()]);
                },
            ),
            (
                "table public.outbox is unlogged: its rows are never in the WAL:",
                |now| {
                    table(now).persistence = "u".to_owned();
                },
            ),
            (
                "partition p7 of public.outbox is unlogged, foreign or of another access method \
                 than heap:",
                |now| {
                    table(now).silent_partitions = vec!["p7".to_owned()];
                },
            ),
            (
                "table public.outbox has the access method columnar:",
                |now| {
                    table(now).access_method = Some("columnar".to_owned());
                },
            ),
            ("table public.outbox is a hypertable:", |now| {
                table(now).is_hypertable = true
            }),
            ("tables inherit from public.outbox (c, d):", |now| {
                table(now).children = vec!["c".to_owned(), "d".to_owned()];
            }),
            (
                "rules of public.outbox replace an insert (r on outbox):",
                |now| {
                    table(now).insert_rules = vec!["r on outbox".to_owned()];
                },
            ),
            (
                "table public.outbox is partitioned, and publication walrelay_orders publishes \
                 rows under",
                |now| {
                    table(now).kind = "p".to_owned();
                },
            ),
            (
                "table public.outbox is a partition, and publication walrelay_orders publishes its \
                 rows under",
                |now| {
                    publication(now).flags.via_root = true;
                    now.members.push(member(1, "events"));
                },
            ),
            (
                "publication walrelay_orders has publish = '': without inserts there are no \
                 events:",
                |now| {
                    publication(now).flags.insert = false;
                },
            ),
            (
                "publication walrelay_orders has publish = 'update, truncate': without inserts",
                |now| {
                    publication(now).flags = Flags {
                        update: true,
                        truncate: true,
                        ..Flags::default()
                    };
                },
            ),
        ];
        for (cause, change) in rows {
            let now = changed_by(change);
            let error = compare(&changed_by(|_| {}), &now).unwrap_err();
            assert_eq!(error.kind(), Kind::Publication, "{cause}");
            assert!(
                error.cause().starts_with(cause),
                "{cause:?} does not start {:?}",
                error.cause()
            );
            assert!(
                error
                    .cause()
                    .contains("since the last look may not be in the stream"),
                "{}",
                error.cause()
            );
            let remedy = error.what_to_do().unwrap();
            assert!(
                ["alter", "walrelay replay", "rename", "drop rule"]
                    .iter()
                    .any(|verb| remedy.contains(verb)),
                "{cause}: {remedy}"
            );
        }
    }

    #[test]
    fn harmless_changes_of_the_catalog_are_accepted() {
        let harmless: [Change; 6] = [
            |_| {},
            |now| publication(now).owner = "17".to_owned(),
            |now| publication(now).row_version = "701".to_owned(),
            |now| publication(now).generated_columns = Some("s".to_owned()),
            |now| {
                now.members.push(Member {
                    through: "schema".to_owned(),
                    oid: 40,
                    ..Member::default()
                })
            },
            // More operations than before: they are dropped.
            |now| {
                let flags = &mut publication(now).flags;
                flags.update = true;
                flags.delete = true;
                flags.truncate = true;
            },
        ];
        for change in harmless {
            let now = changed_by(change);
            assert_eq!(compare(&changed_by(|_| {}), &now), Ok(()), "{now:?}");
        }
    }

    fn look_at(catalog: Fingerprint) -> Look {
        Look {
            now: vec![catalog],
            next_xid: None,
            unreadable: None,
        }
    }

    #[test]
    fn a_publication_of_another_version_was_altered_whatever_it_looks_like() {
        let before = changed_by(|_| {});
        assert!(!look_at(before.clone()).is_altered("700"));
        let there_and_back = changed_by(|now| publication(now).row_version = "702".to_owned());
        assert!(looks_as_before(&before, &there_and_back));
        let look = look_at(there_and_back);
        assert!(look.is_altered("700"));
        assert_eq!(look.publication_version(), Some("702"));
        let changes: [Change; 3] = [
            |now| publication(now).owner = "17".to_owned(),
            |now| publication(now).flags.delete = true,
            |now| publication(now).generated_columns = Some("s".to_owned()),
        ];
        assert!(
            changes
                .into_iter()
                .all(|change| !looks_as_before(&before, &changed_by(change)))
        );
        // Of a relay of messages alone.
        assert!(
            !Look {
                now: Vec::new(),
                ..look
            }
            .is_altered("700")
        );
    }

    #[test]
    fn a_table_altered_and_altered_back_and_a_new_warning_are_each_reported_once() {
        let told = |change: Change, expected: &str| {
            let mut before = changed_by(|_| {});
            let now = changed_by(change);
            let news = notices(&mut before, &now);
            assert!(
                news.len() == 1 && news[0].contains(expected),
                "{expected}: {news:?}"
            );
            assert_eq!(notices(&mut before, &now), Vec::<String>::new());
        };
        told(
            |now| table(now).row_version = "711".to_owned(),
            "looks as before",
        );
        let trigger: Change = |now| {
            (table(now).row_version, table(now).insert_triggers) =
                ("711".to_owned(), vec!["t on outbox".to_owned()]);
        };
        told(
            trigger,
            "a trigger runs before each insert of a row (t on outbox)",
        );
        let column: Change = |now| {
            table(now).row_version = "711".to_owned();
            table(now).columns.push(PublishedColumn::default());
        };
        assert_eq!(
            notices(&mut changed_by(|_| {}), &changed_by(column)),
            Vec::<String>::new()
        );
        assert_eq!(
            notices(&mut changed_by(|_| {}), &changed_by(|_| {})),
            Vec::<String>::new()
        );
    }
}
