//! The dead-letter topic: events that were given up. A marker behind a dead letter resolves it. Postgres is not asked.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinError;

use super::event::{Counts, Details, Event, Found, Header, More, NAME_CHARS_MAX, State, error_text, name};
use super::{Change, ChangeArgs, Chosen, Help, ListArgs, SHOWN_MAX, ShowArgs, Store, agreed};
use crate::cli::load::Loaded;
use crate::cli::output::{Outcome, Teller, note, print_json, print_line, print_report, warn};
use crate::cli::put;
use crate::cli::text::{aligned, cell, counted, notes, time};
use crate::clock::now_us;
use crate::config::Config;
use crate::config::layers::Flags;
use crate::dead_letters::settling::{LETTERS_AHEAD, choose};
use crate::dead_letters::{
    self as library, At, Ended, Header as LetterHeader, Letter, Outcome as Settles, Progress, Scan, Settling, Wanted,
    Which,
};
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::relay::stop::on_signals;
use crate::sink::kafka::options::{Options, weakened};

/// How many headers of a letter are shown, and how much of each.
const HEADERS_MAX: usize = 200;
const HEADER_CHARS_MAX: usize = 1_000;
/// How long Kafka has to answer before a letter is sent.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// The dead-letter topic.
#[derive(Debug, Args)]
pub struct DeadLetters {
    /// These letters, as `list` names them
    #[arg(value_name = "PARTITION:OFFSET")]
    pub named: Vec<At>,
    /// The replication slot whose letters are meant [env: WALRELAY_SLOT]
    #[arg(long, value_name = "NAME")]
    pub slot: Option<String>,
    /// A configuration file; delivery.dead_letter_topic in it names the topic [env: WALRELAY_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Kafka's bootstrap servers, with commas between [env: WALRELAY_BROKERS]
    #[arg(long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,
    /// Letters of all slots
    #[arg(long)]
    pub all_slots: bool,
}

/// Flags of `retry` and `drop` for dead letters.
#[derive(Debug, Args)]
pub struct SettleFlags {
    /// How long a stop waits for acks; 30s by default [env: WALRELAY_SHUTDOWN_TIMEOUT]
    #[arg(long, value_name = "DURATION")]
    pub shutdown_timeout: Option<String>,
}

