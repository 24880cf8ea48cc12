//! Talks to the OVHcloud API: signed or with a token, corrected for clock skew, rate-limited, errors sorted.

pub mod auth;
pub mod endpoint;
pub mod error;
pub mod kube;
pub mod model;
pub mod new_key;
pub mod sign;

use std::{collections::BTreeMap, fmt, time::Duration};

use http::{HeaderMap, Method};
use jiff::Timestamp;
use karpenter_cloud::{
    CloudError, ErrorKind,
    clock::{Clock, later},
    http::{
        Answer, Endpoint, HttpClient, HttpError, HttpObserver, HttpSettings, HttpSettingsError, InFlight, Lane,
        RateLimit, Redactor, RetryPolicy, Safety, retry,
    },
};
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, de::DeserializeOwned};

pub use auth::{AuthMethod, CredentialProblem};
pub use endpoint::{ApiEndpoint, EndpointError};
pub use error::{ApiError, ApiErrorKind, Sending};
pub use kube::KubeApi;

/// A client of one endpoint with one set of credentials.
pub struct OvhClient {
    clock: Clock,
    http: HttpClient,
    endpoint: ApiEndpoint,
    method: AuthMethod,
    offset: Mutex<Option<Offset>>,
    token: Mutex<Option<Token>>,
    /// Serialises fetching a token or the time.
    renewing: tokio::sync::Mutex<()>,
    refused: Mutex<Option<Refused>>,
    /// Writes that were not granted, by method and path.
    lacking: Mutex<BTreeMap<(String, String), Lacking>>,
}

/// How fast and how patiently the API is called.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    pub per_second: f64,
    pub retry: RetryPolicy,
    /// Counts requests on the wire.
    pub in_flight: InFlight,
}

/// How far our clock is ahead of the API's.
#[derive(Clone, Copy, Debug)]
struct Offset {
    seconds: i64,
    learned_at: Timestamp,
}

struct Token {
    value: SecretString,
    renew_at: Timestamp,
}

/// The credentials were refused: nothing is sent with them until then, so that a revoked key is no storm of calls.
#[derive(Clone, Debug)]
struct Refused {
    until: Timestamp,
    error: ApiError,
}

/// A write that was not granted: for a while it is not sent again, and for a longer one it is told of.
#[derive(Clone, Debug)]
struct Lacking {
    asked_at: Timestamp,
    error: ApiError,
}

/// A call: what is sent, and what it is called in metrics and errors.
#[derive(Debug)]
struct Call<'a> {
    method: Method,
    path: String,
    /// The path with its ids taken out.
    label: &'a str,
    body: Vec<u8>,
    lane: Lane,
    signed: Signed,
    cursor: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signed {
    Yes,
    /// Public calls fail *because* they are signed.
    No,
}

const OFFSET_TTL: Duration = Duration::from_secs(60 * 60);
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// A right that was found missing is told of for this long: IAM policies change without a new key.
const LACKING_FOR: Duration = Duration::from_secs(10 * 60);
/// Whoever may not write these can do nothing.
const POOLS: &str = "/nodepool";
const LONGEST_BODY: usize = 32 * 1024 * 1024;
const CATALOG_TIMEOUT: Duration = Duration::from_secs(180);
/// Of a token's life, after which it is renewed.
const RENEW_AT: f64 = 0.8;
const QUERY_ID: &str = "x-ovh-queryid";

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            per_second: 10.0,
            retry: RetryPolicy {
                attempts: 4,
                first_delay: Duration::from_secs(1),
                longest_delay: Duration::from_secs(30),
                transient: [408, 429, 500, 502, 503, 504]
                    .into_iter()
                    .filter_map(|code| http::StatusCode::from_u16(code).ok())
                    .collect(),
                refused: vec![http::StatusCode::TOO_MANY_REQUESTS],
                ..RetryPolicy::default()
            },
            in_flight: InFlight::default(),
        }
    }
}

