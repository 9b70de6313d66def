//! docs/tutorial/compose.md: the page's commands in their order, on the servers of the tests in
//! place of containers. docker-compose.yml gives each service its command, its variables and its
//! files.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value as Json;
use yaml_serde::Value;

use crate::ROOT;
use crate::support::guardian::run_directory;
use crate::support::process::{Process, output_of};
use crate::support::relay::{Relay, RelayCommand};
use crate::support::servers::{Kafka, Postgres};
use crate::support::sql::Sql;
use crate::support::topic::{self, Record};
use crate::support::wait::{LIMIT, eventually};
use crate::support::world::ARRIVAL;

const TOPIC: &str = "outbox.event.order";

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(path: &Path) -> Value {
    let mut value: Value = yaml_serde::from_str(&read(path)).expect("YAML");
    value.apply_merge().expect("YAML with merges");
    value
}

fn text(value: &Value) -> String {
    let number = || value.as_i64().map(|number| number.to_string());
    value
        .as_str()
        .map(str::to_owned)
        .or_else(number)
        .unwrap_or_else(|| panic!("no text: {value:?}"))
}

fn texts(value: &Value) -> Vec<String> {
    value
        .as_sequence()
        .map_or_else(Vec::new, |items| items.iter().map(text).collect())
}

/// The services of docker-compose.yml.
struct Services(Value);

impl Services {
    fn read() -> Services {
        Services(yaml(&Path::new(ROOT).join("docker-compose.yml")))
    }

    fn names(&self) -> Vec<String> {
        self.0["services"]
            .as_mapping()
            .expect("services")
            .keys()
            .map(text)
            .collect()
    }

    fn environment(&self, service: &str) -> BTreeMap<String, String> {
        let variables = self.0["services"][service]["environment"].as_mapping();
        variables
            .into_iter()
            .flatten()
            .map(|(name, value)| (text(name), text(value)))
            .collect()
    }

    fn list(&self, service: &str, key: &str) -> Vec<String> {
        texts(&self.0["services"][service][key])
    }

    fn profile(&self, service: &str) -> Vec<String> {
        self.list(service, "profiles")
    }

    /// The file or folder of the repository that a service has at `path`.
    fn on_host(&self, service: &str, path: &str) -> PathBuf {
        let mounts = self.list(service, "volumes");
        let found = mounts.iter().find_map(|mount| {
            let (source, target) = mount.split_once(':').expect("source and target");
            let rest = path.strip_prefix(target.strip_suffix(":ro")?)?;
            Some(
                Path::new(ROOT)
                    .join(source)
                    .join(rest.trim_start_matches('/')),
            )
        });
        // Joined with nothing, the path of a file ends in a slash.
        let host = found
            .unwrap_or_else(|| panic!("{service} has no {path}"))
            .components()
            .collect::<PathBuf>();
        assert!(host.exists(), "{service}: {path} is {}", host.display());
        host
    }
}

#[test]
fn mounts_exist_ports_are_on_loopback_and_images_have_a_version() {
    let services = Services::read();
    let volumes: BTreeSet<String> = services.0["volumes"]
        .as_mapping()
        .expect("volumes")
        .keys()
        .map(text)
        .collect();
    let mut ports = BTreeSet::new();
    for service in services.names() {
        for mount in services.list(&service, "volumes") {
            let (source, target) = mount.split_once(':').expect("source and target");
            let file = source
                .strip_prefix("./")
                .map(|path| Path::new(ROOT).join(path).exists());
            assert!(
                file.map_or(volumes.contains(source), |exists| exists
                    && target.ends_with(":ro")),
                "{mount}"
            );
        }
        for port in services.list(&service, "ports") {
            let (host, _) = port
                .strip_prefix("127.0.0.1:")
                .and_then(|port| port.split_once(':'))
                .expect("loopback");
            assert!(ports.insert(host.to_owned()), "{port} is taken");
        }
        let image = text(&services.0["services"][service.as_str()]["image"]);
        let version = image.rsplit_once(':').map_or("", |(_, version)| version);
        assert!(
            image == "walrelay" || version.bytes().any(|byte| byte.is_ascii_digit()),
            "{image}"
        );
    }
    let page = read(&Path::new(ROOT).join("docs/tutorial/compose.md"));
    let named = page
        .split("localhost:")
        .skip(1)
        .chain(page.split("127.0.0.1:").skip(1));
    for port in named.map(|rest| {
        rest.chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
    }) {
        assert!(ports.contains(&port), "no service has port {port}");
    }
}

