//! What users see: pods, nodes and pools, with core's controllers at work.

use std::collections::BTreeSet;

use http::Method;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};
use karpenter_api::{NodePool, labels};
use karpenter_core::options::Options;
use karpenter_ovhcloud::{
    OvhNodeClass, names,
    sim::{Delays, HttpFault, InstanceTypeLabel, KUBE_ID, ReservedMemory, World},
};
use karpenter_sandbox::DeleteOptions;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::environment::{HOUR, MINUTE};
use crate::whole::{INSTANCE_TYPE, Whole, ZONE_LABEL};

fn one_cpu() -> Value {
    json!({"cpu": "1", "memory": "1Gi"})
}

fn one_zone() -> World {
    World {
        region: "GRA11".into(),
        zones: Vec::new(),
        ..World::default()
    }
}

#[tokio::test]
async fn the_quick_start_brings_nodes_in_two_minutes_and_leaves_nothing() {
    let world = World {
        delays: Delays::realistic(),
        ..World::default()
    };
    let whole = Whole::start(world, &["b3-8", "b3-16", "b3-32"]).await;
    let asked_at = whole.cluster.clock.now();
    whole.deploy("inflate", 5, one_cpu(), json!({}));
    whole.until_running(5).await;
    let took = whole.cluster.clock.since(asked_at);
    assert!(took.as_secs() <= 180, "took {took:?}");
    for node in whole.nodes() {
        assert_eq!(node.labels()["karpenter.ovhcloud.sh/instance-family"], "b3");
        assert_eq!(node.labels()[labels::REGISTERED], "true");
    }
    assert_eq!(whole.nodes().len(), whole.claims().len());
    whole.scale("inflate", 0);
    let scaled_at = whole.cluster.clock.now();
    whole.until_no_node().await;
    assert!(whole.cluster.clock.since(scaled_at).as_secs() >= 30, "consolidateAfter");
    whole.cluster.pass(MINUTE * 15).await;
    whole.cluster.sim(|sim| {
        assert!(sim.pools.is_empty() && sim.nodes.is_empty());
        assert!(sim.unnamed_removals.is_empty() && sim.unknown_paths.is_empty());
    });
}

#[tokio::test]
async fn pods_that_spread_over_zones_get_two_in_each() {
    // One pod fills a node, so that the scheduler cannot spread over fewer zones while the nodes of one are late. The key may
    // not ask for the region's zones: they are known.
    let world = World {
        rules: World::minimal_rules(KUBE_ID),
        ..World::default()
    };
    let whole = Whole::start(world, &["b3-8"]).await;
    let spread = json!({"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": ZONE_LABEL, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }]});
    whole.deploy("spread", 6, one_cpu(), spread);
    whole.until_running(6).await;
    let zones = whole.running_by(ZONE_LABEL);
    assert_eq!(zones.values().copied().collect::<Vec<_>>(), [2, 2, 2], "{zones:?}");
}

#[tokio::test]
async fn a_pod_that_selects_the_zone_nova_runs_in_a_one_zone_region() {
    let whole = Whole::start(one_zone(), &["b3-8"]).await;
    whole.deploy("web", 1, one_cpu(), json!({"nodeSelector": {ZONE_LABEL: "nova"}}));
    whole.until_running(1).await;
    assert_eq!(whole.asked_for(), [("b3-8".to_owned(), 1, Value::Null)]);
}

#[tokio::test]
async fn nodes_of_a_one_zone_region_stay_in_nova_where_pools_must_name_a_zone() {
    let world = World {
        zone_mandatory: true,
        ..one_zone()
    };
    let whole = Whole::start(world, &["b3-8"]).await;
    whole.deploy("web", 1, one_cpu(), json!({"nodeSelector": {ZONE_LABEL: "nova"}}));
    whole.until_running(1).await;
    whole.cluster.pass(MINUTE * 5).await;
    let node = whole.node();
    assert_eq!(node.labels()[ZONE_LABEL], "nova");
    assert_eq!(node.labels()["failure-domain.beta.kubernetes.io/zone"], "nova");
    assert_eq!(node.labels()["topology.kubernetes.io/region"], "GRA11");
    assert_eq!(whole.running().len(), 1);
}

