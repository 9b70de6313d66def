//! `walrelay status`: one query, one report.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_postgres::types::Type;

use crate::cli::config::{self, AGE_MAX, Common, DAY, seconds};
use crate::cli::nagios::{Check, State, figure};
use crate::cli::output::{
    Outcome, Output, clear_screen, labelled, or_dash, print, print_line, print_to_reader,
};
use crate::cli::parked::table::ParkedCount;
use crate::config::SinkKind;
use crate::postgres::query::{Param, one_json};
use crate::postgres::sql::SqlSession;
use crate::source::lease;
use crate::source::preflight::{UNMADE, Warning, make_slot, make_slot_again, stranger};
use crate::telemetry::doing;
use crate::telemetry::http::{RelayAnswer, ask_relay};
use walrelay_core::clock::now_us;
use walrelay_core::config::SlotName;
use walrelay_core::config::unit::{human_bytes, parse_bytes};
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result, both};
use walrelay_core::position::Lsn;
use walrelay_core::printable::counted;

const STATUS: &str = include_str!("../../sql/status.sql");
/// Follows a value that Postgres hides from the role.
const NEEDS_RIGHT: &str = "(needs pg_monitor)";

const NOT_KNOWN: &str = "not known";

/// The problem of a slot that nobody reads.
pub(super) const NO_RELAY: &str = "no relay streams from the slot";

const SECOND: Duration = Duration::from_secs(1);
/// The pause before the next look, while one look cannot tell whether the lag is over its limit.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// For so long, nothing may be confirmed while WAL waits, where the relay cannot say itself whether
/// it is ready. A relay that has nothing to deliver confirms WAL every five seconds.
const UNCONFIRMED_MAX: Duration = Duration::from_secs(15);

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub output: Output,
    /// Repeat at this interval; without a value every 2s
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        default_missing_value = "2s",
        value_parser = seconds(SECOND..=DAY, "5s")
    )]
    pub watch: Option<Duration>,
    /// Print one line and end with an exit code as Nagios plugins do: 0 OK, 1 WARNING, 2 CRITICAL,
    /// 3 UNKNOWN
    #[arg(long, conflicts_with_all = ["watch", "form", "json"])]
    pub nagios: bool,
    #[command(flatten)]
    limits: Limits,
}

/// The limits above which the caller calls the slot unhealthy.
#[derive(Debug, Clone, Copy, Default, Args)]
struct Limits {
    /// Unhealthy if more bytes than this are not confirmed; accepts sizes such as 16MiB
    #[arg(long, value_name = "BYTES", value_parser = parsed_bytes)]
    max_lag_bytes: Option<u64>,
    /// Unhealthy if WAL is not confirmed for longer than this. With a relay, the command measures
    /// for as long: give it 10s or more. Without this, a relay that cannot be asked at http.listen
    /// must confirm something within 15s
    #[arg(long, value_name = "DURATION", value_parser = seconds(Duration::ZERO..=AGE_MAX, "1m"))]
    max_lag_seconds: Option<Duration>,
}

pub(super) const HELP: &str = "\
Examples:
  walrelay status --slot orders
  walrelay status --slot orders --json --max-lag-bytes 64MiB
  walrelay status --slot orders --watch 5s
  walrelay status --slot orders --nagios --max-lag-bytes 64MiB

Exit codes:
  0   healthy
  1   no relay is at work or it is not ready, the slot is lost or about to be, or a limit is \
      exceeded
  2   the configuration is not valid
  10  Postgres cannot be reached (11: refuses)
  14  the slot does not exist
With --nagios the exit codes are those of Nagios plugins:
  0   OK: healthy
  1   WARNING: only a limit is exceeded
  2   CRITICAL: any other problem, the slot does not exist, or Postgres cannot be reached
  3   UNKNOWN: the configuration is not valid, or Postgres refuses";

/// Prints the state of the slot, once or until interrupted.
pub(super) async fn status(args: &StatusArgs) -> Outcome {
    if args.nagios {
        let settled = async { Checked::open(args).await?.settled().await };
        let check = settled.await.map_or_else(
            |error| Check::failed(&error),
            |report| report.check(&args.limits),
        );
        print_line(&check)?;
        return Err(check.end());
    }
    let checked = Checked::open(args).await?;
    let Some(interval) = args.watch else {
        let report = checked.settled().await?;
        print(&args.output.line(&report, report.table().trim_end())?)?;
        return Ok(report.verdict()?);
    };
    let redraw = std::io::stdout().is_terminal() && !args.output.is_data();
    let mut looks = Looks::default();
    let mut tick = tokio::time::interval(interval);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let mut report = checked.read(&mut looks).await?;
        report.ask(checked.http, &checked.slot).await;
        report.judge(&checked.limits);
        if redraw {
            clear_screen()?;
        }
        print_to_reader(&match redraw {
            true => format!("{}\n\n{}", clock(), report.table()),
            false => args
                .output
                .line(&report, &format!("time={} {}", clock(), report.line()))?,
        })?;
    }
}

/// The time of day, in seconds.
fn clock() -> String {
    jiff::Timestamp::from_microsecond(now_us())
        .map(|now| format!("{now:.0}"))
        .unwrap_or_default()
}

/// The slot as the server shows it.
pub(super) async fn look<T: DeserializeOwned>(session: &SqlSession, slot: &SlotName) -> Result<T> {
    let (class, key) = lease::keys(slot);
    let params: [Param<'_>; 3] = [
        (&slot.as_str(), Type::TEXT),
        (&class, Type::INT4),
        (&key, Type::INT4),
    ];
    Ok(one_json(
        session.client(),
        "reading the status of the slot",
        STATUS,
        &params,
    )
    .await?)
}

pub(super) fn no_slot(slot: &SlotName) -> Error {
    let cause = format!("slot {slot} does not exist, and no relay reads its table");
    Error::new(Kind::SlotUnusable, cause).remedy(make_slot(slot))
}

