//! `walrelay status`: one query, one report.

pub mod lag;
pub mod parked;
pub mod report;

use std::io::IsTerminal;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::cli::StatusArgs;
use crate::cli::load::Loaded;
use crate::cli::output::{Outcome, note, print_line, print_to_reader};
use crate::cli::session::{Session, column};
use crate::cli::sql;
use crate::clock::now_us;
use crate::config::SlotName;
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::source::lease;
use lag::Looks;
use report::{Limits, Report};

/// Clears the screen and starts at its top left.
const REDRAW: &str = "\x1b[H\x1b[2J";

/// How soon it is looked at again where one look cannot tell whether the lag is too long.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Prints how the slot is doing, once or until interrupted.
///
/// # Errors
/// [`Kind::SlotUnusable`] where it does not exist, [`Kind::Unhealthy`] where it is not well, and what connecting gives.
/// While watching, being unhealthy does not end it. With a limit in seconds one report may take that many seconds and
/// one more.
pub async fn status(args: &StatusArgs) -> Outcome {
    let loaded = Loaded::new(&args.common.flags(), args.common.config.as_deref())?;
    for warning in loaded.settings.warnings() {
        note(format_args!("warning: {warning}"));
    }
    let (slot, database) = (loaded.settings.slot()?, loaded.settings.database()?);
    let limits = Limits { lag_bytes: args.max_lag_bytes, lag_seconds: args.max_lag_seconds };
    let session = Session::connect(&database, "status").await?;
    let mut looks = Looks::default();
    let Some(seconds) = args.watch else {
        let mut report = read(&session, &slot, &limits, &mut looks).await?;
        let end = report.current();
        while report.is_open(&limits, end) {
            tokio::time::sleep(LOOK_AGAIN).await;
            report = read(&session, &slot, &limits, &mut looks).await?;
        }
        print_line(if args.json { report.json()? } else { report.table().trim_end().to_owned() })?;
        return Ok(report.verdict()?);
    };
    let redraw = std::io::stdout().is_terminal() && !args.json;
    let mut tick = tokio::time::interval(Duration::from_secs(seconds));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let report = read(&session, &slot, &limits, &mut looks).await?;
        let seen = match (redraw, args.json) {
            (true, _) => format!("{REDRAW}{}\n\n{}", clock(), report.table()),
            (false, true) => format!("{}\n", report.json()?),
            (false, false) => format!("time={} {}\n", clock(), report.line()),
        };
        print_to_reader(&seen)?;
    }
}

/// The time of this look, in UTC.
fn clock() -> impl std::fmt::Display {
    let since_epoch = Duration::from_micros(u64::try_from(now_us()).unwrap_or_default());
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + since_epoch)
}

async fn read(session: &Session, slot: &SlotName, limits: &Limits, looks: &mut Looks) -> Result<Report> {
    let (class, key) = lease::keys(slot);
    let row = session.row("asking for the slot's status", sql::STATUS, &[&slot.as_str(), &class, &key]).await?;
    let row = row.ok_or_else(|| Error::new(Kind::Bug, "no row of the slot's status"))?;
    let (kind, table_reader_pid) = (column(&row, "kind")?, column(&row, "table_reader_pid")?);
    if (&kind, table_reader_pid) == (&None::<String>, None::<i32>) {
        return Err(Error::new(Kind::SlotUnusable, format!("slot {slot} does not exist, and nobody reads its table"))
            .remedy(
                Remedy::from(NextCommand::new("setup").option("slot", slot))
                    .and(" makes it, and the publication that a relay needs; where that is there: ")
                    .and(NextCommand::new("run").option("slot", slot)),
            ));
    }
    let parked = parked::waiting(session, slot).await?;
    let mut report = Report {
        slot: column(&row, "slot")?,
        healthy: true,
        problems: Vec::new(),
        kind,
        plugin: column(&row, "plugin")?,
        database: column(&row, "database")?,
        active: column(&row, "active")?,
        pid: column(&row, "pid")?,
        application: column(&row, "application")?,
        client: column(&row, "client")?,
        table_reader_pid,
        stand_by_pids: column(&row, "stand_by_pids")?,
        guarantee: column(&row, "guarantee")?,
        parked_events: parked.map(|parked| parked.events),
        oldest_parked_seconds: parked.and_then(|parked| parked.oldest_seconds),
        confirmed_lsn: column(&row, "confirmed_lsn")?,
        restart_lsn: column(&row, "restart_lsn")?,
        current_lsn: column(&row, "current_lsn")?,
        retained_bytes: column(&row, "retained_bytes")?,
        lag_bytes: column(&row, "lag_bytes")?,
        lag_seconds: column(&row, "lag_seconds")?,
        reply_age_seconds: column(&row, "reply_age_seconds")?,
        wal_status: column(&row, "wal_status")?,
        safe_wal_bytes: column(&row, "safe_wal_bytes")?,
        invalidation_reason: column(&row, "invalidation_reason")?,
        conflicting: column(&row, "conflicting")?,
        two_phase: column(&row, "two_phase")?,
        failover: column(&row, "failover")?,
    };
    if let (Some(confirmed), Some(end)) = (report.confirmed(), report.current()) {
        let waited = looks.look(Instant::now(), confirmed, end);
        report.lag_seconds = report.lag_seconds.or_else(|| waited.map(|waited| waited.as_secs_f64()));
    }
    report.judge(limits);
    Ok(report)
}
