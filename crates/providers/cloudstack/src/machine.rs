//! A virtual machine as we see it: whose it is, how it does, and the Instance that core hears of.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use karpenter_api::{
    Quantity, ResourceList,
    labels::{ARCH, CAPACITY_TYPE, INSTANCE_TYPE, OS, REGION, ZONE},
    resources::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS},
};
use karpenter_cloud::{
    ClaimMark, Instance, InstancePhase, OfferingOverrides, clock::later, ownership::Owner, selection,
};

use crate::{
    catalogue::Entry,
    client::model::VirtualMachine,
    labels::{self, label},
    resolve::Resolution,
    settings::ProviderSettings,
};

pub const MANAGED_BY_TAG: &str = "karpenter.sh/managed-by";
pub const NODE_POOL_TAG: &str = "karpenter.sh/nodepool";
pub const CLAIM_TAG: &str = "karpenter.sh/nodeclaim";
pub const NODE_CLASS_TAG: &str = "karpenter.k8s.cloudstack/nodeclass";
pub const CLAIM_UID_TAG: &str = "karpenter.k8s.cloudstack/nodeclaim-uid";
/// An operator sets it on a machine that will go away soon.
pub const INTERRUPTION_TAG: &str = "karpenter.k8s.cloudstack/interruption";

pub const CLUSTER_DETAIL: &str = "karpenter.cluster";
pub const CLAIM_DETAIL: &str = "karpenter.nodeclaim";
pub const CLAIM_UID_DETAIL: &str = "karpenter.nodeclaim.uid";
pub const NODE_POOL_DETAIL: &str = "karpenter.nodepool";
pub const NODE_CLASS_DETAIL: &str = "karpenter.nodeclass";

/// A new machine may be `Stopped` this long before its job is seen.
const NEW: Duration = Duration::from_secs(120);

/// How a machine does (cloudstack.md §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Launching,
    Running,
    Stopping,
    Stopped,
    /// Failed for good; only its record is left to be cleaned.
    Failed,
    Gone,
}

/// Whose machine, and of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    pub owner: Owner,
    pub node_class: Option<String>,
    pub node_pool: Option<String>,
}

impl View {
    pub fn of(vm: &VirtualMachine, now: Timestamp) -> Self {
        match vm.state.as_str() {
            "Starting" => Self::Launching,
            "Stopped" | "Shutdown" => {
                let is_new =
                    vm.created_at().is_some_and(|at| later(at, NEW) > now) && vm.details.contains_key("deployvm");
                if vm.has_pending_job() || is_new {
                    Self::Launching
                } else {
                    Self::Stopped
                }
            }
            "Stopping" => Self::Stopping,
            "Error" => Self::Failed,
            "Destroyed" | "Expunging" => Self::Gone,
            // Running, Migrating, BackingUp, Restoring, Unknown, ….
            _ => Self::Running,
        }
    }
}

impl Marks {
    /// Reads them from tags, or from details, which are there from the first moment.
    pub fn of(vm: &VirtualMachine, settings: &ProviderSettings) -> Self {
        let either = |tag: &str, detail: &str| {
            vm.tag(tag)
                .map(str::to_owned)
                .or_else(|| vm.details.get(detail).cloned())
                .filter(|text| !text.is_empty())
        };
        let has_tag = vm.tags.iter().any(|tag| tag.key == settings.cluster_tag());
        let in_details = vm.details.get(CLUSTER_DETAIL) == Some(&settings.cluster_name);
        let owner = if !has_tag && !in_details {
            Owner::Foreign
        } else {
            match either(CLAIM_UID_TAG, CLAIM_UID_DETAIL) {
                Some(uid) => Owner::Ours(ClaimMark {
                    name: either(CLAIM_TAG, CLAIM_DETAIL).unwrap_or_default(),
                    uid,
                }),
                None => Owner::Unclear,
            }
        };
        Self {
            owner,
            node_class: either(NODE_CLASS_TAG, NODE_CLASS_DETAIL),
            node_pool: either(NODE_POOL_TAG, NODE_POOL_DETAIL),
        }
    }

    pub fn is_ours(&self) -> bool {
        !matches!(self.owner, Owner::Foreign)
    }

    pub fn claim(&self) -> Option<&ClaimMark> {
        match &self.owner {
            Owner::Ours(claim) => Some(claim),
            Owner::Unclear | Owner::Foreign => None,
        }
    }
}

