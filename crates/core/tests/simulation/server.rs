//! A model of one Postgres: its log, one slot, and the walsender of one connection.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use walrelay_core::catch_up::Key;
use walrelay_core::config::OutboxConfig;
use walrelay_core::decode::RelationColumn;
use walrelay_core::event::RowId;
use walrelay_core::ledger::trail::Pair;
use walrelay_core::position::{Lsn, ServerIdentity, TimelineSwitch};
use walrelay_core::snapshot::Snapshot;
use walrelay_core::start::SlotNow;
use walrelay_core::stored::Outboxes;
use walrelay_core::stream_record::Versioned;
use walrelay_core::table_read::OldestPid;

use crate::pgoutput;

use super::broker::Logged;

/// OID of the outbox table in the model.
pub(super) const TABLE_OID: u32 = 16_384;
/// The first transaction id of the model.
const FIRST_XID: u64 = 700;

/// The transactions that run beside one that ends.
const RUNNING_MAX: usize = 3;
/// The transactions that no snapshot sees, although their commit records are in the log.
const UNSEEN_MAX: usize = 2;
/// How long a commit may wait for a relay that streams, and takes in, delivers and confirms
/// nothing.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Of messages that are events.
pub(super) const PREFIX: &str = "shop";

/// One committed transaction.
#[derive(Debug, Clone)]
pub(super) struct Transaction {
    pub(super) commit_lsn: Lsn,
    pub(super) end_lsn: Lsn,
    pub(super) xid: u64,
    pub(super) timeline: u32,
    /// Whether its table had another name.
    is_renamed: bool,
    /// Aggregate and version of each event; the id is their [`id`].
    pub(super) events: Vec<(u8, u64)>,
    /// Those that the publication left out.
    pub(super) left_out: BTreeSet<Logged>,
}

/// What the walsender has ready to send.
#[derive(Debug, Clone)]
pub(super) enum Sent {
    Data { wal_start: Lsn, body: Vec<u8> },
    Keepalive { wal_end: Lsn },
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) identity: ServerIdentity,
    /// The timelines before this one.
    pub(super) history: Vec<TimelineSwitch>,
    pub(super) log: Vec<Transaction>,
    wal: u64,
    versions: [u64; 4],
    next_xid: u64,
    /// The highest id of a transaction that ended.
    ended_max: u64,
    /// Transactions that began and did not end.
    running: Vec<u64>,
    /// Those that still count as running, although their commit records are in the log.
    unseen: Vec<Unseen>,
    /// Where the log has each alteration of the publication, and the version that it made.
    alterations: Vec<(Lsn, u64)>,
    /// The transaction of an alteration that no snapshot sees, although the slot heeds it from
    /// there on.
    altering: Option<(Lsn, u64)>,
    /// The last one that was rolled back.
    rolled_back: Option<u64>,
    /// Ids of transactions without events, and up to where the log has what they wrote.
    without_events: Vec<(Lsn, u64)>,
    /// Transactions of which rows may be left out, because they ran then.
    spanning: BTreeSet<u64>,
    /// Whether each event is a row of a table with a unique index, and none is a message.
    pub(super) has_keys: bool,
    pub(super) has_slot: bool,
    /// What the slot holds in memory, and what a crash leaves of it.
    pub(super) confirmed: Lsn,
    confirmed_on_disk: Lsn,
    standby: Standby,
    /// Until when it takes no connections, and until when another session has the slot.
    away_until: Duration,
    held_until: Duration,
    /// Until when the relays may not replicate.
    forbidden_until: Duration,
    /// Until when the catalogs cannot be read.
    unread_until: Duration,
    /// Until when it sends nothing.
    held_back_until: Duration,
    /// Until when commits wait for the relay that streams.
    synchronous_until: Duration,
    now: Duration,
    /// When the relay last took something in, had it delivered, or confirmed it.
    moved_at: Duration,
    connection: Option<Connection>,
    /// The relay that acts, and the one that has the slot or the lease.
    pub(super) acting: usize,
    pub(super) owner: Option<usize>,
    /// When the server ends the session of an owner that stands still.
    expires: Option<Duration>,
}

