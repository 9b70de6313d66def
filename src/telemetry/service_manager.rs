//! Tells systemd how the relay does, where the unit has `Type=notify`: sd_notify(3).
//!
//! `WATCHDOG=1` says that the loop turns. The notifications share the relay's only thread, so none
//! leaves while that thread stands still. Each is a datagram that is dropped where systemd does not
//! read: the relay waits for nobody here.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use sd_notify::NotifyState;

use super::Telemetry;
use super::doing::Doing;
use walrelay_core::printable::printable;
use walrelay_core::readiness::NotReady;

/// Between two notifications, unless the watchdog wants them sooner.
const TICK: Duration = Duration::from_secs(1);
/// Each notification prolongs a start or a stop to this: a relay whose servers are away starts for
/// as long as they are, and `shutdown.timeout` alone limits the drain.
const EXTENSION_US: u32 = 30_000_000;

/// See the module's documentation.
pub(crate) struct ServiceManager {
    /// The value of `NOTIFY_SOCKET`.
    socket: OsString,
    /// The unit's `WatchdogSec`.
    watchdog: Option<Duration>,
    telemetry: Telemetry,
    was_ready: bool,
}

impl ServiceManager {
    /// The one that started this process and wants to hear from it, if there is one.
    pub(crate) fn from_environment(telemetry: Telemetry) -> Option<ServiceManager> {
        let socket = std::env::var_os("NOTIFY_SOCKET")?;
        Some(ServiceManager {
            socket,
            watchdog: sd_notify::watchdog_enabled(),
            telemetry,
            was_ready: false,
        })
    }

    /// Tells it how the relay does, until dropped. `stop` ends when the relay is told to stop.
    pub(crate) async fn keep_telling(&mut self, stop: impl Future<Output = ()>) -> Infallible {
        let tick = self
            .watchdog
            .map_or(TICK, |watchdog| TICK.min(watchdog / 2));
        let mut tick = tokio::time::interval(tick.max(Duration::from_millis(1)));
        let told = async {
            loop {
                tick.tick().await;
                self.tell();
            }
        };
        tokio::select! {
            biased;
            () = stop => {}
            never = told => return never,
        }
        loop {
            self.tell_end();
            tick.tick().await;
        }
    }

    /// Tells it that the relay stops, or why the relay has ended.
    pub(crate) fn tell_end(&mut self) {
        self.telemetry.health.tell(NotReady::Stopping);
        self.tell();
    }

    fn tell(&mut self) {
        let reason = self.telemetry.health.not_ready();
        let Doing {
            headline, notes, ..
        } = Doing::of(&self.telemetry);
        let status = [vec![headline], notes]
            .concat()
            .join(". ")
            .replace('\n', " ");
        let status = printable(&status);
        let mut states = vec![NotifyState::Status(&status)];
        if matches!(reason, None | Some(NotReady::StandingBy(_)))
            && !std::mem::replace(&mut self.was_ready, true)
        {
            states.push(NotifyState::Ready);
        }
        let is_stopping = matches!(reason, Some(NotReady::Stopping | NotReady::Halted(_)));
        if is_stopping {
            states.push(NotifyState::Stopping);
        }
        if is_stopping || !self.was_ready {
            states.push(NotifyState::ExtendTimeoutUsec(EXTENSION_US));
        }
        // While it streams, the loop itself reports. The time before a stream may be one long
        // query.
        let is_stuck =
            self.telemetry.metrics.is_streaming() && matches!(reason, Some(NotReady::Silent(_)));
        if self.watchdog.is_some() && !is_stuck {
            states.push(NotifyState::Watchdog);
        }
        if let Err(error) = self.send(&states) {
            tracing::debug!(%error, "the service manager was not told");
        }
    }

    fn send(&self, states: &[NotifyState<'_>]) -> std::io::Result<usize> {
        let lines: Vec<_> = states.iter().map(ToString::to_string).collect();
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to(lines.join("\n").as_bytes(), &self.socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Bus;
    use walrelay_core::error::{Error, Kind};
    use walrelay_core::position::Lsn;
    use walrelay_core::readiness::{Side, ToDo};

    struct Told {
        socket: UnixDatagram,
        manager: ServiceManager,
        _folder: tempfile::TempDir,
    }

    fn started(ready_within: Duration) -> Told {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let watchdog = Some(Duration::from_secs(60));
        let telemetry = Telemetry::new(Bus::default(), ready_within);
        let manager = ServiceManager {
            socket: path.into(),
            watchdog,
            telemetry,
            was_ready: false,
        };
        Told {
            socket,
            manager,
            _folder: folder,
        }
    }

    impl Told {
        fn next(&mut self) -> Vec<String> {
            self.manager.tell();
            self.read()
        }

        fn read(&self) -> Vec<String> {
            let mut datagram = [0; 4096];
            let bytes = self.socket.recv(&mut datagram).unwrap();
            String::from_utf8(datagram[..bytes].to_vec())
                .unwrap()
                .lines()
                .map(str::to_owned)
                .collect()
        }
    }

    const EXTENSION: &str = "EXTEND_TIMEOUT_USEC=30000000";

    #[test]
    fn a_start_is_prolonged_until_the_relay_works_and_a_stop_until_it_has_ended() {
        let mut told = started(Duration::from_secs(30));
        let starting = "STATUS=Not at work: not connected to both ends yet";
        assert_eq!(told.next(), [starting, EXTENSION, "WATCHDOG=1"]);
        told.manager
            .telemetry
            .failed(&Error::new(Kind::BusUnreachable, "no broker\nanswers"));
        assert!(told.next()[0].starts_with(&format!("{starting}. no broker answers. Fix: ")));
        Side::ALL
            .into_iter()
            .for_each(|side| told.manager.telemetry.connected(side, true));
        told.manager.telemetry.health.report(ToDo::Nothing);
        let works = "STATUS=The relay works. All received events are in Kafka.";
        assert_eq!(told.next(), [works, "READY=1", "WATCHDOG=1"]);
        assert_eq!(told.next(), [works, "WATCHDOG=1"], "it says so once");
        told.manager.tell_end();
        assert_eq!(
            told.read(),
            [
                "STATUS=Not at work: told to stop",
                "STOPPING=1",
                EXTENSION,
                "WATCHDOG=1"
            ]
        );
    }

    #[test]
    fn the_watchdog_hears_nothing_of_a_stream_whose_loop_is_silent() {
        let mut told = started(Duration::ZERO);
        Side::ALL
            .into_iter()
            .for_each(|side| told.manager.telemetry.connected(side, true));
        told.manager.telemetry.health.report(ToDo::Nothing);
        let is_fed = |told: &mut Told| told.next().contains(&"WATCHDOG=1".to_owned());
        assert!(is_fed(&mut told), "a query before the stream may take long");
        told.manager.telemetry.metrics.received_lsn.set(Lsn::new(1));
        assert!(!is_fed(&mut told));
    }

    #[test]
    fn a_service_manager_that_does_not_read_holds_up_nothing() {
        let mut told = started(Duration::from_secs(30));
        (0..10_000).for_each(|_| told.manager.tell());
        drop(told.socket);
        told.manager.tell();
    }
}
