//! Which pods of a draining node go next, and how: the order of lifecycle.md §5.2 as a pure function.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use karpenter_api::pods;

/// What happens to the pods that refuse to leave by the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtDeadline {
    /// They are deleted early enough to end by the deadline. For nodes that go away.
    ForceDelete,
    /// They are left alone. For nodes that come back (reboot).
    GiveUp,
}

/// One look at a draining node.
#[derive(Debug, Default, PartialEq)]
pub struct Drain {
    /// Pods to delete now, whatever their budgets say: their grace period only just fits before the deadline.
    pub force: Vec<Arc<Pod>>,
    /// Pods to evict now: the first tier that is not empty.
    pub evict: Vec<Arc<Pod>>,
    /// All pods that the drain waits for, including those of later tiers and those already terminating.
    pub waiting: usize,
}

impl Drain {
    /// Plans the next step for the pods of one node.
    pub fn plan<'a>(
        pods_on_node: impl IntoIterator<Item = &'a Arc<Pod>>,
        deadline: Option<Timestamp>,
        at_deadline: AtDeadline,
        now: Timestamp,
    ) -> Drain {
        let mut drain = Drain::default();
        let mut first_tier = None;
        for pod in pods_on_node {
            if !pods::is_waiting_eviction(pod, now) {
                continue;
            }
            drain.waiting += 1;
            let forced = match at_deadline {
                AtDeadline::ForceDelete => needs_force_delete(pod, deadline, now),
                AtDeadline::GiveUp => false,
            };
            if forced {
                drain.force.push(pod.clone());
                continue;
            }
            let tier = Tier::of(pod);
            if first_tier.is_none_or(|first| tier < first) {
                first_tier = Some(tier);
                drain.evict.clear();
            }
            // A terminating pod still occupies its tier, so that the next one waits; there is nothing left to ask of it.
            if first_tier == Some(tier) && pods::is_active(pod) {
                drain.evict.push(pod.clone());
            }
        }
        drain
    }

    /// Whether the node holds no pod that a drain waits for.
    pub fn is_done(&self) -> bool {
        self.waiting == 0
    }
}

/// The four groups that leave one after the other, so that what others depend on (DNS, CNI, storage drivers) leaves last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    Workload,
    Daemon,
    CriticalWorkload,
    CriticalDaemon,
}

impl Tier {
    fn of(pod: &Pod) -> Tier {
        // By name and not by value: a user's own class of the same height is not a promise about the system.
        let class = pod.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref());
        let critical = matches!(class, Some("system-cluster-critical" | "system-node-critical"));
        match (critical, pods::is_owned_by_daemon_set(pod)) {
            (false, false) => Tier::Workload,
            (false, true) => Tier::Daemon,
            (true, false) => Tier::CriticalWorkload,
            (true, true) => Tier::CriticalDaemon,
        }
    }
}

/// Whether `pod` must be deleted now so that its own grace period ends by the node's deadline.
pub fn needs_force_delete(pod: &Pod, deadline: Option<Timestamp>, now: Timestamp) -> bool {
    let Some(deadline) = deadline else { return false };
    if let Some(deletion) = &pod.metadata.deletion_timestamp {
        return deletion.0 > deadline;
    }
    let Some(grace) = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds) else {
        return false;
    };
    now > deadline
        .saturating_sub(SignedDuration::from_secs(grace))
        .unwrap_or(Timestamp::MIN)
}

