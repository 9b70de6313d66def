//! Whether what a relay stored about published rows may be believed, here and now.

use serde::Deserialize;
use tokio_postgres::Client;

use crate::error::{Error, Kind, Result};
use crate::ledger::trail::Published;
use crate::position::Lsn;
use crate::postgres::query::{one_json, one_text};
use crate::state::Stored;

const SERVER: &str = include_str!("../../sql/upkeep/server.sql");
const SYSTEM: &str = include_str!("../../sql/source/system.sql");

/// What the server says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Here {
    may_read_control: bool,
    /// None where the role may not ask.
    #[serde(skip)]
    system_identifier: Option<String>,
    timeline: u32,
    wal_end: Lsn,
}

/// What is published of the table with this OID, of what a relay stored.
///
/// # Errors
/// [`Kind::PositionMismatch`] where it is about another server, timeline or table, does not say, or rows of the table are
/// still being read; those of the connection.
pub async fn published(client: &Client, stored: Stored, table_oid: u32) -> Result<Published> {
    judge(&here(client).await?, stored, table_oid)
}

async fn here(client: &Client) -> Result<Here> {
    const DOING: &str = "asking which server this is";
    let here: Here = one_json(client, DOING, SERVER, &[]).await?;
    let system_identifier = match here.may_read_control {
        true => one_text(client, DOING, SYSTEM, &[]).await?,
        false => None,
    };
    Ok(Here { system_identifier, ..here })
}

fn judge(here: &Here, stored: Stored, table_oid: u32) -> Result<Published> {
    const RELAY: &str = "let `walrelay run` relay for a moment: what it stores then is about this server";
    let mismatch = |cause: String, remedy: &str| {
        let cause = format!("which rows are published is not known: {cause}");
        Err(Error::new(Kind::PositionMismatch, cause).remedy(remedy))
    };
    let server = &stored.server;
    if here.system_identifier.as_ref().is_some_and(|here| *here != server.system_identifier) {
        return mismatch(format!("what is stored is about another server ({})", server.system_identifier), RELAY);
    }
    if here.timeline != server.timeline {
        let cause = format!("what is stored is about timeline {}, the server is on {}", server.timeline, here.timeline);
        return mismatch(cause, RELAY);
    }
    if here.wal_end < stored.position.end_lsn {
        let cause = format!("the server is at {}, behind what is stored ({})", here.wal_end, stored.position.end_lsn);
        return mismatch(cause, RELAY);
    }
    if !stored.table_oids.contains(&table_oid) {
        let cause = format!("what is stored is not about the table with OID {table_oid}");
        return mismatch(cause, "let `walrelay run` relay this table first; a table made anew is another one");
    }
    if stored.catch_up.is_some() {
        let cause = "rows are still being read from the table".to_owned();
        return mismatch(cause, "let `walrelay run` come to the end of that, see `walrelay status`");
    }
    match stored.published {
        Some(published) => Ok(published),
        None => mismatch("what is stored does not say".to_owned(), RELAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::trail::Pair;
    use crate::position::Position;
    use crate::state::{CatchUp, Rows, ServerIdentity};

    fn stored() -> Stored {
        let pair = Pair { snapshot: "10:20:".parse().unwrap(), lsn: Lsn::new(90) };
        Stored {
            server: ServerIdentity { system_identifier: "7000".to_owned(), timeline: 2 },
            slot: "orders".to_owned(),
            position: Position::at(Lsn::new(100)),
            publication_oid: 10,
            table_oids: vec![5, 6],
            membership_oids: Vec::new(),
            message_prefixes: Vec::new(),
            published: Some(Published { pair, also: Vec::new(), floor: None, flushed: None, earlier: Vec::new() }),
            stream_only: Vec::new(),
            catch_up: None,
        }
    }

    #[test]
    fn what_is_stored_counts_for_its_own_server_and_tables_only() {
        let here = |system: Option<&str>, timeline, wal_end| Here {
            may_read_control: system.is_some(),
            system_identifier: system.map(str::to_owned),
            timeline,
            wal_end: Lsn::new(wal_end),
        };
        let right = here(Some("7000"), 2, 100);
        assert!(judge(&right, stored(), 6).is_ok());
        assert!(judge(&here(None, 2, 100), stored(), 5).is_ok());
        let reading = CatchUp::new(Rows::All, None);
        for (here, stored, table_oid) in [
            (&here(Some("7001"), 2, 100), stored(), 5),
            (&here(Some("7000"), 3, 100), stored(), 5),
            (&here(Some("7000"), 2, 99), stored(), 5),
            (&right, stored(), 7),
            (&right, Stored { published: None, ..stored() }, 5),
            (&right, Stored { catch_up: Some(reading), ..stored() }, 5),
        ] {
            let error = judge(here, stored, table_oid).unwrap_err();
            assert_eq!(error.kind(), Kind::PositionMismatch);
            assert!(error.what_to_do().is_some());
        }
    }
}
