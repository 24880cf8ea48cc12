//! What a refusal of BizFly's API means, by its status first and by its text only where the status leaves it open (§1.9).

use std::time::Duration;

use http::StatusCode;
use karpenter_cloud::{
    CloudError,
    http::{Answer, Endpoint, HttpError, Redactor, Safety, retry::retry_after},
};
use serde_json::Value;
use thiserror::Error;

use super::words::Words;

/// Why a call failed.
#[derive(Clone, Debug, Error)]
#[error("{operation}: {message}")]
pub struct ApiError {
    /// The logical name of the call.
    pub operation: String,
    pub class: ErrorClass,
    /// The API's own words where it had any, without secrets.
    pub message: String,
    pub retry_after: Option<Duration>,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorClass {
    /// Try again later.
    Transient,
    /// Not even asked: the API failed too often just now.
    Unreachable,
    /// The request may have taken effect: look before asking again.
    Ambiguous,
    Invalid,
    /// The credentials are wrong, expired or not allowed to do this.
    Auth,
    Forbidden,
    /// The token is for another project than the configured one.
    ProjectMismatch,
    /// The account has to be paid up.
    Payment,
    /// A limit of the account; smaller requests may pass.
    Quota,
    /// This flavor is sold out here.
    Stock,
    NotFound,
    RateLimited,
    /// Busy or locked.
    Conflict,
    /// The catalogue has no such service in the region.
    ServiceNotInCatalog,
}

/// Longer texts (HTML pages) are cut in messages.
const LONGEST_TEXT: usize = 300;

impl ErrorClass {
    /// The `error_type` label of metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Transient | Self::Unreachable => "server_error",
            Self::Ambiguous => "timeout",
            Self::Invalid => "invalid",
            Self::Auth | Self::Forbidden | Self::ProjectMismatch => "auth",
            Self::Payment => "payment",
            Self::Quota => "quota",
            Self::Stock => "stock",
            Self::NotFound => "not_found",
            Self::RateLimited => "rate_limited",
            Self::Conflict => "conflict",
            Self::ServiceNotInCatalog => "not_found",
        }
    }

    fn of(status: StatusCode, text: &str, safety: Safety, words: &Words) -> Self {
        match status {
            StatusCode::UNAUTHORIZED => Self::Auth,
            StatusCode::PAYMENT_REQUIRED => Self::Payment,
            StatusCode::FORBIDDEN => match words.class_of(text) {
                Some(Self::Quota) => Self::Quota,
                _ => Self::Forbidden,
            },
            StatusCode::NOT_FOUND => Self::NotFound,
            StatusCode::CONFLICT => match words.class_of(text) {
                Some(Self::Stock) => Self::Stock,
                _ => Self::Conflict,
            },
            StatusCode::TOO_MANY_REQUESTS => Self::RateLimited,
            StatusCode::REQUEST_TIMEOUT => Self::after_failure(safety),
            status if status.is_server_error() => Self::after_failure(safety),
            _ => words.class_of(text).unwrap_or(Self::Invalid),
        }
    }

    fn after_failure(safety: Safety) -> Self {
        match safety {
            Safety::Repeatable => Self::Transient,
            Safety::Unrepeatable => Self::Ambiguous,
        }
    }
}

impl ApiError {
    pub fn new(operation: impl Into<String>, class: ErrorClass, message: impl Into<String>) -> Self {
        Self {
            operation: operation.into(),
            class,
            message: message.into(),
            retry_after: None,
        }
    }

    /// The error that an answer with a failing status is.
    pub(super) fn of_answer(endpoint: &Endpoint, answer: &Answer, redactor: &Redactor, words: &Words) -> Self {
        let text = text(&answer.body);
        let class = ErrorClass::of(answer.status, &text, endpoint.safety, words);
        let told = if text.is_empty() {
            "no reason was given".to_owned()
        } else {
            redactor.redact(&text)
        };
        let status = answer.status.as_u16();
        let id = &answer.request_id;
        Self {
            operation: endpoint.name.clone(),
            class,
            message: format!("{told} (HTTP {status}, request {id})"),
            retry_after: retry_after(&answer.headers),
        }
    }

