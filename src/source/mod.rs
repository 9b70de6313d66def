//! source

pub mod catalog;
pub mod notice;
pub mod preflight;
mod query;
