//! When a machine counts as changed, and when not.

use karpenter_cloud::CloudProvider;
use karpenter_cloudstack::{
    client::{Priority, Request},
    sim::{Fault, FaultKind, Seed, seed},
};
use serde_json::json;

use crate::{
    environment::{Cloud, claim},
    lifecycle::terminate,
};

async fn reason(cloud: &Cloud, claim: &karpenter_api::NodeClaim) -> Option<String> {
    cloud
        .provider
        .is_drifted(claim)
        .await
        .expect("readable")
        .map(|own| own.0)
}

#[tokio::test]
async fn selectors_that_find_the_same_are_no_drift() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    cloud
        .apply_class(json!({"templateSelectorTerms": [{"osType": "Ubuntu 24.04 LTS"}]}))
        .await;
    assert_eq!(reason(&cloud, &claim).await, None);
}

#[tokio::test]
async fn a_newer_template_is_drift_unless_the_old_one_is_pinned() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let old = cloud.live()[0].template.clone();
    cloud.simulator.operate(|operator| {
        let catalogue = operator.catalogue();
        let newer: Vec<_> = catalogue
            .zones
            .iter()
            .map(|zone| seed::template("ubuntu-24.04-kube", zone, "2025-12-31T08:00:00+0000"))
            .collect();
        catalogue.templates.extend(newer);
    });
    cloud.resolve().await;
    assert_eq!(reason(&cloud, &claim).await.as_deref(), Some("TemplateDrift"));
    let zone = &cloud.live()[0].zone.clone();
    cloud
        .apply_class(json!({"zones": [zone], "templateSelectorTerms": [{"id": old}]}))
        .await;
    assert_eq!(reason(&cloud, &claim).await, None);
}

#[tokio::test]
async fn changes_by_hand_that_matter_are_drift_and_others_are_not() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let machine = cloud.live()[0].clone();
    cloud.simulator.operate(|operator| {
        assert!(operator.migrate(&machine.id), "another host takes it");
        let own = operator.machine(&machine.id).expect("it exists");
        own.display_name = "renamed".to_owned();
    });
    assert_ne!(cloud.live()[0].host, machine.host);
    assert_eq!(reason(&cloud, &claim).await, None, "migrated and renamed");
    let network = cloud.simulator.operate(|operator| {
        let catalogue = operator.catalogue();
        let own = seed::network("storage", &catalogue.zones[0].clone(), "Isolated");
        catalogue.networks.push(own.clone());
        own["id"].as_str().expect("an id").to_owned()
    });
    cloud
        .simulator
        .operate(|operator| operator.add_nic(&machine.id, &network));
    assert_eq!(reason(&cloud, &claim).await.as_deref(), Some("NetworkDrift"));
    cloud.simulator.operate(|operator| {
        let own = operator.machine(&machine.id).expect("it exists");
        own.nics.truncate(1);
        own.cpu = 32;
    });
    assert_eq!(reason(&cloud, &claim).await.as_deref(), Some("ServiceOfferingDrift"));
}

#[tokio::test]
async fn a_zone_that_is_renamed_neither_loses_nor_drifts_its_machines() {
    let zone = Seed::default().catalogue.zones[0]["name"].clone();
    assert_eq!(zone, "zone-1");
    let seed = Seed::default();
    let id = seed.catalogue.zones[0]["id"].clone();
    let network = json!([{"name": "nodes-zone-1"}]);
    let cloud = Cloud::with(seed, json!({"zones": [id], "networkSelectorTerms": network})).await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    cloud.simulator.operate(|operator| {
        let catalogue = operator.catalogue();
        catalogue.zones[0]["name"] = json!("renamed");
    });
    cloud.resolve().await;
    assert_eq!(reason(&cloud, &claim).await, None);
    let listed = cloud.provider.list().await.expect("a list");
    assert_eq!(listed.len(), 1);
    assert_eq!(Some(listed[0].provider_id.as_str()), claim.provider_id());
    terminate(&cloud, &claim).await;
    assert!(cloud.live().is_empty());
}

