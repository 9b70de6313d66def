//! P3: an event that the bus can never take stops the relay, is given up alone, or is parked with
//! those behind it of its key.

use std::collections::BTreeSet;

use super::{Fate, Lab, TestBus, ready};
use crate::live::parked;
use crate::support::relay::{EXIT, last_words};
use crate::support::wait::eventually;
use crate::support::world::ARRIVAL;

const RECORD: Option<i32> = Some(21);

/// Noise that no compression brings below what any server here takes. Without a version the event
/// is expected nowhere.
const TOO_LARGE: &str = "(select jsonb_agg(md5(n::text)) from generate_series(1, 90000) n)";

/// Commits events of keys `a` and `b`, with one too large amid those of `a`.
fn commit<B: TestBus>(lab: &Lab<B>) {
    let sql = lab.world.sql();
    let kind = lab.world.kind(0);
    let emit = |count: u32| {
        sql.run(&format!(
            "select emit('{kind}', 'a', 20), emit('{kind}', 'b', 20) from generate_series(1, \
             {count})"
        ));
    };
    emit(3);
    sql.run(&format!(
        "insert into outbox (id, aggregatetype, aggregateid, type, payload)
         values (gen_random_uuid(), '{kind}', 'a', 'Bad', {TOO_LARGE})"
    ));
    emit(5);
}

pub(super) fn a_record_that_no_server_takes_stops_the_relay_or_is_skipped<B: TestBus>() {
    let Some(mut lab) = Lab::<B>::new(Fate::Shared) else {
        return;
    };
    commit(&lab);
    let mut relay = lab.run("").start();
    assert_eq!(relay.wait_exit(EXIT), RECORD, "{}", relay.log());
    let log = relay.log();
    let words = last_words(&log);
    let topic = lab.world.topic(0);
    assert!(words.0.contains(&topic), "{words:?}");
    lab.assert_confirmed_is_delivered();
    let found = lab.findings();
    assert!(found.out_of_order.is_empty(), "{found:?}");
    let topics = lab.topics();
    let records = lab.bus.found(&topics).records;
    // A record whose ack is late comes again.
    let of_its_key = records.iter().filter(|one| one.key.as_deref() == Some("a"));
    let ids: BTreeSet<_> = of_its_key.map(|one| one.id.clone()).collect();
    assert!(ids.len() <= 3, "nothing of its key is sent behind it");

    let mut relay = ready(&lab.run("").option("--on-error", "skip"));
    let found = lab.all_delivered();
    lab.world.wait_confirmed();
    let skipped = || relay.metric("walrelay_skipped_events_total");
    eventually("it is counted", ARRIVAL, skipped, |count| {
        *count == Some(1.0)
    });
    eprintln!("{}: skipped, {} duplicates", B::NAME, found.duplicates);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

pub(super) fn a_record_that_no_server_takes_is_parked_with_its_key_alone<B: TestBus>() {
    let Some(mut lab) = Lab::<B>::new(Fate::Shared) else {
        return;
    };
    let mut relay = ready(&lab.run("").option("--on-error", "park"));
    commit(&lab);
    lab.wait_parked(6);
    let count = || lab.count();
    eventually("others arrive", ARRIVAL, count, |count| *count >= 11);
    lab.world.wait_confirmed();
    let of_its_key = "select count(*) from walrelay.parked where convert_from(key, 'utf8') = 'a'";
    assert_eq!(lab.world.sql().number(of_its_key), 6);
    assert!(lab.findings().out_of_order.is_empty());
    parked::command(&lab.world, "drop")
        .option("--class", "too-large")
        .flag("--yes")
        .succeed();
    lab.wait_parked(0);
    let found = lab.all_delivered();
    eprintln!("{}: parked, {} duplicates", B::NAME, found.duplicates);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
