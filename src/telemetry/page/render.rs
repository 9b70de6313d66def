//! The page as HTML. `maud` escapes each text, whatever it holds.

use std::fmt::Write as _;

use maud::{Markup, html};
use strum::VariantArray as _;

use super::snapshot::{DRAWN, LAG_BYTES, LAG_SECONDS, RETAINED, SAMPLE_SECONDS, Snapshot};
use crate::telemetry::doing::{count, seconds};
use crate::telemetry::{BUS_BLOCKED, connection_sample, intake_sample};
use walrelay_core::config::unit::human_bytes;
use walrelay_core::error::NextCommand;
use walrelay_core::publisher::IntakeClosed;
use walrelay_core::readiness::Side;

const WAL: &str = "walrelay_received_bytes_total";
const ASSEMBLED: &str = "walrelay_assembled_events_total";
const ACKED: &str = "walrelay_acked_events_total";
const PARKED: &str = "walrelay_waiting_events";
const OLDEST: &str = "walrelay_oldest_transaction_seconds";
const SAFE_WAL: &str = "walrelay_slot_safe_wal_bytes";
const ROUND_TRIP: &str = "walrelay_broker_round_trip_seconds";

/// Samples of the smallest picture, which is stretched to its place.
const WIDTH_MIN: usize = 15;

type Shown = fn(f64) -> String;

/// The parts that change, each with an id.
pub(super) fn sections(now: &Snapshot) -> Markup {
    let about = |label| now.figures.info("walrelay_relay_info", label);
    let doing = &now.doing;
    html! {
        header #about {
            h1 { "walrelay" @if let Some(slot) = about("slot") { " · " (slot) } }
            @for label in ["database", "publication", "mode", "guarantee"] {
                @if let Some(value) = about(label) { span .soft { (label) " " (value) } }
            }
            @if let Some(version) = now.figures.info("walrelay_build_info", "version") {
                span .soft { "version " (version) }
            }
            span .soft { (time(now.at)) " UTC" }
        }
        section #state .(doing.tone) role="status" {
            h2 { (doing.headline) }
            @for note in &doing.notes { p { (note) } }
        }
        section #way { (way(now)) }
        section #hour {
            @let drawn = ["Lag in bytes", "Lag in seconds", "WAL retained for the slot"];
            @for (place, what) in drawn.into_iter().enumerate() {
                div .card { (picture(now, place, what)) }
            }
        }
        section #rates .card { h2 { "Rates" } (rates(now)) }
        section #undelivered .card { h2 { "Not delivered" } (undelivered(now)) }
        section #errors .card { h2 { "Last errors" } (errors(now)) }
        p #relays .soft {
            @if !now.stand_by_pids.is_empty() { (stand_bys(&now.stand_by_pids)) " " }
            code { (of_relay(now, "status")) } " lists the relays of this slot, with those that \
                                                stand by."
        }
    }
}

