//! The state machine from messages to steps.

use std::collections::HashMap;
use std::sync::Arc;

use super::error::{EventError, Fault, Seen, Shown};
use super::row::{Content, Mapping};
use super::{Event, Place, Row, Step, Via};
use crate::config::{EventSource, OutboxConfig, TableName};
use crate::decode::{
    self, Begin, Commit, Insert, LogicalMessage, Message, Other, Relation, RelationColumn,
};
use crate::position::{Lsn, Position};
use crate::template::ColumnType;

/// How many column names a missing column's error lists.
const LISTED_COLUMNS_MAX: usize = 50;

/// Other tables that are named in the log; rows of further ones are only counted.
const OTHER_TABLES_MAX: usize = 100;

/// Counts of messages of all published tables that are no events, without transactions that the
/// position covers; and of events that it covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ignored {
    /// Rows inserted into tables that are no outboxes.
    pub inserts: u64,
    /// Updated rows, upserts that found a row among them. Debezium makes an event of an update of
    /// the primary key. Its message lacks large values that did not change, so often the payload.
    pub updates: u64,
    /// Deleted rows.
    pub deletes: u64,
    /// Truncate commands.
    pub truncates: u64,
    /// Messages of `pg_logical_emit_message` with another prefix, or outside of transactions.
    pub messages: u64,
    /// Events that were delivered before, as the position says.
    pub covered: u64,
}

/// Makes events of one replication session's messages, and drops those that were delivered before.
///
/// It must get every message of a session, in order. After an error it needs
/// [`Assembler::resume_at`] for a new session.
#[derive(Debug)]
pub struct Assembler {
    outboxes: Vec<OutboxConfig>,
    /// The index of an outbox by the OID of its table, as far as it is known.
    table_oids: HashMap<u32, usize>,
    base_types: BaseTypes,
    resume: Position,
    /// Whether the transaction in `resume.partial` did not come yet.
    partial_expected: bool,
    tables: HashMap<u32, Table>,
    /// Tables that are no outboxes by OID, each with its name until a row of it came.
    others: HashMap<u32, Option<String>>,
    /// The table of the last insert, which saves look-ups.
    last: Option<(u32, Table)>,
    /// The column names of each table that is [`Table::Lacking`], for its error.
    there_are: HashMap<u32, String>,
    open: Option<Open>,
    last_end_lsn: Lsn,
    ignored: Ignored,
}

#[derive(Debug, Clone)]
enum Table {
    Other,
    Outbox(usize, Arc<Mapping>),
    /// The outbox of this index, without the column of this place: an error for the next event that
    /// is not delivered.
    Lacking(usize, usize),
}

#[derive(Debug)]
struct Open {
    commit_lsn: Lsn,
    committed_at_us: i64,
    xid: u32,
    index: u64,
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
        let place = Place {
            commit_lsn: self.commit_lsn,
            index: self.index,
            via: Via::Slot,
        };
        self.index += 1;
        (place.index >= self.delivered).then_some(place)
    }
}

impl Assembler {
    /// For events of `outboxes` that `resume` does not cover.
    pub fn new(outboxes: &[OutboxConfig], resume: Position) -> Self {
        Assembler {
            outboxes: outboxes.to_vec(),
            table_oids: HashMap::new(),
            base_types: BaseTypes::default(),
            resume,
            partial_expected: resume.partial.is_some(),
            tables: HashMap::new(),
            others: HashMap::new(),
            last: None,
            there_are: HashMap::new(),
            open: None,
            last_end_lsn: Lsn::ZERO,
            ignored: Ignored::default(),
        }
    }

    /// Starts a new session: forgets an open transaction and all tables, and drops the events that
    /// `resume` covers.
    pub(crate) fn resume_at(&mut self, resume: Position) {
        self.resume = resume;
        self.partial_expected = resume.partial.is_some();
        self.tables.clear();
        self.last = None;
        self.there_are.clear();
        self.open = None;
        self.last_end_lsn = Lsn::ZERO;
    }

    /// Sets the outboxes' indexes by the present OIDs of their tables, and the base types. So rows
    /// that were written under an earlier name of a table are events, too.
    pub fn set_catalog(&mut self, table_oids: HashMap<u32, usize>, base_types: BaseTypes) {
        self.table_oids = table_oids;
        self.base_types = base_types;
    }

    /// The commit LSN of the open transaction.
    #[inline]
    pub fn open_transaction(&self) -> Option<Lsn> {
        self.open.as_ref().map(|open| open.commit_lsn)
    }

    /// The counts of messages that were no events.
    pub fn ignored(&self) -> Ignored {
        self.ignored
    }

