//! P13: what an application does to rows that were read and are not marked yet, and to others of
//! their id.

use super::{EXIT, MARK, Orders, TABLE};
use crate::support::wait::eventually;
use crate::support::world::ARRIVAL;

/// What an application does to the second row of order `a`, whose key is 2.
const NOTED: &str = "update nu set note = 'seen' where seq = 2";
/// The row gets another key, and an event of another order the key it had: both may come again.
const MOVED: &str =
    "update nu set seq = 102 where seq = 2; EMIT b; update nu set seq = 2 where order_id = 'b'";
/// The same with an event of the same order, and so of the same id.
const MOVED_IN_ORDER: &str = "update nu set seq = 102 where seq = 2; EMIT a; update nu set seq = 2
    where order_id = 'a' and body->>'v' = '4'";

fn change(orders: &Orders, change: &str) -> String {
    ["a", "b"].iter().fold(change.to_owned(), |sql, order| {
        sql.replace(&format!("EMIT {order}"), &orders.emitting(order, 1))
    })
}

#[test]
fn a_row_changed_during_its_mark_is_marked_or_published_again() {
    for mode in ["slot", "poll"] {
        for (changed, copies) in [(NOTED, 0), (MOVED, 2), (MOVED_IN_ORDER, 2)] {
            let orders = Orders::in_mode(mode, TABLE, MARK);
            orders.emit("a", 3);
            let application = orders.sql();
            application.run(&format!("begin; {}", change(&orders, changed)));
            let mut relay = orders.run(mode).start();
            orders.marker_waits();
            application.run("commit");
            // The fourth of an order comes before the second comes again.
            assert!(
                orders.settled(&mut relay).duplicates <= copies,
                "{mode}: {changed}: {}",
                relay.log()
            );
            assert_eq!(orders.count("status = 'Y'"), orders.written());
            assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
        }
    }
}

#[test]
fn a_row_changed_between_ack_and_mark_is_marked_or_published_again() {
    for (changed, copies) in [(NOTED, 0), (MOVED, 2)] {
        let orders = Orders::with_slot(TABLE, MARK);
        orders.emit("a", 1);
        let holder = orders.sql();
        holder.run("begin; select from nu where seq = 1 for update");
        let mut relay = orders.run("slot").start();
        orders.marker_waits();
        // What marks is busy with the first: these are acked, and their turn comes once that is let
        // go.
        orders.emit("a", 2);
        eventually(
            "they are acked",
            ARRIVAL,
            || orders.world.delivered(),
            |records| *records == 3,
        );
        orders.sql().run(&change(&orders, changed));
        holder.run("commit");
        assert!(
            orders.settled(&mut relay).duplicates <= copies,
            "{changed}: {}",
            relay.log()
        );
        assert_eq!(orders.count("status = 'Y'"), orders.written());
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}

#[test]
fn rows_that_become_pending_during_a_mark_of_their_id_stop_no_relay() {
    for mode in ["slot", "poll"] {
        let orders = Orders::in_mode(mode, TABLE, MARK);
        orders.emit("a", 3);
        let mut relay = orders.relay(mode);
        orders.settled(&mut relay);
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
        orders.emit("a", 2);
        let holder = orders.sql();
        holder.run("begin; select from nu where seq = 4 for update");
        let mut relay = orders.run(mode).start();
        orders.marker_waits();
        // Some that are new, and some that somebody wants published again.
        orders.emit("a", 2);
        orders.sql().run("update nu set status = 'N' where seq < 4");
        holder.run("commit");
        assert_eq!(
            orders.settled(&mut relay).duplicates,
            3,
            "{mode}: {}",
            relay.log()
        );
        assert_eq!(orders.count("status = 'Y'"), 7);
        assert!(!relay.log().contains("outbox.mark"), "{}", relay.log());
        assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    }
}
