//! The house rules, on the text of the repository: what the compiler and the linters do not know.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use regex::Regex;
use strum::VariantArray as _;
use walrelay::config::{ConfigFile, Environment, Flags, Settings};
use walrelay_core::error::Kind;

use crate::pages;

/// Names that say nothing, so that anything ends up in them.
const BANNED_NAMES: [&str; 8] = [
    "utils", "util", "common", "types", "manager", "helper", "helpers", "misc",
];
/// Not of this repository, or made by something that is not.
const PASSED_OVER: [&str; 6] = [
    ".git",
    "target",
    "dist",
    "proptest-regressions",
    "Cargo.lock",
    "LICENSE",
];

/// One file of the repository.
struct File {
    /// From the repository's root, with `/` between.
    path: String,
    text: String,
}

impl File {
    /// The module of the table in `lib.rs` of `folder` it belongs to; `None` for `lib.rs` and
    /// `main.rs`.
    fn module(&self, folder: &str) -> Option<&str> {
        let inside = self.path.strip_prefix(folder)?.strip_prefix('/')?;
        let module = inside.split('/').next()?.trim_end_matches(".rs");
        (module != "lib" && module != "main").then_some(module)
    }

    /// Numbered lines without those that are nothing but a comment.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines()
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All text files below `folder` whose names end in one of `endings`; with none given, all of them.
fn files(folder: &str, endings: &[&str]) -> Vec<File> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let (path, name) = entry
                .map(|entry| (entry.path(), entry.file_name()))
                .unwrap();
            let name = name.to_str().unwrap().to_owned();
            if PASSED_OVER.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if endings.is_empty() || endings.iter().any(|ending| name.ends_with(ending)) {
                let shown = path
                    .strip_prefix(root())
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                files.extend(
                    fs::read_to_string(&path)
                        .ok()
                        .map(|text| File { path: shown, text }),
                );
            }
        }
    }
    assert!(!files.is_empty(), "nothing in {folder}");
    files.sort_by(|one, other| one.path.cmp(&other.path));
    files
}

/// The program and the crates beside it, without their tests.
fn sources() -> Vec<File> {
    let crates = files("crates", &[".rs"])
        .into_iter()
        .filter(|file| file.path.contains("/src/"));
    files("src", &[".rs"]).into_iter().chain(crates).collect()
}

