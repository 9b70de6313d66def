use std::time::Duration;

use tokio::io::{AsyncReadExt, DuplexStream};
use walrelay_fuzz::fuzz;

use super::*;
use crate::config::{SourceConfig, StreamConfig};
use crate::conninfo::ConnInfo;
use crate::postgres::session::tests::{FakeServer, message, pipe, report};
use walrelay_core::error::{Error, Kind};

const SETTINGS: [(&str, &str); 4] = [
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, MDY"),
    ("TimeZone", "UTC"),
    ("IntervalStyle", "postgres"),
];

impl Unwatch for DuplexStream {
    fn unwatch(&mut self) {}

    fn is_unwatched(&self) -> bool {
        false
    }
}

fn config() -> SourceConfig {
    let database =
        ConnInfo::parse(Some("host=h user=u dbname=d options='-c a=b'"), &|_| None).unwrap();
    let stream = StreamConfig {
        max_message_bytes: 1000,
        ..StreamConfig::default()
    };
    SourceConfig::sample(database, "orders", "My \"Pub", stream)
}

async fn log_in(
    server: &mut FakeServer,
    client: DuplexStream,
    settings: &[(&str, &str)],
    shown: [&str; 2],
) -> Result<WalSession<DuplexStream>> {
    let config = config();
    let play = async {
        let asked = server.let_in(settings).await;
        for wanted in [
            ("replication", "database"),
            ("application_name", "walrelay/orders"),
            ("TimeZone", "UTC"),
        ] {
            assert!(
                asked.contains(&(wanted.0.into(), wanted.1.into())),
                "{wanted:?}"
            );
        }
        assert!(asked.contains(&(
            "options".into(),
            "-c a=b -c wal_sender_timeout=10000".into()
        )));
        for value in [shown[0], shown[1], "0"] {
            if server.next().await.is_none() {
                return;
            }
            server.answer(&[value]).await;
        }
    };
    let target = &config.database.targets[0];
    let (session, ()) = tokio::join!(
        WalSession::log_in(client, None, &config.database, target, &config),
        play
    );
    session
}

/// A stream that has been started, and the server at its other end.
async fn started() -> (WalStream<DuplexStream>, FakeServer) {
    let (client, mut server) = pipe();
    let session = log_in(&mut server, client, &SETTINGS, ["hex", "1"])
        .await
        .unwrap();
    let config = config();
    let play = async {
        let command = server.expect_query().await;
        assert_eq!(
            command,
            concat!(
                r#"START_REPLICATION SLOT "orders" LOGICAL 0/0 (proto_version '1', "#,
                r#"publication_names '"My ""Pub"')"#
            )
        );
        server.send(b'W', &[0, 0, 0]).await;
    };
    let (stream, ()) = tokio::join!(WalStream::start(session, &config), play);
    (stream.unwrap(), server)
}

fn change(lsn: u64, body: &[u8]) -> Vec<u8> {
    [
        b"w",
        &lsn.to_be_bytes()[..],
        &lsn.to_be_bytes(),
        &0_i64.to_be_bytes(),
        body,
    ]
    .concat()
}

fn keepalive(wal_end: u64, reply: u8) -> Vec<u8> {
    [
        b"k",
        &wal_end.to_be_bytes()[..],
        &0_i64.to_be_bytes(),
        &[reply],
    ]
    .concat()
}

/// The LSNs and the question in the client's next status.
async fn status(server: &mut FakeServer) -> (u64, u64, bool) {
    let body = server.expect(b'd').await;
    assert_eq!((body[0], body.len()), (b'r', 34));
    let lsn = |at: usize| u64::from_be_bytes(body[at..at + 8].try_into().unwrap());
    assert_eq!(lsn(9), lsn(17));
    (lsn(1), lsn(9), body[33] == 1)
}

fn told(received: u64, confirmed: u64) -> Status {
    Status {
        received: Lsn::new(received),
        confirmed: Lsn::new(confirmed),
        reply_requested: false,
    }
}

/// The server sends a change at this LSN, and the stream reads it.
async fn receives(stream: &mut WalStream<DuplexStream>, server: &mut FakeServer, lsn: u64) {
    server.send(b'd', &change(lsn, b"")).await;
    stream.fill().await.unwrap();
    stream.next(None).unwrap().unwrap();
}

