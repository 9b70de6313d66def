//! source

pub mod catalog;
mod query;
