//! What OVHNodeClasses say about themselves.

use http::Method;
use k8s_openapi::api::core::v1::Secret;
use karpenter_cloud::{CloudProvider, LaunchEffect};
use karpenter_ovhcloud::{
    OvhNodeClass,
    sim::{CONSUMER_KEY, HttpFault, KUBE_ID, SERVICE_NAME, World},
};
use serde_json::json;

use crate::environment::{Cluster, HOUR, MINUTE, SECOND, secret};

#[tokio::test]
async fn a_class_with_nothing_but_the_project_becomes_ready_and_says_what_it_found() {
    let spec = json!({"serviceName": SERVICE_NAME});
    let cluster = Cluster::unready(World::default(), |settings| settings.kube_id = None, spec).await;
    // Nodes of the Standard plan name their cluster.
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {
        "name": "fixed-0", "annotations": {"cluster.x-k8s.io/cluster-name": KUBE_ID},
    }});
    cluster.sandbox.apply(&node.to_string()).expect("accepted");
    cluster.until_ready().await;
    let status = cluster.class().status.expect("a status");
    let found = status.cluster.expect("a cluster");
    assert_eq!(
        (found.kube_id.as_str(), found.region.as_str()),
        (KUBE_ID, "EU-WEST-PAR")
    );
    assert_eq!(status.zones, ["eu-west-par-a", "eu-west-par-b", "eu-west-par-c"]);
    assert!(status.discovered_flavors.contains(&"b3-8".to_owned()));
    assert_eq!(status.pricing.expect("prices").source, "Catalog");
    assert_eq!(cluster.condition("PricingReady").0, "True");
}

#[tokio::test]
async fn the_cluster_is_found_by_the_rules_of_the_key() {
    let world = World {
        rules: {
            let mut rules = World::minimal_rules(KUBE_ID);
            rules.push(("GET".into(), "/auth/currentCredential".into()));
            rules
        },
        ..World::default()
    };
    let cluster = Cluster::with(world, |settings| settings.kube_id = None, json!({})).await;
    let status = cluster.class().status.expect("a status");
    assert_eq!(status.cluster.expect("found").kube_id, KUBE_ID);
}

#[tokio::test]
async fn a_cluster_that_nothing_tells_is_asked_for_by_name() {
    let world = World {
        rules: World::minimal_rules(KUBE_ID),
        ..World::default()
    };
    let cluster = Cluster::unready(world, |settings| settings.kube_id = None, json!({})).await;
    let told = || cluster.condition("ClusterReady").1 == "ClusterNotDetected";
    assert!(cluster.until(told).await, "{:?}", cluster.condition("ClusterReady"));
    assert!(cluster.condition("ClusterReady").2.contains("OVH_KUBE_ID"));
}

#[tokio::test]
async fn a_region_that_is_not_the_clusters_is_told_with_both_names() {
    let cluster = Cluster::unready(World::default(), |_| (), json!({"region": "GRA7"})).await;
    assert!(
        cluster
            .until(|| cluster.condition("ClusterReady").1 == "RegionMismatch")
            .await
    );
    let message = cluster.condition("ClusterReady").2;
    assert!(message.contains("GRA7") && message.contains("EU-WEST-PAR"), "{message}");
    cluster.patch_class(&json!({"spec": {"region": "eu-west-par"}}));
    cluster.until_ready().await;
}

#[tokio::test]
async fn a_secret_that_comes_later_makes_the_class_ready_without_a_restart() {
    let reference = json!({"credentialsSecretRef": {"name": "mine", "namespace": "karpenter"}});
    let cluster = Cluster::unready(World::default(), |_| (), reference).await;
    assert!(
        cluster
            .until(|| cluster.condition("CredentialsReady").1 == "SecretNotFound")
            .await
    );
    let mut own = secret(&format!("{CONSUMER_KEY}\n"));
    own["metadata"]["name"] = json!("mine");
    cluster.sandbox.apply(&own.to_string()).expect("accepted");
    let stored_at = cluster.clock.now();
    cluster.until_ready().await;
    let took = cluster.clock.since(stored_at).as_secs();
    assert!(took <= 5, "{took} s");
}