#[test]
fn relays_of_other_buses_have_settings_that_fit_and_slots_of_their_own() {
    let services = Services::read();
    let mut slots = BTreeSet::new();
    let of_a_bus = |name: &String| name.starts_with("relay-") && !services.profile(name).is_empty();
    for name in services.names().into_iter().filter(of_a_bus) {
        let variables = services.environment(&name);
        assert_eq!(
            services.profile(&name),
            [variables["WALRELAY_SINK"].as_str()]
        );
        let words = services.list(&name, "command");
        let check = RelayCommand::new("config").flag("check").flag("--offline");
        let check = words
            .iter()
            .skip(1)
            .fold(check, |check, word| check.flag(word));
        variables
            .iter()
            .fold(check, |check, (name, value)| check.variable(name, value))
            .succeed();
        let slot = &variables["WALRELAY_SLOT"];
        let setup = name.replace("relay-", "setup-");
        assert_eq!(&services.environment(&setup)["WALRELAY_SLOT"], slot);
        assert!(slots.insert(slot.clone()), "{slot} has two relays");
    }
    assert_eq!(slots.len(), 4);
}

#[test]
fn prometheus_scrapes_the_relays_and_grafana_has_datasource_and_dashboard() {
    let services = Services::read();
    let address = |service: &str| {
        let http = services.environment(service)["WALRELAY_HTTP"].clone();
        format!("{service}:{}", http.rsplit_once(':').expect("a port").1)
    };
    let [flag] = &services.list("prometheus", "command")[..] else {
        panic!("one flag")
    };
    let file = services.on_host(
        "prometheus",
        flag.strip_prefix("--config.file=").expect("a file"),
    );
    let prometheus = yaml(&file);
    let targets = texts(&prometheus["scrape_configs"][0]["static_configs"][0]["targets"]);
    assert_eq!(targets, ["relay-1", "relay-2"].map(address));
    // Of the mount, not only of the repository.
    for rules in texts(&prometheus["rule_files"]) {
        let path = Path::new("/deploy/compose").join(rules);
        services.on_host("prometheus", path.to_str().expect("a path"));
    }

    let provisioned = |kind: &str| {
        let path = format!("/etc/grafana/provisioning/{kind}/walrelay.yml");
        yaml(&services.on_host("grafana", &path))
    };
    let datasource = &provisioned("datasources")["datasources"][0];
    assert_eq!(text(&datasource["url"]), "http://prometheus:9090");
    assert_eq!(
        datasource["isDefault"].as_bool(),
        Some(true),
        "the dashboard takes the default"
    );
    let folder = text(&provisioned("dashboards")["providers"][0]["options"]["path"]);
    let home = services.environment("grafana")["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].clone();
    assert!(home.starts_with(&folder), "{home} is not in {folder}");
    let dashboard: Json =
        serde_json::from_str(&read(&services.on_host("grafana", &home))).expect("a dashboard");
    assert_eq!(dashboard["uid"], "walrelay");
}

/// What runs in place of the containers.
struct Running {
    services: Services,
    postgres: Postgres,
    kafka: Kafka,
    relays: BTreeMap<String, Relay>,
    writer: Option<Process>,
}

impl Running {
    /// `docker compose up --wait`, for the first time.
    fn up() -> Running {
        let services = Services::read();
        let words = services.list("postgres", "command");
        let settings: Vec<_> = words
            .iter()
            .filter_map(|word| word.split_once('='))
            .collect();
        let postgres = Postgres::private(17, &settings);
        let database = services.environment("postgres")["POSTGRES_DB"].clone();
        postgres.sql().run(&format!("create database {database}"));
        let kafka = Kafka::private();
        let mut running = Running {
            services,
            postgres,
            kafka,
            relays: BTreeMap::new(),
            writer: None,
        };
        // As the image does it.
        let login = [("PGUSER", "postgres"), ("PGDATABASE", &*database)];
        let mut psql = running.client(
            "psql",
            login
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        );
        psql.args(["-v", "ON_ERROR_STOP=1", "--no-psqlrc", "-f"]);
        psql.arg(
            running
                .services
                .on_host("postgres", "/docker-entrypoint-initdb.d/shop.sql"),
        );
        succeed(psql);
        running
            .walrelay("setup", &running.services.list("setup", "command"))
            .succeed();
        running.start("relay-1");
        running.start("relay-2");

        let words = running.services.list("writer", "command");
        let mut writer = running.client(&words[0], running.services.environment("writer"));
        writer
            .arg(running.services.on_host("writer", &words[1]))
            .process_group(0);
        running.writer = Some(Process::start(
            "writer",
            writer,
            &run_directory().join("compose-writer.log"),
        ));
        running
    }

    /// A program with these variables, which lead to this Postgres.
    fn client(&self, program: &str, variables: BTreeMap<String, String>) -> Command {
        let address = self.postgres.address();
        let (host, port) = address.rsplit_once(':').expect("host and port");
        let mut command = Command::new(program);
        command
            .envs(variables)
            .env("PGHOST", host)
            .env("PGPORT", port);
        command
    }

    /// A command of walrelay with the variables of a service.
    fn walrelay(&self, service: &str, words: &[String]) -> RelayCommand {
        let command = words
            .iter()
            .skip(1)
            .fold(RelayCommand::new(&words[0]), |command, word| {
                command.flag(word)
            });
        let postgres = format!("@{}/", self.postgres.address());
        let kafka = self.kafka.brokers();
        self.services
            .environment(service)
            .iter()
            .fold(command, |command, (name, value)| {
                command.variable(
                    name,
                    &value
                        .replace("@postgres/", &postgres)
                        .replace("kafka:9092", kafka),
                )
            })
    }

    fn start(&mut self, service: &str) {
        let mut relay = self
            .walrelay(service, &self.services.list(service, "command"))
            .start();
        if self.relays.is_empty() {
            relay.wait_ready();
        } else {
            let stands_by = || relay.metric("walrelay_standing_by") == Some(1.0);
            eventually("it stands by", ARRIVAL, stands_by, |stands| *stands);
        }
        // Of the variables.
        assert!(
            !relay.log().contains("means nothing to walrelay"),
            "{}",
            relay.log()
        );
        self.relays.insert(service.to_owned(), relay);
    }

    fn sql(&self) -> Sql {
        Sql::connect(&self.postgres.url("shop"))
    }

    /// Waits until so many events are parked.
    fn wait_parked(&self, number: i64) {
        let sql = self.sql();
        let parked = || sql.number("select count(*) from walrelay.parked");
        eventually("events are parked", ARRIVAL, parked, |parked| {
            *parked == number
        });
    }

    /// One command of the page, without `docker compose`.
    fn run(&mut self, words: &[&str]) {
        match words {
            ["kill", service] => {
                self.relays
                    .remove(*service)
                    .expect("a relay that runs")
                    .kill_hard();
                self.relays.values_mut().for_each(Relay::wait_ready);
            }
            ["start", service] => self.start(service),
            // Other buses: their settings alone are checked.
            ["--profile", _, "up", ..] => {}
            ["exec", "kafka", consumer, rest @ ..]
                if consumer.ends_with("/kafka-console-consumer.sh") =>
            {
                let option = |name: &str| {
                    rest.windows(2)
                        .find(|words| words[0] == name)
                        .expect("an option")[1]
                };
                let enough = option("--max-messages").parse().expect("a number");
                let count = || topic::count(self.kafka.brokers(), option("--topic"));
                eventually("records arrive", ARRIVAL, count, |count: &i64| {
                    *count >= enough
                });
            }
            ["exec", "writer", "psql", "-f", file] => {
                let mut psql = self.client("psql", self.services.environment("writer"));
                psql.arg("-v")
                    .arg("ON_ERROR_STOP=1")
                    .arg("-f")
                    .arg(self.services.on_host("writer", file));
                succeed(psql);
                self.wait_parked(2);
            }
            ["exec", service, "walrelay", rest @ ..] => self.execute(service, rest),
            ["down", "--volumes"] => self.down(),
            _ => panic!("docker compose {words:?}"),
        }
    }

    fn execute(&self, service: &str, words: &[&str]) {
        assert!(self.relays.contains_key(service), "{service} runs");
        let command = self.walrelay(
            service,
            &words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>(),
        );
        match words {
            ["parked", "drop", ..] => {
                command.flag("--yes").succeed();
                self.wait_parked(0);
            }
            ["parked", "list"] => {
                let list = command.succeed();
                assert!(
                    list.contains("unroutable") && list.contains("1 behind"),
                    "{list}"
                );
            }
            ["status"] => {
                let status = command.succeed();
                assert_eq!(
                    self.relays.len() == 2,
                    !status.contains("stand-by    none"),
                    "{status}"
                );
            }
            // A busy machine relays late.
            ["verify"] => drop(command.option("--grace", "5m").succeed()),
            _ => drop(command.succeed()),
        }
    }

    /// Stops all once a payment has failed, and compares tables and topic.
    fn down(&mut self) {
        let sql = self.sql();
        let failed = "select count(*) from orders
            where status = 'placed' and customer <> 'customer-0' and id < (select max(id) from \
            orders)";
        eventually(
            "a payment fails",
            LIMIT,
            || sql.number(failed),
            |count| *count > 0,
        );
        let mut writer = self.writer.take().expect("the writer");
        assert!(writer.exited().is_none(), "{}", writer.log());
        // With its psql: one that has not connected yet is no session, and would place an order
        // later.
        writer.kill_group();
        let sessions = "select count(*) from pg_stat_activity where usename = 'app'";
        eventually(
            "its psql has ended",
            LIMIT,
            || sql.number(sessions),
            |count| *count == 0,
        );

        let rows = sql.rows(
            "select id::text, aggregateid, type, payload::text from outbox where aggregatetype = \
             'order' order by seq",
            &[],
        );
        let rows: Vec<[String; 4]> = rows
            .iter()
            .map(|row| [0, 1, 2, 3].map(|column| row.get(column)))
            .collect();
        let arrived = eventually(
            "all have arrived",
            ARRIVAL,
            || self.events(),
            |events| events.len() == rows.len(),
        );
        assert_eq!(
            by_order(&arrived),
            by_order(&rows),
            "each order's events, in their order"
        );
        let paid = rows
            .iter()
            .filter(|[_, _, kind, _]| kind == "OrderPaid")
            .count();
        // The poison's order was not paid.
        assert_eq!(
            paid as i64 - 1,
            sql.number("select count(*) from orders where status = 'paid'")
        );
        for relay in self.relays.values_mut() {
            assert_eq!(relay.terminate(LIMIT), Some(0), "{}", relay.log());
        }
    }

    /// Id, key, type and value of each event in the topic, in the order of its first record.
    fn events(&self) -> Vec<[String; 4]> {
        let mut seen = BTreeSet::new();
        let event = |record: &Record| {
            [
                record.header("id"),
                record.key_text(),
                record.header("type"),
                record.value_text(),
            ]
        };
        let events = topic::read(self.kafka.brokers(), TOPIC)
            .iter()
            .map(event)
            .collect::<Vec<_>>();
        events
            .into_iter()
            .filter(|[id, ..]| seen.insert(id.clone()))
            .collect()
    }
}

/// The events of each order.
fn by_order(events: &[[String; 4]]) -> BTreeMap<&str, Vec<&[String; 4]>> {
    let mut orders = BTreeMap::<_, Vec<_>>::new();
    for event in events {
        orders.entry(event[1].as_str()).or_default().push(event);
    }
    orders
}

fn succeed(command: Command) {
    let output = output_of(command, LIMIT);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_commands_of_the_page_work_and_every_order_arrives() {
    let page = read(&Path::new(ROOT).join("docs/tutorial/compose.md"));
    let blocks = page
        .split("\n```sh\n")
        .skip(1)
        .map(|rest| rest.split_once("```").expect("an end").0);
    let commands: Vec<_> = blocks
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("docker compose "))
        .collect();
    assert_eq!(commands.first(), Some(&"up --build --wait"));
    let mut running = Running::up();
    for command in &commands[1..] {
        running.run(&command.split_whitespace().collect::<Vec<_>>());
    }
    assert!(running.writer.is_none(), "the page ends with down");
}
