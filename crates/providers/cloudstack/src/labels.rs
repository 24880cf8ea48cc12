//! The labels that nodes of this provider carry, and how CloudStack's names become label values.

use karpenter_api::labels::LabelRules;

use crate::node_class::GROUP;

pub const ZONE_ID: &str = "karpenter.k8s.cloudstack/zone-id";
pub const ZONE_NAME: &str = "karpenter.k8s.cloudstack/zone-name";
pub const NETWORK_ID: &str = "karpenter.k8s.cloudstack/network-id";
pub const NETWORK_NAME: &str = "karpenter.k8s.cloudstack/network-name";
pub const SERVICE_OFFERING_ID: &str = "karpenter.k8s.cloudstack/service-offering-id";
pub const SERVICE_OFFERING_NAME: &str = "karpenter.k8s.cloudstack/service-offering-name";
pub const TEMPLATE_ID: &str = "karpenter.k8s.cloudstack/template-id";
pub const TEMPLATE_NAME: &str = "karpenter.k8s.cloudstack/template-name";
pub const DISK_OFFERING_ID: &str = "karpenter.k8s.cloudstack/disk-offering-id";
pub const INSTANCE_CPU: &str = "karpenter.k8s.cloudstack/instance-cpu";
pub const INSTANCE_MEMORY: &str = "karpenter.k8s.cloudstack/instance-memory";
pub const INSTANCE_CPU_SPEED: &str = "karpenter.k8s.cloudstack/instance-cpu-speed";
pub const INSTANCE_NETWORK_BANDWIDTH: &str = "karpenter.k8s.cloudstack/instance-network-bandwidth";
pub const INSTANCE_STORAGE_TYPE: &str = "karpenter.k8s.cloudstack/instance-storage-type";
pub const INSTANCE_HYPERVISOR: &str = "karpenter.k8s.cloudstack/instance-hypervisor";
pub const INSTANCE_FAMILY: &str = "karpenter.k8s.cloudstack/instance-family";
pub const INSTANCE_GPU_COUNT: &str = "karpenter.k8s.cloudstack/instance-gpu-count";
pub const INSTANCE_GPU_NAME: &str = "karpenter.k8s.cloudstack/instance-gpu-name";

const WELL_KNOWN: [&str; 18] = [
    ZONE_ID,
    ZONE_NAME,
    NETWORK_ID,
    NETWORK_NAME,
    SERVICE_OFFERING_ID,
    SERVICE_OFFERING_NAME,
    TEMPLATE_ID,
    TEMPLATE_NAME,
    DISK_OFFERING_ID,
    INSTANCE_CPU,
    INSTANCE_MEMORY,
    INSTANCE_CPU_SPEED,
    INSTANCE_NETWORK_BANDWIDTH,
    INSTANCE_STORAGE_TYPE,
    INSTANCE_HYPERVISOR,
    INSTANCE_FAMILY,
    INSTANCE_GPU_COUNT,
    INSTANCE_GPU_NAME,
];

/// How offerings become values of `node.kubernetes.io/instance-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// As Kubernetes allows: `Medium Instance` is `Medium-Instance`.
    #[default]
    Kubernetes,
    /// As the CloudStack cloud-controller-manager writes them: `MediumInstance`.
    CloudControllerManager,
}

/// Adds this provider's labels and domain.
pub fn extend(rules: LabelRules) -> LabelRules {
    let rules = WELL_KNOWN.into_iter().fold(rules, LabelRules::with_well_known);
    rules.with_restricted_domain(GROUP)
}

/// A label value made of a name; empty if nothing is left of it (cloudstack.md §7.1).
pub fn label(name: &str) -> String {
    let mut value = String::with_capacity(name.len());
    for char in name.chars() {
        if char.is_ascii_alphanumeric() || "._-".contains(char) {
            value.push(char);
        } else if !value.ends_with('-') || value.is_empty() {
            value.push('-');
        }
    }
    let trim = |text: &str| text.trim_matches(|char: char| !char.is_ascii_alphanumeric()).to_owned();
    let mut value = trim(&value);
    value.truncate(63);
    trim(&value)
}

impl Naming {
    /// The instance type of an offering.
    pub fn instance_type(self, name: &str, id: &str) -> String {
        let value = match self {
            Self::Kubernetes => label(name),
            Self::CloudControllerManager => {
                let mut value: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
                value.truncate(63);
                value
            }
        };
        if value.is_empty() {
            format!("offering-{}", &id[..id.len().min(8)])
        } else {
            value
        }
    }
}

/// The part of an offering's name that it shares with others of its kind.
pub fn family(name: &str) -> String {
    let end = name.find(|char: char| "-._ ".contains(char) || char.is_ascii_digit());
    let family = label(&name[..end.unwrap_or(name.len())]);
    if family.is_empty() { label(name) } else { family }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_label_values() {
        assert_eq!(label("Medium Instance"), "Medium-Instance");
        assert_eq!(label("medium"), "medium");
        assert_eq!(label("  (x)  y!! "), "x-y");
        assert_eq!(label("日本"), "");
        assert_eq!(label(&"a".repeat(70)).len(), 63);
    }

    #[test]
    fn the_controller_managers_names_have_no_punctuation() {
        let naming = Naming::CloudControllerManager;
        assert_eq!(naming.instance_type("Medium Instance", "x"), "MediumInstance");
        assert_eq!(naming.instance_type("m1.large", "x"), "m1large");
        assert_eq!(
            Naming::Kubernetes.instance_type("!!", "12345678-9"),
            "offering-12345678"
        );
    }

    #[test]
    fn a_family_is_what_comes_before_the_size() {
        assert_eq!(family("compute-8x16"), "compute");
        assert_eq!(family("m1.large"), "m");
        assert_eq!(family("Medium Instance"), "Medium");
        assert_eq!(family("4xlarge"), "4xlarge");
    }
}
