//! What keeps a node from being disrupted (disruption.md §17, "Candidate filtering").

use karpenter_engine::disruption::pdb::Refusal;
use karpenter_engine::disruption::{Blocked, Method, PodDisruptionBudget};
use karpenter_engine::model::{
    DoNotDisrupt, Effect, LabelSelector, Lifecycle, Owner, PodPhase, Toleration, TolerationOperator,
};

use crate::fleet::{Builder, fleet, minutes, now};

/// An empty node `a`, changed by the test: emptiness takes it, or says why not.
fn check(change: impl FnOnce(Builder) -> Builder, expect: Option<Blocked>) {
    let built = change(fleet("s2").node("a", "s2", &[]));
    assert_eq!(built.blocked(Method::Emptiness, "a"), expect);
}

#[test]
fn an_idle_node_of_ours_may_go() {
    check(|fleet| fleet, None);
}

#[test]
fn a_node_that_something_else_happens_to_stays() {
    check(
        |fleet| fleet.standing(|standing| standing.queued = true),
        Some(Blocked::AlreadyDisrupting),
    );
    check(
        |fleet| fleet.standing(|standing| standing.leaving = true),
        Some(Blocked::Leaving),
    );
    check(
        |fleet| fleet.standing(|standing| standing.instance_terminating = true),
        Some(Blocked::Leaving),
    );
    check(
        |fleet| fleet.standing(|standing| standing.rebooting = true),
        Some(Blocked::Rebooting),
    );
    check(
        |fleet| fleet.standing(|standing| standing.nominated = true),
        Some(Blocked::Nominated),
    );
}

#[test]
fn a_node_that_is_not_up_stays() {
    check(
        |fleet| fleet.node_where(|node| node.has_node = false),
        Some(Blocked::NoNode),
    );
    check(
        |fleet| fleet.node_where(|node| node.lifecycle = Lifecycle::Launched),
        Some(Blocked::NotRegistered),
    );
    check(
        |fleet| fleet.node_where(|node| node.lifecycle = Lifecycle::Registered),
        Some(Blocked::NotInitialized),
    );
}

#[test]
fn an_uninitialized_node_is_not_hidden_by_its_nomination() {
    check(
        |fleet| {
            fleet
                .node_where(|node| node.lifecycle = Lifecycle::Registered)
                .standing(|standing| standing.nominated = true)
        },
        Some(Blocked::NotInitialized),
    );
}

#[test]
fn a_node_without_a_known_pool_stays() {
    check(
        |fleet| fleet.node_where(|node| node.node_pool = None),
        Some(Blocked::NoPoolLabel),
    );
    check(
        |fleet| fleet.node_where(|node| node.node_pool = Some("gone".into())),
        Some(Blocked::PoolNotFound("gone".into())),
    );
    check(
        |fleet| fleet.with_policy("default", |policy| policy.has_instance_types = false),
        Some(Blocked::PoolNotFound("default".into())),
    );
}

#[test]
fn a_node_with_the_annotation_stays() {
    check(
        |fleet| fleet.standing(|standing| standing.do_not_disrupt = true),
        Some(Blocked::DoNotDisrupt),
    );
}

/// A node with one DaemonSet pod, changed by the test.
fn check_pod(change: impl Fn(&mut karpenter_engine::model::Pod), blocked: bool) {
    let built = fleet("s2").node("a", "s2", &["100m"]).pods_where(|pod| {
        pod.owner = Owner::DaemonSet;
        change(pod);
    });
    let reason = built.blocked(Method::Emptiness, "a");
    assert_eq!(reason.is_some(), blocked, "{reason:?}");
}

#[test]
fn a_protected_pod_keeps_its_node_even_if_a_daemon_set_or_the_node_owns_it() {
    check_pod(|pod| pod.do_not_disrupt = Some(DoNotDisrupt::Always), true);
    check_pod(
        |pod| {
            pod.owner = Owner::Node;
            pod.do_not_disrupt = Some(DoNotDisrupt::Always);
        },
        true,
    );
    check_pod(|_| {}, false);
}

#[test]
fn a_protected_pod_that_ends_or_has_ended_keeps_nothing() {
    check_pod(
        |pod| {
            pod.do_not_disrupt = Some(DoNotDisrupt::Always);
            pod.terminating = true;
        },
        false,
    );
    check_pod(
        |pod| {
            pod.do_not_disrupt = Some(DoNotDisrupt::Always);
            pod.phase = PodPhase::Succeeded;
        },
        false,
    );
}

#[test]
fn a_protection_for_a_while_counts_from_the_pods_start() {
    let protect = |started: Option<i64>, blocked: bool| {
        check_pod(
            |pod| {
                pod.do_not_disrupt = Some(DoNotDisrupt::For(minutes(10)));
                pod.started = started.map(|ago| now() - minutes(ago));
            },
            blocked,
        );
    };
    protect(Some(5), true);
    protect(Some(11), false);
    protect(None, true);
}

fn web_budget(name: &str, disruptions_allowed: i32) -> PodDisruptionBudget {
    PodDisruptionBudget {
        namespace: "default".into(),
        name: name.into(),
        selector: LabelSelector::everything(),
        disruptions_allowed,
        never_allows: false,
        allows_unhealthy: false,
    }
}

