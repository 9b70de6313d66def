//! Converters of Kafka Connect and formats of Debezium Server: what bytes they make.

use super::given::{Form, Given};

/// What makes bytes of a key, a value or a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Converter {
    /// The text as it is.
    Text,
    /// The bytes as they are.
    Bytes,
    /// JSON, with or without its schema around it.
    Json { schemas: bool },
    /// Anything else, by the last part of its name.
    Other(String),
    /// Nobody knows: the worker's configuration says it.
    Unknown,
}

impl Converter {
    /// The one of `of`: `key`, `value` or `header`.
    pub(super) fn of(given: &Given, of: &str) -> Converter {
        let name = format!("{of}.converter");
        let schemas = || {
            let own = given.get(&format!("{name}.schemas.enable"));
            // Debezium Server has one for all three.
            let shared = given.get("format.schemas.enable");
            !own.or(shared).is_some_and(|value| value.eq_ignore_ascii_case("false"))
        };
        let default = match (given.form, of) {
            (Form::Server, _) => "json",
            (Form::Connect, "header") => "SimpleHeaderConverter",
            (Form::Connect, _) => return given.get(&name).map_or(Converter::Unknown, |class| named(class, schemas())),
        };
        given.or(&name, default).map_or(Converter::Unknown, |class| named(class, schemas()))
    }

    /// In people's words.
    pub(super) fn shown(&self) -> String {
        match self {
            Converter::Text => "text".to_owned(),
            Converter::Bytes => "bytes".to_owned(),
            Converter::Json { schemas: true } => "JSON with its schema around it".to_owned(),
            Converter::Json { schemas: false } => "JSON".to_owned(),
            Converter::Other(name) => format!("what {name} makes"),
            Converter::Unknown => "what the worker's converter makes".to_owned(),
        }
    }
}

fn named(class: &str, schemas: bool) -> Converter {
    match class.rsplit('.').next().unwrap_or(class) {
        "StringConverter" | "SimpleHeaderConverter" | "simplestring" => Converter::Text,
        "ByteArrayConverter" | "BinaryDataConverter" | "ByteBufferConverter" | "binary" => Converter::Bytes,
        "JsonConverter" | "json" | "jsonbytearray" => Converter::Json { schemas },
        // A name of a class or a format; anything else might be a value in the wrong place.
        other if other.bytes().all(|byte| byte.is_ascii_alphanumeric()) => Converter::Other(other.to_owned()),
        _ => Converter::Other("another converter".to_owned()),
    }
}
