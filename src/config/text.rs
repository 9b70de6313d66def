//! The settings that are text: what each may be, and how serde reads those of other types.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serializer};

use super::name::{IDENTIFIER_BYTES_MAX, TOPIC_BYTES_MAX, is_closed, is_identifier, is_plain, is_topic};
use crate::template::Template;

pub(super) const POSITION_HEADER: &str = "walrelay-position";
/// The prefix of walrelay's own headers: place, replay, dead letter.
const OWN_HEADERS: &str = "walrelay-";
/// The protocols that may precede a broker's address.
const BROKER_PROTOCOLS: [&str; 4] = ["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"];
const COLUMN: &str = "a column's name, 1 to 63 bytes, without SQL quotes";
pub(super) const TEMPLATE: &str =
    "text with columns in braces, such as orders.{type|lower}; docs/reference/templates.md has all of it";

/// What the text of some keys may be. A type may refuse more.
pub(super) struct Rule {
    /// Their paths, with spaces between.
    pub(super) keys: &'static str,
    /// For the remedy: what to write.
    pub(super) allowed: &'static str,
    pub(super) fits: fn(&str) -> bool,
}

pub(super) const RULES: [Rule; 18] = [
    Rule { keys: "slot.name", allowed: "lower-case letters, digits and underscores, 63 at most", fits: is_any },
    Rule { keys: "slot.publication", allowed: "a publication's name of 1 to 63 bytes", fits: is_identifier },
    Rule {
        keys: "slot.backlog",
        allowed: "all, none, pending, or since= and a time such as since=2026-11-01T00:00:00Z",
        fits: is_any,
    },
    Rule { keys: "outbox.table", allowed: "TABLE or SCHEMA.TABLE, quoted as in SQL", fits: is_any },
    Rule {
        keys: "outbox.message_prefix",
        allowed: "the prefix that messages are emitted with",
        fits: |prefix| !prefix.is_empty() && !prefix.contains('\0'),
    },
    Rule {
        keys: "outbox.columns.id outbox.columns.aggregatetype outbox.columns.aggregateid outbox.columns.type \
               outbox.columns.payload",
        allowed: COLUMN,
        fits: is_identifier,
    },
    Rule {
        keys: "outbox.columns.max_attempts outbox.columns.traceparent outbox.time outbox.notify route.partition \
               route.timestamp",
        allowed: COLUMN,
        fits: |column| column.is_empty() || is_identifier(column),
    },
    Rule {
        keys: "outbox.pending outbox.order_by outbox.mark outbox.mark_failed outbox.mark_waiting outbox.failed",
        allowed: "SQL without semicolons, comments and NUL, and with its brackets and quotes closed",
        // Other text could end the statement around it, or hide the rest of that.
        fits: |sql| ![";", "\0", "--", "/*"].iter().any(|part| sql.contains(part)) && is_closed(sql),
    },
    Rule {
        keys: "outbox.log_columns",
        allowed: "names of columns with commas between, without SQL quotes",
        fits: |text| names(text).all(|name| name.len() <= IDENTIFIER_BYTES_MAX && !name.contains(['\0', '"'])),
    },
    Rule {
        keys: "route.topic_prefix",
        allowed: "fewer than 249 letters, digits, dots, underscores and hyphens",
        fits: |prefix| prefix.len() < TOPIC_BYTES_MAX && prefix.bytes().all(is_plain),
    },
    Rule { keys: "route.topic route.key route.headers_from format.value", allowed: TEMPLATE, fits: is_any },
    Rule {
        keys: "route.id_header route.position_header",
        allowed: "a header's name that does not begin with walrelay-, or nothing for no header",
        fits: |name| name == POSITION_HEADER || !(name.contains('\0') || is_own_header(name)),
    },
    Rule { keys: "kafka.brokers", allowed: "HOST:PORT, or several with commas between", fits: are_brokers },
    Rule {
        keys: "delivery.dead_letter_topic state.topic",
        allowed: "a topic's name, 1 to 249 of a-z A-Z 0-9 . _ -",
        fits: is_topic,
    },
    Rule {
        keys: "delivery.transactional_id_prefix",
        // A system identifier and a slot's name follow it.
        allowed: "1 to 150 of a-z A-Z 0-9 . _ -",
        fits: |prefix| (1..=150).contains(&prefix.len()) && prefix.bytes().all(is_plain),
    },
    Rule {
        keys: "state.key",
        allowed: "1 to 255 bytes without control characters",
        fits: |key| (1..=255).contains(&key.len()) && !key.contains(char::is_control),
    },
    Rule {
        keys: "http.listen",
        allowed: "a PORT (on 127.0.0.1 only), or ADDRESS:PORT such as 0.0.0.0:9464 or [::1]:9464",
        fits: is_any,
    },
    Rule {
        keys: "log.filter",
        allowed: "a filter such as info or walrelay=debug",
        fits: |text| !text.trim().is_empty(),
    },
];

fn is_any(_: &str) -> bool {
    true
}

fn are_brokers(text: &str) -> bool {
    text.split(',').all(|broker| {
        // librdkafka accepts a protocol before the address, with the meaning of security.protocol.
        let (protocol, address) = broker.trim().split_once("://").unwrap_or(("plaintext", broker.trim()));
        let is_known = BROKER_PROTOCOLS.iter().any(|known| known.eq_ignore_ascii_case(protocol));
        is_known && !address.is_empty() && !address.contains(char::is_whitespace)
    })
}

/// Whether a header of this name is one of walrelay's own, which a row cannot set.
pub(crate) fn is_own_header(name: &str) -> bool {
    name.get(..OWN_HEADERS.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(OWN_HEADERS))
}

fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty())
}

pub(super) fn list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(names(&String::deserialize(from)?).map(str::to_owned).collect())
}

pub(super) fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

/// The same; none of empty text, so that an `[[outbox]]` can unset a value that the others have.
pub(super) fn optional<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(D::Error::custom) }
}

/// Names with templates, in the order of the file.
pub(super) fn templates<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, Template)>, D::Error> {
    let named = toml::Table::deserialize(from)?.into_iter().map(|(name, text)| {
        let text = text.as_str().ok_or_else(|| D::Error::invalid_type(Unexpected::Other(text.type_str()), &"a string"));
        Ok((name, text?.parse().map_err(D::Error::custom)?))
    });
    named.collect()
}

/// A port without an address listens on loopback only.
pub(super) fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(from)?;
    let port = text.strip_prefix("localhost:").or_else(|| text.strip_prefix(':')).unwrap_or(&text);
    let loopback = || Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.parse().ok()?));
    let address = text.parse().ok().or_else(loopback);
    address.map(Some).ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &"an address"))
}

/// Writes no default: the key is required, or its value follows from other keys.
pub(super) fn no_default<T, S: Serializer>(_: &T, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_none()
}
