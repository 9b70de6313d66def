//! P1, P2, P3, P4, P5, P9, P12: Kafka, as the scenarios of every bus use it.

use std::collections::BTreeSet;

use walrelay_lab::verify::Topics;

use super::{Fate, Server, TestBus, TestServer, scenarios};
use crate::support::relay::RelayCommand;
use crate::support::servers::Kafka;
use crate::support::topic;

const PARTITIONS: i32 = 2;

struct Brokers {
    kafka: Server<Kafka>,
    /// Whoever asks for another one makes it.
    topics: BTreeSet<String>,
}

scenarios!(Brokers);
scenarios!(Brokers, away);

impl TestBus for Brokers {
    const NAME: &str = "kafka";
    const NO_PLACE: [&str; 2] = ["the topic does not exist", "--create --topic"];

    fn start(fate: Fate) -> Option<Brokers> {
        let kafka = match fate {
            Fate::Shared => Server::Shared(Kafka::shared()),
            Fate::Killed => Server::Own(Box::new(Kafka::private())),
            // It stays the leader of its partitions.
            Fate::Frozen => Server::Own(Box::new(Kafka::never_fenced())),
        };
        let topics = BTreeSet::new();
        Some(Brokers { kafka, topics })
    }

    fn address(&self) -> &str {
        self.kafka.brokers()
    }

    fn lines(&self) -> String {
        format!(
            "[kafka]\nbrokers = \"{}\"\n[kafka.properties]\n\"allow.auto.create.topics\" = \
             \"false\"\n\"topic.metadata.propagation.max.ms\" = \"1000\"\n",
            self.address()
        )
    }

    fn make(&mut self, topic: &str) {
        topic::create(self.address(), topic, PARTITIONS, &[]);
        self.topics.insert(topic.to_owned());
    }

    fn unmake(&mut self, topic: &str) {
        topic::delete(self.address(), topic);
        self.topics.remove(topic);
    }

    fn count(&mut self, topics: &[String]) -> i64 {
        let made = topics.iter().filter(|topic| self.topics.contains(*topic));
        made.map(|topic| topic::count(self.address(), topic)).sum()
    }

    fn found(&mut self, topics: &[String]) -> Topics {
        let mut found = Topics::default();
        for topic in topics.iter().filter(|topic| self.topics.contains(*topic)) {
            let (partitions, records) = topic::read_whole(self.address(), topic);
            let partitions = i32::try_from(partitions).expect("a count of partitions");
            found.partitions.insert(topic.as_str().into(), partitions);
            let records = topic::delivered(topic, records, |record| record.header("id"));
            found.records.extend(records);
        }
        found
    }
}

impl TestServer for Brokers {
    fn kill_hard(&mut self) {
        self.kafka.own().kill_hard();
    }

    fn run(&mut self) {
        self.kafka.own().start();
    }

    fn freeze(&mut self) {
        self.kafka.own().freeze();
    }

    fn thaw(&mut self) {
        self.kafka.own().thaw();
    }

    fn patient(&self, run: RelayCommand) -> RelayCommand {
        run
    }
}
