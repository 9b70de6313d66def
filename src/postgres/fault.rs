//! Turns errors of Postgres, the network and TLS into [`Error`], with a kind and a remedy.
//!
//! SQLSTATE and error type decide, never the text of a message, which is in the server's language.
//! Only the SQLSTATE and the message of a server's error are passed on: its DETAIL can hold the
//! values of a row. <https://www.postgresql.org/docs/current/errcodes-appendix.html>

use std::error::Error as StdError;
use std::fmt;
use std::io;

use tokio_rustls::rustls;

use walrelay_core::error::{Error, Kind, NextCommand, Remedy};

/// The operation that failed. The SQLSTATE alone does not tell a slot from a publication.
#[derive(Debug, Clone, Copy)]
pub(crate) enum While<'a> {
    /// Opening a session with `host:port/database as user`.
    Connecting(&'a str),
    /// Running SQL; the words follow "while", such as `reading the publication "orders"`.
    Querying(&'a str),
    Starting(&'a str),
    Streaming(&'a str),
}

impl fmt::Display for While<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            While::Connecting(place) => write!(f, "connecting to Postgres at {place}"),
            While::Querying(what) => f.write_str(what),
            While::Starting(slot) => write!(f, "starting to stream from slot {slot}"),
            While::Streaming(slot) => write!(f, "streaming from slot {slot}"),
        }
    }
}

/// The remedy for a failed negotiation without details from either side.
const AGREE: &str = "check that a password is given (in ~/.pgpass as \
                     HOST:PORT:DATABASE:USER:PASSWORD with mode 0600, or \
                     in PGPASSWORD), and what pg_hba.conf asks for from this role and address";

/// Whether this SQLSTATE means that the server shuts down or starts, or has ended the session for a
/// shutdown: `admin_shutdown`, `crash_shutdown`, `cannot_connect_now`.
pub(crate) fn is_shutdown(sqlstate: &str) -> bool {
    matches!(sqlstate, "57P01" | "57P02" | "57P03")
}

pub(crate) fn server(act: While<'_>, sqlstate: &str, message: &str) -> Error {
    let kind = kind_of(act, sqlstate);
    let error = Error::new(
        kind,
        format_args!(
            "while {act}: {} (SQLSTATE {})",
            one_line(message),
            one_line(sqlstate)
        ),
    );
    match remedy(act, sqlstate) {
        Some(remedy) => error.remedy(remedy),
        None => error,
    }
}

/// The function that waits for a standby of `synchronized_standby_slots` (17 and newer;
/// `src/backend/replication/slot.c`). Texts are in the server's language; names of functions are
/// not translated.
pub(crate) const WAITS_FOR_STANDBY: &str = "StandbySlotsHaveCaughtup";

/// The error for a report of the server that function `routine` made. A server that shuts down
/// stops waiting for a standby. It then reports in the stream that a slot is missing or unusable,
/// and means the standby's slot.
pub(crate) fn reported(act: While<'_>, routine: &str, sqlstate: &str, message: &str) -> Error {
    if matches!(act, While::Streaming(_)) && routine == WAITS_FOR_STANDBY {
        let message = one_line(message);
        let sqlstate = one_line(sqlstate);
        let what = format_args!("while {act}: the server stops: {message} (SQLSTATE {sqlstate})");
        return Error::new(Kind::PostgresUnreachable, what);
    }
    server(act, sqlstate, message)
}

/// The function that refuses a statement because of a policy (`src/backend/utils/misc/rls.c`).
const CHECKS_POLICIES: &str = "check_enable_rls";

/// The remedy where row-level security would hide rows from `role`. In all sessions of walrelay
/// that is an error.
pub(crate) fn sees_all_rows(role: &str) -> String {
    format!(
        "alter role {role} bypassrls; -- walrelay has to see all rows, and a policy hides some \
         from this role"
    )
}

/// Whether `error` is about a policy of row-level security, and not about a privilege.
pub(crate) fn is_about_policy(error: &Error) -> bool {
    error
        .what_to_do()
        .is_some_and(|remedy| remedy == sees_all_rows("…"))
}

/// The error of a query; `what` follows "while".
pub(crate) fn query(what: &str, error: &tokio_postgres::Error) -> Error {
    sql(While::Querying(what), error)
}

