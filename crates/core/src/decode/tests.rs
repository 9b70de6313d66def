//! The decoder against messages it knows, and against every way to damage them (P11).

use walrelay_fuzz::fuzz;

use super::*;
use crate::testing::wire;

/// A message and its bytes: one of each tag, with every kind of value.
fn one_of_each() -> Vec<(Vec<u8>, Message<'static>)> {
    const ROW: &[Value<'static>] = &[
        Value::Null,
        Value::Text("größe".as_bytes()),
        Value::Unchanged,
        Value::Binary(&[0, 255]),
        Value::Text(b""),
    ];
    let begin = Begin {
        commit_lsn: Lsn::new(0x1_0000_0020),
        committed_at_us: 1_714_979_289_123_456,
        xid: u32::MAX,
    };
    let commit = Commit {
        commit_lsn: Lsn::new(32),
        end_lsn: Lsn::new(64),
        committed_at_us: -1,
    };
    let column = |name: &str| RelationColumn {
        name: name.to_owned(),
        type_oid: 25,
        type_modifier: -1,
    };
    let relation = |schema: &str| Relation {
        oid: 16_384,
        schema: schema.to_owned(),
        table: "Öutbox".to_owned(),
        columns: vec![column("id"), column("größe")],
    };
    vec![
        (
            wire::begin(0x1_0000_0020, 1_714_979_289_123_456, u32::MAX),
            Message::Begin(begin),
        ),
        (wire::commit(32, 64, -1), Message::Commit(commit)),
        (
            wire::relation(16_384, "public", "Öutbox", &["id", "größe"]),
            Message::Relation(relation("public")),
        ),
        (
            wire::relation(16_384, "", "Öutbox", &["id", "größe"]),
            Message::Relation(relation("pg_catalog")),
        ),
        (
            wire::insert(7, ROW),
            Message::Insert(Insert {
                relation: 7,
                tuple: leak_tuple(ROW),
            }),
        ),
        (
            wire::insert(7, &[]),
            Message::Insert(Insert {
                relation: 7,
                tuple: leak_tuple(&[]),
            }),
        ),
        (
            wire::update(7, &ROW[..1], ROW),
            Message::Other(Other::Update),
        ),
        (wire::delete(7, ROW), Message::Other(Other::Delete)),
        (wire::truncate(&[7, 8]), Message::Other(Other::Truncate)),
        (
            wire::data_type(99, "public", "mood"),
            Message::Other(Other::Type),
        ),
        (wire::origin(32, "upstream"), Message::Other(Other::Origin)),
        (
            wire::logical_message(32, "prefix", b"content"),
            Message::Logical(LogicalMessage {
                transactional: true,
                lsn: Lsn::new(32),
                prefix: b"prefix",
                content: b"content",
            }),
        ),
    ]
}

