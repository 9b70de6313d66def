//! The state machine from messages to steps.

use std::collections::HashMap;
use std::sync::Arc;

use super::content::Content;
use super::error::{EventError, Fault, Seen, Shown};
use super::row::Mapping;
use super::{Event, Place, Row, Step, Via};
use crate::config::{EventSource, OutboxConfig, TableName};
use crate::decode::{self, Begin, Column, Commit, Insert, LogicalMessage, Message, Other, Relation};
use crate::position::{Lsn, Position};

/// How many column names a missing column's error lists.
const LISTED_COLUMNS_MAX: usize = 50;

/// What came and is no event, counted since the assembler was made. Transactions the position covers do not count.
///
/// Of every table in the publication: one that publishes inserts only, of the outbox only, leaves these at zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ignored {
    /// Updated rows, upserts that found a row among them.
    pub updates: u64,
    /// Deleted rows.
    pub deletes: u64,
    /// Truncate commands.
    pub truncates: u64,
    /// Messages of `pg_logical_emit_message` with another prefix, or outside of transactions.
    pub messages: u64,
}

/// Makes events of one replication session's messages, and drops what was delivered before.
///
/// It must see every message of a session, in order, from the session's first. After an error it is of no use until
/// [`Assembler::resume_at`] is called for a new session.
#[derive(Debug)]
pub struct Assembler {
    outboxes: Vec<OutboxConfig>,
    /// Which outbox a table is, by its OID, where that is known.
    table_oids: HashMap<u32, usize>,
    base_types: BaseTypes,
    resume: Position,
    /// Whether the transaction in `resume.partial` has yet to come.
    partial_expected: bool,
    tables: HashMap<u32, Table>,
    /// The table of the last insert, so that rows of one table in a row need no look-up.
    last: Option<(u32, Table)>,
    /// The column names of each table that is [`Table::Lacking`], for its error.
    there_are: HashMap<u32, String>,
    open: Option<Open>,
    last_end_lsn: Lsn,
    ignored: Ignored,
}

/// A table the server described.
#[derive(Debug, Clone)]
enum Table {
    Other,
    /// This one of the outboxes.
    Outbox(usize, Arc<Mapping>),
    /// This outbox without the needed column of this place: an error as soon as an event needs it, not for delivered
    /// ones.
    Lacking(usize, usize),
}

/// The transaction that is under way.
#[derive(Debug)]
struct Open {
    commit_lsn: Lsn,
    committed_at_us: i64,
    xid: u32,
    /// Outbox events so far.
    index: u64,
    /// How many of its events were delivered before.
    delivered: u64,
    covered: bool,
}

impl Open {
    /// The place of the next event, unless it was delivered before.
    #[inline]
    fn next(&mut self) -> Option<Place> {
        if self.covered {
            return None;
        }
        let place = Place { commit_lsn: self.commit_lsn, index: self.index, via: Via::Slot };
        self.index += 1;
        (place.index >= self.delivered).then_some(place)
    }
}

impl Assembler {
    /// Makes events of what comes from `outboxes` and is not covered by `resume`.
    pub fn new(outboxes: &[OutboxConfig], resume: Position) -> Self {
        Assembler {
            outboxes: outboxes.to_vec(),
            table_oids: HashMap::new(),
            base_types: BaseTypes::default(),
            resume,
            partial_expected: resume.partial.is_some(),
            tables: HashMap::new(),
            last: None,
            there_are: HashMap::new(),
            open: None,
            last_end_lsn: Lsn::ZERO,
            ignored: Ignored::default(),
        }
    }

    /// Starts over for a new session: forgets an open transaction and all tables, and drops what `resume` covers.
    pub fn resume_at(&mut self, resume: Position) {
        self.resume = resume;
        self.partial_expected = resume.partial.is_some();
        self.tables.clear();
        self.last = None;
        self.there_are.clear();
        self.open = None;
        self.last_end_lsn = Lsn::ZERO;
    }

    /// The tables with these OIDs are these outboxes by now, by index, and columns are of these types: rows that were
    /// written when a table had another name are events like those of an earlier table that had its name.
    pub fn set_catalog(&mut self, table_oids: HashMap<u32, usize>, base_types: BaseTypes) {
        self.table_oids = table_oids;
        self.base_types = base_types;
    }

