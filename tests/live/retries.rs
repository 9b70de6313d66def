//! P3, P13: what five teams have said of retries, on their own tables with the configurations of
//! `examples/`: how often an event is tried that the bus refuses, after which waits, what their
//! columns say meanwhile and in the end, and that their own statement brings it back. Only the
//! waits are shorter here.

mod billing_events;
mod email_outbox;
mod outbox_events;
mod outbox_published;
mod wallet_outbox;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::parked::{self, NO_TOPICS};
use crate::support::relay::{EXIT, Relay, RelayCommand};
use crate::support::servers::{Kafka, Nats, Postgres};
use crate::support::sql::Sql;
use crate::support::topic::{self, Record};
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// More than a record may have by default.
const LARGE: usize = 2_000_000;

/// A team's table, whose every update is seen.
struct Team {
    world: World,
    /// In place of Kafka.
    nats: Option<Nats>,
    config: String,
    table: &'static str,
}

/// One update of a row.
struct Update {
    at_ms: f64,
    row: Value,
}

impl Team {
    /// With publication and slot; `topics` of the configuration become topics of this test's own.
    #[track_caller]
    fn new(table: &'static str, schema: &str, config: &str, topics: &[&str]) -> Team {
        let world = World::bare(Postgres::shared(), Kafka::shared().brokers());
        Team::on(world, None, table, schema, config, topics)
    }

    /// The same with NATS.
    #[track_caller]
    #[cfg(feature = "nats")]
    fn on_nats(
        nats: Nats,
        table: &'static str,
        schema: &str,
        config: &str,
        topics: &[&str],
    ) -> Team {
        let world = World::bare(Postgres::shared(), "unused:9092");
        let config = config.replace("localhost:4222", &nats.address);
        Team::on(world, Some(nats), table, schema, &config, topics)
    }

    #[track_caller]
    fn on(
        world: World,
        nats: Option<Nats>,
        table: &'static str,
        schema: &str,
        config: &str,
        topics: &[&str],
    ) -> Team {
        world.sql().run(&format!(
            "drop table outbox; {schema};
             create table seen (number bigint generated always as identity, at timestamptz, row \
             jsonb);
             create function see() returns trigger language plpgsql as $$
             begin
                 insert into public.seen (at, row) values (clock_timestamp(), to_jsonb(new));
                 return new;
             end $$;
             create trigger see after update on {table} for each row execute function public.see()"
        ));
        let config = format!("{config}\n{NO_TOPICS}");
        let own = |config: String, topic: &&str| {
            config.replace(*topic, &format!("{}.{topic}", world.name))
        };
        let config = topics.iter().fold(config, own);
        world.command("setup").config_file(&config).succeed();
        Team {
            world,
            nats,
            config,
            table,
        }
    }

    fn sql(&self) -> Sql {
        self.world.sql()
    }

    fn run(&self) -> RelayCommand {
        self.world
            .run()
            .config_file(&self.config)
            .variable("WALRELAY_DELIVERY_RETRY_JITTER_PERCENT", "0")
    }

    /// A relay whose first wait is this long, and none longer than 2 s.
    #[track_caller]
    fn relay(&self, base: &str) -> Relay {
        let run = self.run().variable("WALRELAY_DELIVERY_RETRY_BASE", base);
        let mut relay = run.variable("WALRELAY_DELIVERY_RETRY_CAP", "2s").start();
        relay.wait_ready();
        relay
    }

    #[track_caller]
    fn create(&self, topic: &str) {
        match &self.nats {
            Some(nats) => nats.add_stream(&topic.replace('.', "_"), &[topic], json!({})),
            None => topic::create(&self.world.brokers, topic, 1, &[]),
        }
    }

    fn records(&self, topic: &str) -> Vec<Record> {
        match &self.nats {
            Some(nats) => nats.records(topic),
            None => topic::read(&self.world.brokers, topic),
        }
    }

    /// How many events are in the topic: a producer that ended may have left copies.
    fn events(&self, topic: &str) -> usize {
        let id = |record: &Record| ["id", "event_id"].map(|name| record.header(name));
        self.records(topic)
            .iter()
            .map(id)
            .collect::<BTreeSet<_>>()
            .len()
    }

