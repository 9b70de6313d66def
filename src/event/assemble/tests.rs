use super::*;
use crate::config::{EventSource, OutboxConfig, SlotName};
use crate::decode::{Value, wire};
use crate::error::Kind;
use crate::event::replay::{COLUMNS, outbox};
use crate::position::Partial;

const OUTBOX: u32 = 16_384;

/// Feeds one message that stands nowhere in particular.
fn feed<'a>(assembler: &mut Assembler, message: &'a [u8]) -> Result<Step<'a>, EventError> {
    assembler.feed(message, Lsn::new(5))
}

fn feed_all(assembler: &mut Assembler, messages: &[Vec<u8>]) {
    for message in messages {
        feed(assembler, message).unwrap();
    }
}

fn described() -> Vec<u8> {
    wire::relation(OUTBOX, "public", "outbox", &COLUMNS)
}

fn row(id: &str) -> Vec<u8> {
    wire::insert(OUTBOX, &[Value::Text(id.as_bytes()), Value::Text(b"order"), Value::Null, Value::Null, Value::Null])
}

/// An assembler inside the transaction at 100, the outbox described.
fn in_a_transaction(resume: Position) -> Assembler {
    let mut assembler = Assembler::new(&[outbox()], resume);
    feed_all(&mut assembler, &[wire::begin(100, 7, 1), described()]);
    assembler
}

fn protocol_fault(assembler: &mut Assembler, message: &[u8]) -> String {
    match feed(assembler, message) {
        Err(EventError::Protocol { what, .. }) => what,
        other => panic!("not a fault of the protocol: {other:?}"),
    }
}

#[test]
fn a_transaction_comes_to_begin_events_and_commit() {
    let mut assembler = Assembler::new(&[outbox()], Position::default());
    let values = [&b"7"[..], b"order", b"o-1", b"Placed", b"{}"].map(Value::Text);
    let mut feed = |message: Vec<u8>| feed(&mut assembler, message.leak()).unwrap();
    assert_eq!(feed(wire::begin(100, 9, 1)), Step::Begin { commit_lsn: Lsn::new(100), xid: 1 });
    assert_eq!(feed(described()), Step::Relation { oid: OUTBOX, outbox: true });
    let place = Place { commit_lsn: Lsn::new(100), index: 0, via: Via::Slot };
    let Step::Event(event) = feed(wire::insert(OUTBOX, &values)) else { panic!("not an event") };
    assert_eq!((event.place, event.id()), (place, &b"7"[..]));
    assert_eq!([1, 2, 3].map(|place| event.row.get(place)), [&b"order"[..], b"o-1", b"{}"].map(Some));
    let Step::Event(event) = feed(row("8")) else { panic!("not an event") };
    assert_eq!((event.place.index, event.row.get(2), event.row.get(3)), (1, None, None));
    let commit = Step::Commit { commit_lsn: Lsn::new(100), end_lsn: Lsn::new(130) };
    assert_eq!(feed(wire::commit(100, 130, 9)), commit);
    assert_eq!(feed(wire::begin(130, 9, 2)), Step::Begin { commit_lsn: Lsn::new(130), xid: 2 });
    let Step::Event(event) = feed(row("9")) else { panic!("not an event") };
    assert_eq!(event.place.index, 0, "each transaction counts its own events");
}

#[test]
fn of_a_covered_transaction_nothing_comes_but_descriptions() {
    let mut assembler = Assembler::new(&[outbox()], Position::at(Lsn::new(130)));
    assert_eq!(feed(&mut assembler, &wire::begin(100, 9, 1)), Ok(Step::Nothing));
    assert_eq!(feed(&mut assembler, &described()), Ok(Step::Relation { oid: OUTBOX, outbox: true }));
    assert_eq!(feed(&mut assembler, &row("7")), Ok(Step::Nothing));
    assert_eq!(feed(&mut assembler, &wire::delete(OUTBOX, &[])), Ok(Step::Nothing));
    assert_eq!(feed(&mut assembler, &wire::commit(100, 130, 9)), Ok(Step::Nothing));
    assert_eq!(assembler.ignored(), Ignored::default());
    assert_eq!(feed(&mut assembler, &wire::begin(130, 9, 2)), Ok(Step::Begin { commit_lsn: Lsn::new(130), xid: 2 }));
    assert!(matches!(feed(&mut assembler, &row("8")), Ok(Step::Event(_))), "the description still holds");
}

