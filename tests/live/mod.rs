//! The program as a whole, on real servers, with faults.

mod confirm;
mod connections;
mod drain;
mod failover;
mod idle;
mod memory;
mod order;
mod outboxes;
mod points;
mod position;
mod pressure;
mod publication;
mod secrets;
mod shutdown;
mod skipped;
mod stopping;
mod suggested;
mod teams;
mod tls;
