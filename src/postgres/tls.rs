//! TLS with rustls, by the rules of libpq's `sslmode`.
//!
//! <https://www.postgresql.org/docs/current/libpq-ssl.html>

use std::fs;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256, Sha384, Sha512};
use tokio_postgres::config::ChannelBinding;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{self, CryptoProvider, WebPkiSupportedAlgorithms, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, InconsistentKeys,
    RootCertStore, SignatureScheme, version,
};
use x509_cert::der::asn1::{AnyRef, ObjectIdentifier};
use x509_cert::der::oid::db::rfc5912::{
    ECDSA_WITH_SHA_256, ECDSA_WITH_SHA_384, ECDSA_WITH_SHA_512, SHA_1_WITH_RSA_ENCRYPTION,
    SHA_256_WITH_RSA_ENCRYPTION, SHA_384_WITH_RSA_ENCRYPTION, SHA_512_WITH_RSA_ENCRYPTION,
};
use x509_cert::der::{self, Decode as _, Reader as _, SliceReader};
use x509_cert::spki::AlgorithmIdentifierRef;

use crate::conninfo::{RootCert, SslMode, TlsSettings, check_private};
use walrelay_core::error::{Error, Kind, Result};

/// The client's TLS configuration for these settings, or `None` where TLS is never used. Reads the
/// named files, and refuses a key that others may read.
pub(crate) fn client_config(settings: &TlsSettings) -> Result<Option<ClientConfig>> {
    let provider = Arc::new(ring::default_provider());
    let Some(verifier) = verifier(settings, &provider)? else {
        return Ok(None);
    };
    let versions: &[_] = if settings.tls13_only {
        &[&version::TLS13]
    } else {
        &[&version::TLS13, &version::TLS12]
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|error| config(format_args!("TLS cannot be set up: {error}")))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let Some((certificate, key)) = &settings.client else {
        return Ok(Some(builder.with_no_client_auth()));
    };
    let unusable = |error: TlsError| {
        config(format_args!(
            "the client certificate {} cannot be used: {error}",
            certificate.display()
        ))
    };
    let signing_key = provider
        .key_provider
        .load_private_key(private_key(key)?)
        .map_err(unusable)?;
    let certified = CertifiedKey::new(certificates(certificate)?, signing_key);
    // The server decides whether it accepts the certificate. OpenSSL accepts certificates of X.509
    // version 1, and creates them by default; this library cannot read them.
    if let Err(mismatch @ TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch)) =
        certified.keys_match()
    {
        return Err(unusable(mismatch));
    }
    Ok(Some(builder.with_client_cert_resolver(Arc::new(
        SingleCertAndKey::from(certified),
    ))))
}

/// The configuration for a server other than Postgres, without a certificate of ours. `is_used` is
/// false where no connection is made with TLS: then no authority is needed.
pub(crate) fn of_server(root: RootCert, is_used: bool) -> Result<ClientConfig> {
    let settings = TlsSettings {
        mode: if is_used {
            SslMode::VerifyFull
        } else {
            SslMode::Prefer
        },
        root: Some(root),
        client: None,
        channel_binding: ChannelBinding::Disable,
        tls13_only: false,
    };
    client_config(&settings)?.ok_or_else(|| Error::new(Kind::Bug, "TLS without a configuration"))
}

