//! What a machine has and what of it pods can use (cloudstack.md §7.3, §7.4).

use std::collections::BTreeMap;

use karpenter_api::{
    Quantity, ResourceList,
    resources::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS},
};
use karpenter_cloud::Overhead;

use super::shapes::Shape;
use crate::{
    client::model::{DiskOffering, ServiceOffering},
    node_class::{CloudStackNodeClass, Kubelet},
    resolve::ResolvedTemplate,
    settings::ProviderSettings,
};

const DEFAULT_PODS: i64 = 110;
const DEFAULT_ROOT_GIB: i64 = 20;
const GIB: i64 = 1 << 30;
const MIB: i64 = 1 << 20;

/// The GPUs of an offering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    pub count: i64,
    pub name: Option<String>,
    pub resource: String,
}

pub fn gpu(class: &CloudStackNodeClass, offering: &ServiceOffering) -> Option<Gpu> {
    let is_legacy = ["vgpuType", "pciDevice"]
        .iter()
        .any(|detail| offering.serviceofferingdetails.contains_key(*detail));
    let count = offering
        .gpucount
        .filter(|count| *count > 0)
        .or(is_legacy.then_some(1))?;
    let name = offering
        .gpucardname
        .clone()
        .or_else(|| offering.vgpuprofilename.clone());
    let lower = name.as_deref().unwrap_or_default().to_lowercase();
    let has = |part: &str| lower.contains(part);
    let by_card = if has("nvidia") {
        "nvidia.com/gpu"
    } else if has("amd") || has("radeon") || has("instinct") {
        "amd.com/gpu"
    } else if has("intel") {
        "gpu.intel.com/i915"
    } else {
        "nvidia.com/gpu"
    };
    let chosen = class.spec.gpu.as_ref().and_then(|own| own.resource_name.clone());
    Some(Gpu {
        count,
        name,
        resource: chosen.unwrap_or_else(|| by_card.to_owned()),
    })
}

/// The size of the root disk that a launch will give.
pub fn root_gib(
    class: &CloudStackNodeClass,
    offering: &ServiceOffering,
    root: Option<&DiskOffering>,
    template: Option<&ResolvedTemplate>,
) -> i64 {
    let fixed = |size: Option<i64>| size.filter(|size| *size > 0);
    let of_template = template.and_then(|own| own.template.size).map(|bytes| bytes / GIB);
    fixed(offering.rootdisksize)
        .or_else(|| fixed(root.and_then(|own| own.disksize)))
        .or(class.spec.root_disk_size)
        .or_else(|| fixed(of_template))
        .unwrap_or(DEFAULT_ROOT_GIB)
}

pub fn capacity(
    class: &CloudStackNodeClass,
    offering: &ServiceOffering,
    shape: Shape,
    root_gib: i64,
    discovered: Option<i64>,
    settings: &ProviderSettings,
) -> ResourceList {
    let memory = discovered.unwrap_or_else(|| visible_memory(shape.memory, settings.memory_overhead));
    let mut capacity = ResourceList::new()
        .with(CPU, Quantity::from_units(shape.cpu))
        .with(MEMORY, Quantity::from_bytes(memory))
        .with(EPHEMERAL_STORAGE, Quantity::from_bytes(root_gib * GIB))
        .with(PODS, Quantity::from_units(pods(class.spec.kubelet.as_ref(), shape.cpu)));
    if let Some(gpu) = gpu(class, offering) {
        capacity = capacity.with(&gpu.resource, Quantity::from_units(gpu.count));
    }
    capacity
}

/// Guests see less than the machine has: the kernel and the firmware keep some.
fn visible_memory(mib: i64, overhead: f64) -> i64 {
    let kept = (mib as f64 * overhead).ceil() as i64;
    (mib - kept) * MIB
}

fn pods(kubelet: Option<&Kubelet>, cpu: i64) -> i64 {
    let most = kubelet.and_then(|own| own.max_pods).map_or(DEFAULT_PODS, i64::from);
    match kubelet
        .and_then(|own| own.pods_per_core)
        .filter(|per_core| *per_core > 0)
    {
        Some(per_core) => most.min(i64::from(per_core) * cpu),
        None => most,
    }
}

