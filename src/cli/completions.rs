//! `walrelay completions` and `walrelay man`: files that follow from the definition of the command
//! line.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::cli::output::{Outcome, print};
use walrelay_core::error::{Error, Kind};

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The directory of the pages; created if it does not exist
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

pub(super) const COMPLETIONS_HELP: &str = "\
Examples:
  walrelay completions bash > /etc/bash_completion.d/walrelay
  walrelay completions zsh > \"${fpath[1]}/_walrelay\"
  walrelay completions fish > ~/.config/fish/completions/walrelay.fish

Exit codes:
  0   the script is printed
  2   there is no script for this shell";

pub(super) const MAN_HELP: &str = "\
Examples:
  walrelay man /usr/local/share/man/man1

Writes one page for each command, such as walrelay-run.1.

Exit codes:
  0   the pages are written
  4   a page cannot be written";

/// Prints the completion script of `command`, the whole command line.
pub(super) fn completions(args: &CompletionsArgs, mut command: Command) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "walrelay", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes the manual pages of `command`, the whole command line, and of its commands.
pub(super) fn man(args: &ManArgs, command: Command) -> Outcome {
    let directory = &args.directory;
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(command, directory));
    Ok(written.map_err(|error| {
        let cause = format!(
            "the manual pages cannot be written to {}: {error}",
            directory.display()
        );
        Error::new(Kind::Prerequisite, cause).remedy("name another directory")
    })?)
}
