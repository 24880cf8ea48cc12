//! Rules about what a provider offers and how it presents itself.

use std::{collections::BTreeSet, sync::Arc};

use karpenter_api::{labels, resources};

use super::{Claims, Environment, rules};
use crate::{
    repair::{RepairPolicies, RepairPolicyError},
    selection,
};

pub async fn instance_types_make_sense(environment: &dyn Environment) {
    let claims = Claims::of(environment).await;
    assert!(!claims.types().is_empty(), "there is something to launch");
    let mut names = BTreeSet::new();
    for own in claims.types().iter() {
        let name = &own.name;
        assert!(names.insert(name), "{name} is there twice");
        let named = own
            .requirements
            .get(labels::INSTANCE_TYPE)
            .and_then(|own| own.single_value());
        assert_eq!(named, Some(name.as_str()), "{name}: the instance type label");
        for key in [labels::ARCH, labels::OS, labels::ZONE, labels::CAPACITY_TYPE] {
            assert!(own.requirements.contains_key(key), "{name} says nothing about {key}");
        }
        for resource in [resources::CPU, resources::MEMORY, resources::PODS] {
            assert!(own.capacity.amount(resource).is_positive(), "{name} has no {resource}");
        }
        let mut sold = BTreeSet::new();
        for offering in &own.offerings {
            let zone = selection::zone(offering).unwrap_or_else(|| panic!("{name}: an offering without one zone"));
            let capacity_type = selection::capacity_type(offering);
            let capacity_type =
                capacity_type.unwrap_or_else(|| panic!("{name}: an offering without one capacity type"));
            assert!(
                own.requirements.get_or_exists(labels::ZONE).has(zone),
                "{name} is sold in {zone}, unsaid"
            );
            assert!(own.requirements.get_or_exists(labels::CAPACITY_TYPE).has(capacity_type));
            assert!(
                sold.insert(offering.requirements.to_string()),
                "{name}: {} twice",
                offering.requirements
            );
            let is_priced = offering.price.is_finite() && offering.price > 0.0;
            assert!(
                is_priced || (selection::is_reserved(offering) && offering.price == 0.0),
                "{name} in {zone} costs {}; consolidation needs a price above 0",
                offering.price
            );
            let allocatable = selection::allocatable(own, &offering.overrides);
            assert!(
                allocatable.values().all(|amount| !amount.is_negative()),
                "{name}: more overhead than capacity"
            );
        }
    }
}

/// Callers keep what they derived from the types for as long as the `Arc` is the same.
pub async fn unchanged_instance_types_are_the_same_arc(environment: &dyn Environment) {
    let provider = environment.provider();
    let pool = environment.node_pool();
    let first = provider.instance_types(&pool).await.expect("types");
    let second = provider.instance_types(&pool).await.expect("types");
    assert!(
        Arc::ptr_eq(&first, &second),
        "nothing changed, but another list was answered"
    );
}

/// A key that is not well known excludes the type from every claim that does not name it.
pub async fn labels_of_instance_types_are_well_known(environment: &dyn Environment) {
    let rules = rules(&*environment.provider());
    for own in Claims::of(environment).await.types().iter() {
        let offered = own.offerings.iter().flat_map(|offering| offering.requirements.keys());
        for key in own.requirements.keys().chain(offered) {
            assert!(
                rules.is_well_known(key),
                "{}: {key} is not a well-known label",
                own.name
            );
        }
    }
}

pub async fn repair_policies_are_valid(environment: &dyn Environment) {
    match RepairPolicies::new(environment.provider().repair_policies()) {
        Ok(_) => {}
        // Allowed: such a provider is simply not run with node repair.
        Err(errors) => assert_eq!(errors, [RepairPolicyError::Empty]),
    }
}

pub async fn the_provider_names_itself_and_its_node_classes(environment: &dyn Environment) {
    let provider = environment.provider();
    let is_part = |text: &str| !text.is_empty() && text.chars().all(|char| char.is_ascii_lowercase() || char == '-');
    let is_label = |text: &str| text.split('.').all(is_part);
    assert!(
        is_label(provider.name()),
        "{:?} is no name for metrics",
        provider.name()
    );
    let kinds = provider.supported_node_classes();
    let reference = environment.node_pool().spec.template.spec.node_class_ref;
    assert!(
        kinds
            .iter()
            .any(|kind| kind.is_meant_by(&reference.group, &reference.kind)),
        "the pool's class {}/{} is not among the supported kinds",
        reference.group,
        reference.kind
    );
    let rules = rules(&*provider);
    for kind in kinds {
        assert!(
            rules.is_restricted(&format!("{}/any-label", kind.group)),
            "{} is not reserved",
            kind.group
        );
    }
}