    /// Takes the next message of the session, one pgoutput payload.
    ///
    /// `wal_start` is the message's LSN according to the server, for error texts only. A covered
    /// transaction yields [`Step::Nothing`], but [`Step::Relation`] for descriptions, which the
    /// server does not repeat. Allocates nothing for a row.
    ///
    /// # Errors
    /// [`EventError`]: an undecodable or unexpected message, an invalid row, a position of another
    /// stream. Nothing was skipped.
    pub fn feed<'a>(&mut self, message: &'a [u8], wal_start: Lsn) -> Result<Step<'a>, EventError> {
        match decode::decode(message) {
            Ok(Message::Insert(insert)) => self.insert(&insert, wal_start),
            Ok(Message::Begin(begin)) => self.begin(begin, wal_start),
            Ok(Message::Commit(commit)) => self.commit(commit, wal_start),
            Ok(Message::Relation(relation)) => self.relation(relation),
            Ok(Message::Logical(message)) => self.message(&message, wal_start),
            Ok(Message::Other(other)) => self.other(other, wal_start),
            Err(source) => Err(EventError::Undecodable {
                seen: self.seen(wal_start),
                source,
            }),
        }
    }

    fn begin<'a>(&mut self, begin: Begin, wal_start: Lsn) -> Result<Step<'a>, EventError> {
        let Begin {
            commit_lsn,
            committed_at_us,
            xid,
        } = begin;
        if self.open.is_some() {
            return Err(self.protocol(wal_start, "a transaction inside a transaction".to_owned()));
        }
        let last_end_lsn = self.last_end_lsn;
        if commit_lsn < last_end_lsn {
            let what = format!(
                "a transaction that commits at {commit_lsn}, before {last_end_lsn}, where the last \
                 one ended"
            );
            return Err(self.protocol(wal_start, what));
        }
        let covered = self.resume.covers(commit_lsn);
        let delivered = if covered {
            0
        } else {
            self.resume.delivered_of(commit_lsn)
        };
        if delivered > 0 {
            self.partial_expected = false;
        } else if self.partial_expected
            && self
                .resume
                .partial
                .is_some_and(|partial| partial.commit_lsn < commit_lsn)
        {
            return Err(EventError::PartialMissing {
                position: self.resume,
                commit_lsn,
                events: 0,
            });
        }
        self.open = Some(Open {
            commit_lsn,
            committed_at_us,
            xid,
            index: 0,
            delivered,
            covered,
        });
        Ok(if covered {
            Step::Nothing
        } else {
            Step::Begin { commit_lsn, xid }
        })
    }

    fn commit<'a>(&mut self, commit: Commit, wal_start: Lsn) -> Result<Step<'a>, EventError> {
        let Commit {
            commit_lsn,
            end_lsn,
            ..
        } = commit;
        let Some(open) = &self.open else {
            return Err(self.outside(wal_start, "a commit"));
        };
        if commit_lsn != open.commit_lsn {
            let what =
                format!("a commit of the transaction at {commit_lsn}, which is not the open one");
            return Err(self.protocol(wal_start, what));
        }
        if end_lsn <= commit_lsn {
            let what = format!("a commit record that starts at {commit_lsn} and ends at {end_lsn}");
            return Err(self.protocol(wal_start, what));
        }
        if open.covered && end_lsn > self.resume.end_lsn {
            return Err(EventError::PositionInside {
                position: self.resume,
                commit_lsn,
                end_lsn,
            });
        }
        if open.index < open.delivered {
            return Err(EventError::PartialMissing {
                position: self.resume,
                commit_lsn,
                events: open.index,
            });
        }
        let covered = open.covered;
        self.last_end_lsn = end_lsn;
        self.open = None;
        Ok(if covered {
            Step::Nothing
        } else {
            Step::Commit {
                commit_lsn,
                end_lsn,
            }
        })
    }

    fn relation<'a>(&mut self, mut relation: Relation) -> Result<Step<'a>, EventError> {
        let named = |outbox: &OutboxConfig| {
            let table = outbox.source.table();
            table.is_some_and(|table| {
                relation.schema == table.schema() && relation.table == table.table()
            })
        };
        let number = self
            .outboxes
            .iter()
            .position(named)
            .or_else(|| self.table_oids.get(&relation.oid).copied());
        let found = number.and_then(|number| Some((number, self.outboxes.get(number)?)));
        let commit_lsn = self.open.as_ref().map_or(Lsn::ZERO, |open| open.commit_lsn);
        let needed = |column: &&mut RelationColumn| {
            found.is_some_and(|(_, outbox)| outbox.columns.contains(&column.name))
        };
        for column in relation.columns.iter_mut().filter(needed) {
            let of = ColumnType {
                oid: column.type_oid,
                modifier: column.type_modifier,
            };
            let base =
                self.base_types
                    .base(of, commit_lsn)
                    .ok_or_else(|| EventError::TypeUnknown {
                        commit_lsn,
                        of: found.map_or_else(no_source, |(_, outbox)| outbox.source.clone()),
                        column: Shown::of(column.name.as_bytes()),
                    })?;
            column.type_oid = base.oid;
            column.type_modifier = base.modifier;
        }
        let relation = &relation;
        self.there_are.remove(&relation.oid);
        let table = match found.map(|(number, outbox)| (number, Mapping::new(outbox, relation))) {
            None => {
                if self.others.len() < OTHER_TABLES_MAX {
                    let name =
                        || Some(TableName::of(&relation.schema, &relation.table).to_string());
                    self.others.entry(relation.oid).or_insert_with(name);
                }
                Table::Other
            }
            Some((number, Ok(mapping))) => Table::Outbox(number, Arc::new(mapping)),
            Some((number, Err(place))) => {
                self.there_are.insert(relation.oid, list(relation));
                Table::Lacking(number, place)
            }
        };
        let outbox = !matches!(table, Table::Other);
        self.tables.insert(relation.oid, table);
        self.last = None;
        Ok(Step::Relation {
            oid: relation.oid,
            outbox,
        })
    }

    #[inline]
    fn insert<'a>(&mut self, insert: &Insert<'a>, wal_start: Lsn) -> Result<Step<'a>, EventError> {
        let oid = insert.relation;
        if self.last.as_ref().is_none_or(|(last, _)| *last != oid) {
            self.last = self.tables.get(&oid).map(|table| (oid, table.clone()));
        }
        let Some((_, table)) = &self.last else {
            return Err(self.protocol(
                wal_start,
                format!("a row of table {oid}, which was not described"),
            ));
        };
        let Some(open) = &mut self.open else {
            return Err(self.outside(wal_start, "a row"));
        };
        let (outbox, mapping) = match table {
            Table::Outbox(outbox, mapping) => (*outbox, Ok(mapping)),
            Table::Lacking(outbox, column) => (*outbox, Err(*column)),
            Table::Other if open.covered => return Ok(Step::Nothing),
            Table::Other => {
                self.ignored.inserts += 1;
                let name = self.others.get_mut(&oid).and_then(Option::take);
                return Ok(name.map_or(Step::Nothing, |name| Step::OtherTable { name }));
            }
        };
        let committed_at_us = open.committed_at_us;
        let xid = Some(open.xid);
        let Some(place) = open.next() else {
            self.ignored.covered += 1;
            return Ok(Step::Nothing);
        };
        let mapping = mapping.map_err(|column| self.column_missing(place, outbox, column, oid))?;
        if insert.tuple.len() != mapping.columns() {
            let seen = Seen {
                wal_start,
                transaction: Some((place.commit_lsn, place.index)),
            };
            let what = format!(
                "a row of {} values for {} columns",
                insert.tuple.len(),
                mapping.columns()
            );
            return Err(EventError::Protocol { seen, what });
        }
        let row = Row::new(insert.tuple, mapping);
        match mapping.fault(&insert.tuple) {
            None => Ok(Step::Event(Event {
                place,
                committed_at_us,
                xid,
                outbox,
                row,
            })),
            Some((column, fault)) => Err(self.unfit(place, outbox, row.get(0), column, fault)),
        }
    }

    fn message<'a>(
        &mut self,
        message: &LogicalMessage<'a>,
        wal_start: Lsn,
    ) -> Result<Step<'a>, EventError> {
        let is_it = |outbox: &OutboxConfig| match &outbox.source {
            EventSource::Messages(prefix) => prefix.as_bytes() == message.prefix,
            EventSource::Table(_) => false,
        };
        let found = self
            .outboxes
            .iter()
            .enumerate()
            .find(|(_, outbox)| is_it(outbox));
        let Some((outbox, config)) = found.filter(|_| message.transactional) else {
            // A non-transactional message has no commit, and comes again after each connection.
            self.ignored.messages += 1;
            return Ok(Step::Nothing);
        };
        let Some(open) = &mut self.open else {
            return Err(self.outside(wal_start, "a transactional message"));
        };
        let committed_at_us = open.committed_at_us;
        let xid = Some(open.xid);
        let Some(place) = open.next() else {
            self.ignored.covered += 1;
            return Ok(Step::Nothing);
        };
        let id = || message.lsn.to_string();
        let content = Content::new(&config.columns, message).map_err(|(column, fault)| {
            self.unfit(place, outbox, Some(id().as_bytes()), column, fault)
        })?;
        let row = Row::message(content);
        if row.get(0).is_none() {
            return Err(self.unfit(place, outbox, Some(id().as_bytes()), 0, Fault::Null));
        }
        Ok(Step::Event(Event {
            place,
            committed_at_us,
            xid,
            outbox,
            row,
        }))
    }

    fn other<'a>(&mut self, other: Other, wal_start: Lsn) -> Result<Step<'a>, EventError> {
        let (what, count) = match other {
            Other::Update => ("an update", &mut self.ignored.updates),
            Other::Delete => ("a delete", &mut self.ignored.deletes),
            Other::Truncate => ("a truncate", &mut self.ignored.truncates),
            Other::Insert | Other::Type | Other::Origin | Other::LogicalMessage => {
                return Ok(Step::Nothing);
            }
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
        let table = self
            .outboxes
            .get(outbox)
            .and_then(|outbox| outbox.source.table());
        EventError::ColumnMissing {
            place,
            table: table.map(TableName::to_string).unwrap_or_default(),
            column: self.column(outbox, column),
            there_are: self.there_are.get(&oid).cloned().unwrap_or_default(),
        }
    }

    #[cold]
    fn unfit(
        &self,
        place: Place,
        outbox: usize,
        id: Option<&[u8]>,
        column: usize,
        fault: Fault,
    ) -> EventError {
        let of = self
            .outboxes
            .get(outbox)
            .map(|outbox| outbox.source.clone());
        EventError::Value {
            place,
            id: id.map(Shown::of),
            of: of.unwrap_or_else(no_source),
            column: self.column(outbox, column),
            fault,
        }
    }

    fn column(&self, outbox: usize, place: usize) -> String {
        self.outboxes
            .get(outbox)
            .and_then(|outbox| outbox.columns.get(place))
            .cloned()
            .unwrap_or_default()
    }

    fn seen(&self, wal_start: Lsn) -> Seen {
        Seen {
            wal_start,
            transaction: self.open.as_ref().map(|open| (open.commit_lsn, open.index)),
        }
    }

    #[cold]
    fn protocol(&self, wal_start: Lsn, what: String) -> EventError {
        EventError::Protocol {
            seen: self.seen(wal_start),
            what,
        }
    }

    #[cold]
    fn outside(&self, wal_start: Lsn, what: &str) -> EventError {
        self.protocol(wal_start, format!("{what} outside a transaction"))
    }
}

