//! `[otel]`: where spans are sent.
//!
//! A variable of OpenTelemetry counts if its key is not set, as the `PG*` variables do for
//! `database.url`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use hyper::Uri;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use super::file::{Given, Layer, Origin};
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::secret::Secret;

/// The variables that are read. Of others, walrelay warns.
pub(super) const VARIABLES: [&str; 6] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SDK_DISABLED",
    "OTEL_SERVICE_NAME",
];

/// The collector, and what it is told of this process.
#[derive(Debug, Clone)]
pub struct OtelConfig {
    /// The base of its URLs: `http` or `https` and a host, without user and query.
    pub endpoint: Uri,
    /// Headers of each request. The values are secrets, which `Debug` does not show.
    pub headers: HeaderMap,
    /// Attributes of the resource, `service.name` among them.
    pub attributes: BTreeMap<String, String>,
    pub interval: Duration,
}

/// Where `layer` or the environment names a collector: that, and how it is told.
pub(super) fn otel(
    layer: &Layer,
    environment: &BTreeMap<String, Secret>,
) -> Result<Option<OtelConfig>> {
    let given = |path: &str, name: &str| {
        let variable = || {
            Some(Given {
                text: environment.get(name)?.clone(),
                origin: Origin::Variable(name.to_owned()),
            })
        };
        layer
            .get(path)
            .cloned()
            .or_else(variable)
            .filter(|given| !given.text.expose().is_empty())
    };
    let is_disabled = given("", "OTEL_SDK_DISABLED")
        .is_some_and(|given| given.text.expose().eq_ignore_ascii_case("true"));
    let Some(endpoint) =
        given("otel.endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT").filter(|_| !is_disabled)
    else {
        return Ok(None);
    };
    let protocol = given("", "OTEL_EXPORTER_OTLP_PROTOCOL")
        .filter(|given| given.text.expose() != "http/protobuf");
    if let (Some(protocol), Origin::Variable(_)) = (protocol, &endpoint.origin) {
        let remedy = "set it to http/protobuf, and the port to the collector's for that, which is \
                      4318 by default";
        return Err(error(
            &protocol,
            format!("walrelay does not send {:?}", protocol.text.expose()),
            remedy,
        ));
    }
    let headers = given("otel.headers", "OTEL_EXPORTER_OTLP_HEADERS")
        .as_ref()
        .map(headers)
        .transpose()?;
    let mut attributes = BTreeMap::from([("service.name".to_owned(), "walrelay".to_owned())]);
    attributes.extend(
        given("", "OTEL_RESOURCE_ATTRIBUTES")
            .as_ref()
            .map(pairs)
            .transpose()?
            .into_iter()
            .flatten(),
    );
    let name = given("otel.service_name", "OTEL_SERVICE_NAME");
    attributes.extend(name.map(|name| ("service.name".to_owned(), name.text.expose().to_owned())));
    let interval = layer.model.otel.interval;
    Ok(Some(OtelConfig {
        endpoint: base_url(&endpoint)?,
        headers: headers.unwrap_or_default(),
        attributes,
        interval,
    }))
}

fn base_url(given: &Given) -> Result<Uri> {
    let fits = |url: &Uri| {
        let has_host = url
            .authority()
            .is_some_and(|of| !of.as_str().contains('@') && !of.host().is_empty());
        matches!(url.scheme_str(), Some("http" | "https")) && has_host && url.query().is_none()
    };
    let remedy = "write the URL of an OTLP/HTTP receiver, such as http://localhost:4318; a \
                  password goes into otel.headers";
    // The text may hold a password.
    let cause = "this is not http://HOST:PORT or https://HOST:PORT, without user and query";
    given
        .text
        .expose()
        .parse()
        .ok()
        .filter(fits)
        .ok_or_else(|| error(given, cause, remedy))
}

fn headers(given: &Given) -> Result<HeaderMap> {
    let header = |(name, value): (String, String)| {
        let mut value = HeaderValue::try_from(value).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(name).ok()?, value))
    };
    let headers: Option<_> = pairs(given)?.into_iter().map(header).collect();
    headers.ok_or_else(|| no_pairs(given))
}

/// `NAME=VALUE,NAME=VALUE`, percent-encoded, as OpenTelemetry's variables have it.
fn pairs(given: &Given) -> Result<Vec<(String, String)>> {
    let decoded = |text: &str| {
        percent_decode_str(text.trim())
            .decode_utf8()
            .map(Cow::into_owned)
            .ok()
    };
    let pair = |part: &str| {
        let (name, value) = part.split_once('=')?;
        Some((decoded(name)?, decoded(value)?))
    };
    let parts = given
        .text
        .expose()
        .split(',')
        .filter(|part| !part.trim().is_empty());
    parts
        .map(pair)
        .collect::<Option<_>>()
        .ok_or_else(|| no_pairs(given))
}

