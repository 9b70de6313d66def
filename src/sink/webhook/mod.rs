//! Webhooks: each record is the body of a request to one URL.
//!
//! | file | contents |
//! |---|---|
//! | `answer` | the class of each answer |
//! | `signature` | signatures of Standard Webhooks |
//!
//! HTTP/1.1: a connection has one request at a time. Redirects are not followed, and no request is
//! sent twice by itself.

mod answer;
mod signature;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::{Body, HttpBody as _};
use futures_util::StreamExt as _;
use hyper::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use hyper::service::Service as _;
use hyper::{Method, Request, Response, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::service::TowerToHyperService;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::event::Shown;
use walrelay_core::route::{OwnedRecord, Record};
use walrelay_core::secret::Secret;

use self::answer::{failed, judge, no_connection};
use self::signature::Signer;
use super::lanes::{Answer, Away, LaneBus, LaneSink};
use super::{login, not_encrypted};
use crate::config::servers::is_here;
use crate::config::{Config, SinkKind, WebhookConfig};

/// The sink of webhooks.
pub(super) type WebhookSink = LaneSink<Webhook>;

/// The place of the topic in the URL.
const TOPIC: &str = "{topic}";
/// The header with the id of an event, of each attempt the same.
const ID: &str = "webhook-id";
const TIMESTAMP: &str = "webhook-timestamp";
const SIGNATURE: &str = "webhook-signature";
/// Headers that a record may not have: they are those of the connection, of walrelay, or say who
/// sends.
const RESERVED: [&str; 15] = [
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
];
/// Headers of a record: `HeaderMap` panics where it has more than 24,576 names, ours among them.
const HEADERS_MAX: usize = 24_000;
/// So much of the body of an answer is read, and for so long.
const DRAINED_BYTES: usize = 64 << 10;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection is not used again after this time without a request. Servers close idle ones after
/// five seconds or more, and a request that meets the end of a connection has no answer.
const IDLE: Duration = Duration::from_secs(4);

/// What an attribute of CloudEvents may not have in a header.
/// <https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md#3132-http-header-values>
const CLOUDEVENTS: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

type Connector = HttpsConnector<HttpConnector>;

/// A client of one receiver.
#[derive(Debug)]
pub struct Webhook {
    client: legacy::Client<Connector, Body>,
    connector: Connector,
    url: Secret,
    headers: HeaderMap,
    signer: Option<Signer>,
    /// The names of the headers with the id of an event.
    id_headers: Vec<String>,
    timeout: Duration,
    sent_max: usize,
    /// For each connection that is kept until the body of an answer has ended.
    drains: Arc<Semaphore>,
}

impl LaneBus for Webhook {
    const KIND: SinkKind = SinkKind::Webhook;

    fn new(config: &Config) -> Result<Webhook> {
        let webhook = &config.webhook;
        let url = url_of(webhook)?;
        let mut headers = HeaderMap::new();
        let agent = concat!("walrelay/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        if let Some(file) = &webhook.authorization_file {
            headers.insert(AUTHORIZATION, authorization(file, &url)?);
        }
        let signer = webhook.signing_secrets_file.as_ref().map(|file| {
            let text = login::read_at_start("webhook.signing_secrets_file", file)?;
            Signer::parse(text.expose()).map_err(|error| error.about(file))
        });
        let connector = connector(webhook, url.scheme_str() == Some("https"))?;
        let ids = config.outboxes.iter().map(|outbox| &outbox.route.id_header);
        if signer.is_some() && ids.clone().any(Option::is_none) {
            let cause = "webhook.signing_secrets_file is set, and events have no id to sign";
            return Err(Error::new(Kind::Config, cause).remedy("set route.id_header, such as id"));
        }
        Ok(Webhook {
            client: legacy::Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(IDLE)
                .retry_canceled_requests(false)
                .build(connector.clone()),
            connector,
            url: webhook.url.clone().unwrap_or_default(),
            headers,
            signer: signer.transpose()?,
            id_headers: ids.flatten().cloned().collect(),
            drains: Arc::new(Semaphore::new(webhook.max_in_flight)),
            timeout: webhook.timeout,
            sent_max: webhook.max_in_flight,
        })
    }

    fn weakness(config: &Config) -> Option<String> {
        let url = url_of(&config.webhook).ok()?;
        in_clear(&url).map(|host| not_encrypted(Self::KIND, host, "webhook.url"))
    }

    fn sent_max(&self) -> usize {
        self.sent_max
    }

    fn check(&self, record: &Record<'_>) -> Result<()> {
        self.signed_id(&self.headers(record)?)?;
        self.check_topic(record.topic)
    }

    fn check_topic(&self, topic: &str) -> Result<()> {
        self.uri(topic).map(drop)
    }

    fn check_header(&self, name: &str, value: Option<&[u8]>) -> Result<()> {
        header(name, value.unwrap_or_default()).map(drop)
    }

    async fn probe(&self) -> Result<(), Away> {
        let uri = self.uri("probe").map_err(Away::Unusable)?;
        let connect = TowerToHyperService::new(self.connector.clone()).call(uri);
        match timeout(self.timeout, connect).await {
            Ok(connected) => connected.map(drop).map_err(|error| no_connection(&*error)),
            Err(_) => Err(self.no_answer()),
        }
    }

    async fn send(&self, record: &OwnedRecord) -> Answer {
        let now = SystemTime::now();
        let seconds = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let body = record.value.clone().unwrap_or_default();
        let request = match record.with_record(|record| self.request(record, seconds, body)) {
            Ok(request) => request,
            Err(error) => return Answer::Unfit(error),
        };
        let answered = async {
            match self.client.request(request).await {
                Ok(answer) => self.judged(answer, now),
                Err(error) => failed(&error),
            }
        };
        let answer = timeout(self.timeout, answered).await;
        match answer.unwrap_or_else(|_| Answer::Away(self.no_answer())) {
            Answer::Refused { error, after } => Answer::Refused {
                error: error.about(format_args!("a record for {}", record.topic)),
                after,
            },
            answer @ (Answer::Acked | Answer::Full(_) | Answer::Unfit(_) | Answer::Away(_)) => {
                answer
            }
        }
    }
}

impl Webhook {
    fn no_answer(&self) -> Away {
        let seconds = self.timeout.as_secs_f64();
        Away::Unreachable(format!("the receiver does not answer within {seconds} s"))
    }

    fn uri(&self, topic: &str) -> Result<Uri> {
        // The names of topics have no character that could end the segment.
        let url = self.url.expose().replace(TOPIC, topic);
        url.parse().map_err(|error| {
            let cause = format!("topic {topic} makes no URL: {error}");
            Error::new(Kind::Record, cause)
        })
    }

    /// The headers of each attempt for a record. Errors: HTTP cannot carry one, or it is reserved.
    fn headers(&self, record: &Record<'_>) -> Result<HeaderMap> {
        if record.headers.len() > HEADERS_MAX {
            let cause = "the record has more headers than HTTP can carry";
            return Err(Error::new(Kind::Record, cause).remedy("leave some out in [route.headers]"));
        }
        let mut headers = self.headers.clone();
        for (at, (name, value)) in record.headers.iter().enumerate() {
            // HTTP has no header without a value.
            let Some(value) = value else { continue };
            let (parsed, value) = header(name, value)?;
            // The id is the first header.
            if at == 0 && self.id_headers.iter().any(|id| id == name) {
                headers.insert(ID, value.clone());
            }
            headers.append(parsed, value);
        }
        if !headers.contains_key(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        Ok(headers)
    }

    /// The signer, and the id that it signs; none where requests are not signed. Errors: this id
    /// cannot be signed.
    fn signed_id<'a>(&'a self, headers: &'a HeaderMap) -> Result<Option<(&'a Signer, &'a str)>> {
        let Some(signer) = &self.signer else {
            return Ok(None);
        };
        let id = headers.get(ID).and_then(|id| id.to_str().ok());
        let id = id.filter(|id| !id.contains('.')).ok_or_else(|| {
            let cause = "the id of the event is missing, has a dot, or is not ASCII, and cannot be \
                         signed";
            Error::new(Kind::Record, cause)
                .remedy("let route.id_header name a header with another id")
        })?;
        Ok(Some((signer, id)))
    }

    /// The request for a record, signed for this time. Errors: the record cannot be a request.
    fn request(&self, record: &Record<'_>, seconds: u64, body: Vec<u8>) -> Result<Request<Body>> {
        let mut headers = self.headers(record)?;
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        if let Some((signer, id)) = self.signed_id(&headers)? {
            let signature = signer.sign(id, seconds, &body);
            headers.insert(TIMESTAMP, HeaderValue::from(seconds));
            headers.insert(SIGNATURE, secret_value(&signature)?);
        }
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri(record.topic)?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// Judges an answer by its head, and waits for no body. The body may repeat the payload, so
    /// that no log has it.
    fn judged(&self, answer: Response<hyper::body::Incoming>, now: SystemTime) -> Answer {
        let (head, body) = answer.into_parts();
        // Without a permit the connection is closed.
        if !body.is_end_stream()
            && let Ok(permit) = Arc::clone(&self.drains).try_acquire_owned()
        {
            tokio::spawn(timeout(DRAIN_TIMEOUT, async move {
                drain(Body::new(body)).await;
                drop(permit);
            }));
        }
        let is_for_topic = self.url.expose().contains(TOPIC);
        judge(head.status, &head.headers, is_for_topic, now)
    }
}

/// Reads a short body to its end, so that its connection can be used again.
async fn drain(body: Body) {
    let mut read = 0;
    let mut frames = body.into_data_stream();
    while let Some(Ok(bytes)) = frames.next().await {
        read += bytes.len();
        if read > DRAINED_BYTES {
            return;
        }
    }
}

/// A header of a record as one of HTTP. Errors: HTTP cannot carry it, or it is reserved.
fn header(name: &str, value: &[u8]) -> Result<(HeaderName, HeaderValue)> {
    let refused = |why: &str| {
        let name = Shown::of(name.as_bytes());
        Error::new(Kind::Record, format!("header {name} of the record {why}"))
            .remedy("leave it out, or give it another name or value in [route.headers]")
    };
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| refused("has a name that is no name in HTTP"))?;
    let known = parsed.as_str();
    if RESERVED.contains(&known) || known.starts_with("webhook-") {
        return Err(refused("is one that walrelay sets or never sends"));
    }
    let value = if known.starts_with("ce-") {
        Cow::Owned(percent_encode(value, CLOUDEVENTS).to_string().into_bytes())
    } else {
        Cow::Borrowed(value)
    };
    let value = HeaderValue::from_bytes(&value)
        .map_err(|_| refused("has a value with a line break or a control character"))?;
    Ok((parsed, value))
}

/// Checks the URL: the scheme and the host are constant.
fn url_of(config: &WebhookConfig) -> Result<Uri> {
    let refused = |why: &str| {
        Error::new(Kind::Config, format!("webhook.url {why}"))
            .remedy("write it as https://HOST/PATH; {topic} may be a part of the path")
    };
    let url = config.url.as_ref().map_or("", Secret::expose);
    let uri: Uri = url
        .replace(TOPIC, "topic")
        .parse()
        .map_err(|_| refused("is no URL"))?;
    let authority = uri.authority().map(|authority| authority.as_str());
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(refused("begins neither with https:// nor with http://"));
    }
    if authority.is_none_or(|authority| authority.contains('@')) {
        return Err(refused("has no host, or a password"));
    }
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let path = rest.find('/').map_or("", |at| rest.split_at(at).1);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    if url.matches(TOPIC).count() != path.matches(TOPIC).count() {
        return Err(refused("has {topic} outside of its path"));
    }
    Ok(uri)
}