/// The tags of a machine: ours, and what the class says.
pub fn tags(
    settings: &ProviderSettings,
    claim: &ClaimMark,
    node_pool: &str,
    node_class: &str,
    more: Option<&BTreeMap<String, String>>,
) -> BTreeMap<String, String> {
    let mut tags = more.cloned().unwrap_or_default();
    tags.insert(MANAGED_BY_TAG.to_owned(), "karpenter".to_owned());
    tags.insert(settings.cluster_tag(), "owned".to_owned());
    tags.insert(CLAIM_TAG.to_owned(), claim.name.clone());
    tags.insert(CLAIM_UID_TAG.to_owned(), claim.uid.clone());
    tags.insert(NODE_CLASS_TAG.to_owned(), node_class.to_owned());
    if !node_pool.is_empty() {
        tags.insert(NODE_POOL_TAG.to_owned(), node_pool.to_owned());
    }
    tags
}

/// The details by which a machine is ours even before it is tagged.
pub fn details(
    settings: &ProviderSettings,
    claim: &ClaimMark,
    node_pool: &str,
    node_class: &str,
) -> BTreeMap<String, String> {
    [
        (CLUSTER_DETAIL, settings.cluster_name.as_str()),
        (CLAIM_DETAIL, &claim.name),
        (CLAIM_UID_DETAIL, &claim.uid),
        (NODE_POOL_DETAIL, node_pool),
        (NODE_CLASS_DETAIL, node_class),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// What is known about the class of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    pub resolution: &'a Resolution,
    pub entries: &'a [Entry],
}

impl Known<'_> {
    /// The type that a machine is of.
    pub fn entry(&self, vm: &VirtualMachine) -> Option<&Entry> {
        let id = vm.serviceofferingid.as_deref()?;
        self.entries.iter().find(|own| {
            own.offering.offering.id == id
                && (!own.shape.is_custom()
                    || (Some(own.shape.cpu) == vm.cpunumber && Some(own.shape.memory) == vm.memory))
        })
    }
}

/// The Instance that core hears of.
pub fn instance(
    vm: &VirtualMachine,
    provider_id: String,
    known: Option<Known<'_>>,
    settings: &ProviderSettings,
    now: Timestamp,
) -> Instance {
    let marks = Marks::of(vm, settings);
    let entry = known.as_ref().and_then(|known| known.entry(vm));
    let (capacity, allocatable) = match entry {
        Some(entry) => {
            let none = OfferingOverrides::default();
            let own = &entry.instance_type;
            (own.capacity.clone(), selection::allocatable(own, &none))
        }
        None => {
            let capacity = bare_capacity(vm);
            (capacity.clone(), capacity)
        }
    };
    let view = View::of(vm, now);
    Instance {
        provider_id,
        image_id: vm.templateid.clone(),
        labels: labels_of(vm, known, entry, settings),
        annotations: BTreeMap::new(),
        capacity,
        allocatable,
        created_at: vm.created_at(),
        phase: match view {
            View::Failed | View::Gone => InstancePhase::Terminating,
            View::Launching | View::Running | View::Stopping | View::Stopped => InstancePhase::Live,
        },
        claim: marks.claim().cloned(),
    }
}

/// What the record itself says, for a machine whose offering or class is gone.
fn bare_capacity(vm: &VirtualMachine) -> ResourceList {
    ResourceList::new()
        .with(CPU, Quantity::from_units(vm.cpunumber.unwrap_or(1)))
        .with(MEMORY, Quantity::from_bytes(vm.memory.unwrap_or(512) << 20))
        .with(EPHEMERAL_STORAGE, Quantity::from_bytes(20 << 30))
        .with(PODS, Quantity::from_units(110))
}

