//! Tables of the field, and what is made of them.

use proptest::prelude::*;

use super::*;
use crate::config::Config;
use crate::config::file::ConfigFile;
use crate::config::layers::{Environment, Flags, Settings};
use walrelay_core::catalog::{BaseType, Indexed};

/// A column of `NAME TYPE` and what else holds: `!` not null, `pk`, `part` of one, `unique`, `fk`,
/// `gen`, `domain`.
fn column(text: &str) -> Column {
    let (name, rest) = text.split_once(" ").unwrap();
    let mut rest = rest.split(' ');
    let base = rest.next().unwrap();
    let marks: Vec<&str> = rest.collect();
    let has = |mark: &str| marks.contains(&mark);
    let category = match base {
        "text" | "varchar" | "citext" | "bpchar" => "S",
        "mood" => "E",
        "bool" => "B",
        _ => "U",
    };
    Column {
        name: name.replace('~', " "),
        type_name: base.to_owned(),
        type_modifier: -1,
        base: BaseType {
            name: base.to_owned(),
            category: category.to_owned(),
            domain: has("domain"),
            ..BaseType::default()
        },
        not_null: has("!") || has("pk") || has("part"),
        generated: has("gen"),
        default: marks
            .iter()
            .find_map(|mark| mark.strip_prefix("default="))
            .map(str::to_owned),
        references: has("fk"),
        indexed: Indexed {
            in_primary_key: has("pk") || has("part"),
            unique: has("pk") || has("unique"),
            ..Indexed::default()
        },
        ..Column::default()
    }
}

fn columns(text: &str) -> Vec<Column> {
    text.split(", ").map(|text| column(text.trim())).collect()
}

fn suggested(table: &str, columns: &[Column]) -> Result<Suggestion> {
    suggest(&table.parse().unwrap(), columns, &Known::default())
}

/// What the file comes to, which has to be a configuration.
fn config(suggestion: &Suggestion) -> Config {
    let file = ConfigFile::new("w.toml", &suggestion.toml);
    let flags = Flags::from([("database.url", "postgres://db/shop".to_owned())]);
    let config = Settings::new(&flags, &Environment::new(), Some(&file))
        .and_then(|settings| settings.config(false));
    config.unwrap_or_else(|error| panic!("{error}:\n{}", suggestion.toml))
}

/// Compares with the snapshot `name` in `tests/golden`.
fn assert_told(name: &str, told: &str) {
    let path = "../../tests/golden";
    insta::with_settings!({
        snapshot_path => path,
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        insta::assert_snapshot!(name, told);
    });
}

/// Id, payload, topic, key, timestamp, headers with blanks between.
type Route = [String; 6];

fn route(config: &Config) -> Route {
    let outbox = &config.outboxes[0];
    let route = &outbox.route;
    let headers: Vec<&str> = route
        .headers
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    [
        outbox.names.id.clone(),
        outbox.names.payload.clone(),
        route.topic.source().to_owned(),
        route
            .key
            .as_ref()
            .map(|key| key.source().to_owned())
            .unwrap_or_default(),
        route.timestamp.clone().unwrap_or_default(),
        headers.join(" "),
    ]
}

