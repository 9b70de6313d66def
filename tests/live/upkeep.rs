//! P13: What is done to the rows of an outbox table: marked, deleted, cleaned up, and a column
//! added.

mod cleanup;
mod held;
mod killed;
mod many_parked;
mod mark;
mod xid_column;

use tokio::runtime::{Builder, Runtime};
use walrelay::config::{ConfigFile, Environment, Flags, Settings};
use walrelay::conninfo::ConnInfo;
use walrelay_core::config::OutboxConfig;

use crate::support::servers::Postgres;
use crate::support::sql::Sql;
use crate::support::world::World;

/// A database with `schema` in it instead of the usual outbox. Nothing here needs Kafka.
#[track_caller]
pub(super) fn database(schema: &str) -> World {
    let world = World::bare(Postgres::shared(), "127.0.0.1:9");
    world
        .sql()
        .run(&format!("drop table outbox cascade; {schema}"));
    world
}

/// What a configuration file comes to.
#[track_caller]
fn outboxes(toml: &str) -> Vec<OutboxConfig> {
    let file = ConfigFile::new("walrelay.toml", toml);
    Settings::new(&Flags::new(), &Environment::new(), Some(&file))
        .unwrap()
        .outboxes()
        .unwrap()
}

fn conninfo(url: &str) -> ConnInfo {
    ConnInfo::parse(Some(url), &|_| None).unwrap()
}

/// What drives sessions while a test does other things.
fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

/// Whether a session of walrelay's waits for a lock.
fn waits_for_lock(sql: &Sql) -> bool {
    sql.number(
        "select count(*) from pg_stat_activity where datname = current_database() and \
         application_name like 'walrelay%'
         and wait_event_type = 'Lock'",
    ) > 0
}
