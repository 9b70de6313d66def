//! Whether the stored position belongs to this server, slot and cluster of the bus, and where to
//! start (P1).
//!
//! The position alone says nothing: the same LSN is another place on another server, after a
//! restored backup or on another timeline, and a slot that was recreated begins behind events
//! nobody relayed. Postgres notices none of it: a start point beyond the slot is taken as it is,
//! and one behind it is moved forward with a line in its own log
//! (<https://www.postgresql.org/docs/current/protocol-replication.html>). Not noticed here: a
//! restored copy of the same server that has since written as much WAL as the original had; a
//! cluster of the bus that was taken back to an older state of its disks.

use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::ledger::trail::Published;
use crate::position::{Lsn, Position, ServerIdentity, TimelineSwitch};
use crate::sink::other_cluster;
use crate::stored::{Outboxes, Stored};

/// A slot with its publication and tables, and the cluster of the bus, as they are now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotNow {
    /// The name of the slot.
    pub name: String,
    /// The LSN up to which it was confirmed; zero without a slot.
    pub confirmed_flush: Lsn,
    /// Its outboxes. The OID of the publication is zero without one, and its version is the present
    /// one.
    pub outboxes: Outboxes,
    /// Whether another version may have been begun, which is not seen
    /// ([`crate::stream_record::Versioned::may_differ_from`]). Wanted where the table is read.
    pub is_being_altered: bool,
    /// The id of the cluster that the brokers belong to; none where it is not known.
    pub cluster_id: Option<String>,
    /// The name of the bus, for texts.
    pub bus: &'static str,
    /// The key of the configuration with the address of the bus.
    pub bus_address: &'static str,
}

/// The stored position, and the server, slot and log that it has to fit.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// The stored position; none where nothing is stored.
    pub stored: Option<&'a Stored>,
    /// The server.
    pub server: &'a ServerIdentity,
    /// The slot.
    pub slot: &'a SlotNow,
    /// The end of the server's flushed WAL (`IDENTIFY_SYSTEM`), read *after* the slot.
    pub wal_end: Lsn,
    /// What `TIMELINE_HISTORY` says of the server's timeline. It may be empty where that equals the
    /// stored one.
    pub history: &'a [TimelineSwitch],
}

/// Where a relay starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Everything up to here counts as delivered.
    pub position: Position,
    /// The published rows there.
    pub published: Option<Published>,
    /// Notes for the operator, a sentence each.
    pub notes: Vec<String>,
}

/// Where to start, or why not to.
///
/// With `adopt` the slot's position replaces one that does not belong here, with a note per
/// mismatch; where all belongs together, `adopt` changes nothing. The position returned is never
/// beyond `wal_end`, and without `adopt` neither beyond what is stored nor behind
/// `slot.confirmed_flush`. Errors: [`Kind::PositionMismatch`], with what to verify and what
/// `--adopt-slot` may lose.
pub fn reconcile(found: Found<'_>, adopt: bool) -> Result<Start> {
    let Found { slot, wal_end, .. } = found;
    if slot.confirmed_flush > wal_end {
        return Err(slot_beyond_the_log(slot, wal_end));
    }
    let from_slot = Position::at(slot.confirmed_flush);
    let Some(stored) = found.stored else {
        let note = format!(
            "no position is stored for slot {}: starting where the slot was last confirmed, {}; if \
             the table had rows before it, they are not relayed, unless --backlog says so the \
             first time; `{}` publishes all rows later, and those before TIME with --until TIME",
            slot.name,
            slot.confirmed_flush,
            NextCommand::new("replay").option("where", "true")
        );
        return Ok(Start {
            position: from_slot,
            published: None,
            notes: vec![note],
        });
    };
    let Comparison {
        position,
        published,
        mut notes,
        mismatches,
    } = compare(stored, found);
    match mismatches.first() {
        None => Ok(Start {
            position,
            published,
            notes,
        }),
        Some(first) if !adopt => Err(first.refusal(slot)),
        Some(_) => {
            notes.extend(
                mismatches
                    .iter()
                    .map(|it| format!("accepted because of --adopt-slot: {}", it.cause)),
            );
            notes.push(format!(
                "the stored position {} is given up for the slot's, {}",
                stored.position, slot.confirmed_flush
            ));
            // The published rows before the slot's position are not known any more.
            Ok(Start {
                position: from_slot,
                published: None,
                notes,
            })
        }
    }
}

