//! PodDisruptionBudgets: which of them stand in the way of moving a pod (lifecycle.md §0.7).

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use karpenter_api::pods;
use karpenter_api::selector::Selector;

use crate::watch::{Cache, Key};

/// All budgets as of a moment.
#[derive(Clone, Debug, Default)]
pub struct Budgets(Vec<Budget>);

#[derive(Clone, Debug)]
struct Budget {
    key: Key,
    selector: Option<Selector>,
    disruptions_allowed: i32,
    fully_blocking: bool,
    unhealthy_pods_may_go: bool,
}

/// What counts as standing in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// A budget that allows no disruption right now.
    NoDisruptionsLeft,
    /// A budget that can never allow one: `maxUnavailable: 0` or `minAvailable: 100%`.
    FullyBlocking,
}

impl Budgets {
    /// What the cache holds now.
    pub fn of(cache: &Cache<PodDisruptionBudget>) -> Self {
        let mut budgets: Vec<Budget> = cache.list().iter().map(Budget::of).collect();
        budgets.sort_by(|a, b| a.key.cmp(&b.key));
        Self(budgets)
    }

    /// The budgets that keep `pod` from being evicted; none if it may be, or will not be evicted anyway.
    pub fn blocking(&self, pod: &Pod, blocker: Blocker, now: Timestamp) -> Vec<Key> {
        if !pods::is_evictable(pod, now) {
            return Vec::new();
        }
        let matching: Vec<&Budget> = self.0.iter().filter(|budget| budget.selects(pod)).collect();
        // The eviction API refuses pods with several budgets altogether.
        if matching.len() > 1 {
            return matching.iter().map(|budget| budget.key.clone()).collect();
        }
        let in_the_way = |budget: &&&Budget| {
            if budget.unhealthy_pods_may_go && is_unready(pod) {
                return false;
            }
            match blocker {
                Blocker::NoDisruptionsLeft => budget.disruptions_allowed == 0,
                Blocker::FullyBlocking => budget.fully_blocking,
            }
        };
        matching
            .iter()
            .filter(in_the_way)
            .map(|budget| budget.key.clone())
            .collect()
    }

    /// Whether a pod on a node that goes away needs a new place now: it would be rescheduled, nothing protects it, and
    /// no budget keeps it where it is for good. Capacity is not bought ahead for pods that cannot leave.
    pub fn is_currently_reschedulable(&self, pod: &Pod, now: Timestamp) -> bool {
        pods::is_reschedulable(pod)
            && pods::is_disruptable(pod, now)
            && self.blocking(pod, Blocker::FullyBlocking, now).is_empty()
    }
}

impl Budget {
    fn of(budget: &Arc<PodDisruptionBudget>) -> Self {
        let spec = budget.spec.clone().unwrap_or_default();
        let zero = |value: &IntOrString| match value {
            IntOrString::Int(number) => *number == 0,
            IntOrString::String(text) => text == "0%",
        };
        let everything = |value: &IntOrString| matches!(value, IntOrString::String(text) if text == "100%");
        Self {
            key: Key::of(&**budget),
            // An unreadable selector selects nothing here as in the API server.
            selector: spec
                .selector
                .as_ref()
                .and_then(|selector| Selector::try_from(selector).ok()),
            disruptions_allowed: budget.status.as_ref().map_or(0, |status| status.disruptions_allowed),
            fully_blocking: spec.max_unavailable.as_ref().is_some_and(zero)
                || spec.min_available.as_ref().is_some_and(everything),
            unhealthy_pods_may_go: spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow"),
        }
    }

    fn selects(&self, pod: &Pod) -> bool {
        let Some(selector) = &self.selector else { return false };
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        pod.metadata.namespace.as_deref().unwrap_or_default() == &*self.key.namespace && selector.matches(&labels)
    }
}

fn is_unready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "False")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(budgets: &[&str], pod: &str, blocker: Blocker, expect: &[&str]) {
        let cache = Cache::new("PodDisruptionBudget");
        for (number, spec) in budgets.iter().enumerate() {
            let text = format!("{{metadata: {{name: b{number}, namespace: a}}, {spec}}}");
            let budget: PodDisruptionBudget = serde_norway::from_str(&text).unwrap();
            cache.apply(Key::of(&budget), "1", budget);
        }
        let pod: Pod = serde_norway::from_str(&format!(
            "{{metadata: {{name: p, namespace: a, labels: {{app: web}}}}, {pod}}}"
        ))
        .unwrap();
        let blocking: Vec<String> = Budgets::of(&cache)
            .blocking(&pod, blocker, Timestamp::UNIX_EPOCH)
            .iter()
            .map(|key| key.name.to_string())
            .collect();
        assert_eq!(blocking, expect, "{budgets:?} {pod:?}");
    }

    const RUNNING: &str = "status: {phase: Running}";
    const UNREADY: &str = "status: {phase: Running, conditions: [{type: Ready, status: 'False'}]}";
    const USED_UP: &str = "spec: {selector: {matchLabels: {app: web}}}, status: {disruptionsAllowed: 0, currentHealthy: 1, desiredHealthy: 1, expectedPods: 1}";
    const ROOM: &str = "spec: {selector: {matchLabels: {app: web}}}, status: {disruptionsAllowed: 1, currentHealthy: 1, desiredHealthy: 1, expectedPods: 1}";
    const ZERO: &str = "spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 0}";
    const OTHER: &str = "spec: {selector: {matchLabels: {app: db}}, maxUnavailable: 0}";

    #[test]
    fn a_budget_blocks_the_pods_it_selects() {
        check(&[USED_UP], RUNNING, Blocker::NoDisruptionsLeft, &["b0"]);
        check(&[ROOM], RUNNING, Blocker::NoDisruptionsLeft, &[]);
        check(&[OTHER], RUNNING, Blocker::NoDisruptionsLeft, &[]);
    }

    #[test]
    fn only_a_budget_that_can_never_allow_anything_is_fully_blocking() {
        check(&[USED_UP], RUNNING, Blocker::FullyBlocking, &[]);
        check(&[ZERO], RUNNING, Blocker::FullyBlocking, &["b0"]);
        check(
            &["spec: {selector: {}, minAvailable: 100%}"],
            RUNNING,
            Blocker::FullyBlocking,
            &["b0"],
        );
        check(
            &["spec: {selector: {}, minAvailable: 1}"],
            RUNNING,
            Blocker::FullyBlocking,
            &[],
        );
    }

    #[test]
    fn several_budgets_block_whatever_they_say() {
        check(&[ROOM, ROOM], RUNNING, Blocker::FullyBlocking, &["b0", "b1"]);
    }

    #[test]
    fn unhealthy_pods_may_go_where_the_budget_says_so() {
        let always = "spec: {selector: {}, maxUnavailable: 0, unhealthyPodEvictionPolicy: AlwaysAllow}";
        check(&[always], UNREADY, Blocker::FullyBlocking, &[]);
        check(&[always], RUNNING, Blocker::FullyBlocking, &["b0"]);
    }

    #[test]
    fn pods_that_will_not_be_evicted_are_not_blocked() {
        check(&[ZERO], "status: {phase: Succeeded}", Blocker::FullyBlocking, &[]);
    }
}
