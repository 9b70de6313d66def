//! Names and expressions for SQL: checked on input, quoted on output (P11).

use std::fmt;
use std::str::FromStr;

use crate::position::Lsn;
use crate::printable::is_harmful;

/// Postgres silently truncates longer identifiers (`NAMEDATALEN` - 1), so they are refused here.
pub(crate) const IDENTIFIER_BYTES_MAX: usize = 63;
/// The longest name of a topic, in bytes.
pub const TOPIC_BYTES_MAX: usize = 249;

/// Whether a column or a publication may have this name.
pub fn is_identifier(name: &str) -> bool {
    (1..=IDENTIFIER_BYTES_MAX).contains(&name.len()) && !name.contains('\0')
}

pub(crate) fn is_topic(name: &str) -> bool {
    (1..=TOPIC_BYTES_MAX).contains(&name.len())
        && name.bytes().all(is_plain)
        && !matches!(name, "." | "..")
}

/// Whether a name may have this byte without quotes.
pub fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// A name that is not allowed, and the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {what}: {why}")]
pub struct NameError {
    what: &'static str,
    text: String,
    why: &'static str,
}

/// A replication slot's name by the rule of Postgres: 1 to 63 characters of `[a-z0-9_]`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SlotName(String);

impl SlotName {
    /// The name, which needs no quotes in a replication command.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// How an operator gives up what commits at `lsn`, so that the slot goes on behind it.
    ///
    /// The slot decodes what commits at or behind its position, so that has to be past the start of
    /// the commit record.
    pub fn give_up(&self, lsn: Lsn) -> String {
        format!(
            "stop the relay, select pg_replication_slot_advance('{self}', '{lsn}'::pg_lsn + 1), \
             and start once with --adopt-slot: that gives the whole transaction up"
        )
    }
}

impl FromStr for SlotName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |why| NameError {
            what: "slot name",
            text: text.to_owned(),
            why,
        };
        if text.is_empty() || text.len() > IDENTIFIER_BYTES_MAX {
            return Err(error("it must have 1 to 63 characters"));
        }
        if !text
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
        {
            return Err(error(
                "only lower-case letters, digits and underscores are allowed",
            ));
        }
        Ok(SlotName(text.to_owned()))
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A table with its schema, as SQL reads it: `outbox` is `public.outbox`, `"Sales"."Out box"` keeps
/// its case.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TableName {
    schema: String,
    table: String,
}

impl TableName {
    /// `public.outbox`, the table of Debezium's Outbox Event Router.
    pub fn debezium() -> Self {
        TableName {
            schema: "public".to_owned(),
            table: "outbox".to_owned(),
        }
    }

    /// Of names as the catalogs have them.
    pub fn of(schema: &str, table: &str) -> Self {
        TableName {
            schema: schema.to_owned(),
            table: table.to_owned(),
        }
    }

    /// Unquoted.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Unquoted.
    pub fn table(&self) -> &str {
        &self.table
    }
}

impl FromStr for TableName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |why| NameError {
            what: "table name",
            text: text.to_owned(),
            why,
        };
        let (first, behind) = identifier(text).map_err(error)?;
        let (schema, (table, behind)) = match behind.strip_prefix('.') {
            Some(table) => (first, identifier(table).map_err(error)?),
            None => ("public".to_owned(), (first, behind)),
        };
        match behind.chars().next() {
            None => Ok(TableName { schema, table }),
            Some('.') => Err(error("it must be TABLE or SCHEMA.TABLE")),
            Some(_) => Err(error(
                "there is something behind the name; quote names with \"…\"",
            )),
        }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", quoted(&self.schema), quoted(&self.table))
    }
}

/// The identifier at the beginning of `text`, read as SQL does: an unquoted one folds to lower
/// case.
fn identifier(text: &str) -> Result<(String, &str), &'static str> {
    let escaped = text
        .strip_prefix("U&\"")
        .or_else(|| text.strip_prefix("u&\""));
    let (name, rest) = match (text.strip_prefix('"'), escaped) {
        (Some(quoted), _) => quoted_identifier(quoted)?,
        (None, Some(escaped)) => {
            let (name, rest) = quoted_identifier(escaped)?;
            (unescaped(&name)?, rest)
        }
        (None, None) => {
            let end = text
                .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'))
                .unwrap_or(text.len());
            let (name, rest) = text.split_at(end);
            (name.to_lowercase(), rest)
        }
    };
    match name.len() {
        0 => Err("a part of it is empty"),
        1..=IDENTIFIER_BYTES_MAX if name.contains('\0') => Err("it holds a NUL character"),
        1..=IDENTIFIER_BYTES_MAX => Ok((name, rest)),
        _ => Err("a part of it is longer than 63 bytes"),
    }
}

