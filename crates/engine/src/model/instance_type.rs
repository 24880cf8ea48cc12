//! Machine shapes as a provider describes them: resources, labels, and the offerings they are sold in.

use std::collections::BTreeMap;

use karpenter_api::labels;
use karpenter_api::requirement::Requirements;
use karpenter_api::resources::ResourceList;

#[derive(Debug, Clone, PartialEq)]
pub struct InstanceType {
    pub name: String,
    /// Every well-known key that the type defines, possibly as `DoesNotExist`.
    pub requirements: Requirements,
    pub offerings: Vec<Offering>,
    pub capacity: ResourceList,
    pub overhead: Overhead,
    /// How many volumes of a CSI driver can be attached; an undeclared driver is unlimited.
    pub volume_limits: BTreeMap<String, u32>,
    /// Set when a NodeOverlay changed what the provider said.
    pub capacity_overlaid: bool,
}

impl InstanceType {
    /// What pods can use of it, by offerings that change nothing.
    pub fn allocatable(&self) -> ResourceList {
        crate::catalog::rows::allocatable(self, &OfferingOverrides::default())
    }
}

/// One way to buy an instance type: zone × capacity type (× reservation).
#[derive(Debug, Clone, PartialEq)]
pub struct Offering {
    /// Must name a capacity type and a zone.
    pub requirements: Requirements,
    /// Per hour.
    pub price: f64,
    /// Healthy: the provider believes that it could be had.
    pub available: bool,
    /// Slots left in the reservation; meaningful for reserved offerings only.
    pub reservation_capacity: u32,
    pub overrides: OfferingOverrides,
    pub price_overlaid: bool,
}

impl Offering {
    /// Bought from a reservation.
    pub fn is_reserved(&self) -> bool {
        let capacity_type = self.requirements.get(labels::CAPACITY_TYPE);
        capacity_type.and_then(|r| r.single_value()) == Some(labels::CAPACITY_TYPE_RESERVED)
    }

    /// Could be bought right now: healthy, and not a reservation that is full (scheduling.md §4.2).
    pub fn is_launchable(&self) -> bool {
        self.available && (!self.is_reserved() || self.reservation_capacity > 0)
    }
}

/// What an offering changes about its type's resources (scheduling.md §2.5).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OfferingOverrides {
    pub capacity: ResourceList,
    pub overhead: ResourceList,
}

/// What is taken from a machine's capacity before pods see it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Overhead {
    pub kube_reserved: ResourceList,
    pub system_reserved: ResourceList,
    pub eviction_threshold: ResourceList,
}
