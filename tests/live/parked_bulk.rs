//! P4: many events that begin to wait at once do so in few round trips, in their order.

use std::time::Duration;

use super::parked::NO_TOPICS;
use crate::support::proxy::{Conditions, Proxy, Way};
use crate::support::relay::EXIT;
use crate::support::servers::Postgres;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

const EVENTS: u32 = 2_000;
/// Transactions that write all of them to the table; each takes a few round trips.
const TRANSACTIONS_MAX: i64 = 100;
/// Of one way.
const LATENCY: Duration = Duration::from_millis(5);

#[test]
fn many_parked_events_are_delivered_in_few_transactions_and_in_order() {
    let world = World::new();
    let sql = world.sql();
    let kind = world.kind(0);
    let postgres = Proxy::before(&Postgres::shared().address());
    let url = world.url_through(&postgres);
    let mut relay = world
        .run()
        .option("--database-url", &url)
        .option("--on-error", "park")
        .start();
    relay.wait_ready();
    for way in [Way::Up, Way::Down] {
        postgres.set(
            way,
            Conditions {
                latency: LATENCY,
                ..Conditions::default()
            },
        );
    }
    sql.run(&format!(
        "select emit('not a topic', 'a', 20); select emit('{kind}', 'a', 20) from \
         generate_series(1, {EVENTS})"
    ));
    let parked = || sql.number("select count(*) from walrelay.parked");
    eventually("all wait", ARRIVAL * 2, parked, |count| {
        *count == i64::from(EVENTS) + 1
    });
    let transactions = sql.number("select count(distinct xmin::text) from walrelay.parked");
    assert!(
        transactions <= TRANSACTIONS_MAX,
        "{transactions} transactions"
    );

    let misplaced = "select count(*) from (
        select commit_lsn, index, lag(commit_lsn) over (order by id) as l, lag(index) over (order \
        by id) as i
        from walrelay.parked) of where (commit_lsn, index) <= (l, i)";
    assert_eq!(sql.number(misplaced), 0);
    postgres.resume();
    world.wait_confirmed();
    assert_eq!(relay.terminate(ARRIVAL), Some(0), "{}", relay.log());
}

#[test]
fn a_topic_that_refuses_is_tried_once_for_all_its_parked_events() {
    const AGGREGATES: i64 = 600;
    let world = World::new();
    let file = format!("[delivery]\nretry_base = \"300ms\"\nretry_cap = \"1s\"\n{NO_TOPICS}");
    let sql = world.sql();
    let kind = world.kind(0);
    let mut relay = world
        .run()
        .option("--on-error", "park")
        .config_file(&file)
        .start();
    relay.wait_ready();
    sql.run(&format!(
        "select count(emit('{kind}', 'a' || n, 20)) from generate_series(1, {AGGREGATES}) n"
    ));
    eventually(
        "all wait",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == AGGREGATES,
    );
    let untried = || sql.number("select count(*) from walrelay.parked where attempts = 0");
    eventually("all count as tried", ARRIVAL, untried, |count| *count == 0);
    let transactions = sql.number("select count(distinct xmin::text) from walrelay.parked");
    assert!(
        transactions <= AGGREGATES / 20,
        "{transactions} transactions"
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
