//! `route.topic.regex` and `route.topic.replacement`, which are Java's, to a template.
//!
//! A value that the expression matches as a whole is replaced, any other stays as it is:
//! <https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/regex/Matcher.html>.

use regex::Regex;

use crate::template::Template;

/// What the router uses where nothing is set.
pub(super) const REGEX: &str = "(?<routedByValue>.*)";
/// Likewise.
pub(super) const REPLACEMENT: &str = "outbox.event.${routedByValue}";

/// A piece of a replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Group(String),
}

/// The template of the topic for the values of `column`.
///
/// # Errors
/// Why there is none, for people.
pub(super) fn template(column: &str, regex: &str, replacement: &str) -> Result<String, String> {
    let only_javas =
        || "the regular expression has something only Java's have, such as (?=…), (?<!…) or a++".to_owned();
    let regex = &of_java(regex).ok_or_else(only_javas)?;
    let compiled = Regex::new(&format!("^(?:{regex})$")).map_err(|_| only_javas())?;
    let pieces = pieces(replacement, &compiled)?;
    let field = Template::column(column).source().to_owned();
    let template = if is_everything(regex) {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.replace('{', "{{").replace('}', "}}"),
            Piece::Group(_) => field.clone(),
        };
        pieces.iter().map(piece).collect()
    } else {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.replace('$', "$$"),
            Piece::Group(name) => format!("${{{name}}}"),
        };
        let to: String = pieces.iter().map(piece).collect();
        let quoted = |text: &str| text.replace('\'', "''");
        let first = if finds_the_whole(regex) { "" } else { ", 'first'" };
        format!("{}|match('{}', '{}'{first})}}", field.trim_end_matches('}'), quoted(regex), quoted(&to))
    };
    template.parse::<Template>().map(|_| template).map_err(|error| error.to_string())
}

/// The expression with Java's ASCII classes written out, which have all of Unicode here. `None`: a quantifier is
/// possessive, which the engine here would take for a repetition of a repetition.
fn of_java(regex: &str) -> Option<String> {
    let mut out = String::with_capacity(regex.len());
    let mut characters = regex.chars();
    let (mut in_class, mut after_quantifier) = (false, false);
    while let Some(c) = characters.next() {
        let is_quantifier = !in_class && matches!(c, '*' | '+' | '?' | '}');
        if after_quantifier && c == '+' {
            return None;
        }
        after_quantifier = is_quantifier && !out.ends_with('(');
        match c {
            '\\' => match characters.next() {
                Some('d') => out.push_str("[0-9]"),
                Some('D') => out.push_str("[^0-9]"),
                Some('w') => out.push_str("[0-9A-Za-z_]"),
                Some('W') => out.push_str("[^0-9A-Za-z_]"),
                Some('s') => out.push_str(r"[ \t\n\x0B\f\r]"),
                Some('S') => out.push_str(r"[^ \t\n\x0B\f\r]"),
                other => {
                    out.push('\\');
                    out.extend(other);
                }
            },
            c => {
                in_class = c == '[' || (in_class && c != ']');
                out.push(c);
            }
        }
    }
    Some(out)
}

/// Whether the first place that the expression finds in a text is the whole text, wherever it matches that.
///
/// Java tests the whole, and then replaces the first place: with an alternative, a reluctant quantifier or several
/// quantifiers this can be less.
fn finds_the_whole(regex: &str) -> bool {
    let quantifiers = regex.replace("(?", "(").matches(['*', '+', '?', '{']).count();
    let takes_the_rest = [".*", ".+"].iter().any(|end| regex.trim_end_matches(')').ends_with(end));
    !regex.contains('|') && (quantifiers <= 1 || takes_the_rest)
}

/// Whether it matches any text, and every group it has is the whole of it.
fn is_everything(regex: &str) -> bool {
    let inside = regex.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(regex);
    let inside = match inside.strip_prefix("?<").and_then(|rest| rest.split_once('>')) {
        Some((name, rest)) if name.chars().all(char::is_alphanumeric) => rest,
        _ => inside,
    };
    inside == ".*"
}

