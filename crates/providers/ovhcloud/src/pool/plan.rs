//! Decides what to do with one pool: who gets which machine, which machines go, and which size the pool shall have.
//!
//! Pure: it reads what was seen and remembered, and answers at most one write. Invariants, held by the property test:
//! a machine has at most one claim and a published binding never changes; a machine that a claim holds goes only if its
//! removal was asked for; every machine that we remove is named.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use karpenter_cloud::clock::later;

use crate::client::model::{NodeClass, Pool, PoolClass, PoolNode, PoolUpdate};

/// A claim's place in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub uid: String,
    pub claim: String,
    pub reserved_at: Timestamp,
    /// The machine it has, once that was published.
    pub node_id: Option<String>,
    /// Its machine has joined the cluster. Until then, listings and Nodes may lag behind, and the claim is core's to end.
    pub registered: bool,
    /// The claim is being deleted: it waits for nothing any more.
    pub deleting: bool,
}

/// A pool as it was just read, and who wants something of it.
#[derive(Debug)]
pub struct Situation<'a> {
    pub pool: &'a Pool,
    pub nodes: &'a [PoolNode],
    pub claims: &'a [Reservation],
    /// Machines that shall go.
    pub wanted: &'a BTreeSet<String>,
    pub cap: u32,
    pub now: Timestamp,
    /// False while MKS itself works on the cluster: its surge nodes are not ours to tidy up.
    pub calm: bool,
    pub growth: Growth,
    pub strays: Strays<'a>,
    pub times: &'a Times,
}

/// What becomes of machines that nobody asked for.
#[derive(Clone, Copy, Debug)]
pub enum Strays<'a> {
    /// A NodePool may take them over: those that replace a lost one, and those that run pods (these).
    Adopted { occupied: &'a BTreeSet<String> },
    /// Their NodePool or NodeClass is gone or going.
    Reclaimed,
}

/// Whether a pool may get bigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    Allowed,
    /// Of another provider's making: only ever emptied.
    Never,
}

/// How patient to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    /// What we wrote is believed over what is read for this long.
    pub trust_write: Duration,
    /// Size that nobody waits for is given back after this.
    pub trim: Duration,
    /// Machines that nobody claims go after this.
    pub spare: Duration,
    /// A machine that MKS made in place of a claim's is taken over after this.
    pub adoption: Duration,
    /// For this long a claim's lost machine counts as one that MKS may have replaced.
    pub loss: Duration,
    /// A claim's machine that is not listed for this long is gone.
    pub absence: Duration,
    /// One that is not listed for this long, while its Node is up, is not looked for at every turn any more.
    pub search: Duration,
    /// A pool out of quota without a machine that says so.
    pub quota: Duration,
    /// A machine whose removal was accepted, and that is still not going, is removed again.
    pub removal: Duration,
    pub autoscale: Duration,
}

/// What an actor remembers of its pool between turns. Lost in a crash, and not needed then.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    last_write: Option<(u32, Timestamp)>,
    /// Removals that the API accepted.
    removed: BTreeMap<String, Timestamp>,
    /// Machines that we removed, for as long as they are listed or a claim still names them.
    ended: BTreeSet<String>,
    /// Claims' machines that vanished without our doing, and when that was seen.
    lost: BTreeMap<String, Timestamp>,
    /// Losses that were noted, for as long as their claims are there.
    mourned: BTreeSet<String>,
    /// Since when a claim's machine is not listed.
    absent_since: BTreeMap<String, Timestamp>,
    /// Since when a machine is nobody's.
    spare_since: BTreeMap<String, Timestamp>,
    /// Machines that once had a claim: not given to another, whose labels and taints differ.
    once_bound: BTreeSet<String>,
    surplus_since: Option<Timestamp>,
    quota_since: Option<Timestamp>,
    reclaimed_at: Option<Timestamp>,
    autoscale_reset_at: Option<Timestamp>,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Machines that exist, and the claims that get them.
    pub bind: Vec<(String, String)>,
    /// Claims whose machine will not come.
    pub fail: Vec<(String, Failure)>,
    /// Claims that must find a place elsewhere.
    pub moved: Vec<String>,
    /// Claims for which the write, if it grows the pool, asks for a machine.
    pub unserved: Vec<String>,
    pub write: Option<Write>,
    /// Machines among those to be removed that do not exist any more.
    pub gone: Vec<String>,
    /// Machines among those to be removed that are on their way out.
    pub going: Vec<String>,
    /// Machines that a new claim should take over.
    pub adoptable: Vec<String>,
    /// Machines that the write takes away because nobody wanted them.
    pub reclaimed: Vec<String>,
    /// Claims that wait because a webhook of the user holds MKS up.
    pub blocked: Vec<String>,
    /// Claims whose machine was missing from listing after listing: it is gone, whoever took it.
    pub vanished: Vec<String>,
    /// How many machines of claims are missing since so recently that they are worth looking for at once.
    pub missed: usize,
    pub sets: Sets,
}

