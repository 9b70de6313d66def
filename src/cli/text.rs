//! Text that commands print: times, cells, tables, remarks.

use std::io::IsTerminal as _;

/// A time in the form of RFC 3339.
pub(super) fn time(ms: i64) -> Option<String> {
    jiff::Timestamp::from_millisecond(ms).ok().map(|time| format!("{time:.3}"))
}

/// The age for people, as one number. A time in the future gives `0s`.
pub(super) fn age(ms: i64, now_ms: i64) -> String {
    let seconds = now_ms.saturating_sub(ms).max(0) / 1_000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Text for a cell or a line: escaped like a name in a log, but for quotes, and at most `chars` long.
pub(super) fn cell(bytes: &[u8], chars: usize) -> String {
    let head = bytes.get(..(chars + 1).saturating_mul(4)).unwrap_or(bytes);
    let text: String = String::from_utf8_lossy(head).chars().flat_map(escaped).collect();
    cut(&text, chars)
}

/// As `char::escape_debug`, but for quotes and backslashes.
fn escaped(character: char) -> Vec<char> {
    match character {
        '"' | '\'' | '\\' => vec![character],
        _ => character.escape_debug().collect(),
    }
}

/// At most `chars` of a text; `…` stands for the rest.
pub(super) fn cut(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars {
        return text.to_owned();
    }
    let mut head: String = text.chars().take(chars.saturating_sub(1)).collect();
    head.push('…');
    head
}

/// Rows under each other, cells in line. The last cell of a row may have any length. Control characters become spaces:
/// each row stays one line.
pub(super) fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
    let cells = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or_default();
    let width =
        |cell: usize| rows.iter().filter_map(|row| row.as_ref().get(cell)).map(|text| text.chars().count()).max();
    let widths: Vec<usize> = (0..cells.saturating_sub(1)).map(|cell| width(cell).unwrap_or_default()).collect();
    let line = |row: &[String]| {
        let padding = |cell: usize| widths.get(cell).copied().unwrap_or_default();
        let cells = row.iter().enumerate().map(|(cell, text)| format!("{text:<0$}", padding(cell)));
        cells.collect::<Vec<_>>().join("  ").trim_end().replace(char::is_control, " ")
    };
    rows.iter().map(|row| line(row.as_ref())).collect::<Vec<_>>().join("\n")
}

/// Rows under a heading; the heading has their number if `count` is larger.
pub(super) fn listed<R: AsRef<[String]>>(heading: &str, count: u64, rows: &[R]) -> String {
    let shown = rows.len() as u64;
    let of = if shown < count { format!(" ({shown} of {count})") } else { String::new() };
    format!("\n{heading}{of}\n{}\n", aligned(rows))
}

/// Remarks, a line each.
pub(super) fn notes(notes: &[String]) -> String {
    notes.iter().map(|note| format!("note: {}\n", note.replace(char::is_control, " "))).collect()
}

/// Rows under each other, cells in line, lines cut to `width`.
pub(super) fn table<R: AsRef<[String]>>(rows: &[R], width: Option<usize>) -> String {
    let lines = aligned(rows);
    lines.lines().map(|line| cut(line, width.unwrap_or(usize::MAX))).collect::<Vec<_>>().join("\n")
}

/// The width of the terminal; none if standard output is not a terminal.
pub(super) fn width() -> Option<usize> {
    let is_terminal = std::io::stdout().is_terminal();
    is_terminal.then(|| terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0.max(40))))
}

/// `1 row`, `2 rows`.
pub(super) fn counted(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON_MS: i64 = 1_772_366_400_000;

    #[test]
    fn ages_are_one_number() {
        assert_eq!(time(NOON_MS).unwrap(), "2026-03-01T12:00:00.000Z");
        let age = |seconds: i64| age(NOON_MS - seconds * 1_000, NOON_MS);
        let ages = [-5, 0, 119, 120, 7_199, 7_200, 172_799, 172_800].map(age);
        assert_eq!(ages, ["0s", "0s", "119s", "2m", "119m", "2h", "47h", "2d"]);
    }

    #[test]
    fn a_cell_is_harmless_and_no_longer_than_it_may_be() {
        assert_eq!(cell(b"a \"b\" 'c'", 20), "a \"b\" 'c'");
        assert_eq!(cell(b"\xff\x1b[2J\n\0", 20), "\u{fffd}\\u{1b}[2J\\n\\0");
        assert_eq!(cell(&vec![b'x'; 1 << 20], 4), "xxx…");
        assert_eq!((cut("größe", 5).as_str(), cut("größe", 4).as_str()), ("größe", "grö…"));
    }

    #[test]
    fn rows_line_up_and_stay_lines() {
        let rows = [["a", "b", "c"], ["long\nname", "", "d e"], ["x", "yy", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(&rows), "a          b   c\nlong name      d e\nx          yy");
    }

    #[test]
    fn no_line_is_longer_than_the_terminal() {
        let rows = [["a", "error"], ["b", "it is long"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows, Some(8)), "a  error\nb  it i…");
        assert_eq!(table(&rows, None), "a  error\nb  it is long");
    }
}