#[cold]
fn no_source() -> EventSource {
    EventSource::Messages(String::new())
}

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
    if list.is_empty() {
        "none".to_owned()
    } else {
        list
    }
}

/// OIDs below are Postgres' own, `FirstNormalObjectId`:
/// <https://github.com/postgres/postgres/blob/master/src/include/access/transam.h>
const FIRST_NORMAL_OID: u32 = 16_384;

/// The base types of columns at an LSN: a relation message has the OID of a domain and not of its
/// base type. An array of an enum is one of `text`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseTypes {
    bases: HashMap<u32, ColumnType>,
    as_of: Lsn,
}

impl Default for BaseTypes {
    /// Without any domain.
    fn default() -> Self {
        BaseTypes {
            bases: HashMap::new(),
            as_of: Lsn::new(u64::MAX),
        }
    }
}

impl BaseTypes {
    /// `bases` has the base types with the modifiers of domains, and includes everything that
    /// committed up to `as_of`.
    pub fn new(bases: HashMap<u32, ColumnType>, as_of: Lsn) -> Self {
        BaseTypes { bases, as_of }
    }

    /// The base type in a transaction that commits at `commit_lsn`: the type itself where it is no
    /// domain, or was dropped since. None where it may be a domain that was created after `as_of`.
    pub fn base(&self, of: ColumnType, commit_lsn: Lsn) -> Option<ColumnType> {
        match self.bases.get(&of.oid) {
            // A column of a domain has no modifier of its own.
            Some(base) if of.modifier < 0 => Some(*base),
            Some(base) => Some(ColumnType {
                oid: base.oid,
                ..of
            }),
            None if of.oid >= FIRST_NORMAL_OID && commit_lsn > self.as_of => None,
            None => Some(of),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::outbox::Columns;
    use crate::config::{EventSource, OutboxConfig};
    use crate::decode::Value;
    use crate::error::{Error, Kind};
    use crate::position::Partial;
    use crate::testing::wire;
    use crate::testing::{COLUMNS, outbox};

    const OUTBOX: u32 = 16_384;

    fn feed<'a>(assembler: &mut Assembler, message: &'a [u8]) -> Result<Step<'a>, EventError> {
        assembler.feed(message, Lsn::new(5))
    }

