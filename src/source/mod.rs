//! source

pub mod catalog;
pub mod control;
pub mod preflight;
mod query;
