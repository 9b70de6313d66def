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
use crate::source::preflight::{self, MAJOR_MIN, Server, Slot};

const CAPACITY: &str = include_str!("../../../sql/room.sql");
const PUBLICATION: &str = include_str!("../../../sql/publication.sql");
/// A slot can be kept on standbys from here on.
const FAILOVER_SINCE: u32 = 17;

/// What is to be there in the end.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The slot.
    pub slot: &'a SlotName,
    /// The publication.
    pub publication: &'a str,
    /// Tables with their columns, or messages.
    pub outboxes: &'a [OutboxConfig],
    /// Whether to create a table where it does not exist.
    pub create_table: bool,
    /// Whether the relay reads the table and never a slot: then there is no publication either.
    pub polls: bool,
}

impl<'a> Wanted<'a> {
    /// The tables among the outboxes, in their order.
    pub fn tables(&self) -> impl Iterator<Item = (&'a OutboxConfig, &'a TableName)> + use<'a> {
        self.outboxes.iter().filter_map(|outbox| Some((outbox, outbox.source.table()?)))
    }

    /// Their names.
    fn names(&self) -> Vec<&'a TableName> {
        self.tables().map(|(_, name)| name).collect()
    }
}

/// What a step makes, in the order of steps: whoever may not make a slot has the table by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    /// The table.
    Table,
    /// A column of the table.
    Column,
    /// An index of it, built beside writers: alone, in no transaction.
    Index,
    /// The publication.
    Publication,
    /// The slot.
    Slot,
}

impl Object {
    fn is_of_table(self) -> bool {
        matches!(self, Object::Table | Object::Column | Object::Index)
    }
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What it makes.
    pub object: Object,
    /// In words that follow "while".
    pub doing: String,
    /// To be said afterwards.
    pub done: String,
    /// The statement, or several.
    pub sql: String,
}

/// What to do, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Statements: table, column, publication, slot, as far as each is missing.
    pub steps: Vec<Step>,
    /// What is there already and fits.
    pub present: Vec<String>,
    /// What the operator should know.
    pub remarks: Vec<String>,
    /// What may go wrong one day, and can be mended now.
    pub warnings: Vec<String>,
    /// What keeps this role on this server from doing the steps.
    pub obstacles: Vec<Error>,
}

impl Plan {
    /// Puts what is done to tables before publication and slot, and changes no other order.
    pub fn put_tables_first(&mut self) {
        self.steps.sort_by_key(|step| !step.object.is_of_table());
    }

    /// All obstacles as one error.
    ///
    /// # Errors
    /// The first obstacle's kind, with what they say and what to do about each.
    pub fn refusal(&self) -> Result<()> {
        let Some(first) = self.obstacles.first() else { return Ok(()) };
        let causes: Vec<_> = self.obstacles.iter().map(Error::to_string).collect();
        let remedies = self.obstacles.iter().filter_map(Error::any_remedy);
        Err(Error::new(first.kind(), causes.join("; ")).remedy(Remedy::joined(remedies)))
    }
}

