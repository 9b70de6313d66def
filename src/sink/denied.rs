//! Topics whose partitions the brokers keep out of a transaction. No I/O.
//!
//! librdkafka gives the whole transaction up then, and says of every record in it that it was purged. Which topic it was stands
//! in a line of its log alone.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use rdkafka::error::RDKafkaErrorCode;

/// Facility of the lines that say so.
const FACILITY: &str = "ADDPARTS";
/// What is in front of the topic's name, and behind it.
const AROUND: (&str, &str) = ("Failed to add partition \"", "\" [");
/// What such a line ends with.
const DENIED: &str = "Topic authorization failed";
/// Topics that nobody may write to. To a transaction the brokers deny them like those one has no right to.
const INTERNAL: [&str; 3] = ["__consumer_offsets", "__transaction_state", "__share_group_state"];

/// Whether it is one of Kafka's own, which take no records from anybody.
pub(crate) fn is_internal(topic: &str) -> bool {
    INTERNAL.contains(&topic)
}

/// Topics that were denied to a producer.
#[derive(Debug, Default)]
pub(super) struct Denied(Mutex<HashSet<String>>);

impl Denied {
    /// Takes in a line of librdkafka's log.
    pub(super) fn note(&self, facility: &str, line: &str) {
        if let Some(topic) = topic_of(facility, line) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(topic.to_owned());
        }
    }

    /// Why a record for `topic` was not delivered, of which librdkafka says this.
    pub(super) fn reason(&self, topic: &str, code: RDKafkaErrorCode) -> RDKafkaErrorCode {
        use RDKafkaErrorCode as Code;
        let is_purged = matches!(code, Code::PurgeQueue | Code::PurgeInflight);
        if !is_purged || !self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(topic) {
            return code;
        }
        if is_internal(topic) { Code::InvalidTopic } else { Code::TopicAuthorizationFailed }
    }
}

fn topic_of<'l>(facility: &str, line: &'l str) -> Option<&'l str> {
    let (_, after) = line.split_once(AROUND.0).filter(|_| facility == FACILITY && line.ends_with(DENIED))?;
    after.split_once(AROUND.1).map(|(topic, _)| topic)
}

#[cfg(test)]
mod tests {
    use RDKafkaErrorCode::{
        InvalidTopic, MessageSizeTooLarge, PurgeInflight, PurgeQueue, TopicAuthorizationFailed as Denial,
    };

    use super::*;

    #[test]
    fn of_the_records_of_a_transaction_those_of_a_denied_topic_say_why_it_failed() {
        let denied = Denied::default();
        let line = |topic: &str, why: &str| {
            format!(
                "[thrd:main]: TxnCoordinator/1: Failed to add partition \"{topic}\" [0] to transaction: Broker: {why}"
            )
        };
        denied.note("ADDPARTS", &line("mail", "Operation not attempted"));
        denied.note("TXNERR", &line("mail", DENIED));
        denied.note("ADDPARTS", "Topic authorization failed");
        denied.note("ADDPARTS", &line("orders", DENIED));
        denied.note("ADDPARTS", &line(INTERNAL[0], DENIED));
        for (topic, code, reason) in [
            ("orders", PurgeQueue, Denial),
            ("orders", PurgeInflight, Denial),
            ("orders", MessageSizeTooLarge, MessageSizeTooLarge),
            (INTERNAL[0], PurgeQueue, InvalidTopic),
            ("mail", PurgeQueue, PurgeQueue),
        ] {
            assert_eq!(denied.reason(topic, code), reason, "{topic} {code:?}");
        }
    }
}
