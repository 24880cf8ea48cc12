//! What exists at the simulated cloud, as a function of the time.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use karpenter_cloud::clock::later;
use serde_json::{Value, json};

use super::{Fault, Often, Operation, SimOptions, SimServer, data};

#[derive(Debug)]
pub(super) struct World {
    pub(super) options: SimOptions,
    pub(super) base: String,
    pub(super) password: String,
    pub(super) balance: i64,
    pub(super) expiry_key: Option<&'static str>,
    pub(super) hidden_services: Vec<&'static str>,
    pub(super) tokens: BTreeMap<String, Timestamp>,
    servers: BTreeMap<String, Machine>,
    data_disks: BTreeMap<String, String>,
    faults: Vec<(Fault, Often)>,
    requests: Vec<Request>,
    random: u64,
    next_id: u64,
}

/// A request that the cloud got.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub body: Value,
    pub at: Timestamp,
    pub status: u16,
}

/// Something that costs money.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leak {
    Server { id: String, name: String },
    RootDisk { id: String, name: String },
}

/// A server from its order to its end.
#[derive(Clone, Debug)]
struct Machine {
    id: String,
    task: String,
    order: Value,
    flavor: String,
    ordered_at: Timestamp,
    /// When its disk is ready and the server shows.
    visible_at: Timestamp,
    active_at: Timestamp,
    deletion: Option<Deletion>,
    fate: Fate,
    status: Option<String>,
    billing_plan: String,
    /// The disk is no longer there.
    disk_gone: bool,
}

#[derive(Clone, Debug)]
struct Deletion {
    at: Timestamp,
    takes_disk: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Fate {
    Lives,
    /// Its task fails: it never shows, and its disk stays.
    TaskFails(String),
    GoesIntoError,
}

/// Why an order is refused: status and message.
pub(super) type Refusal = (u16, String);

/// Tasks are forgotten so long after they ended.
const TASK_MEMORY: Duration = Duration::from_secs(600);

impl World {
    pub(super) fn new(options: SimOptions, base: String) -> Self {
        Self {
            random: options.seed,
            options,
            base,
            password: super::PASSWORD.to_owned(),
            balance: 1_000_000,
            expiry_key: Some("expires_at"),
            hidden_services: Vec::new(),
            tokens: BTreeMap::new(),
            servers: BTreeMap::new(),
            data_disks: BTreeMap::new(),
            faults: Vec::new(),
            requests: Vec::new(),
            next_id: 1,
        }
    }

    pub(super) fn inject(&mut self, fault: Fault, often: Often) {
        self.faults.push((fault, often));
    }

    pub(super) fn heal(&mut self) {
        self.faults.clear();
    }

    /// The first fault that `matches`; it is used up if it strikes a limited number of times.
    pub(super) fn strike(&mut self, matches: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let index = self.faults.iter().position(|(fault, _)| matches(fault))?;
        let fault = self.faults[index].0.clone();
        if let Often::Times(left) = &mut self.faults[index].1 {
            *left -= 1;
            if *left == 0 {
                self.faults.remove(index);
            }
        }
        Some(fault)
    }

    pub(super) fn record(&mut self, request: Request) {
        self.requests.push(request);
    }

    pub(super) fn requests(&self) -> &[Request] {
        &self.requests
    }

    pub(super) fn expire_tokens(&mut self) {
        self.tokens.clear();
    }

    pub(super) fn id(&mut self, kind: &str) -> String {
        let id = format!("{kind}-{:06}", self.next_id);
        self.next_id += 1;
        id
    }

    /// A number of the range, from a small generator: the same seed tells the same story.
    fn draw(&mut self, from: u64, to: u64) -> Duration {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Duration::from_secs(from + (self.random >> 33) % (to - from + 1))
    }

    /// Takes an order of several servers, all or none; answers the ids of their tasks.
    pub(super) fn order(&mut self, orders: &[Value], now: Timestamp) -> Result<Vec<String>, Refusal> {
        for order in orders {
            self.check(order, now)?;
        }
        Ok(orders.iter().map(|order| self.begin(order.clone(), now)).collect())
    }

