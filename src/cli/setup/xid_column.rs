//! `setup --add-xid-column`: adds a column with the transaction that inserted the row.
//!
//! Postgres does not rewrite the table: the statement adds the column without a default and then
//! the default, so existing rows keep NULL. It locks the table for an instant, and waits for the
//! lock for two seconds. The index is built concurrently, in a partitioned table on each partition;
//! those become one index, which later partitions get, too.

use std::collections::BTreeSet;

use crate::cli::setup::plan::{Capacity, Found};
use crate::cli::sql::column;
use crate::cli::steps::{How, Plan, Step};
use crate::postgres::quote::{quote_ident, quote_table};
use crate::postgres::sql::SqlSession;
use walrelay_core::catalog::Table;
use walrelay_core::config::{OutboxConfig, TableName, tables_of};
use walrelay_core::error::{Error, Kind, Result};

const PARTITION_INDEXES: &str = include_str!("../../../sql/upkeep/partition_indexes.sql");
const BROKEN_INDEX: &str = include_str!("../../../sql/upkeep/broken_index.sql");
const NAMES: [&str; 2] = ["xid", "walrelay_xid"];
/// Postgres cuts longer identifiers.
const NAME_BYTES_MAX: usize = 63;

#[derive(Debug, Clone, Default)]
struct IndexTarget {
    schema: String,
    table: String,
    /// Whether it has partitions, and no rows of its own.
    partitioned: bool,
    /// The table that this is a partition of.
    above: Option<Above>,
    /// Whether an index begins with the column.
    indexed: bool,
    /// An index of the column alone.
    index: Option<String>,
    /// Whether that index is a part of the index of the table above.
    attached: bool,
    /// Whether an interrupted build left an invalid index of that name.
    broken: bool,
}

#[derive(Debug, Clone)]
struct Above {
    schema: String,
    table: String,
}

impl IndexTarget {
    /// A partitioned table needs an index of the column alone, which those of its partitions can be
    /// attached to.
    fn lacks_index(&self) -> bool {
        if self.partitioned {
            self.index.is_none()
        } else {
            !self.indexed
        }
    }

    /// The index of the column alone: the one that is there, or the one that is made.
    fn index_of(&self, column: &str) -> String {
        self.index
            .clone()
            .unwrap_or_else(|| index_name(&self.table, column))
    }

    /// Its index in SQL.
    fn quoted_index(&self, column: &str) -> Result<String> {
        Ok(format!(
            "{}.{}",
            quote_ident(&self.schema)?,
            quote_ident(&self.index_of(column))?
        ))
    }
}

/// Adds the missing columns and indexes of existing tables to the end of `plan`. Changes nothing
/// itself.
pub(crate) async fn extend(
    plan: &mut Plan,
    session: &SqlSession,
    outboxes: &[OutboxConfig],
    found: &Found,
) -> Result<()> {
    for ((_, name), target) in tables_of(outboxes).zip(&found.outboxes) {
        let Some(table) = &target.table else { continue };
        let wanted = wanted(name, table)?;
        let targets = targets(session, name, table, &wanted).await?;
        steps(plan, name, table, &wanted, &targets)?;
        let schemas: BTreeSet<_> = targets
            .iter()
            .filter(|target| target.lacks_index())
            .map(|target| &target.schema)
            .collect();
        for schema in schemas {
            let may_create = match schema == name.schema() {
                true => target.may_create_in_schema,
                // A partition may be in another schema than its table.
                false => {
                    Capacity::read(session.client(), schema)
                        .await?
                        .may_create_in_schema
                }
            };
            if may_create != Some(true) {
                let cause = format!(
                    "role {} may not create an index in schema {schema}",
                    table.role
                );
                let grant = format!(
                    "grant create on schema {} to {};",
                    quote_ident(schema)?,
                    quote_ident(&table.role)?
                );
                plan.obstacles
                    .push(Error::new(Kind::PostgresRefused, cause).remedy(grant));
            }
        }
    }
    Ok(())
}

