//! The lease on the table: who reads it reads alone, and knows what is stored and how the slot is found.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::config::{Config, StoreKind};
use crate::error::{Error, Kind, Result};
use crate::event::RowId;
use crate::ledger::trail::Published;
use crate::position::{Lsn, Position};
use crate::postgres::fault::{self, While};
use crate::postgres::quote::quote_ident;
use crate::postgres::replication::{TimelineSwitch, WalSession};
use crate::postgres::sql::SqlSession;
use crate::relay::fence;
use crate::relay::recovery::{RecoveryPlan, SlotIs, backlog, choices, plan, wants_backlog};
use crate::relay::retention::Known;
use crate::relay::store::{AnyStore, read_position, slot_now, watched};
use crate::sink::{AnySink, SinkHandle};
use crate::source::control::Control;
use crate::source::lease::{Hold, hold};
use crate::source::preflight::{self, Facts};
use crate::state::check::{SlotNow, gap, known};
use crate::state::{CatchUp, Rows, ServerIdentity, Stored};

/// See the module's documentation.
pub(super) struct Lease {
    /// Holds it: the lease goes with this session.
    pub(super) control: Control,
    pub(super) store: AnyStore,
    /// What is stored, with the server, publication and tables as they are now.
    pub(super) stored: Stored,
    pub(super) task: TableTask,
    /// Somebody says that there are new rows.
    pub(super) notified: Arc<Notify>,
    pub(super) facts: Facts,
    /// A producer that came with the lease, where it is not to outlive it.
    pub(super) sink: Option<AnySink>,
}

/// Why the table is to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TableReason {
    /// The slot does not have everything, or there is none.
    Gap,
    /// Somebody set these rows to pending again.
    Asked(Vec<RowId>),
    /// There can be no slot, or none is wanted; in a few words.
    Poll(String),
}

/// What is to be done.
pub(super) enum TableTask {
    /// Make the slot, and read these rows first.
    MakeSlot(Box<RecoveryPlan>),
    /// Go on with rows that were begun with.
    GoOn,
    /// Publish these rows again.
    Again(Vec<RowId>),
    /// Poll; why, in a few words.
    Poll(String),
}

impl Lease {
    /// Takes the lease, and finds out what is to be done.
    ///
    /// # Errors
    /// [`Kind::SlotActive`] where another relay has the lease or the slot, or there is nothing to be done by now: both
    /// heal. What [`plan`] says, and the sessions.
    pub(super) async fn take(
        config: &Config,
        producer: Option<SinkHandle>,
        why: &TableReason,
        known: &Known,
        warn: &mut (dyn FnMut(String) + Send),
    ) -> Result<Lease> {
        let source = &config.source;
        let sql = SqlSession::connect(&source.database, &fence::session_name(config)).await?;
        if !hold(sql.client(), &source.slot, Hold::Alone, source.wal_sender_timeout).await? {
            let cause = format!("another relay of slot {} is at work; standing by", source.slot);
            return Err(Error::new(Kind::SlotActive, cause));
        }
        for channel in config.outboxes.iter().filter_map(|outbox| outbox.upkeep.notify.as_deref()) {
            let listen = format!("listen {}", quote_ident(channel)?);
            let listening = sql.client().batch_execute(&listen).await;
            listening.map_err(|error| fault::sql(While::Querying("listening for new rows"), &error))?;
        }
        let facts = preflight::inspect(sql.client(), &source.slot, &source.publication, &config.outboxes).await?;
        let notified = sql.notified();
        let control = Control::start(sql, watched(config)).await?;
        let (server, history) = identify(config, &facts, &control, why).await?;
        let (producer, sink) = fence::own(config, producer, &server.system_identifier).await?;
        let (store, loaded) = match (why, config.state.store) {
            (TableReason::Poll(_), StoreKind::Slot) => {
                let cause = "state.store is slot, and without a slot there is nothing to keep the position in";
                return Err(Error::new(Kind::Config, cause).remedy("set state.store to kafka or postgres"));
            }
            _ => read_position(config, producer, &control, known).await?,
        };
        let slot = slot_now(config, &facts, confirmed(&facts));
        let fresh = Stored {
            server: server.clone(),
            slot: slot.name.clone(),
            position: loaded.as_ref().map(|loaded| loaded.position).unwrap_or_default(),
            publication_oid: slot.publication_oid,
            table_oids: slot.table_oids.clone(),
            membership_oids: slot.membership_oids.clone(),
            message_prefixes: slot.message_prefixes.clone(),
            published: loaded.as_ref().and_then(|loaded| loaded.published.clone()),
            stream_only: loaded.as_ref().map(|loaded| loaded.stream_only.clone()).unwrap_or_default(),
            catch_up: loaded.as_ref().and_then(|loaded| loaded.catch_up.clone()),
        };
        let (task, stored) = match why {
            TableReason::Poll(cause) => {
                (TableTask::Poll(cause.clone()), polled(config, fresh, loaded.as_ref(), &facts, &slot, &history, warn)?)
            }
            TableReason::Asked(_) if fresh.catch_up.is_some() => {
                return Err(Error::new(Kind::SlotActive, "another relay has begun to read the table; looking again"));
            }
            TableReason::Asked(rows) => (TableTask::Again(rows.clone()), loaded.clone().unwrap_or(fresh)),
            TableReason::Gap => (slot_task(config, loaded.as_ref(), &fresh, &facts, &slot, &history, warn)?, fresh),
        };
        Ok(Lease { control, store, stored, task, notified, facts, sink })
    }

