//! NodeOverlays: users' corrections to the prices and extended resources that a provider reports.

use std::{collections::BTreeSet, sync::Arc};

use karpenter_api::{
    NodeOverlay, Requirement, Requirements, ResourceList,
    labels::{LabelRules, NODEPOOL},
    requirement::Undefined,
    validation,
};

use crate::{
    catalog::PoolTypes,
    model::{InstanceType, NodePool},
};

/// Pools with their types as the overlays leave them, and the overlays that could not be applied.
#[derive(Debug)]
pub struct Overlaid {
    pub pools: Vec<PoolTypes>,
    pub rejected: Vec<Rejected>,
}

/// An overlay that has no effect anywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    pub overlay: String,
    pub reason: RejectReason,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    #[error("{0}")]
    Invalid(String),
    #[error("it changes the same thing as another overlay of the same weight; give them different weights")]
    Conflict,
}

/// Applies overlays to every pool's types: heaviest first, then by name in descending order; the first to touch a price or
/// a resource wins, and one that meets an equal weight is left out everywhere (lifecycle.md §8).
pub fn apply(overlays: &[NodeOverlay], pools: Vec<PoolTypes>, rules: &LabelRules) -> Overlaid {
    let (book, rejected) = weigh(overlays, &pools, rules);
    Overlaid {
        pools: book.apply(pools),
        rejected,
    }
}

/// The overlays that [`apply`] would leave out, without applying the others.
pub fn rejected(overlays: &[NodeOverlay], pools: &[PoolTypes], rules: &LabelRules) -> Vec<Rejected> {
    weigh(overlays, pools, rules).1
}

fn weigh(overlays: &[NodeOverlay], pools: &[PoolTypes], rules: &LabelRules) -> (Book, Vec<Rejected>) {
    let name = |overlay: &NodeOverlay| overlay.metadata.name.clone().unwrap_or_default();
    let mut ordered: Vec<&NodeOverlay> = overlays.iter().collect();
    ordered.sort_by_key(|overlay| (std::cmp::Reverse(overlay.weight()), std::cmp::Reverse(name(overlay))));

    let mut book = Book::new(pools);
    let mut rejected = Vec::new();
    for overlay in ordered {
        let outcome = Change::parse(overlay, rules)
            .map_err(RejectReason::Invalid)
            .and_then(|change| {
                let touched = change.selected(pools, rules);
                match book.conflicts(&change, &touched) {
                    true => Err(RejectReason::Conflict),
                    false => {
                        book.record(&change, &touched);
                        Ok(())
                    }
                }
            });
        if let Err(reason) = outcome {
            rejected.push(Rejected {
                overlay: name(overlay),
                reason,
            });
        }
    }
    (book, rejected)
}

/// What one overlay does, parsed.
struct Change {
    weight: i32,
    requirements: Requirements,
    price: Option<PriceChange>,
    capacity: ResourceList,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum PriceChange {
    To(f64),
    By(f64),
    ByPercent(f64),
}

/// A type that an overlay selects, and which of its offerings.
struct Touched {
    pool: usize,
    instance_type: usize,
    offerings: Vec<usize>,
}

impl Change {
    fn parse(overlay: &NodeOverlay, rules: &LabelRules) -> Result<Self, String> {
        let findings = overlay.validate(rules);
        if !findings.is_empty() {
            return Err(validation::message(&findings));
        }
        let spec = &overlay.spec;
        let price = match (&spec.price, &spec.price_adjustment) {
            (Some(_), Some(_)) => return Err("price and priceAdjustment can't both be set".to_owned()),
            (Some(price), None) => Some(PriceChange::parse(price)?),
            (None, Some(adjustment)) => Some(PriceChange::parse(adjustment)?),
            (None, None) => None,
        };
        Ok(Self {
            weight: overlay.weight(),
            requirements: spec.requirements.iter().map(|r| r.parsed(rules)).collect(),
            price,
            capacity: spec.capacity.clone().unwrap_or_default(),
        })
    }

