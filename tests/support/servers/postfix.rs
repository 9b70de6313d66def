//! A real Postfix, whose mails come into one directory.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{free_port, logs_to};
use crate::support::guardian::run_directory;
use crate::support::process::{Process, text_of};
use crate::support::wait;

const START_DEADLINE: Duration = Duration::from_secs(90);
const MASTER: &str = "/usr/lib/postfix/sbin/master";
/// Owns what is delivered: Postfix delivers nothing as root.
const OWNER: u32 = 65_534;

/// A server with its queue. It can stop and start again.
pub(crate) struct Postfix {
    directory: PathBuf,
    pub(crate) port: u16,
    process: Option<Process>,
}

impl Postfix {
    /// A server of the test's own that takes mails for `example.org`, except for users whose names
    /// begin with `unknown`; with these lines in its configuration. None where there is no Postfix,
    /// or the tests do not run as root, as it has to.
    #[track_caller]
    pub(crate) fn start(lines: &str) -> Option<Postfix> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
        if !is_root || !Path::new(MASTER).exists() {
            eprintln!("skipped: Postfix is not there, or this is not root; install it");
            return None;
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = run_directory().join(format!("postfix-{number}"));
        let port = free_port();
        let at = |name: &str| directory.join(name).display().to_string();
        for name in ["conf", "queue", "data", "mail"] {
            std::fs::create_dir_all(at(name)).expect("a directory");
        }
        std::os::unix::fs::chown(at("mail"), Some(OWNER), Some(OWNER)).expect("an owner");
        let main = format!(
            "compatibility_level = 3.6\n\
             queue_directory = {queue}\ndata_directory = {data}\n\
             maillog_file = {log}\nmaillog_file_prefixes = /\n\
             inet_interfaces = 127.0.0.1\ninet_protocols = ipv4\nmyhostname = mail.example.org\n\
             mydestination =\nalias_maps =\nlocal_recipient_maps =\nmynetworks =\n\
             virtual_mailbox_domains = example.org\nvirtual_mailbox_base = {mail}\n\
             virtual_mailbox_maps = regexp:{maps}\n\
             virtual_uid_maps = static:{OWNER}\nvirtual_gid_maps = static:{OWNER}\n\
             smtpd_relay_restrictions = reject_unauth_destination\n\
             in_flow_delay = 0\nenable_long_queue_ids = yes\n{lines}\n",
            queue = at("queue"),
            data = at("data"),
            log = at("log"),
            mail = at("mail"),
            maps = at("conf/users"),
        );
        let write = |name: &str, text: &str| std::fs::write(at(name), text).expect("a file");
        write("conf/main.cf", &main);
        write("conf/master.cf", &services(port));
        write(
            "conf/users",
            "if !/^unknown/\n/@example\\.org$/ all/\nendif\n",
        );
        let mut postfix = Postfix {
            directory: directory.clone(),
            port,
            process: None,
        };
        let owner = Command::new("chown")
            .args(["postfix", &at("data")])
            .status();
        assert!(owner.expect("chown").success());
        let permissions = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&directory, permissions).expect("permissions");
        postfix.run();
        Some(postfix)
    }

    /// Starts it with its queue and port, and waits until it answers.
    #[track_caller]
    pub(crate) fn run(&mut self) {
        assert!(self.process.is_none(), "it already runs");
        let conf = self.directory.join("conf");
        let check = Command::new("/usr/sbin/postfix")
            .arg("-c")
            .arg(&conf)
            .arg("check")
            .output()
            .expect("postfix");
        let said = String::from_utf8_lossy(&check.stderr);
        assert!(check.status.success(), "postfix check: {said}");
        let mut command = Command::new(MASTER);
        command.arg("-c").arg(&conf).arg("-d");
        let log = self.directory.join("log");
        logs_to(&format!("127.0.0.1:{}", self.port), &log);
        let mut process = Process::start("postfix", command, &self.directory.join("said"));
        let answered = wait::until(START_DEADLINE, || {
            let tail = process.log_tail(30);
            assert!(process.exited().is_none(), "{tail}\n{}", text_of(&log));
            std::net::TcpStream::connect(("127.0.0.1", self.port)).ok()
        });
        assert!(answered.is_some(), "no answer:\n{}", text_of(&log));
        self.process = Some(process);
    }

    /// Ends it at once: connections are lost, and what its queue has stays.
    pub(crate) fn kill_hard(&mut self) {
        let mut process = self.process.take().expect("it runs");
        let children = Command::new("ps")
            .args(["-o", "pid=", "--ppid", &process.pid().to_string()])
            .output()
            .expect("ps");
        process.kill_hard();
        for pid in String::from_utf8_lossy(&children.stdout).split_whitespace() {
            let killed = Command::new("kill").args(["-s", "KILL", pid]).output();
            drop(killed.expect("kill"));
        }
    }

    /// The log: what was accepted, and what was refused.
    pub(crate) fn log(&self) -> String {
        text_of(&self.directory.join("log"))
    }

    /// How many mails are delivered.
    pub(crate) fn count(&self) -> usize {
        let new = self.directory.join("mail/all/new");
        std::fs::read_dir(new).map_or(0, Iterator::count)
    }

    /// The mails that were delivered, as files have them: with a line end of LF, and with fields of
    /// Postfix above.
    pub(crate) fn mails(&self) -> Vec<String> {
        let new = self.directory.join("mail/all/new");
        let Ok(files) = std::fs::read_dir(new) else {
            return Vec::new();
        };
        let files = files.map(|file| file.expect("a file").path());
        let text = |path: PathBuf| std::fs::read(path).expect("a mail");
        files
            .map(|path| String::from_utf8_lossy(&text(path)).into_owned())
            .collect()
    }
}

impl Drop for Postfix {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill_hard();
        }
    }
}

fn services(port: u16) -> String {
    let inet = format!("127.0.0.1:{port} inet n - n - - smtpd\n");
    let services = [
        ("cleanup", "unix n - n - 0 cleanup"),
        ("qmgr", "unix n - n 300 1 qmgr"),
        ("rewrite", "unix - - n - - trivial-rewrite"),
        ("bounce", "unix - - n - 0 bounce"),
        ("defer", "unix - - n - 0 bounce"),
        ("trace", "unix - - n - 0 bounce"),
        ("proxymap", "unix - - n - - proxymap"),
        ("error", "unix - - n - - error"),
        ("retry", "unix - - n - - error"),
        ("discard", "unix - - n - - discard"),
        ("virtual", "unix - n n - - virtual"),
        ("anvil", "unix - - n - 1 anvil"),
        ("postlog", "unix-dgram n - n - 1 postlogd"),
    ];
    let services = services.map(|(name, rest)| format!("{name} {rest}\n"));
    inet + &services.concat()
}
