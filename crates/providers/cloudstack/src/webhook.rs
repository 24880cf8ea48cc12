//! Warns whoever writes a CloudStackNodeClass of what CloudStack does not have (cloudstack.md §5.4).
//!
//! The API server has checked the rules of the CRD before it asks here, so there is nothing to refuse: neither an outage of
//! CloudStack nor one of this process keeps anybody from writing a class. The same sentences are on the class later.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use karpenter_cloud::http::install_crypto_provider;
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

use crate::{
    node_class::CloudStackNodeClass,
    provider::{CloudStackProvider, Shared},
};

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

impl CloudStackProvider {
    /// Serves the webhook where the settings ask for it, in this process whether it leads or not; answers where.
    ///
    /// # Errors
    /// When its port is taken or its certificate cannot be used.
    pub async fn serve_webhook(&self) -> Result<Option<SocketAddr>, WebhookError> {
        let Some(settings) = &self.shared.settings.webhook else {
            return Ok(None);
        };
        let webhook = Webhook::start(&self.shared, settings).await?;
        let address = webhook.address();
        *self.shared.webhook.lock() = Some(webhook);
        Ok(Some(address))
    }
}

impl Webhook {
    /// Listens; each connection is served with the certificate that is in the folder at that time.
    ///
    /// # Errors
    /// When the port is taken or there is no certificate.
    pub(crate) async fn start(shared: &Arc<Shared>, settings: &WebhookSettings) -> Result<Self, WebhookError> {
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
        let task = tokio::spawn(serve(listener, settings.certificates.clone(), Arc::downgrade(shared)));
        Ok(Self { address, task })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.task.abort();
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

async fn serve(listener: TcpListener, certificates: PathBuf, shared: Weak<Shared>) {
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
                    connection(stream, acceptor, shared.clone()),
                ));
            }
            Err(error) => tracing::warn!(%error, "a question of the API server is not answered"),
        }
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, shared: Weak<Shared>) {
    // Whoever does not trust us ends the handshake.
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let service = service_fn(|request| respond(shared.clone(), request));
    // A second question would have what the first left of the time.
    let served = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the webhook ended early");
    }
}

async fn respond(shared: Weak<Shared>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let plain = |status: StatusCode| {
        let mut response = Response::new(Full::default());
        *response.status_mut() = status;
        Ok(response)
    };
    let body = Limited::new(request.into_body(), LARGEST).collect().await;
    let review = body
        .ok()
        .and_then(|body| serde_json::from_slice::<Value>(&body.to_bytes()).ok());
    let (Some(review), Some(shared)) = (review, shared.upgrade()) else {
        return plain(StatusCode::BAD_REQUEST);
    };
    let Some(answer) = answer(&shared, &review).await else {
        return plain(StatusCode::BAD_REQUEST);
    };
    let mut response = Response::new(Full::from(answer.to_string()));
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}

/// The answer to an AdmissionReview; `None` if it is none.
async fn answer(shared: &Shared, review: &Value) -> Option<Value> {
    let request = review.get("request")?;
    let uid = request["uid"].as_str()?;
    let class: Option<CloudStackNodeClass> = serde_json::from_value(request["object"].clone()).ok();
    let warnings = match class.filter(|class| class.metadata.deletion_timestamp.is_none()) {
        Some(class) => tokio::select! {
            warnings = warnings(shared, &class) => warnings,
            () = shared.clock.sleep(PATIENCE) => Vec::new(),
        },
        None => Vec::new(),
    };
    Some(json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {"uid": uid, "allowed": true, "warnings": warnings},
    }))
}

/// What stands in the way of a class; nothing is said while CloudStack cannot be asked.
async fn warnings(shared: &Shared, class: &CloudStackNodeClass) -> Vec<String> {
    let mut warnings = Vec::new();
    match shared.inventory.resolve(class).await {
        Ok(resolution) => warnings.extend(resolution.problems.into_values().map(|problem| problem.message)),
        Err(error) => tracing::debug!(%error, "nobody is warned of what CloudStack does not have"),
    }
    warnings.extend(class.device_advice().map(str::to_owned));
    let secrets = shared.secrets(class).await;
    warnings.extend(secrets.err().map(|problem| problem.message));
    warnings
}
