//! Headers that rows have and records have not, because their names are walrelay's own.

use std::collections::HashSet;

use crate::config::SlotName;
use crate::event::{Event, Shown};

/// Outboxes of which a person was told: whoever writes such headers writes them into every row.
#[derive(Debug, Default)]
pub(super) struct LeftOut(HashSet<usize>);

impl LeftOut {
    /// The record of `event` goes without this header.
    #[cold]
    pub(super) fn tell(&mut self, event: &Event<'_>, header: &str, outbox: &str, slot: &SlotName) {
        if self.0.insert(event.outbox) {
            let (row, header) = (Shown::of(event.id()), Shown::of(header.as_bytes()));
            tracing::warn!(
                %slot, outbox, %row, %header,
                "headers whose names begin with walrelay- are walrelay's own, and those of rows are left out (said once; do not \
                 copy them from messages into the table, or give them other names)"
            );
        }
    }
}
