//! Whether rows are read from the table before a slot is streamed, or instead, and which.

use crate::catch_up::{CatchUp, Rows};
use crate::config::{Backlog, OnLoss, OutboxConfig, SlotName};
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::event::RowId;
use crate::ledger::trail::Published;
use crate::position::{Lsn, Position};
use crate::publisher::pipeline::Delivered;
use crate::sessions::TableReason;
use crate::start::{Fit, Found, SlotNow, fit, is_altered, same_cluster, stored_now};
use crate::stored::Stored;

const UNKNOWN_ROWS: &str =
    "the stored position does not tell which rows of the table were published";

/// The part of the configuration that decides.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// The slot, for texts.
    pub slot: &'a SlotName,
    /// The reaction to the loss of the slot.
    pub on_loss: OnLoss,
    /// The existing rows that are published first, where that was asked for.
    pub backlog: Option<&'a Backlog>,
    /// Whether to accept the slot's position if it does not match the stored one.
    pub adopt_slot: bool,
    /// Whether nothing is stored: the slot alone keeps the position.
    pub store_is_slot: bool,
    /// The outboxes.
    pub outboxes: &'a [OutboxConfig],
}

/// How a relay with the lease on the table starts.
#[derive(Debug)]
pub struct TableStart {
    /// What it does.
    pub task: TableTask,
    /// The position to begin with.
    pub stored: Stored,
    /// Whether the publication was altered since that was stored.
    pub is_altered: bool,
    /// Notes for the operator, a sentence each.
    pub notes: Vec<String>,
}

impl TableStart {
    /// A stream of this process had delivered this, which is more than is stored.
    pub(crate) fn knows(&mut self, of: Delivered) {
        let Some(published) = of.published else {
            return;
        };
        let before = self.stored.published.as_ref();
        if before.is_some_and(|before| published.pair.lsn < before.pair.lsn) {
            // Another relay went on from there.
            return;
        }
        // A poller has none: no slot may go on from where it stands.
        if !matches!(self.task, TableTask::Poll(_)) {
            self.stored.position = of.position;
        }
        // Where a stream leaves a read to be done, the publication was altered.
        let is_altered = self.is_altered || self.stored.catch_up.is_some();
        let published = match is_altered {
            true => published.in_snapshots(),
            false => published,
        };
        if let TableTask::MakeSlot(plan) = &mut self.task
            && plan.published.is_some()
        {
            plan.published = Some(published.clone());
        }
        self.stored.published = Some(published);
    }
}

/// The task of the holder of the lease on the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableTask {
    /// Create the slot, and read these rows first.
    MakeSlot(Box<RecoveryPlan>),
    /// Continue to read rows, up to where the slot begins.
    GoOn,
    /// Publish these rows again.
    Again(Vec<RowId>),
    /// Poll; why, in a few words.
    Poll(String),
}

impl TableTask {
    /// Whether requested rows are read, and a stream is next.
    pub fn gives_way(&self) -> bool {
        matches!(self, TableTask::Again(_))
    }
}

/// Whether there is a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotIs {
    /// There is none.
    Missing,
    /// It can never be read again, for this reason.
    Lost(String),
    /// There is one.
    There,
}

impl SlotIs {
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
pub struct RecoveryPlan {
    /// The rows.
    pub rows: Rows,
    /// The published rows, where they are known.
    pub published: Option<Published>,
    /// The version of the publication.
    pub publication_version: String,
    /// Whether an interrupted read is finished first, so that nothing of it comes again.
    pub finishes: bool,
    /// Why, in a sentence.
    pub cause: String,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

impl RecoveryPlan {
    /// A plan where no published rows are known.
    fn from_nothing(rows: Rows, cause: String) -> RecoveryPlan {
        RecoveryPlan {
            rows,
            published: None,
            publication_version: String::new(),
            finishes: false,
            cause,
            notes: Vec::new(),
        }
    }

