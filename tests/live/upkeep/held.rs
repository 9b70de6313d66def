//! P3, P4: events that wait, as they are read from `walrelay.parked`: which are due, and no more at
//! once than memory is given for.

use walrelay_core::parked::Parking;
use walrelay_core::parked::{AggregateHead, Limit};

use super::{marker, runtime};
use crate::support::servers::Postgres;
use crate::support::sql::Sql;
use crate::support::world::World;

/// Values of an event of [`insert`], with its id.
const BYTES: usize = 1_000_000 + 1;

fn insert(sql: &Sql, key: &str, events: u32) {
    sql.run(&format!(
        "insert into walrelay.parked (slot, outbox, row_id, key, commit_lsn, index, via, \
         committed_at, names, types, texts, class)
         select 'orders', 'public.outbox', convert_to(n::text || coalesce({key}, ''), 'UTF8'), \
         convert_to({key}, 'UTF8'), '0/1', n, 'slot', now(),
             array['id', 'payload'], array[25, 25],
             array[convert_to((n % 10)::text, 'UTF8'), convert_to(repeat('x', 1000000), 'UTF8')], \
             'behind'
         from generate_series(1, {events}) n"
    ));
}

#[test]
fn reads_of_parked_events_are_bounded_by_bytes_and_return_at_least_one() {
    let world = World::bare(Postgres::shared(), "127.0.0.1:9");
    let sql = world.sql();
    let runtime = runtime();
    let connected = marker(&world.database_url, "[outbox]\n", Parking::On);
    let marker = runtime.block_on(connected).unwrap();
    insert(&sql, "'a'", 20);
    insert(&sql, "'b'", 3);
    insert(&sql, "null::text", 2);
    let due = |limit, except: &[i64]| runtime.block_on(marker.due(limit, except)).unwrap();
    let held = |head: &AggregateHead, events, bytes| -> Vec<u64> {
        let held = runtime
            .block_on(marker.held(head, Limit { events, bytes }))
            .unwrap();
        assert!(held.iter().all(|held| held.event.columns.len() == 2
            && held.event.key == head.key
            && !held.is_dropped));
        held.iter().map(|held| held.event.place.index).collect()
    };
    assert_eq!(due(10, &[]).len(), 4);
    // A session knows the key of an aggregate once it has read the first event.
    let keyed = |head: AggregateHead| {
        let read = runtime
            .block_on(marker.held(
                &head,
                Limit {
                    events: 200,
                    bytes: usize::MAX,
                },
            ))
            .unwrap();
        assert_eq!((read.len(), read[0].id), (1, head.id));
        AggregateHead {
            key: read[0].event.key.clone(),
            ..head
        }
    };
    let due = |limit, except: &[i64]| {
        due(limit, except)
            .into_iter()
            .map(keyed)
            .collect::<Vec<_>>()
    };
    let heads = due(10, &[]);
    let a = &heads[0];
    let b = &heads[1];
    let alone = &heads[2];
    assert_eq!(held(a, 200, 3 * BYTES), [1, 2, 3]);
    assert_eq!(held(a, 200, 4 * BYTES - 1), [1, 2, 3]);
    assert_eq!(held(a, 2, 4 * BYTES), [1, 2]);
    // Larger than what there is room for: that one, and no more.
    assert_eq!(held(a, 200, 10), [1]);
    assert_eq!(held(b, 200, usize::MAX), [1, 2, 3]);
    assert_eq!(held(alone, 200, usize::MAX), [1]);
    // From the middle on, and from behind the last.
    let behind = |id| AggregateHead { id, ..a.clone() };
    assert_eq!(held(&behind(a.id + 18), 200, usize::MAX), [19, 20]);
    assert_eq!(held(&behind(a.id + 20), 200, usize::MAX), Vec::<u64>::new());

    // Those that are left alone make room for others, and what is to be dropped is not tried.
    assert_eq!(due(2, &[a.id, b.id]), heads[2..]);
    sql.run(&format!(
        "update walrelay.parked set asked = 'drop' where id in ({}, {})",
        a.id,
        b.id + 1
    ));
    assert_eq!(due(10, &[]), heads[1..]);
    let read = runtime
        .block_on(marker.held(
            b,
            Limit {
                events: 200,
                bytes: usize::MAX,
            },
        ))
        .unwrap();
    assert_eq!(
        read.iter().map(|held| held.is_dropped).collect::<Vec<_>>(),
        [false, true, false]
    );
    let dropped = |except: &[i64]| runtime.block_on(marker.dropped(10, except)).unwrap().len();
    assert_eq!((dropped(&[]), dropped(&[a.id])), (2, 1));
}