pub(crate) fn sql(act: While<'_>, error: &tokio_postgres::Error) -> Error {
    if let Some(report) = error.as_db_error() {
        let reported = server(act, report.code().code(), report.message());
        return match report.routine() {
            Some(CHECKS_POLICIES) => reported.remedy(sees_all_rows("…")),
            Some(_) | None => reported,
        };
    }
    let causes = || {
        std::iter::successors(Some(error as &dyn StdError), |error| {
            StdError::source(*error)
        })
    };
    if let Some(io) = causes().find_map(|cause| cause.downcast_ref::<io::Error>()) {
        return self::io(act, io);
    }
    let text: Vec<String> = causes().map(ToString::to_string).collect();
    let failed = |kind| {
        Error::new(
            kind,
            format_args!("while {act}: {}", one_line(&text.join(": "))),
        )
    };
    match act {
        _ if error.is_closed() => failed(Kind::PostgresUnreachable),
        // No socket failed and the server reported nothing: the negotiation failed.
        While::Connecting(_) => failed(Kind::PostgresRefused).remedy(AGREE),
        While::Querying(_) | While::Starting(_) | While::Streaming(_) => failed(Kind::Bug),
    }
}

pub(crate) fn io(act: While<'_>, error: &io::Error) -> Error {
    match (
        act,
        error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>()),
    ) {
        (While::Connecting(_), Some(refusal)) => tls(act, refusal),
        // Authentication failed on this side, for example because the server does not prove that it
        // knows the password.
        (While::Connecting(_), None)
            if error.raw_os_error().is_none()
                && matches!(
                    error.kind(),
                    io::ErrorKind::Other | io::ErrorKind::InvalidInput
                ) =>
        {
            let cause = format!("while {act}: {}", one_line(&error.to_string()));
            Error::new(Kind::PostgresRefused, cause).remedy(AGREE)
        }
        // Over TLS, the end of the stream is an error with a text of the library.
        _ if error.kind() == io::ErrorKind::UnexpectedEof => Error::new(
            Kind::PostgresUnreachable,
            format_args!("while {act}: the server closed the connection"),
        ),
        _ => Error::new(
            Kind::PostgresUnreachable,
            format_args!("while {act}: {}", one_line(&error.to_string())),
        ),
    }
}

fn tls(act: While<'_>, refusal: &rustls::Error) -> Error {
    let error = Error::new(
        Kind::PostgresRefused,
        format_args!(
            "while {act}: no TLS connection: {}",
            one_line(&refusal.to_string())
        ),
    );
    if matches!(refusal, rustls::Error::InvalidCertificate(_)) {
        return error.remedy(
            "check sslrootcert, the host's name and clock against the server's certificate",
        );
    }
    error.remedy(
        "check sslmode, sslcert and sslkey against the server's ssl settings and pg_hba.conf",
    )
}

pub(crate) fn timeout(act: While<'_>, after: std::time::Duration) -> Error {
    Error::new(
        Kind::PostgresUnreachable,
        format_args!("while {act}: no answer within {} ms", after.as_millis()),
    )
}

/// The remedy for an unreachable server; `named` says whether the configuration names a server.
pub(crate) const fn reach(named: bool) -> &'static str {
    if named {
        "check that the server runs there and takes connections"
    } else {
        "say where the server is: set --database-url or WALRELAY_DATABASE_URL, or PGHOST and so on"
    }
}

/// The received bytes are not the protocol.
pub(crate) fn protocol(act: While<'_>, what: impl fmt::Display) -> Error {
    Error::new(
        Kind::PostgresUnreachable,
        format_args!("while {act}: the peer does not speak Postgres' protocol: {what}"),
    )
}

fn kind_of(act: While<'_>, sqlstate: &str) -> Kind {
    let streaming = matches!(act, While::Streaming(_));
    let on_slot = matches!(act, While::Starting(_) | While::Streaming(_));
    match sqlstate {
        "3D000" | "42501" | "57P04" => Kind::PostgresRefused,
        "55006" => Kind::SlotActive,
        "25006" | "53100" if matches!(act, While::Querying(_)) => Kind::PostgresUnwritable,
        // The walsender looks the publication up at the first change. The slot was found before.
        "42704" if streaming => Kind::Publication,
        "42704" | "42710" | "55000" => Kind::SlotUnusable,
        "58P01" if on_slot => Kind::SlotUnusable,
        "42P01" | "42703" | "3F000" => Kind::Publication,
        // All slots are in use, which does not change by itself.
        "53400" => Kind::PostgresUnfit,
        // A row that decoding or output cannot process fails again at every attempt.
        "54000" if streaming => Kind::Event,
        "22021" | "22P05" => Kind::Event,
        "55P03" | "25P03" => Kind::PostgresUnreachable,
        _ => match (sqlstate.get(..2).unwrap_or_default(), streaming) {
            ("28", _) => Kind::PostgresRefused,
            ("08" | "40" | "53" | "57" | "58", _) => Kind::PostgresUnreachable,
            ("22" | "XX", true) => Kind::Event,
            _ => Kind::PostgresUnfit,
        },
    }
}

