//! The parked events: the table `walrelay.parked`.
//!
//! One row holds one event with the columns of its record, so that a retry routes the event again.
//! The events of an aggregate are in the order of `id`. Only the relay with the slot writes events.
//! Others write requests in column `asked`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use serde_json::{Map, Value};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::config::Config;
use crate::postgres::query::{OwnTable, QueryError, bounded, role};
use crate::postgres::quote::quote_literal;
use crate::upkeep::ANSWER_TIMEOUT;
use walrelay_core::config::{OnError, OutboxConfig, SlotName};
use walrelay_core::error::{Error, Kind, NextCommand, Remedy, Result};
use walrelay_core::event::{Place, RowId, Shown, Via};
use walrelay_core::parked::{
    AggregateHead, BEHIND, CLASSES, FailedAgain, Failure, ParkedColumn, ParkedEvent, ParkedRef,
    ParkedRow, Parking, short,
};
use walrelay_core::position::Lsn;
use walrelay_core::printable::shell_word;
use walrelay_core::template::ColumnType;

const INSERT: &str = include_str!("../../sql/parked/insert.sql");
pub(super) const INDEX: &str = include_str!("../../sql/parked/index.sql");
const DUE: &str = include_str!("../../sql/parked/due.sql");
const EVENTS: &str = include_str!("../../sql/parked/events.sql");
pub(super) const DROPPED: &str = include_str!("../../sql/parked/dropped.sql");
const FAILED: &str = include_str!("../../sql/parked/failed.sql");
const ORPHANS: &str = include_str!("../../sql/parked/orphans.sql");
const REMOVE: &str = include_str!("../../sql/parked/remove.sql");
const DUE_NEXT: &str = include_str!("../../sql/parked/due_next.sql");
/// Plans of this session use indexes, whatever the statistics say. A scan that is disabled costs so
/// much that the plan would be compiled.
const PLANS: &str = "set enable_seqscan = off; set jit = off";
/// Statements are planned for the size that the table has now: of a table that was empty, each
/// index is as good.
const REPLAN: &str = "discard plans";

/// The table of one slot, with statements prepared in the session of a [`Marker`](super::Marker).
#[derive(Debug)]
pub(super) struct ParkedTable {
    pub(super) slot: String,
    /// The names of the outboxes, and the templates of their keys, by index.
    pub(super) outboxes: Vec<String>,
    keys_by: Vec<String>,
    /// The columns that name a row, by outbox.
    row_keys: Vec<Vec<String>>,
    insert: Statement,
    failed: Statement,
    pub(super) due: Statement,
    due_next: Statement,
    pub(super) events: Statement,
    remove: Statement,
    /// The number of dropped events of outboxes that are not configured, until it is counted.
    pub(super) dropped: AtomicU64,
    /// The greatest id that [`ParkedTable::look_at_new`] has seen. One session parks events, so
    /// they come in this order.
    pub(super) seen: AtomicI64,
}

pub(super) const DOING: &str = "using table walrelay.parked";
pub(super) const PARKED: OwnTable = OwnTable {
    name: "walrelay.parked",
    state: include_str!("../../sql/parked/exists.sql"),
    create: include_str!("../../sql/parked/create.sql"),
    privileges: "select, insert, update, delete",
    lacking: "events cannot be parked",
    otherwise: "set delivery.on_error to stop, dead-letter or skip",
};
/// The greatest number of events of outboxes that are not configured to drop at once.
const ORPHANS_MAX: i64 = 1_000;
/// The greatest number of dropped events that the log names at once. A line has the number of all.
pub(crate) const DROPPED_NAMED_MAX: u64 = 10;

