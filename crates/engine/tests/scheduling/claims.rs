//! What a planned node looks like.

use karpenter_api::labels;

use crate::support::*;

#[test]
fn a_claim_carries_the_pools_labels_and_requirements() {
    let mut default = pool("default");
    default.labels.insert("team".to_owned(), "core".to_owned());
    default.requirements.add(within(labels::CAPACITY_TYPE, &["on-demand"]));
    let outcome = Cluster::of(default, shapes())
        .pods(pod("web").selector(ZONE, "zone-2"))
        .solve();
    let claim = &outcome.0.claims[0];
    assert_eq!(claim.labels["team"], "core");
    assert_eq!(claim.labels[labels::NODEPOOL], "default");
    assert_eq!(claim.requirements.get(ZONE).unwrap().single_value(), Some("zone-2"));
    assert_eq!(claim.cheapest.as_ref().unwrap().capacity_type, "on-demand");
    assert!(!claim.requirements.contains_key(HOSTNAME) && !claim.requirements.contains_key(labels::REGISTERED));
}

#[test]
fn a_claim_requests_what_its_pods_do() {
    let outcome = cluster()
        .pods(pods(3, "web").requests(&[("cpu", "250m"), ("memory", "100Mi")]))
        .solve();
    let requests = &outcome.0.claims[0].requests;
    let text: Vec<String> = requests
        .iter()
        .map(|(name, amount)| format!("{name}={amount}"))
        .collect();
    assert_eq!(text, ["cpu=750m", "memory=300Mi", "pods=3"]);
}

#[test]
fn an_unavailable_offering_is_not_bought() {
    let mut types = shapes();
    for offering in types.iter_mut().flat_map(|t| &mut t.offerings) {
        offering.available = offering.price > 0.05 && offering.available;
    }
    types.retain(|t| t.name == "m-1");
    let outcome = Cluster::of(pool("default"), types)
        .pods(pod("web").selector(labels::CAPACITY_TYPE, "spot"))
        .solve();
    assert_eq!(outcome.codes(), ["NoOfferingAvailable"]);
}

#[test]
fn at_most_as_many_types_are_named_as_a_claim_may_name() {
    let outcome = cluster()
        .options(|options| options.max_instance_types = 2)
        .pods(pod("web"))
        .solve();
    assert_eq!(outcome.types(0), ["m-1", "m-2"]);
}

#[test]
fn pools_whose_requirements_leave_no_type_are_reported() {
    let mut arm = pool("arm");
    arm.requirements.add(within(labels::ARCH, &["arm64"]));
    let outcome = Cluster::of(arm, shapes()).pods(pod("web")).solve();
    assert_eq!(outcome.0.empty_pools[0].node_pool.name, "arm");
    assert_eq!(outcome.codes(), ["NoInstanceTypes"]);
}

#[test]
fn a_launch_names_types_and_the_capacity_types_that_can_be_had() {
    let mut types = shapes();
    for offering in types.iter_mut().flat_map(|t| &mut t.offerings) {
        let spot = offering.requirements.get(labels::CAPACITY_TYPE).unwrap().single_value() == Some("spot");
        offering.available = !spot;
    }
    let cluster = Cluster::of(pool("default"), types).pods(pod("web").cpu("8"));
    let rules = cluster.rules.clone();
    let outcome = cluster.solve();
    let requirements = outcome.0.claims[0].launch_requirements(&rules);
    assert_eq!(
        requirements.get(labels::INSTANCE_TYPE).unwrap().to_string(),
        "node.kubernetes.io/instance-type In [m-16 m-8]"
    );
    assert_eq!(
        requirements.get(labels::CAPACITY_TYPE).unwrap().single_value(),
        Some("on-demand")
    );
}
