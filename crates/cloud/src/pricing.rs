//! What machines cost per hour, honestly: from users' overrides, from the cloud's price list, or else estimated.
//!
//! A type without a known price is never worth 0, because consolidation compares prices and would silently stop. It gets a
//! price weighted by its resources ([`ResourceWeights`]), and [`PriceBook::known`] says so for a `PricesKnown` condition.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::{ResourceList, resources};
use parking_lot::RwLock;

/// The prices of one cloud. Refreshed as a whole; reads never wait for a refresh.
#[derive(Debug)]
pub struct PriceBook {
    weights: ResourceWeights,
    /// Spot in parts of on-demand where the list has no spot price.
    spot_factor: f64,
    pages: RwLock<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    list: BTreeMap<PriceKey, f64>,
    overrides: Vec<PriceOverride>,
    /// The types that were priced by estimate since the last refresh.
    estimated: BTreeSet<String>,
}

/// An entry of a cloud's price list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PriceKey {
    pub instance_type: String,
    pub capacity_type: String,
    /// `None` where the price is the same in every zone.
    pub zone: Option<String>,
}

/// A price that a user wrote; what is `None` matches everything.
#[derive(Clone, Debug, PartialEq)]
pub struct PriceOverride {
    pub instance_type: Option<String>,
    pub capacity_type: Option<String>,
    pub zone: Option<String>,
    pub price: f64,
}

/// What a resource is worth per hour when nobody says.
///
/// The defaults are close to what large clouds charge relative to each other; only the proportions matter, since all
/// estimates are compared with each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResourceWeights {
    pub per_cpu: f64,
    pub per_memory_gib: f64,
    /// For every resource whose name ends in `/gpu`.
    pub per_gpu: f64,
    pub per_disk_gib: f64,
}

/// A price and how much to believe it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Always more than 0.
    pub hourly: f64,
    pub source: PriceSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriceSource {
    Override,
    List,
    /// On-demand from the list, times the spot factor.
    DerivedSpot,
    Estimate,
}

/// The fact behind a NodeClass's `PricesKnown` condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PricesKnown {
    Yes,
    No { message: String },
}

/// So that even a machine without resources has a price.
const LEAST: f64 = 1e-6;
const SPOT: &str = karpenter_api::labels::CAPACITY_TYPE_SPOT;
const ON_DEMAND: &str = karpenter_api::labels::CAPACITY_TYPE_ON_DEMAND;
/// How many unpriced types are named in a message.
const NAMED: usize = 5;

impl PriceBook {
    pub fn new(weights: ResourceWeights, spot_factor: f64) -> Self {
        Self {
            weights,
            spot_factor,
            pages: RwLock::default(),
        }
    }

    /// Replaces the price list. Entries that are not prices (0, negative, not a number) are left out.
    pub fn set_list(&self, list: impl IntoIterator<Item = (PriceKey, f64)>) {
        let list = list.into_iter().filter(|(_, price)| is_price(*price)).collect();
        let mut pages = self.pages.write();
        pages.list = list;
        pages.estimated.clear();
    }

    /// Replaces the overrides; the first that matches wins. One that is not a price is left out.
    pub fn set_overrides(&self, overrides: impl IntoIterator<Item = PriceOverride>) {
        let overrides = overrides.into_iter().filter(|own| is_price(own.price)).collect();
        let mut pages = self.pages.write();
        pages.overrides = overrides;
        pages.estimated.clear();
    }

    /// The price of a machine; `capacity` is what an estimate would be based on.
    pub fn price(&self, instance_type: &str, capacity_type: &str, zone: &str, capacity: &ResourceList) -> Price {
        let known = self
            .pages
            .read()
            .known_price(instance_type, capacity_type, zone, self.spot_factor);
        if let Some(known) = known {
            return known;
        }
        let mut pages = self.pages.write();
        if !pages.estimated.contains(instance_type) {
            pages.estimated.insert(instance_type.to_owned());
        }
        let on_demand = self.weights.price(capacity);
        let hourly = if capacity_type == SPOT {
            on_demand * self.spot_factor
        } else {
            on_demand
        };
        Price {
            hourly: hourly.max(LEAST),
            source: PriceSource::Estimate,
        }
    }

