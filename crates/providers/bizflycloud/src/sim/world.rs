//! What exists at the simulated cloud, as a function of the time.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use karpenter_cloud::clock::later;
use serde_json::{Value, json};

use super::{
    Fault, Often, Operation, SimOptions, SimServer, data,
    machine::{Change, Deletion, Fate, Machine, NicState},
};
use crate::{
    client::wire::Flavor,
    prices::{Prices, Purchase},
};

#[derive(Debug)]
pub(super) struct World {
    pub(super) options: SimOptions,
    pub(super) base: String,
    pub(super) password: String,
    pub(super) balance: i64,
    pub(super) expiry_key: Option<&'static str>,
    pub(super) hidden_services: Vec<&'static str>,
    /// Firewalls besides those that are always there.
    pub(super) more_firewalls: Vec<String>,
    /// What BKE's worker images are called; a new edition changes every id.
    pub(super) image_edition: &'static str,
    /// Pools of the BKE cluster that its own autoscaler scales.
    pub(super) scaled_pools: Vec<String>,
    pub(super) tokens: BTreeMap<String, Timestamp>,
    servers: BTreeMap<String, Machine>,
    data_disks: BTreeMap<String, String>,
    /// Plans of data disks that are not made by subscription.
    pub(super) volume_plans: BTreeMap<String, &'static str>,
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
    /// What the caller sent along, secrets left out.
    pub headers: BTreeMap<String, String>,
    pub body: Value,
    pub at: Timestamp,
    pub status: u16,
}

