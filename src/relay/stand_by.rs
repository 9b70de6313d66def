//! Standing by: another relay has the slot, or its table, and this one waits to take over.
//!
//! The slot is the lock, and the server frees it the moment it ends the session that streams: at once where the relay's
//! process dies, and after that session's own `wal_sender_timeout` where the relay falls silent. Nobody is ended from here:
//! by the time a stand-by could be sure that the other is dead, the server has ended it.

use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Client;

use crate::error::Result;
use crate::postgres::sql::SqlSession;
use crate::relay::stop::{Stop, StopSignal};
use crate::relay::watch::at_once;
use crate::relay::{Life, Relay};
use crate::source::holder::{Holder, holder};
use crate::upkeep::left_behind::none_left_behind;

/// How long a stand-by waits between two looks, each one small query on a session that stays open. Up to as much again is
/// added, so that two of them do not come in step.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often it is looked whether it could take over.
const FIT_EVERY: Duration = Duration::from_secs(5);

impl Relay {
    /// Waits until nobody has the slot or the table, or until told to stop. Says once for each holder who it is.
    ///
    /// As soon as another relay is seen there, what this one has in flight is given up.
    ///
    /// # Errors
    /// Of the connection; and where events wait at the beginning that it would leave behind: it could not take over.
    pub(super) async fn stand_by(&mut self, stop: &mut StopSignal) -> Result<()> {
        let source = self.config.source.clone();
        let mut waited_for: Option<Holder> = None;
        let waiting = async {
            // Some other reason than a holder must not make it spin.
            tokio::time::sleep(LOOK_EVERY).await;
            let name = format!("walrelay/{}/stand-by", source.slot);
            let sql = SqlSession::connect(&source.database, &name).await?;
            none_left_behind(sql.client(), &self.config).await?;
            let (mut fit_at, mut told) = (Instant::now() + FIT_EVERY, false);
            while let Some(now) = holder(sql.client(), &source.slot).await? {
                if waited_for.as_ref() != Some(&now) {
                    self.waits_for(&now).await;
                    waited_for = Some(now);
                }
                if fit_at <= Instant::now() {
                    fit_at = Instant::now() + FIT_EVERY;
                    told = self.is_unfit(sql.client(), told).await;
                }
                tokio::time::sleep(LOOK_EVERY.mul_f64(1.0 + fastrand::f64())).await;
            }
            Ok(())
        };
        let ended = tokio::select! {
            () = stop.at_least(Stop::Drain) => Ok(()),
            ended = waiting => ended,
        };
        if waited_for.is_some() {
            self.telemetry.standing_by(None);
        }
        ended
    }

    /// Whether a take-over would end this relay now, which is said unless it was `told`. It need not come to that: what waits
    /// may be gone by then.
    async fn is_unfit(&self, client: &Client, told: bool) -> bool {
        let Err(error) = none_left_behind(client, &self.config).await else { return false };
        if error.kind().halts() && !told {
            let (slot, fix) = (&self.config.source.slot, error.what_to_do());
            tracing::warn!(%slot, %error, fix, "this stand-by could not take over now: it would end");
        }
        told || error.kind().halts()
    }

    async fn waits_for(&mut self, holder: &Holder) {
        self.telemetry.standing_by(Some(holder.to_string()));
        let slot = &self.config.source.slot;
        if self.walsender_pid == Some(holder.pid) {
            tracing::info!(%slot, %holder, "the server still has this relay's last session, and ends it after wal_sender_timeout");
            return;
        }
        tracing::info!(%slot, %holder, "standing by: another relay is at work");
        if self.has_in_flight().await {
            tracing::warn!("what Kafka has not acked is given up: the other relay publishes it");
            self.begin_new_life().await;
        }
    }

    /// Whether Kafka still has to say something about events of this process.
    async fn has_in_flight(&mut self) -> bool {
        let Some(Life::Running(pipeline)) = &mut self.life else { return false };
        let mut deliveries = Vec::new();
        let _none = at_once(pipeline.publisher.next_deliveries(&mut deliveries)).await;
        pipeline.publisher.delivered(&mut deliveries).is_err() || !pipeline.publisher.is_drained()
    }
}
