//! A NodePool object as the engine's NodePool.

use karpenter_api::{NodePool as KubePool, Requirements, labels::LabelRules};

use super::{ConvertError, taint::taints};
use crate::model::{NodeClassRef, NodePool};

/// The pool as scheduling reads it; `hash` is the hash of its template as read now.
///
/// # Errors
/// When the pool has no name.
pub fn node_pool(rules: &LabelRules, pool: &KubePool, hash: String) -> Result<NodePool, ConvertError> {
    let template = &pool.spec.template;
    let class = &template.spec.node_class_ref;
    Ok(NodePool {
        name: pool
            .metadata
            .name
            .clone()
            .ok_or(ConvertError::Missing("metadata.name"))?,
        uid: pool.metadata.uid.clone().unwrap_or_default(),
        weight: pool.weight(),
        labels: template.metadata.labels.clone().unwrap_or_default(),
        annotations: template.metadata.annotations.clone().unwrap_or_default(),
        requirements: Requirements::from_wire(rules, &template.spec.requirements),
        taints: taints(template.spec.taints.as_deref()),
        startup_taints: taints(template.spec.startup_taints.as_deref()),
        limits: pool.spec.limits.clone().unwrap_or_default(),
        node_class: NodeClassRef {
            group: class.group.clone(),
            kind: class.kind.clone(),
            name: class.name.clone(),
        },
        seeds_claims: !pool.is_static(),
        hash,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_requirement_given_twice_keeps_the_larger_min_values() {
        let pool: KubePool = serde_json::from_value(json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
            "metadata": { "name": "default" },
            "spec": { "limits": { "cpu": "10" }, "template": { "spec": {
                "nodeClassRef": { "group": "g", "kind": "K", "name": "n" },
                "requirements": [
                    { "key": "team", "operator": "In", "values": ["a", "b"], "minValues": 1 },
                    { "key": "team", "operator": "Exists", "minValues": 2 }] } } } }))
        .unwrap();
        let pool = node_pool(&LabelRules::default(), &pool, pool.static_hash()).unwrap();
        assert_eq!(pool.requirements.get("team").and_then(|r| r.min_values()), Some(2));
        assert_eq!(pool.limits.cpu(), "10".parse().unwrap());
        assert_eq!(pool.weight, 0);
    }
}
