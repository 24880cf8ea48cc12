//! What the API answers when it does not do what it was asked, sorted into what we do about it.
//!
//! OVHcloud documents only the answer 200 for its Kubernetes calls, so the sorting is defensive. [`classify`] is the only
//! place that looks at the texts of answers.

use std::time::Duration;

use http::StatusCode;
use karpenter_cloud::{CloudError, http::Answer};
use serde::Deserialize;
use thiserror::Error;

/// A call that failed.
#[derive(Clone, Debug, Error)]
#[error("{method} {path}: {message}{}", query.as_deref().map(|id| format!(" (query {id})")).unwrap_or_default())]
pub struct ApiError {
    pub kind: ApiErrorKind,
    pub method: String,
    /// With its ids taken out.
    pub path: String,
    pub message: String,
    /// OVHcloud's id of the request, which its support asks for.
    pub query: Option<String>,
    pub retry_after: Option<Duration>,
    pub sending: Sending,
}

/// Whether a call that failed was ever on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sending {
    #[default]
    Tried,
    /// It cannot be put into words: an argument or a key is not fit for it.
    Impossible,
}

/// What a failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ApiErrorKind {
    /// No complete answer; a write may have happened.
    Transport,
    /// Our timestamp or signature was not accepted.
    Clock,
    /// The credentials are wrong, revoked or expired.
    Auth,
    /// A limit of the project is reached.
    Quota,
    /// The flavor is out of stock.
    Capacity,
    /// The cluster has as many node pools as it may.
    PoolLimit,
    /// The credentials lack this right.
    NotGranted,
    NotFound,
    Conflict,
    /// The project or service has expired.
    Expired,
    RateLimited,
    /// The pool must say its zone.
    ZoneRequired,
    /// Refused as such.
    Invalid,
    Server,
}

/// An error answer; every field may be missing, and the body may be something else altogether.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Envelope {
    class: Option<String>,
    message: Option<String>,
    #[serde(rename = "errorCode")]
    code: Option<String>,
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    #[serde(rename = "unauthorizedActionsByIAM")]
    iam: Option<String>,
}

impl ApiError {
    /// The failure that an answer other than 2xx tells of.
    pub(super) fn of(answer: &Answer, method: &http::Method, path: &str, retry_after: Option<Duration>) -> Self {
        let envelope: Envelope = serde_json::from_slice(&answer.body).unwrap_or_default();
        let kind = classify(answer.status, &envelope);
        let told = envelope.message.as_deref().filter(|message| !message.is_empty());
        let told = told.map_or_else(|| answer.status.to_string(), str::to_owned);
        let lacking = envelope
            .details
            .and_then(|details| details.iam)
            .filter(|iam| !iam.is_empty());
        let message = match (kind, lacking) {
            (ApiErrorKind::NotGranted, Some(action)) => format!("{told}; the IAM action {action} is not granted"),
            (ApiErrorKind::NotGranted, None) => {
                format!("{told}; the credentials lack the right to {method} {path}")
            }
            _ => format!("{told} (HTTP {})", answer.status.as_u16()),
        };
        Self {
            kind,
            method: method.to_string(),
            path: path.to_owned(),
            message,
            query: Some(answer.request_id.clone()),
            retry_after,
            sending: Sending::Tried,
        }
    }

    pub(super) fn new(kind: ApiErrorKind, method: &http::Method, path: &str, message: impl Into<String>) -> Self {
        Self {
            kind,
            method: method.to_string(),
            path: path.to_owned(),
            message: message.into(),
            query: None,
            retry_after: None,
            sending: Sending::Tried,
        }
    }

    pub(super) fn unsendable(self) -> Self {
        Self {
            sending: Sending::Impossible,
            ..self
        }
    }

    pub fn is(&self, kind: ApiErrorKind) -> bool {
        self.kind == kind
    }