    /// The slot is to be made, and these rows are to be read, which is stored before that.
    pub(crate) fn intend(&self, rows: Rows, stored: &mut Stored) {
        stored.position = Position::default();
        stored
            .outboxes
            .publication_version
            .clone_from(&self.publication_version);
        stored.catch_up = Some(CatchUp::new(rows, None));
    }
}

impl Rules<'_> {
    /// Whether the table has events that the slot, which is there, does not have.
    pub fn needs_table(&self, found: Found<'_>) -> bool {
        match found.stored {
            Some(stored) if stored.catch_up.is_some() => true,
            Some(_) if !self.adopt_slot => {
                self.on_loss == OnLoss::Recover && fit(found).is_ok_and(|fit| fit.gap.is_some())
            }
            stored => self.reads_first(stored) && !self.store_is_slot,
        }
    }

    /// What the holder of the lease begins with. Errors: [`Kind::SlotActive`] where nothing has to
    /// be done by now; a person has to choose, and the remedy lists the choices; the table cannot
    /// be polled.
    pub fn table_start(
        &self,
        why: &TableReason,
        found: Found<'_>,
        slot: &SlotIs,
    ) -> Result<TableStart> {
        let mut notes = Vec::new();
        let is_altered = is_altered(found);
        // Of an altered publication, transactions that the stream had do not count: rows of them
        // may be missing from it.
        let in_snapshots = found.stored.filter(|_| is_altered).map(|stored| Stored {
            published: stored.published.clone().map(Published::in_snapshots),
            ..stored.clone()
        });
        let found = Found {
            stored: in_snapshots.as_ref().or(found.stored),
            ..found
        };
        let fresh = stored_now(found);
        let (task, stored) = match why {
            TableReason::Poll(cause) => (
                TableTask::Poll(cause.clone()),
                self.polled(found, fresh, &mut notes)?,
            ),
            TableReason::Asked(_) if fresh.catch_up.is_some() => {
                return Err(Error::new(
                    Kind::SlotActive,
                    "another relay has begun to read the table; looking again",
                ));
            }
            TableReason::Asked(rows) => (
                TableTask::Again(rows.clone()),
                found.stored.cloned().unwrap_or(fresh),
            ),
            TableReason::Gap => (self.slot_task(found, slot)?, fresh),
        };
        Ok(TableStart {
            task,
            stored,
            is_altered,
            notes,
        })
    }

    /// Why rows that are missing from the stream are not read from the tables; `is_known`: the
    /// published rows are known.
    pub fn why_unread(&self, stored: &Stored, is_known: bool) -> Option<&'static str> {
        match self.on_loss {
            _ if self.store_is_slot => Some("state.store is slot, and keeps no progress of that"),
            OnLoss::Stop => Some("slot.on_loss is stop"),
            OnLoss::Recover => self.unknown_rows(stored, is_known),
        }
    }

    /// The task before the slot can be streamed.
    fn slot_task(&self, found: Found<'_>, slot: &SlotIs) -> Result<TableTask> {
        let Found { stored, server, .. } = found;
        let fit = self.fit_of_slot(found, slot);
        if let Some(stored) = stored
            && let Some(CatchUp { rows, until, .. }) = &stored.catch_up
            && (fit.is_ok() || !self.adopt_slot)
        {
            let fit = fit?;
            // After a promotion, slot and transactions that were begun with may not be those of
            // before.
            let is_begun = until.is_some() && stored.server == *server;
            if is_begun && *slot == SlotIs::There && fit.gap.is_none() {
                return Ok(TableTask::GoOn);
            }
            let cause =
                "a read of the table was interrupted, and its slot no longer exists".to_owned();
            return Ok(TableTask::MakeSlot(Box::new(RecoveryPlan {
                published: fit.published,
                publication_version: found.slot.outboxes.publication_version.clone(),
                notes: fit.notes,
                finishes: is_begun,
                ..RecoveryPlan::from_nothing(rows.clone(), cause)
            })));
        }
        let is_first = (stored.is_none() || self.adopt_slot) && self.reads_first(stored);
        if *slot == SlotIs::There && !is_first && matches!(&fit, Ok(Fit { gap: None, .. })) {
            return Err(Error::new(
                Kind::SlotActive,
                "the slot has everything by now; streaming from it",
            ));
        }
        Ok(TableTask::MakeSlot(Box::new(RecoveryPlan {
            publication_version: found.slot.outboxes.publication_version.clone(),
            ..self.plan(found, slot, fit)?
        })))
    }

