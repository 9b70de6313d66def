//! P12: tables of which nothing tells rows apart, and tables that have rows in common: nothing is
//! written to them.

use walrelay_lab::verify::Findings;

use super::{COLUMNS, EXIT, KEYLESS, MARK, Orders, TABLE};
use crate::live::remedies::statements;
use crate::support::relay::{last_words, told};
use crate::support::wait::eventually;
use crate::support::world::ARRIVAL;

const CONFIG: Option<i32> = Some(2);
const PUBLICATION: Option<i32> = Some(15);

/// `setup`, `config check` and `run` all end with 2 and say how to mend the table, with this SQL.
#[track_caller]
fn refused(orders: &Orders, config: &str) -> String {
    let mut remedy = String::new();
    for command in ["setup", "config check", "run"] {
        let mut relay = orders.command(command, config).start();
        let code = relay.wait_exit(EXIT);
        let log = relay.log();
        assert_eq!(code, CONFIG, "{command}\n{config}\n{log}");
        let (error, fix) = last_words(&log);
        let sql = ["alter table", "create unique index"];
        assert!(
            error.contains("public.nu") && sql.iter().any(|sql| fix.contains(sql)),
            "{command}: {log}"
        );
        statements(fix).clone_into(&mut remedy);
    }
    remedy
}

#[test]
fn the_sql_of_the_remedy_makes_a_row_key_of_any_table() {
    let columns = "order_id text, t text, body jsonb, status text default 'N'";
    let by_time = "day date not null default now()) partition by range (day);
                   create table nu_1 partition of nu default";
    for table in [
        format!("create table nu ({columns}, seq bigserial)"),
        format!("create table nu ({columns})"),
        format!("create table nu ({columns}, seq bigserial, {by_time}"),
        format!("create table nu ({columns}, {by_time}"),
    ] {
        let orders = Orders::new(&table, MARK);
        // The order is another matter.
        let unordered = orders.config.replace("order_by = \"seq\"\n", "");
        let sql = orders.sql();
        sql.run("insert into nu (order_id) values ('a'), ('a')");
        let fix = last_words(&told(&orders.command("setup", &unordered).output().stderr))
            .1
            .to_owned();
        sql.run(statements(&fix));
        orders.command("setup", &unordered).succeed();
    }
}

#[test]
fn without_a_row_key_rows_are_streamed_and_never_written() {
    let orders = Orders::new(KEYLESS, "");
    orders.command("setup", &orders.config).succeed();
    let order = "order_by = \"seq\"\n";
    let [mark, delete] = ["mark = \"status = 'Y'\"\n", "delete = \"acked\"\n"]
        .map(|write| format!("{order}{write}"));
    let failed = format!("{order}mark_failed = \"status = 'F'\"\n");
    let config = |outbox: &str, more: &str| {
        orders.with(&format!(
            "{more}\n[outbox]\ntable = \"nu\"\n{outbox}[outbox.columns]\n{COLUMNS}"
        ))
    };
    let marking = config(&mark, "");
    let remedy = refused(&orders, &marking);
    refused(&orders, &config(&delete, ""));
    refused(&orders, &config(&failed, "[delivery]\non_error = \"skip\""));
    refused(&orders, &config(order, "[delivery]\non_error = \"park\""));
    refused(&orders, &config(order, "mode = \"poll\""));

    // Indexes that are unique, and yet tell no row from all others at any moment.
    let sql = orders.sql();
    for index in [
        "create unique index nu_key on nu (seq) where status = 'N'",
        "create unique index nu_key on nu ((seq + 1))",
        "create unique index nu_key on nu (maybe)",
        "create unique index nu_key on nu (order_id, maybe)",
        "alter table nu add constraint nu_key unique (seq) deferrable initially deferred",
        "create unique index nu_key on nu (seq);
         update pg_index set indisvalid = false where indexrelid = 'nu_key'::regclass",
    ] {
        sql.run(index);
        let output = orders.command("config check", &marking).output();
        assert_eq!(output.status.code(), CONFIG, "{index}: {output:?}");
        sql.run("alter table nu drop constraint if exists nu_key; drop index if exists nu_key");
    }

    let mut relay = orders.relay("slot");
    orders.emit("a", 2);
    assert_eq!(orders.arrived(), Findings::default());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());

    // Once something does, rows are marked.
    sql.run(&remedy);
    for command in ["setup", "config check"] {
        orders.command(command, &marking).succeed();
    }
    let mut relay = orders.command("run", &marking).start();
    relay.wait_ready();
    orders.emit("a", 2);
    eventually(
        "they are marked",
        ARRIVAL,
        || orders.count("status = 'Y'"),
        |rows| *rows == 2,
    );
    assert_eq!(orders.arrived(), Findings::default());
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}

#[test]
fn a_mark_that_matches_two_rows_stops_the_relay_and_writes_neither() {
    let orders = Orders::with_slot(TABLE, MARK);
    let (run, held) = orders.run("slot").held_at("marking", 0);
    let mut relay = run.start();
    relay.wait_ready();
    orders.emit("a", 1);
    held.wait();
    orders.sql().run(
        "alter table nu drop constraint nu_pkey;
         insert into nu (seq, order_id, t, body) select seq, order_id, t, body from nu",
    );
    held.release();
    assert_eq!(relay.wait_exit(EXIT), CONFIG, "{}", relay.log());
    assert!(
        relay
            .log()
            .contains("several rows of public.nu have the same key by now"),
        "{}",
        relay.log()
    );
    assert_eq!((orders.count("status = 'N'"), orders.count("true")), (2, 2));
}

#[test]
fn outboxes_on_a_table_and_its_partition_cannot_both_mark() {
    let parted = "create table nu (seq bigint generated by default as identity primary key, \
                  order_id text, t text,
            body jsonb, status text default 'N') partition by range (seq);
         create table nu_1 partition of nu for values from (1) to (1000)";
    let orders = Orders::new(parted, "mark = \"status = 'Y'\"");
    let sql = orders.sql();
    let name = &orders.world.name;
    sql.run(&format!(
        "create publication walrelay_{name} for table nu, nu_1 with (publish = \
                      'insert', publish_via_partition_root = true)"
    ));
    sql.run(&format!(
        "select pg_create_logical_replication_slot('{name}', 'pgoutput')"
    ));
    let outbox = |table: &str| {
        format!(
            "[[outbox]]\ntable = \"{table}\"\nmark = \"status = 'Y'\"\n[outbox.columns]\n{COLUMNS}"
        )
    };
    for tables in [["nu", "nu_1"], ["nu_1", "nu"]] {
        let config = orders.with(&tables.map(outbox).concat());
        for command in ["setup", "config check", "run"] {
            let mut relay = orders.command(command, &config).start();
            let code = relay.wait_exit(EXIT);
            let log = relay.log();
            // The publication, which the check looks at as well, does not fit either.
            let is_refused = code == CONFIG || command == "config check" && code == PUBLICATION;
            assert!(is_refused, "{command} of {tables:?}: {code:?}: {log}");
            assert!(
                log.contains("error: public.nu_1 is a partition of public.nu"),
                "{log}"
            );
            assert!(last_words(&log).1.starts_with("fix: "), "{log}");
        }
    }
}
