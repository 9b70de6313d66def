//! The dead-letter topic: events that were given up. A marker behind a dead letter resolves it. Postgres is not asked.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinError;

use super::{
    Change, ChangeArgs, Chosen, Counts, Event, Found, Help, ListArgs, NAME_CHARS_MAX, SHOWN_MAX, ShowArgs, Store,
    UNCHANGED, error_text, name,
};
use crate::cli::config::{self, FileArgs, flags};
use crate::cli::output::{Grid, Outcome, Output, cell, counted, hex, labelled, notes, print_report, warn};
use crate::cli::progress::{Bar, Sending};
use crate::cli::replay::end;
use crate::clock::now_us;
use crate::config::Config;
use crate::config::layers::Flags;
use crate::dead_letters::resolver::{LETTERS_AHEAD, choose};
use crate::dead_letters::{
    self as library, At, DeadLetter, DeadLetterFilter, DeadLetterScope, Header as LetterHeader, Outcome as Settles,
    Progress, Resolver, Say, Scan, SendEnd,
};
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::relay::stop::on_signals;
use crate::route::dead_letter::{
    ATTEMPTS_HEADER, ERROR_HEADER, OMITTED_HEADER, OUTBOX_HEADER, PLACE_HEADER, ROW_HEADER, SLOT_HEADER, TOPIC_HEADER,
};
use crate::sink::kafka::options::Options;

/// Headers of a dead letter that are shown, and characters of each.
const HEADERS_MAX: usize = 200;
const HEADER_CHARS_MAX: usize = 1_000;
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args, Serialize)]
pub(crate) struct DeadLetters {
    /// These dead letters, as `list` names them
    #[arg(value_name = "PARTITION:OFFSET")]
    #[serde(skip)]
    pub named: Vec<At>,
    /// The replication slot of the dead letters
    #[arg(long, value_name = "SLOT")]
    pub slot: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    pub file: FileArgs,
    /// Kafka's bootstrap servers, separated by commas
    #[arg(long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,
    /// Dead letters of all slots
    #[arg(long)]
    pub all_slots: bool,
}

#[derive(Debug, Args, Serialize)]
pub(crate) struct SettleFlags {
    /// How long a stop waits for acks
    #[arg(long, value_name = "DURATION")]
    pub shutdown_timeout: Option<String>,
}

impl Store for DeadLetters {
    const HELP: Help = HELP;
    const CLASSES: &'static [&'static str] = &["unroutable", "too-large", "rejected", "refused"];
    const NOUN: &'static str = "dead letter";
    type ChangeFlags = SettleFlags;

    fn is_named(&self) -> bool {
        !self.named.is_empty()
    }

    /// Reads the topic twice, because the marker of a dead letter is behind it. Memory holds the listed dead letters, a
    /// byte for each resolved one, and the records fetched ahead.
    async fn list(args: &ListArgs<Self>) -> Result<Found> {
        let topic = Topic::open(&args.chosen, args.output, Flags::new())?;
        let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
        let scope = if args.all { DeadLetterScope::All } else { DeadLetterScope::Unresolved };
        let (events, counts) = topic.read(move |topic, on_read| topic.oldest(scope, limit, on_read)).await?;
        let exists = counts.is_some();
        let found = topic.found(events.into_values().collect(), counts);
        let why_none = found.why_none.filter(|_| !exists || args.chosen.is_filtered());
        Ok(Found { is_all: args.all, why_none, ..found })
    }

    /// Memory holds the shown dead letters, with `--payload` their values, too.
    async fn show(args: &ShowArgs<Self>) -> Result<Found> {
        let topic = Topic::open(&args.chosen, args.output, Flags::new())?;
        let payload = args.payload;
        let (events, counts) = topic.read(move |topic, on_read| topic.details(payload, on_read)).await?;
        Ok(topic.found(events, counts))
    }

    /// Reads the topic up to its end at the beginning, three times: for the markers, to count the dead letters, and to send
    /// them. Memory holds a byte for each resolved dead letter, `kafka.max_in_flight_bytes` of records in flight, and
    /// the records fetched ahead.
    async fn change(args: &ChangeArgs<Self>, change: Change) -> Outcome {
        let topic = Topic::open(&args.chosen, args.consent.output, flags(&args.more))?;
        let dry_run = args.consent.dry_run;
        let (scan, mut plan) = topic.read(move |topic, on_read| topic.survey(change, dry_run, on_read)).await?;
        if let Some(error) = plan.fault() {
            print_report(args.consent.output, &plan, &plan.text())?;
            return Err(error.into());
        }
        let outcome = match change {
            Change::Retry => Settles::Retried,
            Change::Drop => Settles::Dropped,
        };
        let (kafka, grace) = (&topic.config.kafka, topic.config.shutdown.timeout);
        let resolver = Resolver::new(kafka, topic.name(), outcome, grace)?;
        if !dry_run {
            for missing in resolver.missing(&plan.topics(), CHECK_TIMEOUT).await? {
                plan.notes.push(format!("topic {missing} does not exist, or this user may not see it"));
            }
        }
        if !args.consent.given(&plan, &plan.text(), plan.question(), UNCHANGED).await? {
            return Ok(());
        }
        let (sender, receiver) = mpsc::channel(LETTERS_AHEAD);
        let reader = Arc::clone(&topic);
        let reading = tokio::task::spawn_blocking(move || {
            choose(&scan, &reader.wanted, outcome, &reader.reserved(), &sender);
        });
        let (mut sending, of) = (Sending::new(args.consent.output, "dead letters resolved"), plan.chosen());
        let mut on_read = |progress: &Progress, answers: bool| sending.at(progress.resolved, of, answers);
        let (progress, ended) = resolver.run(receiver, on_signals()?, &mut on_read).await;
        drop(sending);
        (plan.sent, plan.newly_settled) = (progress.sent, progress.resolved);
        print_report(args.consent.output, &plan, "")?;
        if ended == Ok(SendEnd::All) {
            // The thread has ended, unless it panicked.
            reading.await.map_err(|error| reader_ended(&error))?;
        }
        let rest = "give the same command again; it leaves resolved dead letters out";
        end(args.consent.output, ended, &plan.result(), rest)
    }
}

