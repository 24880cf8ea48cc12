use super::*;

/// `k In a b`, `k Gt 3`, `k Exists`, with an optional `minValues=2` at the end.
fn parse(text: &str) -> Requirement {
    let mut words = text.split_whitespace();
    let (key, operator) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
    let (flags, values): (Vec<&str>, Vec<&str>) = words.partition(|word| word.starts_with("minValues="));
    let min_values = flags.first().map(|flag| flag["minValues=".len()..].parse().unwrap());
    let wire = NodeSelectorRequirementWithMinValues {
        min_values,
        ..NodeSelectorRequirementWithMinValues::new(key, operator, values)
    };
    wire.parsed(&LabelRules::default())
}

fn set(lines: &[&str]) -> Requirements {
    lines.iter().map(|line| parse(line)).collect()
}

#[track_caller]
fn intersects(a: &str, b: &str, expected: &str) {
    assert_eq!(parse(a).intersection(&parse(b)).to_string(), expected);
    assert_eq!(parse(b).intersection(&parse(a)).to_string(), expected);
}

#[test]
fn intersections_narrow_sets_and_bounds() {
    intersects("k Gt 1", "k Lt 9", "k Exists >=2 <=8");
    intersects("k In 1 9", "k Gt 1", "k In [9]");
    intersects("k NotIn 1 2", "k Gt 1", "k NotIn [2] >=2");
    intersects("k Exists", "k DoesNotExist", "k DoesNotExist");
    intersects("k Gt 3", "k In 2 4 x", "k In [4]");
    intersects("k Gte 5", "k Lte 4", "k DoesNotExist");
    intersects("k In a b", "k NotIn b", "k In [a]");
    intersects("k NotIn a", "k NotIn b", "k NotIn [a b]");
    intersects("k In a minValues=1", "k Exists minValues=2", "k In [a] minValues 2");
}

#[test]
fn bounds_that_leave_nothing_between_them_do_not_meet() {
    let between = parse("k Gt 1").intersection(&parse("k Lt 9"));
    assert!(!parse("k In 1 9").has_intersection(&between));
    assert!(!parse("k In A").has_intersection(&parse("k Gt 1")));
    assert!(!parse("k Gt 5").has_intersection(&parse("k Lt 5")));
    // Whether exclusions use up a finite range is not checked.
    let one = parse("k Gte 1").intersection(&parse("k Lte 1"));
    assert!(one.has_intersection(&parse("k NotIn 1")));
}

#[test]
fn nothing_is_greater_than_the_largest_integer() {
    let requirement = parse("k Gt 9223372036854775807 minValues=3");
    assert_eq!(requirement.to_string(), "k DoesNotExist");
}

#[test]
fn a_requirement_is_written_to_claims_with_sorted_values_and_bounds_as_gte_and_lte() {
    let written = |requirement: &Requirement| -> Vec<String> {
        let entries = requirement.to_wire();
        entries
            .iter()
            .map(|entry| {
                format!("{} {}", entry.operator, entry.values.join(" "))
                    .trim()
                    .to_owned()
            })
            .collect()
    };
    assert_eq!(written(&parse("k Gt 1")), ["Gte 2"]);
    assert_eq!(
        written(&parse("k Gt 3").intersection(&parse("k Lt 5"))),
        ["Gte 4", "Lte 4"]
    );
    assert_eq!(
        written(&parse("k NotIn 7 3").intersection(&parse("k Gt 1"))),
        ["Gte 2", "NotIn 3 7"]
    );
    assert_eq!(written(&parse("k In b a")), ["In a b"]);
    assert_eq!(written(&parse("k Exists")), ["Exists"]);
    assert_eq!(written(&parse("k DoesNotExist")), ["DoesNotExist"]);
    let bounded = parse("k Gte 8 minValues=2").intersection(&parse("k Lte 8"));
    assert!(bounded.to_wire().iter().all(|entry| entry.min_values == Some(2)));
}

