//! The relay's producer from its making to its end, and what is known beyond that.

use tokio::time::Instant;

use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::event::RowId;
use crate::ledger::trail::Published;
use crate::position::Position;
use crate::relay::drain;
use crate::relay::pipeline::{OpenTransaction, Pipeline};
use crate::relay::publisher::Setup;
use crate::relay::quarantine::Quarantine;
use crate::relay::stall_watchdog::StallWatchdog;
use crate::relay::watch::at_once;
use crate::sink::{AnySink, SinkHandle};

/// See the module's documentation.
pub(super) struct RelayProducer {
    state: State,
    /// Guards the producer while a session runs.
    pub(super) watchdog: StallWatchdog,
    /// What is known of events that the broker refuses, while no pipeline runs.
    pub(super) quarantine: Quarantine,
    /// Rows the slot delivered of the transaction it went in the middle of, until the table was read.
    pub(super) inside: Vec<RowId>,
    /// The transaction the last session was inside of.
    begun: OpenTransaction,
    /// The instant that times inside the pipeline are since.
    pub(super) epoch: Instant,
}

enum State {
    /// There is none.
    Absent,
    /// It has not published from the slot. It begins behind the position, or behind what is stored where there is none.
    New(AnySink, Option<Position>),
    /// It publishes from the slot.
    Running(Box<Pipeline<AnySink>>),
}

impl RelayProducer {
    /// There is none.
    pub(super) fn new(watchdog: StallWatchdog) -> RelayProducer {
        RelayProducer {
            state: State::Absent,
            watchdog,
            quarantine: Quarantine::default(),
            inside: Vec::new(),
            begun: OpenTransaction::default(),
            epoch: Instant::now(),
        }
    }

    pub(super) fn is_absent(&self) -> bool {
        matches!(self.state, State::Absent)
    }

    /// The sink, where nothing was published from the slot.
    pub(super) fn new_sink(&self) -> Option<&AnySink> {
        match &self.state {
            State::New(sink, _) => Some(sink),
            State::Absent | State::Running(_) => None,
        }
    }

    pub(super) fn running(&self) -> Option<&Pipeline<AnySink>> {
        match &self.state {
            State::Running(pipeline) => Some(pipeline),
            State::Absent | State::New(..) => None,
        }
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut Pipeline<AnySink>> {
        match &mut self.state {
            State::Running(pipeline) => Some(pipeline),
            State::Absent | State::New(..) => None,
        }
    }

    /// The producer, for the position store and for who gives it up.
    pub(super) fn handle(&self) -> Option<SinkHandle> {
        match &self.state {
            State::Absent => None,
            State::New(sink, _) => Some(sink.handle()),
            State::Running(pipeline) => Some(pipeline.publisher.sink.handle()),
        }
    }

    /// What is known of events that the broker refuses: a pipeline that runs has it.
    pub(super) fn newest_quarantine(&mut self) -> &mut Quarantine {
        match &mut self.state {
            State::Running(pipeline) => &mut pipeline.publisher.quarantine,
            State::Absent | State::New(..) => &mut self.quarantine,
        }
    }

    pub(super) fn set_new(&mut self, sink: AnySink) {
        self.state = State::New(sink, None);
    }

    /// This one goes on.
    pub(super) fn set_running(&mut self, pipeline: Box<Pipeline<AnySink>>) {
        self.state = State::Running(pipeline);
    }

    /// Takes the state out, with what is known of refused events left here.
    fn take(&mut self) -> State {
        let mut state = std::mem::replace(&mut self.state, State::Absent);
        if let State::Running(pipeline) = &mut state {
            self.quarantine = std::mem::take(&mut pipeline.publisher.quarantine);
        }
        state
    }

    /// Takes the sink out, for another source than the slot. Nothing of it is in flight.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn take_sink(&mut self) -> Result<AnySink> {
        match self.take() {
            State::Running(pipeline) => Ok(pipeline.publisher.sink),
            State::New(sink, _) => Ok(sink),
            State::Absent => Err(Error::new(Kind::Bug, "the table without a producer")),
        }
    }

