//! Moving pods to save money: what a set of nodes could be replaced by, and whether that is worth it (disruption.md §3.5).

pub mod multi;
pub mod single;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::labels;
use karpenter_api::requirement::{Requirement, Requirements, Undefined};

use super::blocked::Blocked;
use super::candidate::Candidate;
use super::command::{Command, Method};
use super::fleet::{Fleet, SpotToSpot};
use super::price;
use super::rehearsal::{Destinations, Rehearsal};
use super::tuning;
use crate::model::InstanceType;
use crate::plan::PlannedClaim;

/// With fewer cheaper types to choose from, replacing spot by spot would walk down the price ladder one rung at a time,
/// each time to a likelier interruption.
pub const SPOT_FLEXIBILITY: usize = 15;

/// Best saving for the least disturbance first; equal ones by name, so that the order is always the same.
pub fn by_savings(a: &Candidate, b: &Candidate) -> Ordering {
    b.savings_ratio()
        .total_cmp(&a.savings_ratio())
        .then_with(|| a.name().cmp(b.name()))
}

/// What removing these nodes together would come to: a command, or the reason against it.
pub fn compute(rehearsal: &mut Rehearsal<'_>, candidates: &[&Candidate], method: Method) -> Result<Command, Blocked> {
    let fleet = rehearsal.fleet();
    // Pods that wait are part of every simulation. If they alone need more nodes than a command may launch, none can come
    // of it, and looking at a thousand nodes one by one would only find that out a thousand times.
    let waiting = rehearsal.new_nodes_for_pending();
    let most = tuning::max_replacements(fleet, candidates);
    if waiting > most {
        return Err(Blocked::PendingPods(waiting));
    }
    let outcome = rehearsal.without(candidates, Destinations::Settled);
    if let Some(stranded) = outcome.stranded() {
        return Err(Blocked::CannotReschedule(stranded));
    }
    let price: f64 = candidates.iter().map(|candidate| candidate.price).sum();
    let mut plan = outcome.plan;
    let mut replacements = std::mem::take(&mut plan.claims);
    match &mut replacements[..] {
        [] => {}
        [only] => narrow_to_cheaper(fleet, candidates, only, price)?,
        several if several.len() <= most => narrow_together(fleet, candidates, several, price)?,
        several => return Err(Blocked::TooManyReplacements(several.len())),
    }
    let costs: f64 = replacements.iter().map(|claim| replacement_price(fleet, claim)).sum();
    let command = command(method, candidates, replacements, price - costs, plan);
    tuning::check_saving(fleet, &command)?;
    Ok(command)
}

fn command(
    method: Method,
    candidates: &[&Candidate],
    replacements: Vec<PlannedClaim>,
    savings: f64,
    plan: crate::plan::Plan,
) -> Command {
    let candidates = candidates.iter().map(|candidate| (*candidate).clone()).collect();
    Command {
        replacements,
        savings,
        plan,
        ..Command::delete(method, candidates)
    }
}

/// The cheapest launch of the replacement's cheapest type; 0 when none can be launched.
pub(super) fn replacement_price(fleet: &Fleet, replacement: &PlannedClaim) -> f64 {
    let undefined = Undefined::WellKnown(fleet.snapshot.catalog.label_rules());
    replacement
        .instance_types
        .first()
        .and_then(|instance_type| price::cheapest_launch(instance_type, &replacement.requirements, undefined))
        .unwrap_or(0.0)
}

/// Leaves the replacement only what is certain to be cheaper than what it replaces.
fn narrow_to_cheaper(
    fleet: &Fleet,
    candidates: &[&Candidate],
    replacement: &mut PlannedClaim,
    price: f64,
) -> Result<(), Blocked> {
    drop_own_types(fleet, candidates, replacement);
    let all_spot = candidates
        .iter()
        .all(|candidate| candidate.capacity_type() == Some(labels::CAPACITY_TYPE_SPOT));
    let capacity_type = replacement.requirements.get_or_exists(labels::CAPACITY_TYPE);
    if all_spot && capacity_type.has(labels::CAPACITY_TYPE_SPOT) {
        return narrow_spot_to_spot(fleet, candidates, replacement, price);
    }
    keep_cheaper_than(fleet, replacement, price)?;
    pin_to_spot_if_priced_so(fleet, replacement);
    Ok(())
}

