//! docs/reference/configuration.md: `config init`, `config import` and `config check`: tables
//! nobody here has seen, from the look at them to the record.

mod check;
mod import;
mod init;

use serde_json::Value;

use crate::support::relay::RelayCommand;
use crate::support::servers::{Kafka, Postgres};
use crate::support::sql::Sql;
use crate::support::topic::{self, Record};
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// Known only once a row is in the stream.
const POSITION: &str = "walrelay-position";

/// A table in a schema of its own, which keeps topics apart that are named after it.
struct Seen {
    world: World,
    /// With the schema in front of its search path.
    sql: Sql,
    table: String,
}

impl Seen {
    /// `ddl` makes the table, called `name` as SQL writes it.
    #[track_caller]
    fn new(name: &str, ddl: &str) -> Seen {
        Seen::on(Postgres::shared(), name, ddl)
    }

    #[track_caller]
    fn on(postgres: &Postgres, name: &str, ddl: &str) -> Seen {
        let world = World::bare(postgres, Kafka::shared().brokers());
        let sql = world.sql();
        let schema = &world.name;
        sql.run(&format!(
            "drop table outbox; create schema {schema}; set search_path = {schema}, public; {ddl}"
        ));
        let table = format!("{schema}.{name}");
        Seen { world, sql, table }
    }

    /// `walrelay config init` for it.
    fn init(&self) -> RelayCommand {
        let init = RelayCommand::new("config")
            .flag("init")
            .option("--table", &self.table);
        init.option("--slot", &self.world.name)
            .option("--database-url", &self.world.database_url)
    }

    /// The file it suggests, with the broker in it.
    #[track_caller]
    fn suggested(&self) -> String {
        self.init()
            .option("--brokers", &self.world.brokers)
            .succeed()
    }

    /// `walrelay config check` of a file.
    fn check(&self, toml: &str) -> RelayCommand {
        RelayCommand::new("config").flag("check").config_file(toml)
    }

    /// Takes the file through all that it is said to be good for, and gives the record of the row
    /// that `insert` writes: the one that was foretold.
    #[track_caller]
    fn relayed(&self, toml: &str, insert: &str) -> Record {
        self.check(toml).flag("--offline").succeed();
        RelayCommand::new("setup").config_file(toml).succeed();
        self.sql.run(insert);
        let foretold: Value =
            serde_json::from_str(&self.check(toml).flag("--json").succeed()).unwrap();
        assert_eq!(
            (&foretold["fit"], &foretold["slot_exists"]),
            (&Value::Bool(true), &Value::Bool(true)),
            "{foretold}"
        );
        let topic = foretold["outboxes"][0]["record"]["topic"]
            .as_str()
            .unwrap_or_else(|| panic!("no topic: {foretold}"))
            .to_owned();

        let mut relay = RelayCommand::new("run")
            .config_file(toml)
            .option("--log-format", "json")
            .start();
        relay.wait_ready();
        self.world.wait_confirmed();
        let records = eventually(
            "it arrives",
            ARRIVAL,
            || topic::read(&self.world.brokers, &topic),
            |records| !records.is_empty(),
        );
        assert_eq!(relay.terminate(ARRIVAL), Some(0), "{}", relay.log());
        // The servers are shared, and their slots are counted.
        RelayCommand::new("teardown")
            .config_file(toml)
            .flag("--yes")
            .flag("--force")
            .succeed();
        let [record] = records.as_slice() else {
            panic!("one row and {} records in {topic}", records.len())
        };
        assert_foretold(&foretold["outboxes"][0]["record"], record);
        record.clone()
    }
}

#[track_caller]
fn assert_foretold(foretold: &Value, record: &Record) {
    assert_eq!(bytes(&foretold["key"]), record.key, "{foretold}");
    assert_eq!(bytes(&foretold["body"]), record.value, "{foretold}");
    if let Some(partition) = foretold["partition"].as_i64() {
        assert_eq!(partition, i64::from(record.partition), "{foretold}");
    }
    let headers = foretold["headers"].as_array().unwrap();
    assert_eq!(headers.len(), record.headers.len(), "{foretold}");
    for (foretold, (name, value)) in headers.iter().zip(&record.headers) {
        assert_eq!(foretold["name"], name.as_str());
        if name != POSITION {
            assert_eq!(bytes(&foretold["value"]), *value, "{name}");
        }
    }
}

/// Of `{"text": …}` or `{"hex": …}`.
fn bytes(value: &Value) -> Option<Vec<u8>> {
    if let Some(text) = value["text"].as_str() {
        return Some(text.as_bytes().to_vec());
    }
    let hex = value["hex"].as_str()?;
    Some(
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect(),
    )
}