    /// Takes out the pipeline that goes on behind `stored`, which the store holds and which belongs to this server and slot.
    ///
    /// # Errors
    /// What this process delivered is not of this server, or another relay went on from there; both heal with the next
    /// producer.
    pub(super) fn enter(
        &mut self,
        config: &Config,
        stored: Position,
        published: Option<Published>,
        same_server: bool,
    ) -> Result<Box<Pipeline<AnySink>>> {
        let (sink, start) = match std::mem::replace(&mut self.state, State::Absent) {
            State::Running(pipeline) => match belongs(pipeline.publisher.ledger.delivered(), stored, same_server) {
                Belongs::Here => return Ok(pipeline),
                Belongs::ToAnotherServer => {
                    let what = "another server or timeline answers; starting after the position that is stored for it";
                    return Err(Error::new(Kind::PostgresUnreachable, what));
                }
                Belongs::ToThePast => {
                    let what = "another relay served the slot in between; starting after its position";
                    return Err(Error::new(Kind::SlotActive, what));
                }
            },
            State::New(sink, Some(resume)) if belongs(resume, stored, same_server) == Belongs::Here => (sink, resume),
            State::New(sink, _) => (sink, stored),
            State::Absent => return Err(Error::new(Kind::Bug, "a session without a producer")),
        };
        let setup = Setup::of(config);
        let mut pipeline = Pipeline::new(&setup, start, stored, published, sink, self.epoch.elapsed())?;
        pipeline.publisher.quarantine = self.quarantine.take_over();
        if same_server {
            pipeline.begun = std::mem::take(&mut self.begun);
        }
        Ok(Box::new(pipeline))
    }

    /// The producer failed, and nothing behind its failure counts: the next one starts behind what was delivered. One that
    /// has published nothing may as well go on.
    pub(super) async fn replace(&mut self, config: &Config) {
        let State::Running(pipeline) = &mut self.state else { return };
        // What cannot be marked now is published again, and marked then.
        if let Err(error) = drain::write_back(&mut pipeline.publisher, config).await {
            tracing::debug!(%error, "rows that were acked could not be marked");
        }
        let resume = pipeline.publisher.completed();
        self.end().await;
        match AnySink::connect(config) {
            Ok(sink) => self.state = State::New(sink, Some(resume)),
            Err(error) => tracing::error!(%error, "a new producer could not be made"),
        }
    }

    /// The end of a producer that commits positions with its events: nothing of it counts but what is committed.
    pub(super) async fn end_uncommitted(&mut self) {
        if let State::Running(pipeline) = &mut self.state {
            self.inside = pipeline.inside(&pipeline.stored_position());
            self.begun = std::mem::take(&mut pipeline.begun);
        }
        self.end().await;
    }

    /// The end of the producer. What it has not delivered is sent again by the next one.
    pub(super) async fn end(&mut self) {
        self.watchdog.release();
        match self.take() {
            State::New(sink, _) => sink.close().await,
            State::Running(pipeline) => pipeline.publisher.sink.close().await,
            State::Absent => {}
        }
    }

    /// Rows go by other names from now on.
    pub(super) async fn forget_rows(&mut self, config: &Config) {
        self.replace(config).await;
        (self.inside, self.begun, self.quarantine) = (Vec::new(), OpenTransaction::default(), Quarantine::default());
    }

    /// Whether Kafka still has to say something about events of this process.
    pub(super) async fn has_in_flight(&mut self) -> bool {
        let Some(pipeline) = self.running_mut() else { return false };
        let _none = at_once(pipeline.publisher.receive_deliveries()).await;
        pipeline.publisher.delivered().is_err() || !pipeline.publisher.is_drained()
    }

    /// Whether nothing is in flight. What a producer had that was given up is not counted.
    pub(super) fn is_drained(&self) -> bool {
        // What is acked and not committed is not there for anybody.
        self.running()
            .is_none_or(|pipeline| pipeline.publisher.is_drained() && !pipeline.publisher.transaction.is_open())
    }
}

/// Whether what this process has delivered is a position in the log that answers now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Belongs {
    /// It is, and nobody went further.
    Here,
    /// It was learned of another server or timeline, where the same LSN is another place.
    ToAnotherServer,
    /// Another relay had the slot in between and went further.
    ToThePast,
}

/// Judges `delivered`, which this process knows, by `stored`, which was just read and belongs here (P1).
fn belongs(delivered: Position, stored: Position, same_server: bool) -> Belongs {
    match (same_server, delivered.is_at_or_after(&stored)) {
        (false, _) => Belongs::ToAnotherServer,
        (true, true) => Belongs::Here,
        (true, false) => Belongs::ToThePast,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::Lsn;

    #[test]
    fn what_was_delivered_before_a_failover_says_nothing_of_the_new_timeline() {
        let at = |lsn| Position::at(Lsn::new(lsn));
        // P1: the old primary was at 300, the new one branched off at 200: its commits below 300 are new events.
        assert_eq!(belongs(at(300), at(200), false), Belongs::ToAnotherServer);
        assert_eq!(belongs(at(300), at(200), true), Belongs::Here);
        assert_eq!(belongs(at(200), at(300), true), Belongs::ToThePast);
    }
}
