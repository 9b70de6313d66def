//! Takes secrets out of text that librdkafka wrote.

use std::collections::BTreeMap;

use crate::secret::Secret;

/// Parts of a property's name that make its value a secret.
const SECRET_PARTS: [&str; 6] =
    ["password", "secret", "passphrase", ".pem", "oauthbearer.config", "oauthbearer.extensions"];

/// Shorter values are not looked for: they would be found in every word, and they protect nothing.
const SECRET_CHARS_MIN: usize = 4;

/// Replaces the values of secret properties in any text by `***`. Costs nothing where no secret is configured.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Longest first, so that a secret inside another one does not leave the rest of it visible.
    secrets: Vec<Secret>,
}

impl Redactor {
    /// Knows the secrets among librdkafka properties, by the properties' names.
    pub fn new(properties: &BTreeMap<String, Secret>) -> Self {
        let secret = |name: &str| SECRET_PARTS.iter().any(|part| name.contains(part));
        let mut secrets = Vec::new();
        for value in properties.iter().filter(|(name, _)| secret(name)).map(|(_, value)| value) {
            // A message can quote one line of a PEM block or one element of a list.
            let parts = value.expose().split(['\n', ',', ' ']).map(str::trim).chain([value.expose()]);
            secrets.extend(parts.filter(|part| part.len() >= SECRET_CHARS_MIN).map(Secret::new));
        }
        secrets.sort_by_key(|value| std::cmp::Reverse(value.expose().len()));
        Redactor { secrets }
    }

    /// `text` without any secret.
    pub fn clean(&self, text: &str) -> String {
        let mut clean = text.to_owned();
        for secret in &self.secrets {
            if clean.contains(secret.expose()) {
                clean = clean.replace(secret.expose(), "***");
            }
        }
        clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_of_a_secret_property_is_taken_out_wherever_it_stands() {
        let properties = BTreeMap::from([
            ("sasl.password".to_owned(), Secret::new("hunter22")),
            ("ssl.key.pem".to_owned(), Secret::new("-----BEGIN\nMIIEabcd\n-----END")),
            ("sasl.username".to_owned(), Secret::new("relay")),
        ]);
        let redactor = Redactor::new(&properties);
        assert_eq!(redactor.clean("user relay, password=hunter22!"), "user relay, password=***!");
        assert_eq!(redactor.clean("bad line MIIEabcd"), "bad line ***");
    }

    #[test]
    fn a_value_too_short_to_protect_anything_does_not_eat_the_text() {
        let properties = BTreeMap::from([("sasl.password".to_owned(), Secret::new("a"))]);
        assert_eq!(Redactor::new(&properties).clean("a broker"), "a broker");
    }
}