#[tokio::test]
async fn a_changed_label_keeps_the_pool_and_a_changed_taint_makes_another() {
    let whole = Whole::start(one_zone(), &["b3-8"]).await;
    let tolerant = json!({"tolerations": [{"operator": "Exists"}]});
    whole.deploy("web", 1, one_cpu(), tolerant);
    whole.until_running(1).await;
    let used = || {
        whole.cluster.sim(|sim| {
            let used = sim.pools.values().filter(|pool| pool.desired > 0);
            used.map(|pool| pool.id.clone()).collect::<Vec<_>>()
        })
    };
    let first = used();
    let objects = whole.cluster.sandbox.objects();
    let labelled = json!({"spec": {"template": {"metadata": {"labels": {"team": "web"}}}}});
    objects.patch::<NodePool>("", "default", &labelled).expect("accepted");
    let is_labelled = || {
        let nodes = whole.nodes();
        nodes.len() == 1 && nodes[0].labels().get("team").is_some_and(|own| own == "web") && whole.running().len() == 1
    };
    assert!(whole.cluster.until(is_labelled).await, "replaced for the label");
    assert_eq!(used(), first, "in the same pool");
    assert_eq!(whole.asked_for().len(), 1);
    let tainted = json!({"spec": {"template": {"spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}}}});
    objects.patch::<NodePool>("", "default", &tainted).expect("accepted");
    let is_moved = || used().len() == 1 && used() != first && whole.nodes().len() == 1 && whole.running().len() == 1;
    assert!(whole.cluster.until(is_moved).await, "replaced for the taint");
    assert_eq!(whole.asked_for().len(), 2);
}

#[tokio::test]
async fn while_one_pool_cannot_be_read_nobody_takes_its_nodes_for_gone() {
    let world = World {
        rules: World::minimal_rules(KUBE_ID),
        ..World::default()
    };
    let whole = Whole::start(world, &["b3-8", "b3-16"]).await;
    whole.deploy("web", 1, one_cpu(), json!({"nodeSelector": {INSTANCE_TYPE: "b3-8"}}));
    whole.deploy("api", 1, one_cpu(), json!({"nodeSelector": {INSTANCE_TYPE: "b3-16"}}));
    whole.until_running(2).await;
    let names = || {
        let mut names: Vec<String> = whole.claims().iter().map(ResourceExt::name_any).collect();
        names.sort();
        names
    };
    let before = names();
    let pool = whole.cluster.sim(|sim| sim.pools.keys().next().expect("two").clone());
    let broken = HttpFault::server_error(Method::GET, &format!("/nodepool/{pool}/nodes"));
    whole.cluster.sim(|sim| sim.faults.push(broken));
    whole.cluster.pass(MINUTE * 20).await;
    let is_alive = |claim: &karpenter_api::NodeClaim| claim.metadata.deletion_timestamp.is_none();
    assert!(whole.claims().iter().all(is_alive));
    assert_eq!((names(), whole.running().len()), (before, 2));
}

#[tokio::test]
async fn labels_that_are_flavor_ids_are_put_right_and_stay_so() {
    let world = World {
        instance_type_label: InstanceTypeLabel::Id,
        ..World::default()
    };
    let whole = Whole::start(world, &["b3-8", "b3-16"]).await;
    whole.deploy("web", 1, one_cpu(), json!({"nodeSelector": {INSTANCE_TYPE: "b3-16"}}));
    whole.until_running(1).await;
    // The cloud controller looks every minute.
    whole.cluster.pass(MINUTE * 5).await;
    let node = whole.node();
    for key in [INSTANCE_TYPE, "beta.kubernetes.io/instance-type"] {
        assert_eq!(node.labels()[key], "b3-16", "{key}");
    }
    assert_eq!(whole.running().len(), 1);
}

#[tokio::test]
async fn a_pod_with_a_volume_gets_its_node_where_the_volume_is() {
    let whole = Whole::start(World::default(), &["b3-8"]).await;
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "data"},
        "spec": {
            "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "csi": {"driver": "cinder.csi.openstack.org", "volumeHandle": "v"},
            "claimRef": {"namespace": "default", "name": "data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.cinder.csi.openstack.org/zone", "operator": "In", "values": ["eu-west-par-b"]},
            ]}]}},
        },
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "data",
            "resources": {"requests": {"storage": "10Gi"}},
        },
    });
    for object in [volume, claim] {
        whole.cluster.sandbox.apply(&object.to_string()).expect("accepted");
    }
    let mounts = json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]});
    whole.deploy("database", 1, one_cpu(), mounts);
    whole.until_running(1).await;
    assert_eq!(whole.node().labels()[ZONE_LABEL], "eu-west-par-b");
}

