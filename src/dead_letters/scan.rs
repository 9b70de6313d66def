//! Markers first, then letters: whether a letter is settled is only said behind it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use serde::Serialize;

use super::At;
use super::letter::{Entry, Incoming, Letter};
use super::settled::{Marker, Outcome, Settled};
use super::wanted::{Fit, Wanted};
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
    /// Letters that are what was asked for.
    pub matched: u64,
    /// The same, by class.
    pub classes: BTreeMap<String, u64>,
    /// Letters that were what was asked for, and are settled.
    pub settled: u64,
    /// Those that came by another slot, and otherwise are what was asked for.
    pub other_slots: u64,
    /// Records that are no dead letters, and nothing else that walrelay wrote.
    pub foreign: u64,
}

/// Whether letters that are settled are looked at, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// Only those that are not.
    Unsettled,
    /// All.
    All,
}

/// Is told how far it is: records that were read, and of how many.
pub(crate) type Say<'s> = &'s mut dyn FnMut(u64, u64);

/// The topic as it was when this was opened: what comes later is not in it.
pub(crate) struct Scan {
    reader: TopicReader,
    topic: String,
    spans: Spans,
    settled: Settled,
    /// The last marker of each letter that was asked for by its place.
    markers: BTreeMap<At, Marker>,
}

impl Scan {
    /// Opens the topic, as far as `wanted` can be in it, and reads its markers. `None` where there is no such topic.
    ///
    /// Two bits are kept for each letter.
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
            if let Entry::Marker(found) = Entry::of(&Incoming::of(message)) {
                settled.take(&found);
                if wanted.letters.contains(&found.letter) {
                    markers.insert(found.letter, found);
                }
            }
            ControlFlow::Continue(())
        })?;
        Ok(Some(Scan { reader, topic: topic.to_owned(), spans, settled, markers }))
    }

    /// The last marker of a letter that was asked for by its place.
    pub(crate) fn marker(&self, letter: At) -> Option<&Marker> {
        self.markers.get(&letter)
    }

    /// Hands each letter that is wanted to `take`, in the order of its partition, until it says that it is enough. What
    /// is counted is what was read.
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
            let record = Incoming::of(message);
            let letter = match Entry::of(&record) {
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

/// Letters that are named are nowhere else; what settles them is behind them.
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

#[cfg(test)]
mod tests {
    use super::super::letter::tests::{incoming, letter};
    use super::*;
    use crate::route::dead_letter::CLASS_HEADER;

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
}
