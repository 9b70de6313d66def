//! Every fault and every warning, one row each.

use super::*;
use crate::source::catalog::tests::{fit as fit_catalog, member};
use crate::source::catalog::{Catalog, Flags, Member, PublishedColumn, PublishedTable};
use walrelay_core::config::EventSource;
use walrelay_core::position::Lsn;

fn outbox() -> OutboxConfig {
    OutboxConfig {
        source: EventSource::Table("outbox".parse().unwrap()),
        ..OutboxConfig::default()
    }
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// A server, slot, publication and table nothing can be said against.
fn fit() -> Facts {
    Facts {
        server: Server {
            version_num: 170_011,
            version: "17.11".into(),
            wal_level: "logical".into(),
            database: "shop".into(),
            role: "relay".into(),
            may_replicate: true,
            max_slot_wal_keep_mb: Some(4096),
            idle_replication_slot_timeout: None,
            standby_slots: StandbySlots {
                setting: some("standby1"),
                ..StandbySlots::default()
            },
            ..Server::default()
        },
        system_identifier: some("7000"),
        slot: Some(Slot {
            plugin: some("pgoutput"),
            slot_type: "logical".into(),
            database: some("shop"),
            confirmed_flush_lsn: Some(Lsn::new(400)),
            wal_status: some("reserved"),
            conflicting: Some(false),
            failover: Some(true),
            ..Slot::default()
        }),
        catalogs: vec![fit_catalog()],
        ..Facts::default()
    }
}

fn judged(facts: &Facts) -> Result<Vec<String>> {
    judge(
        facts,
        &"orders".parse().unwrap(),
        "walrelay_orders",
        &[outbox()],
    )
}

type Change = fn(&mut Facts);

fn slot(facts: &mut Facts) -> &mut Slot {
    facts.slot.as_mut().unwrap()
}

fn catalog(facts: &mut Facts) -> &mut Catalog {
    &mut facts.catalogs[0]
}

fn table(facts: &mut Facts) -> &mut PublishedTable {
    catalog(facts).table.as_mut().unwrap()
}

fn flags(facts: &mut Facts) -> &mut Flags {
    &mut catalog(facts).publication.as_mut().unwrap().flags
}

fn of_version(facts: &mut Facts, major: u32, minor: u32) {
    facts.server.version_num = major * 10_000 + minor;
    facts.server.version = format!("{major}.{minor}");
}

fn is_partitioned(facts: &mut Facts, via_root: bool) {
    table(facts).kind = "p".into();
    flags(facts).via_root = via_root;
}

/// A change, and a part of the cause and of the remedy that it comes to.
type Fault = (Change, &'static str, &'static str);

#[track_caller]
fn assert_faults(kind: Kind, faults: &[Fault]) {
    for (change, cause, remedy) in faults {
        let mut facts = fit();
        change(&mut facts);
        let error = judged(&facts).expect_err(cause);
        assert_eq!(error.kind(), kind, "{cause}");
        assert!(
            error.cause().contains(cause),
            "{cause:?} is not in {:?}",
            error.cause()
        );
        let what_to_do = error.what_to_do().expect(cause);
        assert!(
            what_to_do.contains(remedy),
            "{remedy:?} is not in {what_to_do:?}"
        );
    }
}

#[test]
fn a_suitable_server_passes_without_a_warning() {
    assert_eq!(judged(&fit()), Ok(Vec::new()));
    assert_eq!(
        judged(&fit().with_slot()),
        Ok(Vec::new()),
        "a slot that is to be made"
    );
}

#[test]
fn an_old_server_a_low_wal_level_and_a_role_without_replication_are_refused() {
    let unfit: [Fault; 2] = [
        (|it| of_version(it, 13, 14), "PostgreSQL 13.14", "upgrade"),
        (
            |it| it.server.wal_level = "replica".into(),
            "wal_level is replica",
            "set wal_level = 'logical'; -- then",
        ),
    ];
    assert_faults(Kind::PostgresUnfit, &unfit);
    let remedy = "alter role \"relay\" replication; /* on RDS: ";
    let refused: Change = |it| it.server.may_replicate = false;
    assert_faults(
        Kind::PostgresRefused,
        &[(
            refused,
            "role \"relay\" may not use replication slots",
            remedy,
        )],
    );
}

#[test]
fn a_server_in_recovery_is_waited_for_despite_all_other_faults() {
    let mut facts = Facts {
        slot: None,
        ..fit()
    };
    facts.server.in_recovery = true;
    facts.server.wal_level = "replica".into();
    assert_eq!(
        judged(&facts).unwrap_err().kind(),
        Kind::PostgresUnreachable
    );
}

#[test]
fn an_unusable_slot_is_refused_with_the_reason_and_a_remedy() {
    const SETUP: &str = "`walrelay setup --slot orders`";
    const DROP: &str = "pg_drop_replication_slot('orders')";
    let neither = "there is neither replication slot orders on this server nor publication \
                   walrelay_orders in database shop";
    let removed =
        "is lost (wal_removed: max_slot_wal_keep_size was exceeded); it was confirmed up to 0/190";
    let faults: [Fault; 12] = [
        (
            |it| it.slot = None,
            "there is no replication slot orders",
            "check the name; `walrelay run --slot orders` publishes what was not published, and \
             makes the slot again, where slot.on_loss and what is stored let it; else it says why \
             not; a first relay needs `walrelay setup --slot orders`",
        ),
        (
            |it| (it.slot, catalog(it).publication) = (None, None),
            neither,
            SETUP,
        ),
        (
            |it| slot(it).slot_type = "physical".into(),
            "slot orders is a physical slot",
            "name another slot",
        ),
        (
            |it| slot(it).plugin = some("wal2json"),
            "uses the plugin wal2json",
            DROP,
        ),
        (
            |it| slot(it).database = some("crm"),
            "database crm, and we are connected to shop",
            "connect to crm",
        ),
        (
            |it| slot(it).temporary = true,
            "is temporary",
            "create a permanent one",
        ),
        (|it| slot(it).two_phase = true, "has two_phase", DROP),
        (
            |it| (slot(it).confirmed_flush_lsn, slot(it).active_pid) = (None, Some(7)),
            "is being created",
            "pg_prepared_xacts",
        ),
        (
            |it| slot(it).confirmed_flush_lsn = None,
            "is lost (it has no confirmed LSN)",
            "makes the slot again",
        ),
        (
            |it| slot(it).wal_status = some("lost"),
            removed,
            "makes the slot again",
        ),
        (
            |it| slot(it).invalidation_reason = some("idle_timeout"),
            "is lost (idle_timeout)",
            "an alert on the slot's lag",
        ),
        (
            |it| slot(it).conflicting = Some(true),
            "is lost (conflict with recovery)",
            DROP,
        ),
    ];
    assert_faults(Kind::SlotUnusable, &faults);
}

#[test]
fn a_publication_that_would_skip_inserts_is_refused_with_a_remedy() {
    const MISSING: &str = "there is no publication walrelay_orders in database shop";
    const WHOLE: &str = "add table public.outbox; commit;";
    const INSERTS: &str = "set (publish = 'insert')";
    let removed = "table public.outbox is not in publication walrelay_orders: never added, or \
                   dropped and created again";
    let cut = "publishes only (id, type) of public.outbox, without the column aggregatetype";
    let retained: Change = |it| {
        catalog(it).publication = None;
        slot(it).restart_lsn = slot(it).confirmed_flush_lsn;
    };
    let other: Change = |it| {
        catalog(it).members.clear();
        catalog(it).other_tables = vec!["public.orders_outbox".into()];
    };
    let renamed: Change = |it| {
        catalog(it).publication = None;
        catalog(it).publications = Some("shop, all".into());
        slot(it).restart_lsn = slot(it).confirmed_flush_lsn;
    };
    let faults: [Fault; 10] = [
        (
            |it| catalog(it).publication = None,
            MISSING,
            "`walrelay setup --slot orders`",
        ),
        (
            renamed,
            MISSING,
            "name one that publishes the table with --publication: shop, all",
        ),
        (
            retained,
            MISSING,
            "`walrelay teardown --slot orders --force`, then `walrelay setup --slot orders`, then \
             start",
        ),
        (
            |it| catalog(it).table = None,
            "there is no table public.outbox in database shop",
            "walrelay setup",
        ),
        (
            |it| catalog(it).members.clear(),
            removed,
            "alter publication \"walrelay_orders\" add table public.outbox",
        ),
        (
            other,
            "publishes public.orders_outbox, and not public.outbox",
            "--table 'public.orders_outbox'",
        ),
        (|it| flags(it).insert = false, "publish = ''", INSERTS),
        (
            |it| (flags(it).insert, flags(it).delete) = (false, true),
            "publish = 'delete': without inserts",
            INSERTS,
        ),
        (
            |it| catalog(it).members[0].row_filter = some("(id > 1)"),
            "filters rows of public.outbox: (id > 1)",
            WHOLE,
        ),
        (
            |it| catalog(it).members[0].columns = Some(vec!["id".into(), "type".into()]),
            cut,
            WHOLE,
        ),
    ];
    assert_faults(Kind::Publication, &faults);
}

#[test]
fn a_table_that_cannot_be_streamed_is_refused_with_a_remedy() {
    let silent =
        "partition outbox_7 of public.outbox is unlogged, foreign or of another access method";
    let by_partition = "is partitioned, and publication walrelay_orders publishes rows under the \
                        names of partitions";
    let has_silent: Change = |it| {
        is_partitioned(it, true);
        table(it).silent_partitions = vec!["outbox_7".into()];
    };
    let under_another_name: Change = |it| {
        flags(it).via_root = true;
        catalog(it).members = vec![
            member(0, "outbox"),
            member(1, "events"),
            member(2, "all_events"),
        ];
    };
    let lacking: Change = |it| table(it).columns.retain(|column| column.name != "payload");
    let of_lo: Change = |it| {
        table(it).columns[4].type_oid = 70_000;
        it.base_types.insert(
            70_000,
            ColumnType {
                oid: 26,
                modifier: -1,
            },
        );
    };
    let faults: [Fault; 15] = [
        (
            |it| table(it).columns[4].type_oid = 26,
            "payload of public.outbox is of type oid",
            "lo_get(\"payload\"::oid)",
        ),
        (
            of_lo,
            "payload of public.outbox is of type oid",
            "type bytea using",
        ),
        (
            |it| table(it).access_method = some("columnar"),
            "has the access method columnar",
            "alter table public.outbox set access method heap",
        ),
        (
            |it| table(it).is_hypertable = true,
            "is a hypertable",
            "PARTITION BY RANGE",
        ),
        (
            |it| table(it).children = vec!["c".into()],
            "tables inherit from public.outbox (c)",
            "alter table c no inherit public.outbox",
        ),
        (
            |it| table(it).insert_rules = vec!["r on outbox".into()],
            "rules of public.outbox replace an insert (r on outbox)",
            "drop rule r on outbox",
        ),
        // Before a missing slot: no slot helps.
        (
            |it| (it.slot, table(it).kind) = (None, "v".into()),
            "public.outbox is a view",
            "inserted into",
        ),
        (
            |it| table(it).kind = "f".into(),
            "is a foreign table",
            "inserted into",
        ),
        (
            |it| table(it).persistence = "u".into(),
            "is unlogged",
            "alter table public.outbox set logged",
        ),
        (
            |it| table(it).persistence = "t".into(),
            "is temporary",
            "permanent",
        ),
        (has_silent, silent, "alter table outbox_7 set logged"),
        (
            |it| is_partitioned(it, false),
            by_partition,
            "set (publish_via_partition_root = true)",
        ),
        (
            under_another_name,
            "publishes its rows under the name of all_events",
            "name all_events as the outbox",
        ),
        (
            lacking,
            "has no column payload; it has id, aggregatetype, aggregateid, type",
            "which column holds what",
        ),
        (
            |it| table(it).columns[4].generated = "s".into(),
            "column payload of public.outbox is generated",
            "map a column",
        ),
    ];
    assert_faults(Kind::Publication, &faults);
}

#[test]
fn an_unlogged_table_is_named() {
    let mut facts = fit();
    let outbox = outbox();
    let named = |facts: &Facts| facts.unlogged(outbox.source.table().into_iter()).count();
    assert_eq!(named(&facts), 0);
    table(&mut facts).persistence = "u".into();
    assert_eq!(named(&facts), 1);
}

#[test]
fn settings_that_only_look_like_faults_are_accepted() {
    let rows: [(&str, Change); 6] = [
        (
            "another session streams from the slot: the server decides",
            |it| slot(it).active_pid = Some(77),
        ),
        ("every mapped column is in the list", |it| {
            let names = table(it)
                .columns
                .iter()
                .map(|column| column.name.clone())
                .collect();
            catalog(it).members[0].columns = Some(names);
        }),
        ("a generated column that 18 publishes", |it| {
            table(it).columns[4].generated = "s".into();
            catalog(it).publication.as_mut().unwrap().generated_columns = some("s");
        }),
        ("a generated column nobody mapped", |it| {
            table(it).columns.push(PublishedColumn {
                name: "search".into(),
                generated: "s".into(),
                ..PublishedColumn::default()
            });
        }),
        ("a partitioned table via its root", |it| {
            is_partitioned(it, true)
        }),
        (
            "a partition under its own name; the filter of the table above does not apply to it",
            |it| {
                catalog(it).members = vec![Member {
                    row_filter: some("(id > 1)"),
                    ..member(1, "events")
                }];
            },
        ),
    ];
    for (name, change) in rows {
        let mut facts = fit();
        change(&mut facts);
        assert!(judged(&facts).is_ok(), "{name}: {:?}", judged(&facts));
    }
}

#[test]
fn each_risk_of_server_slot_publication_or_table_is_a_warning() {
    let missing = "synchronized_standby_slots names standby2, from which no standby streams";
    let old: Change = |it| {
        of_version(it, 16, 15);
        slot(it).failover = None;
    };
    let attached: Change = |it| {
        of_version(it, 14, 24);
        is_partitioned(it, true);
    };
    let for_all: Change = |it| {
        catalog(it).publication.as_mut().unwrap().all_tables = true;
        flags(it).delete = true;
    };
    let rows: [(Change, &str); 17] = [
        (
            |it| it.server.max_slot_wal_keep_mb = None,
            "until the disk is full",
        ),
        (
            |it| slot(it).safe_wal_size = Some(3 << 20),
            "4096 MB of WAL behind; 3 MB are left",
        ),
        (
            |it| slot(it).wal_status = some("unreserved"),
            "about to be lost",
        ),
        (
            |it| it.server.idle_replication_slot_timeout = some("2h"),
            "when walrelay is away for 2h",
        ),
        (|it| slot(it).failover = Some(false), "failover off"),
        (
            |it| it.server.standby_slots.setting = some(""),
            "synchronized_standby_slots is empty",
        ),
        (
            |it| it.server.standby_slots.absent = vec!["standby2".into()],
            missing,
        ),
        (old, "PostgreSQL 16 does not copy slots to standbys"),
        (
            |it| flags(it).update = true,
            "publish = 'insert, update': what is not an insert costs traffic",
        ),
        (
            |it| catalog(it).publication.as_mut().unwrap().all_tables = true,
            "covers more tables",
        ),
        (
            |it| catalog(it).members[0].through = "schema".into(),
            "covers more tables",
        ),
        (
            for_all,
            "without a primary key or replica identity fails in the application",
        ),
        (
            |it| catalog(it).other_tables = vec!["a".into(), "b".into()],
            "other tables (a, b)",
        ),
        (|it| table(it).row_security = true, "row-level security"),
        (
            |it| table(it).insert_triggers = vec!["t on outbox".into()],
            "runs before each insert of a row (t on outbox)",
        ),
        (
            |it| catalog(it).members = vec![member(1, "events")],
            "rows of its siblings are not relayed",
        ),
        (
            attached,
            "attach and detach in one transaction with an alter publication",
        ),
    ];
    for (change, says) in rows {
        let mut facts = fit();
        facts.server.standby_slots.connected = vec!["standby1".to_owned()];
        change(&mut facts);
        let warnings = judged(&facts).expect(says);
        assert!(
            warnings.iter().any(|warning| warning.contains(says)),
            "{says:?}: {warnings:?}"
        );
    }
}

#[test]
fn a_choice_of_the_administrator_is_no_warning_of_a_start_and_green_for_doctor() {
    let mut facts = fit();
    facts.server.max_slot_wal_keep_mb = None;
    slot(&mut facts).failover = Some(false);
    let risks = |facts: &Facts| {
        let findings = survey(
            facts,
            &"orders".parse().unwrap(),
            "walrelay_orders",
            &[outbox()],
        );
        let warnings = findings
            .into_iter()
            .filter_map(|finding| finding.found.ok())
            .flatten();
        warnings
            .filter(|warning| !warning.is_note)
            .map(|warning| warning.text)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (risks(&facts).len(), judged(&facts).unwrap().len()),
        (1, 1),
        "{:?}",
        judged(&facts)
    );
    facts.server.max_slot_wal_keep_mb = Some(-1);
    assert_eq!(
        (risks(&facts).len(), judged(&facts).unwrap().len()),
        (0, 0),
        "{:?}",
        judged(&facts)
    );
}

#[test]
fn a_copy_of_the_slot_must_survive_a_promotion() {
    let copy = Slot {
        synced: Some(true),
        confirmed_flush_lsn: Some(Lsn::new(400)),
        ..Slot::default()
    };
    let fault = |found: Option<Slot>| {
        copy_fault(found.as_ref(), &"orders".parse().unwrap())
            .map(|fault| (fault.text, fault.remedy.unwrap()))
    };
    assert_eq!(fault(Some(copy.clone())), None);
    for (found, says, does) in [
        (None, "no copy", "sync_replication_slots = 'on'"),
        (
            Some(Slot {
                synced: Some(false),
                ..copy.clone()
            }),
            "its own",
            "select pg_drop_replication_slot('orders')",
        ),
        (
            Some(Slot {
                temporary: true,
                ..copy.clone()
            }),
            "not ready",
            "pg_log_standby_snapshot()",
        ),
        (
            Some(Slot {
                invalidation_reason: some("rows_removed"),
                ..copy
            }),
            "lost (rows_removed)",
            "log",
        ),
    ] {
        let (text, remedy) = fault(found).unwrap();
        assert!(
            text.contains(says) && remedy.contains(does),
            "{text}: {remedy}"
        );
    }
}

#[test]
fn the_suggested_bound_is_twice_what_is_kept_or_may_be() {
    let remedies = |change: Change| {
        let mut facts = fit();
        change(&mut facts);
        let findings = survey(
            &facts,
            &"orders".parse().unwrap(),
            "walrelay_orders",
            &[outbox()],
        );
        let warnings = findings
            .into_iter()
            .filter_map(|finding| finding.found.ok())
            .flatten();
        warnings
            .filter_map(|warning| warning.remedy)
            .collect::<Vec<_>>()
    };
    // Of the 6 GB that are kept, and of a limit of 4 GB, twice as much.
    let keeps = |facts: &mut Facts| {
        facts.server.max_slot_wal_keep_mb = None;
        facts.wal_end = Lsn::new(7 << 30);
        slot(facts).restart_lsn = Some(Lsn::new(1 << 30));
    };
    assert!(remedies(keeps)[0].contains("= '12288MB';"));
    let unreserved = |facts: &mut Facts| slot(facts).wal_status = some("unreserved");
    let bound = "= '8192MB';\nselect pg_reload_conf(); -- or see that a relay works";
    assert!(remedies(unreserved)[0].contains(bound));
}

#[test]
fn a_client_that_streams_and_is_no_relay_is_a_warning_with_the_sql_that_ends_it() {
    let mut facts = fit();
    slot(&mut facts).active_pid = Some(7);
    assert_eq!(judged(&facts), Ok(Vec::new()));
    slot(&mut facts).application = some("pg_recvlogical");
    let slot = "orders".parse().unwrap();
    let findings = survey(&facts, &slot, "walrelay_orders", &[outbox()]);
    let of_slot = findings.into_iter().find(|finding| finding.check == "slot");
    let warnings = of_slot.unwrap().found.unwrap();
    assert!(
        warnings[0]
            .text
            .starts_with("pg_recvlogical streams from slot orders")
    );
    assert_eq!(
        warnings[0].remedy.as_deref(),
        Some("select pg_terminate_backend(7);")
    );
}

#[test]
fn setup_is_named_to_create_a_missing_table_only_where_it_has_the_usual_columns() {
    let mut facts = fit();
    catalog(&mut facts).table = None;
    let remedy = |outbox| {
        judge(
            &facts,
            &"orders".parse().unwrap(),
            "walrelay_orders",
            &[outbox],
        )
        .unwrap_err()
        .what_to_do()
        .unwrap()
    };
    assert!(
        remedy(outbox())
            .ends_with(". `walrelay setup --slot orders --create-table` creates an empty table")
    );
    let mut mapped = outbox();
    mapped.names.payload = "body".to_owned();
    assert!(remedy(mapped).ends_with("as in table = '\"Outbox\"'"));
}

#[test]
fn a_missing_slot_and_publication_are_no_fault_before_setup_and_others_are() {
    let bare = |change: Change| {
        let mut facts = fit();
        facts.slot = None;
        facts.catalogs[0].publication = None;
        facts.catalogs[0].members = Vec::new();
        change(&mut facts);
        judged(&facts.as_set_up(&[&"outbox".parse().unwrap()]))
            .map_err(|error| error.cause().to_owned())
    };
    assert!(bare(|_| {}).is_ok());
    assert!(bare(|it| table(it).kind = "p".into()).is_ok());
    let lacks = |facts: &mut Facts| table(facts).columns.truncate(1);
    assert_eq!(
        bare(lacks).unwrap_err(),
        "table public.outbox has no column aggregatetype; it has id"
    );
    let old = |facts: &mut Facts| facts.slot = fit().slot;
    assert_eq!(
        bare(old).unwrap_err(),
        "there is no publication walrelay_orders in database shop"
    );
}

#[test]
fn a_missing_column_does_not_delay_the_backlog_and_other_faults_do() {
    let backlog = |facts: &Facts| {
        judge_backlog(
            facts,
            &"orders".parse().unwrap(),
            "walrelay_orders",
            &[outbox()],
        )
    };
    assert_eq!(backlog(&fit()).unwrap().1, None);

    let mut facts = fit();
    table(&mut facts)
        .columns
        .retain(|column| column.name != "payload");
    let (warnings, fault) = backlog(&facts).unwrap();
    assert_eq!(warnings, judged(&fit()).unwrap());
    assert_eq!(fault, judged(&facts).err());

    // A column that is there and hidden, and a row filter.
    table(&mut facts).columns[0].generated = "s".into();
    assert_eq!(backlog(&facts).unwrap_err(), judged(&facts).unwrap_err());
    table(&mut facts).columns[0].generated.clear();
    facts.catalogs[0].members[0].row_filter = some("(id > 1)");
    assert!(
        backlog(&facts)
            .unwrap_err()
            .cause()
            .contains("filters rows")
    );
}

#[test]
fn the_remedy_for_a_second_outbox_adds_its_table_to_the_publication() {
    let mut facts = fit();
    let added = Catalog {
        members: Vec::new(),
        other_tables: vec!["public.outbox".into()],
        ..facts.catalogs[0].clone()
    };
    facts.catalogs.push(added);
    let second = OutboxConfig {
        source: EventSource::Table("billing".parse().unwrap()),
        ..OutboxConfig::default()
    };
    let both = [outbox(), second];
    let judged = |facts: &Facts| {
        judge(facts, &"orders".parse().unwrap(), "walrelay_orders", &both).unwrap_err()
    };
    let error = judged(&facts);
    assert!(
        error
            .cause()
            .starts_with("table public.billing is not in publication walrelay_orders"),
        "{error}"
    );
    assert!(
        error
            .what_to_do()
            .unwrap()
            .contains("add table public.billing"),
        "{error}"
    );
    facts.catalogs[1]
        .other_tables
        .push("public.stranger".into());
    let error = judged(&facts);
    assert!(
        error
            .cause()
            .contains("publishes public.stranger, and not public.billing"),
        "{error}"
    );
}
