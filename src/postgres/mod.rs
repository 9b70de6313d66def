//! How Postgres is reached: TLS, SQL sessions, quoting.
//!
//! | file | content |
//! |---|---|
//! | [`catalog`] | a table as the catalogs describe it |
//! | [`fault`] | from SQLSTATE, I/O and TLS errors to errors with a remedy |
//! | `query` | SQL with a time limit, what a failure means for its session, tables of walrelay's own |
//! | [`quote`] | names and texts on their way into SQL |
//! | [`wire`] | bytes to protocol messages, within bounds |
//! | [`tls`], [`transport`] | sockets that may be left unwatched, with and without encryption |
//! | [`sql`] | a session for ordinary SQL |
//! | [`session`] | a session in protocol messages: start-up, authentication, simple queries |
//! | [`replication`] | a walsender session, up to the start of its stream |

pub(crate) mod catalog;
pub(crate) mod fault;
pub(crate) mod query;
pub(crate) mod quote;
pub(crate) mod replication;
pub(crate) mod session;
pub(crate) mod sql;
pub(crate) mod tls;
pub(crate) mod transport;
pub(crate) mod wire;
