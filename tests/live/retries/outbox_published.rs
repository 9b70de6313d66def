//! P3: `examples/outbox-published`: retried until it succeeds, with the count the runbook asks for,
//! and not `published` meanwhile.

use super::{EXIT, LARGE, Team, assert_told, told};
use crate::support::wait::eventually;
use crate::support::world::ARRIVAL;

const COLUMNS: &str = "concat_ws(' ', published, retry_count)";

#[test]
fn attempts_are_counted_in_the_row_until_delivery() {
    let team = Team::new(
        "outbox",
        include_str!("../../../examples/outbox-published/schema.sql"),
        include_str!("../../../examples/outbox-published/walrelay.toml"),
        &["domain-events"],
    );
    let topic = format!("{}.domain-events", team.world.name);
    let insert = |aggregate: &str, data: &str| {
        team.sql().run(&format!(
            "insert into outbox (id, aggregate_id, event_type, event_data, metadata, created_at, \
             published)
             values (gen_random_uuid(), '{aggregate}', 'QueueOpened', {data}, '{{}}', now(), false)"
        ));
    };
    let mut relay = team.relay("250ms");
    insert("queue-1", "'{}'");
    // The runbook's query finds it, and what is not out is FALSE.
    let found = || {
        team.sql()
            .number("select count(*) from outbox where retry_count >= 4 and published = false")
    };
    eventually("the runbook sees it", ARRIVAL, found, |rows| *rows == 1);
    let counts: Vec<_> = team
        .updates(&team.says("id::text", "true"))
        .iter()
        .map(|update| update.row["retry_count"].clone())
        .collect();
    assert_eq!(counts[..4], [1, 2, 3, 4]);
    let told = told(&relay, "a parked event failed again");
    // The first attempt was the relay's own.
    assert_told(
        &told[..3],
        "attempts",
        &[Some(500), Some(1_000), Some(2_000)],
    );
    team.create(&topic);
    team.wait(
        "published",
        "published_at is not null and retry_count >= 4",
        "true",
    );

    insert("queue-2", &format!("to_jsonb(repeat('x', {LARGE}))"));
    insert("queue-3", "'{}'");
    team.wait(COLUMNS, "aggregate_id = 'queue-3'", "t 0");
    team.wait(COLUMNS, "aggregate_id = 'queue-2'", "f 1");
    // Asked for, it is tried once more, to the same end.
    team.parked("retry").flag("--all").succeed();
    team.wait(COLUMNS, "aggregate_id = 'queue-2'", "f 2");
    assert_eq!(team.events(&topic), 2);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
