//! PodDisruptionBudgets as disruption reads them (disruption.md §1.10).

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::pods;
use crate::model::{LabelSelector, Pod};

/// All budgets of the cluster, by namespace.
#[derive(Debug, Clone, Default)]
pub struct PodDisruptionBudgets {
    by_namespace: BTreeMap<String, Vec<PodDisruptionBudget>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PodDisruptionBudget {
    pub namespace: String,
    pub name: String,
    pub selector: LabelSelector,
    /// `status.disruptionsAllowed`.
    pub disruptions_allowed: i32,
    /// Can never allow anything: `maxUnavailable: 0`, `"0%"` or `minAvailable: "100%"`.
    pub never_allows: bool,
    /// `unhealthyPodEvictionPolicy: AlwaysAllow`.
    pub allows_unhealthy: bool,
}

/// Why the eviction API would refuse a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// `namespace/name` of the budget that has nothing left.
    Exhausted(String),
    /// The eviction API refuses a pod that several budgets cover, whatever they allow.
    Several(Vec<String>),
}

impl PodDisruptionBudgets {
    pub fn new(budgets: impl IntoIterator<Item = PodDisruptionBudget>) -> PodDisruptionBudgets {
        let mut by_namespace: BTreeMap<String, Vec<PodDisruptionBudget>> = BTreeMap::new();
        for budget in budgets {
            by_namespace.entry(budget.namespace.clone()).or_default().push(budget);
        }
        for budgets in by_namespace.values_mut() {
            budgets.sort_by(|a, b| a.name.cmp(&b.name));
        }
        PodDisruptionBudgets { by_namespace }
    }

    /// Whether this pod, looked at alone, could be evicted now.
    pub fn check(&self, pod: &Pod, now: Timestamp) -> Result<(), Refusal> {
        self.judge(pod, now, |budget| budget.disruptions_allowed <= 0)
    }

    /// Whether this pod could ever be evicted: a budget that is merely used up now does not count.
    pub fn check_ever(&self, pod: &Pod, now: Timestamp) -> Result<(), Refusal> {
        self.judge(pod, now, |budget| budget.never_allows)
    }

    /// Whether a pod of a node that goes away needs another place now: it would be made anew, nothing protects it, and no
    /// budget keeps it where it is for good. Room for a pod that may never leave would be waste (disruption.md §1.8).
    pub fn let_move(&self, pod: &Pod, now: Timestamp) -> bool {
        pods::is_reschedulable(pod) && !pods::is_protected(pod, now) && self.check_ever(pod, now).is_ok()
    }

    fn judge(&self, pod: &Pod, now: Timestamp, refuses: impl Fn(&PodDisruptionBudget) -> bool) -> Result<(), Refusal> {
        let Some(budgets) = self.by_namespace.get(&*pod.namespace) else {
            return Ok(());
        };
        if !pods::is_evictable(pod, now) {
            return Ok(());
        }
        let mut covering = budgets.iter().filter(|budget| budget.selector.matches(&pod.labels));
        let Some(first) = covering.next() else { return Ok(()) };
        if let Some(second) = covering.next() {
            return Err(Refusal::Several(
                [first, second]
                    .into_iter()
                    .chain(covering)
                    .map(PodDisruptionBudget::key)
                    .collect(),
            ));
        }
        if first.allows_unhealthy && !pod.ready {
            return Ok(());
        }
        if refuses(first) {
            Err(Refusal::Exhausted(first.key()))
        } else {
            Ok(())
        }
    }
}

impl PodDisruptionBudget {
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
