//! P13: rows are marked or deleted once they were acked.

use walrelay::upkeep::Marker;
use walrelay_core::error::{Error, Kind};
use walrelay_core::event::RowId;
use walrelay_core::parked::{Batch, FailedAgain, Failure, Parking};

use super::{database, runtime, waits_for_lock};
use crate::support::servers::Postgres;
use crate::support::wait::{LIMIT, eventually};
use crate::support::world::World;

async fn marker(url: &str, toml: &str) -> Result<Marker, Error> {
    super::marker(url, toml, Parking::Off).await
}

fn row(outbox: usize, id: &str) -> RowId {
    RowId::new(outbox, std::iter::once(id.as_bytes()))
}

/// The tables of two teams and one with ids of any text, and what each wants done.
const SCHEMAS: [&str; 3] = [
    include_str!("../../../examples/outbox-events/schema.sql"),
    include_str!("../../../examples/wallet-outbox/schema.sql"),
    "create domain name_of_event as varchar(40);
     create table named (\"The id\" name_of_event primary key, aggregatetype text, aggregateid \
                           text, type text, payload jsonb)",
];
const WANTED: &str = r#"
[[outbox]]
table = "outbox_events"
mark = """status = 'published', published_at = now(), version = version + 1, \
          metadata = jsonb_set(coalesce(metadata, '{}'), '{sent}', 'true')"""
[outbox.columns]
aggregatetype = "aggregate_type"
aggregateid = "aggregate_id"
type = "event_type"
payload = "event_data"
[[outbox]]
table = "outbox"
mark = "sent = true"
[outbox.route]
topic = "{event_type}"
key = "{correlation_id}"
[[outbox]]
table = "named"
delete = "acked"
[outbox.columns]
id = "The id"
"#;

const WALLET: &str = r#"
[outbox]
mark = "sent = true"
[route]
topic = "{event_type}"
key = "{correlation_id}"
"#;

fn acked(rows: &[RowId]) -> Batch {
    Batch {
        acked: rows.to_vec(),
        ..Batch::default()
    }
}

#[test]
fn rows_of_several_tables_are_marked_and_deleted_in_one_transaction() {
    let world = database(&SCHEMAS.join(";\n"));
    let sql = world.sql();
    let names = ["it's", "a,b", "{x}", "\"q\"", "\\", "null", ""];
    sql.run(
        "insert into outbox_events (id, aggregate_id, aggregate_type, event_type, event_data, \
         status, version, created_at)
         select ('00000000-0000-0000-0000-00000000000' || n)::uuid, 'a', 'b', 'c', '{}', \
         'pending', 7, now()
         from generate_series(1, 5) n;
         insert into outbox (event_type, payload, created_at) select 'A', '', now() from \
         generate_series(1, 5000)",
    );
    for name in names {
        sql.rows(
            "insert into named values ($1::text, 'a', 'b', 'c', '{}')",
            &[&name],
        );
    }
    let runtime = runtime();
    let marker = runtime
        .block_on(marker(&world.database_url, WANTED))
        .unwrap();
    let settle = |rows: &[RowId]| runtime.block_on(marker.settle(&acked(rows)));
    assert_eq!(settle(&[]), Ok(0));
    let event = |number: u32| row(0, &format!("00000000-0000-0000-0000-00000000000{number}"));
    // One twice, one that is gone, and outboxes that are not written to.
    let mut rows = vec![
        event(2),
        event(3),
        event(3),
        event(9),
        row(3, "1"),
        row(9, "1"),
    ];
    rows.extend((1..=4_500).rev().map(|id| row(1, &id.to_string())));
    rows.extend(names.iter().map(|name| row(2, name)));
    assert_eq!(settle(&rows), Ok(2 + 4_500 + 7));
    assert_eq!(settle(&rows), Ok(2 + 4_500));

    assert_eq!(
        settle(&[
            row(1, "1"),
            RowId {
                outbox: 2,
                key: vec![0xff]
            }
        ])
        .unwrap_err()
        .kind(),
        Kind::Event
    );
    // One that is no number: nothing of the others is written.
    let error = settle(&[event(5), row(1, "five")]).unwrap_err();
    assert_eq!(error.kind(), Kind::PostgresUnwritable, "{error}");
    assert!(!error.cause().contains("five"), "{error}");

    let marked = "select string_agg(id || status || version || metadata, ' ' order by id) from (
        select right(id::text, 1) as id, status, version, coalesce(metadata::text, '') as metadata \
        from outbox_events) e";
    let twice = "published9{\"sent\": true}";
    assert_eq!(
        sql.text(marked),
        format!("1pending7 2{twice} 3{twice} 4pending7 5pending7")
    );
    assert_eq!(sql.number("select count(*) from outbox where sent"), 4_500);
    assert_eq!(
        sql.number("select count(*) from outbox where sent and id > 4500"),
        0
    );
    assert_eq!(sql.number("select count(*) from named"), 0);
}

