//! One row of the outbox table, read in the text form the stream would have.
//!
//! The values come through the simple protocol, which prints them with the output functions of their types, as `pgoutput`
//! does; a cast to text would not (`true` for `t`). The session has the settings of a stream that decide the text of a
//! value: [`crate::postgres::sql::SqlSession`].

use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;

use crate::cli::session::Session;
use crate::config::{OutboxConfig, TableName};
use crate::error::{Error, Kind, Result};
use crate::postgres::catalog::Table;
use crate::postgres::fault::{self, While};
use crate::postgres::quote::{quote_ident, quote_literal, quote_own_rows};
use crate::suggest::ordering;

const DOING: &str = "reading a row";
/// Finding the newest row of a large table may take long, and any row will do.
const LIMIT: &str = "set statement_timeout = '10s'";

/// Which row.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The outbox, whose columns are read.
    pub outbox: &'a OutboxConfig,
    /// Its table's name.
    pub name: &'a TableName,
    /// Its table.
    pub table: &'a Table,
    /// The row with this id; the newest where there is none.
    pub id: Option<&'a str>,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// Values of the outbox's columns, in that order; `None` is NULL.
    pub values: Vec<Option<String>>,
    /// Why it is this row, for people.
    pub chosen: String,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A row.
    Row(Read),
    /// There is none.
    Empty,
    /// The role may not read the table.
    Forbidden,
}

/// How the newest row is found.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Order {
    clause: String,
    chosen: String,
}

/// Reads the row. Changes nothing, and takes ten seconds at most for each of two tries.
///
/// # Errors
/// [`Kind::Config`] where no row has the id, or none can have it; what the session gives.
pub async fn read(session: &Session, wanted: &Wanted<'_>) -> Result<Answer> {
    session.run(DOING, LIMIT).await?;
    let outbox = wanted.outbox;
    let Some(id) = wanted.id else {
        let order = order(outbox, wanted.table)?;
        let newest = format!("{} order by {} limit 1", select(wanted)?, order.clause);
        let any = format!("{} limit 1", select(wanted)?);
        return match first(session, &newest).await {
            Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => {
                let chosen = "any one: finding the newest took too long";
                answer(first(session, &any).await, chosen)
            }
            found => answer(found, &order.chosen),
        };
    };
    let by_id = format!("{} where {} = {} limit 1", select(wanted)?, quote_ident(&outbox.id)?, quote_literal(id)?);
    let found = first(session, &by_id).await;
    if let Err(error) = &found
        && error.code().is_some_and(|code| code.code().starts_with("22"))
    {
        let cause = format!("--id: this cannot be a value of column {} of {}", outbox.id, wanted.name);
        return Err(Error::new(Kind::Config, cause).remedy("write the id as Postgres prints it"));
    }
    match answer(found, "the one with this id")? {
        Answer::Row(read) => Ok(Answer::Row(read)),
        Answer::Empty => {
            let cause = format!("--id: no row of {} has this {}, or the role may not see it", wanted.name, outbox.id);
            Err(Error::new(Kind::Config, cause).remedy("leave --id out for the newest row"))
        }
        Answer::Forbidden => {
            let cause = format!("--id: the role may not read {}", wanted.name);
            Err(Error::new(Kind::PostgresRefused, cause).remedy("grant it SELECT on the table, or leave --id out"))
        }
    }
}

async fn first(session: &Session, sql: &str) -> Result<Option<Vec<Option<String>>>, tokio_postgres::Error> {
    let messages = session.client().simple_query(sql).await?;
    let row =
        messages.iter().find_map(|message| if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None });
    let Some(row) = row else { return Ok(None) };
    (0..row.len()).map(|at| row.try_get(at).map(|value| value.map(str::to_owned))).collect::<Result<_, _>>().map(Some)
}

fn answer(found: Result<Option<Vec<Option<String>>>, tokio_postgres::Error>, chosen: &str) -> Result<Answer> {
    match found {
        Ok(Some(values)) => Ok(Answer::Row(Read { values, chosen: chosen.to_owned() })),
        Ok(None) => Ok(Answer::Empty),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(Answer::Forbidden),
        Err(error) => Err(fault::sql(While::Querying(DOING), &error)),
    }
}

fn select(wanted: &Wanted<'_>) -> Result<String> {
    let columns = wanted.outbox.columns.iter().map(|column| quote_ident(column)).collect::<Result<Vec<_>>>()?;
    let rows = quote_own_rows(wanted.name, wanted.table.is_partitioned())?;
    Ok(format!("select {} from {rows}", columns.join(", ")))
}

/// The newest has the largest number, or the latest time, or else the last place in the file, mostly.
fn order(outbox: &OutboxConfig, table: &Table) -> Result<Order> {
    let by =
        |name: &str, chosen: String| Ok(Order { clause: format!("{} desc nulls last", quote_ident(name)?), chosen });
    if table.columns.iter().any(|column| column.name == outbox.id && column.is_integer()) {
        return by(&outbox.id, format!("the newest by {}", outbox.id));
    }
    match ordering(&table.columns) {
        Some(column) => by(&column.name, format!("the newest by {}", column.name)),
        None => Ok(Order { clause: "ctid desc".to_owned(), chosen: "the last in the table's file".to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::catalog::Column;

    fn table(kind: &str, columns: &[(&str, &str)]) -> Table {
        let columns = columns.iter().map(|(name, base)| Column::of(name, base)).collect();
        Table { kind: kind.to_owned(), columns, ..Table::default() }
    }

    #[test]
    fn the_newest_row_has_the_largest_number_or_the_latest_time() {
        let outbox = OutboxConfig::default();
        let chosen = |columns: &[(&str, &str)]| {
            let order = order(&outbox, &table("r", columns)).unwrap();
            (order.clause, order.chosen)
        };
        let texts = |clause: &str, chosen: &str| (clause.to_owned(), chosen.to_owned());
        let both = [("id", "int8"), ("created_at", "timestamptz")];
        assert_eq!(chosen(&both), texts("\"id\" desc nulls last", "the newest by id"));
        let created = texts("\"created_at\" desc nulls last", "the newest by created_at");
        assert_eq!(chosen(&[("id", "uuid"), ("created_at", "timestamp")]), created);
        assert_eq!(chosen(&[("id", "uuid")]), texts("ctid desc", "the last in the table's file"));
    }

    #[test]
    fn names_are_quoted_and_rows_of_heirs_left_out() {
        let name: TableName = r#""My ""S"".t""#.parse().unwrap();
        let outbox = OutboxConfig { columns: vec!["a\"b".to_owned(), "c".to_owned()], ..OutboxConfig::default() };
        let select =
            |kind: &str| select(&Wanted { outbox: &outbox, name: &name, table: &table(kind, &[]), id: None }).unwrap();
        assert_eq!(select("r"), r#"select "a""b", "c" from only "public"."My ""S"".t""#);
        assert_eq!(select("p"), r#"select "a""b", "c" from "public"."My ""S"".t""#);
    }
}
