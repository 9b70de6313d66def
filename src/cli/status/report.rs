//! What `status` says of a slot, and whether it is well. Pure.

use std::fmt::Display;
use std::fmt::Write;

use serde::Serialize;

use crate::cli::undelivered::text::counted;
use crate::config::unit::human_bytes;
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::position::Lsn;

/// Where Postgres keeps something from the role that asks.
const NEEDS_RIGHT: &str = "(needs pg_monitor)";

/// What the caller still calls healthy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of WAL that may be unconfirmed.
    pub lag_bytes: Option<u64>,
    /// Longest lag, where it is known.
    pub lag_seconds: Option<u64>,
}

/// A slot as its server sees it. The fields are the keys of `status --json`, where `null` is "not known": the server's
/// major does not have it, or the role may not see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The slot.
    pub slot: String,
    /// Whether it is well: no problems.
    pub healthy: bool,
    /// What is wrong, a sentence each.
    pub problems: Vec<String>,
    /// `logical`, or the wrong thing; none: there is no slot of this name.
    pub kind: Option<String>,
    /// `pgoutput`, or the wrong thing.
    pub plugin: Option<String>,
    /// Its database.
    pub database: Option<String>,
    /// Whether somebody streams from it.
    pub active: bool,
    /// The walsender that does.
    pub pid: Option<i32>,
    /// Who that is, by its own words.
    pub application: Option<String>,
    /// From where: an address, or `[local]` for a Unix socket.
    pub client: Option<String>,
    /// The session of a relay that reads the table, instead of a slot or before it streams.
    pub table_reader_pid: Option<i32>,
    /// Sessions of relays that stand by, as far as the role may see them.
    pub stand_by_pids: Vec<i32>,
    /// `at-least-once` or `exactly-once`, as the relay at work is configured, where the role may see its session.
    pub guarantee: Option<String>,
    /// Events of the slot that wait in `walrelay.parked`, where the role may read it.
    pub parked_events: Option<i64>,
    /// For how long the first of them has.
    pub oldest_parked_seconds: Option<f64>,
    /// Up to where the relay confirmed.
    pub confirmed_lsn: Option<String>,
    /// From where WAL is kept: the start of the oldest transaction that is not confirmed.
    pub restart_lsn: Option<String>,
    /// The end of WAL that is on the server's disk.
    pub current_lsn: Option<String>,
    /// WAL kept for the slot: `current_lsn - restart_lsn`.
    pub retained_bytes: Option<i64>,
    /// WAL not confirmed: `current_lsn - confirmed_lsn`. WAL of other tables counts until the relay confirms past it.
    pub lag_bytes: Option<i64>,
    /// Nothing unconfirmed: 0. Inactive: the time since it became so, from Postgres 17 on. Else how long the oldest of
    /// what is not confirmed has waited at least, from the look that saw it first: not known at the first one.
    pub lag_seconds: Option<f64>,
    /// Since the relay last said anything.
    pub reply_age_seconds: Option<f64>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// WAL that can still be written before the slot may be lost; `null` without a bound.
    pub safe_wal_bytes: Option<i64>,
    /// Why it can no longer be used, from Postgres 17 on.
    pub invalidation_reason: Option<String>,
    /// Whether it was lost to a conflict with recovery, from Postgres 16 on.
    pub conflicting: Option<bool>,
    /// Whether it decodes prepared transactions at their prepare; walrelay's never do.
    pub two_phase: bool,
    /// Whether standbys keep a copy, from Postgres 17 on.
    pub failover: Option<bool>,
}

impl Report {
    /// Fills in `problems` and `healthy`.
    pub fn judge(&mut self, limits: &Limits) {
        let mut problems = Vec::new();
        let reason = self.invalidation_reason.as_deref();
        let is_read = self.table_reader_pid.is_some();
        if self.kind.is_some()
            && (self.kind.as_deref() != Some("logical") || self.plugin.as_deref() != Some("pgoutput"))
        {
            problems.push("it is not a slot of walrelay: not pgoutput".to_owned());
        }
        match self.wal_status.as_deref() {
            Some("lost") => problems.push(format!("it is lost ({})", reason.unwrap_or("wal_removed"))),
            _ if reason.is_some() => problems.push(format!("it is invalid ({})", reason.unwrap_or_default())),
            Some("unreserved") => {
                problems.push("it is about to be lost: its WAL may go at the next checkpoint".to_owned())
            }
            _ => {}
        }
        if self.conflicting == Some(true) && reason.is_none() {
            problems.push("it conflicts with recovery".to_owned());
        }
        match (self.active, self.confirmed_lsn.is_some()) {
            _ if is_read => {}
            (_, false) if self.restart_lsn.is_some() => problems.push("it is still being created".to_owned()),
            (false, _) => problems.push("no relay streams from it".to_owned()),
            (true, _) => {}
        }
        if let (Some(most), Some(lag)) = (limits.lag_bytes, self.lag_bytes)
            && u64::try_from(lag).is_ok_and(|lag| lag > most)
        {
            problems.push(format!("{} are not confirmed, more than {}", bytes(lag), human_bytes(most)));
        }
        if let (Some(most), Some(lag)) = (limits.lag_seconds, self.lag_seconds)
            && std::time::Duration::try_from_secs_f64(lag).is_ok_and(|lag| lag > std::time::Duration::from_secs(most))
        {
            problems.push(format!("it is {lag:.1} s behind, more than {most} s"));
        }
        self.healthy = problems.is_empty();
        self.problems = problems;
    }

