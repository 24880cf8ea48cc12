//! What a pass knows and has worked out: interned nodes, pod kinds, topology groups with their counts, and templates.

mod bound;
mod pods;

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use bound::Bound;
pub(crate) use pods::PodKey;
use pods::Pods;

use super::daemons::Daemon;
use super::default_spread;
use super::domains::{Counts, Domains, Hosts};
use super::groups::{Group, GroupId, Groups, NodeFilter, Rule};
use super::kinds::{Builder, Kind};
use super::nodes::{ExistingNode, Nodes, TaintsId};
use super::templates::{Limits, Template};
use super::volumes::Volumes;
use crate::model::{Effect, MinValuesPolicy, Pod, PodSpec, Snapshot, SpreadConstraint, Taint, tolerates};
use crate::plan::EmptyPool;
use crate::tables::{Dims, KeyId, SetId, Tables, ValueId, ValueSet};

#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) snapshot: Snapshot,
    pub(crate) tables: Tables,
    pub(crate) dims: Dims,
    pub(crate) templates: Vec<Template>,
    pub(crate) empty_pools: Vec<EmptyPool>,
    /// Per template, what its limits leave after the nodes that exist.
    pub(crate) limits: Vec<Limits>,
    pub(crate) nodes: Nodes,
    pub(crate) volumes: Volumes,
    pub(crate) groups: Groups,
    /// Per group, what the cluster has before anything is placed.
    pub(crate) counts: Vec<Counts>,
    /// Per group, bound pods that own it; inverse groups only.
    pub(crate) bound_owners: Vec<u32>,
    pub(crate) kinds: Vec<Kind>,
    pods: Pods,
    bound: Bound,
    /// Groups that existed when selections were last worked out.
    selected_groups: usize,
    selected_kinds: usize,
    eligible: FxHashMap<(u32, u32), Box<[u64]>>,
    domains_of_nodes: FxHashMap<(KeyId, ValueSet, Option<NodeFilter>), Domains>,
    filtered_sets: FxHashMap<(GroupId, SetId), bool>,
    prefer_no_schedule: bool,
}

impl World {
    pub(crate) fn new(snapshot: &Snapshot) -> World {
        let catalog = &snapshot.catalog;
        let mut tables = catalog.tables.clone();
        let mut dims = catalog.dims.clone();
        let pods = Pods::new(snapshot, &mut dims);
        let daemons = Daemon::all(&mut tables, &mut dims, &snapshot.daemons);
        let mut nodes = Nodes::new(&mut tables, &mut dims, &snapshot.nodes);
        for node in snapshot.nodes.iter() {
            dims.supply(&node.allocatable);
        }
        nodes.fill(&tables, &mut dims, &daemons);
        let mut templates = Vec::new();
        let mut empty_pools = Vec::new();
        for template in &catalog.templates {
            let template = Template::new(&mut tables, &dims, template, &daemons);
            match usable(&mut tables, &template, snapshot.options.min_values_policy) {
                Ok(()) => templates.push(template),
                Err(min_values_unmet) => {
                    empty_pools.push(EmptyPool {
                        node_pool: template.pool.clone(),
                        min_values_unmet,
                    });
                }
            }
        }
        let has_soft_taint = |taints: &[Taint]| taints.iter().any(|taint| taint.effect == Effect::PreferNoSchedule);
        let active = &nodes.all[..nodes.active];
        let prefer_no_schedule = catalog.pools().iter().any(|entry| has_soft_taint(&entry.pool.taints))
            || active.iter().any(|existing| has_soft_taint(&existing.node.taints));
        let mut world = World {
            snapshot: snapshot.clone(),
            tables,
            dims,
            templates,
            empty_pools,
            limits: Vec::new(),
            nodes,
            volumes: Volumes::default(),
            groups: Groups::default(),
            counts: Vec::new(),
            bound_owners: Vec::new(),
            kinds: Vec::new(),
            pods,
            bound: Bound::default(),
            selected_groups: 0,
            selected_kinds: 0,
            eligible: FxHashMap::default(),
            domains_of_nodes: FxHashMap::default(),
            filtered_sets: FxHashMap::default(),
            prefer_no_schedule,
        };
        world.charge_existing_nodes();
        world.add_bound_anti_affinity();
        world
    }