fn verifier(
    settings: &TlsSettings,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ServerCertVerifier>>> {
    let algorithms = provider.signature_verification_algorithms;
    let roots = match (settings.mode, &settings.root) {
        (SslMode::Disable, _) => return Ok(None),
        // libpq: a root file turns `require` into `verify-ca`; in lower modes the certificate is
        // not verified.
        (SslMode::Prefer, _) | (SslMode::Require, None) => {
            return Ok(Some(Arc::new(Lenient {
                algorithms,
                chain: None,
            })));
        }
        (SslMode::VerifyCa | SslMode::VerifyFull, None) => {
            return Err(config(
                "the server is to be verified, and no authority is trusted",
            ));
        }
        (SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull, Some(root)) => {
            Arc::new(trusted(root)?)
        }
    };
    let full = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
        .build()
        .map_err(|error| {
            config(format_args!(
                "the trusted certificates cannot be used: {error}"
            ))
        })?;
    match settings.mode {
        SslMode::VerifyFull => Ok(Some(full)),
        SslMode::Disable | SslMode::Prefer | SslMode::Require | SslMode::VerifyCa => {
            Ok(Some(Arc::new(Lenient {
                algorithms,
                chain: Some(full),
            })))
        }
    }
}

fn trusted(root: &RootCert) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    match root {
        RootCert::System => {
            // Single broken files of the operating system are ignored; a store without certificates
            // is reported.
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err(config("the operating system has no trusted certificates")
                    .remedy("install ca-certificates, or give sslrootcert=FILE"));
            }
        }
        RootCert::File(file) => {
            for certificate in certificates(file)? {
                store.add(certificate).map_err(|error| {
                    config(format_args!(
                        "a certificate in {} cannot be trusted: {error}",
                        file.display()
                    ))
                })?;
            }
        }
    }
    Ok(store)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = read(file, "certificate")?;
    let certificates: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&bytes).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(config(format_args!(
            "{} holds no certificate in PEM form",
            file.display()
        ))),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>> {
    let bytes = read(file, "key")?;
    let metadata = fs::metadata(file).map_err(|error| {
        config(format_args!(
            "the key {} cannot be read: {error}",
            file.display()
        ))
    })?;
    if metadata.is_file() {
        check_private(&metadata, "key", file)?;
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
        config(format_args!(
            "{} holds no unencrypted private key in PEM form",
            file.display()
        ))
    })
}

fn read(file: &Path, what: &str) -> Result<Vec<u8>> {
    fs::read(file).map_err(|error| {
        config(format_args!(
            "the {what} {} cannot be read: {error}",
            file.display()
        ))
    })
}

fn config(cause: impl std::fmt::Display) -> Error {
    Error::new(Kind::Config, cause)
}

/// Verifies less than rustls, for libpq's lower modes. Always checks that the peer has the key of
/// its certificate.
#[derive(Debug)]
struct Lenient {
    algorithms: WebPkiSupportedAlgorithms,
    /// Verifies the chain and then the name; a wrong name is accepted. `None`: the certificate is
    /// not verified, so that the connection is encrypted and not authenticated.
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
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
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

/// The hash of `certificate` for channel binding, by the function of its signature, with SHA-256 in
/// place of SHA-1. None if the signature has no single function (Ed25519), names it elsewhere
/// (RSA-PSS), or cannot be read.
pub(crate) fn end_point(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    match signature_algorithm(certificate).ok()? {
        SHA_1_WITH_RSA_ENCRYPTION | SHA_256_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_256 => {
            Some(Sha256::digest(certificate).to_vec())
        }
        SHA_384_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_384 => {
            Some(Sha384::digest(certificate).to_vec())
        }
        SHA_512_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_512 => {
            Some(Sha512::digest(certificate).to_vec())
        }
        _ => None,
    }
}

/// The algorithm of a certificate's signature. Nothing else is decoded, which would allocate any
/// length that the certificate announces.
fn signature_algorithm(certificate: &[u8]) -> der::Result<ObjectIdentifier> {
    SliceReader::new(certificate)?.sequence(|reader| {
        AnyRef::decode(reader)?;
        let algorithm = AlgorithmIdentifierRef::decode(reader)?;
        AnyRef::decode(reader)?;
        Ok(algorithm.oid)
    })
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair,
        PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, date_time_ymd,
    };
    use tokio_postgres::config::ChannelBinding;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::{TlsAcceptor, TlsConnector};
    use walrelay_fuzz::fuzz;

    use super::*;
    use crate::postgres::fault::{self, While};

    struct Authority(CertifiedIssuer<'static, KeyPair>);

    impl Authority {
        fn new() -> Self {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
        }

        fn file(&self) -> tempfile::NamedTempFile {
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), self.0.pem()).unwrap();
            file
        }