    fn feed_all(assembler: &mut Assembler, messages: &[Vec<u8>]) {
        for message in messages {
            feed(assembler, message).unwrap();
        }
    }

    fn described() -> Vec<u8> {
        wire::relation(OUTBOX, "public", "outbox", &COLUMNS)
    }

    fn row(id: &str) -> Vec<u8> {
        let id = Value::Text(id.as_bytes());
        wire::insert(
            OUTBOX,
            &[
                id,
                Value::Text(b"order"),
                Value::Null,
                Value::Null,
                Value::Null,
            ],
        )
    }

    /// The position at 90, with so many events of this transaction delivered.
    fn inside(commit_lsn: u64, index: u64) -> Position {
        let partial = Partial {
            commit_lsn: Lsn::new(commit_lsn),
            index,
        };
        Position {
            end_lsn: Lsn::new(90),
            partial: Some(partial),
        }
    }

    /// An assembler inside the transaction at 100, the outbox described.
    fn in_a_transaction(resume: Position) -> Assembler {
        let mut assembler = Assembler::new(&[outbox()], resume);
        feed_all(&mut assembler, &[wire::begin(100, 7, 1), described()]);
        assembler
    }

    fn protocol_fault(assembler: &mut Assembler, message: &[u8]) -> String {
        match feed(assembler, message) {
            Err(EventError::Protocol { what, .. }) => what,
            other => panic!("not a fault of the protocol: {other:?}"),
        }
    }