#[test]
fn marks_use_the_index_of_the_ids_under_every_plan() {
    let world = database(SCHEMAS[1]);
    let sql = world.sql();
    sql.run(
        "insert into outbox (event_type, payload, created_at) select 'A', '', now() from \
         generate_series(1, 50000);
         analyze outbox",
    );
    let counter = |name: &str| {
        sql.number(&format!(
            "select {name} from pg_stat_user_tables where relname = 'outbox'"
        ))
    };
    eventually(
        "what was done is known",
        LIMIT,
        || counter("n_tup_ins"),
        |rows| *rows >= 50_000,
    );
    let before = counter("seq_scan");
    let runtime = runtime();
    let marker = runtime
        .block_on(marker(&world.database_url, WALLET))
        .unwrap();
    // The sixth execution may be the first of a generic plan.
    for id in 1..=8 {
        assert_eq!(
            runtime.block_on(marker.settle(&acked(&[row(0, &id.to_string())]))),
            Ok(1)
        );
    }
    drop(marker);
    eventually(
        "what was done is known",
        LIMIT,
        || counter("n_tup_upd"),
        |rows| *rows >= 8,
    );
    assert_eq!(counter("seq_scan"), before);
}

#[test]
fn a_mark_that_cannot_work_is_refused_at_start() {
    let parted =
        "create table parted (id int, aggregatetype text, aggregateid text, type text, payload \
         jsonb, status text)
        partition by list (status);
        create table parted_1 partition of parted for values in ('new') partition by list \
        (lower(payload::text));
        create table parted_2 partition of parted_1 default;
        create function public.stamp() returns text language sql as $$select 'x'$$";
    let world = database(&format!("{}; {parted}", SCHEMAS[1]));
    let sql = world.sql();
    let reader = format!("{}_reader", world.name);
    sql.run("create publication everything for table outbox, parted");
    let runtime = runtime();
    let start = |url: &str, table: &str, what: &str| {
        let toml = format!(
            "[route]\ntopic = \"a\"\nkey = \"{{id}}\"\n[outbox]\ntable = \"{table}\"\n{what}\n"
        );
        runtime.block_on(marker(url, &toml)).err()
    };
    for (table, what, kind, told) in [
        (
            "outbox",
            "mark = \"snet = true\"",
            Kind::Config,
            "outbox.mark of table public.outbox cannot be used",
        ),
        (
            "outbox",
            "mark = \"sent = 5\"",
            Kind::Config,
            "outbox.mark of table",
        ),
        (
            "outbox",
            "mark = \"sent = 'maybe'\"",
            Kind::Config,
            "outbox.mark does not work out",
        ),
        (
            "outbox",
            "mark = \"sent == true\"",
            Kind::Config,
            "outbox.mark of table",
        ),
        (
            "outbox",
            "mark = \"sent = true where true\"",
            Kind::Config,
            "outbox.mark of table",
        ),
        (
            "outbox",
            "mark = \"payload = $2\"",
            Kind::Config,
            "outbox.mark of public.outbox has parameters",
        ),
        (
            "outbox",
            "mark = \"payload = stamp()\"",
            Kind::Config,
            "outbox.mark of table",
        ),
        (
            "gone",
            "mark = \"sent = true\"",
            Kind::Publication,
            "no table public.gone",
        ),
        (
            "outbox",
            "mark = \"sent = true\"\ncolumns.id = \"uid\"",
            Kind::Publication,
            "no column uid",
        ),
        (
            "parted",
            "mark = \"status = 'sent'\"",
            Kind::Config,
            "sets status, which table public.parted is partitioned",
        ),
        (
            "parted",
            "mark = \"payload = '{}'\"",
            Kind::Config,
            "sets payload, which",
        ),
        (
            "parted",
            "mark = \"type = 'x'\"",
            Kind::Publication,
            "replica identity",
        ),
    ] {
        let error = start(&world.database_url, table, what).unwrap_or_else(|| panic!("{what}"));
        assert_eq!(error.kind(), kind, "{what}: {error}");
        assert!(
            error.cause().contains(told) && error.what_to_do().is_some(),
            "{what}: {error}"
        );
    }
    assert_eq!(
        start(
            &world.database_url,
            "outbox",
            "mark = \"payload = public.stamp()\""
        ),
        None
    );
    sql.run("alter publication everything set (publish = 'insert')");
    assert_eq!(
        start(&world.database_url, "parted", "mark = \"type = 'x'\""),
        None
    );

    sql.run(&format!(
        "create role {reader} login; grant select on outbox to {reader}"
    ));
    let url = Postgres::shared().url_as(&reader, &world.name);
    for (what, verb) in [
        ("mark = \"sent = true\"", "update"),
        ("delete = \"acked\"", "delete"),
    ] {
        let error = start(&url, "outbox", what).unwrap_or_else(|| panic!("{what}"));
        assert_eq!(error.kind(), Kind::PostgresRefused);
        let remedy = error.what_to_do().unwrap();
        let grant = format!("grant select, {verb} on \"public\".\"outbox\" to \"{reader}\"");
        assert!(remedy.contains(&grant), "{remedy}");
        sql.run(&remedy);
        assert_eq!(start(&url, "outbox", what), None);
    }
    sql.run(&format!("drop owned by {reader}; drop role {reader}"));
}

