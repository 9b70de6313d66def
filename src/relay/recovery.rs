//! The choice of rows to read from the table before a slot can be streamed, or instead. No I/O.

use tokio_postgres::Client;

use crate::config::{Backlog, Config, Mode, OnLoss, StoreKind};
use crate::poll::{NEEDS_ORDER, TableFacts, all_table_facts};
use crate::postgres::quote::quoted;
use crate::source::preflight::{self, Facts};
use crate::source::row_key::NEEDS_KEY;
use walrelay_core::catch_up::{CatchUp, Rows};
use walrelay_core::config::{OutboxConfig, SlotName};
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result};
use walrelay_core::event::RowId;
use walrelay_core::ledger::trail::Published;
use walrelay_core::position::{Lsn, Position, ServerIdentity, TimelineSwitch};
use walrelay_core::start::{Gap, SlotNow, gap, known, same_cluster};
use walrelay_core::stored::Stored;

const UNKNOWN_ROWS: &str =
    "the stored position does not tell which rows of the table were published";

/// The task of the holder of the lease on the table.
pub(super) enum TableTask {
    /// Create the slot, and read these rows first.
    MakeSlot(Box<RecoveryPlan>),
    GoOn,
    Again(Vec<RowId>),
    /// Poll; why, in a few words.
    Poll(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SlotIs {
    Missing,
    /// It can never be read again, for this reason.
    Lost(String),
    There,
}

impl SlotIs {
    fn of(facts: &Facts) -> SlotIs {
        let Some(slot) = &facts.slot else {
            return SlotIs::Missing;
        };
        match slot.lost() {
            Some(reason) => SlotIs::Lost(reason.to_owned()),
            None => SlotIs::There,
        }
    }

    fn described(&self, name: &SlotName) -> String {
        match self {
            SlotIs::Missing => format!("there is no replication slot {name} on this server"),
            SlotIs::Lost(reason) => format!("slot {name} is lost ({reason})"),
            SlotIs::There => {
                format!("slot {name} exists, and rows from before it must be published")
            }
        }
    }
}

/// A slot is to be created, and these rows are to be read first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecoveryPlan {
    pub(super) rows: Rows,
    pub(super) published: Option<Published>,
    /// Whether an interrupted read is finished first, so that nothing of it comes again.
    pub(super) finishes: bool,
    pub(super) cause: String,
    /// Notes for the operator.
    pub(super) notes: Vec<String>,
}

impl RecoveryPlan {
    /// A plan where no published rows are known.
    fn from_nothing(rows: Rows, cause: String) -> RecoveryPlan {
        RecoveryPlan {
            rows,
            published: None,
            finishes: false,
            cause,
            notes: Vec::new(),
        }
    }
}

/// The stored position, and the facts of server and slot.
#[derive(Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) config: &'a Config,
    pub(super) loaded: Option<&'a Stored>,
    pub(super) facts: &'a Facts,
    pub(super) slot: &'a SlotNow,
    pub(super) history: &'a [TimelineSwitch],
}

impl Found<'_> {
    /// The result of [`gap`] for this state of the slot.
    fn gap_of_slot(self, now: &ServerIdentity, is: &SlotIs) -> Result<Option<Gap>> {
        let Some(stored) = self.loaded else {
            return Ok(None);
        };
        if *is == SlotIs::There {
            return gap(stored, now, self.slot, self.facts.wal_end, self.history);
        }
        // The confirmed LSN of a slot that is gone does not matter.
        let gone = SlotNow {
            confirmed_flush: Lsn::ZERO,
            ..self.slot.clone()
        };
        gap(stored, now, &gone, self.facts.wal_end, self.history)
            // There is no position of a slot to take.
            .map_err(|error| error.remedy(choices(self.config)))
    }

    /// The rows that are published on the server as it is `now`, where nothing of a slot or
    /// publication matters; whose log it was, does.
    fn published_without_slot(
        self,
        stored: &Stored,
        now: &ServerIdentity,
    ) -> Result<Option<Published>> {
        let same = SlotNow {
            confirmed_flush: Lsn::ZERO,
            publication_oid: stored.publication_oid,
            membership_oids: stored.membership_oids.clone(),
            ..self.slot.clone()
        };
        let gap = match gap(stored, now, &same, self.facts.wal_end, self.history) {
            // A condition over the rows holds on any server that has the table.
            Err(_) if all_say_for_themselves(self.config) => None,
            gap => gap.map_err(|error| error.remedy(choices(self.config)))?,
        };
        Ok(match gap {
            Some(gap) => gap.published,
            None => known(stored, now, self.history),
        })
    }
}

