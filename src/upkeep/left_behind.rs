//! Whether events wait that a relay of this configuration would leave behind: it would let later ones of their aggregates
//! overtake them.

use std::collections::BTreeMap;

use tokio_postgres::Client;

use crate::config::{Config, OnError, OutboxConfig, SlotName};
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::postgres::own_table::role;
use crate::postgres::query::{QueryError, bounded};
use crate::postgres::quote::quote_literal;
use crate::postgres::sql::SqlSession;
use crate::upkeep::ANSWER_TIMEOUT;
use crate::upkeep::parked::{DOING, PARKED, get, key_by};

const COUNT: &str = include_str!("../../sql/parked/count.sql");
const BY_KEY: &str = include_str!("../../sql/parked/by_key.sql");

/// Events that wait, as many as are alike.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Left {
    outbox: String,
    /// What their keys are made of; none where that was not kept.
    key_by: Option<String>,
    count: i64,
}

/// Whether nothing waits that a relay of this configuration would leave behind.
///
/// # Errors
/// [`Kind::Config`] where something does; [`Kind::PostgresRefused`] with the GRANT where nobody may know; those of the
/// connection.
pub async fn none_left_behind(client: &Client, config: &Config) -> Result<()> {
    let (slot, parks) = (&config.source.slot, config.delivery.on_error == OnError::Park);
    match (PARKED.state(client).await?.as_str(), parks) {
        ("missing", _) => Ok(()),
        ("forbidden", _) => Err(unknown(client, slot).await),
        (_, false) => {
            let row = bounded(DOING, ANSWER_TIMEOUT, client.query_one(COUNT, &[&slot.as_str()])).await?;
            passes_none(get(&row, 0)?, slot)
        }
        ("usable", true) => {
            let rows = bounded(DOING, ANSWER_TIMEOUT, client.query(BY_KEY, &[&slot.as_str()])).await?;
            let left =
                rows.iter().map(|row| Ok(Left { outbox: get(row, 0)?, key_by: get(row, 1)?, count: get(row, 2)? }));
            let left = left.collect::<Result<Vec<_>, QueryError>>()?;
            all_configured(&left, slot, &config.outboxes)?;
            same_keys(&left, slot, &config.outboxes)
        }
        // Whoever opens it says what is to be done, and looks again.
        (_, true) => Ok(()),
    }
}

/// The same through a session of its own.
///
/// # Errors
/// As there.
pub async fn still_none_left_behind(config: &Config) -> Result<()> {
    let session =
        SqlSession::connect(&config.source.database, &format!("walrelay/{}/parked", config.source.slot)).await?;
    none_left_behind(session.client(), config).await
}

/// Whether there is a table of parked events that this role may read.
///
/// # Errors
/// Those of the connection.
pub async fn may_look(client: &Client) -> Result<bool> {
    let state = PARKED.state(client).await?;
    Ok(!matches!(state.as_str(), "missing" | "forbidden"))
}

async fn unknown(client: &Client, slot: &SlotName) -> Error {
    let role = role(client).await;
    let cause = format!(
        "there is a table walrelay.parked that role {role} may not read: nobody knows whether events of slot {slot} wait in it, \
         which later ones would overtake"
    );
    Error::new(Kind::PostgresRefused, cause).remedy(format!(
        "as a role that may: grant usage on schema walrelay to {role}; grant select on walrelay.parked to {role};"
    ))
}

fn passes_none(count: i64, slot: &SlotName) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let key = "delivery.on_error";
    let cause = format!(
        "{count} events of slot {slot} are parked, and {key} is not park: later events of their aggregates would overtake them"
    );
    Err(Error::new(Kind::Config, cause).remedy(
        Remedy::from("start with on_error = \"park\", as all relays of a slot are to be, until nothing waits: ")
            .and(NextCommand::new("parked list"))
            .and(" shows it, ")
            .and(NextCommand::new("parked retry"))
            .and(" sends it, and ")
            .and(NextCommand::new("parked drop"))
            .and(" gives it up"),
    ))
}

