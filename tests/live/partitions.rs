//! P2, P3: partitioned outbox tables: every row inserted through the root, or into a partition of
//! it, arrives as one of the root.

use crate::support::relay::EXIT;
use crate::support::servers::{Kafka, Postgres};
use crate::support::sql::Sql;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

const PUBLICATION: Option<i32> = Some(15);

const ROOT: &str = "drop table outbox;
    create table outbox (id bigint, aggregatetype text, aggregateid text, type text, payload text, \
    day int)
        partition by list (day);
    create table outbox_1 partition of outbox for values in (1);
    create table outbox_2 partition of outbox for values in (2) partition by hash (id);
    create table outbox_2a partition of outbox_2 for values with (modulus 2, remainder 0);
    create table outbox_2b partition of outbox_2 for values with (modulus 2, remainder 1)";

/// A partitioned outbox, published by `walrelay setup`.
fn partitioned(postgres: &Postgres) -> World {
    let world = World::bare(postgres, Kafka::shared().brokers());
    world.sql().run(ROOT);
    world.setup();
    world
}

/// Writes rows of one aggregate, whose payloads count.
struct Writer<'a> {
    world: &'a World,
    sql: Sql,
    written: usize,
}

impl<'a> Writer<'a> {
    fn new(world: &'a World) -> Self {
        Writer {
            world,
            sql: world.sql(),
            written: 0,
        }
    }

    /// One row into `table`.
    fn row(&mut self, table: &str, day: usize) {
        self.written += 1;
        let number = self.written;
        self.put(table, day, &number.to_string());
    }

    fn put(&self, table: &str, day: usize, payload: &str) {
        self.sql.run(&format!(
            "insert into {table} (id, aggregatetype, aggregateid, type, payload, day)
             values ({}, '{}', 'a', 'T', '{payload}', {day})",
            self.written,
            self.world.kind(0)
        ));
    }

    /// Attaches or detaches. Up to Postgres 14 a partition is published as it was when a row of it
    /// was first streamed, until the publication is touched; the relay warns of it.
    fn alter_partitions(&self, change: &str) {
        let major = self
            .sql
            .number("select current_setting('server_version_num')::int / 10000");
        let touch = format!(
            "alter publication walrelay_{} set (publish = 'insert')",
            self.world.name
        );
        self.sql.run(&format!(
            "begin; {change}; {}; commit",
            if major == 14 { &touch } else { "" }
        ));
    }

    /// Everything that is done to partitions, with rows before and after.
    fn attach_detach_and_drop(&mut self) {
        self.row("outbox", 1);
        self.row("outbox", 2);
        self.row("outbox", 2);
        self.row("outbox_1", 1);
        self.row("outbox_2", 2);

        // Its columns stand in another order, and it has rows already: they were no events when
        // they were written.
        self.sql.run(
            "create table outbox_3 (payload text, day int, extra int, type text, aggregateid text, \
             id bigint,
                 aggregatetype text); alter table outbox_3 drop column extra",
        );
        self.put("outbox_3", 3, "written before it was a partition");
        self.alter_partitions("alter table outbox attach partition outbox_3 for values in (3)");
        self.row("outbox", 3);
        self.row("outbox_3", 3);

        self.row("outbox", 1);
        self.alter_partitions("alter table outbox detach partition outbox_1");
        self.put("outbox_1", 1, "written when it was no partition any more");
        self.sql.run("drop table outbox_1");
        self.row("outbox", 3);
        self.sql
            .run("create table outbox_1 partition of outbox for values in (1)");
        self.row("outbox", 1);

        self.sql.run("truncate outbox_3");
        self.row("outbox", 3);
        self.sql
            .run("alter table outbox detach partition outbox_3 concurrently");
        self.sql.run("drop table outbox_3");

        self.sql
            .run("alter table outbox add column note text, alter payload type varchar(60)");
        self.row("outbox", 2);
        self.sql.run("drop table outbox_2");
        self.sql
            .run("create table outbox_rest partition of outbox default");
        self.row("outbox", 7);
        self.row("outbox", 1);
        // What an hourly job does: the partition goes with the rows that the relay has not seen
        // yet.
        self.sql.run(
            "begin; alter table outbox detach partition outbox_1; drop table outbox_1; commit",
        );
        self.row("outbox", 1);
    }
}

/// Every row arrived, once and in order.
#[track_caller]
fn assert_arrived(world: &World, written: usize) {
    let expected: Vec<String> = (1..=written).map(|number| number.to_string()).collect();
    let arrived = || -> Vec<String> {
        world
            .records(0)
            .iter()
            .map(|record| record.value_text())
            .collect()
    };
    eventually("the rows arrive", ARRIVAL, arrived, |arrived| {
        arrived.len() >= written
    });
    world.wait_confirmed();
    assert_eq!(arrived(), expected);
}

#[test]
fn changed_partitions_lose_nothing_while_the_relay_lags_on_every_major() {
    for &major in Postgres::majors() {
        eprintln!("Postgres {major}");
        let postgres = Postgres::private(major, &[]);
        let world = partitioned(&postgres);
        let mut writer = Writer::new(&world);
        writer.attach_detach_and_drop();
        let _relay = world.relay();
        assert_arrived(&world, writer.written);
    }
}

#[test]
fn changed_partitions_lose_nothing_while_the_relay_keeps_up() {
    let world = partitioned(Postgres::shared());
    let _relay = world.relay();
    let mut writer = Writer::new(&world);
    writer.attach_detach_and_drop();
    assert_arrived(&world, writer.written);
}

#[test]
fn a_publication_without_publish_via_partition_root_is_refused_with_a_remedy() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let mut writer = Writer::new(&world);
    writer.sql.run(ROOT);
    let publication = format!("walrelay_{}", world.name);
    writer.sql.run(&format!(
        "create publication {publication} for table outbox with (publish = 'insert')"
    ));
    writer.sql.run(&format!(
        "select pg_create_logical_replication_slot('{}', 'pgoutput')",
        world.name
    ));
    writer.put("outbox", 1, "under the name of its partition");

    let mut refused = world.run().start();
    assert_eq!(refused.wait_exit(EXIT), PUBLICATION, "{}", refused.log());
    let log = refused.log();
    assert!(
        log.contains("publishes rows under the names of partitions"),
        "{log}"
    );
    let remedy = "set (publish_via_partition_root = true)";
    assert!(
        log.contains(remedy) && log.contains("insert again what was inserted before"),
        "{log}"
    );

    writer
        .sql
        .run(&format!("alter publication {publication} {remedy}"));
    writer.row("outbox", 1);
    let _relay = world.relay();
    // The one before stays under its partition's name for ever, which the operator was told.
    assert_arrived(&world, 1);
}

#[test]
fn a_row_moved_to_another_partition_is_published_again_with_its_id() {
    let world = partitioned(Postgres::shared());
    let mut writer = Writer::new(&world);
    let _relay = world.relay();
    writer.row("outbox", 1);
    writer
        .sql
        .run("update outbox set payload = 'stays where it is'");
    writer.sql.run("update outbox set day = 2");
    eventually(
        "it comes again",
        ARRIVAL,
        || world.delivered(),
        |count| *count == 2,
    );
    let records = world.records(0);
    assert_eq!(records[0].header("id"), records[1].header("id"));
    assert_eq!(records[1].value_text(), "stays where it is");
}