#[tokio::test]
async fn a_node_with_less_room_than_estimated_is_learned_from_and_there_is_no_launch_loop() {
    let world = World {
        reserved_memory: ReservedMemory::Proportional,
        ..World::default()
    };
    let whole = Whole::start(world, &["b3-64", "b3-128"]).await;
    // More than a b3-64 has in truth, and less than was expected of it.
    whole.deploy("tight", 1, json!({"cpu": "1", "memory": "58000Mi"}), json!({}));
    whole.until_running(1).await;
    whole.cluster.pass(MINUTE * 30).await;
    let asked: Vec<(String, u64)> = whole
        .asked_for()
        .into_iter()
        .map(|(flavor, size, _)| (flavor, size))
        .collect();
    assert_eq!(asked, [("b3-64".to_owned(), 1), ("b3-128".to_owned(), 1)]);
    assert_eq!(whole.running_by(INSTANCE_TYPE)["b3-128"], 1);
}

#[tokio::test]
async fn a_gpu_without_its_operator_is_told_of_on_the_node_and_the_claim() {
    let world = World {
        gpu_operator: false,
        ..World::default()
    };
    let whole = Whole::start(world, &["b3-8", "t1-45", "l4-90"]).await;
    whole.deploy("model", 1, json!({"cpu": "1", "nvidia.com/gpu": "1"}), json!({}));
    let registered = || {
        let nodes = whole.nodes();
        nodes.len() == 1
            && nodes[0]
                .labels()
                .get(labels::REGISTERED)
                .is_some_and(|own| own == "true")
    };
    assert!(whole.cluster.until(registered).await);
    let node = whole.node();
    assert_eq!(
        node.labels()[INSTANCE_TYPE],
        "t1-45",
        "the cheaper of the two with GPUs"
    );
    whole.cluster.pass(MINUTE * 8).await;
    assert!(!whole.cluster.was_told(&node.name_any(), "GPUResourceMissing"));
    whole.cluster.pass(MINUTE * 4).await;
    assert!(whole.cluster.was_told(&node.name_any(), "GPUResourceMissing"));
    assert!(
        whole
            .cluster
            .was_told(&whole.claims()[0].name_any(), "GPUResourceMissing")
    );
    assert!(whole.running().is_empty());
}

#[tokio::test]
async fn pods_get_the_next_flavor_when_the_first_is_out_of_stock() {
    let whole = Whole::start(World::default(), &["b3-8", "b3-16"]).await;
    whole.cluster.sim(|sim| {
        sim.sold_out.insert(("b3-8".into(), String::new()));
    });
    whole.deploy("web", 1, one_cpu(), json!({}));
    whole.until_running(1).await;
    assert_eq!(whole.running_by(INSTANCE_TYPE)["b3-16"], 1);
    whole.cluster.pass(MINUTE * 2).await;
    whole.cluster.sim(|sim| {
        let sizes: u32 = sim.pools.values().map(|pool| pool.desired).sum();
        assert_eq!((sizes, sim.nodes.len()), (1, 1), "no size stays inflated");
    });
}

#[tokio::test]
async fn a_node_that_is_deleted_with_kubectl_ends_its_machine_by_name_and_does_not_come_back() {
    let whole = Whole::start(World::default(), &["b3-8"]).await;
    whole.deploy("web", 1, one_cpu(), json!({}));
    whole.until_running(1).await;
    let doomed = whole.node().name_any();
    let id = whole.cluster.sim(|sim| sim.nodes.keys().next().expect("one").clone());
    let objects = whole.cluster.sandbox.objects();
    objects
        .delete::<Node>("", &doomed, &DeleteOptions::default())
        .expect("deleted");
    let moved = || matches!(whole.running().as_slice(), [(_, node)] if *node != doomed);
    assert!(whole.cluster.until(moved).await, "{:?}", whole.running());
    whole.cluster.pass(MINUTE * 10).await;
    assert!(whole.nodes().iter().all(|node| node.name_any() != doomed));
    whole.cluster.sim(|sim| {
        assert!(!sim.nodes.contains_key(&id));
        assert!(sim.unnamed_removals.is_empty());
        let puts = sim.requests_of(&Method::PUT, "/nodepool/");
        let named = puts.iter().filter(|put| put.body["nodesToRemove"] == json!([id]));
        assert_eq!(named.count(), 1);
    });
}

