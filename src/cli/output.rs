//! What commands print, and how they end.

use serde::Serialize;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use crate::error::{Error, Kind};

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
    let json = serde_json::to_string_pretty(value);
    print_line(json.map_err(|error| Error::new(Kind::Bug, format!("it cannot be printed: {error}")))?)
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

/// Rows under each other, cells in line; the last of each row may be of any length. A name may hold anything, and a line
/// is one line.
pub fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
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

/// Tells the person at the terminal something that is not the command's output.
pub fn note(text: impl std::fmt::Display) {
    // Where not even standard error can be written, there is nobody to tell.
    writeln!(io::stderr().lock(), "{text}").unwrap_or_default();
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
    fn rows_line_up_and_stay_lines() {
        let rows = [["a", "b", "c"], ["long\nname", "", "d e"], ["x", "yy", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(&rows), "a          b   c\nlong name      d e\nx          yy");
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
}