/// Something that costs money.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leak {
    Server { id: String, name: String },
    Disk { id: String, name: String },
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
            more_firewalls: Vec::new(),
            image_edition: "",
            scaled_pools: Vec::new(),
            tokens: BTreeMap::new(),
            servers: BTreeMap::new(),
            data_disks: BTreeMap::new(),
            volume_plans: BTreeMap::new(),
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

    pub(super) fn has(&self, fault: &Fault) -> bool {
        self.faults.iter().any(|(own, _)| own == fault)
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
        let listed = data::legacy_flavors().into_iter().chain(self.new_flavors());
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
        if text("billing_plan").starts_with("spot") && self.strike(|fault| *fault == Fault::NoSpot).is_some() {
            return Err((400, "billing_plan is invalid".to_owned()));
        }
        let servers = self.servers(now);
        let used = |of: fn(&SimServer) -> u64| servers.iter().map(of).sum::<u64>();
        let (vcpus, ram) = (used(|own| own.vcpus), used(|own| own.ram));
        let wanted = |key: &str| known[key].as_u64().unwrap_or_default();
        let over = self.strike(|fault| match fault {
            Fault::VcpuQuota(most) => vcpus + wanted("vcpus") > *most,
            Fault::RamQuota(most) => ram + wanted("ram") > *most,
            Fault::ServerQuota(most) => servers.len() as u64 >= *most,
            _ => false,
        });
        match over {
            Some(Fault::RamQuota(_)) => Err((403, "Quota exceeded for ram".to_owned())),
            Some(Fault::ServerQuota(_)) => Err((403, "Quota exceeded for instances".to_owned())),
            Some(_) => Err((403, "Quota exceeded for cores".to_owned())),
            None => Ok(()),
        }
    }

    fn begin(&mut self, order: Value, now: Timestamp) -> String {
        let volume = self.draw(15, 74);
        let build = self.draw(17, 33);
        let visible_at = later(now, self.options.volume_delay.unwrap_or(volume));
        let active_at = later(visible_at, self.options.build_delay.unwrap_or(build));
        let fate = match self
            .strike(|fault| matches!(fault, Fault::TaskFails(_) | Fault::ServerFails | Fault::TaskNeverReady))
        {
            Some(Fault::TaskFails(why)) => Fate::TaskFails(why),
            Some(Fault::ServerFails) => Fate::GoesIntoError,
            Some(Fault::TaskNeverReady) => Fate::TaskNeverReady,
            _ => Fate::Lives,
        };
        let late = match self.strike(|fault| matches!(fault, Fault::VisibleLate(_))) {
            Some(Fault::VisibleLate(by)) => by,
            _ => Duration::ZERO,
        };
        let (visible_at, active_at) = (later(visible_at, late), later(active_at, late));
        let (id, task) = (self.id("srv"), self.id("task"));
        let machine = Machine {
            nics: self.nics_of(&order),
            id: id.clone(),
            task: task.clone(),
            name: order["name"].as_str().unwrap_or_default().to_owned(),
            flavor: order["flavor"].as_str().unwrap_or_default().to_owned(),
            billing_plan: order["billing_plan"].as_str().unwrap_or_default().to_owned(),
            order,
            ordered_at: now,
            visible_at,
            active_at,
            deletion: None,
            fate,
            change: None,
            reboots: 0,
            gone_disks: Vec::new(),
        };
        self.servers.insert(id, machine);
        task
    }

    /// Firewalls of an order reach its LAN interfaces; the free public one is born without any.
    fn nics_of(&mut self, order: &Value) -> Vec<NicState> {
        let texts = |key: &str| -> Vec<String> { serde_json::from_value(order[key].clone()).unwrap_or_default() };
        let firewalls = texts("firewalls");
        let mut nics: Vec<NicState> = texts("vpc_network_ids")
            .into_iter()
            .map(|network| NicState {
                id: self.id("nic"),
                network,
                kind: "LAN",
                firewalls: firewalls.clone(),
            })
            .collect();
        if order["is_created_wan"] == Value::Bool(true) {
            nics.push(NicState {
                id: self.id("nic"),
                network: "wan".to_owned(),
                kind: "WAN",
                firewalls: Vec::new(),
            });
        }
        nics
    }

    pub(super) fn nic_list(&self, now: Timestamp) -> Vec<Value> {
        let gone_after = self.options.deletion_delay;
        let shown = self.servers.values().filter(|machine| machine.exists(now, gone_after));
        let nics = shown.flat_map(|machine| machine.nics.iter().map(move |nic| (machine, nic)));
        nics.map(|(machine, nic)| {
            json!({
                "id": nic.id, "name": "", "network_id": nic.network, "device_id": machine.id, "type": nic.kind,
                "billing_type": "free", "status": "ACTIVE", "security_groups": nic.firewalls,
            })
        })
        .collect()
    }

    pub(super) fn add_firewalls(&mut self, nic: &str, firewalls: &[String]) -> Option<()> {
        let mut nics = self.servers.values_mut().flat_map(|machine| &mut machine.nics);
        let nic = nics.find(|own| own.id == nic)?;
        for firewall in firewalls {
            if !nic.firewalls.contains(firewall) {
                nic.firewalls.push(firewall.clone());
            }
        }
        Some(())
    }

    /// Unplugs a server from a network behind everybody's back.
    pub(super) fn unplug(&mut self, id: &str, network: &str) {
        if let Some(machine) = self.servers.get_mut(id) {
            machine.nics.retain(|nic| nic.network != network);
        }
    }

    /// What is sold besides the old flavors; spot too, where the options say so.
    pub(super) fn new_flavors(&self) -> Vec<Value> {
        let mut flavors = data::new_flavors();
        if self.options.sells_spot {
            for flavor in &mut flavors {
                if let Some(plans) = flavor["billing_plans"].as_array_mut() {
                    plans.push(json!("spot"));
                }
            }
        }
        flavors
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

    pub(super) fn set_status(&mut self, id: &str, status: &str, now: Timestamp) {
        if let Some(machine) = self.servers.get_mut(id) {
            machine.change = Some(Change {
                during: status.to_owned(),
                until: now,
                then: status.to_owned(),
            });
        }
    }

    pub(super) fn set_billing_plan(&mut self, id: &str, plan: &str) {
        if let Some(machine) = self.servers.get_mut(id) {
            plan.clone_into(&mut machine.billing_plan);
        }
    }

    /// Whether the server can be deleted; listed disks go with it.
    pub(super) fn delete(&mut self, id: &str, disks: &[String], now: Timestamp) -> Option<()> {
        let gone_after = self.options.deletion_delay;
        let machine = self
            .servers
            .get_mut(id)
            .filter(|machine| machine.exists(now, gone_after))?;
        if machine.deletion.is_none() {
            machine.deletion = Some(Deletion {
                at: now,
                takes: disks.to_vec(),
            });
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
            .find(|machine| machine.disks().iter().any(|disk| disk == id) && machine.has_disk(id, now, gone_after));
        match machine {
            None => Err((404, "volume not found".to_owned())),
            Some(machine) if machine.exists(now, gone_after) => Err((409, "volume is in use".to_owned())),
            Some(machine) => {
                machine.gone_disks.push(id.to_owned());
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
                .any(|machine| machine.disks().iter().any(|disk| disk == id) && machine.has_disk(id, now, gone_after))
    }

    /// Begins an action on a server; another one meanwhile is refused.
    pub(super) fn act(&mut self, id: &str, body: &Value, now: Timestamp) -> Result<(), Refusal> {
        let gone_after = self.options.deletion_delay;
        let machine = self
            .servers
            .get_mut(id)
            .filter(|machine| machine.exists(now, gone_after))
            .ok_or_else(|| (404, "Không tìm thấy".to_owned()))?;
        let action = body["action"].as_str().unwrap_or_default();
        if action == "rename" {
            machine.name = body["new_name"].as_str().unwrap_or_default().to_owned();
            return Ok(());
        }
        if !machine.is_available(now) {
            return Err((409, "server is busy".to_owned()));
        }
        let (during, seconds, then) = match action {
            "start" => ("SHUTOFF", 10, "ACTIVE"),
            "stop" => ("ACTIVE", 5, "SHUTOFF"),
            "hard_reboot" | "soft_reboot" => ("HARD_REBOOT", 20, "ACTIVE"),
            _ => return Err((400, format!("no such action: {action}"))),
        };
        machine.reboots += u32::from(then == "ACTIVE");
        machine.change = Some(Change {
            during: during.to_owned(),
            until: later(now, Duration::from_secs(seconds)),
            then: then.to_owned(),
        });
        Ok(())
    }

    pub(super) fn server_list(&self, now: Timestamp) -> Vec<Value> {
        let gone_after = self.options.deletion_delay;
        let omitted: Vec<&str> = self
            .faults
            .iter()
            .filter_map(|(fault, _)| match fault {
                Fault::ListOmits(name) => Some(name.as_str()),
                _ => None,
            })
            .collect();
        let shown = self
            .servers
            .values()
            .filter(|machine| machine.exists(now, gone_after) && !omitted.contains(&machine.name.as_str()));
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
        if now < machine.active_at || machine.fate == Fate::TaskNeverReady {
            return Some(json!({"ready": false, "result": {"action": "create_server", "progress": 100}}));
        }
        let mut result = self.server_json(machine, now);
        result["success"] = json!(true);
        result["action"] = json!("create_server");
        Some(json!({"ready": true, "result": result}))
    }

    pub(super) fn volume_list(&self, now: Timestamp) -> Vec<Value> {
        let gone_after = self.options.deletion_delay;
        let are_late = self.has(&Fault::DisksShowLate);
        let shown = self
            .servers
            .values()
            .filter(|machine| !are_late || now >= machine.visible_at);
        let disks = shown.flat_map(|machine| {
            let there = machine
                .disks()
                .into_iter()
                .filter(|disk| machine.has_disk(disk, now, gone_after));
            there
                .map(|disk| machine.disk_json(&disk, now, gone_after))
                .collect::<Vec<_>>()
        });
        let mut volumes: Vec<Value> = disks.collect();
        volumes.extend(self.data_disks.iter().map(|(id, server)| {
            let machine = self.servers.get(server);
            let is_attached = machine.is_some_and(|machine| machine.exists(now, gone_after));
            json!({
                "id": id, "name": format!("pvc-{id}"), "status": if is_attached { "in-use" } else { "available" },
                "attachments": if is_attached { json!([{"server_id": server}]) } else { json!([]) },
                "bootable": false, "size": 10, "billing_plan": self.volume_plans.get(id).unwrap_or(&"saving_plan"),
            })
        }));
        volumes
    }

    fn server_json(&self, machine: &Machine, now: Timestamp) -> Value {
        let attached = self.data_disks.iter().filter(|(_, server)| **server == machine.id);
        let pod_disks: Vec<String> = attached.map(|(id, _)| id.clone()).collect();
        machine.server_json(now, &pod_disks)
    }

    /// What has been spent so far, by server id: each second at the price that the provider estimates.
    pub(super) fn costs(&self, now: Timestamp) -> BTreeMap<String, f64> {
        let listed: Vec<Value> = data::legacy_flavors().into_iter().chain(self.new_flavors()).collect();
        let cost = |machine: &Machine| {
            let listed = listed.iter().find(|own| own["name"] == machine.flavor.as_str());
            let flavor: Flavor = serde_json::from_value(listed?.clone()).ok()?;
            let zone = machine.order["availability_zone"].as_str().unwrap_or_default();
            let disk_type = machine.order["rootdisk"]["volume_type"].as_str().unwrap_or_default();
            let price = Prices::default().hourly(&Purchase {
                flavor: &flavor,
                zone,
                plan: &machine.billing_plan,
                disk_type: if disk_type.contains("HDD") { "HDD" } else { "SSD" },
                disk_gib: u32::try_from(machine.order["rootdisk"]["size"].as_u64()?).ok()?,
            });
            let end = machine.ended_at(self.options.deletion_delay).unwrap_or(now).min(now);
            let seconds = end.duration_since(machine.visible_at).as_secs_f64().max(0.0);
            Some(price * seconds / 3600.0)
        };
        let all = self.servers.values();
        all.map(|machine| (machine.id.clone(), cost(machine).unwrap_or_default()))
            .collect()
    }

    pub(super) fn servers(&self, now: Timestamp) -> Vec<SimServer> {
        let gone_after = self.options.deletion_delay;
        let listed: Vec<Value> = data::legacy_flavors().into_iter().chain(self.new_flavors()).collect();
        let shown = self.servers.values().filter(|machine| machine.exists(now, gone_after));
        shown
            .map(|machine| {
                let flavor = listed.iter().find(|own| own["name"] == machine.flavor.as_str());
                let number = |key: &str| flavor.and_then(|own| own[key].as_u64()).unwrap_or_default();
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                SimServer {
                    id: machine.id.clone(),
                    name: machine.name.clone(),
                    flavor: machine.flavor.clone(),
                    vcpus: number("vcpus"),
                    ram: number("ram"),
                    zone: text(&machine.order["availability_zone"]),
                    disk_gib: machine.order["rootdisk"]["size"].as_u64().unwrap_or_default(),
                    image_id: text(&machine.order["os"]["id"]),
                    metadata: serde_json::from_value(machine.order["metadata"].clone()).unwrap_or_default(),
                    user_data: text(&machine.order["user_data"]),
                    root_volume: machine.root_disk(),
                    created_at: machine.visible_at,
                    active_since: machine.is_up(now).then_some(machine.active_at),
                    reboots: machine.reboots,
                    terminating: machine.deletion.is_some(),
                }
            })
            .collect()
    }

    pub(super) fn leaks(&self, now: Timestamp) -> Vec<Leak> {
        let gone_after = self.options.deletion_delay;
        let mut leaks = Vec::new();
        for machine in self.servers.values() {
            let (id, name) = (machine.id.clone(), machine.name.clone());
            let will_live = machine.deletion.is_none() && !matches!(machine.fate, Fate::TaskFails(_));
            if machine.exists(now, gone_after) || will_live {
                leaks.push(Leak::Server { id, name });
                continue;
            }
            let left = machine
                .disks()
                .into_iter()
                .filter(|disk| machine.has_disk(disk, now, gone_after));
            leaks.extend(left.map(|id| Leak::Disk { id, name: name.clone() }));
        }
        leaks
    }

    /// The prefix of the only credential fields that are read, if there is one.
    pub(super) fn strict_credentials(&self) -> Option<&'static str> {
        self.faults.iter().find_map(|(fault, _)| match fault {
            Fault::StrictCredentials(prefix) => Some(*prefix),
            _ => None,
        })
    }

    /// Whether an injected fault answers this operation. Faults that strike later come closer with every request.
    pub(super) fn faulty_answer(&mut self, operation: Operation) -> Option<Fault> {
        let due = self.strike(|fault| matches!(fault, Fault::Hang { after: 0, .. }));
        if due.is_some() {
            return due;
        }
        for (fault, _) in &mut self.faults {
            if let Fault::Hang { after, .. } = fault {
                *after -= 1;
            }
        }
        self.strike(|fault| match fault {
            Fault::Http { operation: own, .. } | Fault::LoseAnswer(own) => *own == operation || *own == Operation::Any,
            Fault::Locked => operation == Operation::DeleteServer,
            _ => false,
        })
    }
}
