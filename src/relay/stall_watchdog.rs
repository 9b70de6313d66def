//! Notices that this process stood still: it was stopped, frozen together with its machine, or
//! starved.
//!
//! A relay that streams sends a status update every third of `wal_sender_timeout`. After a silence
//! of the whole time-out, the server gives the slot to another relay: at the earliest two thirds
//! after the relay last did anything. From then on no record may leave this process: the other
//! relay publishes the same events, and older records would follow newer ones. The lease on the
//! table is lost in the same way. So the loop beats, and a thread of its own abandons the
//! producer's queue when the loop does not. After a stop of the process, that thread runs as soon
//! as any other.
//!
//! It is no fence: what the client has handed to the operating system is on its way
//! (docs/explanation/delivery.md).

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, sleep};

use crate::sink::SinkHandle;
use walrelay_core::error::{Error, Kind, Result};

/// How often the thread checks.
const TICK: Duration = Duration::from_millis(100);
/// Beats of a task that waits, in the time it may stand still.
const BEATS: u64 = 4;

/// See the module's documentation. Its thread ends with it.
#[derive(Debug)]
pub(super) struct StallWatchdog(Arc<Beat>);

#[derive(Debug)]
struct Beat {
    bound_ms: u64,
    last_ms: AtomicU64,
    guarded: Mutex<Guarded>,
    abandoned: AtomicBool,
}

#[derive(Debug, Default)]
struct Guarded {
    own: Option<SinkHandle>,
    beside: Option<SinkHandle>,
}

/// The same for a producer beside the loop's own. Its owner sends nothing without
/// [`StallGuard::check`].
#[derive(Debug, Clone)]
pub(super) struct StallGuard(Arc<Beat>);

impl StallGuard {
    /// From here on this producer is abandoned with the loop's own, instead of the previous one.
    pub(super) fn guard(&self, producer: Option<SinkHandle>) {
        self.0.guarded.lock().beside = producer;
    }

    /// Errors: the loop did not beat for so long that another relay may have the slot.
    pub(super) fn check(&self) -> Result<()> {
        let stood_ms = self.0.stood_ms();
        if stood_ms > self.0.bound_ms {
            Err(stood_still(stood_ms))
        } else {
            Ok(())
        }
    }
}

impl StallWatchdog {
    /// Starts the thread. Nothing is guarded yet.
    pub(super) fn start(wal_sender_timeout: Duration) -> Result<StallWatchdog> {
        let beat = Arc::new(Beat {
            bound_ms: millis(walrelay_core::turn::bearable(wal_sender_timeout)),
            last_ms: AtomicU64::new(now_ms()),
            guarded: Mutex::default(),
            abandoned: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&beat);
        std::thread::Builder::new()
            .name("stall-watchdog".to_owned())
            .spawn(move || watch(&weak))
            .map_err(|error| {
                Error::new(
                    Kind::Prerequisite,
                    format!("no thread can be started: {error}"),
                )
            })?;
        Ok(StallWatchdog(beat))
    }

    /// From here on this producer depends on [`StallWatchdog::beat`], until
    /// [`StallWatchdog::release`].
    pub(super) fn guard(&self, producer: SinkHandle) {
        self.0.last_ms.store(now_ms(), Ordering::Release);
        self.0.guarded.lock().own = Some(producer);
    }

    pub(super) fn release(&self) {
        *self.0.guarded.lock() = Guarded::default();
    }

    pub(super) fn beside(&self) -> StallGuard {
        StallGuard(Arc::clone(&self.0))
    }

    /// The loop continues. To be called when it has waited, before anything else is done.
    /// Errors: it stood still for so long that another relay may have the slot. Records in flight
    /// are abandoned.
    pub(super) fn beat(&self) -> Result<()> {
        let now = now_ms();
        let stood_ms = now.saturating_sub(self.0.last_ms.load(Ordering::Acquire));
        if stood_ms > self.0.bound_ms {
            self.0.abandon(stood_ms);
            return Err(stood_still(stood_ms));
        }
        if self.0.abandoned.load(Ordering::Acquire) {
            let what = "in-flight records were dropped, because another relay may have the slot";
            return Err(Error::new(Kind::PostgresUnreachable, what).remedy(STOOD_STILL_FIX));
        }
        self.0.last_ms.store(now, Ordering::Release);
        Ok(())
    }

    /// Drives `work`, and beats before each step of it, and while it waits.
    /// Errors: those of `work`, and of [`StallWatchdog::beat`]: `work` is dropped where it was
    /// then.
    pub(super) async fn throughout<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let every = Duration::from_millis((self.0.bound_ms / BEATS).max(1));
        let mut work = pin!(work);
        let mut next = pin!(sleep(every));
        std::future::poll_fn(|context| {
            if let Err(error) = self.beat() {
                return Poll::Ready(Err(error));
            }
            while next.as_mut().poll(context).is_ready() {
                next.as_mut().reset(Instant::now() + every);
            }
            work.as_mut().poll(context)
        })
        .await
    }

    /// Whether the producer's queue was abandoned since the last call: it takes nothing any more.
    pub(super) fn take_abandoned(&self) -> bool {
        self.0.abandoned.swap(false, Ordering::AcqRel)
    }
}

impl Beat {
    fn stood_ms(&self) -> u64 {
        now_ms().saturating_sub(self.last_ms.load(Ordering::Acquire))
    }

    fn look(&self) {
        let stood_ms = self.stood_ms();
        if stood_ms > self.bound_ms {
            self.abandon(stood_ms);
        }
    }

