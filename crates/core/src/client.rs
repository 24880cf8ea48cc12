//! The Kubernetes client that controllers use: rate limited, measured, and held back while this process does not lead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, Request, Response, header};
use jiff::Timestamp;
use karpenter_cloud::kubernetes::LastWord;
pub use karpenter_cloud::kubernetes::connect;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tower::BoxError;

use crate::gate::{NotLeading, WriteGate};
use crate::limit::TokenBucket;
use crate::metrics::{Counter, Histogram, Registry, exponential_buckets};

/// A request that is not a watch and takes longer is given up; the caller tries again with backoff.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Requests that may be under way at once, watches aside. HTTP/1.1 takes a connection for each, and a burst of hundreds would
/// spend more time and memory on TLS than on what it asks for.
const MOST_IN_FLIGHT: usize = 16;

/// How often, and for how long each time, an Event lets other requests go first when the rate is used up. What it tells of must not wait
/// for it; it must not wait for ever either, since those that wait behind it would be dropped.
const YIELDS: usize = 4;
const YIELD: Duration = Duration::from_millis(50);

/// What stands between controllers and the API server.
#[derive(Clone, Debug)]
pub struct Guards {
    gate: WriteGate,
    /// The same gate, for the last moment before a write leaves.
    last_word: LastWord,
    in_flight: Arc<Semaphore>,
    limit: Option<Arc<Mutex<TokenBucket>>>,
    metrics: Arc<ClientMetrics>,
    user_agent: HeaderValue,
}

impl Guards {
    /// Guards that pass writes while `gate` is open. `version` becomes part of the user agent.
    pub fn new(gate: WriteGate, metrics: Arc<ClientMetrics>, version: &str) -> Self {
        let user_agent = HeaderValue::try_from(format!("karpenter/{version}"))
            .unwrap_or_else(|_| HeaderValue::from_static("karpenter"));
        Self {
            last_word: gate.last_word(),
            gate,
            in_flight: Arc::new(Semaphore::new(MOST_IN_FLIGHT)),
            limit: None,
            metrics,
            user_agent,
        }
    }

    /// Also limits the rate of requests.
    pub fn with_rate_limit(mut self, qps: u32, burst: u32) -> Self {
        let bucket = TokenBucket::new(f64::from(qps.max(1)), f64::from(burst.max(1)));
        self.limit = Some(Arc::new(Mutex::new(bucket)));
        self
    }

    /// `client` behind these guards.
    pub fn around(self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (guards, client) = (self.clone(), client.clone());
            async move { guards.send(client, request).await }
        });
        Client::new(service, namespace)
    }

    async fn send(self, client: Client, mut request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let target = Target::of(&request);
        self.throttle(&target).await;
        let _slot = if target.is_watch() {
            None
        } else {
            Some(self.in_flight.acquire().await.expect("the semaphore is never closed"))
        };
        // After the wait, so that nothing that queued up while we led goes out when we no longer do; and again when it has got to
        // its connection, since a process that is paused on the way there finds another one leading.
        if !is_read(request.method()) {
            self.gate.check()?;
            request.extensions_mut().insert(self.last_word.clone());
        }
        request
            .headers_mut()
            .insert(header::USER_AGENT, self.user_agent.clone());
        let started = Instant::now();
        let sending = client.send(request);
        let outcome = if target.is_watch() {
            sending.await
        } else {
            tokio::time::timeout(REQUEST_TIMEOUT, sending)
                .await
                .map_err(|_| Unanswered(REQUEST_TIMEOUT))?
        };
        if outcome.as_ref().is_err_and(is_held_back) {
            return Err(NotLeading.into());
        }
        let code = outcome.as_ref().map_or_else(
            |_| "<error>".to_owned(),
            |response| response.status().as_u16().to_string(),
        );
        self.metrics.observe(&target, &code, started.elapsed());
        Ok(outcome?)
    }

    async fn throttle(&self, target: &Target) {
        let Some(limit) = &self.limit else { return };
        if target.is_event() {
            for _ in 0..YIELDS {
                if limit.lock().try_take(Timestamp::now()) {
                    return;
                }
                tokio::time::sleep(YIELD).await;
            }
        }
        let wait = limit.lock().reserve(Timestamp::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

/// `client` with at most `most` requests under way at once; for those who use it without [`Guards`]. Whoever has the last word on the
/// task that sends a write, has it on the write.
pub fn limited(client: Client, most: usize) -> Client {
    let namespace = client.default_namespace().to_owned();
    let in_flight = Arc::new(Semaphore::new(most));
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (client, in_flight) = (client.clone(), in_flight.clone());
        async move {
            let _slot = in_flight.acquire().await.expect("the semaphore is never closed");
            if let Some(last_word) = LastWord::current().filter(|_| !is_read(request.method())) {
                request.extensions_mut().insert(last_word);
            }
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}

#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {0:?}")]
struct Unanswered(Duration);

/// Whether the gate had the last word, somewhere below the HTTP client's own errors.
fn is_held_back(error: &kube::Error) -> bool {
    let outermost: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(outermost), |error| error.source()).any(|error| error.is::<NotLeading>())
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Request metrics under client-go's names.
#[derive(Debug)]
pub struct ClientMetrics {
    duration: Histogram<5>,
    total: Counter<2>,
}

impl ClientMetrics {
    /// Registers them.
    pub fn register(registry: &Registry) -> Self {
        Self {
            duration: registry.histogram(
                "client_go_request_duration_seconds",
                "How long the Kubernetes API took to answer.",
                ["verb", "group", "version", "kind", "subresource"],
                &exponential_buckets(0.001, 1.5, 20),
            ),
            total: registry.counter(
                "client_go_request_total",
                "Requests to the Kubernetes API.",
                ["code", "method"],
            ),
        }
    }

    fn observe(&self, target: &Target, code: &str, took: Duration) {
        let labels = [
            target.verb,
            &target.group,
            &target.version,
            &target.resource,
            &target.subresource,
        ];
        self.duration.observe(labels, took.as_secs_f64());
        self.total.inc([code, target.method.as_str()]);
    }
}

/// What a request is about, read from its path.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    method: Method,
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
}

impl Target {
    fn of(request: &Request<Body>) -> Self {
        let uri = request.uri();
        let query = uri.query().unwrap_or_default();
        let watch = query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1");
        Self::parse(request.method().clone(), uri.path(), watch)
    }

    fn parse(method: Method, path: &str, watch: bool) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => ("", "", &[][..]),
        };
        let rest = match rest {
            ["namespaces", _, rest @ ..] if !rest.is_empty() && !["status", "finalize"].contains(&rest[0]) => rest,
            rest => rest,
        };
        let part = |index: usize| rest.get(index).copied().unwrap_or_default();
        let named = rest.len() > 1;
        let verb = match (&method, named) {
            (&Method::GET, _) if watch => "WATCH",
            (&Method::GET, true) => "GET",
            (&Method::GET, false) => "LIST",
            (&Method::POST, _) => "CREATE",
            (&Method::PUT, _) => "UPDATE",
            (&Method::PATCH, _) => "PATCH",
            (&Method::DELETE, true) => "DELETE",
            (&Method::DELETE, false) => "DELETECOLLECTION",
            _ => "OTHER",
        };
        Self {
            method,
            verb,
            group: group.to_owned(),
            version: version.to_owned(),
            resource: part(0).to_owned(),
            subresource: part(2).to_owned(),
        }
    }

    fn is_watch(&self) -> bool {
        self.verb == "WATCH"
    }

    fn is_event(&self) -> bool {
        self.resource == "events"
    }
}

#[cfg(test)]
mod tests;
