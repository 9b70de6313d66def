//! The tests.
mod support;
