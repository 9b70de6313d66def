//! `walrelay dead-letters replay` and `discard`: looked at first, shown, confirmed, and then settled.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::report::Report;
use super::{SettleArgs, aside, filtered, no_topic, nothing, now_ms};
use crate::cli::output::{Outcome, note, print, print_json, print_line};
use crate::cli::prompt::shown_and_confirmed;
use crate::cli::put;
use crate::cli::verify::Teller;
use crate::config::Config;
use crate::config::layers::Flags;
use crate::dead_letters::settling::{LETTERS_AHEAD, choose};
use crate::dead_letters::{Counts, Ended, Outcome as Settles, Scan, Settling, Wanted, Which};
use crate::error::{Error, Kind, Result};
use crate::relay::stop::on_signals;
use crate::sink::options::Options;

/// How long Kafka has to answer before anything is asked or sent.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// Shows what would be settled, asks, and settles it.
///
/// The topic is read to the end it had at the beginning: first what is settled, then the letters, to be counted, then
/// again, to be sent. In memory are two bits for each letter that is settled, what may be in flight
/// (`kafka.max_in_flight_bytes`), and what is fetched ahead.
///
/// # Errors
/// [`Kind::NothingMatched`] where there is no such letter, or no topic; [`Kind::Config`] where nothing says which letters, and
/// where nobody confirms; [`Kind::Event`] where none can be sent as it is; [`Kind::ShutdownTimeout`] where it was told to stop;
/// what Kafka gives, with the letter it was about.
pub async fn settle(args: &SettleArgs, outcome: Settles) -> Outcome {
    let mut flags = Flags::new();
    put(&mut flags, "shutdown.timeout", args.shutdown_timeout.as_deref());
    let config = args.settings.load(flags)?;
    let wanted = wanted(args, &config)?;
    let topic = config.delivery.dead_letter_topic.as_str();
    let reserved = reserved(&config);
    let (scan, mut report) = survey(&config, &wanted, outcome, &reserved, args.dry_run).await?;
    if report.matched() == 0 {
        return Err(nothing(topic, report.counts()).into());
    }
    if let Some(error) = report.fault() {
        printed(args, &report)?;
        return Err(error.into());
    }
    if args.dry_run {
        return printed(args, &report);
    }
    let settling = Settling::new(&config.kafka, topic, outcome, config.process.shutdown_timeout)?;
    for missing in settling.missing(&report.topics(), CHECK_TIMEOUT).await? {
        report.note(format!("topic {missing} does not exist, or this user may not see it"));
    }
    let question = || report.question();
    shown_and_confirmed(&report.text(), (args.json, args.yes), question, "nothing was changed").await?;
    let (sender, receiver) = mpsc::channel(LETTERS_AHEAD);
    let reading = tokio::task::spawn_blocking(move || choose(&scan, &wanted, outcome, &reserved, &sender));
    let (mut teller, of) = (Teller::new(), report.chosen());
    let (progress, ended) = settling
        .run(receiver, on_signals()?, &mut |progress, answers| {
            let silent = if answers { "" } else { "; Kafka does not answer" };
            teller.tell(|| format!("{} of {of} letters are settled{silent}", progress.settled));
        })
        .await;
    report.settled(progress);
    if args.json {
        printed(args, &report)?;
    }
    match ended {
        Ok(Ended::All) => {
            // It has ended, unless it panicked.
            reading
                .await
                .map_err(|error| Error::new(Kind::Bug, format!("the reader of dead letters ended: {error}")))?;
            if args.json { Ok(()) } else { print_line(report.said()) }
        }
        Ok(Ended::Stopped) => Err(report.stopped().into()),
        Err(error) => {
            note(report.said());
            Err(error.into())
        }
    }
}

fn printed(args: &SettleArgs, report: &Report) -> Outcome {
    if !args.json {
        return print(&report.text());
    }
    print_json(report)
}

/// Nothing that is given is not everything.
fn wanted(args: &SettleArgs, config: &Config) -> Result<Wanted> {
    let is_empty = args.letter.is_empty() && args.filters.is_empty();
    if is_empty && !args.all {
        return Err(Error::new(Kind::Config, "nothing says which letters are meant").remedy(
            "name them as PARTITION:OFFSET, or by --id, --class, --since and so on; --all are all that are not settled",
        ));
    }
    if !is_empty && args.all {
        return Err(Error::new(Kind::Config, "--all, and conditions as well").remedy("leave out the one or the other"));
    }
    let all = Wanted { letters: args.letter.iter().copied().collect(), ..args.settings.wanted(config) };
    filtered(all, &args.filters, now_ms())
}

/// Topics that no letter may go to, whatever it says: that of dead letters, and that of the position.
fn reserved(config: &Config) -> Arc<[String]> {
    [config.state.topic.clone(), config.delivery.dead_letter_topic.clone()].into()
}

/// Reads what is settled, then the letters.
async fn survey(
    config: &Config,
    wanted: &Wanted,
    outcome: Settles,
    reserved: &Arc<[String]>,
    dry_run: bool,
) -> Result<(Scan, Report)> {
    let (options, topic) = (Options::reader(&config.kafka)?, config.delivery.dead_letter_topic.clone());
    let (wanted, reserved) = (wanted.clone(), Arc::clone(reserved));
    aside(move || {
        let mut teller = Teller::new();
        let mut say =
            |what: &str, read: u64, of: u64| teller.tell(|| format!("reading {what}: {read} of {of} records"));
        let scan = Scan::open(options, &topic, &wanted, &mut |read, of| say("what is settled", read, of))?;
        let Some(scan) = scan else { return Err(no_topic(&topic)) };
        let mut report = Report::new(&topic, outcome, dry_run);
        let mut say = |read, of| say("letters", read, of);
        let counts: Counts = scan.letters(&wanted, Which::Unsettled, &mut say, &mut |letter, _| {
            report.letter(letter, &reserved);
            ControlFlow::Continue(())
        })?;
        report.found(counts);
        Ok((scan, report))
    })
    .await
}
