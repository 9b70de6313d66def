//! README, the pages of `docs` and of `examples`: links, commands and configurations, and the table
//! of commands.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory as _;
use clap::error::ErrorKind;
use regex::Regex;
use walrelay::cli::Cli;
use walrelay::config::{ConfigFile, Environment, Flags, Settings};

use crate::ROOT;

/// Languages of blocks that a test reads: here, and `sql` in `live/pages.rs`.
const READ: [&str; 6] = ["sh", "sql", "toml", "yaml", "json", "properties"];
/// Excerpts of `examples`.
const PROGRAMS: [&str; 3] = ["java", "go", "python"];
/// Output.
const NOT_READ: &str = "text";

/// A block of code of a page.
pub(crate) struct Block {
    /// File and line.
    pub place: String,
    pub language: String,
    pub text: String,
}

/// A page: a Markdown file.
pub(crate) struct Page {
    /// From the repository's root.
    pub path: String,
    text: String,
}

impl Page {
    /// README, and all pages below `docs` and `examples`.
    pub(crate) fn all() -> Vec<Page> {
        let mut pages = vec![Page::read(PathBuf::from("README.md"))];
        let mut folders = vec![PathBuf::from("docs"), PathBuf::from("examples")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(Path::new(ROOT).join(&folder)).unwrap() {
                let entry = entry.unwrap();
                let path = folder.join(entry.file_name());
                if entry.path().is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|ending| ending == "md") {
                    pages.push(Page::read(path));
                }
            }
        }
        pages.sort_by(|one, other| one.path.cmp(&other.path));
        pages
    }

    fn read(path: PathBuf) -> Page {
        let text = fs::read_to_string(Path::new(ROOT).join(&path)).unwrap();
        Page {
            path: path.to_str().unwrap().to_owned(),
            text,
        }
    }

    /// The blocks between fences, without the indentation of their first line.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut inside = false;
        let mut indent = 0;
        for (at, line) in self.text.lines().enumerate() {
            if let Some(language) = line.trim_start().strip_prefix("```") {
                inside = !inside;
                indent = line.len() - line.trim_start().len();
                if inside {
                    let place = format!("{}:{}", self.path, at + 1);
                    blocks.push(Block {
                        place,
                        language: language.to_owned(),
                        text: String::new(),
                    });
                }
            } else if inside {
                let block = blocks.last_mut().unwrap();
                block.text += line.get(indent..).unwrap_or_default();
                block.text.push('\n');
            }
        }
        blocks
    }

    /// The lines outside of blocks.
    fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut inside = false;
        self.text.lines().enumerate().filter(move |(_, line)| {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            !inside && !fence
        })
    }

    /// What stands between backticks in the prose, with the lines joined.
    pub(crate) fn spans(&self) -> Vec<String> {
        let lines: Vec<&str> = self.prose().map(|(_, line)| line.trim()).collect();
        let paragraphs = lines.join("\n").replace("\n\n", "\0").replace('\n', " ");
        paragraphs
            .split('\0')
            .flat_map(|text| text.split('`').skip(1).step_by(2).map(str::to_owned))
            .collect()
    }

    /// The headings, as a link names them.
    fn anchors(&self) -> BTreeSet<String> {
        let kept = |character: &char| character.is_alphanumeric() || "-_ ".contains(*character);
        let titles = self
            .prose()
            .filter_map(|(_, line)| Some(line.strip_prefix('#')?.trim_start_matches('#').trim()));
        titles
            .map(|title| {
                title
                    .to_lowercase()
                    .chars()
                    .filter(kept)
                    .collect::<String>()
                    .replace(' ', "-")
            })
            .collect()
    }
}

/// The headings of the page at `path`, as a link names them.
pub(crate) fn anchors(path: &str) -> BTreeSet<String> {
    Page::read(PathBuf::from(path)).anchors()
}

/// All blocks of all pages in `language`.
pub(crate) fn blocks(language: &str) -> Vec<Block> {
    let of_language = |page: Page| {
        page.blocks()
            .into_iter()
            .filter(move |block| block.language == language)
    };
    Page::all().into_iter().flat_map(of_language).collect()
}

