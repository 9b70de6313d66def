//! Certificates for servers on loopback and for clients.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};

use super::guardian::run_directory;

pub(crate) const LOOPBACK: [&str; 2] = ["127.0.0.1", "localhost"];

/// Signs certificates. The files are in the directory of this run, named after their common names.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    root: PathBuf,
    directory: PathBuf,
}

impl Authority {
    /// `name` may be used once in a run.
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer =
            CertifiedIssuer::self_signed(params, key()).expect("a certificate of an authority");
        let directory = run_directory().join(format!("certificates-{name}"));
        std::fs::create_dir(&directory).expect("directory of an authority");
        let root = directory.join("root.crt");
        std::fs::write(&root, issuer.pem()).expect("a certificate's file");
        Authority {
            issuer,
            root,
            directory,
        }
    }

    /// Its own certificate in PEM, for clients that trust it.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn certify(&self, common_name: &str, alternative_names: &[&str]) -> Identity {
        let mut params = named(common_name);
        let given = alternative_names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>();
        params.subject_alt_names = CertificateParams::new(given)
            .expect("names")
            .subject_alt_names;
        let key = key();
        let certificate = params
            .signed_by(&key, &self.issuer)
            .expect("a certificate")
            .pem();
        let file = |ending: &str, text: &str| {
            let path = self.directory.join(format!("{common_name}.{ending}"));
            std::fs::write(&path, text).expect("a certificate's file");
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("permissions");
            path
        };
        Identity {
            certificate: file("crt", &certificate),
            key: file("key", &key.serialize_pem()),
            keystore: file("pem", &(key.serialize_pem() + &certificate)),
        }
    }
}

/// A certificate with its key: files in PEM that only their owner may read.
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Both in one file, for Kafka.
    pub(crate) keystore: PathBuf,
}

fn named(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}
