//! What commands print, ask, and how they end.

use std::fs::OpenOptions;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::{Error, Kind, Result};

/// How often it is said how far a command is.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Why a command did not come to its end.
#[derive(Debug)]
pub enum Failure {
    /// It failed, and says why.
    Error(Error),
    /// Nobody reads its output any more, as in `walrelay status --watch | head -1`: not a fault.
    PipeClosed,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Error(error)
    }
}

/// The result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Prints `text` as it is to standard output. Where nobody reads that any more, nothing happens: what else a command is there
/// for, and its exit code, are as they would have been.
///
/// # Errors
/// [`Kind::Prerequisite`] where it cannot be written, as on a full disk.
pub fn print(text: &str) -> Outcome {
    match print_to_reader(text) {
        Err(Failure::PipeClosed) => Ok(()),
        printed => printed,
    }
}

/// The same for a command that is there for nothing else, and has no end of its own.
///
/// # Errors
/// As [`print()`], and [`Failure::PipeClosed`].
pub fn print_to_reader(text: &str) -> Outcome {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::PipeClosed;
        }
        Error::new(Kind::Prerequisite, format!("standard output cannot be written: {error}")).into()
    })
}

/// Prints `text` and a line feed.
///
/// # Errors
/// As [`print()`].
pub fn print_line(text: impl std::fmt::Display) -> Outcome {
    print(&format!("{text}\n"))
}

/// Prints a value as JSON, for people to read and programs to parse.
///
/// # Errors
/// As [`print()`], and [`Kind::Bug`] for what is no JSON.
pub fn print_json(value: &impl Serialize) -> Outcome {
    print_line(serde_json::to_string_pretty(value).map_err(no_json)?)
}

/// Prints `value` as JSON where that is asked for, and `text` otherwise.
///
/// # Errors
/// As [`print_json`].
pub fn print_report(is_json: bool, value: &impl Serialize, text: &str) -> Outcome {
    if is_json { print_json(value) } else { print(text) }
}

/// A value as JSON on one line.
///
/// # Errors
/// [`Kind::Bug`] for what is no JSON.
pub fn json_line(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(no_json)
}

fn no_json(error: serde_json::Error) -> Error {
    Error::new(Kind::Bug, format!("it cannot be printed as JSON: {error}"))
}

/// Writes `text` into a file of its own; over one that exists only with `force`.
///
/// # Errors
/// [`Kind::Config`] where it exists, [`Kind::Prerequisite`] where it cannot be written.
pub fn write_file(path: &Path, text: &str, force: bool) -> Result<(), Error> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| {
        if error.kind() == io::ErrorKind::AlreadyExists {
            return Error::new(Kind::Config, format!("{} exists", path.display()))
                .remedy("name another --output, or add --force");
        }
        Error::new(Kind::Prerequisite, format!("{} cannot be written: {error}", path.display()))
            .remedy("name a file that can be written with --output")
    })
}

/// `text` as a shell takes it for one word.
pub fn shell_word(text: &str) -> String {
    match text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c)) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Tells the person at the terminal something that is not the command's output.
pub fn note(text: impl std::fmt::Display) {
    // Where not even standard error can be written, there is nobody to tell.
    writeln!(io::stderr().lock(), "{text}").unwrap_or_default();
}

/// Tells the person at the terminal what is allowed and should be known.
pub fn warn<W: std::fmt::Display>(warnings: impl IntoIterator<Item = W>) {
    for warning in warnings {
        note(format_args!("warning: {warning}"));
    }
}

/// Tells the person at the terminal how far a command is, not too often.
#[derive(Debug)]
pub struct Teller {
    said: Instant,
}

impl Teller {
    /// Says nothing for a while.
    pub(in crate::cli) fn new() -> Teller {
        Teller { said: Instant::now() }
    }

    /// Says it, unless something was said a moment ago.
    pub fn tell(&mut self, text: impl FnOnce() -> String) {
        if self.said.elapsed() >= SAY_EVERY {
            self.said = Instant::now();
            note(text());
        }
    }
}

