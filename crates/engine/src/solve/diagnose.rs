//! Why a pod found no place, worked out after the fact: only for pods that ended without one.

use karpenter_api::labels;

use super::attempt::{Asked, TopologyRefusal};
use super::daemons::add;
use super::finish::quantity;
use super::groups::Rule;
use super::ports;
use super::run::Run;
use super::templates::{is_compatible_offer, row_indices};
use super::volumes::{Usage, exceeds};
use crate::reason::{NearestMiss, PoolRefusal, Reason, Refusal, TypeCounts};
use crate::tables::{Amounts, Clash, Dims, SetId};

/// A request of this many cores (in thousandths) is taken for a mistyped unit.
const SUSPICIOUS_CPU: i64 = 1_000_000 * 1_000;

impl Run<'_> {
    /// What each NodePool has against the pod at the step that was tried last.
    pub(crate) fn diagnose(&mut self, pod: u32, step: u32) -> Reason {
        if self.world.templates.is_empty() {
            let pools: Vec<String> = self
                .world
                .empty_pools
                .iter()
                .map(|empty| empty.node_pool.name.clone())
                .collect();
            return if pools.is_empty() {
                Reason::NoNodePool
            } else {
                Reason::NoInstanceTypes { pools }
            };
        }
        let key = self.entries[pod as usize].key;
        let asked = Asked {
            pod,
            kind: key.kind,
            step,
            requests: key.requests,
        };
        let refusals = (0..self.world.templates.len())
            .map(|template| PoolRefusal {
                pool: self.world.templates[template].pool.name.clone(),
                refusal: self.refusal(asked, template),
            })
            .collect();
        Reason::Refused(refusals)
    }

    /// The first thing that rules a template out, in the order in which it is asked (scheduling.md §3.10).
    fn refusal(&mut self, asked: Asked, template: usize) -> Refusal {
        let kind = &self.world.kinds[asked.kind as usize];
        let step = kind.steps[asked.step as usize].clone();
        let wanted_ports = kind.ports.clone();
        let own = &self.world.templates[template];
        let tolerated = |taint: &&crate::model::Taint| !step.tolerations.iter().any(|t| t.tolerates(taint));
        if let Some(taint) = own.pool.taints.iter().find(tolerated) {
            return Refusal::Taint(taint.clone());
        }
        if let Some(limit) = self.exhausted_limit(template) {
            return limit;
        }
        let mut rows = own.live.to_vec();
        own.within_limits(&mut rows, &self.limits[template]);
        if let Some(volumes) = &self.entries[asked.pod as usize].volumes {
            let volumes_table = &self.world.volumes;
            own.retain(&mut rows, |rows, row| {
                let limits = &rows.types[rows.type_of[row] as usize].volume_limits;
                !exceeds(&Usage::default(), &volumes.attachments, |driver| {
                    limits.get(&**volumes_table.driver_name(driver)).copied()
                })
            });
            if rows.iter().all(|word| *word == 0) {
                return Refusal::VolumeLimit;
            }
        }
        if !step.full.allows_new_host(&self.world.tables) {
            let (wanted, offered) = (labels::HOSTNAME.to_owned(), "a new host".to_owned());
            return Refusal::Requirement {
                key: labels::HOSTNAME.to_owned(),
                wanted,
                offered,
            };
        }
        let base = own.set;
        let set = match self.world.tables.accept(base, step.full.set) {
            Ok(set) => set,
            Err(clash) => return self.clash(clash, base, step.full.set),
        };
        let set = match self.attachable(asked, set) {
            Ok(set) => set,
            Err(refusal) => return refusal,
        };
        let set = match self.topology(asked, set) {
            Ok(set) => set,
            Err(TopologyRefusal { rule, key }) => {
                let key = self.world.tables.names.key_name(key).to_string();
                return match rule {
                    Rule::Spread { .. } => Refusal::Spread { key },
                    Rule::Affinity => Refusal::Affinity { key },
                    Rule::AntiAffinity | Rule::Inverse => Refusal::AntiAffinity { key },
                };
            }
        };
        let own = &self.world.templates[template];
        let taken = own
            .daemon_groups
            .iter()
            .map(|group| ports::conflict(&group.ports, &wanted_ports));
        let taken: Option<Vec<_>> = taken.collect();
        if let Some(port) = taken.and_then(|taken| taken.into_iter().next()) {
            return Refusal::HostPort { port: port.port };
        }
        self.type_refusal(asked, template, set)
    }

    fn exhausted_limit(&self, template: usize) -> Option<Refusal> {
        let limits = &self.limits[template];
        let limit = |resource: &str| {
            Some(Refusal::Limit {
                resource: resource.to_owned(),
            })
        };
        if limits.nodes.is_some_and(|left| left <= 0) {
            return limit("nodes");
        }
        let own = &self.world.templates[template];
        for (dim, left) in &limits.resources {
            let smallest = own
                .rows
                .capacity
                .iter()
                .map(|capacity| capacity.get(*dim).copied().unwrap_or(0))
                .min();
            if smallest.is_some_and(|smallest| i128::from(smallest) > *left) {
                return limit(self.world.dims.name(*dim));
            }
        }
        let mut rows = own.live.to_vec();
        own.within_limits(&mut rows, limits);
        let (dim, _) = limits.resources.first()?;
        if rows.iter().all(|word| *word == 0) {
            limit(self.world.dims.name(*dim))
        } else {
            None
        }
    }

    fn clash(&self, clash: Clash, have: SetId, want: SetId) -> Refusal {
        let tables = &self.world.tables;
        match clash {
            Clash::Undefined(key) => {
                let name = tables.names.key_name(key);
                Refusal::UndefinedLabel {
                    key: name.to_string(),
                    hint: self.similar_key(name, have),
                }
            }
            Clash::Disjoint(key) => {
                let text = |set| {
                    tables
                        .get(set, key)
                        .map(|req| tables.export(key, req).to_string())
                        .unwrap_or_default()
                };
                let key = tables.names.key_name(key).to_string();
                Refusal::Requirement {
                    key,
                    wanted: text(want),
                    offered: text(have),
                }
            }
        }
    }

    /// A key that the unknown one may be a misspelling of.
    fn similar_key(&self, unknown: &str, have: SetId) -> Option<String> {
        let tables = &self.world.tables;
        let suffix = unknown.rsplit_once('/').map_or("", |(_, suffix)| suffix);
        let similar = |key: &str| key.contains(unknown) || (!suffix.is_empty() && key.ends_with(suffix));
        let known = tables.rules().well_known().find(|key| similar(key)).map(str::to_owned);
        known.or_else(|| {
            let keys = tables.entries(have).iter().map(|(key, _)| tables.names.key_name(*key));
            keys.filter(|key| similar(key)).map(|key| key.to_string()).min()
        })
    }

    /// The first way to attach the pod's volumes that goes with the set.
    fn attachable(&mut self, asked: Asked, set: SetId) -> Result<SetId, Refusal> {
        let volumes = self.entries[asked.pod as usize].volumes.as_deref();
        let alternatives = volumes.map(|volumes| volumes.alternatives.to_vec()).unwrap_or_default();
        if alternatives.is_empty() {
            return Ok(set);
        }
        let mut refusal = Refusal::VolumeTopology {
            key: labels::HOSTNAME.to_owned(),
        };
        for alternative in alternatives {
            if !alternative.allows_new_host(&self.world.tables) {
                continue;
            }
            match self.world.tables.accept(set, alternative.set) {
                Ok(merged) => return Ok(merged),
                Err(Clash::Undefined(key) | Clash::Disjoint(key)) => {
                    let key = self.world.tables.names.key_name(key).to_string();
                    refusal = Refusal::VolumeTopology { key };
                }
            }
        }
        Err(refusal)
    }

    /// How many types fell to which cause; minValues and reservations when types would be left.
    fn type_refusal(&mut self, asked: Asked, template: usize, set: SetId) -> Refusal {
        let own = &self.world.templates[template];
        let requests = self.world.requests(asked.requests).to_vec();
        let tables = &mut self.world.tables;
        let mut counts = TypeCounts {
            total: own.rows.types.len() as u32,
            suspicious_unit: requests.get(Dims::CPU).copied().unwrap_or(0) >= SUSPICIOUS_CPU,
            ..TypeCounts::default()
        };
        let mut sold = vec![false; own.rows.len()];
        for offer in &own.rows.offers {
            let sold = &mut sold[offer.row as usize];
            *sold = *sold || is_compatible_offer(tables, set, &offer.entries);
        }
        let mut left = vec![0u64; own.live.len()];
        let mut nearest: Option<(f64, NearestMiss)> = None;
        let mut judged = vec![false; own.rows.types.len()];
        for row in 0..own.rows.len() {
            let type_index = own.rows.type_of[row] as usize;
            let name = &own.rows.types[type_index].name;
            let unmet: Vec<_> = tables
                .entries(set)
                .to_vec()
                .into_iter()
                .filter(|(key, req)| {
                    let own = own.rows.columns.get(key).and_then(|column| column[type_index]);
                    own.is_some_and(|own| !tables.meets(own, *req))
                })
                .collect();
            let unmet = unmet
                .into_iter()
                .min_by_key(|(key, _)| tables.names.key_name(*key).clone());
            let group = own
                .daemon_groups
                .iter()
                .find(|group| group.rows[row / 64] >> (row % 64) & 1 == 1);
            let mut needed: Amounts = requests.clone();
            add(&mut needed, group.map_or(&[][..], |group| &group.overhead));
            let port = group.is_some_and(|group| {
                ports::conflict(&group.ports, &self.world.kinds[asked.kind as usize].ports).is_some()
            });
            let sold = sold[row];
            let lacking = lacking(&own.rows.allocatable[row], &needed);
            if unmet.is_none()
                && sold
                && let Some((dim, ratio)) = lacking
                && nearest
                    .as_ref()
                    .is_none_or(|(best, miss)| (ratio, name) < (*best, &miss.instance_type))
            {
                let resource = self.world.dims.name(dim);
                let text = |amount: i64| quantity(resource, amount).to_string();
                let allocatable = own.rows.allocatable[row].get(dim).copied().unwrap_or(0);
                let miss = NearestMiss {
                    instance_type: name.clone(),
                    resource: resource.to_string(),
                    requested: text(needed[dim]),
                    allocatable: text(allocatable),
                };
                nearest = Some((ratio, miss));
            }
            if std::mem::replace(&mut judged[type_index], true) {
                continue;
            }
            if let Some((key, _)) = unmet {
                *counts
                    .requirement
                    .entry(tables.names.key_name(key).to_string())
                    .or_default() += 1;
            } else if let Some((dim, _)) = lacking {
                *counts
                    .resource
                    .entry(self.world.dims.name(dim).to_string())
                    .or_default() += 1;
            } else if port {
                counts.host_port += 1;
            } else if !sold {
                counts.offering += 1;
            } else {
                left[row / 64] |= 1 << (row % 64);
            }
        }
        counts.nearest = nearest.map(|(_, miss)| miss);
        if left.iter().all(|word| *word == 0) {
            return Refusal::InstanceTypes(Box::new(counts));
        }
        if let Some((key, need, have)) = own.unmet_min_values(tables, set, &left) {
            return Refusal::MinValues {
                key: tables.names.key_name(key).to_string(),
                need,
                have,
            };
        }
        let mut within = left.clone();
        own.within_limits(&mut within, &self.limits[template]);
        if row_indices(&within).next().is_none()
            && let Some((dim, _)) = self.limits[template].resources.first()
        {
            return Refusal::Limit {
                resource: self.world.dims.name(*dim).to_string(),
            };
        }
        Refusal::ReservedCapacity
    }
}

/// The resource that is missing most, with how many times too much is asked for.
fn lacking(allocatable: &[i64], needed: &[i64]) -> Option<(usize, f64)> {
    let mut worst: Option<(usize, f64)> = None;
    for (dim, need) in needed.iter().enumerate() {
        let have = allocatable.get(dim).copied().unwrap_or(0);
        if *need <= have {
            continue;
        }
        let ratio = if have <= 0 {
            f64::INFINITY
        } else {
            *need as f64 / have as f64
        };
        if worst.is_none_or(|(_, worst)| ratio > worst) {
            worst = Some((dim, ratio));
        }
    }
    worst
}
