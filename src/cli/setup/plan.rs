//! The plan of `setup`: the statements that create the missing objects, made from facts without I/O.

use serde::Deserialize;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::cli::sql::{self, Session, Value, fill};
use crate::config::{OutboxConfig, SlotName, SourceConfig, TableName};
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::poll::{NEEDS_ORDER, TableFacts, table_facts};
use crate::postgres::catalog::Table;
use crate::postgres::query::{one_json, one_text, parsed};
use crate::source::preflight::{self, MAJOR_MIN, Server, Slot, judge_slot};

const CAPACITY: &str = include_str!("../../../sql/room.sql");
const PUBLICATION: &str = include_str!("../../../sql/publication.sql");
/// The first version whose slots can be kept on standbys.
const FAILOVER_SINCE: u32 = 17;

/// The objects that must exist in the end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub slot: &'a SlotName,
    pub publication: &'a str,
    pub outboxes: &'a [OutboxConfig],
    pub create_table: bool,
    /// Whether the relay polls: such a relay needs neither slot nor publication.
    pub polls: bool,
}

impl<'a> Wanted<'a> {
    /// The tables among the outboxes, in their order.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (&'a OutboxConfig, &'a TableName)> + use<'a> {
        self.outboxes.iter().filter_map(|outbox| Some((outbox, outbox.source.table()?)))
    }

    fn setup(&self) -> NextCommand {
        NextCommand::new("setup").option("slot", self.slot)
    }

    fn names(&self) -> Vec<&'a TableName> {
        self.tables().map(|(_, name)| name).collect()
    }
}

/// The object that a step creates, in the order of the steps: a role that may not create a slot has the table by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Object {
    Table,
    Column,
    /// An index of the table, built concurrently: alone, in no transaction.
    Index,
    Publication,
    Slot,
}

impl Object {
    fn is_of_table(self) -> bool {
        matches!(self, Object::Table | Object::Column | Object::Index)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub object: Object,
    /// The operation, in words that follow "while".
    pub doing: String,
    pub done: String,
    pub sql: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Statements in order: table, column, publication, slot, each if it is missing.
    pub steps: Vec<Step>,
    pub present: Vec<String>,
    /// Facts for the operator.
    pub remarks: Vec<String>,
    /// Risks that the operator can remove now.
    pub warnings: Vec<String>,
    /// Faults that keep this role on this server from running the steps.
    pub obstacles: Vec<Error>,
}

impl Plan {
    /// Puts the steps of tables before publication and slot, and changes no other order.
    pub(crate) fn put_tables_first(&mut self) {
        self.steps.sort_by_key(|step| !step.object.is_of_table());
    }

