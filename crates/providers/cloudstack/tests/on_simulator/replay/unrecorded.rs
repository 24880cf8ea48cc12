//! What happened to the recorded server between the recorded requests: settings, faults, and things made without a trace.

use std::time::Duration;

use karpenter_cloudstack::sim::MachineState;
use serde_json::{Value, json};

use super::{
    Replay,
    recordings::{self, Exchange, ZONE_A, ZONE_B, ZONE_SG},
};

const TEMPLATE: &str = "959c4f53-e0d5-11f1-9142-02fc00000001";
const TINY: &str = "849ed855-2a39-451c-9a68-b394aae794ee";
const NET: &str = "60f17002-5871-4a3b-a23b-eb7341e38003";
const DATA_10: &str = "50566ed7-7dae-4199-8a83-e291ddd8b539";
const DATA_CUSTOM: &str = "68763720-c25a-4e20-b579-30902ac57923";
/// The limits that the recorded account had, which are the server's defaults.
const LIMITS: [(&str, i64); 6] = [
    ("user_vm", 20),
    ("cpu", 40),
    ("memory", 40960),
    ("volume", 20),
    ("primary_storage", 200),
    ("gpu", 20),
];

const UNLIMITED: [(&str, i64); 6] = [
    ("user_vm", -1),
    ("cpu", -1),
    ("memory", -1),
    ("volume", -1),
    ("primary_storage", -1),
    ("gpu", -1),
];

impl Replay {
    /// Brings the server to the state in which the exchange was recorded.
    pub(crate) async fn before(&mut self, exchange: &Exchange) {
        let simulator = self.simulator.clone();
        match (exchange.file.as_str(), exchange.title.as_str()) {
            ("capabilities", "ordinary user") => self.limit(&LIMITS),
            ("networks", "createNetwork isolated, ordinary user") => self.offer_networks(),
            ("networks", "ordinary user, isolated networks are Allocated") => self.add_network("np-net-b"),
            ("deploy-errors", "disabled zone, ordinary user") => self.set_zone("Disabled"),
            ("list-vms", "all of the account, default details") => self.set_zone("Enabled"),
            ("volumes-nics", "add a NIC") => self.add_network("np-net2"),
            ("limits", title) if title.starts_with("updateResourceLimit") => {
                simulator.operate(|operator| operator.lift_domain_limits());
                self.limit(&UNLIMITED);
            }
            ("errors", "wrong secret key") => {
                simulator.operate(|operator| operator.lift_domain_limits());
                self.limit(&UNLIMITED);
            }
            ("errors", "disabled user") => simulator.operate(|operator| operator.disable("kuser2")),
            ("errors", "enabled again") => simulator.operate(|operator| operator.enable("kuser2")),
            ("zones-available", "one zone disabled, ordinary user without VMs") => self.set_zone("Disabled"),
            ("projects", "createProject") => self.set_zone("Enabled"),
            ("projects", "deploy in the project") => self.add_project_network(),
            ("destroy", "expunge=true, ordinary user") => {
                self.expunge("np-data");
                self.deploy("np-d1", "5c2e3b51-f222-493d-aec2-21196f1748b9", &[]).await;
                self.deploy("np-d2", "c8dc2ca3-0cd1-4e32-be86-c1ee435b7a43", &[]).await;
                self.deploy("np-d3", "98fe8101-562c-4f73-b7c0-e1f6c7f3ca81", &[]).await;
                self.deploy("np-d6", "b5be6b21-09a3-4af3-9510-376a46c34b89", &[]).await;
            }
            ("destroy", "destroy") => {
                let id = self.ids.get("b5be6b21-09a3-4af3-9510-376a46c34b89");
                simulator.operate(|operator| operator.machine(&id).expect("it exists").delete_protection = false);
            }
            ("destroy", "destroy with one of two data disks in volumeids") => self.deploy_with_disks().await,
            ("name-race", "concurrent deploy 2 of 4" | "concurrent deploy 4 of 4") => {
                simulator.operate(|operator| operator.settings().name_race = true);
            }
            ("name-race", "concurrent deploy 1 of 4") => {
                simulator.operate(|operator| operator.settings().name_race = false);
            }
            ("faults", "deploy whose start takes 9 s") => {
                // Earlier tries of the recording.
                for number in 1..=5 {
                    self.deploy(&format!("np-try{number}"), &format!("try {number}"), &[])
                        .await;
                }
            }
            ("faults", "VM Starting with its pending job") => self.clock.advance(Duration::from_secs(1)),
            ("faults", "deploy whose start fails on every host, ordinary user") => {
                simulator.operate(|operator| operator.settings().starts_fail = true);
            }
            ("faults", "start of a stopped VM fails") => {
                self.stop("np-custom").await;
            }
            ("faults", "start afterwards") => simulator.operate(|operator| operator.settings().starts_fail = false),
            ("faults", "stop fails on the host") => {
                self.deploy("np-stopfail2", "00d7b4fa-d095-4d41-8e96-8b6bb0526af2", &[])
                    .await;
                simulator.operate(|operator| operator.settings().stops_fail = true);
            }
            ("faults", "destroy afterwards") => simulator.operate(|operator| operator.settings().stops_fail = false),
            ("own-template", "createTemplate from a root volume") => {
                let id = self.stop("np-custom2").await;
                let root = self.volumes(&id, "ROOT").await.remove(0);
                self.ids.insert("5e6ba2de-84b2-4636-a1c5-d9c87497cf7b", &root);
            }
            ("server-restart", "job after the restart (1)") => {
                self.clock.advance(Duration::from_secs(1));
                simulator.operate(|operator| operator.restart_management_server());
            }
            ("throttling", "listCapabilities announces the limit") => {
                simulator.operate(|operator| operator.settings().throttling = Some((Duration::from_secs(1), 6)));
            }
            ("throttling", "getApiLimit" | "request 1 in quick succession") => {
                self.clock.advance(Duration::from_secs(2));
            }
            ("enforcement", "list without signatureversion=3") => {
                simulator.operate(|operator| operator.settings().enforce_post_and_timestamps = true);
            }
            ("page-size", "no paging parameters: the list stops at default.page.size") => {
                simulator.operate(|operator| operator.settings().page_size = 10);
            }
            ("template-not-in-zone", "the template in that zone") => {
                self.add_zone();
                self.fail_to_deploy("np-sg1").await;
                self.fail_to_deploy("np-sg2").await;
            }
            ("security-group-zone", "the zone") => self.prepare_groups(),
            ("background-expunge", "VM removed by the expunge thread, by id, ordinary user") => {
                // The thread had come by before the last failures.
                self.expunge("np-d6");
                let machines = self.simulator.machines();
                let known = machines
                    .iter()
                    .find(|own| own.name == "np-sg1")
                    .expect("it exists")
                    .number;
                let old = machines
                    .iter()
                    .filter(|own| own.state == MachineState::Error && own.number < known);
                for own in old {
                    simulator.operate(|operator| operator.expunge(&own.id));
                }
            }
            ("volumes-attach", "attachVolume") => {
                let id = "0f718ae5-0cc9-420f-a3f1-e0d31da759f7";
                self.deploy("np-vol", id, &[]).await;
                let root = self.volumes(id, "ROOT").await.remove(0);
                self.ids.insert("1c82f58b-4957-43d6-84c5-4661317eb946", &root);
            }
            _ => {}
        }
    }

