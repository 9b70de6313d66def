//! P4, P3: statements on `walrelay.parked` read rows in proportion to the events, without
//! statistics, and values of any size can be parked.

use std::sync::Arc;

use walrelay::upkeep::Marker;
use walrelay_core::event::{Place, RowId, Via};
use walrelay_core::parked::{AggregateHead, Limit, ParkedColumn, ParkedEvent, ParkedRow};
use walrelay_core::parked::{Batch, Failure, Parking};
use walrelay_core::position::Lsn;
use walrelay_core::template::ColumnType;

use super::{database, marker, runtime};
use crate::support::sql::Sql;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// Events of one transaction, as a relay writes them.
const TOGETHER: usize = 200;
const OUTBOX: &str = "create table outbox (id text primary key, aggregatetype text, aggregateid \
                      text, type text, payload text)";

/// A session of walrelay's, and what drives it.
struct Session {
    marker: Marker,
    runtime: tokio::runtime::Runtime,
}

impl Session {
    fn of(world: &World) -> Session {
        let runtime = runtime();
        let connected = marker(&world.database_url, "[outbox]\n", Parking::On);
        Session {
            marker: runtime.block_on(connected).unwrap(),
            runtime,
        }
    }

    fn settle(&self, batch: &Batch) {
        self.runtime.block_on(self.marker.settle(batch)).unwrap();
    }

    fn park(&self, events: Vec<ParkedEvent>) {
        self.settle(&Batch {
            parked: events.into_iter().map(Arc::new).collect(),
            ..Batch::default()
        });
    }

    fn due(&self, limit: i64) -> Vec<AggregateHead> {
        self.runtime.block_on(self.marker.due(limit, &[])).unwrap()
    }

    /// The first events of an aggregate.
    fn held(&self, head: &AggregateHead) -> Vec<ParkedRow> {
        let limit = Limit {
            events: TOGETHER as i64,
            bytes: usize::MAX,
        };
        let held = |head: &AggregateHead| {
            self.runtime
                .block_on(self.marker.held(head, limit))
                .unwrap()
        };
        let key = held(head).pop().and_then(|first| first.event.key);
        held(&AggregateHead {
            key,
            ..head.clone()
        })
    }
}

/// An event whose topic refuses it, so that it is retried at once; behind another where `why` is
/// taken from it.
fn event(number: usize, id: &str, key: &str) -> ParkedEvent {
    ParkedEvent {
        row: RowId::new(0, std::iter::once(id.as_bytes())),
        key: Some(key.as_bytes().to_vec()),
        topic: Some("t".to_owned()),
        place: Place {
            commit_lsn: Lsn::new(1),
            index: number as u64,
            via: Via::Slot,
        },
        committed_at_us: 0,
        columns: vec![column("id", id), column("payload", "{}")],
        why: Some(Failure {
            class: "refused",
            cause: "no".to_owned(),
            attempts: 1,
        }),
        retry_in_ms: Some(0),
    }
}

fn column(name: &str, text: &str) -> ParkedColumn {
    let type_of = ColumnType {
        oid: 25,
        modifier: -1,
    };
    ParkedColumn {
        name: name.to_owned(),
        type_of,
        text: Some(text.as_bytes().to_vec()),
    }
}

/// The rows that all sessions of walrelay's have read, once they are gone.
fn rows_read(sql: &Sql) -> i64 {
    let read = sql.statistic(
        "select (select sum(idx_tup_read) from pg_stat_user_indexes where relname = 'parked') + \
         seq_tup_read
         from pg_stat_user_tables where relname = 'parked'",
    );
    assert!(read > 0, "nothing is counted");
    read
}

