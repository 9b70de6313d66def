//! Clients of librdkafka that read and administer topics.

use rdkafka::admin::AdminClient;
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaResult;

/// A reader of committed records, which hears of each at once. It belongs to no group: assign its
/// partitions.
pub fn consumer(brokers: &str) -> KafkaResult<BaseConsumer> {
    let mut config = quiet(brokers);
    config
        .set("group.id", "walrelay-lab")
        .set("enable.auto.commit", "false");
    config
        .set("enable.partition.eof", "true")
        .set("allow.auto.create.topics", "false");
    // librdkafka's default, which differs from that of other clients.
    config.set("isolation.level", "read_committed");
    // Finds a restarted broker immediately.
    config.set("reconnect.backoff.max.ms", "200");
    // librdkafka's mock broker tells of a new record only when the wait of a fetch is over.
    config
        .set("fetch.wait.max.ms", "10")
        .set("fetch.error.backoff.ms", "20");
    config.create()
}

/// A client that creates, changes and deletes topics.
pub fn admin(brokers: &str) -> KafkaResult<AdminClient<DefaultClientContext>> {
    quiet(brokers).create()
}

/// Drops a client in a thread of its own: librdkafka's threads sometimes do not end, and nobody is
/// to wait for them.
pub fn close(client: impl Send + 'static) {
    std::thread::spawn(move || drop(client));
}

fn quiet(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("log_level", "0");
    config
}