    fn selected(&self, pools: &[PoolTypes], rules: &LabelRules) -> Vec<Touched> {
        let mut touched = Vec::new();
        for (pool, entry) in pools.iter().enumerate() {
            for (index, instance_type) in entry.instance_types.iter().enumerate() {
                let described = describe(&entry.pool, instance_type, rules);
                if !described.is_compatible(&self.requirements, Undefined::Denied) {
                    continue;
                }
                let compatible = |requirements: &Requirements| {
                    self.requirements
                        .is_compatible(requirements, Undefined::WellKnown(rules))
                };
                let offerings = instance_type.offerings.iter().enumerate();
                let offerings: Vec<usize> = offerings
                    .filter(|(_, offering)| compatible(&offering.requirements))
                    .map(|(at, _)| at)
                    .collect();
                if !offerings.is_empty() {
                    touched.push(Touched {
                        pool,
                        instance_type: index,
                        offerings,
                    });
                }
            }
        }
        touched
    }
}

fn describe(pool: &NodePool, instance_type: &InstanceType, rules: &LabelRules) -> Requirements {
    let mut described = Requirements::from_labels(rules, &pool.labels);
    described.add(Requirement::within(NODEPOOL, [pool.name.as_str()]));
    described.add_all(&instance_type.requirements);
    described
}

impl PriceChange {
    fn parse(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let parsed = text.parse::<f64>().ok().filter(|number| number.is_finite());
            parsed.ok_or_else(|| format!("\"{text}\" is not a price; write 0.5, +0.1, -0.1, +10% or -10%"))
        };
        if !text.starts_with(['+', '-']) {
            return number(text).map(Self::To);
        }
        match text.strip_suffix('%') {
            Some(percent) => number(percent).map(Self::ByPercent),
            None => number(text).map(Self::By),
        }
    }

    fn of(self, price: f64) -> f64 {
        match self {
            Self::To(price) => price,
            Self::By(amount) => (price + amount).max(0.0),
            Self::ByPercent(percent) => (price * (1.0 + percent / 100.0)).max(0.0),
        }
    }
}

/// Who changed what so far, in the shape of the pools.
struct Book(Vec<Vec<Entry>>);

#[derive(Default)]
struct Entry {
    /// Per offering: the change that won, and the weight of the last overlay that wanted one.
    prices: Vec<Option<(PriceChange, i32)>>,
    capacity: ResourceList,
    /// The lowest weight so far that changed capacity, and the resources that overlays of that weight changed.
    last_capacity: Option<(i32, BTreeSet<String>)>,
}

impl Book {
    fn new(pools: &[PoolTypes]) -> Self {
        let entry = |t: &Arc<InstanceType>| Entry {
            prices: vec![None; t.offerings.len()],
            ..Entry::default()
        };
        Self(
            pools
                .iter()
                .map(|pool| pool.instance_types.iter().map(entry).collect())
                .collect(),
        )
    }

    fn conflicts(&self, change: &Change, touched: &[Touched]) -> bool {
        touched.iter().any(|touched| {
            let entry = &self.0[touched.pool][touched.instance_type];
            let same_weight = |at: &usize| entry.prices[*at].is_some_and(|(_, weight)| weight == change.weight);
            let price = change.price.is_some() && touched.offerings.iter().any(same_weight);
            let capacity = entry.last_capacity.as_ref().is_some_and(|(weight, resources)| {
                *weight == change.weight && change.capacity.keys().any(|resource| resources.contains(resource))
            });
            price || capacity
        })
    }

    fn record(&mut self, change: &Change, touched: &[Touched]) {
        for touched in touched {
            let entry = &mut self.0[touched.pool][touched.instance_type];
            if let Some(price) = change.price {
                for at in &touched.offerings {
                    let won = entry.prices[*at].map_or(price, |(first, _)| first);
                    entry.prices[*at] = Some((won, change.weight));
                }
            }
            if !change.capacity.0.is_empty() {
                for (resource, amount) in &change.capacity {
                    entry.capacity.entry(resource.clone()).or_insert(*amount);
                }
                // Of one weight, all count: a third overlay conflicts with the first even if the second came between.
                let mut names: BTreeSet<String> = match entry.last_capacity.take() {
                    Some((weight, names)) if weight == change.weight => names,
                    Some(_) | None => BTreeSet::new(),
                };
                names.extend(change.capacity.keys().cloned());
                entry.last_capacity = Some((change.weight, names));
            }
        }
    }