/// An error as it is printed: what happened, and what to do. Two lines, whatever is in it.
pub fn error_lines(error: &Error) -> String {
    let one_line = |text: String| text.split('\n').map(str::trim).collect::<Vec<_>>().join(" ");
    let happened = format!("error: {}", one_line(error.to_string()));
    match error.any_remedy().or_else(|| error.kind().remedy()) {
        Some(remedy) => format!("{happened}\nfix: {}", one_line(remedy.to_string())),
        None => happened,
    }
}

/// How long the answer of a person is waited for by whoever holds something open meanwhile.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// What to do where nobody said yes.
const ASK_AGAIN: &str = "start it again and answer y; --yes answers for you";

/// Shows what would be done, and asks for it unless that is answered already; beside JSON it is shown only to whoever is asked.
///
/// # Errors
/// As [`confirm`], and where nobody answers; those of [`print()`].
pub async fn shown_and_confirmed(
    text: &str,
    (is_json, is_answered): (bool, bool),
    question: impl FnOnce() -> String,
    otherwise: &str,
) -> Outcome {
    match is_json {
        false => print(text)?,
        true if !is_answered => note(text.trim_end()),
        true => {}
    }
    if !is_answered {
        confirm_in_time(question(), otherwise).await?;
    }
    Ok(())
}

/// As [`confirm`], and does not wait for ever; `otherwise` says what did not happen then.
///
/// # Errors
/// [`Kind::Config`], as there and where nobody answers.
async fn confirm_in_time(question: String, otherwise: &str) -> Result<()> {
    let asked = tokio::task::spawn_blocking(move || confirm(&question));
    match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
        Ok(answer) => answer.map_err(|error| Error::new(Kind::Bug, format!("the question ended: {error}")))?,
        Err(_) => {
            let cause = format!("no answer within ten minutes, and {otherwise}");
            Err(Error::new(Kind::Config, cause).remedy(ASK_AGAIN))
        }
    }
}

/// Asks `question` and waits for the answer. Only `y` and `yes` are yes.
///
/// # Errors
/// [`Kind::Config`] where there is no terminal to ask at, or the answer is not yes.
pub fn confirm(question: &str) -> Result<()> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(Error::new(Kind::Config, "there is no terminal to ask at").remedy("pass --yes if you are sure"));
    }
    let failed = |error: io::Error| Error::new(Kind::Config, format!("the terminal cannot be asked: {error}"));
    let mut stderr = io::stderr().lock();
    write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()).map_err(failed)?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).map_err(failed)?;
    judged(&answer)
}

fn judged(answer: &str) -> Result<()> {
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Error::new(Kind::Config, "not confirmed, nothing was changed").remedy(ASK_AGAIN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_exists_is_written_with_force_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("walrelay.toml");
        write_file(&path, "first, and longer", false).unwrap();
        let error = write_file(&path, "second", false).unwrap_err();
        assert_eq!(
            (error.kind(), std::fs::read_to_string(&path).unwrap().as_str()),
            (Kind::Config, "first, and longer")
        );
        write_file(&path, "second", true).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second");
    }

    #[test]
    fn an_error_is_two_lines_whatever_is_in_it() {
        let error = Error::new(Kind::Config, "a\nb").remedy("c\n  d");
        assert_eq!(error_lines(&error), "error: a b\nfix: c d");
        assert_eq!(error_lines(&Error::new(Kind::NotVerified, "x")), "error: x");
        assert!(
            error_lines(&Error::new(Kind::PostgresUnreachable, "x"))
                .starts_with("error: x\nfix: check that the server")
        );
    }

    #[test]
    fn only_yes_is_yes_and_whoever_says_no_is_told_nothing_of_settings() {
        for yes in ["y\n", " YES "] {
            assert!(judged(yes).is_ok());
        }
        for no in ["", "n\n", "yep\n"] {
            assert!(judged(no).unwrap_err().what_to_do().unwrap().contains("--yes"), "{no}");
        }
    }
}
