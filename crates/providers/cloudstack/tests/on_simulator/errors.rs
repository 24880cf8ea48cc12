//! What users can get wrong has a sentence of its own that says what to do; and no sentence tells a secret.

use std::{collections::BTreeSet, time::Duration};

use karpenter_api::conditions::{Condition, StatusConditions};
use karpenter_cloud::{CloudProvider, conformance::Environment, http::Trust};
use karpenter_cloudstack::{
    client::{ApiError, Client, Keys, Priority, Request, api_url, metrics::ApiMetrics},
    settings::{CredentialsFrom, Switch},
    sim::{Fault, FaultKind, Seed, seed},
};
use serde_json::{Value, json};

use crate::{
    certificates::{Flaw, secure},
    environment::{Cloud, STEP, claim, class, pool},
};

fn condition(cloud: &Cloud, name: &str) -> Condition {
    cloud
        .class()
        .condition(name)
        .cloned()
        .unwrap_or_else(|| panic!("no condition {name}"))
}

async fn check(spec: Value, name: &str, reason: &str, part: &str) -> String {
    let cloud = Cloud::with(Seed::default(), spec).await;
    let found = condition(&cloud, name);
    assert_eq!((found.is_false(), found.reason.as_str()), (true, reason), "{found:?}");
    assert!(found.message.contains(part), "{}", found.message);
    let ready = condition(&cloud, "Ready");
    assert!(ready.is_false() && ready.message.contains(part), "{}", ready.message);
    found.message
}

#[tokio::test]
async fn what_does_not_exist_is_named_with_what_does() {
    let sentences = [
        check(
            json!({"zones": ["mars"]}),
            "ZoneReady",
            "ZoneNotFound",
            "zone mars does not exist or is not visible to the API key; choose from zone-1, zone-2",
        )
        .await,
        check(
            json!({"serviceOfferingSelectorTerms": [{"name": "nope"}]}),
            "OfferingsReady",
            "OfferingNotFound",
            "no service offering matches serviceOfferingSelectorTerms; choose from 2xlarge, large",
        )
        .await,
        check(
            json!({"templateSelectorTerms": [{"name": "nope"}]}),
            "TemplateReady",
            "TemplateNotFound",
            "no template matches templateSelectorTerms; choose from ubuntu-24.04-kube",
        )
        .await,
        check(
            json!({"networkSelectorTerms": [{"name": "nope"}]}),
            "NetworkReady",
            "NetworkNotFound",
            "no network of zone zone-1 matches networkSelectorTerms; choose from nodes-zone-1",
        )
        .await,
        check(
            json!({"diskOffering": "nope"}),
            "StorageReady",
            "DiskOfferingNotFound",
            "disk offering nope does not exist",
        )
        .await,
        check(
            json!({"diskOffering": "data-custom"}),
            "StorageReady",
            "InvalidDiskConfiguration",
            "give the size in GiB",
        )
        .await,
        check(
            json!({"sshKeyPair": "nope"}),
            "BootstrapReady",
            "SSHKeyPairNotFound",
            "SSH key pair nope does not exist in the account; choose from ops",
        )
        .await,
        check(
            json!({"userDataRef": {"secretRef": {"name": "a", "namespace": "b", "key": "c"}}}),
            "BootstrapReady",
            "SecretNotFound",
            "Secret b/a does not exist",
        )
        .await,
        check(
            json!({"securityGroupSelectorTerms": [{"name": "x"}]}),
            "SecurityGroupsReady",
            "SecurityGroupsUnsupported",
            "has no security groups; remove",
        )
        .await,
        check(
            json!({"affinityGroups": {"selectorTerms": [{"name": "x"}]}}),
            "AffinityGroupsReady",
            "AffinityGroupNotFound",
            "no affinity group matches",
        )
        .await,
        check(
            json!({"project": "nope"}),
            "ZoneReady",
            "ProjectNotFound",
            "project nope does not exist or the API key is not in it; choose from team-a",
        )
        .await,
        check(
            json!({"userData": "${karpenter:NOPE}", "userDataTemplating": "Placeholders"}),
            "BootstrapReady",
            "InvalidTemplate",
            "${karpenter:NOPE}, which does not exist",
        )
        .await,
    ];
    let distinct: BTreeSet<&String> = sentences.iter().collect();
    assert_eq!(distinct.len(), sentences.len());
}

