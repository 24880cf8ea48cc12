//! The simulated cloud's clusters, pools and machines, and how they change with time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use http::Method;
use jiff::Timestamp;
use karpenter_cloud::clock::later;
use serde_json::{Value, json};

use super::{
    Happening,
    faults::{Cut, HttpFault, Loses},
    mks::Upgrade,
};
use crate::{
    catalogue::flavors,
    client::model::{Flavor, NewPool, PoolUpdate, Template},
    rights,
};

/// What the simulated cloud is like.
#[derive(Clone, Debug)]
pub struct World {
    pub region: String,
    /// Empty in one-zone regions.
    pub zones: Vec<String>,
    pub plan: String,
    pub flavors: Vec<Flavor>,
    pub delays: Delays,
    pub max_pools: usize,
    /// The project's cores; `None` is no limit.
    pub cores: Option<u32>,
    /// Nodes per page of a list; 0 is all.
    pub page: usize,
    /// How far the API's clock is ahead of ours, in seconds.
    pub skew: i64,
    /// Access rules of the key, as method and path; `*` at the end matches anything. Empty grants everything.
    pub rules: Vec<(String, String)>,
    pub kube_id: String,
    /// One-zone clusters that want pools to name their zone all the same.
    pub zone_mandatory: bool,
    /// What Nodes say their instance type is.
    pub instance_type_label: InstanceTypeLabel,
    /// Whether NVIDIA's operator makes GPUs a resource of Nodes.
    pub gpu_operator: bool,
    pub reserved_memory: ReservedMemory,
    /// Answers hold fields and states that no documentation knows.
    pub odd: bool,
    /// Whether pools can be told which nodes to remove.
    pub removes_by_name: bool,
}

/// What Nodes carry as `node.kubernetes.io/instance-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceTypeLabel {
    Name,
    /// The flavor's id: seen on some clusters.
    Id,
}

/// Which of OVHcloud's two formulas for the kubelet's memory is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservedMemory {
    /// 1590 MiB, whatever the flavor.
    Fixed,
    /// 1.5 GiB and 5 % of the memory.
    Proportional,
}

/// How long things take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delays {
    /// From the making of a pool until it can be read.
    pub visible: Duration,
    /// From a size until machines are listed.
    pub schedule: Duration,
    /// From there until the virtual machine exists.
    pub vm: Duration,
    /// From there until its Node is ready.
    pub boot: Duration,
    /// From a removal until the machine is gone.
    pub delete: Duration,
    /// Reads answer what was so long ago.
    pub stale: Duration,
}

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

fn quota_reached() -> (u16, Value) {
    let message = "instance quota of the project is reached";
    (
        403,
        json!({"class": "Client::Forbidden::QuotaReached", "message": message}),
    )
}

impl Default for World {
    /// A cluster of the Standard plan in a region of three zones, in which everything happens at once.
    fn default() -> Self {
        Self {
            region: "EU-WEST-PAR".to_owned(),
            zones: ["a", "b", "c"].map(|zone| format!("eu-west-par-{zone}")).into(),
            plan: "standard".to_owned(),
            flavors: flavors::all(),
            delays: Delays::default(),
            max_pools: 100,
            cores: None,
            page: 0,
            skew: 0,
            rules: Vec::new(),
            kube_id: super::KUBE_ID.to_owned(),
            zone_mandatory: false,
            instance_type_label: InstanceTypeLabel::Name,
            gpu_operator: true,
            reserved_memory: ReservedMemory::Fixed,
            odd: false,
            removes_by_name: true,
        }
    }
}

impl World {
    /// The rights that the provider needs, and no more.
    pub fn minimal_rules(kube_id: &str) -> Vec<(String, String)> {
        let rules = rights::minimum(super::SERVICE_NAME, kube_id).into_iter();
        rules.map(|rule| (rule.method, rule.path)).collect()
    }
}