    /// The result of [`fit`] for this state of the slot.
    fn fit_of_slot(&self, found: Found<'_>, slot: &SlotIs) -> Result<Fit> {
        if *slot == SlotIs::There {
            return fit(found);
        }
        // The confirmed LSN of a slot that is gone does not matter.
        let gone = &SlotNow {
            confirmed_flush: Lsn::ZERO,
            ..found.slot.clone()
        };
        fit(Found {
            slot: gone,
            ..found
        })
        // There is no position of a slot to take.
        .map_err(|error| error.remedy(self.choices()))
    }

    /// What to do about `slot`, given what is stored and how that fits.
    /// Errors: a person has to choose; the remedy lists the choices.
    fn plan(&self, found: Found<'_>, slot: &SlotIs, fit: Result<Fit>) -> Result<RecoveryPlan> {
        let described = slot.described(self.slot);
        if self.store_is_slot {
            let cause =
                format!("{described}, and state.store is slot: no record tells what was relayed");
            let choices = format!(
                "` makes a slot that begins now; or set state.store to kafka or postgres, and \
                 choose with {}",
                self.backlogs()
            );
            let setup = NextCommand::new("setup").option("slot", self.slot);
            let remedy = Remedy::from("`").and(setup).and(choices);
            return Err(Error::new(Kind::SlotUnusable, cause).remedy(remedy));
        }
        let Some(stored) = found.stored else {
            if matches!(slot, SlotIs::Lost(_)) && self.backlog.is_none() {
                let cause = format!("{described}, and no stored position tells what was relayed");
                return Err(Error::new(Kind::SlotUnusable, cause).remedy(self.choices()));
            }
            let cause = format!("{described}, and nothing was relayed before");
            return Ok(RecoveryPlan::from_nothing(self.first_rows(), cause));
        };
        if self.adopt_slot {
            let rows = self.rows_instead();
            let note = "accepted because of --adopt-slot: the stored position is discarded";
            return Ok(RecoveryPlan {
                notes: vec![note.to_owned()],
                ..RecoveryPlan::from_nothing(rows, described)
            });
        }
        self.plan_after_stored(stored, slot, fit?, described)
    }

    /// The plan to read what was not published according to `stored`.
    /// Errors: the tables, or what is stored, do not tell that, or recovery is not wanted.
    fn plan_after_stored(
        &self,
        stored: &Stored,
        slot: &SlotIs,
        fit: Fit,
        described: String,
    ) -> Result<RecoveryPlan> {
        let Fit {
            gap,
            published,
            notes,
        } = fit;
        // A poller had none, and knows what is published.
        let polled = stored.is_polled() && published.is_some();
        let cause = if polled {
            format!(
                "the table was read until now, and slot {} takes over",
                self.slot
            )
        } else {
            gap.unwrap_or(described)
        };
        let refused = |what: &str| {
            let kind = if *slot == SlotIs::There {
                Kind::PositionMismatch
            } else {
                Kind::SlotUnusable
            };
            Err(Error::new(kind, format!("{cause}{what}")).remedy(self.choices()))
        };
        if self.on_loss == OnLoss::Stop && !polled {
            return refused("; slot.on_loss is stop");
        }
        if self.messages().is_some() {
            return refused("; messages that were not relayed are lost, because no table has them");
        }
        if let Some(why) = self.unknown_rows(stored, published.is_some()) {
            return refused(&format!("; {why}"));
        }
        Ok(RecoveryPlan {
            published,
            notes,
            ..RecoveryPlan::from_nothing(Rows::Unpublished, cause)
        })
    }

    /// The first outbox whose events are in no table.
    fn messages(&self) -> Option<&OutboxConfig> {
        self.outboxes
            .iter()
            .find(|outbox| outbox.source.table().is_none())
    }

