//! What is recorded of a schedule. The models of `spec/` follow it: see `main.rs`.

use std::collections::HashMap;

use walrelay_core::position::Position;
use walrelay_core::stored::Stored;
use walrelay_spec::trace::{Place, Progress, Step};

use super::broker::Logged;
use super::server::Transaction;
use super::world::World;

/// The steps of a schedule until a standby is promoted, with numbers in place of LSNs.
#[derive(Debug, Default)]
pub(super) struct Journal {
    steps: Vec<Step>,
    /// How many transactions of the log are taken in, and the number of each event.
    transactions: usize,
    events: HashMap<Logged, u16>,
    /// The relay that had the slot or the lease.
    owner: Option<usize>,
    pub(super) is_over: bool,
}

impl Journal {
    fn push(&mut self, step: Step) {
        if !self.is_over {
            self.steps.push(step);
        }
    }

    /// Takes in what the log has more than before.
    fn take_commits(&mut self, log: &[Transaction]) {
        if self.is_over {
            return;
        }
        for transaction in log.iter().skip(self.transactions) {
            for event in &transaction.events {
                let number = u16::try_from(self.events.len()).unwrap();
                self.events.insert(*event, number);
                self.steps.push(Step::Row { key: event.0 });
            }
            self.steps.push(Step::Committed);
        }
        self.transactions = log.len();
    }

    pub(super) fn enqueued(&mut self, relay: usize, event: Logged) {
        if !self.is_over {
            let event = self.events[&event];
            self.push(Step::Enqueued { relay, event });
        }
    }

    pub(super) fn landed(&mut self, event: Logged) {
        if !self.is_over {
            let event = self.events[&event];
            self.push(Step::Landed { event });
        }
    }
}

fn place(position: Position, log: &[Transaction]) -> Place {
    let whole = log.partition_point(|it| it.end_lsn <= position.end_lsn);
    let next = log.get(whole);
    let events = next.map_or(0, |next| position.delivered_of(next.commit_lsn));
    Place {
        transactions: u16::try_from(whole).unwrap(),
        events: u16::try_from(events).unwrap(),
    }
}

impl World {
    /// A step that has the place of a position.
    pub(super) fn note_place(&self, position: Position, step: impl FnOnce(Place) -> Step) {
        self.note(step(place(position, &self.server.log)));
    }

    pub(super) fn note(&self, step: Step) {
        let journal = &mut self.broker.lock().unwrap().journal;
        journal.take_commits(&self.server.log);
        let owner = self.server.owner;
        match journal.owner.filter(|_| journal.owner != owner) {
            // It ends its session itself, and says so.
            Some(relay) if relay == self.server.acting && owner.is_none() => {}
            before => {
                if let Some(relay) = before {
                    journal.push(Step::SessionCut { relay });
                }
                journal.owner = owner;
            }
        }
        if let Step::SessionEnded { relay } | Step::Killed { relay } = step {
            journal.owner.take_if(|before| *before == relay);
        }
        journal.push(step);
    }

    pub(super) fn note_commits(&self) {
        let journal = &mut self.broker.lock().unwrap().journal;
        journal.take_commits(&self.server.log);
    }

    /// The relay that acts begins to store this.
    pub(super) fn note_store(&self, stored: &Stored) {
        let relay = self.server.acting;
        let until = stored.catch_up.as_ref().map(|it| it.until.is_some());
        let has_slot = stored.position != Position::default();
        self.note_place(stored.position, |place| Step::StoreBegun {
            relay,
            progress: match until {
                Some(false) => Progress::Intended,
                _ if !has_slot => Progress::WithoutSlot,
                Some(true) => Progress::Reading(place),
                None => Progress::Delivered(place),
            },
        });
    }

    /// A store that a relay began happened, or never will.
    pub(super) fn note_end_of_store(&self, relay: usize, happened: bool) {
        self.note(match happened {
            true => Step::Stored { relay },
            false => Step::StoreLost { relay },
        });
    }

    /// The relay that acts streams, where it `begins` with a new producer.
    pub(super) fn note_stream(&self, begins: bool) {
        let relay = self.server.acting;
        let pipeline = self.relay.pipeline.as_ref().filter(|_| begins);
        if let Some(publisher) = pipeline.map(|pipeline| &pipeline.publisher) {
            let reads_topics = publisher.judge.before.is_some();
            let start = publisher.ledger.received();
            self.note_place(start, |place| Step::ProducerBegun {
                relay,
                place,
                reads_topics,
            });
        }
        self.note(Step::Streams { relay });
    }

    /// A relay or somebody made a slot, which begins where it is confirmed.
    pub(super) fn note_slot(&self, relay: Option<usize>) {
        let begins = Position::at(self.server.confirmed);
        self.note_place(begins, |place| Step::SlotMade { relay, place });
    }

    /// What was recorded.
    pub(super) fn steps(&self) -> Vec<Step> {
        self.broker.lock().unwrap().journal.steps.clone()
    }
}