    pub(crate) fn refusal(&self) -> Result<()> {
        let Some(first) = self.obstacles.first() else { return Ok(()) };
        let causes: Vec<_> = self.obstacles.iter().map(Error::to_string).collect();
        let remedies = self.obstacles.iter().filter_map(Error::any_remedy);
        Err(Error::new(first.kind(), causes.join("; ")).remedy(Remedy::joined(remedies)))
    }
}

/// The plan that creates the `wanted` objects that were not `found`.
pub(crate) fn plan(wanted: &Wanted<'_>, found: &Found) -> Result<Plan> {
    let mut plan = Plan::default();
    serves(wanted, &found.server, &mut plan);
    if wanted.polls && wanted.outboxes.len() != found.outboxes.len() {
        return Err(Error::new(Kind::Config, "a relay cannot poll messages: no table has them")
            .remedy("leave --mode poll out, or message_prefix"));
    }
    for ((outbox, name), outbox_table) in wanted.tables().zip(&found.outboxes) {
        table(wanted, outbox, name, found, outbox_table, &mut plan)?;
    }
    if !wanted.polls {
        publication(wanted, found, &mut plan)?;
        slot(wanted, found, &mut plan)?;
        remarks(wanted, found, &mut plan);
    }
    Ok(plan)
}

fn serves(wanted: &Wanted<'_>, server: &Server, plan: &mut Plan) {
    let mut unfit =
        |cause: String, remedy: &str| plan.obstacles.push(Error::new(Kind::PostgresUnfit, cause).remedy(remedy));
    if server.major() < MAJOR_MIN {
        unfit(
            format!("the server is Postgres {}", server.version),
            &format!("walrelay needs Postgres {MAJOR_MIN} or later"),
        );
    }
    if server.in_recovery {
        unfit("the server is a standby".to_owned(), "connect to the primary");
    }
    if server.wal_level != "logical" && !wanted.polls {
        unfit(
            format!("wal_level is {}, not logical", server.wal_level),
            "alter system set wal_level = 'logical'; and restart the server (on Amazon RDS: rds.logical_replication = 1); \
             or do without a slot: --mode poll",
        );
    }
}

fn table(
    wanted: &Wanted<'_>,
    outbox: &OutboxConfig,
    name: &TableName,
    found: &Found,
    outbox_table: &OutboxTable,
    plan: &mut Plan,
) -> Result<()> {
    match (&outbox_table.table, wanted.create_table) {
        (Some(table), _) => {
            table_fits(wanted, outbox, name, table)?;
            plan.present.push(format!("table {name} exists"));
        }
        (None, false) => {
            return Err(Error::new(
                Kind::Publication,
                format!("table {name} does not exist in database {}", found.server.database),
            )
            .remedy("name yours with --table, in SQL's quotes where it has capitals: --table '\"Outbox\"'; or let setup create it with \
                 --create-table"));
        }
        (None, true) => {
            let default = OutboxConfig::default();
            if columns(outbox).ne(columns(&default)) {
                let cause =
                    "the table cannot be created: [outbox.columns] gives its columns other names than setup does";
                return Err(
                    Error::new(Kind::Config, cause).remedy("remove [outbox.columns], or create the table yourself")
                );
            }
            refuse_if(plan, outbox_table.may_create_in_schema.is_none(), || {
                let cause = format!("schema {} does not exist in database {}", name.schema(), found.server.database);
                let values = [("schema", Value::Name(name.schema())), ("role", Value::Name(&found.server.role))];
                // A role that may not create the schema needs another role to create it, and becomes its owner.
                let template = match found.capacity.may_create {
                    true => "create schema {schema};",
                    false => "create schema {schema} authorization {role};",
                };
                Error::new(Kind::Publication, cause)
                    .remedy(fill(template, &values).unwrap_or_else(|_| template.to_owned()))
            });
            refuse_if(plan, outbox_table.may_create_in_schema == Some(false), || {
                let cause = format!(
                    "role {} may not create tables in schema {} of database {}",
                    found.server.role,
                    name.schema(),
                    found.server.database
                );
                let values = [("schema", Value::Name(name.schema())), ("role", Value::Name(&found.server.role))];
                let template = "grant create on schema {schema} to {role};";
                Error::new(Kind::PostgresRefused, cause)
                    .remedy(fill(template, &values).unwrap_or_else(|_| template.to_owned()))
            });
            plan.steps.push(Step {
                object: Object::Table,
                doing: format!("creating table {name}"),
                done: format!("table {name} created"),
                sql: fill(sql::CREATE_TABLE, &[("table", Value::Table(name))])?,
            });
        }
    }
    Ok(())
}

fn table_fits(wanted: &Wanted<'_>, outbox: &OutboxConfig, name: &TableName, table: &Table) -> Result<()> {
    let unfit = |cause: String, remedy: String| Err(Error::new(Kind::Publication, cause).remedy(remedy));
    if !table.is_table() {
        return unfit(format!("{name} is not a table"), "name the outbox table with --table".to_owned());
    }
    if wanted.polls {
        // `look_at_rows` checks its columns.
        return Ok(());
    }
    is_logged(name, table)?;
    let streamed: Vec<&str> =
        table.columns.iter().filter(|column| !column.generated).map(|column| column.name.as_str()).collect();
    let missing: Vec<&str> =
        outbox.columns.iter().map(String::as_str).filter(|name| !streamed.contains(name)).collect();
    if !missing.is_empty() {
        let named = |missing: &&str| columns(outbox).find(|(_, column)| column == missing);
        let keys: Vec<_> = missing.iter().filter_map(named).map(|(key, _)| key).collect();
        let keys = if keys.is_empty() { "the templates of [route]".to_owned() } else { keys.join(", ") };
        return unfit(
            format!("table {name} has no column {} that can be published", missing.join(", ")),
            format!("name the columns it has with {keys} in the configuration file; it has {}", streamed.join(", ")),
        );
    }
    Ok(())
}

/// A slot streams only what is in the WAL.
pub(crate) fn is_logged(name: &TableName, table: &Table) -> Result<()> {
    if table.persistence == "p" {
        return Ok(());
    }
    let cause = format!("table {name} is unlogged or temporary: its rows are not in the WAL");
    Err(Error::new(Kind::Publication, cause).remedy(format!("alter table {name} set logged;")))
}

fn columns(outbox: &OutboxConfig) -> impl Iterator<Item = (&'static str, &str)> {
    [
        ("outbox.columns.id", outbox.id.as_str()),
        ("outbox.columns.aggregatetype", &outbox.aggregate_type),
        ("outbox.columns.aggregateid", &outbox.aggregate_id),
        ("outbox.columns.type", &outbox.event_type),
        ("outbox.columns.payload", &outbox.payload),
    ]
    .into_iter()
}

/// Plans the publication: creates it, adds tables that are created anew, or refuses it with the SQL that mends it.
fn publication(wanted: &Wanted<'_>, found: &Found, plan: &mut Plan) -> Result<()> {
    match (&found.publication, &found.slot) {
        (Some(publication), _) => keep_publication(wanted, publication, found, plan),
        (None, None) => create_publication(wanted, found, plan),
        // The slot decodes a change with the catalog of that time, and that catalog has no publication.
        (None, Some(slot)) => {
            if !slot.is_ours(&found.server.database) {
                judge_slot(slot, wanted.slot, &found.server.database, &wanted.setup())?;
            }
            let cause = format!(
                "slot {} exists and publication {} does not; a slot cannot decode changes from before its publication",
                wanted.slot, wanted.publication
            );
            Err(Error::new(Kind::Publication, cause).remedy(
                Remedy::from("name the publication of the slot with --publication. If that was dropped: ")
                    .and(NextCommand::new("teardown").option("slot", wanted.slot).flag("force"))
                    .and(", then ")
                    .and(wanted.setup())
                    .and("; `walrelay run` reads the unpublished rows from the table"),
            ))
        }
    }
}

fn keep_publication(wanted: &Wanted<'_>, publication: &Publication, found: &Found, plan: &mut Plan) -> Result<()> {
    let (name, tables) = (wanted.publication, wanted.names());
    let outbox_tables = tables.iter().copied().zip(&found.outboxes);
    // A table that was dropped has left its publication, also where somebody created it again.
    let is_missing = |outbox_table: &OutboxTable| outbox_table.table.is_none() || publication.tables.is_empty();
    let missing: Vec<_> = outbox_tables.filter(|(_, outbox_table)| is_missing(outbox_table)).collect();
    let made: Vec<&TableName> = missing.iter().map(|(name, _)| *name).collect();
    let partitioned = found.tables().any(Table::is_partitioned);
    publication_fits(wanted, &with(publication, &made), partitioned)?;
    if !made.is_empty() {
        refuse_tables_of_others(missing, plan);
        return add(name, publication, &made, found, plan);
    }
    let what = match tables.is_empty() {
        true => String::new(),
        false => format!(" and publishes inserts into {}", listed(&tables)),
    };
    plan.present.push(format!("publication {name} exists{what}"));
    if publication.other_than_inserts {
        let values = [("publication", Value::Name(name))];
        let sql = fill("alter publication {publication} set (publish = 'insert');", &values)?;
        plan.remarks.push(format!(
            "publication {name} publishes more than inserts: the other operations cost traffic, and the relay drops them. To \
             publish only inserts: {sql}"
        ));
    }
    Ok(())
}

fn create_publication(wanted: &Wanted<'_>, found: &Found, plan: &mut Plan) -> Result<()> {
    let (name, tables, server) = (wanted.publication, wanted.names(), &found.server);
    refuse_if(plan, !found.capacity.may_create, || {
        let cause = format!("role {} may not create publications in database {}", server.role, server.database);
        Error::new(Kind::PostgresRefused, cause).remedy(grant("grant create on database {database} to {role};", server))
    });
    refuse_tables_of_others(tables.iter().copied().zip(&found.outboxes), plan);
    let template = if tables.is_empty() { sql::CREATE_PUBLICATION_OF_NOTHING } else { sql::CREATE_PUBLICATION };
    plan.steps.push(Step {
        object: Object::Publication,
        doing: format!("creating publication {name}"),
        done: format!("publication {name} created"),
        sql: fill(template, &[("publication", Value::Name(name)), ("tables", Value::Tables(&tables))])?,
    });
    Ok(())
}

/// Only its owner may add a table to a publication.
fn refuse_tables_of_others<'a>(tables: impl IntoIterator<Item = (&'a TableName, &'a OutboxTable)>, plan: &mut Plan) {
    let refused = |(name, found): (&TableName, &OutboxTable)| is_owned(name, found.table.as_ref()?).err();
    plan.obstacles.extend(tables.into_iter().filter_map(refused));
}