/// Fails with all of `wrong`, so that one run shows everything there is to mend.
fn none(rule: &str, wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{rule}:\n  {}", wrong.join("\n  "));
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut pages = Page::all();
    let others = [
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "benches/results/benchmarks.md",
        "tests/debezium/README.md",
    ];
    pages.extend(others.map(|path| Page::read(PathBuf::from(path))));
    let mut wrong = Vec::new();
    for page in &pages {
        let folder = Path::new(ROOT)
            .join(&page.path)
            .parent()
            .map(PathBuf::from)
            .unwrap();
        for (at, line) in page.prose() {
            for target in line
                .split("](")
                .skip(1)
                .filter_map(|rest| rest.split(')').next())
            {
                let (path, heading) = target.split_once('#').unwrap_or((target, ""));
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let leads_to = if path.is_empty() {
                    Path::new(ROOT).join(&page.path)
                } else {
                    folder.join(path)
                };
                if !leads_to.exists() {
                    wrong.push(format!("{}:{}: {target}", page.path, at + 1));
                } else if !heading.is_empty() && !Page::read(leads_to).anchors().contains(heading) {
                    wrong.push(format!(
                        "{}:{}: {target} has no such heading",
                        page.path,
                        at + 1
                    ));
                }
            }
        }
    }
    none("links to nowhere", wrong);
}

#[test]
fn the_site_has_every_page() {
    let summary = Page::read(PathBuf::from("docs/SUMMARY.md"));
    let links: BTreeSet<&str> = summary
        .text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .collect();
    let name = |page: Page| {
        page.path
            .strip_prefix("docs/")
            .map_or(format!("../{}", page.path), str::to_owned)
    };
    let missing = Page::all()
        .into_iter()
        .map(name)
        .filter(|name| name != "SUMMARY.md" && !links.contains(name.as_str()));
    none("pages that docs/SUMMARY.md lacks", missing.collect());
}

#[test]
fn every_block_has_a_language_that_a_test_reads_or_need_not() {
    let known = |block: &Block| {
        let language = block.language.as_str();
        READ.contains(&language) || PROGRAMS.contains(&language) || language == NOT_READ
    };
    let unknown = Page::all()
        .into_iter()
        .flat_map(|page| page.blocks())
        .filter(|block| !known(block));
    none(
        "blocks in other languages",
        unknown
            .map(|block| format!("{}: {:?}", block.place, block.language))
            .collect(),
    );
}

#[test]
fn every_block_of_yaml_json_and_properties_can_be_read() {
    let error = |language: &str, text: &str| match language {
        "yaml" => yaml_serde::from_str::<yaml_serde::Value>(text)
            .err()
            .map(|error| error.to_string()),
        "json" => serde_json::from_str::<serde_json::Value>(text)
            .err()
            .map(|error| error.to_string()),
        _ => {
            let pair = |line: &str| {
                line.split_once('=')
                    .is_some_and(|(key, _)| !key.contains(' '))
            };
            text.lines().find(|line| !pair(line)).map(str::to_owned)
        }
    };
    let mut wrong = Vec::new();
    for language in ["yaml", "json", "properties"] {
        let blocks = blocks(language);
        assert!(!blocks.is_empty(), "{language}");
        wrong.extend(blocks.iter().filter_map(|block| {
            Some(format!(
                "{}: {}",
                block.place,
                error(language, &block.text)?
            ))
        }));
    }
    none("blocks that cannot be read", wrong);
}

/// The first line of excerpts that no program has, and why.
const NOT_OF_A_PROGRAM: [(&str, &str); 2] = [
    (
        "// Imports: github.com/twmb/franz-go/pkg/sasl/plain. For SCRAM use pkg/sasl/scram.",
        "the programs have no login",
    ),
    (r#""security.protocol": "SASL_SSL","#, "likewise"),
];

#[test]
fn every_line_of_a_program_is_one_of_the_examples() {
    let mut programs = String::new();
    let mut folders = vec![Path::new(ROOT).join("examples")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            if path.is_dir() {
                folders.push(path);
            } else {
                programs += &fs::read_to_string(&path).unwrap();
            }
        }
    }
    let lines: BTreeSet<&str> = programs.lines().map(str::trim).collect();
    let mut wrong = Vec::new();
    for block in PROGRAMS.into_iter().flat_map(blocks) {
        let is_other = NOT_OF_A_PROGRAM
            .iter()
            .any(|(first, _)| block.text.starts_with(first));
        let unknown = block
            .text
            .lines()
            .map(str::trim)
            .find(|line| !is_other && !lines.contains(line));
        wrong.extend(unknown.map(|line| format!("{}: {line}", block.place)));
    }
    none("lines that no program of examples has", wrong);
}

