//! What a credentials Secret (or the environment in its stead) says about an account.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::api::core::v1::Secret;
use karpenter_cloud::ownership::short_hash;
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;

use crate::client::{AuthMethod, Identity};

/// Values by key, never shown.
#[derive(Clone, Default)]
pub struct SecretValues {
    values: BTreeMap<String, SecretString>,
    /// Keys whose value had white space around it, the mark of a hand-made base64.
    trimmed: Vec<String>,
}

/// Why a Secret is no credential.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CredentialError {
    #[error("{origin} lacks {missing}; it needs email and password, or app-cred-id and app-cred-secret")]
    Incomplete { origin: String, missing: String },
    #[error("{origin}: auth-method \"{method}\" is neither password nor application_credential")]
    UnknownMethod { origin: String, method: String },
}

const EMAIL: [&str; 2] = ["email", "username"];
const PASSWORD: [&str; 1] = ["password"];
const CREDENTIAL_ID: [&str; 3] = ["app-cred-id", "application_credential_id", "credential_id"];
const CREDENTIAL_SECRET: [&str; 3] = ["app-cred-secret", "application_credential_secret", "credential_secret"];

impl SecretValues {
    pub fn new(values: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut own = Self::default();
        for (key, value) in values {
            let text = value.trim();
            if text.is_empty() {
                continue;
            }
            if text.len() != value.len() {
                own.trimmed.push(key.clone());
            }
            own.values.insert(key, SecretString::from(text.to_owned()));
        }
        own
    }

    /// A value that is not text cannot be a credential of this API; it counts as missing.
    pub fn of(secret: &Secret) -> Self {
        let data = secret.data.iter().flatten();
        Self::new(data.filter_map(|(key, value)| Some((key.clone(), String::from_utf8(value.0.clone()).ok()?))))
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub fn get(&self, key: &str) -> Option<&SecretString> {
        self.values.get(key)
    }

    /// For values that are not secret.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).map(ExposeSecret::expose_secret)
    }

    /// Who we are, by what is there.
    ///
    /// # Errors
    /// Names what is missing.
    pub fn identity(&self, origin: &str) -> Result<Identity, CredentialError> {
        for key in &self.trimmed {
            tracing::warn!(origin, key, "a value has white space around it; it is used without");
        }
        let first = |keys: &[&str]| keys.iter().find_map(|key| self.get(key));
        let (id, secret) = (first(&CREDENTIAL_ID), first(&CREDENTIAL_SECRET));
        let (email, password) = (first(&EMAIL), first(&PASSWORD));
        let by_credential = || match (id, secret) {
            (Some(id), Some(secret)) => Ok(AuthMethod::ApplicationCredential {
                id: id.expose_secret().to_owned(),
                secret: secret.clone(),
            }),
            (None, _) => Err(CREDENTIAL_ID[0]),
            (Some(_), None) => Err(CREDENTIAL_SECRET[0]),
        };
        let by_password = || match (email, password) {
            (Some(email), Some(password)) => Ok(AuthMethod::Password {
                email: email.expose_secret().to_owned(),
                password: password.clone(),
            }),
            (None, None) => Err("email and password"),
            (None, Some(_)) => Err(EMAIL[0]),
            (Some(_), None) => Err(PASSWORD[0]),
        };
        let method = match self.text("auth-method") {
            Some("application_credential") => by_credential(),
            Some("password") => by_password(),
            Some(other) => {
                return Err(CredentialError::UnknownMethod {
                    origin: origin.to_owned(),
                    method: other.to_owned(),
                });
            }
            None if id.is_some() && secret.is_some() => {
                if email.is_some() && password.is_some() {
                    tracing::warn!(
                        origin,
                        "both a password and an application credential are given; the latter is used"
                    );
                }
                by_credential()
            }
            None if id.is_some() || secret.is_some() => by_credential(),
            None => by_password(),
        };
        let method = method.map_err(|missing| CredentialError::Incomplete {
            origin: origin.to_owned(),
            missing: missing.to_owned(),
        })?;
        Ok(Identity {
            method,
            project_id: self.text("project-id").map(str::to_owned),
            project_name: self.text("project-name").map(str::to_owned),
        })
    }

    /// Tells whether something changed, without telling what.
    pub fn fingerprint(&self) -> String {
        let all: Vec<String> = self
            .values
            .iter()
            .map(|(key, value)| format!("{key}\u{0}{}", value.expose_secret()))
            .collect();
        short_hash(&all.join("\u{1}"))
    }
}

impl fmt::Debug for SecretValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretValues")
            .field("keys", &self.values.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(values: &[(&str, &str)]) -> Result<Identity, CredentialError> {
        let values = values
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        SecretValues::new(values).identity("secret a/b")
    }

    #[test]
    fn the_method_follows_from_what_is_there() {
        let password = identity(&[("email", "a@b"), ("password", "secret\n")]).expect("complete");
        let AuthMethod::Password { password, .. } = password.method else {
            panic!("a password")
        };
        assert_eq!(password.expose_secret(), "secret", "a trailing newline is a mistake");
        let both = [
            ("email", "a@b"),
            ("password", "p"),
            ("credential_id", "i"),
            ("credential_secret", "s"),
        ];
        assert!(matches!(
            identity(&both).expect("complete").method,
            AuthMethod::ApplicationCredential { .. }
        ));
        let mut chosen = both.to_vec();
        chosen.push(("auth-method", "password"));
        assert!(matches!(
            identity(&chosen).expect("complete").method,
            AuthMethod::Password { .. }
        ));
    }

    #[test]
    fn values_with_white_space_around_them_are_remembered_for_the_warning() {
        let values = [("email", "a@b"), ("password", "secret\n"), ("region", " HN")];
        let values = values.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(SecretValues::new(values).trimmed, ["password", "region"]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = identity(&[("email", "a@b")]).expect_err("no password").to_string();
        assert!(error.starts_with("secret a/b lacks password;"), "{error}");
        let error = identity(&[("app-cred-id", "i")]).expect_err("no secret").to_string();
        assert!(error.contains("lacks app-cred-secret"), "{error}");
    }

    #[test]
    fn nothing_secret_is_shown() {
        let values = SecretValues::new([("password".to_owned(), "hunter2hunter2".to_owned())]);
        assert!(!format!("{values:?}").contains("hunter2"));
        assert!(!values.fingerprint().contains("hunter2"));
    }
}
