//! librdkafka's log: handed on without secrets, and what only a line of it says. No I/O.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::RDKafkaErrorCode;

use super::properties::Redactor;
use crate::sink::is_internal;

/// Writes a line of librdkafka's log to ours, with secrets taken out. What is an error to librdkafka is a warning here, because
/// librdkafka goes on.
pub(super) fn write(redactor: &Redactor, level: RDKafkaLogLevel, facility: &str, text: &str) {
    use RDKafkaLogLevel as Level;
    match level {
        Level::Emerg | Level::Alert | Level::Critical => {
            tracing::error!(target: "librdkafka", facility, "{}", redactor.clean(text));
        }
        Level::Error | Level::Warning => tracing::warn!(target: "librdkafka", facility, "{}", redactor.clean(text)),
        Level::Notice | Level::Info => tracing::info!(target: "librdkafka", facility, "{}", redactor.clean(text)),
        Level::Debug => {
            if tracing::enabled!(target: "librdkafka", tracing::Level::DEBUG) {
                tracing::debug!(target: "librdkafka", facility, "{}", redactor.clean(text));
            }
        }
    }
}

/// Facility of the lines that say of a topic that a transaction may not have it.
const DENIED_FACILITY: &str = "ADDPARTS";
/// What is in front of the topic's name, and behind it.
const AROUND: (&str, &str) = ("Failed to add partition \"", "\" [");
/// What such a line ends with.
const DENIED: &str = "Topic authorization failed";

/// Topics that were denied to a producer: the brokers keep their partitions out of a transaction.
///
/// librdkafka gives the whole transaction up then, and says of every record in it that it was purged. Only a line of its log
/// names the topic.
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
    let (_, after) = line.split_once(AROUND.0).filter(|_| facility == DENIED_FACILITY && line.ends_with(DENIED))?;
    after.split_once(AROUND.1).map(|(topic, _)| topic)
}

/// A commit is answered within milliseconds. One that took this long may have been sent twice without a word of that.
const SLOW: Duration = Duration::from_secs(5);

/// Facility of the lines in which librdkafka says that a connection has ended.
const ENDED_FACILITY: &str = "FAIL";
/// How the end of such a line says that the connection was one over which requests went.
const IN_USE: [&str; 2] = ["in state UP", "in state REAUTH"];
/// What all such lines say somewhere.
const IN_STATE: &str = "in state ";

/// Why a producer is not to begin another transaction, although its last one is known to be committed: something of it may
/// still be on its way.
///
/// librdkafka sends a commit again when the connection breaks before the answer. What went down with that connection may
/// reach the coordinator late, and without KIP-890 nothing tells it from the commit of whatever transaction that producer has
/// open by then: it would end that one, with half of its records. A new producer has a new epoch, which fences what is late.
///
/// librdkafka does not say what it sends again. It says that a connection broke, in a line of its log, and the second time
/// within half a minute it says nothing. So one such line is enough for all that comes after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    /// A connection broke that requests may have gone down with.
    Broke,
    /// A commit took this long.
    Slow(Duration),
}

impl Doubt {
    /// What follows from a line of librdkafka's log.
    pub(super) fn of_line(facility: &str, line: &str) -> Option<Doubt> {
        let in_use = || !line.contains(IN_STATE) || IN_USE.iter().any(|state| line.contains(state));
        (facility == ENDED_FACILITY && in_use()).then_some(Doubt::Broke)
    }

    /// What follows from a commit that was answered after so long.
    pub(super) fn of_commit(took: Duration) -> Option<Doubt> {
        (took >= SLOW).then_some(Doubt::Slow(took))
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::Broke => f.write_str("a connection to a broker broke"),
            Doubt::Slow(took) => write!(f, "a commit took {} ms", took.as_millis()),
        }
    }
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
        denied.note("ADDPARTS", &line("__consumer_offsets", DENIED));
        for (topic, code, reason) in [
            ("orders", PurgeQueue, Denial),
            ("orders", PurgeInflight, Denial),
            ("orders", MessageSizeTooLarge, MessageSizeTooLarge),
            ("__consumer_offsets", PurgeQueue, InvalidTopic),
            ("mail", PurgeQueue, PurgeQueue),
        ] {
            assert_eq!(denied.reason(topic, code), reason, "{topic} {code:?}");
        }
    }

    #[test]
    fn a_connection_that_broke_in_use_is_one_too_many_and_one_that_was_never_made_is_none() {
        for line in [
            "[thrd:TxnCoordinator]: TxnCoordinator: 127.0.0.1:9092: Disconnected: connection closed by peer (after 7ms in state UP)",
            "[thrd:b:1/1]: b:1/1: 1 request(s) timed out: disconnect (average rtt 1.2ms) (after 60009ms in state UP)",
            "[thrd:b:1/1]: b:1/1: Receive failed: Connection reset by peer (after 9ms in state UP, 3 identical error(s) suppressed)",
            "[thrd:b:1/1]: b:1/1: Disconnected (after 9ms in state REAUTH)",
            "a line that was cut off",
        ] {
            assert_eq!(Doubt::of_line("FAIL", line), Some(Doubt::Broke), "{line}");
            assert_eq!(Doubt::of_line("CONFWARN", line), None);
        }
        for line in [
            "[thrd:b:1/1]: b:1/1: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)",
            "[thrd:b:1/1]: b:1/1: Failed to resolve 'b:1': Name or service not known (after 1ms in state TRY_CONNECT)",
            "[thrd:b:1/1]: b:1/1: Disconnected: verify that security.protocol is right (after 1ms in state APIVERSION_QUERY)",
        ] {
            assert_eq!(Doubt::of_line("FAIL", line), None, "{line}");
        }
    }

    #[test]
    fn a_commit_that_took_long_counts() {
        assert_eq!(Doubt::of_commit(SLOW - Duration::from_millis(1)), None);
        assert_eq!(Doubt::of_commit(SLOW), Some(Doubt::Slow(SLOW)));
    }
}
