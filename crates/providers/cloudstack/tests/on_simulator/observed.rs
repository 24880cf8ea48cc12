//! What is noticed about machines and Nodes, and told: names, tags, memory, hashes, readiness, capacity.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::{NodeClaim, labels::INSTANCE_TYPE};
use karpenter_cloud::{CloudProvider, Verdict, conformance::Environment};
use karpenter_cloudstack::{
    sim::{Fault, FaultKind, Seed, seed},
    tasks::sweep::Memory,
};
use serde_json::json;

use crate::environment::{Cloud, claim, pool};

fn has_event(cloud: &Cloud, reason: &str, part: &str) -> bool {
    let events = cloud.sandbox.objects().list::<k8s_openapi::api::core::v1::Event>("");
    events.into_iter().any(|event| {
        event.reason.as_deref() == Some(reason) && event.message.is_some_and(|message| message.contains(part))
    })
}

fn stored(cloud: &Cloud, claim: &NodeClaim) -> NodeClaim {
    let name = claim.metadata.name.as_deref().expect("a name");
    cloud.sandbox.objects().get("", name).expect("there")
}

#[tokio::test]
async fn a_machine_with_another_name_is_told_about_once_and_kept() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let id = cloud.live()[0].id.clone();
    cloud
        .simulator
        .operate(|operator| operator.machine(&id).expect("it exists").name = "karpenter-pet".to_owned());
    cloud.provider.sweep(&mut Memory::default()).await.expect("a sweep");
    assert!(has_event(&cloud, "InstanceRenamed", "give it its name back"));
    assert_eq!(cloud.provider.is_drifted(&claim).await.expect("readable"), None);
}

#[tokio::test]
async fn tags_whose_job_fails_are_told_about() {
    let cloud = Cloud::start().await;
    cloud.simulator.inject(Fault::new(
        "createTags",
        FaultKind::FailJob(530, "the database is away".to_owned()),
    ));
    cloud.launch(&claim(1, "1", json!([]))).await;
    cloud.provider.sweep(&mut Memory::default()).await.expect("a sweep");
    assert!(has_event(&cloud, "TaggingFailed", "the database is away"));
    assert_eq!(
        cloud.provider.list().await.expect("a list").len(),
        1,
        "it is still ours"
    );
}

#[tokio::test]
async fn a_node_that_waits_for_a_cloud_controller_manager_is_told_about() {
    let cloud = Cloud::start().await;
    cloud.launch(&claim(1, "1", json!([]))).await;
    let machine = cloud.live()[0].clone();
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": machine.name},
        "spec": {
            "providerID": format!("external-cloudstack://{}", machine.id),
            "taints": [{"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}],
        },
    }))
    .expect("a Node");
    let node = cloud.sandbox.objects().create(&node).expect("accepted");
    let created = node.metadata.creation_timestamp.expect("created").0;
    // The API server has a clock of its own.
    let behind = created.duration_since(cloud.simulator.clock().now());
    if let Ok(behind) = Duration::try_from(behind) {
        cloud.clock.advance(behind);
    }
    cloud.clock.advance(Duration::from_secs(601));
    cloud.provider.identify_nodes().await.expect("a look");
    assert!(has_event(&cloud, "CloudControllerManagerMissing", "install one"));
}

#[tokio::test]
async fn a_node_without_a_provider_id_gets_that_of_the_machine_that_its_firmware_names() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let id = cloud.live()[0].id.clone();
    let info = json!({"systemUUID": id.to_uppercase(), "machineID": "", "bootID": "", "kernelVersion": "", "osImage": "",
        "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "", "architecture": ""});
    let node: Node =
        serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"nodeInfo": info}})).expect("a Node");
    let stranger: Node = serde_json::from_value(json!({"metadata": {"name": "m"}})).expect("a Node");
    let objects = cloud.sandbox.objects();
    let status = node.status.clone();
    let mut node = objects.create(&node).expect("accepted");
    node.status = status;
    objects.update_status(&node).expect("accepted");
    objects.create(&stranger).expect("accepted");
    cloud.provider.identify_nodes().await.expect("a look");
    let of = |name: &str| {
        let node: Node = objects.get("", name).expect("there");
        node.spec.and_then(|spec| spec.provider_id)
    };
    assert_eq!(of("n").as_deref(), claim.provider_id());
    assert_eq!(of("m"), None);
}

