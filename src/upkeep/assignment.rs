//! Which columns SQL assignments set, as far as that can be told without a parser of SQL: more names at worst.

use crate::config::Upkeep;
use crate::config::sql::{Piece, pieces};

/// The names in `sql`, keywords among them.
pub fn names(sql: &str) -> Vec<String> {
    let name = |piece| match piece {
        Piece::Name(name) => Some(name),
        Piece::Sign(_) => None,
    };
    pieces(sql).0.into_iter().filter_map(name).collect()
}

/// The columns that `assignments`, as in `UPDATE … SET`, set.
pub fn assigned(assignments: &str) -> Vec<String> {
    let (mut depth, mut is_target, mut targets) = (0_usize, true, Vec::new());
    for piece in pieces(assignments).0 {
        match piece {
            Piece::Name(name) if is_target => targets.push(name),
            Piece::Name(_) => {}
            Piece::Sign('(' | '[') => depth += 1,
            Piece::Sign(')' | ']') => depth = depth.saturating_sub(1),
            Piece::Sign('=') if depth == 0 => is_target = false,
            Piece::Sign(',') if depth == 0 => is_target = true,
            Piece::Sign(_) => {}
        }
    }
    targets
}

/// Whether a row that was marked as one that waits is pending only where somebody set it so: `outbox.mark_waiting` sets a
/// column that `outbox.pending` looks at.
pub fn asks_by_pending(upkeep: &Upkeep) -> bool {
    let (Some(mark), Some(pending)) = (&upkeep.mark_waiting, &upkeep.pending) else { return false };
    let looked_at = names(pending);
    assigned(mark).iter().any(|column| looked_at.contains(column))
}

/// `sql` with what stands for each `:name` outside of text constants and quoted names; `::` is a cast.
pub fn with_values(sql: &str, values: &[(&str, &str)]) -> String {
    let (mut made, mut quote, mut before) = (String::with_capacity(sql.len()), None, ' ');
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let name = rest.strip_prefix(':').filter(|_| quote.is_none() && before != ':').and_then(|behind| {
            let end = behind.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(behind.len());
            let (name, rest) = behind.split_at_checked(end)?;
            values.iter().find(|(known, _)| *known == name).map(|(_, value)| (value, rest))
        });
        if let Some((value, behind)) = name {
            made.push_str(value);
            (rest, before) = (behind, ' ');
            continue;
        }
        match (first, quote) {
            ('\'' | '"', None) => quote = Some(first),
            (first, Some(open)) if first == open => quote = None,
            _ => {}
        }
        made.push(first);
        (rest, before) = (rest.get(first.len_utf8()..).unwrap_or_default(), first);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_before_the_sign_is_set_and_nothing_else() {
        for (sql, expected) in [
            ("status = 'PUBLISHED', Published_At = now()", vec!["status", "published_at"]),
            ("sent = true", vec!["sent"]),
            (r#""Sent At" = case when a = b then c else d end, n=n+1"#, vec!["Sent At", "n"]),
            ("(a, b) = (c, d), e = f(g, h => i)", vec!["a", "b", "e"]),
            ("payload['sent'] = to_jsonb(x), l[2] = 1", vec!["payload", "l"]),
            (r"a = 'it''s, b = 1', c = E'\', d = 2', e = 3", vec!["a", "c", "e"]),
            ("", vec![]),
        ] {
            assert_eq!(assigned(sql), expected, "{sql}");
        }
    }

    #[test]
    fn a_row_that_waits_is_asked_for_where_its_mark_sets_what_pending_looks_at() {
        let asks = |pending: Option<&str>, mark: Option<&str>| {
            let (pending, mark_waiting) = (pending.map(str::to_owned), mark.map(str::to_owned));
            asks_by_pending(&Upkeep { pending, mark_waiting, ..Upkeep::default() })
        };
        assert!(asks(Some("status in ('NEW', 'AGAIN')"), Some("n = 1, Status = 'FAILED'")));
        assert!(!asks(Some("sent = false"), Some("last_error = :error, n = sent::int")));
        assert!(!asks(None, Some("status = 'FAILED'")) && !asks(Some("status = 'NEW'"), None));
    }

    #[test]
    fn values_are_put_in_for_their_names_and_for_nothing_else() {
        let put = |sql| with_values(sql, &[("error", "e.x"), ("attempts", "e.n")]);
        assert_eq!(
            put("last_error = left(:error, 200), n = :attempts::int"),
            "last_error = left(e.x, 200), n = e.n::int"
        );
        assert_eq!(
            put("a = ':error', \":error\" = 'it''s :error'||:error"),
            "a = ':error', \":error\" = 'it''s :error'||e.x"
        );
        assert_eq!(
            put("a = b::error, c = :errors, l = x[1:2], d = ':"),
            "a = b::error, c = :errors, l = x[1:2], d = ':"
        );
    }

    #[test]
    fn names_of_a_partition_key_are_found_within_expressions() {
        assert_eq!(names(r#"LIST (lower("Status"))"#), ["list", "lower", "Status"]);
        assert_eq!(names("RANGE (created_at, (date_trunc('day', x)))"), ["range", "created_at", "date_trunc", "x"]);
    }
}
