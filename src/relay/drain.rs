//! The wait for acks of what is in flight, where nothing else goes on: before the table is read, after an error, and when a
//! relay is told to stop while Postgres is away (P10).

use std::time::Duration;

use tokio::time::Instant;

use super::publisher::Publisher;
use super::shared_loop::RETRY_INTERVAL;
use super::stop::{Stop, StopSignal};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::sink::Sink;
use crate::telemetry::Telemetry;
use crate::upkeep::Marker;

/// How long acks are waited for after an error.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits until everything taken in is acked, until `until`, or until told to leave at once, and says whether it is. A
/// producer that fails ends it too: of what lies behind the failure nothing will ever be acked.
///
/// Nothing is stored and nothing confirmed: without a stream from the slot another relay may have it already.
/// Errors: a delivery that failed in a way that needs a person; see `Publisher::delivered`.
pub(crate) async fn drain<S: Sink>(
    publisher: &mut Publisher<S>,
    until: Instant,
    stop: &mut StopSignal,
) -> Result<bool> {
    loop {
        if let Err(error) = publisher.delivered().and_then(|()| publisher.retry_pending()) {
            if error.kind().halts() {
                return Err(error);
            }
            tracing::warn!(event = "last_acks_failed", %error, "Kafka failed while the last acks were waited for");
            return Ok(false);
        }
        let now = Instant::now();
        if publisher.is_drained() || now >= until {
            return Ok(publisher.is_drained());
        }
        // A sink that is full may have room again without a delivery.
        let again = if publisher.is_pending() { until.min(now + RETRY_INTERVAL) } else { until };
        tokio::select! {
            biased;
            () = stop.at_least(Stop::Now) => return Ok(false),
            () = publisher.receive_deliveries() => {}
            () = tokio::time::sleep_until(again) => {}
        }
    }
}

/// How long marking may take where nothing goes on meanwhile.
const WRITE_BACK_TIMEOUT: Duration = Duration::from_secs(10);

/// Marks or deletes the rows that were acked, where that is configured.
pub(super) async fn write_back<S: Sink>(
    publisher: &mut Publisher<S>,
    config: &Config,
    telemetry: &Telemetry,
) -> Result<()> {
    if publisher.write_backs.is_empty() {
        return Ok(());
    }
    // The session may have ended during a batch.
    publisher.write_backs.abandon();
    let Some(marker) = Marker::of(config).await? else { return Ok(()) };
    while let Some(batch) = publisher.write_backs.begin(usize::MAX) {
        let settled = tokio::time::timeout(WRITE_BACK_TIMEOUT, marker.settle(&batch)).await;
        settled
            .map_err(|_| Error::new(Kind::PostgresUnreachable, "rows that were acked could not be marked in time"))??;
        telemetry.metrics.written_back(publisher.write_backs.finish());
    }
    Ok(())
}
