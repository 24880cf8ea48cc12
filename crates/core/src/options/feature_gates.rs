//! Features that can be switched on or off (api.md §4.2).

use std::fmt;
use std::str::FromStr;

use super::flags::parse_go_bool;

/// Which features are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureGates {
    /// Replace or reboot nodes that the provider's policies call unhealthy.
    pub node_repair: bool,
    /// Track and prefer reserved offerings.
    pub reserved_capacity: bool,
    /// Consolidate spot nodes onto cheaper spot nodes.
    pub spot_to_spot_consolidation: bool,
    /// Adjust prices and capacities by NodeOverlay objects.
    pub node_overlay: bool,
    /// NodePools with a fixed number of nodes.
    pub static_capacity: bool,
    /// Keep spare room as CapacityBuffer objects ask.
    pub capacity_buffer: bool,
    /// Drifted nodes may go before their replacement comes.
    pub terminate_first_drift: bool,
    /// Unhealthy nodes may go before their replacement comes.
    pub terminate_first_repair: bool,
    /// Steer ReplicaSets' choice of pods to delete.
    pub pod_deletion_cost_management: bool,
}

/// Why a list of gates cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not Name=true or Name=false")]
pub struct GateError(String);

impl Default for FeatureGates {
    fn default() -> Self {
        Self {
            node_repair: false,
            reserved_capacity: true,
            spot_to_spot_consolidation: false,
            node_overlay: false,
            static_capacity: false,
            capacity_buffer: false,
            terminate_first_drift: false,
            terminate_first_repair: false,
            pod_deletion_cost_management: false,
        }
    }
}

impl FeatureGates {
    fn gate(&mut self, name: &str) -> Option<&mut bool> {
        match name {
            "NodeRepair" => Some(&mut self.node_repair),
            "ReservedCapacity" => Some(&mut self.reserved_capacity),
            "SpotToSpotConsolidation" => Some(&mut self.spot_to_spot_consolidation),
            "NodeOverlay" => Some(&mut self.node_overlay),
            "StaticCapacity" => Some(&mut self.static_capacity),
            "CapacityBuffer" => Some(&mut self.capacity_buffer),
            "TerminateFirstDrift" => Some(&mut self.terminate_first_drift),
            "TerminateFirstRepair" => Some(&mut self.terminate_first_repair),
            "PodDeletionCostManagement" => Some(&mut self.pod_deletion_cost_management),
            _ => None,
        }
    }
}

impl FromStr for FeatureGates {
    type Err = GateError;

    /// `Name=bool,Name=bool`; names we do not know belong to other versions and are ignored.
    fn from_str(text: &str) -> Result<Self, GateError> {
        let mut gates = Self::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let malformed = || GateError(pair.to_owned());
            let (name, value) = pair.split_once('=').ok_or_else(malformed)?;
            let value = parse_go_bool(value.trim()).ok_or_else(malformed)?;
            if let Some(gate) = gates.gate(name.trim()) {
                *gate = value;
            }
        }
        Ok(gates)
    }
}

impl fmt::Display for FeatureGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "NodeRepair={},ReservedCapacity={},SpotToSpotConsolidation={},NodeOverlay={},StaticCapacity={},\
             CapacityBuffer={},TerminateFirstDrift={},TerminateFirstRepair={},PodDeletionCostManagement={}",
            self.node_repair,
            self.reserved_capacity,
            self.spot_to_spot_consolidation,
            self.node_overlay,
            self.static_capacity,
            self.capacity_buffer,
            self.terminate_first_drift,
            self.terminate_first_repair,
            self.pod_deletion_cost_management,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_gates_change_and_the_others_keep_their_default() {
        let gates: FeatureGates = " NodeRepair = true ,, ReservedCapacity=f,SomethingElse=true"
            .parse()
            .unwrap();
        assert!(gates.node_repair && !gates.reserved_capacity && !gates.static_capacity);
    }

    #[test]
    fn a_pair_without_a_boolean_is_refused() {
        assert_eq!(
            "NodeRepair".parse::<FeatureGates>().unwrap_err().to_string(),
            r#""NodeRepair" is not Name=true or Name=false"#
        );
        assert!("NodeRepair=yes".parse::<FeatureGates>().is_err());
    }

    #[test]
    fn the_defaults_are_spelled_in_upstreams_order() {
        let text = FeatureGates::default().to_string();
        assert!(
            text.starts_with("NodeRepair=false,ReservedCapacity=true,SpotToSpotConsolidation=false,NodeOverlay=false")
        );
        assert_eq!(text.parse::<FeatureGates>().unwrap(), FeatureGates::default());
    }
}