#[tokio::test]
async fn a_disabled_zone_and_a_full_network_say_so() {
    let mut seed = Seed::default();
    seed.catalogue.zones[0]["allocationstate"] = json!("Disabled");
    let id = seed.catalogue.zones[0]["id"].clone();
    let cloud = Cloud::with(seed, json!({"zones": [id]})).await;
    assert_eq!(condition(&cloud, "ZoneReady").reason, "ZoneDisabled");

    let mut seed = Seed::default();
    for network in &seed.catalogue.networks {
        seed.catalogue
            .free_addresses
            .insert(network["id"].as_str().expect("an id").to_owned(), 0);
    }
    let cloud = Cloud::with(seed, json!({})).await;
    let found = condition(&cloud, "NetworkReady");
    assert_eq!(found.reason, "NetworkNotDeployable");
    assert!(found.message.contains("no free address"), "{}", found.message);

    let mut seed = Seed::default();
    for network in &mut seed.catalogue.networks {
        network["service"] = json!([]);
    }
    let cloud = Cloud::with(seed, json!({"userData": "#!/bin/sh\n"})).await;
    assert_eq!(condition(&cloud, "NetworkReady").reason, "UserDataServiceMissing");
}

#[tokio::test]
async fn wrong_keys_are_told_on_the_class() {
    let cloud = Cloud::start().await;
    // What was resolved before serves on for a while; a fresh process depends on the keys at once.
    let fresh = cloud.new_provider().await;
    cloud
        .simulator
        .operate(|operator| operator.set_secret(seed::ACCOUNT, "revoked"));
    fresh.reconcile_class("default").await.expect("reconciled");
    let found = condition(&cloud, "CredentialsReady");
    assert_eq!((found.is_false(), found.reason.as_str()), (true, "Unauthorized"));
    assert!(
        found
            .message
            .contains("check the key, the secret and this machine's clock"),
        "{}",
        found.message
    );
}

#[tokio::test]
async fn an_outage_changes_nothing_for_five_minutes_and_is_unknown_then() {
    let cloud = Cloud::start().await;
    let launched = cloud.launch(&claim(1, "1", json!([]))).await;
    let fresh = cloud.new_provider().await;
    cloud.simulator.inject(Fault::everything(FaultKind::Page(503)));
    fresh.reconcile_class("default").await.expect("reconciled");
    cloud.pass(Duration::from_secs(200)).await;
    fresh.reconcile_class("default").await.expect("reconciled");
    assert!(cloud.class().is_ready(), "what was known holds");
    cloud.pass(Duration::from_secs(200)).await;
    fresh.reconcile_class("default").await.expect("reconciled");
    let found = condition(&cloud, "ZoneReady");
    assert!(found.is_unknown());
    assert_eq!(found.reason, "CloudStackUnavailable");
    fresh
        .is_drifted(&launched)
        .await
        .expect_err("an outage is not drift, and not its absence");
    cloud.simulator.heal();
    fresh.reconcile_class("default").await.expect("reconciled");
    assert!(cloud.class().is_ready(), "it heals by itself");
    assert_eq!(fresh.is_drifted(&launched).await.expect("readable"), None);
}

#[tokio::test]
async fn an_unreachable_server_and_a_foreign_page_have_sentences_of_their_own() {
    let cloud = Cloud::without_class(Seed::default(), STEP, |_| {}).await;
    let nobody = Keys {
        url: "http://127.0.0.1:9/client/api".parse().expect("a URL"),
        ..cloud.simulator.keys(seed::ACCOUNT)
    };
    let client = |keys: Keys| {
        Client::new(
            cloud.clock.clock(),
            cloud.settings.http.clone(),
            keys,
            Default::default(),
            ApiMetrics::new(),
        )
        .expect("a client")
    };
    let error = client(nobody)
        .call(&Request::new("listZones"), Priority::Discovery)
        .await
        .expect_err("nobody listens");
    assert!(
        matches!(error, ApiError::NotSent(_)) && error.to_string().starts_with("CloudStack cannot be reached"),
        "{error}"
    );
    cloud.simulator.inject(Fault::everything(FaultKind::Page(200)));
    let error = client(cloud.simulator.keys(seed::ACCOUNT))
        .call(&Request::new("listZones"), Priority::Discovery)
        .await
        .expect_err("not CloudStack");
    assert!(error.to_string().contains("check CLOUDSTACK_API_URL"), "{error}");
}

