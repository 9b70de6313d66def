//! Ends the run if a test does not end: names the test, and the system call of each thread of the
//! process.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Longer than the slowest test, on two cores that others use as well.
const LIMIT: Duration = Duration::from_secs(1500);

const EVERY: Duration = Duration::from_secs(5);

type Running = Mutex<Vec<(u64, Thread, Instant)>>;

/// Counts the test of the current thread as running, until it is dropped.
pub(crate) struct Watched(u64);

impl Watched {
    pub(crate) fn new() -> Watched {
        let mut running = running().lock().expect("the running tests");
        let number = running.last().map_or(0, |(last, ..)| last + 1);
        running.push((number, std::thread::current(), Instant::now()));
        Watched(number)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Ok(mut running) = running().lock()
            && let Some(at) = running.iter().position(|(number, ..)| *number == self.0)
        {
            let (_, thread, since) = running.remove(at);
            // Worlds of a test at the same time count once.
            match running
                .iter_mut()
                .find(|(_, other, _)| other.id() == thread.id())
            {
                Some((.., other)) => *other = since.min(*other),
                None => note(thread.name().unwrap_or_default(), since.elapsed()),
            }
        }
    }
}

/// Appends seconds and name to the file `WALRELAY_TEST_TIMES`, for the list of the slowest.
fn note(test: &str, took: Duration) {
    let Some(path) = std::env::var_os("WALRELAY_TEST_TIMES") else {
        return;
    };
    let noted = File::options().create(true).append(true).open(path);
    let _told = noted.and_then(|mut file| {
        file.write_all(format!("{:.1} {test}\n", took.as_secs_f64()).as_bytes())
    });
}

fn running() -> &'static Running {
    static RUNNING: OnceLock<Running> = OnceLock::new();
    RUNNING.get_or_init(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(EVERY);
                let running = running().lock().expect("the running tests");
                let hung = running.iter().filter(|(.., since)| since.elapsed() > LIMIT);
                let names: Vec<&str> = hung.filter_map(|(_, thread, _)| thread.name()).collect();
                if !names.is_empty() {
                    eprintln!(
                        "\nno end within {LIMIT:?}: {}\n{}",
                        names.join(", "),
                        threads(Path::new("/proc/self/task"))
                    );
                    std::process::exit(101);
                }
            }
        });
        Running::default()
    })
}

/// A line for each thread: its name and its system call.
fn threads(tasks: &Path) -> String {
    let Ok(tasks) = std::fs::read_dir(tasks) else {
        return String::new();
    };
    let word = |path: &Path, file: &str| {
        std::fs::read_to_string(path.join(file))
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let line = |path: &Path| {
        format!(
            "  {:16} {} {}\n",
            word(path, "comm"),
            word(path, "wchan"),
            word(path, "syscall")
        )
    };
    tasks.flatten().map(|task| line(&task.path())).collect()
}

#[test]
fn threads_are_told_by_name() {
    let told = std::thread::Builder::new()
        .name("named-for-this".to_owned())
        .spawn(|| threads(Path::new("/proc/self/task")));
    assert!(
        told.expect("a thread")
            .join()
            .expect("its end")
            .contains("  named-for-this ")
    );
}