/// The column's name.
/// Errors: both names are taken by columns that hold something else.
pub(crate) fn wanted(name: &TableName, table: &Table) -> Result<String> {
    if let Some(there) = table.xid_column() {
        return Ok(there.name.clone());
    }
    let [first, second] = NAMES;
    match (table.column(first), table.column(second)) {
        (None, _) => Ok(first.to_owned()),
        (Some(_), None) => Ok(second.to_owned()),
        (Some(_), Some(taken)) if taken.base.name == "xid8" && taken.default.is_none() => {
            Ok(second.to_owned())
        }
        (Some(_), Some(_)) => Err(Error::new(
            Kind::Publication,
            format!(
                "table {name} has columns {first} and {second}, and neither has the transaction"
            ),
        )
        .remedy(
            "add a column of type xid8 with default pg_current_xact_id() under any other name; \
                 walrelay finds it by type and default",
        )),
    }
}

async fn targets(
    session: &SqlSession,
    name: &TableName,
    table: &Table,
    wanted: &str,
) -> Result<Vec<IndexTarget>> {
    const DOING: &str = "looking at the indexes of the outbox table";
    let mut targets = Vec::new();
    if table.is_partitioned() {
        for row in session
            .rows(DOING, PARTITION_INDEXES, &[&i64::from(table.oid), &wanted])
            .await?
        {
            let above: Option<String> = column(&row, "above")?;
            let above_schema: Option<String> = column(&row, "above_schema")?;
            targets.push(IndexTarget {
                schema: column(&row, "schema")?,
                table: column(&row, "name")?,
                partitioned: !column::<bool>(&row, "is_leaf")?,
                above: above_schema
                    .zip(above)
                    .map(|(schema, table)| Above { schema, table }),
                indexed: column(&row, "indexed")?,
                index: column(&row, "index")?,
                attached: column(&row, "attached")?,
                broken: false,
            });
        }
    } else {
        let indexed = table
            .column(wanted)
            .is_some_and(|column| column.indexed.leads_index);
        let schema = name.schema().to_owned();
        let table = name.table().to_owned();
        targets.push(IndexTarget {
            schema,
            table,
            indexed,
            ..IndexTarget::default()
        });
    }
    for target in targets
        .iter_mut()
        .filter(|target| !target.partitioned && !target.indexed)
    {
        let index = index_name(&target.table, wanted);
        if let Some(row) = session
            .row(DOING, BROKEN_INDEX, &[&target.schema, &index])
            .await?
        {
            target.broken = column(&row, "broken")?;
        }
    }
    Ok(targets)
}

/// The name that Postgres would choose.
fn index_name(table: &str, column: &str) -> String {
    let ending = format!("_{column}_idx");
    let mut table = table.to_owned();
    while table.len() + ending.len() > NAME_BYTES_MAX {
        table.pop();
    }
    table + &ending
}

fn steps(
    plan: &mut Plan,
    name: &TableName,
    table: &Table,
    wanted: &str,
    targets: &[IndexTarget],
) -> Result<()> {
    let sql_name = quote_table(name)?;
    let sql_column = quote_ident(wanted)?;
    let before = plan.steps.len();
    if table.xid_column().is_some() {
        plan.present.push(format!(
            "column {wanted} of table {name} has the transaction of each row"
        ));
    } else {
        let add = match table.column(wanted) {
            Some(_) => String::new(),
            None => format!("alter table {sql_name} add column {sql_column} xid8;\n"),
        };
        // One transaction: no row is inserted between the column and its default.
        let sql = in_short_transaction(&format!(
            "{add}alter table {sql_name} alter column {sql_column} set default \
             pg_catalog.pg_current_xact_id();"
        ));
        let doing = format!("adding column {wanted} to table {name}");
        let result = format!("column {wanted} added to table {name}: existing rows have NULL");
        plan.steps
            .push(Step::new(How::Patiently, doing, result, sql));
    }
    for target in targets.iter().filter(|target| target.lacks_index()) {
        plan.steps.extend(drop_of_broken_index(target, wanted)?);
        plan.steps.push(creation_of_index(target, wanted)?);
    }
    attach(plan, wanted, targets)?;
    if plan.steps.len() == before {
        return Ok(());
    }
    plan.notes.push(format!(
        "inserts into {name} must not name column {wanted}: an explicit NULL replaces the default"
    ));
    if !table.owned {
        let cause = format!(
            "role {} does not own table {name}; only the owner may add a column",
            table.role
        );
        plan.obstacles
            .push(Error::new(Kind::PostgresRefused, cause).remedy(
                "run setup as the table's owner, or give its owner the output of setup --dry-run",
            ));
    }
    Ok(())
}