    /// One of the commands on what waits.
    fn parked(&self, command: &str) -> RelayCommand {
        parked::command(&self.world, command).flag("--yes")
    }

    /// What rows say for which `condition` holds, in one text each.
    #[track_caller]
    fn says(&self, what: &str, condition: &str) -> String {
        self.sql().text(&format!(
            "select coalesce(string_agg(({what})::text, '; '), '') from {} where {condition}",
            self.table
        ))
    }

    /// Waits until they say that.
    #[track_caller]
    fn wait(&self, what: &str, condition: &str, expected: &str) {
        eventually(
            &format!("{what} of {condition}"),
            ARRIVAL,
            || self.says(what, condition),
            |says| says == expected,
        );
    }

    /// Updates of the row with this id, in their order.
    fn updates(&self, id: &str) -> Vec<Update> {
        let rows = self.sql().rows(
            "select (extract(epoch from at) * 1000)::float8, row::text from seen where row->>'id' \
             = $1 order by number",
            &[&id],
        );
        let update = |row: &tokio_postgres::Row| Update {
            at_ms: row.get(0),
            row: serde_json::from_str(row.get(1)).unwrap(),
        };
        rows.iter().map(update).collect()
    }
}

/// Milliseconds since 1970 of a time as JSON of Postgres has it.
#[track_caller]
fn ms(time: &Value) -> f64 {
    let time: jiff::Timestamp = time
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("{time}"));
    time.as_microsecond() as f64 / 1000.0
}

/// Each attempt was noted with when the next is due, after a wait of so many milliseconds, and none
/// was made before that; `next` is where an update says so. Behind the last wait nothing follows by
/// itself.
#[track_caller]
fn assert_waits(updates: &[Update], next: impl Fn(&Value) -> &Value, waits_ms: &[f64]) {
    // The first attempt is not made before there is a row, and each other one not before it is due.
    let mut begun_ms = ms(&updates[0].row["created_at"]);
    for (number, wait_ms) in waits_ms.iter().enumerate() {
        let due_ms = ms(next(&updates[number].row));
        // An attempt ends before it is noted, however long that takes.
        let longest_ms = due_ms - begun_ms;
        let shortest_ms = due_ms - updates[number].at_ms;
        assert!(
            longest_ms >= wait_ms - 1.0,
            "attempt {}: a wait of at most {longest_ms} ms",
            number + 1
        );
        assert!(
            shortest_ms <= wait_ms + 1.0,
            "attempt {}: a wait of at least {shortest_ms} ms",
            number + 1
        );
        begun_ms = due_ms;
        let Some(after) = updates.get(number + 1) else {
            continue;
        };
        assert!(
            after.at_ms >= due_ms,
            "attempt {}: {} ms too early",
            number + 2,
            due_ms - after.at_ms
        );
    }
}

/// What the log says in lines with this message: each with when it was.
fn told(relay: &Relay, message: &str) -> Vec<(f64, Value)> {
    let log = relay.log();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines = lines.filter(|line| line["message"] == message);
    lines.map(|line| (ms(&line["timestamp"]), line)).collect()
}

/// The log has each attempt with the wait behind it, and there was such a wait.
#[track_caller]
fn assert_told(told: &[(f64, Value)], attempts: &str, waits_ms: &[Option<u64>]) {
    let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
    let seen: Vec<_> = told
        .iter()
        .map(|(_, fields)| number(&fields["wait_ms"]))
        .collect();
    assert_eq!(seen, waits_ms, "{told:?}");
    for (one, next) in told.iter().zip(&told[1..]) {
        assert_eq!(
            number(&next.1[attempts]),
            number(&one.1[attempts]).map(|count| count + 1),
            "{told:?}"
        );
        let wait_ms = number(&one.1["wait_ms"]).unwrap_or_default() as f64;
        assert!(next.0 - one.0 >= wait_ms - 1.0, "{told:?}");
    }
}
