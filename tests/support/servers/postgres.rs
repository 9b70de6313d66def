//! A real Postgres.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use walrelay_lab::postgres::{OsUser, PrivatePostgres, Settings};

use super::{directory, logs_to, missing};
use crate::support::certificates::Identity;
use crate::support::guardian::run_directory;
use crate::support::sql::Sql;
use crate::support::wait::{self, LIMIT};

/// Settings in addition to those of every private Postgres.
const CONFIGURATION: &str = "max_connections = 200\nautovacuum = off\nmax_wal_size = 4GB\n";

/// The role that needs a password; every other role is trusted.
pub(crate) const GUARDED_ROLE: &str = "guarded";

pub(crate) const STANDBY_SLOT: &str = "standby";

/// Servers that no test uses at present.
static FREE: Mutex<Vec<&'static Postgres>> = Mutex::new(Vec::new());

thread_local! {
    static LEASE: OnceCell<Lease> = const { OnceCell::new() };
    /// The number of servers that the test of this thread has of its own.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// A server for one thread, which runs one test; and whether later tests may use the server.
struct Lease(&'static Postgres, Cell<bool>);

impl Lease {
    fn take() -> Lease {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let server = free.unwrap_or_else(|| {
            Box::leak(Box::new(
                match std::env::var("WALRELAY_TEST_DATABASE_URL") {
                    Ok(url) => Postgres {
                        url,
                        data: PathBuf::new(),
                        server: None,
                    },
                    Err(_) => Postgres::trusting(
                        0,
                        Postgres::unmade(programs(15)),
                        &[("max_replication_slots", "60"), ("max_wal_senders", "60")],
                    ),
                },
            ))
        });
        Lease(server, Cell::new(true))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.1.get() {
            FREE.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(self.0);
        }
    }
}

/// A server with its data directory. The process can stop and start again.
pub(crate) struct Postgres {
    url: String,
    data: PathBuf,
    /// `None` where `WALRELAY_TEST_DATABASE_URL` names the server.
    server: Option<Mutex<PrivatePostgres>>,
}

impl Postgres {
    /// A server for this test, and for another test after its end: no test stops it. Tests do not
    /// share a server, because an open transaction delays the creation of every slot, and every
    /// walsender decodes the writes of all tests. Major 15, or `WALRELAY_TEST_DATABASE_URL`.
    pub(crate) fn shared() -> &'static Postgres {
        LEASE.with(|lease| lease.get_or_init(Lease::take).0)
    }

    /// Keeps the server of a failed test as it is: no other test gets it.
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

    /// A server of the test's own, on which a commit waits for a standby that does not come where its
    /// session sets `synchronous_commit` to on.
    #[track_caller]
    pub(crate) fn without_its_standby(major: u32) -> Postgres {
        let waits = [
            ("synchronous_standby_names", "nobody"),
            ("synchronous_commit", "local"),
        ];
        Postgres::private(major, &waits)
    }

    /// A server of the test's own, with `settings` in addition to those for logical replication.
    #[track_caller]
    pub(crate) fn private(major: u32, settings: &[(&str, &str)]) -> Postgres {
        Postgres::trusting(next_own(), Postgres::unmade(programs(major)), settings)
    }

    /// A server whose transaction ids have wrapped three times, and do again after `left` more. None
    /// where the build has no `pg_resetwal`.
    #[track_caller]
    pub(crate) fn before_wraparound(left: u32) -> Option<Postgres> {
        let postgres = Postgres::private(15, &[]);
        let reset = postgres.program("pg_resetwal");
        if !reset.exists() {
            eprintln!("SKIPPED: there is no {}", reset.display());
            return None;
        }
        // What is not frozen would be in the future.
        for database in ["postgres", "template1"] {
            Sql::connect(&postgres.url(database)).run("vacuum freeze");
        }
        postgres.sql().run("checkpoint");
        postgres.stop_fast(LIMIT);
        let next = u32::MAX - (left - 1);
        // The status of the transactions around the next one: a file for a million of them.
        let status = format!("pg_xact/{:04X}", next >> 20);
        let status = postgres.data().join(status);
        std::fs::write(&status, vec![0; 32 * 8192]).expect("a file of transaction states");
        let owner = std::fs::metadata(postgres.data()).expect("the data directory");
        chown(&status, Some(owner.uid()), None).expect("chown");
        let done = Command::new(&reset)
            .args(["-e", "3", "-x", &next.to_string(), "-D"])
            .arg(postgres.data())
            .uid(owner.uid())
            .current_dir("/")
            .output()
            .expect("pg_resetwal");
        assert!(done.status.success(), "pg_resetwal failed: {done:?}");
        postgres.start();
        Some(postgres)
    }

    /// The same with a clock that is off by `offset`, such as `+1h`, through libfaketime.
    #[track_caller]
    pub(crate) fn with_clock(major: u32, offset: &str) -> Postgres {
        let server = Postgres::unmade(with_clock(&programs(major), offset));
        Postgres::trusting(next_own(), server, &[])
    }

    #[track_caller]
    fn trusting(number: usize, server: PrivatePostgres, settings: &[(&str, &str)]) -> Postgres {
        let rules = format!(
            "local all all trust\nlocal replication postgres trust\nhost all {GUARDED_ROLE} \
             127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n\
             host replication postgres 127.0.0.1/32 trust\n"
        );
        Postgres::made(number, server, settings, &rules, &[])
    }

    /// A server of the test's own with TLS as `identity`, which accepts client certificates of
    /// `root`. The role `postgres` is trusted without one; the `rules` of `pg_hba.conf` apply to
    /// all other roles.
    #[track_caller]
    pub(crate) fn secured(major: u32, identity: &Identity, root: &Path, rules: &str) -> Postgres {
        let files = [
            ("server.crt", &*identity.certificate),
            ("server.key", &*identity.key),
            ("root.crt", root),
        ];
        let settings = [("ssl", "on"), ("ssl_ca_file", "root.crt")];
        Postgres::made(
            next_own(),
            Postgres::unmade(programs(major)),
            &settings,
            &format!("host all postgres 127.0.0.1/32 trust\n{rules}"),
            &files,
        )
    }

    /// Creates the data and starts the server, with `files` copied into the data directory.
    #[track_caller]
    fn made(
        number: usize,
        server: PrivatePostgres,
        settings: &[(&str, &str)],
        rules: &str,
        files: &[(&str, &Path)],
    ) -> Postgres {
        let data = server.data_dir();
        copy(&initialised(server.major(), number), &data);
        server
            .configure(&configuration(settings))
            .expect("postgresql.conf");
        std::fs::write(data.join("pg_hba.conf"), rules).expect("pg_hba.conf");
        for (name, file) in files {
            // The copy keeps the permissions: Postgres refuses a key that others can read.
            std::fs::copy(file, data.join(name)).expect("copy a file for a Postgres");
            server.give(&data.join(name)).expect("chown");
        }
        Postgres::started(server)
    }

    /// A streaming standby of `primary`, through a physical slot of its own ([`STANDBY_SLOT`]: one
    /// per primary). From 17 on it synchronizes the failover slots. It copies the data as
    /// `pg_basebackup` does, which some builds lack.
    #[track_caller]
    pub(crate) fn standby_of(primary: &Postgres) -> Postgres {
        let major = primary.server().major();
        let server = Postgres::unmade(programs(major));
        let data = server.data_dir();
        let sql = primary.sql();
        sql.run(&format!(
            "select pg_create_physical_replication_slot('{STANDBY_SLOT}', true)"
        ));
        sql.run("select pg_backup_start('standby', true)");
        copy(&primary.data, &data);
        let label = sql.text("select labelfile from pg_backup_stop(false)");
        std::fs::remove_file(data.join("postmaster.pid")).expect("remove postmaster.pid");
        for slot in std::fs::read_dir(data.join("pg_replslot"))
            .expect("slots")
            .flatten()
        {
            std::fs::remove_dir_all(slot.path()).expect("remove a slot");
        }
        for (name, text) in [("backup_label", label.as_str()), ("standby.signal", "")] {
            let path = data.join(name);
            std::fs::write(&path, text).expect("write a file of a Postgres");
            server.give(&path).expect("chown");
        }
        let address = primary.address();
        let (host, port) = address.rsplit_once(':').expect("host and port");
        let sync = if major >= 17 {
            "sync_replication_slots = on\n"
        } else {
            ""
        };
        let lines = format!(
            "primary_slot_name = '{STANDBY_SLOT}'\nhot_standby_feedback = on\n{sync}\
             primary_conninfo = 'host={host} port={port} user=postgres dbname=postgres'\n"
        );
        server.configure(&lines).expect("postgresql.conf");
        Postgres::started(server)
    }

    /// Starts a primary that was stopped as a standby of `primary`, which was its standby. It keeps
    /// its slots.
    #[track_caller]
    pub(crate) fn rejoin(&self, primary: &Postgres) {
        primary.sql().run(&format!(
            "select pg_create_physical_replication_slot('{STANDBY_SLOT}', true)"
        ));
        let signal = self.data.join("standby.signal");
        std::fs::write(&signal, "").expect("standby.signal");
        self.server().give(&signal).expect("chown");
        let address = primary.address();
        let (host, port) = address.rsplit_once(':').expect("host and port");
        let lines = format!(
            "primary_slot_name = '{STANDBY_SLOT}'\nhot_standby_feedback = \
             on\nsync_replication_slots = on\n\
             primary_conninfo = 'host={host} port={port} user=postgres dbname=postgres'\n"
        );
        let path = self.data.join("postgresql.auto.conf");
        let before = std::fs::read_to_string(&path).expect("postgresql.auto.conf");
        std::fs::write(&path, before + &lines).expect("postgresql.auto.conf");
        self.start();
    }

    /// A server of these programs without data, in a directory of this run.
    #[track_caller]
    fn unmade(programs: PathBuf) -> PrivatePostgres {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let dir = run_directory().join(format!(
            "postgres-server-{}",
            COUNT.fetch_add(1, Ordering::Relaxed)
        ));
        std::fs::create_dir(&dir).expect("directory of a Postgres");
        let settings = Settings {
            bin: Some(programs),
            dir: Some(dir),
            configuration: String::new(),
        };
        PrivatePostgres::new(settings).expect("a private Postgres")
    }

    #[track_caller]
    fn started(mut server: PrivatePostgres) -> Postgres {
        server.launch().expect("Postgres starts");
        let url = format!(
            "postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable",
            server.port()
        );
        logs_to(
            &format!("127.0.0.1:{}", server.port()),
            &server.data_dir().with_file_name("postgres.log"),
        );
        Postgres {
            url,
            data: server.data_dir(),
            server: Some(Mutex::new(server)),
        }
    }

    /// The oldest and the newest major, or all with `WALRELAY_TEST_MAJORS=all`. Most tests run on
    /// 15.
    pub(crate) fn majors() -> &'static [u32] {
        if std::env::var("WALRELAY_TEST_MAJORS").is_ok_and(|which| which == "all") {
            &[14, 15, 16, 17, 18]
        } else {
            &[14, 18]
        }
    }

    pub(crate) fn url(&self, database: &str) -> String {
        with_database(&self.url, database)
    }

    /// The URL of a database that leads to this server or `other`, whichever accepts writes.
    pub(crate) fn url_of_either(&self, other: &Postgres, database: &str) -> String {
        let one = self.address();
        let other = other.address();
        format!(
            "postgres://postgres@{one},{other}/{database}?sslmode=disable&\
             target_session_attrs=read-write"
        )
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
        let directory = self
            .data
            .parent()
            .expect("a directory around the data")
            .display();
        let address = self.address();
        let (_, port) = address.rsplit_once(':').expect("host and port");
        format!("postgres:///{database}?user=postgres&host={directory}&port={port}")
    }

    /// Host and port, for a proxy.
    pub(crate) fn address(&self) -> String {
        let rest = self
            .url
            .split_once("://")
            .map_or(self.url.as_str(), |(_, rest)| rest);
        let authority = rest.split(['/', '?']).next().unwrap_or(rest);
        authority.rsplit('@').next().unwrap_or(authority).to_owned()
    }

    #[track_caller]
    pub(crate) fn sql(&self) -> Sql {
        Sql::connect(&self.url)
    }

    /// The data directory, for copies while the server is down.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// A program of this major, such as `pg_recvlogical`, if the build has it.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.server().program(name)
    }

    fn server(&self) -> MutexGuard<'_, PrivatePostgres> {
        self.server
            .as_ref()
            .expect("a server of this run")
            .lock()
            .expect("the server")
    }

    /// Starts it with its data directory and port, and waits until it answers.
    #[track_caller]
    pub(crate) fn start(&self) {
        self.server().launch().expect("Postgres starts");
    }

    #[track_caller]
    pub(crate) fn promote(&self) {
        assert_eq!(
            self.sql().text("select pg_promote(true, 60)"),
            "true",
            "it was not promoted"
        );
    }

    /// Runs `alter system`, and waits until new sessions have the setting. `value` has the form of
    /// `show`.
    #[track_caller]
    pub(crate) fn alter(&self, name: &str, value: &str) {
        let sql = self.sql();
        sql.run(&format!("alter system set {name} = '{value}'"));
        sql.run("select pg_reload_conf()");
        let shown = || {
            self.sql()
                .text(&format!("select current_setting('{name}')"))
        };
        wait::eventually("a setting takes effect", LIMIT, shown, |shown| {
            shown == value
        });
    }

    /// Sends SIGKILL to the postmaster; its backends then end.
    pub(crate) fn kill_hard(&self) {
        self.server().kill().expect("Postgres is killed");
    }

    /// Stops it with a fast shutdown and returns the time it took; panics with the end of the log
    /// after `deadline`.
    #[track_caller]
    pub(crate) fn stop_fast(&self, deadline: Duration) -> Duration {
        let started = Instant::now();
        self.server().stop_fast(deadline).expect("Postgres stops");
        started.elapsed()
    }
}

