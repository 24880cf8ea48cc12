//! What the selectors of a class find among what CloudStack has (cloudstack.md §6). Pure: lists in, findings out.

use std::{collections::BTreeMap, sync::Arc};

use karpenter_api::{
    labels::{ARCH, OS},
    requirement::{Operator, Requirement, Requirements},
};
use regex::Regex;

use crate::{
    client::model::{
        AffinityGroup, AffinityGroupType, DiskOffering, Network, Project, RegisteredUserData, SecurityGroup,
        ServiceOffering, SshKeyPair, Tag, Template, Zone,
    },
    node_class::{
        CapacityType, CloudStackNodeClass, NetworkTerm, OfferingTerm, SecurityGroupTerm, TemplateTerm,
        status::{
            AFFINITY_GROUPS_READY, BOOTSTRAP_READY, NETWORK_READY, OFFERINGS_READY, SECURITY_GROUPS_READY,
            STORAGE_READY, TEMPLATE_READY, ZONE_READY,
        },
    },
};

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
}

/// What a class comes to.
#[derive(Clone, Debug, Default)]
pub struct Resolution {
    pub zones: Vec<ResolvedZone>,
    pub offerings: Vec<ResolvedOffering>,
    pub security_groups: Vec<SecurityGroup>,
    pub affinity_groups: Vec<AffinityGroup>,
    pub disk_offerings: Vec<DiskOffering>,
    pub root_disk_offering: Option<DiskOffering>,
    /// Data disks in order: offering, GiB if custom, device.
    pub registered_user_data: Option<String>,
    pub project: Option<Project>,
    /// What stands in the way, by condition.
    pub problems: BTreeMap<&'static str, Problem>,
}

/// Why a condition is false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub reason: &'static str,
    pub message: String,
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
}

#[derive(Clone, Debug)]
pub struct ResolvedOffering {
    pub offering: ServiceOffering,
    pub capacity_type: CapacityType,
}

/// On an offering's details: its capacity type and price.
pub const CAPACITY_TYPE_DETAIL: &str = "karpenter.k8s.cloudstack/capacity-type";
pub const PRICE_DETAIL: &str = "karpenter.k8s.cloudstack/price";
/// On a template's tags: further requirements.
const REQUIREMENT_TAG: &str = "requirement.karpenter.k8s.cloudstack/";

/// The zones that a class means; what is wrong with each that is not usable goes into `problems`.
pub fn zones(class: &CloudStackNodeClass, all: &[Zone], problems: &mut BTreeMap<&'static str, Problem>) -> Vec<Zone> {
    let mut found: Vec<Zone> = Vec::new();
    for wanted in class.wanted_zones() {
        let named: Vec<&Zone> = all
            .iter()
            .filter(|zone| zone.id == wanted || zone.name == wanted)
            .collect();
        match named.as_slice() {
            [] => problem(
                problems,
                ZONE_READY,
                "ZoneNotFound",
                format!(
                    "zone {wanted} does not exist or is not visible to the API key; CloudStack has {}",
                    names(all.iter().map(|zone| zone.name.as_str()))
                ),
            ),
            [zone] if zone.allocationstate != "Enabled" => problem(
                problems,
                ZONE_READY,
                "ZoneDisabled",
                format!(
                    "zone {wanted} is {}; enable it, or choose another",
                    zone.allocationstate
                ),
            ),
            [zone] => found.push((*zone).clone()),
            several => problem(
                problems,
                ZONE_READY,
                "ZoneNotFound",
                format!(
                    "zone {wanted} is ambiguous; use one of the ids {}",
                    names(several.iter().map(|zone| zone.id.as_str()))
                ),
            ),
        }
    }
    found
}

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
        let templates = select_templates(&spec.template_selector_terms, &templates);
        let templates = templates.unwrap_or_else(|problem| {
            template_problem.get_or_insert(problem);
            Vec::new()
        });
        let needs_service = needs_user_data || templates.iter().any(|own| own.template.passwordenabled);
        let networks = select_networks(&spec.network_selector_terms, &all, &zone, needs_service);
        let networks = networks.unwrap_or_else(|problem| {
            network_problem.get_or_insert(problem);
            Vec::new()
        });
        let mut additional = Vec::new();
        let mut is_complete = true;
        for wanted in spec.additional_networks.iter().flatten() {
            let found = all
                .iter()
                .filter(|own| wanted.selector_terms.iter().any(|term| network_matches(term, own)));
            let mut found: Vec<&Network> = found.collect();
            found.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
            match found.first() {
                Some(network) => additional.push((*network).clone()),
                None if wanted.is_required() => {
                    is_complete = false;
                    network_problem.get_or_insert(Problem {
                        reason: "NetworkNotFound",
                        message: format!(
                            "no network of zone {} matches an entry of additionalNetworks",
                            zone.name
                        ),
                    });
                }
                None => {}
            }
        }
        let networks = if is_complete { networks } else { Vec::new() };
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
    resolution.offerings = offerings(class, lists, &resolution.zones, &mut resolution.problems);
    security_groups(class, lists, &mut resolution);
    affinity_groups(class, lists, &mut resolution);
    storage(class, lists, &mut resolution);
    bootstrap(class, lists, &mut resolution);
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

