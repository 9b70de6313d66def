//! The output, the questions and the ends of commands.

use std::fs::OpenOptions;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::ArgPredicate;
use clap::{Args, ValueEnum};
use serde::Serialize;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::printable::printable;

#[derive(Debug)]
pub(crate) enum Failure {
    Error(Error),
    /// The reader of its output has ended, as in `walrelay status --watch | head -1`: not a fault.
    PipeClosed,
    /// The command has printed its result, and ends with this code without an error: warnings of
    /// `doctor`, or the code of another interface than walrelay's.
    ExitCode(u8),
}

impl Failure {
    /// The end of a command that cannot write to standard output.
    pub(crate) fn of_stdout(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::PipeClosed;
        }
        Error::new(
            Kind::Prerequisite,
            format!("standard output cannot be written: {error}"),
        )
        .into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Error(error)
    }
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Prints `text` to standard output. After the end of the reader it does nothing: the command and
/// its exit code go on.
pub(crate) fn print(text: &str) -> Outcome {
    match print_to_reader(text) {
        Err(Failure::PipeClosed) => Ok(()),
        printed => printed,
    }
}

/// As [`print()`], for a command that only prints and has no end of its own.
pub(crate) fn print_to_reader(text: &str) -> Outcome {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(printable(text).as_bytes())
        .and_then(|()| stdout.flush());
    written.map_err(Failure::of_stdout)
}

/// Clears the terminal that standard output is.
pub(crate) fn clear_screen() -> Outcome {
    const TO_TOP_AND_CLEAR: &str = "\x1b[H\x1b[2J";
    io::stdout()
        .lock()
        .write_all(TO_TOP_AND_CLEAR.as_bytes())
        .map_err(Failure::of_stdout)
}

pub(crate) fn print_line(text: impl std::fmt::Display) -> Outcome {
    print(&format!("{text}\n"))
}

/// The form of a result, and of the error of the command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// For people
    #[default]
    Table,
    Json,
    Yaml,
}

/// The flags of a command that has a result.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Output {
    /// The form of the result. With json or yaml an error is one such object
    #[arg(
        long = "output",
        short = 'o',
        value_name = "FORMAT",
        default_value = "table",
        default_value_if("json", ArgPredicate::IsPresent, "json")
    )]
    pub(crate) form: Form,
    /// Short for --output json
    #[arg(long, conflicts_with = "form")]
    pub(crate) json: bool,
}

impl Output {
    /// Whether the result is for a program.
    pub(crate) fn is_data(self) -> bool {
        self.form != Form::Table
    }

    /// Prints a line for people; nothing if the result is for a program.
    pub(crate) fn say(self, text: impl std::fmt::Display) -> Outcome {
        if self.is_data() {
            Ok(())
        } else {
            print_line(text)
        }
    }

    /// `value` on one line of JSON or as one YAML document, so that others can follow; for people
    /// `text` with a line end.
    ///
    /// # Errors
    /// [`Kind::Bug`] where `value` has no such form.
    pub fn line(self, value: &impl Serialize, text: &str) -> Result<String, Error> {
        match self.form {
            Form::Table => Ok(format!("{text}\n")),
            Form::Json => Ok(json_line(value)? + "\n"),
            Form::Yaml => Ok(format!("---\n{}", yaml(value)?)),
        }
    }
}

pub(crate) fn print_report(output: Output, value: &impl Serialize, text: &str) -> Outcome {
    match output.form {
        Form::Table => print(text),
        Form::Json => print_line(serde_json::to_string_pretty(value).map_err(no_json)?),
        Form::Yaml => print(&yaml(value)?),
    }
}

/// A value as YAML; as JSON, which YAML contains, where a text has to be escaped.
fn yaml(value: &impl Serialize) -> Result<String, Error> {
    let yaml = yaml_serde::to_string(value).map_err(|error| {
        Error::new(
            Kind::Bug,
            format!("the result cannot be printed as YAML: {error}"),
        )
    })?;
    match yaml == printable(&yaml) {
        true => Ok(yaml),
        false => Ok(serde_json::to_string_pretty(value).map_err(no_json)? + "\n"),
    }
}

