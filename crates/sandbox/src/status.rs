//! The `Status` objects with which the API server refuses a request, worded as a real server words them.

use std::fmt;

use serde_json::{Value, json};

pub use crate::crd::FieldError;

/// A refused request: an HTTP code and the `Status` object that explains it.
///
/// kube-rs and kubectl decide by `reason` and `details`, so the constructors below fill those exactly as a real
/// server does.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub details: Box<Details>,
    /// Set on an expired list: a token that continues it inconsistently.
    pub continue_token: Option<String>,
    /// `404 page not found` as plain text, as unknown groups answer.
    pub plain_text: bool,
}

/// `Status.details`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    pub name: String,
    pub group: String,
    pub kind: String,
    pub uid: String,
    pub causes: Vec<Cause>,
    pub retry_after_seconds: u32,
}

/// One `Status.details.causes` entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

impl ApiError {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: Box::default(),
            continue_token: None,
            plain_text: false,
        }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// Credentials that the server does not know.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// A 500 without reason, as a real server answers where nobody thought of a better code.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    /// `pods "x" not found`.
    pub fn not_found(group: &str, plural: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", qualified(plural, group));
        Self::new(404, "NotFound", message).about(group, plural, name)
    }

    /// An unknown resource or version of a group that exists.
    pub fn unknown_resource() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    /// What an unknown group answers: not a Status at all.
    pub fn page_not_found() -> Self {
        Self {
            plain_text: true,
            ..Self::new(404, "NotFound", "404 page not found")
        }
    }

    pub fn method_not_allowed() -> Self {
        Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    pub fn already_exists(group: &str, plural: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", qualified(plural, group));
        Self::new(409, "AlreadyExists", message).about(group, plural, name)
    }

    /// `Operation cannot be fulfilled on …: {why}`.
    pub fn conflict(group: &str, plural: &str, name: &str, why: impl fmt::Display) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            qualified(plural, group)
        );
        Self::new(409, "Conflict", message).about(group, plural, name)
    }

    /// The conflict of a stale resourceVersion.
    pub fn modified(group: &str, plural: &str, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(group, plural, name, why)
    }

    pub fn forbidden(group: &str, plural: &str, name: &str, why: impl fmt::Display) -> Self {
        let message = format!("{} \"{name}\" is forbidden: {why}", qualified(plural, group));
        Self::new(403, "Forbidden", message).about(group, plural, name)
    }

    /// A 422 with one cause per error; `kind` is the Kind, not the plural.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: Vec<FieldError>) -> Self {
        let list = match errors.as_slice() {
            [one] => one.to_string(),
            many => format!(
                "[{}]",
                many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ),
        };
        let message = format!("{} \"{name}\" is invalid: {list}", qualified(kind, group));
        let mut error = Self::new(422, "Invalid", message).about(group, kind, name);
        error.details.causes = errors
            .into_iter()
            .map(|error| Cause {
                reason: error.reason.as_str().into(),
                message: error.message,
                field: error.field,
            })
            .collect();
        error
    }

    /// The 422 of a patch that parses but does not apply.
    pub fn unprocessable_patch() -> Self {
        Self::new(
            422,
            "Invalid",
            "the server rejected our request due to an error in our request",
        )
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn unsupported_media_type(accepted: &str) -> Self {
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        self.details.group = group.into();
        self.details.kind = kind.into();
        self.details.name = name.into();
        self
    }

    pub fn with_cause(mut self, reason: &str, message: impl Into<String>, field: &str) -> Self {
        self.details.causes.push(Cause {
            reason: reason.into(),
            message: message.into(),
            field: field.into(),
        });
        self
    }

    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.details.retry_after_seconds = seconds;
        self
    }

    pub fn is_not_found(&self) -> bool {
        self.code == 404
    }

    pub fn is_conflict(&self) -> bool {
        self.reason == "Conflict"
    }

    pub fn is_already_exists(&self) -> bool {
        self.reason == "AlreadyExists"
    }

    /// The `Status` object.
    pub fn to_value(&self) -> Value {
        let mut details = serde_json::Map::new();
        for (key, text) in [
            ("name", &self.details.name),
            ("group", &self.details.group),
            ("kind", &self.details.kind),
            ("uid", &self.details.uid),
        ] {
            if !text.is_empty() {
                details.insert(key.into(), text.as_str().into());
            }
        }
        if !self.details.causes.is_empty() {
            let causes = self.details.causes.iter().map(|cause| {
                let mut map = serde_json::Map::new();
                for (key, text) in [
                    ("reason", &cause.reason),
                    ("message", &cause.message),
                    ("field", &cause.field),
                ] {
                    if !text.is_empty() {
                        map.insert(key.into(), text.as_str().into());
                    }
                }
                Value::Object(map)
            });
            details.insert("causes".into(), causes.collect());
        }
        if self.details.retry_after_seconds > 0 {
            details.insert("retryAfterSeconds".into(), self.details.retry_after_seconds.into());
        }
        let mut metadata = serde_json::Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".into(), token.as_str().into());
        }
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
            "details": details,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        status
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({} {})", self.message, self.code, self.reason)
    }
}

impl std::error::Error for ApiError {}

/// `plural.group`, or just `plural` in the core group.
pub(crate) fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() {
        name.to_owned()
    } else {
        format!("{name}.{group}")
    }
}