pub(crate) fn network_matches(term: &NetworkTerm, own: &Network) -> bool {
    is(&term.id, &own.id)
        && is(&term.name, &own.name)
        && is(&term.vpc_id, own.vpcid.as_deref().unwrap_or_default())
        && term
            .kind
            .is_none_or(|kind| own.kind.eq_ignore_ascii_case(kind.as_str()))
        && tags_match(&term.tags, of_tags(&own.tags))
}

fn select_networks(
    terms: &[NetworkTerm],
    all: &[Network],
    zone: &Zone,
    needs_service: bool,
) -> Result<Vec<Network>, Problem> {
    let rank = |own: &Network| terms.iter().position(|term| network_matches(term, own));
    let mut matching: Vec<(usize, &Network)> = all
        .iter()
        .filter(|own| own.traffictype.as_deref().is_none_or(|kind| kind == "Guest"))
        .filter_map(|own| Some((rank(own)?, own)))
        .collect();
    if matching.is_empty() {
        return Err(Problem {
            reason: "NetworkNotFound",
            message: format!(
                "no network of zone {} matches networkSelectorTerms; there is {}",
                zone.name,
                names(all.iter().map(|own| own.name.as_str()))
            ),
        });
    }
    matching.sort_by(|a, b| (a.0, &a.1.name, &a.1.id).cmp(&(b.0, &b.1.name, &b.1.id)));
    let usable: Vec<&Network> = matching
        .iter()
        .map(|(_, own)| *own)
        .filter(|own| own.canusefordeploy)
        .collect();
    if usable.is_empty() {
        return Err(Problem {
            reason: "NetworkNotDeployable",
            message: format!(
                "network {} takes no machines: it has no free address, or is in the wrong state",
                names(matching.iter().map(|(_, own)| own.name.as_str()))
            ),
        });
    }
    let serving: Vec<Network> = usable
        .iter()
        .filter(|own| !needs_service || own.has_service("UserData"))
        .map(|own| (*own).clone())
        .collect();
    if serving.is_empty() {
        return Err(Problem {
            reason: "UserDataServiceMissing",
            message: format!(
                "network {} does not offer the UserData service, which user data and SSH keys need",
                names(usable.iter().map(|own| own.name.as_str()))
            ),
        });
    }
    Ok(serving)
}

fn template_matches(term: &TemplateTerm, own: &Template) -> bool {
    let os_is = |wanted: &String| own.ostypename.as_ref() == Some(wanted) || own.ostypeid.as_ref() == Some(wanted);
    is(&term.id, &own.id)
        && is(&term.name, &own.name)
        && term.os_type.as_ref().is_none_or(os_is)
        && term
            .arch
            .is_none_or(|arch| arch_of(own).as_deref() == Some(arch.label()))
        && tags_match(&term.tags, of_tags(&own.tags))
}

/// The architecture in Kubernetes' words; `None` for one that Kubernetes does not run on.
fn arch_of(own: &Template) -> Option<String> {
    match own.arch.as_deref() {
        Some("x86_64") => Some("amd64".to_owned()),
        Some("aarch64") => Some("arm64".to_owned()),
        Some("s390x") => Some("s390x".to_owned()),
        Some("i686") => None,
        Some(_) | None => Some(own.tag(ARCH).unwrap_or("amd64").to_owned()),
    }
}

