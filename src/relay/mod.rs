//! The relay: one task that owns the position, and everything it needs to come back from what fails.
//!
//! Two lives are nested. A *producer's* life ([`core::Core`]) begins behind the delivered position and ends with the
//! first delivery that fails. Inside it, a *session* begins with a connection to Postgres and ends with it; the next
//! one goes on where the last stopped, so that losing Postgres sends nothing twice.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::{Config, OnError, OutboxConfig};
use crate::error::{Error, Kind, Result};
use crate::event::RowId;
use crate::ledger::trail::Published;
use crate::position::{Lsn, Position};
use crate::postgres::sql::SqlSession;
use crate::sink::kafka::KafkaSink;
use crate::source::row_key;
use crate::state::ServerIdentity;
use crate::telemetry::{Side, Telemetry};

mod again;
mod alarm;
mod at_table;
pub mod backoff;
mod batches;
mod begun;
mod budget;
pub mod delivered_before;
mod drain;
mod fence;
mod fitness;
mod found;
mod jobs;
mod kept;
mod lease;
mod leaving;
mod life;
mod outage;
mod pace;
mod parking;
pub mod pipeline;
pub mod poison;
pub mod publisher;
mod pulse;
mod recovery;
mod refusals;
mod replication;
mod report;
mod retention;
mod retrying;
mod session;
mod slot;
mod stand_by;
pub mod stop;
mod table;
mod table_loop;
mod transaction;
mod watch;
mod write_back;

use self::backoff::Backoff;
use self::batches::Batches;
use self::begun::Begun;
use self::delivered_before::DeliveredBefore;
use self::lease::Why;
use self::life::Life;
use self::pipeline::Pipeline;
use self::poison::Poison;
use self::publisher::Setup;
use self::pulse::Pulse;
use self::refusals::Refusals;
use self::replication::Ended;
use self::retention::Known;
use self::session::{Opened, Session};
use self::stop::{Stop, StopSignal};
use self::watch::Process;

/// Relays until told to stop or until a person has to act.
///
/// What was acked and stored when it returns is confirmed, unless Postgres could not be told.
///
/// # Errors
/// Everything that [halts](Kind::halts), and [`Kind::ShutdownTimeout`] where a stop left events not acked. Faults
/// that heal are retried here with back-off and never returned.
pub async fn run(config: Config, telemetry: Telemetry, mut stop: StopSignal) -> Result<()> {
    let retention = config.clone();
    let mut relay = Relay::new(config, telemetry)?;
    let known = Arc::clone(&relay.known);
    let result = tokio::select! {
        biased;
        result = Box::pin(relay.run(&mut stop)) => result,
        () = retention::keep(&retention, &known) => Err(Error::new(Kind::Bug, "the retention came to an end")),
    };
    if stop.asked() < Stop::Now {
        relay.end_life().await;
    }
    if let Err(error) = &result {
        relay.telemetry.health.halted(&error.to_string());
        relay.telemetry.metrics.error(error.kind());
    }
    result
}

/// How long Kafka has to answer before the slot is taken: a relay that cannot deliver leaves it to one that can.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// A session that lasted this long was a good one, and the next outage is another.
const LASTED: Duration = Duration::from_secs(10);

