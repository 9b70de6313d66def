//! The tests, in one binary: the servers they need are started once, when the first test asks.
//!
//! [`simulation`] drives the core through seeded schedules of a model. [`support`] is their
//! environment around `walrelay-lab`, and tests itself. [`tidy`] holds the repository to its house
//! rules, [`pages`] the docs to the program, [`allocations`] an event to what it costs, [`judge`]
//! the judge of `scripts/campaign` to logs with known faults. [`live`] runs `walrelay` as an
//! operator does: each of its files says at its head which promises it is for (P1 to P14 of
//! `src/lib.rs`), or which page of `docs` it holds to its word.
//!
//! `make test` runs every test that is not ignored; `make test-long` those too, and all for longer.
//! A test that takes more than 15 s in `make test` is in `tests/slow.txt`, with why.
//!
//! Environment: `WALRELAY_TEST_SEED`, `WALRELAY_TEST_BROKERS`, `WALRELAY_TEST_DATABASE_URL` (a
//! superuser's), `WALRELAY_TEST_SERVERS`, `WALRELAY_TEST_KEEP`, `WALRELAY_TEST_TIMES` (a file that
//! gets a line per test: seconds and name), `WALRELAY_TEST_BINARY` (another `walrelay` than the one
//! just built), `WALRELAY_TEST_PICTURES` (a folder that gets pictures of the status page), and for
//! longer runs `WALRELAY_TEST_MAJORS=all`, `WALRELAY_TEST_CHAOS_SECONDS`,
//! `WALRELAY_TEST_CRASH_SECONDS`, `WALRELAY_TEST_RESTARTS`, `WALRELAY_TEST_BROKER_RESTARTS`,
//! `WALRELAY_TEST_PAUSE_MS`, `WALRELAY_TEST_ROWS`, `WALRELAY_TEST_EVENTS`, `WALRELAY_TEST_BACKLOG`,
//! `WALRELAY_SIMULATION_RUNS`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, and its helpers are tests too"
)]

mod allocations;
mod judge;
mod live;
mod pages;
mod support;
mod tidy;

/// Of the repository.
const ROOT: &str = env!("CARGO_MANIFEST_DIR");
