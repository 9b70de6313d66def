//! What is waited for beside a stream and while a table is read, and what becomes of it.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::error::{Error, Kind};
use crate::relay::stop::{Stop, StopSignal};
use crate::source::control::ControlEnd;

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