/// What outlives a session.
struct Relay {
    /// The instant that times inside the pipeline are since.
    epoch: Instant,
    backoff: Backoff,
    life: Option<Life>,
    /// Sessions so far.
    sessions: u64,
    /// Whether topics may have what comes again: an earlier process was killed, or this one stood still.
    is_in_doubt: bool,
    /// Server and timeline of the last session.
    served: Option<ServerIdentity>,
    /// What the operator was warned of: once, not at each try.
    warned: HashSet<String>,
    /// What the current outage was reported as: one line per state, not per try (P9).
    failing: Option<Kind>,
    /// Why the table is polled for a while, although there may be a slot.
    polls_instead: Option<String>,
    /// What the last producer left to be known of events that the broker refuses.
    poison: Poison,
    /// How often something was learned of them so far.
    learned: u64,
    /// How often it was a batch that was too large, and none of its records.
    in_vain: u64,
    /// Topics that refuse records, and how often they did.
    refusals: Refusals,
    batches: Batches,
    /// What is stored of what is published.
    known: Known,
    /// Rows the slot delivered of the transaction it went in the middle of, until the table was read.
    inside: Vec<RowId>,
    /// The transaction the last session was inside of.
    begun: Begun,
    /// Rows that somebody set to pending again.
    asked: Vec<RowId>,
    /// Whether the last session ended with all that may be confirmed told to Postgres.
    told: bool,
    /// The server's side of the last stream of this process.
    walsender_pid: Option<i32>,
    pulse: Pulse,
    config: Config,
    telemetry: Telemetry,
}

impl Relay {
    /// Nothing is connected, and nothing is known.
    fn new(config: Config, telemetry: Telemetry) -> Result<Relay> {
        Ok(Relay {
            epoch: Instant::now(),
            backoff: Backoff::new(fastrand::Rng::new()),
            life: None,
            sessions: 0,
            is_in_doubt: true,
            served: None,
            warned: HashSet::new(),
            failing: None,
            told: true,
            walsender_pid: None,
            pulse: Pulse::start(config.source.wal_sender_timeout)?,
            polls_instead: None,
            poison: Poison::default(),
            learned: 0,
            in_vain: 0,
            refusals: Refusals::default(),
            batches: Batches::of(&config.kafka),
            inside: Vec::new(),
            begun: Begun::default(),
            asked: Vec::new(),
            known: Known::default(),
            config,
            telemetry,
        })
    }

