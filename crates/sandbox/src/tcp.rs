//! The second door: the API server on a TCP port, for kubectl and browsers.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use axum::Router;
use axum::body::Body;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::http::Http;

/// An API server that listens; dropping it closes the port.
#[derive(Debug)]
pub struct TcpServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

/// Whether browsers of another origin may read the answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cors {
    /// As a real API server: no CORS headers, OPTIONS is refused.
    #[default]
    Off,
    /// Pages of this origin may; `*` stands for all.
    Allow(String),
}

impl TcpServer {
    pub(crate) async fn start(http: Http, address: SocketAddr, cors: Cors) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let router = Router::new().fallback(move |request: Request<Body>| answer(http.clone(), cors.clone(), request));
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the sandbox's API server stopped listening");
            }
        });
        Ok(Self { address, task })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A kubeconfig for this server, without credentials: every caller may do everything.
    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: sandbox\nclusters:\n- name: sandbox\n  cluster:\n    \
             server: {}\ncontexts:\n- name: sandbox\n  context:\n    cluster: sandbox\n    namespace: default\n    \
             user: sandbox\nusers:\n- name: sandbox\n  user: {{}}\n",
            self.url()
        )
    }

    /// Writes the kubeconfig to a file.
    pub fn write_kubeconfig(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.kubeconfig())
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(http: Http, cors: Cors, request: Request<Body>) -> Response<Body> {
    let Cors::Allow(origin) = cors else {
        return serve(&http, request).await;
    };
    let mut response = if request.method() == Method::OPTIONS {
        let mut preflight = Response::new(Body::empty());
        *preflight.status_mut() = StatusCode::NO_CONTENT;
        preflight
    } else {
        serve(&http, request).await
    };
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    set(header::ACCESS_CONTROL_ALLOW_ORIGIN, &origin);
    set(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        "GET, POST, PUT, PATCH, DELETE, OPTIONS",
    );
    set(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        "Content-Type, Accept, Authorization",
    );
    response
}

async fn serve(http: &Http, request: Request<Body>) -> Response<Body> {
    match http.serve(request).await {
        Ok(response) => response,
        // A body that breaks makes the connection break, which is what the fault asks for.
        Err(cut) => Response::new(Body::from_stream(futures::stream::once(async move {
            Err::<bytes::Bytes, _>(cut)
        }))),
    }
}