    /// True when the same call may succeed later without anybody changing anything.
    pub fn is_temporary(&self) -> bool {
        use ApiErrorKind as Kind;
        match self.kind {
            Kind::Transport | Kind::Server | Kind::RateLimited | Kind::Conflict | Kind::Clock => true,
            Kind::Auth
            | Kind::Quota
            | Kind::Capacity
            | Kind::PoolLimit
            | Kind::NotGranted
            | Kind::NotFound
            | Kind::Expired
            | Kind::ZoneRequired
            | Kind::Invalid => false,
        }
    }

    /// Whether the question was not answered at all, which is another thing than a refusal.
    pub fn is_unanswered(&self) -> bool {
        matches!(
            self.kind,
            ApiErrorKind::Transport | ApiErrorKind::Server | ApiErrorKind::RateLimited
        )
    }

    /// Whether the call was never sent, because it cannot be put into words.
    pub fn is_unsendable(&self) -> bool {
        self.sending == Sending::Impossible
    }

    /// Whether a write may have taken effect although it failed.
    pub fn is_unknown_outcome(&self) -> bool {
        matches!(self.kind, ApiErrorKind::Transport | ApiErrorKind::Server)
    }
}

fn classify(status: StatusCode, envelope: &Envelope) -> ApiErrorKind {
    use ApiErrorKind as Kind;
    let lower = |text: &Option<String>| text.as_deref().unwrap_or_default().to_lowercase();
    let (class, message, code) = (lower(&envelope.class), lower(&envelope.message), lower(&envelope.code));
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    let number = status.as_u16();

    if matches!(number, 400 | 401)
        && (matches!(code.as_str(), "invalid_signature" | "query_time_out") || says(&["signature", "timestamp"]))
    {
        return Kind::Clock;
    }
    let unknown_key = matches!(code.as_str(), "not_credential" | "invalid_key" | "invalid_credential");
    if number == 401 || (number == 403 && (unknown_key || says(&["application key is invalid"]))) {
        return Kind::Auth;
    }
    if status.is_client_error() {
        // Before the general 403: OVHcloud reports quotas as forbidden.
        if class.contains("quota") || message.contains("quota") {
            return Kind::Quota;
        }
        if says(&[
            "out of stock",
            "not enough capacity",
            "flavor not available",
            "flavor is not available",
        ]) {
            return Kind::Capacity;
        }
        if says(&[
            "maximum number of node pools",
            "maximum of node pools",
            "nodepools limit",
            "node pools limit",
        ]) {
            return Kind::PoolLimit;
        }
    }
    match number {
        403 => Kind::NotGranted,
        404 => Kind::NotFound,
        _ if class.starts_with("client::notfound") => Kind::NotFound,
        409 => Kind::Conflict,
        _ if class.starts_with("client::conflict") => Kind::Conflict,
        460 => Kind::Expired,
        429 => Kind::RateLimited,
        _ if class.contains("toomanyrequests") => Kind::RateLimited,
        400 if says(&["availabilityzones is mandatory"]) => Kind::ZoneRequired,
        400..=499 => Kind::Invalid,
        // A redirect is not followed: the keys are for this host alone.
        300..=399 => Kind::Invalid,
        _ => Kind::Server,
    }
}

