//! The zone that each pending pod is bound to before anything is placed (scheduling.md §8.5).

use std::collections::BTreeMap;

use karpenter_api::labels;
use rustc_hash::FxHashMap;

use super::domains::{Counts, Domains};
use super::groups::Rule;
use super::kinds::{Kind, Owned};
use super::run::{Entry, Run};
use crate::plan::EffectiveZone;
use crate::tables::{KeyId, SetId, ValueId, ValueSet};

impl Run<'_> {
    /// How many pending pods can go to which zone. To be asked before pods are placed.
    pub(crate) fn effective_zones(&mut self) -> BTreeMap<EffectiveZone, usize> {
        let zone = self.world.tables.names.key(labels::ZONE);
        let mut by_kind: FxHashMap<u32, EffectiveZone> = FxHashMap::default();
        let mut counted = BTreeMap::new();
        let is_pending = |entry: &&Entry| entry.pod.node_name.is_none() && entry.pod.buffer.is_none();
        for entry in self.entries.iter().filter(is_pending) {
            let found = match entry.volumes.is_some() {
                true => self.effective_zone(entry, zone),
                false => by_kind
                    .entry(entry.key.kind)
                    .or_insert_with(|| self.effective_zone(entry, zone))
                    .clone(),
            };
            *counted.entry(found).or_default() += 1;
        }
        counted
    }

    fn effective_zone(&self, entry: &Entry, zone: KeyId) -> EffectiveZone {
        let tables = &self.world.tables;
        let kind = &self.world.kinds[entry.key.kind as usize];
        let demanded = kind.steps[0].strict.set;
        let volumes = self.volume_zones(entry, zone);
        let mut left = tables
            .get(demanded, zone)
            .map(|req| tables.req(req))
            .filter(|req| !req.complement)
            .map(|req| req.values.clone());
        for narrower in volumes.into_iter().chain(self.rule_zones(kind, demanded, zone)) {
            left = Some(match left {
                Some(left) => left.intersection(&narrower),
                None => narrower,
            });
        }
        // Gt, Lt and NotIn name no zones, but they exclude some of those that something else names.
        let mut possible = left
            .as_ref()
            .map(|left| left.iter().filter(|value| tables.allows(demanded, zone, *value)));
        let Some(possible) = &mut possible else {
            return EffectiveZone::Flexible;
        };
        match (possible.next(), possible.next()) {
            (None, _) => EffectiveZone::Nowhere,
            (Some(only), None) => EffectiveZone::Only(tables.names.value_name(zone, only).clone()),
            (Some(_), Some(_)) => EffectiveZone::Flexible,
        }
    }

    /// The zones where the pod's volumes can be attached; nothing if one way to attach them leaves the zone open.
    fn volume_zones(&self, entry: &Entry, zone: KeyId) -> Option<ValueSet> {
        let tables = &self.world.tables;
        let alternatives = &entry.volumes.as_ref()?.alternatives;
        let mut union: Option<ValueSet> = None;
        for alternative in alternatives {
            let req = tables.req(tables.get(alternative.set, zone)?);
            if req.complement {
                return None;
            }
            union = Some(union.map_or_else(|| req.values.clone(), |union| union.union(&req.values)));
        }
        union
    }

    /// The zones that each topology rule of the pod leaves to it. Rules that it can do without are not asked: the last step
    /// of relaxation has only the others.
    fn rule_zones(&self, kind: &Kind, demanded: SetId, zone: KeyId) -> Vec<ValueSet> {
        let hard = kind.steps.last().map(|step| step.owned.as_slice()).unwrap_or_default();
        let zones = hard.iter().filter_map(|owned| {
            let group = self.world.groups.get(owned.group);
            match self.counts(owned.group) {
                Counts::Domains(domains) if group.key == zone => {
                    Some(self.zones_of(*owned, group.rule, domains, demanded, zone))
                }
                Counts::Domains(_) | Counts::Hosts(_) => None,
            }
        });
        zones.collect()
    }

    fn zones_of(&self, owned: Owned, rule: Rule, domains: &Domains, demanded: SetId, zone: KeyId) -> ValueSet {
        let allowed = |value: ValueId| self.world.tables.allows(demanded, zone, value);
        match rule {
            Rule::Spread { max_skew, min_domains } => {
                let least = i64::from(domains.least(&allowed, min_domains));
                let limit = max_skew + least - i64::from(owned.selects_itself);
                domains.within(limit, &allowed)
            }
            Rule::Affinity => {
                let occupied = domains.occupied(&allowed);
                match occupied.is_empty() && owned.selects_itself {
                    true => domains.within(0, &allowed),
                    false => occupied,
                }
            }
            Rule::AntiAffinity | Rule::Inverse => domains.empty(&allowed),
        }
    }
}
