//! A client of CloudStack's API: signed requests, opened envelopes, complete lists and awaited jobs.

pub mod envelope;
pub mod failure;
pub mod jobs;
pub mod metrics;
pub mod model;
pub mod params;
pub mod signing;
mod skew;

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use karpenter_cloud::{
    CloudError,
    clock::{Clock, later},
    http::{Endpoint, HttpClient, HttpSettings, HttpSettingsError, Lane, Redactor, Safety},
};
use parking_lot::Mutex;
use rand::Rng;
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use url::Url;

pub use envelope::Content;
pub use failure::{ApiError, Class, Failure, Told};
pub use params::Request;

use metrics::ApiMetrics;
use model::{Capabilities, Job};
use skew::{Freshness, Skew};

/// A client of one CloudStack installation. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    settings: HttpSettings,
    /// Replaced when the server announces a limit of its own.
    http: ArcSwap<HttpClient>,
    keys: ArcSwap<Keys>,
    redactor: Redactor,
    skew: Skew,
    /// The largest page that the server gives.
    page_size: AtomicU32,
    metrics: ApiMetrics,
    answered_at: Mutex<Option<Timestamp>>,
}

/// Where the API is and who asks.
#[derive(Clone)]
pub struct Keys {
    pub url: Url,
    pub api_key: String,
    pub secret_key: SecretString,
}

/// Who goes first when the rate is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    Termination,
    Launch,
    Discovery,
}

/// How a request travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Get,
    Post,
}

const DEFAULT_PAGE_SIZE: u32 = 500;
/// Longer queries are sent as a form.
const LONGEST_QUERY: usize = 4096;
/// Tries against a server that throttles; together with the client's own rate a bound on what a storm can cost.
const THROTTLED_TRIES: u32 = 8;
const TRANSIENT_TRIES: u32 = 5;
/// Times that a list which changed while being read is read again.
const LIST_TRIES: u32 = 4;
const EXPIRY: Duration = Duration::from_secs(10 * 60);