#[test]
fn custom_keys_must_be_defined_and_well_known_ones_need_not() {
    let rules = LabelRules::default();
    let node = set(&["a In 1"]);
    for (demand, strict, planned) in [
        ("a In 1", true, true),
        ("a In 2", false, false),
        ("team In x", false, false),
        ("team Exists", false, false),
        ("team Gt 3", false, false),
        ("team NotIn x", true, true),
        ("team DoesNotExist", true, true),
        ("topology.kubernetes.io/zone In x", false, true),
        ("topology.kubernetes.io/zone Exists", false, true),
    ] {
        let demand = set(&[demand]);
        assert_eq!(node.is_compatible(&demand, Undefined::Denied), strict, "{demand}");
        assert_eq!(
            node.is_compatible(&demand, Undefined::WellKnown(&rules)),
            planned,
            "{demand}"
        );
    }
}

#[test]
fn labels_that_must_be_absent_go_with_labels_that_must_not_be_something() {
    assert!(set(&["k NotIn a"]).intersects(&set(&["k DoesNotExist"])).is_ok());
    assert!(set(&["k DoesNotExist"]).intersects(&set(&["k DoesNotExist"])).is_ok());
    assert!(set(&["k Exists"]).intersects(&set(&["k DoesNotExist"])).is_err());
}

#[test]
fn adding_to_a_set_never_widens_it() {
    let zones = set(&[
        "topology.kubernetes.io/zone In bad",
        "topology.kubernetes.io/zone Exists",
    ]);
    assert_eq!(zones.to_string(), "topology.kubernetes.io/zone In [bad]");
    assert_eq!(
        set(&["k Exists minValues=1", "k Exists minValues=2"])
            .get("k")
            .unwrap()
            .min_values(),
        Some(2)
    );
}

#[test]
fn keys_are_normalised_when_a_requirement_is_built() {
    assert_eq!(parse("failure-domain.beta.kubernetes.io/zone In a").key(), labels::ZONE);
    assert_eq!(
        Requirement::within("beta.kubernetes.io/arch", ["arm64"]).key(),
        labels::ARCH
    );
    let rules = LabelRules::default()
        .with_alias("csi/zone", labels::ZONE)
        .with_value_alias(labels::ZONE, "A", "a");
    assert_eq!(
        Requirement::normalised(&rules, "csi/zone", Operator::In, ["A"]).to_string(),
        "topology.kubernetes.io/zone In [a]"
    );
}

#[test]
fn long_lists_are_cut_and_the_hostname_is_not_shown() {
    assert_eq!(parse("k In a b c d e f g").to_string(), "k In [a b c d e and 2 others]");
    assert_eq!(set(&["k In a", "kubernetes.io/hostname In h"]).to_string(), "k In [a]");
}

#[test]
fn a_key_that_is_close_to_a_known_one_is_taken_for_a_typo() {
    let rules = LabelRules::default();
    let refusal = |key: &str| {
        let demand: Requirements = [Requirement::within(key, ["x"])].into_iter().collect();
        set(&["team In a"])
            .compatible(&demand, Undefined::WellKnown(&rules))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refusal("zone"),
        "label \"zone\" does not have known values (typo of \"topology.kubernetes.io/zone\"?)"
    );
    assert_eq!(
        refusal("node.io/zone"),
        "label \"node.io/zone\" does not have known values (typo of \"topology.kubernetes.io/zone\"?)"
    );
    assert_eq!(
        refusal("tea"),
        "label \"tea\" does not have known values (typo of \"team\"?)"
    );
    assert_eq!(refusal("colour"), "label \"colour\" does not have known values");
}

#[test]
fn the_value_of_a_label_is_the_smallest_that_is_possible() {
    for (requirement, expected) in [
        ("k In b a", Some("a")),
        ("k Gt 3", Some("4")),
        ("k Lt 3", Some("0")),
        ("k NotIn 0 1", Some("2")),
        ("k DoesNotExist", None),
    ] {
        assert_eq!(parse(requirement).any_value().as_deref(), expected, "{requirement}");
    }
    let used_up = parse("k Gte 1")
        .intersection(&parse("k Lte 1"))
        .intersection(&parse("k NotIn 1"));
    assert_eq!(used_up.any_value(), None);
}
