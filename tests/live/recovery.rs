//! P12: the slot is not there, or not what it was: what it does not have is read from the table,
//! once and in order.

mod elsewhere;
mod hostile;

use std::collections::HashSet;
use std::time::Duration;

use super::doctor::Checks;
use crate::support::relay::{EXIT, Relay};
use crate::support::seed::from_environment;
use crate::support::servers::{Kafka, Postgres};
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

/// Transactions with events that are in the topics more than once.
///
/// A relay can be stopped inside a transaction. The position then has the number of delivered
/// events, which says nothing of rows once the slot is gone: the events of that transaction are
/// published again.
fn transactions_with_copies(world: &World) -> i64 {
    let mut seen = HashSet::new();
    let ids = (0..3)
        .flat_map(|kind| world.records(kind))
        .map(|record| record.header("id"));
    let repeated: Vec<String> = ids.filter(|id| !seen.insert(id.clone())).collect();
    world.sql().number(&format!(
        "select count(distinct xid::text) from outbox where id = any('{{{}}}')",
        repeated.join(",")
    ))
}

/// A database with publication, without slot.
fn without_slot() -> World {
    let world = World::keeping();
    world.publish();
    world
}

/// Waits until the relay streams, and from this slot.
fn streaming(world: &World, relay: &mut Relay) {
    relay.wait_ready();
    world.wait_streaming();
}

