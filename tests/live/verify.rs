//! docs/how-to/verify.md: `walrelay verify`: what it finds, and what it takes for sound.

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::Value;

use super::remedies::statements;
use crate::support::relay::{RelayCommand, last_words};
use crate::support::servers::{Kafka, Postgres, free_port};
use crate::support::topic;
use crate::support::wait::{LIMIT, eventually};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

/// The workload's order of commits.
const BY_VERSION: &str = "[outbox]\norder_by = \"(payload->>'v')::bigint\"\n";
/// Nothing is on its way.
const AT_ONCE: &str = "0s";

fn verify(world: &World) -> RelayCommand {
    world.command("verify").option("--brokers", &world.brokers)
}

/// Its exit code and the JSON it prints.
#[track_caller]
fn found(verify: &RelayCommand) -> (i32, Value) {
    let output = verify.clone().flag("--json").output();
    let words = String::from_utf8_lossy(&output.stderr);
    let json =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}:\n{words}"));
    (output.status.code().unwrap(), json)
}

/// Missing, duplicated, out of order, unknown, outside, replayed.
fn counts(json: &Value) -> [u64; 6] {
    let count = |name: &str| {
        json["total"][name]
            .as_u64()
            .unwrap_or_else(|| panic!("no {name} in {json}"))
    };
    [
        "missing",
        "duplicated",
        "out_of_order",
        "unknown",
        "outside",
        "replayed",
    ]
    .map(count)
}

/// A world without a relay, whose outbox is numbered, and so many rows of one aggregate.
fn numbered(rows: usize) -> (World, Vec<String>) {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let sql = world.sql();
    sql.run("alter table outbox add seq bigint generated always as identity");
    (0..rows).for_each(|_| world.emit(&sql, "a"));
    let ids = sql
        .rows("select id::text from outbox order by seq", &[])
        .iter()
        .map(|row| row.get(0))
        .collect();
    (world, ids)
}

/// Publishes these ids under one key, as a relay would that has lost its mind. `~` in front of one
/// is a replay.
fn publish(world: &World, ids: &[&str]) {
    let mut client = ClientConfig::new();
    client
        .set("bootstrap.servers", &world.brokers)
        .set("partitioner", "murmur2_random")
        .set("acks", "all");
    let producer: BaseProducer = client.create().unwrap();
    let topic = world.topic(0);
    let before = topic::count(&world.brokers, &topic);
    for id in ids {
        let mut headers = OwnedHeaders::new();
        if id.starts_with('~') {
            headers = headers.insert(Header {
                key: "walrelay-replay",
                value: Some("7"),
            });
        }
        headers = headers.insert(Header {
            key: "id",
            value: Some(id.trim_start_matches('~')),
        });
        producer
            .send(
                BaseRecord::to(&topic)
                    .key("a")
                    .payload("canary")
                    .headers(headers),
            )
            .unwrap();
        producer.flush(LIMIT).unwrap();
    }
    let after = before + i64::try_from(ids.len()).unwrap();
    eventually(
        "they are there",
        ARRIVAL,
        || topic::count(&world.brokers, &topic),
        |count| *count == after,
    );
}

#[test]
fn verify_finds_no_defect_under_load_and_afterwards() {
    let world = World::new();
    let _relay = world.relay();
    let writers = world.workload(&Plan::default());
    writers.wait_for(300);
    let verify = verify(&world)
        .config_file(BY_VERSION)
        .option("--grace", "30s");
    let (code, json) = found(&verify);
    assert_eq!((code, &json["sound"]), (0, &Value::Bool(true)), "{json}");
    assert!(json["total"]["rows"].as_u64().unwrap() >= 300, "{json}");
    let [missing, _, out_of_order, unknown, ..] = counts(&json);
    assert_eq!(
        [missing, out_of_order, unknown],
        [0; 3],
        "younger rows are no strangers: {json}"
    );

    writers.stop();
    world.assert_all_delivered();
    let (code, json) = found(&verify.clone().flag("--no-duplicates"));
    assert_eq!((code, counts(&json)), (0, [0; 6]), "{json}");
    assert_eq!(json["total"]["rows"], json["total"]["records"]);
    assert!(
        json["flows"]
            .as_array()
            .unwrap()
            .iter()
            .all(|flow| flow["order_checked"] == true),
        "{json}"
    );
    let text = verify.succeed();
    assert!(
        text.starts_with("outbox ") && text.contains("total ") && !text.contains("xxxx"),
        "{text}"
    );
}

