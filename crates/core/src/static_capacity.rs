//! NodePools with `replicas`: so many nodes, whatever pods there are (gate StaticCapacity).

pub mod deprovisioning;
pub mod provisioning;
pub mod scale_down;
