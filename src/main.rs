//! The program: one command, its exit code, and at most three lines about what went wrong.

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _};
use walrelay::cli::{Cli, dispatch, error_text, usage_error};
use walrelay_core::error::{Error, Kind};

#[cfg(all(feature = "jemalloc", target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    walrelay_core::failpoint::arm();
    let typed = Cli::command().try_get_matches().unwrap_or_else(|error| {
        if error.kind() == ErrorKind::DisplayHelp {
            return Cli::documented().get_matches();
        }
        let words: Vec<_> = std::env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let Some(text) = usage_error(&error, &words).filter(|_| error.use_stderr()) else {
            error.exit()
        };
        if walrelay::cli::is_nagios(&words) {
            writeln!(std::io::stdout().lock(), "{text}").unwrap_or_default();
            // UNKNOWN of the plugin interface.
            std::process::exit(3)
        }
        writeln!(std::io::stderr().lock(), "{text}").unwrap_or_default();
        std::process::exit(Kind::Config.exit_code().into())
    });
    let cli = Cli::from_arg_matches(&typed).unwrap_or_else(|error| error.exit());
    // Before librdkafka does: so OpenSSL registers no handler that frees its memory at exit, under
    // the hands of threads that have not ended.
    openssl_sys::init();
    // One thread for everything that waits: a reader on another one than the timer's is woken
    // twice, per millisecond.
    let outcome = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => {
            let outcome = runtime.block_on(dispatch(&cli, &typed));
            // Background tasks have no work left that the command waits for.
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(Error::new(
            Kind::Prerequisite,
            format!("the system gives no timer or poll: {error}"),
        )),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Where standard error is closed, the exit code says it alone.
            writeln!(std::io::stderr().lock(), "{}", error_text(&error, &typed))
                .unwrap_or_default();
            ExitCode::from(error.kind().exit_code())
        }
    }
}