#[test]
fn verify_reports_a_missing_record_until_a_relay_publishes_it() {
    let world = World::new();
    let sql = world.sql();
    world.emit(&sql, "a");
    let at_once = verify(&world).option("--grace", AT_ONCE);
    let (code, json) = found(&at_once);
    assert_eq!((code, counts(&json)), (1, [1, 0, 0, 0, 0, 0]), "{json}");
    let id = sql.text("select id from outbox");
    assert_eq!(
        (&json["missing"][0]["id"], &json["missing"][0]["key"]),
        (&Value::from(id.clone()), &Value::from("a"))
    );
    assert!(
        json["notes"].to_string().contains("does not exist"),
        "{json}"
    );

    let output = at_once.output();
    let text = String::from_utf8_lossy(&output.stdout);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains(&id) && text.contains("key \"a\"") && !text.contains("xxxx"),
        "{text}"
    );
    let (error, fix) = last_words(&words);
    assert!(
        error.contains("differ: 1 missing") && fix.starts_with("fix: "),
        "{words}"
    );

    // Within the grace it is looked for again.
    let patient = verify(&world).option("--grace", "40s");
    let verifying = std::thread::spawn(move || found(&patient));
    let _relay = world.relay();
    let (code, json) = verifying.join().unwrap();
    assert_eq!((code, counts(&json)), (0, [0; 6]), "{json}");
}

#[test]
fn verify_distinguishes_duplicates_reordered_unknown_and_replayed_records() {
    let (world, ids) = numbered(4);
    let [one, two, three, four] = ids.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        panic!("{ids:?}")
    };
    let verify = verify(&world).option("--grace", AT_ONCE);
    publish(&world, &[one, two, three, four]);
    assert_eq!(found(&verify).0, 0);

    publish(
        &world,
        &[
            one,
            &format!("~{two}"),
            "00000000-0000-0000-0000-000000000000",
            "no uuid",
            "7\u{1}",
        ],
    );
    let (code, json) = found(&verify);
    assert_eq!((code, counts(&json)), (0, [0, 1, 0, 3, 0, 1]), "{json}");
    assert_eq!(
        (
            &json["duplicated"][0]["id"],
            &json["duplicated"][0]["offset"]
        ),
        (&one.into(), &4.into())
    );
    let strict = verify.clone().flag("--no-duplicates").output();
    assert_eq!(strict.status.code(), Some(1));
    assert!(!String::from_utf8_lossy(&strict.stdout).contains("canary"));

    // Two more rows, the later of which comes first.
    let sql = world.sql();
    (0..2).for_each(|_| world.emit(&sql, "a"));
    let id = |place: usize| {
        sql.text(&format!(
            "select id from outbox order by seq offset {place} limit 1"
        ))
    };
    publish(&world, &[&id(5), &id(4)]);
    let (code, json) = found(&verify);
    assert_eq!((code, counts(&json)), (1, [0, 1, 1, 3, 0, 1]), "{json}");
    let [late] = json["out_of_order"].as_array().unwrap().as_slice() else {
        panic!("{json}")
    };
    assert_eq!(
        (&late["id"], &late["offset"], &late["behind_offset"]),
        (&id(4).into(), &10.into(), &9.into())
    );
    // By the number of the row it is backwards; where nothing says so, it is not.
    sql.run("alter table outbox drop seq");
    let (code, json) = found(&verify);
    assert_eq!((code, counts(&json)[2]), (0, 0), "{json}");
    assert!(
        json["flows"][0]["order_checked"] == false
            && json["notes"].to_string().contains("is not checked"),
        "{json}"
    );
}

