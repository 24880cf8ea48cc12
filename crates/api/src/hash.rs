//! The static hash of a NodePool, bit-exact with upstream's (api.md §3).
//!
//! Nodes carry the hash of the template that they were made from; a template whose hash differs has drifted. Computing the
//! same number as upstream lets a running cluster be taken over without replacing a single node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::node_class::NodeClassReference;
use crate::node_pool::{NodeClaimTemplate, NodePool, TemplateMetadata};

/// Changes when the hash of an unchanged NodePool would.
pub const HASH_VERSION: &str = "v3";

impl NodePool {
    /// The hash of what nodes are made from, as it is written to annotations.
    pub fn static_hash(&self) -> String {
        template(&self.spec.template).to_string()
    }
}

fn template(template: &NodeClaimTemplate) -> u64 {
    let TemplateMetadata { labels, annotations } = &template.metadata;
    let metadata = (labels.is_some() || annotations.is_some()).then(|| {
        Struct::new("ObjectMeta")
            .field("Labels", labels.as_ref().map(string_map))
            .field("Annotations", annotations.as_ref().map(string_map))
            .finish()
    });
    let spec = &template.spec;
    let grace_period = spec.termination_grace_period.map(|duration| {
        let nanos = (!duration.is_zero()).then(|| integer(duration.nanos()));
        Struct::new("Duration").field("Duration", nanos).finish()
    });
    let expire_after = spec.expire_after.as_go_duration().map(|duration| {
        Struct::new("NillableDuration")
            .field("Duration", Some(integer(duration.nanos())))
            .finish()
    });
    let spec = Struct::new("NodeClaimTemplateSpec")
        .field("Taints", spec.taints.as_deref().map(taints))
        .field("StartupTaints", spec.startup_taints.as_deref().map(taints))
        .field("NodeClassRef", Some(node_class(&spec.node_class_ref)))
        .field("TerminationGracePeriod", grace_period)
        .field("ExpireAfter", expire_after)
        .finish();
    Struct::new("NodeClaimTemplate")
        .field("ObjectMeta", metadata)
        .field("Spec", Some(spec))
        .finish()
}

fn node_class(reference: &NodeClassReference) -> u64 {
    Struct::new("NodeClassReference")
        .field("Kind", string_unless_empty(&reference.kind))
        .field("Name", string_unless_empty(&reference.name))
        .field("Group", string_unless_empty(&reference.group))
        .finish()
}

/// A list is a set to the hash: order does not matter, and equal elements cancel each other.
fn taints(taints: &[Taint]) -> u64 {
    taints.iter().map(taint).fold(0, |combined, hash| combined ^ hash)
}

fn taint(taint: &Taint) -> u64 {
    Struct::new("Taint")
        .field("Key", string_unless_empty(&taint.key))
        .field("Value", taint.value.as_deref().and_then(string_unless_empty))
        .field("Effect", string_unless_empty(&taint.effect))
        .field("TimeAdded", taint.time_added.as_ref().map(time))
        .finish()
}

/// Go's binary form of a time at offset zero: version, seconds since the year 1, nanoseconds, minutes of offset.
fn time(time: &Time) -> u64 {
    const SECONDS_FROM_YEAR_ONE_TO_1970: i64 = 62_135_596_800;
    let seconds = time.0.as_second() + SECONDS_FROM_YEAR_ONE_TO_1970;
    let mut bytes = vec![1];
    bytes.extend(seconds.to_be_bytes());
    bytes.extend(time.0.subsec_nanosecond().to_be_bytes());
    bytes.extend(0_i16.to_be_bytes());
    Struct::new("Time").field("Time", Some(fnv1(&bytes))).finish()
}

/// Accumulates the fields of a Go struct; absent and zero fields leave no trace.
struct Struct(u64);

impl Struct {
    fn new(type_name: &str) -> Self {
        Self(string(type_name))
    }

    fn field(self, name: &str, value: Option<u64>) -> Self {
        match value {
            Some(value) => Self(seal(self.0 ^ pair(string(name), value))),
            None => self,
        }
    }

    fn finish(self) -> u64 {
        self.0
    }
}

fn string_map(map: &BTreeMap<String, String>) -> u64 {
    seal(
        map.iter()
            .fold(0, |combined, (key, value)| combined ^ pair(string(key), string(value))),
    )
}

