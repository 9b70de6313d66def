//! Throw-away servers, writers and a verifier: for the demo, the tests and the benches of walrelay.
//!
//! | module | contents |
//! |---|---|
//! | [`process`] | a guardian that outlives this process; signals, memory, ports |
//! | [`postgres`] | a private Postgres |
//! | [`kafka`] | clients of librdkafka that read and administer topics |
//! | [`verify`] | committed rows against records: lost, duplicated, out of order |
//! | [`workload`] | business transactions that fill an outbox |
//! | [`demo`] | all of them around a relay, and a report |
//!
//! Only [`demo`] knows the program: what checks a relay shares no code with it but the kinds of
//! errors.

pub mod demo;
pub mod kafka;
pub mod postgres;
pub mod process;
pub mod verify;
pub mod workload;
