//! docs/how-to/upkeep.md: the queries of the teams' documents, word for word, and what they find.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{EMAIL, EXIT, Outbox, PUBLISHED, Team, WALLET};
use crate::support::relay::RelayCommand;
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::ARRIVAL;

/// What `walrelay cleanup --json` says of the table.
#[track_caller]
fn cleaned(outbox: &Outbox, options: impl Fn(RelayCommand) -> RelayCommand) -> Value {
    let command = options(outbox.world.command("cleanup").config_file(&outbox.config))
        .flag("--json")
        .flag("--yes");
    let mut answer: Value = serde_json::from_str(&command.succeed()).unwrap();
    answer["tables"][0].take()
}

/// Whatever is marked is out, at any moment.
#[track_caller]
fn what_is_marked_is_out(team: &'static Team, mode: &str) -> Outbox {
    let outbox = Outbox::in_mode(mode, team);
    let mut relay = outbox.run(mode).start();
    relay.wait_ready();
    let writers = outbox.world.workload(&Plan::default());
    for _ in 0..5 {
        writers.wait_for(60);
        let marked = outbox.sql().rows(
            &format!("select id::text from {} where {}", team.table, team.sent),
            &[],
        );
        let out: BTreeSet<String> = outbox
            .records()
            .iter()
            .map(|(_, record)| record.header(team.id_header))
            .collect();
        let early: Vec<String> = marked
            .iter()
            .map(|row| row.get(0))
            .filter(|id| !out.contains(id))
            .collect();
        assert!(early.is_empty(), "marked, and not out: {early:?}");
    }
    writers.stop();
    outbox.settled_in_team_order();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    outbox
}

