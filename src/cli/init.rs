//! `walrelay config init`: looks at a table, and writes the file it would suggest.

use crate::cli::InitArgs;
use crate::cli::flags;
use crate::cli::load::Loaded;
use crate::cli::output::{Outcome, note, print, print_json, shell_word, warn, write_file};
use crate::cli::sql::{Session, column};
use crate::cli::text::aligned;
use crate::config::TableName;
use crate::config::file::Origin;
use crate::config::layers::{Settings, may_hold_password};
use crate::error::{Error, Kind, Result};
use crate::postgres::catalog::{Column, Table};
use crate::source::preflight::{self, judge_version};
use crate::suggest::{Fate, Known, suggest};

const TABLES: &str = include_str!("../../sql/tables.sql");
/// Where the file is meant to be, where nobody says so.
const FILE: &str = "walrelay.toml";

/// Writes the `walrelay.toml`, and tells what it was guessed from.
///
/// # Errors
/// [`Kind::Config`] where the table is not named or the output exists, [`Kind::Publication`] where the table is not there
/// or not fit, and what connecting gives.
pub async fn init(args: &InitArgs) -> Outcome {
    let loaded = Loaded::new(&flags(args), args.common.config.as_deref())?;
    warn(loaded.settings.warnings());
    let known = known(&loaded.settings)?;
    let wanted = loaded.settings.table()?;
    let database = loaded.settings.database()?;
    let session = Session::connect(&database, "config init").await?;
    if loaded.settings.get("outbox.table").is_none() {
        let error = Error::new(Kind::Config, "the table is not named");
        return Err(error.remedy(name_one(&candidates(&session).await?)).into());
    }
    // Older servers cannot answer.
    judge_version(&preflight::server(session.client()).await?)?;
    let found = match Table::read(session.client(), &wanted).await? {
        Some(found) => found,
        None => {
            let cause = format!("there is no table {wanted} in database {}", database.database);
            let error = Error::new(Kind::Publication, cause);
            return Err(error.remedy(name_one(&candidates(&session).await?)).into());
        }
    };
    fit(&wanted, &found)?;
    let suggestion = suggest(&wanted, &found.columns, &known)?;
    if let Some(output) = &args.target.output {
        write_file(output, &suggestion.toml, args.target.force)?;
    }
    if args.json {
        return print_json(&suggestion);
    }
    if args.target.output.is_none() {
        print(&suggestion.toml)?;
    }
    let file = args.target.output.as_ref().map(|path| path.display().to_string());
    let has_transaction = found.columns.iter().any(Column::tells_transaction);
    note(told(&suggestion.columns, file.as_deref(), known.brokers.is_some(), has_transaction));
    Ok(())
}

/// Up to ten tables that may be outboxes, likely ones first.
async fn candidates(session: &Session) -> Result<Vec<String>> {
    let rows = session.rows("looking for tables", TABLES, &[]).await?;
    rows.iter().map(|row| column(row, "name")).collect()
}

/// What of the settings belongs into the file.
fn known(settings: &Settings) -> Result<Known> {
    let text = |path| settings.get(path).map(|given| given.text.expose().to_owned());
    let url = settings.get("database.url").filter(|given| matches!(given.origin, Origin::Flag(_)));
    let url = url.map(|given| given.text.expose()).filter(|url| !may_hold_password(url));
    let slot = settings.get("slot.name").map(|_| settings.slot()).transpose()?;
    Ok(Known {
        database_url: url.map(str::to_owned),
        slot: slot.map(|slot| slot.to_string()),
        publication: text("slot.publication"),
        brokers: text("kafka.brokers"),
    })
}

fn name_one(candidates: &[String]) -> String {
    if candidates.is_empty() {
        return "name the table events are written into with --table; this database has none".to_owned();
    }
    let names: Vec<_> = candidates.iter().map(|name| shell_word(name)).collect();
    format!("name the table events are written into with --table; there are {}", names.join(", "))
}

