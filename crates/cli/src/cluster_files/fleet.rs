//! The cluster as disruption looks at it: claims, pool policies and PodDisruptionBudgets besides the snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node as KubeNode;
use karpenter_api::labels::annotations;
use karpenter_engine::convert;
use karpenter_engine::disruption::{
    ClaimFacts, Fleet, Gates, Health, Member, PodDisruptionBudgets, PoolPolicy, Standing,
};
use karpenter_engine::model::{Node, Snapshot};

use super::ClusterFiles;

/// What is kept for disruption while the rest of the objects is turned into a snapshot.
#[derive(Debug)]
pub(crate) struct DisruptionFacts {
    claims: BTreeMap<String, Arc<ClaimFacts>>,
    nodes: BTreeMap<String, Standing>,
    policies: BTreeMap<String, PoolPolicy>,
    budgets: PodDisruptionBudgets,
}

/// Whether timestamps in the input say how settled a node is, or every node counts as settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timestamps {
    /// The user chose the time, so ages mean something.
    Count,
    /// A dump is old by the time that it is looked at: time conditions are taken as met.
    Ignored,
}

impl ClusterFiles {
    pub(super) fn disruption_facts(&self) -> DisruptionFacts {
        let claims = self.claims.iter().map(convert::claim_disruption);
        let nodes = self
            .nodes
            .iter()
            .map(|node| (node.metadata.name.clone().unwrap_or_default(), standing(node)));
        let policies = self.pools.iter().map(|pool| {
            let name = pool.metadata.name.clone().unwrap_or_default();
            (name, convert::pool_policy(pool, 0.0, true))
        });
        DisruptionFacts {
            claims: claims.map(|claim| (claim.name.clone(), Arc::new(claim))).collect(),
            nodes: nodes.collect(),
            policies: policies.collect(),
            budgets: PodDisruptionBudgets::new(self.disruption_budgets.iter().map(convert::pod_disruption_budget)),
        }
    }
}

/// What the Node object itself says about disturbing it.
fn standing(node: &KubeNode) -> Standing {
    let annotation = node
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(annotations::DO_NOT_DISRUPT));
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    Standing {
        do_not_disrupt: annotation.is_some_and(|value| value == "true"),
        // A manifest without conditions is taken to be fine.
        not_ready: ready.is_some_and(|ready| ready.status != "True"),
        ..Standing::default()
    }
}

impl DisruptionFacts {
    /// The fleet of a snapshot.
    pub(crate) fn fleet(&self, snapshot: &Snapshot, timestamps: Timestamps) -> Fleet {
        let now = snapshot.options.now;
        let members = snapshot.nodes.iter().map(|node| self.member(node, timestamps, now));
        let mut policies = self.policies.clone();
        for (name, policy) in &mut policies {
            let types = snapshot.catalog.pool(name);
            policy.has_instance_types = types.is_some_and(|pool| !pool.instance_types.is_empty());
            if let Some(size) = &mut policy.fixed {
                let nodes = snapshot
                    .nodes
                    .iter()
                    .filter(|node| node.node_pool.as_deref() == Some(name));
                (size.deleting, size.active) = nodes.fold((0, 0), |(deleting, active), node| match node.deleting {
                    true => (deleting + 1, active),
                    false => (deleting, active + 1),
                });
                // Manifests seldom carry a status: a pool that is there is taken to be ready.
                size.refills = true;
            }
        }
        Fleet {
            snapshot: snapshot.clone(),
            members: members.collect(),
            pools: Arc::new(policies),
            pod_budgets: Arc::new(self.budgets.clone()),
            gates: Gates::default(),
            reservation_label: None,
        }
    }

    fn member(&self, node: &Arc<Node>, timestamps: Timestamps, now: jiff::Timestamp) -> Member {
        let claim = node
            .node_claim
            .as_deref()
            .and_then(|name| self.claims.get(name))
            .map(|claim| {
                let mut claim = (**claim).clone();
                let after = node
                    .node_pool
                    .as_deref()
                    .and_then(|pool| self.policies.get(pool)?.consolidate_after);
                claim.consolidatable = match (timestamps, claim.quiet_since(), after) {
                    (Timestamps::Count, Some(quiet_since), Some(after)) => now.duration_since(quiet_since) >= after,
                    _ => true,
                };
                if timestamps == Timestamps::Ignored {
                    claim.last_pod_event = None;
                    claim.initialized_since = None;
                }
                Arc::new(claim)
            });
        let mut standing = self.nodes.get(&*node.name).cloned().unwrap_or_default();
        standing.leaving = node.deleting;
        Member {
            node: Arc::clone(node),
            claim,
            standing,
            health: Health::default(),
        }
    }
}
