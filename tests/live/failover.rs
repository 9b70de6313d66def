//! P1, P9: failing over to a standby: with everything the primary had, with less than was
//! delivered, and without the slot.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use walrelay_core::position::Lsn;

use super::doctor::Checks;
use crate::support::relay::{EXIT, Relay};
use crate::support::servers::postgres::STANDBY_SLOT;
use crate::support::servers::{Kafka, Postgres};
use crate::support::sql::Sql;
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

const SLOT_UNUSABLE: Option<i32> = Some(14);
const MISMATCH: Option<i32> = Some(16);

/// Transactions relayed after the standby's copy of the slot was last brought up to date.
const COPY_LAGS: u64 = 200;

/// A primary and its standby. All URLs name both, so that everybody goes to the one that takes
/// writes.
struct Pair {
    world: World,
    primary: Postgres,
    standby: Postgres,
}

impl Pair {
    fn new(major: u32) -> Pair {
        let primary = Postgres::private(major, &[]);
        let mut world = World::on(&primary, Kafka::shared().brokers());
        let standby = Postgres::standby_of(&primary);
        world.database_url = primary.url_of_either(&standby, &world.name);
        Pair {
            world,
            primary,
            standby,
        }
    }

    /// Waits until the standby holds a copy of the slot that a promotion makes usable. A relay has
    /// to run: the copy is good only once the slot has advanced.
    fn wait_slot_is_copied(&self) {
        let primary = Sql::connect(&self.primary.url(&self.world.name));
        let standby = self.standby.sql();
        let copies = format!(
            "select count(*) from pg_replication_slots where slot_name = '{}' and synced and not \
             temporary",
            self.world.name
        );
        let look = || {
            self.world.emit(&primary, "until it is copied");
            primary.run("select pg_log_standby_snapshot()");
            standby.number(&copies)
        };
        eventually("the standby has a copy of the slot", EXIT, look, |copies| {
            *copies == 1
        });
    }

    /// The network between the two is cut: the standby gets nothing any more.
    fn cut_off(&self) {
        self.standby.alter("primary_conninfo", "");
        let active =
            format!("select active from pg_replication_slots where slot_name = '{STANDBY_SLOT}'");
        let primary = self.primary.sql();
        eventually(
            "the standby is cut off",
            EXIT,
            || primary.text(&active),
            |active| active == "false",
        );
    }
}

/// Ids of all events in the table.
fn ids(sql: &Sql) -> BTreeSet<String> {
    sql.rows("select id::text from outbox", &[])
        .iter()
        .map(|row| row.get(0))
        .collect()
}

/// The LSNs of the commits whose events are in the topics more than once: those of their first
/// records.
fn repeated(world: &World) -> Vec<i64> {
    let mut first: HashMap<String, i64> = HashMap::new();
    let mut repeated = Vec::new();
    for record in (0..3).flat_map(|kind| world.records(kind)) {
        let position = record.header("walrelay-position");
        let lsn: Lsn = position
            .split(':')
            .nth(2)
            .expect("an LSN")
            .parse()
            .expect("an LSN");
        let lsn = i64::try_from(lsn.as_u64()).expect("an LSN");
        match first.entry(record.header("id")) {
            Entry::Vacant(new) => drop(new.insert(lsn)),
            Entry::Occupied(known) => repeated.push(lsn.min(*known.get())),
        }
    }
    repeated
}

/// Asserts that the relay ended with `code` and said all of `words`.
#[track_caller]
fn assert_ends(relay: &mut Relay, code: Option<i32>, words: &[&str]) {
    let ended = relay.wait_exit(EXIT);
    let log = relay.log();
    assert_eq!(ended, code, "{log}");
    for word in words {
        assert!(log.contains(word), "{word:?} is not said:\n{log}");
    }
}

#[test]
fn a_failover_on_17_duplicates_only_events_that_were_not_stored() {
    follow(17);
}

#[test]
fn a_failover_on_18_duplicates_only_events_that_were_not_stored() {
    follow(18);
}

