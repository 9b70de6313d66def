//! The relay.

pub mod backoff;
pub mod core;
pub mod stop;
