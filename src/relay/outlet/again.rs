//! Events that come again after a crash: those that were published are counted as delivered, and not published again.

use super::{Before, InFlight, Outlet, Pending};
use crate::error::Result;
use crate::position::Lsn;
use crate::relay::delivered_before::{DeliveredBefore, Tail};
use crate::sink::Sink;

impl<S: Sink> Outlet<S> {
    /// Events come again of which some may have been published.
    pub fn expect_again(&mut self, before: DeliveredBefore) {
        self.before = Some(Box::new(before));
    }

    /// Everything that commits below `lsn` was sent: what was published before may have come to its end.
    #[inline]
    pub fn sent_below(&mut self, lsn: Lsn) {
        if self.before.as_ref().is_some_and(|before| before.is_over(lsn)) {
            self.none_again();
        }
    }

    #[cold]
    fn none_again(&mut self) {
        self.before = None;
        let events = self.counts.delivered_before;
        if events > 0 {
            tracing::info!(slot = %self.slot, events, "events that were in their topics already were not published again");
        }
    }

    /// The tail to be read before the event that waits for it can be judged.
    pub fn unread(&self) -> Option<Tail> {
        self.before.as_ref().and_then(|before| Some(before.tail(before.unread()?)))
    }

    /// A tail was read as far as it could be, or `failed`; `None` where nothing came of it.
    pub fn tail_read(&mut self, topic: &str, tail: Option<Tail>, failed: bool) {
        let Some(before) = &mut self.before else { return };
        match tail {
            Some(tail) => before.read(tail, failed),
            None => before.unreadable(topic),
        }
    }

    /// An event that waits for a tail is as if it had not come: the server sends it again to the next session.
    pub fn forget_unread(&mut self) {
        self.pending.take_if(|pending| pending.unread.is_some());
    }

    /// Gives `pending` back where it is to be published.
    pub(super) fn not_delivered_before(&mut self, mut pending: Pending) -> Result<Option<Pending>> {
        let (Some(outbox), Some(before)) = (pending.unread, &mut self.before) else { return Ok(Some(pending)) };
        let place = pending.event.place;
        match pending.record.with_record(|record| before.judge(place, outbox, record)) {
            Before::Publish => {
                pending.unread = None;
                return Ok(Some(pending));
            }
            Before::Delivered => self.delivered_before(pending.event)?,
            Before::Unread => self.pending = Some(pending),
        }
        Ok(None)
    }

    pub(super) fn delivered_before(&mut self, event: InFlight) -> Result<()> {
        self.counts.delivered_before += 1;
        self.done(None, InFlight { id: None, max_attempts: None, ..event })
    }
}
