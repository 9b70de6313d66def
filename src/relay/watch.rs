//! What a loop hears beside its source: the end of the control session, and the state of the connection to Kafka.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch;

use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::relay::stall_watchdog::StallWatchdog;
use crate::relay::stop::{Stop, StopSignal};
use crate::sink::{AnySink, Connection};
use crate::source::control::{Control, ControlEnd};
use crate::telemetry::{Side, Telemetry};

/// What the parts of a running relay share.
#[derive(Clone)]
pub(super) struct Process<'a> {
    pub(super) config: &'a Config,
    pub(super) telemetry: &'a Telemetry,
    pub(super) watchdog: &'a StallWatchdog,
    pub(super) stop: StopSignal,
}

/// The connection to Kafka, as the producer reports it.
pub(super) struct KafkaWatch {
    connection: watch::Receiver<Connection>,
    /// Why nothing is to be expected of the producer any more; none once that was said.
    unusable: Option<Pin<Box<dyn Future<Output = Error> + Send>>>,
}

impl KafkaWatch {
    /// Watches the producer of `sink`, and tells `telemetry` how it is now.
    pub(super) fn new(sink: &AnySink, telemetry: &Telemetry) -> KafkaWatch {
        let (mut connection, handle) = (sink.watch_connection(), sink.handle());
        telemetry.connected(Side::Kafka, *connection.borrow_and_update() == Connection::Up);
        KafkaWatch { connection, unusable: Some(Box::pin(async move { handle.unusable().await })) }
    }

    /// Waits for a change, and says whether Kafka answers. Safe to cancel.
    ///
    /// # Errors
    /// Kafka refuses us and goes on doing so: once.
    pub(super) async fn changed(&mut self) -> Result<bool> {
        tokio::select! {
            biased;
            error = end_of(&mut self.unusable) => {
                self.unusable = None;
                Err(error)
            }
            changed = self.connection.changed() => {
                if changed.is_err() {
                    // The producer is gone, which deliveries tell.
                    std::future::pending::<()>().await;
                }
                Ok(*self.connection.borrow_and_update() == Connection::Up)
            }
        }
    }
}

/// The end of a control session.
pub(super) struct ControlWatch(Option<Pin<Box<dyn Future<Output = ControlEnd> + Send>>>);

impl ControlWatch {
    pub(super) fn new(control: &Control) -> ControlWatch {
        ControlWatch(Some(Box::pin(control.closed())))
    }

    /// Waits for the end, which is said once. Safe to cancel.
    pub(super) async fn ended(&mut self) -> ControlEnd {
        let end = end_of(&mut self.0).await;
        self.0 = None;
        end
    }

    /// Whether the end was said.
    pub(super) fn is_over(&self) -> bool {
        self.0.is_none()
    }
}

/// What came to be ready at once, without waiting.
pub(super) async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = future => Some(done),
        () = std::future::ready(()) => None,
    }
}

/// The end of the job; without one, never.
pub(super) async fn end_of<T>(job: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
    match job {
        Some(job) => job.await,
        None => std::future::pending().await,
    }
}

/// Waits until the relay was told to stop and had its time for it, or was told to leave at once.
pub(super) async fn told_to_leave(stop: &mut StopSignal, grace: Duration) {
    let mut at_once = stop.clone();
    stop.at_least(Stop::Drain).await;
    tokio::select! {
        () = at_once.at_least(Stop::Now) => {}
        () = tokio::time::sleep(grace) => {}
    }
}

/// The session that holds the lease is over: somebody else may read the table from here on.
pub(super) fn lease_lost(end: ControlEnd) -> Error {
    match end {
        ControlEnd::ServerShuttingDown => Error::new(Kind::PostgresUnreachable, "Postgres is shutting down"),
        ControlEnd::Lost(error) => error,
    }
}
