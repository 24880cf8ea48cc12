//! Kubernetes objects into the engine's model: pure functions, one file per concept.
//!
//! `karpenter simulate` and the controller's state both come through this door, so that what is tried offline is what the
//! cluster would decide. Conversion keeps what scheduling reads and drops the rest; parts that many pods share go through
//! an [`Interner`].

pub mod buffer;
mod constraints;
mod daemon;
mod disruption;
mod interner;
mod node;
mod pod;
mod pool;
mod ports;
mod resources;
mod selector;
mod taint;
mod validation;
mod volume;

pub use constraints::{pod_constraints, spread_constraint};
pub use daemon::{daemon_from_template, daemon_pod};
pub use disruption::{claim_disruption, pod_disruption_budget, pool_policy, tuning};
pub use interner::Interner;
pub use node::{NodeObjects, node};
pub use pod::{PodIntake, owner};
pub use pool::node_pool;
pub use ports::host_ports;
pub use resources::{default_requests, pod_limits, pod_requests};
pub use selector::{label_selector, namespace_scope};
pub use taint::{taints, tolerations};
pub use validation::PodProblem;
pub use volume::{claim_facts, claim_from_template, volume_claims, volume_problems};

use karpenter_api::quantity::QuantityError;

/// Why an object can't be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error("{field}: {source}")]
    Quantity { field: &'static str, source: QuantityError },
    #[error("{0} is missing")]
    Missing(&'static str),
}

impl ConvertError {
    fn quantity(field: &'static str) -> impl FnOnce(QuantityError) -> Self {
        move |source| Self::Quantity { field, source }
    }
}
