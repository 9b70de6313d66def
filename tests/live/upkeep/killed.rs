//! P12, P13: killed while old rows go, by the relay's own hand and by the command's: what goes was
//! published, and all of it that was not is published later.

use std::time::Duration;

use crate::support::relay::{EXIT, is_killed};
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

const RETENTION: &str = "[outbox]\nretention = \"1d\"\n";
/// Whatever is written is written down a second time, where nothing is deleted.
const WITNESS: &str = "create table witness (like outbox);
    create function witness() returns trigger language plpgsql as $$
    begin insert into witness select new.*; return null; end $$;
    create trigger witness after insert on outbox for each row execute function witness()";

/// A table whose rows are old when they are written.
fn old_when_written() -> World {
    let world = World::keeping();
    world.sql().run(&format!(
        "alter table outbox add column created_at timestamptz not null default now() - interval '8 \
         days'; {WITNESS}"
    ));
    world.setup();
    world
}

/// A relay that has published these, and stored that.
fn published(world: &World, rows: u64) {
    let mut relay = world.relay();
    let writers = world.workload(&Plan {
        writers: 4,
        pause: Duration::ZERO,
        ..Plan::default()
    });
    writers.wait_for(rows);
    writers.stop();
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0));
}

/// The table as if nothing had been deleted, and everything in it delivered.
#[track_caller]
fn nothing_is_lost(world: &World) {
    let wanted = world.sql().number("select count(*) from witness");
    let mut relay = world.relay();
    eventually(
        "everything is published",
        ARRIVAL,
        || world.delivered(),
        |records| *records >= wanted,
    );
    world.wait_confirmed();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    world
        .sql()
        .run("alter table outbox rename to what_is_left; create table outbox as table witness");
    let findings = world.assert_all_delivered();
    eprintln!("{} copies", findings.duplicates);
}

#[test]
fn a_relay_killed_during_cleanup_loses_no_unpublished_row() {
    let world = old_when_written();
    published(&world, 2_500);
    let gone = || {
        world
            .sql()
            .number("select (select count(*) from witness) - (select count(*) from outbox)")
    };
    for passings in [0, 1, 0] {
        let before = gone();
        let writers = world.workload(&Plan::default());
        world
            .run()
            .config_file(RETENTION)
            .killed_at("swept", passings)
            .start()
            .wait_killed();
        writers.wait_for(100);
        writers.stop();
        assert!(gone() > before, "rows went before it was killed");
        published(&world, 500);
    }
    nothing_is_lost(&world);
}

#[test]
fn a_killed_cleanup_is_completed_by_the_next_one() {
    let world = old_when_written();
    published(&world, 1_200);
    let cleanup = || {
        let command = world.command("cleanup").option("--brokers", &world.brokers);
        command
            .option("--older-than", "7d")
            .option("--batch-rows", "500")
            .option("--pause", "0s")
            .flag("--yes")
    };
    let killed = cleanup().killed_at("swept", 1).output();
    assert!(is_killed(killed.status), "{killed:?}");
    cleanup().succeed();
    assert_eq!(world.sql().number("select count(*) from outbox"), 0);
    nothing_is_lost(&world);
}

#[test]
fn a_partition_of_a_killed_drop_contains_only_published_rows() {
    let world = World::keeping();
    let sql = world.sql();
    sql.run(&format!(
        "drop table outbox; create table outbox (id uuid, aggregatetype text, aggregateid text, \
         type text, payload jsonb,
            seq bigint not null generated always as identity, xid xid8 not null default \
            pg_current_xact_id(),
            created_at timestamptz not null default now()) partition by range (created_at);
         create table outbox_old partition of outbox for values from ('2020-01-01Z') to \
         ('2021-01-01Z');
         create table outbox_now partition of outbox for values from ('2021-01-01Z') to (maxvalue);
         {}",
        WITNESS.replace(
            "(like outbox)",
            "(id uuid, aggregatetype text, aggregateid text, type \
                                          text, payload jsonb,
            seq bigint, xid xid8, created_at timestamptz)"
        )
    ));
    world.setup();
    sql.run("alter table outbox alter created_at set default '2020-06-01Z'");
    published(&world, 500);
    sql.run("alter table outbox alter created_at set default now()");
    let writers = world.workload(&Plan::default());
    world
        .run()
        .config_file(RETENTION)
        .killed_at("detached", 0)
        .start()
        .wait_killed();
    writers.wait_for(100);
    let attached = "select count(*) from pg_inherits where inhrelid = 'outbox_old'::regclass";
    assert_eq!(sql.number(attached), 0);
    let mut relay = world.relay();
    writers.wait_for(100);
    writers.stop();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    assert_eq!(
        sql.number(
            "select count(*) from outbox_old o left join witness w using (id) where w.id is null"
        ),
        0
    );
    nothing_is_lost(&world);
}
