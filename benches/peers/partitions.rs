//! The same load over more and more partitions: a backlog after a start and another one in the same
//! relay, what they cost, and a kill in the middle of a third.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Asked;
use crate::checked::Log;
use crate::contestant::{CONNECT_TUNED, Contestant, Running, WALRELAY};
use crate::cpu;
use crate::drain::now_ms;
use crate::lab::{Lab, Layout, Seat, announce};
use crate::load::{self, PER_TRANSACTION, Shape};
use crate::results::Run;
use crate::support::guardian::run_directory;
use crate::support::wait::until;
use crate::table::number;

/// Of the first backlog and the last.
const ROWS: u64 = 60_000;
/// How much longer the second backlog is: a broker's compilers settle within the first seconds.
const STEADY_TIMES: u64 = 8;
pub(crate) const KEYS: u64 = 5_000;
pub(crate) const EIGHT_HUNDRED: Layout = Layout {
    topics: 100,
    partitions: 8,
};
const LAYOUTS: [Layout; 4] = [
    Layout {
        topics: 1,
        partitions: 8,
    },
    Layout {
        topics: 10,
        partitions: 8,
    },
    EIGHT_HUNDRED,
    Layout {
        topics: 1_000,
        partitions: 3,
    },
];
/// With more partitions than these, only walrelay has a turn.
const PEERS_AT_MOST: u64 = 800;
/// Killed when this many in a hundred of the third backlog are there.
const KILLED_AT: u64 = 35;
const DEADLINE: Duration = Duration::from_secs(600);
/// A look asks the broker for the ends of all partitions, and is not to cost it much.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) fn run(asked: &Asked, found: &mut dyn FnMut(Run)) {
    let rows = asked.rows(ROWS);
    for layout in LAYOUTS {
        let partitions = layout.all_partitions();
        if !asked.partitions.is_empty() && !asked.partitions.contains(&partitions) {
            continue;
        }
        let topics = number(Some(layout.topics as f64), 0);
        let several = if layout.topics == 1 { "" } else { "s" };
        let load = format!(
            "{} in {topics} topic{several}",
            number(Some(partitions as f64), 0)
        );
        let mut contestants = Contestant::and_guest(asked.among(&[WALRELAY, CONNECT_TUNED]));
        contestants.retain(|who| *who == WALRELAY || partitions <= PEERS_AT_MOST);
        let lab = Lab::start(false);
        load::schema(&lab.sql, "");
        // A new broker is slow at first, so the turn of round 0 does not count.
        for round in 0..=asked.rounds {
            let turns = if round == 0 { 1 } else { contestants.len() };
            for who in contestants.iter().take(turns) {
                announce(*who, &load, round);
                lab.sql.run("truncate outbox");
                let seat = lab.seat_at(None, layout);
                let turn = Turn {
                    log: Log::of(lab.brokers(), &seat.topics),
                    lab: &lab,
                    seat: &seat,
                    rows,
                    topics: layout.topics,
                };
                let run = turn.backlogs(*who, Run::new(&load, who.name(), round));
                lab.clear(&seat);
                if round > 0 {
                    found(run);
                }
            }
        }
    }
}

/// A contestant's turn, on topics of its own.
struct Turn<'a> {
    lab: &'a Lab,
    seat: &'a Seat,
    log: Log,
    /// Of the first backlog and the last.
    rows: u64,
    topics: u64,
}

/// What was used so far.
#[derive(Debug, Clone, Copy)]
struct Used {
    relay_ms: u64,
    brokers_ms: u64,
    batches: u64,
}