fn select_templates(terms: &[TemplateTerm], all: &[Template]) -> Result<Vec<ResolvedTemplate>, Problem> {
    let is_image =
        |own: &&Template| own.format.as_deref() != Some("ISO") && own.hypervisor.is_some() && arch_of(own).is_some();
    let newest_first =
        |a: &Template, b: &Template| (b.created_at(), &a.name, &a.id).cmp(&(a.created_at(), &b.name, &b.id));
    let mut found: Vec<ResolvedTemplate> = Vec::new();
    let mut unready = Vec::new();
    for term in terms {
        let mut matching: Vec<&Template> = Vec::new();
        for own in all.iter().filter(is_image).filter(|own| template_matches(term, own)) {
            if own.isready {
                matching.push(own);
            } else {
                unready.push(own.name.as_str());
            }
        }
        matching.sort_by(|a, b| newest_first(a, b));
        if term.newest == Some(true) {
            matching.truncate(1);
        }
        for own in matching {
            let is_pinned = term.id.is_some();
            match found.iter_mut().find(|known| known.template.id == own.id) {
                Some(known) => known.is_pinned |= is_pinned,
                None => found.push(resolved_template(own, is_pinned)),
            }
        }
    }
    if !found.is_empty() {
        found.sort_by(|a, b| newest_first(&a.template, &b.template));
        return Ok(found);
    }
    Err(if unready.is_empty() {
        Problem {
            reason: "TemplateNotFound",
            message: format!(
                "no template matches templateSelectorTerms; there is {}",
                names(all.iter().map(|own| own.name.as_str()))
            ),
        }
    } else {
        Problem {
            reason: "TemplateNotReady",
            message: format!("template {} is not ready yet", names(unready.into_iter())),
        }
    })
}

fn resolved_template(own: &Template, is_pinned: bool) -> ResolvedTemplate {
    let arch = arch_of(own).expect("templates without an architecture were left out");
    let is_windows = own.ostypename.as_deref().is_some_and(|name| name.contains("Windows"));
    let os = if is_windows { "windows" } else { "linux" }.to_owned();
    let mut requirements = Requirements::new();
    requirements.add(Requirement::within(ARCH, [arch.clone()]));
    requirements.add(Requirement::within(OS, [os.clone()]));
    for tag in &own.tags {
        if let (Some(key), Some(values)) = (tag.key.strip_prefix(REQUIREMENT_TAG), &tag.value) {
            requirements.add(Requirement::new(key, Operator::In, values.split(',').map(str::trim)));
        }
    }
    ResolvedTemplate {
        template: own.clone(),
        arch,
        os,
        is_pinned,
        requirements,
    }
}

/// What stands for tags of an offering, which CloudStack cannot tag: details, host tags, storage tags (cloudstack.md §6.3).
pub fn offering_tags(own: &ServiceOffering) -> BTreeMap<String, String> {
    let mut tags = BTreeMap::new();
    for list in [&own.storagetags, &own.hosttags] {
        for entry in list.iter().flat_map(|list| list.split(',')) {
            let entry = entry.trim();
            match entry.split_once('=') {
                Some((key, value)) => tags.insert(key.to_owned(), value.to_owned()),
                None if !entry.is_empty() => tags.insert(entry.to_owned(), String::new()),
                None => None,
            };
        }
    }
    tags.extend(own.serviceofferingdetails.clone());
    tags
}

fn offering_matches(term: &OfferingTerm, own: &ServiceOffering) -> Result<bool, regex::Error> {
    let tags = offering_tags(own);
    // A bare word stands for itself.
    let tag = |key: &str| {
        tags.get(key).map(|value| {
            if value.is_empty() {
                key.to_owned()
            } else {
                value.clone()
            }
        })
    };
    let listed = |list: &Option<String>, wanted: &Option<Vec<String>>| {
        let own: Vec<&str> = list.iter().flat_map(|list| list.split(',')).map(str::trim).collect();
        wanted.iter().flatten().all(|wanted| own.contains(&wanted.as_str()))
    };
    if let Some(pattern) = &term.name_regex
        && !Regex::new(&format!("^(?:{pattern})$"))?.is_match(&own.name)
    {
        return Ok(false);
    }
    let within = |value: Option<i64>, least: Option<i64>, most: Option<i64>| match value {
        Some(value) => least.is_none_or(|least| value >= least) && most.is_none_or(|most| value <= most),
        // Custom offerings are sized by their shapes.
        None => true,
    };
    Ok(is(&term.id, &own.id)
        && is(&term.name, &own.name)
        && tags_match(&term.tags, tag)
        && listed(&own.hosttags, &term.host_tags)
        && listed(&own.storagetags, &term.storage_tags)
        && within(own.cpunumber, term.min_cpu, term.max_cpu)
        && within(own.memory, term.min_memory, term.max_memory))
}

