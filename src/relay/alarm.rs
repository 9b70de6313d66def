//! A clock that rings within a part of a millisecond, which is as close as Tokio's timers come.

use tokio::time::Instant;

/// Rings once after it was set. Where the system has nothing better it is Tokio's own timer.
#[derive(Debug)]
pub(super) struct Alarm(#[cfg(target_os = "linux")] Option<linux::Timer>);

impl Alarm {
    /// Made in a Tokio runtime.
    #[cfg(target_os = "linux")]
    pub(super) fn new() -> Self {
        Alarm(linux::Timer::new().inspect_err(|error| tracing::debug!(%error, "no timer to be had")).ok())
    }

    /// Made in a Tokio runtime.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn new() -> Self {
        Alarm()
    }

    /// Waits until then. Safe to cancel.
    pub(super) async fn at(&mut self, until: Instant) {
        #[cfg(target_os = "linux")]
        if let Some(timer) = &mut self.0
            && timer.set(until.saturating_duration_since(Instant::now())).is_ok()
            && timer.rung().await.is_ok()
        {
            return;
        }
        tokio::time::sleep_until(until).await;
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    use tokio::io::unix::AsyncFd;

    /// <https://man7.org/linux/man-pages/man2/timerfd_create.2.html>
    #[derive(Debug)]
    pub(super) struct Timer(AsyncFd<OwnedFd>);

    impl Timer {
        #[expect(deprecated, reason = "what replaces it is unsafe, for descriptors that change; this one is owned")]
        pub(super) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            Ok(Timer(AsyncFd::new(timerfd_create(TimerfdClockId::Monotonic, flags)?)?))
        }

        /// Forgets what it was set to before, rung or not.
        pub(super) fn set(&mut self, after: Duration) -> io::Result<()> {
            // Zero would mean never.
            let after = Timespec::try_from(after.max(Duration::from_nanos(1))).map_err(io::Error::other)?;
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let once = Itimerspec { it_interval: never, it_value: after };
            timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
            Ok(())
        }

        pub(super) async fn rung(&self) -> io::Result<()> {
            loop {
                let mut guard = self.0.readable().await?;
                let read = rustix::io::read(self.0.get_ref(), &mut [0; 8]);
                // It rings once, so there is nothing more to hear in any case.
                guard.clear_ready();
                match read {
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                    read => return read.map(|_| ()).map_err(io::Error::from),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn it_rings_when_it_was_set_to_and_not_before() {
        let mut alarm = Alarm::new();
        for micros in [0, 1, 200, 900, 3_000] {
            let until = Instant::now() + Duration::from_micros(micros);
            alarm.at(until).await;
            assert!(Instant::now() >= until, "{micros} µs");
        }
    }

    #[tokio::test]
    async fn what_it_was_set_to_and_nobody_waited_for_is_forgotten() {
        let mut alarm = Alarm::new();
        for _ in 0..20 {
            let soon = Instant::now() + Duration::from_micros(100);
            // Polled once, so that it is set; it may have rung by the time it is set anew.
            tokio::select! { biased; () = alarm.at(soon) => {}, () = tokio::task::yield_now() => {} }
            while Instant::now() < soon {
                tokio::task::yield_now().await;
            }
            let until = Instant::now() + Duration::from_millis(2);
            alarm.at(until).await;
            assert!(Instant::now() >= until);
        }
    }
}
