//! What a server says to one record.

use async_nats::{Message, StatusCode};
use serde::Deserialize;

use crate::config::{Bus, SinkKind};
use walrelay_core::error::{Error, Kind};

const BUS: Bus = SinkKind::Nats.bus();
/// No answer of a stream is longer.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// `JSStreamMessageExceedsMaximumErr`
const TOO_LARGE: u32 = 10054;
/// `JSStreamStoreFailedF`: most often, the stream is full and discards new messages.
const STORE_FAILED: u32 = 10077;
/// `JSStreamNotMatchErr`
const OTHER_STREAM: u32 = 10060;
/// `JSAccountResourcesExceededErr`
const ACCOUNT_FULL: u32 = 10002;

/// What a message to the inbox of an attempt says.
#[derive(Debug)]
pub(super) enum Said {
    /// A stream has the record.
    Stored,
    /// No stream takes the subject, or none that has a leader.
    NoStream,
    /// The stream cannot take it now, for this reason.
    Later(String),
    /// The stream does not take it.
    Refused(Error),
}

#[derive(Deserialize)]
struct PubAck {
    seq: Option<u64>,
    #[serde(default)]
    duplicate: bool,
    error: Option<Failure>,
}

#[derive(Deserialize)]
struct Failure {
    #[serde(default)]
    code: u32,
    #[serde(default)]
    err_code: u32,
    #[serde(default)]
    description: String,
}

/// `has_id`: the record was sent with an id that names this very event.
pub(super) fn said(message: &Message, topic: &str, has_id: bool) -> Said {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Said::NoStream;
    }
    let payload = message.payload.as_ref();
    let ack = (payload.len() <= ANSWER_BYTES_MAX).then(|| serde_json::from_slice(payload).ok());
    match ack.flatten() {
        Some(PubAck {
            error: Some(failure),
            ..
        }) => failed(&failure, topic),
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

fn failed(failure: &Failure, topic: &str) -> Said {
    let Failure {
        code,
        err_code,
        description,
    } = failure;
    let cause = format!("{description} (error {err_code})");
    match (*err_code, *code) {
        (TOO_LARGE, _) => Said::Refused(too_large(topic, &cause)),
        (OTHER_STREAM, _) => {
            let remedy = "correct nats.stream, or the subjects of the streams: nats stream ls \
                          --subjects";
            Said::Refused(refused(topic, &cause, remedy))
        }
        (STORE_FAILED | ACCOUNT_FULL, _) | (_, 429 | 500..) => Said::Later(cause),
        _ => {
            let remedy = "see the stream's configuration: nats stream info";
            Said::Refused(refused(topic, &cause, remedy))
        }
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

/// No stream takes records of this subject.
pub(super) fn no_stream(topic: &str) -> Error {
    let create = BUS.create_topic.replace("{topic}", topic);
    let remedy = format!(
        "create a stream, {create}; where there is one, see whether it has a leader: nats stream \
         report"
    );
    refused(topic, "no stream takes it", &remedy)
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

fn refused(topic: &str, cause: &str, remedy: &str) -> Error {
    Error::new(Kind::TopicRefused, format!("subject {topic}: {cause}"))
        .remedy(remedy)
        .of_topic(topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(payload: &str, has_id: bool) -> Said {
        let message = Message {
            subject: "inbox".into(),
            reply: None,
            payload: payload.to_owned().into(),
            headers: None,
            status: None,
            description: None,
            length: 0,
        };
        said(&message, "t", has_id)
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
            match of(
                &format!(r#"{{"error":{error},"stream":"S","seq":0}}"#),
                true,
            ) {
                Said::Refused(error) => Some(error.kind()),
                Said::Later(cause) => {
                    assert_eq!(cause, format!("d (error {err_code})"));
                    None
                }
                Said::Stored | Said::NoStream => panic!("stored"),
            }
        };
        assert_eq!(kind(400, TOO_LARGE), Some(Kind::RecordTooLarge));
        assert_eq!(kind(400, OTHER_STREAM), Some(Kind::TopicRefused));
        assert_eq!(kind(400, 10109), Some(Kind::TopicRefused), "sealed");
        assert_eq!(kind(503, STORE_FAILED), None);
        assert_eq!(kind(400, ACCOUNT_FULL), None);
        assert_eq!(kind(503, 10008), None, "no leader");
        assert_eq!(kind(429, 10167), None, "too many requests");
    }
}
