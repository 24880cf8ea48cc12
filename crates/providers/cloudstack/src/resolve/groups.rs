//! Security groups and affinity groups.

use super::{Lists, Resolution, choice, is, names, of_tags, problem, tags_match};
use crate::{
    client::model::{AffinityGroup, SecurityGroup},
    node_class::{
        CloudStackNodeClass, SecurityGroupTerm,
        placement::AffinityType,
        status::{AFFINITY_GROUPS_READY, SECURITY_GROUPS_READY},
    },
};

pub(super) fn security_groups(class: &CloudStackNodeClass, lists: &Lists, resolution: &mut Resolution) {
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
        let all = choice(lists.security_groups.iter().map(|own| own.name.as_str()));
        let message = format!("no security group matches securityGroupSelectorTerms; {all}");
        problem(
            &mut resolution.problems,
            SECURITY_GROUPS_READY,
            "SecurityGroupNotFound",
            message,
        );
    }
}

pub(super) fn affinity_groups(class: &CloudStackNodeClass, lists: &Lists, resolution: &mut Resolution) {
    let Some(groups) = &class.spec.affinity_groups else {
        return;
    };
    for term in groups.selector_terms.iter().flatten() {
        let matches =
            |own: &&AffinityGroup| is(&term.id, &own.id) && is(&term.name, &own.name) && is(&term.kind, &own.kind);
        let found: Vec<&AffinityGroup> = lists.affinity_groups.iter().filter(matches).collect();
        if found.is_empty() {
            let all = choice(lists.affinity_groups.iter().map(|own| own.name.as_str()));
            let message = format!("no affinity group matches affinityGroups.selectorTerms; {all}");
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
        let known = &lists.affinity_types;
        let has = |kind: &str| known.is_empty() || known.iter().any(|own| own.kind == kind);
        let kind = match managed.kind {
            Some(own) => own.as_str(),
            // Older servers have only the strict one.
            None if has(AffinityType::NonStrictHostAntiAffinity.as_str()) => {
                AffinityType::NonStrictHostAntiAffinity.as_str()
            }
            None => AffinityType::HostAntiAffinity.as_str(),
        };
        resolution.managed_affinity_type = Some(kind);
        if !has(kind) {
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
