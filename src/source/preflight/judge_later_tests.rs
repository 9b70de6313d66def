//! What is judged before there is everything, and after something is gone.

use super::tests::{Change, fit, judged, outbox, table_of};
use super::*;
use crate::config::EventSource;
use crate::source::catalog::Catalog;

#[test]
fn what_setup_would_make_is_no_fault_and_everything_else_is() {
    let bare = |change: Change| {
        let mut facts = fit();
        facts.slot = None;
        (facts.catalogs[0].publication, facts.catalogs[0].members) = (None, Vec::new());
        change(&mut facts);
        judged(&facts.as_set_up(&[&"outbox".parse().unwrap()])).map_err(|error| error.cause().to_owned())
    };
    assert!(bare(|_| {}).is_ok());
    assert!(bare(|facts| table_of(facts).kind = "p".to_owned()).is_ok());
    let lacks = |facts: &mut Facts| table_of(facts).columns.truncate(1);
    assert_eq!(bare(lacks).unwrap_err(), "table public.outbox has no column aggregatetype; it has id");
    let old = |facts: &mut Facts| facts.slot = fit().slot;
    assert_eq!(bare(old).unwrap_err(), "there is no publication walrelay_orders in database shop");
}

#[test]
fn a_column_that_is_gone_does_not_keep_the_backlog_back_and_whatever_else_is_wrong_does() {
    let backlog = |facts: &Facts| judge_backlog(facts, &"orders".parse().unwrap(), "walrelay_orders", &[outbox()]);
    assert_eq!(backlog(&fit()).unwrap().1, None);

    let mut facts = fit();
    table_of(&mut facts).columns.retain(|column| column.name != "payload");
    let (warnings, fault) = backlog(&facts).unwrap();
    assert_eq!(warnings, judged(&fit()).unwrap());
    assert_eq!(fault, judged(&facts).err());

    // A column that is there and hidden, and a row filter.
    table_of(&mut facts).columns[0].generated = "s".to_owned();
    assert_eq!(backlog(&facts).unwrap_err(), judged(&facts).unwrap_err());
    table_of(&mut facts).columns[0].generated.clear();
    facts.catalogs[0].members[0].row_filter = Some("(id > 1)".to_owned());
    assert!(backlog(&facts).unwrap_err().cause().contains("filters rows"));
}

#[test]
fn a_table_that_joins_another_outbox_of_the_slot_is_to_be_added_to_the_publication() {
    let mut facts = fit();
    let added =
        Catalog { members: Vec::new(), other_tables: vec!["public.outbox".to_owned()], ..facts.catalogs[0].clone() };
    facts.catalogs.push(added);
    let second = OutboxConfig { source: EventSource::Table("billing".parse().unwrap()), ..OutboxConfig::default() };
    let both = [outbox(), second];
    let error = judge(&facts, &"orders".parse().unwrap(), "walrelay_orders", &both).unwrap_err();
    assert!(error.cause().starts_with("table public.billing is not in publication walrelay_orders"), "{error}");
    assert!(error.what_to_do().unwrap().contains("add table public.billing"), "{error}");
    facts.catalogs[1].other_tables.push("public.stranger".to_owned());
    let error = judge(&facts, &"orders".parse().unwrap(), "walrelay_orders", &both).unwrap_err();
    assert!(error.cause().contains("publishes public.stranger, and not public.billing"), "{error}");
}