impl ParkedTable {
    /// Checks the table, creates it if that is configured and permitted, and prepares the
    /// statements. Errors: [`Kind::PostgresRefused`] with the SQL for a role that may create it;
    /// those of the connection.
    pub(super) async fn open(
        client: &Client,
        slot: &SlotName,
        outboxes: &[OutboxConfig],
        parking: Parking,
    ) -> Result<Option<ParkedTable>> {
        match parking {
            Parking::Off => return Ok(None),
            Parking::On => PARKED.prepare(client).await?,
            // [`Parking::On`] makes a missing table, and upgrades one of an earlier layout.
            Parking::IfTableExists if !PARKED.check(client).await? => return Ok(None),
            Parking::IfTableExists => {}
        }
        bounded(DOING, ANSWER_TIMEOUT, client.batch_execute(PLANS)).await?;
        let prepared = async |sql| bounded(DOING, ANSWER_TIMEOUT, client.prepare(sql)).await;
        Ok(Some(ParkedTable {
            slot: slot.to_string(),
            outboxes: outboxes
                .iter()
                .map(|outbox| outbox.source.to_string())
                .collect(),
            keys_by: outboxes.iter().map(key_by).collect(),
            row_keys: outboxes
                .iter()
                .map(|outbox| outbox.key_columns().cloned().collect())
                .collect(),
            insert: prepared(INSERT).await?,
            failed: prepared(FAILED).await?,
            due: prepared(DUE).await?,
            due_next: prepared(DUE_NEXT).await?,
            events: prepared(EVENTS).await?,
            remove: prepared(REMOVE).await?,
            dropped: AtomicU64::default(),
            seen: AtomicI64::default(),
        }))
    }

    /// The event in a row of `index.sql`, with [`short`] names; none where its outbox is not
    /// configured.
    pub(super) fn waiting(&self, row: &Row) -> Result<Option<ParkedRef>, QueryError> {
        let Some(outbox) = self.outbox(row, 0)? else {
            return Ok(None);
        };
        let mut of = self.row_id(outbox, get(row, 1)?, get(row, 7)?);
        of.key = short(&of.key).into_owned();
        let key = get::<Option<&[u8]>>(row, 2)?.map(|key| short(key).into_owned());
        Ok(Some(ParkedRef {
            row: of,
            place: place(row, 4)?,
            committed_at_us: get(row, 8)?,
            key,
            refused_by: get(row, 3)?,
        }))
    }

    /// The aggregate of a row of `due.sql`; none where its outbox is not configured.
    pub(super) fn head(&self, row: &Row) -> Result<Option<AggregateHead>, QueryError> {
        let Some(outbox) = self.outbox(row, 1)? else {
            return Ok(None);
        };
        Ok(Some(AggregateHead {
            id: get(row, 0)?,
            outbox,
            key: None,
            is_asked: get(row, 2)?,
        }))
    }

    /// The event in a row of `dropped.sql`, without its key, and its failure; none where its outbox
    /// is not configured.
    pub(super) fn dropped_event(
        &self,
        row: &Row,
    ) -> Result<Option<(i64, ParkedRef, Failure)>, QueryError> {
        let Some(outbox) = self.outbox(row, 1)? else {
            return Ok(None);
        };
        let of = self.row_id(outbox, get(row, 2)?, get(row, 9)?);
        let waiting = ParkedRef {
            row: of,
            place: place(row, 6)?,
            committed_at_us: get(row, 10)?,
            key: None,
            refused_by: None,
        };
        let class = get::<String>(row, 3)?;
        let cause = get::<Option<String>>(row, 4)?.unwrap_or_default();
        let attempts = u32::try_from(get::<i32>(row, 5)?).unwrap_or_default();
        Ok(Some((
            get(row, 0)?,
            waiting,
            Failure {
                class: class_of(&class),
                cause,
                attempts,
            },
        )))
    }

