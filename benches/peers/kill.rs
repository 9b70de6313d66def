//! Killed with -9 in the middle of a drain and started again: what comes twice, and how long it
//! takes.

use std::time::{Duration, Instant};

use crate::Asked;
use crate::checked::Log;
use crate::contestant::{CONNECT, CONNECT_TUNED, Contestant, SERVER, SERVER_TUNED, WALRELAY};
use crate::drain::now_ms;
use crate::lab::{Lab, announce};
use crate::load::{self, PER_TRANSACTION, Shape, TEMPLATE};
use crate::results::Run;
use crate::support::wait::until;
use crate::table::number;

const ROWS: u64 = 300_000;
/// Killed when this many in a hundred are in the topic.
const KILLED_AT: u64 = 35;
const DEADLINE: Duration = Duration::from_secs(300);

pub(crate) fn run(asked: &Asked, found: &mut dyn FnMut(Run)) {
    let lab = Lab::start(false);
    load::schema(&lab.sql, "");
    load::template(&lab.sql);
    let rows = asked.rows(ROWS).min(ROWS);
    load::backlog(&lab.sql, 1..=rows, PER_TRANSACTION, Shape::default());
    let load = format!("{} rows", number(Some(rows as f64), 0));
    for round in 1..=asked.rounds {
        for contestant in Contestant::and_guest(asked.among(&[
            WALRELAY,
            CONNECT,
            CONNECT_TUNED,
            SERVER,
            SERVER_TUNED,
        ])) {
            announce(contestant, &load, round);
            found(killed(
                &lab,
                contestant,
                rows,
                Run::new(&load, contestant.name(), round),
            ));
        }
    }
}

fn killed(lab: &Lab, who: Contestant, rows: u64, run: Run) -> Run {
    let seat = lab.seat(Some(TEMPLATE));
    let log = Log::of(lab.brokers(), &seat.topics);
    let mut first = who.start(lab, &seat, "", &[]);
    let reached = until(DEADLINE, || {
        (log.count() >= rows * KILLED_AT / 100).then_some(())
    });
    first.process().kill_hard();
    drop(first);
    let run = run.with("at_kill", log.count() as f64);
    if reached.is_none() {
        return run.faulty("it did not come that far");
    }
    let again_at_ms = now_ms();
    let began = Instant::now();
    let mut second = who.start(lab, &seat, "", &[]);
    let mut seen = 0;
    let verdict = loop {
        // Those that come twice hide how many are still missing: only a look at all of them tells.
        let more = until(DEADLINE.saturating_sub(began.elapsed()), || {
            let count = log.count();
            (count >= rows && count > seen).then_some(count)
        });
        seen = more.unwrap_or(seen);
        let verdict = log.read(rows, |_| true);
        if verdict.lost == 0 || more.is_none() {
            break verdict;
        }
    };
    let said = second.process().log_tail(3);
    drop(second);
    lab.clear(&seat);
    let complete_ms = verdict.appended_at_ms.iter().copied().max().unwrap_or(0);
    let fault = verdict.fault(false);
    let run = run
        .with("duplicated", verdict.duplicated as f64)
        .with("out_of_order", verdict.out_of_order as f64)
        .with("caught_up_s", (complete_ms - again_at_ms) as f64 / 1_000.0);
    if fault.is_empty() {
        run
    } else {
        run.faulty(&format!("{fault}: {said}"))
    }
}
