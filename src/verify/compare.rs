//! The comparison: all rows first, then all records.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;

/// An outbox that is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outbox {
    /// Its name, for people.
    pub name: String,
    /// Whether its rows come with their place in the order.
    pub is_ordered: bool,
}

/// A record, without its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivered<'a> {
    pub partition: i32,
    pub offset: i64,
    /// The event's id, if the record has one.
    pub id: Option<&'a [u8]>,
    /// The key, if the record has one.
    pub key: Option<&'a [u8]>,
    /// Whether it was published again on purpose.
    pub is_replay: bool,
}

/// A topic of rows.
#[derive(Debug)]
struct Topic {
    name: String,
    /// Rows that have no record yet.
    owed: u64,
    /// The first flow into it.
    first: u32,
}

/// A row that was read.
#[derive(Debug)]
struct Row {
    flow: u32,
    key: Option<u32>,
    rank: u32,
    /// Rows of this id that go to this topic: one, unless two outboxes with one topic count their rows alike.
    rows: u32,
    records: u32,
    /// Rows that have no record yet.
    owed: u32,
}

/// A record of no row that was read.
#[derive(Debug)]
struct Stray {
    records: u32,
    key: Option<u32>,
    partition: i32,
    offset: i64,
    /// The table has a row of this id that was not compared.
    is_outside: bool,
}

/// The newest row of a key that arrived in a partition.
#[derive(Debug)]
struct Newest {
    rank: u32,
    offset: i64,
}

/// Names with numbers.
#[derive(Debug, Default)]
struct Numbered {
    names: Vec<Name>,
    numbers: HashMap<Name, u32>,
}

