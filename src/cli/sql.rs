//! Columns of rows, and ranges of times.

use std::fmt;

use clap::Args;
use serde::Serialize;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, Row};

use crate::postgres::fault;
use crate::postgres::quote::{quote_literal, quote_range};
use crate::postgres::sql::SqlSession;
use crate::suggest::ordering;
use walrelay_core::catalog::{Column, Table};
use walrelay_core::clock::now_us;
use walrelay_core::config::unit::parse_duration;
use walrelay_core::config::{OutboxConfig, TableName};
use walrelay_core::error::{Error, Kind, Result};

/// How far the clock of a server is ahead of that of this host, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockDifference {
    pub ahead_us: i64,
    /// The part that the time of the question leaves open.
    pub open_us: i64,
}

impl ClockDifference {
    /// The greatest difference that is no fault, beside what the measurement leaves open.
    const TOLERANCE_US: i64 = 2_000_000;

    pub(crate) async fn read(session: &SqlSession) -> Result<ClockDifference> {
        const SQL: &str =
            "select (extract(epoch from pg_catalog.clock_timestamp()) * 1000000)::int8 as now_us";
        let before_us = now_us();
        let row = session.row("asking for the time", SQL, &[]).await?;
        let open_us = (now_us() - before_us) / 2;
        let server_us: i64 = column(
            &row.ok_or_else(|| Error::new(Kind::Bug, "the server has no time"))?,
            "now_us",
        )?;
        Ok(ClockDifference {
            ahead_us: server_us - before_us - open_us,
            open_us,
        })
    }

    /// The fault where the clocks differ too much.
    pub(crate) fn fault(&self) -> Option<Error> {
        (self.ahead_us.abs() - self.open_us > Self::TOLERANCE_US).then(|| {
            Error::new(
                Kind::Prerequisite,
                format!("{self}: lag in seconds is wrong by as much"),
            )
            .remedy("set both hosts by NTP, on Linux: timedatectl set-ntp true")
        })
    }
}

impl fmt::Display for ClockDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.ahead_us > 0 {
            "ahead of"
        } else {
            "behind"
        };
        write!(
            f,
            "the clock of Postgres is {} ms {way} that of this host",
            self.ahead_us.abs() / 1_000
        )
    }
}

/// Whether the error is about a value: class 22, data exception.
pub(crate) fn is_about_value(code: &SqlState) -> bool {
    code.code().starts_with("22")
}

pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &str) -> Result<T> {
    row.try_get(name).map_err(|error| {
        Error::new(
            Kind::Bug,
            format!("column {name} of a query of ours: {error}"),
        )
    })
}

/// A range of times; both ends may be open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Range {
    /// The first time, in the text form of Postgres.
    pub since: Option<String>,
    /// The end, which is not in the range.
    pub until: Option<String>,
    /// `since`, in milliseconds since the Unix epoch.
    pub since_ms: Option<i64>,
}

/// The flags of a range of rows.
#[derive(Debug, Clone, Default, Args, Serialize)]
pub(crate) struct Times {
    /// Only rows of this time or later: a timestamp as SQL reads it, in UTC unless it names a zone,
    /// or an age such as 2h. The time is in the column outbox.time, by default created_at or a
    /// similar column
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only rows before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
}

impl Range {
    pub(crate) async fn read(client: &Client, times: &Times) -> Result<Range> {
        let since = moment(client, "--since", times.since.as_deref()).await?;
        let until = moment(client, "--until", times.until.as_deref()).await?;
        if let (Some(since), Some(until)) = (&since, &until) {
            not_empty(since, until)?;
        }
        let since_ms = since.as_ref().map(|since| since.ms);
        Ok(Range {
            since: since.map(|since| since.text),
            until: until.map(|until| until.text),
            since_ms,
        })
    }

    /// The condition on rows; `true` without a range.
    pub(crate) fn condition(
        &self,
        outbox: &OutboxConfig,
        name: &TableName,
        table: &Table,
    ) -> Result<String> {
        if self.since.is_none() && self.until.is_none() {
            return Ok("true".to_owned());
        }
        let time = &time(outbox, name, table)?.name;
        quote_range(time, self.since.as_deref(), self.until.as_deref())
    }

    /// The time from which to read records, in milliseconds since the Unix epoch; clocks may differ
    /// by `apart_ms`. `None` if that is before the epoch.
    pub(crate) fn records_since_ms(&self, apart_ms: i64) -> Option<i64> {
        self.since_ms
            .map(|since_ms| since_ms.saturating_sub(apart_ms))
            .filter(|since_ms| *since_ms > 0)
    }
}

struct Moment {
    text: String,
    ms: i64,
}

/// Refuses an empty range. A duration is an age, so the longer one is the earlier time.
fn not_empty(since: &Moment, until: &Moment) -> Result<()> {
    if since.ms < until.ms || since.ms == until.ms && since.text != until.text {
        return Ok(());
    }
    let cause = format!(
        "--since is {}, and the end, {}, is not later: the range is empty",
        since.text, until.text
    );
    Err(Error::new(Kind::Config, cause)
        .remedy("give --since the earlier time; a duration is an age, as in --since 2h --until 1h"))
}

