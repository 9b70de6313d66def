//! P12: rows read from the table: the same text as from the slot, those that were not published,
//! page by page.

mod unpublished;

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use walrelay::config::{ConfigFile, Environment, Flags, Settings};
use walrelay::conninfo::ConnInfo;
use walrelay::poll::select::{count, rows};
use walrelay::poll::{Reader, Selection, TableFacts, table_facts};
use walrelay_core::catch_up::{Key, Which};
use walrelay_core::config::OutboxConfig;
use walrelay_core::error::{Error, Kind};
use walrelay_core::event::{Place, Polled, Via};
use walrelay_core::position::Lsn;
use walrelay_core::route::Router;
use walrelay_core::snapshot::Snapshot;
use walrelay_core::table_read::TableRow as _;

use self::unpublished::TABLES;
use super::column_kinds::{KINDS, TYPES};
use crate::support::servers::{Kafka, Postgres};
use crate::support::topic;
use crate::support::wait::{LIMIT, eventually};
use crate::support::world::{ARRIVAL, World};

const SOON: Duration = LIMIT;

/// A reader with what drives it.
struct Reading {
    runtime: Runtime,
    reader: Reader,
}

impl Reading {
    fn new(url: &str) -> Reading {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let info = ConnInfo::parse(Some(url), &|_| None).expect("a URL");
        let reader = runtime
            .block_on(Reader::connect(&info, "walrelay-polled"))
            .expect("a reader");
        Reading { runtime, reader }
    }

    fn facts(&self, outbox: &OutboxConfig) -> Result<TableFacts, Error> {
        self.runtime
            .block_on(table_facts(self.reader.client(), outbox))
    }

    fn begin(&self, adopt: Option<&str>) -> (Snapshot, Lsn) {
        let began = self
            .runtime
            .block_on(self.reader.begin(adopt, &[]))
            .expect("begin");
        (began.snapshot, began.wal_end)
    }

    fn end(&self) {
        self.runtime.block_on(self.reader.end()).expect("end");
    }

    /// A snapshot as of now.
    fn snapshot(&self) -> Snapshot {
        let (snapshot, _) = self.begin(None);
        self.end();
        snapshot
    }

    /// The first value of each row, and its key.
    fn take(&self, outbox: &OutboxConfig, selection: &Selection<'_>) -> Vec<(String, Key)> {
        let facts = self.facts(outbox).expect("facts");
        let sql = rows(&facts, outbox, selection).expect("rows");
        let counted = count(&facts, outbox, selection).expect("count");
        let taken = self.runtime.block_on(async {
            let mut rows = self.reader.rows(&sql).await?;
            let mut taken = Vec::new();
            while let Some(row) = rows.next().await? {
                let first = row
                    .values()
                    .next()
                    .flatten()
                    .map(|text| String::from_utf8_lossy(text).into_owned());
                taken.push((first.unwrap_or_default(), row.key(outbox)));
            }
            Ok::<_, Error>(taken)
        });
        let taken = taken.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let number = self
            .runtime
            .block_on(self.reader.count(&counted))
            .expect("a number");
        assert_eq!(number, taken.len() as u64, "{counted}");
        taken
    }

    fn ids(&self, outbox: &OutboxConfig, selection: &Selection<'_>) -> BTreeSet<String> {
        let taken = self.take(outbox, selection);
        let ids: BTreeSet<_> = taken.iter().map(|(id, _)| id.clone()).collect();
        assert_eq!(ids.len(), taken.len(), "each row once: {taken:?}");
        ids
    }
}

/// The outbox a configuration file describes.
fn outbox(toml: &str) -> OutboxConfig {
    let file = ConfigFile::new("w.toml", toml);
    let settings =
        Settings::new(&Flags::new(), &Environment::new(), Some(&file)).expect("settings");
    settings.outboxes().expect("an outbox").remove(0)
}

/// An outbox of rows that are nothing but an id.
fn only_ids(table: &str, more: &str) -> OutboxConfig {
    let config = format!(
        "[outbox]\ntable = '{table}'\n{more}\n[route]\ntopic = 't'\nkey = ''\n[format]\nvalue = \
         '{{id}}'"
    );
    outbox(&config)
}

fn world() -> World {
    World::bare(Postgres::shared(), Kafka::shared().brokers())
}

/// It heals: the slot that exported it is made anew.
#[test]
fn a_snapshot_that_ended_with_its_session_is_a_retryable_fault() {
    for &major in Postgres::majors() {
        let postgres = Postgres::private(major, &[]);
        let reading = Reading::new(&postgres.url("postgres"));
        let begin = |exported| {
            reading
                .runtime
                .block_on(reading.reader.begin(Some(exported), &[]))
                .unwrap_err()
        };
        let error = begin("00000003-00000001-1");
        assert_eq!(error.kind(), Kind::PostgresUnreachable, "{major}: {error}");
        reading.end();
    }
}

