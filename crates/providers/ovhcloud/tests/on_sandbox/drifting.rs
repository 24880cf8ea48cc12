//! What of a machine is not what its class asks for any more, and what of it does not matter.

use karpenter_api::NodeClaim;
use karpenter_cloud::CloudProvider;
use karpenter_ovhcloud::sim::World;
use serde_json::{Value, json};

use crate::environment::{Cluster, only};
use crate::launching::sizes;

async fn drift(cluster: &Cluster, claim: &NodeClaim) -> Option<String> {
    let found = cluster.provider().is_drifted(claim).await.expect("readable");
    found.map(|reason| reason.0)
}

async fn changed(spec: Value) -> Option<String> {
    let cluster = Cluster::start().await;
    let claim = cluster.launch(&cluster.claim("a", only("b2-7", "eu-west-par-a"))).await;
    assert_eq!(drift(&cluster, &claim).await, None);
    cluster.patch_class(&json!({"spec": spec}));
    cluster.until_ready().await;
    drift(&cluster, &claim).await
}

#[tokio::test]
async fn what_pools_fix_drifts() {
    for (spec, reason) in [
        (json!({"monthlyBilled": true}), "MonthlyBillingChanged"),
        (json!({"antiAffinity": true}), "AntiAffinityChanged"),
        (json!({"tags": {"team": "web"}}), "NodeClassDrift"),
        (json!({"attachFloatingIps": {"enabled": true}}), "NodeClassDrift"),
        (json!({"availabilityZones": ["eu-west-par-b"]}), "ZoneDrift"),
    ] {
        assert_eq!(changed(spec.clone()).await.as_deref(), Some(reason), "{spec}");
    }
}

#[tokio::test]
async fn what_pools_do_not_fix_does_not_drift() {
    for spec in [
        json!({"region": "eu-west-par"}),
        json!({"maxNodesPerPool": 7}),
        json!({"kubeReserved": {"cpu": "1"}}),
        json!({"credentialsSecretRef": {"name": "ovh-credentials", "namespace": "karpenter"}}),
    ] {
        assert_eq!(changed(spec.clone()).await, None, "{spec}");
    }
}

#[tokio::test]
async fn a_toggled_billing_moves_to_a_new_pool_and_back_without_oscillating() {
    let cluster = Cluster::start().await;
    let hourly = cluster
        .launch(&cluster.claim("hourly", only("b2-7", "eu-west-par-a")))
        .await;
    cluster.patch_class(&json!({"spec": {"monthlyBilled": true}}));
    cluster.until_ready().await;
    let monthly = cluster
        .launch(&cluster.claim("monthly", only("b2-7", "eu-west-par-a")))
        .await;
    assert_eq!(drift(&cluster, &hourly).await.as_deref(), Some("MonthlyBillingChanged"));
    assert_eq!(drift(&cluster, &monthly).await, None, "the new one stays");
    assert_eq!(sizes(&cluster), [1, 1], "they share no pool");
    cluster.terminate(&hourly).await;
    assert_eq!(drift(&cluster, &monthly).await, None);
    assert_eq!(sizes(&cluster), [0, 1]);
}

#[tokio::test]
async fn two_classes_that_bill_differently_are_each_at_rest() {
    let cluster = Cluster::start().await;
    let other = json!({
        "apiVersion": "karpenter.ovhcloud.sh/v1alpha1", "kind": "OVHNodeClass",
        "metadata": {"name": "monthly"}, "spec": {"monthlyBilled": true},
    });
    cluster.sandbox.apply(&other.to_string()).expect("accepted");
    let first = cluster.launch(&cluster.claim("a", only("b2-7", "eu-west-par-a"))).await;
    let spec = json!({
        "requirements": only("b2-7", "eu-west-par-a"),
        "nodeClassRef": {"group": "karpenter.ovhcloud.sh", "kind": "OVHNodeClass", "name": "monthly"},
    });
    let second = cluster.claim_with("b", spec);
    let is_ready = || {
        use karpenter_api::conditions::StatusConditions;
        let class: Option<karpenter_ovhcloud::OvhNodeClass> = cluster.sandbox.objects().get("", "monthly");
        class.is_some_and(|class| class.is_ready())
    };
    assert!(cluster.until(is_ready).await);
    let second = cluster.launch(&second).await;
    assert_eq!(sizes(&cluster), [1, 1]);
    assert_eq!(drift(&cluster, &first).await, None);
    assert_eq!(drift(&cluster, &second).await, None);
}

#[tokio::test]
async fn a_flavor_that_cannot_be_had_any_more_drifts_nobody() {
    let cluster = Cluster::of(World::default()).await;
    let claim = cluster.launch(&cluster.claim("a", only("b3-8", "eu-west-par-a"))).await;
    cluster.sim(|sim| {
        let flavor = sim.world.flavors.iter_mut().find(|own| own.name == "b3-8");
        flavor.expect("listed").state = "unavailable".into();
    });
    cluster.pass(crate::environment::MINUTE * 6).await;
    assert_eq!(drift(&cluster, &claim).await, None);
    let types = cluster
        .provider()
        .instance_types(&crate::environment::parsed_node_pool())
        .await
        .expect("types");
    let own = types.iter().find(|own| own.name == "b3-8").expect("still listed");
    assert!(own.offerings.iter().all(|offering| !offering.available));
}
