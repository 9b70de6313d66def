//! docs/SUMMARY.md: Postgres parses every SQL statement of its pages.

use crate::pages::{Page, blocks, commands};
use crate::support::servers::Postgres;

/// The first words of a statement. Other text between backticks may be a part of one.
const VERBS: [&str; 6] = [
    "select ", "alter ", "create ", "insert ", "update ", "grant ",
];
/// Blocks that Postgres cannot parse: how each begins, and why.
const NOT_PARSED: [(&str, &str); 2] = [
    (
        "where not pg_visible_in_snapshot(",
        "the condition of a statement",
    ),
    (
        "begin;\nselect 1 from orders where id = 'o-1' for update;",
        "a transaction with an insert that is cut short",
    ),
];

/// Whether `statements` are SQL, without running them: PL/pgSQL parses a block before it begins.
fn parsed(postgres: &Postgres, statements: &str) -> Result<(), String> {
    let block = format!("do $pages$ begin return; {statements}; end $pages$");
    postgres
        .sql()
        .try_run(&block)
        .map_err(|error| format!("{statements}: {error:?}"))
}

#[test]
fn postgres_parses_every_statement() {
    let in_spans = Page::all().into_iter().flat_map(|page| page.spans());
    let is_statement = |text: &String| {
        let text = text.to_lowercase();
        VERBS.iter().any(|verb| text.starts_with(verb))
            && !text.contains('…')
            && text.split(' ').count() > 2
    };
    let is_whole = |text: &String| {
        !NOT_PARSED
            .iter()
            .any(|(beginning, _)| text.starts_with(beginning))
    };
    let in_blocks = blocks("sql")
        .into_iter()
        .map(|block| block.text)
        .filter(is_whole);
    // What `psql -c` runs.
    let scripts = blocks("sh")
        .into_iter()
        .flat_map(|block| commands(&block.text).unwrap_or_default());
    let with_psql = scripts.filter(|words| words.iter().any(|word| word == "psql"));
    let in_scripts = with_psql.flat_map(|words| {
        let pairs = words.windows(2).filter(|pair| pair[0] == "-c");
        pairs.map(|pair| pair[1].clone()).collect::<Vec<_>>()
    });
    let mut wrong = Vec::new();
    let postgres = Postgres::shared();
    assert!(
        parsed(postgres, "create tabel t (n int)").is_err(),
        "an error is found"
    );
    for text in in_blocks
        .chain(in_scripts)
        .chain(in_spans.filter(is_statement))
    {
        // Commands of psql, and comments that would hide the end.
        let lines = text.lines().filter(|line| !line.starts_with('\\'));
        let lines: Vec<&str> = lines.filter_map(|line| line.split("--").next()).collect();
        wrong.extend(parsed(postgres, lines.join("\n").trim().trim_end_matches(';')).err());
    }
    assert!(
        wrong.is_empty(),
        "what Postgres does not parse:\n  {}",
        wrong.join("\n  ")
    );
}