async fn moment(client: &Client, flag: &str, given: Option<&str>) -> Result<Option<Moment>> {
    const DOING: &str = "reading a time";
    let Some(given) = given else { return Ok(None) };
    let time = match parse_duration(given) {
        Some(ago) => format!(
            "pg_catalog.now() - pg_catalog.make_interval(secs => {})",
            ago.as_secs_f64()
        ),
        None => format!("{}::pg_catalog.timestamptz", quote_literal(given)?),
    };
    let sql = format!(
        "select time::text, (extract(epoch from time) * 1000)::int8 from (select {time} as time) \
         moment \
         where pg_catalog.isfinite(time)"
    );
    let refused = || {
        let cause = format!("{flag}: this is neither a timestamp as SQL reads it nor a duration");
        Error::new(Kind::Config, cause)
            .remedy("write '2026-03-01 12:00', '2026-03-01T12:00:00+01:00' or 2h")
    };
    match client.query_opt(&sql, &[]).await {
        Ok(Some(row)) => {
            let unreadable =
                |error| Error::new(Kind::Bug, format!("a time of a query of ours: {error}"));
            Ok(Some(Moment {
                text: row.try_get(0).map_err(unreadable)?,
                ms: row.try_get(1).map_err(unreadable)?,
            }))
        }
        Ok(None) => Err(refused()),
        Err(error) if error.code().is_some_and(is_about_value) => Err(refused()),
        Err(error) => Err(fault::query(DOING, &error)),
    }
}

/// The column with the time of a row: the configured one, or one of a usual name or a similar one.
fn time<'t>(outbox: &OutboxConfig, name: &TableName, table: &'t Table) -> Result<&'t Column> {
    let found = table.time_of(name, outbox.upkeep.time.as_deref())?;
    found.or_else(|| ordering(&table.columns)).ok_or_else(|| {
        let cause = format!(
            "--since and --until: no column of {name} is known to have the time of its rows"
        );
        Error::new(Kind::Config, cause)
            .remedy("name a column with a timestamp: time = \"…\" in [outbox]")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_core::testing::column_of;

    #[test]
    fn clocks_that_differ_by_more_than_the_measurement_leaves_open_are_a_fault() {
        let fault = |ahead_us, open_us| {
            ClockDifference { ahead_us, open_us }
                .fault()
                .map(|fault| fault.to_string())
        };
        assert_eq!(fault(-1_500, 900), None);
        assert_eq!(fault(7_000_000, 5_000_000), None);
        let found = fault(7_000_000, 1_000_000).unwrap();
        assert!(
            found.starts_with("the clock of Postgres is 7000 ms ahead of that of this host: lag"),
            "{found}"
        );
        assert!(
            fault(-7_000_000, 1_000_000)
                .unwrap()
                .contains("7000 ms behind")
        );
    }

    fn table(columns: &[(&str, &str)]) -> Table {
        let columns = columns
            .iter()
            .map(|(name, base)| column_of(name, base))
            .collect();
        Table {
            kind: "r".to_owned(),
            columns,
            ..Table::default()
        }
    }

    fn range(since: Option<&str>, until: Option<&str>) -> Range {
        Range {
            since: since.map(str::to_owned),
            until: until.map(str::to_owned),
            since_ms: None,
        }
    }

    fn made(range: &Range, time: Option<&str>, columns: &[(&str, &str)]) -> Result<String> {
        let mut outbox = OutboxConfig::default();
        outbox.upkeep.time = time.map(str::to_owned);
        range.condition(&outbox, &TableName::debezium(), &table(columns))
    }

    #[test]
    fn a_range_whose_until_is_not_after_since_is_refused() {
        let at = |text: &str, ms| Moment {
            text: text.to_owned(),
            ms,
        };
        let early = at("a", 1);
        let late = at("b", 2);
        assert!(not_empty(&early, &late).is_ok());
        // Less than a millisecond apart.
        assert!(not_empty(&early, &at("a1", 1)).is_ok());
        for (since, until) in [(&late, &early), (&early, &early)] {
            let error = not_empty(since, until).unwrap_err();
            assert!(
                error.kind() == Kind::Config && error.cause().contains("is not later"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_start_time_for_records_before_the_epoch_is_dropped() {
        let since = |since_ms| {
            Range {
                since_ms,
                ..Range::default()
            }
            .records_since_ms(10)
        };
        assert_eq!(
            [
                since(None),
                since(Some(15)),
                since(Some(10)),
                since(Some(i64::MIN))
            ],
            [None, Some(5), None, None]
        );
    }

    #[test]
    fn a_range_prefers_the_configured_time_column_and_then_timestamptz() {
        let columns = [
            ("occurred_at", "timestamp"),
            ("created_at", "timestamptz"),
            ("At", "timestamptz"),
        ];
        assert_eq!(made(&Range::default(), None, &[]).unwrap(), "true");
        let since = range(Some("2026"), None);
        assert_eq!(
            made(&since, None, &columns).unwrap(),
            "\"created_at\" >= '2026'::pg_catalog.timestamptz"
        );
        let both = range(Some("a"), Some("b"));
        assert_eq!(
            made(&both, None, &columns[..1]).unwrap(),
            "\"occurred_at\" >= 'a'::pg_catalog.timestamptz and \
             \"occurred_at\" < 'b'::pg_catalog.timestamptz"
        );
        assert_eq!(
            made(&since, Some("At"), &columns).unwrap(),
            "\"At\" >= '2026'::pg_catalog.timestamptz"
        );
        assert!(
            made(&since, None, &[("event_time", "timestamptz")])
                .unwrap()
                .starts_with("\"event_time\"")
        );
    }

    #[test]
    fn a_range_over_a_table_without_a_time_column_is_refused() {
        let since = range(Some("2026"), None);
        for (time, columns, expected) in [
            (
                None,
                &[("created_at", "text")][..],
                "no column of public.outbox is known",
            ),
            (
                Some("nope"),
                &[("created_at", "timestamptz")],
                "no column nope",
            ),
            (
                Some("id"),
                &[("id", "int8")],
                "column id of public.outbox is of type",
            ),
        ] {
            let error = made(&since, time, columns).unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            assert!(
                error.cause().contains(expected) && error.what_to_do().is_some(),
                "{error}"
            );
        }
    }
}
