//! Templates at work: which rows of a NodePool's instance types still hold what a planned node holds.
//!
//! Rows are bits. A requirement set rules rows out once and is remembered; resources rule them out by looking up, per
//! dimension, the rows that have at least so much.

use std::sync::Arc;

use karpenter_api::resources;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::daemons::{Daemon, add};
use super::ports;
use crate::catalog::{self, Rows};
use crate::model::{HostPort, NodePool, tolerates};
use crate::tables::{Amounts, Dims, KeyId, ReqId, SetId, Tables, ValueSet, milli_down};

/// Rows as bits, 64 to a word.
pub(crate) type RowSet = Box<[u64]>;

#[derive(Debug, Clone)]
pub(crate) struct Template {
    pub(crate) pool: Arc<NodePool>,
    pub(crate) set: SetId,
    pub(crate) rows: Arc<Rows>,
    /// Rows that can hold the daemons at all.
    pub(crate) live: RowSet,
    pub(crate) daemon_groups: Vec<DaemonGroup>,
    /// `spec.limits` by dimension, and the limit on nodes.
    pub(crate) limits: Limits,
    free: Vec<FreeColumn>,
    offer_keys: Vec<KeyId>,
    by_req: FxHashMap<ReqId, RowSet>,
    by_offer_reqs: FxHashMap<SmallVec<[Option<ReqId>; 4]>, RowSet>,
    by_set: FxHashMap<SetId, RowSet>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    /// In thousandths; wide, because users write limits that no machine reaches.
    pub(crate) resources: Vec<(usize, i128)>,
    pub(crate) nodes: Option<i64>,
}

impl Limits {
    pub(crate) fn is_unlimited(&self) -> bool {
        self.resources.is_empty() && self.nodes.is_none()
    }

    /// Gives back what a node had.
    pub(crate) fn refund(&mut self, capacity: &[i64]) {
        for (dim, left) in &mut self.resources {
            *left += i128::from(capacity.get(*dim).copied().unwrap_or(0));
        }
        if let Some(nodes) = &mut self.nodes {
            *nodes += 1;
        }
    }

    /// Takes away what a node has.
    pub(crate) fn charge(&mut self, capacity: &[i64]) {
        for (dim, left) in &mut self.resources {
            *left -= i128::from(capacity.get(*dim).copied().unwrap_or(0));
        }
        if let Some(nodes) = &mut self.nodes {
            *nodes -= 1;
        }
    }
}

/// Types on which the same daemons run.
#[derive(Debug, Clone)]
pub(crate) struct DaemonGroup {
    pub(crate) rows: RowSet,
    pub(crate) overhead: Amounts,
    pub(crate) ports: Vec<HostPort>,
}

/// The amounts of one resource that rows have left after daemons, and for each the rows that have at least that much.
#[derive(Debug, Clone)]
struct FreeColumn {
    /// Ascending, distinct.
    amounts: Vec<i64>,
    at_least: Vec<u64>,
}

impl Template {
    pub(crate) fn new(tables: &mut Tables, dims: &Dims, template: &catalog::Template, daemons: &[Daemon]) -> Template {
        let rows = template.rows.clone();
        let daemon_groups = daemon_groups(tables, template, daemons);
        let (live, free) = free_columns(&rows, &daemon_groups, dims);
        let mut offer_keys: Vec<KeyId> = rows
            .offers
            .iter()
            .flat_map(|o| o.entries.iter().map(|(key, _)| *key))
            .collect();
        offer_keys.sort_unstable();
        offer_keys.dedup();
        Template {
            pool: template.pool.clone(),
            set: template.set,
            limits: limits(&template.pool, dims),
            rows,
            live,
            daemon_groups,
            free,
            offer_keys,
            by_req: FxHashMap::default(),
            by_offer_reqs: FxHashMap::default(),
            by_set: FxHashMap::default(),
        }
    }

    pub(crate) fn all_rows(&self) -> RowSet {
        row_set(self.rows.len(), |_| true)
    }

