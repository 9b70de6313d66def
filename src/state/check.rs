//! Whether the stored position belongs to this server and slot, and where to start (P1).
//!
//! The position alone says nothing: the same LSN is another place on another server, after a restored backup or on
//! another timeline, and a slot that was recreated begins behind events nobody relayed. Postgres notices none of it:
//! a start point beyond the slot is taken as it is, and one behind it is moved forward with a line in its own log
//! (<https://www.postgresql.org/docs/current/protocol-replication.html>). What cannot be noticed here: a restored
//! copy of the same server that has since written as much WAL as the original had.

use crate::error::{Error, Kind, Result};
use crate::position::{Lsn, Position};
use crate::state::{ServerIdentity, Stored};

/// One line of a timeline history file: `timeline` ended, for the server that was asked, at `switch_lsn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineSwitch {
    /// The timeline that was left.
    pub timeline: u32,
    /// Where it was left: WAL of that timeline beyond this does not exist for the server.
    pub switch_lsn: Lsn,
}

/// What the slot and the catalogs say now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotNow {
    /// The slot's name.
    pub name: String,
    /// Up to where it was confirmed.
    pub confirmed_flush: Lsn,
    /// OID of the publication.
    pub publication_oid: u32,
    /// OID of the outbox table.
    pub table_oid: u32,
}

/// Where delivery goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Everything up to here counts as delivered.
    pub position: Position,
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
pub fn reconcile(
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
            "no position is stored for slot {}: starting where the slot was last confirmed, {}",
            slot.name, slot.confirmed_flush
        );
        return Ok(Start { position: from_slot, notes: vec![note] });
    };
    let (position, mut notes, mismatches) = compare(stored, now, slot, wal_end, history);
    match mismatches.first() {
        None => Ok(Start { position, notes }),
        Some(first) if !adopt => Err(first.refusal(slot)),
        Some(_) => {
            let accepted =
                |mismatch: &Mismatch| format!("accepted because of --adopt-slot: {}", mismatch.cause(&slot.name));
            notes.extend(mismatches.iter().map(accepted));
            notes.push(format!(
                "the stored position {} is given up for the slot's, {}",
                stored.position, slot.confirmed_flush
            ));
            Ok(Start { position: from_slot, notes })
        }
    }
}

/// The position as far as it exists on this server's timeline, what to say of it, and all that does not belong.
fn compare(
    stored: &Stored,
    now: &ServerIdentity,
    slot: &SlotNow,
    wal_end: Lsn,
    history: &[TimelineSwitch],
) -> (Position, Vec<String>, Vec<Mismatch>) {
    let mut position = stored.position;
    let mut notes = Vec::new();
    let mut mismatches = Vec::new();
    if stored.server.system_identifier != now.system_identifier {
        mismatches.push(Mismatch::Server {
            stored: stored.server.system_identifier.clone(),
            now: now.system_identifier.clone(),
        });
    }
    if stored.slot != slot.name {
        mismatches.push(Mismatch::Slot { stored: stored.slot.clone() });
    }
    // LSNs and OIDs of another server say nothing here.
    if stored.server.system_identifier != now.system_identifier {
        return (position, notes, mismatches);
    }
    let (then, timeline) = (stored.server.timeline, now.timeline);
    if then > timeline {
        mismatches.push(Mismatch::TimelineNewer { stored: then, now: timeline });
        return (position, notes, mismatches);
    }
    if then < timeline {
        let Some(switch) = history.iter().find(|switch| switch.timeline == then) else {
            mismatches.push(Mismatch::TimelineNotAncestor { stored: then, now: timeline });
            return (position, notes, mismatches);
        };
        position = clamped(position, switch.switch_lsn);
        if position != stored.position {
            notes.push(phantoms(&stored.position, &position, timeline, switch.switch_lsn));
        }
    }
    if ends_beyond(&position, wal_end) {
        mismatches.push(Mismatch::BeyondLog { stored: position, wal_end });
    }
    if slot.confirmed_flush > position.end_lsn {
        mismatches.push(Mismatch::SlotAhead { stored: position, confirmed: slot.confirmed_flush });
    }
    if stored.publication_oid != slot.publication_oid {
        mismatches.push(Mismatch::Recreated {
            what: "publication",
            stored: stored.publication_oid,
            now: slot.publication_oid,
        });
    }
    if stored.table_oid != slot.table_oid {
        mismatches.push(Mismatch::Recreated { what: "outbox table", stored: stored.table_oid, now: slot.table_oid });
    }
    (position, notes, mismatches)
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
    .remedy(format!(
        "somebody confirmed WAL that does not exist (yet), or the server lost WAL. Look for events from then that are \
         not in Kafka, then drop the slot (select pg_drop_replication_slot('{0}')) and run `walrelay setup --slot {0}`",
        slot.name
    ))
}