pub(crate) fn is_owned(name: &TableName, table: &Table) -> Result<()> {
    if table.owned {
        return Ok(());
    }
    Err(Error::new(Kind::PostgresRefused, format!("role {} does not own table {name}", table.role))
        .remedy("run setup as the table's owner, or give its owner the output of setup --dry-run"))
}

/// The publication once it has these tables, too.
fn with(publication: &Publication, more: &[&TableName]) -> Publication {
    let mut publication = publication.clone();
    for table in more {
        publication.schemas.push(table.schema().to_owned());
        publication.tables.push(table.table().to_owned());
    }
    publication
}

/// The table that replaces a dropped one is not in the publication.
fn add(name: &str, publication: &Publication, made: &[&TableName], found: &Found, plan: &mut Plan) -> Result<()> {
    refuse_if(plan, !publication.owned, || {
        let cause = format!("role {} does not own publication {name}", found.server.role);
        Error::new(Kind::PostgresRefused, cause)
            .remedy("run setup as its owner, or give its owner the output of setup --dry-run")
    });
    let values = [("publication", Value::Name(name)), ("tables", Value::Tables(made))];
    plan.steps.push(Step {
        object: Object::Publication,
        doing: format!("adding {} to publication {name}", listed(made)),
        done: format!("publication {name} publishes inserts into {}", listed(made)),
        sql: fill("alter publication {publication} add table {tables};", &values)?,
    });
    if found.slot.is_some() {
        plan.remarks.push(format!(
            "the slot is older than table {}: a relay that knows an earlier table stops at its start, and its error names the \
             choices",
            listed(made)
        ));
    }
    Ok(())
}

