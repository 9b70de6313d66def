//! P1, P3, P11: what rows and servers may try.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::server::{Mail, Reply, Server, Step};
use super::{BUS_REFUSED, Mails, logged};
use crate::support::relay::{EXIT, last_words};
use crate::support::wait::eventually;
use crate::support::world::ARRIVAL;

/// How a program that is not ours reads a mail.
const READER: &str = "
import email, email.policy, json, sys
mail = email.message_from_bytes(sys.stdin.buffer.read(), policy=email.policy.default)
fields = [[name, str(value)] for name, value in mail.items()]
defects = [str(d) for d in mail.defects] + [str(d) for _, v in mail.items() for d in v.defects]
body = mail.get_payload(decode=True) or b''
print(json.dumps({'fields': fields, 'defects': defects, 'type': mail.get_content_type(),
                  'body': body.decode('utf-8', 'replace')}))
";

#[track_caller]
fn read(mail: &Mail) -> Value {
    let mut python = Command::new("python3")
        .args(["-c", READER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut stdin = python.stdin.take().expect("its input");
    stdin.write_all(mail.text.as_bytes()).expect("its input");
    drop(stdin);
    let output = python.wait_with_output().expect("its output");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", mail.text))
}

fn field<'a>(read: &'a Value, name: &str) -> &'a str {
    let fields = read["fields"].as_array().expect("fields");
    let found = fields.iter().find(|field| field[0] == name);
    found
        .and_then(|field| field[1].as_str())
        .unwrap_or_default()
}

