//! The configuration that `walrelay run` uses: checked, in types that hold only valid values.
//!
//! | module | contents |
//! |---|---|
//! | `model` | every key of the configuration file, its type, its default and the reason for it |
//! | `outbox` | the same for one outbox, and what follows from its keys |
//! | `text`, `unit` | what a text and a number may be |
//! | `file` | the file and the values over it, read into the model; the origin of each value |
//! | `layers` | flag over environment over file over default; from the model to a `Config` without contradictions |
//! | `otel` | the collector of spans |
//! | `written` | configuration files that walrelay writes |
//! | `name` | names of slots and tables, and SQL |

pub(crate) mod file;
pub(crate) mod layers;
pub(crate) mod model;
pub(crate) mod name;
pub(crate) mod otel;
pub(crate) mod outbox;
pub(crate) mod text;
pub(crate) mod unit;
pub(crate) mod written;

pub use file::ConfigFile;
pub(crate) use layers::{Config, SourceConfig};
pub use layers::{Environment, Flags, Settings};
pub(crate) use model::{
    Backlog, LogFormat, Mode, OnError, OnLoss, OverBudget, ReadTails, RetryConfig, SinkKind, StateConfig, StoreKind,
    max_attempts,
};
pub use model::{DeliveryConfig, Guarantee, KafkaConfig, StreamConfig, TransactionConfig};
pub(crate) use name::{SlotName, TableName};
pub(crate) use otel::OtelConfig;
pub(crate) use outbox::{
    CopiedRows, MESSAGE_CONTENT, MESSAGE_LSN, MESSAGE_PREFIX, NullHeaders, RowKey, Upkeep, ValueConfig,
};
pub use outbox::{EventSource, OutboxConfig};
