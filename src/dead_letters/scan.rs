//! Reads markers first, then dead letters: the marker of a dead letter is a later record.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;

use super::{At, DeadLetter, Entry, Marker, Outcome};
use crate::error::Result;
use crate::route::dead_letter::{OUTBOX_HEADER, ROW_HEADER, SLOT_HEADER, TOPIC_HEADER};
use crate::sink::kafka::options::Options;
use crate::sink::kafka::topic_reader::{Isolation, OffsetRanges, TopicReader, offsets};

/// The greatest number of classes with a count of their own. There are few classes, but a header may contain anything.
const CLASSES_MAX: usize = 20;
const OTHER_CLASSES: &str = "other";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub matched: u64,
    pub classes: BTreeMap<String, u64>,
    /// Dead letters that match and are resolved.
    pub resolved: u64,
    /// Dead letters of other slots that match otherwise.
    pub other_slots: u64,
    /// Records that walrelay did not write.
    pub foreign: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeadLetterScope {
    Unresolved,
    All,
}

/// Receives the progress: the number of records that were read, and their total.
pub(crate) type Say<'s> = &'s mut dyn FnMut(u64, u64);

/// A scan of the records that the topic had when the scan was opened.
pub(crate) struct Scan {
    reader: TopicReader,
    topic: String,
    spans: OffsetRanges,
    resolved: Resolved,
    /// The last marker of each dead letter that the filter names.
    markers: BTreeMap<At, Marker>,
}

impl Scan {
    /// Opens the part of the topic in which `wanted` can be, and reads its markers. `None` if the topic does not exist.
    ///
    /// Memory holds a byte for each dead letter.
    /// Errors: `Kind::Config` for invalid `options`, which are those of [`Options::reader`]; those of
    /// [`TopicReader::read`].
    pub(crate) fn open(options: Options, topic: &str, wanted: &DeadLetterFilter, say: Say<'_>) -> Result<Option<Scan>> {
        let reader = TopicReader::open(options, Isolation::ReadCommitted, None)?;
        let mut spans = reader.spans(topic)?;
        if spans.is_empty() {
            return Ok(None);
        }
        if let Some(since_ms) = wanted.since_ms {
            spans = reader.since(topic, spans, since_ms)?;
        }
        narrow(&mut spans, wanted);
        let (mut resolved, mut markers) = (Resolved::default(), BTreeMap::new());
        let (mut read, total) = (0, offsets(&spans));
        reader.read(topic, &spans, &mut |message| {
            read += 1;
            say(read, total);
            if let Entry::Marker(found) = Entry::of(&message) {
                resolved.take(&found);
                if wanted.letters.contains(&found.letter) {
                    markers.insert(found.letter, found);
                }
            }
            ControlFlow::Continue(())
        })?;
        Ok(Some(Scan { reader, topic: topic.to_owned(), spans, resolved, markers }))
    }

    /// The last marker of a dead letter that the filter names.
    pub(crate) fn marker(&self, letter: At) -> Option<&Marker> {
        self.markers.get(&letter)
    }

    /// Calls `take` with each dead letter that matches `wanted`, by partition, until `take` breaks. Counts the records read.
    pub(crate) fn letters(
        &self,
        wanted: &DeadLetterFilter,
        scope: DeadLetterScope,
        say: Say<'_>,
        take: &mut dyn FnMut(&DeadLetter<'_>, Option<Outcome>) -> ControlFlow<()>,
    ) -> Result<Counts> {
        let mut counts = Counts::default();
        let (mut read, total) = (0, offsets(&self.spans));
        self.reader.read(&self.topic, &self.spans, &mut |message| {
            read += 1;
            say(read, total);
            let letter = match Entry::of(&message) {
                Entry::DeadLetter(letter) => letter,
                Entry::Marker(_) => return ControlFlow::Continue(()),
                Entry::Foreign => {
                    counts.foreign += 1;
                    return ControlFlow::Continue(());
                }
            };
            let outcome = self.resolved.outcome(letter.at());
            match (wanted.fit(&letter), outcome) {
                (Fit::NoMatch, _) => return ControlFlow::Continue(()),
                (Fit::OtherSlot, _) => {
                    counts.other_slots += u64::from(outcome.is_none() || scope == DeadLetterScope::All);
                    return ControlFlow::Continue(());
                }
                (Fit::Match, Some(_)) => {
                    counts.resolved += 1;
                    if scope == DeadLetterScope::Unresolved {
                        return ControlFlow::Continue(());
                    }
                }
                (Fit::Match, None) => {}
            }
            counts.take(&letter);
            take(&letter, outcome)
        })?;
        Ok(counts)
    }
}

impl Counts {
    fn take(&mut self, letter: &DeadLetter<'_>) {
        self.matched += 1;
        let class = letter.class();
        let known = self.classes.contains_key(class.as_ref()) || self.classes.len() < CLASSES_MAX;
        let class = if known && class.len() <= 64 { &*class } else { OTHER_CLASSES };
        *self.classes.entry(class.to_owned()).or_default() += 1;
    }
}

const CHUNK: i64 = 4096;

/// Resolved dead letters by partition and chunk of offsets: a byte per record of a chunk that has one.
#[derive(Default)]
struct Resolved(HashMap<(i32, i64), Box<[Option<Outcome>; CHUNK as usize]>>);

impl Resolved {
    /// Adds a marker. The last of several markers for a dead letter counts.
    fn take(&mut self, marker: &Marker) {
        let At { partition, offset } = marker.letter;
        let chunk = self.0.entry((partition, offset / CHUNK)).or_insert_with(|| Box::new([None; CHUNK as usize]));
        if let Some(outcome) = chunk.get_mut((offset % CHUNK) as usize) {
            *outcome = Some(marker.outcome);
        }
    }

