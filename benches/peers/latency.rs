//! From the commit to the broker's log, and to the slot's confirmed position, at rates an outbox
//! has.

use std::io::Read;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Asked;
use crate::checked::{self, Log};
use crate::contestant::{
    CONNECT, CONNECT_LATENCY, Contestant, RECVLOGICAL, SERVER_LATENCY, WALRELAY, WALRELAY_SOCKET,
    Way, recvlogical,
};
use crate::cpu::Watched;
use crate::lab::{DATABASE, Lab, Layout, ONE_TOPIC, Seat, announce};
use crate::load::{self, Shape, Steady};
use crate::partitions;
use crate::results::{Run, percentile};
use crate::support::guardian;
use crate::support::process::cpu_ms_of;
use crate::support::sql::Sql;
use crate::support::wait::until;

const RATES: [u64; 3] = [500, 2_000, 10_000];
/// What is not measured: a JVM compiles, connections are made.
const WARM_UP_S: u64 = 15;
const SECONDS: u64 = 20;
/// How long what was committed last may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(60);

/// What is measured side by side.
struct Trial<'a> {
    replicated: bool,
    layout: Layout,
    aggregates: u64,
    rates: &'a [u64],
    contestants: &'a [Contestant],
}

pub(crate) fn single(asked: &Asked, found: &mut dyn FnMut(Run)) {
    let trial = Trial {
        replicated: false,
        layout: ONE_TOPIC,
        aggregates: Shape::default().aggregates,
        rates: &RATES,
        contestants: &[
            RECVLOGICAL,
            WALRELAY,
            WALRELAY_SOCKET,
            CONNECT_LATENCY,
            SERVER_LATENCY,
            CONNECT,
        ],
    };
    trial.run(asked, found);
}

/// Three brokers, every record on all of them before it is acked.
pub(crate) fn replicated(asked: &Asked, found: &mut dyn FnMut(Run)) {
    let trial = Trial {
        replicated: true,
        layout: ONE_TOPIC,
        aggregates: Shape::default().aggregates,
        rates: &RATES,
        contestants: &[WALRELAY, CONNECT_LATENCY, SERVER_LATENCY, CONNECT],
    };
    trial.run(asked, found);
}

/// Many partitions.
pub(crate) fn spread(asked: &Asked, found: &mut dyn FnMut(Run)) {
    let trial = Trial {
        replicated: false,
        layout: partitions::EIGHT_HUNDRED,
        aggregates: partitions::KEYS,
        rates: &RATES[..2],
        contestants: &[WALRELAY, CONNECT_LATENCY],
    };
    trial.run(asked, found);
}

impl Trial<'_> {
    fn run(&self, asked: &Asked, found: &mut dyn FnMut(Run)) {
        let lab = Lab::start(self.replicated);
        let shape = Shape {
            aggregates: self.aggregates,
            topics: self.layout.topics,
            ..Shape::default()
        };
        load::steady_schema(&lab.sql, "", shape);
        for round in 1..=asked.rounds {
            for rate in self.rates {
                let load = format!("{rate}/s");
                for contestant in Contestant::and_guest(asked.among(self.contestants)) {
                    announce(contestant, &load, round);
                    lab.sql.run("truncate outbox; alter sequence seq restart");
                    let seat = lab.seat_at(None, self.layout);
                    let run = Run::new(&load, contestant.name(), round);
                    let seconds = asked.seconds.unwrap_or(SECONDS);
                    found(measured(&lab, &seat, contestant, *rate, seconds, run));
                    lab.clear(&seat);
                }
            }
        }
    }
}

/// A turn at one rate, on an empty outbox.
fn measured(lab: &Lab, seat: &Seat, who: Contestant, rate: u64, seconds: u64, run: Run) -> Run {
    match who {
        Contestant::Recvlogical(way) => to_a_pipe(lab, seat, way, rate, seconds, run),
        Contestant::Walrelay(_) | Contestant::Peer(_) => {
            to_kafka(lab, seat, who, rate, seconds, run)
        }
    }
}

