//! The program as a whole, on real servers, with faults.

mod bad_input;
mod cloudevents;
mod column_kinds;
mod confirm;
mod connections;
mod drain;
mod failover;
mod idle;
mod memory;
mod operations;
mod order;
mod outboxes;
mod partitions;
mod points;
mod position;
mod pressure;
mod publication;
mod schema;
mod secrets;
mod shutdown;
mod skipped;
mod stopping;
mod suggested;
mod teams;
mod tls;
mod upkeep;
