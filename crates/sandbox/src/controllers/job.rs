//! Runs a Job's pods to completion and counts how they end (sandbox.md §5.6).

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::effects::{EventDraft, EventKind, JOBS, PODS, propagated, reference};
use super::garbage::without_finalizer;
use super::manager::{Manager, Task};
use super::pod::{Phase, PodFacts};
use super::workload::{controller_reference, count, pod_from_template};
use crate::clock::later;
use crate::server::{DeleteOptions, Endpoint, Propagation};

const TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// What to do about a Job.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) create: usize,
    pub(crate) delete: Vec<Arc<PodFacts>>,
    /// Pods whose end is counted with this status: their finalizer may go.
    pub(crate) counted: Vec<Arc<PodFacts>>,
    pub(crate) status: JobStatus,
}

/// Counts pods that ended and decides how many more there should be.
pub(crate) fn plan(job: &Job, pods: &[Arc<PodFacts>], now: Timestamp) -> Plan {
    let spec = job.spec.clone().unwrap_or_default();
    let mut status = job.status.clone().unwrap_or_default();
    let is_tracked = |p: &&Arc<PodFacts>| p.finalizers.iter().any(|f| &**f == TRACKING);
    let ended = pods.iter().filter(|p| p.phase.is_terminal()).filter(is_tracked);
    let counted: Vec<Arc<PodFacts>> = ended.cloned().collect();
    let good = count(counted.iter().filter(|p| p.phase == Phase::Succeeded));
    let succeeded = status.succeeded.unwrap_or(0) + good;
    let failed = status.failed.unwrap_or(0) + count(counted.iter()) - good;
    let active: Vec<&Arc<PodFacts>> = pods
        .iter()
        .filter(|p| !p.phase.is_terminal() && p.deletion.is_none())
        .collect();
    let positive = |n: i32| Some(n).filter(|n| *n > 0);
    status.succeeded = positive(succeeded);
    status.failed = positive(failed);
    let mut plan = Plan {
        counted,
        ..Plan::default()
    };
    if is_finished(&status) {
        plan.delete = active.into_iter().map(Arc::clone).collect();
        status.active = None;
        plan.status = status;
        return plan;
    }
    status.start_time.get_or_insert(Time(now));
    let parallelism = spec.parallelism.unwrap_or(1);
    // Without completions any success is the last one.
    let completions = spec.completions;
    let is_complete = match completions {
        Some(wanted) => succeeded >= wanted,
        None => succeeded > 0 && active.is_empty(),
    };
    let is_suspended = spec.suspend == Some(true);
    if failed > spec.backoff_limit.unwrap_or(6) {
        conclude(
            &mut status,
            "FailureTarget",
            "Failed",
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit",
            now,
        );
        plan.delete = active.into_iter().map(Arc::clone).collect();
        status.active = None;
    } else if is_complete {
        conclude(
            &mut status,
            "SuccessCriteriaMet",
            "Complete",
            "CompletionsReached",
            "Reached expected number of succeeded pods",
            now,
        );
        status.completion_time = Some(Time(now));
        plan.delete = active.into_iter().map(Arc::clone).collect();
        status.active = None;
    } else {
        let room = match completions {
            Some(wanted) => parallelism.min(wanted - succeeded),
            None if succeeded > 0 => 0,
            None => parallelism,
        };
        let room = if is_suspended { 0 } else { room.max(0) };
        let running = count(active.iter());
        plan.create = usize::try_from(room - running).unwrap_or(0);
        let surplus = usize::try_from(running - room).unwrap_or(0);
        plan.delete = active.iter().rev().take(surplus).map(|p| Arc::clone(p)).collect();
        status.ready = Some(count(active.iter().filter(|p| p.ready_since.is_some())));
        status.active = positive(running + i32::try_from(plan.create).unwrap_or(0) - count(plan.delete.iter()));
    }
    status.terminating = Some(count(
        pods.iter().filter(|p| p.deletion.is_some() && !p.phase.is_terminal()),
    ));
    plan.status = status;
    plan
}

fn is_finished(status: &JobStatus) -> bool {
    finished_at(status).is_some()
}

