//! One run over a set of pods: the queue, and the state that placements change.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::claims::Claims;
use super::domains::Counts;
use super::groups::{GroupId, Rule};
use super::reserved::Book;
use super::templates::Limits;
use super::volumes::{PodVolumes, Usage};
use super::world::{PodKey, World, remove_pod};
use crate::model::{HostPort, Pod, ReservedMode};
use crate::reason::Reason;
use crate::simulation::Budget;
use crate::tables::Dims;

/// What a run assumes beyond the snapshot.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    /// Positions of nodes that are taken to be gone.
    pub(crate) removed: Vec<usize>,
    /// Positions of nodes that `moved` pods may not use.
    pub(crate) avoided: Vec<usize>,
    pub(crate) reserved_mode: Option<ReservedMode>,
    pub(crate) credits: Vec<(String, u32)>,
}

/// A pod to place.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) pod: Arc<Pod>,
    pub(crate) key: PodKey,
    pub(crate) class: u32,
    pub(crate) volumes: Option<Box<PodVolumes>>,
    pub(crate) outcome: Outcome,
    /// May not use avoided nodes.
    pub(crate) moved: bool,
    /// Length of the queue after the pod was last pushed back.
    pushed_at: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Unreached,
    OnNode {
        node: u32,
        step: u32,
    },
    OnClaim {
        claim: u32,
        step: u32,
    },
    Refused {
        step: u32,
    },
    /// Waits for a reservation.
    Waiting {
        step: u32,
    },
}

/// Pods with the same kind and requests and no volumes of their own fail alike until something changes.
#[derive(Debug, Clone)]
pub(crate) struct Class {
    failed_at: Option<(u64, Outcome)>,
    /// Per step, the first node that has not refused for good.
    pub(crate) cursors: Vec<u32>,
}

pub(crate) struct Run<'w> {
    pub(crate) world: &'w mut World,
    pub(crate) entries: Vec<Entry>,
    pub(crate) rejected: Vec<(Arc<Pod>, Reason)>,
    pub(crate) classes: Vec<Class>,
    pub(crate) claims: Claims,
    pub(crate) remaining: Vec<i64>,
    pub(crate) removed: Vec<bool>,
    pub(crate) avoided: Vec<bool>,
    pub(crate) node_pods: FxHashMap<u32, Vec<u32>>,
    pub(crate) node_ports: FxHashMap<u32, Vec<HostPort>>,
    pub(crate) node_volumes: FxHashMap<u32, Usage>,
    /// Copied from the world when first changed.
    pub(crate) counts: Vec<Option<Counts>>,
    pub(crate) inverse_active: Vec<bool>,
    pub(crate) limits: Vec<Limits>,
    pub(crate) book: Book,
    pub(crate) scratch: super::attempt::Scratch,
    /// Goes up with every placement.
    epoch: u64,
}

