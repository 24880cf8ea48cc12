//! Keeps secrets out of logs and errors.

use std::{fmt, sync::Arc};

use parking_lot::RwLock;
use secrecy::{ExposeSecret, SecretString};

/// What secrets are replaced by.
pub const REDACTED: &str = "***";

/// Secrets shorter than this are not searched for: they would blacken innocent text.
const SHORTEST: usize = 6;

/// Knows the secrets in use and blackens them in any text that leaves the process. Cheap to clone; clones share.
#[derive(Clone, Default)]
pub struct Redactor {
    secrets: Arc<RwLock<Vec<SecretString>>>,
}

impl Redactor {
    /// Adds a secret in every form in which it may show up: as it is and percent-encoded.
    ///
    /// Old secrets stay known after a rotation, because an answer to an old request may still name them.
    pub fn add(&self, secret: &SecretString) {
        let plain = secret.expose_secret();
        if plain.len() < SHORTEST {
            return;
        }
        let encoded: String = url::form_urlencoded::byte_serialize(plain.as_bytes()).collect();
        let mut secrets = self.secrets.write();
        for form in [plain.to_owned(), encoded] {
            if !secrets.iter().any(|known| known.expose_secret() == form) {
                secrets.push(SecretString::from(form));
            }
        }
        // Longest first, so that a secret that contains another is replaced whole.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose_secret().len()));
    }

    /// The text without any known secret.
    pub fn redact(&self, text: &str) -> String {
        let mut clean = text.to_owned();
        for secret in self.secrets.read().iter() {
            if clean.contains(secret.expose_secret()) {
                clean = clean.replace(secret.expose_secret(), REDACTED);
            }
        }
        clean
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor")
            .field("secrets", &self.secrets.read().len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_secrets_vanish_in_every_form() {
        let redactor = Redactor::default();
        redactor.add(&"s3cr3t/+key".to_owned().into());
        assert_eq!(redactor.redact("key=s3cr3t/+key"), "key=***");
        assert_eq!(redactor.redact("?apikey=s3cr3t%2F%2Bkey&x=1"), "?apikey=***&x=1");
    }

    #[test]
    fn a_secret_within_a_longer_one_leaves_no_rest() {
        let redactor = Redactor::default();
        redactor.add(&"abcdef".to_owned().into());
        redactor.add(&"abcdefghij".to_owned().into());
        assert_eq!(redactor.redact("abcdefghij abcdef"), "*** ***");
    }

    #[test]
    fn tiny_values_do_not_blacken_innocent_text() {
        let redactor = Redactor::default();
        redactor.add(&"a".to_owned().into());
        assert_eq!(redactor.redact("banana"), "banana");
    }
}