/// The slot that is looked at.
struct Checked {
    session: SqlSession,
    slot: SlotName,
    limits: Limits,
    /// The address of the relay's metrics, if the configuration has it.
    http: Option<SocketAddr>,
    /// The kind of the bus, if the configuration tells it.
    sink: Option<SinkKind>,
}

impl Checked {
    async fn open(args: &StatusArgs) -> Result<Checked> {
        let settings = config::read(&args.common, &args.common.file)?;
        let (slot, database) = both(settings.slot(), settings.database())?;
        let session = SqlSession::connect(&database, "walrelay status").await?;
        Ok(Checked {
            session,
            slot,
            limits: args.limits,
            http: settings.model().http.listen,
            sink: settings.sink(),
        })
    }

    /// The report of one look, or of as many as a limit of time needs.
    async fn settled(&self) -> Result<Report> {
        let mut looks = Looks::default();
        let mut report = self.read(&mut looks).await?;
        report.ask(self.http, &self.slot).await;
        report.judge(&self.limits);
        let first = report.wal.clone();
        while report.needs_another_look(&self.limits, &first) {
            tokio::time::sleep(LOOK_AGAIN).await;
            let asked = report.asked;
            report = Report {
                asked,
                ..self.read(&mut looks).await?
            };
            report.judge(&self.limits);
        }
        Ok(report)
    }

    async fn read(&self, looks: &mut Looks) -> Result<Report> {
        let Checked { session, slot, .. } = self;
        let mut report: Report = look(session, slot).await?;
        report.parked = ParkedCount::read(session, slot, None).await?;
        report.sink = self.sink;
        if report.made.kind.is_none() && report.relay.table_reader_pid.is_none() {
            return Err(no_slot(slot));
        }
        if let (Some(confirmed), Some(end)) = (report.wal.confirmed_lsn, report.wal.current_lsn) {
            let waited = looks.look(Instant::now(), confirmed, end);
            report.wal.lag_seconds = report
                .wal
                .lag_seconds
                .or(waited.map(|waited| waited.as_secs_f64()));
            report.wal.unconfirmed = looks.unconfirmed(Instant::now());
        }
        Ok(report)
    }
}

/// A slot as its server sees it. The fields are the keys of `status --json`. `null` means "not
/// known": this major version of the server does not have the value, or the role may not see it.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    slot: String,
    #[serde(default)]
    healthy: bool,
    /// One sentence for each fault.
    #[serde(default)]
    problems: Vec<String>,
    #[serde(flatten)]
    made: Made,
    /// The `sink.kind` of this command's configuration, if that tells it.
    sink: Option<SinkKind>,
    #[serde(flatten)]
    relay: Sessions,
    #[serde(flatten)]
    asked: Asked,
    #[serde(flatten)]
    parked: ParkedCount,
    #[serde(flatten)]
    wal: Wal,
    /// Whether the slot decodes prepared transactions at their `PREPARE`; walrelay's slots never
    /// do.
    two_phase: bool,
    /// Whether standbys keep a copy, from Postgres 17 on.
    failover: Option<bool>,
}

/// How the slot was made.
#[derive(Debug, Serialize, Deserialize)]
struct Made {
    /// `logical`, or the wrong kind; none: there is no slot of this name.
    kind: Option<String>,
    /// `pgoutput`, or the wrong plugin.
    plugin: Option<String>,
    database: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Sessions {
    /// Whether a client streams from the slot.
    active: bool,
    /// The walsender that serves it.
    pid: Option<i32>,
    application: Option<String>,
    /// The client's address, or `[local]` for a Unix socket.
    client: Option<String>,
    /// The session of a relay that reads the table, instead of a slot or before it streams.
    table_reader_pid: Option<i32>,
    /// Sessions of relays that stand by, as far as the role may see them.
    stand_by_pids: Vec<i32>,
    /// `at-least-once` or `exactly-once`, as the active relay is configured, if the role may see
    /// its session.
    guarantee: Option<String>,
}

/// What the relay itself says. `null` where it cannot be asked.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Asked {
    /// As `/readyz` says.
    ready: Option<bool>,
    /// Why the relay is not ready, or why that is not known.
    ready_detail: Option<String>,
    /// What decides whether the relay delivers.
    judged_by: Option<String>,
    /// `open` or `closed`.
    intake: Option<String>,
    /// Why intake is closed, or why that is not known.
    intake_detail: Option<String>,
    /// `connected`, `disconnected`, or `blocked` where it answers and asks all its clients to wait.
    bus: Option<String>,
    #[serde(skip)]
    fix: Option<String>,
}

/// The slot's place in the WAL, and the WAL that the server keeps for the slot.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Wal {
    confirmed_lsn: Option<Lsn>,
    /// The start of the retained WAL: the start of the oldest transaction that is not confirmed.
    restart_lsn: Option<Lsn>,
    /// The end of the WAL that is on the server's disk.
    current_lsn: Option<Lsn>,
    retained_bytes: Option<i64>,
    /// The open transaction with the oldest id, if for a minute and the role may see it.
    oldest_transaction: Option<String>,
    /// `current_lsn - confirmed_lsn`. WAL of other tables counts until the relay confirms past it.
    lag_bytes: Option<i64>,
    /// 0 if everything is confirmed. Without a relay: the time since the slot became inactive, from
    /// Postgres 17 on. Else the least time for which the oldest unconfirmed WAL has waited, counted
    /// from the first look that saw it.
    lag_seconds: Option<f64>,
    /// The time since a relay last streamed from the slot, from Postgres 17 on.
    inactive_seconds: Option<f64>,
    /// The time since the relay's last status update.
    reply_age_seconds: Option<f64>,
    #[serde(flatten)]
    loss: Loss,
    /// The time for which WAL waits and nothing was confirmed, as far as the looks tell.
    #[serde(skip)]
    unconfirmed: Duration,
}

