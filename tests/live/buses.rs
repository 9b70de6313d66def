//! P1, P2, P3, P4, P5, P9, P12: the promises that every bus keeps, each by one scenario for all.

mod kafka;
mod memory;
#[cfg(feature = "nats")]
mod nats;
mod network;
mod order;
mod outages;
mod parked;
mod poison;
mod polled;
mod pressure;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
mod stand_by;
mod topics;
#[cfg(feature = "webhook")]
mod webhook;

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_postgres::Row;
use walrelay_lab::verify::{Committed, Findings, Topics, verify};

use crate::support::relay::{Relay, RelayCommand};
use crate::support::servers::{Postgres, log_tails};
use crate::support::sql::Sql;
use crate::support::wait::{Stopped, eventually, grown, none_lost};
use crate::support::world::{ARRIVAL, World, committed};

/// The scenarios. Each is a test of each bus; some need a server that can be away, or an
/// answer to each record.
macro_rules! scenarios {
    ($bus:ty) => {
        crate::live::buses::scenarios! { $bus:
            order::a_relay_killed_and_frozen_loses_and_reorders_nothing,
            poison::a_record_that_no_server_takes_stops_the_relay_or_is_skipped,
            poison::a_record_that_no_server_takes_is_parked_with_its_key_alone,
            polled::a_poller_killed_under_load_publishes_each_row_in_order,
            polled::a_slot_dropped_under_load_loses_and_duplicates_nothing,
            stand_by::a_relay_killed_or_frozen_during_a_take_over_reorders_nothing,
            topics::a_topic_without_a_place_waits_until_there_is_one,
            topics::events_of_a_topic_without_a_place_are_parked_and_delivered_in_order,
        }
    };
    ($bus:ty, away) => {
        crate::live::buses::scenarios! { $bus:
            memory::large_events_for_a_frozen_server_stay_within_the_memory_limit,
            memory::small_events_for_a_frozen_server_stay_within_the_memory_limit,
            outages::a_server_killed_absent_and_frozen_loses_and_reorders_nothing,
            pressure::a_backlog_for_a_server_that_is_away_closes_intake_and_is_bounded,
        }
    };
    ($bus:ty, lanes) => {
        crate::live::buses::scenarios! { $bus:
            network::a_network_that_breaks_or_is_silent_loses_and_reorders_nothing,
            parked::a_locked_row_delays_its_key_alone_and_its_event_is_sent_once,
            parked::parked_keys_of_a_poller_keep_their_order_across_kills,
            parked::parked_keys_of_a_slot_keep_their_order_across_kills,
        }
    };
    ($bus:ty: $($scenario:ident::$test:ident,)*) => {
        $(
            #[test]
            fn $test() {
                crate::live::buses::$scenario::$test::<$bus>();
            }
        )*
    };
}
use scenarios;

/// Of every relay here: its position is in Postgres, and a header has the key, since not every bus
/// has one.
const LINES: &str = "[route.headers]\nkey = \"{aggregateid}\"\n[state]\nstore = \"postgres\"\n";

/// What a test does to its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Nothing: other tests use it, too.
    Shared,
    Killed,
    Frozen,
}

/// A real server, as the scenarios use it.
trait TestBus: Sized {
    /// The value of `sink.kind`.
    const NAME: &str;
    /// What the log has of a topic without a place: the cause, and the remedy.
    const NO_PLACE: [&str; 2];

    /// None where the machine has no such server.
    fn start(fate: Fate) -> Option<Self>;

    /// Host and port, by which its log is known.
    fn address(&self) -> &str;

    /// The lines of a configuration file that lead to it.
    fn lines(&self) -> String;

    /// Makes the place for the records of a topic.
    fn make(&mut self, topic: &str);

    /// Removes the place, and the records in it.
    fn unmake(&mut self, topic: &str);

    /// The number of records of these topics that a consumer has.
    fn count(&mut self, topics: &[String]) -> i64;

    /// What a consumer has of these topics.
    fn found(&mut self, topics: &[String]) -> Topics;
}

/// One that can be away.
trait TestServer: TestBus {
    fn kill_hard(&mut self);

    /// Starts it with its files and port, and waits until it answers.
    fn run(&mut self);

    /// Connections stay open without answers.
    fn freeze(&mut self);

    fn thaw(&mut self);

    /// The relay gives up no connection for an answer that does not come.
    fn patient(&self, run: RelayCommand) -> RelayCommand;
}

/// One that answers for each record, at the configured address alone: a proxy can be there.
trait TestLanes: TestBus {
    /// The lines of a configuration file that lead to this address.
    fn lines_to(&self, address: &str) -> String;
}

/// The server that all tests use, or one of the test's own.
enum Server<T: 'static> {
    Shared(&'static T),
    Own(Box<T>),
}

impl<T> Server<T> {
    fn own(&mut self) -> &mut T {
        match self {
            Server::Own(server) => server,
            Server::Shared(_) => panic!("other tests use the server, too"),
        }
    }
}

impl<T> Deref for Server<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Server::Shared(server) => server,
            Server::Own(server) => server,
        }
    }
}

/// A slot, and a bus with a place for each topic.
struct Lab<B: TestBus> {
    bus: B,
    world: World,
}

impl<B: TestBus> Lab<B> {
    #[track_caller]
    fn new(fate: Fate) -> Option<Lab<B>> {
        Lab::of(World::on(Postgres::shared(), ""), fate)
    }