/// What is stored belongs to this server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fit {
    /// How events came to be in the table and not in the slot, in a sentence; none where none are.
    /// Reading the table mends it.
    pub gap: Option<String>,
    /// The published rows, on the present timeline of the server.
    pub published: Option<Published>,
    /// Notes for the operator, a sentence each.
    pub notes: Vec<String>,
}

/// Whether what is stored belongs to this server, and to a slot that lacks events which the table
/// has. As [`reconcile`] otherwise; without a slot pass one that was confirmed up to zero. Errors:
/// [`Kind::PositionMismatch`]: of another server, timeline or slot, a log that is not there, or
/// events in no table.
pub fn fit(found: Found<'_>) -> Result<Fit> {
    let Some(stored) = found.stored else {
        return Ok(Fit::default());
    };
    let Comparison {
        published,
        notes,
        mismatches,
        ..
    } = compare(stored, found);
    if let Some(other) = mismatches.iter().find(|mismatch| !mismatch.is_in_the_table) {
        return Err(other.refusal(found.slot));
    }
    let first = mismatches.into_iter().next();
    Ok(Fit {
        published: first.as_ref().map_or_else(|| known(found), |_| published),
        gap: first.map(|first| first.cause),
        notes,
    })
}

/// Whether the publication was altered since the position was stored, also where that is not seen
/// yet: rows that were written meanwhile may be missing from the stream.
pub(crate) fn is_altered(found: Found<'_>) -> bool {
    let slot = found.slot;
    found.stored.is_some_and(|Stored { outboxes, .. }| {
        let before = &outboxes.publication_version;
        slot.is_being_altered
            || outboxes.publication_oid != slot.outboxes.publication_oid
            || outboxes.membership_oids != slot.outboxes.membership_oids
            || !before.is_empty() && *before != slot.outboxes.publication_version
    })
}

/// The published rows, on the timeline the server is on now.
fn known(found: Found<'_>) -> Option<Published> {
    let stored = found.stored?;
    let published = stored.published.as_ref()?;
    if stored.server.timeline == found.server.timeline {
        return Some(published.clone());
    }
    let switch = found
        .history
        .iter()
        .find(|switch| switch.timeline == stored.server.timeline)?;
    published.until(switch.switch_lsn)
}

/// The position to store for this server, slot and publication, with the progress that is stored.
pub fn stored_now(found: Found<'_>) -> Stored {
    let slot = found.slot.clone();
    let before = found.stored.cloned().unwrap_or_default();
    let known_version = &before.outboxes.publication_version;
    let mut outboxes = slot.outboxes;
    if before.outboxes.publication_oid == outboxes.publication_oid && !known_version.is_empty() {
        outboxes.publication_version.clone_from(known_version);
    }
    Stored {
        server: found.server.clone(),
        slot: slot.name,
        outboxes,
        cluster_id: slot.cluster_id.or(before.cluster_id),
        ..before
    }
}

/// The result of comparing the stored value with the server, the slot and the log.
struct Comparison {
    /// The stored position, as far as it exists on this server's timeline.
    position: Position,
    published: Option<Published>,
    /// Notes for the operator, a sentence each.
    notes: Vec<String>,
    mismatches: Vec<Mismatch>,
}

/// One reason why the stored value does not belong to this server and slot.
struct Mismatch {
    cause: String,
    verify: Remedy,
    /// The possible cost of discarding the stored position.
    risk: &'static str,
    /// Whether the table has what is missing.
    is_in_the_table: bool,
}

const LOST_OR_AGAIN: &str = "events that committed before it and were not delivered are lost to \
                             the stream, and events \
                             after it that were delivered already come again";
const LOST: &str = "events that committed before it and were not delivered are lost to the stream";
const NOT_COVERED: &str =
    "rows the publication did not cover are lost to the stream, and events after it come again";
const PRESENT_PRIMARY: &str = "check that the connection leads to the present primary, not to one \
                               that was left behind \
                               by a promotion";