impl Store for DeadLetters {
    const HELP: Help = HELP;
    const CLASSES: &'static [&'static str] = &["unroutable", "too-large", "rejected", "refused"];
    const NOUN: &'static str = "letter";
    type ChangeFlags = SettleFlags;

    fn is_named(&self) -> bool {
        !self.named.is_empty()
    }

    /// Reads the topic twice: the marker of a letter is behind it. In memory are the letters that are listed, two bits for
    /// each that is settled, and what is fetched ahead.
    async fn list(args: &ListArgs<Self>) -> Result<Found<Event>> {
        let topic = Topic::open(&args.chosen, Flags::new())?;
        let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
        let which = if args.all { Which::All } else { Which::Unsettled };
        let (events, counts) = topic.read(move |topic, say| topic.oldest(which, limit, say)).await?;
        Ok(Found { is_all: args.all, ..topic.found(events.into_values().collect(), counts) })
    }

    /// In memory are the letters that are shown, with their values where those were asked for.
    async fn show(args: &ShowArgs<Self>) -> Result<Found<Details>> {
        let topic = Topic::open(&args.chosen, Flags::new())?;
        let payload = args.payload;
        let (events, counts) = topic.read(move |topic, say| topic.details(payload, say)).await?;
        Ok(topic.found(events, counts))
    }

    /// The topic is read to the end it had at the beginning: first what is settled, then the letters, to be counted, then
    /// again, to be sent. In memory are two bits for each letter that is settled, what may be in flight
    /// (`kafka.max_in_flight_bytes`), and what is fetched ahead.
    async fn change(args: &ChangeArgs<Self>, change: Change) -> Outcome {
        let mut flags = Flags::new();
        put(&mut flags, "shutdown.timeout", args.more.shutdown_timeout.as_deref());
        let topic = Topic::open(&args.chosen, flags)?;
        let dry_run = args.dry_run;
        let (scan, mut plan) = topic.read(move |topic, say| topic.survey(change, dry_run, say)).await?;
        if let Some(error) = plan.fault() {
            print_report(args.chosen.json, &plan, &plan.text())?;
            return Err(error.into());
        }
        let outcome = match change {
            Change::Retry => Settles::Retried,
            Change::Drop => Settles::Dropped,
        };
        let (kafka, grace) = (&topic.config.kafka, topic.config.process.shutdown_timeout);
        let settling = Settling::new(kafka, topic.name(), outcome, grace)?;
        if !dry_run {
            for missing in settling.missing(&plan.topics(), CHECK_TIMEOUT).await? {
                plan.notes.push(format!("topic {missing} does not exist, or this user may not see it"));
            }
        }
        if !agreed(args, &plan, &plan.text(), plan.question()).await? {
            return Ok(());
        }
        let (sender, receiver) = mpsc::channel(LETTERS_AHEAD);
        let reader = Arc::clone(&topic);
        let reading = tokio::task::spawn_blocking(move || {
            choose(&scan, &reader.wanted, outcome, &reader.reserved(), &sender);
        });
        let (mut teller, of) = (Teller::new(), plan.chosen());
        let mut say = |progress: &Progress, answers: bool| {
            let silent = if answers { "" } else { "; Kafka does not answer" };
            teller.tell(|| format!("{} of {of} letters are settled{silent}", progress.settled));
        };
        let (progress, ended) = settling.run(receiver, on_signals()?, &mut say).await;
        (plan.sent, plan.newly_settled) = (progress.sent, progress.settled);
        if args.chosen.json {
            print_json(&plan)?;
        }
        match ended {
            Ok(Ended::All) => {
                // The thread has ended, unless it panicked.
                reading.await.map_err(|error| reader_ended(&error))?;
                if args.chosen.json { Ok(()) } else { print_line(plan.said()) }
            }
            Ok(Ended::Stopped) => Err(plan.stopped().into()),
            Err(error) => {
                note(plan.said());
                Err(error.into())
            }
        }
    }
}

/// Is told how many records of how many were read.
type Say<'s> = &'s mut dyn FnMut(u64, u64);

/// The topic, and the conditions for its letters.
#[derive(Debug)]
struct Topic {
    config: Config,
    wanted: Wanted,
    now_ms: i64,
}

impl Topic {
    fn open(chosen: &Chosen<DeadLetters>, mut flags: Flags) -> Result<Arc<Topic>> {
        let Chosen { store, filters, .. } = chosen;
        put(&mut flags, "slot.name", store.slot.as_deref());
        put(&mut flags, "kafka.brokers", store.brokers.as_deref());
        let config = Loaded::new(&flags, store.config.as_deref())?.config(false)?;
        warn(weakened(&config.kafka).iter().map(|weak| format!("Kafka's server is not verified: {weak}")));
        let now_ms = now_us() / 1_000;
        let span = filters.span(now_ms)?;
        let wanted = Wanted {
            letters: store.named.iter().copied().collect(),
            ids: filters.id.clone(),
            aggregates: filters.aggregate.clone(),
            classes: filters.class.clone(),
            topics: filters.topic.clone(),
            outboxes: filters.outbox.clone(),
            since_ms: span.since_ms,
            until_ms: span.until_ms,
            slot: (!store.all_slots).then(|| config.source.slot.to_string()),
        };
        Ok(Arc::new(Topic { config, wanted, now_ms }))
    }

    fn name(&self) -> &str {
        &self.config.delivery.dead_letter_topic
    }

    /// Topics that no letter may go to, whatever its headers say.
    fn reserved(&self) -> [String; 2] {
        [self.config.state.topic.clone(), self.name().to_owned()]
    }

