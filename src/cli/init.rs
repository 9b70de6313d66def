//! `walrelay config init`: looks at a table, and writes the file it would suggest.

use clap::Args;
use serde::Serialize;

use crate::cli::config::{self, RelaySettings};
use crate::cli::output::{Grid, Outcome, Target, labelled};
use crate::cli::setup::{plan, xid_column};
use crate::cli::sql::column;
use crate::config::SinkKind;
use crate::config::file::Origin;
use crate::config::layers::{Settings, may_hold_password};
use crate::config::written::URLS;
use crate::postgres::sql::SqlSession;
use crate::postgres::table;
use crate::source::catalog;
use crate::source::preflight::{self, can_be_streamed, judge_version};
use crate::suggest::{Known, Suggestion, suggest};
use walrelay_core::catalog::{Column, Table};
use walrelay_core::config::TableName;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::printable::shell_word;

const TABLES: &str = include_str!("../../sql/tables.sql");
/// The file's name without `--output`.
const FILE: &str = "walrelay.toml";

#[derive(Debug, Args, Serialize)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub relay: RelaySettings,
    /// The destination of the records
    #[arg(long, value_name = "SINK", value_parser = config::one_that(may_begin))]
    pub sink: Option<SinkKind>,
    #[command(flatten)]
    #[serde(skip)]
    pub target: Target,
}

pub(super) const HELP: &str = "\
Examples:
  walrelay config init --table outbox > walrelay.toml
  walrelay config init --table sales.outbox --output walrelay.toml
  walrelay config init --table outbox --sink nats > walrelay.toml
  walrelay config init --table '\"My Schema\".\"Out Box\"' \\
    --database-url postgres://me@db/shop

The command reads the table's description, and no row. The file has the reason for each guess. \
Standard error has a line for each column, and warns of what setup refuses. Correct the file, and \
continue with walrelay setup, config check and run. For mails, begin with the example of \
docs/reference/smtp.md: no table says where their addresses are.

Exit codes:
  0   the file is written
  2   no table is named, or the output exists
  4   the output cannot be written
  10  Postgres cannot be reached (11: refuses)
  15  the table does not exist, or has no column for the id or the payload; the error names its \
      columns";

pub(crate) async fn init(args: &InitArgs) -> Outcome {
    let settings = config::read(args, &args.relay.common.file)?;
    let known = known(&settings)?;
    let wanted = settings.table();
    let database = settings.database()?;
    let session = SqlSession::connect(&database, "walrelay config init").await?;
    if settings.get("outbox.table").is_none() {
        let error = Error::new(Kind::Config, "no table is named");
        return Err(error.remedy(name_one(&session).await?).into());
    }
    // Older servers cannot answer.
    judge_version(&preflight::server(session.client()).await?)?;
    let found = match table::read(session.client(), wanted).await? {
        Some(found) => found,
        None => {
            let cause = format!(
                "there is no table {wanted} in database {}",
                database.database
            );
            let error = Error::new(Kind::Publication, cause);
            return Err(error.remedy(name_one(&session).await?).into());
        }
    };
    fit(wanted, &found)?;
    let known = Known {
        refused: setup_refusal(wanted, &found),
        no_xid_column: refusal("setup --add-xid-column", xid_column::wanted(wanted, &found)),
        ..known
    };
    let suggestion = suggest(wanted, &found.columns, &known)?;
    let file = args
        .target
        .output
        .as_ref()
        .map(|path| path.display().to_string());
    let adds_column =
        known.no_xid_column.is_none() && !found.columns.iter().any(Column::tells_transaction);
    let about = explanation(
        &suggestion,
        file.as_deref(),
        known.address.is_none().then(|| known.sink.bus().address),
        adds_column,
    );
    args.target.write(&suggestion.toml, &about, &suggestion)
}

fn setup_refusal(name: &TableName, table: &Table) -> Option<String> {
    let kind = table.kind.clone();
    let persistence = table.persistence.clone();
    let streamed = catalog::PublishedTable {
        kind,
        persistence,
        ..catalog::PublishedTable::default()
    };
    refusal(
        "setup",
        can_be_streamed(name, &streamed).and_then(|()| plan::is_owned(name, table)),
    )
}