/// The remedies for a server that takes no writes. Some services make a database read-only when the
/// disk is full.
pub(crate) const READ_ONLY: &str = "the database is read-only, which some services do when the disk is full: \
                         make room there. If somebody set it, see where: select source from \
                         pg_settings where name = 'default_transaction_read_only'; and undo it: \
                         set default_transaction_read_only = off; then alter system, alter \
                         database … or alter role … reset default_transaction_read_only; select \
                         pg_reload_conf(); If the server is a standby, add \
                         target_session_attrs=read-write";
const DISK_FULL: &str = "the server's disk is full: make room there; a slot that retains much WAL \
                         is in pg_replication_slots";

/// The rows that SQLSTATE 22021 and 22P05 are about.
const NOT_UTF8: &str = "A row has text that is not UTF-8, or has no equivalent in UTF-8 (encodings \
                        SQL_ASCII, WIN1252 and \
                        the like)";
const VERSION: &str = "select version()";

fn remedy(act: While<'_>, sqlstate: &str) -> Option<Remedy> {
    if let While::Starting(slot) | While::Streaming(slot) = act
        && let Some(remedy) = remedy_of_slot(act, sqlstate, slot)
    {
        return Some(remedy);
    }
    Some(Remedy::from(match (sqlstate, act) {
        ("28P01", _) => {
            "check the password, and that the role has one: ALTER ROLE … PASSWORD; where \
             pg_hba.conf says clientcert=verify-full, check also that sslcert is in the role's name"
        }
        ("28000", _) => {
            "check that the role exists and may log in (CREATE ROLE … LOGIN REPLICATION, ALTER \
             ROLE … LOGIN), that pg_hba.conf has a line for this role, database and address (not \
             one for the keyword replication), and what that asks for: hostssl needs \
             sslmode=require or stricter, cert and clientcert need sslcert and sslkey"
        }
        ("3D000" | "57P04", _) => "check the name of the database",
        ("25006", While::Querying(_)) => READ_ONLY,
        ("53100", While::Querying(_)) => DISK_FULL,
        ("42501", While::Querying(_)) => "grant the role what the message names",
        ("42501", _) => {
            "ALTER ROLE … REPLICATION (on a managed service: grant its replication role)"
        }
        ("55006", _) => {
            "stop the other session, or wait: this relay takes over once the slot is free"
        }
        ("55P03" | "57014", While::Querying(_)) => {
            "if this does not pass, see who holds a lock: select a.pid, a.application_name, \
             l.mode, l.relation::regclass from pg_locks l join pg_stat_activity a using (pid) \
             where l.granted and l.mode like '%ExclusiveLock' and l.relation is not null;"
        }
        ("53300", _) => "if this does not pass: raise max_connections or max_wal_senders",
        ("53400", _) => "raise max_replication_slots, or drop an unused slot",
        ("22021" | "22P05", _) => {
            return Some(format!("{NOT_UTF8}: correct it in the table, or delete it").into());
        }
        _ => return None,
    }))
}

/// The remedy where `slot` is started or streamed and that makes a difference.
fn remedy_of_slot(act: While<'_>, sqlstate: &str, slot: &str) -> Option<Remedy> {
    let of_slot = |command| NextCommand::new(command).option("slot", slot);
    let another_slot = |why: Remedy| {
        why.and(of_slot("teardown").flag("force"))
            .and("`, `")
            .and(of_slot("setup"))
            .and("`, `")
            .and(of_slot("run"))
            .and("`")
    };
    Some(match (sqlstate, act) {
        ("42704", While::Starting(_)) => {
            Remedy::from("the slot was just dropped: ").and(of_slot("run"))
        }
        ("42704", _) => another_slot(Remedy::from(
            "name the publication the slot was made for with --publication. If that was dropped, \
             or made after the slot, the slot cannot be read: `",
        ))
        .and(
            ", which reads from the table what was not published (a first one: with --backlog all)",
        ),
        ("55000" | "58P01", _) => {
            Remedy::from("the slot cannot be read from any more, or never could: ")
                .and(of_slot("status"))
        }
        ("22021" | "22P05", While::Streaming(_)) => Remedy::from(format!(
            "nothing was skipped. {NOT_UTF8}, and cannot be streamed. With client_encoding set to \
             SQL_ASCII, pg_logical_slot_peek_binary_changes shows what waits in slot {slot}: \
             deliver that row by hand, and correct or delete it in the table"
        )),
        ("54000", While::Streaming(_)) => Remedy::from(
            "nothing was skipped. A value is too large to be sent: deliver that row by hand",
        ),
        (internal, _) if internal.starts_with("XX") => another_slot(Remedy::from(format!(
            "nothing was skipped. Start the relay again. If the same error comes back, the server \
             cannot decode its WAL: see its minor version with {VERSION}, and upgrade it to the \
             newest one. Or read from the table what was not published, with another slot: `"
        ))),
        _ => return None,
    })
}

