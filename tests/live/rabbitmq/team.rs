//! docs/reference/rabbitmq.md: `examples/outbox-published` on its own table and bus: what
//! projections read, byte for byte, and what the runbook's queries find.

use std::collections::BTreeMap;

use lapin::types::AMQPValue;

use super::client::{Client, Queue, Stored};
use crate::support::relay::EXIT;
use crate::support::servers::{Postgres, Rabbitmq};
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

const SCHEMA: &str = include_str!("../../../examples/outbox-published/schema.sql");
const CONFIG: &str = include_str!("../../../examples/outbox-published/rabbitmq.toml");
const EXCHANGE: &str = "domain-events";
const ONE: &str = "b5f7a0c2-3c0b-4f53-9f0a-7d6f4c2b1001";
const TWO: &str = "b5f7a0c2-3c0b-4f53-9f0a-7d6f4c2b1002";
const THREE: &str = "b5f7a0c2-3c0b-4f53-9f0a-7d6f4c2b1003";

/// The headers without the position, which is another in every run, and without that of a quorum
/// queue.
fn headers(stored: &Stored) -> BTreeMap<String, Option<String>> {
    let table = stored.properties.headers().as_ref().expect("headers");
    let header = |(name, value): (&lapin::types::ShortString, &AMQPValue)| {
        let text = value.as_long_string().map(ToString::to_string);
        (name.to_string(), text)
    };
    let headers = table.into_iter().map(header);
    headers
        .filter(|(name, _)| !["walrelay-position", "x-delivery-count"].contains(&name.as_str()))
        .collect()
}

#[test]
fn outbox_published_messages_have_event_data_type_and_metadata() {
    let Some(rabbitmq) = Rabbitmq::shared() else {
        return;
    };
    let world = World::bare(Postgres::shared(), "");
    let sql = world.sql();
    sql.run(&format!("drop table outbox; {SCHEMA}"));
    rabbitmq.add_vhost(&world.name);
    let mut client = Client::new(&rabbitmq.address, &world.name);
    client.declare_exchange(EXCHANGE, false);
    client.declare_queue("queues", Queue::Quorum);
    client.bind("queues", EXCHANGE, "PatientCheckedIn");
    client.bind("queues", EXCHANGE, "PatientCalled");
    world.command("setup").config_file(CONFIG).succeed();
    let run = world
        .command("run")
        .config_file(CONFIG)
        .variable("WALRELAY_RABBITMQ_SERVERS", &rabbitmq.address)
        .variable("WALRELAY_RABBITMQ_VHOST", &world.name)
        .option("--log-format", "json");
    let mut relay = run.start();
    relay.wait_ready();
    let insert = "insert into outbox (id, aggregate_id, event_type, event_data, metadata, \
                  created_at, published) values";
    let metadata = r#"{"correlation_id":"c-1","causation_id":"q-1","tenant_id":"clinic-7"}"#;
    sql.run(&format!(
        r#"begin;
        {insert} ('{ONE}', 'queue-1', 'PatientCheckedIn', '{{"QueueId":"queue-1","Priority":1.50}}',
            '{metadata}', '2026-02-19 08:00:00', false);
        {insert} ('{TWO}', 'queue-1', 'PatientCalled', '{{"QueueId":"queue-1","Room":null}}',
            '{{"correlation_id":"c-1","causation_id":null}}', '2026-02-19 08:00:00', false);
        commit;
        {insert} ('{THREE}', 'queue-2', 'QueueClosed', '{{}}', '{{}}',
            '2026-02-19 08:00:01', false)"#
    ));
    let take = || client.read("queues", Queue::Quorum);
    eventually("two messages", ARRIVAL, take, |count| *count == 2);
    let text = |text: &str| Some(text.to_owned());
    let expected = [
        (
            "PatientCheckedIn",
            r#"{"QueueId": "queue-1", "Priority": 1.50}"#,
            [text(ONE), text("c-1"), text("q-1"), text("clinic-7")],
        ),
        (
            "PatientCalled",
            r#"{"Room": null, "QueueId": "queue-1"}"#,
            [text(TWO), text("c-1"), None, None],
        ),
    ];
    for (stored, (kind, body, [id, correlation, causation, tenant])) in
        client.stored.iter().zip(expected)
    {
        let properties = &stored.properties;
        let of = |text: &Option<lapin::types::ShortString>| text.as_ref().map(ToString::to_string);
        assert_eq!(stored.routing_key, kind);
        assert_eq!(String::from_utf8_lossy(&stored.payload), body);
        assert_eq!(of(properties.message_id()), id);
        assert_eq!(of(properties.kind()), text(kind));
        assert_eq!(of(properties.correlation_id()), correlation);
        let all = [
            ("id", id),
            ("type", text(kind)),
            ("correlation_id", correlation),
            ("causation_id", causation),
            ("tenant_id", tenant),
        ];
        let all = all.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(headers(stored), BTreeMap::from(all));
    }

    // The runbook's queries: nothing takes the third one, which waits and is counted.
    let waits = || {
        sql.text(
            "select coalesce(string_agg(event_type || ' ' || (retry_count > 1)::text, ','), '')
             from outbox where published = false",
        )
    };
    eventually("the third one waits", ARRIVAL, waits, |waits| {
        waits == "QueueClosed true"
    });
    client.bind("queues", EXCHANGE, "QueueClosed");
    let take = || client.read("queues", Queue::Quorum);
    eventually("the third one", ARRIVAL, take, |count| *count == 3);
    eventually("all are published", ARRIVAL, waits, String::is_empty);
    assert_eq!(
        sql.text("select bool_and(published_at is not null)::text from outbox"),
        "true"
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
