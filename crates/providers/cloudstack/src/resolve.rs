//! What the selectors of a class find among what CloudStack has (cloudstack.md §6). Pure: lists in, findings out.

mod account;
mod groups;
mod networks;
mod offerings;
mod storage;
mod templates;
mod zones;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use karpenter_api::requirement::Requirements;

use crate::{
    client::model::{
        AffinityGroup, AffinityGroupType, DiskOffering, Network, Project, RegisteredUserData, SecurityGroup,
        ServiceOffering, SshKeyPair, Tag, Template, Version, Zone,
    },
    node_class::{
        CapacityType, CloudStackNodeClass,
        status::{NETWORK_READY, TEMPLATE_READY},
    },
};

pub use offerings::offering_tags;
pub use templates::wanting_hosts;
pub use zones::zones;

/// Everything that CloudStack has and a class may choose from.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    pub zones: Arc<Vec<Zone>>,
    pub offerings: Arc<Vec<ServiceOffering>>,
    pub disk_offerings: Arc<Vec<DiskOffering>>,
    /// By zone id.
    pub templates: BTreeMap<String, Arc<Vec<Template>>>,
    pub networks: BTreeMap<String, Arc<Vec<Network>>>,
    pub affinity_groups: Arc<Vec<AffinityGroup>>,
    pub affinity_types: Arc<Vec<AffinityGroupType>>,
    pub security_groups: Arc<Vec<SecurityGroup>>,
    pub key_pairs: Arc<Vec<SshKeyPair>>,
    pub user_data: Arc<Vec<RegisteredUserData>>,
    pub projects: Arc<Vec<Project>>,
    /// Of the server, if it matters and is known.
    pub version: Option<Version>,
    /// Ids of the offerings whose hosts may run a template that wants hosts of its own, by template id.
    pub hosted: BTreeMap<String, Arc<BTreeSet<String>>>,
}

/// What a class comes to.
#[derive(Clone, Debug, Default)]
pub struct Resolution {
    pub zones: Vec<ResolvedZone>,
    pub offerings: Vec<ResolvedOffering>,
    pub security_groups: Vec<SecurityGroup>,
    pub affinity_groups: Vec<AffinityGroup>,
    pub disk_offerings: Vec<DiskOffering>,
    pub disks_asked_for: DisksAskedFor,
    /// Of the group that is made for machines, if there is one.
    pub managed_affinity_type: Option<&'static str>,
    pub root_disk_offering: Option<DiskOffering>,
    /// Its id.
    pub registered_user_data: Option<String>,
    pub project: Option<Project>,
    /// What stands in the way, by condition.
    pub problems: BTreeMap<&'static str, Problem>,
}

impl Resolution {
    /// The id of a data disk's offering, by the name or id that the class has for it.
    pub fn disk_offering(&self, wanted: &str) -> String {
        let mut all = self.disk_offerings.iter();
        let found = all.find(|own| own.id == wanted || own.name == wanted);
        found.map(|own| own.id.clone()).unwrap_or_default()
    }
}

/// How a deploy names the data disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DisksAskedFor {
    /// One by one, with all that there is to say.
    #[default]
    InDetail,
    /// The one there is by its offering and size, for servers that know no more.
    ByOffering,
    /// Not at all: such servers are asked for each disk by itself once the machine runs.
    Afterwards,
}

/// Why a condition is false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub reason: &'static str,
    pub message: String,
}

impl Problem {
    /// Whether something that was asked for was not among what CloudStack has; all else no new list would cure.
    pub fn is_absence(&self) -> bool {
        self.reason.ends_with("NotFound")
    }
}

#[derive(Clone, Debug)]
pub struct ResolvedZone {
    pub zone: Zone,
    /// Candidates of the first NIC.
    pub networks: Vec<Network>,
    /// Of further NICs, in order.
    pub additional: Vec<Network>,
    /// Newest first.
    pub templates: Vec<ResolvedTemplate>,
}

#[derive(Clone, Debug)]
pub struct ResolvedTemplate {
    pub template: Template,
    pub arch: String,
    pub os: String,
    /// Selected by id: newer ones do not matter.
    pub is_pinned: bool,
    pub requirements: Requirements,
    /// Ids of the offerings that it can run on; any if `None`.
    hosted_by: Option<Arc<BTreeSet<String>>>,
}

#[derive(Clone, Debug)]
pub struct ResolvedOffering {
    pub offering: ServiceOffering,
    pub capacity_type: CapacityType,
}

/// On an offering's details: its capacity type and price.
pub const CAPACITY_TYPE_DETAIL: &str = "karpenter.k8s.cloudstack/capacity-type";
pub const PRICE_DETAIL: &str = "karpenter.k8s.cloudstack/price";

