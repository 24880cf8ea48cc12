//! Kubelet settings of a NodeClass, and the room that they leave for pods.

use std::collections::BTreeMap;

use karpenter_api::{Quantity, ResourceList, validation::Finding};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of the kubelet. On BKE only the arithmetic of allocatable resources uses them: BKE configures the kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(inline)]
pub struct Kubelet {
    /// Addresses of the cluster's DNS.
    #[serde(rename = "clusterDNS", skip_serializing_if = "Vec::is_empty")]
    pub cluster_dns: Vec<String>,
    /// Pods per node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_pods: Option<u32>,
    /// Pods per vCPU, capped by maxPods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub pods_per_core: Option<u32>,
    /// Resources kept for the operating system: cpu, memory, ephemeral-storage, pid.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub system_reserved: BTreeMap<String, String>,
    /// Resources kept for Kubernetes: cpu, memory, ephemeral-storage, pid.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kube_reserved: BTreeMap<String, String>,
    /// When the kubelet evicts pods at once.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub eviction_hard: BTreeMap<String, String>,
    /// When the kubelet evicts pods after a grace period.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub eviction_soft: BTreeMap<String, String>,
    /// The grace period of each soft signal.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    /// The longest grace period of soft evictions, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_max_pod_grace_period: Option<u32>,
    /// Disk use at which images are collected.
    #[serde(rename = "imageGCHighThresholdPercent", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub image_gc_high_threshold_percent: Option<u32>,
    /// Disk use down to which images are collected.
    #[serde(rename = "imageGCLowThresholdPercent", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub image_gc_low_threshold_percent: Option<u32>,
    /// Whether CPU limits are enforced by quota.
    #[serde(rename = "cpuCFSQuota", skip_serializing_if = "Option::is_none")]
    pub cpu_cfs_quota: Option<bool>,
}

/// What BKE's kubelets are told.
pub const DEFAULT_MAX_PODS: u32 = 110;
const RESERVED_KEYS: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];
const DEFAULT_KUBE_RESERVED: [(&str, &str); 2] = [("cpu", "50m"), ("memory", "394Mi")];
const DEFAULT_SYSTEM_RESERVED: [(&str, &str); 2] = [("cpu", "20m"), ("memory", "100Mi")];
const DEFAULT_EVICTION: &str = "100Mi";
/// The kubelet's default for `nodefs.available`.
const DEFAULT_NODEFS_PERCENT: f64 = 10.0;

impl Kubelet {
    pub fn pods(&self, vcpus: u64) -> u64 {
        let most = u64::from(self.max_pods.unwrap_or(DEFAULT_MAX_PODS));
        match self.pods_per_core {
            Some(per_core) => most.min(u64::from(per_core) * vcpus),
            None => most,
        }
    }

    pub fn kube_reserved(&self) -> ResourceList {
        reserved(&self.kube_reserved, &DEFAULT_KUBE_RESERVED)
    }

    pub fn system_reserved(&self) -> ResourceList {
        reserved(&self.system_reserved, &DEFAULT_SYSTEM_RESERVED)
    }

    /// What must stay free so that the kubelet does not evict.
    pub fn eviction_threshold(&self, capacity: &ResourceList) -> ResourceList {
        let of = |signal: &str, total: Quantity, default: Quantity| match self.eviction_hard.get(signal) {
            Some(text) => threshold(text, total).unwrap_or(default),
            None => default,
        };
        let disk = capacity.amount("ephemeral-storage");
        let memory = of(
            "memory.available",
            capacity.memory(),
            DEFAULT_EVICTION.parse().expect("a constant quantity"),
        );
        let nodefs = of("nodefs.available", disk, percent(disk, DEFAULT_NODEFS_PERCENT));
        ResourceList::new()
            .with("memory", memory)
            .with("ephemeral-storage", nodefs)
    }

    /// Flags for kubelets that we start ourselves.
    pub fn flags(&self) -> String {
        let mut flags = Vec::new();
        let joined = |map: &BTreeMap<String, String>, sign: &str| {
            let pairs: Vec<String> = map.iter().map(|(key, value)| format!("{key}{sign}{value}")).collect();
            pairs.join(",")
        };
        let mut add = |flag: &str, value: String| {
            if !value.is_empty() {
                flags.push(format!("--{flag}={value}"));
            }
        };
        let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
        add("cluster-dns", self.cluster_dns.join(","));
        add("max-pods", number(self.max_pods));
        add("pods-per-core", number(self.pods_per_core));
        add("system-reserved", joined(&self.system_reserved, "="));
        add("kube-reserved", joined(&self.kube_reserved, "="));
        add("eviction-hard", joined(&self.eviction_hard, "<"));
        add("eviction-soft", joined(&self.eviction_soft, "<"));
        add(
            "eviction-soft-grace-period",
            joined(&self.eviction_soft_grace_period, "="),
        );
        add(
            "eviction-max-pod-grace-period",
            number(self.eviction_max_pod_grace_period),
        );
        add("image-gc-high-threshold", number(self.image_gc_high_threshold_percent));
        add("image-gc-low-threshold", number(self.image_gc_low_threshold_percent));
        add(
            "cpu-cfs-quota",
            self.cpu_cfs_quota.map(|quota| quota.to_string()).unwrap_or_default(),
        );
        flags.join(" ")
    }

