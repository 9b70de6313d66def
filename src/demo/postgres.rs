//! A private Postgres: its own directory, its own port, gone when it is dropped.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use super::binaries::Binaries;
use super::guardian::{Guardian, send_signal};
use super::os_user::{OsUser, temporary_root};
use crate::error::{Error, Kind, Result};

/// The superuser, and the database everything happens in.
pub const USER: &str = "postgres";

/// From spawn to the first connection, crash recovery included.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a condition of the server is looked at while it is waited for.
const POLL: Duration = Duration::from_millis(20);

/// Socket paths are cut here on the least of the systems.
const SOCKET_DIR_BYTES_MAX: usize = 80;

/// What the server should be like. The default is for tests and the demo: fast, not durable across power loss.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Directory of `postgres` and `initdb`; searched for where `None`.
    pub bin: Option<PathBuf>,
    /// Whether it survives loss of power. It survives a kill of its processes either way.
    pub fsync: bool,
    /// Its `wal_sender_timeout`.
    pub wal_sender_timeout: Duration,
    /// Ask for a random password on TCP, so that other users of the machine cannot get in. Off: anybody who reaches
    /// the loopback interface is superuser of this server.
    pub password: bool,
    /// Further settings by name, which win over all others.
    pub extra: Vec<(String, String)>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            bin: None,
            fsync: false,
            wal_sender_timeout: Duration::from_secs(5),
            password: false,
            extra: Vec::new(),
        }
    }
}

/// How a server is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// `SIGINT`: ends sessions, waits for walsenders to be confirmed everything, checkpoints.
    Fast,
    /// `SIGQUIT`: ends at once; the next start recovers.
    Immediate,
}

/// A Postgres of our own. Dropping it stops it and removes its directory, and so does the end of this process, however
/// it ends.
#[derive(Debug)]
pub struct PrivatePostgres {
    binaries: Binaries,
    settings: Settings,
    user: Option<OsUser>,
    port: u16,
    password: Option<String>,
    child: Option<Child>,
    guardian: Guardian,
    dir: TempDir,
}

impl PrivatePostgres {
    /// Makes a cluster in a new directory, starts it on a free port and waits until it takes connections.
    ///
    /// # Errors
    /// [`Kind::Prerequisite`] or [`Kind::Config`] where Postgres is not to be had or does not start; the end of its
    /// log is in the cause.
    pub async fn start(settings: Settings) -> Result<Self> {
        let asked = settings.bin.clone();
        let found = tokio::task::spawn_blocking(move || Binaries::find(asked.as_deref())).await;
        let binaries = found.map_err(|error| Error::new(Kind::Bug, format!("looking for Postgres: {error}")))??;
        let user = OsUser::instead_of_root()?;
        let dir = tempfile::Builder::new().prefix("walrelay-").tempdir_in(temporary_root(user)).map_err(unusable)?;
        let guardian = Guardian::start(Some(dir.path())).map_err(unusable)?;
        let password = settings.password.then(random_password).transpose().map_err(unusable)?;
        let mut server = PrivatePostgres { binaries, settings, user, port: 0, password, child: None, guardian, dir };
        server.initdb().await?;
        // Another process may take the port between our look and the server's bind.
        for _ in 0..4 {
            server.port = free_port().map_err(unusable)?;
            if server.launch(1).await.is_ok() {
                return Ok(server);
            }
        }
        server.port = free_port().map_err(unusable)?;
        server.launch(1).await?;
        Ok(server)
    }

    /// The port on 127.0.0.1; the same for the server's whole life.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Major version.
    pub fn major(&self) -> u32 {
        self.binaries.major()
    }

    /// Process id of the postmaster while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Directory of the unix socket, where its path is short enough for one.
    pub fn socket_dir(&self) -> Option<PathBuf> {
        Some(self.dir.path().to_owned()).filter(|dir| dir.as_os_str().len() <= SOCKET_DIR_BYTES_MAX)
    }

    /// What the server wrote, of all its starts.
    pub fn log_path(&self) -> PathBuf {
        self.dir.path().join("postgres.log")
    }

    /// A connection string over TCP, in libpq's form of keywords and values. Holds the password, if there is one.
    pub fn conninfo(&self) -> String {
        let port = self.port;
        let password = self.password.as_ref().map(|password| format!(" password={password}")).unwrap_or_default();
        format!("host=127.0.0.1 port={port} user={USER} dbname={USER}{password} sslmode=disable")
    }

