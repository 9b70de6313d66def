//! P12: rows of transactions that a snapshot did not see, told by a column and by `xmin`.

use std::collections::BTreeSet;

use tokio_postgres::SimpleQueryMessage;
use walrelay::poll::Selection;
use walrelay::poll::select::rows;
use walrelay_core::catch_up::{Copies, Which};
use walrelay_core::error::Kind;
use walrelay_core::position::Lsn;
use walrelay_core::snapshot::Snapshot;

use super::{Reading, only_ids, world};
use crate::support::servers::Postgres;
use crate::support::sql::Sql;
use crate::support::world::World;

fn set<'a>(ids: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    ids.into_iter().map(str::to_owned).collect()
}

/// Tables that tell a row's transaction exactly, and those in which `xmin` has to do.
const EXACT: [&str; 2] = ["exact", "parted"];
const BY_XMIN: [&str; 3] = ["bare", "bare_parted", "late"];
pub(super) const TABLES: &str = "
    create table exact (id text primary key, x xid8 not null default pg_current_xact_id());
    create table parted (id text, x xid8 default pg_current_xact_id()) partition by hash (id);
    create table parted_0 partition of parted for values with (modulus 2, remainder 0);
    create table parted_1 partition of parted for values with (modulus 2, remainder 1);
    create table bare (id text primary key);
    create table bare_parted (id text primary key) partition by hash (id);
    create table bare_parted_0 partition of bare_parted for values with (modulus 2, remainder 0);
    create table bare_parted_1 partition of bare_parted for values with (modulus 2, remainder 1);
    create table late (id text, x xid8 default pg_current_xact_id())";

/// The same row in every table; in `late` by a writer that names all columns and knows nothing of
/// `x`.
fn insert(sql: &Sql, id: &str) {
    sql.run(&format!(
        "insert into exact values ('{id}'); insert into parted values ('{id}'); insert into bare \
         values ('{id}');
         insert into bare_parted values ('{id}'); insert into late values ('{id}', null)"
    ));
}

/// A row with the transaction of another row, or of none, in the exact tables.
fn copy(sql: &Sql, id: &str, xid: &str) {
    EXACT
        .iter()
        .for_each(|table| sql.run(&format!("insert into {table} values ('{id}', '{xid}')")));
}

fn by_snapshot(snapshot: &Snapshot) -> Copies<'_> {
    Copies {
        snapshot,
        before: None,
        savepoints: &[],
        all_from: None,
    }
}

const PUBLISHED: &str = "10";
const FUTURE: &str = "900000000000";
/// As the remedy writes it.
const FROZEN: &str = "2";