impl Numbered {
    fn number(&mut self, bytes: &[u8]) -> u32 {
        let name = Name::of(bytes);
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        // There is no memory for as many.
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    fn text(&self, number: u32) -> Option<String> {
        self.names.get(number as usize).map(Name::text)
    }
}

/// Compares the rows of tables with the records of topics. All rows come before the first record.
///
/// Records may come in any order of topics and partitions; those of one partition in the order of their offsets, each
/// once. See the module for what it keeps.
#[derive(Debug)]
pub(crate) struct Comparison {
    outboxes: Vec<Outbox>,
    examples_max: usize,
    topics: Vec<Topic>,
    numbers: HashMap<String, u32>,
    /// Outbox, topic, and what there is.
    flows: Vec<(usize, u32, Counts)>,
    flow_numbers: HashMap<(usize, u32), u32>,
    rows: HashMap<(u32, Name), Row>,
    keys: Numbered,
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
            topics: Vec::new(),
            numbers: HashMap::new(),
            flows: Vec::new(),
            flow_numbers: HashMap::new(),
            rows: HashMap::new(),
            keys: Numbered::default(),
            newest: HashMap::new(),
            strays: BTreeMap::new(),
            found: Findings::default(),
        }
    }

    /// A row of an outbox, by the outbox's index. `rank` is its place in the order: equal for rows whose order is not
    /// known.
    pub(crate) fn row(&mut self, outbox: usize, topic: &str, id: &[u8], key: Option<&[u8]>, rank: u32) {
        let (topic, flow) = self.way(outbox, topic);
        let key = key.map(|key| self.keys.number(key));
        if let Some((_, _, counts)) = self.flows.get_mut(flow as usize) {
            counts.rows += 1;
        }
        if let Some(topic) = self.topics.get_mut(topic as usize) {
            topic.owed += 1;
        }
        let fresh = Row { flow, key, rank, rows: 0, records: 0, owed: 0 };
        let row = self.rows.entry((topic, Name::of(id))).or_insert(fresh);
        row.rows += 1;
        row.owed += 1;
    }

    /// A row that cannot be routed, and the reason.
    pub(crate) fn unroutable(&mut self, outbox: usize, id: &[u8], why: String) {
        self.found.unroutable += 1;
        if self.found.unroutable_rows.len() < self.examples_max {
            let outbox = self.outboxes.get(outbox).map(|outbox| outbox.name.clone());
            let id = Some(Name::of(id).text());
            self.found.unroutable_rows.push(Example { outbox, id, why: Some(why), ..Example::default() });
        }
    }

    /// The topics of the rows, in the order of their first rows.
    pub(crate) fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.iter().map(|topic| topic.name.as_str())
    }

    /// How many rows have no record yet in this topic.
    pub(crate) fn owed(&self, topic: &str) -> u64 {
        let number = self.numbers.get(topic).copied();
        number.and_then(|number| self.topics.get(number as usize)).map_or(0, |topic| topic.owed)
    }

    /// A record of one of [`Comparison::topics`]. Records of other topics are not counted.
    pub(crate) fn record(&mut self, topic: &str, record: &Delivered<'_>) {
        let Some(topic) = self.numbers.get(topic).copied() else { return };
        let Some(into) = self.topics.get_mut(topic as usize) else { return };
        let name = record.id.map(Name::of);
        let place = name.map(|name| (topic, name));
        let row = place.as_ref().and_then(|place| self.rows.get_mut(place));
        let flow = row.as_ref().map_or(into.first, |row| row.flow);
        let Some((outbox, _, counts)) = self.flows.get_mut(flow as usize) else { return };
        counts.records += 1;
        counts.replayed += u64::from(record.is_replay);
        let Some(row) = row else {
            if !record.is_replay {
                self.stray(topic, place.map(|(topic, name)| (name, topic)), record);
            }
            return;
        };
        let served = row.owed.min(1);
        row.owed -= served;
        into.owed = into.owed.saturating_sub(u64::from(served));
        if record.is_replay {
            return;
        }
        row.records = row.records.saturating_add(1);
        let is_ordered = self.outboxes.get(*outbox).is_some_and(|outbox| outbox.is_ordered);
        let mut example = |list: fn(&mut Findings) -> &mut Vec<Example>, behind_offset| {
            let list = list(&mut self.found);
            if list.len() < self.examples_max {
                list.push(Example {
                    outbox: self.outboxes.get(*outbox).map(|outbox| outbox.name.clone()),
                    topic: Some(into.name.clone()),
                    id: place.as_ref().map(|(_, name)| name.text()),
                    key: row.key.and_then(|key| self.keys.text(key)),
                    partition: Some(record.partition),
                    offset: Some(record.offset),
                    behind_offset,
                    why: None,
                });
            }
        };
        if row.records > row.rows {
            counts.duplicated += 1;
            example(|found| &mut found.duplicated, None);
        } else if let Some(key) = row.key.filter(|_| is_ordered && row.rows == 1) {
            let this = Newest { rank: row.rank, offset: record.offset };
            let newest = self.newest.entry((row.flow, record.partition, key)).or_insert(this);
            if row.rank < newest.rank {
                counts.out_of_order += 1;
                example(|found| &mut found.out_of_order, Some(newest.offset));
            } else {
                *newest = Newest { rank: row.rank, offset: record.offset };
            }
        }
    }

    /// The ids of records of which no row was read. The table may have such a row: see [`Comparison::exists`].
    pub(crate) fn strays(&self) -> Vec<Vec<u8>> {
        let strays = self.strays.iter().filter(|(_, stray)| !stray.is_outside);
        let mut ids: Vec<Vec<u8>> = strays.map(|((name, _), _)| name.bytes()).collect();
        ids.dedup();
        ids
    }

    /// The table has a row of this id that was not compared.
    pub(crate) fn exists(&mut self, id: &[u8]) {
        let name = Name::of(id);
        let strays = self.strays.range_mut((name.clone(), 0)..=(name, u32::MAX));
        strays.for_each(|(_, stray)| stray.is_outside = true);
    }

    /// The outcome.
    pub(crate) fn findings(mut self) -> Findings {
        let mut missing: Vec<(u32, u32, &Name)> = Vec::new();
        for ((_, name), row) in self.rows.iter().filter(|(_, row)| row.owed > 0) {
            if let Some((_, _, counts)) = self.flows.get_mut(row.flow as usize) {
                counts.missing += u64::from(row.owed);
            }
            missing.push((row.flow, row.rank, name));
        }
        missing.sort_unstable_by_key(|(flow, rank, _)| (*flow, *rank));
        let mut strays: Vec<_> = self.strays.iter().collect();
        strays.sort_unstable_by_key(|((_, topic), stray)| (*topic, stray.partition, stray.offset));
        for ((name, topic), stray) in strays {
            let Some(into) = self.topics.get(*topic as usize) else { continue };
            let Some((_, _, counts)) = self.flows.get_mut(into.first as usize) else { continue };
            if stray.is_outside {
                counts.outside += u64::from(stray.records);
                continue;
            }
            counts.unknown += u64::from(stray.records);
            if self.found.unknown.len() < self.examples_max {
                self.found.unknown.push(Example {
                    topic: Some(into.name.clone()),
                    id: Some(name.text()),
                    key: stray.key.and_then(|key| self.keys.text(key)),
                    partition: Some(stray.partition),
                    offset: Some(stray.offset),
                    ..Example::default()
                });
            }
        }
        for (flow, _, name) in missing.into_iter().take(self.examples_max) {
            let Some((outbox, topic, _)) = self.flows.get(flow as usize) else { continue };
            let key = self.rows.get(&(*topic, name.clone())).and_then(|row| row.key);
            self.found.missing.push(Example {
                outbox: self.outboxes.get(*outbox).map(|outbox| outbox.name.clone()),
                topic: self.topics.get(*topic as usize).map(|topic| topic.name.clone()),
                id: Some(name.text()),
                key: key.and_then(|key| self.keys.text(key)),
                ..Example::default()
            });
        }
        let flow = |(outbox, topic, counts): (usize, u32, Counts)| {
            let outbox = self.outboxes.get(outbox)?;
            let topic = self.topics.get(topic as usize)?.name.clone();
            Some(Flow { outbox: outbox.name.clone(), topic, order_checked: outbox.is_ordered, counts })
        };
        self.found.flows = self.flows.into_iter().filter_map(flow).collect();
        self.found
    }

    /// The numbers of topic and flow.
    fn way(&mut self, outbox: usize, name: &str) -> (u32, u32) {
        // There is no memory for more than fit.
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let next_flow = number(self.flows.len());
        let topic = self.numbers.get(name).copied().unwrap_or_else(|| {
            let topic = number(self.topics.len());
            self.topics.push(Topic { name: name.to_owned(), owed: 0, first: next_flow });
            self.numbers.insert(name.to_owned(), topic);
            topic
        });
        let flow = *self.flow_numbers.entry((outbox, topic)).or_insert(next_flow);
        if flow == next_flow {
            self.flows.push((outbox, topic, Counts::default()));
        }
        (topic, flow)
    }

    fn stray(&mut self, topic: u32, place: Option<(Name, u32)>, record: &Delivered<'_>) {
        let Delivered { partition, offset, key, .. } = *record;
        if let Some(place) = place {
            let key = key.map(|key| self.keys.number(key));
            let fresh = Stray { records: 0, key, partition, offset, is_outside: false };
            self.strays.entry(place).or_insert(fresh).records += 1;
            return;
        }
        let Some(into) = self.topics.get(topic as usize) else { return };
        if let Some((_, _, counts)) = self.flows.get_mut(into.first as usize) {
            counts.unknown += 1;
        }
        if self.found.unknown.len() < self.examples_max {
            let (topic, partition) = (Some(into.name.clone()), Some(partition));
            let key = key.map(|key| Name::of(key).text());
            self.found.unknown.push(Example { topic, key, partition, offset: Some(offset), ..Example::default() });
        }
    }
}

