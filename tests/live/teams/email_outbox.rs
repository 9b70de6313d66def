//! docs/how-to/map-columns.md: `examples/email-outbox`: mail to be sent.

use super::{Team, consumed, write};

#[test]
fn email_outbox_records_have_payload_recipient_and_idempotency_key() {
    let team = Team::new(
        include_str!("../../../examples/email-outbox/schema.sql"),
        include_str!("../../../examples/email-outbox/walrelay.toml"),
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
            r#"insert into email_outbox (memo_id, event_type, payload, recipient_email,
                   notification_type, idempotency_key)
               values ('{memo}', 'memo.created',
                       '{{"subject":"Memo Holidays Created","body":"{body}"}}', '{recipient}',
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
                &format!(
                    "{}; {}",
                    memo_row(memo),
                    event(memo, r"\u003cb\u003eGrüße", "ann@example.com", Some(&key))
                ),
                true,
            ),
            (
                &format!(
                    "{}; {}",
                    memo_row(other),
                    event(other, "gone", "bob@example.com", Some("gone"))
                ),
                false,
            ),
            (&event(memo, "", "bob@example.com", None), true),
            // The old dispatcher's statements are no events.
            (
                "update email_outbox set status = 'SENT', sent_at = now(), meta_updated_at = \
                 now(), error_message = null",
                true,
            ),
        ],
    );

    let ids = sql.rows(
        "select id::text from email_outbox order by meta_created_at",
        &[],
    );
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
        record(
            0,
            "ann@example.com",
            Some(&key),
            r#"{"body": "<b>Grüße", "subject": "Memo Holidays Created"}"#,
        ),
        record(
            1,
            "bob@example.com",
            None,
            r#"{"body": "", "subject": "Memo Holidays Created"}"#,
        ),
    ];
    assert_eq!(team.relayed(), expected);
}
