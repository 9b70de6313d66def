//! A private Postgres: its own directory, its own port, gone when it is dropped. Its start and its
//! stop block.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use crate::process::{Guardian, free_port, send_signal};
use walrelay_core::error::{Error, Kind, Result, with_causes};

/// The superuser, and the database everything happens in.
pub const USER: &str = "postgres";

/// From spawn until the server takes connections, crash recovery included.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a condition of the server is looked at while it is waited for.
const POLL: Duration = Duration::from_millis(20);

const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Another process may take the port between our look and the server's bind.
const FIRST_START_ATTEMPTS: u32 = 5;

/// Processes of a killed postmaster hold on to its shared memory until they notice.
const RESTART_ATTEMPTS: u32 = 400;

/// Socket paths are cut here on the least of the systems.
const SOCKET_DIR_BYTES_MAX: usize = 80;

/// The head of `postgresql.conf`: ready for logical replication, fast, not durable across power
/// loss. Dynamic shared memory is in files of the data directory, so that not even a crash leaves
/// any behind.
const CONFIGURATION: &str = "
listen_addresses = '127.0.0.1'
unix_socket_permissions = 0700
wal_level = logical
max_wal_senders = 20
max_replication_slots = 20
shared_buffers = 64MB
fsync = off
full_page_writes = off
dynamic_shared_memory_type = mmap
logging_collector = off
log_timezone = UTC
";

/// The settings of the server.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Directory of `postgres` and `initdb`; searched for where `None`.
    pub bin: Option<PathBuf>,
    /// An existing directory for data, log and socket, which stays. Where `None`, a temporary one,
    /// which is removed.
    pub dir: Option<PathBuf>,
    /// Further lines of `postgresql.conf`, which win over those that every private server has.
    pub configuration: String,
}

/// A Postgres of our own, which only this user can reach: its directory is closed to others, and
/// every connection has to know a random password. Dropping it stops it and removes its temporary
/// directory, and so does the end of this process, however it ends.
#[derive(Debug)]
pub struct PrivatePostgres {
    binaries: Binaries,
    configuration: String,
    user: Option<OsUser>,
    /// 0 before the first start.
    port: u16,
    password: String,
    child: Option<Child>,
    guardian: Guardian,
    dir: PathBuf,
    _temporary: Option<TempDir>,
}

impl PrivatePostgres {
    /// Makes a cluster, starts it on a free port and waits until it takes connections.
    ///
    /// # Errors
    /// [`Kind::Prerequisite`] or [`Kind::Config`] where Postgres is not to be had or does not
    /// start; the end of its log is in the cause.
    pub fn start(settings: Settings) -> Result<Self> {
        let mut server = Self::new(settings)?;
        server.initdb()?;
        server.launch()?;
        Ok(server)
    }

    /// A server without data: [`PrivatePostgres::initdb`] makes them, or the caller puts them into
    /// [`PrivatePostgres::data_dir`].
    pub fn new(settings: Settings) -> Result<Self> {
        let binaries = Binaries::find(settings.bin.as_deref())?;
        let user = OsUser::instead_of_root()?;
        let made = || {
            let closed = fs::Permissions::from_mode(0o700);
            tempfile::Builder::new()
                .prefix("walrelay-")
                .permissions(closed)
                .tempdir_in(temporary_root(user))
        };
        let temporary = settings
            .dir
            .is_none()
            .then(made)
            .transpose()
            .map_err(unusable)?;
        let guardian = Guardian::start(temporary.as_ref().map(TempDir::path)).map_err(unusable)?;
        let password = random_password().map_err(unusable)?;
        let dir = settings
            .dir
            .or(temporary.as_ref().map(|dir| dir.path().to_owned()))
            .unwrap_or_default();
        let server = PrivatePostgres {
            binaries,
            configuration: settings.configuration,
            user,
            port: 0,
            password,
            child: None,
            guardian,
            dir,
            _temporary: temporary,
        };
        server.give(&server.dir)?;
        Ok(server)
    }

