//! The boundary of the buses: a sink takes records in order, and says later which of them the bus
//! has.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Kind, NextCommand, Remedy};
use crate::ledger::Ticket;
use crate::route::{OwnedRecord, Record};

/// Whether the bus answers, as far as anybody knows.
///
/// Records are never given up because of it: they wait in the queue. Whether to wait or to stop is
/// the reader's choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Connection {
    /// A broker answers.
    Up,
    /// One answers, and asks all its clients to wait.
    Blocked(Error),
    /// None does.
    Down {
        /// Since when.
        since: Instant,
        /// The last thing its client said about it.
        cause: String,
    },
    /// A server answers and refuses us: credentials, TLS. The client goes on trying, so this can
    /// end by itself.
    Refused(Error),
}

impl Connection {
    /// Whether the bus answers and lets us in.
    pub fn answers(&self) -> bool {
        matches!(self, Connection::Up | Connection::Blocked(_))
    }
}

/// The error where events were delivered to the cluster with the id `before`, and the address leads
/// to another one `now`.
pub fn other_cluster(name: &str, address: &str, before: &str, now: &str) -> Error {
    let cause = format!(
        "events were delivered to the {name} cluster {before}, and {address} leads to the cluster \
         {now}: another cluster \
         has the address, or {address} was changed"
    );
    Error::new(Kind::PositionMismatch, cause).remedy(
        Remedy::from(format!(
            "check {address}. If the other cluster is meant, start the relay once with `"
        ))
        .and(NextCommand::new("run").flag("adopt-slot"))
        .and("`, which goes on from the slot's position. Then ")
        .and(Remedy::of_missing("events of the cluster before")),
    )
}

/// The result for one record.
#[derive(Debug)]
pub enum Delivery {
    /// The broker has it, as durably as `acks=all` makes it.
    Acked(Ticket),
    /// The bus refuses it, and the sink goes on. The record was sent apart, or the bus refuses one
    /// record at any time and takes others: then no record of its key is sent until [`Sink::retry`]
    /// or [`Sink::withdraw`] is called.
    Refused(Ticket, Error),
    /// It was not delivered, or that is not known. The producer is finished: no later record may
    /// count. The relay makes another one where the kind of the error is retried.
    Failed(Ticket, Error),
}

/// A record was not taken.
#[derive(Debug)]
pub enum EnqueueError {
    /// The queue is full. Offer the *same* record again after the next delivery; nothing else
    /// before it.
    Full,
    /// It can never be taken: too large, invalid topic. The producer goes on.
    Refused(Error),
    /// The producer is finished: an earlier record was not delivered, and the next deliveries say
    /// which and why.
    Finished,
}

/// Takes records in order and says later which of them the broker has.
///
/// One task enqueues. The limits of `[sink]` bound what it enqueues; what a sink keeps for a record
/// beside its bytes is bounded by nobody else. A process can have several sinks: that of the relay,
/// that of the retries, and those that only ask.
///
/// Records of one key reach the log in the order they were enqueued, gapless:
/// once one fails, or is refused, none of its key behind it is delivered. While the bus is away
/// records wait in the sink. Records without an ack when a sink is dropped never count as
/// delivered, and nothing may be written of them later.
pub trait Sink: Send {
    /// Takes one record, copying it. Never blocks. On an error the record was not taken.
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError>;

    /// The same for a record that the broker may refuse: where that is all that happens, nothing
    /// else comes to its end. Call only with nothing in flight, and enqueue nothing before it is
    /// reported. A sink that cannot send apart sends as always.
    fn enqueue_apart(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        self.enqueue(record, ticket)
    }

    /// Sends a refused record again after `wait`.
    fn retry(&mut self, _refused: Ticket, _wait: Duration) {}

    /// Takes back a refused record, and those of its key behind it, in their order. There is room
    /// for as many records afterwards.
    fn withdraw(&mut self, _refused: Ticket) -> Vec<(Ticket, Arc<OwnedRecord>)> {
        Vec::new()
    }

    /// Waits until there is something to report and appends it to `into`, in no particular order
    /// across partitions. After [`EnqueueError::Full`] it may return with nothing appended: offer
    /// the record again. Of several failures the first appended is the one that says most. Safe to
    /// cancel.
    fn deliveries(&mut self, into: &mut Vec<Delivery>) -> impl Future<Output = ()> + Send;
}