/// A transaction whose session waits for a standby, or for the processor.
#[derive(Debug)]
struct Unseen {
    xid: u64,
    /// It has locks on these aggregates.
    aggregates: Vec<u8>,
    /// Where it waits for the slot to be confirmed.
    waits: Option<Wait>,
}

#[derive(Debug)]
struct Wait {
    until: Lsn,
    since: Duration,
}

/// What a standby has.
#[derive(Debug)]
struct Standby {
    wal: u64,
    /// What its copy of the slot was confirmed up to.
    slot: Option<Lsn>,
    /// Ids below this were used before it was promoted last.
    next_xid: u64,
}

#[derive(Debug)]
struct Connection {
    next: usize,
    /// What was sent of the table, and whether that had another name.
    relation: Option<bool>,
    queue: VecDeque<Sent>,
    status: Lsn,
}

/// What a query sees.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) snapshot: Snapshot,
    pub(super) publication_version: String,
    /// What has altered the publication and is not seen, or was rolled back.
    pub(super) alterations: Vec<u32>,
}

impl Transaction {
    /// The events that the slot sends.
    pub(super) fn sent(&self) -> impl Iterator<Item = Logged> {
        let events = self.events.iter().copied();
        events.filter(|event| !self.left_out.contains(event))
    }

    /// The publication leaves out some of its events.
    fn leave_out(&mut self, random: &mut fastrand::Rng) {
        let events = self.events.iter().copied();
        self.left_out = events.filter(|_| random.bool()).collect();
    }

    /// Whether rows of it came under an earlier name of their table.
    pub(super) fn has_renamed_rows(&self) -> bool {
        let is_row = |&(aggregate, _): &(u8, u64)| !aggregate.is_multiple_of(3);
        self.is_renamed && self.events.iter().any(is_row)
    }
}

impl Server {
    pub(super) fn new(has_messages: bool) -> Self {
        let start = Lsn::new(1_000);
        Server {
            identity: ServerIdentity {
                system_identifier: "7".to_owned(),
                timeline: 1,
            },
            history: Vec::new(),
            log: Vec::new(),
            wal: 1_000,
            versions: [0; 4],
            next_xid: FIRST_XID,
            ended_max: FIRST_XID - 1,
            running: Vec::new(),
            unseen: Vec::new(),
            alterations: Vec::new(),
            altering: None,
            rolled_back: None,
            without_events: Vec::new(),
            spanning: BTreeSet::new(),
            has_keys: !has_messages,
            has_slot: true,
            confirmed: start,
            confirmed_on_disk: start,
            standby: Standby {
                wal: start.as_u64(),
                slot: Some(start),
                next_xid: FIRST_XID,
            },
            away_until: Duration::ZERO,
            held_until: Duration::ZERO,
            forbidden_until: Duration::ZERO,
            unread_until: Duration::ZERO,
            held_back_until: Duration::ZERO,
            synchronous_until: Duration::ZERO,
            now: Duration::ZERO,
            moved_at: Duration::ZERO,
            connection: None,
            acting: 0,
            owner: None,
            expires: None,
        }
    }

    /// The relay that acts has the slot, or the lease.
    pub(super) fn own(&mut self) {
        self.owner = Some(self.acting);
        self.expires = None;
    }

    pub(super) fn is_owner(&self) -> bool {
        self.owner == Some(self.acting)
    }

    /// Whether another relay is at work.
    pub(super) fn is_taken(&self) -> bool {
        self.owner.is_some() && !self.is_owner()
    }

    /// Whether a relay streams.
    pub(super) fn is_streamed(&self) -> bool {
        self.connection.is_some()
    }

    /// The owner says nothing until it is heard again.
    pub(super) fn falls_silent(&mut self, expires: Duration) {
        self.expires = Some(expires);
    }

    /// The owner is heard again.
    pub(super) fn is_heard(&mut self) {
        if self.is_owner() {
            self.expires = None;
        }
    }

