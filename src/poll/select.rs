//! The facts of an outbox table, and the choice of its rows, as SQL.
//!
//! Names go through [`quote_ident`], texts through [`quote_literal`]; numbers and snapshots are
//! written by their own types. Only the operator's conditions stand as they are (P11).

use crate::postgres::quote::{quote_ident, quote_list, quote_literal, quote_own_rows, quoted};
use crate::source::preflight::has_payload;
use walrelay_core::catalog::{Column, Table};
use walrelay_core::catch_up::{Copies, Key, Which};
use walrelay_core::config::{OutboxConfig, TableName};
use walrelay_core::decode;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::snapshot::Snapshot;

/// The facts of an outbox table that reading its rows needs.
#[derive(Debug, Clone)]
pub struct TableFacts {
    /// The table's OID.
    pub oid: u32,
    pub(crate) name: TableName,
    /// The outbox's columns, in their order, with the base types of domains.
    pub columns: Vec<decode::RelationColumn>,
    /// The columns that name a row, the id first.
    pub key: Vec<Column>,
    /// The `xid8` column that defaults to `pg_current_xact_id()`.
    pub xid_column: Option<String>,
    /// Whether that is never NULL.
    pub xid_not_null: bool,
    /// The order of rows before the id.
    pub order: Option<Order>,
    /// The column with the event's time: a timestamp, or a date where it is configured.
    pub time: Option<String>,
    /// Whether the role has all necessary privileges. Without one on the schema, the configured
    /// order is not among the facts.
    pub may_select: bool,
    /// Whether the role may read all columns and `xmin`, and so lock the table against a rewrite.
    pub may_lock: bool,
    pub(crate) with_children: bool,
}

/// An SQL expression for this column that Postgres itself orders: a column of another type is
/// compared as text.
fn comparable(column: &Column) -> Result<String> {
    let name = quote_ident(&column.name)?;
    Ok(if column.base.is_ordered {
        name
    } else {
        format!("{name}::text collate \"C\"")
    })
}

/// The order of rows.
#[derive(Debug, Clone)]
pub struct Order {
    /// One SQL expression.
    pub sql: String,
    /// The base type in SQL.
    pub type_name: String,
    /// Whether it is known to be never NULL.
    pub not_null: bool,
    /// Whether it was found in the catalog, not configured.
    pub is_found: bool,
}

impl Order {
    fn of(column: &Column) -> Result<Order> {
        let sql = quote_ident(&column.name)?;
        let type_name = column.base.sql.clone();
        Ok(Order {
            sql,
            type_name,
            not_null: column.not_null,
            is_found: true,
        })
    }
}

impl TableFacts {
    /// The order in which rows are read, as SQL. A [`Key`] is valid only in the order in which it
    /// was read.
    pub(crate) fn ordered_by(&self) -> Option<String> {
        let order = self.order.as_ref().map(|order| order.sql.clone());
        let rest = self.key.iter().skip(1).map(|column| quoted(&column.name));
        let all: Vec<String> = order.into_iter().chain(rest).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// The facts in the catalogs.
    pub(super) fn found(
        table: &Table,
        name: &TableName,
        outbox: &OutboxConfig,
    ) -> Result<TableFacts> {
        if !table.is_table() {
            return Err(
                Error::new(Kind::Publication, format_args!("{name} is not a table"))
                    .remedy("name the table that events are inserted into"),
            );
        }
        let column = |wanted: &String| table.needed_column(name, wanted);
        for routed in outbox.routed_columns() {
            has_payload(name, outbox, routed, column(routed)?.base.oid)?;
        }
        let columns = outbox
            .columns
            .iter()
            .map(|name| column(name).map(as_streamed))
            .collect::<Result<_>>()?;
        let id = column(&outbox.names.id)?;
        let key = outbox
            .index_columns()
            .map(|name| column(name).cloned())
            .collect::<Result<_>>()?;
        let xid = table.xid_column();
        let counter = table.counters().find(|column| column.is_integer());
        let order = counter.or_else(|| Some(id).filter(|id| id.is_integer()));
        Ok(TableFacts {
            oid: table.oid,
            name: name.clone(),
            columns,
            key,
            xid_column: xid.map(|column| column.name.clone()),
            xid_not_null: xid.is_some_and(|column| column.not_null),
            order: order.map(Order::of).transpose()?,
            time: table
                .time_of(name, outbox.upkeep.time.as_deref())?
                .map(|column| column.name.clone()),
            may_select: true,
            may_lock: table.may_select,
            with_children: table.is_partitioned(),
        })
    }
}

/// A column as the stream describes it, with the base type of a domain.
pub(crate) fn as_streamed(column: &Column) -> decode::RelationColumn {
    decode::RelationColumn {
        name: column.name.clone(),
        type_oid: column.base.oid,
        type_modifier: column.type_modifier,
    }
}

/// The remedy where no column has the order of an aggregate's events.
pub(crate) const NEEDS_ORDER: &str = "set outbox.order_by to a column that goes up from event to \
                                      event of an aggregate: a version, a \
                               sequence, the time of the insert (clock_timestamp(), not now())";

/// The ids below are no transaction's: `FirstNormalTransactionId`
/// (<https://www.postgresql.org/docs/current/routine-vacuuming.html#VACUUM-FOR-WRAPAROUND>).
const FIRST_NORMAL_XID: u32 = 3;

/// Rows to read.
#[derive(Debug, Clone, Copy)]
pub struct Selection<'a> {
    /// The choice of rows.
    pub which: Which<'a>,
    /// Only rows of transactions that this snapshot sees; all rows where no column has the
    /// transaction.
    pub until: Option<&'a Snapshot>,
    /// Only rows after this one.
    pub after: Option<&'a Key>,
    /// The greatest number of rows.
    pub limit: Option<u64>,
}

