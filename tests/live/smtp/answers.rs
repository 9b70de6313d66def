//! P3: each answer in each phase has its consequence.

use std::collections::BTreeMap;

use super::server::{Reply, Server, Step};
use super::{BUS_REFUSED, Mails, logged};
use crate::support::certificates::{Authority, LOOPBACK};
use crate::support::relay::{EXIT, last_words};
use crate::support::wait::eventually;
use crate::support::world::ARRIVAL;

/// Short waits, for servers that answer at once.
const SOON: &str = "recipient_wait = \"300ms\"\ntimeout = \"20s\"";

/// The name before the `@`.
fn name(address: &str) -> &str {
    address.split('@').next().unwrap_or_default()
}

/// Answers as the sender's name says, such as `rcpt-450-2`: two times 450 to `RCPT`.
fn by_name() -> impl FnMut(&Step<'_>) -> Option<Reply> + Send {
    let mut answers: BTreeMap<String, u32> = BTreeMap::new();
    move |step: &Step<'_>| {
        let of_line = step.line.split(['<', '>']).nth(1).unwrap_or_default();
        let sender = match step.verb {
            "MAIL" => name(of_line),
            _ => name(&step.mail.sender),
        };
        let mut parts = sender.split('-');
        if parts.next()? != step.verb.to_ascii_lowercase() {
            return None;
        }
        let code = parts.next()?;
        let times = parts.next().and_then(|times| times.parse().ok());
        let given = answers.entry(sender.to_owned()).or_default();
        *given += 1;
        if times.is_some_and(|times| *given > times) {
            return None;
        }
        match code {
            "close" => Some(Reply::Close),
            "kept" => Some(Reply::KeepAndClose),
            code => Reply::say(&format!("{code} as you say <{of_line}>")),
        }
    }
}

