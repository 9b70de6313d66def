//! The store of the position, and the part of it that other tasks read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::Config;
use crate::relay::published_versions::PublishedVersions;
use crate::sink::SinkHandle;
use crate::source::control::Control;
use crate::state::{Store, Stored};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::position::ServerIdentity;
use walrelay_core::publisher::parked_index::RetryMemory;
use walrelay_core::publisher::pipeline::Delivered;
use walrelay_core::publisher::write_back::WriteBacks;

/// The knowledge of this process, which outlives its sessions.
pub(super) type Known = Arc<Knowledge>;

/// The stored position of a relay that has the slot or the lease; none while it has neither.
#[derive(Debug, Default)]
pub(super) struct Knowledge {
    pub(super) stored: watch::Sender<Option<Stored>>,
    /// Results of retries of parked events.
    pub(super) tried: Mutex<RetryMemory>,
    pub(super) left: Mutex<Left>,
}

/// What a session left that published and could not write it all to Postgres. The next one does,
/// and publishes none of it again.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Of a session at the table, or of a producer that failed.
    pub(super) write_backs: WriteBacks,
    /// What that producer had delivered of what the slot sent.
    pub(super) delivered: Option<Delivered>,
    /// How far the table was read and published, where that is not stored.
    pub(super) progress: Option<Stored>,
    pub(super) found: PublishedVersions,
    /// Whether another relay was at work.
    pub(super) turn: walrelay_core::turn::Turn<Stored>,
}

impl Left {
    /// What counts for a session on `server` that `loaded` this. Nothing is left where another
    /// relay was at work.
    fn resume(&mut self, loaded: Option<Stored>, server: &ServerIdentity) -> Option<Stored> {
        if !self
            .turn
            .resume(loaded.as_ref(), |held| held.server == *server)
        {
            self.forget();
        }
        self.progress.clone().or(loaded)
    }

    /// A session at the table failed, which had read so far. The next one there stores that before
    /// all else. A stream, to which a session of requested rows gives way, stores nothing first: it
    /// begins at what is stored.
    pub(super) fn table_failed(
        &mut self,
        read: &Stored,
        found: PublishedVersions,
        gives_way: bool,
    ) {
        if !gives_way {
            self.progress = Some(read.clone());
            self.found = found;
        }
    }

    fn are_stored(&mut self, stored: &Stored) {
        self.turn.stored(stored);
        self.progress = None;
    }

    pub(super) fn forget(&mut self) {
        *self = Left {
            turn: std::mem::take(&mut self.turn),
            ..Left::default()
        };
    }
}

/// The configured store, which keeps [`Known`] up to date.
pub(super) struct AnyStore {
    store: Store,
    pub(super) known: Known,
    /// How long the last store took.
    pub(super) took: Duration,
}

impl AnyStore {
    pub(super) async fn store(&mut self, stored: &Stored) -> Result<()> {
        let began = Instant::now();
        // It may happen although the session ends first.
        self.known.left.lock().turn.stores(stored);
        if let Err(error) = self.store.store(stored).await {
            if error.kind() == Kind::PostgresUnwritable {
                self.known.left.lock().turn.refused();
            }
            return Err(error);
        }
        self.known.left.lock().are_stored(stored);
        self.took = began.elapsed();
        // While rows are still to be read from the table, the snapshot does not tell which are
        // published.
        self.known
            .stored
            .send_replace(Some(stored.clone()).filter(|_| stored.catch_up.is_none()));
        Ok(())
    }
}

/// How soon the bus is asked again where it cannot be reached.
const RETRY: Duration = Duration::from_secs(1);

/// Repeats `attempt` for as long as the bus cannot be reached, and calls `tell` with the first such
/// error.
pub(super) async fn once_reachable<T, F: Future<Output = Result<T>>>(
    attempt: impl Fn() -> F,
    tell: impl FnOnce(&Error),
) -> Result<T> {
    let mut tell = Some(tell);
    loop {
        match attempt().await {
            Err(error) if error.kind() == Kind::BusUnreachable => {
                if let Some(tell) = tell.take() {
                    tell(&error);
                }
                tokio::time::sleep(RETRY).await;
            }
            done => return done,
        }
    }
}

