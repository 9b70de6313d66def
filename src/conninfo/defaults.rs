//! What libpq assumes where nothing is said.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::Host;

/// The first of the usual socket directories with a server on `port` in it; else TCP.
pub(super) fn host(port: u16) -> Host {
    ["/var/run/postgresql", "/tmp"]
        .into_iter()
        .map(PathBuf::from)
        .find(|directory| directory.join(format!(".s.PGSQL.{port}")).exists())
        .map_or_else(|| Host::Tcp { name: "localhost".to_owned(), address: None }, Host::Unix)
}

/// Name of the user this process runs as: from the password database, else from the variables of a login.
pub(super) fn os_user(env: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let uid = std::fs::metadata("/proc/self").ok().map(|of_process| of_process.uid().to_string());
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let by_uid = accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == uid.as_deref()).then(|| name.to_owned())
    });
    by_uid.or_else(|| env("LOGNAME")).or_else(|| env("USER")).filter(|name| !name.is_empty())
}
