//! Sessions with a server that a test plays over a pipe.

use super::*;
use crate::conninfo::SslMode;
use crate::postgres::transport::{answered, request_tls};
use tokio::io::{AsyncReadExt, DuplexStream};

/// One end of a pipe, speaking as a server does.
pub(crate) struct FakeServer(pub(crate) DuplexStream);

/// A pipe and the fake at its other end.
pub(crate) fn pipe() -> (DuplexStream, FakeServer) {
    let (client, server) = tokio::io::duplex(64 * 1024);
    (client, FakeServer(server))
}

/// One message as it goes over the wire.
pub(crate) fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = i32::try_from(body.len() + 4).unwrap();
    [&[tag], length.to_be_bytes().as_slice(), body].concat()
}

/// The body of an error or notice.
pub(crate) fn report(sqlstate: &str, text: &str) -> Vec<u8> {
    format!("SERROR\0C{sqlstate}\0M{text}\0Dcanary-detail\0\0").into_bytes()
}

/// The body of a row.
pub(crate) fn row(values: &[&str]) -> Vec<u8> {
    let mut body = u16::try_from(values.len()).unwrap().to_be_bytes().to_vec();
    for value in values {
        body.extend(i32::try_from(value.len()).unwrap().to_be_bytes());
        body.extend(value.as_bytes());
    }
    body
}

impl FakeServer {
    pub(crate) async fn send(&mut self, tag: u8, body: &[u8]) {
        self.0.write_all(&message(tag, body)).await.unwrap();
    }

    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// The settings of the start-up packet.
    pub(crate) async fn start_up(&mut self) -> Vec<(String, String)> {
        let length = self.0.read_i32().await.unwrap();
        let mut body = vec![0; usize::try_from(length).unwrap() - 4];
        self.0.read_exact(&mut body).await.unwrap();
        assert_eq!(body[..4], 0x0003_0000_i32.to_be_bytes());
        let texts: Vec<_> =
            body[4..].split(|byte| *byte == 0).map(|text| String::from_utf8(text.to_vec()).unwrap()).collect();
        let pairs = texts.chunks_exact(2).filter(|pair| !pair[0].is_empty());
        pairs.map(|pair| (pair[0].clone(), pair[1].clone())).collect()
    }

    /// The next message of the client, which must be of this type.
    pub(crate) async fn expect(&mut self, tag: u8) -> Vec<u8> {
        let got = self.0.read_u8().await.unwrap();
        assert_eq!(char::from(got), char::from(tag));
        let length = self.0.read_i32().await.unwrap();
        let mut body = vec![0; usize::try_from(length).unwrap() - 4];
        self.0.read_exact(&mut body).await.unwrap();
        body
    }

    /// The text of the client's next statement.
    pub(crate) async fn expect_query(&mut self) -> String {
        let body = self.expect(b'Q').await;
        String::from_utf8(body[..body.len() - 1].to_vec()).unwrap()
    }

    /// Answers a statement with one row and is ready for the next.
    pub(crate) async fn answer(&mut self, values: &[&str]) {
        self.send(b'D', &row(values)).await;
        self.send(b'C', b"DONE\0").await;
        self.send(b'Z', b"I").await;
    }

    /// Lets a client in without a password, as a server with these settings.
    pub(crate) async fn let_in(&mut self, settings: &[(&str, &str)]) -> Vec<(String, String)> {
        let asked = self.start_up().await;
        self.send(b'R', &0_i32.to_be_bytes()).await;
        for (name, value) in settings {
            self.send(b'S', format!("{name}\0{value}\0").as_bytes()).await;
        }
        self.send(b'K', &[0; 8]).await;
        self.send(b'Z', b"I").await;
        asked
    }
}

const PASSWORD: &str = "canary-password";
const QUERYING: While<'static> = While::Querying("testing");

fn start_up(password: bool) -> StartUp<'static> {
    StartUp {
        place: "h:1/d as u",
        user: "u",
        password: password.then(|| Secret::new(PASSWORD)),
        channel_binding: ChannelBinding::Prefer,
        end_point: None,
        parameters: &[("database", "d")],
    }
}

/// Logs in while `server` plays the other side.
async fn log_in<F: Future<Output = FakeServer>>(
    start_up: &StartUp<'_>,
    server: impl FnOnce(FakeServer) -> F,
) -> (Result<Session<DuplexStream>>, FakeServer) {
    let (client, fake) = pipe();
    tokio::join!(Session::log_in(client, start_up), server(fake))
}

