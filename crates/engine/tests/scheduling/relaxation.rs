//! Preferences, and the order in which they are given up.

use karpenter_engine::model::{LabelSelector, PreferencePolicy, SpreadConstraint, WhenUnsatisfiable};
use karpenter_engine::plan::Relaxation;

use crate::support::*;

#[test]
fn required_terms_are_tried_in_order() {
    let outcome = cluster()
        .pods(
            pod("web")
                .or_requires(within(ZONE, &["nowhere"]))
                .or_requires(within("team", &["nobody"]))
                .or_requires(within(ZONE, &["zone-2"]))
                .or_requires(within(ZONE, &["zone-3"])),
        )
        .solve();
    assert_eq!(outcome.by(ZONE).into_keys().collect::<Vec<_>>(), ["zone-2"]);
}

#[test]
fn the_last_required_term_is_never_given_up() {
    let only = pod("web")
        .or_requires(within(ZONE, &["nowhere"]))
        .or_requires(within(ZONE, &["neither"]));
    assert_eq!(cluster().pods(only).solve().pending(), ["web"]);
}

#[test]
fn the_heaviest_preference_that_can_be_met_is_met() {
    let outcome = cluster()
        .pods(
            pod("web")
                .prefers(1, within(ZONE, &["zone-1"]))
                .prefers(100, within(ZONE, &["nowhere"]))
                .prefers(50, within(ZONE, &["zone-3"])),
        )
        .solve();
    assert_eq!(outcome.by(ZONE).into_keys().collect::<Vec<_>>(), ["zone-3"]);
    assert_eq!(
        *outcome.0.relaxations[0].steps,
        [Relaxation::PreferredNodeTerm { weight: 100 }]
    );
}

#[test]
fn a_requirement_wins_over_a_preference() {
    let pods = pod("web")
        .requires(within(ZONE, &["zone-1"]))
        .prefers(1, within(ZONE, &["zone-2"]));
    assert_eq!(
        cluster().pods(pods).solve().by(ZONE).into_keys().collect::<Vec<_>>(),
        ["zone-1"]
    );
}

#[test]
fn a_preference_opens_a_node_rather_than_being_given_up() {
    let outcome = cluster()
        .pods(pods(3, "web").would_rather_avoid(1, HOSTNAME, "web"))
        .solve();
    assert_eq!(outcome.nodes(), 3);
}

#[test]
fn ignored_preferences_have_no_effect() {
    let soft = SpreadConstraint {
        when_unsatisfiable: WhenUnsatisfiable::ScheduleAnyway,
        selector: LabelSelector::labels([("app", "web")]),
        ..constraint(HOSTNAME)
    };
    let outcome = cluster()
        .options(|options| options.preference_policy = PreferencePolicy::Ignore)
        .pods(
            pods(3, "web")
                .spread_with(soft)
                .would_rather_avoid(1, HOSTNAME, "web")
                .prefers(1, within(ZONE, &["nowhere"])),
        )
        .solve();
    assert_eq!((outcome.nodes(), outcome.0.relaxations.len()), (1, 0));
}

#[test]
fn a_soft_spread_is_given_up_when_it_cannot_hold() {
    let soft = SpreadConstraint {
        when_unsatisfiable: WhenUnsatisfiable::ScheduleAnyway,
        selector: LabelSelector::labels([("app", "web")]),
        ..constraint(ZONE)
    };
    let outcome = cluster()
        .pods(pods(3, "web").selector(ZONE, "zone-1").spread_with(soft))
        .solve();
    assert_eq!(outcome.scheduled(), 3);
}