/// Whether the server keeps the WAL that the slot needs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Loss {
    /// `reserved`, `extended`, `unreserved` or `lost`.
    wal_status: Option<String>,
    /// Bytes that can still be written before the slot may be lost; `null` without a bound.
    safe_wal_bytes: Option<i64>,
    /// Why the slot was invalidated, from Postgres 17 on.
    invalidation_reason: Option<String>,
    /// Whether a conflict with recovery invalidated the slot, from Postgres 16 on.
    conflicting: Option<bool>,
}

impl Report {
    fn stranger(&self) -> Option<Warning> {
        let relay = &self.relay;
        stranger(&self.slot, relay.pid, relay.application.as_deref())
    }

    /// Fills in `problems` and `healthy`.
    fn judge(&mut self, limits: &Limits) {
        let mut problems = Vec::new();
        let Made { kind, plugin, .. } = &self.made;
        let is_ours = kind.as_deref() == Some("logical") && plugin.as_deref() == Some("pgoutput");
        if kind.is_some() && !is_ours {
            problems.push("the slot is not walrelay's: its plugin is not pgoutput".to_owned());
        }
        problems.extend(self.wal.loss.problem());
        if self.relay.table_reader_pid.is_none() {
            match (self.relay.active, self.wal.confirmed_lsn) {
                (true, None) => problems.push("the slot is still being created".to_owned()),
                (false, None) if kind.is_some() => {
                    problems.push(format!("the slot is lost ({UNMADE})"))
                }
                (false, _) => problems.push(NO_RELAY.to_owned()),
                (true, Some(_)) => problems.extend(self.stranger().map(|warning| warning.text)),
            }
        }
        if let (Some(false), Some(why)) = (self.asked.ready, &self.asked.ready_detail) {
            problems.push(format!("the relay is not ready: {why}"));
        }
        let judged_by = match self.asked.ready {
            Some(_) => "the relay's own readiness".to_owned(),
            None if self.relies_on_confirmation(limits) => {
                format!("a confirmation within {} s", UNCONFIRMED_MAX.as_secs())
            }
            None if self.relay.active => "--max-lag-seconds".to_owned(),
            None => "the server alone".to_owned(),
        };
        self.asked.judged_by = Some(judged_by);
        if self.relies_on_confirmation(limits) && self.wal.unconfirmed > UNCONFIRMED_MAX {
            problems.push(format!(
                "WAL waits, and nothing was confirmed for {} s",
                UNCONFIRMED_MAX.as_secs()
            ));
        }
        problems.extend(self.wal.over(limits));
        self.healthy = problems.is_empty();
        self.problems = problems;
    }

    /// Whether nothing but confirmations tells that the relay works: [`UNCONFIRMED_MAX`] holds.
    fn relies_on_confirmation(&self, limits: &Limits) -> bool {
        self.relay.active && self.asked.ready.is_none() && limits.max_lag_seconds.is_none()
    }

    /// Whether another look can tell more than the `first`: there is a limit of time, and what was
    /// to be confirmed then is not. Call after [`Report::judge`]. True for at most as long as the
    /// limit.
    fn needs_another_look(&self, limits: &Limits, first: &Wal) -> bool {
        let waits = self
            .wal
            .confirmed_lsn
            .zip(first.current_lsn)
            .is_some_and(|(confirmed, end)| confirmed < end);
        let is_still =
            self.relies_on_confirmation(limits) && self.wal.confirmed_lsn == first.confirmed_lsn;
        self.healthy && self.relay.active && waits && (limits.max_lag_seconds.is_some() || is_still)
    }

    /// Asks the relay, if its address is known.
    async fn ask(&mut self, http: Option<SocketAddr>, slot: &SlotName) {
        let is_at_work = self.relay.active || self.relay.table_reader_pid.is_some();
        let answer = match http {
            Some(addr) => ask_relay(addr, slot, is_at_work).await,
            None if !is_at_work => Err("no relay is at work".to_owned()),
            None => Err(
                "this command knows no http.listen (or WALRELAY_HTTP), so the relay cannot be \
                     asked"
                    .to_owned(),
            ),
        };
        self.asked = Asked::from(answer);
        if !is_at_work {
            self.asked.intake = None;
            self.asked.intake_detail = Some("no relay is at work".to_owned());
        }
    }

    fn verdict(&self) -> Result<()> {
        if self.healthy {
            return Ok(());
        }
        let error = Error::new(
            Kind::Unhealthy,
            format!(
                "slot {} is unhealthy: {}",
                self.slot,
                self.problems.join("; ")
            ),
        );
        let slot = &self.slot;
        // One that answers runs, if it is not at work yet.
        let runs = self.asked.ready.is_some() || self.relay.active;
        let fix = self.asked.fix.clone().or_else(|| self.stranger()?.remedy);
        let remedy = match (fix, self.wal.loss.wal_status.as_deref()) {
            _ if self.made.plugin.as_deref() != Some("pgoutput") => {
                "name the slot that `walrelay setup` created with --slot".into()
            }
            (Some(fix), _) => fix.into(),
            (None, Some("lost")) => make_slot_again(slot),
            _ if runs => "read the relay's log: the bus may be slow or unreachable".into(),
            _ => Remedy::from("start a relay: `")
                .and(NextCommand::new("run").option("slot", slot))
                .and(
                    "`; if one runs, its /readyz and its log name the reason why it does not \
                     stream: it may wait for a topic that refuses records, or for the bus",
                ),
        };
        Err(error.remedy(remedy))
    }