impl Turn<'_> {
    fn backlogs(&self, who: Contestant, run: Run) -> Run {
        self.write(0);
        let before = self.used(None);
        let started_at_ms = now_ms();
        let mut running = who.start(self.lab, self.seat, "", &[]);
        if let Err(fault) = self.reach(&mut running, self.end(0)) {
            return run.faulty(&fault);
        }
        let started = self.used(Some(&mut running));
        running.process().signal("STOP");
        self.write(1);
        let stopped = self.used(Some(&mut running));
        let thawed_at_ms = now_ms();
        running.process().signal("CONT");
        if let Err(fault) = self.reach(&mut running, self.end(1)) {
            return run.faulty(&fault);
        }
        let ended = self.used(Some(&mut running));
        let peak = running.process().resident_peak_bytes().unwrap_or(0);
        let verdict = self.log.read(self.end(1), |_| true);
        let fault = verdict.fault(true);
        if !fault.is_empty() {
            return run.faulty(&fault);
        }
        let appended = |backlog: u64| {
            let numbers = self.numbers(backlog);
            let from = usize::try_from(*numbers.start()).expect("a number");
            let to = usize::try_from(*numbers.end()).expect("a number");
            let times = &verdict.appended_at_ms[from..=to];
            let first = times.iter().copied().min().unwrap_or(0);
            first..times.iter().copied().max().unwrap_or(0)
        };
        let first = appended(0);
        let second = appended(1);
        let steady = self.end(1) - self.end(0);
        let per_s = |rows: u64, ms: i64| rows as f64 * 1_000.0 / ms.max(1) as f64;
        let per_event = |rows: u64, ms: u64| ms as f64 * 1_000.0 / rows as f64;
        let run = run
            .with("start_per_s", per_s(self.rows, first.end - first.start))
            .with("start_s", (first.end - started_at_ms) as f64 / 1_000.0)
            .with(
                "start_relay_us_per_event",
                per_event(self.rows, started.relay_ms),
            )
            .with(
                "start_broker_us_per_event",
                per_event(self.rows, started.brokers_ms - before.brokers_ms),
            )
            .with(
                "start_events_per_batch",
                self.rows as f64 / started.batches.max(1) as f64,
            )
            .with("steady_per_s", per_s(steady, second.end - thawed_at_ms))
            .with(
                "relay_us_per_event",
                per_event(steady, ended.relay_ms - stopped.relay_ms),
            )
            .with(
                "broker_us_per_event",
                per_event(steady, ended.brokers_ms - stopped.brokers_ms),
            )
            .with(
                "events_per_batch",
                steady as f64 / (ended.batches - stopped.batches).max(1) as f64,
            )
            .with("peak_mib", peak as f64 / f64::from(1 << 20));
        match who {
            Contestant::Walrelay(_) => self.killed(who, running, run),
            Contestant::Peer(_) | Contestant::Recvlogical(_) => run,
        }
    }

    /// Killed with -9 in the third backlog, and started again.
    fn killed(&self, who: Contestant, mut running: Running, run: Run) -> Run {
        running.process().signal("STOP");
        let end = self.write(2);
        running.process().signal("CONT");
        let at = self.end(1) + self.rows * KILLED_AT / 100;
        let reached = until(DEADLINE, || (self.log.count() >= at).then_some(()));
        running.process().kill_hard();
        drop(running);
        if reached.is_none() {
            return run.faulty("it did not come to the place of the kill");
        }
        let left = self.end(2).saturating_sub(self.log.count());
        let confirmed = format!(
            "select confirmed_flush_lsn >= '{end}' from pg_replication_slots where slot_name = \
             '{}'",
            self.seat.slot
        );
        let began = Instant::now();
        let mut again = who.start(self.lab, self.seat, "", &[]);
        let caught_up = until(DEADLINE, || {
            (self.lab.sql.text(&confirmed) == "true").then_some(())
        });
        let seconds = began.elapsed().as_secs_f64();
        let said = again.process().log_tail(3);
        drop(again);
        if caught_up.is_none() {
            return run.faulty(&format!("it did not catch up: {said}"));
        }
        let verdict = self.log.read(self.end(2), |_| true);
        run.with("left_at_kill", left as f64)
            .with("caught_up_s", seconds)
            .with("duplicated", verdict.duplicated as f64)
            .faulty(&verdict.fault(false))
    }

    /// The numbers of a backlog's rows.
    fn numbers(&self, backlog: u64) -> RangeInclusive<u64> {
        let begin = backlog.checked_sub(1).map_or(0, |before| self.end(before));
        begin + 1..=self.end(backlog)
    }

    /// The number of a backlog's last row.
    fn end(&self, backlog: u64) -> u64 {
        let times = match backlog {
            0 => 1,
            1 => 1 + STEADY_TIMES,
            _ => 2 + STEADY_TIMES,
        };
        times * self.rows
    }

    /// Writes a backlog, and gives the LSN behind it.
    fn write(&self, backlog: u64) -> String {
        let shape = Shape {
            aggregates: KEYS,
            topics: self.topics,
            ..Shape::default()
        };
        load::backlog(&self.lab.sql, self.numbers(backlog), PER_TRANSACTION, shape)
    }

    /// Waits until so many records are there.
    fn reach(&self, running: &mut Running, count: u64) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let here = self.log.count();
            if here >= count {
                return Ok(());
            }
            let process = running.process();
            let ended = process.exited();
            if ended.is_some() || began.elapsed() > DEADLINE {
                return Err(format!(
                    "{here} of {count} records after {:?}, ended: {ended:?}: {}",
                    began.elapsed(),
                    process.log_tail(3)
                ));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn used(&self, running: Option<&mut Running>) -> Used {
        Used {
            relay_ms: running
                .and_then(|running| running.process().cpu_ms())
                .unwrap_or(0),
            brokers_ms: cpu::brokers_ms(),
            batches: batches(&self.seat.prefix),
        }
    }
}

/// Batches of records that brokers have in the topics with this prefix, as their files show them.
/// librdkafka sends each in a request of its own.
fn batches(prefix: &str) -> u64 {
    let entries = |directory: &Path| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let begins = |path: &Path, with: &str| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(with))
    };
    entries(run_directory())
        .iter()
        .filter(|path| begins(path, "kafka-"))
        .flat_map(|kafka| entries(&kafka.join("log")))
        .filter(|path| begins(path, prefix))
        .flat_map(|partition| entries(&partition))
        .filter(|path| path.extension().is_some_and(|is| is == "log"))
        .map(|segment| batches_of(&std::fs::read(segment).unwrap_or_default()))
        .sum()
}

/// Batches of a segment: each begins with an offset of eight bytes, and a length of four that does
/// not count these twelve.
fn batches_of(mut segment: &[u8]) -> u64 {
    let mut batches = 0;
    while let Some(length) = segment.get(8..12).and_then(|bytes| bytes.try_into().ok()) {
        let length = u32::from_be_bytes(length) as usize;
        let Some(rest) = segment.get(12 + length..).filter(|_| length > 0) else {
            break;
        };
        segment = rest;
        batches += 1;
    }
    batches
}