fn fit(name: &TableName, table: &Table) -> Result<()> {
    let unfit = |cause: String, remedy: String| Err(Error::new(Kind::Publication, cause).remedy(remedy));
    if !table.is_table() {
        return unfit(format!("{name} is not a table"), "name the table that events are inserted into".to_owned());
    }
    if let Some(whole) = &table.partition_of {
        return unfit(format!("{name} is a partition of {whole}"), format!("name the whole: --table '{whole}'"));
    }
    Ok(())
}

/// A line per column, and what to do next.
fn told(columns: &[Fate], file: Option<&str>, brokers_known: bool, has_transaction: bool) -> String {
    let mut rows = vec![["column", "type", "used for", "why"].map(str::to_owned)];
    rows.extend(columns.iter().map(|fate| {
        let used_for = if fate.used_for.is_empty() { "not used".to_owned() } else { fate.used_for.join(", ") };
        [fate.column.clone(), fate.type_name.clone(), used_for, fate.why.clone()]
    }));
    let name = file.unwrap_or(FILE);
    let (column, made) = match has_transaction {
        true => ("", "publication and slot; the table is not touched"),
        false => (" --add-xid-column", "publication and slot; a column, so that what is published is known"),
    };
    let next = [
        [format!("  walrelay setup --config {name}{column}"), made.to_owned()],
        [format!("  walrelay config check --config {name}"), "where the newest row would go".to_owned()],
        [format!("  walrelay run --config {name}"), "relay until Ctrl-C".to_owned()],
    ];
    let set = if brokers_known { "" } else { " set kafka.brokers," };
    let first = match file {
        Some(file) => format!("Written to {file}. Read it,{set} change what is wrong, then:"),
        None => format!("Save it as {FILE}, read it,{set} change what is wrong, then:"),
    };
    format!("{}\n\n{first}\n{}", aligned(&rows), aligned(&next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_each_column_lines_up_and_says_what_is_next() {
        let fate = |column: &str, type_name: &str, used_for: &[&'static str], why: &str| Fate {
            column: column.to_owned(),
            type_name: type_name.to_owned(),
            used_for: used_for.to_vec(),
            why: why.to_owned(),
        };
        let columns = [
            fate("id", "uuid", &["event id"], "the primary key"),
            fate("tenant_id", "character varying(50)", &["key", "header"], "by its name"),
            fate("status", "text", &[], "what a dispatcher notes down"),
        ];
        insta::assert_snapshot!(told(&columns, None, false, true), @r#"
        column     type                   used for     why
        id         uuid                   event id     the primary key
        tenant_id  character varying(50)  key, header  by its name
        status     text                   not used     what a dispatcher notes down

        Save it as walrelay.toml, read it, set kafka.brokers, change what is wrong, then:
          walrelay setup --config walrelay.toml         publication and slot; the table is not touched
          walrelay config check --config walrelay.toml  where the newest row would go
          walrelay run --config walrelay.toml           relay until Ctrl-C
        "#);
        let told = told(&columns, Some("w.toml"), true, false);
        assert!(told.contains("Written to w.toml. Read it, change"), "{told}");
        assert!(
            told.contains("walrelay setup --config w.toml --add-xid-column  publication and slot; a column,"),
            "{told}"
        );
    }

    #[test]
    fn a_url_with_a_password_is_not_written_down() {
        let written = |url: &str| {
            let flags = crate::config::layers::Flags::from([("database.url", url.to_owned())]);
            known(&Settings::new(&flags, &Default::default(), None).unwrap()).unwrap().database_url
        };
        assert_eq!(written("postgres://me@db/shop").as_deref(), Some("postgres://me@db/shop"));
        for url in ["postgres://me:canary@db/shop", "postgres://db/shop?p%61ssword=canary", "host=db password=canary"] {
            assert_eq!(written(url), None);
        }
    }
}