    fn check(&mut self, order: &Value, now: Timestamp) -> Result<(), Refusal> {
        let text = |key: &str| order[key].as_str().unwrap_or_default().to_owned();
        let (flavor, zone) = (text("flavor"), text("availability_zone"));
        let listed = data::legacy_flavors().into_iter().chain(data::new_flavors());
        let Some(known) = listed.into_iter().find(|own| own["name"] == flavor.as_str()) else {
            return Err((400, format!("Flavor {flavor} not found")));
        };
        if known["category"] != order["type"] {
            return Err((400, "type does not match the flavor's category".to_owned()));
        }
        for (key, wanted) in [
            ("name", "string"),
            ("rootdisk", "object"),
            ("os", "object"),
            ("metadata", "object"),
        ] {
            if order[key].is_null() {
                return Err((400, format!("{key} is required ({wanted})")));
            }
        }
        if order["rootdisk"]["volume_type"].as_str().is_none()
            || order["rootdisk"]["size"].as_u64().is_none_or(|size| size < 20)
        {
            return Err((400, "rootdisk is invalid".to_owned()));
        }
        let is_paid = self.strike(|fault| *fault == Fault::PaymentRequired).is_none();
        if !is_paid || self.balance < 0 {
            return Err((402, "Số dư tài khoản không đủ".to_owned()));
        }
        let sold_out = self.strike(|fault| {
            matches!(fault, Fault::SoldOut { flavor: own, zone: in_zone }
                if own.as_ref().is_none_or(|own| *own == flavor) && in_zone.as_ref().is_none_or(|own| *own == zone))
        });
        if sold_out.is_some() {
            return Err((400, format!("Flavor {flavor} is out of stock in {zone}")));
        }
        let used: u64 = self.servers(now).iter().map(|server| server.vcpus).sum();
        let wanted = known["vcpus"].as_u64().unwrap_or_default();
        let over = self.strike(|fault| matches!(fault, Fault::VcpuQuota(most) if used + wanted > *most));
        if over.is_some() {
            return Err((403, "Quota exceeded for cores".to_owned()));
        }
        Ok(())
    }

    fn begin(&mut self, order: Value, now: Timestamp) -> String {
        let volume = self.draw(15, 74);
        let build = self.draw(17, 33);
        let visible_at = later(now, self.options.volume_delay.unwrap_or(volume));
        let active_at = later(visible_at, self.options.build_delay.unwrap_or(build));
        let fate = match self.strike(|fault| matches!(fault, Fault::TaskFails(_) | Fault::ServerFails)) {
            Some(Fault::TaskFails(why)) => Fate::TaskFails(why),
            Some(Fault::ServerFails) => Fate::GoesIntoError,
            _ => Fate::Lives,
        };
        let (id, task) = (self.id("srv"), self.id("task"));
        let machine = Machine {
            id: id.clone(),
            task: task.clone(),
            flavor: order["flavor"].as_str().unwrap_or_default().to_owned(),
            billing_plan: order["billing_plan"].as_str().unwrap_or_default().to_owned(),
            order,
            ordered_at: now,
            visible_at,
            active_at,
            deletion: None,
            fate,
            status: None,
            disk_gone: false,
        };
        self.servers.insert(id, machine);
        task
    }

    pub(super) fn add_foreign(&mut self, name: &str, now: Timestamp) -> String {
        let order = json!({
            "name": name, "flavor": "nix.2c_4g", "type": "premium", "availability_zone": "HN1", "billing_plan": "on_demand",
            "os": {"id": "img-ubuntu-20", "type": "image"}, "rootdisk": {"size": 20, "volume_type": "PREMIUM-SSD1"},
            "metadata": {}, "user_data": "",
        });
        self.begin(order, now);
        let machine = self.servers.values_mut().next_back().expect("it was just made");
        machine.visible_at = now;
        machine.active_at = now;
        machine.id.clone()
    }

    pub(super) fn attach_data_disk(&mut self, server: &str, _now: Timestamp) -> String {
        let id = self.id("vol");
        self.data_disks.insert(id.clone(), server.to_owned());
        id
    }

    pub(super) fn vanish(&mut self, id: &str) {
        self.servers.remove(id);
    }

    pub(super) fn resize(&mut self, id: &str, flavor: &str) {
        if let Some(machine) = self.servers.get_mut(id) {
            flavor.clone_into(&mut machine.flavor);
        }
    }

    pub(super) fn set_status(&mut self, id: &str, status: &str) {
        if let Some(machine) = self.servers.get_mut(id) {
            machine.status = Some(status.to_owned());
        }
    }

    /// Whether the server can be deleted; listed disks go with it.
    pub(super) fn delete(&mut self, id: &str, disks: &[String], now: Timestamp) -> Option<()> {
        let gone_after = self.options.deletion_delay;
        let machine = self
            .servers
            .get_mut(id)
            .filter(|machine| machine.exists(now, gone_after))?;
        let takes_disk = disks.contains(&machine.disk());
        if machine.deletion.is_none() {
            machine.deletion = Some(Deletion { at: now, takes_disk });
        }
        self.data_disks.retain(|disk, _| !disks.contains(disk));
        Some(())
    }