    /// Whether another look can tell more: there is a limit in seconds, and `end`, where the log ended at the first look,
    /// is not confirmed. Call after [`Report::judge`]. Not true for longer than the limit where looks follow each other.
    pub fn is_open(&self, limits: &Limits, end: Option<Lsn>) -> bool {
        let waits = self.confirmed().zip(end).is_some_and(|(confirmed, end)| confirmed < end);
        self.healthy && self.active && limits.lag_seconds.is_some() && waits
    }

    /// [`Report::confirmed_lsn`].
    pub fn confirmed(&self) -> Option<Lsn> {
        self.confirmed_lsn.as_deref()?.parse().ok()
    }

    /// [`Report::current_lsn`].
    pub fn current(&self) -> Option<Lsn> {
        self.current_lsn.as_deref()?.parse().ok()
    }

    /// The exit code's side of it.
    ///
    /// # Errors
    /// [`Kind::Unhealthy`] with the problems.
    pub fn verdict(&self) -> Result<()> {
        if self.healthy {
            return Ok(());
        }
        let error =
            Error::new(Kind::Unhealthy, format!("slot {} is not well: {}", self.slot, self.problems.join("; ")));
        if self.plugin.as_deref() != Some("pgoutput") {
            return Err(error.remedy("name the slot that `walrelay setup` created with --slot"));
        }
        let run = NextCommand::new("run").option("slot", &self.slot);
        Err(match (self.wal_status.as_deref(), self.active) {
            (Some("lost"), _) => error.remedy(
                Remedy::from("start a relay, which makes it anew and reads from the table what was not published: ").and(run),
            ),
            (_, false) => error.remedy(Remedy::from("start a relay: ").and(run).and(
                "; where one runs, its /readyz and its log say what keeps it from streaming: it may wait for a topic that \
                 refuses records, or for Kafka",
            )),
            (_, true) => error.remedy("look at the relay's log: Kafka may be slow or away"),
        })
    }

