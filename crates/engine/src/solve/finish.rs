//! From a finished run to a plan: final requirements, instance types by price, labels, requests (scheduling.md §4.6, §4.8).

use std::sync::Arc;

use karpenter_api::labels;
use karpenter_api::quantity::{Notation, Quantity};
use karpenter_api::requirement::Requirements;
use karpenter_api::resources::{self, ResourceList};
use rustc_hash::FxHashMap;

use super::claims::Claim;
use super::run::{Entry, Outcome, Run};
use super::templates::{Template, is_compatible_offer, row_indices};
use crate::model::{InstanceType, Labels, MinValuesPolicy};
use crate::plan::{LaunchOffering, NodePlacement, Plan, PlannedClaim, Relaxation, Relaxed};
use crate::reason::{Reason, Unschedulable};
use crate::tables::{Amounts, Dims, Req, SetId, Tables, ValueSet};

/// What claims with equal requirements of one template share.
struct Shape {
    requirements: Arc<Requirements>,
    labels: Arc<Labels>,
    /// Rows with their cheapest launchable offering, by price and then name; those without one come last.
    ranked: Vec<Ranked>,
}

pub(crate) struct Ranked {
    pub(crate) row: usize,
    pub(crate) price: f64,
    pub(crate) offer: Option<usize>,
}

/// Types and cheapest offering, shared by claims that have the same rows left too.
#[derive(Clone)]
struct Choice {
    instance_types: Arc<[Arc<InstanceType>]>,
    cheapest: Option<LaunchOffering>,
    shortfall: Option<(String, u32, u32)>,
    price_overlaid: bool,
    capacity_overlaid: bool,
}

