//! The program under test, run like an operator runs it.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::guardian::run_directory;
use super::process::{COMMAND_DEADLINE, Process, output_at_terminal, output_of, unread_output_of};
use super::servers::free_port;
use super::wait::{self, LIMIT, eventually};

/// The time limit for the end of a relay after a signal or a fault.
pub(crate) const EXIT: Duration = LIMIT;

/// The time limit until a relay is ready, on two busy cores.
const READY_DEADLINE: Duration = LIMIT;

/// The signal of a process that ends at its failpoint.
const SIGABRT: i32 = 6;

#[derive(Debug, Clone, Default)]
pub(crate) struct RelayCommand {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    /// An option of `env`, which starts the program.
    env: Option<String>,
}

impl RelayCommand {
    /// `walrelay COMMAND` without options.
    pub(crate) fn new(command: &str) -> RelayCommand {
        RelayCommand {
            arguments: vec![command.to_owned()],
            ..RelayCommand::default()
        }
    }

    /// Adds an option with its value, or replaces its value.
    pub(crate) fn option(mut self, name: &str, value: &str) -> RelayCommand {
        if let Some(at) = self.arguments.iter().position(|argument| argument == name) {
            self.arguments.drain(at..(at + 2).min(self.arguments.len()));
        }
        self.arguments.extend([name.to_owned(), value.to_owned()]);
        self
    }

