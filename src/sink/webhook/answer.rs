//! The class of each answer to a request, and of each failure to get one.

use std::error::Error as StdError;
use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};
use hyper_util::client::legacy;
use jiff::fmt::rfc2822;
use tokio_rustls::rustls;

use crate::sink::lanes::{Answer, Away};
use walrelay_core::error::{Error, Kind, with_causes};

/// A receiver that asks for a longer wait gets this one.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// Whether the record comes again is said where that is known.
const SEE_ITS_LOG: &str = "see the receiver's log, which says why it does not take the record";

/// Judges the head of an answer, at `now`. `is_for_topic` where the topic is part of the URL.
///
/// <https://www.rfc-editor.org/rfc/rfc9110#section-15>
pub(super) fn judge(
    status: StatusCode,
    headers: &HeaderMap,
    is_for_topic: bool,
    now: SystemTime,
) -> Answer {
    let cause = format!("the receiver answers {status}");
    let refused = |kind: Kind| Error::new(kind, &cause);
    let error = match status.as_u16() {
        200..=299 => return Answer::Acked,
        401 | 407 if !is_for_topic => {
            let error = refused(Kind::BusRefused)
                .remedy("correct webhook.authorization_file, or the rights at the receiver");
            return Answer::Away(Away::Unusable(error));
        }
        413 => refused(Kind::RecordTooLarge).remedy(
            "raise the receiver's limit, or keep large payloads out of the outbox with a CHECK",
        ),
        400 | 405 | 406 | 411 | 414 | 415 | 422 | 431 | 501 => {
            refused(Kind::Record).remedy(SEE_ITS_LOG)
        }
        // It may take the record later.
        408 | 409 | 425 | 429 | 500 | 502..=599 => {
            refused(Kind::BusUnreachable).remedy(SEE_ITS_LOG)
        }
        300..=399 => refused(Kind::TopicRefused).remedy(
            "set webhook.url to the place that the receiver moved to: redirects are not followed",
        ),
        _ => refused(Kind::TopicRefused)
            .remedy("see the receiver's log, and whether webhook.url is right"),
    };
    let after = headers
        .get(RETRY_AFTER)
        .and_then(|value| retry_after(value.to_str().ok()?, now));
    Answer::Refused { error, after }
}

/// Seconds, or a date. <https://www.rfc-editor.org/rfc/rfc9110#field.retry-after>
fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let wait = match text.trim().parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at: SystemTime = rfc2822::parse(text.trim()).ok()?.timestamp().into();
            at.duration_since(now).unwrap_or_default()
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

/// Judges a request without an answer.
pub(super) fn failed(error: &legacy::Error) -> Answer {
    let cause = with_causes(error);
    if causes(error).any(|cause| cause.is::<rustls::Error>()) {
        return Answer::Away(unusable_tls(&cause));
    }
    let is_no_http = causes(error)
        .filter_map(|cause| cause.downcast_ref::<hyper::Error>())
        .any(hyper::Error::is_parse);
    if is_no_http {
        let error = Error::new(Kind::TopicRefused, format!("no answer in HTTP: {cause}"))
            .remedy("see whether webhook.url names a server that speaks HTTP/1.1");
        return Answer::Refused { error, after: None };
    }
    Answer::Away(Away::Unreachable(cause))
}

/// Judges a connection that could not be made.
pub(super) fn no_connection(error: &(dyn StdError + Send + Sync + 'static)) -> Away {
    let cause = with_causes(error);
    if causes(error).any(|cause| cause.is::<rustls::Error>()) {
        unusable_tls(&cause)
    } else {
        Away::Unreachable(cause)
    }
}

fn unusable_tls(cause: &str) -> Away {
    Away::Unusable(
        Error::new(Kind::BusRefused, cause).remedy(
            "name the receiver's authority in webhook.ca_file, and its host in webhook.url",
        ),
    )
}

/// `error` and what caused it. An error of I/O keeps its cause inside.
fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'a (dyn StdError + 'static) = *error;
        let inner = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref);
        match inner {
            Some(inner) => Some(inner as &(dyn StdError + 'static)),
            None => error.source(),
        }
    })
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;
    use walrelay_fuzz::fuzz;

    use super::*;

    fn judged(status: u16, retry_after: Option<&'static str>) -> Answer {
        let mut headers = HeaderMap::new();
        headers.extend(retry_after.map(|text| (RETRY_AFTER, text.parse().unwrap())));
        let status = StatusCode::from_u16(status).unwrap();
        // Fri, 31 Dec 1999 23:59:00 GMT
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(946_684_740);
        judge(status, &headers, false, now)
    }

    #[test]
    fn each_status_has_its_class() {
        for status in [200, 202, 204, 299] {
            assert!(matches!(judged(status, None), Answer::Acked), "{status}");
        }
        for (statuses, kind) in [
            (&[413][..], Kind::RecordTooLarge),
            (&[400, 405, 415, 422, 431, 501], Kind::Record),
            (
                &[408, 409, 425, 429, 500, 502, 504, 520],
                Kind::BusUnreachable,
            ),
            (&[101, 301, 307, 403, 404, 410, 999], Kind::TopicRefused),
        ] {
            for status in statuses {
                let Answer::Refused { error, after: None } = judged(*status, None) else {
                    panic!("{status}")
                };
                assert_eq!(error.kind(), kind, "{status}");
                // A receiver has no topic that somebody could create.
                let given_up = error.with_kind(Kind::TopicRefused).what_to_do().unwrap();
                assert!(given_up.contains("receiver"), "{status}: {given_up}");
            }
        }
        for status in [401, 407] {
            let answer = judged(status, None);
            assert!(
                matches!(answer, Answer::Away(Away::Unusable(_))),
                "{status}"
            );
        }
    }

    #[test]
    fn the_receiver_says_how_long_to_wait() {
        for (text, seconds) in [
            ("7", Some(7)),
            ("86400", Some(3600)),
            ("Fri, 31 Dec 1999 23:59:59 GMT", Some(59)),
            ("Fri, 31 Dec 1999 23:00:00 GMT", Some(0)),
            ("soon", None),
        ] {
            let Answer::Refused { after, .. } = judged(429, Some(text)) else {
                panic!("{text}")
            };
            assert_eq!(after, seconds.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn fuzzed_waits() {
        // The status, and how long to wait.
        let corpus = [
            "\x01\x497",
            "\x01\x49Fri, 31 Dec 1999 23:59:59 GMT",
            "\x01\x431 Jan 00 00:00 +0130 (a comment)",
        ];
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(946_684_740);
        fuzz("answers of webhooks", 128 << 10, &corpus, |bytes| {
            let Some((status, text)) = bytes.split_first_chunk::<2>() else {
                return;
            };
            let Ok(value) = HeaderValue::from_bytes(text) else {
                return;
            };
            let status = StatusCode::from_u16(u16::from_be_bytes(*status) % 900 + 100).unwrap();
            let headers = HeaderMap::from_iter([(RETRY_AFTER, value)]);
            if let Answer::Refused { after, .. } = judge(status, &headers, true, now) {
                assert!(after.is_none_or(|after| after <= RETRY_AFTER_MAX));
            }
        });
    }
}