/// The refusal of the table by `command`, if it refuses the table.
fn refusal<T>(command: &str, judged: Result<T>) -> Option<String> {
    let error = judged.err()?;
    Some(format!(
        "`walrelay {command}` will refuse the table: {}",
        plan::with_remedy(&error)
    ))
}

/// Whether a file for this kind of sink can be made of a table.
fn may_begin(sink: &SinkKind) -> bool {
    !sink.bus().example.is_empty()
}

fn known(settings: &Settings) -> Result<Known> {
    let sink = settings.model().sink.kind;
    let bus = sink.bus();
    if !may_begin(&sink) {
        let kind: &str = sink.into();
        let cause = format!(
            "config init writes no file for {}: no table says how its records begin",
            bus.name
        );
        let remedy = format!("begin with the example of docs/reference/{kind}.md");
        return Err(Error::new(Kind::Config, cause).remedy(remedy));
    }
    let text = |path| {
        settings
            .get(path)
            .map(|given| given.text.expose().to_owned())
    };
    let url = settings
        .get("database.url")
        .filter(|given| matches!(given.origin, Origin::Flag(_)));
    let url = url
        .map(|given| given.text.expose())
        .filter(|url| !may_hold_password(url));
    let slot = settings
        .get("slot.name")
        .map(|_| settings.slot())
        .transpose()?;
    Ok(Known {
        database_url: url.map(str::to_owned),
        slot: slot.map(|slot| slot.to_string()),
        publication: text("slot.publication"),
        address: text(bus.address).filter(|_| !URLS.contains(&bus.address)),
        endpoint: bus.endpoint.and_then(|endpoint| text(endpoint.key)),
        sink,
        ..Known::default()
    })
}

/// The remedy that names up to ten tables that may be outboxes, likely ones first.
async fn name_one(session: &SqlSession) -> Result<String> {
    let rows = session.rows("looking for tables", TABLES, &[]).await?;
    let names = rows
        .iter()
        .map(|row| Ok(shell_word(&column::<String>(row, "name")?)));
    let names = names.collect::<Result<Vec<_>>>()?.join(", ");
    Ok(match names.as_str() {
        "" => "name the outbox table with --table; this database has no table".to_owned(),
        names => format!("name the outbox table with --table, such as {names}"),
    })
}

fn fit(name: &TableName, table: &Table) -> Result<()> {
    let unfit =
        |cause: String, remedy: String| Err(Error::new(Kind::Publication, cause).remedy(remedy));
    if !table.is_table() {
        return unfit(
            format!("{name} is not a table"),
            "name the table that events are inserted into".to_owned(),
        );
    }
    if let Some(whole) = &table.partition_of {
        return unfit(
            format!("{name} is a partition of {whole}"),
            format!("name the partitioned table: --table '{whole}'"),
        );
    }
    Ok(())
}