#[tokio::test]
async fn pods_of_a_pool_that_somebody_deleted_are_planned_into_a_new_one() {
    let whole = Whole::start(World::default(), &["b3-8"]).await;
    whole.deploy("web", 1, one_cpu(), json!({}));
    whole.until_running(1).await;
    let (old, node) = (
        whole.cluster.sim(|sim| sim.pools.keys().next().expect("one").clone()),
        whole.node().name_any(),
    );
    whole.cluster.sim(|sim| sim.delete_by_hand(&old));
    let moved = || matches!(whole.running().as_slice(), [(_, own)] if *own != node);
    assert!(whole.cluster.until(moved).await, "{:?}", whole.running());
    whole.cluster.sim(|sim| {
        assert_eq!(sim.pools.len(), 1);
        assert!(!sim.pools.contains_key(&old));
    });
    assert!(whole.cluster.was_told("default", "PoolDeletedExternally"));
}

#[tokio::test]
async fn a_toggled_billing_replaces_the_nodes_and_comes_to_rest() {
    let whole = Whole::start(World::default(), &["b2-7", "b2-15"]).await;
    whole.deploy("web", 2, one_cpu(), json!({}));
    whole.until_running(2).await;
    whole.cluster.patch_class(&json!({"spec": {"monthlyBilled": true}}));
    let is_monthly = || {
        let billing = whole.cluster.sim(|sim| {
            let used = sim.pools.values().filter(|pool| pool.desired > 0);
            used.map(|pool| pool.monthly).collect::<BTreeSet<_>>()
        });
        billing == BTreeSet::from([true]) && whole.running().len() == 2
    };
    assert!(whole.cluster.until(is_monthly).await);
    let asked = whole.asked_for().len();
    whole.cluster.pass(HOUR).await;
    assert!(is_monthly());
    assert_eq!(whole.asked_for().len(), asked, "no oscillation");
    assert!(whole.cluster.sim(|sim| sim.pools.values().all(|pool| pool.monthly)));
}

#[tokio::test]
async fn an_uninstallation_leaves_no_pool_and_no_finalizer() {
    let whole = Whole::start(World::default(), &["b3-8"]).await;
    whole.deploy("web", 3, json!({"cpu": "1500m"}), json!({}));
    whole.until_running(3).await;
    let objects = whole.cluster.sandbox.objects();
    let options = DeleteOptions::default();
    objects
        .delete::<Deployment>("default", "web", &options)
        .expect("deleted");
    objects.delete::<NodePool>("", "default", &options).expect("deleted");
    objects
        .delete::<OvhNodeClass>("", "default", &options)
        .expect("deleted");
    let is_gone = || {
        let classes: Vec<OvhNodeClass> = objects.list("");
        let pools: Vec<NodePool> = objects.list("");
        classes.is_empty() && pools.is_empty() && whole.claims().is_empty() && whole.nodes().is_empty()
    };
    assert!(whole.cluster.until(is_gone).await);
    assert!(whole.cluster.sim(|sim| sim.pools.is_empty() && sim.nodes.is_empty()));
}

#[tokio::test]
async fn a_machine_that_somebody_added_is_adopted_once_pods_run_on_it() {
    let whole = Whole::start(World::default(), &["b3-8"]).await;
    whole.deploy("web", 1, json!({"cpu": "1500m"}), json!({}));
    whole.until_running(1).await;
    whole.cluster.sim(|sim| {
        let pool = sim.pools.keys().next().expect("one").clone();
        sim.resize_by_hand(&pool, 2);
    });
    assert!(whole.cluster.until(|| whole.nodes().len() == 2).await);
    whole.cluster.pass(MINUTE).await;
    // The scheduler has room for it: nothing is launched.
    whole.scale("web", 2);
    whole.until_running(2).await;
    whole.cluster.pass(MINUTE * 15).await;
    assert_eq!((whole.claims().len(), whole.nodes().len()), (2, 2));
    let adopted = whole.claims();
    let adopted = adopted
        .iter()
        .filter(|claim| claim.annotations().contains_key(names::ADOPTED));
    assert_eq!(adopted.count(), 1);
    assert_eq!(whole.asked_for().len(), 1);
    assert_eq!(whole.running().len(), 2);
}

