//! Events that wait, and those behind them. No I/O.

use std::collections::{HashMap, HashSet};

use crate::error::{Error, Kind};
use crate::upkeep::RowId;
use crate::upkeep::parked::Waiting;

/// Events that may wait: what an operator can look through, and some 20 MB of memory.
const EVENTS_MAX: usize = 100_000;
/// How many more may where that many wait at the start: what was asked meanwhile is done first, and takes a moment.
const AT_START: usize = 10_000;

/// Which events wait in the table of parked events, by their ids and by their aggregates.
#[derive(Debug, Clone, Default)]
pub(super) struct Parking {
    rows: HashSet<RowId>,
    /// By outbox and key: how many wait.
    aggregates: HashMap<usize, HashMap<Vec<u8>, usize>>,
    /// Topics that refused an event which waits.
    refusing: HashSet<String>,
    /// How many more may wait.
    beyond: usize,
}

impl Parking {
    /// Whether any event waits.
    pub(super) fn is_any(&self) -> bool {
        !self.rows.is_empty()
    }

    /// How many wait.
    pub(super) fn count(&self) -> usize {
        self.rows.len()
    }

    /// Whether this event waits.
    pub(super) fn holds(&self, row: &RowId) -> bool {
        self.rows.contains(row)
    }

    /// Whether events of this key have to wait.
    pub(super) fn is_blocked(&self, outbox: usize, key: Option<&[u8]>) -> bool {
        let of_outbox = key.and_then(|key| Some((self.aggregates.get(&outbox)?, key)));
        of_outbox.is_some_and(|(aggregates, key)| aggregates.contains_key(key))
    }

    /// Whether events for this topic have to wait.
    pub(super) fn is_refusing(&self, topic: &str) -> bool {
        !self.refusing.is_empty() && self.refusing.contains(topic)
    }

    /// This event waits from now on.
    ///
    /// # Errors
    /// Too many do.
    pub(super) fn park(&mut self, waiting: Waiting) -> Result<(), Error> {
        if self.rows.len() >= EVENTS_MAX + self.beyond {
            let cause = format!("{} events are parked, and no more may be", self.rows.len());
            return Err(Error::new(Kind::Event, cause).remedy(
                "see them with walrelay parked list; while the relay is stopped, mark what is to be sent or dropped with \
                 walrelay parked retry or drop, which is done first once it is started",
            ));
        }
        self.put(waiting);
        Ok(())
    }

    fn put(&mut self, Waiting { row, key, refused_by }: Waiting) {
        let outbox = row.0;
        if self.rows.insert(row)
            && let Some(key) = key
        {
            *self.aggregates.entry(outbox).or_default().entry(key).or_default() += 1;
        }
        self.refusing.extend(refused_by);
    }

    /// This event waits no more; its aggregate goes on with the last of them.
    pub(super) fn release(&mut self, Waiting { row, key, .. }: &Waiting) {
        if !self.rows.remove(row) {
            return;
        }
        let Some((aggregates, key)) = self.aggregates.get_mut(&row.0).zip(key.as_ref()) else { return };
        if let Some(count) = aggregates.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                aggregates.remove(key);
            }
        }
    }

    /// This topic takes records again.
    pub(super) fn accepts(&mut self, topic: &str) {
        self.refusing.remove(topic);
    }

    /// These wait in the table, and those that are on their way there.
    pub(super) fn begin(&mut self, waiting: impl Iterator<Item = Waiting>) {
        *self = Parking::default();
        waiting.for_each(|waiting| self.put(waiting));
        let over = self.rows.len().checked_sub(EVENTS_MAX);
        self.beyond = over.map_or(0, |over| over + AT_START);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(outbox: usize, id: u8, key: Option<&str>) -> Waiting {
        Waiting { row: (outbox, vec![id]), key: key.map(|key| key.into()), refused_by: None }
    }

    #[test]
    fn an_aggregate_waits_until_the_last_of_its_events_goes() {
        let mut parking = Parking::default();
        assert!(!parking.is_any() && !parking.is_blocked(0, Some(b"a")));
        parking.park(waiting(0, 1, Some("a"))).unwrap();
        parking.park(waiting(0, 2, Some("a"))).unwrap();
        // It is on its way and read back at once.
        parking.park(waiting(0, 2, Some("a"))).unwrap();
        parking.park(waiting(0, 3, None)).unwrap();
        assert!(parking.is_blocked(0, Some(b"a")) && parking.holds(&(0, vec![3])));
        assert!(
            !parking.is_blocked(1, Some(b"a")) && !parking.is_blocked(0, Some(b"b")) && !parking.is_blocked(0, None)
        );
        parking.release(&waiting(0, 1, Some("a")));
        parking.release(&waiting(0, 1, Some("a")));
        assert!(parking.is_blocked(0, Some(b"a")));
        parking.release(&waiting(0, 2, Some("a")));
        assert!(!parking.is_blocked(0, Some(b"a")) && parking.is_any());
        parking.release(&waiting(0, 3, None));
        assert_eq!((parking.is_any(), parking.count()), (false, 0));
    }

    #[test]
    fn a_topic_that_refuses_does_so_until_it_takes_one() {
        let mut parking = Parking::default();
        let refused = Waiting { refused_by: Some("orders".to_owned()), ..waiting(0, 1, Some("a")) };
        parking.begin([refused].into_iter());
        assert!(parking.is_refusing("orders") && !parking.is_refusing("mail") && parking.is_blocked(0, Some(b"a")));
        parking.accepts("orders");
        assert!(!parking.is_refusing("orders"));
        parking.begin(std::iter::empty());
        assert!(!parking.is_any() && !parking.is_blocked(0, Some(b"a")));
    }

    #[test]
    fn no_more_than_somebody_can_look_through_wait() {
        let mut parking = Parking::default();
        let id = |number: usize| (0, number.to_be_bytes().to_vec());
        let of = |count: usize| (1..=count).map(|number| Waiting { row: id(number), key: None, refused_by: None });
        // Whoever stopped for that and was told what to do gets the time for it.
        parking.begin(of(EVENTS_MAX));
        parking.park(waiting(0, 1, None)).unwrap();
        parking.begin(of(EVENTS_MAX - 1));
        parking.park(waiting(0, 2, None)).unwrap();
        let error = parking.park(waiting(0, 1, None)).unwrap_err();
        assert!(error.kind().halts() && error.what_to_do().is_some(), "{error}");
        parking.release(&Waiting { row: id(7), key: None, refused_by: None });
        parking.park(waiting(0, 3, None)).unwrap();
    }
}