/// When each row was committed, in ms since the Unix epoch with the fraction the server keeps; by
/// number, at index 0 nobody.
fn committed_ms(sql: &Sql) -> Vec<f64> {
    let rows = sql.rows(
        "select (payload->>'seq')::bigint, (extract(epoch from pg_xact_commit_timestamp(xmin)) * \
         1000)::float8 from outbox",
        &[],
    );
    let last = rows
        .iter()
        .map(|row| row.get::<_, i64>(0))
        .max()
        .unwrap_or(0);
    let mut times = vec![f64::NAN; usize::try_from(last).expect("a number") + 1];
    for row in rows {
        times[usize::try_from(row.get::<_, i64>(0)).expect("a number")] = row.get(1);
    }
    times
}

fn to_kafka(lab: &Lab, seat: &Seat, who: Contestant, rate: u64, seconds: u64, run: Run) -> Run {
    let mut running = who.start(lab, seat, "", &[]);
    // It reads the slot before anything is measured.
    if until(ARRIVAL, || lab.walsender(seat)).is_none() {
        return run.faulty(&format!("it never came: {}", running.process().log_tail(3)));
    }
    let load = Steady::begin(lab, rate, WARM_UP_S + seconds);
    std::thread::sleep(Duration::from_secs(WARM_UP_S));
    let mut walsender = Watched::default();
    walsender.look(lab.walsender(seat));
    let began_at_ms = crate::drain::now_ms() as f64;
    let began = Instant::now();
    let relay_before = running.process().cpu_ms().unwrap_or(0);
    let walsender_before = walsender.used_ms();
    // Whoever confirms late is waited for, which is no part of the time that CPU is a share of.
    let (confirmed, elapsed_ms, relay_ms) = std::thread::scope(|scope| {
        let during = Duration::from_secs(seconds).saturating_sub(Duration::from_secs(1));
        let url = lab.postgres.url(DATABASE);
        let slot = &seat.slot;
        let confirmed = scope.spawn(move || confirmations(&url, slot, during));
        load.wait();
        let elapsed_ms = began.elapsed().as_secs_f64() * 1_000.0;
        walsender.look(walsender.pid);
        let relay_ms = running
            .process()
            .cpu_ms()
            .unwrap_or(0)
            .saturating_sub(relay_before) as f64;
        (
            confirmed.join().expect("the watcher of the slot"),
            elapsed_ms,
            relay_ms,
        )
    });
    let committed = committed_ms(&lab.sql);
    let rows = committed.len() as u64 - 1;
    let log = Log::of(lab.brokers(), &seat.topics);
    let all_here = until(ARRIVAL, || (log.count() >= rows).then_some(()));
    let peak = running.process().resident_peak_bytes().unwrap_or(0);
    drop(running);
    let verdict = log.read(rows, |number| !committed[number].is_nan());
    let fault = verdict.fault(true);
    if all_here.is_none() || !fault.is_empty() {
        return run.faulty(&format!("not everything once and in order: {fault}"));
    }
    // The broker's clock ticks in whole milliseconds, and half of one is lost on average.
    let arrived = verdict.appended_at_ms.iter().map(|ms| *ms as f64 + 0.5);
    let run = with_percentiles(
        run,
        &committed,
        arrived.collect(),
        (began_at_ms, elapsed_ms / 1_000.0),
    );
    let mut confirmed = confirmed;
    confirmed.sort_by(f64::total_cmp);
    run.with("confirmed_p50_ms", percentile(&confirmed, 0.5))
        .with("confirmed_p99_ms", percentile(&confirmed, 0.99))
        .with("relay_percent", relay_ms * 100.0 / elapsed_ms)
        .with(
            "walsender_percent",
            (walsender.used_ms() - walsender_before) as f64 * 100.0 / elapsed_ms,
        )
        .with("peak_mib", peak as f64 / f64::from(1 << 20))
}

/// Of what was committed from `since_ms` on.
fn with_percentiles(
    run: Run,
    committed: &[f64],
    arrived: Vec<f64>,
    (since_ms, seconds): (f64, f64),
) -> Run {
    let pairs = committed
        .iter()
        .zip(arrived)
        .skip(1)
        .filter(|(committed, _)| **committed >= since_ms);
    let mut latencies: Vec<f64> = pairs
        .map(|(committed, arrived)| (arrived - committed).max(0.0))
        .collect();
    latencies.sort_by(f64::total_cmp);
    [
        ("p50_ms", 0.5),
        ("p95_ms", 0.95),
        ("p99_ms", 0.99),
        ("p999_ms", 0.999),
        ("max_ms", 1.0),
    ]
    .into_iter()
    .fold(run, |run, (name, share)| {
        run.with(name, percentile(&latencies, share))
    })
    .with("achieved_per_s", latencies.len() as f64 / seconds)
}

