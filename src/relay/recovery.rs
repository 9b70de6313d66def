//! What has to be read from the table before a slot can be streamed, decided without I/O.

use crate::config::{Backlog, Config, OnLoss, OutboxConfig, StoreKind};
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::ledger::trail::Published;
use crate::poll::Which;
use crate::state::check::Gap;
use crate::state::{Rows, Stored};

/// How the slot was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SlotIs {
    /// There is none of that name.
    Missing,
    /// It can never be read again, for this reason.
    Lost(String),
    There,
}

/// A slot is to be made, and these rows are to be read first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecoveryPlan {
    /// Which.
    pub(super) rows: Rows,
    /// What is known to be published.
    pub(super) published: Option<Published>,
    /// Whether what was begun with is finished first, so that nothing of it comes again.
    pub(super) finishes: bool,
    /// Why, in a sentence.
    pub(super) cause: String,
    /// What the operator should know besides.
    pub(super) notes: Vec<String>,
}

/// What to do about `slot`, given what is stored and how that fits (see [`crate::state::check::gap`]).
///
/// # Errors
/// Somebody has to choose: what the choices are is the remedy.
pub(super) fn plan(
    config: &Config,
    loaded: Option<&Stored>,
    slot: &SlotIs,
    gap: Result<Option<Gap>>,
) -> Result<RecoveryPlan> {
    let name = &config.source.slot;
    let found = match slot {
        SlotIs::Missing => format!("there is no replication slot {name} on this server"),
        SlotIs::Lost(reason) => format!("slot {name} is lost ({reason})"),
        SlotIs::There => format!("slot {name} exists, and rows from before it must be published"),
    };
    if config.state.store == StoreKind::Slot {
        let cause = format!("{found}, and state.store is slot: no record tells what was relayed");
        return Err(Error::new(Kind::SlotUnusable, cause)
            .remedy(Remedy::from("`").and(NextCommand::new("setup").option("slot", name)).and(
            "` makes a slot that begins now; or set state.store to kafka or postgres, and choose with --backlog all, \
                 since=TIME or none",
        )));
    }
    let Some(stored) = loaded else {
        if matches!(slot, SlotIs::Lost(_)) && config.source.backlog.is_none() {
            let cause = format!("{found}, and no stored position tells what was relayed");
            return Err(Error::new(Kind::SlotUnusable, cause).remedy(choices(config)));
        }
        let cause = format!("{found}, and nothing was relayed before");
        return Ok(RecoveryPlan { rows: backlog(config), published: None, finishes: false, cause, notes: Vec::new() });
    };
    if config.state.adopt_slot {
        let rows = if config.source.backlog.is_some() { backlog(config) } else { Rows::None };
        let notes = vec!["accepted because of --adopt-slot: the stored position is discarded".to_owned()];
        return Ok(RecoveryPlan { rows, published: None, finishes: false, cause: found, notes });
    }
    let gap = gap?;
    let (cause, published, notes) = match gap {
        Some(gap) => (gap.cause, gap.published, gap.notes),
        None => (found, stored.published.clone(), Vec::new()),
    };
    // A poller had none, and knows what is published.
    let polled = stored.is_polled() && published.is_some();
    let cause = if polled { format!("the table was read until now, and slot {name} takes over") } else { cause };
    let refused = |what: &str| {
        let kind = if *slot == SlotIs::There { Kind::PositionMismatch } else { Kind::SlotUnusable };
        Err(Error::new(kind, format!("{cause}{what}")).remedy(choices(config)))
    };
    if config.source.on_loss == OnLoss::Stop && !polled {
        return refused("; slot.on_loss is stop");
    }
    if config.outboxes.iter().any(|outbox| outbox.source.table().is_none()) {
        return refused("; messages that were not relayed are lost, because no table has them");
    }
    if stored.stream_only.iter().any(|oid| stored.table_oids.contains(oid)) {
        return refused("; events that were not relayed are lost, because their rows were deleted");
    }
    if published.is_none() && !config.outboxes.iter().all(|outbox| outbox.upkeep.says_for_itself()) {
        return refused("; the stored position does not tell which rows of the table were published");
    }
    Ok(RecoveryPlan { rows: Rows::Unpublished, published, finishes: false, cause, notes })
}

/// Whether rows from before a slot that nobody relayed from yet are published, although `setup` made it: they were asked
/// for, or say for themselves that they are pending, and would come behind newer ones.
pub(super) fn wants_backlog(config: &Config) -> bool {
    let is_pending = |outbox: &OutboxConfig| outbox.upkeep.pending.is_some();
    config.source.backlog.is_some() || config.outboxes.iter().any(is_pending)
}

/// Which rows are read where nothing was published before. That they can be told is seen to by the configuration.
pub(super) fn backlog(config: &Config) -> Rows {
    match &config.source.backlog {
        // Of each table those that are pending, or all.
        None => Rows::Unpublished,
        Some(Backlog::All) => Rows::All,
        Some(Backlog::None) => Rows::None,
        Some(Backlog::Since(time)) => Rows::Since(time.clone()),
        Some(Backlog::Pending) => Rows::Pending,
    }
}

/// Which rows of this outbox's table are read; `None`: no row.
pub(super) fn which<'a>(rows: &'a Rows, published: Option<&'a Published>, outbox: &OutboxConfig) -> Option<Which<'a>> {
    match rows {
        Rows::None => None,
        Rows::All => Some(Which::All),
        Rows::Pending => Some(Which::Pending),
        Rows::Since(time) => Some(Which::Since(time)),
        // What the table says of its rows decides.
        Rows::Unpublished if outbox.upkeep.pending.is_some() => Some(Which::Pending),
        // What is there was not acked, or it would be gone.
        Rows::Unpublished if outbox.upkeep.delete => Some(Which::All),
        Rows::Unpublished => Some(match published {
            None => Which::All,
            Some(known) => Which::Unpublished { snapshot: &known.pair.snapshot, also: &known.also },
        }),
    }
}

/// What can be chosen where nobody but a person can.
pub(super) fn choices(config: &Config) -> Remedy {
    let first = match config.source.on_loss {
        OnLoss::Stop => {
            "start it once with --on-slot-loss recover, which publishes exactly what was not published, if it can. Else "
        }
        OnLoss::Recover => "",
    };
    Remedy::from(format!(
        "{first}walrelay can make the slot anew, and asks you which rows of the table are published then: start it once with \
         --adopt-slot and --backlog all, --backlog since=TIME (some events come again) or --backlog none (what was not \
         relayed is given up). `"
    ))
    .and(NextCommand::new("verify").option("slot", &config.source.slot))
    .and("` says what is missing in Kafka")
}
