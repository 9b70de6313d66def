//! Acks in any order to one delivered position.