impl<'w> Run<'w> {
    /// Prepares a run over `pods`; `moved` says which of them come from nodes that are taken to be gone.
    pub(crate) fn new(world: &'w mut World, pods: &[Arc<Pod>], moved: &[Arc<Pod>], settings: &Settings) -> Run<'w> {
        let mut rejected = Vec::new();
        let mut entries = Vec::with_capacity(pods.len() + moved.len());
        let facts = world.snapshot.volumes.clone();
        let all = pods
            .iter()
            .map(|pod| (pod, false))
            .chain(moved.iter().map(|pod| (pod, true)));
        for (pod, moved) in all {
            let mut volumes = None;
            if !pod.volume_claims.is_empty() {
                match world.volumes.resolve(&mut world.tables, &facts, pod) {
                    Ok(resolved) => volumes = Some(Box::new(resolved)),
                    Err(reason) => {
                        rejected.push((pod.clone(), reason));
                        continue;
                    }
                }
            }
            let key = world.pod_key(pod);
            if world.kinds[key.kind as usize].needs_dynamic_resources {
                rejected.push((pod.clone(), Reason::DynamicResources));
                continue;
            }
            let (class, pushed_at) = (u32::MAX, u32::MAX);
            entries.push(Entry {
                pod: pod.clone(),
                key,
                class,
                volumes,
                outcome: Outcome::Unreached,
                moved,
                pushed_at,
            });
        }
        world.settle();
        let classes = classify(world, &mut entries);
        sort(world, &mut entries);
        let mut run = Run {
            entries,
            rejected,
            classes,
            claims: Claims::default(),
            remaining: world.nodes.remaining.clone(),
            removed: vec![false; world.nodes.all.len()],
            avoided: vec![
                false;
                if settings.avoided.is_empty() {
                    0
                } else {
                    world.nodes.all.len()
                }
            ],
            node_pods: FxHashMap::default(),
            node_ports: FxHashMap::default(),
            node_volumes: FxHashMap::default(),
            counts: vec![None; world.groups.len()],
            inverse_active: Vec::new(),
            limits: Vec::new(),
            book: Book::new(
                &world.snapshot,
                settings.reserved_mode.unwrap_or(world.snapshot.options.reserved_mode),
                &settings.credits,
            ),
            scratch: super::attempt::Scratch::default(),
            epoch: 0,
            world,
        };
        for node in &settings.avoided {
            run.avoided[*node] = true;
        }
        run.remove_nodes(&settings.removed);
        run.forget_moved(moved);
        run.activate_inverse_groups(moved);
        run.limits = run.limits_before_claims();
        run
    }

    fn remove_nodes(&mut self, removed: &[usize]) {
        for node in removed {
            self.removed[*node] = true;
            if *node >= self.world.nodes.active {
                continue;
            }
            for at in 0..self.world.groups.len() {
                let group = self.world.groups.get(GroupId(at as u32)).clone();
                let existing = &self.world.nodes.all[*node];
                let Some(value) = existing.labels.get(group.key) else {
                    continue;
                };
                if group.key == self.world.tables.hostname
                    || !existing.node.has_node
                    || !self.world.counts_node(&group, existing)
                {
                    continue;
                }
                let counts = self.counts[at].get_or_insert_with(|| self.world.counts[at].clone());
                if let Counts::Domains(domains) = counts {
                    domains.remove_node(&self.world.tables.names, group.key, value);
                }
            }
        }
    }

    /// Moved pods are counted where they go, not where they were.
    fn forget_moved(&mut self, moved: &[Arc<Pod>]) {
        for pod in moved {
            let Some(node) = pod.node_name.as_ref().and_then(|name| self.world.nodes.position(name)) else {
                continue;
            };
            let kind = self.world.pod_key(pod).kind as usize;
            let counted = if pod.terminating {
                Vec::new()
            } else {
                self.world.kinds[kind].counted_by.clone()
            };
            for group in counted.into_iter().chain(self.world.kinds[kind].inverse.clone()) {
                let at = group.0 as usize;
                let definition = self.world.groups.get(group).clone();
                let existing = &self.world.nodes.all[node];
                if !existing.node.has_node || !self.world.counts_node(&definition, existing) {
                    continue;
                }
                let counts = self.counts[at].get_or_insert_with(|| self.world.counts[at].clone());
                remove_pod(counts, &self.world.tables, &definition, existing);
            }
        }
    }

    /// Inverse groups matter while a pod of this run or a bound pod that stays owns them.
    fn activate_inverse_groups(&mut self, moved: &[Arc<Pod>]) {
        let mut bound = self.world.bound_owners.clone();
        for pod in moved.iter().filter(|pod| pod.node_name.is_some()) {
            let kind = self.world.pod_key(pod).kind as usize;
            for group in &self.world.kinds[kind].inverse {
                let owners = &mut bound[group.0 as usize];
                *owners = owners.saturating_sub(1);
            }
        }
        self.inverse_active = bound.iter().map(|owners| *owners > 0).collect();
        for entry in &self.entries {
            for group in &self.world.kinds[entry.key.kind as usize].inverse {
                self.inverse_active[group.0 as usize] = true;
            }
        }
        debug_assert!(
            (0..self.inverse_active.len()).all(|at| {
                !self.inverse_active[at] || self.world.groups.get(GroupId(at as u32)).rule == Rule::Inverse
            })
        );
    }

    /// Limits less the active nodes of each pool.
    pub(crate) fn limits_before_claims(&self) -> Vec<Limits> {
        let mut left = self.world.limits.clone();
        for (node, _) in self.removed.iter().enumerate().filter(|(_, removed)| **removed) {
            let existing = &self.world.nodes.all[node];
            let Some(template) = self.world.template_of(existing) else {
                continue;
            };
            if node < self.world.nodes.active {
                left[template].refund(&existing.capacity);
            }
        }
        left
    }

    /// Places pods until the queue makes no progress or the budget says stop.
    pub(crate) fn solve(&mut self, budget: &mut Budget<'_>) {
        let mut queue: VecDeque<u32> = (0..self.entries.len() as u32).collect();
        while budget(queue.len()).is_continue()
            && let Some(next) = queue.front().copied()
        {
            // A pod that comes round again with the queue as long as it was has seen no progress in a whole cycle.
            if self.entries[next as usize].pushed_at == queue.len() as u32 {
                break;
            }
            queue.pop_front();
            let left = queue.len() + 1;
            let Some(outcome) = self.attempt(next, &mut || budget(left)) else {
                break;
            };
            self.entries[next as usize].outcome = outcome;
            match outcome {
                Outcome::OnNode { .. } | Outcome::OnClaim { .. } => {}
                Outcome::Refused { .. } | Outcome::Waiting { .. } | Outcome::Unreached => {
                    queue.push_back(next);
                    self.entries[next as usize].pushed_at = queue.len() as u32;
                }
            }
        }
    }

    /// Tries a pod with fewer and fewer preferences; `None` when the budget ran out between two of them.
    fn attempt(&mut self, at: u32, budget: &mut dyn FnMut() -> ControlFlow<()>) -> Option<Outcome> {
        let entry = &self.entries[at as usize];
        let class = entry.class as usize;
        let alike = entry.volumes.is_none();
        if alike
            && let Some((epoch, outcome)) = self.classes[class].failed_at
            && epoch == self.epoch
        {
            return Some(outcome);
        }
        let steps = self.world.kinds[entry.key.kind as usize].steps.len() as u32;
        let mut outcome = Outcome::Refused { step: steps - 1 };
        for step in 0..steps {
            if step > 0 && budget().is_break() {
                return None;
            }
            match self.place(at, step) {
                Outcome::Refused { .. } | Outcome::Unreached => {}
                placed @ (Outcome::OnNode { .. } | Outcome::OnClaim { .. }) => {
                    self.epoch += 1;
                    return Some(placed);
                }
                waiting @ Outcome::Waiting { .. } => {
                    outcome = waiting;
                    break;
                }
            }
        }
        if alike {
            self.classes[class].failed_at = Some((self.epoch, outcome));
        }
        Some(outcome)
    }

    pub(crate) fn counts(&self, group: GroupId) -> &Counts {
        let at = group.0 as usize;
        self.counts[at].as_ref().unwrap_or(&self.world.counts[at])
    }
}

fn classify(world: &World, entries: &mut [Entry]) -> Vec<Class> {
    let mut ids: FxHashMap<(PodKey, bool), u32> = FxHashMap::default();
    let mut classes = Vec::new();
    for entry in entries {
        entry.class = *ids.entry((entry.key, entry.moved)).or_insert_with(|| {
            let steps = world.kinds[entry.key.kind as usize].steps.len();
            classes.push(Class {
                failed_at: None,
                cursors: vec![0; steps],
            });
            classes.len() as u32 - 1
        });
    }
    classes
}

/// Largest first: cpu, then memory, then age, then uid (scheduling.md §3.6).
fn sort(world: &World, entries: &mut [Entry]) {
    let size = |entry: &Entry, dim: usize| world.requests(entry.key.requests).get(dim).copied().unwrap_or(0);
    entries.sort_by(|a, b| {
        size(b, Dims::CPU)
            .cmp(&size(a, Dims::CPU))
            .then_with(|| size(b, Dims::MEMORY).cmp(&size(a, Dims::MEMORY)))
            .then_with(|| a.pod.created.cmp(&b.pod.created))
            .then_with(|| a.pod.uid.cmp(&b.pod.uid))
            .then_with(|| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name)))
    });
}