    /// Makes sure that the rows of a set are known; read them with [`Template::rows_of`].
    pub(crate) fn prepare(&mut self, tables: &mut Tables, set: SetId) {
        if self.by_set.contains_key(&set) {
            return;
        }
        let mut fitting = self.live.clone();
        for at in 0..tables.entries(set).len() {
            let (key, req) = tables.entries(set)[at];
            if !self.rows.columns.contains_key(&key) {
                continue;
            }
            let rows = self
                .by_req
                .entry(req)
                .or_insert_with(|| rows_meeting(tables, &self.rows, key, req));
            intersect(&mut fitting, rows);
        }
        let reqs: SmallVec<[Option<ReqId>; 4]> = self.offer_keys.iter().map(|key| tables.get(set, *key)).collect();
        let sold = self
            .by_offer_reqs
            .entry(reqs)
            .or_insert_with(|| rows_sold(tables, &self.rows, set));
        intersect(&mut fitting, sold);
        self.by_set.insert(set, fitting);
    }

    /// Rows that are compatible with a prepared set and have an available offering in it.
    pub(crate) fn rows_of(&self, set: SetId) -> &[u64] {
        self.by_set.get(&set).expect("the set was prepared")
    }

    /// Narrows `rows` to those that have room for `requests`; false if none is left.
    pub(crate) fn fit(&self, rows: &mut [u64], requests: &[i64]) -> bool {
        // A resource that came up after the world was made: no type has it.
        if requests.iter().skip(self.free.len()).any(|request| *request > 0) {
            return false;
        }
        for (column, request) in self.free.iter().zip(requests) {
            match column.at_least(*request, rows.len()) {
                Fit::All => {}
                Fit::Rows(fitting) => intersect(rows, fitting),
                Fit::None => return false,
            }
        }
        rows.iter().any(|word| *word != 0)
    }

