//! P13: with a slot: marked after the ack, and confirmed after the mark.

use std::time::Duration;

use walrelay_core::position::Lsn;

use super::{EMAIL, EXIT, Outbox, PUBLISHED, Team, WALLET, in_one_mode, in_the_other_mode};
use crate::support::relay::last_words;
use crate::support::servers::Postgres;
use crate::support::wait::{eventually, throughout};
use crate::support::workload::Plan;
use crate::support::world::ARRIVAL;

#[test]
fn a_streaming_relay_publishes_and_marks_mail() {
    publishes_marks_and_confirms(&EMAIL);
}

#[test]
fn a_streaming_relay_publishes_and_marks_domain_events() {
    publishes_marks_and_confirms(&PUBLISHED);
}

#[test]
fn a_streaming_relay_publishes_and_marks_wallet_events() {
    publishes_marks_and_confirms(&WALLET);
}

#[track_caller]
fn publishes_marks_and_confirms(team: &'static Team) {
    let outbox = Outbox::with_slot(team);
    let world = &outbox.world;
    let mut relay = outbox.run("slot").start();
    relay.wait_ready();
    let writers = world.workload(&Plan::default());
    writers.wait_for(300);
    writers.stop();
    assert_eq!(outbox.settled().duplicates, 0, "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());

    // Somebody holds the row: its record is out, and it is not marked.
    outbox.emit("held");
    let holder = outbox.sql();
    let table = team.table;
    let before = outbox.delivered();
    let id = holder.text(&format!("select id from {table} where {}", team.pending));
    holder.run(&format!(
        "begin; select from {table} where {} for update",
        team.pending
    ));
    let mut relay = outbox.run("slot").start();
    eventually(
        "its record is out",
        ARRIVAL,
        || outbox.delivered(),
        |records| *records == before + 1,
    );
    let waits = "select count(*) from pg_stat_activity where datname = current_database()
                 and application_name like 'walrelay%upkeep' and wait_event_type = 'Lock'";
    eventually(
        "the marker waits",
        ARRIVAL,
        || outbox.sql().number(waits),
        |waiting| *waiting == 1,
    );
    outbox.emit("later");
    eventually(
        "what is behind it is out",
        ARRIVAL,
        || outbox.delivered(),
        |records| *records == before + 2,
    );
    let position = outbox.records_of(&id)[0].header("walrelay-position");
    let commit: Lsn = position.split(':').nth(2).unwrap().parse().unwrap();
    let commit = i64::try_from(commit.as_u64()).unwrap();
    throughout("the slot stays before it", Duration::from_secs(2), || {
        world.confirmed() <= commit
    });
    assert_eq!(outbox.count(team.pending), 2);
    holder.run("commit");
    assert_eq!(outbox.settled().duplicates, 0, "{}", relay.log());
    world.wait_confirmed();
    assert!(world.confirmed() > commit);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_mark_that_leaves_rows_pending_stops_the_relay() {
    in_one_mode(stops_at_a_wrong_mark);
}

#[test]
#[ignore = "long: the same teams in the other mode"]
fn a_mark_that_leaves_rows_pending_stops_a_relay_of_the_other_mode() {
    in_the_other_mode(stops_at_a_wrong_mark);
}

fn stops_at_a_wrong_mark(team: &'static Team, mode: &str) {
    let outbox = Outbox::in_mode(mode, team);
    for number in 0..20 {
        outbox.emit(&format!("a{number}"));
    }
    let wrong = outbox.config.replace(
        &format!("mark = \"{}", team.mark),
        &format!("mark = \"{}", team.wrong_mark),
    );
    assert_ne!(wrong, outbox.config);
    let mut relay = outbox
        .run(mode)
        .config_file(&wrong)
        .option("--shutdown-timeout", "300s")
        .start();
    // Long before the time-out of a shutdown: there is nothing to wait for.
    assert_eq!(relay.wait_exit(EXIT), Some(2), "{}", relay.log());
    let log = relay.log();
    let (error, fix) = last_words(&log);
    assert!(
        error.contains("are pending after outbox.mark as they were before"),
        "{error}"
    );
    assert!(
        error.contains(team.table) && fix.contains("outbox.pending"),
        "{error} {fix}"
    );
    // Nothing twice, nothing half marked.
    assert_eq!(outbox.check("true").duplicates, 0, "{log}");
    assert_eq!(outbox.count(team.pending), 20);

    let mut relay = outbox.run(mode).start();
    let findings = outbox.settled_in_team_order();
    eprintln!(
        "{} by {mode}: {} copies once the mark was right",
        team.table, findings.duplicates
    );
    assert!(findings.duplicates <= 20);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn rows_of_a_commit_that_waits_for_a_standby_are_marked_once_visible() {
    let postgres = Postgres::without_its_standby(15);
    let outbox = Outbox::on(&postgres, &EMAIL);
    outbox
        .world
        .command("setup")
        .config_file(&outbox.config)
        .succeed();
    let mut relay = outbox.run("slot").start();
    relay.wait_ready();
    std::thread::scope(|scope| {
        // Its commit is in the log, and waits for a standby that does not come. A slot does not
        // wait.
        let emitted = scope.spawn(|| {
            let sql = outbox.sql();
            let kind = outbox.world.kind(0);
            sql.run("set synchronous_commit = on");
            sql.run(&format!(
                "select emit('{kind}', 'one', 20) from generate_series(1, 3)"
            ));
        });
        eventually(
            "its records are out",
            ARRIVAL,
            || outbox.delivered(),
            |records| *records == 3,
        );
        throughout("nobody sees the rows", Duration::from_secs(2), || {
            outbox.count("true") == 0
        });
        postgres.alter("synchronous_standby_names", "");
        emitted.join().unwrap();
    });
    assert_eq!(outbox.count("true"), 3);
    assert_eq!(outbox.settled().duplicates, 0, "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
