//! How to reach a cloud: timeouts, trust, proxy, rate.

use std::{sync::Once, time::Duration};

use thiserror::Error;
use url::Url;

use super::{in_flight::InFlight, rate::RateLimit, retry::RetryPolicy};

/// Settings of an [`HttpClient`](super::HttpClient).
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Of each attempt, unless a request says otherwise.
    pub timeout: Duration,
    pub connect_timeout: Duration,
    pub trust: Trust,
    pub proxy: ProxyChoice,
    pub rate: RateLimit,
    pub retry: RetryPolicy,
    pub user_agent: String,
    /// Longer answers are refused.
    pub longest_body: usize,
    pub connections_per_host: usize,
    /// Headers in which this cloud tells its own id of a request.
    pub answer_id_headers: Vec<&'static str>,
    /// Counts requests on the wire.
    pub in_flight: InFlight,
}

/// Which certificates of the cloud's API are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Those of the machine.
    #[default]
    System,
    /// Those of the machine and of this PEM bundle.
    AlsoBundle(Vec<u8>),
    /// Only those of this PEM bundle.
    OnlyBundle(Vec<u8>),
    /// Any. For test environments; logged as a warning.
    Anything,
}

/// How requests leave the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxyChoice {
    /// `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` of the environment.
    #[default]
    Environment,
    Direct,
    Via(Url),
}

/// Why a client cannot be built.
#[derive(Debug, Error)]
pub enum HttpSettingsError {
    #[error("the CA bundle holds no usable PEM certificate: {0}")]
    CaBundle(String),
    #[error("the proxy {url} cannot be used: {reason}")]
    Proxy { url: String, reason: String },
    #[error("the HTTP client cannot be built: {0}")]
    Client(String),
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(10),
            trust: Trust::default(),
            proxy: ProxyChoice::default(),
            rate: RateLimit {
                per_second: 10.0,
                burst: 20,
            },
            retry: RetryPolicy::default(),
            user_agent: concat!("karpenter/", env!("CARGO_PKG_VERSION")).to_owned(),
            longest_body: 8 * 1024 * 1024,
            connections_per_host: 16,
            answer_id_headers: Vec::new(),
            in_flight: InFlight::default(),
        }
    }
}

impl HttpSettings {
    pub(super) fn connect(&self) -> Result<reqwest::Client, HttpSettingsError> {
        install_crypto_provider();
        let mut builder = reqwest::Client::builder()
            .timeout(self.timeout)
            .connect_timeout(self.connect_timeout)
            .pool_max_idle_per_host(self.connections_per_host)
            .user_agent(&self.user_agent)
            // Following a redirect would re-send a signed request to where the cloud did not ask us to.
            .redirect(reqwest::redirect::Policy::none());
        builder = match &self.trust {
            Trust::System => builder,
            Trust::AlsoBundle(pem) => builder.tls_certs_merge(certificates(pem)?),
            Trust::OnlyBundle(pem) => builder.tls_certs_only(certificates(pem)?),
            Trust::Anything => {
                tracing::warn!("certificates of the cloud API are not verified");
                builder.tls_danger_accept_invalid_certs(true)
            }
        };
        builder = match &self.proxy {
            ProxyChoice::Environment => builder,
            ProxyChoice::Direct => builder.no_proxy(),
            ProxyChoice::Via(url) => {
                let proxy = reqwest::Proxy::all(url.as_str()).map_err(|error| HttpSettingsError::Proxy {
                    url: without_password(url),
                    reason: error.without_url().to_string(),
                })?;
                builder.proxy(proxy)
            }
        };
        builder
            .build()
            .map_err(|error| HttpSettingsError::Client(chain(&error.without_url())))
    }
}

/// Makes ring the process's TLS cryptography. Harmless to repeat, also if somebody else chose already.
pub fn install_crypto_provider() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if rustls::crypto::ring::default_provider().install_default().is_err() {
            tracing::debug!("a TLS provider was installed before");
        }
    });
}

fn certificates(pem: &[u8]) -> Result<Vec<reqwest::Certificate>, HttpSettingsError> {
    let certificates =
        reqwest::Certificate::from_pem_bundle(pem).map_err(|error| HttpSettingsError::CaBundle(chain(&error)))?;
    if certificates.is_empty() {
        return Err(HttpSettingsError::CaBundle("it is empty".to_owned()));
    }
    Ok(certificates)
}

fn without_password(url: &Url) -> String {
    let mut url = url.clone();
    if url.password().is_some() {
        // Only fails for URLs that cannot have a password.
        let _ = url.set_password(Some("***"));
    }
    url.to_string()
}

/// An error with its causes: reqwest's own text says little more than "error sending request".
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes: Vec<String> = std::iter::successors(Some(error), |error| (*error).source())
        .map(ToString::to_string)
        .collect();
    causes.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(settings: HttpSettings) -> Result<(), HttpSettingsError> {
        settings.connect().map(drop)
    }

    #[test]
    fn a_bundle_without_a_certificate_is_refused() {
        let settings = HttpSettings {
            trust: Trust::OnlyBundle(b"nonsense".to_vec()),
            ..HttpSettings::default()
        };
        assert!(matches!(connect(settings), Err(HttpSettingsError::CaBundle(_))));
    }

    #[test]
    fn verification_can_be_switched_off() {
        let settings = HttpSettings {
            trust: Trust::Anything,
            ..HttpSettings::default()
        };
        connect(settings).expect("a client");
    }

    #[test]
    fn the_password_of_a_proxy_is_not_told() {
        let url = "http://me:hunter2@proxy:3128/".parse().expect("a URL");
        assert_eq!(without_password(&url), "http://me:***@proxy:3128/");
    }
}
