//! Processes that this one starts: their guardian, signals, memory, and ports.
//!
//! The guardian is a shell that outlives this process, to stop what this process started and to
//! remove its directory. The shell reads process ids from a pipe. The kernel closes our end of the
//! pipe however we end, also after `kill -9`. `PR_SET_PDEATHSIG` would not do: that signal is sent
//! when the *thread* that started a child ends.

use std::fs;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// `QUIT` lets Postgres give its shared memory back. All processes together have five seconds until
/// they are killed. A server with a guardian of its own may still write into the directory, so its
/// removal is tried for five seconds too.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
pids=
while read -r verb pid; do
  kept=
  for each in $pids; do [ "$each" = "$pid" ] || kept="$kept $each"; done
  case $verb in
  watch) pids="$kept $pid" ;;
  release) pids=$kept ;;
  esac
done
for each in $pids; do kill -s QUIT "$each"; done
tries=0
for each in $pids; do
  while kill -0 "$each" && [ "$tries" -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
  kill -s KILL "$each"
done
[ -n "$1" ] || exit 0
for attempt in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$1" && exit 0; sleep 0.5; done
"#;

/// The guardian of any number of processes and of at most one directory.
#[derive(Debug)]
pub struct Guardian {
    shell: Child,
    /// `None` once the shell is to clean up.
    pipe: Option<ChildStdin>,
}

impl Guardian {
    /// Starts the shell. When this value is dropped or this process ends, the shell stops the
    /// processes and removes `directory`, where one is given.
    pub fn start(directory: Option<&Path>) -> io::Result<Self> {
        let mut command = Command::new("sh");
        command
            .args(["-c", SCRIPT, "walrelay-guardian"])
            .args(directory);
        // A process group of its own: the signals of a terminal do not reach the shell.
        command.current_dir("/").process_group(0);
        let mut shell = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let pipe = shell.stdin.take();
        Ok(Guardian { shell, pipe })
    }

    /// Has the process stopped at the end.
    pub fn watch(&mut self, pid: u32) -> io::Result<()> {
        self.tell("watch", pid)
    }

    /// Forgets the process, which has ended and been waited for: its id may belong to another
    /// process from now on.
    pub fn release(&mut self, pid: u32) -> io::Result<()> {
        self.tell("release", pid)
    }

    fn tell(&mut self, verb: &str, pid: u32) -> io::Result<()> {
        match &mut self.pipe {
            Some(pipe) => pipe.write_all(format!("{verb} {pid}\n").as_bytes()),
            None => Ok(()),
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.pipe.take());
        drop(self.shell.wait());
    }
}

/// Sends a signal by its name, such as `INT`: the standard library can only kill.
pub fn send_signal(pid: u32, signal: &str) -> io::Result<()> {
    let mut command = Command::new("sh");
    command
        .args(["-c", r#"kill -s "$1" "$2""#, "kill", signal])
        .arg(pid.to_string());
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "SIG{signal} could not be sent to {pid}"
        )))
    }
}

/// A size that the kernel tells in `/proc/PID/status`, such as `VmHWM:` (the peak of resident
/// memory), in bytes.
pub fn memory_bytes(pid: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// The lowest port of [`free_port`].
const LOWEST_PORT: u16 = 10_000;

/// A loopback port without a listener. It is below the kernel's range for outgoing connections, and
/// no call returns it twice: nothing else uses the port before the caller does, or while its server
/// restarts.
pub fn free_port() -> io::Result<u16> {
    static COUNT: LazyLock<u16> = LazyLock::new(|| {
        const USUAL: u16 = 32_768;
        let range =
            fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        let first = range
            .split_whitespace()
            .next()
            .and_then(|first| first.parse().ok());
        first.filter(|first| *first > LOWEST_PORT).unwrap_or(USUAL) - LOWEST_PORT
    });
    // Random: runs at the same time use different ports.
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(fastrand::u16(..)));
    let port = |_| LOWEST_PORT + NEXT.fetch_add(1, Ordering::Relaxed) % *COUNT;
    let found = (0..*COUNT)
        .map(port)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    found.ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "no loopback port is free"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn when_the_pipe_closes_it_stops_the_processes_it_watches_and_removes_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        let mut guardian = Guardian::start(Some(dir.path())).unwrap();
        let mut spared = Command::new("sleep").arg("600").spawn().unwrap();
        let mut stopped = Command::new("sleep").arg("600").spawn().unwrap();
        guardian.watch(spared.id()).unwrap();
        guardian.watch(stopped.id()).unwrap();
        guardian.release(spared.id()).unwrap();
        // Only the end of the pipe, as when the kernel closes it for a process that was killed.
        drop(guardian.pipe.take());
        let status = stopped.wait().unwrap();
        assert!(matches!(status.signal(), Some(3 | 9)), "{status}");
        drop(guardian);
        assert!(!dir.path().exists());
        assert!(
            spared.try_wait().unwrap().is_none(),
            "it stopped a process that was released"
        );
        spared.kill().unwrap();
        spared.wait().unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_tells_our_peak_memory() {
        assert!(memory_bytes(std::process::id(), "VmHWM:").unwrap() > 1 << 20);
    }
}