/// The error that a server causes which sends these bytes, inside a transaction or not, and goes.
async fn error_after(bytes: &[u8], open_transaction: Option<Lsn>) -> Error {
    let (mut stream, mut server) = started().await;
    server.send_raw(bytes).await;
    drop(server);
    loop {
        let next = stream
            .next(open_transaction)
            .map(|message| message.is_some());
        let is_read = match next {
            Ok(false) => stream.fill().await.map(drop),
            other => other.map(drop),
        };
        if let Err(error) = is_read {
            return error;
        }
    }
}

#[tokio::test]
async fn changes_keepalives_notices_and_the_end_come_in_order() {
    let (mut stream, mut server) = started().await;
    let bytes = [
        message(b'd', &change(5, b"one")),
        message(b'N', &report("55000", "skipped")),
        message(b'd', &keepalive(9, 1)),
        message(b'S', b"DateStyle\0ISO, DMY\0"),
        message(b'c', b""),
        message(b'C', b"COPY 0\0"),
        message(b'Z', b"I"),
    ]
    .concat();
    server.send_raw(&bytes).await;
    stream.fill().await.unwrap();
    let seen: Vec<_> = (0..5)
        .map(|_| format!("{:?}", stream.next(None).unwrap().unwrap()))
        .collect();
    assert!(
        seen[0].starts_with("Data { wal_start: 0/5, wal_end: 0/5"),
        "{seen:?}"
    );
    assert!(
        seen[1].contains("55000") && !seen[1].contains("canary"),
        "{seen:?}"
    );
    assert_eq!(seen[2], "Keepalive { wal_end: 0/9, reply_requested: true }");
    assert!(seen[3].contains("ISO, DMY"));
    assert_eq!(seen[4], "CopyDone");
    assert_eq!(stream.received(), Lsn::new(9));
}

#[tokio::test]
async fn the_confirmed_lsn_never_exceeds_the_received_one_and_never_decreases() {
    let (mut stream, mut server) = started().await;
    stream.queue_status(told(900, 900));
    stream.flush_output().await.unwrap();
    assert_eq!(status(&mut server).await, (0, 0, false));
    receives(&mut stream, &mut server, 50).await;
    for (asked, sent) in [
        (told(50, 40), (50, 40)),
        (told(50, 30), (50, 40)),
        (told(900, 900), (50, 50)),
    ] {
        stream.queue_status(asked);
        stream.flush_output().await.unwrap();
        let (received, confirmed, _) = status(&mut server).await;
        assert_eq!((received, confirmed), sent);
    }
}

#[tokio::test]
async fn a_stream_that_is_no_standby_confirms_nothing_with_its_last_status() {
    let (mut stream, mut server) = started().await;
    stream.be_no_standby();
    server.send(b'd', &keepalive(50, 0)).await;
    stream.fill().await.unwrap();
    assert!(stream.next(None).unwrap().is_some());
    // The second pair takes the place of the first.
    for confirmed in [20, 30] {
        stream.queue_status(told(50, confirmed));
    }
    stream.flush_output().await.unwrap();
    assert_eq!(status(&mut server).await, (50, 30, false));
    assert_eq!(status(&mut server).await, (50, 0, false));
}

#[tokio::test]
async fn a_waiting_status_is_replaced_and_a_partly_written_one_is_finished() {
    let (mut stream, mut server) = started().await;
    receives(&mut stream, &mut server, 50).await;
    stream.queue_status(Status {
        reply_requested: true,
        ..told(50, 10)
    });
    stream.queue_status(told(50, 20));
    stream.output.written = 0;
    assert_eq!(stream.output.bytes.len(), STATUS_FRAME_BYTES);
    // As if the socket had taken seven bytes: these belong to the status that is under way.
    let under_way = stream.output.bytes.clone();
    stream.output.written = 7;
    for confirmed in 21..40 {
        stream.queue_status(told(50, confirmed));
    }
    assert_eq!(stream.output.bytes.len(), 2 * STATUS_FRAME_BYTES);
    assert_eq!(stream.output.bytes[..STATUS_FRAME_BYTES], under_way);
    // Now in the middle of the second one.
    stream.output.written = STATUS_FRAME_BYTES + 1;
    stream.queue_status(told(50, 50));
    assert_eq!(stream.output.bytes.len(), 3 * STATUS_FRAME_BYTES);
    stream.output.written = 0;
    let (flushed, sent) = tokio::join!(stream.flush_output(), async {
        [
            status(&mut server).await,
            status(&mut server).await,
            status(&mut server).await,
        ]
    });
    flushed.unwrap();
    assert_eq!(sent, [(50, 20, true), (50, 39, true), (50, 50, true)]);
    assert!(!stream.has_output());
}

