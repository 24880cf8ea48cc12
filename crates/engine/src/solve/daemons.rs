//! DaemonSets: what they take from every node before other pods see it (scheduling.md §2.6).

use std::sync::Arc;

use super::demand::Demand;
use crate::model::{DaemonPod, HostPort, Toleration};
use crate::tables::{Amounts, Dims, Tables};

#[derive(Debug, Clone)]
pub(crate) struct Daemon {
    /// One of these must hold: the node selector with each required term.
    pub(crate) terms: Vec<Demand>,
    /// With a blanket toleration of PreferNoSchedule, which the DaemonSet controller does not care about.
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) requests: Amounts,
    pub(crate) ports: Vec<HostPort>,
}

impl Daemon {
    pub(crate) fn all(tables: &mut Tables, dims: &mut Dims, daemons: &[Arc<DaemonPod>]) -> Vec<Daemon> {
        // The order of the input must not show; sums do not depend on it, but groups are numbered by it.
        let mut sorted: Vec<&Arc<DaemonPod>> = daemons.iter().collect();
        sorted.sort_by_key(|daemon| (daemon.namespace.clone(), daemon.name.clone()));
        sorted
            .into_iter()
            .map(|daemon| Daemon::new(tables, dims, daemon))
            .collect()
    }

    fn new(tables: &mut Tables, dims: &mut Dims, daemon: &DaemonPod) -> Daemon {
        let spec = &daemon.spec;
        let mut terms: Vec<Demand> = spec
            .required_node_terms
            .iter()
            .map(|term| Demand::new(tables, &spec.node_selector, term))
            .collect();
        if terms.is_empty() {
            terms.push(Demand::new(tables, &spec.node_selector, []));
        }
        let blanket = Toleration::prefer_no_schedule();
        Daemon {
            terms,
            tolerations: spec.tolerations.iter().cloned().chain([blanket]).collect(),
            requests: dims.demand(&daemon.requests),
            ports: spec.host_ports.clone(),
        }
    }
}

/// Adds `more` to `sum`, whichever has more dimensions.
pub(crate) fn add(sum: &mut Amounts, more: &[i64]) {
    if sum.len() < more.len() {
        sum.resize(more.len(), 0);
    }
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = sum.saturating_add(*more);
    }
}