    fn charge_existing_nodes(&mut self) {
        self.limits = self.templates.iter().map(|template| template.limits.clone()).collect();
        if self.limits.iter().all(Limits::is_unlimited) {
            return;
        }
        for existing in &self.nodes.all[..self.nodes.active] {
            if let Some(template) = self.template_of(existing) {
                self.limits[template].charge(&existing.capacity);
            }
        }
    }

    /// The template of the NodePool that a node belongs to.
    pub(crate) fn template_of(&self, existing: &ExistingNode) -> Option<usize> {
        let pool = existing.node.node_pool.as_deref()?;
        self.templates.iter().position(|template| template.pool.name == pool)
    }

    /// The kind and requests of a pod, interned. Call [`World::settle`] when all pods of a run are.
    pub(crate) fn pod_key(&mut self, pod: &Pod) -> PodKey {
        let key = self
            .pods
            .key(pod, &mut self.dims, !self.snapshot.options.default_spread.is_empty());
        if let Some(kind) = self.pods.kind(&key) {
            return PodKey {
                kind,
                requests: key.requests,
            };
        }
        let labels = self.pods.labels(key.labels).clone();
        let spread = self.spread_of(pod);
        let mut builder = Builder {
            tables: &mut self.tables,
            groups: &mut self.groups,
            universe: &self.snapshot.catalog.universe,
            namespaces: &self.snapshot.namespaces,
            policy: self.snapshot.options.preference_policy,
            prefer_no_schedule: self.prefer_no_schedule,
        };
        let kind = builder.build(&pod.spec, &spread, &pod.namespace, &labels);
        let id = self.kinds.len() as u32;
        self.kinds.push(kind);
        self.pods.remember(&key, id);
        PodKey {
            kind: id,
            requests: key.requests,
        }
    }

    pub(crate) fn requests(&self, id: u32) -> &[i64] {
        self.pods.requests(id)
    }

    fn spread_of(&self, pod: &Pod) -> Vec<SpreadConstraint> {
        if !pod.spec.spread.is_empty() {
            return pod.spec.spread.clone();
        }
        let (options, workloads) = (&self.snapshot.options, &self.snapshot.workloads);
        default_spread::injected(
            options,
            workloads,
            &pod.namespace,
            &pod.labels,
            pod.controller.as_deref(),
        )
    }

    /// Counts new groups from the cluster and works out which groups select which kinds.
    pub(crate) fn settle(&mut self) {
        if self.groups.len() > self.counts.len() && self.bound.is_empty() {
            self.bound = Bound::new(&self.nodes, &mut self.pods, &self.snapshot);
        }
        for at in self.counts.len()..self.groups.len() {
            let counts = self.count(GroupId(at as u32));
            self.counts.push(counts);
            self.bound_owners.resize(at + 1, 0);
        }
        let first_kind = if self.groups.len() > self.selected_groups {
            0
        } else {
            self.selected_kinds
        };
        for kind in &mut self.kinds[first_kind..] {
            let selecting = self.groups.selecting(&kind.namespace, &kind.labels);
            let is_inverse = |group: &GroupId| self.groups.get(*group).rule == Rule::Inverse;
            (kind.kept_away_by, kind.counted_by) = selecting.into_iter().partition(is_inverse);
            // Group ids depend on the order of the input; the rule that is reported must not.
            let key_name = |group: &GroupId| self.tables.names.key_name(self.groups.get(*group).key).clone();
            kind.kept_away_by.sort_by_key(key_name);
            for owned in kind.steps.iter_mut().flat_map(|step| &mut step.owned) {
                owned.selects_itself = kind.counted_by.binary_search(&owned.group).is_ok();
            }
        }
        self.selected_groups = self.groups.len();
        self.selected_kinds = self.kinds.len();
    }