/// The counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Rows that were compared.
    pub rows: u64,
    /// Records that were read.
    pub records: u64,
    /// Rows without a record.
    pub missing: u64,
    /// Records beyond the first of a row, replays not counted.
    pub duplicated: u64,
    /// First records of a row behind one of a later row with the same key.
    pub out_of_order: u64,
    /// Records whose id no row has, or that have none.
    pub unknown: u64,
    /// Records of rows that were not compared: outside the range, younger than the reading, or of another topic.
    pub outside: u64,
    /// Records that were published again on purpose.
    pub replayed: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        let Counts { rows, records, missing, duplicated, out_of_order, unknown, outside, replayed } = other;
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

/// From one outbox to one topic. Records that are of no row that was compared count with the topic's first outbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Flow {
    pub outbox: String,
    pub topic: String,
    /// Whether the order could be checked.
    pub order_checked: bool,
    /// What there is.
    #[serde(flatten)]
    pub counts: Counts,
}

/// A row or record that was found, without its payload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Example {
    /// The outbox, where there is a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outbox: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// The event's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The key, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The record's partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// The record's offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// The offset of the later row's record, which came first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_offset: Option<i64>,
    /// The reason for which the row has no topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Findings {
    /// Each way from an outbox to a topic, in the order in which their first rows came.
    pub flows: Vec<Flow>,
    /// Rows that cannot be routed: the relay stops at them.
    pub unroutable: u64,
    /// Examples of rows without a record, the earliest first.
    pub missing: Vec<Example>,
    /// Examples of records beyond the first of a row.
    pub duplicated: Vec<Example>,
    /// Examples of records out of order.
    pub out_of_order: Vec<Example>,
    /// Examples of records that are of no row.
    pub unknown: Vec<Example>,
    /// Examples of rows that cannot be routed.
    pub unroutable_rows: Vec<Example>,
}