    /// Makes a cluster in the data directory, with its configuration.
    pub fn initdb(&self) -> Result<()> {
        let mut initdb = self.command("initdb");
        initdb.arg("-D").arg(self.data_dir()).args([
            "-U",
            USER,
            "-E",
            "UTF8",
            "--no-locale",
            "--no-sync",
        ]);
        let password = self.dir.join("password");
        // Only the user of the server can read it, and it was not there.
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&password);
        file.and_then(|mut file| file.write_all(self.password.as_bytes()))
            .map_err(unusable)?;
        self.give(&password)?;
        let status = initdb
            .args(["--auth=scram-sha-256", "--pwfile"])
            .arg(&password)
            .status();
        fs::remove_file(&password).map_err(unusable)?;
        let status = status.map_err(unusable)?;
        if !status.success() {
            return Err(self.failure(&format!("initdb ended with {status}")));
        }
        self.configure(CONFIGURATION)?;
        self.configure(&self.configuration)
    }

    /// Appends lines to `postgresql.conf`.
    pub fn configure(&self, lines: &str) -> Result<()> {
        let path = self.data_dir().join("postgresql.conf");
        let file = OpenOptions::new()
            .append(true)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path);
        file.and_then(|mut file| file.write_all(lines.as_bytes()))
            .map_err(unusable)
    }

    /// Gives a file to the user that runs the server.
    pub fn give(&self, path: &Path) -> Result<()> {
        self.user
            .map_or(Ok(()), |user| user.own(path))
            .map_err(unusable)
    }

    /// Starts the server on the data it has, and waits until it takes connections.
    pub fn launch(&mut self) -> Result<()> {
        if self.child.is_some() {
            return Err(Error::new(
                Kind::Prerequisite,
                "the private Postgres already runs",
            ));
        }
        let is_first = self.port == 0;
        let deadline = Instant::now() + START_TIMEOUT;
        for _ in 0..if is_first {
            FIRST_START_ATTEMPTS
        } else {
            RESTART_ATTEMPTS
        } {
            if is_first {
                self.port = free_port().map_err(unusable)?;
            }
            let socket_dir = self.socket_dir().unwrap_or(Path::new("")).display();
            // The options are what a copy of its data on this machine has to have differently.
            let mut postgres = self.command("postgres");
            postgres.arg("-D").arg(self.data_dir()).args([
                "-c",
                &format!("port={}", self.port),
                "-c",
                &format!("unix_socket_directories={socket_dir}"),
            ]);
            let child = postgres.spawn().map_err(unusable)?;
            let guarded = self.guardian.watch(child.id());
            self.child = Some(child);
            guarded.map_err(unusable)?;
            if self.ready(deadline)? {
                return Ok(());
            }
            thread::sleep(RETRY_DELAY);
        }
        Err(self.failure("the private Postgres does not start"))
    }

    /// The port on 127.0.0.1; the same from the first start on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Major version.
    pub fn major(&self) -> u32 {
        self.binaries.major
    }

    /// The path of a program of this version.
    pub fn program(&self, name: &str) -> PathBuf {
        self.binaries.dir.join(name)
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Directory of the unix socket, where its path is short enough for one.
    pub(crate) fn socket_dir(&self) -> Option<&Path> {
        Some(&*self.dir).filter(|dir| dir.as_os_str().len() <= SOCKET_DIR_BYTES_MAX)
    }

    /// A connection string over TCP, in libpq's form of keywords and values, with the password.
    pub fn conninfo(&self) -> String {
        let PrivatePostgres { port, password, .. } = self;
        format!(
            "host=127.0.0.1 port={port} user={USER} dbname={USER} password={password} \
             sslmode=disable"
        )
    }

    /// The same for `tokio_postgres`.
    pub(crate) fn client_config(&self) -> Result<tokio_postgres::Config> {
        let config = format!("{} connect_timeout=5", self.conninfo()).parse();
        config.map_err(|error| failed("connecting", &error))
    }

    /// An SQL session as superuser; its connection runs on a task of its own and ends with the
    /// client.
    pub async fn connect(&self) -> Result<Client> {
        connect(&self.client_config()?).await
    }

    /// Shuts the server down with `SIGINT`, and waits at most `timeout`: Postgres ends sessions,
    /// waits until walsenders are confirmed everything, and checkpoints.
    pub fn stop_fast(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let child = self.child.as_ref().ok_or_else(not_running)?;
        send_signal(child.id(), "INT").map_err(unusable)?;
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                let what = format!("the private Postgres did not stop within {timeout:?}");
                return Err(Error::new(Kind::Prerequisite, what));
            }
            thread::sleep(POLL);
        }
    }

    /// Kills the postmaster with `SIGKILL`: a crash. Its other processes end by themselves a little
    /// later.
    pub fn kill(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        child.kill().and_then(|()| child.wait()).map_err(unusable)?;
        self.guardian.release(child.id()).map_err(unusable)
    }

    /// One of the programs, as the right user, writing to the log, out of reach of the terminal's
    /// Ctrl-C.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.program(program));
        command
            .current_dir(&self.dir)
            .process_group(0)
            .stdin(Stdio::null());
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG"))
        {
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

    fn log_path(&self) -> PathBuf {
        self.dir.join("postgres.log")
    }

    fn log_files(&self) -> io::Result<(File, File)> {
        // The directory is of the server's user, who must not have root write to another file.
        let mut options = OpenOptions::new();
        options
            .create(true)
            .append(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = options.open(self.log_path())?;
        Ok((file.try_clone()?, file))
    }

    /// Waits until it takes connections; false where it ended instead.
    fn ready(&mut self, deadline: Instant) -> Result<bool> {
        while self.exited()?.is_none() {
            let child = self.child.as_ref();
            if child.is_some_and(|child| self.lock_file().is_ready(child.id())) {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Err(self.failure("the private Postgres takes no connections"));
            }
            thread::sleep(POLL);
        }
        Ok(false)
    }

    fn lock_file(&self) -> LockFile {
        LockFile(fs::read_to_string(self.data_dir().join("postmaster.pid")).unwrap_or_default())
    }

    fn exited(&mut self) -> Result<Option<ExitStatus>> {
        let child = self.child.as_mut().ok_or_else(not_running)?;
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
        let mut lines: Vec<&str> = log
            .lines()
            .rev()
            .filter(|line| !line.trim().is_empty())
            .take(3)
            .collect();
        lines.reverse();
        let programs = self.binaries.dir.display();
        Error::new(
            Kind::Prerequisite,
            format!("{what}; the end of its log: {:?}", lines.join(" | ")),
        )
        .remedy(format!(
            "see whether the Postgres in {programs} works, or name another with --postgres-bin"
        ))
    }

    /// A killed postmaster leaves one small System V segment, which only its own restart or we can
    /// take away.
    fn remove_shared_memory(&self) {
        if let Some(id) = self.lock_file().shared_memory() {
            let mut ipcrm = Command::new("ipcrm");
            if let Some(user) = self.user {
                user.run(&mut ipcrm);
            }
            drop(
                ipcrm
                    .args(["-m", id])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .status(),
            );
        }
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let deadline = Instant::now() + Duration::from_secs(5);
            let asked = send_signal(child.id(), "QUIT").is_ok();
            while asked && matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(5));
            }
            drop(child.kill());
            drop(child.wait());
            // The guardian must not signal a process id that is free again.
            drop(self.guardian.release(child.id()));
        }
        self.remove_shared_memory();
    }
}

