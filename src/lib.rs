//! # walrelay: a replication slot on an outbox table, to a bus
//!
//! An application writes an event into an outbox table inside its business transaction. walrelay
//! streams that table from a Postgres logical replication slot, decodes the inserts, and publishes
//! them to a bus, Kafka by default, in order per aggregate. It confirms an LSN only after all
//! events before that LSN are delivered, and their position is stored.
//!
//! ## The flow
//!
//! ```text
//!   Postgres   received      decoded     assembled     routed     enqueued    bus
//! ┌───────────┐   ┌────────┐   ┌────────┐   ┌───────┐   ┌───────┐   ┌──────┐
//! │ walsender ├──►│ source ├──►│ decode ├──►│ event ├──►│ route ├──►│ sink ├──► servers
//! └─────▲─────┘   └────────┘   └────────┘   └───────┘   └───────┘   └──┬───┘
//!       │                                                             │ acked
//!       │ confirmed               ┌───────┐   delivered           ┌───▼────┐
//!       └─────────────────────────┤ state │◄──────────────────────┤ ledger │
//!                         stored  └───────┘                       └────────┘
//! ```
//!
//! One word per step, in code, logs, metrics and SQL:
//!
//! - *received*: bytes off the socket;
//! - *decoded*: the bytes are a pgoutput message;
//! - *assembled*: the message is an event that was not delivered before, with its place, which is
//!   the commit LSN of its transaction and its index there;
//! - *routed*: the event has a record with topic and key;
//! - *enqueued*: the client of the bus has the record;
//! - *acked*: the bus has reported that it has the record, in Kafka in all in-sync replicas;
//! - *delivered*: this event and all earlier ones are acked (or their dead letters are), skipped,
//!   to be parked, or found in their topic after a crash;
//! - *written back*: its row is marked or deleted, or the event is in `walrelay.parked`, as
//!   configured;
//! - *stored*: the position is durable (the slot itself can be the store);
//! - *confirmed*: Postgres has the LSN.
//!
//! ## Map of the code
//!
//! What decides without waiting is in `walrelay-core` (`crates/core`): decoding, events, routing,
//! the ledger, the publisher. `walrelay-lab` (`crates/lab`) is for the demo, the tests and the
//! benches: throw-away servers, writers and a verifier. `docs/explanation/architecture.md` follows
//! one event through the files. It names the owner of each state, the reaction to each failure and
//! the place of each kind of change. `docs/glossary.md` defines the terms.
//!
//! | module | contents | does I/O |
//! |---|---|---|
//! | [`conninfo`] | connection strings, variables, password files, as in libpq | reads files |
//! | [`config`] | file, variables and flags, validated | reads files |
//! | [`postgres`] | TLS, SQL sessions, quoting | yes |
//! | [`source`] | walsender session, framing, pre-flight, row keys, catalog watch | yes |
//! | [`poll`] | the unpublished rows of an outbox table: selection, order, reader | yes |
//! | [`survey`] | the list of checks of `doctor` and `config check` | no |
//! | [`sink`] | where records go: a folder or file for each bus | yes |
//! | [`suggest`] | derives a `walrelay.toml` from an existing outbox table | no |
//! | [`state`] | the position store | yes |
//! | [`upkeep`] | writes to rows: mark, delete, retention; table `walrelay.parked` | yes |
//! | [`telemetry`] | logs, metrics, health, status page, spans, systemd | yes |
//! | [`relay`] | composition: one task, loops for stream and table, back-off, shutdown | yes |
//! | [`verify`] | rows against records: missing, duplicated, out of order | yes |
//! | [`replay`] | publishes selected rows once more | yes |
//! | [`cli`] | the commands | yes |
//!
//! A module imports only modules above it in this table; `tests/tidy.rs` checks that. Results
//! travel back as values. `source` does not know Kafka. `sink` does not know LSNs, and sends a
//! position as bytes.
//!
//! ## Promises
//!
//! Code and tests cite these by number. The first line of each file in `tests/live/` names the
//! promise that the file tests, or a page of `docs/`: `grep -rlw P2 tests/live` lists the files of
//! P2. Each patch in `mutants/` breaks one promise and names a test that must then fail:
//! `scripts/mutants --list`. `crates/core/tests/simulation/` tests the core against models of
//! Postgres, buses and parked events, under faults. `spec/` checks the design: models with all of
//! their states. Tests whose names begin with `fuzzed_` give parsers hostile inputs (P11).
//! `docs/explanation/architecture.md` names the owner of each promise.
//!
//! - **P1, confirm.** The position is the end LSN of a commit, or of a keepalive after that commit,
//!   plus the number of events delivered from the next transaction. It is never a row's LSN. The
//!   relay confirms the end LSN of a stored position, and nothing above that. Every event before
//!   the position is delivered. The confirmed LSN never goes back.
//! - **P2, order.** Per aggregate, the order on the bus is commit order, across retries, reconnects
//!   and restarts.
//! - **P3, nothing skipped.** An event that cannot be routed or produced stops the relay, which
//!   names row and LSN. As configured, the event is instead parked with all later ones of its
//!   aggregate, or it is given up and later ones continue. Both are counted and logged. A message
//!   that cannot be decoded, a NULL id and a missing column always stop the relay. No event is
//!   mistaken for another: the relay identifies an event of the slot by its place, and one of the
//!   table by its row key and id (`source::row_key`).
//! - **P4, memory.** `sink.max_in_flight_bytes` bounds the bytes in flight, whatever the size of a
//!   transaction. No transaction is buffered.
//! - **P5, back-pressure.** While the bus is slow, the relay closes intake, and status updates
//!   continue. The relay ends a session with a silent server.
//! - **P6, idle.** With nothing in flight, the relay stores and confirms the keepalive's LSN, so an
//!   idle outbox retains little WAL.
//! - **P7, shutdown of Postgres.** The relay delays a fast shutdown by 2.5 s at most, 1.5 s of
//!   these for acks, also with Kafka down, and confirms nothing that is not acked.
//! - **P8, silence noticed.** The relay halts, or warns where nothing is lost, at a publication or
//!   table that is missing, dropped, recreated or filtered, at what sends inserts to other tables,
//!   and at session settings that change the text of a value. Rows that an altered publication may
//!   have left out are read from the table.
//! - **P9, connections.** Lost connections are retried with back-off and resumed without loss.
//!   Permanent faults end the relay with a cause, a remedy and an exit code.
//! - **P10, stopping.** On SIGTERM, SIGINT or SIGHUP the relay closes intake, waits for acks,
//!   confirms, and ends. On a second SIGTERM or SIGINT the relay ends at once.
//! - **P11, hostile input.** No bytes can cause a panic. No payload or secret reaches a log. No
//!   name reaches SQL unquoted.
//! - **P12, the table.** The relay reads from the table what the slot lacks: every unpublished row,
//!   in order, before it streams. A lease keeps a relay from reading the table while another has
//!   the slot. The row key, the columns of a unique index, identifies a row together with the id.
//!   No unpublished row is marked as published or deleted. The only exception: the application
//!   inserts another row with the same key and id.
//! - **P13, upkeep.** Where rows are marked or deleted, or events are parked, the relay stores and
//!   confirms a position only after the events before that position are written back. The only
//!   exception: while commits wait for the relay as for a synchronous standby, rows are marked or
//!   deleted once other sessions see them, which is after the LSN is confirmed. No row is deleted
//!   before its event is published.
//! - **P14, once.** With `guarantee = "exactly-once"`, events and the position after them are
//!   committed together, by a producer that fenced all others *after* the slot was acquired and
//!   *before* the position was read. A consumer that reads only committed records sees each event
//!   once.
//!
//! ## Absent on purpose
//!
//! - No transaction is held in memory, and nothing is streamed before its commit: protocol version
//!   1.
//! - No record is produced twice by the same producer. A failed delivery ends the producer, and a
//!   new one starts after the delivered position. A failed or unanswered commit also ends the
//!   producer. The rejection of an isolated record ends the producer only with exactly-once. On a
//!   bus that answers for each record, a record without an answer is sent again, before any later
//!   one of its key, and a refusal ends nothing.
//! - `START_REPLICATION` always gets `0/0`: the server knows the slot's position, and the relay
//!   drops what it has already delivered.
//! - No heartbeat table. The relay never confirms `pg_current_wal_lsn()`, and confirms no LSN from
//!   a query: queries of the slot serve the start, the metrics and `--max-retained-bytes`.
//! - No id and no time decides which rows are new: rows of a transaction that commits late would be
//!   lost. Only an operator's `--backlog since=…` selects by time.

pub mod cli;
pub mod config;
pub mod conninfo;
pub mod poll;
pub(crate) mod postgres;
pub mod relay;
pub(crate) mod replay;
pub mod sink;
pub(crate) mod source;
pub(crate) mod state;
pub(crate) mod suggest;
pub(crate) mod survey;
pub mod telemetry;
pub mod upkeep;
pub(crate) mod verify;
