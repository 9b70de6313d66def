//! How fast a backlog in the slot reaches the broker, and what it costs.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Asked;
use crate::checked::Log;
use crate::contestant::{
    CONNECT, CONNECT_TUNED, Contestant, RECVLOGICAL, SERVER, SERVER_TUNED, WALRELAY,
    WALRELAY_SOCKET, Way, recvlogical,
};
use crate::cpu::{self, Watched};
use crate::lab::{Lab, Seat, announce};
use crate::load::{self, PER_TRANSACTION, Shape, TEMPLATE};
use crate::results::Run;
use crate::support::process::Process;
use crate::table::number;

/// Nobody takes longer, and is not to hold up the others.
const DEADLINE: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(100);

/// The long one: a JVM has warmed up long before the end.
pub(crate) fn long(asked: &Asked, found: &mut dyn FnMut(Run)) {
    beside_peers(asked, asked.rows(1_200_000), found);
}

/// The short one: what a restart with a backlog costs.
pub(crate) fn cold(asked: &Asked, found: &mut dyn FnMut(Run)) {
    beside_peers(asked, asked.rows(300_000).min(300_000), found);
}

fn beside_peers(asked: &Asked, rows: u64, found: &mut dyn FnMut(Run)) {
    let all = [
        RECVLOGICAL,
        WALRELAY,
        Contestant::Recvlogical(Way::Socket),
        WALRELAY_SOCKET,
        CONNECT_TUNED,
        CONNECT,
        SERVER_TUNED,
        SERVER,
    ];
    let lab = Lab::start(false);
    load::schema(&lab.sql, "");
    load::template(&lab.sql);
    let end = load::backlog(&lab.sql, 1..=rows, PER_TRANSACTION, Shape::default());
    let backlog = Backlog { rows, end };
    for round in 1..=asked.rounds {
        for contestant in Contestant::and_guest(asked.among(&all)) {
            announce(contestant, &backlog.load(), round);
            let run = Run::new(&backlog.load(), contestant.name(), round);
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

/// The same rows read from the slot, and from the table.
pub(crate) fn poll(asked: &Asked, found: &mut dyn FnMut(Run)) {
    let lab = Lab::start(false);
    load::schema(
        &lab.sql,
        ", seq bigint generated always as identity, xid xid8 default pg_current_xact_id()",
    );
    load::template(&lab.sql);
    let rows = asked.rows(300_000).min(300_000);
    let end = load::backlog(&lab.sql, 1..=rows, PER_TRANSACTION, Shape::default());
    let backlog = Backlog { rows, end };
    for round in 1..=asked.rounds {
        for (name, options) in [
            ("slot", &[][..]),
            ("poll", &[("--mode", "poll"), ("--backlog", "all")]),
        ] {
            announce(WALRELAY, name, round);
            let run = Run::new(&backlog.load(), name, round);
            found(drained(
                &lab,
                WALRELAY,
                &backlog,
                (Some(TEMPLATE), "", options),
                run,
            ));
        }
    }
}

const ENVELOPE: &str =
    "[format.envelope]\nid = \"{id}\"\ntype = \"{type}\"\ndata = \"{payload}\"\n";
const STRUCTURED: &str = "[route.headers]\ncontent-type = \
                          \"application/cloudevents+json\"\n[format.envelope]\n\
    specversion = \"1.0\"\nid = \"{id}\"\nsource = \"/shop/orders\"\ntype = \
    \"com.example.{type}\"\n\
    datacontenttype = \"application/json\"\ndata = \"{payload|json}\"\n";
const BINARY: &str = "[route.headers]\ncontent-type = \"application/json\"\nce_specversion = \
                      \"1.0\"\nce_id = \"{id}\"\n\
    ce_source = \"/shop/orders\"\nce_type = \"com.example.{type}\"\n";

const HEADERS: u32 = 50;

/// What a record costs more where it is not the payload as it is.
pub(crate) fn mapping(asked: &Asked, found: &mut dyn FnMut(Run)) {
    let lab = Lab::start(false);
    load::schema(&lab.sql, "");
    load::template(&lab.sql);
    let rows = asked.rows(300_000).min(300_000);
    let end = load::backlog(&lab.sql, 1..=rows, PER_TRANSACTION, Shape::default());
    let backlog = Backlog { rows, end };
    let headers: String = (1..=HEADERS)
        .map(|number| format!("header-{number} = \"value-{number}\"\n"))
        .collect();
    let headers = format!("[route.headers]\n{headers}");
    let kinds = [
        ("payload as it is", ""),
        ("50 headers", &headers),
        ("envelope", ENVELOPE),
        ("CloudEvents, structured", STRUCTURED),
        ("CloudEvents, binary", BINARY),
    ];
    for round in 1..=asked.rounds {
        for (name, settings) in kinds {
            announce(WALRELAY, name, round);
            let run = Run::new(&backlog.load(), name, round);
            found(drained(
                &lab,
                WALRELAY,
                &backlog,
                (Some(TEMPLATE), settings, &[]),
                run,
            ));
        }
    }
}

/// Rows 1 to `rows`, which end at an LSN.
pub(crate) struct Backlog {
    pub(crate) rows: u64,
    pub(crate) end: String,
}

impl Backlog {
    pub(crate) fn load(&self) -> String {
        format!("{} rows", number(Some(self.rows as f64), 0))
    }
}

/// How a contestant is set up: the slot to copy, settings and options of walrelay.
pub(crate) type SetUp<'a> = (Option<&'a str>, &'a str, &'a [(&'a str, &'a str)]);

/// One turn at a backlog.
pub(crate) fn drained(
    lab: &Lab,
    who: Contestant,
    backlog: &Backlog,
    (slot, settings, options): SetUp<'_>,
    run: Run,
) -> Run {
    let seat = lab.seat(slot);
    let run = match who {
        Contestant::Recvlogical(way) => to_nowhere(lab, &seat, way, backlog, run),
        Contestant::Walrelay(_) | Contestant::Peer(_) => {
            to_kafka(lab, &seat, who, backlog, (settings, options), run)
        }
    };
    lab.clear(&seat);
    run
}

/// By the wall clock: there are no append times.
fn to_nowhere(lab: &Lab, seat: &Seat, way: Way, backlog: &Backlog, run: Run) -> Run {
    let mut walsender = Watched::default();
    let command = recvlogical(lab, seat, way, "/dev/null", Some(&backlog.end));
    let started = Instant::now();
    let at = seat.directory.join("log");
    let mut process = Process::start("pg_recvlogical", command, &at);
    let mut relay = Watched::default();
    while process.exited().is_none() {
        walsender.look(walsender.pid.or_else(|| lab.walsender(seat)));
        relay.look(Some(process.pid()));
        assert!(
            started.elapsed() < DEADLINE,
            "pg_recvlogical takes too long"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let seconds = started.elapsed().as_secs_f64();
    let per_event = |ms: u64| ms as f64 * 1_000.0 / backlog.rows as f64;
    run.with("events_per_s", backlog.rows as f64 / seconds)
        .with("relay_us_per_event", per_event(relay.used_ms()))
        .with("walsender_us_per_event", per_event(walsender.used_ms()))
}

fn to_kafka(
    lab: &Lab,
    seat: &Seat,
    who: Contestant,
    backlog: &Backlog,
    (settings, options): (&str, &[(&str, &str)]),
    run: Run,
) -> Run {
    let log = Log::of(lab.brokers(), &seat.topics);
    let brokers_before = cpu::brokers_ms();
    let started = Instant::now();
    let began_at_ms = now_ms();
    let mut running = who.start(lab, seat, settings, options);
    let mut walsender = Watched::default();
    loop {
        if let Some(status) = running.process().exited() {
            return run.faulty(&format!(
                "it ended: {status}: {}",
                running.process().log_tail(3)
            ));
        }
        walsender.look(walsender.pid.or_else(|| lab.walsender(seat)));
        if log.count() >= backlog.rows {
            break;
        }
        if started.elapsed() > DEADLINE {
            return run.faulty(&format!(
                "{} of {} records within {DEADLINE:?}",
                log.count(),
                backlog.rows
            ));
        }
        std::thread::sleep(LOOK);
    }
    walsender.look(walsender.pid);
    let relay_ms = running.process().cpu_ms().unwrap_or(0);
    let brokers_ms = cpu::brokers_ms() - brokers_before;
    let peak = running.process().resident_peak_bytes().unwrap_or(0);
    drop(running);
    let verdict = log.read(backlog.rows, |_| true);
    let per_event = |ms: u64| ms as f64 * 1_000.0 / backlog.rows as f64;
    let times = verdict.sorted_ms();
    let run = run
        .with("relay_us_per_event", per_event(relay_ms))
        .with("walsender_us_per_event", per_event(walsender.used_ms()))
        .with("broker_us_per_event", per_event(brokers_ms))
        .with("peak_mib", peak as f64 / f64::from(1 << 20))
        .with("duplicated", verdict.duplicated as f64);
    let fault = verdict.fault(true);
    if !fault.is_empty() {
        return run.faulty(&fault);
    }
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    let rate = |from: usize, to: usize| {
        backlog.rows as f64 * (to - from) as f64
            / 100.0
            / ((at(to) - at(from)).max(1) as f64 / 1_000.0)
    };
    run.with("events_per_s", rate(10, 90))
        .with("second_half_events_per_s", rate(50, 90))
        .with("first_s", (at(0) - began_at_ms) as f64 / 1_000.0)
        .with("last_s", (at(100) - began_at_ms) as f64 / 1_000.0)
}

pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock behind 1970");
    i64::try_from(since.as_millis()).expect("a time")
}
