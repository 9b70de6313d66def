//! docs/how-to/map-columns.md: `examples/wallet-outbox`: text, by Spring Cloud Stream until now.

use super::{Team, consumed, write};

#[test]
fn wallet_outbox_records_have_the_payload_text_on_the_known_topic() {
    let team = Team::new(
        include_str!("../../../examples/wallet-outbox/schema.sql"),
        include_str!("../../../examples/wallet-outbox/walrelay.toml"),
        &["WalletCreatedEvent-out-0", "FundsAddedEvent-out-0"],
    );
    let wallet = r#"{"walletId":"w-1","correlationId":"c-1","balance":0.00}"#;
    write(
        &team.sql(),
        &[
            (
                &format!(
                    "insert into outbox (event_type, payload, correlation_id, created_at, sent)
                     values ('WalletCreatedEvent', '{wallet}', 'c-1', '2026-03-04 \
                     05:06:07.123456', false)"
                ),
                true,
            ),
            (
                "insert into outbox (event_type, payload, created_at, sent) values \
                 ('FundsAddedEvent', '{}', now(), false)",
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
        consumed(
            topic,
            correlation,
            &[("event_id", Some(id)), ("correlation_id", correlation)],
            body,
        )
    };
    // The number the rolled-back one drew is not used again.
    let expected = [
        record("WalletCreatedEvent-out-0", Some("c-1"), "1", wallet),
        record(
            "FundsAddedEvent-out-0",
            None,
            "3",
            r#"{ "amount" : 10.50 }"#,
        ),
        record("WalletCreatedEvent-out-0", Some("c-1"), "4", "not JSON"),
        record("WalletCreatedEvent-out-0", Some("c-1"), "5", wallet),
    ];
    assert_eq!(team.relayed(), expected);
}
