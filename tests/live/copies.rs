//! P1, docs/explanation/delivery.md: copies after `kill -9`: what is in a topic already is not
//! published again, whoever else writes there, and nothing is lost for it.

use std::time::{Duration, Instant};

use crate::support::relay::{EXIT, Relay, RelayCommand};
use crate::support::seed::{from_environment, generator};
use crate::support::servers::kafka::Listener;
use crate::support::servers::{Kafka, Postgres};
use crate::support::sql::Sql;
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

const SKIPPED: &str = "walrelay_delivered_before_events_total";
/// Fewer would prove little; a busy machine takes longer for them.
const KILLS_MIN: usize = 3;

/// How long it goes on, and how soon each relay is killed on average:
/// `WALRELAY_TEST_CRASH_SECONDS=300 WALRELAY_TEST_CRASH_PERIOD_MS=3000` is the long run.
fn crashes() -> (Duration, Duration) {
    let seconds = from_environment("WALRELAY_TEST_CRASH_SECONDS", 6);
    let period = from_environment("WALRELAY_TEST_CRASH_PERIOD_MS", 1_500);
    (Duration::from_secs(seconds), Duration::from_millis(period))
}

#[test]
fn a_relay_killed_under_eight_writers_publishes_no_event_again_that_is_in_its_topic() {
    let world = World::new();
    let (lasts, period) = crashes();
    let mut chance = generator("kills of the relay");
    // `WALRELAY_TEST_READ_TAILS=never` measures how many copies there are without.
    let read_tails =
        std::env::var("WALRELAY_TEST_READ_TAILS").unwrap_or_else(|_| "at-start".to_owned());
    let looks = read_tails == "at-start";
    let run = || {
        world
            .run()
            .variable("WALRELAY_DELIVERY_READ_TAILS", &read_tails)
    };
    let writers = world.workload(&Plan {
        writers: 8,
        ..Plan::default()
    });
    let mut kills = 0;
    let mut again = 0.0;
    let mut starts = Vec::new();
    let started = Instant::now();
    // One event is acked by then, and no position behind it is stored.
    crash(run(), "acked");
    while started.elapsed() < lasts || kills < KILLS_MIN {
        let before = world.delivered();
        let at_ms = topic::now_ms();
        let mut relay = run().start();
        // A relay that delivers nothing before it is killed would prove nothing.
        eventually(
            "something new arrives",
            ARRIVAL,
            || world.delivered(),
            |records| *records > before,
        );
        if looks && kills == 0 {
            eventually(
                "what was acked is found",
                ARRIVAL,
                || skipped(&relay) > 0.0 || !has_looked(&relay),
                |found| *found,
            );
        }
        std::thread::sleep(chance.u32(0..2_000) * period / 1_000);
        again += skipped(&relay);
        relay.kill_hard();
        kills += 1;
        starts.extend(has_looked(&relay).then_some(at_ms));
    }
    let transactions = writers.stop();
    let took = started.elapsed().as_secs_f64();
    let committed = world.committed();
    let at_ms = topic::now_ms();
    let mut relay = run().start();
    let copies = world.assert_all_delivered().duplicates;
    again += skipped(&relay);
    starts.extend(has_looked(&relay).then_some(at_ms));
    let percent = 100.0 * copies as f64 / committed as f64;
    let rate = committed as f64 / took;
    eprintln!(
        "{kills} kills in {took:.0} s, {committed} events of {transactions} transactions \
         ({rate:.0}/s), read_tails \
         {read_tails}: {copies} copies ({percent:.4} %), {again} not published again"
    );
    assert_eq!(relay.terminate(EXIT), Some(0));
    // What a relay had on the wire as it was killed may come after the next one has looked, and no
    // other event comes again.
    let known = world.appended_again(&starts);
    assert!(
        !looks || known.is_empty(),
        "in their topics at a start, and published again: {known:?}"
    );
}

/// Whether every topic was read that this relay was to look into: one that does not answer within
/// ten seconds is not.
fn has_looked(relay: &Relay) -> bool {
    !relay.log().contains("may be published again")
}

/// Commits this many events of three aggregates in each type.
fn emit(world: &World, sql: &Sql, events: usize) {
    for kind in 0..3 {
        let kind = world.kind(kind);
        sql.run(&format!(
            "select emit('{kind}', '{kind}-' || n % 3, 20) from generate_series(1, {events}) n"
        ));
    }
}

/// A relay that publishes something and dies at this point.
fn crash(run: RelayCommand, point: &str) {
    run.killed_at(point, 0).start().wait_killed();
}

fn skipped(relay: &Relay) -> f64 {
    relay.metric(SKIPPED).unwrap_or_default()
}

