//! P12: rows that were there before the relay, and rows that are set back to pending.

use std::time::Instant;

use super::{EMAIL, EXIT, Outbox, PUBLISHED, Team, WALLET, in_one_mode, in_the_other_mode};
use crate::support::topic::Record;
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::ARRIVAL;

#[test]
fn a_first_start_publishes_the_pending_rows_of_a_backlog() {
    in_one_mode(publishes_what_is_pending);
}

#[test]
#[ignore = "long: the same teams in the other mode"]
fn a_first_start_publishes_the_pending_rows_of_a_backlog_by_polling_and_slot() {
    in_the_other_mode(publishes_what_is_pending);
}

fn publishes_what_is_pending(team: &'static Team, mode: &str) {
    let outbox = Outbox::with_publication(team);
    let writers = outbox.world.workload(&Plan {
        writers: 3,
        ..Plan::default()
    });
    writers.wait_for(60);
    writers.stop();
    // What the team's own dispatcher had sent.
    let mark = team
        .mark
        .replace("sent_at", "sent_at = now()")
        .replace("published_at", "published_at = now()");
    let first = format!(
        "select id from {} order by {} limit 50",
        team.table, team.order
    );
    outbox.sql().run(&format!(
        "update {} set {mark} where id in ({first})",
        team.table
    ));
    outbox.sql().run(&format!(
        "create table before as select id from {} where {}",
        team.table, team.pending
    ));
    let pending = outbox.count(team.pending);
    assert!(pending > 0);
    let mut relay = outbox.run(mode).start();
    relay.wait_ready();
    outbox.emit("new");
    eventually(
        "nothing is pending",
        ARRIVAL,
        || outbox.count(team.pending),
        |rows| *rows == 0,
    );
    let newest = format!(
        "(select id from {} order by {} desc limit 1)",
        team.table, team.order
    );
    let findings = outbox.check(&format!("id in (select id from before) or id = {newest}"));
    assert!(
        findings.lost.is_empty() && findings.phantom.is_empty(),
        "{mode}: {findings:?}"
    );
    assert_eq!(findings.duplicates, 0, "{}", relay.log());
    assert_eq!(outbox.delivered(), pending + 1);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// The statement of the mail team's page, with the row's id in place of the dots.
const REPLAY: &str = "UPDATE email_outbox
    SET status = 'PENDING', retry_count = 0, error_message = NULL, meta_updated_at = now()
    WHERE id = '...'";

#[test]
fn mail_set_to_pending_again_is_published_again() {
    for mode in ["slot", "poll"] {
        let outbox = Outbox::in_mode(mode, &EMAIL);
        let sql = outbox.sql();
        let mut relay = outbox.run(mode).start();
        relay.wait_ready();
        outbox.emit("one");
        outbox.emit("two");
        assert_eq!(outbox.settled().duplicates, 0);
        let id = sql.text("select id from email_outbox order by meta_created_at limit 1");
        // The provider would not have it: its consumer said so, and the address was corrected.
        sql.run(&format!(
            "update email_outbox set status = 'FAILED', retry_count = 5, error_message = 'no such \
             mailbox',
                    recipient_email = 'ann@example.org' where id = '{id}'"
        ));
        assert_eq!(
            sql.text("select string_agg(id::text, ' ') from email_outbox where status = 'FAILED'"),
            id
        );

        for round in 1..=2 {
            let asked = Instant::now();
            sql.run(&REPLAY.replace("...", &id));
            eventually(
                "it is published again",
                ARRIVAL,
                || outbox.records_of(&id).len(),
                |records| *records == round + 1,
            );
            eprintln!("{mode}: published again after {:?}", asked.elapsed());
            eventually(
                "nothing is pending",
                ARRIVAL,
                || outbox.count(EMAIL.pending),
                |rows| *rows == 0,
            );
        }
        let records = outbox.records_of(&id);
        assert_eq!(outbox.delivered(), 4, "nothing else came again");
        for again in &records[1..] {
            assert_eq!(again.key, records[0].key);
            assert_eq!(
                (again.partition, again.value_text()),
                (records[0].partition, records[0].value_text())
            );
            assert_eq!(
                again.header("idempotency_key"),
                records[0].header("idempotency_key")
            );
            assert_eq!(again.header("recipient_email"), "ann@example.org");
            assert_eq!(
                again.header("walrelay-replay"),
                if mode == "slot" { "1" } else { "" }
            );
        }
        assert_eq!(outbox.count(EMAIL.sent), 2);
        outbox.emit("three");
        eventually(
            "what comes later comes",
            ARRIVAL,
            || outbox.delivered(),
            |records| *records == 5,
        );
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}

/// The mark of the row fails for as long as somebody holds the row: the slot is streamed between
/// two attempts.
#[test]
fn a_row_that_is_pending_again_and_cannot_be_marked_does_not_hold_up_the_slot() {
    let outbox = Outbox::with_slot(&EMAIL);
    let sql = outbox.sql();
    let holder = outbox.sql();
    let mut relay = outbox.run("slot").start();
    relay.wait_ready();
    outbox.emit("one");
    assert_eq!(outbox.settled().duplicates, 0);
    let id = sql.text("select id from email_outbox");
    sql.run(&REPLAY.replace("...", &id));
    holder.run(&format!(
        "begin; select from email_outbox where id = '{id}' for update"
    ));
    eventually(
        "it is published again",
        ARRIVAL,
        || outbox.delivered(),
        |records| *records >= 2,
    );
    outbox.emit("two");
    let later = sql.text(&format!("select id from email_outbox where id <> '{id}'"));
    eventually(
        "what comes later comes",
        ARRIVAL,
        || outbox.records_of(&later).len(),
        |records| *records == 1,
    );
    holder.run("commit");
    eventually(
        "nothing is pending",
        ARRIVAL,
        || outbox.count(EMAIL.pending),
        |rows| *rows == 0,
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// The other teams' pages have no such statement; it works for them, too.
#[test]
fn a_row_whose_published_flag_is_reset_is_published_again() {
    let again: [(&Team, &str); 2] = [
        (
            &PUBLISHED,
            "update outbox set published = false, published_at = null",
        ),
        (&WALLET, "update outbox set sent = false"),
    ];
    for (team, statement) in again {
        for mode in ["slot", "poll"] {
            let outbox = Outbox::in_mode(mode, team);
            let mut relay = outbox.run(mode).start();
            relay.wait_ready();
            (0..5).for_each(|_| outbox.emit("one"));
            outbox.settled();
            outbox.sql().run(statement);
            eventually(
                "they come again",
                ARRIVAL,
                || outbox.delivered(),
                |records| *records == 10,
            );
            assert_eq!(outbox.settled().duplicates, 5);
            // In the order they have.
            let order: Vec<String> = outbox
                .records()
                .iter()
                .map(|(_, record)| record.header(team.id_header))
                .collect();
            assert_eq!(order[..5], order[5..], "{mode}");
            assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
        }
    }
}

#[test]
fn rows_pending_before_setup_are_published_once_and_first() {
    for backlog in [true, false] {
        let outbox = Outbox::new(&WALLET);
        (0..5).for_each(|_| outbox.emit("one"));
        outbox
            .sql()
            .run("update outbox set sent = true where id <= 2");
        outbox
            .world
            .command("setup")
            .config_file(&outbox.config)
            .succeed();
        (0..5).for_each(|_| outbox.emit("one"));
        let run = outbox.run("slot");
        let mut relay = if backlog {
            run.option("--backlog", "pending")
        } else {
            run
        }
        .start();
        eventually(
            "nothing is pending",
            ARRIVAL,
            || outbox.count(WALLET.pending),
            |rows| *rows == 0,
        );
        let id = |(_, record): &(String, Record)| record.header("event_id").parse().unwrap();
        let ids: Vec<i64> = outbox.records().iter().map(id).collect();
        assert_eq!(ids, [3, 4, 5, 6, 7, 8, 9, 10], "{}", relay.log());
        let replayed = outbox
            .records()
            .iter()
            .filter(|(_, record)| record.header("walrelay-replay") == "1")
            .count();
        assert_eq!(replayed, 0);
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}
