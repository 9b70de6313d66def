//! How many events of a slot wait in `walrelay.parked`, for whoever asks about the slot.

use crate::cli::session::{Session, column};
use crate::cli::text::counted;
use crate::config::SlotName;
use crate::error::Result;

const READABLE: &str = include_str!("../../../sql/parked/readable.sql");
const HOW_MANY: &str = include_str!("../../../sql/parked/how_many.sql");

/// Events of a slot that wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waiting {
    /// How many.
    pub events: i64,
    /// For how long the first of them has; none where there is none.
    pub oldest_seconds: Option<f64>,
}

/// Those of `slot`; none where there is no such table, or the role may not read it.
///
/// # Errors
/// What Postgres gives.
pub async fn waiting(session: &Session, slot: &SlotName) -> Result<Option<Waiting>> {
    let row = session.row("looking for table walrelay.parked", READABLE, &[]).await?;
    if !row.is_some_and(|row| row.try_get(0).unwrap_or(false)) {
        return Ok(None);
    }
    let Some(row) = session.row("counting parked events", HOW_MANY, &[&slot.as_str()]).await? else { return Ok(None) };
    Ok(Some(Waiting { events: column(&row, "events")?, oldest_seconds: column(&row, "oldest_seconds")? }))
}

impl Waiting {
    /// What becomes of them where the slot goes; nothing where there are none.
    pub fn stay_behind(&self, slot: &SlotName) -> Option<String> {
        let events = counted(u64::try_from(self.events).ok().filter(|events| *events > 0)?, "event");
        Some(format!(
            "{events} of slot {slot} wait in table walrelay.parked and stay there: see them with walrelay parked list --slot \
             {slot}. A relay of a later slot {slot} delivers them, and does not start without delivery.on_error = \"park\"; \
             where nobody wants them: delete from walrelay.parked where slot = '{slot}'"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_behind_is_counted_and_nothing_is_said_of_nothing() {
        let slot: SlotName = "shop".parse().unwrap();
        let said = |events| Waiting { events, oldest_seconds: None }.stay_behind(&slot);
        assert_eq!(said(0), None);
        let said = said(5).unwrap();
        assert!(said.starts_with("5 events of slot shop wait") && said.ends_with("where slot = 'shop'"), "{said}");
    }
}