    /// The event in a row of `events.sql`, which is one of this outbox.
    pub(super) fn held(&self, row: &Row, outbox: usize) -> Result<ParkedRow, QueryError> {
        let names: Vec<String> = get(row, 8)?;
        let types: Vec<i64> = get(row, 9)?;
        let texts: Vec<Option<Vec<u8>>> = get(row, 10)?;
        let modifiers: Vec<i32> = get::<Option<_>>(row, 17)?.unwrap_or_default();
        let types = types
            .into_iter()
            .enumerate()
            .map(|(place, oid)| ColumnType {
                oid: u32::try_from(oid).unwrap_or_default(),
                modifier: modifiers.get(place).copied().unwrap_or(-1),
            });
        let columns = names.into_iter().zip(types).zip(texts);
        let columns = columns.map(|((name, type_of), text)| ParkedColumn {
            name,
            type_of,
            text,
        });
        let event = ParkedEvent {
            row: self.row_id(outbox, get(row, 1)?, get(row, 16)?),
            key: get(row, 2)?,
            topic: get(row, 3)?,
            place: place(row, 4)?,
            committed_at_us: get(row, 7)?,
            columns: columns.collect(),
            why: None,
            retry_in_ms: None,
        };
        let attempts = u32::try_from(get::<i32>(row, 13)?).unwrap_or_default();
        let class = get(row, 11)?;
        let error = get(row, 12)?;
        let is_dropped = get(row, 14)?;
        let version = get(row, 15)?;
        Ok(ParkedRow {
            id: get(row, 0)?,
            event,
            class,
            error,
            attempts,
            is_dropped,
            version,
        })
    }

    /// Records a failed retry, in the caller's transaction.
    pub(super) async fn failed(
        &self,
        client: &Client,
        event: &FailedAgain,
    ) -> Result<(), QueryError> {
        let FailedAgain {
            id,
            version,
            failure,
            retry_in_ms,
            ..
        } = event;
        let attempts = i32::try_from(failure.attempts).unwrap_or(i32::MAX);
        let values: [&(dyn ToSql + Sync); 6] = [
            id,
            &failure.class,
            &failure.cause,
            &attempts,
            retry_in_ms,
            version,
        ];
        bounded(DOING, ANSWER_TIMEOUT, client.execute(&self.failed, &values))
            .await
            .map(|_| ())
    }

    /// Parks the event, in the caller's transaction. An event that is parked already stays as it
    /// is.
    pub(super) async fn park(
        &self,
        client: &Client,
        event: &ParkedEvent,
    ) -> Result<(), QueryError> {
        let via = match event.place.via {
            Via::Slot => "slot",
            Via::Table => "table",
            Via::Replay => "replay",
        };
        let name = self
            .outboxes
            .get(event.row.outbox)
            .map(String::as_str)
            .unwrap_or_default();
        let (class, error, attempts) = match &event.why {
            Some(why) => (
                why.class,
                Some(&why.cause),
                i32::try_from(why.attempts).unwrap_or(i32::MAX),
            ),
            None => (BEHIND, None, 0),
        };
        let names: Vec<&str> = event
            .columns
            .iter()
            .map(|column| column.name.as_str())
            .collect();
        let types: Vec<i64> = event
            .columns
            .iter()
            .map(|column| column.type_of.oid.into())
            .collect();
        let modifiers: Vec<i32> = event
            .columns
            .iter()
            .map(|column| column.type_of.modifier)
            .collect();
        let texts: Vec<Option<&[u8]>> = event
            .columns
            .iter()
            .map(|column| column.text.as_deref())
            .collect();
        let index = i64::try_from(event.place.index).unwrap_or(i64::MAX);
        let row_key = self.row_key(&event.row).to_string();
        let values: [&(dyn ToSql + Sync); 19] = [
            &self.slot,
            &name,
            &event.row.id(),
            &event.key,
            &event.topic,
            &event.place.commit_lsn.to_string(),
            &index,
            &via,
            &event.committed_at_us,
            &names,
            &types,
            &texts,
            &class,
            &error,
            &attempts,
            &event.retry_in_ms,
            &self.keys_by.get(event.row.outbox),
            &row_key,
            &modifiers,
        ];
        bounded(DOING, ANSWER_TIMEOUT, client.execute(&self.insert, &values))
            .await
            .map(|_| ())
    }

    /// Removes the events, in the caller's transaction. The next event of each aggregate is due.
    pub(super) async fn remove(&self, client: &Client, ids: &[i64]) -> Result<(), QueryError> {
        bounded(DOING, ANSWER_TIMEOUT, client.execute(&self.remove, &[&ids]))
            .await
            .map(|_| ())
    }