    /// The result for Nagios. Call after [`Report::judge`] with the same limits.
    fn check(&self, limits: &Limits) -> Check {
        let Report {
            slot,
            relay,
            wal,
            problems,
            ..
        } = self;
        let state = match problems.len() {
            0 => State::Ok,
            count if count == wal.over(limits).len() => State::Warning,
            _ => State::Critical,
        };
        let text = match (problems.is_empty(), relay.table_reader_pid) {
            (false, _) => problems.join("; "),
            (true, Some(_)) => "a relay reads the table".to_owned(),
            (true, None) => format!("streaming, lag {}", wal.lag()),
        };
        let number = |value: Option<i64>| value.map(|value| value as f64);
        let rounded = |seconds: f64| (seconds * 1_000.0).round() / 1_000.0;
        let most_bytes = limits.max_lag_bytes.map(|most| most as f64);
        let most_seconds = limits.max_lag_seconds.map(|most| most.as_secs_f64());
        let figures = [
            figure("lag_bytes", number(wal.lag_bytes), "B", most_bytes),
            figure("retained_bytes", number(wal.retained_bytes), "B", None),
            figure(
                "lag_seconds",
                wal.lag_seconds.map(rounded),
                "s",
                most_seconds,
            ),
            figure("parked_events", number(self.parked.events), "", None),
        ];
        Check {
            state,
            text: format!("slot {slot}: {text}"),
            figures: figures.into_iter().flatten().collect(),
        }
    }

    fn line(&self) -> String {
        let Report {
            slot,
            healthy,
            relay,
            wal,
            ..
        } = self;
        format!(
            "slot={slot} healthy={healthy} active={} ready={} table_reader_pid={} intake={} \
             bus={} parked={} confirmed={} lag_bytes={} lag_seconds={} retained_bytes={} wal_status={}",
            relay.active,
            or_dash(self.asked.ready),
            or_dash(relay.table_reader_pid),
            or_dash(self.asked.intake.as_deref()),
            or_dash(self.asked.bus.as_deref()),
            or_dash(self.parked.events),
            or_dash(wal.confirmed_lsn),
            or_dash(wal.lag_bytes),
            or_dash(wal.lag_seconds.map(|seconds| format!("{seconds:.1}"))),
            or_dash(wal.retained_bytes),
            or_dash(wal.loss.wal_status.as_deref()),
        )
    }

    fn table(&self) -> String {
        let Report {
            slot, relay, wal, ..
        } = self;
        let bound = match wal.loss.safe_wal_bytes {
            Some(safe) => format!(
                "{} more can be written before the slot may be lost",
                bytes(safe)
            ),
            None if self.made.kind.is_none() => "-".to_owned(),
            None if wal.loss.problem().is_some() => "none: the slot is lost".to_owned(),
            None => "no bound (max_slot_wal_keep_size)".to_owned(),
        };
        let doctor = NextCommand::new("doctor").option("slot", slot);
        let rows = [
            (
                "slot",
                match &self.made.kind {
                    Some(_) => slot.clone(),
                    None => format!(
                        "{slot}, which does not exist: the relay reads the table instead; \
                         `{doctor}` says why"
                    ),
                },
            ),
            (
                "health",
                if self.healthy {
                    "healthy".to_owned()
                } else {
                    format!("UNHEALTHY: {}", self.problems.join("; "))
                },
            ),
            ("database", or_dash(self.made.database.as_deref())),
            ("relay", relay.at_work()),
            ("guarantee", or_dash(relay.guarantee.as_deref())),
            ("stand-by", relay.standing_by()),
            ("readiness", self.asked.readiness()),
            ("judged by", or_dash(self.asked.judged_by.as_deref())),
            ("intake", self.asked.intake()),
            ("bus", self.bus()),
            ("parked", self.parked_text()),
            ("last heard", wal.last_reply(relay.active)),
            ("confirmed", or_dash(wal.confirmed_lsn)),
            ("current", or_dash(wal.current_lsn)),
            ("lag", wal.lag()),
            (
                "WAL kept",
                format!(
                    "{} from {}",
                    or_dash(wal.retained_bytes.map(bytes)),
                    or_dash(wal.restart_lsn)
                ),
            ),
            ("oldest xid", or_dash(wal.oldest_transaction.as_deref())),
            ("WAL status", wal.loss.status()),
            ("WAL bound", bound),
            (
                "failover",
                or_dash(
                    self.failover
                        .map(|failover| if failover { "kept on standbys" } else { "off" }),
                ),
            ),
        ];
        labelled(rows)
    }

    /// Its kind, and what the relay says of it.
    fn bus(&self) -> String {
        let state = self.asked.bus();
        match self.sink {
            Some(kind) => format!("{}, {state}", Into::<&str>::into(kind)),
            None => state,
        }
    }

    fn parked_text(&self) -> String {
        match (self.parked.events, self.parked.oldest_seconds) {
            (Some(0), _) => "none".to_owned(),
            (Some(events), Some(oldest)) => {
                let events = counted(u64::try_from(events).unwrap_or_default(), "event");
                let list = NextCommand::new("parked list").option("slot", &self.slot);
                format!(
                    "{events}, the oldest for {} (`{list}`)",
                    doing::seconds(oldest)
                )
            }
            (events, _) => or_dash(events),
        }
    }
}

impl Sessions {
    fn at_work(&self) -> String {
        if let Some(pid) = self.table_reader_pid {
            return format!("backend pid {pid} reads the table");
        }
        match (self.active, self.pid) {
            (true, Some(pid)) => {
                let application = self.application.as_deref().unwrap_or("?");
                let place = match self.client.as_deref() {
                    Some("[local]") => " from a local socket".to_owned(),
                    Some(client) => format!(" from {client}"),
                    None => format!(", address not shown {NEEDS_RIGHT}"),
                };
                format!("backend pid {pid}, {application}{place}")
            }
            (true, None) => "connected".to_owned(),
            (false, _) => "none at work".to_owned(),
        }
    }

    fn standing_by(&self) -> String {
        if self.stand_by_pids.is_empty() {
            return "none".to_owned();
        }
        let pids: Vec<_> = self
            .stand_by_pids
            .iter()
            .map(|pid| format!("backend pid {pid}"))
            .collect();
        pids.join(", ")
    }
}