    /// More is known than is stored: this process had published up to `position` when its stream ended.
    pub(super) fn knows(&mut self, position: Position, published: Published) {
        let before = self.stored.published.as_ref().map_or(Lsn::ZERO, |before| before.pair.lsn);
        if published.pair.lsn < before {
            // Another relay went on from there.
            return;
        }
        // A poller has none: no slot may go on from where it stands.
        if !matches!(self.task, TableTask::Poll(_)) {
            self.stored.position = position;
        }
        if let TableTask::MakeSlot(plan) = &mut self.task
            && plan.published.is_some()
        {
            plan.published = Some(published.clone());
        }
        if self.stored.catch_up.is_none() {
            self.stored.published = Some(published);
        }
    }
}

/// What has to be done before the slot can be streamed.
fn slot_task(
    config: &Config,
    loaded: Option<&Stored>,
    fresh: &Stored,
    facts: &Facts,
    slot: &SlotNow,
    history: &[TimelineSwitch],
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<TableTask> {
    let source = &config.source;
    let is_not_ours = facts.slot.as_ref().is_some_and(|slot| !slot.is_ours(&facts.server.database));
    // More likely a name that was mistyped than a first start.
    let is_nothing = loaded.is_none() && facts.slot.is_none() && facts.publication().is_none();
    if is_not_ours || is_nothing {
        preflight::judge(facts, &source.slot, &source.publication, &config.outboxes)?;
    }
    let (warnings, vanished) =
        preflight::judge_backlog(&facts.with_slot(), &source.slot, &source.publication, &config.outboxes)?;
    if let Some(error) = vanished {
        return Err(error);
    }
    warnings.iter().for_each(|warning| warn(warning.to_string()));
    let is = match &facts.slot {
        None => SlotIs::Missing,
        Some(found) => found.lost().map_or(SlotIs::There, |reason| SlotIs::Lost(reason.to_owned())),
    };
    let gone = is != SlotIs::There;
    let gap = match loaded {
        Some(stored) if is == SlotIs::There => gap(stored, &fresh.server, slot, facts.wal_end, history),
        // What was confirmed to a slot that is gone does not matter.
        Some(stored) => {
            let gone = SlotNow { confirmed_flush: Lsn::ZERO, ..slot.clone() };
            gap(stored, &fresh.server, &gone, facts.wal_end, history)
        }
        None => Ok(None),
    };
    // There is no position of a slot to take.
    let gap = if gone { gap.map_err(|error| error.remedy(choices(config))) } else { gap };
    let begun = loaded.and_then(|stored| stored.catch_up.clone()).filter(|_| gap.is_ok() || !config.state.adopt_slot);
    if let Some(CatchUp { rows, until, .. }) = begun {
        let fits = gap?;
        if until.is_some() && is == SlotIs::There && fits.is_none() {
            return Ok(TableTask::GoOn);
        }
        let published = fits.map_or_else(|| fresh.published.clone(), |gap| gap.published);
        let cause = "a read of the table was interrupted, and its slot no longer exists".to_owned();
        // After a promotion, transactions that were begun with may not be those of before.
        let finishes = until.is_some() && loaded.is_some_and(|stored| stored.server == fresh.server);
        return Ok(TableTask::MakeSlot(Box::new(RecoveryPlan { rows, published, finishes, cause, notes: Vec::new() })));
    }
    let is_first = match loaded {
        None => wants_backlog(config),
        Some(_) => config.state.adopt_slot && source.backlog.is_some(),
    };
    if is == SlotIs::There && !is_first && matches!(gap, Ok(None)) {
        return Err(Error::new(Kind::SlotActive, "the slot has everything by now; streaming from it"));
    }
    Ok(TableTask::MakeSlot(Box::new(plan(config, loaded, &is, gap)?)))
}

/// What a poller goes on from.
fn polled(
    config: &Config,
    fresh: Stored,
    loaded: Option<&Stored>,
    facts: &Facts,
    slot: &SlotNow,
    history: &[TimelineSwitch],
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<Stored> {
    if let Some(outbox) = config.outboxes.iter().find(|outbox| outbox.source.table().is_none()) {
        let cause = format!("{} are in no table, and cannot be polled", outbox.source);
        return Err(Error::new(Kind::Config, cause).remedy("relay them from a slot: slot.mode = \"slot\""));
    }
    if loaded.is_some_and(|stored| stored.stream_only.iter().any(|oid| fresh.table_oids.contains(oid))) {
        let cause = "the table cannot be polled: its rows are deleted right after they are written".to_owned();
        return Err(Error::new(Kind::Publication, cause).remedy("relay them from a slot: slot.mode = \"slot\""));
    }
    let Some(stored) = loaded.filter(|_| !config.state.adopt_slot) else {
        // The first time: until is that of the first look.
        let is_first = loaded.is_none() || config.source.backlog.is_some();
        let rows = if is_first { backlog(config) } else { Rows::None };
        if loaded.is_some() {
            let left =
                if rows == Rows::None { "; unpublished rows that the table has now are not published" } else { "" };
            warn(format!("accepted because of --adopt-slot: the stored position is discarded{left}"));
        }
        let catch_up = CatchUp::new(rows, None);
        return Ok(Stored { published: None, catch_up: Some(catch_up), ..fresh });
    };
    // Nothing of a slot or publication matters here; whose log it was, does.
    let same = SlotNow {
        confirmed_flush: Lsn::ZERO,
        publication_oid: stored.publication_oid,
        membership_oids: stored.membership_oids.clone(),
        ..slot.clone()
    };
    let found = match gap(stored, &fresh.server, &same, facts.wal_end, history) {
        // What the table says of its rows holds on any server that has the table.
        Err(_) if config.outboxes.iter().all(|outbox| outbox.upkeep.says_for_itself()) => None,
        found => found.map_err(|error| error.remedy(choices(config)))?,
    };
    let moved = stored.server.timeline != fresh.server.timeline;
    let published = match found {
        Some(gap) => gap.published,
        None if moved => known(stored, &fresh.server, history),
        None => stored.published.clone(),
    };
    if published.is_none()
        && stored.catch_up.is_none()
        && !config.outboxes.iter().all(|outbox| outbox.upkeep.says_for_itself())
    {
        let cause = "the stored position does not tell which rows of the table were published".to_owned();
        return Err(Error::new(Kind::PositionMismatch, cause).remedy(choices(config)));
    }
    // A slot does not know what is published from here on, so none may go on from here.
    let fresh = Stored { position: Position::default(), ..fresh };
    // Where a promotion came in between, what was begun with is of the past.
    let catch_up = stored.catch_up.clone().filter(|_| !moved);
    Ok(Stored { published, catch_up, ..fresh })
}

/// Which server it is, and its timelines. Without the right to replicate, from what SQL tells.
async fn identify(
    config: &Config,
    facts: &Facts,
    control: &Control,
    why: &TableReason,
) -> Result<(ServerIdentity, Vec<TimelineSwitch>)> {
    if !matches!(why, TableReason::Poll(_)) || facts.server.may_replicate && facts.server.wal_level == "logical" {
        let asked = async {
            let mut wal = WalSession::connect(&config.source.database, &config.source).await?;
            let server = wal.identify_system().await?;
            let history = wal.timeline_history(server.timeline).await?;
            let identity = ServerIdentity { system_identifier: server.system_identifier, timeline: server.timeline };
            Ok::<_, Error>((identity, history))
        };
        match asked.await {
            // A pooler, or no sender left: a poller needs none.
            Err(error) if matches!(why, TableReason::Poll(_)) => tracing::debug!(%error, "no replication connection"),
            asked => return asked,
        }
    }
    let timeline = control.timeline().await?;
    let system_identifier = facts.system_identifier.clone().unwrap_or_default();
    Ok((ServerIdentity { system_identifier, timeline }, Vec::new()))
}

fn confirmed(facts: &Facts) -> Lsn {
    facts.slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn).unwrap_or_default()
}
