//! P1, P2, P11: sinks beside Kafka. What they take is confirmed like what Kafka takes.

use serde_json::Value;

use crate::support::relay::{EXIT, Relay, last_words};
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// The records that were printed, among the lines of the log.
fn printed(relay: &Relay) -> Vec<Value> {
    let log = relay.log();
    let records = log.lines().filter(|line| line.starts_with("{\"topic\":"));
    records
        .map(|line| serde_json::from_str(line).expect("a JSON object"))
        .collect()
}

/// P1, P2.
#[test]
fn the_stdout_sink_prints_records_in_order_without_duplicates() {
    let world = World::new();
    let sql = world.sql();
    let run = || {
        world
            .command("run")
            .option("--sink", "stdout")
            .option("--log-format", "json")
            .start()
    };
    let mut relay = run();
    relay.wait_ready();
    (0..20).for_each(|number| world.emit(&sql, ["a", "b"][number % 2]));
    let records = eventually(
        "all are printed",
        ARRIVAL,
        || printed(&relay),
        |records| records.len() == 20,
    );
    for key in ["a", "b"] {
        let of_key: Vec<&Value> = records
            .iter()
            .filter(|record| record["key"] == key)
            .collect();
        let ids: Vec<&str> = of_key
            .iter()
            .filter_map(|record| record["headers"]["id"].as_str())
            .collect();
        let committed = sql.text(&format!(
            "select string_agg(id::text, ' ' order by ctid) from outbox where aggregateid = '{key}'"
        ));
        assert_eq!(ids.join(" "), committed);
        assert!(
            of_key.iter().all(|record| record["topic"]
                .as_str()
                .is_some_and(|topic| topic.starts_with("outbox.event."))
                && record["value"].is_string()),
            "{of_key:?}"
        );
    }
    let acked = || relay.metric("walrelay_acked_events_total");
    eventually("all are counted", ARRIVAL, acked, |acked| {
        *acked == Some(20.0)
    });
    assert_eq!(relay.terminate(EXIT), Some(0));
    assert_eq!(sql.text("select count(*) from walrelay.position"), "1");

    let mut relay = run();
    relay.wait_ready();
    world.emit(&sql, "c");
    let records = eventually(
        "the next is printed",
        ARRIVAL,
        || printed(&relay),
        |records| !records.is_empty(),
    );
    assert_eq!((records.len(), &records[0]["key"]), (1, &Value::from("c")));
    assert_eq!(relay.terminate(EXIT), Some(0));
    assert_eq!(world.delivered(), 0, "Kafka has none");

    world.emit(&sql, "d");
    let unread = world
        .command("run")
        .option("--sink", "stdout")
        .unread_output();
    let log = String::from_utf8_lossy(&unread.stderr).into_owned();
    assert_eq!(unread.status.code(), Some(4), "{log}");
    assert!(
        last_words(&log)
            .0
            .contains("standard output cannot be written to"),
        "{log}"
    );
    assert!(
        log.contains("no event reaches a bus") && !log.contains("bus_address="),
        "{log}"
    );
}

#[test]
fn events_of_the_null_sink_are_confirmed() {
    let world = World::new();
    let mut relay = world.command("run").option("--sink", "null").start();
    relay.wait_ready();
    let sql = world.sql();
    (0..20).for_each(|_| world.emit(&sql, "a"));
    let acked = || relay.metric("walrelay_acked_events_total");
    eventually("all are taken", ARRIVAL, acked, |acked| {
        *acked == Some(20.0)
    });
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0));
    assert_eq!(world.delivered(), 0, "Kafka has none");
}