/// So many events of as many aggregates, and as many behind the first of them, are parked,
/// delivered and dropped. Returns the rows that this reads.
fn parked_and_gone(events: usize) -> i64 {
    let world = database(OUTBOX);
    let sql = world.sql();
    drop(Session::of(&world));
    // A plan that is made now finds an empty table.
    sql.run("alter table walrelay.parked set (autovacuum_enabled = off)");
    sql.run("vacuum walrelay.parked");
    let session = Session::of(&world);
    let heads: Vec<_> = (0..events)
        .map(|number| event(number, &format!("h{number}"), &format!("k{number}")))
        .collect();
    let behind = |number| ParkedEvent {
        why: None,
        retry_in_ms: None,
        ..event(number, &format!("b{number}"), "k0")
    };
    let behind: Vec<_> = (events..2 * events).map(behind).collect();
    for events in heads.chunks(TOGETHER).chain(behind.chunks(TOGETHER)) {
        session.park(events.to_vec());
    }
    let mut left = 2 * events;
    while left > events {
        let due = session.due(TOGETHER as i64);
        assert!(!due.is_empty(), "{left} are left");
        let unparked: Vec<i64> = due
            .iter()
            .flat_map(|head| session.held(head))
            .map(|held| held.id)
            .collect();
        left -= unparked.len();
        session.settle(&Batch {
            unparked,
            ..Batch::default()
        });
    }
    drop(session);
    sql.run("update walrelay.parked set asked = 'drop'");
    let before = rows_read(&sql);
    let session = Session::of(&world);
    while left > 0 {
        let dropped = session
            .runtime
            .block_on(session.marker.dropped(TOGETHER as i64, &[]))
            .unwrap();
        left -= dropped.len();
        session.settle(&Batch {
            unparked: dropped.iter().map(|(id, ..)| *id).collect(),
            ..Batch::default()
        });
    }
    drop(session);
    eventually(
        "they are counted",
        ARRIVAL,
        || rows_read(&sql),
        |read| *read >= before + events as i64,
    )
}

#[test]
fn statements_on_parked_events_read_rows_in_proportion_without_statistics() {
    const FEW: usize = 400;
    let few = parked_and_gone(FEW);
    let many = parked_and_gone(4 * FEW);
    // Where each statement reads all events, it is sixteen times as much.
    assert!(
        many < 6 * few,
        "{few} rows are read for {FEW} events, and {many} for four times as many"
    );
}

/// Text that does not compress.
fn noise(bytes: usize) -> String {
    let mut chance = fastrand::Rng::with_seed(bytes as u64);
    (0..bytes).map(|_| chance.alphanumeric()).collect()
}

#[test]
fn values_of_any_size_can_be_parked_and_identify_their_events() {
    let world = database(OUTBOX);
    let sql = world.sql();
    let session = Session::of(&world);
    let mut number = 0;
    for bytes in [1, 2_700, 3_200, 33_000, 3_000_000] {
        let text = noise(bytes);
        let large: [fn(&mut ParkedEvent, &str); 5] = [
            |event, text| event.row = RowId::new(0, std::iter::once(text.as_bytes())),
            |event, text| event.key = Some(text.as_bytes().to_vec()),
            |event, text| event.topic = Some(text.to_owned()),
            |event, text| event.columns = vec![column("payload", text), column(text, "x")],
            |event, text| {
                event
                    .why
                    .iter_mut()
                    .for_each(|why| why.cause = text.to_owned())
            },
        ];
        for change in large {
            number += 1;
            let mut parked = event(number, &format!("{number} \\ \" {{"), &format!("k{number}"));
            change(&mut parked, &text);
            // The same event, and the one behind it.
            let behind = ParkedEvent {
                why: None,
                retry_in_ms: None,
                place: Place {
                    index: 1_000_000,
                    ..parked.place
                },
                ..parked.clone()
            };
            let other = ParkedEvent {
                row: RowId::new(0, std::iter::once(&b"other"[..])),
                ..behind.clone()
            };
            session.park(vec![
                parked.clone(),
                parked.clone(),
                behind.clone(),
                other.clone(),
            ]);
            session.park(vec![parked.clone(), behind.clone()]);
            let [head] = &session.due(10)[..] else {
                panic!("one is due")
            };
            let held = session.held(head);
            let read: Vec<_> = held
                .iter()
                .map(|held| (&held.event.row, &held.event.key, &held.event.columns))
                .collect();
            let expected = [&parked, &behind, &other];
            assert_eq!(
                read,
                expected.map(|event| (&event.row, &event.key, &event.columns)),
                "{bytes} bytes"
            );
            // The next one is due when the first is gone.
            session.settle(&Batch {
                unparked: vec![head.id],
                ..Batch::default()
            });
            assert_eq!(
                session
                    .due(10)
                    .iter()
                    .map(|head| head.id)
                    .collect::<Vec<_>>(),
                [held[1].id]
            );
            session.settle(&Batch {
                unparked: vec![held[1].id, held[2].id],
                ..Batch::default()
            });
            assert_eq!(sql.number("select count(*) from walrelay.parked"), 0);
        }
        // Rows of the table have no place: their keys identify them.
        let of_table = |id: &str| {
            let place = Place {
                via: Via::Table,
                ..event(1, id, "k").place
            };
            ParkedEvent {
                place,
                ..event(1, id, "k")
            }
        };
        session.park(vec![
            of_table(&text),
            of_table(&text),
            of_table(&format!("{text}\\")),
        ]);
        assert_eq!(sql.number("select count(*) from walrelay.parked"), 2);
        sql.run("delete from walrelay.parked");
    }
}
