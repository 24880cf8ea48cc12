//! The API behind TLS: which certificates are trusted, and what is said of one that is not.

use std::sync::Arc;

use karpenter_api::conditions::StatusConditions;
use karpenter_cloud::http::{Trust, install_crypto_provider};
use karpenter_cloudstack::{
    ProviderSettings,
    client::{ApiError, Client, Keys, Priority, Request, api_url, metrics::ApiMetrics, model::Zone},
    sim::{Seed, Simulator, seed},
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
};

use crate::environment::{Cloud, STEP, class};

/// What is wrong with a certificate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flaw {
    None,
    Expired,
    OtherName,
}

/// TLS in front of a simulated server.
pub(crate) struct Secured {
    pub(crate) url: String,
    pub(crate) ca: String,
    task: JoinHandle<()>,
}

impl Drop for Secured {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) async fn secure(simulator: &Simulator, flaw: Flaw) -> Secured {
    install_crypto_provider();
    let ca_key = KeyPair::generate().expect("a key");
    let mut ca = CertificateParams::new(Vec::new()).expect("parameters");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_cert = ca.self_signed(&ca_key).expect("a certificate");
    let key = KeyPair::generate().expect("a key");
    let name = match flaw {
        Flaw::None | Flaw::Expired => "localhost",
        Flaw::OtherName => "cloud.example",
    };
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
    if matches!(flaw, Flaw::Expired) {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    }
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
    let plain = simulator.address();
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that does not trust us ends the handshake.
                let Ok(mut client) = acceptor.accept(stream).await else {
                    return;
                };
                let mut server = TcpStream::connect(plain).await.expect("the simulator listens");
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    Secured {
        url: format!("https://localhost:{port}"),
        ca: ca_cert.pem(),
        task,
    }
}

async fn zones(cloud: &Cloud, url: &str, trust: Trust) -> Result<Vec<Zone>, ApiError> {
    let mut settings = cloud.settings.http.clone();
    settings.trust = trust;
    let keys = Keys {
        url: api_url(url).expect("a URL"),
        ..cloud.simulator.keys(seed::ACCOUNT)
    };
    let client = Client::new(
        cloud.clock.clock(),
        settings,
        keys,
        Default::default(),
        ApiMetrics::new(),
    )
    .expect("a client");
    client
        .list(&Request::new("listZones"), "zone", Priority::Discovery)
        .await
}

/// The trust that these variables of the environment ask for.
fn trust(variables: &[(&str, &str)]) -> Trust {
    let needed = [
        ("CLUSTER_NAME", "blue"),
        ("CLOUDSTACK_API_URL", "https://x"),
        ("CLOUDSTACK_API_KEY", "a"),
        ("CLOUDSTACK_SECRET_KEY", "b"),
    ];
    let lookup = |name: &str| {
        let mut all = needed.iter().chain(variables);
        all.find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
    };
    ProviderSettings::from_lookup(&lookup).expect("valid").http.trust
}

#[tokio::test]
async fn a_bundle_or_switched_off_verification_accepts_a_private_authority_and_nothing_else_does() {
    let cloud = Cloud::without_class(Seed::default(), STEP, |_| {}).await;
    let server = secure(&cloud.simulator, Flaw::None).await;
    for accepted in [
        trust(&[("CLOUDSTACK_CA_BUNDLE", &server.ca)]),
        trust(&[("CLOUDSTACK_VERIFY_SSL", "false")]),
    ] {
        assert_eq!(zones(&cloud, &server.url, accepted).await.expect("trusted").len(), 2);
    }
    let error = zones(&cloud, &server.url, trust(&[("CLOUDSTACK_VERIFY_SSL", "true")]))
        .await
        .expect_err("nobody vouches for it");
    assert!(
        matches!(error, ApiError::NotSent(_)) && error.to_string().contains("CLOUDSTACK_CA_BUNDLE"),
        "{error}"
    );
}

/// The condition of a class whose API has such a certificate.
async fn told(flaw: Flaw, trusted: bool) -> String {
    let cloud = Cloud::without_class(Seed::default(), STEP, |_| {}).await;
    let server = secure(&cloud.simulator, flaw).await;
    let trust = match trusted {
        true => Trust::AlsoBundle(server.ca.clone().into_bytes()),
        false => Trust::System,
    };
    let keys = Keys {
        url: api_url(&server.url).expect("a URL"),
        ..cloud.simulator.keys(seed::ACCOUNT)
    };
    let provider = cloud.provider_of(keys, trust);
    cloud
        .sandbox
        .apply(&class(json!({})).to_string())
        .expect("the class is accepted");
    provider.reconcile_class("default").await.expect("reconciled");
    let class = cloud.class();
    let ready = class.condition("Ready").expect("there").clone();
    assert!(ready.is_unknown(), "{ready:?}");
    assert!(cloud.simulator.calls().is_empty(), "nothing was sent");
    ready.message
}

#[tokio::test]
async fn each_flaw_of_a_certificate_is_told_on_the_class_with_what_to_do() {
    let expired = told(Flaw::Expired, true).await;
    assert!(
        expired.contains("the certificate of the CloudStack API has expired; renew it"),
        "{expired}"
    );
    let unknown = told(Flaw::None, false).await;
    assert!(
        unknown.contains("is not signed by an authority that is trusted here; put its CA into CLOUDSTACK_CA_BUNDLE"),
        "{unknown}"
    );
    let other = told(Flaw::OtherName, true).await;
    assert!(
        other.contains("is for another host; use the name that it was issued for in CLOUDSTACK_API_URL"),
        "{other}"
    );
}