/// How many machines and claims are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sets {
    pub bound: usize,
    pub waiting: usize,
    pub spare: usize,
    pub failed: usize,
    pub going: usize,
    /// Registered claims whose machine is not listed.
    pub missing: usize,
    pub desired: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    OutOfStock,
    Quota,
    Broken,
}

/// One change of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Settings(PoolUpdate),
    /// Takes these machines away.
    Remove {
        desired: u32,
        nodes: Vec<String>,
    },
    /// Gives back size that no machine was made for yet.
    Trim {
        desired: u32,
    },
    Grow {
        desired: u32,
    },
}

impl Default for Times {
    fn default() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        Self {
            trust_write: Duration::from_secs(30),
            trim: minutes(2),
            spare: minutes(10),
            adoption: minutes(1),
            loss: minutes(30),
            absence: Duration::from_secs(10),
            search: minutes(5),
            quota: minutes(1),
            removal: minutes(15),
            autoscale: minutes(10),
        }
    }
}

impl Write {
    /// The body of the request.
    pub fn update(&self) -> PoolUpdate {
        match self {
            Self::Settings(update) => update.clone(),
            Self::Remove { desired, nodes } => PoolUpdate {
                desired_nodes: Some(*desired),
                nodes_to_remove: nodes.clone(),
                ..PoolUpdate::default()
            },
            Self::Trim { desired } | Self::Grow { desired } => PoolUpdate {
                desired_nodes: Some(*desired),
                ..PoolUpdate::default()
            },
        }
    }

    /// The operation's name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Settings(_) => "settings",
            Self::Remove { .. } => "delete_node",
            Self::Trim { .. } => "scale_down",
            Self::Grow { .. } => "scale_up",
        }
    }
}

impl Memory {
    /// The API accepted a write.
    pub fn accepted(&mut self, write: &Write, now: Timestamp) {
        match write {
            Write::Settings(update) => {
                if update.autoscale.is_some() {
                    self.autoscale_reset_at = Some(now);
                }
            }
            Write::Remove { desired, nodes } => {
                self.last_write = Some((*desired, now));
                for node in nodes {
                    self.removed.insert(node.clone(), now);
                    self.ended.insert(node.clone());
                    self.spare_since.remove(node);
                }
            }
            Write::Trim { desired } | Write::Grow { desired } => {
                self.last_write = Some((*desired, now));
                self.surplus_since = None;
            }
        }
    }

    /// A pool was made with this size.
    pub fn created(&mut self, desired: u32, now: Timestamp) {
        self.last_write = Some((desired, now));
    }

    /// A machine was given to a claim: whatever becomes of the claim, it is not given to another.
    pub fn bound(&mut self, node: &str) {
        self.once_bound.insert(node.to_owned());
    }

    /// Machines that would be reclaimed next, if nothing speaks for them.
    pub fn overdue(&self, now: Timestamp, times: &Times) -> Vec<String> {
        let overdue = self.spare_since.iter();
        let overdue = overdue.filter(|(_, since)| later(**since, times.spare) <= now);
        overdue.map(|(id, _)| id.clone()).collect()
    }

    /// Notes machines of claims that are gone although we did not remove them: MKS may have replaced them.
    fn note_losses(
        &mut self,
        holders: &BTreeMap<&str, &Reservation>,
        listed: &BTreeMap<&str, &PoolNode>,
        now: Timestamp,
    ) {
        for id in holders.keys() {
            // A spare that has a claim now stands in for one that was lost.
            if self.spare_since.remove(*id).is_some() {
                self.lost.pop_first();
            }
        }
        let held = holders
            .iter()
            .filter(|(_, claim)| !claim.deleting)
            .map(|(id, _)| (*id).to_owned());
        // Claims may end sooner than we look: what once had one counts as well.
        let known: BTreeSet<String> = held.chain(self.once_bound.iter().cloned()).collect();
        for id in known {
            let is_gone = !listed.contains_key(id.as_str()) && !self.ended.contains(&id);
            if is_gone && self.mourned.insert(id.clone()) {
                self.lost.insert(id, now);
            }
        }
        self.mourned.retain(|id| holders.contains_key(id.as_str()));
        self.ended
            .retain(|id| listed.contains_key(id.as_str()) || holders.contains_key(id.as_str()));
    }

