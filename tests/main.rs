//! The tests, in one binary: the servers they need are started once, when the first test asks.
//!
//! [`simulation`] drives the core through seeded schedules of a model. [`support`] is the lab, and tests itself. [`tidy`]
//! holds the repository to its house rules, [`allocations`] an event to what it costs. [`live`] runs `walrelay` as an operator does, one module per promise:
//!
//! | module | what breaks, and what must hold |
//! |---|---|
//! | [`live::confirm`] | P1: killed in mid-flight, one topic stalled: nothing is confirmed that was not acked |
//! | [`live::order`] | P2: kills and cuts under eight writers: commit order per aggregate, Java's partitions |
//! | [`live::skipped`] | P3: what cannot be routed or produced stops the relay and is named |
//! | [`live::memory`] | P4: one huge transaction in bounded memory, resumed inside after a kill |
//! | [`live::pressure`] | P5: a frozen broker costs no connection; a silent server does |
//! | [`live::idle`] | P6: an idle outbox pins no WAL, whoever else is busy |
//! | [`live::shutdown`] | P7: Postgres shuts down fast, Kafka up or not |
//! | [`live::publication`] | P8: publication and table altered under way; hostile session settings |
//! | [`live::operations`] | P3, P4: a publication of updates and deletes too: each insert once, in order, in bounded memory |
//! | [`live::connections`] | P9: what heals is retried, what does not ends with its exit code |
//! | [`live::stand_by`] | two and three relays of a slot: killed, stopped, cut off, woken; how fast they take over (`make takeover`) |
//! | [`live::cluster`] | a cluster of three brokers loses its leaders under way |
//! | [`live::stopping`] | P10: SIGTERM drains and confirms; the second one leaves |
//! | [`live::secrets`] | P11: no secret and no payload in any output |
//! | [`live::tls`] | P9, P11: TLS and authentication to both sides, and who is refused for what |
//! | [`live::exactly_once`] | P14: killed, frozen, cut off, two at once: each event is seen once (`make exactly-once` for what it costs) |
//! | [`live::position`] | the stored position after crashes, restores and changes of server or slot |
//! | [`live::failover`] | a standby is promoted: with everything, while behind, without the slot; another server answers |
//! | [`live::points`] | killed at every named point between received and confirmed |
//! | [`live::teams`] | the tables of `examples/`: what consumers see of each, byte for byte |
//! | [`live::retries`] | what five teams have said of retries, on their tables: attempts, waits, error text, end, and back by hand |
//! | [`live::topics`] | P3: topics nobody may write to, topics and headers that are walrelay's own, dead letters without a topic |
//! | [`live::bookkeeping`] | three teams' tables run by their own status columns, with a slot and without; their runbooks' queries |
//! | [`live::suggested`] | tables nobody has seen: `config init`, what `config check` foretells, and the record |
//! | [`live::row_key`] | P12, P13: rows that share an id, and keys that change: what is marked or deleted is what was published |
//! | [`live::schema`] | the table's columns changed, the table made anew, while the relay keeps up and while it lags |
//! | [`live::partitions`] | partitions attached, detached and dropped while the relay lags, on every major |
//! | [`live::column_kinds`] | columns of every kind as key, header, value and member, byte for byte |
//! | [`live::bad_input`] | rows no record can be made of, tables no events can be read from: one line names them |
//! | [`live::cloudevents`] | what the documentation shows is read by the official SDK of another language |
//! | [`live::unread`] | P7, P10: outputs that nobody reads any more, or that cannot be written |
//! | [`live::upkeep`] | rows marked, deleted and cleaned up, and a column added, with others at work |
//!
//! Environment: `WALRELAY_TEST_SEED`, `WALRELAY_TEST_BROKERS`, `WALRELAY_TEST_DATABASE_URL` (a superuser's),
//! `WALRELAY_TEST_SERVERS`, `WALRELAY_TEST_KEEP`, `WALRELAY_TEST_TIMES` (a file that gets a line per test: seconds and name),
//! `WALRELAY_TEST_BINARY` (another `walrelay` than the one just built), and for longer runs `WALRELAY_TEST_CHAOS_SECONDS`,
//! `WALRELAY_TEST_RESTARTS`, `WALRELAY_TEST_ROWS`, `WALRELAY_TEST_EVENTS`, `WALRELAY_TEST_BACKLOG`, `WALRELAY_SIMULATION_RUNS`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, and its helpers are tests too"
)]

mod allocations;
mod live;
#[path = "simulation/main.rs"]
mod simulation;
mod support;
mod tidy;

/// Of the repository.
const ROOT: &str = env!("CARGO_MANIFEST_DIR");