/// One way in which what is stored does not belong here.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mismatch {
    Server { stored: String, now: String },
    Slot { stored: String },
    TimelineNewer { stored: u32, now: u32 },
    TimelineNotAncestor { stored: u32, now: u32 },
    BeyondLog { stored: Position, wal_end: Lsn },
    SlotAhead { stored: Position, confirmed: Lsn },
    Recreated { what: &'static str, stored: u32, now: u32 },
}

impl Mismatch {
    fn cause(&self, slot: &str) -> String {
        match self {
            Mismatch::Server { stored, now } => format!(
                "the position of slot {slot} was stored for the server with system identifier {stored}, and this one \
                 is {now}"
            ),
            Mismatch::Slot { stored } => format!("the stored position belongs to slot {stored}, not to {slot}"),
            Mismatch::TimelineNewer { stored, now } => format!(
                "the position of slot {slot} was stored on timeline {stored}, and the server is on timeline {now}: it \
                 is an old primary, or was restored to before a promotion"
            ),
            Mismatch::TimelineNotAncestor { stored, now } => format!(
                "the position of slot {slot} was stored on timeline {stored}, which is no part of the history of the \
                 server's timeline {now}"
            ),
            Mismatch::BeyondLog { stored, wal_end } => format!(
                "slot {slot}: everything up to {stored} was delivered, and the server's log ends at {wal_end}: it was \
                 restored from a backup, or lost WAL"
            ),
            Mismatch::SlotAhead { stored, confirmed } => format!(
                "slot {slot} was confirmed up to {confirmed}, and only up to {stored} is everything known to be \
                 delivered: the slot was recreated, or advanced by somebody else"
            ),
            Mismatch::Recreated { what, stored, now } => format!(
                "the {what} of slot {slot} was dropped and created again while walrelay was away (OID {stored}, now \
                 {now}): rows written in between may not be in the stream"
            ),
        }
    }