    /// What the cluster has of a group: domains of its nodes, and bound pods that the selector matches.
    fn count(&mut self, id: GroupId) -> Counts {
        let group = self.groups.get(id).clone();
        if group.rule == Rule::Inverse {
            // Owners count, not selected pods; those that are bound were added when the group was made.
            return self.empty_counts(&group);
        }
        let mut counts = self.empty_counts(&group);
        for (node, pods) in self.bound.matching(&group, &self.pods) {
            let existing = &self.nodes.all[node as usize];
            if !existing.node.has_node || !self.counts_node(&group, existing) {
                continue;
            }
            for _ in 0..pods {
                add_pod(&mut counts, &self.tables, &group, existing);
            }
        }
        counts
    }

    fn empty_counts(&mut self, group: &Group) -> Counts {
        if group.key == self.tables.hostname {
            return Counts::Hosts(Hosts::default());
        }
        let key = (group.key, group.universe.clone(), group.filter.clone());
        if let Some(domains) = self.domains_of_nodes.get(&key) {
            return Counts::Domains(domains.clone());
        }
        let mut domains = Domains::new(&self.tables.names, group.key, &group.universe);
        for existing in &self.nodes.all[..self.nodes.active] {
            if existing.node.has_node
                && let Some(value) = existing.labels.get(group.key)
                && self.counts_node(group, existing)
            {
                domains.add_node(&self.tables.names, group.key, value);
            }
        }
        self.domains_of_nodes.insert(key, domains.clone());
        Counts::Domains(domains)
    }

    /// The group's node filter lets an existing node count.
    pub(crate) fn counts_node(&self, group: &Group, existing: &ExistingNode) -> bool {
        let Some(filter) = &group.filter else { return true };
        let terms = filter.terms.as_ref().is_none_or(|terms| {
            terms
                .iter()
                .any(|term| term.allows_node(&self.tables, &existing.labels, existing.hostname))
        });
        terms
            && filter
                .tolerations
                .as_ref()
                .is_none_or(|own| tolerates(own, &existing.node.raw_taints))
    }

    /// The group's node filter lets a planned node count; well-known keys must be settled already (scheduling.md Q-6).
    pub(crate) fn counts_claim(&mut self, id: GroupId, set: SetId, taints: &[Taint]) -> bool {
        let group = self.groups.get(id).clone();
        let Some(filter) = &group.filter else { return true };
        if filter.tolerations.as_ref().is_some_and(|own| !tolerates(own, taints)) {
            return false;
        }
        let Some(terms) = &filter.terms else { return true };
        if let Some(known) = self.filtered_sets.get(&(id, set)) {
            return *known;
        }
        let passes = terms
            .iter()
            .any(|term| term.allows_new_host(&self.tables) && self.tables.is_strictly_compatible(set, term.set));
        self.filtered_sets.insert((id, set), passes);
        passes
    }

    /// Inverse groups of bound pods with required anti-affinity, counted where those pods are.
    fn add_bound_anti_affinity(&mut self) {
        let mut owners: Vec<(Arc<Pod>, usize)> = Vec::new();
        for (at, existing) in self.nodes.all.iter().enumerate() {
            for pod in existing.node.pods() {
                if !pod.spec.anti_affinity.required.is_empty() && !self.pods.is_scheduled(&pod.uid) {
                    owners.push((pod.clone(), at));
                }
            }
        }
        if owners.is_empty() {
            return;
        }
        let keys: Vec<PodKey> = owners.iter().map(|(pod, _)| self.pod_key(pod)).collect();
        self.settle();
        for (key, (_, node)) in keys.into_iter().zip(owners) {
            for group in self.kinds[key.kind as usize].inverse.clone() {
                self.bound_owners[group.0 as usize] += 1;
                let counted = self.groups.get(group).clone();
                add_pod(
                    &mut self.counts[group.0 as usize],
                    &self.tables,
                    &counted,
                    &self.nodes.all[node],
                );
            }
        }
    }

