//! P3: `examples/billing-events`: the same, with status, count, next attempt and error inside the
//! payload.

use serde_json::Value;

use super::{EXIT, Team, assert_waits};
#[cfg(feature = "nats")]
use crate::support::servers::Nats;
use crate::support::wait::eventually;
use crate::support::world::ARRIVAL;

const STATE: &str =
    "concat_ws(' ', id, payload ->> 'outbox_status', payload ->> 'outbox_retry_count')";

fn next(row: &Value) -> &Value {
    &row["payload"]["outbox_next_attempt_at"]
}

const TABLE: &str = "billing_events";
const SCHEMA: &str = include_str!("../../../examples/billing-events/schema.sql");
const CONFIG: &str = include_str!("../../../examples/billing-events/walrelay.toml");

#[test]
fn billing_events_show_back_off_and_dead_letter_in_their_rows() {
    rows_show_attempts(&Team::new(TABLE, SCHEMA, CONFIG, &[]));
}

#[test]
#[cfg(feature = "nats")]
fn billing_events_show_the_same_in_their_rows_with_nats() {
    let Some(nats) = Nats::start() else { return };
    let config = CONFIG.replace("kind = \"kafka\"", "kind = \"nats\"");
    rows_show_attempts(&Team::on_nats(nats, TABLE, SCHEMA, &config, &[]));
}

fn rows_show_attempts(team: &Team) {
    let subject = |name: &str| format!("{}.billing.{name}", team.world.name);
    team.create(&subject("paid"));
    let run = team.run().variable("WALRELAY_DELIVERY_RETRY_BASE", "600ms");
    let mut relay = run
        .variable("WALRELAY_DELIVERY_RETRY_ATTEMPTS", "2")
        .start();
    relay.wait_ready();
    let insert = |id: &str, name: &str, resource: &str| {
        team.sql().run(&format!(
            r#"insert into billing_events (id, subject, tenant_id, resource_id, payload)
               values ('{id}', '{}', 'acme', '{resource}',
                       '{{"type": "{name}", "price": 12.50, "outbox_status": "pending",
                          "outbox_retry_count": 0}}')"#,
            subject(name)
        ));
    };
    insert("01A", "created", "sub-1");
    insert("01B", "paid", "sub-1");
    insert("01C", "paid", "sub-2");
    team.wait(STATE, "id = '01C'", "01C dispatched 0");
    team.wait(STATE, "id = '01A'", "01A dead_letter 3");
    assert_eq!(team.says(STATE, "id = '01B'"), "01B pending 0");
    let updates = team.updates("01A");
    let status = |number: usize| {
        let payload = &updates[number].row["payload"];
        assert!(
            payload["outbox_last_error"]
                .as_str()
                .is_some_and(|error| error.contains(&subject("created"))),
            "{payload}"
        );
        assert_eq!(
            (&payload["type"], &payload["price"]),
            (&"created".into(), &12.5.into())
        );
        (
            payload["outbox_status"].as_str().unwrap(),
            payload["outbox_retry_count"].as_u64().unwrap(),
        )
    };
    assert_eq!(
        (updates.len(), status(0), status(1), status(2)),
        (3, ("failed", 1), ("failed", 2), ("dead_letter", 3))
    );
    assert_waits(&updates, next, &[600.0, 1_200.0]);
    assert!(next(&updates[2].row).is_null());

    // Replay: the status, and in the end the row once more.
    team.create(&subject("created"));
    team.sql().run(
        r#"update billing_events set payload = (payload::jsonb ||
               '{"outbox_status": "pending", "outbox_retry_count": 0}')::json
           where id = '01A'"#,
    );
    team.wait(STATE, "payload ->> 'outbox_status' <> 'dispatched'", "");
    let consumed = |name: &str| {
        let records = team.records(&subject(name));
        assert!(
            records
                .iter()
                .all(|record| !record.value_text().contains("outbox_"))
        );
        team.events(&subject(name))
    };
    assert_eq!((consumed("created"), consumed("paid")), (1, 2));
    team.sql().run(
        r#"update billing_events
           set payload = (payload::jsonb || '{"outbox_status": "pending"}')::json
           where id = '01A'"#,
    );
    let again = || {
        team.records(&subject("created"))
            .iter()
            .filter(|record| {
                record
                    .headers
                    .iter()
                    .any(|(name, _)| name == "walrelay-replay")
            })
            .count()
    };
    eventually("it is published again", ARRIVAL, again, |count| *count >= 1);
    team.wait(STATE, "payload ->> 'outbox_status' <> 'dispatched'", "");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
