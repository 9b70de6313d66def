//! The server's side of a session, played by a test over a pipe.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

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
