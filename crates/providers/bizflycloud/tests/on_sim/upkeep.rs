//! Servers that stop and break under core's controllers, and the whole life of a cluster to its last coin.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod},
};
use karpenter_api::{NodeClaim, NodePool, conditions::StatusConditions, labels::INSTANCE_TYPE};
use karpenter_bizflycloud::BizflyCloudNodeClass;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, nodes, repaired_cluster, running},
    environment::{World, pool},
};

fn deployment(name: &str, replicas: u32, more: Value) -> Value {
    let mut spec = json!({
        "terminationGracePeriodSeconds": 5,
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
    });
    for (key, value) in more.as_object().expect("fields") {
        spec[key] = value.clone();
    }
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
        },
    })
}

fn own_pool(flavors: &[&str]) -> Value {
    let mut own = pool(json!([{"key": INSTANCE_TYPE, "operator": "In", "values": flavors}]));
    let disruption = json!({
        "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "30s", "budgets": [{"nodes": "100%"}],
    });
    own.spec.disruption = serde_json::from_value(disruption).expect("a policy");
    serde_json::to_value(&own).expect("plain data")
}

/// Times of the `start` actions that a server was sent.
fn starts(world: &World, server: &str) -> Vec<Timestamp> {
    let requests = world.cloud.requests().into_iter();
    let actions = requests.filter(|own| own.path.ends_with(&format!("/servers/{server}/action")));
    let starts = actions.filter(|own| own.body == json!({"action": "start"}));
    starts.map(|own| own.at).collect()
}

#[tokio::test]
async fn a_server_that_was_stopped_is_started_once_and_one_in_error_is_replaced_soon() {
    let cluster = repaired_cluster(json!({})).await;
    let world = &cluster.world;
    let mut own = own_pool(&["nix.4c_8g"]);
    // Pods leave a node that is to be rebooted; it stays for others.
    own["spec"]["disruption"]["consolidateAfter"] = json!("Never");
    world.apply(&own);
    world.apply(&deployment("web", 2, json!({})));
    cluster.until("2 pods run", |world| running(world) == 2).await;
    let server = world.live()[0].clone();
    let node = nodes(world)[0].metadata.name.clone().expect("a name");
    let stopped = world.clock.now();
    world.cloud.set_status(&server, "SHUTOFF");
    cluster
        .until("it is started", |world| !starts(world, &server).is_empty())
        .await;
    let waited = starts(world, &server)[0].duration_since(stopped).as_secs();
    assert!(
        (180..=300).contains(&waited),
        "three minutes after it was seen: {waited} s"
    );
    cluster
        .until("its node is told that it runs", |world| {
            world.server_health(&node).is_some_and(|(status, _)| status == "True")
        })
        .await;
    cluster
        .until("the reboot is over", |world| {
            let claims = world.sandbox.objects().list::<NodeClaim>("");
            !claims
                .iter()
                .any(|own| own.condition("Rebooting").is_some_and(|own| own.is_true()))
        })
        .await;
    world.clock.sleep(Duration::from_secs(300)).await;
    assert_eq!(starts(world, &server).len(), 1, "once");
    assert!(world.live().contains(&server), "it is not replaced");
    let pods = world.sandbox.objects().list::<Pod>("default");
    let busy = pods[0]
        .spec
        .as_ref()
        .and_then(|spec| spec.node_name.clone())
        .expect("bound");
    let servers = world.cloud.servers();
    let broken = servers
        .iter()
        .find(|own| own.name == busy)
        .expect("a server")
        .id
        .clone();
    let since = world.clock.now();
    world.cloud.set_status(&broken, "ERROR");
    cluster
        .until("its pods run elsewhere, and it is gone", |world| {
            !world.live().contains(&broken) && running(world) == 2
        })
        .await;
    let took = world.clock.since(since).as_secs();
    assert!(took < 600, "not after half an hour: {took} s");
}

/// When each server showed, as it is seen every other second.
#[derive(Clone, Default)]
struct Births(Arc<Mutex<BTreeMap<String, Timestamp>>>);

impl Births {
    fn watch(&self, cluster: &mut Cluster) {
        let (births, cloud, clock) = (self.0.clone(), cluster.world.cloud.clone(), cluster.world.clock.clone());
        cluster.tasks.spawn(async move {
            loop {
                for server in cloud.servers() {
                    births
                        .lock()
                        .expect("not poisoned")
                        .insert(server.id, server.created_at);
                }
                clock.sleep(Duration::from_secs(2)).await;
            }
        });
    }

