//! The comparison: all rows first, then all records.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use indexmap::{IndexMap, IndexSet};
use serde::Serialize;

#[derive(Debug, Clone)]
pub(crate) struct Outbox {
    pub name: String,
    pub is_ordered: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivered<'a> {
    pub partition: i32,
    pub offset: i64,
    pub id: Option<&'a [u8]>,
    pub key: Option<&'a [u8]>,
    pub is_replay: bool,
}

#[derive(Debug)]
struct Row {
    flow: u32,
    key: Option<u32>,
    rank: u32,
    /// The number of rows with this id and topic: one, unless two outboxes share ids and a topic.
    rows: u32,
    records: u32,
    /// Rows without a record so far.
    owed: u32,
}

#[derive(Debug)]
struct Stray {
    records: u32,
    key: Option<u32>,
    partition: i32,
    offset: i64,
    /// Whether the table has a row of this id that was not compared.
    is_outside: bool,
}

#[derive(Debug, Clone, Copy)]
struct Newest {
    rank: u32,
    offset: i64,
}

/// Compares the rows of tables with the records of topics. All rows come before the first record.
///
/// Topics and partitions may come in any order. The records of one partition come in the order of
/// their offsets, each once. The module's documentation names the memory.
#[derive(Debug)]
pub(crate) struct Comparison {
    outboxes: Vec<Outbox>,
    examples_max: usize,
    /// A topic has the number of its first flow.
    topics: HashMap<String, u32>,
    /// By outbox and topic.
    flows: IndexMap<(usize, u32), Flow>,
    rows: HashMap<(u32, Name), Row>,
    keys: IndexSet<Name>,
    newest: HashMap<(u32, i32, u32), Newest>,
    strays: BTreeMap<(Name, u32), Stray>,
    found: Findings,
}

impl Comparison {
    /// A comparison of these outboxes, with at most `examples_max` examples of each kind.
    pub(crate) fn new(outboxes: Vec<Outbox>, examples_max: usize) -> Comparison {
        Comparison {
            outboxes,
            examples_max,
            topics: HashMap::new(),
            flows: IndexMap::new(),
            rows: HashMap::new(),
            keys: IndexSet::new(),
            newest: HashMap::new(),
            strays: BTreeMap::new(),
            found: Findings::default(),
        }
    }

    /// Adds a row of the outbox with this index. `rank` is its place in the order: equal for rows
    /// without a known order.
    pub(crate) fn row(
        &mut self,
        outbox: usize,
        topic: &str,
        id: &[u8],
        key: Option<&[u8]>,
        rank: u32,
    ) {
        let next = short(self.flows.len());
        let topic_number = self.topics.get(topic).copied().unwrap_or_else(|| {
            self.topics.insert(topic.to_owned(), next);
            next
        });
        let flow = self.flows.entry((outbox, topic_number));
        let number = short(flow.index());
        let flow = flow.or_insert_with(|| {
            let outbox = self.outboxes.get(outbox);
            Flow {
                outbox: outbox.map(|outbox| outbox.name.clone()).unwrap_or_default(),
                topic: topic.to_owned(),
                order_checked: outbox.is_some_and(|outbox| outbox.is_ordered),
                counts: Counts::default(),
            }
        });
        flow.counts.rows += 1;
        let key = key.map(|key| short(self.keys.insert_full(Name::of(key)).0));
        let fresh = Row {
            flow: number,
            key,
            rank,
            rows: 0,
            records: 0,
            owed: 0,
        };
        let row = self
            .rows
            .entry((topic_number, Name::of(id)))
            .or_insert(fresh);
        row.rows += 1;
        row.owed += 1;
        // Rows of two outboxes with one id and topic count for the first.
        if let Some((_, flow)) = self.flows.get_index_mut(row.flow as usize) {
            flow.counts.missing += 1;
        }
    }