#[test]
fn verify_ignores_records_outside_its_range() {
    let (world, ids) = numbered(6);
    let sql = world.sql();
    let (code, words) = refused(&verify(&world).option("--since", "1h"));
    assert!(
        code == 2 && words.contains("no column of public.outbox is known"),
        "{words}"
    );

    sql.run(
        "alter table outbox add created_at timestamptz; update outbox set created_at = \
             '2026-03-01 10:00Z'::timestamptz + seq * interval '1 hour'",
    );
    let published: Vec<&str> = ids
        .iter()
        .map(String::as_str)
        .filter(|id| *id != ids[0] && *id != ids[5])
        .collect();
    publish(&world, &published);
    let ranged = |since: &str, until: &str| {
        found(
            &verify(&world)
                .option("--grace", AT_ONCE)
                .option("--since", since)
                .option("--until", until),
        )
    };
    // Rows are of 11:00 to 16:00; the first and the last have no record.
    let (code, json) = ranged("2026-03-01 12:00", "2026-03-01 16:00");
    assert_eq!(
        (code, counts(&json), &json["total"]["rows"]),
        (0, [0; 6], &4.into()),
        "{json}"
    );
    let (code, json) = ranged("2026-03-01 14:00+01:00", "2026-03-01 15:00");
    assert_eq!(
        (code, counts(&json), &json["total"]["rows"]),
        (0, [0, 0, 0, 0, 2, 0], &2.into()),
        "{json}"
    );
    let (code, json) = ranged("2026-03-01", "2026-03-01 12:00");
    assert_eq!(
        (code, counts(&json), &json["total"]["rows"]),
        (1, [1, 0, 0, 0, 4, 0], &1.into()),
        "{json}"
    );
    let (code, json) = ranged("2026-04-01", "2026-04-02");
    let note = "no topic was read: no row has one";
    assert!(code == 0 && json.to_string().contains(note), "{json}");
    // Records that are older than the range by more than an hour are not even read.
    sql.run("update outbox set created_at = now() + interval '3 hours' where seq = 6");
    let since = sql.text("select now() + interval '2 hours'");
    let (code, json) = found(
        &verify(&world)
            .option("--grace", AT_ONCE)
            .option("--since", &since),
    );
    assert_eq!(
        (code, counts(&json), &json["total"]["rows"]),
        (1, [1, 0, 0, 0, 0, 0], &1.into()),
        "{json}"
    );
    sql.run("update outbox set created_at = now() - interval '1 hour' where seq in (1, 6)");
    let (code, json) = found(
        &verify(&world)
            .option("--grace", AT_ONCE)
            .option("--since", "2h")
            .option("--until", "0s"),
    );
    assert_eq!(
        (code, counts(&json), &json["total"]["rows"]),
        (1, [2, 0, 0, 0, 4, 0], &2.into()),
        "{json}"
    );

    let (code, json) = ranged("4000-01-01 BC", "2026-03-01 13:00");
    assert_eq!((code, &json["total"]["rows"]), (0, &1.into()), "{json}");

    let role = format!("{}_r", world.name);
    sql.run(&format!("create role {role} login"));
    let of_role = verify(&world).option(
        "--database-url",
        &Postgres::shared().url_as(&role, &world.name),
    );
    let (code, words) = refused(&of_role);
    let grant = format!("grant select on public.outbox to \"{role}\"");
    assert!(code == 11 && words.contains(&grant), "{words}");
    sql.run(statements(last_words(&words).1));
    let (code, json) = found(&of_role.option("--grace", AT_ONCE));
    assert!(code == 1 && json["total"]["rows"] == 6, "{json}");
    sql.run(&format!("drop owned by {role}; drop role {role}"));

    let named = "[outbox]\ntime = \"seq\"\n";
    let (code, words) = refused(&verify(&world).config_file(named).option("--since", "1h"));
    assert!(
        code == 2 && words.contains("outbox.time: column seq"),
        "{words}"
    );
    let (code, words) = refused(&verify(&world).option("--until", "tomorrow or so"));
    assert!(code == 2 && words.contains("--until"), "{words}");
}