/// A peer's text as one line of bounded length, without control characters.
fn one_line(text: &str) -> String {
    const CHARACTERS_MAX: usize = 500;
    text.chars()
        .take(CHARACTERS_MAX)
        .map(|char| if char.is_control() { ' ' } else { char })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_an_error_depends_on_the_sqlstate_and_the_operation() {
        let connecting = While::Connecting("h:1/d as u");
        let querying = While::Querying("reading the catalog");
        let starting = While::Starting("s");
        let streaming = While::Streaming("s");
        for (act, kind, sqlstates) in [
            (
                connecting,
                Kind::PostgresRefused,
                &["28P01", "28000", "3D000", "42501"][..],
            ),
            (connecting, Kind::PostgresUnreachable, &["53300", "57P03"]),
            (starting, Kind::SlotActive, &["55006"]),
            (starting, Kind::SlotUnusable, &["42704", "55000", "58P01"]),
            (streaming, Kind::Publication, &["42704"]),
            (streaming, Kind::PostgresUnreachable, &["57P01"]),
            (streaming, Kind::SlotUnusable, &["55000"]),
            (
                streaming,
                Kind::Event,
                &["XX000", "XX001", "54000", "22021", "22P05"],
            ),
            (querying, Kind::Event, &["22021", "22P05"]),
            (querying, Kind::PostgresUnreachable, &["57014"]),
            (querying, Kind::Publication, &["42P01"]),
            (querying, Kind::PostgresUnfit, &["53400", "42601", "", "ä"]),
        ] {
            for sqlstate in sqlstates {
                let error = server(act, sqlstate, "text");
                assert_eq!(error.kind(), kind, "{sqlstate} while {act}");
                assert!(
                    !kind.halts() || error.what_to_do().is_some(),
                    "{sqlstate} while {act} has no remedy"
                );
            }
        }
    }

    #[test]
    fn a_stream_error_of_a_server_that_waits_for_a_standby_is_retried() {
        for sqlstate in ["55000", "22023"] {
            let kind = |act, routine| reported(act, routine, sqlstate, "text").kind();
            assert_eq!(
                kind(While::Streaming("s"), WAITS_FOR_STANDBY),
                Kind::PostgresUnreachable
            );
            assert_ne!(
                kind(While::Streaming("s"), "other"),
                Kind::PostgresUnreachable
            );
            assert_ne!(
                kind(While::Starting("s"), WAITS_FOR_STANDBY),
                Kind::PostgresUnreachable
            );
        }
    }

    #[test]
    fn a_missing_slot_or_publication_is_named_in_the_remedy() {
        let missing_slot = server(While::Starting("orders"), "42704", "text");
        assert_eq!(
            missing_slot.what_to_do().as_deref(),
            Some("the slot was just dropped: walrelay run --slot orders")
        );
        let remedy = server(While::Streaming("orders"), "42704", "text")
            .what_to_do()
            .unwrap();
        for part in [
            "--publication",
            "teardown --slot orders --force",
            "setup --slot orders",
            "reads from the table",
        ] {
            assert!(remedy.contains(part), "{part}: {remedy}");
        }
    }

    #[test]
    fn an_internal_error_of_the_server_names_the_upgrade_at_once() {
        for act in [While::Starting("orders"), While::Streaming("orders")] {
            let remedy = server(act, "XX000", "invalid memory alloc request size")
                .what_to_do()
                .unwrap();
            assert!(
                remedy.contains("upgrade it to the newest") && remedy.contains("run --slot orders"),
                "{remedy}"
            );
        }
    }

    #[test]
    fn a_message_of_the_server_becomes_one_line_of_bounded_length() {
        let error = server(
            While::Querying("x"),
            "57\n01",
            &format!("a\nb\u{1b}[2J{}", "c".repeat(100_000)),
        );
        assert!(!error.cause().contains(['\n', '\u{1b}']));
        assert!(error.cause().len() < 1000);
    }

    #[test]
    fn a_broken_socket_is_retried_and_a_bad_certificate_is_not() {
        let act = While::Connecting("h:1/d as u");
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(io(act, &reset).kind(), Kind::PostgresUnreachable);
        let certificate = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        let wrapped = io::Error::new(io::ErrorKind::InvalidData, certificate.clone());
        assert_eq!(io(act, &wrapped).kind(), Kind::PostgresRefused);
        assert_eq!(
            io(While::Streaming("s"), &wrapped).kind(),
            Kind::PostgresUnreachable
        );
    }
}
