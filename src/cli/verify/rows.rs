//! The rows, read in one transaction a page at a time, each routed as the relay routes it.

use crate::cli::progress::Bar;
use crate::cli::sql::{Range, is_about_value};
use crate::cli::survey::described;
use crate::postgres::fault;
use crate::postgres::quote::{quote_ident, quote_list, quote_literals, quote_table, quoted};
use crate::postgres::sql::SqlSession;
use crate::verify::Comparison;
use walrelay_core::catalog::Table;
use walrelay_core::config::{OutboxConfig, TableName, ValueConfig};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::event::{Place, Polled, Via};
use walrelay_core::position::Lsn;

use walrelay_core::route::Router;
use walrelay_core::template::Template;

const DOING: &str = "reading the outbox";
/// One snapshot for all tables.
const BEGIN: &str =
    "begin isolation level repeatable read read only; set local cursor_tuple_fraction = 1";
const FETCH: &str = "fetch forward 2000 from walrelay_verify";
const IDS_MAX: usize = 1_000;

#[derive(Debug)]
pub(crate) struct Plan {
    pub name: TableName,
    pub order: Option<String>,
    /// The outbox as far as topic, key, partition and timestamp go, and its columns.
    outbox: OutboxConfig,
    columns: Vec<walrelay_core::decode::RelationColumn>,
    id_type: String,
    table: String,
    condition: String,
}

impl Plan {
    pub(crate) fn new(
        outbox: &OutboxConfig,
        name: &TableName,
        table: &Table,
        range: &Range,
    ) -> Result<Plan> {
        let outbox = without_content(outbox);
        let order = match &outbox.upkeep.order_by {
            Some(order) => Some(order.clone()),
            None => numbered(&outbox, table)?,
        };
        let id = table.column(&outbox.names.id);
        Ok(Plan {
            condition: range.condition(&outbox, name, table)?,
            columns: outbox
                .columns
                .iter()
                .map(|name| described(name, table))
                .collect(),
            id_type: id
                .map(|column| column.type_name.clone())
                .unwrap_or_default(),
            // With the rows of child tables, as the application sees them: no stream has those.
            table: quote_table(name)?,
            name: name.clone(),
            order,
            outbox,
        })
    }

    fn select(&self) -> Result<String> {
        let columns = quote_list(&self.outbox.columns)?;
        // Rows without an order have the same rank.
        let rank = match &self.order {
            Some(order) => format!("pg_catalog.dense_rank() over (order by {order})"),
            None => "0".to_owned(),
        };
        Ok(format!(
            "select {columns}, {rank} from {} where {}",
            self.table, self.condition
        ))
    }
}

/// The outbox without value and headers, so that no payload is read.
fn without_content(outbox: &OutboxConfig) -> OutboxConfig {
    let mut outbox = outbox.clone();
    outbox.route.value = ValueConfig::Template(Template::column(&outbox.names.id));
    outbox.route.headers.clear();
    outbox.route.headers_from = None;
    outbox.route.position_header = None;
    outbox.need_only_routed();
    outbox
}

fn numbered(outbox: &OutboxConfig, table: &Table) -> Result<Option<String>> {
    let id = || table.column(&outbox.names.id).filter(|id| id.is_integer());
    table
        .counters()
        .next()
        .or_else(id)
        .map(|column| quote_ident(&column.name))
        .transpose()
}

/// Reads the rows of all plans as they are at one moment.
pub(crate) async fn read(
    session: &SqlSession,
    plans: &[Plan],
    user: &str,
    into: &mut Comparison,
    mut bar: Bar,
) -> Result<()> {
    session.run(DOING, BEGIN).await?;
    for (at, plan) in plans.iter().enumerate() {
        let declare = format!(
            "declare walrelay_verify no scroll cursor for {}",
            plan.select()?
        );
        session
            .run(DOING, &declare)
            .await
            .map_err(|error| with_grant(error, &plan.name, user))?;
        let mut routing = Routing::new(plan)?;
        let mut rows: u64 = 0;
        loop {
            let page = session
                .texts(FETCH)
                .await
                .map_err(|error| fault::query(DOING, &error))?;
            if page.is_empty() {
                break;
            }
            rows += page.len() as u64;
            page.iter().for_each(|row| routing.row(at, row, into));
            bar.at(rows, None, || format!("rows of {} read", plan.name));
        }
        session.run(DOING, "close walrelay_verify").await?;
    }
    // The next query sees newer rows.
    session.run(DOING, "commit").await
}

fn with_grant(error: Error, name: &TableName, user: &str) -> Error {
    if error.kind() != Kind::PostgresRefused {
        return error;
    }
    let schema = quoted(name.schema());
    let user = quoted(user);
    error.remedy(format!(
        "grant usage on schema {schema} to {user}; grant select on {name} to {user}; -- where \
         row-level security \
         hides rows, use a role that bypasses it"
    ))
}

struct Routing {
    router: Router,
    polled: Polled,
}

impl Routing {
    fn new(plan: &Plan) -> Result<Routing> {
        let router = Router::new(&plan.outbox).map_err(|unknown| Error::new(Kind::Bug, unknown))?;
        let bug = |what: String| Error::new(Kind::Bug, format!("a plan without column {what}"));
        let polled = Polled::new(&plan.outbox, plan.columns.clone()).map_err(bug)?;
        Ok(Routing { router, polled })
    }

