//! A child process: its log, its signals, its end.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use walrelay_lab::process::{memory_bytes, send_signal};

use super::{guardian, wait};

/// A running child with its output in a file. Dropping it kills it with SIGKILL.
pub(crate) struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with both outputs appended to `log`.
    pub(crate) fn start(name: &str, mut command: Command, log: &Path) -> Process {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .expect("log file");
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("log file"))
            .stderr(output);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{name} did not start: {error}"));
        guardian::watch(child.id());
        Process {
            child,
            name: name.to_owned(),
            log: log.to_owned(),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        text_of(&self.log)
    }

    /// The last lines of its output, for a failure message.
    pub(crate) fn log_tail(&self, lines: usize) -> String {
        tail_of(&self.log, lines)
    }

    /// Sends a signal by name: `TERM`, `INT`, `STOP`, `CONT`. Does nothing if the child has ended.
    pub(crate) fn signal(&mut self, name: &str) {
        if self.exited().is_none() {
            signal(self.pid(), name);
        }
    }

    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("wait for a child")
    }

    /// Waits for its end; panics at the caller after `deadline`.
    #[track_caller]
    pub(crate) fn wait_exit(&mut self, deadline: Duration) -> ExitStatus {
        let caller = Location::caller();
        match wait::until(deadline, || self.exited()) {
            Some(status) => status,
            None => panic!(
                "{caller}: {} still runs after {deadline:?}; its log:\n{}",
                self.name,
                self.log_tail(40)
            ),
        }
    }

    /// Sends SIGKILL and reaps the child.
    pub(crate) fn kill_hard(&mut self) {
        self.child.kill().expect("kill a child");
        self.child.wait().expect("wait for a child");
    }

    /// Sends SIGKILL to the process group that it leads, and reaps it.
    pub(crate) fn kill_group(&mut self) {
        let mut kill = Command::new("sh");
        kill.args(["-c", "kill -s KILL -- -$1", "kill"])
            .arg(self.pid().to_string());
        assert!(
            kill.status().expect("sh").success(),
            "{} leads no group",
            self.name
        );
        self.child.wait().expect("wait for a child");
    }

    /// The highest resident memory so far, in bytes; `None` after its end.
    pub(crate) fn resident_peak_bytes(&self) -> Option<u64> {
        self.memory_bytes("VmHWM:")
    }

    /// A size in `/proc/PID/status`, such as `VmRSS:`, in bytes.
    pub(crate) fn memory_bytes(&self, field: &str) -> Option<u64> {
        memory_bytes(self.pid(), field)
    }

    /// User and system time so far, in milliseconds (clock ticks of 10 ms); `None` after its end.
    pub(crate) fn cpu_ms(&self) -> Option<u64> {
        cpu_ms_of(self.pid())
    }
}

/// What a log has so far.
pub(crate) fn text_of(log: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned()
}

/// Its last lines.
pub(crate) fn tail_of(log: &Path, lines: usize) -> String {
    let text = text_of(log);
    let skipped = text.lines().count().saturating_sub(lines);
    text.lines().skip(skipped).collect::<Vec<_>>().join("\n")
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ended = self.child.kill().and_then(|()| self.child.wait());
        }
        guardian::release(self.child.id());
    }
}

/// The time limit for a command that ends by itself. `rabbitmqctl` computes for two seconds, and
/// each of ten at once on a busy machine for a minute.
pub(crate) const COMMAND_DEADLINE: Duration = Duration::from_secs(300);

/// Runs a command to its end and returns its output. Panics with the output so far after
/// `deadline`.
#[track_caller]
pub(crate) fn output_of(command: Command, deadline: Duration) -> Output {
    output_to(command, Stdio::piped(), deadline)
}

/// The same with a closed pipe as standard output.
#[track_caller]
pub(crate) fn unread_output_of(command: Command, deadline: Duration) -> Output {
    let (_, unread) = std::io::pipe().expect("a pipe");
    output_to(command, unread.into(), deadline)
}

/// The same at a terminal, where somebody types `answer`. Standard error is all that the terminal
/// shows.
#[track_caller]
pub(crate) fn output_at_terminal(mut command: Command, answer: &str, deadline: Duration) -> Output {
    let terminal =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&terminal)
        .and_then(|()| unlockpt(&terminal))
        .expect("a terminal");
    let name = ptsname(&terminal, Vec::new()).expect("a terminal");
    let mut options = File::options();
    options
        .read(true)
        .write(true)
        .custom_flags(OFlags::NOCTTY.bits().cast_signed());
    let side = options
        .open(OsStr::from_bytes(name.to_bytes()))
        .expect("a terminal");
    let size = Winsize {
        ws_row: 24,
        ws_col: 120,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&side, size).expect("a terminal");
    let mut terminal = File::from(terminal);
    writeln!(terminal, "{answer}").expect("a terminal");
    command
        .env("TERM", "xterm")
        .stdin(side.try_clone().expect("a terminal"))
        .stdout(Stdio::piped())
        .stderr(side);
    let mut child = started(&mut command);
    // Its side of the terminal is open here, too, as long as there is the command.
    let program = command.get_program().to_owned();
    drop(command);
    let out = all_of(child.stdout.take());
    let err = all_shown(terminal);
    ended(child, &program, deadline, out, err)
}

#[track_caller]
fn output_to(mut command: Command, stdout: Stdio, deadline: Duration) -> Output {
    let program = command.get_program().to_owned();
    let mut child = started(
        command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(Stdio::piped()),
    );
    let out = all_of(child.stdout.take());
    let err = all_of(child.stderr.take());
    ended(child, &program, deadline, out, err)
}

#[track_caller]
fn started(command: &mut Command) -> Child {
    let started = command.spawn();
    let child = started.unwrap_or_else(|error| {
        panic!("{} did not start: {error}", command.get_program().display())
    });
    guardian::watch(child.id());
    child
}

#[track_caller]
fn ended(
    mut child: Child,
    program: &OsStr,
    deadline: Duration,
    out: JoinHandle<Vec<u8>>,
    err: JoinHandle<Vec<u8>>,
) -> Output {
    let caller = Location::caller();
    let ended = wait::until(deadline, || child.try_wait().expect("wait for a child"));
    let status = ended.unwrap_or_else(|| {
        child.kill().expect("kill a child");
        child.wait().expect("wait for a child")
    });
    guardian::release(child.id());
    let output = Output {
        status,
        stdout: out.join().expect("its output"),
        stderr: err.join().expect("its output"),
    };
    if ended.is_none() {
        let said = String::from_utf8_lossy(&output.stderr);
        panic!(
            "{caller}: {} did not end within {deadline:?}; it said:\n{said}",
            program.display()
        );
    }
    output
}

/// The same for a terminal: reading fails when nobody has its other side.
fn all_shown(mut terminal: File) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        // What was read before the failure is in `all`.
        drop(terminal.read_to_end(&mut all));
        all
    })
}

/// Reads to the end, in a thread of its own.
fn all_of(from: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        from.map(|mut from| from.read_to_end(&mut all))
            .transpose()
            .expect("its output");
        all
    })
}

/// User and system time of a process so far, in milliseconds (clock ticks of 10 ms); `None` after
/// its end.
pub(crate) fn cpu_ms_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some((fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?) * 10)
}

/// Sends a signal by name to a process of the tests that is not a child, such as a walsender.
pub(crate) fn signal(pid: u32, name: &str) {
    send_signal(pid, name).expect("a signal");
}
