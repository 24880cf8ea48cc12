//! The simulated cloud's clusters, pools and machines, and how they change with time.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use jiff::Timestamp;
use karpenter_cloud::clock::later;
use serde_json::Value;

use super::{
    Happening,
    faults::{Cut, HttpFault, Loses},
    mks::Upgrade,
    world::World,
};
use crate::client::model::Template;

/// A pool of the simulated cloud.
#[derive(Clone, Debug)]
pub struct PoolState {
    pub id: String,
    pub name: String,
    pub flavor: String,
    pub desired: u32,
    pub min: u32,
    pub max: u32,
    pub autoscale: bool,
    pub monthly: bool,
    pub anti_affinity: bool,
    pub zones: Vec<String>,
    pub template: Template,
    pub status: String,
    pub created_at: Timestamp,
    pub visible_at: Timestamp,
    /// When OVHcloud's own autoscaler was switched on, or last did something.
    pub(super) autoscaled_at: Option<Timestamp>,
    /// Size that machines were not made for yet, and when they will be.
    pub(super) due: Vec<(Timestamp, u32)>,
    /// What reads answered before, by time.
    pub(super) history: Vec<(Timestamp, u32)>,
}

/// A machine of the simulated cloud.
#[derive(Clone, Debug)]
pub struct SimNode {
    pub id: String,
    pub pool: String,
    pub name: String,
    pub flavor: String,
    pub zone: String,
    pub instance: Option<String>,
    pub status: String,
    pub created_at: Timestamp,
    /// Whether a request that removed it named it.
    pub named: bool,
    pub version: String,
    pub(super) number: u64,
    vm_at: Option<Timestamp>,
    pub(super) boot_at: Option<Timestamp>,
    gone_at: Option<Timestamp>,
}

/// How far a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    Whole,
    Lost(Loses),
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub at: Timestamp,
    pub method: Method,
    pub path: String,
    pub body: Value,
    pub status: u16,
    pub signed: bool,
    /// The consumer key that it was made with.
    pub consumer: Option<String>,
}

/// Everything.
#[derive(Debug)]
pub struct SimState {
    pub world: World,
    pub pools: BTreeMap<String, PoolState>,
    pub nodes: BTreeMap<String, SimNode>,
    pub cluster_status: String,
    pub faults: Vec<HttpFault>,
    pub requests: Vec<Recorded>,
    /// Where the wire is cut, if it is.
    pub cut: Option<Cut>,
    /// Whether a request met the cut.
    pub is_cut: bool,
    /// Flavors and zones that are out of stock; an empty zone is all.
    pub sold_out: BTreeSet<(String, String)>,
    /// How many machines of a flavor are left in a zone.
    pub stock: BTreeMap<(String, String), u32>,
    /// Says so at once instead of on the machine.
    pub sold_out_at_once: bool,
    /// Says at once that the quota is used up.
    pub over_quota_at_once: bool,
    pub everything_sold_out: bool,
    /// New machines never get a virtual machine.
    pub never_instance: bool,
    /// A webhook of the user keeps MKS from making machines.
    pub webhook_blocks: bool,
    /// New machines break before they have a virtual machine.
    pub broken: bool,
    /// Removed machines never end.
    pub never_gone: bool,
    pub key_revoked: bool,
    pub key_expires: Option<Timestamp>,
    /// The most pools that ever were.
    pub peak_pools: usize,
    /// Machines that a request removed without naming them, although they were listed.
    pub unnamed_removals: Vec<String>,
    /// Machines that OVHcloud's own autoscaler took.
    pub autoscaler_removals: Vec<String>,
    /// Flavors that the region has and the cluster may not use.
    pub cluster_lacks: Vec<String>,
    /// Consumer keys that are good besides the usual one.
    pub more_keys: Vec<String>,
    /// Paths that do not exist.
    pub unknown_paths: Vec<String>,
    pub(super) tokens: BTreeMap<String, Timestamp>,
    pub(super) queries: u64,
    pub(super) upgrade: Option<Upgrade>,
    next: u64,
    pub(super) now: Timestamp,
}

const BLOCKED: &str = "USER_WEBHOOK_PREVENTING_OPERATIONS_ERROR";

impl SimState {
    pub(super) fn new(world: World, now: Timestamp) -> Self {
        Self {
            world,
            pools: BTreeMap::new(),
            nodes: BTreeMap::new(),
            cluster_status: "READY".to_owned(),
            faults: Vec::new(),
            requests: Vec::new(),
            cut: None,
            is_cut: false,
            sold_out: BTreeSet::new(),
            stock: BTreeMap::new(),
            sold_out_at_once: false,
            over_quota_at_once: false,
            everything_sold_out: false,
            never_instance: false,
            webhook_blocks: false,
            broken: false,
            never_gone: false,
            key_revoked: false,
            key_expires: None,
            peak_pools: 0,
            unnamed_removals: Vec::new(),
            autoscaler_removals: Vec::new(),
            upgrade: None,
            cluster_lacks: Vec::new(),
            more_keys: Vec::new(),
            unknown_paths: Vec::new(),
            tokens: BTreeMap::new(),
            queries: 0,
            next: 0,
            now,
        }
    }