fn string(text: &str) -> u64 {
    fnv1(text.as_bytes())
}

fn string_unless_empty(text: &str) -> Option<u64> {
    (!text.is_empty()).then(|| string(text))
}

fn integer(number: i64) -> u64 {
    fnv1(&number.to_le_bytes())
}

fn pair(a: u64, b: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&a.to_le_bytes());
    bytes[8..].copy_from_slice(&b.to_le_bytes());
    fnv1(&bytes)
}

fn seal(hash: u64) -> u64 {
    fnv1(&hash.to_le_bytes())
}

/// FNV-1, 64 bit: multiply, then xor.
fn fnv1(bytes: &[u8]) -> u64 {
    const OFFSET: u64 = 14_695_981_039_346_656_037;
    const PRIME: u64 = 1_099_511_628_211;
    bytes
        .iter()
        .fold(OFFSET, |hash, byte| hash.wrapping_mul(PRIME) ^ u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pool(metadata: Value, spec: Value) -> NodePool {
        let mut template = json!({
            "metadata": metadata,
            "spec": {
                "nodeClassRef": { "kind": "KWOKNodeClass", "name": "default", "group": "karpenter.kwok.sh" },
                "requirements": [],
                "expireAfter": "720h",
            },
        });
        for (key, value) in spec.as_object().unwrap() {
            template["spec"][key] = value.clone();
        }
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" },
            "spec": { "template": template },
        }))
        .unwrap()
    }

    fn check(metadata: Value, spec: Value, expected: &str) {
        assert_eq!(
            pool(metadata.clone(), spec.clone()).static_hash(),
            expected,
            "{metadata} {spec}"
        );
    }

    #[test]
    fn hashes_are_those_of_upstream() {
        let two_taints = json!([
            { "key": "k1", "value": "v1", "effect": "NoSchedule" },
            { "key": "k2", "effect": "NoExecute" },
        ]);
        let reversed = json!([two_taints[1], two_taints[0]]);
        let twice = json!([two_taints[0], two_taints[0]]);
        check(json!({}), json!({}), "12745407319442031341");
        check(json!({}), json!({ "expireAfter": "Never" }), "7428780003907761376");
        check(json!({ "labels": { "team": "a" } }), json!({}), "10172464548043488983");
        check(
            json!({ "annotations": { "team": "a" } }),
            json!({}),
            "16335645860539433923",
        );
        check(json!({}), json!({ "taints": two_taints }), "14915365824884678609");
        check(json!({}), json!({ "taints": reversed }), "14915365824884678609");
        check(json!({}), json!({ "startupTaints": two_taints }), "6846267320608697315");
        check(
            json!({}),
            json!({ "terminationGracePeriod": "5m" }),
            "5371745328772648187",
        );
        check(
            json!({}),
            json!({ "terminationGracePeriod": "0s" }),
            "16848824146983765585",
        );
        check(json!({ "labels": {} }), json!({}), "5327702334917744615");
        check(json!({}), json!({ "taints": [] }), "845502862369909111");
        check(json!({}), json!({ "taints": twice }), "845502862369909111");
        check(
            json!({ "labels": { "team": "a", "env": "prod" }, "annotations": { "note": "x" } }),
            json!({
                "taints": two_taints,
                "startupTaints": [{ "key": "s", "effect": "NoSchedule" }],
                "terminationGracePeriod": "1h",
            }),
            "16036433570343884517",
        );
    }

    #[test]
    fn what_does_not_make_a_node_different_leaves_the_hash_alone() {
        let mut pool = pool(
            json!({}),
            json!({ "requirements": [{ "key": "a", "operator": "Exists" }] }),
        );
        pool.spec.weight = Some(7);
        pool.spec.limits = Some([("cpu", "7".parse().unwrap())].into_iter().collect());
        pool.spec.disruption.budgets.clear();
        assert_eq!(pool.static_hash(), "12745407319442031341");
    }

    #[test]
    fn the_time_of_a_taint_counts() {
        let with = |time: &str| {
            pool(
                json!({}),
                json!({ "taints": [{ "key": "k", "effect": "NoExecute", "timeAdded": time }] }),
            )
            .static_hash()
        };
        assert_ne!(with("2026-01-01T00:00:00Z"), with("2026-01-01T00:00:01Z"));
    }
}