    /// Panics where a commit waited for too long.
    pub(super) fn passes(&mut self, now: Duration) {
        self.now = now;
        if self.expires.is_some_and(|expires| expires <= now) {
            self.end_session();
        }
        self.end_waits();
        let mut waits = self.unseen.iter().filter_map(|it| it.waits.as_ref());
        let longest = waits.next().map(|it| now - it.since.max(self.moved_at));
        assert!(
            longest.is_none_or(|longest| longest < WAIT_MAX),
            "P13: a commit waits for the relay for {longest:?}"
        );
    }

    fn end_session(&mut self) {
        self.connection = None;
        self.owner = None;
        self.expires = None;
        self.end_waits();
    }

    /// The relay makes progress.
    pub(super) fn moves(&mut self) {
        self.moved_at = self.now;
    }

    /// Commits wait for the relay that streams until then.
    pub(super) fn waits_for_relay(&mut self, until: Duration) {
        self.synchronous_until = until;
    }

    /// Whether commits wait for the relay that streams.
    pub(super) fn is_synchronous(&self) -> bool {
        self.now < self.synchronous_until && self.is_streamed()
    }

    /// Snapshots see the commits whose wait is over.
    fn end_waits(&mut self) {
        let is_synchronous = self.is_synchronous();
        let confirmed = self.confirmed;
        let is_over = |it: &mut Unseen| {
            let waits = it.waits.as_ref();
            waits.is_some_and(|it| !is_synchronous || it.until <= confirmed)
        };
        for Unseen { xid, .. } in self.unseen.extract_if(.., is_over) {
            self.ended_max = self.ended_max.max(xid);
        }
    }

    /// A business transaction commits: of 0 to 4 events.
    pub(super) fn write(&mut self, random: &mut fastrand::Rng) {
        // Others go on.
        self.begin_up_to(1 + random.usize(0..RUNNING_MAX));
        let at = random.usize(0..self.running.len());
        let xid = self.running.remove(at);
        self.end_transaction(xid, random);
    }

    fn begin_up_to(&mut self, count: usize) {
        while self.running.len() < count {
            let xid = self.assign_xid();
            self.running.push(xid);
        }
    }

    fn assign_xid(&mut self) -> u64 {
        self.next_xid += 1;
        self.next_xid - 1
    }

    /// Assigns an id to a transaction that ends at once.
    pub(super) fn take_xid(&mut self) -> u64 {
        let xid = self.assign_xid();
        self.wal += 8;
        self.without_events.push((self.end(), xid));
        self.ended_max = self.ended_max.max(xid);
        xid
    }

    fn end_transaction(&mut self, xid: u64, random: &mut fastrand::Rng) {
        // A commit record may begin where the last one ends: its LSN is then the other's end.
        self.wal += random.u64(0..8) * 8;
        let commit_lsn = Lsn::new(self.wal);
        self.wal += random.u64(8..32);
        let mut events = Vec::new();
        for _ in 0..random.usize(0..5) {
            let aggregate = random.u8(0..4);
            if self
                .unseen
                .iter()
                .all(|it| !it.aggregates.contains(&aggregate))
            {
                let version = &mut self.versions[usize::from(aggregate)];
                *version += 1;
                events.push((aggregate, *version));
            }
        }
        let waits = self.is_synchronous().then_some(Wait {
            until: Lsn::new(self.wal),
            since: self.now,
        });
        if waits.is_some() || self.unseen.len() < UNSEEN_MAX && random.u8(0..4) == 0 {
            self.unseen.push(Unseen {
                xid,
                aggregates: events.iter().map(|(aggregate, _)| *aggregate).collect(),
                waits,
            });
        } else {
            self.ended_max = self.ended_max.max(xid);
        }
        let mut transaction = Transaction {
            commit_lsn,
            end_lsn: Lsn::new(self.wal),
            xid,
            timeline: self.identity.timeline,
            is_renamed: random.u8(0..8) == 0,
            events,
            left_out: BTreeSet::new(),
        };
        if self.spanning.remove(&transaction.xid) || self.altering.is_some() {
            transaction.leave_out(random);
        }
        self.log.push(transaction);
    }

