//! What buses have in common to log in: files with secrets, and TLS.

use std::fs;
use std::io;
use std::path::Path;

#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "smtp"))]
use tokio::task::spawn_blocking;
use tokio_rustls::rustls::ClientConfig;

use crate::conninfo::{RootCert, check_private};
use crate::postgres::tls;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::secret::Secret;

/// The text of the file that `key` names. Blocks. Errors: it cannot be read, or others can read it.
pub(super) fn read_at_start(key: &str, file: &str) -> Result<Secret> {
    let failed = |error: io::Error| {
        let cause = format!("{key}: {file} cannot be read: {error}");
        Error::new(Kind::Config, cause).remedy("name a file that walrelay's user can read")
    };
    let metadata = fs::metadata(file).map_err(failed)?;
    check_private(&metadata, key, Path::new(file))?;
    fs::read_to_string(file).map(Secret::new).map_err(failed)
}

/// The same, and others go on meanwhile.
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "smtp"))]
pub(super) async fn read(key: &'static str, file: &str) -> Result<Secret> {
    let file = file.to_owned();
    let read = spawn_blocking(move || read_at_start(key, &file)).await;
    read.unwrap_or_else(|ended| Err(Error::new(Kind::Bug, ended.to_string())))
}

/// The password that is `given`, else the line in the file that `key` names. Read at each
/// connection, since the file may change. Empty where neither is set.
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "smtp"))]
pub(super) async fn password(
    given: Option<&Secret>,
    key: &'static str,
    file: &str,
) -> Result<Secret> {
    match given {
        Some(password) => Ok(password.clone()),
        None if file.is_empty() => Ok(Secret::default()),
        None => {
            let text = read(key, file).await?;
            Ok(Secret::new(text.expose().trim_end_matches(['\r', '\n'])))
        }
    }
}

/// The configuration of TLS of the bus whose settings are in `table`. The certificate is verified
/// where TLS `is_used`.
pub(super) fn tls(table: &str, ca_file: &str, is_used: bool) -> Result<ClientConfig> {
    let root = match ca_file {
        "" => RootCert::System,
        file => RootCert::File(file.into()),
    };
    tls::of_server(root, is_used).map_err(|error| {
        let remedy = format!(
            "install ca-certificates, or name the authority of the servers in {table}.ca_file"
        );
        error.about(table).with_kind(Kind::Config).or_remedy(remedy)
    })
}
