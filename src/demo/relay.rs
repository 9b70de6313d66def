//! The relay under demonstration, in this process.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::config::layers::{Environment, Settings};
use crate::error::{Error, Kind, Result};
use crate::relay;
use crate::relay::stop::{Stop, stop_channel};
use crate::telemetry::Telemetry;

/// The future that tells a relay to stop by completing.
pub type StopSignal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What the relay has to connect.
#[derive(Debug, Clone)]
pub struct Target {
    /// The private Postgres, as a connection string with its password.
    pub conninfo: String,
    /// The slot; it exists, made by pgoutput.
    pub slot: String,
    /// The publication of the outbox table; it exists.
    pub publication: String,
    /// The outbox table as SQL reads it, with the columns of Debezium's Outbox Event Router.
    pub table: String,
    /// `bootstrap.servers`.
    pub brokers: String,
    /// Text before the aggregate type in a topic's name.
    pub topic_prefix: String,
    /// Name of the header with the event's id.
    pub id_header: String,
}

/// A relay at work. Dropping it abandons it where it is, which is what a crash does.
#[derive(Debug)]
pub struct RunningRelay {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<()>>,
}

impl RunningRelay {
    /// Runs what `run` makes of telemetry and the signal to stop.
    pub fn spawn<F>(run: impl FnOnce(Telemetry, StopSignal) -> F) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel::<()>();
        let telemetry = Telemetry::new(Duration::from_secs(30));
        let signal: StopSignal = Box::pin(async move { drop(stopped.await) });
        RunningRelay { stop: Some(stop), task: tokio::spawn(run(telemetry, signal)) }
    }

    /// Whether it ended by itself.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Tells it to stop, and waits until it has.
    ///
    /// # Errors
    /// The relay's own.
    pub async fn stop(mut self) -> Result<()> {
        if let Some(stop) = self.stop.take() {
            // A relay that ended by itself listens no more; its outcome follows.
            stop.send(()).unwrap_or_default();
        }
        let ended = (&mut self.task).await;
        ended.map_err(|error| Error::new(Kind::Bug, format!("the relay's task: {error}")))?
    }
}

impl Drop for RunningRelay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts the relay between what [`Target`] names: the seam to [`crate::relay`].
///
/// # Errors
/// Where the target cannot be made a configuration.
pub fn start_relay(target: &Target) -> Result<RunningRelay> {
    let config = configure(target)?;
    Ok(RunningRelay::spawn(move |telemetry, stopped| async move {
        let (stopper, stop) = stop_channel();
        let relay = Box::pin(relay::run(config, telemetry, stop));
        let ask = async {
            stopped.await;
            stopper.ask(Stop::Drain);
            // The relay ends this by ending.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = relay => ended,
            () = ask => Ok(()),
        }
    }))
}

/// What `walrelay run` would make of flags for `target`, and its defaults for the rest.
///
/// The position is kept in Postgres: librdkafka's mock cluster has no admin interface to create a topic with.
fn configure(target: &Target) -> Result<Config> {
    let given = [
        ("database.url", &target.conninfo),
        ("slot.name", &target.slot),
        ("slot.publication", &target.publication),
        ("outbox.table", &target.table),
        ("kafka.brokers", &target.brokers),
        ("route.topic_prefix", &target.topic_prefix),
        ("route.id_header", &target.id_header),
        ("state.store", &"postgres".to_owned()),
    ];
    let flags = given.into_iter().map(|(key, text)| (key, text.clone())).collect();
    Settings::new(&flags, &Environment::new(), None)?.config(false)
}
