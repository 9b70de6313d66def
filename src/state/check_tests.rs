//! Every way a stored position can fail to belong here.

use super::*;
use crate::position::Partial;
use proptest::prelude::*;

const SWITCH: TimelineSwitch = TimelineSwitch { timeline: 1, switch_lsn: Lsn::new(500) };

fn server(timeline: u32) -> ServerIdentity {
    ServerIdentity { system_identifier: "7000".to_owned(), timeline }
}

fn stored_at(timeline: u32, position: Position) -> Stored {
    let membership_oids = vec![13];
    let slot = "orders".to_owned();
    Stored {
        server: server(timeline),
        slot,
        position,
        publication_oid: 11,
        table_oids: vec![12],
        membership_oids,
        message_prefixes: vec!["shop".to_owned()],
        published: None,
        stream_only: Vec::new(),
        catch_up: None,
    }
}

fn slot_at(confirmed: u64) -> SlotNow {
    let (confirmed_flush, membership_oids) = (Lsn::new(confirmed), vec![13]);
    SlotNow {
        name: "orders".to_owned(),
        confirmed_flush,
        publication_oid: 11,
        table_oids: vec![12],
        membership_oids,
        message_prefixes: vec!["shop".to_owned()],
    }
}

fn partly(end: u64, commit: u64) -> Position {
    Position { end_lsn: Lsn::new(end), partial: Some(Partial { commit_lsn: Lsn::new(commit), index: 3 }) }
}

fn at(end: u64) -> Position {
    Position::at(Lsn::new(end))
}

#[test]
fn with_nothing_stored_delivery_starts_where_the_slot_was_confirmed() {
    let start = reconcile(None, &server(1), &slot_at(400), Lsn::new(900), &[], false).unwrap();
    assert_eq!(start.position, at(400));
    assert!(start.notes[0].contains("no position is stored for slot orders"), "{:?}", start.notes);
}

#[test]
fn what_belongs_together_starts_at_the_stored_position_without_a_word_even_when_adopting() {
    for position in [at(400), at(700), at(900), partly(700, 700), partly(700, 899)] {
        for adopt in [false, true] {
            let stored = stored_at(1, position);
            let start = reconcile(Some(&stored), &server(1), &slot_at(400), Lsn::new(900), &[], adopt).unwrap();
            assert_eq!(start, Start { position, published: None, notes: vec![] });
        }
    }
}

#[test]
fn each_mismatch_is_refused_by_name_and_adopted_with_a_note() {
    let other_server = ServerIdentity { system_identifier: "7001".to_owned(), timeline: 1 };
    let other_slot = Stored { slot: "billing".to_owned(), ..stored_at(1, at(700)) };
    let other_publication = Stored { publication_oid: 99, ..stored_at(1, at(700)) };
    let other_table = Stored { table_oids: vec![98], ..stored_at(1, at(700)) };
    let rows: Vec<(&str, Stored, ServerIdentity, u64, &[&str])> = vec![
        ("another server", stored_at(1, at(700)), other_server, 400, &["7000", "7001", "system identifier"]),
        ("another slot", other_slot, server(1), 400, &["billing", "orders"]),
        ("an old primary", stored_at(3, at(700)), server(2), 400, &["timeline 3", "timeline 2", "old primary"]),
        ("another branch", stored_at(2, at(700)), server(3), 400, &["no part of the history", "timeline 2"]),
        ("a restored backup", stored_at(1, at(901)), server(1), 400, &["0/385", "ends at 0/384", "backup"]),
        ("a partial beyond the log", stored_at(1, partly(700, 900)), server(1), 400, &["0/384", "backup"]),
        ("a slot ahead", stored_at(1, at(399)), server(1), 400, &["0/190", "0/18F", "advanced by somebody"]),
        ("a slot ahead of a partial", stored_at(1, partly(399, 600)), server(1), 400, &["0/190", "0/18F"]),
        ("a slot made after a promotion", stored_at(1, at(700)), server(2), 600, &["0/258", "0/1F4"]),
        ("another publication", other_publication, server(1), 400, &["publication", "OID 99", "now 11"]),
        ("another table", other_table, server(1), 400, &["outbox table", "OID 98", "now 12"]),
    ];
    for (name, stored, now, confirmed, says) in rows {
        let slot = slot_at(confirmed);
        let refuse = reconcile(Some(&stored), &now, &slot, Lsn::new(900), &[SWITCH], false).unwrap_err();
        assert_eq!(refuse.kind(), Kind::PositionMismatch, "{name}");
        for word in says {
            assert!(refuse.cause().contains(word), "{name}: {word:?} is not in {:?}", refuse.cause());
        }
        let remedy = refuse.what_to_do().unwrap();
        assert!(remedy.contains("--adopt-slot"), "{name}: {remedy}");
        assert!(remedy.contains(&slot.confirmed_flush.to_string()), "{name}: {remedy}");

        let start = reconcile(Some(&stored), &now, &slot, Lsn::new(900), &[SWITCH], true).unwrap();
        assert_eq!(start.position, at(confirmed), "{name}");
        assert!(start.notes.iter().any(|note| note.contains(refuse.cause())), "{name}: {:?}", start.notes);
    }
}