#[tokio::test]
async fn nodes_teach_how_much_memory_their_kind_has() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let labels = claim.metadata.labels.clone().expect("labels");
    let name = labels[INSTANCE_TYPE].clone();
    let promised = async || {
        let types = cloud.provider.instance_types(&pool()).await.expect("types");
        let own = types.iter().find(|own| own.name == name).expect("the type");
        own.capacity.memory().value()
    };
    let before = promised().await;
    let mut labels = labels;
    labels.insert("karpenter.sh/initialized".to_owned(), "true".to_owned());
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "n", "labels": labels}, "status": {"capacity": {"memory": "1500Mi"}},
    }))
    .expect("a Node");
    let status = node.status.clone();
    let mut node = cloud.sandbox.objects().create(&node).expect("accepted");
    node.status = status;
    cloud.sandbox.objects().update_status(&node).expect("accepted");
    cloud.provider.discover_memory().await.expect("a look");
    let after = promised().await;
    assert_ne!(before, after);
    assert_eq!(after, 1500 << 20);
}

#[tokio::test]
async fn hashes_of_another_version_are_rewritten_and_nothing_drifts() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let mut old = stored(&cloud, &claim);
    let annotations = old.metadata.annotations.get_or_insert_default();
    annotations.insert("karpenter.k8s.cloudstack/nodeclass-hash".into(), "123".into());
    annotations.insert("karpenter.k8s.cloudstack/nodeclass-hash-version".into(), "v1".into());
    cloud.sandbox.objects().update(&old).expect("accepted");
    cloud.resolve().await;
    let migrated = stored(&cloud, &claim);
    let get = |claim: &NodeClaim, key: &str| claim.metadata.annotations.clone().unwrap_or_default()[key].clone();
    assert_eq!(get(&migrated, "karpenter.k8s.cloudstack/nodeclass-hash-version"), "v2");
    assert_eq!(
        get(&migrated, "karpenter.k8s.cloudstack/nodeclass-hash"),
        cloud.class().static_hash(None)
    );
    assert_eq!(cloud.provider.is_drifted(&migrated).await.expect("readable"), None);
}

#[tokio::test]
async fn the_process_is_ready_while_cloudstack_answered_within_two_minutes() {
    let cloud = Cloud::start().await;
    cloud.provider.readiness().await.expect("it answered just now");
    cloud.simulator.inject(Fault::everything(FaultKind::Page(503)));
    cloud.pass(Duration::from_secs(200)).await;
    let why = cloud.provider.readiness().await.expect_err("silence");
    assert!(why.contains("has not answered for two minutes"), "{why}");
    cloud.simulator.heal();
    cloud.provider.readiness().await.expect("it heals by itself");
}