fn compare(stored: &Stored, found: Found<'_>) -> Comparison {
    let slot = found.slot;
    // Of an outbox that is new, rows from before it are not published, whatever a snapshot sees.
    let is_new = slot
        .outboxes
        .table_oids
        .iter()
        .any(|oid| !stored.outboxes.table_oids.contains(oid));
    let mut comparison = Comparison {
        position: stored.position,
        published: known(found).filter(|_| !is_new),
        notes: Vec::new(),
        mismatches: Vec::new(),
    };
    let other_slot = (stored.slot != slot.name).then(|| Mismatch {
        cause: format!(
            "the stored position belongs to slot {}, not to {}",
            stored.slot, slot.name
        ),
        verify:
            "check slot and state key: two relays must not share a key. A renamed slot wants a \
                 key of its own"
                .into(),
        risk: LOST,
        is_in_the_table: false,
    });
    comparison.mismatches.extend(elsewhere(stored, slot));
    let other_server = comparison.of_server(stored, found);
    // LSNs and OIDs of another server or timeline say nothing here.
    let is_comparable = other_server.is_none();
    comparison
        .mismatches
        .extend(other_server.into_iter().chain(other_slot));
    if is_comparable {
        comparison.of_log(stored, found);
        comparison.of_outboxes(&slot.name, &stored.outboxes, &slot.outboxes);
    }
    comparison
}

/// Why the events are in another cluster than that of the brokers, if they are. A stored position
/// without a cluster, of an older walrelay, belongs to any.
fn elsewhere(stored: &Stored, slot: &SlotNow) -> Option<Mismatch> {
    let (before, now) = stored.cluster_id.as_ref().zip(slot.cluster_id.as_ref())?;
    (before != now).then(|| Mismatch {
        cause: other_cluster(slot.bus, slot.bus_address, before, now)
            .cause()
            .to_owned(),
        verify: Remedy::from(format!(
            "check {}. If the other cluster is meant: ",
            slot.bus_address
        ))
        .and(Remedy::of_missing("events")),
        risk: "events that only the cluster before has are not published to the other one",
        is_in_the_table: false,
    })
}

/// Why events that are messages would be given up, if they would: no outbox takes their prefix any
/// more.
fn dropped_prefix(name: &str, before: &Outboxes, now: &Outboxes) -> Option<Mismatch> {
    let prefix = before
        .message_prefixes
        .iter()
        .find(|prefix| !now.message_prefixes.contains(prefix))?;
    Some(Mismatch {
        cause: format!(
            "messages with prefix {prefix:?} were events of slot {name}, and no outbox of the \
             configuration takes them any more: those that were not delivered yet would be given \
             up"
        ),
        verify: "check message_prefix in the configuration. If it is meant, relay with the old \
                 one until no session emits it"
            .into(),
        risk: "messages with that prefix are not relayed, and events after it come again",
        is_in_the_table: false,
    })
}

/// Errors: the events are in another cluster than that of the brokers.
pub(crate) fn same_cluster(stored: &Stored, slot: &SlotNow) -> Result<()> {
    elsewhere(stored, slot).map_or(Ok(()), |elsewhere| Err(elsewhere.refusal(slot)))
}

impl Comparison {
    /// Why nothing else can be compared, if nothing can. Takes the position back to where the
    /// timelines parted.
    fn of_server(&mut self, stored: &Stored, found: Found<'_>) -> Option<Mismatch> {
        let slot = &found.slot.name;
        let then = stored.server.timeline;
        let timeline = found.server.timeline;
        let elsewhere = |cause, verify: &str| {
            Some(Mismatch {
                cause,
                verify: verify.into(),
                risk: LOST_OR_AGAIN,
                is_in_the_table: false,
            })
        };
        let system = &stored.server.system_identifier;
        let here = &found.server.system_identifier;
        if system != here {
            return elsewhere(
                format!(
                    "the position of slot {slot} was stored for the server with system identifier \
                     {system}, and this one \
                     is {here}"
                ),
                "check that the connection leads to the server you mean; a copy, or one upgraded \
                 with pg_upgrade or dump \
                 and restore, has another identifier",
            );
        }
        let stored_on = format!("the position of slot {slot} was stored on timeline {then}");
        if then > timeline {
            let cause = format!(
                "{stored_on}, and the server is on timeline {timeline}: it is an old primary, or \
                 was restored to before \
                 a promotion"
            );
            return elsewhere(cause, PRESENT_PRIMARY);
        }
        if then < timeline {
            let Some(switch) = found.history.iter().find(|switch| switch.timeline == then) else {
                let cause = format!(
                    "{stored_on}, which is no part of the history of the server's timeline \
                     {timeline}"
                );
                return elsewhere(cause, PRESENT_PRIMARY);
            };
            self.position = clamped(self.position, switch.switch_lsn);
            if self.position != stored.position {
                self.notes.push(phantoms(
                    &stored.position,
                    &self.position,
                    timeline,
                    switch.switch_lsn,
                ));
            }
        }
        None
    }