fn labels_of(
    vm: &VirtualMachine,
    known: Option<Known<'_>>,
    entry: Option<&Entry>,
    settings: &ProviderSettings,
) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    if let Some(entry) = entry {
        for requirement in entry.instance_type.requirements.iter() {
            if let Some(value) = requirement.single_value() {
                all.insert(requirement.key().to_owned(), value.to_owned());
            }
        }
    }
    let mut set = |key: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            all.insert(key.to_owned(), value);
        }
    };
    let zone = label(&vm.zonename);
    set(ZONE, Some(zone.clone()));
    set(labels::ZONE_NAME, Some(zone.clone()));
    set(labels::ZONE_ID, Some(vm.zoneid.clone()));
    set(REGION, Some(settings.region.as_deref().map_or(zone, label)));
    let name = vm.serviceofferingname.clone().unwrap_or_default();
    let id = vm.serviceofferingid.clone().unwrap_or_default();
    set(labels::SERVICE_OFFERING_ID, Some(id.clone()));
    set(labels::SERVICE_OFFERING_NAME, Some(label(&name)));
    if entry.is_none() {
        set(INSTANCE_TYPE, Some(settings.naming.instance_type(&name, &id)));
        set(CAPACITY_TYPE, Some("on-demand".to_owned()));
        set(labels::INSTANCE_CPU, vm.cpunumber.map(|own| own.to_string()));
        set(labels::INSTANCE_MEMORY, vm.memory.map(|own| own.to_string()));
    }
    set(labels::TEMPLATE_ID, vm.templateid.clone());
    set(labels::TEMPLATE_NAME, vm.templatename.as_deref().map(label));
    if let Some(nic) = vm.default_nic() {
        set(labels::NETWORK_ID, Some(nic.networkid.clone()));
        set(labels::NETWORK_NAME, nic.networkname.as_deref().map(label));
    }
    let zone = known.and_then(|known| known.resolution.zone(&vm.zoneid));
    let template = zone.and_then(|zone| {
        let mut templates = zone.templates.iter();
        templates.find(|own| Some(&own.template.id) == vm.templateid.as_ref())
    });
    set(ARCH, Some(template.map_or("amd64", |own| own.arch.as_str()).to_owned()));
    set(OS, Some(template.map_or("linux", |own| own.os.as_str()).to_owned()));
    let disk = known.and_then(|known| known.resolution.disk_offerings.first());
    set(labels::DISK_OFFERING_ID, disk.map(|own| own.id.clone()));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vm(value: serde_json::Value) -> VirtualMachine {
        serde_json::from_value(value).expect("a machine")
    }

    fn now() -> Timestamp {
        "2026-11-15T09:30:00Z".parse().expect("a moment")
    }

    fn check(value: serde_json::Value, view: View) {
        assert_eq!(View::of(&vm(value.clone()), now()), view, "{value}");
    }

    #[test]
    fn a_stopped_machine_is_launching_while_its_job_is_pending_or_it_is_new() {
        check(
            json!({"state": "Stopped", "jobid": "j", "jobstatus": 0}),
            View::Launching,
        );
        let new = json!({"state": "Stopped", "created": "2026-11-15T09:29:00+0000", "details": {"deployvm": "true"}});
        check(new, View::Launching);
        let old = json!({"state": "Stopped", "created": "2026-11-15T09:20:00+0000", "details": {"deployvm": "true"}});
        check(old, View::Stopped);
        check(
            json!({"state": "Stopped", "created": "2026-11-15T09:29:00+0000"}),
            View::Stopped,
        );
    }

    #[test]
    fn failed_and_destroyed_machines_are_not_running() {
        check(json!({"state": "Error"}), View::Failed);
        check(json!({"state": "Destroyed"}), View::Gone);
        check(json!({"state": "Migrating"}), View::Running);
        check(json!({"state": "Unknown"}), View::Running);
    }

    #[test]
    fn a_machine_is_ours_by_tag_or_by_detail_and_never_by_managed_by_alone() {
        let settings = ProviderSettings::new("blue");
        let owner = |value: serde_json::Value| Marks::of(&vm(value), &settings).owner;
        let claim = ClaimMark {
            name: "a".into(),
            uid: "u".into(),
        };
        let by_detail = json!({"details": {"karpenter.cluster": "blue", "karpenter.nodeclaim": "a", "karpenter.nodeclaim.uid": "u"}});
        assert_eq!(owner(by_detail), Owner::Ours(claim.clone()));
        let by_tag = json!({"tags": [
            {"key": "kubernetes.io/cluster/blue", "value": "owned"},
            {"key": CLAIM_TAG, "value": "a"}, {"key": CLAIM_UID_TAG, "value": "u"},
        ]});
        assert_eq!(owner(by_tag), Owner::Ours(claim));
        assert_eq!(
            owner(json!({"tags": [{"key": MANAGED_BY_TAG, "value": "karpenter"}]})),
            Owner::Foreign
        );
        assert_eq!(
            owner(json!({"details": {"karpenter.cluster": "green", "karpenter.nodeclaim.uid": "u"}})),
            Owner::Foreign
        );
    }
}
