//! P3, P5, P9: what a server refuses, and what it asks for.

use std::io::Read as _;
use std::net::TcpListener;
use std::time::Duration;

use lapin::types::AMQPValue;

use super::client::Queue;
use super::{EXCHANGE, KEY, Lab, QUEUE, logged, ready};
use crate::support::certificates::{Authority, LOOPBACK};
use crate::support::relay::{EXIT, RelayCommand, last_words};
use crate::support::servers::rabbitmq::MESSAGE_BYTES_MAX;
use crate::support::servers::{Postgres, Rabbitmq};
use crate::support::wait::{eventually, throughout};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

const BUS_REFUSED: Option<i32> = Some(31);
const COPIES: &str = "copies";
const OTHERS: &str = "others";

#[track_caller]
fn parked(world: &World, count: i64) {
    let number = || world.number_parked();
    eventually("events are parked", ARRIVAL, number, |number| {
        *number == count
    });
}

/// P3: the server acks what no queue takes, and returns it before.
#[test]
fn each_unroutable_event_among_others_is_parked_and_none_is_acked() {
    let Some(rabbitmq) = Rabbitmq::shared() else {
        return;
    };
    let mut lab = Lab::bare(rabbitmq, Queue::Quorum);
    lab.client.declare_exchange(EXCHANGE, false);
    lab.client.declare_queue(QUEUE, Queue::Quorum);
    for kind in [1, 2] {
        lab.client.bind(QUEUE, EXCHANGE, &lab.world.topic(kind));
    }
    let command = lab.run(rabbitmq).option("--on-error", "park");
    let sql = lab.world.sql();
    // Each tenth is unroutable; all have keys of their own, so that all are on their way together.
    let [unroutable, one, two] = [0, 1, 2].map(|kind| lab.world.kind(kind));
    sql.run(&format!(
        "select emit(case n % 10 when 0 then '{unroutable}' when 1 then '{one}' else '{two}' end,
            'k' || n, 20) from generate_series(1, 600) n"
    ));
    let mut relay = ready(&command);
    parked(&lab.world, 60);
    let take = || lab.take();
    eventually("the others arrive", ARRIVAL, take, |count| *count >= 540);
    let unroutable = lab.world.topic(0);
    let stored = &lab.client.stored;
    assert!(stored.iter().all(|one| one.routing_key != unroutable));
    assert_eq!(stored.len(), 540, "no duplicates");
    let classes = "select string_agg(distinct error, ' ') from walrelay.parked";
    let errors = sql.text(classes);
    assert!(errors.contains("312 NO_ROUTE"), "{errors}");
    assert!(!relay.log().contains("payload"), "{}", relay.log());

    // Bound, they are delivered.
    lab.client.bind(QUEUE, EXCHANGE, &unroutable);
    RelayCommand::new("parked")
        .flag("retry")
        .option("--slot", &lab.world.name)
        .option("--database-url", &lab.world.database_url)
        .flag("--all")
        .flag("--yes")
        .succeed();
    parked(&lab.world, 0);
    let found = lab.all_delivered();
    assert_eq!(found.duplicates, 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3.
#[test]
fn an_unroutable_event_stops_the_relay_or_is_skipped() {
    let Some(rabbitmq) = Rabbitmq::shared() else {
        return;
    };
    let mut lab = Lab::bare(rabbitmq, Queue::Classic);
    lab.client.declare_exchange(EXCHANGE, false);
    lab.client.declare_queue(QUEUE, Queue::Classic);
    lab.client.bind(QUEUE, EXCHANGE, &lab.world.topic(1));
    let sql = lab.world.sql();
    lab.world.emit_to(&sql, 0, "a");
    lab.world.emit_to(&sql, 1, "b");
    let lines = "[delivery]\nretry_attempts = 2\nretry_base = \"100ms\"\n";
    let lines = format!("exchange = \"{EXCHANGE}\"\n{lines}");
    let mut relay = lab.with(rabbitmq, &lines).start();
    assert_eq!(relay.wait_exit(EXIT), BUS_REFUSED, "{}", relay.log());
    let log = relay.log();
    assert!(last_words(&log).0.contains("NO_ROUTE"), "{log}");
    let skips = lab.with(rabbitmq, &lines).option("--on-error", "skip");
    let mut relay = ready(&skips);
    lab.world.wait_confirmed();
    let take = || lab.take();
    eventually("the other one", ARRIVAL, take, |count| *count >= 1);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3.
#[test]
fn a_missing_exchange_is_waited_for_and_an_internal_one_takes_nothing() {
    let Some(rabbitmq) = Rabbitmq::shared() else {
        return;
    };
    let mut lab = Lab::bare(rabbitmq, Queue::Quorum);
    let run = lab.run(rabbitmq);
    let sql = lab.world.sql();
    let doctor = || {
        let lines = format!("exchange = \"{EXCHANGE}\"\n");
        let servers = &rabbitmq.address;
        let table = format!(
            "[sink]\nkind = \"rabbitmq\"\n[rabbitmq]\nservers = \"{servers}\"\nvhost = \"{}\"\n\
             {lines}",
            lab.world.name
        );
        let output = lab.world.command("doctor").config_file(&table).output();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = doctor();
    assert!(said.contains("RabbitMQ answers"), "{said}");
    assert!(said.contains("no exchange 'events'"), "{said}");
    let mut relay = ready(&run);
    (0..50).for_each(|key| lab.world.emit(&sql, &format!("k{key}")));
    let line = logged(&relay, "record_refused");
    assert!(line.contains("no exchange 'events'"), "{line}");
    lab.client.declare_queue(QUEUE, Queue::Quorum);
    lab.client.declare_exchange("inside", true);
    lab.client.declare_exchange(EXCHANGE, false);
    lab.client.bind(QUEUE, EXCHANGE, "#");
    let found = lab.all_delivered();
    assert_eq!(found.duplicates, 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    let lines = "exchange = \"inside\"\n";
    let mut relay = ready(&lab.with(rabbitmq, lines).option("--on-error", "park"));
    lab.world.emit(&sql, "a");
    parked(&lab.world, 1);
    let error = sql.text("select error from walrelay.parked");
    assert!(error.contains("internal exchange"), "{error}");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3: a row cannot route copies elsewhere, nor end the connection of others.
#[test]
fn headers_from_rows_stay_in_their_place() {
    let Some(rabbitmq) = Rabbitmq::shared() else {
        return;
    };
    let world = World::bare(Postgres::shared(), "");
    rabbitmq.add_vhost(&world.name);
    let mut client = super::client::Client::new(&rabbitmq.address, &world.name);
    client.declare_queue("good", Queue::Quorum);
    client.declare_queue("other", Queue::Quorum);
    let sql = world.sql();
    sql.run(
        "create table hostile (id text primary key, aggregatetype text, aggregateid text,
         payload text default 'p', metadata jsonb)",
    );
    let routes = "[outbox]\ntable = \"hostile\"\n[route]\ntopic = \"{aggregatetype}\"\n\
                  headers_from = \"{metadata}\"\n";
    let toml = format!(
        "{routes}[rabbitmq]\nservers = \"{}\"\nvhost = \"{}\"\n",
        rabbitmq.address, world.name
    );
    let command = |name: &str| world.command(name).config_file(&toml);
    command("setup").succeed();
    let run = command("run")
        .option("--sink", "rabbitmq")
        .option("--on-error", "park")
        .option("--log-format", "json");
    let mut relay = ready(&run);
    sql.run(&format!(
        r#"insert into hostile values ('1', 'good', '1', 'p', '{{"BCC": ["other"]}}'),
           ('2', 'good', '2', 'p', '{{"CC": "other"}}'), ('3', 'good', '3', 'p', '{{"cc": "x"}}'),
           ('4', 'amq.rabbitmq.reply-to.x', '4', 'p', '{{}}'),
           (repeat('5', 300), 'good', '5', 'p', '{{}}'),
           ('6', 'good', '6', 'p', jsonb_build_object(repeat('n', 300), 'v')),
           ('7', 'good', '7', 'p', jsonb_build_object('long', repeat('x', 200000))),
           ('8', 'good', '8', repeat('x', {}), '{{}}'),
           ('9', 'good', repeat('9', 300), null, '{{"a": "b", "type": "T", "none": null}}'),
           ('10', 'good', '10', 'p', jsonb_build_object('long', repeat('x', 100000)))"#,
        MESSAGE_BYTES_MAX + 1
    ));
    parked(&world, 8);
    let take = || client.read("good", Queue::Quorum);
    eventually("the good ones", ARRIVAL, take, |count| *count == 2);
    let nine = client.stored.iter().find(|one| one.header("id") == "9");
    let nine = nine.expect("the ninth");
    assert_eq!(nine.payload.len(), 0);
    let kind = nine.properties.kind().as_ref().map(ToString::to_string);
    assert_eq!(kind.as_deref(), Some("T"));
    assert_eq!(
        client.read("other", Queue::Quorum),
        2,
        "nothing was routed there"
    );
    let large = "select string_agg(class, ' ' order by id) from walrelay.parked where class = \
                 'too-large'";
    assert_eq!(sql.text(large), "too-large too-large");
    assert!(!relay.log().contains("bus_disconnected"), "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// Two kinds of events have a queue each. That of the first kind takes five messages; a second queue
/// without a limit takes the same.
fn nearly_full(rabbitmq: &Rabbitmq, kind: Queue) -> Lab {
    let mut lab = Lab::bare(rabbitmq, kind);
    lab.client.declare_exchange(EXCHANGE, false);
    let full = [
        ("x-max-length", AMQPValue::LongInt(5)),
        ("x-overflow", AMQPValue::LongString("reject-publish".into())),
    ];
    lab.client.declare_with(QUEUE, kind, &full);
    lab.client.declare_queue(COPIES, Queue::Classic);
    lab.client.declare_queue(OTHERS, Queue::Classic);
    for (queue, kind) in [(QUEUE, 0), (COPIES, 0), (OTHERS, 1)] {
        lab.client.bind(queue, EXCHANGE, &lab.world.topic(kind));
    }
    lab
}

/// P1, P3, P5: a server says with a nack that a queue has no room, which is no fault of an event.
#[test]
fn a_full_queue_is_waited_for_whatever_becomes_of_refused_events() {
    let Some(rabbitmq) = Rabbitmq::shared() else {
        return;
    };
    let lines = format!("exchange = \"{EXCHANGE}\"\n[delivery]\nretry_attempts = 0\n");
    let cases = [(Queue::Classic, "park"), (Queue::Quorum, "skip")];
    // Both wait at the same time.
    let mut running = cases.map(|(kind, on_error)| {
        let lab = nearly_full(rabbitmq, kind);
        let relay = ready(&lab.with(rabbitmq, &lines).option("--on-error", on_error));
        let sql = lab.world.sql();
        (0..20).for_each(|_| lab.world.emit(&sql, "a"));
        (lab, relay)
    });
    for (lab, relay) in &mut running {
        let line = logged(relay, "record_delayed");
        assert!(line.contains("a queue is full"), "{line}");
        // The server takes others, so that it is not away.
        lab.world.emit_to(&lab.world.sql(), 1, "b");
        let others = || lab.client.read(OTHERS, Queue::Classic);
        eventually("others arrive", ARRIVAL, others, |count| *count == 1);
        // The other queue gets a copy with each attempt.
        let attempts = || lab.client.waiting(COPIES) - lab.client.waiting(QUEUE);
        eventually("it is tried five times", ARRIVAL, attempts, |attempts| {
            *attempts >= 5
        });
    }
    // Each queue has room at once.
    for (lab, _) in &mut running {
        lab.take();
    }
    for (mut lab, mut relay) in running {
        let found = lab.all_delivered();
        assert_eq!(found.duplicates, 0);
        let log = relay.log();
        let left = ["event_parked", "event_given_up", "record_refused"];
        let has = |code: &&str| log.contains(&format!("\"event\":\"{code}\""));
        assert!(!left.iter().any(has), "{log}");
        assert_eq!(relay.terminate(EXIT), Some(0), "{log}");
    }
}

/// P1, P2: a queue that answers nothing holds up its own records, and a server that answers is
/// kept.
#[test]
fn a_queue_without_answers_is_waited_for() {
    let Some(rabbitmq) = Rabbitmq::shared() else {
        return;
    };
    let mut lab = Lab::new(rabbitmq, Queue::Classic);
    let queue = |what: &str| {
        let name = &lab.world.name;
        let process = format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"{name}\">>, queue, \
             <<\"{QUEUE}\">>)), sys:{what}(amqqueue:get_pid(Q))."
        );
        rabbitmq.ctl(&["eval", &process]);
    };
    queue("suspend");
    let lines = format!("exchange = \"{EXCHANGE}\"\nack_timeout = \"300ms\"\n");
    let mut relay = ready(&lab.with(rabbitmq, &lines));
    let sql = lab.world.sql();
    (0..10).for_each(|number| lab.world.emit(&sql, ["a", "b"][number % 2]));
    let line = logged(&relay, "record_delayed");
    assert!(line.contains("confirms it not in time"), "{line}");
    queue("resume");
    let found = lab.all_delivered();
    assert!(found.duplicates > 0, "the copies of both firsts");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P5: low memory is no fault of the relay, and makes no copy of an event.
#[test]
fn an_alarm_is_waited_for_and_seen() {
    // Fewer channels than the relay may use.
    let Some(rabbitmq) = Rabbitmq::configured("channel_max = 8") else {
        return;
    };
    let mut lab = Lab::new(&rabbitmq, Queue::Quorum);
    let lines = format!("exchange = \"{EXCHANGE}\"\nack_timeout = \"5s\"\nheartbeat = \"5s\"\n");
    let run = lab.with(&rabbitmq, &lines).option("--http", "127.0.0.1:0");
    // Set before the start, and again while it runs.
    rabbitmq.ctl(&["set_vm_memory_high_watermark", "0"]);
    let mut relay = ready(&run);
    let writers = lab.world.workload(&Plan {
        pause: Duration::from_millis(100),
        ..Plan::default()
    });
    let line = logged(&relay, "bus_blocked");
    assert!(line.contains("low on memory"), "{line}");
    // Three times the heartbeat and the wait for an ack.
    let period = Duration::from_secs(15);
    throughout("no error", period, || {
        !relay.log().contains("bus_disconnected") && !relay.log().contains("record_delayed")
    });
    let page = relay.get("/").map(|(_, body)| body).unwrap_or_default();
    assert!(
        page.contains("takes no records for now: low on memory"),
        "{page}"
    );
    let status = relay.asked_by(lab.world.command("status"));
    let text = status.output().stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("bus         blocked: it asks"), "{text}");
    let json = status.clone().flag("--json").output().stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(json["bus"], "blocked", "{json}");
    assert_eq!(relay.metric("walrelay_bus_blocked"), Some(1.0));
    let connected = "walrelay_connection_state{side=\"bus\"}";
    assert_eq!(relay.metric(connected), Some(1.0));
    rabbitmq.ctl(&["set_vm_memory_high_watermark", "0.8"]);
    logged(&relay, "bus_unblocked");
    let blocked = || relay.metric("walrelay_bus_blocked");
    eventually("it is not blocked", ARRIVAL, blocked, |blocked| {
        *blocked == Some(0.0)
    });
    writers.wait_for(50);
    rabbitmq.ctl(&["set_vm_memory_high_watermark", "0"]);
    writers.wait_for(50);
    rabbitmq.ctl(&["set_vm_memory_high_watermark", "0.8"]);
    writers.wait_for(50);
    writers.stop();
    let found = lab.all_delivered();
    let log = relay.log();
    assert!(
        found.duplicates == 0 || log.contains("record_delayed"),
        "{log}"
    );
    assert!(!relay.log().contains("bus_disconnected"), "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P9: a server that accepts and says nothing is passed over.
#[test]
fn servers_are_tried_in_turn_and_a_silent_one_is_named() {
    let Some(rabbitmq) = Rabbitmq::shared() else {
        return;
    };
    let mut lab = Lab::new(rabbitmq, Queue::Quorum);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    // Nobody listens on port 1.
    let run = |servers: &str| {
        let table = format!("[rabbitmq]\nservers = \"{servers}\"\n");
        let more = format!(
            "vhost = \"{}\"\nexchange = \"{EXCHANGE}\"\n",
            lab.world.name
        );
        lab.world
            .command("run")
            .option("--sink", "rabbitmq")
            .option("--log-format", "json")
            .config_file(&format!("{KEY}{table}{more}"))
    };
    let mut relay = run(&address.to_string()).start();
    let line = logged(&relay, "bus_disconnected");
    assert!(line.contains("no login within 5 s"), "{line}");
    // The connection was given up.
    let (mut accepted, _) = silent.accept().expect("a connection");
    let mut read = Vec::new();
    drop(accepted.read_to_end(&mut read));
    assert_eq!(read.get(..4), Some(&b"AMQP"[..]));
    relay.kill_hard();
    let all = format!("127.0.0.1:1, {address}, {}", rabbitmq.address);
    let mut relay = ready(&run(&all));
    lab.world.emit(&lab.world.sql(), "a");
    lab.all_delivered();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3, P12.
#[test]
fn what_a_user_may_not_do_is_named() {
    let Some(rabbitmq) = Rabbitmq::shared() else {
        return;
    };
    let mut lab = Lab::new(rabbitmq, Queue::Quorum);
    let vhost = lab.world.name.clone();
    let [relay_user, other, none] =
        ["relay", "other", "none"].map(|name| format!("{vhost}.{name}"));
    for (user, write) in [(&relay_user, EXCHANGE), (&other, "elsewhere")] {
        rabbitmq.ctl(&["add_user", user, "canary"]);
        rabbitmq.ctl(&["set_permissions", "-p", &vhost, user, "", write, ""]);
    }
    rabbitmq.ctl(&["add_user", &none, "canary"]);
    let run = |user: &str, password: &str, vhost: &str| {
        let table = format!("[rabbitmq]\nservers = \"{}\"\n", rabbitmq.address);
        let more = format!("vhost = \"{vhost}\"\nexchange = \"{EXCHANGE}\"\nuser = \"{user}\"\n");
        lab.world
            .command("run")
            .option("--sink", "rabbitmq")
            .option("--log-format", "json")
            .config_file(&format!("{KEY}{table}{more}"))
            .variable("WALRELAY_RABBITMQ_PASSWORD", password)
    };
    lab.world.emit(&lab.world.sql(), "a");
    for (user, password, vhost, cause) in [
        (
            &relay_user,
            "wrong-canary",
            vhost.as_str(),
            "ACCESS_REFUSED",
        ),
        (&relay_user, "canary", "nowhere", "NOT_ALLOWED"),
        (&none, "canary", vhost.as_str(), "NOT_ALLOWED"),
    ] {
        let mut relay = run(user, password, vhost).start();
        assert_eq!(relay.wait_exit(EXIT), BUS_REFUSED, "{}", relay.log());
        let log = relay.log();
        assert!(last_words(&log).0.contains(cause), "{log}");
        assert!(!log.contains("canary"), "{log}");
    }
    let mut relay = ready(&run(&other, "canary", &vhost));
    let line = logged(&relay, "record_refused");
    assert!(line.contains("access to exchange"), "{line}");
    relay.kill_hard();
    let mut relay = ready(&run(&relay_user, "canary", &vhost));
    let found = lab.all_delivered();
    assert_eq!(found.duplicates, 0);
    assert!(!relay.log().contains("canary"), "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P12: the server's certificate is verified.
#[test]
fn a_server_that_cannot_prove_itself_gets_nothing() {
    let authority = Authority::new("rabbitmq");
    let other = Authority::new("rabbitmq-other");
    let identity = authority.certify("rabbitmq-server", &LOOPBACK);
    let lines = format!(
        "listeners.ssl.1 = TLS\nssl_options.cacertfile = {}\nssl_options.certfile = \
         {}\nssl_options.keyfile = {}\nssl_options.verify = verify_none\n",
        authority.root().display(),
        identity.certificate.display(),
        identity.key.display()
    );
    let Some(rabbitmq) = Rabbitmq::configured(&lines) else {
        return;
    };
    let mut lab = Lab::new(&rabbitmq, Queue::Quorum);
    lab.world.emit(&lab.world.sql(), "a");
    let run = |authority: &Authority, server: &str| {
        let root = authority.root().display();
        let table = format!("[rabbitmq]\nservers = \"amqps://{server}\"\nca_file = \"{root}\"\n");
        let more = format!(
            "vhost = \"{}\"\nexchange = \"{EXCHANGE}\"\n",
            lab.world.name
        );
        lab.world
            .command("run")
            .option("--sink", "rabbitmq")
            .option("--log-format", "json")
            .config_file(&format!("{KEY}{table}{more}"))
    };
    for (authority, server, cause) in [
        (&other, &rabbitmq.tls_address, "certificate"),
        (&authority, &rabbitmq.address, "TLS"),
    ] {
        let mut relay = run(authority, server).start();
        assert_eq!(relay.wait_exit(EXIT), BUS_REFUSED, "{}", relay.log());
        let log = relay.log();
        assert!(last_words(&log).0.contains(cause), "{log}");
    }
    let mut relay = ready(&run(&authority, &rabbitmq.tls_address));
    lab.all_delivered();
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