    pub(super) fn of_transport(endpoint: &Endpoint, error: HttpError) -> Self {
        let class = match (&error, endpoint.safety) {
            (HttpError::NotSent { .. } | HttpError::Build(_), _) => ErrorClass::Transient,
            (HttpError::Unknown { .. } | HttpError::TooLong { .. }, safety) => ErrorClass::after_failure(safety),
        };
        Self::new(endpoint.name.clone(), class, error.to_string())
    }

    pub fn is_not_found(&self) -> bool {
        self.class == ErrorClass::NotFound
    }

    /// Whether the credentials, not the request, are at fault.
    pub fn is_about_credentials(&self) -> bool {
        matches!(
            self.class,
            ErrorClass::Auth | ErrorClass::Forbidden | ErrorClass::ProjectMismatch
        )
    }
}

impl From<ApiError> for CloudError {
    fn from(error: ApiError) -> Self {
        let message = error.to_string();
        match error.class {
            ErrorClass::Transient | ErrorClass::Unreachable | ErrorClass::Ambiguous | ErrorClass::Conflict => {
                Self::transient(message)
            }
            ErrorClass::Invalid | ErrorClass::ServiceNotInCatalog => Self::invalid(message),
            ErrorClass::Auth | ErrorClass::Forbidden | ErrorClass::ProjectMismatch => Self::auth(message),
            ErrorClass::Payment => Self::create("PaymentRequired", message),
            ErrorClass::Quota => Self::quota(message),
            ErrorClass::Stock => Self::insufficient_capacity(message),
            ErrorClass::NotFound => Self::not_found(message),
            ErrorClass::RateLimited => Self::throttled(message, error.retry_after),
        }
    }
}

/// The words of an error body: `{"message": …}`, a bare JSON string, plain text or a page of HTML.
fn text(body: &[u8]) -> String {
    let told = match serde_json::from_slice::<Value>(body) {
        Ok(Value::String(text)) => text,
        Ok(Value::Object(fields)) => ["message", "error", "detail"]
            .iter()
            .find_map(|key| fields.get(*key).and_then(Value::as_str))
            .map(str::to_owned)
            .unwrap_or_else(|| Value::Object(fields.clone()).to_string()),
        Ok(other) => other.to_string(),
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let flat = told.split_whitespace().collect::<Vec<_>>().join(" ");
    match flat.char_indices().nth(LONGEST_TEXT) {
        Some((end, _)) => format!("{}…", &flat[..end]),
        None => flat,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: u16, body: &str, safety: Safety, class: ErrorClass) {
        let status = StatusCode::from_u16(status).expect("a status");
        assert_eq!(
            ErrorClass::of(status, &text(body.as_bytes()), safety, &Words::default()),
            class,
            "{status} {body}"
        );
    }

    #[test]
    fn the_status_decides_and_the_text_refines() {
        let safe = Safety::Repeatable;
        check(400, r#"{"message": "Invalid image"}"#, safe, ErrorClass::Invalid);
        check(400, r#"{"message": "Flavor is out of stock"}"#, safe, ErrorClass::Stock);
        check(400, r#"{"message": "Vượt quá hạn mức vCPU"}"#, safe, ErrorClass::Quota);
        check(402, "", safe, ErrorClass::Payment);
        check(403, r#""Quota exceeded for cores""#, safe, ErrorClass::Quota);
        check(403, "forbidden", safe, ErrorClass::Forbidden);
        check(404, "<html>quota</html>", safe, ErrorClass::NotFound);
        check(409, r#"{"message": "server is locked"}"#, safe, ErrorClass::Conflict);
        check(429, "", safe, ErrorClass::RateLimited);
    }

    #[test]
    fn a_failure_of_an_unrepeatable_request_is_ambiguous() {
        for status in [408, 500, 502, 503, 504] {
            check(status, "", Safety::Repeatable, ErrorClass::Transient);
            check(status, "", Safety::Unrepeatable, ErrorClass::Ambiguous);
        }
    }

    #[test]
    fn every_form_of_error_body_keeps_its_text() {
        assert_eq!(text(br#"{"message": "no"}"#), "no");
        assert_eq!(text(br#""bare""#), "bare");
        assert_eq!(text(b"<html>\n <b>502</b> </html>"), "<html> <b>502</b> </html>");
        assert_eq!(text("Không tìm thấy".as_bytes()), "Không tìm thấy");
        assert_eq!(text(b""), "");
        assert!(text("x".repeat(5000).as_bytes()).len() < 400);
    }
}