/// Nobody can route events of an outbox that is not there.
fn all_configured(left: &[Left], slot: &SlotName, outboxes: &[OutboxConfig]) -> Result<()> {
    let mut unknown: BTreeMap<&str, i64> = BTreeMap::new();
    let is_known = |name: &str| outboxes.iter().any(|outbox| outbox.source.to_string() == name);
    for left in left.iter().filter(|left| !is_known(&left.outbox)) {
        *unknown.entry(&left.outbox).or_default() += left.count;
    }
    let Some((first, _)) = unknown.first_key_value() else { return Ok(()) };
    let counts: Vec<_> = unknown.iter().map(|(outbox, count)| format!("{count} of outbox {outbox}")).collect();
    let counts = counts.join(", ");
    let cause =
        format!("events of slot {slot} are parked whose outbox is not configured, so nobody can send them: {counts}");
    let (of, was) = (quote_literal(slot.as_str())?, quote_literal(first)?);
    Err(Error::new(Kind::Config, cause).remedy(
        Remedy::from("configure it again until nothing of it waits; or give its events up: ")
            .and(NextCommand::new("parked drop").option("outbox", &was))
            .and(format!(
                "; or, where it has another name by now: update walrelay.parked set outbox = 'the new name' where slot = {of} \
                 and outbox = {was}"
            )),
    ))
}

/// Events that wait under one key, and come under another, are two aggregates.
fn same_keys(left: &[Left], slot: &SlotName, outboxes: &[OutboxConfig]) -> Result<()> {
    for outbox in outboxes {
        let (name, now) = (outbox.source.to_string(), key_by(outbox));
        let of_outbox = left.iter().filter(|left| left.outbox == name);
        let other = |left: &&Left| left.key_by.as_ref().is_some_and(|key_by| *key_by != now);
        let Some(Left { key_by: Some(was), count, .. }) = of_outbox.into_iter().find(other) else { continue };
        let (key, said) = ("route.key", |key: &str| format!("{key:?}"));
        let cause = format!(
            "{count} events of outbox {name} of slot {slot} are parked by the key {}, and {key} is {} now: later events of their \
             aggregates would overtake them",
            said(was),
            said(&now)
        );
        return Err(Error::new(Kind::Config, cause).remedy(
            Remedy::from(format!("start with {key} = {} until nothing of it waits, which ", said(was)))
                .and(NextCommand::new("parked list"))
                .and(" shows; or give the events up: ")
                .and(NextCommand::new("parked drop").option("outbox", quote_literal(&name)?)),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layers::{Environment, Flags, Settings};

    fn outboxes() -> Vec<OutboxConfig> {
        Settings::new(&Flags::new(), &Environment::default(), None).unwrap().outboxes().unwrap()
    }

    fn left(outbox: &str, key_by: Option<&str>, count: i64) -> Left {
        Left { outbox: outbox.to_owned(), key_by: key_by.map(str::to_owned), count }
    }

    #[test]
    fn events_of_an_outbox_that_is_not_configured_are_named() {
        let (slot, outboxes): (SlotName, _) = ("shop".parse().unwrap(), outboxes());
        let known = left("public.outbox", None, 5);
        all_configured(std::slice::from_ref(&known), &slot, &outboxes).unwrap();
        let all = [known, left("sales.Old", Some("{a}"), 2), left("sales.Old", None, 1), left("mail", None, 4)];
        let error = all_configured(&all, &slot, &outboxes).unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        assert!(error.cause().contains("4 of outbox mail, 3 of outbox sales.Old"), "{error}");
        let fix = error.what_to_do().unwrap();
        assert!(fix.contains("drop --outbox 'mail'") && fix.contains("slot = 'shop' and outbox = 'mail'"), "{fix}");
    }

    #[test]
    fn events_under_another_key_are_told_apart_and_those_of_before_are_not() {
        let (slot, outboxes): (SlotName, _) = ("shop".parse().unwrap(), outboxes());
        let same = [left("public.outbox", None, 5), left("public.outbox", Some("{aggregateid}"), 5)];
        same_keys(&same, &slot, &outboxes).unwrap();
        let error = same_keys(&[left("public.outbox", Some("{user_id}"), 7)], &slot, &outboxes).unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        let cause = error.cause();
        assert!(
            cause.starts_with("7 events of outbox public.outbox") && cause.contains("\"{aggregateid}\" now"),
            "{cause}"
        );
        assert!(error.what_to_do().unwrap().contains("route.key = \"{user_id}\""), "{error}");
    }

    #[test]
    fn a_relay_that_does_not_park_wants_nothing_parked() {
        let slot: SlotName = "shop".parse().unwrap();
        passes_none(0, &slot).unwrap();
        assert!(passes_none(3, &slot).unwrap_err().cause().starts_with("3 events of slot shop are parked"));
    }
}