    fn of_log(&mut self, stored: &Stored, found: Found<'_>) {
        let Found { slot, wal_end, .. } = found;
        let name = &slot.name;
        let position = self.position;
        let confirmed = slot.confirmed_flush;
        let same_timeline = stored.server.timeline == found.server.timeline;
        // A poller has no position, and knows how far the log was all the same.
        let flushed = stored
            .published
            .as_ref()
            .and_then(|published| published.flushed)
            .filter(|_| same_timeline);
        let flushed = flushed
            .filter(|flushed| *flushed > wal_end)
            .map(Position::at);
        let beyond = Some(position).filter(|position| ends_beyond(position, wal_end));
        self.mismatches
            .extend(beyond.into_iter().chain(flushed).map(|delivered| {
                Mismatch {
            cause: format!(
                "slot {name}: everything up to {delivered} was delivered, and the server's log \
                 ends at {wal_end}: it was \
                 restored from a backup, or lost WAL"
            ),
            verify: "check that the connection leads to the server you mean. If it was restored, \
                     events after the backup \
                     are in the bus and no longer in the database"
                .into(),
            risk: "events after it come again, if they were delivered before the restore",
            is_in_the_table: false,
        }
            }));
        if confirmed > position.end_lsn {
            self.mismatches.push(Mismatch {
                cause: format!(
                    "slot {name} was confirmed up to {confirmed}, and only up to {position} is \
                     everything known to be \
                     delivered: the slot was recreated, or advanced by somebody else"
                ),
                verify: Remedy::of_missing("events").and(
                    "; slot.on_loss = recover does it by itself, where \
                                                 it can",
                ),
                risk: LOST,
                is_in_the_table: true,
            });
        }
    }

    fn of_outboxes(&mut self, name: &str, before: &Outboxes, now: &Outboxes) {
        let recreated = |what: &str, stored: u32, now: u32| {
            format!(
                "the {what} of slot {name} is another one than before: it was dropped and created \
                 again while walrelay was away, or another is named now (OID {stored}, now \
                 {now}): rows written in between may not be in the stream"
            )
        };
        let changed = |cause, is_in_the_table| Mismatch {
            cause,
            verify: Remedy::of_missing("events"),
            risk: NOT_COVERED,
            is_in_the_table,
        };
        let same_publication = before.publication_oid == now.publication_oid;
        if !same_publication {
            let cause = recreated("publication", before.publication_oid, now.publication_oid);
            self.mismatches.push(changed(cause, true));
        }
        let absent =
            |before: &[u32], now: &[u32]| before.iter().find(|oid| !now.contains(oid)).copied();
        let gone = absent(&before.table_oids, &now.table_oids);
        let new = absent(&now.table_oids, &before.table_oids);
        // Of a table that was made anew, or of another, what is stored says nothing.
        self.mismatches.extend(gone.map(|gone| match new {
            Some(new) => changed(recreated("outbox table", gone, new), false),
            None => {
                let cause = format!(
                    "an outbox table of slot {name}, with OID {gone}, is not in the configuration \
                     any more: its events that were not delivered yet would be given up"
                );
                let back = "put it back, until nothing of it is pending (select";
                Mismatch {
                    verify: Remedy::from(format!("{back} {gone}::regclass; names it)")),
                    ..changed(cause, false)
                }
            }
        }));
        let same = same_publication && gone.is_none();
        if same && absent(&before.membership_oids, &now.membership_oids).is_some() {
            let cause = format!(
                "the outbox table of slot {name} was taken out of the publication and added again, \
                 or added in another way, while walrelay was away: rows written in between are not \
                 in the stream"
            );
            self.mismatches.push(changed(cause, true));
        }
        self.mismatches.extend(dropped_prefix(name, before, now));
        let more_messages = now
            .message_prefixes
            .iter()
            .any(|prefix| !before.message_prefixes.contains(prefix));
        if same && (new.is_some() || more_messages) {
            // An index counts the events of all outboxes there are.
            if let Some(partial) = self.position.partial.take() {
                self.notes.push(format!(
                    "an outbox is new to slot {name}: events of the transaction at {} that were \
                     delivered come again",
                    partial.commit_lsn
                ));
            }
            self.notes.push(format!(
                "an outbox is new to slot {name}: it is relayed from {} on, and what was written \
                 before is not",
                self.position
            ));
        }
    }
}

