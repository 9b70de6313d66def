//! P12: `walrelay setup --add-xid-column`: on a table in use, without being noticed.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{database, waits_for_lock};
use crate::support::sql::Sql;
use crate::support::wait::{LIMIT, eventually};

const TABLE: &str = "create table outbox (id bigint generated always as identity primary key, \
                     aggregatetype text, aggregateid text, type text, payload jsonb)";
const INDEXES: &str =
    "select string_agg(c.relname || ':' || i.indisvalid, ' ' order by c.relname) \
                       from pg_index i
     join pg_class c on c.oid = i.indexrelid join pg_attribute a on a.attrelid = i.indrelid and \
     a.attnum = i.indkey[0]
     where a.attname like '%xid'";

fn node(sql: &Sql) -> String {
    sql.text("select pg_relation_filenode('outbox')")
}

#[test]
fn add_xid_column_locks_a_table_in_use_briefly() {
    let world = database(TABLE);
    let sql = world.sql();
    let reader = world.sql();
    sql.run("insert into outbox (aggregatetype) select 'old' from generate_series(1, 50000)");
    let before = node(&sql);
    reader.run("begin; select count(*) from outbox");
    let stop = AtomicBool::new(false);
    let writes = AtomicU64::new(0);
    let setup = world.command("setup").flag("--add-xid-column");
    std::thread::scope(|scope| {
        let _stopped = crate::support::wait::Stopped(&stop);
        scope.spawn(|| {
            let sql = world.sql();
            while !stop.load(Ordering::Relaxed) {
                sql.run("insert into outbox (aggregatetype) values ('new')");
                writes.fetch_add(1, Ordering::Relaxed);
            }
        });
        let told = scope.spawn(|| setup.succeed());
        eventually(
            "setup waits",
            LIMIT,
            || waits_for_lock(&sql),
            |waits| *waits,
        );
        // What comes after it in the queue goes on, while what is in the way of it is still there.
        eventually(
            "setup gives its place up",
            LIMIT,
            || waits_for_lock(&sql),
            |waits| !*waits,
        );
        let before = writes.load(Ordering::Relaxed);
        eventually(
            "the writer goes on",
            LIMIT,
            || writes.load(Ordering::Relaxed),
            |writes| *writes > before + 1,
        );
        reader.run("commit");
        let told = told.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(
            told.contains("column xid added to table public.outbox")
                && told.contains("index outbox_xid_idx created"),
            "{told}"
        );
    });
    assert_eq!(
        (node(&sql), sql.text(INDEXES)),
        (before, "outbox_xid_idx:true".to_owned())
    );
    assert_eq!(
        sql.number("select count(*) from outbox where aggregatetype = 'old' and xid is not null"),
        0
    );
    sql.run("begin; insert into outbox (aggregatetype) values ('now')");
    assert_eq!(
        sql.number("select count(*) from outbox where xid = pg_current_xact_id()"),
        1
    );
    sql.run("commit");

    let again = setup.succeed();
    assert!(
        again.contains("column xid of table public.outbox has") && !again.contains("alter table"),
        "{again}"
    );
    assert_eq!(sql.text(INDEXES), "outbox_xid_idx:true");
}

#[test]
fn add_xid_column_dry_run_is_an_equivalent_script_and_completes_a_partial_run() {
    let world = database(TABLE);
    let sql = world.sql();
    sql.run("alter table outbox add column xid bigint");
    let setup = world.command("setup").flag("--add-xid-column");
    let script = setup.clone().flag("--dry-run").succeed();
    assert_eq!(
        sql.number(
            "select count(*) from pg_attribute where attrelid = 'outbox'::regclass and attname = \
             'walrelay_xid'"
        ),
        0
    );
    let mut psql = Command::new("psql");
    psql.args(["-X", "-d", &world.database_url, "-c", "select 1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if psql.status().is_ok_and(|status| status.success()) {
        let path = std::env::temp_dir().join(format!("{}.sql", world.name));
        std::fs::write(&path, &script).unwrap();
        let ran = Command::new("psql")
            .args(["-X", "-q", "-d", &world.database_url, "-f"])
            .arg(&path)
            .output()
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(
            ran.status.success(),
            "{}\n{script}",
            String::from_utf8_lossy(&ran.stderr)
        );
    } else {
        setup.succeed();
    }
    assert_eq!(
        sql.text(INDEXES),
        "outbox_walrelay_xid_idx:true",
        "{script}"
    );
    let nothing = setup.clone().flag("--dry-run").succeed();
    assert!(
        nothing.contains("-- Nothing to do.") && nothing.contains("-- column walrelay_xid"),
        "{nothing}"
    );

    sql.run(
        "update pg_index set indisvalid = false where indexrelid = \
             'outbox_walrelay_xid_idx'::regclass",
    );
    assert!(setup.succeed().contains("invalid index"));
    assert_eq!(sql.text(INDEXES), "outbox_walrelay_xid_idx:true");

    sql.run(
        "drop index outbox_walrelay_xid_idx; create role nobody_special; alter table outbox owner \
         to nobody_special"
            .replace("nobody_special", &format!("{}_owner", world.name))
            .as_str(),
    );
    let role = format!("{}_relay", world.name);
    sql.run(&format!(
        "create role {role} login replication; grant select on outbox to {role}"
    ));
    let url = crate::support::servers::Postgres::shared().url_as(&role, &world.name);
    let refused = setup.clone().option("--database-url", &url).output();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(11) && told.contains("only the owner may add a column"),
        "{told}"
    );
}

#[test]
fn add_xid_column_changes_nothing_without_the_right_to_create_its_index() {
    let world = database(TABLE);
    let sql = world.sql();
    let role = format!("{}_owner", world.name);
    sql.run(&format!(
        "create role {role} login replication; alter table outbox owner to {role}"
    ));
    sql.run(&format!(
        "revoke create on schema public from public; grant create on database {} to {role}",
        world.name
    ));
    let url = crate::support::servers::Postgres::shared().url_as(&role, &world.name);
    let setup = world
        .command("setup")
        .option("--database-url", &url)
        .flag("--add-xid-column");
    let output = setup.output();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(11), "{words}");
    assert!(
        words.contains("may not create an index in schema public")
            && words.contains("grant create on"),
        "{words}"
    );
    let columns =
        "select count(*) from pg_attribute where attrelid = 'outbox'::regclass and attname = 'xid'";
    assert_eq!(sql.number(columns), 0);
    sql.run(&format!("grant create on schema public to {role}"));
    setup.succeed();
    assert_eq!(
        (sql.number(columns), sql.text(INDEXES)),
        (1, "outbox_xid_idx:true".to_owned())
    );
}

#[test]
fn add_xid_column_creates_an_index_per_partition() {
    let world = database(
        "create table outbox (id bigint, aggregatetype text, aggregateid text, type text, payload \
         jsonb) partition by range (id);
         create table p1 partition of outbox for values from (1) to (10);
         create table p2 partition of outbox for values from (10) to (20) partition by range (id);
         create table p3 partition of p2 for values from (10) to (15)",
    );
    let setup = world.command("setup").flag("--add-xid-column");
    setup.succeed();
    let all = "outbox_xid_idx:true p1_xid_idx:true p2_xid_idx:true p3_xid_idx:true";
    assert_eq!(world.sql().text(INDEXES), all);
    assert!(!setup.succeed().contains("index"));
    world
        .sql()
        .run("create table p4 partition of p2 for values from (15) to (20)");
    assert_eq!(
        world.sql().text(INDEXES),
        format!("{all} p4_xid_idx:true"),
        "a later partition has none"
    );
}