impl From<ApiError> for CloudError {
    fn from(error: ApiError) -> Self {
        use ApiErrorKind as Kind;
        let text = error.to_string();
        match error.kind {
            Kind::Transport | Kind::Server | Kind::Conflict => Self::transient(text),
            Kind::RateLimited => Self::throttled(text, error.retry_after),
            Kind::Auth | Kind::Clock => Self::auth(text),
            Kind::NotGranted | Kind::Expired => Self::auth(text),
            Kind::Quota => Self::quota(text),
            Kind::Capacity | Kind::PoolLimit => Self::insufficient_capacity(text),
            // Not `NotFound`: a pool or cluster that is missing says nothing about an instance.
            Kind::NotFound | Kind::ZoneRequired | Kind::Invalid => Self::invalid(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use ApiErrorKind as Kind;
    use serde_json::json;

    use super::*;

    fn check(status: u16, body: &serde_json::Value, expected: Kind) {
        let envelope: Envelope = serde_json::from_value(body.clone()).expect("an envelope");
        let status = StatusCode::from_u16(status).expect("a status");
        assert_eq!(classify(status, &envelope), expected, "{status} {body}");
    }

    #[test]
    fn every_row_of_the_table() {
        check(400, &json!({"errorCode": "QUERY_TIME_OUT"}), Kind::Clock);
        check(401, &json!({"errorCode": "INVALID_SIGNATURE"}), Kind::Clock);
        check(400, &json!({"message": "Invalid signature"}), Kind::Clock);
        check(401, &json!({"class": "Client::Unauthorized"}), Kind::Auth);
        check(403, &json!({"errorCode": "NOT_CREDENTIAL"}), Kind::Auth);
        check(403, &json!({"errorCode": "INVALID_KEY"}), Kind::Auth);
        check(403, &json!({"errorCode": "INVALID_CREDENTIAL"}), Kind::Auth);
        check(403, &json!({"message": "This application key is invalid"}), Kind::Auth);
        check(403, &json!({"class": "Client::Forbidden::QuotaReached"}), Kind::Quota);
        check(403, &json!({"message": "Instance quota exceeded"}), Kind::Quota);
        check(412, &json!({"message": "b3-8 is out of stock"}), Kind::Capacity);
        check(
            403,
            &json!({"message": "You reached the maximum number of node pools"}),
            Kind::PoolLimit,
        );
        check(403, &json!({"errorCode": "NOT_GRANTED_CALL"}), Kind::NotGranted);
        check(403, &json!({}), Kind::NotGranted);
        check(404, &json!({}), Kind::NotFound);
        check(400, &json!({"class": "Client::NotFound::X"}), Kind::NotFound);
        check(409, &json!({}), Kind::Conflict);
        check(400, &json!({"class": "Client::Conflict"}), Kind::Conflict);
        check(460, &json!({}), Kind::Expired);
        check(429, &json!({}), Kind::RateLimited);
        check(400, &json!({"class": "Client::TooManyRequests"}), Kind::RateLimited);
        check(
            400,
            &json!({"message": "availabilityZones is mandatory"}),
            Kind::ZoneRequired,
        );
        check(
            400,
            &json!({"class": "Client::BadRequest", "message": "bad name"}),
            Kind::Invalid,
        );
        check(302, &json!({}), Kind::Invalid);
        check(500, &json!({}), Kind::Server);
        check(502, &json!({"message": "quota service unavailable"}), Kind::Server);
    }

    fn answer(status: u16, body: &str) -> Answer {
        Answer {
            status: StatusCode::from_u16(status).expect("a status"),
            headers: http::HeaderMap::new(),
            body: body.to_owned().into(),
            request_id: "EU.ext-1".to_owned(),
        }
    }

    #[test]
    fn a_missing_right_is_named_and_the_query_id_told() {
        let body = r#"{"errorCode": "NOT_GRANTED_CALL", "message": "This call has not been granted"}"#;
        let error = ApiError::of(&answer(403, body), &http::Method::PUT, "/x/nodepool/*", None);
        assert_eq!(
            error.to_string(),
            "PUT /x/nodepool/*: This call has not been granted; the credentials lack the right to PUT /x/nodepool/* \
             (query EU.ext-1)"
        );
        let body = r#"{"class": "Client::Forbidden", "message": "no", "details":
            {"unauthorizedActionsByIAM": "publicCloudProject:apiovh:kube/nodepool/edit"}}"#;
        let error = ApiError::of(&answer(403, body), &http::Method::PUT, "/x/nodepool/*", None);
        assert!(error.message.contains("kube/nodepool/edit is not granted"), "{error}");
    }

    #[test]
    fn a_body_that_is_no_envelope_does_no_harm() {
        for body in ["<html>Bad Gateway</html>", "", "null", "[]", "{\"message\": 5}"] {
            let error = ApiError::of(&answer(502, body), &http::Method::GET, "/x", None);
            assert_eq!(error.kind, Kind::Server);
            assert!(error.message.contains("502"), "{error}");
        }
    }
}