    /// Takes back what only one group was recorded with.
    pub(crate) fn after(&self, file: &str) {
        self.simulator.operate(|operator| {
            let settings = operator.settings();
            match file {
                "throttling" => settings.throttling = None,
                "enforcement" => settings.enforce_post_and_timestamps = false,
                "page-size" => settings.page_size = 500,
                _ => settings.name_race = false,
            }
        });
    }

    fn limit(&self, limits: &[(&str, i64)]) {
        self.simulator.operate(|operator| {
            for (resource, most) in limits {
                operator.limit("kuser", resource, *most);
            }
        });
    }

    fn set_zone(&self, state: &str) {
        self.simulator.operate(|operator| {
            let zones = operator.catalogue().zones.iter_mut();
            zones
                .filter(|zone| zone["id"] == ZONE_B)
                .for_each(|zone| zone["allocationstate"] = json!(state));
        });
    }

    fn offer_networks(&self) {
        let offering = |id: &str, kind: &str| json!({"id": id, "guestiptype": kind});
        self.simulator.operate(|operator| {
            operator.catalogue().network_offerings = vec![
                offering("5562a480-120a-49c7-be99-c1c970bd8aaf", "Isolated"),
                offering("2a41b6ab-7df2-4c45-ae96-99e2ddb4021f", "L2"),
                offering("29331297-1c35-4692-acb8-9a31e897e2bf", "Shared"),
            ];
        });
    }

    /// A network as some later list shows it, before a machine was in it.
    fn add_network(&self, name: &str) {
        let all = recordings::list("networks", "ordinary user, isolated networks are Allocated", "network");
        let later = recordings::list("misc", "listNetworks after deploys: state", "network");
        let mut found = all.into_iter().chain(later).find(|own| own["name"] == name);
        let network = found.as_mut().expect("a network");
        network["state"] = json!("Allocated");
        network["tags"] = json!([]);
        self.push_network(network.clone());
    }

    fn push_network(&self, network: Value) {
        self.simulator
            .operate(|operator| operator.catalogue().networks.push(network));
    }