fn offerings(
    class: &CloudStackNodeClass,
    lists: &Lists,
    zones: &[ResolvedZone],
    problems: &mut BTreeMap<&'static str, Problem>,
) -> Vec<ResolvedOffering> {
    let mut found: Vec<(usize, ResolvedOffering)> = Vec::new();
    let mut unshaped = Vec::new();
    for own in lists
        .offerings
        .iter()
        .filter(|own| own.state == "Active" && !own.issystem)
    {
        let mut rank = None;
        let mut is_spot = own
            .serviceofferingdetails
            .get(CAPACITY_TYPE_DETAIL)
            .is_some_and(|kind| kind == "spot");
        for (index, term) in class.spec.service_offering_selector_terms.iter().enumerate() {
            match offering_matches(term, own) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    problem(
                        problems,
                        OFFERINGS_READY,
                        "OfferingNotFound",
                        format!("nameRegex is not valid: {error}"),
                    );
                    continue;
                }
            }
            // Reboots replace the root disk of a volatile offering, so it must be meant.
            if own.isvolatile && term.id.is_none() && term.name.is_none() {
                continue;
            }
            rank.get_or_insert(index);
            is_spot |= term.capacity_type == Some(CapacityType::Spot);
        }
        let Some(rank) = rank else { continue };
        if own.cpunumber.is_none() || own.memory.is_none() {
            let is_shaped = class.spec.custom_offerings.iter().flatten().any(|shape| {
                shape
                    .offering
                    .as_ref()
                    .is_none_or(|named| *named == own.id || *named == own.name)
            });
            if !is_shaped {
                unshaped.push(own.name.as_str());
                continue;
            }
        }
        let resolved = ResolvedOffering {
            offering: own.clone(),
            capacity_type: if is_spot {
                CapacityType::Spot
            } else {
                CapacityType::OnDemand
            },
        };
        if zones.is_empty() || zones.iter().any(|zone| resolved.is_in(&zone.zone.id)) {
            found.push((rank, resolved));
        }
    }
    if found.is_empty() {
        let (reason, message) = if unshaped.is_empty() {
            let all = names(lists.offerings.iter().map(|own| own.name.as_str()));
            (
                "OfferingNotFound",
                format!("no service offering matches serviceOfferingSelectorTerms; there is {all}"),
            )
        } else {
            let all = names(unshaped.into_iter());
            (
                "NoUsableOffering",
                format!("only custom service offerings match ({all}); give their sizes in customOfferings"),
            )
        };
        problem(problems, OFFERINGS_READY, reason, message);
    }
    found.sort_by(|(a, x), (b, y)| (a, &x.offering.name, &x.offering.id).cmp(&(b, &y.offering.name, &y.offering.id)));
    found.into_iter().map(|(_, own)| own).collect()
}

fn security_groups(class: &CloudStackNodeClass, lists: &Lists, resolution: &mut Resolution) {
    let Some(terms) = &class.spec.security_group_selector_terms else {
        return;
    };
    if let Some(zone) = resolution.zones.iter().find(|own| !own.zone.securitygroupsenabled) {
        let message = format!(
            "zone {} has no security groups; remove securityGroupSelectorTerms",
            zone.zone.name
        );
        problem(
            &mut resolution.problems,
            SECURITY_GROUPS_READY,
            "SecurityGroupsUnsupported",
            message,
        );
        return;
    }
    let matches = |term: &SecurityGroupTerm, own: &SecurityGroup| {
        is(&term.id, &own.id) && is(&term.name, &own.name) && tags_match(&term.tags, of_tags(&own.tags))
    };
    let found = lists
        .security_groups
        .iter()
        .filter(|own| terms.iter().any(|term| matches(term, own)));
    resolution.security_groups = found.cloned().collect();
    resolution
        .security_groups
        .sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
    if resolution.security_groups.is_empty() {
        let all = names(lists.security_groups.iter().map(|own| own.name.as_str()));
        let message = format!("no security group matches securityGroupSelectorTerms; there is {all}");
        problem(
            &mut resolution.problems,
            SECURITY_GROUPS_READY,
            "SecurityGroupNotFound",
            message,
        );
    }
}