fn finished_at(status: &JobStatus) -> Option<Timestamp> {
    let mut conditions = status.conditions.iter().flatten();
    let last = conditions.find(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")?;
    last.last_transition_time.as_ref().map(|t| t.0)
}

fn conclude(status: &mut JobStatus, first: &str, last: &str, reason: &str, message: &str, now: Timestamp) {
    let conditions = status.conditions.get_or_insert_default();
    for kind in [first, last] {
        conditions.push(JobCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_probe_time: Some(Time(now)),
            last_transition_time: Some(Time(now)),
        });
    }
}

impl Manager {
    pub(crate) fn sync_job(&mut self, key: &Arc<str>) {
        let Some(job) = self.world.jobs.get(key).cloned() else {
            self.release_pods_of_missing_job(key);
            return;
        };
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let namespace = job.metadata.namespace.clone().unwrap_or_default();
        let name = job.metadata.name.clone().unwrap_or_default();
        let pods: Vec<Arc<PodFacts>> = self.world.pods_owned_by(&uid).cloned().collect();
        if job.metadata.deletion_timestamp.is_some() {
            for pod in &pods {
                self.untrack(pod);
            }
            return;
        }
        let now = self.effects.now();
        let plan = plan(&job, &pods, now);
        if let Some(template) = job.spec.as_ref().map(|s| &s.template) {
            let owner = controller_reference("batch/v1", "Job", &job.metadata);
            for _ in 0..plan.create {
                let mut pod = pod_from_template(template, &namespace, owner.clone());
                pod.metadata
                    .finalizers
                    .get_or_insert_default()
                    .push(TRACKING.to_owned());
                match self.effects.create(PODS, &namespace, &pod) {
                    Ok(pod) => {
                        let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
                        self.effects.event(&EventDraft {
                            regarding: reference("batch/v1", "Job", &namespace, &name, &uid),
                            kind: EventKind::Normal,
                            reason: "SuccessfulCreate",
                            action: "",
                            component: "job-controller",
                            message: format!("Created pod: {pod_name}"),
                        });
                    }
                    Err(error) => {
                        self.effects.report("create a Job's pod", Err(error));
                        break;
                    }
                }
            }
        }
        let written = self.effects.set_status(JOBS, &namespace, &name, &plan.status);
        self.effects.report("write a Job's status", written);
        for pod in &plan.counted {
            self.untrack(pod);
        }
        for pod in &plan.delete {
            let deleted = self
                .effects
                .delete(PODS, &pod.namespace, &pod.name, &pod.uid, DeleteOptions::default());
            self.effects.report("delete a Job's pod", deleted);
        }
        let ttl = job.spec.as_ref().and_then(|s| s.ttl_seconds_after_finished);
        if let (Some(ttl), Some(finished)) = (ttl, finished_at(&plan.status)) {
            let due = later(finished, Duration::from_secs(u64::try_from(ttl).unwrap_or(0)));
            if due > now {
                self.arm(Task::Job(Arc::clone(key)), due);
            } else {
                let options = propagated(Propagation::Foreground);
                let deleted = self.effects.delete(JOBS, &namespace, &name, &uid, options);
                self.effects.report("delete a finished Job", deleted);
            }
        }
    }

    fn untrack(&self, pod: &PodFacts) {
        if !pod.finalizers.iter().any(|f| &**f == TRACKING) {
            return;
        }
        let released = self
            .effects
            .modify(PODS, &pod.namespace, &pod.name, Endpoint::Main, |object| {
                without_finalizer(object, TRACKING)
            });
        self.effects.report("release a Job's pod", released);
    }

    fn release_pods_of_missing_job(&self, key: &str) {
        let Some((namespace, name)) = key.split_once('/') else {
            return;
        };
        let orphans = self.world.pods_in(namespace).filter(|p| {
            p.controller.as_ref().is_none_or(|o| o.kind == "Job" && o.name == name)
                && p.finalizers.iter().any(|f| &**f == TRACKING)
        });
        for pod in orphans {
            self.untrack(pod);
        }
    }
}