#[tokio::test]
async fn a_bad_new_key_is_told_while_the_old_one_goes_on() {
    let cluster = Cluster::start().await;
    let claim = cluster.claim("a", json!([]));
    cluster.launch(&claim).await;
    cluster.sandbox.apply(&secret("wrong").to_string()).expect("accepted");
    assert!(
        cluster
            .until(|| cluster.condition("CredentialsReady").1 == "InvalidCredentials")
            .await
    );
    let stored: Secret = cluster
        .sandbox
        .objects()
        .get("karpenter", "ovh-credentials")
        .expect("there");
    let version = format!("(version {})", stored.metadata.resource_version.expect("stored"));
    let message = cluster.condition("CredentialsReady").2;
    assert!(message.contains(&version), "{message} names {version}");
    assert_eq!(cluster.provider().list().await.expect("with the old key").len(), 1);
    cluster
        .sandbox
        .apply(&secret(CONSUMER_KEY).to_string())
        .expect("accepted");
    cluster.until_ready().await;
}

#[tokio::test]
async fn incomplete_and_ambiguous_credentials_are_told_apart() {
    let cluster = Cluster::start().await;
    let mut own = secret(CONSUMER_KEY);
    own["stringData"]["clientId"] = json!("x");
    cluster.sandbox.apply(&own.to_string()).expect("accepted");
    assert!(
        cluster
            .until(|| cluster.condition("CredentialsReady").1 == "AmbiguousCredentials")
            .await
    );
}

#[tokio::test]
async fn revoked_keys_are_one_condition_and_not_a_storm() {
    let cluster = Cluster::start().await;
    cluster.sim(|sim| sim.key_revoked = true);
    let claims: Vec<_> = (0..20)
        .map(|number| cluster.claim(&format!("c{number}"), json!([])))
        .collect();
    let provider = cluster.provider();
    let launches = futures::future::join_all(claims.iter().map(|claim| provider.create(claim))).await;
    for error in launches.into_iter().map(|launch| launch.expect_err("revoked")) {
        assert!(
            matches!(
                error.launch_effect(),
                LaunchEffect::Retry { .. } | LaunchEffect::DeleteForNodeClass
            ),
            "{error}"
        );
    }
    assert!(
        cluster
            .until(|| cluster.condition("CredentialsReady").1 == "InvalidCredentials")
            .await
    );
    let refused = || cluster.sim(|sim| sim.requests.iter().filter(|own| own.status == 403).count());
    let before = refused();
    assert!(before <= 6, "{before} calls were made with a revoked key");
    cluster.pass(MINUTE * 10).await;
    let later = refused() - before;
    assert!(later <= 20, "{later} calls in ten minutes");
}

#[tokio::test]
async fn missing_rights_are_named() {
    let mut rules = World::minimal_rules(KUBE_ID);
    rules.retain(|(_, path)| !path.ends_with("/nodepool"));
    let world = World {
        rules,
        ..World::default()
    };
    let cluster = Cluster::unready(world, |_| (), json!({})).await;
    assert!(
        cluster
            .until(|| cluster.condition("CredentialsReady").1 == "MissingRights")
            .await
    );
    let message = cluster.condition("CredentialsReady").2;
    assert!(
        message.contains("GET /cloud/project/{serviceName}/kube/{kubeId}/nodepool"),
        "{message}"
    );
}

#[tokio::test]
async fn the_api_server_refuses_what_pools_cannot_be() {
    let cluster = Cluster::start().await;
    let refused = |spec: serde_json::Value| {
        let class = json!({
            "apiVersion": "karpenter.ovhcloud.sh/v1alpha1", "kind": "OVHNodeClass", "metadata": {"name": "other"},
            "spec": spec,
        });
        cluster
            .sandbox
            .apply(&class.to_string())
            .expect_err("refused")
            .to_string()
    };
    assert!(refused(json!({"antiAffinity": true, "maxNodesPerPool": 6})).contains("at most 5 nodes"));
    assert!(refused(json!({"tags": {"karpenter.sh/nodepool": "x"}})).contains("karpenter.sh is not for tags"));
    assert!(
        refused(json!({"tags": {"node.kubernetes.io/instance-type": "x"}})).contains("kubernetes.io is not for tags")
    );
    assert!(refused(json!({"serviceName": "my-project"})).contains("serviceName"));
    assert!(refused(json!({"registrationTimeout": "1m"})).contains("between 5m and 4h"));
    assert!(refused(json!({"endpoint": "kimsufi-eu"})).contains("endpoint"));
}

