//! What Kafka takes for the name of a topic.

use std::collections::HashMap;

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
    /// It has the relay's position, or dead letters.
    #[error("is one of walrelay's own topics, for its position and for dead letters")]
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

/// `name` as a topic, if Kafka takes it.
///
/// The rule is that of `org.apache.kafka.common.internals.Topic`: 1 to 249 of `[a-zA-Z0-9._-]`, not `.`, not `..`.
pub(super) fn checked(name: &[u8]) -> Result<&str, TopicProblem> {
    let bytes = name.len();
    if bytes > TOPIC_BYTES_MAX {
        return Err(TopicProblem::TooLong { bytes });
    }
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if !name.iter().all(legal) {
        return Err(TopicProblem::Characters);
    }
    match std::str::from_utf8(name) {
        Err(_) => Err(TopicProblem::Characters),
        Ok("") => Err(TopicProblem::Empty),
        Ok("." | "..") => Err(TopicProblem::Dots),
        Ok(topic) => Ok(topic),
    }
}

/// How many topics are kept ready. Beyond it all are forgotten and made again as they come: what makes them comes from
/// rows, and rows must not be able to grow memory (P4, P11). Far more topics than an outbox should have.
const TOPICS_MAX: usize = 1024;

/// Topics by what makes them: the one column of the template, or the topic itself where there are several.
#[derive(Debug, Default)]
pub(super) struct Topics {
    topics: Vec<String>,
    known: HashMap<Box<[u8]>, usize>,
    /// The one that NULL makes.
    of_null: Option<usize>,
}

impl Topics {
    /// Which topic this makes, if it came before; `None` is NULL.
    #[inline]
    pub(super) fn find(&self, made_of: Option<&[u8]>) -> Option<usize> {
        match made_of {
            Some(made_of) => self.known.get(made_of).copied(),
            None => self.of_null,
        }
    }

    /// The topic with this number.
    #[inline]
    pub(super) fn name(&self, number: usize) -> &str {
        self.topics.get(number).map_or("", String::as_str)
    }

    /// Keeps `topic`, which is made of `made_of`, if Kafka takes it.
    #[cold]
    pub(super) fn learn(
        &mut self,
        made_of: Option<&[u8]>,
        topic: &[u8],
        reserved: &[String],
    ) -> Result<usize, TopicProblem> {
        let topic = checked(topic)?;
        if reserved.iter().any(|reserved| reserved == topic) {
            return Err(TopicProblem::Reserved);
        }
        if self.topics.len() >= TOPICS_MAX {
            self.topics.clear();
            self.known.clear();
            self.of_null = None;
        }
        let number = self.topics.len();
        self.topics.push(topic.to_owned());
        match made_of {
            Some(made_of) => {
                self.known.insert(made_of.into(), number);
            }
            None => self.of_null = Some(number),
        }
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_topic_is_what_kafka_takes_and_nothing_else() {
        for good in ["outbox.event.Order.v2_a-1", "outbox.event.", "...", &"y".repeat(249)] {
            assert_eq!(checked(good.as_bytes()), Ok(good));
        }
        assert_eq!(checked(b""), Err(TopicProblem::Empty));
        assert_eq!(checked(b"."), Err(TopicProblem::Dots));
        assert_eq!(checked(b".."), Err(TopicProblem::Dots));
        assert_eq!(checked("y".repeat(250).as_bytes()), Err(TopicProblem::TooLong { bytes: 250 }));
        for bad in [&b"a b"[..], b"a/b", b"a\0", b"a\n", "ä".as_bytes(), b"\xff", b"../x", b"a:b", b"a,b"] {
            assert_eq!(checked(bad), Err(TopicProblem::Characters), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_an_illegal_topic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(topic) = checked(&bytes) {
                prop_assert!((1..=249).contains(&topic.len()) && topic != "." && topic != "..");
                prop_assert!(topic.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)));
                prop_assert_eq!(topic.as_bytes(), &bytes);
            }
        }
    }

    #[test]
    fn ten_thousand_topics_do_not_grow_memory_and_what_is_refused_is_not_kept() {
        let mut topics = Topics::default();
        for round in 0..2 {
            for number in 0..10_000 {
                let name = format!("type-{number}");
                let at = topics.find(Some(name.as_bytes()));
                let at = at.unwrap_or_else(|| topics.learn(Some(name.as_bytes()), name.as_bytes(), &[]).unwrap());
                assert_eq!(topics.name(at), name, "round {round}");
                assert!(topics.topics.len() <= TOPICS_MAX && topics.known.len() == topics.topics.len());
                topics.learn(Some(format!("{name}!").as_bytes()), b"a b", &[]).unwrap_err();
            }
        }
    }

    #[test]
    fn walrelays_own_topics_are_refused() {
        let own = ["state", "dead"].map(str::to_owned);
        for topic in &own {
            assert_eq!(Topics::default().learn(Some(b"x"), topic.as_bytes(), &own), Err(TopicProblem::Reserved));
        }
    }
}