#[test]
fn a_first_start_publishes_the_backlog_and_then_streams() {
    let world = without_slot();
    world.create_topics();
    let writers = world.workload(&Plan {
        writers: 4,
        ..Plan::default()
    });
    writers.wait_for(400);
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    writers.wait_for(400);
    writers.stop();
    let findings = world.assert_all_delivered();
    assert_eq!(findings.duplicates, 0, "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0));

    // From here on it is a slot like any other.
    let mut relay = world.relay();
    world.emit(&world.sql(), "later");
    assert_eq!(world.assert_all_delivered().duplicates, 0);
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn a_slot_dropped_while_no_relay_runs_loses_nothing() {
    let world = World::keeping();
    world.setup();
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    let writers = world.workload(&Plan {
        writers: 4,
        ..Plan::default()
    });
    writers.wait_for(100);
    relay.kill_hard();
    writers.wait_for(100);
    world.drop_slot();
    writers.wait_for(100);
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    writers.wait_for(100);
    writers.stop();
    let findings = world.assert_all_delivered();
    eprintln!("{} copies after kill -9", findings.duplicates);
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn polling_publishes_each_event_once_and_hands_over_to_a_slot() {
    let world = without_slot();
    world.create_topics();
    let writers = world.workload(&Plan {
        writers: 4,
        ..Plan::default()
    });
    writers.wait_for(100);
    let mut relay = world.run().option("--mode", "poll").start();
    relay.wait_ready();
    writers.wait_for(500);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    let mut relay = world.run().option("--mode", "poll").start();
    relay.wait_ready();
    writers.wait_for(100);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    writers.wait_for(100);
    writers.stop();
    assert_eq!(
        world.assert_all_delivered().duplicates,
        0,
        "{}",
        relay.log()
    );
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn a_first_start_killed_at_each_failpoint_publishes_every_row_in_order() {
    for point in ["intended", "slot-made", "read", "progress", "caught-up"] {
        let world = without_slot();
        let writers = world.workload(&Plan {
            writers: 3,
            ..Plan::default()
        });
        writers.wait_for(300);
        let passings = if point == "read" { 150 } else { 0 };
        world.run().killed_at(point, passings).start().wait_killed();
        writers.wait_for(50);
        let mut relay = world.run().start();
        streaming(&world, &mut relay);
        writers.wait_for(50);
        writers.stop();
        let findings = world.assert_all_delivered();
        eprintln!("killed at {point}: {} copies", findings.duplicates);
        assert!(
            findings.duplicates <= 1_000,
            "{point}: what was stored was not believed"
        );
        assert_eq!(relay.terminate(EXIT), Some(0), "{point}");
    }
}

#[test]
fn a_slot_dropped_before_the_first_position_is_stored_is_recovered() {
    let world = World::keeping();
    world.setup();
    let (command, held) = world.run().held_at("owned", 0);
    let mut relay = command.start();
    held.wait();
    world.emit(&world.sql(), "a");
    world.drop_slot();
    held.release();
    streaming(&world, &mut relay);
    world.emit(&world.sql(), "a");
    world.assert_all_delivered();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_lost_slot_and_a_recreated_slot_are_recovered() {
    let postgres = Postgres::private(15, &[("max_slot_wal_keep_size", "1MB")]);
    let world = World::keeping_on(&postgres, Kafka::shared().brokers());
    world.setup();
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    let writers = world.workload(&Plan::default());
    writers.wait_for(100);
    // A busy broker takes long to create the topics.
    let delivered = || world.delivered();
    eventually("some are delivered", ARRIVAL, delivered, |records| {
        *records > 0
    });
    assert_eq!(relay.terminate(EXIT), Some(0));
    let sql = world.sql();
    eventually(
        "the slot is lost",
        ARRIVAL,
        || {
            sql.run(
                "insert into noise select n, repeat('x', 2000) from generate_series(1, 5000) \
                     n; select pg_switch_wal(); checkpoint",
            );
            world.slot("wal_status")
        },
        |status| status == "lost",
    );
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    assert!(relay.log().contains("is lost"), "{}", relay.log());
    writers.wait_for(100);
    assert_eq!(relay.terminate(EXIT), Some(0));

    // Somebody makes another slot of the name, and does not think of what was written in between.
    world.drop_slot();
    writers.wait_for(50);
    sql.run(&format!(
        "select pg_create_logical_replication_slot('{}', 'pgoutput')",
        world.name
    ));
    writers.wait_for(50);
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    writers.stop();
    world.assert_all_delivered();
    let repeated = transactions_with_copies(&world);
    assert!(
        repeated <= 2,
        "two stops, and copies of {repeated} transactions\n{}",
        relay.log()
    );
}

#[test]
fn recovery_without_a_transaction_column_publishes_duplicates_and_loses_nothing() {
    let world = World::new();
    let order = "[outbox]\norder_by = \"(payload->>'v')::bigint\"\n";
    let mut relay = world.run().config_file(order).start();
    streaming(&world, &mut relay);
    let writers = world.workload(&Plan {
        writers: 4,
        ..Plan::default()
    });
    world.wait_stored(&relay);
    for _ in 0..3 {
        writers.wait_for(100);
        world.drop_slot();
        eventually(
            "the slot is made anew",
            ARRIVAL,
            || world.walsender(),
            |pid| *pid != 0,
        );
    }
    writers.stop();
    let findings = world.assert_all_delivered();
    eprintln!("{} copies by xmin", findings.duplicates);
}

#[test]
fn a_slot_loss_that_needs_a_decision_stops_with_the_choices() {
    // Nothing tells the order.
    let world = World::new();
    world.create_topics();
    let mut relay = world.relay();
    world.emit(&world.sql(), "a");
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0));
    world.drop_slot();
    let mut relay = world.run().start();
    assert_eq!(relay.wait_exit(EXIT), Some(16), "{}", relay.log());
    assert!(
        relay.log().contains("outbox.order_by") && relay.log().contains("--adopt-slot"),
        "{}",
        relay.log()
    );
    // It was told to.
    let mut relay = world.run().option("--on-slot-loss", "stop").start();
    assert_eq!(relay.wait_exit(EXIT), Some(14), "{}", relay.log());
    assert!(
        relay.log().contains("--backlog since=TIME"),
        "{}",
        relay.log()
    );
    // And the choice is taken.
    world.emit(&world.sql(), "b");
    let order = "[outbox]\norder_by = \"(payload->>'v')::bigint\"\n";
    let mut relay = world
        .run()
        .config_file(order)
        .flag("--adopt-slot")
        .option("--backlog", "all")
        .start();
    streaming(&world, &mut relay);
    assert_eq!(
        world.assert_all_delivered().duplicates,
        1,
        "all rows were asked for"
    );
    assert_eq!(relay.terminate(EXIT), Some(0));
    world.emit(&world.sql(), "c");
    let mut relay = world.relay();
    assert_eq!(world.assert_all_delivered().duplicates, 1);
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn a_backlog_is_published_whole_in_part_or_not() {
    for (backlog, copies_of) in [("all", 3), ("none", 0), ("since=2026-06-01T00:00:00Z", 1)] {
        let world = without_slot();
        let sql = world.sql();
        sql.run(
            "alter table outbox add column created_at timestamptz not null default '2026-01-01Z'",
        );
        world.emit(&sql, "old");
        world.emit(&sql, "older");
        sql.run("alter table outbox alter column created_at set default '2026-07-01Z'");
        world.emit(&sql, "new");
        let mut relay = world.run().option("--backlog", backlog).start();
        streaming(&world, &mut relay);
        world.emit(&sql, "streamed");
        eventually(
            backlog,
            ARRIVAL,
            || world.delivered(),
            |records| *records == copies_of + 1,
        );
        assert_eq!(relay.terminate(EXIT), Some(0));
        // It was the first time that counted.
        let mut relay = world.run().option("--backlog", "all").start();
        streaming(&world, &mut relay);
        assert_eq!(relay.terminate(EXIT), Some(0));
        assert_eq!(world.delivered(), copies_of + 1);
    }
}

/// CRC-32C, as Postgres computes it.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| {
        if crc & 1 == 1 {
            (crc >> 1) ^ 0x82f6_3b78
        } else {
            crc >> 1
        }
    };
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), step)
    })
}