#[tokio::test]
async fn a_message_too_large_is_refused_with_its_lsn_before_it_is_received() {
    let whole = message(b'd', &change(0x1_0000_00AB, &[0; 1001]));
    // Thirty bytes hold the LSN; nothing more of it ever comes.
    for (open_transaction, lsn) in [(None, "1/AB"), (Some(Lsn::new(0x1_0000_00CD)), "1/CD")] {
        let error = error_after(&whole[..30], open_transaction).await;
        assert!(
            error.kind() == Kind::Event && error.cause().contains("1/AB"),
            "{error}"
        );
        let advance = format!(
            "deliver it by hand, stop the relay, select \
             pg_replication_slot_advance('orders', '{lsn}'::pg_lsn + 1), \
             and start once with --adopt-slot"
        );
        assert!(error.what_to_do().unwrap().contains(&advance), "{error:?}");
    }
    let notice = error_after(b"N\x7f\xff\xff\xff", None).await;
    assert_eq!(
        notice.what_to_do().as_deref(),
        Some("raise slot.max_message_bytes"),
        "no row is to be given up"
    );
    let (mut stream, mut server) = started().await;
    server.send(b'd', &change(7, &[0; 1000])).await;
    stream.fill().await.unwrap();
    let next = stream.next(None).unwrap();
    assert!(matches!(next, Some(WalMessage::Data { body, .. }) if body.len() == 1000));
}

#[tokio::test]
async fn invalid_messages_from_the_server_are_errors() {
    for (bytes, kind) in [
        (message(b'd', b"x"), Kind::PostgresUnreachable),
        (message(b'd', b""), Kind::PostgresUnreachable),
        (message(b'd', b"w\0\0"), Kind::PostgresUnreachable),
        (
            message(b'd', &keepalive(1, 0)[..17]),
            Kind::PostgresUnreachable,
        ),
        (message(b'D', b""), Kind::PostgresUnreachable),
        (message(b'Z', b"I"), Kind::PostgresUnreachable),
        (message(b'S', b"TimeZone"), Kind::PostgresUnreachable),
        (
            message(b'S', b"TimeZone\0Asia/Kolkata\0"),
            Kind::Publication,
        ),
        (b"d\0\0\0\x03".to_vec(), Kind::PostgresUnreachable),
        (b"d\0\0\0".to_vec(), Kind::PostgresUnreachable),
        (b"N\x7f\xff\xff\xff".to_vec(), Kind::Event),
        (
            message(b'E', &report("57P01", "bye")),
            Kind::PostgresUnreachable,
        ),
        (
            message(b'E', &report("42704", "no publication")),
            Kind::Publication,
        ),
        (message(b'E', b""), Kind::PostgresUnfit),
        (vec![], Kind::PostgresUnreachable),
    ] {
        let error = error_after(&bytes, None).await;
        assert_eq!(error.kind(), kind, "{bytes:?}: {error}");
        assert!(!error.cause().contains("canary"));
    }
}

#[tokio::test]
async fn a_row_that_the_server_cannot_send_is_named_with_its_transaction() {
    for sqlstate in ["22021", "22P05", "54000", "XX000"] {
        let bytes = message(b'E', &report(sqlstate, "cannot"));
        let error = error_after(&bytes, Some(Lsn::new(0x190))).await;
        assert_eq!(error.kind(), Kind::Event);
        assert!(
            error
                .to_string()
                .starts_with("in the transaction at 0/190: "),
            "{error}"
        );
        let give_up =
            "select pg_replication_slot_advance('orders', '0/190'::pg_lsn + 1), and start once";
        assert!(
            error.what_to_do().unwrap().contains(give_up),
            "{:?}",
            error.what_to_do()
        );
        let before = error_after(&bytes, None).await.what_to_do().unwrap();
        assert!(
            before.starts_with("nothing was skipped. ") && !before.contains("advance"),
            "{before}"
        );
    }
}

