//! A real Postgres.

use std::cell::{Cell, OnceCell};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use walrelay::demo::os_user::OsUser;

use super::{directory, free_port, missing};
use crate::support::certificates::Identity;
use crate::support::guardian::run_directory;
use crate::support::process::{Process, output_of};
use crate::support::sql::Sql;
use crate::support::wait::{self, LIMIT};

const START_DEADLINE: Duration = LIMIT;

/// The role that has to show a password; every other one is trusted.
pub(crate) const GUARDED_ROLE: &str = "guarded";

/// The physical slot a standby streams from.
pub(crate) const STANDBY_SLOT: &str = "standby";

/// Servers no test has at the moment.
static FREE: Mutex<Vec<&'static Postgres>> = Mutex::new(Vec::new());

thread_local! {
    static LEASE: OnceCell<Lease> = const { OnceCell::new() };
}

/// A server that is one thread's, and with that one test's, and whether the next test may have it.
struct Lease(&'static Postgres, Cell<bool>);

impl Lease {
    fn take() -> Lease {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let server = free.unwrap_or_else(|| {
            Box::leak(Box::new(match std::env::var("WALRELAY_TEST_DATABASE_URL") {
                Ok(url) => Postgres {
                    major: 0,
                    programs: PathBuf::new(),
                    data: PathBuf::new(),
                    log: PathBuf::new(),
                    url,
                    process: Mutex::new(None),
                },
                Err(_) => Postgres::private(15, &[("max_replication_slots", "60"), ("max_wal_senders", "60")]),
            }))
        });
        Lease(server, Cell::new(true))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.1.get() {
            FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
        }
    }
}

/// A server with its data directory; the process comes and goes.
pub(crate) struct Postgres {
    major: u32,
    programs: PathBuf,
    data: PathBuf,
    log: PathBuf,
    /// A URL of the database `postgres`.
    url: String,
    process: Mutex<Option<Process>>,
}

impl Postgres {
    /// This test's until it ends, and then another's: none stops it. A transaction that stays open holds up the making of
    /// every slot on its server, and what one test writes is decoded by every walsender there. Major 15, or
    /// `WALRELAY_TEST_DATABASE_URL`.
    pub(crate) fn shared() -> &'static Postgres {
        LEASE.with(|lease| lease.get_or_init(Lease::take).0)
    }

    /// No other test gets the server of this one, which failed and left it as it is.
    pub(crate) fn spoil() {
        LEASE.with(|lease| {
            if let Some(lease) = lease.get() {
                lease.1.set(false);
            }
        });
    }

    pub(crate) fn is_shared(&self) -> bool {
        LEASE.with(|lease| lease.get().is_some_and(|lease| std::ptr::eq(lease.0, self)))
    }

    /// One of its own, with `settings` on top of what logical replication needs.
    #[track_caller]
    pub(crate) fn private(major: u32, settings: &[(&str, &str)]) -> Postgres {
        let rules = format!(
            "local all all trust\nlocal replication postgres trust\nhost all {GUARDED_ROLE} 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n\
             host replication postgres 127.0.0.1/32 trust\n"
        );
        Postgres::made(major, settings, &rules, &[])
    }

    /// One of its own that does TLS as `identity` and believes clients whom `root` certified. The role `postgres` is
    /// trusted without it; whom else it lets in is for the `rules` of `pg_hba.conf` to say.
    #[track_caller]
    pub(crate) fn secured(major: u32, identity: &Identity, root: &Path, rules: &str) -> Postgres {
        let files = [("server.crt", &*identity.certificate), ("server.key", &*identity.key), ("root.crt", root)];
        let settings = [("ssl", "on"), ("ssl_ca_file", "root.crt")];
        Postgres::made(major, &settings, &format!("host all postgres 127.0.0.1/32 trust\n{rules}"), &files)
    }

    /// With `files` copied into the data directory.
    #[track_caller]
    fn made(major: u32, settings: &[(&str, &str)], rules: &str, files: &[(&str, &Path)]) -> Postgres {
        let (server, port) = Postgres::unmade(major);
        let mut initdb = unprivileged(&server.programs.join("initdb"));
        initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N", "-D"]).arg(&server.data);
        initdb.current_dir("/");
        let made = output_of(initdb, START_DEADLINE);
        assert!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));

        let sockets = server.data.parent().expect("a directory around the data").display();
        let mut configuration = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{sockets}'\nwal_level = logical\n\
             max_replication_slots = 20\nmax_wal_senders = 20\nmax_connections = 200\nshared_buffers = 64MB\n\
             fsync = off\nfull_page_writes = off\nautovacuum = off\nmax_wal_size = 4GB\nlc_messages = 'C'\n"
        );
        for (name, value) in settings {
            configuration.push_str(&format!("{name} = '{value}'\n"));
        }
        append(&server.data.join("postgresql.conf"), &configuration);
        std::fs::write(server.data.join("pg_hba.conf"), rules).expect("pg_hba.conf");
        for (name, file) in files {
            // With its permissions: Postgres takes no key that others can read.
            std::fs::copy(file, server.data.join(name)).expect("copy a file for a Postgres");
            give(&server.data.join(name));
        }
        server.start();
        server
    }

    /// A streaming standby of `primary`, through a physical slot of its own ([`STANDBY_SLOT`]: one per primary). From
    /// 17 on it keeps copies of the failover slots. As from `pg_basebackup`, which not every build of a server has.
    #[track_caller]
    pub(crate) fn standby_of(primary: &Postgres) -> Postgres {
        let (server, port) = Postgres::unmade(primary.major);
        let sql = primary.sql();
        sql.run(&format!("select pg_create_physical_replication_slot('{STANDBY_SLOT}', true)"));
        sql.run("select pg_backup_start('standby', true)");
        let copied = Command::new("cp").arg("-a").args([&primary.data, &server.data]).status().expect("cp");
        assert!(copied.success(), "the data of the primary could not be copied");
        let label = sql.text("select labelfile from pg_backup_stop(false)");
        std::fs::remove_file(server.data.join("postmaster.pid")).expect("remove postmaster.pid");
        for slot in std::fs::read_dir(server.data.join("pg_replslot")).expect("slots").flatten() {
            std::fs::remove_dir_all(slot.path()).expect("remove a slot");
        }
        for (name, text) in [("backup_label", label.as_str()), ("standby.signal", "")] {
            let path = server.data.join(name);
            std::fs::write(&path, text).expect("write a file of a Postgres");
            give(&path);
        }
        let address = primary.address();
        let (host, primary_port) = address.rsplit_once(':').expect("host and port");
        let mut configuration = format!(
            "port = {port}\nprimary_slot_name = '{STANDBY_SLOT}'\nhot_standby_feedback = on\n\
             primary_conninfo = 'host={host} port={primary_port} user=postgres dbname=postgres'\n"
        );
        if primary.major >= 17 {
            configuration.push_str("sync_replication_slots = on\n");
        }
        append(&server.data.join("postgresql.conf"), &configuration);
        server.start();
        server
    }

    /// A server on a free port, which it gives too, in an empty directory.
    #[track_caller]
    fn unmade(major: u32) -> (Postgres, u16) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let programs = programs(major);
        let base = run_directory().join(format!("postgres-{major}-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&base).expect("directory of a Postgres");
        give(&base);
        let port = free_port();
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable");
        let (data, log) = (base.join("data"), base.join("log"));
        (Postgres { major, programs, data, log, url, process: Mutex::new(None) }, port)
    }

    /// The oldest and the newest major, or with `WALRELAY_TEST_MAJORS=all` every one that `scripts/prerequisites` fetches.
    /// Most tests run on 15.
    pub(crate) fn majors() -> &'static [u32] {
        if std::env::var("WALRELAY_TEST_MAJORS").is_ok_and(|which| which == "all") {
            &[14, 15, 16, 17, 18]
        } else {
            &[14, 18]
        }
    }

    /// The URL of a database on this server.
    pub(crate) fn url(&self, database: &str) -> String {
        with_database(&self.url, database)
    }

    /// The URL of a database on whichever of this server and its standby takes writes.
    pub(crate) fn url_of_either(&self, other: &Postgres, database: &str) -> String {
        let (one, other) = (self.address(), other.address());
        format!("postgres://postgres@{one},{other}/{database}?sslmode=disable&target_session_attrs=read-write")
    }

    /// `postgres://user@host:port` with other credentials and database.
    pub(crate) fn url_as(&self, user_and_password: &str, database: &str) -> String {
        let url = self.url(database);
        match url.split_once('@') {
            Some((_, rest)) => format!("postgres://{user_and_password}@{rest}"),
            None => url,
        }
    }

    /// The URL of a database, reached over the server's Unix socket.
    pub(crate) fn url_by_socket(&self, database: &str) -> String {
        let directory = self.data.parent().expect("a directory around the data").display();
        let address = self.address();
        let (_, port) = address.rsplit_once(':').expect("host and port");
        format!("postgres:///{database}?user=postgres&host={directory}&port={port}")
    }

    /// Host and port, for a proxy in front.
    pub(crate) fn address(&self) -> String {
        let rest = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        let authority = rest.split(['/', '?']).next().unwrap_or(rest);
        authority.rsplit('@').next().unwrap_or(authority).to_owned()
    }

    /// A session in the database `postgres`.
    #[track_caller]
    pub(crate) fn sql(&self) -> Sql {
        Sql::connect(&self.url)
    }

    /// The data directory, for what has to be copied while the server is down.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// A program of this major, such as `pg_recvlogical` where it is there.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Starts it on the data and port it has, and waits until it answers.
    #[track_caller]
    pub(crate) fn start(&self) {
        let started = Instant::now();
        let mut slot = self.process.lock().expect("process");
        assert!(slot.is_none(), "it already runs");
        loop {
            let mut command = unprivileged(&self.programs.join("postgres"));
            command.arg("-D").arg(&self.data).current_dir(&self.data);
            let mut process = Process::start("postgres", command, &self.log);
            let answered = wait::until(START_DEADLINE, || {
                if process.exited().is_some() {
                    return Some(false);
                }
                Sql::try_connect(&self.url).is_ok().then_some(true)
            });
            if answered == Some(true) {
                *slot = Some(process);
                return;
            }
            // After kill -9 the backends of the one before may still be on their way out, holding the shared memory.
            assert!(started.elapsed() < START_DEADLINE, "Postgres did not start:\n{}", process.log_tail(20));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Makes a standby a primary, and waits until it takes writes.
    #[track_caller]
    pub(crate) fn promote(&self) {
        assert_eq!(self.sql().text("select pg_promote(true, 60)"), "true", "it was not promoted");
    }

    /// `alter system`, and waits until new sessions see it. `value` as `show` writes it.
    #[track_caller]
    pub(crate) fn alter(&self, name: &str, value: &str) {
        let sql = self.sql();
        sql.run(&format!("alter system set {name} = '{value}'"));
        sql.run("select pg_reload_conf()");
        let shown = || self.sql().text(&format!("select current_setting('{name}')"));
        wait::eventually("a setting takes effect", START_DEADLINE, shown, |shown| shown == value);
    }

    /// SIGKILL to the postmaster; its backends notice and go.
    pub(crate) fn kill_hard(&self) {
        if let Some(mut process) = self.process.lock().expect("process").take() {
            process.kill_hard();
        }
    }

    /// Begins a fast shutdown (SIGINT) without waiting for its end.
    pub(crate) fn begin_fast_shutdown(&self) {
        if let Some(process) = self.process.lock().expect("process").as_mut() {
            process.signal("INT");
        }
    }

    /// Fast shutdown; gives how long it took, or panics with the log after `deadline`.
    #[track_caller]
    pub(crate) fn stop_fast(&self, deadline: Duration) -> Duration {
        let started = Instant::now();
        self.begin_fast_shutdown();
        if let Some(mut process) = self.process.lock().expect("process").take() {
            process.wait_exit(deadline);
        }
        started.elapsed()
    }
}

fn append(path: &Path, text: &str) {
    let before = std::fs::read_to_string(path).expect("read a file of a Postgres");
    std::fs::write(path, before + text).expect("write a file of a Postgres");
}

/// `url` with another database in its path.
fn with_database(url: &str, database: &str) -> String {
    let (before, query) = url.split_once('?').map_or((url, None), |(before, query)| (before, Some(query)));
    let authority_at = before.find("://").map_or(0, |at| at + 3);
    let end = before.get(authority_at..).and_then(|rest| rest.find('/')).map_or(before.len(), |at| authority_at + at);
    let server = before.get(..end).unwrap_or(before);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{server}/{database}{query}")
}

/// Where the programs of a major were put.
fn found(major: u32) -> Option<PathBuf> {
    let candidates =
        [PathBuf::from(format!("/usr/lib/postgresql/{major}/bin")), directory().join(format!("postgres-{major}/bin"))];
    candidates.into_iter().find(|programs| programs.join("postgres").exists())
}

/// The programs of a major, where the user that runs them can reach them.
#[track_caller]
fn programs(major: u32) -> PathBuf {
    let Some(programs) = found(major) else { missing(&format!("Postgres {major}")) };
    if reachable(&programs) {
        return programs;
    }
    // Somewhere below a home directory that is closed to others: give the server a copy of its own.
    let copy = run_directory().join(format!("postgres-{major}"));
    static COPYING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = COPYING.lock();
    if !copy.exists() {
        let from = programs.parent().unwrap_or(&programs);
        let copied = Command::new("cp").arg("-r").arg(from).arg(&copy).status().expect("cp");
        assert!(copied.success(), "could not copy {}", from.display());
    }
    copy.join("bin")
}

fn reachable(programs: &Path) -> bool {
    let mut version = unprivileged(&programs.join("postgres"));
    version.arg("--version").current_dir("/").output().is_ok_and(|output| output.status.success())
}

/// A command that does not run as root: Postgres refuses to.
fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new(program);
    if let Some(user) = OsUser::instead_of_root().expect("a user to run Postgres") {
        user.run(&mut command);
    }
    // The tests' own connection settings are no business of the server's.
    command.env_remove("PGDATA").env_remove("PGPORT").env_remove("PGHOST");
    command
}

