//! What a server says to one record.

use std::fmt;

use async_nats::{Message, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::config::{Bus, SinkKind};
use walrelay_core::error::{Error, Kind, Result};

const BUS: Bus = SinkKind::Nats.bus();
/// No ack and no list of streams is longer.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Nothing is that is told of a stream, which may have many subjects.
const INFO_BYTES_MAX: usize = 1 << 20;
/// No answer with a message is longer: 64 MiB, which no server exceeds, in base64.
pub(super) const MESSAGE_BYTES_MAX: usize = 96 << 20;
/// So many characters of what a server says are shown.
const SHOWN_CHARS: usize = 300;
/// `JSStreamMessageExceedsMaximumErr`
const TOO_LARGE: u32 = 10054;
/// `JSStreamHeaderExceedsMaximumErr`
const HEADERS_TOO_LARGE: u32 = 10097;
/// `JSStreamStoreFailedF`: most often, the stream is full and discards new messages.
const STORE_FAILED: u32 = 10077;
/// `JSStreamNotMatchErr`
const OTHER_STREAM: u32 = 10060;
/// `JSAccountResourcesExceededErr`
const ACCOUNT_FULL: u32 = 10002;
/// `JSNotEnabledErr`, `JSNotEnabledForAccountErr`
const NO_JETSTREAM: [u32; 2] = [10076, 10039];
/// The remedy where another stream takes a subject.
const OTHER: &str =
    "correct nats.stream, or the subjects of the streams: nats stream ls --subjects";

/// What a message to the inbox of an attempt says.
#[derive(Debug)]
pub(super) enum Said {
    /// A stream has the record.
    Stored,
    /// No stream takes the subject, or none that has a leader.
    NoStream,
    /// The stream does not take it, or not now.
    Refused(Error),
    /// Stream or account have no room.
    Full(Error),
}

/// Who takes a subject, as JetStream says.
#[derive(Debug)]
pub(super) enum Taking {
    /// No stream does, or this account has no JetStream.
    Nobody,
    /// This one.
    Stream(String),
    /// It does not know now, for this reason.
    Unknown(String),
}

#[derive(Deserialize)]
struct PubAck {
    seq: Option<u64>,
    #[serde(default)]
    duplicate: bool,
    error: Option<Failure>,
}

#[derive(Deserialize)]
struct Names {
    streams: Option<Vec<String>>,
    error: Option<Failure>,
}

/// Of a stream.
#[derive(Deserialize)]
struct Info {
    error: Option<Failure>,
}

/// An error, as JetStream writes it.
#[derive(Deserialize)]
pub(super) struct Failure {
    #[serde(default)]
    code: u32,
    #[serde(default)]
    pub(super) err_code: u32,
    #[serde(default)]
    description: String,
}

/// The JSON of an answer; none where it is longer, or no such JSON.
pub(super) fn read<T: DeserializeOwned>(message: &Message, bytes_max: usize) -> Option<T> {
    let payload = message.payload.as_ref();
    let payload = (payload.len() <= bytes_max).then_some(payload)?;
    serde_json::from_slice(payload).ok()
}

/// `has_id`: the record was sent with an id that names this very event.
pub(super) fn said(message: &Message, topic: &str, has_id: bool) -> Said {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Said::NoStream;
    }
    match read(message, ANSWER_BYTES_MAX) {
        Some(PubAck {
            error: Some(failure),
            ..
        }) if [STORE_FAILED, ACCOUNT_FULL].contains(&failure.err_code) => {
            Said::Full(later(topic, &failure.to_string()))
        }
        Some(PubAck {
            error: Some(failure),
            ..
        }) => Said::Refused(failed(&failure, topic)),
        Some(PubAck {
            seq: Some(1..),
            duplicate,
            ..
        }) if has_id || !duplicate => Said::Stored,
        _ => Said::Refused(refused(
            topic,
            "what answers there is no stream",
            "see who subscribes to the subject, and create a stream for it",
        )),
    }
}

/// As much of what a server says as is shown.
pub(super) fn head(said: &str) -> String {
    said.chars().take(SHOWN_CHARS).collect()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (error {})", head(&self.description), self.err_code)
    }
}

fn failed(failure: &Failure, topic: &str) -> Error {
    let cause = failure.to_string();
    match (failure.err_code, failure.code) {
        (TOO_LARGE, _) => too_large(topic, &cause),
        (HEADERS_TOO_LARGE, _) => headers_too_large(topic, &cause),
        (OTHER_STREAM, _) => refused(topic, &cause, OTHER),
        (_, 429 | 500..) => later(topic, &cause),
        _ => {
            let remedy = "see the stream's configuration: nats stream info";
            refused(topic, &cause, remedy)
        }
    }
}

