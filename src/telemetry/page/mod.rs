//! The status page: `/`, and its server-sent events at `/events`.
//!
//! A task samples what the pictures show once a second into a bounded history. While somebody
//! looks, the task also takes all figures, and renders the page. Each viewer's stream of events
//! ends by itself, so that a viewer holds a connection no longer than any other client may; the
//! browser then asks again.

mod render;
mod snapshot;

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, watch};
use tokio::time::MissedTickBehavior;

use self::snapshot::{History, Snapshot};
use super::{Flow, Telemetry};
use walrelay_core::printable::printable;

const TICK: Duration = Duration::from_secs(1);
/// A stream of events ends so long before its connection is closed, so that the browser sees no
/// fault.
const ENDS_BEFORE: Duration = Duration::from_secs(1);
/// The browser asks again after this.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// The end of a relay waits so long for its last event to leave.
const LAST_EVENT: Duration = Duration::from_millis(200);
/// Streams of events at a time: they leave connections for `/readyz` and `/metrics`.
const VIEWERS_MAX: usize = 16;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Nothing but what the page itself holds is loaded or run.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let [style, script] = [STYLE, SCRIPT].map(|text| STANDARD.encode(Sha256::digest(text)));
    format!(
        "default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; connect-src \
         'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
});

/// When the connection of a request is closed.
#[derive(Clone, Copy)]
pub(super) struct ClosesAt(pub(super) Instant);

pub(crate) struct Page {
    telemetry: Telemetry,
    history: Mutex<History>,
    /// The newest sections, while there are viewers.
    latest: watch::Sender<String>,
    viewers: Arc<Semaphore>,
    /// Held, so that the relay reports flows.
    _flows: watch::Receiver<Vec<Flow>>,
}

impl Page {
    pub(crate) fn new(telemetry: Telemetry) -> Arc<Page> {
        Arc::new(Page {
            _flows: telemetry.flows.subscribe(),
            telemetry,
            history: Mutex::default(),
            latest: watch::Sender::default(),
            viewers: Arc::new(Semaphore::new(VIEWERS_MAX)),
        })
    }

    pub(super) fn routes(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/", get(document))
            .route("/events", get(events))
            .with_state(Arc::clone(self))
    }

    /// Keeps the history, and renders the page for its viewers, until dropped.
    pub(super) async fn keep(&self) -> Infallible {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if self.latest.receiver_count() > 0 {
                self.latest.send_replace(self.sections());
            }
            self.history.lock().tick(&self.telemetry, Instant::now());
        }
    }

    /// Shows those who look why the relay ends: it does not answer afterwards.
    pub(crate) async fn show_end(&self) {
        if self.latest.receiver_count() > 0 {
            self.latest.send_replace(self.sections());
            tokio::time::sleep(LAST_EVENT).await;
        }
    }

    fn sections(&self) -> String {
        sections(&self.snapshot())
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.telemetry, &mut self.history.lock(), Instant::now())
    }
}

async fn document(State(page): State<Arc<Page>>) -> Response {
    (
        [(header::CONTENT_SECURITY_POLICY, POLICY.as_str())],
        Html(html(&page.snapshot())),
    )
        .into_response()
}

fn html(now: &Snapshot) -> String {
    let page = PAGE.replace("{style}", STYLE).replace("{script}", SCRIPT);
    page.replace("{sections}", &sections(now))
}

fn sections(now: &Snapshot) -> String {
    printable(&render::sections(now).into_string()).into_owned()
}

async fn events(
    State(page): State<Arc<Page>>,
    Extension(ClosesAt(closes_at)): Extension<ClosesAt>,
) -> Response {
    let Ok(permit) = Arc::clone(&page.viewers).try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many viewers\n").into_response();
    };
    let latest = page.latest.subscribe();
    let until = closes_at.checked_sub(ENDS_BEFORE).unwrap_or(closes_at);
    let first = page.sections();
    let events = stream::unfold(
        (Some(first), latest, permit),
        move |(first, mut latest, permit)| async move {
            if first.is_none() {
                // The time is over, or the relay ended.
                tokio::time::timeout_at(until.into(), latest.changed())
                    .await
                    .ok()?
                    .ok()?;
            }
            let sections = first.unwrap_or_else(|| latest.borrow_and_update().clone());
            Some((
                Ok::<_, Infallible>(Event::default().retry(ASK_AGAIN).data(sections)),
                (None, latest, permit),
            ))
        },
    );
    // nginx passes each event on at once.
    ([("x-accel-buffering", "no")], Sse::new(events)).into_response()
}

#[cfg(test)]
mod tests;
