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
//! `docs/architecture.md` follows one event through the files, and says who owns which state, what follows from each failure
//! and where a change goes. `docs/glossary.md` has the words.
//!
//! | module | its room | does I/O |
//! |---|---|---|
//! | [`position`] | LSNs, and the place up to which everything was delivered | no |
//! | [`snapshot`] | which transactions had ended at a moment | no |
//! | [`error`] | what went wrong, what becomes of it (retry or halt), exit codes | no |
//! | [`failpoint`] | where a test may kill the process | no |
//! | [`clock`] | the wall clock, and where Postgres counts from | reads the clock |
//! | [`secret`] | text that must not be seen | no |
//! | [`conninfo`] | connection strings, variables and password files, as libpq reads them | reads files |
//! | [`template`] | text made of columns: topics, keys, headers | no |
//! | [`config`] | what was typed, then what was meant: validated types | reads files |
//! | [`postgres`] | TLS, SQL sessions, quoting | yes |
//! | [`ledger`] | acks in any order to one delivered position; what to store, what to confirm | no |
//! | [`source`] | walsender session, framing, status updates, pre-flight, row keys, catalog watch | yes |
//! | [`decode`] | one pgoutput payload to one message | no |
//! | [`event`] | messages to events of transactions; drops what is at or below the position | no |
//! | [`poll`] | rows of the outbox table that were not published: which, in which order, read how | yes |
//! | [`route`] | event to record: topic, key, headers, value | no |
//! | [`sink`] | the Kafka producer, its options and its error table | yes |
//! | [`import`] | a Debezium connector's configuration to the `walrelay.toml` that does the same | no |
//! | [`suggest`] | an outbox table that exists to the `walrelay.toml` it would suggest | no |
//! | [`state`] | where the position is kept, and whether it belongs to this server and slot | yes |
//! | [`upkeep`] | what is done to rows that were published: mark, delete, retention; the table of parked events | yes |
//! | [`telemetry`] | logs, metrics, health over HTTP | yes |
//! | [`relay`] | composition: one task, one loop, sessions, back-off, shutdown | yes |
//! | [`demo`] | the main job on a private Postgres, verified | yes |
//! | [`verify`] | rows against records: missing, duplicated, out of order | yes |
//! | [`replay`] | rows of the table into Kafka once more, because somebody asked | yes |
//! | [`dead_letters`] | what was given up: read, sent again, resolved | yes |
//! | [`cli`] | the commands | yes |
//!
//! Imports point from the bottom of this table to its top, and `tests/tidy.rs` holds them to it. The way back is a
//! value: `source` has never heard of Kafka, `sink` has never heard of an LSN.
//!
//! ## What is promised
//!
//! Code and tests cite these by number.
//!
//! - **P1, confirm.** The position is a commit end LSN plus an index in the transaction after it, never a row's
//!   LSN. The confirmed LSN is the commit end of the longest prefix of transactions whose every event is acked and
//!   whose position is stored. It never passes that, and never goes back.
//! - **P2, order.** Per aggregate, Kafka order is commit order, across retries, reconnects and restarts.
//! - **P3, nothing skipped.** What cannot be decoded, routed or produced stops the relay and names row and LSN; or, as was
//!   asked for, it waits with all that follows of its aggregate, or is given up: alone, counted, and with a line in the log.
//!   No event is taken for another: the slot names an event by its place, the table by its row key and id (`source::row_key`).
//! - **P4, memory.** Bounded by bytes in flight, whatever the size of a transaction; none is buffered whole.
//! - **P5, back-pressure.** When Kafka is slow, reading stops and status updates go on; a silent peer is dead.
//! - **P6, idle.** With nothing in flight the keepalive's position is confirmed, so an idle outbox pins no WAL.
//! - **P7, shutdown of Postgres.** A fast shutdown is never held up by the relay, not even with Kafka down.
//! - **P8, silence noticed.** Publication or table missing, dropped, recreated, filtered; session settings that
//!   change the text of a value.
//! - **P9, connections.** Lost ones are retried with back-off and resumed without loss; permanent faults end with a
//!   cause, a remedy and an exit code.
//! - **P10, stopping.** SIGTERM and SIGINT stop intake, wait for acks, confirm, leave; a second leaves at once.
//! - **P11, hostile input.** No bytes can panic it; no payload or secret reaches a log; no name reaches SQL unquoted.
//! - **P12, the table.** What the slot does not have is read from the table: every row that was not published, in order,
//!   before the slot is streamed. Table and slot never publish at once. This rests on the row key, a unique index, which
//!   with the id names one row: a row that was not published is not marked or deleted while no key and id are used again.
//! - **P13, upkeep.** Nothing is stored or confirmed before its row is marked or deleted, where that is configured;
//!   nothing is deleted before it is published.
//! - **P14, once.** With `guarantee = "exactly-once"` events and the position behind them are committed together, by a producer
//!   that fenced all others *after* the slot was owned and *before* the position was read. Who reads what is committed sees
//!   each event once.
//!
//! ## What is absent
//!
//! - No transaction is held in memory, and nothing is streamed before its commit: protocol version 1.
//! - No record is ever produced a second time by the same producer. A failed delivery ends the producer; a new one
//!   starts again behind the delivered position. So does a commit that failed or was not answered: none is tried again.
//!   Only what is refused with nothing else in flight ends nothing: it is given up where it stands.
//! - No LSN is ever passed to `START_REPLICATION`: the server decides where the slot is, the relay drops what it
//!   has already delivered.
//! - No heartbeat table, no `pg_current_wal_lsn()` that is confirmed, no polling for progress.
//! - No id and no time that says which rows are new: those of a transaction that commits late would be passed over.

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
