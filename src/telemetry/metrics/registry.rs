//! What a scraper is given: each metric under its name, with a line of help.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::{Instruments, load};
use crate::clock::now_us;
use crate::telemetry::names;

pub(super) fn registry(of: &Arc<Instruments>) -> Registry {
    let mut all = Registry::with_prefix(names::PREFIX);
    let mut counter = |name, help, counter: &Counter| all.register(name, help, counter.clone());
    counter(names::RECEIVED_BYTES, "Bytes read from the replication stream", &of.received_bytes);
    counter(names::RECEIVED_MESSAGES, "WAL data messages read from the replication stream", &of.received_messages);
    counter(names::DECODED_MESSAGES, "pgoutput messages decoded", &of.decoded_messages);
    counter(names::ASSEMBLED_EVENTS, "Outbox events above the position", &of.assembled_events);
    counter(names::ROUTED_EVENTS, "Events that were given topic and key", &of.routed_events);
    counter(names::ENQUEUED_EVENTS, "Records handed to the Kafka client", &of.enqueued_events);
    counter(names::ACKED_EVENTS, "Records the broker acknowledged", &of.acked_events);
    counter(names::DEAD_LETTERED_EVENTS, "Events that went to the topic of dead letters", &of.dead_lettered_events);
    counter(names::SKIPPED_EVENTS, "Events that were given up and went nowhere", &of.skipped_events);
    counter(names::PARKED_EVENTS, "Events that began to wait in the table of parked events", &of.parked_events);
    counter(names::UNPARKED_EVENTS, "Events that waited there and were delivered", &of.unparked_events);
    counter(names::DROPPED_EVENTS, "Events that waited there and were dropped as was asked", &of.dropped_events);
    counter(names::WAITING_AGAIN_EVENTS, "Rows of ids that wait already", &of.waiting_again_events);
    counter(names::DELIVERED_BEFORE_EVENTS, "Events that were in their topics already", &of.delivered_before_events);
    counter(names::ACKED_BYTES, "Bytes of key, value and headers the broker acknowledged", &of.acked_bytes);
    counter(names::QUEUE_FULL, "Times reading stopped because too much was in flight", &of.queue_full);
    counter(names::KEEPALIVES, "Keepalives from Postgres", &of.keepalives);
    counter(names::STATUS_UPDATES, "Status updates sent to Postgres", &of.status_updates);
    counter(names::POSITIONS_STORED, "Positions stored", &of.positions_stored);
    counter(names::COMMITTED_TRANSACTIONS, "Kafka transactions committed", &of.committed_transactions);
    counter(names::GIVEN_UP_TRANSACTIONS, "Kafka transactions given up", &of.given_up_transactions);
    counter(names::COMMITTED_EVENTS, "Events in committed Kafka transactions", &of.committed_events);
    counter(names::CATALOG_CHECKS, "Checks of publication, table and slot while running", &of.catalog_checks);
    all.register(names::IN_FLIGHT_EVENTS, "Records enqueued and not acknowledged", of.in_flight_events.clone());
    all.register(
        names::IN_FLIGHT_BYTES,
        "Bytes in those, as kafka.max_in_flight_bytes counts them",
        of.in_flight_bytes.clone(),
    );
    all.register(names::WAITING_EVENTS, "Events in the table of parked events", of.waiting_events.clone());
    all.register(names::STANDING_BY, "1 while another relay is at work", of.standing_by.clone());
    all.register(names::READS_TABLE, "1 while rows are read from the table", of.reads_table.clone());
    all.register(
        names::OLDEST_TRANSACTION_SECONDS,
        "How long the oldest transaction on the server has been open",
        of.oldest_transaction_seconds.clone(),
    );
    all.register(names::OLDEST_TRANSACTION_PID, "Its process id, 0 for none", of.oldest_transaction_pid.clone());
    all.register(names::TRANSACTION_COMMIT_SECONDS, "Time a commit in Kafka takes", of.commit_seconds.clone());
    all.register(
        names::COMMIT_TO_ACK_SECONDS,
        "Time from the commit in Postgres to the broker's acknowledgement",
        of.commit_to_ack_seconds.clone(),
    );

    all.register(names::RETRIES, "Failed attempts that are repeated", of.retries.family.clone());
    all.register(names::RECONNECTS, "Connections made again", of.reconnects.family.clone());
    all.register(names::CONNECTION_STATE, "1 while connected", of.connections.family.clone());
    all.register(names::IGNORED_MESSAGES, "Messages that carry no event, by operation", of.ignored.family.clone());
    all.register(names::ERRORS, "Errors by kind, healed or not", of.errors.clone());
    all.register(names::BUILD, "The program that runs", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
    all.register_collector(Box::new(Derived(Arc::clone(of))));
    all
}

/// What is computed when somebody looks. What is not known yet is left out rather than shown as 0.
#[derive(Debug)]
struct Derived(Arc<Instruments>);

impl Collector for Derived {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let of = &self.0;
        let lsns = [
            (names::RECEIVED_LSN, "End of the WAL received, as a byte position", &of.received_lsn),
            (names::STORED_LSN, "End of the stored position, as a byte position", &of.stored_lsn),
            (names::CONFIRMED_LSN, "What Postgres was told, as a byte position", &of.confirmed_lsn),
            (names::SERVER_WAL_END_LSN, "The server's end of WAL, as a byte position", &of.server_wal_end_lsn),
            (names::SLOT_RESTART_LSN, "The slot's restart_lsn, as a byte position", &of.slot_restart_lsn),
        ];
        let mut gauge_u64 = |name: &str, help: &str, value: Option<u64>| match value {
            Some(value) => gauge(&mut encoder, name, help, ConstGauge::new(value)),
            None => Ok(()),
        };
        for (name, help, lsn) in lsns {
            gauge_u64(name, help, load(lsn))?;
        }
        gauge_u64(names::LAG_BYTES, "Bytes of WAL from what is confirmed to the server's end", of.lag_bytes())?;
        gauge_u64(names::RETAINED_WAL_BYTES, "Bytes of WAL that the slot keeps", of.retained_wal_bytes())?;
        let lag_help = "Seconds since the commit of the oldest event not acknowledged";
        gauge(&mut encoder, names::LAG_SECONDS, lag_help, ConstGauge::new(of.lag_seconds(now_us())))?;
        let uptime_seconds = of.started.elapsed().as_secs_f64();
        gauge(&mut encoder, names::UPTIME_SECONDS, "Seconds since the start", ConstGauge::new(uptime_seconds))
    }
}

fn gauge<V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    gauge: ConstGauge<V>,
) -> fmt::Result
where
    ConstGauge<V>: EncodeMetric,
{
    let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
    gauge.encode(metric)
}