fn check_budgets(
    budgets: &[PodDisruptionBudget],
    change: impl Fn(&mut karpenter_engine::model::Pod),
    expect: Option<Refusal>,
) {
    let mut built = fleet("s1 s2").node("a", "s2", &["100m"]).pods_where(change);
    for budget in budgets {
        built = built.budget(budget.clone());
    }
    let refusal = match built.blocked(Method::SingleNodeConsolidation, "a") {
        Some(Blocked::PodBudget { refusal, .. }) => Some(refusal),
        _ => None,
    };
    assert_eq!(refusal, expect);
}

#[test]
fn a_budget_that_allows_nothing_keeps_the_node() {
    check_budgets(
        &[web_budget("web", 0)],
        |_| {},
        Some(Refusal::Exhausted("default/web".into())),
    );
    check_budgets(&[web_budget("web", 1)], |_| {}, None);
}

#[test]
fn a_budget_of_another_namespace_says_nothing() {
    let elsewhere = PodDisruptionBudget {
        namespace: "other".into(),
        ..web_budget("web", 0)
    };
    check_budgets(&[elsewhere], |_| {}, None);
}

#[test]
fn two_budgets_for_one_pod_keep_the_node_whatever_they_allow() {
    let both = ["default/a".to_owned(), "default/b".to_owned()];
    check_budgets(
        &[web_budget("b", 5), web_budget("a", 5)],
        |_| {},
        Some(Refusal::Several(both.into())),
    );
}

#[test]
fn an_unready_pod_may_go_where_the_budget_always_allows_that() {
    let lenient = PodDisruptionBudget {
        allows_unhealthy: true,
        ..web_budget("web", 0)
    };
    check_budgets(std::slice::from_ref(&lenient), |pod| pod.ready = false, None);
    check_budgets(
        &[lenient],
        |pod| pod.ready = true,
        Some(Refusal::Exhausted("default/web".into())),
    );
}

#[test]
fn a_budget_does_not_count_for_pods_that_would_not_be_evicted() {
    check_budgets(&[web_budget("web", 0)], |pod| pod.owner = Owner::Node, None);
    check_budgets(&[web_budget("web", 0)], |pod| pod.terminating = true, None);
    check_budgets(
        &[web_budget("web", 0)],
        |pod| {
            let mut spec = (*pod.spec).clone();
            spec.tolerations.push(Toleration {
                key: "karpenter.sh/disrupted".into(),
                operator: TolerationOperator::Exists,
                value: String::new(),
                effect: Some(Effect::NoSchedule),
            });
            pod.spec = spec.into();
        },
        None,
    );
}

#[test]
fn a_budget_counts_for_daemon_pods() {
    check_budgets(
        &[web_budget("web", 0)],
        |pod| pod.owner = Owner::DaemonSet,
        Some(Refusal::Exhausted("default/web".into())),
    );
}

#[test]
fn two_pods_under_a_budget_that_allows_one_are_looked_at_one_by_one() {
    let built = fleet("s1 s2")
        .node("a", "s2", &["100m", "100m"])
        .budget(web_budget("web", 1));
    let reason = built.blocked(Method::SingleNodeConsolidation, "a");
    assert!(!matches!(reason, Some(Blocked::PodBudget { .. })), "{reason:?}");
}

#[test]
fn a_protected_pod_stops_drift_only_without_a_termination_grace_period() {
    let drifted = |grace: Option<i64>| {
        fleet("s2")
            .node("a", "s2", &["1"])
            .pods_where(|pod| pod.do_not_disrupt = Some(DoNotDisrupt::Always))
            .claim_where(|claim| {
                claim.drifted_since = Some(now() - minutes(5));
                claim.termination_grace_period = grace.map(minutes);
            })
    };
    assert_eq!(drifted(None).decides(Method::Drift), "nothing");
    // The protected pod is not planned for: it is provisioned for once it is really evicted.
    assert_eq!(drifted(Some(10)).decides(Method::Drift), "delete a");
}

#[test]
fn a_protected_pod_stops_consolidation_with_and_without_a_termination_grace_period() {
    for grace in [None, Some(minutes(10))] {
        let built = fleet("s1 s2")
            .node("a", "s2", &["500m"])
            .pods_where(|pod| pod.do_not_disrupt = Some(DoNotDisrupt::Always))
            .claim_where(|claim| claim.termination_grace_period = grace);
        let reason = built.blocked(Method::SingleNodeConsolidation, "a");
        assert_eq!(reason, Some(Blocked::ProtectedPod("default/a-0".to_owned())));
    }
}

#[test]
fn of_several_protections_the_longest_counts() {
    let started = |ago: i64| {
        let built = fleet("s2").node("a", "s2", &["100m", "100m", "100m"]);
        let lengths = [5, 10, 15];
        built
            .pods_where(move |pod| {
                let nth: usize = pod.name[2..].parse().unwrap();
                pod.do_not_disrupt = Some(DoNotDisrupt::For(minutes(lengths[nth])));
                pod.started = Some(now() - minutes(ago));
            })
            .claim_where(|claim| claim.drifted_since = Some(now()))
            .decides(Method::Drift)
    };
    assert_eq!(started(6), "nothing");
    assert_eq!(started(14), "nothing");
    assert!(started(15).starts_with("replace a"));
}

#[test]
fn a_protection_that_cannot_be_read_protects_nothing() {
    check_pod(|pod| pod.do_not_disrupt = Some(DoNotDisrupt::Unreadable), false);
}
