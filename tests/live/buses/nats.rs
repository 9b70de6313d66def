//! P1, P2, P3, P4, P5, P9, P12: NATS JetStream, as the scenarios of every bus use it.

use std::sync::Arc;

use serde_json::json;
use walrelay_lab::verify::{Delivered, Topics, fingerprint};

use super::{Fate, TestBus, TestLanes, TestServer, scenarios};
use crate::support::relay::RelayCommand;
use crate::support::servers::Nats;

/// A server with a stream for each topic.
struct Streams(Nats);

scenarios!(Streams);
scenarios!(Streams, away);
scenarios!(Streams, lanes);

/// The name of a stream has no dots.
fn stream(topic: &str) -> String {
    topic.replace('.', "-")
}

impl TestBus for Streams {
    const NAME: &str = "nats";
    const NO_PLACE: [&str; 2] = ["no stream takes it", "nats stream add NAME --subjects"];

    /// It starts in no time, so that each test has its own.
    fn start(_: Fate) -> Option<Streams> {
        Nats::start().map(Streams)
    }

    fn address(&self) -> &str {
        &self.0.address
    }

    fn lines(&self) -> String {
        self.lines_to(self.address())
    }

    fn make(&mut self, topic: &str) {
        self.0.add_stream(&stream(topic), &[topic], json!({}));
    }

    fn unmake(&mut self, topic: &str) {
        self.0
            .ask(&format!("STREAM.DELETE.{}", stream(topic)), &json!({}));
    }

    fn count(&mut self, topics: &[String]) -> i64 {
        let messages = |topic: &String| {
            let info = self.0.stream_info(&stream(topic));
            info["state"]["messages"].as_i64().unwrap_or_default()
        };
        topics.iter().map(messages).sum()
    }

    fn found(&mut self, topics: &[String]) -> Topics {
        let mut found = Topics::default();
        for name in topics {
            if self.0.stream_info(&stream(name))["state"].is_null() {
                continue;
            }
            let topic: Arc<str> = name.as_str().into();
            found.partitions.insert(Arc::clone(&topic), 1);
            let stored = self.0.read(&stream(name)).into_iter();
            found.records.extend(stored.map(|stored| Delivered {
                topic: Arc::clone(&topic),
                partition: 0,
                offset: stored.sequence,
                id: Some(stored.header("id").into()),
                key: Some(stored.header("key").into()),
                payload: fingerprint(Some(&stored.payload)),
                arrived_at_us: 0,
            }));
        }
        found
    }
}

impl TestLanes for Streams {
    fn lines_to(&self, address: &str) -> String {
        format!("[nats]\nservers = \"{address}\"\nack_timeout = \"2s\"\n")
    }
}

impl TestServer for Streams {
    fn kill_hard(&mut self) {
        self.0.kill_hard();
    }

    fn run(&mut self) {
        self.0.run();
    }

    fn freeze(&mut self) {
        self.0.signal("STOP");
    }

    fn thaw(&mut self) {
        self.0.signal("CONT");
    }

    fn patient(&self, run: RelayCommand) -> RelayCommand {
        run.variable("WALRELAY_NATS_ACK_TIMEOUT", "5m")
    }
}