    /// The outcome of the dead letter at `at`, if it is resolved.
    fn outcome(&self, at: At) -> Option<Outcome> {
        let chunk = self.0.get(&(at.partition, at.offset / CHUNK))?;
        *chunk.get((at.offset % CHUNK) as usize)?
    }
}

/// Restricts each partition to the offsets from the first named dead letter on, because its marker is a later record.
fn narrow(spans: &mut OffsetRanges, wanted: &DeadLetterFilter) {
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

/// The filter. A dead letter has to match all conditions; an empty one matches every dead letter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeadLetterFilter {
    /// These dead letters; their slot does not matter.
    pub letters: BTreeSet<At>,
    pub ids: Vec<String>,
    pub aggregates: Vec<String>,
    pub classes: Vec<String>,
    pub topics: Vec<String>,
    pub outboxes: Vec<String>,
    /// Given up at this time or later, in milliseconds since the Unix epoch.
    pub since_ms: Option<i64>,
    pub until_ms: Option<i64>,
    pub slot: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    Match,
    /// All conditions hold but the one on the slot.
    OtherSlot,
    NoMatch,
}

impl DeadLetterFilter {
    fn fit(&self, letter: &DeadLetter<'_>) -> Fit {
        let one_of = |wanted: &[String], found: Option<&[u8]>| {
            wanted.is_empty() || wanted.iter().any(|wanted| Some(wanted.as_bytes()) == found)
        };
        let text = |text: Option<&str>, wanted: &[String]| one_of(wanted, text.map(str::as_bytes));
        let fits = (self.letters.is_empty() || self.letters.contains(&letter.at()))
            && one_of(&self.ids, letter.reason(ROW_HEADER))
            && one_of(&self.aggregates, letter.record.key)
            && text(Some(&letter.class()), &self.classes)
            && text(letter.text(TOPIC_HEADER).as_deref(), &self.topics)
            && text(letter.text(OUTBOX_HEADER).as_deref(), &self.outboxes)
            && self.since_ms.is_none_or(|since| letter.record.time_ms.is_some_and(|time| time >= since))
            && self.until_ms.is_none_or(|until| letter.record.time_ms.is_some_and(|time| time < until));
        let is_named = !self.letters.is_empty();
        let slot = self.slot.as_ref().filter(|_| !is_named);
        match slot.is_none_or(|slot| letter.reason(SLOT_HEADER) == Some(slot.as_bytes())) {
            _ if !fits => Fit::NoMatch,
            true => Fit::Match,
            false => Fit::OtherSlot,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{dead_letter, incoming};
    use super::*;
    use crate::route::dead_letter::CLASS_HEADER;
    use crate::sink::kafka::topic_reader::TopicRecord;

    #[test]
    fn a_scan_for_named_dead_letters_starts_at_the_first_of_each_partition() {
        let mut spans: OffsetRanges = [(0, 0..10), (1, 5..9), (2, 0..4)].into();
        let named = |names: &[&str]| DeadLetterFilter {
            letters: names.iter().map(|name| name.parse().unwrap()).collect(),
            ..DeadLetterFilter::default()
        };
        narrow(&mut spans, &named(&[]));
        assert_eq!(offsets(&spans), 18);
        narrow(&mut spans, &named(&["0:7", "0:3", "1:2", "2:9", "7:1"]));
        assert_eq!(spans, [(0, 3..10), (1, 5..9)].into());
    }

    #[test]
    fn the_number_of_counted_classes_is_bounded() {
        let mut counts = Counts::default();
        let mut take = |class: &str| {
            let record = incoming("0:0", &[(CLASS_HEADER, Some(class.as_bytes()))]);
            counts.take(&dead_letter(&record));
        };
        take(&"x".repeat(1 << 20));
        (0..1_000).for_each(|class| take(&class.to_string()));
        take("0");
        assert_eq!((counts.matched, counts.classes.len()), (1_002, CLASSES_MAX));
        assert_eq!((counts.classes["0"], counts.classes[OTHER_CLASSES]), (2, 982));
    }

    #[test]
    fn a_dead_letter_must_match_all_conditions_of_the_filter() {
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
        let letter = dead_letter(&record);
        let some = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let here = DeadLetterFilter {
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
        let fit = |wanted: &DeadLetterFilter| wanted.fit(&letter);
        assert_eq!((fit(&here), fit(&DeadLetterFilter::default())), (Fit::Match, Fit::Match));
        for other in [
            DeadLetterFilter { ids: some(&["77"]), ..here.clone() },
            DeadLetterFilter { aggregates: some(&["7"]), ..here.clone() },
            DeadLetterFilter { classes: some(&["rejected"]), ..here.clone() },
            DeadLetterFilter { topics: some(&["order"]), ..here.clone() },
            DeadLetterFilter { outboxes: some(&["outbox"]), ..here.clone() },
            DeadLetterFilter { since_ms: Some(6), ..here.clone() },
            DeadLetterFilter { until_ms: Some(5), ..here.clone() },
            DeadLetterFilter { letters: ["2:4".parse().unwrap()].into(), ..here.clone() },
        ] {
            assert_eq!(fit(&other), Fit::NoMatch, "{other:?}");
        }
        let elsewhere = DeadLetterFilter { slot: Some("t".to_owned()), ..here };
        assert_eq!(fit(&elsewhere), Fit::OtherSlot);
        assert_eq!(fit(&DeadLetterFilter { letters: ["2:3".parse().unwrap()].into(), ..elsewhere }), Fit::Match);

        // A missing field does not match the empty text.
        let bare = incoming("0:0", &[(CLASS_HEADER, Some(b"x"))]);
        let bare = TopicRecord { key: None, time_ms: None, ..bare };
        for wanted in [
            DeadLetterFilter { ids: some(&[""]), ..DeadLetterFilter::default() },
            DeadLetterFilter { aggregates: some(&[""]), ..DeadLetterFilter::default() },
            DeadLetterFilter { topics: some(&[""]), ..DeadLetterFilter::default() },
            DeadLetterFilter { outboxes: some(&[""]), ..DeadLetterFilter::default() },
            DeadLetterFilter { since_ms: Some(i64::MIN), ..DeadLetterFilter::default() },
            DeadLetterFilter { until_ms: Some(i64::MAX), ..DeadLetterFilter::default() },
        ] {
            assert_eq!(wanted.fit(&dead_letter(&bare)), Fit::NoMatch, "{wanted:?}");
        }
        let of_slot = DeadLetterFilter { slot: Some("s".to_owned()), ..DeadLetterFilter::default() };
        assert_eq!(of_slot.fit(&dead_letter(&bare)), Fit::OtherSlot);
    }

    #[test]
    fn the_last_marker_resolves_its_dead_letter_and_no_neighbouring_offset() {
        let mut resolved = Resolved::default();
        let at = |text: &str| text.parse::<At>().unwrap();
        let mut take = |letter: &str, outcome| resolved.take(&Marker { letter: at(letter), outcome, when: None });
        take("0:63", Outcome::Retried);
        take("0:4096", Outcome::Dropped);
        take("1:0", Outcome::Dropped);
        take("1:0", Outcome::Retried);
        take("7:9223372036854775806", Outcome::Retried);
        let outcome = |text| resolved.outcome(at(text));
        assert_eq!((outcome("0:63"), outcome("0:4096")), (Some(Outcome::Retried), Some(Outcome::Dropped)));
        assert_eq!(
            (outcome("1:0"), outcome("7:9223372036854775806")),
            (Some(Outcome::Retried), Some(Outcome::Retried))
        );
        for none in ["0:62", "0:64", "0:4095", "0:4097", "1:63", "2:63", "7:0"] {
            assert_eq!(outcome(none), None, "{none}");
        }
    }

    #[test]
    fn a_million_resolved_dead_letters_take_little_memory() {
        let mut resolved = Resolved::default();
        for offset in 0..1_000_000 {
            resolved.take(&Marker { letter: At { partition: 0, offset }, outcome: Outcome::Retried, when: None });
        }
        assert!(resolved.0.values().map(|chunk| size_of_val(&**chunk)).sum::<usize>() < 1 << 20);
    }
}
