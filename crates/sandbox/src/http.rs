//! The Kubernetes HTTP API on top of [`crate::server::Server`].

mod body;
mod collection;
mod continuation;
mod discovery;
mod duplicates;
mod item;
mod negotiate;
mod openapi;
pub(crate) mod path;
mod query;
mod render;
mod table;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};

use crate::faults::{Faults, Verdict};
use crate::requests::{Attributes, RequestLog};
use crate::resource::{Endpoints, Resource};
use crate::server::Server;
use crate::status::ApiError;
use negotiate::{Accepted, Encoding, View};
use path::{ObjectPath, Target};
use query::Query;

/// The API server as a service; clones share everything.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    pub(crate) server: Arc<Server>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) requests: Arc<RequestLog>,
}

/// Everybody may do everything, but a token is wrong in any case: the sandbox issues none.
fn check_credentials(headers: &HeaderMap) -> Result<(), ApiError> {
    let credentials = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    match credentials.and_then(|text| text.split_first_chunk::<7>()) {
        Some((scheme, _)) if scheme.eq_ignore_ascii_case(b"bearer ") => Err(ApiError::unauthorized()),
        Some(_) | None => Ok(()),
    }
}

/// The connection broke before an answer came: only injected faults do this.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the connection to the API server was cut by an injected fault")]
pub(crate) struct Disconnected;

/// One request, read and understood.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) query: Query,
    pub(crate) accepted: Accepted,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
    pub(crate) path: ObjectPath,
    pub(crate) resource: Arc<Resource>,
}

/// An answer before it is encoded.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: AnswerBody,
    pub(crate) warnings: Vec<String>,
    pub(crate) content_type: Option<&'static str>,
}

pub(crate) enum AnswerBody {
    Json(Bytes),
    Text(String),
    Stream(Body),
}

impl Answer {
    pub(crate) fn json(code: u16, body: Bytes) -> Self {
        Self {
            code,
            body: AnswerBody::Json(body),
            warnings: Vec::new(),
            content_type: None,
        }
    }

    pub(crate) fn value(code: u16, value: &Value) -> Self {
        Self::json(code, value.to_string().into())
    }

    pub(crate) fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings = warnings;
        self
    }
}

impl Http {
    /// Answers a request; fails only if an injected fault cuts the connection.
    pub(crate) async fn serve<B>(&self, request: Request<B>) -> Result<Response<Body>, Disconnected>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let busy = self.server.progress.busy();
        let (parts, body) = request.into_parts();
        let query = Query::parse(parts.uri.query());
        let target = Target::parse(parts.uri.path());
        let attributes = Attributes::of(&parts.method, &target, query.flag("watch"), &parts.headers);
        match self.faults.judge(&attributes, &self.server) {
            Verdict::Pass => {}
            Verdict::Disconnect => return Err(Disconnected),
            Verdict::Fail(error) => {
                self.requests.record(&attributes, error.code, &self.faults);
                return Ok(encode_error(&error));
            }
            Verdict::Delay(delay) => tokio::time::sleep(delay).await,
        }
        let answer = match read_body(body).await {
            Ok(body) => {
                self.answer(&parts.method, &parts.headers, target, query.clone(), body)
                    .await
            }
            Err(error) => Err(error),
        };
        let (code, response) = match answer {
            Ok((answer, encoding)) => (answer.code, encode(answer, encoding, &query)),
            Err(error) => (error.code, encode_error(&error)),
        };
        if self.requests.record(&attributes, code, &self.faults) == Verdict::Disconnect {
            // The write happened, but its author does not live to hear of it.
            return Err(Disconnected);
        }
        drop(busy);
        Ok(response)
    }

    async fn answer(
        &self,
        method: &Method,
        headers: &HeaderMap,
        target: Target,
        query: Query,
        body: Bytes,
    ) -> Result<(Answer, Encoding), ApiError> {
        check_credentials(headers)?;
        let accept: Vec<&str> = headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect();
        let path = match target {
            Target::Objects(path) => path,
            other => return Ok((self.answer_elsewhere(method, other, &accept.join(","))?, Encoding::Json)),
        };
        if !matches!(
            *method,
            Method::GET | Method::POST | Method::PUT | Method::PATCH | Method::DELETE
        ) {
            return Err(ApiError::method_not_allowed());
        }
        let resource = self.server.find(&path.group, &path.version, &path.plural)?;
        self.check_scope(method, &path, &resource)?;
        let content_type = headers
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let accepted = negotiate::accept(&accept.join(","))?;
        let encoding = accepted.encoding;
        let call = Call {
            method: method.clone(),
            query,
            accepted,
            content_type,
            body,
            path,
            resource,
        };
        let mut answer = match (&call.path.name, &call.path.subresource) {
            (None, _) => self.collection(&call).await?,
            (Some(name), None) => self.item(&call, name).await?,
            (Some(name), Some(subresource)) => self.subresource(&call, name, subresource)?,
        };
        if let crate::resource::Source::Custom(version) = &call.resource.source {
            answer.warnings.extend(version.deprecation.clone());
        }
        Ok((answer, encoding))
    }

    /// Refuses paths that do not fit the resource's scope.
    fn check_scope(&self, method: &Method, path: &ObjectPath, resource: &Resource) -> Result<(), ApiError> {
        let missing = || {
            if resource.is_custom() {
                ApiError::page_not_found()
            } else {
                ApiError::unknown_resource()
            }
        };
        if path.namespace.is_some() && !resource.is_namespaced() {
            return Err(missing());
        }
        if path.namespace.is_none() && resource.is_namespaced() {
            if path.name.is_some() {
                return Err(missing());
            }
            if *method != Method::GET {
                return Err(ApiError::method_not_allowed());
            }
        }
        if resource.endpoints == Endpoints::CreateOnly && (*method != Method::POST || path.name.is_some()) {
            return Err(ApiError::method_not_allowed());
        }
        Ok(())
    }

    fn answer_elsewhere(&self, method: &Method, target: Target, accept: &str) -> Result<Answer, ApiError> {
        if *method != Method::GET {
            return Err(ApiError::method_not_allowed());
        }
        let aggregated = || negotiate::accept(accept).is_ok_and(|accepted| accepted.view == View::Discovery);
        match target {
            Target::Root => Ok(Answer::value(200, &json!({"paths": discovery::paths(&self.server)}))),
            Target::Version => Ok(Answer::value(200, &version())),
            Target::Health => Ok(Answer {
                body: AnswerBody::Text("ok".into()),
                ..Answer::value(200, &Value::Null)
            }),
            Target::CoreVersions if aggregated() => Ok(discovery::aggregated(&self.server, discovery::Part::Core)),
            Target::Groups if aggregated() => Ok(discovery::aggregated(&self.server, discovery::Part::Groups)),
            Target::CoreVersions => Ok(Answer::value(200, &discovery::core_versions())),
            Target::Groups => Ok(Answer::value(200, &discovery::groups(&self.server))),
            Target::Group(group) => discovery::group(&self.server, &group).map(|value| Answer::value(200, &value)),
            Target::Resources { group, version } => {
                discovery::resources(&self.server, &group, &version).map(|value| Answer::value(200, &value))
            }
            Target::OpenApiIndex => Ok(Answer::value(200, &openapi::index(&self.server))),
            Target::OpenApi(path) => openapi::document(&self.server, &path).map(|value| Answer::value(200, &value)),
            Target::OpenApiV2 | Target::Unknown | Target::Objects(_) => Err(ApiError::page_not_found()),
        }
    }
}