    /// The same with a table that has the transaction and the order of its rows.
    #[track_caller]
    fn keeping(fate: Fate) -> Option<Lab<B>> {
        let world = World::keeping_on(Postgres::shared(), "");
        world.setup();
        Lab::of(world, fate)
    }

    #[track_caller]
    fn of(world: World, fate: Fate) -> Option<Lab<B>> {
        let bus = B::start(fate)?;
        let mut lab = Lab { bus, world };
        for topic in lab.topics() {
            lab.bus.make(&topic);
        }
        Some(lab)
    }

    fn topics(&self) -> Vec<String> {
        (0..3).map(|kind| self.world.topic(kind)).collect()
    }

    /// `run` with these lines in its configuration file.
    fn run(&self, lines: &str) -> RelayCommand {
        self.run_with(&self.bus.lines(), lines)
    }

    /// The same with these lines that lead to the bus.
    fn run_with(&self, bus: &str, lines: &str) -> RelayCommand {
        let toml = format!("{LINES}{bus}{lines}");
        self.world
            .command("run")
            .option("--sink", B::NAME)
            .option("--log-format", "json")
            .config_file(&toml)
    }

    fn count(&mut self) -> i64 {
        let topics = self.topics();
        self.bus.count(&topics)
    }

    /// Waits until a consumer has so many records more.
    #[track_caller]
    fn wait_more(&mut self, more: i64) {
        let goal = self.count() + more;
        grown("more arrives", goal, || self.count());
    }

    /// The checker's findings for the present state. A row without a version is not expected.
    fn findings(&mut self) -> Findings {
        let rows = "select id::text, aggregateid, (payload->>'v')::bigint, payload::text, \
                    aggregatetype from outbox where payload ? 'v'";
        let row = |row: &Row| committed(&format!("outbox.event.{}", row.get::<_, &str>(4)), row);
        let rows: Vec<Committed> = self.world.sql().rows(rows, &[]).iter().map(row).collect();
        let topics = self.topics();
        verify(&rows, &self.bus.found(&topics)).findings
    }

    /// Waits until every row with a version has arrived, and gives the findings, which are sound.
    #[track_caller]
    fn all_delivered(&mut self) -> Findings {
        let expected = "select count(*) from outbox where payload ? 'v'";
        let expected = self.world.sql().number(expected);
        let count = || self.count();
        grown("as many records as rows", expected, count);
        // With duplicates, as many records as rows does not mean all rows.
        none_lost(|| self.findings())
    }

    /// P1: a consumer has every event that the slot would not send again. No relay runs.
    #[track_caller]
    fn assert_confirmed_is_delivered(&mut self) {
        let walsender = || self.world.walsender();
        eventually("nobody streams", ARRIVAL, walsender, |pid| *pid == 0);
        // An insert of pgoutput begins with its kind, and has the first column's text at byte 14.
        let confirmed = format!(
            "select id::text from outbox where payload ? 'v'
             except select convert_from(substr(data, 14, 36), 'utf8')
             from pg_logical_slot_peek_binary_changes('{0}', null, null, 'proto_version', '1',
                 'publication_names', 'walrelay_{0}') where get_byte(data, 0) = ascii('I')",
            self.world.name
        );
        let confirmed = self.world.sql().rows(&confirmed, &[]);
        let topics = self.topics();
        // A busy server may have records that it did not give to a consumer yet.
        let missing = || {
            let records = self.bus.found(&topics).records;
            let had: BTreeSet<&str> = records.iter().filter_map(|one| one.id.as_deref()).collect();
            let confirmed = confirmed.iter().map(|row| row.get::<_, String>(0));
            let missing = confirmed.filter(|id| !had.contains(&**id));
            missing.collect::<Vec<_>>()
        };
        eventually("what is confirmed is delivered", ARRIVAL, missing, |ids| {
            ids.is_empty()
        });
    }

    /// Runs this. P1: the slot's LSN meanwhile never passes the stored position.
    fn while_stored_is_ahead<T>(&mut self, run: impl FnOnce(&mut Lab<B>) -> T) -> T {
        let url = self.world.database_url.clone();
        let name = self.world.name.clone();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stopped = Stopped(&stop);
            scope.spawn(|| {
                let sql = Sql::connect(&url);
                while !stop.load(Ordering::Relaxed) {
                    assert_stored_is_ahead(&sql, &name);
                }
            });
            run(self)
        })
    }

    #[track_caller]
    fn wait_parked(&self, expected: i64) {
        let parked = || self.world.number_parked();
        eventually("so many are parked", ARRIVAL, parked, |count| {
            *count == expected
        });
    }
}

#[track_caller]
fn assert_stored_is_ahead(sql: &Sql, name: &str) {
    // In this order: what is stored only grows.
    let confirmed = sql.number(&format!(
        "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where slot_name = \
         '{name}'"
    ));
    let stored = sql.rows(
        &format!(
            "select ((value->'position'->>'end_lsn')::pg_lsn - '0/0')::bigint from \
             walrelay.position where \
             key = '{name}'"
        ),
        &[],
    );
    for row in stored {
        let stored: i64 = row.get(0);
        assert!(
            confirmed <= stored,
            "{confirmed} is confirmed, {stored} stored"
        );
    }
}

impl<B: TestBus> Drop for Lab<B> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = log_tails(self.bus.address(), 30);
            eprintln!("--- the log of {} ---\n{log}\n---", B::NAME);
        }
    }
}

#[track_caller]
fn ready(command: &RelayCommand) -> Relay {
    let mut relay = command.start();
    relay.wait_ready();
    relay
}
