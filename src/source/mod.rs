//! source

pub mod catalog;
pub mod preflight;
mod query;
