//! P1, P2, P3, P4, P5, P9, P12: RabbitMQ, as the scenarios of every bus use it.

use std::sync::Arc;

use walrelay_lab::verify::{Delivered, Topics, fingerprint};

use super::{Fate, Server, TestBus, TestLanes, TestServer, scenarios};
use crate::live::rabbitmq::client::{Client, Queue};
use crate::support::relay::RelayCommand;
use crate::support::servers::Rabbitmq;

/// A server with a queue for each topic, which the default exchange knows by its name.
struct Queues {
    server: Server<Rabbitmq>,
    kind: Queue,
    /// What it has read is in no queue any more.
    client: Client,
}

scenarios!(Queues);
scenarios!(Queues, away);
scenarios!(Queues, lanes);

impl TestBus for Queues {
    const NAME: &str = "rabbitmq";
    const NO_PLACE: [&str; 2] = ["no queue takes it", "bind a queue"];

    fn start(fate: Fate) -> Option<Queues> {
        let server = match fate {
            Fate::Shared => Server::Shared(Rabbitmq::shared()?),
            Fate::Killed | Fate::Frozen => Server::Own(Box::new(Rabbitmq::start()?)),
        };
        // RabbitMQ 3.10 may elect no leader of a quorum queue after a kill of its only server.
        let kind = match fate {
            Fate::Killed => Queue::Classic,
            Fate::Shared | Fate::Frozen => Queue::Quorum,
        };
        let client = Client::new(&server.address, "%2f");
        Some(Queues {
            server,
            kind,
            client,
        })
    }

    fn address(&self) -> &str {
        &self.server.address
    }

    fn lines(&self) -> String {
        match self.server {
            // Other tests keep it busy.
            Server::Shared(_) => lines(self.address(), "10s"),
            Server::Own(_) => self.lines_to(self.address()),
        }
    }

    fn make(&mut self, topic: &str) {
        self.client.declare_queue(topic, self.kind);
    }

    fn unmake(&mut self, topic: &str) {
        self.server.ctl(&["delete_queue", topic]);
        let stored = &mut self.client.stored;
        stored.retain(|stored| stored.routing_key != topic);
    }

    fn count(&mut self, topics: &[String]) -> i64 {
        for topic in topics {
            self.client.read(topic, self.kind);
        }
        let stored = self.client.stored.iter();
        let read = stored.filter(|stored| topics.contains(&stored.routing_key));
        i64::try_from(read.count()).expect("a count")
    }

    fn found(&mut self, topics: &[String]) -> Topics {
        let mut found = Topics::default();
        for topic in topics {
            self.client.read(topic, self.kind);
            found.partitions.insert(topic.as_str().into(), 1);
        }
        let stored = (0..).zip(&self.client.stored);
        found
            .records
            .extend(stored.map(|(offset, stored)| Delivered {
                topic: Arc::from(stored.routing_key.as_str()),
                partition: 0,
                offset,
                id: Some(stored.header("id").into()),
                key: Some(stored.header("key").into()),
                payload: fingerprint(Some(&stored.payload)),
                arrived_at_us: 0,
            }));
        found
    }
}

impl TestLanes for Queues {
    fn lines_to(&self, address: &str) -> String {
        lines(address, "2s")
    }
}

fn lines(address: &str, wait: &str) -> String {
    format!(
        "[rabbitmq]\nservers = \"{address}\"\nack_timeout = \"{wait}\"\nheartbeat = \"{wait}\"\n"
    )
}

impl TestServer for Queues {
    fn kill_hard(&mut self) {
        self.server.own().kill_hard();
    }

    fn run(&mut self) {
        self.server.own().run();
    }

    fn freeze(&mut self) {
        self.server.own().signal("STOP");
    }

    fn thaw(&mut self) {
        self.server.own().signal("CONT");
    }

    fn patient(&self, run: RelayCommand) -> RelayCommand {
        run.variable("WALRELAY_RABBITMQ_ACK_TIMEOUT", "5m")
            .variable("WALRELAY_RABBITMQ_HEARTBEAT", "5m")
    }
}