    /// One JSON object on one line.
    ///
    /// # Errors
    /// [`Kind::Bug`]; numbers and text can always be written.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::new(Kind::Bug, format!("the status is no JSON: {error}")))
    }

    /// One line for a log.
    pub fn line(&self) -> String {
        format!(
            "slot={} healthy={} active={} table_reader_pid={} parked={} confirmed={} lag_bytes={} lag_seconds={} retained_bytes={} wal_status={}",
            self.slot,
            self.healthy,
            self.active,
            or_dash(self.table_reader_pid),
            or_dash(self.parked_events),
            or_dash(self.confirmed_lsn.as_deref()),
            or_dash(self.lag_bytes),
            or_dash(self.lag_seconds.map(|seconds| format!("{seconds:.1}"))),
            or_dash(self.retained_bytes),
            or_dash(self.wal_status.as_deref()),
        )
    }

    /// An aligned table for people.
    pub fn table(&self) -> String {
        let relay = match (self.active, self.pid) {
            _ if self.table_reader_pid.is_some() => {
                format!("backend pid {} reads the table", or_dash(self.table_reader_pid))
            }
            (true, Some(pid)) => {
                let application = self.application.as_deref().unwrap_or("?");
                let place = match self.client.as_deref() {
                    Some("[local]") => " from a local socket".to_owned(),
                    Some(client) => format!(" from {client}"),
                    None => format!(", address not shown {NEEDS_RIGHT}"),
                };
                format!("backend pid {pid}, {application}{place}")
            }
            (true, None) => "connected".to_owned(),
            (false, _) => "none".to_owned(),
        };
        let invalid = self.invalidation_reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let safe = match self.safe_wal_bytes {
            Some(safe) => format!("{} more may be written before the slot can be lost", bytes(safe)),
            None if self.kind.is_none() => "-".to_owned(),
            None => "no bound (max_slot_wal_keep_size)".to_owned(),
        };
        let health =
            if self.healthy { "healthy".to_owned() } else { format!("UNHEALTHY: {}", self.problems.join("; ")) };
        let heard = match self.reply_age_seconds {
            Some(age) => format!("{} ago", seconds(age)),
            None if self.active => format!("not known {NEEDS_RIGHT}"),
            None => "-".to_owned(),
        };
        let stand_by = match self.stand_by_pids.as_slice() {
            [] => "none".to_owned(),
            pids => {
                let pids: Vec<String> = pids.iter().map(|pid| format!("backend pid {pid}")).collect();
                pids.join(", ")
            }
        };
        let parked = match (self.parked_events, self.oldest_parked_seconds) {
            (Some(0), _) => "none".to_owned(),
            (Some(events), Some(oldest)) => {
                let events = counted(u64::try_from(events).unwrap_or_default(), "event");
                format!("{events}, the oldest for {} (walrelay parked list)", seconds(oldest))
            }
            (events, _) => or_dash(events),
        };
        let lag = or_dash(self.lag_bytes.map(bytes));
        let lag = match self.lag_seconds {
            Some(waited) => format!("{lag}, {}", seconds(waited)),
            None => lag,
        };
        let rows = [
            (
                "slot",
                if self.kind.is_some() { self.slot.clone() } else { format!("{}, which does not exist", self.slot) },
            ),
            ("health", health),
            ("database", or_dash(self.database.as_deref())),
            ("relay", relay),
            ("guarantee", or_dash(self.guarantee.as_deref())),
            ("stand-by", stand_by),
            ("parked", parked),
            ("last heard", heard),
            ("confirmed", or_dash(self.confirmed_lsn.as_deref())),
            ("current", or_dash(self.current_lsn.as_deref())),
            ("lag", lag),
            (
                "WAL kept",
                format!("{} from {}", or_dash(self.retained_bytes.map(bytes)), or_dash(self.restart_lsn.as_deref())),
            ),
            ("WAL status", format!("{}{invalid}", or_dash(self.wal_status.as_deref()))),
            ("WAL bound", safe),
            ("failover", or_dash(self.failover.map(|failover| if failover { "kept on standbys" } else { "off" }))),
        ];
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        rows.iter().fold(String::new(), |mut table, (name, value)| {
            // Writing to a String does not fail.
            writeln!(table, "{name:width$}  {value}").unwrap_or_default();
            table
        })
    }
}

fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn bytes(bytes: i64) -> String {
    human_bytes(u64::try_from(bytes).unwrap_or_default())
}

