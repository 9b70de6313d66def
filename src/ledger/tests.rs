//! The ledger against a naive model that remembers everything.

use proptest::prelude::*;

use super::*;

const ROOMY: Limits = Limits { events: 1_000, bytes: 1 << 20, each: 0 };

fn lsn(value: u64) -> Lsn {
    Lsn::new(value)
}

/// A ledger at 100 with one committed transaction of `events` events: 200 to 210.
fn one_transaction(events: usize) -> Ledger<()> {
    let mut ledger = Ledger::new(Position::at(lsn(100)), ROOMY);
    ledger.begin(lsn(200)).unwrap();
    for _ in 0..events {
        ledger.enqueued(10, 0, ()).unwrap();
    }
    ledger.commit(lsn(200), lsn(210)).unwrap();
    ledger
}

#[test]
fn a_transaction_is_not_delivered_before_its_commit_is_seen() {
    let mut ledger = Ledger::new(Position::at(lsn(100)), ROOMY);
    ledger.begin(lsn(200)).unwrap();
    ledger.enqueued(1, 0, ()).unwrap();
    ledger.acked(Ticket(0)).unwrap();
    let partial = Partial { commit_lsn: lsn(200), index: 1 };
    assert_eq!(ledger.delivered(), Position { end_lsn: lsn(100), partial: Some(partial) });
    ledger.commit(lsn(200), lsn(210)).unwrap();
    assert_eq!(ledger.delivered(), Position::at(lsn(210)));
}

#[test]
fn a_keepalive_inside_a_transaction_moves_nothing() {
    let mut ledger = Ledger::new(Position::at(lsn(100)), ROOMY);
    ledger.begin(lsn(200)).unwrap();
    ledger.keepalive(lsn(999));
    assert_eq!(ledger.delivered(), Position::at(lsn(100)));
    assert_eq!(ledger.received(), Position::at(lsn(100)));
    ledger.enqueued(1, 0, ()).unwrap();
    ledger.acked(Ticket(0)).unwrap();
    ledger.commit(lsn(200), lsn(210)).unwrap();
    assert_eq!(ledger.delivered(), Position::at(lsn(210)));
}

#[test]
fn keepalives_by_the_thousand_take_no_memory() {
    let mut ledger = one_transaction(1);
    for wal_end in 1_000..9_000 {
        ledger.keepalive(lsn(wal_end));
    }
    assert_eq!(ledger.spans.len(), 1);
}

#[test]
fn transactions_without_events_take_no_memory_while_one_event_waits() {
    let mut ledger = one_transaction(1);
    for commit in 0..10_000 {
        let commit_lsn = lsn(1_000 + commit * 10);
        ledger.begin(commit_lsn).unwrap();
        ledger.commit(commit_lsn, lsn(1_005 + commit * 10)).unwrap();
    }
    assert!(ledger.spans.len() <= 2, "{} spans", ledger.spans.len());
    assert_eq!(ledger.delivered(), Position::at(lsn(100)));
    ledger.acked(Ticket(0)).unwrap();
    assert_eq!(ledger.delivered(), Position::at(lsn(1_005 + 9_999 * 10)));
}

#[test]
fn a_lost_connection_goes_on_inside_the_transaction() {
    let mut ledger = Ledger::new(Position::at(lsn(100)), ROOMY);
    ledger.begin(lsn(200)).unwrap();
    ledger.enqueued(1, 0, ()).unwrap();
    ledger.enqueued(1, 0, ()).unwrap();
    let received = ledger.received();
    assert_eq!(received.end_lsn, lsn(100));
    assert_eq!(received.delivered_of(lsn(200)), 2);
    ledger.begin(lsn(200)).unwrap();
    ledger.enqueued(1, 0, ()).unwrap();
    ledger.commit(lsn(200), lsn(210)).unwrap();
    for ticket in 0..3 {
        ledger.acked(Ticket(ticket)).unwrap();
    }
    assert_eq!(ledger.delivered(), Position::at(lsn(210)));
}

