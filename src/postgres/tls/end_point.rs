//! What a login is bound to: a hash of the server's certificate (`tls-server-end-point`).
//!
//! <https://www.rfc-editor.org/rfc/rfc5929#section-4.1>,
//! <https://www.postgresql.org/docs/current/sasl-authentication.html#SASL-SCRAM-SHA-256>

use sha2::{Digest, Sha256, Sha384, Sha512};
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::oid::db::rfc5912::{
    ECDSA_WITH_SHA_256, ECDSA_WITH_SHA_384, ECDSA_WITH_SHA_512, SHA_1_WITH_RSA_ENCRYPTION, SHA_256_WITH_RSA_ENCRYPTION,
    SHA_384_WITH_RSA_ENCRYPTION, SHA_512_WITH_RSA_ENCRYPTION,
};

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
mod tests {
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

    use super::*;

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
}