#[test]
fn unpublished_rows_are_those_a_snapshot_did_not_see() {
    let world = world();
    let [sql, open, nested, rolled_back, mover] = [(); 5].map(|()| world.sql());
    sql.run(TABLES);
    for id in ["old", "old, updated"] {
        insert(&sql, id);
    }
    copy(&sql, "old copy", PUBLISHED);
    copy(&sql, "old, restored", FUTURE);
    let before: Snapshot = sql
        .text("select pg_current_snapshot()")
        .parse()
        .expect("a snapshot");
    mover.run("begin; select pg_current_xact_id(); savepoint a");
    copy(&mover, "copied in savepoint", PUBLISHED);
    open.run("begin");
    insert(&open, "open");
    nested.run("begin; select pg_current_xact_id(); savepoint a");
    insert(&nested, "rolled back to savepoint");
    nested.run("rollback to savepoint a; savepoint b");
    insert(&nested, "in savepoint");
    nested.run("release savepoint b; savepoint c");
    rolled_back.run("begin");
    insert(&rolled_back, "rolled back");
    // Committed, and not below the oldest that is open: xmin alone does not tell it from those.
    insert(&sql, "in between");

    let reading = Reading::new(&world.database_url);
    let (snapshot, wal_end) = reading.begin(None);
    assert!(wal_end > Lsn::ZERO);
    // Later than the snapshot, and not seen by the transaction that reads.
    insert(&nested, "in savepoint, later");
    for session in [&open, &nested, &mover] {
        session.run("commit");
    }
    copy(&sql, "copied", PUBLISHED);
    copy(&sql, "restored", FUTURE);
    copy(&sql, "frozen", FROZEN);
    rolled_back.run("rollback");
    insert(&sql, "new");
    sql.run("begin; savepoint a");
    insert(&sql, "new in savepoint");
    sql.run("commit");
    for table in EXACT.iter().chain(&BY_XMIN) {
        sql.run(&format!(
            "update {table} set id = 'old, then updated' where id = 'old, updated'"
        ));
    }
    let published: u64 = {
        sql.run("begin");
        insert(&sql, "published otherwise");
        let xid = sql.text("select pg_current_xact_id()");
        sql.run("commit");
        xid.parse().expect("a transaction id")
    };

    let choose = |also, copies| {
        Selection::of(Which::Unpublished {
            snapshot: &snapshot,
            also,
            copies,
        })
    };
    let by_copies = Copies {
        before: Some(&before),
        ..by_snapshot(&snapshot)
    };
    let unpublished = |also| choose(also, Some(by_copies));
    let wanted = set([
        "open",
        "in savepoint",
        "in savepoint, later",
        "new",
        "new in savepoint",
    ]);
    let and = |more: &[&str]| {
        wanted
            .union(&set(more.iter().copied()))
            .cloned()
            .collect::<BTreeSet<_>>()
    };
    let also = [published];
    // The transaction of the snapshot sees nothing of it.
    assert_eq!(
        reading.ids(&only_ids("exact", ""), &unpublished(&[])),
        set([])
    );
    reading.end();
    // Published again is what was updated, as an update cannot be told from a copy.
    let copies = [
        "restored",
        "copied",
        "copied in savepoint",
        "old, then updated",
    ];
    for table in EXACT {
        let outbox = only_ids(table, "");
        assert!(reading.facts(&outbox).expect("facts").xid_column.is_some());
        let column = ["restored", "published otherwise"];
        assert_eq!(
            reading.ids(&outbox, &choose(&[], None)),
            and(&column),
            "{table}, by the column"
        );
        assert_eq!(
            reading.ids(&outbox, &choose(&also, None)),
            and(&["restored"]),
            "{table}, by the column"
        );
        assert_eq!(
            reading.ids(&outbox, &unpublished(&also)),
            and(&copies),
            "{table}"
        );
        let seen = [
            "old",
            "old copy",
            "old, restored",
            "old, then updated",
            "in between",
        ];
        let until = Selection {
            until: Some(&snapshot),
            ..Selection::of(Which::All)
        };
        // The slot has copies, too.
        let unsure = ["copied", "copied in savepoint", "frozen"];
        let found = reading.ids(&outbox, &until);
        assert_eq!(found, set(seen.into_iter().chain(unsure)), "{table}");
    }
    // What is not told apart comes again, and nothing else does.
    let superset = and(&["in between", "old, then updated", "published otherwise"]);
    for table in BY_XMIN {
        assert_eq!(
            reading.ids(&only_ids(table, ""), &unpublished(&also)),
            superset,
            "{table}"
        );
    }
    let now = reading.snapshot();
    for table in EXACT.iter().chain(&BY_XMIN) {
        let none = Selection::of(Which::Unpublished {
            snapshot: &now,
            also: &[],
            copies: Some(by_snapshot(&now)),
        });
        assert_eq!(reading.ids(&only_ids(table, ""), &none), set([]), "{table}");
    }
}

/// The rows that the plan of `query` reads, also those that it does not give.
fn rows_read(reading: &Reading, query: &str) -> u64 {
    let explain = format!("explain (analyze, format json, timing off, summary off) {query}");
    let told = reading
        .runtime
        .block_on(reading.reader.client().simple_query(&explain))
        .expect("a plan");
    let plan = told.iter().find_map(|told| {
        if let SimpleQueryMessage::Row(row) = told {
            row.get(0)
        } else {
            None
        }
    });
    let plan: serde_json::Value = serde_json::from_str(plan.expect("a row")).expect("a plan");
    let mut nodes = vec![&plan[0]["Plan"]];
    let mut read = 0;
    while let Some(node) = nodes.pop() {
        nodes.extend(node["Plans"].as_array().into_iter().flatten());
        if node["Relation Name"].is_string() {
            let loops = node["Actual Loops"].as_u64().unwrap_or_default();
            let of = |key: &str| node[key].as_f64().unwrap_or_default() as u64 * loops;
            read += of("Actual Rows")
                + of("Rows Removed by Filter")
                + of("Rows Removed by Index Recheck");
        }
    }
    read
}

