//! Makes Nodes and machines know each other, with or without a cloud-controller-manager (cloudstack.md §10.3).

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::{NodeClaim, conditions::StatusConditions};
use karpenter_cloud::{ClaimMark, CloudError, clock::later, error::CloudContext};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    client::{Priority, model::VirtualMachine},
    machine::Marks,
    provider::Shared,
    provider_id,
};

/// What an old cloud-controller-manager wrote on every Node.
const CONSTANT: &str = "external-cloudstack";
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) async fn round(shared: &Shared) -> Result<(), CloudError> {
    let nodes: Api<Node> = Api::all(shared.kube.clone());
    let waiting: Vec<NodeClaim> = super::claims(&shared.kube)
        .await?
        .into_iter()
        .filter(|claim| claim.provider_id().is_some() && !claim.is_true("Initialized"))
        .collect();
    // Nothing waits for a Node: nothing is read.
    if waiting.is_empty() {
        return Ok(());
    }
    let unregistered = waiting.iter().filter(|claim| !claim.is_true("Registered"));
    let claims: Vec<NodeClaim> = unregistered.cloned().collect();
    let listed = nodes
        .list(&ListParams::default())
        .await
        .cloud_context("listing nodes")?;
    let mut machines: Option<Vec<VirtualMachine>> = None;
    for node in &listed.items {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let own = node
            .spec
            .as_ref()
            .and_then(|spec| spec.provider_id.as_deref())
            .unwrap_or_default();
        if is_left_uninitialized(node, shared.clock.now()) {
            tell_uninitialized(shared, &waiting, node, own).await;
        }
        if let Ok(id) = provider_id::machine_id(own) {
            align(shared, &claims, &id, own).await?;
            continue;
        }
        if !own.is_empty() && own != CONSTANT {
            continue;
        }
        if machines.is_none() {
            machines = Some(shared.fleet.list(Priority::Discovery).await?);
        }
        let Some(vm) = only_match(node, machines.as_deref().unwrap_or_default()) else {
            continue;
        };
        let Some(claim) = claim_of(shared, &claims, vm) else {
            continue;
        };
        if own == CONSTANT {
            let message = format!(
                "node {name} has the provider ID {CONSTANT:?}, which cannot be changed; recreate the node with a newer cloud-controller-manager"
            );
            shared.tell_claim(claim, "ProviderIDConflict", &message).await;
            continue;
        }
        let patch = json!({"spec": {"providerID": claim.provider_id()}});
        nodes
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .cloud_context(format!("setting the provider ID of node {name}"))?;
        tracing::info!(
            node = name,
            vm = vm.id,
            "a node without a provider ID was matched with its machine"
        );
    }
    Ok(())
}

/// A kubelet that expects a cloud-controller-manager taints its Node until one comes.
fn is_left_uninitialized(node: &Node, now: Timestamp) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let is_tainted = taints.into_iter().flatten().any(|taint| taint.key == UNINITIALIZED);
    let created = node.metadata.creation_timestamp.as_ref().map(|own| own.0);
    is_tainted && created.is_some_and(|created| later(created, PATIENCE) <= now)
}

async fn tell_uninitialized(shared: &Shared, claims: &[NodeClaim], node: &Node, own: &str) {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let id = provider_id::machine_id(own).ok();
    let is_of = |claim: &&NodeClaim| {
        let known = claim
            .provider_id()
            .and_then(|known| provider_id::machine_id(known).ok());
        let by_id = id.is_some() && known == id;
        by_id || shared.fleet.name(&ClaimMark::of(claim), 1).eq_ignore_ascii_case(name)
    };
    if let Some(claim) = claims.iter().find(is_of) {
        let message = format!(
            "node {name} waits for a cloud-controller-manager since ten minutes; install one, or start the kubelet without --cloud-provider=external"
        );
        shared
            .tell_claim(claim, "CloudControllerManagerMissing", &message)
            .await;
    }
}

/// The Node's string cannot change, so the claim takes it over.
async fn align(shared: &Shared, claims: &[NodeClaim], id: &str, own: &str) -> Result<(), CloudError> {
    let claim = claims.iter().find(|claim| {
        let known = claim.provider_id().unwrap_or_default();
        known != own && provider_id::machine_id(known).is_ok_and(|known| known == id)
    });
    let Some(claim) = claim else { return Ok(()) };
    let api: Api<NodeClaim> = Api::all(shared.kube.clone());
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let patch = json!({"status": {"providerID": own}});
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .cloud_context(format!("setting the provider ID of NodeClaim {name}"))?;
    tracing::info!(
        claim = name,
        provider_id = own,
        "the claim took over the provider ID of its node"
    );
    Ok(())
}

fn claim_of<'a>(shared: &Shared, claims: &'a [NodeClaim], vm: &VirtualMachine) -> Option<&'a NodeClaim> {
    let marks = Marks::of(vm, &shared.settings);
    let uid = &marks.claim()?.uid;
    claims.iter().find(|claim| claim.metadata.uid.as_ref() == Some(uid))
}

/// The one machine that a Node certainly is: by the firmware's UUID, or by name together with an address.
fn only_match<'a>(node: &Node, machines: &'a [VirtualMachine]) -> Option<&'a VirtualMachine> {
    let status = node.status.as_ref();
    let uuid = status
        .and_then(|own| own.node_info.as_ref())
        .map(|own| own.system_uuid.to_lowercase());
    let by_uuid: Vec<&VirtualMachine> = machines
        .iter()
        .filter(|vm| Some(vm.id.to_lowercase()) == uuid)
        .collect();
    if let [vm] = by_uuid.as_slice() {
        return Some(vm);
    }
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let addresses: Vec<&str> = status
        .and_then(|own| own.addresses.as_ref())
        .into_iter()
        .flatten()
        .filter(|own| own.type_ == "InternalIP")
        .map(|own| own.address.as_str())
        .collect();
    let has_address = |vm: &VirtualMachine| {
        let own = vm
            .nic
            .iter()
            .flat_map(|nic| nic.ipaddress.iter().chain(&nic.ip6address));
        own.into_iter().any(|own| addresses.contains(&own.as_str()))
    };
    let by_name: Vec<&VirtualMachine> = machines
        .iter()
        .filter(|vm| vm.name.eq_ignore_ascii_case(name) && has_address(vm))
        .collect();
    match by_name.as_slice() {
        [vm] => Some(vm),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "c6a6fe25-9e69-4728-b8b1-ccbf5f4639c4";

    fn machines() -> Vec<VirtualMachine> {
        serde_json::from_value(
            json!([{"id": ID, "name": "karpenter-a", "nic": [{"networkid": "n", "ipaddress": "10.0.0.5"}]}]),
        )
        .expect("machines")
    }

    fn node(name: &str, uuid: &str, address: &str) -> Node {
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

    fn check(node: &Node, matches: bool) {
        assert_eq!(only_match(node, &machines()).is_some(), matches, "{node:?}");
    }

    #[test]
    fn a_node_is_matched_by_its_firmware_or_by_name_and_address() {
        check(&node("other", &ID.to_uppercase(), "1.1.1.1"), true);
        check(&node("karpenter-a", "wrong", "10.0.0.5"), true);
        check(&node("karpenter-a", "wrong", "1.1.1.1"), false);
        check(&node("other", "wrong", "10.0.0.5"), false);
    }
}