/// What the kubelet keeps; the numbers that managed bootstrap modes also write into its configuration.
pub fn overhead(kubelet: Option<&Kubelet>, capacity: &ResourceList) -> Overhead {
    let mut kube_reserved = ResourceList::new()
        .with(CPU, Quantity::from_milli(100))
        .with(MEMORY, Quantity::from_bytes(256 * MIB));
    let mut system_reserved = ResourceList::new();
    let set = |list: &mut ResourceList, wanted: Option<&BTreeMap<String, String>>| {
        for (name, text) in wanted.into_iter().flatten() {
            if let Ok(amount) = text.parse::<Quantity>()
                && name != "pid"
            {
                list.insert(name.clone(), amount);
            }
        }
    };
    set(&mut kube_reserved, kubelet.and_then(|own| own.kube_reserved.as_ref()));
    set(
        &mut system_reserved,
        kubelet.and_then(|own| own.system_reserved.as_ref()),
    );
    let hard = kubelet.and_then(|own| own.eviction_hard.as_ref());
    let signal = |name: &str, default: &str, of: Quantity| {
        let text = hard.and_then(|hard| hard.get(name)).map_or(default, String::as_str);
        threshold(text, of)
    };
    let eviction_threshold = ResourceList::new()
        .with(MEMORY, signal("memory.available", "100Mi", capacity.memory()))
        .with(
            EPHEMERAL_STORAGE,
            signal("nodefs.available", "10%", capacity.amount(EPHEMERAL_STORAGE)),
        );
    Overhead {
        kube_reserved,
        system_reserved,
        eviction_threshold,
    }
}

fn threshold(text: &str, of: Quantity) -> Quantity {
    match text.strip_suffix('%') {
        Some(percent) => {
            let part = percent.trim().parse::<f64>().unwrap_or_default() / 100.0;
            Quantity::from_bytes((of.to_f64() * part).ceil() as i64)
        }
        None => text.parse().unwrap_or(Quantity::ZERO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_see_less_memory_than_the_machine_has() {
        assert_eq!(visible_memory(4096, 0.075), (4096 - 308) * MIB);
    }

    #[test]
    fn reserved_amounts_are_replaced_key_by_key() {
        let kubelet = Kubelet {
            kube_reserved: Some([("memory".to_owned(), "1Gi".to_owned())].into()),
            eviction_hard: Some([("memory.available".to_owned(), "5%".to_owned())].into()),
            ..Kubelet::default()
        };
        let capacity = ResourceList::new().with(MEMORY, Quantity::from_bytes(20 * GIB));
        let own = overhead(Some(&kubelet), &capacity);
        assert_eq!(own.kube_reserved.cpu(), Quantity::from_milli(100));
        assert_eq!(own.kube_reserved.memory(), Quantity::from_bytes(GIB));
        assert_eq!(own.eviction_threshold.memory(), Quantity::from_bytes(GIB));
    }

    #[test]
    fn pods_per_core_lower_the_number_of_pods() {
        let kubelet = Kubelet {
            pods_per_core: Some(10),
            ..Kubelet::default()
        };
        assert_eq!(
            (pods(Some(&kubelet), 4), pods(Some(&kubelet), 64), pods(None, 1)),
            (40, 110, 110)
        );
    }

    #[test]
    fn gpus_are_named_after_their_card() {
        let class = CloudStackNodeClass::default();
        let named = |name: &str| {
            let offering = ServiceOffering {
                gpucount: Some(2),
                gpucardname: Some(name.to_owned()),
                ..ServiceOffering::default()
            };
            gpu(&class, &offering).expect("a GPU").resource
        };
        assert_eq!(named("NVIDIA A10"), "nvidia.com/gpu");
        assert_eq!(named("AMD Instinct"), "amd.com/gpu");
        assert_eq!(named("Intel Flex"), "gpu.intel.com/i915");
        assert_eq!(gpu(&class, &ServiceOffering::default()), None);
    }
}
