//! What CloudStack refused lately: offerings, networks, quotas (cloudstack.md §7.7).

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use karpenter_cloud::{
    clock::{Clock, later},
    unavailable::{MarkBackoff, UnavailableOfferings},
};
use parking_lot::Mutex;

use crate::{
    catalogue::shapes::Shape,
    node_class::{CapacityType, CloudStackNodeClass},
    resolve::{ResolvedOffering, ResolvedZone},
};

/// Remembers refusals.
#[derive(Debug)]
pub struct Unavailable {
    clock: Clock,
    marks: UnavailableOfferings<Key>,
    held_for: Duration,
    /// Failures that the server does not explain, by offering and zone.
    unexplained: Mutex<BTreeMap<(String, String), Vec<Timestamp>>>,
}

/// What a mark is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Offering {
        capacity_type: CapacityType,
        offering: String,
        cpu: i64,
        memory: i64,
        zone: String,
        /// Affinity groups and pins: a refusal because of them says nothing about launches without.
        placement: String,
    },
    Network(String),
    Zone(String),
    /// Machines that need at least so much of a resource.
    Quota {
        project: String,
        resource: String,
        least: i64,
    },
}

/// A start that failed without a reason is avoided only briefly.
const START_FAILED: Duration = Duration::from_secs(60);
const QUOTA: Duration = Duration::from_secs(60);
/// So many unexplained failures in so long count as missing capacity.
const UNEXPLAINED: (usize, Duration) = (3, Duration::from_secs(600));

impl Unavailable {
    pub fn new(clock: Clock, held_for: Duration) -> Self {
        Self {
            marks: UnavailableOfferings::new(clock.clone(), MarkBackoff::constant(held_for)),
            clock,
            held_for,
            unexplained: Mutex::default(),
        }
    }

    /// Changes with every mark and expiry.
    pub fn version(&self) -> u64 {
        self.marks.version()
    }

    /// Whether a machine of this shape should not be asked for in the zone now.
    pub fn refuses(
        &self,
        class: &CloudStackNodeClass,
        own: &ResolvedOffering,
        shape: Shape,
        zone: &ResolvedZone,
    ) -> bool {
        let key = offering_key(class, own, shape, &zone.zone.id);
        let all_networks = || {
            zone.networks
                .iter()
                .all(|net| self.marks.get(&Key::Network(net.id.clone())).is_some())
        };
        self.marks.get(&key).is_some()
            || self.marks.get(&Key::Zone(zone.zone.id.clone())).is_some()
            || (!zone.networks.is_empty() && all_networks())
            || self.quota_refuses(class, shape)
    }

    fn quota_refuses(&self, class: &CloudStackNodeClass, shape: Shape) -> bool {
        let project = class.spec.project.clone().unwrap_or_default();
        self.marks.marks().into_iter().any(|(key, _)| match key {
            Key::Quota {
                project: own,
                resource,
                least,
            } if own == project => match resource.as_str() {
                "cpu" => shape.cpu >= least,
                "memory" => shape.memory >= least,
                _ => true,
            },
            _ => false,
        })
    }

    pub fn is_network_marked(&self, id: &str) -> bool {
        self.marks.get(&Key::Network(id.to_owned())).is_some()
    }

    pub fn mark_offering(
        &self,
        class: &CloudStackNodeClass,
        own: &ResolvedOffering,
        shape: Shape,
        zone: &str,
        why: &str,
    ) {
        self.marks.mark(offering_key(class, own, shape, zone), why);
    }

    /// The server hides why the start failed.
    pub fn mark_start_failed(&self, class: &CloudStackNodeClass, own: &ResolvedOffering, shape: Shape, zone: &str) {
        let key = offering_key(class, own, shape, zone);
        self.marks.mark_for(key, "the machine did not start", START_FAILED);
    }

    /// Counts a failure without a reason; several become a mark.
    pub fn note_unexplained(&self, class: &CloudStackNodeClass, own: &ResolvedOffering, shape: Shape, zone: &str) {
        let now = self.clock.now();
        let (most, within) = UNEXPLAINED;
        let is_too_many = {
            let mut unexplained = self.unexplained.lock();
            let seen = unexplained
                .entry((own.offering.id.clone(), zone.to_owned()))
                .or_default();
            seen.retain(|at| later(*at, within) > now);
            seen.push(now);
            seen.len() >= most
        };
        if is_too_many {
            self.mark_offering(class, own, shape, zone, "it failed three times for unknown reasons");
        }
    }

    pub fn mark_network(&self, id: &str, why: &str) {
        self.marks.mark_for(Key::Network(id.to_owned()), why, self.held_for);
    }

    pub fn mark_zone(&self, id: &str, why: &str) {
        self.marks.mark_for(Key::Zone(id.to_owned()), why, self.held_for);
    }

    pub fn mark_quota(&self, class: &CloudStackNodeClass, resource: &str, shape: Shape) {
        let least = match resource {
            "cpu" => shape.cpu,
            "memory" => shape.memory,
            _ => 0,
        };
        let key = Key::Quota {
            project: class.spec.project.clone().unwrap_or_default(),
            resource: resource.to_owned(),
            least,
        };
        self.marks
            .mark_for(key, format!("the quota of {resource} is used up"), QUOTA);
    }

    /// A machine went: what it used is free again.
    pub fn clear_quota(&self) {
        self.marks.clear(|key, _| matches!(key, Key::Quota { .. }));
    }
}

fn offering_key(class: &CloudStackNodeClass, own: &ResolvedOffering, shape: Shape, zone: &str) -> Key {
    let spec = &class.spec;
    let placement = serde_json::json!([spec.affinity_groups, spec.placement]);
    Key::Offering {
        capacity_type: own.capacity_type,
        offering: own.offering.id.clone(),
        cpu: shape.cpu,
        memory: shape.memory,
        zone: zone.to_owned(),
        placement: if spec.affinity_groups.is_none() && spec.placement.is_none() {
            String::new()
        } else {
            placement.to_string()
        },
    }
}