    /// The most of a resource that any of these rows has.
    pub(crate) fn most_free(&self, dim: usize, rows: &[u64]) -> i64 {
        let Some(column) = self.free.get(dim) else { return 0 };
        let has = |at: usize| column.mask(at, rows.len()).iter().zip(rows).any(|(a, b)| a & b != 0);
        let (mut low, mut high) = (0, column.amounts.len());
        // The masks shrink with the amount, so the largest amount that still meets a row is found by halving.
        while high - low > 1 {
            let middle = (low + high) / 2;
            if has(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        column.amounts.get(low).copied().unwrap_or(0)
    }

    /// What a row has left after daemons.
    pub(crate) fn free_on(&self, row: usize) -> Amounts {
        let mut free = self.rows.allocatable[row].clone();
        free.resize(self.free.len(), 0);
        for group in self
            .daemon_groups
            .iter()
            .filter(|group| group.rows[row / 64] >> (row % 64) & 1 == 1)
        {
            for (free, overhead) in free.iter_mut().zip(&group.overhead) {
                *free -= overhead;
            }
        }
        free
    }

    /// Drops rows of daemon groups whose host ports are taken.
    pub(crate) fn without_port_conflicts(&self, rows: &mut [u64], wanted: &[HostPort]) {
        if wanted.is_empty() {
            return;
        }
        for group in self
            .daemon_groups
            .iter()
            .filter(|group| ports::conflict(&group.ports, wanted).is_some())
        {
            for (row, taken) in rows.iter_mut().zip(&group.rows) {
                *row &= !taken;
            }
        }
    }

    /// Drops rows whose type's capacity exceeds what the limits leave.
    pub(crate) fn within_limits(&self, rows: &mut [u64], limits: &Limits) {
        for (dim, left) in &limits.resources {
            self.retain(rows, |types, row| {
                let capacity = &types.capacity[types.type_of[row] as usize];
                i128::from(capacity.get(*dim).copied().unwrap_or(0)) <= *left
            });
        }
    }

    pub(crate) fn retain(&self, rows: &mut [u64], keep: impl Fn(&Rows, usize) -> bool) {
        for (at, word) in rows.iter_mut().enumerate() {
            for row in row_indices(&[*word]) {
                if !keep(&self.rows, at * 64 + row) {
                    *word &= !(1 << row);
                }
            }
        }
    }

    /// The types of these rows, ascending, each once.
    pub(crate) fn types_of(&self, rows: &[u64]) -> Vec<usize> {
        let mut types: Vec<usize> = row_indices(rows).map(|row| self.rows.type_of[row] as usize).collect();
        types.dedup();
        types
    }

    /// The largest capacity per dimension over the types of these rows: any of them could be launched.
    pub(crate) fn largest_capacity(&self, rows: &[u64]) -> Amounts {
        let mut largest = Amounts::new();
        for type_index in self.types_of(rows) {
            let capacity = &self.rows.capacity[type_index];
            if largest.len() < capacity.len() {
                largest.resize(capacity.len(), 0);
            }
            for (largest, own) in largest.iter_mut().zip(capacity) {
                *largest = (*largest).max(*own);
            }
        }
        largest
    }

    /// The first key whose minValues the types of these rows do not reach, with what is asked and what there is.
    pub(crate) fn unmet_min_values(&self, tables: &mut Tables, set: SetId, rows: &[u64]) -> Option<(KeyId, u32, u32)> {
        let demands: Vec<_> = tables
            .entries(set)
            .iter()
            .filter(|(_, req)| tables.req(*req).min_values.is_some())
            .copied()
            .collect();
        let unmet = demands.into_iter().filter_map(|(key, req)| {
            let need = tables.req(req).min_values.unwrap_or(0);
            let have = self.distinct_values(tables, key, req, rows);
            (have < need).then_some((key, need, have))
        });
        let unmet: Vec<_> = unmet.collect();
        unmet
            .into_iter()
            .min_by_key(|(key, _, _)| tables.names.key_name(*key).clone())
    }

    fn distinct_values(&self, tables: &mut Tables, key: KeyId, req: ReqId, rows: &[u64]) -> u32 {
        let Some(column) = self.rows.columns.get(&key) else {
            return 0;
        };
        let mut values = ValueSet::default();
        for own in self
            .types_of(rows)
            .into_iter()
            .filter_map(|type_index| column[type_index])
        {
            let allowed = tables.intersection(own, req);
            let allowed = tables.req(allowed);
            if !allowed.complement {
                values = values.union(&allowed.values);
            }
        }
        values.len() as u32
    }
}

enum Fit<'a> {
    All,
    Rows(&'a [u64]),
    None,
}

impl FreeColumn {
    fn mask(&self, at: usize, words: usize) -> &[u64] {
        &self.at_least[at * words..(at + 1) * words]
    }

    fn at_least(&self, request: i64, words: usize) -> Fit<'_> {
        let at = self.amounts.partition_point(|amount| *amount < request);
        if at == 0 {
            Fit::All
        } else if at == self.amounts.len() {
            Fit::None
        } else {
            Fit::Rows(self.mask(at, words))
        }
    }
}

pub(crate) fn intersect(rows: &mut [u64], other: &[u64]) {
    for (row, other) in rows.iter_mut().zip(other) {
        *row &= other;
    }
}

pub(crate) fn row_indices(rows: &[u64]) -> impl Iterator<Item = usize> + '_ {
    rows.iter().enumerate().flat_map(|(at, word)| {
        let mut word = *word;
        std::iter::from_fn(move || {
            if word == 0 {
                return None;
            }
            let bit = word.trailing_zeros() as usize;
            word &= word - 1;
            Some(at * 64 + bit)
        })
    })
}

fn row_set(count: usize, keep: impl Fn(usize) -> bool) -> RowSet {
    let mut rows = vec![0; count.div_ceil(64)].into_boxed_slice();
    for row in (0..count).filter(|row| keep(*row)) {
        rows[row / 64] |= 1 << (row % 64);
    }
    rows
}

fn rows_meeting(tables: &mut Tables, rows: &Rows, key: KeyId, req: ReqId) -> RowSet {
    let column = &rows.columns[&key];
    let types: Vec<bool> = column
        .iter()
        .map(|own| own.is_none_or(|own| tables.meets(own, req)))
        .collect();
    row_set(rows.len(), |row| types[rows.type_of[row] as usize])
}

fn rows_sold(tables: &mut Tables, rows: &Rows, set: SetId) -> RowSet {
    let mut sold = vec![0; rows.len().div_ceil(64)].into_boxed_slice();
    for offer in &rows.offers {
        if is_compatible_offer(tables, set, &offer.entries) {
            sold[offer.row as usize / 64] |= 1 << (offer.row % 64);
        }
    }
    sold
}

