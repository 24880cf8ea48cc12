//! Every call that the API's page lists as needed is made, with its exact path and body, and no other is.

use std::collections::BTreeSet;

use karpenter_cloud::CloudProvider;
use karpenter_ovhcloud::sim::{KUBE_ID, SERVICE_NAME, World};
use serde_json::json;

use crate::environment::{Cluster, MINUTE, only};

/// The calls as they are documented, ids taken out: those that eight rights grant, and the public ones.
const NEEDED: [(&str, &str); 12] = [
    ("DELETE", "/1.0/cloud/project/{p}/kube/{k}/nodepool/{id}"),
    ("GET", "/1.0/auth/time"),
    (
        "GET",
        "/1.0/cloud/project/{p}/capabilities/kube/flavors?region=EU-WEST-PAR",
    ),
    ("GET", "/1.0/cloud/project/{p}/capabilities/kube/regions"),
    ("GET", "/1.0/cloud/project/{p}/kube/{k}"),
    ("GET", "/1.0/cloud/project/{p}/kube/{k}/flavors"),
    ("GET", "/1.0/cloud/project/{p}/kube/{k}/nodepool"),
    ("GET", "/1.0/cloud/project/{p}/kube/{k}/nodepool/{id}"),
    ("GET", "/1.0/cloud/project/{p}/kube/{k}/nodepool/{id}/nodes"),
    ("GET", "/1.0/order/catalog/public/cloud?ovhSubsidiary=FR"),
    ("POST", "/1.0/cloud/project/{p}/kube/{k}/nodepool"),
    ("PUT", "/1.0/cloud/project/{p}/kube/{k}/nodepool/{id}"),
];

/// Calls that need more rights: tried, and used when they are granted.
const OPTIONAL: [(&str, &str); 6] = [
    ("GET", "/1.0/auth/currentCredential"),
    ("GET", "/1.0/cloud/project/{p}/flavor?region=EU-WEST-PAR"),
    ("GET", "/1.0/cloud/project/{p}/kube"),
    ("GET", "/1.0/cloud/project/{p}/kube/{k}/node"),
    ("GET", "/1.0/cloud/project/{p}/region/EU-WEST-PAR"),
    ("GET", "/1.0/cloud/project/{p}/region/EU-WEST-PAR/quota"),
];

/// The calls that were made and answered so, ids taken out.
fn seen(cluster: &Cluster, is_asked: impl Fn(u16) -> bool) -> BTreeSet<(String, String)> {
    cluster.sim(|sim| {
        let answered = sim.requests.iter().filter(|own| is_asked(own.status));
        answered
            .map(|own| {
                let path = own.path.replace(SERVICE_NAME, "{p}").replace(KUBE_ID, "{k}");
                let parts: Vec<&str> = path.split('/').collect();
                let pool = parts.iter().position(|part| *part == "nodepool").map(|at| at + 1);
                let parts = parts.iter().enumerate();
                let parts: Vec<&str> = parts
                    .map(|(at, part)| if Some(at) == pool { "{id}" } else { *part })
                    .collect();
                (own.method.to_string(), parts.join("/"))
            })
            .collect()
    })
}

fn listed(calls: &[(&str, &str)]) -> BTreeSet<(String, String)> {
    let calls = calls.iter();
    calls
        .map(|(method, path)| ((*method).to_owned(), (*path).to_owned()))
        .collect()
}

/// A node comes and goes, and its pool with it; on the way a wrong region is corrected.
async fn a_life(cluster: &Cluster) {
    cluster.until_ready().await;
    let first = cluster.launch(&cluster.claim("a", only("b3-8", "eu-west-par-a"))).await;
    let second = cluster.launch(&cluster.claim("b", only("b3-8", "eu-west-par-a"))).await;
    cluster.provider().list().await.expect("listed");
    cluster.terminate(&first).await;
    cluster.terminate(&second).await;
    cluster.pass(MINUTE * 12).await;
    assert!(cluster.sim(|sim| sim.pools.is_empty()));
    cluster.patch_class(&json!({"spec": {"region": "GRA7"}}));
    let told = || cluster.condition("ClusterReady").1 == "RegionMismatch";
    assert!(cluster.until(told).await);
    let message = cluster.condition("ClusterReady").2;
    assert!(message.ends_with("(GRA7 is none of EU-WEST-PAR)"), "{message}");
}

