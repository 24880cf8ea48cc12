//! Which claims may share a pool, what such a pool is called, and whose a pool is.

use k8s_openapi::api::core::v1::Taint;
use sha2::{Digest, Sha256};

use crate::{
    catalogue::{Billing, types::ZoneKind},
    client::model::{FloatingIps, NewPool, Pool, Template, TemplateMetadata, TemplateSpec, TemplateTaint},
    names,
    node_class::OvhNodeClass,
};

/// Everything that a pool fixes for all its nodes: claims with equal keys share pools.
///
/// Labels, startup taints and annotations are not part of it: core writes them to Nodes, so changing them needs no new pools.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolKey {
    pub node_pool: String,
    pub node_class: String,
    pub flavor: String,
    pub zone: String,
    static_hash: String,
    taints: Vec<TemplateTaint>,
}

/// A pool that is to be made: everything but its size and shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDesign {
    pub key: PoolKey,
    pub zone_kind: ZoneKind,
    /// The zone to name in the request, if any.
    pub zone: Option<String>,
    pub cap: u32,
    pub monthly_billed: bool,
    pub anti_affinity: bool,
    pub floating_ips: bool,
    pub tags: std::collections::BTreeMap<String, String>,
}

/// Whose a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolOwner {
    Owned,
    /// Made by the provider written in Go: emptied, never grown.
    Legacy,
    /// Somebody else's, whatever its name.
    Foreign,
}

const PREFIX: &str = "karpenter-";
/// The name becomes a label value of its Nodes.
const LONGEST_NAME: usize = 63;
const NAME_HASH: usize = 8;
const LABEL_HASH: usize = 16;

impl PoolKey {
    pub fn new(node_pool: &str, class: &OvhNodeClass, flavor: &str, zone: &str, taints: &[Taint]) -> Self {
        let mut taints: Vec<TemplateTaint> = taints
            .iter()
            .map(|taint| TemplateTaint {
                key: taint.key.clone(),
                value: taint.value.clone().unwrap_or_default(),
                effect: taint.effect.clone(),
            })
            .collect();
        taints.sort();
        taints.dedup();
        Self {
            node_pool: node_pool.to_owned(),
            node_class: class.name().to_owned(),
            flavor: flavor.to_owned(),
            zone: zone.to_owned(),
            static_hash: class.spec.static_hash(),
            taints,
        }
    }

    /// The mark on pools of this key.
    pub fn label(&self) -> String {
        self.hex(LABEL_HASH)
    }

    fn hex(&self, digits: usize) -> String {
        let mut hash = Sha256::new();
        let parts = [
            &self.node_pool,
            &self.node_class,
            &self.flavor,
            &self.zone,
            &self.static_hash,
        ];
        for part in parts {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        for taint in &self.taints {
            for part in [&taint.key, &taint.value, &taint.effect] {
                hash.update(part.as_bytes());
                hash.update([0]);
            }
        }
        let mut hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        hex.truncate(digits);
        hex
    }

    /// The name of a shard: letters, digits and hyphens, at most 63 of them.
    pub fn pool_name(&self, shard: u32, zones: ZoneKind) -> String {
        let mut what = match zones {
            ZoneKind::One => self.flavor.clone(),
            ZoneKind::Several => format!("{}-{}", self.flavor, self.zone),
        };
        what = what
            .to_lowercase()
            .chars()
            .map(|char| {
                if char.is_ascii_lowercase() || char.is_ascii_digit() {
                    char
                } else {
                    '-'
                }
            })
            .collect();
        let tail = format!("-{}-{shard}", self.hex(NAME_HASH));
        what.truncate(LONGEST_NAME - PREFIX.len() - tail.len());
        format!("{PREFIX}{}{tail}", what.trim_end_matches('-'))
    }

    /// Whether a pool of one of our names really is of this key: hashes may collide, and users may choose any name.
    pub fn is_of(&self, pool: &Pool) -> bool {
        pool.label(names::POOL_KEY) == Some(self.label().as_str()) && pool.flavor == self.flavor
    }
}

impl PoolDesign {
    pub fn new(key: PoolKey, class: &OvhNodeClass, zone_kind: ZoneKind, cap: u32) -> Self {
        let zone = match zone_kind {
            ZoneKind::One => None,
            ZoneKind::Several => Some(key.zone.clone()),
        };
        Self {
            key,
            zone_kind,
            zone,
            cap,
            monthly_billed: Billing::of(&class.spec) == Billing::Monthly,
            anti_affinity: class.spec.is_anti_affine(),
            floating_ips: class.spec.has_floating_ips(),
            tags: class.spec.tags.clone(),
        }
    }

    pub fn pool_name(&self, shard: u32) -> String {
        self.key.pool_name(shard, self.zone_kind)
    }

