//! NodePools and their instance types, interned: built when either changes and shared by all passes until then.

pub(crate) mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karpenter_api::labels::{self, LabelRules};
use rustc_hash::FxHashMap;

pub(crate) use rows::{Rows, reservation};

use crate::model::{InstanceType, NodePool, Taint};
use crate::tables::{Dims, KeyId, ReqId, SetId, Tables, ValueId, ValueSet};

/// A NodePool and the instance types that its NodeClass offers.
#[derive(Debug, Clone)]
pub struct PoolTypes {
    pub pool: Arc<NodePool>,
    pub instance_types: Vec<Arc<InstanceType>>,
}

/// Everything that can be launched, in the order in which NodePools are asked.
#[derive(Debug)]
pub struct Catalog {
    pools: Vec<PoolTypes>,
    rules: LabelRules,
    pub(crate) tables: Tables,
    pub(crate) dims: Dims,
    pub(crate) templates: Vec<Template>,
    pub(crate) universe: Universe,
    /// Some offering is bought from a reservation.
    pub(crate) has_reservations: bool,
}

/// What seeds the claims of one NodePool (scheduling.md §4.1).
#[derive(Debug, Clone)]
pub(crate) struct Template {
    pub(crate) pool: Arc<NodePool>,
    /// Requirements, labels and the simulated registration labels together.
    pub(crate) set: SetId,
    pub(crate) rows: Arc<Rows>,
}

/// Topology domains that new nodes could be in, each with the taints of the pools that reach it: one list per pool, and an
/// empty list makes the domain reachable for everyone (scheduling.md §5.3).
#[derive(Debug, Clone, Default)]
pub(crate) struct Universe {
    domains: FxHashMap<KeyId, BTreeMap<ValueId, PoolTaints>>,
}

type PoolTaints = Vec<Arc<[Taint]>>;

impl Catalog {
    /// Interns pools with their types. Pools are asked by weight, heaviest first, then by name in descending order; those
    /// that launch nothing for pods seed nothing (scheduling.md §4.1).
    pub fn new(mut pools: Vec<PoolTypes>, rules: LabelRules) -> Catalog {
        pools.sort_by(|a, b| {
            b.pool
                .weight
                .cmp(&a.pool.weight)
                .then_with(|| b.pool.name.cmp(&a.pool.name))
        });
        let mut tables = Tables::new(rules.clone());
        let mut dims = Dims::new();
        let mut templates = Vec::new();
        let mut universe = Universe::default();
        for PoolTypes { pool, instance_types } in &pools {
            if !pool.seeds_claims {
                continue;
            }
            let set = template_set(&mut tables, pool);
            let mut by_name = instance_types.clone();
            by_name.sort_by(|a, b| a.name.cmp(&b.name));
            let rows = Rows::new(&mut tables, &mut dims, set, &by_name);
            universe.add(&mut tables, pool, instance_types);
            templates.push(Template {
                pool: pool.clone(),
                set,
                rows: Arc::new(rows),
            });
        }
        let has_reservations = templates.iter().any(|template| template.rows.has_reservations());
        Catalog {
            pools,
            rules,
            tables,
            dims,
            templates,
            universe,
            has_reservations,
        }
    }

    /// All pools with the types they were given, in the order in which they are asked.
    pub fn pools(&self) -> &[PoolTypes] {
        &self.pools
    }

    pub fn pool(&self, name: &str) -> Option<&PoolTypes> {
        self.pools.iter().find(|entry| entry.pool.name == name)
    }

    /// The instance type that a node of this pool with this instance-type label is.
    pub fn instance_type(&self, pool: &str, name: &str) -> Option<&Arc<InstanceType>> {
        self.pool(pool)?
            .instance_types
            .iter()
            .find(|instance_type| instance_type.name == name)
    }

    pub fn label_rules(&self) -> &LabelRules {
        &self.rules
    }
}

/// `spec.requirements` ∩ node labels ∩ the labels that a node will have once it is up, for daemons that select on them.
fn template_set(tables: &mut Tables, pool: &NodePool) -> SetId {
    let mut entries: Vec<_> = pool
        .requirements
        .iter()
        .map(|requirement| tables.requirement(requirement))
        .collect();
    for (key, value) in &pool.node_labels() {
        entries.push(tables.label(key, value));
    }
    entries.push(tables.label(labels::REGISTERED, "true"));
    entries.push(tables.label(labels::INITIALIZED, "true"));
    tables.set_of(entries)
}

impl Universe {
    /// Registers what the pool's types list within the pool's restrictions, and what the pool itself lists.
    fn add(&mut self, tables: &mut Tables, pool: &NodePool, types: &[Arc<InstanceType>]) {
        if types.is_empty() {
            return;
        }
        let mut restrictions: Vec<_> = pool.requirements.iter().map(|r| tables.requirement(r)).collect();
        for (key, value) in &pool.labels {
            restrictions.push(tables.label(key, value));
        }
        let restrictions = tables.set_of(restrictions);
        let mut reached: BTreeSet<(KeyId, ReqId)> = tables.entries(restrictions).iter().copied().collect();
        for instance_type in types {
            for requirement in instance_type.requirements.iter() {
                let (key, own) = tables.requirement(requirement);
                let req = match tables.get(restrictions, key) {
                    Some(restriction) => tables.intersection(own, restriction),
                    None => own,
                };
                reached.insert((key, req));
            }
        }
        let taints: Arc<[Taint]> = pool.taints.clone().into();
        let mut values: BTreeSet<(KeyId, ValueId)> = BTreeSet::new();
        for (key, req) in reached {
            let req = tables.req(req);
            // Excluded values are no domains (scheduling.md Q-14).
            if !req.complement {
                values.extend(req.values.iter().map(|value| (key, value)));
            }
        }
        for (key, value) in values {
            self.domains
                .entry(key)
                .or_default()
                .entry(value)
                .or_default()
                .push(taints.clone());
        }
    }

    /// The domains of a key that some pool whose taints pass can create.
    pub(crate) fn domains(&self, key: KeyId, reachable: impl Fn(&[Taint]) -> bool) -> ValueSet {
        let mut domains = ValueSet::default();
        for (value, pools) in self.domains.get(&key).into_iter().flatten() {
            if pools.iter().any(|taints| taints.is_empty() || reachable(taints)) {
                domains.insert(*value);
            }
        }
        domains
    }
}
