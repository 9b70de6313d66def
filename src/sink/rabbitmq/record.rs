//! What a record is as a message of AMQP 0-9-1.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};

use crate::config::Config;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::event::Shown;
use walrelay_core::route::Record;

/// A message that servers write to disk.
const PERSISTENT: u8 = 2;
/// Headers that make servers route copies to other queues. Only arrays count today, which a record
/// has not.
const ROUTES: [&str; 2] = ["CC", "BCC"];
/// Queues with such names are of servers and of clients that wait for answers.
const RESERVED: &str = "amq.";
/// What a frame has beside its contents.
const FRAME_BYTES: usize = 8;
/// The fields of a content header that each message has: class, weight, size, flags, mode, and the
/// length of the headers.
const FIXED_BYTES: usize = 2 + 2 + 8 + 2 + 1 + 4;

/// Makes messages.
#[derive(Debug)]
pub(super) struct Messages {
    exchange: ShortString,
    id_headers: Vec<String>,
}

/// A message without its body.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    /// The bytes of the frame with the properties.
    pub(super) header_bytes: usize,
}

impl Messages {
    pub(super) fn new(config: &Config) -> Result<Messages> {
        let exchange = short("rabbitmq.exchange", &config.rabbitmq.exchange)
            .map_err(|error| error.with_kind(Kind::Config))?;
        let routes = config.outboxes.iter().map(|outbox| &outbox.route);
        Ok(Messages {
            exchange,
            id_headers: routes.filter_map(|route| route.id_header.clone()).collect(),
        })
    }

    pub(super) fn exchange(&self) -> &ShortString {
        &self.exchange
    }

    /// Errors: no message can be this record.
    pub(super) fn message(&self, record: &Record<'_>) -> Result<Message> {
        let routing_key = self.routing_key(record.topic)?;
        let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        let mut header_bytes = FRAME_BYTES + FIXED_BYTES;
        let mut headers = FieldTable::default();
        for (at, (name, value)) in record.headers.iter().enumerate() {
            check_name(name)?;
            // The id is the first header.
            let is_id = at == 0 && self.id_headers.iter().any(|id| id == name);
            let property = if is_id {
                Some(Property::Id)
            } else {
                Property::of(name)
            };
            if let (Some(property), Some(value)) = (property, value) {
                let text = property_text(name, value)?;
                header_bytes += 1 + text.as_str().len();
                properties = property.set(properties, text);
            }
            header_bytes += entry_bytes(name, *value);
            let value = match value {
                Some(value) => AMQPValue::LongString(LongString::from(*value)),
                None => AMQPValue::Void,
            };
            headers.insert(short_name(name)?, value);
        }
        if let Some(seconds) = record
            .timestamp_ms
            .and_then(|at| u64::try_from(at / 1_000).ok())
        {
            header_bytes += 8;
            properties = properties.with_timestamp(seconds);
        }
        Ok(Message {
            exchange: self.exchange.clone(),
            routing_key,
            properties: properties.with_headers(headers),
            header_bytes,
        })
    }

    /// Errors: no message can have this routing key.
    pub(super) fn routing_key(&self, topic: &str) -> Result<ShortString> {
        let to_queue = self.exchange.as_str().is_empty();
        let is_reserved = to_queue && topic.starts_with(RESERVED);
        let key = ShortString::try_new(topic).ok();
        key.filter(|key| !key.as_str().is_empty() && !is_reserved)
            .ok_or_else(|| {
                let topic = Shown::of(topic.as_bytes());
                let cause = format!("topic {topic} cannot be a routing key here");
                Error::new(Kind::Record, cause).remedy(
                    "correct the columns of route.topic: a routing key has 1 to 255 bytes, and \
                     without rabbitmq.exchange it is no queue amq.…",
                )
            })
    }
}

/// Errors: the frame with the properties is longer than the server takes. It would close the
/// connection, and take all others with it.
pub(super) fn check_size(message: &Message, frame_bytes_max: usize) -> Result<()> {
    if message.header_bytes <= frame_bytes_max {
        return Ok(());
    }
    let cause = format!(
        "the headers of a record for {} have {} bytes, and the server takes {frame_bytes_max}",
        message.routing_key, message.header_bytes
    );
    Err(Error::new(Kind::RecordTooLarge, cause)
        .remedy("put large headers into the value, or raise frame_max of the servers"))
}

/// The properties of AMQP that a header sets. The header stays.
#[derive(Debug, Clone, Copy)]
enum Property {
    Id,
    Type,
    ContentType,
    CorrelationId,
}

impl Property {
    fn of(name: &str) -> Option<Property> {
        match name {
            "type" => Some(Property::Type),
            "content-type" => Some(Property::ContentType),
            "correlation_id" | "correlation-id" => Some(Property::CorrelationId),
            _ => None,
        }
    }

    fn set(self, properties: BasicProperties, text: ShortString) -> BasicProperties {
        match self {
            Property::Id => properties.with_message_id(text),
            Property::Type => properties.with_type(text),
            Property::ContentType => properties.with_content_type(text),
            Property::CorrelationId => properties.with_correlation_id(text),
        }
    }
}

/// The bytes of a header in its table.
fn entry_bytes(name: &str, value: Option<&[u8]>) -> usize {
    1 + name.len() + 1 + value.map_or(0, |value| 4 + value.len())
}

