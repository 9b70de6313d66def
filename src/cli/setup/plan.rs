//! The plan of `setup`: the statements that create the missing objects, made from facts without
//! I/O.
//!
//! The result of the statements is judged as a relay judges it at its start.

use serde::Deserialize;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::cli::steps::{How, Plan, Step};
use crate::config::{Mode, SourceConfig};
use crate::poll::{NEEDS_ORDER, TableFacts, missing_index, table_facts};
use crate::postgres::query::one_json;
use crate::postgres::quote::{quote_ident, quote_literal, quote_table, quoted};
use crate::postgres::table;
use crate::source::catalog::{self, Catalog, Member};
use crate::source::preflight::{
    FAILOVER_MAJOR_MIN, Facts, Server, inspect, judge_server, keeps_rows, survey,
};
use walrelay_core::catalog::{Table, no_table};
use walrelay_core::config::{OutboxConfig, TableName, tables_of};
use walrelay_core::error::{Error, Kind, NextCommand, Result};

/// The table's DDL: the first migration.
const CREATE_TABLE: &str = include_str!("../../../migrations/0001_outbox.sql");
const CAPACITY: &str = include_str!("../../../sql/room.sql");

#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub source: &'a SourceConfig,
    pub outboxes: &'a [OutboxConfig],
    pub create_table: bool,
}

impl<'a> Wanted<'a> {
    /// Whether the relay polls: such a relay needs neither slot nor publication.
    pub(crate) fn polls(&self) -> bool {
        self.source.mode == Mode::Poll
    }

    /// The tables among the outboxes, in their order.
    fn tables(&self) -> impl Iterator<Item = (&'a OutboxConfig, &'a TableName)> + use<'a> {
        tables_of(self.outboxes)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub facts: Facts,
    /// The free capacity of the server. The same for all outboxes, but for the schema.
    pub capacity: Capacity,
    pub outboxes: Vec<OutboxTable>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Capacity {
    free_slots: i64,
    free_senders: i64,
    /// Whether the role may create publications and schemas in the database.
    may_create: bool,
    /// Whether the role may create tables in the schema; none if the schema does not exist.
    pub may_create_in_schema: Option<bool>,
}

#[derive(Debug, Clone)]
pub(crate) struct OutboxTable {
    pub table: Option<Table>,
    /// Whether the role may create tables in its schema; none if the schema does not exist.
    pub may_create_in_schema: Option<bool>,
}

impl Found {
    pub(crate) async fn read(
        client: &Client,
        source: &SourceConfig,
        outboxes: &[OutboxConfig],
    ) -> Result<Found> {
        let facts = inspect(client, source, outboxes).await?;
        let capacity = Capacity::read(client, "").await?;
        let names: Vec<_> = tables_of(outboxes).map(|(_, name)| name).collect();
        let mut outbox_tables = Vec::new();
        for (name, table) in names.iter().zip(table::read_all(client, &names).await?) {
            let may_create_in_schema = Capacity::read(client, name.schema())
                .await?
                .may_create_in_schema;
            outbox_tables.push(OutboxTable {
                table,
                may_create_in_schema,
            });
        }
        Ok(Found {
            facts,
            capacity,
            outboxes: outbox_tables,
        })
    }

    /// Whether `setup` adds the table to the publication that exists. A table that was dropped has
    /// left its publication, also where somebody created it again.
    fn adds(&self, of: &OutboxTable) -> bool {
        let has_some =
            |catalog: &Catalog| !catalog.members.is_empty() || !catalog.other_tables.is_empty();
        let has_all = self
            .facts
            .publication()
            .is_some_and(|publication| publication.all_tables);
        !has_all && (of.table.is_none() || !self.facts.catalogs.iter().any(has_some))
    }
}

impl Capacity {
    pub(crate) async fn read(client: &Client, schema: &str) -> Result<Capacity> {
        Ok(one_json(
            client,
            "reading the capacity of the server",
            CAPACITY,
            &[(&schema, Type::TEXT)],
        )
        .await?)
    }

