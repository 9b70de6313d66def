//! Requests to a collector.

use std::time::Duration;

use axum::body::Body;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use hyper::{Request, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prost::Message;

use crate::config::OtelConfig;
use crate::conninfo::{RootCert, SslMode, TlsSettings};
use crate::postgres::tls;
use walrelay_core::error::{Error, Kind, Result, with_causes};

/// From the look-up of the name to the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Failure {
    pub(super) cause: String,
    /// The same request would fail again.
    pub(super) is_final: bool,
}

pub(super) struct Client {
    http: legacy::Client<HttpsConnector<HttpConnector>, Body>,
    endpoint: Uri,
    headers: HeaderMap,
}

impl Client {
    /// # Errors
    /// [`Kind::Config`] where TLS cannot be set up.
    pub(super) fn new(config: &OtelConfig) -> Result<Client> {
        // Without TLS, no certificate is needed.
        let is_https = config.endpoint.scheme_str() == Some("https");
        let settings = TlsSettings {
            mode: if is_https { SslMode::VerifyFull } else { SslMode::Prefer },
            root: Some(RootCert::System),
            client: None,
            channel_binding: tokio_postgres::config::ChannelBinding::Disable,
            tls13_only: false,
        };
        let remedy = "install ca-certificates, or name a file with the collector's authority in SSL_CERT_FILE";
        let tls = tls::client_config(&settings).map_err(|error| error.about("otel.endpoint").remedy(remedy))?;
        let tls = tls.ok_or_else(|| Error::new(Kind::Bug, "TLS without a configuration"))?;
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        // Requests are rare, and a connection that was closed meanwhile would fail one.
        let http = legacy::Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(https);
        let mut headers = config.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("walrelay/", env!("CARGO_PKG_VERSION"))));
        Ok(Client { http, endpoint: config.endpoint.clone(), headers })
    }

    /// Sends `message` to `path` below the endpoint.
    pub(super) async fn post(&self, path: &str, message: &impl Message) -> Result<(), Failure> {
        let url = format!("{}{path}", self.endpoint.to_string().trim_end_matches('/'));
        let away = |cause: String| Failure { cause, is_final: false };
        let mut request =
            Request::post(url).body(Body::from(message.encode_to_vec())).map_err(|error| away(error.to_string()))?;
        request.headers_mut().extend(self.headers.clone());
        let answer = match tokio::time::timeout(REQUEST_TIMEOUT, self.http.request(request)).await {
            Ok(answer) => answer.map_err(|error| away(with_causes(&error)))?,
            Err(_) => return Err(away("no answer in time".to_owned())),
        };
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        // https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes
        let is_final = !matches!(status.as_u16(), 429 | 502..=504);
        Err(Failure { cause: format!("{path} is answered with {status}"), is_final })
    }
}