/// The step that drops an index that was not completed, if there is one.
fn drop_of_broken_index(target: &IndexTarget, wanted: &str) -> Result<Option<Step>> {
    if !target.broken {
        return Ok(None);
    }
    let index = target.index_of(wanted);
    let doing = format!("dropping invalid index {index}");
    let result = format!("invalid index {index} dropped");
    let drop = format!("drop index concurrently {};", target.quoted_index(wanted)?);
    Ok(Some(Step::new(How::Unbounded, doing, result, drop)))
}

/// The step that creates the index of column `wanted`.
fn creation_of_index(target: &IndexTarget, wanted: &str) -> Result<Step> {
    let index = index_name(&target.table, wanted);
    let schema = quote_ident(&target.schema)?;
    let sql_index = quote_ident(&index)?;
    let table = quote_ident(&target.table)?;
    let column = quote_ident(wanted)?;
    let doing = format!("creating index {index}");
    let result = format!("index {index} created");
    let (how, create) = match target.partitioned {
        // Without rows, it is made at once. It holds up writers for as long as it waits for its
        // lock.
        true => {
            let create = format!("create index {sql_index} on only {schema}.{table} ({column});");
            (How::Patiently, in_short_transaction(&create))
        }
        false => {
            let create =
                format!("create index concurrently {sql_index} on {schema}.{table} ({column});");
            (How::Unbounded, create)
        }
    };
    Ok(Step::new(how, doing, result, create))
}

/// Makes the indexes of partitions parts of that of their table: Postgres then gives a later
/// partition such an index.
fn attach(plan: &mut Plan, wanted: &str, targets: &[IndexTarget]) -> Result<()> {
    let has_own = |target: &&IndexTarget| target.lacks_index() || target.index.is_some();
    for target in targets
        .iter()
        .filter(|target| !target.attached)
        .filter(has_own)
    {
        let Some(Above { schema, table }) = &target.above else {
            continue;
        };
        let above = targets
            .iter()
            .find(|above| above.schema == *schema && above.table == *table);
        let Some(above) = above else { continue };
        let index = target.index_of(wanted);
        let sql = format!(
            "alter index {} attach partition {};",
            above.quoted_index(wanted)?,
            target.quoted_index(wanted)?
        );
        let doing = format!("attaching index {index} to that of table {table}");
        let result = format!("index {index} attached to that of table {table}");
        plan.steps.push(Step::new(
            How::Patiently,
            doing,
            result,
            in_short_transaction(&sql),
        ));
    }
    Ok(())
}

