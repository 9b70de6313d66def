//! The position in Postgres: in a table of its own, or nowhere but in the slot.

use crate::error::{Error, Kind, Result};
use crate::source::control::Control;
use crate::state::{Store, Stored};

/// Keeps the position in `walrelay.position` of the outbox's database, one row per key.
///
/// What is stored there is WAL, too: whoever stores a position because the log moved on has to do it now and then,
/// not each time, or the two keep each other busy.
#[derive(Debug)]
pub struct PostgresStore {
    control: Control,
    key: String,
}

impl PostgresStore {
    /// Opens the store, and creates the table where it is missing and we may.
    ///
    /// # Errors
    /// [`Kind::PostgresRefused`] with the SQL for somebody who may; [`Kind::PostgresUnreachable`].
    pub async fn open(control: Control, key: impl Into<String>) -> Result<PostgresStore> {
        control.prepare_positions().await?;
        Ok(PostgresStore { control, key: key.into() })
    }
}

impl Store for PostgresStore {
    async fn load(&mut self) -> Result<Option<Stored>> {
        let text = self.control.load_position(&self.key).await?;
        text.map(|text| read(&self.key, &text)).transpose()
    }

    async fn store(&mut self, stored: &Stored) -> Result<()> {
        let value = serde_json::to_string(stored)
            .map_err(|error| Error::new(Kind::Bug, format!("a position cannot be written as JSON: {error}")))?;
        self.control.store_position(&self.key, value).await
    }
}

pub(super) fn read(key: &str, text: &str) -> Result<Stored> {
    serde_json::from_str(text).map_err(|error| {
        Error::new(Kind::PositionMismatch, format!("the position stored under {key:?} cannot be read: {error}")).remedy(
            "a newer walrelay, or somebody by hand, wrote it. Look at walrelay.position; once its row is deleted, \
                 walrelay starts where the slot was confirmed, which repeats events and loses none",
        )
    })
}

/// Keeps nothing: the slot's own position is all there is.
///
/// After a crash of the server, and up to Postgres 16 after every restart, the slot is further back than what was
/// confirmed, and the events in between are delivered again. Nothing tells a slot that was recreated or advanced.
#[derive(Debug, Clone, Copy, Default)]
pub struct SlotStore;

impl Store for SlotStore {
    async fn load(&mut self) -> Result<Option<Stored>> {
        Ok(None)
    }

    async fn store(&mut self, _: &Stored) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::{Lsn, Partial, Position};
    use crate::state::ServerIdentity;

    #[test]
    fn what_was_written_is_read_back() {
        let partial = Some(Partial { commit_lsn: Lsn::new(120), index: 7 });
        let stored = Stored {
            server: ServerIdentity { system_identifier: "7000".to_owned(), timeline: 2 },
            slot: "orders".to_owned(),
            position: Position { end_lsn: Lsn::new(100), partial },
            publication_oid: 10,
            table_oids: vec![u32::MAX],
            membership_oids: vec![9],
            message_prefixes: vec!["shop".to_owned()],
            published: None,
            stream_only: Vec::new(),
            catch_up: None,
        };
        assert_eq!(read("orders", &serde_json::to_string(&stored).unwrap()), Ok(stored));
    }

    #[test]
    fn what_cannot_be_read_is_never_taken_for_nothing_stored() {
        for text in ["", "{}", "null", r#"{"position": 7}"#] {
            let error = read("orders", text).unwrap_err();
            assert_eq!(error.kind(), Kind::PositionMismatch, "{text}");
            assert!(error.cause().contains("\"orders\""), "{}", error.cause());
        }
    }
}
