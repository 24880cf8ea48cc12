//! Talks HTTP to a cloud: rate-limited, retried only where that is safe, logged with request ids and without secrets.

pub mod in_flight;
pub mod rate;
pub mod redact;
pub mod retry;
pub mod settings;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::de::DeserializeOwned;
use thiserror::Error;
use uuid::Uuid;

pub use in_flight::{InFlight, OnTheWire};
pub use rate::{Lane, RateLimit, RateLimiter};
pub use redact::Redactor;
pub use retry::{Ending, RetryPolicy, Safety};
pub use settings::{HttpSettings, HttpSettingsError, ProxyChoice, Trust, install_crypto_provider};

use crate::{clock::Clock, error::CloudError};

/// A client of one cloud API. Cheap to clone; clones share connections and rate limit.
#[derive(Clone)]
pub struct HttpClient {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    client: reqwest::Client,
    settings: HttpSettings,
    limiter: RateLimiter,
    redactor: Redactor,
    observer: Box<dyn HttpObserver>,
}

/// What is known about a request besides its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Of bounded cardinality, for metrics and logs: a command, or a path with its ids taken out.
    pub name: String,
    pub safety: Safety,
    pub lane: Lane,
    /// Instead of the client's timeout per attempt.
    pub timeout: Option<Duration>,
}

/// A complete answer, of whatever status.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The cloud's id of the request if it told one, else ours.
    pub request_id: String,
}

/// Why there is no answer. The text holds no URL and no known secret.
#[derive(Debug, Error)]
pub enum HttpError {
    /// The cloud did certainly not act on the request.
    #[error("{endpoint}: not sent: {message}")]
    NotSent { endpoint: String, message: String },
    /// The cloud may have acted on the request; whoever sent an unrepeatable one must look before sending it again.
    #[error("{endpoint}: no complete answer: {message}")]
    Unknown { endpoint: String, message: String },
    /// The answer was longer than allowed; it was acted upon.
    #[error("{endpoint}: the answer is longer than {limit} bytes")]
    TooLong { endpoint: String, limit: usize },
    /// The request itself could not be built.
    #[error(transparent)]
    Build(#[from] CloudError),
}

/// Sees every attempt, e.g. to feed a provider's own metrics.
pub trait HttpObserver: Send + Sync + 'static {
    fn attempted(&self, attempt: &Attempt<'_>);
}

/// One attempt of a request, over.
#[derive(Clone, Debug)]
pub struct Attempt<'a> {
    pub endpoint: &'a str,
    pub method: &'a http::Method,
    /// Counted from 1.
    pub number: u32,
    pub ending: Ending,
    pub lane: Lane,
    pub took: Duration,
    /// Spent waiting for the rate limit before it was sent.
    pub throttled: Duration,
}

/// Observes nothing.
#[derive(Clone, Copy, Debug)]
pub struct Unobserved;

impl HttpObserver for Unobserved {
    fn attempted(&self, _attempt: &Attempt<'_>) {}
}

const REQUEST_ID: &str = "x-request-id";

// === impl HttpClient ===

impl HttpClient {
    /// # Errors
    /// When a setting cannot be used.
    pub fn new(
        clock: Clock,
        settings: HttpSettings,
        redactor: Redactor,
        observer: impl HttpObserver,
    ) -> Result<Self, HttpSettingsError> {
        let client = settings.connect()?;
        let limiter = RateLimiter::new(clock.clone(), settings.rate);
        let observer = Box::new(observer);
        Ok(Self {
            shared: Arc::new(Shared {
                clock,
                client,
                settings,
                limiter,
                redactor,
                observer,
            }),
        })
    }

    /// For building requests; they are sent with [`send`](Self::send).
    pub fn requests(&self) -> &reqwest::Client {
        &self.shared.client
    }

    /// The rate that it keeps to.
    pub fn rate(&self) -> RateLimit {
        self.shared.settings.rate
    }

    pub fn redactor(&self) -> &Redactor {
        &self.shared.redactor
    }

    /// Sends a request and reads the whole answer.
    ///
    /// `build` is called for every attempt, so that timestamps and signatures are fresh and a rotated credential is
    /// used at once. An answer of any status is `Ok`: only the provider can read its error envelope.
    ///
    /// # Errors
    /// When there is no answer; see [`HttpError`] for what that says about the request.
    pub async fn send<B>(&self, endpoint: &Endpoint, build: B) -> Result<Answer, HttpError>
    where
        B: Fn(&reqwest::Client) -> Result<reqwest::Request, CloudError> + Send + Sync,
    {
        let id = Uuid::new_v4().to_string();
        let mut number = 1;
        loop {
            let throttled = self.shared.limiter.acquire(endpoint.lane).await;
            let mut request = build(&self.shared.client)?;
            let method = request.method().clone();
            let value = HeaderValue::from_str(&id).expect("a UUID is a header value");
            request.headers_mut().entry(REQUEST_ID).or_insert(value);
            if let Some(timeout) = endpoint.timeout {
                *request.timeout_mut() = Some(timeout);
            }
            let started = Instant::now();
            let on_the_wire = self.shared.settings.in_flight.enter();
            let result = self.attempt(endpoint, request, &id).await;
            drop(on_the_wire);
            let took = started.elapsed();
            let ending = ending(&result);
            let attempt = Attempt {
                endpoint: &endpoint.name,
                method: &method,
                number,
                ending,
                lane: endpoint.lane,
                took,
                throttled,
            };
            self.shared.observer.attempted(&attempt);
            self.log(&attempt, &id, &result);
            if ending == Ending::Answered(StatusCode::TOO_MANY_REQUESTS) {
                self.shared.limiter.throttled();
            }
            if !self.shared.settings.retry.allows(endpoint.safety, number, ending) {
                return result;
            }
            let asked = result
                .as_ref()
                .ok()
                .and_then(|answer| retry::retry_after(&answer.headers));
            let delay = self.shared.settings.retry.delay(number, asked, &mut rand::rng());
            self.shared.clock.sleep(delay).await;
            number += 1;
        }
    }

