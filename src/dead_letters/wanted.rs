//! Which letters were asked for.

use std::collections::BTreeSet;

use super::At;
use super::letter::Letter;

/// What was asked for. All of it has to hold for a letter; what is empty holds for every letter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// It is one of these. Where it is, its slot does not matter.
    pub letters: BTreeSet<At>,
    /// Its row has one of these ids.
    pub ids: Vec<String>,
    /// It has one of these keys.
    pub aggregates: Vec<String>,
    /// Its fault is of one of these classes.
    pub classes: Vec<String>,
    /// It was for one of these topics.
    pub topics: Vec<String>,
    /// Its row is of one of these outboxes.
    pub outboxes: Vec<String>,
    /// It was given up then or later, in milliseconds since the Unix epoch.
    pub since_ms: Option<i64>,
    /// It was given up before.
    pub until_ms: Option<i64>,
    /// It came by this slot.
    pub slot: Option<String>,
}

/// What is true of a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// All of it.
    Wanted,
    /// All but the slot.
    OtherSlot,
    /// Less.
    Unwanted,
}

impl Wanted {
    /// Whether `letter` is what was asked for.
    pub(crate) fn fit(&self, letter: &Letter<'_>) -> Fit {
        let one_of = |wanted: &[String], found: Option<&[u8]>| {
            wanted.is_empty() || wanted.iter().any(|wanted| Some(wanted.as_bytes()) == found)
        };
        let text = |text: Option<&str>, wanted: &[String]| one_of(wanted, text.map(str::as_bytes));
        let fits = (self.letters.is_empty() || self.letters.contains(&letter.at()))
            && one_of(&self.ids, letter.row())
            && one_of(&self.aggregates, letter.key())
            && text(Some(&letter.class()), &self.classes)
            && text(letter.topic().as_deref(), &self.topics)
            && text(letter.outbox().as_deref(), &self.outboxes)
            && self.since_ms.is_none_or(|since| letter.time_ms().is_some_and(|time| time >= since))
            && self.until_ms.is_none_or(|until| letter.time_ms().is_some_and(|time| time < until));
        let is_named = !self.letters.is_empty();
        let slot = self.slot.as_ref().filter(|_| !is_named);
        match slot.is_none_or(|slot| letter.slot_bytes() == Some(slot.as_bytes())) {
            _ if !fits => Fit::Unwanted,
            true => Fit::Wanted,
            false => Fit::OtherSlot,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::letter::tests::{incoming, letter};
    use super::*;
    use crate::route::dead_letter::{CLASS_HEADER, OUTBOX_HEADER, ROW_HEADER, SLOT_HEADER, TOPIC_HEADER};

    #[test]
    fn all_conditions_have_to_hold() {
        let record = incoming(
            "2:3",
            &[
                (CLASS_HEADER, Some(b"too-large")),
                (TOPIC_HEADER, Some(b"orders")),
                (SLOT_HEADER, Some(b"s")),
                (OUTBOX_HEADER, Some(b"public.outbox")),
                (ROW_HEADER, Some(b"7")),
            ],
        );
        let letter = letter(&record);
        let some = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let here = Wanted {
            letters: BTreeSet::new(),
            ids: some(&["1", "7"]),
            aggregates: some(&["k"]),
            classes: some(&["too-large"]),
            topics: some(&["orders"]),
            outboxes: some(&["public.outbox"]),
            since_ms: Some(5),
            until_ms: Some(6),
            slot: Some("s".to_owned()),
        };
        let fit = |wanted: &Wanted| wanted.fit(&letter);
        assert_eq!((fit(&here), fit(&Wanted::default())), (Fit::Wanted, Fit::Wanted));
        for other in [
            Wanted { ids: some(&["77"]), ..here.clone() },
            Wanted { aggregates: some(&["7"]), ..here.clone() },
            Wanted { classes: some(&["rejected"]), ..here.clone() },
            Wanted { topics: some(&["order"]), ..here.clone() },
            Wanted { outboxes: some(&["outbox"]), ..here.clone() },
            Wanted { since_ms: Some(6), ..here.clone() },
            Wanted { until_ms: Some(5), ..here.clone() },
            Wanted { letters: ["2:4".parse().unwrap()].into(), ..here.clone() },
        ] {
            assert_eq!(fit(&other), Fit::Unwanted, "{other:?}");
        }
        let elsewhere = Wanted { slot: Some("t".to_owned()), ..here };
        assert_eq!(fit(&elsewhere), Fit::OtherSlot);
        assert_eq!(fit(&Wanted { letters: ["2:3".parse().unwrap()].into(), ..elsewhere }), Fit::Wanted);
    }

    #[test]
    fn a_letter_that_lacks_what_is_asked_for_is_not_meant() {
        let record = incoming("0:0", &[(CLASS_HEADER, Some(b"x"))]);
        let record = super::super::letter::Incoming { key: None, time_ms: None, ..record };
        let letter = letter(&record);
        let empty = || vec![String::new()];
        for wanted in [
            Wanted { ids: empty(), ..Wanted::default() },
            Wanted { aggregates: empty(), ..Wanted::default() },
            Wanted { topics: empty(), ..Wanted::default() },
            Wanted { outboxes: empty(), ..Wanted::default() },
            Wanted { since_ms: Some(i64::MIN), ..Wanted::default() },
            Wanted { until_ms: Some(i64::MAX), ..Wanted::default() },
        ] {
            assert_eq!(wanted.fit(&letter), Fit::Unwanted, "{wanted:?}");
        }
        assert_eq!(Wanted { slot: Some("s".to_owned()), ..Wanted::default() }.fit(&letter), Fit::OtherSlot);
    }
}