impl Mismatch {
    fn refusal(&self, slot: &SlotNow) -> Error {
        let risk = self.risk;
        let confirmed = slot.confirmed_flush;
        Error::new(Kind::PositionMismatch, &self.cause).remedy(self.verify.clone().and(format!(
            ". Then `--adopt-slot` takes the slot's position, {confirmed}, as the truth: {risk}. \
             `--backlog` beside it \
             publishes rows of the table"
        )))
    }
}

/// A commit record that starts at `end` has not been written yet.
fn ends_beyond(position: &Position, end: Lsn) -> bool {
    position.end_lsn > end
        || position
            .partial
            .is_some_and(|partial| partial.commit_lsn >= end)
}

/// The part of `position` on the timeline that was left at `switch_lsn`; record boundaries do not
/// straddle a switch.
fn clamped(position: Position, switch_lsn: Lsn) -> Position {
    if ends_beyond(&position, switch_lsn) {
        Position::at(position.end_lsn.min(switch_lsn))
    } else {
        position
    }
}

fn phantoms(stored: &Position, position: &Position, timeline: u32, switch_lsn: Lsn) -> String {
    format!(
        "the server was promoted to timeline {timeline} at {switch_lsn}, and events were delivered \
         up to {stored}: those \
         of transactions that committed after {switch_lsn} are in the bus and no longer in the \
         database. Delivery goes \
         on from {position}; consumers have to be told"
    )
}