    /// What came so far and is no event.
    pub fn ignored(&self) -> Ignored {
        self.ignored
    }

    /// Takes the next message of the session, `message` being one pgoutput payload, and says what it came to.
    ///
    /// `wal_start` is where the server says the message stands; it serves error texts and nothing else. Of a
    /// transaction the position covers everything is [`Step::Nothing`], except that a table described in it is still
    /// [`Step::Relation`]: a description is for the session, and is not repeated. Allocates nothing for a row.
    ///
    /// # Errors
    /// [`EventError`]: bytes that are no message, a message that may not come here, a row that no event can be made
    /// of, a position that is not of this stream. Nothing was skipped.
    pub fn feed<'a>(&mut self, message: &'a [u8], wal_start: Lsn) -> Result<Step<'a>, EventError> {
        match decode::decode(message) {
            Ok(Message::Insert(insert)) => self.insert(&insert, wal_start),
            Ok(Message::Begin(begin)) => self.begin(begin, wal_start),
            Ok(Message::Commit(commit)) => self.commit(commit, wal_start),
            Ok(Message::Relation(relation)) => self.relation(relation),
            Ok(Message::Logical(message)) => self.message(&message, wal_start),
            Ok(Message::Other(other)) => self.other(other, wal_start),
            Err(source) => Err(EventError::Undecodable { seen: self.seen(wal_start), source }),
        }
    }

    fn begin<'a>(&mut self, begin: Begin, wal_start: Lsn) -> Result<Step<'a>, EventError> {
        let Begin { commit_lsn, committed_at_us, xid } = begin;
        if self.open.is_some() {
            return Err(self.protocol(wal_start, "a transaction inside a transaction".to_owned()));
        }
        let last_end_lsn = self.last_end_lsn;
        if commit_lsn < last_end_lsn {
            let what =
                format!("a transaction that commits at {commit_lsn}, before {last_end_lsn}, where the last one ended");
            return Err(self.protocol(wal_start, what));
        }
        let covered = self.resume.covers(commit_lsn);
        let delivered = if covered { 0 } else { self.resume.delivered_of(commit_lsn) };
        if delivered > 0 {
            self.partial_expected = false;
        } else if self.partial_expected && self.resume.partial.is_some_and(|partial| partial.commit_lsn < commit_lsn) {
            return Err(EventError::PartialMissing { position: self.resume, commit_lsn, events: 0 });
        }
        self.open = Some(Open { commit_lsn, committed_at_us, xid, index: 0, delivered, covered });
        Ok(if covered { Step::Nothing } else { Step::Begin { commit_lsn, xid } })
    }

    fn commit<'a>(&mut self, commit: Commit, wal_start: Lsn) -> Result<Step<'a>, EventError> {
        let Commit { commit_lsn, end_lsn, .. } = commit;
        let Some(open) = &self.open else {
            return Err(self.outside(wal_start, "a commit"));
        };
        if commit_lsn != open.commit_lsn {
            let what = format!("a commit of the transaction at {commit_lsn}, which is not the open one");
            return Err(self.protocol(wal_start, what));
        }
        if end_lsn <= commit_lsn {
            let what = format!("a commit record that starts at {commit_lsn} and ends at {end_lsn}");
            return Err(self.protocol(wal_start, what));
        }
        if open.covered && end_lsn > self.resume.end_lsn {
            return Err(EventError::PositionInside { position: self.resume, commit_lsn, end_lsn });
        }
        if open.index < open.delivered {
            return Err(EventError::PartialMissing { position: self.resume, commit_lsn, events: open.index });
        }
        let covered = open.covered;
        self.last_end_lsn = end_lsn;
        self.open = None;
        Ok(if covered { Step::Nothing } else { Step::Commit { commit_lsn, end_lsn } })
    }

    fn relation<'a>(&mut self, mut relation: Relation) -> Result<Step<'a>, EventError> {
        let named = |outbox: &OutboxConfig| {
            let table = outbox.source.table();
            table.is_some_and(|table| relation.schema == table.schema() && relation.table == table.table())
        };
        let number = self.outboxes.iter().position(named).or_else(|| self.table_oids.get(&relation.oid).copied());
        let found = number.and_then(|number| Some((number, self.outboxes.get(number)?)));
        let commit_lsn = self.open.as_ref().map_or(Lsn::ZERO, |open| open.commit_lsn);
        let needed = |column: &&mut Column| found.is_some_and(|(_, outbox)| outbox.columns.contains(&column.name));
        for column in relation.columns.iter_mut().filter(needed) {
            column.type_oid =
                self.base_types.base(column.type_oid, commit_lsn).ok_or_else(|| EventError::TypeUnknown {
                    commit_lsn,
                    of: found.map_or_else(no_source, |(_, outbox)| outbox.source.clone()),
                    column: Shown::of(column.name.as_bytes()),
                })?;
        }
        let relation = &relation;
        self.there_are.remove(&relation.oid);
        let table = match found.map(|(number, outbox)| (number, Mapping::new(outbox, relation))) {
            None => Table::Other,
            Some((number, Ok(mapping))) => Table::Outbox(number, Arc::new(mapping)),
            Some((number, Err(place))) => {
                self.there_are.insert(relation.oid, list(relation));
                Table::Lacking(number, place)
            }
        };
        let outbox = !matches!(table, Table::Other);
        self.tables.insert(relation.oid, table);
        self.last = None;
        Ok(Step::Relation { oid: relation.oid, outbox })
    }

    #[inline]
    fn insert<'a>(&mut self, insert: &Insert<'a>, wal_start: Lsn) -> Result<Step<'a>, EventError> {
        let oid = insert.relation;
        if self.last.as_ref().is_none_or(|(last, _)| *last != oid) {
            self.last = self.tables.get(&oid).map(|table| (oid, table.clone()));
        }
        let Some((_, table)) = &self.last else {
            return Err(self.protocol(wal_start, format!("a row of table {oid}, which was not described")));
        };
        let Some(open) = &mut self.open else {
            return Err(self.outside(wal_start, "a row"));
        };
        let (outbox, mapping) = match table {
            Table::Outbox(outbox, mapping) => (*outbox, Ok(mapping)),
            Table::Lacking(outbox, column) => (*outbox, Err(*column)),
            Table::Other => return Ok(Step::Nothing),
        };
        let (committed_at_us, xid) = (open.committed_at_us, Some(open.xid));
        let Some(place) = open.next() else { return Ok(Step::Nothing) };
        let mapping = mapping.map_err(|column| self.column_missing(place, outbox, column, oid))?;
        if insert.tuple.len() != mapping.columns() {
            let seen = Seen { wal_start, transaction: Some((place.commit_lsn, place.index)) };
            let what = format!("a row of {} values for {} columns", insert.tuple.len(), mapping.columns());
            return Err(EventError::Protocol { seen, what });
        }
        let row = Row::new(insert.tuple, mapping);
        match mapping.fault(&insert.tuple) {
            None => Ok(Step::Event(Event { place, committed_at_us, xid, outbox, row })),
            Some((column, fault)) => Err(self.unfit(place, outbox, row.get(0), column, fault)),
        }
    }

    fn message<'a>(&mut self, message: &LogicalMessage<'a>, wal_start: Lsn) -> Result<Step<'a>, EventError> {
        let is_it = |outbox: &OutboxConfig| matches!(&outbox.source, EventSource::Messages(prefix) if prefix.as_bytes() == message.prefix);
        let found = self.outboxes.iter().enumerate().find(|(_, outbox)| is_it(outbox));
        let Some((outbox, config)) = found.filter(|_| message.transactional) else {
            // Such a one has no commit that could be waited for, and comes again after each connection.
            self.ignored.messages += 1;
            return Ok(Step::Nothing);
        };
        let Some(open) = &mut self.open else {
            return Err(self.outside(wal_start, "a transactional message"));
        };
        let (committed_at_us, xid) = (open.committed_at_us, Some(open.xid));
        let Some(place) = open.next() else { return Ok(Step::Nothing) };
        let id = || message.lsn.to_string();
        let content = Content::new(&config.columns, message)
            .map_err(|(column, fault)| self.unfit(place, outbox, Some(id().as_bytes()), column, fault))?;
        let row = Row::message(content);
        if row.get(0).is_none() {
            return Err(self.unfit(place, outbox, Some(id().as_bytes()), 0, Fault::Null));
        }
        Ok(Step::Event(Event { place, committed_at_us, xid, outbox, row }))
    }

    fn other<'a>(&mut self, other: Other, wal_start: Lsn) -> Result<Step<'a>, EventError> {
        let (what, count) = match other {
            Other::Update => ("an update", &mut self.ignored.updates),
            Other::Delete => ("a delete", &mut self.ignored.deletes),
            Other::Truncate => ("a truncate", &mut self.ignored.truncates),
            Other::Type | Other::Origin | Other::LogicalMessage => return Ok(Step::Nothing),
        };
        match &self.open {
            None => Err(self.outside(wal_start, what)),
            Some(open) => {
                *count += u64::from(!open.covered);
                Ok(Step::Nothing)
            }
        }
    }

    #[cold]
    fn column_missing(&self, place: Place, outbox: usize, column: usize, oid: u32) -> EventError {
        let table = self.outboxes.get(outbox).and_then(|outbox| outbox.source.table());
        EventError::ColumnMissing {
            place,
            table: table.map(TableName::to_string).unwrap_or_default(),
            column: self.column(outbox, column),
            there_are: self.there_are.get(&oid).cloned().unwrap_or_default(),
        }
    }

    #[cold]
    fn unfit(&self, place: Place, outbox: usize, id: Option<&[u8]>, column: usize, fault: Fault) -> EventError {
        let of = self.outboxes.get(outbox).map(|outbox| outbox.source.clone());
        EventError::Value {
            place,
            id: id.map(Shown::of),
            of: of.unwrap_or_else(no_source),
            column: self.column(outbox, column),
            fault,
        }
    }

    fn column(&self, outbox: usize, place: usize) -> String {
        self.outboxes.get(outbox).and_then(|outbox| outbox.columns.get(place)).cloned().unwrap_or_default()
    }

    fn seen(&self, wal_start: Lsn) -> Seen {
        Seen { wal_start, transaction: self.open.as_ref().map(|open| (open.commit_lsn, open.index)) }
    }

    #[cold]
    fn protocol(&self, wal_start: Lsn, what: String) -> EventError {
        EventError::Protocol { seen: self.seen(wal_start), what }
    }

    #[cold]
    fn outside(&self, wal_start: Lsn, what: &str) -> EventError {
        self.protocol(wal_start, format!("{what} outside a transaction"))
    }
}

