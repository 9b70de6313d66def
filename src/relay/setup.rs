//! What publishers take of the configuration.

use crate::config::Config;
use crate::sink::record_cost_bytes;
use walrelay_core::ledger::Limits;
use walrelay_core::publisher::Setup;

/// The configuration of a publisher.
pub(crate) fn setup_of(config: &Config) -> Setup {
    let limits = Limits {
        events: config.sink.max_in_flight_events,
        bytes: config.sink.max_in_flight_bytes,
        each: record_cost_bytes(config.sink.kind),
    };
    Setup {
        slot: config.source.slot.clone(),
        outboxes: config.outboxes.clone(),
        limits,
        delivery: config.delivery.clone(),
        refuses_each: config.sink.kind.bus().refuses_each,
    }
}
