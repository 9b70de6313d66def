//! docs/how-to/map-columns.md: `examples/outbox-events`: the message that Go makes.

#[cfg(feature = "nats")]
use super::carried;
use super::{Consumed, Team, consumed, write};
#[cfg(feature = "nats")]
use crate::support::servers::Nats;
use crate::support::sql::Sql;

const SCHEMA: &str = include_str!("../../../examples/outbox-events/schema.sql");
const CONFIG: &str = include_str!("../../../examples/outbox-events/walrelay.toml");
const TOPICS: [&str; 2] = ["events.user.user.created", "events.user.user.updated"];

#[test]
#[cfg(feature = "nats")]
fn outbox_events_messages_are_those_of_the_go_dispatcher() {
    let Some(nats) = Nats::start() else { return };
    let team = Team::on_nats(nats, SCHEMA, CONFIG, &TOPICS);
    let expected = carried(written(&team.sql()));
    assert_eq!(carried(team.relayed()), expected);
}

#[test]
fn outbox_events_go_to_kafka_by_one_word() {
    let kafka = CONFIG.replace("kind = \"nats\"", "kind = \"kafka\"");
    let team = Team::new(SCHEMA, &kafka, &TOPICS);
    let expected = written(&team.sql());
    assert_eq!(team.relayed(), expected);
}

/// Writes events as the team does, and gives their records.
fn written(sql: &Sql) -> Vec<Consumed> {
    let insert =
        "insert into outbox_events (id, aggregate_id, aggregate_type, event_type, event_data, \
         metadata, status,
                  version, created_at, max_retries) values";
    let one = "0a0b2b1e-7a64-4a51-8b64-51a6d6d3f001";
    let two = "0a0b2b1e-7a64-4a51-8b64-51a6d6d3f002";
    let three = "0a0b2b1e-7a64-4a51-8b64-51a6d6d3f003";
    let metadata = r#"{"client_ip":"::1","source":"user-service","version":"1.0"}"#;
    let created = concat!(
        r#"{"email":"test@example.com","name":"Test User","#,
        r#""timestamp":"2026-03-04T05:06:07.123456789Z","user_id":"user-123"}"#
    );
    let updated =
        r#"{"changes":{"name":{"from":"Test User","to":"\"T\", <U>"}},"user_id":"user-123"}"#;
    // jsonb keeps an order of its own, shorter names first: that is what the dispatcher read, and
    // published.
    let updated_read = concat!(
        r#"{"changes":{"name":{"to":"\"T\", \u003cU\u003e","from":"Test User"}},"#,
        r#""user_id":"user-123"}"#
    );
    write(
        sql,
        &[
            // The events of one call are one statement.
            (
                &format!(
                    "{insert} ('{one}', 'user-123', 'user', 'user.created', '{created}', \
                     '{metadata}', 'pending', 1,
                               '2026-03-04T06:06:07.123456+01:00', 5),
                              ('{two}', 'user-123', 'user', 'user.updated', '{updated}', 'null', \
                              'pending', 1,
                               '2026-03-04T05:06:07.5Z', 5)"
                ),
                true,
            ),
            (
                &format!(
                    "{insert} (gen_random_uuid(), 'user-9', 'user', 'user.created', '{{}}', null, \
                     'pending', 1, now(), 3)"
                ),
                false,
            ),
            (
                &format!(
                    "{insert} ('{three}', 'user-123', 'user', 'user.updated', '{{}}', null, \
                     'pending', 1,
                               '2026-03-04T05:06:08Z', 3)"
                ),
                true,
            ),
            (
                "update outbox_events set status = 'published', published_at = now(), version = \
              version + 1",
                true,
            ),
        ],
    );

    let record = |kind: &str, id: &str, body: &str| {
        consumed(
            &format!("events.user.{kind}"),
            Some("user-123"),
            &[("id", Some(id))],
            body,
        )
    };
    vec![
        record(
            "user.created",
            one,
            &format!(
                concat!(
                    r#"{{"id":"{one}","aggregate_id":"user-123","aggregate_type":"user","#,
                    r#""event_type":"user.created","event_data":{{"name":"Test User","#,
                    r#""email":"test@example.com","user_id":"user-123","#,
                    r#""timestamp":"2026-03-04T05:06:07.123456789Z"}},"#,
                    r#""metadata":{metadata},"version":1,"#,
                    r#""timestamp":"2026-03-04T05:06:07.123456Z"}}"#
                ),
                one = one,
                metadata = metadata
            ),
        ),
        record(
            "user.updated",
            two,
            &format!(
                concat!(
                    r#"{{"id":"{two}","aggregate_id":"user-123","aggregate_type":"user","#,
                    r#""event_type":"user.updated","event_data":{updated_read},"#,
                    r#""metadata":null,"version":1,"timestamp":"2026-03-04T05:06:07.5Z"}}"#
                ),
                two = two,
                updated_read = updated_read
            ),
        ),
        record(
            "user.updated",
            three,
            &format!(
                concat!(
                    r#"{{"id":"{three}","aggregate_id":"user-123","aggregate_type":"user","#,
                    r#""event_type":"user.updated","event_data":{{}},"#,
                    r#""metadata":null,"version":1,"timestamp":"2026-03-04T05:06:08Z"}}"#
                ),
                three = three
            ),
        ),
    ]
}
