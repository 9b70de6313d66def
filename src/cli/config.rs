//! The commands of `config`: what was typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::cli::{Common, RunSettings};

/// The commands of `config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Make a walrelay.toml for a table that exists, and say what was guessed from what
    #[command(after_help = INIT_HELP)]
    Init(InitArgs),
    /// Check a configuration against the database, and show what would become of a row
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Make a walrelay.toml of a Debezium connector's configuration, and list what could not be carried over
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArgs),
}

/// Where a configuration that is made goes.
#[derive(Debug, Args)]
pub struct Target {
    /// Write the walrelay.toml here instead of to standard output
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also where the output is a file that exists
    #[arg(long, requires = "output")]
    pub force: bool,
}

/// `config init`.
#[derive(Debug, Args, Serialize)]
pub struct InitArgs {
    /// Slot, database, file.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
    /// The table events are written into, as SQL writes it: outbox, sales.outbox, '"My Schema"."Out Box"'
    /// [env: WALRELAY_TABLE]
    #[arg(long, value_name = "TABLE")]
    pub table: Option<String>,
    /// Kafka's bootstrap servers, to be written into the file [env: WALRELAY_BROKERS]
    #[arg(long, value_name = "HOST:PORT")]
    pub brokers: Option<String>,
    /// Where the file goes.
    #[command(flatten)]
    #[serde(skip)]
    pub target: Target,
    /// Print one JSON object: the file, and what became of each column
    #[arg(long)]
    pub json: bool,
}

/// `config check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The settings `run` takes, laid over the file as they would be there.
    #[command(flatten)]
    pub settings: RunSettings,
    /// Connect to nothing; print every setting, its value and where it is from, with secrets as ***
    #[arg(long)]
    pub offline: bool,
    /// Show what would become of the row with this id, instead of the newest
    #[arg(long, value_name = "VALUE", conflicts_with = "offline")]
    pub id: Option<String>,
    /// Leave the body out, which is the row's payload
    #[arg(long, conflicts_with = "offline")]
    pub no_body: bool,
    /// Print one JSON object instead of a table
    #[arg(long, conflicts_with = "offline")]
    pub json: bool,
}

/// `config import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The connector's configuration: Kafka Connect's JSON or properties, or Debezium Server's application.properties;
    /// - is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Where the file goes.
    #[command(flatten)]
    pub target: Target,
    /// Print one JSON object: the file, and the list of what could not be carried over
    #[arg(long)]
    pub json: bool,
}

pub(super) const HELP: &str = "\
Examples:
  walrelay config init --table sales.outbox --output walrelay.toml
  walrelay config check --config walrelay.toml
  walrelay config import connector.json --output walrelay.toml

Exit codes:
  0   done, or `run` would take it
  1   import: an option was left out that consumers may notice
  2   a setting, an argument or a file is not valid
  10  Postgres cannot be reached (11: refuses)
  12  check: the server is not fit for logical replication
  14  check: the slot is lost, or not ours
  15  init, check: publication or table are not as events need them
  20  check: the row cannot be routed
Each command's own --help has more.";

const INIT_HELP: &str = "\
Examples:
  walrelay config init --table outbox > walrelay.toml
  walrelay config init --table sales.outbox --output walrelay.toml
  walrelay config init --table '\"My Schema\".\"Out Box\"' \\
    --database-url postgres://me@db/shop

The table is looked at, and no row is read. In the file each guess says what it was made from; on standard error there is one line per column. Read it, change what is wrong, then: walrelay setup, config check, run.

Exit codes:
  0   the file was made
  2   the table is not named, or the output exists
  10  Postgres cannot be reached (11: refuses)
  15  there is no such table, or no column of it can be the id or the payload; its columns are named";

const CHECK_HELP: &str = "\
Examples:
  walrelay config check --config walrelay.toml
  walrelay config check --config walrelay.toml --no-body \\
    --id 6a1f1d7e-3f0c-4f55-9d0a-0a5a7f0b6c11
  walrelay config check --config walrelay.toml --json | \\
    jq '.outboxes[].record.topic'
  walrelay config check --config walrelay.toml --offline

Where a database is configured, table, publication and slot are looked at as `run` would, the SQL of outbox.pending, mark and order_by is prepared, and a row goes the way it would go; the newest, unless --id names another. The role needs SELECT on the table for that, which `run` does not. Nothing is changed, and Kafka is not asked. A publication or slot that is not there yet is no error. With --offline, and where no database is configured, nothing is connected to, and every setting is printed with where it is from.

Exit codes:
  0   `run` would take it; also where the table is empty
  2   it would not, or no row has that id
  10  Postgres cannot be reached (11: refuses)
  12  the server is not fit for logical replication
  14  the slot is lost, or not ours
  15  publication or table are not as events need them
  20  the row cannot be routed: `run` would stop at it";

const IMPORT_HELP: &str = "\
Examples:
  walrelay config import connector.json > walrelay.toml
  walrelay config import application.properties --output walrelay.toml
  curl -s connect:8083/connectors/outbox/config | \\
    walrelay config import - --json

Nothing is connected to, and no password is read into the file. On standard error there is one line per option that could not be carried over: whether consumers see it, why, and what to do. docs/moving-from-debezium.md has the whole way.

Exit codes:
  0   all that consumers see was carried over
  1   the file was made, and an option was left out that changes, or may change, what consumers see
  2   the file cannot be read, or is no connector of an outbox in Postgres";