#[derive(Debug)]
struct Topic {
    config: Config,
    wanted: DeadLetterFilter,
    output: Output,
    now_ms: i64,
}

impl Topic {
    fn open(chosen: &Chosen<DeadLetters>, output: Output, mut more: Flags) -> Result<Arc<Topic>> {
        let Chosen { store, filters } = chosen;
        more.extend(flags(store));
        let config = config::config(&config::settings(&more, &store.file)?, false)?;
        warn(config::unverified(&config));
        let now_ms = now_us() / 1_000;
        let span = filters.span(now_ms)?;
        let wanted = DeadLetterFilter {
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
        Ok(Arc::new(Topic { config, wanted, output, now_ms }))
    }

    fn name(&self) -> &str {
        &self.config.delivery.dead_letter_topic
    }

    /// Topics that no dead letter may go to, whatever its headers say.
    fn reserved(&self) -> [String; 2] {
        [self.config.state.topic.clone(), self.name().to_owned()]
    }

    /// Reads on a thread that may block.
    async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Topic, Say<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let topic = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || {
            let mut bar = Bar::new(topic.output);
            let mut on_read =
                |read: u64, of: u64| bar.at(read, Some(of), || format!("records of topic {} read", topic.name()));
            read(&topic, &mut on_read)
        });
        read.await.map_err(|error| reader_ended(&error))?
    }

    fn scan(&self, wanted: &DeadLetterFilter, on_read: Say<'_>) -> Result<Option<Scan>> {
        Scan::open(Options::reader(&self.config.kafka)?, self.name(), wanted, on_read)
    }

    fn oldest(
        &self,
        scope: DeadLetterScope,
        limit: usize,
        on_read: Say<'_>,
    ) -> Result<(Oldest, Option<library::Counts>)> {
        let mut oldest = Oldest::new();
        let Some(scan) = self.scan(&self.wanted, on_read)? else { return Ok((oldest, None)) };
        let counts = scan.letters(&self.wanted, scope, on_read, &mut |letter, outcome| {
            keep(&mut oldest, limit, letter, event(letter, outcome, None, self.now_ms));
            ControlFlow::Continue(())
        })?;
        Ok((oldest, Some(counts)))
    }

    /// Finds dead letters that are not named by their place first: the scan keeps markers of known places only.
    fn details(&self, payload: bool, on_read: Say<'_>) -> Result<(Vec<Event>, Option<library::Counts>)> {
        let (mut wanted, mut found) = (self.wanted.clone(), None);
        if wanted.letters.is_empty() {
            let (oldest, counts) = self.oldest(DeadLetterScope::All, SHOWN_MAX, on_read)?;
            if oldest.is_empty() {
                return Ok((Vec::new(), counts));
            }
            (wanted.letters, found) = (oldest.into_keys().map(|(_, at)| at).collect(), counts);
        }
        let Some(scan) = self.scan(&wanted, on_read)? else { return Ok((Vec::new(), None)) };
        let (mut shown, mut left) = (BTreeMap::new(), wanted.letters.len());
        let counts = scan.letters(&wanted, DeadLetterScope::All, on_read, &mut |letter, outcome| {
            if shown.len() < SHOWN_MAX {
                let settled_at = scan.marker(letter.at()).and_then(|marker| marker.when.as_deref());
                let mut event = event(letter, outcome, settled_at, self.now_ms);
                add_details(&mut event, letter, payload);
                shown.insert((letter.record.time_ms, letter.at()), event);
            }
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok((shown.into_values().collect(), found.or(Some(counts))))
    }

    fn survey(&self, change: Change, dry_run: bool, on_read: Say<'_>) -> Result<(Scan, Resolution)> {
        let Some(scan) = self.scan(&self.wanted, on_read)? else { return Err(self.missing()) };
        let (mut plan, reserved) = (Resolution::new(self.name(), change, dry_run), self.reserved());
        let counts = scan.letters(&self.wanted, DeadLetterScope::Unresolved, on_read, &mut |letter, _| {
            plan.letter(letter, &reserved);
            ControlFlow::Continue(())
        })?;
        if counts.matched == 0 {
            return Err(self.nothing(&counts));
        }
        plan.counts = Counts::of_letters(self.name(), counts);
        Ok((scan, plan))
    }

    /// `counts` is `None` if the topic does not exist.
    fn found(&self, events: Vec<Event>, counts: Option<library::Counts>) -> Found {
        let why_none = match &counts {
            None => Some(self.missing()),
            Some(counts) => (counts.matched == 0).then(|| self.nothing(counts)),
        };
        Found {
            counts: Counts::of_letters(self.name(), counts.unwrap_or_default()),
            events,
            is_all: true,
            is_full: true,
            why_none,
        }
    }

    fn missing(&self) -> Error {
        let topic = self.name();
        Error::new(Kind::NothingMatched, format!("topic {topic} does not exist, or this user may not see it")).remedy(
            format!(
                "if the relay's log says that the topic refuses a dead letter, create the topic: kafka-topics --bootstrap-server … --create --topic \
                 {topic}; otherwise no event was given up yet, or the relay has another delivery.dead_letter_topic"
            ),
        )
    }

    fn nothing(&self, counts: &library::Counts) -> Error {
        let error = Error::new(Kind::NothingMatched, format!("no dead letter in topic {} matches", self.name()));
        let are = |count: u64| if count == 1 { "1 is".to_owned() } else { format!("{count} are") };
        error.remedy(match (counts.resolved, counts.other_slots) {
            (0, 0) => "a dead letter has to match all conditions; the topic's retention may have deleted it".to_owned(),
            (0, others) => format!("{} of other slots: name one with --slot, or all with --all-slots", are(others)),
            (settled, _) => format!("{} resolved already: list them with --all", are(settled)),
        })
    }
}

type Oldest = BTreeMap<(Option<i64>, At), Event>;

fn keep(oldest: &mut Oldest, limit: usize, letter: &DeadLetter<'_>, event: Event) {
    oldest.insert((letter.record.time_ms, letter.at()), event);
    if oldest.len() > limit {
        oldest.pop_last();
    }
}

fn reader_ended(error: &JoinError) -> Error {
    Error::new(Kind::Bug, format!("the reader of dead letters ended: {error}"))
}

fn event(letter: &DeadLetter<'_>, outcome: Option<Settles>, settled_at: Option<&str>, now_ms: i64) -> Event {
    let text = |text: Option<Cow<'_, str>>| text.map(|text| name(text.as_bytes()));
    let (bytes, omitted) = (letter.record.value.map(<[u8]>::len), letter.number::<u64>(OMITTED_HEADER));
    let mut event = Event::default();
    event.add("row_id", "row id", letter.reason(ROW_HEADER).map(name));
    event.add("outbox", "outbox", text(letter.text(OUTBOX_HEADER)));
    event.add("key", "key", letter.record.key.map(name));
    event.add("topic", "topic", text(letter.text(TOPIC_HEADER)));
    event.add_times(letter.record.time_ms, now_ms);
    event.add("class", "class", Some(name(letter.class().as_bytes())));
    event.add("error", "error", letter.text(ERROR_HEADER).map(|error| error_text(&error)));
    event.add("attempts", "attempts", letter.number::<u64>(ATTEMPTS_HEADER));
    event.add_data("settled", outcome.map(|outcome| outcome.to_string()));
    let at = settled_at.map(|when| name(when.as_bytes()));
    let at_text = at.as_ref().map(|when| format!(" at {when}")).unwrap_or_default();
    event.add_text("state", outcome.map(|outcome| format!("{outcome}{at_text}")));
    if at.is_some() {
        event.add_data("settled_at", at);
    }
    event.add("letter", "dead letter", Some(letter.at().to_string()));
    event.add("slot", "slot", text(letter.text(SLOT_HEADER)));
    event.add("original_position", "position", text(letter.text(PLACE_HEADER)));
    event.add_data("value_bytes", bytes);
    event.add_data("omitted_value_bytes", omitted);
    event.add_text(
        "value",
        Some(match (bytes, omitted) {
            (Some(bytes), _) => format!("{bytes} bytes"),
            (None, Some(omitted)) => format!("none; {omitted} bytes were omitted; the row has them"),
            (None, None) => "none".to_owned(),
        }),
    );
    event
}

#[derive(Serialize)]
struct Header {
    name: String,
    value: Option<String>,
}

/// Adds what only `show` shows; the value in hexadecimal digits if it is not text.
fn add_details(event: &mut Event, letter: &DeadLetter<'_>, payload: bool) {
    let header = |(name, value): &LetterHeader<'_>| Header {
        name: cell(name.as_bytes(), HEADER_CHARS_MAX),
        value: value.map(|value| cell(value, HEADER_CHARS_MAX)),
    };
    let headers: Vec<_> = letter.original.iter().take(HEADERS_MAX).map(header).collect();
    event.add_data("headers", &headers);
    if !headers.is_empty() {
        let line = |Header { name, value }: Header| (format!("  {name}"), value.unwrap_or("(none)".to_owned()));
        event.add_part("headers", labelled(headers.into_iter().map(line)).trim_end().to_owned());
    }
    let Some(value) = letter.record.value.filter(|_| payload) else { return };
    let (key, text) = match std::str::from_utf8(value) {
        Ok(text) => ("value", text.to_owned()),
        Err(_) => ("value_hex", hex(value)),
    };
    event.add_data(key, &text);
    event.add_part("value", text);
}