    /// The request that makes the pool. The template is never changed afterwards.
    pub fn request(&self, name: &str, desired_nodes: u32) -> NewPool {
        // Ours last: validation refuses tags that would hide them, but a class may not have been validated yet.
        let mut labels = self.tags.clone();
        labels.insert(karpenter_api::labels::NODEPOOL.to_owned(), self.key.node_pool.clone());
        labels.insert(names::NODE_CLASS.to_owned(), self.key.node_class.clone());
        labels.insert(names::POOL_KEY.to_owned(), self.key.label());
        NewPool {
            name: name.to_owned(),
            flavor_name: self.key.flavor.clone(),
            desired_nodes,
            min_nodes: 0,
            max_nodes: self.cap,
            autoscale: false,
            monthly_billed: self.monthly_billed,
            anti_affinity: self.anti_affinity,
            availability_zones: self.zone.iter().cloned().collect(),
            attach_floating_ips: self.floating_ips.then_some(FloatingIps { enabled: true }),
            template: Template {
                metadata: TemplateMetadata {
                    labels,
                    ..TemplateMetadata::default()
                },
                spec: TemplateSpec {
                    taints: self.key.taints.clone(),
                    unschedulable: false,
                },
            },
        }
    }
}

impl PoolOwner {
    pub fn of(pool: &Pool) -> Self {
        if pool.name.starts_with(PREFIX) && pool.label(names::POOL_KEY).is_some() {
            return Self::Owned;
        }
        let legacy_names = [
            Some(format!("{PREFIX}{}", pool.flavor)),
            pool.zone().map(|zone| format!("{PREFIX}{}-{zone}", pool.flavor)),
        ];
        let is_named_so = legacy_names.iter().flatten().any(|name| *name == pool.name);
        if is_named_so && pool.label("managed-by") == Some("karpenter") {
            Self::Legacy
        } else {
            Self::Foreign
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(spec: serde_json::Value) -> OvhNodeClass {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.ovhcloud.sh/v1alpha1", "kind": "OVHNodeClass",
            "metadata": {"name": "default"}, "spec": spec,
        }))
        .expect("a class")
    }

    fn taint(key: &str, value: Option<&str>) -> Taint {
        Taint {
            key: key.into(),
            value: value.map(str::to_owned),
            effect: "NoSchedule".into(),
            time_added: None,
        }
    }

    fn key(spec: serde_json::Value, taints: &[Taint]) -> PoolKey {
        PoolKey::new("default", &class(spec), "b3-16", "eu-west-par-a", taints)
    }

    #[test]
    fn a_name_says_flavor_and_zone_and_fits_a_label() {
        let own = key(json!({}), &[]);
        let hash = own.hex(8);
        assert_eq!(
            own.pool_name(2, ZoneKind::Several),
            format!("karpenter-b3-16-eu-west-par-a-{hash}-2")
        );
        assert_eq!(own.pool_name(0, ZoneKind::One), format!("karpenter-b3-16-{hash}-0"));
        let long = PoolKey {
            flavor: "X.Y_".repeat(30),
            ..own
        };
        let name = long.pool_name(17, ZoneKind::Several);
        assert!(name.len() <= 63 && name.ends_with("-17"), "{name}");
        assert!(
            name.chars()
                .all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-')
        );
    }

    #[test]
    fn what_a_pool_fixes_is_in_the_key_and_nothing_else() {
        let own = key(json!({}), &[]).label();
        assert_eq!(key(json!({"maxNodesPerPool": 7, "region": "X"}), &[]).label(), own);
        assert_ne!(key(json!({"monthlyBilled": true}), &[]).label(), own);
        assert_ne!(key(json!({"tags": {"a": "b"}}), &[]).label(), own);
        assert_ne!(key(json!({}), &[taint("a", None)]).label(), own);
        let ab = [taint("a", None), taint("b", Some("c"))];
        let ba = [taint("b", Some("c")), taint("a", None)];
        assert_eq!(key(json!({}), &ab).label(), key(json!({}), &ba).label());
    }

    #[test]
    fn the_request_has_a_complete_template_and_no_finalizers() {
        let class = class(json!({"tags": {"team": "web", "karpenter.sh/nodepool": "stolen"}}));
        let key = PoolKey::new("default", &class, "b3-8", "nova", &[taint("a", None)]);
        let design = PoolDesign::new(key.clone(), &class, ZoneKind::One, 100);
        let request = design.request("karpenter-x", 3);
        assert!(
            request.availability_zones.is_empty(),
            "one-zone regions are not told a zone"
        );
        assert_eq!(request.template.metadata.labels["karpenter.sh/nodepool"], "default");
        assert_eq!(request.template.metadata.labels["team"], "web");
        assert_eq!(request.template.metadata.labels[names::POOL_KEY], key.label());
        assert_eq!(request.template.spec.taints[0].value, "");
        assert!(request.template.metadata.finalizers.is_empty());
        assert!(!request.template.metadata.labels.contains_key("karpenter.sh/registered"));
    }

    fn pool(name: &str, labels: serde_json::Value) -> Pool {
        serde_json::from_value(json!({
            "id": "p", "name": name, "flavor": "b3-8", "availabilityZones": ["z"],
            "template": {"metadata": {"labels": labels}},
        }))
        .expect("a pool")
    }

    #[test]
    fn only_a_marked_pool_is_ours() {
        assert_eq!(
            PoolOwner::of(&pool("karpenter-b3-8-x-0", json!({names::POOL_KEY: "x"}))),
            PoolOwner::Owned
        );
        assert_eq!(
            PoolOwner::of(&pool("mine", json!({names::POOL_KEY: "x"}))),
            PoolOwner::Foreign
        );
        assert_eq!(PoolOwner::of(&pool("karpenter-system", json!({}))), PoolOwner::Foreign);
        assert_eq!(
            PoolOwner::of(&pool("karpenter-b3-8", json!({"managed-by": "karpenter"}))),
            PoolOwner::Legacy
        );
        assert_eq!(
            PoolOwner::of(&pool("karpenter-b3-8-z", json!({"managed-by": "karpenter"}))),
            PoolOwner::Legacy
        );
        assert_eq!(PoolOwner::of(&pool("karpenter-b3-8", json!({}))), PoolOwner::Foreign);
    }
}
