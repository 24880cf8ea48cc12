//! Where moved pods may go (disruption.md §17, "Consolidation" and "Candidate filtering").

use std::sync::Arc;

use karpenter_api::labels;
use karpenter_engine::disruption::{Blocked, Method, forecast};
use karpenter_engine::model::{
    LabelSelector, Lifecycle, NamespaceScope, Pod, PodAffinityTerm, PreferencePolicy, SpreadConstraint, SpreadPolicy,
    WeightedPodTerm, WhenUnsatisfiable,
};

use crate::fleet::{Builder, apart, decision, fleet, minutes, now, offering, sell};

const SINGLE: Method = Method::SingleNodeConsolidation;

#[test]
fn nodes_that_are_up_are_preferred_so_that_one_that_is_not_does_not_stand_in_the_way() {
    let built = fleet("d4")
        .node("a", "d4", &["1"])
        .node("b", "d4", &[])
        .node_where(|node| node.lifecycle = Lifecycle::Registered)
        .node("c", "d4", &["2"]);
    assert_eq!(built.decides(SINGLE), "delete a");
}

#[test]
fn pods_that_keep_apart_are_not_moved_together() {
    let built = |change: fn(&mut Pod)| {
        fleet("d4")
            .node("a", "d4", &["1"])
            .pods_where(change)
            .node("b", "d4", &["1"])
            .pods_where(change)
    };
    assert_eq!(built(|_| ()).decides(SINGLE), "delete a");
    assert_eq!(built(apart).decides(SINGLE), "nothing");
}

fn spread_over_zones(pod: &mut Pod) {
    let mut spec = (*pod.spec).clone();
    spec.spread.push(SpreadConstraint {
        topology_key: labels::ZONE.to_owned(),
        max_skew: 1,
        min_domains: None,
        when_unsatisfiable: WhenUnsatisfiable::DoNotSchedule,
        selector: LabelSelector::labels([("app", "web")]),
        match_label_keys: Vec::new(),
        node_affinity_policy: SpreadPolicy::Honor,
        node_taints_policy: SpreadPolicy::Ignore,
    });
    pod.spec = Arc::new(spec);
}

#[test]
fn a_move_that_would_break_the_spread_over_zones_is_not_made() {
    let built = |change: fn(&mut Pod)| {
        fleet("d4")
            .type_where("d4", |kind| {
                let zones = ["zone-a", "zone-b"];
                let offerings = zones.map(|zone| offering(zone, labels::CAPACITY_TYPE_ON_DEMAND, 4.0));
                sell(kind, offerings.into());
            })
            .node("a", "d4", &["1"])
            .pods_where(change)
            .node("b", "d4", &["1"])
            .node_where(|node| {
                Arc::make_mut(&mut node.labels).insert(labels::ZONE.to_owned(), "zone-b".to_owned());
            })
            .pods_where(change)
    };
    assert_eq!(built(|_| ()).decides(SINGLE), "delete a");
    assert_eq!(built(spread_over_zones).decides(SINGLE), "nothing");
}

fn rather_apart(pod: &mut Pod) {
    let mut spec = (*pod.spec).clone();
    spec.anti_affinity.preferred.push(WeightedPodTerm {
        weight: 100,
        term: PodAffinityTerm {
            topology_key: labels::HOSTNAME.to_owned(),
            selector: LabelSelector::labels([("app", "web")]),
            namespaces: NamespaceScope::Own,
        },
    });
    pod.spec = Arc::new(spec);
}

#[test]
fn preferences_keep_a_node_only_where_they_count() {
    let mut built = fleet("d4")
        .node("a", "d4", &["1"])
        .pods_where(rather_apart)
        .node("b", "d4", &["1"])
        .pods_where(rather_apart)
        .build();
    assert_eq!(decision(&built, SINGLE), "nothing");
    built.snapshot.options.preference_policy = PreferencePolicy::Ignore;
    assert_eq!(decision(&built, SINGLE), "delete a");
}

