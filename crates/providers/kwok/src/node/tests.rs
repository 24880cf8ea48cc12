use karpenter_api::{Quantity, labels::LabelRules};
use serde_json::json;

use super::*;
use crate::catalogue::Catalogue;

fn claim() -> NodeClaim {
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": "default-abc", "uid": "u1", "labels": {"team": "blue"}},
        "spec": {
            "requirements": [
                {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["test-zone-b"]},
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["s-4x-amd64-linux", "s-8x-amd64-linux"]},
                {"key": "example.com/tier", "operator": "In", "values": ["gold"]},
            ],
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
        },
    }))
    .expect("a NodeClaim")
}

fn built() -> Node {
    let catalogue = Catalogue::built_in();
    let claim = claim();
    let candidates = selection::candidates(&claim, &catalogue.types(), catalogue.rules());
    build(&claim, &candidates[0])
}

#[test]
fn a_node_carries_what_the_claim_asked_for_and_what_was_bought() {
    let node = built();
    let labels = node.metadata.labels.as_ref().expect("labels");
    let expected = [
        ("team", "blue"),
        ("example.com/tier", "gold"),
        ("karpenter.sh/capacity-type", "spot"),
        ("topology.kubernetes.io/zone", "test-zone-b"),
        ("node.kubernetes.io/instance-type", "s-4x-amd64-linux"),
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/hostname", "default-abc"),
        ("kwok.x-k8s.io/node", "fake"),
        ("kwok-partition", "a"),
        ("karpenter.kwok.sh/instance-cpu", "4"),
        ("karpenter.kwok.sh/instance-family", "s"),
    ];
    for (key, value) in expected {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert!(labels.contains_key("eks-node-viewer/instance-price"));
    assert_eq!(
        node.metadata.annotations.as_ref().expect("annotations")["kwok.x-k8s.io/node"],
        "fake"
    );
}

#[test]
fn a_node_joins_unregistered_and_with_the_real_capacity() {
    let node = built();
    let spec = node.spec.as_ref().expect("a spec");
    assert_eq!(spec.taints.as_deref().expect("taints"), [taint::unregistered()]);
    let status = node.status.as_ref().expect("a status");
    let cpu = |amounts: &Option<BTreeMap<_, _>>| {
        ResourceList::from_kube(amounts.as_ref().expect("resources"))
            .expect("quantities")
            .cpu()
    };
    assert_eq!(cpu(&status.capacity), Quantity::from_units(4));
    assert_eq!(cpu(&status.allocatable), Quantity::from_milli(3900));
}

#[test]
fn the_name_depends_on_the_claim_only() {
    assert_eq!(built().metadata.name, built().metadata.name);
    let first = ClaimMark {
        name: "a".into(),
        uid: "u1".into(),
    };
    let second = ClaimMark {
        name: "a".into(),
        uid: "u2".into(),
    };
    assert_ne!(name(&first), name(&second));
    assert!(name(&first).starts_with("kwok-a-"));
}

#[test]
fn an_instance_is_read_back_from_its_node() {
    let mut node = built();
    let read = instance(&node).expect("readable").expect("ours");
    assert_eq!(
        read.provider_id,
        provider_id(node.metadata.name.as_deref().expect("a name"))
    );
    assert_eq!(
        read.claim,
        Some(ClaimMark {
            name: "default-abc".into(),
            uid: "u1".into()
        })
    );
    assert_eq!(read.capacity.cpu(), Quantity::from_units(4));
    assert_eq!(read.phase, InstancePhase::Live);
    node.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        jiff::Timestamp::UNIX_EPOCH,
    ));
    assert!(instance(&node).expect("readable").expect("ours").is_terminating());
}

#[test]
fn labels_that_the_cluster_added_are_not_the_instances() {
    let mut node = built();
    let before = instance(&node).expect("readable").expect("ours").labels;
    let added = [
        ("beta.kubernetes.io/arch", "amd64"),
        ("karpenter.sh/registered", "true"),
    ];
    let labels = node.metadata.labels.get_or_insert_default();
    labels.extend(added.map(|(key, value)| (key.to_owned(), value.to_owned())));
    assert_eq!(instance(&node).expect("readable").expect("ours").labels, before);
}

#[test]
fn nodes_of_other_providers_are_not_ours() {
    let mut node = built();
    node.spec.as_mut().expect("a spec").provider_id = Some("aws:///i-1".into());
    assert_eq!(instance(&node).expect("readable"), None);
    node.spec.as_mut().expect("a spec").provider_id = None;
    assert_eq!(instance(&node).expect("readable"), None);
    assert_eq!(name_of("kwok://"), None);
    assert_eq!(name_of("kwok://a"), Some("a"));
}

#[test]
fn offering_keys_of_the_catalogue_do_not_leak_into_the_base_rules() {
    assert!(
        Catalogue::built_in()
            .rules()
            .is_well_known("karpenter.kwok.sh/instance-cpu")
    );
    assert!(!LabelRules::default().is_well_known("karpenter.kwok.sh/instance-cpu"));
}