    pub(super) fn delete_volume(&mut self, id: &str, now: Timestamp) -> Result<(), Refusal> {
        let gone_after = self.options.deletion_delay;
        if self.data_disks.remove(id).is_some() {
            return Ok(());
        }
        let machine = self
            .servers
            .values_mut()
            .find(|machine| machine.disk() == id && machine.has_disk(now, gone_after));
        match machine {
            None => Err((404, "volume not found".to_owned())),
            Some(machine) if machine.exists(now, gone_after) => Err((409, "volume is in use".to_owned())),
            Some(machine) => {
                machine.disk_gone = true;
                Ok(())
            }
        }
    }

    pub(super) fn volume_exists(&self, id: &str, now: Timestamp) -> bool {
        let gone_after = self.options.deletion_delay;
        self.data_disks.contains_key(id)
            || self
                .servers
                .values()
                .any(|machine| machine.disk() == id && machine.has_disk(now, gone_after))
    }

    pub(super) fn act(&mut self, id: &str, action: &str, now: Timestamp) -> Option<()> {
        let gone_after = self.options.deletion_delay;
        let machine = self
            .servers
            .get_mut(id)
            .filter(|machine| machine.exists(now, gone_after))?;
        match action {
            "start" | "hard_reboot" | "soft_reboot" => machine.status = None,
            "stop" => machine.status = Some("SHUTOFF".to_owned()),
            _ => {}
        }
        Some(())
    }

    pub(super) fn server_list(&self, now: Timestamp) -> Vec<Value> {
        let gone_after = self.options.deletion_delay;
        let shown = self.servers.values().filter(|machine| machine.exists(now, gone_after));
        shown.map(|machine| self.server_json(machine, now)).collect()
    }

    pub(super) fn server(&self, id: &str, now: Timestamp) -> Option<Value> {
        let machine = self.servers.get(id)?;
        machine
            .exists(now, self.options.deletion_delay)
            .then(|| self.server_json(machine, now))
    }

    pub(super) fn task(&self, id: &str, now: Timestamp) -> Option<Value> {
        let machine = self.servers.values().find(|machine| machine.task == id)?;
        if let Fate::TaskFails(why) = &machine.fate
            && now >= machine.visible_at
        {
            let result = json!({"action": "create_server", "progress": 100, "success": false, "message": why});
            return Some(json!({"ready": true, "result": result}));
        }
        if now >= later(machine.active_at, TASK_MEMORY) {
            return None;
        }
        if now < machine.active_at {
            return Some(json!({"ready": false, "result": {"action": "create_server", "progress": 100}}));
        }
        let mut result = self.server_json(machine, now);
        result["success"] = json!(true);
        result["action"] = json!("create_server");
        Some(json!({"ready": true, "result": result}))
    }

    pub(super) fn volume_list(&self, now: Timestamp) -> Vec<Value> {
        let gone_after = self.options.deletion_delay;
        let disks = self
            .servers
            .values()
            .filter(|machine| machine.has_disk(now, gone_after));
        let mut volumes: Vec<Value> = disks.map(|machine| machine.disk_json(now, gone_after)).collect();
        volumes.extend(self.data_disks.iter().map(|(id, server)| {
            json!({
                "id": id, "name": format!("pvc-{id}"), "status": "in-use", "attachments": [{"server_id": server}],
                "bootable": false, "size": 10,
            })
        }));
        volumes
    }

    fn server_json(&self, machine: &Machine, now: Timestamp) -> Value {
        let order = &machine.order;
        let status = match (&machine.status, &machine.fate) {
            (Some(status), _) => status.as_str(),
            (None, Fate::GoesIntoError) => "ERROR",
            _ if now < machine.active_at => "BUILD",
            _ => "ACTIVE",
        };
        let mut metadata = order["metadata"].clone();
        metadata["category"] = order["type"].clone();
        let mut volumes = vec![json!({
            "id": machine.disk(), "name": format!("{}_rootdisk", machine.name()), "size": order["rootdisk"]["size"],
            "volume_type": order["rootdisk"]["volume_type"], "type": null, "attached_type": "rootdisk",
            "volume_image_metadata": {"image_id": order["os"]["id"], "min_disk": "0"},
        })];
        let attached = self.data_disks.iter().filter(|(_, server)| **server == machine.id);
        volumes.extend(
            attached.map(|(id, _)| json!({"id": id, "name": format!("pvc-{id}"), "attached_type": "datadisk"})),
        );
        json!({
            "id": machine.id, "name": machine.name(), "status": status, "key_name": null,
            "created": machine.visible_at.to_string(), "metadata": metadata,
            "flavor": {"name": machine.flavor}, "flavor_name": machine.flavor, "category": order["type"],
            "OS-EXT-AZ:availability_zone": order["availability_zone"], "zone_name": order["availability_zone"],
            "region_name": "HaNoi", "OS-EXT-STS:task_state": machine.deletion.as_ref().map(|_| "deleting"),
            "os-extended-volumes:volumes_attached": volumes,
            "ip_addresses": {"LAN": [], "WAN_V4": [], "WAN_V6": []},
            "network_plan": order["network_plan"], "billing_plan": machine.billing_plan, "locked": false,
            "is_available": now >= machine.active_at,
        })
    }

