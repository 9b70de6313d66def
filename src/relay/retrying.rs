//! Events that wait are tried again: when their time has come, or when somebody asked.
//!
//! It has a producer of its own, so that what is refused here ends nothing but this try, and a session of its own, so that
//! nothing else waits for a lock that is in its way. It is the only one that publishes events of an aggregate that waits: the
//! relay itself parks them until the last one is gone (P2).
//!
//! | file | its room |
//! |---|---|
//! | `pass` | one pass: what is dropped, what is due, and what came of it |
//! | `line` | its producer and the records it sends |
//! | `memory` | what is remembered from pass to pass |

mod line;
mod memory;
mod pass;

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

pub(super) use self::memory::Memory;
use self::pass::Pass;
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::relay::pulse::Beside;
use crate::relay::retention::Known;
use crate::upkeep::Marker;
use crate::upkeep::parked::Waiting;

/// How often it is looked whether any is due, while any waits.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// After a pass that could not be made.
const PAUSE: Duration = Duration::from_secs(5);
/// Looks take this small a part of the time, however many events wait. The tries that follow have waits of their own.
const LOOK_SHARE: u32 = 20;
/// Aggregates of one pass.
const HEADS_MAX: i64 = 200;
/// Events sent before their acks are waited for.
const BATCH_EVENTS: i64 = 200;
/// How long acks are waited for: a topic that is not there is known to be missing after half of it.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the end of a session waits for a pass.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// What a pass came to.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// Events that wait no more: sent or dropped.
    pub(super) released: Vec<Waiting>,
    /// Topics that took records.
    pub(super) accepting: Vec<String>,
    /// Events that were sent.
    pub(super) sent: u64,
    /// What it took to find out which are due.
    looked: Duration,
}

/// The passes, one at a time.
#[derive(Debug)]
pub(super) struct Retrying {
    of: Arc<Of>,
    pass: Option<Running>,
    next: Instant,
    told: bool,
    /// Whether there is something to let go of once nothing waits.
    is_used: bool,
}

/// What passes share.
#[derive(Debug)]
struct Of {
    config: Config,
    known: Known,
    beside: Option<Beside>,
    /// Theirs alone: a lock that is waited for in it holds up neither marks nor positions.
    session: Mutex<Option<Marker>>,
}

/// Ends with whoever holds it.
#[derive(Debug)]
struct Running(JoinHandle<(Tried, Result<()>)>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Retrying {
    /// `beside`, where the loop has a pulse.
    pub(super) fn new(config: &Config, known: &Known, beside: Option<Beside>) -> Retrying {
        let now = Instant::now();
        let of = Of { config: config.clone(), known: Arc::clone(known), beside, session: Mutex::default() };
        Retrying { of: Arc::new(of), pass: None, next: now, told: false, is_used: false }
    }

    /// Begins a pass where one is due: `waiting` events wait.
    pub(super) fn begin_due(&mut self, waiting: usize, now: Instant) {
        if waiting == 0 && self.pass.is_none() && std::mem::take(&mut self.is_used) {
            self.of.memory().clear();
            if let Ok(mut session) = self.of.session.try_lock() {
                *session = None;
            }
        }
        if waiting > 0 && self.pass.is_none() && self.next <= now {
            self.is_used = true;
            let of = Arc::clone(&self.of);
            self.pass = Some(Running(tokio::spawn(async move { of.pass().await })));
        }
    }

    /// The session ends. What a pass has written down by then, and only that, is in the table when the next one reads it.
    pub(super) async fn finish(&mut self) {
        if self.pass.is_some() && timeout(FINISH_TIMEOUT, self.end()).await.is_err() {
            tracing::debug!("a try of events that wait was given up");
        }
        self.pass = None;
    }

    /// Waits for the end of the pass. Safe to cancel; without one, for ever.
    pub(super) async fn end(&mut self) -> Tried {
        let ended = match &mut self.pass {
            Some(pass) => (&mut pass.0).await,
            None => std::future::pending().await,
        };
        self.pass = None;
        let now = Instant::now();
        let slot = &self.of.config.source.slot;
        let (tried, ended) = ended.unwrap_or_else(|error| (Tried::default(), Err(Error::new(Kind::Bug, error))));
        if tried.sent > 0 {
            tracing::info!(%slot, events = tried.sent, "events that waited were delivered");
        }
        match ended {
            Ok(()) => {
                self.next =
                    now + if tried.sent > 0 { Duration::ZERO } else { LOOK_INTERVAL.max(tried.looked * LOOK_SHARE) };
                self.told = false;
            }
            Err(error) => {
                self.next = now + PAUSE;
                if std::mem::replace(&mut self.told, true) {
                    tracing::debug!(%slot, %error, "events that wait cannot be tried again now");
                } else {
                    tracing::warn!(%slot, %error, fix = error.what_to_do(), "events that wait cannot be tried again now");
                }
            }
        }
        tried
    }
}

impl Of {
    /// What was done counts, however it ended.
    async fn pass(&self) -> (Tried, Result<()>) {
        let mut tried = Tried::default();
        let ended = self.try_due(&mut tried).await;
        tried.accepting.sort_unstable();
        tried.accepting.dedup();
        (tried, ended)
    }

    async fn try_due(&self, tried: &mut Tried) -> Result<()> {
        let Some(stored) = self.known.borrow().clone() else { return Ok(()) };
        let mut session = self.session.lock().await;
        let marker = match session.take().filter(|marker| !marker.is_closed()) {
            Some(marker) => marker,
            None => match Marker::impatient(&self.config).await? {
                Some(marker) => marker,
                None => return Ok(()),
            },
        };
        let ended = Pass::new(self, &marker, &stored, tried).run().await;
        if ended.is_ok() || marker.answers().await.is_ok() {
            *session = Some(marker);
        }
        ended
    }

    /// What this process remembers. Never held while anything is waited for.
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.known.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
