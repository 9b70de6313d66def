//! The names of all metrics, in one place: dashboards and alerts are written against them, so none is ever renamed.
//!
//! As exposed they carry the prefix, and counters end in `_total`.

pub(super) const PREFIX: &str = "walrelay";

pub(super) const RECEIVED_BYTES: &str = "received_bytes";
pub(super) const RECEIVED_MESSAGES: &str = "received_messages";
pub(super) const DECODED_MESSAGES: &str = "decoded_messages";
pub(super) const ASSEMBLED_EVENTS: &str = "assembled_events";
pub(super) const ROUTED_EVENTS: &str = "routed_events";
pub(super) const ENQUEUED_EVENTS: &str = "enqueued_events";
pub(super) const ACKED_EVENTS: &str = "acked_events";
pub(super) const DEAD_LETTERED_EVENTS: &str = "dead_lettered_events";
pub(super) const PARKED_EVENTS: &str = "parked_events";
pub(super) const UNPARKED_EVENTS: &str = "unparked_events";
pub(super) const DROPPED_EVENTS: &str = "dropped_events";
pub(super) const WAITING_EVENTS: &str = "waiting_events";
pub(super) const WAITING_AGAIN_EVENTS: &str = "waiting_again_events";
pub(super) const SKIPPED_EVENTS: &str = "skipped_events";
pub(super) const DELIVERED_BEFORE_EVENTS: &str = "delivered_before_events";
pub(super) const ACKED_BYTES: &str = "acked_bytes";

pub(super) const RECEIVED_LSN: &str = "received_lsn";
pub(super) const STORED_LSN: &str = "stored_lsn";
pub(super) const CONFIRMED_LSN: &str = "confirmed_lsn";
pub(super) const SERVER_WAL_END_LSN: &str = "server_wal_end_lsn";
pub(super) const SLOT_RESTART_LSN: &str = "slot_restart_lsn";
pub(super) const LAG_BYTES: &str = "lag_bytes";
pub(super) const LAG_SECONDS: &str = "lag_seconds";
pub(super) const RETAINED_WAL_BYTES: &str = "retained_wal_bytes";

pub(super) const STANDING_BY: &str = "standing_by";
pub(super) const READS_TABLE: &str = "reads_table";
pub(super) const OLDEST_TRANSACTION_SECONDS: &str = "oldest_transaction_seconds";
pub(super) const OLDEST_TRANSACTION_PID: &str = "oldest_transaction_pid";

pub(super) const IN_FLIGHT_EVENTS: &str = "in_flight_events";
pub(super) const IN_FLIGHT_BYTES: &str = "in_flight_bytes";
pub(super) const QUEUE_FULL: &str = "queue_full";
pub(super) const KEEPALIVES: &str = "keepalives";
pub(super) const STATUS_UPDATES: &str = "status_updates";
pub(super) const POSITIONS_STORED: &str = "positions_stored";
pub(super) const CATALOG_CHECKS: &str = "catalog_checks";

pub(super) const RETRIES: &str = "retries";
pub(super) const RECONNECTS: &str = "reconnects";
pub(super) const CONNECTION_STATE: &str = "connection_state";
pub(super) const IGNORED_MESSAGES: &str = "ignored_messages";
pub(super) const ERRORS: &str = "errors";

pub(super) const COMMITTED_TRANSACTIONS: &str = "committed_transactions";
pub(super) const GIVEN_UP_TRANSACTIONS: &str = "given_up_transactions";
pub(super) const COMMITTED_EVENTS: &str = "committed_events";
pub(super) const TRANSACTION_COMMIT_SECONDS: &str = "transaction_commit_seconds";

pub(super) const COMMIT_TO_ACK_SECONDS: &str = "commit_to_ack_seconds";
pub(super) const UPTIME_SECONDS: &str = "uptime_seconds";
pub(super) const BUILD: &str = "build";
