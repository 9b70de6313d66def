//! Making the slot: it waits for every transaction that is under way, and says for which.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::clock::now_us;
use crate::config::Config;
use crate::error::{Kind, Result};
use crate::postgres::fault::{self, While};
use crate::postgres::replication::{NewSlot, WalSession};
use crate::relay::report::OldestTransaction;
use crate::relay::stop::{Stop, StopSignal};
use crate::source::control::OldTransaction;
use crate::telemetry::Telemetry;

const WAITS: &str = include_str!("../../sql/waits.sql");

/// How often metrics are told what the slot waits for.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// How often a waiting person is told.
const TELL_INTERVAL: Duration = Duration::from_secs(5);
/// How long it is waited where the table can be polled instead.
const PATIENCE: Duration = Duration::from_secs(10);

/// What has become of it.
pub(super) enum SlotCreation {
    /// It is there; the session's next command ends its exported snapshot.
    Slot(WalSession, NewSlot),
    /// The relay was told to stop.
    Stopped,
    /// It would have to wait for these transactions, and does not.
    Held(String),
}

/// Drops the slot if it `is_there`, and makes it.
///
/// It takes as long as the transactions that are under way, or, where it `may_give_way`, ten seconds. A slot that was half made
/// goes with its session.
///
/// # Errors
/// Those of the session; [`crate::error::Kind::SlotActive`] where somebody streams from the slot that is there.
pub(super) async fn make_slot(
    config: &Config,
    major: u32,
    is_there: bool,
    may_give_way: bool,
    observer: &Client,
    telemetry: &Telemetry,
    stop: &mut StopSignal,
) -> Result<SlotCreation> {
    let source = &config.source;
    let mut wal = WalSession::connect(&source.database, source).await?;
    if is_there {
        match wal.drop_slot().await {
            // Somebody was faster.
            Err(error) if error.kind() == Kind::SlotUnusable => {}
            dropped => dropped?,
        }
    }
    let pid = wal.backend_pid().await?;
    let (began, began_us) = (Instant::now(), now_us());
    let mut look = tokio::time::interval_at(began + MEASURE_INTERVAL, MEASURE_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut tell_at = began + TELL_INTERVAL;
    let made = {
        let making = wal.create_slot(major);
        tokio::pin!(making);
        loop {
            tokio::select! {
                biased;
                () = stop.at_least(Stop::Drain) => break Err(SlotCreation::Stopped),
                made = &mut making => break Ok(made?),
                _ = look.tick() => {
                    let Waits { text, oldest } = waits(observer, pid).await?;
                    // Nothing is published meanwhile: that is lag, and after a while no readiness.
                    telemetry.metrics.set_oldest_unacked_commit(Some(began_us));
                    telemetry.health.report(true, false);
                    OldestTransaction::default().tell(telemetry, Some(&oldest));
                    if may_give_way && began.elapsed() >= PATIENCE {
                        break Err(SlotCreation::Held(text));
                    }
                    if tell_at <= Instant::now() {
                        tell_at = Instant::now() + TELL_INTERVAL;
                        tracing::warn!(slot = %source.slot, waits = text, "creating the slot: Postgres waits for \
                            transactions to end");
                    }
                }
            }
        }
    };
    telemetry.metrics.set_oldest_unacked_commit(None);
    telemetry.health.report(false, true);
    match made {
        Ok(made) => Ok(SlotCreation::Slot(wal, made)),
        Err(given_up) => {
            // Its session would go on waiting, and leave a slot behind.
            let ended = observer.query_typed("select pg_catalog.pg_terminate_backend($1)", &[(&pid, Type::INT4)]).await;
            ended.map_err(|error| fault::sql(While::Querying("giving up a slot that is being made"), &error))?;
            Ok(given_up)
        }
    }
}

struct Waits {
    /// By pid, role and age.
    text: String,
    /// The first of them.
    oldest: OldTransaction,
}

async fn waits(observer: &Client, pid: i32) -> Result<Waits> {
    let act = While::Querying("asking what the slot waits for");
    let rows = observer.query_typed(WAITS, &[(&pid, Type::INT4)]).await.map_err(|error| fault::sql(act, &error))?;
    let mut oldest = None;
    let told = rows.iter().map(|row| {
        let text = |column: &str| row.try_get::<_, Option<String>>(column).ok().flatten().unwrap_or_default();
        let pid = row.try_get::<_, i32>("pid").unwrap_or_default();
        let open_seconds = row.try_get::<_, Option<i64>>("age_seconds").ok().flatten();
        let is_prepared = !text("prepared").is_empty();
        let application = Some(text("application"));
        oldest.get_or_insert(OldTransaction { pid: (!is_prepared).then_some(pid), open_seconds, application });
        if is_prepared {
            return format!("prepared transactions {}", text("prepared"));
        }
        let age = open_seconds.map_or("for an unknown time".to_owned(), |age| format!("for {age} s"));
        format!("pid {pid} ({} as {}), open {age}", text("application"), text("role"))
    });
    let text = told.collect::<Vec<_>>().join("; ");
    Ok(Waits { text, oldest: oldest.unwrap_or_default() })
}
