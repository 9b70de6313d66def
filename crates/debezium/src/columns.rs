//! Columns of the database whose values, or whose schemas, are not written as Debezium writes them.

use crate::Carrying;
use crate::Effect::{self, Differs, MayDiffer, ToDo};
use crate::connections::TABLES;
use walrelay_core::catalog::{self, Column};

pub(crate) const ASK_CONSUMERS: &str =
    "have consumers take the new form, or change the connector to it first and then move";

/// Types of single values that go out as Debezium writes them. An enum does, too.
const ALIKE: &str = "bool int2 int4 int8 oid float4 float8 numeric text varchar bpchar char citext \
                     isbn date timestamp timestamptz \
                     time timetz interval uuid json jsonb xml bytea inet cidr macaddr macaddr8 \
                     int4range int8range numrange \
                     tsrange tstzrange daterange tsvector ltree";
/// Of these, types whose values are text in Kafka Connect.
const TEXTS: &str = "text varchar bpchar char citext isbn timestamptz timetz uuid json jsonb xml \
                     inet cidr macaddr macaddr8 \
                     int4range int8range numrange tsrange tstzrange daterange tsvector ltree";
/// Of these, types whose arrays Debezium does not write.
const ALONE: &str = "char isbn interval xml tsvector";

/// A doubt about values, and the columns that it is about, each with its type.
struct Doubted {
    doubt: Doubt,
    columns: Vec<String>,
}

type Doubt = (Effect, &'static str, &'static str);

/// Lists what is otherwise of these columns: a line for each doubt.
pub(crate) fn unlike<'n>(carrying: &mut Carrying<'_>, names: impl Iterator<Item = &'n str>) {
    let mut all: Vec<Doubted> = Vec::new();
    let mut with_default: Vec<&str> = Vec::new();
    let mut seen = Vec::new();
    for name in names {
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        if has_substitute(carrying, name) {
            with_default.push(name);
        }
        for column in carrying.columns(name) {
            let shown = format!("{name} ({})", column.type_name);
            for doubt in doubts(column) {
                match all.iter_mut().find(|known| known.doubt == doubt) {
                    Some(known) if known.columns.contains(&shown) => {}
                    Some(known) => known.columns.push(shown.clone()),
                    None => all.push(Doubted {
                        doubt,
                        columns: vec![shown.clone()],
                    }),
                }
            }
        }
    }
    if !with_default.is_empty() {
        let why = format!(
            "in place of NULL Debezium sends the column's default, and walrelay NULL: {}",
            with_default.join(", ")
        );
        carrying.left(
            TABLES,
            MayDiffer,
            why,
            "make the column NOT NULL, or write {COLUMN|default('…')}",
        );
    }
    for Doubted {
        doubt: (effect, why, what_to_do),
        columns,
    } in all
    {
        carrying.left(
            TABLES,
            effect,
            format!("{why}: {}", columns.join(", ")),
            what_to_do,
        );
    }
}

/// Whether a column's NULL is its default in Debezium's records: the router takes values with Kafka
/// Connect's `Struct.get`, and `PostgresDefaultValueConverter` has a substitute for a default that
/// is a function.
fn has_substitute(carrying: &Carrying<'_>, name: &str) -> bool {
    let is_default =
        |column: &&Column| has_default(column) && !column.is_never_null() && !is_bytea(column);
    carrying.columns(name).iter().any(is_default)
}

/// What is otherwise of a column's values, by its type: the effect, why, and what to do.
fn doubts(column: &Column) -> Vec<Doubt> {
    let base = column.base.name.as_str();
    let element = base.strip_prefix('_').unwrap_or(base);
    let is_array = column.base.category == "A";
    if !is_alike(column) {
        return vec![(
            Differs,
            "a value goes out as Postgres prints it",
            ASK_CONSUMERS,
        )];
    }
    let mut doubts = Vec::new();
    match element {
        "float4" | "float8" => {
            let why = "some values have other digits where Debezium runs on a Java before 19, and \
                       more of them where role or \
                       database set extra_float_digits";
            doubts.push((MayDiffer, why, ASK_CONSUMERS));
        }
        "numeric" | "interval" => {
            let why = "NaN and infinity stop the relay, and Debezium sends NULL or 0 for them";
            doubts.push((ToDo, why, "write numbers and durations only"));
        }
        "timetz" => {
            let why = "with seconds in its offset a value goes out, and Debezium sends NULL";
            doubts.push((MayDiffer, why, "let offsets be of whole minutes"));
        }
        _ => {}
    }
    if is_array {
        let why = "an array of several dimensions stops the relay, and Debezium sends NULL for the \
                   arrays in it";
        doubts.push((ToDo, why, "write arrays of one dimension"));
    }
    if is_array
        && matches!(
            element,
            "date" | "timestamp" | "timestamptz" | "time" | "timetz"
        )
    {
        let why = "an element goes out as a single value does. Debezium has other days before \
                   1582-10-15, other values for infinity and \
                   for 24:00:00, and no microseconds of a time";
        doubts.push((MayDiffer, why, ASK_CONSUMERS));
    }
    if is_array && (!has_name(ALIKE, element) || element == "ltree") {
        let why = "an array with a NULL in it goes out, and Debezium sends NULL";
        doubts.push((MayDiffer, why, "write arrays without NULL"));
    }
    doubts
}

fn has_name(names: &str, wanted: &str) -> bool {
    names.split_whitespace().any(|name| name == wanted)
}

/// Whether most values go out as Debezium writes them.
fn is_alike(column: &Column) -> bool {
    /// `text[]`, for which the catalogs' query takes the array of an enum and of two extensions'
    /// types.
    const TEXT_ARRAY: u32 = 1009;
    let base = &column.base;
    match base.name.strip_prefix('_').filter(|_| base.category == "A") {
        Some(element) => {
            base.oid == TEXT_ARRAY || (has_name(ALIKE, element) && !has_name(ALONE, element))
        }
        None => base.category == "E" || has_name(ALIKE, &base.name),
    }
}

/// Whether Debezium reads its values as text, as a topic needs.
pub(crate) fn is_text(column: &Column) -> bool {
    let is_other = column.base.category == "A" || is_bytea(column);
    let name = column.base.name.as_str();
    let is_text = column.base.category == "E" || has_name(TEXTS, name) || !is_alike(column);
    is_text && !is_other && !is_structure(column)
}

/// Geometric types, strings of bits and further types that are no single value in Java.
pub(crate) fn is_structure(column: &Column) -> bool {
    let base = &column.base;
    matches!(base.category.as_str(), "G" | "V") || matches!(base.name.as_str(), "hstore" | "money")
}

pub(crate) fn is_bytea(column: &Column) -> bool {
    column.form() == catalog::Form::Bytea
}

/// Whether an omitted value is another than NULL.
fn has_default(column: &Column) -> bool {
    column
        .default
        .as_deref()
        .is_some_and(|sql| !sql.starts_with("NULL::"))
}

/// Whether a column's schema is that of its type alone, with or without NOT NULL.
pub(crate) fn has_plain_schema(column: &Column) -> bool {
    let base = &column.base;
    let is_named = matches!(base.name.as_str(), "ltree" | "_ltree") || base.category == "E";
    let is_enums = base.category == "A"
        && !base
            .name
            .strip_prefix('_')
            .is_some_and(|name| has_name(ALIKE, name));
    !has_default(column) && is_alike(column) && !is_named && !is_enums && !base.domain_not_null
}
