//! Machines after their launch: termination, tags, disks, stops, identity, garbage.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::Node;
use karpenter_api::NodeClaim;
use karpenter_cloud::{CloudProvider, Deletion, conformance::Environment, garbage_collection::GarbageCollector};
use karpenter_cloudstack::{
    CloudStackNodeClass,
    sim::{Fault, FaultKind, MachineState, Seed, seed},
    tasks::{self, sweep::Memory},
};
use serde_json::json;

use crate::environment::{Cloud, claim, foreign};

pub(crate) async fn terminate(cloud: &Cloud, claim: &NodeClaim) {
    for _ in 0..40 {
        if cloud
            .provider
            .delete(claim)
            .await
            .is_ok_and(|own| own == Deletion::Gone)
        {
            return;
        }
        cloud.pass(Duration::from_secs(5)).await;
    }
    panic!("it never went");
}

#[tokio::test]
async fn where_expunging_is_denied_machines_are_destroyed_only_and_that_is_remembered() {
    let cloud = Cloud::with(Seed::default(), json!({"expunge": "Always"})).await;
    let first = cloud.launch(&claim(1, "1", json!([]))).await;
    let second = cloud.launch(&claim(2, "1", json!([]))).await;
    terminate(&cloud, &first).await;
    terminate(&cloud, &second).await;
    let destroys: Vec<bool> = cloud
        .simulator
        .calls()
        .iter()
        .filter(|call| call.command == "destroyVirtualMachine")
        .map(|call| call.params.contains_key("expunge"))
        .collect();
    assert_eq!(destroys, [true, false, false], "asked once, then known");
}

#[tokio::test]
async fn a_protected_machine_is_told_about_and_left_in_peace() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let id = cloud.live()[0].id.clone();
    cloud
        .simulator
        .operate(|operator| operator.machine(&id).expect("it exists").delete_protection = true);
    assert_eq!(
        cloud.provider.delete(&claim).await.expect("accepted"),
        Deletion::InProgress
    );
    cloud.pass(Duration::from_secs(5)).await;
    for _ in 0..5 {
        let error = cloud.provider.delete(&claim).await.expect_err("protected");
        assert!(
            error.to_string().contains("has delete protection; turn it off"),
            "{error}"
        );
    }
    assert_eq!(cloud.calls("destroyVirtualMachine"), 1, "no hot loop");
    let events = cloud.sandbox.objects().list::<k8s_openapi::api::core::v1::Event>("");
    let reasons: Vec<Option<String>> = events.into_iter().map(|event| event.reason).collect();
    assert!(
        reasons.contains(&Some("InstanceDeleteProtected".to_owned())),
        "{reasons:?}"
    );
    assert_eq!(cloud.live().len(), 1);
}

#[tokio::test]
async fn our_own_disks_go_with_the_machine_and_volumes_of_pods_stay() {
    let cloud = Cloud::with(
        Seed::default(),
        json!({"dataDisks": [{"offering": "data-10"}, {"offering": "data-custom", "size": 5}]}),
    )
    .await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let mut memory = Memory::default();
    cloud.provider.sweep(&mut memory).await.expect("a sweep");
    cloud.pass(Duration::from_secs(5)).await;
    let id = cloud.live()[0].id.clone();
    cloud
        .simulator
        .operate(|operator| operator.attach_foreign_volume(&id, "pvc-1"));
    let claim: NodeClaim = cloud
        .sandbox
        .objects()
        .get("", claim.metadata.name.as_deref().expect("a name"))
        .expect("there");
    terminate(&cloud, &claim).await;
    let data: Vec<(String, Option<String>)> = cloud
        .simulator
        .volumes()
        .into_iter()
        .filter(|(name, _)| !name.starts_with("ROOT"))
        .collect();
    assert_eq!(data, [("pvc-1".to_owned(), None)]);
}

