//! Which NodeClaims of a static NodePool go first when it has more than its replicas.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use karpenter_api::NodeClaim;
use karpenter_api::pods::{self, DoNotDisrupt, PodDeletionCost};

/// A claim that could go, with the pods that are bound to its node.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Not deleting and not chosen by anyone else.
    pub claim: Arc<NodeClaim>,
    /// Terminal pods included: they still say that the node was used.
    pub pods: Vec<Arc<Pod>>,
}

/// Picks `excess` of the candidates: those that hurt least, in the order of lifecycle.md §7.2.
pub fn victims(
    candidates: Vec<Candidate>,
    excess: usize,
    costs: PodDeletionCost,
    now: Timestamp,
) -> Vec<Arc<NodeClaim>> {
    let mut ranked: Vec<(Rank, Arc<NodeClaim>)> = candidates
        .into_iter()
        .map(|candidate| (Rank::of(&candidate, costs, now), candidate.claim))
        .collect();
    ranked.sort_by(|(a, claim_a), (b, claim_b)| {
        let by_cost = a.group.cmp(&b.group).then(a.cost.total_cmp(&b.cost));
        by_cost.then_with(|| claim_a.metadata.name.cmp(&claim_b.metadata.name))
    });
    ranked.into_iter().take(excess).map(|(_, claim)| claim).collect()
}

struct Rank {
    group: Group,
    cost: f64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Unlaunched,
    Empty,
    InUse,
    Protected,
}

impl Rank {
    fn of(candidate: &Candidate, costs: PodDeletionCost, now: Timestamp) -> Rank {
        if candidate.claim.provider_id().is_none() {
            return Rank {
                group: Group::Unlaunched,
                cost: 0.0,
            };
        }
        let pods = &candidate.pods;
        let protected = pods.iter().any(|pod| DoNotDisrupt::of(pod, now).is_active());
        if !protected && pods.iter().all(|pod| pods::is_owned_by_daemon_set(pod)) {
            return Rank {
                group: Group::Empty,
                cost: 0.0,
            };
        }
        let cost: f64 = pods.iter().map(|pod| pods::eviction_cost(pod, costs)).sum();
        let group = if protected { Group::Protected } else { Group::InUse };
        Rank {
            group,
            cost: cost * lifetime_left(&candidate.claim, now),
        }
    }
}

/// How much of the claim's life is still ahead: a node that expires soon has to move its pods anyway.
fn lifetime_left(claim: &NodeClaim, now: Timestamp) -> f64 {
    let Some(lifetime) = claim
        .spec
        .expire_after
        .as_duration()
        .filter(|lifetime| lifetime.is_positive())
    else {
        return 1.0;
    };
    let Some(created) = &claim.metadata.creation_timestamp else {
        return 1.0;
    };
    let age = now.duration_since(created.0);
    ((lifetime - age).as_secs_f64() / lifetime.as_secs_f64()).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, provider_id: &str, expire_after: &str) -> Arc<NodeClaim> {
        Arc::new(
            serde_norway::from_str(&format!(
                "{{apiVersion: karpenter.sh/v1, kind: NodeClaim, \
                  metadata: {{name: {name}, creationTimestamp: '2026-01-01T00:00:00Z'}}, \
                  spec: {{expireAfter: {expire_after}, requirements: [], nodeClassRef: {{group: g, kind: K, name: n}}}}, \
                  status: {{providerID: '{provider_id}'}}}}"
            ))
            .unwrap(),
        )
    }

    /// `web` an ordinary pod, `!` a protected one, `@` a daemon's.
    fn pods(text: &str) -> Vec<Arc<Pod>> {
        let pod = |word: &str| {
            let annotations = if word.contains('!') {
                "{karpenter.sh/do-not-disrupt: 'true'}"
            } else {
                "{}"
            };
            let owners = if word.contains('@') {
                "[{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: u}]"
            } else {
                "[]"
            };
            let yaml = format!(
                "{{metadata: {{annotations: {annotations}, ownerReferences: {owners}}}, spec: {{containers: []}}}}"
            );
            Arc::new(serde_norway::from_str(&yaml).unwrap())
        };
        text.split_whitespace().map(pod).collect()
    }

    fn check(candidates: &[(&str, &str, &str)], excess: usize, expected: &[&str]) {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        let candidates = candidates
            .iter()
            .map(|(name, machine, on_node)| Candidate {
                claim: claim(name, machine, "24h"),
                pods: pods(on_node),
            })
            .collect();
        let chosen = victims(candidates, excess, PodDeletionCost::ByUsers, now);
        let names: Vec<&str> = chosen
            .iter()
            .filter_map(|claim| claim.metadata.name.as_deref())
            .collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn the_cheapest_go_first() {
        let all = [
            ("protected", "i-1", "web!"),
            ("busy", "i-2", "web web"),
            ("light", "i-3", "web"),
            ("daemons", "i-4", "log@"),
            ("empty", "i-5", ""),
            ("unlaunched", "", ""),
        ];
        check(
            &all,
            6,
            &["unlaunched", "daemons", "empty", "light", "busy", "protected"],
        );
        check(&all, 2, &["unlaunched", "daemons"]);
    }

    #[test]
    fn a_protected_daemon_pod_makes_a_node_worth_keeping() {
        check(
            &[("protected", "i-1", "log@!"), ("busy", "i-2", "web web web")],
            1,
            &["busy"],
        );
    }

    #[test]
    fn a_node_that_expires_soon_costs_less() {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        let candidates = vec![
            Candidate {
                claim: claim("young", "i-1", "240h"),
                pods: pods("web"),
            },
            Candidate {
                claim: claim("old", "i-2", "13h"),
                pods: pods("web web"),
            },
        ];
        let chosen = victims(candidates, 1, PodDeletionCost::ByUsers, now);
        assert_eq!(chosen[0].metadata.name.as_deref(), Some("old"));
    }
}
