//! The webhook, asked over TLS as an API server asks it.

use std::{fs, path::PathBuf, time::Duration};

use karpenter_cloud::http::Trust;
use karpenter_cloudstack::{
    sim::{Fault, FaultKind, Seed, seed},
    webhook::WebhookSettings,
};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::environment::{Cloud, class};

const SLOW: Duration = Duration::from_millis(1);

/// A folder with a certificate, which goes with the test.
struct Certificates {
    folder: PathBuf,
    ca: String,
}

impl Certificates {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("karpenter-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let key = KeyPair::generate().expect("a key");
        let own = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        let own = own.self_signed(&key).expect("a certificate");
        fs::write(folder.join("tls.crt"), own.pem()).expect("written");
        fs::write(folder.join("tls.key"), key.serialize_pem()).expect("written");
        Self { folder, ca: own.pem() }
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        // What stays behind is in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A provider with a webhook, and whoever asks it.
struct Asked {
    cloud: Cloud,
    url: String,
    http: reqwest::Client,
    _certificates: Certificates,
}

impl Asked {
    /// On a clock that moves by this much at a time: an answer may take four seconds of it.
    async fn start(test: &str, step: Duration) -> Self {
        let certificates = Certificates::new(test);
        let settings = WebhookSettings {
            port: 0,
            certificates: certificates.folder.clone(),
        };
        let cloud = Cloud::without_class(Seed::default(), step, |own| own.webhook = Some(settings)).await;
        let address = cloud
            .provider
            .serve_webhook()
            .await
            .expect("served")
            .expect("asked for");
        let ca = reqwest::Certificate::from_pem(certificates.ca.as_bytes()).expect("a certificate");
        let http = reqwest::Client::builder()
            .tls_certs_only([ca])
            .build()
            .expect("a client");
        Self {
            cloud,
            url: format!("https://localhost:{}/", address.port()),
            http,
            _certificates: certificates,
        }
    }

    /// What is answered about a class with this change.
    async fn review(&self, change: Value) -> Value {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "705ab4f5", "operation": "CREATE", "object": class(change)},
        });
        let answer = self
            .http
            .post(&self.url)
            .body(review.to_string())
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status(), 200);
        let next = answer.headers().get("connection").map(|own| own.as_bytes());
        assert_eq!(next, Some(&b"close"[..]), "every question has all of the time");
        let text = answer.text().await.expect("a body");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (&answer["kind"], &answer["response"]["uid"]),
            (&json!("AdmissionReview"), &json!("705ab4f5"))
        );
        assert_eq!(answer["response"]["allowed"], true, "the CRD is the validator");
        answer["response"]["warnings"].clone()
    }
}

#[tokio::test]
async fn what_cloudstack_does_not_have_is_a_warning_to_whoever_writes_the_class() {
    let asked = Asked::start("warnings", SLOW).await;
    assert_eq!(asked.review(json!({})).await, json!([]));
    let warnings = asked
        .review(json!({"templateSelectorTerms": [{"name": "nope"}], "sshKeyPair": "lost"}))
        .await;
    let told = warnings.to_string();
    for part in [
        "no template matches templateSelectorTerms; choose from ubuntu-24.04-kube",
        "SSH key pair lost does not exist in the account",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let secret = json!({"userDataRef": {"secretRef": {"name": "a", "namespace": "b", "key": "c"}}});
    assert_eq!(asked.review(secret).await, json!(["Secret b/a does not exist"]));
    let disks = json!({"dataDisks": [{"offering": "data-10"}, {"offering": "data-10", "deviceID": 3}]});
    let warnings = asked.review(disks).await.to_string();
    assert!(warnings.contains("deviceID 3"), "{warnings}");
}

#[tokio::test]
async fn an_outage_warns_of_nothing_and_refuses_nothing() {
    let asked = Asked::start("outage", Duration::from_millis(100)).await;
    asked.cloud.simulator.inject(Fault::everything(FaultKind::Page(503)));
    assert_eq!(asked.review(json!({"zones": ["mars"]})).await, json!([]));
}

#[tokio::test]
async fn what_is_no_review_is_a_bad_request_and_a_missing_certificate_has_a_sentence() {
    let asked = Asked::start("nonsense", SLOW).await;
    for body in ["", "{}", "<html>"] {
        let answer = asked.http.post(&asked.url).body(body).send().await.expect("an answer");
        assert_eq!(answer.status(), 400, "{body}");
    }
    let mut settings = asked.cloud.settings.clone();
    settings.webhook = Some(WebhookSettings {
        port: 0,
        certificates: "/nowhere".into(),
    });
    let keys = asked.cloud.simulator.keys(seed::ACCOUNT);
    let error = asked
        .cloud
        .provider_with(keys, Trust::System, settings)
        .serve_webhook()
        .await
        .expect_err("no certificate");
    assert!(
        error
            .to_string()
            .contains("the certificate of the webhook in /nowhere cannot be used: tls.crt"),
        "{error}"
    );
}
