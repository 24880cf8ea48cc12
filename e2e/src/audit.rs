//! The API server's audit log: what our replicas asked for, and who asked.

use std::path::Path;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;

/// The part of an audit record that matters here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub(crate) verb: String,
    pub(crate) object_ref: Option<ObjectRef>,
    pub(crate) response_status: Option<ResponseStatus>,
    user: User,
    pub(crate) request_received_timestamp: Timestamp,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ObjectRef {
    pub(crate) resource: Option<String>,
    pub(crate) subresource: Option<String>,
    pub(crate) name: Option<String>,
    #[serde(default)]
    pub(crate) api_group: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ResponseStatus {
    pub(crate) code: Option<u16>,
}

#[derive(Debug, Deserialize)]
struct User {
    #[serde(default)]
    extra: std::collections::BTreeMap<String, Vec<String>>,
}

pub(crate) fn read(file: &Path) -> Result<Vec<Record>> {
    let log = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    // The API server may be in the middle of its last line.
    let whole = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).context("an audit record that can't be read"))
        .collect()
}

// === impl Record ===

impl Record {
    /// Which token was used.
    pub(crate) fn credential(&self) -> Option<&str> {
        let ids = self.user.extra.get("authentication.kubernetes.io/credential-id")?;
        ids.first().map(String::as_str)
    }

    /// Whether it changes anything that only the leader may change. Every candidate writes to the lease.
    pub(crate) fn is_write(&self) -> bool {
        let lease = self
            .object_ref
            .as_ref()
            .is_some_and(|object| object.resource.as_deref() == Some("leases"));
        !lease && !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    pub(crate) fn describe(&self) -> String {
        let object = self.object_ref.as_ref();
        let part = |text: Option<&String>| text.cloned().unwrap_or_default();
        format!(
            "{} {} {} {}",
            self.request_received_timestamp,
            self.verb,
            part(object.and_then(|object| object.resource.as_ref())),
            part(object.and_then(|object| object.name.as_ref()))
        )
    }
}
