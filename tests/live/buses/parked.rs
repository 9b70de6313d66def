//! P2, P3: events that are parked arrive in the order of their key, once somebody asks for that,
//! whenever a relay is killed, and hold up no other key. `parked.rs` has the same of Kafka, whose
//! topics refuse.

use std::collections::BTreeSet;

use super::{Fate, Lab, TestLanes, ready};
use crate::live::parked;
use crate::support::relay::{EXIT, RelayCommand};
use crate::support::wait::eventually;
use crate::support::world::ARRIVAL;

/// A refused event waits until somebody asks for it.
const ASKED_FOR: &str = "[delivery]\nretry_attempts = 0\n";

const DROPPED: &str = "0a4bc6a5-7a94-4d3b-8d5a-3a1f4a6b0001";

/// A bus without a place for the events of kind 1.
fn lab<B: TestLanes>(is_polled: bool) -> Option<Lab<B>> {
    let mut lab = match is_polled {
        true => Lab::<B>::keeping(Fate::Shared)?,
        false => Lab::<B>::new(Fate::Shared)?,
    };
    lab.bus.unmake(&lab.world.topic(1));
    Some(lab)
}

/// Commits an event of each of these kinds and keys, in this order.
fn commit<B: TestLanes>(lab: &Lab<B>, events: &[(usize, &str)]) {
    let sql = lab.world.sql();
    for (kind, key) in events {
        lab.world.emit_to(&sql, *kind, key);
    }
}

fn retry_all<B: TestLanes>(lab: &Lab<B>) {
    parked::command(&lab.world, "retry")
        .flag("--all")
        .flag("--yes")
        .succeed();
}

/// Waits until so many events have arrived, whatever the number of their copies.
#[track_caller]
fn wait_arrived<B: TestLanes>(lab: &mut Lab<B>, expected: usize) {
    let topics = lab.topics();
    let ids = || {
        let records = lab.bus.found(&topics).records;
        let ids = records.into_iter().filter_map(|record| record.id);
        ids.collect::<BTreeSet<_>>().len()
    };
    eventually("the others arrive", ARRIVAL, ids, |count| {
        *count == expected
    });
}

pub(super) fn parked_keys_of_a_slot_keep_their_order_across_kills<B: TestLanes>() {
    if let Some(lab) = lab::<B>(false) {
        let run = lab.run(ASKED_FOR);
        keep_their_order(lab, &run.option("--on-error", "park"));
    }
}

pub(super) fn parked_keys_of_a_poller_keep_their_order_across_kills<B: TestLanes>() {
    if let Some(lab) = lab::<B>(true) {
        let run = lab.run(ASKED_FOR).option("--mode", "poll");
        keep_their_order(lab, &run.option("--on-error", "park"));
    }
}

fn keep_their_order<B: TestLanes>(mut lab: Lab<B>, run: &RelayCommand) {
    let mut relay = ready(run);
    // Without a version it is expected nowhere.
    lab.world.sql().run(&format!(
        "insert into outbox (id, aggregatetype, aggregateid, type, payload)
         values ('{DROPPED}', '{}', 'c', 'Bad', '{{}}')",
        lab.world.kind(1)
    ));
    // Those of another kind wait behind the first of their key.
    commit(
        &lab,
        &[(1, "a"), (0, "a"), (1, "b"), (1, "a"), (0, "c"), (0, "d")],
    );
    lab.wait_parked(6);
    wait_arrived(&mut lab, 1);

    // Killed while they wait: those that follow wait, too.
    relay.kill_hard();
    commit(&lab, &[(0, "a"), (1, "c"), (0, "b"), (1, "b"), (0, "d")]);
    relay = ready(run);
    lab.wait_parked(10);
    wait_arrived(&mut lab, 2);

    // Somebody drops the first of a key, and no relay runs: one that is behind it arrives.
    relay.kill_hard();
    parked::command(&lab.world, "drop")
        .option("--id", DROPPED)
        .flag("--yes")
        .succeed();
    relay = ready(run);
    lab.wait_parked(8);
    wait_arrived(&mut lab, 3);

    // Asked for while no relay runs, and killed after the ack of each key, which is not written
    // down.
    relay.kill_hard();
    lab.bus.make(&lab.world.topic(1));
    retry_all(&lab);
    for acked in [0, 1] {
        run.clone()
            .killed_at("retried", acked)
            .start()
            .wait_killed();
        commit(&lab, &[(0, "a"), (1, "b"), (1, "c"), (0, "d")]);
    }
    // The acked event at least is still parked: a relay that runs may be done with all of them.
    retry_all(&lab);
    relay = ready(run);
    lab.wait_parked(0);
    commit(&lab, &[(1, "a"), (0, "b"), (0, "c"), (1, "d")]);
    let found = lab.all_delivered();
    eprintln!(
        "{}: {} events, 5 kills, {} duplicates",
        B::NAME,
        lab.world.committed(),
        found.duplicates
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

pub(super) fn a_locked_row_delays_its_key_alone_and_its_event_is_sent_once<B: TestLanes>() {
    let Some(mut lab) = lab::<B>(false) else {
        return;
    };
    let sql = lab.world.sql();
    let holder = lab.world.sql();
    sql.run("alter table outbox add status text not null default 'new'");
    let mark = format!("[outbox]\nmark = \"status = 'published'\"\n{ASKED_FOR}");
    let mut relay = ready(&lab.run(&mark).option("--on-error", "park"));
    commit(&lab, &[(1, "held"), (0, "held"), (1, "held"), (1, "other")]);
    lab.wait_parked(4);
    holder.run("begin; select from outbox where aggregateid = 'held' limit 1 for update");
    lab.bus.make(&lab.world.topic(1));
    retry_all(&lab);
    let blocked = || relay.log().matches("are blocked").count();
    eventually("a person is told", ARRIVAL, blocked, |count| *count == 1);
    lab.wait_parked(3);
    // The other one, and the first one that is held.
    wait_arrived(&mut lab, 2);
    commit(&lab, &[(0, "ordinary"), (1, "ordinary")]);
    let unmarked = "select count(*) from outbox where aggregateid <> 'held' and status = 'new'";
    let unmarked = || sql.number(unmarked);
    eventually("others are marked", ARRIVAL, unmarked, |count| *count == 0);
    lab.world.wait_confirmed();
    wait_arrived(&mut lab, 4);
    holder.run("rollback");
    lab.wait_parked(0);
    let found = lab.all_delivered();
    assert_eq!(found.duplicates, 0, "{}", relay.log());
    let unmarked = || sql.number("select count(*) from outbox where status = 'new'");
    eventually("all are marked", ARRIVAL, unmarked, |count| *count == 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