async fn read_body<B>(body: B) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, body::BODY_LIMIT).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(ApiError::new(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {}", body::BODY_LIMIT),
        )),
        Err(error) => Err(ApiError::bad_request(format!("the request's body broke off: {error}"))),
    }
}

fn version() -> Value {
    json!({
        "major": "1", "minor": "36", "gitVersion": "v1.36.3+sandbox", "gitCommit": "sandbox",
        "gitTreeState": "clean", "buildDate": "2026-01-01T00:00:00Z", "goVersion": "none (rust)",
        "compiler": "rustc", "platform": "linux/amd64",
    })
}

fn encode(answer: Answer, encoding: Encoding, query: &Query) -> Response<Body> {
    let Answer {
        code,
        body,
        warnings,
        content_type,
    } = answer;
    let (media, body) = match (body, encoding) {
        (AnswerBody::Text(text), _) => ("text/plain; charset=utf-8", Body::from(text)),
        (AnswerBody::Stream(body), _) => ("application/json", body),
        (AnswerBody::Json(json), Encoding::Yaml) => ("application/yaml", Body::from(to_yaml(&json))),
        (AnswerBody::Json(json), Encoding::Json) if query.flag("pretty") => {
            let value: Value = serde_json::from_slice(&json).unwrap_or_default();
            (
                "application/json",
                Body::from(serde_json::to_vec_pretty(&value).unwrap_or_default()),
            )
        }
        (AnswerBody::Json(json), Encoding::Json) => ("application/json", Body::from(json)),
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(content_type.unwrap_or(media)),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    for warning in warnings {
        let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.append(header::WARNING, value);
        }
    }
    response
}

fn to_yaml(json: &Bytes) -> String {
    let value: Value = serde_json::from_slice(json).unwrap_or_default();
    serde_norway::to_string(&value).unwrap_or_default()
}

/// Writes a refusal as its `Status` object, or as plain text where a real server has none.
fn encode_error(error: &ApiError) -> Response<Body> {
    let answer = if error.plain_text {
        Answer {
            body: AnswerBody::Text(format!("{}\n", error.message)),
            ..Answer::value(error.code, &Value::Null)
        }
    } else {
        Answer::value(error.code, &error.to_value())
    };
    let mut response = encode(answer, Encoding::Json, &Query::default());
    if error.details.retry_after_seconds > 0 {
        response.headers_mut().insert(
            header::RETRY_AFTER,
            HeaderValue::from(error.details.retry_after_seconds),
        );
    }
    response
}

/// How long a request waits for a resourceVersion that has not happened yet.
const FUTURE_VERSION_PATIENCE: Duration = Duration::from_secs(3);

impl Http {
    /// Waits for the store to reach `version`, for a while.
    pub(crate) async fn reach(&self, version: u64) -> Result<(), ApiError> {
        let deadline = tokio::time::Instant::now() + FUTURE_VERSION_PATIENCE;
        while self.server.store.revision() < version {
            if tokio::time::Instant::now() >= deadline {
                let current = self.server.store.revision();
                let message = format!("Timeout: Too large resource version: {version}, current: {current}");
                return Err(ApiError::new(504, "Timeout", message)
                    .with_cause("ResourceVersionTooLarge", "Too large resource version", "")
                    .retry_after(1));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}