#[tokio::test]
async fn a_machine_that_cannot_be_tagged_is_still_ours() {
    let cloud = Cloud::start().await;
    cloud.simulator.inject(Fault::new(
        "createTags",
        FaultKind::Refuse(530, "tags are out of order".to_owned()),
    ));
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    assert_eq!(cloud.provider.list().await.expect("a list").len(), 1);
    cloud.provider.sweep(&mut Memory::default()).await.expect("a sweep");
    let events = cloud.sandbox.objects().list::<k8s_openapi::api::core::v1::Event>("");
    assert!(
        events
            .iter()
            .any(|event| event.reason.as_deref() == Some("TaggingFailed"))
    );
    cloud.simulator.heal();
    cloud.provider.sweep(&mut Memory::default()).await.expect("a sweep");
    cloud.pass(Duration::from_secs(5)).await;
    assert!(
        cloud.live()[0]
            .tags
            .iter()
            .any(|(key, _)| key == "kubernetes.io/cluster/blue")
    );
    terminate(&cloud, &claim).await;
}

#[tokio::test]
async fn tags_of_the_class_are_changed_in_place_and_removed_ones_restored() {
    let cloud = Cloud::with(Seed::default(), json!({"tags": {"team": "red", "old": "x"}})).await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let mut memory = Memory::default();
    let look = async |memory: &mut Memory| {
        cloud.provider.sweep(memory).await.expect("a sweep");
        cloud.pass(Duration::from_secs(5)).await;
    };
    look(&mut memory).await;
    look(&mut memory).await;
    cloud.apply_class(json!({"tags": {"team": "blue"}})).await;
    let id = cloud.live()[0].id.clone();
    cloud.simulator.operate(|operator| {
        let machine = operator.machine(&id).expect("it exists");
        machine.tags.retain(|(key, _)| key != "karpenter.sh/nodepool");
    });
    for _ in 0..3 {
        look(&mut memory).await;
    }
    let tags = cloud.live()[0].tags.clone();
    let get = |key: &str| tags.iter().find(|(own, _)| own == key).map(|(_, value)| value.as_str());
    assert_eq!(
        (get("team"), get("old"), get("karpenter.sh/nodepool")),
        (Some("blue"), None, Some("default"))
    );
    assert_eq!(
        cloud.provider.is_drifted(&claim).await.expect("readable"),
        None,
        "tags are never drift"
    );
}

#[tokio::test]
async fn a_list_is_complete_however_small_the_servers_pages_are() {
    let mut seed = Seed::default();
    seed.settings.page_size = 2;
    seed.settings.unlimited_pages = false;
    let cloud = Cloud::with(seed, json!({})).await;
    for number in 1..=5 {
        cloud
            .provider
            .create(&claim(number, "1", json!([])))
            .await
            .expect("launched");
    }
    assert_eq!(cloud.provider.list().await.expect("a list").len(), 5);
}

#[tokio::test]
async fn a_young_process_that_sees_no_claims_deletes_nothing() {
    let cloud = Cloud::start().await;
    for number in 1..=3 {
        cloud
            .provider
            .create(&claim(number, "1", json!([])))
            .await
            .expect("launched");
    }
    let first = cloud.live()[0].clone();
    let copies: Vec<String> = (0..47)
        .map(|number| format!("00000000-0000-4000-8000-{number:012}"))
        .collect();
    cloud.simulator.operate(|operator| {
        for id in &copies {
            let mut machine = first.clone();
            machine.id.clone_from(id);
            machine.name = format!("karpenter-copy-{id}");
            operator.add_machine(machine);
        }
    });
    let fresh = cloud.new_provider().await;
    cloud.collect(&fresh, 2).await;
    assert_eq!(cloud.live().len(), 50, "not within two minutes");
    // So many at once would look like a lost cluster state for good.
    cloud
        .simulator
        .operate(|operator| copies.iter().for_each(|id| operator.expunge(id)));
    cloud.pass(Duration::from_secs(120)).await;
    cloud.collect(&fresh, 3).await;
    assert!(cloud.live().is_empty(), "then they are orphans");
}

