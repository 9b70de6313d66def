//! The relay: one task that owns the position, and everything it needs to come back from what
//! fails.
//!
//! Two lives are nested. A *producer's* life ([`Pipeline`]) begins behind the delivered position
//! and ends with the first delivery that fails. Inside it, a *session* begins with a connection to
//! Postgres and ends with it; the next one goes on where the last stopped, so that losing Postgres
//! sends nothing twice.
//!
//! [`Pipeline`]: walrelay_core::publisher::pipeline::Pipeline

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use tokio::time::timeout;
use tokio_postgres::types::Type;

use crate::config::{Config, SourceConfig};
use crate::postgres::query::one_text;
use crate::postgres::sql::SqlSession;
use crate::telemetry::{Metrics, Telemetry};
use crate::upkeep::cleanup::{Sweeper, old_partitions, published_of, sweep_all};
use crate::upkeep::{self, bound};
use walrelay_core::clock::now_us;
use walrelay_core::config::OutboxConfig;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::readiness::NotReady;
use walrelay_core::stored::Stored;

pub(crate) mod drain;
mod jobs;
mod outage;
mod producer;
mod recovery;
mod replication;
mod retrying;
mod session;
mod setup;
mod shared_loop;
mod stall_watchdog;
pub mod stop;
mod store;
mod stream_reader;
mod supervisor;
mod table;
mod table_loop;

pub(crate) use self::recovery::{can_be_read, rules};
pub(crate) use self::session::{makes_slot, polls_because, slot_now, start_from};
pub(crate) use self::setup::setup_of;
pub(crate) use self::shared_loop::RETRY_INTERVAL;
use self::stop::{Stop, StopSignal};
use self::store::Known;
use self::supervisor::Relay;
pub(crate) use self::table::{Waits, waits};

/// After so long it is asked what the start waits for, for as long at most.
const SLOW_START: Duration = Duration::from_millis(2_500);
/// Who blocks the sessions whose names match.
const BLOCKERS: &str = "select pg_catalog.string_agg(distinct b.pid::text, ', ') \
    from pg_catalog.pg_stat_activity a, pg_catalog.unnest(pg_catalog.pg_blocking_pids(a.pid)) b \
    (pid) where a.application_name ~ $1";

/// How often old rows are looked for. Twice as long after each failure: a clean-up that fails costs
/// the server as much.
const RETENTION_INTERVAL: Duration = Duration::from_secs(60);
const RETENTION_INTERVAL_MAX: Duration = Duration::from_secs(3_600);
/// Rows of one transaction, and the pause between two.
const RETENTION_BATCH_ROWS: u32 = 1_000;
const RETENTION_PAUSE: Duration = Duration::from_millis(50);

/// Relays until told to stop or until a person has to act.
///
/// When it returns, every stored event is confirmed, unless Postgres could not be reached.
///
/// # Errors
/// Everything that [halts](Kind::halts), and [`Kind::ShutdownTimeout`] where a stop left events not
/// acked. Faults that heal are retried here with back-off and never returned.
pub async fn run(config: Config, telemetry: Telemetry, mut stop: StopSignal) -> Result<()> {
    let retention = config.clone();
    let watched = telemetry.clone();
    let promised: &str = config.delivery.guarantee.into();
    let bus = config.sink.kind.bus().name;
    let bus_address = config.bus_address();
    tracing::info!(
        event = "starting", version = env!("CARGO_PKG_VERSION"), slot = %config.source.slot,
        database = config.source.database.describe(), bus, bus_address,
        mode = format!("{:?}", config.source.mode).to_lowercase(), guarantee = promised, "starting"
    );
    let mut relay = Relay::new(config, telemetry)?;
    let known = Arc::clone(&relay.known);
    let result = tokio::select! {
        biased;
        result = Box::pin(relay.run(&mut stop)) => result,
        _ = join(
            tell_slow_start(&retention, &watched),
            keep_retention(&retention, &known, &watched.metrics),
        ) => {
            Err(Error::new(Kind::Bug, "the retention came to an end"))
        }
    };
    if stop.asked() < Stop::Now {
        relay.producer.end().await;
    }
    if let Err(error) = &result {
        let reason = NotReady::Halted(error.to_string());
        relay.telemetry.health.tell(reason);
        relay.telemetry.failed(error);
    }
    result
}

