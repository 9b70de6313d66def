//! Whether Postgres counts a relay as a synchronous standby: then commits of every session wait for
//! what it confirms.
//!
//! A walsender of a relay matches `synchronous_standby_names` by `*` or by its name
//! (<https://www.postgresql.org/docs/current/runtime-config-replication.html#GUC-SYNCHRONOUS-STANDBY-NAMES>).

use serde::Deserialize;

use crate::postgres::quote::{altered, quoted};
use walrelay_core::config::SlotName;
use walrelay_core::error::{Error, Kind};

/// What the server says of synchronous replication, with the slot of a relay.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Synchronous {
    /// `synchronous_standby_names`.
    pub names: String,
    /// `sync_state` of the walsender that streams from the slot, where there is one that has
    /// confirmed an LSN.
    pub state: Option<String>,
    /// No synchronous standby is connected, and commits wait for one.
    pub is_unattended: bool,
    /// `application_name` of connected standbys, as far as the role may see them.
    pub standbys: Vec<String>,
}

impl Synchronous {
    /// Whether commits wait for the walsender of the slot, or may next.
    pub(crate) fn counts_relay(&self) -> bool {
        self.state.as_deref().is_some_and(|state| state != "async")
    }

    /// Whether commits would wait for a relay of this slot.
    pub(crate) fn names_relay(&self, slot: &SlotName) -> bool {
        let walsender = format!("walrelay/{slot}");
        let mut names = self
            .names
            .split(|char: char| char.is_whitespace() || ",()\"".contains(char));
        names.any(|name| name == "*" || name.eq_ignore_ascii_case(&walsender))
    }

    /// The cause, with the setting to write.
    pub(crate) fn fault(&self, slot: &SlotName) -> Error {
        let cause = format!(
            "synchronous_standby_names = '{}' counts the relay of slot {slot} as a synchronous \
             standby: commits of all \
             sessions wait until their events are in the bus",
            self.names
        );
        Error::new(Kind::PostgresUnfit, cause).remedy(self.remedy())
    }

    /// Names the standbys that the role sees.
    pub(crate) fn remedy(&self) -> String {
        let standbys: Vec<_> = self.standbys.iter().map(|name| quoted(name)).collect();
        let (names, remark) = match standbys.len() {
            0 => (
                String::new(),
                "no standby is connected, or this role may not see its name",
            ),
            _ => (
                format!("ANY 1 ({})", standbys.join(", ")),
                "the connected standbys, without the relay",
            ),
        };
        altered("synchronous_standby_names", names, remark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &str, standbys: &[&str]) -> Synchronous {
        let standbys = standbys.iter().map(|name| (*name).to_owned()).collect();
        Synchronous {
            names: names.to_owned(),
            standbys,
            ..Synchronous::default()
        }
    }

    #[test]
    fn a_relay_is_named_by_an_asterisk_or_by_its_own_name() {
        let slot: SlotName = "orders".parse().unwrap();
        for names in [
            "*",
            "ANY 1 (*)",
            "FIRST 1 (s1, *)",
            "\"WALRELAY/orders\"",
            "1 (s1,\"walrelay/orders\")",
        ] {
            assert!(named(names, &[]).names_relay(&slot), "{names}");
        }
        for names in ["", "s1", "ANY 1 (s1, s2)", "\"walrelay/other\"", "walrelay"] {
            assert!(!named(names, &[]).names_relay(&slot), "{names}");
        }
    }

    #[test]
    fn commits_wait_for_a_walsender_that_is_not_asynchronous() {
        for (state, counts) in [
            (None, false),
            (Some("async"), false),
            (Some("sync"), true),
            (Some("potential"), true),
        ] {
            let state = state.map(str::to_owned);
            assert_eq!(
                Synchronous {
                    state,
                    ..Synchronous::default()
                }
                .counts_relay(),
                counts
            );
        }
    }

    #[test]
    fn the_remedy_names_the_connected_standbys() {
        let one = named("*", &["pg-2", "it's"]).remedy();
        assert_eq!(
            one,
            "alter system set synchronous_standby_names = 'ANY 1 (\"pg-2\", \"it''s\")';\nselect \
             pg_reload_conf(); -- the connected standbys, without the relay"
        );
        let none = named("*", &[]).remedy();
        assert!(
            none.starts_with("alter system set synchronous_standby_names = '';\nselect pg_"),
            "{none}"
        );
    }
}
