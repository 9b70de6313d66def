//! Every change between two looks, one row each.

use super::*;
use crate::source::catalog::Flags;

fn fingerprint() -> Fingerprint {
    let flags = Flags { insert: true, ..Flags::default() };
    Fingerprint {
        publication_name: "walrelay_orders".to_owned(),
        table_name: "outbox".parse().unwrap(),
        publication: Some(Publication {
            oid: 10,
            row_version: "700".to_owned(),
            owner: "16".to_owned(),
            flags,
            ..Publication::default()
        }),
        publication_now_called: None,
        table_oid: Some(20),
        table_now_called: Some("outbox".to_owned()),
        partitioned: false,
        unlogged: false,
        silent_partitions: vec![],
        memberships: vec![("table".to_owned(), 30)],
        row_filter: None,
        columns: None,
    }
}

fn with(change: impl FnOnce(&mut Fingerprint)) -> Fingerprint {
    let mut now = fingerprint();
    change(&mut now);
    now
}

fn with_flags(change: impl FnOnce(&mut Flags)) -> Fingerprint {
    with(|now| change(&mut now.publication.as_mut().unwrap().flags))
}

#[test]
fn every_change_that_can_hide_events_is_named() {
    let rows: Vec<(&str, Fingerprint)> = vec![
        ("publication walrelay_orders was dropped:", with(|now| now.publication = None)),
        (
            "publication walrelay_orders was renamed to old:",
            with(|now| {
                now.publication = None;
                now.publication_now_called = Some("old".to_owned());
            }),
        ),
        (
            "publication walrelay_orders was dropped and created again:",
            with(|now| now.publication.as_mut().unwrap().oid = 11),
        ),
        (
            "table public.outbox was dropped:",
            with(|now| {
                now.table_oid = None;
                now.table_now_called = None;
                now.memberships.clear();
            }),
        ),
        (
            "there is no table public.outbox any more: it is now called sales.events:",
            with(|now| {
                now.table_oid = None;
                now.table_now_called = Some("sales.events".to_owned());
                now.memberships.clear();
            }),
        ),
        (
            "table public.outbox is another one than the one watched (OID 20), which is now called old, and the new \
             one is not in the publication:",
            with(|now| {
                now.table_oid = Some(21);
                now.table_now_called = Some("old".to_owned());
                now.memberships.clear();
            }),
        ),
        (
            "table public.outbox is another one than the one watched (OID 20):",
            with(|now| {
                now.table_oid = Some(21);
                now.table_now_called = None;
            }),
        ),
        ("table public.outbox was removed from publication walrelay_orders:", with(|now| now.memberships.clear())),
        (
            "table public.outbox was removed from publication walrelay_orders and added again:",
            with(|now| now.memberships = vec![("table".to_owned(), 31)]),
        ),
        (
            "table public.outbox was removed from publication walrelay_orders and added again, with the row filter \
             (id > 1):",
            with(|now| {
                now.memberships = vec![("table".to_owned(), 31)];
                now.row_filter = Some("(id > 1)".to_owned());
            }),
        ),
        (
            "publication walrelay_orders filters rows of public.outbox: (id > 1):",
            with(|now| now.row_filter = Some("(id > 1)".to_owned())),
        ),
        (
            "publication walrelay_orders publishes only (id, type) of public.outbox:",
            with(|now| now.columns = Some(vec!["id".to_owned(), "type".to_owned()])),
        ),
        ("table public.outbox is unlogged:", with(|now| now.unlogged = true)),
        (
            "partition p7 of public.outbox is unlogged or foreign:",
            with(|now| now.silent_partitions = vec!["p7".to_owned()]),
        ),
        ("publication walrelay_orders was changed from publish = 'insert' to '':", with_flags(|f| f.insert = false)),
        (
            "publication walrelay_orders was changed from publish = 'insert' to 'update, truncate':",
            with_flags(|f| (f.insert, f.update, f.truncate) = (false, true, true)),
        ),
    ];
    for (cause, now) in rows {
        let error = compare(&fingerprint(), &now).unwrap_err();
        assert_eq!(error.kind(), Kind::Publication, "{cause}");
        assert!(error.cause().starts_with(cause), "{cause:?} does not start {:?}", error.cause());
        assert!(error.cause().contains("since the last look may not be in the stream"), "{}", error.cause());
        assert!(
            error.what_to_do().is_some_and(|remedy| remedy.contains("alter")
                || remedy.contains("walrelay replay")
                || remedy.contains("rename")),
            "{cause}"
        );
    }
}

#[test]
fn rows_of_a_partitioned_table_must_not_change_their_name() {
    let before = with(|before| before.partitioned = true);
    let mut now = before.clone();
    now.publication.as_mut().unwrap().flags.via_root = true;
    assert!(compare(&before, &now).unwrap_err().cause().contains("under other names"));
    assert_eq!(compare(&fingerprint(), &with_flags(|flags| flags.via_root = true)), Ok(()));
}

#[test]
fn what_is_harmless_passes() {
    let harmless = [
        fingerprint(),
        with(|now| now.publication.as_mut().unwrap().owner = "17".to_owned()),
        with(|now| now.publication.as_mut().unwrap().row_version = "701".to_owned()),
        with(|now| now.publication.as_mut().unwrap().generated_columns = Some("s".to_owned())),
        with(|now| now.memberships.push(("schema".to_owned(), 40))),
        // More operations than before: they are dropped.
        with_flags(|flags| (flags.update, flags.delete, flags.truncate) = (true, true, true)),
    ];
    for now in harmless {
        assert_eq!(compare(&fingerprint(), &now), Ok(()), "{now:?}");
    }
}

#[test]
fn a_publication_altered_there_and_back_is_worth_a_line() {
    let there_and_back = with(|now| now.publication.as_mut().unwrap().row_version = "702".to_owned());
    let mut before = fingerprint();
    assert!(notice(&mut before, &there_and_back).unwrap().contains("publication walrelay_orders was altered"));
    assert_eq!(notice(&mut before, &there_and_back), None);
    let new_owner = with(|now| {
        let publication = now.publication.as_mut().unwrap();
        publication.row_version = "701".to_owned();
        publication.owner = "17".to_owned();
    });
    assert_eq!(notice(&mut fingerprint(), &new_owner), None);
    assert_eq!(notice(&mut fingerprint(), &fingerprint()), None);
}
