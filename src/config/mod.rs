//! The configuration that `walrelay run` uses: checked, in types that hold only valid values. Those
//! that the core reads are in `walrelay_core::config`.
//!
//! | module | contents |
//! |---|---|
//! | `model` | every key of the configuration file, its type, its default and the reason for it |
//! | `file` | the file and the values over it, read into the model; the origin of each value |
//! | `layers` | flag over environment over file over default; gives a valid `Config` |
//! | `nats` | checks of the servers of NATS and the login there |
//! | `otel` | the collector of spans |
//! | `rabbitmq` | checks of the servers of RabbitMQ and the login there |
//! | `servers` | lists of servers, and which hosts are this machine |
//! | `sink_kind` | the buses, and what each can do |
//! | `smtp` | checks of the mail server and the login there |
//! | `written` | configuration files that walrelay writes |

pub(crate) mod file;
pub(crate) mod layers;
pub(crate) mod model;
pub(crate) mod nats;
pub(crate) mod otel;
pub(crate) mod rabbitmq;
pub(crate) mod servers;
pub(crate) mod sink_kind;
pub(crate) mod smtp;
pub(crate) mod written;

pub use file::ConfigFile;
pub(crate) use layers::{Config, SourceConfig};
pub use layers::{Environment, Flags, Settings};
#[cfg(feature = "nats")]
pub(crate) use model::NatsConfig;
#[cfg(feature = "rabbitmq")]
pub(crate) use model::RabbitmqConfig;
pub use model::{KafkaConfig, SinkConfig, StreamConfig, WebhookConfig};
pub(crate) use model::{LogFormat, Mode, OverBudget, StateConfig, StoreKind};
#[cfg(feature = "smtp")]
pub(crate) use model::{MailValue, SmtpConfig, SmtpTls};
pub(crate) use otel::OtelConfig;
pub use sink_kind::{Bus, Endpoint, SinkKind};
