//! The connections that wait for a mail.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_rustls::rustls::ClientConfig;

use super::session::{NotOpen, Session};
use crate::config::SmtpConfig;
use crate::sink::lanes::Away;

/// How long a mail waits for another one's connection, where the server takes no more of them,
/// before it tries again to have its own.
const BUSY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct State {
    idle: Vec<Session>,
    in_use: usize,
}

#[derive(Debug, Default)]
pub(super) struct Pool {
    state: Mutex<State>,
    freed: Notify,
}

/// A connection in use. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    pool: &'a Pool,
    session: Option<Session>,
    /// Whether it had waited: the server may have closed it meanwhile.
    pub(super) has_waited: bool,
}

impl Pool {
    /// A connection that waits, or else a new one.
    pub(super) async fn take(
        &self,
        config: &SmtpConfig,
        tls: &Arc<ClientConfig>,
    ) -> Result<Taken<'_>, Away> {
        loop {
            if let Some(taken) = self.take_idle().await {
                return Ok(taken);
            }
            match Session::open(config, tls).await {
                Ok(session) => return Ok(self.taken(session, false)),
                // Others have connections, and will be done with them.
                Err(NotOpen::Busy(_)) if self.state.lock().in_use > 0 => {
                    timeout(BUSY, self.freed.notified())
                        .await
                        .unwrap_or_default();
                }
                Err(not_open) => return Err(not_open.into()),
            }
        }
    }

    /// A connection that waits, if one does.
    pub(super) async fn take_idle(&self) -> Option<Taken<'_>> {
        loop {
            let session = self.state.lock().idle.pop()?;
            if session.is_usable() {
                return Some(self.taken(session, true));
            }
            session.quit().await;
        }
    }

    fn taken(&self, session: Session, has_waited: bool) -> Taken<'_> {
        self.state.lock().in_use += 1;
        Taken {
            pool: self,
            session: Some(session),
            has_waited,
        }
    }
}

impl Taken<'_> {
    pub(super) fn session(&mut self) -> Option<&mut Session> {
        self.session.as_mut()
    }

    /// Lets the connection wait for the next mail, where it can take one.
    pub(super) async fn keep(mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        if session.is_usable() {
            self.pool.state.lock().idle.push(session);
        } else {
            session.quit().await;
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.pool.state.lock().in_use -= 1;
        self.pool.freed.notify_one();
    }
}
