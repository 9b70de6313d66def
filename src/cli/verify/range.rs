//! From when to when.

use tokio_postgres::Client;

use crate::cli::sql::is_about_value;
use crate::config::unit::parse_duration;
use crate::config::{OutboxConfig, TableName};
use crate::error::{Error, Kind, Result};
use crate::postgres::catalog::{Column, Table};
use crate::postgres::fault::{self, While};
use crate::postgres::quote::{quote_ident, quote_literal};
use crate::suggest::ordering;

/// A range of times; both ends may be open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Range {
    /// The first, as Postgres writes it.
    pub since: Option<String>,
    /// The first behind it.
    pub until: Option<String>,
    /// The first, in milliseconds since the Unix epoch.
    pub since_ms: Option<i64>,
}

/// Reads both ends as the server does.
///
/// # Errors
/// [`Kind::Config`] for what is no time, and an end that is not behind the beginning; what the session gives.
pub async fn read(client: &Client, since: Option<&str>, until: Option<&str>) -> Result<Range> {
    let since = moment(client, "--since", since).await?;
    let until = moment(client, "--until", until).await?;
    if let (Some(since), Some(until)) = (&since, &until) {
        not_empty(since, until)?;
    }
    let (since, since_ms) = since.unzip();
    Ok(Range { since, until: until.map(|(text, _)| text), since_ms })
}

/// Whether there is a moment in between: a duration is so long ago, so that the longer one comes first.
fn not_empty((since, since_ms): &(String, i64), (until, until_ms): &(String, i64)) -> Result<()> {
    if since_ms < until_ms || since_ms == until_ms && since != until {
        return Ok(());
    }
    let cause = format!("--since is {since}, and --until, {until}, is not later: no row is in between");
    Err(Error::new(Kind::Config, cause)
        .remedy("give --since the earlier one; a duration is so long ago, as in --since 2h --until 1h"))
}

impl Range {
    /// From when on records are to be read, in milliseconds since the Unix epoch, with clocks that may be `apart_ms` apart.
    /// None where that is before there could be any.
    pub fn records_since_ms(&self, apart_ms: i64) -> Option<i64> {
        self.since_ms.map(|since_ms| since_ms.saturating_sub(apart_ms)).filter(|since_ms| *since_ms > 0)
    }
}

async fn moment(client: &Client, flag: &str, given: Option<&str>) -> Result<Option<(String, i64)>> {
    const DOING: &str = "reading a time";
    let Some(given) = given else { return Ok(None) };
    let time = match parse_duration(given) {
        Some(ago) => format!("pg_catalog.now() - pg_catalog.make_interval(secs => {})", ago.as_secs_f64()),
        None => format!("{}::pg_catalog.timestamptz", quote_literal(given)?),
    };
    let sql = format!(
        "select time::text, (extract(epoch from time) * 1000)::int8 from (select {time} as time) moment \
         where pg_catalog.isfinite(time)"
    );
    let refused = || {
        let cause = format!("{flag}: this is neither a timestamp as SQL reads it nor a duration");
        Error::new(Kind::Config, cause).remedy("write '2026-03-01 12:00', '2026-03-01T12:00:00+01:00' or 2h")
    };
    match client.query_opt(&sql, &[]).await {
        Ok(Some(row)) => {
            let unreadable = |error| Error::new(Kind::Bug, format!("a time of a query of ours: {error}"));
            Ok(Some((row.try_get(0).map_err(unreadable)?, row.try_get(1).map_err(unreadable)?)))
        }
        Ok(None) => Err(refused()),
        Err(error) if error.code().is_some_and(is_about_value) => Err(refused()),
        Err(error) => Err(fault::sql(While::Querying(DOING), &error)),
    }
}

/// The condition on rows, `true` where there is no range.
///
/// # Errors
/// [`Kind::Config`] where there is a range and no column with a time.
pub fn condition(range: &Range, outbox: &OutboxConfig, name: &TableName, table: &Table) -> Result<String> {
    let ends = [(&range.since, ">="), (&range.until, "<")];
    if ends.iter().all(|(end, _)| end.is_none()) {
        return Ok("true".to_owned());
    }
    let time = time(outbox, name, table)?;
    let column = quote_ident(&time.name)?;
    let condition = |(end, compared): (&Option<String>, &str)| {
        let Some(end) = end else { return Ok(None) };
        let end = format!("{}::pg_catalog.timestamptz", quote_literal(end)?);
        // Without a zone it is taken to be UTC, in which the session is.
        let end = if time.base.name == "timestamptz" { end } else { format!("({end} at time zone 'UTC')") };
        Ok::<_, Error>(Some(format!("{column} {compared} {end}")))
    };
    let conditions: Vec<String> =
        ends.into_iter().filter_map(|end| condition(end).transpose()).collect::<Result<_>>()?;
    Ok(conditions.join(" and "))
}

