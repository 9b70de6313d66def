//! The files that properties name, opened before librdkafka does: what it says of them names neither file nor property.

use std::collections::BTreeMap;
use std::fs::File;

use crate::error::{Error, Kind, Result};
use crate::secret::Secret;

/// Properties that name a file, read where the connection is encrypted.
const LOCATIONS: &[&str] =
    &["ssl.ca.location", "ssl.certificate.location", "ssl.crl.location", "ssl.key.location", "ssl.keystore.location"];

/// Longest text that is taken for a path, in bytes: Linux has no longer ones.
const PATH_BYTES_MAX: usize = 4096;

/// Whether the files that TLS needs can be opened. What is in them is librdkafka's to judge.
///
/// # Errors
/// [`Kind::Config`] naming the property and the file; of what cannot be a path, such as the key itself, only the property.
pub(super) fn check(properties: &BTreeMap<String, Secret>) -> Result<()> {
    let protocol = properties.get("security.protocol").map(|given| given.expose().to_ascii_lowercase());
    if !protocol.is_some_and(|protocol| protocol.ends_with("ssl")) {
        return Ok(());
    }
    for name in LOCATIONS {
        let Some(path) = properties.get(*name).map(Secret::expose) else { continue };
        // librdkafka's own word for looking where operating systems keep their authorities.
        if path.is_empty() || *name == "ssl.ca.location" && path == "probe" {
            continue;
        }
        if path.len() > PATH_BYTES_MAX || path.contains(char::is_control) {
            return Err(Error::new(Kind::Config, format!("the Kafka property {name} is not the path of a file"))
                .remedy("give the path; certificates and keys as text belong into ssl.ca.pem, ssl.certificate.pem, ssl.key.pem"));
        }
        if let Err(error) = File::open(path) {
            return Err(Error::new(Kind::Config, format!("{path}, which the Kafka property {name} names: {error}"))
                .remedy(format!("correct {name}, or let the user that runs walrelay read the file")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(given: &[(&str, &str)]) -> Result<()> {
        check(&given.iter().map(|(name, value)| ((*name).to_owned(), Secret::new(*value))).collect())
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_with_its_property() {
        for name in LOCATIONS {
            let error = checked(&[("security.protocol", "SASL_SSL"), (name, "/nonexistent/x.pem")]).unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            assert!(error.cause().starts_with(&format!("/nonexistent/x.pem, which the Kafka property {name} names: ")));
            assert!(error.what_to_do().unwrap().contains(name));
        }
    }

    #[test]
    fn what_can_be_opened_or_is_not_used_is_let_pass() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let directory = tempfile::tempdir().unwrap();
        for path in [file.path(), directory.path()] {
            checked(&[("security.protocol", "ssl"), ("ssl.ca.location", path.to_str().unwrap())]).unwrap();
        }
        checked(&[("security.protocol", "ssl"), ("ssl.ca.location", "probe")]).unwrap();
        checked(&[("security.protocol", "ssl")]).unwrap();
        for unencrypted in ["plaintext", "sasl_plaintext"] {
            checked(&[("security.protocol", unencrypted), ("ssl.ca.location", "/nonexistent")]).unwrap();
        }
        checked(&[("ssl.ca.location", "/nonexistent")]).unwrap();
    }

    #[test]
    fn a_key_given_where_its_path_belongs_is_not_shown() {
        let key = "-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----";
        let error = checked(&[("security.protocol", "ssl"), ("ssl.key.location", key)]).unwrap_err();
        assert!(!format!("{error:?}").contains("canary"), "{error:?}");
        assert!(error.what_to_do().unwrap().contains("ssl.key.pem"));
    }
}
