//! The tables of `examples/`: written as their applications write them, and what their consumers see, byte for byte.

use walrelay::position::Lsn;

use crate::support::relay::RelayCommand;
use crate::support::servers::{Kafka, Postgres};
use crate::support::sql::Sql;
use crate::support::topic::{self, Record};
use crate::support::world::{ARRIVAL, World};

/// Its value is another in every run.
const POSITION: &str = "walrelay-position";

/// One record, as a consumer sees it: headers in their order, without the position.
#[derive(Debug, PartialEq)]
struct Consumed {
    topic: String,
    key: Option<String>,
    headers: Vec<(String, Option<String>)>,
    body: Option<String>,
}

fn consumed(topic: &str, key: Option<&str>, headers: &[(&str, Option<&str>)], body: &str) -> Consumed {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)));
    Consumed {
        topic: topic.to_owned(),
        key: key.map(str::to_owned),
        headers: headers.collect(),
        body: Some(body.to_owned()),
    }
}

/// A database with a team's schema and nothing else of an outbox, and a team's configuration as it stands.
struct Team {
    world: World,
    config: &'static str,
    topics: Vec<&'static str>,
    /// What earlier runs left in topics whose names do not change.
    before: Vec<Vec<Record>>,
}

impl Team {
    #[track_caller]
    fn new(schema: &str, config: &'static str, topics: &[&'static str]) -> Team {
        RelayCommand::new("check-config").config_file(config).succeed();
        let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
        world.sql().run(&format!("drop table outbox; {schema}"));
        world.command("setup").config_file(config).succeed();
        let before = topics.iter().map(|topic| topic::read(&world.brokers, topic)).collect();
        Team { world, config, topics: topics.to_vec(), before }
    }

    fn sql(&self) -> Sql {
        self.world.sql()
    }

    /// Relays everything that was written, and gives all records in the order of their commits.
    #[track_caller]
    fn relayed(&self) -> Vec<Consumed> {
        let mut relay = self.world.run().config_file(self.config).start();
        relay.wait_ready();
        self.world.wait_confirmed(ARRIVAL);

        let mut records: Vec<(Place, &str, Record)> = Vec::new();
        for (topic, before) in self.topics.iter().zip(&self.before) {
            let new = topic::read(&self.world.brokers, topic).into_iter().filter(|record| !before.contains(record));
            records.extend(new.map(|record| (place(&record.header(POSITION)), *topic, record)));
        }
        records.sort_by_key(|(place, _, _)| *place);
        for (number, (_, topic, record)) in records.iter().enumerate() {
            let same = |(_, other, next): &&(Place, &str, Record)| other == topic && next.key == record.key;
            if let Some((_, _, next)) = records[number + 1..].iter().find(same).filter(|_| record.key.is_some()) {
                assert!(next.partition == record.partition && next.offset > record.offset, "{record:?} {next:?}");
            }
        }
        records.into_iter().map(|(_, topic, record)| shown(topic, &record)).collect()
    }
}

/// Where a record's transaction ends, and which event of it the record is.
type Place = (Lsn, u64);

/// Of `SYSTEM_IDENTIFIER:TIMELINE:LSN:INDEX`.
fn place(position: &str) -> Place {
    let parts: Vec<&str> = position.split(':').collect();
    assert_eq!(parts.len(), 4, "{position:?}");
    (parts[2].parse().unwrap(), parts[3].parse().unwrap())
}

fn shown(topic: &str, record: &Record) -> Consumed {
    let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).unwrap();
    let headers = record.headers.iter().filter(|(name, _)| name != POSITION);
    Consumed {
        topic: topic.to_owned(),
        key: record.key.as_ref().map(text),
        headers: headers.map(|(name, value)| (name.clone(), value.as_ref().map(text))).collect(),
        body: record.value.as_ref().map(text),
    }
}

