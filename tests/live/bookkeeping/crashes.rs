//! P13: killed between the ack and the mark, and between the mark and what is stored of it.

use super::{EMAIL, EXIT, Outbox, PUBLISHED, Team, WALLET};
use crate::support::workload::Plan;

#[test]
fn a_relay_killed_around_the_mark_loses_no_mail() {
    loses_nothing(&EMAIL);
}

#[test]
#[ignore = "long: the same as for mail, with the marks of another team"]
fn a_relay_killed_around_the_mark_loses_no_domain_event() {
    loses_nothing(&PUBLISHED);
}

#[test]
#[ignore = "long: the same as for mail, with the marks of another team"]
fn a_relay_killed_around_the_mark_loses_no_wallet_event() {
    loses_nothing(&WALLET);
}

#[track_caller]
fn loses_nothing(team: &'static Team) {
    for mode in ["slot", "poll"] {
        let outbox = Outbox::in_mode(mode, team);
        let mut copies = 0;
        for (point, passings) in [("marking", 0), ("marking", 3), ("marked", 0), ("marked", 3)] {
            let writers = outbox.world.workload(&Plan {
                writers: 3,
                aggregates: 8,
                ..Plan::default()
            });
            outbox
                .run(mode)
                .killed_at(point, passings)
                .start()
                .wait_killed();
            writers.wait_for(5);
            writers.stop();

            let mut relay = outbox.run(mode).start();
            // What is there before the slot is read from the table, by the team's own column.
            let is_strict = mode == "slot" && team.table != EMAIL.table;
            let findings = if is_strict {
                outbox.settled()
            } else {
                outbox.settled_in_team_order()
            };
            let again = findings.duplicates - copies;
            copies = findings.duplicates;
            eprintln!(
                "{} by {mode}, killed at {point} after {passings}: {again} copies",
                team.table
            );
            assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
        }
    }
}
