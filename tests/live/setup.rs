//! docs/operating.md: what `setup` and `teardown` print of the statements that they run, or would run.

use crate::support::relay::{EXIT, last_words, told};
use crate::support::world::World;

/// Slots and publications of the world.
fn objects(world: &World) -> i64 {
    world.sql().number(&format!(
        "select (select count(*) from pg_replication_slots where slot_name = '{0}')
              + (select count(*) from pg_publication where pubname = 'walrelay_{0}')",
        world.name
    ))
}

#[test]
fn a_dry_run_of_teardown_prints_a_script_that_drops_slot_and_publication() {
    let world = World::new();
    let script = world.command("teardown").flag("--dry-run").succeed();
    let drops = [
        format!("select pg_catalog.pg_drop_replication_slot('{}');", world.name),
        format!("drop publication \"walrelay_{}\";", world.name),
    ];
    assert!(script.ends_with(&format!("\\set ON_ERROR_STOP on\n{}\n{}\n", drops[0], drops[1])), "{script}");
    assert_eq!(objects(&world), 2);

    // While a relay streams, it ends as teardown does.
    let mut relay = world.relay();
    let refused = world.command("teardown").flag("--dry-run").output();
    let words = told(&refused.stderr);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(13), 0), "{words}");
    assert!(last_words(&words).1.contains("--force"), "{words}");
    let script = world.command("teardown").flag("--dry-run").flag("--force").succeed();
    assert!(script.contains("select pg_catalog.pg_terminate_backend("), "{script}");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());

    let sql = world.sql();
    drops.iter().for_each(|statement| sql.run(statement));
    let script = world.command("teardown").flag("--dry-run").succeed();
    assert!(script.ends_with("-- Nothing to do.\n"), "{script}");
}

#[test]
fn a_forced_teardown_ends_the_session_of_a_relay() {
    let world = World::new();
    let mut relay = world.relay();
    relay.process.signal("STOP");
    let dropped = world.command("teardown").flag("--force").flag("--yes").succeed();
    assert!(dropped.contains("select pg_catalog.pg_terminate_backend("), "{dropped}");
    assert_eq!(objects(&world), 0, "{dropped}");
    relay.kill_hard();
}