impl Delays {
    /// About as long as the service takes: two minutes from the request to a ready node.
    pub fn realistic() -> Self {
        let seconds = Duration::from_secs;
        Self {
            visible: seconds(2),
            schedule: seconds(3),
            vm: seconds(20),
            boot: seconds(80),
            delete: seconds(30),
            stale: Duration::ZERO,
        }
    }
}

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

    fn id(&mut self) -> String {
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

    /// A new machine of a pool; its id, unless the pool is gone.
    pub(super) fn make_node(&mut self, pool: &str) -> Option<String> {
        let id = self.id();
        let now = self.now;
        let pool = self.pools.get(pool).cloned()?;
        let zone = pool.zones.first().cloned().unwrap_or_else(|| "nova".to_owned());
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

    fn is_sold_out(&self, flavor: &str, zone: &str) -> bool {
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

    fn end(&mut self, id: &str, named: bool) {
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

    /// Makes a pool, as the API would.
    ///
    /// # Errors
    /// Status and body of the refusal.
    pub fn create_pool(&mut self, request: &NewPool) -> Result<Value, (u16, Value)> {
        let bad = |message: &str| Err((400, json!({"class": "Client::BadRequest", "message": message})));
        let flavor = self.world.flavors.iter().find(|own| own.name == request.flavor_name);
        let Some(flavor) = flavor.filter(|own| own.is_available()) else {
            return bad("flavor is unknown or unavailable");
        };
        let is_monthly_ok = flavors::is_monthly_family(&flavor.name);
        let name_ok = request.name.len() >= 2
            && request.name.starts_with(|first: char| first.is_ascii_lowercase())
            && request
                .name
                .chars()
                .all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-');
        if !name_ok {
            return bad("name is invalid");
        }
        if self.pools.values().any(|pool| pool.name == request.name) {
            return Err((
                409,
                json!({"class": "Client::Conflict", "message": "a node pool of that name already exists"}),
            ));
        }
        if self.pools.len() >= self.world.max_pools {
            return Err((403, json!({"message": "You reached the maximum number of node pools"})));
        }
        let zones = &request.availability_zones;
        if self.world.zones.is_empty() && !self.world.zone_mandatory && !zones.is_empty() {
            return bad("this region has no availability zones");
        }
        if (!self.world.zones.is_empty() || self.world.zone_mandatory) && zones.is_empty() {
            return bad("availabilityZones is mandatory");
        }
        if zones.len() > 1
            || zones
                .iter()
                .any(|zone| !self.world.zones.is_empty() && !self.world.zones.contains(zone))
        {
            return bad("availabilityZones must name one zone of the region");
        }
        let cap = if request.anti_affinity { 5 } else { request.max_nodes };
        if request.desired_nodes > cap || request.desired_nodes > request.max_nodes {
            return bad("desiredNodes is more than maxNodes");
        }
        if request.monthly_billed && !is_monthly_ok {
            return bad("this flavor has no monthly billing");
        }
        let zone = zones.first().cloned().unwrap_or_else(|| "nova".to_owned());
        if self.sold_out_at_once && self.is_sold_out(&request.flavor_name, &zone) {
            return Err((
                412,
                json!({"message": format!("flavor {} is out of stock", request.flavor_name)}),
            ));
        }
        if self.over_quota_at_once {
            return Err(quota_reached());
        }
        let id = self.id();
        let now = self.now;
        let pool = PoolState {
            id: id.clone(),
            name: request.name.clone(),
            flavor: request.flavor_name.clone(),
            desired: request.desired_nodes,
            min: request.min_nodes,
            max: request.max_nodes,
            autoscale: request.autoscale,
            monthly: request.monthly_billed,
            anti_affinity: request.anti_affinity,
            zones: zones.clone(),
            template: request.template.clone(),
            status: "READY".to_owned(),
            created_at: now,
            visible_at: later(now, self.world.delays.visible),
            autoscaled_at: request.autoscale.then_some(now),
            due: vec![(later(now, self.world.delays.schedule), request.desired_nodes)],
            history: vec![(now, request.desired_nodes)],
        };
        let shown = self.shown(&pool);
        self.pools.insert(id, pool);
        Ok(shown)
    }

    /// Changes a pool, as the API would.
    ///
    /// # Errors
    /// Status and body of the refusal.
    pub fn update_pool(&mut self, id: &str, update: &PoolUpdate) -> Result<(), (u16, Value)> {
        let bad = |message: &str| Err((400, json!({"class": "Client::BadRequest", "message": message})));
        let now = self.now;
        let schedule = later(now, self.world.delays.schedule);
        let Some(pool) = self.pools.get(id).cloned() else {
            return Err((
                404,
                json!({"class": "Client::NotFound", "message": "no such node pool"}),
            ));
        };
        if pool.status == "DELETING" {
            return bad("the node pool is being deleted");
        }
        let max = update.max_nodes.unwrap_or(pool.max);
        let min = update.min_nodes.unwrap_or(pool.min);
        let desired = update.desired_nodes.unwrap_or(pool.desired);
        if desired > max || desired < min || (pool.anti_affinity && desired > 5) {
            return bad("desiredNodes must lie between minNodes and maxNodes");
        }
        if !update.nodes_to_remove.is_empty() && !self.world.removes_by_name {
            return bad("unknown property nodesToRemove");
        }
        if desired > pool.desired && self.over_quota_at_once {
            return Err(quota_reached());
        }
        let live = self.live(id);
        let mut victims = Vec::new();
        for name in &update.nodes_to_remove {
            let found = live.iter().find(|node| {
                node.id == *name
                    || node.name == *name
                    || node
                        .instance
                        .as_deref()
                        .is_some_and(|own| own == name || format!("openstack:///{own}") == *name)
            });
            match found {
                Some(node) => victims.push(node.id.clone()),
                None => return bad("nodesToRemove names a node that is not in the pool"),
            }
        }
        let zone = pool.zones.first().cloned().unwrap_or_else(|| "nova".to_owned());
        if desired > pool.desired && self.sold_out_at_once && self.is_sold_out(&pool.flavor, &zone) {
            return Err((
                412,
                json!({"message": format!("flavor {} is out of stock", pool.flavor)}),
            ));
        }
        for victim in &victims {
            self.end(victim, true);
        }
        let pool = self.pools.get_mut(id).expect("found above");
        pool.desired = desired;
        pool.min = min;
        pool.max = max;
        pool.autoscale = update.autoscale.unwrap_or(pool.autoscale);
        pool.autoscaled_at = pool.autoscale.then(|| pool.autoscaled_at.unwrap_or(now));
        pool.history.push((now, desired));
        let coming: u32 = pool.due.iter().map(|(_, count)| count).sum();
        let kept = live.len() - victims.len();
        let have = kept as u32 + coming;
        if desired > have {
            pool.due.push((schedule, desired - have));
        } else if desired < have {
            // What is not made yet goes first, then the newest.
            let mut surplus = have - desired;
            while surplus > 0 {
                let Some((at, count)) = pool.due.pop() else { break };
                let less = count.min(surplus);
                surplus -= less;
                if count > less {
                    pool.due.push((at, count - less));
                }
            }
            let newest: Vec<String> = live
                .iter()
                .rev()
                .map(|node| node.id.clone())
                .filter(|id| !victims.contains(id))
                .take(surplus as usize)
                .collect();
            for id in newest {
                self.unnamed_removals.push(id.clone());
                self.end(&id, false);
            }
        }
        Ok(())
    }

    pub(super) fn delete_pool(&mut self, id: &str) -> Result<(), (u16, Value)> {
        let Some(pool) = self.pools.get_mut(id) else {
            return Err((
                404,
                json!({"class": "Client::NotFound", "message": "no such node pool"}),
            ));
        };
        pool.status = "DELETING".to_owned();
        pool.due.clear();
        for node in self.live(id) {
            self.end(&node.id, false);
        }
        Ok(())
    }

    /// Deletes a machine and takes its place from its pool, as the API would.
    pub(super) fn delete_node(&mut self, id: &str) -> Result<(), (u16, Value)> {
        let Some(pool) = self.nodes.get(id).map(|node| node.pool.clone()) else {
            return Err((404, json!({"class": "Client::NotFound", "message": "no such node"})));
        };
        self.end(id, true);
        let now = self.now;
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.desired = pool.desired.saturating_sub(1);
            let desired = pool.desired;
            pool.history.push((now, desired));
        }
        Ok(())
    }

    /// What a pool says it does.
    fn status(&self, pool: &PoolState) -> String {
        if pool.status != "READY" {
            return pool.status.clone();
        }
        let nodes = || self.nodes.values().filter(|node| node.pool == pool.id);
        let is_growing = !pool.due.is_empty() || nodes().any(|node| node.status == "INSTALLING");
        let was_ready = nodes().any(|node| node.status == "READY");
        let status = if is_growing && !was_ready {
            "INSTALLING"
        } else if is_growing {
            "UPSCALING"
        } else if nodes().any(|node| node.status == "DELETING") {
            "DOWNSCALING"
        } else if self.world.odd {
            "CONTEMPLATING"
        } else {
            "READY"
        };
        status.to_owned()
    }

    /// A pool as reads show it.
    pub(super) fn shown(&self, pool: &PoolState) -> Value {
        let mut shown = self.documented(pool);
        if self.world.odd {
            shown["mood"] = json!({"level": 3, "because": ["weather"]});
        }
        shown
    }

    fn documented(&self, pool: &PoolState) -> Value {
        let nodes = self.nodes.values().filter(|node| node.pool == pool.id);
        let (current, ready) = nodes.fold((0, 0), |(all, ready), node| {
            (all + 1, ready + u32::from(node.status == "READY"))
        });
        let zones = (!pool.zones.is_empty()).then_some(&pool.zones);
        json!({
            "id": pool.id, "projectId": super::SERVICE_NAME, "name": pool.name, "flavor": pool.flavor,
            "desiredNodes": self.stale_size(pool), "minNodes": pool.min, "maxNodes": pool.max, "autoscale": pool.autoscale,
            "autoscaling": {"scaleDownUtilizationThreshold": 0.5, "scaleDownUnneededTimeSeconds": 600,
                            "scaleDownUnreadyTimeSeconds": 1200},
            "monthlyBilled": pool.monthly, "antiAffinity": pool.anti_affinity, "availabilityZones": zones,
            "attachFloatingIps": null, "template": pool.template, "status": self.status(pool),
            "sizeStatus": if current == pool.desired { "CAPACITY_OK" } else { "UNDER_CAPACITY" },
            "currentNodes": current, "availableNodes": ready, "upToDateNodes": current,
            "createdAt": pool.created_at.to_string(), "updatedAt": self.now.to_string(),
        })
    }

    /// The size as it was before the last writes, if reads are stale.
    fn stale_size(&self, pool: &PoolState) -> u32 {
        let seen = pool
            .history
            .iter()
            .rev()
            .find(|(at, _)| later(*at, self.world.delays.stale) <= self.now);
        seen.or(pool.history.first())
            .map_or(pool.desired, |(_, desired)| *desired)
    }

    pub(super) fn shown_node(&self, node: &SimNode) -> Value {
        json!({
            "id": node.id, "instanceId": node.instance, "nodePoolId": node.pool, "projectId": super::SERVICE_NAME,
            "name": node.name, "flavor": node.flavor, "version": node.version, "isUpToDate": true, "status": node.status,
            "createdAt": node.created_at.to_string(), "updatedAt": node.created_at.to_string(),
        })
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

    /// A pool that somebody else made, with machines.
    pub fn foreign_pool(&mut self, name: &str, size: u32) -> String {
        let request = NewPool {
            name: name.to_owned(),
            flavor_name: "b3-8".to_owned(),
            desired_nodes: size,
            min_nodes: 0,
            max_nodes: 100,
            autoscale: false,
            monthly_billed: false,
            anti_affinity: false,
            availability_zones: self.world.zones.first().cloned().into_iter().collect(),
            attach_floating_ips: None,
            template: Template::default(),
        };
        let pool = self.create_pool(&request).expect("a valid pool");
        pool["id"].as_str().expect("an id").to_owned()
    }

    /// A pool as the provider written in Go makes it, with machines.
    pub fn legacy_pool(&mut self, flavor: &str, size: u32) -> String {
        let zone = self.world.zones.first().cloned();
        let stem = format!("karpenter-{flavor}");
        let mut template = Template::default();
        let labels = [("managed-by", "karpenter"), ("karpenter.sh/registered", "true")];
        template.metadata.labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let request = NewPool {
            name: zone.as_ref().map_or(stem.clone(), |zone| format!("{stem}-{zone}")),
            flavor_name: flavor.to_owned(),
            desired_nodes: size,
            min_nodes: 0,
            max_nodes: 100,
            autoscale: false,
            monthly_billed: false,
            anti_affinity: false,
            availability_zones: zone.into_iter().collect(),
            attach_floating_ips: None,
            template,
        };
        let pool = self.create_pool(&request).expect("a valid pool");
        pool["id"].as_str().expect("an id").to_owned()
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