impl OvhClient {
    /// # Errors
    /// When the HTTP stack cannot be set up.
    pub fn new(
        clock: Clock,
        endpoint: ApiEndpoint,
        method: AuthMethod,
        settings: &ClientSettings,
        redactor: Redactor,
        observer: impl HttpObserver,
    ) -> Result<Self, HttpSettingsError> {
        let settings = HttpSettings {
            rate: RateLimit {
                per_second: settings.per_second,
                burst: ((settings.per_second * 2.0).ceil() as u32).max(1),
            },
            retry: settings.retry.clone(),
            user_agent: concat!("karpenter-rs/", env!("CARGO_PKG_VERSION")).to_owned(),
            longest_body: LONGEST_BODY,
            answer_id_headers: vec![QUERY_ID],
            in_flight: settings.in_flight.clone(),
            ..HttpSettings::default()
        };
        let http = HttpClient::new(clock.clone(), settings, redactor, observer)?;
        Ok(Self {
            clock,
            http,
            endpoint,
            method,
            offset: Mutex::new(None),
            token: Mutex::new(None),
            renewing: tokio::sync::Mutex::new(()),
            refused: Mutex::new(None),
            lacking: Mutex::default(),
        })
    }

    pub fn endpoint(&self) -> &ApiEndpoint {
        &self.endpoint
    }

    pub fn method(&self) -> &AuthMethod {
        &self.method
    }

    /// How far our clock is ahead of the API's, once that is known.
    pub fn clock_offset(&self) -> Option<i64> {
        self.offset.lock().map(|offset| offset.seconds)
    }

    /// Reads and parses an answer that must have a body.
    async fn get<T: DeserializeOwned>(&self, path: String, label: &str, lane: Lane) -> Result<T, ApiError> {
        let call = Call::new(Method::GET, path, label, lane);
        let answer = self.call(&call).await?;
        parsed(&answer, &call)
    }

    /// Sends a write; its answer may be anything.
    async fn write(&self, method: Method, path: String, label: &str, body: Vec<u8>) -> Result<Answer, ApiError> {
        let mut call = Call::new(method, path, label, Lane::Urgent);
        call.body = body;
        if !label.contains(POOLS) {
            return self.call(&call).await;
        }
        let right = (call.method.to_string(), label.to_owned());
        let known = self.lacking.lock().get(&right).cloned();
        if let Some(known) = known.filter(|known| self.clock.now() < later(known.asked_at, REFUSED_FOR)) {
            return Err(known.error);
        }
        let result = self.call(&call).await;
        match &result {
            Ok(_) => drop(self.lacking.lock().remove(&right)),
            Err(error) if error.is(ApiErrorKind::NotGranted) => {
                let lacking = Lacking {
                    asked_at: self.clock.now(),
                    error: error.clone(),
                };
                self.lacking.lock().insert(right, lacking);
            }
            Err(_) => {}
        }
        result
    }

    /// A right that is needed, and that a write found missing not long ago: reads cannot tell.
    pub fn lacking_right(&self) -> Option<ApiError> {
        let now = self.clock.now();
        let lacking = self.lacking.lock();
        let recent = lacking.values().find(|own| now < later(own.asked_at, LACKING_FOR))?;
        Some(recent.error.clone())
    }

    /// A public call: neither signed nor with a token.
    ///
    /// # Errors
    /// As every call.
    pub async fn get_public<T: DeserializeOwned>(&self, path: &str, label: &str) -> Result<T, ApiError> {
        let mut call = Call::new(Method::GET, path.to_owned(), label, Lane::Background);
        call.signed = Signed::No;
        let answer = self.attempt(&call).await?;
        parsed(&answer, &call)
    }

    async fn call(&self, call: &Call<'_>) -> Result<Answer, ApiError> {
        if let Some(refused) = self.refused() {
            return Err(refused);
        }
        self.prepare(call).await?;
        let error = match self.attempt(call).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        // Neither a rejected signature nor a rejected token was acted upon, so even a write may be sent again, once.
        let again = match (&self.method, error.kind) {
            (AuthMethod::Keys { .. }, ApiErrorKind::Clock) => {
                self.learn_offset().await?;
                true
            }
            (AuthMethod::ServiceAccount { .. }, ApiErrorKind::Auth) => {
                *self.token.lock() = None;
                self.prepare(call).await?;
                true
            }
            _ => false,
        };
        let result = if again { self.attempt(call).await } else { Err(error) };
        result.map_err(|mut error| {
            if again && error.kind == ApiErrorKind::Clock {
                error.kind = ApiErrorKind::Auth;
            }
            if error.kind == ApiErrorKind::Auth {
                self.refuse(&error);
            }
            error
        })
    }

