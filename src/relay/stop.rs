//! How the relay is told to leave (P10).

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;

use walrelay_core::error::{Error, Kind, Result};

/// A request to the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Go on.
    No,
    /// Stop intake, wait for acks up to the shutdown time-out, confirm, leave.
    Drain,
    /// Leave at once. Events that were not acked are delivered after the next start.
    Now,
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    stop: Stop,
    since: Option<Instant>,
}

/// Hears what is asked. Cheap to clone; a dropped [`Stopper`] asks for nothing.
#[derive(Debug, Clone)]
pub struct StopSignal(watch::Receiver<Asked>);

/// Asks.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<Asked>);

/// A pair: the first requests stops, and the second hears of them.
pub fn stop_channel() -> (Stopper, StopSignal) {
    let (sender, receiver) = watch::channel(Asked {
        stop: Stop::No,
        since: None,
    });
    (Stopper(sender), StopSignal(receiver))
}

impl Stopper {
    /// Asks for `stop`, or for what was asked before where that is more urgent.
    pub fn ask(&self, stop: Stop) {
        self.0.send_modify(|asked| {
            asked.stop = asked.stop.max(stop);
            if asked.stop > Stop::No {
                asked.since.get_or_insert_with(Instant::now);
            }
        });
    }

    /// The request so far.
    pub fn asked(&self) -> Stop {
        self.0.borrow().stop
    }
}

impl StopSignal {
    /// The present request.
    pub fn asked(&self) -> Stop {
        self.0.borrow().stop
    }

    /// When a stop was first asked for: its deadline counts from there, whatever happens on the
    /// way.
    pub fn since(&self) -> Option<Instant> {
        self.0.borrow().since
    }

    /// Waits until at least `stop` is asked. Safe to cancel.
    pub async fn at_least(&mut self, stop: Stop) {
        if self.0.wait_for(|asked| asked.stop >= stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The status of the process on Linux, with the signals that it ignores.
const STATUS: &str = "/proc/self/status";
const HANGUP: &str = "SIGHUP";

/// Turns SIGTERM, SIGINT and SIGHUP into stops: the first signal drains, a second SIGTERM or SIGINT
/// leaves at once.
///
/// A process that ignores SIGHUP from its start, as under `nohup`, goes on ignoring it: Tokio's
/// handler would end that. Where the system does not tell, SIGHUP does what it did without us.
///
/// # Errors
/// [`Kind::Bug`] where the system has no signals for this process.
pub fn on_signals() -> Result<StopSignal> {
    let (stopper, stop_signal) = stop_channel();
    let listen = |kind| {
        signal(kind)
            .map_err(|error| Error::new(Kind::Bug, format_args!("cannot hear signals: {error}")))
    };
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let is_ignored = std::fs::read_to_string(STATUS).map_or(true, |status| ignores_hangup(&status));
    let mut hangup = if is_ignored {
        None
    } else {
        Some(listen(SignalKind::hangup())?)
    };
    tokio::spawn(async move {
        let mut asked = Stop::No;
        loop {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                () = heard(&mut hangup) => HANGUP,
            };
            let before = stopper.asked();
            let stop = answer(asked, name);
            if name != HANGUP {
                asked = Stop::Drain;
            }
            stopper.ask(stop);
            if stop == Stop::Now {
                tracing::warn!(event = "stopping_at_once", signal = name, "leaving at once");
            } else if before == Stop::No {
                tracing::info!(event = "stopping", signal = %name,
                    "stopping: waiting for acks; a second SIGTERM or SIGINT leaves at once");
            }
        }
    });
    Ok(stop_signal)
}

/// The request of a signal after those of SIGTERM and SIGINT. SIGHUP of a closed terminal comes
/// from shell and kernel.
fn answer(asked: Stop, signal: &str) -> Stop {
    if asked == Stop::No || signal == HANGUP {
        Stop::Drain
    } else {
        Stop::Now
    }
}

/// Waits for the signal; where it is not listened to, for ever.
async fn heard(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Whether the process with this status ignores SIGHUP, the first signal in the mask. See
/// proc_pid_status(5).
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_none_or(|mask| mask & 1 != 0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stop_counts_from_the_first_request_and_is_never_withdrawn() {
        let (stopper, signal) = stop_channel();
        stopper.ask(Stop::No);
        assert_eq!((signal.asked(), signal.since()), (Stop::No, None));
        let first = Instant::now();
        stopper.ask(Stop::Drain);
        tokio::time::advance(Duration::from_secs(5)).await;
        stopper.ask(Stop::Now);
        stopper.ask(Stop::Drain);
        assert_eq!((signal.asked(), signal.since()), (Stop::Now, Some(first)));
    }

    #[test]
    fn a_hangup_stops_in_order_however_often_it_comes_and_stays_ignored_under_nohup() {
        for (before, signal, asked) in [
            (Stop::No, "SIGHUP", Stop::Drain),
            (Stop::Drain, "SIGHUP", Stop::Drain),
            (Stop::No, "SIGTERM", Stop::Drain),
            (Stop::Drain, "SIGTERM", Stop::Now),
            (Stop::Drain, "SIGINT", Stop::Now),
        ] {
            assert_eq!(
                answer(before, signal),
                asked,
                "{signal} after {before:?} by SIGTERM or SIGINT"
            );
        }
        for (mask, is_ignored) in [
            ("0000000000000001", true),
            ("0000000000001000", false),
            ("nonsense", true),
        ] {
            let status = format!(
                "Name:\twalrelay\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\nSigCgt:\t1\n"
            );
            assert_eq!(ignores_hangup(&status), is_ignored, "{mask}");
        }
        assert!(ignores_hangup(""), "a system that does not tell");
    }
}