#[test]
fn adopting_names_every_mismatch_it_accepts() {
    let stored = Stored { slot: "billing".to_owned(), table_oids: vec![98], ..stored_at(1, at(300)) };
    let start = reconcile(Some(&stored), &server(1), &slot_at(400), Lsn::new(900), &[], true).unwrap();
    assert_eq!(start.notes.iter().filter(|note| note.starts_with("accepted")).count(), 3, "{:?}", start.notes);
}

#[test]
fn a_promotion_behind_the_position_is_no_news() {
    let position = partly(450, 470);
    let start = reconcile(Some(&stored_at(1, position)), &server(2), &slot_at(400), Lsn::new(900), &[SWITCH], false);
    assert_eq!(start.unwrap(), Start { position, published: None, notes: vec![] });
}

#[test]
fn a_promotion_before_the_position_takes_it_back_and_says_that_events_no_longer_exist() {
    for (position, clamped) in [(at(700), at(500)), (partly(450, 500), at(450)), (partly(700, 800), at(500))] {
        let stored = stored_at(1, position);
        let start = reconcile(Some(&stored), &server(2), &slot_at(400), Lsn::new(900), &[SWITCH], false).unwrap();
        assert_eq!(start.position, clamped, "{position}");
        assert!(start.notes[0].contains("no longer in the database"), "{:?}", start.notes);
        assert!(start.notes[0].contains("timeline 2 at 0/1F4"), "{:?}", start.notes);
    }
}

#[test]
fn the_switch_that_counts_is_the_one_that_left_the_stored_timeline() {
    let history = [SWITCH, TimelineSwitch { timeline: 2, switch_lsn: Lsn::new(800) }];
    let start = |timeline| {
        let stored = stored_at(timeline, at(700));
        reconcile(Some(&stored), &server(3), &slot_at(400), Lsn::new(900), &history, false).unwrap().position
    };
    assert_eq!(start(1), at(500));
    assert_eq!(start(2), at(700));
}

#[test]
fn a_slot_confirmed_beyond_the_log_is_refused_even_when_adopting() {
    for stored in [None, Some(stored_at(1, at(700)))] {
        let error = reconcile(stored.as_ref(), &server(1), &slot_at(901), Lsn::new(900), &[], true).unwrap_err();
        assert_eq!(error.kind(), Kind::PositionMismatch);
        assert!(error.what_to_do().unwrap().contains("pg_drop_replication_slot('orders')"));
    }
}

prop_compose! {
    fn any_position()(end in 0u64..20, partial in proptest::option::of(0u64..5)) -> Position {
        let partial = partial.map(|ahead| Partial { commit_lsn: Lsn::new(end + ahead), index: 1 });
        Position { end_lsn: Lsn::new(end), partial }
    }
}

