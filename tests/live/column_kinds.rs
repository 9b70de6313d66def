//! docs/reference/templates.md: columns of every kind as key, header, value and member of an
//! envelope, byte for byte.

use crate::support::relay::EXIT;
use crate::support::servers::{Kafka, Postgres};
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

pub(super) const TYPES: &str = "create extension citext;
    create type mood as enum ('calm', 'angry');
    create type point3 as (x int, y int, z text);
    create domain short as varchar(20);
    create domain raw as bytea;
    create domain rawer as raw check (octet_length(value) < 100);
    create domain document as jsonb;
    create domain amount as numeric(10, 2)";

/// A column's type, a value as SQL, and what arrives: the text, and the member of an envelope.
pub(super) type Kind = (
    &'static str,
    &'static str,
    Option<&'static str>,
    &'static str,
);

pub(super) const KINDS: &[Kind] = &[
    (
        "uuid",
        "'7D444840-9DC0-11D1-B245-5FFDCE74FAD2'",
        Some(UUID),
        r#""7d444840-9dc0-11d1-b245-5ffdce74fad2""#,
    ),
    (
        "bigint",
        "-9223372036854775808",
        Some("-9223372036854775808"),
        "-9223372036854775808",
    ),
    ("int", "7", Some("7"), "7"),
    ("numeric", "12.50", Some("12.50"), "12.50"),
    ("numeric", "'NaN'", Some("NaN"), r#""NaN""#),
    (
        "numeric(40, 10)",
        "1e25",
        Some("10000000000000000000000000.0000000000"),
        "10000000000000000000000000.0000000000",
    ),
    ("amount", "1", Some("1.00"), "1.00"),
    ("float8", "1e-7", Some("1e-07"), "1e-07"),
    ("float8", "'-Infinity'", Some("-Infinity"), r#""-Infinity""#),
    ("boolean", "true", Some("t"), "true"),
    (
        "text",
        "E'q\"\\\\ größe\\n\\t'",
        Some("q\"\\ größe\n\t"),
        r#""q\"\\ größe\n\t""#,
    ),
    ("text", "''", Some(""), r#""""#),
    ("text", "null", None, "null"),
    ("varchar(20)", "'12'", Some("12"), r#""12""#),
    ("char(4)", "'ab'", Some("ab  "), r#""ab  ""#),
    ("short", "'Short'", Some("Short"), r#""Short""#),
    ("citext", "'MiXed'", Some("MiXed"), r#""MiXed""#),
    ("mood", "'angry'", Some("angry"), r#""angry""#),
    (
        "json",
        "'{\"b\":1,  \"a\": 12.50, \"b\": 2}'",
        Some(r#"{"b":1,  "a": 12.50, "b": 2}"#),
        r#"{"b":1,  "a": 12.50, "b": 2}"#,
    ),
    (
        "jsonb",
        "'{\"b\":1,  \"a\": 12.50, \"b\": 2}'",
        Some(r#"{"a": 12.50, "b": 2}"#),
        r#"{"a": 12.50, "b": 2}"#,
    ),
    ("jsonb", "'\"t\"'", Some("\"t\""), "\"t\""),
    ("jsonb", "null", None, "null"),
    (
        "document",
        "'[1,{\"x\":null}]'",
        Some(r#"[1, {"x": null}]"#),
        r#"[1, {"x": null}]"#,
    ),
    (
        "timestamptz",
        "'2024-05-06 07:08:09.123456+02'",
        Some("2024-05-06 05:08:09.123456+00"),
        r#""2024-05-06 05:08:09.123456+00""#,
    ),
    (
        "timestamptz",
        "'infinity'",
        Some("infinity"),
        r#""infinity""#,
    ),
    (
        "timestamp",
        "'2024-05-06 07:08:09'",
        Some("2024-05-06 07:08:09"),
        r#""2024-05-06 07:08:09""#,
    ),
    (
        "date",
        "'2024-05-06'",
        Some("2024-05-06"),
        r#""2024-05-06""#,
    ),
    (
        "interval",
        "'1 day 2 hours'",
        Some("1 day 02:00:00"),
        r#""1 day 02:00:00""#,
    ),
    (
        "text[]",
        "array['a', null, 'b \"c\"']",
        Some(r#"{a,NULL,"b \"c\""}"#),
        r#""{a,NULL,\"b \\\"c\\\"\"}""#,
    ),
    (
        "int[]",
        "'{{1,2},{3,4}}'",
        Some("{{1,2},{3,4}}"),
        r#""{{1,2},{3,4}}""#,
    ),
    (
        "mood[]",
        "array['calm', null]::mood[]",
        Some("{calm,NULL}"),
        r#""{calm,NULL}""#,
    ),
    (
        "point3",
        "(1, null, 'a b')",
        Some(r#"(1,,"a b")"#),
        r#""(1,,\"a b\")""#,
    ),
    (
        "inet",
        "'10.0.0.1/8'",
        Some("10.0.0.1/8"),
        r#""10.0.0.1/8""#,
    ),
    // As the value these are their bytes, see BYTES.
    (
        "bytea",
        "'\\x00ff27225c0a'",
        Some("\\x00ff27225c0a"),
        r#""\\x00ff27225c0a""#,
    ),
    (
        "raw",
        "'\\x00ff27225c0a'",
        Some("\\x00ff27225c0a"),
        r#""\\x00ff27225c0a""#,
    ),
    (
        "rawer",
        "'\\x00ff27225c0a'",
        Some("\\x00ff27225c0a"),
        r#""\\x00ff27225c0a""#,
    ),
    ("bytea", "''", Some("\\x"), r#""\\x""#),
    ("bytea", "null", None, "null"),
];

const UUID: &str = "7d444840-9dc0-11d1-b245-5ffdce74fad2";
const BYTES: &[u8] = b"\x00\xff'\"\\\n";

/// A configuration for topic `topic`, with a template or an envelope as the value.
fn config(topic: &str, format: &str) -> String {
    format!(
        "[route]\ntopic = \"{topic}\"\nkey = \"{{v}}\"\n[route.headers]\nplain = \"{{v}}\"\nmade = \
         \"<{{v}}>\"\n{format}\n"
    )
}

/// What the value is where the text is this: a `bytea` is its bytes.
fn value_of(text: &str) -> Vec<u8> {
    match text {
        "\\x" => Vec::new(),
        "\\x00ff27225c0a" => BYTES.to_vec(),
        other => other.as_bytes().to_vec(),
    }
}

#[test]
fn columns_of_every_kind_arrive_byte_for_byte_as_key_header_value_and_member() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let sql = world.sql();
    sql.run(&format!(
        "{TYPES}; drop table outbox; create table outbox (id int, v int)"
    ));
    // Two slots on one table: one relay with plain values, one with envelopes.
    let enveloped = format!("{}_e", world.name);
    let plain_config = config(&world.topic(0), "[format]\nvalue = \"{v}\"");
    let envelope_config = config(
        &world.topic(1),
        "[format.envelope]\nv = \"{v}\"\ntext = \"{v|text}\"",
    );
    world.command("setup").config_file(&plain_config).succeed();
    world
        .command("setup")
        .option("--slot", &enveloped)
        .config_file(&envelope_config)
        .succeed();
    for (number, (kind, value, _, _)) in KINDS.iter().enumerate() {
        sql.run(&format!(
            "alter table outbox drop column v; alter table outbox add column v {kind};
             insert into outbox (id, v) values ({number}, {value})"
        ));
    }
    let mut relays = [
        world.run().config_file(&plain_config).start(),
        world
            .run()
            .option("--slot", &enveloped)
            .config_file(&envelope_config)
            .start(),
    ];
    for (number, relay) in relays.iter_mut().enumerate() {
        relay.wait_ready();
        let count = || topic::count(&world.brokers, &world.topic(number));
        eventually("the rows arrive", ARRIVAL, count, |count| {
            *count == KINDS.len() as i64
        });
    }

    let plain = world.records(0);
    let members = world.records(1);
    for (number, (kind, written, text, member)) in KINDS.iter().enumerate() {
        let case = format!("{written} as {kind}");
        let with_id = |records: &[topic::Record]| {
            let mut found = records
                .iter()
                .filter(|record| record.header("id") == number.to_string());
            (found.next().cloned().expect(&case), found.count())
        };
        let (record, copies) = with_id(&plain);
        assert_eq!(copies, 0, "{case}");
        let header = |name: &str| {
            record
                .headers
                .iter()
                .find(|(found, _)| found == name)
                .and_then(|(_, value)| value.clone())
        };
        assert_eq!(
            record.key,
            text.map(|text| text.as_bytes().to_vec()),
            "key of {case}"
        );
        assert_eq!(
            header("plain"),
            text.map(|text| text.as_bytes().to_vec()),
            "header of {case}"
        );
        assert_eq!(
            header("made"),
            text.map(|text| format!("<{text}>").into_bytes()),
            "header around {case}"
        );
        assert_eq!(record.value, text.map(value_of), "value of {case}");

        let quoted = text.map_or("null".to_owned(), |text| {
            serde_json::Value::from(text).to_string()
        });
        let expected = format!("{{\"v\":{member},\"text\":{quoted}}}");
        let (record, _) = with_id(&members);
        assert_eq!(record.value_text(), expected, "envelope of {case}");
        serde_json::from_slice::<serde_json::Value>(&record.value.expect(&case)).expect(&case);
    }
    for mut relay in relays {
        assert_eq!(relay.terminate(EXIT), Some(0));
    }
    sql.run(&format!("select pg_drop_replication_slot('{enveloped}')"));
}

/// A relation message has neither the length of a domain nor the elements of an array.
#[test]
fn kafka_connects_form_of_a_domain_has_its_length_and_that_of_an_enums_array_its_elements() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let sql = world.sql();
    sql.run(&format!(
        "{TYPES}; create domain price as amount; create domain due as timestamptz(3); create \
         domain moods as mood[];
         drop table outbox; create table outbox (id int, cost price, due due, moods mood[], \
         all_moods moods)"
    ));
    let config = format!(
        "[route]\ntopic = \"{}\"\nkey = \"{{id}}\"\n[route.headers]\ncost = \
         \"{{cost|connect('json')}}\"\n\
         due = \"{{due|connect}}\"\nmoods = \"{{moods|connect}}\"\nall_moods = \
         \"{{all_moods|connect}}\"\n\
         [format]\nvalue = \"{{id}}\"\n",
        world.topic(0)
    );
    world.command("setup").config_file(&config).succeed();
    sql.run(
        "insert into outbox values (1, 12.5, '12026-05-06 07:08:09.5+02', '{calm,NULL}', \
             '{angry}')",
    );
    let mut relay = world.run().config_file(&config).start();
    let count = || topic::count(&world.brokers, &world.topic(0));
    eventually("the row arrives", ARRIVAL, count, |count| *count == 1);
    let record = world.records(0).remove(0);
    for (header, expected) in [
        ("cost", "\"BOI=\""),
        ("due", "+12026-05-06T05:08:09.500Z"),
        ("moods", "[\"calm\",null]"),
        ("all_moods", "[\"angry\"]"),
    ] {
        assert_eq!(record.header(header), expected, "{header}");
    }
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn a_domain_created_while_streaming_has_its_base_type() {
    let world = World::new();
    let sql = world.sql();
    let mut relay = world.relay();
    let insert = |payload: &str| {
        sql.run(&format!(
            "insert into outbox values (gen_random_uuid(), '{}', 'a', 'calm', {payload})",
            world.kind(0)
        ));
    };
    insert("'{}'");
    eventually(
        "it arrives",
        ARRIVAL,
        || world.delivered(),
        |count| *count == 1,
    );
    sql.run("create domain raw as bytea; alter table outbox alter payload type raw using '\\x00'");
    insert("'\\x00ff27225c0a'");
    eventually(
        "it arrives",
        ARRIVAL,
        || world.delivered(),
        |count| *count == 2,
    );
    sql.run(
        "create type mood as enum ('calm'); alter table outbox alter type type mood using \
             'calm', add noted mood",
    );
    insert("'\\x00ff27225c0a'");
    world.wait_confirmed();
    let values: Vec<_> = world
        .records(0)
        .into_iter()
        .map(|record| record.value.unwrap_or_default())
        .collect();
    assert_eq!(values, [b"{}".to_vec(), BYTES.to_vec(), BYTES.to_vec()]);
    assert_eq!(relay.terminate(EXIT), Some(0));
}

/// Types, and values of them that are made at random.
const RANDOM: [(&str, &str); 27] = [
    (
        "bigint",
        "('x' || left(md5(random()::text), 16))::bit(64)::bigint",
    ),
    ("int", "('x' || left(md5(random()::text), 8))::bit(32)::int"),
    ("smallint", "(random() * 65535 - 32768)::int"),
    (
        "numeric",
        "(random() * 1e9)::numeric * 10.0 ^ (random() * 60 - 30)::int",
    ),
    ("amount", "random() * 99999999 - 5e7"),
    (
        "float8",
        "exp((random() - 0.5) * 1400) * sign(random() - 0.5)",
    ),
    ("real", "exp((random() - 0.5) * 160)"),
    ("boolean", "random() < 0.5"),
    (
        "text",
        "(select string_agg(chr((random() * 55000)::int + 1), '') from generate_series(0, n % 40))",
    ),
    (
        "char(12)",
        "left(md5(random()::text), (random() * 12)::int)",
    ),
    (
        "bytea",
        "substr(decode(md5(random()::text), 'hex'), 1, n % 16)",
    ),
    ("raw", "decode(md5(random()::text), 'hex')"),
    ("uuid", "md5(random()::text)::uuid"),
    (
        "timestamptz",
        "make_interval(secs => (random() - 0.02) * 9e12) + 'epoch'::timestamptz",
    ),
    (
        "timestamp",
        "make_interval(secs => (random() - 0.02) * 9e10) + 'epoch'::timestamp",
    ),
    ("date", "'epoch'::date + ((random() - 0.3) * 2e6)::int"),
    ("time", "make_interval(secs => random() * 86400)::time"),
    (
        "timetz",
        "('12:34:56.5' || to_char((random() * 28 - 14)::int, 'S00') || ':30')::timetz",
    ),
    (
        "interval",
        "make_interval((random() * 99 - 50)::int, (random() * 30 - 15)::int, 0, \
         (random() * 90 - 45)::int, 0, 0, random() * 1e6 - 5e5)",
    ),
    (
        "json",
        "'{ \"a\":[' || n || ',  null], \"b\" :\"' || md5(random()::text) || '\"}'",
    ),
    (
        "jsonb",
        "jsonb_build_object('a', random(), 'ä\"' || n, array[n, null], '', 1e20 * random())",
    ),
    (
        "text[]",
        "array[md5(random()::text), null, '', 'null', 'a\"\\' || n, '{,}']",
    ),
    (
        "numeric[]",
        "array[array[random(), 1e30], array['NaN', random() * n]]",
    ),
    (
        "mood[]",
        "case when random() < 0.5 then '{}' else '{calm,angry}' end",
    ),
    ("point3", "row(n, null, 'a,\"b' || chr(n % 1000 + 1))"),
    (
        "tstzrange",
        "tstzrange(to_timestamp(random() * 1e9), to_timestamp(2e9), '(]')",
    ),
    ("inet", "'::1'::inet + (random() * 1e15)::bigint"),
];
const ROWS: i64 = 2_000;

/// A value decoded from the slot is what Postgres prints of the row in the table.
#[test]
fn rows_made_at_random_arrive_as_postgres_prints_them() {
    let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
    let sql = world.sql();
    let columns = |of: &dyn Fn(usize) -> String, between: &str| {
        let all: Vec<_> = (0..RANDOM.len()).map(of).collect();
        all.join(between)
    };
    let defined = columns(&|at| format!("c{at} {}", RANDOM[at].0), ", ");
    sql.run(&format!(
        "{TYPES}; drop table outbox; create table outbox (id int, {defined})"
    ));
    let headers = columns(&|at| format!("h{at} = \"{{c{at}}}\""), "\n");
    let config = format!(
        "[route]\ntopic = \"{}\"\nkey = \"{{id}}\"\n[route.headers]\n{headers}\n\
         [format]\nvalue = \"{{id}}\"\n",
        world.topic(0)
    );
    world.command("setup").config_file(&config).succeed();
    let seed = fastrand::f64();
    let made = |at: usize| {
        let (kind, value) = RANDOM[at];
        format!("case when random() > 0.05 then ({value})::{kind} end")
    };
    sql.run(&format!(
        "select setseed({seed}); insert into outbox select n, {} from generate_series(1, {ROWS}) n",
        columns(&made, ", ")
    ));
    let mut relay = world.run().config_file(&config).start();
    let count = || topic::count(&world.brokers, &world.topic(0));
    eventually("the rows arrive", ARRIVAL, count, |count| *count == ROWS);

    sql.run(
        "set datestyle = 'ISO'; set timezone = 'UTC'; set intervalstyle = 'postgres'; \
         set bytea_output = 'hex'; set extra_float_digits = 1",
    );
    let printed = columns(
        &|at| format!("case when not c{at} is null then format('%s', c{at}) end"),
        ", ",
    );
    let rows = sql.rows(&format!("select {printed} from outbox order by id"), &[]);
    let records = world.records(0);
    assert_eq!(records.len(), rows.len());
    for record in records {
        let id: usize = record.value_text().parse().unwrap();
        for (at, (kind, _)) in RANDOM.iter().enumerate() {
            let name = format!("h{at}");
            let header = record.headers.iter().find(|(found, _)| *found == name);
            let printed: Option<&str> = rows[id - 1].get(at);
            assert_eq!(
                header.and_then(|(_, value)| value.as_deref()),
                printed.map(str::as_bytes),
                "{kind} of row {id}, with setseed({seed}): {printed:?}"
            );
        }
    }
    assert_eq!(relay.terminate(EXIT), Some(0));
}
