//! Columns of the database whose values, or whose schemas, are not written as Debezium writes them.

use super::Carrying;
use super::Effect::{self, Differs, MayDiffer, ToDo};
use super::connections::TABLES;
use crate::postgres::catalog::{self, Column};

pub(super) const ASK_CONSUMERS: &str =
    "have consumers take the new form, or change the connector to it first and then move";

/// Types of single values that go out as Debezium writes them. An enum does, too.
const ALIKE: &str = "bool int2 int4 int8 oid float4 float8 numeric text varchar bpchar char citext isbn date timestamp timestamptz \
                     time timetz interval uuid json jsonb xml bytea inet cidr macaddr macaddr8 int4range int8range numrange \
                     tsrange tstzrange daterange tsvector ltree";
/// Of these, types whose arrays Debezium does not write.
const ALONE: &str = "char isbn interval xml tsvector";

pub(super) fn unlike(carrying: &mut Carrying<'_>, name: &str) {
    default(carrying, name);
    let found = carrying.columns(name).into_iter().map(|column| (column.type_name.clone(), doubts(column)));
    let mut found: Vec<_> =
        found.flat_map(|(of, doubts)| doubts.into_iter().map(move |doubt| (of.clone(), doubt))).collect();
    found.dedup_by(|(_, one), (_, other)| one == other);
    for (of, (effect, why, what_to_do)) in found {
        carrying.left(TABLES, effect, format!("column {name} is of type {of} and {why}"), what_to_do);
    }
}

/// Lists a column whose NULL is its default in Debezium's records: the router takes values with Kafka Connect's
/// `Struct.get`, and `PostgresDefaultValueConverter` has a substitute for a default that is a function.
fn default(carrying: &mut Carrying<'_>, name: &str) {
    let is_default = |column: &&Column| has_default(column) && !column.is_never_null() && !is_bytea(column);
    if carrying.columns(name).iter().any(is_default) {
        let why = format!("in place of NULL in column {name} Debezium sends the column's default, and walrelay NULL");
        carrying.left(TABLES, MayDiffer, why, "make the column NOT NULL, or write {COLUMN|default('…')}");
    }
}

/// What is otherwise of a column's values, by its type: the effect, why, and what to do.
fn doubts(column: &Column) -> Vec<(Effect, &'static str, &'static str)> {
    let base = column.base.name.as_str();
    let element = base.strip_prefix('_').unwrap_or(base);
    let is_array = column.base.category == "A";
    if !is_alike(column) {
        return vec![(Differs, "goes out as Postgres prints it", ASK_CONSUMERS)];
    }
    let mut doubts = Vec::new();
    match element {
        "float4" | "float8" => {
            let why = "has other digits in some values where Debezium runs on a Java before 19, and in more where role or \
                       database set extra_float_digits";
            doubts.push((MayDiffer, why, ASK_CONSUMERS));
        }
        "numeric" | "interval" => {
            let why = "stops the relay at NaN and infinity, for which Debezium sends NULL or 0";
            doubts.push((ToDo, why, "write numbers and durations only"));
        }
        "timetz" => {
            let why = "goes out also where Debezium sends NULL: with seconds in its offset";
            doubts.push((MayDiffer, why, "let offsets be of whole minutes"));
        }
        _ => {}
    }
    if is_array {
        let why = "stops the relay at an array of several dimensions, for whose arrays Debezium sends NULL";
        doubts.push((ToDo, why, "write arrays of one dimension"));
    }
    if is_array && matches!(element, "date" | "timestamp" | "timestamptz" | "time" | "timetz") {
        let why = "goes out as a single value does. Debezium has other days before 1582-10-15, other values for infinity and \
                   for 24:00:00, and no microseconds of a time";
        doubts.push((MayDiffer, why, ASK_CONSUMERS));
    }
    if is_array && (!has_name(ALIKE, element) || element == "ltree") {
        let why = "goes out also where Debezium sends NULL: with a NULL in the array";
        doubts.push((MayDiffer, why, "write arrays without NULL"));
    }
    doubts
}

fn has_name(names: &str, wanted: &str) -> bool {
    names.split_whitespace().any(|name| name == wanted)
}

/// Whether most values go out as Debezium writes them.
fn is_alike(column: &Column) -> bool {
    /// `text[]`, for which the catalogs' query takes the array of an enum and of two extensions' types.
    const TEXT_ARRAY: u32 = 1009;
    let base = &column.base;
    match base.name.strip_prefix('_').filter(|_| base.category == "A") {
        Some(element) => base.oid == TEXT_ARRAY || (has_name(ALIKE, element) && !has_name(ALONE, element)),
        None => base.category == "E" || has_name(ALIKE, &base.name),
    }
}

/// Geometric types, strings of bits and further types that are no single value in Java.
pub(super) fn is_structure(column: &Column) -> bool {
    let base = &column.base;
    matches!(base.category.as_str(), "G" | "V") || matches!(base.name.as_str(), "hstore" | "money")
}

pub(super) fn is_bytea(column: &Column) -> bool {
    column.form() == catalog::Form::Bytea
}

/// Whether an omitted value is another than NULL.
fn has_default(column: &Column) -> bool {
    column.default.as_deref().is_some_and(|sql| !sql.starts_with("NULL::"))
}

/// Whether a column's schema is that of its type alone, with or without NOT NULL.
pub(super) fn has_plain_schema(column: &Column) -> bool {
    let base = &column.base;
    let is_named = matches!(base.name.as_str(), "ltree" | "_ltree") || base.category == "E";
    let is_enums = base.category == "A" && !base.name.strip_prefix('_').is_some_and(|name| has_name(ALIKE, name));
    !has_default(column) && is_alike(column) && !is_named && !is_enums && !base.domain_not_null
}
