//! The servers everybody shares, and the seats contestants take at them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::contestant::Contestant;
use crate::load::PUBLICATION;
use crate::support::guardian::run_directory;
use crate::support::servers::{Cluster, Kafka, Postgres};
use crate::support::sql::Sql;
use crate::support::topic;
use crate::support::wait::eventually;

/// The database of the benches.
pub(crate) const DATABASE: &str = "bench";
/// Kind of every event, and so the end of its topic's name; with a number where there are several.
pub(crate) const KIND: &str = "order";

/// How many topics there are, and partitions of each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) topics: u64,
    pub(crate) partitions: i32,
}

pub(crate) const ONE_TOPIC: Layout = Layout {
    topics: 1,
    partitions: 8,
};

impl Layout {
    /// Partitions of all topics.
    pub(crate) fn all_partitions(self) -> u64 {
        self.topics * u64::from(self.partitions.unsigned_abs())
    }

    /// The ends of the topics' names.
    fn kinds(self) -> Vec<String> {
        if self.topics == 1 {
            return vec![KIND.to_owned()];
        }
        (0..self.topics)
            .map(|topic| format!("{KIND}-{topic}"))
            .collect()
    }
}

/// As a server comes, apart from room for a long backlog. Commits wait for the disk.
const POSTGRES: [(&str, &str); 6] = [
    ("fsync", "on"),
    ("max_wal_size", "32GB"),
    ("shared_buffers", "256MB"),
    ("checkpoint_timeout", "1h"),
    ("track_commit_timestamp", "on"),
    ("max_replication_slots", "60"),
];
/// As a broker comes, where the tests have it smaller; it is not given up while it is busy.
const KAFKA: &str = "num.network.threads=3\nnum.io.threads=8\n";
const SESSION_MS: u32 = 60_000;
/// Topics of one request.
const AT_ONCE: usize = 100;

/// None, a broker, or three with all topics on each.
enum Brokers {
    None,
    One(Kafka),
    Three(Cluster),
}

/// Postgres and Kafka for one bench. Both end with the value.
pub(crate) struct Lab {
    pub(crate) postgres: Postgres,
    kafka: Brokers,
    pub(crate) sql: Sql,
}

impl Lab {
    pub(crate) fn start(replicated: bool) -> Lab {
        let kafka = if replicated {
            Brokers::Three(Cluster::start())
        } else {
            Brokers::One(Kafka::configured(SESSION_MS, &[], KAFKA))
        };
        Lab::with(kafka)
    }

    /// For another bus.
    pub(crate) fn without_kafka() -> Lab {
        Lab::with(Brokers::None)
    }

    fn with(kafka: Brokers) -> Lab {
        let postgres = Postgres::private(15, &POSTGRES);
        postgres.sql().run(&format!("create database {DATABASE}"));
        let sql = Sql::connect(&postgres.url(DATABASE));
        Lab {
            postgres,
            kafka,
            sql,
        }
    }

    pub(crate) fn brokers(&self) -> &str {
        match &self.kafka {
            Brokers::None => "",
            Brokers::One(kafka) => kafka.brokers(),
            Brokers::Three(cluster) => cluster.brokers(),
        }
    }

    fn has_kafka(&self) -> bool {
        !matches!(self.kafka, Brokers::None)
    }

    /// A seat at a copy of the slot `template`, or at a slot of its own that begins now.
    pub(crate) fn seat(&self, template: Option<&str>) -> Seat {
        self.seat_at(template, ONE_TOPIC)
    }

    /// The same with these topics.
    pub(crate) fn seat_at(&self, template: Option<&str>, layout: Layout) -> Seat {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let slot = format!("bench_{number}");
        match template {
            Some(template) => self.sql.run(&format!(
                "select pg_copy_logical_replication_slot('{template}', '{slot}')"
            )),
            None => self.sql.run(&format!(
                "select pg_create_logical_replication_slot('{slot}', 'pgoutput')"
            )),
        }
        let prefix = format!("bench{number}.");
        let kinds = layout.kinds();
        let topics: Vec<String> = kinds.iter().map(|kind| format!("{prefix}{kind}")).collect();
        if self.has_kafka() {
            for some in topics.chunks(AT_ONCE) {
                topic::create_all(self.brokers(), &names(some), layout.partitions, &[]);
            }
        }
        let directory = run_directory().join(&slot);
        std::fs::create_dir(&directory).expect("a directory for a contestant");
        Seat {
            slot,
            prefix,
            topics,
            directory,
            publication: PUBLICATION.to_owned(),
            tables: vec!["public.outbox".to_owned()],
        }
    }

    /// Drops the slot once nobody reads it any more, and the topics.
    pub(crate) fn clear(&self, seat: &Seat) {
        let drop = format!("select pg_drop_replication_slot('{}')", seat.slot);
        eventually(
            "the slot can be dropped",
            Duration::from_secs(60),
            || self.sql.try_run(&drop).is_ok(),
            |done| *done,
        );
        if self.has_kafka() {
            for some in seat.topics.chunks(AT_ONCE) {
                topic::delete_all(self.brokers(), &names(some));
            }
        }
    }

    /// The process that sends the slot's changes, while somebody reads them.
    pub(crate) fn walsender(&self, seat: &Seat) -> Option<u32> {
        let pid = format!(
            "select active_pid from pg_replication_slots where slot_name = '{}'",
            seat.slot
        );
        self.sql.text(&pid).parse().ok()
    }
}

fn names(topics: &[String]) -> Vec<&str> {
    topics.iter().map(String::as_str).collect()
}

/// What a contestant is given: a slot, topics, a directory.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    pub(crate) slot: String,
    /// Of topics; the rest is the kind of event.
    pub(crate) prefix: String,
    pub(crate) topics: Vec<String>,
    pub(crate) directory: PathBuf,
    pub(crate) publication: String,
    pub(crate) tables: Vec<String>,
}

/// Says who is at it.
pub(crate) fn announce(contestant: Contestant, load: &str, round: u32) {
    eprintln!("  round {round}: {} at {load} ...", contestant.name());
}
