//! Drops partitions that hold nothing but rows that are published and old: no row is touched, nobody is locked out.

use std::time::Duration;

use tokio_postgres::Client;

use crate::error::{Error, Kind, Result};
use crate::failpoint;
use crate::ledger::trail::Published;
use crate::postgres::query::{QueryError, bounded};
use crate::postgres::quote::{quote_ident, quote_table};
use crate::upkeep::cleanup::Sweeper;
use crate::upkeep::{ANSWER_TIMEOUT, bound};

const PARTITIONS: &str = include_str!("../../sql/upkeep/partitions.sql");
/// How long detaching waits for transactions that use the table. They go on meanwhile; whoever gives up leaves a partition
/// half detached, which the next one finishes.
const DETACH_TIMEOUT: Duration = Duration::from_secs(60);

/// A partition whose every row is older than the retention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its name as SQL takes it.
    pub name: String,
    /// Rows, all published; none where some are not, or it cannot be dropped.
    pub rows: Option<u64>,
    /// Why it stays, and its rows are deleted one by one.
    pub stays: Option<String>,
    bounds: String,
    is_detaching: bool,
}

/// The partitions that end before the retention begins, oldest first. Reads their rows, changes nothing. Empty for a table
/// that is not partitioned by ranges of its time column.
///
/// None can be dropped while the table `is_polled` and what is `published` is known by snapshots: a row that is written into one while it
/// is detached is not read, and the next snapshot sees it.
///
/// # Errors
/// As [`crate::upkeep::cleanup::sweep`].
pub async fn old(
    client: &Client,
    sweeper: &Sweeper,
    published: Option<&Published>,
    is_polled: bool,
) -> Result<Vec<Partition>> {
    let doing = format!("looking at the partitions of {}", sweeper.name);
    let (oid, seconds) = (i64::from(sweeper.table.oid), sweeper.retention.as_secs_f64());
    let rows = bounded(&doing, ANSWER_TIMEOUT, client.query(PARTITIONS, &[&oid, &sweeper.time, &seconds])).await;
    let rows = rows.map_err(|failed| sweeper.told(&doing, &failed))?;
    let bug = |error: tokio_postgres::Error| Error::new(Kind::Bug, format!("while {doing}: {error}"));
    let mut partitions = Vec::new();
    for row in &rows {
        let text = |column: &str| row.try_get::<_, String>(column).map_err(bug);
        let is = |column: &str| row.try_get::<_, bool>(column).map_err(bug);
        let name = format!("{}.{}", quote_ident(&text("schema")?)?, quote_ident(&text("name")?)?);
        let (bounds, is_detaching) = (text("bounds")?, is("detaching")?);
        let mut partition = Partition { name, rows: None, stays: None, bounds, is_detaching };
        if !is("owned")? {
            partition.stays = Some("only the owner of the table can drop it".to_owned());
        } else if is_polled && published.is_some() && !partition.is_detaching {
            partition.stays =
                Some("the table is polled, and a row that is written meanwhile would not be read".to_owned());
        } else if is("has_default")? && !partition.is_detaching {
            partition.stays =
                Some("beside a default partition none can be detached without locking the table".to_owned());
        } else {
            let (all, unpublished) = partition.count(client, sweeper, published).await?;
            match unpublished {
                0 => partition.rows = Some(all),
                _ => partition.stays = Some(format!("{unpublished} of its rows are not published")),
            }
        }
        partitions.push(partition);
    }
    Ok(partitions)
}

impl Partition {
    /// The question whether something holds it, under the name the operator's condition may use.
    fn question(&self, sweeper: &Sweeper, published: Option<&Published>) -> Result<String> {
        let (old, condition) = (sweeper.is_old()?, sweeper.basis.condition(&sweeper.name, published)?);
        let (name, alias) = (&self.name, quote_ident(sweeper.name.table())?);
        Ok(format!(
            "select count(*), count(*) filter (where ({old} and {condition}) is not true) from {name} as {alias}"
        ))
    }

    async fn count(&self, client: &Client, sweeper: &Sweeper, published: Option<&Published>) -> Result<(u64, u64)> {
        let doing = format!("counting rows of partition {}", self.name);
        let row = sweeper.unbounded(client, &doing, &self.question(sweeper, published)?).await?;
        let number = |column: usize| row.try_get::<_, i64>(column).map(i64::unsigned_abs).unwrap_or_default();
        Ok((number(0), number(1)))
    }

