//! What a record is as a message of NATS.

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue};

use crate::config::Config;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::route::OwnedRecord;

const MESSAGE_ID: &str = "Nats-Msg-Id";
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
/// Headers that begin so are orders to the server: one of them empties a stream.
const OF_THE_SERVER: &str = "nats-";
const REPLAY: &str = "walrelay-replay";
/// The first token of subjects to which servers and clients answer.
const INBOX: &str = "_INBOX";

/// Makes the headers of messages.
#[derive(Debug)]
pub(super) struct Messages {
    /// The relay's own key: no two relays have the same.
    relay: String,
    stream: Option<HeaderValue>,
    id_headers: Vec<String>,
    position_headers: Vec<String>,
}

impl Messages {
    pub(super) fn new(config: &Config) -> Result<Messages> {
        let name = config.nats.stream.as_str();
        let is_name = !name.contains(|char: char| {
            char.is_whitespace() || char.is_control() || ".*>/\\".contains(char)
        });
        let stream = (!name.is_empty()).then(|| name.parse().ok().filter(|_| is_name));
        if matches!(stream, Some(None)) {
            return Err(
                Error::new(Kind::Config, "nats.stream is no name of a stream")
                    .remedy("write the name, which has no blank and none of . * > / \\"),
            );
        }
        let routes = || config.outboxes.iter().map(|outbox| &outbox.route);
        let ids = routes().filter_map(|route| route.id_header.clone());
        let positions = routes().filter_map(|route| route.position_header.clone());
        Ok(Messages {
            relay: config.state.key.clone(),
            stream: stream.flatten(),
            id_headers: ids.collect(),
            position_headers: positions.collect(),
        })
    }

    /// The headers of the message, and whether it has an id.
    ///
    /// The id names one event at one place: relay, place, id and topic. Servers swallow a message
    /// whose id they know. So an event of another outbox, of another relay or of another cluster
    /// has another id, and so has a dead letter. A replay has none: it is to be stored again.
    pub(super) fn headers(&self, record: &OwnedRecord) -> Result<(HeaderMap, bool)> {
        let mut headers = HeaderMap::new();
        for (name, value) in &record.headers {
            let value = value
                .as_deref()
                .map(|value| text(name, value))
                .transpose()?;
            check_name(name)?;
            let Some(value) = value else { continue };
            headers.append(header_name(name)?, header_value(name, value)?);
        }
        if let Some(stream) = &self.stream {
            headers.insert(header_name(EXPECTED_STREAM)?, stream.clone());
        }
        let id = self.message_id(record);
        if let Some(id) = &id {
            headers.insert(header_name(MESSAGE_ID)?, header_value(MESSAGE_ID, id)?);
        }
        Ok((headers, id.is_some()))
    }

    fn message_id(&self, record: &OwnedRecord) -> Option<String> {
        let is_replay = record.headers.iter().any(|(name, _)| name == REPLAY);
        let position = value_of(record, &self.position_headers).filter(|_| !is_replay)?;
        let id = value_of(record, &self.id_headers).unwrap_or_default();
        let (relay, topic) = (&self.relay, &record.topic);
        Some(format!("{position} {relay} {topic} {id}"))
    }
}

/// The value of the first header that has one of these names.
fn value_of<'a>(record: &'a OwnedRecord, names: &[String]) -> Option<&'a str> {
    let mut headers = record.headers.iter();
    let (_, value) = headers.find(|(name, _)| names.contains(name))?;
    std::str::from_utf8(value.as_deref()?).ok()
}

/// The bytes of the headers, as they are sent.
pub(super) fn bytes(headers: &HeaderMap) -> usize {
    const FIRST_AND_LAST_LINE: usize = "NATS/1.0\r\n\r\n".len();
    let of = |(name, value): (&HeaderName, &HeaderValue)| {
        let name: &str = name.as_ref();
        name.len() + ": \r\n".len() + value.as_str().len()
    };
    let each = headers.iter();
    let each = each.flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    FIRST_AND_LAST_LINE + each.map(of).sum::<usize>()
}

/// Errors: no message can have this subject.
pub(super) fn check_subject(topic: &str) -> Result<()> {
    let is_token = |token: &str| {
        !token.is_empty()
            && !token.contains(|char: char| {
                char.is_whitespace() || char.is_control() || matches!(char, '*' | '>')
            })
    };
    let mut tokens = topic.split('.');
    let first = topic.split('.').next().unwrap_or_default();
    if tokens.all(is_token) && first != INBOX && !first.starts_with('$') {
        return Ok(());
    }
    let cause = format!("topic {topic:?} cannot be a subject of NATS");
    Err(Error::new(Kind::Record, cause).remedy(
        "correct the columns of route.topic: a subject has tokens with dots between, without \
         blanks, * and >, and the first is not _INBOX and has no $",
    ))
}

