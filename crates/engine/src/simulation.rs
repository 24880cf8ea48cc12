//! The entry points: decide on a snapshot, or ask many "what if" questions about one.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::model::{Node, Packing, Pod, ReservedMode, Snapshot};
use crate::plan::Plan;
use crate::solve::{Run, Settings, World};

/// Decides where the snapshot's pods go.
pub fn solve(snapshot: &Snapshot) -> Plan {
    solve_within(snapshot, &mut |_| ControlFlow::Continue(()))
}

/// Asked before every attempt whether to go on; told how many pods are still in the queue. At the end it is told how many
/// stay without a place.
pub type Budget<'a> = dyn FnMut(usize) -> ControlFlow<()> + 'a;

/// As [`solve`], asking `budget` whether to go on. Once it breaks, the plan holds what was decided, and the pods that were not
/// reached are listed as such.
pub fn solve_within(snapshot: &Snapshot, budget: &mut Budget<'_>) -> Plan {
    let mut world = World::new(snapshot);
    let pods = snapshot.pods.clone();
    let mut run = Run::new(&mut world, &pods, &[], &Settings::default());
    let pending_by_zone = run.effective_zones();
    Plan {
        pending_by_zone,
        ..finished(run, budget)
    }
}

/// Answers questions of the form "these nodes are gone, their pods must move" about one snapshot.
///
/// The snapshot is interned once. A question costs about as much as the pods that it moves; what one question worked out
/// (kinds of pods, requirement sets, topology counts) is there for the next. Clone it to ask from several threads.
#[derive(Debug, Clone)]
pub struct Simulator {
    world: World,
}

/// A question: the snapshot with some nodes gone and some more pods to place.
#[derive(Debug, Clone, Default)]
pub struct WhatIf {
    /// Names of nodes that are gone: they take no pods and count for nothing.
    pub removed_nodes: Vec<Arc<str>>,
    /// Pods to place besides the snapshot's own, usually those of the removed nodes. A pod whose `node_name` is set is taken
    /// to leave that node.
    pub pods: Vec<Arc<Pod>>,
    /// Nodes that `pods` may not go to, because they are not settled yet (scheduling.md §3.8).
    pub avoided_nodes: Vec<Arc<str>>,
    /// Overrides the snapshot's option.
    pub reserved_mode: Option<ReservedMode>,
    /// Slots that come back to reservations because their nodes are gone, by reservation id.
    pub reservation_credits: Vec<(String, u32)>,
}

impl WhatIf {
    /// These nodes are gone and these of their pods must move.
    pub fn without_nodes<'a>(nodes: impl IntoIterator<Item = &'a Node>, pods: Vec<Arc<Pod>>) -> WhatIf {
        let removed_nodes = nodes.into_iter().map(|node| node.name.clone()).collect();
        WhatIf {
            removed_nodes,
            pods,
            ..WhatIf::default()
        }
    }
}

impl Simulator {
    pub fn new(snapshot: &Snapshot) -> Simulator {
        Simulator {
            world: World::new(snapshot),
        }
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.world.snapshot
    }

    pub fn run(&mut self, question: &WhatIf) -> Plan {
        self.run_within(question, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`Simulator::run`], with a budget as for [`solve_within`].
    pub fn run_within(&mut self, question: &WhatIf, budget: &mut Budget<'_>) -> Plan {
        let positions = |names: &[Arc<str>]| -> Vec<usize> {
            names
                .iter()
                .filter_map(|name| self.world.nodes.position(name))
                .collect()
        };
        let settings = Settings {
            removed: positions(&question.removed_nodes),
            avoided: positions(&question.avoided_nodes),
            reserved_mode: question.reserved_mode,
            credits: question.reservation_credits.clone(),
        };
        let pods = self.world.snapshot.pods.clone();
        finished(Run::new(&mut self.world, &pods, &question.pods, &settings), budget)
    }
}

fn finished(mut run: Run<'_>, budget: &mut Budget<'_>) -> Plan {
    run.solve(budget);
    if run.world.snapshot.options.packing == Packing::Cost {
        run.make_cheaper();
    }
    run.into_plan()
}
