//! P3, P2: an event that waits, or was refused, is that event and no other of its id; and no relay
//! of another configuration lets later events overtake what waits.

use serde_json::Value;

use super::parked::{NO_TOPICS, command};
use crate::support::relay::{EXIT, RelayCommand};
use crate::support::servers::Postgres;
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

const ID: &str = "00000000-0000-0000-0000-000000000007";

/// Ids may be used again.
fn world() -> World {
    let world = World::new();
    world.sql().run(
        "alter table outbox drop constraint outbox_pkey, add column row_number bigint generated \
         always as identity unique",
    );
    world
}

/// Its table can be polled.
fn ordered() -> World {
    let world = World::keeping();
    world.setup();
    world
}

fn parking(world: &World) -> RelayCommand {
    world.run().option("--on-error", "park")
}

/// A row with [`ID`]; `kind` is its aggregate type.
fn row(kind: &str, aggregate: &str, payload: &str) -> String {
    format!(
        "insert into outbox values ('{ID}', '{kind}', '{aggregate}', 'Same', '{{\"n\": \
         \"{payload}\"}}')"
    )
}

/// Noise beyond what a producer sends, by [`small`].
const LARGE: &str = "(select jsonb_build_object('n', jsonb_agg(md5(random()::text))) from \
                     generate_series(1, 3000))";

fn large(kind: &str, aggregate: &str) -> String {
    format!("insert into outbox values ('{ID}', '{kind}', '{aggregate}', 'Same', {LARGE})")
}

fn values(world: &World) -> Vec<String> {
    let mut values: Vec<String> = world
        .records(0)
        .iter()
        .map(|record| record.value_text())
        .collect();
    values.sort();
    values
}

