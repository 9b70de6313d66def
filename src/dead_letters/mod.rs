//! What was given up: the letters of a dead-letter topic, read, sent again, and settled.
//!
//! | file | its room |
//! |---|---|
//! | [`letter`] | one record of the topic: a letter, a marker, or nothing of ours |
//! | [`settled`] | markers: which letters were sent again or dropped |
//! | [`wanted`] | which letters were asked for |
//! | [`scan`] | markers first, then letters |
//! | [`settling`] | letters sent to where they were for, and marked |
//!
//! Kafka deletes no single record. So a letter is settled by a marker: a record behind it in the same partition, with the
//! same key and no value. Markers are read before letters are, and one bit is kept for each letter that has one. Letters
//! themselves are looked at one by one and never held; what is sent is read once more.

pub mod letter;
pub mod scan;
pub mod settled;
pub mod settling;
pub mod wanted;

pub use letter::{At, Entry, Letter, Unsendable};
pub use scan::{Counts, Scan, Which};
pub use settled::{Marker, Outcome, Settled};
pub use settling::{Chosen, Ended, Progress, Settling};
pub use wanted::Wanted;
