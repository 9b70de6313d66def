//! docs/tutorial/your-own-table.md: its commands, and those of README's first event, one block after the other.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::ROOT;
use crate::support::process::{Process, output_of};
use crate::support::servers::{Kafka, Postgres, free_port};
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
        ];
        let folder = tempfile::tempdir().expect("a folder");
        Reader { folder, here, exports: String::new(), first_exports: String::new(), relay: None }
    }

    /// Pastes a block of `sh`, without the lines for Docker. A relay runs on, and what follows is for another terminal.
    fn paste(&mut self, block: &str) {
        let block = self.here.iter().fold(block.to_owned(), |block, (page, here)| block.replace(page, here));
        let lines = |is_wanted: &dyn Fn(&str) -> bool| -> String {
            block.lines().filter(|line| is_wanted(line)).map(|line| format!("{line}\n")).collect()
        };
        let script = lines(&|line| !line.starts_with("docker "));
        let exports = lines(&|line| line.starts_with("export "));
        if let Some((before, run)) = script.split_once("walrelay run ") {
            assert_eq!(run.lines().count(), 1, "nothing comes after a relay in its terminal");
            self.shell(before);
            self.exports += &exports;
            self.run(&format!("walrelay run {run}"));
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
        let program = Path::new(env!("CARGO_BIN_EXE_walrelay")).parent().expect("its folder");
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("bash");
        command.arg("-euc").arg(format!("{}{script}", self.exports)).current_dir(self.folder.path());
        command.env_clear().env("PATH", path).env("HOME", self.folder.path());
        command
    }

    fn shell(&self, script: &str) {
        let output = output_of(self.bash(script), LIMIT);
        let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success(), "{}\n{script}\n{said}\n{errors}", output.status);
    }

    fn run(&mut self, command: &str) {
        let log = self.folder.path().join("relay.log");
        let relay = Process::start("walrelay", self.bash(&format!("exec {command}")), &log);
        eventually("the relay streams", LIMIT, || relay.log(), |log| log.contains("streaming"));
        self.relay = Some(relay);
    }

    /// Ctrl-C in the relay's terminal.
    fn interrupt(&mut self) {
        let mut relay = self.relay.take().expect("a relay");
        relay.signal("INT");
        assert_eq!(relay.wait_exit(LIMIT).code(), Some(0), "{}", relay.log());
    }

    /// Pastes SQL into `psql`.
    fn query(&self, statements: &str) {
        let mut psql = self.bash("psql -X -v ON_ERROR_STOP=1").stdin(Stdio::piped()).spawn().expect("psql");
        psql.stdin.take().expect("a pipe").write_all(statements.as_bytes()).expect("psql reads");
        assert!(psql.wait().expect("psql ends").success(), "{statements}");
    }

    /// Pastes what is between two headings of a page.
    fn follow(&mut self, page: &str, from: &str, to: &str) {
        let text = std::fs::read_to_string(Path::new(ROOT).join(page)).expect("a page");
        let (_, text) = text.split_once(from).expect("a heading");
        let (text, _) = text.split_once(to).expect("a heading");
        let blocks = text.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
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
    records.iter().map(|record: &Record| [record.key_text(), record.value_text(), record.header(header)]).collect()
}

#[test]
fn readme_and_tutorial_lead_to_the_first_event() {
    // Of docker-compose.yml: without it, doctor warns.
    let settings = [("max_slot_wal_keep_size", "2GB")];
    let (postgres, kafka) = (Postgres::private(17, &settings), Kafka::private());
    let mut reader = Reader::new(&postgres, &kafka);
    reader.follow("README.md", "\n## The first event\n", "\n## Reading on\n");
    let invoice = records(&kafka, "outbox.event.invoice", "id");
    assert!(matches!(&invoice[..], [[key, value, id]] if key == "i-1" && value == "{\"total\": 42}" && id.len() == 36));

    reader.interrupt();
    let mut reader = Reader::new(&postgres, &kafka);
    reader.follow("docs/tutorial/your-own-table.md", "\n## 1. Two servers\n", "\nNext:\n");
    let books = records(&kafka, "outbox.event.book_events", "event_type");
    let expected = [["7", "{\"title\": \"Emma\"}", "BookAdded"], ["7", "{\"price\": 12}", "BookSold"]];
    assert_eq!(books, expected.map(|record| record.map(str::to_owned)));
    assert!(reader.relay.is_none(), "the page ends with teardown");
}