    /// Why the tables do not tell which rows were not published; `is_known`: the published rows are
    /// known.
    fn unknown_rows(&self, stored: &Stored, is_known: bool) -> Option<&'static str> {
        if stored.rows_vanish() {
            return Some("events that were not relayed are lost, because their rows were deleted");
        }
        (!is_known && !self.all_say_for_themselves()).then_some(UNKNOWN_ROWS)
    }

    /// Whether the rows of all tables say for themselves whether they are pending.
    fn all_say_for_themselves(&self) -> bool {
        self.outboxes
            .iter()
            .all(|outbox| outbox.upkeep.says_for_itself())
    }

    /// The stored position that a poller continues from.
    /// Errors: the table cannot be polled, or what is stored does not tell which of its rows were
    /// published.
    fn polled(&self, found: Found<'_>, fresh: Stored, notes: &mut Vec<String>) -> Result<Stored> {
        self.judge_for_polling(&fresh)?;
        let Some(stored) = found.stored.filter(|_| !self.adopt_slot) else {
            // The first time: until is that of the first look.
            let rows = match found.stored {
                None => self.first_rows(),
                Some(_) => self.rows_instead(),
            };
            if found.stored.is_some() {
                let left = if rows == Rows::None {
                    "; unpublished rows that the table has now are not published"
                } else {
                    ""
                };
                notes.push(format!(
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
        same_cluster(stored, found.slot).map_err(|error| error.remedy(self.choices()))?;
        let Fit {
            published,
            notes: promoted,
            ..
        } = self.fit_without_slot(stored, found)?;
        notes.extend(promoted);
        if published.is_none() && stored.catch_up.is_none() && !self.all_say_for_themselves() {
            let error = Error::new(Kind::PositionMismatch, UNKNOWN_ROWS);
            return Err(error.remedy(self.choices()));
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
    fn judge_for_polling(&self, fresh: &Stored) -> Result<()> {
        const USE_A_SLOT: &str = "relay them from a slot: slot.mode = \"slot\"";
        if self.store_is_slot {
            let cause =
                "state.store is slot, and without a slot there is nothing to keep the position in";
            return Err(
                Error::new(Kind::Config, cause).remedy("set state.store to kafka or postgres")
            );
        }
        if let Some(outbox) = self.messages() {
            let cause = format!("{} are in no table, and cannot be polled", outbox.source);
            return Err(Error::new(Kind::Config, cause).remedy(USE_A_SLOT));
        }
        if fresh.rows_vanish() {
            let cause =
                "the table cannot be polled: its rows are deleted right after they are written";
            return Err(Error::new(Kind::Publication, cause).remedy(USE_A_SLOT));
        }
        Ok(())
    }

    /// How what is stored fits the server as it is now, where nothing of a slot or
    /// publication matters; whose log it was, does.
    fn fit_without_slot(&self, stored: &Stored, found: Found<'_>) -> Result<Fit> {
        let mut same = SlotNow {
            confirmed_flush: Lsn::ZERO,
            ..found.slot.clone()
        };
        same.outboxes.publication_oid = stored.outboxes.publication_oid;
        same.outboxes
            .membership_oids
            .clone_from(&stored.outboxes.membership_oids);
        match fit(Found {
            slot: &same,
            ..found
        }) {
            // A condition over the rows holds on any server that has the table.
            Err(_) if self.all_say_for_themselves() => Ok(Fit::default()),
            fit => fit.map_err(|error| error.remedy(self.choices())),
        }
    }

    /// Whether rows are published first where what is stored, if anything, is discarded: they were
    /// asked for, or are pending and `setup` made the slot.
    fn reads_first(&self, stored: Option<&Stored>) -> bool {
        let is_pending = |outbox: &OutboxConfig| outbox.upkeep.pending.is_some();
        self.backlog.is_some() || stored.is_none() && self.outboxes.iter().any(is_pending)
    }

    /// The rows to read where nothing was published before.
    fn first_rows(&self) -> Rows {
        match self.backlog {
            // Of each table those that are pending, or all.
            None => Rows::Unpublished,
            Some(Backlog::All) => Rows::All,
            Some(Backlog::None) => Rows::None,
            Some(Backlog::Since(time)) => Rows::Since(time.clone()),
            Some(Backlog::Pending) => Rows::Pending,
        }
    }

    /// The rows to read where the stored position is discarded.
    fn rows_instead(&self) -> Rows {
        self.backlog.map_or(Rows::None, |_| self.first_rows())
    }

    /// The choices with `--backlog` that the configuration permits.
    fn backlogs(&self) -> &'static str {
        if self
            .outboxes
            .iter()
            .all(|outbox| outbox.upkeep.pending.is_some())
        {
            "--backlog pending, or --backlog all (some events are duplicates)"
        } else if self
            .outboxes
            .iter()
            .any(|outbox| outbox.upkeep.says_for_itself())
        {
            "--backlog all (some events are duplicates)"
        } else {
            "--backlog all, --backlog since=TIME (some events are duplicates) or --backlog none \
             (what was not relayed is given up)"
        }
    }

    fn choices(&self) -> Remedy {
        let first = match self.on_loss {
            OnLoss::Stop => {
                "start it once with --on-slot-loss recover, which publishes exactly what was not \
                 published, if it can. Else "
            }
            OnLoss::Recover => "",
        };
        Remedy::from(format!(
            "{first}walrelay can recreate the slot, and asks you which rows of the table are \
             published then: start it once with --adopt-slot and {}. `",
            self.backlogs()
        ))
        .and(NextCommand::new("verify").option("slot", self.slot))
        .and("` says what is missing in the bus")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::trail::Pair;
    use crate::position::{ServerIdentity, TimelineSwitch};
    use crate::stored::Outboxes;

    fn slot_at(confirmed: u64) -> SlotNow {
        SlotNow {
            name: "orders".to_owned(),
            confirmed_flush: Lsn::new(confirmed),
            outboxes: Outboxes {
                publication_oid: 11,
                table_oids: vec![12],
                membership_oids: vec![13],
                ..Outboxes::default()
            },
            is_being_altered: false,
            cluster_id: None,
            bus: "Kafka",
            bus_address: "kafka.brokers",
        }
    }

    fn server(timeline: u32) -> ServerIdentity {
        ServerIdentity {
            system_identifier: "7000".to_owned(),
            timeline,
        }
    }

    /// What is stored at 100 of timeline 1, where that is known to be published.
    fn stored() -> Stored {
        let slot = slot_at(100);
        let found = Found {
            stored: None,
            server: &server(1),
            slot: &slot,
            wal_end: Lsn::new(200),
            history: &[],
        };
        Stored {
            position: Position::at(Lsn::new(100)),
            published: Some(Published::at(Pair {
                snapshot: "10:10:".parse().unwrap(),
                lsn: Lsn::new(90),
            })),
            ..stored_now(found)
        }
    }

    /// How a relay with these rules starts.
    fn start(
        change: impl FnOnce(&mut Rules<'_>),
        found: Found<'_>,
        slot: &SlotIs,
        why: &TableReason,
    ) -> Result<TableStart> {
        let name = "orders".parse().unwrap();
        let outboxes = [OutboxConfig::default()];
        let mut rules = Rules {
            slot: &name,
            on_loss: OnLoss::Recover,
            backlog: None,
            adopt_slot: false,
            store_is_slot: false,
            outboxes: &outboxes,
        };
        change(&mut rules);
        rules.table_start(why, found, slot)
    }

    /// The same, on the server that is stored.
    fn task(
        change: impl FnOnce(&mut Rules<'_>),
        stored: Option<&Stored>,
        slot: &SlotIs,
        why: &TableReason,
    ) -> Result<TableStart> {
        let found = Found {
            stored,
            server: &server(1),
            slot: &slot_at(50),
            wal_end: Lsn::new(200),
            history: &[],
        };
        start(change, found, slot, why)
    }

    #[test]
    fn of_an_altered_publication_no_transaction_counts_that_a_stream_had() {
        let mut stored = stored();
        let published = stored.published.as_mut().unwrap();
        published.also = vec![12];
        stored.outboxes.publication_version = "7".to_owned();
        let mut same = slot_at(50);
        same.outboxes.publication_version = "7".to_owned();
        let mut altered = same.clone();
        altered.outboxes.publication_version = "8".to_owned();
        let mut others = same.clone();
        others.outboxes.membership_oids = vec![14];
        let unseen = SlotNow {
            is_being_altered: true,
            ..same.clone()
        };
        for (now, also) in [
            (same, vec![12]),
            (altered, Vec::new()),
            (unseen, Vec::new()),
            (others, Vec::new()),
        ] {
            let found = Found {
                stored: Some(&stored),
                server: &server(1),
                slot: &now,
                wal_end: Lsn::new(200),
                history: &[],
            };
            let polls = TableReason::Poll("no slot".to_owned());
            let polled = start(|_| {}, found, &SlotIs::There, &polls).unwrap();
            assert_eq!(polled.stored.published.unwrap().also, also);
            let gap = start(|_| {}, found, &SlotIs::Missing, &TableReason::Gap).unwrap();
            let TableTask::MakeSlot(plan) = gap.task else {
                panic!("{gap:?}");
            };
            let published = plan.published.unwrap();
            assert_eq!(published.also, also);
            assert_eq!(published.forgotten, also.is_empty().then_some(12));
        }
    }

    fn lost() -> SlotIs {
        SlotIs::Lost("wal_removed".to_owned())
    }

    #[test]
    fn a_lost_slot_is_recovered_from_what_is_stored_or_a_person_chooses() {
        let stored = stored();
        for slot in [SlotIs::Missing, lost()] {
            let start = task(|_| {}, Some(&stored), &slot, &TableReason::Gap).unwrap();
            let TableTask::MakeSlot(plan) = start.task else {
                panic!("{start:?}");
            };
            assert_eq!(plan.rows, Rows::Unpublished);
            assert_eq!(plan.published, stored.published);
        }
        let unknown = Stored {
            published: None,
            ..stored.clone()
        };
        let vanish = Stored {
            stream_only: vec![12],
            ..stored.clone()
        };
        for stored in [&unknown, &vanish] {
            let refused = task(|_| {}, Some(stored), &lost(), &TableReason::Gap);
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), Kind::SlotUnusable);
            assert!(error.what_to_do().unwrap().contains("--backlog"), "{error}");
        }
        let stops = |rules: &mut Rules<'_>| rules.on_loss = OnLoss::Stop;
        let refused = task(stops, Some(&stored), &lost(), &TableReason::Gap);
        assert_eq!(refused.unwrap_err().kind(), Kind::SlotUnusable);
        let slot_alone = |rules: &mut Rules<'_>| rules.store_is_slot = true;
        let refused = task(slot_alone, None, &lost(), &TableReason::Gap);
        assert_eq!(refused.unwrap_err().kind(), Kind::SlotUnusable);
    }

    #[test]
    fn a_slot_that_has_everything_is_streamed() {
        let stored = stored();
        let looks = task(|_| {}, Some(&stored), &SlotIs::There, &TableReason::Gap);
        assert_eq!(looks.unwrap_err().kind(), Kind::SlotActive);
    }

    #[test]
    fn an_interrupted_read_goes_on_or_is_finished_before_its_slot_is_made_again() {
        let begun = Stored {
            catch_up: Some(CatchUp::new(Rows::All, Some("20:20:".parse().unwrap()))),
            ..stored()
        };
        let gap = TableReason::Gap;
        let start = task(|_| {}, Some(&begun), &SlotIs::There, &gap).unwrap();
        assert_eq!(start.task, TableTask::GoOn);
        let start = task(|_| {}, Some(&begun), &SlotIs::Missing, &gap).unwrap();
        let TableTask::MakeSlot(plan) = start.task else {
            panic!("{start:?}");
        };
        assert!(plan.finishes);
        assert_eq!(plan.rows, Rows::All);
        // Rows that are requested wait for the read.
        let asked = TableReason::Asked(Vec::new());
        let waits = task(|_| {}, Some(&begun), &SlotIs::There, &asked);
        assert_eq!(waits.unwrap_err().kind(), Kind::SlotActive);
    }

    #[test]
    fn a_poller_has_no_position_and_knows_what_is_published() {
        let stored = stored();
        let poll = TableReason::Poll("no right".to_owned());
        let start = task(|_| {}, Some(&stored), &SlotIs::There, &poll).unwrap();
        assert_eq!(start.stored.position, Position::default());
        assert_eq!(start.stored.published, stored.published);
        let slot_alone = |rules: &mut Rules<'_>| rules.store_is_slot = true;
        let refused = task(slot_alone, Some(&stored), &SlotIs::There, &poll);
        assert_eq!(refused.unwrap_err().kind(), Kind::Config);
    }

    /// How a relay starts without a slot once a standby is promoted that parted at `switch`.
    fn promoted(
        stored: &Stored,
        switch: u64,
        slot: &SlotIs,
        why: &TableReason,
    ) -> Result<TableStart> {
        let history = [TimelineSwitch {
            timeline: 1,
            switch_lsn: Lsn::new(switch),
        }];
        let found = Found {
            stored: Some(stored),
            server: &server(2),
            slot: &slot_at(0),
            wal_end: Lsn::new(200),
            history: &history,
        };
        start(|_| {}, found, slot, why)
    }

    /// P1, P12: of what was delivered, only that from before the switch is published.
    #[test]
    fn after_a_promotion_only_what_was_published_before_the_switch_counts() {
        let poll = TableReason::Poll("no right".to_owned());
        for why in [TableReason::Gap, poll] {
            for (switch, is_known) in [(95, true), (85, false)] {
                let start = promoted(&stored(), switch, &SlotIs::Missing, &why);
                assert_eq!(start.is_ok(), is_known, "{why:?}, {switch}: {start:?}");
            }
        }
    }

    /// P12: consumers have events that no longer exist.
    #[test]
    fn a_promotion_that_lacks_delivered_events_is_told_without_a_slot() {
        let begun = Stored {
            catch_up: Some(CatchUp::new(Rows::All, Some("20:20:".parse().unwrap()))),
            ..stored()
        };
        let poll = TableReason::Poll("no right".to_owned());
        for (stored, why) in [
            (stored(), &TableReason::Gap),
            (begun, &TableReason::Gap),
            (stored(), &poll),
        ] {
            for (switch, count) in [(95, 1), (105, 0)] {
                let start = promoted(&stored, switch, &SlotIs::Missing, why).unwrap();
                let notes = match start.task {
                    TableTask::MakeSlot(plan) => plan.notes,
                    TableTask::GoOn | TableTask::Again(_) | TableTask::Poll(_) => start.notes,
                };
                let told = notes
                    .iter()
                    .filter(|note| note.contains("no longer in the database"));
                assert_eq!(told.count(), count, "{why:?}, {switch}: {notes:?}");
            }
        }
    }

    /// P1: the slot may be another one, and ids of transactions are used again.
    #[test]
    fn after_a_promotion_an_interrupted_read_begins_again() {
        let mut begun = Stored {
            catch_up: Some(CatchUp::new(Rows::All, Some("20:20:".parse().unwrap()))),
            ..stored()
        };
        begun.published.as_mut().unwrap().also = vec![12];
        begun.published.as_mut().unwrap().also_end = Some(Lsn::new(96));
        for slot in [SlotIs::There, SlotIs::Missing] {
            let start = promoted(&begun, 95, &slot, &TableReason::Gap).unwrap();
            let TableTask::MakeSlot(plan) = start.task else {
                panic!("{start:?}");
            };
            let published = plan.published.unwrap();
            assert!(!plan.finishes && published.also.is_empty(), "{slot:?}");
        }
    }
}