/// Tables of Debezium, Axon, Eventuate, MassTransit, NServiceBus, Spring Modulith, Spatie and
/// Rails, and one of .NET in UTC.
const TABLES: [(&str, &str); 9] = [
    (
        "outbox",
        "id uuid pk, aggregatetype varchar !, aggregateid varchar !, type varchar !, payload jsonb",
    ),
    (
        "domain_event_entry",
        "global_index int8 pk, event_identifier varchar ! unique, meta_data bytea, payload bytea \
         !, payload_revision varchar, \
         payload_type varchar !, time_stamp varchar !, aggregate_identifier varchar !, \
         sequence_number int8 !, type varchar",
    ),
    (
        "eventuate.message",
        "id varchar pk, destination text !, headers text !, payload text !, published int2, \
         message_partition int2, \
         creation_time int8",
    ),
    (
        r#""OutboxMessage""#,
        "SequenceNumber int8 pk, EnqueueTime timestamptz, SentTime timestamptz !, Headers text, \
         Properties text, \
         InboxMessageId uuid, OutboxId uuid fk, MessageId uuid !, ContentType varchar !, \
         MessageType text !, Body text !, \
         ConversationId uuid, CorrelationId uuid, InitiatorId uuid, RequestId uuid, \
         DestinationAddress varchar",
    ),
    (
        r#""OutboxData""#,
        "Id varchar pk, Dispatched bool !, DispatchedAt timestamp, PersistenceVersion varchar !, \
         Operations jsonb !",
    ),
    (
        "event_publication",
        "id uuid pk, listener_id text !, event_type text !, serialized_event text !, \
         publication_date timestamptz !, \
         completion_date timestamptz, status text, completion_attempts int4, \
         last_resubmission_date timestamptz",
    ),
    (
        "stored_events",
        "id int8 pk, aggregate_uuid uuid, aggregate_version int8, event_version int2 !, \
         event_class varchar !, \
         event_properties jsonb !, meta_data jsonb !, created_at timestamp !",
    ),
    (
        "outbox_messages",
        "id int8 pk, messageable_type varchar !, messageable_id int8 !, event_name varchar !, data \
         jsonb !, \
         status varchar !, attempts int4 !, created_at timestamp !, updated_at timestamp !",
    ),
    (
        r#""App"."outboxEvents""#,
        "eventId uuid pk, aggregateType text !, aggregateId uuid !, eventType text !, eventData \
         bytea !, \
         occurredOnUtc timestamp !, traceParent text, tenantId uuid !, processedOnUtc timestamp, \
         error text",
    ),
];

#[test]
fn tables_of_the_field_are_routed_as_they_are_meant() {
    let routes = TABLES.map(|(table, columns_of)| {
        let suggestion = suggested(table, &columns(columns_of)).unwrap();
        format!("{table}: {}", route(&config(&suggestion)).join(" | "))
    });
    assert_told("suggested-routes", &routes.join("\n"));
}

#[test]
fn a_column_is_taken_for_what_no_other_fits_better() {
    // Without an aggregate the key is what keeps the most order.
    let keys = [
        "memo uuid ! fk, customer_id uuid",
        "customer_id uuid, order_id uuid !",
        "tenant_id uuid !, correlation_id text",
        "correlation_id text, lock_id uuid, trace_id text",
        "partition_key text, aggregate_id text !",
        "account_no text !, version int4",
        "sequence_no int8 !, AccountNumber int8",
        "sequence_no int8 !, phone_number text, event_no int8",
        "aggregate_id bytea !",
        "order_type text, order_id bytea !",
        "created_by_id uuid, idempotency_key text, paid bool",
    ];
    // The id is what nothing else can have.
    let ids = [
        "id int8 part, created_at timestamptz part",
        "created_at timestamptz part, event_id uuid part",
        "id int8 pk, event_id uuid !",
        "id int8 pk, event_id uuid ! unique",
        "a text, b text ! unique",
        "aggregate_id uuid !, token uuid !",
        "id text gen pk, uuid uuid",
    ];
    // A payload without a known name is the JSON that is no metadata.
    let payloads = [
        "metadata jsonb !, stuff jsonb",
        "a jsonb, b jsonb !",
        "event text, blob bytea",
        "event text, note text",
        "payload text gen, event_body xml",
        "hash bytea, order_document xml",
        "aggregate_id bytea !, sender_id bytea !, blob bytea",
    ];
    let keys = keys.map(|text| format!("id int8 pk, payload text !, {text}"));
    let ids = ids.map(|text| format!("{text}, payload json"));
    let payloads = payloads.map(|text| format!("id int8 pk, {text}"));
    let told = keys.iter().chain(&ids).chain(&payloads).map(|text| {
        let [id, payload, _, key, ..] = route(&config(&suggested("t", &columns(text)).unwrap()));
        format!("{text}: id {id}, payload {payload}, key {key}\n")
    });
    assert_told("suggested-columns", &told.collect::<String>());
}