    /// The publication is altered, and altered back at once or later. Whether rows were left out by
    /// then.
    pub(super) fn alter_publication(&mut self, random: &mut fastrand::Rng) -> bool {
        if self.altering.is_some() {
            self.alter_back(random);
            return false;
        }
        if random.u8(0..4) == 0 {
            // The row keeps it as its `xmax`.
            self.rolled_back = Some(self.take_xid());
            return false;
        }
        self.wal += 8;
        self.altering = Some((self.end(), self.assign_xid()));
        // That of a savepoint, which alters it.
        let savepoint = self.assign_xid();
        self.without_events.push((self.end(), savepoint));
        self.spanning = self.running.iter().copied().collect();
        let before = self.log.len();
        for _ in 0..random.usize(0..3) {
            self.write(random);
        }
        if random.bool() {
            self.alter_back(random);
        }
        let mut written = self.log[before..].iter();
        written.any(|it| !it.left_out.is_empty())
    }

    /// Snapshots see that the publication was altered, and it is altered back.
    fn alter_back(&mut self, random: &mut fastrand::Rng) {
        let Some((lsn, xid)) = self.altering.take() else {
            return;
        };
        // Others begin before that.
        self.begin_up_to(random.usize(0..=RUNNING_MAX));
        self.ended_max = self.ended_max.max(xid + 1);
        self.spanning.extend(self.running.iter().copied());
        let version = self.alterations.last().map_or(1, |(_, last)| last + 1);
        let version = version.max(xid);
        self.alterations.push((lsn, version));
    }

    /// Now and then, snapshots see a transaction whose commit record is in the log.
    pub(super) fn commits_appear(&mut self, random: &mut fastrand::Rng) {
        if random.u8(0..8) > 0 {
            return;
        }
        let at = random.usize(0..=UNSEEN_MAX);
        if self.unseen.get(at).is_some_and(|it| it.waits.is_none()) {
            let xid = self.unseen.remove(at).xid;
            self.ended_max = self.ended_max.max(xid);
        } else if random.bool() {
            self.alter_back(random);
        }
    }

    /// As after a start of the server: what has a commit record is seen, and nothing runs.
    fn restart(&mut self, random: &mut fastrand::Rng) {
        self.alter_back(random);
        self.synchronous_until = Duration::ZERO;
        self.running.clear();
        self.unseen.clear();
        self.spanning.clear();
        self.ended_max = self.next_xid - 1;
    }

    fn publication_version(&self) -> String {
        let version = self.alterations.last().map_or(0, |(_, version)| *version);
        version.to_string()
    }

    /// What a query sees now.
    pub(super) fn seen(&self) -> Seen {
        let altering = self.altering.map(|(_, xid)| xid + 1);
        let alterations = altering.into_iter().chain(self.rolled_back);
        let alterations = alterations.map(|xid| u32::try_from(xid).unwrap());
        Seen {
            snapshot: self.snapshot(),
            publication_version: self.publication_version(),
            alterations: alterations.collect(),
        }
    }

    /// What was seen, and the end of the log after that.
    pub(super) fn pair(&self, seen: Seen) -> Versioned {
        Versioned {
            pair: Pair {
                snapshot: seen.snapshot,
                lsn: self.end(),
            },
            publication_version: seen.publication_version,
            alterations: seen.alterations,
        }
    }

    /// A neighbour writes: the log grows, and nothing of it is for us.
    pub(super) fn write_elsewhere(&mut self, random: &mut fastrand::Rng) {
        self.wal += random.u64(8..400);
    }

    /// The slot's memory reaches the disk.
    pub(super) fn checkpoint(&mut self) {
        self.confirmed_on_disk = self.confirmed;
    }

    /// The server is killed and starts again: the slot goes back to what was on disk.
    pub(super) fn crash(&mut self, away_until: Duration, random: &mut fastrand::Rng) {
        self.end_session();
        self.restart(random);
        self.confirmed = self.confirmed_on_disk;
        self.away_until = away_until;
    }

