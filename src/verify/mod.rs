//! Compares a table with its topics: rows without a record, rows with several, and records in the wrong order.
//!
//! | module | its room |
//! |---|---|
//! | `compare` | rows first, then records: what is kept of each, and the outcome |
//! | `topics` | topics, read to their ends as often as it takes |
//!
//! Of a row, its id, key and place in the order are kept; of a record nothing, unless no row has its id. So memory
//! grows with the rows that are compared: some 120 bytes for each, twice that for a moment while the map of them grows,
//! some 80 for each key, and the text of ids and keys that are neither UUIDs nor whole numbers. No payload is kept.

mod compare;
mod topics;

#[cfg(test)]
pub(crate) use compare::Delivered;
pub(crate) use compare::{Comparison, Counts, Example, Findings, Outbox};
pub(crate) use topics::Reader;