#[tokio::test]
async fn a_second_machine_of_a_claim_is_destroyed() {
    let mut seed = Seed::default();
    seed.settings.name_race = true;
    let cloud = Cloud::with(seed, json!({})).await;
    let stored = cloud.stored(&claim(1, "1", json!([])));
    cloud.provider.create(&stored).await.expect("launched");
    let mut twin = cloud.live()[0].clone();
    twin.id = "33333333-2222-4333-8444-555555555555".to_owned();
    twin.created += jiff::SignedDuration::from_secs(1);
    cloud.simulator.operate(|operator| operator.add_machine(twin.clone()));
    cloud.collect(&cloud.provider, 3).await;
    let left: Vec<String> = cloud.live().into_iter().map(|own| own.id).collect();
    assert_eq!(left.len(), 1);
    assert_ne!(left[0], twin.id, "the older one stays");
}

#[tokio::test]
async fn a_stopped_machine_is_replaced_after_its_grace() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let name = claim.metadata.name.clone().expect("a name");
    let id = cloud.live()[0].id.clone();
    cloud.simulator.operate(|operator| operator.power_off(&id));
    let mut memory = Memory::default();
    cloud.provider.sweep(&mut memory).await.expect("a sweep");
    cloud.pass(Duration::from_secs(240)).await;
    cloud.provider.sweep(&mut memory).await.expect("a sweep");
    assert!(cloud.claim_exists(&name));
    cloud.pass(Duration::from_secs(120)).await;
    cloud.provider.sweep(&mut memory).await.expect("a sweep");
    assert!(!cloud.claim_exists(&name));
}

#[tokio::test]
async fn a_stopped_machine_is_restarted_three_times_an_hour_where_the_class_says_so() {
    let cloud = Cloud::with(Seed::default(), json!({"stoppedInstancePolicy": "Restart"})).await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let name = claim.metadata.name.clone().expect("a name");
    let id = cloud.live()[0].id.clone();
    let mut memory = Memory::default();
    for round in 1..=4 {
        cloud.simulator.operate(|operator| operator.power_off(&id));
        cloud.provider.sweep(&mut memory).await.expect("a sweep");
        cloud.pass(Duration::from_secs(301)).await;
        cloud.provider.sweep(&mut memory).await.expect("a sweep");
        cloud.pass(Duration::from_secs(30)).await;
        assert_eq!(cloud.claim_exists(&name), round < 4, "round {round}");
    }
    assert_eq!(cloud.calls("startVirtualMachine"), 3);
}

#[tokio::test]
async fn a_node_with_another_form_of_the_provider_id_is_recognised() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let id = cloud.live()[0].id.clone();
    let node: Node = serde_json::from_value(
        json!({"metadata": {"name": "n"}, "spec": {"providerID": format!("cloudstack:///{id}")}}),
    )
    .expect("a Node");
    cloud.sandbox.objects().create(&node).expect("accepted");
    cloud.provider.identify_nodes().await.expect("a look");
    let claim: NodeClaim = cloud
        .sandbox
        .objects()
        .get("", claim.metadata.name.as_deref().expect("a name"))
        .expect("there");
    assert_eq!(claim.provider_id(), Some(format!("cloudstack:///{id}").as_str()));
    let listed = cloud.provider.list().await.expect("a list");
    assert_eq!(
        Some(listed[0].provider_id.as_str()),
        claim.provider_id(),
        "core compares whole strings"
    );
}

/// A Node without a provider ID, as a kubelet without a cloud-controller-manager makes it.
fn anonymous(name: &str, uuid: &str, address: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "nodeInfo": {"systemUUID": uuid, "machineID": "", "bootID": "", "kernelVersion": "", "osImage": "",
                "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "",
                "architecture": ""},
        },
    }))
    .expect("a Node")
}

/// The provider ID that a Node without one has after a look.
async fn identified(cloud: &Cloud, node: &Node) -> Option<String> {
    let objects = cloud.sandbox.objects();
    let mut stored = objects.create(node).expect("accepted");
    stored.status.clone_from(&node.status);
    objects.update_status(&stored).expect("accepted");
    cloud.provider.identify_nodes().await.expect("a look");
    let name = node.metadata.name.as_deref().expect("a name");
    let node: Node = objects.get("", name).expect("there");
    node.spec.and_then(|spec| spec.provider_id)
}

