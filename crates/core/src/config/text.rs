//! The settings that are text: what each may be, and how serde reads those of other types.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use indexmap::IndexMap;
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serializer};

use super::name::{
    IDENTIFIER_BYTES_MAX, TOPIC_BYTES_MAX, is_closed, is_identifier, is_plain, is_topic,
};
use crate::template::Template;

pub(crate) const POSITION_HEADER: &str = "walrelay-position";
/// The prefix of walrelay's own headers: place, replay, dead letter.
const OWN_HEADERS: &str = "walrelay-";
/// The protocols that may precede a broker's address.
const BROKER_PROTOCOLS: [&str; 4] = ["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"];
const COLUMN: &str = "a column's name, 1 to 63 bytes, without SQL quotes";
/// The rule of a template, for messages.
pub const TEMPLATE: &str = "text with columns in braces, such as orders.{type|lower}; \
                            docs/reference/templates.md has all of it";
const HEADER: &str = "a header's name that does not begin with walrelay-, or nothing for no header";

/// What the text of some keys may be. A type may refuse more.
pub struct Rule {
    /// Their paths, with spaces between.
    pub keys: &'static str,
    /// For the remedy: what to write.
    pub allowed: &'static str,
    /// Whether a text is allowed.
    pub fits: fn(&str) -> bool,
}

/// The rules of all texts.
pub const RULES: &[Rule] = &[
    rule(
        "slot.name",
        "lower-case letters, digits and underscores, 63 at most",
        is_set,
    ),
    rule(
        "slot.publication",
        "a publication's name of 1 to 63 bytes",
        is_identifier,
    ),
    rule(
        "slot.backlog",
        "all, none, pending, or since= and a time or an age, as in since=2026-11-01T00:00:00Z or \
         since=2h",
        is_set,
    ),
    rule(
        "outbox.table",
        "TABLE or SCHEMA.TABLE, quoted as in SQL",
        is_set,
    ),
    rule(
        "outbox.message_prefix",
        "the prefix that messages are emitted with",
        |prefix| !prefix.is_empty() && !prefix.contains('\0'),
    ),
    rule(
        "outbox.columns.id outbox.columns.aggregatetype outbox.columns.aggregateid \
         outbox.columns.type \
         outbox.columns.payload",
        COLUMN,
        is_identifier,
    ),
    rule(
        "outbox.columns.max_attempts outbox.columns.traceparent outbox.time outbox.notify \
         route.partition \
         route.timestamp",
        COLUMN,
        |column| column.is_empty() || is_identifier(column),
    ),
    rule(
        "outbox.pending outbox.order_by outbox.mark outbox.mark_failed outbox.mark_waiting \
         outbox.failed",
        "SQL without semicolons, comments and NUL, and with its brackets and quotes closed",
        // Other text could end the statement around it, or hide the rest of that.
        |sql| {
            ![";", "\0", "--", "/*"]
                .iter()
                .any(|part| sql.contains(part))
                && is_closed(sql)
        },
    ),
    rule(
        "outbox.log_columns",
        "names of columns with commas between, without SQL quotes",
        |text| {
            names(text)
                .all(|name| name.len() <= IDENTIFIER_BYTES_MAX && !name.contains(['\0', '"']))
        },
    ),
    rule(
        "route.topic_prefix",
        "fewer than 249 letters, digits, dots, underscores and hyphens",
        |prefix| prefix.len() < TOPIC_BYTES_MAX && prefix.bytes().all(is_plain),
    ),
    rule(
        "route.topic route.key route.headers_from format.value",
        TEMPLATE,
        |_| true,
    ),
    rule("route.id_header", HEADER, is_header),
    rule("route.position_header", HEADER, |name| {
        name == POSITION_HEADER || is_header(name)
    }),
    rule(
        "kafka.brokers",
        "HOST:PORT, or several with commas between",
        are_brokers,
    ),
    rule(
        "delivery.dead_letter_topic state.topic",
        "a topic's name, 1 to 249 of a-z A-Z 0-9 . _ -",
        is_topic,
    ),
    // A system identifier and a slot's name follow the prefix.
    rule(
        "delivery.transactional_id_prefix",
        "1 to 150 of a-z A-Z 0-9 . _ -",
        |prefix| (1..=150).contains(&prefix.len()) && prefix.bytes().all(is_plain),
    ),
    rule(
        "state.key",
        "1 to 255 bytes without control characters",
        |key| (1..=255).contains(&key.len()) && !key.contains(char::is_control),
    ),
    rule(
        "http.listen",
        "a PORT (on 127.0.0.1 only), or ADDRESS:PORT such as 0.0.0.0:9464 or [::1]:9464",
        is_set,
    ),
    rule(
        "log.filter",
        "a filter such as info or walrelay=debug",
        |text| !text.trim().is_empty(),
    ),
];

const fn rule(keys: &'static str, allowed: &'static str, fits: fn(&str) -> bool) -> Rule {
    Rule {
        keys,
        allowed,
        fits,
    }
}

fn is_header(name: &str) -> bool {
    !name.contains('\0') && !is_own_header(name)
}

fn is_set(text: &str) -> bool {
    !text.is_empty()
}

fn are_brokers(text: &str) -> bool {
    text.split(',').all(|broker| {
        // librdkafka accepts a protocol before the address, with the meaning of security.protocol.
        let (protocol, address) = broker
            .trim()
            .split_once("://")
            .unwrap_or(("plaintext", broker.trim()));
        let is_known = BROKER_PROTOCOLS
            .iter()
            .any(|known| known.eq_ignore_ascii_case(protocol));
        is_known && !address.is_empty() && !address.contains(char::is_whitespace)
    })
}

/// Whether a header of this name is one of walrelay's own, which a row cannot set.
pub fn is_own_header(name: &str) -> bool {
    name.get(..OWN_HEADERS.len())
        .is_some_and(|begin| begin.eq_ignore_ascii_case(OWN_HEADERS))
}

fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
}

/// Reads names that commas separate.
pub fn list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(names(&String::deserialize(from)?)
        .map(str::to_owned)
        .collect())
}

/// Reads a text that has a form of its own.
pub fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    from: D,
) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

/// The same; none of empty text, so that an `[[outbox]]` can unset a value that the others have.
pub fn optional<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() {
        Ok(None)
    } else {
        text.parse().map(Some).map_err(D::Error::custom)
    }
}

/// Names with templates, in the order of the file.
pub fn templates<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, Template)>, D::Error> {
    let named = IndexMap::<String, String>::deserialize(from)?.into_iter();
    let named = named.map(|(name, text)| Ok((name, text.parse().map_err(D::Error::custom)?)));
    named.collect()
}

/// A port without an address listens on loopback only.
pub fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(from)?;
    let port = text
        .strip_prefix("localhost:")
        .or_else(|| text.strip_prefix(':'))
        .unwrap_or(&text);
    let loopback = || {
        Some(SocketAddr::new(
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            port.parse().ok()?,
        ))
    };
    let address = text.parse().ok().or_else(loopback);
    address
        .map(Some)
        .ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &"an address"))
}

/// Writes no default: the key is required, or its value follows from other keys.
pub fn no_default<T, S: Serializer>(_: &T, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_none()
}