fn seconds(seconds: f64) -> String {
    if seconds < 60.0 { format!("{seconds:.1} s") } else { format!("{:.0} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            slot: "orders".into(),
            healthy: true,
            problems: vec![],
            kind: Some("logical".into()),
            plugin: Some("pgoutput".into()),
            database: Some("shop".into()),
            active: true,
            pid: Some(7),
            application: Some("walrelay".into()),
            client: Some("10.0.0.1".into()),
            table_reader_pid: None,
            stand_by_pids: vec![],
            guarantee: Some("exactly-once".into()),
            parked_events: Some(5),
            oldest_parked_seconds: Some(200.0),
            confirmed_lsn: Some("0/2000000".into()),
            restart_lsn: Some("0/1000000".into()),
            current_lsn: Some("0/2100000".into()),
            retained_bytes: Some(17 << 20),
            lag_bytes: Some(1 << 20),
            lag_seconds: Some(0.25),
            reply_age_seconds: Some(1.5),
            wal_status: Some("reserved".into()),
            safe_wal_bytes: None,
            invalidation_reason: None,
            conflicting: None,
            two_phase: false,
            failover: None,
        }
    }

    fn problems(change: impl FnOnce(&mut Report), limits: Limits) -> String {
        let mut report = report();
        change(&mut report);
        report.judge(&limits);
        assert_eq!(report.healthy, report.verdict().is_ok());
        report.problems.join("; ")
    }

    #[test]
    fn a_slot_is_judged_by_what_an_operator_would_be_woken_for() {
        let none = Limits::default();
        assert_eq!(problems(|_| {}, none), "");
        assert_eq!(problems(|report| report.active = false, none), "no relay streams from it");
        assert_eq!(problems(|report| report.wal_status = Some("lost".into()), none), "it is lost (wal_removed)");
        assert_eq!(
            problems(|report| report.wal_status = Some("unreserved".into()), none),
            "it is about to be lost: its WAL may go at the next checkpoint"
        );
        assert_eq!(problems(|report| report.wal_status = Some("extended".into()), none), "");
        assert_eq!(
            problems(|report| report.invalidation_reason = Some("idle_timeout".into()), none),
            "it is invalid (idle_timeout)"
        );
        assert_eq!(problems(|report| report.confirmed_lsn = None, none), "it is still being created");
        let polls = |report: &mut Report| {
            *report = Report { kind: None, plugin: None, active: false, table_reader_pid: Some(9), ..report.clone() };
        };
        assert_eq!(problems(polls, none), "", "there is no slot, and a relay does without");
    }

    #[test]
    fn a_limit_is_the_most_that_is_still_healthy_and_what_is_not_known_is_not_over_it() {
        let bytes = |most| Limits { lag_bytes: Some(most), ..Limits::default() };
        let seconds = |most| Limits { lag_seconds: Some(most), ..Limits::default() };
        assert_eq!(problems(|_| {}, bytes(1 << 20)), "");
        assert_eq!(problems(|_| {}, bytes((1 << 20) - 1)), "1.0 MiB are not confirmed, more than 1023 KiB");
        assert_eq!(problems(|report| report.lag_seconds = Some(5.0), seconds(5)), "");
        assert_eq!(problems(|report| report.lag_seconds = Some(5.5), seconds(5)), "it is 5.5 s behind, more than 5 s");
        assert_eq!(problems(|report| report.lag_seconds = None, seconds(0)), "");
    }

    #[test]
    fn with_a_limit_in_seconds_looking_goes_on_until_the_first_end_is_confirmed_or_too_late() {
        let limits = Limits { lag_seconds: Some(5), ..Limits::default() };
        let open = |lag_seconds, active, limits, end: &str| {
            let mut report = Report { lag_seconds, active, ..report() };
            report.judge(&limits);
            report.is_open(&limits, end.parse().ok())
        };
        assert!(open(None, true, limits, "0/2100000") && open(Some(5.0), true, limits, "0/2000001"));
        assert!(!open(Some(0.5), true, limits, "0/2000000"), "only what came later is not confirmed");
        assert!(!open(Some(5.1), true, limits, "0/2100000"));
        assert!(!open(None, false, limits, "0/2100000"), "without a relay nothing will be confirmed");
        assert!(!open(None, true, Limits::default(), "0/2100000"));
    }

    #[test]
    fn seconds_that_are_not_known_are_not_in_the_table() {
        let table = Report { lag_seconds: None, ..report() }.table();
        assert!(table.contains("lag         1.0 MiB\n"), "{table}");
    }

    #[test]
    fn the_table_is_aligned_and_in_units_people_read() {
        insta::assert_snapshot!(report().table(), @r#"
    slot        orders
    health      healthy
    database    shop
    relay       backend pid 7, walrelay from 10.0.0.1
    guarantee   exactly-once
    stand-by    none
    parked      5 events, the oldest for 3 min (walrelay parked list)
    last heard  1.5 s ago
    confirmed   0/2000000
    current     0/2100000
    lag         1.0 MiB, 0.2 s
    WAL kept    17 MiB from 0/1000000
    WAL status  reserved
    WAL bound   no bound (max_slot_wal_keep_size)
    failover    -
    "#);
    }

    #[test]
    fn who_reads_the_table_is_named_whether_there_is_a_slot_or_not() {
        let reads = Report { table_reader_pid: Some(9), active: false, pid: None, ..report() };
        assert!(reads.table().contains("relay       backend pid 9 reads the table\n"), "{}", reads.table());
        let waited_for = Report { stand_by_pids: vec![11, 12], ..report() };
        assert!(waited_for.table().contains("stand-by    backend pid 11, backend pid 12\n"), "{}", waited_for.table());
        let polls = Report { kind: None, ..reads };
        assert!(polls.table().starts_with("slot        orders, which does not exist\n"), "{}", polls.table());
    }

    #[test]
    fn what_the_role_may_not_see_says_which_right_shows_it() {
        let hidden = Report { client: None, reply_age_seconds: None, ..report() };
        let table = hidden.table();
        assert!(table.contains("backend pid 7, walrelay, address not shown (needs pg_monitor)\n"), "{table}");
        assert!(table.contains("last heard  not known (needs pg_monitor)\n"), "{table}");
        let local = Report { client: Some("[local]".into()), ..report() };
        assert!(local.table().contains("walrelay from a local socket\n"));
        let nobody = Report { active: false, pid: None, ..hidden };
        assert!(!nobody.table().contains("pg_monitor"));
    }

    #[test]
    fn what_is_not_known_is_null_in_json() {
        let json: serde_json::Value = serde_json::from_str(&report().json().unwrap()).unwrap();
        assert!(json["failover"].is_null() && json["lag_bytes"] == 1 << 20 && json["healthy"] == true);
    }
}