fn publication_fits(wanted: &Wanted<'_>, publication: &Publication, partitioned: bool) -> Result<()> {
    let tables = wanted.names();
    let values = [("publication", Value::Name(wanted.publication)), ("tables", Value::Tables(&tables))];
    let is_ours =
        |(schema, name): (&str, &str)| tables.iter().any(|table| schema == table.schema() && name == table.table());
    let exactly_ours = publication.tables.len() == tables.len() && publication.tables().all(is_ours);
    let set_table = match tables.is_empty() {
        true => "drop publication {publication};",
        false => "alter publication {publication} set table {tables};",
    };
    let faults = [
        (publication.all_tables, "publishes all tables", "drop publication {publication};"),
        (publication.publishes_schemas, "publishes whole schemas", set_table),
        (
            !publication.all_tables && !publication.publishes_schemas && !exactly_ours,
            match tables.as_slice() {
                [] => "publishes tables, and only messages are relayed",
                [_] => "does not publish exactly the outbox table",
                _ => "does not publish exactly the outbox tables",
            },
            set_table,
        ),
        (publication.row_filter, "has a row filter, which drops events silently", set_table),
        (publication.column_list, "has a column list, which hides columns silently", set_table),
        (!publication.inserts, "does not publish inserts", "alter publication {publication} set (publish = 'insert');"),
        (
            partitioned && !publication.via_root,
            "publishes partitions under their own names",
            "alter publication {publication} set (publish_via_partition_root = true);",
        ),
    ];
    let present = || faults.iter().filter(|(present, ..)| *present);
    let what: Vec<_> = present().map(|(_, what, _)| *what).collect();
    if what.is_empty() {
        return Ok(());
    }
    let mut statements: Vec<_> = present().map(|(.., sql)| fill(sql, &values)).collect::<Result<_>>()?;
    if publication.all_tables {
        statements.truncate(1);
        statements.push("and run setup again, or name another publication with --publication".to_owned());
    }
    statements.dedup();
    let (s, names) = (if tables.len() == 1 { "" } else { "s" }, listed(&tables));
    let cause = match tables.is_empty() {
        true => format!("publication {} does not fit: it {}", wanted.publication, what.join(", and ")),
        false => {
            format!("publication {} does not fit table{s} {names}: it {}", wanted.publication, what.join(", and "))
        }
    };
    Err(Error::new(Kind::Publication, cause).remedy(statements.join(" ")))
}

fn listed(tables: &[&TableName]) -> String {
    let names: Vec<_> = tables.iter().map(|table| table.to_string()).collect();
    names.join(", ")
}

fn slot(wanted: &Wanted<'_>, found: &Found, plan: &mut Plan) -> Result<()> {
    let server = &found.server;
    let name = wanted.slot.as_str();
    if let Some(slot) = &found.slot {
        judge_slot(slot, wanted.slot, &server.database, &wanted.setup())?;
        let confirmed = slot.confirmed_flush_lsn.map_or_else(|| "nothing".to_owned(), |lsn| lsn.to_string());
        plan.present.push(format!("slot {name} exists, confirmed up to {confirmed}"));
        return Ok(());
    }
    refuse_if(plan, !server.may_replicate, || {
        Error::new(Kind::PostgresRefused, format!("role {} may not create replication slots", server.role))
            .remedy(grant(
                "alter role {role} replication; (on Amazon RDS: grant rds_replication to {role};) or do without a slot: --mode poll",
                server,
            ))
    });
    refuse_if(plan, found.capacity.free_slots < 1, || {
        Error::new(Kind::PostgresUnfit, "all replication slots are in use")
            .remedy("drop one that nobody needs, or raise max_replication_slots and restart the server")
    });
    refuse_if(plan, found.capacity.free_senders < 1, || {
        Error::new(Kind::PostgresUnfit, "all walsenders are in use")
            .remedy("raise max_wal_senders and restart the server")
    });
    let template = if server.major() >= FAILOVER_SINCE { sql::CREATE_SLOT_FAILOVER } else { sql::CREATE_SLOT };
    plan.steps.push(Step {
        object: Object::Slot,
        doing: format!("creating slot {name}"),
        done: format!("slot {name} created: a relay publishes everything committed from now on"),
        sql: fill(template, &[("slot", Value::Text(name))])?,
    });
    Ok(())
}

fn remarks(wanted: &Wanted<'_>, found: &Found, plan: &mut Plan) {
    plan.remarks.push(match found.server.max_slot_wal_keep_mb {
        Some(-1) | None => {
            "max_slot_wal_keep_size is -1: while no relay runs, the server keeps WAL for the slot until the disk is full; \
                 watch `walrelay status`, or set a limit and risk the loss of the slot"
                .to_owned()
        }
        Some(limit_mb) => format!(
            "max_slot_wal_keep_size is {limit_mb} MB: a relay that falls further behind loses the slot; watch \
             `walrelay status`"
        ),
    });
    if found.server.major() >= FAILOVER_SINCE && found.slot.as_ref().is_some_and(|slot| slot.failover == Some(false)) {
        plan.remarks.push(format!("slot {} is not kept on standbys (failover is off)", wanted.slot));
    }
}

fn refuse_if(plan: &mut Plan, in_the_way: bool, error: impl FnOnce() -> Error) {
    if in_the_way {
        plan.obstacles.push(error());
    }
}

/// A statement with the role's and database's names quoted; these names come from the server.
fn grant(template: &str, server: &Server) -> String {
    let values = [("role", Value::Name(&server.role)), ("database", Value::Name(&server.database))];
    fill(template, &values).unwrap_or_else(|_| template.to_owned())
}