/// Errors: no message can have a header of this name.
pub(super) fn check_name(name: &str) -> Result<()> {
    let begin = name.get(..OF_THE_SERVER.len());
    if begin.is_some_and(|begin| begin.eq_ignore_ascii_case(OF_THE_SERVER)) {
        let cause = format!("header {name:?} would be an order to the NATS server");
        let remedy = "give it another name in [route.headers], or in what route.headers_from reads";
        return Err(Error::new(Kind::Record, cause).remedy(remedy));
    }
    header_name(name).map(drop)
}

/// The value as text. Errors: no message can have a header with it.
pub(super) fn text<'a>(name: &str, value: &'a [u8]) -> Result<&'a str> {
    let text = std::str::from_utf8(value).ok();
    let text = text.filter(|text| !text.contains(['\r', '\n']));
    text.ok_or_else(|| not_carried(name))
}

fn header_name(name: &str) -> Result<HeaderName> {
    let parsed = name.parse().ok().filter(|_| !name.is_empty());
    parsed.ok_or_else(|| {
        let cause = format!("header {name:?} has a name that NATS cannot carry");
        let remedy = "name it with ASCII letters, digits and hyphens";
        Error::new(Kind::Record, cause).remedy(remedy)
    })
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue> {
    value.parse().map_err(|_| not_carried(name))
}

fn not_carried(name: &str) -> Error {
    let cause = format!("header {name:?} has a value that NATS cannot carry");
    Error::new(Kind::Record, cause)
        .remedy("make the header of text without line breaks, or put it into the value")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(relay: &str) -> Messages {
        Messages {
            relay: relay.to_owned(),
            stream: None,
            id_headers: vec!["id".to_owned()],
            position_headers: vec!["walrelay-position".to_owned()],
        }
    }

    fn record(topic: &str, headers: &[(&str, &str)]) -> OwnedRecord {
        let headers = headers.iter();
        OwnedRecord {
            topic: topic.to_owned(),
            key: None,
            value: None,
            headers: headers
                .map(|(name, value)| ((*name).to_owned(), Some(value.as_bytes().to_vec())))
                .collect(),
            partition: None,
            timestamp_ms: None,
        }
    }

    fn message_id(relay: &str, record: &OwnedRecord) -> Option<String> {
        let (headers, has_id) = messages(relay).headers(record).unwrap();
        let id = headers.get(MESSAGE_ID).map(ToString::to_string);
        assert_eq!(id.is_some(), has_id);
        id
    }

    #[test]
    fn no_two_events_have_one_message_id() {
        let at = |position| [("id", "1"), ("walrelay-position", position)];
        let one = message_id("a", &record("t", &at("7:1:0/1:0")));
        assert_eq!(one.as_deref(), Some("7:1:0/1:0 a t 1"));
        for (relay, topic, headers) in [
            ("b", "t", at("7:1:0/1:0")),
            ("a", "u", at("7:1:0/1:0")),
            ("a", "t", at("7:1:0/1:1")),
            ("a", "t", at("8:1:0/1:0")),
            ("a", "t", [("id", "2"), ("walrelay-position", "7:1:0/1:0")]),
        ] {
            let other = message_id(relay, &record(topic, &headers));
            assert!(other.is_some() && other != one, "{other:?}");
        }
    }

    #[test]
    fn what_has_no_place_or_is_a_replay_has_no_message_id() {
        assert_eq!(message_id("a", &record("t", &[("id", "1")])), None);
        let replay = [
            ("id", "1"),
            ("walrelay-position", "7:1:0/1:0"),
            ("walrelay-replay", "1"),
        ];
        assert_eq!(message_id("a", &record("t", &replay)), None);
    }

    #[test]
    fn a_header_that_cannot_be_carried_refuses_the_record() {
        for (name, value) in [
            ("a", "x\r\nNats-Rollup: all"),
            ("a\nb", "x"),
            ("a:b", "x"),
            ("", "x"),
            ("nats-rollup", "all"),
            ("Nats-Msg-Id", "1"),
        ] {
            let error = messages("a")
                .headers(&record("t", &[(name, value)]))
                .unwrap_err();
            assert_eq!(error.kind(), Kind::Record, "{name}");
        }
        assert!(text("a", b"\xff").is_err());
    }

    #[test]
    fn a_subject_has_whole_tokens_and_is_nobodys_own() {
        for (topic, fits) in [
            ("orders", true),
            ("events.order.created", true),
            ("a..b", false),
            (".a", false),
            ("a.", false),
            ("", false),
            ("a.*", false),
            ("a.>", false),
            ("a b", false),
            ("a\tb", false),
            ("$JS.API.STREAM.DELETE.x", false),
            ("_INBOX.x.1", false),
        ] {
            assert_eq!(check_subject(topic).is_ok(), fits, "{topic:?}");
        }
    }
}
