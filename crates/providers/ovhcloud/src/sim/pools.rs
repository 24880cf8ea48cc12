//! Makes, changes and deletes the simulated cloud's pools, and refuses as the API would.

use karpenter_cloud::clock::later;
use serde_json::{Value, json};

use super::state::{PoolState, SimState};
use crate::{
    catalogue::flavors,
    client::model::{NewPool, PoolUpdate, Template},
};

impl SimState {
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
        if !self.world.names_repeat && self.pools.values().any(|pool| pool.name == request.name) {
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
}

fn quota_reached() -> (u16, Value) {
    let message = "instance quota of the project is reached";
    (
        403,
        json!({"class": "Client::Forbidden::QuotaReached", "message": message}),
    )
}