/// The greatest number of listed dead letters without a record to send; all are counted.
const LISTED_MAX: usize = 100;
const TOPICS_MAX: usize = 1_000;
/// Has the count of all other topics. It is not a valid topic name.
const OTHER_TOPICS: &str = "(others)";

/// A retry or drop of dead letters: the plan, and then the result.
#[derive(Debug, Serialize)]
struct Resolution {
    #[serde(rename = "ask")]
    change: Change,
    dry_run: bool,
    #[serde(flatten)]
    counts: Counts,
    topics: BTreeMap<String, u64>,
    unsendable: u64,
    unsendable_letters: Vec<Unsendable>,
    sent: u64,
    newly_settled: u64,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Unsendable {
    letter: String,
    outbox: Option<String>,
    row_id: Option<String>,
    why: String,
}

fn unsendable_remedy() -> Remedy {
    Remedy::from("for a dead letter without a record to send, ")
        .and(NextCommand::new("replay").option("id", "ID"))
        .and(" reads its row again, and walrelay dead-letters drop PARTITION:OFFSET resolves the dead letter")
}

impl Resolution {
    fn new(topic: &str, change: Change, dry_run: bool) -> Resolution {
        Resolution {
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

    fn letter(&mut self, letter: &DeadLetter<'_>, reserved: &[String]) {
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
                if self.unsendable_letters.len() < LISTED_MAX {
                    self.unsendable_letters.push(Unsendable {
                        letter: letter.at().to_string(),
                        outbox: letter.text(OUTBOX_HEADER).map(|outbox| name(outbox.as_bytes())),
                        row_id: letter.reason(ROW_HEADER).map(name),
                        why: why.to_string(),
                    });
                }
            }
        }
    }

