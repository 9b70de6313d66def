//! Whether the stored position belongs to this server and slot, and where to start (P1).
//!
//! The position alone says nothing: the same LSN is another place on another server, after a restored backup or on
//! another timeline, and a slot that was recreated begins behind events nobody relayed. Postgres notices none of it:
//! a start point beyond the slot is taken as it is, and one behind it is moved forward with a line in its own log
//! (<https://www.postgresql.org/docs/current/protocol-replication.html>). What cannot be noticed here: a restored
//! copy of the same server that has since written as much WAL as the original had.

use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::ledger::trail::Published;
use crate::position::{Lsn, Position};
use crate::postgres::replication::TimelineSwitch;
use crate::state::{ServerIdentity, Stored};

/// What the slot and the catalogs say now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotNow {
    pub name: String,
    /// Up to where it was confirmed.
    pub confirmed_flush: Lsn,
    pub publication_oid: u32,
    /// OIDs of the outbox tables, sorted.
    pub table_oids: Vec<u32>,
    /// OIDs of the rows that say the tables are in the publication, sorted.
    pub membership_oids: Vec<u32>,
    /// Prefixes of the messages that are events, sorted.
    pub message_prefixes: Vec<String>,
}

/// Where delivery goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    /// Everything up to here counts as delivered.
    pub position: Position,
    /// What is known of the tables there.
    pub published: Option<Published>,
    /// What the operator should know about it, a sentence each.
    pub notes: Vec<String>,
}

/// Where to start, or why not to.
///
/// `wal_end` is the end of the server's flushed WAL (`IDENTIFY_SYSTEM`), read *after* the slot; `history` is what
/// `TIMELINE_HISTORY` says of `now.timeline`, and may be empty where that equals the stored one. With `adopt` the
/// slot's position replaces one that does not belong here, with a note per mismatch; where all belongs together,
/// `adopt` changes nothing. The position returned is never beyond `wal_end`, and without `adopt` neither beyond what
/// is stored nor behind `slot.confirmed_flush`.
///
/// # Errors
/// [`Kind::PositionMismatch`], with what to verify and what `--adopt-slot` may lose.
pub(crate) fn reconcile(
    stored: Option<&Stored>,
    now: &ServerIdentity,
    slot: &SlotNow,
    wal_end: Lsn,
    history: &[TimelineSwitch],
    adopt: bool,
) -> Result<Start> {
    if slot.confirmed_flush > wal_end {
        return Err(slot_beyond_the_log(slot, wal_end));
    }
    let from_slot = Position::at(slot.confirmed_flush);
    let Some(stored) = stored else {
        let note = format!(
            "no position is stored for slot {}: starting where the slot was last confirmed, {}; rows that were in the table \
             before it are not relayed, unless --backlog says so the first time",
            slot.name, slot.confirmed_flush
        );
        return Ok(Start { position: from_slot, published: None, notes: vec![note] });
    };
    let Comparison { position, mut notes, mismatches } = compare(stored, now, slot, wal_end, history);
    match mismatches.first() {
        None => {
            // Of an outbox that is new, rows from before it are not published, whatever a snapshot sees.
            let is_new = slot.table_oids.iter().any(|oid| !stored.table_oids.contains(oid));
            let published = known(stored, now, history).filter(|_| !is_new);
            Ok(Start { position, published, notes })
        }
        Some(first) if !adopt => Err(first.refusal(slot)),
        Some(_) => {
            notes.extend(mismatches.iter().map(|it| format!("accepted because of --adopt-slot: {}", it.cause)));
            notes.push(format!(
                "the stored position {} is given up for the slot's, {}",
                stored.position, slot.confirmed_flush
            ));
            // What was published before the slot's position is not known any more.
            Ok(Start { position: from_slot, published: None, notes })
        }
    }
}

/// Events are in the table and not in the slot, and reading the table mends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gap {
    /// How it came about, in a sentence.
    pub cause: String,
    /// What is known to be published, on the timeline the server is on now.
    pub published: Option<Published>,
    /// What the operator should know about it, a sentence each.
    pub notes: Vec<String>,
}

