//! P1, P2, P3, P9, P12: webhooks, as the scenarios of every bus use them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use walrelay_lab::verify::{Delivered, Topics, fingerprint};

use super::{Fate, TestBus, TestLanes, scenarios};
use crate::live::webhook::{OK, Post, Receiver, Reply};

/// Larger than any event but those that no server takes.
const BODY_BYTES_MAX: usize = 1_000_000;

/// A receiver that takes requests for some topics.
struct Hook {
    receiver: Receiver,
    address: String,
    topics: Arc<Mutex<BTreeSet<String>>>,
}

scenarios!(Hook);
scenarios!(Hook, lanes);

fn topic(post: &Post) -> &str {
    post.path.trim_start_matches("/in/")
}

fn judged(post: &Post, topics: &BTreeSet<String>) -> Reply {
    if post.body.len() > BODY_BYTES_MAX {
        return Reply::Status(413, "");
    }
    if topics.contains(topic(post)) {
        OK
    } else {
        Reply::Status(404, "")
    }
}

impl Hook {
    fn topics(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.topics.lock().expect("the topics")
    }
}

impl TestLanes for Hook {
    fn lines_to(&self, address: &str) -> String {
        format!("[webhook]\nurl = \"http://{address}/in/{{topic}}\"\ntimeout = \"2s\"\n")
    }
}

impl TestBus for Hook {
    const NAME: &str = "webhook";
    const NO_PLACE: [&str; 2] = ["the receiver answers 404", "whether webhook.url is right"];

    fn start(_: Fate) -> Option<Hook> {
        let topics = Arc::new(Mutex::new(BTreeSet::new()));
        let taken = Arc::clone(&topics);
        let judge = move |post: &Post| judged(post, &taken.lock().expect("the topics"));
        let (receiver, port) = Receiver::listen(judge);
        Some(Hook {
            receiver,
            address: format!("127.0.0.1:{port}"),
            topics,
        })
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn lines(&self) -> String {
        self.lines_to(&self.address)
    }

    fn make(&mut self, topic: &str) {
        self.topics().insert(topic.to_owned());
    }

    fn unmake(&mut self, name: &str) {
        self.topics().remove(name);
        self.receiver
            .with(|state| state.kept.retain(|post| topic(post) != name));
    }

    fn count(&mut self, topics: &[String]) -> i64 {
        let is_of = |post: &&Post| topics.iter().any(|name| name == topic(post));
        let count = self
            .receiver
            .with(|state| state.kept.iter().filter(is_of).count());
        i64::try_from(count).expect("a count")
    }

    fn found(&mut self, topics: &[String]) -> Topics {
        let partitions = topics.iter().map(|topic| (topic.as_str().into(), 1));
        let kept = self.receiver.kept();
        let records = (0..).zip(&kept).map(|(offset, post)| Delivered {
            topic: topic(post).into(),
            partition: 0,
            offset,
            id: Some(post.id().into()),
            key: Some(post.headers["key"].as_str().into()),
            payload: fingerprint(Some(&post.body)),
            arrived_at_us: 0,
        });
        Topics {
            records: records.collect(),
            partitions: partitions.collect(),
            ..Topics::default()
        }
    }
}