/// What `make demo` asks a machine for that has these commands, and no others but the shell's own.
fn asked(commands: &[&str], system: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let command = |name: &str, script: &str| {
        let file = folder.path().join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    };
    command("uname", &format!("echo {system}"));
    command("id", "echo 501");
    command("dirname", "echo ${1%/*}");
    commands.iter().for_each(|name| command(name, ""));
    let script = Path::new(ROOT).join("scripts/prerequisites");
    let ran = Command::new(script)
        .arg("--minimal")
        .env_clear()
        .env("PATH", folder.path())
        .output()
        .unwrap();
    if ran.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&ran.stderr).into_owned())
    }
}

#[test]
fn the_demo_asks_macos_for_no_tools_of_linux() {
    let nothing = asked(&[], "Darwin").unwrap_err();
    assert!(nothing.contains(" g++ make cmake perl"), "{nothing}");
    assert!(
        nothing.contains("brew install cmake postgresql"),
        "{nothing}"
    );
    let of_linux = ["util-linux", "pkg-config", "-dev", "apt-get", "procps"];
    assert!(
        !of_linux.iter().any(|word| nothing.contains(word)),
        "{nothing}"
    );
    asked(
        &["g++", "make", "cmake", "perl", "postgres", "cargo"],
        "Darwin",
    )
    .unwrap();
}

