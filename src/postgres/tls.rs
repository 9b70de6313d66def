//! TLS as libpq's `sslmode` means it, with rustls.
//!
//! <https://www.postgresql.org/docs/current/libpq-ssl.html>

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256, Sha384, Sha512};
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{self, CryptoProvider, WebPkiSupportedAlgorithms, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, InconsistentKeys, RootCertStore,
    SignatureScheme, version,
};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::oid::db::rfc5912::{
    ECDSA_WITH_SHA_256, ECDSA_WITH_SHA_384, ECDSA_WITH_SHA_512, SHA_1_WITH_RSA_ENCRYPTION, SHA_256_WITH_RSA_ENCRYPTION,
    SHA_384_WITH_RSA_ENCRYPTION, SHA_512_WITH_RSA_ENCRYPTION,
};

use crate::conninfo::{RootCert, SslMode, TlsSettings};
use crate::error::{Error, Kind, Result};

/// The client's side of TLS for these settings, or `None` where TLS is never used. Reads the files named there.
///
/// # Errors
/// [`Kind::Config`] where a file cannot be read, holds no PEM of its kind, or is a key that others may read.
pub(crate) fn client_config(settings: &TlsSettings) -> Result<Option<ClientConfig>> {
    let provider = Arc::new(ring::default_provider());
    let Some(verifier) = verifier(settings, &provider)? else { return Ok(None) };
    let versions: &[_] = if settings.tls13_only { &[&version::TLS13] } else { &[&version::TLS13, &version::TLS12] };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|error| config(format_args!("TLS cannot be set up: {error}")))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let Some((certificate, key)) = &settings.client else { return Ok(Some(builder.with_no_client_auth())) };
    let unusable = |error: TlsError| {
        config(format_args!("the client certificate {} cannot be used: {error}", certificate.display()))
    };
    let signing_key = provider.key_provider.load_private_key(private_key(key)?).map_err(unusable)?;
    let certified = CertifiedKey::new(certificates(certificate)?, signing_key);
    // Whether it can be used is the server's to say: OpenSSL takes certificates of X.509 version 1, which cannot be
    // read here and which it makes when nothing else is asked for.
    if let Err(mismatch @ TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch)) = certified.keys_match() {
        return Err(unusable(mismatch));
    }
    Ok(Some(builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))))
}

fn verifier(settings: &TlsSettings, provider: &Arc<CryptoProvider>) -> Result<Option<Arc<dyn ServerCertVerifier>>> {
    let algorithms = provider.signature_verification_algorithms;
    let roots = match (settings.mode, &settings.root) {
        (SslMode::Disable, _) => return Ok(None),
        // libpq: a root file turns `require` into `verify-ca`; below that the certificate is not looked at.
        (SslMode::Prefer, _) | (SslMode::Require, None) => {
            return Ok(Some(Arc::new(Lenient { algorithms, chain: None })));
        }
        (SslMode::VerifyCa | SslMode::VerifyFull, None) => {
            return Err(config("the server is to be verified, and no authority is trusted"));
        }
        (SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull, Some(root)) => Arc::new(trusted(root)?),
    };
    let full = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
        .build()
        .map_err(|error| config(format_args!("the trusted certificates cannot be used: {error}")))?;
    match settings.mode {
        SslMode::VerifyFull => Ok(Some(full)),
        SslMode::Disable | SslMode::Prefer | SslMode::Require | SslMode::VerifyCa => {
            Ok(Some(Arc::new(Lenient { algorithms, chain: Some(full) })))
        }
    }
}

fn trusted(root: &RootCert) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    match root {
        RootCert::System => {
            // One broken file among a hundred is the operating system's; none at all is ours to report.
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err(config("the operating system has no trusted certificates")
                    .remedy("install ca-certificates, or give sslrootcert=FILE"));
            }
        }
        RootCert::File(file) => {
            for certificate in certificates(file)? {
                store.add(certificate).map_err(|error| {
                    config(format_args!("a certificate in {} cannot be trusted: {error}", file.display()))
                })?;
            }
        }
    }
    Ok(store)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = read(file, "certificate")?;
    let certificates: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(config(format_args!("{} holds no certificate in PEM form", file.display()))),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>> {
    let bytes = read(file, "key")?;
    let metadata = fs::metadata(file)
        .map_err(|error| config(format_args!("the key {} cannot be read: {error}", file.display())))?;
    // As libpq: the owner alone, or root's with the group's reading.
    let allowed = if metadata.uid() == 0 { 0o640 } else { 0o600 };
    if metadata.is_file() && metadata.mode() & 0o777 & !allowed != 0 {
        return Err(config(format_args!("the key {} can be read by others", file.display()))
            .remedy(format_args!("chmod 600 {}", file.display())));
    }
    PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|_| config(format_args!("{} holds no unencrypted private key in PEM form", file.display())))
}

fn read(file: &Path, what: &str) -> Result<Vec<u8>> {
    fs::read(file).map_err(|error| config(format_args!("the {what} {} cannot be read: {error}", file.display())))
}

fn config(cause: impl std::fmt::Display) -> Error {
    Error::new(Kind::Config, cause)
}

/// Verifies less than rustls does, as libpq's lower modes want it. That the peer holds its certificate's key is always
/// checked.
#[derive(Debug)]
struct Lenient {
    algorithms: WebPkiSupportedAlgorithms,
    /// Verifies the chain, and last of all the name, which is let pass. `None`: the certificate is not looked at, so that
    /// the connection is encrypted and not authenticated.
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, TlsError> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(certificate, intermediates, name, ocsp_response, now) {
            Err(TlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The hash of `certificate` by the function its signature uses, SHA-256 in place of SHA-1. None where the signature uses
/// no single function (Ed25519), names it elsewhere (RSA-PSS), or cannot be read: such a channel cannot be bound.
pub(crate) fn end_point(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let parsed = Certificate::from_der(certificate).ok()?;
    match parsed.signature_algorithm.oid {
        SHA_1_WITH_RSA_ENCRYPTION | SHA_256_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_256 => {
            Some(Sha256::digest(certificate).to_vec())
        }
        SHA_384_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_384 => Some(Sha384::digest(certificate).to_vec()),
        SHA_512_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_512 => Some(Sha512::digest(certificate).to_vec()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
