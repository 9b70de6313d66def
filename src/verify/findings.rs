//! The outcome: counts and examples.

use serde::Serialize;

/// How many there are of what.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
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
pub struct Flow {
    pub outbox: String,
    pub topic: String,
    /// Whether the order could be checked.
    pub order_checked: bool,
    /// What there is.
    #[serde(flatten)]
    pub counts: Counts,
}

/// One that was found, by its names: never a payload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Example {
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
    /// What keeps the row from a topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Each way from an outbox to a topic, in the order in which their first rows came.
    pub flows: Vec<Flow>,
    /// Rows that go nowhere: the relay stops at them.
    pub unroutable: u64,
    /// Examples of rows without a record, the earliest first.
    pub missing: Vec<Example>,
    /// Examples of records beyond the first of a row.
    pub duplicated: Vec<Example>,
    /// Examples of records out of order.
    pub out_of_order: Vec<Example>,
    /// Examples of records that are of no row.
    pub unknown: Vec<Example>,
    /// Examples of rows that go nowhere.
    pub unroutable_rows: Vec<Example>,
}

impl Findings {
    /// All flows together.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.flows.iter().for_each(|flow| total.add(&flow.counts));
        total
    }
}
