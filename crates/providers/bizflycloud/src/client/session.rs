//! Tokens: fetched once however many need one, renewed before they end, and never asked for again in a storm (§1.2).

use std::{fmt, time::Duration};

use jiff::Timestamp;
use karpenter_cloud::{
    clock::{Clock, later},
    http::{Endpoint, HttpClient, Lane, Safety},
};
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::{
    error::{ApiError, ErrorClass},
    wire,
    words::Words,
};

/// How to prove who we are.
#[derive(Clone)]
pub struct Identity {
    pub method: AuthMethod,
    /// The project to work in; the account's default if not said.
    pub project_id: Option<String>,
    pub project_name: Option<String>,
}

#[derive(Clone, Debug)]
pub enum AuthMethod {
    Password { email: String, password: SecretString },
    ApplicationCredential { id: String, secret: SecretString },
}

/// A token and what came with it.
#[derive(Clone)]
pub struct Token {
    pub(super) value: SecretString,
    pub project_id: String,
    pub expires_at: Timestamp,
    renew_at: Timestamp,
}

/// The tokens of one identity.
#[derive(Debug)]
pub(super) struct Session {
    clock: Clock,
    http: HttpClient,
    token_url: String,
    identity: Identity,
    current: Mutex<Option<Token>>,
    /// After a refusal of the credential: not asked again before then.
    refused: Mutex<Option<Refused>>,
    /// Why the last renewal failed, while the old token serves.
    not_renewed: Mutex<Option<String>>,
    /// Held while a token is fetched, so that one fetch serves all.
    fetching: tokio::sync::Mutex<()>,
}

#[derive(Clone, Debug)]
struct Refused {
    error: ApiError,
    until: Timestamp,
    waited: Duration,
}

/// The lifetime of tokens that do not tell theirs.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(4 * 3600);
/// A token is renewed this long before it ends, or after four fifths of its life.
const RENEW_BEFORE_END: Duration = Duration::from_secs(10 * 60);
const FIRST_WAIT: Duration = Duration::from_secs(30);
const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);
const OPERATION: &str = "token";

/// Both spellings of the credential's fields are sent: vendor tools and vendor documentation differ.
#[derive(Serialize)]
struct TokenRequest<'a> {
    auth_method: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    username: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    credential_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    credential_secret: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    application_credential_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    application_credential_secret: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    project_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    project_name: Option<&'a str>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: String,
    #[serde(default)]
    project_id: Option<String>,
    #[serde(default, alias = "expire_at")]
    expires_at: Option<String>,
}

impl Session {
    pub(super) fn new(clock: Clock, http: HttpClient, token_url: String, identity: Identity) -> Self {
        Self {
            clock,
            http,
            token_url,
            identity,
            current: Mutex::new(None),
            refused: Mutex::new(None),
            not_renewed: Mutex::new(None),
            fetching: tokio::sync::Mutex::new(()),
        }
    }

    /// A token that is good now. While a renewal is under way, the old one serves until it ends.
    pub(super) async fn token(&self) -> Result<Token, ApiError> {
        let now = self.clock.now();
        let current = self.current.lock().clone();
        match current {
            Some(token) if now < token.renew_at => Ok(token),
            Some(token) if now < token.expires_at => {
                let Ok(_fetching) = self.fetching.try_lock() else {
                    return Ok(token);
                };
                match self.fetch().await {
                    Ok(renewed) => Ok(renewed),
                    Err(error) => {
                        tracing::warn!(%error, "the token could not be renewed; the old one serves until it ends");
                        *self.not_renewed.lock() = Some(error.to_string());
                        Ok(token)
                    }
                }
            }
            Some(_) | None => self.fetch_once(current.as_ref()).await,
        }
    }

    /// Another token than the one that was refused; concurrent refusals of one token cause one fetch.
    pub(super) async fn replace(&self, refused: &Token) -> Result<Token, ApiError> {
        self.fetch_once(Some(refused)).await
    }

    /// When the current token ends.
    pub(super) fn expires_at(&self) -> Option<Timestamp> {
        self.current.lock().as_ref().map(|token| token.expires_at)
    }

    /// Why the current token could not be renewed, if so. One that ended or was refused is no longer a matter of renewal.
    pub(super) fn not_renewed(&self) -> Option<String> {
        let serves = self.expires_at().is_some_and(|end| self.clock.now() < end);
        serves.then(|| self.not_renewed.lock().clone()).flatten()
    }

    async fn fetch_once(&self, unwanted: Option<&Token>) -> Result<Token, ApiError> {
        let _fetching = self.fetching.lock().await;
        let current = self.current.lock().clone();
        if let Some(current) = current
            && unwanted.is_none_or(|unwanted| !unwanted.is(&current))
            && self.clock.now() < current.expires_at
        {
            return Ok(current);
        }
        self.fetch().await
    }

