//! P3: `examples/outbox-events`: as many attempts as the row says, after waits that double, then
//! `dead_letter`.

use serde_json::Value;

use super::{EXIT, LARGE, Team, assert_waits};
#[cfg(feature = "nats")]
use crate::support::servers::Nats;

const COLUMNS: &str = "concat_ws(' ', event_type, status, retry_count, version)";

const TABLE: &str = "outbox_events";
const SCHEMA: &str = include_str!("../../../examples/outbox-events/schema.sql");
const CONFIG: &str = include_str!("../../../examples/outbox-events/walrelay.toml");

fn team() -> Team {
    let kafka = CONFIG.replace("kind = \"nats\"", "kind = \"kafka\"");
    Team::new(TABLE, SCHEMA, &kafka, &["events."])
}

/// An event of an aggregate, which may be tried so often.
fn insert(team: &Team, number: u32, (aggregate, kind): (&str, &str), max_retries: u32, data: &str) {
    team.sql().run(&format!(
        "insert into outbox_events (id, aggregate_id, aggregate_type, event_type, event_data, \
         status, version, created_at, max_retries)
         values ('{}', '{aggregate}', 'user', '{kind}', {data}, 'pending', 1, now(), \
         {max_retries})",
        id(number)
    ));
}

fn id(number: u32) -> String {
    format!("0a0b2b1e-7a64-4a51-8b64-51a6d6d3f{number:03}")
}

fn next(row: &Value) -> &Value {
    &row["next_retry_at"]
}

#[test]
fn max_attempts_of_the_row_limits_retries_of_parked_events() {
    tried_as_often_as_rows_say(&team());
}

#[test]
#[cfg(feature = "nats")]
fn max_attempts_of_the_row_limits_retries_at_nats() {
    let Some(nats) = Nats::start() else { return };
    tried_as_often_as_rows_say(&Team::on_nats(nats, TABLE, SCHEMA, CONFIG, &["events."]));
}

fn tried_as_often_as_rows_say(team: &Team) {
    let topic = |kind: &str| format!("{}.events.user.{kind}", team.world.name);
    team.create(&topic("welcomed"));
    let mut relay = team.relay("600ms");
    insert(team, 1, ("ann", "created"), 3, "'{}'");
    insert(team, 2, ("bob", "created"), 1, "'{}'");
    // Behind the first, and for a topic that is there; and somebody else's.
    insert(team, 3, ("ann", "welcomed"), 3, "'{}'");
    insert(team, 4, ("cid", "welcomed"), 3, "'{}'");
    team.wait(COLUMNS, "aggregate_id = 'cid'", "welcomed published 0 2");
    team.wait(COLUMNS, "aggregate_id = 'bob'", "created dead_letter 1 2");
    team.wait(
        COLUMNS,
        "aggregate_id = 'ann' and event_type = 'created'",
        "created dead_letter 3 4",
    );
    assert_eq!(
        team.says(COLUMNS, "aggregate_id = 'ann' and event_type = 'welcomed'"),
        "welcomed pending 0 1"
    );
    let updates = team.updates(&id(1));
    let says = |number: usize| {
        let row = &updates[number].row;
        assert!(
            row["last_error"]
                .as_str()
                .is_some_and(|error| error.contains(&topic("created"))),
            "{row}"
        );
        assert!(
            row["failed_at"].is_string() && row["published_at"].is_null(),
            "{row}"
        );
        (
            row["status"].as_str().unwrap(),
            row["retry_count"].as_u64().unwrap(),
        )
    };
    assert_eq!(
        (updates.len(), says(0), says(1), says(2)),
        (3, ("failed", 1), ("failed", 2), ("dead_letter", 3))
    );
    assert_waits(&updates, next, &[600.0, 1_200.0]);
    assert!(next(&updates[2].row).is_null() && next(&team.updates(&id(2))[0].row).is_null());

    // Still not there: the try that was asked for is one more, and the last.
    team.sql()
        .run("update outbox_events set status = 'pending' where aggregate_id = 'bob'");
    team.wait(COLUMNS, "aggregate_id = 'bob'", "created dead_letter 2 3");
    team.create(&topic("created"));
    team.sql()
        .run("update outbox_events set status = 'pending' where status = 'dead_letter'");
    team.wait(
        "status",
        "status <> 'published' or next_retry_at is not null or published_at is null",
        "",
    );
    assert_eq!(
        (
            team.events(&topic("created")),
            team.events(&topic("welcomed"))
        ),
        (2, 2)
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn max_attempts_of_the_row_limits_retries_in_place() {
    let mut team = team();
    team.config = team
        .config
        .replace("on_error = \"park\"", "on_error = \"skip\"");
    let mut relay = team.relay("200ms");
    insert(&team, 1, ("ann", "created"), 2, "'{}'");
    insert(&team, 2, ("bob", "created"), 4, "'{}'");
    team.wait(COLUMNS, "aggregate_id = 'ann'", "created dead_letter 2 2");
    team.wait(COLUMNS, "aggregate_id = 'bob'", "created dead_letter 4 2");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_rejected_event_is_marked_failed_at_once_and_published_after_its_repair() {
    let team = team();
    let topic = format!("{}.events.user.created", team.world.name);
    team.create(&topic);
    let mut relay = team.relay("600ms");
    insert(
        &team,
        1,
        ("ann", "created"),
        3,
        &format!("to_jsonb(repeat('x', {LARGE}))"),
    );
    insert(&team, 2, ("bob", "created"), 3, "'{}'");
    team.wait(COLUMNS, "aggregate_id = 'ann'", "created dead_letter 1 2");
    team.wait(COLUMNS, "aggregate_id = 'bob'", "created published 0 2");
    let why = team.says(
        "last_error",
        "next_retry_at is null and aggregate_id = 'ann'",
    );
    assert!(why.contains("message.max.bytes"), "{why}");
    // It is sent as it was written: so that goes, and the row as it is then comes.
    team.parked("drop").option("--id", &id(1)).succeed();
    team.wait(COLUMNS, "aggregate_id = 'ann'", "created dead_letter 1 3");
    team.sql().run(
        "update outbox_events set event_data = '{}', status = 'pending' where aggregate_id = 'ann'",
    );
    team.wait(COLUMNS, "aggregate_id = 'ann'", "created published 1 4");
    assert_eq!(team.events(&topic), 2);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