#[tokio::test]
async fn a_server_that_ignores_a_setting_is_refused() {
    for (index, (name, _)) in SETTINGS.into_iter().enumerate() {
        let mut settings = SETTINGS.to_vec();
        settings.remove(index);
        let (client, mut server) = pipe();
        let error = log_in(&mut server, client, &settings, ["hex", "1"])
            .await
            .unwrap_err();
        assert!(
            error.kind() == Kind::Publication && error.cause().contains(name),
            "{error}"
        );
    }
    for shown in [["escape", "1"], ["hex", "0"]] {
        let (client, mut server) = pipe();
        let error = log_in(&mut server, client, &SETTINGS, shown)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Publication);
    }
}

#[tokio::test]
async fn reading_and_writing_make_progress_in_the_same_wait() {
    let (mut stream, mut server) = started().await;
    stream.queue_status(told(0, 0));
    let io = stream.ready_io(true).await.unwrap();
    assert_eq!(
        io,
        Io {
            received_bytes: 0,
            flushed: true
        }
    );
    status(&mut server).await;
    server.send(b'd', &keepalive(3, 0)).await;
    let io = stream.ready_io(true).await.unwrap();
    assert_eq!(
        io,
        Io {
            received_bytes: 5 + 18,
            flushed: false
        }
    );
    assert!(stream.next(None).unwrap().is_some());
    // With nothing to write and reading stopped, there is nothing to wait for.
    server.send(b'd', &keepalive(4, 0)).await;
    let idle = tokio::time::timeout(Duration::from_millis(20), stream.ready_io(false));
    assert!(idle.await.is_err());
    assert!(stream.ready_io(true).await.unwrap().received_bytes > 0);
}

#[tokio::test]
async fn a_full_pipe_delays_neither_reading_nor_the_last_confirmation() {
    let (mut stream, mut server) = started().await;
    receives(&mut stream, &mut server, 1 << 20).await;
    // The server reads nothing: 64 KiB fill up, then statuses replace each other.
    let mut confirmed = 0;
    for _ in 0..4000 {
        confirmed += 1;
        stream.queue_status(told(1 << 20, confirmed));
        if tokio::time::timeout(Duration::ZERO, stream.ready_io(false))
            .await
            .is_err()
        {
            break;
        }
    }
    assert!(stream.has_output());
    stream.queue_status(told(1 << 20, 999_999));
    assert!(stream.output.bytes.len() <= 2 * STATUS_FRAME_BYTES);
    server.send(b'd', &keepalive(2 << 20, 0)).await;
    assert_eq!(stream.ready_io(true).await.unwrap().received_bytes, 5 + 18);
    let (flushed, last) = tokio::join!(stream.flush_output(), async {
        loop {
            let (_, confirmed, _) = status(&mut server).await;
            if confirmed == 999_999 {
                break confirmed;
            }
        }
    });
    flushed.unwrap();
    assert_eq!(last, 999_999);
}

#[tokio::test]
async fn a_failed_write_is_reported_after_the_last_message_of_the_server() {
    let (mut stream, mut server) = started().await;
    server.send(b'E', &report("57P01", "going down")).await;
    drop(server);
    stream.queue_status(told(0, 0));
    assert!(stream.ready_io(true).await.unwrap().received_bytes > 0);
    assert!(!stream.has_output());
    let error = stream.next(None).unwrap_err();
    assert!(error.cause().contains("57P01"), "{error}");
    assert_eq!(
        stream.ready_io(true).await.unwrap_err().kind(),
        Kind::PostgresUnreachable
    );
    let (mut stream, server) = started().await;
    drop(server);
    stream.queue_status(told(0, 0));
    assert_eq!(
        stream.ready_io(false).await.unwrap_err().kind(),
        Kind::PostgresUnreachable
    );
}

#[tokio::test]
async fn finishing_a_stream_confirms_first_and_waits_for_the_end_by_the_server() {
    let (mut stream, mut server) = started().await;
    receives(&mut stream, &mut server, 50).await;
    let deadline = Instant::now() + Duration::from_secs(30);
    let play = async {
        // Still on its way when the end is asked for.
        server.send(b'd', &change(60, &[0; 900])).await;
        server.send(b'd', &change(65, &[0; 5000])).await;
        assert_eq!(status(&mut server).await, (50, 50, false));
        assert_eq!(server.expect(b'c').await, b"");
        server.send(b'd', &change(70, b"")).await;
        server.send(b'c', b"").await;
        server.send(b'C', b"COPY 0\0").await;
        server.send(b'Z', b"I").await;
        assert_eq!(server.expect(b'X').await, b"");
        assert_eq!(server.0.read(&mut [0]).await.unwrap(), 0);
    };
    let (finished, ()) = tokio::join!(stream.finish(told(50, 50), deadline), play);
    finished.unwrap();
}