impl Client {
    /// # Errors
    /// When a setting cannot be used.
    pub fn new(
        clock: Clock,
        settings: HttpSettings,
        keys: Keys,
        redactor: Redactor,
        metrics: ApiMetrics,
    ) -> Result<Self, HttpSettingsError> {
        keys.teach(&redactor);
        let http = HttpClient::new(clock.clone(), settings.clone(), redactor.clone(), metrics.clone())?;
        let shared = Shared {
            clock,
            settings,
            http: ArcSwap::from_pointee(http),
            keys: ArcSwap::from_pointee(keys),
            redactor,
            skew: Skew::default(),
            page_size: AtomicU32::new(DEFAULT_PAGE_SIZE),
            metrics,
            answered_at: Mutex::new(None),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Another client of the same server with other keys, e.g. to try them.
    ///
    /// # Errors
    /// When a setting cannot be used.
    pub fn with_keys(&self, keys: Keys) -> Result<Self, HttpSettingsError> {
        let shared = &self.shared;
        Self::new(
            shared.clock.clone(),
            shared.settings.clone(),
            keys,
            shared.redactor.clone(),
            shared.metrics.clone(),
        )
    }

    /// Uses other keys from the next request on.
    pub fn use_keys(&self, keys: Keys) {
        keys.teach(&self.shared.redactor);
        self.shared.keys.store(Arc::new(keys));
    }

    pub fn keys(&self) -> Arc<Keys> {
        self.shared.keys.load_full()
    }

    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    pub fn metrics(&self) -> &ApiMetrics {
        &self.shared.metrics
    }

    /// When CloudStack last did what it was asked.
    pub fn answered_at(&self) -> Option<Timestamp> {
        *self.shared.answered_at.lock()
    }

    /// Sends a request and opens the answer.
    ///
    /// # Errors
    /// See [`ApiError`]. A request that changes something is never sent twice unless it certainly had no effect.
    pub async fn call(&self, request: &Request, priority: Priority) -> Result<Content, ApiError> {
        let mut tries = 0;
        let mut method = None;
        let mut skew_handled = false;
        loop {
            tries += 1;
            let answered = self.send(request, priority, method).await;
            let error = match answered {
                Ok(content) => return Ok(content),
                Err(error) => error,
            };
            let Some(class) = error.class().cloned() else {
                return Err(error);
            };
            match class {
                Class::Throttled(wait) if tries < THROTTLED_TRIES => {
                    let jitter = rand::rng().random_range(0.0..=0.2);
                    self.shared.clock.sleep(wait.mul_f64(1.0 + jitter)).await;
                }
                Class::NeedsPost if method.is_none() => method = Some(Method::Post),
                Class::Auth if !skew_handled => {
                    skew_handled = true;
                    if !self.learn_skew(request, priority).await {
                        return Err(error);
                    }
                }
                Class::Transient | Class::Generic if request.is_read() && tries < TRANSIENT_TRIES => {
                    let delay = Duration::from_millis(200 * (1 << tries.min(4)));
                    self.shared.clock.sleep(delay).await;
                }
                _ => return Err(error),
            }
        }
    }

    /// One object of the answer to a request.
    ///
    /// # Errors
    /// As [`call`](Self::call), and when the object is missing.
    pub async fn object<T: DeserializeOwned>(
        &self,
        request: &Request,
        object: &str,
        priority: Priority,
    ) -> Result<T, ApiError> {
        let content = self.call(request, priority).await?;
        content.object(object).map_err(|error| unreadable(request, &error))
    }

    /// Everything that a list command has, or an error; never a part.
    ///
    /// # Errors
    /// As [`call`](Self::call), and when the list keeps changing while it is read.
    pub async fn list<T: DeserializeOwned + Identified>(
        &self,
        request: &Request,
        object: &str,
        priority: Priority,
    ) -> Result<Vec<T>, ApiError> {
        // One query without pages cannot be torn apart by changes; old servers refuse it.
        let whole = request.clone().with("pagesize", "-1");
        match self.call(&whole, priority).await {
            Ok(content) => {
                let page = content.page::<T>(object).map_err(|error| unreadable(request, &error))?;
                if distinct(&page.items) >= page.count {
                    return Ok(page.items);
                }
            }
            Err(error) => match error.class() {
                Some(Class::PageSize(_) | Class::Invalid) => {}
                _ => return Err(error),
            },
        }
        let mut before: Option<BTreeSet<String>> = None;
        for _ in 0..LIST_TRIES {
            let read: Paged<T> = self.list_in_pages(request, object, priority).await?;
            let ids: BTreeSet<String> = read.items.iter().map(|item| item.identity().into_owned()).collect();
            let is_whole = ids.len() >= read.count;
            // What went between two pages moves the rest up, and one is skipped: pages count only if they have all that they had
            // a moment ago.
            let has_all_of_before = before.as_ref().is_some_and(|before| before.is_subset(&ids));
            if is_whole && (read.pages == 1 || has_all_of_before) {
                return Ok(read.items);
            }
            before = is_whole.then_some(ids);
        }
        Err(ApiError::Unreadable {
            command: request.command.to_owned(),
            reason: format!("the list changed each of the {LIST_TRIES} times it was read"),
        })
    }

    /// Reads page after page, once.
    async fn list_in_pages<T: DeserializeOwned + Identified>(
        &self,
        request: &Request,
        object: &str,
        priority: Priority,
    ) -> Result<Paged<T>, ApiError> {
        let mut items: Vec<T> = Vec::new();
        let mut number = 1u32;
        loop {
            let size = self.shared.page_size.load(Ordering::Relaxed);
            let page = request
                .clone()
                .with("page", number.to_string())
                .with("pagesize", size.to_string());
            let content = match self.call(&page, priority).await {
                Ok(content) => content,
                Err(error) => match error.class() {
                    Some(Class::PageSize(largest)) if *largest < size => {
                        self.shared.page_size.store((*largest).max(1), Ordering::Relaxed);
                        (items, number) = (Vec::new(), 1);
                        continue;
                    }
                    _ => return Err(error),
                },
            };
            let page = content.page::<T>(object).map_err(|error| unreadable(request, &error))?;
            let is_last = page.items.len() < size as usize;
            items.extend(page.items);
            if is_last {
                let mut seen = BTreeSet::new();
                items.retain(|item| seen.insert(item.identity().into_owned()));
                return Ok(Paged {
                    items,
                    pages: number,
                    count: page.count,
                });
            }
            number += 1;
        }
    }

    /// The state of a job.
    ///
    /// # Errors
    /// As [`call`](Self::call); a job that the server forgot is [`Class::NotFound`].
    pub async fn job(&self, id: &str, priority: Priority) -> Result<Job, ApiError> {
        let request = Request::new("queryAsyncJobResult").with("jobid", id);
        let content = self.call(&request, priority).await?;
        let job: Job = content.whole().map_err(|error| unreadable(&request, &error))?;
        self.shared.skew.learn_from(
            job.completed.as_deref().and_then(model::timestamp),
            self.shared.clock.now(),
        );
        Ok(job)
    }

    /// What the server can do, and with which limits; a limit slows this client down.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn capabilities(&self) -> Result<Capabilities, ApiError> {
        let request = Request::new("listCapabilities");
        let capabilities: Capabilities = self.object(&request, "capability", Priority::Discovery).await?;
        self.respect(&capabilities);
        Ok(capabilities)
    }

    /// Each request counts twice at the server, and others share the account (cloudstack.md §2.11).
    fn respect(&self, capabilities: &Capabilities) {
        let (Some(most), Some(interval)) = (capabilities.apilimitmax, capabilities.apilimitinterval) else {
            return;
        };
        // A little less, and hardly any burst: the server counts in fixed windows that ours do not line up with.
        let per_second = 0.95 * ((most / 2).max(1) as f64) / (interval.max(1) as f64);
        let mut settings = self.shared.settings.clone();
        if per_second >= settings.rate.per_second {
            return;
        }
        settings.rate.per_second = per_second;
        settings.rate.burst = (per_second as u32 / 10).max(1);
        let current = self.shared.http.load();
        if current.rate() == settings.rate {
            return;
        }
        match HttpClient::new(
            self.shared.clock.clone(),
            settings,
            self.shared.redactor.clone(),
            self.shared.metrics.clone(),
        ) {
            Ok(http) => {
                tracing::info!(
                    per_second,
                    "CloudStack limits the rate of requests; keeping to half of it"
                );
                self.shared.http.store(Arc::new(http));
            }
            Err(error) => tracing::warn!(%error, "the announced rate limit cannot be followed"),
        }
    }

    async fn send(&self, request: &Request, priority: Priority, method: Option<Method>) -> Result<Content, ApiError> {
        self.send_with(request, priority, method, self.shared.skew.freshness())
            .await
    }

    async fn send_with(
        &self,
        request: &Request,
        priority: Priority,
        method: Option<Method>,
        freshness: Freshness,
    ) -> Result<Content, ApiError> {
        let endpoint = Endpoint {
            name: request.command.to_owned(),
            safety: if request.is_read() {
                Safety::Repeatable
            } else {
                Safety::Unrepeatable
            },
            lane: match priority {
                Priority::Termination => Lane::Release,
                Priority::Launch => Lane::Urgent,
                Priority::Discovery => Lane::Background,
            },
            timeout: None,
        };
        let http = self.shared.http.load_full();
        let started = self.shared.clock.now();
        let answer = http
            .send(&endpoint, |client| self.build(client, request, method, freshness))
            .await;
        let result = match answer {
            Ok(answer) => {
                self.shared.skew.note_date(&answer.headers, self.shared.clock.now());
                let read = interpret(request.command, answer.status.as_u16(), &answer.body);
                if read.is_ok() {
                    *self.shared.answered_at.lock() = Some(self.shared.clock.now());
                }
                read.map_err(|error| self.redacted(error))
            }
            Err(error) => Err(error.into()),
        };
        let took = self.shared.clock.since(started);
        self.shared.metrics.answered(request.command, &result, took);
        if let Err(error) = &result {
            tracing::debug!(command = request.command, %error, "CloudStack call failed");
        }
        tracing::trace!(?request, "CloudStack request");
        result
    }

    fn build(
        &self,
        client: &reqwest::Client,
        request: &Request,
        method: Option<Method>,
        freshness: Freshness,
    ) -> Result<reqwest::Request, CloudError> {
        let keys = self.shared.keys.load_full();
        let mut params: Vec<(&str, &str)> = vec![
            ("command", request.command),
            ("response", "json"),
            ("apikey", &keys.api_key),
        ];
        params.extend(request.params());
        let expires;
        if let Freshness::Signed { offset } = freshness {
            let until = later(self.shared.clock.now(), EXPIRY) + offset;
            expires = until.strftime("%Y-%m-%dT%H:%M:%S+0000").to_string();
            params.push(("signatureversion", "3"));
            params.push(("expires", &expires));
        }
        let signature = signing::sign(&signing::canonical(params.iter().copied()), &keys.secret_key);
        params.push(("signature", &signature));
        let wire = params::wire(params.iter().copied());
        let method = method.unwrap_or(if request.is_read() && wire.len() <= LONGEST_QUERY {
            Method::Get
        } else {
            Method::Post
        });
        let built = match method {
            Method::Get => {
                let mut url = keys.url.clone();
                url.set_query(Some(&wire));
                client.get(url)
            }
            Method::Post => client
                .post(keys.url.clone())
                .header("content-type", "application/x-www-form-urlencoded; charset=utf-8")
                .body(wire),
        };
        built
            .build()
            .map_err(|error| CloudError::invalid(format!("the request cannot be built: {}", error.without_url())))
    }

    fn redacted(&self, error: ApiError) -> ApiError {
        match error {
            ApiError::Refused(mut failure) => {
                failure.text = self.shared.redactor.redact(&failure.text);
                ApiError::Refused(failure)
            }
            other => other,
        }
    }

    /// After a 401: finds out whether the clock is to blame. True if the request is worth sending again.
    async fn learn_skew(&self, request: &Request, priority: Priority) -> bool {
        if self.shared.skew.learn_from_date() {
            return true;
        }
        if !request.is_read() || self.shared.skew.freshness() == Freshness::Unsigned {
            return false;
        }
        // Without a Date header only a request that never expires can tell a wrong clock from wrong keys.
        let without = self.send_with(request, priority, None, Freshness::Unsigned).await;
        let proven = !matches!(&without, Err(error) if error.class() == Some(&Class::Auth));
        if proven && without.is_ok() {
            tracing::warn!(
                "the clock of this machine differs from CloudStack's; requests go without expiry until it is known"
            );
            self.shared.skew.give_up_expiry();
            return true;
        }
        false
    }
}

/// What an answer to `command` says.
///
/// # Errors
/// The failure that it tells, or that it is not an answer of CloudStack's API.
pub fn interpret(command: &'static str, status: u16, body: &[u8]) -> Result<Content, ApiError> {
    if let Some(content) = envelope::open(body) {
        return match content.failure(command) {
            Some(failure) => Err(ApiError::Refused(failure)),
            None => Ok(content),
        };
    }
    let refused = |text: String, class: Class| {
        Err(ApiError::Refused(Failure {
            command: command.to_owned(),
            code: status,
            text,
            class,
            left_behind: Vec::new(),
        }))
    };
    let is_read = Request::new(command).is_read();
    // Not an API answer: the servlet container, or a proxy in front of it.
    match status {
        404 | 413 | 414 if !is_read => refused(
            "the request is larger than the server takes; shorten the user data".to_owned(),
            Class::UserDataTooLong,
        ),
        502 | 504 if !is_read => Err(ApiError::Unknown(format!("{command}: HTTP {status} from a proxy"))),
        429 => refused(
            "HTTP 429 from a proxy".to_owned(),
            Class::Throttled(Duration::from_secs(1)),
        ),
        500..=599 => refused(format!("HTTP {status} without an answer of the API"), Class::Transient),
        _ => Err(ApiError::Unreadable {
            command: command.to_owned(),
            reason: format!(
                "HTTP {status} with a body that is not CloudStack's; check CLOUDSTACK_API_URL, it usually ends in /client/api"
            ),
        }),
    }
}

/// A list that was read in pages.
struct Paged<T> {
    /// Each once.
    items: Vec<T>,
    pages: u32,
    /// By the last page.
    count: usize,
}

/// Objects that a list can be checked by.
pub trait Identified {
    fn identity(&self) -> Cow<'_, str>;
}

macro_rules! identified {
    ($($kind:ty: $field:ident),+ $(,)?) => {
        $(impl Identified for $kind {
            fn identity(&self) -> Cow<'_, str> {
                Cow::Borrowed(&self.$field)
            }
        })+
    };
}
identified!(
    model::Zone: id,
    model::ServiceOffering: id,
    model::DiskOffering: id,
    model::Network: id,
    model::AffinityGroup: id,
    model::AffinityGroupType: kind,
    model::SecurityGroup: id,
    model::SshKeyPair: name,
    model::RegisteredUserData: id,
    model::Project: id,
    model::Account: id,
    model::VirtualMachine: id,
    model::Volume: id,
);

