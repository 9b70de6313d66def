//! One survey of Postgres and the bus: a list of checks, each with what mends it. `doctor` and
//! `config check` show it. Reads only.

mod postgres;
mod sample;

use std::time::Duration;

pub(super) use self::postgres::SurveyedServer;
pub(super) use self::sample::{LIMIT as STATEMENT_LIMIT, Sampled, Values, described, readable};
use crate::config::Config;
use crate::sink::checks;
use crate::survey::{BUS, Check, Seen, Survey, TOPIC_RIGHTS, WRONG};

/// The limit for all checks. Each question has one of its own, of at most half a minute, but a
/// table more is a question more.
const LIMIT: Duration = Duration::from_secs(120);

/// The checks without which a look at the position says nothing.
const BEFORE_POSITION: [&str; 7] = [
    "server",
    "role",
    "table",
    "slot",
    "publication",
    BUS,
    TOPIC_RIGHTS,
];

/// The servers that a survey asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// Postgres, as if `walrelay setup` had made what it makes. For `config check`, to which only
    /// that is wrong which stops `run`.
    BeforeSetup,
    /// Postgres and the bus. For `doctor`.
    Both,
}

impl Asked {
    /// What `pg_stat_activity` shows of the survey.
    fn application_name(self) -> &'static str {
        match self {
            Asked::BeforeSetup => "walrelay config check",
            Asked::Both => "walrelay doctor",
        }
    }
}

/// Adds the checks of the servers, within [`LIMIT`]. Gives what was read of Postgres, where it
/// answers in time.
pub(super) async fn look(
    config: &Config,
    asked: Asked,
    survey: &mut Survey,
) -> Option<SurveyedServer> {
    within_limit(survey, async |survey| {
        let mut seen = Seen::default();
        let server = postgres::look(config, asked, survey, &mut seen).await;
        if asked == Asked::Both {
            let cluster_id = checks(config.sink.kind).survey(config, &seen, survey).await;
            let is_unclear =
                |check: &Check| check.state == WRONG && BEFORE_POSITION.contains(&check.check);
            if let Some(server) = &server
                && !survey.checks.iter().any(is_unclear)
            {
                postgres::position(config, server, cluster_id, survey).await;
            }
        }
        server
    })
    .await
    .flatten()
}

async fn within_limit<T>(
    survey: &mut Survey,
    look: impl AsyncFnOnce(&mut Survey) -> T,
) -> Option<T> {
    if let Ok(found) = tokio::time::timeout(LIMIT, look(survey)).await {
        return Some(found);
    }
    let found = format!(
        "the checks took longer than {} s: what is not in this table was not asked",
        LIMIT.as_secs()
    );
    survey.warning("time", "", found, None);
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::{OK, WARNING};

    #[tokio::test(start_paused = true)]
    async fn checks_that_take_too_long_end_at_the_limit_and_those_made_are_shown() {
        let mut survey = Survey::default();
        let began = tokio::time::Instant::now();
        let looked = within_limit(&mut survey, async |survey| {
            survey.ok("postgres", "", "PostgreSQL 18");
            std::future::pending().await
        });
        assert_eq!(looked.await, None::<()>);
        assert_eq!(began.elapsed(), LIMIT);
        let states: Vec<_> = survey
            .checks
            .iter()
            .map(|check| (check.check, check.state))
            .collect();
        assert_eq!(states, [("postgres", OK), ("time", WARNING)]);
        assert!(
            survey.checks[1]
                .found
                .contains("longer than 120 s: what is not in this table was not asked")
        );
    }
}
