//! A validating webhook: the API server asks over TLS before it stores an object, and a provider answers.
//!
//! Neither an outage of the cloud nor one of this process keeps anybody from writing: who answers late, or not at all, allows.

use std::{
    convert::Infallible,
    fmt, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use crate::{clock::Clock, http::install_crypto_provider};

/// Judges objects that are about to be stored.
#[async_trait]
pub trait Reviewer: Send + Sync + 'static {
    /// What is to be said of an object; `request` is that of an AdmissionReview, with `object` and, of a change, `oldObject`.
    async fn review(&self, request: &Value) -> Judgement;
}

/// What is said of an object. It is stored if nothing is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    pub refusals: Vec<String>,
    pub warnings: Vec<String>,
}

/// Where the webhook listens, and with what it proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    pub port: u16,
    /// A mounted Secret of TLS: `tls.crt` and `tls.key`.
    pub certificates: PathBuf,
}

/// Why the webhook cannot be served.
#[derive(Debug, Error)]
pub enum WebhookError {
    #[error("port {port} of the webhook cannot be listened on: {source}")]
    Port { port: u16, source: io::Error },
    #[error("the certificate of the webhook in {} cannot be used: {reason}", .folder.display())]
    Certificate { folder: PathBuf, reason: String },
}

/// A webhook that is served until it is dropped.
#[derive(Debug)]
pub struct Webhook {
    address: SocketAddr,
    task: JoinHandle<()>,
}

/// The API server stores objects of half as much at most, and sends old and new together.
const LARGEST: usize = 3 << 20;
/// Connections at a time; an API server has a few, and others must not take all memory.
const CONNECTIONS: usize = 16;
/// From the first byte to the last, whatever is asked meanwhile; whoever is not done asks again.
const LONGEST: Duration = Duration::from_secs(10);
/// After a connection that could not be taken, as when there is no file descriptor left.
const PAUSE: Duration = Duration::from_secs(1);
/// The API server waits five seconds; no warning is worth more.
const PATIENCE: Duration = Duration::from_secs(4);

impl Webhook {
    /// Listens; each connection is served with the certificate that is in the folder at that time.
    ///
    /// # Errors
    /// When the port is taken or there is no certificate.
    pub async fn start(
        reviewer: Weak<dyn Reviewer>,
        clock: Clock,
        settings: &WebhookSettings,
    ) -> Result<Self, WebhookError> {
        install_crypto_provider();
        acceptor(&settings.certificates)?;
        let port = settings.port;
        let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
            Ok(listener) => Ok(listener),
            // No IPv6 on this machine.
            Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        };
        let listener = listener.map_err(|source| WebhookError::Port { port, source })?;
        let address = listener.local_addr();
        let address = address.map_err(|source| WebhookError::Port { port, source })?;
        let asked = Asked { reviewer, clock };
        let task = tokio::spawn(serve(listener, settings.certificates.clone(), asked));
        Ok(Self { address, task })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The webhook of a provider, if it serves one.
#[derive(Debug, Default)]
pub struct WebhookOfProvider(Mutex<Option<Webhook>>);

impl WebhookOfProvider {
    /// Serves it where the settings ask for it, in this process whether it leads or not; answers where.
    ///
    /// # Errors
    /// When its port is taken or its certificate cannot be used.
    pub async fn serve<R: Reviewer>(
        &self,
        reviewer: &Arc<R>,
        clock: Clock,
        settings: Option<&WebhookSettings>,
    ) -> Result<Option<SocketAddr>, WebhookError> {
        let Some(settings) = settings else {
            return Ok(None);
        };
        let reviewer: Arc<dyn Reviewer> = reviewer.clone();
        let webhook = Webhook::start(Arc::downgrade(&reviewer), clock, settings).await?;
        let address = webhook.address();
        *self.0.lock() = Some(webhook);
        Ok(Some(address))
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Who is asked.
#[derive(Clone)]
struct Asked {
    reviewer: Weak<dyn Reviewer>,
    clock: Clock,
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").finish_non_exhaustive()
    }
}

fn acceptor(folder: &Path) -> Result<TlsAcceptor, WebhookError> {
    let unusable = |reason: String| WebhookError::Certificate {
        folder: folder.to_owned(),
        reason,
    };
    let chain = CertificateDer::pem_file_iter(folder.join("tls.crt"))
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable(format!("tls.crt: {error}")))?;
    let key = PrivateKeyDer::from_pem_file(folder.join("tls.key"));
    let key = key.map_err(|error| unusable(format!("tls.key: {error}")))?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error: rustls::Error| unusable(error.to_string()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve(listener: TcpListener, certificates: PathBuf, asked: Asked) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        // The next one waits in the queue of the port.
        if connections.len() >= CONNECTIONS {
            connections.join_next().await;
        }
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the webhook cannot take a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        match acceptor(&certificates) {
            Ok(acceptor) => {
                connections.spawn(tokio::time::timeout(
                    LONGEST,
                    connection(stream, acceptor, asked.clone()),
                ));
            }
            Err(error) => tracing::warn!(%error, "a question of the API server is not answered"),
        }
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, asked: Asked) {
    // Whoever does not trust us ends the handshake.
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let service = service_fn(|request| respond(asked.clone(), request));
    // A second question would have what the first left of the time.
    let served = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the webhook ended early");
    }
}

async fn respond(asked: Asked, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let plain = |status: StatusCode| {
        let mut response = Response::new(Full::default());
        *response.status_mut() = status;
        Ok(response)
    };
    let body = Limited::new(request.into_body(), LARGEST).collect().await;
    let review = body
        .ok()
        .and_then(|body| serde_json::from_slice::<Value>(&body.to_bytes()).ok());
    let (Some(review), Some(reviewer)) = (review, asked.reviewer.upgrade()) else {
        return plain(StatusCode::BAD_REQUEST);
    };
    let Some(answer) = answer(&*reviewer, &asked.clock, &review).await else {
        return plain(StatusCode::BAD_REQUEST);
    };
    let mut response = Response::new(Full::from(answer.to_string()));
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}

/// The answer to an AdmissionReview; `None` if it is none.
async fn answer(reviewer: &dyn Reviewer, clock: &Clock, review: &Value) -> Option<Value> {
    let request = review.get("request")?;
    let uid = request["uid"].as_str()?;
    let judgement = if request["object"]["metadata"]["deletionTimestamp"].is_null() {
        tokio::select! {
            judgement = reviewer.review(request) => judgement,
            () = clock.sleep(PATIENCE) => Judgement::default(),
        }
    } else {
        Judgement::default()
    };
    let mut response = json!({
        "uid": uid, "allowed": judgement.refusals.is_empty(), "warnings": judgement.warnings,
    });
    if !judgement.refusals.is_empty() {
        response["status"] = json!({"code": 422, "reason": "Invalid", "message": judgement.refusals.join("; ")});
    }
    Some(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}