/// Commits a row now and then and watches the slot until it is confirmed: from commit to confirmed,
/// in milliseconds.
fn confirmations(url: &str, slot: &str, during: Duration) -> Vec<f64> {
    let sql = Sql::connect(url);
    let ends = Instant::now() + during;
    let mut found = Vec::new();
    let confirmed = format!(
        "select confirmed_flush_lsn - $1::text::pg_lsn >= 0 from pg_replication_slots where \
         slot_name = '{slot}'"
    );
    while Instant::now() < ends {
        sql.run("select emit(99, 1)");
        let at = Instant::now();
        let lsn = sql.text("select pg_current_wal_flush_lsn()");
        while Instant::now() < ends + ARRIVAL && !sql.rows(&confirmed, &[&lsn])[0].get::<_, bool>(0)
        {
            std::thread::sleep(
                (at.elapsed() / 10).clamp(Duration::from_micros(500), Duration::from_millis(100)),
            );
        }
        found.push(at.elapsed().as_secs_f64() * 1_000.0);
        std::thread::sleep(Duration::from_millis(50));
    }
    found
}

/// What arrives at a reader that does nothing else: the reference for everybody who also has to
/// publish.
fn to_a_pipe(lab: &Lab, seat: &Seat, way: Way, rate: u64, seconds: u64, run: Run) -> Run {
    static ENDED: AtomicBool = AtomicBool::new(false);
    ENDED.store(false, Ordering::Relaxed);
    let mut command = recvlogical(lab, seat, way, "-", None);
    command
        .args(["-F", "0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().expect("pg_recvlogical");
    guardian::watch(child.id());
    let mut output = child.stdout.take().expect("its output");
    let reader = std::thread::spawn(move || {
        let mut chunk = vec![0; 1 << 16];
        let mut left = Vec::new();
        let mut arrived = Vec::new();
        while let Ok(length @ 1..) = output.read(&mut chunk) {
            let now_ms = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .expect("a clock")
                .as_secs_f64()
                * 1_000.0;
            left.extend_from_slice(&chunk[..length]);
            let mut from = 0;
            // A number counts as arrived with what follows it.
            while let Some(at) = left[from..].windows(3).position(|window| window == b"seq") {
                let begins = from + at + 3;
                let Some(length) = left[begins..].iter().position(|byte| *byte == b',') else {
                    break;
                };
                if let Some(number) = checked::number(&left[begins..begins + length]) {
                    arrived.push((number, now_ms));
                }
                from = begins + length;
            }
            left.drain(..from.max(left.len().saturating_sub(64).min(from)));
        }
        arrived
    });
    if until(ARRIVAL, || lab.walsender(seat)).is_none() {
        child
            .kill()
            .and_then(|()| child.wait())
            .expect("end pg_recvlogical");
        return run.faulty("it never came");
    }
    let load = Steady::begin(lab, rate, WARM_UP_S + seconds);
    std::thread::sleep(Duration::from_secs(WARM_UP_S));
    let began_at_ms = crate::drain::now_ms() as f64;
    let began = Instant::now();
    let before = cpu_ms_of(child.id()).unwrap_or(0);
    load.wait();
    let relay_ms = cpu_ms_of(child.id()).unwrap_or(0).saturating_sub(before) as f64;
    let elapsed_ms = began.elapsed().as_secs_f64() * 1_000.0;
    let committed = committed_ms(&lab.sql);
    // It has a second for the rest, and is read to its end.
    std::thread::sleep(Duration::from_secs(1));
    child
        .kill()
        .and_then(|()| child.wait())
        .expect("end pg_recvlogical");
    guardian::release(child.id());
    let mut times = vec![f64::NAN; committed.len()];
    for (number, ms) in reader.join().expect("a reader") {
        if let Some(time) = usize::try_from(number)
            .ok()
            .and_then(|number| times.get_mut(number))
        {
            *time = ms;
        }
    }
    let lost = times
        .iter()
        .zip(&committed)
        .skip(1)
        .filter(|(time, row)| time.is_nan() && !row.is_nan())
        .count();
    if lost > 0 {
        return run.faulty(&format!("{lost} did not arrive"));
    }
    with_percentiles(run, &committed, times, (began_at_ms, elapsed_ms / 1_000.0))
        .with("relay_percent", relay_ms * 100.0 / elapsed_ms)
}