#[tokio::test]
async fn a_node_that_mks_replaces_keeps_its_capacity_under_a_new_claim() {
    let whole = Whole::start(World::default(), &["b3-8"]).await;
    whole.deploy("web", 1, one_cpu(), json!({}));
    whole.until_running(1).await;
    let old = whole.claims()[0].name_any();
    whole.cluster.sim(|sim| {
        let node = sim.nodes.keys().next().expect("one").clone();
        sim.heal(&node);
    });
    let adopted = || {
        let claims = whole.claims();
        claims.len() == 1 && claims[0].name_any() != old && whole.running().len() == 1
    };
    assert!(whole.cluster.until(adopted).await, "{:?}", whole.claims().len());
    whole.cluster.pass(MINUTE * 30).await;
    assert!(adopted());
    assert_eq!(whole.cluster.sim(|sim| sim.nodes.len()), 1);
}

#[tokio::test]
async fn a_flavor_whose_machines_do_not_join_is_left_for_another_after_the_second() {
    let world = World {
        delays: Delays {
            boot: HOUR * 100,
            // Gone at once: how long the end takes must not count.
            delete: std::time::Duration::ZERO,
            ..Delays::realistic()
        },
        ..one_zone()
    };
    let whole = Whole::start(world, &["b3-8", "b3-16"]).await;
    let asked_at = whole.cluster.clock.now();
    whole.deploy("web", 1, one_cpu(), json!({}));
    let others = || whole.asked_for().iter().any(|(flavor, ..)| flavor == "b3-16");
    assert!(whole.cluster.until(others).await, "the same flavor over and over");
    let took = whole.cluster.clock.since(asked_at).as_secs() / 60;
    assert!((30..=33).contains(&took), "two times fifteen minutes: {took}");
    whole.cluster.sim(|sim| {
        // Each of the two was given a quarter of an hour, and taken back by name.
        let puts = sim.requests_of(&Method::PUT, "/nodepool/");
        let named = puts.iter().filter_map(|put| put.body["nodesToRemove"].as_array());
        assert_eq!(named.map(Vec::len).sum::<usize>(), 2);
        assert!(sim.unnamed_removals.is_empty());
    });
}

#[tokio::test]
async fn a_machine_that_comes_after_its_claim_was_given_up_is_the_replacements() {
    let world = World {
        delays: Delays {
            vm: MINUTE * 12,
            ..Delays::realistic()
        },
        ..one_zone()
    };
    let whole = Whole::start(world, &["b3-8"]).await;
    whole.deploy("web", 1, one_cpu(), json!({}));
    assert!(whole.cluster.until(|| whole.claims().len() == 1).await);
    let first = whole.claims()[0].name_any();
    whole.cluster.pass(MINUTE * 5).await;
    let pending = whole.claims()[0].clone();
    let launched = karpenter_api::conditions::StatusConditions::condition(&pending, "Launched");
    let told = launched.expect("judged").clone();
    assert_eq!(
        (told.status.to_string().as_str(), told.reason.as_str()),
        ("Unknown", "InstancePending")
    );
    let replaced = || {
        let claims = whole.claims();
        claims.len() == 1 && claims[0].name_any() != first
    };
    assert!(whole.cluster.until(replaced).await, "given up after ten minutes");
    let second = whole.claims()[0].name_any();
    whole.until_running(1).await;
    assert_eq!(whole.claims()[0].name_any(), second, "and it needs no third");
    whole.cluster.pass(MINUTE * 15).await;
    whole.cluster.sim(|sim| {
        assert_eq!(sim.requests_of(&Method::POST, "/nodepool").len(), 1);
        assert!(
            sim.requests_of(&Method::PUT, "/nodepool/").is_empty(),
            "no second increment"
        );
        assert_eq!(sim.machines().len(), 1);
    });
    assert_eq!(whole.running().len(), 1);
}

#[tokio::test]
async fn a_machine_that_breaks_is_left_to_mks_for_half_an_hour_and_then_replaced() {
    let mut options = Options::default();
    options.feature_gates.node_repair = true;
    let world = World {
        delays: Delays::realistic(),
        ..one_zone()
    };
    let whole = Whole::with(world, &["b3-8"], json!({}), options).await;
    whole.deploy("web", 1, one_cpu(), json!({}));
    whole.until_running(1).await;
    whole.cluster.pass(MINUTE * 5).await;
    let broken = whole.node().name_any();
    let machine = whole.cluster.sim(|sim| {
        let id = sim.nodes.keys().next().expect("one").clone();
        sim.set_status(&id, "ERROR");
        id
    });
    whole.cluster.sandbox.kubelets().freeze(broken.clone());
    whole.cluster.pass(MINUTE * 30).await;
    assert!(
        whole.cluster.sim(|sim| sim.nodes.contains_key(&machine)),
        "the engine does not remove it, and core waits"
    );
    let moved = || matches!(whole.running().as_slice(), [(_, node)] if *node != broken);
    assert!(whole.cluster.until(moved).await, "{:?}", whole.running());
    let gone = || whole.cluster.sim(|sim| !sim.nodes.contains_key(&machine));
    assert!(whole.cluster.until(gone).await);
    whole.cluster.sim(|sim| {
        let puts = sim.requests_of(&Method::PUT, "/nodepool/");
        let named = puts.iter().filter(|put| put.body["nodesToRemove"] == json!([machine]));
        assert_eq!(named.count(), 1);
        assert!(sim.unnamed_removals.is_empty());
        assert_eq!(sim.machines().len(), 1);
    });
}

