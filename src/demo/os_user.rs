//! Who Postgres runs as: it refuses root.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Kind, Result};

/// A user of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OsUser {
    uid: u32,
    gid: u32,
}

impl OsUser {
    /// `None` where we may run Postgres ourselves; as root the user `postgres`, or else `nobody`.
    ///
    /// # Errors
    /// [`Kind::Prerequisite`] where we are root and there is nobody else.
    pub fn instead_of_root() -> Result<Option<OsUser>> {
        if !are_we_root() {
            return Ok(None);
        }
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let found = ["postgres", "nobody"].into_iter().find_map(|name| in_passwd(&users, name));
        found.map(Some).ok_or_else(|| {
            let what = "Postgres does not run as root, and there is neither a user postgres nor nobody";
            Error::new(Kind::Prerequisite, what).remedy("run this as another user")
        })
    }

    /// Gives it a file or directory.
    ///
    /// # Errors
    /// What the operating system says where the path is missing or we are not root.
    pub fn own(self, path: &Path) -> std::io::Result<()> {
        chown(path, Some(self.uid), Some(self.gid))
    }

    /// Runs the command as this user, without our supplementary groups.
    pub fn run(self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }
}

fn in_passwd(users: &str, name: &str) -> Option<OsUser> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        (uid != 0).then_some(OsUser { uid, gid })
    })
}

/// Whether our effective user is root: a file we make is ours.
pub(super) fn are_we_root() -> bool {
    tempfile::tempfile().and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.uid() == 0)
}

/// Whether everybody may pass through `dir`, which need not exist yet, and all above it.
pub(super) fn is_open_to_all(dir: &Path) -> bool {
    dir.ancestors().all(|dir| match fs::metadata(dir) {
        Ok(metadata) => metadata.permissions().mode() & 0o001 != 0,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    })
}

/// Where temporary directories go that this user can get into.
pub(super) fn temporary_root(user: Option<OsUser>) -> PathBuf {
    let usual = std::env::temp_dir();
    let candidates = [usual.clone(), "/tmp".into(), "/var/tmp".into()];
    match user {
        None => usual,
        Some(_) => candidates.into_iter().find(|dir| dir.is_dir() && is_open_to_all(dir)).unwrap_or(usual),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name_and_never_root() {
        let users = "root:x:0:0:root:/root:/bin/sh\npostgres-old:x:1:1::/:\npostgres:x:101:104::/var/lib:/bin/sh\ntoor:x:0:0::/:\n";
        assert_eq!(in_passwd(users, "postgres"), Some(OsUser { uid: 101, gid: 104 }));
        assert_eq!(in_passwd(users, "nobody"), None);
        assert_eq!(in_passwd(users, "toor"), None);
    }

    #[test]
    fn a_directory_below_a_closed_one_is_closed() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!is_open_to_all(&inner));
        fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o711)).unwrap();
        assert!(is_open_to_all(&inner));
        assert!(is_open_to_all(&inner.join("not/there/yet")));
    }
}