    /// Reads on a thread that may wait.
    async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Topic, Say<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let topic = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || {
            let mut teller = Teller::new();
            let mut say =
                |read: u64, of: u64| teller.tell(|| format!("reading topic {}: {read} of {of} records", topic.name()));
            read(&topic, &mut say)
        });
        read.await.map_err(|error| reader_ended(&error))?
    }

    /// `None` where there is no such topic.
    fn scan(&self, wanted: &Wanted, say: Say<'_>) -> Result<Option<Scan>> {
        Scan::open(Options::reader(&self.config.kafka)?, self.name(), wanted, say)
    }

    /// The oldest letters, with their places and times.
    fn oldest(&self, which: Which, limit: usize, say: Say<'_>) -> Result<(Oldest, Option<library::Counts>)> {
        let mut oldest = Oldest::new();
        let Some(scan) = self.scan(&self.wanted, say)? else { return Ok((oldest, None)) };
        let counts = scan.letters(&self.wanted, which, say, &mut |letter, outcome| {
            keep(&mut oldest, limit, letter, outcome);
            ControlFlow::Continue(())
        })?;
        Ok((oldest, Some(counts)))
    }

    /// Letters that are not named by their place are looked for first: a marker is kept for a place that is known.
    fn details(&self, payload: bool, say: Say<'_>) -> Result<(Vec<Details>, Option<library::Counts>)> {
        let (mut wanted, mut found) = (self.wanted.clone(), None);
        if wanted.letters.is_empty() {
            let (oldest, counts) = self.oldest(Which::All, SHOWN_MAX, say)?;
            if oldest.is_empty() {
                return Ok((Vec::new(), counts));
            }
            (wanted.letters, found) = (oldest.into_keys().map(|(_, at)| at).collect(), counts);
        }
        let Some(scan) = self.scan(&wanted, say)? else { return Ok((Vec::new(), None)) };
        let (mut shown, mut left) = (BTreeMap::new(), wanted.letters.len());
        let counts = scan.letters(&wanted, Which::All, say, &mut |letter, outcome| {
            if shown.len() < SHOWN_MAX {
                let settled_at = scan.marker(letter.at()).and_then(|marker| marker.when.as_deref());
                shown.insert((letter.time_ms(), letter.at()), details(letter, outcome, settled_at, payload));
            }
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok((shown.into_values().collect(), found.or(Some(counts))))
    }

    fn survey(&self, change: Change, dry_run: bool, say: Say<'_>) -> Result<(Scan, LetterPlan)> {
        let Some(scan) = self.scan(&self.wanted, say)? else { return Err(self.missing()) };
        let (mut plan, reserved) = (LetterPlan::new(self.name(), change, dry_run), self.reserved());
        let counts = scan.letters(&self.wanted, Which::Unsettled, say, &mut |letter, _| {
            plan.letter(letter, &reserved);
            ControlFlow::Continue(())
        })?;
        if counts.matched == 0 {
            return Err(self.nothing(&counts));
        }
        plan.counts = Counts::of_letters(self.name(), counts);
        Ok((scan, plan))
    }

    /// `counts` is `None` where there is no such topic.
    fn found<E>(&self, events: Vec<E>, counts: Option<library::Counts>) -> Found<E> {
        let why_none = match &counts {
            None => Some(self.missing()),
            Some(counts) => (counts.matched == 0).then(|| self.nothing(counts)),
        };
        Found {
            counts: Counts::of_letters(self.name(), counts.unwrap_or_default()),
            events,
            now_ms: self.now_ms,
            is_all: true,
            is_full: true,
            why_none,
        }
    }

    fn missing(&self) -> Error {
        let topic = self.name();
        Error::new(Kind::NothingMatched, format!("topic {topic} does not exist, or this user may not see it")).remedy(
            format!(
                "where the relay's log says that the dead-letter topic refuses a letter, create it: kafka-topics --create --topic \
                 {topic} --partitions … --replication-factor …; otherwise nothing was given up yet, or \
                 delivery.dead_letter_topic is not what the relay has"
            ),
        )
    }

    fn nothing(&self, counts: &library::Counts) -> Error {
        let error = Error::new(Kind::NothingMatched, format!("no dead letter in topic {} matches", self.name()));
        let are = |count: u64| if count == 1 { "1 is".to_owned() } else { format!("{count} are") };
        error.remedy(match (counts.settled, counts.other_slots) {
            (0, 0) => "all conditions have to hold at once; what the topic's retention has deleted cannot come again"
                .to_owned(),
            (0, others) => format!("{} of other slots: name one with --slot, or all with --all-slots", are(others)),
            (settled, _) => format!("{} settled already: list them with --all", are(settled)),
        })
    }
}

/// Letters by their times and places.
type Oldest = BTreeMap<(Option<i64>, At), Event>;

fn keep(oldest: &mut Oldest, limit: usize, letter: &Letter<'_>, outcome: Option<Settles>) {
    oldest.insert((letter.time_ms(), letter.at()), event(letter, outcome, None));
    if oldest.len() > limit {
        oldest.pop_last();
    }
}

fn reader_ended(error: &JoinError) -> Error {
    Error::new(Kind::Bug, format!("the reader of dead letters ended: {error}"))
}

fn event(letter: &Letter<'_>, outcome: Option<Settles>, settled_at: Option<&str>) -> Event {
    let text = |text: Option<Cow<'_, str>>| text.map(|text| name(text.as_bytes()));
    Event {
        row_id: letter.row().map(name),
        outbox: text(letter.outbox()),
        key: letter.key().map(name),
        topic: text(letter.topic()),
        class: name(letter.class().as_bytes()),
        error: letter.error().map(|error| error_text(&error)),
        attempts: letter.attempts(),
        stored_at: letter.time_ms().and_then(time),
        state: State::DeadLetter {
            letter: letter.at().to_string(),
            slot: text(letter.slot()),
            original_position: text(letter.position()),
            value_bytes: letter.value().map(<[u8]>::len),
            omitted_value_bytes: letter.omitted_value_bytes(),
            settled: outcome.map(|outcome| outcome.to_string()),
            settled_at: settled_at.map(|when| name(when.as_bytes())),
        },
        stored_ms: letter.time_ms(),
    }
}

fn details(letter: &Letter<'_>, outcome: Option<Settles>, settled_at: Option<&str>, payload: bool) -> Details {
    let header = |(name, value): &LetterHeader<'_>| Header {
        name: cell(name.as_bytes(), HEADER_CHARS_MAX),
        value: value.map(|value| cell(value, HEADER_CHARS_MAX)),
    };
    let (value, value_hex) = match letter.value().filter(|_| payload).map(std::str::from_utf8) {
        None => (None, None),
        Some(Ok(text)) => (Some(text.to_owned()), None),
        Some(Err(_)) => (None, letter.value().map(hex)),
    };
    let more = More::DeadLetter {
        headers: letter.original_headers().iter().take(HEADERS_MAX).map(header).collect(),
        value,
        value_hex,
    };
    Details { event: event(letter, outcome, settled_at), more }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String does not fail.
        write!(text, "{byte:02x}").unwrap_or_default();
        text
    })
}