/// What to do about `slot`, given what is stored and how that fits (see
/// [`gap`]). Errors: a person has to choose; the remedy lists the choices.
fn plan(
    config: &Config,
    loaded: Option<&Stored>,
    slot: &SlotIs,
    gap: Result<Option<Gap>>,
) -> Result<RecoveryPlan> {
    let found = slot.described(&config.source.slot);
    if config.state.store == StoreKind::Slot {
        return Err(without_record(config, &found));
    }
    let Some(stored) = loaded else {
        if matches!(slot, SlotIs::Lost(_)) && config.source.backlog.is_none() {
            let cause = format!("{found}, and no stored position tells what was relayed");
            return Err(Error::new(Kind::SlotUnusable, cause).remedy(choices(config)));
        }
        let cause = format!("{found}, and nothing was relayed before");
        return Ok(RecoveryPlan::from_nothing(first_rows(config), cause));
    };
    if config.state.adopt_slot {
        let rows = if config.source.backlog.is_some() {
            first_rows(config)
        } else {
            Rows::None
        };
        let note = "accepted because of --adopt-slot: the stored position is discarded";
        return Ok(RecoveryPlan {
            notes: vec![note.to_owned()],
            ..RecoveryPlan::from_nothing(rows, found)
        });
    }
    plan_after_stored(config, stored, slot, found, gap?)
}

/// The error where the slot alone keeps the position.
fn without_record(config: &Config, found: &str) -> Error {
    let cause = format!("{found}, and state.store is slot: no record tells what was relayed");
    let choices = format!(
        "` makes a slot that begins now; or set state.store to kafka or postgres, and choose \
         with {}",
        backlogs(config)
    );
    Error::new(Kind::SlotUnusable, cause).remedy(
        Remedy::from("`")
            .and(NextCommand::new("setup").option("slot", &config.source.slot))
            .and(choices),
    )
}

/// The plan to read what was not published according to `stored`.
/// Errors: the tables, or what is stored, do not tell that, or recovery is not wanted.
fn plan_after_stored(
    config: &Config,
    stored: &Stored,
    slot: &SlotIs,
    found: String,
    gap: Option<Gap>,
) -> Result<RecoveryPlan> {
    let (cause, published, notes) = match gap {
        Some(gap) => (gap.cause, gap.published, gap.notes),
        None => (found, stored.published.clone(), Vec::new()),
    };
    // A poller had none, and knows what is published.
    let polled = stored.is_polled() && published.is_some();
    let cause = if polled {
        let name = &config.source.slot;
        format!("the table was read until now, and slot {name} takes over")
    } else {
        cause
    };
    let refused = |what: &str| {
        let kind = if *slot == SlotIs::There {
            Kind::PositionMismatch
        } else {
            Kind::SlotUnusable
        };
        Err(Error::new(kind, format!("{cause}{what}")).remedy(choices(config)))
    };
    if config.source.on_loss == OnLoss::Stop && !polled {
        return refused("; slot.on_loss is stop");
    }
    if config
        .outboxes
        .iter()
        .any(|outbox| outbox.source.table().is_none())
    {
        return refused("; messages that were not relayed are lost, because no table has them");
    }
    if let Some(why) = unknown_rows(config, stored, published.is_some()) {
        return refused(&format!("; {why}"));
    }
    Ok(RecoveryPlan {
        rows: Rows::Unpublished,
        published,
        finishes: false,
        cause,
        notes,
    })
}

/// Why the tables do not tell which rows were not published; `is_known`: the published rows are
/// known.
fn unknown_rows(config: &Config, stored: &Stored, is_known: bool) -> Option<&'static str> {
    if stored
        .stream_only
        .iter()
        .any(|oid| stored.table_oids.contains(oid))
    {
        return Some("events that were not relayed are lost, because their rows were deleted");
    }
    (!is_known && !all_say_for_themselves(config)).then_some(UNKNOWN_ROWS)
}

/// Whether the rows of all tables say for themselves whether they are pending.
fn all_say_for_themselves(config: &Config) -> bool {
    config
        .outboxes
        .iter()
        .all(|outbox| outbox.upkeep.says_for_itself())
}