    /// The next statements are planned anew.
    pub(super) async fn replan(&self, client: &Client) -> Result<(), QueryError> {
        bounded(DOING, ANSWER_TIMEOUT, client.batch_execute(REPLAN)).await
    }

    /// Looks at the events that were parked since the last time: the one before them may be gone
    /// already.
    pub(super) async fn look_at_new(&self, client: &Client) -> Result<(), QueryError> {
        let seen = self.seen.load(Ordering::Relaxed);
        let row = bounded(
            DOING,
            ANSWER_TIMEOUT,
            client.query_one(&self.due_next, &[&self.slot, &seen]),
        )
        .await?;
        self.seen.store(get(&row, 0)?, Ordering::Relaxed);
        Ok(())
    }

    /// Drops events of outboxes that are not configured, on an operator's request.
    /// [`none_left_behind`] reports others.
    pub(super) async fn drop_orphans(&self, client: &Client) -> Result<(), QueryError> {
        let mut named = 0;
        loop {
            let rows = bounded(
                DOING,
                ANSWER_TIMEOUT,
                client.query(ORPHANS, &[&self.slot, &self.outboxes, &ORPHANS_MAX]),
            )
            .await?;
            let mut ids = Vec::with_capacity(rows.len());
            for row in &rows {
                let outbox = get::<&str>(row, 1)?;
                let id = Shown::of(get(row, 2)?);
                let class = get::<&str>(row, 3)?;
                let cause = get::<Option<&str>>(row, 4)?;
                named += 1;
                if named <= DROPPED_NAMED_MAX {
                    tracing::warn!(event = "parked_event_dropped", slot = self.slot, outbox,
                        row = %id, class, cause,
                        "a parked event of an outbox that is not configured is dropped, as an \
                         operator asked");
                } else {
                    tracing::debug!(slot = self.slot, outbox, row = %id, class, cause, "a further \
                        parked event is dropped");
                }
                ids.push(get(row, 0)?);
            }
            if ids.is_empty() {
                return Ok(());
            }
            self.remove(client, &ids).await?;
            let events = ids.len() as u64;
            tracing::info!(
                event = "parked_events_dropped",
                slot = self.slot,
                events,
                "parked events were dropped"
            );
            self.dropped.fetch_add(events, Ordering::Relaxed);
        }
    }

    /// The columns that name a row, with their values.
    fn row_key(&self, row: &RowId) -> Value {
        let names = self
            .row_keys
            .get(row.outbox)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let values = row
            .values()
            .map(|value| String::from_utf8_lossy(value).into_owned().into());
        names
            .iter()
            .cloned()
            .zip(values)
            .collect::<Map<_, _>>()
            .into()
    }

    /// The row of an event, by its id and the other columns of the row key as JSON. If the event
    /// was parked under another row key, the id alone identifies the row.
    fn row_id(&self, outbox: usize, id: &[u8], key: Option<&str>) -> RowId {
        let kept: Value = key
            .and_then(|key| serde_json::from_str(key).ok())
            .unwrap_or_default();
        let rest = self
            .row_keys
            .get(outbox)
            .into_iter()
            .flatten()
            .skip(1)
            .map_while(|name| kept.get(name)?.as_str());
        RowId::new(outbox, std::iter::once(id).chain(rest.map(str::as_bytes)))
    }

    fn outbox(&self, row: &Row, column: usize) -> Result<Option<usize>, QueryError> {
        let name: &str = get(row, column)?;
        Ok(self.outboxes.iter().position(|known| known == name))
    }
}

/// The class of this name; `rejected` for an unknown name.
fn class_of(text: &str) -> &'static str {
    CLASSES
        .into_iter()
        .find(|class| *class == text)
        .unwrap_or("rejected")
}

/// The template of an outbox's keys; empty if its records have no keys.
pub(super) fn key_by(outbox: &OutboxConfig) -> String {
    outbox
        .route
        .key
        .as_ref()
        .map(|key| key.source().to_owned())
        .unwrap_or_default()
}