#[test]
fn each_answer_refuses_its_own_mail_or_waits_and_others_flow() {
    let server = Server::listen(by_name());
    let mails = Mails::to(server.port, SOON);
    let mut relay = mails.relay("park");
    let refused = [
        "mail-501", "mail-550", "mail-552", "mail-553", "mail-554", "rcpt-501", "rcpt-550",
        "rcpt-551", "rcpt-552", "rcpt-553", "rcpt-554", "data-550", "data-554", "end-550",
        "end-552", "end-554",
    ];
    let waits = [
        "mail-421-1",
        "mail-450-2",
        "mail-452-2",
        "mail-close-1",
        "rcpt-421-1",
        "rcpt-450-2",
        "rcpt-451-2",
        "rcpt-452-2",
        "rcpt-close-1",
        "data-250-1",
        "data-334-1",
        "data-421-1",
        "data-451-2",
        "data-close-1",
        "data-nonsense-1",
        "end-354-1",
        "end-421-1",
        "end-451-2",
        "end-452-2",
        "end-650-1",
        "end-close-1",
        "end-nonsense-1",
        "rcpt-nonsense-1",
    ];
    for sender in refused.iter().chain(&waits) {
        mails.insert(sender);
        mails.insert("good");
    }
    let taken = refused.len() + 2 * waits.len();
    let kept = || server.kept_count();
    eventually("all others are taken", 2 * ARRIVAL, kept, |kept| {
        *kept == taken
    });
    let parked = || mails.parked();
    let expected = refused.map(|sender| {
        let is_large = ["mail-552", "end-552"].contains(&sender);
        format!(
            "{sender} {}",
            if is_large { "too-large" } else { "rejected" }
        )
    });
    let mut expected = expected.to_vec();
    expected.sort();
    let expected = expected.join(", ");
    eventually("the others are parked", ARRIVAL, parked, |parked| {
        *parked == expected
    });
    mails.world.wait_confirmed();
    // Whole mails that were not taken at once came again as they were.
    let asked = server.asked();
    for sender in waits.iter().filter(|sender| sender.starts_with("end-")) {
        let copies = asked.iter().filter(|mail| name(&mail.sender) == *sender);
        let copies: Vec<_> = copies.collect();
        assert!(copies.len() > 1, "{sender}");
        assert!(copies.iter().all(|copy| **copy == *copies[0]), "{copies:?}");
    }
    let log = relay.log();
    assert!(
        log.contains("550 as you say") && !log.contains("@example.org"),
        "{log}"
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{log}");
}

/// P3: attempts of an event are counted, and then it waits for an operator.
#[test]
fn a_recipient_that_is_never_taken_is_tried_five_times_and_others_are_not_counted() {
    let server = Server::listen(by_name());
    let mut mails = Mails::to(server.port, SOON);
    mails.config += "[delivery]\nretry_attempts = 4\nretry_base = \"100ms\"\n";
    let mut relay = mails.relay("park");
    mails.insert("rcpt-450");
    mails.insert("rcpt-451-4");
    mails.insert("good");
    let asked = |sender: &str| {
        let commands = server.commands();
        let of = format!("MAIL FROM:<{sender}@");
        commands.iter().filter(|line| line.starts_with(&of)).count()
    };
    let why = || {
        let why = "select string_agg(attempts || ' ' || (next_at is null) || ' ' || error, ';')
                   from walrelay.parked";
        mails.sql().text(&format!("select coalesce(({why}), '')"))
    };
    let given_up = |why: &String| why.starts_with("5 true") && why.contains("450 as you say");
    eventually("it is given up", ARRIVAL, why, given_up);
    eventually(
        "others are taken",
        ARRIVAL,
        || server.kept_count(),
        |kept| *kept == 2,
    );
    assert_eq!([asked("rcpt-450"), asked("rcpt-451-4")], [5, 5]);
    assert_eq!(logged(&relay, "event_parked")["class"], "refused");
    assert_eq!(relay.terminate(EXIT), Some(0));
}

/// P3: the event is named, and nothing of it is sent.
#[test]
fn a_refused_mail_stops_the_relay_or_is_skipped() {
    for on_error in ["stop", "skip"] {
        let server = Server::listen(by_name());
        let mails = Mails::to(server.port, SOON);
        let mut relay = mails.relay(on_error);
        mails.insert("good");
        mails.insert("rcpt-550");
        if on_error == "stop" {
            assert_eq!(relay.wait_exit(EXIT), Some(21));
            assert!(
                last_words(&relay.log()).0.contains("550 as you say"),
                "{}",
                relay.log()
            );
            continue;
        }
        mails.insert("good");
        eventually(
            "the others",
            ARRIVAL,
            || server.kept_count(),
            |kept| *kept == 2,
        );
        mails.world.wait_confirmed();
        assert_eq!(relay.terminate(EXIT), Some(0));
    }
}

/// P1: a server that is busy is waited for, whatever it is busy with.
#[test]
fn a_server_that_takes_no_connection_now_is_waited_for() {
    let authority = Authority::new("smtp-busy");
    let identity = authority.certify("smtp-busy-server", &LOOPBACK);
    let mut times = BTreeMap::new();
    let server = Server::listen_as(&identity, false, move |step: &Step<'_>| {
        let reply = match step.verb {
            "GREETING" => "421 too many",
            "EHLO" => "451 not now",
            "STARTTLS" => "454 not now",
            "AUTH" => "454 not now",
            _ => return None,
        };
        let given = times.entry(step.verb.to_owned()).or_insert(0);
        *given += 1;
        (*given <= 2).then(|| Reply::say(reply)).flatten()
    });
    let root = authority.root().display();
    let smtp = format!("tls = \"starttls\"\nca_file = \"{root}\"\nuser = \"u\"");
    let mails = Mails::to(server.port, &smtp);
    let run = mails.run().variable("WALRELAY_SMTP_PASSWORD", "canary");
    let mut relay = run.start();
    relay.wait_ready();
    mails.insert("good");
    eventually(
        "it is taken",
        ARRIVAL,
        || server.kept_count(),
        |kept| *kept == 1,
    );
    let log = relay.log();
    assert!(
        !log.contains("canary") && log.contains("mail server does not answer"),
        "{log}"
    );
    let plain = "AUTH PLAIN AHUAY2FuYXJ5";
    assert!(
        server.commands().iter().any(|line| line == plain),
        "{:?}",
        server.commands()
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{log}");
}

/// P1: mails wait for the connections that the server allows.
#[test]
fn a_limit_of_connections_refuses_no_mail() {
    let server = Server::listen(|step: &Step<'_>| match step.verb {
        "GREETING" if step.open > 2 => Reply::say("421 4.7.0 too many connections"),
        _ => None,
    });
    let mails = Mails::to(server.port, "max_in_flight = 16");
    let mut relay = mails.relay("park");
    let insert = "insert into mails (recipient) select 'ann@example.org' from \
                  generate_series(1, 500)";
    mails.sql().run(insert);
    eventually(
        "all are taken",
        ARRIVAL,
        || server.kept_count(),
        |kept| *kept == 500,
    );
    mails.world.wait_confirmed();
    assert_eq!(mails.world.number_parked(), 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P3, P12: what an operator has to mend ends the relay; no row is given up.
#[test]
fn a_server_that_refuses_this_client_halts_the_relay() {
    for (verb, reply, cause) in [
        ("GREETING", "554 go away", "554 go away"),
        ("EHLO", "250 nothing", "does not offer AUTH"),
        // It repeats the login, which is not shown.
        ("AUTH", "535 AUTH PLAIN AHUAY2FuYXJ5", "this client: 535"),
        ("MAIL", "530 5.7.0 Authentication required", "530 5.7.0"),
        ("MAIL", "550 no such sender", "550 no such sender"),
        ("RCPT", "530 5.7.0 Authentication required", "530 5.7.0"),
    ] {
        let server = Server::listen(move |step: &Step<'_>| {
            (step.verb == verb).then(|| Reply::say(reply)).flatten()
        });
        let login = "user = \"u\"\nfrom = \"shop@example.org\"";
        let mut mails = Mails::to(server.port, login);
        mails.config = mails.config.replace("From = \"{sender}\"\n", "");
        mails.insert("good");
        let run = mails.run().option("--on-error", "park");
        let run = run
            .variable("WALRELAY_SMTP_PASSWORD", "canary")
            .variable("WALRELAY_SHUTDOWN_TIMEOUT", "100ms");
        let mut relay = run.start();
        assert_eq!(
            relay.wait_exit(EXIT),
            BUS_REFUSED,
            "{verb} {reply}: {}",
            relay.log()
        );
        let log = relay.log();
        assert!(last_words(&log).0.contains(cause), "{verb} {reply}: {log}");
        for secret in ["canary", "AHUAY2FuYXJ5"] {
            assert!(!log.contains(secret), "{log}");
        }
        assert!(!log.contains("event_parked"), "{log}");
        assert_eq!(server.kept_count(), 0);
    }
}

/// P9: a server that starts may refuse everybody for a moment.
#[test]
fn a_refusal_that_passes_at_a_start_halts_nothing() {
    let mut refusals = 0;
    let server = Server::listen(move |step: &Step<'_>| {
        let refuses = step.verb == "GREETING" && refusals < 3;
        refusals += u32::from(refuses);
        refuses.then(|| Reply::say("554 not yet")).flatten()
    });
    let mails = Mails::to(server.port, "");
    mails.insert("good");
    let mut relay = mails.relay("stop");
    let kept = || server.kept_count();
    eventually("the mail arrives", ARRIVAL, kept, |kept| *kept == 1);
    assert!(relay.log().contains("554 not yet"), "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

/// P12: a server that cannot prove itself gets neither mails nor a password.
#[test]
fn a_mail_server_that_cannot_prove_itself_gets_nothing() {
    let authority = Authority::new("smtp");
    let other = Authority::new("smtp-other");
    let identity = authority.certify("smtp-server", &LOOPBACK);
    let password = crate::support::guardian::run_directory().join("smtp-password");
    std::fs::write(&password, "canary\n").expect("a file");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&password, private).expect("permissions");
    let implicit = Server::listen_as(&identity, true, |_: &Step<'_>| None);
    let starttls = Server::listen_as(&identity, false, |step: &Step<'_>| match step.verb {
        "EHLO" => Reply::say("250-mail.test\r\n250-STARTTLS\r\n250 AUTH LOGIN"),
        "AUTH" => Reply::say("334 VXNlcm5hbWU6"),
        "U1VQRVI=" => Reply::say("334 UGFzc3dvcmQ6"),
        _ => None,
    });
    let plain = Server::listen(|step: &Step<'_>| match step.verb {
        "EHLO" => Reply::say("250-mail.test\r\n250 AUTH PLAIN"),
        _ => None,
    });
    let early = Server::listen_as(&identity, false, |step: &Step<'_>| match step.verb {
        "STARTTLS" => Reply::say("220 go\r\n250 forged"),
        _ => None,
    });
    let case = |server: &Server, tls: &str, authority: &Authority| {
        let root = authority.root().display();
        let file = password.display();
        let login = format!("user = \"u\"\npassword_file = \"{file}\"");
        Mails::to(
            server.port,
            &format!("tls = \"{tls}\"\nca_file = \"{root}\"\n{login}"),
        )
    };
    for (server, tls, authority, cause) in [
        (&implicit, "implicit", &other, "certificate"),
        (&starttls, "starttls", &other, "certificate"),
        (&plain, "starttls", &authority, "does not offer STARTTLS"),
        (&plain, "implicit", &authority, "TLS"),
    ] {
        let mails = case(server, tls, authority);
        mails.insert("good");
        let mut relay = mails.run().start();
        assert_eq!(
            relay.wait_exit(EXIT),
            BUS_REFUSED,
            "{tls} {cause}: {}",
            relay.log()
        );
        assert!(
            last_words(&relay.log()).0.contains(cause),
            "{tls}: {}",
            relay.log()
        );
        assert_eq!(server.kept_count(), 0);
        assert!(
            !server
                .commands()
                .iter()
                .any(|line| line.starts_with("AUTH")),
            "{tls}"
        );
    }
    // What follows the answer to STARTTLS in the clear does not count.
    let mails = case(&early, "starttls", &authority);
    let mut relay = mails.run().start();
    let line = logged(&relay, "bus_disconnected");
    assert!(
        line["error"].to_string().contains("before TLS begins"),
        "{line}"
    );
    relay.kill_hard();
    for (server, tls) in [(&implicit, "implicit"), (&starttls, "starttls")] {
        server.script(login);
        let mails = case(server, tls, &authority);
        mails.insert("good");
        let mut relay = mails.run().start();
        relay.wait_ready();
        eventually(
            "it is taken",
            ARRIVAL,
            || server.kept_count(),
            |kept| *kept == 1,
        );
        assert!(!relay.log().contains("canary"), "{}", relay.log());
        assert_eq!(relay.terminate(EXIT), Some(0));
    }
}

/// Takes the user `u` with the password `canary`, by LOGIN alone.
fn login(step: &Step<'_>) -> Option<Reply> {
    match step.line {
        line if line.starts_with("EHLO") => {
            Reply::say("250-mail.test\r\n250-STARTTLS\r\n250 AUTH LOGIN")
        }
        "AUTH LOGIN" => Reply::say("334 VXNlcm5hbWU6"),
        "dQ==" => Reply::say("334 UGFzc3dvcmQ6"),
        "Y2FuYXJ5" => Reply::say("235 welcome"),
        line if line.ends_with("==") => Reply::say("535 no"),
        _ => None,
    }
}
