//! Asynchronous jobs: what they do when their time comes, and how they are told about.

use jiff::Timestamp;
use karpenter_cloud::clock::later;
use serde_json::{Value, json};

use super::{
    machines::{MachineState, VolumeFate},
    render,
    state::{Placement, Role, State, date, new_id},
};

/// A job, from its acceptance on.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) id: String,
    /// The server's class name of the command.
    pub(super) class: String,
    pub(super) account: String,
    pub(super) instance: Option<(&'static str, String)>,
    pub(super) created: Timestamp,
    pub(super) completed: Option<Timestamp>,
    pub(super) due: Timestamp,
    pub(super) outcome: Option<Outcome>,
    pub(super) work: Work,
    pub(super) is_stuck: bool,
    /// Told by a fault: code and text.
    pub(super) fails: Option<(u16, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    Success(Value),
    Failure(u16, String),
    /// As a restart of the server leaves it.
    Lost,
}

/// What a job does.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Deploy {
        machine: String,
        start: bool,
    },
    Start {
        machine: String,
    },
    Stop {
        machine: String,
    },
    Reboot {
        machine: String,
    },
    Destroy {
        machine: String,
        expunge: bool,
        volumes: Vec<String>,
    },
    Expunge {
        machine: String,
    },
    CreateTags {
        kind: String,
        resources: Vec<String>,
        tags: Vec<(String, String)>,
    },
    DeleteTags {
        resources: Vec<String>,
        tags: Vec<(String, String)>,
    },
    AffinityGroup {
        id: String,
    },
    DeleteAffinityGroup {
        id: String,
    },
    AddNic {
        machine: String,
        network: String,
    },
    AttachVolume {
        volume: String,
        machine: String,
    },
    DestroyVolume {
        volume: String,
    },
    Volume {
        id: String,
    },
    /// Nothing but the object that was made at once, as (name of the object, the object).
    Told {
        object: &'static str,
        value: Value,
    },
}

impl Work {
    fn machine(&self) -> Option<&str> {
        match self {
            Self::Deploy { machine, .. }
            | Self::Start { machine }
            | Self::Stop { machine }
            | Self::Reboot { machine }
            | Self::Destroy { machine, .. }
            | Self::Expunge { machine }
            | Self::AddNic { machine, .. } => Some(machine),
            _ => None,
        }
    }
}

