//! docs/tutorial/your-own-table.md, docs/how-to/install.md, docs/how-to/runbook.md: the commands up
//! to a relay that works, and those of README's first event, one block after the other.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::ROOT;
use crate::support::process::{Process, output_of};
use crate::support::relay::Relay;
use crate::support::servers::{Kafka, Postgres, free_port};
use crate::support::sql::Sql;
use crate::support::topic::{self, Record};
use crate::support::wait::{LIMIT, eventually};

/// A reader in a folder of their own, who has pasted all blocks so far.
struct Reader {
    folder: TempDir,
    /// What a page has, and what stands for it here.
    here: Vec<(&'static str, String)>,
    /// The `export` lines so far, and those of the first block.
    exports: String,
    first_exports: String,
    relay: Option<Process>,
    /// How many programs have run on.
    started: usize,
}

impl Reader {
    fn new(postgres: &Postgres, kafka: &Kafka) -> Reader {
        let address = postgres.address();
        let (_, port) = address.rsplit_once(':').expect("host and port");
        let here = vec![
            ("127.0.0.1:15432", address.clone()),
            ("PGPORT=15432", format!("PGPORT={port}")),
            ("127.0.0.1:19092", kafka.brokers().to_owned()),
            ("127.0.0.1:9464", format!("127.0.0.1:{}", free_port())),
            // Nobody answers.
            ("walrelay teardown", "walrelay teardown --yes".to_owned()),
            // A busy machine relays late.
            ("walrelay verify", "walrelay verify --grace 5m".to_owned()),
        ];
        let folder = tempfile::tempdir().expect("a folder");
        Reader {
            folder,
            here,
            exports: String::new(),
            first_exports: String::new(),
            relay: None,
            started: 0,
        }
    }

    /// The administrator of a host, whose `/etc/walrelay` is in the reader's folder.
    fn with_a_host(postgres: &Postgres, kafka: &Kafka) -> Reader {
        let mut reader = Reader::new(postgres, kafka);
        let etc = reader.etc();
        std::fs::create_dir(&etc).expect("a folder");
        std::fs::write(reader.folder.path().join("ca.pem"), "").expect("a file");
        reader.here.extend([
            ("sudo -E ", String::new()),
            ("sudo ", String::new()),
            ("/etc/walrelay", etc),
            ("db.example.com:5432", postgres.address()),
            ("kafka.example.com:9092", kafka.brokers().to_owned()),
            // After the step before, which names the file.
            ("export TLS=", "export TLS=sslmode=disable    # ".to_owned()),
            // As the page says, at the last statement.
            (
                "| psql \"$OWNER_URL\"",
                "| psql \"$OWNER_URL\" || test $? = 3".to_owned(),
            ),
            // Nothing is parked, which is no success.
            ("relay shop parked list", String::new()),
        ]);
        reader
    }

    fn etc(&self) -> String {
        self.folder.path().join("etc").display().to_string()
    }

    /// What systemd runs for `shop`, with the unit's variables.
    fn of_unit(&self, unit: &str) -> String {
        let text = std::fs::read_to_string(Path::new(ROOT).join("deploy/systemd").join(unit))
            .expect("a unit");
        let here = |text: &str| {
            let text = text
                .replace("%d/walrelay.toml", "/etc/walrelay/%i.toml")
                .replace("%d/pgpass", "/etc/walrelay/%i.pgpass");
            text.replace("/etc/walrelay", &self.etc())
                .replace("%i", "shop")
        };
        let variables = text
            .lines()
            .filter_map(|line| line.strip_prefix("Environment="));
        let mut script: String = variables
            .map(|variable| format!("export {}\n", here(variable)))
            .collect();
        let file = text
            .lines()
            .find_map(|line| line.strip_prefix("EnvironmentFile=-"))
            .expect("a file");
        script += &format!("set -a; . {}; set +a\n", here(file));
        script
            + text
                .lines()
                .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/"))
                .expect("a command")
    }