#[test]
fn a_table_without_a_key_is_warned_of_and_a_key_of_bytes_says_that_it_is_text() {
    let suggestion = suggested("t", &columns("id int8 pk, payload text !, done bool")).unwrap();
    assert_eq!(
        suggestion.warnings,
        ["no column names what an event is about: records have no key, and so no order"]
    );
    let suggestion = suggested(
        "t",
        &columns("id int8 pk, payload text !, aggregate_id bytea !"),
    )
    .unwrap();
    assert_eq!(suggestion.warnings, [""; 0]);
    assert_eq!(suggestion.columns[2].why, "by its name, as the text \\x…");
    assert!(
        suggestion
            .toml
            .contains("Taken for the key: by its name, as the text \\x…. Events"),
        "{}",
        suggestion.toml
    );
}

#[test]
fn what_setup_refuses_is_in_the_file_and_a_warning() {
    let known = Known {
        refused: Some("setup refuses it".to_owned()),
        no_xid_column: Some("no column can be added".to_owned()),
        ..Known::default()
    };
    let columns = columns("id uuid pk, aggregate_id text !, payload json");
    let suggestion = suggest(&"outbox".parse().unwrap(), &columns, &known).unwrap();
    assert_eq!(
        suggestion.warnings,
        ["setup refuses it", "no column can be added"]
    );
    assert!(
        suggestion
            .toml
            .contains("# setup refuses it\n# no column can be added\n"),
        "{}",
        suggestion.toml
    );
    assert!(
        !suggestion.toml.contains("--add-xid-column"),
        "{}",
        suggestion.toml
    );
}

#[test]
fn a_table_without_a_payload_or_an_id_is_refused_with_the_columns_it_has() {
    let refused = |text: &str| suggested("sales.outbox", &columns(text)).unwrap_err();
    let error = refused("id uuid pk, name varchar !, error_message text");
    assert_eq!(error.kind(), Kind::Publication);
    assert_eq!(
        error.cause(),
        "table sales.outbox has no column that looks like the payload: json, jsonb, xml, bytea or \
         text that is called so; it \
         has id (uuid), name (varchar), error_message (text)"
    );
    assert!(error.what_to_do().unwrap().contains("[format.envelope]"));
    let error = refused("payload json, note text");
    assert!(error.cause().contains("the event's id"), "{error}");
    assert!(
        error
            .what_to_do()
            .unwrap()
            .starts_with("give the table a primary key, or name the column under")
    );
    let error = refused("account uuid part, version int4 part, payload json");
    assert_eq!(
        error.what_to_do().as_deref(),
        Some(
            "an event's id is one column, and the primary key has several (account, version): add \
             a unique column, such as \
             event_id uuid, or name the column under [outbox.columns] in a walrelay.toml of your \
             own"
        )
    );
    let error = suggested("t", &[]).unwrap_err();
    assert!(error.cause().ends_with("no columns at all"), "{error}");
}

