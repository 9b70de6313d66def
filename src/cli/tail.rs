//! `walrelay tail`: records as a relay would publish them, without consuming an event.

use std::time::Duration;

use clap::Args;
use tokio::io::{AsyncWriteExt as _, Stdout};
use tokio::time::timeout;

use crate::cli::config::{self, SourceSettings};
use crate::cli::output::{Failure, Outcome, note, warn};
use crate::cli::peek::{Peek, Route, Subject, value};
use crate::config::layers::Settings;
use crate::relay::polls_because;
use crate::relay::stop::{Stop, on_signals};
use crate::sink::printed;
use walrelay_core::config::{OutboxConfig, SlotName};
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result};
use walrelay_core::event::Event;
use walrelay_core::route::Record;

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    #[command(flatten)]
    pub settings: SourceSettings,
    /// Print the events that commit from now on, also beside a running relay; without it, those
    /// that wait in the slot
    #[arg(long, short)]
    pub follow: bool,
    /// End after this number of records
    #[arg(
        long,
        short = 'n',
        value_name = "RECORDS",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub lines: Option<u64>,
    #[command(flatten)]
    pub filter: Filter,
}

/// The conditions for events. An event has to match all of them.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Filter {
    /// Events of these aggregates, by the record's key, or by the column outbox.columns.aggregateid
    /// where route.key is set; can be repeated
    #[arg(long, value_name = "KEY", num_args = 1..)]
    pub aggregate: Vec<String>,
    /// Events for one of these topics; can be repeated
    #[arg(long, value_name = "TOPIC", num_args = 1..)]
    pub topic: Vec<String>,
    /// Events of one of these types, by the text of the column outbox.columns.type; can be repeated
    #[arg(long = "type", value_name = "TYPE", num_args = 1..)]
    pub event_type: Vec<String>,
}

/// A reader that stands still keeps the slot from a relay, or WAL on the server.
const READER_PATIENCE: Duration = Duration::from_secs(300);

pub(super) const HELP: &str = "\
Examples:
  walrelay tail --slot orders
  walrelay tail --slot orders --follow --aggregate order-17
  walrelay tail --slot orders -f -n 1 | jq -r .value
  walrelay tail --config walrelay.toml -f --type OrderPlaced

The command prints a line of JSON for each record, as run --sink stdout does, with its payload. It \
consumes nothing and does not ask the bus for topics. Without --follow it prints what walrelay \
pending counts, and no other session may have the slot. With --follow it needs no slot and no \
relay: it creates a temporary slot, which ends with the command. The server keeps WAL for that \
slot only while the command runs. The command ends if its reader stands still for five minutes. \
The start waits for the end of running transactions, and standard error says when it follows. The role needs the rights of run, and \
--follow one of max_replication_slots.

Exit codes:
  0   all waiting events or --lines records are printed, or told to stop, or the reader has closed \
      the pipe
  2   the configuration is not valid
  4   standard output cannot be written, or was not read for five minutes
  10  Postgres cannot be reached, or closed the connection (11: refuses)
  12  the server is not fit for logical replication, or has no free slot
  13  without --follow: a relay, or another session, has the slot
  14  without --follow: the slot is missing, lost, or not walrelay's
  15  publication or table do not fit
  20  an event cannot be decoded, and those before it are printed";

pub(super) async fn tail(args: &TailArgs) -> Outcome {
    let settings = config::read(&args.settings, &args.settings.relay.common.file)?;
    let mut stop = on_signals()?;
    let mut peek = tokio::select! {
        biased;
        () = stop.at_least(Stop::Drain) => return Ok(()),
        peek = begin(args, &settings) => peek?,
    };
    let tail = Tail {
        filter: args.filter.clone(),
        left: args.lines.unwrap_or(u64::MAX),
        lines: Vec::new(),
    };
    let ended = tokio::select! {
        biased;
        () = stop.at_least(Stop::Drain) => Ok(()),
        ended = print_all(&mut peek, tail) => ended,
    };
    peek.end().await;
    ended
}

async fn begin(args: &TailArgs, settings: &Settings) -> Result<Peek> {
    let subject = Subject::look(settings, "tail").await?;
    if args.follow {
        let slot = subject.source.slot.clone();
        let peek = Box::pin(Peek::from_now(subject)).await?;
        note(format_args!(
            "following the outboxes of slot {slot}: what commits from now on is printed"
        ));
        return Ok(peek);
    }
    if let Some(why) = polls_because(&subject.source, &subject.facts) {
        return Err(no_slot(&subject.source.slot, &why));
    }
    let mut notes = Vec::new();
    let peek = Box::pin(Peek::at_slot(subject, Some(&mut notes))).await?;
    warn(notes);
    Ok(peek)
}

