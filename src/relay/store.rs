//! The store of the position, and the part of it that other tasks read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::Config;
use crate::relay::published_versions::PublishedVersions;
use crate::sink::SinkHandle;
use crate::source::control::Control;
use crate::state::Store;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::event::RowId;
use walrelay_core::position::ServerIdentity;
use walrelay_core::publisher::parked_index::RetryMemory;
use walrelay_core::publisher::pipeline::{Delivered, OpenTransaction};
use walrelay_core::publisher::write_back::WriteBacks;
use walrelay_core::stored::Stored;
use walrelay_core::turn::Turn;

/// The knowledge of this process, which outlives its sessions.
pub(super) type Known = Arc<Knowledge>;

#[derive(Debug, Default)]
pub(super) struct Knowledge {
    /// The id of this process, which no other one has.
    pub(super) relay: String,
    /// The last record that the store took of this process.
    pub(super) kept: Mutex<Option<Stored>>,
    /// The stored position of a relay that has the slot or the lease; none while it has neither.
    pub(super) stored: watch::Sender<Option<Stored>>,
    /// Results of retries of parked events.
    pub(super) tried: Mutex<RetryMemory>,
    pub(super) left: Mutex<Left>,
}

impl Knowledge {
    /// A session on `server` has `loaded` this. Whether all that this process knows counts; else
    /// nothing is left.
    fn resume(&self, loaded: Option<&Stored>, server: &ServerIdentity) -> bool {
        let kept = self.kept.lock();
        // The slot alone keeps no record.
        let last = loaded.or(kept.as_ref());
        let counts = last.is_some_and(|last| last.counts(&self.relay, server, kept.as_ref()));
        let mut left = self.left.lock();
        let counts = left.turn.resume(counts);
        if !counts {
            left.forget();
        }
        counts
    }
}

/// What a session left that published and could not write it all to Postgres. The next one does,
/// and publishes none of it again.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Of a session at the table, or of a producer that failed.
    pub(super) write_backs: WriteBacks,
    /// What that producer had delivered of what the slot sent.
    pub(super) delivered: Option<Delivered>,
    /// Delivered rows of the transaction that the position is inside of, until the table was read.
    pub(super) inside: Vec<RowId>,
    /// The transaction the last session was inside of.
    pub(super) begun: OpenTransaction,
    /// How far the table was read and published, where that is not stored.
    pub(super) progress: Option<Stored>,
    pub(super) found: PublishedVersions,
    /// Whether another relay was at work.
    pub(super) turn: Turn,
}

impl Left {
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
        let stored = Stored {
            relay: self.known.relay.clone(),
            ..stored.clone()
        };
        self.store.store(&stored).await?;
        self.known.left.lock().progress = None;
        *self.known.kept.lock() = Some(stored.clone());
        self.took = began.elapsed();
        // While rows are still to be read from the table, the snapshot does not tell which are
        // published.
        self.known
            .stored
            .send_replace(Some(stored).filter(|stored| stored.catch_up.is_none()));
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

/// Opens the store and reads it; while the bus cannot be reached, for as long as it takes. Stores
/// that this process has taken over. What this process could not store counts as stored.
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
    let (mut store, loaded) = once_reachable(read, tell).await?;
    if !known.resume(loaded.as_ref(), server)
        && let Some(loaded) = &loaded
    {
        // Another relay may be at work, if this process stood still: that ended this session. A
        // producer that fails ends with it, too.
        control.wal_position().await?;
        store.store(loaded).await?;
    }
    let progress = known.left.lock().progress.clone();
    Ok((store, progress.or(loaded)))
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
            relay: String::new(),
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

    fn process() -> Knowledge {
        Knowledge {
            relay: "a".to_owned(),
            ..Knowledge::default()
        }
    }

    /// What `known` stores at `lsn`.
    fn stored_by(known: &Knowledge, lsn: u64) -> Stored {
        Stored {
            relay: known.relay.clone(),
            ..stored(1, lsn)
        }
    }

