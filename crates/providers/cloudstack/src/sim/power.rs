//! Machines that start, stop and go, as their jobs make them.

use jiff::Timestamp;
use serde_json::json;

use super::{
    jobs::{Job, Outcome},
    machines::{Machine, MachineState, VolumeFate},
    render,
    seed::Host,
    state::{Placement, Role, State},
};

impl State {
    pub(super) fn stop(&mut self, id: &str, at: Timestamp) -> Result<(), (u16, String)> {
        let fails = self.settings.stops_fail;
        let Some(own) = self.machine_mut(id).filter(|own| !own.removed) else {
            let number = self.machine(id).map(|own| own.number).unwrap_or_default();
            return Err((431, format!("unable to find a virtual machine with id {number}")));
        };
        if own.state != MachineState::Running {
            return Ok(());
        }
        if fails {
            let text = format!(
                "Unable to stop VM instance {{\"id\":{},\"instanceName\":\"i-3-{}-VM\",\"state\":\"Running\",\"type\":\"User\",\"uuid\":\"{}\"}}",
                own.number, own.number, own.id
            );
            return Err((530, text));
        }
        own.state = MachineState::Stopped;
        own.host = None;
        own.updated = Some(at);
        own.details
            .insert("Message.ReservedCapacityFreed.Flag".to_owned(), "false".to_owned());
        for nic in &mut own.nics {
            nic.bound = false;
        }
        Ok(())
    }

    pub(super) fn start(&mut self, id: &str, at: Timestamp, is_admin: bool) -> Result<(), (u16, String)> {
        let Some(machine) = self.machine(id).cloned() else {
            return Err((431, format!("unable to find a virtual machine with id {id}")));
        };
        let told = format!(
            "{{\"id\":{},\"instanceName\":\"i-3-{}-VM\",\"state\":\"{}\",\"type\":\"User\",\"uuid\":\"{}\"}}",
            machine.number,
            machine.number,
            match machine.state {
                MachineState::Error => "Error",
                _ => "Stopped",
            },
            machine.id
        );
        let none = format!("No destination found for a deployment for VM instance {told}");
        let host = self.place(&machine).map_err(|why| match why {
            Placement::Full => (533, none.clone()),
            Placement::Affinity => (533, format!(
                "{none}, Please check the affinity groups provided, there may not be sufficient capacity to follow them"
            )),
            Placement::NoTaggedHost => (530, "No suitable host found.".to_owned()),
        })?;
        if self.settings.starts_fail {
            if let Some(own) = self.machine_mut(id) {
                own.first_ran.get_or_insert(at);
            }
            // One cause, two stories: who is told decides.
            return Err((
                530,
                match is_admin {
                    true => orchestration_failed(&machine),
                    false => format!("Unable to start a VM [{id}] due to insufficient capacity."),
                },
            ));
        }
        let mut networks = Vec::new();
        if let Some(own) = self.machine_mut(id) {
            own.state = MachineState::Running;
            own.host = Some(host);
            own.first_ran.get_or_insert(at);
            own.updated = Some(at);
            own.details.remove("deployvm");
            for nic in &mut own.nics {
                nic.bound = true;
                networks.push(nic.network.clone());
            }
        }
        for volume in &mut self.volumes {
            volume.is_on_storage |= volume.machine.as_deref() == Some(id);
        }
        for network in &mut self.catalogue.networks {
            let is_used = networks.iter().any(|id| network["id"] == id.as_str());
            if is_used && network["state"] == "Allocated" {
                network["state"] = json!("Implemented");
            }
        }
        Ok(())
    }

    pub(super) fn start_again(&mut self, id: &str, job: &Job, at: Timestamp, is_admin: bool) -> Outcome {
        let Some(own) = self.machine(id) else {
            return Outcome::Lost;
        };
        if own.state == MachineState::Running && self.waited(job) {
            return self.told(id, job);
        }
        if own.state == MachineState::Running {
            let text = format!("The virtual machine {} ({}) is already running", own.id, own.name);
            return Outcome::Failure(431, text);
        }
        if own.state.is_hidden() {
            return Outcome::Failure(530, orchestration_failed(own));
        }
        match self.start(id, at, is_admin) {
            Ok(()) => self.told(id, job),
            Err((code, text)) => {
                if let Some(own) = self.machine_mut(id)
                    && own.state == MachineState::Starting
                {
                    own.state = MachineState::Stopped;
                }
                Outcome::Failure(code, text)
            }
        }
    }

    /// Its volumes go, its record, name, address and details stay.
    pub(super) fn fail_start(&mut self, id: &str, at: Timestamp) {
        if let Some(own) = self.machine_mut(id) {
            own.state = MachineState::Error;
            own.updated = Some(at);
            own.host = None;
        }
        for volume in &mut self.volumes {
            if volume.machine.as_deref() == Some(id) {
                volume.fate = VolumeFate::Gone;
            }
        }
    }

    pub(super) fn may_expunge(&self, account: &str) -> bool {
        self.settings.user_may_expunge || self.account(account).is_some_and(|own| own.role != Role::User)
    }

