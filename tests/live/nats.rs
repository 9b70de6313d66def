//! P1, P2, P3: on NATS JetStream each event arrives, in the order of its key, whatever ends or
//! stands still; an event that cannot be delivered holds up no other key.

mod copies;
mod login;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;
use walrelay_lab::verify::{Committed, Delivered, Findings, Topics, fingerprint, verify};

use crate::live::doctor::Checks;
use crate::support::certificates::{Authority, LOOPBACK};
use crate::support::relay::{EXIT, Relay, RelayCommand, last_words};
use crate::support::servers::nats::Stored;
use crate::support::servers::{Nats, Postgres};
use crate::support::wait::{eventually, grown, none_lost};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World, committed};

/// NATS has no key of a record.
const KEY: &str = "[route.headers]\nkey = \"{aggregateid}\"\n";
const BUS_REFUSED: Option<i32> = Some(31);
const PARKED: &str = "\"event_parked\"";
const STREAM: &str = "EVENTS";
const ALL: [&str; 1] = ["outbox.event.>"];

fn world() -> World {
    World::on(Postgres::shared(), "")
}

fn run(world: &World, nats: &Nats) -> RelayCommand {
    with(world, nats, "")
}

fn with(world: &World, nats: &Nats, toml: &str) -> RelayCommand {
    let servers = format!("[nats]\nservers = \"{}\"\n", nats.address);
    world
        .command("run")
        .option("--sink", "nats")
        .option("--log-format", "json")
        .config_file(&format!("{KEY}{servers}{toml}"))
}

#[track_caller]
fn ready(command: &RelayCommand) -> Relay {
    let mut relay = command.start();
    relay.wait_ready();
    relay
}

/// The checker's findings for these messages.
fn findings(world: &World, messages: &[Stored]) -> Findings {
    let rows = "select id::text, aggregateid, (payload->>'v')::bigint, payload::text, \
                aggregatetype from outbox where payload ? 'v'";
    let rows = world.sql().rows(rows, &[]);
    let rows: Vec<Committed> = rows
        .iter()
        .map(|row| committed(&format!("outbox.event.{}", row.get::<_, &str>(4)), row))
        .collect();
    let mut found = Topics::default();
    for stored in messages {
        let topic: Arc<str> = stored.subject.as_str().into();
        found.partitions.insert(Arc::clone(&topic), 1);
        found.records.push(Delivered {
            topic,
            partition: 0,
            offset: stored.sequence,
            id: Some(stored.header("id").into()),
            key: Some(stored.header("key").into()),
            payload: fingerprint(Some(&stored.payload)),
            arrived_at_us: 0,
        });
    }
    verify(&rows, &found).findings
}

#[track_caller]
fn all_delivered(world: &World, nats: &Nats) -> Findings {
    let rows = world.committed();
    let count = || nats.count(STREAM);
    grown("as many messages as rows", rows, count);
    // With duplicates, as many messages as rows does not mean all rows.
    none_lost(|| findings(world, &nats.read(STREAM)))
}

#[track_caller]
fn logged(relay: &Relay, event: &str) -> String {
    let line = || {
        let log = relay.log();
        let of = format!("\"event\":\"{event}\"");
        log.lines()
            .find(|line| line.contains(&of))
            .map(str::to_owned)
    };
    eventually(event, ARRIVAL, line, Option::is_some).unwrap_or_default()
}

#[track_caller]
fn parked(world: &World, count: i64) {
    let number = || world.number_parked();
    eventually("events are parked", ARRIVAL, number, |number| {
        *number == count
    });
}

/// Has all parked events tried again.
#[track_caller]
fn retry_all(world: &World) {
    let retry = RelayCommand::new("parked")
        .flag("retry")
        .option("--slot", &world.name)
        .option("--database-url", &world.database_url)
        .flag("--all")
        .flag("--yes");
    retry.succeed();
}

