//! What disruption would do from here on: one command after the other, each on the state that the one before leaves.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use karpenter_api::labels;
use karpenter_api::requirement::Requirements;

use super::balanced::Totals;
use super::blocked::Blocked;
use super::budget::Budgets;
use super::candidate::{Candidate, Class};
use super::command::{Command, Decision, Method, TerminateFirst};
use super::consolidation::{multi, single};
use super::fleet::{ClaimFacts, Fleet, Health, Member, Standing};
use super::rehearsal::Rehearsal;
use super::repair::{self, Breaker};
use super::{drift, emptiness, static_drift};
use crate::model::{Labels, Lifecycle, Node};
use crate::plan::PlannedClaim;

/// Commands in order, and why the nodes that are left stay.
#[derive(Debug)]
pub struct Forecast {
    pub commands: Vec<Command>,
    pub blocked: Vec<Stays>,
    /// The cluster once every command was carried out.
    pub fleet: Fleet,
}

/// A node that stays, and why.
pub type Stays = (Arc<str>, Vec<Blocked>);

/// Plays commands until no method finds another, at most `limit` of them.
pub fn forecast(mut fleet: Fleet, limit: usize) -> Forecast {
    let mut commands = Vec::new();
    let blocked = loop {
        match next(&fleet) {
            Ok(command) if commands.len() < limit => {
                fleet = apply(&fleet, &command, commands.len());
                commands.push(command);
            }
            Ok(_) => break Vec::new(),
            Err(blocked) => break blocked,
        }
    };
    Forecast {
        commands,
        blocked,
        fleet,
    }
}

/// The first command that a pass would give, or what keeps each node of ours.
pub fn next(fleet: &Fleet) -> Result<Command, Vec<Stays>> {
    let mut blocked = Vec::new();
    for method in Method::ORDER {
        match attempt(fleet, method) {
            Ok(command) => return Ok(command),
            Err(reasons) => blocked.extend(reasons),
        }
    }
    Err(by_node(fleet, blocked))
}

/// Which nodes a method may choose from, and what it holds against the others.
#[derive(Debug)]
pub struct Survey {
    /// Every node that may be disrupted at all, whether this method wants it or not.
    pub all: Vec<Candidate>,
    pub candidates: Vec<Candidate>,
    pub blocked: Vec<(Arc<str>, Blocked)>,
}

pub fn survey(fleet: &Fleet, method: Method) -> Survey {
    let class = match method {
        Method::Repair => Class::Repair,
        Method::StaticDrift | Method::Drift => Class::Eventual,
        Method::Emptiness | Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => Class::Graceful,
    };
    let mut survey = Survey {
        all: Vec::new(),
        candidates: Vec::new(),
        blocked: Vec::new(),
    };
    for member in fleet.members.iter() {
        match Candidate::of(fleet, member, class) {
            Ok(candidate) => {
                match suits(fleet, member, &candidate, method) {
                    Ok(()) => survey.candidates.push(candidate.clone()),
                    Err(reason) => survey.blocked.push((Arc::clone(&member.node.name), reason)),
                }
                survey.all.push(candidate);
            }
            Err(reason) => survey.blocked.push((Arc::clone(&member.node.name), reason)),
        }
    }
    survey
}

/// The nodes that a method may choose from.
pub fn candidates(fleet: &Fleet, method: Method) -> Vec<Candidate> {
    survey(fleet, method).candidates
}

