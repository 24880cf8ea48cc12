//! Volumes of pods: what they count against attachment limits, and where they can be attached.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::demand::Demand;
use crate::model::{ClaimTopology, Labels, Pod, VolumeFacts};
use crate::reason::Reason;
use crate::tables::Tables;

/// A PersistentVolumeClaim that counts against its driver's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Attachment {
    pub(crate) driver: u32,
    pub(crate) claim: u32,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Volumes {
    drivers: FxHashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
    claims: FxHashMap<(Arc<str>, Box<str>), u32>,
}

/// The volumes of one pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodVolumes {
    pub(crate) attachments: Box<[Attachment]>,
    /// Ways to satisfy all volumes at once, tried in order. Empty: anywhere.
    pub(crate) alternatives: Box<[Demand]>,
}

/// Distinct attachments in use on a node.
pub(crate) type Usage = FxHashSet<Attachment>;

impl Volumes {
    pub(crate) fn driver_name(&self, driver: u32) -> &Arc<str> {
        &self.names[driver as usize]
    }

    fn driver(&mut self, name: &Arc<str>) -> u32 {
        *self.drivers.entry(name.clone()).or_insert_with(|| {
            self.names.push(name.clone());
            self.names.len() as u32 - 1
        })
    }

    /// What a pod's claims attach. Claims that nothing is known about are not tracked.
    pub(crate) fn attachments(&mut self, facts: &VolumeFacts, pod: &Pod) -> Box<[Attachment]> {
        let mut attachments = Vec::new();
        for name in pod.volume_claims.iter() {
            let Some(driver) = facts.get(&pod.namespace, name).and_then(|facts| facts.driver.as_ref()) else {
                continue;
            };
            let driver = self.driver(driver);
            let next = self.claims.len() as u32;
            let claim = *self.claims.entry((pod.namespace.clone(), name.clone())).or_insert(next);
            attachments.push(Attachment { driver, claim });
        }
        attachments.sort_unstable();
        attachments.dedup();
        attachments.into()
    }

    pub(crate) fn resolve(
        &mut self,
        tables: &mut Tables,
        facts: &VolumeFacts,
        pod: &Pod,
    ) -> Result<PodVolumes, Reason> {
        if pod.volume_claims.is_empty() {
            return Ok(PodVolumes::default());
        }
        let mut alternatives: Vec<Demand> = vec![Demand::NONE];
        for name in pod.volume_claims.iter() {
            let unresolved = |problem: &str| Reason::VolumeUnresolved {
                claim: name.to_string(),
                problem: problem.to_owned(),
            };
            let claim = facts
                .get(&pod.namespace, name)
                .ok_or_else(|| unresolved("it does not exist"))?;
            let terms = match &claim.topology {
                ClaimTopology::Anywhere => continue,
                ClaimTopology::AnyOf(terms) if terms.is_empty() => continue,
                ClaimTopology::AnyOf(terms) => terms,
                ClaimTopology::Unresolved(problem) => return Err(unresolved(problem)),
            };
            let own: Vec<Demand> = terms
                .iter()
                .map(|term| Demand::new(tables, &Labels::new(), term))
                .collect();
            alternatives = cross(tables, &alternatives, &own);
        }
        alternatives.dedup();
        if alternatives == [Demand::NONE] {
            alternatives.clear();
        }
        Ok(PodVolumes {
            attachments: self.attachments(facts, pod),
            alternatives: alternatives.into(),
        })
    }
}

/// How many claims of each driver there would be together exceeds what `limit` says.
pub(crate) fn exceeds(usage: &Usage, added: &[Attachment], limit: impl Fn(u32) -> Option<u32>) -> bool {
    let new = |driver: u32| {
        added
            .iter()
            .filter(move |a| a.driver == driver && !usage.contains(a))
            .count()
    };
    added.iter().any(|attachment| {
        let driver = attachment.driver;
        let Some(limit) = limit(driver) else { return false };
        let used = usage.iter().filter(|present| present.driver == driver).count();
        used + new(driver) > limit as usize
    })
}

/// Every combination that does not contradict itself; all of them when all do, so that the pod fails with a plain reason.
fn cross(tables: &mut Tables, left: &[Demand], right: &[Demand]) -> Vec<Demand> {
    // Beyond this many combinations a pod is being silly; the rest would not be reached in practice.
    const MOST: usize = 1_000;
    let mut fitting = Vec::new();
    let mut all = Vec::new();
    for a in left {
        for b in right {
            if all.len() >= MOST {
                break;
            }
            let hosts_meet = match (a.host, b.host) {
                (Some(a), Some(b)) => tables.meets(a, b),
                _ => true,
            };
            let host = match (a.host, b.host) {
                (Some(a), Some(b)) => Some(tables.intersection(a, b)),
                (host, None) | (None, host) => host,
            };
            let meet = hosts_meet && tables.intersects(a.set, b.set).is_ok();
            let merged = Demand {
                set: tables.merge(a.set, b.set),
                host,
            };
            if meet {
                fitting.push(merged);
            }
            all.push(merged);
        }
    }
    if fitting.is_empty() { all } else { fitting }
}
