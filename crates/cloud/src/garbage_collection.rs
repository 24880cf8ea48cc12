//! Which machines at the cloud are nobody's any more: decided cautiously, because a wrong answer deletes a running node.
//!
//! A machine is collected only if it carries our cluster's mark and a claim UID that is ours to judge, no NodeClaim knows it,
//! and this was so in two rounds some time apart, the second confirmed by reading the machine itself. Callers list machines
//! *before* they list NodeClaims: a claim made in between then counts as its owner.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use karpenter_api::NodeClaim;

use crate::{clock::later, instance::ClaimMark, ownership::Owner};

/// A machine as the garbage collector sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The cloud's own id.
    pub id: String,
    pub provider_id: String,
    pub owner: Owner,
    pub created_at: Option<Timestamp>,
    /// Termination was requested already.
    pub terminating: bool,
}

/// What is known about NodeClaims at the time of a round.
#[derive(Clone, Debug, Default)]
pub struct KnownClaims {
    provider_ids: BTreeSet<String>,
    /// Claim UID → its provider ID once it has one.
    by_uid: BTreeMap<String, Option<String>>,
}

/// How careful to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Caution {
    /// Between the two rounds that must agree.
    pub confirm_after: Duration,
    /// Younger machines are left alone: their claim may not have heard of them yet.
    pub least_age: Duration,
    /// More orphans at once than this, and than `most_share` of all our machines, are a sign of a lost cluster state.
    pub most_at_once: usize,
    pub most_share: f64,
}

/// What a round found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To be read once more and then deleted, if [`GarbageCollector::confirm`] agrees.
    Collect(Vec<Orphan>),
    /// Too many to be true: nothing is deleted until a human looks, or the number falls.
    Suspended { orphans: usize, machines: usize },
}

/// A machine without an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    pub id: String,
    pub provider_id: String,
    pub claim: ClaimMark,
    pub why: OrphanReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanReason {
    /// Its claim does not exist (any more).
    ClaimGone,
    /// Its claim has another machine.
    Duplicate,
}

/// Remembers what earlier rounds saw.
#[derive(Debug)]
pub struct GarbageCollector {
    caution: Caution,
    first_seen: BTreeMap<String, Timestamp>,
}

impl Default for Caution {
    fn default() -> Self {
        Self {
            confirm_after: Duration::from_secs(30),
            least_age: Duration::from_secs(5 * 60),
            most_at_once: 10,
            most_share: 0.3,
        }
    }
}

impl GarbageCollector {
    pub fn new(caution: Caution) -> Self {
        Self {
            caution,
            first_seen: BTreeMap::new(),
        }
    }

    /// Judges one complete list of machines. An incomplete one must not be passed: skip the round instead.
    pub fn round(&mut self, machines: &[Sighting], claims: &KnownClaims, now: Timestamp) -> Verdict {
        let ours = machines
            .iter()
            .filter(|machine| matches!(machine.owner, Owner::Ours(_)))
            .count();
        let orphans: Vec<(Orphan, &Sighting)> = machines
            .iter()
            .filter_map(|machine| Some((orphan(machine, claims)?, machine)))
            .filter(|(_, machine)| {
                machine
                    .created_at
                    .is_none_or(|at| later(at, self.caution.least_age) <= now)
            })
            .collect();

        let ids: BTreeSet<&str> = orphans.iter().map(|(orphan, _)| orphan.id.as_str()).collect();
        self.first_seen.retain(|id, _| ids.contains(id.as_str()));
        if orphans.len() > self.limit(ours) {
            self.first_seen.clear();
            return Verdict::Suspended {
                orphans: orphans.len(),
                machines: ours,
            };
        }
        let confirmed = orphans.into_iter().map(|(orphan, _)| orphan).filter(|orphan| {
            let first = *self.first_seen.entry(orphan.id.clone()).or_insert(now);
            first < now && later(first, self.caution.confirm_after) <= now
        });
        Verdict::Collect(confirmed.collect())
    }

    /// Whether an orphan may be deleted after reading it, and the claims, once more. `read` is `None` if it is gone.
    pub fn confirm(&self, orphan: &Orphan, read: Option<&Sighting>, claims: &KnownClaims) -> bool {
        let Some(read) = read else { return false };
        self.first_seen.contains_key(&orphan.id) && self::orphan(read, claims).as_ref() == Some(orphan)
    }

    fn limit(&self, ours: usize) -> usize {
        let share = (ours as f64 * self.caution.most_share).floor() as usize;
        self.caution.most_at_once.max(share)
    }
}

/// Judges one machine by what is known now.
fn orphan(machine: &Sighting, claims: &KnownClaims) -> Option<Orphan> {
    if machine.terminating || claims.provider_ids.contains(&machine.provider_id) {
        return None;
    }
    let claim = match &machine.owner {
        Owner::Ours(claim) => claim.clone(),
        Owner::Unclear | Owner::Foreign => return None,
    };
    let why = match claims.by_uid.get(&claim.uid) {
        None => OrphanReason::ClaimGone,
        Some(Some(other)) if *other != machine.provider_id => OrphanReason::Duplicate,
        // The claim is still launching (this may be its machine), or knows exactly this one.
        Some(_) => return None,
    };
    Some(Orphan {
        id: machine.id.clone(),
        provider_id: machine.provider_id.clone(),
        claim,
        why,
    })
}

