//! P3: `examples/wallet-outbox`: tried in every round of a schedule until it is sent; what nobody
//! takes blocks nobody.

use std::collections::BTreeSet;

use super::{EXIT, LARGE, Team, assert_told, told};
use crate::support::wait::eventually;
use crate::support::world::ARRIVAL;

#[test]
fn undeliverable_wallet_events_stay_pending_and_are_retried() {
    let team = Team::new(
        "outbox",
        include_str!("../../../examples/wallet-outbox/schema.sql"),
        include_str!("../../../examples/wallet-outbox/walrelay.toml"),
        &[],
    );
    let created = format!("{}.WalletCreatedEvent", team.world.name);
    let added = format!("{}.FundsAdded", team.world.name);
    let insert = |kind: &str, correlation: &str, payload: &str| {
        team.sql().run(&format!(
            "insert into outbox (event_type, payload, correlation_id, created_at) values \
             ('{kind}', {payload}, '{correlation}', now())"
        ));
    };
    team.create(&format!("{added}-out-0"));
    let mut relay = team.relay("700ms");
    insert(&created, "w-1", "'{}'");
    insert(&added, "w-1", "'{\"behind\": true}'");
    insert(&added, "w-2", &format!("repeat('x', {LARGE})"));
    insert(&added, "w-3", "'not JSON'");
    team.wait("sent", "correlation_id = 'w-3'", "true");
    let again = || told(&relay, "a parked event failed again");
    let rounds = eventually("it is tried again and again", ARRIVAL, again, |rounds| {
        rounds.len() >= 4
    });
    assert_told(&rounds[..4], "attempts", &[Some(700); 4]);
    // findUnsent finds what is not out, and so does nobody else.
    assert_eq!(team.says("id::text", "sent = false"), "1; 2; 3");
    team.create(&format!("{created}-out-0"));
    team.wait("id::text", "sent = false", "3");
    let sent = team.records(&format!("{added}-out-0"));
    let sent: BTreeSet<String> = sent.iter().map(|record| record.key_text()).collect();
    assert_eq!(sent, ["w-1", "w-3"].map(str::to_owned).into());
    // By hand: the payload is made smaller, and what was kept of it is dropped.
    team.sql()
        .run("update outbox set payload = '{}' where id = 3");
    team.parked("drop").option("--id", "3").succeed();
    team.wait("id::text", "sent = false", "");
    team.sql()
        .run("update outbox set sent = false where id = 3");
    let sent = || {
        team.records(&format!("{added}-out-0"))
            .iter()
            .filter(|record| record.key_text() == "w-2")
            .count()
    };
    eventually("it is sent", ARRIVAL, sent, |count| *count == 1);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
