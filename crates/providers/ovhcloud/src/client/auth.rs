//! Who calls the API: application keys, an OAuth2 service account, or a token.

use std::fmt;

use karpenter_cloud::credentials::Credentials;
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;

/// One complete way to authenticate.
#[derive(Clone)]
pub enum AuthMethod {
    /// Every call is signed.
    Keys {
        application_key: SecretString,
        application_secret: SecretString,
        consumer_key: SecretString,
    },
    /// Short-lived tokens, fetched with a client id and secret.
    ServiceAccount {
        client_id: SecretString,
        client_secret: SecretString,
    },
    /// A token that somebody else renews, or nobody: for tests.
    Token(SecretString),
}

/// Why credentials are not one complete way to authenticate.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CredentialProblem {
    #[error("{missing} is missing beside {present}", missing = missing.join(", "))]
    Incomplete {
        present: &'static str,
        missing: Vec<&'static str>,
    },
    #[error(
        "there is neither {APPLICATION_KEY}, {APPLICATION_SECRET} and {CONSUMER_KEY} nor {CLIENT_ID} and {CLIENT_SECRET}"
    )]
    None,
    #[error("{} exclude each other; keep the keys of one method", keys.join(" and "))]
    Ambiguous { keys: Vec<&'static str> },
}

pub const APPLICATION_KEY: &str = "applicationKey";
pub const APPLICATION_SECRET: &str = "applicationSecret";
pub const CONSUMER_KEY: &str = "consumerKey";
pub const CLIENT_ID: &str = "clientId";
pub const CLIENT_SECRET: &str = "clientSecret";
pub const ACCESS_TOKEN: &str = "accessToken";
/// Optional in a Secret: the endpoint these credentials are for.
pub const ENDPOINT: &str = "endpoint";

/// Each key of a Secret with the environment variable that stands for it.
pub const ENVIRONMENT: [(&str, &str); 6] = [
    (APPLICATION_KEY, "OVH_APPLICATION_KEY"),
    (APPLICATION_SECRET, "OVH_APPLICATION_SECRET"),
    (CONSUMER_KEY, "OVH_CONSUMER_KEY"),
    (CLIENT_ID, "OVH_CLIENT_ID"),
    (CLIENT_SECRET, "OVH_CLIENT_SECRET"),
    (ACCESS_TOKEN, "OVH_ACCESS_TOKEN"),
];

const METHODS: [&[&str]; 3] = [
    &[APPLICATION_KEY, APPLICATION_SECRET, CONSUMER_KEY],
    &[CLIENT_ID, CLIENT_SECRET],
    &[ACCESS_TOKEN],
];

impl AuthMethod {
    /// The one method that the credentials are complete for.
    ///
    /// # Errors
    /// When a key is missing, or keys of two methods are there.
    pub fn of(credentials: &Credentials) -> Result<Self, CredentialProblem> {
        let begun: Vec<(&'static str, &&[&'static str])> = METHODS
            .iter()
            .filter_map(|keys| Some((*keys.iter().find(|key| credentials.get(key).is_some())?, keys)))
            .collect();
        let (present, keys) = match begun.as_slice() {
            [] => return Err(CredentialProblem::None),
            [only] => *only,
            several => {
                return Err(CredentialProblem::Ambiguous {
                    keys: several.iter().map(|(key, _)| *key).collect(),
                });
            }
        };
        let missing: Vec<&'static str> = keys
            .iter()
            .copied()
            .filter(|key| credentials.get(key).is_none())
            .collect();
        if !missing.is_empty() {
            return Err(CredentialProblem::Incomplete { present, missing });
        }
        let value = |key: &str| credentials.get(key).cloned().unwrap_or_default();
        Ok(match present {
            APPLICATION_KEY => Self::Keys {
                application_key: value(APPLICATION_KEY),
                application_secret: value(APPLICATION_SECRET),
                consumer_key: value(CONSUMER_KEY),
            },
            CLIENT_ID => Self::ServiceAccount {
                client_id: value(CLIENT_ID),
                client_secret: value(CLIENT_SECRET),
            },
            _ => Self::Token(value(ACCESS_TOKEN)),
        })
    }

    /// The word for it in a NodeClass's status.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Keys { .. } => "ApplicationKeys",
            Self::ServiceAccount { .. } => "ServiceAccount",
            Self::Token(_) => "AccessToken",
        }
    }
}

/// Shows the end of the application key, which is no secret, so that two of them can be told apart.
impl fmt::Debug for AuthMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys { application_key, .. } => {
                let key = application_key.expose_secret();
                let tail: String = key.chars().skip(key.chars().count().saturating_sub(4)).collect();
                write!(f, "ApplicationKeys(***{tail})")
            }
            Self::ServiceAccount { .. } | Self::Token(_) => write!(f, "{}(***)", self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(values: &[(&str, &str)]) -> Result<AuthMethod, CredentialProblem> {
        let values = values
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        AuthMethod::of(&Credentials::new(values))
    }

    #[test]
    fn a_complete_set_is_recognised() {
        let keys = [(APPLICATION_KEY, "k"), (APPLICATION_SECRET, "s"), (CONSUMER_KEY, "c\n")];
        assert_eq!(method(&keys).expect("complete").name(), "ApplicationKeys");
        let account = [(CLIENT_ID, "i"), (CLIENT_SECRET, "s")];
        assert_eq!(method(&account).expect("complete").name(), "ServiceAccount");
    }

    #[test]
    fn a_missing_key_is_named() {
        let error = method(&[(APPLICATION_KEY, "k"), (CONSUMER_KEY, "c")]).expect_err("incomplete");
        assert_eq!(error.to_string(), "applicationSecret is missing beside applicationKey");
        assert_eq!(method(&[]).expect_err("empty"), CredentialProblem::None);
    }

    #[test]
    fn two_methods_at_once_are_ambiguous() {
        let error = method(&[(APPLICATION_KEY, "k"), (CLIENT_ID, "i")]).expect_err("ambiguous");
        assert_eq!(
            error.to_string(),
            "applicationKey and clientId exclude each other; keep the keys of one method"
        );
    }

    #[test]
    fn the_debug_form_shows_only_the_tail_of_the_application_key() {
        let keys = [
            (APPLICATION_KEY, "TDPKJdwZwAQPwKX2"),
            (APPLICATION_SECRET, "s3cr3t"),
            (CONSUMER_KEY, "c0nsumer"),
        ];
        assert_eq!(
            format!("{:?}", method(&keys).expect("complete")),
            "ApplicationKeys(***wKX2)"
        );
    }
}
