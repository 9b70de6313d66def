//! Rows of an outbox table, read with ordinary SQL instead of from a slot.
//!
//! | file | content |
//! |---|---|
//! | [`select`] | the facts of the table, and the choice of its rows, as SQL |
//! | [`reader`] | the session that reads them, a row at a time |
//!
//! ## Which rows were not published
//!
//! A snapshot has the transactions that had ended when it was taken: their rows were published, the
//! others were not. The exact source of a row's transaction is a column of type `xid8` with the
//! default `pg_current_xact_id()`. The column has the id of the top transaction, also with
//! savepoints, and an update of the row keeps it.
//!
//! A row that was copied with that column has the transaction of another row. Its `xmin` is another
//! one, of a transaction that the snapshot does not see. So rows are unpublished, too, whose column
//! the snapshot sees and whose `xmin` it does not see. [`Copies`] has what distinguishes them from
//! rows of savepoints. No index has `xmin`, so this reads the whole table; a poller does it now and
//! then. A row that is older than the transaction in its column has that of another server, with a
//! higher counter: `xmin` decides alone.
//!
//! Without such a column, the system column `xmin` decides, and finds all of the rows and possibly
//! more. The same holds for rows in which the column is NULL: they are older than the column, or
//! were written with an explicit NULL.
//!
//! - It has the id of the savepoint the row was written in, which is above that of the transaction
//!   around it and in no snapshot. So all that counts is whether it is at or above the oldest
//!   transaction that was under way.
//! - An update puts in its own id. A row that was published and updated since comes again. For the
//!   same reason, a published transaction says nothing about the rows with its id.
//! - It has 32 bits, and counts as the latest transaction with these. A row that was not written
//!   for four thousand million transactions may come again.
//! - Below 3 are ids of rows that were frozen by servers before 9.4: older than any snapshot. In
//!   the column, they count as published: an operator writes them there.
//!
//! All need ids of the server that took the snapshot. A table that was restored from a dump has
//! other ones.
//!
//! ## SQL of the operator
//!
//! `outbox.pending` and `outbox.order_by` become part of statements unchanged, in parentheses.
//! Postgres looks names in them up in `pg_catalog` alone, so types, functions and operators from
//! elsewhere need their schema. `lower_name(name)` is `public.lower_name(name)`, and `'x'::mood` is
//! `'x'::public.mood`. A comparison of the type `citext` without regard to case is `state
//! operator(public.=) 'open'::public.citext`. Comparing an enum with a string constant needs
//! nothing. So that pages do not overlap or leave gaps, rows are ordered by types that Postgres
//! itself compares: an order of another type is refused, an id of another type is compared as text.
//!
//! [`Copies`]: walrelay_core::catch_up::Copies

pub(crate) mod pending_index;
pub mod reader;
pub mod select;

pub(crate) use pending_index::{missing_index, missing_indexes};
pub(crate) use reader::all_table_facts;
pub use reader::{Began, PolledRow, Reader, RowStream, table_facts};
pub(crate) use reader::{RestoredRows, restored_rows};
pub(crate) use select::{NEEDS_ORDER, as_streamed, copied};
pub use select::{Order, Selection, TableFacts};
