//! The program as a whole, on real servers, with faults.

mod confirm;
mod connections;
mod drain;
mod failover;
mod idle;
mod memory;
mod operations;
mod order;
mod points;
mod position;
mod pressure;
mod publication;
mod secrets;
mod shutdown;
mod skipped;
mod stopping;
mod teams;
mod tls;
