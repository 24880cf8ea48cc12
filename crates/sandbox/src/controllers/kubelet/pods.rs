//! The kubelet's work on pods: start, readiness, end, graceful termination.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Flavor;
use crate::clock::later;
use crate::controllers::effects::{Condition, PODS, set_condition};
use crate::controllers::manager::{Manager, Task};
use crate::controllers::pod::{ContainerFacts, Phase, PodFacts};
use crate::server::{DeleteOptions, Endpoint, time_text};

/// What a kubelet does about a pod now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Wait(Timestamp),
    Start,
    /// Containers run, but readiness has to be judged anew.
    JudgeReadiness,
    Finish {
        exit_code: i32,
    },
    /// Containers got their SIGTERM and are no longer ready; they end later.
    StopServing {
        until: Timestamp,
    },
    End,
    Nothing,
}

/// How quickly a node's pods come and go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) start: Duration,
    pub(crate) exit: Duration,
    pub(crate) ignores_grace: bool,
}

/// The next step in the life of a bound pod.
pub(crate) fn next_step(pod: &PodFacts, started: Option<Timestamp>, pace: Pace, now: Timestamp) -> Step {
    let behaviour = pod.behaviour.as_deref().cloned().unwrap_or_default();
    if let Some(deletion) = pod.deletion {
        if pod.phase.is_terminal() && deletion.grace_seconds == 0 {
            return Step::Nothing;
        }
        let grace = Duration::from_secs(u64::try_from(deletion.grace_seconds).unwrap_or(0));
        let wait = if pace.ignores_grace {
            Duration::ZERO
        } else {
            behaviour.exit_delay.unwrap_or(pace.exit).min(grace)
        };
        let until = later(deletion.requested_at(), wait);
        return match () {
            () if until <= now || pod.phase.is_terminal() => Step::End,
            () if pod.ready_since.is_some() => Step::StopServing { until },
            () => Step::Wait(until),
        };
    }
    match pod.phase {
        Phase::Pending => {
            let delay = behaviour.start_delay.unwrap_or(pace.start);
            let due = later(pod.bound_at.unwrap_or(now), delay);
            if due > now { Step::Wait(due) } else { Step::Start }
        }
        Phase::Running => {
            if let Some(exit_code) = exit_code(pod) {
                let runs = behaviour
                    .run_time
                    .unwrap_or(if pace.ignores_grace { Duration::ZERO } else { pace.start });
                let due = later(started.unwrap_or(now), runs);
                return if due > now {
                    Step::Wait(due)
                } else {
                    Step::Finish { exit_code }
                };
            }
            if pod.ready_since.is_none() && !behaviour.never_ready {
                Step::JudgeReadiness
            } else {
                Step::Nothing
            }
        }
        Phase::Succeeded | Phase::Failed | Phase::Unknown => Step::Nothing,
    }
}

/// The code with which a pod's containers end by themselves, if they do.
fn exit_code(pod: &PodFacts) -> Option<i32> {
    if pod.class.spec.restart_policy == "Always" {
        return None;
    }
    let given = pod.behaviour.as_ref().and_then(|b| b.exit_code);
    let is_job = pod.controller.as_ref().is_some_and(|o| o.kind == "Job");
    given.or(is_job.then_some(0))
}

impl Manager {
    pub(crate) fn tend_pod(&mut self, key: &Arc<str>) {
        let Some(pod) = self.world.pods.get(key).cloned() else {
            return;
        };
        let Some(node) = pod.node.clone() else { return };
        if !self.kubelets.runs(&node) || !self.world.nodes.contains_key(&node) {
            return;
        }
        let flavor = self.kubelets.nodes[&node].flavor;
        let pace = match flavor {
            Flavor::Full => Pace {
                start: self.timing.pod_start,
                exit: self.timing.pod_exit,
                ignores_grace: false,
            },
            Flavor::Fake => Pace {
                start: Duration::ZERO,
                exit: Duration::ZERO,
                ignores_grace: true,
            },
        };
        let now = self.effects.now();
        let started = self.kubelets.runs.get(&pod.uid).and_then(|r| r.started);
        match next_step(&pod, started, pace, now) {
            Step::Nothing => {}
            Step::Wait(until) => self.arm(Task::KubeletPod(Arc::clone(key)), until),
            Step::Start if !self.volumes_attached(&pod, &node) => {}
            Step::Start => self.start_pod(&pod, &node, now),
            Step::JudgeReadiness => self.write_pod(&pod, |object| judge_readiness(object, &pod, now)),
            Step::Finish { exit_code } => self.write_pod(&pod, |object| {
                finish(object, exit_code, now);
                true
            }),
            Step::StopServing { until } => {
                self.write_pod(&pod, |object| set_unready(object, now));
                self.arm(Task::KubeletPod(Arc::clone(key)), until);
            }
            Step::End => self.end_pod(&pod, flavor, now),
        }
    }