    /// What to look at before choosing.
    fn verify(&self) -> &'static str {
        match self {
            Mismatch::Server { .. } => {
                "check that the connection leads to the server you mean; a copy, or one upgraded with pg_upgrade or \
                 dump and restore, has another identifier"
            }
            Mismatch::Slot { .. } => {
                "check slot and state key: two relays must not share a key. A renamed slot wants a key of its own"
            }
            Mismatch::TimelineNewer { .. } | Mismatch::TimelineNotAncestor { .. } => {
                "check that the connection leads to the present primary, not to one that was left behind by a promotion"
            }
            Mismatch::BeyondLog { .. } => {
                "check that the connection leads to the server you mean. If it was restored, events after the backup \
                 are in Kafka and no longer in the database"
            }
            Mismatch::SlotAhead { .. } => {
                "compare outbox and topics for events that committed between the two positions, and publish by hand \
                 what is missing"
            }
            Mismatch::Recreated { .. } => {
                "compare outbox and topics for events since walrelay last ran, and publish by hand what is missing"
            }
        }
    }

    /// What giving up the stored position may cost.
    fn risk(&self) -> &'static str {
        match self {
            Mismatch::Server { .. } | Mismatch::TimelineNewer { .. } | Mismatch::TimelineNotAncestor { .. } => {
                "events that committed before it and were not delivered are lost to the stream, and events after it \
                 that were delivered already come again"
            }
            Mismatch::BeyondLog { .. } => "events after it come again, if they were delivered before the restore",
            Mismatch::Slot { .. } | Mismatch::SlotAhead { .. } => {
                "events that committed before it and were not delivered are lost to the stream"
            }
            Mismatch::Recreated { .. } => {
                "rows the publication did not cover are lost to the stream, and events after it come again"
            }
        }
    }

    fn refusal(&self, slot: &SlotNow) -> Error {
        Error::new(Kind::PositionMismatch, self.cause(&slot.name)).remedy(format!(
            "{}. Then `--adopt-slot` takes the slot's position, {}, as the truth: {}",
            self.verify(),
            slot.confirmed_flush,
            self.risk()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::Partial;
    use proptest::prelude::*;

    const SWITCH: TimelineSwitch = TimelineSwitch { timeline: 1, switch_lsn: Lsn::new(500) };

    fn server(timeline: u32) -> ServerIdentity {
        ServerIdentity { system_identifier: "7000".to_owned(), timeline }
    }

    fn stored_at(timeline: u32, position: Position) -> Stored {
        Stored { server: server(timeline), slot: "orders".to_owned(), position, publication_oid: 11, table_oid: 12 }
    }

    fn slot_at(confirmed: u64) -> SlotNow {
        SlotNow { name: "orders".to_owned(), confirmed_flush: Lsn::new(confirmed), publication_oid: 11, table_oid: 12 }
    }

    fn partly(end: u64, commit: u64) -> Position {
        Position { end_lsn: Lsn::new(end), partial: Some(Partial { commit_lsn: Lsn::new(commit), index: 3 }) }
    }

    fn at(end: u64) -> Position {
        Position::at(Lsn::new(end))
    }

    #[test]
    fn with_nothing_stored_delivery_starts_where_the_slot_was_confirmed() {
        let start = reconcile(None, &server(1), &slot_at(400), Lsn::new(900), &[], false).unwrap();
        assert_eq!(start.position, at(400));
        assert!(start.notes[0].contains("no position is stored for slot orders"), "{:?}", start.notes);
    }

    #[test]
    fn what_belongs_together_starts_at_the_stored_position_without_a_word_even_when_adopting() {
        for position in [at(400), at(700), at(900), partly(700, 700), partly(700, 899)] {
            for adopt in [false, true] {
                let stored = stored_at(1, position);
                let start = reconcile(Some(&stored), &server(1), &slot_at(400), Lsn::new(900), &[], adopt).unwrap();
                assert_eq!(start, Start { position, notes: vec![] });
            }
        }
    }

    #[test]
    fn each_mismatch_is_refused_by_name_and_adopted_with_a_note() {
        let other_server = ServerIdentity { system_identifier: "7001".to_owned(), timeline: 1 };
        let other_slot = Stored { slot: "billing".to_owned(), ..stored_at(1, at(700)) };
        let other_publication = Stored { publication_oid: 99, ..stored_at(1, at(700)) };
        let other_table = Stored { table_oid: 98, ..stored_at(1, at(700)) };
        let rows: Vec<(&str, Stored, ServerIdentity, u64, &[&str])> = vec![
            ("another server", stored_at(1, at(700)), other_server, 400, &["7000", "7001", "system identifier"]),
            ("another slot", other_slot, server(1), 400, &["billing", "orders"]),
            ("an old primary", stored_at(3, at(700)), server(2), 400, &["timeline 3", "timeline 2", "old primary"]),
            ("another branch", stored_at(2, at(700)), server(3), 400, &["no part of the history", "timeline 2"]),
            ("a restored backup", stored_at(1, at(901)), server(1), 400, &["0/385", "ends at 0/384", "backup"]),
            ("a partial beyond the log", stored_at(1, partly(700, 900)), server(1), 400, &["0/384", "backup"]),
            ("a slot ahead", stored_at(1, at(399)), server(1), 400, &["0/190", "0/18F", "advanced by somebody"]),
            ("a slot ahead of a partial", stored_at(1, partly(399, 600)), server(1), 400, &["0/190", "0/18F"]),
            ("a slot made after a promotion", stored_at(1, at(700)), server(2), 600, &["0/258", "0/1F4"]),
            ("another publication", other_publication, server(1), 400, &["publication", "OID 99", "now 11"]),
            ("another table", other_table, server(1), 400, &["outbox table", "OID 98", "now 12"]),
        ];
        for (name, stored, now, confirmed, says) in rows {
            let slot = slot_at(confirmed);
            let refuse = reconcile(Some(&stored), &now, &slot, Lsn::new(900), &[SWITCH], false).unwrap_err();
            assert_eq!(refuse.kind(), Kind::PositionMismatch, "{name}");
            for word in says {
                assert!(refuse.cause().contains(word), "{name}: {word:?} is not in {:?}", refuse.cause());
            }
            let remedy = refuse.what_to_do().unwrap();
            assert!(remedy.contains("--adopt-slot"), "{name}: {remedy}");
            assert!(remedy.contains(&slot.confirmed_flush.to_string()), "{name}: {remedy}");

            let start = reconcile(Some(&stored), &now, &slot, Lsn::new(900), &[SWITCH], true).unwrap();
            assert_eq!(start.position, at(confirmed), "{name}");
            assert!(start.notes.iter().any(|note| note.contains(refuse.cause())), "{name}: {:?}", start.notes);
        }
    }

    #[test]
    fn adopting_names_every_mismatch_it_accepts() {
        let stored = Stored { slot: "billing".to_owned(), table_oid: 98, ..stored_at(1, at(300)) };
        let start = reconcile(Some(&stored), &server(1), &slot_at(400), Lsn::new(900), &[], true).unwrap();
        assert_eq!(start.notes.iter().filter(|note| note.starts_with("accepted")).count(), 3, "{:?}", start.notes);
    }

    #[test]
    fn a_promotion_behind_the_position_is_no_news() {
        let position = partly(450, 470);
        let start =
            reconcile(Some(&stored_at(1, position)), &server(2), &slot_at(400), Lsn::new(900), &[SWITCH], false);
        assert_eq!(start.unwrap(), Start { position, notes: vec![] });
    }

    #[test]
    fn a_promotion_before_the_position_takes_it_back_and_says_that_events_no_longer_exist() {
        for (position, clamped) in [(at(700), at(500)), (partly(450, 500), at(450)), (partly(700, 800), at(500))] {
            let stored = stored_at(1, position);
            let start = reconcile(Some(&stored), &server(2), &slot_at(400), Lsn::new(900), &[SWITCH], false).unwrap();
            assert_eq!(start.position, clamped, "{position}");
            assert!(start.notes[0].contains("no longer in the database"), "{:?}", start.notes);
            assert!(start.notes[0].contains("timeline 2 at 0/1F4"), "{:?}", start.notes);
        }
    }

    #[test]
    fn the_switch_that_counts_is_the_one_that_left_the_stored_timeline() {
        let history = [SWITCH, TimelineSwitch { timeline: 2, switch_lsn: Lsn::new(800) }];
        let start = |timeline| {
            let stored = stored_at(timeline, at(700));
            reconcile(Some(&stored), &server(3), &slot_at(400), Lsn::new(900), &history, false).unwrap().position
        };
        assert_eq!(start(1), at(500));
        assert_eq!(start(2), at(700));
    }

    #[test]
    fn a_slot_confirmed_beyond_the_log_is_refused_even_when_adopting() {
        for stored in [None, Some(stored_at(1, at(700)))] {
            let error = reconcile(stored.as_ref(), &server(1), &slot_at(901), Lsn::new(900), &[], true).unwrap_err();
            assert_eq!(error.kind(), Kind::PositionMismatch);
            assert!(error.what_to_do().unwrap().contains("pg_drop_replication_slot('orders')"));
        }
    }

    prop_compose! {
        fn any_position()(end in 0u64..20, partial in proptest::option::of(0u64..5)) -> Position {
            let partial = partial.map(|ahead| Partial { commit_lsn: Lsn::new(end + ahead), index: 1 });
            Position { end_lsn: Lsn::new(end), partial }
        }
    }

    proptest! {
        #[test]
        fn no_start_skips_what_was_not_delivered_or_names_what_does_not_exist(
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
            if !same_publication { stored.publication_oid = 1; }
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
                    prop_assert!(start.position.partial.is_none_or(|partial| partial.commit_lsn < wal_end));
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
}
