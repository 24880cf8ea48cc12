//! Odd input gives an answer, never a panic.

use karpenter_api::requirement::{Operator, Requirement};
use karpenter_engine::model::Labels;

use crate::support::*;

#[test]
fn nothing_at_all_is_fine() {
    assert_eq!(Cluster::empty().solve().nodes(), 0);
    assert_eq!(cluster().solve().nodes(), 0);
    assert_eq!(
        Cluster::of(pool("default"), Vec::new())
            .pods(pod("web"))
            .solve()
            .pending(),
        ["web"]
    );
}

#[test]
fn types_without_cpu_or_offerings_hold_nothing() {
    let mut sold_out = shape("sold-out", 4, "16Gi");
    sold_out.offerings.clear();
    let outcome = Cluster::of(pool("default"), vec![shape("zero", 0, "0"), sold_out])
        .pods(pod("web"))
        .solve();
    assert_eq!(outcome.pending(), ["web"]);
}

#[test]
fn enormous_requests_and_limits_do_not_overflow() {
    let mut default = pool("default");
    default.limits = resources(&[("cpu", "10000000"), ("memory", "10000000Gi")]);
    let outcome = Cluster::of(default, shapes())
        .pods(pods(3, "huge").requests(&[("cpu", "9000000000000000000"), ("memory", "8Ei")]))
        .pods(pod("web"))
        .solve();
    assert_eq!((outcome.pending().len(), outcome.nodes()), (3, 1));
    assert!(outcome.reason().contains("was `m` meant"), "{}", outcome.reason());
}

#[test]
fn ten_thousand_labels_are_just_labels() {
    let mut many = pod("web");
    many.labels = (0..10_000)
        .map(|nth| (format!("label-{nth}"), "x".to_owned()))
        .collect::<Labels>();
    many.labels.insert("app".to_owned(), "web".to_owned());
    let mut labelled = node("a", "zone-1");
    labelled.labels = std::sync::Arc::new(many.labels.clone());
    assert_eq!(
        cluster()
            .node(labelled)
            .pods(many.spread(HOSTNAME, 1))
            .solve()
            .scheduled(),
        1
    );
}

#[test]
fn contradictions_are_refused() {
    let gt = |value: &str| Requirement::new(ZONE, Operator::Gt, [value]);
    let lt = |value: &str| Requirement::new(ZONE, Operator::Lt, [value]);
    let outcome = cluster()
        .pods(
            pod("a")
                .requires(within(ZONE, &["zone-1"]))
                .requires(not_in(ZONE, &["zone-1"])),
        )
        .pods(pod("b").requires(gt("5")).requires(lt("3")))
        .pods(pod("c").requires(gt(&i64::MAX.to_string())))
        .solve();
    assert_eq!(outcome.pending(), ["a", "b", "c"]);
}

#[test]
fn a_pool_that_contradicts_itself_launches_nothing() {
    let mut broken = pool("broken");
    broken.requirements.add(within(ZONE, &["zone-1"]));
    broken.labels.insert(ZONE.to_owned(), "zone-2".to_owned());
    assert_eq!(
        Cluster::of(broken, shapes()).pods(pod("web")).solve().codes(),
        ["NoInstanceTypes"]
    );
}

#[test]
fn odd_spread_constraints_do_not_panic() {
    for max_skew in [i32::MIN, 0, i32::MAX] {
        let mut odd = pods(3, "web").spread(ZONE, max_skew).spread(HOSTNAME, max_skew);
        odd.spec.spread[0].min_domains = Some(i32::MAX);
        let outcome = cluster().pods(odd).solve();
        assert_eq!(outcome.scheduled() + outcome.pending().len(), 3);
    }
}