    fn apply(self, pools: Vec<PoolTypes>) -> Vec<PoolTypes> {
        let mut pools = pools;
        for (pool, entries) in pools.iter_mut().zip(self.0) {
            for (instance_type, entry) in pool.instance_types.iter_mut().zip(entries) {
                if entry.capacity.0.is_empty() && entry.prices.iter().all(Option::is_none) {
                    continue;
                }
                let overlaid = Arc::make_mut(instance_type);
                for (offering, price) in overlaid.offerings.iter_mut().zip(entry.prices) {
                    if let Some((change, _)) = price {
                        offering.price = change.of(offering.price);
                        offering.price_overlaid = true;
                    }
                }
                overlaid.capacity_overlaid |= !entry.capacity.0.is_empty();
                for (resource, amount) in entry.capacity {
                    overlaid.capacity.insert(resource, amount);
                }
            }
        }
        pools
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog_file::{built_in, label_rules};
    use serde_json::{Value, json};

    fn overlay(name: &str, spec: Value) -> NodeOverlay {
        serde_json::from_value(json!({ "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": name }, "spec": spec })).unwrap()
    }

    fn run(overlays: &[NodeOverlay]) -> Overlaid {
        let types = built_in();
        let rules = label_rules(&types);
        let pool: karpenter_api::NodePool = serde_json::from_value(json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
            "metadata": { "name": "default" }, "spec": { "template": { "metadata": { "labels": { "team": "a" } }, "spec": {
                "requirements": [], "nodeClassRef": { "group": "g", "kind": "K", "name": "n" } } } } }))
        .unwrap();
        let pool = Arc::new(crate::convert::node_pool(&rules, &pool, String::new()).unwrap());
        let instance_types = types.iter().map(|t| Arc::new(t.to_model(&rules))).collect();
        apply(overlays, vec![PoolTypes { pool, instance_types }], &rules)
    }

    fn price(overlaid: &Overlaid, capacity_type: &str) -> f64 {
        let found = overlaid.pools[0]
            .instance_types
            .iter()
            .find(|t| t.name == "c-1x-amd64-linux")
            .unwrap();
        let is = |o: &&crate::model::Offering| {
            o.requirements
                .get("karpenter.sh/capacity-type")
                .unwrap()
                .has(capacity_type)
        };
        found.offerings.iter().find(is).unwrap().price
    }

    fn spot() -> Value {
        json!([{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }])
    }

    #[test]
    fn only_selected_offerings_change_price() {
        let overlaid = run(&[overlay("a", json!({ "requirements": spot(), "price": "5" }))]);
        assert_eq!(price(&overlaid, "spot"), 5.0);
        assert!(price(&overlaid, "on-demand") < 1.0);
        assert!(overlaid.rejected.is_empty());
    }

    #[test]
    fn the_heaviest_overlay_wins_and_adjustments_stop_at_zero() {
        let overlaid = run(&[
            overlay(
                "a",
                json!({ "requirements": spot(), "priceAdjustment": "-100", "weight": 10 }),
            ),
            overlay("b", json!({ "requirements": spot(), "price": "5", "weight": 1 })),
        ]);
        assert_eq!(price(&overlaid, "spot"), 0.0);
        let half = run(&[overlay(
            "a",
            json!({ "requirements": spot(), "priceAdjustment": "-50%" }),
        )]);
        let raw = price(&run(&[]), "spot");
        assert!((price(&half, "spot") - raw / 2.0).abs() < 1e-9);
        let adjusted = |adjustment: &str| {
            let spec = json!({ "requirements": spot(), "priceAdjustment": adjustment });
            price(&run(&[overlay("a", spec)]), "spot")
        };
        assert!((adjusted("+10%") - raw * 1.1).abs() < 1e-9);
        assert_eq!((adjusted("-100%"), adjusted("-5")), (0.0, 0.0));
    }

    #[test]
    fn equal_weights_conflict_and_the_later_one_is_left_out() {
        let overlaid = run(&[
            overlay("a", json!({ "requirements": spot(), "price": "5" })),
            overlay("b", json!({ "requirements": spot(), "price": "7" })),
        ]);
        assert_eq!(price(&overlaid, "spot"), 7.0);
        assert_eq!(
            overlaid.rejected,
            [Rejected {
                overlay: "a".into(),
                reason: RejectReason::Conflict
            }]
        );
    }

    #[test]
    fn an_overlay_of_one_zone_changes_the_price_there_only() {
        let zone = json!([{ "key": "topology.kubernetes.io/zone", "operator": "In", "values": ["test-zone-b"] }]);
        let overlaid = run(&[overlay(
            "a",
            json!({ "requirements": zone, "price": "5", "capacity": { "example.com/fpga": "2" } }),
        )]);
        for found in &overlaid.pools[0].instance_types {
            for offering in &found.offerings {
                let zones = offering.requirements.get("topology.kubernetes.io/zone").unwrap();
                assert_eq!(offering.price == 5.0, zones.has("test-zone-b"), "{}", found.name);
            }
            assert_eq!(found.capacity.amount("example.com/fpga"), "2".parse().unwrap());
        }
    }

    #[test]
    fn capacity_applies_to_the_whole_type() {
        let overlaid = run(&[overlay(
            "a",
            json!({ "requirements": spot(), "capacity": { "example.com/fpga": "2" } }),
        )]);
        let found = &overlaid.pools[0].instance_types[0];
        assert!(found.capacity_overlaid);
        assert_eq!(found.capacity.amount("example.com/fpga"), "2".parse().unwrap());
    }

    #[test]
    fn overlays_of_one_weight_conflict_only_over_a_resource_that_they_share() {
        let adds =
            |name: &str, resource: &str| overlay(name, json!({ "requirements": [], "capacity": { resource: "2" } }));
        let both = run(&[adds("a", "example.com/x"), adds("b", "example.com/y")]);
        assert!(both.rejected.is_empty());
        let third = run(&[
            adds("c", "example.com/x"),
            adds("b", "example.com/y"),
            adds("a", "example.com/x"),
        ]);
        assert_eq!(
            third.rejected,
            [Rejected {
                overlay: "a".into(),
                reason: RejectReason::Conflict
            }]
        );
    }

    #[test]
    fn a_lighter_overlay_applies_where_the_heavier_one_does_not() {
        let overlaid = run(&[
            overlay("a", json!({ "requirements": spot(), "price": "5", "weight": 10 })),
            overlay("b", json!({ "requirements": [], "price": "7", "weight": 1 })),
        ]);
        assert_eq!((price(&overlaid, "spot"), price(&overlaid, "on-demand")), (5.0, 7.0));
        assert!(overlaid.rejected.is_empty());
    }

    #[test]
    fn a_label_that_no_type_has_selects_nothing() {
        let selects = |key: &str| json!([{ "key": key, "operator": "In", "values": ["a"] }]);
        let overlaid = run(&[overlay(
            "a",
            json!({ "requirements": selects("unknown"), "capacity": { "fpga": "2" } }),
        )]);
        assert!(!overlaid.pools[0].instance_types[0].capacity_overlaid);
        let overlaid = run(&[overlay(
            "a",
            json!({ "requirements": selects("team"), "capacity": { "fpga": "2" } }),
        )]);
        assert!(overlaid.pools[0].instance_types[0].capacity_overlaid);
    }

    #[test]
    fn cpu_and_memory_cannot_be_overlaid() {
        let overlaid = run(&[overlay("a", json!({ "requirements": [], "capacity": { "cpu": "2" } }))]);
        assert!(matches!(overlaid.rejected[0].reason, RejectReason::Invalid(_)));
    }
}
