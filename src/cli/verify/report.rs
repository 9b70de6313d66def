//! What was found, for people and as JSON. Ids and keys only, never a payload.

use serde::Serialize;

use crate::cli::text::{aligned, listed, notes};
use crate::error::{Error, Kind, Result};
use crate::event::Shown;
use crate::verify::{Counts, Example, Findings};

/// What was found, and what has to be known to read it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether every row has its record, and none is out of order. Duplicates do not count.
    sound: bool,
    /// Of all flows together.
    total: Counts,
    #[serde(flatten)]
    findings: Findings,
    notes: Vec<String>,
}

impl Report {
    /// Adds a remark.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Takes what was found; `absent` are topics that do not exist, `cut` those whose first records are gone.
    pub fn found(&mut self, findings: Findings, absent: &[String], cut: &[String]) {
        let misses = |topic: &String| findings.flows.iter().any(|flow| flow.topic == *topic && flow.counts.missing > 0);
        self.notes.extend(absent.iter().map(|topic| format!("topic {topic} does not exist")));
        self.notes.extend(cut.iter().filter(|topic| misses(topic)).map(|topic| {
            format!(
                "the first records of topic {topic} are gone, as retention has it, and rows that had them count as \
                 missing: --since leaves them out"
            )
        }));
        self.total = findings.total();
        self.sound = self.total.missing == 0 && self.total.out_of_order == 0 && findings.unroutable == 0;
        self.findings = findings;
    }

    /// For people. Records of no row are counted, and listed only where `unknown` says so: where rows are deleted, there are
    /// always some.
    pub fn text(&self, unknown: bool) -> String {
        let head = [
            "outbox",
            "topic",
            "rows",
            "records",
            "missing",
            "duplicated",
            "out of order",
            "unknown",
            "outside",
            "replayed",
        ];
        let counts = |outbox: &str, topic: &str, counts: &Counts, ordered: bool| {
            let number = |number: u64| number.to_string();
            [
                outbox.to_owned(),
                topic.to_owned(),
                number(counts.rows),
                number(counts.records),
                number(counts.missing),
                number(counts.duplicated),
                if ordered { number(counts.out_of_order) } else { "-".to_owned() },
                number(counts.unknown),
                number(counts.outside),
                number(counts.replayed),
            ]
        };
        let flows = &self.findings.flows;
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(flows.iter().map(|flow| counts(&flow.outbox, &flow.topic, &flow.counts, flow.order_checked)));
        if flows.len() != 1 {
            let ordered = flows.iter().any(|flow| flow.order_checked);
            rows.push(counts("total", "", &self.total, ordered));
        }
        let mut text = aligned(&rows) + "\n";
        for (what, of, list) in [
            ("missing", self.total.missing, &self.findings.missing),
            ("unroutable", self.findings.unroutable, &self.findings.unroutable_rows),
            ("out of order", self.total.out_of_order, &self.findings.out_of_order),
            ("duplicated", self.total.duplicated, &self.findings.duplicated),
            ("unknown", self.total.unknown, &self.findings.unknown),
        ] {
            if list.is_empty() || what == "unknown" && !unknown {
                continue;
            }
            let lines: Vec<[String; 4]> = list.iter().map(line).collect();
            text += &listed(what, of, &lines);
        }
        if !self.notes.is_empty() {
            text += "\n";
        }
        text += &notes(&self.notes);
        text
    }

    /// Whether it is as it should be.
    ///
    /// # Errors
    /// [`Kind::NotVerified`] where it is not.
    pub fn verdict(&self, no_duplicates: bool) -> Result<()> {
        let duplicated = if no_duplicates { self.total.duplicated } else { 0 };
        let faults = [
            (
                self.total.missing,
                "missing",
                "see whether the relay is behind (walrelay status), or the topics do not keep what the table keeps",
            ),
            (
                self.findings.unroutable,
                "unroutable",
                "`run` stops at rows that cannot be routed: correct them, or the templates of [route]",
            ),
            (
                self.total.out_of_order,
                "out of order",
                "see whether writers of one aggregate wait for each other, and outbox.order_by is their order",
            ),
            (
                duplicated,
                "duplicated",
                "delivery is at least once: consumers drop by id what they know, and without --no-duplicates it is no fault",
            ),
        ];
        let faults: Vec<_> = faults.into_iter().filter(|(count, ..)| *count > 0).collect();
        if faults.is_empty() {
            return Ok(());
        }
        let (counts, remedies): (Vec<String>, Vec<&str>) =
            faults.into_iter().map(|(count, what, remedy)| (format!("{count} {what}"), remedy)).unzip();
        let error = Error::new(Kind::NotVerified, format!("outbox and topics differ: {}", counts.join(", ")));
        Err(error.remedy(format!("{}; docs/verify.md says what else it can be", remedies.join("; "))))
    }
}