    pub(crate) fn flag(mut self, name: &str) -> RelayCommand {
        self.arguments.push(name.to_owned());
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> RelayCommand {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Has `env` start the process with this option, such as `--ignore-signal=HUP`.
    pub(crate) fn under_env(mut self, option: &str) -> RelayCommand {
        self.env = Some(option.to_owned());
        self
    }

    /// Ends the process at a point of `walrelay_core::failpoint`, as `kill -9` would, after
    /// `passings` passes of the point.
    pub(crate) fn killed_at(self, point: &str, passings: u32) -> RelayCommand {
        self.variable("FAILPOINTS", &format!("{point}={passings}*off->return"))
    }

    /// Holds the process once at a point of `walrelay_core::failpoint`, after `passings` passes of
    /// the point. Its time-out for silent connections is longer than any hold.
    pub(crate) fn held_at(self, point: &str, passings: u32) -> (RelayCommand, Held) {
        let file = fresh_path("held");
        let actions = format!("{point}={passings}*off->1*return({})->off", file.display());
        let command = self
            .variable("FAILPOINTS", &actions)
            .variable("WALRELAY_SLOT_WAL_SENDER_TIMEOUT", "300s");
        (command, Held(file))
    }

    /// Writes a configuration file and adds `--config`.
    pub(crate) fn config_file(self, toml: &str) -> RelayCommand {
        let path = fresh_path("config.toml");
        std::fs::write(&path, toml).expect("a configuration file");
        self.option("--config", &path.to_string_lossy())
    }

    fn command(&self) -> Command {
        // Cargo builds the program for the tests, and not for the benches.
        let built = || option_env!("CARGO_BIN_EXE_walrelay").map(OsString::from);
        let program = std::env::var_os("WALRELAY_TEST_BINARY")
            .or_else(built)
            .expect("WALRELAY_TEST_BINARY");
        let mut command = Command::new(if self.env.is_some() {
            OsString::from("env")
        } else {
            program.clone()
        });
        if let Some(option) = &self.env {
            command.arg(option).arg(program);
        }
        // The caller's environment must not affect the program under test.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["WALRELAY_", "PG", "OTEL_"]
                .iter()
                .any(|start| name.starts_with(start))
                || ["FAILPOINTS", "NOTIFY_SOCKET", "RUST_LOG"].contains(&name.as_str())
            {
                command.env_remove(name);
            }
        }
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(run_directory());
        command
    }

    /// Runs it to its end and returns its output. For commands that soon end by themselves.
    #[track_caller]
    pub(crate) fn output(&self) -> Output {
        output_of(self.command(), COMMAND_DEADLINE)
    }

    #[track_caller]
    pub(crate) fn unread_output(&self) -> Output {
        unread_output_of(self.command(), COMMAND_DEADLINE)
    }

    /// Runs it at a terminal, where somebody types `answer`. Its standard error is all that the
    /// terminal shows.
    #[track_caller]
    pub(crate) fn at_terminal(&self, answer: &str) -> Output {
        output_at_terminal(self.command(), answer, COMMAND_DEADLINE)
    }

    /// Runs it to its end and returns its standard output; panics with its standard error if it
    /// fails.
    #[track_caller]
    pub(crate) fn succeed(&self) -> String {
        let output = self.output();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "walrelay {:?}: {}\n{words}",
            self.arguments.first(),
            output.status
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Starts it; `run` and `exporter` get HTTP on a free port.
    pub(crate) fn start(&self) -> Relay {
        self.start_with_log(&fresh_path("log"))
    }

    /// The same, with its output appended to `log`.
    pub(crate) fn start_with_log(&self, log: &Path) -> Relay {
        let port = free_port();
        let is_relay = self
            .arguments
            .first()
            .is_some_and(|command| ["run", "exporter"].contains(&command.as_str()));
        let http = |command: RelayCommand| command.option("--http", &format!("127.0.0.1:{port}"));
        let command = if is_relay {
            http(self.clone())
        } else {
            self.clone()
        };
        let process = Process::start("walrelay", command.command(), log);
        Relay { process, port }
    }
}

/// What a command says on standard error, with an error that is a JSON object as the two lines it
/// has else.
pub(crate) fn told(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines = text.lines().map(
        |line| match serde_json::from_str::<serde_json::Value>(line) {
            Ok(object) if object["exit_code"].is_number() => {
                let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
                format!("error: {}\nfix: {}", text("error"), text("remedy"))
            }
            _ => line.to_owned(),
        },
    );
    lines.collect::<Vec<_>>().join("\n")
}

/// The error and the remedy of a relay: the two lines at the end of its log.
#[track_caller]
pub(crate) fn last_words(log: &str) -> (&str, &str) {
    let mut lines = log.lines().skip_while(|line| !line.starts_with("error: "));
    let error = lines
        .next()
        .unwrap_or_else(|| panic!("it ended without an error:\n{log}"));
    (error, lines.next().unwrap_or_default())
}

/// The hold of a relay at a failpoint: see [`RelayCommand::held_at`].
pub(crate) struct Held(PathBuf);

impl Held {
    /// Waits until the relay is at the point.
    #[track_caller]
    pub(crate) fn wait(&self) {
        eventually("the relay is held", LIMIT, || self.0.exists(), |held| *held);
    }

    /// Lets the relay continue.
    #[track_caller]
    pub(crate) fn release(self) {
        std::fs::remove_file(&self.0).expect("a relay that is held");
    }
}

/// Whether a process ended at its failpoint: see [`RelayCommand::killed_at`].
pub(crate) fn is_killed(status: ExitStatus) -> bool {
    status.signal() == Some(SIGABRT)
}

pub(crate) fn fresh_path(suffix: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    run_directory().join(format!(
        "walrelay-{}.{suffix}",
        COUNT.fetch_add(1, Ordering::Relaxed)
    ))
}

/// A running relay. Dropping it kills it with SIGKILL; in a failing test it also prints its last
/// lines and its metrics.
pub(crate) struct Relay {
    pub(crate) process: Process,
    pub(crate) port: u16,
}

impl Relay {
    #[track_caller]
    pub(crate) fn wait_ready(&mut self) {
        let caller = Location::caller();
        let ready = wait::until(READY_DEADLINE, || {
            if let Some(status) = self.process.exited() {
                panic!(
                    "{caller}: the relay ended ({status}) before it was ready:\n{}",
                    self.process.log_tail(30)
                );
            }
            self.is_ready().then_some(())
        });
        assert!(
            ready.is_some(),
            "{caller}: not ready within {READY_DEADLINE:?}:\n{}",
            self.process.log_tail(30)
        );
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.get("/readyz").is_some_and(|(status, _)| status == 200)
    }

    /// Status and text of `/readyz`; none without an answer.
    pub(crate) fn readiness(&self) -> Option<(u16, String)> {
        self.get("/readyz")
    }

    /// `command` with the address of this relay.
    pub(crate) fn asked_by(&self, command: RelayCommand) -> RelayCommand {
        command.option("--set", &format!("http.listen='127.0.0.1:{}'", self.port))
    }

    #[track_caller]
    pub(crate) fn wait_exit(&mut self, deadline: Duration) -> Option<i32> {
        self.process.wait_exit(deadline).code()
    }

    #[track_caller]
    pub(crate) fn terminate(&mut self, deadline: Duration) -> Option<i32> {
        self.process.signal("TERM");
        self.wait_exit(deadline)
    }

    pub(crate) fn kill_hard(&mut self) {
        self.process.kill_hard();
    }

    /// Waits until the relay has ended at its failpoint: see [`RelayCommand::killed_at`].
    #[track_caller]
    pub(crate) fn wait_killed(&mut self) {
        let status = self.process.wait_exit(COMMAND_DEADLINE);
        assert!(is_killed(status), "{status}:\n{}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// The text of `/metrics`; empty without an answer.
    pub(crate) fn metrics(&self) -> String {
        self.get("/metrics")
            .map(|(_, body)| body)
            .unwrap_or_default()
    }

    /// One sample of `/metrics`, by its name with labels.
    pub(crate) fn metric(&self, sample: &str) -> Option<f64> {
        let text = self.metrics();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '))?;
        value.split_whitespace().next()?.parse().ok()
    }

    /// Status and body of a page; none without an answer.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .ok()?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((
            head.split_whitespace().nth(1)?.parse().ok()?,
            body.to_owned(),
        ))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let metrics = self.metrics();
            let told: Vec<&str> = metrics
                .lines()
                .filter(|line| !line.starts_with('#') && !line.contains("bucket"))
                .collect();
            eprintln!(
                "--- the relay's last lines ---\n{}\n---",
                self.process.log_tail(40)
            );
            eprintln!("--- what it measured ---\n{}\n---", told.join("\n"));
        }
    }
}

#[test]
fn an_option_given_twice_keeps_the_last_value() {
    let command = RelayCommand::new("run")
        .option("--slot", "a")
        .option("--http", "h")
        .option("--slot", "b");
    assert_eq!(command.arguments, ["run", "--http", "h", "--slot", "b"]);
}