    /// Pastes a block of `sh`, without the lines for Docker, and those that change the system. A
    /// relay runs on, and what follows is for another terminal.
    fn paste(&mut self, block: &str) {
        let block = self
            .here
            .iter()
            .fold(block.to_owned(), |block, (page, here)| {
                block.replace(page, here)
            });
        let lines = |is_wanted: &dyn Fn(&str) -> bool| -> String {
            block
                .lines()
                .filter(|line| is_wanted(line))
                .map(|line| format!("{line}\n"))
                .collect()
        };
        let script = lines(&|line| {
            !["docker ", "systemctl ", "apt "]
                .iter()
                .any(|word| line.starts_with(word))
        });
        let exports = lines(&|line| line.starts_with("export "));
        if script.contains("walrelay run ") {
            let (before, run) = script
                .trim_end()
                .rsplit_once('\n')
                .unwrap_or(("", script.trim_end()));
            assert!(
                run.contains("walrelay run "),
                "nothing comes after a relay in its terminal"
            );
            self.shell(before);
            self.exports += &exports;
            self.relay = Some(self.start(run, "streaming"));
            self.exports = self.first_exports.clone();
            return;
        }
        if script.contains("walrelay teardown") {
            self.interrupt();
        }
        self.shell(&script);
        self.exports += &exports;
        if self.first_exports.is_empty() {
            self.first_exports = self.exports.clone();
        }
    }

    fn bash(&self, script: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_walrelay"))
            .parent()
            .expect("its folder");
        let path = format!(
            "{}:{}",
            program.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let mut command = Command::new("bash");
        command
            .arg("-euc")
            .arg(format!("{}{script}", self.exports))
            .current_dir(self.folder.path());
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.folder.path());
        command
    }

    fn shell(&self, script: &str) {
        let output = output_of(self.bash(script), 5 * LIMIT);
        let [said, errors] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(
            output.status.success(),
            "{}\n{script}\n{said}\n{errors}",
            output.status
        );
    }

    /// Starts what the last line of `script` runs, and waits for a word in its log.
    fn start(&mut self, script: &str, word: &str) -> Process {
        let (before, command) = script.rsplit_once('\n').unwrap_or(("", script));
        self.started += 1;
        let log = self.folder.path().join(format!("{}.log", self.started));
        let process = Process::start(
            "walrelay",
            self.bash(&format!("{before}\nexec {command}")),
            &log,
        );
        eventually(word, LIMIT, || process.log(), |log| log.contains(word));
        process
    }

    /// Ctrl-C in the relay's terminal.
    fn interrupt(&mut self) {
        let mut relay = self.relay.take().expect("a relay");
        relay.signal("INT");
        assert_eq!(relay.wait_exit(LIMIT).code(), Some(0), "{}", relay.log());
    }

    /// Pastes SQL into `psql`.
    fn query(&self, statements: &str) {
        let mut psql = self
            .bash("psql -X -v ON_ERROR_STOP=1")
            .stdin(Stdio::piped())
            .spawn()
            .expect("psql");
        psql.stdin
            .take()
            .expect("a pipe")
            .write_all(statements.as_bytes())
            .expect("psql reads");
        assert!(psql.wait().expect("psql ends").success(), "{statements}");
    }