/// More of what a setting of the database could change.
const TOUCHY: &[(&str, &str)] = &[
    ("float8", "0.1::float8 + 0.2"),
    ("float4", "1.1"),
    ("float8[]", "array[0.1::float8 + 0.2, 'NaN']"),
    ("interval", "'-1 mon +2 days -03:04:05.678'"),
    ("timetz", "'07:08:09.1-03'"),
    ("tstzrange", "'[2024-05-06 07:08:09+02,)'"),
    ("daterange", "'[2024-05-06,2024-06-07)'"),
    ("timestamp", "'0044-03-15 12:00:00 BC'"),
    ("bytea[]", "array['\\x00ff'::bytea]"),
    ("money", "12.5"),
];

#[test]
fn polled_values_have_the_streams_text_for_all_database_settings() {
    let world = world();
    let sql = world.sql();
    for setting in [
        "datestyle = 'SQL, DMY'",
        "timezone = 'Asia/Kolkata'",
        "bytea_output = 'escape'",
        "extra_float_digits = -5",
        "intervalstyle = 'sql_standard'",
        "search_path = 'pg_catalog'",
    ] {
        sql.run(&format!("alter database {} set {setting}", world.name));
    }
    let kinds: Vec<_> = KINDS
        .iter()
        .map(|(kind, value, ..)| (*kind, *value))
        .chain(TOUCHY.iter().copied())
        .collect();
    let columns: Vec<_> = kinds
        .iter()
        .enumerate()
        .map(|(number, (kind, _))| format!("c{number} {kind}"))
        .collect();
    let values: Vec<_> = kinds.iter().map(|(_, value)| *value).collect();
    sql.run(&format!(
        "{TYPES}; drop table outbox; create table outbox (id int, {})",
        columns.join(", ")
    ));
    let members: Vec<_> = (0..kinds.len())
        .map(|number| format!("m{number} = '{{c{number}}}'\nt{number} = '{{c{number}|text}}'"))
        .collect();
    let config = format!(
        "[route]\ntopic = '{}'\nkey = '{{c0}}'\n[route.headers]\nraw = \
         '{{c1}}'\n[format.envelope]\n{}",
        world.topic(0),
        members.join("\n")
    );
    world.command("setup").config_file(&config).succeed();
    sql.run(&format!(
        "insert into outbox values (1, {})",
        values.join(", ")
    ));
    let mut relay = world.run().config_file(&config).start();
    relay.wait_ready();
    let arrived = || topic::count(&world.brokers, &world.topic(0));
    eventually("the row arrives", ARRIVAL, arrived, |count| *count == 1);
    let streamed = world.records(0).remove(0);
    assert_eq!(relay.terminate(SOON), Some(0));

    let outbox = outbox(&config);
    let reading = Reading::new(&world.database_url);
    let facts = reading.facts(&outbox).expect("facts");
    let mut polled = Polled::new(&outbox, facts.columns.clone()).expect("every column");
    let mut router = Router::new(&outbox).expect("a router");
    let all = rows(&facts, &outbox, &Selection::of(Which::All)).expect("rows");
    let row = reading.runtime.block_on(async {
        let mut rows = reading.reader.rows(&all).await?;
        let row = rows.next().await?;
        assert!(
            rows.next().await?.is_none() && rows.next().await?.is_none(),
            "one row"
        );
        Ok::<_, Error>(row)
    });
    let row = row.expect("rows").expect("a row");
    let place = Place {
        commit_lsn: Lsn::new(1),
        index: 0,
        via: Via::Table,
    };
    let event = polled.event(place, 0, row.values()).expect("an event");
    let routed = router.route(&event).expect("a record");
    routed.with_record(|record| {
        let text = String::from_utf8_lossy(record.value.expect("a value")).into_owned();
        assert_eq!(text, streamed.value_text());
        assert_eq!(record.key.map(<[u8]>::to_vec), streamed.key);
        for (name, value) in record
            .headers
            .iter()
            .filter(|(name, _)| *name != "walrelay-position")
        {
            let found = streamed
                .headers
                .iter()
                .find(|(streamed, _)| streamed == name)
                .expect(name);
            assert_eq!(found.1, value.map(<[u8]>::to_vec), "header {name}");
        }
    });
}