/// How many letters that cannot be sent are named.
const NAMED_MAX: usize = 100;
/// Topics that are counted one by one.
const TOPICS_MAX: usize = 1_000;
/// Under which those beyond are counted: no topic has such a name.
const OTHER_TOPICS: &str = "(others)";

/// A retry or drop of dead letters: what it would do, and what it did.
#[derive(Debug, Serialize)]
pub(super) struct LetterPlan {
    #[serde(rename = "ask")]
    change: Change,
    dry_run: bool,
    #[serde(flatten)]
    pub(super) counts: Counts,
    /// How many go to each topic.
    topics: BTreeMap<String, u64>,
    /// How many cannot be sent as they are.
    unsendable: u64,
    unsendable_letters: Vec<Unsendable>,
    /// How many were sent.
    pub(super) sent: u64,
    /// How many were settled by this.
    pub(super) newly_settled: u64,
    pub(super) notes: Vec<String>,
}

/// What to do about letters that cannot be sent as they are.
fn unsendable_remedy() -> Remedy {
    Remedy::from("where a letter cannot be sent as it is, ")
        .and(NextCommand::new("replay").option("id", "ID"))
        .and(" reads its row again, and walrelay dead-letters drop PARTITION:OFFSET settles the letter")
}

#[derive(Debug, Serialize)]
struct Unsendable {
    letter: String,
    outbox: Option<String>,
    row_id: Option<String>,
    why: String,
}