/// The number of the next server of this test's own. 0 is that of the shared ones.
fn next_own() -> usize {
    OWN.set(OWN.get() + 1);
    OWN.get()
}

/// A data directory of this major, fresh from `initdb`, which computes for a second. Servers are
/// copies of it, with its system identifier. Those of one test have different numbers, and so
/// different identifiers.
#[track_caller]
fn initialised(major: u32, number: usize) -> PathBuf {
    static MADE: Mutex<BTreeMap<(u32, usize), PathBuf>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || {
        let server = Postgres::unmade(programs(major));
        server.initdb().expect("initdb");
        server.data_dir()
    };
    made.entry((major, number)).or_insert_with(make).clone()
}

/// Copies a data directory, with the owner of its files.
#[track_caller]
fn copy(data: &Path, to: &Path) {
    let copied = Command::new("cp")
        .arg("-a")
        .args([data, to])
        .status()
        .expect("cp");
    assert!(copied.success(), "could not copy {}", data.display());
}

fn configuration(settings: &[(&str, &str)]) -> String {
    let settings = settings
        .iter()
        .map(|(name, value)| format!("{name} = '{value}'\n"));
    settings.fold(CONFIGURATION.to_owned(), |text, line| text + &line)
}

/// These programs, of which the server has a clock that is off by `offset`.
#[track_caller]
fn with_clock(programs: &Path, offset: &str) -> PathBuf {
    let libraries = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
    ];
    let libraries = libraries.map(|folder| format!("{folder}/faketime/libfaketime.so.1"));
    let library = libraries
        .iter()
        .find(|path| Path::new(path).exists())
        .expect("install libfaketime");
    let shifted = run_directory().join(format!("postgres-at{offset}"));
    std::fs::create_dir(&shifted).expect("a folder for programs");
    std::os::unix::fs::symlink(programs.join("initdb"), shifted.join("initdb")).expect("initdb");
    let server = shifted.join("postgres");
    let program = programs.join("postgres");
    // A program that is being written cannot be run, and a process that another thread starts
    // meanwhile has the file open.
    let script = format!(
        "printf '%s\\n' '#!/bin/sh' 'export LD_PRELOAD={library} FAKETIME={offset} \
         FAKETIME_DONT_FAKE_MONOTONIC=1' \
         'exec {} \"$@\"' >{server} && chmod 755 {server}",
        program.display(),
        server = server.display()
    );
    assert!(
        Command::new("sh")
            .args(["-c", &script])
            .status()
            .expect("sh")
            .success(),
        "no {}",
        server.display()
    );
    shifted
}