    fn add_project_network(&self) {
        let mut network = recordings::list("networks", "by id", "network").remove(0);
        network["id"] = json!("15c52833-fc6a-4bdf-bdca-44473275504d");
        network["name"] = json!("proj-net");
        network["projectid"] = json!(self.ids.get("3fa4196d-56e2-4170-b662-aedf766e01dc"));
        network.as_object_mut().expect("an object").remove("account");
        self.push_network(network);
    }

    fn add_zone(&self) {
        let zone = recordings::list("security-group-zone", "the zone", "zone").remove(0);
        self.simulator.operate(|operator| operator.catalogue().zones.push(zone));
        self.push_network(recordings::list("security-group-zone", "the shared network", "network").remove(0));
    }

    fn prepare_groups(&self) {
        let groups = recordings::list("security-group-zone", "listSecurityGroups", "securitygroup");
        let group = groups.into_iter().find(|own| own["name"] == "nodes").expect("a group");
        self.simulator.operate(|operator| {
            let catalogue = operator.catalogue();
            catalogue.security_groups.push(group);
            let mut template = catalogue.templates[0].clone();
            template["zoneid"] = json!(ZONE_SG);
            template["zonename"] = json!("zone-sg");
            catalogue.templates.push(template);
        });
    }

    /// A machine that was made without being recorded; `recorded` is its id in later exchanges.
    async fn deploy(&mut self, name: &str, recorded: &str, more: &[(&str, &str)]) {
        let network = self.ids.get(NET);
        let mut params = vec![
            ("command", "deployVirtualMachine"),
            ("zoneid", ZONE_A),
            ("serviceofferingid", TINY),
            ("templateid", TEMPLATE),
            ("networkids", network.as_str()),
            ("name", name),
        ];
        params.extend(more);
        let answer = self.as_user(&params).await;
        let id = answer["id"].as_str().expect("accepted").to_owned();
        self.ids.insert(recorded, &id);
        self.clock.advance(Duration::from_secs(6));
    }

    async fn as_user(&self, params: &[(&str, &str)]) -> Value {
        let params = params
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let params = self.signed("kuser", params.collect());
        let answer = self.send(true, &params).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let inner = answer.body.as_object().and_then(|body| body.values().next());
        inner.cloned().unwrap_or_default()
    }

    async fn volumes(&self, machine: &str, kind: &str) -> Vec<String> {
        let machine = self.ids.get(machine);
        let params = [
            ("command", "listVolumes"),
            ("virtualmachineid", machine.as_str()),
            ("type", kind),
        ];
        let answer = self.as_user(&params).await;
        let volumes = answer["volume"].as_array().cloned().unwrap_or_default();
        volumes
            .iter()
            .map(|own| own["id"].as_str().expect("an id").to_owned())
            .collect()
    }

    async fn deploy_with_disks(&mut self) {
        let id = "ef74ac96-d9cf-4a19-a058-42cfcee07140";
        let disks = [
            ("datadisksdetails[0].diskofferingid", DATA_10),
            ("datadisksdetails[0].deviceid", "1"),
            ("datadisksdetails[1].diskofferingid", DATA_CUSTOM),
            ("datadisksdetails[1].deviceid", "2"),
            ("datadisksdetails[1].size", "7"),
        ];
        self.deploy("np-data2", id, &disks).await;
        let own = self.volumes(id, "DATADISK").await;
        self.ids.insert("20e263af-af0a-497b-b046-570fee3f83cf", &own[0]);
        self.ids.insert("de294406-9647-4cad-a2be-d7dfb3763bb8", &own[1]);
    }

    /// Stops a machine of this name; answers its id.
    async fn stop(&self, name: &str) -> String {
        let id = self.machine(name);
        self.as_user(&[("command", "stopVirtualMachine"), ("id", &id)]).await;
        self.clock.advance(Duration::from_secs(5));
        id
    }

    fn machine(&self, name: &str) -> String {
        let machines = self.simulator.machines();
        let own = machines.iter().find(|own| own.name == name);
        own.unwrap_or_else(|| panic!("no machine {name}")).id.clone()
    }

    fn expunge(&self, name: &str) {
        let id = self.machine(name);
        self.simulator.operate(|operator| operator.expunge(&id));
    }

    /// A deploy into a zone that the template did not reach yet.
    async fn fail_to_deploy(&self, name: &str) {
        let params = [
            ("command", "deployVirtualMachine"),
            ("zoneid", ZONE_SG),
            ("serviceofferingid", TINY),
            ("templateid", TEMPLATE),
            ("networkids", "4dacaaf1-b110-4396-b61b-2f852a1fc878"),
            ("name", name),
        ];
        let params = params.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let answer = self.send(true, &self.signed("kuser", params.into())).await;
        assert_eq!(answer.status, 530, "{}", answer.body);
    }
}