    /// The standby gets what was written since, or the slot as it is, both, or nothing. Whether it
    /// has all that was written.
    pub(super) fn replicate(&mut self, random: &mut fastrand::Rng) -> bool {
        let (log, slot) = (random.u8(0..8) == 0, random.u8(0..4) == 0);
        if log {
            self.reaches_standby();
        }
        if slot && self.confirmed.as_u64() <= self.standby.wal {
            self.standby.slot = self.has_slot.then_some(self.confirmed);
        }
        log
    }

    /// The standby gets all that was written.
    pub(super) fn reaches_standby(&mut self) {
        self.standby.wal = self.wal;
    }

    /// The standby has the slot, and that is not ahead of what is stored.
    pub(super) fn keeps_slot(&mut self, stored: Lsn) {
        let slot = self.standby.slot.get_or_insert(stored);
        *slot = stored.min(*slot);
    }

    /// The standby is promoted. Transactions that it lacks are gone, and their ids are used again.
    pub(super) fn promote(
        &mut self,
        away_until: Duration,
        keeps_slot: bool,
        random: &mut fastrand::Rng,
    ) -> Vec<Transaction> {
        self.end_session();
        self.away_until = away_until;
        self.wal = self.standby.wal;
        let switch_lsn = self.end();
        let timeline = self.identity.timeline;
        let switch = TimelineSwitch {
            timeline,
            switch_lsn,
        };
        self.history.push(switch);
        self.identity.timeline += 1;
        let has = self.log.partition_point(|it| it.end_lsn <= switch_lsn);
        let gone = self.log.split_off(has);
        self.alter_back(random);
        self.alterations.retain(|(lsn, _)| *lsn <= switch_lsn);
        self.without_events.retain(|(lsn, _)| *lsn <= switch_lsn);
        if random.bool() {
            // It got no more than the ends of transactions.
            let ended = self.without_events.iter().map(|(_, xid)| *xid);
            let ended = ended.chain(self.log.iter().map(|it| it.xid));
            let next_xids = ended.map(|xid| xid + 1);
            self.next_xid = next_xids.fold(self.standby.next_xid, u64::max);
        }
        self.standby.next_xid = self.next_xid;
        self.rolled_back.take_if(|xid| *xid >= self.next_xid);
        self.restart(random);
        self.standby
            .slot
            .take_if(|_| !keeps_slot && random.u8(0..3) == 0);
        self.has_slot = self.standby.slot.is_some();
        self.confirmed = self.standby.slot.unwrap_or_default();
        self.confirmed_on_disk = self.confirmed;
        gone
    }

    pub(super) fn is_away(&self, now: Duration) -> bool {
        now < self.away_until
    }

    /// Another session has the slot.
    pub(super) fn hold(&mut self, until: Duration) {
        self.end_session();
        self.held_until = until;
    }

    pub(super) fn is_held(&self, now: Duration) -> bool {
        now < self.held_until || self.is_taken()
    }

    /// It takes connections and sends its log, nobody else has the slot, relays may replicate, the
    /// catalogs can be read, and no transaction runs for ever.
    pub(super) fn mend(&mut self, random: &mut fastrand::Rng) {
        self.restart(random);
        self.away_until = Duration::ZERO;
        self.held_until = Duration::ZERO;
        self.forbidden_until = Duration::ZERO;
        self.unread_until = Duration::ZERO;
        self.held_back_until = Duration::ZERO;
    }

    /// The relays lose the right to replicate. A stream goes on.
    pub(super) fn forbid(&mut self, until: Duration) {
        self.forbidden_until = until;
    }

    pub(super) fn forbids(&self, now: Duration) -> bool {
        now < self.forbidden_until
    }

    /// Somebody has a lock on the catalogs. A stream goes on.
    pub(super) fn lock_catalogs(&mut self, until: Duration) {
        self.unread_until = until;
    }

    /// Whether a look at the catalogs fails.
    pub(super) fn hides_catalogs(&self, now: Duration) -> bool {
        now < self.unread_until
    }

    /// Its relay drops the slot.
    pub(super) fn drop_slot(&mut self) {
        self.has_slot = false;
    }

