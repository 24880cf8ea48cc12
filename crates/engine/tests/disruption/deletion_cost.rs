//! Which nodes' pods should go first when a ReplicaSet shrinks (disruption.md §17, "Deletion cost").

use std::sync::Arc;

use karpenter_api::labels;
use karpenter_engine::disruption::PodDisruptionBudget;
use karpenter_engine::disruption::deletion_cost::{NODES_PER_CYCLE, Ranking, rank};
use karpenter_engine::model::{DoNotDisrupt, Effect, LabelSelector, Taint};

use crate::fleet::{Builder, fleet, minutes, now};

/// Ranks with pods named `pinned…` as those that no controller would make anew.
fn ranking(built: Builder) -> Ranking {
    rank(&built.build(), &|pod| pod.name.starts_with("pinned"))
}

fn ranked(built: Builder) -> Vec<(String, i32)> {
    let ranking = ranking(built);
    ranking
        .ranked
        .into_iter()
        .map(|(name, rank)| (name.to_string(), rank))
        .collect()
}

fn pairs(expected: &[(&str, i32)]) -> Vec<(String, i32)> {
    expected
        .iter()
        .map(|(name, rank)| ((*name).to_owned(), *rank))
        .collect()
}

fn drifted(built: Builder) -> Builder {
    built.claim_where(|claim| claim.drifted_since = Some(now() - minutes(5)))
}

#[test]
fn the_best_saving_per_disturbance_ranks_lowest_then_the_name() {
    let built = fleet("d4")
        .node("c", "d4", &["1"])
        .node("b", "d4", &["1"])
        .node("a", "d4", &["1", "1"]);
    assert_eq!(ranked(built), pairs(&[("b", -3), ("c", -2), ("a", -1)]));
}

#[test]
fn drifted_nodes_come_before_others_even_where_nothing_is_consolidated() {
    let built =
        drifted(fleet("d4").node("a", "d4", &["1"]).node("b", "d4", &["1", "1"])).with_policy("default", |policy| {
            policy.consolidate_after = Some(minutes(1));
        });
    assert_eq!(ranked(built), pairs(&[("b", -2), ("a", -1)]));
    let never = drifted(fleet("d4").node("a", "d4", &["1"]).node("b", "d4", &["1", "1"]))
        .with_policy("default", |policy| policy.consolidate_after = None);
    let ranking = ranking(never);
    assert_eq!(ranking.ranked, [("b".into(), -1)]);
    assert_eq!(ranking.cleared, ["a".into()]);
}

#[test]
fn a_node_that_is_going_ranks_below_all_whatever_protects_it() {
    let tainted = fleet("d4")
        .node("a", "d4", &["1"])
        .node_where(|node| {
            node.raw_taints.push(Taint {
                key: "karpenter.sh/disrupted".to_owned(),
                value: String::new(),
                effect: Effect::NoSchedule,
            });
        })
        .standing(|standing| standing.do_not_disrupt = true)
        .node("b", "d4", &["1"])
        .standing(|standing| standing.leaving = true);
    assert_eq!(ranking(tainted).going, ["a".into(), "b".into()]);
}

fn cleared(change: impl FnOnce(Builder) -> Builder) {
    let ranking = ranking(change(fleet("d4").node("a", "d4", &["1"])));
    assert_eq!(ranking.cleared, ["a".into()]);
    assert!(ranking.ranked.is_empty());
}

#[test]
fn a_node_that_will_not_be_emptied_says_nothing() {
    cleared(|built| built.standing(|standing| standing.do_not_disrupt = true));
    cleared(|built| built.pods_where(|pod| pod.do_not_disrupt = Some(DoNotDisrupt::Always)));
    cleared(|built| built.pods_where(|pod| pod.name = "pinned".into()));
    cleared(|built| built.with_policy("default", |policy| policy.consolidate_after = None));
    cleared(|built| {
        built.node_where(|node| {
            Arc::make_mut(&mut node.labels).insert(labels::INSTANCE_TYPE.to_owned(), "d99".to_owned());
        })
    });
    cleared(|built| {
        built.budget(PodDisruptionBudget {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            selector: LabelSelector::labels([("app", "web")]),
            disruptions_allowed: 0,
            never_allows: false,
            allows_unhealthy: false,
        })
    });
}

#[test]
fn nodes_beyond_their_pools_budget_say_nothing() {
    let two_pools = fleet("d4")
        .pool("closed")
        .allow("closed", "0")
        .node("a", "d4", &["1"])
        .node_in("closed", "b", "d4", &["1"]);
    let ranking_of = ranking(two_pools);
    assert_eq!(ranking_of.ranked, [("a".into(), -1)]);
    assert_eq!(ranking_of.cleared, ["b".into()]);

    let two_drifted =
        drifted(drifted(fleet("d4").allow("default", "1").node("a", "d4", &["1"])).node("b", "d4", &["1"]));
    let ranking_of = ranking(two_drifted);
    assert_eq!(ranking_of.ranked, [("a".into(), -1)]);
    assert_eq!(ranking_of.cleared, ["b".into()]);
}

#[test]
fn unmanaged_nodes_are_none_of_our_business() {
    let mut fleet = fleet("d4").node("a", "d4", &["1"]).build();
    let mut members = fleet.members.to_vec();
    members[0].claim = None;
    members[0].standing.leaving = true;
    fleet.members = members.into();
    assert_eq!(rank(&fleet, &|_| false), Ranking::default());
}

fn nodes(prefix: &str, count: usize) -> Vec<Arc<str>> {
    (0..count).map(|nth| format!("{prefix}{nth:02}").into()).collect()
}

#[test]
fn a_cycle_writes_fifty_nodes_and_all_that_are_going() {
    let ranking = Ranking {
        going: nodes("g", 60),
        ranked: nodes("n", 60).into_iter().zip(-60..0).collect(),
        cleared: nodes("c", 60),
    };
    let due = ranking.due(|_, _| true);
    assert_eq!(due.len(), 60 + NODES_PER_CYCLE);
    assert_eq!(due[0], ("g00".into(), Some(i32::MIN)));
    assert_eq!(
        due[60],
        ("n00".into(), Some(-60)),
        "ranks count all nodes, written or not"
    );
    assert!(
        due.iter().all(|(name, _)| !name.starts_with('c')),
        "ranked ones come first"
    );
}

#[test]
fn a_node_where_nothing_differs_takes_nobodys_place() {
    let ranking = Ranking {
        going: Vec::new(),
        ranked: nodes("n", 60).into_iter().zip(-60..0).collect(),
        cleared: Vec::new(),
    };
    let due = ranking.due(|node, _| node > "n09");
    assert_eq!(due.len(), 50);
    assert_eq!((&*due[0].0, &*due[49].0), ("n10", "n59"));
}