/// Opens the store and reads it; while the bus cannot be reached, for as long as it takes. What
/// this process could not store counts as stored.
pub(super) async fn read_position(
    config: &Config,
    sink: SinkHandle,
    control: &Control,
    known: &Known,
    server: &ServerIdentity,
) -> Result<(AnyStore, Option<Stored>)> {
    let sink = &sink;
    let read = || async move {
        let mut store = Store::open(config, sink, control).await?;
        let loaded = store.load().await?;
        Ok((
            AnyStore {
                store,
                known: Arc::clone(known),
                took: Duration::ZERO,
            },
            loaded,
        ))
    };
    let tell = |error: &Error| {
        tracing::warn!(event = "position_read_failed", %error, fix = error.what_to_do(),
            "the stored position cannot be read yet; holding the slot until it can");
    };
    let (store, loaded) = once_reachable(read, tell).await?;
    let loaded = known.left.lock().resume(loaded, server);
    Ok((store, loaded))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::TableFile;
    use walrelay_core::position::{Lsn, Position};

    fn stored(timeline: u32, lsn: u64) -> Stored {
        Stored {
            server: ServerIdentity {
                system_identifier: "7000".to_owned(),
                timeline,
            },
            slot: "orders".to_owned(),
            position: Position::at(Lsn::new(lsn)),
            cluster_id: None,
            publication_oid: 10,
            publication_version: String::new(),
            table_oids: Vec::new(),
            membership_oids: Vec::new(),
            message_prefixes: Vec::new(),
            published: None,
            stream_only: Vec::new(),
            catch_up: None,
        }
    }

    /// What a session left that stored 1, perhaps 2, and read on to 3.
    fn left() -> Left {
        let mut left = Left::default();
        left.are_stored(&stored(1, 1));
        left.turn.stores(&stored(1, 2));
        Left {
            progress: Some(stored(1, 3)),
            delivered: Some(Delivered {
                position: Position::at(Lsn::new(3)),
                published: None,
                inside: Vec::new(),
            }),
            ..left
        }
    }

    #[test]
    fn a_session_of_requested_rows_that_fails_leaves_no_progress_to_the_stream() {
        let here = stored(1, 0).server;
        for (gives_way, expected) in [(false, 3), (true, 1)] {
            let mut left = Left::default();
            left.are_stored(&stored(1, 1));
            left.table_failed(&stored(1, 3), PublishedVersions::default(), gives_way);
            assert_eq!(
                left.resume(Some(stored(1, 1)), &here),
                Some(stored(1, expected)),
                "{gives_way}"
            );
        }
    }

    fn file(filenode: u32, changed_by: u64) -> TableFile {
        TableFile {
            oid: 5,
            filenode,
            changed_by,
        }
    }

    #[test]
    fn a_table_rewritten_between_sessions_is_noticed_unless_another_relay_or_server_worked() {
        let here = stored(1, 0).server;
        let there = stored(2, 0).server;
        for (lsn, server, expected) in [(1, &here, true), (9, &here, false), (1, &there, false)] {
            let mut left = Left::default();
            let mut found = PublishedVersions::default();
            left.are_stored(&stored(1, 1));
            assert!(
                !found.looked_at(vec![file(10, 20)]),
                "the first look tells nothing"
            );
            left.table_failed(&stored(1, 1), found, false);
            left.resume(Some(stored(1, lsn)), server);
            assert_eq!(
                std::mem::take(&mut left.found).looked_at(vec![file(11, 30)]),
                expected
            );
        }
    }

    #[test]
    fn progress_that_was_not_stored_counts_unless_another_relay_or_server_was_at_work() {
        let here = stored(1, 0).server;
        let there = stored(2, 0).server;
        for loaded in [Some(stored(1, 1)), Some(stored(1, 2)), None] {
            assert_eq!(left().resume(loaded, &here), Some(stored(1, 3)));
        }
        for (loaded, server) in [(stored(1, 9), &here), (stored(1, 1), &there)] {
            let mut left = left();
            assert_eq!(
                left.resume(Some(loaded.clone()), server),
                Some(loaded.clone())
            );
            assert!(left.delivered.is_none() && left.progress.is_none());
            // From here on it is this relay's.
            left.progress = Some(stored(1, 11));
            left.turn.is_past = false;
            let again = left.resume(Some(loaded.clone()), server);
            let expected = if loaded.server == *server { 11 } else { 1 };
            assert_eq!(again, Some(stored(1, expected)));
        }
        let mut left = left();
        left.are_stored(&stored(1, 4));
        assert_eq!(left.resume(Some(stored(1, 4)), &here), Some(stored(1, 4)));
    }
}
