//! Amounts of cpu, memory and whatever else pods request and nodes offer, as integers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity;

/// Thousandths of a core for cpu, whole units (bytes, devices, pods) for everything else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resources(BTreeMap<String, i64>);

const NANOS_PER_UNIT: i128 = 1_000_000_000;
const NANOS_PER_MILLI: i128 = 1_000_000;

impl Resources {
    pub(crate) fn new(list: Option<&BTreeMap<String, Quantity>>) -> Self {
        let amounts = list
            .into_iter()
            .flatten()
            .map(|(name, q)| (name.clone(), amount(name, &q.0)));
        Self(amounts.collect())
    }

    pub(crate) fn get(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let total = self.0.entry(name.clone()).or_default();
            *total = total.saturating_add(*amount);
        }
    }

    pub(crate) fn subtract(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let total = self.0.entry(name.clone()).or_default();
            *total = total.saturating_sub(*amount);
        }
    }

    fn raise_to(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let total = self.0.entry(name.clone()).or_default();
            *total = (*total).max(*amount);
        }
    }

    /// What a pod asks of its node: containers and sidecars together, or the hungriest moment of its start-up, plus
    /// overhead (sandbox.md §5.12).
    pub(crate) fn of_pod(spec: &PodSpec) -> Self {
        let requests = |c: &Container| Self::new(c.resources.as_ref().and_then(|r| r.requests.as_ref()));
        let mut running = Self::default();
        for container in &spec.containers {
            running.add(&requests(container));
        }
        let mut sidecars = Self::default();
        let mut peak = Self::default();
        for init in spec.init_containers.iter().flatten() {
            let mut moment = requests(init);
            if init.restart_policy.as_deref() == Some("Always") {
                sidecars.add(&moment);
                moment = sidecars.clone();
            } else {
                moment.add(&sidecars);
            }
            peak.raise_to(&moment);
        }
        running.add(&sidecars);
        running.raise_to(&peak);
        if let Some(pod_level) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) {
            running.0.extend(Self::new(Some(pod_level)).0);
        }
        running.add(&Self::new(spec.overhead.as_ref()));
        running
    }
}

/// Fractions round up, as the scheduler's do; what is no quantity counts as nothing.
fn amount(name: &str, text: &str) -> i64 {
    let nanos = quantity::nanos(text).unwrap_or(0);
    let unit = if name == "cpu" { NANOS_PER_MILLI } else { NANOS_PER_UNIT };
    let rounded = nanos.div_euclid(unit) + i128::from(nanos.rem_euclid(unit) != 0);
    i64::try_from(rounded).unwrap_or(i64::MAX)
}
