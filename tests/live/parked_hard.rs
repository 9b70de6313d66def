//! P3, P2: what stands in the way of one event that waits (a lock on its row, a mark that is
//! refused, a row of `walrelay.parked` that cannot be read) holds up its own aggregate and nothing
//! else, and sends nothing twice.

use super::parked::{command, small};
use crate::support::relay::{EXIT, Relay};
use crate::support::sql::Sql;
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

const HELD_UP: &str = "are blocked";

/// Topic 0 takes no record of more than 200 kB, until [`open`], and rows say what became of them.
pub(super) fn world() -> World {
    let world = small();
    world
        .sql()
        .run("alter table outbox add status text not null default 'new'");
    world
}

#[track_caller]
pub(super) fn relay(world: &World, more: &str) -> Relay {
    let file = format!("[outbox]\nmark = \"status = 'published'\"\n{more}");
    let mut relay = world
        .run()
        .option("--on-error", "park")
        .config_file(&file)
        .start();
    relay.wait_ready();
    relay
}

/// The topic takes what waits, and all of it is asked for.
pub(super) fn open(world: &World) {
    topic::alter(
        &world.brokers,
        &world.topic(0),
        &[("max.message.bytes", "1000000")],
    );
    retry(world);
}

pub(super) fn retry(world: &World) {
    command(world, "retry")
        .flag("--all")
        .flag("--yes")
        .succeed();
}

pub(super) fn emit_large(sql: &Sql, world: &World, aggregate: &str) -> String {
    sql.text(&format!(
        "select emit_large('{}', '{aggregate}')",
        world.kind(0)
    ))
}

pub(super) fn parked(sql: &Sql) -> String {
    sql.text("select string_agg(convert_from(key, 'UTF8'), ' ' order by id) from walrelay.parked")
}

/// How often an aggregate's events came.
fn records(world: &World, aggregate: &str) -> usize {
    world
        .records(0)
        .iter()
        .filter(|record| record.key_text() == aggregate)
        .count()
}

/// One whose topic does not take it yet waits, its row is locked by the second session, and a try
/// of it is asked for.
pub(super) fn asked_for_while_held(world: &World, (sql, holder): (&Sql, &Sql)) -> String {
    let held = emit_large(sql, world, "held");
    let status = || sql.text(&format!("select status from outbox where id = '{held}'"));
    eventually("it waits", ARRIVAL, status, |status| status == "tried 1");
    holder.run(&format!(
        "begin; select from outbox where id = '{held}' for update"
    ));
    retry(world);
    held
}

