//! Reaches a Kubernetes API server: the HTTP stack under every client of the controller.
//!
//! It does what kube's own does, but for three things: buffers stay small, nothing is repeated behind the caller's back,
//! and a request may carry a [`LastWord`], which is asked when nothing but the socket is left between it and the server.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::{Frame, SizeHint};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

/// How far a connection's buffer may grow, in bytes: two TLS records. Answers of any length stream through it; only the head of one must
/// fit, and those have a few hundred bytes.
const MOST_BUFFERED: usize = 32 * 1024;

/// Connections that a burst left behind are closed when nothing has used them for so long.
const IDLE: Duration = Duration::from_secs(30);

/// A client from a kubeconfig or the pod's service account, without kube's own retries: it would repeat a refused
/// eviction for minutes (sandbox.md §1.10, rule 10), and our queues know better when to try again.
///
/// # Errors
/// When the configuration cannot be turned into a client (certificates, credentials, proxies).
pub fn connect(config: Config) -> Result<Client, kube::Error> {
    refuse_proxy(&config)?;
    let mut connector = TimeoutConnector::new(config.rustls_https_connector()?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let wire: legacy::Client<_, Outgoing> = legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .http1_max_buf_size(MOST_BUFFERED)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_request(Outgoing::of)
        .map_err(BoxError::from)
        .service(wire);
    Ok(Client::new(service, config.default_namespace))
}

/// As kube does when it is built without its proxy features, as here.
fn refuse_proxy(config: &Config) -> Result<(), kube::Error> {
    let Some(url) = &config.proxy_url else {
        return Ok(());
    };
    let proxy_url = Box::new(url.clone());
    Err(match url.scheme_str() {
        Some("socks5") => kube::Error::ProxyProtocolDisabled {
            proxy_url,
            protocol_feature: "kube/socks5",
        },
        Some("http" | "https") => kube::Error::ProxyProtocolDisabled {
            proxy_url,
            protocol_feature: "kube/http-proxy",
        },
        _ => kube::Error::ProxyProtocolUnsupported { proxy_url },
    })
}

/// Whether a request may still be sent, asked when its bytes are about to be written. Put into the request's extensions.
///
/// Between a caller and the socket lie queues, fresh tokens, connections to be made and tasks to be woken. A process that
/// is paused there for a minute goes on as if nothing had been; whoever sends must ask again after all of that.
#[derive(Clone)]
pub struct LastWord(Arc<dyn Fn() -> Result<(), BoxError> + Send + Sync>);

impl LastWord {
    /// The request is sent if `may_go` says so; otherwise its error is among the sources of what the caller gets.
    pub fn new<E: Into<BoxError>>(may_go: impl Fn() -> Result<(), E> + Send + Sync + 'static) -> Self {
        Self(Arc::new(move || may_go().map_err(Into::into)))
    }
}

tokio::task_local! {
    static CURRENT: LastWord;
}

impl LastWord {
    /// Runs `work`, on whose requests this has the last word; those of tasks that it spawns only if they are [`inherited`].
    pub async fn over<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }

    /// Who has the last word on what the present task does.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }
}

/// `work` for a task of its own, on which the present task's [`LastWord`] is kept.
pub fn inherited<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let last_word = LastWord::current();
    async move {
        match last_word {
            Some(last_word) => last_word.over(work).await,
            None => work.await,
        }
    }
}

impl fmt::Debug for LastWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LastWord")
    }
}

/// A request's body, which has the [`LastWord`].
///
/// hyper asks a body for its first bytes after it has put the head into its buffer and before it writes any of that to
/// the socket. On an error it drops the connection with what is buffered, so a request that is refused leaves no trace.
struct Outgoing {
    body: Body,
    /// Until it has been asked.
    last_word: Option<LastWord>,
}

impl Outgoing {
    fn of(request: Request<Body>) -> Request<Self> {
        let (mut parts, body) = request.into_parts();
        let last_word = parts.extensions.remove();
        Request::from_parts(parts, Self { body, last_word })
    }
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(LastWord(may_go)) = &self.last_word {
            if let Err(refusal) = may_go() {
                return Poll::Ready(Some(Err(refusal)));
            }
            self.last_word = None;
        }
        Pin::new(&mut self.body).poll_frame(context).map_err(BoxError::from)
    }

    fn is_end_stream(&self) -> bool {
        self.last_word.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // hyper never polls a body that is known to be empty. One of unknown length is polled, and arrives as no chunks.
        if self.last_word.is_some() && self.body.is_end_stream() {
            return SizeHint::default();
        }
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
