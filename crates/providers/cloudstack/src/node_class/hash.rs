//! The static hash of a class: equal for nodes that would be made alike (cloudstack.md §8.6).

use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{CloudStackNodeClass, HostnameStrategy};

/// Changes when the hash of an unchanged class would.
pub const HASH_VERSION: &str = "v2";

impl CloudStackNodeClass {
    /// The hash of what machines are made from, besides what selectors find. `secret` is the content of the Secret that
    /// user data is in, which counts as if it were in the class.
    pub fn static_hash(&self, secret: Option<&str>) -> String {
        let spec = &self.spec;
        let mut fields = Map::new();
        let mut add = |name: &str, value: Value| {
            if !value.is_null() {
                fields.insert(name.to_owned(), value);
            }
        };
        let mut key_pairs = self.ssh_key_pairs();
        key_pairs.sort_unstable();
        add("userData", value(&spec.user_data));
        add("userDataRef", value(&spec.user_data_ref));
        add(
            "secret",
            json!(secret.map(|secret| format!("{:x?}", Sha256::digest(secret)))),
        );
        add(
            "userDataTemplating",
            json!(spec.user_data_templating.unwrap_or_default()),
        );
        add(
            "userDataCompression",
            json!(spec.user_data_compression.unwrap_or_default()),
        );
        add("bootstrap", value(&spec.bootstrap));
        add("kubelet", value(&spec.kubelet));
        add("rootDiskSize", value(&spec.root_disk_size));
        add("rootDiskOffering", value(&spec.root_disk_offering));
        add("diskOffering", value(&spec.disk_offering));
        add("diskSize", value(&spec.disk_size));
        add("dataDisks", value(&spec.data_disks));
        add("sshKeyPairs", json!(key_pairs));
        add("project", value(&spec.project));
        add("details", value(&spec.details));
        add("extraConfig", value(&spec.extra_config));
        // A choice of one: it counts once there is another.
        if spec.hostname_strategy.unwrap_or_default() != HostnameStrategy::default() {
            add("hostnameStrategy", value(&spec.hostname_strategy));
        }
        add("bootType", value(&spec.boot_type));
        add("bootMode", value(&spec.boot_mode));
        add("placement", value(&spec.placement));
        add("tuning", value(&spec.tuning));
        // Maps of serde_json are sorted, so equal content is equal text.
        let digest = Sha256::digest(Value::Object(fields).to_string());
        let (first, _) = digest.split_at(8);
        let number = first.iter().fold(0u64, |number, byte| (number << 8) | u64::from(*byte));
        number.to_string()
    }
}

fn value<T: Serialize>(field: &Option<T>) -> Value {
    serde_json::to_value(field).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(spec: Value) -> CloudStackNodeClass {
        let mut whole = json!({
            "zone": "z", "networkSelectorTerms": [{"name": "n"}], "templateSelectorTerms": [{"name": "t"}],
            "serviceOfferingSelectorTerms": [{"name": "s"}],
        });
        for (key, value) in spec.as_object().expect("an object") {
            whole[key] = value.clone();
        }
        let object = json!({
            "apiVersion": "karpenter.k8s.cloudstack/v1", "kind": "CloudStackNodeClass", "metadata": {"name": "a"}, "spec": whole,
        });
        serde_json::from_value(object).expect("a class")
    }

    fn check(a: Value, b: Value, same: bool) {
        assert_eq!(class(a).static_hash(None) == class(b).static_hash(None), same);
    }

    #[test]
    fn selectors_tags_and_prices_do_not_count() {
        check(
            json!({}),
            json!({"zone": "y", "tags": {"a": "b"}, "templateSelectorTerms": [{"name": "u"}]}),
            true,
        );
        check(
            json!({}),
            json!({"pricing": {"perVCPU": "1"}, "instanceGroup": "g", "expunge": "Never", "stoppedInstancePolicy": "Ignore",
                "hostnameStrategy": "NodeClaimName", "gpu": {"resourceName": "x/y"},
                "customOfferings": [{"cpu": [1], "memoryMiB": [1024]}], "affinityGroups": {"managed": {}},
                "additionalNetworks": [{"selectorTerms": [{"name": "n"}]}],
                "securityGroupSelectorTerms": [{"name": "s"}]}),
            true,
        );
    }

    #[test]
    fn what_machines_are_made_from_counts() {
        check(json!({}), json!({"userData": "x"}), false);
        for field in [
            json!({"rootDiskSize": 50}),
            json!({"rootDiskOffering": "ssd"}),
            json!({"diskOffering": "data", "diskSize": 10}),
            json!({"dataDisks": [{"offering": "data"}]}),
            json!({"sshKeyPair": "ops"}),
            json!({"project": "team"}),
            json!({"details": {"a": "b"}}),
            json!({"extraConfig": "x"}),
            json!({"bootType": "UEFI", "bootMode": "Secure"}),
            json!({"placement": {"podID": "p"}}),
            json!({"tuning": {"ioThreads": true}}),
            json!({"bootstrap": {"mode": "Custom"}}),
            json!({"userDataTemplating": "Placeholders"}),
            json!({"userDataCompression": "Gzip"}),
            json!({"userDataRef": {"registered": {"name": "u"}}}),
        ] {
            check(json!({}), field, false);
        }
        check(
            json!({"kubelet": {"maxPods": 1}}),
            json!({"kubelet": {"maxPods": 2}}),
            false,
        );
    }

    #[test]
    fn defaults_and_order_do_not_matter() {
        check(
            json!({}),
            json!({"userDataCompression": "Auto", "userDataTemplating": "None"}),
            true,
        );
        check(
            json!({"sshKeyPair": "a", "sshKeyPairs": ["b"]}),
            json!({"sshKeyPairs": ["b", "a"]}),
            true,
        );
    }

    #[test]
    fn the_content_of_the_secret_counts() {
        let class = class(json!({}));
        assert_ne!(class.static_hash(Some("a")), class.static_hash(Some("b")));
    }
}
