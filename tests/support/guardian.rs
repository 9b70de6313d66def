//! The guardian of this test process, and the directory of the run.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use walrelay_lab::process::Guardian;

struct Run {
    guardian: Mutex<Guardian>,
    directory: PathBuf,
}

fn run() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| {
        let directory = tempfile::Builder::new()
            .prefix("walrelay-test-")
            .tempdir()
            .expect("a temporary directory")
            .keep();
        // Postgres does not run as root and has to reach its data directory.
        std::fs::set_permissions(&directory, Permissions::from_mode(0o755)).expect("permissions");
        let removed = std::env::var_os("WALRELAY_TEST_KEEP")
            .is_none()
            .then_some(&*directory);
        let guardian = Guardian::start(removed).expect("sh");
        Run {
            guardian: Mutex::new(guardian),
            directory,
        }
    })
}

/// The directory of this run, for logs and data. Removed at the end unless `WALRELAY_TEST_KEEP` is
/// set.
pub(crate) fn run_directory() -> &'static Path {
    &run().directory
}

/// Has `pid` stopped after the end of the test process.
pub(crate) fn watch(pid: u32) {
    run()
        .guardian
        .lock()
        .expect("the guardian")
        .watch(pid)
        .expect("the guardian has died");
}

/// Ends the watch after `pid` has been reaped: from now on another process may have its number.
pub(crate) fn release(pid: u32) {
    run()
        .guardian
        .lock()
        .expect("the guardian")
        .release(pid)
        .expect("the guardian has died");
}
