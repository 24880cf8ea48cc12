//! minValues: enough choice must be left.

use karpenter_api::labels;
use karpenter_engine::model::{ClaimTopology, MinValuesPolicy, NodePool};

use crate::support::*;

fn wanting(key: &str, min_values: u32) -> NodePool {
    let mut default = pool("default");
    default
        .requirements
        .add(karpenter_api::requirement::Requirement::exists(key).with_min_values(Some(min_values)));
    default
}

#[test]
fn a_claim_stops_taking_pods_when_too_few_types_would_be_left() {
    let types = vec![shape("small", 2, "8Gi"), shape("large", 4, "16Gi")];
    let outcome = Cluster::of(wanting(labels::INSTANCE_TYPE, 2), types)
        .pods(pods(2, "web").cpu("1500m"))
        .solve();
    assert_eq!(outcome.sizes(), [1, 1]);
    assert_eq!((outcome.types(0).len(), outcome.types(1).len()), (2, 2));
}

#[test]
fn strict_min_values_leave_the_pod_pending() {
    let cluster = Cluster::of(wanting(labels::INSTANCE_TYPE, 3), shapes());
    let outcome = cluster.pods(pod("web").cpu("8")).solve();
    assert_eq!(outcome.codes(), ["MinValuesUnmet"]);
}

#[test]
fn the_larger_of_two_min_values_on_a_key_holds() {
    let mut default = wanting(labels::INSTANCE_TYPE, 1);
    let twice = karpenter_api::requirement::Requirement::exists(labels::INSTANCE_TYPE).with_min_values(Some(2));
    default.requirements.add(twice);
    assert_eq!(
        Cluster::of(default, shapes())
            .pods(pod("web").cpu("16"))
            .solve()
            .pending(),
        ["web"]
    );
}

#[test]
fn best_effort_lowers_min_values_when_a_node_is_opened() {
    let outcome = Cluster::of(wanting(labels::INSTANCE_TYPE, 3), shapes())
        .options(|options| options.min_values_policy = MinValuesPolicy::BestEffort)
        .pods(pod("web").cpu("8"))
        .solve();
    let claim = &outcome.0.claims[0];
    assert_eq!(
        claim.requirements.get(labels::INSTANCE_TYPE).unwrap().min_values(),
        Some(2)
    );
    assert!(claim.min_values_relaxed);
}

#[test]
fn zones_that_a_volume_excludes_do_not_count() {
    let check = |policy: MinValuesPolicy, expect: usize| {
        let outcome = Cluster::of(wanting(ZONE, 2), shapes())
            .options(|options| options.min_values_policy = policy)
            .volume(
                "data",
                None,
                ClaimTopology::AnyOf(vec![vec![within(ZONE, &["zone-1"])]]),
            )
            .pods(pod("web").claim("data"))
            .solve();
        assert_eq!(outcome.scheduled(), expect, "{policy:?}");
    };
    check(MinValuesPolicy::Strict, 0);
    check(MinValuesPolicy::BestEffort, 1);
}

#[test]
fn a_claim_whose_cut_breaks_min_values_is_given_up() {
    let outcome = Cluster::of(wanting(labels::INSTANCE_TYPE, 2), shapes())
        .options(|options| options.max_instance_types = 1)
        .pods(pod("web"))
        .solve();
    assert_eq!((outcome.nodes(), outcome.codes()), (0, vec!["MinValuesUnmet"]));
}