/// The facts that decide the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub server: Server,
    /// What the server can still take. The same for all outboxes, but for the schema.
    pub capacity: Capacity,
    /// The outbox tables, in the order of the configuration.
    pub outboxes: Vec<OutboxTable>,
    pub publication: Option<Publication>,
    pub slot: Option<Slot>,
}

/// The objects that the server and the role can still create.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Capacity {
    free_slots: i64,
    free_senders: i64,
    /// Whether the role may create publications and schemas in the database.
    may_create: bool,
    /// Whether the role may create tables in the schema; none if the schema does not exist.
    pub may_create_in_schema: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutboxTable {
    pub table: Option<Table>,
    /// Whether the role may create tables in its schema; none if the schema does not exist.
    pub may_create_in_schema: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Publication {
    pub owned: bool,
    pub all_tables: bool,
    pub publishes_schemas: bool,
    inserts: bool,
    other_than_inserts: bool,
    via_root: bool,
    schemas: Vec<String>,
    tables: Vec<String>,
    row_filter: bool,
    column_list: bool,
}

impl Found {
    /// Reads the catalogs. Changes nothing.
    pub(crate) async fn read(session: &Session, source: &SourceConfig, outboxes: &[OutboxConfig]) -> Result<Found> {
        let client = session.client();
        let server = preflight::server(client).await?;
        let publication = Publication::read(session, &source.publication).await?;
        let capacity = Capacity::read(client, "").await?;
        let mut outbox_tables = Vec::new();
        for name in outboxes.iter().filter_map(|outbox| outbox.source.table()) {
            let may_create_in_schema = Capacity::read(client, name.schema()).await?.may_create_in_schema;
            outbox_tables.push(OutboxTable { table: Table::read(client, name).await?, may_create_in_schema });
        }
        let slot = preflight::slot(client, &source.slot).await?;
        Ok(Found { server, capacity, outboxes: outbox_tables, publication, slot })
    }

    /// The outbox tables that exist.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Table> {
        self.outboxes.iter().filter_map(|outbox_table| outbox_table.table.as_ref())
    }
}

impl Capacity {
    /// What is left, and whether the role may create in `schema`.
    pub(crate) async fn read(client: &Client, schema: &str) -> Result<Capacity> {
        Ok(one_json(client, "reading the capacity of the server", CAPACITY, &[(&schema, Type::TEXT)]).await?)
    }
}

impl Publication {
    /// The publication `name`.
    pub(crate) async fn read(session: &Session, name: &str) -> Result<Option<Publication>> {
        const DOING: &str = "reading the publication";
        let text = one_text(session.client(), DOING, PUBLICATION, &[(&name, Type::TEXT)]).await?;
        text.map(|text| parsed(DOING, &text)).transpose()
    }

    /// Its tables: schema and name.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.schemas.iter().map(String::as_str).zip(self.tables.iter().map(String::as_str))
    }
}

