//! One shell beside the test process that outlives it just long enough to clean up.
//!
//! It reads the pids of everything we start from a pipe. When the pipe closes, because the tests ended or were killed
//! with -9, it kills what is left and removes the run's directory. (`PR_SET_PDEATHSIG` would not do: it fires when the
//! *thread* that started a child ends, and tests are threads.)

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock};

const SCRIPT: &str = r#"
trap '' INT TERM HUP
pids=
while read -r verb pid; do
    kept=
    for each in $pids; do [ "$each" = "$pid" ] || kept="$kept $each"; done
    case $verb in
    watch) pids="$kept $pid" ;;
    release) pids=$kept ;;
    esac
done
for each in $pids; do kill -9 "$each" 2>/dev/null; done
[ "$2" = keep ] && exit 0
for attempt in 1 2 3 4 5; do rm -rf "$1" 2>/dev/null && exit 0; sleep 0.5; done
"#;

struct Guardian {
    pipe: Mutex<ChildStdin>,
    directory: PathBuf,
}

fn guardian() -> &'static Guardian {
    static GUARDIAN: OnceLock<Guardian> = OnceLock::new();
    GUARDIAN.get_or_init(|| {
        let directory =
            tempfile::Builder::new().prefix("walrelay-test-").tempdir().expect("a temporary directory").keep();
        // Postgres does not run as root and has to reach its data directory.
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).expect("permissions");
        let keep = if std::env::var_os("WALRELAY_TEST_KEEP").is_some() { "keep" } else { "remove" };
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "guardian"]).arg(&directory).arg(keep);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let pipe = shell.spawn().expect("sh").stdin.take().expect("the pipe to the guardian");
        Guardian { pipe: Mutex::new(pipe), directory }
    })
}

/// The directory of this run: logs and data. Removed at the end unless `WALRELAY_TEST_KEEP` is set.
pub(crate) fn run_directory() -> &'static Path {
    &guardian().directory
}

/// Has `pid` killed when the test process is gone.
pub(crate) fn watch(pid: u32) {
    tell("watch", pid);
}

/// `pid` has ended and been waited for: its number may mean another process from now on.
pub(crate) fn release(pid: u32) {
    tell("release", pid);
}

fn tell(verb: &str, pid: u32) {
    let mut pipe = guardian().pipe.lock().expect("the pipe to the guardian");
    writeln!(pipe, "{verb} {pid}").expect("the guardian has died");
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