    pub(super) fn id(&mut self) -> String {
        self.next += 1;
        format!("{:08x}-0000-4000-8000-{:012x}", self.next, self.next)
    }

    /// Lets everything happen that is due.
    pub(super) fn advance(&mut self, now: Timestamp) -> Vec<Happening> {
        self.now = self.now.max(now);
        let mut happenings = Vec::new();
        let pools: Vec<String> = self.pools.keys().cloned().collect();
        for id in pools {
            let due: u32 = {
                let pool = self.pools.get_mut(&id).expect("listed a moment ago");
                let due = pool
                    .due
                    .iter()
                    .filter(|(at, _)| *at <= now)
                    .map(|(_, count)| count)
                    .sum();
                pool.due.retain(|(at, _)| *at > now);
                due
            };
            for _ in 0..due {
                self.make_node(&id);
            }
        }
        let ids: Vec<String> = self.nodes.keys().cloned().collect();
        for id in ids {
            let node = self.nodes.get_mut(&id).expect("listed a moment ago");
            if node.gone_at.is_some_and(|at| at <= now) {
                let node = self.nodes.remove(&id).expect("found a moment ago");
                happenings.push(Happening::Gone(Box::new(node)));
                continue;
            }
            if node.status == BLOCKED && !self.webhook_blocks {
                node.status = "INSTALLING".to_owned();
                node.vm_at = Some(later(now, self.world.delays.vm));
            }
            if let Some(at) = node.vm_at.filter(|at| *at <= now) {
                node.vm_at = None;
                node.instance = Some(format!("i-{id}"));
                node.boot_at = Some(later(at, self.world.delays.boot));
            }
            if node.boot_at.is_some_and(|at| at <= now) {
                node.boot_at = None;
                node.status = "READY".to_owned();
                let node = node.clone();
                if let Some(pool) = self.pools.get(&node.pool) {
                    happenings.push(Happening::Booted(Box::new(node), Box::new(pool.clone())));
                }
            }
        }
        self.go_on_upgrading();
        self.autoscale();
        let empty: Vec<String> = self
            .pools
            .values()
            .filter(|pool| pool.status == "DELETING" && !self.nodes.values().any(|node| node.pool == pool.id))
            .map(|pool| pool.id.clone())
            .collect();
        for id in empty {
            self.pools.remove(&id);
        }
        self.peak_pools = self.peak_pools.max(self.pools.len());
        happenings
    }