    /// The slot is dropped, and perhaps somebody makes another.
    pub(super) fn lose_slot(&mut self, is_made_again: bool, random: &mut fastrand::Rng) {
        self.end_session();
        self.has_slot = false;
        if is_made_again {
            self.make_slot(random);
        }
    }

    /// The backend of the transaction that has been open for longest.
    pub(super) fn oldest_running(&self) -> OldestPid {
        let xid = self.running.iter().min()?;
        Some(i32::try_from(*xid).ok())
    }

    /// A slot in place of the one before: where it begins, and what had ended by then.
    pub(super) fn make_slot(&mut self, random: &mut fastrand::Rng) -> (Lsn, Snapshot) {
        // It waits for transactions that run.
        self.alter_back(random);
        for xid in std::mem::take(&mut self.running) {
            self.end_transaction(xid, random);
        }
        for Unseen { xid, .. } in std::mem::take(&mut self.unseen) {
            self.ended_max = self.ended_max.max(xid);
        }
        // Running transactions are logged.
        self.wal += 8;
        self.has_slot = true;
        self.confirmed = self.end();
        self.confirmed_on_disk = self.confirmed;
        (self.confirmed, self.snapshot())
    }

    /// The slot and its table, as a relay finds them.
    pub(super) fn slot_now(&self) -> SlotNow {
        let is_there = |_: &Lsn| self.has_slot;
        let has_messages = !self.has_keys;
        SlotNow {
            name: "simulated".to_owned(),
            confirmed_flush: Some(self.confirmed).filter(is_there).unwrap_or_default(),
            outboxes: Outboxes {
                publication_oid: 1,
                publication_version: self.publication_version(),
                table_oids: vec![TABLE_OID],
                membership_oids: Vec::new(),
                message_prefixes: has_messages
                    .then(|| PREFIX.to_owned())
                    .into_iter()
                    .collect(),
            },
            is_being_altered: self
                .pair(self.seen())
                .may_differ_from(&self.publication_version()),
            cluster_id: None,
            bus: "the model",
            bus_address: "none",
        }
    }

