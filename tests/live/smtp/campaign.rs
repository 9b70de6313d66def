//! P1, P2: under load, whatever ends or stands still, each mail arrives, in the order of its key.

use std::collections::{BTreeMap, HashMap};

use super::server::{Mail, Reply, Server, Step};
use crate::support::proxy::{Proxy, Way};
use crate::support::relay::{EXIT, RelayCommand};
use crate::support::servers::Postgres;
use crate::support::wait::{eventually, grown};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

pub(super) const ROUTES: &str = "
[route]
timestamp = \"created_at\"
[route.headers]
To = \"ann@example.org\"
Subject = \"{type}\"
X-Aggregate = \"{aggregateid}\"
X-Version = \"{payload.v}\"
X-Row = \"{id}\"
[smtp]
host = \"127.0.0.1\"
tls = \"off\"
from = \"shop@example.org\"
timeout = \"2s\"
final_timeout = \"3s\"
recipient_wait = \"200ms\"
";

#[track_caller]
pub(super) fn world() -> World {
    let world = World::bare(Postgres::shared(), "");
    let column = "alter table outbox add column created_at timestamptz not null default now()";
    world.sql().run(column);
    world.setup();
    world
}

pub(super) fn run(world: &World, port: &str) -> RelayCommand {
    world
        .command("run")
        .option("--sink", "smtp")
        .option("--log-format", "json")
        .config_file(ROUTES)
        .variable("WALRELAY_SMTP_PORT", port)
}

/// What a mail says of its event.
pub(super) struct Event<'a> {
    pub(super) row: &'a str,
    pub(super) aggregate: &'a str,
    pub(super) version: i64,
}

impl Event<'_> {
    fn of(mail: &Mail) -> Event<'_> {
        Event {
            row: mail.field("X-Row"),
            aggregate: mail.field("X-Aggregate"),
            version: mail.field("X-Version").parse().expect("a version"),
        }
    }
}

/// First arrivals of each aggregate are in order, none is missing. Gives the number of duplicates.
#[track_caller]
pub(super) fn assert_in_order<'a>(
    events: impl IntoIterator<Item = Event<'a>>,
    committed: usize,
) -> usize {
    let mut newest: HashMap<&str, i64> = HashMap::new();
    let mut rows: BTreeMap<&str, u32> = BTreeMap::new();
    for event in events {
        let copies = rows.entry(event.row).or_default();
        *copies += 1;
        if *copies == 1 {
            let before = newest.insert(event.aggregate, event.version).unwrap_or(0);
            assert_eq!(
                before + 1,
                event.version,
                "{} is out of order",
                event.aggregate
            );
        }
    }
    assert_eq!(rows.len(), committed, "lost");
    rows.values().map(|copies| *copies as usize - 1).sum()
}

/// Waits until each committed event is kept, and checks order and copies.
#[track_caller]
fn assert_all_kept(world: &World, server: &Server) -> usize {
    let committed = usize::try_from(world.committed()).expect("a count");
    let rows = || {
        let kept = server.kept();
        let rows: std::collections::BTreeSet<_> = kept
            .iter()
            .map(|mail| mail.field("X-Row").to_owned())
            .collect();
        i64::try_from(rows.len()).expect("a count")
    };
    grown("every mail has arrived", world.committed(), rows);
    let kept = server.kept();
    let mut first: BTreeMap<&str, &Mail> = BTreeMap::new();
    for mail in &kept {
        let before = *first.entry(mail.field("X-Row")).or_insert(mail);
        assert_eq!(before, mail, "a copy differs");
    }
    let ids: std::collections::BTreeSet<_> = kept.iter().map(Mail::id).collect();
    assert_eq!(ids.len(), committed, "an id for each event");
    assert_in_order(kept.iter().map(Event::of), committed)
}

#[test]
fn mails_arrive_in_order_of_each_key_through_kills_and_bad_answers() {
    let mut random = fastrand::Rng::new();
    let server = Server::listen(move |step: &Step<'_>| {
        let roll = random.u32(..);
        let is_bad = |one_in: u32| roll.is_multiple_of(one_in);
        match step.verb {
            "END" if is_bad(60) => Some(Reply::Close),
            "END" if is_bad(61) => Some(Reply::KeepAndClose),
            "END" if is_bad(62) => Reply::say("451 not now"),
            "END" if is_bad(63) => Reply::say("354 what"),
            "RCPT" if is_bad(64) => Reply::say("450 not now"),
            "MAIL" if is_bad(65) => Reply::say("421 bye"),
            "MAIL" if is_bad(66) => Some(Reply::Close),
            "DATA" if is_bad(67) => Reply::say("250 what"),
            "GREETING" if is_bad(5) => Reply::say("421 busy"),
            _ => None,
        }
    });
    let world = world();
    let command = run(&world, &server.port.to_string());
    let mut relay = command.start();
    relay.wait_ready();
    let workload = world.workload(&Plan::default());
    for round in 1..=6 {
        let enough = 200 * round;
        eventually(
            "mails arrive",
            ARRIVAL,
            || server.kept_count(),
            |kept| *kept > enough,
        );
        relay.kill_hard();
        relay = command.start();
    }
    workload.stop();
    let duplicates = assert_all_kept(&world, &server);
    world.wait_confirmed();
    println!(
        "{} mails, 6 kills of the relay, {duplicates} duplicates",
        world.committed()
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_network_that_freezes_and_breaks_loses_and_reorders_no_mail() {
    let server = Server::listen(|_: &Step<'_>| None);
    let proxy = Proxy::before(&format!("127.0.0.1:{}", server.port));
    let world = world();
    let address = proxy.address();
    let port = address.rsplit(':').next().expect("a port");
    let mut relay = run(&world, port).start();
    relay.wait_ready();
    let workload = world.workload(&Plan::default());
    for round in 1..=4 {
        let before = server.kept_count();
        let arrives = |what: &str| {
            eventually(
                what,
                ARRIVAL,
                || server.kept_count(),
                |kept| *kept > before + 100,
            );
        };
        arrives("mails arrive");
        match round {
            1 => proxy.cut(),
            // The answers are lost, and then the connections.
            2 => {
                proxy.blackhole(Way::Down);
                workload.wait_for(100);
            }
            3 => {
                proxy.blackhole(Way::Up);
                proxy.blackhole(Way::Down);
                workload.wait_for(300);
            }
            _ => {
                proxy.cut();
                workload.wait_for(20);
                proxy.cut();
            }
        }
        proxy.resume();
    }
    workload.stop();
    let duplicates = assert_all_kept(&world, &server);
    assert_eq!(server.overlaps(), 0, "one of a key at once");
    world.wait_confirmed();
    println!(
        "{} mails, 4 faults of the network, {duplicates} duplicates",
        world.committed()
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