    /// When something happens next although nobody asks.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let pools = self.pools.values().flat_map(|pool| pool.due.iter().map(|(at, _)| *at));
        let nodes = self
            .nodes
            .values()
            .flat_map(|node| [node.vm_at, node.boot_at, node.gone_at]);
        let all = pools.chain(nodes.flatten()).chain(self.next_of_mks());
        // What is overdue waits for something else than time.
        all.filter(|at| *at > self.now).min()
    }

    /// A new machine of a pool; its id, unless the pool is gone.
    pub(super) fn make_node(&mut self, pool: &str) -> Option<String> {
        let id = self.id();
        let now = self.now;
        let pool = self.pools.get(pool).cloned()?;
        // One-zone regions call theirs "nova", whatever pools had to say.
        let zone = pool.zones.first().filter(|_| !self.world.zones.is_empty());
        let zone = zone.cloned().unwrap_or_else(|| "nova".to_owned());
        let is_sold_out = self.is_sold_out(&pool.flavor, &zone) || !self.take_stock(&pool.flavor, &zone);
        let is_over_quota = self
            .world
            .cores
            .is_some_and(|cores| self.cores_used() + self.cores_of(&pool.flavor) > cores);
        let status = if is_sold_out {
            "FLAVOR_OUT_OF_STOCK_ERROR"
        } else if is_over_quota {
            "USER_QUOTA_ERROR"
        } else if self.webhook_blocks {
            BLOCKED
        } else if self.broken {
            "ERROR"
        } else {
            "INSTALLING"
        };
        let comes = status == "INSTALLING" && !self.never_instance;
        let mut stem = pool.name.clone();
        stem.truncate(30);
        let node = SimNode {
            name: format!("{stem}-node-{:06x}", self.next),
            pool: pool.id.clone(),
            flavor: pool.flavor.clone(),
            zone,
            instance: None,
            status: status.to_owned(),
            created_at: now,
            named: false,
            version: "1.34.1".to_owned(),
            number: self.next,
            vm_at: comes.then(|| later(now, self.world.delays.vm)),
            boot_at: None,
            gone_at: None,
            id: id.clone(),
        };
        self.nodes.insert(id.clone(), node);
        Some(id)
    }

    /// Takes one of what is left of a flavor. False if nothing is.
    fn take_stock(&mut self, flavor: &str, zone: &str) -> bool {
        match self.stock.get_mut(&(flavor.to_owned(), zone.to_owned())) {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        }
    }

    pub(super) fn is_sold_out(&self, flavor: &str, zone: &str) -> bool {
        let has = |zone: &str| self.sold_out.contains(&(flavor.to_owned(), zone.to_owned()));
        self.everything_sold_out || has(zone) || has("")
    }

    fn cores_of(&self, flavor: &str) -> u32 {
        self.world
            .flavors
            .iter()
            .find(|own| own.name == flavor)
            .map_or(0, |own| own.vcpus)
    }

    pub(super) fn cores_used(&self) -> u32 {
        let counted = self.nodes.values().filter(|node| !node.status.ends_with("_ERROR"));
        counted.map(|node| self.cores_of(&node.flavor)).sum()
    }

    /// Nodes of a pool that are not on their way out.
    pub(super) fn live(&self, pool: &str) -> Vec<SimNode> {
        let mut live: Vec<SimNode> = self
            .nodes
            .values()
            .filter(|node| node.pool == pool && node.status != "DELETING")
            .cloned()
            .collect();
        live.sort_by_key(|node| node.number);
        live
    }

    pub(super) fn end(&mut self, id: &str, named: bool) {
        let (delay, stays, now) = (self.world.delays.delete, self.never_gone, self.now);
        if let Some(node) = self.nodes.get_mut(id) {
            node.status = "DELETING".to_owned();
            node.named = named;
            node.boot_at = None;
            node.vm_at = None;
            node.gone_at = (!stays).then(|| later(now, delay));
        }
    }

    /// MKS takes a machine for reasons of its own; the pool keeps its size.
    pub(super) fn end_unasked(&mut self, id: &str) {
        self.end(id, true);
    }

    /// A machine that was on its way out comes back.
    pub fn resurrect(&mut self, id: &str) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.status = "READY".to_owned();
            node.gone_at = None;
        }
        let pool = self.nodes.get(id).map(|node| node.pool.clone());
        if let Some(pool) = pool.and_then(|pool| self.pools.get_mut(&pool)) {
            pool.desired += 1;
            let (now, desired) = (self.now, pool.desired);
            pool.history.push((now, desired));
        }
    }

    /// How far a request gets.
    pub(super) fn reach(&mut self) -> Wire {
        let Some(cut) = &mut self.cut else { return Wire::Whole };
        if self.is_cut {
            return Wire::Lost(Loses::TheRequest);
        }
        if cut.after > 0 {
            cut.after -= 1;
            return Wire::Whole;
        }
        self.is_cut = true;
        Wire::Lost(cut.loses)
    }

    /// Joins the wire again.
    pub fn mend(&mut self) {
        self.cut = None;
        self.is_cut = false;
    }

    // === what tests look at ===

    /// Provider IDs of all machines that exist and are not on their way out.
    pub fn machines(&self) -> Vec<String> {
        let live = self.nodes.values().filter(|node| node.status != "DELETING");
        live.filter_map(|node| Some(format!("openstack:///{}", node.instance.as_ref()?)))
            .collect()
    }

    pub fn pool_named(&self, name: &str) -> Option<&PoolState> {
        self.pools.values().find(|pool| pool.name == name)
    }

    /// Requests of a method whose path contains `part`.
    pub fn requests_of(&self, method: &Method, part: &str) -> Vec<Recorded> {
        let own = self
            .requests
            .iter()
            .filter(|own| own.method == *method && own.path.contains(part));
        own.cloned().collect()
    }

    /// A machine vanishes.
    pub fn vanish(&mut self, provider_id: &str) {
        let found = self.nodes.values().find(|node| {
            node.instance
                .as_ref()
                .is_some_and(|own| format!("openstack:///{own}") == provider_id)
        });
        let Some((id, pool)) = found.map(|node| (node.id.clone(), node.pool.clone())) else {
            return;
        };
        self.nodes.remove(&id);
        // Whoever took it away took its place, too.
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.desired = pool.desired.saturating_sub(1);
            let desired = pool.desired;
            pool.history.push((self.now, desired));
        }
    }

    /// Gives a machine another status.
    pub fn set_status(&mut self, node: &str, status: &str) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.status = status.to_owned();
        }
    }
}