/// The grace period to send with a forced delete: what is left until the deadline in whole seconds, at least one.
///
/// Zero would erase the pod from the API while its containers may still run.
pub fn remaining_grace(deadline: Timestamp, now: Timestamp) -> u32 {
    let left = deadline.duration_since(now).as_secs();
    u32::try_from(left.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    /// `name[!][@][~]`: `!` critical, `@` of a DaemonSet, `~` terminating.
    fn pod(text: &str) -> Arc<Pod> {
        let mut pod: Pod =
            serde_norway::from_str("{spec: {containers: [], terminationGracePeriodSeconds: 30}}").unwrap();
        pod.metadata.name = Some(text.trim_end_matches(['!', '@', '~']).to_owned());
        if text.contains('!') {
            pod.spec.as_mut().unwrap().priority_class_name = Some("system-node-critical".to_owned());
        }
        if text.contains('@') {
            pod.metadata.owner_references =
                serde_norway::from_str("[{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: u}]").unwrap();
        }
        if text.contains('~') {
            pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
        }
        Arc::new(pod)
    }

    fn names(pods: &[Arc<Pod>]) -> String {
        let names: Vec<&str> = pods.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
        names.join(" ")
    }

    /// `pods` on a node without a deadline: which are evicted now.
    fn check(pods: &str, evicted: &str) {
        let pods: Vec<_> = pods.split_whitespace().map(pod).collect();
        let drain = Drain::plan(&pods, None, AtDeadline::ForceDelete, at(0));
        assert_eq!(names(&drain.evict), evicted);
        assert_eq!(drain.waiting, pods.len());
    }

    #[test]
    fn pods_leave_in_four_tiers() {
        check("dns! agent@ cni!@ web shop", "web shop");
        check("dns! agent@ cni!@", "agent");
        check("dns! cni!@", "dns");
        check("cni!@", "cni");
        check("", "");
    }

    #[test]
    fn a_tier_waits_for_the_terminating_pods_of_the_one_before() {
        check("web~ agent@ dns!", "");
        check("web~ shop agent@", "shop");
    }

    /// One pod with `grace` seconds, a node with a deadline at 300 s: forced after `elapsed` seconds?
    fn check_force(grace: Option<i64>, elapsed: i64, forced: bool) {
        let mut pod = (*pod("db")).clone();
        pod.spec.as_mut().unwrap().termination_grace_period_seconds = grace;
        pod.metadata.annotations = Some([("karpenter.sh/do-not-disrupt".to_owned(), "true".to_owned())].into());
        let drain = Drain::plan(&[Arc::new(pod)], Some(at(300)), AtDeadline::ForceDelete, at(elapsed));
        assert_eq!(
            drain.force.len(),
            usize::from(forced),
            "grace {grace:?} after {elapsed} s"
        );
        assert_eq!(
            drain.evict.len(),
            usize::from(!forced),
            "grace {grace:?} after {elapsed} s"
        );
    }

    #[test]
    fn a_pod_is_deleted_just_early_enough_to_use_its_grace_period() {
        check_force(Some(60), 90, false);
        check_force(Some(60), 240, false);
        check_force(Some(60), 241, true);
        check_force(Some(300), 1, true);
        check_force(Some(600), 0, true);
        check_force(None, 299, false);
    }

    #[test]
    fn a_terminating_pod_is_deleted_again_only_if_it_would_outlive_the_deadline() {
        let mut pod = (*pod("db")).clone();
        let mut check = |deletion: i64, forced: bool| {
            pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(deletion)));
            assert_eq!(needs_force_delete(&pod, Some(at(300)), at(0)), forced);
        };
        check(299, false);
        check(300, false);
        check(301, true);
    }

    #[test]
    fn forced_pods_do_not_wait_for_their_tier() {
        let mut late = (*pod("dns!")).clone();
        late.spec.as_mut().unwrap().termination_grace_period_seconds = Some(200);
        let pods = [pod("web"), Arc::new(late)];
        let drain = Drain::plan(&pods, Some(at(300)), AtDeadline::ForceDelete, at(150));
        assert_eq!(
            (names(&drain.force), names(&drain.evict)),
            ("dns".to_owned(), "web".to_owned())
        );
    }

    #[test]
    fn a_drain_that_gives_up_never_forces() {
        let drain = Drain::plan(&[pod("web")], Some(at(10)), AtDeadline::GiveUp, at(20));
        assert!(drain.force.is_empty());
        assert_eq!(drain.evict.len(), 1);
    }

    #[test]
    fn the_grace_period_of_a_forced_delete_is_what_is_left_and_never_zero() {
        assert_eq!(remaining_grace(at(60), at(0)), 60);
        assert_eq!(remaining_grace(at(1), at(1)), 1);
        assert_eq!(remaining_grace(at(0), at(100)), 1);
    }
}