    /// What counts for a session on `server` that `loaded` this.
    fn counting(known: &Knowledge, loaded: &Stored, server: &ServerIdentity) -> Position {
        known.resume(Some(loaded), server);
        let progress = known.left.lock().progress.clone();
        progress.unwrap_or_else(|| loaded.clone()).position
    }

    #[test]
    fn a_session_of_requested_rows_that_fails_leaves_no_progress_to_the_stream() {
        for (gives_way, expected) in [(false, 3), (true, 1)] {
            let known = process();
            let read = stored_by(&known, 3);
            let found = PublishedVersions::default();
            known.left.lock().table_failed(&read, found, gives_way);
            let loaded = stored_by(&known, 1);
            assert_eq!(
                counting(&known, &loaded, &loaded.server),
                Position::at(Lsn::new(expected)),
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
        for (is_own, server, expected) in [
            (true, &here, true),
            (false, &here, false),
            (true, &there, false),
        ] {
            let known = process();
            let own = stored_by(&known, 1);
            let mut found = PublishedVersions::default();
            assert!(
                !found.looked_at(vec![file(10, 20)]),
                "the first look tells nothing"
            );
            known.left.lock().table_failed(&own, found, false);
            let loaded = if is_own { own } else { stored(1, 1) };
            known.resume(Some(&loaded), server);
            assert_eq!(
                std::mem::take(&mut known.left.lock().found).looked_at(vec![file(11, 30)]),
                expected
            );
        }
    }

    /// A process that read on to 3, and stored less.
    fn with_progress() -> Knowledge {
        let known = process();
        let mut left = known.left.lock();
        left.progress = Some(stored_by(&known, 3));
        left.delivered = Some(Delivered {
            position: Position::at(Lsn::new(3)),
            published: None,
            inside: Vec::new(),
        });
        drop(left);
        known
    }

    #[test]
    fn progress_that_was_not_stored_counts_unless_another_relay_or_server_was_at_work() {
        let here = stored(1, 0).server;
        let there = stored(2, 0).server;
        let known = with_progress();
        let own = stored_by(&known, 1);
        assert_eq!(counting(&known, &own, &here), Position::at(Lsn::new(3)));
        assert!(!known.left.lock().turn.is_past);
        // Another one that took over where this one was, and stored nothing else.
        let of_other = stored(1, 1);
        for (is_own, server) in [(false, &here), (true, &there)] {
            let known = with_progress();
            let loaded = if is_own {
                stored_by(&known, 1)
            } else {
                of_other.clone()
            };
            assert_eq!(counting(&known, &loaded, server), Position::at(Lsn::new(1)));
            let left = known.left.lock();
            assert!(left.turn.is_past && left.turn.is_in_doubt);
            assert!(left.delivered.is_none());
        }
    }

    /// P1: the position of a server or store that was restored is behind.
    #[test]
    fn nothing_counts_where_the_store_went_back() {
        let here = stored(1, 0).server;
        for (lsn, counts) in [(2, true), (3, true), (1, false)] {
            let known = with_progress();
            *known.kept.lock() = Some(stored_by(&known, 2));
            let loaded = stored_by(&known, lsn);
            assert_eq!(known.resume(Some(&loaded), &here), counts, "{lsn}");
            assert_eq!(known.left.lock().progress.is_some(), counts);
        }
    }

    #[test]
    fn without_a_record_what_was_kept_tells_the_server() {
        let here = stored(1, 0).server;
        let there = stored(2, 0).server;
        for (server, counts) in [(&here, true), (&there, false)] {
            let known = with_progress();
            assert!(!with_progress().resume(None, server), "nothing was kept");
            *known.kept.lock() = Some(stored_by(&known, 2));
            assert_eq!(known.resume(None, server), counts);
        }
    }
}