#[test]
fn pages_contain_each_row_once_in_order() {
    let world = world();
    let sql = world.sql();
    sql.run(
        "create extension citext; create type level as enum ('low', 'high'); create domain name as \
         text;
         create table pages (id text primary key, seq bigint generated always as identity, n \
         numeric, at timestamptz,
                             l level, f float8, c citext unique, j json, d name, fixed char(8), nn \
                             int not null,
                             maybe text);
         insert into pages (id, n, at, l, f, c, j, d, fixed, nn, maybe)
         select case when i % 3 = 0 then 'B' else 'a' end || i, case when i % 4 > 0 then i % 5 + \
         0.1 end,
                case when i % 5 > 0 then '2024-05-06'::timestamptz + i / 2 * '0.000001 \
                s'::interval end,
                case i % 3 when 0 then 'low'::level when 1 then 'high' end,
                case i % 4 when 0 then 'NaN'::float8 when 1 then 0.1::float8 + i / 100.0 when 2 \
                then '-Infinity' end,
                case when i % 2 = 0 then 'X' else 'x' end || i, to_json(i), 'n' || i, i::text, i / \
                6,
                case when i <> 7 then 'm' || i end
         from generate_series(1, 40) i",
    );
    let reading = Reading::new(&world.database_url);
    let columns = |id: &str| format!("columns.id = '{id}'\n");
    let order = |sql: &str| format!("order_by = '{sql}'\n");
    for more in [
        String::new(),
        order("n"),
        order("at"),
        order("l"),
        order("f"),
        order("nn"),
        order("d"),
        order("fixed"),
        order("abs(seq - 20)"),
        order("(l, n) is null"),
        columns("c") + &order("nn"),
        columns("j") + &order("l"),
        columns("d") + &order("l"),
        columns("maybe") + &order("nn"),
        columns("seq"),
        columns("fixed") + &order("maybe"),
    ] {
        let mut outbox = only_ids("pages", &more);
        outbox.columns = vec![outbox.names.id.clone()];
        outbox.name_rows_by(&[outbox.names.id.clone()], None);
        let facts = reading
            .facts(&outbox)
            .unwrap_or_else(|error| panic!("{more}: {error:?}"));
        assert!(facts.may_select);
        let all = reading.take(&outbox, &Selection::of(Which::All));
        assert_eq!(all.len(), 40);
        let mut paged = Vec::new();
        let mut after = None;
        loop {
            let selection = Selection {
                after: after.as_ref(),
                limit: Some(3),
                ..Selection::of(Which::All)
            };
            let page = reading.take(&outbox, &selection);
            let Some((_, last)) = page.last() else { break };
            after = Some(last.clone());
            paged.extend(page);
            assert!(paged.len() <= 40, "{more}: more than there are");
            // Behind a row without an id, which is no event, nobody goes on.
            if paged.last().is_some_and(|(id, _)| id.is_empty()) {
                after = None;
                break;
            }
        }
        match after {
            Some(_) => assert_eq!(paged, all, "{more}"),
            None => assert_eq!(
                paged,
                all[..paged.len()],
                "{more}: up to the row without an id"
            ),
        }
    }
}