#[test]
fn delivered_events_of_the_partial_transaction_count_and_do_not_come_again() {
    let partial = Partial { commit_lsn: Lsn::new(100), index: 2 };
    let mut assembler = in_a_transaction(Position { end_lsn: Lsn::new(90), partial: Some(partial) });
    assert_eq!(feed(&mut assembler, &row("7")), Ok(Step::Nothing));
    assert_eq!(feed(&mut assembler, &row("8")), Ok(Step::Nothing));
    let row = row("9");
    let Ok(Step::Event(event)) = feed(&mut assembler, &row) else { panic!("not an event") };
    assert_eq!((event.id(), event.place.index), (&b"9"[..], 2));
    assert!(matches!(feed(&mut assembler, &wire::commit(100, 130, 9)), Ok(Step::Commit { .. })));
}

#[test]
fn rows_of_other_tables_and_other_schemas_are_no_events_and_do_not_count() {
    let mut assembler = in_a_transaction(Position::default());
    let described = wire::relation(7, "audit", "outbox", &COLUMNS);
    assert_eq!(feed(&mut assembler, &described), Ok(Step::Relation { oid: 7, outbox: false }));
    assert_eq!(feed(&mut assembler, &wire::insert(7, &[Value::Null; 5])), Ok(Step::Nothing));
    let row = row("1");
    let Ok(Step::Event(event)) = feed(&mut assembler, &row) else { panic!("not an event") };
    assert_eq!(event.place.index, 0);
}

#[test]
fn updates_deletes_and_truncates_are_counted_and_come_to_nothing() {
    let mut assembler = in_a_transaction(Position::default());
    for message in [
        wire::update(OUTBOX, &[], &[]),
        wire::update(OUTBOX, &[], &[]),
        wire::delete(OUTBOX, &[]),
        wire::truncate(&[OUTBOX, 7]),
        wire::origin(5, "upstream"),
        wire::data_type(9, "public", "mood"),
        wire::logical_message(5, "prefix", b"content"),
    ] {
        assert_eq!(feed(&mut assembler, &message), Ok(Step::Nothing));
    }
    assert_eq!(assembler.ignored(), Ignored { updates: 2, deletes: 1, truncates: 1, messages: 1 });
    assembler.resume_at(Position::default());
    assert_eq!(assembler.ignored().updates, 2, "a reconnect does not reset a counter");
}

#[test]
fn a_description_in_mid_transaction_replaces_the_one_before() {
    let mut assembler = in_a_transaction(Position::default());
    feed(&mut assembler, &row("1")).unwrap();
    feed(
        &mut assembler,
        &wire::relation(OUTBOX, "public", "outbox", &["payload", "x", "type", "aggregateid", "id", "aggregatetype"]),
    )
    .unwrap();
    let message = wire::insert(OUTBOX, &[&b"p"[..], b"x", b"t", b"a", b"i", b"g"].map(Value::Text));
    let Ok(Step::Event(event)) = feed(&mut assembler, &message) else { panic!("not an event") };
    assert_eq!([0, 3, 1].map(|place| event.row.get(place)), [&b"i"[..], b"p", b"g"].map(Some));
    assert_eq!(protocol_fault(&mut assembler, &row("2")), "a row of 5 values for 6 columns");
    feed(&mut assembler, &wire::relation(OUTBOX, "public", "renamed", &COLUMNS)).unwrap();
    assert_eq!(feed(&mut assembler, &row("3")), Ok(Step::Nothing), "renamed: no longer the outbox");
}