#[tokio::test]
async fn an_offering_that_is_not_selected_any_more_is_drift() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "500m", json!([]))).await;
    cloud
        .apply_class(json!({"serviceOfferingSelectorTerms": [{"name": "large"}]}))
        .await;
    assert_eq!(reason(&cloud, &claim).await.as_deref(), Some("OfferingGoneDrift"));
}

#[tokio::test]
async fn an_outage_is_an_error_and_never_drift() {
    let cloud = Cloud::start().await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    cloud.simulator.inject(Fault::everything(FaultKind::Page(503)));
    cloud.provider.flush();
    if let Ok(drifted) = cloud.provider.is_drifted(&claim).await {
        assert_eq!(drifted, None);
    }
    cloud.simulator.heal();
}

#[tokio::test]
async fn a_claim_of_another_hash_version_does_not_drift() {
    let cloud = Cloud::with(Seed::default(), json!({})).await;
    let mut claim = cloud.launch(&claim(1, "1", json!([]))).await;
    let annotations = claim.metadata.annotations.get_or_insert_default();
    annotations.insert("karpenter.k8s.cloudstack/nodeclass-hash".into(), "other".into());
    annotations.insert("karpenter.k8s.cloudstack/nodeclass-hash-version".into(), "v1".into());
    assert_eq!(reason(&cloud, &claim).await, None);
}

#[tokio::test]
async fn a_machine_that_left_its_affinity_group_is_drift() {
    let cloud = Cloud::with(Seed::default(), json!({"affinityGroups": {"managed": {}}})).await;
    let make = Request::new("createAffinityGroup")
        .with("name", "apart")
        .with("type", "host anti-affinity");
    let made = cloud.provider.client().call(&make, Priority::Launch).await;
    made.expect("made");
    let managed = cloud.launch(&claim(1, "1", json!([]))).await;
    assert_eq!(reason(&cloud, &managed).await, None);
    let id = cloud.live()[0].id.clone();
    let leave = |id: &str| {
        cloud.simulator.operate(|operator| {
            let machine = operator.machine(id).expect("it exists");
            machine.affinity_groups.clear();
        });
    };
    leave(&id);
    assert_eq!(reason(&cloud, &managed).await.as_deref(), Some("AffinityGroupDrift"));

    cloud
        .apply_class(json!({"affinityGroups": {"selectorTerms": [{"name": "apart"}]}}))
        .await;
    let selected = cloud.launch(&claim(2, "1", json!([]))).await;
    assert_eq!(reason(&cloud, &selected).await, None);
    let id = cloud
        .live()
        .into_iter()
        .find(|own| own.id != id)
        .expect("the second")
        .id;
    leave(&id);
    assert_eq!(reason(&cloud, &selected).await.as_deref(), Some("AffinityGroupDrift"));
}

#[tokio::test]
async fn other_security_groups_than_the_selected_ones_are_drift() {
    let mut seed = Seed::default();
    for zone in &mut seed.catalogue.zones {
        zone["securitygroupsenabled"] = json!(true);
    }
    let group = |name: &str| json!({"id": uuid(name), "name": name, "account": seed::ACCOUNT, "tags": []});
    seed.catalogue.security_groups = vec![group("nodes"), group("databases")];
    let cloud = Cloud::with(seed, json!({"securityGroupSelectorTerms": [{"name": "nodes"}]})).await;
    let claim = cloud.launch(&claim(1, "1", json!([]))).await;
    assert_eq!(reason(&cloud, &claim).await, None);
    let id = cloud.live()[0].id.clone();
    cloud.simulator.operate(|operator| {
        let machine = operator.machine(&id).expect("it exists");
        machine.security_groups.push(uuid("databases"));
    });
    assert_eq!(reason(&cloud, &claim).await.as_deref(), Some("SecurityGroupDrift"));
    cloud.apply_class(json!({})).await;
    assert_eq!(
        reason(&cloud, &claim).await,
        None,
        "a class that names none does not mind"
    );
}

fn uuid(name: &str) -> String {
    format!("0000{:04x}-0000-4000-8000-000000000001", name.len())
}
