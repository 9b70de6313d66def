//! P13: what Postgres refuses to take is written again later, and no event is published once more
//! for it.

use super::{EXIT, Outbox, WALLET};
use crate::support::servers::Postgres;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// Raises an error with the SQLSTATE in table `fault`, as long as there is one.
const REFUSES: &str = "create table fault (code text);
    create function refuses() returns trigger language plpgsql as $$
    declare of text := (select code from public.fault limit 1);
    begin
        if of is not null then raise exception 'no writes' using errcode = of; end if;
        return coalesce(new, old);
    end $$;";

/// All sessions of a relay end, as at a restart of the server.
const CUT: &str = "select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and application_name ~ '^walrelay[ /]' and pid <> \
    pg_backend_pid()";

const DUE: &str = "walrelay_write_back_due_events";
const UNWRITABLE: &str = r#"walrelay_not_ready{reason="postgres_unwritable"}"#;

#[test]
fn refused_marks_are_repeated_and_their_events_are_published_once() {
    for mode in ["poll", "slot"] {
        let outbox = Outbox::in_mode(mode, &WALLET);
        let sql = outbox.sql();
        sql.run(&format!(
            "{REFUSES} create trigger refuses before update on {} for each row execute function \
             refuses()",
            WALLET.table
        ));
        // An old row that was sent, and cannot be deleted.
        sql.run(
            "create function keeps() returns trigger language plpgsql as $$
             begin raise exception 'no deletes' using errcode = '53100'; end $$;
             create trigger keeps before delete on outbox for each row execute function keeps();
             insert into outbox (event_type, payload, correlation_id, created_at, sent)
             values ('old', '{}', 'old', now() - interval '40 days', true)",
        );
        let config = outbox
            .config
            .replace("[outbox]\n", "[outbox]\nretention = \"30d\"\n");
        let mut relay = outbox.run(mode).config_file(&config).start();
        relay.wait_ready();
        // Without an event, a poller stores its position, and begins to clean up, only after ten
        // seconds.
        outbox.emit("a0");
        let mut sent = 1;
        eventually(
            "it is told",
            ARRIVAL,
            || relay.log().contains("clean_up_failed"),
            |is| *is,
        );
        sql.run("drop trigger keeps on outbox; delete from outbox where event_type = 'old'");
        // A database that is read-only, a full disk, a right that is revoked, a trigger, a
        // constraint.
        for code in ["25006", "53100", "42501", "P0001", "23514"] {
            sql.run(&format!("insert into fault values ('{code}')"));
            (0..3).for_each(|number| outbox.emit(&format!("a{number}")));
            sent += 3;
            eventually(
                "it is told",
                ARRIVAL,
                || relay.metric(UNWRITABLE),
                |is| *is == Some(1.0),
            );
            let due = || relay.metric(DUE);
            eventually("events wait for their marks", ARRIVAL, due, |events| {
                *events > Some(0.0)
            });
            assert!(
                relay.metric("walrelay_lag_seconds") > Some(0.0),
                "{code} by {mode}"
            );
            let (_, reason) = relay.readiness().unwrap();
            assert!(
                reason.contains("Postgres refuses what the relay writes"),
                "{reason}"
            );
            if code == "25006" {
                let retries = relay.metric(r#"walrelay_retries_total{side="postgres"}"#);
                sql.run(CUT);
                let again = || relay.metric(r#"walrelay_retries_total{side="postgres"}"#);
                eventually("other sessions refuse as well", ARRIVAL, again, |now| {
                    *now >= retries.map(|of| of + 2.0)
                });
            }
            sql.run("delete from fault");
            eventually("they are marked", ARRIVAL, due, |events| {
                *events == Some(0.0)
            });
            eventually("it is well", ARRIVAL, || relay.is_ready(), |is| *is);
            // A poller reads rows that came meanwhile in its next scan.
            eventually(
                "all are out",
                ARRIVAL,
                || outbox.delivered(),
                |records| *records >= sent,
            );
            assert_eq!(
                outbox.delivered(),
                sent,
                "{code} by {mode}: {}",
                relay.log()
            );
        }
        assert_eq!(outbox.settled().duplicates, 0, "{mode}: {}", relay.log());

        // A stop does not wait for them.
        sql.run("insert into fault values ('25006')");
        outbox.emit("a0");
        eventually(
            "it is told",
            ARRIVAL,
            || relay.metric(UNWRITABLE),
            |is| *is == Some(1.0),
        );
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
        assert!(relay.log().contains("write_back_left"), "{}", relay.log());
    }
}

#[test]
fn a_position_that_cannot_be_stored_is_remembered_and_no_event_is_published_again() {
    for mode in ["poll", "slot"] {
        let world = World::keeping();
        let sql = world.sql();
        world.publish();
        let mut relay = world
            .run()
            .option("--mode", mode)
            .option("--state-store", "postgres")
            .start();
        relay.wait_ready();
        world.emit(&sql, "a");
        eventually(
            "it arrives",
            ARRIVAL,
            || world.delivered(),
            |records| *records == 1,
        );
        sql.run(&format!(
            "{REFUSES} create trigger refuses before insert or update on walrelay.position
             for each row execute function refuses()"
        ));
        sql.run("insert into fault values ('53100')");
        let retries = || relay.metric(r#"walrelay_retries_total{side="postgres"}"#);
        let again = || {
            world.emit(&sql, "a");
            retries()
        };
        // Each event is a reason to store: without one, a relay of the slot waits five seconds.
        eventually("several sessions fail", ARRIVAL, again, |now| {
            *now >= Some(4.0)
        });
        assert_eq!(relay.metric(UNWRITABLE), Some(1.0), "{}", relay.log());
        sql.run("delete from fault");
        world.emit(&sql, "a");
        eventually("it is well", ARRIVAL, || relay.is_ready(), |is| *is);
        assert_eq!(
            world.assert_all_delivered().duplicates,
            0,
            "{mode}: {}",
            relay.log()
        );
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}

#[test]
fn no_row_is_published_instead_of_the_slot_before_that_is_stored() {
    let world = World::keeping();
    let sql = world.sql();
    world.publish();
    let role = format!("{}_relay", world.name);
    sql.run(&format!(
        "create role {role} login replication; grant select on outbox to {role};
         grant create on database {} to {role}",
        world.name
    ));
    let url = Postgres::shared().url_as(&role, &world.name);
    let (command, held) = world
        .run()
        .option("--mode", "auto")
        .option("--state-store", "postgres")
        .option("--database-url", &url)
        // The first one makes the slot.
        .held_at("leased", 1);
    let mut relay = command.start();
    relay.wait_ready();
    world.emit(&sql, "a");
    let delivered = || world.delivered();
    eventually("it arrives", ARRIVAL, delivered, |count| *count == 1);
    world.wait_confirmed();

    // It reads the table, cannot store that, and then may stream again.
    let walsender = world.walsender();
    sql.run(&format!(
        "alter role {role} noreplication; select pg_terminate_backend({walsender}::int)"
    ));
    held.wait();
    world.emit(&sql, "a");
    sql.run(&format!(
        "{REFUSES} create trigger refuses before insert or update on walrelay.position
         for each row execute function refuses(); grant select on fault to {role};
         insert into fault values ('53100')"
    ));
    held.release();
    let retries = || relay.metric(r#"walrelay_retries_total{side="postgres"}"#);
    let several = |what| {
        let before = retries().unwrap_or_default();
        eventually(what, ARRIVAL, retries, |now| *now >= Some(before + 3.0));
    };
    several("a poll is not stored");
    assert!(relay.log().contains("\"polling\""), "{}", relay.log());
    sql.run(&format!("alter role {role} replication"));
    several("nothing else is stored, either");
    assert_eq!(world.delivered(), 1, "{}", relay.log());
    sql.run("delete from fault");
    eventually("it is well", ARRIVAL, || relay.is_ready(), |is| *is);
    eventually("both are there", ARRIVAL, delivered, |count| *count == 2);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    sql.run(&format!("drop owned by {role} cascade; drop role {role}"));
}
