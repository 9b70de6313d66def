//! docs/how-to/map-columns.md: `examples/outbox-published`: event data, for RabbitMQ until now.

use super::{Team, consumed, write};

#[test]
fn outbox_published_records_have_event_data_and_metadata_headers() {
    let team = Team::new(
        include_str!("../../../examples/outbox-published/schema.sql"),
        include_str!("../../../examples/outbox-published/walrelay.toml"),
        &["domain-events"],
    );
    let insert = "insert into outbox (id, aggregate_id, event_type, event_data, metadata, \
                  created_at, published) values";
    let one = "b5f7a0c2-3c0b-4f53-9f0a-7d6f4c2b1001";
    let two = "b5f7a0c2-3c0b-4f53-9f0a-7d6f4c2b1002";
    let three = "b5f7a0c2-3c0b-4f53-9f0a-7d6f4c2b1003";
    let metadata = r#"{"correlation_id":"c-1","causation_id":"q-1","tenant_id":"clinic-7"}"#;
    write(
        &team.sql(),
        &[
            // One aggregate saves several events in one transaction.
            (
                &format!(
                    r#"{insert} ('{one}', 'queue-1', 'PatientCheckedIn',
                                 '{{"QueueId":"queue-1","Priority":1.50}}',
                                 '{metadata}', '2026-02-19 08:00:00', false);
                       {insert} ('{two}', 'queue-1', 'PatientCalled',
                                 '{{"QueueId":"queue-1","Room":null}}',
                                 '{{"correlation_id":"c-1","causation_id":null}}',
                                 '2026-02-19 08:00:00', false)"#
                ),
                true,
            ),
            (
                &format!(
                    "{insert} (gen_random_uuid(), 'queue-1', 'PatientCalled', '{{}}', \
                     '{metadata}', now(), false)"
                ),
                false,
            ),
            // Every column of the state may be NULL, and none of it counts.
            (
                &format!(
                    "insert into outbox (id, aggregate_id, event_type, event_data, metadata, \
                     created_at, published, retry_count)
                     values ('{three}', 'queue-2', 'QueueClosed', '{{}}', '{{}}', '2026-02-19 \
                     08:00:01', null, null)"
                ),
                true,
            ),
            (
                "update outbox set published = true, published_at = now()",
                true,
            ),
            (
                "delete from outbox where published = true and published_at < now() + interval '7 \
              days'",
                true,
            ),
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
        record(
            "queue-1",
            one,
            "PatientCheckedIn",
            ids,
            r#"{"QueueId": "queue-1", "Priority": 1.50}"#,
        ),
        record(
            "queue-1",
            two,
            "PatientCalled",
            [Some("c-1"), None, None],
            r#"{"Room": null, "QueueId": "queue-1"}"#,
        ),
        record("queue-2", three, "QueueClosed", [None; 3], "{}"),
    ];
    assert_eq!(team.relayed(), expected);
}
