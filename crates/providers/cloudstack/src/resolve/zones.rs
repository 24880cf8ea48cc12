//! The zones that a class means.

use std::collections::BTreeMap;

use super::{Problem, choice, names, problem};
use crate::{
    client::model::Zone,
    node_class::{CloudStackNodeClass, status::ZONE_READY},
};

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
                    "zone {wanted} does not exist or is not visible to the API key; {}",
                    choice(all.iter().map(|zone| zone.name.as_str()))
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
