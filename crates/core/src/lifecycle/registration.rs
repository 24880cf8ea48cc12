//! Making a node that has joined the cluster what its NodeClaim says: finalizer, owner, taints, labels.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use karpenter_api::{NodeClaim, labels, taint};
use kube::Resource;

/// Overlays what the claim says onto the node: safe to repeat, so it can be written before registration completes.
pub fn sync(node: &mut Node, claim: &NodeClaim) {
    add_finalizer(node);
    add_owner(node, claim);
    let skip_taints = node_label(node, labels::DO_NOT_SYNC_TAINTS) == Some("true");
    if !skip_taints {
        let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
        taint::merge(taints, claim.spec.taints.as_deref().unwrap_or_default());
        taint::merge(taints, claim.spec.startup_taints.as_deref().unwrap_or_default());
    }
    overlay(&mut node.metadata.annotations, claim.metadata.annotations.as_ref());
    overlay(&mut node.metadata.labels, claim.metadata.labels.as_ref());
}

/// The last step: pods may come.
pub fn admit(node: &mut Node) {
    if let Some(taints) = node.spec.as_mut().and_then(|spec| spec.taints.as_mut()) {
        taints.retain(|present| !taint::same(present, &taint::unregistered()));
    }
    node.metadata
        .labels
        .get_or_insert_default()
        .insert(labels::REGISTERED.to_owned(), "true".to_owned());
}

/// Whether the node joined without the taint that keeps pods away until registration.
pub fn joined_unguarded(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let guarded = taints
        .into_iter()
        .any(|present| taint::same(present, &taint::unregistered()));
    !guarded && node_label(node, labels::REGISTERED).is_none()
}

fn node_label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn add_finalizer(node: &mut Node) {
    let finalizers = node.metadata.finalizers.get_or_insert_default();
    if !finalizers
        .iter()
        .any(|finalizer| finalizer == labels::TERMINATION_FINALIZER)
    {
        finalizers.push(labels::TERMINATION_FINALIZER.to_owned());
    }
}

fn add_owner(node: &mut Node, claim: &NodeClaim) {
    let owner = OwnerReference {
        api_version: NodeClaim::api_version(&()).into_owned(),
        kind: NodeClaim::kind(&()).into_owned(),
        name: claim.metadata.name.clone().unwrap_or_default(),
        uid: claim.metadata.uid.clone().unwrap_or_default(),
        block_owner_deletion: Some(true),
        controller: None,
    };
    let owners = node.metadata.owner_references.get_or_insert_default();
    let is_known = |known: &OwnerReference| {
        known.api_version == owner.api_version && known.kind == owner.kind && known.uid == owner.uid
    };
    if !owners.iter().any(is_known) {
        owners.push(owner);
    }
}

fn overlay(onto: &mut Option<BTreeMap<String, String>>, from: Option<&BTreeMap<String, String>>) {
    let Some(from) = from.filter(|from| !from.is_empty()) else {
        return;
    };
    onto.get_or_insert_default()
        .extend(from.iter().map(|(key, value)| (key.clone(), value.clone())));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> NodeClaim {
        serde_norway::from_str(
            "{apiVersion: karpenter.sh/v1, kind: NodeClaim, \
              metadata: {name: c, uid: u, labels: {team: a, zone: z}, annotations: {note: x}}, \
              spec: {requirements: [], nodeClassRef: {group: g, kind: K, name: n}, \
                taints: [{key: team, value: a, effect: NoSchedule}], \
                startupTaints: [{key: cni, effect: NoExecute}]}}",
        )
        .unwrap()
    }

    fn node(yaml: &str) -> Node {
        serde_norway::from_str(yaml).unwrap()
    }

    fn taints(node: &Node) -> Vec<String> {
        node.spec
            .iter()
            .flat_map(|spec| spec.taints.iter().flatten())
            .map(taint::text)
            .collect()
    }

    #[test]
    fn a_node_becomes_what_its_claim_says() {
        let mut node =
            node("{metadata: {labels: {team: b, arch: arm64}}, spec: {taints: [{key: x, effect: NoSchedule}]}}");
        sync(&mut node, &claim());
        let labels = node.metadata.labels.clone().unwrap();
        assert_eq!(
            (
                labels["team"].as_str(),
                labels["zone"].as_str(),
                labels["arch"].as_str()
            ),
            ("a", "z", "arm64")
        );
        assert_eq!(node.metadata.annotations.clone().unwrap()["note"], "x");
        assert_eq!(node.metadata.finalizers.clone().unwrap(), ["karpenter.sh/termination"]);
        let owner = &node.metadata.owner_references.clone().unwrap()[0];
        assert_eq!(
            (owner.kind.as_str(), owner.uid.as_str(), owner.controller),
            ("NodeClaim", "u", None)
        );
        assert_eq!(taints(&node), ["x:NoSchedule", "team=a:NoSchedule", "cni:NoExecute"]);
    }

    #[test]
    fn syncing_twice_changes_nothing() {
        let mut once = node("{metadata: {name: n}}");
        sync(&mut once, &claim());
        let mut twice = once.clone();
        sync(&mut twice, &claim());
        assert_eq!(once, twice);
    }

    #[test]
    fn a_node_may_refuse_the_taints_of_its_claim() {
        let check = |value: &str, expected: &[&str]| {
            let mut node = node(&format!(
                "{{metadata: {{labels: {{karpenter.sh/do-not-sync-taints: '{value}'}}}}, \
                 spec: {{taints: [{{key: karpenter.sh/unregistered, effect: NoExecute}}]}}}}"
            ));
            sync(&mut node, &claim());
            admit(&mut node);
            assert_eq!(taints(&node), expected);
        };
        check("true", &[]);
        check("false", &["team=a:NoSchedule", "cni:NoExecute"]);
    }

    #[test]
    fn a_node_without_the_guarding_taint_is_noticed_until_it_is_registered() {
        assert!(joined_unguarded(&node("{metadata: {}}")));
        assert!(!joined_unguarded(&node(
            "{spec: {taints: [{key: karpenter.sh/unregistered, effect: NoExecute}]}}"
        )));
        let mut registered = node("{metadata: {}}");
        admit(&mut registered);
        assert!(!joined_unguarded(&registered));
    }
}
