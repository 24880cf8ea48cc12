//! Whether a machine is still what its class asks for (cloudstack.md §8.6). Missing knowledge is never drift.

use std::collections::BTreeSet;

use karpenter_api::{NodeClaim, conditions::StatusConditions};

use crate::{
    client::model::VirtualMachine,
    labels,
    node_class::{
        CloudStackNodeClass, HASH_ANNOTATION, HASH_VERSION_ANNOTATION,
        hash::HASH_VERSION,
        status::{NETWORK_READY, OFFERINGS_READY, SECURITY_GROUPS_READY, TEMPLATE_READY, ZONE_READY},
    },
    resolve::{Resolution, ResolvedTemplate},
};

/// The first reason why the machine differs.
pub(crate) fn reason(
    claim: &NodeClaim,
    vm: &VirtualMachine,
    class: &CloudStackNodeClass,
    resolution: &Resolution,
    hash: &str,
) -> Option<&'static str> {
    let checks: [(&'static str, bool); 7] = [
        ("NodeClassDrift", has_other_hash(claim, hash)),
        (
            "TemplateDrift",
            class.is_true(TEMPLATE_READY) && has_other_template(vm, resolution),
        ),
        (
            "ZoneDrift",
            class.is_true(ZONE_READY) && resolution.zone(&vm.zoneid).is_none() && !resolution.zones.is_empty(),
        ),
        (
            "NetworkDrift",
            class.is_true(NETWORK_READY) && has_other_networks(vm, resolution),
        ),
        ("ServiceOfferingDrift", has_other_offering(claim, vm)),
        (
            "OfferingGoneDrift",
            class.is_true(OFFERINGS_READY) && lost_its_offering(vm, resolution),
        ),
        (
            "SecurityGroupDrift",
            class.spec.security_group_selector_terms.is_some()
                && class.is_true(SECURITY_GROUPS_READY)
                && has_other_security_groups(vm, resolution),
        ),
    ];
    let found = checks.iter().find(|(_, drifted)| *drifted).map(|(reason, _)| *reason);
    found.or_else(|| lacks_affinity_group(vm, class, resolution).then_some("AffinityGroupDrift"))
}

fn has_other_hash(claim: &NodeClaim, hash: &str) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    let get = |key: &str| annotations.and_then(|own| own.get(key)).map(String::as_str);
    get(HASH_VERSION_ANNOTATION) == Some(HASH_VERSION) && get(HASH_ANNOTATION).is_some_and(|own| own != hash)
}

/// What a claim says of the class that its machine was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MadeWith {
    /// What the class is today.
    This,
    /// The class was changed since, or another version of Karpenter wrote the hash, which tells nothing.
    Another,
    /// No hash was written.
    Unsaid,
}

impl MadeWith {
    /// `hash` is the one of the class today.
    pub(crate) fn of(claim: &NodeClaim, hash: &str) -> Self {
        let annotations = claim.metadata.annotations.as_ref();
        let get = |key: &str| annotations.and_then(|own| own.get(key)).map(String::as_str);
        match get(HASH_ANNOTATION) {
            None => Self::Unsaid,
            Some(own) if own == hash && get(HASH_VERSION_ANNOTATION) == Some(HASH_VERSION) => Self::This,
            Some(_) => Self::Another,
        }
    }
}

/// Another template would be chosen today, unless this one is pinned.
fn has_other_template(vm: &VirtualMachine, resolution: &Resolution) -> bool {
    let Some(zone) = resolution.zone(&vm.zoneid).filter(|zone| !zone.templates.is_empty()) else {
        return false;
    };
    let Some(own) = zone
        .templates
        .iter()
        .find(|own| Some(&own.template.id) == vm.templateid.as_ref())
    else {
        return true;
    };
    if own.is_pinned {
        return false;
    }
    let runs = |other: &&ResolvedTemplate| vm.serviceofferingid.as_ref().is_none_or(|id| other.runs_on(id));
    let first = zone
        .templates
        .iter()
        .filter(runs)
        .find(|other| other.arch == own.arch && other.os == own.os);
    first.is_some_and(|first| first.template.id != own.template.id)
}

fn has_other_networks(vm: &VirtualMachine, resolution: &Resolution) -> bool {
    let Some(zone) = resolution.zone(&vm.zoneid).filter(|zone| !zone.networks.is_empty()) else {
        return false;
    };
    if zone.zone.networktype == "Basic" {
        return false;
    }
    let Some(first) = vm.default_nic() else { return false };
    if !zone.networks.iter().any(|own| own.id == first.networkid) {
        return true;
    }
    let further: BTreeSet<&str> = vm
        .nic
        .iter()
        .filter(|nic| !nic.isdefault)
        .map(|nic| nic.networkid.as_str())
        .collect();
    let wanted: BTreeSet<&str> = zone.additional.iter().map(|own| own.id.as_str()).collect();
    further != wanted
}

/// Somebody scaled the machine.
fn has_other_offering(claim: &NodeClaim, vm: &VirtualMachine) -> bool {
    let labels = claim.metadata.labels.as_ref();
    let get = |key: &str| labels.and_then(|own| own.get(key)).map(String::as_str);
    let differs = |key: &str, own: Option<String>| match (get(key), own) {
        (Some(label), Some(own)) => label != own,
        _ => false,
    };
    differs(labels::SERVICE_OFFERING_ID, vm.serviceofferingid.clone())
        || differs(labels::INSTANCE_CPU, vm.cpunumber.map(|own| own.to_string()))
        || differs(labels::INSTANCE_MEMORY, vm.memory.map(|own| own.to_string()))
}

fn lost_its_offering(vm: &VirtualMachine, resolution: &Resolution) -> bool {
    let Some(id) = vm.serviceofferingid.as_deref() else {
        return false;
    };
    !resolution.offerings.is_empty() && resolution.offering(id).is_none()
}

fn has_other_security_groups(vm: &VirtualMachine, resolution: &Resolution) -> bool {
    let own: BTreeSet<&str> = vm.securitygroup.iter().map(|group| group.id.as_str()).collect();
    let wanted: BTreeSet<&str> = resolution
        .security_groups
        .iter()
        .map(|group| group.id.as_str())
        .collect();
    !wanted.is_empty() && own != wanted
}

fn lacks_affinity_group(vm: &VirtualMachine, class: &CloudStackNodeClass, resolution: &Resolution) -> bool {
    let has = |id: &str| vm.affinitygroup.iter().any(|own| own.id == id);
    if resolution.affinity_groups.iter().any(|wanted| !has(&wanted.id)) {
        return true;
    }
    let managed = class
        .spec
        .affinity_groups
        .as_ref()
        .is_some_and(|own| own.managed.is_some());
    managed && !vm.affinitygroup.iter().any(|own| own.name.starts_with("karpenter-"))
}