async fn print_all(peek: &mut Peek, mut tail: Tail) -> Outcome {
    let mut stdout = tokio::io::stdout();
    loop {
        let mut take = |route: &mut Route, event: &Event<'_>| tail.take(route, event);
        let read = peek.read(&mut take).await;
        let lines = std::mem::take(&mut tail.lines);
        if !lines.is_empty() {
            peek.beside(write(&mut stdout, &lines)).await??;
        }
        if !read? || tail.left == 0 {
            return Ok(());
        }
    }
}

/// A slow reader does not block the task.
async fn write(stdout: &mut Stdout, lines: &[u8]) -> Outcome {
    let written = async {
        stdout.write_all(lines).await?;
        stdout.flush().await
    };
    match timeout(READER_PATIENCE, written).await {
        Ok(written) => written.map_err(Failure::of_stdout),
        Err(_) => {
            let cause =
                "standard output was not read for five minutes, and the slot was given back";
            Err(Error::new(Kind::Prerequisite, cause)
                .remedy("write the records to a file, and read that")
                .into())
        }
    }
}

struct Tail {
    filter: Filter,
    left: u64,
    lines: Vec<u8>,
}

impl Tail {
    fn take(&mut self, Route { outbox, router }: &mut Route, event: &Event<'_>) -> Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        let line = match router.route(event) {
            Ok(routed) => {
                routed.with_record(|record| match self.filter.matches(event, outbox, record) {
                    true => printed(record).map(Some),
                    false => Ok(None),
                })?
            }
            Err(error) => {
                warn([format!("this event cannot be routed: {error}")]);
                None
            }
        };
        if let Some(line) = line {
            self.lines.extend(line);
            self.left -= 1;
        }
        Ok(())
    }
}

impl Filter {
    fn matches(&self, event: &Event<'_>, outbox: &OutboxConfig, record: &Record<'_>) -> bool {
        let is_one = |wanted: &[String], value: Option<&[u8]>| {
            wanted.iter().any(|it| Some(it.as_bytes()) == value)
        };
        let Filter {
            aggregate,
            topic,
            event_type,
        } = self;
        let is_aggregate = || {
            is_one(aggregate, record.key)
                || is_one(aggregate, value(event, outbox, &outbox.names.aggregateid))
        };
        (aggregate.is_empty() || is_aggregate())
            && (topic.is_empty() || topic.iter().any(|topic| topic == record.topic))
            && (event_type.is_empty()
                || is_one(event_type, value(event, outbox, &outbox.names.event_type)))
    }
}

fn no_slot(slot: &SlotName, why: &str) -> Error {
    let cause =
        format!("a relay of slot {slot} reads the table, and no slot has its events: {why}");
    Error::new(Kind::SlotUnusable, cause).remedy(
        Remedy::from("`")
            .and(NextCommand::new("pending").option("slot", slot))
            .and("` counts the unpublished rows; `tail --follow` prints what commits from now on"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_core::testing::{COLUMNS, Lab, outbox};

    /// The ids of the printed records.
    fn printed_of(filter: Filter, left: u64) -> String {
        let mut tail = Tail {
            filter,
            left,
            lines: Vec::new(),
        };
        let mut route = Route::new(outbox()).unwrap();
        let rows = [
            ("1", "order", "o-1", "Placed"),
            ("2", "order", "o-2", "Paid"),
            ("3", "user", "o-1", "Paid"),
        ];
        for (id, aggregate_type, aggregate_id, event_type) in rows {
            let values = [id, aggregate_type, aggregate_id, event_type, "{}"].map(Some);
            let lab = Lab::new(&route.outbox, &COLUMNS, &values);
            tail.take(&mut route, &lab.event()).unwrap();
        }
        let lines = String::from_utf8(tail.lines).unwrap();
        let id = |line: &str| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["headers"]["id"].clone()
        };
        lines
            .lines()
            .map(|line| id(line).as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn a_record_is_printed_if_all_filters_match_and_until_the_last_line() {
        let of = |aggregate: &[&str], topic: &[&str], event_type: &[&str]| {
            let [aggregate, topic, event_type] = [aggregate, topic, event_type]
                .map(|all| all.iter().map(|one| (*one).to_owned()).collect());
            Filter {
                aggregate,
                topic,
                event_type,
            }
        };
        for (filter, left, expected) in [
            (of(&[], &[], &[]), u64::MAX, "123"),
            (of(&[], &[], &[]), 2, "12"),
            (of(&["o-1"], &[], &[]), u64::MAX, "13"),
            (
                of(&["o-1", "o-2"], &["outbox.event.order"], &[]),
                u64::MAX,
                "12",
            ),
            (of(&["o-1"], &[], &["Paid"]), u64::MAX, "3"),
            (of(&[], &["outbox.event.orders"], &[]), u64::MAX, ""),
        ] {
            assert_eq!(
                printed_of(filter.clone(), left),
                expected,
                "{filter:?} {left}"
            );
        }
    }
}
