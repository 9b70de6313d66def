//! P3, P13: a row nobody can take is marked as the team marks what failed, with why; the others go
//! on; and the team's own statement tries it again.

use super::{EMAIL, EXIT, Outbox};
use crate::support::wait::eventually;
use crate::support::workload::Plan;
use crate::support::world::ARRIVAL;

#[test]
fn an_undeliverable_mail_is_marked_failed_and_sent_after_its_repair() {
    for mode in ["slot", "poll"] {
        let outbox = Outbox::in_mode(mode, &EMAIL);
        let config = outbox.config.replace(
            "[delivery]\n",
            &format!(
                "[delivery]\ndead_letter_topic = \"{}.dead\"\n",
                outbox.world.name
            ),
        );
        let sql = outbox.sql();
        let mut relay = outbox.run(mode).config_file(&config).start();
        let writers = outbox.world.workload(&Plan {
            writers: 3,
            aggregates: 8,
            ..Plan::default()
        });
        writers.wait_for(50);
        sql.run(
            "insert into email_outbox (memo_id, event_type, payload, recipient_email, \
             notification_type, idempotency_key)
             select memo_id, event_type, jsonb_build_object('subject', 'bad', 'body', repeat('x', \
             2000000)), 'a@example.com', 'BAD', 'bad'
             from email_outbox limit 1",
        );
        writers.wait_for(50);
        let failed = || outbox.count("status = 'FAILED' and payload->>'subject' = 'bad'");
        eventually("it has failed", ARRIVAL, failed, |rows| *rows == 1);
        writers.stop();
        let why =
            sql.text("select error_message from email_outbox where payload->>'subject' = 'bad'");
        assert!(why.contains("more than message.max.bytes"), "{why}");
        assert_eq!(
            sql.text("select retry_count from email_outbox where payload->>'subject' = 'bad'"),
            "1"
        );
        let pending = || outbox.count("status = 'PENDING'");
        eventually("all others are sent", ARRIVAL, pending, |rows| *rows == 0);

        sql.run(
            "update email_outbox set payload = jsonb_build_object('subject', 'bad', 'body', \
                 'short') where payload->>'subject' = 'bad'",
        );
        sql.run(
            "UPDATE email_outbox SET status = 'PENDING', retry_count = 0, error_message = NULL, \
             meta_updated_at = now()
             WHERE payload->>'subject' = 'bad'",
        );
        let sent = || {
            outbox
                .count("status = 'SENT' and payload->>'subject' = 'bad' and error_message is null")
        };
        eventually("it is sent", ARRIVAL, sent, |rows| *rows == 1);
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}