fn with_database(url: &str, database: &str) -> String {
    let (before, query) = url
        .split_once('?')
        .map_or((url, None), |(before, query)| (before, Some(query)));
    let authority_at = before.find("://").map_or(0, |at| at + 3);
    let end = before
        .get(authority_at..)
        .and_then(|rest| rest.find('/'))
        .map_or(before.len(), |at| authority_at + at);
    let server = before.get(..end).unwrap_or(before);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{server}/{database}{query}")
}

fn found(major: u32) -> Option<PathBuf> {
    let candidates = [
        PathBuf::from(format!("/usr/lib/postgresql/{major}/bin")),
        directory().join(format!("postgres-{major}/bin")),
    ];
    candidates
        .into_iter()
        .find(|programs| programs.join("postgres").exists())
}

/// The programs of a major, in a directory that the user of the server can read.
#[track_caller]
fn programs(major: u32) -> PathBuf {
    let Some(programs) = found(major) else {
        missing(&format!("Postgres {major}"))
    };
    if reachable(&programs) {
        return programs;
    }
    // A home directory may be closed to other users: copy the programs for the server.
    let copy = run_directory().join(format!("postgres-{major}"));
    static COPYING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = COPYING.lock();
    if !copy.exists() {
        let from = programs.parent().unwrap_or(&programs);
        let copied = Command::new("cp")
            .arg("-r")
            .arg(from)
            .arg(&copy)
            .status()
            .expect("cp");
        assert!(copied.success(), "could not copy {}", from.display());
    }
    copy.join("bin")
}

/// Whether the user that runs Postgres can run these programs. Postgres refuses to run as root.
fn reachable(programs: &Path) -> bool {
    let mut version = Command::new(programs.join("postgres"));
    if let Some(user) = OsUser::instead_of_root().expect("a user to run Postgres") {
        user.run(&mut version);
    }
    version
        .arg("--version")
        .current_dir("/")
        .output()
        .is_ok_and(|output| output.status.success())
}

#[test]
fn the_database_in_a_url_can_be_replaced() {
    for (url, expected) in [
        (
            "postgres://u@h:1/postgres?sslmode=disable",
            "postgres://u@h:1/x?sslmode=disable",
        ),
        ("postgres://u:p@h:1/postgres", "postgres://u:p@h:1/x"),
        ("postgres://h", "postgres://h/x"),
        ("postgres://h?a=b", "postgres://h/x?a=b"),
    ] {
        assert_eq!(with_database(url, "x"), expected);
    }
}