/// The first event of this world that waits.
fn one_waits(world: &World, command: &RelayCommand) {
    let sql = world.sql();
    let mut relay = command.start();
    relay.wait_ready();
    sql.run("select emit('not a topic', 'a', 20)");
    eventually(
        "one waits",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 1,
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// It ends with this code, and says so.
#[track_caller]
fn is_refused(command: &RelayCommand, code: i32, words: &[&str]) {
    let mut relay = command.start();
    assert_eq!(relay.wait_exit(ARRIVAL), Some(code), "{}", relay.log());
    for word in words {
        assert!(relay.log().contains(word), "{word}: {}", relay.log());
    }
}

#[test]
fn a_later_event_with_a_parked_id_is_parked_behind_it_and_delivered() {
    let (world, kind) = (world(), |world: &World| world.kind(0).to_owned());
    let sql = world.sql();
    let kind = kind(&world);
    let mut relay = parking(&world).start();
    relay.wait_ready();
    sql.run(&row("not a topic", "a", "1"));
    eventually(
        "the first waits",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 1,
    );
    // The id is used again: in a later transaction, and twice in one.
    sql.run(&row(&kind, "a", "2"));
    sql.run(&format!(
        "begin; {}; {}; commit",
        row(&kind, "a", "3"),
        row(&kind, "b", "4")
    ));
    eventually(
        "two wait behind it",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 3,
    );
    eventually(
        "of another aggregate none does",
        ARRIVAL,
        || world.delivered(),
        |count| *count == 1,
    );
    // What comes again after a kill is known by its place.
    relay.kill_hard();
    let mut relay = parking(&world).start();
    relay.wait_ready();
    sql.run(&row(&kind, "a", "5"));
    eventually(
        "and the next one",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 4,
    );
    eventually(
        "all are counted",
        ARRIVAL,
        || relay.metric("walrelay_waiting_events"),
        |count| *count == Some(4.0),
    );
    let shown = command(&world, "show")
        .flag(ID)
        .flag("--json")
        .output()
        .stdout;
    let shown: Value = serde_json::from_slice(&shown).unwrap();
    assert_eq!(shown["events"].as_array().unwrap().len(), 4, "{shown}");
    command(&world, "drop")
        .option("--class", "unroutable")
        .flag("--yes")
        .succeed();
    eventually(
        "those behind it are there",
        ARRIVAL,
        || world.delivered(),
        |count| *count >= 4,
    );
    eventually(
        "none waits",
        ARRIVAL,
        || relay.metric("walrelay_waiting_events"),
        |count| *count == Some(0.0),
    );
    let values: Vec<String> = world
        .records(0)
        .iter()
        .filter(|record| record.key_text() == "a")
        .map(|record| record.value_text())
        .collect();
    assert_eq!(
        values,
        ["2", "3", "5"].map(|n| format!("{{\"n\": \"{n}\"}}"))
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// A good event right behind one that is refused, with the same id.
fn is_judged_by_itself(guarantee: &str) {
    let world = world();
    let sql = world.sql();
    let kind = world.kind(0).to_owned();
    let letters = format!("{}.dead", world.name);
    topic::create(
        &world.brokers,
        &world.topic(0),
        1,
        &[("max.message.bytes", "20000")],
    );
    topic::create(&world.brokers, &letters, 1, &[]);
    let file = format!("[delivery]\ndead_letter_topic = {letters:?}\n");
    let run = world
        .run()
        .option("--on-error", "dead-letter")
        .option("--guarantee", guarantee)
        .config_file(&file);
    let mut relay = run.start();
    relay.wait_ready();
    sql.run(&format!(
        "begin; {}; {}; commit",
        large(&kind, "a"),
        row(&kind, "b", "good")
    ));
    sql.run(&row(&kind, "c", "later"));
    eventually(
        "the good ones are there",
        ARRIVAL,
        || values(&world),
        |values| *values == ["{\"n\": \"good\"}", "{\"n\": \"later\"}"],
    );
    let count = || topic::read(&world.brokers, &letters).len();
    eventually("the other is given up", ARRIVAL, count, |count| *count == 1);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    assert_eq!(count(), 1);
}

#[test]
fn a_valid_event_with_the_id_of_a_rejected_one_is_delivered() {
    is_judged_by_itself("at-least-once");
}

#[test]
fn a_valid_event_with_the_id_of_a_rejected_one_is_committed() {
    is_judged_by_itself("exactly-once");
}

/// What a table of before had.
const OLD_TABLE: &str = "
    create schema walrelay;
    create table walrelay.parked (
        id bigint generated always as identity primary key, slot text not null, outbox text not \
        null,
        row_id bytea not null, key bytea, topic text, commit_lsn pg_lsn not null, index bigint not \
        null, via text not null,
        committed_at timestamptz not null, names text[] not null, types bigint[] not null, texts \
        bytea[] not null,
        class text not null, error text, attempts integer not null default 0, parked_at \
        timestamptz not null default now(),
        next_at timestamptz, asked text check (asked in ('retry', 'drop')), unique (slot, outbox, \
        row_id)
    );
    create index parked_by_aggregate on walrelay.parked (slot, outbox, key, id);";

/// An event that waits, as if another relay had parked it.
fn planted(world: &World) -> String {
    format!(
        "insert into walrelay.parked (slot, outbox, row_id, key, commit_lsn, index, via, \
         committed_at, names, types, texts, class)
         values ('{}', 'public.outbox', '{ID}', 'a', '0/1', 0, 'slot', now(), '{{}}', '{{}}', \
         '{{}}', 'unroutable')",
        world.name
    )
}

#[test]
fn an_older_parked_table_is_migrated_and_keeps_its_events() {
    let world = world();
    let postgres = Postgres::shared();
    let sql = world.sql();
    let role = format!("{}_relay", world.name);
    sql.run(&format!("{OLD_TABLE} {}", planted(&world)));
    // Whoever may not is told what to do.
    sql.run(&format!(
        "create role {role} login replication; grant select on outbox to {role}; grant usage on \
         schema walrelay to {role};
         grant select, insert, update, delete on walrelay.parked to {role}"
    ));
    let url = postgres.url_as(&role, &world.name);
    is_refused(
        &parking(&world).option("--database-url", &url),
        11,
        &["drop constraint if exists", "key_by"],
    );
    let mut relay = parking(&world).start();
    relay.wait_ready();
    sql.run(&row(world.kind(0), "a", "2"));
    eventually(
        "both wait",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 2,
    );
    assert_eq!(
        sql.number("select count(*) from walrelay.parked where key_by is null"),
        1
    );
    // No index has a value of any size in it.
    let indexes = sql.text(
        "select string_agg(indexname, ' ' order by indexname) from pg_indexes where \
                  tablename = 'parked'",
    );
    let all = "parked_asked parked_behind parked_by_key parked_due parked_of_place \
               parked_of_row_key parked_pkey";
    assert_eq!(indexes, all);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn parked_events_of_a_removed_outbox_are_refused_at_start_and_can_be_dropped() {
    let world = ordered();
    let sql = world.sql();
    one_waits(&world, &parking(&world));
    sql.run("alter table outbox rename to events");
    let renamed = parking(&world).option("--table", "events");
    for mode in ["slot", "poll"] {
        let words = [
            "1 of outbox public.outbox",
            "--outbox public.outbox",
            "update walrelay.parked set outbox",
        ];
        is_refused(&renamed.clone().option("--mode", mode), 2, &words);
    }
    // It has another name by now.
    sql.run(&format!(
        "update walrelay.parked set outbox = 'public.events' where slot = '{}'",
        world.name
    ));
    let mut relay = renamed.start();
    relay.wait_ready();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    // Or nobody wants it any more.
    sql.run("update walrelay.parked set outbox = 'public.outbox'");
    let of = |name: &str| command(&world, name).option("--outbox", "public.outbox");
    assert!(of("list").succeed().contains("1 event of 1 aggregate"));
    of("drop").flag("--yes").succeed();
    let mut relay = renamed.start();
    relay.wait_ready();
    assert_eq!(world.number_parked(), 0);
    assert!(
        relay.log().contains("is dropped, as an operator asked"),
        "{}",
        relay.log()
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_replay_reports_rows_of_parked_events() {
    let world = ordered();
    let sql = world.sql();
    one_waits(&world, &parking(&world));
    let mut relay = parking(&world).start();
    world.emit(&sql, "a");
    eventually(
        "one waits behind it",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 2,
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    world.emit(&sql, "b");
    let routable = "aggregatetype <> 'not a topic'";
    let dry = world
        .command("replay")
        .option("--brokers", &world.brokers)
        .option("--where", routable)
        .flag("--dry-run");
    let text = dry.succeed();
    assert!(
        text.contains("events of 1 of these rows of public.outbox are parked"),
        "{text}"
    );
    let of = "aggregateid = 'b'";
    let text = "are parked";
    assert!(!dry.clone().option("--where", of).succeed().contains(text));
}

#[test]
fn parked_events_under_another_key_are_refused_at_start() {
    let world = ordered();
    one_waits(&world, &parking(&world));
    let other = parking(&world).config_file("[route]\nkey = \"{type}-{aggregateid}\"\n");
    for mode in ["slot", "poll"] {
        let words = [
            "1 events of outbox public.outbox",
            "{aggregateid}",
            "{type}-{aggregateid}",
            "route.key",
        ];
        is_refused(&other.clone().option("--mode", mode), 2, &words);
    }
    // Under the old key, and without what is to be dropped under the other.
    let mut relay = parking(&world).start();
    relay.wait_ready();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    command(&world, "drop")
        .flag("--all")
        .flag("--yes")
        .succeed();
    let mut relay = other.start();
    relay.wait_ready();
    eventually(
        "none waits",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 0,
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_role_without_access_to_the_parked_table_is_refused_at_start() {
    let world = World::new();
    let postgres = Postgres::shared();
    let sql = world.sql();
    let role = format!("{}_relay", world.name);
    sql.run(&format!(
        "create role {role} login replication; grant select on outbox to {role}; {OLD_TABLE}"
    ));
    let run = world
        .run()
        .option("--database-url", &postgres.url_as(&role, &world.name));
    let grant = format!(
        "grant usage on schema walrelay to {role}; grant select on walrelay.parked to {role}"
    );
    is_refused(&run, 11, &[&grant]);
    sql.run(&grant);
    let mut relay = run.start();
    relay.wait_ready();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    sql.run(&planted(&world));
    is_refused(&run, 2, &["1 events of slot"]);
}

#[test]
fn an_event_parked_before_the_slot_is_acquired_ends_a_relay_without_park() {
    let world = World::new();
    let sql = world.sql();
    sql.run(OLD_TABLE);
    let blocking = world.sql();
    blocking.run("begin; lock table outbox in access exclusive mode");
    let mut relay = world
        .run()
        .config_file("[outbox]\nmark = \"type = 'sent'\"\n")
        .start();
    // It has looked at what waits, and is about to stream.
    let waits = format!(
        "select count(*) from pg_stat_activity where application_name = 'walrelay {} upkeep' and \
         wait_event_type = 'Lock'",
        world.name
    );
    eventually(
        "it waits",
        ARRIVAL,
        || sql.number(&waits),
        |count| *count == 1,
    );
    sql.run(&planted(&world));
    blocking.run("commit");
    assert_eq!(relay.wait_exit(ARRIVAL), Some(2), "{}", relay.log());
    assert!(relay.log().contains("1 events of slot"), "{}", relay.log());
}

#[test]
fn a_stand_by_reports_that_it_could_not_take_over() {
    for mode in ["slot", "poll"] {
        let world = ordered();
        let sql = world.sql();
        let mut one = parking(&world).option("--mode", mode).start();
        one.wait_ready();
        let mut other = world.run().option("--mode", mode).start();
        eventually(
            "it stands by",
            ARRIVAL,
            || other.metric("walrelay_standing_by"),
            |stands| *stands == Some(1.0),
        );
        sql.run("select emit('not a topic', 'a', 20)");
        let told = |log: &String| {
            log.contains("could not take over now") && log.contains("1 events of slot")
        };
        eventually("it says so", ARRIVAL, || other.log(), told);
        // The next one does not even begin to.
        is_refused(
            &world.run().option("--mode", mode),
            2,
            &["1 events of slot", "as all relays of a slot are to be"],
        );
        assert_eq!(one.terminate(EXIT), Some(0), "{}", one.log());
        assert_eq!(other.wait_exit(ARRIVAL), Some(2), "{}", other.log());
    }
}

#[test]
fn a_refusing_topic_is_retried_once_no_parked_event_names_it() {
    let world = World::new();
    let sql = world.sql();
    let file = format!("[delivery]\nretry_attempts = 0\nretry_base = \"5m\"\n{NO_TOPICS}");
    let mut relay = parking(&world).config_file(&file).start();
    relay.wait_ready();
    world.emit(&sql, "a");
    eventually(
        "one is refused",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 1,
    );
    world.emit(&sql, "b");
    eventually(
        "one is not even tried",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 2,
    );
    let tries = "select string_agg(attempts || ' ' || class || ' ' || (next_at is null), ', ' \
                 order by id) from walrelay.parked";
    assert_eq!(sql.text(tries), "1 refused true, 0 refused false");
    let waiting = |count: f64| {
        eventually(
            "it says so",
            ARRIVAL,
            || relay.metric("walrelay_waiting_events"),
            |said| *said == Some(count),
        );
    };
    waiting(2.0);
    command(&world, "drop")
        .flag("--all")
        .flag("--yes")
        .succeed();
    waiting(0.0);
    topic::create(&world.brokers, &world.topic(0), 1, &[]);
    world.emit(&sql, "c");
    eventually(
        "it is delivered",
        ARRIVAL,
        || world.delivered(),
        |count| *count == 1,
    );
    assert_eq!(world.number_parked(), 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn an_unknown_class_is_refused() {
    let world = World::new();
    for command in ["list", "retry", "drop"].map(|name| command(&world, name)) {
        let output = command.clone().option("--class", "nonsense").output();
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(
            words.contains("the classes are unroutable, too-large, rejected, refused"),
            "{words}"
        );
    }
}
