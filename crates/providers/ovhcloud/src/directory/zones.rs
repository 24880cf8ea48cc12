//! The zones of a cluster: asked for, seen, or known.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels;

use super::{Probe, Problem};
use crate::{
    catalogue::{Zones, types::ZoneKind},
    client::{KubeApi, model::Cluster},
    node_class::condition,
};

/// Regions with three zones that are known without asking.
const THREE_ZONES: [(&str, [&str; 3]); 2] = [
    ("EU-WEST-PAR", ["eu-west-par-a", "eu-west-par-b", "eu-west-par-c"]),
    ("EU-SOUTH-MIL", ["eu-south-mil-a", "eu-south-mil-b", "eu-south-mil-c"]),
];
/// What one-zone regions call theirs.
const ONE_ZONE: &str = "nova";

/// The zones of a region that is known to have several.
pub(crate) fn known(region: &str) -> Option<&'static [&'static str; 3]> {
    let known = THREE_ZONES.iter().find(|(own, _)| own.eq_ignore_ascii_case(region));
    known.map(|(_, zones)| zones)
}

/// The zones to launch in: those of the region, restricted to what the class asks for.
pub(super) async fn zones(
    asked: &[String],
    cluster: &Cluster,
    probe: &Probe,
    api: &KubeApi,
    nodes: &[Node],
) -> Result<Zones, Problem> {
    let own: BTreeSet<String> = nodes
        .iter()
        .filter_map(|node| node.metadata.labels.as_ref()?.get(labels::ZONE).cloned())
        .collect();
    let built_in = known(&cluster.region);
    let mut seen = own.clone();
    // Only a region that may have several zones is worth asking about those of its pools.
    if probe.region_zones.is_empty() && built_in.is_none() {
        let pools = api
            .pools()
            .await
            .map_err(|error| Problem::of(error, condition::CLUSTER_READY, "ClusterNotFound"))?;
        seen.extend(pools.iter().filter_map(|pool| pool.zone().map(str::to_owned)));
    }
    choose(asked, &probe.region_zones, built_in, &seen, &own)
}

fn choose(
    asked: &[String],
    told: &[String],
    built_in: Option<&[&str; 3]>,
    seen: &BTreeSet<String>,
    of_nodes: &BTreeSet<String>,
) -> Result<Zones, Problem> {
    let several = if !told.is_empty() {
        told.to_vec()
    } else if let Some(zones) = built_in {
        let known = zones.iter().map(|zone| (*zone).to_owned());
        known
            .chain(seen.iter().filter(|zone| *zone != ONE_ZONE).cloned())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    } else if seen.len() > 1 {
        seen.iter().cloned().collect()
    } else {
        let only = of_nodes.iter().next().map_or(ONE_ZONE, String::as_str).to_owned();
        if let Some(unknown) = asked.iter().find(|zone| **zone != only) {
            return Err(unknown_zone(unknown, &[only]));
        }
        return Ok(Zones {
            names: vec![only],
            kind: ZoneKind::One,
        });
    };
    if let Some(unknown) = asked.iter().find(|zone| !several.contains(zone)) {
        return Err(unknown_zone(unknown, &several));
    }
    let mut names = if asked.is_empty() { several } else { asked.to_vec() };
    names.sort();
    Ok(Zones {
        names,
        kind: ZoneKind::Several,
    })
}

fn unknown_zone(zone: &str, known: &[String]) -> Problem {
    Problem {
        condition: condition::VALIDATION_SUCCEEDED,
        reason: "UnknownZone",
        message: format!("the region has no zone {zone}; it has {}", known.join(", ")),
        temporary: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    fn check(asked: &[&str], told: &[&str], built_in: bool, seen: &[&str]) -> Result<(Vec<String>, ZoneKind), String> {
        let seen: BTreeSet<String> = texts(seen).into_iter().collect();
        let built_in = built_in.then_some(&THREE_ZONES[0].1);
        choose(&texts(asked), &texts(told), built_in, &seen, &seen)
            .map(|zones| (zones.names, zones.kind))
            .map_err(|problem| problem.message)
    }

    #[test]
    fn a_one_zone_region_has_the_zone_of_its_nodes_or_nova() {
        assert_eq!(check(&[], &[], false, &[]), Ok((texts(&["nova"]), ZoneKind::One)));
        assert_eq!(
            check(&[], &[], false, &["gra-x"]),
            Ok((texts(&["gra-x"]), ZoneKind::One))
        );
    }

    #[test]
    fn three_zones_are_told_or_known() {
        let par = texts(&["eu-west-par-a", "eu-west-par-b", "eu-west-par-c"]);
        assert_eq!(check(&[], &[], true, &[]), Ok((par, ZoneKind::Several)));
        assert_eq!(
            check(&[], &["y", "x"], true, &[]),
            Ok((texts(&["x", "y"]), ZoneKind::Several))
        );
    }

    #[test]
    fn the_class_restricts_zones_to_known_ones() {
        assert_eq!(
            check(&["eu-west-par-b"], &[], true, &[]),
            Ok((texts(&["eu-west-par-b"]), ZoneKind::Several))
        );
        let refused = check(&["eu-west-par-d"], &[], true, &[]).expect_err("unknown");
        assert!(
            refused.starts_with("the region has no zone eu-west-par-d; it has eu-west-par-a"),
            "{refused}"
        );
        assert!(check(&["x"], &[], false, &[]).is_err());
    }
}
