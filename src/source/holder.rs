//! Who has the slot, or its table: what a relay that stands by looks at.

use std::fmt;

use serde::Deserialize;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::config::SlotName;
use crate::error::Result;
use crate::postgres::query::one_json;
use crate::source::lease;

const HOLDER: &str = include_str!("../../sql/source/holder.sql");

/// The session others wait for. `Display` names it for people.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Holder {
    /// Process id of the server's side.
    pub pid: i32,
    /// It streams from the slot; else it reads the table.
    pub streams: bool,
    /// `application_name`, where the role may see it.
    pub application: Option<String>,
    /// Its address, likewise; none for a local socket.
    pub client: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend pid {}", self.pid)?;
        if let Some(application) = &self.application {
            write!(f, ", {application}")?;
        }
        if let Some(client) = &self.client {
            write!(f, " from {client}")?;
        }
        f.write_str(if self.streams { ", streams" } else { ", reads the table" })
    }
}

/// Who keeps other relays of `slot` waiting; none where nobody does. One small query, bounded in time.
///
/// # Errors
/// Of the connection only.
pub(crate) async fn holder(client: &Client, slot: &SlotName) -> Result<Option<Holder>> {
    let (class, key) = lease::keys(slot);
    let params = [(&slot.as_str() as _, Type::TEXT), (&class as _, Type::INT4), (&key as _, Type::INT4)];
    Ok(one_json(client, "asking who has the slot", HOLDER, &params).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_named_as_far_as_the_role_may_see_it() {
        let hidden = Holder { pid: 7, streams: true, application: None, client: None };
        assert_eq!(hidden.to_string(), "backend pid 7, streams");
        let known = Holder { application: Some("walrelay/a".into()), client: Some("10.0.0.1".into()), ..hidden };
        assert_eq!(known.to_string(), "backend pid 7, walrelay/a from 10.0.0.1, streams");
    }
}