/// Where spot could be bought the comparison took spot prices. Falling back to on-demand could cost more than what was
/// there: better that the launch fails.
fn pin_to_spot_if_priced_so(fleet: &Fleet, replacement: &mut PlannedClaim) {
    let capacity_type = replacement.requirements.get_or_exists(labels::CAPACITY_TYPE);
    if !capacity_type.has(labels::CAPACITY_TYPE_SPOT) || !capacity_type.has(labels::CAPACITY_TYPE_ON_DEMAND) {
        return;
    }
    let undefined = Undefined::WellKnown(fleet.snapshot.catalog.label_rules());
    let mut spot = (*replacement.requirements).clone();
    spot.add(Requirement::within(labels::CAPACITY_TYPE, [labels::CAPACITY_TYPE_SPOT]));
    // Clouds without spot leave the capacity type open; they must not be asked for it.
    let kinds = &replacement.instance_types;
    if kinds
        .iter()
        .any(|kind| price::cheapest_launch(kind, &spot, undefined).is_some())
    {
        replacement.requirements = Arc::new(spot);
    }
}

/// Leaves several replacements only what is certain to be cheaper together than the one node that they replace: each may
/// cost as much as its cheapest type, plus its share of what is left.
fn narrow_together(
    fleet: &Fleet,
    candidates: &[&Candidate],
    replacements: &mut [PlannedClaim],
    price: f64,
) -> Result<(), Blocked> {
    let is_spot = |candidate: &&Candidate| candidate.capacity_type() == Some(labels::CAPACITY_TYPE_SPOT);
    if candidates.iter().any(is_spot) {
        // What holds for replacing spot by spot was thought out for one node.
        return Err(Blocked::TooManyReplacements(replacements.len()));
    }
    let undefined = Undefined::WellKnown(fleet.snapshot.catalog.label_rules());
    let mut least = Vec::with_capacity(replacements.len());
    for replacement in replacements.iter_mut() {
        drop_own_types(fleet, candidates, replacement);
        pin_to_spot_if_priced_so(fleet, replacement);
        let worst = |kind: &Arc<InstanceType>| price::worst_launch(kind, &replacement.requirements, undefined);
        let cheapest = replacement
            .instance_types
            .iter()
            .filter_map(worst)
            .min_by(f64::total_cmp);
        least.push(cheapest.ok_or(Blocked::NothingCheaper)?);
    }
    let left = price - least.iter().sum::<f64>();
    if left <= 0.0 {
        return Err(Blocked::NothingCheaper);
    }
    let share = left / replacements.len() as f64;
    for (replacement, least) in replacements.iter_mut().zip(least) {
        keep_cheaper_than(fleet, replacement, least + share)?;
    }
    Ok(())
}

/// A pool with a cooldown does not want a node replaced by one of the same type, however it is bought.
fn drop_own_types(fleet: &Fleet, candidates: &[&Candidate], replacement: &mut PlannedClaim) {
    let own: Vec<&str> = candidates
        .iter()
        .filter(|candidate| candidate.policy(fleet).tuning.cooldown.is_some())
        .filter_map(|candidate| candidate.instance_type.as_ref())
        .map(|kind| kind.name.as_str())
        .collect();
    if !own.is_empty() {
        keep(replacement, |kind| !own.contains(&kind.name.as_str()));
    }
}

fn narrow_spot_to_spot(
    fleet: &Fleet,
    candidates: &[&Candidate],
    replacement: &mut PlannedClaim,
    price: f64,
) -> Result<(), Blocked> {
    if fleet.gates.spot_to_spot == SpotToSpot::Refused {
        return Err(Blocked::SpotToSpotDisabled);
    }
    pin_to_spot(&mut replacement.requirements);
    let undefined = Undefined::WellKnown(fleet.snapshot.catalog.label_rules());
    let requirements = replacement.requirements.clone();
    keep(replacement, |instance_type| {
        instance_type
            .offerings
            .iter()
            .any(|offering| offering.available && requirements.is_compatible(&offering.requirements, undefined))
    });
    keep_cheaper_than(fleet, replacement, price)?;
    if candidates.len() > 1 {
        return Ok(());
    }
    let found = replacement.instance_types.len();
    if found < SPOT_FLEXIBILITY {
        return Err(Blocked::TooFewSpotTypes {
            needed: SPOT_FLEXIBILITY,
            found,
        });
    }
    // What is launched is then always among these, so the next pass finds fewer that are cheaper, and stops.
    let needed = min_values_prefix(&replacement.requirements, &replacement.instance_types).unwrap_or(found);
    replacement.instance_types = replacement.instance_types[..needed.max(SPOT_FLEXIBILITY).min(found)].into();
    Ok(())
}

