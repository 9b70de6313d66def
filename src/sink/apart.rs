//! Records that the broker may refuse go through a producer of their own, one at a time.
//!
//! To the sink's own producer a refusal is the end, because records behind the refused one may be on their way. Here nothing
//! is: a record is sent when nothing else is in flight, and nothing is sent before it is reported. So a refusal leaves no
//! gap, and librdkafka goes on with a new epoch. Its order among others is kept by waiting, not by sequence numbers.

use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{Producer as _, PurgeConfig};

use super::bootstrap;
use super::context::Context;
use super::kafka::for_librdkafka;
use super::options::Options;
use super::polled::Polled;
use super::producer::Inner;
use crate::ledger::Ticket;
use crate::route::Record;

/// The producer beside the sink's own: made with the first record for it, and there until that one ends.
pub(super) struct Apart(Mutex<State>);

enum State {
    /// What it will be made of.
    Unused(Box<(Context, Options)>),
    Made(Polled),
    /// It could not be made.
    Failed,
}

impl Apart {
    pub(super) fn new(context: Context, options: Options) -> Apart {
        Apart(Mutex::new(State::Unused(Box::new((context, options)))))
    }

    /// Gives up what was not acked.
    pub(super) fn purge(&self) {
        if let State::Made(client) = &*self.state() {
            client.purge(PurgeConfig::default().queue().inflight().non_blocking());
        }
    }

    /// See [`Inner::knows_no_broker`]. A producer that was not made yet needs none.
    pub(super) fn knows_no_broker(&self) -> bool {
        matches!(&*self.state(), State::Made(client) if bootstrap::knows_no_broker(client.client()))
    }

    /// See [`Inner::add_servers`].
    pub(super) fn add_servers(&self, servers: &CStr) {
        if let State::Made(client) = &*self.state() {
            bootstrap::add(client.client(), servers);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Hands one record, whose key has this hash, to the producer beside. librdkafka copies it.
    pub(super) fn send_apart(&self, record: &Record<'_>, ticket: Ticket, hash: u32) -> Result<(), KafkaError> {
        let record = for_librdkafka(record, ticket)?;
        let mut state = self.apart.state();
        if let State::Unused(_) = &*state
            && let State::Unused(of) = std::mem::replace(&mut *state, State::Failed)
        {
            let (context, options) = *of;
            *state = State::Made(Polled::new(&options.client, context, false)?);
        }
        let State::Made(client) = &*state else {
            return Err(KafkaError::MessageProduction(RDKafkaErrorCode::Fail));
        };
        client.context().placement.expect(None, hash);
        self.counted(|| client.send(record))
    }
}
