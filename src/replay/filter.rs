//! The conditions on rows: from flags to SQL that Postgres has checked.
//!
//! Values are quoted. Only the operator's own condition is used unchanged, as `outbox.pending` is
//! (P11).

use tokio_postgres::Client;

use crate::poll::select::count;
use crate::poll::{Selection, TableFacts};
use crate::postgres::query::{QUERY_TIMEOUT, bounded};
use crate::postgres::quote::{quote_ident, quote_literals, quote_range};
use walrelay_core::catch_up::Which;
use walrelay_core::config::OutboxConfig;
use walrelay_core::error::{Error, Kind, Result};

/// The conditions on rows. A row has to match all of them; an empty one matches every row.
#[derive(Debug, Clone, Default)]
pub(crate) struct RowFilter {
    pub ids: Vec<String>,
    pub aggregates: Vec<String>,
    /// Rows of this time or later: a `timestamptz` in the text form of Postgres.
    pub since: Option<String>,
    pub until: Option<String>,
    pub sql: Option<String>,
}

enum Unfit {
    /// A value is not valid for its type.
    Value,
    Sql(Error),
}

impl RowFilter {
    /// The condition on rows of this table. Adds to `notes` what the operator has to know about it.
    ///
    /// An id that is not valid for this table matches no row, and is no error: another table may
    /// have it.
    pub(super) async fn condition(
        &self,
        client: &Client,
        facts: &TableFacts,
        outbox: &OutboxConfig,
        notes: &mut Vec<String>,
    ) -> Result<String> {
        let mut all = Vec::new();
        if !self.ids.is_empty() {
            all.push(self.with_id(client, facts, outbox).await?);
        }
        if !self.aggregates.is_empty() {
            let condition = one_of(&text_of(&outbox.names.aggregateid)?, &self.aggregates)?;
            let remedy = "name the column with the aggregate's id: aggregateid = \"…\" in \
                          [outbox.columns]; or use --where";
            check(client, "--aggregate", remedy, facts, outbox, &condition).await?;
            all.push(condition);
            let key = outbox.route.key.as_ref();
            if !key.is_some_and(|key| {
                key.columns()
                    .any(|column| column == outbox.names.aggregateid)
            }) {
                let made_of = key.map_or("there is no key".to_owned(), |key| {
                    format!("the key is {:?}", key.source())
                });
                notes.push(format!(
                    "--aggregate compares column {} of {}; {made_of}",
                    outbox.names.aggregateid, facts.name
                ));
            }
        }
        if self.since.is_some() || self.until.is_some() {
            all.push(self.in_range(facts)?);
        }
        if let Some(sql) = &self.sql {
            plain(sql)?;
            let remedy = "write one SQL condition over the table's columns, such as --where \
                          \"status = 'FAILED'\"; types \
                          and functions outside pg_catalog need their schema; --table narrows it \
                          to one table";
            // A bracket that closes the surrounding one early fails in one of the two forms.
            for nested in [sql.clone(), format!("(array[{sql}])[1]")] {
                check(client, "--where", remedy, facts, outbox, &nested).await?;
            }
            all.push(format!("({sql})"));
        }
        // An event that was given up is published again only where its row is asked for.
        if let (true, None, Some(failed)) = (self.ids.is_empty(), &self.sql, &outbox.upkeep.failed)
        {
            all.push(format!("({failed}\n) is not true"));
            notes.push(format!(
                "rows of {} that outbox.failed is true for are left out",
                facts.name
            ));
        }
        Ok(all.join(" and "))
    }

    /// Compares by the type of the column, so that an index is used. Leaves out values that are not
    /// valid for the type.
    async fn with_id(
        &self,
        client: &Client,
        facts: &TableFacts,
        outbox: &OutboxConfig,
    ) -> Result<String> {
        let as_text = facts.key.first().is_some_and(|id| !id.base.is_ordered);
        let id = if as_text {
            text_of(&outbox.names.id)?
        } else {
            quote_ident(&outbox.names.id)?
        };
        let all = one_of(&id, &self.ids)?;
        let told = |error| told("--id", "write the id as Postgres prints it", facts, &error);
        match plan(client, "--id", facts, outbox, &all).await? {
            Ok(()) => return Ok(all),
            Err(Unfit::Sql(error)) => return Err(told(error)),
            Err(Unfit::Value) => {}
        }
        let mut fit = Vec::new();
        for value in &self.ids {
            match plan(
                client,
                "--id",
                facts,
                outbox,
                &one_of(&id, std::slice::from_ref(value))?,
            )
            .await?
            {
                Ok(()) => fit.push(value.clone()),
                Err(Unfit::Value) => {}
                Err(Unfit::Sql(error)) => return Err(told(error)),
            }
        }
        if fit.is_empty() {
            Ok("false".to_owned())
        } else {
            one_of(&id, &fit)
        }
    }