/// What one method would do, or what it holds against each node.
pub fn attempt(fleet: &Fleet, method: Method) -> Result<Command, Vec<(Arc<str>, Blocked)>> {
    let Survey {
        all,
        mut candidates,
        blocked,
    } = survey(fleet, method);
    if candidates.is_empty() {
        return Err(blocked);
    }
    let mut budgets = Budgets::of(fleet, method.reason());
    match method {
        Method::Emptiness => emptiness::compute(candidates, &mut budgets).0.ok_or(blocked),
        Method::MultiNodeConsolidation => multi::search(
            &mut Rehearsal::new(fleet),
            candidates,
            &Totals::of(fleet, &all),
            &mut budgets,
            &mut || ControlFlow::Continue(()),
        )
        .command
        .ok_or(blocked),
        Method::Repair => {
            repair::order(fleet, &mut candidates);
            let breaker = Breaker::of(fleet);
            let mut rehearsal = Rehearsal::new(fleet);
            first(candidates, blocked, |candidate| {
                repair::attempt(&mut rehearsal, candidate, &breaker, &budgets)
            })
        }
        Method::StaticDrift => {
            let (commands, refused) = static_drift::compute(fleet, candidates, &budgets);
            let mut blocked = blocked;
            blocked.extend(refused);
            commands.into_iter().next().ok_or(blocked)
        }
        Method::Drift => {
            drift::order(&mut candidates);
            let mut rehearsal = Rehearsal::new(fleet);
            first(candidates, blocked, |candidate| {
                drift::attempt(&mut rehearsal, candidate, &budgets)
            })
        }
        Method::SingleNodeConsolidation => {
            let totals = Totals::of(fleet, &all);
            let candidates = single::order(candidates, &BTreeSet::new());
            let mut rehearsal = Rehearsal::new(fleet);
            first(candidates, blocked, |candidate| {
                single::attempt(&mut rehearsal, candidate, &totals, &budgets)
            })
        }
    }
}

fn suits(fleet: &Fleet, member: &Member, candidate: &Candidate, method: Method) -> Result<(), Blocked> {
    match method {
        Method::Emptiness => candidate.check_emptiness(fleet, member),
        Method::Repair => candidate.check_repair(member),
        Method::Drift if candidate.policy(fleet).is_static() => Err(Blocked::StaticPool),
        Method::StaticDrift if !candidate.policy(fleet).is_static() => Err(Blocked::DynamicPool),
        Method::Drift | Method::StaticDrift if candidate.claim.drifted_since.is_none() => Err(Blocked::NotDrifted),
        Method::Drift | Method::StaticDrift if candidate.policy(fleet).tuning.drift_halted => {
            Err(Blocked::RolloutHalted(candidate.pool.clone()))
        }
        Method::Drift | Method::StaticDrift => Ok(()),
        Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => candidate.check_consolidation(fleet),
    }
}

fn first(
    candidates: Vec<Candidate>,
    mut blocked: Vec<(Arc<str>, Blocked)>,
    mut attempt: impl FnMut(&Candidate) -> Result<Command, Blocked>,
) -> Result<Command, Vec<(Arc<str>, Blocked)>> {
    for candidate in candidates {
        match attempt(&candidate) {
            Ok(command) => return Ok(command),
            Err(reason) => blocked.push((Arc::clone(&candidate.node.name), reason)),
        }
    }
    Err(blocked)
}

/// Reasons per node of ours, each once; what is merely not a method's business is left out.
fn by_node(fleet: &Fleet, blocked: Vec<(Arc<str>, Blocked)>) -> Vec<Stays> {
    let mut nodes: Vec<Stays> = fleet
        .members
        .iter()
        .filter(|member| member.claim.is_some())
        .map(|member| (Arc::clone(&member.node.name), Vec::new()))
        .collect();
    nodes.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (name, reason) in blocked {
        let Ok(at) = nodes.binary_search_by(|(node, _)| node.cmp(&name)) else {
            continue;
        };
        let reasons = &mut nodes[at].1;
        let is_ordinary = matches!(
            reason,
            Blocked::NotDrifted
                | Blocked::NotConsolidatableYet
                | Blocked::NotEmpty
                | Blocked::Healthy
                | Blocked::DynamicPool
        );
        let is_news = !is_ordinary && !reasons.contains(&reason);
        if is_news {
            reasons.push(reason);
        }
    }
    nodes.retain(|(_, reasons)| !reasons.is_empty());
    nodes
}

