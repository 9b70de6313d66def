//! What a position looks like in Kafka.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};
use crate::state::Stored;

/// The layout written, and the newest one understood.
const VERSION: u32 = 3;

#[derive(Serialize, Deserialize)]
struct Envelope {
    /// The layout: goes up when an older walrelay would misread it.
    version: u32,
    /// For people: when, by the relay's clock.
    written_at: String,
    /// For people: which walrelay.
    walrelay: String,
    #[serde(flatten)]
    stored: Stored,
}

#[derive(Deserialize)]
struct Layout {
    version: u32,
}

pub(super) fn encode(stored: &Stored) -> Result<Vec<u8>> {
    let envelope = Envelope {
        version: VERSION,
        written_at: jiff::Timestamp::now().to_string(),
        walrelay: env!("CARGO_PKG_VERSION").to_owned(),
        stored: stored.clone(),
    };
    serde_json::to_vec(&envelope)
        .map_err(|error| Error::new(Kind::Bug, format!("a position cannot be written: {error}")))
}

/// # Errors
/// [`Kind::KafkaRefused`]: the record is not a position, or one of a newer layout.
pub(super) fn decode(value: &[u8], topic: &str, key: &str) -> Result<Stored> {
    let place = format!("the record with key {key:?} in topic {topic}");
    let foreign = |error: serde_json::Error| {
        // Where, not what: the message can quote the record.
        let at = format!("{:?} at column {}", error.classify(), error.column());
        Error::new(Kind::KafkaRefused, format!("{place} is not a position ({at})")).remedy(
            "use another state topic or key; if the record was damaged, remove it and start with --adopt-slot, which \
             publishes again whatever the slot still holds",
        )
    };
    let layout: Layout = serde_json::from_slice(value).map_err(foreign)?;
    if layout.version > VERSION {
        let cause = format!("{place} has layout {}; this walrelay reads up to {VERSION}", layout.version);
        return Err(Error::new(Kind::KafkaRefused, cause).remedy("run the newer walrelay that wrote it"));
    }
    let envelope: Envelope = serde_json::from_slice(value).map_err(foreign)?;
    Ok(envelope.stored)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::position::{Lsn, Partial, Position};
    use crate::state::ServerIdentity;

    pub(in crate::state::kafka) fn stored(end_lsn: u64) -> Stored {
        let partial = Partial { commit_lsn: Lsn::new(end_lsn + 8), index: 3 };
        Stored {
            server: ServerIdentity { system_identifier: "7480000000000000001".to_owned(), timeline: 2 },
            slot: "orders".to_owned(),
            position: Position { end_lsn: Lsn::new(end_lsn), partial: Some(partial) },
            publication_oid: 16_400,
            table_oids: vec![16_390],
            membership_oids: vec![16_401],
            message_prefixes: Vec::new(),
            published: None,
            stream_only: Vec::new(),
            catch_up: None,
        }
    }

    #[test]
    fn a_position_reads_back_as_it_was_written() {
        let value = encode(&stored(0x16_B374_D848)).unwrap();
        assert_eq!(decode(&value, "t", "k"), Ok(stored(0x16_B374_D848)));
        let text: serde_json::Value = serde_json::from_slice(&value).unwrap();
        assert_eq!(text["version"], VERSION);
        assert_eq!(text["walrelay"], env!("CARGO_PKG_VERSION"));
        assert_eq!(text["slot"], "orders");
        assert_eq!(text["system_identifier"], "7480000000000000001");
        assert_eq!(text["position"]["end_lsn"], "16/B374D848");
        assert!(text["written_at"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
    }

    #[test]
    fn a_record_of_somebody_else_is_refused_without_being_quoted() {
        for value in ["", "{}", "hello canary", r#"{"version":1,"slot":"canary"}"#, r#"{"version":"canary"}"#, "[1]"] {
            let error = decode(value.as_bytes(), "walrelay.state", "orders").unwrap_err();
            assert_eq!(error.kind(), Kind::KafkaRefused);
            assert!(error.cause().contains(r#""orders" in topic walrelay.state"#), "{error}");
            assert!(!error.cause().contains("canary"), "{error}");
            assert!(error.what_to_do().is_some());
        }
    }

    #[test]
    fn a_newer_layout_is_refused_even_if_it_would_parse() {
        let value = String::from_utf8(encode(&stored(1)).unwrap()).unwrap();
        let newer = value.replace("\"version\":3", "\"version\":4");
        let error = decode(newer.as_bytes(), "t", "k").unwrap_err();
        assert_eq!(error.kind(), Kind::KafkaRefused);
        assert!(error.cause().contains("layout 4"), "{error}");
    }

    #[test]
    fn the_first_layout_with_its_one_table_is_read() {
        let value = String::from_utf8(encode(&stored(1)).unwrap()).unwrap();
        let first =
            value.replace("\"version\":3", "\"version\":1").replace("\"table_oids\":[16390]", "\"table_oid\":16390");
        assert_ne!(first, value);
        assert_eq!(decode(first.as_bytes(), "t", "k"), Ok(stored(1)));
    }
}
