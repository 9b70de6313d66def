//! Models of the relay, all of whose states are checked for the promises of walrelay's
//! `src/lib.rs`.
//!
//! Five small models share the types of `world`. Each one lists what can happen in a state, faults
//! included, and its properties, by the name of the promise. `check` visits all states, shortest
//! paths first. All of it is tests: `cargo test -p walrelay-spec`, and of the simulation in
//! `crates/core/tests/`.
//!
//! | module | contents |
//! |---|---|
//! | `check` | a model holds, or a wrong rule breaks a property |
//! | `world` | LSNs, positions, snapshots, the order of arrivals |
//! | `slot` | slot, acks, stored position, confirmed LSN |
//! | `table` | reads of the table, hand-over to and from the slot, lost slot, failover |
//! | `relays` | two relays: slot, lease, standstill |
//! | `parking` | marks of rows, parked events, retries |
//! | `once` | exactly-once: transactions of the bus, fence |
//! | `trace` | what the simulation of the core recorded, as a path of `slot`, `relays` or `once` |
//!
//! Each model has wrong rules, which mirror `mutants/`. The tests fail where one of them breaks
//! nothing. They also fail where no path has a redelivery, a fence or a hand-over.
//! `docs/reference/proof.md` says what is modelled, and what is not.

#![expect(
    clippy::wildcard_enum_match_arm,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a part of a model leaves alone what happens elsewhere, and a test says what it did"
)]
#![cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "wrong rules and properties are for the tests of the models"
    )
)]

mod check;
mod once;
#[cfg(test)]
mod parking;
mod relays;
mod slot;
#[cfg(test)]
mod table;
pub mod trace;
mod world;