/// Whether what is stored belongs to this server, and to a slot that lacks events which the table has. As
/// [`reconcile`] otherwise; without a slot pass one that was confirmed up to zero.
///
/// # Errors
/// [`Kind::PositionMismatch`]: it belongs to another server, timeline or slot, to a log that is not there, or to events
/// that are in no table.
pub(crate) fn gap(
    stored: &Stored,
    now: &ServerIdentity,
    slot: &SlotNow,
    wal_end: Lsn,
    history: &[TimelineSwitch],
) -> Result<Option<Gap>> {
    let Comparison { notes, mismatches, .. } = compare(stored, now, slot, wal_end, history);
    if let Some(other) = mismatches.iter().find(|mismatch| !mismatch.is_in_the_table) {
        return Err(other.refusal(slot));
    }
    let is_new = slot.table_oids.iter().any(|oid| !stored.table_oids.contains(oid));
    let published = known(stored, now, history).filter(|_| !is_new);
    Ok(mismatches.into_iter().next().map(|first| Gap { cause: first.cause, published, notes }))
}

/// The published rows, on the timeline the server is on now.
pub(crate) fn known(stored: &Stored, now: &ServerIdentity, history: &[TimelineSwitch]) -> Option<Published> {
    let published = stored.published.as_ref()?;
    if stored.server.timeline == now.timeline {
        return Some(published.clone());
    }
    let switch = history.iter().find(|switch| switch.timeline == stored.server.timeline)?;
    published.until(switch.switch_lsn)
}

/// The result of comparing the stored value with the server, the slot and the log.
struct Comparison {
    /// The stored position, as far as it exists on this server's timeline.
    position: Position,
    /// What the operator should know, a sentence each.
    notes: Vec<String>,
    mismatches: Vec<Mismatch>,
}

/// One reason why the stored value does not belong to this server and slot.
struct Mismatch {
    cause: String,
    /// What to look at before choosing.
    verify: &'static str,
    /// What giving up the stored position may cost.
    risk: &'static str,
    /// Whether the table has what is missing.
    is_in_the_table: bool,
}

const LOST_OR_AGAIN: &str = "events that committed before it and were not delivered are lost to the stream, and events \
                             after it that were delivered already come again";
const LOST: &str = "events that committed before it and were not delivered are lost to the stream";
const NOT_COVERED: &str = "rows the publication did not cover are lost to the stream, and events after it come again";
const PRESENT_PRIMARY: &str = "check that the connection leads to the present primary, not to one that was left behind \
                               by a promotion";
const VERIFY_AND_REPLAY: &str =
    "`walrelay verify` names events that are missing in Kafka, and `walrelay replay` publishes them";

fn compare(
    stored: &Stored,
    now: &ServerIdentity,
    slot: &SlotNow,
    wal_end: Lsn,
    history: &[TimelineSwitch],
) -> Comparison {
    let mut comparison = Comparison { position: stored.position, notes: Vec::new(), mismatches: Vec::new() };
    let other_slot = (stored.slot != slot.name).then(|| Mismatch {
        cause: format!("the stored position belongs to slot {}, not to {}", stored.slot, slot.name),
        verify: "check slot and state key: two relays must not share a key. A renamed slot wants a key of its own",
        risk: LOST,
        is_in_the_table: false,
    });
    let other_server = comparison.of_server(stored, now, slot, history);
    // LSNs and OIDs of another server or timeline say nothing here.
    let is_comparable = other_server.is_none();
    comparison.mismatches.extend(other_server.into_iter().chain(other_slot));
    if is_comparable {
        comparison.of_log(stored, now, slot, wal_end);
        comparison.of_outboxes(stored, slot);
    }
    comparison
}