#[test]
fn settings_that_contradict_the_table_and_missing_rights_are_refused() {
    let world = world();
    let sql = world.sql();
    sql.run(&format!(
        "{TABLES}; create domain inner_d as bytea; create domain outer_d as inner_d;
         create domain inner_n as numeric(10, 2); create domain outer_n as inner_n; create type \
         level as enum ('low');
         create table facts (id uuid default gen_random_uuid(), n serial, payload outer_d, \
         created_at timestamptz, v varchar(7),
                             \"Odd\" int, cost outer_n, levels level[]);
         create view shown as select * from facts; create extension citext; alter table facts add \
         c citext"
    ));
    let reading = Reading::new(&world.database_url);
    let of = |more: &str| {
        let config = format!(
            "[outbox]\ntable = 'facts'\n{more}\n[route]\ntopic = 't'\nkey = \
             '{{v}}-{{cost}}-{{levels}}'"
        );
        reading.facts(&outbox(&config))
    };
    let facts = of("").expect("facts");
    let types: Vec<_> = facts
        .columns
        .iter()
        .map(|column| (column.type_oid, column.type_modifier))
        .collect();
    let expected = [
        (2950, -1),
        (1043, 11),
        (1700, 655_366),
        (1009, -1),
        (17, -1),
    ];
    assert_eq!(types, expected, "id, v, cost, levels and payload");
    let order = facts.order.expect("an order");
    assert_eq!(
        (order.sql.as_str(), order.type_name.as_str(), order.not_null),
        ("\"n\"", "integer", true)
    );
    assert_eq!(
        (
            facts.time.as_deref(),
            facts.key[0].type_name.as_str(),
            facts.may_select
        ),
        (Some("created_at"), "uuid", true)
    );
    assert_eq!(
        facts.oid.to_string(),
        sql.text("select 'facts'::regclass::oid")
    );
    let order = of("order_by = '\"Odd\"'")
        .expect("facts")
        .order
        .expect("an order");
    assert_eq!(
        (order.type_name.as_str(), order.not_null, order.is_found),
        ("integer", false, false)
    );

    let mark = "mark = 'n = 0'\n";
    for (more, said) in [
        ("order_by = 'n, id'", "outbox.order_by"),
        ("order_by = 'null'", "outbox.order_by"),
        ("order_by = 'n desc'", "outbox.order_by"),
        ("order_by = 'count(*)'", "outbox.order_by"),
        ("order_by = 'nope'", "outbox.order_by"),
        ("order_by = 'n / 0 +'", "outbox.order_by"),
        ("order_by = 'generate_series(1, n)'", "outbox.order_by"),
        ("order_by = 'row_number() over ()'", "outbox.order_by"),
        ("order_by = 'c'", "which Postgres itself does not order"),
        (&format!("{mark}pending = 'n + 1'"), "outbox.pending"),
        (&format!("{mark}pending = 'unknown > 1'"), "outbox.pending"),
        (&format!("{mark}pending = '1'"), "outbox.pending"),
        (&format!("{mark}pending = 'count(*) > 0'"), "outbox.pending"),
        (
            &format!("{mark}pending = 'v = $1'"),
            "outbox.pending has parameters",
        ),
        ("time = 'n'", "outbox.time"),
        ("time = 'nope'", "outbox.time"),
    ] {
        let error = of(more).expect_err(more);
        assert_eq!(error.kind(), Kind::Config, "{more}: {error}");
        assert!(
            error.cause().contains(said) && error.what_to_do().is_some(),
            "{more}: {error}"
        );
    }
    for (table, said) in [
        ("nope", "there is no table public.nope"),
        ("shown", "public.shown is not a table"),
    ] {
        let error = reading.facts(&only_ids(table, "")).expect_err(table);
        assert_eq!(
            (error.kind(), error.cause().starts_with(said)),
            (Kind::Publication, true),
            "{error}"
        );
    }

    let role = format!("{}_r", world.name);
    sql.run(&format!(
        "create role {role} login; grant select (id, x) on exact to {role}; grant select (id) on \
         bare to {role};
                      create schema closed; create table closed.t (id text); grant select on \
                      closed.t to {role}"
    ));
    let limited = Reading::new(&Postgres::shared().url_as(&role, &world.name));
    let may = |table: &str, more: &str| {
        limited
            .facts(&only_ids(table, more))
            .expect(table)
            .may_select
    };
    assert!(may("exact", ""));
    assert!(
        !may("bare", ""),
        "xmin is for those who may read the whole table"
    );
    assert!(!may("parted", "") && !may("closed.t", ""));
    assert!(!may("closed.t", "order_by = 'id'"));
    sql.run(&format!("drop owned by {role}; drop role {role}"));
}

#[test]
fn a_reader_fetches_rows_on_demand_and_closes_its_cursor() {
    let world = world();
    let sql = world.sql();
    let reading = Reading::new(&world.database_url);
    let pid = reading.runtime.block_on(
        reading
            .reader
            .client()
            .query_one("select pg_backend_pid()", &[]),
    );
    let pid: i32 = pid.expect("a process id").get(0);
    let mut rows = reading.runtime.block_on(async {
        // A function in the select list makes its rows one by one; `from` would store them first.
        let sql = "select i::text, repeat('x', 1000), i::text, i::text, null from \
                   (select generate_series(1, 100000000) i) numbers";
        let mut rows = reading.reader.rows(sql).await?;
        for _ in 0..3 {
            rows.next().await?;
        }
        Ok::<_, Error>(rows)
    });
    let waits = || {
        sql.text(&format!(
            "select wait_event from pg_stat_activity where pid = {pid}"
        ))
    };
    eventually("the server waits for the reader", SOON, waits, |wait| {
        wait == "ClientWrite"
    });
    // And goes on when rows are taken again.
    let taken = reading.runtime.block_on(async {
        let rows = rows.as_mut().expect("rows");
        for number in 4..=20_000_u32 {
            let row = rows.next().await?.expect("a row");
            assert_eq!(
                (row.id(), row.key(&OutboxConfig::default()).order),
                (number.to_string().as_str(), Some(number.to_string()))
            );
        }
        Ok::<_, Error>(())
    });
    taken.expect("rows");
    let Reading { runtime, reader } = reading;
    drop((rows, reader));
    let left = || {
        sql.number(&format!(
            "select count(*) from pg_stat_activity where pid = {pid}"
        ))
    };
    eventually("its session ends", SOON, left, |left| *left == 0);
    drop(runtime);
}
