//! The catalogue that is used when none is given: the same 144 types that upstream's KWOK provider generates.

use karpenter_api::{
    Quantity, ResourceList,
    labels::{CAPACITY_TYPE, ZONE},
    resources::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS},
};

use super::{FileInstanceType, FileOffering, FileOverhead, FileRequirement};

const CPUS: [i64; 12] = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256];
/// Family letter and GiB of memory per core.
const FAMILIES: [(&str, i64); 3] = [("c", 2), ("s", 4), ("m", 8)];
const OPERATING_SYSTEMS: [&str; 2] = ["linux", "windows"];
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];
const ZONES: [&str; 4] = ["test-zone-a", "test-zone-b", "test-zone-c", "test-zone-d"];
const GIB: i64 = 1 << 30;

/// Every combination of size, family, operating system and architecture.
pub fn built_in() -> Vec<FileInstanceType> {
    let mut types = Vec::with_capacity(144);
    for cpu in CPUS {
        for (family, factor) in FAMILIES {
            for os in OPERATING_SYSTEMS {
                for architecture in ARCHITECTURES {
                    types.push(instance_type(cpu, family, cpu * factor, os, architecture));
                }
            }
        }
    }
    types
}

fn instance_type(cpu: i64, family: &str, memory_gib: i64, os: &str, architecture: &str) -> FileInstanceType {
    let resources = ResourceList::new()
        .with(CPU, Quantity::from_units(cpu))
        .with(MEMORY, Quantity::from_bytes(memory_gib * GIB))
        .with(PODS, Quantity::from_units((cpu * 16).min(1024)))
        .with(EPHEMERAL_STORAGE, Quantity::from_bytes(20 * GIB));
    let on_demand = 0.025 * cpu as f64 + 0.001 * (memory_gib * GIB) as f64 / 1e9;
    let offerings = ZONES
        .into_iter()
        .flat_map(|zone| {
            [
                offering(zone, "spot", on_demand * 0.7),
                offering(zone, "on-demand", on_demand),
            ]
        })
        .collect();
    FileInstanceType {
        name: format!("{family}-{cpu}x-{architecture}-{os}"),
        architecture: architecture.to_owned(),
        operating_systems: vec![os.to_owned()],
        resources,
        offerings,
        overhead: FileOverhead::of_kwok(),
    }
}

fn offering(zone: &str, capacity_type: &str, price: f64) -> FileOffering {
    let is = |key: &str, value: &str| FileRequirement {
        key: key.to_owned(),
        operator: "In".to_owned(),
        values: vec![value.to_owned()],
    };
    FileOffering {
        price,
        available: true,
        reservation_capacity: 0,
        requirements: vec![is(CAPACITY_TYPE, capacity_type), is(ZONE, zone)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_144_types_with_eight_offerings_each() {
        let types = built_in();
        assert_eq!(types.len(), 144);
        assert!(types.iter().all(|t| t.offerings.len() == 8));
    }

    #[test]
    fn a_type_is_named_sized_and_priced_as_upstream_does() {
        let types = built_in();
        let found = types.iter().find(|t| t.name == "c-4x-amd64-linux").unwrap();
        assert_eq!(found.resources.memory(), "8Gi".parse().unwrap());
        assert_eq!(found.resources.amount(PODS), Quantity::from_units(64));
        let on_demand = 0.1 + 0.001 * 8.0 * 1.073741824;
        assert!((found.offerings[1].price - on_demand).abs() < 1e-12);
        assert!((found.offerings[0].price - on_demand * 0.7).abs() < 1e-12);
    }
}