fn quoted_identifier(quoted: &str) -> Result<(String, &str), &'static str> {
    let mut name = String::new();
    let mut rest = quoted;
    loop {
        let (before, after) = rest.split_once('"').ok_or("a quote is not closed")?;
        name.push_str(before);
        match after.strip_prefix('"') {
            Some(next) => {
                name.push('"');
                rest = next;
            }
            None => return Ok((name, after)),
        }
    }
}

/// The name as SQL writes it, quoted where necessary.
pub fn quoted(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
    if plain {
        name.to_owned()
    } else {
        in_quotes(name)
    }
}

/// The name in quotes. Characters that are not shown are Unicode escapes of SQL, as in
/// `U&"a\001b"`.
pub fn in_quotes(name: &str) -> String {
    let quoted = name.replace('"', "\"\"");
    if !name.contains(is_harmful) {
        return format!("\"{quoted}\"");
    }
    let escaped = quoted.chars().map(|character| match character {
        '\\' => r"\\".to_owned(),
        character if is_harmful(character) => format!("\\{:04x}", u32::from(character)),
        character => character.to_string(),
    });
    format!("U&\"{}\"", escaped.collect::<String>())
}

/// The name that [`in_quotes`] wrote with escapes.
fn unescaped(name: &str) -> Result<String, &'static str> {
    let mut parts = name.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    while let Some(part) = parts.next() {
        if part.is_empty() {
            out.push('\\');
            out.push_str(parts.next().unwrap_or_default());
            continue;
        }
        let code = part
            .get(..4)
            .and_then(|digits| u32::from_str_radix(digits, 16).ok());
        out.push(
            code.and_then(char::from_u32)
                .ok_or("an escape of U&\"…\" is a backslash and four digits")?,
        );
        out.push_str(part.get(4..).unwrap_or_default());
    }
    Ok(out)
}

/// The SQL that has a publication, quoted where necessary, publish all of a table. Its other tables
/// stay: `set table` would remove them.
pub fn publish_whole(publication: &str, table: impl fmt::Display) -> String {
    format!(
        "begin; alter publication {publication} drop table {table}; alter publication \
         {publication} add table {table}; commit;"
    )
}

/// A piece of SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// A name; an unquoted one is folded as SQL does.
    Name(String),
    /// Any other character, except space and text constants.
    Sign(char),
}

/// Whether every bracket, constant and quoted name in `sql` is closed. Otherwise the text could end
/// brackets around it.
pub fn is_closed(sql: &str) -> bool {
    let (pieces, has_ended) = pieces(sql);
    let mut open = Vec::new();
    let mut closes = |sign| match sign {
        '(' | '[' => {
            open.push(sign);
            true
        }
        ')' => open.pop() == Some('('),
        ']' => open.pop() == Some('['),
        _ => true,
    };
    let all = pieces
        .iter()
        .all(|piece| !matches!(piece, Piece::Sign(sign) if !closes(*sign)));
    all && has_ended && open.is_empty()
}

/// Whether `sql` is only a number, also in parentheses: `ORDER BY` takes a number for the position
/// of a column.
pub fn is_number(sql: &str) -> bool {
    let bare = sql.trim_matches(|sign: char| sign.is_whitespace() || matches!(sign, '(' | ')'));
    bare.starts_with(|first: char| first.is_ascii_digit())
        && bare
            .chars()
            .all(|next| next.is_ascii_alphanumeric() || matches!(next, '_' | '.'))
}

/// The tokens of `sql`, and whether its last constant or name is closed.
pub fn pieces(sql: &str) -> (Vec<Piece>, bool) {
    let mut pieces = Vec::new();
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let behind = rest.get(first.len_utf8()..).unwrap_or_default();
        let left = match (first, behind.strip_prefix('\'')) {
            ('\'', _) => behind_constant(behind, false),
            ('e' | 'E', Some(constant)) => behind_constant(constant, true),
            ('"', _) => quoted_identifier(behind).ok().map(|(name, left)| {
                pieces.push(Piece::Name(name));
                left
            }),
            ('$', _) if dollar_tag(behind).is_some() => behind_dollars(behind),
            (first, _) if first.is_alphabetic() || first == '_' => {
                let end = rest
                    .find(|next| !(is_in_name(next) || next == '$'))
                    .unwrap_or(rest.len());
                pieces.push(Piece::Name(
                    rest.get(..end).unwrap_or_default().to_lowercase(),
                ));
                rest.get(end..)
            }
            (first, _) => {
                pieces.extend(Some(Piece::Sign(first)).filter(|_| !first.is_whitespace()));
                Some(behind)
            }
        };
        let Some(left) = left else {
            return (pieces, false);
        };
        rest = left;
    }
    (pieces, true)
}

fn is_in_name(next: char) -> bool {
    next.is_alphanumeric() || next == '_'
}

