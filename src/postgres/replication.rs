//! A walsender session before it streams: the server's identity, its timelines, and the check of
//! the settings.
//!
//! <https://www.postgresql.org/docs/current/protocol-replication.html>

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::config::SourceConfig;
use crate::conninfo::{ConnInfo, Target};
use crate::postgres::fault::{self, While};
use crate::postgres::quote::{publication_literal, quote_ident};
use crate::postgres::session::{Row, Session, StartUp};
use crate::postgres::sql::in_recovery_error;
use crate::postgres::tls;
use crate::postgres::transport::{self, Login, Opened, Transport};
use crate::postgres::wire::Inbox;
use walrelay_core::config::SlotName;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::position::{Lsn, TimelineSwitch};

/// The greatest message before streaming. The largest is a timeline's history.
const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Settings that decide the text of a value. In the start-up packet they override those of role and
/// database.
const TEXT_SETTINGS: [(&str, &str); 6] = [
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO"),
    ("TimeZone", "UTC"),
    ("IntervalStyle", "postgres"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
];

/// Disables the time limits of a role or database that would end a session while it waits.
const NO_TIME_LIMITS: &str = "SELECT pg_catalog.set_config(name, '0', false) FROM \
                              pg_catalog.pg_settings WHERE name IN \
    ('lock_timeout', 'statement_timeout', 'idle_session_timeout', \
    'idle_in_transaction_session_timeout', \
    'transaction_timeout')";

/// A walsender session that answers queries and can start one stream.
#[derive(Debug)]
pub(crate) struct WalSession<S = Transport> {
    session: Session<S>,
    slot: SlotName,
    messages: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct SystemIdentity {
    /// Assigned by initdb; every physical copy has the same one.
    pub system_identifier: String,
    pub timeline: u32,
    pub xlogpos: Lsn,
}

#[derive(Debug, Clone)]
pub(crate) struct NewSlot {
    /// The beginning of the slot, which has no earlier commit.
    pub consistent_point: Lsn,
    /// The name of the exported snapshot, which sees all earlier commits.
    pub snapshot: String,
}

impl WalSession<Transport> {
    /// Opens a walsender session named `walrelay/<slot>` with the first server of `info` that
    /// accepts one.
    ///
    /// Bounded by `connect_timeout` per server. Nothing is retried.
    /// Errors: [`fault`]'s kinds; [`Kind::Publication`] where the server ignored a setting that
    /// decides the text of values.
    pub(crate) async fn connect(info: &ConnInfo, config: &SourceConfig) -> Result<Self> {
        transport::connect(info, &WalLogin { info, config }).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> WalSession<S> {
    /// Logs in on an open stream, after the TLS handshake if there is one. `end_point` is the data
    /// to which a login over TLS can be bound ([`tls::end_point`]).
    pub(crate) async fn log_in(
        stream: S,
        end_point: Option<Vec<u8>>,
        info: &ConnInfo,
        target: &Target,
        config: &SourceConfig,
    ) -> Result<Self> {
        let place = transport::place(info, target);
        let act = While::Connecting(&place);
        let name = format!("walrelay/{}", config.slot);
        // The last option overrides one that the operator gave.
        let timeout = format!(
            "-c wal_sender_timeout={}",
            config.wal_sender_timeout.as_millis()
        );
        let options = info
            .options
            .as_ref()
            .map_or(timeout.clone(), |given| format!("{given} {timeout}"));
        let mut parameters = vec![
            ("database", info.database.as_str()),
            ("replication", "database"),
            ("application_name", name.as_str()),
            ("options", options.as_str()),
        ];
        parameters.extend(TEXT_SETTINGS);
        let start_up = StartUp {
            place: &place,
            user: &info.user,
            password: info.password_for(target)?,
            channel_binding: info.tls.channel_binding,
            end_point,
            parameters: &parameters,
        };
        let mut session = Session::log_in(stream, &start_up).await?;
        session.set_frame_bytes_max(FRAME_BYTES_MAX);
        for name in ["client_encoding", "DateStyle", "TimeZone", "IntervalStyle"] {
            check_parameter(name, session.parameter(name))?;
        }
        // The server reports these two only on request.
        for name in ["bytea_output", "extra_float_digits"] {
            let rows = session.query(act, &format!("SHOW {name}")).await?;
            check_parameter(name, &text_at(&rows, 0).unwrap_or_default())?;
        }
        session.query(act, NO_TIME_LIMITS).await?;
        if info.primary_only {
            let rows = session
                .query(act, "SELECT pg_catalog.pg_is_in_recovery()")
                .await?;
            if text_at(&rows, 0).as_deref() != Some("f") {
                return Err(in_recovery_error(act));
            }
        }
        Ok(WalSession {
            session,
            slot: config.slot.clone(),
            messages: config.messages,
        })
    }

    pub(crate) async fn identify_system(&mut self) -> Result<SystemIdentity> {
        let act = While::Querying("asking the server who it is");
        let identity = |rows: &[Row]| {
            Some(SystemIdentity {
                system_identifier: text_at(rows, 0)?,
                timeline: text_at(rows, 1)?.parse().ok()?,
                xlogpos: text_at(rows, 2)?.parse().ok()?,
            })
        };
        self.ask(act, "IDENTIFY_SYSTEM", identity).await
    }

    /// The timelines before `timeline` and their ends, oldest first. The first timeline has none
    /// before it.
    pub(crate) async fn timeline_history(&mut self, timeline: u32) -> Result<Vec<TimelineSwitch>> {
        if timeline <= 1 {
            return Ok(Vec::new());
        }
        let act = While::Querying("reading the history of the server's timelines");
        self.ask(act, &format!("TIMELINE_HISTORY {timeline}"), |rows| {
            parse_history(&text_at(rows, 1)?)
        })
        .await
    }

    pub(crate) async fn backend_pid(&mut self) -> Result<i32> {
        let act = While::Querying("asking for the session's pid");
        self.ask(act, "SELECT pg_catalog.pg_backend_pid()", |rows| {
            text_at(rows, 0)?.parse().ok()
        })
        .await
    }

    /// Creates the slot and exports a snapshot of its beginning. The snapshot lives until the
    /// session's next command.
    ///
    /// The snapshot sees all commits before the beginning; the slot has all later ones. The server
    /// waits for every running transaction, prepared ones included; the caller bounds the time.
    pub(crate) async fn create_slot(&mut self, major: u32) -> Result<NewSlot> {
        let what = format!("creating slot {}", self.slot);
        let act = While::Querying(&what);
        // Options in parentheses need version 15, failover needs 17.
        let options = match major {
            ..15 => "EXPORT_SNAPSHOT",
            15..17 => "(SNAPSHOT 'export')",
            17.. => "(SNAPSHOT 'export', FAILOVER true)",
        };
        let command = format!(
            "CREATE_REPLICATION_SLOT {} LOGICAL pgoutput {options}",
            quote_ident(self.slot.as_str())?
        );
        let made = |rows: &[Row]| {
            Some(NewSlot {
                consistent_point: text_at(rows, 1)?.parse().ok()?,
                snapshot: text_at(rows, 2)?,
            })
        };
        self.ask(act, &command, made).await
    }

    /// Creates a slot that ends with this session, and makes it the slot of the session. The slot
    /// has all commits after the call. The server waits for running transactions, as in
    /// [`WalSession::create_slot`].
    pub(crate) async fn create_temporary_slot(&mut self) -> Result<()> {
        let name = format!("walrelay_tail_{}", self.backend_pid().await?);
        self.slot = name.parse().map_err(|error| Error::new(Kind::Bug, error))?;
        let what = format!("creating temporary slot {name}");
        let command = format!(
            "CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT",
            quote_ident(&name)?
        );
        self.session
            .query(While::Querying(&what), &command)
            .await
            .map(|_| ())
    }

    async fn ask<T>(
        &mut self,
        act: While<'_>,
        statement: &str,
        read: impl Fn(&[Row]) -> Option<T>,
    ) -> Result<T> {
        let rows = self.session.query(act, statement).await?;
        read(&rows).ok_or_else(|| {
            fault::protocol(
                act,
                format_args!("the answer to {statement} is not as documented"),
            )
        })
    }

    /// # Errors
    /// [`Kind::SlotActive`] while a session streams from the slot.
    pub(crate) async fn drop_slot(&mut self) -> Result<()> {
        let command = format!("DROP_REPLICATION_SLOT {}", quote_ident(self.slot.as_str())?);
        self.session
            .query(While::Starting(self.slot.as_str()), &command)
            .await
            .map(|_| ())
    }

    /// Starts to stream the slot's changes to `publication` with protocol version 1, and returns
    /// the stream.
    ///
    /// Always at 0/0: the server then starts at the slot's confirmed LSN. It obeys a later position
    /// even if that skips events.
    pub(crate) async fn start(self, publication: &str) -> Result<(S, Inbox, SlotName)> {
        let command = format!(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {}{})",
            quote_ident(self.slot.as_str())?,
            publication_literal(publication)?,
            if self.messages {
                ", messages 'true'"
            } else {
                ""
            },
        );
        let (stream, inbox) = self
            .session
            .copy_both(While::Starting(self.slot.as_str()), &command)
            .await?;
        Ok((stream, inbox, self.slot))
    }
}

/// Checks that the server accepted a setting. Settings that do not decide the text of values pass.
/// Errors: [`Kind::Publication`]: the values of events would have another text.
pub(crate) fn check_parameter(name: &str, value: &str) -> Result<()> {
    let obeyed = match name {
        "client_encoding" => value == "UTF8",
        // The order of day and month, which follows, does not affect ISO output.
        "DateStyle" => value.split(',').next() == Some("ISO"),
        "TimeZone" => value == "UTC",
        "IntervalStyle" => value == "postgres",
        "bytea_output" => value == "hex",
        "extra_float_digits" => value.parse::<i32>().is_ok_and(|digits| digits >= 1),
        _ => true,
    };
    if obeyed {
        return Ok(());
    }
    let value: String = value
        .chars()
        .filter(|char| !char.is_control())
        .take(60)
        .collect();
    Err(Error::new(
        Kind::Publication,
        format_args!(
            "the server has {name} = {value:?} for the replication session although \
                      another was asked for"
        ),
    )
    .remedy(
        "connect to the server itself: something between drops settings of the start-up packet",
    ))
}

/// Lines of `timeline TAB lsn TAB reason`; comments and empty lines between them. `None` if one
/// line cannot be read.
/// <https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-TIMELINES>
fn parse_history(text: &str) -> Option<Vec<TimelineSwitch>> {
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut fields = line.split_whitespace();
            Some(TimelineSwitch {
                timeline: fields.next()?.parse().ok()?,
                switch_lsn: fields.next()?.parse().ok()?,
            })
        })
        .collect()
}

fn text_at(rows: &[Row], column: usize) -> Option<String> {
    let value = rows.first()?.get(column)?.as_ref()?;
    Some(String::from_utf8_lossy(value).into_owned())
}

struct WalLogin<'a> {
    info: &'a ConnInfo,
    config: &'a SourceConfig,
}

