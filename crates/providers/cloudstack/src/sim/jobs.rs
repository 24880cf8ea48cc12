//! Asynchronous jobs: what they do when their time comes, and how they are told about.

use jiff::Timestamp;
use karpenter_cloud::clock::later;
use serde_json::{Value, json};

use super::{
    machines::{MachineState, VolumeFate},
    render,
    state::{Role, State, date, new_id},
};
use crate::node_class::CD_ROM;

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
    pub(super) is_cancelled: bool,
    /// Told by a fault: code and text.
    pub(super) fails: Option<(u16, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    Success(Value),
    Failure(u16, String),
    Cancelled,
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
        device: Option<i64>,
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
            is_cancelled: false,
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
        self.end_leases(now);
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
        self.show_begun(now);
    }

    /// Machines that jobs are at work on are Starting; those whose stop hangs are Stopping.
    fn show_begun(&mut self, now: Timestamp) {
        let begun = self
            .jobs
            .iter()
            .filter(|job| job.outcome.is_none() && job.created < now);
        let begun: Vec<(String, MachineState, MachineState)> = begun
            .filter_map(|job| match &job.work {
                Work::Deploy { machine, start: true } | Work::Start { machine } => {
                    Some((machine.clone(), MachineState::Stopped, MachineState::Starting))
                }
                Work::Stop { machine } | Work::Destroy { machine, .. } if job.is_stuck => {
                    Some((machine.clone(), MachineState::Running, MachineState::Stopping))
                }
                _ => None,
            })
            .collect();
        for (id, before, then) in begun {
            if let Some(machine) = self.machine_mut(&id)
                && machine.state == before
            {
                machine.state = then;
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
        if job.is_cancelled {
            if let Work::Deploy { machine, .. } = &job.work {
                self.fail_start(&machine.clone(), at);
            }
            return Outcome::Cancelled;
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
            Work::AttachVolume {
                volume,
                machine,
                device,
            } => {
                let attached = self.volumes.iter();
                let attached = attached.filter(|own| own.machine.as_deref() == Some(&machine));
                let taken: Vec<i64> = attached.map(|own| own.device).collect();
                if let Some(device) = device.filter(|own| taken.contains(own)) {
                    return Outcome::Failure(431, format!("deviceId {device} is used by vm {machine}"));
                }
                let free = device.or_else(|| (1..).find(|own| *own != CD_ROM && !taken.contains(own)));
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
                own.device = free.unwrap_or_default();
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
    pub(super) fn told(&self, machine: &str, job: &Job) -> Outcome {
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

    /// Whether another job of the machine was still running when this one was accepted.
    pub(super) fn waited(&self, job: &Job) -> bool {
        let machine = job.work.machine();
        let mut others = self.jobs.iter().filter(|other| other.id != job.id);
        others.any(|other| {
            other.work.machine() == machine
                && other.created <= job.created
                && other.completed.is_some_and(|at| at > job.created)
        })
    }

    /// A job as `queryAsyncJobResult` shows it.
    pub(super) fn show_job(&self, job: &Job, asks: Role) -> Value {
        let owner = self.account(&job.account);
        // The server tells its own time.
        let date = |at: Timestamp| date(at + self.settings.clock_ahead);
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
            Some(Outcome::Cancelled) => {
                shown["jobstatus"] = json!(3);
                shown["jobresultcode"] = json!(530);
                shown["jobresulttype"] = json!("object");
                shown["jobresult"] = json!({"errorcode": 530, "errortext": "Job cancelled explicitly"});
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