fn stand_bys(pids: &[i32]) -> String {
    let are = pids.len();
    let pids = pids
        .iter()
        .map(i32::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    format!(
        "{are} {}: backend pid {pids}.",
        if are == 1 {
            "relay stands by"
        } else {
            "relays stand by"
        }
    )
}

/// From the slot through the relay into the bus. What only some relays measure is left out where it
/// is unknown.
fn way(now: &Snapshot) -> Markup {
    let closed = IntakeClosed::VARIANTS
        .iter()
        .find(|why| now.figures.get(&intake_sample(**why)) == Some(1.0));
    html! {
        div .card {
            h2 { "Postgres slot" }
            dl {
                (connection(now, Side::Postgres))
                (list(now, &[("Behind", LAG_BYTES, bytes), ("WAL retained", RETAINED, bytes)]))
                (list(now, &[("WAL until it is lost", SAFE_WAL, bytes)]))
                (list(now, &[("Oldest transaction", OLDEST, seconds)]))
            }
        }
        div .arrow { (rate(now, ASSEMBLED, per_second)) " events/s" }
        div .card {
            h2 { "In flight" }
            dl {
                dt { "Intake" }
                dd { @if closed.is_some() { b .wait { "closed" } } @else { b .good { "open" } } }
                (list(now, &[("Events", "walrelay_in_flight_events", count)]))
                (list(now, &[("Memory", "walrelay_in_flight_bytes", bytes)]))
                (list(now, &[("To be written back", "walrelay_write_back_due_events", count)]))
                (list(now, &[("Age of the oldest", LAG_SECONDS, seconds)]))
            }
            @if let Some(why) = closed { p .soft { "Closed: " (why.words()) } }
        }
        div .arrow { (rate(now, ACKED, per_second)) " acks/s" }
        div .card {
            h2 { (now.bus) }
            dl {
                (connection(now, Side::Bus))
                (list(now, &[("Acked events", ACKED, count), ("Round trip", ROUND_TRIP, seconds)]))
                (list(now, &[("Retries", "walrelay_retries_total{side=\"bus\"}", count)]))
            }
        }
    }
}

fn list(now: &Snapshot, terms: &[(&str, &str, Shown)]) -> Markup {
    let shown =
        |sample| now.figures.get(sample).is_some() || ![SAFE_WAL, ROUND_TRIP].contains(&sample);
    html! {
        @for (term, sample, form) in terms.iter().filter(|of| shown(of.1)) {
            dt { (term) } dd { (figure(now, sample, *form)) }
        }
    }
}

fn connection(now: &Snapshot, side: Side) -> Markup {
    let sample = connection_sample(side);
    let is_up = now.figures.get(&sample) == Some(1.0);
    let is_blocked = side == Side::Bus && now.figures.get(BUS_BLOCKED) == Some(1.0);
    let (tone, words): (_, Shown) = match (is_up, is_blocked) {
        (true, false) => ("good", |_| "up".to_owned()),
        (true, true) => ("wait", |_| "up, and asks to wait".to_owned()),
        (false, _) => ("bad", |_| "down".to_owned()),
    };
    html! { dt { "Connection" } dd { b .(tone) { (figure(now, &sample, words)) } } }
}

/// A figure of `/metrics`, with its name and its exact value for whoever asks.
fn figure(now: &Snapshot, sample: &str, shown: Shown) -> Markup {
    html! {
        @match now.figures.get(sample) {
            Some(value) => data value=(value) title=(sample) { (shown(value)) },
            None => span .soft title=(sample) { "not known" },
        }
    }
}

fn rate(now: &Snapshot, sample: &str, shown: Shown) -> Markup {
    let rate = now.rate(sample).map_or_else(|| "–".to_owned(), shown);
    html! { span title={ "rate of " (sample) } { (rate) } }
}

/// A drawn figure over the last hour, newest at the right. Time in which the relay was not ready is
/// shaded.
fn picture(now: &Snapshot, place: usize, what: &str) -> Markup {
    let sample = DRAWN.get(place).copied().unwrap_or_default();
    let shown: Shown = if sample == LAG_SECONDS {
        seconds
    } else {
        bytes
    };
    let values = now
        .hour
        .iter()
        .map(|of| of.highest.get(place).copied().flatten());
    let highest = values
        .clone()
        .flatten()
        .chain(now.figures.get(sample))
        .reduce(f64::max);
    let highest_shown = highest.map_or_else(|| "–".to_owned(), shown);
    let scale = 100.0 / highest.filter(|highest| *highest > 0.0).unwrap_or(1.0);
    let width = now.hour.len().max(WIDTH_MIN);
    let mut bars = String::new();
    let mut out = String::new();
    for (at, (of, value)) in (width - now.hour.len()..).zip(now.hour.iter().zip(values)) {
        // Writing to a string does not fail.
        value.and_then(|value| write!(bars, "M{at} 101v-{:.1}h1V101", value * scale + 1.0).ok());
        of.is_out.then(|| write!(out, "M{at} 0v101h1V0").ok());
    }
    html! {
        h2 { (what) }
        p {
            span .now { (figure(now, sample, shown)) } " "
            span .soft { "highest " (highest_shown) }
        }
        svg viewBox={ "0 0 " (width) " 101" } preserveAspectRatio="none" role="img"
            aria-label={ (what) " over time: highest " (highest_shown) } {
            path .out d=(out) {}
            path .bars d=(bars) {}
        }
        p .ends .soft { span { (width as u64 * SAMPLE_SECONDS / 60) " min ago" } span { "now" } }
    }
}

fn rates(now: &Snapshot) -> Markup {
    let totals: [(&str, &str, Shown, Shown); 3] = [
        ("WAL received", WAL, bytes, bytes),
        ("Events received", ASSEMBLED, per_second, count),
        ("Events acked", ACKED, per_second, count),
    ];
    html! {
        table {
            tr { th {} th .number { "per second" } th .number { "since the start" } }
            @for (what, sample, by_second, shown) in totals {
                tr {
                    td { (what) }
                    td .number { (rate(now, sample, by_second)) }
                    td .number { (figure(now, sample, shown)) }
                }
            }
            @let outboxes = now.figures.by_label("walrelay_outbox_events_total", "outbox");
            @for (outbox, sample) in outboxes {
                tr {
                    td { "Outbox " (outbox) }
                    td .number { (rate(now, sample, per_second)) }
                    td .number { (figure(now, sample, count)) }
                }
            }
            @for flow in &now.flows {
                tr { td { (flow) } td .number { (rate(now, flow, per_second)) } td {} }
            }
        }
    }
}

/// Events that the bus does not have, and the commands that show them.
fn undelivered(now: &Snapshot) -> Markup {
    let rows = [
        ("Parked now", PARKED, Some("parked list")),
        (
            "Parked, and delivered since",
            "walrelay_unparked_events_total",
            None,
        ),
        ("Dead letters", "walrelay_dead_lettered_events_total", None),
        (
            "Skipped: the log names each",
            "walrelay_skipped_events_total",
            None,
        ),
    ];
    let counted = [
        ("Unpublished rows", "walrelay_unpublished_rows"),
        ("Failed rows", "walrelay_failed_rows"),
    ];
    html! {
        table .rows {
            @for (what, sample, command) in rows {
                tr {
                    td { (what) } td .number { (figure(now, sample, count)) }
                    td { @if let Some(command) = command { code { (of_relay(now, command)) } } }
                }
            }
            @for (what, metric) in counted {
                @for (outbox, sample) in now.figures.by_label(metric, "outbox") {
                    tr {
                        td { (what) " of " (outbox) }
                        td .number { (figure(now, sample, count)) }
                        td {}
                    }
                }
            }
        }
    }
}

fn of_relay(now: &Snapshot, name: &'static str) -> NextCommand {
    let slot = now.figures.info("walrelay_relay_info", "slot");
    slot.into_iter()
        .fold(NextCommand::new(name), |command, slot| {
            command.option("slot", slot)
        })
}

fn errors(now: &Snapshot) -> Markup {
    html! {
        @if now.failures.is_empty() { p .soft { "None since the start." } }
        ol {
            @for failure in &now.failures {
                li {
                    p .soft {
                        (time(failure.at)) " UTC"
                        @if failure.times > 1 { ", " (failure.times) " times" }
                    }
                    p { (failure.what) }
                    @if let Some(remedy) = &failure.remedy { p { b { "Fix: " } (remedy) } }
                }
            }
        }
    }
}

fn bytes(bytes: f64) -> String {
    human_bytes(bytes as u64)
}

fn per_second(rate: f64) -> String {
    if rate > 0.0 && rate < 10.0 {
        format!("{rate:.1}")
    } else {
        count(rate)
    }
}

fn time(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}
