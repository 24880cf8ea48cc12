//! The query parameters that an API server understands; unknown ones are ignored.

use crate::resource::Resource;
use crate::selector::{FieldSelector, LabelSelector, Selector};
use crate::server::{DeleteOptions, FieldValidation, Propagation, WriteOptions};
use crate::status::{ApiError, FieldError};

/// The parameters of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

/// `resourceVersionMatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    NotOlderThan,
    Exact,
}

/// What a list or watch asks for.
#[derive(Clone, Debug)]
pub(crate) struct ListQuery {
    pub(crate) selector: Selector,
    pub(crate) limit: usize,
    pub(crate) continue_token: String,
    pub(crate) resource_version: String,
    pub(crate) version_match: Option<VersionMatch>,
    pub(crate) send_initial_events: Option<bool>,
    pub(crate) bookmarks: bool,
    pub(crate) timeout_seconds: Option<u64>,
}

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Self {
        let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Self(
            pairs
                .filter(|(key, _)| !key.is_empty())
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        )
    }

    pub(crate) fn get(&self, name: &str) -> &str {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| key == name)
    }

    /// Only `false` and `0` are false; a bare name is true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.has(name) && !matches!(self.get(name), "false" | "0")
    }

    fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        match self.get(name) {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))),
        }
    }

    pub(crate) fn list(&self, resource: &Resource) -> Result<ListQuery, ApiError> {
        let version_match = match self.get("resourceVersionMatch") {
            "" => None,
            "NotOlderThan" => Some(VersionMatch::NotOlderThan),
            "Exact" => Some(VersionMatch::Exact),
            other => {
                let supported = ["", "Exact", "NotOlderThan"];
                return Err(bad_option(
                    "ListOptions",
                    FieldError::not_supported("resourceVersionMatch", &other.into(), supported),
                ));
            }
        };
        Ok(ListQuery {
            selector: Selector {
                labels: LabelSelector::parse(self.get("labelSelector"))?,
                fields: FieldSelector::parse(resource, self.get("fieldSelector"))?,
            },
            limit: self
                .integer("limit")?
                .and_then(|limit| usize::try_from(limit).ok())
                .unwrap_or(0),
            continue_token: self.get("continue").to_owned(),
            resource_version: self.get("resourceVersion").to_owned(),
            version_match,
            send_initial_events: self.has("sendInitialEvents").then(|| self.flag("sendInitialEvents")),
            bookmarks: self.flag("allowWatchBookmarks"),
            timeout_seconds: self
                .integer("timeoutSeconds")?
                .and_then(|seconds| u64::try_from(seconds).ok()),
        })
    }

    /// The options of a create, update or patch; `kind` names them in errors.
    pub(crate) fn write(&self, kind: &str) -> Result<WriteOptions, ApiError> {
        let field_validation = match self.get("fieldValidation") {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let supported = ["", "Ignore", "Strict", "Warn"];
                let error = FieldError::not_supported("fieldValidation", &other.into(), supported);
                return Err(bad_option(kind, error));
            }
        };
        Ok(WriteOptions {
            dry_run: self.dry_run(kind)?,
            field_validation,
            field_manager: self.get("fieldManager").to_owned(),
            repeated_fields: Vec::new(),
        })
    }

    pub(crate) fn dry_run(&self, kind: &str) -> Result<bool, ApiError> {
        match self.get("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(bad_option(
                kind,
                FieldError::not_supported("dryRun", &other.into(), ["All"]),
            )),
        }
    }

    /// Delete options that stand in the query instead of the body.
    pub(crate) fn delete(&self) -> Result<DeleteOptions, ApiError> {
        Ok(DeleteOptions {
            grace_period_seconds: self.integer("gracePeriodSeconds")?,
            propagation: match self.get("propagationPolicy") {
                "" => None,
                policy => Some(propagation(policy)?),
            },
            dry_run: self.dry_run("DeleteOptions")?,
            ..DeleteOptions::default()
        })
    }
}

pub(crate) fn propagation(policy: &str) -> Result<Propagation, ApiError> {
    match policy {
        "Background" => Ok(Propagation::Background),
        "Foreground" => Ok(Propagation::Foreground),
        "Orphan" => Ok(Propagation::Orphan),
        other => Err(bad_option(
            "DeleteOptions",
            FieldError::not_supported(
                "propagationPolicy",
                &other.into(),
                ["Background", "Foreground", "Orphan", "nil"],
            ),
        )),
    }
}

/// A 422 about an option of the request rather than the object.
pub(crate) fn bad_option(kind: &str, error: FieldError) -> ApiError {
    ApiError::invalid("meta.k8s.io", kind, "", vec![error])
}
