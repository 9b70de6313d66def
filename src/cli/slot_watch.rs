//! Looks at a slot, its parked events and its rows for the metrics, for a relay and for `walrelay exporter`.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;

use crate::cli::sql::Session;
use crate::cli::status;
use crate::config::{OutboxConfig, SourceConfig};
use crate::error::{Error, Kind, Result};
use crate::postgres::fault::{self, While};
use crate::postgres::quote::quote_table;
use crate::telemetry::metrics::{Rows, SlotState};
use crate::telemetry::{Side, Telemetry};

/// How often slot and rows are looked at, where that takes little time.
const INTERVAL: Duration = Duration::from_secs(10);
/// A count takes at most this part of the time.
const SHARE: u32 = 20;
/// How long rows are not counted after that failed.
const PAUSE: Duration = Duration::from_secs(600);
/// The limit for one look. A session that needs longer is stuck.
const LOOK_TIMEOUT: Duration = Duration::from_secs(60);
/// The most rows that are counted.
const ROWS_MAX: u32 = 10_000;
/// Nobody waits for these statements, nor do they wait for anybody.
const BOUNDS: &str = "set lock_timeout = '1ms'; set statement_timeout = '5s'; set default_transaction_read_only = on";

/// The number of some rows of an outbox.
#[derive(Debug)]
struct RowCount {
    rows: Rows,
    outbox: String,
    sql: String,
    due: Instant,
}

impl RowCount {
    /// The counts of an outbox: of rows that show that they are unpublished, and that they failed.
    fn of(outbox: &OutboxConfig) -> Result<Vec<RowCount>> {
        let Some(table) = outbox.source.table() else { return Ok(Vec::new()) };
        let table = quote_table(table)?;
        let all = outbox.upkeep.delete.then_some("true");
        let conditions = [
            (Rows::Unpublished, outbox.upkeep.pending.as_deref().or(all)),
            (Rows::Failed, outbox.upkeep.failed.as_deref()),
        ];
        let counts = conditions.into_iter().filter_map(|(rows, condition)| {
            let condition = condition?;
            // The limit bounds the cost where an index has the condition.
            let sql =
                format!("select count(*) from (select from {table} where ({condition}\n) limit {ROWS_MAX}) as counted");
            Some(RowCount { rows, outbox: outbox.source.to_string(), sql, due: Instant::now() })
        });
        Ok(counts.collect())
    }
}

/// Has Postgres check the counts of this outbox's rows, of which a relay only logs that they fail.
pub(super) async fn check_counts(session: &Session, outbox: &OutboxConfig) -> Result<()> {
    const DOING: &str = "checking outbox.failed";
    for count in RowCount::of(outbox)? {
        let Err(error) = session.client().prepare(&count.sql).await else { continue };
        match error.code() {
            // A role without the right to read gets no metric.
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {}
            Some(_) => {
                let cause = fault::sql(While::Querying(DOING), &error);
                return Err(Error::new(Kind::Config, cause)
                    .remedy("write a condition over the table's columns, such as failed = \"status = 'FAILED'\""));
            }
            None => return Err(fault::sql(While::Querying(DOING), &error)),
        }
    }
    Ok(())
}

/// Looks at a slot and counts rows for the metrics, with a session of its own.
pub(super) struct SlotWatch {
    source: SourceConfig,
    counts: Vec<RowCount>,
    telemetry: Telemetry,
    /// Whether no relay sets positions and readiness.
    is_alone: bool,
    session: Option<Session>,
}

impl SlotWatch {
    pub(super) fn new(
        source: &SourceConfig,
        outboxes: &[OutboxConfig],
        telemetry: Telemetry,
        is_alone: bool,
    ) -> Result<SlotWatch> {
        let counts: Vec<_> = outboxes.iter().map(RowCount::of).collect::<Result<_>>()?;
        let counts = counts.into_iter().flatten().collect();
        Ok(SlotWatch { source: source.clone(), counts, telemetry, is_alone, session: None })
    }

    /// Looks for as long as this is driven. What cannot be read is not exposed.
    pub(super) async fn keep_looking(&mut self) -> Infallible {
        loop {
            let began = Instant::now();
            let looked = tokio::time::timeout(LOOK_TIMEOUT, self.look()).await;
            let timed_out = || Err(Error::new(Kind::PostgresUnreachable, "the look at the slot took too long"));
            let looked = looked.unwrap_or_else(|_| timed_out());
            if let Err(error) = &looked {
                tracing::debug!(slot = %self.source.slot, %error, "the slot cannot be read for the metrics");
                self.session = None;
                self.show(&SlotState::default());
                for count in &self.counts {
                    self.telemetry.metrics.set_rows(count.rows, &count.outbox, None);
                }
            }
            if self.is_alone {
                self.telemetry.connected(Side::Postgres, looked.is_ok());
                self.telemetry.health.report(false, false);
            }
            tokio::time::sleep(INTERVAL.max(began.elapsed())).await;
        }
    }

    fn show(&self, state: &SlotState<'_>) {
        self.telemetry.metrics.set_slot(state);
        if self.is_alone {
            self.telemetry.metrics.set_position(state);
        }
    }

    async fn look(&mut self) -> Result<()> {
        let session = match self.session.take() {
            Some(session) => session,
            None => {
                let name = format!("{} metrics", self.source.slot);
                let session = Session::connect(&self.source.database, &name).await?;
                session.run("bounding statements", BOUNDS).await?;
                session
            }
        };
        self.show(&status::look(&session, &self.source.slot).await?.slot_state());
        for count in &mut self.counts {
            let began = Instant::now();
            if count.due > began {
                continue;
            }
            let counted = session.row("counting rows", &count.sql, &[]).await;
            let pause = match &counted {
                Ok(_) => began.elapsed() * SHARE,
                Err(error) if session.client().is_closed() => return Err(error.clone()),
                Err(error) => {
                    let (slot, outbox, pause_s) = (&self.source.slot, &count.outbox, PAUSE.as_secs());
                    tracing::warn!(event = "row_count_failed", %slot, outbox, %error, pause_s,
                        "rows were not counted for the metrics; an index may help");
                    PAUSE
                }
            };
            count.due = began + pause;
            let number = counted.ok().flatten().and_then(|row| row.try_get(0).ok());
            self.telemetry.metrics.set_rows(count.rows, &count.outbox, number);
        }
        self.session = Some(session);
        Ok(())
    }
}