fn wallet() -> World {
    let world = database(SCHEMAS[1]);
    let nine = "insert into outbox (event_type, payload, created_at) select 'A', '', now() from \
                generate_series(1, 9)";
    world.sql().run(nine);
    world
}

#[test]
fn a_mark_waits_for_a_lock_and_then_names_its_holder() {
    let world = wallet();
    let sql = world.sql();
    let holder = world.sql();
    let runtime = runtime();
    let marker = runtime
        .block_on(marker(&world.database_url, WALLET))
        .unwrap();
    let settle = |ids: &[&str]| {
        let rows: Vec<_> = ids.iter().map(|id| row(0, id)).collect();
        runtime.block_on(marker.settle(&acked(&rows)))
    };
    holder.run("begin; select from outbox where id = 5 for update");
    std::thread::scope(|scope| {
        let settled = scope.spawn(|| settle(&["5", "6"]));
        eventually(
            "the marker waits",
            LIMIT,
            || waits_for_lock(&sql),
            |waits| *waits,
        );
        holder.run("commit");
        assert_eq!(settled.join().unwrap(), Ok(2));
    });
    // Each wants what the other has. It is the marker that gives way, and comes again.
    holder.run("set deadlock_timeout = '10s'; begin; select from outbox where id = 7 for update");
    std::thread::scope(|scope| {
        let settled = scope.spawn(|| settle(&["1", "7"]));
        eventually(
            "the marker waits",
            LIMIT,
            || waits_for_lock(&sql),
            |waits| *waits,
        );
        holder.run("select from outbox where id = 1 for update; commit");
        assert_eq!(settled.join().unwrap(), Ok(2));
    });
    holder.run("begin; select from outbox where id = 5 for update");
    let error = settle(&["5", "8"]).unwrap_err();
    assert_eq!(error.kind(), Kind::PostgresUnwritable, "{error}");
    assert!(error.cause().contains("5 times"), "{error}");
    assert_eq!(
        sql.number("select count(*) from outbox where id = 8 and sent"),
        0
    );
    // Nothing is left behind that others wait for.
    sql.run("set lock_timeout = '5s'; update outbox set sent = false where id = 8");
}

