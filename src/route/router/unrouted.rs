//! An event without a way, as far as it can be told.

use serde_json::{Map, Value};

use super::Router;
use crate::event::Event;
use crate::route::OwnedRecord;

impl Router {
    /// What is known of an event that cannot be routed: its key, if it has one, and for a value the needed columns as a JSON
    /// object of texts. The topic is empty.
    pub fn unrouted(&self, event: &Event<'_>) -> OwnedRecord {
        let key = self.key.as_ref().and_then(|route| route.bound.render(&event.row).ok().flatten());
        let text = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes));
        let columns = self.columns.iter().enumerate();
        let row: Map<String, Value> =
            columns.map(|(place, name)| (name.clone(), event.row.get(place).map_or(Value::Null, text))).collect();
        let id = self.id_header.iter().map(|name| (name.clone(), Some(event.id().to_vec())));
        OwnedRecord {
            topic: String::new(),
            key: key.map(|key| key.into_owned()),
            value: Some(Value::Object(row).to_string().into_bytes()),
            headers: id.collect(),
            partition: None,
            timestamp_ms: None,
        }
    }
}