fn leak_tuple(values: &[Value<'_>]) -> Tuple<'static> {
    let bytes: &'static [u8] = wire::insert(0, values).leak();
    Tuple::read(&mut Cursor::new(&bytes[6..])).unwrap()
}

/// Whatever comes of `bytes`, values must be as many as declared and lie inside them, and so must
/// an error's offset.
fn decode_and_walk(bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let decoded = decode(bytes);
    match &decoded {
        Ok(Message::Insert(insert)) => {
            assert_eq!(insert.tuple.values().count(), insert.tuple.len());
            let inside = bytes.as_ptr_range();
            for value in insert.tuple.values() {
                if let Value::Text(content) | Value::Binary(content) = value {
                    let content = content.as_ptr_range();
                    assert!(
                        inside.start <= content.start && content.end <= inside.end,
                        "a value outside the message"
                    );
                }
            }
        }
        Ok(_) => {}
        Err(error) => {
            assert!(
                error.offset <= bytes.len(),
                "{error} lies outside {} bytes",
                bytes.len()
            );
            assert!(error.to_string().starts_with(error.what));
        }
    }
    decoded
}

#[test]
fn each_message_decodes_to_what_was_written() {
    for (bytes, message) in one_of_each() {
        assert_eq!(decode_and_walk(&bytes), Ok(message));
    }
}

#[test]
fn every_truncation_of_a_message_is_an_error() {
    for (bytes, message) in one_of_each() {
        for length in 0..bytes.len() {
            let decoded = decode_and_walk(&bytes[..length]);
            assert!(
                decoded.is_err(),
                "{length} of {} bytes of {message:?} gave {decoded:?}",
                bytes.len()
            );
        }
    }
}

#[test]
fn trailing_bytes_are_an_error_that_names_their_offset() {
    for (mut bytes, message) in one_of_each() {
        let length = bytes.len();
        bytes.extend([0, 0]);
        let error = decode_and_walk(&bytes).unwrap_err();
        assert_eq!(
            (error.offset, error.problem),
            (length, Problem::Trailing { left: 2 }),
            "behind {message:?}"
        );
    }
}

#[test]
fn every_unknown_tag_is_an_error() {
    for tag in (0..=u8::MAX).filter(|tag| !b"BCRIUDTYOM".contains(tag)) {
        let error = decode_and_walk(&[tag, 0, 0, 0, 0]).unwrap_err();
        assert_eq!(
            error,
            DecodeError {
                offset: 0,
                what: "a message's tag",
                problem: Problem::Unknown { found: tag }
            }
        );
    }
    assert_eq!(
        decode(&[]).unwrap_err().problem,
        Problem::Short { wanted: 1, left: 0 }
    );
}

#[test]
fn a_damaged_message_is_an_error_that_names_its_offset() {
    let null = &[Value::Null][..];
    let changed = |mut bytes: Vec<u8>, at: usize, with: &[u8]| {
        assert!(decode_and_walk(&bytes).is_ok());
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    let unknown = Problem::Unknown { found: b'?' };
    let tuple = |bytes: &[u8]| [&b"I\0\0\0\x07N"[..], bytes].concat();
    for (bytes, offset, problem) in [
        (changed(wire::insert(7, null), 5, b"?"), 5, unknown),
        (changed(wire::insert(7, null), 8, b"?"), 8, unknown),
        (changed(wire::update(7, null, null), 5, b"?"), 5, unknown),
        (changed(wire::update(7, null, null), 9, b"?"), 9, unknown),
        (changed(wire::delete(7, null), 5, b"?"), 5, unknown),
        (changed(wire::commit(1, 2, 3), 1, b"?"), 1, unknown),
        // A huge count allocates nothing.
        (
            b"T\x7f\xff\xff\xff\0\0\0\0\x07".to_vec(),
            10,
            Problem::Short { wanted: 4, left: 0 },
        ),
        (
            b"T\xff\xff\xff\xff\0".to_vec(),
            1,
            Problem::OutOfRange { found: -1 },
        ),
        (
            changed(wire::begin(1, 0, 1), 9, &i64::MAX.to_be_bytes()),
            9,
            Problem::OutOfRange { found: i64::MAX },
        ),
        (
            changed(wire::relation(1, "public", "outbox", &["id"]), 12, b"\xff"),
            12,
            Problem::NotUtf8,
        ),
        (tuple(b"\0\x02n"), 9, Problem::Short { wanted: 1, left: 0 }),
        (
            tuple(b"\0\x01t\x7f\xff\xff\xffx"),
            13,
            Problem::Short {
                wanted: 0x7fff_ffff,
                left: 1,
            },
        ),
        (
            tuple(b"\0\x01t\xff\xff\xff\xffx"),
            9,
            Problem::OutOfRange { found: -1 },
        ),
        (tuple(b"\x80\0"), 6, Problem::OutOfRange { found: -0x8000 }),
        (tuple(b"\0"), 6, Problem::Short { wanted: 2, left: 1 }),
    ] {
        let error = decode_and_walk(&bytes).unwrap_err();
        assert_eq!((error.offset, error.problem), (offset, problem), "{error}");
    }
    let first = changed(wire::begin(1, 0, 1), 9, &i64::MIN.to_be_bytes());
    let decoded = Begin {
        commit_lsn: Lsn::new(1),
        committed_at_us: i64::MIN + wire::EPOCH_US,
        xid: 1,
    };
    assert_eq!(decode_and_walk(&first), Ok(Message::Begin(decoded)));
}

#[test]
fn fuzzed_messages() {
    let corpus: Vec<_> = one_of_each().into_iter().map(|(bytes, _)| bytes).collect();
    fuzz("messages of pgoutput", 64 << 10, &corpus, |bytes| {
        drop(decode_and_walk(bytes));
    });
}
