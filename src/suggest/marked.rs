//! What a table seems to note down about its rows: that they were published. To be shown, never to be set.

use super::name::Name;
use crate::postgres::catalog::Column;
use crate::postgres::quote::{quote_literal, quoted};

/// Words in the names of what says so.
const DONE: &[&str] = &["published", "processed", "sent", "dispatched", "delivered", "relayed", "handled", "completed"];
const STATUS: &[&str] = &["status", "state"];

/// SQL that may be meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Marked {
    /// The columns it is made of, described.
    pub(super) columns: String,
    /// True for rows that were not published.
    pub(super) pending: String,
    /// What ends that.
    pub(super) mark: String,
}

/// A word with a default, a flag that is false at first, or a time that is not set at first; with a time beside it.
pub(super) fn marked(columns: &[Column]) -> Option<Marked> {
    let named = |column: &Column, list: &[&str]| !column.generated && Name::of(&column.name).has_a_word_of(list);
    let is_time = |column: &&Column| column.is_timestamp();
    let at = columns.iter().filter(is_time).find(|column| !column.is_never_null() && named(column, DONE));
    let status = columns.iter().filter(|column| column.is_word() && named(column, STATUS));
    let status = status.filter_map(|column| Some((column, text_of(column.default.as_deref()?)?))).next();
    let is_flag = |column: &&Column| column.base.name == "bool" && column.default.as_deref() == Some("false");
    let flag = columns.iter().filter(is_flag).find(|column| named(column, DONE));
    let (first, pending, set) = match (status, flag) {
        (Some((column, text)), _) => {
            let (name, done) = (sql_name(&column.name), in_the_case_of(&text, "published"));
            let (text, done) = (quote_literal(&text).ok()?, quote_literal(&done).ok()?);
            (Some(column), format!("{name} = {text}"), Some(format!("{name} = {done}")))
        }
        (None, Some(column)) => {
            let name = sql_name(&column.name);
            (Some(column), format!("not {name}"), Some(format!("{name} = true")))
        }
        (None, None) => (None, format!("{} is null", sql_name(&at?.name)), None),
    };
    let stamp = at.map(|column| format!("{} = now()", sql_name(&column.name)));
    let described: Vec<String> = first.into_iter().chain(at).map(Column::described).collect();
    let mark: Vec<String> = set.into_iter().chain(stamp).collect();
    Some(Marked { columns: described.join("; "), pending, mark: mark.join(", ") })
}

/// The text of a default such as `'NEW'::text`.
fn text_of(default: &str) -> Option<String> {
    let (text, rest) = default.strip_prefix('\'')?.split_once('\'')?;
    (!text.is_empty() && (rest.is_empty() || rest.starts_with("::"))).then(|| text.to_owned())
}

fn in_the_case_of(known: &str, word: &str) -> String {
    let mut letters = known.chars().filter(|c| c.is_alphabetic());
    let first_is_capital = letters.next().is_some_and(char::is_uppercase);
    match (first_is_capital, letters.all(char::is_uppercase)) {
        (true, true) => word.to_uppercase(),
        (true, false) => {
            let mut characters = word.chars();
            characters.next().into_iter().flat_map(char::to_uppercase).chain(characters).collect()
        }
        (false, _) => word.to_owned(),
    }
}

/// With quotes where it needs them.
fn sql_name(name: &str) -> String {
    let is_plain = name.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit());
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if is_plain && starts { name.to_owned() } else { quoted(name) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::catalog::BaseType;

    fn column(name: &str, base: &str, default: Option<&str>) -> Column {
        let category = if base == "text" { "S" } else { "U" }.to_owned();
        let (name, base, default) = (name.to_owned(), base.to_owned(), default.map(str::to_owned));
        Column {
            name,
            type_name: base.clone(),
            base: BaseType { name: base, category, ..BaseType::default() },
            default,
            ..Column::default()
        }
    }

    #[test]
    fn what_a_table_notes_down_is_read_from_names_types_and_defaults() {
        let shown = |columns: &[Column]| marked(columns).map(|marked| (marked.pending, marked.mark));
        let texts = |pending: &str, mark: &str| Some((pending.to_owned(), mark.to_owned()));
        let status = |default| column("status", "text", default);
        let at = column("published_at", "timestamptz", None);
        assert_eq!(
            shown(&[status(Some("'PENDING'::text")), at.clone()]),
            texts("status = 'PENDING'", "status = 'PUBLISHED', published_at = now()")
        );
        assert_eq!(shown(&[status(Some("'it''s'::text"))]), None, "too odd to be one");
        assert_eq!(shown(&[status(Some("'New'::text"))]), texts("status = 'New'", "status = 'Published'"));
        assert_eq!(shown(&[status(None), at.clone()]), texts("published_at is null", "published_at = now()"));
        let flag = column("isSent", "bool", Some("false"));
        assert_eq!(shown(&[flag]), texts("not \"isSent\"", "\"isSent\" = true"));
        let filled = Column { not_null: true, ..at };
        assert_eq!(shown(&[status(None), filled, column("id", "uuid", None)]), None);
    }
}
