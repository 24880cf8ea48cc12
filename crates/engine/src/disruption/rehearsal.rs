//! "What if these nodes were gone?", asked of the scheduler (disruption.md §10).

use std::sync::Arc;

use jiff::SignedDuration;
use rustc_hash::FxHashSet;

use super::candidate::Candidate;
use super::fleet::{Fleet, Member};
use super::pods;
use crate::model::{Pod, ReservedMode};
use crate::plan::Plan;
use crate::simulation::{Simulator, WhatIf};

/// Asks the scheduler about one fleet, many times; the fleet is interned once.
#[derive(Debug)]
pub struct Rehearsal<'a> {
    fleet: &'a Fleet,
    simulator: Simulator,
    /// Nodes on which pods came or went less than their pool's consolidateAfter ago.
    unsettled: Vec<Arc<str>>,
    not_up: FxHashSet<Arc<str>>,
    leaving: FxHashSet<Arc<str>>,
    /// New nodes that the pending pods need, whatever becomes of the others; worked out when first asked for.
    for_pending: Option<usize>,
}

/// Whether pods may be moved to nodes that are not settled yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destinations {
    Any,
    /// Not to nodes where pods came or went lately: moves must not chase each other (disruption.md §10.3).
    Settled,
}

/// Which pods of the candidates need another place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moving {
    /// Those that can be evicted: room for a pod that may never leave would be waste.
    CanLeave,
    /// All of them: the drain is bounded, so they will leave.
    All,
}

/// Which capacity the pods may be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reserved {
    /// Reservations where there is room, anything else otherwise.
    OrOther,
    /// Reservations only where they fit, with one more slot in this one: its holder is gone.
    WithSlot(String),
}

/// Where everything would go.
#[derive(Debug)]
pub struct Outcome {
    pub plan: Plan,
    /// Pods that have a place now and would have none, with the reason.
    stranded: Vec<(String, String)>,
}

impl<'a> Rehearsal<'a> {
    pub fn new(fleet: &'a Fleet) -> Rehearsal<'a> {
        let names = |wanted: &dyn Fn(&Member) -> bool| -> FxHashSet<Arc<str>> {
            let members = fleet.members.iter().filter(|member| wanted(member));
            members.map(|member| Arc::clone(&member.node.name)).collect()
        };
        Rehearsal {
            fleet,
            simulator: Simulator::new(&fleet.snapshot),
            unsettled: names(&|member| !is_settled(fleet, member)).into_iter().collect(),
            not_up: names(&|member| !member.node.is_initialized()),
            leaving: names(&|member| member.standing.leaving),
            for_pending: None,
        }
    }

    /// How many new nodes the pods that wait already need, with every node in place.
    pub fn new_nodes_for_pending(&mut self) -> usize {
        if self.fleet.snapshot.pods.is_empty() {
            return 0;
        }
        if let Some(count) = self.for_pending {
            return count;
        }
        let count = self
            .ask(&[], Vec::new(), Destinations::Any, &Reserved::OrOther)
            .plan
            .claims
            .len();
        self.for_pending = Some(count);
        count
    }

    pub fn fleet(&self) -> &'a Fleet {
        self.fleet
    }

    /// The plan for all pending pods and the candidates' pods, on what is left without the candidates.
    pub fn without(&mut self, candidates: &[&Candidate], destinations: Destinations) -> Outcome {
        let moving = candidates
            .iter()
            .flat_map(|candidate| candidate.pods_to_move(self.fleet))
            .cloned()
            .collect();
        self.ask(candidates, moving, destinations, &Reserved::OrOther)
    }

    /// As [`Rehearsal::without`] for one candidate whose pods may go to any node.
    pub fn without_one(&mut self, candidate: &Candidate, moving: Moving, reserved: &Reserved) -> Outcome {
        let pods = match moving {
            Moving::CanLeave => candidate.pods_to_move(self.fleet).cloned().collect(),
            Moving::All => candidate.reschedulable_pods().cloned().collect(),
        };
        self.ask(&[candidate], pods, Destinations::Any, reserved)
    }

    fn ask(
        &mut self,
        candidates: &[&Candidate],
        pods: Vec<Arc<Pod>>,
        destinations: Destinations,
        reserved: &Reserved,
    ) -> Outcome {
        let avoided_nodes = match destinations {
            Destinations::Any => Vec::new(),
            Destinations::Settled => self.unsettled.clone(),
        };
        let (reserved_mode, reservation_credits) = match reserved {
            Reserved::OrOther => (ReservedMode::Fallback, Vec::new()),
            Reserved::WithSlot(id) => (ReservedMode::Strict, vec![(id.clone(), 1)]),
        };
        let question = WhatIf {
            avoided_nodes,
            reserved_mode: Some(reserved_mode),
            reservation_credits,
            ..WhatIf::without_nodes(candidates.iter().map(|candidate| &*candidate.node), pods)
        };
        let plan = self.simulator.run(&question);
        self.judge(plan)
    }

    /// Pods that already waited may go on waiting; every other pod without a place, or with a place on a node that is
    /// not up yet, speaks against the move.
    fn judge(&self, plan: Plan) -> Outcome {
        let mut stranded = Vec::new();
        for failure in plan.unschedulable.iter().chain(&plan.deferred) {
            if !pods::is_pending(&failure.pod) {
                stranded.push((failure.pod.key(), failure.reason.to_string()));
            }
        }
        for placement in plan
            .existing
            .iter()
            .filter(|placement| self.not_up.contains(&placement.node))
        {
            for pod in &placement.pods {
                let from_leaving = pod.node_name.as_ref().is_some_and(|node| self.leaving.contains(node));
                if !pods::is_pending(pod) && !from_leaving {
                    stranded.push((pod.key(), format!("it would have to wait for node {}", placement.node)));
                }
            }
        }
        Outcome { plan, stranded }
    }
}

/// Nothing happened on the node for as long as its pool asks before it may take moved pods.
fn is_settled(fleet: &Fleet, member: &Member) -> bool {
    let Some(policy) = member.pool().and_then(|pool| fleet.pools.get(pool)) else {
        return true;
    };
    let (Some(after), Some(claim)) = (policy.consolidate_after, &member.claim) else {
        return true;
    };
    let (true, Some(quiet_since)) = (claim.initialized_since.is_some(), claim.quiet_since()) else {
        return true;
    };
    after <= SignedDuration::ZERO || fleet.now().duration_since(quiet_since) >= after
}

impl Outcome {
    /// The pods that would lose their place, in one sentence; `None` when every pod finds one.
    pub fn stranded(&self) -> Option<String> {
        const SHOWN: usize = 5;
        let (first, rest) = self.stranded.split_at(self.stranded.len().min(SHOWN));
        if first.is_empty() {
            return None;
        }
        let mut text = first
            .iter()
            .map(|(pod, why)| format!("{pod}: {why}"))
            .collect::<Vec<_>>()
            .join("; ");
        if !rest.is_empty() {
            text += &format!(" and {} more", rest.len());
        }
        Some(text)
    }
}