    fn of_slot(error: EventError) -> Error {
        error.into_error(&"orders".parse().unwrap())
    }

    #[test]
    fn of_a_covered_transaction_nothing_comes_but_descriptions() {
        let mut assembler = Assembler::new(&[outbox()], Position::at(Lsn::new(130)));
        assert_eq!(
            feed(&mut assembler, &wire::begin(100, 9, 1)),
            Ok(Step::Nothing)
        );
        assert_eq!(
            feed(&mut assembler, &described()),
            Ok(Step::Relation {
                oid: OUTBOX,
                outbox: true
            })
        );
        for message in [
            row("7"),
            wire::delete(OUTBOX, &[]),
            wire::commit(100, 130, 9),
        ] {
            assert_eq!(feed(&mut assembler, &message), Ok(Step::Nothing));
        }
        assert_eq!(
            assembler.ignored(),
            Ignored {
                covered: 1,
                ..Ignored::default()
            }
        );
        let begun = Step::Begin {
            commit_lsn: Lsn::new(130),
            xid: 2,
        };
        assert_eq!(feed(&mut assembler, &wire::begin(130, 9, 2)), Ok(begun));
        assert!(
            matches!(feed(&mut assembler, &row("8")), Ok(Step::Event(_))),
            "the description still holds"
        );
    }

    #[test]
    fn a_description_in_mid_transaction_replaces_the_one_before() {
        let mut assembler = in_a_transaction(Position::default());
        feed(&mut assembler, &row("1")).unwrap();
        let columns = ["payload", "x", "type", "aggregateid", "id", "aggregatetype"];
        feed(
            &mut assembler,
            &wire::relation(OUTBOX, "public", "outbox", &columns),
        )
        .unwrap();
        let message = wire::insert(
            OUTBOX,
            &[&b"p"[..], b"x", b"t", b"a", b"i", b"g"].map(Value::Text),
        );
        let Ok(Step::Event(event)) = feed(&mut assembler, &message) else {
            panic!("not an event")
        };
        assert_eq!(
            [0, 3, 1].map(|place| event.row.get(place)),
            [&b"i"[..], b"p", b"g"].map(Some)
        );
        assert_eq!(
            protocol_fault(&mut assembler, &row("2")),
            "a row of 5 values for 6 columns"
        );
        feed(
            &mut assembler,
            &wire::relation(OUTBOX, "public", "renamed", &COLUMNS),
        )
        .unwrap();
        let renamed = Step::OtherTable {
            name: "public.renamed".to_owned(),
        };
        assert_eq!(
            feed(&mut assembler, &row("3")),
            Ok(renamed),
            "no longer the outbox"
        );
    }

    #[test]
    fn a_missing_column_is_an_error_only_for_an_event_that_needs_it() {
        let lacking = wire::relation(
            OUTBOX,
            "public",
            "outbox",
            &["id", "aggregatetype", "aggregateid", "type", "bo\ndy"],
        );
        let mut assembler = in_a_transaction(inside(100, 1));
        feed(&mut assembler, &lacking).unwrap();
        assert_eq!(feed(&mut assembler, &row("1")), Ok(Step::Nothing));
        let error = feed(&mut assembler, &row("2")).unwrap_err();
        let text = "event at index 1 of the transaction at 0/64: table public.outbox had no column \
                    payload when the event was written; it had \"id\", \
                    \"aggregatetype\", \"aggregateid\", \"type\", \"bo\\ndy\"";
        let error = of_slot(error);
        assert_eq!(
            (error.kind(), error.cause()),
            (Kind::Publication, format!("slot orders: {text}").as_str())
        );
        let fix = error.what_to_do().unwrap();
        assert!(
            fix.contains("the place of payload")
                && fix.contains("pg_replication_slot_advance('orders', '0/64'"),
            "{fix}"
        );
        let mut assembler = Assembler::new(&[outbox()], Position::at(Lsn::new(130)));
        feed_all(
            &mut assembler,
            &[
                wire::begin(100, 9, 1),
                lacking,
                row("1"),
                wire::commit(100, 130, 9),
            ],
        );
    }