    /// Detaches and drops it. Waits up to a minute for transactions that use the table, which nobody else waits for. A row
    /// that was written into it meanwhile brings it back into its table; then, and where somebody is in the way, the
    /// answer is why it stays. For a session that is [`bound`].
    ///
    /// A process that dies between the two leaves a table of its own, with what was in the partition.
    ///
    /// # Errors
    /// As [`crate::upkeep::cleanup::sweep`]; and where it can be neither dropped nor attached again, with the statement.
    pub async fn drop(
        &self,
        client: &Client,
        sweeper: &Sweeper,
        published: Option<&Published>,
    ) -> Result<Result<(), String>> {
        let (name, table) = (&self.name, quote_table(&sweeper.name)?);
        let how = if self.is_detaching { "finalize" } else { "concurrently" };
        let doing = format!("detaching partition {name}");
        if let Err(failed) = detach(client, &doing, &format!("alter table {table} detach partition {name} {how}")).await
        {
            return match &failed {
                QueryError::Refused { error, .. } => Ok(Err(error.cause().to_owned())),
                QueryError::ShuttingDown(_) | QueryError::Broken(_) => Err(sweeper.told(&doing, &failed)),
            };
        }
        failpoint::reached("detached");
        let stays = match self.dropped(client, sweeper, published).await? {
            Ok(()) => return Ok(Ok(())),
            Err(stays) => stays,
        };
        let doing = format!("attaching partition {name} again, because {stays}");
        let attach = format!("alter table {table} attach partition {name} {}", self.bounds);
        match bounded(&doing, ANSWER_TIMEOUT, client.batch_execute(&attach)).await {
            Ok(()) => Ok(Err(stays)),
            Err(failed) => Err(sweeper.told(&doing, &failed).remedy(format!("{attach};"))),
        }
    }

    /// Drops the table that it is by now, unless a row came that must not go.
    async fn dropped(
        &self,
        client: &Client,
        sweeper: &Sweeper,
        published: Option<&Published>,
    ) -> Result<Result<(), String>> {
        let name = &self.name;
        let doing = format!("dropping partition {name}");
        let mut done = bounded(
            &doing,
            ANSWER_TIMEOUT,
            client.batch_execute(&format!("begin; lock table {name}; set local statement_timeout = 0")),
        )
        .await;
        let mut unpublished = 0;
        if done.is_ok() {
            let question = self.question(sweeper, published)?;
            // It is nobody's table by now: nobody waits, however long it takes to read.
            let row = client.query_one(&question, &[]).await.map_err(|error| QueryError::of(&doing, &error));
            let end = match row.as_ref().map(|row| row.try_get::<_, i64>(1)) {
                Ok(Ok(0)) => format!("drop table {name}; commit"),
                Ok(count) => {
                    unpublished = count.unwrap_or(1);
                    "rollback".to_owned()
                }
                Err(_) => String::new(),
            };
            done = match row {
                Ok(_) => bounded(&doing, ANSWER_TIMEOUT, client.batch_execute(&end)).await,
                Err(failed) => Err(failed),
            };
        }
        match done {
            Ok(()) if unpublished == 0 => Ok(Ok(())),
            Ok(()) => Ok(Err(format!("{unpublished} rows came that are not published"))),
            Err(QueryError::Refused { error, .. }) => {
                let rolled_back = bounded(&doing, ANSWER_TIMEOUT, client.batch_execute("rollback")).await;
                rolled_back.map_err(|failed| sweeper.told(&doing, &failed))?;
                Ok(Err(error.cause().to_owned()))
            }
            Err(failed) => Err(sweeper.told(&doing, &failed)),
        }
    }
}

async fn detach(client: &Client, doing: &str, sql: &str) -> Result<(), QueryError> {
    let timeout = DETACH_TIMEOUT.as_millis();
    let patience = format!("set lock_timeout = {timeout}; set statement_timeout = 0");
    bounded(doing, ANSWER_TIMEOUT, client.batch_execute(&patience)).await?;
    // Alone in its message: it is refused within a transaction, and two statements of a message are one.
    let done = client.batch_execute(sql).await.map_err(|error| QueryError::of(doing, &error));
    bound(client).await.map_err(QueryError::Broken)?;
    done
}