/// A node described by `set` could be bought as this offering.
pub(crate) fn is_compatible_offer(tables: &mut Tables, set: SetId, offer: &[(KeyId, ReqId)]) -> bool {
    offer.iter().all(|(key, req)| match tables.get(set, *key) {
        Some(have) => tables.meets(have, *req),
        None => tables.req(*req).is_negative() || tables.is_well_known(*key),
    })
}

/// Types by the daemons that would run on them, in the order of the first type of each group.
fn daemon_groups(tables: &mut Tables, template: &catalog::Template, daemons: &[Daemon]) -> Vec<DaemonGroup> {
    let rows = &template.rows;
    let candidates: Vec<&Daemon> = daemons
        .iter()
        .filter(|daemon| tolerates(&daemon.tolerations, &template.pool.taints))
        .collect();
    let mut groups: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    for type_index in 0..rows.types.len() {
        let mut running: Vec<usize> = Vec::new();
        for (at, daemon) in candidates.iter().enumerate() {
            let runs = daemon.terms.iter().any(|term| {
                term.allows_new_host(tables)
                    && tables.accept(template.set, term.set).is_ok()
                    && type_meets(tables, rows, type_index, term.set)
            });
            if runs {
                running.push(at);
            }
        }
        match groups.iter_mut().find(|(daemons, _)| *daemons == running) {
            Some((_, types)) => types.push(type_index),
            None => groups.push((running, vec![type_index])),
        }
    }
    let group = |(daemons, types): (Vec<usize>, Vec<usize>)| {
        let mut overhead = Amounts::new();
        let mut ports = Vec::new();
        for daemon in daemons {
            add(&mut overhead, &candidates[daemon].requests);
            ports.extend(candidates[daemon].ports.iter().copied());
        }
        let rows = row_set(rows.len(), |row| {
            types.binary_search(&(rows.type_of[row] as usize)).is_ok()
        });
        DaemonGroup { rows, overhead, ports }
    };
    groups.into_iter().map(group).collect()
}

fn type_meets(tables: &mut Tables, rows: &Rows, type_index: usize, set: SetId) -> bool {
    (0..tables.entries(set).len()).all(|at| {
        let (key, req) = tables.entries(set)[at];
        let own = rows.columns.get(&key).and_then(|column| column[type_index]);
        own.is_none_or(|own| tables.meets(own, req))
    })
}

fn free_columns(rows: &Rows, groups: &[DaemonGroup], dims: &Dims) -> (RowSet, Vec<FreeColumn>) {
    let count = rows.len();
    let words = count.div_ceil(64);
    let mut live = row_set(count, |_| true);
    let mut free = Vec::with_capacity(dims.len());
    for dim in 0..dims.len() {
        let mut own: Vec<i64> = rows
            .allocatable
            .iter()
            .map(|row| row.get(dim).copied().unwrap_or(0))
            .collect();
        for group in groups {
            let overhead = group.overhead.get(dim).copied().unwrap_or(0);
            for row in row_indices(&group.rows) {
                own[row] -= overhead;
                if own[row] < 0 {
                    live[row / 64] &= !(1 << (row % 64));
                }
            }
        }
        let mut amounts = own.clone();
        amounts.sort_unstable();
        amounts.dedup();
        let mut at_least = vec![0; amounts.len() * words];
        for (row, amount) in own.iter().enumerate() {
            let up_to = amounts.partition_point(|other| other <= amount);
            for at in 0..up_to {
                at_least[at * words + row / 64] |= 1 << (row % 64);
            }
        }
        free.push(FreeColumn { amounts, at_least });
    }
    (live, free)
}

fn limits(pool: &NodePool, dims: &Dims) -> Limits {
    let mut limits = Limits::default();
    for (name, quantity) in &pool.limits {
        if name == resources::NODES {
            limits.nodes = Some(milli_down(*quantity).div_euclid(1000));
        } else if let Some(dim) = dims.get(name) {
            limits.resources.push((dim, quantity.nanos().div_euclid(1_000_000)));
        }
    }
    limits
}
