//! P11: no secret and no payload in any output.

use crate::support::relay::EXIT;
use crate::support::servers::postgres::GUARDED_ROLE;
use crate::support::servers::{Kafka, Postgres};
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

const PASSWORD: &str = "canary-password-5f1c";
const PAYLOAD: &str = "canary-payload-93ab";
const PROPERTY: &str = "canary-property-77de";

#[track_caller]
fn assert_clean(what: &str, text: &str) {
    for canary in [PASSWORD, PAYLOAD, PROPERTY] {
        assert!(!text.contains(canary), "{canary} is in {what}:\n{text}");
    }
}

#[test]
fn passwords_properties_and_payloads_reach_no_output() {
    let postgres = Postgres::private(15, &[]);
    postgres.sql().run(&format!(
        "create role {GUARDED_ROLE} superuser login replication password '{PASSWORD}'"
    ));
    let world = World::on(&postgres, Kafka::shared().brokers());
    let sql = world.sql();
    let url = postgres.url_as(&format!("{GUARDED_ROLE}:{PASSWORD}"), &world.name);
    let run = world
        .run()
        .option("--database-url", &url)
        .option("--log", "trace")
        .variable("WALRELAY_KAFKA_PROPERTY_SASL_PASSWORD", PROPERTY);
    let mut relay = run.start();
    relay.wait_ready();
    let kind = world.kind(0);
    let insert = |kind: &str| {
        sql.run(&format!(
            "insert into outbox values (gen_random_uuid(), '{kind}', 'k', 'T', '{{\"secret\": \
             \"{PAYLOAD}\"}}')"
        ));
    };
    insert(kind);
    eventually(
        "it arrives",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 1,
    );
    assert!(world.records(0)[0].value_text().contains(PAYLOAD));
    assert_clean("the metrics", &relay.metrics());
    assert_clean("the page", &relay.get("/").expect("a page").1);
    let status = world
        .command("status")
        .option("--database-url", &url)
        .flag("--json")
        .output();
    assert_clean("the status", &String::from_utf8_lossy(&status.stdout));
    assert_clean("the status", &String::from_utf8_lossy(&status.stderr));

    // A path that fails with the row at hand.
    insert("not a topic");
    assert_eq!(relay.wait_exit(EXIT), Some(20));
    assert_clean("the log", &relay.log());
    assert!(!relay.log().is_empty());

    let wrong = postgres.url_as(&format!("{GUARDED_ROLE}:{PASSWORD}x"), &world.name);
    let mut refused = run.option("--database-url", &wrong).start();
    assert_eq!(refused.wait_exit(EXIT), Some(11));
    assert_clean("the log of a refusal", &refused.log());
}