#[tokio::test]
async fn monthly_billing_with_flavors_that_are_not_sold_by_the_month_explains_itself() {
    let monthly = json!({"monthlyBilled": true});
    let whole = Whole::with(World::default(), &["b3-8", "b3-16"], monthly, Options::default()).await;
    whole.deploy("web", 1, one_cpu(), json!({}));
    let told = || whole.cluster.was_told("default", "NoFlavorForMonthlyBilling");
    assert!(whole.cluster.until(told).await, "{:?}", whole.cluster.events("default"));
    let events = whole.cluster.events("default").join("\n");
    assert!(events.contains("families b2, c2, d2 and r2"), "{events}");
    assert_eq!(whole.cluster.condition("Ready").0, "True", "the class is not to blame");
    whole.cluster.pass(MINUTE * 5).await;
    let pod = whole.pods()[0].name_any();
    let events = whole.cluster.events(&pod).join("\n");
    assert!(events.contains("families b2, c2, d2 and r2"), "{events}");
    assert!(whole.claims().is_empty() && whole.asked_for().is_empty());
}

#[tokio::test]
async fn a_pool_of_spot_machines_launches_nothing_and_its_pods_are_told_that_there_are_none() {
    let whole = Whole::start(World::default(), &["b3-8"]).await;
    let spot = json!({"spec": {"template": {"spec": {"requirements": [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
    ]}}}});
    let objects = whole.cluster.sandbox.objects();
    objects.patch::<NodePool>("", "default", &spot).expect("accepted");
    whole.cluster.pass(MINUTE).await;
    whole.deploy("web", 1, one_cpu(), json!({}));
    whole.cluster.pass(MINUTE * 5).await;
    let pod = whole.pods()[0].name_any();
    for about in ["default", &pod] {
        let events = whole.cluster.events(about).join("\n");
        assert!(
            events.contains("OVHcloud has on-demand machines only"),
            "{about}: {events}"
        );
    }
    assert!(whole.claims().is_empty() && whole.asked_for().is_empty());
}

#[tokio::test]
async fn a_claim_whose_machine_vanished_ends_within_seconds_and_not_while_its_node_is_up() {
    let whole = Whole::start(World::default(), &["b3-8"]).await;
    whole.deploy("web", 1, one_cpu(), json!({}));
    whole.until_running(1).await;
    let (claim, node) = (whole.claims()[0].clone(), whole.node().name_any());
    whole.cluster.pass(MINUTE * 5).await;
    // Gone from OVHcloud's lists, and its kubelet still reports.
    whole
        .cluster
        .sim(|sim| sim.vanish(claim.provider_id().expect("launched")));
    whole.cluster.pass(MINUTE * 2).await;
    assert_eq!(whole.claims()[0].name_any(), claim.name_any(), "its Node is up");
    whole.cluster.sandbox.kubelets().freeze(node.clone());
    let is_down = || whole.nodes().iter().all(|own| own.name_any() != node || !is_ready(own));
    assert!(whole.cluster.until(is_down).await);
    let down_at = whole.cluster.clock.now();
    let ended = || {
        whole
            .claims()
            .iter()
            .all(|own| own.name_any() != claim.name_any() || own.metadata.deletion_timestamp.is_some())
    };
    assert!(whole.cluster.until(ended).await);
    let took = whole.cluster.clock.since(down_at).as_secs();
    assert!(took <= 10, "{took} s");
    assert!(whole.cluster.was_told(&claim.name_any(), "MachineVanished"));
    let moved = || matches!(whole.running().as_slice(), [(_, own)] if *own != node);
    assert!(whole.cluster.until(moved).await, "{:?}", whole.running());
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|own| own.type_ == "Ready" && own.status == "True")
}