    pub(crate) fn unroutable(&mut self, outbox: usize, id: &[u8], why: String) {
        self.found.unroutable += 1;
        if self.found.unroutable_rows.len() < self.examples_max {
            let outbox = self.outboxes.get(outbox).map(|outbox| outbox.name.clone());
            let id = Some(Name::of(id).text());
            self.found.unroutable_rows.push(Example {
                outbox,
                id,
                why: Some(why),
                ..Example::default()
            });
        }
    }

    /// The topics of the rows, in the order of their first rows.
    pub(crate) fn topics(&self) -> impl Iterator<Item = &str> {
        let first = self
            .flows
            .iter()
            .enumerate()
            .filter(|(number, ((_, topic), _))| short(*number) == *topic);
        first.map(|(_, (_, flow))| flow.topic.as_str())
    }

    /// The number of rows for this topic without a record so far.
    pub(crate) fn owed(&self, topic: &str) -> u64 {
        let Some(number) = self.topics.get(topic) else {
            return 0;
        };
        let flows =
            (0..self.outboxes.len()).filter_map(|outbox| self.flows.get(&(outbox, *number)));
        flows.map(|flow| flow.counts.missing).sum()
    }

    /// Adds a record of one of [`Comparison::topics`]. Records of other topics are ignored.
    pub(crate) fn record(&mut self, topic: &str, record: &Delivered<'_>) {
        let Some(number) = self.topics.get(topic).copied() else {
            return;
        };
        let name = record.id.map(|id| (number, Name::of(id)));
        let row = name.as_ref().and_then(|name| self.rows.get_mut(name));
        let flow = row.as_ref().map_or(number, |row| row.flow);
        let Some((_, flow)) = self.flows.get_index_mut(flow as usize) else {
            return;
        };
        flow.counts.records += 1;
        flow.counts.replayed += u64::from(record.is_replay);
        let Some(row) = row else {
            if !record.is_replay {
                self.stray(number, name.map(|(_, name)| name), record);
            }
            return;
        };
        if row.owed > 0 {
            row.owed -= 1;
            flow.counts.missing -= 1;
        }
        if record.is_replay {
            return;
        }
        row.records = row.records.saturating_add(1);
        let (examples, behind_offset) = if row.records > row.rows {
            flow.counts.duplicated += 1;
            (&mut self.found.duplicated, None)
        } else {
            let Some(key) = row.key.filter(|_| flow.order_checked && row.rows == 1) else {
                return;
            };
            let this = Newest {
                rank: row.rank,
                offset: record.offset,
            };
            let newest = self
                .newest
                .entry((row.flow, record.partition, key))
                .or_insert(this);
            if row.rank >= newest.rank {
                *newest = this;
                return;
            }
            flow.counts.out_of_order += 1;
            (&mut self.found.out_of_order, Some(newest.offset))
        };
        if examples.len() < self.examples_max {
            let id = name.as_ref().map(|(_, name)| name);
            let example = Example::of(
                flow,
                id,
                row.key.and_then(|key| self.keys.get_index(key as usize)),
            );
            examples.push(Example {
                behind_offset,
                ..example.at(record.partition, record.offset)
            });
        }
    }

    /// The ids of records without a compared row. The table may have such a row: see
    /// [`Comparison::exists`].
    pub(crate) fn strays(&self) -> Vec<Vec<u8>> {
        let strays = self.strays.iter().filter(|(_, stray)| !stray.is_outside);
        let mut ids: Vec<Vec<u8>> = strays.map(|((name, _), _)| name.bytes()).collect();
        ids.dedup();
        ids
    }

    /// Notes that the table has a row of this id that was not compared.
    pub(crate) fn exists(&mut self, id: &[u8]) {
        let name = Name::of(id);
        let strays = self.strays.range_mut((name.clone(), 0)..=(name, u32::MAX));
        strays.for_each(|(_, stray)| stray.is_outside = true);
    }

