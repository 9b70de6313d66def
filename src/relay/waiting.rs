//! What is waited for beside a stream and while a table is read, and what becomes of it.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::error::{Error, Kind, Result};
use crate::relay::pulse::Moment;
use crate::relay::stop::{Stop, StopSignal};
use crate::source::control::ControlEnd;
use crate::source::lease;

/// What came to be ready at once, without waiting.
pub(super) async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(future);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        std::task::Poll::Ready(done) => std::task::Poll::Ready(Some(done)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}

/// The end of the job; without one, never.
pub(super) async fn end_of<T>(job: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
    match job {
        Some(job) => job.await,
        None => std::future::pending().await,
    }
}

/// Whether the loop at the table goes on, as [`super::pulse`] is for the one at the stream.
pub(super) struct Turns {
    bound: Duration,
    last: Moment,
    stood_still: bool,
}

impl Turns {
    pub(super) fn new(wal_sender_timeout: Duration) -> Turns {
        Turns { bound: lease::bearable(wal_sender_timeout), last: Moment::now(), stood_still: false }
    }

    /// It turned.
    ///
    /// # Errors
    /// It stood still so long that another relay may have the lease.
    pub(super) fn turn(&mut self) -> Result<()> {
        self.stood_still |= self.last.elapsed() > self.bound;
        self.awake();
        if self.stood_still { Err(stood_still()) } else { Ok(()) }
    }

    /// It waited on purpose.
    pub(super) fn awake(&mut self) {
        self.last = Moment::now();
    }

    /// Whether nothing may be stored or sent any more.
    pub(super) fn stood_still(&self) -> bool {
        self.stood_still
    }
}

/// This process was stopped for longer than others wait for it.
pub(super) fn stood_still() -> Error {
    let what = "this process stood still for two thirds of wal_sender_timeout; another relay may be at the table";
    Error::new(Kind::PostgresUnreachable, what)
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