/// The text behind the closing quote of a text constant.
fn behind_constant(text: &str, has_escapes: bool) -> Option<&str> {
    let mut rest = text.chars();
    loop {
        match rest.next()? {
            '\\' if has_escapes => drop(rest.next()),
            '\'' => match rest.as_str().strip_prefix('\'') {
                Some(behind) => rest = behind.chars(),
                None => return Some(rest.as_str()),
            },
            _ => {}
        }
    }
}

/// The tag of a dollar-quoted constant, such as `a$` of `$a$…$a$`; none where the dollar is that of
/// a parameter.
fn dollar_tag(text: &str) -> Option<&str> {
    let end = text
        .find(|next| !is_in_name(next))
        .filter(|_| !text.starts_with(char::is_numeric))?;
    text.get(..=end).filter(|tag| tag.ends_with('$'))
}

fn behind_dollars(text: &str) -> Option<&str> {
    let tag = dollar_tag(text)?;
    text.strip_prefix(tag)?
        .split_once(&format!("${tag}"))
        .map(|(_, behind)| behind)
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn a_slot_name_that_postgres_does_not_allow_is_refused() {
        assert_eq!("orders_1".parse::<SlotName>().unwrap().as_str(), "orders_1");
        for bad in [
            "",
            "Orders",
            "a-b",
            "a b",
            "a'b",
            "a\"b",
            "ä",
            &"x".repeat(64),
        ] {
            assert!(
                bad.parse::<SlotName>().is_err(),
                "{bad:?} was taken for a slot name"
            );
        }
    }

    #[test]
    fn a_table_name_is_parsed_as_in_sql() {
        let read = |text: &str| {
            let name: TableName = text.parse().unwrap();
            (name.schema().to_owned(), name.table().to_owned())
        };
        assert_eq!(read("outbox"), ("public".into(), "outbox".into()));
        assert_eq!(read("Sales.OutBox"), ("sales".into(), "outbox".into()));
        assert_eq!(
            read(r#""Sales"."Out ""box"".x""#),
            ("Sales".into(), r#"Out "box".x"#.into())
        );
        for bad in [
            "", ".", "a.", ".a", "a.b.c", "a b", "\"a", "a\"b\"", "a;b", "\"\"", "\"a\0\"",
        ] {
            assert!(
                bad.parse::<TableName>().is_err(),
                "{bad:?} was taken for a table name"
            );
        }
    }

    #[test]
    fn a_displayed_table_name_parses_to_the_same_name() {
        for text in [
            "public.outbox",
            r#""Sales"."Out ""box""""#,
            r#"public."1st""#,
            r#"public.U&"a\001b\\ ""\202e\000a""#,
        ] {
            let name: TableName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
            assert_eq!(name.to_string().parse::<TableName>().unwrap(), name);
        }
    }

    #[test]
    fn sql_with_unbalanced_quotes_or_parentheses_is_not_closed() {
        for sql in [
            "status = 'NEW'",
            "(a or b) and c[1] = f(x, ')')",
            "a = E'it\\') (' and \"b)\" = 'it''s ('",
            "a = $$ ) $$ and b = $x$ ($$ $x$",
            "a = $1",
            "",
        ] {
            assert!(is_closed(sql), "{sql}");
        }
        for sql in [
            "true) or (true",
            "(a",
            "a)",
            "(a]",
            "a = ') or (",
            "\"a",
            "a = E'\\'",
            "a = $$ )",
            "a$b = ')' )",
            "a = $x$ $$ $X$",
        ] {
            assert!(!is_closed(sql), "{sql}");
        }
    }

    #[test]
    fn a_number_is_recognized_with_and_without_parentheses() {
        for sql in ["1", " (12) ", "1_000", "0x1F", "1.5"] {
            assert!(is_number(sql), "{sql}");
        }
        for sql in ["seq", "1 + seq", "(1)::text", "'1'", "n1", "\"1\"", ""] {
            assert!(!is_number(sql), "{sql}");
        }
    }

    #[test]
    fn fuzzed_names() {
        let corpus = [
            "orders_1",
            "Sales.OutBox",
            r#""Sales"."Out ""box"".x""#,
            r#"public.U&"a\001b\\ ""\202e\000a""#,
            "a = E'it\\') (' and \"b)\" = 'it''s ('",
            "a = $$ ) $$ and b = $x$ ($$ $x$",
            " (1_000.5) ",
        ];
        fuzz_text("names and SQL", 1 << 20, &corpus, |text| {
            drop(text.parse::<SlotName>());
            if let Ok(name) = text.parse::<TableName>() {
                assert_eq!(name.to_string().parse(), Ok(name));
            }
            let (pieces, has_ended) = pieces(text);
            assert!(pieces.len() <= text.len());
            assert!(has_ended || !is_closed(text));
            let _number = is_number(text);
        });
    }
}
