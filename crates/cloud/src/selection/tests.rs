use karpenter_api::requirement::Requirement;
use karpenter_engine::model::Overhead;
use serde_json::json;

use super::*;

fn offering(zone: &str, capacity_type: &str, price: f64) -> Offering {
    Offering {
        requirements: [
            Requirement::within(labels::ZONE, [zone]),
            Requirement::within(labels::CAPACITY_TYPE, [capacity_type]),
        ]
        .into_iter()
        .collect(),
        price,
        available: true,
        reservation_capacity: 0,
        overrides: OfferingOverrides::default(),
        price_overlaid: false,
    }
}

fn instance_type(name: &str, cpu: i64, offerings: Vec<Offering>) -> Arc<InstanceType> {
    let zones: Vec<String> = offerings.iter().filter_map(zone).map(str::to_owned).collect();
    Arc::new(InstanceType {
        name: name.into(),
        requirements: [
            Requirement::within(labels::INSTANCE_TYPE, [name]),
            Requirement::within(labels::ARCH, ["amd64"]),
            Requirement::within(labels::ZONE, zones),
        ]
        .into_iter()
        .collect(),
        offerings,
        capacity: ResourceList::new()
            .with("cpu", Quantity::from_units(cpu))
            .with("memory", Quantity::from_bytes(cpu << 32)),
        overhead: Overhead {
            kube_reserved: ResourceList::new().with("cpu", Quantity::from_milli(100)),
            ..Overhead::default()
        },
        volume_limits: BTreeMap::new(),
        capacity_overlaid: false,
    })
}

fn claim(requirements: serde_json::Value, cpu: &str) -> NodeClaim {
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "a"},
        "spec": {
            "requirements": requirements, "resources": {"requests": {"cpu": cpu}},
            "nodeClassRef": {"group": "g", "kind": "K", "name": "default"},
        },
    }))
    .expect("a NodeClaim")
}

fn names(candidates: &[Candidate]) -> Vec<String> {
    let name = |own: &Candidate| format!("{}/{}", own.instance_type.name, zone(&own.offering).unwrap_or_default());
    candidates.iter().map(name).collect()
}

#[test]
fn candidates_fit_the_claim_and_come_cheapest_first() {
    let types = [
        instance_type(
            "large",
            8,
            vec![offering("z1", "on-demand", 0.8), offering("z2", "on-demand", 0.7)],
        ),
        instance_type("medium", 4, vec![offering("z1", "on-demand", 0.4)]),
        instance_type("small", 2, vec![offering("z1", "on-demand", 0.2)]),
    ];
    let rules = LabelRules::default();
    let chosen = candidates(&claim(json!([]), "3"), &types, &rules);
    assert_eq!(names(&chosen), ["medium/z1", "large/z2", "large/z1"]);
    let in_z2 = json!([{"key": labels::ZONE, "operator": "In", "values": ["z2"]}]);
    assert_eq!(names(&candidates(&claim(in_z2, "3"), &types, &rules)), ["large/z2"]);
    let custom = json!([{"key": "team", "operator": "In", "values": ["blue"]}]);
    assert_eq!(
        candidates(&claim(custom, "7"), &types, &rules).len(),
        2,
        "labels of the claim's own do not exclude types"
    );
}

#[test]
fn the_overhead_counts_when_a_type_is_asked_whether_it_fits() {
    let types = [instance_type("small", 2, vec![offering("z1", "on-demand", 0.2)])];
    assert!(candidates(&claim(json!([]), "2"), &types, &LabelRules::default()).is_empty());
    assert_eq!(
        candidates(&claim(json!([]), "1900m"), &types, &LabelRules::default()).len(),
        1
    );
}

#[test]
fn a_full_reservation_is_available_but_not_launchable() {
    let mut reserved = offering("z1", "reserved", 0.0);
    assert!(!is_launchable(&reserved));
    reserved.reservation_capacity = 1;
    assert!(is_launchable(&reserved));
    reserved.available = false;
    assert!(!is_launchable(&reserved));
}

