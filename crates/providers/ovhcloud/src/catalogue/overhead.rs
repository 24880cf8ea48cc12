//! What MKS keeps of a machine for the kubelet, by OVHcloud's own formulas.

use karpenter_api::{
    Quantity, ResourceList,
    resources::{CPU, EPHEMERAL_STORAGE, MEMORY},
};
use karpenter_cloud::Overhead;

use crate::node_class::OvhNodeClassSpec;

const MIB: i64 = 1 << 20;
const MB: i64 = 1_000_000;
const GB: f64 = 1e9;
const RESERVED_MEMORY_MIB: i64 = 1590;
const EVICTION_MEMORY_MIB: i64 = 100;
/// What is left of a disk once it has a file system.
const FORMATTED: f64 = 0.95;

/// Reservations of a machine; the class's own numbers win.
pub fn overhead(spec: &OvhNodeClassSpec, vcpus: u32, disk_gb: u32) -> Overhead {
    let mut kube_reserved = ResourceList::new()
        .with(CPU, Quantity::from_milli(150 + 5 * i64::from(vcpus)))
        .with(MEMORY, Quantity::from_bytes(RESERVED_MEMORY_MIB * MIB))
        .with(
            EPHEMERAL_STORAGE,
            Quantity::from_bytes(reserved_storage_mb(disk_gb) * MB),
        );
    kube_reserved.extend(spec.kube_reserved.clone());
    let mut eviction_threshold = ResourceList::new().with(MEMORY, Quantity::from_bytes(EVICTION_MEMORY_MIB * MIB));
    eviction_threshold.extend(spec.eviction_hard.clone());
    Overhead {
        kube_reserved,
        system_reserved: ResourceList::new(),
        eviction_threshold,
    }
}

/// Ten times the logarithm of the disk, and a tenth of it, in MB rounded up.
fn reserved_storage_mb(disk_gb: u32) -> i64 {
    let disk = f64::from(disk_gb.max(1));
    ((disk.log10() * 10.0 + disk * 0.1) * 1000.0).ceil() as i64
}

/// The file system of a disk.
pub fn storage(disk_gb: u32) -> Quantity {
    Quantity::from_bytes((f64::from(disk_gb) * GB * FORMATTED) as i64)
}

/// The memory that a kernel sees of a machine.
pub fn memory(ram_gib: u32, overhead_percent: f64) -> Quantity {
    let bytes = f64::from(ram_gib) * 1024.0 * MIB as f64 * (1.0 - overhead_percent);
    // Whole MiB, so that the amount reads well.
    Quantity::from_bytes((bytes / MIB as f64).floor() as i64 * MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserved(vcpus: u32, disk_gb: u32) -> ResourceList {
        overhead(&OvhNodeClassSpec::default(), vcpus, disk_gb).kube_reserved
    }

    #[test]
    fn cpu_is_reserved_by_the_documented_formula() {
        assert_eq!(reserved(2, 50).cpu(), Quantity::from_milli(160));
        assert_eq!(reserved(32, 50).cpu(), Quantity::from_milli(310));
    }

    #[test]
    fn a_disk_of_100_gb_reserves_30() {
        assert_eq!(reserved_storage_mb(100), 30_000);
        assert_eq!(reserved_storage_mb(50) / 1000, 21);
        assert_eq!(reserved_storage_mb(400) / 1000, 66);
    }

    #[test]
    fn the_class_overrides_single_resources() {
        let spec: OvhNodeClassSpec = serde_json::from_value(
            serde_json::json!({"kubeReserved": {"cpu": "1"}, "evictionHard": {"memory": "5Gi"}}),
        )
        .expect("a spec");
        let own = overhead(&spec, 2, 50);
        assert_eq!(own.kube_reserved.cpu(), Quantity::from_units(1));
        assert_eq!(own.kube_reserved.memory(), Quantity::from_bytes(1590 << 20));
        assert_eq!(own.eviction_threshold.memory(), Quantity::from_bytes(5 << 30));
    }

    #[test]
    fn memory_is_in_gib() {
        let memory = memory(8, 0.075).to_f64() / f64::from(1 << 30);
        assert!((7.3..7.5).contains(&memory), "{memory}");
    }
}