/// An error for programs. `kind` and `exit_code` are those of `docs/how-to/runbook.md`.
#[derive(Debug, Serialize)]
struct ErrorReport {
    kind: String,
    exit_code: u8,
    error: String,
    remedy: Option<String>,
    /// Errors that were found together with this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    others: Vec<ErrorReport>,
}

impl ErrorReport {
    fn of(error: &Error) -> ErrorReport {
        let kind = error.kind();
        ErrorReport {
            kind: kind.name().to_owned(),
            exit_code: kind.exit_code(),
            error: error.to_string(),
            remedy: error.what_to_do(),
            others: error.others().iter().map(ErrorReport::of).collect(),
        }
    }
}

/// An error in the form of the result, without an end of line.
pub(crate) fn error_in(form: Form, error: &Error) -> String {
    let text = match form {
        Form::Table => return error_lines(error),
        Form::Json => json_line(&ErrorReport::of(error)),
        Form::Yaml => yaml(&ErrorReport::of(error)),
    };
    text.map_or_else(|_| error_lines(error), |text| text.trim_end().to_owned())
}

pub(crate) fn json_line(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(no_json)
}

fn no_json(error: serde_json::Error) -> Error {
    Error::new(
        Kind::Bug,
        format!("the result cannot be printed as JSON: {error}"),
    )
}

/// Writes `text` into a file. Replaces an existing file only with `force`.
fn write_file(path: &Path, text: &str, force: bool) -> Result<(), Error> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let written = options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| {
        if error.kind() == io::ErrorKind::AlreadyExists {
            return Error::new(Kind::Config, format!("{} exists", path.display()))
                .remedy("name another --output, or add --force");
        }
        Error::new(
            Kind::Prerequisite,
            format!("{} cannot be written: {error}", path.display()),
        )
        .remedy("name a file that can be written with --output")
    })
}

/// The destination of a new configuration.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Write the walrelay.toml here instead of to standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Overwrite an existing output file
    #[arg(long, requires = "output")]
    pub force: bool,
    /// Print the file and the notes on it as one JSON object
    #[arg(long)]
    pub json: bool,
}

impl Target {
    /// Writes or prints `toml`. Says `about` it, or prints `result`, which has both.
    pub(crate) fn write(&self, toml: &str, about: &str, result: &impl Serialize) -> Outcome {
        if let Some(output) = &self.output {
            write_file(output, toml, self.force)?;
        }
        if self.json {
            return print_line(serde_json::to_string_pretty(result).map_err(no_json)?);
        }
        if self.output.is_none() {
            print(toml)?;
        }
        if !about.is_empty() {
            note(about);
        }
        Ok(())
    }
}

pub(crate) fn note(text: impl std::fmt::Display) {
    // A fault of standard error cannot be reported.
    writeln!(io::stderr().lock(), "{}", printable(&text.to_string())).unwrap_or_default();
}

pub(crate) fn warn<W: std::fmt::Display>(warnings: impl IntoIterator<Item = W>) {
    for warning in warnings {
        note(format_args!("warning: {warning}"));
    }
}

pub(crate) fn on_one_line(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(str::trim).collect();
    lines.join(" ")
}

/// An error as two lines, whatever it contains: the cause and the remedy. The lines of errors found
/// with it follow.
pub(crate) fn error_lines(error: &Error) -> String {
    let mut lines = vec![format!("error: {}", on_one_line(&error.to_string()))];
    let remedy = error.what_to_do();
    lines.extend(remedy.map(|remedy| format!("fix: {}", on_one_line(&remedy))));
    lines.extend(error.others().iter().map(error_lines));
    lines.join("\n")
}

/// The longest wait for an answer while a session or transaction is open.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
const ASK_AGAIN: &str = "repeat the command and answer y, or add --yes";

/// The flags of a command that shows its plan and asks before it carries that out.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Consent {
    /// Change nothing; print the plan
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub output: Output,
}