#[tokio::test]
async fn a_server_shutdown_ends_the_stream_and_no_further_status_is_sent() {
    for news in [false, true] {
        let (mut stream, mut server) = started().await;
        server.send(b'd', &change(50, b"")).await;
        server.send(b'C', b"COPY 0\0").await;
        stream.fill().await.unwrap();
        stream.next(None).unwrap().unwrap();
        stream.queue_status(told(50, 40));
        stream.flush_output().await.unwrap();
        drop(server);
        assert_eq!(stream.next(None).unwrap(), Some(WalMessage::CopyDone));
        let confirmed = if news { 50 } else { 40 };
        let finished = stream
            .finish(told(50, confirmed), Instant::now() + Duration::from_secs(5))
            .await;
        assert_eq!(finished.is_err(), news);
    }
}

#[tokio::test(start_paused = true)]
async fn finishing_a_stream_succeeds_even_if_the_server_does_not_release_the_slot() {
    let (stream, mut server) = started().await;
    let begun = Instant::now();
    let play = async {
        server.send(b'c', b"").await;
        status(&mut server).await;
        server.expect(b'c').await;
        server.expect(b'X').await;
    };
    let (finished, ()) = tokio::join!(
        stream.finish(told(0, 0), begun + Duration::from_secs(30)),
        play
    );
    finished.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn finishing_a_stream_fails_at_its_deadline() {
    let (stream, _server) = started().await;
    let begun = Instant::now();
    let error = stream
        .finish(told(0, 0), begun + Duration::from_secs(5))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::PostgresUnreachable);
    assert_eq!(begun.elapsed().as_secs(), 5);
}

fn said(sqlstate: &str, routine: &str) -> Result<()> {
    let source = SourceConfig {
        publication: "walrelay_orders".to_owned(),
        ..config()
    };
    let [sqlstate, message, routine] = [sqlstate, "canary", routine].map(str::to_owned);
    judge_notice(
        &Notice {
            sqlstate,
            message,
            routine,
        },
        &source,
    )
}

#[test]
fn a_warning_that_changes_are_skipped_stops_the_relay_and_others_do_not() {
    // A server that does not say which of its functions speaks is taken at its worst.
    let error = said("55000", "").unwrap_err();
    assert_eq!(error.kind(), Kind::Publication);
    assert!(
        error.cause().contains("orders") && error.cause().contains("walrelay_orders"),
        "{error}"
    );
    assert!(
        error
            .what_to_do()
            .unwrap()
            .contains("walrelay setup --slot orders")
    );
    assert_eq!(
        said("55000", "LoadPublications").unwrap_err().kind(),
        Kind::Publication
    );
    for harmless in ["00000", "01000", "42704", ""] {
        said(harmless, "").unwrap();
    }
    // An inactive or invalidated standby slot, and one that does not exist: the slot waits and
    // skips nothing.
    for sqlstate in ["55000", "22023"] {
        said(sqlstate, "StandbySlotsHaveCaughtup").unwrap();
    }
}

#[test]
fn a_status_update_is_laid_out_as_documented() {
    let status = Status {
        received: Lsn::new(0x0102),
        confirmed: Lsn::new(0x0304),
        reply_requested: true,
    };
    let fields = [0x0102_u64, 0x0304, 0x0304, 5]
        .map(u64::to_be_bytes)
        .concat();
    assert_eq!(
        status_update(status, 946_684_800_000_005)[..],
        [b"d\0\0\0\x26r", &fields[..], &[1]].concat()
    );
}

#[test]
fn fuzzed_messages_of_the_stream() {
    let corpus = [
        [&b"w"[..], &[1; 24], b"B"].concat(),
        [&b"k"[..], &[1; 17]].concat(),
        report("57P01", "going down"),
        [&b"d\0\0\0\x20w"[..], &[1; 24]].concat(),
    ];
    fuzz("messages of a walsender", 128 << 10, &corpus, |bytes| {
        if let Some(WalMessage::Data { body, .. }) = copy_data(bytes) {
            assert_eq!(body.len(), bytes.len() - 25);
        }
        let _lsn = lsn_of(bytes);
        let Notice { message, .. } = notice(bytes);
        assert!(message.len() <= bytes.len() * 3);
    });
}