#[test]
fn the_mail_gauges_count_and_sent_rows_are_deleted_after_retention() {
    let outbox = what_is_marked_is_out(&EMAIL, "slot");
    let sql = outbox.sql();
    let sent = outbox.count("true");
    // The relay is away.
    (0..3).for_each(|_| outbox.emit("away"));
    sql.run(
        "update email_outbox set status = 'FAILED', retry_count = 5, error_message = 'no such \
         mailbox', sent_at = null
         where id in (select id from email_outbox where status = 'SENT' limit 2)",
    );
    let gauges = || {
        sql.text(
            "select string_agg(status || ' ' || n, ', ' order by status) from (
                  select status, count(*) as n from email_outbox group by status) s",
        )
    };
    assert_eq!(gauges(), format!("FAILED 2, PENDING 3, SENT {}", sent - 2));
    let oldest =
        "select extract(epoch from clock_timestamp() - min(meta_created_at)) > 0 from email_outbox
                  where status = 'PENDING'";
    assert_eq!(sql.text(oldest), "true");
    let mut relay = outbox.run("slot").start();
    nothing_is_pending(&outbox);
    assert_eq!(gauges(), format!("FAILED 2, SENT {}", sent + 1));
    assert_eq!(sql.text(oldest), "");
    assert_eq!(sql.number("select sum(retry_count) from email_outbox"), 10);
    assert_eq!(
        sql.rows("SELECT * FROM email_outbox WHERE status = 'FAILED'", &[])
            .len(),
        2
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());

    // Half of what was sent was sent long ago; so was mail that is pending again, and some that
    // failed was written then.
    outbox.emit("still to go");
    sql.run(
        "update email_outbox set sent_at = now() - interval '40 days' where id in (
             select id from email_outbox where status = 'SENT' order by id limit 50);
         update email_outbox set status = 'PENDING' where id in (
             select id from email_outbox where sent_at < now() - interval '39 days' limit 4);
         update email_outbox set meta_created_at = now() - interval '50 days' where status = \
         'FAILED'",
    );
    let swept = cleaned(&outbox, |command| command.option("--older-than", "30d"));
    assert_eq!(
        (&swept["rows_deleted"], &swept["rows_unpublished"]),
        (&46.into(), &4.into()),
        "{swept}"
    );
    assert_eq!(
        gauges(),
        format!("FAILED 2, PENDING 5, SENT {}", sent + 1 - 50)
    );
    // The relay's own hand, with `retention` in the file.
    let keep = outbox
        .config
        .replace("[outbox]\n", "[outbox]\nretention = \"30d\"\n");
    let mut relay = outbox.run("slot").config_file(&keep).start();
    nothing_is_pending(&outbox);
    sql.run("update email_outbox set sent_at = now() - interval '40 days' where status = 'SENT'");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    let mut relay = outbox.run("slot").config_file(&keep).start();
    relay.wait_ready();
    let left = || outbox.count("status = 'SENT'");
    eventually("old rows go", ARRIVAL, left, |rows| *rows == 0);
    assert_eq!(
        outbox.count("status = 'FAILED'"),
        2,
        "they want somebody's attention"
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[track_caller]
fn nothing_is_pending(outbox: &Outbox) {
    let pending = || outbox.count(outbox.team.pending);
    eventually("nothing is pending", ARRIVAL, pending, |rows| *rows == 0);
}

#[test]
fn the_runbook_query_finds_unpublished_rows_and_cleanup_deletes_the_rest() {
    for mode in ["slot", "poll"] {
        let outbox = what_is_marked_is_out(&PUBLISHED, mode);
        let sql = outbox.sql();
        let unpublished = || {
            sql.rows(
                "SELECT * FROM outbox WHERE published = FALSE ORDER BY created_at",
                &[],
            )
            .len()
        };
        assert_eq!(unpublished(), 0);
        (0..7).for_each(|_| outbox.emit("away"));
        assert_eq!(unpublished(), 7);
        assert_eq!(
            sql.number("select count(*) from outbox where published_at is null"),
            7
        );
        sql.run(
            "update outbox set created_at = created_at - interval '61 s' where published = FALSE",
        );
        let lag =
            "select extract(epoch from now() at time zone 'UTC' - min(created_at))::int from outbox
                   where published = FALSE";
        assert!(sql.number(lag) > 60);
        let mut relay = outbox.run(mode).start();
        nothing_is_pending(&outbox);
        assert_eq!(sql.text(lag), "");
        assert_eq!(
            sql.rows("SELECT * FROM outbox WHERE retry_count > 5", &[])
                .len(),
            0
        );
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());

        // All of it was written long ago, and some was published then. What is not out stays,
        // whatever its age.
        let all = outbox.count("true");
        sql.run(
            "update outbox set published_at = published_at - interval '8 days'
             where id in (select id from outbox order by id limit 40);
             update outbox set created_at = created_at - interval '9 days'",
        );
        outbox.emit("still to go");
        sql.run(
            "update outbox set created_at = created_at - interval '9 days' where published = FALSE",
        );
        let swept = cleaned(&outbox, |command| {
            command.option("--older-than", "7d").flag("--dry-run")
        });
        assert_eq!(swept["rows_deleted"], 40, "{swept}");
        let team = "DELETE FROM outbox WHERE published = TRUE AND published_at < NOW() - INTERVAL \
                    '7 days'";
        sql.run(&format!("begin; {team}"));
        assert_eq!(
            sql.number("select count(*) from outbox"),
            all + 1 - 40,
            "the team's own statement"
        );
        sql.run("rollback");
        let swept = cleaned(&outbox, |command| command.option("--older-than", "7d"));
        assert_eq!(swept["rows_deleted"], 40, "{swept}");
        assert_eq!((outbox.count("true"), unpublished()), (all + 1 - 40, 1));
    }
}

#[test]
fn unsent_wallet_events_are_found_and_a_payload_that_is_no_json_is_published() {
    for mode in ["slot", "poll"] {
        let outbox = what_is_marked_is_out(&WALLET, mode);
        let sql = outbox.sql();
        let kind = outbox.world.kind(0).to_owned();
        let sent = outbox.delivered();
        outbox.emit("before");
        sql.run(&format!(
            "insert into outbox (event_type, payload, created_at) values ('{kind}', 'not JSON', \
             localtimestamp)"
        ));
        outbox.emit("behind");
        let unsent = || outbox.count("sent = false");
        assert_eq!((unsent(), outbox.delivered()), (3, sent));
        let mut relay = outbox.run(mode).start();
        nothing_is_pending(&outbox);
        assert_eq!((unsent(), outbox.delivered()), (0, sent + 3));
        let poison = sql.text("select id from outbox where payload = 'not JSON'");
        assert_eq!(outbox.records_of(&poison)[0].value_text(), "not JSON");
        assert_eq!(outbox.records_of(&poison)[0].key, None);
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}
