//! The relay's present work in words, for the status page and for systemd.

use super::Telemetry;
use super::health::{HELD_BACK, stalled_fix, wal_not_sent_fix};
use walrelay_core::clock::now_us;
use walrelay_core::error::Kind;
use walrelay_core::readiness::{NotReady, Side};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Doing {
    /// A class of the page: `good`, `wait` or `bad`.
    pub(super) tone: &'static str,
    pub(super) headline: String,
    pub(super) notes: Vec<String>,
}

impl Doing {
    pub(super) fn of(telemetry: &Telemetry) -> Doing {
        let metrics = &telemetry.metrics;
        let parked = Some(metrics.waiting_events.get()).filter(|parked| *parked > 0);
        let parked = parked.map(|parked| match parked {
            1 => "1 event is parked until it can be delivered.".to_owned(),
            parked => format!(
                "{} events are parked until they can be delivered.",
                count(parked as f64)
            ),
        });
        let (tone, headline, note) = match telemetry.health.not_ready() {
            None => (
                if parked.is_some() { "wait" } else { "good" },
                "The relay works".to_owned(),
                Some(progress(telemetry, parked.is_some())),
            ),
            Some(reason @ (NotReady::Starting | NotReady::StandingBy(_) | NotReady::Stopping)) => {
                // The newest error keeps a relay from its work at the start.
                let failure = telemetry
                    .failures
                    .newest()
                    .filter(|_| reason == NotReady::Starting);
                let note = failure.map(|failure| match failure.remedy {
                    Some(remedy) => format!("{}. Fix: {remedy}.", failure.what),
                    None => format!("{}.", failure.what),
                });
                (
                    if note.is_some() { "bad" } else { "wait" },
                    format!("Not at work: {reason}"),
                    note,
                )
            }
            Some(reason) => {
                let note = remedy(&reason, telemetry).map(|remedy| format!("Fix: {remedy}."));
                ("bad", format!("Not ready: {reason}"), note)
            }
        };
        Doing {
            tone,
            headline,
            notes: [note, parked].into_iter().flatten().collect(),
        }
    }
}

/// How far the relay has come, which is ready.
fn progress(telemetry: &Telemetry, has_parked: bool) -> String {
    let metrics = &telemetry.metrics;
    let bus = telemetry.bus.name;
    match metrics.lag_seconds(now_us()) {
        _ if metrics.reads_table.get() > 0 => {
            "It reads the table and publishes its rows.".to_owned()
        }
        lag if lag > 0.0 && metrics.in_flight_events.get() == 0 => format!(
            "Postgres has WAL that has not arrived for {}.",
            seconds(lag)
        ),
        0.0 if has_parked => format!("All received events are in {bus}, or parked."),
        0.0 => format!("All received events are in {bus}."),
        lag if metrics.write_back_due_events.get() > 0 => format!(
            "The oldest event that is not written back was committed {} ago.",
            seconds(lag)
        ),
        lag => format!(
            "The oldest event that is not in {bus} was committed {} ago.",
            seconds(lag)
        ),
    }
}

/// What to do about this reason.
pub(super) fn remedy(reason: &NotReady, telemetry: &Telemetry) -> Option<String> {
    let kind = match reason {
        NotReady::Disconnected(Side::Postgres, _) => Kind::PostgresUnreachable,
        NotReady::Disconnected(Side::Bus, _) => return Some(telemetry.bus.reach.to_owned()),
        NotReady::Stalled(_) => {
            let fix = stalled_fix(telemetry.bus, telemetry.metrics.in_flight_events.get());
            return Some(fix.to_string());
        }
        NotReady::TopicRefused(_) | NotReady::DeadLettersRefused(_) => Kind::TopicRefused,
        NotReady::Unwritable(error) => return error.what_to_do(),
        NotReady::SynchronousStandby(fix) => return Some(fix.clone()),
        NotReady::OverBudget(..) => return Some(HELD_BACK.to_owned()),
        NotReady::WalNotSent(_) => return Some(wal_not_sent_fix().to_string()),
        NotReady::Silent(_) => {
            return Some("see whether the process is stopped, or gets no CPU time".to_owned());
        }
        NotReady::Halted(_) => return telemetry.failures.newest()?.remedy,
        NotReady::Starting | NotReady::StandingBy(_) | NotReady::Stopping => return None,
    };
    kind.remedy().map(|remedy| remedy.to_string())
}

/// A whole number with its thousands apart.
pub(super) fn count(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut shown = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push('\u{202f}');
        }
        shown.push(digit);
    }
    shown
}

/// A duration for people: up to two hours in minutes, and longer ones in hours.
pub(crate) fn seconds(seconds: f64) -> String {
    match seconds {
        under if under == 0.0 || (10.0..120.0).contains(&under) => format!("{under:.0} s"),
        under if under < 0.1 => format!("{:.1} ms", under * 1_000.0),
        under if under < 10.0 => format!("{under:.1} s"),
        under if under < 7_200.0 => format!("{:.0} min", under / 60.0),
        hours => format!("{:.1} h", hours / 3_600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Duration;

    use crate::config::Bus;
    use walrelay_core::readiness::ToDo;

    #[test]
    fn the_sql_that_frees_commits_is_the_remedy_and_not_the_reason() {
        let telemetry = Telemetry::new(Bus::default(), Duration::from_secs(30));
        let reason = NotReady::SynchronousStandby("select 1".to_owned());
        assert_eq!(remedy(&reason, &telemetry).as_deref(), Some("select 1"));
        assert!(!reason.to_string().contains("select 1"));
    }

    #[test]
    fn parked_events_are_not_said_to_be_in_the_bus() {
        let telemetry = Telemetry::new(Bus::default(), Duration::from_secs(30));
        Side::ALL
            .into_iter()
            .for_each(|side| telemetry.connected(side, true));
        telemetry.health.report(ToDo::Nothing);
        let said = |parked| {
            telemetry.metrics.waiting_events.set(parked);
            Doing::of(&telemetry).notes.join(" ")
        };
        assert_eq!(said(0), "All received events are in Kafka.");
        let one = "All received events are in Kafka, or parked. 1 event is parked until it can be \
                   delivered.";
        assert_eq!(said(1), one);
        let four = "All received events are in Kafka, or parked. 4 events are parked until they \
                    can be delivered.";
        assert_eq!(said(4), four);
    }
}
