//! How the relay is told to leave (P10).

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::{Error, Kind, Result};

/// What is asked of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Go on.
    No,
    /// Stop intake, wait for acks up to the shutdown time-out, confirm, leave.
    Drain,
    /// Leave at once. Events that were not acked are delivered after the next start.
    Now,
}

/// What is asked, and since when anything is.
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

/// A pair: whoever holds the first can stop whoever listens to the second.
pub fn stop_channel() -> (Stopper, StopSignal) {
    let (sender, receiver) = watch::channel(Asked { stop: Stop::No, since: None });
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

    /// What was asked so far.
    pub fn asked(&self) -> Stop {
        self.0.borrow().stop
    }
}

impl StopSignal {
    /// What is asked now.
    pub fn asked(&self) -> Stop {
        self.0.borrow().stop
    }

    /// When a stop was first asked for: its deadline counts from there, whatever happens on the way.
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

/// Turns SIGTERM and SIGINT into stops: the first drains, the second leaves at once.
///
/// # Errors
/// The signals cannot be listened to.
pub fn on_signals() -> Result<StopSignal> {
    let (stopper, stop_signal) = stop_channel();
    let listen =
        |kind| signal(kind).map_err(|error| Error::new(Kind::Bug, format_args!("cannot hear signals: {error}")));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    tokio::spawn(async move {
        loop {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            let stop = if stopper.asked() == Stop::No { Stop::Drain } else { Stop::Now };
            stopper.ask(stop);
            if stop == Stop::Drain {
                tracing::info!(signal = name, "stopping: waiting for acks; a second signal leaves at once");
            } else {
                tracing::warn!(signal = name, "leaving at once");
            }
        }
    });
    Ok(stop_signal)
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
}
