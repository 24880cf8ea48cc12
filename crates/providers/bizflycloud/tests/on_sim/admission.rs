//! The webhook, asked over TLS as an API server asks it.

use std::{fs, path::PathBuf};

use karpenter_bizflycloud::{BizflyCloudProvider, ProviderConfig, Settings};
use karpenter_cloud::webhook::WebhookSettings;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::environment::{World, claim, class, pool, settings};

/// A world whose provider is asked before objects are stored.
struct Asked {
    world: World,
    _provider: BizflyCloudProvider,
    url: String,
    http: reqwest::Client,
    folder: PathBuf,
}

impl Drop for Asked {
    fn drop(&mut self) {
        // What stays behind is in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Asked {
    async fn start(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("karpenter-bizfly-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let key = KeyPair::generate().expect("a key");
        let own = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        let own = own.self_signed(&key).expect("a certificate");
        fs::write(folder.join("tls.crt"), own.pem()).expect("written");
        fs::write(folder.join("tls.key"), key.serialize_pem()).expect("written");
        let world = World::start().await;
        let settings = Settings {
            webhook: Some(WebhookSettings {
                port: 0,
                certificates: folder.clone(),
            }),
            ..settings(&world.in_flight)
        };
        let provider = BizflyCloudProvider::new(world.sandbox.client(), world.clock.clone(), settings);
        let address = provider.serve_webhook().await.expect("served").expect("asked for");
        let ca = reqwest::Certificate::from_pem(own.pem().as_bytes()).expect("a certificate");
        let http = reqwest::Client::builder()
            .tls_certs_only([ca])
            .build()
            .expect("a client");
        Self {
            world,
            _provider: provider,
            url: format!("https://localhost:{}/", address.port()),
            http,
            folder,
        }
    }

    /// The refusal, if there is one, and the warnings that an object gets in the place of another.
    async fn review(&self, object: &Value, old: &Value) -> (Option<String>, Vec<String>) {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "705ab4f5", "operation": "CREATE", "object": object, "oldObject": old},
        });
        // Time stands still while it is asked: an answer may take four seconds of it.
        let _asked = self.world.in_flight.enter();
        let before = self.world.cloud.requests().len();
        let answer = self.http.post(&self.url).body(review.to_string()).send().await;
        let text = answer.expect("an answer").text().await.expect("a body");
        assert_eq!(self.world.cloud.requests().len(), before, "the cloud is not asked");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        let response = &answer["response"];
        assert_eq!(response["uid"], "705ab4f5");
        let refusal = (response["allowed"] == false)
            .then(|| response["status"]["message"].as_str().expect("a sentence").to_owned());
        let warnings = serde_json::from_value(response["warnings"].clone()).expect("warnings");
        (refusal, warnings)
    }

    async fn refuses(&self, object: &Value, sentence: &str) {
        let (refusal, _) = self.review(object, &Value::Null).await;
        let refusal = refusal.unwrap_or_else(|| panic!("allowed: {object}"));
        assert!(refusal.contains(sentence), "{refusal}");
    }

    async fn warns(&self, object: &Value, sentence: &str) {
        let (refusal, warnings) = self.review(object, &Value::Null).await;
        assert_eq!(refusal, None, "{object}");
        assert!(warnings.iter().any(|own| own.contains(sentence)), "{warnings:?}");
    }
}

#[tokio::test]
async fn mistakes_of_a_provider_config_are_refused_and_doubts_are_told() {
    let asked = Asked::start("config").await;
    let config = |spec: Value| asked.world.config(spec);
    let right = config(json!({"region": "HN"}));
    let (refusal, warnings) = asked.review(&right, &Value::Null).await;
    assert_eq!(refusal, None);
    assert_eq!(
        warnings,
        ["spec.cloudConfig.apiEndpoint: credentials are sent without encryption"]
    );
    asked.refuses(&config(json!({"region": "HN3"})), "\"HN3\"").await;
    let many = config(json!({"region": "HN", "cloudConfig": {"retryMaxAttempts": 11}}));
    asked.refuses(&many, "spec.cloudConfig.retryMaxAttempts").await;
    let tags = config(json!({"region": "HN", "tagging": {"additionalTags": {"category": "x"}}}));
    asked.refuses(&tags, "category is reserved").await;
    let small = config(json!({"region": "HN", "imageConfig": {"rootDiskSize": 10}}));
    asked.warns(&small, "raised to the cloud's minimum of 20").await;
    let mut lost = config(json!({"region": "HN"}));
    lost["spec"]["secretRef"]["name"] = json!("lost");
    asked.warns(&lost, "secret default/lost does not exist").await;
    // Another region: not while there are machines in this one.
    let moved = config(json!({"region": "HCM"}));
    assert_eq!(asked.review(&moved, &right).await.0, None);
    let mut foreign = claim(2, json!([]));
    foreign.spec.node_class_ref.kind = "KWOKNodeClass".to_owned();
    asked.world.stored(&foreign);
    assert_eq!(asked.review(&moved, &right).await.0, None, "another provider's");
    asked.world.stored(&claim(1, json!([])));
    let (refusal, _) = asked.review(&moved, &right).await;
    assert!(refusal.expect("refused").contains("default-00001"));
    let zone = config(json!({"region": "HN1"}));
    assert_eq!(asked.review(&zone, &right).await.0, None, "the same region");
    let prefix = config(json!({"region": "HN", "tagging": {"tagPrefix": "team/"}}));
    let (refusal, warnings) = asked.review(&prefix, &right).await;
    assert_eq!(refusal, None);
    assert!(warnings.iter().any(|own| own.contains("tagPrefix")), "{warnings:?}");
}