/// `$1` takes as many digits as there are groups for, `${name}` a name, and a backslash makes the next character plain.
fn pieces(replacement: &str, regex: &Regex) -> Result<Vec<Piece>, String> {
    let groups = regex.captures_len();
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut characters = replacement.chars().peekable();
    while let Some(c) = characters.next() {
        let group = match c {
            '\\' => {
                text.extend(characters.next());
                continue;
            }
            '$' => match characters.peek() {
                Some('{') => {
                    characters.next();
                    let name: String = characters.by_ref().take_while(|&c| c != '}').collect();
                    let known = regex.capture_names().flatten().any(|known| known == name);
                    known
                        .then(|| name.clone())
                        .ok_or(format!("the replacement names a group {name:?}, which is not there"))?
                }
                _ => {
                    let mut number: Option<usize> = None;
                    while let Some(digit) = characters.peek().and_then(|c| c.to_digit(10)) {
                        let longer = number.unwrap_or(0).saturating_mul(10).saturating_add(digit as usize);
                        if number.is_some() && longer >= groups {
                            break;
                        }
                        number = Some(longer);
                        characters.next();
                    }
                    match number {
                        Some(number) if number < groups => number.to_string(),
                        _ => return Err("the replacement has a $ without a group that is there".to_owned()),
                    }
                }
            },
            c => {
                text.push(c);
                continue;
            }
        };
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        }
        pieces.push(Piece::Group(group));
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_replaces_everything_is_text_around_the_column() {
        for (regex, replacement, wanted) in [
            (REGEX, REPLACEMENT, "outbox.event.{aggregatetype}"),
            ("(.*)", "outbox.event.$1", "outbox.event.{aggregatetype}"),
            ("(.*)", "$1-v1.{x}", "{aggregatetype}-v1.{{x}}"),
            ("(.*)", "$12", "{aggregatetype}2"),
            (".*", "all", "all"),
            (".*", "a\\$b.$0", "a$b.{aggregatetype}"),
        ] {
            assert_eq!(template("aggregatetype", regex, replacement).as_deref(), Ok(wanted), "{regex} {replacement}");
        }
        assert_eq!(template("Odd Col", "(.*)", "$1").as_deref(), Ok("{\"Odd Col\"}"));
    }

    #[test]
    fn what_matches_a_part_is_a_match() {
        for (regex, replacement, wanted) in [
            ("(.*)Created", "c16.$1", "{type|match('(.*)Created', 'c16.${1}')}"),
            ("(?<a>.*)_(?<b>.*)", "${b}.${a}x", "{type|match('(?<a>.*)_(?<b>.*)', '${b}.${a}x')}"),
            ("(.*)'s", "$1's\\$", "{type|match('(.*)''s', '${1}''s$$')}"),
            (
                "(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)(k)",
                "$11$12",
                "{type|match('(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)(k)', '${11}${1}2')}",
            ),
        ] {
            assert_eq!(template("type", regex, replacement).as_deref(), Ok(wanted), "{regex} {replacement}");
        }
    }

    #[test]
    fn classes_are_ascii_and_what_may_find_a_part_replaces_the_first() {
        for (regex, wanted) in [
            (r"(\w+)\.v", r"{type|match('([0-9A-Za-z_]+)\.v', 'x')}"),
            (r"[\d.]*", r"{type|match('[[0-9].]*', 'x')}"),
            (r"\\d", r"{type|match('\\d', 'x')}"),
            ("a|ab", "{type|match('a|ab', 'x', 'first')}"),
            ("(.*?)", "{type|match('(.*?)', 'x', 'first')}"),
            ("a?(ab)?", "{type|match('a?(ab)?', 'x', 'first')}"),
        ] {
            assert_eq!(template("type", regex, "x").as_deref(), Ok(wanted), "{regex}");
        }
    }

    #[test]
    fn what_only_java_knows_is_refused() {
        for (regex, replacement) in [
            ("(?=a).*", "x"),
            ("a++b", "x"),
            ("[a]*+", "x"),
            ("(.*)", "$2"),
            ("(.*)", "${x}"),
            ("(.*)", "a$"),
            ("(", "x"),
        ] {
            assert!(template("c", regex, replacement).is_err(), "{regex} {replacement}");
        }
    }
}