    #[test]
    fn a_row_no_event_can_be_made_of_is_named_and_its_payload_is_not() {
        let text = |text: &'static str| Value::Text(text.as_bytes());
        let unnamed = [Value::Null, text("t"), text("k"), text("e"), text("hidden")];
        let named = [
            text("7\n"),
            Value::Binary(b"hidden"),
            text("hidden"),
            text("e"),
            Value::Null,
        ];
        for (values, name, column, fault) in [
            (unnamed, "", "id", Fault::Null),
            (named, ", row \"7\\n\"", "aggregatetype", Fault::Binary),
        ] {
            let mut assembler = in_a_transaction(Position::default());
            feed(&mut assembler, &row("0")).unwrap();
            let error = feed(&mut assembler, &wire::insert(OUTBOX, &values)).unwrap_err();
            assert!(
                matches!(&error, EventError::Value { fault: found, .. } if *found == fault),
                "{error}"
            );
            let error = of_slot(error);
            assert_eq!(error.kind(), Kind::Event, "{column}");
            let start = format!(
                "slot orders: event at index 1 of the transaction at 0/64{name}: column {column} \
                 of public.outbox"
            );
            assert!(error.cause().starts_with(&start), "{error}");
            assert!(
                !format!("{error} {}", error.what_to_do().unwrap()).contains("hidden"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_a_server_may_not_send_is_an_error() {
        let messages = [
            described(),
            wire::begin(100, 7, 1),
            wire::commit(100, 130, 9),
        ];
        for (before, message, expected) in [
            (
                0,
                wire::commit(100, 130, 9),
                "a commit outside a transaction",
            ),
            (
                0,
                wire::update(OUTBOX, &[], &[]),
                "an update outside a transaction",
            ),
            (
                0,
                wire::delete(OUTBOX, &[]),
                "a delete outside a transaction",
            ),
            (
                0,
                wire::truncate(&[OUTBOX]),
                "a truncate outside a transaction",
            ),
            (1, row("1"), "a row outside a transaction"),
            (
                2,
                wire::begin(200, 9, 2),
                "a transaction inside a transaction",
            ),
            (
                2,
                wire::insert(99, &[]),
                "a row of table 99, which was not described",
            ),
            (
                2,
                wire::commit(101, 130, 9),
                "a commit of the transaction at 0/65, which is not the open one",
            ),
            (
                2,
                wire::commit(100, 100, 9),
                "a commit record that starts at 0/64 and ends at 0/64",
            ),
            (
                3,
                wire::begin(129, 9, 2),
                "a transaction that commits at 0/81, before 0/82, where the last one ended",
            ),
        ] {
            let mut assembler = Assembler::new(&[outbox()], Position::default());
            feed_all(&mut assembler, &messages[..before]);
            assert_eq!(protocol_fault(&mut assembler, &message), expected);
        }
        let mut assembler = Assembler::new(&[outbox()], Position::default());
        feed_all(&mut assembler, &messages);
        assert!(
            feed(&mut assembler, &wire::begin(130, 9, 2)).is_ok(),
            "the next may begin where the last ended"
        );
    }

    #[test]
    fn bytes_that_are_no_message_are_an_error_that_says_where() {
        let mut assembler = in_a_transaction(Position::default());
        feed(&mut assembler, &row("1")).unwrap();
        let error = assembler.feed(b"I\0", Lsn::new(0x77)).unwrap_err();
        let text = "a message cannot be decoded (at 0/77, after 1 event of the transaction at \
                    0/64): an insert's relation \
                    OID at byte 1 wants 4 bytes and 1 are left";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn a_new_session_forgets_tables_and_the_open_transaction() {
        let mut assembler = in_a_transaction(Position::default());
        feed_all(
            &mut assembler,
            &[row("1"), wire::commit(100, 130, 9), wire::begin(130, 9, 2)],
        );
        assembler.resume_at(Position::at(Lsn::new(50)));
        assert!(
            feed(&mut assembler, &wire::begin(100, 9, 1)).is_ok(),
            "the server may start further back"
        );
        assert_eq!(
            protocol_fault(&mut assembler, &row("1")),
            format!("a row of table {OUTBOX}, which was not described")
        );
    }

    #[test]
    fn a_position_that_is_not_of_this_stream_is_an_error() {
        let committed = [row("1"), wire::commit(100, 130, 9)];
        for (name, resume, messages, expected) in [
            (
                "it ends inside",
                Position::at(Lsn::new(120)),
                &committed[1..],
                "PositionInside",
            ),
            (
                "fewer events",
                inside(100, 2),
                &committed[..],
                "PartialMissing",
            ),
        ] {
            let mut assembler = in_a_transaction(resume);
            let error = messages
                .iter()
                .find_map(|message| feed(&mut assembler, message).err())
                .unwrap();
            assert!(
                format!("{error:?}").starts_with(expected),
                "{name}: {error:?}"
            );
            assert_eq!(of_slot(error).kind(), Kind::PositionMismatch, "{name}");
        }
        let mut assembler = Assembler::new(&[outbox()], inside(99, 2));
        let error = feed(&mut assembler, &wire::begin(100, 9, 1)).unwrap_err();
        assert!(
            matches!(error, EventError::PartialMissing { events: 0, .. }),
            "{error}"
        );

        let mut assembler = in_a_transaction(inside(140, 1));
        feed_all(&mut assembler, &committed);
        feed_all(
            &mut assembler,
            &[wire::begin(140, 9, 2), row("2"), wire::commit(140, 150, 9)],
        );
        assert!(
            feed(&mut assembler, &wire::begin(160, 9, 3)).is_ok(),
            "the partial transaction came"
        );
    }

    /// Rows of `public.outbox`, rows of `sales.events` with other columns, and messages with the
    /// prefix `shop`.
    fn several() -> Vec<OutboxConfig> {
        let named = |source, id: &str, columns: &[&str]| OutboxConfig {
            source,
            names: Columns {
                id: id.to_owned(),
                ..Columns::default()
            },
            columns: columns.iter().map(|column| (*column).to_owned()).collect(),
            ..OutboxConfig::default()
        };
        vec![
            outbox(),
            named(
                EventSource::Table("sales.events".parse().unwrap()),
                "number",
                &["number", "body"],
            ),
            named(
                EventSource::Messages("shop".to_owned()),
                "message_lsn",
                &["message_lsn", "type"],
            ),
        ]
    }

    #[test]
    fn events_of_several_outboxes_count_on_in_their_transaction() {
        const SALES: u32 = 16_390;
        let sales = wire::relation(SALES, "sales", "events", &["body", "x", "number"]);
        let begun = [wire::begin(100, 7, 1), described(), sales];
        let messages = [
            row("7"),
            wire::logical_message(0x40, "shop", br#"{"type": "Placed"}"#),
            wire::insert(SALES, &[Value::Text(b"{}"), Value::Null, Value::Text(b"1")]),
            row("8"),
        ];
        let mut assembler = Assembler::new(&several(), Position::default());
        feed_all(&mut assembler, &begun);
        let expected = [
            (0, "7", "order"),
            (2, "0/40", "Placed"),
            (1, "1", "{}"),
            (0, "8", "order"),
        ];
        for ((index, message), (outbox, id, value)) in (0..).zip(&messages).zip(expected) {
            let Ok(Step::Event(event)) = feed(&mut assembler, message) else {
                panic!("not an event")
            };
            assert_eq!((event.outbox, event.place.index), (outbox, index));
            assert_eq!(
                (event.id(), event.row.get(1)),
                (id.as_bytes(), Some(value.as_bytes()))
            );
        }
        assembler.resume_at(inside(100, 2));
        feed_all(&mut assembler, &begun);
        let is_event =
            messages.map(|message| matches!(feed(&mut assembler, &message), Ok(Step::Event(_))));
        assert_eq!(is_event, [false, false, true, true]);
    }

    #[test]
    fn a_message_that_is_none_of_ours_or_of_no_transaction_is_counted_and_passed_over() {
        let mut assembler = Assembler::new(&several(), Position::default());
        let mut outside = wire::logical_message(0x40, "shop", b"{}");
        outside[1] = 0;
        feed_all(
            &mut assembler,
            &[outside.clone(), wire::begin(100, 7, 1), outside],
        );
        assert_eq!(
            feed(&mut assembler, &wire::logical_message(0x40, "shop2", b"{}")),
            Ok(Step::Nothing)
        );
        assert_eq!(assembler.ignored().messages, 3);
        let another_key = wire::update(
            OUTBOX,
            &[Value::Text(b"7")],
            &[Value::Text(b"8"), Value::Unchanged],
        );
        assert_eq!(feed(&mut assembler, &another_key), Ok(Step::Nothing));
        assert_eq!(
            feed(&mut assembler, &wire::truncate(&[OUTBOX, 7])),
            Ok(Step::Nothing)
        );
        feed_all(
            &mut assembler,
            &[
                wire::delete(OUTBOX, &[]),
                wire::delete(OUTBOX, &[]),
                wire::commit(100, 130, 7),
            ],
        );
        let what = protocol_fault(&mut assembler, &wire::logical_message(0x40, "shop", b"{}"));
        assert_eq!(what, "a transactional message outside a transaction");
        assembler.resume_at(Position::default());
        let ignored = Ignored {
            inserts: 0,
            updates: 1,
            deletes: 2,
            truncates: 1,
            messages: 3,
            covered: 0,
        };
        assert_eq!(
            assembler.ignored(),
            ignored,
            "a reconnect does not reset a counter"
        );
    }

    #[test]
    fn a_message_whose_content_has_no_members_is_named_by_where_it_stands() {
        let mut without_id = several();
        without_id[2].columns = vec!["id".to_owned(), "type".to_owned()];
        for (outboxes, content, cause) in [
            (
                several(),
                &b"Placed"[..],
                "type of messages with prefix \"shop\" is a member of the content, which is no \
                 JSON object",
            ),
            (
                without_id,
                br#"{"type": "Placed"}"#,
                "id of messages with prefix \"shop\" is NULL",
            ),
        ] {
            let mut assembler = Assembler::new(&outboxes, Position::default());
            feed_all(&mut assembler, &[wire::begin(100, 7, 1)]);
            let error = of_slot(
                feed(
                    &mut assembler,
                    &wire::logical_message(0x40, "shop", content),
                )
                .unwrap_err(),
            );
            let place =
                "slot orders: event at index 0 of the transaction at 0/64, row \"0/40\": column ";
            assert_eq!(error.cause(), format!("{place}{cause}"));
            let todo = error.what_to_do().unwrap();
            assert!(
                todo.contains("members") && todo.contains("advance"),
                "{todo}"
            );
        }
    }

    #[test]
    fn rows_of_the_table_count_under_the_name_it_had_when_they_were_written() {
        let mut assembler = Assembler::new(&[outbox()], Position::default());
        assembler.set_catalog(HashMap::from([(OUTBOX, 0)]), BaseTypes::default());
        let renamed = |oid| wire::relation(oid, "sales", "events", &COLUMNS);
        feed_all(&mut assembler, &[wire::begin(100, 7, 1), renamed(OUTBOX)]);
        assert!(matches!(
            feed(&mut assembler, &row("1")),
            Ok(Step::Event(_))
        ));
        assert_eq!(
            feed(&mut assembler, &renamed(7)),
            Ok(Step::Relation {
                oid: 7,
                outbox: false
            })
        );
        // Another table that had the name before.
        let before = wire::relation(7, "public", "outbox", &COLUMNS);
        assert_eq!(
            feed(&mut assembler, &before),
            Ok(Step::Relation {
                oid: 7,
                outbox: true
            })
        );
    }

    #[test]
    fn rows_of_a_table_that_is_no_outbox_are_counted_and_its_name_is_told_once() {
        let mut assembler = Assembler::new(&[outbox()], Position::default());
        let described = wire::relation(7, "public", "orders", &COLUMNS);
        let other = wire::insert(7, &[Value::Text(b"1")]);
        feed_all(&mut assembler, &[wire::begin(100, 7, 1), described.clone()]);
        let first = Step::OtherTable {
            name: "public.orders".to_owned(),
        };
        assert_eq!(feed(&mut assembler, &other), Ok(first));
        assert_eq!(feed(&mut assembler, &other), Ok(Step::Nothing));
        assert_eq!(assembler.ignored().inserts, 2);
        // A reconnect: the first transaction is covered, and the name was told.
        assembler.resume_at(Position::at(Lsn::new(130)));
        feed_all(
            &mut assembler,
            &[
                wire::begin(100, 7, 1),
                described,
                other.clone(),
                wire::commit(100, 130, 7),
            ],
        );
        assert_eq!(assembler.ignored().inserts, 2);
        feed_all(&mut assembler, &[wire::begin(200, 8, 1)]);
        assert_eq!(feed(&mut assembler, &other), Ok(Step::Nothing));
        assert_eq!(assembler.ignored().inserts, 3);
    }

    fn of(oid: u32, modifier: i32) -> ColumnType {
        ColumnType { oid, modifier }
    }

    #[test]
    fn a_domain_is_the_type_under_it_and_what_may_be_one_is_not_guessed() {
        let bases = [
            (13_000, of(23, -1)),
            (20_000, of(1700, 655_366)),
            (20_002, of(20_002, -1)),
        ];
        let types = BaseTypes::new(HashMap::from(bases), Lsn::new(100));
        let base = |oid, modifier, lsn| types.base(of(oid, modifier), Lsn::new(lsn));
        let amount = Some(of(1700, 655_366));
        assert_eq!(
            [
                base(20_000, -1, 50),
                base(20_000, -1, 150),
                base(1700, 655_366, 101)
            ],
            [amount; 3]
        );
        assert_eq!(
            [base(13_000, -1, 150), base(20_002, 5, 150)],
            [Some(of(23, -1)), Some(of(20_002, 5))]
        );
        // An enum, or a domain that was dropped since: text either way.
        assert_eq!(
            [base(20_001, -1, 100), base(20_001, -1, 101)],
            [Some(of(20_001, -1)), None]
        );
    }
}