    pub(crate) fn findings(self) -> Findings {
        let Comparison {
            mut flows,
            mut found,
            keys,
            examples_max,
            ..
        } = self;
        let key = |key: Option<u32>| keys.get_index(key? as usize);
        let mut owed: Vec<_> = self.rows.iter().filter(|(_, row)| row.owed > 0).collect();
        owed.sort_unstable_by_key(|(_, row)| (row.flow, row.rank));
        for ((_, name), row) in owed.into_iter().take(examples_max) {
            let flow = flows.get_index(row.flow as usize);
            found
                .missing
                .extend(flow.map(|(_, flow)| Example::of(flow, Some(name), key(row.key))));
        }
        let mut strays: Vec<_> = self.strays.iter().collect();
        strays.sort_unstable_by_key(|((_, topic), stray)| (*topic, stray.partition, stray.offset));
        for ((name, topic), stray) in strays {
            let Some((_, flow)) = flows.get_index_mut(*topic as usize) else {
                continue;
            };
            if stray.is_outside {
                flow.counts.outside += u64::from(stray.records);
                continue;
            }
            flow.counts.unknown += u64::from(stray.records);
            if found.unknown.len() < examples_max {
                let example =
                    Example::of(flow, Some(name), key(stray.key)).at(stray.partition, stray.offset);
                found.unknown.push(Example {
                    outbox: None,
                    ..example
                });
            }
        }
        found.flows = flows.into_values().collect();
        found
    }

    /// Adds a record without a compared row. A record without an id counts as unknown.
    fn stray(&mut self, topic: u32, name: Option<Name>, record: &Delivered<'_>) {
        let Delivered {
            partition,
            offset,
            key,
            ..
        } = *record;
        if let Some(name) = name {
            let key = key.map(|key| short(self.keys.insert_full(Name::of(key)).0));
            let fresh = Stray {
                records: 0,
                key,
                partition,
                offset,
                is_outside: false,
            };
            self.strays.entry((name, topic)).or_insert(fresh).records += 1;
            return;
        }
        let Some((_, flow)) = self.flows.get_index_mut(topic as usize) else {
            return;
        };
        flow.counts.unknown += 1;
        if self.found.unknown.len() < self.examples_max {
            let example = Example::of(flow, None, key.map(Name::of).as_ref()).at(partition, offset);
            self.found.unknown.push(Example {
                outbox: None,
                ..example
            });
        }
    }
}

/// A number as it is held for each row. Memory ends before the numbers do.
fn short(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Counts {
    pub rows: u64,
    pub records: u64,
    pub missing: u64,
    /// Records of a row after its first one, without replays.
    pub duplicated: u64,
    /// First records of a row after a record of a later row with the same key.
    pub out_of_order: u64,
    /// Records without an id, or with an id that no row has.
    pub unknown: u64,
    /// Records of rows that were not compared: outside the range, newer than the snapshot, or for
    /// another topic.
    pub outside: u64,
    pub replayed: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        let Counts {
            rows,
            records,
            missing,
            duplicated,
            out_of_order,
            unknown,
            outside,
            replayed,
        } = other;
        self.rows += rows;
        self.records += records;
        self.missing += missing;
        self.duplicated += duplicated;
        self.out_of_order += out_of_order;
        self.unknown += unknown;
        self.outside += outside;
        self.replayed += replayed;
    }
}

/// The rows of one outbox for one topic. Records without a compared row count for the first outbox
/// of the topic.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Flow {
    pub outbox: String,
    pub topic: String,
    pub order_checked: bool,
    #[serde(flatten)]
    pub counts: Counts,
}