    /// The rows of the table, in their order.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row> {
        let rows = self.log.iter().flat_map(|transaction| {
            let xid = transaction.xid;
            let row = move |event: &Logged| Row { event: *event, xid };
            transaction.events.iter().map(row)
        });
        let mut rows: Vec<Row> = rows.collect();
        rows.sort_unstable_by_key(|row| (row.event.1, row.event.0));
        rows.into_iter()
    }

    pub(super) fn connect(&mut self) {
        self.own();
        let confirmed = self.confirmed;
        // Decoding skips transactions that end at or below the slot's position.
        let next = self
            .log
            .partition_point(|transaction| transaction.end_lsn <= confirmed);
        self.connection = Some(Connection {
            next,
            relation: None,
            queue: VecDeque::new(),
            status: Lsn::ZERO,
        });
    }

    /// Which transactions had ended by now.
    pub(super) fn snapshot(&self) -> Snapshot {
        // Of transactions that began after all that ended, a snapshot does not tell.
        let xmax = self.ended_max + 1;
        let altering = self.altering.map(|(_, xid)| xid);
        let unseen = self.unseen.iter().map(|it| it.xid).chain(altering);
        let running = self.running.iter().copied().chain(unseen);
        let mut running: Vec<u64> = running.filter(|xid| *xid < xmax).collect();
        running.sort_unstable();
        let xmin = running.first().copied().unwrap_or(xmax);
        let running: Vec<_> = running.iter().map(u64::to_string).collect();
        let text = format!("{xmin}:{xmax}:{}", running.join(","));
        text.parse().unwrap()
    }

    /// The end of the log.
    pub(super) fn end(&self) -> Lsn {
        Lsn::new(self.wal)
    }

    pub(super) fn disconnect(&mut self) {
        if self.is_owner() {
            self.end_session();
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.is_owner() && self.connection.is_some()
    }

    /// It sends nothing until then.
    pub(super) fn hold_back(&mut self, until: Duration) {
        self.held_back_until = until;
    }

    /// The next message of the connection, if it has one.
    pub(super) fn send(
        &mut self,
        lacks_topic: &dyn Fn(Logged) -> bool,
        random: &mut fastrand::Rng,
    ) -> Option<Sent> {
        if self.now < self.held_back_until {
            return None;
        }
        let wal = Lsn::new(self.wal);
        let is_owner = self.is_owner();
        let connection = self.connection.as_mut().filter(|_| is_owner)?;
        if let Some(sent) = connection.queue.pop_front() {
            self.moved_at = self.now;
            return Some(sent);
        }
        if connection.next == self.log.len() || random.u8(0..10) == 0 {
            // What a keepalive carries: everything that commits below it was sent.
            let ahead = self
                .log
                .get(connection.next)
                .map_or(wal, |transaction| transaction.commit_lsn);
            return Some(Sent::Keepalive { wal_end: ahead });
        }
        let transaction = &self.log[connection.next];
        connection.next += 1;
        let is_known = connection.relation == Some(transaction.is_renamed);
        connection.queue = messages(transaction, is_known, self.has_keys, lacks_topic, random);
        if transaction.sent().next().is_some() {
            connection.relation = Some(transaction.is_renamed);
        }
        connection.queue.pop_front()
    }

    /// Whether the connection has sent all there is.
    pub(super) fn is_caught_up(&self) -> bool {
        let is_owner = self.is_owner();
        self.connection
            .as_ref()
            .filter(|_| is_owner)
            .is_some_and(|it| it.queue.is_empty() && it.next == self.log.len())
    }

    /// A status update arrives. Panics where it goes back within the connection.
    pub(super) fn status(&mut self, confirmed: Lsn) {
        let is_owner = self.is_owner();
        let Some(connection) = self.connection.as_mut().filter(|_| is_owner) else {
            return;
        };
        assert!(
            confirmed >= connection.status,
            "P1: confirmed {confirmed} after {}",
            connection.status
        );
        connection.status = confirmed;
        if confirmed > self.confirmed {
            self.confirmed = confirmed;
            self.moved_at = self.now;
        }
        self.end_waits();
    }
}

/// A transaction as pgoutput sends it. Row LSNs are what they are in life: shared, backwards, zero.
fn messages(
    transaction: &Transaction,
    relation_sent: bool,
    has_keys: bool,
    lacks_topic: &dyn Fn(Logged) -> bool,
    random: &mut fastrand::Rng,
) -> VecDeque<Sent> {
    let mut queue = VecDeque::new();
    let mut push = |wal_start: u64, body: Vec<u8>| {
        queue.push_back(Sent::Data {
            wal_start: Lsn::new(wal_start),
            body,
        })
    };
    let commit = transaction.commit_lsn.as_u64();
    let end = transaction.end_lsn.as_u64();
    push(
        commit,
        pgoutput::begin(commit, u32::try_from(transaction.xid).unwrap()),
    );
    if !relation_sent && transaction.sent().next().is_some() {
        push(0, relation(transaction.is_renamed));
    }
    for (aggregate, version) in transaction.sent() {
        let wal_start = random.u64(0..commit);
        if random.u8(0..8) == 0 {
            let other = |transactional, prefix| {
                message(transactional, prefix, wal_start, (aggregate, version), true)
            };
            push(wal_start, other(false, PREFIX));
            push(wal_start, other(true, "elsewhere"));
        }
        let event = (aggregate, version);
        let has_topic = !lacks_topic(event);
        let body = if is_row(event, has_keys) {
            insert(event, has_topic)
        } else {
            message(true, PREFIX, wal_start, event, has_topic)
        };
        push(wal_start, body);
    }
    push(end, pgoutput::commit(commit, end));
    queue
}

fn relation(is_renamed: bool) -> Vec<u8> {
    let mut body = pgoutput::relation(TABLE_OID, &COLUMNS.map(|name| (name, 25)));
    if is_renamed {
        let start = b"R0000public\0".len();
        body[start..start + b"outbox".len()].copy_from_slice(b"former");
    }
    body
}