/// Gives a file to the user that runs Postgres.
fn give(path: &Path) {
    if let Some(user) = OsUser::instead_of_root().expect("a user to run Postgres") {
        user.own(path).expect("chown");
    }
}

#[test]
fn the_database_in_a_url_can_be_replaced() {
    for (url, expected) in [
        ("postgres://u@h:1/postgres?sslmode=disable", "postgres://u@h:1/x?sslmode=disable"),
        ("postgres://u:p@h:1/postgres", "postgres://u:p@h:1/x"),
        ("postgres://h", "postgres://h/x"),
        ("postgres://h?a=b", "postgres://h/x?a=b"),
    ] {
        assert_eq!(with_database(url, "x"), expected);
    }
}

#[test]
fn a_postgres_comes_back_with_its_data_after_a_kill_and_after_a_fast_shutdown() {
    let server = Postgres::private(15, &[]);
    server.sql().run("create table kept (n int); insert into kept values (7)");
    server.kill_hard();
    assert!(Sql::try_connect(&server.url("postgres")).is_err());
    server.start();
    assert_eq!(server.sql().number("select n from kept"), 7);
    server.stop_fast(Duration::from_secs(20));
    server.start();
    assert_eq!(server.sql().text("select current_setting('wal_level')"), "logical");
}
