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
        outboxes: vec![Place {
            table: Some(Table { kind: "r".into(), persistence: "p".into(), owned: true, columns, ..Table::default() }),
            may_create_in_schema: Some(true),
        }],
        publication: None,
        slot: None,
    }
}

fn without_table() -> Found {
    let place = Place { table: None, may_create_in_schema: Some(true) };
    Found { outboxes: vec![place], ..found() }
}

fn fitting_publication() -> Publication {
    Publication { owned: true, inserts: true, ..Publication::default() }.of(&["outbox"])
}

impl Publication {
    pub(in crate::cli) fn of(mut self, tables: &[&str]) -> Publication {
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
fn the_order_is_table_publication_slot() {
    let plan = planned(true, &without_table()).unwrap();
    assert_eq!(objects(&plan), [Object::Table, Object::Publication, Object::Slot]);
    assert!(plan.refusal().is_ok());
}

#[test]
fn who_polls_needs_a_table_and_nothing_else() {
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
fn what_is_done_to_tables_comes_before_publication_and_slot() {
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
fn a_table_that_is_made_anew_is_added_to_the_publication_it_was_dropped_from() {
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
    let strange = empty.of(&["orders"]);
    assert!(planned(true, &Found { publication: Some(strange), ..gone }).is_err());
}

#[test]
fn a_role_that_may_not_create_the_table_is_told_the_grant() {
    let mut bare = without_table();
    bare.outboxes[0].may_create_in_schema = Some(false);
    let error = planned(true, &bare).unwrap().refusal().unwrap_err();
    assert_eq!(
        (error.kind(), error.cause()),
        (Kind::PostgresRefused, "role app may not create tables in schema public of database shop")
    );
    assert_eq!(error.what_to_do().as_deref(), Some(r#"grant create on schema "public" to "app""#));
    bare.outboxes[0].table = found().outboxes.remove(0).table;
    assert!(planned(true, &bare).unwrap().refusal().is_ok(), "a table that is there needs no right to create one");
}

#[test]
fn a_table_in_a_schema_that_does_not_exist_is_remedied_by_the_schema() {
    let mut bare = without_table();
    bare.outboxes[0].may_create_in_schema = None;
    let error = planned(true, &bare).unwrap().refusal().unwrap_err();
    assert_eq!((error.kind(), error.cause()), (Kind::Publication, "schema public does not exist in database shop"));
    assert_eq!(error.what_to_do().as_deref(), Some(r#"create schema "public""#));
    bare.capacity.may_create = false;
    let plan = planned(true, &bare).unwrap();
    assert_eq!(plan.obstacles[0].what_to_do().as_deref(), Some(r#"create schema "public" authorization "app";"#));
}

#[test]
fn what_is_there_and_fits_is_left_alone() {
    let all = Found { publication: Some(fitting_publication()), slot: Some(fitting_slot()), ..found() };
    let plan = planned(true, &all).unwrap();
    assert_eq!((plan.steps.len(), plan.present.len()), (0, 3));
}

#[test]
fn a_publication_of_more_than_inserts_fits_and_is_remarked() {
    let publication = Publication { other_than_inserts: true, ..fitting_publication() };
    let plan = planned(true, &Found { publication: Some(publication), slot: Some(fitting_slot()), ..found() }).unwrap();
    assert_eq!((plan.steps.len(), plan.present.len()), (0, 3));
    let set = r#"alter publication "walrelay_orders" set (publish = 'insert');"#;
    assert!(plan.remarks.iter().any(|remark| remark.contains(set)), "{:?}", plan.remarks);
}

#[test]
fn a_slot_is_made_for_failover_where_the_server_can() {
    let mut newer = found();
    newer.server.version_num = 17_00_00;
    let sql = |found: &Found| planned(false, found).unwrap().steps.last().unwrap().sql.clone();
    assert_eq!(sql(&found()), "select lsn from pg_catalog.pg_create_logical_replication_slot('orders', 'pgoutput');");
    assert!(sql(&newer).contains("failover => true"));
}

#[test]
fn a_server_or_role_that_cannot_is_refused_with_everything_that_is_wrong() {
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
fn a_publication_that_does_not_fit_comes_with_the_sql_that_fixes_it() {
    let fitting = fitting_publication;
    let set_table = r#"alter publication "walrelay_orders" set table "public"."outbox";"#;
    let set_publish = r#"alter publication "walrelay_orders" set (publish = 'insert');"#;
    let table = [
        (fitting().of(&["outbox", "orders"]), set_table.to_owned()),
        (fitting().of(&[]), set_table.to_owned()),
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
fn a_partitioned_table_is_published_as_its_root() {
    let mut partitioned = Found { publication: Some(fitting_publication()), ..found() };
    partitioned.outboxes[0].table.as_mut().unwrap().kind = "p".into();
    assert!(
        planned(false, &partitioned).unwrap_err().what_to_do().unwrap().contains("publish_via_partition_root = true")
    );
    partitioned.publication.as_mut().unwrap().via_root = true;
    assert!(planned(false, &partitioned).is_ok());
}

#[test]
fn a_slot_without_its_publication_is_not_given_a_new_one() {
    let error = planned(false, &Found { slot: Some(fitting_slot()), ..found() }).unwrap_err();
    assert_eq!(error.kind(), Kind::Publication);
    let remedy = error.what_to_do().unwrap();
    assert!(remedy.contains("walrelay teardown --slot orders --force, then walrelay setup --slot orders;"), "{remedy}");
    let physical = Slot { slot_type: "physical".into(), plugin: None, ..fitting_slot() };
    let error = planned(false, &Found { slot: Some(physical), ..found() }).unwrap_err();
    assert_eq!(error.kind(), Kind::SlotUnusable, "not one to be dropped as if it was ours");
}

#[test]
fn a_slot_that_does_not_fit_is_refused() {
    let fitting = fitting_slot;
    let table = [
        (Slot { slot_type: "physical".into(), plugin: None, ..fitting() }, "slot orders is a physical slot"),
        (Slot { plugin: Some("wal2json".into()), ..fitting() }, "slot orders uses the plugin wal2json, not pgoutput"),
        (Slot { database: Some("other".into()), ..fitting() }, "slot orders belongs to database other, not shop"),
        (Slot { temporary: true, ..fitting() }, "slot orders is temporary"),
        (
            Slot { two_phase: true, ..fitting() },
            "slot orders decodes prepared transactions before their commit (two_phase)",
        ),
        (
            Slot { wal_status: Some("lost".into()), ..fitting() },
            "slot orders is lost (wal_removed: max_slot_wal_keep_size was exceeded): the log it needs is gone",
        ),
        (
            Slot { confirmed_flush_lsn: None, active_pid: Some(7), ..fitting() },
            "slot orders is still being created by pid 7, and waits for transactions that are under way",
        ),
    ];
    for (slot, cause) in table {
        let found = Found { publication: Some(fitting_publication()), slot: Some(slot), ..found() };
        let error = planned(false, &found).unwrap_err();
        assert_eq!((error.kind(), error.cause()), (Kind::SlotUnusable, cause));
        assert!(error.what_to_do().is_some());
    }
}

#[test]
fn a_table_that_does_not_fit_is_refused() {
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
        key: vec![KeyColumn { name: "id".to_owned(), type_name: "uuid".to_owned(), as_text: false, not_null: true }],
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
fn what_a_lost_slot_would_need_is_a_warning_and_what_polling_needs_an_obstacle() {
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
