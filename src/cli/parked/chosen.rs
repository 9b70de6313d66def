//! Which events a command means, as values of the queries that begin with `sql/parked/chosen.sql`.

use tokio_postgres::types::ToSql;

use super::Choice;
use crate::clock::now_us;
use crate::config::SlotName;
use crate::error::Result;

/// Values of the first parameters.
#[derive(Debug)]
pub(super) struct Chosen {
    slot: String,
    ids: Option<Vec<Vec<u8>>>,
    keys: Option<Vec<Vec<u8>>>,
    classes: Option<Vec<String>>,
    topics: Option<Vec<String>>,
    outboxes: Option<Vec<String>>,
    since_ms: Option<i64>,
    until_ms: Option<i64>,
}

impl Chosen {
    /// # Errors
    /// [`crate::error::Kind::Config`] for what is no time.
    pub(super) fn new(slot: &SlotName, choice: &Choice) -> Result<Chosen> {
        let filters = &choice.filters;
        let span = filters.span(now_us() / 1_000)?;
        Ok(Chosen {
            slot: slot.to_string(),
            ids: any(&filters.id, |id| id.clone().into_bytes()),
            keys: any(&filters.aggregate, |key| key.clone().into_bytes()),
            classes: any(&filters.class, String::clone),
            topics: any(&filters.topic, String::clone),
            outboxes: any(&choice.outbox, String::clone),
            since_ms: span.since_ms,
            until_ms: span.until_ms,
        })
    }

    /// In the order of their numbers.
    pub(super) fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
        let Chosen { slot, ids, keys, classes, topics, outboxes, since_ms, until_ms } = self;
        vec![slot, ids, keys, classes, topics, outboxes, since_ms, until_ms]
    }
}

impl Choice {
    /// Whether everything is meant.
    pub(super) fn is_empty(&self) -> bool {
        self.filters.is_empty() && self.outbox.is_empty()
    }
}

fn any<T>(given: &[String], of: impl Fn(&String) -> T) -> Option<Vec<T>> {
    (!given.is_empty()).then(|| given.iter().map(of).collect())
}