/// Runs transactions one after the other; one with `false` is rolled back.
#[track_caller]
fn write(sql: &Sql, transactions: &[(&str, bool)]) {
    for (statements, keep) in transactions {
        sql.run(&format!("begin; {statements}; {}", if *keep { "commit" } else { "rollback" }));
    }
}

#[test]
fn the_mail_sender_gets_payload_recipient_and_idempotency_key_of_email_outbox() {
    let team = Team::new(
        include_str!("../../examples/email-outbox/schema.sql"),
        include_str!("../../examples/email-outbox/walrelay.toml"),
        &["email-notifications"],
    );
    let memo = "6f2b0f0e-54f1-4a1c-9f43-0d2f4c1c7a01";
    let memo_row = |id: &str| {
        format!(
            "insert into memos (id, memo_number_prefix, department_code, title, purpose)
             values ('{id}', 'HR', 'HR-01', 'Holidays', 'to inform')"
        )
    };
    let event = |memo: &str, body: &str, recipient: &str, key: Option<&str>| {
        let key = key.map_or("null".to_owned(), |key| format!("'{key}'"));
        format!(
            r#"insert into email_outbox (memo_id, event_type, payload, recipient_email, notification_type, idempotency_key)
               values ('{memo}', 'memo.created', '{{"subject":"Memo Holidays Created","body":"{body}"}}', '{recipient}',
                       'MEMO_CREATED', {key})"#
        )
    };
    let key = format!("{memo}-memo.created-ann@example.com");
    let other = "6f2b0f0e-54f1-4a1c-9f43-0d2f4c1c7a02";
    let sql = team.sql();
    write(
        &sql,
        &[
            // As Go escapes it, and as jsonb gives it back to whoever reads the row.
            (
                &format!("{}; {}", memo_row(memo), event(memo, r"\u003cb\u003eGrüße", "ann@example.com", Some(&key))),
                true,
            ),
            (&format!("{}; {}", memo_row(other), event(other, "gone", "bob@example.com", Some("gone"))), false),
            (&event(memo, "", "bob@example.com", None), true),
            // The old dispatcher's statements are no events.
            (
                "update email_outbox set status = 'SENT', sent_at = now(), meta_updated_at = now(), error_message = null",
                true,
            ),
        ],
    );

    let ids = sql.rows("select id::text from email_outbox order by meta_created_at", &[]);
    let record = |number: usize, recipient: &str, key: Option<&str>, body: &str| {
        let id: String = ids[number].get(0);
        let headers = [
            ("id", Some(id.as_str())),
            ("event_type", Some("memo.created")),
            ("notification_type", Some("MEMO_CREATED")),
            ("recipient_email", Some(recipient)),
            ("idempotency_key", key),
        ];
        consumed("email-notifications", Some(memo), &headers, body)
    };
    let expected = [
        record(0, "ann@example.com", Some(&key), r#"{"body": "<b>Grüße", "subject": "Memo Holidays Created"}"#),
        record(1, "bob@example.com", None, r#"{"body": "", "subject": "Memo Holidays Created"}"#),
    ];
    assert_eq!(team.relayed(), expected);
}

#[test]
fn consumers_get_the_message_go_made_of_outbox_events_under_the_subject_it_had() {
    let team = Team::new(
        include_str!("../../examples/outbox-events/schema.sql"),
        include_str!("../../examples/outbox-events/walrelay.toml"),
        &["events.user.user.created", "events.user.user.updated"],
    );
    let insert =
        "insert into outbox_events (id, aggregate_id, aggregate_type, event_type, event_data, metadata, status,
                  version, created_at, max_retries) values";
    let (one, two, three) = (
        "0a0b2b1e-7a64-4a51-8b64-51a6d6d3f001",
        "0a0b2b1e-7a64-4a51-8b64-51a6d6d3f002",
        "0a0b2b1e-7a64-4a51-8b64-51a6d6d3f003",
    );
    let metadata = r#"{"client_ip":"::1","source":"user-service","version":"1.0"}"#;
    let created = r#"{"email":"test@example.com","name":"Test User","timestamp":"2026-03-04T05:06:07.123456789Z","user_id":"user-123"}"#;
    let updated = r#"{"changes":{"name":{"from":"Test User","to":"\"T\", U"}},"user_id":"user-123"}"#;
    // jsonb keeps an order of its own, shorter names first: that is what the dispatcher read, and published.
    let updated_read = r#"{"changes":{"name":{"to":"\"T\", U","from":"Test User"}},"user_id":"user-123"}"#;
    write(
        &team.sql(),
        &[
            // The events of one call are one statement.
            (
                &format!(
                    "{insert} ('{one}', 'user-123', 'user', 'user.created', '{created}', '{metadata}', 'pending', 1,
                               '2026-03-04T06:06:07.123456+01:00', 5),
                              ('{two}', 'user-123', 'user', 'user.updated', '{updated}', 'null', 'pending', 1,
                               '2026-03-04T05:06:07.5Z', 5)"
                ),
                true,
            ),
            (
                &format!(
                    "{insert} (gen_random_uuid(), 'user-9', 'user', 'user.created', '{{}}', null, 'pending', 1, now(), 3)"
                ),
                false,
            ),
            (
                &format!(
                    "{insert} ('{three}', 'user-123', 'user', 'user.updated', '{{}}', null, 'pending', 1,
                               '2026-03-04T05:06:08Z', 3)"
                ),
                true,
            ),
            ("update outbox_events set status = 'published', published_at = now(), version = version + 1", true),
        ],
    );

    let record = |kind: &str, id: &str, body: &str| {
        consumed(&format!("events.user.{kind}"), Some("user-123"), &[("id", Some(id))], body)
    };
    let expected = [
        record(
            "user.created",
            one,
            &format!(
                r#"{{"id":"{one}","aggregate_id":"user-123","aggregate_type":"user","event_type":"user.created","event_data":{{"name":"Test User","email":"test@example.com","user_id":"user-123","timestamp":"2026-03-04T05:06:07.123456789Z"}},"metadata":{metadata},"version":1,"timestamp":"2026-03-04T05:06:07.123456Z"}}"#
            ),
        ),
        record(
            "user.updated",
            two,
            &format!(
                r#"{{"id":"{two}","aggregate_id":"user-123","aggregate_type":"user","event_type":"user.updated","event_data":{updated_read},"metadata":null,"version":1,"timestamp":"2026-03-04T05:06:07.5Z"}}"#
            ),
        ),
        record(
            "user.updated",
            three,
            &format!(
                r#"{{"id":"{three}","aggregate_id":"user-123","aggregate_type":"user","event_type":"user.updated","event_data":{{}},"metadata":null,"version":1,"timestamp":"2026-03-04T05:06:08Z"}}"#
            ),
        ),
    ];
    assert_eq!(team.relayed(), expected);
}