#[tokio::test]
async fn a_feature_that_the_server_lacks_does_not_make_a_class_unready() {
    let cloud = Cloud::with(Seed::default(), json!({"pricing": {"source": "Quota"}})).await;
    let types = cloud
        .provider
        .instance_types(&pool())
        .await
        .expect("the formula steps in");
    assert!(
        types
            .iter()
            .all(|own| own.offerings.iter().all(|offering| offering.price > 0.0))
    );
    assert!(cloud.class().is_ready());
}

/// The sentence that a launch on such a cloud fails with.
async fn launch_error(change: impl FnOnce(&Cloud)) -> String {
    let cloud = Cloud::without_class(Seed::default(), STEP, |settings| settings.quota_preflight = Switch::Off).await;
    cloud.apply_class(json!({})).await;
    change(&cloud);
    let error = cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect_err("it fails");
    error.to_string()
}

#[tokio::test]
async fn launches_that_fail_say_what_to_do_each_in_its_own_words() {
    let sold_out = launch_error(|cloud| {
        cloud.simulator.operate(|operator| operator.settings().sold_out = true);
    })
    .await;
    let quota = launch_error(|cloud| {
        cloud
            .simulator
            .operate(|operator| operator.limit(seed::ACCOUNT, "memory", 0));
    })
    .await;
    let revoked = launch_error(|cloud| {
        cloud
            .simulator
            .operate(|operator| operator.set_secret(seed::ACCOUNT, "revoked"));
    })
    .await;
    let silent = launch_error(|cloud| cloud.simulator.inject(Fault::everything(FaultKind::Page(503)))).await;
    let sentences = [
        (&sold_out, "CloudStack has no capacity for"),
        (&quota, "the quota of memory is reached; raise the limit or free some"),
        (&revoked, "check key, secret and clock"),
        (&silent, "CloudStack cannot be asked"),
    ];
    for (sentence, part) in sentences {
        assert!(sentence.contains(part), "{sentence}");
    }
    let distinct: BTreeSet<&String> = sentences.iter().map(|(sentence, _)| *sentence).collect();
    assert_eq!(distinct.len(), sentences.len());
}

#[tokio::test]
async fn new_keys_that_do_not_work_are_told_on_the_class_and_the_old_ones_stay() {
    let cloud = Cloud::without_class(Seed::default(), STEP, |settings| {
        settings.credentials = CredentialsFrom::Secret {
            namespace: "karpenter".to_owned(),
            name: "keys".to_owned(),
        };
    })
    .await;
    cloud.apply_class(json!({})).await;
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: karpenter}\n";
    cloud.sandbox.apply(namespace).expect("accepted");
    let give = |secret_key: &str| {
        let own = cloud.simulator.keys(seed::ACCOUNT);
        let data = [
            ("api-url", own.url.to_string()),
            ("api-key", own.api_key),
            ("secret-key", secret_key.to_owned()),
        ];
        let data = data.map(|(key, value)| {
            use base64::Engine;
            (key, base64::engine::general_purpose::STANDARD.encode(value))
        });
        let data: serde_json::Map<String, Value> = data
            .into_iter()
            .map(|(key, value)| (key.to_owned(), json!(value)))
            .collect();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": "karpenter"}, "data": data,
        });
        cloud.sandbox.apply(&secret.to_string()).expect("accepted");
    };
    give("mistyped-secret-key");
    cloud.provider.look_at_keys().await;
    cloud.resolve().await;
    let found = condition(&cloud, "CredentialsReady");
    assert_eq!((found.is_false(), found.reason.as_str()), (true, "Unauthorized"));
    assert!(
        found.message.contains("the old ones stay; correct them") && !found.message.contains("mistyped"),
        "{}",
        found.message
    );
    cloud.provider.list().await.expect("the old keys work");
    give("secret-of-karpenter-fedcba9876543210");
    cloud.provider.look_at_keys().await;
    cloud.resolve().await;
    assert!(cloud.class().is_ready(), "the right ones heal it");
}

