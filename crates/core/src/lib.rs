//! The decisions of walrelay: everything that decides, and nothing that waits.
//!
//! Inputs and outputs are values. A message of the slot, a row of the table, an ack, "stored" go
//! in; a record to enqueue, a write to a row, a position to store, an LSN to confirm come out. The
//! core has no socket, no task and no timer; times are arguments. The program `walrelay` carries
//! out what the core decides. The promises are numbered in the program's `lib.rs`.
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
//! | [`sessions`] | which session comes next, and after which wait |
//! | [`recovery`] | rows that are read from the table before a slot is streamed, or instead |
//! | [`turn`] | whether another relay was at work |
//! | [`left`] | what the sessions of a process leave to the next one |

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
pub mod recovery;
pub mod route;
pub mod secret;
pub mod sessions;
pub mod sink;
pub mod snapshot;
pub mod start;
pub mod stored;
pub mod template;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;
pub mod turn;