fn keep(replacement: &mut PlannedClaim, wanted: impl Fn(&InstanceType) -> bool) {
    replacement.instance_types = replacement
        .instance_types
        .iter()
        .filter(|kind| wanted(kind))
        .cloned()
        .collect();
}

fn pin_to_spot(requirements: &mut Arc<Requirements>) {
    Arc::make_mut(requirements).add(Requirement::within(labels::CAPACITY_TYPE, [labels::CAPACITY_TYPE_SPOT]));
}

/// Drops every type that might cost as much as `limit`, and checks that the rest is still a choice the pool accepts.
fn keep_cheaper_than(fleet: &Fleet, replacement: &mut PlannedClaim, limit: f64) -> Result<(), Blocked> {
    let undefined = Undefined::WellKnown(fleet.snapshot.catalog.label_rules());
    let requirements = Arc::clone(&replacement.requirements);
    // Most types are dearer in every offering: no need to look at which of those would do.
    let may_be_cheaper = |kind: &InstanceType| kind.offerings.iter().any(|offering| offering.price < limit);
    keep(replacement, |kind| {
        may_be_cheaper(kind) && price::worst_launch(kind, &requirements, undefined).is_some_and(|price| price < limit)
    });
    if replacement.instance_types.is_empty() {
        return Err(Blocked::NothingCheaper);
    }
    match min_values_prefix(&requirements, &replacement.instance_types) {
        Some(_) => Ok(()),
        None => Err(Blocked::MinValuesUnmet),
    }
}

/// How many of the types, taken in order, satisfy every minValues; `None` when all of them together do not.
fn min_values_prefix(requirements: &Requirements, instance_types: &[Arc<InstanceType>]) -> Option<usize> {
    let asked: Vec<(&Requirement, usize)> = requirements
        .iter()
        .filter_map(|requirement| Some((requirement, requirement.min_values()? as usize)))
        .collect();
    if asked.is_empty() {
        return Some(0);
    }
    let mut seen: BTreeMap<&str, std::collections::BTreeSet<&str>> = BTreeMap::new();
    for (count, instance_type) in instance_types.iter().enumerate() {
        for (requirement, _) in &asked {
            let Some(own) = instance_type.requirements.get(requirement.key()) else {
                continue;
            };
            let allowed = own
                .values()
                .iter()
                .filter(|value| !own.is_complement() && requirement.has(value));
            seen.entry(requirement.key())
                .or_default()
                .extend(allowed.map(String::as_str));
        }
        if asked
            .iter()
            .all(|(requirement, least)| seen.get(requirement.key()).map_or(0, |values| values.len()) >= *least)
        {
            return Some(count + 1);
        }
    }
    None
}

/// Replacing {big, big, small} by one small is the same as deleting the two big ones: where a type stands on both sides,
/// only something strictly cheaper than it is a real improvement.
fn drop_shared_types(fleet: &Fleet, candidates: &[&Candidate], replacement: &mut PlannedClaim) -> Result<(), Blocked> {
    let undefined = Undefined::WellKnown(fleet.snapshot.catalog.label_rules());
    let rules = fleet.snapshot.catalog.label_rules();
    let mut limit: Option<f64> = None;
    for candidate in candidates {
        let Some(own) = &candidate.instance_type else { continue };
        if !replacement.instance_types.iter().any(|option| option.name == own.name) {
            continue;
        }
        let labels = Requirements::from_labels(rules, candidate.node.labels.iter());
        let cheapest = own
            .offerings
            .iter()
            .filter(|offering| labels.is_compatible(&offering.requirements, undefined))
            .map(|offering| offering.price)
            .min_by(f64::total_cmp)
            // A shared type whose price is not known rules the move out.
            .unwrap_or(0.0);
        limit = Some(limit.map_or(cheapest, |price: f64| price.min(cheapest)));
    }
    match limit {
        Some(limit) => keep_cheaper_than(fleet, replacement, limit),
        None => Ok(()),
    }
}
