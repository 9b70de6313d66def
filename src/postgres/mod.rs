//! How Postgres is reached: TLS, SQL sessions, quoting.
//!
//! | file | content |
//! |---|---|
//! | [`catalog`] | a table as the catalogs describe it |
//! | [`fault`] | from SQLSTATE, I/O and TLS errors to errors with a remedy |
//! | `own_table` | tables of walrelay's own beside the outbox |
//! | `query` | SQL with a time limit, and what a failure means for its session |
//! | [`quote`] | names and texts on their way into SQL |
//! | [`wire`] | bytes to protocol messages, within bounds |
//! | [`socket`] | a socket that may be left unwatched |
//! | [`tls`], [`transport`] | byte streams, with and without encryption |
//! | [`sql`] | a session for ordinary SQL |
//! | [`session`] | a session in protocol messages: start-up, authentication, simple queries |
//! | [`replication`] | a walsender session, up to the start of its stream |

pub(crate) mod catalog;
pub(crate) mod fault;
pub(crate) mod own_table;
pub(crate) mod query;
pub(crate) mod quote;
pub(crate) mod replication;
pub(crate) mod session;
pub(crate) mod socket;
pub(crate) mod sql;
pub(crate) mod tls;
pub(crate) mod transport;
pub(crate) mod wire;
