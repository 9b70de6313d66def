//! Quotes names and texts for SQL (P11). Replication commands take no parameters, so quoting is the
//! only way.

use std::fmt::Display;

use walrelay_core::config::TableName;
use walrelay_core::config::name::in_quotes;
use walrelay_core::error::{Error, Kind, Result};

/// `name` as a quoted identifier. Refuses a name that is empty or holds NUL, which cannot be
/// quoted.
pub(crate) fn quote_ident(name: &str) -> Result<String> {
    if name.is_empty() {
        return Err(Error::new(Kind::Config, "a name for Postgres is empty"));
    }
    without_nul(name)?;
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

pub(crate) fn quote_list(names: &[String]) -> Result<String> {
    let quoted = names.iter().map(|name| quote_ident(name));
    Ok(quoted.collect::<Result<Vec<_>>>()?.join(", "))
}

pub(crate) fn quote_table(name: &TableName) -> Result<String> {
    Ok(format!(
        "{}.{}",
        quote_ident(name.schema())?,
        quote_ident(name.table())?
    ))
}

/// The table in a statement about its rows. Rows of partitions are events; rows of tables that
/// inherit from it are not.
pub(crate) fn quote_own_rows(name: &TableName, is_partitioned: bool) -> Result<String> {
    Ok(format!(
        "{}{}",
        if is_partitioned { "" } else { "only " },
        quote_table(name)?
    ))
}

/// `name` as a quoted identifier in a text for people. Refuses nothing; SQL that is sent uses
/// [`quote_ident`].
pub(crate) fn quoted(name: &str) -> String {
    in_quotes(name)
}

/// The SQL that changes a setting, for people. A line per statement: `alter system` refuses to run
/// with others. The remark ends it, so that it can also be pasted as one line.
pub(crate) fn altered(setting: &str, value: impl Display, remark: &str) -> String {
    let value = value.to_string().replace('\'', "''");
    format!("alter system set {setting} = '{value}';\nselect pg_reload_conf(); -- {remark}")
}

/// `text`, which must hold no NUL, as a string constant under any `standard_conforming_strings`.
pub(crate) fn quote_literal(text: &str) -> Result<String> {
    without_nul(text)?;
    let quoted = text.replace('\'', "''");
    // Only in an escape string does a backslash mean the same under both settings.
    Ok(if quoted.contains('\\') {
        format!(" E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    })
}

pub(crate) fn quote_literals(texts: &[impl AsRef<str>]) -> Result<String> {
    let quoted = texts.iter().map(|text| quote_literal(text.as_ref()));
    Ok(quoted.collect::<Result<Vec<_>>>()?.join(", "))
}

/// The condition that the time `column` is in a range of which an end may be open. In a session
/// whose zone is UTC, a column without a zone counts as UTC.
pub(crate) fn quote_range(
    column: &str,
    since: Option<&str>,
    until: Option<&str>,
) -> Result<String> {
    let column = quote_ident(column)?;
    let condition = |(end, compared): (Option<&str>, &str)| {
        let end = quote_literal(end?);
        Some(end.map(|end| format!("{column} {compared} {end}::pg_catalog.timestamptz")))
    };
    let conditions = [(since, ">="), (until, "<")].into_iter();
    let conditions = conditions.filter_map(condition);
    Ok(conditions.collect::<Result<Vec<_>>>()?.join(" and "))
}

/// The value of `publication_names` in `START_REPLICATION`: a list of one identifier within a
/// literal.
///
/// The server parses the literal and then splits the list of identifiers; it folds names without
/// quotes. The replication grammar has no escape strings: a backslash in a literal is an ordinary
/// character. <https://www.postgresql.org/docs/current/protocol-logical-replication.html>
pub(crate) fn publication_literal(publication: &str) -> Result<String> {
    Ok(format!(
        "'{}'",
        quote_ident(publication)?.replace('\'', "''")
    ))
}

fn without_nul(text: &str) -> Result<()> {
    if text.contains('\0') {
        return Err(Error::new(
            Kind::Config,
            format!("{text:?} holds a NUL character, which Postgres cannot take"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_and_literals_keep_quotes_case_and_commas() {
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
        assert_eq!(
            (quoted("a\u{1b}\\b").as_str(), quoted("a\\b").as_str()),
            (r#"U&"a\001b\\b""#, r#""a\b""#)
        );
        assert_eq!(
            quote_ident(r#"We,ird"x'; DROP"#).unwrap(),
            r#""We,ird""x'; DROP""#
        );
        assert_eq!(quote_literal("it's").unwrap(), "'it''s'");
        // Under both settings of standard_conforming_strings.
        assert_eq!(quote_literal(r"a\'b").unwrap(), r" E'a\\''b'");
        // The names of publications are quoted twice.
        assert_eq!(
            publication_literal(r#"My "Pub,x'\"#).unwrap(),
            r#"'"My ""Pub,x''\"'"#
        );
    }

    #[test]
    fn empty_identifiers_and_nul_characters_are_refused() {
        assert!(quote_ident("").is_err() && quote_ident("a\0").is_err());
        assert!(quote_literal("a\0").is_err() && publication_literal("a\0").is_err());
    }
}
