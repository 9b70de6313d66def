//! docs/how-to/map-columns.md: `examples/billing-events`: the dispatcher's state inside the
//! payload.

#[cfg(feature = "nats")]
use super::carried;
use super::{Consumed, Team, consumed, write};
#[cfg(feature = "nats")]
use crate::support::servers::Nats;
use crate::support::sql::Sql;

const SCHEMA: &str = include_str!("../../../examples/billing-events/schema.sql");
const CONFIG: &str = include_str!("../../../examples/billing-events/walrelay.toml");
const TOPICS: [&str; 2] = ["billing.subscription.created", "billing.tenant.suspended"];

#[test]
fn billing_events_have_their_envelope_and_are_replayed_by_insert() {
    let team = Team::new(SCHEMA, CONFIG, &TOPICS);
    let expected = written(&team.sql());
    assert_eq!(team.relayed(), expected);
}

/// One word of the configuration is another.
#[test]
#[cfg(feature = "nats")]
fn billing_events_have_the_same_envelope_at_nats() {
    let Some(nats) = Nats::start() else { return };
    let config = CONFIG.replace("kind = \"kafka\"", "kind = \"nats\"");
    let team = Team::on_nats(nats, SCHEMA, &config, &TOPICS);
    let mut expected = carried(written(&team.sql()));
    let mut relayed = carried(team.relayed());
    // Two keys have no order.
    for records in [&mut expected, &mut relayed] {
        records.sort_by(|one, other| one.topic.cmp(&other.topic));
    }
    assert_eq!(relayed, expected);
}

/// The same word switches publishing off.
#[test]
fn billing_events_go_nowhere_by_one_word() {
    let config = CONFIG.replace("kind = \"kafka\"", "kind = \"null\"");
    let team = Team::new(SCHEMA, &config, &TOPICS);
    written(&team.sql());
    assert_eq!(team.relayed(), []);
}

/// Writes events as the team does, and gives their records.
fn written(sql: &Sql) -> Vec<Consumed> {
    let insert = "insert into billing_events (id, subject, tenant_id, resource_id, payload, \
                  created_at) values";
    let one = "01JNFQ5Z8X4T2M6R9V3B7C1D0A";
    let two = "01JNFQ5Z8X4T2M6R9V3B7C1D0B";
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let event = format!(
        concat!(
            r#"{{"type":"subscription.created","tenant_id":"acme","correlation_id":"c-1","#,
            r#""causation_id":"q-1","data":{{"price":12.50,"outbox_status":"kept"}},"#,
            r#""traceparent":"{traceparent}""#
        ),
        traceparent = traceparent
    );
    let state = |status: &str| {
        format!(
            concat!(
                r#""outbox_status":"{status}","outbox_retry_count":0,"#,
                r#""outbox_next_attempt_at":"2026-03-04T05:06:07Z","outbox_last_error":"""#
            ),
            status = status
        )
    };
    let created = format!(
        "{insert} ('{one}', 'billing.subscription.created', 'acme', 'sub-1', '{event},{}}}', \
         '2026-03-04 05:06:07.25+00')",
        state("pending")
    );
    write(
        sql,
        &[
            (&created, true),
            (
                &format!(
                    "{insert} ('gone', 'billing.subscription.created', 'acme', 'sub-1', '{{{}}}', \
                     now())",
                    state("pending")
                ),
                false,
            ),
            (
                &format!(
                    r#"{insert} ('{two}', 'billing.tenant.suspended', 'acme', null,
                                 '{{ {}, "type" : "tenant.suspended" }}',
                                 '2026-03-04 05:06:08+00')"#,
                    state("pending")
                ),
                true,
            ),
            (
                &format!(
                    "update billing_events set payload = '{event},{}}}' where id = '{one}'",
                    state("dispatched")
                ),
                true,
            ),
            (
                &format!("delete from billing_events where id = '{one}'; {created}"),
                true,
            ),
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
                concat!(
                    r#"{{"id":"{one}","subject":"billing.subscription.created","#,
                    r#""tenant_id":"acme","resource_id":"sub-1","payload":{event}}},"#,
                    r#""created_at":"2026-03-04T05:06:07.25Z"}}"#
                ),
                one = one,
                event = event
            ),
        )
    };
    let suspended = consumed(
        "billing.tenant.suspended",
        Some("acme/"),
        &headers(two, [None; 2], None),
        &format!(
            concat!(
                r#"{{"id":"{two}","subject":"billing.tenant.suspended","tenant_id":"acme","#,
                r#""resource_id":null,"payload":{{"type":"tenant.suspended"}},"#,
                r#""created_at":"2026-03-04T05:06:08Z"}}"#
            ),
            two = two
        ),
    );
    vec![record(), suspended, record()]
}