proptest! {
    #[test]
    fn no_start_skips_what_was_not_delivered_or_names_what_does_not_exist(
        position in any_position(),
        (then, timeline) in (1u32..4, 1u32..4),
        (same_server, same_slot, same_publication) in any::<(bool, bool, bool)>(),
        confirmed in 0u64..20,
        wal_end in 0u64..25,
        switches in proptest::collection::vec(0u64..20, 0..3),
        adopt in any::<bool>(),
    ) {
        let mut stored = stored_at(then, position);
        if !same_server { stored.server.system_identifier = "8000".to_owned(); }
        if !same_slot { stored.slot = "billing".to_owned(); }
        if !same_publication { stored.publication_oid = 1; }
        let history: Vec<TimelineSwitch> = (1u32..)
            .zip(switches)
            .map(|(timeline, lsn)| TimelineSwitch { timeline, switch_lsn: Lsn::new(lsn) })
            .collect();
        let slot = slot_at(confirmed);
        let wal_end = Lsn::new(wal_end);
        let belongs = same_server && same_slot && same_publication;
        match reconcile(Some(&stored), &server(timeline), &slot, wal_end, &history, adopt) {
            Ok(start) => {
                prop_assert!(start.position.end_lsn <= wal_end);
                prop_assert!(start.position.partial.is_none_or(|partial| partial.commit_lsn < wal_end));
                prop_assert!(start.position.end_lsn >= slot.confirmed_flush);
                if start.notes.is_empty() {
                    prop_assert!(belongs && then <= timeline);
                    prop_assert_eq!(start.position, position);
                }
                if !adopt {
                    prop_assert!(belongs && then <= timeline);
                    prop_assert!(stored.position.is_at_or_after(&start.position));
                }
            }
            Err(error) => {
                prop_assert_eq!(error.kind(), Kind::PositionMismatch);
                prop_assert!(error.what_to_do().is_some());
                prop_assert!(!adopt || slot.confirmed_flush > wal_end);
            }
        }
    }
}

#[test]
fn an_outbox_that_is_added_goes_on_and_is_told_and_one_that_is_gone_is_a_mismatch() {
    let (now, slot) = (server(1), slot_at(300));
    let added = SlotNow {
        table_oids: vec![12, 99],
        membership_oids: [slot.membership_oids.clone(), vec![77]].concat(),
        ..slot.clone()
    };
    let start = reconcile(Some(&stored_at(1, at(300))), &now, &added, Lsn::new(900), &[], false).unwrap();
    assert!(start.notes.iter().any(|note| note.contains("an outbox is new")), "{:?}", start.notes);
    let halfway = reconcile(Some(&stored_at(1, partly(300, 320))), &now, &added, Lsn::new(900), &[], false).unwrap();
    assert_eq!(halfway.position, at(300), "an index counts events of all outboxes");
    assert!(halfway.notes.iter().any(|note| note.contains("come again")), "{:?}", halfway.notes);
    let two = Stored { table_oids: vec![12, 99], ..stored_at(1, at(300)) };
    let error = reconcile(Some(&two), &now, &slot, Lsn::new(900), &[], false).unwrap_err();
    assert_eq!(error.kind(), Kind::PositionMismatch);
    assert!(
        error.cause().contains("an outbox table of slot orders, with OID 99, is not in the configuration"),
        "{error}"
    );
}

#[test]
fn messages_that_are_no_events_any_more_are_a_mismatch_and_more_of_them_are_none() {
    let (now, slot) = (server(1), slot_at(300));
    let decide = |prefixes: &[&str], adopt| {
        let message_prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
        let slot = SlotNow { message_prefixes, ..slot.clone() };
        reconcile(Some(&stored_at(1, partly(350, 360))), &now, &slot, Lsn::new(900), &[], adopt)
    };
    assert_eq!(decide(&["orders", "shop"], false).unwrap().position, at(350));
    let error = decide(&["orders"], false).unwrap_err();
    assert_eq!(error.kind(), Kind::PositionMismatch);
    assert!(error.cause().contains("\"shop\""), "{error}");
    // An index that counted them is of no use.
    assert_eq!(decide(&[], true).unwrap().position, at(300));
}