    async fn attempt(&self, endpoint: &Endpoint, request: reqwest::Request, id: &str) -> Result<Answer, HttpError> {
        let limit = self.shared.settings.longest_body;
        let mut response = self
            .shared
            .client
            .execute(request)
            .await
            .map_err(|error| self.failed(endpoint, error))?;
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(endpoint, error))? {
            if body.len() + chunk.len() > limit {
                return Err(HttpError::TooLong {
                    endpoint: endpoint.name.clone(),
                    limit,
                });
            }
            body.extend_from_slice(&chunk);
        }
        let told = self
            .shared
            .settings
            .answer_id_headers
            .iter()
            .find_map(|name| response.headers().get(*name));
        let request_id = told.and_then(|told| told.to_str().ok()).unwrap_or(id).to_owned();
        Ok(Answer {
            status: response.status(),
            headers: std::mem::take(response.headers_mut()),
            body: body.freeze(),
            request_id,
        })
    }

    /// The URL is dropped because some clouds sign in the query string; the rest is redacted.
    fn failed(&self, endpoint: &Endpoint, error: reqwest::Error) -> HttpError {
        let not_sent = error.is_connect() || error.is_builder();
        let message = self.shared.redactor.redact(&settings::chain(&error.without_url()));
        let endpoint = endpoint.name.clone();
        if not_sent {
            HttpError::NotSent { endpoint, message }
        } else {
            HttpError::Unknown { endpoint, message }
        }
    }

    fn log(&self, attempt: &Attempt<'_>, id: &str, result: &Result<Answer, HttpError>) {
        let endpoint = attempt.endpoint;
        let took_ms = u64::try_from(attempt.took.as_millis()).unwrap_or(u64::MAX);
        match result {
            Ok(answer) => {
                tracing::debug!(
                    endpoint, method = %attempt.method, attempt = attempt.number, request_id = id,
                    answer_id = answer.request_id, status = answer.status.as_u16(), took_ms, "cloud API answered"
                );
            }
            Err(error) => {
                tracing::debug!(
                    endpoint, method = %attempt.method, attempt = attempt.number, request_id = id, took_ms, %error,
                    "cloud API did not answer"
                );
            }
        }
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

fn ending(result: &Result<Answer, HttpError>) -> Ending {
    match result {
        Ok(answer) => Ending::Answered(answer.status),
        Err(HttpError::NotSent { .. } | HttpError::Build(_)) => Ending::NotSent,
        Err(HttpError::Unknown { .. } | HttpError::TooLong { .. }) => Ending::Unknown,
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// A read on behalf of something that waits for it.
    pub fn read(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            safety: Safety::Repeatable,
            lane: Lane::Urgent,
            timeout: None,
        }
    }

    /// A read that fills a cache.
    pub fn refresh(name: impl Into<String>) -> Self {
        Self {
            lane: Lane::Background,
            ..Self::read(name)
        }
    }

    /// A change that must not happen twice.
    pub fn write(name: impl Into<String>) -> Self {
        Self {
            safety: Safety::Unrepeatable,
            ..Self::read(name)
        }
    }
}

// === impl Answer ===

impl Answer {
    /// Reads the body as JSON.
    ///
    /// # Errors
    /// [`CloudError::Transient`] with the position, but without the text, of what could not be read.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, CloudError> {
        serde_json::from_slice(&self.body).map_err(|error| {
            CloudError::transient(format!("answer {} is not what was expected: {error}", self.request_id))
        })
    }

    /// The class that a status means unless the cloud's own error envelope says more.
    pub fn default_error(&self, message: impl fmt::Display) -> CloudError {
        let message = format!("{message} (HTTP {}, request {})", self.status.as_u16(), self.request_id);
        match self.status {
            StatusCode::NOT_FOUND | StatusCode::GONE => CloudError::NotFound { what: message },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => CloudError::Auth { message },
            StatusCode::TOO_MANY_REQUESTS => CloudError::throttled(message, retry::retry_after(&self.headers)),
            StatusCode::REQUEST_TIMEOUT => CloudError::transient(message),
            status if status.is_client_error() => CloudError::Invalid { message },
            _ => CloudError::transient(message),
        }
    }
}

impl From<HttpError> for CloudError {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Build(error) => error,
            HttpError::NotSent { .. } | HttpError::Unknown { .. } | HttpError::TooLong { .. } => Self::Transient {
                message: error.to_string(),
                source: None,
            },
        }
    }
}
