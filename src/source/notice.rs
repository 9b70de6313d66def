//! What the server says beside the changes, inside the stream.

use pgwire_replication::protocol::messages::ErrorFields;

use crate::config::SourceConfig;
use crate::error::{Error, Kind, Result};

/// SQLSTATE of the warning with which Postgres 18 says that it skips every change of a publication that did not exist
/// when they were written (`object_not_in_prerequisite_state`). Older majors end the stream instead.
const SKIPPED_PUBLICATION: &str = "55000";

/// Settings that change the text of a value, with what our start-up asked for (P8).
const PINNED: [(&str, &str); 4] =
    [("client_encoding", "UTF8"), ("DateStyle", "ISO"), ("TimeZone", "UTC"), ("IntervalStyle", "postgres")];

/// Judges a notice that came inside the stream. Most are for the log.
///
/// # Errors
/// [`Kind::Publication`] where it says that changes are being skipped (P8).
pub fn judge(notice: &ErrorFields, source: &SourceConfig) -> Result<()> {
    let code = notice.code.as_deref().unwrap_or_default();
    let message = notice.message.as_deref().unwrap_or_default();
    if code == SKIPPED_PUBLICATION {
        let (slot, publication) = (&source.slot, &source.publication);
        return Err(Error::new(
            Kind::Publication,
            format_args!("slot {slot}: Postgres skips changes, because publication {publication} did not exist when they were written"),
        )
        .remedy(format_args!(
            "the rows are in the outbox table and not in the stream; create the publication, then drop and create the \
             slot (walrelay setup --slot {slot}), and publish the rows written in between again"
        )));
    }
    tracing::warn!(sqlstate = code, message, "Postgres says inside the stream");
    Ok(())
}

/// Judges a change of a session setting that the server reported inside the stream.
///
/// # Errors
/// [`Kind::Publication`] where it is one of those that change the text of a value.
pub fn parameter_changed(name: &str, value: &str) -> Result<()> {
    let pinned = PINNED.iter().find(|(pinned, _)| pinned.eq_ignore_ascii_case(name));
    match pinned {
        Some((_, wanted)) if !value.starts_with(wanted) => {
            Err(Error::new(Kind::Publication, format_args!("Postgres changed {name} to {value:?} inside the stream"))
                .remedy(format_args!("values would be published in another text form; keep {name} at {wanted}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_changes_the_text_of_values_is_refused() {
        assert!(parameter_changed("DateStyle", "ISO, MDY").is_ok());
        assert!(parameter_changed("datestyle", "German, DMY").is_err());
        assert!(parameter_changed("client_encoding", "LATIN1").is_err());
        assert!(parameter_changed("in_hot_standby", "off").is_ok());
    }
}