/// The text of `postmaster.pid`, of which the first line is the process id, the seventh the shared
/// memory, the eighth the status; empty where there is no such file.
struct LockFile(String);

impl LockFile {
    /// Whether the process `pid`, and not one before it, has written that it takes connections.
    fn is_ready(&self, pid: u32) -> bool {
        let mut lines = self.0.lines();
        lines.next() == Some(&pid.to_string())
            && lines.nth(6).is_some_and(|status| status.trim() == "ready")
    }

    /// The id of the System V segment.
    fn shared_memory(&self) -> Option<&str> {
        self.0.lines().nth(6)?.split_whitespace().nth(1)
    }
}

/// An SQL session; its connection runs on a task of its own and ends with the client.
pub(crate) async fn connect(config: &tokio_postgres::Config) -> Result<Client> {
    let connected = config.connect(NoTls).await;
    let (client, connection) = connected.map_err(|error| failed("connecting", &error))?;
    tokio::spawn(async move {
        // Whoever uses the client gets the same error.
        drop(connection.await);
    });
    Ok(client)
}

/// The error of a session while it was `doing`.
pub(crate) fn failed(doing: &str, error: &tokio_postgres::Error) -> Error {
    let kind = if error.as_db_error().is_some() {
        Kind::PostgresRefused
    } else {
        Kind::PostgresUnreachable
    };
    Error::new(kind, format!("{doing}: {}", with_causes(error)))
}