/// Why rows that are missing from the stream are not read from the tables.
pub(super) fn why_unread(config: &Config, stored: &Stored, is_known: bool) -> Option<&'static str> {
    match (config.state.store, config.source.on_loss) {
        (StoreKind::Slot, _) => Some("state.store is slot, and keeps no progress of that"),
        (_, OnLoss::Stop) => Some("slot.on_loss is stop"),
        (_, OnLoss::Recover) => unknown_rows(config, stored, is_known),
    }
}

/// The task before the slot can be streamed; `fresh` is the position to store for this server.
/// Errors: [`Kind::SlotActive`] where nothing has to be done by now; what [`plan`] and the
/// pre-flight checks say.
pub(super) fn slot_task(
    found: Found<'_>,
    fresh: &Stored,
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<TableTask> {
    let Found {
        config,
        loaded,
        facts,
        ..
    } = found;
    judge_for_slot(facts, config, warn)?;
    let is = SlotIs::of(facts);
    let gap = found.gap_of_slot(&fresh.server, &is);
    let begun = loaded
        .and_then(|stored| stored.catch_up.clone())
        .filter(|_| gap.is_ok() || !config.state.adopt_slot);
    if let Some(CatchUp { rows, until, .. }) = begun {
        let fits = gap?;
        if until.is_some() && is == SlotIs::There && fits.is_none() {
            return Ok(TableTask::GoOn);
        }
        let published = fits.map_or_else(|| fresh.published.clone(), |gap| gap.published);
        let cause = "a read of the table was interrupted, and its slot no longer exists".to_owned();
        // After a promotion, transactions that were begun with may not be those of before.
        let finishes =
            until.is_some() && loaded.is_some_and(|stored| stored.server == fresh.server);
        return Ok(TableTask::MakeSlot(Box::new(RecoveryPlan {
            rows,
            published,
            finishes,
            cause,
            notes: Vec::new(),
        })));
    }
    let is_first = match loaded {
        None => wants_backlog(config),
        Some(_) => config.state.adopt_slot && config.source.backlog.is_some(),
    };
    if is == SlotIs::There && !is_first && matches!(gap, Ok(None)) {
        return Err(Error::new(
            Kind::SlotActive,
            "the slot has everything by now; streaming from it",
        ));
    }
    Ok(TableTask::MakeSlot(Box::new(plan(
        config, loaded, &is, gap,
    )?)))
}

/// The pre-flight checks for a slot that does not have to exist.
fn judge_for_slot(
    facts: &Facts,
    config: &Config,
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<()> {
    let source = &config.source;
    let is_not_ours = facts
        .slot
        .as_ref()
        .is_some_and(|slot| !slot.is_ours(&facts.server.database));
    // More likely a name that was mistyped than a first start or a loss.
    let is_nothing = facts.slot.is_none() && facts.publication().is_none();
    if is_not_ours || is_nothing {
        preflight::judge(facts, &source.slot, &source.publication, &config.outboxes)?;
    }
    let (warnings, vanished) = preflight::judge_backlog(
        &facts.with_slot(),
        &source.slot,
        &source.publication,
        &config.outboxes,
    )?;
    if let Some(error) = vanished {
        return Err(error);
    }
    warnings
        .iter()
        .for_each(|warning| warn(warning.to_string()));
    Ok(())
}

/// The stored position that a poller continues from.
/// Errors: the table cannot be polled, or what is stored does not tell which of its rows were
/// published.
pub(super) fn polled(
    found: Found<'_>,
    fresh: Stored,
    warn: &mut (dyn FnMut(String) + Send),
) -> Result<Stored> {
    let Found {
        config,
        loaded,
        slot,
        ..
    } = found;
    judge_for_polling(config, loaded, &fresh)?;
    let Some(stored) = loaded.filter(|_| !config.state.adopt_slot) else {
        // The first time: until is that of the first look.
        let is_first = loaded.is_none() || config.source.backlog.is_some();
        let rows = if is_first {
            first_rows(config)
        } else {
            Rows::None
        };
        if loaded.is_some() {
            let left = if rows == Rows::None {
                "; unpublished rows that the table has now are not published"
            } else {
                ""
            };
            warn(format!(
                "accepted because of --adopt-slot: the stored position is discarded{left}"
            ));
        }
        let catch_up = CatchUp::new(rows, None);
        return Ok(Stored {
            published: None,
            catch_up: Some(catch_up),
            ..fresh
        });
    };
    same_cluster(stored, slot).map_err(|error| error.remedy(choices(config)))?;
    let published = found.published_without_slot(stored, &fresh.server)?;
    if published.is_none() && stored.catch_up.is_none() && !all_say_for_themselves(config) {
        let error = Error::new(Kind::PositionMismatch, UNKNOWN_ROWS);
        return Err(error.remedy(choices(config)));
    }
    let moved = stored.server.timeline != fresh.server.timeline;
    Ok(Stored {
        // A slot does not know what is published from here on, so none may go on from here.
        position: Position::default(),
        published,
        // Where a promotion came in between, what was begun with is of the past.
        catch_up: stored.catch_up.clone().filter(|_| !moved),
        ..fresh
    })
}

/// Errors: polling cannot relay these events, or nothing would keep its position.
fn judge_for_polling(config: &Config, loaded: Option<&Stored>, fresh: &Stored) -> Result<()> {
    const USE_A_SLOT: &str = "relay them from a slot: slot.mode = \"slot\"";
    if config.state.store == StoreKind::Slot {
        let cause =
            "state.store is slot, and without a slot there is nothing to keep the position in";
        return Err(Error::new(Kind::Config, cause).remedy("set state.store to kafka or postgres"));
    }
    if let Some(outbox) = config
        .outboxes
        .iter()
        .find(|outbox| outbox.source.table().is_none())
    {
        let cause = format!("{} are in no table, and cannot be polled", outbox.source);
        return Err(Error::new(Kind::Config, cause).remedy(USE_A_SLOT));
    }
    if loaded.is_some_and(|stored| {
        stored
            .stream_only
            .iter()
            .any(|oid| fresh.table_oids.contains(oid))
    }) {
        let cause = "the table cannot be polled: its rows are deleted right after they are written";
        return Err(Error::new(Kind::Publication, cause).remedy(USE_A_SLOT));
    }
    Ok(())
}

/// Whether rows from before a new slot are published, although `setup` made it: they were asked
/// for, or are pending.
pub(super) fn wants_backlog(config: &Config) -> bool {
    let is_pending = |outbox: &OutboxConfig| outbox.upkeep.pending.is_some();
    config.source.backlog.is_some() || config.outboxes.iter().any(is_pending)
}

/// The rows to read where nothing was published before.
fn first_rows(config: &Config) -> Rows {
    match &config.source.backlog {
        // Of each table those that are pending, or all.
        None => Rows::Unpublished,
        Some(Backlog::All) => Rows::All,
        Some(Backlog::None) => Rows::None,
        Some(Backlog::Since(time)) => Rows::Since(time.clone()),
        Some(Backlog::Pending) => Rows::Pending,
    }
}

/// The choices with `--backlog` that the configuration permits.
fn backlogs(config: &Config) -> &'static str {
    if config
        .outboxes
        .iter()
        .all(|outbox| outbox.upkeep.pending.is_some())
    {
        "--backlog pending, or --backlog all (some events are duplicates)"
    } else if config
        .outboxes
        .iter()
        .any(|outbox| outbox.upkeep.says_for_itself())
    {
        "--backlog all (some events are duplicates)"
    } else {
        "--backlog all, --backlog since=TIME (some events are duplicates) or --backlog none (what \
         was not relayed is given up)"
    }
}

fn choices(config: &Config) -> Remedy {
    let first = match config.source.on_loss {
        OnLoss::Stop => {
            "start it once with --on-slot-loss recover, which publishes exactly what was not \
             published, if it can. Else "
        }
        OnLoss::Recover => "",
    };
    Remedy::from(format!(
        "{first}walrelay can recreate the slot, and asks you which rows of the table are published \
         then: start it once with --adopt-slot and {}. `",
        backlogs(config)
    ))
    .and(NextCommand::new("verify").option("slot", &config.source.slot))
    .and("` says what is missing in the bus")
}

/// Whether rows of this table can be read as they have to be.
pub(super) fn fits(
    facts: &TableFacts,
    outbox: &OutboxConfig,
    task: &TableTask,
    config: &Config,
) -> Result<()> {
    let slot = &config.source.slot;
    let table = &facts.name;
    if matches!(task, TableTask::MakeSlot(plan) if plan.rows == Rows::None) {
        return Ok(());
    }
    if !facts.may_select {
        let cause = format!(
            "slot {slot}: the relay must read rows of table {table}, and the role has no right to"
        );
        let user = quoted(&config.source.database.user);
        return Err(Error::new(Kind::PostgresRefused, cause)
            .remedy(format!("grant select on {table} to {user}")));
    }
    // One that is asked for again has no order to keep.
    if facts.order.is_none() && !matches!(task, TableTask::Again(_)) {
        let cause = format!(
            "slot {slot}: the relay must read rows of table {table}, and no column gives their \
             order: the table has no identity or serial column"
        );
        return Err(Error::new(Kind::PositionMismatch, cause).remedy(format!(
            "{NEEDS_ORDER}. To go on without these rows: --adopt-slot"
        )));
    }
    // After a crash, a row that is read again would look like other rows of its id.
    let needs_key = matches!(task, TableTask::Poll(_)) || config.delivery.transactions().is_some();
    if needs_key && outbox.row_key.is_none() {
        let cause = format!(
            "slot {slot}: the relay must read rows of table {table}, and no unique index \
             identifies one row"
        );
        return Err(Error::new(Kind::Config, cause).remedy(NEEDS_KEY));
    }
    match task {
        TableTask::Poll(_) => fits_polling(facts, outbox, config),
        TableTask::MakeSlot(_) | TableTask::GoOn | TableTask::Again(_) => Ok(()),
    }
}

/// Whether a poll can tell which rows of this table were not published.
fn fits_polling(facts: &TableFacts, outbox: &OutboxConfig, config: &Config) -> Result<()> {
    let table = &facts.name;
    if outbox.upkeep.says_for_itself() {
        return Ok(());
    }
    if outbox.upkeep.marks_any() {
        let cause = format!(
            "table {table} cannot be polled: no poll could tell a row that walrelay marked from a \
             copied one"
        );
        return Err(Error::new(Kind::Config, cause).remedy(
            "set outbox.pending to the condition that outbox.mark ends, such as published_at is \
             null; or remove outbox.mark, mark_failed and mark_waiting",
        ));
    }
    if facts.xid_column.is_some() {
        return Ok(());
    }
    let cause =
        format!("table {table} cannot be polled: no column tells which rows were not published");
    let mut setup = NextCommand::new("setup").option("slot", &config.source.slot);
    // Of several tables the file names them all.
    if config.outboxes.len() == 1 {
        setup = setup.option("table", format_args!("'{table}'"));
    }
    if config.source.mode == Mode::Poll {
        setup = setup.option("mode", "poll");
    }
    Err(Error::new(Kind::Config, cause).remedy(
        Remedy::from("`").and(setup.flag("add-xid-column")).and(
            "`, run by the table's owner, adds a column with the transaction's id; or set \
             outbox.pending and outbox.mark, or outbox.delete",
        ),
    ))
}

/// Whether a relay could read the rows of all tables that the slot lacks. Reads no row.
pub(super) async fn can_go_on(client: &Client, config: &Config) -> Result<()> {
    let of_tables = config
        .outboxes
        .iter()
        .filter(|outbox| outbox.source.table().is_some());
    let facts = all_table_facts(client, &config.outboxes).await?;
    facts
        .iter()
        .zip(of_tables)
        .try_for_each(|(facts, outbox)| fits(facts, outbox, &TableTask::GoOn, config))
}

/// Whether a relay could read the rows of this table: those that a lost slot did not deliver, or
/// where it polls, all.
pub(crate) fn can_be_read(
    facts: &TableFacts,
    outbox: &OutboxConfig,
    config: &Config,
    polls: bool,
) -> Result<()> {
    let task = if polls {
        TableTask::Poll(String::new())
    } else {
        TableTask::GoOn
    };
    fits(facts, outbox, &task, config)
}

/// Whether these tables can be polled: they tell which of their rows were published, and there is a
/// place to keep it.
pub(super) fn can_poll<'t>(
    tables: impl Iterator<Item = (&'t TableFacts, &'t OutboxConfig)>,
    config: &Config,
) -> bool {
    let mut tables = tables;
    config.state.store != StoreKind::Slot
        && config
            .outboxes
            .iter()
            .all(|outbox| outbox.source.table().is_some())
        && tables.all(|(facts, outbox)| {
            fits(facts, outbox, &TableTask::Poll(String::new()), config).is_ok()
        })
}