    pub(super) fn destroy(&mut self, id: &str, expunge: bool, volumes: &[String], job: &Job, at: Timestamp) -> Outcome {
        let Some(machine) = self.machine(id).cloned() else {
            return Outcome::Lost;
        };
        if machine.removed {
            return Outcome::Failure(
                431,
                format!("unable to find a virtual machine with id {}", machine.number),
            );
        }
        if machine.delete_protection {
            return Outcome::Failure(
                431,
                format!(
                    "Instance [id = {}, name = i-3-{}-VM] has delete protection enabled and cannot be deleted.",
                    machine.id, machine.number
                ),
            );
        }
        if expunge && !self.may_expunge(&job.account) {
            return Outcome::Failure(530, "Account does not have permission for expunging.".to_owned());
        }
        let foreign = volumes.iter().find_map(|wanted| {
            let own = self.volumes.iter().find(|own| own.id == *wanted)?;
            (own.is_root || own.machine.as_deref() != Some(id)).then_some(own)
        });
        if let Some(own) = foreign {
            return Outcome::Failure(
                431,
                format!(
                    "The following supplied volumes are not DATADISK attached to the VM: Volume {{\"id\":87,\"instanceId\":{},\"name\":\"{}\",\"uuid\":\"{}\",\"volumeType\":\"{}\"}}; ",
                    machine.number,
                    own.name,
                    own.id,
                    if own.is_root { "ROOT" } else { "DATADISK" }
                ),
            );
        }
        if let Err((code, text)) = self.stop(id, at) {
            return Outcome::Failure(code, text);
        }
        let next = if machine.state == MachineState::Error {
            MachineState::Expunging
        } else {
            MachineState::Destroyed
        };
        if let Some(own) = self.machine_mut(id)
            && !own.state.is_hidden()
        {
            own.state = next;
            own.updated = Some(at);
            own.host = None;
        }
        for volume in &mut self.volumes {
            if !volume.is_root && volume.machine.as_deref() == Some(id) {
                volume.machine = None;
                if volumes.contains(&volume.id) {
                    volume.fate = VolumeFate::Destroyed;
                }
            }
        }
        if expunge {
            self.expunge(id, at);
            // What is left to be told of it: not even its id.
            return Outcome::Success(json!({"virtualmachine": {
                "securitygroup": [], "nic": [], "affinitygroup": [], "tags": [], "deleteprotection": false,
            }}));
        }
        self.told(id, job)
    }

    pub(super) fn add_nic_by_job(&mut self, machine: &str, network: &str, job: &Job) -> Outcome {
        let Some(own) = self.machine(machine) else {
            return Outcome::Lost;
        };
        if own.nics.iter().any(|nic| nic.network == network) {
            let text = format!(
                "A NIC already exists for VM:i-3-{}-VM in network: {network}",
                own.number
            );
            return Outcome::Failure(530, text);
        }
        let foreign = self.catalogue.networks.iter().find(|own| own["id"] == network);
        if foreign.is_some_and(|net| net["acltype"] == "Account" && net["account"] != own.account.as_str()) {
            return Outcome::Failure(
                530,
                format!("Unable to use network with id= {network}, permission denied"),
            );
        }
        self.add_nic(machine, network);
        if let Some(own) = self.machine_mut(machine)
            && own.state == MachineState::Running
        {
            own.nics.iter_mut().for_each(|nic| nic.bound = true);
        }
        let role = self.account(&job.account).map_or(Role::User, |own| own.role);
        let Some(found) = self.machine(machine) else {
            return Outcome::Lost;
        };
        let mut shown = render::machine(self, found, &render::Details::of(&["nics", "affgrp"]), role);
        shown["jobid"] = json!(job.id);
        shown["jobstatus"] = json!(0);
        Outcome::Success(json!({"virtualmachine": shown}))
    }
}

/// What happens to machines without anybody asking for it.
impl State {
    /// Stops machines whose lease is over.
    pub(super) fn end_leases(&mut self, now: Timestamp) {
        for own in self
            .machines
            .iter_mut()
            .filter(|own| own.state == MachineState::Running)
        {
            if own.lease_ends.is_some_and(|at| at <= now) {
                own.state = MachineState::Stopped;
                own.updated = own.lease_ends.take();
                own.host = None;
            }
        }
    }

    pub(super) fn migrate(&mut self, id: &str) -> bool {
        let Some(own) = self.machine(id).cloned() else {
            return false;
        };
        let others: Vec<Host> = self
            .hosts
            .iter()
            .filter(|host| own.host.as_ref() != Some(&host.id))
            .cloned()
            .collect();
        let all = std::mem::replace(&mut self.hosts, others);
        let found = self.place(&own);
        self.hosts = all;
        let Ok(host) = found else { return false };
        if let Some(own) = self.machine_mut(id) {
            own.host = Some(host);
        }
        true
    }

    pub(super) fn fail_host(&mut self, host: &str, now: Timestamp) {
        self.hosts.retain(|own| own.id != host);
        let on_it: Vec<Machine> = self
            .machines
            .iter()
            .filter(|own| own.host.as_deref() == Some(host))
            .cloned()
            .collect();
        for machine in on_it {
            let is_available = self
                .catalogue
                .offering(&machine.offering)
                .is_some_and(|own| own["offerha"] == true);
            let elsewhere = is_available.then(|| self.place(&machine).ok()).flatten();
            if let Some(own) = self.machine_mut(&machine.id) {
                if elsewhere.is_none() {
                    own.state = MachineState::Stopped;
                    own.updated = Some(now);
                }
                own.host = elsewhere;
            }
        }
    }
}

fn orchestration_failed(machine: &Machine) -> String {
    format!(
        "Unable to orchestrate the start of VM instance {{\"instanceName\":\"i-3-{}-VM\",\"uuid\":\"{}\"}}.",
        machine.number, machine.id
    )
}
