//! Where Postgres is on this machine.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Kind, Result};

/// The oldest major version whose logical decoding the relay is written for.
const MAJOR_MIN: u32 = 14;

/// Names a directory with `postgres` and `initdb`, before anything is searched.
const BIN_VARIABLE: &str = "WALRELAY_POSTGRES_BIN";

/// Directories that hold one directory for each installed version, and where in it the programs are.
const VERSIONED: [(&str, &str); 5] = [
    ("/usr/lib/postgresql", "bin"),
    ("/usr/local/opt", "bin"),
    ("/opt/homebrew/opt", "bin"),
    ("/Library/PostgreSQL", "bin"),
    ("/Applications/Postgres.app/Contents/Versions", "bin"),
];

/// A directory with `postgres` and `initdb` of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binaries {
    dir: PathBuf,
    major: u32,
}

impl Binaries {
    /// Finds them: `asked`, [`BIN_VARIABLE`], `PATH`, then the usual places with the highest version first.
    ///
    /// # Errors
    /// [`Kind::Config`] where `asked` or the variable names a directory without them; [`Kind::Prerequisite`] where none is
    /// found.
    pub(super) fn find(asked: Option<&Path>) -> Result<Self> {
        if let Some(dir) = asked {
            return Self::named(dir, "--postgres-bin");
        }
        if let Some(dir) = env::var_os(BIN_VARIABLE).filter(|dir| !dir.is_empty()) {
            return Self::named(Path::new(&dir), BIN_VARIABLE);
        }
        let on_path = env::var_os("PATH").unwrap_or_default();
        if let Some(found) = env::split_paths(&on_path).find_map(|dir| Self::at(&dir)) {
            return Ok(found);
        }
        if let Some(found) = usual_places().into_iter().filter_map(|dir| Self::at(&dir)).max_by_key(|found| found.major)
        {
            return Ok(found);
        }
        Err(Error::new(Kind::Prerequisite, "no Postgres is installed").remedy(
            "install a Postgres server, version 14 or later (Debian: apt-get install postgresql; macOS: brew install \
             postgresql), or name its programs with --postgres-bin",
        ))
    }

    fn named(dir: &Path, by: &str) -> Result<Self> {
        Self::at(dir).ok_or_else(|| {
            let what = format!(
                "{by} names {}, which has no postgres and initdb of version {MAJOR_MIN} or later",
                dir.display()
            );
            Error::new(Kind::Config, what).remedy("name the directory that holds the programs postgres and initdb")
        })
    }

    /// Those in `dir`, if both programs are there, run, and are new enough.
    fn at(dir: &Path) -> Option<Self> {
        if !dir.join("initdb").is_file() {
            return None;
        }
        let output = Command::new(dir.join("postgres")).arg("--version").stdin(Stdio::null()).output().ok()?;
        let major = major_of(&String::from_utf8_lossy(&output.stdout))?;
        // The real directory: a shim would start its own wrapper where the server's process id is wanted.
        let dir = fs::canonicalize(dir.join("postgres")).ok()?.parent()?.to_owned();
        (major >= MAJOR_MIN && dir.join("initdb").is_file()).then_some(Binaries { dir, major })
    }

    /// The major version.
    pub(super) fn major(&self) -> u32 {
        self.major
    }

    /// The path of one of the programs.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// `postgres (PostgreSQL) 15.18 (Debian …)` is 15; a beta is `18beta1`.
fn major_of(version_line: &str) -> Option<u32> {
    let version = version_line.split(')').nth(1)?.split_whitespace().next()?;
    let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

fn usual_places() -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> =
        ["/usr/local/pgsql/bin", "/usr/local/bin", "/opt/homebrew/bin"].map(Into::into).into();
    let asdf = env::var_os("HOME").map(|home| Path::new(&home).join(".asdf/installs/postgres"));
    let roots = VERSIONED.iter().map(|(root, bin)| (PathBuf::from(root), *bin)).chain(asdf.map(|root| (root, "bin")));
    for (root, bin) in roots {
        let Ok(entries) = fs::read_dir(&root) else { continue };
        let names = entries.flatten().map(|entry| entry.file_name());
        places.extend(names.filter(|name| holds_postgres(&root, name)).map(|name| root.join(name).join(bin)));
    }
    // RPM packages put each version beside the others rather than below one directory.
    places.extend((MAJOR_MIN..MAJOR_MIN + 10).map(|major| PathBuf::from(format!("/usr/pgsql-{major}/bin"))));
    places
}

/// Homebrew's directory holds everything it installs; the others only hold versions of Postgres.
fn holds_postgres(root: &Path, name: &OsStr) -> bool {
    !root.ends_with("opt") || name.to_string_lossy().starts_with("postgresql")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_what_postgres_prints() {
        assert_eq!(major_of("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
        assert_eq!(major_of("postgres (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(major_of("postgres (PostgreSQL) 9.6.24"), Some(9));
        for bad in ["", "postgres", "postgres (PostgreSQL)", "postgres (PostgreSQL) x"] {
            assert_eq!(major_of(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_directory_without_postgres_is_refused_by_name() {
        let empty = tempfile::tempdir().unwrap();
        let error = Binaries::find(Some(empty.path())).unwrap_err();
        assert_eq!(error.kind(), Kind::Config);
        assert!(error.cause().contains("--postgres-bin names"), "{error}");
    }
}
