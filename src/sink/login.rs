//! What buses have in common to log in: files with secrets, and TLS.

use std::path::Path;

use tokio_rustls::rustls::ClientConfig;

use crate::conninfo::{RootCert, check_private};
use crate::postgres::tls;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::secret::Secret;

/// Reads the file that the setting `key` names. Nobody else may be able to read it.
pub(super) async fn read(key: &str, file: &str) -> Result<Secret> {
    let failed = |error: std::io::Error| {
        let cause = format!("{key}: {file} cannot be read: {error}");
        Error::new(Kind::BusRefused, cause).remedy("correct the name, or the rights of the file")
    };
    let metadata = tokio::fs::metadata(file).await.map_err(failed)?;
    check_private(&metadata, "file", Path::new(file))
        .map_err(|error| error.about(key).with_kind(Kind::BusRefused))?;
    tokio::fs::read_to_string(file)
        .await
        .map(Secret::new)
        .map_err(failed)
}

/// The configuration of TLS of the bus whose settings are in `table`. The certificate is verified.
pub(super) fn tls(table: &str, ca_file: &str) -> Result<ClientConfig> {
    let root = match ca_file {
        "" => RootCert::System,
        file => RootCert::File(file.into()),
    };
    tls::of_server(root, true).map_err(|error| {
        let remedy = format!("name a file with the authority of the servers in {table}.ca_file");
        error.about(table).with_kind(Kind::Config).or_remedy(remedy)
    })
}