    /// Pastes what is between two headings of a page.
    fn follow(&mut self, page: &str, from: &str, to: &str) {
        let text = std::fs::read_to_string(Path::new(ROOT).join(page)).expect("a page");
        let (_, text) = text.split_once(from).expect("a heading");
        let (text, _) = text.split_once(to).expect("a heading");
        let blocks = text
            .split("```")
            .skip(1)
            .step_by(2)
            .filter_map(|block| block.split_once('\n'));
        for (language, block) in blocks {
            match language {
                "sh" => self.paste(block),
                "sql" => self.query(block),
                _ => {}
            }
        }
    }
}

/// Key, value and a header of each record.
fn records(kafka: &Kafka, topic: &str, header: &str) -> Vec<[String; 3]> {
    let records = topic::read(kafka.brokers(), topic);
    records
        .iter()
        .map(|record: &Record| {
            [
                record.key_text(),
                record.value_text(),
                record.header(header),
            ]
        })
        .collect()
}

#[test]
fn readme_and_tutorial_lead_to_the_first_event() {
    // Of docker-compose.yml: without it, doctor warns.
    let settings = [("max_slot_wal_keep_size", "2GB")];
    let postgres = Postgres::private(17, &settings);
    let kafka = Kafka::private();
    let mut reader = Reader::new(&postgres, &kafka);
    reader.follow("README.md", "\n## The first event\n", "\n## Reading on\n");
    let invoice = records(&kafka, "outbox.event.invoice", "id");
    assert!(matches!(&invoice[..], [[key, value, id]]
            if key == "i-1" && value == "{\"total\": 42}" && id.len() == 36));
    let log = reader.relay.as_ref().expect("a relay").log();
    let warnings: Vec<_> = log
        .lines()
        .filter(|line| line.contains("start_check_warned"))
        .collect();
    assert!(warnings.len() <= 1, "{warnings:#?}");
    // It ends with 0 where all is well, and only then.
    reader.shell("walrelay doctor --slot first");

    reader.interrupt();
    let mut reader = Reader::new(&postgres, &kafka);
    reader.follow(
        "docs/tutorial/your-own-table.md",
        "\n## 1. Two servers\n",
        "\nNext:\n",
    );
    let books = records(&kafka, "outbox.event.book_events", "event_type");
    let expected = [
        ["7", "{\"title\": \"Emma\"}", "BookAdded"],
        ["7", "{\"price\": 12}", "BookSold"],
    ];
    assert_eq!(books, expected.map(|record| record.map(str::to_owned)));
    assert!(reader.relay.is_none(), "the page ends with teardown");
}

#[test]
fn the_set_up_of_a_host_leads_to_a_relay_of_the_unit_and_away() {
    let settings = [("max_slot_wal_keep_size", "2GB")];
    let postgres = Postgres::private(17, &settings);
    let kafka = Kafka::private();
    postgres
        .sql()
        .run("create role owner login; create role relay login replication");
    postgres.sql().run("create database shop owner owner");
    let sql = Sql::connect(&postgres.url("shop"));
    sql.run(
        "create table order_events (id uuid primary key default gen_random_uuid(), seq bigint \
         generated always as identity,
            aggregate_type text not null, aggregate_id text not null, event_type text not null, \
            payload jsonb not null,
            created_at timestamptz not null default clock_timestamp());
        alter table order_events owner to owner; grant select on order_events to relay;
        grant create on database shop to relay",
    );
    let mut reader = Reader::with_a_host(&postgres, &kafka);
    reader.follow(
        "docs/how-to/install.md",
        "\n## Set up a relay\n",
        "\n## The unit\n",
    );
    reader.follow(
        "docs/how-to/install.md",
        "\n### A flag for one start\n",
        "\nWith the chart for Kubernetes",
    );
    reader.interrupt();

    reader.relay = Some(reader.start(&reader.of_unit("walrelay@.service"), "streaming"));
    let port = free_port();
    let script = format!(
        "export WALRELAY_HTTP={port}\n{}",
        reader.of_unit("walrelay-exporter@.service")
    );
    let exporter = Relay {
        process: reader.start(&script, ""),
        port,
    };
    let active = || exporter.metric("walrelay_slot_active");
    eventually("the exporter shows the slot", LIMIT, active, |value| {
        *value == Some(1.0)
    });
    sql.run(
        "insert into order_events (aggregate_type, aggregate_id, event_type, payload) values \
         ('order', '7', 'Placed', '{}')",
    );
    let arrived = || records(&kafka, "outbox.event.order", "id").len();
    eventually("the event arrives", LIMIT, arrived, |count| *count == 1);
    reader.follow(
        "docs/how-to/runbook.md",
        "\nThe commands of this page",
        "\nIn Kubernetes and Compose",
    );
    drop(exporter);
    reader.follow(
        "docs/how-to/install.md",
        "\n## Remove\n",
        "\n- `teardown` asks",
    );
    assert_eq!(sql.number("select count(*) from pg_replication_slots"), 0);
    assert_eq!(sql.number("select count(*) from pg_publication"), 0);
    assert!(!Path::new(&reader.etc()).exists());
}
