//! SQL for the commands: a session, and templates that take names. Every name is quoted (P11).

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{Client, Row, SimpleQueryMessage};

use crate::config::TableName;
use crate::conninfo::ConnInfo;
use crate::error::{Error, Kind, Result};
use crate::postgres::fault::{self, While};
use crate::postgres::quote::{quote_ident, quote_literal, quote_table};
use crate::postgres::sql::SqlSession;

/// A session for one command.
#[derive(Debug)]
pub struct Session(SqlSession);

impl Session {
    /// Opens it; `command` is what the server shows as `application_name`.
    ///
    /// # Errors
    /// As [`SqlSession::connect`].
    pub async fn connect(database: &ConnInfo, command: &str) -> Result<Session> {
        Ok(Session(SqlSession::connect(database, &format!("walrelay {command}")).await?))
    }

    /// The client itself, for whoever asks in a way of his own.
    pub fn client(&self) -> &Client {
        self.0.client()
    }

    /// The one row of `sql`, or none. `what` follows "while" in errors.
    ///
    /// # Errors
    /// [`fault::sql`]'s; more than one row is a [`Kind::Bug`].
    pub async fn row(&self, what: &str, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Option<Row>> {
        self.client().query_opt(sql, values).await.map_err(|error| fault::sql(While::Querying(what), &error))
    }

    /// All rows of `sql`.
    ///
    /// # Errors
    /// [`fault::sql`]'s.
    pub async fn rows(&self, what: &str, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        self.client().query(sql, values).await.map_err(|error| fault::sql(While::Querying(what), &error))
    }

    /// All rows of `sql` as text, as the stream would print them: a cast to text would not (`true` for `t`).
    pub(in crate::cli) async fn texts(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>, tokio_postgres::Error> {
        let messages = self.client().simple_query(sql).await?;
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        rows.map(|row| (0..row.len()).map(|at| Ok(row.try_get(at)?.map(str::to_owned))).collect()).collect()
    }

    /// Runs statements that give nothing back.
    ///
    /// # Errors
    /// [`fault::sql`]'s.
    pub async fn run(&self, what: &str, sql: &str) -> Result<()> {
        self.client().batch_execute(sql).await.map_err(|error| fault::sql(While::Querying(what), &error))
    }
}

/// Whether an error is about a value that was given: class 22, data exception.
pub(in crate::cli) fn is_about_value(code: &SqlState) -> bool {
    code.code().starts_with("22")
}

/// A column of a row, by name.
///
/// # Errors
/// [`Kind::Bug`]: the queries are ours, so it is there and of its type.
pub fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &str) -> Result<T> {
    row.try_get(name).map_err(|error| Error::new(Kind::Bug, format!("column {name} of a query of ours: {error}")))
}

/// The table's DDL: the first migration.
pub const CREATE_TABLE: &str = include_str!("../../migrations/0001_outbox.sql");
/// The publication.
pub const CREATE_PUBLICATION: &str = include_str!("../../sql/create_publication.sql");
/// The publication where only messages are relayed.
pub const CREATE_PUBLICATION_OF_NOTHING: &str = include_str!("../../sql/create_publication_of_nothing.sql");
/// Its end.
pub const DROP_PUBLICATION: &str = include_str!("../../sql/drop_publication.sql");
/// The slot, before Postgres 17.
pub const CREATE_SLOT: &str = include_str!("../../sql/create_slot.sql");
/// The slot, with failover.
pub const CREATE_SLOT_FAILOVER: &str = include_str!("../../sql/create_slot_failover.sql");
/// Its end.
pub const DROP_SLOT: &str = include_str!("../../sql/drop_slot.sql");

/// What a placeholder stands for.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A name, put in as a quoted identifier.
    Name(&'a str),
    /// A table, put in with its schema.
    Table(&'a TableName),
    /// Tables, put in with their schemas and commas between.
    Tables(&'a [&'a TableName]),
    /// Text, put in as a quoted literal.
    Text(&'a str),
}

/// `template` with every `{placeholder}` replaced by its quoted value. What is put in is not looked at again.
///
/// # Errors
/// [`Kind::Bug`] for a placeholder without a value, [`Kind::Config`] for a value that cannot be quoted.
pub fn fill(template: &str, values: &[(&str, Value<'_>)]) -> Result<String> {
    let mut sql = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        sql.push_str(before);
        // A brace that encloses no name is SQL's own, as in a pattern's {1,200}.
        let name = after.split_once('}').filter(|(name, _)| is_placeholder(name));
        let Some((name, behind)) = name else {
            sql.push('{');
            rest = after;
            continue;
        };
        let value = values.iter().find(|(known, _)| *known == name);
        let (_, value) = value.ok_or_else(|| Error::new(Kind::Bug, format!("nothing to put in for {{{name}}}")))?;
        sql.push_str(&quoted(*value)?);
        rest = behind;
    }
    sql.push_str(rest);
    Ok(sql.trim_end().to_owned())
}

fn is_placeholder(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

fn quoted(value: Value<'_>) -> Result<String> {
    match value {
        Value::Name(name) => quote_ident(name),
        Value::Table(table) => quote_table(table),
        Value::Tables(tables) => {
            let tables: Vec<_> = tables.iter().map(|table| quote_table(table)).collect::<Result<_>>()?;
            Ok(tables.join(", "))
        }
        Value::Text(text) => quote_literal(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_stay_names() {
        let table: TableName = r#""Sa.les"."out"";drop table x;--""#.parse().unwrap();
        let tables = [&table, &table];
        let values = [("publication", Value::Name(r#"p" for all tables; --"#)), ("tables", Value::Tables(&tables))];
        insta::assert_snapshot!(fill(CREATE_PUBLICATION, &values).unwrap(), @r#"
        create publication "p"" for all tables; --" for table "Sa.les"."out"";drop table x;--", "Sa.les"."out"";drop table x;--"
            with (publish = 'insert', publish_via_partition_root = true);
        "#);
        let quote = fill(DROP_SLOT, &[("slot", Value::Text("a'); drop table x; --"))]).unwrap();
        assert_eq!(quote, "select pg_catalog.pg_drop_replication_slot('a''); drop table x; --');");
    }

    #[test]
    fn what_is_put_in_is_not_filled_again() {
        let values = [("a", Value::Name("{b}")), ("b", Value::Name("x"))];
        assert_eq!(fill("{a} {b}", &values).unwrap(), r#""{b}" "x""#);
    }

    #[test]
    fn a_brace_that_is_no_placeholder_stays() {
        assert_eq!(fill("~ '{1,200}' {", &[]).unwrap(), "~ '{1,200}' {");
    }

    #[test]
    fn a_placeholder_without_a_value_and_a_value_with_nul_are_refused() {
        assert_eq!(fill("{a}", &[]).unwrap_err().kind(), Kind::Bug);
        assert!(fill("{a}", &[("a", Value::Name("x\0y"))]).is_err());
        assert!(fill("{a}", &[("a", Value::Text("x\0y"))]).is_err());
    }

    #[test]
    fn every_template_can_be_filled() {
        let table: TableName = "outbox".parse().unwrap();
        let tables = [&table];
        let values = [
            ("table", Value::Table(&table)),
            ("tables", Value::Tables(&tables)),
            ("publication", Value::Name("p")),
            ("slot", Value::Text("s")),
        ];
        for template in [
            CREATE_TABLE,
            CREATE_PUBLICATION,
            CREATE_PUBLICATION_OF_NOTHING,
            DROP_PUBLICATION,
            CREATE_SLOT,
            CREATE_SLOT_FAILOVER,
            DROP_SLOT,
        ] {
            let sql = fill(template, &values).unwrap();
            assert!(sql.ends_with(';') && !sql.contains("{table}"), "{sql}");
        }
    }
}
