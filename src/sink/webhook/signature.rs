//! Signatures of [Standard Webhooks], of each attempt.
//!
//! [Standard Webhooks]: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use walrelay_core::error::{Error, Kind, Result};

/// How a secret for HMAC-SHA256 begins.
const PREFIX: &str = "whsec_";
/// The bytes of a secret.
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// The secrets that requests are signed with: during a rotation there are several.
pub(super) struct Signer(Vec<Vec<u8>>);

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({} secrets)", self.0.len())
    }
}

impl Signer {
    /// Reads one secret from each line; an empty line has none.
    pub(super) fn parse(text: &str) -> Result<Signer> {
        let lines = text.lines().map(str::trim).enumerate();
        let secrets = lines
            .filter(|(_, line)| !line.is_empty())
            .map(|(number, line)| secret(line).ok_or_else(|| no_secret(number + 1)))
            .collect::<Result<Vec<_>>>()?;
        if secrets.is_empty() {
            return Err(no_secret(1));
        }
        Ok(Signer(secrets))
    }

    /// The value of `webhook-signature` for a request at `timestamp`, in seconds since the Unix
    /// epoch.
    pub(super) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let signatures = self.0.iter().filter_map(|secret| {
            // HMAC takes a key of any length.
            let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
            mac.update(format!("{id}.{timestamp}.").as_bytes());
            mac.update(body);
            let signature = BASE64_STANDARD.encode(mac.finalize().into_bytes());
            Some(format!("v1,{signature}"))
        });
        signatures.collect::<Vec<_>>().join(" ")
    }
}

fn secret(line: &str) -> Option<Vec<u8>> {
    let secret = BASE64_STANDARD.decode(line.strip_prefix(PREFIX)?).ok()?;
    LENGTHS.contains(&secret.len()).then_some(secret)
}

fn no_secret(line: usize) -> Error {
    let cause = format!(
        "line {line} has no signing secret, which is {PREFIX} and the base64 of 24 to 64 bytes"
    );
    Error::new(Kind::Config, cause)
        .remedy("make one: echo \"whsec_$(head -c 32 /dev/urandom | base64)\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_specification_and_each_secret_has_one() {
        // The example of the reference libraries.
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let signer = Signer::parse(&format!("{secret}\n\n{secret}\n")).unwrap();
        let body = br#"{"test": 2432232314}"#;
        let signed = signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        let one = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(signed, format!("{one} {one}"));
    }

    #[test]
    fn what_is_no_secret_is_refused_by_its_line_and_not_shown() {
        for text in ["", "whsec_c2hvcnQ=", "canary_canary_canary_canary"] {
            let error = Signer::parse(text).unwrap_err();
            assert!(error.cause().starts_with("line 1 has no"), "{error}");
            assert!(!error.cause().contains("canary"), "{error}");
        }
    }
}