/// Resolves a class. `zones` are those of [`zones`], whose templates and networks are in `lists`.
pub fn resolve(
    class: &CloudStackNodeClass,
    zones: Vec<Zone>,
    lists: &Lists,
    problems: BTreeMap<&'static str, Problem>,
) -> Resolution {
    let mut resolution = Resolution {
        problems,
        ..Resolution::default()
    };
    let spec = &class.spec;
    let needs_user_data = spec.user_data.is_some()
        || spec.user_data_ref.is_some()
        || spec.bootstrap.is_some()
        || !class.ssh_key_pairs().is_empty();
    let mut network_problem = None;
    let mut template_problem = None;
    for zone in zones {
        let all = lists.networks.get(&zone.id).cloned().unwrap_or_default();
        let templates = lists.templates.get(&zone.id).cloned().unwrap_or_default();
        let templates = templates::select(&spec.template_selector_terms, &templates, &lists.hosted);
        let templates = templates.unwrap_or_else(|problem| {
            template_problem.get_or_insert(problem);
            Vec::new()
        });
        let needs_service = needs_user_data || templates.iter().any(|own| own.template.passwordenabled);
        let networks = networks::select(&spec.network_selector_terms, &all, &zone, needs_service);
        let networks = networks.unwrap_or_else(|problem| {
            network_problem.get_or_insert(problem);
            Vec::new()
        });
        // A zone that lacks a NIC's network cannot be used.
        let (networks, additional) = match networks::further(spec.additional_networks.as_ref(), &all, &zone) {
            Ok(additional) => (networks, additional),
            Err(problem) => {
                network_problem.get_or_insert(problem);
                (Vec::new(), Vec::new())
            }
        };
        resolution.zones.push(ResolvedZone {
            zone,
            networks,
            additional,
            templates,
        });
    }
    // A zone that has neither is left out silently as long as another is complete.
    if resolution.zones.iter().all(|zone| zone.networks.is_empty())
        && let Some(found) = network_problem
    {
        resolution.problems.insert(NETWORK_READY, found);
    }
    if resolution.zones.iter().all(|zone| zone.templates.is_empty())
        && let Some(found) = template_problem
    {
        resolution.problems.insert(TEMPLATE_READY, found);
    }
    resolution.offerings = offerings::select(class, lists, &resolution.zones, &mut resolution.problems);
    groups::security_groups(class, lists, &mut resolution);
    groups::affinity_groups(class, lists, &mut resolution);
    storage::disks(class, lists, &mut resolution);
    account::belongings(class, lists, &mut resolution);
    resolution
}

impl Resolution {
    pub fn is_usable(&self) -> bool {
        self.problems.is_empty()
    }

    /// The zone with this id.
    pub fn zone(&self, id: &str) -> Option<&ResolvedZone> {
        self.zones.iter().find(|own| own.zone.id == id)
    }

    pub fn offering(&self, id: &str) -> Option<&ResolvedOffering> {
        self.offerings.iter().find(|own| own.offering.id == id)
    }
}

impl ResolvedTemplate {
    /// Whether the hosts of the offering may run it (cloudstack.md §6.3).
    pub fn runs_on(&self, offering: &str) -> bool {
        let hosted_by = self.hosted_by.as_ref();
        hosted_by.is_none_or(|own| own.contains(offering))
    }
}

impl ResolvedOffering {
    /// Whether machines of it can be made in the zone.
    pub fn is_in(&self, zone: &str) -> bool {
        match self.offering.zoneid.as_deref().filter(|bound| !bound.is_empty()) {
            Some(bound) => bound.split(',').any(|own| own.trim() == zone),
            None => true,
        }
    }
}

fn problem(
    problems: &mut BTreeMap<&'static str, Problem>,
    condition: &'static str,
    reason: &'static str,
    message: String,
) {
    problems.entry(condition).or_insert(Problem { reason, message });
}

fn names<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let mut all: Vec<&str> = all.collect();
    all.sort_unstable();
    all.dedup();
    let more = all.len().saturating_sub(10);
    all.truncate(10);
    match (all.is_empty(), more) {
        (true, _) => "none".to_owned(),
        (false, 0) => all.join(", "),
        (false, more) => format!("{} and {more} more", all.join(", ")),
    }
}

/// What may be chosen instead, as the end of a sentence.
fn choice<'a>(all: impl Iterator<Item = &'a str>) -> String {
    match names(all).as_str() {
        "none" => "there is none, make one".to_owned(),
        all => format!("choose from {all}"),
    }
}

fn tags_match(wanted: &Option<BTreeMap<String, String>>, own: impl Fn(&str) -> Option<String>) -> bool {
    wanted
        .iter()
        .flatten()
        .all(|(key, value)| own(key).is_some_and(|own| value == "*" || own == *value))
}

fn of_tags<'a>(tags: &'a [Tag]) -> impl Fn(&str) -> Option<String> + 'a {
    |key| {
        let found = tags.iter().find(|tag| tag.key == key)?;
        Some(found.value.clone().unwrap_or_default())
    }
}

fn is(wanted: &Option<String>, own: &str) -> bool {
    wanted.as_deref().is_none_or(|wanted| wanted == own)
}

#[cfg(test)]
mod tests;