pub(super) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: usize,
) -> Result<T, QueryError> {
    row.try_get(column)
        .map_err(|error| QueryError::of(DOING, &error))
}

/// The place in the columns from `first` on: commit LSN, index, source.
fn place(row: &Row, first: usize) -> Result<Place, QueryError> {
    let lsn = get::<&str>(row, first)?.parse::<Lsn>();
    let commit_lsn = lsn.map_err(|error| {
        QueryError::refused(Error::new(
            Kind::PostgresUnfit,
            format!("while {DOING}: {error}"),
        ))
    })?;
    let index = u64::try_from(get::<i64>(row, first + 1)?).unwrap_or_default();
    let via = match get::<&str>(row, first + 2)? {
        "slot" => Via::Slot,
        "replay" => Via::Replay,
        _ => Via::Table,
    };
    Ok(Place {
        commit_lsn,
        index,
        via,
    })
}

const COUNT: &str = include_str!("../../sql/parked/count.sql");
const BY_KEY: &str = include_str!("../../sql/parked/by_key.sql");

#[derive(Debug, Clone)]
struct Left {
    outbox: String,
    /// The template of their keys; none if it was not kept.
    key_by: Option<String>,
    count: i64,
}

/// Checks that a relay of this configuration would deliver all parked events of the slot.
/// Errors: [`Kind::Config`] where it would leave events behind; [`Kind::PostgresRefused`] with the
/// GRANT; those of the connection.
pub(crate) async fn none_left_behind(client: &Client, config: &Config) -> Result<()> {
    let slot = &config.source.slot;
    let parks = config.delivery.on_error == OnError::Park;
    match (PARKED.state(client).await?.as_str(), parks) {
        ("missing", _) => Ok(()),
        ("forbidden", _) => Err(unknown(client, slot).await),
        (_, false) => {
            let row = bounded(
                DOING,
                ANSWER_TIMEOUT,
                client.query_one(COUNT, &[&slot.as_str()]),
            )
            .await?;
            passes_none(get(&row, 0)?, slot)
        }
        ("usable", true) => {
            let rows = bounded(
                DOING,
                ANSWER_TIMEOUT,
                client.query(BY_KEY, &[&slot.as_str()]),
            )
            .await?;
            let left = rows.iter().map(|row| {
                Ok(Left {
                    outbox: get(row, 0)?,
                    key_by: get(row, 1)?,
                    count: get(row, 2)?,
                })
            });
            let left = left.collect::<Result<Vec<_>, QueryError>>()?;
            all_configured(&left, slot, &config.outboxes)?;
            same_keys(&left, slot, &config.outboxes)
        }
        // The session that opens the table says what to do, and checks again.
        (_, true) => Ok(()),
    }
}

/// Whether there is a table of parked events that this role may read.
pub(crate) async fn may_look(client: &Client) -> Result<bool> {
    let state = PARKED.state(client).await?;
    Ok(!matches!(state.as_str(), "missing" | "forbidden"))
}

async fn unknown(client: &Client, slot: &SlotName) -> Error {
    let role = role(client).await;
    let cause = format!(
        "there is a table walrelay.parked that role {role} may not read: events of slot {slot} may \
         be parked in it, and later \
         ones would overtake them"
    );
    Error::new(Kind::PostgresRefused, cause).remedy(format!(
        "as a role that may: grant usage on schema walrelay to {role}; grant select on \
         walrelay.parked to {role};"
    ))
}

fn passes_none(count: i64, slot: &SlotName) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let key = "delivery.on_error";
    let cause = format!(
        "{count} events of slot {slot} are parked, and {key} is not park: later events of their \
         aggregates would overtake them"
    );
    Err(Error::new(Kind::Config, cause).remedy(
        Remedy::from(
            "start with on_error = \"park\", as all relays of a slot are to be, until \
                      nothing waits: `",
        )
        .and(NextCommand::new("parked list"))
        .and("` shows it, `")
        .and(NextCommand::new("parked retry").flag("all"))
        .and("` sends it, and `")
        .and(NextCommand::new("parked drop").flag("all"))
        .and("` gives it up"),
    ))
}

