//! The relay's producer from its start to its end, and the knowledge that its successor needs.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::Config;
use crate::relay::setup::setup_of;
use crate::relay::shared_loop::at_once;
use crate::relay::stall_watchdog::StallWatchdog;
use crate::relay::store::Known;
use crate::sink::{AnySink, BusSink as _, SinkHandle};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::ledger::trail::Published;
use walrelay_core::position::Position;
use walrelay_core::publisher::pipeline::Pipeline;
use walrelay_core::publisher::quarantine::Quarantine;

pub(super) struct RelayProducer {
    state: State,
    /// Guards the producer while a session runs.
    pub(super) watchdog: StallWatchdog,
    /// Knowledge of rejected events, while no pipeline runs.
    pub(super) quarantine: Quarantine,
    /// The instant that times inside the pipeline are since.
    pub(super) epoch: Instant,
    known: Known,
}

enum State {
    Absent,
    /// It has not published from the slot.
    New(AnySink),
    Running(Box<Pipeline<AnySink>>),
}

impl RelayProducer {
    pub(super) fn new(watchdog: StallWatchdog, known: Known) -> RelayProducer {
        RelayProducer {
            state: State::Absent,
            watchdog,
            quarantine: Quarantine::default(),
            epoch: Instant::now(),
            known,
        }
    }

    /// Those of these topics that the bus does not have. A producer that publishes from the slot
    /// does not ask.
    pub(super) async fn missing(
        &self,
        config: &Config,
        topics: &[&str],
        timeout: Duration,
    ) -> Result<Vec<String>> {
        match &self.state {
            State::New(sink) => sink.missing(topics, timeout).await,
            State::Absent => AnySink::for_asking(config)?.missing(topics, timeout).await,
            State::Running(_) => Ok(Vec::new()),
        }
    }

    pub(super) fn running(&self) -> Option<&Pipeline<AnySink>> {
        let State::Running(pipeline) = &self.state else {
            return None;
        };
        Some(pipeline)
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut Pipeline<AnySink>> {
        let State::Running(pipeline) = &mut self.state else {
            return None;
        };
        Some(pipeline)
    }

    /// The producer, for the position store and for who gives it up.
    pub(super) fn handle(&self) -> Option<SinkHandle> {
        match &self.state {
            State::Absent => None,
            State::New(sink) => Some(sink.handle()),
            State::Running(pipeline) => Some(pipeline.publisher.sink.handle()),
        }
    }

    /// Of the pipeline, where one runs.
    pub(super) fn newest_quarantine(&mut self) -> &mut Quarantine {
        let State::Running(pipeline) = &mut self.state else {
            return &mut self.quarantine;
        };
        &mut pipeline.publisher.judge.quarantine
    }

    /// Every change of the state. Gives the previous state, whose quarantine and due write-backs
    /// stay here.
    fn change_to(&mut self, next: State) -> State {
        let mut before = std::mem::replace(&mut self.state, next);
        if let State::Running(pipeline) = &mut before {
            self.quarantine = std::mem::take(&mut pipeline.publisher.judge.quarantine);
            self.known.left.lock().ended(pipeline);
        }
        before
    }

    /// A producer that has published nothing from the slot begins where the stored position is.
    pub(super) fn begin(&mut self, sink: AnySink) {
        self.change_to(State::New(sink));
    }

    /// The session of this pipeline, which [`RelayProducer::enter`] gave, has ended.
    pub(super) fn leave(&mut self, pipeline: Box<Pipeline<AnySink>>) {
        self.change_to(State::Running(pipeline));
    }

    /// Takes the sink out, to close it, or for another source than the slot once nothing of it is
    /// in flight.
    pub(super) fn take_sink(&mut self) -> Result<AnySink> {
        match self.change_to(State::Absent) {
            State::Running(pipeline) => Ok(pipeline.publisher.sink),
            State::New(sink) => Ok(sink),
            State::Absent => Err(Error::new(Kind::Bug, "the table without a producer")),
        }
    }

    /// Takes out the pipeline that continues after `stored`, the stored position of this server and
    /// slot. Errors: another server answers, or another relay was at work; both heal with the next
    /// producer.
    pub(super) fn enter(
        &mut self,
        config: &Config,
        stored: Position,
        published: Option<Published>,
    ) -> Result<Box<Pipeline<AnySink>>> {
        if self.running().is_some() && self.known.left.lock().turn.is_past() {
            self.change_to(State::Absent);
            self.known.left.lock().open();
            let what = "another relay was at work, or another server answers; starting after the \
                        stored position";
            return Err(Error::new(Kind::SlotActive, what));
        }
        let sink = match std::mem::replace(&mut self.state, State::Absent) {
            State::Running(pipeline) => return Ok(pipeline),
            State::New(sink) => sink,
            State::Absent => return Err(Error::new(Kind::Bug, "a session without a producer")),
        };
        let setup = setup_of(config);
        let mut left = self.known.left.lock();
        let mut pipeline = left.begin(&setup, stored, published, sink, self.epoch.elapsed())?;
        pipeline.publisher.judge.quarantine = self.quarantine.take_over();
        Ok(Box::new(pipeline))
    }

    /// Replaces a producer that failed: the next one starts after the delivered position. One that
    /// has published nothing stays.
    pub(super) async fn replace(&mut self, config: &Config) {
        if !matches!(self.state, State::Running(_)) {
            return;
        }
        self.end().await;
        match AnySink::connect(config) {
            Ok(sink) => _ = self.change_to(State::New(sink)),
            Err(error) => tracing::error!(event = "producer_creation_failed", %error,
                "a new producer could not be made"),
        }
    }

    /// Ends the producer. The next one sends again what this one has not delivered.
    pub(super) async fn end(&mut self) {
        self.watchdog.release();
        if let Ok(sink) = self.take_sink() {
            sink.close().await;
        }
    }

    /// The row keys are others from now on. Rows that are not written back are published again.
    pub(super) async fn forget_rows(&mut self, config: &Config) {
        let completed = self.running_mut().map(|pipeline| {
            let position = pipeline.publisher.completed();
            pipeline.delivered_at(position)
        });
        self.replace(config).await;
        let mut left = self.known.left.lock();
        let is_written = left.write_backs.is_empty();
        let delivered = left.delivered.take().filter(|_| is_written);
        left.forget();
        left.delivered = completed.or(delivered);
        self.quarantine = Quarantine::default();
    }

    /// Whether events of this process are in flight, or failed.
    pub(super) async fn has_in_flight(&mut self) -> bool {
        let Some(pipeline) = self.running_mut() else {
            return false;
        };
        let _none = at_once(pipeline.publisher.receive_deliveries()).await;
        pipeline.publisher.delivered().is_err() || !pipeline.publisher.is_drained()
    }

    /// Whether nothing is in flight, not counting producers that were given up.
    pub(super) fn is_drained(&self) -> bool {
        // No consumer sees what is acked and not committed.
        self.running().is_none_or(|pipeline| {
            pipeline.publisher.is_drained() && !pipeline.publisher.transaction.is_open()
        })
    }
}
