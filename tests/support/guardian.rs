//! The guardian of this test process, and the directory of the run.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

use walrelay::demo::process::Guardian;

struct Run {
    guardian: Mutex<Guardian>,
    directory: PathBuf,
}

fn run() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| {
        let directory =
            tempfile::Builder::new().prefix("walrelay-test-").tempdir().expect("a temporary directory").keep();
        // Postgres does not run as root and has to reach its data directory.
        std::fs::set_permissions(&directory, Permissions::from_mode(0o755)).expect("permissions");
        let removed = std::env::var_os("WALRELAY_TEST_KEEP").is_none().then_some(&*directory);
        let guardian = Guardian::start(removed).expect("sh");
        Run { guardian: Mutex::new(guardian), directory }
    })
}

/// The directory of this run, for logs and data. Removed at the end unless `WALRELAY_TEST_KEEP` is set.
pub(crate) fn run_directory() -> &'static Path {
    &run().directory
}

/// Has `pid` stopped after the end of the test process.
pub(crate) fn watch(pid: u32) {
    run().guardian.lock().expect("the guardian").watch(pid).expect("the guardian has died");
}

/// Ends the watch after `pid` has been reaped: from now on another process may have its number.
pub(crate) fn release(pid: u32) {
    run().guardian.lock().expect("the guardian").release(pid).expect("the guardian has died");
}

#[test]
fn what_was_started_ends_with_the_tests_even_when_they_are_killed() {
    use std::io::{BufRead, BufReader};
    use std::time::Duration;

    use crate::support::wait::eventually;

    let mut other = Command::new(std::env::current_exe().expect("this test binary"));
    other.args(["--ignored", "--exact", "--nocapture", "support::guardian::starts_a_server_and_waits"]);
    other.env_remove("WALRELAY_TEST_KEEP");
    let mut other = other.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("another run of the tests");
    let said = BufReader::new(other.stdout.take().expect("its output")).lines();
    let lines = said.map_while(Result::ok).filter_map(|line| line.split_once("started in ").map(|(_, d)| d.to_owned()));
    let directory = PathBuf::from(lines.take(1).next().expect("it says where it started"));
    let pid_file = directory.join("postgres-15-0/data/postmaster.pid");
    let text = std::fs::read_to_string(&pid_file).expect("postmaster.pid");
    let process = PathBuf::from("/proc").join(text.lines().next().expect("a pid"));
    assert!(process.exists());

    other.kill().expect("kill");
    other.wait().expect("wait");
    eventually("server gone", Duration::from_secs(10), || process.exists(), |there| !there);
    eventually("directory gone", Duration::from_secs(10), || directory.exists(), |there| !there);
}

#[test]
#[ignore = "the other half of what_was_started_ends_with_the_tests_even_when_they_are_killed"]
fn starts_a_server_and_waits() {
    let _server = super::servers::Postgres::private(15, &[]);
    println!("\nstarted in {}", run_directory().display());
    std::thread::sleep(std::time::Duration::from_secs(60));
}
