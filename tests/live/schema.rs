//! P8: the outbox table altered while the relay keeps up and while it lags: columns are found anew
//! in each version of it.

use std::time::Duration;

use crate::support::relay::{EXIT, Relay, RelayCommand, last_words};
use crate::support::sql::Sql;
use crate::support::topic::Record;
use crate::support::wait::{LIMIT, eventually};
use crate::support::world::{ARRIVAL, World};

const STOP: Duration = LIMIT;

/// Exit codes of `src/error.rs`.
const PUBLICATION: Option<i32> = Some(15);
const MISMATCH: Option<i32> = Some(16);

/// What leaves every mapped column where events can be made of it. Each is followed by a row.
const HARMLESS: &[&str] = &[
    "alter table outbox add column note text default 'x'",
    "alter table outbox add column number bigint default 7",
    "alter table outbox add column identity bigint generated always as identity",
    "alter table outbox alter number type numeric",
    "alter table outbox rename column note to remark",
    "alter table outbox drop column type",
    "alter table outbox alter aggregateid type text",
    "alter table outbox alter payload type json",
    "alter table outbox alter payload type text, drop column remark",
    "alter table outbox alter id type varchar(40)",
    "alter table outbox drop constraint outbox_pkey",
    "truncate outbox",
    "vacuum full outbox",
    "begin; alter table outbox rename column payload to body; alter table outbox rename column \
     body to payload; commit",
    "begin; alter table outbox drop column number; rollback",
    "delete from outbox",
];

/// Commits row `number` of one aggregate, whose payload is in `column`.
fn write(world: &World, sql: &Sql, column: &str, number: usize) {
    sql.run(&insert(world, column, number));
}

fn insert(world: &World, column: &str, number: usize) -> String {
    format!(
        "insert into outbox (id, aggregatetype, aggregateid, {column})
         values (gen_random_uuid(), '{}', 'a', '{{\"n\": {number}}}')",
        world.kind(0)
    )
}

/// The numbers of the rows that arrived, in their order: they have one key, and so one partition.
fn arrived(world: &World) -> Vec<usize> {
    let number = |record: Record| {
        let text = record.value_text();
        text.strip_prefix("{\"n\": ")
            .and_then(|text| text.strip_suffix('}')?.parse().ok())
            .expect(&text)
    };
    world.records(0).into_iter().map(number).collect()
}

#[track_caller]
fn assert_arrives(world: &World, expected: &[usize]) {
    eventually(
        "the rows arrive",
        ARRIVAL,
        || world.delivered(),
        |count| *count >= expected.len() as i64,
    );
    world.wait_confirmed();
    assert_eq!(arrived(world), expected);
}

/// `walrelay run` for a table whose payload is in `column`.
fn run(world: &World, column: &str) -> RelayCommand {
    world
        .run()
        .variable("WALRELAY_OUTBOX_COLUMNS_PAYLOAD", column)
}

/// It stops for the missing `column` with all that is to be said in one line, and what came before
/// has arrived.
#[track_caller]
fn assert_stops_without(
    world: &World,
    mut relay: Relay,
    column: &str,
    there_are: &str,
    expected: &[usize],
) {
    assert_eq!(relay.wait_exit(EXIT), PUBLICATION, "{}", relay.log());
    let log = relay.log();
    let (error, fix) = last_words(&log);
    assert!(
        error.contains(&format!(
            "table public.outbox had no column {column} when the event was written; it had"
        )) || error.contains(&format!(
            "table public.outbox has no column {column}; it has"
        )),
        "{error}"
    );
    assert!(error.contains(there_are), "{error}");
    assert!(fix.contains("in the configuration"), "{fix}");
    assert_eq!(arrived(world), expected);
}

