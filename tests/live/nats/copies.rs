//! P1, P2: copies of a message, and acks of another attempt.

use std::time::Duration;

use serde_json::json;

use super::{ALL, KEY, STREAM, all_delivered, ready, run, with, world};
use crate::support::relay::EXIT;
use crate::support::servers::Nats;
use crate::support::servers::nats::Stored;
use crate::support::wait::throughout;
use crate::support::workload::Plan;

/// P1, P2: an ack that comes once its record is on its way again counts for no other attempt. With
/// this window, the server keeps every copy.
#[test]
fn late_acks_of_earlier_attempts_lose_and_reorder_nothing() {
    let Some(mut nats) = Nats::start() else {
        return;
    };
    let window = json!({"duplicate_window": 100_000_000});
    nats.add_stream(STREAM, &ALL, window);
    let world = world();
    let command = with(&world, &nats, "ack_timeout = \"100ms\"\n");
    let mut relay = ready(&command);
    let writers = world.workload(&Plan::default());
    for _ in 0..5 {
        writers.wait_for(50);
        nats.signal("STOP");
        // Longer than the wait for an ack, and shorter than that for a ping on the connection.
        throughout("it waits", Duration::from_millis(600), || true);
        nats.signal("CONT");
    }
    writers.wait_for(50);
    writers.stop();
    let found = all_delivered(&world, &nats);
    eprintln!(
        "{} events, 5 short freezes, {} duplicates",
        world.committed(),
        found.duplicates
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// A replay is another message, whatever the server remembers of the first one.
#[test]
fn replayed_rows_are_stored_again_within_the_window_of_duplicates() {
    let Some(nats) = Nats::start() else { return };
    nats.add_stream(STREAM, &ALL, json!({}));
    let world = world();
    (0..3).for_each(|_| world.emit(&world.sql(), "a"));
    let mut relay = ready(&run(&world, &nats));
    all_delivered(&world, &nats);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    let order = "[outbox]\norder_by = \"(payload->>'v')::bigint\"\n";
    let bus = format!(
        "[sink]\nkind = \"nats\"\n[nats]\nservers = \"{}\"\n",
        nats.address
    );
    world
        .command("replay")
        .config_file(&format!("{KEY}{order}{bus}"))
        .option("--where", "true")
        .flag("--yes")
        .succeed();
    let stored = nats.read(STREAM);
    let ids = |of: &[Stored]| {
        let ids = of.iter().map(|one| one.header("id").to_owned());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(stored.len(), 6);
    assert_eq!(ids(&stored[..3]), ids(&stored[3..]));
    for (at, one) in stored.iter().enumerate() {
        let is_replay = at >= 3;
        assert_eq!(one.header("Nats-Msg-Id").is_empty(), is_replay, "{one:?}");
        assert_eq!(
            one.header("walrelay-replay").is_empty(),
            !is_replay,
            "{one:?}"
        );
    }
}
