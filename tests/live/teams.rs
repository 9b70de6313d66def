//! docs/how-to/map-columns.md: the tables of `examples/`: written as their applications write them,
//! and what their consumers see, byte for byte.

mod billing_events;
mod email_outbox;
mod outbox_events;
mod outbox_published;
mod wallet_outbox;

use walrelay_core::position::Lsn;

use crate::support::relay::RelayCommand;
use crate::support::servers::{Kafka, Nats, Postgres};
use crate::support::sql::Sql;
use crate::support::topic::{self, Record};
use crate::support::world::{ARRIVAL, World};

/// Its value is another in every run.
const POSITION: &str = "walrelay-position";

/// One record, as a consumer sees it: headers in their order, without the position.
#[derive(Debug, PartialEq)]
struct Consumed {
    topic: String,
    key: Option<String>,
    headers: Vec<(String, Option<String>)>,
    body: Option<String>,
}

fn consumed(
    topic: &str,
    key: Option<&str>,
    headers: &[(&str, Option<&str>)],
    body: &str,
) -> Consumed {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)));
    Consumed {
        topic: topic.to_owned(),
        key: key.map(str::to_owned),
        headers: headers.collect(),
        body: Some(body.to_owned()),
    }
}

/// A database with a team's schema and nothing else of an outbox, and a team's configuration as it
/// stands.
struct Team {
    world: World,
    config: String,
    /// In place of Kafka.
    nats: Option<Nats>,
    topics: Vec<&'static str>,
    /// What earlier runs left in topics whose names do not change.
    before: Vec<Vec<Record>>,
}

impl Team {
    #[track_caller]
    fn new(schema: &str, config: &str, topics: &[&'static str]) -> Team {
        let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
        let team = Team {
            world,
            config: config.to_owned(),
            nats: None,
            topics: topics.to_vec(),
            before: Vec::new(),
        };
        team.prepare(schema);
        let before = topics.iter().map(|topic| team.read(topic)).collect();
        Team { before, ..team }
    }

    /// The same with NATS, where one stream has all topics.
    #[track_caller]
    #[cfg(feature = "nats")]
    fn on_nats(nats: Nats, schema: &str, config: &str, topics: &[&'static str]) -> Team {
        nats.add_stream("EVENTS", topics, serde_json::json!({}));
        let team = Team {
            world: World::bare(Postgres::shared(), "unused:9092"),
            config: config.replace("localhost:4222", &nats.address),
            nats: Some(nats),
            topics: topics.to_vec(),
            before: vec![Vec::new(); topics.len()],
        };
        team.prepare(schema);
        team
    }

    #[track_caller]
    fn prepare(&self, schema: &str) {
        let Team { world, config, .. } = self;
        RelayCommand::new("config")
            .flag("check")
            .flag("--offline")
            .config_file(config)
            .succeed();
        world.sql().run(&format!("drop table outbox; {schema}"));
        world.command("setup").config_file(config).succeed();
        // At the first start a status decides what is published; from then on the slot does.
        let mut relay = world.run().config_file(config).start();
        relay.wait_ready();
        world.wait_streaming();
        assert_eq!(relay.terminate(ARRIVAL), Some(0), "{}", relay.log());
    }

    fn read(&self, topic: &str) -> Vec<Record> {
        match &self.nats {
            Some(nats) => nats.records(topic),
            None => topic::read(&self.world.brokers, topic),
        }
    }

    fn sql(&self) -> Sql {
        self.world.sql()
    }

    /// Relays everything that was written, and gives all records in the order of their commits; of
    /// NATS, in that of the stream.
    #[track_caller]
    fn relayed(&self) -> Vec<Consumed> {
        let mut relay = self.world.run().config_file(&self.config).start();
        relay.wait_ready();
        self.world.wait_confirmed();

        let mut records: Vec<(Place, &str, Record)> = Vec::new();
        for (topic, before) in self.topics.iter().zip(&self.before) {
            let mut new = self.read(topic);
            new.retain(|record| !before.contains(record));
            let new = new.into_iter();
            records.extend(new.map(|record| (place(&record.header(POSITION)), *topic, record)));
        }
        match &self.nats {
            Some(_) => records.sort_by_key(|(_, _, record)| record.offset),
            None => records.sort_by_key(|(place, _, _)| *place),
        }
        for (number, (_, topic, record)) in records.iter().enumerate() {
            let same = |(_, other, next): &&(Place, &str, Record)| {
                other == topic && next.key == record.key
            };
            if let Some((_, _, next)) = records[number + 1..]
                .iter()
                .find(same)
                .filter(|_| record.key.is_some())
            {
                assert!(
                    next.partition == record.partition && next.offset > record.offset,
                    "{record:?} {next:?}"
                );
            }
        }
        records
            .into_iter()
            .map(|(_, topic, record)| shown(topic, &record))
            .collect()
    }
}

/// As NATS carries it: without key and empty headers, and the headers in any order.
#[cfg(feature = "nats")]
fn carried(mut consumed: Vec<Consumed>) -> Vec<Consumed> {
    for consumed in &mut consumed {
        consumed.key = None;
        consumed.headers.retain(|(_, value)| value.is_some());
        consumed.headers.sort();
    }
    consumed
}

/// Where a record's transaction ends, and which event of it the record is.
type Place = (Lsn, u64);

/// Of `SYSTEM_IDENTIFIER:TIMELINE:LSN:INDEX`.
fn place(position: &str) -> Place {
    let parts: Vec<&str> = position.split(':').collect();
    assert_eq!(parts.len(), 4, "{position:?}");
    (parts[2].parse().unwrap(), parts[3].parse().unwrap())
}

fn shown(topic: &str, record: &Record) -> Consumed {
    let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).unwrap();
    let headers = record.headers.iter().filter(|(name, _)| name != POSITION);
    Consumed {
        topic: topic.to_owned(),
        key: record.key.as_ref().map(text),
        headers: headers
            .map(|(name, value)| (name.clone(), value.as_ref().map(text)))
            .collect(),
        body: record.value.as_ref().map(text),
    }
}

/// Runs transactions one after the other; one with `false` is rolled back.
#[track_caller]
fn write(sql: &Sql, transactions: &[(&str, bool)]) {
    for (statements, keep) in transactions {
        sql.run(&format!(
            "begin; {statements}; {}",
            if *keep { "commit" } else { "rollback" }
        ));
    }
}