fn slot_beyond_the_log(slot: &SlotNow, wal_end: Lsn) -> Error {
    Error::new(
        Kind::PositionMismatch,
        format!(
            "slot {} was confirmed up to {}, and the server's log ends at {wal_end}: whatever is \
             written in between \
             would be skipped",
            slot.name, slot.confirmed_flush
        ),
    )
    .remedy(
        Remedy::from(format!(
            "another session confirmed WAL that does not exist (yet), or the server lost WAL. Look \
             for events from then that are \
             not in the bus, then drop the slot (select pg_drop_replication_slot('{}')) and run `",
            slot.name
        ))
        .and(NextCommand::new("setup").option("slot", &slot.name))
        .and("`"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::Partial;
    use proptest::prelude::*;

    const SWITCH: TimelineSwitch = TimelineSwitch {
        timeline: 1,
        switch_lsn: Lsn::new(500),
    };

    fn server(timeline: u32) -> ServerIdentity {
        ServerIdentity {
            system_identifier: "7000".to_owned(),
            timeline,
        }
    }

    fn outboxes() -> Outboxes {
        Outboxes {
            publication_oid: 11,
            publication_version: String::new(),
            table_oids: vec![12],
            membership_oids: vec![13],
            message_prefixes: vec!["shop".to_owned()],
        }
    }

    fn of_tables(table_oids: &[u32]) -> Outboxes {
        Outboxes {
            table_oids: table_oids.to_vec(),
            ..outboxes()
        }
    }

    fn stored_at(timeline: u32, position: Position) -> Stored {
        let slot = "orders".to_owned();
        Stored {
            server: server(timeline),
            slot,
            relay: String::new(),
            position,
            outboxes: outboxes(),
            cluster_id: Some("first".to_owned()),
            published: None,
            stream_only: Vec::new(),
            catch_up: None,
        }
    }

    fn slot_at(confirmed: u64) -> SlotNow {
        let confirmed_flush = Lsn::new(confirmed);
        SlotNow {
            name: "orders".to_owned(),
            confirmed_flush,
            outboxes: outboxes(),
            is_being_altered: false,
            cluster_id: Some("first".to_owned()),
            bus: "Kafka",
            bus_address: "kafka.brokers",
        }
    }

    fn reconcile(
        stored: Option<&Stored>,
        server: &ServerIdentity,
        slot: &SlotNow,
        wal_end: Lsn,
        history: &[TimelineSwitch],
        adopt: bool,
    ) -> Result<Start> {
        let found = Found {
            stored,
            server,
            slot,
            wal_end,
            history,
        };
        super::reconcile(found, adopt)
    }

    fn partly(end: u64, commit: u64) -> Position {
        Position {
            end_lsn: Lsn::new(end),
            partial: Some(Partial {
                commit_lsn: Lsn::new(commit),
                index: 3,
            }),
        }
    }

    fn at(end: u64) -> Position {
        Position::at(Lsn::new(end))
    }

    #[test]
    fn without_a_stored_position_delivery_starts_at_the_confirmed_lsn() {
        let start = reconcile(None, &server(1), &slot_at(400), Lsn::new(900), &[], false).unwrap();
        assert_eq!(start.position, at(400));
        assert!(
            start.notes[0].contains("no position is stored for slot orders")
                && start.notes[0].contains("`walrelay replay --where true` publishes all rows"),
            "{:?}",
            start.notes
        );
    }

    #[test]
    fn a_matching_stored_position_is_the_start_without_notes_even_when_adopting() {
        for position in [
            at(400),
            at(700),
            at(900),
            partly(700, 700),
            partly(700, 899),
        ] {
            for adopt in [false, true] {
                let stored = stored_at(1, position);
                let start = reconcile(
                    Some(&stored),
                    &server(1),
                    &slot_at(400),
                    Lsn::new(900),
                    &[],
                    adopt,
                )
                .unwrap();
                assert_eq!(
                    start,
                    Start {
                        position,
                        published: None,
                        notes: vec![]
                    }
                );
            }
        }
        // A promotion behind the position is no news.
        let stored = stored_at(1, partly(450, 470));
        let position = partly(450, 470);
        let start = reconcile(
            Some(&stored),
            &server(2),
            &slot_at(400),
            Lsn::new(900),
            &[SWITCH],
            false,
        )
        .unwrap();
        assert_eq!(
            start,
            Start {
                position,
                published: None,
                notes: vec![]
            }
        );
    }

    #[test]
    fn each_mismatch_is_refused_by_name_and_adopted_with_a_note() {
        let other_server = ServerIdentity {
            system_identifier: "7001".to_owned(),
            timeline: 1,
        };
        let other_slot = Stored {
            slot: "billing".to_owned(),
            relay: String::new(),
            ..stored_at(1, at(700))
        };
        let other_publication = Stored {
            outboxes: Outboxes {
                publication_oid: 99,
                ..outboxes()
            },
            ..stored_at(1, at(700))
        };
        let other_table = Stored {
            outboxes: of_tables(&[98]),
            ..stored_at(1, at(700))
        };
        let other_cluster = Stored {
            cluster_id: Some("second".to_owned()),
            ..stored_at(1, at(700))
        };
        let rows: Vec<(&str, Stored, ServerIdentity, u64, &[&str])> = vec![
            (
                "another server",
                stored_at(1, at(700)),
                other_server,
                400,
                &["7000", "7001", "system identifier"],
            ),
            (
                "another cluster",
                other_cluster,
                server(1),
                400,
                &["cluster first", "cluster second", "kafka.brokers"],
            ),
            (
                "another slot",
                other_slot,
                server(1),
                400,
                &["billing", "orders"],
            ),
            (
                "an old primary",
                stored_at(3, at(700)),
                server(2),
                400,
                &["timeline 3", "timeline 2", "old primary"],
            ),
            (
                "another branch",
                stored_at(2, at(700)),
                server(3),
                400,
                &["no part of the history", "timeline 2"],
            ),
            (
                "a restored backup",
                stored_at(1, at(901)),
                server(1),
                400,
                &["0/385", "ends at 0/384", "backup"],
            ),
            (
                "a partial beyond the log",
                stored_at(1, partly(700, 900)),
                server(1),
                400,
                &["0/384", "backup"],
            ),
            (
                "a slot ahead",
                stored_at(1, at(399)),
                server(1),
                400,
                &["0/190", "0/18F", "advanced by somebody"],
            ),
            (
                "a slot ahead of a partial",
                stored_at(1, partly(399, 600)),
                server(1),
                400,
                &["0/190", "0/18F"],
            ),
            (
                "a slot made after a promotion",
                stored_at(1, at(700)),
                server(2),
                600,
                &["0/258", "0/1F4"],
            ),
            (
                "another publication",
                other_publication,
                server(1),
                400,
                &["publication", "OID 99", "now 11"],
            ),
            (
                "another table",
                other_table,
                server(1),
                400,
                &["outbox table", "OID 98", "now 12"],
            ),
        ];
        for (name, stored, now, confirmed, says) in rows {
            let slot = slot_at(confirmed);
            let refuse =
                reconcile(Some(&stored), &now, &slot, Lsn::new(900), &[SWITCH], false).unwrap_err();
            assert_eq!(refuse.kind(), Kind::PositionMismatch, "{name}");
            for word in says {
                assert!(
                    refuse.cause().contains(word),
                    "{name}: {word:?} is not in {:?}",
                    refuse.cause()
                );
            }
            let remedy = refuse.what_to_do().unwrap();
            assert!(
                remedy.contains("--adopt-slot") && remedy.contains("--backlog"),
                "{name}: {remedy}"
            );
            assert!(
                remedy.contains(&slot.confirmed_flush.to_string()),
                "{name}: {remedy}"
            );

            let start =
                reconcile(Some(&stored), &now, &slot, Lsn::new(900), &[SWITCH], true).unwrap();
            assert_eq!(start.position, at(confirmed), "{name}");
            assert!(
                start.notes.iter().any(|note| note.contains(refuse.cause())),
                "{name}: {:?}",
                start.notes
            );
        }
        let stored = Stored {
            slot: "billing".to_owned(),
            relay: String::new(),
            outboxes: of_tables(&[98]),
            ..stored_at(1, at(300))
        };
        let start = reconcile(
            Some(&stored),
            &server(1),
            &slot_at(400),
            Lsn::new(900),
            &[],
            true,
        )
        .unwrap();
        assert_eq!(
            start
                .notes
                .iter()
                .filter(|note| note.starts_with("accepted"))
                .count(),
            3,
            "{:?}",
            start.notes
        );
    }

    #[test]
    fn a_position_without_a_cluster_belongs_to_any() {
        let known = stored_at(1, at(700));
        let unknown = Stored {
            cluster_id: None,
            ..known.clone()
        };
        let untold = SlotNow {
            cluster_id: None,
            ..slot_at(400)
        };
        for (stored, slot) in [(&unknown, slot_at(400)), (&known, untold)] {
            let start =
                reconcile(Some(stored), &server(1), &slot, Lsn::new(900), &[], false).unwrap();
            assert_eq!(
                start,
                Start {
                    position: at(700),
                    published: None,
                    notes: vec![]
                }
            );
        }
    }

    #[test]
    fn a_promotion_before_the_position_moves_the_start_back_and_notes_lost_events() {
        for (position, clamped) in [
            (at(700), at(500)),
            (partly(450, 500), at(450)),
            (partly(700, 800), at(500)),
        ] {
            let stored = stored_at(1, position);
            let start = reconcile(
                Some(&stored),
                &server(2),
                &slot_at(400),
                Lsn::new(900),
                &[SWITCH],
                false,
            )
            .unwrap();
            assert_eq!(start.position, clamped, "{position}");
            assert!(
                start.notes[0].contains("no longer in the database"),
                "{:?}",
                start.notes
            );
            assert!(
                start.notes[0].contains("timeline 2 at 0/1F4"),
                "{:?}",
                start.notes
            );
        }
    }

    #[test]
    fn the_timeline_switch_that_counts_is_the_one_from_the_stored_timeline() {
        let history = [
            SWITCH,
            TimelineSwitch {
                timeline: 2,
                switch_lsn: Lsn::new(800),
            },
        ];
        let start = |timeline| {
            let stored = stored_at(timeline, at(700));
            reconcile(
                Some(&stored),
                &server(3),
                &slot_at(400),
                Lsn::new(900),
                &history,
                false,
            )
            .unwrap()
            .position
        };
        assert_eq!(start(1), at(500));
        assert_eq!(start(2), at(700));
    }

    #[test]
    fn a_slot_confirmed_beyond_the_wal_is_refused_even_when_adopting() {
        for stored in [None, Some(stored_at(1, at(700)))] {
            let error = reconcile(
                stored.as_ref(),
                &server(1),
                &slot_at(901),
                Lsn::new(900),
                &[],
                true,
            )
            .unwrap_err();
            assert_eq!(error.kind(), Kind::PositionMismatch);
            assert!(
                error
                    .what_to_do()
                    .unwrap()
                    .contains("pg_drop_replication_slot('orders')")
            );
        }
    }

    prop_compose! {
        fn any_position()(end in 0u64..20, partial in proptest::option::of(0u64..5)) -> Position {
            let partial = partial.map(|ahead| Partial {
                commit_lsn: Lsn::new(end + ahead),
                index: 1,
            });
            Position { end_lsn: Lsn::new(end), partial }
        }
    }

    proptest! {
        #[test]
        fn no_start_skips_undelivered_events_or_lies_beyond_the_wal(
            position in any_position(),
            (then, timeline) in (1u32..4, 1u32..4),
            (same_server, same_slot, same_publication) in any::<(bool, bool, bool)>(),
            confirmed in 0u64..20,
            wal_end in 0u64..25,
            switches in proptest::collection::vec(0u64..20, 0..3),
            adopt in any::<bool>(),
        ) {
            let mut stored = stored_at(then, position);
            if !same_server { stored.server.system_identifier = "8000".to_owned(); }
            if !same_slot { stored.slot = "billing".to_owned(); }
            if !same_publication { stored.outboxes.publication_oid = 1; }
            let history: Vec<TimelineSwitch> = (1u32..)
                .zip(switches)
                .map(|(timeline, lsn)| TimelineSwitch { timeline, switch_lsn: Lsn::new(lsn) })
                .collect();
            let slot = slot_at(confirmed);
            let wal_end = Lsn::new(wal_end);
            let belongs = same_server && same_slot && same_publication;
            match reconcile(Some(&stored), &server(timeline), &slot, wal_end, &history, adopt) {
                Ok(start) => {
                    prop_assert!(start.position.end_lsn <= wal_end);
                    let partial = start.position.partial;
                    prop_assert!(partial.is_none_or(|partial| partial.commit_lsn < wal_end));
                    prop_assert!(start.position.end_lsn >= slot.confirmed_flush);
                    if start.notes.is_empty() {
                        prop_assert!(belongs && then <= timeline);
                        prop_assert_eq!(start.position, position);
                    }
                    if !adopt {
                        prop_assert!(belongs && then <= timeline);
                        prop_assert!(stored.position.is_at_or_after(&start.position));
                    }
                }
                Err(error) => {
                    prop_assert_eq!(error.kind(), Kind::PositionMismatch);
                    prop_assert!(error.what_to_do().is_some());
                    prop_assert!(!adopt || slot.confirmed_flush > wal_end);
                }
            }
        }
    }

    #[test]
    fn an_added_outbox_is_noted_and_a_removed_one_is_a_mismatch() {
        let now = server(1);
        let slot = slot_at(300);
        let added = SlotNow {
            outboxes: Outboxes {
                membership_oids: vec![13, 77],
                ..of_tables(&[12, 99])
            },
            ..slot.clone()
        };
        let start = reconcile(
            Some(&stored_at(1, at(300))),
            &now,
            &added,
            Lsn::new(900),
            &[],
            false,
        )
        .unwrap();
        assert!(
            start
                .notes
                .iter()
                .any(|note| note.contains("an outbox is new")),
            "{:?}",
            start.notes
        );
        let halfway = reconcile(
            Some(&stored_at(1, partly(300, 320))),
            &now,
            &added,
            Lsn::new(900),
            &[],
            false,
        )
        .unwrap();
        assert_eq!(
            halfway.position,
            at(300),
            "an index counts events of all outboxes"
        );
        assert!(
            halfway.notes.iter().any(|note| note.contains("come again")),
            "{:?}",
            halfway.notes
        );
        let two = Stored {
            outboxes: of_tables(&[12, 99]),
            ..stored_at(1, at(300))
        };
        let error = reconcile(Some(&two), &now, &slot, Lsn::new(900), &[], false).unwrap_err();
        assert_eq!(error.kind(), Kind::PositionMismatch);
        assert!(
            error.cause().contains(
                "an outbox table of slot orders, with OID 99, is not in the configuration"
            ),
            "{error}"
        );
    }

    #[test]
    fn a_removed_message_prefix_is_a_mismatch_and_an_added_one_is_not() {
        let now = server(1);
        let slot = slot_at(300);
        let decide = |prefixes: &[&str], adopt| {
            let message_prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
            let slot = SlotNow {
                outboxes: Outboxes {
                    message_prefixes,
                    ..outboxes()
                },
                ..slot.clone()
            };
            reconcile(
                Some(&stored_at(1, partly(350, 360))),
                &now,
                &slot,
                Lsn::new(900),
                &[],
                adopt,
            )
        };
        assert_eq!(
            decide(&["orders", "shop"], false).unwrap().position,
            at(350)
        );
        let error = decide(&["orders"], false).unwrap_err();
        assert_eq!(error.kind(), Kind::PositionMismatch);
        assert!(error.cause().contains("\"shop\""), "{error}");
        // An index that counted them is of no use.
        assert_eq!(decide(&[], true).unwrap().position, at(300));
    }
}
