//! The HTTP endpoints of the process: metrics (and profiling) on one port, probes on another.

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::Registry;

/// Whether `/debug/pprof/` is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profiling {
    /// Behind `--enable-profiling`.
    On,
    /// The default.
    Off,
}

/// `/metrics` in the Prometheus text format, and profiling where it is on.
pub fn metrics_router(registry: Registry, profiling: Profiling) -> Router {
    let text = move || async move {
        (
            [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
            registry.encode(),
        )
    };
    let router = Router::new().route("/metrics", get(text));
    match profiling {
        Profiling::Off => router,
        Profiling::On => router
            .route("/debug/pprof/", get(|| async { PROFILES }))
            .route("/debug/pprof/cmdline", get(cmdline))
            .route("/debug/pprof/{profile}", get(unsupported)),
    }
}

const PROFILES: &str = "\
/debug/pprof/cmdline   the command line, separated by NUL bytes
CPU and heap profiles are not built into this binary; see what it does with `perf record -g -p <pid>`
and what it holds with the process_resident_memory_bytes metric.
";

async fn cmdline() -> impl IntoResponse {
    std::env::args().collect::<Vec<_>>().join("\0")
}

async fn unsupported() -> impl IntoResponse {
    (StatusCode::NOT_FOUND, PROFILES)
}

/// Serves `router` on all addresses at `port` until `stop` is cancelled.
///
/// # Errors
/// When the port cannot be listened on.
pub async fn listen(port: u16) -> std::io::Result<TcpListener> {
    match TcpListener::bind((std::net::Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => Ok(listener),
        // No IPv6 on this machine.
        Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => {
            TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, port)).await
        }
        Err(error) => Err(error),
    }
}

/// Serves until `stop` is cancelled; an error afterwards ends serving and is logged.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(stop.cancelled_owned())
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "an HTTP endpoint stopped");
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use http::Request;
    use tower::ServiceExt;

    use super::*;
    use crate::clock::Clock;

    async fn status(profiling: Profiling, path: &str) -> (u16, String) {
        let registry = Registry::new(Clock::system());
        registry.counter("karpenter_x_total", "x", []).inc([]);
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = metrics_router(registry, profiling).oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        (
            status,
            String::from_utf8(to_bytes(response.into_body(), 100_000).await.unwrap().to_vec()).unwrap(),
        )
    }

    #[tokio::test]
    async fn metrics_are_served_as_prometheus_text() {
        let (code, text) = status(Profiling::Off, "/metrics").await;
        assert!(code == 200 && text.contains("karpenter_x_total 1"), "{code} {text}");
    }

    #[tokio::test]
    async fn profiling_exists_only_behind_its_flag_and_says_what_it_lacks() {
        assert_eq!(status(Profiling::Off, "/debug/pprof/cmdline").await.0, 404);
        assert_eq!(status(Profiling::On, "/debug/pprof/cmdline").await.0, 200);
        let (code, text) = status(Profiling::On, "/debug/pprof/profile").await;
        assert!(code == 404 && text.contains("perf record"), "{code} {text}");
    }
}