    async fn attempt(&self, call: &Call<'_>) -> Result<Answer, ApiError> {
        let safety = match call.method {
            Method::GET => Safety::Repeatable,
            _ => Safety::Unrepeatable,
        };
        let endpoint = Endpoint {
            name: call.label.to_owned(),
            safety,
            lane: call.lane,
            timeout: (call.signed == Signed::No).then_some(CATALOG_TIMEOUT),
        };
        let url = self.endpoint.url(&call.path);
        let sent = self.http.send(&endpoint, |client| {
            let mut request = client
                .request(call.method.clone(), &url)
                .headers(self.headers(call, &url)?);
            if !call.body.is_empty() {
                request = request.body(call.body.clone());
            }
            request
                .build()
                .map_err(|error| CloudError::invalid(format!("{}: {}", call.label, error.without_url())))
        });
        let answer = match sent.await {
            Ok(answer) => answer,
            Err(HttpError::TooLong { .. }) => {
                return Err(call.failed(ApiErrorKind::Server, "the answer is longer than allowed"));
            }
            // Nothing was sent, and nothing will be until somebody changes something.
            Err(HttpError::Build(error)) => {
                let kind = match error.kind() {
                    ErrorKind::Auth => ApiErrorKind::Auth,
                    _ => ApiErrorKind::Invalid,
                };
                return Err(call.failed(kind, error.to_string()).unsendable());
            }
            Err(error) => return Err(call.failed(ApiErrorKind::Transport, error.to_string())),
        };
        if answer.status.is_success() {
            return Ok(answer);
        }
        let mut error = ApiError::of(&answer, &call.method, call.label, retry::retry_after(&answer.headers));
        error.message = self.http.redactor().redact(&error.message);
        Err(error)
    }

