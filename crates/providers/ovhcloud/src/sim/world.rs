//! What the simulated cloud is like: where it is, what it sells, how long things take, and how strange it is.

use std::time::Duration;

use crate::{catalogue::flavors, client::model::Flavor, rights};

/// What the simulated cloud is like.
#[derive(Clone, Debug)]
pub struct World {
    pub region: String,
    /// Empty in one-zone regions.
    pub zones: Vec<String>,
    pub plan: String,
    pub flavors: Vec<Flavor>,
    pub delays: Delays,
    pub max_pools: usize,
    /// The project's cores; `None` is no limit.
    pub cores: Option<u32>,
    /// Nodes per page of a list; 0 is all.
    pub page: usize,
    /// How far the API's clock is ahead of ours, in seconds.
    pub skew: i64,
    /// Access rules of the key, as method and path; `*` matches any text. Empty grants everything.
    pub rules: Vec<(String, String)>,
    pub kube_id: String,
    /// One-zone clusters that want pools to name their zone all the same.
    pub zone_mandatory: bool,
    /// What Nodes say their instance type is.
    pub instance_type_label: InstanceTypeLabel,
    /// Whether NVIDIA's operator makes GPUs a resource of Nodes.
    pub gpu_operator: bool,
    pub reserved_memory: ReservedMemory,
    /// Answers hold fields and states that no documentation knows.
    pub odd: bool,
    /// Whether pools can be told which nodes to remove.
    pub removes_by_name: bool,
    /// Two pools may have one name.
    pub names_repeat: bool,
}

/// What Nodes carry as `node.kubernetes.io/instance-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceTypeLabel {
    Name,
    /// The flavor's id: seen on some clusters.
    Id,
}

/// Which of OVHcloud's two formulas for the kubelet's memory is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservedMemory {
    /// 1590 MiB, whatever the flavor.
    Fixed,
    /// 1.5 GiB and 5 % of the memory.
    Proportional,
}

/// How long things take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delays {
    /// From the making of a pool until it can be read.
    pub visible: Duration,
    /// From a size until machines are listed.
    pub schedule: Duration,
    /// From there until the virtual machine exists.
    pub vm: Duration,
    /// From there until its Node is ready.
    pub boot: Duration,
    /// From a removal until the machine is gone.
    pub delete: Duration,
    /// Reads answer what was so long ago.
    pub stale: Duration,
}

impl Default for World {
    /// A cluster of the Standard plan in a region of three zones, in which everything happens at once.
    fn default() -> Self {
        Self {
            region: "EU-WEST-PAR".to_owned(),
            zones: ["a", "b", "c"].map(|zone| format!("eu-west-par-{zone}")).into(),
            plan: "standard".to_owned(),
            flavors: flavors::all(),
            delays: Delays::default(),
            max_pools: 100,
            cores: None,
            page: 0,
            skew: 0,
            rules: Vec::new(),
            kube_id: super::KUBE_ID.to_owned(),
            zone_mandatory: false,
            instance_type_label: InstanceTypeLabel::Name,
            gpu_operator: true,
            reserved_memory: ReservedMemory::Fixed,
            odd: false,
            removes_by_name: true,
            names_repeat: false,
        }
    }
}

impl World {
    /// The rights that the provider needs, and no more.
    pub fn minimal_rules(kube_id: &str) -> Vec<(String, String)> {
        let rules = rights::minimum(super::SERVICE_NAME, kube_id).into_iter();
        rules.map(|rule| (rule.method, rule.path)).collect()
    }
}

impl Delays {
    /// About as long as the service takes: two minutes from the request to a ready node.
    pub fn realistic() -> Self {
        let seconds = Duration::from_secs;
        Self {
            visible: seconds(2),
            schedule: seconds(3),
            vm: seconds(20),
            boot: seconds(80),
            delete: seconds(30),
            stale: Duration::ZERO,
        }
    }
}