#[tokio::test]
async fn with_the_minimal_rights_exactly_the_needed_calls_are_granted_and_made() {
    let world = World {
        rules: World::minimal_rules(KUBE_ID),
        ..World::default()
    };
    let cluster = Cluster::unready(world, |_| (), json!({})).await;
    a_life(&cluster).await;
    assert_eq!(seen(&cluster, |status| status == 200), listed(&NEEDED));
    let tried: BTreeSet<_> = listed(&OPTIONAL);
    let refused = seen(&cluster, |status| status == 403);
    assert!(refused.is_subset(&tried), "{refused:?}");
    assert!(cluster.sim(|sim| sim.unknown_paths.is_empty()));
    let status = cluster.class().status.expect("a status");
    assert!(status.optional_rights.is_empty(), "{:?}", status.optional_rights);
    assert_eq!(
        status.zones,
        ["eu-west-par-a", "eu-west-par-b", "eu-west-par-c"],
        "known without the right to ask"
    );
}

#[tokio::test]
async fn optional_calls_are_made_once_granted_and_not_repeated_when_refused() {
    let cluster = Cluster::unready(World::default(), |settings| settings.kube_id = None, json!({})).await;
    // Nothing else tells which cluster this is: a Node that is one of its machines does.
    let machine = cluster.sim(|sim| {
        let pool = sim.foreign_pool("fixed", 1);
        let own = sim.nodes.values().find(|node| node.pool == pool);
        own.map(|node| node.id.clone())
    });
    let machine = machine.unwrap_or_else(|| cluster.sim(|sim| sim.nodes.keys().next().expect("made").clone()));
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "fixed-0"},
        "spec": {"providerID": format!("openstack:///i-{machine}")},
    });
    cluster.sandbox.apply(&node.to_string()).expect("accepted");
    cluster.sim(|sim| sim.foreign_pool("keep", 0));
    cluster.until_ready().await;
    let calls = seen(&cluster, |status| status == 200);
    let missing: Vec<_> = listed(&OPTIONAL).difference(&calls).cloned().collect();
    assert!(missing.is_empty(), "{missing:?}");
    let rights = cluster.class().status.expect("a status").optional_rights;
    assert_eq!(
        rights,
        ["credential", "node/delete", "node/get", "flavor", "region", "quota"]
    );
    cluster.sim(|sim| {
        sim.world.rules = World::minimal_rules(KUBE_ID);
        sim.requests.clear();
    });
    cluster.pass(MINUTE * 60).await;
    let refused = cluster.sim(|sim| sim.requests.iter().filter(|own| own.status == 403).count());
    assert!(refused <= 8, "{refused}: each is found out once");
}

#[tokio::test]
async fn all_machines_are_listed_in_one_call_where_that_is_granted() {
    let cluster = Cluster::start().await;
    for (number, flavor) in ["b3-8", "b3-16", "b3-32"].iter().enumerate() {
        cluster
            .launch(&cluster.claim(&format!("c{number}"), only(flavor, "eu-west-par-a")))
            .await;
    }
    cluster.sim(|sim| {
        sim.foreign_pool("theirs", 2);
        sim.requests.clear();
    });
    let listed = cluster.provider().list().await.expect("listed");
    assert_eq!(listed.len(), 3, "ours, and not theirs");
    assert!(listed.iter().all(|own| own.claim.is_some()));
    let calls = cluster.sim(|sim| sim.requests.iter().map(|own| own.path.clone()).collect::<Vec<_>>());
    assert_eq!(calls.len(), 2, "pools and nodes: {calls:?}");
}