/// What to do, so that what is `wanted` comes from what was `found`.
///
/// # Errors
/// Something is there and does not fit; the remedy has the SQL.
pub fn plan(wanted: &Wanted<'_>, found: &Found) -> Result<Plan> {
    let mut plan = Plan::default();
    serves(wanted, &found.server, &mut plan);
    if wanted.polls && wanted.outboxes.len() != found.outboxes.len() {
        return Err(Error::new(Kind::Config, "messages are in no table, and cannot be polled")
            .remedy("leave --mode poll out, or message_prefix"));
    }
    for ((outbox, name), place) in wanted.tables().zip(&found.outboxes) {
        table(wanted, outbox, name, found, place, &mut plan)?;
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
    place: &Place,
    plan: &mut Plan,
) -> Result<()> {
    match (&place.table, wanted.create_table) {
        (Some(table), _) => {
            table_fits(wanted, outbox, name, table)?;
            plan.present.push(format!("table {name} is there"));
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
            refuse_if(plan, place.may_create_in_schema.is_none(), || {
                let cause = format!("schema {} does not exist in database {}", name.schema(), found.server.database);
                let values = [("schema", Value::Name(name.schema())), ("role", Value::Name(&found.server.role))];
                // Whoever may not create it asks somebody who may, and owns it then.
                let template = match found.capacity.may_create {
                    true => "create schema {schema};",
                    false => "create schema {schema} authorization {role};",
                };
                Error::new(Kind::Publication, cause)
                    .remedy(fill(template, &values).unwrap_or_else(|_| template.to_owned()))
            });
            refuse_if(plan, place.may_create_in_schema == Some(false), || {
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
        // Its columns are looked at where it is known how rows are read.
        return Ok(());
    }
    if table.persistence != "p" {
        let sql = format!("alter table {name} set logged;");
        return unfit(format!("table {name} is unlogged or temporary, and so is in no write-ahead log"), sql);
    }
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

/// Makes the publication, mends it where a table of it is made anew, or refuses it with the SQL that mends it.
fn publication(wanted: &Wanted<'_>, found: &Found, plan: &mut Plan) -> Result<()> {
    let tables = wanted.names();
    let values = [("publication", Value::Name(wanted.publication)), ("tables", Value::Tables(&tables))];
    let name = wanted.publication;
    match (&found.publication, &found.slot) {
        (Some(publication), _) => {
            let partitioned = found.tables().any(Table::is_partitioned);
            let places = tables.iter().zip(&found.outboxes);
            let made: Vec<&TableName> =
                places.filter(|(_, place)| place.table.is_none()).map(|(name, _)| *name).collect();
            publication_fits(wanted, &with(publication, &made), partitioned)?;
            if !made.is_empty() {
                return add(name, publication, &made, found, plan);
            }
            let what = match tables.is_empty() {
                true => String::new(),
                false => format!(" and publishes inserts into {}", listed(&tables)),
            };
            plan.present.push(format!("publication {name} is there{what}"));
            if publication.other_than_inserts {
                let sql = fill("alter publication {publication} set (publish = 'insert');", &values)?;
                plan.remarks.push(format!(
                    "publication {name} publishes more than inserts, which costs traffic and is dropped; inserts are enough: {sql}"
                ));
            }
        }
        (None, Some(slot)) => {
            if !slot.is_ours(&found.server.database) {
                slot_fits(wanted.slot, slot, &found.server)?;
            }
            // A slot decodes with the catalog of the time of each change: there is no publication in its past.
            return Err(Error::new(
                Kind::Publication,
                format!("slot {} is there and publication {name} is not; a slot cannot decode what was written before its publication", wanted.slot),
            )
            .remedy(
                Remedy::from("name the publication it was made for with --publication. If that was dropped: ")
                    .and(NextCommand::new("teardown").option("slot", wanted.slot).flag("force"))
                    .and(", then ")
                    .and(NextCommand::new("setup").option("slot", wanted.slot))
                    .and("; `walrelay run` reads from the table what was not published"),
            ));
        }
        (None, None) => {
            refuse_if(plan, !found.capacity.may_create, || {
                Error::new(
                    Kind::PostgresRefused,
                    format!(
                        "role {} may not create publications in database {}",
                        found.server.role, found.server.database
                    ),
                )
                .remedy(grant("grant create on database {database} to {role};", &found.server))
            });
            for (table, place) in tables.iter().zip(&found.outboxes) {
                refuse_if(plan, place.table.as_ref().is_some_and(|table| !table.owned), || {
                    Error::new(Kind::PostgresRefused, format!("role {} does not own table {table}", found.server.role))
                        .remedy("run setup as the table's owner, or give its owner the output of setup --dry-run")
                });
            }
            let template = if tables.is_empty() { sql::CREATE_PUBLICATION_OF_NOTHING } else { sql::CREATE_PUBLICATION };
            plan.steps.push(Step {
                object: Object::Publication,
                doing: format!("creating publication {name}"),
                done: format!("publication {name} created"),
                sql: fill(template, &values)?,
            });
        }
    }
    Ok(())
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

/// Tables that were dropped have left their publication, and those made in their place are not in it.
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
            "the slot is older than table {}: a relay that knows of an earlier one stops at its start, and says what can be \
             chosen",
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
        slot_fits(wanted.slot, slot, server)?;
        let confirmed = slot.confirmed_flush_lsn.map_or_else(|| "nothing".to_owned(), |lsn| lsn.to_string());
        plan.present.push(format!("slot {name} is there, confirmed to {confirmed}"));
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
        Error::new(Kind::PostgresUnfit, "all replication slots are taken")
            .remedy("drop one that nobody needs, or raise max_replication_slots and restart the server")
    });
    refuse_if(plan, found.capacity.free_senders < 1, || {
        Error::new(Kind::PostgresUnfit, "all walsenders are taken")
            .remedy("raise max_wal_senders and restart the server")
    });
    let template = if server.major() >= FAILOVER_SINCE { sql::CREATE_SLOT_FAILOVER } else { sql::CREATE_SLOT };
    plan.steps.push(Step {
        object: Object::Slot,
        doing: format!("creating slot {name}"),
        done: format!("slot {name} created: everything committed from now on will be relayed"),
        sql: fill(template, &[("slot", Value::Text(name))])?,
    });
    Ok(())
}

fn slot_fits(name: &SlotName, slot: &Slot, server: &Server) -> Result<()> {
    let unusable = |cause: String| Error::new(Kind::SlotUnusable, format!("slot {name} {cause}"));
    let drop = fill(sql::DROP_SLOT, &[("slot", Value::Text(name.as_str()))])?;
    let other_name = |cause: String| unusable(cause).remedy(format!("choose another --slot, or drop this one: {drop}"));
    let plugin = slot.plugin.as_deref().unwrap_or_default();
    if slot.slot_type != "logical" {
        return Err(other_name("is a physical slot".to_owned()));
    }
    if plugin != "pgoutput" {
        return Err(other_name(format!("uses the plugin {plugin}, not pgoutput")));
    }
    if slot.database.as_deref() != Some(server.database.as_str()) {
        let database = slot.database.as_deref().unwrap_or_default();
        return Err(unusable(format!("belongs to database {database}, not {}", server.database)).remedy(
            "slot names are shared by all databases of a server: choose another --slot, or connect to that database",
        ));
    }
    if slot.temporary || slot.two_phase {
        let what = if slot.temporary {
            "is temporary"
        } else {
            "decodes prepared transactions before their commit (two_phase)"
        };
        return Err(other_name(what.to_owned()));
    }
    if let Some(why) = slot.lost() {
        return Err(unusable(format!("is lost ({why}): the log it needs is gone")).remedy(format!(
            "start `walrelay run`, which makes it anew and reads from the table what was not published. Where nothing was \
             relayed yet, drop it and run setup again: {drop}"
        )));
    }
    if slot.confirmed_flush_lsn.is_none() {
        let pid = slot.active_pid.map(|pid| format!(" by pid {pid}")).unwrap_or_default();
        return Err(unusable(format!("is still being created{pid}, and waits for transactions that are under way"))
            .remedy("wait for it, or end that session: select pg_terminate_backend(pid);"));
    }
    Ok(())
}

fn remarks(wanted: &Wanted<'_>, found: &Found, plan: &mut Plan) {
    plan.remarks.push(match found.server.max_slot_wal_keep_mb {
        Some(-1) | None => {
            "max_slot_wal_keep_size is -1: while no relay runs, the slot keeps write-ahead log until the disk is full; \
                 watch `walrelay status`, or bound it and risk losing the slot"
                .to_owned()
        }
        Some(limit_mb) => format!(
            "max_slot_wal_keep_size is {limit_mb} MB: a relay that falls further behind loses the slot, and with it \
             events; watch `walrelay status`"
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
pub struct Found {
    /// Server, database and role.
    pub server: Server,
    /// What the server can still take. The same for all outboxes, but for the schema.
    pub capacity: Capacity,
    /// The outbox tables, in the order of the configuration.
    pub outboxes: Vec<Place>,
    /// The publication.
    pub publication: Option<Publication>,
    /// The slot.
    pub slot: Option<Slot>,
}

/// The objects that the server and the role can still create.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Capacity {
    free_slots: i64,
    free_senders: i64,
    /// Whether the role may create publications and schemas in the database.
    may_create: bool,
    /// Whether the role may create tables in the schema; none if the schema does not exist.
    may_create_in_schema: Option<bool>,
}

/// The place of an outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The table.
    pub table: Option<Table>,
    /// Whether the role may create tables in its schema; none if the schema does not exist.
    may_create_in_schema: Option<bool>,
}

/// A publication.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Publication {
    /// Whether the role has the rights of its owner.
    pub owned: bool,
    /// Whether it publishes all tables.
    pub all_tables: bool,
    /// Whether it publishes all tables of some schemas.
    pub publishes_schemas: bool,
    inserts: bool,
    /// Whether it publishes updates, deletes or truncates.
    other_than_inserts: bool,
    /// Whether it publishes partitions as their root.
    via_root: bool,
    schemas: Vec<String>,
    tables: Vec<String>,
    /// Whether a table has a row filter.
    row_filter: bool,
    /// Whether a table has a column list.
    column_list: bool,
}

impl Found {
    /// Reads the catalogs. Changes nothing.
    ///
    /// # Errors
    /// Those of the session.
    pub async fn read(session: &Session, source: &SourceConfig, outboxes: &[OutboxConfig]) -> Result<Found> {
        let client = session.client();
        let server = preflight::server(client).await?;
        let publication = Publication::read(session, &source.publication).await?;
        let capacity = Capacity::read(client, "").await?;
        let mut places = Vec::new();
        for name in outboxes.iter().filter_map(|outbox| outbox.source.table()) {
            let may_create_in_schema = Capacity::read(client, name.schema()).await?.may_create_in_schema;
            places.push(Place { table: Table::read(client, name).await?, may_create_in_schema });
        }
        let slot = preflight::slot(client, &source.slot).await?;
        Ok(Found { server, capacity, outboxes: places, publication, slot })
    }

    /// The outbox tables that exist.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.outboxes.iter().filter_map(|place| place.table.as_ref())
    }
}

impl Capacity {
    async fn read(client: &Client, schema: &str) -> Result<Capacity> {
        Ok(one_json(client, "reading the capacity of the server", CAPACITY, &[(&schema, Type::TEXT)]).await?)
    }
}

impl Publication {
    /// The publication `name`.
    ///
    /// # Errors
    /// Those of the session.
    pub async fn read(session: &Session, name: &str) -> Result<Option<Publication>> {
        const DOING: &str = "reading the publication";
        let text = one_text(session.client(), DOING, PUBLICATION, &[(&name, Type::TEXT)]).await?;
        text.map(|text| parsed(DOING, &text)).transpose()
    }

    /// Its tables: schema and name.
    pub fn tables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.schemas.iter().map(String::as_str).zip(self.tables.iter().map(String::as_str))
    }
}

/// Adds to `plan` what stands in the way of reading the tables that are there: an obstacle where the relay polls, else a
/// warning. With `adds_column`, the column for the transaction is as good as there. Changes nothing, and reads no row.
///
/// # Errors
/// Those of the connection.
pub async fn look_at_rows(
    plan: &mut Plan,
    session: &Session,
    wanted: &Wanted<'_>,
    found: &Found,
    adds_column: bool,
) -> Result<()> {
    if found.server.major() < MAJOR_MIN {
        return Ok(());
    }
    for ((outbox, _), _) in wanted.tables().zip(&found.outboxes).filter(|(_, place)| place.table.is_some()) {
        match table_facts(session.client(), outbox).await {
            Ok(facts) => judge_rows(plan, wanted, outbox, &facts, adds_column),
            Err(error) if !matches!(error.kind(), Kind::Config | Kind::Publication) => return Err(error),
            Err(error) if wanted.polls => plan.obstacles.push(error),
            Err(error) => plan.warnings.push(told(&error)),
        }
    }
    Ok(())
}

fn told(error: &Error) -> String {
    match error.what_to_do() {
        Some(remedy) => format!("{error}: {remedy}"),
        None => error.to_string(),
    }
}

fn judge_rows(plan: &mut Plan, wanted: &Wanted<'_>, outbox: &OutboxConfig, facts: &TableFacts, adds_column: bool) {
    let table = &facts.name;
    let unfit = |cause: String, remedy: &str| Error::new(Kind::Publication, cause).remedy(remedy);
    if facts.order.is_none() {
        let what = format!("table {table} has no identity or serial column, and outbox.order_by is not set");
        if wanted.polls {
            plan.obstacles
                .push(unfit(format!("{what}: nothing tells the order in which rows are to be read"), NEEDS_ORDER));
        } else {
            plan.warnings.push(format!(
                "{what}: should the slot be lost, nothing tells in which order to read from the table what was not \
                 published, and the relay stops. To be safe from that, {NEEDS_ORDER}"
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
                "no column of table {table} tells which transaction inserted a row: should the slot be lost, some events come \
                 again. walrelay setup --slot {} with {column}",
                wanted.slot
            ));
        }
    }
    if wanted.polls && !facts.may_select {
        plan.remarks
            .push(format!("this role may not read table {table}; that of the relay has to: grant select on {table}"));
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