#[test]
fn a_missing_column_is_an_error_only_for_an_event_that_needs_it() {
    let lacking = wire::relation(OUTBOX, "public", "outbox", &["id", "aggregatetype", "aggregateid", "type", "bo\ndy"]);
    let partial = Partial { commit_lsn: Lsn::new(100), index: 1 };
    let mut assembler = in_a_transaction(Position { end_lsn: Lsn::new(90), partial: Some(partial) });
    feed(&mut assembler, &lacking).unwrap();
    assert_eq!(feed(&mut assembler, &row("1")), Ok(Step::Nothing));
    let error = feed(&mut assembler, &row("2")).unwrap_err();
    let text = "event at index 1 of the transaction at 0/64: table public.outbox has no column payload; it has \"id\", \
                \"aggregatetype\", \"aggregateid\", \"type\", \"bo\\ndy\"";
    assert_eq!(error.to_string(), text);
    let slot: SlotName = "orders".parse().unwrap();
    let error = error.into_error(&slot);
    assert_eq!((error.kind(), error.cause()), (Kind::Publication, format!("slot orders: {text}").as_str()));
    assert!(error.what_to_do().unwrap().contains("payload"));
    let mut assembler = Assembler::new(&[outbox()], Position::at(Lsn::new(130)));
    feed_all(&mut assembler, &[wire::begin(100, 9, 1), lacking, row("1"), wire::commit(100, 130, 9)]);
}

#[test]
fn a_row_no_event_can_be_made_of_is_named_and_its_payload_is_not() {
    let text = |text: &'static str| Value::Text(text.as_bytes());
    let slot: SlotName = "orders".parse().unwrap();
    for (values, column, fault, id) in [
        ([Value::Null, text("t"), text("k"), text("e"), text("hidden")], "id", Fault::Null, None),
        (
            [text("7\n"), text("t"), Value::Unchanged, text("e"), text("hidden")],
            "aggregateid",
            Fault::Unchanged,
            Some("\"7\\n\""),
        ),
        (
            [text("7"), text("t"), Value::Unchanged, text("e"), text("hidden")],
            "aggregateid",
            Fault::Unchanged,
            Some("\"7\""),
        ),
        (
            [text("7"), Value::Binary(b"hidden"), text("hidden"), Value::Unchanged, Value::Null],
            "aggregatetype",
            Fault::Binary,
            Some("\"7\""),
        ),
        (
            [text("7"), text("t"), text("hidden"), Value::Null, Value::Unchanged],
            "payload",
            Fault::Unchanged,
            Some("\"7\""),
        ),
    ] {
        let mut assembler = in_a_transaction(Position::default());
        feed(&mut assembler, &row("0")).unwrap();
        let error = feed(&mut assembler, &wire::insert(OUTBOX, &values)).unwrap_err();
        let EventError::Value { place, column: found, fault: what, id: shown, .. } = &error else { panic!("{error}") };
        assert_eq!((place.index, place.commit_lsn), (1, Lsn::new(100)));
        assert_eq!((found.as_str(), *what), (column, fault));
        assert_eq!(shown.as_ref().map(Shown::to_string).as_deref(), id);
        let error = error.into_error(&slot);
        assert_eq!(error.kind(), Kind::Event);
        let text = format!("{error} {}", error.what_to_do().unwrap());
        assert!(text.contains("slot orders: event at index 1 of the transaction at 0/64"), "{text}");
        assert!(text.contains(column) && !text.contains("hidden"), "{text}");
    }
}