#[test]
fn a_visibility_check_stays_out_of_a_concurrent_mark_transaction() {
    let world = wallet();
    let sql = world.sql();
    let holder = world.sql();
    let runtime = runtime();
    let marker = runtime
        .block_on(marker(&world.database_url, WALLET))
        .unwrap();
    let xid = sql.number("select pg_current_xact_id()");
    holder.run("begin; select from outbox where id = 5 for update");
    let open = u32::try_from(holder.number("select pg_current_xact_id()")).unwrap();
    assert_eq!(
        runtime.block_on(marker.sees(&[open])),
        Ok(false),
        "it does not wait for long"
    );
    let waited = || {
        sql.text(
            "select string_agg(xact_start::text, '') from pg_stat_activity where datname = \
             current_database()
             and application_name = 'walrelay orders upkeep' and wait_event_type = 'Lock'",
        )
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| runtime.block_on(marker.settle(&acked(&[row(0, "5")]))));
        let began = eventually("the marker waits", LIMIT, waited, |began| !began.is_empty());
        let marker = &marker;
        let runtime = &runtime;
        let xids = [u32::try_from(xid).unwrap()];
        let second = scope.spawn(move || {
            assert_eq!(runtime.block_on(marker.sees(&xids)), Ok(true));
            runtime.block_on(marker.settle(&acked(&[row(0, "6")])))
        });
        // The first transaction of the first call failed, for the lock.
        eventually("it tries again", LIMIT, waited, |again| {
            !again.is_empty() && *again != began
        });
        holder.run("commit");
        assert_eq!(
            (first.join().unwrap(), second.join().unwrap()),
            (Ok(1), Ok(1))
        );
    });
}

#[test]
fn a_cancelled_mark_leaves_no_transaction_open() {
    let world = wallet();
    let holder = world.sql();
    let runtime = runtime();
    let marker = runtime
        .block_on(marker(&world.database_url, WALLET))
        .unwrap();
    holder.run("begin; select from outbox where id = 5 for update");
    let batch = acked(&[row(0, "4"), row(0, "5")]);
    std::thread::scope(|scope| {
        let (waits, seen) = tokio::sync::oneshot::channel();
        scope.spawn(|| {
            let sql = world.sql();
            eventually(
                "the marker waits",
                LIMIT,
                || waits_for_lock(&sql),
                |waits| *waits,
            );
            waits.send(()).unwrap();
        });
        runtime.block_on(async {
            tokio::select! {
                settled = marker.settle(&batch) => panic!("{settled:?}"),
                seen = seen => seen.unwrap(),
            }
        });
    });
    holder.run("commit");
    assert_eq!(
        runtime.block_on(marker.settle(&acked(&[row(0, "6")]))),
        Ok(1)
    );
    // What was given up was not written.
    let sql = world.sql();
    assert_eq!(
        sql.text("select string_agg(id::text, ' ') from outbox where sent"),
        "6"
    );

    let closed = marker.closed();
    sql.run(
        "select pg_terminate_backend(pid) from pg_stat_activity
         where application_name = 'walrelay orders upkeep' and datname = current_database()",
    );
    runtime
        .block_on(async { tokio::time::timeout(LIMIT, closed).await })
        .unwrap();
    let error = runtime
        .block_on(marker.settle(&acked(&[row(0, "6")])))
        .unwrap_err();
    assert_eq!(error.kind(), Kind::PostgresUnreachable);
}