#[tokio::test]
async fn zones_that_do_not_exist_are_refused_and_those_that_are_closed_are_told() {
    let asked = Asked::start("zones").await;
    let status = |zones: Value| {
        let status = json!({"status": {"zones": zones}});
        let objects = asked.world.sandbox.objects();
        objects
            .patch_status::<ProviderConfig>("", "default", &status)
            .expect("accepted");
    };
    let of = |zone: &str| class(json!({"zones": [zone]}));
    status(json!(["HN1", "HN2", "HN3"]));
    assert_eq!(asked.review(&of("HN3"), &Value::Null).await, (None, Vec::new()));
    asked
        .refuses(&of("HN4"), "HN4 is not a zone of HN; it has HN1, HN2, HN3")
        .await;
    status(json!(["HN1"]));
    asked.warns(&of("HN2"), "HN2 is not open").await;
    status(Value::Null);
    asked
        .warns(&of("HN3"), "HN3 is not a zone of HN; it has HN1, HN2")
        .await;
    assert_eq!(asked.review(&of("HN2"), &Value::Null).await, (None, Vec::new()));
}

#[tokio::test]
async fn mistakes_of_classes_pools_and_provisioners_are_told_before_they_are_stored() {
    let asked = Asked::start("class").await;
    let (refusal, warnings) = asked.review(&class(json!({})), &Value::Null).await;
    assert_eq!((refusal, warnings), (None, Vec::new()));
    for (spec, sentence) in [
        (json!({"zones": ["HN1", "HN1"]}), "HN1 is there twice"),
        (json!({"zones": ["HCM1"]}), "HCM1 is not a zone of HN; it has HN1, HN2"),
        (json!({"tags": ["novalue"]}), "novalue"),
        (json!({"dataDisks": [{"size": 5}]}), "5 GB is too small"),
        (json!({"bootstrap": {"mode": "UserData", "bke": {}}}), "is for mode BKE"),
        (
            json!({"imageSelectorTerms": [{"id": "a", "name": "b"}]}),
            "exactly one of",
        ),
    ] {
        asked.refuses(&class(spec), sentence).await;
    }
    let stored = class(json!({"zones": ["HCM1"]}));
    let mut labelled = stored.clone();
    labelled["metadata"]["labels"] = json!({"team": "a"});
    let (refusal, _) = asked.review(&labelled, &stored).await;
    assert_eq!(refusal, None, "what is stored already may be labelled");
    for (spec, sentence) in [
        (
            json!({"flavorSelectorTerms": [{"name": "zz.*"}]}),
            "no flavor is called zz.*",
        ),
        (json!({"template": "Ubuntu 24.04 LTS"}), "spec.template is not used"),
        (json!({"publicIP": false}), "internet gateway"),
    ] {
        asked.warns(&class(spec), sentence).await;
    }
    let short = pool(json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["4c_8g"]}]));
    let short = serde_json::to_value(&short).expect("plain data");
    asked
        .warns(&short, "there is no flavor 4c_8g; the cloud lists this size as")
        .await;
    let mut foreign = short.clone();
    foreign["spec"]["template"]["spec"]["nodeClassRef"]["group"] = json!("karpenter.kwok.sh");
    assert_eq!(asked.review(&foreign, &Value::Null).await, (None, Vec::new()));
    let mut newer = foreign;
    newer["spec"]["template"]["spec"]["requirements"][0]["operator"] = json!("Like");
    assert_eq!(
        asked.review(&newer, &Value::Null).await,
        (None, Vec::new()),
        "not ours to refuse"
    );
    let provisioner = |spec: Value| {
        let mut all = json!({
            "apiVersion": "karpenter.sh/v1alpha5", "kind": "Provisioner", "metadata": {"name": "old"},
            "spec": {"providerRef": {"name": "default"}},
        });
        for (key, value) in spec.as_object().expect("fields") {
            all["spec"][key] = value.clone();
        }
        all
    };
    asked
        .warns(&provisioner(json!({})), "karpenter.sh/provisioner-name must become")
        .await;
    let both = provisioner(json!({"ttlSecondsAfterEmpty": 30, "consolidation": {"enabled": true}}));
    asked.refuses(&both, "ttlSecondsAfterEmpty").await;
    let zone = json!([{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["HCM1"]}]);
    let elsewhere = provisioner(json!({"requirements": zone}));
    asked.refuses(&elsewhere, "none of the zones is in region").await;
    let mut of_a_class = elsewhere;
    of_a_class["spec"]["providerRef"] = json!({"kind": "BizflyCloudNodeClass", "name": "default"});
    let (refusal, _) = asked.review(&of_a_class, &Value::Null).await;
    assert_eq!(refusal, None, "a class of that name has a region of its own");
}
