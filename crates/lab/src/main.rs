//! `walrelay-demo`: runs walrelay on a private, temporary Postgres, and verifies the result.

use std::io::{ErrorKind, Write as _};

use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use walrelay::cli::{Output, error_text, usage_error};
use walrelay::relay::stop::{Stop, on_signals};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::printable::printable;
use walrelay_lab::demo::{self, DemoRun};

/// Runs walrelay on a private, temporary Postgres, and verifies the result.
#[derive(Debug, Parser)]
#[command(name = "walrelay-demo", version, max_term_width = 110, after_help = HELP)]
struct Cli {
    #[command(flatten)]
    options: DemoRun,
    #[command(flatten, next_help_heading = "Output")]
    output: Output,
}

const HELP: &str = "\
Examples:
  walrelay-demo
  walrelay-demo --seconds 30 --writers 8 --brokers localhost:9092

\"Commit to reader\" is the p50/p99 time from the commit to the arrival of the event at a \
consumer. It is a little longer than the commit-to-ack latency.

Exit codes:
  0   every event was verified
  1   not verified
  2   the flags are not valid
  4   Postgres' programs are missing";

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let typed = Cli::command().try_get_matches().unwrap_or_else(|error| {
        let words: Vec<_> = std::env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        match usage_error(&error, &words).filter(|_| error.use_stderr()) {
            Some(text) => end(Kind::Config.exit_code(), &text),
            None => error.exit(),
        }
    });
    let cli = Cli::from_arg_matches(&typed).unwrap_or_else(|error| error.exit());
    // Before librdkafka does: so OpenSSL registers no handler that frees its memory at exit, under
    // the hands of threads that have not ended.
    openssl_sys::init();
    if let Err(error) = shown(&cli).await {
        end(error.kind().exit_code(), &error_text(&error, &typed));
    }
}

/// Ends the process, whatever its threads do. Where standard error is closed, the exit code says it
/// alone.
fn end(code: u8, text: &str) -> ! {
    writeln!(std::io::stderr(), "{text}").unwrap_or_default();
    std::process::exit(code.into())
}

/// Runs the demo, and prints its outcome. Ctrl-C ends the run early.
async fn shown(cli: &Cli) -> Result<()> {
    let mut stop = on_signals()?;
    let report = Box::pin(demo::run(&cli.options, stop.at_least(Stop::Drain))).await?;
    let text = cli.output.line(&report, report.to_string().trim_end())?;
    match std::io::stdout()
        .lock()
        .write_all(printable(&text).as_bytes())
    {
        // A reader that has ended changes nothing: the exit code tells.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            return Err(Error::new(
                Kind::Prerequisite,
                format!("standard output cannot be written: {error}"),
            ));
        }
        Ok(()) | Err(_) => {}
    }
    if report.verified {
        Ok(())
    } else {
        Err(Error::new(Kind::NotVerified, report.summary()))
    }
}
