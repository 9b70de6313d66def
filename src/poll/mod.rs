//! Rows of the outbox table that were not published: which, in which order, read how.

use serde::{Deserialize, Serialize};

/// Where a row stands in the order of reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Text of the order expression.
    pub order: Option<String>,
    /// Text of the id.
    pub id: String,
}
