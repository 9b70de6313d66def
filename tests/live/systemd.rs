//! docs/how-to/install.md: what a relay tells systemd, which here is a socket of the test.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::guardian::run_directory;
use crate::support::proxy::Proxy;
use crate::support::relay::{Relay, RelayCommand};
use crate::support::servers::Postgres;
use crate::support::wait::{LIMIT, eventually, throughout};
use crate::support::world::{ARRIVAL, World};

/// How long nothing may come from a process that stands still, which else tells once a second.
const SILENCE: Duration = Duration::from_secs(4);

/// A unit with `Type=notify`, and with `WatchdogSec=60` where the relay feeds it.
struct Unit {
    relay: Relay,
    socket: UnixDatagram,
    path: PathBuf,
}

impl Unit {
    fn start(command: RelayCommand) -> Unit {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path =
            run_directory().join(format!("notify-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_nonblocking(true).expect("a socket");
        let command = command.variable("NOTIFY_SOCKET", &path.to_string_lossy());
        Unit {
            relay: command.variable("WATCHDOG_USEC", "60000000").start(),
            socket,
            path,
        }
    }

    /// The lines of the next notification, if one has come.
    fn told(&self) -> Option<Vec<String>> {
        let mut datagram = [0; 8192];
        let bytes = self.socket.recv(&mut datagram).ok()?;
        Some(
            String::from_utf8_lossy(&datagram[..bytes])
                .lines()
                .map(str::to_owned)
                .collect(),
        )
    }

    /// Waits for a notification with a line that begins so, and returns it. Until then, none may
    /// have the line `never`.
    #[track_caller]
    fn wait_for(&self, line: &str, never: &str) -> Vec<String> {
        let has_it =
            |told: &Option<Vec<String>>| told.iter().flatten().any(|of| of.starts_with(line));
        let next = || {
            let told = self.told();
            assert!(
                has_it(&told) || !told.iter().flatten().any(|of| of == never),
                "{told:?} before {line}"
            );
            told
        };
        eventually(line, LIMIT, next, has_it).expect("a notification")
    }

    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.relay.process.pid()))
            .expect("a process");
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('T'))
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).unwrap_or_default();
    }
}

#[test]
fn systemd_hears_of_the_start_an_outage_a_standstill_and_the_stop() {
    let world = World::new();
    let postgres = Proxy::before(&Postgres::shared().address());
    postgres.refuse();
    let mut unit = Unit::start(
        world
            .run()
            .option("--database-url", &world.url_through(&postgres)),
    );
    let starts = unit.wait_for(
        "STATUS=Not at work: not connected to both ends yet. ",
        "READY=1",
    );
    assert!(
        starts.contains(&"EXTEND_TIMEOUT_USEC=30000000".to_owned()),
        "{starts:?}"
    );
    assert!(
        starts[0].contains(" Fix: check that the server runs"),
        "{starts:?}"
    );
    postgres.resume();
    let works = unit.wait_for("READY=1", "STOPPING=1");
    assert!(
        works[0].starts_with("STATUS=The relay works. "),
        "{works:?}"
    );

    postgres.refuse();
    unit.wait_for(
        "STATUS=Not ready: not connected to Postgres. Fix: ",
        "READY=1",
    );
    let out = unit.wait_for("WATCHDOG=1", "READY=1");
    assert!(
        !out.iter()
            .any(|line| line.starts_with("EXTEND_TIMEOUT_USEC")),
        "{out:?}"
    );
    postgres.resume();
    unit.wait_for("STATUS=The relay works. ", "READY=1");

    unit.relay.process.signal("STOP");
    eventually(
        "it is stopped",
        ARRIVAL,
        || unit.is_stopped(),
        |stopped| *stopped,
    );
    while unit.told().is_some() {}
    throughout("a process that stands still tells nothing", SILENCE, || {
        unit.told().is_none()
    });
    unit.relay.process.signal("CONT");
    unit.wait_for("WATCHDOG=1", "STOPPING=1");

    unit.relay.process.signal("TERM");
    let stops = unit.wait_for("STOPPING=1", "READY=1");
    assert_eq!(stops[0], "STATUS=Not at work: told to stop");
    assert_eq!(unit.relay.wait_exit(ARRIVAL), Some(0));
}

#[test]
fn systemd_starts_a_stand_by_and_keeps_the_cause_of_an_end() {
    let world = World::new();
    let mut first = world.relay();
    let mut unit = Unit::start(world.run());
    let stands_by = unit.wait_for("READY=1", "STOPPING=1");
    assert!(
        stands_by[0].starts_with("STATUS=Not at work: standing by: "),
        "{stands_by:?}"
    );
    assert_eq!(first.terminate(ARRIVAL), Some(0));
    unit.wait_for("STATUS=The relay works. ", "READY=1");

    world.sql().run("drop table outbox cascade");
    assert!(unit.relay.wait_exit(ARRIVAL).is_some_and(|code| code > 1));
    let ended = unit.wait_for("STOPPING=1", "READY=1");
    assert!(
        ended[0].starts_with("STATUS=Not ready: halted: "),
        "{ended:?}"
    );
}
