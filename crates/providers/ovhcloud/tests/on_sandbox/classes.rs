//! What OVHNodeClasses say about themselves.

use karpenter_cloud::{CloudProvider, LaunchEffect};
use karpenter_ovhcloud::{
    OvhNodeClass,
    sim::{CONSUMER_KEY, KUBE_ID, World},
};
use serde_json::json;

use crate::environment::{Cluster, MINUTE, secret};

#[tokio::test]
async fn a_class_with_nothing_but_the_project_becomes_ready_and_says_what_it_found() {
    let spec = json!({"serviceName": karpenter_ovhcloud::sim::SERVICE_NAME});
    let cluster = Cluster::with(World::default(), |_| (), spec).await;
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
    cluster.until_ready().await;
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
    cluster.pass(MINUTE / 2, 10).await;
    let refused = cluster.sim(|sim| sim.requests.iter().filter(|own| own.status == 403).count());
    assert!(refused <= 4, "{refused} calls were made with a revoked key");
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
async fn without_a_catalogue_prices_are_estimated_and_launches_work() {
    let cluster = Cluster::with(
        World::default(),
        |settings| settings.subsidiary = Some("ZZ".into()),
        json!({}),
    )
    .await;
    assert_eq!(cluster.condition("PricingReady").1, "CatalogUnavailable");
    assert_eq!(
        cluster
            .class()
            .status
            .expect("a status")
            .pricing
            .expect("prices")
            .source,
        "Estimate"
    );
    cluster.launch(&cluster.claim("a", json!([]))).await;
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
    cluster.pass(MINUTE, 5).await;
    assert_eq!(
        cluster.class().metadata.finalizers.expect("held").len(),
        1,
        "a claim still uses it"
    );
    let provider = cluster.provider();
    while provider.delete(&claim).await.expect("deleted") != karpenter_cloud::Deletion::Gone {
        cluster.pass(MINUTE / 12, 1).await;
    }
    cluster.forget("a");
    let is_gone = || {
        cluster.clock.jump(MINUTE / 12);
        cluster.sandbox.objects().get::<OvhNodeClass>("", "default").is_none()
    };
    assert!(cluster.until(is_gone).await, "let go");
    assert!(cluster.sim(|sim| sim.pools.is_empty()), "its pools are gone");
}
