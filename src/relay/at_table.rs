//! The relay at its table: before a slot is streamed, or instead.

use tokio::time::Instant;

use super::{CHECK_TIMEOUT, LASTED, Life, Relay, drain, report, table};
use crate::error::{Error, Kind, Result};
use crate::postgres::replication::WalSession;
use crate::relay::lease::{Lease, Why};
use crate::relay::replication::Ended;
use crate::relay::stop::{Stop, StopSignal};
use crate::relay::watch::Process;

impl Relay {
    /// Drops the slot, so that the server can let go of its log. What is stored tells what was published, and Kafka, which
    /// may be why it kept so much, is not asked.
    pub(super) async fn give_up(&mut self) {
        let source = &self.config.source;
        let dropped = async { WalSession::connect(&source.database, source).await?.drop_slot().await };
        match dropped.await {
            Ok(()) => {
                tracing::warn!(slot = %source.slot, "the slot is dropped; it is made anew once the table is caught up with");
                self.polls_instead = Some("the slot kept more log than it may".to_owned());
            }
            Err(error) => tracing::warn!(slot = %source.slot, %error, "the slot could not be given up"),
        }
    }

    /// Reads the table: before a slot is streamed, or instead.
    pub(super) async fn at_table(&mut self, why: Why, stop: &mut StopSignal) -> Result<Ended> {
        self.pulse.release();
        // What a stream left in flight is known to be published, or will come again.
        let mut known = None;
        if let Some(Life::Running(pipeline)) = &mut self.life {
            let (until, before) = (Instant::now() + CHECK_TIMEOUT, pipeline.publisher.counts());
            let drained = drain::drain(pipeline, until, stop).await;
            report::tell_counts(&self.telemetry, pipeline.publisher.counts(), before);
            if !drained? {
                let what = "Kafka does not ack what is in flight; reading the table behind it";
                return Err(Error::new(Kind::KafkaUnreachable, what));
            }
            drain::write_back(pipeline, &self.config).await?;
            let position = pipeline.publisher.ledger.delivered();
            known = Some((position, pipeline.trail.published(&position).cloned(), pipeline.inside(&position)));
        }
        let producer = self.life.as_ref().map(Life::producer);
        let mut warn = |warning: String| {
            if self.warned.insert(warning.clone()) {
                tracing::warn!(slot = %self.config.source.slot, "{warning}");
            }
        };
        let lease = tokio::select! {
            () = stop.at_least(Stop::Drain) => return Ok(Ended::Stopped),
            lease = Lease::take(&self.config, producer, (&why, &self.known), &mut warn) => lease,
        };
        if lease.as_ref().is_err_and(|error| error.kind() == Kind::SlotActive) {
            // Whoever has it knows better.
            self.polls_instead = None;
        }
        let mut lease = lease?;
        if let Some(sink) = lease.sink.take() {
            self.life = Some(Life::New(Box::new(sink), None));
        }
        let same_server = self.served.as_ref().is_some_and(|served| *served == lease.stored.server);
        if let Some((position, Some(published), inside)) = known.filter(|_| same_server)
            && position.is_at_or_after(&lease.stored.position)
        {
            lease.knows(position, published);
            self.inside = inside;
        }
        self.served = Some(lease.stored.server.clone());
        let sink = match self.life.take() {
            Some(Life::Running(mut pipeline)) => {
                self.poison = std::mem::take(&mut pipeline.publisher.poison);
                pipeline.publisher.sink
            }
            Some(Life::New(sink, _)) => *sink,
            None => return Err(Error::new(Kind::Bug, "the table without a producer")),
        };
        if self.failing.take().is_some() {
            tracing::info!(slot = %self.config.source.slot, tries = self.backoff.tries(), "at the table again");
        }
        let began = Instant::now();
        // Rows that are asked for again are meant to be.
        let delivered = if matches!(why, Why::Asked(_)) { Vec::new() } else { self.inside.clone() };
        self.pulse.guard(sink.producer());
        let (config, telemetry, pulse, stop) = (&self.config, &self.telemetry, &self.pulse, stop.clone());
        let process = Process { config, telemetry, pulse, stop };
        let (sink, begun, ended) = Box::pin(table::run(lease, sink, delivered, &mut self.poison, process)).await;
        self.pulse.release();
        let sink = match sink {
            // It takes nothing any more.
            Some(sink) if self.pulse.take_given_up() => {
                sink.close().await;
                None
            }
            sink => sink,
        };
        self.life = sink.map(|sink| Life::New(Box::new(sink), None));
        self.known.send_replace(None);
        if begun {
            // What is stored from here on is what counts.
            self.config.state.adopt_slot = false;
        }
        if ended.is_ok() {
            self.inside.clear();
            self.polls_instead = None;
        }
        if ended.is_ok() || began.elapsed() > LASTED {
            self.backoff.reset();
        }
        self.told = true;
        ended
    }
}
