//! P13: What is done to the rows of an outbox table: marked, deleted, cleaned up, and a column
//! added.

mod cleanup;
mod held;
mod killed;
mod many_parked;
mod mark;
mod xid_column;

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::NoTls;
use walrelay::config::{ConfigFile, Environment, Flags, Settings};
use walrelay::upkeep::{DatabaseIdentity, Marker};
use walrelay_core::error::Error;
use walrelay_core::parked::Parking;

use crate::support::servers::Postgres;
use crate::support::sql::{self, Sql};
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

#[track_caller]
fn settings(url: &str, toml: &str) -> Settings {
    let file = ConfigFile::new("walrelay.toml", toml);
    let given = [
        ("WALRELAY_DATABASE_URL", url),
        ("WALRELAY_SLOT", "orders"),
        ("WALRELAY_BROKERS", "127.0.0.1:9"),
    ];
    let environment = given.map(|(name, text)| (name.to_owned(), text.to_owned()));
    Settings::new(&Flags::new(), &Environment::from(environment), Some(&file)).unwrap()
}

/// A session of walrelay's that writes to rows.
async fn marker(url: &str, toml: &str, parking: Parking) -> Result<Marker, Error> {
    let config = settings(url, toml).config(false)?;
    let (client, connection) = sql::config(url).unwrap().connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    let identity = DatabaseIdentity::of(&client).await?;
    let marker = Marker::connect(&config, parking, &identity).await?;
    Ok(marker.expect("an outbox that is written to"))
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