#[test]
fn projections_get_the_event_data_of_outbox_and_its_metadata_as_headers() {
    let team = Team::new(
        include_str!("../../examples/outbox-published/schema.sql"),
        include_str!("../../examples/outbox-published/walrelay.toml"),
        &["domain-events"],
    );
    let insert =
        "insert into outbox (id, aggregate_id, event_type, event_data, metadata, created_at, published) values";
    let (one, two, three) = (
        "b5f7a0c2-3c0b-4f53-9f0a-7d6f4c2b1001",
        "b5f7a0c2-3c0b-4f53-9f0a-7d6f4c2b1002",
        "b5f7a0c2-3c0b-4f53-9f0a-7d6f4c2b1003",
    );
    let metadata = r#"{"correlation_id":"c-1","causation_id":"q-1","tenant_id":"clinic-7"}"#;
    write(
        &team.sql(),
        &[
            // One aggregate saves several events in one transaction.
            (
                &format!(
                    r#"{insert} ('{one}', 'queue-1', 'PatientCheckedIn', '{{"QueueId":"queue-1","Priority":1.50}}',
                                 '{metadata}', '2026-02-19 08:00:00', false);
                       {insert} ('{two}', 'queue-1', 'PatientCalled', '{{"QueueId":"queue-1","Room":null}}',
                                 '{{"correlation_id":"c-1","causation_id":null}}', '2026-02-19 08:00:00', false)"#
                ),
                true,
            ),
            (
                &format!(
                    "{insert} (gen_random_uuid(), 'queue-1', 'PatientCalled', '{{}}', '{metadata}', now(), false)"
                ),
                false,
            ),
            // Every column of the state may be NULL, and none of it counts.
            (
                &format!(
                    "insert into outbox (id, aggregate_id, event_type, event_data, metadata, created_at, published, retry_count)
                     values ('{three}', 'queue-2', 'QueueClosed', '{{}}', '{{}}', '2026-02-19 08:00:01', null, null)"
                ),
                true,
            ),
            ("update outbox set published = true, published_at = now()", true),
            ("delete from outbox where published = true and published_at < now() + interval '7 days'", true),
        ],
    );

    let record = |key: &str, id: &str, kind: &str, ids: [Option<&str>; 3], body: &str| {
        let [correlation, causation, tenant] = ids;
        let headers = [
            ("id", Some(id)),
            ("event_type", Some(kind)),
            ("correlation_id", correlation),
            ("causation_id", causation),
            ("tenant_id", tenant),
        ];
        consumed("domain-events", Some(key), &headers, body)
    };
    let ids = [Some("c-1"), Some("q-1"), Some("clinic-7")];
    let expected = [
        record("queue-1", one, "PatientCheckedIn", ids, r#"{"QueueId": "queue-1", "Priority": 1.50}"#),
        record("queue-1", two, "PatientCalled", [Some("c-1"), None, None], r#"{"Room": null, "QueueId": "queue-1"}"#),
        record("queue-2", three, "QueueClosed", [None; 3], "{}"),
    ];
    assert_eq!(team.relayed(), expected);
}

#[test]
fn wallet_consumers_get_the_text_of_outbox_whatever_it_is_on_the_binding_they_know() {
    let team = Team::new(
        include_str!("../../examples/wallet-outbox/schema.sql"),
        include_str!("../../examples/wallet-outbox/walrelay.toml"),
        &["WalletCreatedEvent-out-0", "FundsAddedEvent-out-0"],
    );
    let wallet = r#"{"walletId":"w-1","correlationId":"c-1","balance":0.00}"#;
    write(
        &team.sql(),
        &[
            (
                &format!(
                    "insert into outbox (event_type, payload, correlation_id, created_at, sent)
                     values ('WalletCreatedEvent', '{wallet}', 'c-1', '2026-03-04 05:06:07.123456', false)"
                ),
                true,
            ),
            (
                "insert into outbox (event_type, payload, created_at, sent) values ('FundsAddedEvent', '{}', now(), false)",
                false,
            ),
            (
                r#"insert into outbox (event_type, payload, created_at, sent)
                   values ('FundsAddedEvent', '{ "amount" : 10.50 }', now(), false)"#,
                true,
            ),
            // What no consumer can read holds up nobody.
            (
                "insert into outbox (event_type, payload, correlation_id, created_at, sent)
                 values ('WalletCreatedEvent', 'not JSON', 'c-1', now(), false)",
                true,
            ),
            (
                &format!(
                    "insert into outbox (event_type, payload, correlation_id, created_at, sent)
                     values ('WalletCreatedEvent', '{wallet}', 'c-1', now(), false)"
                ),
                true,
            ),
            ("update outbox set sent = true", true),
        ],
    );

    let record = |topic: &str, correlation: Option<&str>, id: &str, body: &str| {
        consumed(topic, correlation, &[("event_id", Some(id)), ("correlation_id", correlation)], body)
    };
    // The number the rolled-back one drew is not used again.
    let expected = [
        record("WalletCreatedEvent-out-0", Some("c-1"), "1", wallet),
        record("FundsAddedEvent-out-0", None, "3", r#"{ "amount" : 10.50 }"#),
        record("WalletCreatedEvent-out-0", Some("c-1"), "4", "not JSON"),
        record("WalletCreatedEvent-out-0", Some("c-1"), "5", wallet),
    ];
    assert_eq!(team.relayed(), expected);
}

#[test]
fn billing_events_are_enveloped_without_the_keys_of_their_dispatcher_and_replayed_by_inserting_them_again() {
    let team = Team::new(
        include_str!("../../examples/billing-events/schema.sql"),
        include_str!("../../examples/billing-events/walrelay.toml"),
        &["billing.subscription.created", "billing.tenant.suspended"],
    );
    let insert = "insert into billing_events (id, subject, tenant_id, resource_id, payload, created_at) values";
    let (one, two) = ("01JNFQ5Z8X4T2M6R9V3B7C1D0A", "01JNFQ5Z8X4T2M6R9V3B7C1D0B");
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let event = format!(
        r#"{{"type":"subscription.created","tenant_id":"acme","correlation_id":"c-1","causation_id":"q-1","data":{{"price":12.50,"outbox_status":"kept"}},"traceparent":"{traceparent}""#
    );
    let state = |status: &str| {
        format!(
            r#""outbox_status":"{status}","outbox_retry_count":0,"outbox_next_attempt_at":"2026-03-04T05:06:07Z","outbox_last_error":"""#
        )
    };
    let created = format!(
        "{insert} ('{one}', 'billing.subscription.created', 'acme', 'sub-1', '{event},{}}}', '2026-03-04 05:06:07.25+00')",
        state("pending")
    );
    write(
        &team.sql(),
        &[
            (&created, true),
            (
                &format!(
                    "{insert} ('gone', 'billing.subscription.created', 'acme', 'sub-1', '{{{}}}', now())",
                    state("pending")
                ),
                false,
            ),
            (
                &format!(
                    r#"{insert} ('{two}', 'billing.tenant.suspended', 'acme', null,
                                 '{{ {}, "type" : "tenant.suspended" }}', '2026-03-04 05:06:08+00')"#,
                    state("pending")
                ),
                true,
            ),
            (
                &format!("update billing_events set payload = '{event},{}}}' where id = '{one}'", state("dispatched")),
                true,
            ),
            (&format!("delete from billing_events where id = '{one}'; {created}"), true),
        ],
    );

    let headers = |id, ids: [Option<&'static str>; 2], trace| {
        let [correlation, causation] = ids;
        [
            ("id", Some(id)),
            ("tenant_id", Some("acme")),
            ("correlation_id", correlation),
            ("causation_id", causation),
            ("traceparent", trace),
            ("tracestate", None),
        ]
    };
    let record = || {
        consumed(
            "billing.subscription.created",
            Some("acme/sub-1"),
            &headers(one, [Some("c-1"), Some("q-1")], Some(traceparent)),
            &format!(
                r#"{{"id":"{one}","subject":"billing.subscription.created","tenant_id":"acme","resource_id":"sub-1","payload":{event}}},"created_at":"2026-03-04T05:06:07.25Z"}}"#
            ),
        )
    };
    let suspended = consumed(
        "billing.tenant.suspended",
        Some("acme/"),
        &headers(two, [None; 2], None),
        &format!(
            r#"{{"id":"{two}","subject":"billing.tenant.suspended","tenant_id":"acme","resource_id":null,"payload":{{"type":"tenant.suspended"}},"created_at":"2026-03-04T05:06:08Z"}}"#
        ),
    );
    assert_eq!(team.relayed(), [record(), suspended, record()]);
}