impl From<Result<RelayAnswer, String>> for Asked {
    fn from(answer: Result<RelayAnswer, String>) -> Asked {
        match answer {
            Ok(RelayAnswer {
                readiness,
                intake_closed,
                bus,
            }) => Asked {
                ready: Some(readiness.ready),
                ready_detail: readiness.detail,
                intake: Some(intake_closed.map_or("open", |_| "closed").to_owned()),
                intake_detail: intake_closed.map(|why| why.words().to_owned()),
                bus: Some(Into::<&str>::into(bus).to_owned()),
                fix: readiness.fix,
                judged_by: None,
            },
            Err(why) => Asked {
                ready_detail: Some(why.clone()),
                intake_detail: Some(why),
                ..Asked::default()
            },
        }
    }
}

impl Asked {
    fn intake(&self) -> String {
        with_detail(
            self.intake.as_deref().unwrap_or(NOT_KNOWN),
            self.intake_detail.as_ref(),
        )
    }

    fn bus(&self) -> String {
        match self.bus.as_deref() {
            Some("blocked") => "blocked: it asks all its clients to wait; the log says why".into(),
            bus => bus.unwrap_or(NOT_KNOWN).to_owned(),
        }
    }

    fn readiness(&self) -> String {
        let said = match self.ready {
            Some(true) => "ready",
            Some(false) => "not ready",
            None => NOT_KNOWN,
        };
        with_detail(said, self.ready_detail.as_ref())
    }
}

impl Wal {
    fn over(&self, limits: &Limits) -> Vec<String> {
        let mut problems = Vec::new();
        if let (Some(most), Some(lag)) = (limits.max_lag_bytes, self.lag_bytes)
            && u64::try_from(lag).is_ok_and(|lag| lag > most)
        {
            problems.push(format!(
                "{} are not confirmed, more than {}",
                bytes(lag),
                human_bytes(most)
            ));
        }
        if let (Some(most), Some(lag)) = (limits.max_lag_seconds, self.lag_seconds)
            && Duration::try_from_secs_f64(lag).is_ok_and(|lag| lag > most)
        {
            problems.push(format!(
                "the relay is {lag:.1} s behind, more than {} s",
                most.as_secs_f64()
            ));
        }
        problems
    }

    fn last_reply(&self, is_active: bool) -> String {
        match self.reply_age_seconds {
            Some(age) => format!("{} ago", doing::seconds(age)),
            None if is_active => format!("not known {NEEDS_RIGHT}"),
            None => "-".to_owned(),
        }
    }

    fn lag(&self) -> String {
        let lag = or_dash(self.lag_bytes.map(bytes));
        self.lag_seconds.map_or(lag.clone(), |waited| {
            format!("{lag}, {}", doing::seconds(waited))
        })
    }
}

impl Loss {
    /// The loss of the slot, past or to come.
    fn problem(&self) -> Option<String> {
        let conflict = (self.conflicting == Some(true)).then_some("conflict with recovery");
        match (
            self.wal_status.as_deref(),
            self.invalidation_reason.as_deref().or(conflict),
        ) {
            (Some("lost"), reason) => Some(format!(
                "the slot is lost ({})",
                reason.unwrap_or("wal_removed")
            )),
            (_, Some(reason)) => Some(format!("the slot is invalid ({reason})")),
            (Some("unreserved"), None) => Some(
                "the slot is about to be lost: the next checkpoint may remove its WAL".to_owned(),
            ),
            _ => None,
        }
    }

    fn status(&self) -> String {
        let invalid = self
            .invalidation_reason
            .as_deref()
            .map(|reason| format!(" ({reason})"));
        or_dash(self.wal_status.as_deref()) + &invalid.unwrap_or_default()
    }
}

fn with_detail(said: &str, detail: Option<&String>) -> String {
    detail.map_or(said.to_owned(), |detail| format!("{said}: {detail}"))
}

fn parsed_bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "write a number of bytes, or a size such as 16MiB".to_owned())
}

fn bytes(bytes: i64) -> String {
    human_bytes(u64::try_from(bytes).unwrap_or_default())
}

/// The greatest number of ends: two hours with a look every two seconds. Beyond it the lag may be
/// too small.
const ENDS_MAX: usize = 3_600;

/// Measures the lag of a running relay: the ends of the WAL, each with the time of the first look
/// at it, until they are confirmed.
///
/// Postgres keeps no time for a place in the WAL, and `pg_stat_replication.flush_lag` does not
/// change while nothing is confirmed. What can be known: when an end was first seen, and that the
/// relay has not confirmed it since.
#[derive(Debug, Default)]
struct Looks {
    ends: VecDeque<(Instant, Lsn)>,
    /// The confirmed LSN while WAL waits, and since when it is the same.
    still: Option<(Lsn, Instant)>,
}

impl Looks {
    /// Records that the WAL ended at `end` and was confirmed up to `confirmed`. Gives the least
    /// time for which the oldest unconfirmed WAL has waited. `None`: no earlier look saw it, and it
    /// may have waited for any time.
    fn look(&mut self, now: Instant, confirmed: Lsn, end: Lsn) -> Option<Duration> {
        let still = self
            .still
            .filter(|(before, _)| *before == confirmed)
            .unwrap_or((confirmed, now));
        self.still = (confirmed < end).then_some(still);
        if self.ends.back().is_some_and(|(_, last)| *last > end) {
            // Another server answers: the ends that were seen are of another WAL.
            self.ends.clear();
        }
        let first = self.ends.is_empty();
        if self.ends.back().is_none_or(|(_, last)| *last < end) && self.ends.len() < ENDS_MAX {
            self.ends.push_back((now, end));
        }
        let waits = self.ends.iter().find(|(_, end)| *end > confirmed).copied();
        // The newest end stays, so that the next look knows of an earlier one.
        while self.ends.len() > 1 && self.ends.front().is_some_and(|(_, end)| *end <= confirmed) {
            self.ends.pop_front();
        }
        match waits {
            None => Some(Duration::ZERO),
            Some(_) if first => None,
            Some((since, _)) => Some(now.saturating_duration_since(since)),
        }
    }

