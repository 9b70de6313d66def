//! The decisions of walrelay about events, positions, sessions, the table and readiness.
//!
//! Inputs and outputs are values. A message of the slot, a row of the table, an ack, "stored" go
//! in; a record to enqueue, a write to a row, a position to store, an LSN to confirm come out. The
//! core has no socket, no task and no timer; times are arguments. The program `walrelay` carries
//! out what the core decides.
//!
//! Some inputs are no arguments. [`publisher::Publisher`] sends records to a [`sink::Sink`] and
//! waits for the sink's deliveries. The back-off of events that failed draws from the generator of
//! `fastrand`, which a test seeds. Lags and ages are told by the wall clock ([`clock`]), which
//! decides nothing.
//!
//! # Promises
//!
//! The crate docs of the program (`src/lib.rs`) number the promises. The patches in `mutants/`
//! break them, and `scripts/mutants --list` names the test that each patch fails. `tests/simulation/`
//! checks P1 to P4, P6, P9, P12 to P14 and a part of P8, most of them in `promises.rs`. Paths in
//! `src/` are the program's.
//!
//! | promise | decided in | one of the tests that fail | mutants |
//! |---|---|---|---|
//! | P1 confirm | the place of an event [`event`] (`assemble.rs`), [`position`]; the position [`ledger`], [`publisher::pipeline`]; the LSN [`ledger::confirm`]; whether the position belongs to the slot [`start`], [`recovery`]; an ack `src/sink/` | simulation `nothing_is_lost_or_reordered` | 01 to 17, 35, 38, 56 to 58, 65, 77 to 79, 81, 82, 101, 105 |
//! | P2 order | [`publisher`], [`publisher::quarantine`], [`publisher::delivered_before`], [`publisher::parked_index`], [`publisher::retry_batch`]; on a bus that answers for each record [`lanes`]; in Kafka `src/sink/kafka/` (`options.rs`, `partitions.rs`) | simulation `nothing_is_lost_or_reordered`, `lanes_keep_the_order` | 18 to 22, 34, 46, 50, 55, 59 to 62, 70, 83, 84, 85, 121, 122, 126 |
//! | P1, P2 after the turn of another relay | [`turn`], [`left`], [`stored`], [`ledger::trail`]; the id is stored by `src/relay/store.rs` | simulation `a_relay_that_takes_over` | 33, 71 to 75, 87 |
//! | P3 nothing skipped | [`decode`], [`event`]; [`publisher::judge`], [`publisher::quarantine`], [`parked`] | simulation `events_that_are_refused` | 23, 37, 44, 48, 49, 90, 91, 93, 103, 104 |
//! | P4 memory | `Publisher::intake_closed` ([`publisher`]), [`ledger`] | `ledger::tests::events_in_flight_are_bounded` | 24 |
//! | P5 back-pressure | `src/source/feedback.rs`, `src/relay/replication.rs` | `live::pressure` | 25 |
//! | P6 idle | [`event`] (`assemble.rs`), [`ledger`]: keepalives; [`ledger::confirm`] | `ledger::confirm::tests`, `World::settle` of the simulation | 26 |
//! | P7 shutdown | `src/source/control.rs`, `src/relay/replication.rs` | `live::shutdown` | 27 |
//! | P8 silence | `src/source/` (`preflight.rs`, `watch.rs`, `stream.rs`); an altered publication [`stream_record`], [`start`], [`recovery`] | `stream_record::tests`, simulation `what_an_altered_publication` | 28 to 30, 96, 97, 108 to 113, 116, 123 |
//! | P9 connections | [`sessions`], [`error`]: which error is retried; [`readiness`] | `readiness::tests`, simulation `nothing_is_lost_or_reordered` | 36, 52, 67, 69, 106, 107, 125 |
//! | P10 stopping | `src/relay/` (`stop.rs`, `drain.rs`, `shared_loop.rs`) | `live::stopping` | 31, 51 |
//! | P11 hostile input | each parser here; [`printable`], [`secret`] | `fuzzed_…`; `conninfo::tests` of the program | 32 |
//! | P12 the table | what is read [`recovery`], [`catch_up`], [`published_versions`]; what is stored before what [`table_read`]; [`ledger::trail`]; the lease `src/source/lease.rs`, queries `src/poll/` | simulation `what_no_slot_sends` | 39 to 41, 43, 53, 54, 63, 64, 66, 76, 80, 84, 94, 95, 115, 117, 120, 127 |
//! | P13 upkeep | [`publisher::write_back`], [`parked`], [`table_read`]; refused writes [`sessions`]; commits that wait for the relay [`publisher`] (`held_commits.rs`); SQL `src/upkeep/` | simulation `parked_events_keep`, `rows_that_are_set_to_pending` | 42, 68, 88, 98 to 100, 114, 118 |
//! | P14 once | [`publisher::transaction`], [`left`], [`table_read`]; the fence `src/relay/session.rs` | simulation `committed_together` | 45, 47, 86, 89, 92, 102, 119 |
//!
//! # Modules
//!
//! A module imports only modules above it in this table.
//!
//! | module | contents |
//! |---|---|
//! | [`clock`] | the wall clock, for people and lags |
//! | [`failpoint`] | points where a test may pause or kill the process |
//! | [`printable`] | text that is safe on a terminal |
//! | [`secret`] | text that must not be seen |
//! | [`trace`] | the trace context of an event |
//! | [`position`] | LSNs, positions, and the server that they are of |
//! | [`snapshot`] | which transactions a snapshot sees |
//! | [`published_versions`] | row versions that a poller finds more than once |
//! | [`error`] | errors, their consequences and their exit codes |
//! | [`template`] | text made of columns |
//! | [`config`] | the configuration that the core reads |
//! | [`catalog`] | a table as the catalogs of Postgres describe it |
//! | [`decode`] | one pgoutput message from bytes |
//! | [`event`] | events from messages and rows |
//! | [`ledger`] | what is in flight, what to store and confirm; published transactions |
//! | [`catch_up`] | rows that are read from the table: which, and what is published after them |
//! | [`stored`] | the stored position, with what it belongs to and what it knows of the tables |
//! | [`route`] | the record of an event |
//! | [`sink`] | the boundary of the buses |
//! | [`start`] | whether the stored position belongs to the slot, and where to start |
//! | [`lanes`] | order per key, for a bus that keeps none |
//! | [`parked`] | parked events, and writes to rows, as values |
//! | [`publisher`] | events and acks in; what is given up, parked, written back |
//! | [`stream_record`] | what a stream stores with each position; an altered publication |
//! | [`sessions`] | which session comes next, and after which wait |
//! | [`recovery`] | rows that are read from the table before a slot is streamed, or instead |
//! | [`turn`] | whether another relay was at work, or is, for one that stands by |
//! | [`left`] | what the sessions of a process leave to the next one |
//! | [`table_read`] | a session at the table: rows in; the next step, and progress to store, out |
//! | [`readiness`] | whether the relay is ready, and why not |
//! | [`watch`] | what a stream watches: rows set to pending again, rows that go early, retained WAL |

pub mod catalog;
pub mod catch_up;
pub mod clock;
pub mod config;
pub mod decode;
pub mod error;
pub mod event;
pub mod failpoint;
pub mod lanes;
pub mod ledger;
pub mod left;
pub mod parked;
pub mod position;
pub mod printable;
pub mod published_versions;
pub mod publisher;
pub mod readiness;
pub mod recovery;
pub mod route;
pub mod secret;
pub mod sessions;
pub mod sink;
pub mod snapshot;
pub mod start;
pub mod stored;
pub mod stream_record;
pub mod table_read;
pub mod template;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;
pub mod turn;
pub mod watch;
