//! P12, P13: without a slot: the table alone says what is to be published.

use super::{EMAIL, EXIT, Outbox, PUBLISHED, Team, WALLET};
use crate::support::workload::Plan;

#[test]
fn two_pollers_publish_and_mark_mail() {
    publishes_and_marks(&EMAIL);
}

#[test]
fn two_pollers_publish_and_mark_domain_events() {
    publishes_and_marks(&PUBLISHED);
}

#[test]
fn two_pollers_publish_and_mark_wallet_events() {
    publishes_and_marks(&WALLET);
}

#[track_caller]
fn publishes_and_marks(team: &'static Team) {
    let outbox = Outbox::new(team);
    let writers = outbox.world.workload(&Plan::default());
    let mut first = outbox.run("poll").start();
    first.wait_ready();
    let mut second = outbox.run("poll").start();
    writers.wait_for(300);
    writers.stop();
    let findings = outbox.settled_in_team_order();
    let log = format!("{}{}", first.log(), second.log());
    // A relay that continues after a standstill reads again what was in flight.
    assert!(
        findings.duplicates == 0 || log.contains("stood still"),
        "{log}"
    );

    let writers = outbox.world.workload(&Plan::default());
    writers.wait_for(100);
    first.kill_hard();
    writers.wait_for(100);
    second.wait_ready();
    writers.wait_for(50);
    writers.stop();
    let findings = outbox.settled_in_team_order();
    eprintln!(
        "{}: {} copies after kill -9",
        team.table, findings.duplicates
    );
    assert_eq!(second.terminate(EXIT), Some(0), "{}", second.log());
    assert_eq!(
        outbox.sql().number(
            "select count(*) from pg_replication_slots where database = current_database()"
        ),
        0
    );
    assert_eq!(
        outbox.sql().number("select count(*) from pg_publication"),
        0
    );
}
