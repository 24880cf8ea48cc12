//! Existing nodes in scheduling order, with what is left on each.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::daemons::{Daemon, add};
use super::demand::NodeLabels;
use crate::model::{Node, Taint, tolerates};
use crate::tables::{Amounts, Dims, Tables, ValueId};

#[derive(Debug, Clone)]
pub(crate) struct ExistingNode {
    pub(crate) node: Arc<Node>,
    pub(crate) labels: NodeLabels,
    pub(crate) hostname: ValueId,
    /// Index of the hostname domain; nodes that share a hostname share it.
    pub(crate) host: usize,
    pub(crate) taints: TaintsId,
    pub(crate) capacity: Amounts,
}

/// A distinct list of taints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TaintsId(pub(crate) u32);

#[derive(Debug, Clone, Default)]
pub(crate) struct Nodes {
    /// Those that pods can be placed on come first, in scheduling order: initialized before others, then by name. Nodes
    /// marked for deletion follow; they only count for topology.
    pub(crate) all: Vec<ExistingNode>,
    pub(crate) active: usize,
    pub(crate) hosts: usize,
    /// What is left per active node, `dims` amounts each.
    pub(crate) remaining: Vec<i64>,
    pub(crate) dims: usize,
    by_name: FxHashMap<Arc<str>, u32>,
    taints: Vec<Vec<Taint>>,
}

impl Nodes {
    pub(crate) fn new(tables: &mut Tables, dims: &mut Dims, nodes: &[Arc<Node>]) -> Nodes {
        let mut sorted: Vec<&Arc<Node>> = nodes.iter().collect();
        sorted.sort_by_key(|node| (node.deleting, !node.is_initialized(), node.name.clone()));
        let active = sorted.iter().take_while(|node| !node.deleting).count();
        let mut hosts: FxHashMap<ValueId, usize> = FxHashMap::default();
        let mut taint_ids: FxHashMap<Vec<Taint>, TaintsId> = FxHashMap::default();
        let mut taints = Vec::new();
        let mut by_name = FxHashMap::default();
        let mut all = Vec::with_capacity(sorted.len());
        for (at, node) in sorted.into_iter().enumerate() {
            let hostname = tables.names.value(tables.hostname, node.hostname());
            let next = hosts.len();
            let taints = *taint_ids.entry(node.taints.clone()).or_insert_with(|| {
                taints.push(node.taints.clone());
                TaintsId(taints.len() as u32 - 1)
            });
            by_name.insert(node.name.clone(), at as u32);
            all.push(ExistingNode {
                labels: NodeLabels::new(tables, &node.labels),
                hostname,
                host: *hosts.entry(hostname).or_insert(next),
                taints,
                capacity: dims.supply(&node.capacity),
                node: node.clone(),
            });
        }
        Nodes {
            all,
            active,
            hosts: hosts.len(),
            remaining: Vec::new(),
            dims: 0,
            by_name,
            taints,
        }
    }

    /// Works out what is left on each active node, when all dimensions are known.
    pub(crate) fn fill(&mut self, tables: &Tables, dims: &mut Dims, daemons: &[Daemon]) {
        let supplies: Vec<Amounts> = self.all[..self.active]
            .iter()
            .map(|existing| dims.supply(&existing.node.allocatable))
            .collect();
        let used: Vec<(Amounts, Amounts)> = self.all[..self.active]
            .iter()
            .map(|existing| {
                (
                    dims.demand(existing.node.requested()),
                    dims.demand(existing.node.daemon_requested()),
                )
            })
            .collect();
        self.dims = dims.len();
        self.remaining = vec![0; self.active * self.dims];
        for (at, (mut free, (requested, daemon_requested))) in supplies.into_iter().zip(used).enumerate() {
            let existing = &self.all[at];
            let mut expected = Amounts::new();
            for daemon in daemons {
                let tolerated = tolerates(&daemon.tolerations, &existing.node.taints);
                let runs = || {
                    daemon
                        .terms
                        .iter()
                        .any(|term| term.allows_node(tables, &existing.labels, existing.hostname))
                };
                if tolerated && runs() {
                    add(&mut expected, &daemon.requests);
                }
            }
            // Only what the node has at all can run out: subtraction goes over the keys of allocatable.
            free.resize(self.dims, 0);
            let amount = |list: &Amounts, dim: usize| list.get(dim).copied().unwrap_or(0);
            for (name, _) in &existing.node.allocatable {
                let Some(dim) = dims.get(name) else { continue };
                // An unexpected daemon pod must not add capacity, hence the clamp.
                let missing = (amount(&expected, dim) - amount(&daemon_requested, dim)).max(0);
                free[dim] = free[dim]
                    .saturating_sub(amount(&requested, dim))
                    .saturating_sub(missing);
            }
            self.remaining[at * self.dims..(at + 1) * self.dims].copy_from_slice(&free);
        }
    }

    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).map(|at| *at as usize)
    }

    pub(crate) fn taint_lists(&self) -> &[Vec<Taint>] {
        &self.taints
    }
}
