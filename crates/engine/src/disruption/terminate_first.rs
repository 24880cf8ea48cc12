//! Letting a node go before its replacement comes, where both find no room side by side (disruption.md §3.3, §3.8).

use std::collections::BTreeSet;

use karpenter_api::labels;
use karpenter_api::requirement::{Requirements, Undefined};

use super::blocked::Blocked;
use super::candidate::Candidate;
use super::command::TerminateFirst;
use super::fleet::{Fleet, Swap};
use super::rehearsal::{Moving, Rehearsal, Reserved};
use crate::catalog::reservation;
use crate::plan::Plan;

/// The plan for the pods of a node of a dynamic pool, and whether the node must go first for it to work.
///
/// Any other place is preferred (another reservation, on-demand, another pool). Only if there is none, and the node sits in
/// a reservation itself, the plan is made again with its slot free; strictly then, because a pod that does not fit the one
/// slot must count as left over and not fall back to capacity that was just found to be missing.
pub(super) fn rehearse(
    rehearsal: &mut Rehearsal<'_>,
    candidate: &Candidate,
    moving: Moving,
    swap: Swap,
) -> Result<(Plan, Option<TerminateFirst>), Blocked> {
    let beside = rehearsal.without_one(candidate, moving, &Reserved::OrOther);
    let Some(stranded) = beside.stranded() else {
        return Ok((beside.plan, None));
    };
    if swap == Swap::TerminateFirst
        && let Some(id) = reservation_of(rehearsal.fleet(), candidate)
    {
        let after = rehearsal.without_one(candidate, moving, &Reserved::WithSlot(id.to_owned()));
        if after.stranded().is_none() {
            return Ok((after.plan, Some(TerminateFirst::NoReservedCapacity)));
        }
    }
    Err(Blocked::CannotReschedule(stranded))
}

/// The reservation that a node's machine was bought from.
pub(super) fn reservation_of<'a>(fleet: &Fleet, candidate: &'a Candidate) -> Option<&'a str> {
    if candidate.capacity_type() != Some(labels::CAPACITY_TYPE_RESERVED) {
        return None;
    }
    let label = fleet.reservation_label.as_deref()?;
    let id = candidate.node.labels.get(label)?;
    (!id.is_empty()).then_some(id)
}

/// What a static pool could launch now as its template stands.
#[derive(Debug)]
pub(super) struct Reservations {
    /// There is nothing but reservations, and none has a slot left.
    pub(super) full: bool,
    /// Reservations that are offered at all.
    offered: BTreeSet<String>,
}

impl Reservations {
    pub(super) fn of(fleet: &Fleet, pool: &str) -> Reservations {
        let rules = fleet.snapshot.catalog.label_rules();
        let undefined = Undefined::WellKnown(rules);
        let mut found = Reservations {
            full: true,
            offered: BTreeSet::new(),
        };
        let Some(entry) = fleet.snapshot.catalog.pool(pool) else {
            return found;
        };
        let mut template = entry.pool.requirements.clone();
        template.add_all(&Requirements::from_labels(rules, entry.pool.node_labels().iter()));
        let compatible = entry
            .instance_types
            .iter()
            .filter(|kind| template.is_compatible(&kind.requirements, undefined))
            .flat_map(|kind| &kind.offerings)
            .filter(|offering| template.is_compatible(&offering.requirements, undefined));
        for offering in compatible {
            // Even on-demand capacity that cannot be had now is another way in.
            if !offering.is_reserved() || offering.is_launchable() {
                found.full = false;
            }
            if let Some(reservation) = reservation(offering).filter(|_| offering.available) {
                found.offered.insert(reservation.id);
            }
        }
        found
    }

    /// Its slot is one that the pool can take again.
    pub(super) fn is_held_by(&self, fleet: &Fleet, candidate: &Candidate) -> bool {
        reservation_of(fleet, candidate).is_some_and(|id| self.offered.contains(id))
    }
}
