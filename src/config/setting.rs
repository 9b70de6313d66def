//! Every setting there is: its key, its flag, its variable, its default and why it is that.
//!
//! `docs/configuration.md` is held to this table by a test.

use std::time::Duration;

/// One thing that can be set.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its key in the file, with the tables it is in: `slot.name`.
    pub key: &'static str,
    /// Its flag, without the dashes, if it has one.
    pub flag: Option<&'static str>,
    /// What holds where nothing is set. `None`: it is required, or follows from something else.
    pub default: Option<&'static str>,
    /// What it may be.
    pub form: Form,
}

/// What a setting's value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Text; what reads it says what is allowed.
    Text,
    /// Bytes, both ends allowed.
    Bytes(u64, u64),
    /// A number, both ends allowed.
    Count(u64, u64),
    /// A duration, both ends allowed.
    Duration(Duration, Duration),
    /// One of these words.
    OneOf(&'static [&'static str]),
}

impl Setting {
    /// Its environment variable: the flag's name in capitals, or the key's where there is no flag.
    pub fn variable(&self) -> String {
        let name = self.flag.unwrap_or(self.key);
        let mut variable = String::from("WALRELAY_");
        variable.extend(name.chars().map(|c| if matches!(c, '.' | '-') { '_' } else { c.to_ascii_uppercase() }));
        variable
    }

    /// How to set it, in one line.
    pub fn how_to_set(&self) -> String {
        let (table, key) = self.key.rsplit_once('.').unwrap_or(("", self.key));
        let flag = self.flag.map(|flag| format!("--{flag}, ")).unwrap_or_default();
        format!("{flag}{} or `{key}` in [{table}] of the configuration file", self.variable())
    }
}

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

const fn text(key: &'static str, flag: Option<&'static str>, default: Option<&'static str>) -> Setting {
    Setting { key, flag, default, form: Form::Text }
}

/// How to reach Postgres. No default of ours: without it the `PG*` variables and their own defaults hold, so that
/// whatever works with `psql` works here.
pub const DATABASE_URL: Setting = text("database.url", Some("database-url"), None);

/// The slot. Required: two relays on one slot would throw each other out, so nobody gets one by accident.
pub const SLOT: Setting = text("slot.name", Some("slot"), None);

/// The publication. Follows from the slot's name, because `setup` makes the two together.
pub const PUBLICATION: Setting = text("slot.publication", Some("publication"), None);

/// `wal_sender_timeout` of our session. Ten seconds: a dead server, or a dead relay that still holds the slot, is
/// noticed within ten seconds instead of Postgres' sixty, for one small message every three.
pub const WAL_SENDER_TIMEOUT: Setting =
    Setting { key: "slot.wal_sender_timeout", flag: None, default: Some("10s"), form: Form::Duration(SECOND, HOUR) };

/// Largest message taken from the server. 64 MiB: sixty times what a broker takes by default, and small enough that
/// one row cannot take the process down. Postgres itself ends at 1 GiB.
pub const MAX_MESSAGE_BYTES: Setting =
    Setting { key: "slot.max_message_bytes", flag: None, default: Some("64MiB"), form: Form::Bytes(64 * KIB, GIB) };

/// Where events come from. The slot: what polling costs is not paid by anybody who did not ask for it.
pub const MODE: Setting = Setting {
    key: "slot.mode",
    flag: Some("mode"),
    default: Some("slot"),
    form: Form::OneOf(&["slot", "poll", "auto"]),
};
/// What becomes of events whose slot is gone. Recovered: the table still has them, and knows which.
pub const ON_SLOT_LOSS: Setting = Setting {
    key: "slot.on_loss",
    flag: Some("on-slot-loss"),
    default: Some("recover"),
    form: Form::OneOf(&["recover", "stop"]),
};
/// What of the rows that were there first is published. Follows: those that are pending where that is said, else all.
pub const BACKLOG: Setting = text("slot.backlog", Some("backlog"), None);
/// How much log the slot may keep. No bound of ours: the server has one of its own, `max_slot_wal_keep_size`.
pub const MAX_RETAINED_BYTES: Setting = Setting {
    key: "slot.max_retained_bytes",
    flag: Some("max-retained-bytes"),
    default: None,
    form: Form::Bytes(MIB, 64 * 1024 * GIB),
};
/// What becomes of a slot that keeps more. It stays: giving it up is for those who fear for the disk more.
pub const OVER_BUDGET: Setting = Setting {
    key: "slot.over_budget",
    flag: Some("over-budget"),
    default: Some("unready"),
    form: Form::OneOf(&["unready", "give-up"]),
};