/// Writes a row, and one after each of [`HARMLESS`]. Gives the numbers of all.
fn change_and_write(world: &World) -> Vec<usize> {
    let sql = world.sql();
    write(world, &sql, "payload", 0);
    for (number, change) in HARMLESS.iter().enumerate() {
        sql.run(change);
        write(world, &sql, "payload", number + 1);
    }
    // Between two rows of one transaction as well.
    let next = HARMLESS.len() + 1;
    let first = insert(world, "payload", next);
    let second = insert(world, "payload", next + 1);
    sql.run(&format!(
        "begin; {first}; alter table outbox add column late int default 1; {second}; commit"
    ));
    (0..=next + 1).collect()
}

#[test]
fn harmless_schema_changes_lose_nothing_while_the_relay_lags() {
    let world = World::new();
    let written = change_and_write(&world);
    let _relay = world.relay();
    assert_arrives(&world, &written);
}

#[test]
fn harmless_schema_changes_lose_nothing_while_the_relay_keeps_up() {
    let world = World::new();
    let _relay = world.relay();
    let written = change_and_write(&world);
    assert_arrives(&world, &written);
}

#[test]
fn a_renamed_mapped_column_stops_the_relay_and_the_new_name_resumes() {
    let world = World::new();
    let sql = world.sql();
    let relay = world.relay();
    write(&world, &sql, "payload", 1);
    assert_arrives(&world, &[1]);
    sql.run("alter table outbox rename column payload to body");
    write(&world, &sql, "body", 2);
    assert_stops_without(&world, relay, "payload", "body", &[1]);
    assert_stops_without(&world, world.run().start(), "payload", "body", &[1]);

    let mut relay = run(&world, "body").start();
    relay.wait_ready();
    write(&world, &sql, "body", 3);
    assert_arrives(&world, &[1, 2, 3]);

    sql.run("alter table outbox rename column body to payload");
    write(&world, &sql, "payload", 4);
    assert_stops_without(&world, relay, "body", "payload", &[1, 2, 3]);
    let _relay = world.relay();
    assert_arrives(&world, &[1, 2, 3, 4]);
}

#[test]
fn a_relay_behind_several_renames_delivers_each_row_under_its_column_name() {
    let world = World::new();
    let sql = world.sql();
    write(&world, &sql, "payload", 1);
    sql.run("alter table outbox rename column payload to body");
    write(&world, &sql, "body", 2);
    sql.run("alter table outbox rename column body to payload");
    write(&world, &sql, "payload", 3);
    sql.run("alter table outbox rename column payload to body");
    write(&world, &sql, "body", 4);

    // The new configuration first, as somebody would who renames and deploys.
    assert_stops_without(&world, run(&world, "body").start(), "body", "payload", &[]);
    assert_stops_without(
        &world,
        run(&world, "payload").start(),
        "payload",
        "body",
        &[1],
    );
    assert_stops_without(
        &world,
        run(&world, "body").start(),
        "body",
        "payload",
        &[1, 2],
    );
    assert_stops_without(
        &world,
        run(&world, "payload").start(),
        "payload",
        "body",
        &[1, 2, 3],
    );
    let mut relay = run(&world, "body").start();
    relay.wait_ready();
    assert_arrives(&world, &[1, 2, 3, 4]);
    assert_eq!(relay.terminate(STOP), Some(0));
}

#[test]
fn a_rename_inside_a_transaction_stops_the_relay_between_its_rows() {
    let world = World::new();
    let sql = world.sql();
    let first = insert(&world, "payload", 1);
    let second = insert(&world, "body", 2);
    sql.run(&format!(
        "begin; {first}; alter table outbox rename column payload to body; {second}; commit"
    ));
    assert_stops_without(&world, world.run().start(), "payload", "body", &[1]);
    let mut relay = run(&world, "body").start();
    relay.wait_ready();
    assert_arrives(&world, &[1, 2]);
}