    fn in_range(&self, facts: &TableFacts) -> Result<String> {
        let Some(time) = &facts.time else {
            let cause = format!(
                "--since and --until: no column of {} is known to hold the time of its rows",
                facts.name
            );
            return Err(Error::new(Kind::Config, cause)
                .remedy("name a column with a timestamp: time = \"…\" in [outbox]"));
        };
        quote_range(time, self.since.as_deref(), self.until.as_deref())
    }
}

fn text_of(column: &str) -> Result<String> {
    Ok(format!("{}::text", quote_ident(column)?))
}

fn one_of(left: &str, values: &[String]) -> Result<String> {
    Ok(format!("{left} in ({})", quote_literals(values)?))
}

/// Refuses characters that end a statement or hide the rest of it: the condition goes into the
/// middle of one.
fn plain(sql: &str) -> Result<()> {
    if sql.contains([';', '\0']) || sql.contains("--") || sql.contains("/*") {
        let cause = "--where: a condition has no semicolons, comments and NUL";
        return Err(Error::new(Kind::Config, cause).remedy(
            "write the condition alone; a text with such characters can be put together \
                     with || and chr()",
        ));
    }
    Ok(())
}

async fn check(
    client: &Client,
    flag: &str,
    remedy: &str,
    facts: &TableFacts,
    outbox: &OutboxConfig,
    condition: &str,
) -> Result<()> {
    match plan(client, flag, facts, outbox, condition).await? {
        Ok(()) => Ok(()),
        Err(Unfit::Value) => {
            let error = Error::new(
                Kind::Config,
                "a value in it cannot be of the type that is needed",
            );
            Err(told(flag, remedy, facts, &error))
        }
        Err(Unfit::Sql(error)) => Err(told(flag, remedy, facts, &error)),
    }
}

fn told(flag: &str, remedy: &str, facts: &TableFacts, error: &Error) -> Error {
    Error::new(
        Kind::Config,
        format_args!(
            "{flag} does not fit table {}: {}",
            facts.name,
            error.cause()
        ),
    )
    .remedy(remedy)
}

/// Has Postgres plan the query, which reads no row.
async fn plan(
    client: &Client,
    flag: &str,
    facts: &TableFacts,
    outbox: &OutboxConfig,
    condition: &str,
) -> Result<Result<(), Unfit>> {
    let doing = format!("checking {flag}");
    let sql = format!(
        "explain {}",
        count(facts, outbox, &Selection::of(Which::Where(condition)))?
    );
    let Err(failed) = bounded(&doing, QUERY_TIMEOUT, client.batch_execute(&sql)).await else {
        return Ok(Ok(()));
    };
    let code = failed.sqlstate().unwrap_or_default();
    match code.get(..2).unwrap_or_default() {
        _ if code == "42501" => {
            Err(Error::from(failed).remedy("grant the role what the condition needs"))
        }
        "22" => Ok(Err(Unfit::Value)),
        "42" | "0A" => Ok(Err(Unfit::Sql(failed.into()))),
        _ => Err(failed.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_contain_sql_are_quoted() {
        let values = [
            "a".to_owned(),
            "' or true".to_owned(),
            "\\'); drop table outbox".to_owned(),
        ];
        assert_eq!(
            one_of("\"id\"", &values).unwrap(),
            "\"id\" in ('a', ''' or true',  E'\\\\''); drop table outbox')"
        );
        assert_eq!(
            one_of("\"id\"", &["\0".to_owned()]).unwrap_err().kind(),
            Kind::Config
        );
        assert_eq!(text_of("a\"b").unwrap(), "\"a\"\"b\"::text");
    }

    #[test]
    fn a_condition_with_a_semicolon_a_comment_or_nul_is_refused() {
        for sql in [
            "true; drop table outbox",
            "true -- all",
            "true /* all */",
            "a = '\0'",
        ] {
            let error = plain(sql).unwrap_err();
            assert!(
                error.kind() == Kind::Config && error.cause().starts_with("--where"),
                "{error}"
            );
        }
        plain("status = 'a b' and n - 1 > 2 / 3 or x in (1, 2)").unwrap();
    }
}