impl Findings {
    /// All flows together.
    pub(crate) fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.flows.iter().for_each(|flow| total.add(&flow.counts));
        total
    }
}

/// An id or a key. UUIDs and whole numbers, as Postgres prints them, take no memory of their own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Name {
    Uuid([u8; 16]),
    Number(i64),
    Bytes(Arc<[u8]>),
}

/// Where the hyphens of a UUID are.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

impl Name {
    pub(super) fn of(bytes: &[u8]) -> Name {
        uuid(bytes)
            .map(Name::Uuid)
            .or_else(|| number(bytes).map(Name::Number))
            .unwrap_or_else(|| Name::Bytes(bytes.into()))
    }

    /// The bytes it was made of.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Name::Uuid(bytes) => {
                let hyphen = |at: usize| if [4, 6, 8, 10].contains(&at) { "-" } else { "" };
                let hex = |(at, byte): (usize, &u8)| format!("{}{byte:02x}", hyphen(at));
                bytes.iter().enumerate().map(hex).collect::<String>().into_bytes()
            }
            Name::Number(number) => number.to_string().into_bytes(),
            Name::Bytes(bytes) => bytes.to_vec(),
        }
    }

    /// The same as text; bytes that are not UTF-8 are replaced.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }
}

/// In the one form in which Postgres prints it, so that it can be printed again.
fn uuid(bytes: &[u8]) -> Option<[u8; 16]> {
    if bytes.len() != 36 || HYPHENS.iter().any(|at| bytes.get(*at) != Some(&b'-')) {
        return None;
    }
    let mut made = [0; 16];
    let mut digits = bytes.iter().enumerate().filter(|(at, _)| !HYPHENS.contains(at)).map(|(_, byte)| digit(*byte));
    for byte in &mut made {
        *byte = digits.next()?? << 4 | digits.next()??;
    }
    Some(made)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

fn number(bytes: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == bytes).then_some(number)
}

#[cfg(test)]
mod tests;
