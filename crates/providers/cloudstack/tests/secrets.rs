//! No output tells a secret. A binary of its own, because the subscriber is the whole process's.

#[path = "on_simulator/environment.rs"]
#[expect(dead_code, reason = "the environment serves many tests")]
mod environment;

use std::{
    io,
    sync::{Arc, Mutex},
};

use environment::{Cloud, claim};
use k8s_openapi::api::core::v1::Secret;
use karpenter_cloud::CloudProvider;
use karpenter_cloudstack::{
    client::{Keys, api_url},
    sim::{Fault, FaultKind, Seed, seed},
};
use serde_json::json;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panicked").extend_from_slice(bytes);
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
    let cloud = Cloud::with(
        Seed::default(),
        json!({"userData": "#!/bin/sh\nTOKEN=hunter2-hunter2\n"}),
    )
    .await;
    let launched = cloud.launch(&claim(1, "1", json!([]))).await;
    cloud.provider.list().await.expect("a list");
    cloud
        .simulator
        .inject(Fault::new("listVirtualMachines", FaultKind::Page(502)));
    let _ = cloud.provider.get(launched.provider_id().expect("launched")).await;
    cloud.simulator.heal();
    cloud
        .simulator
        .operate(|operator| operator.set_secret(seed::ACCOUNT, "revoked"));
    let _ = cloud.provider.delete(&launched).await;
    cloud.resolve().await;
    let mut told = format!("{:?} {:?}", cloud.provider, cloud.provider.client());
    told += &other_failures().await;
    let token = managed_token().await;
    told += &format!("{:?}", cloud.provider.diagnose().await);
    told += &written(&cloud);
    let text = String::from_utf8_lossy(&log.0.lock().expect("nobody panicked")).into_owned() + &told;
    assert!(
        text.contains("deployVirtualMachine"),
        "the log is there: {} bytes",
        text.len()
    );
    let encoded = {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode("#!/bin/sh\nTOKEN=hunter2-hunter2\n")
    };
    for secret in [
        "secret-of-karpenter-fedcba9876543210",
        "key-of-karpenter-0123456789abcdef",
        "hunter2",
        encoded.as_str(),
        token.as_str(),
        "signature=",
    ] {
        let place = text.find(secret);
        assert!(
            place.is_none(),
            "{secret} is in the output: {}",
            &text[place.unwrap_or(0).saturating_sub(200)..][..300]
        );
    }
}

/// Conditions and events of a cluster, as users read them.
fn written(cloud: &Cloud) -> String {
    let status = cloud.class().status;
    let events = cloud.sandbox.objects().list::<k8s_openapi::api::core::v1::Event>("");
    format!("{status:?} {events:?}")
}

/// A full cloud, a used up quota, a class that asks for nonsense, a server that nobody reaches or that speaks no TLS.
async fn other_failures() -> String {
    let cloud = Cloud::start().await;
    let mut told = String::new();
    cloud.simulator.operate(|operator| operator.settings().sold_out = true);
    told += &format!("{:?}", cloud.provider.create(&claim(1, "1", json!([]))).await);
    cloud.simulator.heal();
    cloud
        .simulator
        .operate(|operator| operator.limit(seed::ACCOUNT, "user_vm", 0));
    told += &format!("{:?}", cloud.provider.create(&claim(2, "1", json!([]))).await);
    cloud
        .apply_class(json!({"zones": ["mars"], "templateSelectorTerms": [{"name": "none"}]}))
        .await;
    told += &written(&cloud);
    let address = cloud.simulator.address();
    for url in ["http://127.0.0.1:9".to_owned(), format!("https://{address}")] {
        let keys = Keys {
            url: api_url(&url).expect("a URL"),
            ..cloud.simulator.keys(seed::ACCOUNT)
        };
        let provider = cloud.provider_of(keys, Default::default());
        told += &format!("{:?}", provider.list().await);
        told += &format!("{:?} {:?}", provider.readiness().await, provider.diagnose().await);
        provider.reconcile_class("default").await.expect("reconciled");
        told += &written(&cloud);
    }
    told
}

/// The secret part of a token that Karpenter made.
async fn managed_token() -> String {
    let hashes = json!({"bootstrap": {"mode": "Kubeadm", "apiServerEndpoint": "a:6443", "caCertHashes": ["sha256:0"]}});
    let cloud = Cloud::without_class(Seed::default(), environment::STEP, |_| {}).await;
    cloud
        .sandbox
        .apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: kube-system}\n")
        .expect("accepted");
    cloud.apply_class(hashes).await;
    cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect("launched");
    let tokens: Vec<Secret> = cloud.sandbox.objects().list("kube-system");
    let data = tokens[0].data.clone().expect("data");
    String::from_utf8(data["token-secret"].0.clone()).expect("text")
}