/// Takes the confirmed LSN out of the state of the world's slot, on a server that is stopped.
fn forget_confirmed(postgres: &Postgres, slot: &str) {
    let path = postgres.data().join("pg_replslot").join(slot).join("state");
    let mut state = std::fs::read(&path).expect("the state of the slot");
    // Behind the head of 16 bytes: the name, database, persistence, two xids, the restart LSN, the
    // cause of a loss.
    state[112..120].fill(0);
    let crc = crc32c(&state[8..]);
    state[4..8].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&path, state).expect("the state of the slot");
}

#[test]
fn a_slot_without_a_confirmed_lsn_is_replaced_as_a_lost_one() {
    let postgres = Postgres::private(17, &[]);
    let world = World::keeping_on(&postgres, Kafka::shared().brokers());
    world.create_topics();
    world.setup();
    let mut relay = world.relay();
    world.emit(&world.sql(), "a");
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0));
    world.emit(&world.sql(), "a");
    postgres.stop_fast(EXIT);
    forget_confirmed(&postgres, &world.name);
    postgres.start();
    assert_eq!(world.slot("confirmed_flush_lsn is null"), "true");

    let checks = Checks::of(&world.command("doctor").option("--brokers", &world.brokers));
    checks.has(
        "slot",
        "warning",
        "is lost (it has no confirmed LSN)",
        "makes the slot again",
    );
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    assert_eq!(
        world.assert_all_delivered().duplicates,
        0,
        "{}",
        relay.log()
    );
}

#[test]
fn a_second_poller_takes_over_from_a_killed_one() {
    let world = World::keeping();
    let poller = || world.run().option("--mode", "poll").start();
    let mut one = poller();
    one.wait_ready();
    let status = world.command("status").flag("--json").succeed();
    assert!(
        status.contains("\"kind\":null") && !status.contains("\"table_reader_pid\":null"),
        "{status}"
    );
    let status = world.command("status").succeed();
    let why = "which does not exist: the relay reads the table instead; `walrelay doctor ";
    assert!(status.contains(why), "{status}");
    let mut other = poller();
    let writers = world.workload(&Plan {
        writers: 4,
        ..Plan::default()
    });
    let mut copies = 0;
    for _ in 0..3 {
        writers.wait_for(100);
        one.kill_hard();
        std::mem::swap(&mut one, &mut other);
        one.wait_ready();
        other = poller();
    }
    writers.wait_for(100);
    writers.stop();
    copies += world.assert_all_delivered().duplicates;
    eprintln!("{copies} copies after three kills");
}

