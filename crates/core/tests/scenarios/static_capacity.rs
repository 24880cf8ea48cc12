//! NodePools with `replicas`.

use karpenter_api::{NodeClaim, NodePool};
use karpenter_sandbox::faults::Fault;
use serde_json::json;

use crate::cluster::Cluster;
use crate::world::vanish;

async fn with_pool(replicas: u32, extra: &str) -> Cluster {
    let cluster = Cluster::start().await;
    cluster
        .apply(&format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {{name: fixed}}, spec: {{replicas: {replicas}, {extra} \
             template: {{spec: {{requirements: [{{key: node.kubernetes.io/instance-type, operator: In, values: [fake-2x]}}], \
             nodeClassRef: {{group: karpenter.test.sh, kind: TestNodeClass, name: default}}}}}}}}}}"
        ))
        .await;
    cluster.seconds(2).await;
    cluster
}

fn claims(cluster: &Cluster) -> Vec<NodeClaim> {
    let mut claims: Vec<NodeClaim> = cluster.objects().list("");
    claims.retain(|claim| claim.node_pool() == Some("fixed"));
    claims
}

async fn scale(cluster: &Cluster, replicas: u32) {
    cluster
        .objects()
        .patch::<NodePool>("", "fixed", &json!({"spec": {"replicas": replicas}}))
        .unwrap();
    cluster.sandbox.settle().await;
}

#[tokio::test]
async fn a_static_pool_keeps_its_number_of_nodes() {
    let cluster = with_pool(3, "").await;
    assert_eq!(claims(&cluster).len(), 3);
    assert_eq!(cluster.cloud.machines().len(), 3);
    let lost = claims(&cluster).remove(0).metadata.name.unwrap();
    cluster.delete_claim(&lost).await;
    cluster.minutes(2).await;
    assert_eq!(claims(&cluster).len(), 3);
    assert_eq!(cluster.cloud.machines().len(), 3);
    assert!(cluster.get_claim(&lost).is_none());
}

#[tokio::test]
async fn a_static_pool_stays_within_its_limit() {
    let cluster = with_pool(3, "limits: {nodes: '2'},").await;
    assert_eq!(claims(&cluster).len(), 2);
    cluster.minutes(5).await;
    assert_eq!(claims(&cluster).len(), 2);
}

#[tokio::test]
async fn a_static_pool_at_its_limit_tries_again_every_thirty_seconds() {
    let cluster = with_pool(3, "limits: {nodes: '2'},").await;
    cluster.seconds(30).await;
    let tries = || {
        let name = "controller_runtime_reconcile_total{controller=\"static.provisioning\",result=\"requeue_after\"}";
        cluster.metric(name)
    };
    let before = tries();
    cluster.minutes(5).await;
    assert_eq!(tries() - before, 10.0);
}

#[tokio::test]
async fn a_claim_of_a_static_pool_that_is_gone_before_the_watch_showed_it_is_made_again() {
    let cluster = with_pool(0, "").await;
    for verb in ["watch", "list"] {
        let blind = Fault::fail(503)
            .verb(verb)
            .resource("nodeclaims")
            .agent(cluster.agent());
        cluster.sandbox.faults().inject(blind);
    }
    cluster.sandbox.faults().drop_watches();
    scale(&cluster, 1).await;
    let [lost] = claims(&cluster).try_into().unwrap();
    let lost = lost.metadata.name.unwrap();
    vanish(&cluster.objects(), &lost);
    cluster.seconds(10).await;
    assert!(claims(&cluster).is_empty(), "it may still show up");
    cluster.sandbox.faults().clear();
    cluster.minutes(3).await;
    let [again] = claims(&cluster).try_into().unwrap();
    assert_ne!(again.metadata.name, Some(lost));
}

#[tokio::test]
async fn a_restart_creates_nothing_that_is_there() {
    let mut cluster = with_pool(5, "").await;
    cluster.restart().await;
    cluster.minutes(3).await;
    assert_eq!(claims(&cluster).len(), 5);
    assert_eq!(cluster.cloud.launches(), 5);
}

#[tokio::test]
async fn a_static_pool_scales_down_to_exactly_its_replicas() {
    let cluster = with_pool(6, "").await;
    scale(&cluster, 2).await;
    let staying = claims(&cluster).iter().filter(|claim| !claim.is_terminating()).count();
    assert_eq!(staying, 2);
    cluster.minutes(1).await;
    assert_eq!(claims(&cluster).len(), 2);
    assert_eq!(cluster.cloud.machines().len(), 2);
    scale(&cluster, 0).await;
    cluster.minutes(1).await;
    assert!(claims(&cluster).is_empty() && cluster.cloud.machines().is_empty());
}
