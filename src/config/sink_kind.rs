//! The buses: one row each of the table at the end. `sink` has the code of each in a folder of its
//! own.

use serde::{Deserialize, Serialize};
use strum::{EnumMessage, IntoStaticStr, VariantArray};
use walrelay_core::config::outbox::TopicRule;
use walrelay_core::error::Remedy;

/// What a bus can do beside taking records in order.
#[derive(Debug, Clone, Copy)]
pub struct Capabilities {
    /// Records and the position behind them can be committed together.
    pub transactions: bool,
    /// The newest records of a topic can be read back: they show what an earlier process published.
    pub reads_back: bool,
    /// The bus can keep the position.
    pub keeps_position: bool,
    /// Dead letters can be told from events, and are refused for other reasons than these.
    pub dead_letters: bool,
    /// A record can be given its partition.
    pub partitions: bool,
    /// Records reach somebody else: an event that is acked is delivered.
    pub delivers: bool,
}

/// How texts name a bus.
#[derive(Debug, Clone, Copy)]
pub struct Bus {
    /// The name.
    pub name: &'static str,
    /// The key of the configuration with its address.
    pub address: &'static str,
    /// An address for a file to begin with; empty where it takes more than that to begin.
    pub example: &'static str,
    /// The key of the configuration with what records go to there, and an example; none where the
    /// topic alone tells it.
    pub endpoint: Option<Endpoint>,
    /// The remedy where nobody answers there.
    pub reach: &'static str,
    /// The remedy where it answers and acks nothing.
    pub stalled: &'static str,
    /// It may refuse one record, which then holds up the position while others are acked.
    pub refuses_each: bool,
    /// What creates a topic, `{topic}`, that records may go to.
    pub create_topic: &'static str,
    /// The names of topics that it takes.
    pub topics: TopicRule,
}

/// See [`Bus::endpoint`].
#[derive(Debug, Clone, Copy)]
pub struct Endpoint {
    /// The key.
    pub key: &'static str,
    /// A value for a file to begin with.
    pub example: &'static str,
    /// What the value is.
    pub what: &'static str,
}

impl Bus {
    /// The warning about a dead-letter topic that does not exist.
    pub(crate) fn no_dead_letters(&self, topic: &str) -> String {
        let name = self.name;
        let warning = format!(
            "dead-letter topic {topic} does not exist, or this {name} user may not see it: unless \
             {name} creates the topic, all events wait behind the first dead letter; create it: {}",
            self.create_topic.replace("{topic}", topic)
        );
        Remedy::from(warning).to_string()
    }
}

impl Default for Bus {
    fn default() -> Bus {
        SinkKind::default().bus()
    }
}