#[test]
fn events_acked_and_not_stored_are_marked_and_not_published_again() {
    let world = World::new();
    let sql = world.sql();
    sql.run("alter table outbox add column sent boolean not null default false");
    let settings = "[outbox]\nmark = \"sent = true\"\n";
    emit(&world, &sql, 50);
    crash(world.run().config_file(settings), "marking");
    let published = world.delivered();
    assert!(published > 0 && sql.number("select count(*) from outbox where sent") == 0);

    let mut relay = world.run().config_file(settings).start();
    relay.wait_ready();
    let findings = world.assert_all_delivered();
    assert_eq!(findings.duplicates, 0);
    let unmarked = || sql.number("select count(*) from outbox where not sent");
    eventually("every row is marked", ARRIVAL, unmarked, |rows| *rows == 0);
    world.wait_confirmed();
    eventually(
        "it is counted",
        ARRIVAL,
        || skipped(&relay),
        |events| *events >= published as f64,
    );
    assert!(
        relay.log().contains("not published again"),
        "{}",
        relay.log()
    );
    assert_eq!(relay.terminate(EXIT), Some(0));

    // Without a look at the topics they come again.
    emit(&world, &sql, 50);
    let settings = format!("{settings}[delivery]\nread_tails = \"never\"\n");
    crash(world.run().config_file(&settings), "marking");
    let _relay = world.run().config_file(&settings).start();
    let again = || world.assert_all_delivered().duplicates;
    eventually("they come again", ARRIVAL, again, |copies| *copies > 0);
}

#[test]
fn relays_of_two_slots_on_shared_topics_lose_nothing() {
    let mine = World::new();
    let other = World::new().sharing_topics_of(&mine);
    let mut chance = generator("kills of two relays");
    let writers = [
        mine.workload(&Plan::default()),
        other.workload(&Plan::default()),
    ];
    let (lasts, _) = crashes();
    let mut relays = [mine.relay(), other.relay()];
    let mut kills = 0;
    let started = Instant::now();
    while started.elapsed() < lasts || kills < KILLS_MIN {
        kills += 1;
        // The other one goes on, and so the topics have positions behind all that this one has
        // still to publish.
        let which = usize::from(chance.bool());
        let (world, other) = if which == 0 {
            (&mine, &other)
        } else {
            (&other, &mine)
        };
        relays[which].kill_hard();
        writers[which].wait_for(50);
        let goal = other.committed();
        writers[1 - which].wait_for(50);
        let confirmed = || other.confirmed();
        let before = confirmed();
        eventually("the other one goes on", ARRIVAL, confirmed, |now| {
            *now > before
        });
        assert!(other.committed() > goal);
        relays[which] = world.relay();
        std::thread::sleep(Duration::from_millis(chance.u64(200..1_200)));
    }
    for writers in writers {
        writers.stop();
    }
    for world in [&mine, &other] {
        let mut findings = eventually(
            "every row has arrived",
            ARRIVAL,
            || world.check(),
            |found| found.lost.is_empty(),
        );
        // What the other one published.
        findings.phantom.clear();
        eprintln!("{} copies", findings.duplicates);
        findings.assert_sound();
    }
}

#[test]
fn a_relay_without_read_access_to_topics_warns_once_and_publishes_duplicates() {
    const USER: &str = "relay";
    let login =
        "org.apache.kafka.common.security.plain.PlainLoginModule required user_relay=\"relay\";";
    let settings = vec![
        ("sasl.enabled.mechanisms", "PLAIN".to_owned()),
        ("plain.sasl.jaas.config", login.to_owned()),
    ];
    let kafka = Kafka::guarded(&[Listener {
        name: "NAMED",
        protocol: "SASL_PLAINTEXT",
        settings,
    }]);
    let world = World::on(Postgres::shared(), kafka.brokers());
    kafka.allow_writing(USER, "outbox.event.");
    let run = || {
        let mut run = world.run().option("--brokers", &kafka.brokers_of("NAMED"));
        for (name, value) in [
            ("SECURITY_PROTOCOL", "SASL_PLAINTEXT"),
            ("SASL_MECHANISM", "PLAIN"),
            ("SASL_USERNAME", USER),
            ("SASL_PASSWORD", USER),
        ] {
            run = run.variable(&format!("WALRELAY_KAFKA_PROPERTY_{name}"), value);
        }
        run
    };
    emit(&world, &world.sql(), 50);
    crash(run(), "storing");

    let mut relay = run().start();
    relay.wait_ready();
    assert!(world.assert_all_delivered().duplicates > 0);
    let log = relay.log();
    let told: Vec<_> = log
        .lines()
        .filter(|line| line.contains("may be published again"))
        .collect();
    assert!(
        told.len() == 1 && told[0].contains("--operation Read"),
        "{told:?}\n{log}"
    );
    assert_eq!(relay.terminate(EXIT), Some(0));
}