impl State {
    /// Accepts a job; jobs of one machine wait for each other.
    pub(super) fn schedule(
        &mut self,
        account: &str,
        class: &str,
        instance: Option<(&'static str, String)>,
        work: Work,
        takes: std::time::Duration,
        now: Timestamp,
    ) -> String {
        self.schedule_as(None, account, class, instance, work, takes, now)
    }

    /// As [`schedule`](Self::schedule), under an id that the caller may have chosen.
    #[expect(clippy::too_many_arguments, reason = "a job is all of them")]
    pub(super) fn schedule_as(
        &mut self,
        custom: Option<String>,
        account: &str,
        class: &str,
        instance: Option<(&'static str, String)>,
        work: Work,
        takes: std::time::Duration,
        now: Timestamp,
    ) -> String {
        let mut start = now;
        if let Some(machine) = work.machine() {
            let pending = self
                .jobs
                .iter()
                .filter(|job| job.outcome.is_none() && job.work.machine() == Some(machine));
            start = pending.map(|job| job.due).fold(start, Timestamp::max);
        }
        let id = custom.unwrap_or_else(new_id);
        self.jobs.push(Job {
            id: id.clone(),
            class: class.to_owned(),
            account: account.to_owned(),
            instance,
            created: now,
            completed: None,
            due: later(start, takes),
            outcome: None,
            work,
            is_stuck: false,
            fails: None,
        });
        id
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let pending = self.jobs.iter().filter(|job| job.outcome.is_none() && !job.is_stuck);
        pending.map(|job| job.due).min()
    }

    /// Carries out what is due by `now`, in order.
    pub(super) fn run_due(&mut self, now: Timestamp) {
        self.expunge_old(now);
        loop {
            let next = self
                .jobs
                .iter()
                .enumerate()
                .filter(|(_, job)| job.outcome.is_none() && !job.is_stuck && job.due <= now)
                .min_by_key(|(index, job)| (job.due, *index))
                .map(|(index, _)| index);
            let Some(index) = next else { break };
            let job = self.jobs[index].clone();
            let outcome = self.carry_out(&job);
            let job = &mut self.jobs[index];
            job.completed = Some(job.due);
            job.outcome = Some(outcome);
        }
        let begun: Vec<String> = self
            .jobs
            .iter()
            .filter(|job| job.outcome.is_none() && job.created < now)
            .filter_map(|job| match &job.work {
                Work::Deploy { machine, start: true } | Work::Start { machine } => Some(machine.clone()),
                _ => None,
            })
            .collect();
        for id in begun {
            if let Some(machine) = self.machine_mut(&id)
                && machine.state == MachineState::Stopped
            {
                machine.state = MachineState::Starting;
                machine.updated = Some(now);
            }
        }
    }

    fn expunge_old(&mut self, now: Timestamp) {
        let delay = self.settings.expunge_delay;
        let old: Vec<String> = self
            .machines
            .iter()
            .filter(|own| !own.removed && (own.state.is_hidden() || own.state == MachineState::Error))
            .filter(|own| own.updated.is_some_and(|at| later(at, delay) <= now))
            .map(|own| own.id.clone())
            .collect();
        for id in old {
            self.expunge(&id, now);
        }
    }

    pub(super) fn fail_running_jobs(&mut self, now: Timestamp) {
        let mut stopped = Vec::new();
        for job in self.jobs.iter_mut().filter(|job| job.outcome.is_none()) {
            job.outcome = Some(Outcome::Lost);
            job.completed = Some(now);
            stopped.extend(job.work.machine().map(str::to_owned));
        }
        for id in stopped {
            // The host that had been chosen stays written down.
            let host = self.machine(&id).and_then(|machine| self.place(machine).ok());
            if let Some(machine) = self.machine_mut(&id)
                && machine.state == MachineState::Starting
            {
                machine.state = MachineState::Stopped;
                machine.updated = Some(now);
                machine.host = host;
                machine.first_ran.get_or_insert(now);
            }
        }
    }

    fn carry_out(&mut self, job: &Job) -> Outcome {
        let at = job.due;
        if let Some((code, text)) = &job.fails {
            if let Work::Deploy { machine, .. } = &job.work {
                self.fail_start(&machine.clone(), at);
            }
            return Outcome::Failure(*code, text.clone());
        }
        let is_admin = self
            .account(&job.account)
            .is_some_and(|own| own.role == Role::RootAdmin);
        match job.work.clone() {
            Work::Deploy { machine, start } => {
                if !start {
                    return self.told(&machine, job);
                }
                match self.start(&machine, at, is_admin) {
                    Ok(()) => self.told(&machine, job),
                    Err((code, text)) => {
                        self.fail_start(&machine, at);
                        Outcome::Failure(code, text)
                    }
                }
            }
            Work::Start { machine } => self.start_again(&machine, job, at, is_admin),
            Work::Stop { machine } => match self.stop(&machine, at) {
                Ok(()) => self.told(&machine, job),
                Err((code, text)) => Outcome::Failure(code, text),
            },
            Work::Reboot { machine } => {
                let Some(own) = self.machine(&machine) else {
                    return Outcome::Lost;
                };
                if own.state != MachineState::Running {
                    let text = format!(
                        "The Instance {} ({}) is not running, unable to reboot it",
                        own.id, own.name
                    );
                    return Outcome::Failure(431, text);
                }
                self.told(&machine, job)
            }
            Work::Destroy {
                machine,
                expunge,
                volumes,
            } => self.destroy(&machine, expunge, &volumes, job, at),
            Work::Expunge { machine } => {
                if !self.may_expunge(&job.account) {
                    let text = "Expunging a vm can only be done by an Admin. Or when the allow.user.expunge.recover.vm key is set.";
                    return Outcome::Failure(530, text.to_owned());
                }
                self.expunge(&machine, at);
                Outcome::Success(json!({"success": true}))
            }
            Work::CreateTags { kind, resources, tags } => self.create_tags(&job.account, &kind, &resources, &tags),
            Work::DeleteTags { resources, tags } => self.delete_tags(&resources, &tags),
            Work::AffinityGroup { id } => {
                let found = self.affinity_groups.iter().find(|own| own.id == id);
                let group = found.map(|own| render::affinity_group(self, own)).unwrap_or_default();
                Outcome::Success(json!({"affinitygroup": group}))
            }
            Work::DeleteAffinityGroup { id } => {
                self.affinity_groups.retain(|own| own.id != id);
                for machine in &mut self.machines {
                    machine.affinity_groups.retain(|own| *own != id);
                }
                Outcome::Success(json!({"success": true}))
            }
            Work::AddNic { machine, network } => self.add_nic_by_job(&machine, &network, job),
            Work::AttachVolume { volume, machine } => {
                let devices = self
                    .volumes
                    .iter()
                    .filter(|own| own.machine.as_deref() == Some(&machine))
                    .count();
                let Some(own) = self.volumes.iter_mut().find(|own| own.id == volume) else {
                    return Outcome::Lost;
                };
                if own.machine.is_some() {
                    return Outcome::Failure(
                        431,
                        "Please specify a volume that is not attached to any VM.".to_owned(),
                    );
                }
                own.machine = Some(machine);
                own.attached = Some(at);
                own.is_on_storage = true;
                own.device = i64::try_from(devices).unwrap_or_default();
                self.volume_told(&volume, job)
            }
            Work::DestroyVolume { volume } => {
                let Some(own) = self.volumes.iter_mut().find(|own| own.id == volume) else {
                    return Outcome::Lost;
                };
                if own.machine.is_some() {
                    return Outcome::Failure(
                        431,
                        "Please specify a volume that is not attached to any VM.".to_owned(),
                    );
                }
                own.fate = VolumeFate::Gone;
                self.volume_told(&volume, job)
            }
            Work::Volume { id } => self.volume_told(&id, job),
            Work::Told { object, value } => Outcome::Success(json!({object: value})),
        }
    }

    fn volume_told(&self, id: &str, job: &Job) -> Outcome {
        let Some(own) = self.volumes.iter().find(|own| own.id == id) else {
            return Outcome::Lost;
        };
        let mut volume = render::volume(self, own, Role::User);
        volume["jobid"] = json!(job.id);
        volume["jobstatus"] = json!(0);
        Outcome::Success(json!({"volume": volume}))
    }

    /// The machine as a job's result shows it, with the job's own id as pending (cloudstack.md §2.8).
    fn told(&self, machine: &str, job: &Job) -> Outcome {
        let Some(found) = self.machine(machine) else {
            return Outcome::Lost;
        };
        let role = self.account(&job.account).map_or(Role::User, |own| own.role);
        let mut shown = render::machine(self, found, &render::Details::result(), role);
        // Statistics are shown as soon as they were collected once, whatever the machine does now.
        if found
            .first_ran
            .is_some_and(|at| later(at, render::COLLECTED) <= job.due)
        {
            render::statistics(&mut shown);
        }
        shown["jobid"] = json!(job.id);
        shown["jobstatus"] = json!(0);
        Outcome::Success(json!({"virtualmachine": shown}))
    }

    fn stop(&mut self, id: &str, at: Timestamp) -> Result<(), (u16, String)> {
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

    /// Whether another job of the machine was still running when this one was accepted.
    fn waited(&self, job: &Job) -> bool {
        let machine = job.work.machine();
        let mut others = self.jobs.iter().filter(|other| other.id != job.id);
        others.any(|other| {
            other.work.machine() == machine
                && other.created <= job.created
                && other.completed.is_some_and(|at| at > job.created)
        })
    }

    fn start(&mut self, id: &str, at: Timestamp, is_admin: bool) -> Result<(), (u16, String)> {
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

    fn start_again(&mut self, id: &str, job: &Job, at: Timestamp, is_admin: bool) -> Outcome {
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

    fn destroy(&mut self, id: &str, expunge: bool, volumes: &[String], job: &Job, at: Timestamp) -> Outcome {
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

    fn add_nic_by_job(&mut self, machine: &str, network: &str, job: &Job) -> Outcome {
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

    fn create_tags(&mut self, account: &str, kind: &str, resources: &[String], tags: &[(String, String)]) -> Outcome {
        if !["UserVm", "Volume", "Network", "Template", "ServiceOffering"].contains(&kind) {
            return Outcome::Failure(431, format!("Invalid resource type {kind}"));
        }
        if kind == "ServiceOffering" {
            return Outcome::Failure(
                431,
                "The resource type ServiceOffering doesn't support resource tags".to_owned(),
            );
        }
        for id in resources {
            let owner = match kind {
                "UserVm" => self.machine(id).map(|own| own.account.clone()),
                "Volume" => self
                    .volumes
                    .iter()
                    .find(|own| own.id == *id)
                    .map(|own| own.account.clone()),
                _ => self.catalogue.owner(id).map(str::to_owned),
            };
            let Some(owner) = owner else {
                return Outcome::Failure(431, format!("Unable to find resource by uuid {id} and type {kind}"));
            };
            let is_admin = self.account(account).is_some_and(|own| own.role == Role::RootAdmin);
            if owner != account && !is_admin {
                let text = "Caller does not have permission to operate with provided resource.";
                return Outcome::Failure(530, text.to_owned());
            }
        }
        if let Some((key, _)) = tags.iter().find(|(_, value)| value.is_empty()) {
            return Outcome::Failure(431, format!("Value for the key {key} is either null or empty"));
        }
        for id in resources {
            if let Some((key, _)) = tags
                .iter()
                .find(|(key, _)| self.tags_of(id).iter().any(|(own, _)| own == key))
            {
                return Outcome::Failure(530, format!("tag {key} already on {kind} with id {id}"));
            }
        }
        let owner = self.account(account).cloned();
        for id in resources {
            for (key, value) in tags {
                let cut: String = value.chars().take(255).collect();
                if let Some(own) = self.tags_of_mut(id) {
                    own.push((key.clone(), cut));
                } else if kind == "Network" {
                    // Networks only tell the pair itself.
                    self.catalogue.tag(id, &json!({"key": key, "value": cut}));
                } else if let Some(owner) = &owner {
                    self.catalogue.tag(id, &render::tag(owner, kind, id, key, &cut));
                }
            }
        }
        Outcome::Success(json!({"success": true}))
    }

    fn delete_tags(&mut self, resources: &[String], tags: &[(String, String)]) -> Outcome {
        let mut deleted = false;
        for id in resources {
            let Some(own) = self.tags_of_mut(id) else { continue };
            let before = own.len();
            own.retain(|(key, value)| {
                let is_meant = |(wanted, with): &(String, String)| {
                    wanted.eq_ignore_ascii_case(key) && (with.is_empty() || with == value)
                };
                !tags.is_empty() && !tags.iter().any(is_meant)
            });
            deleted |= own.len() < before;
        }
        if deleted {
            Outcome::Success(json!({"success": true}))
        } else {
            Outcome::Failure(530, "Failed to delete tags".to_owned())
        }
    }

    fn tags_of(&self, id: &str) -> &[(String, String)] {
        let machine = self.machine(id).map(|own| own.tags.as_slice());
        let volume = || {
            self.volumes
                .iter()
                .find(|own| own.id == id)
                .map(|own| own.tags.as_slice())
        };
        machine.or_else(volume).unwrap_or_default()
    }

    fn tags_of_mut(&mut self, id: &str) -> Option<&mut Vec<(String, String)>> {
        if let Some(index) = self.machines.iter().position(|own| own.id == id) {
            return Some(&mut self.machines[index].tags);
        }
        let volume = self.volumes.iter_mut().find(|own| own.id == id)?;
        Some(&mut volume.tags)
    }

    /// A job as `queryAsyncJobResult` shows it.
    pub(super) fn show_job(&self, job: &Job, asks: Role) -> Value {
        let owner = self.account(&job.account);
        let field = |read: fn(&super::state::Account) -> &str| owner.map(read).unwrap_or_default().to_owned();
        let mut shown = json!({
            "accountid": field(|own| &own.id), "account": job.account, "domainid": field(|own| &own.domain_id),
            "domainpath": field(|own| &own.domain_path), "userid": field(|own| &own.user_id), "cmd": job.class,
            "jobprocstatus": 0, "jobresultcode": 0, "created": date(job.created), "jobid": job.id, "jobstatus": 0,
        });
        if let Some((kind, id)) = &job.instance {
            shown["jobinstancetype"] = json!(kind);
            if !id.is_empty() {
                shown["jobinstanceid"] = json!(id);
            }
        }
        if let Some(completed) = job.completed {
            shown["completed"] = json!(date(completed));
        }
        match &job.outcome {
            None => {
                shown["managementserverid"] = json!("8710c652-627c-4acf-98c4-f43c5716efe0");
                shown["managementservername"] = json!("localhost");
            }
            Some(Outcome::Success(result)) => {
                shown["jobstatus"] = json!(1);
                shown["jobresulttype"] = json!("object");
                shown["jobresult"] = result.clone();
                if asks == Role::RootAdmin && result["virtualmachine"]["id"].is_string() {
                    shown["jobresult"]["virtualmachine"]["displayvm"] = json!(true);
                }
            }
            Some(Outcome::Failure(code, text)) => {
                shown["jobstatus"] = json!(2);
                shown["jobresultcode"] = json!(code);
                shown["jobresulttype"] = json!("object");
                shown["jobresult"] = json!({"errorcode": code, "errortext": text});
            }
            Some(Outcome::Lost) => {
                shown["managementserverid"] = json!("8710c652-627c-4acf-98c4-f43c5716efe0");
                shown["managementservername"] = json!("localhost");
                shown["jobstatus"] = json!(2);
                shown["jobresultcode"] = json!(530);
            }
        }
        shown
    }
}

fn orchestration_failed(machine: &super::Machine) -> String {
    format!(
        "Unable to orchestrate the start of VM instance {{\"instanceName\":\"i-3-{}-VM\",\"uuid\":\"{}\"}}.",
        machine.number, machine.id
    )
}