#[test]
fn every_guess_is_in_the_file_with_what_it_was_made_from() {
    let text = "id uuid pk, Entity~Type mood, aggregateId varchar, event_type varchar !, payload \
                bytea ! domain, \
                metadata jsonb, created_at timestamp !, partition int4, status varchar, extra \
                text, sum int4 gen";
    let suggestion = suggested(r#""My Schema"."Out Box""#, &columns(text)).unwrap();
    assert_told("suggested", &suggestion.toml);
}

#[test]
fn commands_find_the_aggregate_and_the_type_and_traces_have_the_usual_name() {
    let text = "id uuid pk, aggregate_type text !, aggregate_id uuid !, event_type text !, payload \
                json, trace_parent text, \
                TraceState text, traceparent text";
    let suggestion = suggested("outbox", &columns(text)).unwrap();
    let outbox = config(&suggestion).outboxes.remove(0);
    assert_eq!(
        [
            outbox.names.aggregatetype.as_str(),
            outbox.names.aggregateid.as_str(),
            outbox.names.event_type.as_str()
        ],
        ["aggregate_type", "aggregate_id", "event_type"]
    );
    let names: Vec<_> = outbox
        .route
        .headers
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(
        names,
        ["event_type", "trace_parent", "tracestate", "traceparent"]
    );
    let suggestion = suggested(
        "outbox",
        &columns("id uuid pk, payload json, trace_parent text"),
    )
    .unwrap();
    assert_eq!(
        config(&suggestion).outboxes[0].route.headers[0].0,
        "traceparent"
    );
}

#[test]
fn what_a_table_notes_down_is_offered_and_not_set() {
    let text =
        "id uuid pk, payload json, status text ! default='PENDING'::text, published_at timestamptz";
    let suggestion = suggested("outbox", &columns(text)).unwrap();
    assert!(
        suggestion.toml.contains(
            r##"
table = "public.outbox"
# Not sent: status, published_at (what a dispatcher notes down).
# No column has the transaction of each row. `walrelay setup` with --add-xid-column adds one, which
# polling needs: should the slot be lost, exactly what was not published is read from the table.
# status: text, not null; published_at: timestamptz. Where these say what was published, and nobody
# else writes them, walrelay can do so: with the words of your application, and UPDATE on the table.
# docs/how-to/upkeep.md:
# pending = "status = 'PENDING'"
# mark = "status = 'PUBLISHED', published_at = now()"
"##
        ),
        "{}",
        suggestion.toml
    );
    assert!(config(&suggestion).outboxes[0].upkeep.pending.is_none());
    let meant = suggestion
        .toml
        .replace("# pending =", "pending =")
        .replace("# mark =", "mark =");
    let upkeep = config(&Suggestion {
        toml: meant,
        ..suggestion
    })
    .outboxes
    .remove(0)
    .upkeep;
    assert_eq!(upkeep.pending.as_deref(), Some("status = 'PENDING'"));
    assert_eq!(
        upkeep.mark.as_deref(),
        Some("status = 'PUBLISHED', published_at = now()")
    );
    let marked =
        |text: &str| guess::marked(&columns(text)).map(|marked| (marked.pending, marked.mark));
    for (text, expected) in [
        ("status text default='it''s'::text", None),
        (
            "status text default='New'::text",
            Some(("status = 'New'", "status = 'Published'")),
        ),
        (
            "status text, published_at timestamptz",
            Some(("published_at is null", "published_at = now()")),
        ),
        (
            "isSent bool default=false",
            Some(("not \"isSent\"", "\"isSent\" = true")),
        ),
        ("status text, published_at timestamptz !, id uuid", None),
        (
            "status int2 ! default=0",
            Some(("status = 0", "status = 1")),
        ),
        (
            "State int4 default='1'::smallint, sent_at timestamptz",
            Some(("\"State\" = 1", "\"State\" = 2, sent_at = now()")),
        ),
        (
            "status int2 !, isSent bool default=false",
            Some(("not \"isSent\"", "\"isSent\" = true")),
        ),
    ] {
        let expected = expected.map(|(pending, mark)| (pending.to_owned(), mark.to_owned()));
        assert_eq!(marked(text), expected, "{text}");
    }
    let with_xid = columns("id uuid pk, payload json, xid xid8 default=pg_current_xact_id()");
    assert!(
        !suggested("outbox", &with_xid)
            .unwrap()
            .toml
            .contains("--add-xid-column")
    );
}

#[test]
fn what_is_known_is_written_and_what_is_not_is_said_to_be_missing() {
    let columns = columns("id uuid pk, payload json");
    let text = |known: &Known| {
        suggest(&"outbox".parse().unwrap(), &columns, known)
            .unwrap()
            .toml
    };
    assert!(text(&Known::default()).contains("SET THIS"));
    let some = |text: &str| Some(text.to_owned());
    let known = Known {
        database_url: some("postgres://db/shop"),
        slot: some("orders"),
        publication: some("pub"),
        address: some("kafka:9092"),
        ..Known::default()
    };
    let text = text(&known);
    assert!(
        !text.contains("SET THIS") && !text.contains("Not written here"),
        "{text}"
    );
    let settings = Settings::new(
        &Flags::new(),
        &Environment::new(),
        Some(&ConfigFile::new("w.toml", &text)),
    )
    .unwrap();
    let config = settings.config(false).unwrap();
    assert_eq!(
        (
            config.source.slot.as_str(),
            config.source.publication.as_str()
        ),
        ("orders", "pub")
    );
    assert_eq!(
        (
            config.kafka.brokers.as_str(),
            config.source.database.database.as_str()
        ),
        ("kafka:9092", "shop")
    );
}

#[test]
fn a_slot_is_named_after_any_table() {
    let slot = |table: &str| {
        config(&suggested(table, &columns("id uuid pk, payload json")).unwrap())
            .source
            .slot
            .to_string()
    };
    let long = "x".repeat(63);
    for (table, expected) in [
        ("outbox", "outbox"),
        ("sales.outbox", "sales_outbox"),
        ("Outbox", "outbox"),
        (r#""Outbox""#, "outbox_1d6fc359"),
        (r#""OUTBOX""#, "outbox_1eef7cc7"),
        (r#""My Schema"."Out Box""#, "my_schema_out_box_bbe0f64d"),
        (r#""Ünder""#, "nder_6aaceec4"),
        (r#""é""#, "outbox_4e792cce"),
        (r#""заказы""#, "outbox_549bf0d1"),
        (&long, &format!("{}_36ddaf28", "x".repeat(45))),
    ] {
        assert_eq!(slot(table), expected);
    }
}

fn any_column() -> impl Strategy<Value = Column> {
    let names: Vec<&str> = [
        words::PAYLOAD,
        words::ID,
        words::TOPIC,
        words::AGGREGATE_TYPE,
        words::AGGREGATE_ID,
        words::EVENT_TYPE,
        words::WRITTEN_AT,
        words::METADATA,
        words::TENANT,
        words::HEADER,
        words::PARTITION,
    ]
    .into_iter()
    .flat_map(|list| list.split(' '))
    .collect();
    let name = prop_oneof![
        3 => proptest::sample::select(names).prop_map(str::to_owned),
        1 => "[^\0]{1,20}",
    ];
    let base = proptest::sample::select(vec![
        "uuid",
        "text",
        "jsonb",
        "bytea",
        "int8",
        "timestamptz",
        "timestamp",
        "bool",
    ]);
    (name, base, any::<[bool; 6]>())
        .prop_filter("longer than Postgres takes", |(name, ..)| name.len() < 64)
        .prop_map(
            |(name, base, [not_null, generated, key, unique, references, domain])| {
                let category = if base == "text" { "S" } else { "U" }.to_owned();
                let (base, type_name) = (base.to_owned(), base.to_owned());
                Column {
                    name,
                    type_name,
                    type_modifier: -1,
                    base: BaseType {
                        name: base,
                        category,
                        domain,
                        ..BaseType::default()
                    },
                    not_null,
                    generated,
                    default: (not_null && domain).then(|| "'NEW'::text".to_owned()),
                    references,
                    indexed: Indexed {
                        in_primary_key: key,
                        unique,
                        ..Indexed::default()
                    },
                    ..Column::default()
                }
            },
        )
}

proptest! {
    #[test]
    fn whatever_the_table_the_file_is_a_configuration_of_its_columns(
        columns in proptest::collection::vec(any_column(), 0..12),
    ) {
        let mut columns = columns;
        columns.sort_by(|one, other| one.name.cmp(&other.name));
        columns.dedup_by(|one, other| one.name == other.name);
        if let Ok(suggestion) = suggested("outbox", &columns) {
            let config = config(&suggestion);
            for used in &config.outboxes[0].columns {
                let mut columns = columns.iter();
                let found = columns.any(|column| column.name == *used && !column.generated);
                prop_assert!(found, "{used}");
            }
            prop_assert_eq!(suggestion.columns.len(), columns.len());
        }
    }
}