impl Comparison {
    /// Why nothing else can be compared, if nothing can. Takes the position back to where the timelines parted.
    fn of_server(
        &mut self,
        stored: &Stored,
        now: &ServerIdentity,
        slot: &SlotNow,
        history: &[TimelineSwitch],
    ) -> Option<Mismatch> {
        let (slot, then, timeline) = (&slot.name, stored.server.timeline, now.timeline);
        let elsewhere = |cause, verify| Some(Mismatch { cause, verify, risk: LOST_OR_AGAIN, is_in_the_table: false });
        let (system, here) = (&stored.server.system_identifier, &now.system_identifier);
        if system != here {
            return elsewhere(
                format!(
                    "the position of slot {slot} was stored for the server with system identifier {system}, and this one \
                     is {here}"
                ),
                "check that the connection leads to the server you mean; a copy, or one upgraded with pg_upgrade or dump \
                 and restore, has another identifier",
            );
        }
        let stored_on = format!("the position of slot {slot} was stored on timeline {then}");
        if then > timeline {
            let cause = format!(
                "{stored_on}, and the server is on timeline {timeline}: it is an old primary, or was restored to before \
                 a promotion"
            );
            return elsewhere(cause, PRESENT_PRIMARY);
        }
        if then < timeline {
            let Some(switch) = history.iter().find(|switch| switch.timeline == then) else {
                let cause = format!("{stored_on}, which is no part of the history of the server's timeline {timeline}");
                return elsewhere(cause, PRESENT_PRIMARY);
            };
            self.position = clamped(self.position, switch.switch_lsn);
            if self.position != stored.position {
                self.notes.push(phantoms(&stored.position, &self.position, timeline, switch.switch_lsn));
            }
        }
        None
    }

    fn of_log(&mut self, stored: &Stored, now: &ServerIdentity, slot: &SlotNow, wal_end: Lsn) {
        let (name, position, confirmed) = (&slot.name, self.position, slot.confirmed_flush);
        let same_timeline = stored.server.timeline == now.timeline;
        // A poller has no position, and knows how far the log was all the same.
        let flushed = stored.published.as_ref().and_then(|published| published.flushed).filter(|_| same_timeline);
        let flushed = flushed.filter(|flushed| *flushed > wal_end).map(Position::at);
        let beyond = Some(position).filter(|position| ends_beyond(position, wal_end));
        self.mismatches.extend(beyond.into_iter().chain(flushed).map(|delivered| Mismatch {
            cause: format!(
                "slot {name}: everything up to {delivered} was delivered, and the server's log ends at {wal_end}: it was \
                 restored from a backup, or lost WAL"
            ),
            verify: "check that the connection leads to the server you mean. If it was restored, events after the backup \
                     are in Kafka and no longer in the database",
            risk: "events after it come again, if they were delivered before the restore",
            is_in_the_table: false,
        }));
        if confirmed > position.end_lsn {
            self.mismatches.push(Mismatch {
                cause: format!(
                    "slot {name} was confirmed up to {confirmed}, and only up to {position} is everything known to be \
                     delivered: the slot was recreated, or advanced by somebody else"
                ),
                verify: "`walrelay verify` names events that are missing in Kafka, `walrelay replay` publishes them; \
                         slot.on_loss = recover does it by itself, where it can",
                risk: LOST,
                is_in_the_table: true,
            });
        }
    }