#[track_caller]
fn refused(verify: &RelayCommand) -> (i32, String) {
    let output = verify.output();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let (_, fix) = last_words(&words);
    assert!(fix.starts_with("fix: "), "{words}");
    (output.status.code().unwrap(), words)
}

#[test]
fn verify_reads_only_committed_records() {
    let (world, _) = numbered(2);
    let sql = world.sql();
    world.emit_to(&sql, 1, "a");
    let mut client = ClientConfig::new();
    client
        .set("bootstrap.servers", &world.brokers)
        .set("transactional.id", &world.name);
    let producer: BaseProducer = client.create().unwrap();
    producer.init_transactions(LIMIT).unwrap();
    let ids = sql.rows(
        "select id::text, aggregatetype from outbox order by seq",
        &[],
    );
    for (is_committed, row) in [true, false, true].into_iter().zip(&ids) {
        let id: String = row.get(0);
        let kind: String = row.get(1);
        let headers = OwnedHeaders::new().insert(Header {
            key: "id",
            value: Some(&id),
        });
        let topic = format!("outbox.event.{kind}");
        producer.begin_transaction().unwrap();
        producer
            .send(BaseRecord::to(&topic).key("a").payload("").headers(headers))
            .unwrap();
        producer.flush(LIMIT).unwrap();
        if is_committed {
            producer.commit_transaction(LIMIT).unwrap();
        } else {
            producer.abort_transaction(LIMIT).unwrap();
        }
    }
    let (code, json) = found(&verify(&world).option("--grace", "2s"));
    assert_eq!(
        (code, counts(&json), &json["total"]["records"]),
        (1, [1, 0, 0, 0, 0, 0], &2.into()),
        "{json}"
    );
    assert_eq!(json["missing"][0]["id"], ids[1].get::<_, String>(0));
}

#[test]
fn verify_refuses_incomparable_inputs_with_a_specific_code() {
    let (world, _) = numbered(1);
    let verify = || verify(&world).option("--grace", AT_ONCE);
    let nowhere = format!("127.0.0.1:{}", free_port());
    for (command, code, said) in [
        (
            verify().config_file("[route]\nid_header = \"\"\n"),
            2,
            "route.id_header",
        ),
        (
            verify().config_file("[outbox]\nmessage_prefix = \"shop\"\n"),
            2,
            "messages",
        ),
        (
            verify().option("--table", "public.nothing"),
            15,
            "public.nothing",
        ),
        (
            verify().config_file("[outbox.columns]\naggregateid = \"nothing\"\n"),
            15,
            "nothing",
        ),
        (
            verify().option("--database-url", &format!("postgres://nobody@{nowhere}/x")),
            10,
            "Postgres",
        ),
        (verify().option("--brokers", &nowhere), 30, "Kafka"),
    ] {
        let output = command.output();
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words}");
        assert!(words.contains(said), "{words}");
    }
    let sql = world.sql();
    sql.run(
        "insert into outbox (id, payload) values (gen_random_uuid(), '{}'); delete from outbox \
             where aggregatetype is not null",
    );
    let (code, json) = found(&verify());
    assert_eq!((code, &json["unroutable"]), (1, &1.into()), "{json}");
    assert!(
        json["unroutable_rows"][0]["why"]
            .as_str()
            .unwrap()
            .contains("aggregatetype"),
        "{json}"
    );
}
