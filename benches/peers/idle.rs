//! What a relay costs while there is nothing to relay: alone, and beside a table that is busy.

use std::time::{Duration, Instant};

use crate::Asked;
use crate::checked::Log;
use crate::contestant::{CONNECT, CONNECT_LATENCY, Contestant, SERVER, WALRELAY};
use crate::cpu::Watched;
use crate::lab::{Lab, announce};
use crate::load::{self, Shape, Steady};
use crate::results::Run;
use crate::support::wait::until;

const SECONDS: u64 = 20;
/// After the first event, before anything is measured.
const SETTLED_S: u64 = 10;
/// Rows a second of the busy table, a transaction each.
const NEIGHBOUR_PER_S: u64 = 2_000;
const ARRIVAL: Duration = Duration::from_secs(60);

pub(crate) fn run(asked: &Asked, found: &mut dyn FnMut(Run)) {
    let lab = Lab::start(false);
    load::steady_schema(&lab.sql, "", Shape::default());
    lab.sql
        .run("create table neighbour (id bigint generated always as identity, filling text)");
    let seconds = asked.seconds.unwrap_or(SECONDS);
    for round in 1..=asked.rounds {
        for contestant in
            Contestant::and_guest(asked.among(&[WALRELAY, CONNECT, CONNECT_LATENCY, SERVER]))
        {
            announce(contestant, "nothing", round);
            one(&lab, contestant, seconds, round, found);
        }
    }
}

fn one(lab: &Lab, who: Contestant, seconds: u64, round: u32, found: &mut dyn FnMut(Run)) {
    let seat = lab.seat(None);
    let mut running = who.start(lab, &seat, "", &[]);
    let log = Log::of(lab.brokers(), &seat.topics);
    let came = until(ARRIVAL, || lab.walsender(&seat)).and_then(|_| {
        lab.sql.run("select emit(1, 1)");
        until(ARRIVAL, || (log.count() > 0).then_some(()))
    });
    if came.is_none() {
        let run = Run::new("quiet", who.name(), round);
        return found(run.faulty(&format!("it never came: {}", running.process().log_tail(3))));
    }
    std::thread::sleep(Duration::from_secs(SETTLED_S));
    for load in ["quiet", "beside a busy table"] {
        let neighbour = (load != "quiet").then(|| {
            let insert = "insert into neighbour (filling) values (repeat('x', 200));\n";
            Steady::script(lab, insert, NEIGHBOUR_PER_S, seconds)
        });
        let mut walsender = Watched::default();
        let mut relay = Watched::default();
        let pid = running.process().pid();
        walsender.look(lab.walsender(&seat));
        relay.look(Some(pid));
        let began = Instant::now();
        let before = (relay.used_ms(), walsender.used_ms());
        match neighbour {
            Some(neighbour) => neighbour.wait(),
            None => std::thread::sleep(Duration::from_secs(seconds)),
        }
        let elapsed_ms = began.elapsed().as_secs_f64() * 1_000.0;
        walsender.look(walsender.pid);
        relay.look(Some(pid));
        let percent = |used_ms: u64| used_ms as f64 * 100.0 / elapsed_ms;
        let behind = lab.sql.number(&format!(
            "select (pg_current_wal_flush_lsn() - confirmed_flush_lsn)::bigint from \
             pg_replication_slots where slot_name = '{}'",
            seat.slot
        ));
        let resident = running.process().memory_bytes("VmRSS:").unwrap_or(0);
        found(
            Run::new(load, who.name(), round)
                .with("relay_percent", percent(relay.used_ms() - before.0))
                .with("walsender_percent", percent(walsender.used_ms() - before.1))
                .with("unconfirmed_mib", behind as f64 / f64::from(1 << 20))
                .with("resident_mib", resident as f64 / f64::from(1 << 20)),
        );
    }
    drop(running);
    lab.clear(&seat);
}