    /// How long each registered claim's machine has been missing; claims that end anyway are not asked about.
    fn note_absences(
        &mut self,
        holders: &BTreeMap<&str, &Reservation>,
        listed: &BTreeMap<&str, &PoolNode>,
        now: Timestamp,
    ) {
        let is_absent = |id: &str| {
            let held = holders.get(id).is_some_and(|claim| claim.registered && !claim.deleting);
            held && !listed.contains_key(id)
        };
        self.absent_since.retain(|id, _| is_absent(id));
        for id in holders.keys().filter(|id| is_absent(id)) {
            self.absent_since.entry((*id).to_owned()).or_insert(now);
        }
    }

    /// A write whose outcome is unknown: only what is read next counts.
    pub fn uncertain(&mut self) {
        self.last_write = None;
    }

    fn desired(&self, situation: &Situation<'_>) -> u32 {
        match self.last_write {
            Some((desired, at)) if situation.now < later(at, situation.times.trust_write) => desired,
            _ => situation.pool.desired_nodes,
        }
    }
}

/// Decides. Updates only what memory knows of the passing of time.
pub fn plan(situation: &Situation<'_>, memory: &mut Memory) -> Plan {
    let now = situation.now;
    let listed: BTreeMap<&str, &PoolNode> = situation
        .nodes
        .iter()
        .filter(|node| node.class() != NodeClass::Gone)
        .map(|node| (node.id.as_str(), node))
        .collect();
    memory.removed.retain(|id, at| {
        let stays = listed
            .get(id.as_str())
            .is_some_and(|node| node.class() == NodeClass::Going);
        // A machine that is listed as live long after its removal came back; one that is not listed is gone.
        listed.contains_key(id.as_str()) && (stays || now < later(*at, situation.times.removal))
    });
    let mut holders: BTreeMap<&str, &Reservation> = BTreeMap::new();
    for claim in situation.claims {
        if let Some(id) = claim.node_id.as_deref() {
            holders.entry(id).or_insert(claim);
        }
    }
    memory.note_losses(&holders, &listed, now);
    memory.note_absences(&holders, &listed, now);
    memory.lost.retain(|_, at| now < later(*at, situation.times.loss));
    memory.once_bound.extend(holders.keys().map(|id| (*id).to_owned()));
    memory.once_bound.retain(|id| listed.contains_key(id.as_str()));
    let is_going = |node: &PoolNode| node.class() == NodeClass::Going || memory.removed.contains_key(&node.id);

    let (mut bound, mut failed, mut spare, mut going) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for node in listed.values().copied() {
        if is_going(node) {
            going.push(node);
        } else if holders.contains_key(node.id.as_str()) {
            bound.push(node);
        } else if failure(node).is_some() {
            failed.push(node);
        } else {
            spare.push(node);
        }
    }
    let mut waiting: Vec<&Reservation> = situation
        .claims
        .iter()
        .filter(|claim| claim.node_id.is_none() && !claim.deleting)
        .collect();
    waiting.sort_by(|a, b| (a.reserved_at, &a.uid).cmp(&(b.reserved_at, &b.uid)));

    let desired = memory.desired(situation);
    let mut answer = Plan {
        sets: Sets {
            bound: bound.len(),
            waiting: waiting.len(),
            spare: spare.len(),
            failed: failed.len(),
            going: going.len(),
            missing: memory.absent_since.len(),
            desired,
        },
        ..Plan::default()
    };
    let vanished = memory.absent_since.iter();
    let vanished = vanished.filter(|(_, since)| later(**since, situation.times.absence) <= now);
    answer.vanished = vanished.map(|(id, _)| holders[id.as_str()].uid.clone()).collect();
    let missed = memory.absent_since.values();
    answer.missed = missed
        .filter(|since| now < later(**since, situation.times.search))
        .count();
    for id in situation.wanted {
        match listed.get(id.as_str()) {
            None => answer.gone.push(id.clone()),
            Some(node) if is_going(node) => answer.going.push(id.clone()),
            Some(_) => {}
        }
    }
    if situation.pool.class() == PoolClass::Gone {
        answer.moved = waiting.iter().map(|claim| claim.uid.clone()).collect();
        return answer;
    }

    // Bind: the oldest claim gets the machine that is furthest.
    let mut offered: Vec<&PoolNode> = spare
        .iter()
        .copied()
        .filter(|node| !memory.once_bound.contains(&node.id) && !situation.wanted.contains(&node.id))
        .collect();
    offered.sort_by(|a, b| rank(a).cmp(&rank(b)));
    let served = waiting.len().min(offered.len());
    for (claim, node) in waiting.iter().zip(&offered) {
        if node.instance_id.is_some() {
            answer.bind.push((claim.uid.clone(), node.id.clone()));
        }
    }
    let mut unserved = waiting.split_off(served);

    // Fail: as many of the newest as there are machines that will not come.
    let mut reasons: Vec<Failure> = failed.iter().filter_map(|node| failure(node)).collect();
    let live = bound.len() + failed.len() + spare.len();
    let unseen = (desired as usize).saturating_sub(live);
    reasons.extend(quota_failures(situation, memory, unseen, failed.len()));
    for reason in reasons {
        let Some(claim) = unserved.pop() else { break };
        answer.fail.push((claim.uid.clone(), reason));
    }

    if spare.iter().any(|node| node.class() == NodeClass::Blocked) {
        let unbound = waiting.iter().chain(&unserved).map(|claim| claim.uid.clone());
        let bound = &answer.bind;
        answer.blocked = unbound.filter(|uid| !bound.iter().any(|(own, _)| own == uid)).collect();
    }
    answer.unserved = unserved.iter().map(|claim| claim.uid.clone()).collect();
    let removals = removals(situation, memory, &bound, &spare, &failed, &offered[served..]);
    answer.reclaimed = removals.reclaimed.clone();
    answer.adoptable = removals.adoptable.clone();
    let removals = removals.all();
    let numbers = Numbers {
        desired,
        kept: bound.iter().filter(|node| !removals.contains(&node.id)).count(),
        live,
        unserved,
        removals,
    };
    answer.write = write(situation, memory, &mut answer.moved, numbers);
    answer
}