        fn server(&self, name: &str, expired: bool) -> ServerConfig {
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            if expired {
                params.not_before = date_time_ymd(2001, 1, 1);
                params.not_after = date_time_ymd(2002, 1, 1);
            }
            let key = KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &self.0).unwrap();
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
            let config = config
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth();
            config
                .with_single_cert(vec![certificate.der().clone()], key)
                .unwrap()
        }
    }

    fn settings(mode: SslMode, root: Option<&Path>) -> TlsSettings {
        TlsSettings {
            mode,
            root: root.map(|path| RootCert::File(path.to_owned())),
            client: None,
            channel_binding: ChannelBinding::Prefer,
            tls13_only: false,
        }
    }

    /// The result of a handshake with a server at `db.example`.
    async fn handshake(
        settings: &TlsSettings,
        server: ServerConfig,
    ) -> std::result::Result<(), Error> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let client = client_config(settings).unwrap().unwrap();
        let name = ServerName::try_from("db.example").unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server));
        let (outcome, _) = tokio::join!(
            TlsConnector::from(Arc::new(client)).connect(name, near),
            acceptor.accept(far)
        );
        outcome
            .map(|_| ())
            .map_err(|error| fault::io(While::Connecting("db.example"), &error))
    }

    #[tokio::test]
    async fn each_ssl_mode_accepts_and_refuses_certificates_as_documented() {
        let ours = Authority::new();
        let others = Authority::new();
        let root = ours.file();
        let root = Some(root.path());
        // A valid certificate; one with another name; one of another authority; an expired one.
        for (mode, root, taken) in [
            (SslMode::Prefer, root, [true, true, true, true]),
            (SslMode::Require, None, [true, true, true, true]),
            (SslMode::Require, root, [true, true, false, false]),
            (SslMode::VerifyCa, root, [true, true, false, false]),
            (SslMode::VerifyFull, root, [true, false, false, false]),
        ] {
            let servers = [
                ours.server("db.example", false),
                ours.server("other.example", false),
                others.server("db.example", false),
                ours.server("db.example", true),
            ];
            for (index, (server, taken)) in servers.into_iter().zip(taken).enumerate() {
                let outcome = handshake(&settings(mode, root), server).await;
                assert_eq!(
                    outcome.is_ok(),
                    taken,
                    "{mode:?} with a root: {}, server {index}",
                    root.is_some()
                );
                if let Err(error) = outcome {
                    assert_eq!(error.kind(), Kind::PostgresRefused, "{error}");
                    assert!(
                        error.what_to_do().unwrap().contains("sslrootcert"),
                        "{error}"
                    );
                }
            }
        }
    }

    #[tokio::test]
    async fn a_server_that_answers_the_handshake_without_tls_is_refused() {
        use tokio::io::AsyncWriteExt;
        let (near, mut far) = tokio::io::duplex(64 * 1024);
        far.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I")
            .await
            .unwrap();
        let client = client_config(&settings(SslMode::Prefer, None))
            .unwrap()
            .unwrap();
        let name = ServerName::try_from("db.example").unwrap();
        let error = TlsConnector::from(Arc::new(client))
            .connect(name, near)
            .await
            .unwrap_err();
        assert_eq!(
            fault::io(While::Connecting("db.example"), &error).kind(),
            Kind::PostgresRefused
        );
    }

    #[test]
    fn unusable_certificate_and_key_files_are_refused() {
        let ours = Authority::new();
        let root = ours.file();
        assert!(
            client_config(&settings(SslMode::Disable, None))
                .unwrap()
                .is_none()
        );
        assert!(client_config(&settings(SslMode::VerifyFull, None)).is_err());
        let missing = Path::new("/nonexistent/root.crt");
        let error = client_config(&settings(SslMode::VerifyFull, Some(missing))).unwrap_err();
        assert!(error.cause().contains("/nonexistent/root.crt"), "{error}");
        let empty = tempfile::NamedTempFile::new().unwrap();
        assert!(client_config(&settings(SslMode::VerifyFull, Some(empty.path()))).is_err());
        // Without verification the file is not needed.
        assert!(
            client_config(&settings(SslMode::Prefer, Some(missing)))
                .unwrap()
                .is_some()
        );

        let directory = tempfile::tempdir().unwrap();
        let certificate = directory.path().join("c.crt");
        let key = directory.path().join("c.key");
        let pair = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["u".to_owned()]).unwrap();
        fs::write(
            &certificate,
            params.signed_by(&pair, &ours.0).unwrap().pem(),
        )
        .unwrap();
        let with_client = || TlsSettings {
            client: Some((certificate.clone(), key.clone())),
            ..settings(SslMode::VerifyFull, Some(root.path()))
        };
        let permit = |mode| {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        };
        fs::write(&key, pair.serialize_pem()).unwrap();
        permit(0o644);
        assert!(
            client_config(&with_client())
                .unwrap_err()
                .what_to_do()
                .unwrap()
                .starts_with("chmod 600")
        );
        permit(0o600);
        assert!(client_config(&with_client()).unwrap().is_some());
        fs::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
        assert!(
            client_config(&with_client()).is_err(),
            "a key of another certificate was taken"
        );
    }

    #[test]
    fn the_channel_binding_hash_is_that_of_the_certificate_signature_or_none() {
        let made = |algorithm| {
            let key = KeyPair::generate_for(algorithm).unwrap();
            CertificateParams::new(vec!["db.example".to_owned()])
                .unwrap()
                .self_signed(&key)
                .unwrap()
                .der()
                .clone()
        };
        let p256 = made(&PKCS_ECDSA_P256_SHA256);
        assert_eq!(end_point(&p256), Some(Sha256::digest(&p256).to_vec()));
        let p384 = made(&PKCS_ECDSA_P384_SHA384);
        assert_eq!(end_point(&p384), Some(Sha384::digest(&p384).to_vec()));
        assert_eq!(end_point(&made(&PKCS_ED25519)), None);
        assert_eq!(
            end_point(&CertificateDer::from(b"no certificate".to_vec())),
            None
        );
    }

    /// Of `db`, made by itself, with ECDSA on P-256 and SHA-256.
    const CERTIFICATE: &str = "\
        MIIBbzCCARWgAwIBAgIUIeR3CWEpSDEmGFO931u3jVI09gcwCgYIKoZIzj0EAwIwDTELMAkGA1UEAwwCZGIwHhcN\
        MjYxMTI3MTU0MDI3WhcNMzYxMTI0MTU0MDI3WjANMQswCQYDVQQDDAJkYjBZMBMGByqGSM49AgEGCCqGSM49AwEH\
        A0IABD3tP8spBg1/wEkYdQyrNG/QKPIgoukjSEBJIcO8caH4GPLfZyyvQV9KQDQU4OLfiPBlMcYvOjhztfLRR4Co\
        +dSjUzBRMB0GA1UdDgQWBBQaJb+3NZ42YPsdzPCx8X7mBTj36zAfBgNVHSMEGDAWgBQaJb+3NZ42YPsdzPCx8X7m\
        BTj36zAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIQCyPjVHa4Rux4972DXK5deDYmAP1oknBvXb\
        aFypjgss0wIgBDi6tZTCcLhdfFcycJyBVKmoSHN4jMM1koEcBQbBFuA=";

    #[test]
    fn fuzzed_certificates() {
        let certificate = BASE64_STANDARD.decode(CERTIFICATE).unwrap();
        // Its public key announces 256 MiB.
        let mut announcing = certificate.clone();
        let key = [3, 0x42, 0, 4];
        let at = certificate
            .windows(4)
            .position(|bytes| bytes == key)
            .unwrap();
        announcing[at + 1..at + 6].copy_from_slice(&[0x84, 0x0f, 0xff, 0xff, 0xff]);
        let corpus = [certificate, announcing];
        for certificate in &corpus {
            assert!(end_point(&CertificateDer::from(certificate.as_slice())).is_some());
        }
        fuzz("certificates", 16 << 10, &corpus, |bytes| {
            let hash = end_point(&CertificateDer::from(bytes));
            assert!(hash.is_none_or(|hash| hash.len() >= 32));
        });
    }
}