#[test]
fn what_a_server_may_not_send_is_an_error() {
    let mut fresh = Assembler::new(&[outbox()], Position::default());
    for (message, what) in [
        (wire::commit(100, 130, 9), "a commit"),
        (wire::update(OUTBOX, &[], &[]), "an update"),
        (wire::delete(OUTBOX, &[]), "a delete"),
        (wire::truncate(&[OUTBOX]), "a truncate"),
    ] {
        assert_eq!(protocol_fault(&mut fresh, &message), format!("{what} outside a transaction"));
    }
    feed(&mut fresh, &described()).unwrap();
    assert_eq!(protocol_fault(&mut fresh, &row("1")), "a row outside a transaction");

    let mut assembler = in_a_transaction(Position::default());
    assert_eq!(protocol_fault(&mut assembler, &wire::begin(200, 9, 2)), "a transaction inside a transaction");
    assert_eq!(protocol_fault(&mut assembler, &wire::insert(99, &[])), "a row of table 99, which was not described");
    let other = "a commit of the transaction at 0/65, which is not the open one";
    assert_eq!(protocol_fault(&mut assembler, &wire::commit(101, 130, 9)), other);
    let empty = "a commit record that starts at 0/64 and ends at 0/64";
    assert_eq!(protocol_fault(&mut assembler, &wire::commit(100, 100, 9)), empty);
    feed(&mut assembler, &wire::commit(100, 130, 9)).unwrap();
    let backwards = "a transaction that commits at 0/81, before 0/82, where the last one ended";
    assert_eq!(protocol_fault(&mut assembler, &wire::begin(129, 9, 2)), backwards);
    assert!(feed(&mut assembler, &wire::begin(130, 9, 2)).is_ok(), "the next may begin where the last ended");
}

