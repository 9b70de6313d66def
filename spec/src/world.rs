//! What the models share: LSNs, positions, snapshots, and the order of arrivals.

/// The number of records of the WAL before a place.
pub(crate) type Lsn = u16;

/// The delivered part of one transaction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Partial {
    /// Where its commit record starts.
    pub(crate) commit: Lsn,
    pub(crate) index: u16,
}

/// How far the relay has delivered: a commit end LSN, and the number of delivered events of the
/// next transaction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Position {
    pub(crate) end: Lsn,
    pub(crate) partial: Option<Partial>,
}

impl Position {
    pub(crate) fn at(end: Lsn) -> Position {
        let partial = None;
        Position { end, partial }
    }

    /// Whether the transaction with this commit record is delivered as a whole.
    pub(crate) fn covers(self, commit: Lsn) -> bool {
        commit < self.end
    }

    /// How many events of the transaction are delivered, which is not covered.
    pub(crate) fn delivered_of(self, commit: Lsn) -> u16 {
        let of = self.partial.filter(|partial| partial.commit == commit);
        of.map_or(0, |partial| partial.index)
    }

    /// Whether the event with this place is delivered.
    pub(crate) fn has(self, commit: Lsn, index: u16) -> bool {
        self.covers(commit) || index < self.delivered_of(commit)
    }
}

/// A set of small numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Set(u16);

impl Set {
    pub(crate) fn has(self, member: u8) -> bool {
        self.0 & 1 << member != 0
    }

    #[must_use]
    pub(crate) fn with(self, member: u8) -> Set {
        Set(self.0 | 1 << member)
    }

    #[must_use]
    pub(crate) fn without(self, member: u8) -> Set {
        Set(self.0 & !(1 << member))
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The transactions that had ended, as `pg_snapshot` tells it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Snapshot {
    /// No transaction from here on had begun.
    pub(crate) xmax: u8,
    /// Those below that had not ended.
    pub(crate) running: Set,
}

impl Snapshot {
    pub(crate) fn sees(self, xid: u8) -> bool {
        xid < self.xmax && !self.running.has(xid)
    }
}

/// The records of a topic without those that a consumer had before.
pub(crate) fn first_arrivals<E: Copy + PartialEq>(topic: &[E]) -> Vec<E> {
    let mut first = Vec::new();
    for event in topic {
        if !first.contains(event) {
            first.push(*event);
        }
    }
    first
}

/// Whether some event is in the topic more than once.
pub(crate) fn has_repeats<E: Copy + PartialEq>(topic: &[E]) -> bool {
    first_arrivals(topic).len() < topic.len()
}
