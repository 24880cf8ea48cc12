//! The service offerings that machines may have, and what stands for their tags.

use std::collections::BTreeMap;

use regex::Regex;

use super::{
    CAPACITY_TYPE_DETAIL, Lists, Problem, ResolvedOffering, ResolvedZone, choice, is, names, problem, tags_match,
};
use crate::{
    client::model::ServiceOffering,
    node_class::{CapacityType, CloudStackNodeClass, OfferingTerm, status::OFFERINGS_READY},
};

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

pub(super) fn select(
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
            let all = choice(lists.offerings.iter().map(|own| own.name.as_str()));
            (
                "OfferingNotFound",
                format!("no service offering matches serviceOfferingSelectorTerms; {all}"),
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