/// How long a poller waits for more while there is some. A fifth of a second: what a person does not notice, at five
/// small queries a second.
pub const POLL_INTERVAL: Setting = Setting {
    key: "poll.interval",
    flag: None,
    default: Some("200ms"),
    form: Form::Duration(Duration::from_millis(10), HOUR),
};
/// How long it waits once nothing came for a while. Two seconds: an idle table costs next to nothing.
pub const POLL_IDLE_INTERVAL: Setting = Setting {
    key: "poll.idle_interval",
    flag: None,
    default: Some("2s"),
    form: Form::Duration(Duration::from_millis(10), HOUR),
};
/// How often pending rows are looked for while the slot serves. Two seconds: whoever asks for a row again waits for it.
pub const PENDING_INTERVAL: Setting = Setting {
    key: "poll.pending_interval",
    flag: None,
    default: Some("2s"),
    form: Form::Duration(Duration::from_millis(100), HOUR),
};

/// The outbox table. `public.outbox`: what `setup --create-table` makes.
pub const TABLE: Setting = text("outbox.table", Some("table"), Some("public.outbox"));

/// Prefix of `pg_logical_emit_message`. None: rows of a table are events, messages are not.
pub const MESSAGE_PREFIX: Setting = text("outbox.message_prefix", None, None);

/// Which rows were not published yet, as SQL. None: the table has no column that says so.
pub const PENDING: Setting = text("outbox.pending", None, None);
/// In which order rows are read from the table, as SQL. Follows: an identity or serial column, or an integer id.
pub const ORDER_BY: Setting = text("outbox.order_by", None, None);
/// Column with the time of the event, for ranges and retention. Follows: `created_at` and its like.
pub const TIME: Setting = text("outbox.time", None, None);
/// What is set in a row once it was acked, as SQL assignments. Nothing: walrelay writes to no table that is not its own.
pub const MARK: Setting = text("outbox.mark", None, None);
/// What is set on a row that was given up. Nothing: where rows say that they are pending, it has to be said.
pub const MARK_FAILED: Setting = text("outbox.mark_failed", None, None);
/// What is set on a row each time its event was tried and waits. Nothing: a row stays pending while its event waits.
pub const MARK_WAITING: Setting = text("outbox.mark_waiting", None, None);
/// Whether a row goes once it was acked. Never: the table is what everything can be recovered from.
pub const DELETE: Setting =
    Setting { key: "outbox.delete", flag: None, default: Some("never"), form: Form::OneOf(&["never", "acked"]) };
/// How long published rows are kept. For ever: deleting is for those who say so.
pub const RETENTION: Setting = Setting {
    key: "outbox.retention",
    flag: None,
    default: None,
    form: Form::Duration(SECOND, Duration::from_secs(10 * 366 * 24 * 3600)),
};
/// Channel of `NOTIFY` that says there are new rows. None: a poller looks now and then.
pub const NOTIFY: Setting = text("outbox.notify", None, None);

/// Column of the event's id. This name and the four below are those of Debezium's Outbox Event Router, so that a
/// table made for it works unchanged.
pub const COLUMN_ID: Setting = text("outbox.columns.id", None, Some("id"));
/// Column that selects the topic.
pub const COLUMN_AGGREGATE_TYPE: Setting = text("outbox.columns.aggregatetype", None, Some("aggregatetype"));
/// Column of the record's key.
pub const COLUMN_AGGREGATE_ID: Setting = text("outbox.columns.aggregateid", None, Some("aggregateid"));
/// Column of the event's type.
pub const COLUMN_TYPE: Setting = text("outbox.columns.type", None, Some("type"));
/// Column of the record's value.
pub const COLUMN_PAYLOAD: Setting = text("outbox.columns.payload", None, Some("payload"));
/// Column with how often the event is tried. None: all are tried alike.
pub const COLUMN_MAX_ATTEMPTS: Setting = text("outbox.columns.max_attempts", None, None);

