//! P1, P2, P3: on RabbitMQ each event arrives, in the order of its key, whatever ends or stands
//! still; an event that cannot be delivered holds up no other key.

mod answers;
pub(super) mod client;
mod team;

use std::sync::Arc;
use std::time::Duration;

use walrelay_lab::verify::{Committed, Delivered, Findings, Topics, fingerprint, verify};

use self::client::{Client, Queue};
use crate::support::relay::{EXIT, Relay, RelayCommand};
use crate::support::servers::{Postgres, Rabbitmq};
use crate::support::wait::{eventually, grown, none_lost};
use crate::support::workload::Plan;
use crate::support::world::{ARRIVAL, World, committed};

/// RabbitMQ has no key of a record.
const KEY: &str = "[route.headers]\nkey = \"{aggregateid}\"\n";
const EXCHANGE: &str = "events";
const QUEUE: &str = "all";

/// A slot, and a virtual host of its name with one queue for all routing keys of an exchange.
struct Lab {
    world: World,
    client: Client,
    kind: Queue,
}

impl Lab {
    #[track_caller]
    fn new(rabbitmq: &Rabbitmq, kind: Queue) -> Lab {
        let mut lab = Lab::bare(rabbitmq, kind);
        lab.client.declare_exchange(EXCHANGE, false);
        lab.client.declare_queue(QUEUE, kind);
        lab.client.bind(QUEUE, EXCHANGE, "#");
        lab
    }

    /// The same with nothing in the virtual host.
    #[track_caller]
    fn bare(rabbitmq: &Rabbitmq, kind: Queue) -> Lab {
        let world = World::on(Postgres::shared(), "");
        rabbitmq.add_vhost(&world.name);
        let client = Client::new(&rabbitmq.address, &world.name);
        Lab {
            world,
            client,
            kind,
        }
    }

    fn run(&self, rabbitmq: &Rabbitmq) -> RelayCommand {
        self.with(rabbitmq, &format!("exchange = \"{EXCHANGE}\"\n"))
    }

    /// The relay with these lines in `[rabbitmq]`.
    fn with(&self, rabbitmq: &Rabbitmq, lines: &str) -> RelayCommand {
        let servers = format!("[rabbitmq]\nservers = \"{}\"\n", rabbitmq.address);
        let vhost = format!("vhost = \"{}\"\n", self.world.name);
        self.world
            .command("run")
            .option("--sink", "rabbitmq")
            .option("--log-format", "json")
            .config_file(&format!("{KEY}{servers}{vhost}{lines}"))
    }

    /// Reads the queue, and gives how many messages were read so far.
    fn take(&mut self) -> usize {
        self.client.read(QUEUE, self.kind)
    }

    /// The checker's findings for what was read so far.
    fn findings(&self) -> Findings {
        let rows = "select id::text, aggregateid, (payload->>'v')::bigint, payload::text, \
                    aggregatetype from outbox where payload ? 'v'";
        let rows = self.world.sql().rows(rows, &[]);
        let rows: Vec<Committed> = rows
            .iter()
            .map(|row| committed(&format!("outbox.event.{}", row.get::<_, &str>(4)), row))
            .collect();
        let mut found = Topics::default();
        for (offset, stored) in (0..).zip(&self.client.stored) {
            let topic: Arc<str> = stored.routing_key.as_str().into();
            found.partitions.insert(Arc::clone(&topic), 1);
            found.records.push(Delivered {
                topic,
                partition: 0,
                offset,
                id: Some(stored.header("id").into()),
                key: Some(stored.header("key").into()),
                payload: fingerprint(Some(&stored.payload)),
                arrived_at_us: 0,
            });
        }
        verify(&rows, &found).findings
    }

    #[track_caller]
    fn all_delivered(&mut self) -> Findings {
        let rows = self.world.committed();
        let take = || i64::try_from(self.take()).expect("a count");
        grown("as many messages as rows", rows, take);
        // With duplicates, as many messages as rows does not mean all rows.
        none_lost(|| {
            self.take();
            self.findings()
        })
    }
}

#[track_caller]
fn ready(command: &RelayCommand) -> Relay {
    let mut relay = command.start();
    relay.wait_ready();
    relay
}

#[track_caller]
fn logged(relay: &Relay, event: &str) -> String {
    let line = || {
        let log = relay.log();
        let of = format!("\"event\":\"{event}\"");
        log.lines()
            .find(|line| line.contains(&of))
            .map(str::to_owned)
    };
    eventually(event, ARRIVAL, line, Option::is_some).unwrap_or_default()
}

/// P1, P2: a server that stands still for longer than the relay waits for acks.
#[test]
fn a_frozen_server_is_noticed_and_loses_nothing() {
    let Some(mut rabbitmq) = Rabbitmq::start() else {
        return;
    };
    let mut lab = Lab::new(&rabbitmq, Queue::Classic);
    // Noticed by the missing ack, and by missing heartbeats.
    for noticed_by in ["ack_timeout", "heartbeat"] {
        let lines = format!("exchange = \"{EXCHANGE}\"\n{noticed_by} = \"1s\"\n");
        let mut relay = ready(&lab.with(&rabbitmq, &lines));
        let writers = lab.world.workload(&Plan::default());
        writers.wait_for(100);
        rabbitmq.signal("STOP");
        let line = logged(&relay, "bus_disconnected");
        assert!(line.contains("RabbitMQ does not answer"), "{line}");
        writers.wait_for(100);
        rabbitmq.signal("CONT");
        writers.wait_for(100);
        writers.stop();
        let found = lab.all_delivered();
        eprintln!(
            "by {noticed_by}: {} events, {} duplicates",
            lab.world.committed(),
            found.duplicates
        );
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}

/// P1, P2: connections closed again and again, with each kind of queue.
#[test]
fn closed_connections_lose_and_reorder_nothing_in_each_kind_of_queue() {
    let Some(rabbitmq) = Rabbitmq::shared() else {
        return;
    };
    for kind in [Queue::Classic, Queue::Quorum, Queue::Stream] {
        let mut lab = Lab::new(rabbitmq, kind);
        let mut relay = ready(&lab.run(rabbitmq));
        let writers = lab.world.workload(&Plan {
            aggregates: 100,
            pause: Duration::from_millis(100),
            ..Plan::default()
        });
        let vhost = lab.world.name.clone();
        for _ in 0..5 {
            writers.wait_for(50);
            rabbitmq.ctl(&["close_all_connections", "--vhost", &vhost, "tests"]);
        }
        writers.stop();
        let found = lab.all_delivered();
        eprintln!(
            "{kind:?}: {} events, 5 times closed, {} lost, {} out of order, {} duplicates",
            lab.world.committed(),
            found.lost.len(),
            found.out_of_order.len(),
            found.duplicates
        );
        let first = lab.client.stored.first().expect("a message");
        assert_eq!(first.properties.delivery_mode(), &Some(2));
        let id = first.properties.message_id().as_ref();
        assert_eq!(id.map(ToString::to_string), Some(first.header("id")));
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}
