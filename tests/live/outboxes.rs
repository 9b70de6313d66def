//! P2, P3: several outboxes in one slot, and messages as events.

use crate::support::relay::{EXIT, last_words};
use crate::support::servers::{Kafka, Postgres};
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

const PUBLICATION: Option<i32> = Some(15);
const MISMATCH: Option<i32> = Some(16);

/// Two tables and messages, all into one topic, so that the order across them can be seen.
const THREE: &str = "
    [route]
    topic = \"TOPIC\"
    [[outbox]]
    table = \"outbox\"
    [[outbox]]
    table = '\"Bill\".events'
    columns.id = \"number\"
    route.key = \"{account}\"
    format.value = \"{body}\"
    [outbox.route.headers]
    tenant = \"{tenant|default('none')}\"
    [[outbox]]
    message_prefix = \"shop\"
    route.key = \"{aggregateid}\"
    route.headers_from = \"{meta}\"
";

/// A world with these three, and its configuration.
fn three(postgres: &Postgres) -> (World, String) {
    let world = World::bare(postgres, Kafka::shared().brokers());
    world.sql().run(
        r#"create schema "Bill";
           create table "Bill".events (
               number bigint primary key, account text, tenant text, body bytea)"#,
    );
    let config = THREE.replace("TOPIC", &format!("{}-all", world.name));
    world.command("setup").config_file(&config).succeed();
    (world, config)
}

/// Statements that write one event of `aggregate` with this number into each outbox.
fn into_each(aggregate: &str, number: usize) -> String {
    format!(
        r#"insert into outbox (id, aggregatetype, aggregateid, payload)
               values (gen_random_uuid(), 'order', '{aggregate}', '{{"n": "{number}a"}}');
           select pg_logical_emit_message(true, 'shop',
               '{{"aggregateid": "{aggregate}", "payload": {{"n": "{number}b"}},
                  "meta": {{"traceparent": "00-{number}"}}}}');
           select pg_logical_emit_message(true, 'elsewhere', 'no event');
           select pg_logical_emit_message(false, 'shop',
               '{{"aggregateid": "{aggregate}", "payload": "of no transaction"}}');
           insert into "Bill".events
               values ({number}, '{aggregate}', null, '{{"n": "{number}c"}}');"#
    )
}