    fn row(&mut self, outbox: usize, row: &[Option<String>], into: &mut Comparison) {
        let Some((rank, values)) = row.split_last() else {
            return;
        };
        let rank = rank
            .as_deref()
            .and_then(|rank| rank.parse().ok())
            .unwrap_or(u32::MAX);
        let id = values
            .first()
            .and_then(Option::as_deref)
            .unwrap_or_default();
        let place = Place {
            commit_lsn: Lsn::ZERO,
            index: 0,
            via: Via::Table,
        };
        let values = values
            .iter()
            .map(|value| value.as_deref().map(str::as_bytes));
        let event = match self.polled.event(place, outbox, values) {
            Ok(event) => event,
            Err((column, fault)) => {
                return into.unroutable(outbox, id.as_bytes(), format!("column {column} {fault}"));
            }
        };
        match self.router.route(&event) {
            Err(error) => into.unroutable(outbox, id.as_bytes(), error.problem.to_string()),
            Ok(routed) => routed.with_record(|record| {
                into.row(outbox, record.topic, id.as_bytes(), record.key, rank);
            }),
        }
    }
}

/// Searches the rows of records without a row: these rows may be outside the range, or newer than
/// the snapshot.
pub(crate) async fn find_strays(
    session: &SqlSession,
    plans: &[Plan],
    into: &mut Comparison,
    mut bar: Bar,
) -> Result<()> {
    const DOING: &str = "looking for the rows of records";
    for plan in plans {
        let strays = into.strays();
        // No other id can be the text of a column.
        let texts: Vec<&str> = strays
            .iter()
            .filter_map(|id| std::str::from_utf8(id).ok())
            .collect();
        let ids: Vec<&str> = texts.into_iter().filter(|id| !id.contains('\0')).collect();
        let column = quote_ident(&plan.outbox.names.id)?;
        let table = &plan.table;
        let mut done = 0;
        for some in ids.chunks(IDS_MAX) {
            let list = quote_literals(some)?;
            let select = |left: &str, array: &str| {
                format!(
                    "select {column} from {table} where {left} = any (array[{list}]::{array}[])"
                )
            };
            let found = match session.texts(&select(&column, &plan.id_type)).await {
                // An id is not valid for the type: compare texts, without the index.
                Err(error) if error.code().is_some_and(is_about_value) => {
                    session
                        .texts(&select(&format!("{column}::text"), "text"))
                        .await
                }
                found => found,
            };
            let found = found.map_err(|error| fault::query(DOING, &error))?;
            for id in found.iter().filter_map(|row| row.first()?.as_deref()) {
                into.exists(id.as_bytes());
            }
            done += some.len() as u64;
            bar.at(done, Some(ids.len() as u64), || {
                format!("records without a row looked for in {}", plan.name)
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(order: Option<&str>) -> Plan {
        let outbox = without_content(&OutboxConfig::default());
        let column = |name: &String| walrelay_core::decode::RelationColumn {
            name: name.clone(),
            type_oid: 25,
            type_modifier: -1,
        };
        Plan {
            name: TableName::debezium(),
            order: order.map(str::to_owned),
            columns: outbox.columns.iter().map(column).collect(),
            id_type: "uuid".to_owned(),
            table: "public.outbox".to_owned(),
            condition: "true".to_owned(),
            outbox,
        }
    }

    #[test]
    fn a_missing_right_to_read_is_reported_with_the_grant() {
        let name = "\"Shop\".events".parse().unwrap();
        let remedy_of = |kind| with_grant(Error::new(kind, "x"), &name, "auditor").any_remedy();
        let told = |kind| remedy_of(kind).map(|remedy| remedy.to_string());
        let remedy = told(Kind::PostgresRefused).unwrap();
        let grant = "grant usage on schema \"Shop\" to \"auditor\"; grant select on \
                     \"Shop\".events to \"auditor\"; --";
        assert!(remedy.starts_with(grant), "{remedy}");
        assert_eq!(told(Kind::PostgresUnreachable), None);
    }

    #[test]
    fn the_query_for_rows_reads_no_payload() {
        let select = plan(Some("created_at, id")).select().unwrap();
        assert_eq!(
            select,
            "select \"id\", \"aggregatetype\", \"aggregateid\", pg_catalog.dense_rank() over \
             (order by created_at, id) \
             from public.outbox where true"
        );
        assert!(plan(None).select().unwrap().contains(", 0 from"));
    }

    #[test]
    fn a_row_is_expected_in_the_topic_of_the_router_or_counted_as_unroutable() {
        let plan = plan(Some("id"));
        let outbox = crate::verify::Outbox {
            name: "o".to_owned(),
            is_ordered: true,
        };
        let mut comparison = Comparison::new(vec![outbox], 5);
        let mut routing = Routing::new(&plan).unwrap();
        for row in [
            [Some("1"), Some("order"), Some("a"), Some("1")],
            [Some("2"), Some("order"), None, Some("2")],
            [Some("3"), None, Some("a"), Some("3")],
            [None, Some("order"), Some("a"), Some("4")],
            [Some("5"), Some("no topic"), Some("a"), Some("5")],
        ] {
            routing.row(
                0,
                &row.map(|value| value.map(str::to_owned)),
                &mut comparison,
            );
        }
        assert_eq!(
            comparison.topics().collect::<Vec<_>>(),
            ["outbox.event.order"]
        );
        assert_eq!(comparison.owed("outbox.event.order"), 2);
        let found = comparison.findings();
        assert_eq!(found.unroutable, 3);
        let why = |at: usize| found.unroutable_rows[at].why.as_deref().unwrap();
        assert!(
            why(0).contains("aggregatetype")
                && why(1).contains("id")
                && why(2).contains("no topic"),
            "{found:?}"
        );
    }
}