#[tokio::test]
async fn a_node_without_a_provider_id_gets_that_of_the_machine_it_certainly_is() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let machine = cloud.live()[0].clone();
    let by_hand = "11111111-2222-4333-8444-555555555555";
    let foreign = foreign(&cloud.simulator, by_hand);
    cloud.simulator.operate(|operator| operator.add_machine(foreign));
    let wrong = "22222222-2222-4333-8444-555555555555";
    for (node, why) in [
        (
            anonymous("elsewhere", wrong, "192.0.2.1"),
            "no such firmware, no such name",
        ),
        (
            anonymous(&machine.name, wrong, "192.0.2.1"),
            "only the name is that of a machine",
        ),
        (anonymous("by-hand", by_hand, "192.0.2.2"), "a machine without a claim"),
    ] {
        assert_eq!(identified(&cloud, &node).await, None, "{why}");
    }
    let own = anonymous("renamed", &machine.id.to_uppercase(), "192.0.2.3");
    let found = identified(&cloud, &own).await;
    assert!(found.is_some());
    assert_eq!(found.as_deref(), claim.provider_id());
}

#[tokio::test]
async fn a_class_in_use_is_not_deleted_before_its_last_claim() {
    let cloud = Cloud::with(Seed::default(), json!({"affinityGroups": {"managed": {}}})).await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let objects = cloud.sandbox.objects();
    objects
        .delete::<CloudStackNodeClass>("", "default", &Default::default())
        .expect("accepted");
    cloud.provider.reconcile_class("default").await.expect("reconciled");
    assert!(
        objects.get::<CloudStackNodeClass>("", "default").is_some(),
        "a claim uses it"
    );
    terminate(&cloud, &claim).await;
    objects
        .delete::<NodeClaim>("", claim.metadata.name.as_deref().expect("a name"), &Default::default())
        .expect("accepted");
    let id = cloud.simulator.machines()[0].id.clone();
    cloud.simulator.operate(|operator| operator.expunge(&id));
    cloud.provider.reconcile_class("default").await.expect("reconciled");
    assert!(objects.get::<CloudStackNodeClass>("", "default").is_none());
    cloud.pass(Duration::from_secs(5)).await;
    assert!(
        cloud.simulator.affinity_groups().is_empty(),
        "the managed group goes with it"
    );
}

#[tokio::test]
async fn a_failed_record_without_a_launch_is_cleaned_up() {
    let cloud = Cloud::start().await;
    cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect("launched");
    let id = cloud.live()[0].id.clone();
    cloud
        .simulator
        .operate(|operator| operator.machine(&id).expect("it exists").state = MachineState::Error);
    let fresh = cloud.new_provider().await;
    cloud.pass(Duration::from_secs(130)).await;
    cloud.collect(&fresh, 1).await;
    assert!(
        cloud
            .simulator
            .machines()
            .iter()
            .all(|own| own.state == MachineState::Expunging)
    );
}

#[tokio::test]
async fn five_hundred_and_one_machines_are_listed_whatever_the_server_makes_of_pages() {
    for unlimited_pages in [true, false] {
        let mut seed = Seed::default();
        seed.settings.unlimited_pages = unlimited_pages;
        let cloud = Cloud::with(seed, json!({})).await;
        cloud.launch(&claim(1, "1", json!([]))).await;
        let first = cloud.live()[0].clone();
        cloud.simulator.operate(|operator| {
            for number in 0..500u32 {
                let mut machine = first.clone();
                machine.id = format!("00000000-0000-4000-8000-{number:012}");
                machine.name = format!("karpenter-copy-{number}");
                operator.add_machine(machine);
            }
        });
        assert_eq!(cloud.provider.list().await.expect("a list").len(), 501);
    }
}

#[tokio::test]
async fn a_machine_that_was_destroyed_by_hand_is_gone() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let id = cloud.live()[0].id.clone();
    cloud
        .simulator
        .operate(|operator| operator.machine(&id).expect("it exists").state = MachineState::Destroyed);
    let deleted = cloud.provider.delete(&claim).await;
    assert!(
        matches!(deleted, Ok(Deletion::Gone)) || deleted.is_err_and(|error| error.is_not_found()),
        "the finalizer goes"
    );
    assert_eq!(cloud.calls("destroyVirtualMachine"), 0);
}

