//! P3: what cannot be decoded, routed or produced stops the relay, by name.

use crate::support::relay::{EXIT, Relay};
use crate::support::servers::kafka::PARTITIONS;
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// Exit codes of `src/error.rs`.
const EVENT: Option<i32> = Some(20);
const RECORD: Option<i32> = Some(21);

/// Commits an event between two good ones and gives its id; the relay has to stop at it.
fn poison(world: &World, aggregate_type: &str, payload: &str) -> String {
    let sql = world.sql();
    world.emit(&sql, "before");
    eventually(
        "the event before arrives",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 1,
    );
    world.wait_confirmed();
    sql.run(&format!(
        "insert into outbox (id, aggregatetype, aggregateid, type, payload)
         values (gen_random_uuid(), {aggregate_type}, 'bad', 'Bad', {payload})"
    ));
    let id = sql.text("select id from outbox where aggregateid = 'bad'");
    world.emit(&sql, "after");
    id
}

/// It ended with `code`, named the event, delivered nothing behind it, and ends the same way when
/// started again.
#[track_caller]
fn assert_stopped_at(world: &World, relay: Relay, id: &str, code: Option<i32>) {
    assert_stopped(world, relay, id, code);
    assert_eq!(
        world.delivered(),
        1,
        "something behind the event was delivered"
    );
}

/// It ended with `code`, named the event, and ends the same way when started again.
#[track_caller]
fn assert_stopped(world: &World, mut relay: Relay, id: &str, code: Option<i32>) {
    for _ in 0..2 {
        assert_eq!(relay.wait_exit(EXIT), code);
        let log = relay.log();
        assert!(
            log.contains(id),
            "the log does not name the event {id}:\n{log}"
        );
        assert!(has_lsn(&log), "the log names no LSN:\n{log}");
        relay = world.run().start();
    }
    assert_eq!(relay.wait_exit(EXIT), code);
}

/// Whether some word is an LSN other than zero, `0/1A2B3C`.
fn has_lsn(text: &str) -> bool {
    text.split(|c: char| !(c.is_ascii_hexdigit() || c == '/'))
        .any(|word| {
            let halves = word.split_once('/');
            halves
                .is_some_and(|(high, low)| !high.is_empty() && low.len() >= 6 && !low.contains('/'))
        })
}

#[test]
fn an_invalid_topic_name_stops_the_relay_with_id_and_lsn() {
    let world = World::new();
    let relay = world.relay();
    let id = poison(&world, "'not a topic'", "'{}'");
    assert_stopped_at(&world, relay, &id, EVENT);
}

#[test]
fn a_null_aggregate_type_stops_the_relay_with_id_and_lsn() {
    let world = World::new();
    let relay = world.relay();
    let id = poison(&world, "null", "'{}'");
    assert_stopped_at(&world, relay, &id, EVENT);
}

#[test]
fn a_record_over_message_max_bytes_stops_the_relay_with_id_and_lsn() {
    let world = World::new();
    let relay = world.relay();
    let id = poison(
        &world,
        &format!("'{}'", world.kind(0)),
        "to_jsonb(repeat('x', 2000000))",
    );
    assert_stopped_at(&world, relay, &id, RECORD);
}

#[test]
fn a_record_over_the_topics_max_message_bytes_stops_the_relay_with_id_and_lsn() {
    let world = World::new();
    topic::create(
        &world.brokers,
        &world.topic(0),
        PARTITIONS,
        &[("max.message.bytes", "2000")],
    );
    let relay = world.relay();
    // Hexadecimal noise, so that no compression brings it below the limit.
    let noise = "(select jsonb_agg(md5(n::text)) from generate_series(1, 2000) n)";
    let id = poison(&world, &format!("'{}'", world.kind(0)), noise);
    let confirmed = world.confirmed();
    assert_stopped(&world, relay, &id, RECORD);
    // The broker's answer takes a moment: events of other aggregates may be on their way, and come
    // again.
    assert!(
        world
            .records(0)
            .iter()
            .all(|record| record.key_text() != "bad"),
        "what was refused is there"
    );
    assert_eq!(
        world.confirmed(),
        confirmed,
        "the slot moved past an event that was not delivered"
    );
}

#[test]
fn an_unroutable_event_is_skipped_by_advancing_and_adopting_the_slot() {
    let world = World::new();
    let relay = world.relay();
    let sql = world.sql();
    poison(&world, "'not a topic'", "'{}'");
    let mut relay = relay;
    assert_eq!(relay.wait_exit(EXIT), EVENT);
    // What an operator does who has looked at the event: everything up to here is given up, on
    // purpose.
    sql.run(&format!(
        "select pg_replication_slot_advance('{}', pg_current_wal_lsn())",
        world.name
    ));
    world.emit(&sql, "onwards");
    let mut refused = world.run().start();
    assert_eq!(
        refused.wait_exit(EXIT),
        Some(16),
        "a slot somebody else moved has to be adopted knowingly"
    );
    let mut relay = world.run().flag("--adopt-slot").start();
    relay.wait_ready();
    eventually(
        "the event behind arrives",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 2,
    );
    assert!(
        world
            .records(0)
            .iter()
            .any(|record| record.key_text() == "onwards")
    );
}

#[test]
fn an_lsn_is_parsed_from_an_error_text() {
    assert!(has_lsn("stopped at 0/15D2A88, see"));
    assert!(has_lsn(r#"{"lsn":"16/B374D848"}"#));
    assert!(!has_lsn("2026/11/21 and/or a/b 1/2"));
}