    async fn run(&mut self, stop: &mut StopSignal) -> Result<()> {
        loop {
            let ended = self.one_session(stop).await;
            let error = match ended.map_err(|error| self.unless_its_batch(error)) {
                Ok(Ended::Stopped) => return self.leave(stop).await,
                // The next session is of another kind.
                Ok(next) if next != Ended::ServerShutDown => {
                    if stop.asked() != Stop::No {
                        return self.leave(stop).await;
                    }
                    match next {
                        Ended::Asked(rows) => self.asked = rows,
                        Ended::OverBudget => self.give_up().await,
                        Ended::Held(why) => self.polls_instead = Some(why),
                        Ended::Again | Ended::Stopped | Ended::ServerShutDown => {}
                    }
                    continue;
                }
                Ok(_) => Error::new(Kind::PostgresUnreachable, "Postgres is shutting down"),
                Err(error) if error.kind().halts() => return Err(error),
                Err(error) if error.kind() == Kind::SlotActive && stop.asked() == Stop::No => {
                    tracing::debug!(%error, "standing by");
                    match Box::pin(self.stand_by(stop)).await {
                        Ok(()) if stop.asked() != Stop::No => return self.leave(stop).await,
                        Ok(()) => continue,
                        Err(error) if error.kind().halts() => return Err(error),
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            if stop.asked() == Stop::No {
                self.note_learned();
                let wait = self.failed(&error)?;
                if self.is_transactional() {
                    // What it has open is given up at once: readers do not wait for the next session.
                    self.retire().await;
                } else if error.kind().ends_producer() {
                    self.begin_new_life().await;
                }
                self.learn_of_topic(&error, wait);
                let wait = wait.unwrap_or_default();
                tokio::select! {
                    () = stop.at_least(Stop::Drain) => {}
                    () = tokio::time::sleep(wait) => {}
                }
            } else if error.kind().ends_producer() {
                // The producer is finished, and nothing more will be acked.
                return self.left(self.is_drained());
            }
            if stop.asked() != Stop::No {
                return self.leave(stop).await;
            }
        }
    }

    /// From connecting to Postgres until the connection, the producer or the relay ends.
    async fn one_session(&mut self, stop: &mut StopSignal) -> Result<Ended> {
        let given_up = self.pulse.take_given_up();
        self.is_in_doubt |= given_up;
        if self.is_transactional() {
            // Every session fences, and goes on from what is committed.
            self.retire().await;
        } else if given_up {
            self.begin_new_life().await;
        }
        if self.life.is_none() && !self.is_transactional() {
            self.life = Some(Life::New(Box::new(KafkaSink::connect(&self.config.kafka)?), None));
        }
        tokio::select! {
            () = stop.at_least(Stop::Drain) => return Ok(Ended::Stopped),
            named = self.name_rows() => named?,
        }
        if !self.asked.is_empty() {
            let asked = std::mem::take(&mut self.asked);
            return Box::pin(self.at_table(Why::Asked(asked), stop)).await;
        }
        let delivery = &self.config.delivery;
        let dead_letters =
            Some(delivery.dead_letter_topic.as_str()).filter(|_| delivery.on_error == OnError::DeadLetter);
        let (needed, mut missing): (Vec<_>, Vec<String>) = (dead_letters.into_iter().collect(), Vec::new());
        let open = async {
            match &self.life {
                Some(Life::New(sink, _)) => missing.extend(sink.check(&needed, CHECK_TIMEOUT).await?.missing),
                Some(Life::Running(_)) => {}
                None => {
                    let asks = KafkaSink::for_asking(&self.config.kafka)?;
                    missing.extend(asks.check(&needed, CHECK_TIMEOUT).await?.missing);
                }
            }
            let mut warn = |warning: String| {
                if self.warned.insert(warning.clone()) {
                    tracing::warn!(slot = %self.config.source.slot, "{warning}");
                }
            };
            missing.iter().for_each(|topic| warn(outage::no_dead_letters(topic)));
            Session::open(
                &self.config,
                self.life.as_ref().map(Life::producer),
                Lsn::ZERO,
                (self.polls_instead.as_deref(), &self.known),
                &mut warn,
            )
            .await
        };
        let opened = tokio::select! {
            () = stop.at_least(Stop::Drain) => return Ok(Ended::Stopped),
            opened = open => opened?,
        };
        let mut session = match opened {
            Opened::Stream(session) => *session,
            Opened::Table(why) => return Box::pin(self.at_table(why, stop)).await,
        };
        if let Some(sink) = session.sink.take() {
            self.life = Some(Life::New(Box::new(sink), None));
        }
        let life = self.life.take();
        // What this process knows counts only on the server and timeline where it learned it.
        let same_server = self.served.as_ref().is_none_or(|served| served == session.server());
        self.served = Some(session.server().clone());
        self.config.state.adopt_slot = false;
        let mut pipeline = self.enter(life, session.start_position(), session.published(), same_server)?;
        self.sessions += 1;
        if self.sessions > 1 {
            self.telemetry.metrics.reconnect(Side::Postgres);
        }
        pipeline.reconnected();
        pipeline.publisher.set_origin(&session.server().system_identifier, session.server().timeline);
        pipeline.set_catalog(std::mem::take(&mut session.table_oids), std::mem::take(&mut session.base_types));
        pipeline.publisher.set_parked(std::mem::take(&mut session.waiting));
        if std::mem::take(&mut self.is_in_doubt) {
            self.expect_again(&mut pipeline, &session);
        }
        self.recovered(session.start_position());
        let (acked, began) = (pipeline.publisher.counts().acked, Instant::now());
        self.walsender_pid = Some(session.walsender_pid);
        self.pulse.guard(pipeline.publisher.sink.producer());
        let (config, telemetry, pulse, stop) = (&self.config, &self.telemetry, &self.pulse, stop.clone());
        let process = Process { config, telemetry, pulse, stop };
        let ended = replication::run(&mut pipeline, session, &self.known, self.epoch, process).await;
        if pipeline.publisher.counts().acked > acked || began.elapsed() > LASTED {
            self.backoff.reset();
        }
        self.life = Some(Life::Running(pipeline));
        // Another relay may have the slot from here on.
        self.known.send_replace(None);
        self.telemetry.health.over_budget(None);
        self.told = matches!(ended, Ok(Ended::Stopped));
        ended
    }

    /// Finds what names the rows of each table. A pipeline that knew other names starts over.
    async fn name_rows(&mut self) -> Result<()> {
        let Config { source, delivery, .. } = &self.config;
        let mut outboxes = self.config.outboxes.clone();
        let session = SqlSession::connect(&source.database, &format!("walrelay/{}/row-key", source.slot)).await?;
        row_key::find(session.client(), source, delivery, &mut outboxes).await?;
        let key = |outbox: &OutboxConfig| (outbox.columns.clone(), outbox.row_key.clone());
        let is_same = outboxes.iter().map(key).eq(self.config.outboxes.iter().map(key));
        self.config.outboxes = outboxes;
        if !is_same && matches!(self.life, Some(Life::Running(_))) {
            self.begin_new_life().await;
        }
        if !is_same {
            (self.inside, self.asked, self.begun) = (Vec::new(), Vec::new(), Begun::default());
            self.poison = Poison::default();
        }
        Ok(())
    }

    /// The pipeline that goes on behind `stored`, which the store holds and which belongs to this server and slot.
    fn enter(
        &mut self,
        life: Option<Life>,
        stored: Position,
        published: Option<Published>,
        same_server: bool,
    ) -> Result<Box<Pipeline<KafkaSink>>> {
        let (sink, start) = match life {
            Some(Life::Running(pipeline)) => {
                match belongs(pipeline.publisher.ledger.delivered(), stored, same_server) {
                    Belongs::Here => return Ok(pipeline),
                    Belongs::ToAnotherServer => {
                        let what = "another server or timeline answers; starting again behind what is stored for it";
                        return Err(Error::new(Kind::PostgresUnreachable, what));
                    }
                    Belongs::ToThePast => {
                        let what = "another relay served the slot in between; starting behind it";
                        return Err(Error::new(Kind::SlotActive, what));
                    }
                }
            }
            Some(Life::New(sink, Some(resume))) if belongs(resume, stored, same_server) == Belongs::Here => {
                (sink, resume)
            }
            Some(Life::New(sink, _)) => (sink, stored),
            None => return Err(Error::new(Kind::Bug, "a session without a producer")),
        };
        let setup = Setup::of(&self.config);
        let mut pipeline = Pipeline::new(&setup, start, stored, published, *sink, self.epoch.elapsed())?;
        pipeline.publisher.remember(std::mem::take(&mut self.poison));
        if same_server {
            pipeline.begun = std::mem::take(&mut self.begun);
        }
        Ok(Box::new(pipeline))
    }

    /// What an earlier process published and did not store comes again, or what this one had sent when it stood still.
    fn expect_again(&self, pipeline: &mut Pipeline<KafkaSink>, session: &Session) {
        // What is committed with its position does not come again.
        if !self.config.delivery.reads_tails || self.is_transactional() {
            return;
        }
        let (server, outboxes) = (session.server(), &self.config.outboxes);
        let origin = (server.system_identifier.as_str(), server.timeline);
        match DeliveredBefore::new(outboxes, origin, session.start_position(), session.wal_end) {
            Some(before) => pipeline.publisher.expect_again(before),
            None => tracing::info!(
                slot = %self.config.source.slot,
                "records have no headers that name their event (route.id_header, route.position_header): those that were \
                 published before a crash may come again"
            ),
        }
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

    #[test]
    fn what_was_delivered_before_a_failover_says_nothing_of_the_new_timeline() {
        let at = |lsn| Position::at(crate::position::Lsn::new(lsn));
        // P1: the old primary was at 300, the new one branched off at 200: its commits below 300 are new events.
        assert_eq!(belongs(at(300), at(200), false), Belongs::ToAnotherServer);
        assert_eq!(belongs(at(300), at(200), true), Belongs::Here);
        assert_eq!(belongs(at(200), at(300), true), Belongs::ToThePast);
    }
}