    /// Built for every attempt, so that the timestamp is fresh.
    fn headers(&self, call: &Call<'_>, url: &str) -> Result<HeaderMap, CloudError> {
        let mut headers = HeaderMap::new();
        let mut add = |name: &'static str, value: &str, secret: bool| -> Result<(), CloudError> {
            let mut value = http::HeaderValue::from_str(value)
                .map_err(|_| CloudError::auth(format!("the value for header {name} holds characters that none may")))?;
            value.set_sensitive(secret);
            headers.insert(name, value);
            Ok(())
        };
        add("accept", "application/json", false)?;
        if !call.body.is_empty() {
            add("content-type", "application/json;charset=utf-8", false)?;
        }
        if let Some(cursor) = &call.cursor {
            add("x-pagination-cursor", cursor, false)?;
        }
        if call.signed == Signed::No {
            return Ok(headers);
        }
        match &self.method {
            AuthMethod::Keys {
                application_key,
                application_secret,
                consumer_key,
            } => {
                let offset = self.offset.lock().map_or(0, |offset| offset.seconds);
                let timestamp = self.clock.now().as_second() - offset;
                let signature = sign::signature(
                    application_secret.expose_secret(),
                    consumer_key.expose_secret(),
                    call.method.as_str(),
                    url,
                    &call.body,
                    timestamp,
                );
                add("x-ovh-application", application_key.expose_secret(), true)?;
                add("x-ovh-consumer", consumer_key.expose_secret(), true)?;
                add("x-ovh-timestamp", &timestamp.to_string(), false)?;
                add("x-ovh-signature", &signature, true)?;
            }
            AuthMethod::ServiceAccount { .. } => {
                let bearer = self.token.lock().as_ref().map(|token| token.bearer());
                add("authorization", &bearer.unwrap_or_default(), true)?;
            }
            AuthMethod::Token(token) => {
                add("authorization", &format!("Bearer {}", token.expose_secret()), true)?;
            }
        }
        Ok(headers)
    }

    /// Makes sure that a call can be signed.
    async fn prepare(&self, call: &Call<'_>) -> Result<(), ApiError> {
        match &self.method {
            AuthMethod::Keys { .. } if !self.knows_offset() => self.learn_offset_once().await,
            AuthMethod::ServiceAccount {
                client_id,
                client_secret,
            } if !self.has_token() => self.fetch_token(call, client_id, client_secret).await,
            _ => Ok(()),
        }
    }

    fn knows_offset(&self) -> bool {
        let fresh = |offset: Offset| self.clock.now() < later(offset.learned_at, OFFSET_TTL);
        self.offset.lock().is_some_and(fresh)
    }

    async fn learn_offset_once(&self) -> Result<(), ApiError> {
        let _renewing = self.renewing.lock().await;
        if self.knows_offset() {
            return Ok(());
        }
        match self.learn_offset().await {
            // An old offset is better than none while the API does not tell the time.
            Err(_) if self.offset.lock().is_some() => Ok(()),
            result => result,
        }
    }

    async fn learn_offset(&self) -> Result<(), ApiError> {
        let server: i64 = self.get_public("/auth/time", "/auth/time").await?;
        let now = self.clock.now();
        let seconds = now.as_second() - server;
        *self.offset.lock() = Some(Offset {
            seconds,
            learned_at: now,
        });
        Ok(())
    }

    fn has_token(&self) -> bool {
        let now = self.clock.now();
        self.token.lock().as_ref().is_some_and(|token| now < token.renew_at)
    }

    async fn fetch_token(&self, call: &Call<'_>, id: &SecretString, secret: &SecretString) -> Result<(), ApiError> {
        #[derive(Deserialize)]
        struct Granted {
            access_token: String,
            expires_in: u64,
        }
        let _renewing = self.renewing.lock().await;
        if self.has_token() {
            return Ok(());
        }
        let Some(url) = self.endpoint.token_url() else {
            let why = "a service account at a literal endpoint URL needs OVH_OAUTH2_TOKEN_URL";
            return Err(call.failed(ApiErrorKind::Invalid, why).unsendable());
        };
        let form = [
            ("grant_type", "client_credentials"),
            ("client_id", id.expose_secret()),
            ("client_secret", secret.expose_secret()),
            ("scope", "all"),
        ];
        // Asking for a token twice is harmless.
        let endpoint = Endpoint::read("oauth2/token");
        let sent = self.http.send(&endpoint, |client| {
            client
                .post(url)
                .form(&form)
                .build()
                .map_err(|error| CloudError::invalid(format!("oauth2/token: {}", error.without_url())))
        });
        let failed = |kind, message: String| {
            let mut error = ApiError::new(kind, &Method::POST, "oauth2/token", message);
            error.message = self.http.redactor().redact(&error.message);
            error
        };
        let answer = sent
            .await
            .map_err(|error| failed(ApiErrorKind::Transport, error.to_string()))?;
        if answer.status.is_client_error() {
            let error = failed(
                ApiErrorKind::Auth,
                format!("the service account was refused (HTTP {})", answer.status.as_u16()),
            );
            self.refuse(&error);
            return Err(error);
        }
        if !answer.status.is_success() {
            return Err(failed(ApiErrorKind::Server, answer.status.to_string()));
        }
        let granted: Granted = serde_json::from_slice(&answer.body)
            .map_err(|_| failed(ApiErrorKind::Server, "the token cannot be read".to_owned()))?;
        let value = SecretString::from(granted.access_token);
        self.http.redactor().add(&value);
        let life = Duration::from_secs(granted.expires_in).mul_f64(RENEW_AT);
        *self.token.lock() = Some(Token {
            value,
            renew_at: later(self.clock.now(), life),
        });
        Ok(())
    }

    fn refused(&self) -> Option<ApiError> {
        let refused = self.refused.lock();
        let held = refused.as_ref().filter(|refused| self.clock.now() < refused.until)?;
        Some(held.error.clone())
    }

    fn refuse(&self, error: &ApiError) {
        *self.refused.lock() = Some(Refused {
            until: later(self.clock.now(), REFUSED_FOR),
            error: error.clone(),
        });
    }
}

impl Token {
    fn bearer(&self) -> String {
        format!("Bearer {}", self.value.expose_secret())
    }
}

impl<'a> Call<'a> {
    fn new(method: Method, path: String, label: &'a str, lane: Lane) -> Self {
        Self {
            method,
            path,
            label,
            body: Vec::new(),
            lane,
            signed: Signed::Yes,
            cursor: None,
        }
    }

    fn failed(&self, kind: ApiErrorKind, message: impl Into<String>) -> ApiError {
        ApiError::new(kind, &self.method, self.label, message)
    }
}

fn parsed<T: DeserializeOwned>(answer: &Answer, call: &Call<'_>) -> Result<T, ApiError> {
    serde_json::from_slice(&answer.body).map_err(|error| {
        let mut failed = call.failed(
            ApiErrorKind::Server,
            format!("the answer is not what was expected: {error}"),
        );
        failed.query = Some(answer.request_id.clone());
        failed
    })
}

impl fmt::Debug for OvhClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OvhClient")
            .field("endpoint", &self.endpoint.base())
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}