fn explanation(
    suggestion: &Suggestion,
    file: Option<&str>,
    unset: Option<&str>,
    adds_column: bool,
) -> String {
    let mut columns = Grid::headed("column, type, used for, why");
    for of in &suggestion.columns {
        let used_for = if of.used_for.is_empty() {
            "not sent".to_owned()
        } else {
            of.used_for.join(", ")
        };
        columns.row([&of.column, &of.type_name, &used_for, &of.why]);
    }
    let name = file.unwrap_or(FILE);
    let (column, made) = match adds_column {
        true => (
            " --add-xid-column",
            "publication, slot, and a column that shows which rows are published",
        ),
        false => ("", "publication and slot; the table stays unchanged"),
    };
    let next = labelled([
        (
            format!("  walrelay setup --config {name}{column}"),
            made.to_owned(),
        ),
        (
            format!("  walrelay config check --config {name}"),
            "the record of the newest row".to_owned(),
        ),
        (
            format!("  walrelay run --config {name}"),
            "relay until Ctrl-C".to_owned(),
        ),
    ]);
    let set = unset.map_or_else(String::new, |key| format!(" set {key},"));
    let first = match file {
        Some(file) => format!("Written to {file}. Read the file,{set} correct the guesses, then:"),
        None => format!("Save the output as {FILE},{set} correct the guesses, then:"),
    };
    let warnings: String = suggestion
        .warnings
        .iter()
        .map(|warning| format!("\nwarning: {warning}"))
        .collect();
    format!("{}{warnings}\n{first}\n{}", columns.text(), next.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suggest::ColumnUse;
    use walrelay_core::catalog::Table;
    use walrelay_core::testing::column_of;

    #[test]
    fn what_setup_will_refuse_is_foretold_in_its_words() {
        let name: TableName = "outbox".parse().unwrap();
        let table = |persistence: &str, columns: &[(&str, &str)]| {
            let columns = columns
                .iter()
                .map(|(name, base)| column_of(name, base))
                .collect();
            Table {
                kind: "r".into(),
                persistence: persistence.to_owned(),
                owned: true,
                columns,
                ..Table::default()
            }
        };
        let foretold = |table: &Table| {
            [
                setup_refusal(&name, table),
                refusal("setup --add-xid-column", xid_column::wanted(&name, table)),
            ]
        };
        assert_eq!(
            foretold(&table("p", &[("xid", "int8"), ("walrelay_xid", "xid8")])),
            [None, None]
        );
        let of_others = Table {
            owned: false,
            role: "app".to_owned(),
            ..table("p", &[])
        };
        let start = "`walrelay setup` will refuse the table: role app does not own table \
                     public.outbox: run setup as the";
        assert!(setup_refusal(&name, &of_others).is_some_and(|told| told.starts_with(start)));
        let [unlogged, taken] = foretold(&table("u", &[("xid", "int8"), ("walrelay_xid", "text")]));
        assert_eq!(
            unlogged.as_deref(),
            Some(
                "`walrelay setup` will refuse the table: table public.outbox is unlogged: its rows \
                 are never in the WAL: \
                 alter table public.outbox set logged;"
            )
        );
        let start = "`walrelay setup --add-xid-column` will refuse the table: table public.outbox \
                     has columns xid and \
                     walrelay_xid, and neither has the transaction: add a column of type xid8";
        assert!(
            taken.as_ref().is_some_and(|taken| taken.starts_with(start)),
            "{taken:?}"
        );
    }

    #[test]
    fn the_explanation_lists_the_use_of_each_column_and_the_next_commands() {
        let column_use =
            |column: &str, type_name: &str, used_for: &[&'static str], why: &str| ColumnUse {
                column: column.to_owned(),
                type_name: type_name.to_owned(),
                used_for: used_for.to_vec(),
                why: why.to_owned(),
            };
        let columns = [
            column_use("id", "uuid", &["event id"], "the primary key"),
            column_use(
                "tenant_id",
                "character varying(50)",
                &["key", "header"],
                "by its name",
            ),
            column_use("status", "text", &[], "what a dispatcher notes down"),
        ];
        let mut suggestion = Suggestion {
            toml: String::new(),
            columns: columns.to_vec(),
            warnings: Vec::new(),
        };
        insta::assert_snapshot!(explanation(&suggestion, None, Some("kafka.brokers"), false), @r#"
        column     type                   used for     why
        id         uuid                   event id     the primary key
        tenant_id  character varying(50)  key, header  by its name
        status     text                   not sent     what a dispatcher notes down

        Save the output as walrelay.toml, set kafka.brokers, correct the guesses, then:
          walrelay setup --config walrelay.toml         publication and slot; the table stays unchanged
          walrelay config check --config walrelay.toml  the record of the newest row
          walrelay run --config walrelay.toml           relay until Ctrl-C
        "#);
        suggestion.warnings.push("it may not fit".to_owned());
        let explained = explanation(&suggestion, Some("w.toml"), None, true);
        assert!(
            explained.contains("notes down\n\nwarning: it may not fit\nWritten to"),
            "{explained}"
        );
        assert!(
            explained.contains("Written to w.toml. Read the file, correct"),
            "{explained}"
        );
        assert!(
            explained.contains(
                "walrelay setup --config w.toml --add-xid-column  publication, slot, and a column"
            ),
            "{explained}"
        );
    }

    #[test]
    fn a_database_url_with_a_password_is_not_written_to_the_configuration() {
        let written = |url: &str| {
            let flags = crate::config::layers::Flags::from([("database.url", url.to_owned())]);
            known(&Settings::new(&flags, &Default::default(), None).unwrap())
                .unwrap()
                .database_url
        };
        assert_eq!(
            written("postgres://me@db/shop").as_deref(),
            Some("postgres://me@db/shop")
        );
        for url in [
            "postgres://me:canary@db/shop",
            "postgres://db/shop?p%61ssword=canary",
            "host=db password=canary",
        ] {
            assert_eq!(written(url), None);
        }
    }
}