/// What decides about the size.
struct Numbers<'a> {
    desired: u32,
    /// Machines with a claim that stay.
    kept: usize,
    /// Listed and not going.
    live: usize,
    /// Claims for which no machine is listed, the oldest first.
    unserved: Vec<&'a Reservation>,
    removals: Vec<String>,
}

fn write(
    situation: &Situation<'_>,
    memory: &mut Memory,
    moved: &mut Vec<String>,
    mut numbers: Numbers<'_>,
) -> Option<Write> {
    let (pool, now) = (situation.pool, situation.now);
    let settings = |update| Some(Write::Settings(update));
    let may_reset = memory
        .autoscale_reset_at
        .is_none_or(|at| later(at, situation.times.autoscale) <= now);
    if pool.autoscale && may_reset {
        return settings(PoolUpdate {
            autoscale: Some(false),
            ..PoolUpdate::default()
        });
    }
    let lower_minimum = PoolUpdate {
        min_nodes: Some(0),
        ..PoolUpdate::default()
    };

    if !numbers.removals.is_empty() {
        if pool.min_nodes > 0 {
            return settings(lower_minimum);
        }
        let lowered = (numbers.desired as usize).saturating_sub(numbers.removals.len());
        return Some(Write::Remove {
            desired: lowered.max(numbers.kept.min(numbers.desired as usize)) as u32,
            nodes: numbers.removals,
        });
    }

    let room = (situation.cap as usize).saturating_sub(numbers.live);
    let growth = match situation.growth {
        Growth::Allowed => room,
        Growth::Never => 0,
    };
    if numbers.unserved.len() > growth {
        let beyond = numbers.unserved.split_off(growth);
        moved.extend(beyond.iter().map(|claim| claim.uid.clone()));
    }
    let need = (numbers.live + numbers.unserved.len()) as u32;
    if need < numbers.desired {
        let since = *memory.surplus_since.get_or_insert(now);
        if !situation.calm || now < later(since, situation.times.trim) {
            return None;
        }
        if pool.min_nodes > 0 {
            return settings(lower_minimum);
        }
        return Some(Write::Trim { desired: need });
    }
    memory.surplus_since = None;
    // Machines beyond the size are MKS's own, such as those of an upgrade under way: no reason to grow.
    if need == numbers.desired || numbers.unserved.is_empty() {
        return None;
    }
    if pool.max_nodes < need {
        return settings(PoolUpdate {
            max_nodes: Some(situation.cap.max(need)),
            ..PoolUpdate::default()
        });
    }
    Some(Write::Grow { desired: need })
}

