//! P3: what somebody asks for events that wait is done, whatever is under way meanwhile.

use std::time::Duration;

use super::doctor::Checks;
use super::parked::{NO_TOPICS, command};
use super::parked_hard::{
    all_is_well, asked_for_while_held, emit_large, open, parked, relay, world,
};
use crate::support::relay::{EXIT, Relay};
use crate::support::servers::{Kafka, Postgres};
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// An answer is awaited for 30 s, and then a sign of life for a moment.
const ONE_ANSWER: Duration = Duration::from_secs(50);

fn metric(relay: &Relay, name: &str) -> u64 {
    relay.metric(name).unwrap_or_default() as u64
}

#[test]
fn a_drop_requested_during_a_retry_is_done_counted_and_logged() {
    let world = World::new();
    let sql = world.sql();
    // A try lasts for as long as it takes to ask for something.
    let file = format!("[delivery]\nretry_base = \"300ms\"\nretry_cap = \"1s\"\n{NO_TOPICS}");
    let run = world.run().option("--on-error", "park").config_file(&file);
    let (run, held) = run.held_at("retried", 0);
    let mut relay = run.start();
    relay.wait_ready();
    world.emit(&sql, "a");
    eventually(
        "it waits",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 1,
    );
    held.wait();
    // As `walrelay parked drop` does, without the time that a command takes to start.
    sql.run("update walrelay.parked set asked = 'drop'");
    assert!(
        !relay.log().contains("failed again"),
        "the try is not over: {}",
        relay.log()
    );
    held.release();
    eventually(
        "it is dropped",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 0,
    );
    eventually(
        "none waits",
        ARRIVAL,
        || metric(&relay, "walrelay_waiting_events"),
        |count| *count == 0,
    );
    let dropped = || metric(&relay, "walrelay_dropped_events_total");
    eventually("it is counted", ARRIVAL, dropped, |count| *count == 1);
    assert_eq!(
        relay
            .log()
            .matches("is dropped, as an operator asked")
            .count(),
        1,
        "{}",
        relay.log()
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn an_event_that_a_crash_would_send_again_is_neither_dropped_nor_retried_before_it_is_stored() {
    let world = world();
    let sql = world.sql();
    let run = || {
        let run = world.run().option("--state-store", "postgres");
        run.option("--on-error", "park")
    };
    let mut relay = run().start();
    relay.wait_ready();
    emit_large(&sql, &world, "stored");
    emit_large(&sql, &world, "tried");
    let waiting = |expected: &'static str| {
        eventually("they wait", ARRIVAL, || parked(&sql), |all| all == expected);
    };
    waiting("stored tried");
    world.wait_confirmed();

    let holder = world.sql();
    holder.run("begin; select from walrelay.position for update");
    world.emit(&sql, "a");
    emit_large(&sql, &world, "a");
    emit_large(&sql, &world, "b");
    waiting("stored tried a b");
    topic::alter(
        &world.brokers,
        &world.topic(0),
        &[("max.message.bytes", "1000000")],
    );
    // It is the turn of `b` before that of `tried`.
    sql.run(
        "update walrelay.parked set next_at = '2020-01-01'
         where convert_from(key, 'UTF8') = 'b';
         update walrelay.parked set asked = case when convert_from(key, 'UTF8') in ('b', 'tried')
             then 'retry' else 'drop' end",
    );
    waiting("a b");
    world.emit(&sql, "a");
    world.emit(&sql, "b");
    waiting("a b a b");
    relay.kill_hard();
    holder.run("rollback");

    let mut relay = run().start();
    eventually("none waits", ARRIVAL, || parked(&sql), String::is_empty);
    let came = |aggregate: &str| {
        let records = world.records(0).into_iter();
        let of_it = records.filter(|record| record.key_text() == aggregate);
        of_it
            .map(|record| record.value_text().len() > 200_000)
            .collect::<Vec<_>>()
    };
    // A copy of the first one may be there, and nothing of what was dropped.
    assert!(
        [vec![false; 2], vec![false; 3]].contains(&came("a")),
        "{:?}",
        came("a")
    );
    assert_eq!(came("b"), [true, false]);
    assert!(came("stored").is_empty(), "it was dropped");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_requested_retry_is_made_although_the_last_attempt_was_not_recorded() {
    let world = world();
    let sql = world.sql();
    let holder = world.sql();
    let mut relay = relay(
        &world,
        "mark_waiting = \"status = 'tried ' || :attempts\"\n",
    );
    asked_for_while_held(&world, (&sql, &holder));
    eventually(
        "it cannot be noted",
        ARRIVAL,
        || relay.log(),
        |log| log.contains("are blocked"),
    );
    open(&world);
    holder.run("rollback");
    eventually("none waits", ARRIVAL, || parked(&sql), String::is_empty);
    let delivered = || metric(&relay, "walrelay_unparked_events_total");
    eventually("it is counted", ARRIVAL, delivered, |count| *count == 1);
    all_is_well(&world, &mut relay);
}

#[test]
fn rows_deleted_from_the_parked_table_by_hand_release_their_aggregates() {
    let world = world();
    let sql = world.sql();
    let mut relay = relay(&world, "");
    emit_large(&sql, &world, "a");
    world.emit(&sql, "a");
    emit_large(&sql, &world, "b");
    eventually(
        "they are in the table",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 3,
    );
    let waiting = || metric(&relay, "walrelay_waiting_events");
    eventually("they wait", ARRIVAL, waiting, |count| *count == 3);
    // As if the session had been lost while what was dropped was committed.
    sql.run(
        "select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and application_name like '%retries';
         delete from walrelay.parked where convert_from(key, 'UTF8') = 'a'",
    );
    eventually("they wait no more", ARRIVAL, waiting, |count| *count == 1);
    world.emit(&sql, "a");
    eventually(
        "what comes behind them arrives",
        ARRIVAL,
        || world.delivered(),
        |count| *count == 1,
    );
    assert_eq!(
        (
            parked(&sql).as_str(),
            metric(&relay, "walrelay_parked_events_total")
        ),
        ("b", 3)
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_retry_takes_back_no_drop_unless_it_names_the_event() {
    const FIRST: &str = "id = (select min(id) from walrelay.parked)";
    let world = World::new();
    let sql = world.sql();
    let mut relay = world.run().option("--on-error", "park").start();
    relay.wait_ready();
    sql.run("select emit('not a topic', 'a', 20), emit('not a topic', 'a', 20)");
    let both = || world.number_parked();
    eventually("both wait", ARRIVAL, both, |count| *count == 2);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    let asked = || sql.text(&format!("select asked from walrelay.parked where {FIRST}"));
    let id = |which: &str| {
        sql.text(&format!(
            "select convert_from(row_id, 'UTF8') from walrelay.parked where {which}"
        ))
    };
    let retry = command(&world, "retry").flag("--yes");
    let every = retry.clone().flag("--all");

    // The drop is requested between plan and request.
    let other = world.sql();
    other.run(&format!(
        "begin; update walrelay.parked set asked = 'drop' where {FIRST}"
    ));
    let output = std::thread::scope(|scope| {
        let retried = scope.spawn(|| every.output());
        let waits = "select count(*) from pg_stat_activity
             where datname = current_database() and application_name = 'walrelay parked' and \
             wait_event_type = 'Lock'";
        let waiting = || sql.number(waits);
        eventually("the command waits", ARRIVAL, waiting, |count| *count == 1);
        other.run("commit");
        retried.join().expect("a thread")
    });
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("retry requested for 0 events"), "{told}");
    assert_eq!(asked(), "drop");

    for choice in [every, retry.clone().flag(&id(&format!("not {FIRST}")))] {
        let output = choice.output();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("is to be dropped"), "{told}");
        assert_eq!(asked(), "drop");
    }
    let behind = id(&format!("not {FIRST}"));
    let of_behind = || {
        let of = format!("select asked from walrelay.parked where not {FIRST}");
        sql.text(&of)
    };
    let drop = command(&world, "drop").flag("--yes").flag(&behind);
    drop.succeed();
    assert_eq!(of_behind(), "drop");
    retry.clone().flag(&behind).succeed();
    assert_eq!([asked(), of_behind()], ["drop", "retry"]);
    retry.flag(&id(FIRST)).succeed();
    assert_eq!(asked(), "retry");
}

#[test]
fn many_parked_events_are_dropped_in_few_transactions() {
    const MANY: i64 = 4_000;
    let world = World::new();
    let sql = world.sql();
    let mut relay = world.run().option("--on-error", "park").start();
    relay.wait_ready();
    sql.run(&format!(
        "select count(emit('not a topic', 'a' || n, 20)) from generate_series(1, {MANY}) n"
    ));
    eventually(
        "they wait",
        ARRIVAL * 2,
        || world.number_parked(),
        |count| *count == MANY,
    );
    // The last of the command's transactions waits, for longer than a command shows no bar: the
    // newest rows come first.
    let locker = world.sql();
    locker.run("begin; select from walrelay.parked order by id limit 1 for update");
    let drop = command(&world, "drop")
        .option("--class", "unroutable")
        .flag("--yes");
    let output = std::thread::scope(|scope| {
        let dropped = scope.spawn(|| drop.at_terminal(""));
        let waits = "select count(*) from pg_stat_activity
             where datname = current_database() and application_name = 'walrelay parked' and \
             wait_event_type = 'Lock'";
        eventually(
            "the command waits",
            ARRIVAL,
            || sql.number(waits),
            |count| *count == 1,
        );
        std::thread::sleep(Duration::from_millis(600));
        locker.run("commit");
        dropped.join().expect("a thread")
    });
    let shown = String::from_utf8_lossy(&output.stderr);
    assert!(shown.contains("4,000/4,000 events requested"), "{shown}");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        told.contains(&format!("drop requested for {MANY} events")),
        "{told}"
    );
    eventually(
        "none waits",
        3 * ARRIVAL,
        || world.number_parked(),
        |count| *count == 0,
    );
    let dropped = || metric(&relay, "walrelay_dropped_events_total");
    eventually("all are counted", ARRIVAL, dropped, |count| {
        *count == MANY as u64
    });
    // A pass names ten of those it drops, and not every two hundred have a pass of their own.
    let named = relay
        .log()
        .matches("is dropped, as an operator asked")
        .count();
    assert!(named < MANY as usize / 20, "{named} events are named");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn drops_that_wait_for_a_standby_are_given_up_and_made_when_none_is_awaited() {
    let postgres = Postgres::private(17, &[]);
    let world = World::keeping_on(&postgres, Kafka::shared().brokers());
    world.setup();
    let sql = world.sql();
    sql.run("set synchronous_commit = local");
    let file = format!("[delivery]\nretry_base = \"1h\"\nretry_cap = \"1h\"\n{NO_TOPICS}");
    let run = world.run().option("--on-error", "park").config_file(&file);
    let mut relay = run.start();
    relay.wait_ready();
    (0..3).for_each(|_| world.emit(&sql, "a"));
    let parked = || world.number_parked();
    eventually("they wait", ARRIVAL, parked, |count| *count == 3);
    postgres.alter("synchronous_standby_names", "nobody");
    command(&world, "drop")
        .flag("--all")
        .flag("--yes")
        .succeed();
    let doctor = world.command("doctor").option("--brokers", &world.brokers);
    Checks::of(&doctor).has(
        "synchronous",
        "warning",
        "commits wait for standbys that are not connected: nobody",
        "alter system set synchronous_standby_names = '';",
    );
    let given_up = |log: &String| log.contains(r#""event":"parked_retry_failed""#);
    eventually("it is given up", ONE_ANSWER, || relay.log(), given_up);
    postgres.alter("synchronous_standby_names", "");
    let waiting = || metric(&relay, "walrelay_waiting_events");
    eventually("none waits", ARRIVAL, waiting, |count| *count == 0);
    assert_eq!(parked(), 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