fn request(code: i32, data: &[u8]) -> Vec<u8> {
    [&code.to_be_bytes(), data].concat()
}

#[tokio::test]
async fn md5_answers_with_the_salted_hash() {
    let (session, _) = log_in(&start_up(true), async |mut server| {
        server.start_up().await;
        server.send(b'R', &request(5, &[1, 2, 3, 4])).await;
        let wanted = postgres_protocol::authentication::md5_hash(b"u", PASSWORD.as_bytes(), [1, 2, 3, 4]);
        assert_eq!(server.expect(b'p').await, [wanted.as_bytes(), b"\0"].concat());
        server.send(b'R', &request(0, b"")).await;
        server.send(b'Z', b"I").await;
        server
    })
    .await;
    session.unwrap();
}

#[tokio::test]
async fn a_server_that_skips_its_proof_of_scram_is_not_believed() {
    let (session, _) = log_in(&start_up(true), async |mut server| {
        server.start_up().await;
        server.send(b'R', &request(10, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0")).await;
        let first = server.expect(b'p').await;
        assert!(first.starts_with(b"SCRAM-SHA-256\0"));
        assert!(first.windows(3).any(|part| part == b"n,,"));
        server.send(b'R', &request(0, b"")).await;
        server
    })
    .await;
    let error = session.unwrap_err();
    assert!(error.cause().contains("out of turn"), "{error}");
}

/// What the client answers to a server that offers these mechanisms: its choice and the beginning of its message.
async fn chosen(channel_binding: ChannelBinding, end_point: Option<&[u8]>, offered: &[u8]) -> Option<(String, String)> {
    let start_up = StartUp { channel_binding, end_point: end_point.map(<[u8]>::to_vec), ..start_up(true) };
    let mut choice = None;
    let (_, _) = log_in(&start_up, async |mut server| {
        server.start_up().await;
        server.send(b'R', &request(10, offered)).await;
        if server.0.read_u8().await.is_ok_and(|tag| tag == b'p') {
            let length = usize::try_from(server.0.read_i32().await.unwrap()).unwrap() - 4;
            let mut body = vec![0; length];
            server.0.read_exact(&mut body).await.unwrap();
            let text = String::from_utf8(body.split(|byte| *byte == 0).next().unwrap().to_vec()).unwrap();
            let message = String::from_utf8_lossy(&body[text.len() + 5..]).into_owned();
            choice = Some((text, message.split_once(",,").unwrap().0.to_owned()));
        }
        let (_, nobody) = pipe();
        nobody
    })
    .await;
    choice
}

#[tokio::test]
async fn the_login_is_bound_to_the_channel_where_both_can_and_as_was_asked_for() {
    use ChannelBinding::{Disable, Prefer, Require};
    const BOTH: &[u8] = b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
    const PLAIN: &[u8] = b"SCRAM-SHA-256\0\0";
    let plus = Some(("SCRAM-SHA-256-PLUS", "p=tls-server-end-point"));
    for (wanted, end_point, offered, choice) in [
        (Prefer, Some(&b"hash"[..]), BOTH, plus),
        (Require, Some(b"hash"), BOTH, plus),
        (Disable, Some(b"hash"), BOTH, Some(("SCRAM-SHA-256", "n"))),
        (Prefer, Some(b"hash"), PLAIN, Some(("SCRAM-SHA-256", "y"))),
        (Prefer, None, BOTH, Some(("SCRAM-SHA-256", "n"))),
        (Require, Some(b"hash"), PLAIN, None),
        (Require, None, BOTH, None),
    ] {
        let got = chosen(wanted, end_point, offered).await;
        let got = got.as_ref().map(|(mechanism, binding)| (mechanism.as_str(), binding.as_str()));
        assert_eq!(got, choice, "{wanted:?}, {}", String::from_utf8_lossy(offered));
    }
}

#[tokio::test]
async fn a_way_to_log_in_that_cannot_be_gone_is_refused_with_a_reason() {
    let bound = StartUp { channel_binding: ChannelBinding::Require, ..start_up(true) };
    for (start_up, code, word) in [
        (start_up(false), 3, "password"),
        (start_up(true), 7, "GSSAPI"),
        (start_up(true), 9, "SSPI"),
        (bound.clone(), 10, "channel_binding"),
        (bound, 0, "channel_binding"),
    ] {
        let (session, _) = log_in(&start_up, async |mut server| {
            server.start_up().await;
            server.send(b'R', &request(code, b"SCRAM-SHA-256\0\0")).await;
            server
        })
        .await;
        let error = session.unwrap_err();
        assert_eq!(error.kind(), Kind::PostgresRefused);
        assert!(error.cause().contains(word) && error.what_to_do().is_some(), "{error}");
        assert!(!format!("{error:?}").contains(PASSWORD));
    }
}

#[tokio::test]
async fn a_hostile_server_ends_in_an_error_at_every_step() {
    let hostile: [&[u8]; 10] = [
        b"",
        b"N",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"R\0\0\0\x03",
        b"R\xff\xff\xff\xff",
        b"R\x7f\xff\xff\xff",
        b"R\0\0\0\x04",
        b"R\0\0\0\x0a\0\0\0\x05ab",
        b"S\0\0\0\x05a",
        b"E\0\0\0\x05M",
    ];
    for bytes in hostile {
        for greeting in [false, true] {
            let (session, _) = log_in(&start_up(true), async |mut server| {
                server.start_up().await;
                if greeting {
                    server.send(b'R', &request(0, b"")).await;
                }
                server.send_raw(bytes).await;
                let (_, nobody) = pipe();
                // The server hangs up.
                nobody
            })
            .await;
            assert!(session.is_err(), "{bytes:?} after greeting: {greeting}");
        }
    }
}

#[tokio::test]
async fn only_a_yes_begins_tls() {
    let act = While::Connecting("h:1/d as u");
    for (mode, byte, outcome) in [
        (SslMode::Require, b'S', Ok(true)),
        (SslMode::Prefer, b'S', Ok(true)),
        (SslMode::Prefer, b'N', Ok(false)),
        (SslMode::Require, b'N', Err(Kind::PostgresRefused)),
        (SslMode::VerifyFull, b'N', Err(Kind::PostgresRefused)),
        (SslMode::Require, b'E', Err(Kind::PostgresUnreachable)),
        (SslMode::Prefer, b'E', Err(Kind::PostgresUnreachable)),
        (SslMode::Prefer, b'H', Err(Kind::PostgresUnreachable)),
    ] {
        let (mut client, mut server) = pipe();
        server.send_raw(&[byte, b'x']).await;
        let answer = request_tls(&mut client).await.unwrap();
        assert_eq!(answered(act, mode, answer).map_err(|error| error.kind()), outcome);
        let mut asked = [0; 8];
        server.0.read_exact(&mut asked).await.unwrap();
        assert_eq!(asked, [0, 0, 0, 8, 4, 210, 22, 47]);
        // What follows the answer is left for the handshake to meet.
        assert_eq!(client.read_u8().await.unwrap(), b'x');
    }
}

#[tokio::test]
async fn rows_come_back_and_an_error_leaves_the_session_usable() {
    let (session, mut server) = log_in(&start_up(false), async |mut server| {
        server.let_in(&[]).await;
        server
    })
    .await;
    let mut session = session.unwrap();
    let play = async {
        assert_eq!(server.expect_query().await, "SELECT 1");
        server.send(b'N', &report("01000", "a notice")).await;
        server.send(b'T', b"\0\0").await;
        server.answer(&["1", ""]).await;
        server.expect_query().await;
        server.send(b'E', &report("42601", "syntax")).await;
        server.send(b'Z', b"I").await;
        server.expect_query().await;
        server.send(b'E', &report("57P01", "going down")).await;
        drop(server);
    };
    let ask = async {
        let rows = session.query(QUERYING, "SELECT 1").await.unwrap();
        assert_eq!(rows, [vec![Some(b"1".to_vec()), Some(vec![])]]);
        let error = session.query(QUERYING, "SELEC").await.unwrap_err();
        assert_eq!(error.kind(), Kind::PostgresUnfit);
        let error = session.query(QUERYING, "SELECT 2").await.unwrap_err();
        assert!(error.cause().contains("57P01"), "{error}");
    };
    tokio::join!(play, ask);
}

#[test]
fn a_row_that_is_cut_short_is_not_a_row() {
    assert_eq!(super::row(&row(&["a", "bc"])), Some(vec![Some(b"a".to_vec()), Some(b"bc".to_vec())]));
    assert_eq!(super::row(&[0, 1, 0xff, 0xff, 0xff, 0xff]), Some(vec![None]));
    for bad in
        [&b""[..], b"\0\x01", b"\0\x01\0\0\0\x02a", b"\0\x01\xff\xff\xff\xfe", b"\xff\xff", b"\0\x01\x7f\xff\xff\xff"]
    {
        assert_eq!(super::row(bad), None, "{bad:?}");
    }
}