/// Machines that go now, and those that nobody wants but somebody should take over.
#[derive(Debug, Default)]
struct Removals {
    /// Asked for, or failed.
    due: Vec<String>,
    /// Nobody's for too long.
    reclaimed: Vec<String>,
    adoptable: Vec<String>,
}

impl Removals {
    fn all(self) -> Vec<String> {
        let mut all = self.due;
        all.extend(self.reclaimed);
        all
    }
}

fn removals(
    situation: &Situation<'_>,
    memory: &mut Memory,
    bound: &[&PoolNode],
    spare: &[&PoolNode],
    failed: &[&PoolNode],
    unclaimed: &[&PoolNode],
) -> Removals {
    let now = situation.now;
    let wanted = bound.iter().chain(spare).map(|node| &node.id);
    let mut due: Vec<String> = wanted.filter(|id| situation.wanted.contains(*id)).cloned().collect();
    due.extend(failed.iter().map(|node| node.id.clone()));

    let is_idle =
        |node: &&&PoolNode| memory.once_bound.contains(&node.id) || unclaimed.iter().any(|other| other.id == node.id);
    let idle: BTreeSet<String> = spare.iter().filter(is_idle).map(|node| node.id.clone()).collect();
    memory.spare_since.retain(|id, _| idle.contains(id));
    for id in &idle {
        memory.spare_since.entry(id.clone()).or_insert(now);
    }
    let adoptable = adoptable(situation, memory, unclaimed);
    let a_minute_ago = memory
        .reclaimed_at
        .is_none_or(|at| later(at, Duration::from_secs(60)) <= now);
    let mut removals = Removals {
        due,
        reclaimed: Vec::new(),
        adoptable,
    };
    if !situation.calm || !a_minute_ago {
        return removals;
    }
    let most = (situation.nodes.len() / 10).max(1);
    let overdue = memory.overdue(now, situation.times).into_iter();
    removals.reclaimed = overdue
        .filter(|id| !removals.due.contains(id) && !removals.adoptable.contains(id))
        .take(most)
        .collect();
    if !removals.reclaimed.is_empty() {
        memory.reclaimed_at = Some(now);
    }
    removals
}

/// Machines that MKS made in place of lost ones, and machines that pods have moved to.
fn adoptable(situation: &Situation<'_>, memory: &Memory, unclaimed: &[&PoolNode]) -> Vec<String> {
    let Strays::Adopted { occupied } = situation.strays else {
        return Vec::new();
    };
    let mut waiting: Vec<(Timestamp, &str)> = unclaimed
        .iter()
        .filter(|node| node.instance_id.is_some())
        .filter_map(|node| Some((*memory.spare_since.get(&node.id)?, node.id.as_str())))
        .filter(|(since, _)| later(*since, situation.times.adoption) <= situation.now)
        .collect();
    waiting.sort_unstable();
    let mut replacing = memory.lost.len();
    let mut adoptable = Vec::new();
    for (since, id) in waiting {
        let is_overdue = later(since, situation.times.spare) <= situation.now;
        if replacing > 0 {
            replacing -= 1;
            adoptable.push(id.to_owned());
        } else if is_overdue && occupied.contains(id) {
            adoptable.push(id.to_owned());
        }
    }
    adoptable
}

/// A pool that says it is out of quota while no listed machine does: those not listed yet will not come.
fn quota_failures(situation: &Situation<'_>, memory: &mut Memory, unseen: usize, failed: usize) -> Vec<Failure> {
    if situation.pool.class() != PoolClass::Quota || unseen == 0 || failed > 0 {
        memory.quota_since = None;
        return Vec::new();
    }
    let since = *memory.quota_since.get_or_insert(situation.now);
    if situation.now < later(since, situation.times.quota) {
        return Vec::new();
    }
    vec![Failure::Quota; unseen]
}

/// Why a machine that nobody holds will not come.
fn failure(node: &PoolNode) -> Option<Failure> {
    match node.class() {
        NodeClass::OutOfStock => Some(Failure::OutOfStock),
        NodeClass::OverQuota => Some(Failure::Quota),
        NodeClass::Broken => Some(Failure::Broken),
        NodeClass::Creating | NodeClass::Live | NodeClass::Going | NodeClass::Gone | NodeClass::Blocked => None,
    }
}

/// Ready machines first, then those that exist, then the oldest.
fn rank(node: &PoolNode) -> (bool, bool, Timestamp, &str) {
    (
        node.status != "READY",
        node.instance_id.is_none(),
        node.created_at.unwrap_or(Timestamp::MAX),
        &node.id,
    )
}

#[cfg(test)]
mod tests;