#[tokio::test]
async fn an_administrator_knows_full_zones_before_running_into_them() {
    let mut seed = Seed::default();
    let full = seed.catalogue.zones[0]["id"].as_str().expect("an id").to_owned();
    for host in seed.hosts.iter_mut().filter(|host| host.zone == full) {
        host.mhz = 2000;
        host.memory = 2048;
    }
    for network in &mut seed.catalogue.networks {
        network["acltype"] = json!("Domain");
    }
    let cloud = Cloud::with(seed, json!({})).await;
    let provider = cloud.provider_of(cloud.simulator.keys("admin"), Default::default());
    provider.verify().await.expect("it answers");
    let zone = json!([{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-1"]}]);
    for number in 1..=10 {
        provider
            .create(&claim(number, "500m", zone.clone()))
            .await
            .expect("there is room for ten");
    }
    provider.flush();
    let types = provider.instance_types(&pool()).await.expect("types");
    let small = types.iter().find(|own| own.name == "small").expect("the type");
    let offered: Vec<bool> = small.offerings.iter().map(|own| own.available).collect();
    assert_eq!(offered, [false, true], "only the zone that has room");
    let ids: Vec<String> = cloud.live().into_iter().map(|own| own.id).collect();
    let distinct: std::collections::BTreeSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len(), 10);
    let chosen = cloud.simulator.calls();
    let chosen = chosen.iter().filter(|call| call.command == "deployVirtualMachine");
    assert!(chosen.clone().count() >= 10);
    for call in chosen {
        assert!(
            ids.contains(&call.params["customid"]),
            "the id is chosen, so no twin can be"
        );
    }
}

#[tokio::test]
async fn pins_to_infrastructure_need_a_root_administrator() {
    let cloud = Cloud::with(Seed::default(), json!({"placement": {"podID": "p"}})).await;
    let class = cloud.class();
    let status = class.status.expect("a status");
    let found = status
        .conditions
        .iter()
        .find(|own| own.type_ == "CredentialsReady")
        .expect("there");
    assert_eq!(found.reason, "Forbidden");
    assert!(
        found.message.contains("remove it, or use such a key"),
        "{}",
        found.message
    );
}

#[tokio::test]
async fn the_doctor_sees_credentials_quota_and_classes() {
    let cloud = Cloud::with(Seed::default(), json!({"zones": ["mars"]})).await;
    cloud
        .simulator
        .operate(|operator| operator.limit(seed::ACCOUNT, "user_vm", 0));
    cloud.provider.flush();
    let found = cloud.provider.diagnose().await;
    let of = |subject: &str| found.iter().find(|own| own.subject == subject).expect("there");
    assert_eq!(of("credentials").verdict, Verdict::Ok);
    assert_eq!(of("quota").verdict, Verdict::Fail);
    assert!(of("class default").message.contains("zone mars does not exist"));
    cloud
        .simulator
        .operate(|operator| operator.set_secret(seed::ACCOUNT, "revoked"));
    let found = cloud.provider.diagnose().await;
    assert_eq!((found.len(), found[0].verdict), (1, Verdict::Fail));
    assert!(!format!("{found:?}").contains("secret-of-"));
}

#[tokio::test]
async fn a_reclaimed_spot_machine_goes_at_once_and_its_offering_rests() {
    let spot = json!({"serviceOfferingSelectorTerms": [{"name": "small", "capacityType": "spot"}, {"name": "large"}]});
    let cloud = Cloud::with(Seed::default(), spot).await;
    let claim = cloud.launch(&claim(1, "500m", json!([]))).await;
    assert_eq!(
        claim.metadata.labels.as_ref().expect("labels")[INSTANCE_TYPE],
        "small",
        "spot comes first"
    );
    let machine = cloud.live()[0].clone();
    cloud.simulator.operate(|operator| operator.power_off(&machine.id));
    cloud.provider.sweep(&mut Memory::default()).await.expect("a sweep");
    assert!(!cloud.claim_exists("default-00001"));
    assert!(has_event(&cloud, "InstanceStopped", "is Stopped"));
    let types = cloud.provider.instance_types(&pool()).await.expect("types");
    let small = types.iter().find(|own| own.name == "small").expect("the type");
    assert!(small.offerings.iter().any(|own| !own.available));
}

#[tokio::test]
async fn a_mark_of_the_operator_drains_the_node() {
    let cloud = Cloud::start().await;
    cloud.launch(&claim(1, "1", json!([]))).await;
    let id = cloud.live()[0].id.clone();
    cloud.simulator.operate(|operator| {
        let machine = operator.machine(&id).expect("it exists");
        machine
            .tags
            .push(("karpenter.k8s.cloudstack/interruption".to_owned(), "soon".to_owned()));
    });
    cloud.provider.sweep(&mut Memory::default()).await.expect("a sweep");
    assert!(!cloud.claim_exists("default-00001"));
    assert!(has_event(&cloud, "InterruptionPending", "going away"));
}
