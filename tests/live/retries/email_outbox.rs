//! P3: `examples/email-outbox`: five attempts, then FAILED with the error text; a plain UPDATE
//! tries again.

use super::{EXIT, Team, assert_told, told};
use crate::support::wait::eventually;
use crate::support::world::ARRIVAL;

#[test]
fn a_refused_mail_fails_after_five_attempts_and_is_retried_when_set_to_pending() {
    let team = Team::new(
        "email_outbox",
        include_str!("../../../examples/email-outbox/schema.sql"),
        &include_str!("../../../examples/email-outbox/walrelay.toml").replace(
            "[delivery]\n",
            "[delivery]\ndead_letter_topic = \"dead-letters\"\n",
        ),
        &["email-notifications", "dead-letters"],
    );
    let topic = format!("{}.email-notifications", team.world.name);
    let dead = format!("{}.dead-letters", team.world.name);
    team.create(&dead);
    let sql = team.sql();
    let mut relay = team.relay("250ms");
    sql.run(
        "insert into memos (id, memo_number_prefix, department_code, title)
         values ('6f2b0f0e-54f1-4a1c-9f43-0d2f4c1c7a01', 'HR', 'HR-01', 'Holidays');
         insert into email_outbox (memo_id, event_type, payload, recipient_email, notification_type)
         values ('6f2b0f0e-54f1-4a1c-9f43-0d2f4c1c7a01', 'memo.created', '{}', 'ann@example.com', \
         'MEMO_CREATED')",
    );
    team.wait(
        "concat_ws(' ', status, retry_count, sent_at)",
        "true",
        "FAILED 5",
    );
    assert_told(
        &told(&relay, "a topic refuses records"),
        "tries",
        &[Some(250), Some(500), Some(1_000), Some(2_000), None],
    );
    let why = team.says(
        "error_message",
        "last_attempt_at is not null and meta_updated_at is not null",
    );
    assert!(
        why.contains("the topic does not exist") && why.contains(&topic),
        "{why}"
    );
    let letters = || team.records(&dead);
    let letters = eventually("the dead letter is there", ARRIVAL, letters, |letters| {
        !letters.is_empty()
    });
    let header = |name| letters[0].header(name);
    assert_eq!(
        (header("walrelay-error-class"), header("walrelay-attempts")),
        ("refused".into(), "5".into())
    );

    // The page's own statement, by an operator who sees whether it helped.
    team.create(&topic);
    let again = || {
        sql.run(
            "UPDATE email_outbox SET status = 'PENDING', retry_count = 0, error_message = NULL, \
             meta_updated_at = now()
             WHERE status = 'FAILED'",
        );
        team.says(
            "concat_ws(' ', status, retry_count, error_message)",
            "sent_at is not null",
        )
    };
    eventually("it is sent", ARRIVAL, again, |says| says == "SENT 0");
    assert_eq!(team.events(&topic), 1);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