fn in_short_transaction(sql: &str) -> String {
    format!("begin;\nset local lock_timeout = '2s';\n{sql}\ncommit;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_core::catalog::Column;
    use walrelay_core::testing::column_of;

    fn table(kind: &str, columns: &[(&str, &str, Option<&str>)]) -> Table {
        let column = |(name, base, default): &(&str, &str, Option<&str>)| Column {
            default: default.map(str::to_owned),
            ..column_of(name, base)
        };
        let columns = columns.iter().map(column).collect();
        Table {
            kind: kind.to_owned(),
            owned: true,
            columns,
            ..Table::default()
        }
    }

    fn target(table: &str, indexed: bool, broken: bool) -> IndexTarget {
        IndexTarget {
            schema: "sales".to_owned(),
            table: table.to_owned(),
            indexed,
            broken,
            ..IndexTarget::default()
        }
    }

    fn sql(plan: &Plan) -> Vec<&str> {
        plan.steps.iter().map(|step| step.sql.as_str()).collect()
    }

    #[test]
    fn the_xid_column_is_an_existing_xid8_column_or_has_an_unused_name() {
        let name: TableName = "sales.outbox".parse().unwrap();
        let now = Some("pg_current_xact_id()");
        for (columns, expected) in [
            (&[("id", "uuid", None)][..], Some("xid")),
            (&[("tx", "xid8", now)], Some("tx")),
            (&[("xid", "int8", None)], Some("walrelay_xid")),
            (
                &[("xid", "int8", None), ("walrelay_xid", "xid8", None)],
                Some("walrelay_xid"),
            ),
            (
                &[("xid", "int8", None), ("walrelay_xid", "text", None)],
                None,
            ),
        ] {
            let wanted = wanted(&name, &table("r", columns));
            assert_eq!(wanted.as_deref().ok(), expected, "{columns:?}");
        }
    }

    #[test]
    fn the_column_is_added_before_its_default_and_the_index_concurrently() {
        let name: TableName = "sales.outbox".parse().unwrap();
        let mut plan = Plan::default();
        steps(
            &mut plan,
            &name,
            &table("r", &[]),
            "xid",
            &[target("outbox", false, true)],
        )
        .unwrap();
        assert_eq!(
            sql(&plan),
            [
                "begin;\nset local lock_timeout = '2s';\nalter table \"sales\".\"outbox\" add \
                 column \"xid\" xid8;\nalter \
                 table \"sales\".\"outbox\" alter column \"xid\" set default \
                 pg_catalog.pg_current_xact_id();\ncommit;",
                "drop index concurrently \"sales\".\"outbox_xid_idx\";",
                "create index concurrently \"outbox_xid_idx\" on \"sales\".\"outbox\" (\"xid\");",
            ]
        );
        assert_eq!((plan.notes.len(), plan.obstacles.len()), (1, 0));
    }

    #[test]
    fn an_existing_xid_column_is_kept_and_each_partition_gets_an_index() {
        let name: TableName = "sales.outbox".parse().unwrap();
        let there = table("r", &[("tx", "xid8", Some("pg_current_xact_id()"))]);
        let mut plan = Plan::default();
        steps(
            &mut plan,
            &name,
            &there,
            "tx",
            &[target("outbox", true, false)],
        )
        .unwrap();
        assert_eq!(
            (plan.steps.len(), plan.present.len(), plan.notes.len()),
            (0, 1, 0)
        );

        let mut parted = Table {
            owned: false,
            ..table("p", &[])
        };
        parted.columns = there.columns;
        let above = |table: &str| {
            Some(Above {
                schema: "sales".to_owned(),
                table: table.to_owned(),
            })
        };
        let whole = IndexTarget {
            partitioned: true,
            ..target("outbox", false, false)
        };
        let named = IndexTarget {
            index: Some("own".to_owned()),
            ..target("p1", true, false)
        };
        let targets = [
            whole.clone(),
            IndexTarget {
                above: above("outbox"),
                ..named.clone()
            },
            IndexTarget {
                above: above("outbox"),
                ..target("p2", false, false)
            },
            // Its index has other columns, too, or it is attached.
            IndexTarget {
                above: above("outbox"),
                ..target("p3", true, false)
            },
            IndexTarget {
                above: above("outbox"),
                attached: true,
                ..named
            },
        ];
        steps(&mut plan, &name, &parted, "tx", &targets).unwrap();
        let short = |sql: &str| in_short_transaction(sql);
        assert_eq!(
            sql(&plan),
            [
                &short("create index \"outbox_tx_idx\" on only \"sales\".\"outbox\" (\"tx\");"),
                "create index concurrently \"p2_tx_idx\" on \"sales\".\"p2\" (\"tx\");",
                &short(
                    "alter index \"sales\".\"outbox_tx_idx\" attach partition \"sales\".\"own\";"
                ),
                &short(
                    "alter index \"sales\".\"outbox_tx_idx\" attach partition \
                     \"sales\".\"p2_tx_idx\";"
                ),
            ]
        );
        assert_eq!((plan.notes.len(), plan.obstacles.len()), (1, 1));
        assert_eq!(index_name(&"ü".repeat(40), "xid").len(), 62);
    }
}