#[test]
fn equal_prices_are_ordered_by_size_then_name() {
    let types = [
        instance_type("b", 4, vec![offering("z1", "on-demand", 1.0)]),
        instance_type("a", 8, vec![offering("z1", "on-demand", 1.0)]),
        instance_type("c", 4, vec![offering("z1", "on-demand", 1.0)]),
    ];
    assert_eq!(
        names(&candidates(&claim(json!([]), "1"), &types, &LabelRules::default())),
        ["b/z1", "c/z1", "a/z1"]
    );
}

#[test]
fn hugepages_are_taken_from_memory_and_never_below_zero() {
    let mut own = (*instance_type("a", 1, vec![])).clone();
    own.capacity = own.capacity.with("hugepages-2Mi", Quantity::from_bytes(1 << 30));
    assert_eq!(
        allocatable(&own, &OfferingOverrides::default()).memory(),
        Quantity::from_bytes(3 << 30)
    );
    own.capacity = own.capacity.with("hugepages-1Gi", Quantity::from_bytes(8 << 30));
    assert_eq!(
        allocatable(&own, &OfferingOverrides::default()).memory(),
        Quantity::ZERO
    );
}

#[test]
fn overrides_replace_capacity_keys_and_total_overhead_keys() {
    let own = instance_type("a", 4, vec![]);
    let overrides = OfferingOverrides {
        capacity: ResourceList::new().with("cpu", Quantity::from_units(6)),
        overhead: ResourceList::new().with("cpu", Quantity::from_units(1)),
    };
    assert_eq!(allocatable(&own, &overrides).cpu(), Quantity::from_units(5));
}

#[test]
fn the_cheapest_price_is_of_any_offer_and_a_running_one_of_its_zone_and_capacity_type() {
    let rules = LabelRules::default();
    let all = Requirements::new();
    let own = instance_type(
        "a",
        1,
        vec![
            offering("z1", "reserved", 0.0),
            offering("z1", "spot", 0.3),
            offering("z2", "spot", 0.5),
            offering("z1", "on-demand", 1.0),
        ],
    );
    assert_eq!(cheapest_price(&own, &all, &rules), Some(0.3));
    assert_eq!(running_price(&own, "z2", "spot"), Some(0.5));
    assert_eq!(running_price(&own, "z3", "spot"), None);
}

#[test]
fn min_values_are_satisfied_by_the_shortest_sufficient_prefix() {
    let types = ["a", "b", "c"].map(|name| instance_type(name, 1, vec![offering("z1", "spot", 1.0)]));
    let least = |least: u32| -> Requirements {
        [Requirement::exists(labels::INSTANCE_TYPE).with_min_values(Some(least))]
            .into_iter()
            .collect()
    };
    assert_eq!(satisfy_min_values(&types, &least(2)), Ok(2));
    let missing = MissingValues {
        key: labels::INSTANCE_TYPE.into(),
        wanted: 4,
        found: 3,
    };
    assert_eq!(satisfy_min_values(&types, &least(4)), Err(vec![missing]));
    assert_eq!(satisfy_min_values(&types, &Requirements::new()), Ok(0));
    assert_eq!(satisfy_min_values(&[], &least(2)), Ok(0));
}

#[test]
fn a_machine_gets_every_label_that_has_one_possible_value() {
    let own = instance_type("a", 1, vec![offering("z1", "spot", 1.0), offering("z2", "spot", 1.0)]);
    let candidate = Candidate {
        offering: own.offerings[1].clone(),
        instance_type: own,
    };
    let labels = single_valued_labels(&candidate);
    assert_eq!(labels[labels::ZONE], "z2");
    assert_eq!(labels[labels::CAPACITY_TYPE], "spot");
    assert_eq!(labels[labels::ARCH], "amd64");
    assert_eq!(labels[labels::INSTANCE_TYPE], "a");
}