/// A switch-over as planned: the primary is shut down, the standby has everything, the relay goes
/// on by itself.
#[track_caller]
fn follow(major: u32) {
    let pair = Pair::new(major);
    pair.world.create_topics();
    let mut relay = pair.world.relay();
    let writers = pair.world.workload(&Plan::default());
    pair.wait_slot_is_copied();
    // The copy always lags. Here by much, so that whoever believes it sends much again.
    pair.standby.alter("sync_replication_slots", "off");
    writers.wait_for(COPY_LAGS);

    pair.primary.stop_fast(EXIT);
    // The session has ended, and no position is stored before the next one.
    let stored = relay.metric("walrelay_stored_lsn").expect("a position") as i64;
    pair.standby.promote();
    writers.wait_for(100);
    writers.stop();

    let findings = pair.world.assert_all_delivered();
    assert!(
        relay.process.exited().is_none(),
        "the switch-over ended the relay"
    );
    let log = relay.log();
    assert!(log.contains("streaming again"), "{log}");
    assert!(
        !log.contains("no longer in the database"),
        "the standby had everything:\n{log}"
    );
    assert!(
        !log.contains("reading_table"),
        "the standby had the slot:\n{log}"
    );
    eprintln!("switch-over on {major}: {} copies", findings.duplicates);
    let repeated = repeated(&pair.world);
    assert!(
        repeated.iter().all(|lsn| *lsn >= stored),
        "stored up to {stored}, and sent again: {repeated:?}"
    );
    if major == 17 {
        fail_back(&pair, &relay);
    }
    assert_eq!(relay.terminate(EXIT), Some(0));
}

/// The old primary comes back as a standby, with its own slot, and is promoted again.
fn fail_back(pair: &Pair, relay: &Relay) {
    let world = &pair.world;
    pair.primary.rejoin(&pair.standby);
    let doctor = world.command("doctor").option("--brokers", &world.brokers);
    let fix = Checks::of(&doctor).has(
        "standby-slots",
        "warning",
        "is its own and no copy",
        "pg_drop_replication_slot",
    );
    pair.primary.sql().run(&fix);
    let copies = format!(
        "select count(*) from pg_replication_slots where slot_name = '{}' and synced and not \
         temporary",
        world.name
    );
    let look = || {
        world.emit(&world.sql(), "until it is copied");
        pair.standby.sql().run("select pg_log_standby_snapshot()");
        pair.primary.sql().number(&copies)
    };
    eventually(
        "the old primary has a copy of the slot",
        EXIT,
        look,
        |copies| *copies == 1,
    );
    Checks::of(&doctor).has("standby-slots", "ok", "survives a promotion", "");
    pair.standby.stop_fast(EXIT);
    pair.primary.promote();
    world.emit(&world.sql(), "after the second");
    world.assert_all_delivered();
    assert!(
        !relay.log().contains("no longer in the database"),
        "{}",
        relay.log()
    );
}

#[test]
fn events_of_a_standby_promoted_behind_the_position_are_delivered() {
    let pair = Pair::new(17);
    let world = &pair.world;
    let mut relay = world.relay();
    pair.wait_slot_is_copied();
    pair.cut_off();

    // Delivered, and on the primary alone; then WAL, so that all the new primary writes is below
    // the position.
    let primary = world.sql();
    for number in 0..5 {
        world.emit(&primary, &format!("gone {number}"));
    }
    primary.run("select pg_logical_emit_message(false, 'filling', repeat('x', 1000000))");
    let filled = world.wal();
    world.emit(&primary, "gone too");
    let position = eventually(
        "the last is confirmed",
        ARRIVAL,
        || world.confirmed(),
        |confirmed| *confirmed > filled,
    );
    let before = ids(&primary);
    pair.primary.kill_hard();
    pair.standby.promote();

    let promoted = world.sql();
    let gone: BTreeSet<String> = before.difference(&ids(&promoted)).cloned().collect();
    assert_eq!(
        gone.len(),
        6,
        "the standby was to be behind by what was written last"
    );
    for number in 0..20 {
        world.emit(&promoted, &format!("new {}", number % 4));
    }
    assert!(
        world.wal() < position,
        "the new events were to be below the position"
    );
    let all = || world.check();
    let findings = eventually("every row has arrived", ARRIVAL, all, |findings| {
        findings.lost.is_empty()
    });
    assert_eq!(
        findings.phantom.iter().cloned().collect::<BTreeSet<_>>(),
        gone
    );
    assert_eq!(
        (findings.out_of_order, findings.altered, findings.misplaced),
        (vec![], vec![], vec![])
    );
    let log = relay.log();
    assert_eq!(
        log.matches("no longer in the database").count(),
        1,
        "consumers have to be told, once:\n{log}"
    );
    assert!(log.contains("was promoted to timeline 2"), "{log}");
    assert!(
        relay.process.exited().is_none(),
        "the failover ended the relay"
    );
    assert_eq!(relay.terminate(EXIT), Some(0));
    assert!(
        world.confirmed() < position,
        "something was confirmed that the server never wrote"
    );

    an_old_primary_that_comes_back_is_refused(&pair);
}

