//! Asking the person at the terminal.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use crate::cli::output::{Outcome, note, print};
use crate::error::{Error, Kind, Result};

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
    fn only_yes_is_yes_and_whoever_says_no_is_told_nothing_of_settings() {
        for yes in ["y\n", " YES "] {
            assert!(judged(yes).is_ok());
        }
        for no in ["", "n\n", "yep\n"] {
            assert!(judged(no).unwrap_err().what_to_do().unwrap().contains("--yes"), "{no}");
        }
    }
}
