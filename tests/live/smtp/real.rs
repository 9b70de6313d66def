//! P1, P2, P3: Postfix takes the mails, and they are read back from where it delivers them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Mails;
use super::campaign::{self, Event, assert_in_order};
use crate::support::relay::{EXIT, RelayCommand};
use crate::support::servers::{Postfix, Postgres};
use crate::support::wait::{eventually, grown};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World};

/// A field of a mail in a file.
fn field<'a>(mail: &'a str, name: &str) -> &'a str {
    let head = mail.split("\n\n").next().unwrap_or_default();
    let value = head
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.unwrap_or_default()
}

/// The mails that Postfix has taken, as far as its log has them: the last lines before a kill are
/// lost.
fn taken(postfix: &Postfix) -> usize {
    postfix.log().matches(": message-id=").count()
}

/// When Postfix took a mail: long ids of its queue begin with the time, and sort by it.
fn queue_id(mail: &str) -> &str {
    let received = mail
        .split("\n\n")
        .next()
        .and_then(|head| head.split_once("(Postfix) with ESMTP id "));
    let id = received.and_then(|(_, rest)| rest.split_whitespace().next());
    id.expect("the id of the queue")
}

/// P1, P2.
#[test]
fn mails_reach_postfix_in_order_of_each_key_through_kills_of_both() {
    let Some(mut postfix) = Postfix::start("") else {
        return;
    };
    let world = campaign::world();
    let command = campaign::run(&world, &postfix.port.to_string());
    let mut relay = command.start();
    relay.wait_ready();
    let workload = world.workload(&Plan {
        pause: Duration::from_millis(100),
        ..Plan::default()
    });
    for round in 1..=6 {
        let before = taken(&postfix);
        let arrive = || taken(&postfix);
        eventually("mails arrive", ARRIVAL, arrive, |taken| {
            *taken > before + 100
        });
        if round % 2 == 0 {
            postfix.kill_hard();
            workload.wait_for(20);
            postfix.run();
        } else {
            relay.kill_hard();
            relay = command.start();
        }
    }
    workload.stop();
    let rows = || {
        let mails = postfix.mails();
        let rows: std::collections::BTreeSet<_> = mails
            .iter()
            .map(|mail| field(mail, "X-Row").to_owned())
            .collect();
        i64::try_from(rows.len()).expect("a count")
    };
    grown("rows with a mail", world.committed(), rows);
    world.wait_confirmed();
    let mut mails = postfix.mails();
    mails.sort_by(|a, b| queue_id(a).cmp(queue_id(b)));
    let mut by_id: BTreeMap<&str, &str> = BTreeMap::new();
    let mut copies = 0;
    for mail in &mails {
        let own = mail
            .find("Message-ID: ")
            .map_or("", |at| mail.split_at(at).1);
        let id = field(mail, "Message-ID");
        if let Some(before) = by_id.insert(id, own) {
            assert_eq!(before, own, "a copy differs");
            copies += 1;
        }
    }
    let events = mails.iter().map(|mail| Event {
        row: field(mail, "X-Row"),
        aggregate: field(mail, "X-Aggregate"),
        version: field(mail, "X-Version").parse().expect("a version"),
    });
    let committed = usize::try_from(world.committed()).expect("a count");
    assert_in_order(events, committed);
    println!("{committed} mails, 3 kills of the relay and 3 of Postfix, {copies} duplicates");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3: with the limits of Postfix as they are by default.
#[test]
fn unknown_recipients_among_many_are_parked_and_hold_up_nobody() {
    let Some(postfix) = Postfix::start("") else {
        return;
    };
    let mails = Mails::to(postfix.port, "");
    let mut relay = mails.relay("park");
    mails.sql().run(
        "insert into mails (recipient) select case when n % 41 = 0 then 'unknown' || n else 'ann'
         end || '@example.org' from generate_series(1, 1025) n",
    );
    let parked = || mails.world.number_parked();
    eventually("the unknown ones", ARRIVAL, parked, |parked| *parked == 25);
    eventually(
        "the others",
        ARRIVAL,
        || postfix.count(),
        |count| *count == 1_000,
    );
    mails.world.wait_confirmed();
    let why = "select string_agg(distinct class || ' ' || split_part(error, ':', 2), ';')
               from walrelay.parked";
    let why = mails.sql().text(why);
    assert!(why.starts_with("rejected  550 5.1.1"), "{why}");
    let log = postfix.log();
    assert!(!log.contains("too many errors"), "{log}");
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3: this Postfix takes LF for the end of a line.
#[test]
fn a_body_makes_no_second_mail_in_postfix() {
    let Some(postfix) = Postfix::start("message_size_limit = 20000") else {
        return;
    };
    let mails = Mails::to(postfix.port, "");
    let mut relay = mails.relay("park");
    let sql = mails.sql();
    let evil = "MAIL FROM:<eve@example.org>|RCPT TO:<ann@example.org>|DATA|Subject: evil||evil|.|";
    for end in ["\n", "\r\n", "\r"] {
        for dot in ["\n.\n", "\r\n.\r\n", "\r.\r", "\n.\r\n", "\r\n.\n", "\r.\n"] {
            let body = format!("text{dot}{}", evil.replace('|', end));
            let insert = "insert into mails (recipient, payload) values ('ann@example.org', $1)
                          returning id";
            sql.rows(insert, &[&body]);
        }
    }
    let large = "insert into mails (recipient, payload) values ('ann@example.org',
                 repeat('x', 30000))";
    sql.run(large);
    eventually(
        "one for each",
        ARRIVAL,
        || postfix.count(),
        |count| *count >= 18,
    );
    let parked = || mails.parked();
    eventually("but one", ARRIVAL, parked, |parked| {
        parked == "shop too-large"
    });
    mails.world.wait_confirmed();
    assert_eq!(taken(&postfix), 18);
    let subjects = postfix.mails();
    assert!(
        subjects
            .iter()
            .all(|mail| field(mail, "Subject") == "Hello"),
        "{subjects:?}"
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3, P13: `examples/email-outbox`: the team's own table and statements.
#[test]
fn the_mails_of_a_team_are_sent_marked_and_sent_again() {
    let refuses = "smtpd_recipient_restrictions = reject_unauth_destination,\n \
                   check_recipient_access \
                   inline:{ {later@example.org = 450 come later} }\n";
    let Some(postfix) = Postfix::start(refuses) else {
        return;
    };
    let config = include_str!("../../../examples/email-outbox/smtp.toml");
    let is_login = |line: &&str| line.starts_with("user = ") || line.starts_with("password_file");
    let lines = config.lines().filter(|line| !is_login(line));
    let config: &str = &lines.map(|line| format!("{line}\n")).collect::<String>();
    let world = World::bare(Postgres::shared(), "");
    let schema = include_str!("../../../examples/email-outbox/schema.sql");
    world.sql().run(&format!("drop table outbox; {schema}"));
    world.command("setup").config_file(config).succeed();
    let run = world
        .command("run")
        .option("--sink", "smtp")
        .option("--log-format", "json")
        .config_file(config)
        .variable("WALRELAY_SMTP_HOST", "127.0.0.1")
        .variable("WALRELAY_SMTP_PORT", &postfix.port.to_string())
        .variable("WALRELAY_SMTP_TLS", "off")
        .variable("WALRELAY_SMTP_RECIPIENT_WAIT", "200ms")
        .variable("WALRELAY_DELIVERY_RETRY_BASE", "1s");
    let mut relay = run.start();
    relay.wait_ready();
    let sql = world.sql();
    let memo = "6f2b0f0e-54f1-4a1c-9f43-0d2f4c1c7a01";
    let insert = |recipient: &str| {
        sql.run(&format!(
            r#"insert into email_outbox (memo_id, event_type, payload, recipient_email,
                   notification_type, idempotency_key)
               values ('{memo}', 'memo.created',
                   '{{"subject": "Memo Grüße Created", "body": "A\nb"}}', '{recipient}',
                   'MEMO_CREATED', '{memo}-{recipient}')"#
        ));
    };
    sql.run(&format!(
        "insert into memos (id, memo_number_prefix, department_code, title)
         values ('{memo}', 'HR', 'HR-01', 'Holidays')"
    ));
    insert("ann@example.org");
    insert("unknown@example.org");
    insert("later@example.org");
    let says = |recipient: &str| {
        sql.text(&format!(
            "select concat_ws(' ', status, retry_count, sent_at is not null, error_message)
             from email_outbox where recipient_email = '{recipient}'"
        ))
    };
    eventually(
        "it is sent",
        ARRIVAL,
        || says("ann@example.org"),
        |says| says == "SENT 0 t",
    );
    let of = || says("unknown@example.org");
    let failed = eventually("it fails", ARRIVAL, of, |says| says.starts_with("FAILED"));
    assert!(
        failed.starts_with("FAILED 1 f") && failed.contains("550 5.1.1"),
        "{failed}"
    );
    let of = || says("later@example.org");
    eventually("it waits", ARRIVAL, of, |says| says.starts_with("SENDING"));
    // A mail that waits holds up no other, nor its state.
    insert("bob@example.org");
    let of = || says("bob@example.org");
    eventually("it is sent", ARRIVAL, of, |says| says == "SENT 0 t");
    let of = || says("later@example.org");
    let waiting = of();
    assert!(waiting.starts_with("SENDING"), "{waiting}");
    eventually("it fails", ARRIVAL, of, |says| says.starts_with("FAILED"));
    let failed = says("later@example.org");
    assert!(
        failed.starts_with("FAILED 5 f") && failed.contains("450"),
        "{failed}"
    );
    let refused = || postfix.log().matches("reject: RCPT").count();
    eventually("1 and 5 attempts", ARRIVAL, refused, |count| *count == 6);
    // The page's own statements: the mail is given up, its address corrected, and it is sent again.
    RelayCommand::new("parked")
        .flag("drop")
        .option("--database-url", &world.database_url)
        .option("--slot", &world.name)
        .option("--class", "rejected")
        .flag("--yes")
        .succeed();
    eventually(
        "one is left",
        ARRIVAL,
        || world.number_parked(),
        |number| *number == 1,
    );
    sql.run(
        "update email_outbox set recipient_email = 'eve@example.org' where recipient_email like
         'unknown%'",
    );
    sql.run(
        "UPDATE email_outbox SET status = 'PENDING', retry_count = 0, error_message = NULL,
         meta_updated_at = now() WHERE recipient_email = 'eve@example.org'",
    );
    eventually(
        "it is sent",
        ARRIVAL,
        || says("eve@example.org"),
        |says| says == "SENT 0 t",
    );
    let delivered = || {
        let mails = postfix.mails();
        mails
            .into_iter()
            .find(|mail| field(mail, "To") == "eve@example.org")
    };
    let mail = eventually("it is there", ARRIVAL, delivered, Option::is_some).expect("a mail");
    assert_eq!(
        field(&mail, "Subject"),
        "Memo =?utf-8?b?R3LDvMOfZQ==?= Created",
        "{mail}"
    );
    assert!(mail.trim_end().ends_with("\n\nA\nb"), "{mail}");
    let key = format!("{memo}-unknown@example.org");
    assert_eq!(field(&mail, "X-Idempotency-Key"), key);
    // Housekeeping keeps what was not sent.
    sql.run(
        "update email_outbox set sent_at = now() - interval '40 days' where sent_at is not null",
    );
    let clean = world.command("cleanup").config_file(config);
    clean.option("--older-than", "30d").flag("--yes").succeed();
    assert_eq!(
        sql.text("select string_agg(status, ' ') from email_outbox"),
        "FAILED"
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
