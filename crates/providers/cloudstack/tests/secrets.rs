//! No output tells a secret. A binary of its own, because the subscriber is the whole process's.

#[path = "on_simulator/environment.rs"]
#[expect(dead_code, reason = "the environment serves many tests")]
mod environment;

use std::{
    io,
    sync::{Arc, Mutex},
};

use environment::{Cloud, claim};
use karpenter_cloud::CloudProvider;
use karpenter_cloudstack::sim::{Fault, FaultKind, Seed, seed};
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
    let debug = format!("{:?} {:?}", cloud.provider, cloud.provider.client());
    let text = String::from_utf8_lossy(&log.0.lock().expect("nobody panicked")).into_owned() + &debug;
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