/// Text before the aggregate type in the topic. The Outbox Event Router's: consumers need not change.
pub const TOPIC_PREFIX: Setting = text("route.topic_prefix", None, Some("outbox.event."));
/// The topic as a template. Follows from the prefix and the column of the aggregate type, which serve most tables.
pub const TOPIC: Setting = text("route.topic", None, None);
/// The key as a template. Follows from the column of the aggregate id: events of one aggregate keep their order.
pub const KEY: Setting = text("route.key", None, None);
/// Header with the event's id. The Outbox Event Router's: consumers that drop duplicates by it need not change.
pub const ID_HEADER: Setting = text("route.id_header", None, Some("id"));
/// Header with the event's place in the log. On: it costs some sixty bytes, and answers where a record is from.
pub const POSITION_HEADER: Setting = text("route.position_header", None, Some("walrelay-position"));
/// A JSON object with a header in each of its members. None: headers are named one by one.
pub const HEADERS_FROM: Setting = text("route.headers_from", None, None);
/// What becomes of a header whose value is NULL. Kept, without a value: that is what the Outbox Event Router does.
pub const NULL_HEADERS: Setting =
    Setting { key: "route.null_headers", flag: None, default: Some("keep"), form: Form::OneOf(&["keep", "omit"]) };
/// Column with the partition. None: the key decides, as everywhere.
pub const PARTITION: Setting = text("route.partition", None, None);
/// Column with the record's timestamp. None: the time it is produced, which is what consumers of a topic expect.
pub const TIMESTAMP: Setting = text("route.timestamp", None, None);

/// The value as a template. Follows from the column of the payload, which goes out as it stands.
pub const VALUE: Setting = text("format.value", None, None);
/// Whether a NULL payload makes a tombstone of an envelope. No: an envelope tells consumers more than its payload.
pub const TOMBSTONE: Setting = Setting {
    key: "format.tombstone",
    flag: None,
    default: Some("never"),
    form: Form::OneOf(&["never", "null-payload"]),
};

/// `bootstrap.servers`. Required: there is no broker anybody could guess.
pub const BROKERS: Setting = text("kafka.brokers", Some("brokers"), None);

/// Bytes in flight. 32 MiB: the product of 100 MiB/s and a slow ack of 300 ms, and less than a small container has.
pub const MAX_IN_FLIGHT_BYTES: Setting = Setting {
    key: "kafka.max_in_flight_bytes",
    flag: None,
    default: Some("32MiB"),
    form: Form::Bytes(64 * KIB, 64 * GIB),
};

/// Events in flight. 100 000: librdkafka's own bound on its queue, which comes first only where more bytes are allowed.
pub const MAX_IN_FLIGHT_EVENTS: Setting = Setting {
    key: "kafka.max_in_flight_events",
    flag: None,
    default: Some("100000"),
    form: Form::Count(1, 10_000_000),
};

/// What becomes of an event that cannot be delivered. The relay stops: what is lost or reordered otherwise is for people
/// to decide.
pub const ON_ERROR: Setting = Setting {
    key: "delivery.on_error",
    flag: Some("on-error"),
    default: Some("stop"),
    form: Form::OneOf(&["stop", "park", "dead-letter", "skip"]),
};
/// How often a topic that refuses records is tried before that counts as for good. Ten times take a quarter of an hour:
/// long enough for somebody to be called and to grant a right.
pub const RETRY_ATTEMPTS: Setting =
    Setting { key: "delivery.retry_attempts", flag: None, default: Some("10"), form: Form::Count(0, 1_000_000) };
/// How long it is waited before the first of them.
pub const RETRY_BASE: Setting = Setting {
    key: "delivery.retry_base",
    flag: None,
    default: Some("1s"),
    form: Form::Duration(Duration::from_millis(100), HOUR),
};
/// By how much each wait is longer than the one before.
pub const RETRY_FACTOR: Setting =
    Setting { key: "delivery.retry_factor", flag: None, default: Some("2"), form: Form::Count(1, 10) };
/// No wait is longer.
pub const RETRY_CAP: Setting =
    Setting { key: "delivery.retry_cap", flag: None, default: Some("5m"), form: Form::Duration(SECOND, DAY) };
/// By how much a wait may be shorter by chance, so that what failed together is not tried together.
pub const RETRY_JITTER: Setting =
    Setting { key: "delivery.retry_jitter_percent", flag: None, default: Some("20"), form: Form::Count(0, 100) };
