//! Tells the crate its commit, for `walrelay --version`: that of the variable `WALRELAY_COMMIT`,
//! else that of git. Without both, the version has no commit.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    for input in [
        "rerun-if-env-changed=WALRELAY_COMMIT",
        "rerun-if-changed=build.rs",
    ] {
        println!("cargo::{input}");
    }
    let given = env::var("WALRELAY_COMMIT")
        .ok()
        .filter(|commit| !commit.is_empty());
    // Each commit would otherwise compile the crate again, for every test.
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if let Some(commit) = given.or_else(|| if is_release { commit() } else { None }) {
        println!("cargo::rustc-env=WALRELAY_COMMIT={commit}");
    }
}

/// The checked-out commit, with `-dirty` where files differ from it.
fn commit() -> Option<String> {
    // This file is not in a repository that only surrounds the source.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    println!("cargo::rerun-if-changed=src");
    // Grows with each commit. For a file that does not exist, cargo would run this script at each
    // build.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&[
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(arguments)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
