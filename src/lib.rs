//! # walrelay: a replication slot on an outbox table, into Kafka
//!
//! An application writes an event into an outbox table inside its business transaction. walrelay subscribes to a
//! Postgres logical replication slot on that table, decodes the inserts, publishes them to Kafka in order per
//! aggregate, and confirms the slot's LSN only after the broker's ack.
//!
//! ## The flow
//!
//! ```text
//!  Postgres                                    walrelay                                        Kafka
//! ┌──────────┐  received   ┌────────┐ decoded ┌───────┐ assembled ┌───────┐ routed ┌──────┐ enqueued ┌────────┐
//! │ walsender├────────────►│ source ├────────►│ decode├──────────►│ event ├───────►│ route├─────────►│  sink  │
//! └────▲─────┘             └───▲────┘         └───────┘           └───────┘        └──────┘          └───┬────┘
//!      │                       │                                                                         │ acked
//!      │ confirmed             │ a value: the LSN to confirm     ┌───────┐  a value: the position    ┌───▼────┐
//!      └───────────────────────┴─────────────────────────────────┤ state │◄──────────────────────────┤ ledger │
//!                                                        stored  └───────┘                           └────────┘
//! ```
//!
//! One word per step, in code, logs, metrics and SQL: *received* (bytes off the socket), *decoded* (a pgoutput
//! message), *assembled* (an event of a transaction, with its place in it), *routed* (a record with topic and key),
//! *enqueued* (librdkafka has it), *acked* (the broker said so), *confirmed* (Postgres was told).
//!
//! ## Map of the code
//!
//! `docs/architecture.md` follows one event through the files. It names the owner of each state, the reaction to each
//! failure and the place of each kind of change. `docs/glossary.md` defines the terms.
//!
//! | module | contents | does I/O |
//! |---|---|---|
//! | [`position`] | LSNs, and the position up to which all events are delivered | no |
//! | [`snapshot`] | the set of transactions that had ended at one moment | no |
//! | [`error`] | errors, their disposition (retry, give up, halt), exit codes | no |
//! | [`failpoint`] | points at which a test may pause, fail or kill the process | no |
//! | [`clock`] | the wall clock, and the epoch of Postgres | reads the clock |
//! | [`secret`] | text that is never displayed | no |
//! | [`conninfo`] | connection strings, variables and password files, as libpq reads them | reads files |
//! | [`template`] | templates over columns: topics, keys, headers, values | no |
//! | [`config`] | file, variables and flags, validated | reads files |
//! | [`postgres`] | TLS, SQL sessions, quoting | yes |
//! | [`ledger`] | acks in any order to one delivered position; the position to store, the LSN to confirm | no |
//! | [`source`] | walsender session, framing, status updates, pre-flight, row keys, catalog watch | yes |
//! | [`decode`] | one pgoutput payload to one message | no |
//! | [`event`] | messages to events of transactions; drops events at or below the position | no |
//! | [`poll`] | the unpublished rows of an outbox table: selection, order, reader | yes |
//! | [`route`] | event to record: topic, key, headers, value | no |
//! | [`sink`] | where records go: the Kafka producer with its options and error table, standard output, nowhere | yes |
//! | [`import`] | a Debezium connector's configuration to an equivalent `walrelay.toml` | no |
//! | [`suggest`] | an existing outbox table to a suggested `walrelay.toml` | no |
//! | [`state`] | the position store, and the check that a position belongs to this server and slot | yes |
//! | [`upkeep`] | writes to rows of published events: mark, delete, retention; the table of parked events | yes |
//! | [`telemetry`] | logs, metrics, health over HTTP | yes |
//! | [`relay`] | composition: one task, a loop per source, sessions, back-off, shutdown | yes |
//! | [`demo`] | the main job on a private Postgres, verified | yes |
//! | [`verify`] | rows against records: missing, duplicated, out of order | yes |
//! | [`replay`] | publishes selected rows once more | yes |
//! | [`dead_letters`] | dead letters: listed, retried, dropped | yes |
//! | [`cli`] | the commands | yes |
//!
//! Imports point from the bottom of this table to its top; `tests/tidy.rs` checks that. Results travel back as values:
//! `source` does not know Kafka, and `sink` knows no LSN.
//!
//! ## Promises
//!
//! Code and tests cite these by number.
//!
//! - **P1, confirm.** The position is a commit end LSN plus an index in the transaction after it, never a row's LSN.
//!   The confirmed LSN is the commit end of the longest prefix of transactions of which every event is acked and the
//!   position is stored. It never exceeds that, and never goes back. P6 is its case with nothing in flight.
//! - **P2, order.** Per aggregate, Kafka order is commit order, across retries, reconnects and restarts.
//! - **P3, nothing skipped.** An event that cannot be routed or produced stops the relay, which names row and LSN. As
//!   configured, the event is instead parked with all later ones of its aggregate, or given up: alone, counted, and
//!   logged. A message that cannot be decoded, a NULL id and a missing column always stop the relay. No event is
//!   mistaken for another: the slot identifies an event by its place, the table by its row key and id
//!   (`source::row_key`).
//! - **P4, memory.** Memory is bounded by the bytes in flight, whatever the size of a transaction. No transaction is
//!   buffered.
//! - **P5, back-pressure.** While Kafka is slow, reading stops and status updates continue. A silent peer counts as
//!   dead.
//! - **P6, idle.** With nothing in flight, the relay confirms the keepalive's LSN, so an idle outbox retains no WAL.
//! - **P7, shutdown of Postgres.** The relay never delays a fast shutdown, not even with Kafka down.
//! - **P8, silence noticed.** The relay notices a publication or table that is missing, dropped, recreated or
//!   filtered, and session settings that change the text of a value.
//! - **P9, connections.** Lost connections are retried with back-off and resumed without loss. Permanent faults end
//!   the relay with a cause, a remedy and an exit code.
//! - **P10, stopping.** SIGTERM and SIGINT stop intake, wait for acks, confirm, and end the relay; a second signal
//!   ends it at once.
//! - **P11, hostile input.** No bytes can cause a panic. No payload or secret reaches a log. No name reaches SQL
//!   unquoted.
//! - **P12, the table.** The relay reads from the table what the slot lacks: every unpublished row, in order, before
//!   it streams. Table and slot never publish at the same time. This rests on the row key, a unique index that
//!   identifies one row together with the id: no unpublished row is marked or deleted unless the same key and id are
//!   used again.
//! - **P13, upkeep.** Where rows are marked or deleted, no position is stored or confirmed before its rows are. No
//!   row is deleted before its event is published.
//! - **P14, once.** With `guarantee = "exactly-once"`, events and the position after them are committed together, by
//!   a producer that fenced all others *after* the slot was acquired and *before* the position was read. A consumer
//!   that reads only committed records sees each event once.
//!
//! ## Absent on purpose
//!
//! - No transaction is held in memory, and nothing is streamed before its commit: protocol version 1.
//! - No record is produced twice by the same producer. A failed delivery ends the producer, and a new one starts
//!   after the delivered position. So does a commit that failed or was not answered. Only the rejection of an
//!   isolated record ends no producer, except with exactly-once: the relay gives that event up and continues.
//! - No LSN is ever passed to `START_REPLICATION`: the server knows the slot's position, and the relay drops what it
//!   has already delivered.
//! - No heartbeat table, no `pg_current_wal_lsn()` that is confirmed, no polling for progress.
//! - No id and no time decides which rows are new: rows of a transaction that commits late would be lost. Only an
//!   operator's `--backlog since=…` selects by time.

pub mod cli;
pub(crate) mod clock;
pub mod config;
pub mod conninfo;
pub(crate) mod dead_letters;
pub(crate) mod decode;
pub mod demo;
pub mod error;
pub mod event;
pub mod failpoint;
pub(crate) mod import;
pub mod ledger;
pub mod poll;
pub mod position;
pub(crate) mod postgres;
pub mod relay;
pub(crate) mod replay;
pub mod route;
pub(crate) mod secret;
pub mod sink;
pub mod snapshot;
pub(crate) mod source;
pub(crate) mod state;
pub(crate) mod suggest;
pub mod telemetry;
pub(crate) mod template;
pub mod upkeep;
pub(crate) mod verify;
