//! What MKS does on its own: heals and upgrades nodes, and runs its own autoscaler.

use std::time::Duration;

use jiff::Timestamp;
use karpenter_cloud::clock::later;

use super::state::{SimNode, SimState};

/// A rolling upgrade that is under way.
#[derive(Clone, Debug)]
pub(super) struct Upgrade {
    version: String,
    /// Nodes that still have the old version, the next one last.
    left: Vec<String>,
    step: Option<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    /// Standard plan: a node beyond the pool's size boots, then the old one goes.
    Surge {
        old: String,
        new: String,
    },
    Draining {
        old: String,
    },
    /// Free plan: upgraded in place.
    InPlace {
        node: String,
        until: Timestamp,
    },
}

/// So long OVHcloud's own autoscaler watches a node before it takes it.
const UNNEEDED_AFTER: Duration = Duration::from_secs(600);

impl SimState {
    /// A node that was not ready for too long: reinstalled in place on the Free plan, replaced on the Standard plan.
    pub fn heal(&mut self, node: &str) {
        let Some(old) = self.nodes.get(node).cloned() else {
            return;
        };
        if self.world.plan == "standard" {
            self.end_unasked(&old.id);
            self.make_node(&old.pool);
            return;
        }
        let until = later(self.now, self.world.delays.boot);
        if let Some(node) = self.nodes.get_mut(node) {
            node.status = "REDEPLOYING".to_owned();
            node.boot_at = Some(until);
        }
    }

    /// Starts to bring all nodes to a version, one after the other.
    pub fn upgrade(&mut self, version: &str) {
        let mut left: Vec<&SimNode> = self.nodes.values().filter(|node| node.status == "READY").collect();
        left.sort_by_key(|node| std::cmp::Reverse(node.number));
        self.upgrade = Some(Upgrade {
            version: version.to_owned(),
            left: left.into_iter().map(|node| node.id.clone()).collect(),
            step: None,
        });
        self.cluster_status = "UPDATING".to_owned();
        for pool in self.pools.values_mut() {
            pool.status = "UPDATING".to_owned();
        }
        self.go_on_upgrading();
    }

    pub fn is_upgrading(&self) -> bool {
        self.upgrade.is_some()
    }

    pub(super) fn go_on_upgrading(&mut self) {
        loop {
            let Some(mut upgrade) = self.upgrade.take() else { return };
            let next = match upgrade.step.clone() {
                Some(Step::Surge { old, new }) => match self.nodes.get(&new).map(|node| node.status.as_str()) {
                    Some("READY") => {
                        self.end_unasked(&old);
                        Some(Step::Draining { old })
                    }
                    Some(_) => Some(Step::Surge { old, new }),
                    None => None,
                },
                Some(Step::Draining { old }) if self.nodes.contains_key(&old) => Some(Step::Draining { old }),
                Some(Step::InPlace { node, until }) if self.now < until => Some(Step::InPlace { node, until }),
                Some(Step::InPlace { node, .. }) => {
                    if let Some(node) = self.nodes.get_mut(&node) {
                        node.status = "READY".to_owned();
                        node.version.clone_from(&upgrade.version);
                    }
                    None
                }
                Some(Step::Draining { .. }) | None => None,
            };
            if next.is_some() {
                upgrade.step = next;
                self.upgrade = Some(upgrade);
                return;
            }
            let Some(old) = upgrade.left.pop() else {
                self.finish_upgrade();
                return;
            };
            let Some(pool) = self.nodes.get(&old).map(|node| node.pool.clone()) else {
                // Somebody removed it meanwhile.
                upgrade.step = None;
                self.upgrade = Some(upgrade);
                continue;
            };
            upgrade.step = Some(if self.world.plan == "standard" {
                let new = self.make_node(&pool).unwrap_or_default();
                if let Some(node) = self.nodes.get_mut(&new) {
                    node.version.clone_from(&upgrade.version);
                }
                Step::Surge { old, new }
            } else {
                let until = later(self.now, self.world.delays.boot);
                if let Some(node) = self.nodes.get_mut(&old) {
                    node.status = "UPDATING".to_owned();
                }
                Step::InPlace { node: old, until }
            });
            self.upgrade = Some(upgrade);
            return;
        }
    }

    fn finish_upgrade(&mut self) {
        self.upgrade = None;
        self.cluster_status = "READY".to_owned();
        for pool in self.pools.values_mut() {
            if pool.status == "UPDATING" {
                pool.status = "READY".to_owned();
            }
        }
    }

    /// OVHcloud's own autoscaler, for pools that it is on for: takes the newest node once it was on for ten minutes.
    pub(super) fn autoscale(&mut self) {
        let now = self.now;
        let due: Vec<String> = self
            .pools
            .values()
            .filter(|pool| pool.autoscale && pool.desired > pool.min)
            .filter(|pool| pool.autoscaled_at.is_some_and(|at| later(at, UNNEEDED_AFTER) <= now))
            .map(|pool| pool.id.clone())
            .collect();
        for id in due {
            let newest = self.live(&id).pop();
            if let Some(pool) = self.pools.get_mut(&id) {
                pool.desired -= 1;
                pool.autoscaled_at = Some(now);
                let desired = pool.desired;
                pool.history.push((now, desired));
            }
            if let Some(node) = newest {
                self.autoscaler_removals.push(node.id.clone());
                self.end_unasked(&node.id);
            }
        }
    }

    /// When MKS goes on with what it does on its own.
    pub(super) fn next_of_mks(&self) -> Option<Timestamp> {
        let upgraded = self.upgrade.as_ref().and_then(|upgrade| match upgrade.step {
            Some(Step::InPlace { until, .. }) => Some(until),
            Some(Step::Surge { .. } | Step::Draining { .. }) | None => None,
        });
        let autoscaled = self
            .pools
            .values()
            .filter(|pool| pool.autoscale && pool.desired > pool.min);
        let autoscaled = autoscaled.filter_map(|pool| Some(later(pool.autoscaled_at?, UNNEEDED_AFTER)));
        autoscaled.chain(upgraded).min()
    }

    /// Somebody changes a pool's size at the console.
    pub fn resize_by_hand(&mut self, pool: &str, desired: u32) {
        let update = crate::client::model::PoolUpdate {
            desired_nodes: Some(desired),
            ..Default::default()
        };
        self.update_pool(pool, &update).expect("a size that the pool allows");
        // What somebody else took away was not our doing.
        self.unnamed_removals.clear();
    }

    /// Somebody deletes a pool at the console.
    pub fn delete_by_hand(&mut self, pool: &str) {
        self.delete_pool(pool).expect("the pool exists");
    }
}