fn no_pairs(given: &Given) -> Error {
    let remedy = "write NAME=VALUE, with a comma between two, and other characters as %XX";
    error(
        given,
        "this is not NAME=VALUE,NAME=VALUE with characters that a header may have",
        remedy,
    )
}

fn error(given: &Given, cause: impl Display, remedy: &str) -> Error {
    Error::new(Kind::Config, format!("{}: {cause}", given.origin)).remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigFile;
    use crate::config::layers::{Environment, Flags, Settings};

    fn of(text: &str, variables: &[(&str, &str)]) -> Result<Option<OtelConfig>> {
        let environment: Environment = variables
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect();
        let file = ConfigFile::new("w.toml", text);
        Settings::new(&Flags::new(), &environment, Some(&file))?.otel()
    }

    const ENDPOINT: &str = "[otel]\nendpoint = 'http://c:4318'";

    #[test]
    fn nothing_is_sent_without_an_endpoint() {
        assert!(
            of("[otel]\ninterval = '1s'", &[("OTEL_SERVICE_NAME", "x")])
                .unwrap()
                .is_none()
        );
        assert!(
            of(ENDPOINT, &[("OTEL_SDK_DISABLED", "TRUE")])
                .unwrap()
                .is_none()
        );
        let of_variable = of("", &[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c/base/")])
            .unwrap()
            .unwrap();
        assert_eq!(
            (of_variable.endpoint.host(), of_variable.endpoint.path()),
            (Some("c"), "/base/")
        );
    }

    #[test]
    fn a_key_of_the_file_beats_the_standard_variable() {
        let text = "[otel]\nendpoint = 'http://file:4318'\nservice_name = 'file'\nheaders = 'a=1, \
                    api-key = x%2Cy'";
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://variable:4318"),
            ("OTEL_SERVICE_NAME", "variable"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=2"),
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "service.name=low,team=pay%20ments",
            ),
            // It is about the other endpoint.
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ];
        let otel = of(text, &variables).unwrap().unwrap();
        assert_eq!(otel.endpoint.host(), Some("file"));
        assert_eq!(
            (&otel.headers["a"], &otel.headers["api-key"]),
            (
                &HeaderValue::from_static("1"),
                &HeaderValue::from_static("x,y")
            )
        );
        assert_eq!(
            (
                otel.attributes["service.name"].as_str(),
                otel.attributes["team"].as_str()
            ),
            ("file", "pay ments")
        );
        assert_eq!(
            of(ENDPOINT, &variables[1..]).unwrap().unwrap().attributes["service.name"],
            "variable"
        );
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name_with_a_remedy_and_without_a_secret() {
        let endpoint = |text: &str| of("", &[("OTEL_EXPORTER_OTLP_ENDPOINT", text)]).unwrap_err();
        for text in [
            "c:4318",
            "grpc://c:4317",
            "http://",
            "http://me:canary@c:4318",
            "http://c/?k=canary",
            "canary",
        ] {
            let error = endpoint(text);
            assert!(
                error.cause().starts_with("OTEL_EXPORTER_OTLP_ENDPOINT: ")
                    && !error.cause().contains("canary"),
                "{error}"
            );
            assert!(
                error
                    .what_to_do()
                    .unwrap()
                    .contains("http://localhost:4318"),
                "{text}"
            );
        }
        let grpc = of(
            "",
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ],
        );
        assert_eq!(
            grpc.unwrap_err().cause(),
            "OTEL_EXPORTER_OTLP_PROTOCOL: walrelay does not send \"grpc\""
        );
        for headers in ["canary", "a b=canary", "a=canary\u{1}", "a=%ff"] {
            let error = of(
                &format!("{ENDPOINT}\nheaders = {}", toml::Value::from(headers)),
                &[],
            )
            .unwrap_err();
            assert!(
                error.cause().starts_with("w.toml:3: ") && !error.cause().contains("canary"),
                "{error}"
            );
        }
        let shown = format!(
            "{:?}",
            of(&format!("{ENDPOINT}\nheaders = 'a=canary'"), &[]).unwrap()
        );
        assert!(!shown.contains("canary"), "{shown}");
    }
}