fn affinity_groups(class: &CloudStackNodeClass, lists: &Lists, resolution: &mut Resolution) {
    let Some(groups) = &class.spec.affinity_groups else {
        return;
    };
    for term in groups.selector_terms.iter().flatten() {
        let matches =
            |own: &&AffinityGroup| is(&term.id, &own.id) && is(&term.name, &own.name) && is(&term.kind, &own.kind);
        let found: Vec<&AffinityGroup> = lists.affinity_groups.iter().filter(matches).collect();
        if found.is_empty() {
            let all = names(lists.affinity_groups.iter().map(|own| own.name.as_str()));
            let message = format!("no affinity group matches affinityGroups.selectorTerms; there is {all}");
            problem(
                &mut resolution.problems,
                AFFINITY_GROUPS_READY,
                "AffinityGroupNotFound",
                message,
            );
        }
        for own in found {
            if resolution.affinity_groups.iter().all(|known| known.id != own.id) {
                resolution.affinity_groups.push(own.clone());
            }
        }
    }
    if let Some(managed) = &groups.managed {
        let kind = managed.kind.unwrap_or_default().as_str();
        let known = &lists.affinity_types;
        if !known.is_empty() && known.iter().all(|own| own.kind != kind) {
            let message = format!(
                "this CloudStack does not know affinity groups of type {kind:?}; it has {}",
                names(known.iter().map(|own| own.kind.as_str()))
            );
            problem(
                &mut resolution.problems,
                AFFINITY_GROUPS_READY,
                "AffinityTypeUnsupported",
                message,
            );
        }
    }
}

fn storage(class: &CloudStackNodeClass, lists: &Lists, resolution: &mut Resolution) {
    let spec = &class.spec;
    let mut wanted: Vec<(&str, Option<i64>, bool)> = Vec::new();
    wanted.extend(
        spec.root_disk_offering
            .as_deref()
            .map(|name| (name, spec.root_disk_size, true)),
    );
    wanted.extend(spec.disk_offering.as_deref().map(|name| (name, spec.disk_size, false)));
    wanted.extend(
        spec.data_disks
            .iter()
            .flatten()
            .map(|disk| (disk.offering.as_str(), disk.size, false)),
    );
    for (name, size, is_root) in wanted {
        let named: Vec<&DiskOffering> = lists
            .disk_offerings
            .iter()
            .filter(|own| own.id == name || own.name == name)
            .collect();
        let [found] = named.as_slice() else {
            let message = if named.is_empty() {
                let all = names(lists.disk_offerings.iter().map(|own| own.name.as_str()));
                format!("disk offering {name} does not exist or is not visible to the API key; there is {all}")
            } else {
                let ids = names(named.iter().map(|own| own.id.as_str()));
                format!("disk offering {name} is ambiguous; use one of the ids {ids}")
            };
            problem(&mut resolution.problems, STORAGE_READY, "DiskOfferingNotFound", message);
            continue;
        };
        if found.iscustomized && size.is_none() {
            let message = format!("disk offering {name} is of custom size; give the size in GiB");
            problem(
                &mut resolution.problems,
                STORAGE_READY,
                "InvalidDiskConfiguration",
                message,
            );
        }
        if is_root {
            resolution.root_disk_offering = Some((*found).clone());
        } else {
            resolution.disk_offerings.push((*found).clone());
        }
    }
}

fn bootstrap(class: &CloudStackNodeClass, lists: &Lists, resolution: &mut Resolution) {
    for name in class.ssh_key_pairs() {
        if lists.key_pairs.iter().all(|own| own.name != name) {
            let all = names(lists.key_pairs.iter().map(|own| own.name.as_str()));
            let message = format!("SSH key pair {name} does not exist in the account; there is {all}");
            problem(&mut resolution.problems, BOOTSTRAP_READY, "SSHKeyPairNotFound", message);
        }
    }
    let registered = class
        .spec
        .user_data_ref
        .as_ref()
        .and_then(|own| own.registered.as_ref());
    if let Some(wanted) = registered {
        let found = lists
            .user_data
            .iter()
            .find(|own| is(&wanted.id, &own.id) && is(&wanted.name, &own.name));
        match found {
            Some(own) => resolution.registered_user_data = Some(own.id.clone()),
            None => {
                let all = names(lists.user_data.iter().map(|own| own.name.as_str()));
                let message = format!("the registered user data does not exist in the account; there is {all}");
                problem(&mut resolution.problems, BOOTSTRAP_READY, "SecretNotFound", message);
            }
        }
    }
    if let Some(wanted) = &class.spec.project {
        let found = lists
            .projects
            .iter()
            .find(|own| own.id == *wanted || own.name == *wanted);
        match found {
            Some(own) => resolution.project = Some(own.clone()),
            None => {
                let all = names(lists.projects.iter().map(|own| own.name.as_str()));
                let message = format!("project {wanted} does not exist or the API key is not in it; there is {all}");
                problem(&mut resolution.problems, ZONE_READY, "ProjectNotFound", message);
            }
        }
    }
}

#[cfg(test)]
mod tests;
