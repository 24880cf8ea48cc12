//! Label requirements of pods against pools, types and nodes.

use karpenter_api::requirement::{Operator, Requirement};

use crate::support::*;

fn check(wanted: Requirement, expect: usize) {
    let text = wanted.to_string();
    let outcome = cluster().pods(pod("web").requires(wanted)).solve();
    assert_eq!(outcome.scheduled(), expect, "{text}");
}

#[test]
fn a_custom_label_that_nothing_defines_can_be_excluded_but_not_demanded() {
    check(within("team", &["a"]), 0);
    check(Requirement::exists("team"), 0);
    check(not_in("team", &["a"]), 1);
    check(Requirement::does_not_exist("team"), 1);
}

#[test]
fn a_well_known_label_may_be_demanded_of_a_new_node() {
    check(within(ZONE, &["zone-2"]), 1);
    check(Requirement::exists(ZONE), 1);
    check(within(ZONE, &["nowhere"]), 0);
}

#[test]
fn a_node_without_the_zone_label_does_not_take_a_pod_that_demands_a_zone() {
    let mut bare = node("bare", "zone-1");
    bare.labels = std::sync::Arc::new(labels_of(&[(HOSTNAME, "bare")]));
    let outcome = Cluster::empty()
        .node(bare)
        .pods(pod("web").requires(Requirement::exists(ZONE)))
        .solve();
    assert_eq!(outcome.pending(), ["web"]);
}

#[test]
fn the_beta_zone_label_selects_the_zone() {
    let outcome = cluster()
        .pods(pod("web").selector("failure-domain.beta.kubernetes.io/zone", "zone-2"))
        .solve();
    assert_eq!(outcome.by(ZONE).into_keys().collect::<Vec<_>>(), ["zone-2"]);
}

#[test]
fn exists_does_not_widen_an_impossible_demand() {
    let pods = pod("web")
        .requires(within(ZONE, &["nowhere"]))
        .requires(Requirement::exists(ZONE));
    assert_eq!(cluster().pods(pods).solve().pending(), ["web"]);
}

#[test]
fn numeric_bounds_choose_types_by_their_label() {
    let mut types = shapes();
    for instance_type in &mut types {
        let cpu = instance_type.capacity.cpu().to_string();
        instance_type.requirements.add(within("example.com/cpu", &[&cpu]));
    }
    let mut cluster = Cluster::of(pool("default"), types);
    cluster.rules = cluster.rules.with_well_known("example.com/cpu");
    let outcome = cluster
        .pods(pod("web").requires(Requirement::new("example.com/cpu", Operator::Gt, ["4"])))
        .solve();
    assert_eq!(outcome.types(0), ["m-8", "m-16"]);
}

#[test]
fn a_key_defined_by_exclusion_does_not_let_others_onto_an_existing_node() {
    // Upstream takes the label for defined once a pod said `NotIn`; the node still does not carry it.
    let outcome = cluster()
        .node(node("a", "zone-1"))
        .pods(pod("first").cpu("2").requires(not_in("team", &["x"])))
        .pods(pod("second").cpu("1").requires(within("team", &["y"])))
        .solve();
    assert_eq!((outcome.on("a"), outcome.pending()), (1, vec!["second".to_owned()]));
}

#[test]
fn a_new_node_carries_a_concrete_value_for_a_custom_requirement() {
    let mut default = pool("default");
    default.requirements.add(within("team", &["b", "a"]));
    default.requirements.add(Requirement::new("level", Operator::Gt, ["3"]));
    default.requirements.add(Requirement::does_not_exist("none"));
    let outcome = Cluster::of(default, shapes()).pods(pod("web")).solve();
    let labels = &outcome.0.claims[0].labels;
    assert_eq!(labels["team"], "a");
    assert_eq!(labels["level"], "4");
    assert!(!labels.contains_key("none") && !labels.contains_key(ZONE));
}

#[test]
fn an_unknown_label_is_reported_with_what_it_may_have_meant() {
    let outcome = cluster()
        .pods(pod("web").selector("example.com/zone", "zone-1"))
        .solve();
    assert_eq!(outcome.codes(), ["UndefinedLabel"]);
    assert!(
        outcome.reason().contains("topology.kubernetes.io/zone"),
        "{}",
        outcome.reason()
    );
}