fn not_running() -> Error {
    Error::new(Kind::Prerequisite, "the private Postgres does not run")
}

fn unusable(error: io::Error) -> Error {
    Error::new(
        Kind::Prerequisite,
        format!("the private Postgres cannot be run: {error}"),
    )
}

/// The oldest major version whose logical decoding the relay is written for.
const MAJOR_MIN: u32 = 14;

/// Names a directory with `postgres` and `initdb`, before anything is searched.
const BIN_VARIABLE: &str = "WALRELAY_POSTGRES_BIN";

/// Directories with directories that may have the programs of a version in `bin`.
const ROOTS: [&str; 8] = [
    "/usr",
    "/usr/lib/postgresql",
    "/usr/local",
    "/usr/local/opt",
    "/opt",
    "/opt/homebrew/opt",
    "/Library/PostgreSQL",
    "/Applications/Postgres.app/Contents/Versions",
];

/// A directory with `postgres` and `initdb` of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Binaries {
    dir: PathBuf,
    major: u32,
}

impl Binaries {
    /// Finds them: `asked`, [`BIN_VARIABLE`], `PATH`, then the usual places with the highest
    /// version first.
    fn find(asked: Option<&Path>) -> Result<Self> {
        if let Some(dir) = asked {
            return Self::named(dir, "--postgres-bin");
        }
        if let Some(dir) = env::var_os(BIN_VARIABLE).filter(|dir| !dir.is_empty()) {
            return Self::named(Path::new(&dir), BIN_VARIABLE);
        }
        let on_path = env::var_os("PATH").unwrap_or_default();
        if let Some(found) = env::split_paths(&on_path).find_map(|dir| Self::at(&dir)) {
            return Ok(found);
        }
        let newest = usual_places()
            .into_iter()
            .filter_map(|dir| Self::at(&dir))
            .max_by_key(|found| found.major);
        newest.ok_or_else(|| {
            Error::new(Kind::Prerequisite, "no Postgres is installed").remedy(
                "install a Postgres server, version 14 or later (Debian: apt-get install \
                 postgresql; macOS: brew install \
                 postgresql), or name its programs with --postgres-bin",
            )
        })
    }

    fn named(dir: &Path, by: &str) -> Result<Self> {
        Self::at(dir).ok_or_else(|| {
            let what = format!(
                "{by} names {}, which has no postgres and initdb of version {MAJOR_MIN} or later",
                dir.display()
            );
            Error::new(Kind::Config, what)
                .remedy("name the directory that holds the programs postgres and initdb")
        })
    }

    /// Those in `dir`, if both programs are there, run, and are new enough.
    fn at(dir: &Path) -> Option<Self> {
        if !dir.join("initdb").is_file() {
            return None;
        }
        let output = Command::new(dir.join("postgres"))
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .ok()?;
        let major = major_of(&String::from_utf8_lossy(&output.stdout))?;
        // The real directory: a shim would start its own wrapper where the server's process id is
        // wanted.
        let dir = fs::canonicalize(dir.join("postgres"))
            .ok()?
            .parent()?
            .to_owned();
        (major >= MAJOR_MIN && dir.join("initdb").is_file()).then_some(Binaries { dir, major })
    }
}