#[test]
fn a_poll_beside_an_open_transaction_reads_only_the_new_rows() {
    let world = world();
    let sql = world.sql();
    let open = world.sql();
    sql.run(
        "create table exact (id bigint generated always as identity primary key, x xid8 default \
         pg_current_xact_id());
             create index on exact (x); insert into exact select from generate_series(1, 1000)",
    );
    open.run("begin; select pg_current_xact_id()");
    let reading = Reading::new(&world.database_url);
    let outbox = only_ids("exact", "");
    let facts = reading.facts(&outbox).expect("facts");
    // Each transaction is one that the oldest snapshot of the open one does not see.
    sql.run(
        "do $$ begin for n in 1..5000 loop insert into exact default values; commit; end loop; \
             end $$",
    );
    sql.run("analyze exact");
    let snapshot = reading.snapshot();
    let poll = Selection::of(Which::Unpublished {
        snapshot: &snapshot,
        also: &[],
        copies: None,
    });
    let query = rows(&facts, &outbox, &poll).expect("a query");
    assert_eq!(rows_read(&reading, &query), 0, "{query}");
    sql.run("insert into exact default values");
    open.run("insert into exact default values; commit");
    assert_eq!(rows_read(&reading, &query), 2, "{query}");
}

#[test]
fn an_exported_snapshot_is_what_is_read() {
    let world = world();
    let [sql, exporting] = [(); 2].map(|()| world.sql());
    sql.run(TABLES);
    insert(&sql, "before");
    exporting.run("begin isolation level repeatable read");
    let exported = exporting.text("select pg_export_snapshot()");
    let seen = exporting.text("select pg_current_snapshot()");
    insert(&sql, "after");
    let reading = Reading::new(&world.database_url);
    let (snapshot, _) = reading.begin(Some(&exported));
    assert_eq!(snapshot.to_string(), seen);
    assert_eq!(
        reading.ids(&only_ids("bare", ""), &Selection::of(Which::All)),
        set(["before"])
    );
    reading.end();
    assert_eq!(
        reading.ids(&only_ids("bare", ""), &Selection::of(Which::All)),
        set(["before", "after"])
    );
    let gone = reading
        .runtime
        .block_on(reading.reader.begin(Some("0'; --"), &[]))
        .expect_err("no snapshot");
    assert_eq!(gone.kind(), Kind::PostgresUnreachable);
    reading.end();
    assert!(reading.snapshot().xmax() > 0);
}

#[test]
fn the_xmin_window_spans_the_wraparound_of_transaction_ids() {
    let Some(postgres) = Postgres::before_wraparound(100) else {
        return;
    };
    let world = World::bare(&postgres, "127.0.0.1:1");
    let sql = world.sql();
    let open = world.sql();
    sql.run(TABLES);
    let reading = Reading::new(&world.database_url);
    let put = |from: u32, to: u32| (from..to).for_each(|number| insert(&sql, &number.to_string()));
    let is_before = |xid: u64| xid >> 32 == 3;
    put(0, 10);
    open.run("begin");
    insert(&open, "open");
    let before = reading.snapshot();
    assert!(is_before(before.xmax()), "{before}");
    put(10, 210);
    open.run("commit");
    let after = reading.snapshot();
    assert!(!is_before(after.xmin()), "{after}");
    put(210, 220);

    let numbers = |from: u32, to: u32| {
        (from..to)
            .map(|number| number.to_string())
            .collect::<BTreeSet<_>>()
    };
    for round in ["as written", "frozen"] {
        for table in EXACT.iter().chain(&BY_XMIN) {
            let outbox = only_ids(table, "");
            let unpublished = |snapshot| {
                Selection::of(Which::Unpublished {
                    snapshot,
                    also: &[],
                    copies: Some(by_snapshot(snapshot)),
                })
            };
            let mut expected = numbers(10, 220);
            expected.insert("open".to_owned());
            assert_eq!(
                reading.ids(&outbox, &unpublished(&before)),
                expected,
                "{table}, {round}, from before the end"
            );
            assert_eq!(
                reading.ids(&outbox, &unpublished(&after)),
                numbers(210, 220),
                "{table}, {round}, behind the end"
            );
            let long_ago: Snapshot = "5:5:".parse().expect("a snapshot");
            assert_eq!(
                reading.ids(&outbox, &unpublished(&long_ago)).len(),
                221,
                "{table}, {round}, rounds ago"
            );
        }
        // Those of the catalogs were frozen in what looks like the future now.
        let tables: Vec<_> = EXACT.iter().chain(&BY_XMIN).copied().collect();
        sql.run(&format!("vacuum (freeze) {}", tables.join(", ")));
    }
}