#[tokio::test]
async fn a_machine_whose_stop_hangs_is_waited_for_and_nothing_else_is_asked() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    cloud
        .simulator
        .inject(Fault::new("destroyVirtualMachine", FaultKind::StickJob).times(1));
    for _ in 0..5 {
        let deleted = cloud.provider.delete(&claim).await.expect("asked");
        assert_eq!(deleted, Deletion::InProgress);
        cloud.pass(Duration::from_secs(5)).await;
    }
    assert_eq!(cloud.simulator.machines()[0].state, MachineState::Stopping);
    assert_eq!(cloud.calls("destroyVirtualMachine"), 1);
    cloud.simulator.operate(|operator| operator.restart_management_server());
    terminate(&cloud, &claim).await;
}

#[tokio::test]
async fn a_machine_that_broke_after_it_ran_is_replaced_and_its_record_cleaned() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let id = cloud.live()[0].id.clone();
    cloud
        .simulator
        .operate(|operator| operator.machine(&id).expect("it exists").state = MachineState::Error);
    let provider_id = claim.provider_id().expect("launched");
    let read = cloud.provider.get(provider_id).await.expect_err("gone");
    assert!(read.is_not_found(), "{read}");
    cloud.provider.sweep(&mut Memory::default()).await.expect("a sweep");
    assert!(!cloud.claim_exists("default-00001"));
    cloud.pass(Duration::from_secs(10)).await;
    assert_eq!(cloud.simulator.machines_ever()[0].state, MachineState::Expunging);
}

#[tokio::test]
async fn a_machine_of_another_cluster_is_neither_listed_nor_collected_nor_deleted() {
    let cloud = Cloud::start().await;
    let mut claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let mut other = foreign(&cloud.simulator, "44444444-2222-4333-8444-555555555555");
    other
        .tags
        .push(("kubernetes.io/cluster/green".to_owned(), "owned".to_owned()));
    let id = other.id.clone();
    cloud.simulator.operate(|operator| operator.add_machine(other));
    assert_eq!(cloud.provider.list().await.expect("a list").len(), 1);
    cloud.pass(Duration::from_secs(130)).await;
    cloud.collect(&cloud.provider, 3).await;
    claim.status.as_mut().expect("launched").provider_id = Some(format!("external-cloudstack://{id}"));
    let error = cloud.provider.delete(&claim).await.expect_err("not ours");
    assert!(error.to_string().contains("does not belong to cluster blue"), "{error}");
    assert_eq!(cloud.live().len(), 2);
    assert_eq!(cloud.simulator.violations(), [""; 0]);
}

#[tokio::test]
async fn a_list_that_fails_is_an_error_and_no_claim_goes() {
    let cloud = Cloud::start().await;
    cloud.launch(&claim(1, "1", json!([]))).await;
    cloud
        .simulator
        .inject(Fault::new("listVirtualMachines", FaultKind::Page(503)));
    cloud.provider.list().await.expect_err("never a short list");
    cloud
        .provider
        .sweep(&mut Memory::default())
        .await
        .expect_err("nothing was seen");
    let mut collector = GarbageCollector::new(tasks::caution());
    let collected = cloud.provider.collect_garbage(&mut collector).await;
    collected.expect_err("nothing was seen");
    assert!(cloud.claim_exists("default-00001"));
    assert_eq!(cloud.live().len(), 1);
}

#[tokio::test]
async fn an_orphan_whose_destruction_fails_is_told_to_go_again() {
    let cloud = Cloud::start().await;
    cloud
        .provider
        .create(&claim(1, "1", json!([])))
        .await
        .expect("launched");
    cloud.pass(Duration::from_secs(130)).await;
    cloud
        .simulator
        .operate(|operator| operator.settings().stops_fail = true);
    let mut collector = GarbageCollector::new(tasks::caution());
    let mut round = async || {
        cloud.provider.collect_garbage(&mut collector).await.expect("a round");
        cloud.pass(Duration::from_secs(40)).await;
    };
    round().await;
    round().await;
    assert_eq!(cloud.live().len(), 1, "its host refuses");
    cloud
        .simulator
        .operate(|operator| operator.settings().stops_fail = false);
    round().await;
    round().await;
    assert!(cloud.live().is_empty());
}