    /// Whether all prices asked for since the last refresh were known.
    pub fn known(&self) -> PricesKnown {
        let pages = self.pages.read();
        if pages.estimated.is_empty() {
            return PricesKnown::Yes;
        }
        let count = pages.estimated.len();
        let named: Vec<&str> = pages.estimated.iter().take(NAMED).map(String::as_str).collect();
        let more = if count > NAMED {
            format!(" and {} more", count - NAMED)
        } else {
            String::new()
        };
        let message = format!(
            "{count} instance types have no known price and are compared by an estimate from their resources: {}{more}; \
             set a price for them",
            named.join(", ")
        );
        PricesKnown::No { message }
    }
}

impl Pages {
    fn known_price(&self, instance_type: &str, capacity_type: &str, zone: &str, spot_factor: f64) -> Option<Price> {
        let overridden = self
            .overrides
            .iter()
            .find(|own| own.matches(instance_type, capacity_type, zone));
        if let Some(own) = overridden {
            return Some(Price {
                hourly: own.price,
                source: PriceSource::Override,
            });
        }
        if let Some(hourly) = self.listed(instance_type, capacity_type, zone) {
            return Some(Price {
                hourly,
                source: PriceSource::List,
            });
        }
        if capacity_type != SPOT {
            return None;
        }
        let on_demand = self.listed(instance_type, ON_DEMAND, zone)?;
        Some(Price {
            hourly: (on_demand * spot_factor).max(LEAST),
            source: PriceSource::DerivedSpot,
        })
    }

    fn listed(&self, instance_type: &str, capacity_type: &str, zone: &str) -> Option<f64> {
        let mut key = PriceKey {
            instance_type: instance_type.to_owned(),
            capacity_type: capacity_type.to_owned(),
            zone: Some(zone.to_owned()),
        };
        if let Some(price) = self.list.get(&key) {
            return Some(*price);
        }
        key.zone = None;
        self.list.get(&key).copied()
    }
}

impl PriceOverride {
    fn matches(&self, instance_type: &str, capacity_type: &str, zone: &str) -> bool {
        let is = |own: &Option<String>, value: &str| own.as_deref().is_none_or(|own| own == value);
        is(&self.instance_type, instance_type) && is(&self.capacity_type, capacity_type) && is(&self.zone, zone)
    }
}

impl Default for ResourceWeights {
    fn default() -> Self {
        Self {
            per_cpu: 0.04,
            per_memory_gib: 0.005,
            per_gpu: 1.0,
            per_disk_gib: 0.0,
        }
    }
}

impl ResourceWeights {
    /// The estimated price per hour of a machine with this capacity.
    pub fn price(&self, capacity: &ResourceList) -> f64 {
        const GIB: f64 = (1u64 << 30) as f64;
        let gpus: f64 = capacity
            .iter()
            .filter(|(name, _)| name.ends_with("/gpu"))
            .map(|(_, amount)| amount.to_f64())
            .sum();
        let price = self.per_cpu * capacity.cpu().to_f64()
            + self.per_memory_gib * capacity.memory().to_f64() / GIB
            + self.per_gpu * gpus
            + self.per_disk_gib * capacity.amount(resources::EPHEMERAL_STORAGE).to_f64() / GIB;
        price.max(LEAST)
    }
}

fn is_price(price: f64) -> bool {
    price.is_finite() && price > 0.0
}

#[cfg(test)]
mod tests {
    use karpenter_api::Quantity;

    use super::*;

    fn book() -> PriceBook {
        PriceBook::new(ResourceWeights::default(), 0.4)
    }

    fn capacity(cpu: i64, memory_gib: i64) -> ResourceList {
        ResourceList::new()
            .with(resources::CPU, Quantity::from_units(cpu))
            .with(resources::MEMORY, Quantity::from_bytes(memory_gib << 30))
    }

