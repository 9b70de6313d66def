//! The wait for acks of what is in flight, where nothing else goes on: before the table is read,
//! after an error, and when a relay is told to stop while Postgres is away (P10).

use std::time::Duration;

use tokio::time::Instant;

use super::shared_loop::RETRY_INTERVAL;
use super::stop::{Stop, StopSignal};
use walrelay_core::error::{Error, Result};
use walrelay_core::publisher::Publisher;
use walrelay_core::sink::Sink;

/// How long acks are waited for after an error.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Tells why the last acks do not come.
pub(super) fn tell_failed(error: &Error) {
    tracing::warn!(event = "last_acks_failed", %error, "the bus failed while the last acks were \
        waited for");
}

/// Waits until everything taken in is acked, until `until`, or until told to leave at once, and
/// says whether it is. A producer that fails ends it too: of what lies behind the failure nothing
/// will ever be acked.
///
/// Nothing is stored and nothing confirmed: without a stream from the slot another relay may have
/// it already. Errors: a delivery that failed in a way that needs a person; see
/// `Publisher::delivered`.
pub(crate) async fn drain<S: Sink>(
    publisher: &mut Publisher<S>,
    until: Instant,
    stop: &mut StopSignal,
) -> Result<bool> {
    loop {
        if let Err(error) = publisher
            .delivered()
            .and_then(|()| publisher.retry_pending())
        {
            if error.kind().halts() {
                return Err(error);
            }
            tell_failed(&error);
            return Ok(false);
        }
        let now = Instant::now();
        if publisher.is_drained() || now >= until {
            return Ok(publisher.is_drained());
        }
        // A sink that is full may have room again without a delivery.
        let again = if publisher.is_pending() {
            until.min(now + RETRY_INTERVAL)
        } else {
            until
        };
        tokio::select! {
            biased;
            () = stop.at_least(Stop::Now) => return Ok(false),
            () = publisher.receive_deliveries() => {}
            () = tokio::time::sleep_until(again) => {}
        }
    }
}