/// P1, P2: an election is waited for, and so is a cluster that is away: nothing is parked.
#[test]
fn killed_leaders_of_a_cluster_lose_and_reorder_nothing() {
    let Some(mut servers) = Nats::cluster() else {
        return;
    };
    servers[0].add_stream(STREAM, &ALL, json!({"num_replicas": 3}));
    let world = world();
    let addresses: Vec<&str> = servers.iter().map(|one| one.address.as_str()).collect();
    let all = format!("{KEY}[nats]\nservers = \"{}\"\n", addresses.join(", "));
    let command = world
        .command("run")
        .option("--sink", "nats")
        .option("--log-format", "json")
        .option("--on-error", "park")
        .config_file(&all);
    let mut relay = ready(&command);
    let writers = world.workload(&Plan {
        aggregates: 100,
        ..Plan::default()
    });
    for _ in 0..2 {
        writers.wait_for(100);
        let led = || servers[0].stream_info(STREAM)["cluster"]["leader"].clone();
        let leader = eventually("a leader", ARRIVAL, led, serde_json::Value::is_string);
        let at = servers.iter().position(|one| leader == one.name.as_str());
        let at = at.expect("one of the three");
        servers[at].kill_hard();
        writers.wait_for(200);
        servers[at].run();
        let current = || {
            let info = servers[0].stream_info(STREAM);
            let replicas = info["cluster"]["replicas"].as_array().cloned();
            let current = |one: &serde_json::Value| one["current"] == true;
            replicas.is_some_and(|all| all.len() == 2 && all.iter().all(current))
        };
        eventually("all have all", ARRIVAL, current, |current| *current);
    }
    servers.iter_mut().for_each(Nats::kill_hard);
    eventually("it notices", ARRIVAL, || relay.is_ready(), |ready| !ready);
    writers.wait_for(100);
    servers.iter_mut().for_each(Nats::launch);
    writers.wait_for(100);
    writers.stop();
    let answers = || servers[0].stream_info(STREAM)["state"].is_object();
    eventually("the cluster answers", ARRIVAL, answers, |answers| *answers);
    let found = all_delivered(&world, &servers[0]);
    let events = world.committed();
    eprintln!(
        "{events} events, 2 leaders and all servers killed, {} duplicates",
        found.duplicates
    );
    assert!(!relay.log().contains(PARKED), "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P1, P2: with a window that is shorter than an outage, the server keeps every copy.
#[test]
fn a_frozen_server_is_noticed_and_loses_nothing() {
    let Some(mut nats) = Nats::start() else {
        return;
    };
    let window = json!({"duplicate_window": 100_000_000});
    nats.add_stream(STREAM, &ALL, window);
    let world = world();
    let command = with(&world, &nats, "ack_timeout = \"1s\"\n");
    let mut relay = ready(&command.option("--on-error", "park"));
    let writers = world.workload(&Plan::default());
    writers.wait_for(100);
    nats.signal("STOP");
    let line = logged(&relay, "bus_disconnected");
    assert!(line.contains("NATS does not answer"), "{line}");
    writers.wait_for(100);
    nats.signal("CONT");
    writers.wait_for(100);
    writers.stop();
    let found = all_delivered(&world, &nats);
    eprintln!("{} duplicates", found.duplicates);
    assert!(!relay.log().contains(PARKED), "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3: of a mere subscriber there is no ack, and no refusal either.
#[test]
fn a_subscriber_without_a_stream_acks_nothing() {
    let Some(nats) = Nats::start() else { return };
    let world = world();
    let _subscriber = nats.subscribe("outbox.event.>");
    let mut relay = ready(&with(&world, &nats, "ack_timeout = \"2s\"\n"));
    world.emit(&world.sql(), "a");
    let line = logged(&relay, "record_refused");
    assert!(
        line.contains("the server answers, and no stream acks"),
        "{line}"
    );
    assert!(!relay.log().contains("bus_disconnected"), "{}", relay.log());
    nats.add_stream(STREAM, &ALL, json!({}));
    all_delivered(&world, &nats);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P2: one record of a key is on its way, and the ack of an earlier attempt is that of none.
#[test]
fn a_record_follows_the_ack_of_the_last_attempt_of_the_one_before() {
    let Some(nats) = Nats::start() else { return };
    let world = world();
    let mut stream = nats.subscribe("outbox.event.>");
    let mut relay = ready(&with(&world, &nats, "ack_timeout = \"300ms\"\n"));
    let sql = world.sql();
    for _ in 0..3 {
        for aggregate in ["a", "b", "c"] {
            world.emit(&sql, aggregate);
        }
    }
    let mut attempts: HashMap<String, Vec<Stored>> = HashMap::new();
    let mut stored: Vec<Stored> = Vec::new();
    while stored.len() < 9 {
        let mut record = stream.message().expect("a record");
        // A late ack is none, and the record comes again.
        let is_stored = |one: &Stored| one.header("id") == record.header("id");
        if stored.iter().any(is_stored) {
            stream.ack(&record);
            continue;
        }
        let of_key = attempts.entry(record.header("key").to_owned()).or_default();
        if let Some(before) = of_key.last() {
            assert_eq!(record.header("id"), before.header("id"), "two of a key");
        }
        match of_key.len() {
            0 => of_key.push(record),
            1 => {
                stream.ack(&of_key[0]);
                of_key.push(record);
            }
            _ => {
                stream.ack(&record);
                of_key.clear();
                record.sequence = stored.len().try_into().expect("a sequence");
                stored.push(record);
            }
        }
    }
    world.wait_confirmed();
    let found = findings(&world, &stored);
    found.assert_sound();
    assert_eq!(found.duplicates, 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3: once the stream takes it, it comes before those behind it of its key.
#[test]
fn a_record_too_large_for_its_stream_is_delivered_once_it_fits() {
    let Some(nats) = Nats::start() else { return };
    nats.add_stream(STREAM, &ALL, json!({"max_msg_size": 2_000}));
    let world = world();
    let command = run(&world, &nats).option("--on-error", "park");
    let mut relay = ready(&command);
    let sql = world.sql();
    let emit = |aggregate: &str, filling: u32| {
        sql.run(&format!(
            "select emit('{}', '{aggregate}', {filling})",
            world.kind(0)
        ));
    };
    emit("a", 20);
    emit("a", 3_000);
    (0..3).for_each(|_| emit("a", 20));
    parked(&world, 4);
    let classes = "select string_agg(class, ' ') from walrelay.parked where class = 'too-large'";
    assert_eq!(sql.text(classes), "too-large");
    let wider = json!({"name": STREAM, "subjects": ALL, "storage": "file", "max_msg_size": -1});
    nats.ask(&format!("STREAM.UPDATE.{STREAM}"), &wider);
    retry_all(&world);
    parked(&world, 0);
    let found = all_delivered(&world, &nats);
    assert_eq!(found.duplicates, 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P1: the window of a stream knows ids alone, and must not swallow another event.
#[test]
fn an_id_used_again_in_another_outbox_is_stored() {
    let Some(nats) = Nats::start() else { return };
    nats.add_stream(STREAM, &["all"], json!({}));
    let world = World::bare(Postgres::shared(), "");
    let sql = world.sql();
    for table in ["one", "two"] {
        sql.run(&format!(
            "create table {table} (id bigint primary key, aggregatetype text default 'x',
             aggregateid text default '1', payload text default 'p')"
        ));
    }
    let slot = format!("'{}'", world.name);
    sql.run(&format!(
        "create publication walrelay_{0} for table one, two with (publish = 'insert')",
        world.name
    ));
    sql.run(&format!(
        "select pg_create_logical_replication_slot({slot}, 'pgoutput')"
    ));
    let outboxes = "[[outbox]]\ntable = \"one\"\n[[outbox]]\ntable = \"two\"\n";
    let servers = format!(
        "[route]\ntopic = \"all\"\n[nats]\nservers = \"{}\"\n",
        nats.address
    );
    let command = world
        .command("run")
        .option("--sink", "nats")
        .option("--log-format", "json")
        .config_file(&format!("{servers}{outboxes}"));
    let mut relay = ready(&command);
    sql.run("begin; insert into one values (1); insert into two values (1); commit");
    sql.run("insert into one values (2)");
    sql.run("insert into two values (2)");
    eventually(
        "all are stored",
        ARRIVAL,
        || nats.count(STREAM),
        |count| *count == 4,
    );
    world.wait_confirmed();
    let ids: Vec<String> = nats
        .read(STREAM)
        .iter()
        .map(|stored| stored.header("Nats-Msg-Id").to_owned())
        .collect();
    assert!(ids.iter().all(|id| id.contains(&world.name)), "{ids:?}");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P1: what a full stream refuses waits.
#[test]
fn a_full_stream_is_waited_for() {
    let Some(nats) = Nats::start() else { return };
    nats.add_stream(STREAM, &ALL, json!({"max_msgs": 5, "discard": "new"}));
    let world = world();
    let mut relay = ready(&run(&world, &nats));
    let sql = world.sql();
    (0..10).for_each(|_| world.emit(&sql, "a"));
    let line = logged(&relay, "record_delayed");
    assert!(line.contains("error 10077"), "{line}");
    let page = || relay.get("/").map(|(_, page)| page).unwrap_or_default();
    eventually("the page names it", ARRIVAL, page, |page| {
        page.contains("error 10077") && page.contains(&world.topic(0))
    });
    assert_eq!(nats.count(STREAM), 5);
    let wider = json!({"name": STREAM, "subjects": ALL, "storage": "file", "max_msgs": -1});
    nats.ask(&format!("STREAM.UPDATE.{STREAM}"), &wider);
    let found = all_delivered(&world, &nats);
    assert_eq!(found.duplicates, 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3: a parked event is refused by the answer to its own record, not by that of another one.
#[test]
fn a_parked_event_is_retried_whatever_another_of_its_subject_is_told() {
    let Some(nats) = Nats::start() else { return };
    let world = world();
    let mut relay = ready(&run(&world, &nats).option("--on-error", "park"));
    let sql = world.sql();
    for (aggregate, filling) in [("a", 3_000), ("b", 20)] {
        let kind = world.kind(0);
        sql.run(&format!("select emit('{kind}', '{aggregate}', {filling})"));
        parked(&world, i64::from(filling == 20) + 1);
    }
    nats.add_stream(STREAM, &ALL, json!({"max_msg_size": 2_000}));
    retry_all(&world);
    parked(&world, 1);
    assert_eq!(nats.count(STREAM), 1);
    let left = || sql.text("select string_agg(class, ' ') from walrelay.parked");
    eventually("the other is told", ARRIVAL, left, |left| {
        left == "too-large"
    });
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3, P12.
#[test]
fn what_a_user_may_not_do_is_named() {
    let users = "authorization { users = [
        {user: admin, password: admin}
        {user: relay, password: canary, permissions: {publish: [\"outbox.event.>\"],
            subscribe: [\"_INBOX.>\"]}}
        {user: other, password: canary, permissions: {publish: [\"other\", \"_INBOX.>\"],
            subscribe: [\"_INBOX.>\"]}}
        {user: deaf, password: canary, permissions: {publish: [\">\"], subscribe: [\"x\"]}}
    ] }";
    let admin = json!({"user": "admin", "pass": "admin"});
    let Some(nats) = Nats::configured(users, &admin) else {
        return;
    };
    let world = world();
    let run = |user: &str, password: &str| {
        with(&world, &nats, &format!("user = \"{user}\"\n"))
            .variable("WALRELAY_NATS_PASSWORD", password)
    };
    world.emit(&world.sql(), "a");

    // It may not ask JetStream either.
    let mut relay = ready(&run("relay", "canary"));
    let line = logged(&relay, "record_refused");
    assert!(line.contains("no stream takes it"), "{line}");
    relay.kill_hard();
    nats.add_stream(STREAM, &ALL, json!({}));

    for (user, password, cause) in [
        ("relay", "wrong-canary", "authorization violation"),
        ("deaf", "canary", "_INBOX"),
    ] {
        let mut relay = run(user, password).start();
        assert_ne!(relay.wait_exit(EXIT), Some(0));
        let log = relay.log();
        let words = last_words(&log);
        assert!(words.0.contains(cause), "{words:?}");
        assert!(!log.contains("canary"), "{log}");
    }

    let mut relay = ready(&run("other", "canary"));
    let line = logged(&relay, "record_refused");
    assert!(line.contains("Permissions Violation for Publish"), "{line}");
    assert_eq!(nats.count(STREAM), 0);
    relay.kill_hard();

    let mut relay = ready(&run("relay", "canary"));
    let found = all_delivered(&world, &nats);
    assert_eq!(found.duplicates, 0);
    assert!(!relay.log().contains("canary"), "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3: a stream that is not the expected one takes nothing.
#[test]
fn the_expected_stream_alone_takes_events() {
    let Some(nats) = Nats::start() else { return };
    nats.add_stream(STREAM, &ALL, json!({}));
    let world = world();
    world.emit(&world.sql(), "a");
    let mut relay = ready(&with(&world, &nats, "stream = \"OTHER\"\n"));
    let line = logged(&relay, "record_refused");
    assert!(
        line.contains("error 10060") && line.contains("nats.stream"),
        "{line}"
    );
    assert_eq!(nats.count(STREAM), 0);
    relay.kill_hard();
    let mut relay = ready(&with(&world, &nats, &format!("stream = \"{STREAM}\"\n")));
    all_delivered(&world, &nats);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// `doctor` asks JetStream which stream takes the topic of each row.
#[test]
fn doctor_names_the_stream_of_each_topic_or_why_there_is_none() {
    let users = "authorization { users = [
        {user: admin, password: admin}
        {user: relay, password: canary, permissions: {publish: [\"outbox.event.>\"],
            subscribe: [\"_INBOX.>\"]}}
    ] }";
    let admin = json!({"user": "admin", "pass": "admin"});
    let Some(nats) = Nats::configured(users, &admin) else {
        return;
    };
    let world = world();
    let doctor = |lines: &str| {
        let servers = format!("[nats]\nservers = \"{}\"\n{lines}", nats.address);
        let doctor = world.command("doctor").option("--sink", "nats");
        Checks::of(&doctor.config_file(&servers))
    };
    let admin = "user = \"admin\"\npassword = \"admin\"\n";
    let other = format!("{admin}stream = \"OTHER\"\n");
    let cause = "nats.stream is OTHER: stream not found";
    doctor(&other).has("topic", "wrong", cause, "nats stream add OTHER");
    nats.add_stream("OTHER", &["other"], json!({}));
    doctor(&other).has("topic", "ok", "the stream exists", "");
    let as_relay = "user = \"relay\"\npassword = \"canary\"\nstream = \"OTHER\"\n";
    let unasked = "may not publish to $JS.API.STREAM.INFO.OTHER";
    doctor(as_relay).has("topic", "ok", unasked, "");
    world.emit(&world.sql(), "a");
    let checks = doctor(admin);
    checks.has("topic", "wrong", "no stream takes it", "nats stream add");
    assert_eq!(Some(checks.code), BUS_REFUSED);
    nats.add_stream(STREAM, &ALL, json!({}));
    doctor(admin).has("topic", "ok", "stream EVENTS has this subject", "");
    let cause = "stream EVENTS takes it, and nats.stream is OTHER";
    doctor(&other).has("topic", "wrong", cause, "correct nats.stream");
    let unasked = "may not publish to $JS.API.STREAM.NAMES";
    let relay = "user = \"relay\"\npassword = \"canary\"\n";
    doctor(relay).has("topic", "ok", unasked, "");
}

/// P12: the server's certificate is verified.
#[test]
fn a_server_that_cannot_prove_itself_gets_nothing() {
    let authority = Authority::new("nats");
    let other = Authority::new("nats-other");
    let identity = authority.certify("nats-server", &LOOPBACK);
    let lines = format!(
        "tls {{ cert_file: {:?}, key_file: {:?} }}\nallow_non_tls: true",
        identity.certificate.display().to_string(),
        identity.key.display().to_string()
    );
    let Some(nats) = Nats::configured(&lines, &json!({})) else {
        return;
    };
    nats.add_stream(STREAM, &ALL, json!({}));
    let world = world();
    world.emit(&world.sql(), "a");
    let run = |authority: &Authority| {
        let root = authority.root().display();
        let servers = format!("tls://{}", nats.address);
        world
            .command("run")
            .option("--sink", "nats")
            .option("--log-format", "json")
            .config_file(&format!(
                "{KEY}[nats]\nservers = \"{servers}\"\nca_file = \"{root}\"\n"
            ))
    };
    let mut relay = run(&other).start();
    assert_eq!(relay.wait_exit(EXIT), BUS_REFUSED);
    let log = relay.log();
    assert!(last_words(&log).0.contains("certificate"), "{log}");
    let mut relay = ready(&run(&authority));
    all_delivered(&world, &nats);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3: a row cannot give orders to the server.
#[test]
fn headers_and_subjects_from_rows_stay_in_their_place() {
    let Some(nats) = Nats::start() else { return };
    nats.add_stream(STREAM, &["good.>", "bad.>"], json!({}));
    let world = World::bare(Postgres::shared(), "");
    let sql = world.sql();
    sql.run(
        "create table hostile (id bigint primary key, aggregatetype text, aggregateid text,
         payload text default 'p', metadata jsonb)",
    );
    let routes = "[outbox]\ntable = \"hostile\"\n[route]\ntopic = \"{aggregatetype}\"\n\
                  headers_from = \"{metadata}\"\n";
    let toml = format!("{routes}[nats]\nservers = \"{}\"\n", nats.address);
    let command = |name: &str| world.command(name).config_file(&toml);
    command("setup").succeed();
    let run = command("run")
        .option("--sink", "nats")
        .option("--on-error", "park")
        .option("--log-format", "json");
    let mut relay = ready(&run);
    sql.run(
        r#"insert into hostile values (1, 'good.a', '1', 'p', '{"a": "x\r\nNats-Rollup: all"}'),
           (2, 'good.a', '2', 'p', '{"Nats-Rollup": "all"}'),
           (3, 'a..b', '3', 'p', '{}'), (4, 'good.>', '4', 'p', '{}'),
           (5, '$JS.API.STREAM.PURGE.EVENTS', '5', 'p', '{}'), (6, '_INBOX.x', '6', 'p', '{}'),
           (7, 'good.a', '7', null, '{"a": "b"}')"#,
    );
    parked(&world, 6);
    eventually(
        "the good one",
        ARRIVAL,
        || nats.count(STREAM),
        |count| *count == 1,
    );
    let stored = nats.read(STREAM);
    assert_eq!((stored[0].header("id"), stored[0].payload.len()), ("7", 0));
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// What `verify` finds with these settings, as JSON, and its exit code.
#[track_caller]
fn verified(world: &World, toml: &str, since: &[&str]) -> (Option<i32>, serde_json::Value) {
    let order = "[outbox]\norder_by = \"(payload->>'v')::bigint\"\ntime = \"at\"\n";
    let command = world
        .command("verify")
        .option("--grace", "0s")
        .flag("--json")
        .config_file(&format!("{order}{toml}"));
    let command = since
        .iter()
        .fold(command, |command, word| command.flag(word));
    let output = command.output();
    let words = String::from_utf8_lossy(&output.stderr);
    let json = serde_json::from_slice(&output.stdout);
    let json = json.unwrap_or_else(|error| panic!("{error}: {words}"));
    (output.status.code(), json)
}

/// P1: `verify` reads streams back.
#[test]
fn verify_compares_rows_with_the_messages_of_a_stream() {
    let Some(nats) = Nats::start() else { return };
    nats.add_stream(STREAM, &ALL, json!({}));
    let world = world();
    let sql = world.sql();
    sql.run("alter table outbox add at timestamptz not null default now()");
    let mut relay = ready(&run(&world, &nats));
    (0..20).for_each(|number| world.emit(&sql, ["a", "b"][number % 2]));
    all_delivered(&world, &nats);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    let address = &nats.address;
    let servers = format!("[sink]\nkind = \"nats\"\n[nats]\nservers = \"{address}\"\n");
    let (code, found) = verified(&world, &servers, &[]);
    assert_eq!(code, Some(0), "{found}");
    let total = &found["total"];
    assert_eq!(
        (&total["rows"], &total["records"]),
        (&20.into(), &20.into())
    );

    // The copy of one, another one behind later ones of its key, and one that is gone.
    let stored = nats.read(STREAM);
    let of = |key: &str, at: usize| {
        let mut of_key = stored.iter().filter(|stored| stored.header("key") == key);
        of_key.nth(at).expect("ten of each key")
    };
    let (late, gone) = (of("a", 4), of("b", 2));
    for deleted in [late, gone] {
        let question = json!({"seq": deleted.sequence});
        nats.ask(&format!("STREAM.MSG.DELETE.{STREAM}"), &question);
    }
    nats.publish_again(late);
    nats.publish_again(of("a", 0));
    let (code, found) = verified(&world, &servers, &[]);
    assert_eq!(code, Some(1), "{found}");
    let total = &found["total"];
    let counts = ["missing", "duplicated", "out_of_order"].map(|name| &total[name]);
    assert_eq!(counts, [&json!(1), &json!(1), &json!(1)], "{found}");
    assert_eq!(found["missing"][0]["id"], gone.header("id"), "{found}");

    // Messages that are older than an hour before the range are not read.
    sql.run("update outbox set at = now() + interval '2 hours' where payload->>'v' = '10'");
    let since = [
        "--since",
        &sql.text("select (now() + interval '90 minutes')::text"),
    ];
    let (code, found) = verified(&world, &servers, &since);
    assert_eq!(
        (code, &found["total"]["records"]),
        (Some(1), &0.into()),
        "{found}"
    );

    nats.ask(&format!("STREAM.DELETE.{STREAM}"), &json!({}));
    let (code, found) = verified(&world, &servers, &[]);
    assert_eq!((code, &found["total"]["missing"]), (Some(1), &20.into()));
    assert!(
        found["notes"].to_string().contains("does not exist"),
        "{found}"
    );
}
