//! The router and the topics it knows.

use std::collections::HashMap;

use super::topic::topic;
use super::{Record, RouteError, TopicProblem};
use crate::config::RouteConfig;
use crate::event::{Event, Shown};

/// How many topics are kept ready. Beyond it all are forgotten and made again as they come: types come from rows, and
/// rows must not be able to grow memory (P4, P11). Far more topics than an outbox should have.
const TOPICS_MAX: usize = 1024;

/// Makes records of events.
#[derive(Debug)]
pub struct Router {
    prefix: String,
    id_header: String,
    reserved_topic: Option<String>,
    topics: Vec<String>,
    /// From aggregate type to the place in `topics`.
    known: HashMap<Box<[u8]>, usize>,
}

/// A routed event, which lends itself as a [`Record`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routed<'s> {
    topic: &'s str,
    key: Option<&'s [u8]>,
    value: Option<&'s [u8]>,
    headers: [(&'s str, Option<&'s [u8]>); 1],
}

impl Routed<'_> {
    /// The record, to be handed to the sink as often as it takes.
    #[inline]
    pub fn record(&self) -> Record<'_> {
        Record { topic: self.topic, key: self.key, value: self.value, headers: &self.headers }
    }
}

impl Router {
    /// Routes by these rules.
    pub fn new(config: &RouteConfig) -> Self {
        Router {
            prefix: config.topic_prefix.clone(),
            id_header: config.id_header.clone(),
            reserved_topic: config.reserved_topic.clone(),
            topics: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// The record of `event`: topic from its aggregate type, key and value as they are, its id as a header. Allocates
    /// nothing for an aggregate type that came before.
    ///
    /// # Errors
    /// [`RouteError`] if Kafka does not take the topic's name.
    #[inline]
    pub fn route<'s>(&'s mut self, event: &Event<'s>) -> Result<Routed<'s>, RouteError> {
        let known = self.known.get(event.aggregate_type).copied();
        let at = match known {
            Some(at) => at,
            None => self.learn(event)?,
        };
        let topic = self.topics.get(at).map_or("", String::as_str);
        debug_assert!(!topic.is_empty(), "every known aggregate type has its topic");
        Ok(Routed {
            topic,
            key: event.aggregate_id,
            value: event.payload,
            headers: [(&self.id_header, Some(event.id))],
        })
    }

    #[cold]
    fn learn(&mut self, event: &Event<'_>) -> Result<usize, RouteError> {
        let reserved = self.reserved_topic.as_deref();
        let topic = topic(&self.prefix, event.aggregate_type);
        let topic = topic
            .and_then(|topic| if Some(topic.as_str()) == reserved { Err(TopicProblem::Reserved) } else { Ok(topic) });
        let topic = topic.map_err(|problem| RouteError {
            place: event.place,
            id: Shown::of(event.id),
            aggregate_type: Shown::of(event.aggregate_type),
            prefix: Shown::of(self.prefix.as_bytes()),
            problem,
        })?;
        if self.topics.len() >= TOPICS_MAX {
            self.topics.clear();
            self.known.clear();
        }
        let at = self.topics.len();
        self.topics.push(topic);
        self.known.insert(event.aggregate_type.into(), at);
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::event::Place;
    use crate::position::Lsn;

    fn router() -> Router {
        Router::new(&RouteConfig {
            topic_prefix: "outbox.event.".into(),
            id_header: "id".into(),
            reserved_topic: Some("outbox.event.state".into()),
        })
    }

    fn event<'a>(id: &'a [u8], aggregate_type: &'a [u8]) -> Event<'a> {
        Event {
            place: Place { commit_lsn: Lsn::new(0x64), index: 3, committed_at_us: 0 },
            id,
            aggregate_type,
            aggregate_id: Some(b"o-1"),
            event_type: Some(b"Placed"),
            payload: Some(br#"{"b": 1, "a": 12.50}"#),
        }
    }

    #[test]
    fn a_record_is_what_debezium_makes_of_the_row() {
        let mut router = router();
        for _ in 0..2 {
            let routed = router.route(&event(b"7", b"Order.v1")).unwrap();
            let record = Record {
                topic: "outbox.event.Order.v1",
                key: Some(b"o-1"),
                value: Some(br#"{"b": 1, "a": 12.50}"#),
                headers: &[("id", Some(b"7"))],
            };
            assert_eq!(routed.record(), record);
        }
    }

    #[test]
    fn null_is_no_key_and_no_value_and_empty_is_both() {
        let mut router = router();
        let null = Event { aggregate_id: None, payload: None, ..event(b"7", b"order") };
        let routed = router.route(&null).unwrap();
        assert_eq!((routed.record().key, routed.record().value), (None, None));
        let empty = Event { aggregate_id: Some(b""), payload: Some(b""), ..event(b"7", b"order") };
        let routed = router.route(&empty).unwrap();
        assert_eq!((routed.record().key, routed.record().value), (Some(&b""[..]), Some(&b""[..])));
    }

    #[test]
    fn aggregate_types_are_kept_apart() {
        let mut router = router();
        for _ in 0..2 {
            for name in ["order", "Order", "", "customer"] {
                let event = event(b"7", name.as_bytes());
                assert_eq!(router.route(&event).unwrap().record().topic, format!("outbox.event.{name}"));
            }
        }
    }

    #[test]
    fn ten_thousand_aggregate_types_do_not_grow_memory() {
        let mut router = router();
        for round in 0..2 {
            for number in 0..10_000 {
                let name = format!("type-{number}");
                let event = event(b"7", name.as_bytes());
                let topic = router.route(&event).unwrap().record().topic.to_owned();
                assert_eq!(topic, format!("outbox.event.{name}"), "round {round}");
                assert!(router.topics.len() <= TOPICS_MAX && router.known.len() == router.topics.len());
            }
        }
        for number in 0..10_000 {
            let name = format!("type {number}");
            router.route(&event(b"7", name.as_bytes())).unwrap_err();
        }
        assert!(router.known.len() <= TOPICS_MAX, "what is refused is not kept");
    }

    #[test]
    fn a_type_that_makes_no_topic_is_an_error_that_names_the_row_and_shows_nothing_raw() {
        let hostile = [&b"a\n\x1b[2J"[..], &vec![b'x'; 100_000]].concat();
        let error = router().route(&event(b"7\0", &hostile)).unwrap_err();
        assert_eq!(error.problem, TopicProblem::TooLong { bytes: 13 + hostile.len() });
        let error = error.into_error(&"orders".parse().unwrap());
        assert_eq!(error.kind(), Kind::Event);
        let start =
            r#"slot orders: event at index 3 of the transaction at 0/64, row "7\0": aggregate type "a\n\u{1b}[2Jxxx"#;
        assert!(error.cause().starts_with(start), "{error}");
        assert!(error.cause().len() < 500 && !error.cause().contains(char::is_control), "{error}");
        let advance =
            "select pg_replication_slot_advance('orders', '0/64'::pg_lsn + 1), and start once with --adopt-slot";
        assert!(error.what_to_do().unwrap().contains(advance), "{error}");
    }

    #[test]
    fn the_topic_that_keeps_the_position_takes_no_event() {
        let mut router = router();
        let error = router.route(&event(b"1", b"state")).unwrap_err();
        assert_eq!(error.problem, TopicProblem::Reserved);
    }
}