    /// What servers cost by the prices that were told when each was made, from its birth to its end.
    fn bill(&self, world: &World, deletion_delay: f64) -> f64 {
        let told = world.events("ServerCreated");
        let requests = world.cloud.requests();
        let births = self.0.lock().expect("not poisoned");
        assert_eq!(births.len(), told.len(), "each server is told once: {told:#?}");
        let of_one = |(id, born): (&String, &Timestamp)| {
            let told = told.iter().find(|own| own.contains(id.as_str())).expect("told");
            let price = told.split(" for ").nth(1).and_then(|own| own.split(' ').next());
            let price: f64 = price
                .and_then(|own| own.parse().ok())
                .unwrap_or_else(|| panic!("{told}"));
            let deleted = requests
                .iter()
                .find(|own| own.method == "DELETE" && own.path.ends_with(&format!("/servers/{id}")));
            let seconds = deleted.expect("deleted").at.duration_since(*born).as_secs_f64() + deletion_delay;
            price * seconds / 3600.0
        };
        births.iter().map(of_one).sum()
    }
}

#[tokio::test]
async fn a_cluster_that_comes_grows_shrinks_drifts_breaks_and_goes_leaves_nothing_and_cost_what_was_listed() {
    let mut cluster = repaired_cluster(json!({})).await;
    let births = Births::default();
    births.watch(&mut cluster);
    let world = &cluster.world;
    let objects = world.sandbox.objects();
    world.apply(&own_pool(&["nix.4c_8g", "nix.8c_16g"]));
    world.apply(&deployment("web", 6, json!({})));
    cluster.until("it comes", |world| running(world) == 6).await;

    let spread = json!({"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "api"}},
    }]});
    world.apply(&deployment("api", 4, spread));
    cluster
        .until("it grows, over both zones", |world| {
            running(world) == 10 && zones_of(world, "api").values().all(|pods| *pods == 2)
        })
        .await;
    let vcpus = |world: &World| world.cloud.servers().iter().map(|own| own.vcpus).sum::<u64>();
    let most = vcpus(world);

    let fewer = json!({"spec": {"replicas": 1}});
    objects.patch::<Deployment>("default", "web", &fewer).expect("accepted");
    cluster
        .until("it shrinks, and its servers with it", |world| {
            running(world) == 5 && vcpus(world) < most
        })
        .await;

    let old = world.live();
    let larger = json!({"spec": {"rootDiskSize": 60}});
    objects
        .patch::<BizflyCloudNodeClass>("", "default", &larger)
        .expect("accepted");
    cluster
        .until("every server drifts and is replaced", |world| {
            let live = world.live();
            running(world) == 5 && !live.is_empty() && live.iter().all(|own| !old.contains(own))
        })
        .await;

    let broken = world.live()[0].clone();
    world.cloud.set_status(&broken, "ERROR");
    cluster
        .until("one breaks and is replaced", |world| {
            running(world) == 5 && !world.live().contains(&broken)
        })
        .await;

    for name in ["web", "api"] {
        let gone = objects.delete::<Deployment>("default", name, &Default::default());
        gone.expect("deleted");
    }
    objects
        .delete::<NodePool>("", "default", &Default::default())
        .expect("deleted");
    cluster
        .until("everything goes", |world| {
            let objects = world.sandbox.objects();
            nodes(world).is_empty()
                && objects.list::<NodeClaim>("").is_empty()
                && objects.list::<Pod>("default").is_empty()
                && world.cloud.leaks().is_empty()
        })
        .await;
    let (spent, expected) = (world.cloud.spent(), births.bill(world, 3.0));
    assert!(
        (spent - expected).abs() < expected * 1e-3,
        "spent {spent}, expected {expected}"
    );
}

/// How many pods of an app run in each zone.
fn zones_of(world: &World, app: &str) -> BTreeMap<String, usize> {
    let mut zones: BTreeMap<String, usize> = ["HN1", "HN2"].map(|zone| (zone.to_owned(), 0)).into();
    let objects = world.sandbox.objects();
    for pod in objects.list::<Pod>("default") {
        let is_own = pod.metadata.labels.as_ref().is_some_and(|labels| labels["app"] == app);
        let node = pod.spec.and_then(|spec| spec.node_name);
        let node = node.and_then(|name| objects.get::<Node>("", &name));
        if let (true, Some(node)) = (is_own, node) {
            let zone = node.metadata.labels.unwrap_or_default()["topology.kubernetes.io/zone"].clone();
            *zones.entry(zone).or_default() += 1;
        }
    }
    zones
}