#[test]
fn a_restart_inside_a_transaction_counts_what_was_delivered_before() {
    let partial = Partial { commit_lsn: lsn(200), index: 5 };
    let mut ledger = Ledger::new(Position { end_lsn: lsn(100), partial: Some(partial) }, ROOMY);
    ledger.begin(lsn(200)).unwrap();
    ledger.enqueued(1, 0, ()).unwrap();
    assert_eq!(ledger.whereabouts(Ticket(0)), Some(InTransaction { commit_lsn: lsn(200), index: 5 }));
    assert_eq!(ledger.received().delivered_of(lsn(200)), 6);
    assert_eq!(ledger.delivered().delivered_of(lsn(200)), 5);
    ledger.acked(Ticket(0)).unwrap();
    assert_eq!(ledger.delivered().delivered_of(lsn(200)), 6);
}

#[test]
fn a_keepalive_before_the_rest_of_a_transaction_does_not_forget_its_beginning() {
    let partial = Partial { commit_lsn: lsn(200), index: 5 };
    let mut ledger = Ledger::new(Position { end_lsn: lsn(100), partial: Some(partial) }, ROOMY);
    ledger.keepalive(lsn(150));
    assert_eq!(ledger.delivered(), Position { end_lsn: lsn(150), partial: Some(partial) });
    ledger.begin(lsn(200)).unwrap();
    ledger.enqueued(1, 0, ()).unwrap();
    ledger.acked(Ticket(0)).unwrap();
    assert_eq!(ledger.delivered().delivered_of(lsn(200)), 6);
    ledger.commit(lsn(200), lsn(210)).unwrap();
    assert_eq!(ledger.delivered(), Position::at(lsn(210)));
}

#[test]
fn the_oldest_commit_time_is_that_of_the_oldest_event_in_flight() {
    let mut ledger = Ledger::new(Position::at(lsn(100)), ROOMY);
    for (commit, at_us) in [(200, 7), (300, 9)] {
        ledger.begin(lsn(commit)).unwrap();
        ledger.enqueued(1, at_us, ()).unwrap();
        ledger.commit(lsn(commit), lsn(commit + 10)).unwrap();
    }
    assert_eq!(ledger.oldest_commit_us(), Some(7));
    ledger.acked(Ticket(0)).unwrap();
    assert_eq!(ledger.oldest_commit_us(), Some(9));
    ledger.acked(Ticket(1)).unwrap();
    assert_eq!(ledger.oldest_commit_us(), None);
    assert_eq!(ledger.take_finished().collect::<Vec<_>>(), [7, 9]);
}

#[test]
fn what_does_not_fit_is_an_error() {
    let mut ledger = one_transaction(1);
    assert!(matches!(ledger.begin(lsn(205)), Err(LedgerError::Backwards { .. })));
    assert!(matches!(ledger.enqueued(1, 0, ()), Err(LedgerError::Outside { .. })));
    assert!(matches!(ledger.commit(lsn(200), lsn(210)), Err(LedgerError::Outside { .. })));
    assert!(matches!(ledger.acked(Ticket(1)), Err(LedgerError::UnknownTicket(_))));
    ledger.begin(lsn(210)).unwrap();
    assert!(matches!(ledger.begin(lsn(300)), Err(LedgerError::Nested { .. })));
    assert!(matches!(ledger.commit(lsn(211), lsn(220)), Err(LedgerError::WrongCommit { .. })));
    assert!(matches!(ledger.commit(lsn(210), lsn(210)), Err(LedgerError::WrongCommit { .. })));
    ledger.acked(Ticket(0)).unwrap();
    assert!(matches!(ledger.acked(Ticket(0)), Err(LedgerError::UnknownTicket(_))));
}

