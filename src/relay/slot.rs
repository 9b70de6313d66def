//! Making the slot: it waits for every transaction that is under way, and says for which.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::config::Config;
use crate::error::{Kind, Result};
use crate::postgres::fault::{self, While};
use crate::postgres::replication::{NewSlot, WalSession};
use crate::relay::stop::{Stop, StopSignal};

const WAITS: &str = include_str!("../../sql/waits.sql");

/// How often a waiting person is told what the slot waits for.
const TELL_INTERVAL: Duration = Duration::from_secs(5);

/// Drops the slot if it `is_there`, makes it, and gives the session whose next command ends the exported snapshot; `None`
/// where the relay was told to stop.
///
/// It takes as long as the transactions that are under way. A slot that was half made goes with its session.
///
/// # Errors
/// Those of the session; [`crate::error::Kind::SlotActive`] where somebody streams from the slot that is there.
pub(super) async fn make_slot(
    config: &Config,
    major: u32,
    is_there: bool,
    observer: &Client,
    stop: &mut StopSignal,
) -> Result<Option<(WalSession, NewSlot)>> {
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
    let mut told = tokio::time::interval_at(tokio::time::Instant::now() + TELL_INTERVAL, TELL_INTERVAL);
    let made = {
        let making = wal.create_slot(major);
        tokio::pin!(making);
        loop {
            tokio::select! {
                biased;
                () = stop.at_least(Stop::Drain) => return Ok(None),
                made = &mut making => break made?,
                _ = told.tick() => {
                    let waits = waits(observer, pid).await?;
                    tracing::warn!(slot = %source.slot, waits, "the slot is being made, and waits for transactions to end");
                }
            }
        }
    };
    Ok(Some((wal, made)))
}

/// Who is waited for, by pid, role and age.
async fn waits(observer: &Client, pid: i32) -> Result<String> {
    let act = While::Querying("asking what the slot waits for");
    let rows = observer.query_typed(WAITS, &[(&pid, Type::INT4)]).await.map_err(|error| fault::sql(act, &error))?;
    let told = rows.iter().map(|row| {
        let text = |column: &str| row.try_get::<_, Option<String>>(column).ok().flatten().unwrap_or_default();
        let pid = row.try_get::<_, i32>("pid").unwrap_or_default();
        let age = row.try_get::<_, Option<i64>>("age_seconds").ok().flatten().unwrap_or_default();
        match text("prepared") {
            prepared if prepared.is_empty() => {
                format!("pid {pid} ({} as {}), open for {age} s", text("application"), text("role"))
            }
            prepared => format!("prepared transactions {prepared}"),
        }
    });
    Ok(told.collect::<Vec<_>>().join("; "))
}
