//! A real RabbitMQ, of the system's packages, as an ordinary process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{free_port, logs_to};
use crate::support::guardian::run_directory;
use crate::support::process::{COMMAND_DEADLINE, Process, output_of};
use crate::support::wait;

const START_DEADLINE: Duration = Duration::from_secs(180);
const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";
/// Small enough for a test to exceed, and large enough for all others.
pub(crate) const MESSAGE_BYTES_MAX: usize = 400_000;

/// A server with its files. The process can stop and start again.
pub(crate) struct Rabbitmq {
    directory: PathBuf,
    pub(crate) address: String,
    /// With TLS, where it is configured.
    pub(crate) tls_address: String,
    variables: Vec<(&'static str, String)>,
    process: Option<Process>,
    /// The port mapper of Erlang, for this server alone. Otherwise the server would start one that
    /// outlives it.
    _mapper: Process,
}

impl Rabbitmq {
    /// The server for all tests that disturb no others: each has a virtual host of its own. None
    /// where there is no RabbitMQ.
    pub(crate) fn shared() -> Option<&'static Rabbitmq> {
        static SHARED: OnceLock<Option<Rabbitmq>> = OnceLock::new();
        SHARED.get_or_init(Rabbitmq::start).as_ref()
    }

    /// A server of the test's own.
    #[track_caller]
    pub(crate) fn start() -> Option<Rabbitmq> {
        Rabbitmq::configured("")
    }

    /// The same with these lines in its configuration. `TLS` there is the port of `tls_address`.
    #[track_caller]
    pub(crate) fn configured(lines: &str) -> Option<Rabbitmq> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !Path::new(PROGRAMS).join("rabbitmq-server").exists() {
            eprintln!("skipped: there is no rabbitmq-server; run scripts/prerequisites");
            return None;
        }
        let name = format!("rabbitmq-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = run_directory().join(&name);
        std::fs::create_dir_all(&directory).expect("a directory");
        let ports = [(); 4].map(|()| free_port());
        let [port, tls_port, distribution, mapper] = ports;
        let configuration = format!(
            "listeners.tcp.1 = 127.0.0.1:{port}\nlog.console = true\nlog.file = false\n\
             max_message_size = {MESSAGE_BYTES_MAX}\nvm_memory_high_watermark.relative = 0.8\n\
             disk_free_limit.absolute = 1MB\n{}\n",
            lines.replace("TLS", &format!("127.0.0.1:{tls_port}"))
        );
        std::fs::write(directory.join("rabbitmq.conf"), configuration).expect("a configuration");
        std::fs::write(directory.join("plugins"), "[].").expect("a list of plugins");
        let file = |name: &str| directory.join(name).display().to_string();
        let variables = vec![
            ("HOME", file("")),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("ERL_EPMD_PORT", mapper.to_string()),
            ("RABBITMQ_NODENAME", format!("{name}@localhost")),
            ("RABBITMQ_DIST_PORT", distribution.to_string()),
            ("RABBITMQ_MNESIA_BASE", file("data")),
            ("RABBITMQ_LOG_BASE", file("logs")),
            ("RABBITMQ_CONFIG_FILE", file("rabbitmq")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", file("plugins")),
            ("RABBITMQ_CONF_ENV_FILE", file("none")),
            ("RABBITMQ_GENERATED_CONFIG_DIR", file("generated")),
            ("RABBITMQ_PID_FILE", file("pid")),
            // The shell becomes the server, which is our child then.
            ("RABBITMQ_ALLOW_INPUT", "1".to_owned()),
            ("RABBITMQ_SERVER_START_ARGS", "-noinput".to_owned()),
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}".to_owned(),
            ),
            ("RABBITMQ_CTL_ERL_ARGS", "+S 1:1 +sbwt none".to_owned()),
        ];
        let mut epmd = Command::new("epmd");
        epmd.args(["-address", "127.0.0.1", "-port", &mapper.to_string()]);
        let mapper = Process::start("epmd", epmd, &directory.join("epmd"));
        let mut server = Rabbitmq {
            address: format!("127.0.0.1:{port}"),
            tls_address: format!("127.0.0.1:{tls_port}"),
            directory,
            variables,
            process: None,
            _mapper: mapper,
        };
        server.run();
        Some(server)
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(Path::new(PROGRAMS).join(name));
        command.current_dir(&self.directory);
        command.envs(self.variables.iter().map(|(name, value)| (*name, value)));
        command
    }

    /// Starts it with its files and port, and waits until it answers.
    #[track_caller]
    pub(crate) fn run(&mut self) {
        assert!(self.process.is_none(), "it already runs");
        let log = self.directory.join("log");
        logs_to(&self.address, &log);
        let command = self.program("rabbitmq-server");
        let process = self
            .process
            .insert(Process::start("rabbitmq-server", command, &log));
        let starts = process.log().matches("completed with").count();
        let started = wait::until(START_DEADLINE, || {
            (process.log().matches("completed with").count() > starts).then_some(())
        });
        assert!(started.is_some(), "no start:\n{}", process.log_tail(40));
    }

    pub(crate) fn kill_hard(&mut self) {
        self.process.take().expect("it runs").kill_hard();
    }

    /// Sends a signal: `STOP` leaves connections open without answers.
    pub(crate) fn signal(&mut self, name: &str) {
        self.process.as_mut().expect("it runs").signal(name);
    }

    /// Runs `rabbitmqctl`, and gives what it says.
    #[track_caller]
    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        let mut command = self.program("rabbitmqctl");
        command.arg("--quiet").args(arguments);
        let output = output_of(command, COMMAND_DEADLINE);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{arguments:?}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    }

    /// Makes a virtual host that the user `guest` may use.
    #[track_caller]
    pub(crate) fn add_vhost(&self, name: &str) {
        self.ctl(&["add_vhost", name]);
        self.ctl(&["set_permissions", "-p", name, "guest", ".*", ".*", ".*"]);
    }
}
