//! Which certificates and which way out a client of a cloud's API accepts, against real sockets.

use std::sync::Arc;

use karpenter_cloud::{
    clock::Clock,
    error::CloudError,
    http::{
        Answer, Endpoint, HttpClient, HttpError, HttpSettings, ProxyChoice, Redactor, RetryPolicy, Trust, Unobserved,
        install_crypto_provider,
    },
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
};
use wiremock::{Mock, MockServer, ResponseTemplate, matchers::any};

/// An HTTPS server whose certificate a CA of its own signed.
struct Server {
    url: String,
    ca_pem: Vec<u8>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn server() -> Server {
    install_crypto_provider();
    let ca_key = KeyPair::generate().expect("a key");
    let mut ca = CertificateParams::new(Vec::new()).expect("parameters");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_cert = ca.self_signed(&ca_key).expect("a certificate");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
    let cert = params
        .signed_by(&key, &Issuer::from_params(&ca, &ca_key))
        .expect("a certificate");
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], private)
        .expect("a server configuration");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let task = tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                return;
            };
            // A client that does not trust us ends the handshake.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut request = [0; 4096];
            if stream.read(&mut request).await.is_ok() {
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
                    .await;
                let _ = stream.shutdown().await;
            }
        }
    });
    Server {
        url: format!("https://localhost:{port}/"),
        ca_pem: ca_cert.pem().into_bytes(),
        task,
    }
}

async fn get(url: &str, settings: HttpSettings) -> Result<Answer, HttpError> {
    let settings = HttpSettings {
        retry: RetryPolicy {
            attempts: 1,
            ..RetryPolicy::default()
        },
        ..settings
    };
    let client = HttpClient::new(Clock::system(), settings, Redactor::default(), Unobserved).expect("a client");
    client
        .send(&Endpoint::read("test"), |requests| {
            requests.get(url).build().map_err(CloudError::other)
        })
        .await
}

fn direct(trust: Trust) -> HttpSettings {
    HttpSettings {
        trust,
        proxy: ProxyChoice::Direct,
        ..HttpSettings::default()
    }
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_refused_before_anything_is_sent() {
    let server = server().await;
    let error = get(&server.url, direct(Trust::System)).await.expect_err("not trusted");
    assert!(matches!(error, HttpError::NotSent { .. }), "{error:?}");
}

#[tokio::test]
async fn a_bundle_makes_its_authority_trusted() {
    let server = server().await;
    for trust in [
        Trust::OnlyBundle(server.ca_pem.clone()),
        Trust::AlsoBundle(server.ca_pem.clone()),
    ] {
        let answer = get(&server.url, direct(trust)).await.expect("trusted");
        assert_eq!(&answer.body[..], b"ok");
    }
}

#[tokio::test]
async fn verification_switched_off_accepts_anything() {
    let server = server().await;
    let answer = get(&server.url, direct(Trust::Anything)).await.expect("not verified");
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn requests_leave_through_the_proxy_that_is_named() {
    let proxy = MockServer::start().await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(204))
        .expect(1)
        .mount(&proxy)
        .await;
    let via = ProxyChoice::Via(proxy.uri().parse().expect("a URL"));
    let settings = HttpSettings {
        proxy: via,
        ..HttpSettings::default()
    };
    let answer = get("http://cloud.invalid/zones", settings)
        .await
        .expect("the proxy answers");
    assert_eq!(answer.status, 204);
}