#[test]
fn rows_written_before_the_table_was_renamed_arrive_under_its_new_name() {
    let world = World::new();
    let sql = world.sql();
    let relay = world.relay();
    write(&world, &sql, "payload", 1);
    assert_arrives(&world, &[1]);
    drop(relay);
    eventually(
        "the slot is free",
        ARRIVAL,
        || world.walsender(),
        |pid| *pid == 0,
    );

    write(&world, &sql, "payload", 2);
    sql.run(
        "create schema sales; alter table outbox rename to events; alter table events set \
             schema sales",
    );
    sql.run(&insert(&world, "payload", 3).replace("outbox", "sales.events"));
    let mut refused = world.run().start();
    assert_eq!(refused.wait_exit(EXIT), PUBLICATION, "{}", refused.log());
    assert!(
        last_words(&refused.log())
            .0
            .contains("there is no table public.outbox"),
        "{}",
        refused.log()
    );

    let mut relay = world.run().option("--table", "sales.events").start();
    relay.wait_ready();
    assert_arrives(&world, &[1, 2, 3]);
}

#[test]
fn a_mapped_column_dropped_while_the_relay_lags_loses_no_earlier_row() {
    let world = World::new();
    let sql = world.sql();
    write(&world, &sql, "payload", 1);
    write(&world, &sql, "payload", 2);
    sql.run("alter table outbox drop column payload");
    // Others write on this server, too: what they write later nobody confirms once the relay has
    // stopped.
    let written = world.flushed();
    // Nothing was written since: the error comes behind what was.
    assert_stops_without(
        &world,
        world.run().start(),
        "payload",
        "aggregatetype",
        &[1, 2],
    );
    eventually(
        "the slot is confirmed",
        ARRIVAL,
        || world.confirmed(),
        |confirmed| *confirmed >= written,
    );

    // Rows of the new shape are there: the error comes before the first of them.
    sql.run(&format!(
        "insert into outbox values (gen_random_uuid(), '{}', 'a', '{{\"n\": 3}}')",
        world.kind(0)
    ));
    assert_stops_without(
        &world,
        world.run().start(),
        "payload",
        "aggregatetype",
        &[1, 2],
    );
    let mut relay = run(&world, "type").start();
    relay.wait_ready();
    assert_arrives(&world, &[1, 2, 3]);
}

#[test]
fn a_missing_column_stops_the_relay_at_start() {
    let world = World::new();
    assert_stops_without(
        &world,
        run(&world, "paylod").start(),
        "paylod",
        "payload",
        &[],
    );
}

#[test]
fn a_recreated_table_stops_a_lagging_relay_and_no_earlier_row_is_lost() {
    let world = World::new();
    let sql = world.sql();
    let mut relay = world.relay();
    write(&world, &sql, "payload", 1);
    assert_arrives(&world, &[1]);
    assert_eq!(relay.terminate(STOP), Some(0));

    write(&world, &sql, "payload", 2);
    sql.run(
        "create table another (like outbox including all); drop table outbox; alter table another \
         rename to outbox",
    );
    // Of the new table, which nobody publishes.
    write(&world, &sql, "payload", 3);
    let mut refused = world.run().start();
    assert_eq!(refused.wait_exit(EXIT), PUBLICATION, "{}", refused.log());
    let log = refused.log();
    let publication = format!("walrelay_{}", world.name);
    assert!(
        log.contains(&format!(
            "table public.outbox is not in publication {publication}"
        )),
        "{log}"
    );
    assert!(
        log.contains("rows inserted before that are not in the stream"),
        "{log}"
    );

    sql.run(&format!("alter publication {publication} add table outbox"));
    write(&world, &sql, "payload", 4);
    let mut refused = world.run().start();
    assert_eq!(refused.wait_exit(EXIT), MISMATCH, "{}", refused.log());
    assert!(refused.log().contains("--adopt-slot"), "{}", refused.log());
    let mut relay = world.run().flag("--adopt-slot").start();
    relay.wait_ready();
    // All of the old table, and what the new one got since it is published; row 3 is for the
    // operator, who was told.
    assert_arrives(&world, &[1, 2, 4]);
}