/// Logs once what a slow start waits for.
async fn tell_slow_start(config: &Config, telemetry: &Telemetry) {
    const DOING: &str = "asking who has a lock";
    tokio::time::sleep(SLOW_START).await;
    // Neither at work, nor standing by, nor was a failure told.
    let is_silent = || {
        telemetry.health.not_ready() == Some(NotReady::Starting)
            && telemetry.failures.newest().is_none()
    };
    if !is_silent() {
        return;
    }
    let SourceConfig { database, slot, .. } = &config.source;
    let bus = config.sink.kind.bus().name;
    let asked = async {
        let session = SqlSession::connect(database, &format!("walrelay/{slot}/start")).await?;
        let ours = format!("^walrelay[ /]{slot}([ /]|$)");
        let blockers = one_text(session.client(), DOING, BLOCKERS, &[(&ours, Type::TEXT)]).await?;
        Ok::<_, Error>(blockers)
    };
    let waits_for = match timeout(SLOW_START, asked).await {
        Ok(Ok(Some(pids))) => format!("a lock that pid {pids} has"),
        Ok(Ok(None)) => format!("Postgres or {bus}"),
        Ok(Err(_)) | Err(_) => "Postgres".to_owned(),
    };
    if is_silent() {
        tracing::warn!(event = "start_waits", %slot, waits_for, "the start takes long");
    }
}

/// Deletes old rows for as long as this is driven. Faults are told and tried again the next time:
/// events are not held up.
async fn keep_retention(config: &Config, known: &Known, metrics: &Metrics) {
    if !config
        .outboxes
        .iter()
        .any(|outbox| outbox.upkeep.retention.is_some())
    {
        return std::future::pending().await;
    }
    let mut known = known.stored.subscribe();
    let mut wait = Duration::ZERO;
    loop {
        tokio::time::sleep(wait).await;
        if known.wait_for(Option::is_some).await.is_err() {
            return std::future::pending().await;
        }
        metrics.clean_up_begins(now_us());
        let stored = known.borrow().clone();
        let slot = &config.source.slot;
        let mut rows = 0;
        let mut failed = false;
        for outbox in &config.outboxes {
            if let Err(error) = sweep_old(config, outbox, stored.as_ref(), &mut rows).await {
                failed = true;
                let fix = error.what_to_do();
                let table = outbox.source.to_string();
                tracing::warn!(event = "clean_up_failed", %slot, table, rows, %error, fix,
                    "old rows could not be deleted; trying again later");
            }
        }
        metrics.cleaned_up_rows.inc_by(rows);
        if rows > 0 {
            tracing::info!(event = "old_rows_deleted", %slot, rows, "old rows were deleted");
        }
        // Another relay may be at work by now.
        if !failed && known.borrow().is_some() {
            metrics.cleaned_up(now_us());
        }
        wait = next_retention(wait, failed);
    }
}

/// The pause after the next clean-up, which follows one of `last`.
fn next_retention(last: Duration, failed: bool) -> Duration {
    let grown = if failed {
        (last * 2).min(RETENTION_INTERVAL_MAX)
    } else {
        Duration::ZERO
    };
    grown.max(RETENTION_INTERVAL)
}

/// Partitions and rows of `outbox` that are old and published go; `deleted` counts them, also
/// before an error.
async fn sweep_old(
    config: &Config,
    outbox: &OutboxConfig,
    stored: Option<&Stored>,
    deleted: &mut u64,
) -> Result<()> {
    let Some(retention) = outbox.upkeep.retention else {
        return Ok(());
    };
    let source = &config.source;
    let session = upkeep::connect(source, &format!("walrelay/{}/retention", source.slot)).await?;
    let client = session.client();
    bound(client).await?;
    let Some(sweeper) = Sweeper::look(client, outbox, retention).await? else {
        return Ok(());
    };
    // Of this server, timeline and table, or it says nothing.
    let published = match stored.filter(|_| sweeper.basis.needs_published()) {
        Some(stored) => Some(published_of(client, stored.clone(), sweeper.table.oid).await?),
        None => None,
    };
    let published = published.as_ref();
    let is_polled = stored.is_some_and(Stored::is_polled);
    for old in old_partitions(client, &sweeper, published, is_polled).await? {
        if old.stays.is_some() {
            continue;
        }
        match old.drop(client, &sweeper, published).await? {
            Ok(()) => *deleted += old.rows.unwrap_or_default(),
            Err(why) => {
                tracing::info!(
                    event = "old_partition_kept",
                    partition = old.name,
                    why,
                    "an old partition stays"
                )
            }
        }
    }
    sweep_all(
        client,
        &sweeper,
        published,
        RETENTION_BATCH_ROWS,
        RETENTION_PAUSE,
        |rows| *deleted += rows,
    )
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_up_that_fails_is_repeated_less_and_less_often() {
        let waits: Vec<u64> = std::iter::successors(Some(Duration::ZERO), |wait| {
            Some(next_retention(*wait, true))
        })
        .map(|wait| wait.as_secs())
        .take(9)
        .collect();
        assert_eq!(waits, [0, 60, 120, 240, 480, 960, 1_920, 3_600, 3_600]);
        assert_eq!(
            next_retention(RETENTION_INTERVAL_MAX, false),
            RETENTION_INTERVAL
        );
    }
}
