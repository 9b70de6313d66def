//! The password file: `host:port:database:user:password`, the first line that matches.
//!
//! <https://www.postgresql.org/docs/current/libpq-pgpass.html>

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Host, Target, bad};
use crate::error::Result;
use crate::secret::Secret;

/// The password for this connection, if the file exists and has one.
///
/// # Errors
/// [`crate::error::Kind::Config`] where others may read the file: what is in it is no secret.
pub(super) fn look_up(file: &Path, target: &Target, database: &str, user: &str) -> Result<Option<Secret>> {
    let Ok(metadata) = std::fs::metadata(file) else { return Ok(None) };
    if !metadata.is_file() {
        return Ok(None);
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(bad(format_args!("the password file {} can be read by others", file.display()))
            .remedy(format_args!("chmod 600 {}", file.display())));
    }
    let text = std::fs::read_to_string(file)
        .map_err(|error| bad(format_args!("the password file {} cannot be read: {error}", file.display())))?;
    let host = match &target.host {
        Host::Tcp { name, .. } => name.as_str(),
        // A socket in the default directory goes by the name of the machine it is on.
        Host::Unix(directory) if is_default(directory) => "localhost",
        Host::Unix(directory) => directory.to_str().unwrap_or_default(),
    };
    let wanted = [host, &target.port.to_string(), database, user];
    Ok(text.lines().find_map(|line| password_of(line, &wanted)).map(Secret::new))
}

fn is_default(directory: &Path) -> bool {
    directory == Path::new("/var/run/postgresql") || directory == Path::new("/tmp")
}

fn password_of(line: &str, wanted: &[&str; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut rest = line;
    for want in wanted {
        let (field, after) = field(rest, true)?;
        if rest.split(':').next() != Some("*") && field != *want {
            return None;
        }
        rest = after;
    }
    let (password, _) = field(rest, false)?;
    (!password.is_empty()).then_some(password)
}

/// One field with its escapes undone, and what follows its colon. Only the last field may lack the colon, and in it a
/// colon that was not escaped is part of the password.
fn field(text: &str, colon: bool) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.chars();
    loop {
        match chars.next() {
            Some('\\') => value.extend(chars.next()),
            Some(':') if colon => return Some((value, chars.as_str())),
            Some(char) => value.push(char),
            None if colon => return None,
            None => return Some((value, "")),
        }
    }
}