#[test]
fn bytes_that_are_no_message_are_an_error_that_says_where() {
    let mut assembler = in_a_transaction(Position::default());
    feed(&mut assembler, &row("1")).unwrap();
    let error = assembler.feed(b"I\0", Lsn::new(0x77)).unwrap_err();
    let text = "a message cannot be decoded (at 0/77, after 1 event of the transaction at 0/64): an insert's relation \
                OID at byte 1 wants 4 bytes and 1 are left";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_new_session_forgets_tables_and_the_open_transaction() {
    let mut assembler = in_a_transaction(Position::default());
    feed_all(&mut assembler, &[row("1"), wire::commit(100, 130, 9), wire::begin(130, 9, 2)]);
    assembler.resume_at(Position::at(Lsn::new(50)));
    assert!(feed(&mut assembler, &wire::begin(100, 9, 1)).is_ok(), "the server may start further back");
    assert_eq!(protocol_fault(&mut assembler, &row("1")), format!("a row of table {OUTBOX}, which was not described"));
}

#[test]
fn a_position_that_is_not_of_this_stream_is_an_error() {
    let slot: SlotName = "orders".parse().unwrap();
    let mut assembler = in_a_transaction(Position::at(Lsn::new(120)));
    let error = feed(&mut assembler, &wire::commit(100, 130, 9)).unwrap_err();
    assert!(matches!(error, EventError::PositionInside { .. }), "{error}");
    assert_eq!(error.into_error(&slot).kind(), Kind::PositionMismatch);

    let partial = |commit_lsn, index| {
        let partial = Partial { commit_lsn: Lsn::new(commit_lsn), index };
        Position { end_lsn: Lsn::new(90), partial: Some(partial) }
    };
    let mut assembler = in_a_transaction(partial(100, 2));
    feed(&mut assembler, &row("1")).unwrap();
    let error = feed(&mut assembler, &wire::commit(100, 130, 9)).unwrap_err();
    assert!(matches!(error, EventError::PartialMissing { events: 1, .. }), "{error}");
    assert_eq!(error.into_error(&slot).kind(), Kind::PositionMismatch);

    let mut assembler = Assembler::new(&[outbox()], partial(99, 2));
    let error = feed(&mut assembler, &wire::begin(100, 9, 1)).unwrap_err();
    assert!(matches!(error, EventError::PartialMissing { events: 0, .. }), "{error}");

    let mut assembler = in_a_transaction(partial(140, 1));
    let messages = [row("1"), wire::commit(100, 130, 9), wire::begin(140, 9, 2), row("2"), wire::commit(140, 150, 9)];
    feed_all(&mut assembler, &messages);
    assert!(feed(&mut assembler, &wire::begin(160, 9, 3)).is_ok(), "the partial transaction came");
}

/// Rows of `public.outbox`, rows of `sales.events` with other columns, and messages with the prefix `shop`.
fn several() -> Vec<OutboxConfig> {
    let named = |source, id: &str, columns: &[&str]| OutboxConfig {
        source,
        id: id.to_owned(),
        columns: columns.iter().map(|column| (*column).to_owned()).collect(),
        ..OutboxConfig::default()
    };
    vec![
        outbox(),
        named(EventSource::Table("sales.events".parse().unwrap()), "number", &["number", "body"]),
        named(EventSource::Messages("shop".to_owned()), "message_lsn", &["message_lsn", "type"]),
    ]
}

#[test]
fn events_of_several_outboxes_count_on_in_their_transaction() {
    const SALES: u32 = 16_390;
    let mut assembler = Assembler::new(&several(), Position::default());
    feed_all(&mut assembler, &[wire::begin(100, 7, 1), described()]);
    feed_all(&mut assembler, &[wire::relation(SALES, "sales", "events", &["body", "x", "number"])]);
    let messages = [
        row("7"),
        wire::logical_message(0x40, "shop", br#"{"type": "Placed"}"#),
        wire::insert(SALES, &[Value::Text(b"{}"), Value::Null, Value::Text(b"1")]),
        row("8"),
    ];
    let mut told = Vec::new();
    for message in &messages {
        let Ok(Step::Event(event)) = feed(&mut assembler, message) else { panic!("not an event") };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        told.push((event.outbox, event.place.index, text(event.id()), event.row.get(1).map(text)));
    }
    let expected = [(0, 0, "7", "order"), (2, 1, "0/40", "Placed"), (1, 2, "1", "{}"), (0, 3, "8", "order")];
    let expected = expected.map(|(outbox, index, id, value)| (outbox, index, id.to_owned(), Some(value.to_owned())));
    assert_eq!(told, expected);

    let partial = Partial { commit_lsn: Lsn::new(100), index: 2 };
    assembler.resume_at(Position { end_lsn: Lsn::ZERO, partial: Some(partial) });
    feed_all(&mut assembler, &[wire::begin(100, 7, 1), described()]);
    feed_all(&mut assembler, &[wire::relation(SALES, "sales", "events", &["body", "x", "number"])]);
    let steps: Vec<_> = messages.iter().map(|message| feed(&mut assembler, message).unwrap()).collect();
    assert!(matches!(steps.as_slice(), [Step::Nothing, Step::Nothing, Step::Event(_), Step::Event(_)]), "{steps:?}");
}

#[test]
fn a_message_that_is_none_of_ours_or_of_no_transaction_is_counted_and_passed_over() {
    let mut assembler = Assembler::new(&several(), Position::default());
    let mut outside = wire::logical_message(0x40, "shop", b"{}");
    outside[1] = 0;
    feed_all(&mut assembler, &[outside.clone(), wire::begin(100, 7, 1), outside]);
    assert_eq!(feed(&mut assembler, &wire::logical_message(0x40, "shop2", b"{}")), Ok(Step::Nothing));
    assert_eq!(assembler.ignored().messages, 3);
    feed_all(&mut assembler, &[wire::commit(100, 130, 7)]);
    let what = protocol_fault(&mut assembler, &wire::logical_message(0x40, "shop", b"{}"));
    assert_eq!(what, "a transactional message outside a transaction");
}

#[test]
fn a_message_whose_content_has_no_members_is_named_by_where_it_stands() {
    let slot: SlotName = "orders".parse().unwrap();
    let mut outboxes = several();
    let refused = |outboxes: &[OutboxConfig], content: &[u8]| {
        let mut assembler = Assembler::new(outboxes, Position::default());
        feed_all(&mut assembler, &[wire::begin(100, 7, 1)]);
        let message = wire::logical_message(0x40, "shop", content);
        let error = feed(&mut assembler, &message).unwrap_err().into_error(&slot);
        assert!(
            error.what_to_do().is_some_and(|todo| todo.contains("members") && todo.contains("advance")),
            "{error:?}"
        );
        error.cause().to_owned()
    };
    assert_eq!(
        refused(&outboxes, b"Placed"),
        "slot orders: event at index 0 of the transaction at 0/64, row \"0/40\": column type of messages with prefix \
         \"shop\" is a member of the content, which is no JSON object"
    );
    outboxes[2].columns = vec!["id".to_owned(), "type".to_owned()];
    assert_eq!(
        refused(&outboxes, br#"{"type": "Placed"}"#),
        "slot orders: event at index 0 of the transaction at 0/64, row \"0/40\": column id of messages with prefix \
         \"shop\" is NULL"
    );
}

#[test]
fn a_type_that_may_be_a_domain_too_young_to_be_known_ends_the_session_and_is_looked_up_for_the_next() {
    let mut assembler = Assembler::new(&[outbox()], Position::default());
    let typed = wire::relation_of(OUTBOX, "public", "outbox", &COLUMNS.map(|name| (name, 20_000)));
    assembler.set_catalog(HashMap::from([(OUTBOX, 0)]), BaseTypes::new(HashMap::new(), Lsn::new(99)));
    feed(&mut assembler, &wire::begin(100, 7, 1)).unwrap();
    let error = feed(&mut assembler, &typed).unwrap_err();
    assert!(matches!(error, EventError::TypeUnknown { .. }), "{error}");
    let error = error.into_error(&"orders".parse::<SlotName>().unwrap());
    assert_eq!(error.kind().disposition(), crate::error::Disposition::Retry);
    assert!(error.cause().contains("column \"id\" of public.outbox"), "{error}");

    assembler.resume_at(Position::default());
    assembler.set_catalog(HashMap::from([(OUTBOX, 0)]), BaseTypes::new(HashMap::from([(20_000, 17)]), Lsn::new(100)));
    feed_all(&mut assembler, &[wire::begin(100, 7, 1), typed]);
    let row = row("8");
    let Ok(Step::Event(event)) = feed(&mut assembler, &row) else { panic!("not an event") };
    assert_eq!(event.row.type_oid(0), 17);
}

#[test]
fn rows_of_the_table_count_under_the_name_it_had_when_they_were_written() {
    let mut assembler = Assembler::new(&[outbox()], Position::default());
    assembler.set_catalog(HashMap::from([(OUTBOX, 0)]), BaseTypes::default());
    let renamed = |oid| wire::relation(oid, "sales", "events", &COLUMNS);
    feed_all(&mut assembler, &[wire::begin(100, 7, 1), renamed(OUTBOX)]);
    assert!(matches!(feed(&mut assembler, &row("1")), Ok(Step::Event(_))));
    assert_eq!(feed(&mut assembler, &renamed(7)), Ok(Step::Relation { oid: 7, outbox: false }));
    // Another table that had the name before.
    let before = wire::relation(7, "public", "outbox", &COLUMNS);
    assert_eq!(feed(&mut assembler, &before), Ok(Step::Relation { oid: 7, outbox: true }));
}

#[test]
fn a_domain_is_the_type_under_it_and_what_may_be_one_is_not_guessed() {
    let types = BaseTypes::new(HashMap::from([(13_000, 23), (20_000, 17), (20_002, 20_002)]), Lsn::new(100));
    let base = |oid, lsn| types.base(oid, Lsn::new(lsn));
    assert_eq!((base(20_000, 50), base(20_000, 150), base(13_000, 150)), (Some(17), Some(17), Some(23)));
    assert_eq!(base(20_002, 150), Some(20_002));
    // An enum, or a domain that was dropped since: text either way.
    assert_eq!(base(20_001, 100), Some(20_001));
    assert_eq!(base(20_001, 101), None);
    assert_eq!(base(17, 101), Some(17));
}
