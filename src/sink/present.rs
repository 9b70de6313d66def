//! The one connection that a client of a bus has at a time.

use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;

use super::lanes::Away;

/// A connection to one server of a bus.
pub(super) trait Connection: Send + Sync {
    /// Asks whether the server answers. Bounds the time by itself.
    fn ping(&self) -> impl Future<Output = Result<(), Away>> + Send;

    /// Ends the connection: all that wait are told.
    fn end(&self);
}

/// The present connection. None before the first one, and after each end.
#[derive(Debug)]
pub(super) struct Present<C> {
    connection: Mutex<Option<Arc<C>>>,
    /// One connects at a time.
    connecting: tokio::sync::Mutex<()>,
}

impl<C> Default for Present<C> {
    fn default() -> Present<C> {
        Present {
            connection: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        }
    }
}

impl<C: Connection> Present<C> {
    pub(super) fn get(&self) -> Option<Arc<C>> {
        self.connection.lock().clone()
    }

    /// Ends this connection, and forgets it where it is still the present one.
    pub(super) fn end(&self, ended: &Arc<C>) {
        ended.end();
        let mut present = self.connection.lock();
        present.take_if(|present| Arc::ptr_eq(present, ended));
    }

    /// Asks whether the server answers. The connection ends where it does not.
    pub(super) async fn ping(&self, connection: &Arc<C>) -> Result<(), Away> {
        let answered = connection.ping().await;
        if answered.is_err() {
            self.end(connection);
        }
        answered
    }

    /// The same of the present connection. Where there is none, one is made by `connect`.
    pub(super) async fn probe(
        &self,
        connect: impl Future<Output = Result<C, Away>> + Send,
    ) -> Result<(), Away> {
        let _one = self.connecting.lock().await;
        if let Some(connection) = self.get() {
            return self.ping(&connection).await;
        }
        let connection = Arc::new(connect.await?);
        *self.connection.lock() = Some(connection);
        Ok(())
    }
}