/// The end of the test before, on its servers: the position is the promoted one's.
fn an_old_primary_that_comes_back_is_refused(pair: &Pair) {
    let world = &pair.world;
    pair.primary.start();
    let delivered = world.delivered();
    let stale = Sql::connect(&pair.primary.url(&world.name));
    world.emit(&stale, "on the old primary");
    // Both take writes now, and the old one is asked first.
    let mut relay = world.run().start();
    assert_ends(
        &mut relay,
        MISMATCH,
        &["timeline 2", "timeline 1", "old primary", "present primary"],
    );
    assert_eq!(world.delivered(), delivered);

    let mut relay = world
        .run()
        .option("--database-url", &pair.standby.url(&world.name))
        .start();
    relay.wait_ready();
    world.emit(
        &Sql::connect(&pair.standby.url(&world.name)),
        "on the promoted one",
    );
    eventually(
        "it goes on",
        ARRIVAL,
        || world.delivered(),
        |now| *now == delivered + 1,
    );
}

/// The standby has the events, and not their position.
#[test]
fn a_failover_with_the_position_in_postgres_loses_nothing_and_keeps_the_order() {
    let pair = Pair::new(17);
    let world = &pair.world;
    let mut relay = world.run().option("--state-store", "postgres").start();
    relay.wait_ready();
    pair.wait_slot_is_copied();
    world.assert_all_delivered();
    world.wait_confirmed();

    let primary = world.sql();
    let holder = world.sql();
    holder.run("begin; select from walrelay.position for update");
    for number in 0..8 {
        world.emit(&primary, &format!("both {}", number % 2));
    }
    let written = world.committed();
    let delivered = || world.delivered();
    eventually("they are delivered", ARRIVAL, delivered, |delivered| {
        *delivered == written
    });
    let standby = Sql::connect(&pair.standby.url(&world.name));
    let copied = || standby.number("select count(*) from outbox");
    eventually("the standby has them", ARRIVAL, copied, |copied| {
        *copied == written
    });
    pair.primary.kill_hard();
    pair.standby.promote();
    for number in 0..20 {
        world.emit(&world.sql(), &format!("both {}", number % 4));
    }
    assert!(
        world.assert_all_delivered().duplicates > 0,
        "the position was to be older: {}",
        relay.log()
    );
    assert!(
        relay.process.exited().is_none(),
        "the failover ended the relay"
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn with_synchronized_standby_slots_no_event_is_delivered_that_the_standby_lacks() {
    let pair = Pair::new(18);
    let world = &pair.world;
    pair.primary
        .alter("synchronized_standby_slots", STANDBY_SLOT);
    // Waiting for the standby is not silence: with a short timeout that would show within the time
    // allowed for it.
    let mut relay = world
        .run()
        .config_file("[slot]\nwal_sender_timeout = \"2s\"\n[http]\nready_within = \"1s\"\n")
        .start();
    relay.wait_ready();
    pair.wait_slot_is_copied();
    world.assert_all_delivered();
    pair.cut_off();

    let delivered = world.delivered();
    let primary = world.sql();
    for number in 0..5 {
        world.emit(&primary, &format!("gone {number}"));
    }
    let readiness = || {
        relay
            .readiness()
            .map(|(_, reason)| reason)
            .unwrap_or_default()
    };
    eventually("the wait is no health", ARRIVAL, readiness, |reason| {
        reason.contains("wal_not_sent")
    });
    assert!(
        relay
            .metric("walrelay_lag_seconds")
            .is_some_and(|lag| lag > 1.0),
        "{}",
        relay.metrics()
    );
    assert_eq!(world.delivered(), delivered, "the standby does not have it");
    let checks = Checks::of(&world.command("doctor").option("--brokers", &world.brokers));
    checks.has(
        "standby-slots",
        "warning",
        STANDBY_SLOT,
        "alter system set synchronized_standby_slots = '';",
    );
    let log = relay.log();
    assert!(relay.process.exited().is_none(), "{log}");
    // A machine that stands still for a moment ends the session, and the next one waits anew.
    if !log.contains("stood still") {
        assert!(
            !log.contains("interrupted"),
            "waiting was taken for a fault:\n{log}"
        );
        assert_eq!(
            log.matches("until a standby has them").count(),
            1,
            "the wait is to be told, once:\n{log}"
        );
    }
    // Its walsender is told to stop in the midst of waiting.
    pair.primary.stop_fast(EXIT);
    pair.standby.promote();
    for number in 0..5 {
        world.emit(&world.sql(), &format!("new {number}"));
    }
    assert_eq!(world.assert_all_delivered().duplicates, 0);
    let log = relay.log();
    assert!(!log.contains("no longer in the database"), "{log}");
    assert!(
        relay.process.exited().is_none(),
        "the failover ended the relay"
    );
}

#[test]
fn a_promoted_standby_without_the_slot_is_refused_until_the_gap_is_accepted() {
    let pair = Pair::new(15);
    let world = &pair.world;
    let stops = || world.run().option("--on-slot-loss", "stop");
    let mut relay = stops().start();
    relay.wait_ready();
    world.emit(&world.sql(), "before");
    world.assert_all_delivered();
    pair.primary.stop_fast(EXIT);
    pair.standby.promote();
    assert_ends(
        &mut relay,
        SLOT_UNUSABLE,
        &[
            "there is no replication slot",
            &world.name,
            "--backlog since=TIME",
        ],
    );

    world.emit(&world.sql(), "in the gap");
    world.setup();
    world.emit(&world.sql(), "after");
    // The remedy alone must not hide what it leaves out.
    let mut relay = stops().start();
    assert_ends(
        &mut relay,
        MISMATCH,
        &["the slot was recreated", "walrelay replay", "--adopt-slot"],
    );
    assert_eq!(world.delivered(), 1);

    let mut relay = stops().flag("--adopt-slot").start();
    relay.wait_ready();
    eventually(
        "it goes on",
        ARRIVAL,
        || world.delivered(),
        |delivered| *delivered >= 2,
    );
    let keys: BTreeSet<String> = world
        .records(0)
        .iter()
        .map(|record| record.key_text())
        .collect();
    assert_eq!(
        keys,
        BTreeSet::from(["before".to_owned(), "after".to_owned()])
    );
    assert!(
        relay.log().contains("accepted because of --adopt-slot"),
        "{}",
        relay.log()
    );
}

#[test]
fn a_running_relay_refuses_another_server_until_it_is_adopted() {
    let one = Postgres::private(15, &[]);
    let other = Postgres::private(15, &[]);
    let mut world = World::on(&one, Kafka::shared().brokers());
    // Everything has the same names there, as in a staging system.
    let copy = World::bare(&other, &world.brokers);
    other.sql().run(&format!(
        "alter database {} rename to {}",
        copy.name, world.name
    ));
    let elsewhere = other.url(&world.name);
    world
        .command("setup")
        .option("--database-url", &elsewhere)
        .succeed();
    world.emit(&Sql::connect(&elsewhere), "elsewhere");
    world.database_url = one.url_of_either(&other, &world.name);

    let mut relay = world.relay();
    world.emit(&world.sql(), "here");
    world.assert_all_delivered();
    one.stop_fast(EXIT);
    assert_ends(
        &mut relay,
        MISMATCH,
        &["system identifier", "the server you mean", "--adopt-slot"],
    );
    assert_eq!(
        world.delivered(),
        1,
        "an event of another server was delivered"
    );
    let confirmed = world.confirmed();
    assert_ends(&mut world.run().start(), MISMATCH, &["system identifier"]);
    assert_eq!(
        world.confirmed(),
        confirmed,
        "the other server's slot was moved"
    );

    let mut relay = world.run().flag("--adopt-slot").start();
    relay.wait_ready();
    eventually(
        "it goes on",
        ARRIVAL,
        || world.delivered(),
        |delivered| *delivered == 2,
    );
    assert!(
        relay.log().contains("accepted because of --adopt-slot"),
        "{}",
        relay.log()
    );
}