/// Topic of dead letters. One for all relays of a cluster: its records say where they are from.
pub const DEAD_LETTER_TOPIC: Setting = text("delivery.dead_letter_topic", None, Some("walrelay-dead-letters"));
/// Whether topics are read at start for what was published before a crash and not stored. Yes: a moment at start, and next
/// to no copies.
pub const READ_TAILS: Setting = Setting {
    key: "delivery.read_tails",
    flag: None,
    default: Some("at-start"),
    form: Form::OneOf(&["at-start", "never"]),
};

/// How often an event arrives. At least once: readers need no transactions, and an event arrives as soon as it is sent.
pub const GUARANTEE: Setting = Setting {
    key: "delivery.guarantee",
    flag: Some("guarantee"),
    default: Some("at-least-once"),
    form: Form::OneOf(&["at-least-once", "exactly-once"]),
};
/// What the transactional id begins with. Ours: whoever reads a list of them sees whose they are, and one ACL has all.
pub const TRANSACTIONAL_ID_PREFIX: Setting = text("delivery.transactional_id_prefix", None, Some("walrelay-"));
/// Events of one Kafka transaction. Ten thousand: a commit costs some hundredths of a second, and more hide it no better.
pub const TRANSACTION_MAX_EVENTS: Setting = Setting {
    key: "delivery.transaction_max_events",
    flag: None,
    default: Some("10000"),
    form: Form::Count(1, 1_000_000),
};
/// How long an event waits for others to be committed with it. A tenth of a second: what a commit costs is shared by
/// many, and a person does not notice. Where nothing follows, nothing waits.
pub const TRANSACTION_INTERVAL: Setting = Setting {
    key: "delivery.transaction_interval",
    flag: None,
    default: Some("100ms"),
    form: Form::Duration(Duration::from_millis(1), Duration::from_secs(300)),
};
/// How long a transaction may be open. Fifteen seconds: longer than a broker's election, and no longer do readers wait
/// behind a relay that is gone. Brokers allow fifteen minutes by default.
pub const TRANSACTION_TIMEOUT: Setting = Setting {
    key: "delivery.transaction_timeout",
    flag: None,
    default: Some("15s"),
    form: Form::Duration(Duration::from_secs(3), Duration::from_secs(900)),
};

/// Where the position is kept. Kafka: it needs no right to write in the database, and goes with the records.
pub const STATE_STORE: Setting = Setting {
    key: "state.store",
    flag: Some("state-store"),
    default: Some("kafka"),
    form: Form::OneOf(&["kafka", "postgres", "slot"]),
};
/// Topic of the Kafka store. One for all relays of a cluster; each has its own key in it.
pub const STATE_TOPIC: Setting = text("state.topic", None, Some("walrelay-state"));
/// Key in the store. Follows from the slot's name. Two *servers* with slots of one name need two keys.
pub const STATE_KEY: Setting = text("state.key", None, None);

/// Address of metrics and health. Off: nothing listens that nobody asked for.
pub const HTTP: Setting = text("http.listen", Some("http"), None);
/// Not ready after this long without progress. A minute: longer than a broker's election or a connection's back-off,
/// shorter than anybody's patience.
pub const READY_WITHIN: Setting = Setting {
    key: "http.ready_within",
    flag: None,
    default: Some("60s"),
    form: Form::Duration(SECOND, Duration::from_secs(24 * 3600)),
};

/// Form of log lines. Text: for the person who tries it; whoever ships logs says so.
pub const LOG_FORMAT: Setting = Setting {
    key: "log.format",
    flag: Some("log-format"),
    default: Some("text"),
    form: Form::OneOf(&["text", "json"]),
};
/// What is logged. `info`: start, stop, faults and their end; nothing per event.
pub const LOG_FILTER: Setting = text("log.filter", Some("log"), Some("info"));

/// How long a stop waits for acks. Thirty seconds: longer than a broker's election. Whatever kills after a grace period
/// of its own has to wait a little longer than this.
pub const SHUTDOWN_TIMEOUT: Setting = Setting {
    key: "shutdown.timeout",
    flag: Some("shutdown-timeout"),
    default: Some("30s"),
    form: Form::Duration(Duration::ZERO, HOUR),
};