/// Templates are listed once per zone.
impl Identified for model::Template {
    fn identity(&self) -> Cow<'_, str> {
        Cow::Owned(format!("{}/{}", self.id, self.zoneid.as_deref().unwrap_or_default()))
    }
}

fn distinct<T: Identified>(items: &[T]) -> usize {
    let ids: BTreeSet<Cow<'_, str>> = items.iter().map(Identified::identity).collect();
    ids.len()
}

pub(crate) fn unreadable(request: &Request, error: &serde_json::Error) -> ApiError {
    ApiError::Unreadable {
        command: request.command.to_owned(),
        reason: error.to_string(),
    }
}

impl Keys {
    fn teach(&self, redactor: &Redactor) {
        redactor.add(&self.secret_key);
        redactor.add(&SecretString::from(self.api_key.clone()));
    }

    /// Whether both are the same, in constant words rather than constant time: nothing is guarded by it.
    pub fn same_as(&self, other: &Self) -> bool {
        self.url == other.url
            && self.api_key == other.api_key
            && self.secret_key.expose_secret() == other.secret_key.expose_secret()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("url", &self.url.as_str())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("keys", &self.keys())
            .finish_non_exhaustive()
    }
}

/// The API's address from what users write: both the host alone and the whole path work (cloudstack.md §2.1).
///
/// # Errors
/// A sentence about what is wrong with it.
pub fn api_url(text: &str) -> Result<Url, String> {
    let mut url: Url = text
        .trim()
        .parse()
        .map_err(|error| format!("CLOUDSTACK_API_URL is not a URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("CLOUDSTACK_API_URL must start with https:// or http:// and name a host".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("CLOUDSTACK_API_URL must not have a query or a fragment".to_owned());
    }
    if matches!(url.path(), "" | "/") {
        url.set_path("/client/api");
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_alone_and_the_whole_address_are_the_same_api() {
        let short = api_url(" https://x.example ").expect("a URL");
        assert_eq!(short, api_url("https://x.example/client/api").expect("a URL"));
        assert_eq!(api_url("https://x/other/api").expect("a URL").path(), "/other/api");
        assert!(api_url("https://x/?a=b").is_err());
        assert!(api_url("ftp://x").is_err());
    }
}