    /// How long WAL has waited at the last look without a confirmation, as far as the looks tell.
    fn unconfirmed(&self, now: Instant) -> Duration {
        self.still.map_or(Duration::ZERO, |(_, since)| {
            now.saturating_duration_since(since)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::json_line;
    use serde_json::{Value, json};

    fn report(changes: Value) -> Report {
        let mut row = json!({
            "slot": "orders", "kind": "logical", "plugin": "pgoutput", "database": "shop",
            "active": true, "pid": 7, "application": "walrelay", "client": "10.0.0.1",
            "stand_by_pids": [], "guarantee": "exactly-once",
            "ready": true, "intake": "closed", "bus": "connected",
            "intake_detail": "sink.max_in_flight_bytes is reached",
            "confirmed_lsn": "0/2000000", "restart_lsn": "0/1000000", "current_lsn": "0/2100000",
            "retained_bytes": 17 << 20, "lag_bytes": 1 << 20, "lag_seconds": 0.25,
            "reply_age_seconds": 1.5, "wal_status": "reserved", "two_phase": false,
        });
        row.as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        let parked = ParkedCount {
            events: Some(5),
            oldest_seconds: Some(200.0),
        };
        Report {
            healthy: true,
            parked,
            ..serde_json::from_value(row).unwrap()
        }
    }

    fn judged(changes: Value, limits: Limits) -> Report {
        let mut report = report(changes);
        report.judge(&limits);
        assert_eq!(report.healthy, report.verdict().is_ok());
        report
    }

    #[test]
    fn a_slot_is_judged_by_its_state_and_the_limits() {
        let lag_bytes = |most| Limits {
            max_lag_bytes: Some(most),
            ..Limits::default()
        };
        let lag_seconds = |most| Limits {
            max_lag_seconds: Some(Duration::from_secs(most)),
            ..Limits::default()
        };
        let none = Limits::default();
        for (changes, limits, problems) in [
            (json!({}), none, ""),
            (
                json!({"active": false}),
                none,
                "no relay streams from the slot",
            ),
            (
                json!({"wal_status": "lost"}),
                none,
                "the slot is lost (wal_removed)",
            ),
            (
                json!({"wal_status": "lost", "conflicting": true}),
                none,
                "the slot is lost (conflict with recovery)",
            ),
            (
                json!({"wal_status": "unreserved"}),
                none,
                "the slot is about to be lost: the next checkpoint may remove its WAL",
            ),
            (json!({"wal_status": "extended"}), none, ""),
            (
                json!({"invalidation_reason": "idle_timeout"}),
                none,
                "the slot is invalid (idle_timeout)",
            ),
            (
                json!({"confirmed_lsn": null}),
                none,
                "the slot is still being created",
            ),
            (
                json!({"confirmed_lsn": null, "active": false}),
                none,
                "the slot is lost (it has no confirmed LSN)",
            ),
            (
                json!({"ready": false, "ready_detail": "not connected to Kafka"}),
                none,
                "the relay is not ready: not connected to Kafka",
            ),
            (json!({"ready": null}), none, ""),
            (
                json!({"application": "psql"}),
                none,
                "psql streams from slot orders, and is not a relay: relays wait for it",
            ),
            // A relay that polls needs no slot.
            (
                json!({"kind": null, "plugin": null, "active": false, "table_reader_pid": 9}),
                none,
                "",
            ),
            (json!({}), lag_bytes(1 << 20), ""),
            (
                json!({}),
                lag_bytes((1 << 20) - 1),
                "1.0 MiB are not confirmed, more than 1023 KiB",
            ),
            (json!({"lag_seconds": 5.0}), lag_seconds(5), ""),
            (
                json!({"lag_seconds": 5.5}),
                lag_seconds(5),
                "the relay is 5.5 s behind, more than 5 s",
            ),
            (json!({"lag_seconds": null}), lag_seconds(0), ""),
        ] {
            assert_eq!(
                judged(changes.clone(), limits).problems.join("; "),
                problems,
                "{changes}"
            );
        }
    }

    #[test]
    fn a_relay_is_to_be_started_only_where_none_runs() {
        let none = Limits::default();
        let remedy = |changes, fix: Option<&str>| {
            let mut report = report(changes);
            report.asked.fix = fix.map(str::to_owned);
            report.judge(&none);
            report.verdict().unwrap_err().what_to_do().unwrap()
        };
        let late = json!({"lag_bytes": 5, "ready": false, "ready_detail": "late"});
        for (changes, fix, said) in [
            (
                json!({"active": false, "ready": null}),
                None,
                "start a relay: ",
            ),
            (
                json!({"active": false, "ready": false, "ready_detail": "starting"}),
                None,
                "read the relay's log",
            ),
            (
                json!({"application": "x", "pid": 7, "ready": null}),
                None,
                "select pg_terminate_backend(7);",
            ),
            (late.clone(), None, "read the relay's log"),
            (late, Some("select 1"), "select 1"),
            (
                json!({"wal_status": "lost", "ready": null}),
                None,
                "`walrelay run --slot orders`",
            ),
        ] {
            let remedy = remedy(changes.clone(), fix);
            assert!(remedy.starts_with(said), "{changes}: {remedy}");
        }
    }

    #[test]
    fn a_relay_that_cannot_be_asked_must_confirm_something_in_time() {
        let with = |ready: Option<bool>, unconfirmed| {
            let mut report = report(json!({"ready": ready}));
            report.wal.unconfirmed = unconfirmed;
            report
        };
        let none = Limits::default();
        let late = UNCONFIRMED_MAX + SECOND;
        let seconds = Limits {
            max_lag_seconds: Some(AGE_MAX),
            ..none
        };
        for (mut report, limits, by, healthy) in [
            (
                with(None, UNCONFIRMED_MAX),
                none,
                "a confirmation within 15 s",
                true,
            ),
            (with(None, late), none, "a confirmation within 15 s", false),
            (
                with(Some(true), late),
                none,
                "the relay's own readiness",
                true,
            ),
            (with(None, late), seconds, "--max-lag-seconds", true),
        ] {
            report.judge(&limits);
            assert_eq!(
                (report.asked.judged_by.as_deref(), report.healthy),
                (Some(by), healthy),
                "{report:?}"
            );
        }
        let mut looks = Looks::default();
        let began = Instant::now();
        for (second, confirmed, end, unconfirmed) in [
            (0, 5, 5, 0),
            (100, 5, 9, 0),
            (110, 5, 9, 10),
            (120, 6, 9, 0),
            (121, 6, 9, 1),
            (122, 9, 9, 0),
        ] {
            let now = began + Duration::from_secs(second);
            looks.look(now, Lsn::new(confirmed), Lsn::new(end));
            assert_eq!(looks.unconfirmed(now).as_secs(), unconfirmed, "{second}");
        }
    }

    #[test]
    fn nagios_gets_a_warning_for_a_limit_and_critical_for_any_other_problem() {
        let none = Limits::default();
        let low = Limits {
            max_lag_bytes: Some(1_024),
            max_lag_seconds: Some(SECOND),
        };
        let reader = json!({"kind": null, "plugin": null, "active": false, "table_reader_pid": 9,
            "lag_bytes": null, "lag_seconds": null, "retained_bytes": null});
        let figures = "lag_bytes=1048576B;;;0 retained_bytes=17825792B;;;0 lag_seconds=0.25s;;;0 \
                       parked_events=5;;;0";
        let limited = "lag_bytes=1048576B;1024;;0 retained_bytes=17825792B;;;0 \
                       lag_seconds=0.25s;1;;0 parked_events=5;;;0";
        for (changes, limits, expected) in [
            (
                json!({}),
                none,
                format!("OK - slot orders: streaming, lag 1.0 MiB, 0.2 s | {figures}"),
            ),
            (
                reader,
                none,
                "OK - slot orders: a relay reads the table | parked_events=5;;;0".to_owned(),
            ),
            (
                json!({}),
                low,
                format!(
                    "WARNING - slot orders: 1.0 MiB are not confirmed, more than 1.0 KiB | \
                     {limited}"
                ),
            ),
            (
                json!({"active": false}),
                low,
                format!(
                    "CRITICAL - slot orders: {NO_RELAY}; 1.0 MiB are not confirmed, more than 1.0 \
                     KiB | {limited}"
                ),
            ),
            (
                json!({"active": false}),
                none,
                format!("CRITICAL - slot orders: {NO_RELAY} | {figures}"),
            ),
        ] {
            assert_eq!(
                judged(changes, limits).check(&limits).to_string(),
                format!("WALRELAY {expected}")
            );
        }
    }

    #[test]
    fn checks_of_a_lag_limit_repeat_until_the_first_wal_end_is_confirmed_or_overdue() {
        let limits = Limits {
            max_lag_seconds: Some(Duration::from_secs(5)),
            ..Limits::default()
        };
        let open = |changes, limits, end: &str| {
            let confirmed_lsn = "0/2000000".parse().ok();
            judged(changes, limits).needs_another_look(
                &limits,
                &Wal {
                    confirmed_lsn,
                    current_lsn: end.parse().ok(),
                    ..Wal::default()
                },
            )
        };
        assert!(open(json!({"lag_seconds": null}), limits, "0/2100000"));
        assert!(open(json!({"lag_seconds": 5}), limits, "0/2000001"));
        assert!(
            !open(json!({"lag_seconds": 0.5}), limits, "0/2000000"),
            "only later WAL is not confirmed"
        );
        assert!(!open(json!({"lag_seconds": 5.1}), limits, "0/2100000"));
        assert!(
            !open(
                json!({"lag_seconds": null, "active": false}),
                limits,
                "0/2100000"
            ),
            "no relay confirms"
        );
        assert!(
            !open(json!({"lag_seconds": null}), Limits::default(), "0/2100000"),
            "the relay has answered"
        );
        assert!(
            open(json!({"ready": null}), Limits::default(), "0/2100000"),
            "the relay has not"
        );
        assert!(!open(
            json!({"ready": null, "confirmed_lsn": "0/2000001"}),
            Limits::default(),
            "0/2100000"
        ));
    }

    #[test]
    fn the_status_table_is_aligned_and_uses_readable_units() {
        insta::assert_snapshot!(report(json!({})).table(), @r#"
        slot        orders
        health      healthy
        database    shop
        relay       backend pid 7, walrelay from 10.0.0.1
        guarantee   exactly-once
        stand-by    none
        readiness   ready
        judged by   -
        intake      closed: sink.max_in_flight_bytes is reached
        bus         connected
        parked      5 events, the oldest for 3 min (`walrelay parked list --slot orders`)
        last heard  1.5 s ago
        confirmed   0/2000000
        current     0/2100000
        lag         1.0 MiB, 0.2 s
        WAL kept    17 MiB from 0/1000000
        oldest xid  -
        WAL status  reserved
        WAL bound   no bound (max_slot_wal_keep_size)
        failover    -
        "#);
        let reader = json!({"table_reader_pid": 9, "active": false, "pid": null, "kind": null});
        for (changes, line) in [
            (
                reader.clone(),
                "slot        orders, which does not exist: the relay reads the table instead; \
                 `walrelay doctor --slot orders` says why\n",
            ),
            (reader, "relay       backend pid 9 reads the table\n"),
            (
                json!({"stand_by_pids": [11, 12]}),
                "stand-by    backend pid 11, backend pid 12\n",
            ),
            (json!({"lag_seconds": null}), "lag         1.0 MiB\n"),
            (
                json!({"client": null}),
                "backend pid 7, walrelay, address not shown (needs pg_monitor)\n",
            ),
            (
                json!({"reply_age_seconds": null}),
                "last heard  not known (needs pg_monitor)\n",
            ),
            (
                json!({"client": "[local]"}),
                "walrelay from a local socket\n",
            ),
            (
                json!({"lag_bytes": 100_u64 << 30, "lag_seconds": 3 * 86_400}),
                "lag         100 GiB, 72.0 h\n",
            ),
            (
                json!({"retained_bytes": 1_500_u64 << 30}),
                "WAL kept    1.4 TiB from 0/1000000\n",
            ),
            (
                json!({"oldest_transaction": "backend pid 8 (psql), for 1 day"}),
                "oldest xid  backend pid 8 (psql), for 1 day\n",
            ),
            (
                json!({"safe_wal_bytes": 100_u64 << 30}),
                "WAL bound   100 GiB more can be written before the slot may be lost\n",
            ),
            (
                json!({"wal_status": "lost"}),
                "WAL bound   none: the slot is lost\n",
            ),
            (
                json!({"active": false, "pid": null, "reply_age_seconds": null}),
                "last heard  -\n",
            ),
            (
                json!({"active": false, "pid": null}),
                "relay       none at work\n",
            ),
            (
                json!({"intake": "open", "intake_detail": null}),
                "intake      open\n",
            ),
            (
                json!({"intake": null, "intake_detail": "no answer"}),
                "intake      not known: no answer\n",
            ),
            (
                json!({"bus": "blocked"}),
                "bus         blocked: it asks all its clients to wait; the log says why\n",
            ),
            (json!({"bus": null}), "bus         not known\n"),
            (
                json!({"bus": null, "sink": "null"}),
                "bus         null, not known\n",
            ),
            (
                json!({"ready": false, "ready_detail": "told to stop"}),
                "readiness   not ready: told to stop\n",
            ),
            (
                json!({"ready": null, "ready_detail": "no answer"}),
                "readiness   not known: no answer\n",
            ),
        ] {
            let table = report(changes).table();
            assert!(table.contains(line), "{line}: {table}");
        }
    }

    #[test]
    fn the_json_keys_keep_their_order_and_unknown_values_are_null() {
        let json = json_line(&report(json!({}))).unwrap();
        let keys = "slot healthy problems kind plugin database sink active pid application client \
                    table_reader_pid \
             stand_by_pids guarantee ready ready_detail judged_by intake intake_detail bus \
             parked_events oldest_parked_seconds confirmed_lsn restart_lsn current_lsn \
             retained_bytes oldest_transaction lag_bytes lag_seconds inactive_seconds \
             reply_age_seconds wal_status safe_wal_bytes \
             invalidation_reason conflicting two_phase failover";
        let keys: Vec<&str> = keys.split(' ').collect();
        let places: Vec<_> = keys
            .iter()
            .map(|key| json.find(&format!("\"{key}\":")).unwrap())
            .collect();
        assert!(places.is_sorted(), "{json}");
        let json: Value = serde_json::from_str(&json).unwrap();
        assert!(
            json["failover"].is_null() && json["lag_bytes"] == 1 << 20 && json["healthy"] == true
        );
        assert_eq!(
            (json.as_object().unwrap().len(), &json["parked_events"]),
            (keys.len(), &json!(5))
        );
    }

    /// The result of each look, for its second, the confirmed LSN and the end of the WAL.
    fn looks(given: &[(u64, u64, u64)]) -> Vec<Option<u64>> {
        let began = Instant::now();
        let mut looks = Looks::default();
        let at = |seconds| began + Duration::from_secs(seconds);
        let look = |(seconds, confirmed, end): &(u64, u64, u64)| {
            looks
                .look(at(*seconds), Lsn::new(*confirmed), Lsn::new(*end))
                .map(|waited| waited.as_secs())
        };
        given.iter().map(look).collect()
    }

    #[test]
    fn lag_in_seconds_counts_from_the_first_look_that_saw_unconfirmed_wal() {
        for (given, expected) in [
            (&[(0, 90, 100)][..], &[None][..]),
            (&[(0, 100, 100)], &[Some(0)]),
            (
                &[(0, 90, 100), (5, 90, 100), (60, 90, 400)],
                &[None, Some(5), Some(60)],
            ),
            (
                &[
                    (0, 90, 100),
                    (5, 95, 200),
                    (9, 100, 300),
                    (12, 200, 300),
                    (13, 300, 300),
                    (20, 300, 400),
                ],
                &[None, Some(5), Some(4), Some(3), Some(0), Some(0)],
            ),
            (
                &[(0, 100, 100), (2, 100, 100), (4, 100, 200), (9, 100, 300)],
                &[Some(0), Some(0), Some(0), Some(5)],
            ),
            // A WAL that goes back is another one.
            (
                &[(0, 90, 100), (5, 40, 50), (7, 40, 60)],
                &[None, None, Some(2)],
            ),
        ] {
            assert_eq!(looks(given), expected, "{given:?}");
        }
    }

    #[test]
    fn a_relay_that_keeps_up_with_a_busy_server_has_no_lag() {
        let given: Vec<_> = (0..10_000)
            .map(|look| (2 * look, 100 * look, 100 * (look + 1)))
            .collect();
        assert!(looks(&given)[1..].iter().all(|waited| *waited == Some(0)));
    }

    #[test]
    fn the_memory_of_looks_is_bounded_and_the_lag_is_never_overstated() {
        let began = Instant::now();
        let mut looks = Looks::default();
        for look in 0..10_000 {
            looks.look(
                began + Duration::from_secs(look),
                Lsn::new(1),
                Lsn::new(10 + look),
            );
        }
        assert_eq!(looks.ends.len(), ENDS_MAX);
        let now = began + Duration::from_secs(10_000);
        assert_eq!(
            looks.look(now, Lsn::new(1), Lsn::new(20_000)),
            Some(Duration::from_secs(10_000))
        );
        assert_eq!(
            looks.look(now, Lsn::new(12_000), Lsn::new(20_000)),
            Some(Duration::ZERO)
        );
    }
}