    /// An empty queue is left alone: nothing is put into it without a beat before.
    fn abandon(&self, stood_ms: u64) {
        let mut guarded = self.guarded.lock();
        let own = guarded.own.as_ref().and_then(SinkHandle::abandon);
        let beside = guarded.beside.as_ref().and_then(SinkHandle::abandon);
        guarded.own.take_if(|_| own.is_some());
        guarded.beside.take_if(|_| beside.is_some());
        drop(guarded);
        if own.is_none() && beside.is_none() {
            return;
        }
        if own.is_some() {
            self.abandoned.store(true, Ordering::Release);
        }
        let records = own.unwrap_or_default() + beside.unwrap_or_default();
        tracing::warn!(
            event = "records_dropped",
            records,
            silent_ms = stood_ms,
            "another relay may have the slot: records that the bus has not acked are dropped, and \
             read again"
        );
    }
}

/// Neither the server nor the network is at fault.
const STOOD_STILL_FIX: &str =
    "the relay goes on by itself; see whether the process was stopped, or gets no CPU time";

fn stood_still(stood_ms: u64) -> Error {
    let what = format!("this process stood still for {stood_ms} ms; another relay may be at work");
    Error::new(Kind::PostgresUnreachable, what).remedy(STOOD_STILL_FIX)
}

fn watch(beat: &Weak<Beat>) {
    while let Some(beat) = beat.upgrade() {
        beat.look();
        drop(beat);
        std::thread::sleep(TICK);
    }
}

/// Milliseconds by a clock that is never set, and goes on while the machine sleeps where there is
/// such a clock.
fn now_ms() -> u64 {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let now = clock_gettime(CLOCK);
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    part(now.tv_sec)
        .saturating_mul(1_000)
        .saturating_add(part(now.tv_nsec) / 1_000_000)
}

fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::KafkaConfig;
    use crate::sink::BusSink as _;
    use crate::sink::{AnySink, KafkaSink};
    use walrelay_core::ledger::Ticket;
    use walrelay_core::route::Record;
    use walrelay_core::sink::{EnqueueError, Sink as _};

    #[test]
    fn a_loop_that_goes_on_may_and_one_that_stood_still_for_two_thirds_of_the_timeout_may_not() {
        let watchdog = StallWatchdog::start(Duration::from_secs(60)).unwrap();
        assert_eq!(watchdog.0.bound_ms, 40_000);
        let stood = |ms| watchdog.0.last_ms.store(now_ms() - ms, Ordering::Release);
        assert!(watchdog.beat().is_ok());
        // The rest may pass on a busy machine before it beats.
        stood(20_000);
        assert!(watchdog.beat().is_ok());
        stood(40_001);
        let error = watchdog.beat().unwrap_err();
        assert_eq!(error.kind(), Kind::PostgresUnreachable);
        assert!(
            error.cause().starts_with("this process stood still for "),
            "{error}"
        );
        assert!(!watchdog.take_abandoned(), "nothing was guarded");
    }

    /// A producer nobody answers, with one record in its queue.
    fn stuck() -> AnySink {
        let config = KafkaConfig {
            brokers: "127.0.0.1:1".to_owned(),
            properties: BTreeMap::new(),
            id_headers: Vec::new(),
            ..KafkaConfig::default()
        };
        let mut sink = AnySink::from(KafkaSink::connect(&config).unwrap());
        sink.enqueue(
            &Record {
                topic: "t",
                ..Record::default()
            },
            Ticket(0),
        )
        .unwrap();
        sink
    }

    /// It beats by the runtime's clock, which is paused, and stands still by the system's.
    #[tokio::test(start_paused = true)]
    async fn who_works_beats_and_stops_where_it_stood_still() {
        let watchdog = StallWatchdog::start(Duration::from_secs(60)).unwrap();
        let stand = |ms| watchdog.0.last_ms.store(now_ms() - ms, Ordering::Release);
        let waited = watchdog.throughout(async {
            stand(20_000);
            let beat = Arc::clone(&watchdog.0);
            // After the first beat, and before this wakes by itself.
            let looked = tokio::spawn(async move {
                sleep(Duration::from_secs(15)).await;
                beat.stood_ms()
            });
            Ok(looked.await.unwrap())
        });
        assert!(waited.await.unwrap() < 20_000, "it beats while it waits");
        let stopped = watchdog.throughout(async {
            stand(40_001);
            tokio::task::yield_now().await;
            Ok(())
        });
        assert!(
            stopped
                .await
                .unwrap_err()
                .cause()
                .starts_with("this process stood still for ")
        );
    }

    #[tokio::test]
    async fn the_producer_of_events_that_wait_is_abandoned_as_well() {
        let watchdog = StallWatchdog::start(Duration::from_secs(60)).unwrap();
        let mut own = stuck();
        let mut beside = stuck();
        watchdog.guard(own.handle());
        watchdog.beside().guard(Some(beside.handle()));
        watchdog.0.look();
        let finished = |sink: &mut AnySink| {
            let again = sink.enqueue(
                &Record {
                    topic: "t",
                    ..Record::default()
                },
                Ticket(1),
            );
            matches!(again, Err(EnqueueError::Finished))
        };
        assert!(watchdog.beside().check().is_ok() && !finished(&mut own) && !finished(&mut beside));
        watchdog
            .0
            .last_ms
            .store(now_ms() - 42_000, Ordering::Release);
        assert!(watchdog.beside().check().is_err());
        watchdog.0.look();
        assert!(finished(&mut own) && finished(&mut beside) && watchdog.take_abandoned());
    }
}
