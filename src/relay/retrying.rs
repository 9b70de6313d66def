//! Events that wait are tried again: when their time has come, or when somebody asked.
//!
//! It has a producer of its own, so that what is refused here ends nothing but this try, and a session of its own, so that
//! nothing else waits for a lock that is in its way. It is the only one that publishes events of an aggregate that waits: the
//! relay itself parks them until the last one is gone (P2).
//!
//! | file | its room |
//! |---|---|
//! | `run` | one pass: what is dropped, what is due, and what came of it |
//! | `producer` | its producer and the records it sends |
//! | `memory` | what is remembered from pass to pass |

mod memory;
mod producer;
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

pub(super) use self::memory::Memory;
pub(super) use self::run::RetryReport;
use self::run::{LOOK_INTERVAL, Shared, Summary};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::relay::stall_watchdog::StallGuard;
use crate::relay::store::Known;
use crate::telemetry::Metrics;

/// After a pass that could not be made.
const PAUSE: Duration = Duration::from_secs(5);
/// Looks take this small a part of the time, however many events wait. The tries that follow have waits of their own.
const LOOK_SHARE: u32 = 20;
/// How often what waits is compared with the table, and how soon the first time: what another relay, or a pass of a session before,
/// had sent to Postgres may take effect a little later.
const CENSUS_INTERVAL: Duration = Duration::from_secs(60);
const CENSUS_SOON: Duration = Duration::from_secs(5);

/// How long the end of a session waits for a pass.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// The passes, one at a time.
#[derive(Debug)]
pub(super) struct Retrying {
    shared: Arc<Shared>,
    pass: Option<Running>,
    next_pass: Instant,
    next_census: Instant,
    told: bool,
    /// Whether there is something to let go of once nothing waits.
    is_used: bool,
}

/// A pass. Ends with whoever holds it.
#[derive(Debug)]
struct Running {
    tried: UnboundedReceiver<RetryReport>,
    ended: JoinHandle<(Summary, Result<()>)>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ended.abort();
    }
}

impl Retrying {
    /// `beside`, where the loop has a watchdog.
    pub(super) fn new(config: &Config, known: &Known, beside: Option<StallGuard>) -> Retrying {
        let now = Instant::now();
        let shared = Shared {
            config: config.clone(),
            known: Arc::clone(known),
            beside,
            session: Mutex::default(),
            ends: AtomicBool::default(),
        };
        Retrying {
            shared: Arc::new(shared),
            pass: None,
            next_pass: now,
            next_census: now + CENSUS_SOON,
            told: false,
            is_used: false,
        }
    }

    /// Begins a pass where one is due: `waiting` events wait, of which a census can be taken.
    pub(super) fn begin_due(&mut self, waiting: usize, census: impl FnOnce() -> u64, now: Instant) {
        if self.pass.is_some() || self.next_pass > now {
            return;
        }
        let is_any = waiting > 0;
        if !is_any && std::mem::take(&mut self.is_used) {
            self.shared.memory().clear();
            if let Ok(mut session) = self.shared.session.try_lock() {
                *session = None;
            }
        }
        if is_any {
            self.is_used = true;
            let census = (self.next_census <= now).then(census);
            let shared = Arc::clone(&self.shared);
            let (tell, tried) = unbounded_channel();
            let ended = tokio::spawn(async move {
                let mut summary = Summary::default();
                let ended = shared.pass(&mut summary, census, tell).await;
                (summary, ended)
            });
            self.pass = Some(Running { tried, ended });
        }
    }

    /// The session ends, and slot or lease are still ours: a pass gets a moment for what it is at, and there is no other.
    pub(super) async fn finish(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        let ending = async {
            while self.pass.is_some() {
                self.next().await;
            }
        };
        if timeout(FINISH_TIMEOUT, ending).await.is_err() {
            tracing::debug!("a retry of parked events was abandoned");
        }
        self.give_up().await;
    }

    /// The session ends, and slot or lease may be another's.
    pub(super) async fn give_up(&mut self) {
        if let Some(mut pass) = self.pass.take() {
            pass.ended.abort();
            // From here on it sends nothing. What it has sent to Postgres may still take effect: a census finds that out.
            drop((&mut pass.ended).await);
        }
    }

    /// Tells the metrics what became of events that waited.
    pub(super) fn count(&self, metrics: &Metrics) {
        metrics.unparked_events.inc_by(self.shared.known.unparked.swap(0, Ordering::Relaxed));
        metrics.dropped_events.inc_by(self.shared.known.dropped.swap(0, Ordering::Relaxed));
    }

    /// Waits for what comes of the pass, or its end. Safe to cancel; without one, for ever.
    pub(super) async fn next(&mut self) -> RetryReport {
        let ended = match &mut self.pass {
            Some(pass) => match pass.tried.recv().await {
                Some(tried) => {
                    if tried.table.is_some() {
                        self.next_census = Instant::now() + CENSUS_INTERVAL;
                    }
                    return tried;
                }
                None => (&mut pass.ended).await,
            },
            None => std::future::pending().await,
        };
        self.pass = None;
        self.ended(ended.unwrap_or_else(|error| (Summary::default(), Err(Error::new(Kind::Bug, error)))));
        RetryReport::default()
    }

    fn ended(&mut self, (Summary { sent, dropped, looked }, ended): (Summary, Result<()>)) {
        let (now, slot) = (Instant::now(), &self.shared.config.source.slot);
        if sent > 0 {
            tracing::info!(%slot, events = sent, "parked events were delivered");
        }
        if dropped > 0 {
            tracing::info!(%slot, events = dropped, "parked events were dropped");
        }
        match ended {
            Ok(()) => {
                self.next_pass =
                    now + if sent + dropped > 0 { Duration::ZERO } else { LOOK_INTERVAL.max(looked * LOOK_SHARE) };
                self.told = false;
            }
            Err(error) => {
                self.next_pass = now + PAUSE;
                self.next_census = now;
                if std::mem::replace(&mut self.told, true) {
                    tracing::debug!(%slot, %error, "parked events cannot be retried now");
                } else {
                    tracing::warn!(%slot, %error, fix = error.what_to_do(), "parked events cannot be retried now");
                }
            }
        }
    }
}