    /// Asks for a token, unless the credential was refused a moment ago.
    async fn fetch(&self) -> Result<Token, ApiError> {
        let refused = self.refused.lock().clone();
        if let Some(refused) = &refused
            && self.clock.now() < refused.until
        {
            return Err(refused.error.clone());
        }
        match self.ask().await {
            Ok(token) => {
                *self.refused.lock() = None;
                *self.not_renewed.lock() = None;
                *self.current.lock() = Some(token.clone());
                tracing::debug!(project = token.project_id, "obtained a token");
                Ok(token)
            }
            Err(error) => {
                if error.is_about_credentials() {
                    // Whoever asks for a token now must hear of it, not get one that the API refuses.
                    *self.current.lock() = None;
                    let waited = refused.map_or(FIRST_WAIT, |refused| (refused.waited * 2).min(LONGEST_WAIT));
                    let until = later(self.clock.now(), waited);
                    *self.refused.lock() = Some(Refused {
                        error: error.clone(),
                        until,
                        waited,
                    });
                }
                Err(error)
            }
        }
    }

    async fn ask(&self) -> Result<Token, ApiError> {
        // Asking for a token twice is harmless.
        let endpoint = Endpoint {
            name: OPERATION.to_owned(),
            safety: Safety::Repeatable,
            lane: Lane::Urgent,
            timeout: None,
        };
        let answer = self
            .http
            .send(&endpoint, |client| {
                let request = client.post(&self.token_url).json(&self.identity.request());
                request
                    .build()
                    .map_err(|error| karpenter_cloud::CloudError::invalid(error.without_url().to_string()))
            })
            .await
            .map_err(|error| ApiError::of_transport(&endpoint, error))?;
        if !answer.status.is_success() {
            let mut error = ApiError::of_answer(&endpoint, &answer, self.http.redactor(), &Words::default());
            if error.class == ErrorClass::Auth {
                error.message = format!("BizFly Cloud does not accept the credentials: {}", error.message);
            }
            return Err(error);
        }
        let told: TokenAnswer = answer
            .json()
            .map_err(|error| ApiError::new(OPERATION, ErrorClass::Transient, error.to_string()))?;
        let value = SecretString::from(told.token);
        self.http.redactor().add(&value);
        let project_id = told.project_id.unwrap_or_default();
        if let Some(configured) = &self.identity.project_id
            && !project_id.is_empty()
            && *configured != project_id
        {
            let message =
                format!("the credentials are for project {project_id}, but project {configured} is configured");
            return Err(ApiError::new(OPERATION, ErrorClass::ProjectMismatch, message));
        }
        let project_id = self.identity.project_id.clone().unwrap_or(project_id);
        let now = self.clock.now();
        let expires_at = told.expires_at.as_deref().and_then(wire::time);
        let expires_at = expires_at
            .filter(|at| *at > now)
            .unwrap_or_else(|| later(now, DEFAULT_LIFETIME));
        let lifetime = Duration::try_from(expires_at.duration_since(now)).unwrap_or_default();
        let renew_after = lifetime.mul_f64(0.8).min(lifetime.saturating_sub(RENEW_BEFORE_END));
        Ok(Token {
            value,
            project_id,
            expires_at,
            renew_at: later(now, renew_after),
        })
    }
}

impl Identity {
    fn request(&self) -> TokenRequest<'_> {
        let (email, password, id, secret) = match &self.method {
            AuthMethod::Password { email, password } => (Some(email), Some(password), None, None),
            AuthMethod::ApplicationCredential { id, secret } => (None, None, Some(id), Some(secret)),
        };
        let id = id.map(String::as_str);
        let secret = secret.map(ExposeSecret::expose_secret);
        TokenRequest {
            auth_method: match self.method {
                AuthMethod::Password { .. } => "password",
                AuthMethod::ApplicationCredential { .. } => "application_credential",
            },
            username: email.map(String::as_str),
            password: password.map(ExposeSecret::expose_secret),
            credential_id: id,
            credential_secret: secret,
            application_credential_id: id,
            application_credential_secret: secret,
            project_id: self.project_id.as_deref(),
            project_name: self.project_name.as_deref(),
        }
    }
}

impl Token {
    fn is(&self, other: &Self) -> bool {
        self.value.expose_secret() == other.value.expose_secret()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("project_id", &self.project_id)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = match self.method {
            AuthMethod::Password { .. } => "password",
            AuthMethod::ApplicationCredential { .. } => "application_credential",
        };
        f.debug_struct("Identity")
            .field("method", &method)
            .field("project_id", &self.project_id)
            .finish_non_exhaustive()
    }
}