/// What JetStream says to the question for this stream.
pub(super) fn existing(message: &Message, stream: &str) -> Result<String> {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(no_jetstream(stream));
    }
    match read(message, INFO_BYTES_MAX) {
        Some(Info { error: None }) => Ok("the stream exists".to_owned()),
        Some(Info {
            error: Some(failure),
        }) => {
            let create = BUS.create_topic.replace("NAME", stream);
            let cause = format!("nats.stream is {stream}: {failure}");
            let remedy = format!("correct nats.stream, or create the stream: {create}");
            Err(Error::new(Kind::TopicRefused, cause).remedy(remedy.replace("{topic}", "SUBJECTS")))
        }
        None => Err(no_jetstream(stream)),
    }
}

/// Nobody tells of the stream.
pub(super) fn no_jetstream(stream: &str) -> Error {
    let cause = format!("nats.stream is {stream}: JetStream does not answer for it");
    Error::new(Kind::BusUnreachable, cause).remedy(BUS.stalled)
}

/// What JetStream says to the question which streams have a subject.
pub(super) fn taking(message: &Message) -> Taking {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Taking::Nobody;
    }
    match read(message, ANSWER_BYTES_MAX) {
        Some(Names {
            error: Some(Failure { err_code, .. }),
            ..
        }) if NO_JETSTREAM.contains(&err_code) => Taking::Nobody,
        Some(Names {
            error: Some(failure),
            ..
        }) => Taking::Unknown(failure.to_string()),
        Some(Names { streams, .. }) => {
            let first = streams.into_iter().flatten().next();
            first.map_or(Taking::Nobody, Taking::Stream)
        }
        None => Taking::Unknown("JetStream answers what nobody can read".to_owned()),
    }
}

/// A record that the server or the stream does not take for its size.
pub(super) fn too_large(topic: &str, reason: &str) -> Error {
    let cause = format!("a record for subject {topic} is too large: {reason}");
    Error::new(Kind::RecordTooLarge, cause).remedy(
        "raise max_payload of the servers or --max-msg-size of the stream, or keep large payloads \
         out of the outbox with a CHECK",
    )
}

fn headers_too_large(topic: &str, reason: &str) -> Error {
    let cause = format!("the headers of a record for subject {topic} are too large: {reason}");
    Error::new(Kind::RecordTooLarge, cause)
        .remedy("keep large columns out of [route.headers], and of what route.headers_from reads")
}

/// No stream takes records of this subject.
pub(super) fn no_stream(topic: &str) -> Error {
    let create = BUS.create_topic.replace("{topic}", topic);
    let remedy = format!(
        "create a stream, {create}; where there is one, see whether it has a leader: nats stream \
         report"
    );
    refused(topic, "no stream takes it", &remedy)
}

/// Another stream takes them than `nats.stream` says.
pub(super) fn other_stream(topic: &str, found: &str, wanted: &str) -> Error {
    let cause = format!("stream {found} takes it, and nats.stream is {wanted}");
    refused(topic, &cause, OTHER)
}

/// The user may not publish to this subject.
pub(super) fn denied(topic: &str, said: &str) -> Error {
    let remedy = format!("allow this user to publish to {topic}");
    refused(topic, said, &remedy)
}

/// Someone who is no stream may take what is sent there.
pub(super) fn silent(topic: &str) -> Error {
    let remedy = "see whether a stream has the subject and a leader: nats stream report. A mere \
                  subscriber acks nothing";
    refused(topic, "the server answers, and no stream acks", remedy)
}

/// The stream cannot take it now. The record is tried again.
pub(super) fn later(topic: &str, cause: &str) -> Error {
    let remedy = "see whether the stream has a leader and room: nats stream report";
    refused(topic, cause, remedy).with_kind(Kind::BusUnreachable)
}