/// Adds the faults that keep a relay from reading the tables: obstacles if the relay polls, else warnings. `adds_column`:
/// the plan adds the column for the transaction. Changes nothing, and reads no row.
pub(crate) async fn look_at_rows(
    plan: &mut Plan,
    session: &Session,
    wanted: &Wanted<'_>,
    found: &Found,
    adds_column: bool,
) -> Result<()> {
    if found.server.major() < MAJOR_MIN {
        return Ok(());
    }
    for ((outbox, _), _) in
        wanted.tables().zip(&found.outboxes).filter(|(_, outbox_table)| outbox_table.table.is_some())
    {
        match table_facts(session.client(), outbox).await {
            Ok(facts) => judge_rows(plan, wanted, outbox, &facts, adds_column),
            Err(error) if !matches!(error.kind(), Kind::Config | Kind::Publication) => return Err(error),
            Err(error) if wanted.polls => plan.obstacles.push(error),
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
        "no column of table {table} has the transaction that inserted the row: after a loss of the slot, some events are \
         published twice"
    )
}

fn judge_rows(plan: &mut Plan, wanted: &Wanted<'_>, outbox: &OutboxConfig, facts: &TableFacts, adds_column: bool) {
    let table = &facts.name;
    let unfit = |cause: String, remedy: &str| Error::new(Kind::Publication, cause).remedy(remedy);
    if facts.order.is_none() {
        let what = format!("table {table} has no identity or serial column, and outbox.order_by is not set");
        if wanted.polls {
            plan.obstacles.push(unfit(format!("{what}: the order of the rows is not known"), NEEDS_ORDER));
        } else {
            plan.warnings.push(format!(
                "{what}: after a loss of the slot, the order of the unpublished rows is not known, \
                 and the relay stops. To avoid that, {NEEDS_ORDER}"
            ));
        }
    }
    if facts.xid_column.is_none() && !adds_column && !outbox.upkeep.says_for_itself() {
        let column = "--add-xid-column adds a column with the transaction's id";
        if wanted.polls {
            plan.obstacles.push(unfit(
                format!("table {table} cannot be polled: no column tells which rows were not published"),
                &format!("{column}; or set outbox.pending and outbox.mark, or outbox.delete"),
            ));
        } else {
            plan.warnings.push(format!(
                "{}. walrelay setup --slot {} with {column}",
                without_transaction(table),
                wanted.slot
            ));
        }
    }
    if wanted.polls && !facts.may_select {
        plan.remarks.push(format!(
            "this role may not read table {table}; the role of the relay needs that right: grant select on {table}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EventSource;
    use crate::poll::{KeyColumn, Order};
    use crate::position::Lsn;
    use crate::postgres::catalog::Column;

    fn outbox(table: &str) -> OutboxConfig {
        OutboxConfig { source: EventSource::Table(table.parse().unwrap()), ..OutboxConfig::default() }
    }

    fn found() -> Found {
        let columns =
            ["id", "aggregatetype", "aggregateid", "type", "payload"].map(|name| Column::of(name, "text")).to_vec();
        Found {
            server: Server {
                version_num: 15_00_18,
                version: "15.18".into(),
                wal_level: "logical".into(),
                may_replicate: true,
                role: "app".into(),
                database: "shop".into(),
                ..Server::default()
            },
            capacity: Capacity { free_slots: 1, free_senders: 1, may_create: true, may_create_in_schema: None },
            outboxes: vec![OutboxTable {
                table: Some(Table {
                    kind: "r".into(),
                    persistence: "p".into(),
                    owned: true,
                    columns,
                    ..Table::default()
                }),
                may_create_in_schema: Some(true),
            }],
            publication: None,
            slot: None,
        }
    }

    fn without_table() -> Found {
        let outbox_table = OutboxTable { table: None, may_create_in_schema: Some(true) };
        Found { outboxes: vec![outbox_table], ..found() }
    }

    fn fitting_publication() -> Publication {
        Publication { owned: true, inserts: true, ..Publication::default() }.of(&["outbox"])
    }

    impl Publication {
        pub(crate) fn of(mut self, tables: &[&str]) -> Publication {
            self.schemas = vec!["public".to_owned(); tables.len()];
            self.tables = tables.iter().map(|table| (*table).to_owned()).collect();
            self
        }
    }

    fn fitting_slot() -> Slot {
        Slot {
            slot_type: "logical".into(),
            plugin: Some("pgoutput".into()),
            database: Some("shop".into()),
            confirmed_flush_lsn: Some(Lsn::new(1)),
            wal_status: Some("reserved".into()),
            ..Slot::default()
        }
    }

    fn planned(create_table: bool, found: &Found) -> Result<Plan> {
        planned_for(false, create_table, found)
    }

    fn planned_for(polls: bool, create_table: bool, found: &Found) -> Result<Plan> {
        let outbox = outbox("outbox");
        let slot: SlotName = "orders".parse().unwrap();
        plan(&Wanted { slot: &slot, publication: "walrelay_orders", outboxes: &[outbox], create_table, polls }, found)
    }

    fn objects(plan: &Plan) -> Vec<Object> {
        plan.steps.iter().map(|step| step.object).collect()
    }

    #[test]
    fn polling_needs_a_writable_server_and_a_table_but_no_slot_or_publication() {
        let mut bare = without_table();
        bare.server.wal_level = "replica".into();
        bare.server.may_replicate = false;
        bare.capacity = Capacity { free_slots: 0, free_senders: 0, may_create: false, may_create_in_schema: None };
        let made = planned_for(true, true, &bare).unwrap();
        assert_eq!((objects(&made), made.remarks.len()), (vec![Object::Table], 0));
        assert!(made.refusal().is_ok());
        let mut unlogged = Found { outboxes: found().outboxes, ..bare };
        unlogged.outboxes[0].table.as_mut().unwrap().persistence = "u".into();
        assert!(planned_for(true, false, &unlogged).unwrap().steps.is_empty(), "only a stream misses its rows");
        unlogged.server.in_recovery = true;
        assert!(planned_for(true, false, &unlogged).unwrap().refusal().is_err());

        let slot: SlotName = "orders".parse().unwrap();
        let messages = OutboxConfig { source: EventSource::Messages("m".into()), ..OutboxConfig::default() };
        let wanted = Wanted { slot: &slot, publication: "p", outboxes: &[messages], create_table: false, polls: true };
        let without = Found { outboxes: Vec::new(), ..found() };
        assert_eq!(plan(&wanted, &without).unwrap_err().kind(), Kind::Config);
    }

    #[test]
    fn steps_for_tables_precede_those_for_publication_and_slot() {
        let mut plan = planned(true, &without_table()).unwrap();
        for object in [Object::Column, Object::Index] {
            let step = Step { object, doing: String::new(), done: String::new(), sql: String::new() };
            plan.steps.push(step);
        }
        plan.put_tables_first();
        let expected = [Object::Table, Object::Column, Object::Index, Object::Publication, Object::Slot];
        assert_eq!(objects(&plan), expected);
    }

    #[test]
    fn a_recreated_table_is_added_to_its_now_empty_publication() {
        let empty = fitting_publication().of(&[]);
        let gone = Found { publication: Some(empty.clone()), ..without_table() };
        let plan = planned(true, &gone).unwrap();
        assert_eq!(objects(&plan), [Object::Table, Object::Publication, Object::Slot]);
        assert_eq!(plan.steps[1].sql, r#"alter publication "walrelay_orders" add table "public"."outbox";"#);
        let with_slot = planned(true, &Found { slot: Some(fitting_slot()), ..gone.clone() }).unwrap();
        assert_eq!(objects(&with_slot), [Object::Table, Object::Publication]);
        let of_others = Publication { owned: false, ..empty.clone() };
        let plan = planned(true, &Found { publication: Some(of_others), ..gone.clone() }).unwrap();
        assert_eq!(plan.refusal().unwrap_err().kind(), Kind::PostgresRefused);
        let again = planned(false, &Found { publication: Some(empty.clone()), ..found() }).unwrap();
        assert_eq!(again.steps[0].sql, plan.steps[1].sql, "somebody created the table again");
        assert!(again.refusal().is_ok());
        let mut of_others = Found { publication: Some(empty.clone()), ..found() };
        of_others.outboxes[0].table.as_mut().unwrap().owned = false;
        assert_eq!(planned(false, &of_others).unwrap().refusal().unwrap_err().kind(), Kind::PostgresRefused);
        let strange = empty.of(&["orders"]);
        assert!(planned(true, &Found { publication: Some(strange), ..gone }).is_err());
    }

    #[test]
    fn a_missing_right_or_schema_for_a_table_is_refused_with_the_sql_remedy() {
        let mut bare = without_table();
        for (may_create_in_schema, may_create, kind, cause, remedy) in [
            (
                Some(false),
                true,
                Kind::PostgresRefused,
                "role app may not create tables in schema public of database shop",
                r#"grant create on schema "public" to "app";"#,
            ),
            (
                None,
                true,
                Kind::Publication,
                "schema public does not exist in database shop",
                r#"create schema "public";"#,
            ),
            (
                None,
                false,
                Kind::Publication,
                "schema public does not exist in database shop",
                r#"create schema "public" authorization "app";"#,
            ),
        ] {
            bare.outboxes[0].may_create_in_schema = may_create_in_schema;
            bare.capacity.may_create = may_create;
            let error = planned(true, &bare).unwrap().obstacles.remove(0);
            assert_eq!((error.kind(), error.cause()), (kind, cause));
            assert_eq!(error.what_to_do().as_deref(), Some(remedy));
        }
        let exists = Found { outboxes: found().outboxes, ..without_table() };
        assert!(planned(true, &exists).unwrap().refusal().is_ok(), "an existing table needs no right to create one");
    }

    #[test]
    fn a_suitable_table_publication_and_slot_need_no_step() {
        let set = r#"alter publication "walrelay_orders" set (publish = 'insert');"#;
        for other_than_inserts in [false, true] {
            let publication = Some(Publication { other_than_inserts, ..fitting_publication() });
            let plan = planned(true, &Found { publication, slot: Some(fitting_slot()), ..found() }).unwrap();
            assert_eq!((plan.steps.len(), plan.present.len()), (0, 3));
            let is_remarked = plan.remarks.iter().any(|remark| remark.contains(set));
            assert_eq!(is_remarked, other_than_inserts, "{:?}", plan.remarks);
        }
    }

    #[test]
    fn a_slot_is_created_with_failover_from_postgres_17_on() {
        let mut newer = found();
        newer.server.version_num = 17_00_00;
        let sql = |found: &Found| planned(false, found).unwrap().steps.last().unwrap().sql.clone();
        assert_eq!(
            sql(&found()),
            "select lsn from pg_catalog.pg_create_logical_replication_slot('orders', 'pgoutput');"
        );
        assert!(sql(&newer).contains("failover => true"));
    }

    #[test]
    fn an_unsuitable_server_and_role_are_refused_with_all_faults_at_once() {
        let mut bad = found();
        bad.server.wal_level = "replica".into();
        bad.server.may_replicate = false;
        bad.server.role = "we\"ird".into();
        let plan = planned(false, &bad).unwrap();
        let error = plan.refusal().unwrap_err();
        assert_eq!(error.kind(), Kind::PostgresUnfit);
        assert_eq!(error.cause(), "wal_level is replica, not logical; role we\"ird may not create replication slots");
        assert!(error.what_to_do().unwrap().contains(r#"alter role "we""ird" replication;"#));
        assert!(!error.what_to_do().unwrap().contains(";;"));
        assert_eq!(objects(&plan), [Object::Publication, Object::Slot], "a dry run still has the script");
    }

    #[test]
    fn an_unsuitable_publication_is_refused_with_the_sql_remedy() {
        let fitting = fitting_publication;
        let set_table = r#"alter publication "walrelay_orders" set table "public"."outbox";"#;
        let set_publish = r#"alter publication "walrelay_orders" set (publish = 'insert');"#;
        let table = [
            (fitting().of(&["outbox", "orders"]), set_table.to_owned()),
            (Publication { row_filter: true, ..fitting() }, set_table.to_owned()),
            (Publication { column_list: true, row_filter: true, ..fitting() }, set_table.to_owned()),
            (Publication { publishes_schemas: true, ..fitting() }, set_table.to_owned()),
            (Publication { inserts: false, ..fitting() }, set_publish.to_owned()),
            (Publication { column_list: true, inserts: false, ..fitting() }, format!("{set_table} {set_publish}")),
        ];
        for (publication, sql) in table {
            let error = planned(false, &Found { publication: Some(publication), ..found() }).unwrap_err();
            assert_eq!(
                (error.kind(), error.what_to_do().as_deref()),
                (Kind::Publication, Some(sql.as_str())),
                "{}",
                error.cause()
            );
        }
        let all = Publication { all_tables: true, ..fitting().of(&[]) };
        let error = planned(false, &Found { publication: Some(all), ..found() }).unwrap_err();
        assert!(error.what_to_do().unwrap().starts_with(r#"drop publication "walrelay_orders";"#));
    }

    #[test]
    fn a_partitioned_table_needs_publish_via_partition_root() {
        let mut partitioned = Found { publication: Some(fitting_publication()), ..found() };
        partitioned.outboxes[0].table.as_mut().unwrap().kind = "p".into();
        assert!(
            planned(false, &partitioned)
                .unwrap_err()
                .what_to_do()
                .unwrap()
                .contains("publish_via_partition_root = true")
        );
        partitioned.publication.as_mut().unwrap().via_root = true;
        assert!(planned(false, &partitioned).is_ok());
    }

    #[test]
    fn a_slot_whose_publication_is_missing_is_refused_with_a_remedy() {
        let error = planned(false, &Found { slot: Some(fitting_slot()), ..found() }).unwrap_err();
        assert_eq!(error.kind(), Kind::Publication);
        let remedy = error.what_to_do().unwrap();
        assert!(
            remedy.contains("walrelay teardown --slot orders --force, then walrelay setup --slot orders;"),
            "{remedy}"
        );
        let physical = Slot { slot_type: "physical".into(), plugin: None, ..fitting_slot() };
        let error = planned(false, &Found { slot: Some(physical), ..found() }).unwrap_err();
        assert_eq!(error.kind(), Kind::SlotUnusable, "not one to be dropped as if it was ours");
    }

    #[test]
    fn a_slot_of_another_plugin_is_refused() {
        let slot = Slot { plugin: Some("wal2json".into()), ..fitting_slot() };
        let found = Found { publication: Some(fitting_publication()), slot: Some(slot), ..found() };
        let error = planned(false, &found).unwrap_err();
        assert!(error.kind() == Kind::SlotUnusable && error.what_to_do().is_some(), "{error}");
    }

    #[test]
    fn an_unsuitable_or_missing_table_is_refused() {
        let with = |change: fn(&mut Table)| {
            let mut found = found();
            change(found.outboxes[0].table.as_mut().unwrap());
            planned(false, &found).unwrap_err()
        };
        assert_eq!(with(|table| table.kind = "v".into()).cause(), "public.outbox is not a table");
        assert_eq!(
            with(|table| table.persistence = "u".into()).what_to_do().as_deref(),
            Some("alter table public.outbox set logged;")
        );
        let error = with(|table| table.columns.truncate(3));
        assert_eq!(error.cause(), "table public.outbox has no column payload that can be published");
        assert!(planned(false, &without_table()).is_err(), "a table is only created when asked for");
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
            key: vec![KeyColumn {
                name: "id".to_owned(),
                type_name: "uuid".to_owned(),
                as_text: false,
                not_null: true,
            }],
            xid_column: xid.then(|| "xid".to_owned()),
            xid_not_null: false,
            order,
            time: None,
            may_select: true,
            may_lock: true,
            is_partitioned: false,
        }
    }

    fn judged(polls: bool, facts: &TableFacts, outbox: &OutboxConfig, adds_column: bool) -> Plan {
        let slot: SlotName = "orders".parse().unwrap();
        let outboxes = [outbox.clone()];
        let wanted = Wanted { slot: &slot, publication: "p", outboxes: &outboxes, create_table: false, polls };
        let mut plan = Plan::default();
        judge_rows(&mut plan, &wanted, outbox, facts, adds_column);
        plan
    }

    #[test]
    fn a_missing_order_or_xid_column_warns_if_streamed_and_is_refused_if_polled() {
        let mut outbox = OutboxConfig::default();
        let counts = |plan: &Plan| (plan.warnings.len(), plan.obstacles.len());
        for (order, xid, adds_column, missing) in
            [(true, true, false, 0), (true, false, true, 0), (true, false, false, 1), (false, true, false, 1)]
        {
            let facts = facts(order, xid);
            assert_eq!(counts(&judged(false, &facts, &outbox, adds_column)), (missing, 0), "{order} {xid}");
            assert_eq!(counts(&judged(true, &facts, &outbox, adds_column)), (0, missing), "{order} {xid}");
        }
        let plan = judged(false, &facts(false, false), &outbox, false);
        assert!(plan.warnings[0].contains("outbox.order_by") && plan.warnings[1].contains("--add-xid-column"));
        let error = judged(true, &facts(true, false), &outbox, false).refusal().unwrap_err();
        assert_eq!(error.kind(), Kind::Publication);
        assert!(error.what_to_do().unwrap().starts_with("--add-xid-column"), "{error}");
        outbox.upkeep.pending = Some("not sent".to_owned());
        assert_eq!(counts(&judged(true, &facts(true, false), &outbox, false)), (0, 0));
        let closed = TableFacts { may_select: false, ..facts(true, true) };
        assert_eq!(judged(true, &closed, &outbox, false).remarks.len(), 1);
    }
}
