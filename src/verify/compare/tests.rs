use super::*;

/// One outbox with an order, and one without.
const ORDERED: usize = 0;
const UNORDERED: usize = 1;

/// Outbox, topic, id, key, rank.
type GivenRow = (usize, &'static str, &'static str, Option<&'static str>, u32);
/// Topic, partition, id. Offsets are counted from 0 by topic and partition; `~` in front of an id is a replay, and
/// nothing is no id.
type GivenRecord = (&'static str, i32, &'static str);

fn compared(rows: &[GivenRow], records: &[GivenRecord]) -> Comparison {
    let outbox = |name: &str, is_ordered| Outbox { name: name.to_owned(), is_ordered };
    let mut comparison = Comparison::new(vec![outbox("a", true), outbox("b", false)], 3);
    for (outbox, topic, id, key, rank) in rows {
        comparison.row(*outbox, topic, id.as_bytes(), key.map(str::as_bytes), *rank);
    }
    let mut ends: HashMap<(&str, i32), i64> = HashMap::new();
    for (topic, partition, id) in records {
        let end = ends.entry((topic, *partition)).or_default();
        let (offset, is_replay) = (*end, id.starts_with('~'));
        let id = Some(id.trim_start_matches('~').as_bytes()).filter(|id| !id.is_empty());
        comparison.record(topic, &Delivered { partition: *partition, offset, id, key: None, is_replay });
        *end += 1;
    }
    comparison
}

/// Missing, duplicated, out of order, unknown, outside, replayed.
fn counted(rows: &[GivenRow], records: &[GivenRecord]) -> [u64; 6] {
    let total = compared(rows, records).findings().total();
    assert_eq!(total.rows, rows.len() as u64);
    [total.missing, total.duplicated, total.out_of_order, total.unknown, total.outside, total.replayed]
}

const K: Option<&str> = Some("k");
const L: Option<&str> = Some("l");
/// Three events of one aggregate, and one of another.
const ROWS: &[GivenRow] = &[(0, "t", "1", K, 1), (0, "t", "2", K, 2), (0, "t", "3", K, 3), (0, "t", "4", L, 4)];

#[test]
fn every_way_in_which_a_topic_can_differ_is_counted_for_what_it_is() {
    for (what, records, expected) in [
        ("all there", &[("t", 0, "1"), ("t", 0, "2"), ("t", 0, "3"), ("t", 0, "4")][..], [0; 6]),
        ("other keys come whenever", &[("t", 0, "4"), ("t", 0, "1"), ("t", 0, "2"), ("t", 0, "3")], [0; 6]),
        ("nothing there", &[], [4, 0, 0, 0, 0, 0]),
        ("one missing", &[("t", 0, "1"), ("t", 0, "3"), ("t", 0, "4")], [1, 0, 0, 0, 0, 0]),
        (
            "a copy right behind, and one after others: never out of order",
            &[("t", 0, "1"), ("t", 0, "1"), ("t", 0, "2"), ("t", 0, "3"), ("t", 0, "1"), ("t", 0, "4")],
            [0, 2, 0, 0, 0, 0],
        ),
        (
            "a copy elsewhere",
            &[("t", 0, "1"), ("t", 0, "2"), ("t", 0, "3"), ("t", 0, "4"), ("t", 1, "2")],
            [0, 1, 0, 0, 0, 0],
        ),
        ("backwards", &[("t", 0, "2"), ("t", 0, "1"), ("t", 0, "3"), ("t", 0, "4")], [0, 0, 1, 0, 0, 0]),
        ("backwards twice", &[("t", 0, "3"), ("t", 0, "1"), ("t", 0, "2"), ("t", 0, "4")], [0, 0, 2, 0, 0, 0]),
        (
            "backwards, and right again behind it",
            &[("t", 0, "2"), ("t", 0, "1"), ("t", 0, "2"), ("t", 0, "3"), ("t", 0, "4")],
            [0, 1, 1, 0, 0, 0],
        ),
        ("two partitions have no order", &[("t", 0, "2"), ("t", 1, "1"), ("t", 0, "3"), ("t", 0, "4")], [0; 6]),
        (
            "of no row, and without an id",
            &[("t", 0, "1"), ("t", 0, "9"), ("t", 0, "9"), ("t", 0, ""), ("t", 0, "2"), ("t", 0, "3"), ("t", 0, "4")],
            [0, 0, 0, 3, 0, 0],
        ),
        (
            "a replay is no copy, has no order and may be of no row",
            &[
                ("t", 0, "1"),
                ("t", 0, "2"),
                ("t", 0, "3"),
                ("t", 0, "~1"),
                ("t", 0, "4"),
                ("t", 0, "~9"),
                ("t", 0, "~"),
            ],
            [0, 0, 0, 0, 0, 3],
        ),
        (
            "a replay of what was missing, and what was missing after it",
            &[("t", 0, "2"), ("t", 0, "3"), ("t", 0, "4"), ("t", 0, "~1")],
            [0, 0, 0, 0, 0, 1],
        ),
        ("of a topic no row goes to", &[("u", 0, "1")], [4, 0, 0, 0, 0, 0]),
    ] {
        assert_eq!(counted(ROWS, records), expected, "{what}");
    }
}

#[test]
fn equal_keys_in_different_topics_are_different_aggregates() {
    let rows = [(0, "t", "1", K, 1), (0, "u", "2", K, 2), (0, "t", "3", K, 3), (0, "u", "4", K, 4)];
    assert_eq!(counted(&rows, &[("u", 0, "2"), ("u", 0, "4"), ("t", 0, "1"), ("t", 0, "3")]), [0; 6]);
    assert_eq!(counted(&rows, &[("u", 0, "4"), ("u", 0, "2"), ("t", 0, "1"), ("t", 0, "3")]), [0, 0, 1, 0, 0, 0]);
}

#[test]
fn without_an_order_a_key_or_different_ranks_nothing_is_out_of_order() {
    let backwards = [("t", 0, "2"), ("t", 0, "1")];
    for (what, rows) in [
        ("an outbox without an order", [(UNORDERED, "t", "1", K, 1), (UNORDERED, "t", "2", K, 2)]),
        ("rows without a key", [(ORDERED, "t", "1", None, 1), (ORDERED, "t", "2", None, 2)]),
        ("rows of one rank", [(ORDERED, "t", "1", K, 1), (ORDERED, "t", "2", K, 1)]),
        ("rows of two outboxes", [(ORDERED, "t", "1", K, 9), (UNORDERED, "t", "2", K, 10)]),
    ] {
        assert_eq!(counted(&rows, &backwards), [0; 6], "{what}");
    }
}

#[test]
fn outboxes_that_count_alike_into_one_topic_want_a_record_for_each() {
    let rows = [(0, "t", "1", K, 1), (1, "t", "1", L, 1)];
    for (records, expected) in [(1, [1, 0]), (2, [0, 0]), (3, [0, 1])] {
        let records = vec![("t", 0, "1"); records];
        assert_eq!(counted(&rows, &records)[..2], expected);
    }
}

#[test]
fn a_record_of_a_row_that_was_not_read_is_not_unknown() {
    let records = [("t", 0, "1"), ("t", 0, "9"), ("t", 0, "8"), ("t", 0, "9"), ("u", 0, "9")];
    let mut comparison = compared(&[(0, "t", "1", K, 1), (1, "u", "2", K, 1)], &records);
    assert_eq!(comparison.strays(), [b"8", b"9"]);
    comparison.exists(b"9");
    comparison.exists(b"1");
    assert_eq!(comparison.strays(), [b"8"]);
    let total = comparison.findings().total();
    assert_eq!((total.outside, total.unknown, total.records), (3, 1, 5));
}

#[test]
fn what_is_owed_shrinks_with_every_record_and_once_for_each_row() {
    let owed = |records: &[GivenRecord]| compared(ROWS, records).owed("t");
    assert_eq!(owed(&[]), 4);
    assert_eq!(owed(&[("t", 0, "1"), ("t", 0, "1"), ("t", 0, "~1"), ("t", 0, "7")]), 3);
    assert_eq!(owed(&[("t", 0, "~1"), ("t", 0, "1")]), 3);
    assert_eq!(compared(ROWS, &[]).owed("u"), 0);
}

#[test]
fn examples_are_named_limited_and_the_earliest_first() {
    let rows: Vec<GivenRow> = vec![(0, "t", "5", K, 5), (0, "t", "1", K, 1), (0, "t", "3", L, 3), (0, "t", "2", K, 2)];
    let mut comparison = compared(&rows, &[("t", 2, "7"), ("t", 2, "")]);
    comparison.unroutable(1, b"\xff", "why".to_owned());
    let found = comparison.findings();
    let ids = |list: &[Example]| list.iter().map(|example| example.id.clone().unwrap_or_default()).collect::<Vec<_>>();
    assert_eq!(ids(&found.missing), ["1", "2", "3"]);
    assert_eq!(found.missing[2].key.as_deref(), Some("l"));
    assert_eq!((found.total().missing, found.unroutable), (4, 1));
    assert_eq!(ids(&found.unknown), ["", "7"]);
    assert_eq!((found.unknown[1].partition, found.unknown[1].offset), (Some(2), Some(0)));
    assert_eq!(ids(&found.unroutable_rows), ["\u{fffd}"]);

    let found = compared(ROWS, &[("t", 0, "3"), ("t", 0, "2"), ("t", 0, "2")]).findings();
    let [late] = found.out_of_order.as_slice() else { panic!("{found:?}") };
    assert_eq!((late.id.as_deref(), late.offset, late.behind_offset), (Some("2"), Some(1), Some(0)));
    assert_eq!((found.duplicated[0].outbox.as_deref(), found.duplicated[0].offset), (Some("a"), Some(2)));
}

#[test]
fn each_way_has_its_own_counts_and_strays_count_with_the_first() {
    let rows = [(1, "t", "1", K, 1), (0, "t", "2", K, 1), (0, "u", "3", K, 2)];
    let found = compared(&rows, &[("t", 0, "1"), ("t", 0, "9"), ("u", 0, "3")]).findings();
    let flows: Vec<_> = found
        .flows
        .iter()
        .map(|flow| {
            (flow.outbox.as_str(), flow.topic.as_str(), flow.order_checked, flow.counts.records, flow.counts.missing)
        })
        .collect();
    assert_eq!(flows, [("b", "t", false, 2, 0), ("a", "t", true, 0, 1), ("a", "u", true, 1, 0)]);
    assert_eq!(found.flows[0].counts.unknown, 1);
}

#[test]
fn a_name_is_the_bytes_it_was_made_of() {
    for text in [
        "6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11",
        "00000000-0000-0000-0000-000000000000",
        "6A1F1D7E-3F0C-4F55-9D0A-0A5A7F0B6C11",
        "6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6cg1",
        "6a1f1d7e-3f0c-4f55-9d0a00a5a7f0b6c11",
        "0",
        "-7",
        "+7",
        "007",
        "9223372036854775807",
        "9223372036854775808",
        "",
        "order 1",
    ] {
        assert_eq!(Name::of(text.as_bytes()).bytes(), text.as_bytes(), "{text}");
    }
    assert_eq!(Name::of(b"\xff").bytes(), b"\xff");
}

#[test]
fn uuids_and_numbers_take_no_memory_of_their_own() {
    assert!(matches!(Name::of(b"6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11"), Name::Uuid(_)));
    assert!(matches!(Name::of(b"42"), Name::Number(42)));
    assert_eq!(size_of::<Name>(), 24);
}
