use std::time::Instant;

use axum::http::HeaderMap;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// Of a collector at this listener.
fn config(listener: &TcpListener) -> OtelConfig {
    let endpoint = format!("http://{}/base", listener.local_addr().unwrap()).parse().unwrap();
    OtelConfig { endpoint, headers: HeaderMap::new(), attributes: [].into(), interval: Duration::from_millis(20) }
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

#[tokio::test]
async fn a_request_is_sent_again_unless_its_answer_is_final() {
    for (status, is_final) in [
        ("200 OK", None),
        ("429 Too Many Requests", Some(false)),
        ("503 Service Unavailable", Some(false)),
        ("404 Not Found", Some(true)),
        ("500 Internal Server Error", Some(true)),
    ] {
        let (listener, message) = (listener().await, ExportTraceServiceRequest::default());
        let client = Client::new(&config(&listener)).unwrap();
        let answer = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 1 << 12];
            let bytes = stream.read(&mut head).await.unwrap();
            assert!(head[..bytes].starts_with(b"POST /base/v1/traces "));
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let (sent, ()) = tokio::join!(client.post("/v1/traces", &message), answer);
        assert_eq!(sent.err().map(|failure| failure.is_final), is_final, "{status}");
    }
}

#[tokio::test]
async fn a_bounded_number_of_spans_waits_for_a_collector_that_is_away() {
    let config = config(&listener().await);
    let mut telemetry = Telemetry::new(Duration::from_secs(60));
    let _exporter = Exporter::start(&config, &"orders".parse().unwrap(), &mut telemetry).unwrap();
    let spans = telemetry.spans.clone().unwrap();
    for _ in 0..3 * QUEUE_SPANS {
        spans.push(Span::default());
        tokio::task::yield_now().await;
    }
    assert_eq!(telemetry.metrics.dropped_spans.get(), QUEUE_SPANS as u64, "a queue, and as many that wait");
}

#[tokio::test]
async fn the_end_waits_a_second_at_most_for_a_collector_that_does_not_answer() {
    let listener = listener().await;
    let mut telemetry = Telemetry::new(Duration::from_secs(60));
    let exporter = Exporter::start(&config(&listener), &"orders".parse().unwrap(), &mut telemetry).unwrap();
    telemetry.spans.as_ref().unwrap().push(Span::default());
    let began = Instant::now();
    exporter.finish().await;
    assert!(began.elapsed() < LAST_TIMEOUT + Duration::from_secs(1), "{:?}", began.elapsed());
}
