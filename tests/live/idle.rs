//! P6: an idle outbox pins no WAL.

use crate::support::servers::Postgres;
use crate::support::sql::Sql;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// Writes about `mib` MiB of WAL that has nothing to do with an outbox, in many transactions.
fn write_noise(sql: &Sql, mib: u32) {
    sql.run("create table if not exists neighbour (n bigint, filling text)");
    for _ in 0..mib * 4 {
        sql.run("insert into neighbour select n, repeat('z', 200) from generate_series(1, 900) n");
    }
}

/// The slot follows noise written through `sql`, and so does what it keeps.
#[track_caller]
fn assert_follows(world: &World, sql: &Sql) {
    let start = world.confirmed();
    write_noise(sql, 8);
    assert!(world.wal() > start + (4 << 20), "no noise was written");
    world.wait_confirmed();
    assert_eq!(world.delivered(), 1, "noise became an event");
}

#[test]
fn an_idle_outbox_confirms_past_a_busy_table_of_its_database() {
    let world = World::new();
    let mut relay = world.run().start();
    relay.wait_ready();
    world.emit(&world.sql(), "a");
    world.wait_confirmed();
    assert_follows(&world, &world.sql());
}

#[test]
fn an_idle_outbox_confirms_past_a_busy_table_of_another_database() {
    let world = World::new();
    let neighbour = World::bare(Postgres::shared(), &world.brokers);
    let mut relay = world.run().start();
    relay.wait_ready();
    world.emit(&world.sql(), "a");
    world.wait_confirmed();
    assert_follows(&world, &neighbour.sql());
}

#[test]
fn a_long_transaction_across_idle_confirmations_is_not_lost() {
    let world = World::new();
    let mut relay = world.relay();
    world.emit(&world.sql(), "a");
    world.wait_confirmed();
    let open = world.sql();
    open.run("begin");
    world.emit(&open, "open");
    let row_at = world.wal();
    write_noise(&world.sql(), 2);
    eventually(
        "confirmed behind the open row",
        ARRIVAL,
        || world.confirmed(),
        |confirmed| *confirmed >= row_at,
    );
    // The row lies below what is confirmed; only its commit does not.
    relay.kill_hard();
    open.run("commit");
    let _relay = world.relay();
    world.assert_all_delivered();
}