    pub(super) fn servers(&self, now: Timestamp) -> Vec<SimServer> {
        let gone_after = self.options.deletion_delay;
        let listed: Vec<Value> = data::legacy_flavors().into_iter().chain(data::new_flavors()).collect();
        let shown = self.servers.values().filter(|machine| machine.exists(now, gone_after));
        shown
            .map(|machine| {
                let flavor = listed.iter().find(|own| own["name"] == machine.flavor.as_str());
                let number = |key: &str| flavor.and_then(|own| own[key].as_u64()).unwrap_or_default();
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let runs = machine.status.is_none() && machine.fate == Fate::Lives && now >= machine.active_at;
                SimServer {
                    id: machine.id.clone(),
                    name: machine.name(),
                    flavor: machine.flavor.clone(),
                    vcpus: number("vcpus"),
                    ram: number("ram"),
                    zone: text(&machine.order["availability_zone"]),
                    disk_gib: machine.order["rootdisk"]["size"].as_u64().unwrap_or_default(),
                    image_id: text(&machine.order["os"]["id"]),
                    metadata: serde_json::from_value(machine.order["metadata"].clone()).unwrap_or_default(),
                    user_data: text(&machine.order["user_data"]),
                    root_volume: machine.disk(),
                    active_since: runs.then_some(machine.active_at),
                    terminating: machine.deletion.is_some(),
                }
            })
            .collect()
    }

    pub(super) fn leaks(&self, now: Timestamp) -> Vec<Leak> {
        let gone_after = self.options.deletion_delay;
        let mut leaks = Vec::new();
        for machine in self.servers.values() {
            let (id, name) = (machine.id.clone(), machine.name());
            if machine.exists(now, gone_after) || (machine.fate == Fate::Lives && machine.deletion.is_none()) {
                leaks.push(Leak::Server { id, name });
            } else if machine.has_disk(now, gone_after) {
                leaks.push(Leak::RootDisk {
                    id: machine.disk(),
                    name,
                });
            }
        }
        leaks
    }

    /// Whether an injected fault answers this operation.
    pub(super) fn faulty_answer(&mut self, operation: Operation) -> Option<Fault> {
        self.strike(|fault| {
            matches!(fault, Fault::Http { operation: own, .. } | Fault::LoseAnswer(own)
                if *own == operation || *own == Operation::Any)
        })
    }
}

impl Machine {
    fn name(&self) -> String {
        self.order["name"].as_str().unwrap_or_default().to_owned()
    }

    fn disk(&self) -> String {
        format!("root-{}", self.id)
    }

    fn exists(&self, now: Timestamp, gone_after: Duration) -> bool {
        let shows = now >= self.visible_at && !matches!(self.fate, Fate::TaskFails(_));
        shows
            && self
                .deletion
                .as_ref()
                .is_none_or(|deletion| now < later(deletion.at, gone_after))
    }

    fn has_disk(&self, now: Timestamp, gone_after: Duration) -> bool {
        if self.disk_gone {
            return false;
        }
        match &self.deletion {
            Some(deletion) if deletion.takes_disk => now < later(deletion.at, gone_after),
            Some(_) | None => true,
        }
    }

    fn disk_json(&self, now: Timestamp, gone_after: Duration) -> Value {
        let exists = self.exists(now, gone_after);
        let status = if now < self.visible_at {
            "creating"
        } else if exists {
            "in-use"
        } else {
            "available"
        };
        let attachments = if exists {
            json!([{"server_id": self.id, "device": "/dev/vda"}])
        } else {
            json!([])
        };
        // Volumes tell their time without a zone.
        let created = self.ordered_at.to_string().trim_end_matches('Z').to_owned();
        json!({
            "id": self.disk(), "name": format!("{}_rootdisk", self.name()), "size": self.order["rootdisk"]["size"],
            "volume_type": self.order["rootdisk"]["volume_type"], "status": status, "attachments": attachments,
            "bootable": "true", "created_at": created, "snapshot_id": null,
        })
    }
}
