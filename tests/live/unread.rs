//! P9: outputs that nobody reads any more, or that cannot be written: what a command is there for
//! happens all the same.

use std::path::Path;

use crate::support::relay::EXIT;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// Writes as to a disk without room.
const FULL: &str = "/dev/full";

/// P7, P10.
#[test]
fn a_relay_whose_log_cannot_be_written_still_reconnects_and_stops() {
    let world = World::new();
    for format in ["text", "json"] {
        let command = world
            .command("run")
            .option("--brokers", &world.brokers)
            .option("--log-format", format);
        let mut relay = command.start_with_log(Path::new(FULL));
        relay.wait_ready();
        let sql = world.sql();
        let slot = format!(
            "select active_pid from pg_replication_slots where slot_name = '{}'",
            world.name
        );
        let before = sql.number(&slot);
        sql.run(&format!("select pg_terminate_backend({before})"));
        eventually(
            "it streams again",
            ARRIVAL,
            || sql.text(&slot),
            |pid| !pid.is_empty() && *pid != before.to_string(),
        );
        world.emit(&sql, "a");
        world.assert_all_delivered();
        assert_eq!(relay.terminate(EXIT), Some(0));
    }
}

#[test]
fn setup_and_teardown_complete_with_a_closed_output() {
    let world = World::keeping();
    let sql = world.sql();
    let count = || {
        sql.number(&format!(
            "select (select count(*) from pg_replication_slots where slot_name = '{0}')
                  + (select count(*) from pg_publication where pubname = 'walrelay_{0}')",
            world.name
        ))
    };
    let made = world.command("setup").unread_output();
    assert_eq!((made.status.code(), count()), (Some(0), 2), "{made:?}");
    let dropped = world.command("teardown").flag("--yes").unread_output();
    assert_eq!(
        (dropped.status.code(), count()),
        (Some(0), 0),
        "{dropped:?}"
    );
}

#[test]
fn status_with_a_closed_output_keeps_its_exit_code_and_ends_its_watch() {
    let world = World::new();
    let unhealthy = world.command("status").unread_output();
    assert_eq!(
        unhealthy.status.code(),
        world.command("status").output().status.code(),
        "{unhealthy:?}"
    );
    assert_ne!(unhealthy.status.code(), Some(0), "nobody relays");
    let repeated = world
        .command("status")
        .option("--watch", "1")
        .unread_output();
    assert_eq!(repeated.status.code(), Some(0), "{repeated:?}");
}
