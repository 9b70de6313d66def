//! Markers first, then dead letters: the marker of a dead letter stands behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use serde::Serialize;

use super::At;
use super::letter::{Entry, Letter};
use super::settled::{Marker, Outcome, Settled};
use crate::error::Result;
use crate::sink::kafka::options::Options;
use crate::sink::kafka::topic_reader::{Isolation, Spans, TopicReader};

/// Classes that are counted one by one: there are three, and what a header says may be anything.
const CLASSES_MAX: usize = 20;
/// Under which those beyond are counted.
const OTHER_CLASSES: &str = "other";

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Dead letters that fit.
    pub matched: u64,
    /// The same, by class.
    pub classes: BTreeMap<String, u64>,
    /// Dead letters that fit and are resolved.
    pub settled: u64,
    /// Dead letters of other slots that fit otherwise.
    pub other_slots: u64,
    /// Records that are no dead letters, and nothing else that walrelay wrote.
    pub foreign: u64,
}

/// Whether resolved dead letters are taken, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// Only those that are not.
    Unsettled,
    /// All.
    All,
}

/// Takes the progress: the records that were read, and their total.
pub(crate) type Say<'s> = &'s mut dyn FnMut(u64, u64);

/// The records that the topic had when the scan was opened.
pub(crate) struct Scan {
    reader: TopicReader,
    topic: String,
    spans: Spans,
    settled: Settled,
    /// The last marker of each dead letter that the filter names.
    markers: BTreeMap<At, Marker>,
}

impl Scan {
    /// Opens the topic, as far as `wanted` can be in it, and reads its markers. `None` where there is no such topic.
    ///
    /// Two bits are kept for each dead letter.
    ///
    /// # Errors
    /// `Kind::Config` where no client can be made of `options`, which are those of [`Options::reader`];
    /// [`Kind::KafkaUnreachable`](crate::error::Kind), `KafkaRefused` and `TopicRefused`.
    pub(crate) fn open(options: Options, topic: &str, wanted: &Wanted, say: Say<'_>) -> Result<Option<Scan>> {
        let reader = TopicReader::open(options, Isolation::ReadCommitted, None)?;
        let mut spans = reader.spans(topic)?;
        if spans.is_empty() {
            return Ok(None);
        }
        if let Some(since_ms) = wanted.since_ms {
            spans = reader.since(topic, spans, since_ms)?;
        }
        narrow(&mut spans, wanted);
        let (mut settled, mut markers) = (Settled::default(), BTreeMap::new());
        let (mut read, total) = (0, records(&spans));
        reader.read(topic, &spans, &mut |message| {
            read += 1;
            say(read, total);
            if let Entry::Marker(found) = Entry::of(&message) {
                settled.take(&found);
                if wanted.letters.contains(&found.letter) {
                    markers.insert(found.letter, found);
                }
            }
            ControlFlow::Continue(())
        })?;
        Ok(Some(Scan { reader, topic: topic.to_owned(), spans, settled, markers }))
    }

    /// The last marker of a dead letter that the filter names.
    pub(crate) fn marker(&self, letter: At) -> Option<&Marker> {
        self.markers.get(&letter)
    }

    /// Hands each dead letter that fits `wanted` to `take`, in the order of its partition, until `take` breaks. The
    /// counts are of the records that were read.
    ///
    /// # Errors
    /// [`Kind::KafkaUnreachable`](crate::error::Kind), `KafkaRefused` and `TopicRefused`.
    pub(crate) fn letters(
        &self,
        wanted: &Wanted,
        which: Which,
        say: Say<'_>,
        take: &mut dyn FnMut(&Letter<'_>, Option<Outcome>) -> ControlFlow<()>,
    ) -> Result<Counts> {
        let mut counts = Counts::default();
        let (mut read, total) = (0, records(&self.spans));
        self.reader.read(&self.topic, &self.spans, &mut |message| {
            read += 1;
            say(read, total);
            let letter = match Entry::of(&message) {
                Entry::Letter(letter) => letter,
                Entry::Marker(_) => return ControlFlow::Continue(()),
                Entry::Foreign => {
                    counts.foreign += 1;
                    return ControlFlow::Continue(());
                }
            };
            let outcome = self.settled.outcome(letter.at());
            match (wanted.fit(&letter), outcome) {
                (Fit::Unwanted, _) => return ControlFlow::Continue(()),
                (Fit::OtherSlot, _) => {
                    counts.other_slots += u64::from(outcome.is_none() || which == Which::All);
                    return ControlFlow::Continue(());
                }
                (Fit::Wanted, Some(_)) => {
                    counts.settled += 1;
                    if which == Which::Unsettled {
                        return ControlFlow::Continue(());
                    }
                }
                (Fit::Wanted, None) => {}
            }
            counts.take(&letter);
            take(&letter, outcome)
        })?;
        Ok(counts)
    }
}

impl Counts {
    fn take(&mut self, letter: &Letter<'_>) {
        self.matched += 1;
        let class = letter.class();
        let known = self.classes.contains_key(class.as_ref()) || self.classes.len() < CLASSES_MAX;
        let short = class.len() <= 64;
        *self.classes.entry(if known && short { class.into_owned() } else { OTHER_CLASSES.to_owned() }).or_default() +=
            1;
    }
}

/// Reads only from the first dead letter that is named in a partition on: its marker stands behind it.
fn narrow(spans: &mut Spans, wanted: &Wanted) {
    if wanted.letters.is_empty() {
        return;
    }
    spans.retain(|id, span| {
        let first = wanted.letters.iter().filter(|at| at.partition == *id).map(|at| at.offset).min();
        let Some(first) = first else { return false };
        *span = first.clamp(span.start, span.end)..span.end;
        !span.is_empty()
    });
}

/// How many records there are at most.
fn records(spans: &Spans) -> u64 {
    spans.values().map(|span| u64::try_from(span.end.saturating_sub(span.start)).unwrap_or_default()).sum()
}

/// The filter. All conditions have to hold; an empty one holds for every dead letter.
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

/// How a dead letter fits the filter.
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
    /// Whether `letter` fits.
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
    use crate::sink::kafka::topic_reader::Message;

    #[test]
    fn letters_that_are_named_are_read_from_there_on_and_nowhere_else() {
        let mut spans: Spans = [(0, 0..10), (1, 5..9), (2, 0..4)].into();
        let named = |names: &[&str]| Wanted {
            letters: names.iter().map(|name| name.parse().unwrap()).collect(),
            ..Wanted::default()
        };
        narrow(&mut spans, &named(&[]));
        assert_eq!(records(&spans), 18);
        narrow(&mut spans, &named(&["0:7", "0:3", "1:2", "2:9", "7:1"]));
        assert_eq!(spans, [(0, 3..10), (1, 5..9)].into());
    }

    #[test]
    fn no_more_classes_are_counted_than_there_can_be() {
        let mut counts = Counts::default();
        let mut take = |class: &str| {
            let record = incoming("0:0", &[(CLASS_HEADER, Some(class.as_bytes()))]);
            counts.take(&letter(&record));
        };
        take(&"x".repeat(1 << 20));
        (0..1_000).for_each(|class| take(&class.to_string()));
        take("0");
        assert_eq!((counts.matched, counts.classes.len()), (1_002, CLASSES_MAX));
        assert_eq!((counts.classes["0"], counts.classes[OTHER_CLASSES]), (2, 982));
    }

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
        let record = Message { key: None, time_ms: None, ..record };
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