/// P13: another program reads what was written.
#[test]
fn a_mail_is_what_the_row_says() {
    let server = Server::listen(|_: &Step<'_>| None);
    let mut mails = Mails::to(server.port, "envelope_from = \"bounces@example.org\"");
    mails.config = mails.config.replace(
        "Subject = ",
        "Cc = \"{payload.cc}\"\nBcc = \"{payload.bcc}\"\nReply-To = \"help@example.org\"\n\
         Content-Type = \"{payload.type}\"\nX-Key = \"{aggregateid}\"\nSubject = ",
    );
    mails.config += "[format]\nvalue = \"{payload.body}\"\n";
    let mut relay = mails.relay("park");
    let body = "Grüße,\n\n.\n..\r\nFrom me\r\rlast ";
    let long = "ü".repeat(3_000);
    let payload = json!({"body": body, "cc": "Bob <bob@example.org>, eve@example.org",
        "bcc": "hidden@example.org", "type": "text/html; charset=utf-8"});
    let plain = json!({"body": long});
    let sql = mails.sql();
    sql.rows(
        "insert into mails (sender, recipient, subject, payload, metadata, created_at, aggregateid)
         values ('\"Shop, Ltd.\" <shop@example.org>', 'Änn <ann@example.org>', $1, $2,
             '{\"X-Tenant\": \"ü\", \"X-Empty\": null}', '1999-12-31 23:59:59+00', 'k'),
             ('shop@example.org', 'ann@example.org', '', $3, '{}', now(), null) returning id",
        &[
            &"Grüße ".repeat(30),
            &payload.to_string(),
            &plain.to_string(),
        ],
    );
    eventually(
        "both are taken",
        ARRIVAL,
        || server.kept_count(),
        |kept| *kept == 2,
    );
    let kept = server.kept();
    let first = kept
        .iter()
        .find(|mail| !mail.field("X-Key").is_empty())
        .expect("the first");
    let recipients = [
        "ann@example.org",
        "bob@example.org",
        "eve@example.org",
        "hidden@example.org",
    ];
    assert_eq!(
        (first.sender.as_str(), &first.recipients[..]),
        ("bounces@example.org", &recipients.map(str::to_owned)[..])
    );
    assert!(!first.text.contains("hidden"), "{}", first.text);
    let seen = read(first);
    assert_eq!(seen["defects"], json!([]), "{}", first.text);
    assert_eq!(
        seen["body"], "Grüße,\r\n\r\n.\r\n..\r\nFrom me\r\n\r\nlast ",
        "{}",
        first.text
    );
    assert_eq!(seen["type"], "text/html");
    for (name, value) in [
        ("From", "\"Shop, Ltd.\" <shop@example.org>"),
        ("To", "Änn <ann@example.org>"),
        ("Cc", "Bob <bob@example.org>, eve@example.org"),
        ("Bcc", ""),
        ("Reply-To", "help@example.org"),
        ("Date", "Fri, 31 Dec 1999 23:59:59 +0000"),
        ("X-Tenant", "ü"),
        ("X-Empty", ""),
        ("Auto-Submitted", "auto-generated"),
        ("MIME-Version", "1.0"),
        ("id", ""),
        ("walrelay-position", ""),
    ] {
        assert_eq!(field(&seen, name), value, "{name}: {}", first.text);
    }
    assert_eq!(field(&seen, "Subject"), "Grüße ".repeat(30));
    let id = sql.text("select id::text from mails where aggregateid = 'k'");
    assert!(first.id().starts_with(&format!("<{id}.")), "{}", first.id());
    assert!(first.id().ends_with("@example.org>"), "{}", first.id());
    let second = kept
        .iter()
        .find(|mail| mail.field("X-Key").is_empty())
        .expect("the second");
    let seen = read(second);
    assert_eq!(
        seen["body"].as_str().map(str::trim_end),
        Some(long.as_str())
    );
    assert!(second.text.is_ascii() && second.text.lines().all(|line| line.len() < 80));
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3: a value that is a whole mail is sent as it is, with what it lacks.
#[test]
fn a_value_can_be_a_whole_mail() {
    let server = Server::listen(|_: &Step<'_>| None);
    let mut mails = Mails::to(server.port, "value = \"message\"");
    mails.config = mails.config.replace("Subject = \"{subject}\"\n", "");
    mails.config = mails.config.replace("headers_from = \"{metadata}\"\n", "");
    let mut relay = mails.relay("park");
    let sql = mails.sql();
    let parts = "From: shop@example.org\nTo: all@example.org\nSubject: both\nMIME-Version: 1.0\n\
                 Content-Type: multipart/alternative;\n boundary=b\n\n--b\nContent-Type: \
                 text/plain\n\n\
                 .\nplain\n--b\nContent-Type: text/html; charset=utf-8\n\
                 Content-Transfer-Encoding: 8bit\n\n<p>ü\n--b--\n";
    let own =
        "Message-ID: <own@example.org>\nDate: Fri, 31 Dec 1999 23:59:59 +0000\nFrom: a@b.c\n\n";
    for value in [
        parts,
        own,
        "no mail at all",
        "\n\nFrom: a@b.c\n\ntext",
        " folded: x\nFrom: a@b.c\n\ntext",
        "From: a@b.c\nBcc: hidden@example.org\n\ntext",
        "Subject: no author\n\ntext",
        "From: ü@example.org\n\ntext",
    ] {
        let insert = "insert into mails (recipient, payload) values ('ann@example.org', $1) \
                      returning id";
        sql.rows(insert, &[&value]);
    }
    let long = format!("From: a@b.c\n\n{}", "x".repeat(999));
    let insert =
        "insert into mails (recipient, payload) values ('ann@example.org', $1) returning id";
    sql.rows(insert, &[&long]);
    let parked = || mails.world.number_parked();
    eventually("seven are none", ARRIVAL, parked, |parked| *parked == 7);
    eventually(
        "two are mails",
        ARRIVAL,
        || server.kept_count(),
        |kept| *kept == 2,
    );
    let kept = server.kept();
    let own = kept
        .iter()
        .find(|mail| mail.id() == "<own@example.org>")
        .expect("its own id");
    assert_eq!(own.text.matches("Date: ").count(), 1, "{}", own.text);
    let both = kept
        .iter()
        .find(|mail| mail.id() != "<own@example.org>")
        .expect("the other");
    let seen = read(both);
    assert_eq!(seen["type"], "multipart/alternative");
    assert!(
        !field(&seen, "Date").is_empty() && both.id().contains('.'),
        "{}",
        both.text
    );
    assert!(both.text.contains("\r\n.\r\nplain\r\n"), "{}", both.text);
    let is_8bit = |line: &String| line.starts_with("MAIL FROM:") && line.contains("BODY=8BITMIME");
    assert!(
        server.commands().iter().any(is_8bit),
        "{:?}",
        server.commands()
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3: a row makes one mail or none, to nobody else.
#[test]
fn a_row_cannot_add_recipients_fields_or_mails() {
    let server = Server::listen(|_: &Step<'_>| None);
    let mails = Mails::to(server.port, "");
    let mut relay = mails.relay("park");
    let sql = mails.sql();
    let insert = |column: &str, value: &str| {
        let recipient = "coalesce(nullif($1, ''), 'ann@example.org')";
        let (recipient, column) = match column {
            "recipient" => (recipient, "payload"),
            column => ("'ann@example.org'", column),
        };
        let cast = if column == "metadata" {
            "::text::jsonb"
        } else {
            ""
        };
        let text = format!(
            "insert into mails (recipient, {column}) values ({recipient}, $1{cast}) returning id"
        );
        sql.rows(&text, &[&value]);
    };
    // Each of these is one mail.
    let smuggled = [
        "a\n.\nMAIL FROM:<x@example.org>\nRCPT TO:<eve@example.org>\nDATA\nSubject: evil\n\nevil\n\
         .\n",
        "a\r\n.\r\nMAIL FROM:<x@example.org>\r\n",
        "a\r.\rMAIL FROM:<x@example.org>\r",
        "a\n.\r\nMAIL FROM:<x@example.org>\r\n",
        ".",
        ".\n",
        "\n.\n",
    ];
    smuggled.iter().for_each(|body| insert("payload", body));
    let one_word = "x".repeat(900);
    insert("subject", &one_word);
    // And these are none.
    let none = [
        ("metadata", r#"{"X\r\nBcc": "eve@example.org"}"#),
        ("metadata", r#"{"X-A": "a\r\nBcc: eve@example.org"}"#),
        ("metadata", r#"{"Bcc": "eve@example.org"}"#),
        ("metadata", r#"{"bcc": "eve@example.org"}"#),
        ("metadata", r#"{"Cc": "eve@example.org"}"#),
        ("metadata", r#"{"Sender": "eve@example.org"}"#),
        ("metadata", r#"{"Return-Path": "eve@example.org"}"#),
        ("metadata", r#"{"Content-Transfer-Encoding": "8bit"}"#),
        ("metadata", r#"{"X-A:": "a"}"#),
        ("metadata", r#"{"X-": "a"}"#),
        ("metadata", r#"{"X-ü": "a"}"#),
        ("metadata", r#"{"subject": "twice"}"#),
        ("subject", "a\r\nBcc: eve@example.org"),
        ("subject", "a\nBcc: eve@example.org"),
        ("recipient", "ann@example.org>\r\nRCPT TO:<eve@example.org"),
        ("recipient", "ann@example.org> SIZE=1 <"),
        ("recipient", "ann"),
        ("recipient", "ünn@example.org"),
        ("recipient", "\"a\r\nb\"@example.org"),
        ("sender", "shop@example.org\r\nRCPT TO:<eve@example.org>"),
        ("sender", "a@example.org, b@example.org"),
    ];
    none.iter()
        .for_each(|(column, value)| insert(column, value));
    insert("subject", &"x".repeat(1_500));
    let many = ["ann@example.org"; 101].join(",");
    insert("recipient", &many);
    sql.run("insert into mails (recipient, created_at) values ('ann@example.org', null)");
    sql.run("insert into mails (recipient) values (null)");
    let parked = || mails.world.number_parked();
    let refused = i64::try_from(none.len() + 4).expect("a count");
    eventually("these are refused", ARRIVAL, parked, |parked| {
        *parked == refused
    });
    let taken = smuggled.len() + 1;
    eventually(
        "one mail each",
        ARRIVAL,
        || server.kept_count(),
        |kept| *kept == taken,
    );
    mails.world.wait_confirmed();
    assert_eq!(server.kept_count(), taken);
    for mail in server.kept() {
        assert_eq!(mail.recipients, ["ann@example.org"], "{}", mail.text);
        assert_eq!(mail.sender, "shop@example.org");
    }
    let dots = server
        .kept()
        .iter()
        .filter(|mail| mail.text.contains("\r\n.\r\n"))
        .count();
    assert_eq!(dots, smuggled.len(), "the dots arrive as text");
    let log = relay.log();
    assert!(!log.contains("eve@"), "{log}");
    assert_eq!(relay.terminate(EXIT), Some(0), "{log}");
}

/// P1: silence ends by the clock, and holds up no other connection.
#[test]
fn a_silent_server_holds_up_its_own_mail_alone() {
    let silent = Arc::new(AtomicBool::new(true));
    let is_silent = Arc::clone(&silent);
    let mut hung = Vec::new();
    let server = Server::listen(move |step: &Step<'_>| {
        let is_greeting = step.verb == "GREETING" && step.open == 2;
        let is_end = step.verb == "END" && step.mail.sender.starts_with("slow");
        let wanted = (is_greeting || is_end) && is_silent.load(Ordering::Relaxed);
        if !wanted || hung.contains(&step.verb.to_owned()) {
            return None;
        }
        hung.push(step.verb.to_owned());
        Some(Reply::Hang)
    });
    let mails = Mails::to(server.port, "timeout = \"15s\"\nfinal_timeout = \"20s\"");
    let mut relay = mails.relay("park");
    mails.insert("slow");
    let asked = || server.asked().len();
    eventually("the slow one is under way", ARRIVAL, asked, |asked| {
        *asked == 1
    });
    let insert = "insert into mails (recipient) select 'ann@example.org' from \
                  generate_series(1, 50)";
    mails.sql().run(insert);
    eventually(
        "others are taken",
        ARRIVAL,
        || server.kept_count(),
        |kept| *kept >= 50,
    );
    eventually(
        "it comes again",
        ARRIVAL,
        || server.kept_count(),
        |kept| *kept == 51,
    );
    let asked = server.asked();
    let copies: Vec<&Mail> = asked
        .iter()
        .filter(|mail| mail.sender.starts_with("slow"))
        .collect();
    assert_eq!(copies.len(), 2);
    assert_eq!(copies[0], copies[1]);
    silent.store(false, Ordering::Relaxed);
    mails.world.wait_confirmed();
    assert_eq!(mails.world.number_parked(), 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3, P12: the mails wait for the operator.
#[test]
fn a_password_that_is_revoked_halts_the_relay_and_fails_no_mail() {
    let revoked = Arc::new(AtomicBool::new(false));
    let is_revoked = Arc::clone(&revoked);
    let server = Server::listen(move |step: &Step<'_>| {
        let is_revoked = is_revoked.load(Ordering::Relaxed);
        match step.verb {
            "AUTH" if is_revoked => Reply::say("535 5.7.8 authentication failed"),
            "MAIL" if is_revoked => Reply::say("530 5.7.0 authentication required"),
            _ => None,
        }
    });
    let mails = Mails::to(server.port, "user = \"u\"");
    let run = mails.run().option("--on-error", "park");
    let run = run
        .variable("WALRELAY_SMTP_PASSWORD", "canary")
        .variable("WALRELAY_SHUTDOWN_TIMEOUT", "1s");
    let mut relay = run.start();
    relay.wait_ready();
    (0..20).for_each(|_| mails.insert("good"));
    eventually(
        "they are taken",
        ARRIVAL,
        || server.kept_count(),
        |kept| *kept == 20,
    );
    revoked.store(true, Ordering::Relaxed);
    (0..20).for_each(|_| mails.insert("good"));
    assert_eq!(relay.wait_exit(EXIT), BUS_REFUSED, "{}", relay.log());
    let log = relay.log();
    assert!(last_words(&log).1.contains("smtp.password_file"), "{log}");
    assert!(!log.contains("canary"), "{log}");
    assert_eq!(mails.world.number_parked(), 0);
    revoked.store(false, Ordering::Relaxed);
    let mut relay = run.start();
    relay.wait_ready();
    eventually(
        "the rest is taken",
        ARRIVAL,
        || server.kept_count(),
        |kept| *kept == 40,
    );
    assert_eq!(relay.terminate(EXIT), Some(0));
}

/// P3: more than eight refusals make a server slow, and then silent.
#[test]
fn a_connection_is_renewed_before_the_server_has_enough_of_it() {
    let server = Server::listen(|step: &Step<'_>| match step.verb {
        "RCPT" if step.mail.sender.starts_with("bad") => Reply::say("550 no such user"),
        _ => None,
    });
    let mails = Mails::to(server.port, "max_in_flight = 1");
    let mut relay = mails.relay("park");
    for _ in 0..20 {
        mails.insert("bad");
        mails.insert("good");
    }
    let parked = || mails.world.number_parked();
    eventually("these are refused", ARRIVAL, parked, |parked| *parked == 20);
    eventually(
        "others are taken",
        ARRIVAL,
        || server.kept_count(),
        |kept| *kept == 20,
    );
    let commands = server.commands();
    let count = |verb: &str| {
        commands
            .iter()
            .filter(|line| line.starts_with(verb))
            .count()
    };
    assert!(count("QUIT") >= 2, "after 8 and 16 refusals");
    assert!(count("EHLO") >= 3);
    assert!(count("RSET") >= 17, "{}", count("RSET"));
    assert!(!relay.log().contains("bus_disconnected"), "{}", relay.log());
    assert_eq!(logged(&relay, "event_parked")["class"], "rejected");
    assert_eq!(relay.terminate(EXIT), Some(0));
}
