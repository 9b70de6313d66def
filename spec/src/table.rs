//! Reads of the table, hand-over to and from the slot, lost slot, failover: one relay.
//!
//! A transaction writes one row. It holds the key until it ends, as writers of an aggregate have
//! to. Those of different keys overlap, so that the order of ids is not that of the commits. One
//! transaction may copy an earlier row with the transaction id in its column. The process crashes
//! once. Once the slot is lost, or recreated by others, or a standby is promoted that lacks the
//! last commits, whose slot lags or is missing.

use crate::check::{Model, Property, always, breaks, holds, in_the_end, sometimes};
use crate::world::{Lsn, Set, Snapshot, first_arrivals, has_repeats};

/// How many rows are written at most, with those that a promotion lost.
const EVENTS: u8 = 3;
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Ended {
    Open,
    Committed,
    Aborted,
}

/// A transaction and its row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Transaction {
    key: usize,
    /// The number of its event, which is also the order of its row.
    event: u8,
    /// The transaction in the column of its row.
    column: u8,
    ended: Ended,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Pair {
    snapshot: Snapshot,
    lsn: Lsn,
}

/// Which rows of the table are published.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Published {
    pair: Pair,
    also: Set,
    earlier: Option<Pair>,
}

/// A read that was begun.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct CatchUp {
    until: Option<Snapshot>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Stored {
    /// None: of a poller, or of a slot that is to be made.
    position: Option<Lsn>,
    published: Option<Published>,
    catch_up: Option<CatchUp>,
    /// Stored before the promotion.
    is_older: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Read {
    until: Snapshot,
    published: Option<Published>,
    /// Where the slot begins; none for a poller.
    begins: Option<Lsn>,
    /// The last event that was published.
    after: Option<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Stream {
    delivered: Lsn,
    published: Option<Published>,
    /// A snapshot, and the end of the log once that was read.
    snapshot: Option<Snapshot>,
    end: Option<Lsn>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Relay {
    Down,
    Looks,
    /// It stored that it makes the slot.
    Intends,
    Made(Read),
    Reads(Read),
    Streams(Stream),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Slot {
    begins: Lsn,
    confirmed: Lsn,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    /// How many rows of each key there are at most, without copies.
    rows: [usize; 2],
    /// By id.
    transactions: Vec<Transaction>,
    begun: u8,
    /// The ids of those that committed.
    log: Vec<u8>,
    /// The events that copy another.
    copies: Set,
    bus: [Vec<u8>; 2],
    slot: Option<Slot>,
    stored: Option<Stored>,
    relay: Relay,
    crashes: u8,
    losses: u8,
    /// The end of the log at the promotion.
    promoted: Option<Lsn>,
    /// How many reads of the table ended where a slot begins.
    hand_overs: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lag {
    None,
    /// The slot of the standby is as it was made.
    Most,
    Missing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Begin(usize),
    Copy(u8),
    Commit(u8),
    Start,
    Intend,
    MakeSlot,
    SaveRead,
    GoOn,
    Poll,
    Publish,
    EndRead,
    Stream,
    Deliver,
    TakeSnapshot,
    ReadEnd,
    Store,
    Confirm,
    Look,
    Crash,
    LoseSlot,
    RecreateSlot,
    Promote { lost: Lsn, lag: Lag },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    SlotBeginsAfterTheRead,
    AllBelowTheHighestIdArePublished,
    /// `54-xid-trusted-where-xmin-is-newer`
    XidTrustedWhereXminIsNewer,
    /// Of an original that was delivered since the last snapshot, no copy counts.
    CopiesOfOriginalsSinceTheSnapshotArePublished,
    /// `39-a-pair-counts-before-the-position-is-there`
    PairCountsBeforeThePositionIsThere,
    EndReadBeforeTheSnapshot,
    /// `33-failover-ignored`
    FailoverIgnored,
    /// `17-slot-ahead-of-the-store-accepted`
    SlotAheadOfTheStoreAccepted,
    ReadNotStoredBeforeItBegins,
    TransactionsOfTheLostTimelineCount,
}

#[derive(Clone)]
struct TableModel {
    wrong: Option<Wrong>,
    kind: Kind,
}

/// What happens beside writes and reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A crash, and the slot is lost or recreated by others.
    Loss,
    /// A promotion.
    Failover,
    /// A row is copied, and the slot is lost or recreated by others.
    Copies,
}

impl State {
    fn snapshot(&self) -> Snapshot {
        let open = |xid: &u8| self.transactions[usize::from(*xid)].ended == Ended::Open;
        let xids = 0..self.transactions.len() as u8;
        let running = xids.filter(open).fold(Set::default(), Set::with);
        Snapshot {
            xmax: self.transactions.len() as u8,
            running,
        }
    }

    fn end(&self) -> Lsn {
        self.log.len() as Lsn
    }

    fn of(&self, xid: u8) -> Transaction {
        self.transactions[usize::from(xid)]
    }

    /// The events of the log, in commit order, without copies.
    fn of_key(&self, key: usize) -> Vec<u8> {
        let rows = self
            .log
            .iter()
            .map(|xid| self.of(*xid))
            .filter(|row| row.key == key);
        rows.map(|row| row.event)
            .filter(|event| !self.copies.has(*event))
            .collect()
    }

    fn publish(&mut self, row: Transaction) {
        self.bus[row.key].push(row.event);
    }

    fn may_write(&self, key: usize) -> bool {
        !self
            .transactions
            .iter()
            .any(|row| row.key == key && row.ended == Ended::Open)
    }

    fn begin(&mut self, key: usize, column: u8) {
        let event = self.begun;
        self.begun += 1;
        self.transactions.push(Transaction {
            key,
            event,
            column,
            ended: Ended::Open,
        });
    }
}

impl TableModel {
    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    fn sees(&self, snapshot: Snapshot, xid: u8) -> bool {
        let wrong = self.is(Wrong::AllBelowTheHighestIdArePublished);
        snapshot.sees(xid) || wrong && xid < snapshot.xmax
    }

    /// Whether a row is not published, so that a read of the table selects it.
    fn is_pending(&self, published: Option<Published>, xid: u8, row: Transaction) -> bool {
        let Some(Published { pair, also, .. }) = published else {
            return true;
        };
        let has = |xid| self.sees(pair.snapshot, xid) || also.has(xid);
        let is_copy = row.column != xid && !self.is(Wrong::XidTrustedWhereXminIsNewer);
        let by = if self.is(Wrong::CopiesOfOriginalsSinceTheSnapshotArePublished) {
            row.column
        } else {
            xid
        };
        let is_copied = is_copy && !self.sees(pair.snapshot, xid) && !also.has(by);
        !has(row.column) || is_copied
    }

    /// The next row of a read.
    fn next_row(&self, state: &State, read: Read) -> Option<Transaction> {
        let rows = (0..).zip(&state.transactions).filter(|(xid, row)| {
            row.ended == Ended::Committed
                && read.until.sees(row.column)
                && read.after.is_none_or(|after| row.event > after)
                && self.is_pending(read.published, *xid, **row)
        });
        rows.map(|(_, row)| *row).min_by_key(|row| row.event)
    }

    /// What is stored, as far as it counts on this timeline.
    fn known(&self, state: &State) -> Option<Stored> {
        let mut stored = state.stored?;
        let is_moved = stored.is_older && !self.is(Wrong::FailoverIgnored);
        let Some(switch) = state.promoted.filter(|_| is_moved) else {
            return Some(stored);
        };
        stored.position = stored.position.map(|position| position.min(switch));
        stored.published = stored.published.and_then(|published| {
            let keeps = self.is(Wrong::TransactionsOfTheLostTimelineCount);
            let also = if keeps {
                published.also
            } else {
                Set::default()
            };
            let pairs = [Some(published.pair), published.earlier];
            let pair = pairs
                .into_iter()
                .flatten()
                .find(|pair| pair.lsn <= switch)?;
            Some(Published {
                pair,
                also,
                earlier: None,
            })
        });
        Some(stored)
    }

    /// Whether the slot lacks events that the table has.
    fn is_gap(&self, stored: Stored, slot: Slot) -> bool {
        let accepts = self.is(Wrong::SlotAheadOfTheStoreAccepted);
        !accepts
            && stored
                .position
                .is_none_or(|position| slot.confirmed > position)
    }

    fn look(&self, state: &State, actions: &mut Vec<Action>) {
        let known = self.known(state);
        let begun = known
            .and_then(|known| known.catch_up)
            .and_then(|catch_up| catch_up.until);
        match (known, state.slot) {
            (Some(stored), Some(slot)) if !self.is_gap(stored, slot) => match stored.catch_up {
                Some(CatchUp { until: Some(_) }) => actions.push(Action::GoOn),
                Some(CatchUp { until: None }) => actions.push(Action::Intend),
                None => actions.push(Action::Stream),
            },
            // What was begun with is finished first, unless it is of the past.
            (Some(stored), None) if begun.is_some() && !stored.is_older => {
                actions.push(Action::GoOn);
            }
            (_, slot) => {
                actions.push(Action::Intend);
                let now = Read {
                    until: state.snapshot(),
                    published: known.and_then(|known| known.published),
                    begins: None,
                    after: None,
                };
                if slot.is_none() && self.next_row(state, now).is_some() {
                    actions.push(Action::Poll);
                }
            }
        }
    }

    fn stream(&self, state: &State, stream: Stream, actions: &mut Vec<Action>) {
        let Some(slot) = state.slot else {
            actions.push(Action::Look);
            return;
        };
        if stream.delivered < state.end() {
            actions.push(Action::Deliver);
        }
        let early = self.is(Wrong::EndReadBeforeTheSnapshot);
        let last = stream.published.map(|published| published.pair.snapshot);
        match (stream.snapshot, stream.end) {
            (None, None) if early => actions.push(Action::ReadEnd),
            (None, _) if last != Some(state.snapshot()) => actions.push(Action::TakeSnapshot),
            (Some(_), None) => actions.push(Action::ReadEnd),
            _ => {}
        }
        let is_stored = state.stored.is_some_and(|stored| {
            let is_all = stored.position == Some(stream.delivered);
            is_all && stored.published == stream.published && !stored.is_older
        });
        if !is_stored {
            actions.push(Action::Store);
        }
        let stored = state.stored.filter(|stored| !stored.is_older);
        if stored.and_then(|stored| stored.position) > Some(slot.confirmed) {
            actions.push(Action::Confirm);
        }
    }

    /// The pair counts once the position is there.
    fn advance(&self, stream: &mut Stream) {
        let early = self.is(Wrong::PairCountsBeforeThePositionIsThere);
        let Some((snapshot, lsn)) = stream.snapshot.zip(stream.end) else {
            return;
        };
        if lsn > stream.delivered && !early {
            return;
        }
        let before = stream.published;
        let also = before.map(|before| before.also).unwrap_or_default();
        let unseen = (0..16).filter(|xid| also.has(*xid) && !snapshot.sees(*xid));
        stream.published = Some(Published {
            pair: Pair { snapshot, lsn },
            also: unseen.fold(Set::default(), Set::with),
            earlier: before.map(|before| before.pair),
        });
        stream.snapshot = None;
        stream.end = None;
    }

    fn deliver(&self, state: &mut State, stream: &mut Stream) {
        let xid = state.log[usize::from(stream.delivered)];
        state.publish(state.of(xid));
        stream.delivered += 1;
        if let Some(published) = &mut stream.published
            && !published.pair.snapshot.sees(xid)
        {
            published.also = published.also.with(xid);
        }
        self.advance(stream);
    }

    /// What is stored while the table is read.
    fn intent(&self, read: Option<Read>, published: Option<Published>) -> Stored {
        let forgets = self.is(Wrong::ReadNotStoredBeforeItBegins);
        let until = read.map(|read| read.until);
        Stored {
            position: read.and_then(|read| read.begins),
            published,
            catch_up: Some(CatchUp { until }).filter(|_| read.is_none() || !forgets),
            is_older: false,
        }
    }

    /// A read ended: all rows that its snapshot sees are published.
    fn end_read(&self, state: &mut State, read: Read) {
        let late = self.is(Wrong::SlotBeginsAfterTheRead) && state.slot.is_none();
        let begins = if late { Some(state.end()) } else { read.begins };
        if late {
            let begins = state.end();
            state.slot = Some(Slot {
                begins,
                confirmed: begins,
            });
        }
        let also = read
            .published
            .map(|published| published.also)
            .unwrap_or_default();
        let unseen = (0..16).filter(|xid| also.has(*xid) && !read.until.sees(*xid));
        let published = Published {
            pair: Pair {
                snapshot: read.until,
                lsn: begins.unwrap_or(state.end()),
            },
            also: unseen.fold(Set::default(), Set::with),
            earlier: None,
        };
        state.hand_overs += u8::from(begins.is_some());
        state.stored = Some(Stored {
            position: begins,
            published: Some(published),
            catch_up: None,
            is_older: false,
        });
        state.relay = Relay::Looks;
    }

    fn work(&self, state: &mut State, action: Action) -> Option<()> {
        let known = self.known(state);
        let published = known.and_then(|known| known.published);
        let until = state.snapshot();
        let after = None;
        match (action, state.relay) {
            (Action::Intend, _) => {
                state.stored = Some(self.intent(None, published));
                state.relay = Relay::Intends;
            }
            (Action::MakeSlot, _) => {
                let begins = state.end();
                let late = self.is(Wrong::SlotBeginsAfterTheRead);
                state.slot = (!late).then_some(Slot {
                    begins,
                    confirmed: begins,
                });
                let begins = (!late).then_some(begins);
                state.relay = Relay::Made(Read {
                    until,
                    published,
                    begins,
                    after,
                });
            }
            (Action::SaveRead, Relay::Made(read)) => {
                state.stored = Some(self.intent(Some(read), read.published));
                state.relay = Relay::Reads(read);
            }
            (Action::Poll, _) => {
                let read = Read {
                    until,
                    published,
                    begins: None,
                    after,
                };
                state.stored = Some(self.intent(Some(read), published));
                state.relay = Relay::Reads(read);
            }
            (Action::GoOn, _) => {
                let until = known?.catch_up?.until?;
                let begins = known?.position.filter(|_| state.slot.is_some());
                state.relay = Relay::Reads(Read {
                    until,
                    published,
                    begins,
                    after,
                });
            }
            (Action::Publish, Relay::Reads(mut read)) => {
                let row = self.next_row(state, read)?;
                read.after = Some(row.event);
                state.publish(row);
                state.relay = Relay::Reads(read);
            }
            (Action::EndRead, Relay::Reads(read)) => self.end_read(state, read),
            (Action::Stream, _) => {
                let delivered = known?.position?.max(state.slot?.confirmed);
                let stream = Stream {
                    delivered,
                    published,
                    snapshot: None,
                    end: None,
                };
                state.relay = Relay::Streams(stream);
            }
            _ => return None,
        }
        Some(())
    }

    fn streams(&self, state: &mut State, action: Action, mut stream: Stream) {
        match action {
            Action::Deliver => self.deliver(state, &mut stream),
            Action::TakeSnapshot => stream.snapshot = Some(state.snapshot()),
            Action::ReadEnd => stream.end = Some(state.end()),
            Action::Store => {
                state.stored = Some(Stored {
                    position: Some(stream.delivered),
                    published: stream.published,
                    catch_up: None,
                    is_older: false,
                });
            }
            _ => {}
        }
        self.advance(&mut stream);
        state.relay = Relay::Streams(stream);
    }

    /// A standby is promoted that does not have the last commits; their ids are used again.
    fn promote(state: &mut State, lost: Lsn, lag: Lag) {
        for xid in state.log.split_off(usize::from(state.end() - lost)) {
            state.transactions[usize::from(xid)].ended = Ended::Aborted;
        }
        let open = state
            .transactions
            .iter_mut()
            .filter(|row| row.ended == Ended::Open);
        open.for_each(|row| row.ended = Ended::Aborted);
        while state
            .transactions
            .last()
            .is_some_and(|row| row.ended == Ended::Aborted)
        {
            state.transactions.pop();
        }
        let switch = state.end();
        state.slot = state
            .slot
            .filter(|slot| lag != Lag::Missing && slot.begins <= switch);
        if let Some(slot) = &mut state.slot {
            let most = if lag == Lag::Most {
                slot.begins
            } else {
                switch
            };
            slot.confirmed = slot.confirmed.min(most);
        }
        state.promoted = Some(switch);
        if let Some(stored) = &mut state.stored {
            stored.is_older = true;
        }
        if state.relay != Relay::Down {
            state.relay = Relay::Looks;
        }
    }

    fn writers(&self, state: &State, actions: &mut Vec<Action>) {
        for (key, most) in state.rows.into_iter().enumerate() {
            let is_of = |row: &&Transaction| row.key == key && !state.copies.has(row.event);
            let written = state.transactions.iter().filter(is_of).count();
            if written < most && state.begun < EVENTS && state.may_write(key) {
                actions.push(Action::Begin(key));
            }
        }
        for (xid, row) in (0..).zip(&state.transactions) {
            if row.ended == Ended::Open {
                actions.push(Action::Commit(xid));
            }
            let may_copy =
                self.kind == Kind::Copies && state.copies.is_empty() && state.may_write(row.key);
            if may_copy && row.ended == Ended::Committed {
                actions.push(Action::Copy(xid));
            }
        }
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        if state.crashes > 0 && state.relay != Relay::Down {
            actions.push(Action::Crash);
        }
        if state.losses == 0 || state.stored.is_none() {
            return;
        }
        if self.kind != Kind::Failover {
            if state.slot.is_some() {
                actions.extend([Action::LoseSlot, Action::RecreateSlot]);
            }
            return;
        }
        for lost in 0..=state.end().min(1) {
            let lags = [Lag::None, Lag::Most, Lag::Missing];
            actions.extend(lags.map(|lag| Action::Promote { lost, lag }));
        }
    }

    fn fail(state: &mut State, action: Action) {
        let confirmed = state.end();
        match action {
            Action::LoseSlot => state.slot = None,
            Action::RecreateSlot => {
                state.slot = Some(Slot {
                    begins: confirmed,
                    confirmed,
                })
            }
            Action::Promote { lost, lag } => Self::promote(state, lost, lag),
            _ => {}
        }
        // The session is gone with the slot.
        if action == Action::RecreateSlot && matches!(state.relay, Relay::Streams(_)) {
            state.relay = Relay::Looks;
        }
        state.losses -= 1;
    }
}

impl Model for TableModel {
    type State = State;
    type Action = Action;

    fn begins(&self) -> Vec<State> {
        let overlapping = [1, 1];
        let of_one_key = [2, 0];
        let rows = match self.kind {
            Kind::Loss | Kind::Failover => [overlapping, of_one_key],
            Kind::Copies => [[1, 0], of_one_key],
        };
        let state = |rows| State {
            rows,
            transactions: Vec::new(),
            begun: 0,
            log: Vec::new(),
            copies: Set::default(),
            bus: Default::default(),
            slot: None,
            stored: None,
            relay: Relay::Looks,
            crashes: u8::from(self.kind == Kind::Loss),
            losses: 1,
            promoted: None,
            hand_overs: 0,
        };
        rows.map(state).to_vec()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.writers(state, actions);
        self.faults(state, actions);
        match state.relay {
            Relay::Down => actions.push(Action::Start),
            Relay::Looks => self.look(state, actions),
            Relay::Intends => actions.push(Action::MakeSlot),
            Relay::Made(_) => actions.push(Action::SaveRead),
            Relay::Reads(read) if self.next_row(state, read).is_some() => {
                actions.push(Action::Publish);
            }
            Relay::Reads(_) => actions.push(Action::EndRead),
            Relay::Streams(stream) => self.stream(state, stream, actions),
        }
    }

    fn next(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match (action, state.relay) {
            (Action::Begin(key), _) => state.begin(key, state.transactions.len() as u8),
            (Action::Copy(of), _) => {
                state.copies = state.copies.with(state.begun);
                let original = state.of(of);
                state.begin(original.key, original.column);
            }
            (Action::Commit(xid), _) => {
                state.transactions[usize::from(xid)].ended = Ended::Committed;
                state.log.push(xid);
            }
            (Action::Start | Action::Look, _) => state.relay = Relay::Looks,
            (Action::Crash, _) => {
                state.crashes -= 1;
                state.relay = Relay::Down;
            }
            (Action::LoseSlot | Action::RecreateSlot | Action::Promote { .. }, _) => {
                Self::fail(&mut state, action);
            }
            (Action::Confirm, _) => {
                let position = state.stored?.position?;
                state.slot.as_mut()?.confirmed = position;
            }
            (_, Relay::Streams(stream)) => self.streams(&mut state, action, stream),
            _ => self.work(&mut state, action)?,
        }
        Some(state)
    }

    fn is_fault(&self, action: Action) -> bool {
        matches!(
            action,
            Action::Crash | Action::LoseSlot | Action::RecreateSlot | Action::Promote { .. }
        )
    }

    fn properties(&self) -> Vec<Property<State>> {
        let lags = sometimes("a failover to a slot that lags", |state: &State| {
            let lags = state
                .slot
                .is_some_and(|slot| Some(slot.confirmed) < state.promoted);
            lags && matches!(state.relay, Relay::Streams(_))
        });
        let properties = vec![
            always(P2_FIRST, |state: &State| {
                // Events of the lost timeline, and copies, have no place in the order.
                let is_in_order = |key: usize| {
                    let order = state.of_key(key);
                    let known = |event: &u8| order.contains(event);
                    let first = first_arrivals(&state.bus[key]).into_iter().filter(known);
                    order.starts_with(&first.collect::<Vec<_>>())
                };
                (0..2).all(is_in_order)
            }),
            in_the_end(END, |state: &State| {
                let rows = || state.log.iter().map(|xid| state.of(*xid));
                let end = state.end();
                let is_confirmed = state.slot.is_some_and(|slot| slot.confirmed == end);
                rows().all(|row| state.bus[row.key].contains(&row.event)) && is_confirmed
            }),
            sometimes("a redelivery", |state: &State| {
                state.bus.iter().any(|topic| has_repeats(topic))
            }),
            sometimes("a hand-over from the table to the slot", |state: &State| {
                state.hand_overs > 0 && matches!(state.relay, Relay::Streams(_))
            }),
            sometimes("a second hand-over", |state: &State| {
                state.hand_overs > 1 && matches!(state.relay, Relay::Streams(_))
            }),
        ];
        let late = sometimes(
            "commits in another order than their ids",
            |state: &State| !state.log.is_sorted(),
        );
        let late = Some(late).filter(|_| self.kind != Kind::Copies);
        let lags = Some(lags).filter(|_| self.kind == Kind::Failover);
        properties.into_iter().chain(late).chain(lags).collect()
    }
}

const P2_FIRST: &str = "P2: events of a key arrive first in commit order";
const END: &str = "P12: in the end all that is committed is delivered and confirmed";

#[test]
fn slot_and_table_keep_the_promises() {
    holds(
        "table",
        &TableModel {
            wrong: None,
            kind: Kind::Loss,
        },
    );
}

#[test]
fn slot_and_table_keep_the_promises_at_a_failover() {
    holds(
        "table, failover",
        &TableModel {
            wrong: None,
            kind: Kind::Failover,
        },
    );
}

#[test]
fn slot_and_table_keep_the_promises_where_rows_are_copied() {
    holds(
        "table, copied rows",
        &TableModel {
            wrong: None,
            kind: Kind::Copies,
        },
    );
}

#[test]
fn wrong_rules_of_slot_and_table_break_a_promise() {
    for (wrong, kind) in [
        (Wrong::SlotBeginsAfterTheRead, Kind::Loss),
        (Wrong::AllBelowTheHighestIdArePublished, Kind::Loss),
        (Wrong::PairCountsBeforeThePositionIsThere, Kind::Loss),
        (Wrong::EndReadBeforeTheSnapshot, Kind::Loss),
        (Wrong::SlotAheadOfTheStoreAccepted, Kind::Loss),
        (Wrong::ReadNotStoredBeforeItBegins, Kind::Loss),
        (Wrong::FailoverIgnored, Kind::Failover),
        (Wrong::TransactionsOfTheLostTimelineCount, Kind::Failover),
        (Wrong::XidTrustedWhereXminIsNewer, Kind::Copies),
        (
            Wrong::CopiesOfOriginalsSinceTheSnapshotArePublished,
            Kind::Copies,
        ),
    ] {
        breaks(
            wrong,
            &TableModel {
                wrong: Some(wrong),
                kind,
            },
            END,
        );
    }
}
