//! Asks for an API key: the first half of a conversation whose second half a person has in a browser.

use std::fmt;

use http::Method;
use karpenter_cloud::{
    CloudError,
    clock::Clock,
    http::{Endpoint, HttpClient, HttpError, HttpSettings, Redactor, Unobserved},
};
use serde::{Deserialize, Serialize};

use super::{ApiEndpoint, ApiError, ApiErrorKind, model::AccessRule};

/// A key that is good once somebody has agreed to its rules.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingKey {
    consumer_key: String,
    /// Where to agree.
    pub validation_url: String,
}

/// The request; only the application says who it is.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Asked<'a> {
    access_rules: &'a [AccessRule],
    redirection: Option<&'a str>,
    #[serde(rename = "allowedIPs", skip_serializing_if = "<[String]>::is_empty")]
    allowed_ips: &'a [String],
}

const PATH: &str = "/auth/credential";

/// Asks for a key with these rules, usable from these addresses (any, if none is named).
///
/// # Errors
/// When the API cannot be asked, or does not know the application.
pub async fn request_key(
    clock: Clock,
    endpoint: &ApiEndpoint,
    application_key: &str,
    rules: &[AccessRule],
    allowed_ips: &[String],
) -> Result<PendingKey, ApiError> {
    let failed = |kind, message: String| ApiError::new(kind, &Method::POST, PATH, message);
    let settings = HttpSettings {
        user_agent: concat!("karpenter-rs/", env!("CARGO_PKG_VERSION")).to_owned(),
        ..HttpSettings::default()
    };
    let http = HttpClient::new(clock, settings, Redactor::default(), Unobserved)
        .map_err(|error| failed(ApiErrorKind::Invalid, error.to_string()))?;
    let body = Asked {
        access_rules: rules,
        redirection: None,
        allowed_ips,
    };
    let body = serde_json::to_vec(&body).expect("a request is plain data");
    let url = endpoint.url(PATH);
    let call = Endpoint::write(PATH);
    let sent = http.send(&call, |client| {
        let request = client
            .post(&url)
            .header("x-ovh-application", application_key)
            .header("content-type", "application/json;charset=utf-8")
            .body(body.clone());
        request
            .build()
            .map_err(|error| CloudError::invalid(format!("{PATH}: {}", error.without_url())))
    });
    let answer = sent.await.map_err(|error| match &error {
        HttpError::Build(_) => failed(ApiErrorKind::Invalid, error.to_string()).unsendable(),
        HttpError::NotSent { .. } | HttpError::Unknown { .. } | HttpError::TooLong { .. } => {
            failed(ApiErrorKind::Transport, error.to_string())
        }
    })?;
    if !answer.status.is_success() {
        return Err(ApiError::of(&answer, &Method::POST, PATH, None));
    }
    serde_json::from_slice(&answer.body)
        .map_err(|_| failed(ApiErrorKind::Server, "the answer is not what was expected".to_owned()))
}

impl PendingKey {
    /// The key itself, to be stored by whoever asked for it.
    pub fn consumer_key(&self) -> &str {
        &self.consumer_key
    }
}

impl fmt::Debug for PendingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingKey")
            .field("validation_url", &self.validation_url)
            .finish_non_exhaustive()
    }
}