/// Everything came once and in order, is marked, and the relay leaves in order.
#[track_caller]
pub(super) fn all_is_well(world: &World, relay: &mut Relay) {
    let sql = world.sql();
    eventually("none waits", ARRIVAL * 2, || parked(&sql), String::is_empty);
    assert_eq!(world.assert_all_delivered().duplicates, 0);
    let unmarked = || sql.number("select count(*) from outbox where status <> 'published'");
    eventually("all are marked", ARRIVAL, unmarked, |count| *count == 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_locked_row_delays_only_its_aggregate_and_its_event_is_sent_once() {
    let world = world();
    let sql = world.sql();
    let holder = world.sql();
    let mut relay = relay(&world, "");
    let held = emit_large(&sql, &world, "held");
    (0..2).for_each(|_| world.emit(&sql, "held"));
    emit_large(&sql, &world, "other");
    eventually(
        "they wait",
        ARRIVAL,
        || parked(&sql),
        |parked| parked == "held held held other",
    );

    let sessions = || relay.metric("walrelay_reconnects_total{side=\"postgres\"}");
    let before = sessions();
    holder.run(&format!(
        "begin; select from outbox where id = '{held}' for update"
    ));
    open(&world);
    eventually(
        "the other is delivered",
        ARRIVAL,
        || parked(&sql),
        |parked| parked == "held held held",
    );
    let told = || relay.log().matches(HELD_UP).count();
    eventually("a person is told", ARRIVAL, told, |count| *count == 1);
    // Everything else goes on meanwhile: events, marks and what is confirmed.
    let goes_on = || {
        world.emit(&sql, "ordinary");
        let unmarked =
            "select count(*) from outbox where aggregateid = 'ordinary' and status = 'new'";
        eventually(
            "others are marked",
            ARRIVAL,
            || sql.number(unmarked),
            |count| *count == 0,
        );
        world.wait_confirmed();
        records(&world, "held") == 1
    };
    let waits = "select count(*) from pg_stat_activity where datname = current_database()
                 and application_name like 'walrelay%' and wait_event_type = 'Lock'";
    assert!(goes_on(), "it is sent once");
    eventually(
        "its mark is tried again",
        ARRIVAL,
        || sql.number(waits),
        |sessions| *sessions > 0,
    );
    assert!(goes_on(), "it is sent once");
    assert_eq!(relay.log().matches(HELD_UP).count(), 1, "{}", relay.log());
    assert_eq!(sessions(), before, "{}", relay.log());
    holder.run("rollback");
    all_is_well(&world, &mut relay);
}

#[test]
fn a_parked_event_that_cannot_be_marked_or_read_delays_no_other_aggregate() {
    let world = world();
    let sql = world.sql();
    let mut relay = relay(&world, "");
    for aggregate in ["unmarkable", "unreadable", "good"] {
        emit_large(&sql, &world, aggregate);
        world.emit(&sql, aggregate);
    }
    let all = "unmarkable unmarkable unreadable unreadable good good";
    eventually(
        "they wait",
        ARRIVAL,
        || parked(&sql),
        |parked| parked == all,
    );
    sql.run(
        "create sequence refused;
         create function refuse() returns trigger language plpgsql as
         $$ begin perform nextval('public.refused'); raise exception 'no'; end $$;
         create trigger refuse before update on outbox for each row when (old.aggregateid = \
         'unmarkable')
         execute function refuse();
         create table saved as select id, names from walrelay.parked;
         update walrelay.parked set names = array[null]::text[] where key = 'unreadable'",
    );
    open(&world);
    let left = "unmarkable unmarkable unreadable unreadable";
    eventually(
        "the good one is delivered",
        ARRIVAL,
        || parked(&sql),
        |parked| parked == left,
    );
    // The first of each is told of, the one that was sent is not sent again, and later ones are
    // tried as ever.
    emit_large(&sql, &world, "later");
    eventually(
        "it arrives",
        ARRIVAL,
        || records(&world, "later"),
        |count| *count == 1,
    );
    let told = || relay.log().matches(HELD_UP).count();
    eventually("a person is told", ARRIVAL, told, |count| *count == 2);
    let tries = || sql.number("select last_value from refused");
    let before = tries();
    eventually("they are tried again", ARRIVAL, tries, |count| {
        *count > before
    });
    assert_eq!(
        (records(&world, "unmarkable"), records(&world, "unreadable")),
        (1, 0)
    );
    sql.run(
        "drop trigger refuse on outbox;
         update walrelay.parked p set names = s.names from saved s where s.id = p.id",
    );
    all_is_well(&world, &mut relay);
    assert_eq!(relay.log().matches(HELD_UP).count(), 2, "{}", relay.log());
}

#[test]
fn delivered_parked_events_are_remembered_across_sessions() {
    let world = world();
    let sql = world.sql();
    let holder = world.sql();
    let mut relay = relay(&world, "");
    emit_large(&sql, &world, "held");
    let second = emit_large(&sql, &world, "held");
    world.emit(&sql, "held");
    eventually(
        "they wait",
        ARRIVAL,
        || parked(&sql),
        |parked| parked == "held held held",
    );
    holder.run(&format!(
        "begin; select from outbox where id = '{second}' for update"
    ));
    open(&world);
    // The first is sent alone, and the others together.
    eventually(
        "they are sent",
        ARRIVAL,
        || records(&world, "held"),
        |count| *count == 3,
    );
    eventually(
        "the first waits no more",
        ARRIVAL,
        || parked(&sql),
        |parked| parked == "held held",
    );
    let told = || relay.log().matches(HELD_UP).count();
    eventually("a person is told", ARRIVAL, told, |count| *count == 1);
    world.end_walsender();
    holder.run("rollback");
    all_is_well(&world, &mut relay);
}

#[test]
fn a_failed_attempt_that_was_not_recorded_is_repeated_after_a_back_off() {
    let world = world();
    let sql = world.sql();
    let holder = world.sql();
    let mut relay = relay(
        &world,
        "mark_waiting = \"status = 'tried ' || :attempts\"\n",
    );
    let held = asked_for_while_held(&world, (&sql, &holder));
    let status = || sql.text(&format!("select status from outbox where id = '{held}'"));
    let count = |words: &str| relay.log().matches(words).count();
    eventually(
        "it is tried",
        ARRIVAL,
        || count("a parked event failed again"),
        |count| *count == 1,
    );
    eventually(
        "a person is told",
        ARRIVAL,
        || count(HELD_UP),
        |count| *count == 1,
    );
    eventually(
        "it is tried again",
        ARRIVAL,
        || count("a parked event failed again"),
        |count| *count > 1,
    );
    assert_eq!(count(HELD_UP), 1);
    holder.run("rollback");
    eventually("it is noted", ARRIVAL, status, |status| status == "tried 2");
    assert_eq!(
        sql.number("select attempts from walrelay.parked where asked is null"),
        2
    );
    open(&world);
    all_is_well(&world, &mut relay);
}

#[test]
fn an_event_with_a_key_that_no_index_takes_is_parked_and_delivered_in_order() {
    /// Ids and keys of this length fit into no index entry: it does not compress.
    const KEY: &str = "(select string_agg(md5(n::text), '') from generate_series(1, 200) n)";
    const LARGE: &str = "(select jsonb_build_object('n', jsonb_agg(md5(random()::text))) from \
                         generate_series(1, 12000))";
    let world = world();
    let sql = world.sql();
    sql.run(
        "alter table outbox drop constraint outbox_pkey, alter column id type text, alter \
         aggregateid type text,
         add column row_number bigint generated always as identity unique",
    );
    let start = || world.run().option("--on-error", "park").start();
    let mut relay = start();
    relay.wait_ready();
    let insert = |id: &str, payload: &str| {
        let kind = world.kind(0);
        sql.run(&format!(
            "insert into outbox values ({id} || {KEY}, '{kind}', {KEY}, 'T', {payload})"
        ));
    };
    insert("'1'", LARGE);
    insert("'2'", "'{}'");
    eventually(
        "both wait",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 2,
    );
    relay.kill_hard();
    let mut relay = start();
    relay.wait_ready();
    insert("'3'", "'{}'");
    eventually(
        "so does the next",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 3,
    );
    open(&world);
    eventually(
        "none waits",
        ARRIVAL,
        || world.number_parked(),
        |count| *count == 0,
    );
    let ids: Vec<String> = sql
        .rows("select id from outbox order by id", &[])
        .iter()
        .map(|row| row.get(0))
        .collect();
    let sent: Vec<String> = world
        .records(0)
        .iter()
        .map(|record| record.header("id"))
        .collect();
    assert_eq!(sent, ids);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_refused_duplicate_of_a_delivered_event_is_not_parked_behind_later_ones() {
    let world = world();
    let sql = world.sql();
    let holder = world.sql();
    let limit = |bytes| {
        let settings = [("max.message.bytes", bytes)];
        topic::alter(&world.brokers, &world.topic(0), &settings);
    };
    let more = "[state]\nstore = \"postgres\"\n[delivery]\nread_tails = \"never\"\n";
    let mut first = relay(&world, more);
    limit("1000000");
    // No position is stored from here on.
    holder.run("begin; lock walrelay.position in share mode");
    emit_large(&sql, &world, "a");
    let delivered = || records(&world, "a");
    eventually("it is delivered", ARRIVAL, delivered, |count| *count == 1);
    limit("200000");
    emit_large(&sql, &world, "a");
    let waiting = || world.number_parked();
    eventually("one waits", ARRIVAL, waiting, |count| *count == 1);
    first.kill_hard();
    // Postgres would go on with a store whose client is gone.
    holder.run("select pg_terminate_backend(pid, 10000) from pg_locks where not granted; rollback");

    let mut second = relay(&world, more);
    let left_out = || second.metric("walrelay_delivered_before_events_total");
    let first_again = "the first one comes again";
    eventually(first_again, ARRIVAL, left_out, |now| *now == Some(1.0));
    assert_eq!(world.number_parked(), 1);
    open(&world);
    all_is_well(&world, &mut second);
    assert_eq!(records(&world, "a"), 2);
}
