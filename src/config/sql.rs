//! SQL that an operator wrote, as far as it can be looked at without a parser of SQL.

use std::iter::Peekable;
use std::str::Chars;

/// A piece of SQL that matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// A name, folded as SQL does unless it was quoted.
    Name(String),
    /// Anything else but space and text constants.
    Sign(char),
}

/// Whether every bracket in `sql` is closed, and every text constant and quoted name ended. What is not could end the
/// parentheses it is put into.
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
    let all = pieces.iter().all(|piece| !matches!(piece, Piece::Sign(sign) if !closes(*sign)));
    all && has_ended && open.is_empty()
}

/// Whether `sql` is a number and nothing else, in parentheses or not: to `ORDER BY` the position of a column.
pub fn is_number(sql: &str) -> bool {
    let bare = sql.trim_matches(|sign: char| sign.is_whitespace() || matches!(sign, '(' | ')'));
    bare.starts_with(|first: char| first.is_ascii_digit())
        && bare.chars().all(|next| next.is_ascii_alphanumeric() || matches!(next, '_' | '.'))
}

/// What `sql` is made of, and whether its last constant or name has an end.
pub fn pieces(sql: &str) -> (Vec<Piece>, bool) {
    let mut pieces = Vec::new();
    let mut has_ended = true;
    let mut rest = sql.chars().peekable();
    while let Some(first) = rest.next() {
        match first {
            '\'' => has_ended = skip_constant(&mut rest, false),
            '"' => {
                let name;
                (name, has_ended) = quoted_name(&mut rest);
                pieces.push(Piece::Name(name));
            }
            'e' | 'E' if rest.next_if_eq(&'\'').is_some() => has_ended = skip_constant(&mut rest, true),
            '$' if dollar_tag(&rest).is_some() => has_ended = skip_dollars(&mut rest),
            first if first.is_alphabetic() || first == '_' => {
                let mut name = first.to_string();
                while let Some(next) = rest.next_if(|next| is_in_name(*next) || *next == '$') {
                    name.push(next);
                }
                pieces.push(Piece::Name(name.to_lowercase()));
            }
            first if first.is_whitespace() => {}
            first => pieces.push(Piece::Sign(first)),
        }
    }
    (pieces, has_ended)
}

fn is_in_name(next: char) -> bool {
    next.is_alphanumeric() || next == '_'
}

/// To behind the quote that ends a text constant; whether there is one.
fn skip_constant(rest: &mut Peekable<Chars<'_>>, has_escapes: bool) -> bool {
    while let Some(next) = rest.next() {
        match next {
            '\\' if has_escapes => drop(rest.next()),
            '\'' if rest.next_if_eq(&'\'').is_none() => return true,
            _ => {}
        }
    }
    false
}

/// The tag of a constant in dollars, such as `a$` of `$a$…$a$`; none where the dollar is that of a parameter.
fn dollar_tag(rest: &Peekable<Chars<'_>>) -> Option<String> {
    let mut tag: String = rest.clone().take_while(|next| is_in_name(*next)).collect();
    let is_name = !tag.starts_with(|first: char| first.is_numeric());
    (is_name && rest.clone().nth(tag.chars().count()) == Some('$')).then(|| {
        tag.push('$');
        tag
    })
}

/// To behind the end of a constant in dollars; whether there is one.
fn skip_dollars(rest: &mut Peekable<Chars<'_>>) -> bool {
    let Some(tag) = dollar_tag(rest) else { return true };
    let (tag_chars, text) = (tag.chars().count(), rest.clone().collect::<String>());
    let end = text.get(tag.len()..).and_then(|behind| Some(behind.find(&format!("${tag}"))? + tag.len()));
    let skipped = match end {
        Some(end) => text.get(..end).unwrap_or_default().chars().count() + tag_chars + 1,
        None => text.chars().count(),
    };
    rest.take(skipped).for_each(drop);
    end.is_some()
}

/// A name in quotes, and whether the second one is there.
fn quoted_name(rest: &mut Peekable<Chars<'_>>) -> (String, bool) {
    let mut name = String::new();
    while let Some(next) = rest.next() {
        if next == '"' && rest.next_if_eq(&'"').is_none() {
            return (name, true);
        }
        name.push(next);
    }
    (name, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_end_the_parentheses_around_it_is_not_closed() {
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
    fn a_number_is_a_number_in_parentheses_too() {
        for sql in ["1", " (12) ", "1_000", "0x1F", "1.5"] {
            assert!(is_number(sql), "{sql}");
        }
        for sql in ["seq", "1 + seq", "(1)::text", "'1'", "n1", "\"1\"", ""] {
            assert!(!is_number(sql), "{sql}");
        }
    }
}
