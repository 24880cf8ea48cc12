//! Runtime validation of NodeOverlays.

use super::{Finding, entry, requirement};
use crate::labels::LabelRules;
use crate::node_overlay::NodeOverlay;
use crate::resources;

impl NodeOverlay {
    /// Everything that makes the overlay unusable although the API server admitted it.
    pub fn validate(&self, rules: &LabelRules) -> Vec<Finding> {
        let requirements = self.spec.requirements.iter().enumerate();
        let mut findings: Vec<Finding> = requirements
            .flat_map(|(position, item)| requirement(rules, &format!("spec.requirements[{position}]"), item))
            .collect();
        for resource in self.spec.capacity.iter().flat_map(|capacity| capacity.keys()) {
            if resources::WELL_KNOWN.contains(&resource.as_str()) {
                let problem = format!("{resource} can't be changed; an overlay adds extended resources only");
                findings.push(Finding::new(entry("spec.capacity", resource), problem));
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn findings(spec: serde_json::Value) -> Vec<String> {
        let overlay: NodeOverlay = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": "o" }, "spec": spec,
        }))
        .unwrap();
        overlay
            .validate(&LabelRules::default())
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn an_overlay_may_select_by_nodepool_but_not_by_restricted_labels() {
        assert!(
            findings(
                json!({ "requirements": [{ "key": "karpenter.sh/nodepool", "operator": "In", "values": ["a"] }] })
            )
            .is_empty()
        );
        let found = findings(json!({ "requirements": [{ "key": "karpenter.sh/registered", "operator": "Exists" }] }));
        assert!(found[0].starts_with("spec.requirements[0].key: "), "{found:?}");
    }

    #[test]
    fn an_overlay_adds_extended_resources_only() {
        assert!(findings(json!({ "requirements": [], "capacity": { "smarter-devices/fuse": 1 } })).is_empty());
        let found = findings(json!({ "requirements": [], "capacity": { "cpu": 1 } }));
        assert!(found[0].contains("spec.capacity[cpu]"), "{found:?}");
    }
}