    /// The same for `tokio_postgres`.
    pub fn client_config(&self) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(self.port).user(USER).dbname(USER).connect_timeout(Duration::from_secs(5));
        if let Some(password) = &self.password {
            config.password(password);
        }
        config
    }

    /// An SQL session as superuser; its connection runs on a task of its own and ends with the client.
    ///
    /// # Errors
    /// [`Kind::PostgresUnreachable`].
    pub async fn connect(&self) -> Result<Client> {
        connect(&self.client_config()).await
    }

    /// Changes a setting, from the next start on.
    pub fn set(&mut self, name: &str, value: &str) {
        self.settings.extra.push((name.to_owned(), value.to_owned()));
    }

    /// Asks the server to stop, without waiting for it.
    ///
    /// # Errors
    /// [`Kind::Prerequisite`] where it does not run.
    pub fn request_stop(&self, how: Stop) -> Result<()> {
        let pid = self.pid().ok_or_else(|| Error::new(Kind::Prerequisite, "the private Postgres does not run"))?;
        let signal = match how {
            Stop::Fast => "INT",
            Stop::Immediate => "QUIT",
        };
        send_signal(pid, signal).map_err(unusable)
    }

    /// Stops the server and waits for it, for at most `timeout`.
    ///
    /// # Errors
    /// [`Kind::Prerequisite`] where it still runs then; it goes on stopping.
    pub async fn stop(&mut self, how: Stop, timeout: Duration) -> Result<ExitStatus> {
        self.request_stop(how)?;
        self.wait(timeout).await
    }

    /// Waits for a server that was told to stop.
    ///
    /// # Errors
    /// [`Kind::Prerequisite`] where it still runs after `timeout`, or does not run at all.
    pub async fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                let what = format!("the private Postgres did not stop within {} s", timeout.as_secs_f32());
                return Err(Error::new(Kind::Prerequisite, what));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Kills the postmaster with `SIGKILL`: a crash. Its other processes end by themselves a little later.
    ///
    /// # Errors
    /// [`Kind::Prerequisite`] where it cannot be killed.
    pub fn kill(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill().and_then(|()| child.wait()).map_err(unusable)?;
        self.guardian.release(child.id()).map_err(unusable)
    }

    /// Starts the server again, on the same port and data; stops it fast first where it runs.
    ///
    /// # Errors
    /// [`Kind::Prerequisite`] with the end of its log.
    pub async fn restart(&mut self) -> Result<()> {
        if self.child.is_some() {
            self.stop(Stop::Fast, START_TIMEOUT).await?;
        }
        // Processes of a killed postmaster hold on to its shared memory until they notice.
        self.launch(100).await
    }

    async fn initdb(&self) -> Result<()> {
        let data = self.data_dir();
        let mut initdb = self.command("initdb");
        initdb.arg("-D").arg(&data).args(["-U", USER, "-E", "UTF8", "--no-locale"]);
        if !self.settings.fsync {
            initdb.arg("--no-sync");
        }
        match &self.password {
            None => drop(initdb.args(["-A", "trust"])),
            Some(password) => {
                let file = self.dir.path().join("password");
                fs::write(&file, password).map_err(unusable)?;
                self.give(&file)?;
                initdb.args(["--auth-local=trust", "--auth-host=scram-sha-256", "--pwfile"]).arg(file);
            }
        }
        self.give(self.dir.path())?;
        let status = tokio::task::spawn_blocking(move || initdb.status()).await;
        let status = status.map_err(|error| Error::new(Kind::Bug, format!("initdb: {error}")))?.map_err(unusable)?;
        if !status.success() {
            return Err(self.failure(&format!("initdb ended with {status}")));
        }
        Ok(())
    }

    fn give(&self, path: &Path) -> Result<()> {
        self.user.map_or(Ok(()), |user| user.own(path)).map_err(unusable)
    }

    /// One of the programs, as the right user, writing to the log, out of reach of the terminal's Ctrl-C.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.binaries.program(program));
        command.current_dir(self.dir.path()).process_group(0).stdin(Stdio::null());
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(name);
        }
        command.env("LC_ALL", "C");
        if let Some(user) = self.user {
            user.run(&mut command);
        }
        if let Ok((out, err)) = self.log_files() {
            command.stdout(out).stderr(err);
        }
        command
    }

    fn log_files(&self) -> io::Result<(File, File)> {
        let file = OpenOptions::new().create(true).append(true).open(self.log_path())?;
        Ok((file.try_clone()?, file))
    }

    fn arguments(&self) -> Vec<(String, String)> {
        let on_off = |on: bool| if on { "on" } else { "off" }.to_owned();
        let fixed = [
            ("listen_addresses", "127.0.0.1".to_owned()),
            ("port", self.port.to_string()),
            ("unix_socket_directories", self.socket_dir().map(|dir| dir.display().to_string()).unwrap_or_default()),
            ("wal_level", "logical".to_owned()),
            ("max_wal_senders", "16".to_owned()),
            ("max_replication_slots", "16".to_owned()),
            ("wal_sender_timeout", format!("{}ms", self.settings.wal_sender_timeout.as_millis())),
            ("fsync", on_off(self.settings.fsync)),
            ("full_page_writes", on_off(self.settings.fsync)),
            ("track_commit_timestamp", "on".to_owned()),
            ("shared_buffers", "64MB".to_owned()),
            // Files in the data directory, so that not even a crash leaves shared memory behind.
            ("dynamic_shared_memory_type", "mmap".to_owned()),
            ("logging_collector", "off".to_owned()),
            ("log_timezone", "UTC".to_owned()),
        ];
        let fixed = fixed.into_iter().map(|(name, value)| (name.to_owned(), value));
        fixed.chain(self.settings.extra.iter().cloned()).collect()
    }

    /// Spawns the server up to `attempts` times, until it takes connections.
    async fn launch(&mut self, attempts: u32) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        for _ in 0..attempts {
            let mut postgres = self.command("postgres");
            postgres.arg("-D").arg(self.data_dir());
            for (name, value) in self.arguments() {
                postgres.arg("-c").arg(format!("{name}={value}"));
            }
            let child = postgres.spawn().map_err(unusable)?;
            let guarded = self.guardian.watch(child.id());
            self.child = Some(child);
            guarded.map_err(unusable)?;
            if self.ready(deadline).await? {
                return Ok(());
            }
            tokio::time::sleep(POLL * 5).await;
        }
        Err(self.failure("the private Postgres does not start"))
    }

    /// Waits until it takes connections; false where it ended instead.
    async fn ready(&mut self, deadline: Instant) -> Result<bool> {
        let config = self.client_config();
        loop {
            if self.exited()?.is_some() {
                return Ok(false);
            }
            // Somebody else's server on our port would not have our child's process id.
            if let Ok(client) = connect(&config).await
                && self.is_ours(&client).await
            {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Err(self.failure("the private Postgres takes no connections"));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn is_ours(&self, client: &Client) -> bool {
        let asked = client.query_one("select current_setting('data_directory')", &[]).await;
        asked.and_then(|row| row.try_get::<_, String>(0)).is_ok_and(|dir| Path::new(&dir) == self.data_dir())
    }

    /// How it ended, if it has.
    fn exited(&mut self) -> Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else {
            return Err(Error::new(Kind::Prerequisite, "the private Postgres does not run"));
        };
        let status = child.try_wait().map_err(unusable)?;
        if status.is_some() {
            let pid = child.id();
            self.child = None;
            self.guardian.release(pid).map_err(unusable)?;
        }
        Ok(status)
    }

    fn failure(&self, what: &str) -> Error {
        let log = fs::read_to_string(self.log_path()).unwrap_or_default();
        let mut lines: Vec<&str> = log.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
        lines.reverse();
        let programs = self.binaries.dir().display();
        Error::new(Kind::Prerequisite, format!("{what}; the end of its log: {:?}", lines.join(" | ")))
            .remedy(format!("see whether the Postgres in {programs} works, or name another with --postgres-bin"))
    }

    /// A killed postmaster leaves one small System V segment, which only its own restart or we can take away.
    fn remove_shared_memory(&self) {
        let Ok(lock) = fs::read_to_string(self.data_dir().join("postmaster.pid")) else { return };
        let id = lock.lines().nth(6).and_then(|line| line.split_whitespace().nth(1));
        if let Some(id) = id {
            let mut ipcrm = Command::new("ipcrm");
            drop(ipcrm.args(["-m", id]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status());
        }
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let deadline = Instant::now() + Duration::from_secs(5);
            let asked = send_signal(child.id(), "QUIT").is_ok();
            while asked && matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(child.kill());
            drop(child.wait());
            // The guardian must not signal a process id that is free again.
            drop(self.guardian.release(child.id()));
        }
        self.remove_shared_memory();
    }
}

/// An SQL session; its connection runs on a task of its own and ends with the client.
///
/// # Errors
/// [`Kind::PostgresUnreachable`].
pub(super) async fn connect(config: &tokio_postgres::Config) -> Result<Client> {
    let unreachable = |error| Error::new(Kind::PostgresUnreachable, format!("connecting to Postgres: {error}"));
    let (client, connection) = config.connect(NoTls).await.map_err(unreachable)?;
    tokio::spawn(async move {
        // Whoever uses the client gets the same error.
        drop(connection.await);
    });
    Ok(client)
}

fn unusable(error: io::Error) -> Error {
    Error::new(Kind::Prerequisite, format!("the private Postgres cannot be run: {error}"))
}

/// A loopback port nobody listens on, below the range the kernel hands out to connecting sockets. A client could take
/// a port of that range while its server restarts.
///
/// # Errors
/// [`io::ErrorKind::AddrInUse`] where no port is free.
pub fn free_port() -> io::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 14_000;
    const COUNT: u16 = 16_000;
    // Processes that begin together have neighbouring ids, and are to look in different places.
    const APART: u32 = 401;
    let start = (std::process::id().wrapping_mul(APART) % u32::from(COUNT)) as u16;
    let port = |_| FIRST + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
    let mut ports = (0..COUNT).map(port);
    ports
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "no loopback port is free"))
}