fn refused(topic: &str, cause: &str, remedy: &str) -> Error {
    Error::new(Kind::TopicRefused, format!("subject {topic}: {cause}"))
        .remedy(remedy)
        .of_topic(topic)
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz_text;

    use super::*;

    fn message(payload: &str) -> Message {
        Message {
            subject: "inbox".into(),
            reply: None,
            payload: payload.to_owned().into(),
            headers: None,
            status: None,
            description: None,
            length: 0,
        }
    }

    fn of(payload: &str, has_id: bool) -> Said {
        said(&message(payload), "t", has_id)
    }

    #[test]
    fn only_the_ack_of_this_event_counts() {
        let stored = |payload, has_id| matches!(of(payload, has_id), Said::Stored);
        assert!(stored(r#"{"stream":"S","seq":7}"#, false));
        assert!(stored(r#"{"stream":"S","seq":7,"duplicate":true}"#, true));
        assert!(!stored(r#"{"stream":"S","seq":7,"duplicate":true}"#, false));
        for other in ["", "+OK", "7", "[]", "{}", r#"{"seq":0}"#, r#"{"seq":-1}"#] {
            let Said::Refused(error) = of(other, true) else {
                panic!("{other}")
            };
            assert_eq!(error.kind(), Kind::TopicRefused, "{other}");
        }
        let long = format!(r#"{{"seq":7,"x":"{}"}}"#, "x".repeat(ANSWER_BYTES_MAX));
        assert!(!stored(&long, true));
    }

    #[test]
    fn errors_are_told_apart() {
        let kind = |code: u32, err_code: u32| {
            let error = format!(r#"{{"code":{code},"err_code":{err_code},"description":"d"}}"#);
            let said = of(
                &format!(r#"{{"error":{error},"stream":"S","seq":0}}"#),
                true,
            );
            let (Said::Refused(error) | Said::Full(error)) = said else {
                panic!("{said:?}")
            };
            assert!(
                error.cause().contains(&format!("d (error {err_code})")),
                "{error}"
            );
            error.kind()
        };
        assert_eq!(kind(400, TOO_LARGE), Kind::RecordTooLarge);
        assert_eq!(kind(400, HEADERS_TOO_LARGE), Kind::RecordTooLarge);
        assert_eq!(kind(400, OTHER_STREAM), Kind::TopicRefused);
        assert_eq!(kind(400, 10109), Kind::TopicRefused, "sealed");
        assert_eq!(kind(503, STORE_FAILED), Kind::BusUnreachable);
        assert_eq!(kind(400, ACCOUNT_FULL), Kind::BusUnreachable);
        assert_eq!(kind(503, 10008), Kind::BusUnreachable, "no leader");
        assert_eq!(kind(429, 10167), Kind::BusUnreachable, "too many requests");
    }

    /// It is also the remedy of an event that was given up, and of one that ended the relay.
    #[test]
    fn the_remedy_of_what_is_not_taken_now_does_not_say_that_it_comes_again() {
        let fix = later("t", "full").what_to_do().unwrap();
        assert!(fix.ends_with("nats stream report"), "{fix}");
    }

    #[test]
    fn jetstream_says_whether_a_stream_takes_a_subject() {
        for (payload, stream) in [
            (r#"{"total":1,"streams":["S"]}"#, Some("S")),
            (r#"{"total":0,"streams":null}"#, None),
            (r#"{"total":0,"streams":[]}"#, None),
            ("{}", None),
            (r#"{"error":{"code":503,"err_code":10039}}"#, None),
        ] {
            match taking(&message(payload)) {
                Taking::Nobody => assert_eq!(stream, None, "{payload}"),
                Taking::Stream(name) => assert_eq!(stream, Some(name.as_str())),
                Taking::Unknown(cause) => panic!("{payload}: {cause}"),
            }
        }
        for payload in [
            r#"{"error":{"code":503,"err_code":10008,"description":"d"}}"#,
            "",
            "[]",
            r#"{"streams":[7]}"#,
        ] {
            let said = taking(&message(payload));
            assert!(matches!(said, Taking::Unknown(_)), "{payload}: {said:?}");
        }
    }

    #[test]
    fn what_is_told_of_a_stream_is_read_up_to_a_bound() {
        let told = |length| {
            let told = format!(r#"{{"config":"{}"}}"#, "x".repeat(length));
            existing(&message(&told), "S").map_err(|error| error.kind())
        };
        assert!(told(2 * ANSWER_BYTES_MAX).is_ok());
        assert_eq!(told(INFO_BYTES_MAX), Err(Kind::BusUnreachable));
    }

    /// A server chooses its length, and errors are logged.
    #[test]
    fn the_text_of_an_error_is_shortened() {
        let description = "x".repeat(10_000);
        let text = format!(
            r#"{{"error":{{"code":400,"err_code":10054,"description":"{description}"}},"seq":0}}"#
        );
        let message = message(&text);
        let (Said::Refused(refused) | Said::Full(refused)) = said(&message, "t", true) else {
            panic!("taken");
        };
        for error in [refused, existing(&message, "S").unwrap_err()] {
            assert!(error.cause().contains("xxx"), "{error}");
            assert!(error.cause().chars().count() < 2 * SHOWN_CHARS, "{error}");
        }
    }

    #[test]
    fn fuzzed_answers() {
        let corpus = [
            r#"{"stream":"S","seq":7,"duplicate":true}"#,
            r#"{"error":{"code":400,"err_code":10054,"description":"d"},"stream":"S","seq":0}"#,
            r#"{"total":1,"streams":["S"],"error":{"code":503,"err_code":10039}}"#,
            r#"{"type":"io.nats.jetstream.api.v1.stream_info_response","config":{"name":"S"}}"#,
        ];
        fuzz_text("answers of JetStream", 512 << 10, &corpus, |text| {
            let message = message(text);
            let is_short = |error: Error| error.cause().chars().count() < 2 * SHOWN_CHARS;
            for has_id in [false, true] {
                assert!(match said(&message, "t", has_id) {
                    Said::Stored | Said::NoStream => text.contains(':'),
                    Said::Refused(error) | Said::Full(error) => is_short(error),
                });
            }
            assert!(match taking(&message) {
                Taking::Nobody => true,
                Taking::Stream(name) => name.len() <= text.len(),
                Taking::Unknown(cause) => cause.chars().count() < 2 * SHOWN_CHARS,
            });
            assert!(existing(&message, "S").err().is_none_or(is_short));
        });
    }
}
