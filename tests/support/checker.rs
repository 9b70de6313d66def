//! What the table holds against what the topics hold. Pure: rows and records in, findings out.
//!
//! Quiesce the writers first: a row committed between the two readings would look lost.

use std::collections::{BTreeMap, BTreeSet};

/// A committed row of the outbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) aggregate: String,
    /// Counts up by one per event of the aggregate, drawn under its row lock: the order of commits.
    pub(crate) version: i64,
    pub(crate) payload: String,
}

/// A record, in the order of its partition.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Delivered {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) payload: String,
}

/// What was found. Everything but `duplicates` is a broken promise; those are one only where a test says so.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Findings {
    /// Committed and never delivered.
    pub(crate) lost: Vec<String>,
    /// Delivered and never committed.
    pub(crate) phantom: Vec<String>,
    /// First deliveries of one aggregate that run backwards: the later event, which came first, and the earlier.
    pub(crate) out_of_order: Vec<(String, String)>,
    /// Delivered under another key, or with other bytes, than the row has.
    pub(crate) altered: Vec<String>,
    /// Aggregates with records in more than one partition.
    pub(crate) scattered: Vec<String>,
    /// Deliveries beyond the first of each event.
    pub(crate) duplicates: usize,
}

impl Findings {
    /// Nothing wrong, copies aside.
    pub(crate) fn is_sound(&self) -> bool {
        Findings { duplicates: 0, ..self.clone() } == Findings::default()
    }

    /// Panics with everything that was found unless it is sound.
    #[track_caller]
    pub(crate) fn assert_sound(&self) {
        let Findings { lost, phantom, out_of_order, altered, scattered, duplicates } = self;
        let text = format!(
            "lost {}, phantom {}, out of order {}, altered {}, scattered {}, duplicates {duplicates}",
            lost.len(),
            phantom.len(),
            out_of_order.len(),
            altered.len(),
            scattered.len()
        );
        let some = |list: &[String]| list.iter().take(5).cloned().collect::<Vec<_>>();
        assert!(
            self.is_sound(),
            "{text}\nlost: {:?}\nphantom: {:?}\nout of order: {:?}\naltered: {:?}\nscattered: {:?}",
            some(lost),
            some(phantom),
            out_of_order.iter().take(5).collect::<Vec<_>>(),
            some(altered),
            some(scattered)
        );
    }
}

/// Compares. `delivered` may come in any order; it is read by topic, partition and offset.
pub(crate) fn check(rows: &[Row], delivered: &[Delivered]) -> Findings {
    let committed: BTreeMap<&str, &Row> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
    assert_eq!(committed.len(), rows.len(), "ids of rows are unique");
    let mut in_order: Vec<&Delivered> = delivered.iter().collect();
    in_order.sort_by_key(|one| (&one.topic, one.partition, one.offset));

    let mut findings = Findings::default();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut newest: BTreeMap<&str, &Row> = BTreeMap::new();
    let mut places: BTreeMap<&str, BTreeSet<(&str, i32)>> = BTreeMap::new();
    for one in in_order {
        let Some(row) = committed.get(one.id.as_str()) else {
            findings.phantom.push(one.id.clone());
            continue;
        };
        if one.payload != row.payload || one.key != row.aggregate {
            findings.altered.push(one.id.clone());
        }
        places.entry(&row.aggregate).or_default().insert((&one.topic, one.partition));
        if !seen.insert(&one.id) {
            findings.duplicates += 1;
            continue;
        }
        match newest.get(row.aggregate.as_str()) {
            Some(before) if before.version > row.version => {
                findings.out_of_order.push((before.id.clone(), row.id.clone()));
            }
            _ => {
                newest.insert(&row.aggregate, row);
            }
        }
    }
    let lost = rows.iter().filter(|row| !seen.contains(row.id.as_str()));
    findings.lost = lost.map(|row| format!("{} (version {} of {})", row.id, row.version, row.aggregate)).collect();
    let scattered = places.iter().filter(|(_, places)| places.len() > 1);
    findings.scattered = scattered.map(|(aggregate, _)| (*aggregate).to_owned()).collect();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |id: &str, aggregate: &str, version| Row {
            id: id.into(),
            aggregate: aggregate.into(),
            version,
            payload: format!("payload of {id}"),
        };
        vec![row("a1", "a", 1), row("b1", "b", 1), row("a2", "a", 2), row("a3", "a", 3)]
    }

    fn deliver(ids: &[&str]) -> Vec<Delivered> {
        let deliver = |(offset, id): (usize, &&str)| Delivered {
            id: (*id).into(),
            key: id[..1].into(),
            topic: "t".into(),
            partition: 0,
            offset: offset as i64,
            payload: format!("payload of {id}"),
        };
        ids.iter().enumerate().map(deliver).collect()
    }

    #[test]
    fn everything_once_and_in_order_is_sound() {
        assert_eq!(check(&rows(), &deliver(&["a1", "b1", "a2", "a3"])), Findings::default());
    }

    #[test]
    fn the_order_between_aggregates_does_not_matter() {
        assert!(check(&rows(), &deliver(&["a1", "a2", "a3", "b1"])).is_sound());
    }

    #[test]
    fn a_lost_event_is_found() {
        assert_eq!(check(&rows(), &deliver(&["a1", "b1", "a3"])).lost, ["a2 (version 2 of a)"]);
    }

    #[test]
    fn a_phantom_is_found() {
        assert_eq!(check(&rows(), &deliver(&["a1", "b1", "a2", "c1", "a3"])).phantom, ["c1"]);
    }

    #[test]
    fn a_swap_within_an_aggregate_is_found() {
        let findings = check(&rows(), &deliver(&["a1", "a3", "b1", "a2"]));
        assert_eq!(findings.out_of_order, [("a3".to_owned(), "a2".to_owned())]);
        assert!(!findings.is_sound());
    }

    #[test]
    fn a_replay_from_an_earlier_place_is_duplicates_and_no_disorder() {
        let findings = check(&rows(), &deliver(&["a1", "b1", "a2", "a1", "b1", "a2", "a3"]));
        assert_eq!(findings, Findings { duplicates: 3, ..Findings::default() });
    }

    #[test]
    fn a_gap_that_is_filled_later_is_disorder_even_after_a_replay() {
        let findings = check(&rows(), &deliver(&["a1", "a3", "a1", "a2", "a3", "b1"]));
        assert_eq!(findings.out_of_order.len(), 1);
    }

    #[test]
    fn altered_bytes_and_a_wrong_key_are_found() {
        let mut delivered = deliver(&["a1", "b1", "a2", "a3"]);
        delivered[0].payload.push(' ');
        delivered[1].key = "x".into();
        assert_eq!(check(&rows(), &delivered).altered, ["a1", "b1"]);
    }

    #[test]
    fn an_aggregate_in_two_partitions_is_found() {
        let mut delivered = deliver(&["a1", "b1", "a2", "a3"]);
        delivered[2].partition = 1;
        assert_eq!(check(&rows(), &delivered).scattered, ["a"]);
    }

    #[test]
    fn offsets_decide_the_order_not_the_order_of_reading() {
        let mut delivered = deliver(&["a1", "b1", "a2", "a3"]);
        delivered.reverse();
        assert!(check(&rows(), &delivered).is_sound());
    }
}
