//! A consumer that reads for one purpose and leaves no trace.

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::options::Options;
use super::redact::Redactor;
use crate::error::Result;

/// Logs what librdkafka says; its errors come back from the calls.
pub(crate) struct Quiet(pub(crate) Redactor);

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        super::log(&self.0, level, facility, text);
    }

    fn error(&self, _: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", "{}", self.0.clean(reason));
    }
}

impl ConsumerContext for Quiet {}

/// Which records a client sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sees {
    /// Those before the first transaction that is open.
    Committed,
    /// All.
    All,
}

/// A consumer. `group` is a name only: nobody joins it, and nothing is committed in its name.
pub(crate) fn consumer(mut options: Options, group: &str, sees: Sees) -> Result<BaseConsumer<Quiet>> {
    let level = if sees == Sees::All { "read_uncommitted" } else { "read_committed" };
    options
        .client
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("isolation.level", level)
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error")
        .set("allow.auto.create.topics", "false");
    let context = Quiet(options.redactor.clone());
    options.client.create_with_context(context).map_err(|error| options.creation_error(&error))
}

/// librdkafka goes on by itself, or it is about the group, which is none of our business.
pub(crate) fn heals(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    let code = super::code(error);
    let about_group = [
        Code::GroupAuthorizationFailed,
        Code::NotCoordinator,
        Code::CoordinatorNotAvailable,
        Code::CoordinatorLoadInProgress,
    ];
    let passing = [Code::BrokerTransportFailure, Code::AllBrokersDown, Code::Resolve, Code::OperationTimedOut];
    about_group.contains(&code) || passing.contains(&code) || is_young(error)
}

/// Whether the partition has no leader yet, or another one by now. It was seen: what a broker does not know of, another has yet
/// to tell it.
pub(crate) fn is_young(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(super::code(error), Code::LeaderNotAvailable | Code::NotLeaderForPartition | Code::UnknownPartition)
}
