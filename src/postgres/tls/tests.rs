use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_ECDSA_P384_SHA384, PKCS_ED25519, date_time_ymd,
};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::conninfo::ChannelBinding;
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
        ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
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

/// What becomes of a handshake with a server at `db.example`.
async fn handshake(settings: &TlsSettings, server: ServerConfig) -> std::result::Result<(), Error> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let client = client_config(settings).unwrap().unwrap();
    let name = ServerName::try_from("db.example").unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let (outcome, _) = tokio::join!(TlsConnector::from(Arc::new(client)).connect(name, near), acceptor.accept(far));
    outcome.map(|_| ()).map_err(|error| fault::io(While::Connecting("db.example"), &error))
}

#[tokio::test]
async fn each_mode_refuses_exactly_the_certificates_it_should() {
    let ours = Authority::new();
    let others = Authority::new();
    let root = ours.file();
    let root = Some(root.path());
    // Good; another name; another authority; expired.
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
            assert_eq!(outcome.is_ok(), taken, "{mode:?} with a root: {}, server {index}", root.is_some());
            if let Err(error) = outcome {
                assert_eq!(error.kind(), Kind::PostgresRefused, "{error}");
                assert!(error.what_to_do().unwrap().contains("sslrootcert"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_peer_that_does_not_do_tls_after_all_is_an_error() {
    use tokio::io::AsyncWriteExt;
    let (near, mut far) = tokio::io::duplex(64 * 1024);
    far.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await.unwrap();
    let client = client_config(&settings(SslMode::Prefer, None)).unwrap().unwrap();
    let name = ServerName::try_from("db.example").unwrap();
    let error = TlsConnector::from(Arc::new(client)).connect(name, near).await.unwrap_err();
    assert_eq!(fault::io(While::Connecting("db.example"), &error).kind(), Kind::PostgresRefused);
}

#[test]
fn files_that_cannot_serve_are_refused_by_name() {
    let ours = Authority::new();
    let root = ours.file();
    assert!(client_config(&settings(SslMode::Disable, None)).unwrap().is_none());
    assert!(client_config(&settings(SslMode::VerifyFull, None)).is_err());
    let missing = Path::new("/nonexistent/root.crt");
    let error = client_config(&settings(SslMode::VerifyFull, Some(missing))).unwrap_err();
    assert!(error.cause().contains("/nonexistent/root.crt"), "{error}");
    let empty = tempfile::NamedTempFile::new().unwrap();
    assert!(client_config(&settings(SslMode::VerifyFull, Some(empty.path()))).is_err());
    // Where nothing is verified, the file is not needed.
    assert!(client_config(&settings(SslMode::Prefer, Some(missing))).unwrap().is_some());

    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = (directory.path().join("c.crt"), directory.path().join("c.key"));
    let pair = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["u".to_owned()]).unwrap();
    fs::write(&certificate, params.signed_by(&pair, &ours.0).unwrap().pem()).unwrap();
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
    assert!(client_config(&with_client()).unwrap_err().what_to_do().unwrap().starts_with("chmod 600"));
    permit(0o600);
    assert!(client_config(&with_client()).unwrap().is_some());
    fs::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(client_config(&with_client()).is_err(), "a key of another certificate was taken");
}

#[test]
fn the_hash_is_the_one_of_the_signature_or_none() {
    let made = |algorithm| {
        let key = KeyPair::generate_for(algorithm).unwrap();
        CertificateParams::new(vec!["db.example".to_owned()]).unwrap().self_signed(&key).unwrap().der().clone()
    };
    let p256 = made(&PKCS_ECDSA_P256_SHA256);
    assert_eq!(end_point(&p256), Some(Sha256::digest(&p256).to_vec()));
    let p384 = made(&PKCS_ECDSA_P384_SHA384);
    assert_eq!(end_point(&p384), Some(Sha384::digest(&p384).to_vec()));
    assert_eq!(end_point(&made(&PKCS_ED25519)), None);
    assert_eq!(end_point(&CertificateDer::from(b"no certificate".to_vec())), None);
}
