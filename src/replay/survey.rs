//! What would be published: every row is read and routed, and none is sent.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Replay, Table};
use crate::error::{Error, Kind, Result};
use crate::event::{Place, Polled, Via};
use crate::poll::select::{extent, rows};
use crate::poll::{NEEDS_ORDER, PolledRow, Selection, Which};
use crate::position::Lsn;
use crate::route::Router;

/// How many rows that cannot be routed are named.
const EXAMPLES_MAX: usize = 10;

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// Rows in all tables.
    pub rows: u64,
    /// Those of them that cannot be routed.
    pub unroutable: u64,
    /// Each table.
    pub tables: Vec<Found>,
    /// The first rows that cannot be routed.
    pub unroutable_rows: Vec<Unroutable>,
}

/// What was found in a table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The table.
    pub outbox: String,
    /// How many rows.
    pub rows: u64,
    /// What they are ordered by, before the id, as SQL.
    pub order: Option<String>,
    /// Id of the first in that order.
    pub first: Option<String>,
    /// Id of the last.
    pub last: Option<String>,
    /// The earliest time, where the table has one.
    pub from: Option<String>,
    /// The latest time.
    pub to: Option<String>,
    /// How many go to each topic.
    pub topics: BTreeMap<String, u64>,
}

/// A row without a way to Kafka.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unroutable {
    /// The table.
    pub outbox: String,
    /// Its id, as it is.
    pub id: String,
    /// What is wrong with it.
    pub why: String,
}

impl Survey {
    /// The topics of all tables.
    pub fn topics(&self) -> Vec<&str> {
        let mut topics: Vec<&str> =
            self.tables.iter().flat_map(|found| found.topics.keys().map(String::as_str)).collect();
        topics.sort_unstable();
        topics.dedup();
        topics
    }
}

impl Replay<'_> {
    /// Reads and routes all rows. `say` is told of each row: the table, how many so far, and of how many.
    ///
    /// Holds one row, and a count for each topic.
    ///
    /// # Errors
    /// [`Kind::Config`] where several rows of a table are wanted and nothing tells their order; what the session gives.
    pub async fn survey(&mut self, say: &mut dyn FnMut(&str, u64, u64)) -> Result<Survey> {
        let mut survey = Survey::default();
        for table in &self.tables {
            let (facts, outbox) = (&table.facts, table.outbox);
            let selection = Selection::of(Which::Where(&table.condition));
            let (count, from, to) = self.reader.extent(&extent(facts, outbox, &selection)?).await?;
            let order = facts.order.as_ref().map(|order| order.sql.clone());
            let name = facts.name.to_string();
            let mut found = Found { outbox: name.clone(), rows: count, order, from, to, ..Found::default() };
            if count > 1 && found.order.is_none() {
                return Err(orderless(&name, count));
            }
            if count > 0 {
                let mut rows = self.reader.rows(&rows(facts, outbox, &selection)?).await?;
                let mut looking = Looking::new(table)?;
                let mut read = 0;
                while let Some(row) = rows.next().await? {
                    read += 1;
                    looking.row(&row, &mut found, &mut survey);
                    say(&name, read, count);
                }
            }
            survey.rows += found.rows;
            survey.tables.push(found);
        }
        self.total = survey.rows;
        Ok(survey)
    }
}

fn orderless(table: &str, count: u64) -> Error {
    let cause = format!(
        "{count} rows of table {table} are asked for, and nothing tells the order of an aggregate's events: it has no \
         identity or serial column"
    );
    Error::new(Kind::Config, cause).remedy(format!("{NEEDS_ORDER}; or replay one row at a time with --id"))
}

/// Takes rows to where they would go.
struct Looking<'t> {
    table: &'t Table<'t>,
    router: Router,
    polled: Polled,
}

impl<'t> Looking<'t> {
    fn new(table: &'t Table<'t>) -> Result<Looking<'t>> {
        let router = Router::new(table.outbox).map_err(|unknown| Error::new(Kind::Bug, unknown))?;
        Ok(Looking { table, router, polled: table.polled()? })
    }

    fn row(&mut self, row: &PolledRow, found: &mut Found, survey: &mut Survey) {
        let id = row.id().to_owned();
        let place = Place { commit_lsn: Lsn::ZERO, index: 0, via: Via::Replay };
        let routed = match self.polled.event(place, self.table.number, row.values()) {
            Ok(event) => match self.router.route(&event) {
                Ok(routed) => {
                    routed.with_record(|record| match found.topics.get_mut(record.topic) {
                        Some(count) => *count += 1,
                        None => {
                            found.topics.insert(record.topic.to_owned(), 1);
                        }
                    });
                    Ok(())
                }
                Err(error) => Err(error.problem.to_string()),
            },
            Err((column, fault)) => {
                let column = self.table.outbox.columns.get(column).map(String::as_str).unwrap_or_default();
                Err(format!("column {column} {fault}"))
            }
        };
        if let Err(why) = routed {
            survey.unroutable += 1;
            if survey.unroutable_rows.len() < EXAMPLES_MAX {
                let (outbox, id) = (found.outbox.clone(), id.clone());
                survey.unroutable_rows.push(Unroutable { outbox, id, why });
            }
        }
        if found.first.is_none() {
            found.first = Some(id.clone());
        }
        found.last = Some(id);
    }
}

impl Table<'_> {
    pub(super) fn polled(&self) -> Result<Polled> {
        let columns = self.facts.columns.clone();
        Polled::new(self.outbox, columns).map_err(|column| {
            Error::new(Kind::Publication, format!("table {} has no column {column}", self.facts.name))
        })
    }
}