fn time<'t>(outbox: &OutboxConfig, name: &TableName, table: &'t Table) -> Result<&'t Column> {
    let Some(wanted) = outbox.upkeep.time.as_deref() else {
        return table.time_column().or_else(|| ordering(&table.columns)).ok_or_else(|| {
            let cause = format!("--since and --until: no column of {name} is known to hold the time of its rows");
            Error::new(Kind::Config, cause).remedy("name a column with a timestamp: time = \"…\" in [outbox]")
        });
    };
    table.column(wanted).filter(|column| column.is_timestamp()).ok_or_else(|| {
        let what = if table.column(wanted).is_some() { "is no timestamp" } else { "does not exist" };
        let cause = format!("outbox.time: column {wanted} of {name} {what}");
        Error::new(Kind::Config, cause).remedy("name a column of type timestamptz or timestamp")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: &[(&str, &str)]) -> Table {
        let columns = columns.iter().map(|(name, base)| Column::of(name, base)).collect();
        Table { kind: "r".to_owned(), columns, ..Table::default() }
    }

    fn range(since: Option<&str>, until: Option<&str>) -> Range {
        Range { since: since.map(str::to_owned), until: until.map(str::to_owned), since_ms: None }
    }

    fn made(range: &Range, time: Option<&str>, columns: &[(&str, &str)]) -> Result<String> {
        let mut outbox = OutboxConfig::default();
        outbox.upkeep.time = time.map(str::to_owned);
        condition(range, &outbox, &TableName::debezium(), &table(columns))
    }

    #[test]
    fn an_end_that_is_not_behind_the_beginning_is_refused() {
        let (early, late) = (("a".to_owned(), 1), ("b".to_owned(), 2));
        assert!(not_empty(&early, &late).is_ok());
        // Less than a millisecond apart.
        assert!(not_empty(&early, &("a1".to_owned(), 1)).is_ok());
        for (since, until) in [(&late, &early), (&early, &early)] {
            let error = not_empty(since, until).unwrap_err();
            assert!(error.kind() == Kind::Config && error.cause().contains("is not later"), "{error}");
        }
    }

    #[test]
    fn records_have_no_time_before_the_epoch() {
        let since = |since_ms| Range { since_ms, ..Range::default() }.records_since_ms(10);
        assert_eq!([since(None), since(Some(15)), since(Some(10)), since(Some(i64::MIN))], [None, Some(5), None, None]);
    }

    #[test]
    fn without_a_range_no_time_is_needed() {
        assert_eq!(made(&Range::default(), None, &[]).unwrap(), "true");
    }

    #[test]
    fn the_surest_time_counts_and_one_that_is_named_before_all() {
        let columns = [("occurred_at", "timestamp"), ("created_at", "timestamptz"), ("At", "timestamptz")];
        let since = range(Some("2026"), None);
        assert_eq!(made(&since, None, &columns).unwrap(), "\"created_at\" >= '2026'::pg_catalog.timestamptz");
        let both = range(Some("a"), Some("b"));
        assert_eq!(
            made(&both, None, &columns[..1]).unwrap(),
            "\"occurred_at\" >= ('a'::pg_catalog.timestamptz at time zone 'UTC') and \
             \"occurred_at\" < ('b'::pg_catalog.timestamptz at time zone 'UTC')"
        );
        assert_eq!(made(&since, Some("At"), &columns).unwrap(), "\"At\" >= '2026'::pg_catalog.timestamptz");
        assert!(made(&since, None, &[("event_time", "timestamptz")]).unwrap().starts_with("\"event_time\""));
    }

    #[test]
    fn a_range_without_a_time_is_an_error_that_says_so() {
        let since = range(Some("2026"), None);
        for (time, columns, expected) in [
            (None, &[("created_at", "text")][..], "no column of public.outbox is known"),
            (Some("nope"), &[("created_at", "timestamptz")], "column nope of public.outbox does not exist"),
            (Some("id"), &[("id", "int8")], "column id of public.outbox is no timestamp"),
        ] {
            let error = made(&since, time, columns).unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            assert!(error.cause().contains(expected) && error.what_to_do().is_some(), "{error}");
        }
    }
}