/// Where, id, key, and what is to say.
fn line(example: &Example) -> [String; 4] {
    let shown = |text: &Option<String>| text.as_deref().map(|text| Shown::of(text.as_bytes()).to_string());
    let topic = example.topic.as_deref().unwrap_or_default();
    let place = match (example.partition, example.offset) {
        (Some(partition), Some(offset)) => format!("{topic}[{partition}]@{offset}"),
        _ => topic.to_owned(),
    };
    let place = if place.is_empty() { example.outbox.clone().unwrap_or_default() } else { place };
    let behind = example.behind_offset.map(|offset| format!("behind a later row at {offset}"));
    [
        format!("  {place}"),
        shown(&example.id).map_or_else(|| "no id".to_owned(), |id| format!("id {id}")),
        shown(&example.key).map(|key| format!("key {key}")).unwrap_or_default(),
        example.why.clone().or(behind).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::{Comparison, Delivered, Outbox};

    fn report() -> Report {
        let outbox = |name: &str, is_ordered| Outbox { name: name.to_owned(), is_ordered };
        let mut comparison = Comparison::new(vec![outbox("public.outbox", true), outbox("b.events", false)], 2);
        for (rank, id) in (1..).zip(["1", "2", "3", "4", "5\n"]) {
            comparison.row(0, "orders", id.as_bytes(), Some(b"o-1"), rank);
        }
        comparison.row(1, "invoices", b"9", None, 0);
        comparison.unroutable(1, b"10", "column kind is NULL".to_owned());
        for (offset, id) in (0..).zip([Some("2"), Some("1"), Some("1"), Some("8"), None]) {
            let (id, key) = (id.map(str::as_bytes), Some(b"o-7".as_slice()));
            comparison.record("orders", &Delivered { partition: 1, offset, id, key, is_replay: false });
        }
        let mut report = Report::default();
        report.note("the order of public.outbox is that of \"id\"".to_owned());
        report.found(comparison.findings(), &["invoices".to_owned()], &["orders".to_owned(), "sound".to_owned()]);
        report
    }

    #[test]
    fn counts_line_up_and_examples_name_ids_keys_and_places() {
        assert!(!report().text(false).contains("id \"8\""));
        insta::assert_snapshot!(report().text(true), @r#"
        outbox         topic     rows  records  missing  duplicated  out of order  unknown  outside  replayed
        public.outbox  orders    5     5        3        1           1             2        0        0
        b.events       invoices  1     0        1        0           -             0        0        0
        total                    6     5        4        1           1             2        0        0

        missing (2 of 4)
          orders  id "3"  key "o-1"
          orders  id "4"  key "o-1"

        unroutable
          b.events  id "10"    column kind is NULL

        out of order
          orders[1]@1  id "1"  key "o-1"  behind a later row at 0

        duplicated
          orders[1]@2  id "1"  key "o-1"

        unknown
          orders[1]@4  no id   key "o-7"
          orders[1]@3  id "8"  key "o-7"

        note: the order of public.outbox is that of "id"
        note: topic invoices does not exist
        note: the first records of topic orders are gone, as retention has it, and rows that had them count as missing: --since leaves them out
        "#);
    }

    #[test]
    fn the_json_has_the_same() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!((json["sound"].as_bool(), json["total"]["missing"].as_u64()), (Some(false), Some(4)));
        assert_eq!((&json["flows"][0]["topic"], &json["flows"][0]["out_of_order"]), (&"orders".into(), &1.into()));
        assert_eq!(
            json["missing"][0],
            serde_json::json!({
                "outbox": "public.outbox", "topic": "orders", "id": "3", "key": "o-1",
            })
        );
        assert_eq!(
            (&json["out_of_order"][0]["offset"], &json["out_of_order"][0]["behind_offset"]),
            (&1.into(), &0.into())
        );
    }

    #[test]
    fn duplicates_alone_fail_only_where_they_are_not_wanted() {
        let verdict = |counts: Counts, unroutable, no_duplicates| {
            let report =
                Report { total: counts, findings: Findings { unroutable, ..Findings::default() }, ..Report::default() };
            report.verdict(no_duplicates).map_err(|error| {
                let remedy = error.what_to_do().unwrap().to_owned();
                (error.kind(), error.cause().to_owned(), remedy)
            })
        };
        let duplicated = Counts { duplicated: 2, unknown: 3, outside: 4, replayed: 5, ..Counts::default() };
        assert_eq!(verdict(duplicated.clone(), 0, false), Ok(()));
        let (kind, cause, remedy) = verdict(duplicated, 0, true).unwrap_err();
        assert_eq!((kind.exit_code(), cause.as_str()), (1, "outbox and topics differ: 2 duplicated"));
        assert!(remedy.contains("at least once") && !remedy.contains("behind"), "{remedy}");
        for (counts, unroutable, what_to_do) in [
            (Counts { missing: 1, ..Counts::default() }, 0, "see whether the relay is behind"),
            (Counts { out_of_order: 1, ..Counts::default() }, 0, "see whether writers"),
            (Counts::default(), 1, "`run` stops at rows"),
        ] {
            let (kind, _, remedy) = verdict(counts, unroutable, false).unwrap_err();
            assert!(kind == Kind::NotVerified && remedy.starts_with(what_to_do), "{remedy}");
        }
    }
}
