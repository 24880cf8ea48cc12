//! No output tells a secret. A binary of its own, because the subscriber is the whole process's.

#[path = "on_sandbox/environment.rs"]
#[expect(dead_code, reason = "the environment serves many tests")]
mod environment;

use std::{io, sync::Arc, time::Duration};

use environment::Cluster;
use http::Method;
use karpenter_cloud::{CloudProvider, clock::Clock, credentials::Credentials, http::Redactor};
use karpenter_ovhcloud::{
    client::{ApiEndpoint, AuthMethod, ClientSettings, KubeApi, OvhClient},
    metrics::Metrics,
    sim::{
        APPLICATION_SECRET, CLIENT_ID, CLIENT_SECRET, CONSUMER_KEY, HttpFault, KUBE_ID, SERVICE_NAME, SimulatedOvh,
        World,
    },
};
use parking_lot::Mutex;
use serde_json::json;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_secret_is_in_any_output_at_trace_level() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).expect("the only test of this binary");
    let cluster = Cluster::start().await;
    let claim = cluster.launch(&cluster.claim("a", json!([]))).await;
    cluster.sim(|sim| {
        sim.faults
            .push(HttpFault::server_error(Method::PUT, "/nodepool").once());
    });
    cluster.provider().delete(&claim).await.expect_err("a fault");
    cluster.sim(|sim| sim.key_revoked = true);
    cluster.pass(Duration::from_secs(400)).await;

    let sim = SimulatedOvh::start(Clock::system(), World::default())
        .await
        .expect("a socket");
    let account = [("clientId", CLIENT_ID), ("clientSecret", CLIENT_SECRET)];
    let account = Credentials::new(account.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let endpoint = ApiEndpoint::parse(&sim.endpoint(), Some(&sim.token_url())).expect("a URL");
    let method = AuthMethod::of(&account).expect("complete");
    let client = OvhClient::new(
        Clock::system(),
        endpoint,
        method,
        &ClientSettings::default(),
        Redactor::default(),
        Metrics::default(),
    );
    let api = KubeApi::new(Arc::new(client.expect("a client")), SERVICE_NAME, KUBE_ID);
    api.cluster().await.expect("granted");

    let written: Vec<String> = cluster
        .sandbox
        .objects()
        .list::<k8s_openapi::api::core::v1::Event>("")
        .iter()
        .map(|event| format!("{event:?}"))
        .collect();
    let debug = format!(
        "{api:?} {:?} {:?} {}",
        cluster.provider(),
        cluster.class(),
        written.join(" ")
    );
    let text = String::from_utf8_lossy(&log.0.lock()).into_owned() + &debug;
    assert!(text.contains("cloud API answered"), "something is logged");
    for secret in [APPLICATION_SECRET, CONSUMER_KEY, CLIENT_SECRET, "token-0000", "$1$"] {
        assert!(!text.contains(secret), "{secret} is told");
    }
}