/// `postgres (PostgreSQL) 15.18 (Debian …)` is 15; a beta is `18beta1`.
fn major_of(version_line: &str) -> Option<u32> {
    let version = version_line.split(')').nth(1)?.split_whitespace().next()?;
    let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

fn usual_places() -> Vec<PathBuf> {
    let asdf = env::var_os("HOME").map(|home| Path::new(&home).join(".asdf/installs/postgres"));
    let roots = ROOTS.iter().map(PathBuf::from).chain(asdf);
    let entries = roots
        .filter_map(|root| fs::read_dir(root).ok())
        .flatten()
        .flatten();
    entries.map(|entry| entry.path().join("bin")).collect()
}

fn random_password() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// A user of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OsUser {
    uid: u32,
    gid: u32,
}

impl OsUser {
    /// `None` where we may run Postgres ourselves; as root the user `postgres`, or else `nobody`.
    ///
    /// # Errors
    /// [`Kind::Prerequisite`] where we are root and there is nobody else.
    pub fn instead_of_root() -> Result<Option<OsUser>> {
        // A file we make is ours.
        if !tempfile::tempfile()
            .and_then(|file| file.metadata())
            .is_ok_and(|metadata| metadata.uid() == 0)
        {
            return Ok(None);
        }
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let found = ["postgres", "nobody"]
            .into_iter()
            .find_map(|name| in_passwd(&users, name));
        found.map(Some).ok_or_else(|| {
            let what =
                "Postgres does not run as root, and there is neither a user postgres nor nobody";
            Error::new(Kind::Prerequisite, what).remedy("run this as another user")
        })
    }

    /// Gives it a file or directory.
    pub fn own(self, path: &Path) -> io::Result<()> {
        chown(path, Some(self.uid), Some(self.gid))
    }

    /// Runs the command as this user, without our supplementary groups.
    pub fn run(self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }
}

fn in_passwd(users: &str, name: &str) -> Option<OsUser> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        (uid != 0).then_some(OsUser { uid, gid })
    })
}

/// Whether everybody may pass through `dir` and all above it.
fn is_open_to_all(dir: &Path) -> bool {
    dir.ancestors().all(|dir| {
        fs::metadata(dir).is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0)
    })
}