impl LetterPlan {
    /// Before a letter is looked at.
    pub(super) fn new(topic: &str, change: Change, dry_run: bool) -> LetterPlan {
        LetterPlan {
            change,
            dry_run,
            counts: Counts::of_letters(topic, library::Counts::default()),
            topics: BTreeMap::new(),
            unsendable: 0,
            unsendable_letters: Vec::new(),
            sent: 0,
            newly_settled: 0,
            notes: Vec::new(),
        }
    }

    /// Takes a letter that is meant.
    pub(super) fn letter(&mut self, letter: &Letter<'_>, reserved: &[String]) {
        if self.change == Change::Drop {
            return;
        }
        match letter.sendable(reserved) {
            Ok(topic) => {
                let known = self.topics.contains_key(topic.as_ref()) || self.topics.len() < TOPICS_MAX;
                let topic = if known { topic.as_ref() } else { OTHER_TOPICS };
                *self.topics.entry(topic.to_owned()).or_default() += 1;
            }
            Err(why) => {
                if self.unsendable == 0 {
                    self.notes.push(unsendable_remedy().to_string());
                }
                self.unsendable += 1;
                if self.unsendable_letters.len() < NAMED_MAX {
                    self.unsendable_letters.push(Unsendable {
                        letter: letter.at().to_string(),
                        outbox: letter.outbox().map(|outbox| name(outbox.as_bytes())),
                        row_id: letter.row().map(name),
                        why: why.to_string(),
                    });
                }
            }
        }
    }

    /// Letters that are settled if all goes well.
    pub(super) fn chosen(&self) -> u64 {
        self.counts.matched - self.unsendable
    }

    /// The topics letters go to.
    pub(super) fn topics(&self) -> Vec<&str> {
        self.topics.keys().map(String::as_str).filter(|topic| *topic != OTHER_TOPICS).collect()
    }

    /// Why nothing can be done.
    pub(super) fn fault(&self) -> Option<Error> {
        let cause = format!("none of {} can be sent as it is, and nothing was", counted(self.unsendable, "letter"));
        (self.chosen() == 0).then(|| Error::new(Kind::Event, cause).remedy(unsendable_remedy()))
    }

    /// What is asked before anything is changed.
    pub(super) fn question(&self) -> String {
        let letters = counted(self.chosen(), "letter");
        match self.change {
            Change::Retry => format!("Send {letters} again?"),
            Change::Drop => format!("Drop {letters}? These events are never sent."),
        }
    }

    /// What was done, in one line.
    pub(super) fn said(&self) -> String {
        let (letters, sent, settled) = (counted(self.chosen(), "letter"), self.sent, self.newly_settled);
        let left = match self.unsendable {
            0 => String::new(),
            left => format!("; left, as it cannot be sent: {}", counted(left, "letter")),
        };
        match self.change {
            Change::Retry => format!("of {letters}, {sent} were sent and {settled} settled{left}"),
            Change::Drop => format!("dropped {settled} of {letters}"),
        }
    }

    /// It was told to stop before its end.
    pub(super) fn stopped(&self) -> Error {
        Error::new(Kind::ShutdownTimeout, format!("told to stop: {}", self.said()))
            .remedy("for the rest, give the same command again: what is settled is left out")
    }

    /// What would be done.
    pub(super) fn text(&self) -> String {
        let mut text = self.counts.said() + "\n";
        if !self.topics.is_empty() {
            let topic = |(topic, count): (&String, &u64)| {
                [format!("  {}", cell(topic.as_bytes(), NAME_CHARS_MAX)), count.to_string()]
            };
            text += &format!("to be sent to\n{}\n", aligned(&self.topics.iter().map(topic).collect::<Vec<_>>()));
        }
        if self.unsendable > 0 {
            let rows: Vec<_> = self.unsendable_letters.iter().map(Unsendable::cells).collect();
            let letters = counted(self.unsendable, "letter");
            text += &format!("cannot be sent as it is: {letters}\n{}\n", aligned(&rows));
        }
        text + &notes(&self.notes)
    }
}

impl Unsendable {
    fn cells(&self) -> [String; 4] {
        let cell =
            |text: &Option<String>| text.as_ref().map_or("-".to_owned(), |text| cell(text.as_bytes(), NAME_CHARS_MAX));
        [format!("  {}", self.letter), cell(&self.outbox), format!("id {}", cell(&self.row_id)), self.why.clone()]
    }
}