#[tokio::test]
async fn an_orphan_goes_after_two_sightings_unless_its_claim_appears_meanwhile() {
    let cloud = Cloud::start().await;
    // Two machines whose claims the cluster does not have; one of them comes back.
    let late = claim(1, "1", json!([]));
    cloud.provider.create(&late).await.expect("launched");
    cloud
        .provider
        .create(&claim(2, "1", json!([])))
        .await
        .expect("launched");
    cloud.launch(&claim(3, "1", json!([]))).await;
    cloud.pass(Duration::from_secs(130)).await;
    let mut collector = GarbageCollector::new(tasks::caution());
    let mut round = async || cloud.provider.collect_garbage(&mut collector).await.expect("a round");
    assert_eq!(round().await, 0, "one sighting is not enough");
    cloud.store(&late);
    cloud.pass(Duration::from_secs(40)).await;
    assert_eq!(round().await, 1);
    cloud.pass(Duration::from_secs(10)).await;
    let mut left: Vec<String> = cloud.live().into_iter().map(|own| own.name).collect();
    left.sort();
    assert_eq!(left, ["karpenter-default-00001", "karpenter-default-00003"]);
}

#[tokio::test]
async fn the_machine_that_a_claim_names_stays_when_there_are_two() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let mut twin = cloud.live()[0].clone();
    twin.id = "33333333-2222-4333-8444-555555555555".to_owned();
    twin.created -= jiff::SignedDuration::from_secs(60);
    cloud.simulator.operate(|operator| operator.add_machine(twin));
    assert_eq!(cloud.simulator.violations().len(), 1, "the simulator sees it too");
    cloud.collect(&cloud.provider, 3).await;
    let left: Vec<String> = cloud.live().into_iter().map(|own| own.id).collect();
    assert_eq!(left.len(), 1);
    assert!(claim.provider_id().is_some_and(|own| own.ends_with(&left[0])));
}

#[tokio::test]
async fn the_node_of_a_collected_machine_goes_and_others_stay() {
    let cloud = Cloud::start().await;
    cloud.launch(&claim(1, "1", json!([]))).await;
    cloud
        .provider
        .create(&claim(2, "1", json!([])))
        .await
        .expect("launched");
    for machine in cloud.live() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": machine.name},
            "spec": {"providerID": format!("external-cloudstack://{}", machine.id)},
        }))
        .expect("a Node");
        cloud.sandbox.objects().create(&node).expect("accepted");
    }
    cloud.pass(Duration::from_secs(130)).await;
    cloud.collect(&cloud.provider, 2).await;
    let nodes: Vec<Node> = cloud.sandbox.objects().list("");
    let names: Vec<Option<String>> = nodes.into_iter().map(|node| node.metadata.name).collect();
    assert_eq!(names, [Some("karpenter-default-00001".to_owned())]);
}

#[tokio::test]
async fn when_a_host_fails_machines_with_high_availability_come_back_and_others_are_replaced() {
    let mut seed = Seed::default();
    let mut available = seed::offering("ha", 1, 2048);
    available["offerha"] = json!(true);
    seed.catalogue.offerings = vec![available, seed::offering("plain", 2, 2048)];
    let cloud = Cloud::with(seed, json!({})).await;
    let of = |name: &str| json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [name]}]);
    cloud.launch(&claim(1, "500m", of("ha"))).await;
    cloud.launch(&claim(2, "500m", of("plain"))).await;
    let hosts: BTreeSet<String> = cloud.live().into_iter().filter_map(|own| own.host).collect();
    for host in hosts {
        cloud.simulator.operate(|operator| operator.fail_host(&host));
    }
    let mut memory = Memory::default();
    cloud.provider.sweep(&mut memory).await.expect("a sweep");
    cloud.pass(Duration::from_secs(301)).await;
    cloud.provider.sweep(&mut memory).await.expect("a sweep");
    assert!(
        cloud.claim_exists("default-00001"),
        "the same machine runs on another host"
    );
    assert!(!cloud.claim_exists("default-00002"));
}
