//! A model of one topic of three partitions, and of a gapless producer on it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use walrelay_core::error::{Error, Kind};
use walrelay_core::ledger::Ticket;
use walrelay_core::route::Record;
use walrelay_core::sink::{Delivery, EnqueueError, Sink};

const PARTITIONS: usize = 3;
/// Records one producer's queue holds.
const QUEUE: usize = 5;

/// One event as it stands in the log: aggregate and version.
pub(super) type Logged = (u8, u64);

/// The topic's log, and the queue of the producer that lives.
#[derive(Debug, Default)]
pub(super) struct Broker {
    log: [Vec<Logged>; PARTITIONS],
    queues: [VecDeque<(Ticket, Logged)>; PARTITIONS],
    /// No broker takes anything while it is down.
    pub(super) down: bool,
    /// Times the queue was full.
    pub(super) full: u64,
    /// What the producer is told next.
    pub(super) told: Vec<Delivery>,
    /// How much of each log is committed, where producers have transactions.
    committed: Option<[usize; PARTITIONS]>,
}

pub(super) type Shared = Arc<Mutex<Broker>>;

impl Broker {
    /// With producers that have transactions.
    pub(super) fn transactional() -> Broker {
        Broker {
            committed: Some([0; PARTITIONS]),
            ..Broker::default()
        }
    }

    pub(super) fn is_transactional(&self) -> bool {
        self.committed.is_some()
    }

    /// Everything that was sent arrives, and becomes visible.
    pub(super) fn commit(&mut self) {
        if let Some(committed) = &mut self.committed {
            for ((queue, log), committed) in
                self.queues.iter_mut().zip(&mut self.log).zip(committed)
            {
                log.extend(queue.drain(..).map(|(_, logged)| logged));
                *committed = log.len();
            }
        }
    }

    /// Another producer fences the last one: what that had open nobody will see.
    fn abort(&mut self) {
        for (log, committed) in self
            .log
            .iter_mut()
            .zip(self.committed.into_iter().flatten())
        {
            log.truncate(committed);
        }
    }

    /// What readers see of each partition.
    pub(super) fn visible(&self) -> impl Iterator<Item = &[Logged]> {
        let lengths = self
            .committed
            .unwrap_or_else(|| self.log.each_ref().map(Vec::len));
        self.log
            .iter()
            .zip(lengths)
            .map(|(log, length)| &log[..length])
    }

    /// The broker takes the oldest record of a partition and says so.
    pub(super) fn ack_one(&mut self, random: &mut fastrand::Rng) -> Option<Delivery> {
        let partition = random.usize(0..PARTITIONS);
        if self.down {
            return None;
        }
        let (ticket, logged) = self.queues[partition].pop_front()?;
        self.log[partition].push(logged);
        Some(Delivery::Acked(ticket))
    }

    /// The oldest record of a partition fails, and with it the producer: nobody can tell whether it
    /// is in the log.
    pub(super) fn fail_one(&mut self, random: &mut fastrand::Rng) -> Option<Delivery> {
        let partition = random.usize(0..PARTITIONS);
        let (ticket, logged) = self.queues[partition].pop_front()?;
        if random.bool() {
            self.log[partition].push(logged);
        } else {
            // Gapless: what lies behind a record that did not arrive does not arrive either.
            self.queues[partition].clear();
        }
        Some(Delivery::Failed(
            ticket,
            Error::new(Kind::BusUnreachable, "the model failed it"),
        ))
    }

    /// The producer is gone: what was on the wire may still land, in order.
    pub(super) fn producer_gone(&mut self, random: &mut fastrand::Rng) {
        for (queue, log) in self.queues.iter_mut().zip(&mut self.log) {
            let landed = if self.down {
                0
            } else {
                random.usize(0..=queue.len())
            };
            log.extend(queue.drain(..).take(landed).map(|(_, logged)| logged));
        }
        self.abort();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }
}

/// The producer's side of [`Broker`].
#[derive(Debug)]
pub(super) struct Producer(pub Shared);

impl Sink for Producer {
    fn enqueue(&mut self, record: &Record<'_>, ticket: Ticket) -> Result<(), EnqueueError> {
        let mut broker = self.0.lock().unwrap();
        let text = |bytes: Option<&[u8]>| std::str::from_utf8(bytes.unwrap()).unwrap().to_owned();
        let logged: Logged = (
            text(record.key).parse().unwrap(),
            text(record.value).parse().unwrap(),
        );
        if broker.queues.iter().map(VecDeque::len).sum::<usize>() >= QUEUE {
            broker.full += 1;
            return Err(EnqueueError::Full);
        }
        broker.queues[usize::from(logged.0) % PARTITIONS].push_back((ticket, logged));
        Ok(())
    }

    async fn deliveries(&mut self, into: &mut Vec<Delivery>) {
        into.append(&mut self.0.lock().unwrap().told);
    }
}