    /// What is wrong with the settings, by Karpenter's own rules for them.
    pub fn findings(&self, path: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (field, map) in [
            ("systemReserved", &self.system_reserved),
            ("kubeReserved", &self.kube_reserved),
        ] {
            for (key, value) in map {
                if !RESERVED_KEYS.contains(&key.as_str()) {
                    let problem = format!("{key} cannot be reserved; use cpu, memory, ephemeral-storage or pid");
                    findings.push(Finding::new(format!("{path}.{field}"), problem));
                }
                if !value.parse::<Quantity>().is_ok_and(|amount| !amount.is_negative()) {
                    let problem = format!("\"{value}\" is not a quantity of at least 0");
                    findings.push(Finding::new(format!("{path}.{field}[{key}]"), problem));
                }
            }
        }
        for (field, map) in [
            ("evictionHard", &self.eviction_hard),
            ("evictionSoft", &self.eviction_soft),
        ] {
            for (signal, value) in map {
                if threshold(value, Quantity::from_bytes(1 << 30)).is_none() {
                    let problem = format!("\"{value}\" is neither a quantity nor a percentage");
                    findings.push(Finding::new(format!("{path}.{field}[{signal}]"), problem));
                }
            }
        }
        for signal in self.eviction_soft.keys() {
            if !self.eviction_soft_grace_period.contains_key(signal) {
                let problem = format!("{signal} has no entry in evictionSoftGracePeriod");
                findings.push(Finding::new(format!("{path}.evictionSoft"), problem));
            }
        }
        for signal in self.eviction_soft_grace_period.keys() {
            if !self.eviction_soft.contains_key(signal) {
                let problem = format!("{signal} has no entry in evictionSoft");
                findings.push(Finding::new(format!("{path}.evictionSoftGracePeriod"), problem));
            }
        }
        if let (Some(high), Some(low)) = (
            self.image_gc_high_threshold_percent,
            self.image_gc_low_threshold_percent,
        ) && high <= low
        {
            let problem = format!("{high} is not more than imageGCLowThresholdPercent {low}");
            findings.push(Finding::new(format!("{path}.imageGCHighThresholdPercent"), problem));
        }
        findings
    }
}

fn reserved(own: &BTreeMap<String, String>, default: &[(&str, &str)]) -> ResourceList {
    let mut list = ResourceList::new();
    for (key, text) in default {
        list = list.with(key, text.parse().expect("a constant quantity"));
    }
    for (key, text) in own {
        // Process ids are no resource of pods.
        if key != "pid"
            && let Ok(amount) = text.parse()
        {
            list = list.with(key, amount);
        }
    }
    list
}

/// A quantity, or a percentage of the total.
fn threshold(text: &str, total: Quantity) -> Option<Quantity> {
    match text.strip_suffix('%') {
        Some(part) => {
            let part: f64 = part.trim().parse().ok()?;
            (0.0..=100.0).contains(&part).then(|| percent(total, part))
        }
        None => text.parse().ok(),
    }
}

fn percent(total: Quantity, part: f64) -> Quantity {
    Quantity::from_bytes((total.to_f64() * part / 100.0) as i64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kubelet(value: serde_json::Value) -> Kubelet {
        serde_json::from_value(value).expect("settings")
    }

    #[test]
    fn pods_are_110_unless_said_otherwise() {
        assert_eq!(Kubelet::default().pods(2), 110);
        assert_eq!(kubelet(json!({"maxPods": 250})).pods(2), 250);
        assert_eq!(kubelet(json!({"podsPerCore": 10})).pods(2), 20);
    }

    #[test]
    fn reservations_default_to_what_bke_reserves() {
        let own = kubelet(json!({"kubeReserved": {"cpu": "1"}}));
        assert_eq!(own.kube_reserved().cpu(), Quantity::from_units(1));
        assert_eq!(own.kube_reserved().memory(), "394Mi".parse().expect("a quantity"));
        assert_eq!(own.system_reserved().cpu(), Quantity::from_milli(20));
    }

    #[test]
    fn settings_that_contradict_each_other_are_found() {
        let own = kubelet(json!({
            "kubeReserved": {"gpu": "1", "memory": "lots"},
            "evictionSoft": {"memory.available": "5%"},
            "imageGCHighThresholdPercent": 50, "imageGCLowThresholdPercent": 60,
        }));
        let paths: Vec<String> = own.findings("spec.kubelet").into_iter().map(|own| own.path).collect();
        assert_eq!(
            paths,
            [
                "spec.kubelet.kubeReserved",
                "spec.kubelet.kubeReserved[memory]",
                "spec.kubelet.evictionSoft",
                "spec.kubelet.imageGCHighThresholdPercent",
            ]
            .map(str::to_owned)
        );
    }

    #[test]
    fn flags_follow_the_settings() {
        let own = kubelet(json!({"maxPods": 50, "evictionHard": {"memory.available": "200Mi"}}));
        assert_eq!(own.flags(), "--max-pods=50 --eviction-hard=memory.available<200Mi");
    }
}