/// Of an outbox that is not configured, which never is.
#[cold]
fn no_source() -> EventSource {
    EventSource::Messages(String::new())
}

/// The table's columns, for an error text.
fn list(relation: &Relation) -> String {
    let mut list = String::new();
    for (number, column) in relation.columns.iter().enumerate() {
        let separator = if number == 0 { "" } else { ", " };
        if number == LISTED_COLUMNS_MAX {
            list.push_str(" and more");
            break;
        }
        list.push_str(separator);
        list.push_str(&Shown::of(column.name.as_bytes()).to_string());
    }
    if list.is_empty() { "none".to_owned() } else { list }
}

/// OIDs below are Postgres' own, `FirstNormalObjectId`:
/// <https://github.com/postgres/postgres/blob/master/src/include/access/transam.h>
const FIRST_NORMAL_OID: u32 = 16_384;

/// Types that columns may be of, as of a place in the log, with the type under each: a relation message names a domain
/// and does not say what it is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseTypes {
    bases: HashMap<u32, u32>,
    as_of: Lsn,
}

impl Default for BaseTypes {
    /// There are no domains, and never will be.
    fn default() -> Self {
        BaseTypes { bases: HashMap::new(), as_of: Lsn::new(u64::MAX) }
    }
}

impl BaseTypes {
    /// `bases` gives for the OID of a type that of the type under it: of a domain one that is none. What committed up to
    /// `as_of` is in it.
    pub fn new(bases: HashMap<u32, u32>, as_of: Lsn) -> Self {
        BaseTypes { bases, as_of }
    }

    /// The type under a column's type in a transaction that commits at `commit_lsn`: that type itself where it is no
    /// domain, or was dropped since. None where it may be a domain that is too young to be known.
    pub(super) fn base(&self, type_oid: u32, commit_lsn: Lsn) -> Option<u32> {
        match self.bases.get(&type_oid) {
            Some(base) => Some(*base),
            None if type_oid >= FIRST_NORMAL_OID && commit_lsn > self.as_of => None,
            None => Some(type_oid),
        }
    }
}

#[cfg(test)]
mod tests;