const HELP: Help = Help {
    group: "\
Examples:
  walrelay dead-letters list --config walrelay.toml
  walrelay dead-letters show --config walrelay.toml 0:17
  walrelay dead-letters retry --config walrelay.toml --class too-large
  walrelay dead-letters drop --config walrelay.toml 0:17

A dead letter is an event that could not be delivered, with delivery.on_error = \"dead-letter\". It is in the topic delivery.dead_letter_topic. `walrelay parked` has the same commands for the table walrelay.parked. docs/failures.md has all of it.
",
    list: "\
Examples:
  walrelay dead-letters list --slot orders --brokers localhost:9092
  walrelay dead-letters list --config walrelay.toml --class too-large
  walrelay dead-letters list --config walrelay.toml --since 2h --all
  walrelay dead-letters list --config walrelay.toml --json | \\
    jq -r '.events[].row_id'

Nothing is changed, no consumer group is joined, and the database is not asked. Letters that are settled, which were sent again or dropped, are listed with --all. All conditions given have to hold. No payload is printed.
",
    show: "\
Examples:
  walrelay dead-letters show --config walrelay.toml 0:17
  walrelay dead-letters show --config walrelay.toml 0:17 --payload
  walrelay dead-letters show --config walrelay.toml --json \\
    --id 6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11

Shows key, headers and the size of the value; the value itself only with --payload. Letters that are settled are shown, too. At most 20 letters are shown. Nothing is changed.
",
    retry: "\
Examples:
  walrelay dead-letters retry --config walrelay.toml 0:17 0:18
  walrelay dead-letters retry --config walrelay.toml \\
    --class too-large --dry-run
  walrelay dead-letters retry --config walrelay.toml --aggregate order-17
  walrelay dead-letters retry --config walrelay.toml --all --yes --json

Sends each letter to its topic, with its key, value and headers and walrelay-replay: 1. Once Kafka has it, a marker in the dead-letter topic settles the letter. Letters of a key keep their order; they come after newer events of that key. After a crash in between, the next retry sends a letter again. A letter without a topic or a value is named and left: walrelay replay --id reads its row again.
",
    drop: "\
Examples:
  walrelay dead-letters drop --config walrelay.toml 0:17
  walrelay dead-letters drop --config walrelay.toml --older-than 30d
  walrelay dead-letters drop --config walrelay.toml --class unroutable \\
    --dry-run

Sends nothing but a marker for each letter, into the dead-letter topic: the letter is settled, and list leaves it out. The letters stay for as long as the topic's retention says.
",
    read_exit_codes: "
Exit codes:
  0   letters were listed or shown
  1   no letter matches, or there is no such topic
  2   the configuration or a flag is not valid
  30  Kafka cannot be reached (31: refuses)",
    change_exit_codes: "
Exit codes:
  0   all that can be were settled, others were left; or --dry-run showed them
  1   no letter matches, or there is no such topic
  2   the configuration or a flag is not valid, or the answer was not yes
  3   told to stop before all letters were settled
  20  retry: no letter can be sent as it is
  21  retry: Kafka refuses a letter; those that had arrived are settled
  30  Kafka cannot be reached (31: refuses)",
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letters::letter::Entry;
    use crate::dead_letters::{At, Header};
    use crate::route::dead_letter::{
        ATTEMPTS_HEADER, CLASS_HEADER, ERROR_HEADER, OMITTED_HEADER, OUTBOX_HEADER, ROW_HEADER, TOPIC_HEADER,
    };
    use crate::sink::kafka::topic_reader::Message;

    const NOW_MS: i64 = 1_772_366_400_000;

    fn take(at: &str, ago_ms: i64, outcome: Option<Settles>, headers: &[LetterHeader<'_>], oldest: &mut Oldest) {
        let headers = Some([&[(CLASS_HEADER, Some(&b"too-large"[..]))], headers].concat());
        let At { partition, offset } = at.parse().unwrap();
        let (key, value) = (Some(&b"order-17"[..]), Some(&b"canary"[..]));
        let record = Message { partition, offset, time_ms: Some(NOW_MS - ago_ms), key, value, headers };
        let Entry::Letter(letter) = Entry::of(&record) else { panic!("no letter") };
        keep(oldest, 3, &letter, outcome);
    }

    fn found(is_all: bool) -> Found<Event> {
        let mut oldest = Oldest::new();
        let long = "a record for topic orders has 2000000 bytes, more than message.max.bytes, 1048588";
        let headers: [LetterHeader<'_>; 4] = [
            (ERROR_HEADER, Some(long.as_bytes())),
            (TOPIC_HEADER, Some(b"orders")),
            (OUTBOX_HEADER, Some(b"public.outbox")),
            (ROW_HEADER, Some(b"6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11")),
        ];
        take("1:3", 5_000, None, &headers, &mut oldest);
        let settled = is_all.then_some(Settles::Retried);
        take("0:9", 300_000, settled, &[(ROW_HEADER, Some(b"7\n\x1b[2J"))], &mut oldest);
        take("0:11", 1_000, None, &[], &mut oldest);
        take("0:10", 2_000, None, &[], &mut oldest);
        let counts = library::Counts {
            matched: 4,
            classes: [("rejected".to_owned(), 1), ("too-large".to_owned(), 3)].into(),
            settled: 2,
            other_slots: 1,
            foreign: 1,
        };
        let counts = Counts::of_letters("dead", counts);
        let events = oldest.into_values().collect();
        Found { counts, events, now_ms: NOW_MS, is_all, is_full: true, why_none: None }
    }

    #[test]
    fn the_oldest_are_listed_and_lines_fit_the_terminal() {
        insta::assert_snapshot!(found(false).text(Some(120)), @r"
        age  class      outbox         row id                                key       topic   letter  error
        5m   too-large  -              7\n\u{1b}[2J                          order-17  -       0:9     -
        5s   too-large  public.outbox  6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11  order-17  orders  1:3     a record for topic order…
        2s   too-large  -              -                                     order-17  -       0:10    -

        4 letters: 1 rejected, 3 too-large
        The oldest 3 are listed; --limit lists more.
        2 more are settled; --all lists them.
        1 more is of other slots; --all-slots lists them.
        1 record in topic dead is no dead letter.
        ");
        assert!(found(true).text(Some(60)).lines().all(|line| line.chars().count() <= 60));
        let text = found(true).text(None);
        let lines: Vec<_> = text.lines().take(3).collect();
        assert!(lines[0].ends_with("  state    letter  error") && lines[1].ends_with("  retried  0:9     -"), "{text}");
        assert!(lines[2].contains("  -        1:3 ") && !text.contains("more are settled"), "{text}");
    }

    #[test]
    fn the_json_has_everything_but_the_payload() {
        let json = serde_json::to_value(found(true)).unwrap();
        let letter = &json["events"][1];
        assert_eq!((&letter["letter"], &letter["key"]), (&"1:3".into(), &"order-17".into()));
        assert_eq!((&letter["value_bytes"], &letter["stored_at"]), (&6.into(), &"2026-03-01T11:59:55.000Z".into()));
        assert_eq!(
            (&json["matched"], &json["classes"]["too-large"], &json["settled"]),
            (&4.into(), &3.into(), &2.into())
        );
        assert_eq!((&json["events"][0]["settled"], &letter["settled"]), (&"retried".into(), &serde_json::Value::Null));
        assert!(!json.to_string().contains("canary"));
    }

    fn shown(value: Option<&[u8]>, payload: bool) -> Details {
        let headers: [LetterHeader<'_>; 6] = [
            ("id", Some(b"7\n")),
            ("empty", None),
            (CLASS_HEADER, Some(b"rejected")),
            (ROW_HEADER, Some(b"7")),
            (ATTEMPTS_HEADER, Some(b"-1")),
            (OMITTED_HEADER, Some(b"2000000")),
        ];
        let headers = Some(headers.to_vec());
        let record = Message { partition: 0, offset: 17, time_ms: Some(60_000), key: None, value, headers };
        let Entry::Letter(letter) = Entry::of(&record) else { panic!("no letter") };
        details(&letter, Some(Settles::Dropped), Some("2026\n"), payload)
    }

    #[test]
    fn it_says_all_that_is_known_and_no_payload_unasked() {
        insta::assert_snapshot!(shown(Some(b"canary"), false).text(120_000), @r"
        row id  7
        stored  1970-01-01T00:01:00.000Z
        age     60s
        class   rejected
        state   dropped at 2026\n
        letter  0:17
        value   6 bytes
        headers
          id     7\n
          empty  (none)
        ");
        let json = serde_json::to_string(&shown(Some(b"canary"), false)).unwrap();
        assert!(!json.contains("canary") && !json.contains("value_hex"), "{json}");
        assert!(json.contains(r#""settled_at":"2026\n""#), "{json}");
    }

    #[test]
    fn a_payload_that_is_asked_for_is_text_or_digits_and_steers_no_terminal() {
        let text = shown(Some(b"{\"a\":\n\x1b[2J1}"), true).text(0);
        assert!(text.ends_with("value\n{\"a\":\n\u{fffd}[2J1}\n"), "{text}");
        assert!(shown(Some(b"\xff\x00"), true).text(0).ends_with("value\nff00\n"));
        assert!(shown(None, true).text(0).contains("none; 2000000 bytes were left out"));
    }

    fn plan(change: Change, topics: &[&str]) -> LetterPlan {
        let mut plan = LetterPlan::new("dead", change, true);
        for topic in topics {
            let mut headers: Vec<Header<'_>> = vec![(CLASS_HEADER, Some(b"rejected")), (ROW_HEADER, Some(b"7\n"))];
            headers.extend((!topic.is_empty()).then_some((TOPIC_HEADER, Some(topic.as_bytes()))));
            let headers = Some(headers);
            let record = Message { partition: 0, offset: 3, time_ms: None, key: None, value: None, headers };
            let Entry::Letter(letter) = Entry::of(&record) else { panic!("no letter") };
            plan.letter(&letter, &["dead".to_owned()]);
        }
        let matched = topics.len() as u64;
        let classes = [("rejected".to_owned(), matched)].into();
        plan.counts = Counts::of_letters("dead", library::Counts { matched, classes, ..library::Counts::default() });
        plan
    }

    #[test]
    fn it_says_what_is_sent_and_what_cannot_be() {
        let mut plan = plan(Change::Retry, &["orders", "orders", "users", "", "dead"]);
        assert!(plan.fault().is_none());
        assert_eq!(
            (plan.chosen(), plan.topics(), plan.question().as_str()),
            (3, vec!["orders", "users"], "Send 3 letters again?")
        );
        insta::assert_snapshot!(plan.text(), @r"
        5 letters: 5 rejected
        to be sent to
          orders  2
          users   1
        cannot be sent as it is: 2 letters
          0:3  -  id 7\n  the row made no topic
          0:3  -  id 7\n  what it names as its topic is none that it may go to
        note: where a letter cannot be sent as it is, walrelay replay --id ID reads its row again, and walrelay dead-letters drop PARTITION:OFFSET settles the letter
        ");
        (plan.sent, plan.newly_settled) = (2, 1);
        assert_eq!(
            plan.stopped().cause(),
            "told to stop: of 3 letters, 2 were sent and 1 settled; left, as it cannot be sent: 2 letters"
        );
    }

    #[test]
    fn what_none_of_can_be_sent_is_an_error_and_can_be_dropped() {
        let error = plan(Change::Retry, &[""]).fault().unwrap();
        assert!(error.kind() == Kind::Event && error.what_to_do().unwrap().contains("walrelay replay --id"), "{error}");
        let mut dropped = plan(Change::Drop, &["", "orders"]);
        assert!(dropped.fault().is_none() && dropped.question() == "Drop 2 letters? These events are never sent.");
        dropped.newly_settled = 2;
        assert_eq!(dropped.said(), "dropped 2 of 2 letters");
    }

    #[test]
    fn topics_beyond_count_are_counted_together() {
        let names: Vec<String> = (0..TOPICS_MAX + 7).map(|topic| format!("t{topic}")).collect();
        let plan = plan(Change::Retry, &names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((plan.topics().len(), plan.topics[OTHER_TOPICS]), (TOPICS_MAX, 7));
    }
}