fn temporary_root(user: Option<OsUser>) -> PathBuf {
    let usual = std::env::temp_dir();
    let candidates = [usual.clone(), "/tmp".into(), "/var/tmp".into()];
    match user {
        None => usual,
        Some(_) => candidates
            .into_iter()
            .find(|dir| is_open_to_all(dir))
            .unwrap_or(usual),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn count(server: &PrivatePostgres) -> i64 {
        let client = server.connect().await.unwrap();
        client
            .query_one("select count(*) from kept", &[])
            .await
            .unwrap()
            .get(0)
    }

    fn is_alive(pid: u32) -> bool {
        send_signal(pid, "0").is_ok()
    }

    #[tokio::test]
    async fn it_crashes_and_comes_back_on_the_same_port_with_its_data_and_leaves_nothing() {
        let configuration = "work_mem = 5MB".to_owned();
        let mut server = PrivatePostgres::start(Settings {
            configuration,
            ..Settings::default()
        })
        .unwrap();
        let port = server.port();
        let dir = server.dir.clone();
        let client = server.connect().await.unwrap();
        client
            .batch_execute("create table kept (id int); insert into kept values (1)")
            .await
            .unwrap();
        for (name, value) in [
            ("wal_level", "logical"),
            ("work_mem", "5MB"),
            ("listen_addresses", "127.0.0.1"),
        ] {
            let shown: String = client
                .query_one(&format!("show {name}"), &[])
                .await
                .unwrap()
                .get(0);
            assert_eq!(shown, value, "{name}");
        }

        server.kill().unwrap();
        assert!(server.connect().await.is_err());
        server.launch().unwrap();
        assert_eq!((server.port(), count(&server).await), (port, 1));

        let socket = server
            .socket_dir()
            .unwrap()
            .join(format!(".s.PGSQL.{port}"));
        assert!(socket.exists(), "no unix socket at {socket:?}");
        let pid = server.child.as_ref().unwrap().id();
        assert!(is_alive(pid));
        drop(server);
        assert!(!is_alive(pid) && !dir.exists());
    }

    #[tokio::test]
    async fn nobody_without_the_password_gets_in_and_no_other_user_reaches_its_files() {
        let server = PrivatePostgres::start(Settings::default()).unwrap();
        server.connect().await.unwrap();
        let mut without = tokio_postgres::Config::new();
        without.port(server.port()).user(USER);
        let by_tcp = without.clone().host("127.0.0.1").to_owned();
        let by_socket = without.host_path(server.socket_dir().unwrap()).to_owned();
        for without in [by_tcp, by_socket] {
            assert!(connect(&without).await.is_err(), "{without:?}");
        }
        assert!(!server.dir.join("password").exists());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o077;
        let socket = server
            .socket_dir()
            .unwrap()
            .join(format!(".s.PGSQL.{}", server.port()));
        for path in [&server.dir, &server.data_dir(), &server.log_path(), &socket] {
            assert_eq!(mode(path), 0, "{path:?}");
        }
    }

    #[test]
    fn a_file_that_is_there_is_not_written_through() {
        let server = PrivatePostgres::new(Settings::default()).unwrap();
        let target = tempfile::NamedTempFile::new().unwrap();
        for name in ["password", "postgres.log"] {
            std::os::unix::fs::symlink(target.path(), server.dir.join(name)).unwrap();
        }
        assert!(server.initdb().is_err() && server.log_files().is_err());
        assert_eq!(fs::read_to_string(target.path()).unwrap(), "");
    }

    #[test]
    fn a_setting_the_server_refuses_is_reported_with_the_end_of_its_log() {
        let configuration = "wal_level = sideways".to_owned();
        let error = PrivatePostgres::start(Settings {
            configuration,
            ..Settings::default()
        })
        .unwrap_err();
        assert_eq!(error.kind(), Kind::Prerequisite);
        assert!(error.cause().contains("wal_level"), "{error}");
    }

    #[test]
    fn a_user_is_found_by_its_whole_name_and_never_root() {
        let users = "root:x:0:0:root:/root:/bin/sh\npostgres-old:x:1:1::/:\n\
                     postgres:x:101:104::/var/lib:/bin/sh\ntoor:x:0:0::/:\n";
        assert_eq!(
            in_passwd(users, "postgres"),
            Some(OsUser { uid: 101, gid: 104 })
        );
        assert_eq!(in_passwd(users, "nobody"), None);
        assert_eq!(in_passwd(users, "toor"), None);
    }

    #[test]
    fn a_directory_below_a_closed_one_is_closed() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!is_open_to_all(&inner));
        fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o711)).unwrap();
        assert!(is_open_to_all(&inner));
    }

    #[test]
    fn the_major_version_is_read_from_what_postgres_prints() {
        assert_eq!(
            major_of("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"),
            Some(15)
        );
        assert_eq!(major_of("postgres (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(major_of("postgres (PostgreSQL) 9.6.24"), Some(9));
        for bad in [
            "",
            "postgres",
            "postgres (PostgreSQL)",
            "postgres (PostgreSQL) x",
        ] {
            assert_eq!(major_of(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_directory_without_postgres_is_refused_by_name() {
        let empty = tempfile::tempdir().unwrap();
        let error = Binaries::find(Some(empty.path())).unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        assert!(error.cause().contains("--postgres-bin names"), "{error}");
    }
}