impl Consent {
    /// Shows a plan and asks for its confirmation, unless `--yes` gave it. If the result is for a
    /// program, the plan goes to the person who is asked. `otherwise` is the state without an
    /// answer. `false` for a dry run, which ends here.
    pub(crate) async fn given(
        self,
        plan: &impl Serialize,
        text: &str,
        question: String,
        otherwise: &str,
    ) -> Outcome<bool> {
        if self.dry_run {
            print_report(
                self.output,
                plan,
                &format!("{text}\nDry run: {otherwise}.\n"),
            )?;
            return Ok(false);
        }
        match (self.output.is_data(), self.yes) {
            (false, _) => print(text)?,
            (true, false) => note(text.trim_end()),
            (true, true) => {}
        }
        if !self.yes {
            confirm(question, otherwise).await?;
        }
        Ok(true)
    }
}

/// Asks `question` and waits for the answer. Only `y` and `yes` mean yes. `otherwise` is the state
/// without an answer.
pub(crate) async fn confirm(question: String, otherwise: &str) -> Result<()> {
    let asked = tokio::task::spawn_blocking(move || asked(&question));
    match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
        Ok(answer) => judged(
            &answer
                .map_err(|error| Error::new(Kind::Bug, format!("the question ended: {error}")))??,
        ),
        Err(_) => {
            let cause = format!("no answer within ten minutes, and {otherwise}");
            Err(Error::new(Kind::Config, cause).remedy(ASK_AGAIN))
        }
    }
}

fn asked(question: &str) -> Result<String> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(Error::new(Kind::Config, "there is no terminal to ask at")
            .remedy("add --yes to confirm"));
    }
    let failed = |error: io::Error| {
        Error::new(
            Kind::Config,
            format!("the terminal cannot be asked: {error}"),
        )
    };
    let mut stderr = io::stderr().lock();
    write!(stderr, "{} [y/N] ", printable(question))
        .and_then(|()| stderr.flush())
        .map_err(failed)?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).map_err(failed)?;
    Ok(answer)
}

fn judged(answer: &str) -> Result<()> {
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Error::new(Kind::Config, "not confirmed; nothing was changed").remedy(ASK_AGAIN)),
    }
}

pub(crate) fn time(ms: i64) -> Option<String> {
    jiff::Timestamp::from_millisecond(ms)
        .ok()
        .map(|time| format!("{time:.3}"))
}