#[tokio::test]
async fn a_deleted_class_goes_once_its_claims_and_pools_are_gone() {
    let cluster = Cluster::start().await;
    let claim = cluster.launch(&cluster.claim("a", json!([]))).await;
    cluster
        .sandbox
        .objects()
        .delete::<OvhNodeClass>("", "default", &Default::default())
        .expect("deleted");
    cluster.pass(MINUTE).await;
    assert_eq!(
        cluster.class().metadata.finalizers.expect("held").len(),
        1,
        "a claim still uses it"
    );
    assert!(cluster.was_told("default", "WaitingOnNodeClaimTermination"));
    let provider = cluster.provider();
    while provider.delete(&claim).await.expect("deleted") != karpenter_cloud::Deletion::Gone {
        cluster.pass(MINUTE / 12).await;
    }
    cluster.forget("a");
    let is_gone = || cluster.sandbox.objects().get::<OvhNodeClass>("", "default").is_none();
    assert!(cluster.until(is_gone).await, "let go");
    assert!(cluster.sim(|sim| sim.pools.is_empty()), "its pools are gone");
}

#[tokio::test]
async fn a_manifest_of_the_provider_written_in_go_applies_unchanged() {
    let spec = json!({
        "serviceName": SERVICE_NAME, "kubeId": KUBE_ID, "region": "EU-WEST-PAR",
        "credentialsSecretRef": {"name": "ovh-credentials", "namespace": "karpenter"},
        "monthlyBilled": false, "antiAffinity": false, "tags": {"environment": "production", "team": "platform"},
    });
    let cluster = Cluster::with(World::default(), |settings| settings.kube_id = None, spec).await;
    assert_eq!(cluster.condition("Ready").0, "True");
}

#[tokio::test]
async fn a_class_that_nobody_looked_at_is_not_ready_and_launches_nothing() {
    let cluster = Cluster::unready(World::default(), |_| (), json!({})).await;
    let claim = cluster.claim("a", json!([]));
    assert!(cluster.class().status.is_none(), "no default says that it is ready");
    let error = cluster.provider().create(&claim).await.expect_err("not ready");
    assert_eq!(error.launch_effect(), LaunchEffect::DeleteForNodeClass, "{error}");
    assert!(cluster.sim(|sim| sim.requests_of(&Method::POST, "").is_empty()));
}

#[tokio::test]
async fn another_cluster_of_the_project_is_a_mismatch_and_gets_no_pool() {
    let cluster = Cluster::unready(World::default(), |_| (), json!({})).await;
    // This machine is none of that cluster's, which has others.
    cluster.sim(|sim| sim.foreign_pool("theirs", 1));
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "mine"},
        "spec": {"providerID": "openstack:///of-another-cluster"},
    });
    cluster.sandbox.apply(&node.to_string()).expect("accepted");
    cluster.patch_class(&json!({"spec": {"kubeId": KUBE_ID}}));
    let told = || cluster.condition("ClusterReady").1 == "ClusterMismatch";
    assert!(cluster.until(told).await, "{:?}", cluster.condition("ClusterReady"));
    cluster
        .provider()
        .create(&cluster.claim("a", json!([])))
        .await
        .expect_err("not ready");
    assert!(cluster.sim(|sim| sim.requests_of(&Method::POST, "/nodepool").is_empty()));
}

#[tokio::test]
async fn a_missing_key_in_the_secret_is_named() {
    let cluster = Cluster::start().await;
    let without = json!({"data": {"applicationSecret": null}});
    let written = cluster
        .sandbox
        .objects()
        .patch::<Secret>("karpenter", "ovh-credentials", &without);
    written.expect("accepted");
    let told = || cluster.condition("CredentialsReady").1 == "SecretIncomplete";
    assert!(cluster.until(told).await);
    assert!(cluster.condition("CredentialsReady").2.contains("applicationSecret"));
}

#[tokio::test]
async fn a_good_new_key_replaces_the_old_one_for_good() {
    let cluster = Cluster::start().await;
    cluster.sim(|sim| sim.more_keys.push("a-new-consumer-key-of-32-letters".into()));
    let new = secret("a-new-consumer-key-of-32-letters").to_string();
    cluster.sandbox.apply(&new).expect("accepted");
    let with = |key: &str| {
        cluster.sim(|sim| {
            sim.requests
                .iter()
                .filter(|own| own.consumer.as_deref() == Some(key))
                .count()
        })
    };
    assert!(cluster.until(|| with("a-new-consumer-key-of-32-letters") > 0).await);
    cluster.pass(MINUTE).await;
    let old = with(CONSUMER_KEY);
    cluster.launch(&cluster.claim("a", json!([]))).await;
    cluster.pass(HOUR).await;
    assert_eq!(with(CONSUMER_KEY), old, "the old key is not used any more");
    assert_eq!(cluster.condition("Ready").0, "True");
}