#[test]
fn a_notification_wakes_an_idle_poller() {
    let world = World::keeping();
    let sql = world.sql();
    sql.run(
        "create function wake() returns trigger language plpgsql as $$ begin notify outbox; return \
         null; end $$;
         create trigger wake after insert on outbox for each statement execute function wake()",
    );
    let slow =
        "[poll]\ninterval = \"10m\"\nidle_interval = \"10m\"\n[outbox]\nnotify = \"outbox\"\n";
    let mut relay = world
        .run()
        .config_file(slow)
        .option("--mode", "poll")
        .start();
    relay.wait_ready();
    for number in 1..=3 {
        world.emit(&sql, "a");
        eventually(
            "it was woken",
            ARRIVAL,
            || world.delivered(),
            |records| *records == number,
        );
    }
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn an_automatic_relay_polls_until_a_slot_is_possible() {
    let postgres = Postgres::private(15, &[("wal_level", "replica")]);
    let world = World::keeping_on(&postgres, Kafka::shared().brokers());
    world.create_topics();
    let mut relay = world.run().option("--mode", "auto").start();
    relay.wait_ready();
    let writers = world.workload(&Plan::default());
    writers.wait_for(100);
    writers.stop();
    world.assert_all_delivered();
    assert_eq!(relay.metric("walrelay_reads_table"), Some(1.0));
    // Rows that are published and not stored as published come again after the restart, as they
    // may.
    let stored = || relay.metric("walrelay_positions_stored_total");
    let before = stored();
    eventually("it is stored what is published", ARRIVAL, stored, |now| {
        *now > before
    });
    postgres.sql().run("alter system set wal_level = 'logical'");
    postgres.stop_fast(EXIT);
    postgres.start();
    let writers = world.workload(&Plan::default());
    world.publish();
    world.wait_streaming();
    writers.wait_for(100);
    writers.stop();
    assert_eq!(
        world.assert_all_delivered().duplicates,
        0,
        "{}",
        relay.log()
    );
    assert_eq!(relay.metric("walrelay_reads_table"), Some(0.0));
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn a_slot_over_max_retained_bytes_is_dropped_and_recreated() {
    let postgres = Postgres::private(15, &[]);
    let world = World::keeping_on(&postgres, Kafka::shared().brokers());
    world.create_topics();
    world.setup();
    let budget = |what| {
        world
            .run()
            .option("--max-retained-bytes", "2MiB")
            .option("--over-budget", what)
    };
    let mut relay = budget("unready").start();
    streaming(&world, &mut relay);
    // A transaction that stays open holds the log back, whatever is confirmed.
    let open = world.sql();
    open.run("begin; insert into noise values (1, 'open')");
    let sql = world.sql();
    sql.run("insert into noise select n, repeat('x', 1500) from generate_series(1, 4000) n");
    eventually(
        "it is not ready",
        ARRIVAL,
        || relay.is_ready(),
        |ready| !ready,
    );
    world.emit(&sql, "still relayed");
    world.assert_all_delivered();
    assert_eq!(relay.terminate(EXIT), Some(0));

    let mut relay = budget("give-up").start();
    eventually(
        "the slot is gone",
        ARRIVAL,
        || world.slot("slot_name::text").is_empty(),
        |gone| *gone,
    );
    world.emit(&sql, "polled");
    world.assert_all_good_delivered();
    open.run("commit");
    world.wait_streaming();
    world.emit(&sql, "streamed");
    assert_eq!(
        world.assert_all_delivered().duplicates,
        0,
        "{}",
        relay.log()
    );
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn an_outbox_whose_rows_are_deleted_is_reported_as_not_recoverable() {
    let world = World::keeping();
    world.setup();
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    let sql = world.sql();
    let emit = || {
        let emit = format!("select emit('{}', 'a', 20)", world.kind(0));
        sql.run(&format!("begin; {emit}; delete from outbox; commit"));
        relay.log().contains("rows are deleted right after")
    };
    eventually("it is noticed", Duration::from_secs(90), emit, |noticed| {
        *noticed
    });
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0));
    world.drop_slot();
    let mut relay = world.run().start();
    assert_eq!(relay.wait_exit(EXIT), Some(14), "{}", relay.log());
    assert!(
        relay.log().contains("their rows were deleted"),
        "{}",
        relay.log()
    );
}

#[test]
fn a_promoted_standby_without_the_slot_is_recovered() {
    let primary = Postgres::private(15, &[]);
    let mut world = World::keeping_on(&primary, Kafka::shared().brokers());
    world.setup();
    let standby = Postgres::standby_of(&primary);
    world.database_url = primary.url_of_either(&standby, &world.name);
    let mut relay = world.relay();
    // Slow writers: a relay remembers 2,000 transactions between two snapshots
    // (`TRANSACTIONS_MAX`), and is to have them all.
    let writers = world.workload(&Plan {
        pause: Duration::from_millis(100),
        ..Plan::default()
    });
    writers.wait_for(200);
    let rows = || world.sql().number("select count(*) from outbox");
    let published = rows();
    world.wait_confirmed();
    primary.stop_fast(EXIT);
    standby.promote();
    writers.wait_for(100);
    writers.stop();
    let findings = world.assert_all_delivered();
    let copies = i64::try_from(findings.duplicates).expect("a count");
    let later = rows() - published;
    assert!(
        copies <= later,
        "{copies} came again, and {later} were not confirmed before:\n{}",
        relay.log()
    );
    assert!(relay.log().contains("reading_table"), "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn a_large_backlog_is_handed_over_under_load() {
    let rows = from_environment("WALRELAY_TEST_BACKLOG", 30_000);
    let world = without_slot();
    world.create_topics();
    let sql = world.sql();
    sql.run(&format!(
        "insert into outbox (id, aggregatetype, aggregateid, type, payload)
         select gen_random_uuid(), '{}', 'bulk-' || n % 1000, 'Changed', jsonb_build_object('v', n \
         / 1000, 'of', 'bulk-' || n % 1000)
         from generate_series(1000, {} + 999) n",
        world.kind(0),
        rows
    ));
    let writers = world.workload(&Plan {
        writers: 3,
        ..Plan::default()
    });
    let mut relay = world.run().start();
    streaming(&world, &mut relay);
    writers.wait_for(200);
    writers.stop();
    let findings = world.assert_all_delivered();
    assert_eq!(findings.duplicates, 0, "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0));
}