/// What a configuration of the pages leaves to its reader.
fn environment(toml: &str) -> Environment {
    let mut variables: Environment = [
        ("WALRELAY_SLOT", "shop"),
        ("WALRELAY_BROKERS", "localhost:9092"),
        ("WALRELAY_DATABASE_URL", "postgres://relay@localhost/shop"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    if toml.contains("mark_waiting") {
        variables.insert("WALRELAY_ON_ERROR".to_owned(), "park".to_owned());
    }
    variables
}

#[test]
fn walrelay_accepts_every_configuration() {
    let mut wrong = Vec::new();
    let of_values = blocks("yaml").into_iter().filter_map(|block| {
        let (_, rest) = block.text.split_once("config: |\n")?;
        let lines: Vec<&str> = rest
            .lines()
            .take_while(|line| line.is_empty() || line.starts_with("  "))
            .collect();
        Some(Block {
            text: lines.join("\n").replace("\n  ", "\n"),
            ..block
        })
    });
    let all: Vec<Block> = blocks("toml").into_iter().chain(of_values).collect();
    assert!(all.len() > 10, "{} configurations", all.len());
    for Block { place, text, .. } in all {
        let settings = Settings::new(
            &Flags::new(),
            &environment(&text),
            Some(&ConfigFile::new(&place, &text)),
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

/// A shell without programs: instead of running a command, it prints its words, and what a pipe
/// brings.
const SHELL: &str = r#"
command_not_found_handle() {
    case $1 in sudo | exec | time) shift ;; esac
    printf '%s\x1f' "$@"
    printf '\x1e'
    if [ -p /dev/stdin ]; then while read -r line || [ "$line" ]; do printf '%s\n' "$line"; done; fi
}
for name in walrelay cd; do eval "$name() { command_not_found_handle $name \"\$@\"; }"; done
"#;

/// The commands of a script, as lists of words; the error of the shell, if this is no script.
pub(crate) fn commands(script: &str) -> Result<Vec<Vec<String>>, String> {
    // The shell writes no file.
    let to_file = Regex::new(r#" [12&]?>>? ?("[^"]*"|&?[\w/~.-]+)( |$)"#).unwrap();
    let script: Vec<_> = script
        .lines()
        .map(|line| to_file.replace_all(line, " "))
        .collect();
    let script = format!("{SHELL}{}", script.join("\n"));
    let ran = Command::new("/bin/bash")
        .args(["--norc", "-r", "-c", &script])
        .env_clear()
        .env("PATH", "/nonexistent")
        .output();
    let ran = ran.expect("bash");
    let told = String::from_utf8_lossy(&ran.stdout);
    let failed = String::from_utf8_lossy(&ran.stderr);
    if !ran.status.success() || !failed.is_empty() {
        return Err(format!("{failed}{told}"));
    }
    let words = |line: &str| {
        line.trim()
            .split_terminator('\x1f')
            .map(str::to_owned)
            .collect()
    };
    Ok(told.split_terminator('\x1e').map(words).collect())
}

/// What clap says against a command of walrelay.
fn refused(words: &[String]) -> Option<String> {
    let error = Cli::command().try_get_matches_from(words).err()?;
    let shown = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind());
    // The name of a command alone, such as `walrelay config import`.
    let incomplete = [
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
        ErrorKind::MissingRequiredArgument,
    ];
    let named = words.len() <= 3 && incomplete.contains(&error.kind());
    (!shown && !named).then(|| error.to_string())
}

/// Text between backticks that is no command: the name of a session, and a placeholder.
const NO_COMMANDS: [&str; 2] = ["walrelay SLOT retries", "walrelay COMMAND --help"];

#[test]
fn walrelay_knows_every_command_and_flag() {
    let in_spans = Page::all().into_iter().flat_map(|page| {
        let is_command =
            |span: &String| span.starts_with("walrelay ") && !NO_COMMANDS.contains(&span.as_str());
        let spans = page.spans().into_iter().filter(is_command);
        spans
            .map(move |text| Block {
                place: page.path.clone(),
                language: String::new(),
                text,
            })
            .collect::<Vec<_>>()
    });
    let mut known = 0;
    let mut wrong = Vec::new();
    for Block { place, text, .. } in blocks("sh").into_iter().chain(in_spans) {
        let commands = commands(&text).unwrap_or_else(|error| {
            wrong.push(format!("{place}: {text}: {error}"));
            Vec::new()
        });
        let from_its_name = |words: &'_ [String]| words.iter().position(|word| word == "walrelay");
        for words in commands
            .iter()
            .filter_map(|words| words.get(from_its_name(words)?..))
        {
            known += 1;
            wrong.extend(
                refused(words).map(|error| format!("{place}: {}: {error}", words.join(" "))),
            );
        }
    }
    assert!(known > 100, "{known} commands");
    none("commands that walrelay does not know", wrong);
}

/// All commands without further commands below them, by name.
fn leaves(command: &clap::Command, name: &str, found: &mut BTreeMap<String, clap::Command>) {
    let below: Vec<_> = command
        .get_subcommands()
        .filter(|command| command.get_name() != "help")
        .collect();
    if below.is_empty() {
        found.insert(name.to_owned(), command.clone());
    }
    for command in below {
        leaves(command, &format!("{name} {}", command.get_name()), found);
    }
}

/// The table of commands in `docs/reference/command-line.md`, of what clap knows.
fn table_of_commands() -> String {
    let mut whole = Cli::documented();
    whole.build();
    let mut commands = BTreeMap::new();
    leaves(&whole, "walrelay", &mut commands);
    let about = |command: &clap::Command| {
        command
            .get_about()
            .map(ToString::to_string)
            .unwrap_or_default()
    };
    let rows = commands
        .iter()
        .map(|(name, command)| format!("| `{name}` | {} |\n", about(command)));
    format!(
        "| command | what it does |\n|---|---|\n{}",
        rows.collect::<String>()
    )
}

/// Replaces the page's table by that of the program, in a copy.
#[test]
fn the_page_of_the_command_line_is_what_the_program_has() {
    let page = "docs/reference/command-line.md";
    let written = fs::read_to_string(Path::new(ROOT).join(page)).unwrap();
    let (before, table) = written.split_once("| command |").unwrap();
    let after = table.split_once("\n\n").map_or("", |(_, after)| after);
    let text = format!("{before}{}\n{after}", table_of_commands());
    if text.trim_end() == written.trim_end() {
        return;
    }
    let made = Path::new(ROOT).join("target/command-line.md");
    fs::write(&made, text).unwrap();
    panic!("{page} is out of date: cp {} {page}", made.display());
}