#[tokio::test]
async fn a_blip_of_the_api_is_not_told_and_an_outage_is() {
    let cluster = Cluster::start().await;
    let down = || {
        cluster.sim(|sim| {
            for part in ["/cloud/", "/auth/"] {
                sim.faults.push(HttpFault::server_error(Method::GET, part));
            }
        });
    };
    // Looked at every five minutes, and every one while something is wrong.
    cluster.pass(MINUTE * 4).await;
    down();
    cluster.pass(MINUTE * 2).await;
    assert_eq!(cluster.condition("Ready").0, "True", "two minutes are a blip");
    cluster.sim(|sim| sim.faults.clear());
    cluster.pass(MINUTE * 6).await;
    down();
    cluster.pass(MINUTE * 15).await;
    assert_eq!(cluster.condition("Ready").0, "False", "ten minutes are an outage");
    assert!(cluster.condition("ClusterReady").2.contains("check OVH_ENDPOINT"));
    cluster.sim(|sim| sim.faults.clear());
    cluster.until_ready().await;
}

#[tokio::test]
async fn a_class_whose_credentials_are_gone_is_let_go_after_ten_minutes_and_says_what_is_left() {
    let cluster = Cluster::start().await;
    let claim = cluster.launch(&cluster.claim("a", json!([]))).await;
    cluster.pass(MINUTE * 2).await;
    cluster.sim(|sim| sim.key_revoked = true);
    drop(claim);
    cluster.forget("a");
    let deleted = cluster
        .sandbox
        .objects()
        .delete::<OvhNodeClass>("", "default", &Default::default());
    deleted.expect("deleted");
    cluster.pass(MINUTE * 9).await;
    assert!(cluster.sandbox.objects().get::<OvhNodeClass>("", "default").is_some());
    let is_gone = || cluster.sandbox.objects().get::<OvhNodeClass>("", "default").is_none();
    assert!(
        cluster.until(is_gone).await,
        "a finalizer that can never be met blocks everything"
    );
    let told = cluster.events("default").join("\n");
    assert!(
        told.contains("PoolsLeftBehind") && told.contains("karpenter-"),
        "{told}"
    );
}

#[tokio::test]
async fn a_key_that_expires_soon_is_told_of_if_it_can_be_asked() {
    for granted in [true, false] {
        let mut rules = World::minimal_rules(KUBE_ID);
        if granted {
            rules.push(("GET".into(), "/auth/currentCredential".into()));
        }
        let world = World {
            rules,
            ..World::default()
        };
        let cluster = Cluster::unready(world, |_| (), json!({})).await;
        let expiry = cluster.clock.now() + jiff::SignedDuration::from_hours(48);
        cluster.sim(|sim| sim.key_expires = Some(expiry));
        cluster.until_ready().await;
        cluster.pass(SECOND * 5).await;
        assert_eq!(cluster.was_told("default", "CredentialExpiring"), granted);
        let status = cluster
            .class()
            .status
            .expect("a status")
            .credential
            .expect("a credential");
        assert_eq!(status.expires_at.is_some(), granted);
    }
}

#[tokio::test]
async fn a_key_that_tells_its_rules_is_held_to_them_before_the_first_launch() {
    let mut rules = World::minimal_rules(KUBE_ID);
    rules.retain(|(method, _)| method != "PUT");
    rules.push(("GET".into(), "/auth/currentCredential".into()));
    let world = World {
        rules,
        ..World::default()
    };
    let cluster = Cluster::unready(world, |_| (), json!({})).await;
    let told = || cluster.condition("CredentialsReady").1 == "MissingRights";
    assert!(cluster.until(told).await, "{:?}", cluster.condition("CredentialsReady"));
    let message = cluster.condition("CredentialsReady").2;
    assert!(
        message.contains("PUT /cloud/project/") && !message.contains("POST"),
        "{message}"
    );
}
