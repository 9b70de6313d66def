//! What Kafka takes for the name of a topic.

/// Kafka's limit, so that a partition's directory and its suffixes fit a file name.
const TOPIC_BYTES_MAX: usize = 249;

/// Why a name cannot be a topic's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicProblem {
    /// It is empty.
    #[error("is empty")]
    Empty,
    /// It is `.` or `..`.
    #[error("is one of the names . and .., which Kafka refuses")]
    Dots,
    /// It keeps the relay's position.
    #[error("is the topic that keeps the relay's position")]
    Reserved,
    /// It is too long.
    #[error("has {bytes} bytes, and Kafka takes at most {TOPIC_BYTES_MAX}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It holds something else than `[a-zA-Z0-9._-]`.
    #[error("holds other characters than a-z, A-Z, 0-9, dot, underscore and hyphen, which are all Kafka takes")]
    Characters,
}

/// `prefix` and `aggregate_type` as one topic, if Kafka takes it.
///
/// The rule is that of `org.apache.kafka.common.internals.Topic`: 1 to 249 of `[a-zA-Z0-9._-]`, not `.`, not `..`.
pub(super) fn topic(prefix: &str, aggregate_type: &[u8]) -> Result<String, TopicProblem> {
    let bytes = prefix.len().saturating_add(aggregate_type.len());
    if bytes > TOPIC_BYTES_MAX {
        return Err(TopicProblem::TooLong { bytes });
    }
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if !prefix.as_bytes().iter().chain(aggregate_type).all(legal) {
        return Err(TopicProblem::Characters);
    }
    let aggregate_type = std::str::from_utf8(aggregate_type).map_err(|_| TopicProblem::Characters)?;
    let topic = format!("{prefix}{aggregate_type}");
    match topic.as_str() {
        "" => Err(TopicProblem::Empty),
        "." | ".." => Err(TopicProblem::Dots),
        _ => Ok(topic),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_topic_is_what_kafka_takes_and_nothing_else() {
        assert_eq!(topic("outbox.event.", b"Order.v2_a-1"), Ok("outbox.event.Order.v2_a-1".to_owned()));
        assert_eq!(topic("outbox.event.", b""), Ok("outbox.event.".to_owned()));
        assert_eq!(topic("", b"..."), Ok("...".to_owned()));
        assert_eq!(topic("", b""), Err(TopicProblem::Empty));
        assert_eq!(topic("", b"."), Err(TopicProblem::Dots));
        assert_eq!(topic(".", b"."), Err(TopicProblem::Dots));
        assert!(topic("x", "y".repeat(248).as_bytes()).is_ok());
        assert_eq!(topic("x", "y".repeat(249).as_bytes()), Err(TopicProblem::TooLong { bytes: 250 }));
        for bad in [&b"a b"[..], b"a/b", b"a\0", b"a\n", "ä".as_bytes(), b"\xff", b"../x", b"a:b", b"a,b"] {
            assert_eq!(topic("outbox.event.", bad), Err(TopicProblem::Characters), "{bad:?}");
        }
        assert_eq!(topic("outbox event.", b"order"), Err(TopicProblem::Characters));
    }

    proptest! {
        #[test]
        fn no_bytes_make_an_illegal_topic(prefix in "[a-z.]{0,5}", bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(topic) = topic(&prefix, &bytes) {
                prop_assert!((1..=249).contains(&topic.len()) && topic != "." && topic != "..");
                prop_assert!(topic.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)));
                prop_assert_eq!(topic.as_bytes(), [prefix.as_bytes(), &bytes].concat());
            }
        }
    }
}
