//! `/healthz` and `/readyz`: named checks, each also on a path of its own (api.md §4.4).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::FutureExt;
use futures::future::BoxFuture;

/// A probe may take this long; kubelets give up after a second by default, so it is only a bound.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a check failed.
pub type Unready = String;

type Check = Box<dyn Fn() -> BoxFuture<'static, Result<(), Unready>> + Send + Sync>;

/// The readiness checks of the process.
#[derive(Default)]
pub struct Readiness {
    checks: Vec<(&'static str, Check)>,
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.checks.iter().map(|(name, _)| name))
            .finish()
    }
}

impl Readiness {
    /// Checks with `check` whenever the probe is asked; `name` is its path below `/readyz`.
    pub fn with<F>(mut self, name: &'static str, check: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), Unready>> + Send + 'static,
    {
        self.checks.push((name, Box::new(move || check().boxed())));
        self
    }

    /// The probe endpoints.
    pub fn router(self) -> Router {
        Router::new()
            .route("/healthz", get(|| async { "ok" }))
            .route(
                "/healthz/{check}",
                get(|Path(check): Path<String>| async move { ping_only(&check) }),
            )
            .route("/readyz", get(all))
            .route("/readyz/{check}", get(one))
            .with_state(Arc::new(self))
    }
}

fn ping_only(check: &str) -> Response {
    if check == "ping" || check == "healthz" {
        "ok".into_response()
    } else {
        StatusCode::NOT_FOUND.into_response()
    }
}

async fn all(State(readiness): State<Arc<Readiness>>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let pairs = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let verbose = pairs().any(|(key, _)| key == "verbose");
    let excluded: Vec<&str> = pairs()
        .filter(|(key, _)| *key == "exclude")
        .map(|(_, value)| value)
        .collect();
    let wanted = readiness.checks.iter().filter(|(name, _)| !excluded.contains(name));
    let outcomes =
        futures::future::join_all(wanted.map(|(name, check)| async move { (*name, bounded(check).await) })).await;
    let failed = outcomes.iter().any(|(_, outcome)| outcome.is_err());
    if !failed && !verbose {
        return "ok".into_response();
    }
    let mut text: String = outcomes.iter().map(|(name, outcome)| line(name, outcome)).collect();
    text.push_str(if failed {
        "readyz check failed\n"
    } else {
        "readyz check passed\n"
    });
    let status = if failed {
        StatusCode::INTERNAL_SERVER_ERROR
    } else {
        StatusCode::OK
    };
    (status, text).into_response()
}

async fn one(State(readiness): State<Arc<Readiness>>, Path(name): Path<String>) -> Response {
    let Some((_, check)) = readiness.checks.iter().find(|(check, _)| *check == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    match bounded(check).await {
        Ok(()) => "ok".into_response(),
        Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{name} failed: {why}\n")).into_response(),
    }
}

async fn bounded(check: &Check) -> Result<(), Unready> {
    tokio::time::timeout(CHECK_TIMEOUT, check())
        .await
        .unwrap_or_else(|_| Err("no answer in time".to_owned()))
}

fn line(name: &str, outcome: &Result<(), Unready>) -> String {
    match outcome {
        Ok(()) => format!("[+]{name} ok\n"),
        Err(why) => format!("[-]{name} failed: {why}\n"),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use http::Request;
    use tower::ServiceExt;

    use super::*;

    async fn ask(path: &str) -> (u16, String) {
        let readiness = Readiness::default()
            .with("readyz", || async { Ok(()) })
            .with("crd", || async { Err("NodePool is not installed".to_owned()) });
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = readiness.router().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 10_000).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn liveness_does_not_depend_on_readiness() {
        assert_eq!(ask("/healthz").await, (200, "ok".to_owned()));
    }

    #[tokio::test]
    async fn readiness_names_what_failed() {
        let (status, text) = ask("/readyz").await;
        assert_eq!(status, 500);
        assert_eq!(
            text,
            "[+]readyz ok\n[-]crd failed: NodePool is not installed\nreadyz check failed\n"
        );
    }

    #[tokio::test]
    async fn checks_can_be_left_out_asked_alone_and_listed() {
        assert_eq!(ask("/readyz?exclude=crd").await, (200, "ok".to_owned()));
        assert_eq!(ask("/readyz/readyz").await, (200, "ok".to_owned()));
        assert_eq!(ask("/readyz/crd").await.0, 500);
        assert_eq!(ask("/readyz/other").await.0, 404);
        assert_eq!(
            ask("/readyz?verbose&exclude=crd").await.1,
            "[+]readyz ok\nreadyz check passed\n"
        );
    }
}