impl Login for WalLogin<'_> {
    type Session = WalSession<Transport>;

    async fn log_in(&self, target: &Target, opened: Opened) -> Result<Self::Session> {
        let place = transport::place(self.info, target);
        let act = While::Connecting(&place);
        let (stream, end_point) = match opened.tls {
            None => (Transport::Left(opened.socket), None),
            Some((config, name)) => {
                let name = ServerName::try_from(name).map_err(|_| {
                    Error::new(
                        Kind::Config,
                        format_args!(
                            "while {act}: a certificate cannot be checked against this host"
                        ),
                    )
                })?;
                let handshake =
                    TlsConnector::from(std::sync::Arc::new(config)).connect(name, opened.socket);
                let stream = handshake.await.map_err(|error| fault::io(act, &error))?;
                let certificate = stream
                    .get_ref()
                    .1
                    .peer_certificates()
                    .and_then(<[_]>::first);
                let end_point = certificate.and_then(tls::end_point);
                (Transport::Right(Box::new(stream)), end_point)
            }
        };
        WalSession::log_in(stream, end_point, self.info, target, self.config).await
    }
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn a_timeline_history_may_have_comments_and_no_invalid_line() {
        let text = "# made by hand\n1\t0/3000000\tno recovery target \
                    specified\n\n2\t16/B374D848\tat restore point \"a b\"\n";
        let switches = parse_history(text).unwrap();
        assert_eq!(switches.len(), 2);
        assert_eq!(
            switches[1],
            TimelineSwitch {
                timeline: 2,
                switch_lsn: Lsn::new(0x16_B374_D848)
            }
        );
        assert_eq!(parse_history(""), Some(vec![]));
        for bad in ["1 x", "1", "x\t0/1", "1\t01", "1\t0/1\tfine\n-2\t0/2"] {
            assert_eq!(parse_history(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_server_setting_that_changes_the_text_of_values_is_refused() {
        for (name, good, bad) in [
            ("client_encoding", "UTF8", "LATIN1"),
            ("DateStyle", "ISO, DMY", "German, DMY"),
            ("TimeZone", "UTC", "Asia/Kolkata"),
            ("IntervalStyle", "postgres", "iso_8601"),
            ("bytea_output", "hex", "escape"),
            ("extra_float_digits", "3", "0"),
        ] {
            assert_eq!(check_parameter(name, good), Ok(()));
            assert_eq!(
                check_parameter(name, bad).unwrap_err().kind(),
                Kind::Publication,
                "{name}"
            );
            assert!(check_parameter(name, "").is_err());
        }
        assert_eq!(check_parameter("application_name", "anything"), Ok(()));
    }

    #[test]
    fn fuzzed_histories() {
        let corpus = [
            "1\t0/3000000\tno recovery target specified\n\n2\t16/B374D848\tat \"a b\"\n",
            "# made by hand\n 1 0/1\n",
        ];
        fuzz_text("histories of timelines", 512 << 10, &corpus, |text| {
            if let Some(switches) = parse_history(text) {
                assert!(switches.len() <= text.len() / 4 + 1);
            }
        });
    }
}