/// `value` is none where it is not known. Errors: no message can have this header.
pub(super) fn check_header(name: &str, value: Option<&[u8]>) -> Result<()> {
    check_name(name)?;
    if let (Some(_), Some(value)) = (Property::of(name), value) {
        property_text(name, value)?;
    }
    short_name(name).map(drop)
}

fn check_name(name: &str) -> Result<()> {
    if ROUTES.iter().any(|route| route.eq_ignore_ascii_case(name)) {
        return Err(refused(name, "would route copies to other queues"));
    }
    Ok(())
}

fn property_text(name: &str, value: &[u8]) -> Result<ShortString> {
    let text = std::str::from_utf8(value).ok();
    let text = text.ok_or_else(|| refused(name, "is a property of AMQP, and no UTF-8"))?;
    short(name, text)
}

fn short_name(name: &str) -> Result<ShortString> {
    ShortString::try_new(name).map_err(|_| refused(name, "has a name of more than 255 bytes"))
}

/// The value of a property.
fn short(name: &str, text: &str) -> Result<ShortString> {
    ShortString::try_new(text)
        .map_err(|_| refused(name, "is a property of AMQP, and has more than 255 bytes"))
}

fn refused(name: &str, why: &str) -> Error {
    let name = Shown::of(name.as_bytes());
    Error::new(Kind::Record, format!("header {name} of the record {why}")).remedy(
        "leave it out, or give it another name or value, in [route.headers] or in what \
         route.headers_from reads",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(exchange: &str) -> Messages {
        Messages {
            exchange: exchange.into(),
            id_headers: vec!["id".to_owned()],
        }
    }

    fn record<'a>(topic: &'a str, headers: &'a [(&'a str, Option<&'a [u8]>)]) -> Record<'a> {
        Record {
            topic,
            headers,
            timestamp_ms: Some(1_700_000_000_999),
            ..Record::default()
        }
    }

    #[test]
    fn properties_come_from_headers_which_stay() {
        let headers: [(&str, Option<&[u8]>); 5] = [
            ("id", Some(b"7")),
            ("type", Some(b"Placed")),
            ("correlation_id", Some(b"c")),
            ("content-type", None),
            ("bytes", Some(b"\xff")),
        ];
        let message = messages("x").message(&record("t", &headers)).unwrap();
        let properties = &message.properties;
        let text = |text: &Option<ShortString>| text.as_ref().map(|text| text.as_str().to_owned());
        assert_eq!(text(properties.message_id()).as_deref(), Some("7"));
        assert_eq!(text(properties.kind()).as_deref(), Some("Placed"));
        assert_eq!(text(properties.correlation_id()).as_deref(), Some("c"));
        assert_eq!(text(properties.content_type()), None);
        assert_eq!(properties.timestamp(), &Some(1_700_000_000));
        assert_eq!(properties.delivery_mode(), &Some(2));
        let table = properties.headers().as_ref().unwrap().inner();
        assert_eq!(table.len(), 5);
        assert_eq!(table.get("content-type"), Some(&AMQPValue::Void));
        assert_eq!(
            table.get("bytes"),
            Some(&AMQPValue::LongString(LongString::from(&b"\xff"[..])))
        );
        assert_eq!(message.routing_key.as_str(), "t");
    }

    #[test]
    fn what_amqp_cannot_carry_or_would_route_elsewhere_is_refused() {
        let long = "x".repeat(256);
        for (topic, name, value) in [
            ("t", "CC", &b"q"[..]),
            ("t", "BCC", b"q"),
            ("t", "Cc", b"q"),
            ("t", "bcc", b"q"),
            ("t", long.as_str(), b"v"),
            ("t", "id", long.as_bytes()),
            ("t", "type", long.as_bytes()),
            ("t", "type", b"\xff"),
            (long.as_str(), "a", b"v"),
            ("", "a", b"v"),
            ("amq.rabbitmq.reply-to.x", "a", b"v"),
        ] {
            let headers = [(name, Some(value))];
            let error = messages("").message(&record(topic, &headers)).unwrap_err();
            assert_eq!(error.kind(), Kind::Record, "{topic} {name}");
            assert!(error.cause().len() < 300, "{error}");
        }
        assert!(messages("x").message(&record("amq.x", &[])).is_ok());
    }

    #[test]
    fn headers_longer_than_a_frame_are_refused() {
        let value = vec![b'x'; 5_000];
        let headers: [(&str, Option<&[u8]>); 3] =
            [("id", Some(b"7")), ("none", None), ("long", Some(&value))];
        let message = messages("x").message(&record("t", &headers)).unwrap();
        // Around the contents; class, weight, size, flags; the headers; the mode; the message id;
        // the time.
        let table = 4 + (1 + 2 + 1 + 4 + 1) + (1 + 4 + 1) + (1 + 4 + 1 + 4 + 5_000);
        let frame = 8 + (2 + 2 + 8 + 2) + table + 1 + (1 + 1) + 8;
        assert_eq!(message.header_bytes, frame);
        assert!(check_size(&message, frame).is_ok());
        let error = check_size(&message, frame - 1).unwrap_err();
        assert_eq!(error.kind(), Kind::RecordTooLarge);
    }
}
