//! How Postgres is reached: connection strings, TLS, SQL sessions, quoting.

pub mod conninfo;