#[test]
fn a_failed_row_is_marked_with_error_and_attempts() {
    let world = database(
        "create table outbox (id bigint primary key, status text, n int not null default 0, \
         last_error text, class text);
         insert into outbox select n, 'NEW' from generate_series(1, 3) n",
    );
    let toml = "[slot]\nname = \"orders\"\n[outbox]\nmark = \"status = 'SENT'\"\n\
        mark_failed = \"status = 'FAILED', n = n + :attempts, last_error = left(:error, 9), class \
        = :class || '::'\"\n\
        [route]\ntopic = \"a\"\nkey = \"{id}\"\n[format]\nvalue = \"{status}\"\n";
    let runtime = runtime();
    let marker = runtime.block_on(marker(&world.database_url, toml)).unwrap();
    let why = |cause: &str, attempts| Failure {
        class: "rejected",
        cause: cause.to_owned(),
        attempts,
    };
    let failed = vec![
        (row(0, "3"), why("it's \"bad\"; and long", 4)),
        (row(0, "2"), why("no", 1)),
    ];
    let batch = Batch {
        acked: vec![row(0, "1")],
        failed,
        ..Batch::default()
    };
    assert_eq!(runtime.block_on(marker.settle(&batch)), Ok(3));
    let rows = "string_agg(concat_ws(',', id, status, n, last_error, class), ' ' order by id)";
    assert_eq!(
        world.sql().text(&format!("select {rows} from outbox")),
        "1,SENT,0 2,FAILED,1,no,rejected:: 3,FAILED,4,it's \"bad,rejected::"
    );
}

#[test]
fn a_parked_row_is_marked_with_its_next_attempt() {
    let world = database(
        "create table outbox (id bigint primary key, status text, n int not null default 0, \
         next_at timestamptz);
         insert into outbox select n, 'NEW' from generate_series(1, 3) n",
    );
    let toml = |mark: &str| {
        format!(
            "[slot]\nname = \"orders\"\n[outbox]\npending = \"status = 'NEW'\"\nmark = \"status = \
             'SENT'\"\nmark_waiting = \"{mark}\"\n\
             [route]\ntopic = \"a\"\nkey = \"{{id}}\"\n[format]\nvalue = \"{{status}}\"\n"
        )
    };
    let runtime = runtime();
    let again = |id: &str, retry_in_ms| {
        let failure = Failure {
            class: "refused",
            cause: "no".to_owned(),
            attempts: 3,
        };
        FailedAgain {
            id: 0,
            version: String::new(),
            row: row(0, id),
            failure,
            retry_in_ms,
        }
    };
    let batch = || Batch {
        failed_again: vec![again("3", Some(3_600_000)), again("1", None)],
        ..Batch::default()
    };
    let stays = runtime
        .block_on(marker(
            &world.database_url,
            &toml("n = :attempts, next_at = :next_attempt_at"),
        ))
        .unwrap();
    assert_eq!(runtime.block_on(stays.settle(&batch())), Ok(2));
    let rows = "string_agg(concat_ws(',', id, status, n, round(extract(epoch from next_at - now()) \
                / 3600)), ' ' order by id)";
    assert_eq!(
        world.sql().text(&format!("select {rows} from outbox")),
        "1,NEW,3 2,NEW,0 3,NEW,3,1"
    );

    // What sets the status has to set it to something else, or every look would ask for a try.
    let idle = runtime
        .block_on(marker(&world.database_url, &toml("status = lower(status)")))
        .unwrap();
    assert_eq!(runtime.block_on(idle.settle(&batch())), Ok(2));
    world.sql().run("update outbox set status = 'NEW'");
    let wrong = runtime
        .block_on(marker(&world.database_url, &toml("status = upper(status)")))
        .unwrap();
    let error = runtime.block_on(wrong.settle(&batch())).unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    assert!(
        error
            .cause()
            .contains("are pending after outbox.mark_waiting"),
        "{error}"
    );
}
