//! The networks that NICs may be in.

use super::{Problem, choice, is, names, of_tags, tags_match};
use crate::{
    client::model::{Network, Zone},
    node_class::{AdditionalNetwork, NetworkTerm},
};

pub(super) fn network_matches(term: &NetworkTerm, own: &Network) -> bool {
    is(&term.id, &own.id)
        && is(&term.name, &own.name)
        && is(&term.vpc_id, own.vpcid.as_deref().unwrap_or_default())
        && term
            .kind
            .is_none_or(|kind| own.kind.eq_ignore_ascii_case(kind.as_str()))
        && tags_match(&term.tags, of_tags(&own.tags))
}

pub(super) fn select(
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
                "no network of zone {} matches networkSelectorTerms; {}",
                zone.name,
                choice(all.iter().map(|own| own.name.as_str()))
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

/// The networks of further NICs in a zone, one for each entry that finds one.
pub(super) fn further(
    wanted: Option<&Vec<AdditionalNetwork>>,
    all: &[Network],
    zone: &Zone,
) -> Result<Vec<Network>, Problem> {
    let mut additional = Vec::new();
    for wanted in wanted.into_iter().flatten() {
        let found = all
            .iter()
            .filter(|own| wanted.selector_terms.iter().any(|term| network_matches(term, own)));
        match found.min_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id))) {
            Some(network) => additional.push(network.clone()),
            None if wanted.is_required() => {
                return Err(Problem {
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
    Ok(additional)
}
