//! What an event costs as things grow: slots side by side, aggregates, payloads.

use std::time::{Duration, Instant};

use crate::Asked;
use crate::checked::Log;
use crate::contestant::{Contestant, RECVLOGICAL, WALRELAY};
use crate::cpu::Watched;
use crate::drain::{Backlog, drained};
use crate::lab::{Lab, Seat, announce};
use crate::load::{self, PER_TRANSACTION, Shape, TEMPLATE};
use crate::results::Run;

const ROWS: u64 = 200_000;
const DEADLINE: Duration = Duration::from_secs(300);
const PER_TRANSACTIONS: [u64; 4] = [1, 10, 100, 1_000];
const AGGREGATES: [u64; 5] = [10, 100, 1_000, 10_000, 100_000];
/// Bytes of filling beside some 190 of the rest.
const FILLINGS: [u64; 6] = [1, 800, 10_000, 100_000, 400_000, 1_000_000];
/// Bytes of payload in all, where there are so many in a row that fewer rows do.
const BYTES: u64 = 200_000_000;
/// Partitions of the outbox, and so the greatest number of slots.
const PARTS: usize = 4;

pub(crate) fn run(asked: &Asked, found: &mut dyn FnMut(Run)) {
    for aggregates in AGGREGATES {
        let shape = Shape {
            aggregates,
            ..Shape::default()
        };
        at(
            asked,
            &format!("{aggregates} aggregates"),
            ROWS,
            PER_TRANSACTION,
            shape,
            found,
        );
    }
    for filling in FILLINGS {
        let rows =
            (BYTES / (filling + 190)).min(ROWS) / PER_TRANSACTION.min(20) * PER_TRANSACTION.min(20);
        let per_transaction = if filling > 10_000 {
            10
        } else {
            PER_TRANSACTION
        };
        let shape = Shape {
            filling,
            ..Shape::default()
        };
        at(
            asked,
            &format!("{} bytes", filling + 190),
            rows,
            per_transaction,
            shape,
            found,
        );
    }
    slots(asked, found);
}

/// What a transaction costs beside its rows.
pub(crate) fn transactions(asked: &Asked, found: &mut dyn FnMut(Run)) {
    for rows in PER_TRANSACTIONS {
        let load = format!("{rows} rows a transaction");
        at(asked, &load, ROWS, rows, Shape::default(), found);
    }
}

fn at(
    asked: &Asked,
    load: &str,
    rows: u64,
    per_transaction: u64,
    shape: Shape,
    found: &mut dyn FnMut(Run),
) {
    let lab = Lab::start(false);
    load::schema(&lab.sql, "");
    load::template(&lab.sql);
    let end = load::backlog(&lab.sql, 1..=rows, per_transaction, shape);
    let backlog = Backlog { rows, end };
    for round in 1..=asked.rounds {
        for contestant in asked.among(&[RECVLOGICAL, WALRELAY]) {
            announce(contestant, load, round);
            let run = Run::new(load, contestant.name(), round);
            found(drained(
                &lab,
                contestant,
                &backlog,
                (Some(TEMPLATE), "", &[]),
                run,
            ));
        }
    }
}

/// A partitioned outbox, its partitions dealt out to 1, 2 and 4 slots with a relay each.
fn slots(asked: &Asked, found: &mut dyn FnMut(Run)) {
    if asked.among(&[WALRELAY]).is_empty() {
        return;
    }
    let lab = Lab::start(false);
    lab.sql.run(&format!(
        "create table outbox ({}) partition by hash (aggregateid)",
        load::UNKEYED_COLUMNS
    ));
    for part in 0..PARTS {
        lab.sql.run(&format!(
            "create table outbox_{part} partition of outbox for values with (modulus {PARTS}, \
             remainder {part})"
        ));
    }
    load::procedure(&lab.sql);
    for slots in [1, 2, PARTS] {
        for slot in 0..slots {
            lab.sql.run(&format!(
                "create publication parts_{slots}_{slot} for table {} with (publish = 'insert')",
                parts_of(slot, slots).join(", ")
            ));
        }
    }
    load::template(&lab.sql);
    load::backlog(&lab.sql, 1..=ROWS, PER_TRANSACTION, Shape::default());
    for round in 1..=asked.rounds {
        for count in [1, 2, PARTS] {
            let load = format!("{count} slots");
            announce(WALRELAY, &load, round);
            found(side_by_side(
                &lab,
                count,
                Run::new(&load, WALRELAY.name(), round),
            ));
        }
    }
}

/// The partitions that one of so many slots has.
fn parts_of(slot: usize, slots: usize) -> Vec<String> {
    (slot..PARTS)
        .step_by(slots)
        .map(|part| format!("public.outbox_{part}"))
        .collect()
}

/// One relay for each of `count` slots, all into one topic.
fn side_by_side(lab: &Lab, count: usize, run: Run) -> Run {
    let seats: Vec<Seat> = (0..count).map(|_| lab.seat(Some(TEMPLATE))).collect();
    let first = seats.first().expect("a seat").clone();
    let log = Log::of(lab.brokers(), &first.topics);
    let began = Instant::now();
    let start = |(number, seat): (usize, &Seat)| {
        let publication = format!("parts_{count}_{number}");
        let tables = parts_of(number, count);
        let seat = Seat {
            prefix: first.prefix.clone(),
            publication,
            tables,
            ..seat.clone()
        };
        Contestant::start(WALRELAY, lab, &seat, "", &[])
    };
    let mut relays: Vec<_> = seats.iter().enumerate().map(start).collect();
    let mut walsenders = vec![Watched::default(); count];
    while log.count() < ROWS {
        for (walsender, seat) in walsenders.iter_mut().zip(&seats) {
            walsender.look(walsender.pid.or_else(|| lab.walsender(seat)));
        }
        if began.elapsed() > DEADLINE {
            let said = relays
                .first_mut()
                .map(|relay| relay.process().log_tail(3))
                .unwrap_or_default();
            return run.faulty(&format!(
                "{} of {ROWS} records within {DEADLINE:?}: {said}",
                log.count()
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let relay_ms: u64 = relays
        .iter_mut()
        .filter_map(|relay| relay.process().cpu_ms())
        .sum();
    let peak: u64 = relays
        .iter_mut()
        .filter_map(|relay| relay.process().resident_peak_bytes())
        .max()
        .unwrap_or(0);
    drop(relays);
    let verdict = log.read(ROWS, |_| true);
    seats.iter().for_each(|seat| lab.clear(seat));
    let fault = verdict.fault(true);
    if !fault.is_empty() {
        return run.faulty(&fault);
    }
    let times = verdict.sorted_ms();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    let walsenders_ms: u64 = walsenders.iter().map(|walsender| walsender.used_ms()).sum();
    run.with(
        "events_per_s",
        ROWS as f64 * 0.8 / ((at(90) - at(10)).max(1) as f64 / 1_000.0),
    )
    .with(
        "relay_us_per_event",
        relay_ms as f64 * 1_000.0 / ROWS as f64,
    )
    .with(
        "walsender_us_per_event",
        walsenders_ms as f64 * 1_000.0 / ROWS as f64,
    )
    .with("peak_mib", peak as f64 / f64::from(1 << 20))
}