    /// Nodes whose taints and labels a kind's step accepts, as bits in scheduling order.
    pub(crate) fn prepare_eligible(&mut self, kind: u32, step: u32) {
        if self.eligible.contains_key(&(kind, step)) {
            return;
        }
        let own = &self.kinds[kind as usize].steps[step as usize];
        let tolerated: Vec<bool> = self
            .nodes
            .taint_lists()
            .iter()
            .map(|taints| tolerates(&own.tolerations, taints))
            .collect();
        let mut bits = vec![0u64; self.nodes.active.div_ceil(64)].into_boxed_slice();
        for (at, existing) in self.nodes.all[..self.nodes.active].iter().enumerate() {
            let TaintsId(taints) = existing.taints;
            if tolerated[taints as usize] && own.full.allows_node(&self.tables, &existing.labels, existing.hostname) {
                bits[at / 64] |= 1 << (at % 64);
            }
        }
        self.eligible.insert((kind, step), bits);
    }

    pub(crate) fn eligible(&self, kind: u32, step: u32) -> &[u64] {
        self.eligible.get(&(kind, step)).expect("eligibility was prepared")
    }
}

/// The value of a group's key on an existing node.
pub(crate) fn domain_of(existing: &ExistingNode, key: KeyId) -> Option<ValueId> {
    existing.labels.get(key)
}

pub(crate) fn add_pod(counts: &mut Counts, tables: &Tables, group: &Group, existing: &ExistingNode) {
    match counts {
        Counts::Hosts(hosts) => hosts.add(existing.host),
        Counts::Domains(domains) => {
            if let Some(value) = domain_of(existing, group.key) {
                domains.add_pod(&tables.names, group.key, value);
            }
        }
    }
}

pub(crate) fn remove_pod(counts: &mut Counts, tables: &Tables, group: &Group, existing: &ExistingNode) {
    match counts {
        Counts::Hosts(hosts) => hosts.remove(existing.host),
        Counts::Domains(domains) => {
            if let Some(value) = domain_of(existing, group.key) {
                domains.remove_pod(&tables.names, group.key, value);
            }
        }
    }
}

/// A template without a type to launch is of no use; the error says whether minValues are to blame.
fn usable(tables: &mut Tables, template: &Template, policy: MinValuesPolicy) -> Result<(), bool> {
    if template.rows.len() == 0 {
        return Err(false);
    }
    // Types that cannot hold the daemons still count here: the check is made without them (scheduling.md §4.1).
    let rows = template.all_rows();
    match policy {
        MinValuesPolicy::BestEffort => Ok(()),
        MinValuesPolicy::Strict => match template.unmet_min_values(tables, template.set, &rows) {
            None => Ok(()),
            Some(_) => Err(true),
        },
    }
}

/// Selector keys and dimensions come from all pods that could ever be asked about.
pub(crate) fn selector_keys(spec: &PodSpec, keys: &mut BTreeSet<String>) {
    let terms = spec
        .affinity
        .required
        .iter()
        .chain(spec.affinity.preferred.iter().map(|weighted| &weighted.term))
        .chain(&spec.anti_affinity.required)
        .chain(spec.anti_affinity.preferred.iter().map(|weighted| &weighted.term));
    for term in terms {
        keys.extend(term.selector.keys().map(str::to_owned));
    }
    for constraint in &spec.spread {
        keys.extend(constraint.selector.keys().map(str::to_owned));
        keys.extend(constraint.match_label_keys.iter().cloned());
    }
}

/// Uids of pods that are to be placed although they are bound: they are counted where they go, not where they were.
pub(crate) fn bound_but_scheduled(snapshot: &Snapshot) -> FxHashSet<Box<str>> {
    snapshot
        .pods
        .iter()
        .filter(|pod| pod.node_name.is_some())
        .map(|pod| pod.uid.clone())
        .collect()
}