    fn chosen(&self) -> u64 {
        self.counts.matched - self.unsendable
    }

    fn topics(&self) -> Vec<&str> {
        self.topics.keys().map(String::as_str).filter(|topic| *topic != OTHER_TOPICS).collect()
    }

    fn fault(&self) -> Option<Error> {
        let cause = format!("none of {} has a record to send; nothing was sent", dead_letters(self.unsendable));
        (self.chosen() == 0).then(|| Error::new(Kind::Event, cause).remedy(unsendable_remedy()))
    }

    fn question(&self) -> String {
        let letters = dead_letters(self.chosen());
        match self.change {
            Change::Retry => format!("Send {letters} again?"),
            Change::Drop => format!("Drop {letters}? walrelay never sends these events."),
        }
    }

    fn result(&self) -> String {
        let (letters, sent, resolved) = (dead_letters(self.chosen()), self.sent, self.newly_settled);
        let left = match self.unsendable {
            0 => String::new(),
            left => format!("; {} had no record to send", dead_letters(left)),
        };
        match self.change {
            Change::Retry => format!("of {letters}, {sent} were sent and {resolved} resolved{left}"),
            Change::Drop => format!("dropped {resolved} of {letters}"),
        }
    }

    fn text(&self) -> String {
        let mut text = self.counts.text() + "\n";
        if !self.topics.is_empty() {
            let line = |(topic, count): (&String, &u64)| {
                (format!("  {}", cell(topic.as_bytes(), NAME_CHARS_MAX)), count.to_string())
            };
            text += &format!("to be sent to\n{}", labelled(self.topics.iter().map(line)));
        }
        if self.unsendable > 0 {
            let cell = |text: &Option<String>| cell(text.as_deref().unwrap_or("-").as_bytes(), NAME_CHARS_MAX);
            let mut grid = Grid::default();
            for Unsendable { letter, outbox, row_id, why } in &self.unsendable_letters {
                grid.row([&format_args!("  {letter}"), &cell(outbox), &format_args!("id {}", cell(row_id)), why]);
            }
            text += &format!("no record to send: {}\n{}", dead_letters(self.unsendable), grid.text());
        }
        text + &notes(&self.notes)
    }
}

fn dead_letters(count: u64) -> String {
    counted(count, "dead letter")
}

const HELP: Help = Help {
    group: "\
Examples:
  walrelay dead-letters list --config walrelay.toml
  walrelay dead-letters show --config walrelay.toml 0:17
  walrelay dead-letters retry --config walrelay.toml --class too-large
  walrelay dead-letters drop --config walrelay.toml 0:17

A dead letter is an undelivered event in the topic delivery.dead_letter_topic, with delivery.on_error = \"dead-letter\". `walrelay parked` has the same commands for the table walrelay.parked. docs/how-to/handle-undelivered-events.md describes both.
",
    list: "\
Examples:
  walrelay dead-letters list --slot orders --brokers localhost:9092
  walrelay dead-letters list --config walrelay.toml --since 2h --all
  walrelay dead-letters list --config walrelay.toml --json | \\
    jq -r '.events[].row_id'

Lists dead letters that are neither sent again nor dropped; --all lists the others, too. An event has to match all conditions. The command prints no payload, changes nothing, joins no consumer group and does not ask the database.
",
    show: "\
Examples:
  walrelay dead-letters show --config walrelay.toml 0:17 --payload
  walrelay dead-letters show --config walrelay.toml --json \\
    --id 6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11

Shows key, headers and the size of the value of at most 20 dead letters, resolved ones included; --payload shows the value, too. The command changes nothing.
",
    retry: "\
Examples:
  walrelay dead-letters retry --config walrelay.toml 0:17 0:18
  walrelay dead-letters retry --config walrelay.toml \\
    --class too-large --dry-run
  walrelay dead-letters retry --config walrelay.toml --all --yes --json

Sends each dead letter to its topic, with its key, value and headers and walrelay-replay: 1. After the ack, a marker in the dead-letter topic resolves the dead letter. Dead letters of a key keep their order and come after newer events of that key. After a crash in between, the next retry sends a dead letter again. The command names and leaves a dead letter without a topic or a value: walrelay replay --id reads its row again.
",
    drop: "\
Examples:
  walrelay dead-letters drop --config walrelay.toml 0:17
  walrelay dead-letters drop --config walrelay.toml --older-than 30d
  walrelay dead-letters drop --config walrelay.toml --class unroutable \\
    --dry-run

Writes a marker for each dead letter into the dead-letter topic, and sends nothing else: the dead letter is resolved, and list leaves it out. The dead letters stay for the topic's retention.
",
    read_exit_codes: "
Exit codes:
  0   dead letters were listed or shown; list without conditions: none is unresolved
  1   no dead letter matches, or the topic does not exist
  2   the configuration or a flag is not valid
  30  Kafka cannot be reached (31: refuses)",
    change_exit_codes: "
Exit codes:
  0   all dead letters with a record to send are resolved; or --dry-run showed them
  1   no dead letter matches, or the topic does not exist
  2   the configuration or a flag is not valid, or the answer was not yes
  3   told to stop before all dead letters were resolved
  20  retry: no dead letter has a record to send
  21  retry: Kafka rejects a dead letter; those with an ack are resolved
  30  Kafka cannot be reached (31: refuses)",
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letters::{At, Entry};
    use crate::route::dead_letter::CLASS_HEADER;
    use crate::sink::kafka::topic_reader::TopicRecord;

    const NOW_MS: i64 = 1_772_366_400_000;

    fn take(at: &str, ago_ms: i64, outcome: Option<Settles>, headers: &[LetterHeader<'_>], oldest: &mut Oldest) {
        let headers = Some([&[(CLASS_HEADER, Some(&b"too-large"[..]))], headers].concat());
        let At { partition, offset } = at.parse().unwrap();
        let (key, value) = (Some(&b"order-17"[..]), Some(&b"canary"[..]));
        let record = TopicRecord { partition, offset, time_ms: Some(NOW_MS - ago_ms), key, value, headers };
        let Entry::DeadLetter(letter) = Entry::of(&record) else { panic!("no dead letter") };
        keep(oldest, 3, &letter, event(&letter, outcome, None, NOW_MS));
    }

    fn found(is_all: bool) -> Found {
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
            resolved: 2,
            other_slots: 1,
            foreign: 1,
        };
        let counts = Counts::of_letters("dead", counts);
        let events = oldest.into_values().collect();
        Found { counts, events, is_all, is_full: true, why_none: None }
    }

    #[test]
    fn the_oldest_dead_letters_are_listed_in_lines_that_fit_the_terminal() {
        insta::assert_snapshot!(found(false).text(Some(120)), @r"
        age  class      row id                                dead letter  key       topic   outbox         error
        5m   too-large  7\n\u{1b}[2J                          0:9          order-17  -       -              -
        5s   too-large  6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11  1:3          order-17  orders  public.outbox  a record for topic …
        2s   too-large  -                                     0:10         order-17  -       -              -

        4 dead letters: 1 rejected, 3 too-large
        The oldest 3 are listed; --limit lists more.
        2 more are resolved; --all lists them.
        1 more is of other slots; --all-slots lists them.
        1 record in topic dead is not a dead letter.
        ");
        let text = found(true).text(None);
        let lines: Vec<_> = text.lines().take(3).collect();
        assert!(lines[0].contains("  dead letter  state  ") && lines[1].contains("  0:9          retried  "), "{text}");
        assert!(lines[2].contains("  1:3          -  ") && !text.contains("more are resolved"), "{text}");
    }

    fn shown(value: Option<&[u8]>, payload: bool) -> Event {
        let headers: [LetterHeader<'_>; 6] = [
            ("id", Some(b"7\n")),
            ("empty", None),
            (CLASS_HEADER, Some(b"rejected")),
            (ROW_HEADER, Some(b"7")),
            (ATTEMPTS_HEADER, Some(b"-1")),
            (OMITTED_HEADER, Some(b"2000000")),
        ];
        let headers = Some(headers.to_vec());
        let record = TopicRecord { partition: 0, offset: 17, time_ms: Some(60_000), key: None, value, headers };
        let Entry::DeadLetter(letter) = Entry::of(&record) else { panic!("no dead letter") };
        let mut event = event(&letter, Some(Settles::Dropped), Some("2026\n"), 120_000);
        add_details(&mut event, &letter, payload);
        event
    }

    #[test]
    fn details_of_a_dead_letter_leave_out_the_payload_by_default() {
        insta::assert_snapshot!(shown(Some(b"canary"), false).text(), @r"
        row id       7
        stored       1970-01-01T00:01:00.000Z
        age          60s
        class        rejected
        state        dropped at 2026\n
        dead letter  0:17
        value        6 bytes
        headers
          id     7\n
          empty  (none)
        ");
        let json = serde_json::to_string(&shown(Some(b"canary"), false)).unwrap();
        assert!(!json.contains("canary") && !json.contains("value_hex"), "{json}");
        assert!(json.contains(r#""settled_at":"2026\n""#), "{json}");
    }

    #[test]
    fn a_requested_payload_is_text_without_control_characters_or_hex() {
        let text = shown(Some(b"{\"a\":\n\x1b[2J1}"), true).text();
        assert!(text.ends_with("value\n{\"a\":\n\u{fffd}[2J1}\n"), "{text}");
        assert!(shown(Some(b"\xff\x00"), true).text().ends_with("value\nff00\n"));
        assert!(shown(None, true).text().contains("none; 2000000 bytes were omitted"));
    }

    fn plan(change: Change, topics: &[&str]) -> Resolution {
        let mut plan = Resolution::new("dead", change, true);
        for topic in topics {
            let mut headers: Vec<LetterHeader<'_>> =
                vec![(CLASS_HEADER, Some(b"rejected")), (ROW_HEADER, Some(b"7\n"))];
            headers.extend((!topic.is_empty()).then_some((TOPIC_HEADER, Some(topic.as_bytes()))));
            let headers = Some(headers);
            let record = TopicRecord { partition: 0, offset: 3, time_ms: None, key: None, value: None, headers };
            let Entry::DeadLetter(letter) = Entry::of(&record) else { panic!("no dead letter") };
            plan.letter(&letter, &["dead".to_owned()]);
        }
        let matched = topics.len() as u64;
        let classes = [("rejected".to_owned(), matched)].into();
        plan.counts = Counts::of_letters("dead", library::Counts { matched, classes, ..library::Counts::default() });
        plan
    }

    #[test]
    fn a_retry_plan_lists_what_is_sent_by_topic_and_what_cannot_be_sent() {
        let mut plan = plan(Change::Retry, &["orders", "orders", "users", "", "dead"]);
        assert!(plan.fault().is_none());
        assert_eq!(
            (plan.chosen(), plan.topics(), plan.question().as_str()),
            (3, vec!["orders", "users"], "Send 3 dead letters again?")
        );
        insta::assert_snapshot!(plan.text(), @r"
        5 dead letters: 5 rejected
        to be sent to
          orders  2
          users   1
        no record to send: 2 dead letters
          0:3  -  id 7\n  the row made no topic
          0:3  -  id 7\n  what it names as its topic is none that it may go to
        note: for a dead letter without a record to send, walrelay replay --id ID reads its row again, and walrelay dead-letters drop PARTITION:OFFSET resolves the dead letter
        ");
        (plan.sent, plan.newly_settled) = (2, 1);
        assert_eq!(
            plan.result(),
            "of 3 dead letters, 2 were sent and 1 resolved; 2 dead letters had no record to send"
        );
    }

    #[test]
    fn a_retry_without_any_sendable_dead_letter_is_an_error_and_a_drop_is_not() {
        let error = plan(Change::Retry, &[""]).fault().unwrap();
        assert!(error.kind() == Kind::Event && error.what_to_do().unwrap().contains("walrelay replay --id"), "{error}");
        let mut dropped = plan(Change::Drop, &["", "orders"]);
        assert!(
            dropped.fault().is_none()
                && dropped.question() == "Drop 2 dead letters? walrelay never sends these events."
        );
        dropped.newly_settled = 2;
        assert_eq!(dropped.result(), "dropped 2 of 2 dead letters");
    }

    #[test]
    fn topics_beyond_the_limit_are_counted_together() {
        let names: Vec<String> = (0..TOPICS_MAX + 7).map(|topic| format!("t{topic}")).collect();
        let plan = plan(Change::Retry, &names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((plan.topics().len(), plan.topics[OTHER_TOPICS]), (TOPICS_MAX, 7));
    }
}