fn rust() -> Vec<File> {
    [
        files("src", &[".rs"]),
        files("crates", &[".rs"]),
        files("tests", &[".rs"]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Fails with all of `wrong`, so that one run shows everything there is to mend.
fn none(rule: &str, wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{rule}:\n  {}", wrong.join("\n  "));
}

fn is_part_of_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character| !is_part_of_word(character))
        .filter(|word| !word.is_empty())
}

/// The cells of a row of a Markdown table, and the name in backticks a cell holds.
fn cells(row: &str) -> Vec<&str> {
    row.trim()
        .trim_matches('|')
        .split(" | ")
        .map(str::trim)
        .collect()
}

fn in_backticks(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.split('`').next()
}

#[test]
fn what_is_printed_is_made_printable() {
    // `cli/output.rs` and `sink/stdout.rs` do so, `cli/tail.rs` prints lines of the latter,
    // `main.rs` what `cli` made. The demo prints its own figures.
    const WRITERS: [&str; 7] = [
        "crates/lab/src/demo/mod.rs",
        "crates/lab/src/main.rs",
        "src/cli/output.rs",
        "src/cli/tail.rs",
        "src/main.rs",
        "src/sink/stdout.rs",
        "src/telemetry/logging.rs",
    ];
    let writes = |line: &str| {
        // The bars of `cli/progress.rs` get printable words.
        let is_asked = line.contains("is_terminal") || line.contains("ProgressDrawTarget");
        ["stdout()", "stderr()", "io::stderr", "println!"]
            .iter()
            .any(|way| line.contains(way))
            && !is_asked
    };
    let mut wrong = Vec::new();
    for file in sources()
        .iter()
        .filter(|file| !WRITERS.contains(&file.path.as_str()))
    {
        let found = file.code().filter(|(_, line)| writes(line));
        wrong
            .extend(found.map(|(number, line)| format!("{}:{number}: {}", file.path, line.trim())));
    }
    none("print with src/cli/output.rs", wrong);
}

#[test]
fn imports_point_to_the_top_of_the_table_of_modules() {
    for folder in ["src", "crates/core/src", "crates/lab/src"] {
        imports_point_to_the_top(folder);
    }
}

fn imports_point_to_the_top(folder: &str) {
    let map = read(&format!("{folder}/lib.rs"));
    let table: Vec<&str> = map
        .lines()
        .filter_map(|line| line.strip_prefix("//! | [`")?.split_once("`] |"))
        .map(|(name, _)| name)
        .collect();
    let declared: BTreeSet<&str> = map
        .lines()
        .filter_map(|line| {
            line.strip_prefix("pub mod ")
                .filter(|name| *name != "testing;")
                .or(line.strip_prefix("pub(crate) mod "))?
                .strip_suffix(';')
        })
        .collect();
    assert_eq!(
        table.iter().copied().collect::<BTreeSet<_>>(),
        declared,
        "the table in {folder}/lib.rs and the modules"
    );

    let place = |module: &str| table.iter().position(|known| *known == module);
    let mut wrong = Vec::new();
    for file in files(folder, &[".rs"]) {
        let Some(module) = file.module(folder) else {
            continue;
        };
        if module == "testing" {
            continue;
        }
        let own =
            place(module).unwrap_or_else(|| panic!("{} is in no module of the table", file.path));
        for (number, line) in file.code() {
            for (_, path) in line
                .match_indices("crate::")
                .map(|(at, found)| line.split_at(at + found.len()))
            {
                let imported = words(path).next().unwrap_or_default();
                if imported == "testing" {
                    continue;
                }
                match place(imported) {
                    Some(other) if other <= own && path.starts_with(imported) => {}
                    Some(_) => wrong.push(format!(
                        "{}:{number}: {module} imports {imported}",
                        file.path
                    )),
                    None => wrong.push(format!(
                        "{}:{number}: one path of one module per `use`",
                        file.path
                    )),
                }
            }
        }
    }
    none("imports downwards", wrong);
}

#[test]
fn a_module_is_named_after_what_it_is_for() {
    let mut wrong = Vec::new();
    for file in rust() {
        let mut names: Vec<&str> = file.path.trim_end_matches(".rs").split('/').collect();
        names.extend(
            file.code()
                .filter_map(|(_, line)| words(line.trim().strip_prefix("mod ")?).next()),
        );
        wrong.extend(
            names
                .iter()
                .filter(|name| BANNED_NAMES.contains(name))
                .map(|name| format!("{}: {name}", file.path)),
        );
    }
    none("names that say nothing", wrong);
}

#[test]
fn nothing_tells_where_or_with_what_it_was_written() {
    // In two parts, so that this file keeps to its own rule.
    let paths = [
        ("/", "work/"),
        ("/tmp", "/w/"),
        ("/ro", "ot/"),
        ("/ho", "me/"),
    ]
    .map(|(a, b)| format!("{a}{b}"));
    let mut wrong = Vec::new();
    for file in files(".", &[]) {
        for (number, line) in file.lines() {
            let folded = line.to_lowercase();
            let starts = |path: &&String| {
                let before = |at: usize| folded[..at].chars().next_back();
                folded.match_indices(path.as_str()).any(|(at, _)| {
                    before(at).is_none_or(|character| {
                        !is_part_of_word(character) && !"./-}".contains(character)
                    })
                })
            };
            let found = paths.iter().find(starts);
            wrong.extend(found.map(|found| format!("{}:{number}: {found}", file.path)));
        }
    }
    none("of the place it was written in", wrong);

    let lock = read("Cargo.lock");
    let sources: BTreeSet<&str> = lock
        .lines()
        .filter(|line| line.starts_with("source = "))
        .collect();
    assert_eq!(
        sources.len(),
        1,
        "packages are from one registry: {sources:?}"
    );
    assert!(
        sources
            .iter()
            .all(|source| source.contains("//github.com/rust-lang/")),
        "{sources:?}"
    );
}

#[test]
fn a_lint_is_switched_off_only_where_it_would_speak_and_with_a_reason() {
    let mut wrong = Vec::new();
    let allow = ["#[", "#!["].map(|start| format!("{start}allow"));
    let expect = ["#[", "#!["].map(|start| format!("{start}expect"));
    for file in rust() {
        for (number, line) in file.code() {
            if allow.iter().any(|attribute| line.contains(attribute)) {
                wrong.push(format!("{}:{number}: expect instead of allow", file.path));
            }
            if expect
                .iter()
                .any(|attribute| line.trim_start().starts_with(attribute))
            {
                let attribute: String = file.text.lines().skip(number - 1).take(8).collect();
                if !attribute
                    .split(")]")
                    .next()
                    .unwrap_or_default()
                    .contains("reason = ")
                {
                    wrong.push(format!("{}:{number}: without a reason", file.path));
                }
            }
        }
    }
    none("lints switched off", wrong);
}

#[test]
fn every_promise_is_cited_by_a_test_and_nothing_else_is_cited() {
    let map = read("src/lib.rs");
    let promises: Vec<&str> = map
        .lines()
        .filter_map(|line| line.strip_prefix("//! - **P")?.split_once(", "))
        .map(|(number, _)| number)
        .collect();
    assert!(!promises.is_empty(), "no promises in src/lib.rs");
    assert_eq!(
        promises,
        (1..=promises.len())
            .map(|number| number.to_string())
            .collect::<Vec<_>>()
    );

    let is_a_list = |path: &str| ["tests/main.rs", "tests/tidy.rs"].contains(&path);
    let mut shown = BTreeSet::new();
    let mut wrong = Vec::new();
    for file in files("tests/live", &[".rs"])
        .iter()
        .filter(|file| file.path != "tests/live/mod.rs")
    {
        let head: String = file
            .text
            .lines()
            .take_while(|line| line.starts_with("//!"))
            .collect();
        let (named, _) = head
            .trim_start_matches("//! ")
            .split_once(": ")
            .unwrap_or_default();
        for name in named.split(", ") {
            let promise = name
                .strip_prefix('P')
                .filter(|number| promises.contains(number));
            let page = name.starts_with("docs/") && root().join(name).exists();
            shown.extend(promise.map(str::to_owned));
            if promise.is_none() && !page {
                wrong.push(format!("{}: {name:?}", file.path));
            }
        }
    }
    none(
        "live tests that name neither a promise nor a page of docs",
        wrong,
    );
    let unshown = promises.iter().filter(|promise| !shown.contains(**promise));
    none(
        "promises without a live test",
        unshown.map(|promise| (*promise).to_owned()).collect(),
    );

    // Whoever reads "(X7)" has to be able to look it up, and there is no other list than that of
    // the promises.
    let is_citation = |word: &str| {
        let mut characters = word.trim().chars();
        characters
            .next()
            .is_some_and(|first| first.is_ascii_uppercase())
            && !characters.as_str().is_empty()
            && characters.all(|character| character.is_ascii_digit())
    };
    let is_known = |word: &str| {
        word.trim()
            .strip_prefix('P')
            .is_some_and(|number| promises.contains(&number))
    };
    let mut wrong = Vec::new();
    for file in rust().iter().filter(|file| !is_a_list(&file.path)) {
        for (number, line) in file.lines().filter(|(_, line)| line.contains("//")) {
            let bracketed = line
                .split('(')
                .skip(1)
                .filter_map(|rest| rest.split_once(')'))
                .map(|(inside, _)| inside);
            let unknown = bracketed
                .flat_map(|inside| inside.split(','))
                .find(|it| is_citation(it) && !is_known(it));
            wrong.extend(unknown.map(|word| format!("{}:{number}: {word}", file.path)));
        }
    }
    none("cited and nowhere to be found", wrong);
}

#[test]
fn every_slow_test_is_there_and_has_a_reason() {
    let scenarios = read("tests/live/buses.rs");
    let mut wrong = Vec::new();
    for line in read("tests/slow.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let (test, reason) = line.split_once(": ").unwrap_or((line, ""));
        let (module, name) = test.rsplit_once("::").unwrap_or_default();
        let paths = [
            format!("tests/{}.rs", module.replace("::", "/")),
            format!("tests/{module}/main.rs"),
        ];
        let text: String = paths
            .iter()
            .filter_map(|path| fs::read_to_string(root().join(path)).ok())
            .collect();
        let is_test = text.contains(&format!("#[test]\nfn {name}()"))
            || text.contains("scenarios!") && scenarios.contains(&format!("::{name},"));
        if reason.is_empty() || !is_test {
            wrong.push(line.to_owned());
        }
    }
    none("no such test of make test, or no reason", wrong);
}

#[test]
fn every_mutant_applies() {
    let applies = |file: &File| {
        let mut check = std::process::Command::new("git");
        check
            .args(["apply", "--check", &file.path])
            .current_dir(root())
            .output()
            .unwrap()
            .status
            .success()
    };
    let stale = files("mutants", &[".patch"])
        .into_iter()
        .filter(|file| !applies(file));
    none(
        "patches to cut again",
        stale.map(|file| file.path).collect(),
    );
}

#[test]
fn every_exit_code_is_documented() {
    let source = read("crates/core/src/error.rs");
    let (_, table) = source.split_once("fn exit_code").unwrap();
    let (table, _) = table.split_once("\n    }\n").unwrap();
    let name_of = |variant: &str| {
        let kind = Kind::VARIANTS
            .iter()
            .find(|kind| format!("{kind:?}") == variant);
        kind.unwrap_or_else(|| panic!("no kind {variant}"))
            .name()
            .to_owned()
    };
    let mut in_code = BTreeSet::new();
    for arm in table.split(',').filter_map(|arm| arm.split_once("=>")) {
        let code: u8 = arm.1.trim().parse().unwrap();
        let kinds = arm
            .0
            .split("Kind::")
            .skip(1)
            .filter_map(|kind| words(kind).next());
        in_code.extend(kinds.map(|kind| (code, name_of(kind))));
    }
    assert!(
        in_code.contains(&(14, "slot_unusable".to_owned())),
        "{in_code:?}"
    );

    let page = read("docs/how-to/runbook.md");
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(cells);
    let documented: BTreeSet<(u8, String)> = rows
        .filter_map(|row| Some((row[0].parse().ok()?, in_backticks(row[1])?.to_owned())))
        .collect();
    assert_eq!(documented, in_code);
    assert_eq!(in_code.len(), Kind::VARIANTS.len());
}

/// The names of the metrics, with their types: a unit test compares the page with the program.
fn exposed_metrics() -> BTreeMap<String, String> {
    let page = read("docs/reference/metrics.md");
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(cells);
    let name = |cell: &str| {
        let name = in_backticks(cell).unwrap().split('{').next();
        name.unwrap().to_owned()
    };
    rows.map(|row| (name(row[0]), row[1].to_owned())).collect()
}

#[test]
fn every_log_line_has_an_event_code_and_every_code_is_documented_with_its_levels() {
    let (mut told, mut wrong) = (BTreeMap::<&str, BTreeSet<&str>>::new(), Vec::new());
    let files = sources();
    for file in files.iter().filter(|file| !file.path.ends_with("tests.rs")) {
        let text = file
            .text
            .split("\n#[cfg(test)]\nmod ")
            .next()
            .unwrap_or_default();
        for level in ["info", "warn", "error"] {
            for (at, macro_name) in text.match_indices(&format!("{level}!(")) {
                let before = &text[..at];
                let call = &text[at + macro_name.len()..];
                let codes = event_codes(before, call);
                if !before.ends_with("tracing::") || codes.is_empty() {
                    wrong.push(format!("{}:{}", file.path, before.lines().count()));
                }
                for code in codes {
                    told.entry(code).or_default().insert(level);
                }
            }
        }
    }
    none(
        "calls that are not tracing::info!(event = \"…\", …) or the like",
        wrong,
    );
    let is_code = |code: &str| {
        code.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    none(
        "no snake case",
        told.keys()
            .filter(|code| !is_code(code))
            .map(|code| (*code).to_owned())
            .collect(),
    );

    let page = read("docs/reference/logs.md");
    let (_, table) = page.split_once("\n## Codes\n").unwrap();
    let rows: Vec<_> = table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(cells)
        .collect();
    let documented: BTreeMap<&str, BTreeSet<&str>> = rows
        .iter()
        .map(|row| (in_backticks(row[0]).unwrap(), row[1].split(", ").collect()))
        .collect();
    assert_eq!(
        told, documented,
        "codes and levels in src, and the table of docs/reference/logs.md"
    );
    assert_eq!(rows.len(), documented.len(), "a code has one row");
    assert!(rows.iter().all(|row| row.len() == 3), "{rows:?}");
}

/// The codes that a log line may have: of `event = "…"`, its first field, or of the variable
/// `event`.
fn event_codes<'t>(before: &'t str, call: &'t str) -> Vec<&'t str> {
    let call = call.trim_start();
    let call = call
        .strip_prefix("target: \"librdkafka\", ")
        .unwrap_or(call);
    let codes = if call.starts_with("event,") {
        before
            .rsplit_once("let event = ")
            .and_then(|(_, rest)| rest.split(';').next())
    } else {
        call.strip_prefix("event = ")
            .and_then(|rest| rest.split(',').next())
    };
    codes
        .into_iter()
        .flat_map(|codes| codes.split('"').skip(1).step_by(2))
        .collect()
}

#[test]
fn alerts_and_dashboard_use_metrics_that_the_program_exports() {
    let exposed = exposed_metrics();
    let is_exposed = |name: &str| {
        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|ending| name.strip_suffix(ending))
            .unwrap_or(name);
        exposed.contains_key(name) || exposed.get(base).is_some_and(|kind| kind == "histogram")
    };
    let mut used = 0;
    let mut wrong = Vec::new();
    for file in files("deploy", &[".yml", ".json"]) {
        for (number, line) in file.lines() {
            let names = words(line)
                .filter(|word| word.starts_with("walrelay_") || word.starts_with("process_"));
            let (known, unknown): (Vec<_>, Vec<_>) = names.partition(|name| is_exposed(name));
            used += known.len();
            wrong.extend(
                unknown
                    .iter()
                    .map(|name| format!("{}:{number}: {name}", file.path)),
            );
        }
    }
    assert!(used > 50, "{used} names were found");
    none("names of no metric", wrong);
}

#[test]
fn every_alert_has_a_test_and_a_section_of_the_runbook() {
    let alerts = read("deploy/prometheus/alerts.yml");
    let tests = read("deploy/prometheus/alerts_test.yml");
    let values = |key: &str| {
        alerts
            .lines()
            .filter_map(|line| Some(line.split_once(key)?.1.to_owned()))
            .collect::<Vec<_>>()
    };
    let names = values("- alert: ");
    let links = values("runbook_url: docs/how-to/runbook.md#");
    let tested: BTreeSet<&str> = tests
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alertname: "))
        .collect();
    assert!(
        names.iter().all(|name| tested.contains(name.as_str())),
        "{names:?} and {tested:?}"
    );
    assert_eq!(names.len(), links.len(), "each alert has a runbook");
    let sections = pages::anchors("docs/how-to/runbook.md");
    none(
        "no such section",
        links
            .into_iter()
            .filter(|link| !sections.contains(link))
            .collect(),
    );
}

#[test]
fn the_configurations_of_the_chart_are_valid() {
    let mut wrong = Vec::new();
    for file in files("deploy/helm/walrelay/ci", &[".yaml"]) {
        let (_, block) = file.text.split_once("\nconfig: |\n").unwrap();
        let lines = block
            .lines()
            .take_while(|line| line.is_empty() || line.starts_with("  "));
        let toml: String = lines.map(|line| format!("{}\n", line.trim())).collect();
        let settings = Settings::new(
            &Flags::new(),
            &Environment::new(),
            Some(&ConfigFile::new(&file.path, &toml)),
        );
        wrong.extend(
            settings
                .and_then(|settings| settings.config(false))
                .err()
                .map(|error| error.to_string()),
        );
    }
    none("configurations that walrelay refuses", wrong);
}

#[test]
fn the_image_is_built_of_all_that_a_build_reads() {
    let ignored = read(".dockerignore");
    let by_cargo = [
        ".cargo",
        "Cargo.toml",
        "Cargo.lock",
        "benches",
        "build.rs",
        "crates",
        "fuzz",
        "spec",
        "src",
        "sql",
        "migrations",
    ];
    // The recipe of a release, and what that runs.
    let by_recipe = ["scripts/dist", "scripts/licences", "LICENSE"];
    assert!(
        read("Dockerfile").contains(" scripts/dist --binary "),
        "the image has the binary of a release"
    );
    let all = by_cargo.into_iter().chain(by_recipe);
    let kept_out = all.filter(|name| !ignored.lines().any(|line| line == format!("!{name}")));
    none(
        "what a build reads is copied into the image",
        kept_out.map(str::to_owned).collect(),
    );
}

/// `walrelay replay` needs a condition, so a text that names it has one to be pasted with it.
#[test]
fn a_command_that_needs_a_flag_is_named_with_one() {
    let named = Regex::new(r#"NextCommand::new\("replay"\)\s*(\.option\()?"#).unwrap();
    let mut wrong = Vec::new();
    for file in sources() {
        for found in named.captures_iter(&file.text) {
            if found.get(1).is_none() {
                wrong.push(format!("{}: {}", file.path, &found[0]));
            }
        }
    }
    none("`replay` is named with a condition", wrong);
}

#[test]
fn sql_is_written_in_lower_case() {
    let mut wrong = Vec::new();
    for file in [files("sql", &[".sql"]), files("migrations", &[".sql"])]
        .iter()
        .flatten()
    {
        for (number, line) in file.lines() {
            let code = line.split("--").next().unwrap_or_default();
            // Every other part is between quotes.
            let outside: String = code.split('\'').step_by(2).collect();
            if outside.contains(|character: char| character.is_ascii_uppercase()) {
                wrong.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    none("capitals in SQL", wrong);
}

#[test]
fn every_page_that_is_named_exists() {
    let page = Regex::new(r"\bdocs/[a-z/-]+\.md").unwrap();
    let mut wrong = Vec::new();
    let folders = [
        "src", "crates", "tests", "benches", "deploy", "scripts", "docs",
    ];
    for file in folders.into_iter().flat_map(|folder| files(folder, &[])) {
        for (number, line) in file.lines() {
            let missing = page
                .find_iter(line)
                .filter(|found| !root().join(found.as_str()).exists());
            wrong
                .extend(missing.map(|found| format!("{}:{number}: {}", file.path, found.as_str())));
        }
    }
    none("pages that do not exist", wrong);
}

#[test]
fn the_glossary_has_at_most_forty_terms() {
    let page = read("docs/glossary.md");
    let terms = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| term |"))
        .count();
    assert!((30..=40).contains(&terms), "{terms} terms");
}

#[test]
fn an_event_passes_no_more_files_than_allowed_and_each_of_them_exists() {
    let page = read("docs/explanation/architecture.md");
    let (_, walk) = page.split_once("\n## One event, file by file\n").unwrap();
    let (walk, _) = walk.split_once("\n## ").unwrap();
    let mut folder = String::new();
    let mut passed = BTreeSet::new();
    let mut wrong = Vec::new();
    let mut counts = Vec::new();
    for table in walk.split("\nThe path from ").skip(1) {
        for row in table
            .lines()
            .filter(|line| line.starts_with("| ") && !line.starts_with("| step "))
        {
            for name in cells(row)[1].split(", ").map(|name| name.trim_matches('`')) {
                let path = match name.rsplit_once('/') {
                    Some((of, _)) => {
                        of.clone_into(&mut folder);
                        name.to_owned()
                    }
                    // A name without a folder is in the folder before it.
                    None => format!("{folder}/{name}"),
                };
                let file = match path.strip_prefix("core/") {
                    Some(inside) => format!("crates/core/src/{inside}"),
                    None => format!("src/{path}"),
                };
                let missing = !root().join(file).exists();
                wrong.extend(missing.then(|| path.clone()));
                passed.insert(path);
            }
        }
        counts.push(passed.len());
    }
    none("files that do not exist", wrong);
    assert!(
        counts.len() == 2 && counts[0] <= 18 && counts[1] <= 28,
        "{counts:?}: {passed:?}"
    );
}

#[test]
fn every_header_is_documented() {
    let (page, constant) = (
        read("docs/reference/headers.md"),
        Regex::new(r#"_HEADER: &str = "([^"]+)""#).unwrap(),
    );
    let sources = sources();
    let names: Vec<&str> = sources
        .iter()
        .flat_map(|file| constant.captures_iter(&file.text))
        .map(|found| found.extract::<1>().1[0])
        .collect();
    assert!(names.len() > 10, "{names:?}");
    let missing = names
        .into_iter()
        .filter(|name| !page.contains(&format!("`{name}`")));
    none(
        "headers that docs/reference/headers.md lacks",
        missing.map(str::to_owned).collect(),
    );
}
