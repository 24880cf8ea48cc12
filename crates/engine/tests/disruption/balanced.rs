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

/// Ten nodes that cost 58.08 together, with 80 to disturb: `small` has 3 of it, `large` 8.
fn ten() -> Fleet {
    let pods = |count: usize| vec!["100m"; count];
    let mut built = balanced(fleet("d1 d4"))
        .with_policy("default", |policy| policy.tracked_cost = 58.08)
        .node("small", "d4", &pods(2))
        .node("large", "d4", &pods(7))
        .node("huge", "d4", &pods(12));
    for nth in 0..7 {
        built = built.node(&format!("n{nth}"), "d4", &pods(7));
    }
    built.build()
}

#[test]
fn a_large_saving_for_a_small_disturbance_is_approved_and_the_other_way_round_refused() {
    assert!((score(&ten(), "small", 7.26) - 10.0 / 3.0).abs() < 1e-9);
    let poor = score(&ten(), "large", 2.42);
    assert!((poor - 5.0 / 12.0).abs() < 1e-9 && poor < THRESHOLD, "{poor}");
}

#[test]
fn the_only_node_of_a_pool_scores_one_when_it_goes() {
    let fleet = balanced(fleet("d4")).node("a", "d4", &["1"]).build();
    assert_eq!(score(&fleet, "a", 4.0), 1.0);
}

#[test]
fn a_pool_about_which_nothing_is_known_refuses() {
    let fleet = pair();
    let survey = forecast::survey(&fleet, Method::SingleNodeConsolidation);
    let nothing = Totals::of(&fleet, &[]);
    assert_eq!(nothing.score(&fleet, &[&survey.all[0]], 4.0)[0].value, 0.0);
    assert_eq!(
        nothing.best_score(&fleet, &survey.all[0]),
        None,
        "the first filter lets it through"
    );
}

#[test]
fn a_saving_over_two_pools_is_split_by_their_prices_and_only_balanced_ones_judge() {
    let built = |policy: ConsolidationPolicy| {
        balanced(fleet("d2 d4 d8"))
            .pool("other")
            .with_policy("other", |own| own.consolidation_policy = policy)
            .node("a", "d8", &["1"])
            .node_in("other", "b", "d4", &["1"])
            .build()
    };
    let scores = |policy| {
        let fleet = built(policy);
        let survey = forecast::survey(&fleet, Method::MultiNodeConsolidation);
        let candidates: Vec<&Candidate> = survey.all.iter().collect();
        Totals::of(&fleet, &survey.all).score(&fleet, &candidates, 9.0)
    };
    let both = scores(ConsolidationPolicy::Balanced);
    // 9 saved of 12: 6 are the share of the node that costs 8 of them, 3 that of the other.
    assert_eq!(both.iter().map(|score| score.value).collect::<Vec<_>>(), [0.75, 0.75]);
    let one = scores(ConsolidationPolicy::WhenEmptyOrUnderutilized);
    assert_eq!(one.len(), 1);
    assert_eq!(one[0].pool, "default");
}

#[test]
fn a_node_that_would_not_be_worth_it_even_for_nothing_is_not_looked_at() {
    use karpenter_engine::disruption::Blocked;
    let dear = balanced(fleet("d1 d4"))
        .with_policy("default", |policy| policy.tracked_cost = 1000.0)
        .node("a", "d4", &["500m"]);
    let reason = dear.blocked(Method::SingleNodeConsolidation, "a");
    assert!(matches!(reason, Some(Blocked::NeverWorthIt { .. })), "{reason:?}");
    // A delete of this one would be worth it; the replacement that it needs saves too little.
    let close = balanced(fleet("d3 d4")).node("a", "d4", &["2500m"]);
    let reason = close.blocked(Method::SingleNodeConsolidation, "a");
    assert!(
        matches!(reason, Some(Blocked::NotWorthIt { score, .. }) if score == 0.25),
        "{reason:?}"
    );
}

#[test]
fn one_pool_that_refuses_keeps_the_nodes_of_both() {
    let built = |tracked: f64| {
        fleet("d4 d8")
            .pool("strict")
            .with_policy("strict", |own| {
                own.consolidation_policy = ConsolidationPolicy::Balanced;
                own.tracked_cost = tracked;
            })
            .node("a", "d4", &["1"])
            .node_in("strict", "b", "d4", &["1"])
            .node("c", "d8", &["4"])
            .claim_where(|claim| claim.consolidatable = false)
    };
    assert_eq!(built(8.0).decides(Method::MultiNodeConsolidation), "delete a, b");
    assert_eq!(built(1000.0).decides(Method::MultiNodeConsolidation), "nothing");
}