/// A row or record of the findings, without its payload.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Example {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outbox: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// The offset of the later row's record, which came first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_offset: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Example {
    fn of(flow: &Flow, id: Option<&Name>, key: Option<&Name>) -> Example {
        let outbox = Some(flow.outbox.clone());
        let topic = Some(flow.topic.clone());
        Example {
            outbox,
            topic,
            id: id.map(Name::text),
            key: key.map(Name::text),
            ..Example::default()
        }
    }

    fn at(self, partition: i32, offset: i64) -> Example {
        Example {
            partition: Some(partition),
            offset: Some(offset),
            ..self
        }
    }
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Findings {
    /// One flow for each pair of outbox and topic, in the order of their first rows.
    pub flows: Vec<Flow>,
    /// Rows that cannot be routed: the relay stops at them.
    pub unroutable: u64,
    /// Examples, the earliest first.
    pub missing: Vec<Example>,
    pub duplicated: Vec<Example>,
    pub out_of_order: Vec<Example>,
    pub unknown: Vec<Example>,
    pub unroutable_rows: Vec<Example>,
}

impl Findings {
    pub(crate) fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.flows.iter().for_each(|flow| total.add(&flow.counts));
        total
    }
}

/// An id or a key. UUIDs and integers in the text form of Postgres take no memory of their own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Name {
    Uuid([u8; 16]),
    Number(i64),
    Bytes(Arc<[u8]>),
}

impl Name {
    fn of(bytes: &[u8]) -> Name {
        uuid(bytes)
            .or_else(|| number(bytes).map(Name::Number))
            .unwrap_or_else(|| Name::Bytes(bytes.into()))
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Name::Uuid(bytes) => {
                let mut text = format!("{:032x}", u128::from_be_bytes(*bytes));
                [20, 16, 12, 8]
                    .into_iter()
                    .for_each(|at| text.insert(at, '-'));
                text.into_bytes()
            }
            Name::Number(number) => number.to_string().into_bytes(),
            Name::Bytes(bytes) => bytes.to_vec(),
        }
    }

    /// As text; invalid UTF-8 is replaced.
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }
}

/// The value of a UUID in the text form of Postgres, so that the text can be restored.
fn uuid(bytes: &[u8]) -> Option<Name> {
    let digits = std::str::from_utf8(bytes)
        .ok()
        .filter(|text| text.len() == 36)?
        .replace('-', "");
    let uuid = Name::Uuid(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes());
    (uuid.bytes() == bytes).then_some(uuid)
}