fn connector(config: &WebhookConfig, is_https: bool) -> Result<Connector> {
    let ca_file = config.ca_file.as_deref().unwrap_or_default();
    let tls = login::tls("webhook", ca_file, is_https)?;
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    Ok(HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(http))
}

/// The host, where it is another one and is reached without TLS.
fn in_clear(url: &Uri) -> Option<&str> {
    let host = url.host().filter(|host| !is_here(host));
    host.filter(|_| url.scheme_str() != Some("https"))
}

/// The value of `Authorization`, which only TLS, or this machine, may see.
fn authorization(file: &str, url: &Uri) -> Result<HeaderValue> {
    if in_clear(url).is_some() {
        let cause = "webhook.authorization_file is set, and webhook.url has no TLS";
        return Err(Error::new(Kind::Config, cause).remedy("write webhook.url with https://"));
    }
    let text = login::read_at_start("webhook.authorization_file", file)?;
    secret_value(text.expose().trim()).map_err(|error| error.about(file))
}

fn secret_value(text: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::try_from(text).map_err(|_| {
        Error::new(Kind::Config, "the text is no value of a header")
            .remedy("write one line, such as: Bearer …")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn headers_that_http_cannot_carry_or_walrelay_sets_are_refused() {
        for (name, value) in [
            ("X-A\r\nHost", &b"a"[..]),
            ("x y", b"a"),
            ("x", b"a\r\nHost: b"),
            ("x", b"a\0"),
            ("Authorization", b"a"),
            ("Transfer-Encoding", b"chunked"),
            ("Webhook-Signature", b"a"),
        ] {
            let error = header(name, value).unwrap_err();
            assert_eq!(error.kind(), Kind::Record, "{name}");
            assert!(!error.cause().contains(['\r', '\n']), "{error}");
        }
        let (name, value) = header("X-Tenant", "\u{e9}".as_bytes()).unwrap();
        assert_eq!(
            (name.as_str(), value.as_bytes()),
            ("x-tenant", "\u{e9}".as_bytes())
        );
        let (_, value) = header("ce-subject", "a \u{20ac}%".as_bytes()).unwrap();
        assert_eq!(value, "a%20%E2%82%AC%25");
    }

    #[test]
    fn more_headers_than_http_can_carry_refuse_the_record() {
        let text = "database.url = 'postgres://u@h/d'\nslot.name = 'orders'\n\
                    sink.kind = 'webhook'\nwebhook.url = 'http://localhost/'";
        let config = Settings::of(text).unwrap().config(false).unwrap();
        let webhook = Webhook::new(&config).unwrap();
        let names: Vec<String> = (0..30_000).map(|number| format!("x-{number}")).collect();
        let headers: Vec<(&str, Option<&[u8]>)> = names
            .iter()
            .map(|name| (name.as_str(), Some(&b"a"[..])))
            .collect();
        let record = |count: usize| Record {
            topic: "t",
            key: None,
            value: None,
            headers: &headers[..count],
            partition: None,
            timestamp_ms: None,
        };
        let most = record(HEADERS_MAX);
        assert!(webhook.request(&most, 0, Vec::new()).is_ok());
        let error = webhook.check(&record(HEADERS_MAX + 1)).unwrap_err();
        assert_eq!(error.kind(), Kind::Record);
    }

    #[test]
    fn the_place_of_the_topic_is_in_the_path_of_a_constant_host() {
        let of = |url: &str| {
            let url = Some(Secret::new(url));
            url_of(&WebhookConfig {
                url,
                ..WebhookConfig::default()
            })
        };
        for url in [
            "https://h/in/{topic}?a=1",
            "http://h:8080",
            "https://[::1]/{topic}/x",
        ] {
            assert!(of(url).is_ok(), "{url}");
        }
        for url in [
            "",
            "h/in",
            "ftp://h/",
            "https://u:canary@h/",
            "https://{topic}.h/in",
            "https://h/in?t={topic}",
            "https://h\r\n.evil/",
        ] {
            let error = of(url).unwrap_err();
            assert_eq!(error.kind(), Kind::Config, "{url}");
            assert!(!error.to_string().contains("canary"), "{error}");
        }
    }
}