#[test]
fn a_pool_without_instance_types_keeps_its_nodes_and_no_others() {
    let built = fleet("d2 d4")
        .pool("unlisted")
        .with_policy("unlisted", |policy| policy.has_instance_types = false)
        .node_in("unlisted", "a", "d4", &["3500m"])
        .node("b", "d4", &["1"])
        .build();
    assert_eq!(decision(&built, SINGLE), "replace b by d2");
    let blocked = forecast::survey(&built, SINGLE).blocked;
    assert_eq!(blocked, [("a".into(), Blocked::PoolNotFound("unlisted".to_owned()))]);
}

/// How often users are told why a node stays, over all methods of a pass; on its Node and its NodeClaim each.
fn unconsolidatable(built: Builder) -> usize {
    let fleet = built.build();
    let told = Method::ORDER.into_iter().flat_map(|method| {
        let survey = forecast::survey(&fleet, method);
        survey
            .blocked
            .into_iter()
            .filter(|(_, reason)| reason.is_worth_an_event())
    });
    2 * told.count()
}

#[test]
fn users_hear_from_every_method_that_would_have_looked() {
    use karpenter_api::node_pool::ConsolidationPolicy;
    let busy = || fleet("d2 d4").node("a", "d4", &["1"]);
    assert_eq!(unconsolidatable(busy()), 0, "nothing is wrong with it");
    let when_empty = busy().with_policy("default", |policy| {
        policy.consolidation_policy = ConsolidationPolicy::WhenEmpty;
    });
    assert_eq!(unconsolidatable(when_empty), 4);
    let never = busy().with_policy("default", |policy| policy.consolidate_after = None);
    assert_eq!(unconsolidatable(never), 6);
    let unlabelled = busy().node_where(|node| {
        Arc::make_mut(&mut node.labels).remove(labels::ZONE);
    });
    assert_eq!(unconsolidatable(unlabelled), 4);
}

#[test]
fn a_node_of_unknown_type_or_price_still_drifts() {
    for key in [labels::ZONE, labels::CAPACITY_TYPE, labels::INSTANCE_TYPE] {
        let built = fleet("d4")
            .node("a", "d4", &["1"])
            .node_where(|node| {
                Arc::make_mut(&mut node.labels).remove(key);
            })
            .claim_where(|claim| claim.drifted_since = Some(now() - minutes(5)));
        assert_eq!(built.decides(Method::Drift), "replace a by d4", "{key}");
    }
    let unlisted = fleet("d4")
        .node("a", "d8", &["1"])
        .claim_where(|claim| claim.drifted_since = Some(now() - minutes(5)));
    assert_eq!(unlisted.decides(Method::Drift), "replace a by d4");
}

#[test]
fn a_pending_pod_may_use_a_node_where_pods_came_or_went_lately() {
    // The rule is about moved pods only: else a node that just took a pod could take no other.
    let built = fleet("d4")
        .pool("busy")
        .with_policy("busy", |policy| policy.consolidate_after = Some(minutes(5)))
        .node("a", "d4", &["1"])
        .node_in("busy", "b", "d4", &["2"])
        .claim_where(|claim| {
            claim.last_pod_event = Some(now() - minutes(1));
            claim.consolidatable = false;
        })
        .node("c", "d4", &["3"])
        .pending("waiting", "2");
    assert_eq!(
        built.decides(SINGLE),
        "delete a",
        "a's pod goes to c, the waiting one to b"
    );
}

#[test]
fn pods_that_may_never_leave_need_no_other_place() {
    let covered = |never_allows: bool| {
        fleet("d2 d4")
            .node("a", "d4", &["3"])
            .claim_where(|claim| {
                claim.drifted_since = Some(now() - minutes(5));
                claim.termination_grace_period = Some(minutes(10));
            })
            .budget(karpenter_engine::disruption::PodDisruptionBudget {
                namespace: "default".to_owned(),
                name: "web".to_owned(),
                selector: LabelSelector::labels([("app", "web")]),
                disruptions_allowed: 0,
                never_allows,
                allows_unhealthy: false,
            })
    };
    assert_eq!(covered(true).decides(Method::Drift), "delete a");
    // This one is merely used up now: the pod leaves once it may.
    assert_eq!(covered(false).decides(Method::Drift), "replace a by d4");
}
