//! The simulated cloud's clusters, pools and machines, and how they change with time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use http::Method;
use jiff::Timestamp;
use karpenter_cloud::clock::later;
use serde_json::{Value, json};

use super::{Happening, faults::HttpFault};
use crate::{
    catalogue::flavors,
    client::model::{Flavor, NewPool, PoolUpdate, Template},
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
    /// Size that machines were not made for yet, and when they will be.
    due: Vec<(Timestamp, u32)>,
    /// What reads answered before, by time.
    history: Vec<(Timestamp, u32)>,
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
    number: u64,
    vm_at: Option<Timestamp>,
    boot_at: Option<Timestamp>,
    gone_at: Option<Timestamp>,
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
    /// Flavors and zones that are out of stock; an empty zone is all.
    pub sold_out: BTreeSet<(String, String)>,
    /// Says so at once instead of on the machine.
    pub sold_out_at_once: bool,
    pub everything_sold_out: bool,
    /// New machines never get a virtual machine.
    pub never_instance: bool,
    /// Removed machines never end.
    pub never_gone: bool,
    pub key_revoked: bool,
    /// The most pools that ever were.
    pub peak_pools: usize,
    /// Machines that a request removed without naming them, although they were listed.
    pub unnamed_removals: Vec<String>,
    /// Paths that do not exist.
    pub unknown_paths: Vec<String>,
    pub(super) tokens: BTreeMap<String, Timestamp>,
    pub(super) queries: u64,
    next: u64,
    now: Timestamp,
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
        }
    }
}

impl World {
    /// The rights that the provider needs, and no more.
    pub fn minimal_rules(kube_id: &str) -> Vec<(String, String)> {
        let project = format!("/cloud/project/{}", super::SERVICE_NAME);
        let kube = format!("{project}/kube/{kube_id}");
        [
            ("GET", kube.clone()),
            ("GET", format!("{kube}/nodepool")),
            ("GET", format!("{kube}/nodepool/*")),
            ("POST", format!("{kube}/nodepool")),
            ("PUT", format!("{kube}/nodepool/*")),
            ("DELETE", format!("{kube}/nodepool/*")),
            ("GET", format!("{kube}/flavors")),
            ("GET", format!("{project}/capabilities/kube/*")),
        ]
        .map(|(method, path)| (method.to_owned(), path))
        .into()
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
            sold_out: BTreeSet::new(),
            sold_out_at_once: false,
            everything_sold_out: false,
            never_instance: false,
            never_gone: false,
            key_revoked: false,
            peak_pools: 0,
            unnamed_removals: Vec::new(),
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
            if node.vm_at.is_some_and(|at| at <= now) {
                node.vm_at = None;
                node.instance = Some(format!("i-{id}"));
                node.boot_at = Some(later(now, self.world.delays.boot));
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

    fn make_node(&mut self, pool: &str) {
        let id = self.id();
        let now = self.now;
        let Some(pool) = self.pools.get(pool).cloned() else {
            return;
        };
        let zone = pool.zones.first().cloned().unwrap_or_else(|| "nova".to_owned());
        let is_sold_out = self.is_sold_out(&pool.flavor, &zone);
        let is_over_quota = self
            .world
            .cores
            .is_some_and(|cores| self.cores_used() + self.cores_of(&pool.flavor) > cores);
        let status = if is_sold_out {
            "FLAVOR_OUT_OF_STOCK_ERROR"
        } else if is_over_quota {
            "USER_QUOTA_ERROR"
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
            number: self.next,
            vm_at: comes.then(|| later(now, self.world.delays.vm)),
            boot_at: None,
            gone_at: None,
            id: id.clone(),
        };
        self.nodes.insert(id, node);
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

    fn cores_used(&self) -> u32 {
        let counted = self.nodes.values().filter(|node| !node.status.ends_with("_ERROR"));
        counted.map(|node| self.cores_of(&node.flavor)).sum()
    }

    /// Nodes of a pool that are not on their way out.
    fn live(&self, pool: &str) -> Vec<SimNode> {
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

    /// A pool as reads show it.
    pub(super) fn shown(&self, pool: &PoolState) -> Value {
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
            "attachFloatingIps": null, "template": pool.template, "status": pool.status,
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
            "name": node.name, "flavor": node.flavor, "version": "1.34.1", "isUpToDate": true, "status": node.status,
            "createdAt": node.created_at.to_string(), "updatedAt": node.created_at.to_string(),
        })
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