pub(crate) fn or_dash(value: Option<impl std::fmt::Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// The age for people, as one number. A time in the future gives `0s`.
pub(crate) fn age(ms: i64, now_ms: i64) -> String {
    let seconds = now_ms.saturating_sub(ms).max(0) / 1_000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Text for a cell or a line: escaped like a name in a log, but for quotes, and at most `chars`
/// long.
pub(crate) fn cell(bytes: &[u8], chars: usize) -> String {
    let head = bytes.get(..(chars + 1).saturating_mul(4)).unwrap_or(bytes);
    let text: String = String::from_utf8_lossy(head)
        .chars()
        .flat_map(escaped)
        .collect();
    cut(&text, chars)
}

/// As `char::escape_debug`, but for quotes and backslashes.
fn escaped(character: char) -> Vec<char> {
    match character {
        '"' | '\'' | '\\' => vec![character],
        _ => character.escape_debug().collect(),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// At most `columns` of a terminal; `…` replaces the rest of the text.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut used = 0;
    let fits = |character: &char| {
        used += character.width().unwrap_or(1);
        used < columns
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// Rows as aligned columns. The last cell of a row may have any length. Control characters become
/// spaces.
pub(crate) fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
    let cells = rows
        .iter()
        .map(|row| row.as_ref().len())
        .max()
        .unwrap_or_default();
    let width = |cell: usize| {
        rows.iter()
            .filter_map(|row| row.as_ref().get(cell))
            .map(|text| text.width())
            .max()
    };
    let widths: Vec<usize> = (0..cells.saturating_sub(1))
        .map(|cell| width(cell).unwrap_or_default())
        .collect();
    let line = |row: &[String]| {
        let padding = |cell: usize| widths.get(cell).copied().unwrap_or_default();
        let padded = |(cell, text): (usize, &String)| {
            format!(
                "{text}{:1$}",
                "",
                padding(cell).saturating_sub(text.width())
            )
        };
        row.iter()
            .enumerate()
            .map(padded)
            .collect::<Vec<_>>()
            .join("  ")
            .trim_end()
            .replace(char::is_control, " ")
    };
    rows.iter()
        .map(|row| line(row.as_ref()))
        .collect::<Vec<_>>()
        .join("\n")
}

pub(crate) fn labelled<N: ToString>(values: impl IntoIterator<Item = (N, String)>) -> String {
    aligned(
        &values
            .into_iter()
            .map(|(name, value)| [name.to_string(), value])
            .collect::<Vec<_>>(),
    ) + "\n"
}

#[derive(Debug, Default)]
pub(crate) struct Grid {
    head: Option<Vec<String>>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// A table whose columns have names, which `head` has with commas between.
    pub(crate) fn headed(head: &str) -> Grid {
        Grid {
            head: Some(head.split(", ").map(str::to_owned).collect()),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row<const CELLS: usize>(&mut self, cells: [&dyn std::fmt::Display; CELLS]) {
        self.rows.push(cells.map(|cell| cell.to_string()).to_vec());
    }

    pub(crate) fn text(&self) -> String {
        aligned(&self.head.iter().chain(&self.rows).collect::<Vec<_>>()) + "\n"
    }

    /// The table below an empty line; nothing if it has no rows.
    pub(crate) fn section(&self) -> String {
        if self.rows.is_empty() {
            String::new()
        } else {
            format!("\n{}", self.text())
        }
    }

    /// The rows below a title, which has their number if `count` is larger; nothing if there are
    /// none.
    pub(crate) fn titled(&self, title: &str, count: u64) -> String {
        let shown = self.rows.len() as u64;
        let of = if shown < count {
            format!(" ({shown} of {count})")
        } else {
            String::new()
        };
        if self.rows.is_empty() {
            String::new()
        } else {
            format!("\n{title}{of}\n{}", self.text())
        }
    }
}

pub(crate) fn notes(notes: &[String]) -> String {
    notes
        .iter()
        .map(|note| format!("note: {}\n", note.replace(char::is_control, " ")))
        .collect()
}

/// As [`aligned`], with each line cut to `width`.
pub(crate) fn table<R: AsRef<[String]>>(rows: &[R], width: Option<usize>) -> String {
    let lines = aligned(rows);
    lines
        .lines()
        .map(|line| cut(line, width.unwrap_or(usize::MAX)))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The width of the terminal; none if standard output is not a terminal.
pub(crate) fn width() -> Option<usize> {
    let is_terminal = std::io::stdout().is_terminal();
    is_terminal.then(|| {
        terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0.max(40)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_core::printable::shell_word;

    const NOON_MS: i64 = 1_772_366_400_000;

    #[test]
    fn an_existing_file_is_overwritten_only_with_force() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("walrelay.toml");
        write_file(&path, "first, and longer", false).unwrap();
        let error = write_file(&path, "second", false).unwrap_err();
        assert_eq!(
            (
                error.kind(),
                std::fs::read_to_string(&path).unwrap().as_str()
            ),
            (Kind::Config, "first, and longer")
        );
        write_file(&path, "second", true).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second");
    }

    #[test]
    fn an_error_prints_its_cause_and_its_fix_on_one_line_each() {
        let error = Error::new(Kind::Config, "a\nb").remedy("c\n  d");
        assert_eq!(error_lines(&error), "error: a b\nfix: c d");
        assert_eq!(error_lines(&Error::new(Kind::NotVerified, "x")), "error: x");
        assert!(
            error_lines(&Error::new(Kind::PostgresUnreachable, "x"))
                .starts_with("error: x\nfix: check that the server")
        );
    }

    #[test]
    fn an_error_is_one_object_with_its_kind_and_remedy_where_data_is_asked_for() {
        let error = Error::new(Kind::Config, "a \"b\"").remedy("c");
        assert_eq!(
            error_in(Form::Json, &error),
            r#"{"kind":"config","exit_code":2,"error":"a \"b\"","remedy":"c"}"#
        );
        let yaml = "kind: not_verified\nexit_code: 1\nerror: x\nremedy: null";
        assert_eq!(
            error_in(Form::Yaml, &Error::new(Kind::NotVerified, "x")),
            yaml
        );
        assert_eq!(error_in(Form::Table, &error), error_lines(&error));
    }

    #[test]
    fn what_a_terminal_obeys_is_escaped_in_each_form() {
        let hostile = "a\u{1b}[2J\u{9b}\u{202e}b";
        assert_eq!(
            shell_word(&format!("{hostile}'\\")),
            r"$'a\u001b[2J\u009b\u202eb\'\\'"
        );
        let read = |text: &str| yaml_serde::from_str::<Vec<String>>(&printable(text)).unwrap();
        let text = yaml(&[hostile]).unwrap();
        assert_eq!(
            (read(&text), printable(&text).contains(hostile)),
            (vec![hostile.to_owned()], false)
        );
        assert_eq!(yaml(&["größe"]).unwrap(), "- größe\n");
    }

    #[test]
    fn only_y_or_yes_confirms_and_other_answers_are_refused() {
        for yes in ["y\n", " YES "] {
            assert!(judged(yes).is_ok());
        }
        for no in ["", "n\n", "yep\n"] {
            assert!(
                judged(no)
                    .unwrap_err()
                    .what_to_do()
                    .unwrap()
                    .contains("--yes"),
                "{no}"
            );
        }
    }

    #[test]
    fn an_age_is_shown_in_one_unit() {
        assert_eq!(time(NOON_MS).unwrap(), "2026-03-01T12:00:00.000Z");
        let age = |seconds: i64| age(NOON_MS - seconds * 1_000, NOON_MS);
        let ages = [-5, 0, 119, 120, 7_199, 7_200, 172_799, 172_800].map(age);
        assert_eq!(ages, ["0s", "0s", "119s", "2m", "119m", "2h", "47h", "2d"]);
    }

    #[test]
    fn a_table_cell_is_escaped_and_cut_to_its_maximum_length() {
        assert_eq!(cell(b"a \"b\" 'c'", 20), "a \"b\" 'c'");
        assert_eq!(cell(b"\xff\x1b[2J\n\0", 20), "\u{fffd}\\u{1b}[2J\\n\\0");
        assert_eq!(cell(&vec![b'x'; 1 << 20], 4), "xxx…");
        assert_eq!(
            (cut("größe", 5).as_str(), cut("größe", 4).as_str()),
            ("größe", "grö…")
        );
    }

    #[test]
    fn table_columns_are_aligned_and_rows_are_cut_to_the_terminal_width() {
        let rows = [["a", "b", "c"], ["long\nname", "", "d e"], ["x", "yy", ""]]
            .map(|row| row.map(str::to_owned));
        assert_eq!(
            table(&rows, None),
            "a          b   c\nlong name      d e\nx          yy"
        );
        assert_eq!(table(&rows, Some(8)), "a      …\nlong na…\nx      …");
        let wide = [["日本", "b"], ["c", "d"]].map(|row| row.map(str::to_owned));
        assert_eq!(
            (table(&wide, None).as_str(), cut("日本", 3).as_str()),
            ("日本  b\nc     d", "日…")
        );
    }

    #[test]
    fn toml_means_the_same_before_and_after_it_is_made_printable() {
        let hostile = "a\u{1b}\u{7f}\u{9b}\u{202e}\u{feff}";
        let toml = format!(
            "a = {}",
            printable(&serde_json::Value::from(hostile).to_string())
        );
        assert_eq!(
            toml.parse::<toml::Table>().unwrap()["a"].as_str(),
            Some(hostile)
        );
    }
}
