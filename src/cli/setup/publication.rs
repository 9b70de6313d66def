//! The publication among what has to be done. Pure.

use crate::cli::setup::catalog::{Found, Publication};
use crate::cli::setup::plan::{Object, Plan, Step, Wanted, grant, refuse_if, slot_fits};
use crate::cli::sql::{self, Value, fill};
use crate::config::TableName;
use crate::error::{Error, Kind, NextCommand, Remedy, Result};

/// Makes it, mends it where a table of it is made anew, or refuses it with the SQL that mends it.
pub(super) fn publication(wanted: &Wanted<'_>, found: &Found, plan: &mut Plan) -> Result<()> {
    let tables = wanted.names();
    let values = [("publication", Value::Name(wanted.publication)), ("tables", Value::Tables(&tables))];
    let name = wanted.publication;
    match (&found.publication, &found.slot) {
        (Some(publication), _) => {
            let partitioned = found.tables().any(|table| table.kind == "p");
            let places = tables.iter().zip(&found.outboxes);
            let made: Vec<&TableName> =
                places.filter(|(_, place)| place.table.is_none()).map(|(name, _)| *name).collect();
            publication_fits(wanted, &with(publication, &made), partitioned)?;
            if !made.is_empty() {
                return add(name, publication, &made, found, plan);
            }
            let what = match tables.is_empty() {
                true => String::new(),
                false => format!(" and publishes inserts into {}", listed(&tables)),
            };
            plan.present.push(format!("publication {name} is there{what}"));
            if publication.other_than_inserts {
                let sql = fill("alter publication {publication} set (publish = 'insert');", &values)?;
                plan.remarks.push(format!(
                    "publication {name} publishes more than inserts, which costs traffic and is dropped; inserts are enough: {sql}"
                ));
            }
        }
        (None, Some(slot)) => {
            if !slot.is_ours(&found.server.database) {
                slot_fits(wanted.slot, slot, &found.server)?;
            }
            // A slot decodes with the catalog of the time of each change: there is no publication in its past.
            return Err(Error::new(
                Kind::Publication,
                format!("slot {} is there and publication {name} is not; a slot cannot decode what was written before its publication", wanted.slot),
            )
            .remedy(
                Remedy::from("name the publication it was made for with --publication. If that was dropped: ")
                    .and(NextCommand::new("teardown").option("slot", wanted.slot).flag("force"))
                    .and(", then ")
                    .and(NextCommand::new("setup").option("slot", wanted.slot))
                    .and("; `walrelay run` reads from the table what was not published"),
            ));
        }
        (None, None) => {
            refuse_if(plan, !found.room.may_create, || {
                Error::new(
                    Kind::PostgresRefused,
                    format!(
                        "role {} may not create publications in database {}",
                        found.server.role, found.server.database
                    ),
                )
                .remedy(grant("grant create on database {database} to {role};", &found.server))
            });
            for (table, place) in tables.iter().zip(&found.outboxes) {
                refuse_if(plan, place.table.as_ref().is_some_and(|table| !table.owned), || {
                    Error::new(Kind::PostgresRefused, format!("role {} does not own table {table}", found.server.role))
                        .remedy("run setup as the table's owner, or give its owner the output of setup --dry-run")
                });
            }
            let template = if tables.is_empty() { sql::CREATE_PUBLICATION_OF_NOTHING } else { sql::CREATE_PUBLICATION };
            plan.steps.push(Step {
                object: Object::Publication,
                doing: format!("creating publication {name}"),
                done: format!("publication {name} created"),
                sql: fill(template, &values)?,
            });
        }
    }
    Ok(())
}

/// The publication once it has these tables, too.
fn with(publication: &Publication, more: &[&TableName]) -> Publication {
    let mut publication = publication.clone();
    publication.tables.extend(more.iter().map(|table| (table.schema().to_owned(), table.table().to_owned())));
    publication
}

/// Tables that were dropped have left their publication, and those made in their place are not in it.
fn add(name: &str, publication: &Publication, made: &[&TableName], found: &Found, plan: &mut Plan) -> Result<()> {
    refuse_if(plan, !publication.owned, || {
        let cause = format!("role {} does not own publication {name}", found.server.role);
        Error::new(Kind::PostgresRefused, cause)
            .remedy("run setup as its owner, or give its owner the output of setup --dry-run")
    });
    let values = [("publication", Value::Name(name)), ("tables", Value::Tables(made))];
    plan.steps.push(Step {
        object: Object::Publication,
        doing: format!("adding {} to publication {name}", listed(made)),
        done: format!("publication {name} publishes inserts into {}", listed(made)),
        sql: fill("alter publication {publication} add table {tables};", &values)?,
    });
    if found.slot.is_some() {
        plan.remarks.push(format!(
            "the slot is older than table {}: a relay that knows of an earlier one stops at its start, and says what can be \
             chosen",
            listed(made)
        ));
    }
    Ok(())
}

fn publication_fits(wanted: &Wanted<'_>, publication: &Publication, partitioned: bool) -> Result<()> {
    let tables = wanted.names();
    let values = [("publication", Value::Name(wanted.publication)), ("tables", Value::Tables(&tables))];
    let is_ours = |(schema, name): &(String, String)| {
        tables.iter().any(|table| schema == table.schema() && name == table.table())
    };
    let exactly_ours = publication.tables.len() == tables.len() && publication.tables.iter().all(is_ours);
    let set_table = match tables.is_empty() {
        true => "drop publication {publication};",
        false => "alter publication {publication} set table {tables};",
    };
    let faults = [
        (publication.all_tables, "publishes all tables", "drop publication {publication};"),
        (publication.publishes_schemas, "publishes whole schemas", set_table),
        (
            !publication.all_tables && !publication.publishes_schemas && !exactly_ours,
            match tables.as_slice() {
                [] => "publishes tables, and only messages are relayed",
                [_] => "does not publish exactly the outbox table",
                _ => "does not publish exactly the outbox tables",
            },
            set_table,
        ),
        (publication.row_filter, "has a row filter, which drops events silently", set_table),
        (publication.column_list, "has a column list, which hides columns silently", set_table),
        (!publication.inserts, "does not publish inserts", "alter publication {publication} set (publish = 'insert');"),
        (
            partitioned && !publication.via_root,
            "publishes partitions under their own names",
            "alter publication {publication} set (publish_via_partition_root = true);",
        ),
    ];
    let present = || faults.iter().filter(|(present, ..)| *present);
    let what: Vec<_> = present().map(|(_, what, _)| *what).collect();
    if what.is_empty() {
        return Ok(());
    }
    let mut statements: Vec<_> = present().map(|(.., sql)| fill(sql, &values)).collect::<Result<_>>()?;
    if publication.all_tables {
        statements.truncate(1);
        statements.push("and run setup again, or name another publication with --publication".to_owned());
    }
    statements.dedup();
    let (s, names) = (if tables.len() == 1 { "" } else { "s" }, listed(&tables));
    let cause = match tables.is_empty() {
        true => format!("publication {} does not fit: it {}", wanted.publication, what.join(", and ")),
        false => {
            format!("publication {} does not fit table{s} {names}: it {}", wanted.publication, what.join(", and "))
        }
    };
    Err(Error::new(Kind::Publication, cause).remedy(statements.join(" ")))
}

fn listed(tables: &[&TableName]) -> String {
    let names: Vec<_> = tables.iter().map(|table| table.to_string()).collect();
    names.join(", ")
}