/// What the conditions of a class say when it is resolved with these keys and this trust.
async fn told(cloud: &Cloud, keys: Keys, trust: Trust) -> String {
    let provider = cloud.provider_of(keys, trust);
    cloud.sandbox.apply(&class(json!({})).to_string()).expect("accepted");
    provider.reconcile_class("default").await.expect("reconciled");
    condition(cloud, "Ready").message
}

#[tokio::test]
async fn each_thing_that_stands_in_the_way_has_a_sentence_of_its_own_that_says_what_to_do() {
    let cloud = async || Cloud::without_class(Seed::default(), STEP, |_| {}).await;
    let unresolved = async |spec: Value| {
        let cloud = Cloud::with(Seed::default(), spec).await;
        condition(&cloud, "Ready").message
    };
    let wrong_keys = {
        let cloud = cloud().await;
        let keys = Keys {
            secret_key: "mistyped-mistyped".to_owned().into(),
            ..cloud.simulator.keys(seed::ACCOUNT)
        };
        told(&cloud, keys, Trust::System).await
    };
    let unreachable = {
        let cloud = cloud().await;
        let keys = Keys {
            url: "http://127.0.0.1:9/client/api".parse().expect("a URL"),
            ..cloud.simulator.keys(seed::ACCOUNT)
        };
        told(&cloud, keys, Trust::System).await
    };
    let expired = {
        let cloud = cloud().await;
        let server = secure(&cloud.simulator, Flaw::Expired).await;
        let keys = Keys {
            url: api_url(&server.url).expect("a URL"),
            ..cloud.simulator.keys(seed::ACCOUNT)
        };
        told(&cloud, keys, Trust::AlsoBundle(server.ca.clone().into_bytes())).await
    };
    let sentences = [
        (wrong_keys, "check the key, the secret and this machine's clock"),
        (unreachable, "check host and port of CLOUDSTACK_API_URL"),
        (expired, "has expired; renew it"),
        (
            unresolved(json!({"zones": ["mars"]})).await,
            "zone mars does not exist or is not visible to the API key; choose from zone-1, zone-2",
        ),
        (
            unresolved(json!({"serviceOfferingSelectorTerms": [{"name": "nope"}]})).await,
            "no service offering matches serviceOfferingSelectorTerms; choose from 2xlarge",
        ),
        (
            unresolved(json!({"templateSelectorTerms": [{"name": "nope"}]})).await,
            "no template matches templateSelectorTerms; choose from ubuntu-24.04-kube",
        ),
        (
            unresolved(json!({"networkSelectorTerms": [{"name": "nope"}]})).await,
            "matches networkSelectorTerms; choose from nodes-zone-1",
        ),
        (
            launch_error(|cloud| cloud.simulator.operate(|operator| operator.settings().sold_out = true)).await,
            "add hosts, or allow other instance types or zones",
        ),
        (
            launch_error(|cloud| {
                cloud
                    .simulator
                    .operate(|operator| operator.limit(seed::ACCOUNT, "user_vm", 0));
            })
            .await,
            "the quota of user_vm is reached; raise the limit or free some",
        ),
    ];
    for (sentence, advice) in &sentences {
        assert!(sentence.contains(advice), "{advice} is not in: {sentence}");
        let told_elsewhere = sentences.iter().filter(|(other, _)| other.contains(advice)).count();
        assert_eq!(told_elsewhere, 1, "{advice} is only said where it helps");
    }
    let distinct: BTreeSet<&String> = sentences.iter().map(|(sentence, _)| sentence).collect();
    assert_eq!(distinct.len(), sentences.len());
}