impl<'a> Selection<'a> {
    /// All of these rows.
    pub fn of(which: Which<'a>) -> Selection<'a> {
        Selection {
            which,
            until: None,
            after: None,
            limit: None,
        }
    }
}

/// Selects the outbox's columns in their order, then the order of the row, its transaction column,
/// and its `xmin` if that is another one. Rows come by their order, NULL last, and by their row
/// key.
///
/// # Errors
/// [`Kind::Config`] for a setting that is missing, a text that cannot be sent, and a key of another
/// order than the table's.
pub fn rows(
    facts: &TableFacts,
    outbox: &OutboxConfig,
    selection: &Selection<'_>,
) -> Result<String> {
    // ORDER BY takes a bare name for that of an output column, if there is one: these are called
    // what no column is.
    let order = facts
        .order
        .as_ref()
        .map_or("null".to_owned(), |order| format!("({})::text", order.sql));
    let mut by: Vec<String> = facts
        .order
        .iter()
        .map(|order| format!("({})", order.sql))
        .collect();
    for column in &facts.key {
        by.push(comparable(column)?);
    }
    let mut sql = format!(
        "select {}, {order} as \"the order as text\", {} from {} where {} order by {}",
        quote_list(&outbox.columns)?,
        version(facts)?.join(", "),
        from(facts)?,
        condition(facts, outbox, selection)?,
        by.join(", ")
    );
    limit(&mut sql, selection);
    Ok(sql)
}

/// Selects the number of rows.
pub fn count(
    facts: &TableFacts,
    outbox: &OutboxConfig,
    selection: &Selection<'_>,
) -> Result<String> {
    let mut sql = format!(
        "select 1 from {} where {}",
        from(facts)?,
        condition(facts, outbox, selection)?
    );
    limit(&mut sql, selection);
    Ok(format!("select count(*) from ({sql}) as counted"))
}

/// Selects the number of rows, and the first and the last time, or two NULLs where the table has no
/// time.
pub fn extent(
    facts: &TableFacts,
    outbox: &OutboxConfig,
    selection: &Selection<'_>,
) -> Result<String> {
    let time = facts
        .time
        .as_deref()
        .map(quote_ident)
        .transpose()?
        .unwrap_or_else(|| "null::text".to_owned());
    let condition = condition(facts, outbox, selection)?;
    Ok(format!(
        "select count(*), min({time})::text, max({time})::text from {} where {condition}",
        from(facts)?
    ))
}

/// The snapshot sees no row of this transaction or a later one. An exported snapshot can have an
/// `xmin` above its `xmax`, and sees the transactions below its `xmin`. A separate query, which
/// Postgres evaluates once and not for each row.
const NEXT: &str = "(select greatest(pg_snapshot_xmin(pg_current_snapshot()), \
                    pg_snapshot_xmax(pg_current_snapshot())))";

/// The latest transaction with the 32 bits of the row's `xmin`. It is the row's or a later one.
pub(super) fn written_by() -> String {
    format!(
        "({NEXT}::text::bigint - (({NEXT}::text::bigint - xmin::text::bigint) & 4294967295))::text"
    )
}

/// The transaction column, and `xmin` where it is not the same transaction, both as text.
fn version(facts: &TableFacts) -> Result<[String; 2]> {
    let xid = facts
        .xid_column
        .as_ref()
        .map(|xid| quote_ident(xid))
        .transpose()?;
    let told = xid
        .as_ref()
        .map_or("null".to_owned(), |xid| format!("{xid}::text"));
    let xmin = match xid {
        // Who may read some of the columns only may not read xmin.
        Some(_) if !facts.may_lock => "null".to_owned(),
        Some(xid) => format!(
            "case when xmin = {xid}::xid and {xid} < {NEXT} then null else {} end",
            written_by()
        ),
        None => written_by(),
    };
    Ok([
        format!("{told} as \"the transaction as text\""),
        format!("{xmin} as \"xmin as text\""),
    ])
}

/// Rows of tables that inherit are no events; those of partitions are.
pub(super) fn from(facts: &TableFacts) -> Result<String> {
    quote_own_rows(&facts.name, facts.with_children)
}

fn limit(sql: &mut String, selection: &Selection<'_>) {
    if let Some(limit) = selection.limit {
        sql.push_str(&format!(" limit {}", limit.min(i64::MAX.unsigned_abs())));
    }
}

fn condition(
    facts: &TableFacts,
    outbox: &OutboxConfig,
    selection: &Selection<'_>,
) -> Result<String> {
    let mut all = Vec::new();
    match selection.which {
        Which::All => {}
        Which::Pending => match &outbox.upkeep.pending {
            Some(pending) => all.push(format!("({pending})")),
            None => {
                return Err(needed(
                    "outbox.pending",
                    "such as pending = \"status = 'NEW'\"",
                ));
            }
        },
        Which::Since(time) => match &facts.time {
            Some(column) => all.push(format!(
                "{} >= {}",
                quote_ident(column)?,
                quote_literal(time)?
            )),
            None => {
                return Err(needed(
                    "outbox.time",
                    "the column with the time the event was written",
                ));
            }
        },
        Which::Unpublished {
            snapshot,
            also,
            copies,
        } => all.push(unpublished(facts, snapshot, also, copies)?),
        Which::Where(sql) => all.push(format!("({sql})")),
    }
    if let (Some(until), Some(xid)) = (selection.until, &facts.xid_column) {
        let xid = quote_ident(xid)?;
        let mut seen = format!(
            "pg_visible_in_snapshot({xid}, {})",
            snapshot_literal(until)?
        );
        // A row that is older than the transaction in its column has that of another server.
        if facts.may_lock {
            let xmin = format!("{}::xid8", written_by());
            let xmax = until.xmax();
            seen = format!("({seen} or {xid} > {xmin} and {xmin} < '{xmax}'::xid8)");
        }
        all.push(if facts.xid_not_null {
            seen
        } else {
            format!("({xid} is null or {seen})")
        });
    }
    if let Some(key) = selection.after {
        all.push(behind(facts, outbox, key)?);
    }
    Ok(if all.is_empty() {
        "true".to_owned()
    } else {
        all.join(" and ")
    })
}

fn needed(setting: &str, remedy: &str) -> Error {
    Error::new(
        Kind::Config,
        format_args!("{setting} is not set, and rows are to be chosen by it"),
    )
    .remedy(format_args!("set {setting}: {remedy}"))
}

fn snapshot_literal(snapshot: &Snapshot) -> Result<String> {
    Ok(format!(
        "{}::pg_snapshot",
        quote_literal(&snapshot.to_string())?
    ))
}

/// Transactions that the snapshot did not see are the running ones and the later ones, so an index
/// on the column finds their rows, however long the oldest one runs.
fn unpublished(
    facts: &TableFacts,
    snapshot: &Snapshot,
    also: &[u64],
    copies: Option<Copies<'_>>,
) -> Result<String> {
    let by_xmin = by_xmin(snapshot);
    let Some(xid) = &facts.xid_column else {
        return Ok(by_xmin);
    };
    let xid = quote_ident(xid)?;
    let mut by_xid = format!("{xid} >= '{}'::xid8", snapshot.xmax());
    if !snapshot.running().is_empty() {
        by_xid = format!(
            "({by_xid} or {xid} = any ('{{{}}}'::xid8[]))",
            list(snapshot.running())
        );
    }
    if !also.is_empty() {
        by_xid.push_str(&format!(" and {xid} <> all ('{{{}}}'::xid8[])", list(also)));
    }
    let mut any = Vec::new();
    if facts.may_lock {
        // No row is older than its transaction: else the column has an id of another server, or of
        // a later ALTER TABLE.
        let is_true = format!(
            "xmin = {xid}::xid and {xid} < {NEXT} or {xid} < {}::xid8",
            written_by()
        );
        any.push(format!("{by_xid} and ({is_true} or {by_xmin})"));
        any.extend(
            copies
                .map(|copies| copied(&xid, also, copies))
                .transpose()?,
        );
    } else {
        any.push(by_xid);
    }
    if !facts.xid_not_null {
        any.push(format!("{xid} is null and {by_xmin}"));
    }
    Ok(format!("({})", any.join(" or ")))
}

/// The condition for copied rows that are not published; NULL where the column is.
pub(crate) fn copied(xid: &str, also: &[u64], copies: Copies<'_>) -> Result<String> {
    let Copies {
        snapshot,
        before,
        savepoints,
        all_from,
    } = copies;
    let xmin = format!("{}::xid8", written_by());
    let not_any =
        |value: &str, xids: &[u64]| format!("{value} <> all ('{{{}}}'::xid8[])", list(xids));
    let mut is_later = format!(
        "({xmin} >= '{}'::xid8 or {xmin} = any ('{{{}}}'::xid8[]))",
        snapshot.xmax(),
        list(snapshot.running())
    );
    for (value, published) in [(xid, also), (&xmin, savepoints)] {
        if !published.is_empty() {
            is_later.push_str(&format!(" and {}", not_any(value, published)));
        }
    }
    let mut any = vec![is_later];
    if let Some(before) = before {
        any.push(format!(
            "pg_visible_in_snapshot({xid}, {})",
            snapshot_literal(before)?
        ));
    }
    any.extend(all_from.map(|from| format!("{xmin} >= '{from}'::xid8")));
    let by_xmin = by_xmin(snapshot);
    // The remedy for rows of another server writes an id that no transaction has.
    Ok(format!(
        "xmin <> {xid}::xid and {xid} >= '{FIRST_NORMAL_XID}'::xid8 and {by_xmin} and ({})",
        any.join(" or ")
    ))
}

fn list(xids: &[u64]) -> String {
    xids.iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

/// How many transactions ago the row was written, on the circle of 32-bit ids, against how many ago
/// the oldest was begun that the snapshot does not see. Where that is once round or more, every row
/// is one of them.
fn by_xmin(snapshot: &Snapshot) -> String {
    let oldest = snapshot.xmin().min(i64::MAX.unsigned_abs());
    let next = format!("{NEXT}::text::bigint");
    format!(
        "(({next} - xmin::text::bigint) & 4294967295 <= {next} - {oldest} \
         and xmin::text::bigint >= {FIRST_NORMAL_XID})"
    )
}

/// The rows that come after the one with this key: of its order those with a larger row key, all of
/// a later order, and, being last, those without one. Where rows have no row key, those of the same
/// order and id come again: one of them may be another. A NULL counts as larger than any value, so
/// that it is met and not passed over.
fn behind(facts: &TableFacts, outbox: &OutboxConfig, key: &Key) -> Result<String> {
    let given: Vec<&String> = std::iter::once(&key.id).chain(&key.rest).collect();
    let above = if outbox.row_key.is_some() { ">" } else { ">=" };
    let mut columns = Vec::new();
    let mut values = Vec::new();
    for (column, value) in facts.key.iter().zip(given) {
        columns.push(comparable(column)?);
        let type_name = if column.base.is_ordered {
            &column.base.sql
        } else {
            "text"
        };
        values.push(format!("{}::{type_name}", quote_literal(value)?));
    }
    let of_key = |columns: &[String]| {
        if columns.len() == 1 {
            columns.concat()
        } else {
            format!("({})", columns.join(", "))
        }
    };
    let larger = format!("{} {above} {}", of_key(&columns), of_key(&values));
    // No other column of a row key may be NULL.
    let nullable = columns
        .first()
        .filter(|_| facts.key.first().is_some_and(|id| !id.not_null));
    let larger = match nullable {
        Some(id) => format!("({larger} or {id} is null)"),
        None => larger,
    };
    let (order, value) = match (&facts.order, &key.order) {
        (None, None) => return Ok(larger),
        (Some(order), None) if !order.not_null => {
            return Ok(format!("(({}) is null and {larger})", order.sql));
        }
        (Some(order), Some(value)) => (
            order,
            format!("{}::{}", quote_literal(value)?, order.type_name),
        ),
        (Some(_), None) | (None, Some(_)) => {
            let cause = format!(
                "the place reached in table {} was noted in another order than it has now",
                facts.name
            );
            return Err(Error::new(Kind::Config, cause)
                .remedy("set outbox.order_by back to what it was, or start over with these rows"));
        }
    };
    let sql = &order.sql;
    if order.not_null && nullable.is_none() {
        // Of several columns, this is the form an index on them is used for.
        return Ok(format!(
            "(({sql}), {}) {above} ({value}, {})",
            columns.join(", "),
            values.join(", ")
        ));
    }
    let nulls = if order.not_null {
        String::new()
    } else {
        format!(" or ({sql}) is null")
    };
    Ok(format!(
        "(({sql}) > {value} or ({sql}) = {value} and {larger}{nulls})"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_core::config::outbox::Columns;
    use walrelay_core::config::{EventSource, RowKey, Upkeep};
    use walrelay_core::testing::{column_of, with_default};

    fn outbox() -> OutboxConfig {
        OutboxConfig {
            source: EventSource::Table("shop.\"Out\"\"box\"".parse().unwrap()),
            columns: vec!["id".to_owned(), "pay\"load".to_owned()],
            row_key: Some(RowKey {
                places: vec![0],
                transaction: None,
                added: 0,
            }),
            upkeep: Upkeep {
                pending: Some("state = 'NEW' or sent is null".to_owned()),
                ..Upkeep::default()
            },
            ..OutboxConfig::default()
        }
    }

    fn order(sql: &str, not_null: bool) -> Option<Order> {
        Some(Order {
            sql: sql.to_owned(),
            type_name: "bigint".to_owned(),
            not_null,
            is_found: true,
        })
    }

    fn facts() -> TableFacts {
        TableFacts {
            oid: 1,
            name: "shop.\"Out\"\"box\"".parse().unwrap(),
            columns: Vec::new(),
            key: vec![Column {
                not_null: true,
                ..column_of("id", "uuid")
            }],
            xid_column: Some("x".to_owned()),
            xid_not_null: true,
            order: order("\"seq\"", true),
            time: Some("at".to_owned()),
            may_select: true,
            may_lock: true,
            with_children: false,
        }
    }

    fn key(order: Option<&str>, id: &str) -> Key {
        Key {
            order: order.map(str::to_owned),
            id: id.to_owned(),
            rest: Vec::new(),
        }
    }

    fn after(key: &Key) -> Selection<'_> {
        Selection {
            after: Some(key),
            ..Selection::of(Which::All)
        }
    }

    #[test]
    fn a_key_of_another_order_than_the_tables_is_refused() {
        for (order, of) in [(order("s", true), None), (None, Some("7"))] {
            let facts = TableFacts { order, ..facts() };
            assert_eq!(
                rows(&facts, &outbox(), &after(&key(of, "i")))
                    .unwrap_err()
                    .kind(),
                Kind::Config
            );
        }
    }

    #[test]
    fn a_row_without_a_row_key_is_read_again_with_those_of_its_id() {
        let nameless = OutboxConfig {
            row_key: None,
            ..outbox()
        };
        let key = key(Some("7"), "i");
        assert_eq!(
            behind(&facts(), &nameless, &key).unwrap(),
            "((\"seq\"), \"id\") >= ('7'::bigint, 'i'::uuid)"
        );
    }

    #[test]
    fn a_key_that_contains_sql_is_quoted() {
        let hostile = key(Some("1'::int) or (true"), "\\'; drop table x --");
        let sql = rows(&facts(), &outbox(), &after(&hostile)).unwrap();
        let quoted = "where ((\"seq\"), \"id\") > ('1''::int) or (true'::bigint,  E'\\\\''; drop \
                      table x --'::uuid) order by";
        assert!(sql.contains(quoted), "{sql}");
        let error = count(&facts(), &outbox(), &after(&key(Some("1"), "\0"))).unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
    }

    #[test]
    fn a_key_is_stored_as_json_and_parses_back() {
        let key = key(None, "a\"b");
        let text = serde_json::to_string(&key).unwrap();
        assert_eq!(text, r#"{"order":null,"id":"a\"b"}"#);
        assert_eq!(serde_json::from_str::<Key>(&text).unwrap(), key);
    }

    #[test]
    fn a_selection_by_pending_or_time_needs_that_setting() {
        let unset = OutboxConfig {
            upkeep: Upkeep::default(),
            ..outbox()
        };
        let pending = rows(&facts(), &unset, &Selection::of(Which::Pending)).unwrap_err();
        assert!(
            pending.cause().starts_with("outbox.pending is not set"),
            "{pending}"
        );
        let untimed = TableFacts {
            time: None,
            ..facts()
        };
        let since = rows(&untimed, &unset, &Selection::of(Which::Since("now"))).unwrap_err();
        assert!(
            since.what_to_do().unwrap().starts_with("set outbox.time"),
            "{since}"
        );
    }

    fn found_with(columns: Vec<Column>, upkeep: &Upkeep) -> Result<TableFacts> {
        let table = Table {
            kind: "r".to_owned(),
            columns,
            ..Table::default()
        };
        let outbox = OutboxConfig {
            columns: vec!["id".to_owned()],
            upkeep: upkeep.clone(),
            ..OutboxConfig::default()
        };
        TableFacts::found(&table, &TableName::debezium(), &outbox)
    }

    #[test]
    fn a_payload_of_type_oid_is_refused_as_by_the_stream() {
        let of = |base_oid: u32| {
            let mut payload = column_of("payload", "text");
            payload.base.oid = base_oid;
            let table = Table {
                kind: "r".to_owned(),
                columns: vec![payload],
                ..Table::default()
            };
            let columns = vec!["payload".to_owned()];
            let names = Columns {
                id: "payload".to_owned(),
                ..Columns::default()
            };
            let outbox = OutboxConfig {
                columns,
                names,
                ..outbox()
            };
            TableFacts::found(&table, &TableName::debezium(), &outbox)
        };
        let error = of(26).unwrap_err();
        assert!(
            error.cause().contains("is of type oid") && error.kind() == Kind::Publication,
            "{error}"
        );
        assert!(
            error
                .what_to_do()
                .unwrap()
                .contains("type bytea using lo_get"),
            "{error}"
        );
        assert!(of(17).is_ok());
    }

    fn found(columns: Vec<Column>) -> TableFacts {
        found_with(columns, &Upkeep::default()).unwrap()
    }

    #[test]
    fn the_order_is_a_column_with_increasing_numbers() {
        let identity = |name| Column {
            is_identity: true,
            not_null: true,
            ..column_of(name, "int8")
        };
        let default = |name, base, sql| with_default(column_of(name, base), sql);
        let serial = |name| default(name, "int4", "nextval('public.s'::regclass)");
        let id = |base| column_of("id", base);
        for (columns, expected) in [
            (
                vec![id("int8"), serial("n"), identity("se\"q")],
                Some(("\"se\"\"q\"", "bigint", true)),
            ),
            (
                vec![id("int8"), serial("n")],
                Some(("\"n\"", "integer", false)),
            ),
            (
                vec![id("int4"), column_of("n", "int8")],
                Some(("\"id\"", "integer", false)),
            ),
            (vec![id("uuid"), column_of("n", "int8")], None),
            // A number that is made of nothing in order, and a text that is.
            (
                vec![
                    id("uuid"),
                    default("n", "int8", "1"),
                    default("t", "text", "nextval('s')::text"),
                ],
                None,
            ),
        ] {
            let facts = found(columns);
            let found = facts
                .order
                .as_ref()
                .map(|order| (order.sql.as_str(), order.type_name.as_str(), order.not_null));
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_time_is_the_configured_column_or_one_with_a_known_name() {
        let others = [
            ("created", "timestamptz"),
            ("created_at", "text"),
            ("occurred_at", "timestamptz"),
            ("day", "date"),
        ];
        let all = || {
            [("id", "uuid")]
                .into_iter()
                .chain(others)
                .map(|(name, base)| column_of(name, base))
                .collect()
        };
        let named = |name: &str| {
            found_with(
                all(),
                &Upkeep {
                    time: Some(name.to_owned()),
                    ..Upkeep::default()
                },
            )
        };
        assert_eq!(found(all()).time.as_deref(), Some("occurred_at"));
        assert_eq!(named("day").unwrap().time.as_deref(), Some("day"));
        assert_eq!(
            found(vec![
                column_of("id", "uuid"),
                column_of("timestamp", "date")
            ])
            .time,
            None
        );
        for (name, what) in [
            (
                "created_at",
                "outbox.time: column created_at of public.outbox is of type text",
            ),
            ("x", "no column x"),
        ] {
            let error = named(name).unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            assert!(error.cause().contains(what), "{error}");
        }
    }
}
