//! Host ports in use on a node.

use crate::model::HostPort;

/// The first of `wanted` that is taken.
pub(crate) fn conflict(taken: &[HostPort], wanted: &[HostPort]) -> Option<HostPort> {
    wanted
        .iter()
        .find(|port| taken.iter().any(|other| port.conflicts_with(other)))
        .copied()
}
