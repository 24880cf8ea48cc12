//! The second look (disruption.md §17, "Validation").

use std::sync::Arc;

use karpenter_engine::disruption::validation::{Invalid, revalidate, validate};
use karpenter_engine::disruption::{Command, Fleet, Method, forecast};
use karpenter_engine::model::DoNotDisrupt;

use crate::fleet::{Builder, fleet, words};

const SINGLE: Method = Method::SingleNodeConsolidation;
const MULTI: Method = Method::MultiNodeConsolidation;

fn found(fleet: &Fleet, method: Method) -> Command {
    forecast::attempt(fleet, method).unwrap_or_else(|blocked| panic!("nothing is found: {blocked:?}"))
}

/// What becomes of the command for `before` when the cluster looks like `after` a while later.
fn check(method: Method, before: Builder, after: Builder, expect: Result<(), Invalid>, failed: usize) {
    let mut command = found(&before.build(), method);
    let verdict = validate(&after.build(), &mut command);
    assert_eq!(
        (verdict.outcome, verdict.failed),
        (expect, failed),
        "{}",
        words(&command)
    );
}

fn shrinks(types: &str) -> Builder {
    fleet(types).node("a", "d8", &["1500m"])
}

#[test]
fn nothing_changed_so_the_command_stands() {
    check(SINGLE, shrinks("d2 d8"), shrinks("d2 d8"), Ok(()), 0);
}

#[test]
fn what_keeps_a_node_now_keeps_it_from_an_older_command() {
    let nominated = shrinks("d2 d8").standing(|standing| standing.nominated = true);
    check(SINGLE, shrinks("d2 d8"), nominated, Err(Invalid::Churn), 1);
    let protected = shrinks("d2 d8").pods_where(|pod| pod.do_not_disrupt = Some(DoNotDisrupt::Always));
    check(SINGLE, shrinks("d2 d8"), protected, Err(Invalid::Churn), 1);
    let disturbed = shrinks("d2 d8").claim_where(|claim| claim.consolidatable = false);
    check(SINGLE, shrinks("d2 d8"), disturbed, Err(Invalid::Churn), 1);
    let covered = shrinks("d2 d8").budget(karpenter_engine::disruption::PodDisruptionBudget {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        selector: karpenter_engine::model::LabelSelector::labels([("app", "web")]),
        disruptions_allowed: 0,
        never_allows: false,
        allows_unhealthy: false,
    });
    check(SINGLE, shrinks("d2 d8"), covered, Err(Invalid::Churn), 1);
}

#[test]
fn a_closed_budget_drops_the_command_and_counts_every_candidate() {
    let pair = || {
        fleet("d4")
            .node("a", "d4", &["500m"])
            .node("b", "d4", &["500m"])
            .node("c", "d4", &["1"])
    };
    let many = found(&pair().build(), MULTI).candidates.len();
    assert_eq!(many, 2);
    check(MULTI, pair(), pair().allow("default", "1"), Err(Invalid::Budget), 2);
    check(MULTI, pair(), pair().allow("default", "0"), Err(Invalid::Budget), 2);
}

#[test]
fn one_candidate_less_drops_the_whole_batch() {
    let three = |last: bool| {
        fleet("d4")
            .node("a", "d4", &["500m"])
            .node("b", "d4", &["500m"])
            .claim_where(|claim| claim.consolidatable = last)
            .node("c", "d4", &["1"])
    };
    check(MULTI, three(true), three(false), Err(Invalid::Churn), 2);
}

#[test]
fn more_types_to_choose_from_are_no_objection_and_a_missing_one_is() {
    check(SINGLE, shrinks("d2 d8"), shrinks("d2 d3 d4 d8"), Ok(()), 0);
    check(
        SINGLE,
        shrinks("d2 d4 d8"),
        shrinks("d4 d8"),
        Err(Invalid::Scheduling),
        0,
    );
    let grown = fleet("d2 d4 d8").node("a", "d8", &["1500m", "1"]);
    check(SINGLE, shrinks("d2 d4 d8"), grown, Err(Invalid::Scheduling), 0);
}

#[test]
fn as_many_new_nodes_as_planned_must_be_needed() {
    // A node with room appeared: nothing need be launched any more.
    let room = shrinks("d2 d8").node("b", "d8", &["1"]);
    check(SINGLE, shrinks("d2 d8"), room, Err(Invalid::Scheduling), 0);
    // The room is gone: something would have to be launched.
    let deletes = |others: &[&str]| fleet("d4").node("a", "d4", &["1"]).node("b", "d4", others);
    assert_eq!(words(&found(&deletes(&["2"]).build(), SINGLE)), "delete a");
    check(
        SINGLE,
        deletes(&["2"]),
        deletes(&["3500m"]),
        Err(Invalid::Scheduling),
        0,
    );
    // Nor may the pods be left without any place.
    check(
        SINGLE,
        deletes(&["2"]),
        fleet("d4!").node("a", "d4", &["1"]),
        Err(Invalid::Scheduling),
        0,
    );
}

#[test]
fn emptiness_goes_on_with_the_nodes_that_are_still_empty() {
    let three = |busy: &[&str]| {
        let mut built = fleet("d4");
        for name in ["a", "b", "c"] {
            let pods: &[&str] = if busy.contains(&name) { &["1"] } else { &[] };
            built = built.node(name, "d4", pods);
        }
        built
    };
    let mut command = found(&three(&[]).build(), Method::Emptiness);
    let verdict = validate(&three(&["b"]).build(), &mut command);
    assert_eq!((verdict.outcome, verdict.failed), (Ok(()), 0));
    assert_eq!(words(&command), "delete a, c");
    assert_eq!(command.savings, 8.0);

    check(
        Method::Emptiness,
        three(&[]),
        three(&["a", "b", "c"]),
        Err(Invalid::Churn),
        3,
    );
    let mut command = found(&three(&[]).build(), Method::Emptiness);
    let verdict = validate(&three(&[]).allow("default", "1").build(), &mut command);
    assert_eq!(
        (verdict.outcome, verdict.failed),
        (Ok(()), 2),
        "the budget takes two of them"
    );
    assert_eq!(command.candidates.len(), 1);
    check(
        Method::Emptiness,
        three(&[]),
        three(&[]).allow("default", "0"),
        Err(Invalid::Budget),
        3,
    );
}

#[test]
fn the_last_glance_sees_nominations_and_budgets_but_simulates_nothing() {
    let command = found(&shrinks("d2 d8").build(), SINGLE);
    let nominated = shrinks("d2 d8").standing(|standing| standing.nominated = true).build();
    assert_eq!(revalidate(&nominated, &command).outcome, Err(Invalid::Churn));
    let closed = shrinks("d2 d8").allow("default", "0").build();
    assert_eq!(revalidate(&closed, &command).outcome, Err(Invalid::Budget));
    assert_eq!(revalidate(&shrinks("d8").build(), &command).outcome, Ok(()));
}

#[test]
fn drift_and_repair_need_no_second_look() {
    let drifted = shrinks("d2 d8").claim_where(|claim| claim.drifted_since = Some(crate::fleet::now()));
    let mut fleet = drifted.build();
    let mut command = found(&fleet, Method::Drift);
    fleet.members = Arc::default();
    assert_eq!(validate(&fleet, &mut command).outcome, Ok(()));
}
