//! Events that wait are tried while a table is read.

use tokio::time::Instant;

use super::Reading;
use crate::error::Result;
use crate::relay::retrying::Retrying;
use crate::relay::stop::Stop;
use crate::relay::waiting::{at_once, end_of, lease_lost};

impl Reading<'_> {
    /// Events that waited and were delivered wait no more, and those that are due are tried. Between two looks: a row that was
    /// seen pending before it was marked is not to be published again.
    pub(in crate::relay) async fn retry_waiting(&mut self) {
        while let Some(tried) = at_once(self.retrying.next()).await {
            self.publisher.tried(&tried);
        }
        self.retrying.begin_due(self.publisher.parking.count(), || self.publisher.census(), Instant::now());
    }

    /// Whether events wait that are tried once it is stored how far all is published.
    pub(in crate::relay) fn is_waited_for(&self) -> bool {
        self.publisher.parking.count() > 0 && self.store.known().borrow().is_none()
    }

    /// What is being tried of events that wait comes to its end, as long as nobody else may try them.
    ///
    /// # Errors
    /// Somebody may.
    pub(in crate::relay) async fn finish_retrying(&mut self) -> Result<()> {
        if self.stop.asked() == Stop::Now {
            return Ok(());
        }
        tokio::select! {
            biased;
            end = end_of(&mut self.lease_end) => {
                self.lease_end = None;
                Err(lease_lost(end))
            }
            () = self.retrying.finish() => Ok(()),
        }
    }

    /// What is being tried of events that wait is given up at once: somebody else may try them.
    pub(in crate::relay) fn drop_retrying(&mut self) {
        self.retrying = Retrying::new(self.config, self.store.known(), None);
    }
}
