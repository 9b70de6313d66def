//! How the relay is told to leave (P10).

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

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

/// Hears what is asked. Cheap to clone; a dropped [`Stopper`] asks for nothing.
#[derive(Debug, Clone)]
pub struct StopSignal(watch::Receiver<Stop>);

/// Asks.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<Stop>);

/// A pair: whoever holds the first can stop whoever listens to the second.
pub fn stop_channel() -> (Stopper, StopSignal) {
    let (sender, receiver) = watch::channel(Stop::No);
    (Stopper(sender), StopSignal(receiver))
}

impl Stopper {
    /// Asks for `stop`, or for what was asked before where that is more urgent.
    pub fn ask(&self, stop: Stop) {
        self.0.send_modify(|asked| *asked = (*asked).max(stop));
    }

    /// What was asked so far.
    pub fn asked(&self) -> Stop {
        *self.0.borrow()
    }
}

impl StopSignal {
    /// What is asked now.
    pub fn asked(&self) -> Stop {
        *self.0.borrow()
    }

    /// Waits until at least `stop` is asked. Safe to cancel.
    pub async fn at_least(&mut self, stop: Stop) {
        if self.0.wait_for(|asked| *asked >= stop).await.is_err() {
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
            if stop == Stop::Drain {
                tracing::info!(signal = name, "stopping: waiting for acks; a second signal leaves at once");
            } else {
                tracing::warn!(signal = name, "leaving at once");
            }
            stopper.ask(stop);
        }
    });
    Ok(stop_signal)
}
