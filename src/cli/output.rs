//! What commands print, and how they end.

use std::io::{self, Write};

use crate::error::{Error, Kind};

/// Why a command did not come to its end.
#[derive(Debug)]
pub enum Failure {
    /// It failed, and says why.
    Error(Error),
    /// Nobody reads its output any more, as in `walrelay status | head -1`: not a fault.
    PipeClosed,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Error(error)
    }
}

/// The result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Prints `text` as it is to standard output.
///
/// # Errors
/// [`Failure::PipeClosed`], or [`Kind::Prerequisite`] where it cannot be written, as on a full disk.
pub fn print(text: &str) -> Outcome {
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

/// Tells the person at the terminal something that is not the command's output.
pub fn note(text: impl std::fmt::Display) {
    // Where not even standard error can be written, there is nobody to tell.
    writeln!(io::stderr().lock(), "{text}").unwrap_or_default();
}

/// An error as it is printed: what happened, and what to do. Two lines, whatever is in it.
pub fn error_lines(error: &Error) -> String {
    let one_line = |text: &str| text.split('\n').map(str::trim).collect::<Vec<_>>().join(" ");
    match error.what_to_do() {
        Some(remedy) => format!("error: {}\nfix: {}", one_line(error.cause()), one_line(remedy)),
        None => format!("error: {}", one_line(error.cause())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_two_lines_whatever_is_in_it() {
        let error = Error::new(Kind::Config, "a\nb").remedy("c\n  d");
        assert_eq!(error_lines(&error), "error: a b\nfix: c d");
        assert_eq!(error_lines(&Error::new(Kind::Bug, "x")), "error: x");
    }
}