impl KnownClaims {
    /// All NodeClaims of the cluster, those being deleted included.
    pub fn of<'a>(claims: impl IntoIterator<Item = &'a NodeClaim>) -> Self {
        let mut known = Self::default();
        for claim in claims {
            let provider_id = claim.provider_id().map(str::to_owned);
            known.provider_ids.extend(provider_id.clone());
            known
                .by_uid
                .insert(claim.metadata.uid.clone().unwrap_or_default(), provider_id);
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn at(seconds: u64) -> Timestamp {
        later(NOW, Duration::from_secs(seconds))
    }

    fn machine(id: &str) -> Sighting {
        Sighting {
            id: id.into(),
            provider_id: format!("cloud:///{id}"),
            owner: Owner::Ours(ClaimMark {
                name: format!("claim-{id}"),
                uid: format!("uid-{id}"),
            }),
            created_at: Some(NOW),
            terminating: false,
        }
    }

    fn known(claims: &[(&str, Option<&str>)]) -> KnownClaims {
        KnownClaims {
            provider_ids: claims.iter().filter_map(|(_, id)| id.map(str::to_owned)).collect(),
            by_uid: claims
                .iter()
                .map(|(uid, id)| ((*uid).to_owned(), id.map(str::to_owned)))
                .collect(),
        }
    }

    fn collected(verdict: Verdict) -> Vec<String> {
        match verdict {
            Verdict::Collect(orphans) => orphans.into_iter().map(|orphan| orphan.id).collect(),
            Verdict::Suspended { .. } => panic!("suspended"),
        }
    }

    /// Runs two rounds with the same machines, far enough apart.
    fn check(machines: &[Sighting], claims: &KnownClaims, expected: &[&str]) {
        let mut collector = GarbageCollector::new(Caution::default());
        assert_eq!(
            collected(collector.round(machines, claims, at(400))),
            [""; 0],
            "never in the first round"
        );
        assert_eq!(collected(collector.round(machines, claims, at(440))), expected);
    }

    #[test]
    fn a_machine_whose_claim_is_gone_is_collected_in_the_second_round() {
        check(&[machine("a")], &known(&[]), &["a"]);
    }

    #[test]
    fn a_machine_with_a_claim_is_left_alone() {
        check(&[machine("a")], &known(&[("uid-a", Some("cloud:///a"))]), &[]);
        check(&[machine("a")], &known(&[("uid-a", None)]), &[]);
        check(&[machine("a")], &known(&[("another", Some("cloud:///a"))]), &[]);
    }

    #[test]
    fn a_second_machine_of_a_claim_is_collected() {
        let mut second = machine("b");
        second.owner = Owner::Ours(ClaimMark {
            name: "claim-a".into(),
            uid: "uid-a".into(),
        });
        check(
            &[machine("a"), second],
            &known(&[("uid-a", Some("cloud:///a"))]),
            &["b"],
        );
    }

    #[test]
    fn a_machine_without_both_marks_is_never_touched() {
        for owner in [Owner::Foreign, Owner::Unclear] {
            check(&[Sighting { owner, ..machine("a") }], &known(&[]), &[]);
        }
    }

    #[test]
    fn a_machine_on_its_way_out_is_left_alone() {
        check(
            &[Sighting {
                terminating: true,
                ..machine("a")
            }],
            &known(&[]),
            &[],
        );
    }

    #[test]
    fn rounds_must_be_some_time_apart_and_agree_without_a_gap() {
        let mut collector = GarbageCollector::new(Caution::default());
        let orphan = [machine("a")];
        assert!(collected(collector.round(&orphan, &known(&[]), at(400))).is_empty());
        assert!(
            collected(collector.round(&orphan, &known(&[]), at(410))).is_empty(),
            "too soon"
        );
        assert!(
            collected(collector.round(&orphan, &known(&[("uid-a", None)]), at(440))).is_empty(),
            "owned"
        );
        assert!(
            collected(collector.round(&orphan, &known(&[]), at(450))).is_empty(),
            "counts anew"
        );
        assert_eq!(collected(collector.round(&orphan, &known(&[]), at(480))), ["a"]);
    }

    #[test]
    fn a_young_machine_is_left_alone() {
        let mut collector = GarbageCollector::new(Caution::default());
        for second in [10, 100, 299] {
            assert!(collected(collector.round(&[machine("a")], &known(&[]), at(second))).is_empty());
        }
    }

    #[test]
    fn too_many_orphans_at_once_suspend_the_collection() {
        let machines: Vec<Sighting> = (0..11).map(|number| machine(&number.to_string())).collect();
        let mut collector = GarbageCollector::new(Caution::default());
        let suspended = Verdict::Suspended {
            orphans: 11,
            machines: 11,
        };
        assert_eq!(collector.round(&machines, &known(&[]), at(400)), suspended);
        assert_eq!(collector.round(&machines, &known(&[]), at(440)), suspended);
    }

    #[test]
    fn the_last_read_must_agree_with_the_list() {
        let mut collector = GarbageCollector::new(Caution::default());
        let listed = machine("a");
        collector.round(std::slice::from_ref(&listed), &known(&[]), at(400));
        let Verdict::Collect(orphans) = collector.round(std::slice::from_ref(&listed), &known(&[]), at(440)) else {
            panic!("suspended")
        };
        let confirm = |read: Option<&Sighting>, claims: KnownClaims| collector.confirm(&orphans[0], read, &claims);
        assert!(confirm(Some(&listed), known(&[])));
        assert!(!confirm(None, known(&[])));
        assert!(
            !confirm(Some(&listed), known(&[("uid-a", None)])),
            "a claim appeared meanwhile"
        );
        assert!(!confirm(
            Some(&Sighting {
                terminating: true,
                ..listed.clone()
            }),
            known(&[])
        ));
        assert!(!confirm(
            Some(&Sighting {
                owner: Owner::Foreign,
                ..listed.clone()
            }),
            known(&[])
        ));
    }
}
