//! Looks at a slot, its parked events and its rows for the metrics, for a relay and for `walrelay
//! exporter`.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;

use crate::cli::parked::table::ParkedCount;
use crate::cli::sql::ClockDifference;
use crate::cli::status;
use crate::config::SourceConfig;
use crate::postgres::fault;
use crate::postgres::query::QueryError;
use crate::postgres::quote::quote_table;
use crate::postgres::sql::SqlSession;
use crate::telemetry::Telemetry;
use crate::telemetry::metrics::{Metrics, RowState, SlotState};
use walrelay_core::config::{OutboxConfig, SlotName};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::readiness::{Side, ToDo};

/// How often slot and rows are looked at, where that takes little time.
const INTERVAL: Duration = Duration::from_secs(10);
/// A count takes at most this part of the time.
const SHARE: u32 = 20;
/// How long rows are not counted after a count that took too long.
const PAUSE: Duration = Duration::from_secs(600);
/// The limit for one look. A session that needs longer is stuck.
const LOOK_TIMEOUT: Duration = Duration::from_secs(60);
const ROWS_MAX: i64 = 10_000;
/// Nobody waits for these statements, nor do they wait for anybody.
const BOUNDS: &str = "set lock_timeout = '1ms'; set statement_timeout = '5s'; set \
                      default_transaction_read_only = on";

#[derive(Debug)]
enum What {
    Parked,
    Rows {
        rows: RowState,
        outbox: String,
        sql: String,
    },
}

#[derive(Debug)]
struct Count {
    what: What,
    due: Instant,
    /// Whether it is logged that this fails.
    is_logged: bool,
}

impl Count {
    fn new(what: What) -> Count {
        Count {
            what,
            due: Instant::now(),
            is_logged: false,
        }
    }

    /// The counts of an outbox: of rows that show that they are unpublished, and that they failed.
    fn of(outbox: &OutboxConfig) -> Result<Vec<Count>> {
        let Some(table) = outbox.source.table() else {
            return Ok(Vec::new());
        };
        let table = quote_table(table)?;
        let all = outbox.upkeep.delete.then_some("true");
        let conditions = [
            (
                RowState::Unpublished,
                outbox.upkeep.pending.as_deref().or(all),
            ),
            (RowState::Failed, outbox.upkeep.failed.as_deref()),
        ];
        let counts = conditions.into_iter().filter_map(|(rows, condition)| {
            let condition = condition?;
            // The limit bounds the cost where an index has the condition.
            let sql = format!(
                "select count(*) from (select from {table} where ({condition}\n) limit \
                         {ROWS_MAX}) as counted"
            );
            Some(Count::new(What::Rows {
                rows,
                outbox: outbox.source.to_string(),
                sql,
            }))
        });
        Ok(counts.collect())
    }

    async fn read(
        &self,
        session: &SqlSession,
        slot: &SlotName,
        metrics: &Metrics,
    ) -> Result<(), QueryError> {
        match &self.what {
            What::Parked => {
                let ParkedCount {
                    events,
                    oldest_seconds,
                } = ParkedCount::read(session, slot, Some(ROWS_MAX)).await?;
                metrics.set_parked(events, oldest_seconds);
            }
            What::Rows { rows, outbox, sql } => {
                let counted = session.row("counting rows", sql, &[]).await?;
                metrics.set_rows(*rows, outbox, counted.and_then(|row| row.try_get(0).ok()));
            }
        }
        Ok(())
    }

    fn set_unknown(&self, metrics: &Metrics) {
        match &self.what {
            What::Parked => metrics.set_parked(None, None),
            What::Rows { rows, outbox, .. } => metrics.set_rows(*rows, outbox, None),
        }
    }

    /// Takes in that the server refused this count, and logs that once until a count succeeds. A
    /// lock is gone at the next look.
    fn refused(&mut self, error: &Error, sqlstate: Option<&SqlState>, slot: &SlotName) {
        let (counted, advice) = match &self.what {
            What::Parked => ("walrelay.parked", "vacuum walrelay.parked"),
            What::Rows { outbox, .. } => (
                outbox.as_str(),
                "create an index that has the condition of the count",
            ),
        };
        let fix = if sqlstate == Some(&SqlState::QUERY_CANCELED) {
            self.due = Instant::now() + PAUSE;
            Some(advice.to_owned())
        } else {
            error.what_to_do()
        };
        if sqlstate == Some(&SqlState::LOCK_NOT_AVAILABLE)
            || std::mem::replace(&mut self.is_logged, true)
        {
            tracing::debug!(%slot, counted, %error, "rows were not counted for the metrics");
        } else {
            tracing::warn!(event = "row_count_failed", %slot, counted, %error, fix, "rows cannot \
                be counted for the metrics");
        }
    }
}

/// Has Postgres check the counts of this outbox's rows, of which a relay only logs that they fail.
pub(super) async fn check_counts(session: &SqlSession, outbox: &OutboxConfig) -> Result<()> {
    const DOING: &str = "checking outbox.failed";
    for count in Count::of(outbox)? {
        let What::Rows { sql, .. } = &count.what else {
            continue;
        };
        let Err(error) = session.client().prepare(sql).await else {
            continue;
        };
        match error.code() {
            // A role without the right to read gets no metric.
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {}
            Some(_) => {
                let cause = fault::query(DOING, &error);
                return Err(Error::new(Kind::Config, cause).remedy(
                    "write a condition over the table's columns, such as failed = \"status \
                             = 'FAILED'\"",
                ));
            }
            None => return Err(fault::query(DOING, &error)),
        }
    }
    Ok(())
}