/// The table of an outbox; as a list of tables, several outboxes.
pub const OUTBOX: &str = "outbox";
/// Table whose keys are names of headers, and whose values are templates.
pub const HEADERS: &str = "route.headers";
/// Table whose keys are the members of an envelope, and whose values are templates.
pub const ENVELOPE: &str = "format.envelope";
/// Table whose keys are librdkafka's.
pub const KAFKA_PROPERTIES: &str = "kafka.properties";
/// Variables with this prefix set librdkafka properties: `WALRELAY_KAFKA_PROPERTY_SASL_PASSWORD` is `sasl.password`.
pub const KAFKA_PROPERTY_VARIABLE: &str = "WALRELAY_KAFKA_PROPERTY_";
/// Variable that names the configuration file.
pub const CONFIG_VARIABLE: &str = "WALRELAY_CONFIG";

/// All of them, in the order of the file.
pub const ALL: &[Setting] = &[
    DATABASE_URL,
    SLOT,
    PUBLICATION,
    WAL_SENDER_TIMEOUT,
    MAX_MESSAGE_BYTES,
    MODE,
    ON_SLOT_LOSS,
    BACKLOG,
    MAX_RETAINED_BYTES,
    OVER_BUDGET,
    POLL_INTERVAL,
    POLL_IDLE_INTERVAL,
    PENDING_INTERVAL,
    TABLE,
    MESSAGE_PREFIX,
    PENDING,
    ORDER_BY,
    TIME,
    MARK,
    MARK_FAILED,
    MARK_WAITING,
    DELETE,
    RETENTION,
    NOTIFY,
    COLUMN_ID,
    COLUMN_AGGREGATE_TYPE,
    COLUMN_AGGREGATE_ID,
    COLUMN_TYPE,
    COLUMN_PAYLOAD,
    COLUMN_MAX_ATTEMPTS,
    TOPIC_PREFIX,
    TOPIC,
    KEY,
    ID_HEADER,
    POSITION_HEADER,
    HEADERS_FROM,
    NULL_HEADERS,
    PARTITION,
    TIMESTAMP,
    VALUE,
    TOMBSTONE,
    BROKERS,
    MAX_IN_FLIGHT_BYTES,
    MAX_IN_FLIGHT_EVENTS,
    ON_ERROR,
    DEAD_LETTER_TOPIC,
    RETRY_ATTEMPTS,
    RETRY_BASE,
    RETRY_FACTOR,
    RETRY_CAP,
    RETRY_JITTER,
    READ_TAILS,
    GUARANTEE,
    TRANSACTIONAL_ID_PREFIX,
    TRANSACTION_MAX_EVENTS,
    TRANSACTION_INTERVAL,
    TRANSACTION_TIMEOUT,
    STATE_STORE,
    STATE_TOPIC,
    STATE_KEY,
    HTTP,
    READY_WITHIN,
    LOG_FORMAT,
    LOG_FILTER,
    SHUTDOWN_TIMEOUT,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_named_after_the_flag_or_else_the_key() {
        assert_eq!(DATABASE_URL.variable(), "WALRELAY_DATABASE_URL");
        assert_eq!(BROKERS.variable(), "WALRELAY_BROKERS");
        assert_eq!(STATE_STORE.variable(), "WALRELAY_STATE_STORE");
        assert_eq!(MAX_MESSAGE_BYTES.variable(), "WALRELAY_SLOT_MAX_MESSAGE_BYTES");
    }

    #[test]
    fn no_two_settings_share_a_key_or_a_variable() {
        let mut seen = std::collections::BTreeSet::new();
        for setting in ALL {
            assert!(seen.insert(setting.key.to_owned()), "{} is there twice", setting.key);
            assert!(seen.insert(setting.variable()), "{} is there twice", setting.variable());
        }
    }

    #[test]
    fn the_manual_names_every_setting_with_its_variable_flag_and_default() {
        let manual = include_str!("../../docs/configuration.md");
        for setting in ALL {
            let key = setting.key.rsplit('.').next().unwrap();
            let row = manual.lines().find(|line| {
                line.starts_with(&format!("| `{key}` |")) && line.contains(&format!("`{}`", setting.variable()))
            });
            let row = row.unwrap_or_else(|| panic!("docs/configuration.md has no row for {}", setting.key));
            if let Some(flag) = setting.flag {
                assert!(row.contains(&format!("`--{flag}`")), "the row of {} lacks its flag", setting.key);
            }
            if let Some(default) = setting.default {
                assert!(row.contains(&format!("`{default}`")), "the row of {} lacks its default", setting.key);
            }
        }
    }
}
