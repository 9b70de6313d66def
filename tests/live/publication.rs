//! P8: publication and table altered under way, and session settings that change the text of a value.

use std::time::Duration;

use crate::support::relay::{EXIT, Relay};
use crate::support::servers::{Kafka, Postgres};
use crate::support::wait::{LIMIT, eventually};
use crate::support::world::{ARRIVAL, World};

/// The catalog is looked at every half minute at least.
const NOTICED: Duration = LIMIT;
const PUBLICATION: Option<i32> = Some(15);

/// A relay that has delivered one event.
fn running(world: &World) -> Relay {
    let relay = world.relay();
    world.emit(&world.sql(), "a");
    world.wait_confirmed(ARRIVAL);
    assert_eq!(world.delivered(), 1);
    relay
}

/// The relay stops for its publication after `change`, and confirms nothing of what is written after it.
#[track_caller]
fn assert_noticed(world: &World, mut relay: Relay, change: &str) {
    let sql = world.sql();
    sql.run(change);
    let changed_at = world.wal();
    world.emit(&sql, "a");
    let code = relay.wait_exit(NOTICED);
    assert_eq!(code, PUBLICATION, "after {change}:\n{}", relay.log());
    assert!(world.confirmed() <= changed_at, "confirmed an event nobody published, after {change}");
}

#[test]
fn a_dropped_publication_is_noticed_on_every_major() {
    for &major in Postgres::majors() {
        eprintln!("Postgres {major}");
        let postgres = Postgres::private(major, &[]);
        let world = World::on(&postgres, Kafka::shared().brokers());
        let relay = running(&world);
        assert_noticed(&world, relay, &format!("drop publication walrelay_{}", world.name));
    }
}

#[test]
fn committed_rows_are_delivered_on_every_major() {
    for &major in Postgres::majors() {
        eprintln!("Postgres {major}");
        let postgres = Postgres::private(major, &[]);
        let world = World::on(&postgres, Kafka::shared().brokers());
        let _relay = running(&world);
        let sql = world.sql();
        for n in 0..20 {
            world.emit(&sql, &format!("a{}", n % 3));
        }
        assert_eq!(world.assert_all_delivered().duplicates, 0);
    }
}

#[test]
fn a_publication_recreated_while_no_relay_runs_is_noticed() {
    let world = World::new();
    let mut relay = running(&world);
    assert_eq!(relay.terminate(EXIT), Some(0));
    let sql = world.sql();
    let name = &world.name;
    sql.run(&format!("drop publication walrelay_{name}"));
    // Not in the log's eyes: whatever commits here is published to nobody.
    world.emit(&sql, "a");
    sql.run(&format!("create publication walrelay_{name} for table outbox with (publish = 'insert')"));
    let mut relay = world.run().start();
    let code = relay.wait_exit(NOTICED);
    assert!(matches!(code, Some(15 | 16)), "{code:?}\n{}", relay.log());
}

#[test]
fn a_table_dropped_and_recreated_is_noticed() {
    let world = World::new();
    let relay = running(&world);
    let change = "begin; create table copied (like outbox including all); drop table outbox;
        alter table copied rename to outbox; commit";
    assert_noticed(&world, relay, change);
}

#[test]
fn a_table_removed_from_the_publication_is_noticed() {
    let world = World::new();
    let relay = running(&world);
    assert_noticed(&world, relay, &format!("alter publication walrelay_{} drop table outbox", world.name));
}

#[test]
fn a_row_filter_is_noticed() {
    let world = World::new();
    let relay = running(&world);
    let change = format!("alter publication walrelay_{} set table outbox where (aggregateid <> 'a')", world.name);
    assert_noticed(&world, relay, &change);
}

#[test]
fn a_relay_refuses_to_start_with_a_row_filter() {
    let world = World::new();
    let change = format!("alter publication walrelay_{} set table outbox where (aggregateid <> 'a')", world.name);
    world.sql().run(&change);
    let mut relay = world.run().start();
    assert_eq!(relay.wait_exit(NOTICED), PUBLICATION, "{}", relay.log());
}

#[test]
fn database_and_role_settings_change_no_record() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let sql = world.sql();
    sql.run("alter table outbox alter payload type bytea using null, alter aggregateid type text");
    world.setup();
    let insert = |key: &str| {
        let kind = world.kind(0);
        world
            .sql()
            .run(&format!("insert into outbox values (gen_random_uuid(), '{kind}', '{key}', 'T', '\\x00ff27225c0a')"));
    };
    let mut relay = world.relay();
    insert("plain");
    eventually("it arrives", ARRIVAL, || world.delivered(), |records| *records == 1);
    assert_eq!(relay.terminate(EXIT), Some(0));

    let name = &world.name;
    for setting in ["bytea_output = 'escape'", "datestyle = 'German, DMY'", "timezone = 'Asia/Kolkata'"] {
        sql.run(&format!("alter database {name} set {setting}"));
    }
    sql.run(&format!("alter database {name} set client_encoding = 'LATIN1'"));
    sql.run(&format!("alter database {name} set extra_float_digits = -5"));
    let _relay = world.relay();
    insert("grün-ключ");
    eventually("it arrives", ARRIVAL, || world.delivered(), |records| *records == 2);
    let records = world.records(0);
    assert_eq!(records[0].value, records[1].value);
    assert!(records.iter().any(|record| record.key.as_deref() == Some("grün-ключ".as_bytes())));
}
