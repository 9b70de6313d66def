//! Models of the relay, all of whose states are checked for the promises of walrelay's
//! `src/lib.rs`.
//!
//! Five small models share the types of `world`. Each one lists what can happen in a state, faults
//! included, and its properties, by the name of the promise. `check` visits all states, shortest
//! paths first. All of it is tests: `cargo test -p walrelay-spec`.
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
//!
//! Each model has wrong rules, which mirror `mutants/`. The tests fail where one of them breaks
//! nothing. They also fail where no path has a redelivery, a fence or a hand-over.
//! `docs/reference/proof.md` says what is modelled, and what is not.

#![cfg_attr(
    test,
    expect(
        clippy::wildcard_enum_match_arm,
        reason = "what happens elsewhere does not concern a part of the model"
    )
)]

#[cfg(test)]
mod check;
#[cfg(test)]
mod once;
#[cfg(test)]
mod parking;
#[cfg(test)]
mod relays;
#[cfg(test)]
mod slot;
#[cfg(test)]
mod table;
#[cfg(test)]
mod world;