fn number(bytes: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == bytes).then_some(number)
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz;

    use super::*;

    /// One outbox with an order, and one without.
    const ORDERED: usize = 0;
    const UNORDERED: usize = 1;

    /// Outbox, topic, id, key, rank.
    type GivenRow = (usize, &'static str, &'static str, Option<&'static str>, u32);

    /// `records` are ids with the partition of topic t, or the topic, behind an `@`. Offsets count
    /// from 0 per partition. `~` before an id marks a replay; `-` is no id.
    fn compared(rows: &[GivenRow], records: &str) -> Comparison {
        let outbox = |name: &str, is_ordered| Outbox {
            name: name.to_owned(),
            is_ordered,
        };
        let mut comparison = Comparison::new(vec![outbox("a", true), outbox("b", false)], 3);
        for (outbox, topic, id, key, rank) in rows {
            comparison.row(*outbox, topic, id.as_bytes(), key.map(str::as_bytes), *rank);
        }
        let mut ends: HashMap<(&str, i32), i64> = HashMap::new();
        for record in records.split_whitespace() {
            let (id, place) = record.split_once('@').unwrap_or((record, "0"));
            let (topic, partition) = place
                .parse()
                .map_or((place, 0), |partition| ("t", partition));
            let end = ends.entry((topic, partition)).or_default();
            let offset = *end;
            let is_replay = id.starts_with('~');
            let id = Some(id.trim_start_matches('~'))
                .filter(|id| *id != "-")
                .map(str::as_bytes);
            comparison.record(
                topic,
                &Delivered {
                    partition,
                    offset,
                    id,
                    key: None,
                    is_replay,
                },
            );
            *end += 1;
        }
        comparison
    }

    /// Missing, duplicated, out of order, unknown, outside, replayed.
    fn counted(rows: &[GivenRow], records: &str) -> [u64; 6] {
        let total = compared(rows, records).findings().total();
        assert_eq!(total.rows, rows.len() as u64);
        [
            total.missing,
            total.duplicated,
            total.out_of_order,
            total.unknown,
            total.outside,
            total.replayed,
        ]
    }

    const K: Option<&str> = Some("k");
    const L: Option<&str> = Some("l");
    /// Three events of one aggregate, and one of another.
    const ROWS: &[GivenRow] = &[
        (0, "t", "1", K, 1),
        (0, "t", "2", K, 2),
        (0, "t", "3", K, 3),
        (0, "t", "4", L, 4),
    ];

    #[test]
    fn each_kind_of_difference_between_rows_and_records_is_counted() {
        for (what, records, expected) in [
            ("all there", "1 2 3 4", [0; 6]),
            ("other keys come whenever", "4 1 2 3", [0; 6]),
            ("nothing there", "", [4, 0, 0, 0, 0, 0]),
            ("one missing", "1 3 4", [1, 0, 0, 0, 0, 0]),
            (
                "a copy right behind, and one after others: never out of order",
                "1 1 2 3 1 4",
                [0, 2, 0, 0, 0, 0],
            ),
            ("a copy elsewhere", "1 2 3 4 2@1", [0, 1, 0, 0, 0, 0]),
            ("backwards", "2 1 3 4", [0, 0, 1, 0, 0, 0]),
            ("backwards twice", "3 1 2 4", [0, 0, 2, 0, 0, 0]),
            (
                "backwards, and right again behind it",
                "2 1 2 3 4",
                [0, 1, 1, 0, 0, 0],
            ),
            ("two partitions have no order", "2 1@1 3 4", [0; 6]),
            (
                "of no row, and without an id",
                "1 9 9 - 2 3 4",
                [0, 0, 0, 3, 0, 0],
            ),
            (
                "a replay is no copy, has no order and may be of no row",
                "1 2 3 ~1 4 ~9 ~-",
                [0, 0, 0, 0, 0, 3],
            ),
            (
                "a replay of what was missing, and what was missing after it",
                "2 3 4 ~1",
                [0, 0, 0, 0, 0, 1],
            ),
            ("of a topic no row goes to", "1@u", [4, 0, 0, 0, 0, 0]),
        ] {
            assert_eq!(counted(ROWS, records), expected, "{what}");
        }
    }

    #[test]
    fn equal_keys_in_different_topics_are_different_aggregates() {
        let rows = [
            (0, "t", "1", K, 1),
            (0, "u", "2", K, 2),
            (0, "t", "3", K, 3),
            (0, "u", "4", K, 4),
        ];
        assert_eq!(counted(&rows, "2@u 4@u 1 3"), [0; 6]);
        assert_eq!(counted(&rows, "4@u 2@u 1 3"), [0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn rows_without_an_order_a_key_or_different_ranks_are_never_out_of_order() {
        for (what, rows) in [
            (
                "an outbox without an order",
                [(UNORDERED, "t", "1", K, 1), (UNORDERED, "t", "2", K, 2)],
            ),
            (
                "rows without a key",
                [(ORDERED, "t", "1", None, 1), (ORDERED, "t", "2", None, 2)],
            ),
            (
                "rows of one rank",
                [(ORDERED, "t", "1", K, 1), (ORDERED, "t", "2", K, 1)],
            ),
            (
                "rows of two outboxes",
                [(ORDERED, "t", "1", K, 9), (UNORDERED, "t", "2", K, 10)],
            ),
        ] {
            assert_eq!(counted(&rows, "2 1"), [0; 6], "{what}");
        }
    }

    #[test]
    fn equal_ids_of_two_outboxes_in_one_topic_need_a_record_each() {
        let rows = [(0, "t", "1", K, 1), (1, "t", "1", L, 1)];
        for (records, expected) in [("1", [1, 0]), ("1 1", [0, 0]), ("1 1 1", [0, 1])] {
            assert_eq!(counted(&rows, records)[..2], expected);
        }
    }

    #[test]
    fn a_record_of_a_row_that_was_not_read_is_not_unknown() {
        let mut comparison = compared(&[(0, "t", "1", K, 1), (1, "u", "2", K, 1)], "1 9 8 9 9@u");
        assert_eq!(comparison.strays(), [b"8", b"9"]);
        comparison.exists(b"9");
        comparison.exists(b"1");
        assert_eq!(comparison.strays(), [b"8"]);
        let total = comparison.findings().total();
        assert_eq!((total.outside, total.unknown, total.records), (3, 1, 5));
    }

    #[test]
    fn the_number_of_owed_records_falls_once_for_each_row() {
        for (records, owed) in [("", 4), ("1 1 ~1 7", 3), ("~1 1", 3)] {
            assert_eq!(compared(ROWS, records).owed("t"), owed, "{records}");
        }
        assert_eq!(compared(ROWS, "").owed("u"), 0);
    }

    #[test]
    fn examples_are_limited_in_number_and_the_earliest_come_first() {
        let rows = [
            (0, "t", "5", K, 5),
            (0, "t", "1", K, 1),
            (0, "t", "3", L, 3),
            (0, "t", "2", K, 2),
        ];
        let mut comparison = compared(&rows, "7@2 -@2");
        comparison.unroutable(1, b"\xff", "why".to_owned());
        let found = comparison.findings();
        let ids = |list: &[Example]| {
            list.iter()
                .map(|example| example.id.clone().unwrap_or_default())
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(&found.missing), ["1", "2", "3"]);
        assert_eq!(found.missing[2].key.as_deref(), Some("l"));
        assert_eq!((found.total().missing, found.unroutable), (4, 1));
        assert_eq!(ids(&found.unknown), ["", "7"]);
        assert_eq!(
            (found.unknown[1].partition, found.unknown[1].offset),
            (Some(2), Some(0))
        );
        assert_eq!(ids(&found.unroutable_rows), ["\u{fffd}"]);

        let found = compared(ROWS, "3 2 2").findings();
        let [late] = found.out_of_order.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!(
            (late.id.as_deref(), late.offset, late.behind_offset),
            (Some("2"), Some(1), Some(0))
        );
        assert_eq!(
            (
                found.duplicated[0].outbox.as_deref(),
                found.duplicated[0].offset
            ),
            (Some("a"), Some(2))
        );
    }

    #[test]
    fn each_outbox_and_topic_has_its_counts_and_strays_count_with_the_first() {
        let rows = [
            (1, "t", "1", K, 1),
            (0, "t", "2", K, 1),
            (0, "u", "3", K, 2),
        ];
        let found = compared(&rows, "1 9 3@u").findings();
        let flows: Vec<_> = found
            .flows
            .iter()
            .map(|flow| {
                (
                    flow.outbox.as_str(),
                    flow.topic.as_str(),
                    flow.order_checked,
                    flow.counts.records,
                    flow.counts.missing,
                )
            })
            .collect();
        assert_eq!(
            flows,
            [
                ("b", "t", false, 2, 0),
                ("a", "t", true, 0, 1),
                ("a", "u", true, 1, 0)
            ]
        );
        assert_eq!(found.flows[0].counts.unknown, 1);
    }

    #[test]
    fn an_id_keeps_the_bytes_of_its_text() {
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
    fn uuids_and_numbers_are_stored_without_an_allocation() {
        assert!(matches!(
            Name::of(b"6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11"),
            Name::Uuid(_)
        ));
        assert!(matches!(Name::of(b"42"), Name::Number(42)));
        assert_eq!(size_of::<Name>(), 24);
    }

    #[test]
    fn fuzzed_ids() {
        let corpus = [
            "0af76519-16cd-43dd-8448-eb211c80319c",
            "-9223372036854775808",
            "order-7",
        ];
        fuzz("ids and keys of records", 64 << 10, &corpus, |bytes| {
            assert_eq!(Name::of(bytes).bytes(), bytes);
        });
    }
}
