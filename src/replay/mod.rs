//! Rows of the outbox into Kafka once more, because somebody asked for them.
//!
//! | file | its room |
//! |---|---|
//! | [`wanted`] | what was asked for, as a condition that Postgres has looked at |
//! | [`survey`] | what would be published: every row is read and routed, none sent |
//! | [`publish`] | the same rows, sent and acked |
//! | `waiting` | which of them are of events that wait |
//!
//! Survey and publishing read in one transaction, so that what was confirmed is what is sent. Nothing in the database
//! changes, no position is stored and no lease is taken: a relay beside it goes on. So a replayed event comes after newer
//! ones of its aggregate; the header [`REPLAY_HEADER`](crate::route::REPLAY_HEADER) tells it from those.

pub mod publish;
pub mod survey;
mod waiting;
pub mod wanted;

pub use publish::{Ended, Published};
pub use survey::{Found, Survey};
pub use wanted::Wanted;

use tokio_postgres::Client;

use crate::config::{Config, OutboxConfig, SourceConfig};
use crate::error::{Error, Kind, Result};
use crate::poll::{Reader, TableFacts};
use crate::position::Lsn;
use crate::postgres::fault::{self, While};
use crate::postgres::quote::quoted;
use crate::postgres::replication::WalSession;
use crate::source::control::timeline;
use crate::source::preflight::inspect;

/// A table that rows are wanted of.
#[derive(Debug)]
struct Table<'c> {
    /// Which of the configured outboxes it is.
    number: usize,
    outbox: &'c OutboxConfig,
    facts: TableFacts,
    /// Which rows, as SQL.
    condition: String,
}

/// One replay.
#[derive(Debug)]
pub struct Replay<'c> {
    config: &'c Config,
    reader: Reader,
    tables: Vec<Table<'c>>,
    /// System identifier and timeline, for the header with the place of an event.
    origin: (String, u32),
    /// Where the log was when the rows were read.
    lsn: Lsn,
    /// How many rows the survey found.
    total: u64,
    notes: Vec<String>,
}

impl<'c> Replay<'c> {
    /// Looks at the tables of `config`, has Postgres look at what is `wanted`, and begins the transaction that all rows are
    /// read in. From here on the session of `reader` changes nothing: the server sees to that.
    ///
    /// # Errors
    /// [`Kind::Config`] for a condition that does not fit a table, with the flag it is from, and where no outbox is a
    /// table; [`Kind::PostgresRefused`] where the role may not read a table; those of [`TableFacts::read`], and what the
    /// session gives.
    pub async fn open(config: &'c Config, reader: Reader, wanted: &Wanted) -> Result<Replay<'c>> {
        let client = reader.client();
        let unchanged = client.batch_execute("set default_transaction_read_only = on").await;
        unchanged.map_err(|error| fault::sql(While::Querying("preparing to read"), &error))?;
        let origin = origin(client, config).await?;
        let (mut tables, mut notes) = (Vec::new(), Vec::new());
        for (number, outbox) in config.outboxes.iter().enumerate() {
            if outbox.source.table().is_none() {
                notes.push(format!("{} leave no rows behind, and none are replayed", outbox.source));
                continue;
            }
            let facts = TableFacts::read(client, outbox).await?;
            if !facts.may_select {
                return Err(unreadable(&facts, &config.source));
            }
            let condition = wanted.condition(client, &facts, outbox, &mut notes).await?;
            tables.push(Table { number, outbox, facts, condition });
        }
        if tables.is_empty() {
            let cause = "all outboxes are messages, which leave no row behind to be replayed";
            return Err(Error::new(Kind::Config, cause).remedy("replay an outbox that is a table"));
        }
        let lsn = reader.begin(None, &tables.iter().map(|table| &table.facts).collect::<Vec<_>>()).await?.wal_end;
        notes.extend(waiting::notes(&reader, &config.source.slot, &tables).await?);
        Ok(Replay { config, reader, tables, origin, lsn, total: 0, notes })
    }

    /// What has to be known, for people.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

fn unreadable(facts: &TableFacts, source: &SourceConfig) -> Error {
    let cause = format!("rows have to be read from table {}, and the role may not", facts.name);
    let remedy = format!("grant select on {} to {}", facts.name, quoted(&source.database.user));
    Error::new(Kind::PostgresRefused, cause).remedy(remedy)
}

/// Which server it is; without the right to ask, nobody's.
async fn origin(client: &Client, config: &Config) -> Result<(String, u32)> {
    let source = &config.source;
    let facts = inspect(client, &source.slot, &source.publication, &config.outboxes).await?;
    if facts.server.in_recovery {
        let cause = "the server is a standby, which cannot say what its rows are from";
        return Err(Error::new(Kind::PostgresUnreachable, cause).remedy("name the primary"));
    }
    match facts.system_identifier {
        Some(system_identifier) => Ok((system_identifier, timeline(client).await?)),
        None if facts.server.may_replicate => {
            let server = WalSession::connect(&source.database, source).await?.identify_system().await?;
            Ok((server.system_identifier, server.timeline))
        }
        None => Ok((String::new(), timeline(client).await?)),
    }
}