/// Of two events now and then.
pub(super) fn id(aggregate: u8, version: u64) -> String {
    format!("{aggregate}-{}", version - u64::from(is_id_shared(version)))
}

/// Whether an event has the id of the one before it.
pub(super) fn is_id_shared(version: u64) -> bool {
    version.is_multiple_of(5)
}

/// Whether an event is a row. An aggregate has one outbox.
fn is_row((aggregate, _): Logged, has_keys: bool) -> bool {
    has_keys || !aggregate.is_multiple_of(3)
}

/// The row of an event that has one to mark, which no other event has.
pub(super) fn row_of(event: Logged, has_keys: bool) -> Option<RowId> {
    let (aggregate, version) = event;
    let id = id(aggregate, version);
    if has_keys {
        let payload = version.to_string();
        return Some(RowId::new(
            0,
            [id.as_bytes(), payload.as_bytes()].into_iter(),
        ));
    }
    let is_alone = !is_id_shared(version) && !is_id_shared(version + 1);
    (is_row(event, false) && is_alone).then(|| RowId::new(0, std::iter::once(id.as_bytes())))
}

pub(super) const TOPIC_COLUMN: &str = "aggregatetype";
const COLUMNS: [&str; 5] = ["id", TOPIC_COLUMN, "aggregateid", "type", "payload"];
/// What the column of the topic says.
pub(super) const TOPIC: &str = "order";

/// The columns that are read from the table.
pub(super) fn columns(outbox: &OutboxConfig) -> Vec<RelationColumn> {
    let column = |name: &String| RelationColumn {
        name: name.clone(),
        type_oid: 25,
        type_modifier: -1,
    };
    outbox.columns.iter().map(column).collect()
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) event: Logged,
    pub(super) xid: u64,
}

impl Row {
    /// Its place in the order.
    pub(super) fn key(&self) -> Key {
        let (aggregate, version) = self.event;
        Key {
            order: Some(version.to_string()),
            id: aggregate.to_string(),
            rest: Vec::new(),
        }
    }

    pub(super) fn is_after(&self, key: &Key) -> bool {
        let number = |text: &str| text.parse::<u64>().unwrap();
        let (aggregate, version) = self.event;
        let order = key.order.as_deref().unwrap();
        (version, u64::from(aggregate)) > (number(order), number(&key.id))
    }

    /// Its value of a column.
    pub(super) fn value(&self, column: &str, has_topic: bool) -> Option<String> {
        let at = COLUMNS.iter().position(|name| *name == column).unwrap();
        values(self.event, has_topic)[at].clone()
    }
}

/// In the order of [`COLUMNS`].
fn values((aggregate, version): Logged, has_topic: bool) -> [Option<String>; 5] {
    [
        Some(id(aggregate, version)),
        has_topic.then(|| TOPIC.to_owned()),
        Some(aggregate.to_string()),
        Some("t".to_owned()),
        Some(version.to_string()),
    ]
}

fn insert(event: Logged, has_topic: bool) -> Vec<u8> {
    let values = values(event, has_topic);
    let values = values.each_ref().map(|value| value.as_deref());
    pgoutput::insert(TABLE_OID, &values)
}

/// What a row would say, in a message.
fn message(
    transactional: bool,
    prefix: &str,
    lsn: u64,
    (aggregate, version): Logged,
    has_topic: bool,
) -> Vec<u8> {
    let id = id(aggregate, version);
    let of_type = if has_topic { r#""order""# } else { "null" };
    let content = format!(
        concat!(
            r#"{{"id": "{id}", "aggregatetype": {of_type}, "#,
            r#""aggregateid": {aggregate}, "payload": {version}}}"#
        ),
        id = id,
        of_type = of_type,
        aggregate = aggregate,
        version = version
    );
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    let flag = u8::from(transactional);
    [
        &[b'M', flag][..],
        &lsn.to_be_bytes(),
        prefix.as_bytes(),
        b"\0",
        &length,
        content.as_bytes(),
    ]
    .concat()
}
