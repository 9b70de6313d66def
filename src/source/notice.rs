//! What the server says beside the changes, inside the stream.

use crate::config::SourceConfig;
use crate::error::{Error, Kind, NextCommand, Remedy, Result};
use crate::postgres::fault::WAITS_FOR_STANDBY;
use crate::source::Notice;

/// SQLSTATE of the warning with which Postgres 18 says that it skips every change of a publication that did not exist
/// when they were written (`object_not_in_prerequisite_state`). Older majors end the stream instead.
const SKIPPED_PUBLICATION: &str = "55000";

/// Judges a notice that came inside the stream. Most are for the log.
///
/// # Errors
/// [`Kind::Publication`] where it says that changes are being skipped (P8).
pub(crate) fn judge(notice: &Notice, source: &SourceConfig) -> Result<()> {
    // With the same code. Nothing is skipped: the changes come as soon as the standby has them.
    if notice.routine == WAITS_FOR_STANDBY {
        let slot = &source.slot;
        tracing::warn!(%slot, notice = %notice.message.escape_debug(), "Postgres holds events back until a standby has them");
        return Ok(());
    }
    if notice.sqlstate == SKIPPED_PUBLICATION {
        let (slot, publication) = (&source.slot, &source.publication);
        return Err(Error::new(
            Kind::Publication,
            format_args!("slot {slot}: Postgres skips changes, because publication {publication} did not exist when they were written"),
        )
        .remedy(
            Remedy::from(
                "the rows are in the outbox table and not in the stream; create the publication, then drop and create the \
                 slot (",
            )
            .and(NextCommand::new("setup").option("slot", slot))
            .and("), and publish the rows written in between again"),
        ));
    }
    tracing::warn!(sqlstate = ?notice.sqlstate, notice = %notice.message.escape_debug(), "Postgres says inside the stream");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conninfo::ConnInfo;

    fn said(sqlstate: &str, routine: &str) -> Result<()> {
        let database = ConnInfo::parse(Some("host=h user=u dbname=d"), &|_| None)?;
        let source = SourceConfig::sample(database, "orders", "walrelay_orders", 1000);
        let [severity, sqlstate, message, routine] = ["WARNING", sqlstate, "canary", routine].map(str::to_owned);
        let notice = Notice { severity, sqlstate, message, routine };
        judge(&notice, &source)
    }

    #[test]
    fn a_warning_that_changes_are_skipped_stops_the_relay_and_others_do_not() {
        // A server that does not say which of its functions speaks is taken at its worst.
        let error = said("55000", "").unwrap_err();
        assert_eq!(error.kind(), Kind::Publication);
        assert!(error.cause().contains("orders") && error.cause().contains("walrelay_orders"), "{error}");
        assert!(error.what_to_do().unwrap().contains("walrelay setup --slot orders"));
        assert_eq!(said("55000", "LoadPublications").unwrap_err().kind(), Kind::Publication);
        for harmless in ["00000", "01000", "42704", ""] {
            said(harmless, "").unwrap();
        }
    }

    #[test]
    fn a_slot_that_waits_for_a_standby_skips_nothing_and_stops_nothing() {
        // An inactive or invalidated standby slot, and one that does not exist.
        for sqlstate in ["55000", "22023"] {
            said(sqlstate, "StandbySlotsHaveCaughtup").unwrap();
        }
    }
}
