//! The configuration that `walrelay run` uses: checked, in types that hold only valid values.
//!
//! | module | contents |
//! |---|---|
//! | `model` | every key of the configuration file, its default and the reason for it |
//! | `file` | the file and the values over it, read into the model; the origin of each value |
//! | `layers` | flag over environment over file over default, and from the model to a `Config` |
//! | `outbox` | the same for one outbox |
//! | `otel` | the collector of metrics and spans |
//! | `written` | configuration files that walrelay writes |
//! | `name`, `unit` | the types of values |

pub(crate) mod file;
pub(crate) mod layers;
pub(crate) mod model;
pub(crate) mod name;
pub(crate) mod otel;
pub(crate) mod outbox;
pub(crate) mod unit;
pub(crate) mod written;

pub use file::ConfigFile;
pub(crate) use layers::{Backlog, Config, RetryConfig, SourceConfig, max_attempts};
pub use layers::{DeliveryConfig, Environment, Flags, KafkaConfig, Settings, TransactionConfig};
pub(crate) use model::{Guarantee, LogFormat, Mode, OnError, OnLoss, OverBudget, SinkKind, StateConfig, StoreKind};
pub(crate) use name::{SlotName, TableName, is_topic};
pub(crate) use otel::OtelConfig;
pub use outbox::{EventSource, OutboxConfig};
pub(crate) use outbox::{MESSAGE_CONTENT, MESSAGE_LSN, MESSAGE_PREFIX, RowKey, Upkeep, ValueConfig};