impl Run<'_> {
    pub(crate) fn into_plan(mut self) -> Plan {
        let mut plan = Plan {
            empty_pools: self.world.empty_pools.clone(),
            ..Plan::default()
        };
        for (pod, reason) in std::mem::take(&mut self.rejected) {
            plan.unschedulable.push(Unschedulable { pod, reason });
        }
        self.add_failures(&mut plan);
        self.add_relaxations(&mut plan);
        self.add_nodes(&mut plan);
        self.add_claims(&mut plan);
        plan
    }

    fn add_failures(&mut self, plan: &mut Plan) {
        let mut known: FxHashMap<u32, Reason> = FxHashMap::default();
        for at in 0..self.entries.len() {
            let Entry {
                pod,
                class,
                volumes,
                outcome,
                ..
            } = &self.entries[at];
            let (pod, class, alike) = (pod.clone(), *class, volumes.is_none());
            let (step, list) = match *outcome {
                Outcome::OnNode { .. } | Outcome::OnClaim { .. } => continue,
                Outcome::Unreached => {
                    plan.not_reached.push(pod);
                    continue;
                }
                Outcome::Refused { step } => (step, &mut plan.unschedulable),
                Outcome::Waiting { step } => (step, &mut plan.deferred),
            };
            let reason = match known.get(&class) {
                Some(reason) if alike => reason.clone(),
                _ => self.diagnose(at as u32, step),
            };
            known.insert(class, reason.clone());
            list.push(Unschedulable { pod, reason });
        }
    }

    fn add_relaxations(&self, plan: &mut Plan) {
        let mut known: FxHashMap<(u32, u32), Arc<[Relaxation]>> = FxHashMap::default();
        for entry in &self.entries {
            let (Outcome::OnNode { step, .. } | Outcome::OnClaim { step, .. }) = entry.outcome else {
                continue;
            };
            if step == 0 {
                continue;
            }
            let steps = known.entry((entry.key.kind, step)).or_insert_with(|| {
                let taken = &self.world.kinds[entry.key.kind as usize].steps[..=step as usize];
                taken.iter().filter_map(|step| step.relaxed.clone()).collect()
            });
            plan.relaxations.push(Relaxed {
                pod: entry.pod.clone(),
                steps: steps.clone(),
            });
        }
    }

    fn add_nodes(&self, plan: &mut Plan) {
        let mut used: Vec<_> = self.node_pods.iter().collect();
        used.sort_unstable_by_key(|(node, _)| **node);
        for (node, pods) in used {
            plan.existing.push(NodePlacement {
                node: self.world.nodes.all[*node as usize].node.name.clone(),
                pods: pods.iter().map(|pod| self.entries[*pod as usize].pod.clone()).collect(),
            });
        }
    }

    fn add_claims(&mut self, plan: &mut Plan) {
        let mut shapes: FxHashMap<(usize, SetId, Vec<u32>), Shape> = FxHashMap::default();
        let mut choices: FxHashMap<(usize, SetId, Vec<u64>, Vec<u32>), Choice> = FxHashMap::default();
        for claim in std::mem::take(&mut self.claims.all) {
            let shape_key = (claim.template, claim.set, claim.reservations.clone());
            let choice_key = (
                claim.template,
                claim.set,
                claim.rows.to_vec(),
                claim.reservations.clone(),
            );
            if !shapes.contains_key(&shape_key) {
                let shape = self.shape(&claim);
                shapes.insert(shape_key.clone(), shape);
            }
            let shape = &shapes[&shape_key];
            if !choices.contains_key(&choice_key) {
                let choice = self.choice(&claim, shape);
                choices.insert(choice_key.clone(), choice);
            }
            let choice = choices[&choice_key].clone();
            let pool = self.world.templates[claim.template].pool.clone();
            let pods = claim.pods.iter().map(|pod| self.entries[*pod as usize].pod.clone());
            if let Some((key, need, have)) = choice.shortfall {
                let reason = Reason::ClaimDiscarded {
                    pool: pool.name.clone(),
                    key,
                    need,
                    have,
                };
                plan.unschedulable.extend(pods.map(|pod| Unschedulable {
                    pod,
                    reason: reason.clone(),
                }));
                continue;
            }
            plan.claims.push(PlannedClaim {
                instance_types: choice.instance_types,
                requirements: shape.requirements.clone(),
                labels: shape.labels.clone(),
                pods: pods.collect(),
                requests: requests(&self.world.dims, &self.world.templates[claim.template], &claim),
                cheapest: choice.cheapest,
                reservations: self
                    .book
                    .held(&claim.reservations)
                    .into_iter()
                    .map(|(_, id)| id.to_owned())
                    .collect(),
                min_values_relaxed: claim.min_values_relaxed,
                price_overlaid: choice.price_overlaid,
                capacity_overlaid: choice.capacity_overlaid,
                node_pool: pool,
            });
        }
    }

    /// The set as it will be written: reservations pin the capacity type, labels of the simulation are gone.
    fn shape(&mut self, claim: &Claim) -> Shape {
        let tables = &mut self.world.tables;
        let mut set = claim.set;
        let held = self.book.held(&claim.reservations);
        if let Some((label, _)) = held.first() {
            let (key, reserved) = tables.label(labels::CAPACITY_TYPE, labels::CAPACITY_TYPE_RESERVED);
            set = tables.replace(set, key, reserved);
            let key = tables.names.key(label);
            let mut ids = ValueSet::default();
            for (_, id) in &held {
                ids.insert(tables.names.value(key, id));
            }
            let ids = tables.intern(key, Req::within(ids));
            set = tables.narrow(set, key, ids);
        }
        let template = &self.world.templates[claim.template];
        let mut node_labels = template.pool.node_labels();
        let mut requirements = Requirements::new();
        for (key, req) in tables.entries(set) {
            let name = tables.names.key_name(*key);
            if [labels::REGISTERED, labels::INITIALIZED, labels::HOSTNAME].contains(&&**name) {
                continue;
            }
            let exported = tables.export(*key, *req);
            if !tables.rules().is_well_known(name)
                && !node_labels.contains_key(&**name)
                && let Some(value) = exported.any_value()
            {
                node_labels.insert(name.to_string(), value);
            }
            requirements.replace(exported);
        }
        let ranked = ranked(tables, template, set);
        Shape {
            requirements: Arc::new(requirements),
            labels: Arc::new(node_labels),
            ranked,
        }
    }

    fn choice(&mut self, claim: &Claim, shape: &Shape) -> Choice {
        let template = &self.world.templates[claim.template];
        let left = |row: usize| claim.rows[row / 64] >> (row % 64) & 1 == 1;
        let mut taken = vec![false; template.rows.types.len()];
        let mut instance_types = Vec::new();
        let mut cheapest = None;
        let mut rows = vec![0u64; claim.rows.len()];
        let most = self.world.snapshot.options.max_instance_types;
        let (mut price_overlaid, mut capacity_overlaid) = (false, false);
        for ranked in shape.ranked.iter().filter(|ranked| left(ranked.row)) {
            let type_index = template.rows.type_of[ranked.row] as usize;
            if taken[type_index] {
                continue;
            }
            if instance_types.len() == most {
                break;
            }
            taken[type_index] = true;
            rows[ranked.row / 64] |= 1 << (ranked.row % 64);
            let instance_type = &template.rows.types[type_index];
            price_overlaid |= instance_type.offerings.iter().any(|offering| offering.price_overlaid);
            capacity_overlaid |= instance_type.capacity_overlaid;
            if cheapest.is_none() {
                cheapest = ranked.offer.map(|offer| launch_offering(template, offer));
            }
            instance_types.push(instance_type.clone());
        }
        let strict = self.world.snapshot.options.min_values_policy == MinValuesPolicy::Strict;
        let cut = instance_types.len() == most && template.types_of(&claim.rows).len() > most;
        let mut shortfall = None;
        if strict && cut && self.world.tables.has_min_values(claim.set) {
            shortfall = template
                .unmet_min_values(&mut self.world.tables, claim.set, &rows)
                .map(|(key, need, have)| (self.world.tables.names.key_name(key).to_string(), need, have));
        }
        let instance_types = instance_types.into();
        Choice {
            instance_types,
            cheapest,
            shortfall,
            price_overlaid,
            capacity_overlaid,
        }
    }
}

