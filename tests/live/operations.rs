//! P3, P4: publications of more than inserts, as Debezium makes them: what is no insert is dropped
//! and counted.

use crate::support::topic::Record;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// Larger than a page, and than what Postgres keeps in a row: it comes in an update's old row, too.
const LARGE: &str = "jsonb_build_object('filling', repeat(md5(random()::text), 20000))";

/// A publication of all operations, and old rows in full.
fn everything(world: &World) {
    world.sql().run(&format!(
        "alter publication walrelay_{} set (publish = 'insert, update, delete, truncate'); alter \
         table outbox replica identity full",
        world.name
    ));
}

/// The event types of the records with this key, in their order.
fn types_of(records: &[Record], key: &str) -> Vec<String> {
    let of_key = records.iter().filter(|record| record.key_text() == key);
    of_key
        .map(|record| {
            serde_json::from_str::<serde_json::Value>(&record.value_text()).unwrap()["n"]
                .to_string()
        })
        .collect()
}

#[test]
fn a_publication_of_all_operations_delivers_each_insert_once_in_order() {
    let world = World::new();
    everything(&world);
    let mut relay = world.relay();
    assert!(
        relay
            .log()
            .contains("publish = 'insert, update, delete, truncate'"),
        "no warning:\n{}",
        relay.log()
    );
    let sql = world.sql();
    let kind = world.kind(0);
    let insert = |n: u32| {
        format!(
            "insert into outbox values (gen_random_uuid(), '{kind}', 'a', 'T', \
             jsonb_build_object('n', {n}) || {LARGE})"
        )
    };
    let tick =
        "update outbox set type = 'U', payload = payload || '{\"n\": -1}' where aggregateid = 'a'";
    let large = format!("update outbox set payload = {LARGE} where aggregateid = 'a'");
    // Inserted, updated and deleted in one transaction, over and over, with updates that leave the
    // large value as it is.
    sql.run(&format!(
        "begin; {}; {tick}; {}; {large}; delete from outbox; {}; update outbox set type = 'V'; \
         commit",
        insert(1),
        insert(2),
        insert(3)
    ));
    // Debezium's usual pattern: the row is never seen by anybody.
    for n in 4..8 {
        sql.run(&format!(
            "begin; {}; delete from outbox where payload->>'n' = '{n}'; commit",
            insert(n)
        ));
    }
    sql.run(&format!(
        "begin; {}; truncate outbox; {}; commit",
        insert(8),
        insert(9)
    ));
    sql.run("update outbox set id = gen_random_uuid(); delete from outbox; truncate outbox");
    world.wait_confirmed();
    let expected: Vec<String> = (1..10).map(|n| n.to_string()).collect();
    assert_eq!(types_of(&world.records(0), "a"), expected);
    let ignored = |operation: &str| {
        relay.metric(&format!(
            "walrelay_ignored_messages_total{{op=\"{operation}\"}}"
        ))
    };
    let counted = || [ignored("update"), ignored("delete"), ignored("truncate")];
    eventually("all are counted", ARRIVAL, counted, |counted| {
        *counted == [Some(5.0), Some(7.0), Some(2.0)]
    });
    assert_eq!(relay.terminate(ARRIVAL), Some(0));
}

#[test]
fn large_updates_and_deletes_are_dropped_in_bounded_memory() {
    const BUDGET: &str = "[sink]\nmax_in_flight_bytes = \"8MiB\"\n";
    const RESIDENT_BYTES_MAX: u64 = 96 << 20;
    let world = World::new();
    everything(&world);
    let mut relay = world.run().config_file(BUDGET).start();
    relay.wait_ready();
    let kind = world.kind(0);
    world.sql().run(&format!(
        "begin; insert into outbox select gen_random_uuid(), '{kind}', 'b' || n % 10, 'T', \
         jsonb_build_object('n', n) || {LARGE}
             from generate_series(1, 200) n;
         update outbox set type = 'U'; delete from outbox; commit"
    ));
    eventually(
        "all inserts arrive",
        ARRIVAL,
        || world.delivered(),
        |records| *records >= 200,
    );
    world.wait_confirmed();
    let records = world.records(0);
    assert_eq!(records.len(), 200);
    for key in 0..10 {
        let numbers: Vec<i64> = types_of(&records, &format!("b{key}"))
            .iter()
            .map(|n| n.parse().unwrap())
            .collect();
        assert!(
            numbers.len() == 20 && numbers.is_sorted(),
            "{key}: {numbers:?}"
        );
    }
    let peak = relay.process.resident_peak_bytes().unwrap();
    assert!(peak < RESIDENT_BYTES_MAX, "{} MiB resident", peak >> 20);
}

#[test]
fn a_publication_altered_while_running_may_add_operations_and_must_keep_inserts() {
    let world = World::new();
    let mut relay = world.relay();
    let sql = world.sql();
    // Inserts in between would be missing, and this table has no order to read them in.
    let told = || {
        relay
            .log()
            .matches("the publication was altered: if inserts were not published")
            .count()
    };
    everything(&world);
    world.emit(&sql, "a");
    eventually("it is said", ARRIVAL, told, |count| *count == 1);
    sql.run("delete from outbox");
    world.emit(&sql, "a");
    eventually(
        "both arrive",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 2,
    );
    eventually(
        "the delete is counted",
        ARRIVAL,
        || relay.metric("walrelay_ignored_messages_total{op=\"delete\"}"),
        |deletes| *deletes == Some(1.0),
    );
    sql.run(&format!(
        "alter publication walrelay_{} set (publish = 'insert')",
        world.name
    ));
    world.emit(&sql, "a");
    eventually("it is said again", ARRIVAL, told, |count| *count == 2);
    sql.run(&format!(
        "alter publication walrelay_{} set (publish = 'update, delete')",
        world.name
    ));
    assert_eq!(relay.wait_exit(2 * ARRIVAL), Some(15), "{}", relay.log());
}