    fn start_pod(&mut self, pod: &Arc<PodFacts>, node: &str, now: Timestamp) {
        let host_ip = self.world.nodes.get(node).and_then(|n| n.internal_ip.clone());
        let host_ip = host_ip.unwrap_or_else(|| "10.0.0.1".to_owned());
        let ip = if pod.class.spec.host_network {
            host_ip.clone()
        } else {
            self.kubelets.next_address()
        };
        self.kubelets.runs.entry(Arc::clone(&pod.uid)).or_default().started = Some(now);
        self.write_pod(pod, |object| {
            let status = &mut object["status"];
            status["phase"] = json!("Running");
            status["hostIP"] = json!(host_ip);
            status["hostIPs"] = json!([{"ip": host_ip}]);
            status["podIP"] = json!(ip);
            status["podIPs"] = json!([{"ip": ip}]);
            status["startTime"] = json!(time_text(now));
            let spec = &pod.class.spec;
            let (sidecars, inits): (Vec<_>, Vec<_>) = spec.init_containers.iter().partition(|c| c.is_sidecar);
            let init_statuses: Vec<Value> = inits
                .iter()
                .map(|c| ended(c, 0, now))
                .chain(sidecars.iter().map(|c| running(c, now)))
                .collect();
            if !init_statuses.is_empty() {
                status["initContainerStatuses"] = json!(init_statuses);
            }
            status["containerStatuses"] = json!(spec.containers.iter().map(|c| running(c, now)).collect::<Vec<_>>());
            for kind in ["PodReadyToStartContainers", "Initialized"] {
                set_condition(
                    object,
                    &Condition {
                        kind,
                        status: "True",
                        reason: "",
                        message: "",
                    },
                    now,
                );
            }
            judge_readiness(object, pod, now);
            true
        });
    }

    fn end_pod(&mut self, pod: &Arc<PodFacts>, flavor: Flavor, now: Timestamp) {
        if !pod.phase.is_terminal() && flavor == Flavor::Full {
            self.write_pod(pod, |object| {
                finish(object, 0, now);
                true
            });
        }
        let deleted = self
            .effects
            .delete(PODS, &pod.namespace, &pod.name, &pod.uid, DeleteOptions::now());
        self.effects.report("remove a terminated pod", deleted);
    }

    fn write_pod(&self, pod: &PodFacts, change: impl FnOnce(&mut Value) -> bool) {
        let uid = Arc::clone(&pod.uid);
        let written = self
            .effects
            .modify(PODS, &pod.namespace, &pod.name, Endpoint::Status, |object| {
                object["metadata"]["uid"] == *uid && change(object)
            });
        self.effects.report("write a pod's status", written);
    }
}

/// Ready if the containers are and every readiness gate is open.
fn judge_readiness(object: &mut Value, pod: &PodFacts, now: Timestamp) -> bool {
    let never = pod.behaviour.as_ref().is_some_and(|b| b.never_ready);
    let containers = if never { "False" } else { "True" };
    let reason = if never { "ContainersNotReady" } else { "" };
    for container in object["status"]["containerStatuses"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        container["ready"] = json!(!never);
    }
    let mut changed = set_condition(
        object,
        &Condition {
            kind: "ContainersReady",
            status: containers,
            reason,
            message: "",
        },
        now,
    );
    let open = |gate: &String| {
        let conditions = object["status"]["conditions"].as_array();
        conditions
            .into_iter()
            .flatten()
            .any(|c| c["type"] == gate.as_str() && c["status"] == "True")
    };
    let gates_open = pod.class.spec.readiness_gates.iter().all(open);
    let (status, reason) = match (never, gates_open) {
        (true, _) => ("False", "ContainersNotReady"),
        (false, false) => ("False", "ReadinessGatesNotReady"),
        (false, true) => ("True", ""),
    };
    changed |= set_condition(
        object,
        &Condition {
            kind: "Ready",
            status,
            reason,
            message: "",
        },
        now,
    );
    changed
}

fn set_unready(object: &mut Value, now: Timestamp) -> bool {
    for kind in ["ContainersReady", "Ready"] {
        let condition = Condition {
            kind,
            status: "False",
            reason: "ContainersNotReady",
            message: "",
        };
        set_condition(object, &condition, now);
    }
    for container in object["status"]["containerStatuses"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        container["ready"] = json!(false);
    }
    true
}

fn finish(object: &mut Value, exit_code: i32, now: Timestamp) {
    let (phase, reason) = if exit_code == 0 {
        ("Succeeded", "Completed")
    } else {
        ("Failed", "Error")
    };
    object["status"]["phase"] = json!(phase);
    let time = time_text(now);
    for container in object["status"]["containerStatuses"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        let started = container["state"]["running"]["startedAt"].clone();
        let terminated = json!({"exitCode": exit_code, "reason": reason, "finishedAt": time, "startedAt": started});
        container["state"] = json!({"terminated": terminated});
        container["ready"] = json!(false);
        container["started"] = json!(false);
    }
    for kind in ["ContainersReady", "Ready"] {
        let condition = Condition {
            kind,
            status: "False",
            reason: "PodCompleted",
            message: "",
        };
        set_condition(object, &condition, now);
    }
}

fn running(container: &ContainerFacts, now: Timestamp) -> Value {
    json!({
        "name": container.name, "image": container.image, "imageID": "", "ready": true, "started": true,
        "restartCount": 0, "state": {"running": {"startedAt": time_text(now)}},
    })
}

fn ended(container: &ContainerFacts, exit_code: i32, now: Timestamp) -> Value {
    let time = time_text(now);
    json!({
        "name": container.name, "image": container.image, "imageID": "", "ready": true, "started": false,
        "restartCount": 0,
        "state": {"terminated": {"exitCode": exit_code, "reason": "Completed", "startedAt": time, "finishedAt": time}},
    })
}
