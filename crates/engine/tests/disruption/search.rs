//! How long a search may take, and what it remembers (disruption.md §17, "Consolidation").

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use karpenter_engine::disruption::balanced::Totals;
use karpenter_engine::disruption::consolidation::{multi, single};
use karpenter_engine::disruption::emptiness::Constrained;
use karpenter_engine::disruption::rehearsal::Rehearsal;
use karpenter_engine::disruption::{Budgets, Fleet, Method, forecast};

use crate::fleet::{Builder, fleet, words};

/// Breaks when asked for the `steps + 1`st time.
fn for_steps(steps: usize) -> impl FnMut() -> ControlFlow<()> {
    let mut left = steps;
    move || match left.checked_sub(1) {
        Some(fewer) => {
            left = fewer;
            ControlFlow::Continue(())
        }
        None => ControlFlow::Break(()),
    }
}

fn search_single(fleet: &Fleet, unseen: &mut BTreeSet<String>, steps: usize) -> single::Search {
    let survey = forecast::survey(fleet, Method::SingleNodeConsolidation);
    let budgets = Budgets::of(fleet, Method::SingleNodeConsolidation.reason());
    let totals = Totals::of(fleet, &survey.all);
    let mut rehearsal = Rehearsal::new(fleet);
    single::search(
        &mut rehearsal,
        survey.candidates,
        &totals,
        &budgets,
        unseen,
        &mut for_steps(steps),
    )
}

/// Three pools with one full node each, so that nothing can be done.
fn three_pools() -> Builder {
    fleet("d4")
        .pool("b")
        .pool("c")
        .node("n1", "d4", &["3500m"])
        .node_in("b", "n2", "d4", &["3500m"])
        .node_in("c", "n3", "d4", &["3500m"])
}

fn names(pools: &BTreeSet<String>) -> Vec<&str> {
    pools.iter().map(String::as_str).collect()
}

#[test]
fn pools_that_a_search_did_not_get_to_come_first_next_time() {
    let fleet = three_pools().build();
    let mut unseen = BTreeSet::new();
    let search = search_single(&fleet, &mut unseen, 0);
    assert!(matches!(search.end, single::End::Late));
    assert_eq!(
        names(&unseen),
        ["b", "c", "default"],
        "time was up before any candidate"
    );

    let search = search_single(&fleet, &mut unseen, 2);
    assert!(matches!(search.end, single::End::Late));
    assert_eq!(names(&unseen), ["default"]);

    let search = search_single(&fleet, &mut unseen, 1);
    assert_eq!(&*search.refused[0].0, "n1", "the one that was left comes first");
    assert_eq!(names(&unseen), ["b", "c"]);

    let search = search_single(&fleet, &mut unseen, 100);
    assert!(matches!(search.end, single::End::Exhausted));
    assert_eq!(search.refused.len(), 3);
    assert!(unseen.is_empty(), "everything was seen");
}

#[test]
fn a_search_that_finds_something_leaves_the_unseen_pools_as_they_were() {
    let fleet = three_pools().node("n4", "d4", &["100m"]).build();
    let mut unseen = BTreeSet::from(["c".to_owned()]);
    let search = search_single(&fleet, &mut unseen, 100);
    assert!(matches!(search.end, single::End::Found(_)));
    assert_eq!(names(&unseen), ["c"]);
}

fn search_multi(fleet: &Fleet, steps: usize) -> multi::Search {
    let survey = forecast::survey(fleet, Method::MultiNodeConsolidation);
    let mut budgets = Budgets::of(fleet, Method::MultiNodeConsolidation.reason());
    let totals = Totals::of(fleet, &survey.all);
    let mut rehearsal = Rehearsal::new(fleet);
    multi::search(
        &mut rehearsal,
        survey.candidates,
        &totals,
        &mut budgets,
        &mut for_steps(steps),
    )
}

#[test]
fn when_time_is_up_the_best_batch_so_far_is_carried_out() {
    let mut built = fleet("d4 d64").node("big", "d64", &["1"]);
    for nth in 0..8 {
        built = built.node(&format!("n{nth}"), "d4", &["1"]);
    }
    let fleet = built.claim_where(|claim| claim.consolidatable = true).build();
    let none = search_multi(&fleet, 0);
    assert_eq!(none.end, multi::End::Late);
    assert!(none.command.is_none(), "single-node consolidation has its turn then");
    let some = search_multi(&fleet, 1);
    assert_eq!(some.end, multi::End::Late);
    let all = search_multi(&fleet, 100);
    assert_eq!(all.end, multi::End::Searched);
    let (some, all) = (some.command.unwrap(), all.command.unwrap());
    assert!(some.candidates.len() >= 2, "{}", words(&some));
    assert!(all.candidates.len() > some.candidates.len(), "{}", words(&all));
}

#[test]
fn a_budget_that_keeps_candidates_is_remembered() {
    let built = || {
        fleet("d4")
            .node("a", "d4", &["3"])
            .node("b", "d4", &["3"])
            .node("c", "d4", &["3"])
    };
    assert_eq!(search_multi(&built().build(), 100).constrained, Constrained::No);
    let tight = built().allow("default", "2").build();
    assert_eq!(search_multi(&tight, 100).constrained, Constrained::ByBudget);
}

#[test]
fn a_batch_that_a_balanced_pool_refuses_is_shown_when_there_is_none_other() {
    use karpenter_api::node_pool::ConsolidationPolicy;
    let built = |policy| {
        fleet("d4 d8")
            .with_policy("default", |own| own.consolidation_policy = policy)
            .node("a", "d4", &["1", "1", "1"])
            .node("b", "d4", &["1", "1", "1"])
            .node("idle", "d64", &["1"])
            .claim_where(|claim| claim.consolidatable = false)
            .build()
    };
    let fleet = built(ConsolidationPolicy::Balanced);
    let search = search_multi(&fleet, 100);
    // Deleting both saves all that is known to cost something for 8 of the 10 that there is to disturb: worth it.
    assert!(search.command.is_some() && search.refused.is_none());
    let mut dear = built(ConsolidationPolicy::Balanced);
    std::sync::Arc::make_mut(&mut dear.pools)
        .get_mut("default")
        .unwrap()
        .tracked_cost = 100.0;
    let search = search_multi(&dear, 100);
    assert!(search.command.is_none());
    assert_eq!(search.refused.unwrap().candidates.len(), 2);
}