/// Rows by the price of their cheapest launchable offering under a set, then by name.
pub(crate) fn ranked(tables: &mut Tables, template: &Template, set: SetId) -> Vec<Ranked> {
    let mut best: Vec<Ranked> = (0..template.rows.len())
        .map(|row| Ranked {
            row,
            price: f64::INFINITY,
            offer: None,
        })
        .collect();
    for (at, offer) in template.rows.offers.iter().enumerate() {
        let best = &mut best[offer.row as usize];
        if offer.launchable && offer.price < best.price && is_compatible_offer(tables, set, &offer.entries) {
            (best.price, best.offer) = (offer.price, Some(at));
        }
    }
    let name = |ranked: &Ranked| &template.rows.types[template.rows.type_of[ranked.row] as usize].name;
    best.sort_by(|a, b| a.price.total_cmp(&b.price).then_with(|| name(a).cmp(name(b))));
    best
}

fn launch_offering(template: &Template, offer: usize) -> LaunchOffering {
    let offer = &template.rows.offers[offer];
    let instance_type = &template.rows.types[template.rows.type_of[offer.row as usize] as usize];
    let offering = &instance_type.offerings[offer.nth];
    let value = |key: &str| {
        offering
            .requirements
            .get(key)
            .and_then(|r| r.any_value())
            .unwrap_or_default()
    };
    LaunchOffering {
        instance_type: instance_type.name.clone(),
        zone: value(labels::ZONE),
        capacity_type: value(labels::CAPACITY_TYPE),
        price: offer.price,
    }
}

/// Pods together, and per resource the least that daemons take on any type that is left (scheduling.md Q-10).
fn requests(dims: &Dims, template: &Template, claim: &Claim) -> ResourceList {
    let mut amounts = claim.requests.clone();
    amounts.resize(dims.len(), 0);
    let surviving = template
        .daemon_groups
        .iter()
        .filter(|group| row_indices(&group.rows).any(|row| claim.rows[row / 64] >> (row % 64) & 1 == 1));
    let least = surviving
        .map(|group| &group.overhead)
        .fold(None, |least: Option<Amounts>, overhead| {
            let at = |list: &Amounts, dim: usize| list.get(dim).copied().unwrap_or(0);
            Some(
                (0..dims.len())
                    .map(|dim| least.as_ref().map_or(i64::MAX, |l| at(l, dim)).min(at(overhead, dim)))
                    .collect(),
            )
        });
    for (amount, least) in amounts.iter_mut().zip(least.unwrap_or_default()) {
        *amount = amount.saturating_add(least);
    }
    let named = amounts.iter().enumerate().filter(|(_, amount)| **amount != 0);
    named
        .map(|(dim, amount)| (dims.name(dim).to_string(), quantity(dims.name(dim), *amount)))
        .collect()
}

/// An amount in thousandths, written as Kubernetes would for the resource.
pub(crate) fn quantity(resource: &str, milli: i64) -> Quantity {
    let bytes = resource == resources::MEMORY
        || resource == resources::EPHEMERAL_STORAGE
        || resource.starts_with(resources::HUGEPAGES_PREFIX);
    let notation = if bytes { Notation::BinarySi } else { Notation::DecimalSi };
    Quantity::from_milli(milli).with_notation(notation)
}