macro_rules! kinds {
    ($($([$feature:literal])? $(#[$doc:meta])* $kind:ident = $bus:expr, $capabilities:expr;)+) => {
        /// The bus that records go to.
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, EnumMessage,
            IntoStaticStr, VariantArray,
        )]
        #[serde(rename_all = "kebab-case")]
        #[strum(serialize_all = "kebab-case")]
        pub enum SinkKind {
            $($(#[cfg(feature = $feature)])? $(#[$doc])* $kind,)+
        }

        impl SinkKind {
            /// What the bus can do.
            pub const fn capabilities(self) -> Capabilities {
                match self {
                    $($(#[cfg(feature = $feature)])? SinkKind::$kind => $capabilities,)+
                }
            }

            /// How texts name the bus.
            pub const fn bus(self) -> Bus {
                match self {
                    $($(#[cfg(feature = $feature)])? SinkKind::$kind => $bus,)+
                }
            }
        }
    };
}

/// Of a sink of this process.
const LOCAL: Capabilities = Capabilities {
    transactions: false,
    reads_back: false,
    keeps_position: false,
    dead_letters: true,
    partitions: true,
    delivers: false,
};

/// Of a bus with lanes.
#[cfg(any(
    feature = "nats",
    feature = "rabbitmq",
    feature = "smtp",
    feature = "webhook"
))]
const LANES: Capabilities = Capabilities {
    dead_letters: false,
    partitions: false,
    delivers: true,
    ..LOCAL
};

/// AMQP allows more. Names that are for servers and clients are refused where records are checked.
#[cfg(feature = "rabbitmq")]
const ROUTING_KEYS: TopicRule = TopicRule {
    bytes_max: 255,
    punctuation: "._-:/",
    refused: &[],
};

const fn local(name: &'static str) -> Bus {
    Bus {
        name,
        address: "sink.kind",
        example: name,
        endpoint: None,
        reach: "start the relay again",
        stalled: "see who reads the output",
        refuses_each: false,
        create_topic: "",
        topics: TopicRule::DEFAULT,
    }
}

kinds! {
    /// To Kafka
    #[default]
    Kafka = Bus {
        name: "Kafka",
        address: "kafka.brokers",
        example: "localhost:9092",
        endpoint: None,
        reach: "check that the brokers run, that `brokers` and their advertised.listeners lead \
                there from here, and that security.protocol is what they speak",
        stalled: "see the logs and the disks of the brokers, and whether each partition has a \
                  leader: kafka-topics --bootstrap-server … --describe --unavailable-partitions",
        refuses_each: false,
        create_topic: "kafka-topics --bootstrap-server … --create --topic {topic}, and grant Write \
                     and Describe on it",
        topics: TopicRule::DEFAULT,
    }, Capabilities {
        transactions: true,
        reads_back: true,
        keeps_position: true,
        dead_letters: true,
        partitions: true,
        delivers: true,
    };
    ["nats"]
    /// To NATS JetStream
    Nats = Bus {
        name: "NATS",
        address: "nats.servers",
        example: "localhost:4222",
        endpoint: None,
        reach: "check that the servers run, and that nats.servers leads there from here",
        stalled: "see whether each stream has a leader and room: nats stream report",
        refuses_each: true,
        create_topic: "nats stream add NAME --subjects {topic}",
        topics: TopicRule::DEFAULT,
    }, LANES;
    ["rabbitmq"]
    /// To RabbitMQ
    Rabbitmq = Bus {
        name: "RabbitMQ",
        address: "rabbitmq.servers",
        example: "localhost:5672",
        endpoint: Some(Endpoint {
            key: "rabbitmq.exchange",
            example: "events",
            what: "the exchange that queues are bound to; without it the topic is a queue's name",
        }),
        reach: "check that the servers run, and that rabbitmq.servers leads there from here",
        stalled: "see whether the servers have memory and disk: rabbitmq-diagnostics \
                  check_local_alarms; and whether each queue has a leader and room: rabbitmqctl \
                  list_queues name state messages",
        refuses_each: true,
        create_topic: "bind a queue to the exchange with the routing key {topic}, or without \
                       rabbitmq.exchange declare a queue of this name",
        topics: ROUTING_KEYS,
    }, LANES;
    ["smtp"]
    /// To a mail server, a mail for each record
    Smtp = Bus {
        name: "the mail server",
        address: "smtp.host",
        example: "",
        endpoint: None,
        reach: "check that the mail server runs, and that smtp.host and smtp.port lead to it from \
                here",
        stalled: "see the mail server's log: it answers slowly, or takes no mail",
        refuses_each: true,
        create_topic: "topics mean nothing to a mail server: {topic} needs no place",
        topics: TopicRule::DEFAULT,
    }, LANES;
    ["webhook"]
    /// To one URL, a request for each record
    Webhook = Bus {
        name: "the receiver",
        address: "webhook.url",
        example: "http://localhost:8080/{topic}",
        endpoint: None,
        reach: "check that the receiver runs, and that webhook.url leads to it from here",
        stalled: "see the receiver's log: it answers slowly, or not with 2xx",
        refuses_each: true,
        create_topic: "let the receiver take requests for {topic}",
        topics: TopicRule::DEFAULT,
    }, LANES;
    /// To standard output, one JSON object per record
    Stdout = local("standard output"), LOCAL;
    /// Nowhere
    Null = local("nowhere"), LOCAL;
}