    fn of_outboxes(&mut self, stored: &Stored, slot: &SlotNow) {
        let name = &slot.name;
        let recreated = |what: &str, stored: u32, now: u32| {
            format!(
                "the {what} of slot {name} is another one than before: it was dropped and created again while walrelay \
                 was away, or another is named now (OID {stored}, now {now}): rows written in between may not be in the \
                 stream"
            )
        };
        let changed =
            |cause, is_in_the_table| Mismatch { cause, verify: VERIFY_AND_REPLAY, risk: NOT_COVERED, is_in_the_table };
        let same_publication = stored.publication_oid == slot.publication_oid;
        if !same_publication {
            let cause = recreated("publication", stored.publication_oid, slot.publication_oid);
            self.mismatches.push(changed(cause, true));
        }
        let absent = |before: &[u32], now: &[u32]| before.iter().find(|oid| !now.contains(oid)).copied();
        let gone = absent(&stored.table_oids, &slot.table_oids);
        let new = absent(&slot.table_oids, &stored.table_oids);
        // Of a table that was made anew, or of another, what is stored says nothing.
        self.mismatches.extend(gone.map(|gone| match new {
            Some(new) => changed(recreated("outbox table", gone, new), false),
            None => {
                let cause = format!(
                    "an outbox table of slot {name}, with OID {gone}, is not in the configuration any more: its events \
                     that were not delivered yet would be given up"
                );
                changed(cause, false)
            }
        }));
        let same = same_publication && gone.is_none();
        if same && absent(&stored.membership_oids, &slot.membership_oids).is_some() {
            let cause = format!(
                "the outbox table of slot {name} was taken out of the publication and added again, or added in another \
                 way, while walrelay was away: rows written in between are not in the stream"
            );
            self.mismatches.push(changed(cause, true));
        }
        if let Some(prefix) = stored.message_prefixes.iter().find(|prefix| !slot.message_prefixes.contains(prefix)) {
            self.mismatches.push(Mismatch {
                cause: format!(
                    "messages with prefix {prefix:?} were events of slot {name}, and no outbox of the configuration takes \
                     them any more: those that were not delivered yet would be given up"
                ),
                verify: "check message_prefix in the configuration. If it is meant, relay with the old one until no session \
                         emits it",
                risk: "messages with that prefix are not relayed, and events after it come again",
                is_in_the_table: false,
            });
        }
        let more_messages = slot.message_prefixes.iter().any(|prefix| !stored.message_prefixes.contains(prefix));
        if same && (new.is_some() || more_messages) {
            // An index counts the events of all outboxes there are.
            if let Some(partial) = self.position.partial.take() {
                self.notes.push(format!(
                    "an outbox is new to slot {name}: events of the transaction at {} that were delivered come again",
                    partial.commit_lsn
                ));
            }
            self.notes.push(format!(
                "an outbox is new to slot {name}: it is relayed from {} on, and what was written before is not",
                self.position
            ));
        }
    }
}

impl Mismatch {
    fn refusal(&self, slot: &SlotNow) -> Error {
        let (verify, risk, confirmed) = (self.verify, self.risk, slot.confirmed_flush);
        Error::new(Kind::PositionMismatch, &self.cause).remedy(format!(
            "{verify}. Then `--adopt-slot` takes the slot's position, {confirmed}, as the truth: {risk}"
        ))
    }
}

/// A commit record that starts at `end` has not been written yet.
fn ends_beyond(position: &Position, end: Lsn) -> bool {
    position.end_lsn > end || position.partial.is_some_and(|partial| partial.commit_lsn >= end)
}

/// What of `position` lies on the timeline that was left at `switch_lsn`; record boundaries do not straddle a switch.
fn clamped(position: Position, switch_lsn: Lsn) -> Position {
    if ends_beyond(&position, switch_lsn) { Position::at(position.end_lsn.min(switch_lsn)) } else { position }
}

fn phantoms(stored: &Position, position: &Position, timeline: u32, switch_lsn: Lsn) -> String {
    format!(
        "the server was promoted to timeline {timeline} at {switch_lsn}, and events were delivered up to {stored}: those \
         of transactions that committed after {switch_lsn} are in Kafka and no longer in the database. Delivery goes \
         on from {position}; consumers have to be told"
    )
}

fn slot_beyond_the_log(slot: &SlotNow, wal_end: Lsn) -> Error {
    Error::new(
        Kind::PositionMismatch,
        format!(
            "slot {} was confirmed up to {}, and the server's log ends at {wal_end}: whatever is written in between \
             would be skipped",
            slot.name, slot.confirmed_flush
        ),
    )
    .remedy(
        Remedy::from(format!(
            "another session confirmed WAL that does not exist (yet), or the server lost WAL. Look for events from then that are \
             not in Kafka, then drop the slot (select pg_drop_replication_slot('{}')) and run `",
            slot.name
        ))
        .and(NextCommand::new("setup").option("slot", &slot.name))
        .and("`"),
    )
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