#[test]
fn two_tables_and_logical_messages_keep_commit_order_across_a_crash() {
    const TRANSACTIONS: usize = 60;
    let (world, config) = three(Postgres::shared());
    let topic = format!("{}-all", world.name);
    let sql = world.sql();
    let mut relay = world.run().config_file(&config).start();
    relay.wait_ready();
    for number in 0..TRANSACTIONS {
        let end = if number % 7 == 3 {
            "rollback"
        } else {
            "commit"
        };
        sql.run(&format!(
            "begin; {} {end}",
            into_each(&format!("account-{}", number % 5), number)
        ));
        if number == TRANSACTIONS / 2 {
            relay.kill_hard();
            relay = world.run().config_file(&config).start();
        }
    }
    world.wait_confirmed();

    let records = topic::read(&world.brokers, &topic);
    let mut distinct = 0;
    for account in 0..5 {
        let key = format!("account-{account}");
        let mut values: Vec<_> = records
            .iter()
            .filter(|record| record.key_text() == key)
            .map(topic::Record::value_text)
            .collect();
        let committed = (0..TRANSACTIONS).filter(|number| number % 5 == account && number % 7 != 3);
        let expected: Vec<_> = committed
            .flat_map(|number| ["a", "b", "c"].map(|from| format!(r#"{{"n": "{number}{from}"}}"#)))
            .collect();
        // What came again after the crash came again from some place on, in order.
        let mut seen = std::collections::BTreeSet::new();
        values.retain(|value| seen.insert(value.clone()));
        assert_eq!(values, expected, "{key}");
        distinct += expected.len();
    }
    assert!(records.len() >= distinct);

    let header = |record: &topic::Record, name: &str| {
        record
            .headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.clone())
    };
    for record in &records {
        let value = record.value_text();
        let of_table = value.ends_with("c\"}").then(|| Some(b"none".to_vec()));
        assert_eq!(header(record, "tenant"), of_table, "{value}");
        let number: String = value.chars().filter(char::is_ascii_digit).collect();
        let trace = value
            .ends_with("b\"}")
            .then(|| Some(format!("00-{number}").into_bytes()));
        assert_eq!(header(record, "traceparent"), trace, "{value}");
    }
    eventually(
        "what is no event was counted",
        ARRIVAL,
        || relay.metric("walrelay_ignored_messages_total{op=\"message\"}"),
        |count| count.is_some_and(|count| count > 0.0),
    );
    assert_eq!(relay.terminate(EXIT), Some(0));
    world
        .command("teardown")
        .config_file(&config)
        .flag("--yes")
        .succeed();
    let left = sql.number(
        "select (select count(*) from pg_publication) + (select count(*) from \
                           pg_replication_slots where slot_name = current_database())",
    );
    assert_eq!(left, 0, "publication and slot of all three are gone");
}

#[test]
fn logical_messages_alone_are_relayed_on_every_major() {
    for &major in Postgres::majors() {
        let postgres = Postgres::private(major, &[]);
        let world = World::bare(&postgres, Kafka::shared().brokers());
        let config = format!(
            "[outbox]\nmessage_prefix = \"shop\"\n[route]\ntopic = \"{}\"\nkey = \
             \"{{message_prefix}}\"\n\
             [format]\nvalue = \"{{message_content}}\"\n",
            world.name
        );
        world.sql().run("drop table outbox");
        world.command("setup").config_file(&config).succeed();
        let mut relay = world.run().config_file(&config).start();
        relay.wait_ready();
        let sql = world.sql();
        let lsns: Vec<String> = ["one", "{}", ""]
            .map(|content| {
                sql.text(&format!(
                    "select pg_logical_emit_message(true, 'shop', '{content}')::text"
                ))
            })
            .to_vec();
        world.wait_confirmed();
        let records = topic::read(&world.brokers, &world.name);
        let told: Vec<_> = records
            .iter()
            .map(|record| (record.key_text(), record.value_text()))
            .collect();
        let expected = ["one", "{}", ""].map(|content| ("shop".to_owned(), content.to_owned()));
        assert_eq!(told, expected, "on {major}");
        let ids: Vec<_> = records.iter().map(|record| record.header("id")).collect();
        assert_eq!(relay.terminate(EXIT), Some(0), "on {major}");
        // What is pending is counted, and there is nothing.
        world
            .command("teardown")
            .config_file(&config)
            .flag("--yes")
            .succeed();
        // What the function gives is the end of the message, and what identifies it is its start.
        assert!(
            ids.iter().all(|id| id.contains('/')) && ids.len() == lsns.len(),
            "{ids:?} {lsns:?}"
        );
    }
}

#[test]
fn a_second_outbox_that_leaves_the_publication_ends_the_relay_with_15_and_its_name() {
    let (world, config) = three(Postgres::shared());
    let mut relay = world.run().config_file(&config).start();
    relay.wait_ready();
    world.sql().run(&format!(
        r#"alter publication walrelay_{} drop table "Bill".events"#,
        world.name
    ));
    assert_eq!(relay.wait_exit(EXIT), PUBLICATION);
    assert!(
        relay
            .log()
            .contains(r#"table "Bill".events was removed from publication"#),
        "{}",
        relay.log()
    );
}

#[test]
fn an_outbox_is_added_freely_and_removed_only_explicitly() {
    let (world, all) = three(Postgres::shared());
    let first = format!(
        "[outbox]\ntable = \"outbox\"\n[route]\ntopic = \"{}-all\"\n",
        world.name
    );
    let sql = world.sql();
    let relayed = |config: &str| {
        let mut relay = world.run().config_file(config).start();
        relay.wait_ready();
        world.wait_confirmed();
        assert_eq!(relay.terminate(EXIT), Some(0));
        relay.log()
    };
    relayed(&first);
    let log = relayed(&all);
    assert!(log.contains("an outbox is new to slot"), "{log}");
    sql.run(&into_each("account", 1));
    relayed(&all);
    let delivered = || topic::count(&world.brokers, &format!("{}-all", world.name));
    assert_eq!(delivered(), 3);

    sql.run(&into_each("account", 2));
    let mut refused = world.run().config_file(&first).start();
    assert_eq!(refused.wait_exit(EXIT), MISMATCH);
    let log = refused.log();
    let (_, remedy) = last_words(&log);
    let (_, name) = remedy.split_once("put it back").expect("the remedy");
    let name = &name[name.find("select ").expect("SQL")..];
    let (name, _) = name.split_once(';').expect("a statement");
    assert_eq!(sql.text(name), "\"Bill\".events");
    relayed(&all);
    assert_eq!(delivered(), 6);
    let mut adopted = world.run().config_file(&first).flag("--adopt-slot").start();
    adopted.wait_ready();
}

#[test]
fn a_logical_message_that_is_no_json_object_stops_the_relay_with_its_place() {
    let (world, config) = three(Postgres::shared());
    let mut relay = world.run().config_file(&config).start();
    relay.wait_ready();
    let sql = world.sql();
    sql.run(&into_each("account", 1));
    world.wait_confirmed();
    sql.run("select pg_logical_emit_message(true, 'shop', 'Placed')");
    assert_ne!(relay.wait_exit(EXIT), Some(0));
    let log = relay.log();
    assert!(
        log.contains("is a member of the content, which is no JSON object"),
        "{log}"
    );
    assert!(log.contains("pg_replication_slot_advance"), "{log}");
}