/// The fleet after the command: candidates gone, their pods where the plan put them, replacements up.
fn apply(fleet: &Fleet, command: &Command, step: usize) -> Fleet {
    let gone: BTreeSet<&str> = command.candidates.iter().map(Candidate::name).collect();
    let mut members: Vec<Member> = fleet
        .members
        .iter()
        .filter(|member| !gone.contains(&*member.node.name))
        .cloned()
        .collect();
    for placement in &command.plan.existing {
        if let Some(member) = members.iter_mut().find(|member| member.node.name == placement.node) {
            let node = Arc::make_mut(&mut member.node);
            for pod in &placement.pods {
                let mut pod = (**pod).clone();
                pod.node_name = Some(Arc::clone(&node.name));
                node.bind(Arc::new(pod));
            }
        }
    }
    for (index, replacement) in command.replacements.iter().enumerate() {
        members.extend(replacement_member(
            fleet,
            replacement,
            &format!("replacement-{step}-{index}"),
        ));
    }
    if is_refilled(command) {
        members.extend(fleet.members.iter().filter_map(|member| {
            let claim = member.claim.as_ref().filter(|_| gone.contains(&*member.node.name))?;
            Some(renewed(member, claim, step))
        }));
    }
    members.sort_by(|a, b| a.node.name.cmp(&b.node.name));
    let mut after = fleet.clone();
    after.snapshot.nodes = members.iter().map(|member| Arc::clone(&member.node)).collect();
    let placed: BTreeSet<&str> = command
        .plan
        .existing
        .iter()
        .flat_map(|placement| &placement.pods)
        .chain(command.replacements.iter().flat_map(|replacement| &replacement.pods))
        .map(|pod| &*pod.uid)
        .collect();
    after.snapshot.pods = fleet
        .snapshot
        .pods
        .iter()
        .filter(|pod| !placed.contains(&*pod.uid))
        .cloned()
        .collect();
    after.members = members.into();
    after
}

/// A static pool makes up for the node, or the node itself comes back.
fn is_refilled(command: &Command) -> bool {
    match command.decision() {
        Decision::Replace => !command.from_template.is_empty(),
        Decision::TerminateFirst => command.terminate_first == Some(TerminateFirst::StaticAtLimit),
        Decision::Reboot => true,
        Decision::Delete => false,
    }
}

/// The same node anew: up to date and healthy.
fn renewed(member: &Member, claim: &ClaimFacts, step: usize) -> Member {
    let mut node = (*member.node).clone();
    node.name = format!("replacement-{step}").into();
    let claim = ClaimFacts {
        drifted_since: None,
        drift_reason: None,
        ..claim.clone()
    };
    Member {
        node: Arc::new(node),
        claim: Some(Arc::new(claim)),
        standing: Standing::default(),
        health: Health::default(),
    }
}

/// The node that launching the replacement at its cheapest would give.
fn replacement_member(fleet: &Fleet, replacement: &PlannedClaim, name: &str) -> Option<Member> {
    let cheapest = replacement.cheapest.as_ref()?;
    let instance_type = replacement.instance_types.first()?;
    let mut node_labels: Labels = (*replacement.labels).clone();
    node_labels.extend(single_values(&instance_type.requirements));
    node_labels.extend(single_values(&replacement.requirements));
    for (key, value) in [
        (labels::INSTANCE_TYPE, instance_type.name.as_str()),
        (labels::ZONE, &cheapest.zone),
        (labels::CAPACITY_TYPE, &cheapest.capacity_type),
        (labels::NODEPOOL, &replacement.node_pool.name),
        (labels::HOSTNAME, name),
    ] {
        node_labels.insert(key.to_owned(), value.to_owned());
    }
    let mut node = Node::new(
        name,
        Arc::new(node_labels),
        instance_type.capacity.clone(),
        instance_type.allocatable(),
    );
    node.node_pool = Some(replacement.node_pool.name.as_str().into());
    node.node_claim = Some(name.into());
    node.taints = replacement.node_pool.taints.clone();
    node.raw_taints = node.taints.clone();
    node.lifecycle = Lifecycle::Initialized;
    for pod in &replacement.pods {
        let mut pod = (**pod).clone();
        pod.node_name = Some(Arc::clone(&node.name));
        node.bind(Arc::new(pod));
    }
    let claim = ClaimFacts {
        name: name.to_owned(),
        uid: name.to_owned(),
        created: fleet.now(),
        expire_after: None,
        termination_grace_period: None,
        initialized_since: None,
        last_pod_event: None,
        consolidatable: true,
        drifted_since: None,
        drift_reason: None,
    };
    Some(Member {
        node: Arc::new(node),
        claim: Some(Arc::new(claim)),
        standing: Standing::default(),
        health: Health::default(),
    })
}

fn single_values(requirements: &Requirements) -> impl Iterator<Item = (String, String)> {
    requirements
        .iter()
        .filter_map(|requirement| Some((requirement.key().to_owned(), requirement.single_value()?.to_owned())))
}
