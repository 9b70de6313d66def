//! Access to Postgres: TLS, SQL sessions, quoting.
//!
//! | file | content |
//! |---|---|
//! | [`bounded`] | refuses messages that no server sends, below the SQL client |
//! | [`table`] | reads how the catalogs describe a table |
//! | [`fault`] | turns SQLSTATEs, I/O and TLS errors into errors with a remedy |
//! | `query` | SQL with a time limit, what a failure leaves, walrelay's own tables |
//! | [`quote`] | quotes names and texts for SQL |
//! | [`wire`] | turns bytes into protocol messages, within bounds |
//! | [`tls`], [`transport`] | sockets that can leave the reactor, with and without encryption |
//! | [`sql`] | a session for ordinary SQL |
//! | [`session`] | a session in protocol messages: start-up, authentication, simple queries |
//! | [`replication`] | a walsender session, up to the start of its stream |

pub(crate) mod bounded;
pub(crate) mod fault;
pub(crate) mod query;
pub(crate) mod quote;
pub(crate) mod replication;
pub(crate) mod session;
pub(crate) mod sql;
pub(crate) mod table;
pub(crate) mod tls;
pub(crate) mod transport;
pub(crate) mod wire;
