//! Leaves nothing behind, not even after `kill -9` of this process: a tiny shell waits for our end of a pipe to close,
//! which the kernel sees to however we end, then stops the server and removes its directory.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// Every line it reads is the process id to stop, an empty one that there is none. It has a process group of its own
/// and ignores what a terminal sends, because it has to outlive us.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
pid=
while IFS= read -r line; do pid=$line; done
if [ -n "$pid" ]; then
  kill -s QUIT "$pid"
  tries=0
  while kill -0 "$pid" && [ "$tries" -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
  kill -s KILL "$pid"
fi
rm -rf -- "$1"
"#;

/// The guard over one directory and at most one process.
#[derive(Debug)]
pub(super) struct Watchdog {
    child: Child,
    /// `None` once it was let go.
    line: Option<ChildStdin>,
}

impl Watchdog {
    /// Guards `dir`, which is removed when this value is dropped or the process ends.
    pub(super) fn over(dir: &Path) -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "walrelay-watchdog"]).arg(dir).current_dir("/").process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let line = child.stdin.take();
        Ok(Watchdog { child, line })
    }

    /// The process to stop, from now on; `None` when it has ended.
    pub(super) fn guard(&mut self, pid: Option<u32>) -> io::Result<()> {
        let line = pid.map_or_else(String::new, |pid| pid.to_string());
        match &mut self.line {
            Some(pipe) => pipe.write_all(format!("{line}\n").as_bytes()),
            None => Ok(()),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.line.take());
        drop(self.child.wait());
    }
}

/// Sends a signal by its name, such as `INT`: the standard library can only kill.
pub(super) fn send_signal(pid: u32, signal: &str) -> io::Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", r#"kill -s "$1" "$2""#, "kill", signal]).arg(pid.to_string());
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("SIG{signal} could not be sent to {pid}"))) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn when_the_pipe_closes_it_stops_the_process_it_was_told_of_and_removes_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        let mut watchdog = Watchdog::over(dir.path()).unwrap();
        let mut spared = Command::new("sleep").arg("600").spawn().unwrap();
        let mut stopped = Command::new("sleep").arg("600").spawn().unwrap();
        watchdog.guard(Some(spared.id())).unwrap();
        watchdog.guard(Some(stopped.id())).unwrap();
        // Only the end of the pipe, as when the kernel closes it for a process that was killed.
        drop(watchdog.line.take());
        let status = stopped.wait().unwrap();
        assert!(matches!(status.signal(), Some(3 | 9)), "{status}");
        drop(watchdog);
        assert!(!dir.path().exists());
        assert!(spared.try_wait().unwrap().is_none(), "it stopped a process it was told of no more");
        spared.kill().unwrap();
        spared.wait().unwrap();
    }
}