#[test]
fn room_is_bounded_in_events_and_in_bytes() {
    let mut ledger = Ledger::new(Position::default(), Limits { events: 2, bytes: 100, each: 0 });
    ledger.begin(lsn(1)).unwrap();
    ledger.enqueued(10, 0, ()).unwrap();
    assert!(ledger.has_room());
    ledger.enqueued(10, 0, ()).unwrap();
    assert!(!ledger.has_room());
    ledger.acked(Ticket(0)).unwrap();
    assert!(ledger.has_room());
    ledger.enqueued(200, 0, ()).unwrap();
    ledger.acked(Ticket(1)).unwrap();
    assert!(!ledger.has_room());
}

#[test]
fn small_events_count_what_they_cost_beside_their_bytes() {
    let mut ledger = Ledger::new(Position::default(), Limits { events: 1_000, bytes: 1_000, each: 300 });
    ledger.begin(lsn(1)).unwrap();
    for _ in 0..3 {
        assert!(ledger.has_room());
        ledger.enqueued(50, 0, ()).unwrap();
    }
    assert!(!ledger.has_room());
    assert_eq!(ledger.in_flight_bytes(), 3 * 350);
    ledger.acked(Ticket(0)).unwrap();
    assert!(ledger.has_room());
}

/// What may happen to the model: a transaction of so many events, a keepalive, an ack of any event in flight.
#[derive(Debug, Clone)]
enum Act {
    Transaction(usize),
    Keepalive,
    Ack(prop::sample::Index),
    Reconnect,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (0usize..5).prop_map(Act::Transaction),
        1 => Just(Act::Keepalive),
        6 => any::<prop::sample::Index>().prop_map(Act::Ack),
        1 => Just(Act::Reconnect),
    ];
    prop::collection::vec(act, 1..200)
}

/// Everything that ever came in: the events (acked or not) of each stretch, and where it ends.
#[derive(Default)]
struct Model {
    stretches: Vec<(Vec<bool>, Lsn)>,
}

impl Model {
    fn delivered(&self, start: Lsn) -> Lsn {
        let whole = self.stretches.iter().take_while(|(acked, _)| acked.iter().all(|&acked| acked));
        whole.last().map_or(start, |&(_, end)| end)
    }
}

proptest! {
    #[test]
    fn the_delivered_position_is_the_end_of_the_acked_prefix(acts in acts()) {
        let start = lsn(100);
        let mut ledger = Ledger::new(Position::at(start), ROOMY);
        let mut model = Model::default();
        let mut unacked: Vec<(Ticket, usize, usize)> = Vec::new();
        let mut wal = 100;
        let mut before = ledger.delivered();
        for act in acts {
            wal += 10;
            match act {
                Act::Transaction(events) => {
                    ledger.begin(lsn(wal)).unwrap();
                    for event in 0..events {
                        unacked.push((ledger.next(), model.stretches.len(), event));
                        ledger.enqueued(1, 0, ()).unwrap();
                    }
                    ledger.commit(lsn(wal), lsn(wal + 5)).unwrap();
                    model.stretches.push((vec![false; events], lsn(wal + 5)));
                }
                Act::Keepalive => {
                    ledger.keepalive(lsn(wal));
                    model.stretches.push((Vec::new(), lsn(wal)));
                }
                Act::Ack(which) if !unacked.is_empty() => {
                    let (ticket, stretch, event) = unacked.swap_remove(which.index(unacked.len()));
                    ledger.acked(ticket).unwrap();
                    model.stretches[stretch].0[event] = true;
                }
                Act::Ack(_) => {}
                Act::Reconnect => prop_assert!(ledger.received().is_at_or_after(&ledger.delivered())),
            }
            prop_assert_eq!(ledger.delivered().end_lsn, model.delivered(start));
            prop_assert!(ledger.delivered().is_at_or_after(&before), "the position went back");
            prop_assert_eq!(ledger.in_flight_bytes(), unacked.len());
            before = ledger.delivered();
        }
    }
}
