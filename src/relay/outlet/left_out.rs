//! Headers that rows have and records have not, because their names are walrelay's own.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::config::SlotName;
use crate::event::{Event, Shown};

/// Outboxes of which a person was told: whoever writes such headers writes them into every row, and producers come and go.
static TOLD: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());

/// The record of `event` goes without this header.
#[cold]
pub(super) fn tell(event: &Event<'_>, header: &str, outbox: &str, slot: &SlotName) {
    let of = (slot.to_string(), outbox.to_owned());
    if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(of) {
        let (row, header) = (Shown::of(event.id()), Shown::of(header.as_bytes()));
        tracing::warn!(
            %slot, outbox, %row, %header,
            "headers whose names begin with walrelay- are walrelay's own, and those of rows are left out (said once; do not \
             copy them from messages into the table, or give them other names)"
        );
    }
}