/// Looks at a slot and counts rows for the metrics, with a session of its own.
pub(super) struct SlotWatch {
    source: SourceConfig,
    counts: Vec<Count>,
    telemetry: Telemetry,
    /// Whether no relay sets connection and readiness.
    is_alone: bool,
    session: Option<SqlSession>,
    /// The kind of error that was logged, until a look succeeds.
    logged: Option<Kind>,
}

impl SlotWatch {
    pub(super) fn new(
        source: &SourceConfig,
        outboxes: &[OutboxConfig],
        telemetry: Telemetry,
        is_alone: bool,
    ) -> Result<SlotWatch> {
        let counts: Vec<_> = outboxes.iter().map(Count::of).collect::<Result<_>>()?;
        let counts = std::iter::once(Count::new(What::Parked))
            .chain(counts.into_iter().flatten())
            .collect();
        Ok(SlotWatch {
            source: source.clone(),
            counts,
            telemetry,
            is_alone,
            session: None,
            logged: None,
        })
    }

    /// Looks for as long as this is driven. A value that cannot be read is not exposed.
    pub(super) async fn keep_looking(&mut self) -> Infallible {
        loop {
            let began = Instant::now();
            let looked = tokio::time::timeout(LOOK_TIMEOUT, self.look()).await;
            let timed_out = || {
                Err(Error::new(
                    Kind::PostgresUnreachable,
                    "the look at the slot took too long",
                ))
            };
            let looked = looked.unwrap_or_else(|_| timed_out());
            if self.is_alone {
                self.telemetry.connected(Side::Postgres, looked.is_ok());
                self.telemetry.health.report(ToDo::Nothing);
            }
            match looked {
                Ok(None) => self.logged = None,
                Ok(Some(missing)) => self.tell(&missing),
                Err(error) => self.failed(&error),
            }
            tokio::time::sleep(INTERVAL.max(began.elapsed())).await;
        }
    }

    /// Logs each kind of error once, until a look succeeds. A relay that does not stream says
    /// itself that it cannot reach Postgres.
    fn tell(&mut self, error: &Error) {
        let slot = &self.source.slot;
        let is_heard = self.is_alone || self.telemetry.metrics.is_streaming();
        if is_heard {
            self.telemetry.failed(error);
        }
        if is_heard && self.logged.replace(error.kind()) != Some(error.kind()) {
            let fix = error.what_to_do();
            tracing::warn!(event = "slot_look_failed", %slot, %error, fix, "metrics of the slot \
                are missing");
        } else {
            tracing::debug!(%slot, %error, "metrics of the slot are missing");
        }
    }

    /// Exposes nothing, and says so.
    fn failed(&mut self, error: &Error) {
        self.tell(error);
        self.session = None;
        let metrics = &self.telemetry.metrics;
        metrics.set_slot(&SlotState::default());
        metrics.clock_difference_seconds.set(None);
        self.counts
            .iter()
            .for_each(|count| count.set_unknown(metrics));
    }

    /// Reports clocks that differ once, until they agree again.
    fn judge_clock(&self, difference: ClockDifference) {
        let known = &self.telemetry.metrics.clock_difference_seconds;
        let before = ClockDifference {
            ahead_us: known.value().map_or(0, |seconds| (seconds * 1e6) as i64),
            open_us: 0,
        };
        if let Some(fault) = difference.fault()
            && before.fault().is_none()
        {
            self.telemetry.failed(&fault);
            tracing::warn!(event = "clocks_differ", slot = %self.source.slot, error = %fault,
                fix = fault.what_to_do(),
                "lag in seconds is wrong");
        }
        known.set(Some(difference.ahead_us as f64 / 1e6));
    }

    /// Gives an error where no relay tells that the slot is missing.
    async fn look(&mut self) -> Result<Option<Error>> {
        let session = match self.session.take() {
            Some(session) => session,
            None => {
                let name = format!("walrelay {} metrics", self.source.slot);
                let session = SqlSession::connect(&self.source.database, &name).await?;
                session.run("bounding statements", BOUNDS).await?;
                session
            }
        };
        let slot = &self.source.slot;
        let metrics = &self.telemetry.metrics;
        let state: SlotState = status::look(&session, slot).await?;
        metrics.set_slot(&state);
        let is_missing = state.kind.is_none() && state.table_reader_pid.is_none();
        self.telemetry
            .stand_by_pids
            .send_replace(state.stand_by_pids);
        self.judge_clock(ClockDifference::read(&session).await?);
        for count in &mut self.counts {
            let began = Instant::now();
            if count.due > began {
                continue;
            }
            match count.read(&session, slot, metrics).await {
                Ok(()) => {
                    count.is_logged = false;
                    count.due = began + began.elapsed() * SHARE;
                }
                Err(QueryError::Refused { error, sqlstate }) => {
                    count.refused(&error, sqlstate.as_ref(), slot);
                    count.set_unknown(metrics);
                }
                Err(broken) => return Err(broken.into()),
            }
        }
        self.session = Some(session);
        Ok((self.is_alone && is_missing).then(|| status::no_slot(slot)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_count_that_took_too_long_is_put_off_and_a_lock_is_no_warning() {
        let slot: SlotName = "orders".parse().unwrap();
        let error = Error::new(Kind::PostgresRefused, "refused");
        for (sqlstate, is_put_off, is_logged) in [
            ("57014", true, true),
            ("55P03", false, false),
            ("42501", false, true),
        ] {
            let mut count = Count::new(What::Parked);
            count.refused(&error, Some(&SqlState::from_code(sqlstate)), &slot);
            let is_due = count.due <= Instant::now();
            assert_eq!(
                (!is_due, count.is_logged),
                (is_put_off, is_logged),
                "{sqlstate}"
            );
        }
    }
}
