//! Kafka Connect's JSON: `{"name": …, "config": {…}}` or the map alone.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::error::{Error, Kind, Result};

/// An object's members in the order of the file.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// The outer object, whose `config` may be what is looked for.
#[derive(serde::Deserialize)]
struct Outer {
    config: Option<Members>,
}

/// The options in the order of the file. `null` is an option that is not set.
///
/// # Errors
/// [`Kind::Config`] with the line, without any value.
pub(super) fn read(path: &str, text: &str) -> Result<Vec<(String, String)>> {
    // Only the line: the error's own text may quote a value.
    let not_json = |error: &serde_json::Error| {
        Error::new(Kind::Config, format!("{path}:{}: this is not JSON as Kafka Connect takes it", error.line()))
            .remedy("name a file with one object: the connector's options, or its name and config")
    };
    let outer: Outer = match serde_json::from_str(text) {
        Ok(outer) => outer,
        // A member called config that is no object: the map alone is looked at, which says what is wrong.
        Err(error) if error.is_data() => Outer { config: None },
        Err(error) => return Err(not_json(&error)),
    };
    let members = match outer.config {
        Some(config) => config,
        None => serde_json::from_str(text).map_err(|error| not_json(&error))?,
    };
    let mut options = Vec::new();
    for (name, value) in members.0 {
        match value {
            Value::Null => {}
            Value::String(value) => options.push((name, value)),
            Value::Bool(_) | Value::Number(_) => options.push((name, value.to_string())),
            Value::Array(_) | Value::Object(_) => {
                return Err(Error::new(Kind::Config, format!("{path}: {name} is neither text nor a number"))
                    .remedy("an option of Kafka Connect is a text, a number, or true or false"));
            }
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_in_the_order_of_the_file() {
        let wanted = [("z", "1"), ("a", "true"), ("m", "x")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        for text in [
            r#"{"z": 1, "a": true, "none": null, "m": "x"}"#,
            r#"{"name": "n", "config": {"z": "1", "a": "true", "m": "x"}, "tasks": []}"#,
        ] {
            assert_eq!(read("f", text).unwrap(), wanted, "{text}");
        }
    }

    #[test]
    fn what_is_no_configuration_is_refused_without_a_value() {
        for text in [
            "{\"database.password\": \"canary\"",
            "{\"database.password\": \"canary\"]}",
            r#"{"a": {"b": "canary"}}"#,
            r#"{"config": "canary", "a": ["canary"]}"#,
        ] {
            let error = read("f.json", text).unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            assert!(!format!("{error:?}").contains("canary"), "{error:?}");
            assert!(error.what_to_do().is_some());
        }
    }
}
