//! The Balanced policy's score (disruption.md §17, "Balanced").

use karpenter_api::node_pool::ConsolidationPolicy;
use karpenter_engine::disruption::balanced::{THRESHOLD, Totals};
use karpenter_engine::disruption::{Candidate, Fleet, Method, forecast};

use crate::fleet::{Builder, fleet};

fn balanced(built: Builder) -> Builder {
    built.with_policy("default", |policy| {
        policy.consolidation_policy = ConsolidationPolicy::Balanced;
    })
}

fn score(fleet: &Fleet, node: &str, savings: f64) -> f64 {
    let survey = forecast::survey(fleet, Method::SingleNodeConsolidation);
    let candidate: &Candidate = survey.all.iter().find(|candidate| candidate.name() == node).unwrap();
    Totals::of(fleet, &survey.all).score(fleet, &[candidate], savings)[0].value
}

/// Two nodes of price 4, three pods each: total cost 8, total disruption 8.
fn pair() -> Fleet {
    balanced(fleet("d1 d4"))
        .node("a", "d4", &["1", "1", "1"])
        .node("b", "d4", &["1", "1", "1"])
        .build()
}

#[test]
fn saving_the_share_that_is_disturbed_scores_one() {
    assert_eq!(score(&pair(), "a", 4.0), 1.0);
}

#[test]
fn saving_half_the_share_is_just_enough() {
    assert_eq!(score(&pair(), "a", 2.0), THRESHOLD);
}

#[test]
fn saving_nothing_scores_nothing() {
    assert_eq!(score(&pair(), "a", 0.0), 0.0);
    assert_eq!(score(&pair(), "a", -1.0), 0.0);
}

#[test]
fn nodes_that_cannot_be_disturbed_still_dilute_the_disturbance() {
    let more = balanced(fleet("d1 d4"))
        .node("a", "d4", &["1", "1", "1"])
        .node("b", "d4", &["1", "1", "1"])
        .standing(|standing| standing.nominated = true)
        .build();
    // Of 8 units of disturbance, `a` is 4; only `a` counts for the cost, since `b` is no candidate and none is tracked.
    assert_eq!(score(&more, "a", 4.0), 2.0);
}

#[test]
fn pods_that_are_dear_to_move_keep_their_node() {
    let built = || {
        balanced(fleet("d1 d8"))
            .node("cheap", "d8", &["100m", "100m", "100m"])
            .node("dear", "d8", &["100m", "100m", "100m"])
            .pods_where(|pod| pod.disruption_cost = Some(i32::MAX))
    };
    assert_eq!(built().decides(Method::SingleNodeConsolidation), "delete cheap");
    let fleet = built().build();
    assert!(score(&fleet, "dear", 8.0) < score(&fleet, "cheap", 8.0));
}

#[test]
fn other_policies_have_no_score() {
    let fleet = fleet("d4").node("a", "d4", &["1"]).build();
    let survey = forecast::survey(&fleet, Method::SingleNodeConsolidation);
    let candidate = survey.all.first().unwrap();
    assert!(
        Totals::of(&fleet, &survey.all)
            .score(&fleet, &[candidate], 1.0)
            .is_empty()
    );
}