    fn key(instance_type: &str, capacity_type: &str, zone: Option<&str>) -> PriceKey {
        PriceKey {
            instance_type: instance_type.into(),
            capacity_type: capacity_type.into(),
            zone: zone.map(str::to_owned),
        }
    }

    #[test]
    fn an_override_wins_over_the_list_and_a_zone_over_the_general_price() {
        let book = book();
        book.set_list([
            (key("b2", ON_DEMAND, None), 0.1),
            (key("b2", ON_DEMAND, Some("z1")), 0.2),
        ]);
        let at = |zone| book.price("b2", ON_DEMAND, zone, &capacity(2, 8));
        assert_eq!(
            at("z1"),
            Price {
                hourly: 0.2,
                source: PriceSource::List
            }
        );
        assert_eq!(
            at("z2"),
            Price {
                hourly: 0.1,
                source: PriceSource::List
            }
        );
        book.set_overrides([PriceOverride {
            instance_type: Some("b2".into()),
            capacity_type: None,
            zone: Some("z2".into()),
            price: 0.05,
        }]);
        assert_eq!(
            at("z2"),
            Price {
                hourly: 0.05,
                source: PriceSource::Override
            }
        );
        assert_eq!(at("z1").hourly, 0.2);
        assert_eq!(book.known(), PricesKnown::Yes);
    }

    #[test]
    fn a_type_without_a_price_is_worth_its_resources_and_the_book_says_so() {
        let book = book();
        let price = book.price("odd", ON_DEMAND, "z1", &capacity(4, 16));
        assert_eq!(
            price,
            Price {
                hourly: 0.04 * 4.0 + 0.005 * 16.0,
                source: PriceSource::Estimate
            }
        );
        let PricesKnown::No { message } = book.known() else {
            panic!("an estimate was used")
        };
        assert!(message.starts_with("1 instance types have no known price"), "{message}");
        assert!(message.contains("odd"));
    }

    #[test]
    fn zero_is_not_a_price() {
        let book = book();
        book.set_list([
            (key("free", ON_DEMAND, None), 0.0),
            (key("broken", ON_DEMAND, None), f64::NAN),
        ]);
        for name in ["free", "broken"] {
            let price = book.price(name, ON_DEMAND, "z1", &capacity(1, 1));
            assert!(price.hourly > 0.0 && price.source == PriceSource::Estimate);
        }
        assert!(book.price("nothing", ON_DEMAND, "z1", &ResourceList::new()).hourly > 0.0);
    }

    #[test]
    fn bigger_machines_are_estimated_dearer() {
        let book = book();
        let price = |cpu| book.price("x", ON_DEMAND, "z", &capacity(cpu, cpu * 4)).hourly;
        assert!(price(2) < price(4) && price(4) < price(8));
        let gpu = capacity(2, 8).with("nvidia.com/gpu", Quantity::from_units(1));
        assert!(book.price("g", ON_DEMAND, "z", &gpu).hourly > price(8));
    }

    #[test]
    fn spot_follows_on_demand_where_the_list_has_no_spot_price() {
        let book = book();
        book.set_list([(key("b2", ON_DEMAND, None), 0.1)]);
        let spot = book.price("b2", SPOT, "z1", &capacity(2, 8));
        assert_eq!(spot.source, PriceSource::DerivedSpot);
        assert!((spot.hourly - 0.04).abs() < 1e-12);
    }

    #[test]
    fn a_refresh_forgets_what_was_unknown_before() {
        let book = book();
        book.price("b2", ON_DEMAND, "z1", &capacity(2, 8));
        assert_ne!(book.known(), PricesKnown::Yes);
        book.set_list([(key("b2", ON_DEMAND, None), 0.1)]);
        book.price("b2", ON_DEMAND, "z1", &capacity(2, 8));
        assert_eq!(book.known(), PricesKnown::Yes);
    }
}