fn random_password() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn count(server: &PrivatePostgres) -> i64 {
        let client = server.connect().await.unwrap();
        client.query_one("select count(*) from kept", &[]).await.unwrap().get(0)
    }

    fn is_alive(pid: u32) -> bool {
        send_signal(pid, "0").is_ok()
    }

    #[tokio::test]
    async fn it_starts_stops_crashes_and_comes_back_on_the_same_port_with_its_data_and_leaves_nothing() {
        let extra = vec![("work_mem".to_owned(), "5MB".to_owned())];
        let mut server = PrivatePostgres::start(Settings { extra, ..Settings::default() }).await.unwrap();
        let (port, dir) = (server.port(), server.dir.path().to_owned());
        let client = server.connect().await.unwrap();
        client.batch_execute("create table kept (id int); insert into kept values (1)").await.unwrap();
        for (name, value) in [("wal_level", "logical"), ("work_mem", "5MB"), ("listen_addresses", "127.0.0.1")] {
            let shown: String = client.query_one(&format!("show {name}"), &[]).await.unwrap().get(0);
            assert_eq!(shown, value, "{name}");
        }

        assert!(server.stop(Stop::Fast, START_TIMEOUT).await.unwrap().success());
        assert!(server.connect().await.is_err());
        server.restart().await.unwrap();
        assert_eq!((server.port(), count(&server).await), (port, 1));

        server.kill().unwrap();
        server.restart().await.unwrap();
        assert_eq!((server.port(), count(&server).await), (port, 1));

        let socket = server.socket_dir().unwrap().join(format!(".s.PGSQL.{port}"));
        assert!(socket.exists(), "no unix socket at {socket:?}");
        let pid = server.pid().unwrap();
        let status = server.stop(Stop::Immediate, START_TIMEOUT).await.unwrap();
        assert!(!status.success() || !is_alive(pid));
        server.restart().await.unwrap();
        let pid = server.pid().unwrap();
        assert!(is_alive(pid));
        drop(server);
        assert!(!is_alive(pid) && !dir.exists());
    }

    #[tokio::test]
    async fn with_a_password_nobody_without_it_gets_in_over_tcp() {
        let server = PrivatePostgres::start(Settings { password: true, ..Settings::default() }).await.unwrap();
        server.connect().await.unwrap();
        let parsed: tokio_postgres::Config = server.conninfo().parse().unwrap();
        connect(&parsed).await.unwrap();
        let mut without = tokio_postgres::Config::new();
        without.host("127.0.0.1").port(server.port()).user(USER);
        assert!(connect(&without).await.is_err());
    }

    #[tokio::test]
    async fn a_setting_the_server_refuses_is_reported_with_the_end_of_its_log() {
        let extra = vec![("wal_level".to_owned(), "sideways".to_owned())];
        let error = PrivatePostgres::start(Settings { extra, ..Settings::default() }).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Prerequisite);
        assert!(error.cause().contains("wal_level"), "{error}");
    }
}