    /// What keeps a relay from a new slot.
    pub(crate) fn full(&self) -> impl Iterator<Item = Error> {
        let drop =
            "drop one that nobody needs, or raise max_replication_slots and restart the server";
        [
            (self.free_slots, "replication slots", drop),
            (
                self.free_senders,
                "walsenders",
                "raise max_wal_senders and restart the server",
            ),
        ]
        .into_iter()
        .filter(|(free, ..)| *free < 1)
        .map(|(_, what, fix)| {
            Error::new(Kind::PostgresUnfit, format!("all {what} are in use")).remedy(fix)
        })
    }
}

pub(crate) fn tables(plan: &mut Plan, wanted: &Wanted<'_>, found: &Found) -> Result<()> {
    if wanted.polls() && wanted.outboxes.len() != found.outboxes.len() {
        return Err(Error::new(
            Kind::Config,
            "a relay cannot poll messages: no table has them",
        )
        .remedy("leave --mode poll out, or message_prefix"));
    }
    let server = &found.facts.server;
    // All that a relay which polls needs of its server.
    plan.obstacles.extend(
        judge_server(server)
            .err()
            .filter(|_| wanted.polls() && server.in_recovery),
    );
    for (((outbox, name), outbox_table), catalog) in wanted
        .tables()
        .zip(&found.outboxes)
        .zip(&found.facts.catalogs)
    {
        let unkept = catalog
            .table
            .as_ref()
            .and_then(|table| keeps_rows(name, table).err());
        plan.obstacles.extend(unkept.filter(|_| wanted.polls()));
        match &outbox_table.table {
            Some(table) => {
                if wanted.polls() && !table.is_table() {
                    let error = Error::new(Kind::Publication, format!("{name} is not a table"));
                    plan.obstacles
                        .push(error.remedy("name the outbox table with --table"));
                }
                plan.present.push(format!("table {name} exists"));
            }
            None if wanted.create_table => create_table(plan, outbox, name, found, outbox_table)?,
            // The survey of a streamed table tells that it is missing.
            None if wanted.polls() => {
                let setup = NextCommand::new("setup").option("slot", &wanted.source.slot);
                let creates = outbox.has_usual_columns().then_some(setup);
                plan.obstacles.push(no_table(
                    name,
                    &format!("database {}", server.database),
                    creates,
                ));
            }
            None => {}
        }
    }
    Ok(())
}

fn create_table(
    plan: &mut Plan,
    outbox: &OutboxConfig,
    name: &TableName,
    found: &Found,
    outbox_table: &OutboxTable,
) -> Result<()> {
    if !outbox.has_usual_columns() {
        let cause = "the table cannot be created: [outbox.columns] gives its columns other names \
                     than setup does";
        return Err(Error::new(Kind::Config, cause)
            .remedy("remove [outbox.columns], or create the table yourself"));
    }
    let server = &found.facts.server;
    let schema = name.schema();
    let role = &server.role;
    let database = &server.database;
    plan.obstacles
        .extend(match outbox_table.may_create_in_schema {
            Some(true) => None,
            Some(false) => {
                let cause = format!(
                    "role {role} may not create tables in schema {schema} of database {database}"
                );
                let grant = format!(
                    "grant create on schema {} to {};",
                    quoted(schema),
                    quoted(role)
                );
                Some(Error::new(Kind::PostgresRefused, cause).remedy(grant))
            }
            None => {
                let cause = format!("schema {schema} does not exist in database {database}");
                // A role that may not create the schema needs another role to create it, and
                // becomes its owner.
                let of = if found.capacity.may_create {
                    String::new()
                } else {
                    format!(" authorization {}", quoted(role))
                };
                let create = format!("create schema {}{of};", quoted(schema));
                Some(Error::new(Kind::Publication, cause).remedy(create))
            }
        });
    let doing = format!("creating table {name}");
    let result = format!("table {name} created");
    let sql = CREATE_TABLE.replace("{table}", &quote_table(name)?);
    plan.steps.push(Step::new(
        How::Plainly,
        doing,
        result,
        sql.trim_end().to_owned(),
    ));
    Ok(())
}

/// Plans publication and slot, and judges what is there then.
pub(crate) fn stream(plan: &mut Plan, wanted: &Wanted<'_>, found: &Found) -> Result<()> {
    let source = wanted.source;
    for finding in survey(
        &as_planned(wanted, found),
        &source.slot,
        &source.publication,
        wanted.outboxes,
    ) {
        let error = match finding.found {
            Ok(warnings) => {
                plan.notes
                    .extend(warnings.into_iter().map(|warning| warning.text));
                continue;
            }
            Err(error) => error,
        };
        let remedy = error
            .any_remedy()
            .filter(|_| matches!(finding.check, "server" | "role"));
        plan.obstacles.push(match remedy {
            Some(remedy) => error.remedy(remedy.and(" /* or do without a slot: --mode poll */")),
            None => error,
        });
    }
    publication(plan, wanted, found)?;
    slot(plan, wanted, found)
}

/// The facts after the statements of the plan.
fn as_planned(wanted: &Wanted<'_>, found: &Found) -> Facts {
    let names: Vec<_> = wanted.tables().map(|(_, name)| name).collect();
    let mut facts = found.facts.as_set_up(&names);
    for (((outbox, _), catalog), of) in wanted
        .tables()
        .zip(&mut facts.catalogs)
        .zip(&found.outboxes)
    {
        if catalog.table.is_none() && wanted.create_table {
            let column = |name: &String| catalog::PublishedColumn {
                name: name.clone(),
                ..catalog::PublishedColumn::default()
            };
            let columns = outbox.columns.iter().map(column).collect();
            let kind = "r".to_owned();
            let persistence = "p".to_owned();
            catalog.table = Some(catalog::PublishedTable {
                kind,
                persistence,
                columns,
                ..catalog::PublishedTable::default()
            });
        }
        if of.table.is_none() || found.adds(of) {
            catalog.members = vec![Member::default()];
        }
    }
    facts
}

fn publication(plan: &mut Plan, wanted: &Wanted<'_>, found: &Found) -> Result<()> {
    let name = &wanted.source.publication;
    let known = found.facts.publication();
    if known.is_none() && found.facts.slot.is_some() {
        // The slot decodes a change with the catalog of that time, and that catalog has no
        // publication.
        return Ok(());
    }
    let all = wanted.tables().map(|(_, name)| name).zip(&found.outboxes);
    let (tables, outbox_tables): (Vec<_>, Vec<_>) = all
        .filter(|(_, of)| known.is_none() || found.adds(of))
        .unzip();
    let listed = tables
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    let sql_name = quote_ident(name)?;
    let sql_tables = tables.iter().map(|table| quote_table(table));
    let sql_tables = sql_tables.collect::<Result<Vec<_>>>()?.join(", ");
    let (doing, result, sql) = match known {
        None => (
            format!("creating publication {name}"),
            format!("publication {name} created"),
            match tables.is_empty() {
                true => format!("create publication {sql_name} with (publish = 'insert');"),
                false => format!(
                    "create publication {sql_name} for table {sql_tables}\n    \
                     with (publish = 'insert', publish_via_partition_root = true);"
                ),
            },
        ),
        Some(_) if tables.is_empty() => {
            plan.present.push(format!("publication {name} exists"));
            return Ok(());
        }
        Some(_) => (
            format!("adding {listed} to publication {name}"),
            format!("publication {name} publishes inserts into {listed}"),
            format!("alter publication {sql_name} add table {sql_tables};"),
        ),
    };
    plan.obstacles.extend(missing_right(found, name));
    // Only its owner may add a table to a publication.
    let refused =
        |(name, of): (&&TableName, &&OutboxTable)| is_owned(name, of.table.as_ref()?).err();
    plan.obstacles
        .extend(tables.iter().zip(&outbox_tables).filter_map(refused));
    plan.steps.push(Step::new(How::Plainly, doing, result, sql));
    if known.is_some() && found.facts.slot.is_some() {
        plan.notes.push(format!(
            "{listed} was not in publication {name} before: a relay that knows an earlier table \
             stops at its start, and its error names the choices"
        ));
    }
    Ok(())
}

/// Why the role may not create the publication `name`, or alter it where it exists.
fn missing_right(found: &Found, name: &str) -> Option<Error> {
    let Server { role, database, .. } = &found.facts.server;
    let (cause, remedy) = match found.facts.publication() {
        None if found.capacity.may_create => return None,
        None => (
            format!("role {role} may not create publications in database {database}"),
            format!(
                "grant create on database {} to {};",
                quoted(database),
                quoted(role)
            ),
        ),
        Some(publication) if publication.owned => return None,
        Some(_) => (
            format!("role {role} does not own publication {name}"),
            "run setup as its owner, or give its owner the output of setup --dry-run".to_owned(),
        ),
    };
    Some(Error::new(Kind::PostgresRefused, cause).remedy(remedy))
}

pub(crate) fn is_owned(name: &TableName, table: &Table) -> Result<()> {
    if table.owned {
        return Ok(());
    }
    Err(Error::new(
        Kind::PostgresRefused,
        format!("role {} does not own table {name}", table.role),
    )
    .remedy("run setup as the table's owner, or give its owner the output of setup --dry-run"))
}

fn slot(plan: &mut Plan, wanted: &Wanted<'_>, found: &Found) -> Result<()> {
    let name = wanted.source.slot.as_str();
    if let Some(slot) = &found.facts.slot {
        let confirmed = slot
            .confirmed_flush_lsn
            .map_or_else(|| "nothing".to_owned(), |lsn| lsn.to_string());
        plan.present
            .push(format!("slot {name} exists, confirmed up to {confirmed}"));
        return Ok(());
    }
    plan.obstacles.extend(found.capacity.full());
    let has_failover = found.facts.server.major() >= FAILOVER_MAJOR_MIN;
    let more = if has_failover {
        ", failover => true"
    } else {
        ""
    };
    let result = format!("slot {name} created: a relay publishes everything committed from now on");
    let slot = quote_literal(name)?;
    let sql = format!(
        "select lsn from pg_catalog.pg_create_logical_replication_slot({slot}, 'pgoutput'{more});"
    );
    plan.steps.push(Step::new(
        How::Watched,
        format!("creating slot {name}"),
        result,
        sql,
    ));
    Ok(())
}

/// Adds the faults that keep a relay from reading the tables: obstacles if the relay polls, else
/// warnings. `adds_column`: the plan adds the column for the transaction. Changes nothing, and
/// reads no row.
pub(crate) async fn look_at_rows(
    plan: &mut Plan,
    client: &Client,
    wanted: &Wanted<'_>,
    found: &Found,
    adds_column: bool,
) -> Result<()> {
    let exists = |(_, of): &((&OutboxConfig, &TableName), &OutboxTable)| of.table.is_some();
    for ((outbox, _), _) in wanted.tables().zip(&found.outboxes).filter(exists) {
        match table_facts(client, outbox).await {
            Ok(facts) => {
                judge_rows(plan, wanted, outbox, &facts, adds_column);
                let missing = missing_index(client, outbox, &facts).await?;
                plan.warnings.extend(
                    missing.map(|missing| format!("{}:\n{}", missing.text, missing.remedy)),
                );
            }
            Err(error) if !matches!(error.kind(), Kind::Config | Kind::Publication) => {
                return Err(error);
            }
            Err(error) if wanted.polls() => plan.obstacles.push(error),
            Err(error) => plan.warnings.push(with_remedy(&error)),
        }
    }
    Ok(())
}

pub(crate) fn with_remedy(error: &Error) -> String {
    match error.what_to_do() {
        Some(remedy) => format!("{error}: {remedy}"),
        None => error.to_string(),
    }
}

/// The risk of a table whose rows do not tell their transaction.
pub(crate) fn without_transaction(table: &TableName) -> String {
    format!(
        "no column of table {table} has the transaction that inserted the row: after a loss of the \
         slot, some events are \
         published twice"
    )
}

fn judge_rows(
    plan: &mut Plan,
    wanted: &Wanted<'_>,
    outbox: &OutboxConfig,
    facts: &TableFacts,
    adds_column: bool,
) {
    let table = &facts.name;
    let unfit = |cause: String, remedy: &str| Error::new(Kind::Publication, cause).remedy(remedy);
    if facts.order.is_none() {
        let what = format!(
            "table {table} has no identity or serial column, and outbox.order_by is not set"
        );
        if wanted.polls() {
            plan.obstacles.push(unfit(
                format!("{what}: the order of the rows is not known"),
                NEEDS_ORDER,
            ));
        } else {
            plan.warnings.push(format!(
                "{what}: after a loss of the slot, the order of the unpublished rows is not known, \
                 and the relay stops. To avoid that, {NEEDS_ORDER}"
            ));
        }
    }
    if facts.xid_column.is_none() && !adds_column && !outbox.upkeep.says_for_itself() {
        let column = "--add-xid-column adds a column with the transaction's id";
        if wanted.polls() {
            plan.obstacles.push(unfit(
                format!(
                    "table {table} cannot be polled: no column tells which rows were not published"
                ),
                &format!("{column}; or set outbox.pending and outbox.mark, or outbox.delete"),
            ));
        } else {
            plan.warnings
                .push(format!("{}; {column}", without_transaction(table)));
        }
    }
    if wanted.polls() && !facts.may_select {
        plan.notes.push(format!(
            "this role may not read table {table}; the role of the relay needs that right: grant \
             select on {table}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StreamConfig;
    use crate::conninfo::ConnInfo;
    use crate::poll::Order;
    use crate::source::catalog::{Flags, Publication};
    use crate::source::preflight::Slot;
    use walrelay_core::config::EventSource;
    use walrelay_core::position::Lsn;
    use walrelay_core::testing::column_of;

    fn source(mode: Mode) -> SourceConfig {
        let database = ConnInfo::parse(Some("host=db user=relay"), &|_| None).unwrap();
        SourceConfig::sample(
            database,
            "orders",
            "walrelay_orders",
            StreamConfig {
                mode,
                ..StreamConfig::default()
            },
        )
    }

    fn outbox(name: &str) -> OutboxConfig {
        OutboxConfig {
            source: EventSource::Table(name.parse().unwrap()),
            ..OutboxConfig::default()
        }
    }

    /// A server with the table, and neither slot nor publication.
    fn found() -> Found {
        let server = Server {
            version_num: 15_00_18,
            version: "15.18".into(),
            wal_level: "logical".into(),
            may_replicate: true,
            role: "app".into(),
            database: "shop".into(),
            ..Server::default()
        };
        let column = |name: &str| catalog::PublishedColumn {
            name: name.to_owned(),
            ..catalog::PublishedColumn::default()
        };
        let columns = ["id", "aggregatetype", "aggregateid", "type", "payload"]
            .map(column)
            .to_vec();
        let kind = "r".to_owned();
        let persistence = "p".to_owned();
        let table = Some(catalog::PublishedTable {
            kind,
            persistence,
            columns,
            ..catalog::PublishedTable::default()
        });
        let catalogs = vec![Catalog {
            table,
            ..Catalog::default()
        }];
        let table = Some(Table {
            kind: "r".into(),
            owned: true,
            ..Table::default()
        });
        Found {
            facts: Facts {
                server,
                catalogs,
                ..Facts::default()
            },
            capacity: Capacity {
                free_slots: 1,
                free_senders: 1,
                may_create: true,
                may_create_in_schema: None,
            },
            outboxes: vec![OutboxTable {
                table,
                may_create_in_schema: Some(true),
            }],
        }
    }

    fn without_table() -> Found {
        let mut found = found();
        found.outboxes[0].table = None;
        found.facts.catalogs[0].table = None;
        found
    }

    /// With a publication that has, or had, the table.
    fn published(mut found: Found, has_table: bool) -> Found {
        let flags = Flags {
            insert: true,
            via_root: true,
            ..Flags::default()
        };
        let catalog = &mut found.facts.catalogs[0];
        catalog.publication = Some(Publication {
            owned: true,
            flags,
            ..Publication::default()
        });
        catalog.members = if has_table {
            vec![Member::default()]
        } else {
            Vec::new()
        };
        found
    }

    fn with_slot(mut found: Found, change: impl FnOnce(&mut Slot)) -> Found {
        found.facts.slot = found.facts.with_slot().slot;
        change(found.facts.slot.as_mut().unwrap());
        found
    }

    fn planned(mode: Mode, create_table: bool, found: &Found) -> Plan {
        let source = source(mode);
        let outboxes = [outbox("outbox")];
        let mut plan = Plan::default();
        let wanted = Wanted {
            source: &source,
            outboxes: &outboxes,
            create_table,
        };
        tables(&mut plan, &wanted, found).unwrap();
        if !wanted.polls() {
            stream(&mut plan, &wanted, found).unwrap();
        }
        plan
    }

    fn streamed(found: &Found) -> Plan {
        planned(Mode::Slot, true, found)
    }

    /// The first word of what each step does, and the object.
    fn steps(plan: &Plan) -> Vec<String> {
        plan.steps
            .iter()
            .map(|step| {
                step.doing
                    .splitn(3, ' ')
                    .take(2)
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect()
    }

    #[test]
    fn polling_needs_a_writable_server_and_a_table_but_no_slot_or_publication() {
        let mut bare = without_table();
        bare.facts.server.wal_level = "replica".into();
        bare.facts.server.may_replicate = false;
        bare.capacity = Capacity {
            free_slots: 0,
            free_senders: 0,
            may_create: false,
            may_create_in_schema: None,
        };
        let made = planned(Mode::Poll, true, &bare);
        assert_eq!(
            (steps(&made), made.refusal()),
            (vec!["creating table".to_owned()], Ok(()))
        );
        let missing = planned(Mode::Poll, false, &bare).refusal().unwrap_err();
        assert!(
            missing
                .what_to_do()
                .unwrap()
                .contains("walrelay setup --slot orders --create-table"),
            "{missing}"
        );
        bare.facts.server.in_recovery = true;
        assert_eq!(
            planned(Mode::Poll, true, &bare)
                .refusal()
                .unwrap_err()
                .kind(),
            Kind::PostgresUnreachable
        );

        let messages = [OutboxConfig {
            source: EventSource::Messages("m".into()),
            ..OutboxConfig::default()
        }];
        let wanted = Wanted {
            source: &source(Mode::Poll),
            outboxes: &messages,
            create_table: false,
        };
        let without = Found {
            outboxes: Vec::new(),
            ..found()
        };
        assert_eq!(
            tables(&mut Plan::default(), &wanted, &without)
                .unwrap_err()
                .kind(),
            Kind::Config
        );
    }

    #[test]
    fn a_recreated_table_is_added_to_its_now_empty_publication() {
        let gone = published(without_table(), false);
        let plan = streamed(&gone);
        assert_eq!(
            steps(&plan),
            ["creating table", "adding public.outbox", "creating slot"]
        );
        assert_eq!(
            plan.steps[1].sql,
            r#"alter publication "walrelay_orders" add table "public"."outbox";"#
        );
        assert_eq!(
            steps(&streamed(&with_slot(gone.clone(), |_| {}))),
            ["creating table", "adding public.outbox"]
        );
        let again = planned(Mode::Slot, false, &published(found(), false));
        assert_eq!(
            (again.steps[0].sql.as_str(), again.refusal()),
            (plan.steps[1].sql.as_str(), Ok(()))
        );
        let mut of_others = gone.clone();
        let mut table_of_others = published(found(), false);
        of_others.facts.catalogs[0]
            .publication
            .as_mut()
            .unwrap()
            .owned = false;
        table_of_others.outboxes[0].table.as_mut().unwrap().owned = false;
        let mut strange = published(found(), false);
        let mut all = published(without_table(), false);
        strange.facts.catalogs[0]
            .other_tables
            .push("public.orders".to_owned());
        all.facts.catalogs[0]
            .publication
            .as_mut()
            .unwrap()
            .all_tables = true;
        for (found, kind) in [
            (of_others, Some(Kind::PostgresRefused)),
            (table_of_others, Some(Kind::PostgresRefused)),
            (strange, Some(Kind::Publication)),
            (all, None),
        ] {
            assert_eq!(
                streamed(&found).refusal().err().map(|error| error.kind()),
                kind,
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_missing_right_or_schema_for_a_table_is_refused_with_the_sql_remedy() {
        let mut bare = without_table();
        let forbidden = "role app may not create tables in schema public of database shop";
        let missing = "schema public does not exist in database shop";
        for (may_create_in_schema, may_create, cause, remedy) in [
            (
                Some(false),
                true,
                forbidden,
                r#"grant create on schema "public" to "app";"#,
            ),
            (None, true, missing, r#"create schema "public";"#),
            (
                None,
                false,
                missing,
                r#"create schema "public" authorization "app";"#,
            ),
        ] {
            bare.outboxes[0].may_create_in_schema = may_create_in_schema;
            bare.capacity.may_create = may_create;
            let error = streamed(&bare).obstacles.remove(0);
            assert_eq!(
                (error.cause(), error.what_to_do().as_deref()),
                (cause, Some(remedy))
            );
        }
    }

    #[test]
    fn a_suitable_table_publication_and_slot_need_no_step() {
        let there = with_slot(published(found(), true), |_| {});
        let plan = streamed(&there);
        assert_eq!(
            (plan.steps.len(), plan.present.len(), plan.refusal()),
            (0, 3, Ok(()))
        );
        let mut newer = published(found(), true);
        let sql = |found: &Found| streamed(found).steps.remove(0).sql;
        let slot =
            "select lsn from pg_catalog.pg_create_logical_replication_slot('orders', 'pgoutput');";
        assert_eq!(sql(&newer), slot);
        newer.facts.server.version_num = 17_00_00;
        assert!(sql(&newer).contains("failover => true"));
    }

    #[test]
    fn an_unsuitable_server_and_role_are_refused_with_all_faults_at_once() {
        let mut bad = found();
        bad.facts.server.wal_level = "replica".into();
        bad.facts.server.may_replicate = false;
        bad.facts.server.role = "we\"ird".into();
        bad.capacity.free_slots = 0;
        bad.capacity.free_senders = 0;
        let plan = streamed(&bad);
        let error = plan.refusal().unwrap_err();
        assert_eq!(
            (error.kind(), plan.obstacles.len()),
            (Kind::PostgresUnfit, 4),
            "{error}"
        );
        let remedy = error.what_to_do().unwrap();
        assert!(
            remedy.contains(r#"alter role "we""ird" replication;"#)
                && remedy.contains("--mode poll"),
            "{remedy}"
        );
        assert!(!remedy.contains(";;"), "{remedy}");
        assert_eq!(
            steps(&plan),
            ["creating publication", "creating slot"],
            "a dry run still has the script"
        );
    }

    #[test]
    fn what_exists_and_does_not_fit_is_refused_as_a_relay_refuses_it() {
        let mut view = published(found(), true);
        let mut narrow = published(found(), true);
        view.facts.catalogs[0].table.as_mut().unwrap().kind = "v".into();
        narrow.facts.catalogs[0]
            .table
            .as_mut()
            .unwrap()
            .columns
            .truncate(3);
        for (found, cause) in [
            (view, "public.outbox is a view"),
            (narrow, "table public.outbox has no column payload"),
            (
                with_slot(found(), |_| {}),
                "there is no publication walrelay_orders",
            ),
            (
                with_slot(published(found(), true), |slot| {
                    slot.plugin = Some("wal2json".into())
                }),
                "slot orders uses",
            ),
            (
                with_slot(published(found(), true), |slot| {
                    slot.confirmed_flush_lsn = None::<Lsn>;
                    slot.active_pid = Some(7);
                }),
                "slot orders is being",
            ),
        ] {
            let error = streamed(&found).refusal().unwrap_err();
            assert!(
                error.cause().starts_with(cause) && error.what_to_do().is_some(),
                "{error}"
            );
        }
        let missing = planned(Mode::Slot, false, &without_table())
            .refusal()
            .unwrap_err();
        assert_eq!(
            missing.cause(),
            "there is no table public.outbox in database shop",
            "it is created on request only"
        );
    }

    fn facts(order: bool, xid: bool) -> TableFacts {
        let order = order.then(|| Order {
            sql: "\"seq\"".to_owned(),
            type_name: "bigint".to_owned(),
            not_null: true,
            is_found: true,
        });
        TableFacts {
            oid: 1,
            name: "sales.outbox".parse().unwrap(),
            columns: Vec::new(),
            key: vec![column_of("id", "uuid")],
            xid_column: xid.then(|| "xid".to_owned()),
            xid_not_null: false,
            order,
            time: None,
            may_select: true,
            may_lock: true,
            with_children: false,
        }
    }

    fn judged(polls: bool, facts: &TableFacts, outbox: &OutboxConfig, adds_column: bool) -> Plan {
        let source = source(if polls { Mode::Poll } else { Mode::Slot });
        let outboxes = [outbox.clone()];
        let wanted = Wanted {
            source: &source,
            outboxes: &outboxes,
            create_table: false,
        };
        let mut plan = Plan::default();
        judge_rows(&mut plan, &wanted, outbox, facts, adds_column);
        plan
    }

    #[test]
    fn a_missing_order_or_xid_column_warns_if_streamed_and_is_refused_if_polled() {
        let mut outbox = OutboxConfig::default();
        let counts = |plan: &Plan| (plan.warnings.len(), plan.obstacles.len());
        for (order, xid, adds_column, missing) in [
            (true, true, false, 0),
            (true, false, true, 0),
            (true, false, false, 1),
            (false, true, false, 1),
        ] {
            let facts = facts(order, xid);
            assert_eq!(
                counts(&judged(false, &facts, &outbox, adds_column)),
                (missing, 0),
                "{order} {xid}"
            );
            assert_eq!(
                counts(&judged(true, &facts, &outbox, adds_column)),
                (0, missing),
                "{order} {xid}"
            );
        }
        let plan = judged(false, &facts(false, false), &outbox, false);
        assert!(
            plan.warnings[0].contains("outbox.order_by")
                && plan.warnings[1].contains("--add-xid-column")
        );
        let error = judged(true, &facts(true, false), &outbox, false)
            .refusal()
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Publication);
        assert!(
            error.what_to_do().unwrap().starts_with("--add-xid-column"),
            "{error}"
        );
        outbox.upkeep.pending = Some("not sent".to_owned());
        assert_eq!(
            counts(&judged(true, &facts(true, false), &outbox, false)),
            (0, 0)
        );
        let closed = TableFacts {
            may_select: false,
            ..facts(true, true)
        };
        assert_eq!(judged(true, &closed, &outbox, false).notes.len(), 1);
    }
}
