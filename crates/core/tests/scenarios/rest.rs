//! A cluster in which nothing happens is left in peace: no requests, and no more work than the polls that must be.

use std::collections::BTreeMap;

use karpenter_cloud::fake::Method;
use serde_json::json;

use crate::cluster::Cluster;

/// Nodes that are in use, long after the last of them came up.
async fn at_rest(nodes: usize) -> Cluster {
    let cluster = Cluster::start().await;
    let disruption = json!({"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "30s"});
    for number in 0..nodes {
        let name = format!("node-{number:02}");
        cluster.claim(&name, "expireAfter: 720h").await;
        cluster.pod_on(&name, &format!("pod-{number:02}"), "1900m", "").await;
    }
    cluster.open_pool(disruption).await;
    cluster.minutes(20).await;
    cluster
}

/// How often each controller has reconciled.
fn reconciles(cluster: &Cluster) -> BTreeMap<String, u64> {
    let text = cluster.ctx.metrics.registry.encode();
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("controller_runtime_reconcile_total{controller=\"") else {
            continue;
        };
        let (name, rest) = rest.split_once('"').expect("a label value is quoted");
        let count: u64 = rest.rsplit(' ').next().unwrap().parse().expect("a count");
        *counts.entry(name.to_owned()).or_default() += count;
    }
    counts
}

/// Reconciles within ten minutes by controller; those that did not reconcile are left out.
async fn work_of_ten_minutes(cluster: &Cluster) -> BTreeMap<String, u64> {
    let before = reconciles(cluster);
    cluster.sandbox.requests().clear();
    cluster.minutes(10).await;
    let mut after = reconciles(cluster);
    for (name, count) in &mut after {
        *count -= before.get(name).copied().unwrap_or_default();
    }
    after.retain(|_, count| *count > 0);
    after
}

#[tokio::test]
async fn a_cluster_at_rest_gets_no_request_and_no_write() {
    let cluster = at_rest(6).await;
    work_of_ten_minutes(&cluster).await;
    let agent = cluster.agent().to_owned();
    let asked = cluster
        .sandbox
        .requests()
        .matching(|request| request.attributes.agent == agent && request.attributes.verb != "watch");
    assert!(asked.is_empty(), "{asked:?}");
}

#[tokio::test]
async fn at_rest_only_the_known_polls_go_on() {
    let nodes = 6;
    let cluster = at_rest(nodes).await;
    let calls = |method| cluster.cloud.calls(method);
    let (listed, created, drift) = (calls(Method::List), calls(Method::Create), calls(Method::IsDrifted));
    let work = work_of_ten_minutes(&cluster).await;
    let nodes = nodes as u64;
    let polls = [
        ("disruption", 60),
        ("metrics.nodepool", 60),
        ("nodeclaim.adoption", 20),
        ("nodeclaim.consistency", nodes),
        ("nodeclaim.disruption", 2 * nodes),
        ("nodeclaim.garbagecollection", 5),
        ("nodepool.counter", 120),
    ];
    let polls: BTreeMap<String, u64> = polls.map(|(name, count)| (name.to_owned(), count)).into();
    assert_eq!(work, polls);
    assert_eq!(calls(Method::Create), created);
    assert_eq!(calls(Method::List) - listed, 5);
    assert_eq!(calls(Method::IsDrifted) - drift, 2 * nodes);
}
