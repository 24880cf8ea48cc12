//! What was asked of the API server: a log of requests that tests can count.

use http::{HeaderMap, Method, header};
use parking_lot::Mutex;

use crate::faults::{Faults, Verdict};
use crate::http::path::{ObjectPath, Target};

/// Who asked for what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: &'static str,
    pub group: String,
    /// The plural; empty for discovery, OpenAPI and health.
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// The `User-Agent`.
    pub agent: String,
}

impl Attributes {
    pub(crate) fn of(method: &Method, target: &Target, watch: bool, headers: &HeaderMap) -> Self {
        let agent = headers
            .get(header::USER_AGENT)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let path = match target {
            Target::Objects(path) => path.clone(),
            _ => ObjectPath::default(),
        };
        let verb = match (method.as_str(), path.name.is_some()) {
            ("GET", _) if watch || path.watch => "watch",
            ("GET", true) => "get",
            ("GET", false) if path.plural.is_empty() => "get",
            ("GET", false) => "list",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", true) => "delete",
            ("DELETE", false) => "deletecollection",
            _ => "",
        };
        Self {
            verb,
            group: path.group,
            resource: path.plural,
            subresource: path.subresource.unwrap_or_default(),
            namespace: path.namespace.unwrap_or_default(),
            name: path.name.unwrap_or_default(),
            agent: agent.to_owned(),
        }
    }

    /// Whether the request means to change something.
    pub fn is_write(&self) -> bool {
        matches!(self.verb, "create" | "update" | "patch" | "delete" | "deletecollection")
    }
}

/// A request that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedRequest {
    pub attributes: Attributes,
    pub code: u16,
}

/// The newest requests are kept up to this many.
const KEPT: usize = 100_000;

/// Every request since the start, or since it was cleared.
#[derive(Debug, Default)]
pub struct RequestLog {
    entries: Mutex<std::collections::VecDeque<LoggedRequest>>,
}

impl RequestLog {
    /// Notes an answered request; injected faults may still take the answer away.
    pub(crate) fn record(&self, attributes: &Attributes, code: u16, faults: &Faults) -> Verdict {
        {
            let mut entries = self.entries.lock();
            if entries.len() == KEPT {
                entries.pop_front();
            }
            entries.push_back(LoggedRequest {
                attributes: attributes.clone(),
                code,
            });
        }
        faults.after(attributes, code)
    }

    /// The requests for which `chosen` holds.
    pub fn matching(&self, chosen: impl Fn(&LoggedRequest) -> bool) -> Vec<LoggedRequest> {
        self.entries
            .lock()
            .iter()
            .filter(|entry| chosen(entry))
            .cloned()
            .collect()
    }

    /// How many requests there were with a verb and a resource (plural).
    pub fn count(&self, verb: &str, resource: &str) -> usize {
        let matches = |entry: &&LoggedRequest| entry.attributes.verb == verb && entry.attributes.resource == resource;
        self.entries.lock().iter().filter(matches).count()
    }

    /// How many requests of a user agent changed something.
    pub fn writes(&self, agent: &str) -> usize {
        let matches =
            |entry: &&LoggedRequest| entry.attributes.is_write() && entry.code < 300 && entry.attributes.agent == agent;
        self.entries.lock().iter().filter(matches).count()
    }

    pub fn clear(&self) {
        self.entries.lock().clear();
    }
}
