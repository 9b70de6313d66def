//! How Postgres is reached: connection strings, TLS, SQL sessions, quoting.
//!
//! | file | its room |
//! |---|---|
//! | [`conninfo`] | what libpq's connection strings, variables and password files say |
//! | [`fault`] | SQLSTATE, I/O and TLS errors to what the operator is told |
//! | [`quote`] | names and texts on their way into SQL |
//! | [`sql`] | a session for ordinary SQL |
//! | [`session`] | the session beneath a replication stream: start-up, authentication, simple queries |
//! | [`wire`] | bytes to protocol messages, within bounds |
//! | [`transport`], [`tls`] | sockets, with and without encryption |

pub mod conninfo;
pub mod fault;
pub mod quote;
pub mod sql;
pub mod tls;
pub mod transport;