/// Events of an outbox that is not configured have no route.
fn all_configured(left: &[Left], slot: &SlotName, outboxes: &[OutboxConfig]) -> Result<()> {
    let mut unknown: BTreeMap<&str, i64> = BTreeMap::new();
    let is_known = |name: &str| {
        outboxes
            .iter()
            .any(|outbox| outbox.source.to_string() == name)
    };
    for left in left.iter().filter(|left| !is_known(&left.outbox)) {
        *unknown.entry(&left.outbox).or_default() += left.count;
    }
    let Some((first, _)) = unknown.first_key_value() else {
        return Ok(());
    };
    let counts: Vec<_> = unknown
        .iter()
        .map(|(outbox, count)| format!("{count} of outbox {outbox}"))
        .collect();
    let counts = counts.join(", ");
    let cause = format!(
        "events of slot {slot} are parked whose outbox is not configured, so they cannot be sent: \
         {counts}"
    );
    let of = quote_literal(slot.as_str())?;
    let was = quote_literal(first)?;
    Err(Error::new(Kind::Config, cause).remedy(
        Remedy::from("configure it again until nothing of it waits; or give its events up: `")
            .and(NextCommand::new("parked drop").option("outbox", shell_word(first)))
            .and(format!(
                "`; or, where it has another name by now: update walrelay.parked set outbox = 'the \
                 new name' where slot = {of} \
                 and outbox = {was}"
            )),
    ))
}

/// Parked events with the previous key, and later events with a new one, would be two aggregates.
fn same_keys(left: &[Left], slot: &SlotName, outboxes: &[OutboxConfig]) -> Result<()> {
    for outbox in outboxes {
        let name = outbox.source.to_string();
        let now = key_by(outbox);
        let of_outbox = left.iter().filter(|left| left.outbox == name);
        let other = |left: &&Left| left.key_by.as_ref().is_some_and(|key_by| *key_by != now);
        let Some(Left {
            key_by: Some(was),
            count,
            ..
        }) = of_outbox.into_iter().find(other)
        else {
            continue;
        };
        let (key, said) = ("route.key", |key: &str| format!("{key:?}"));
        let cause = format!(
            "{count} events of outbox {name} of slot {slot} are parked by the key {}, and {key} is \
             {} now: later events of their \
             aggregates would overtake them",
            said(was),
            said(&now)
        );
        return Err(Error::new(Kind::Config, cause).remedy(
            Remedy::from(format!(
                "start with {key} = {} until nothing of it waits, which `",
                said(was)
            ))
            .and(NextCommand::new("parked list"))
            .and("` shows; or give the events up: ")
            .and(NextCommand::new("parked drop").option("outbox", shell_word(&name))),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_read_as_it_was_written() {
        for class in CLASSES {
            assert_eq!(class_of(class), class);
        }
    }

    #[test]
    fn parked_events_of_an_outbox_that_is_not_configured_are_refused() {
        let slot: SlotName = "shop".parse().unwrap();
        let outboxes = [OutboxConfig::default()];
        let left = |outbox: &str, count| Left {
            outbox: outbox.to_owned(),
            key_by: None,
            count,
        };
        let known = left(&outboxes[0].source.to_string(), 5);
        all_configured(std::slice::from_ref(&known), &slot, &outboxes).unwrap();
        let all = [
            known,
            left("sales.Old", 2),
            left("sales.Old", 1),
            left("mail o'clock", 4),
        ];
        let error = all_configured(&all, &slot, &outboxes).unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        assert!(
            error
                .cause()
                .contains("4 of outbox mail o'clock, 3 of outbox sales.Old"),
            "{error}"
        );
        let fix = error.what_to_do().unwrap();
        assert!(
            fix.contains(r"drop --outbox 'mail o'\''clock'")
                && fix.contains("slot = 'shop' and outbox = 'mail o''clock'"),
            "{fix}"
        );
    }
}
