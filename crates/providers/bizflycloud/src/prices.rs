//! What servers cost per hour, in VND: from a ConfigMap that users write, from the billing API, or else estimated (§5.3).

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::{client::wire::Flavor, flavor::Category};

/// Prices of one account.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prices {
    /// What the user wrote.
    entries: Vec<PriceEntry>,
    /// What the billing API lists; it counts where the user wrote nothing.
    listed: Arc<Vec<PriceEntry>>,
}

/// One line of `prices.json`; what is left out matches everything.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PriceEntry {
    pub flavor: Option<String>,
    pub category: Option<String>,
    pub zone: Option<String>,
    pub plan: Option<String>,
    pub vcpu_hour: Option<f64>,
    pub gib_hour: Option<f64>,
    #[serde(rename = "diskGiBHour")]
    pub disk_gib_hour: Option<DiskPrices>,
    /// The whole machine without its disk.
    pub hour: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DiskPrices {
    #[serde(rename = "SSD")]
    pub ssd: Option<f64>,
    #[serde(rename = "HDD")]
    pub hdd: Option<f64>,
}

/// What is to be priced.
#[derive(Clone, Copy, Debug)]
pub struct Purchase<'a> {
    pub flavor: &'a Flavor,
    pub zone: &'a str,
    pub plan: &'a str,
    pub disk_type: &'a str,
    pub disk_gib: u32,
}

#[derive(Debug, Error)]
#[error("prices.json cannot be used: {0}")]
pub struct PriceError(String);

/// The estimate: proportions of the earlier provider's formula, scaled to VND.
const PER_VCPU: f64 = 0.01 * 25_000.0;
const PER_GIB: f64 = 0.001 * 25_000.0;
const DISK_SSD: f64 = 4.0;
const DISK_HDD: f64 = 2.0;
/// On-demand hours cost more than a subscription's (published coefficients).
pub(crate) const ON_DEMAND_FACTOR: f64 = 1.5;
pub(crate) const ON_DEMAND_DISK_FACTOR: f64 = 1.3;
pub(crate) const SPOT_FACTOR: f64 = 0.2;
const PER_GPU: f64 = 25_000.0;
/// And less while the server is stopped.
const STOPPED_FACTOR: f64 = 0.3;

impl Prices {
    /// Reads `prices.json`.
    ///
    /// # Errors
    /// Names the entry that is wrong; then the previous prices should stay.
    pub fn parse(text: &str) -> Result<Self, PriceError> {
        let entries: Vec<Value> = serde_json::from_str(text).map_err(|error| PriceError(error.to_string()))?;
        let mut parsed = Vec::new();
        for (index, entry) in entries.into_iter().enumerate() {
            let own: PriceEntry =
                serde_json::from_value(entry).map_err(|error| PriceError(format!("entry {index}: {error}")))?;
            let numbers = [own.vcpu_hour, own.gib_hour, own.hour]
                .into_iter()
                .chain(own.disk_gib_hour.iter().flat_map(|disk| [disk.ssd, disk.hdd]));
            if numbers.flatten().any(|price| !price.is_finite() || price < 0.0) {
                return Err(PriceError(format!(
                    "entry {index}: a price is negative or not a number"
                )));
            }
            parsed.push(own);
        }
        Ok(Self {
            entries: parsed,
            ..Self::default()
        })
    }

    /// The same, with the billing API's prices where it has none of its own.
    #[must_use]
    pub fn with_listed(&self, listed: Arc<Vec<PriceEntry>>) -> Self {
        Self {
            entries: self.entries.clone(),
            listed,
        }
    }

    /// The price of a machine with its disk; always finite and above 0.
    pub fn hourly(&self, purchase: &Purchase<'_>) -> f64 {
        let flavor = purchase.flavor;
        let gib = flavor.ram as f64 / 1024.0;
        let told = |value: fn(&PriceEntry) -> Option<f64>| self.most_specific(purchase, value);
        let machine = told(|entry| entry.hour).or_else(|| {
            let vcpu = told(|entry| entry.vcpu_hour)?;
            let memory = told(|entry| entry.gib_hour)?;
            Some(vcpu * flavor.vcpus as f64 + memory * gib)
        });
        let machine = machine.unwrap_or_else(|| estimate(flavor, gib) * machine_factor(purchase.plan));
        (machine + self.disk_gib(purchase) * f64::from(purchase.disk_gib)).max(1e-6)
    }

    /// How much of its price a machine costs while it is stopped: on demand its disk in full and a part of the rest, by other plans all.
    pub(crate) fn stopped_share(&self, purchase: &Purchase<'_>) -> f64 {
        if purchase.plan != "on_demand" {
            return 1.0;
        }
        let disk = self.disk_gib(purchase) * f64::from(purchase.disk_gib) / self.hourly(purchase);
        disk + STOPPED_FACTOR / ON_DEMAND_FACTOR * (1.0 - disk)
    }

    /// The price of a disk alone, of which neither kind nor zone is told: as an SSD of the vendor's default tier.
    pub(crate) fn disk(&self, plan: &str, gib: u64) -> f64 {
        let per_gib = self.disk_gib(&Purchase {
            flavor: &Flavor::default(),
            zone: "",
            plan,
            disk_type: "SSD",
            disk_gib: 0,
        });
        per_gib * gib as f64
    }

    /// The price of a GiB of disk.
    fn disk_gib(&self, purchase: &Purchase<'_>) -> f64 {
        let told = match purchase.disk_type {
            "HDD" => self.most_specific(purchase, |entry| entry.disk_gib_hour?.hdd),
            _ => self.most_specific(purchase, |entry| entry.disk_gib_hour?.ssd),
        };
        told.unwrap_or_else(|| {
            let base = if purchase.disk_type == "HDD" {
                DISK_HDD
            } else {
                DISK_SSD
            };
            match purchase.plan {
                "on_demand" => base * ON_DEMAND_DISK_FACTOR / 100.0,
                _ => base / 100.0,
            }
        })
    }

    fn most_specific(&self, purchase: &Purchase<'_>, value: fn(&PriceEntry) -> Option<f64>) -> Option<f64> {
        let among = |entries: &[PriceEntry]| {
            let matching = entries
                .iter()
                .filter_map(|entry| Some((entry.specificity(purchase)?, value(entry)?)));
            matching
                .max_by_key(|(specificity, _)| *specificity)
                .map(|(_, price)| price)
        };
        among(&self.entries).or_else(|| among(&self.listed))
    }
}

impl PriceEntry {
    /// How closely the entry speaks of this purchase; `None` if it does not.
    fn specificity(&self, purchase: &Purchase<'_>) -> Option<u32> {
        let category = purchase.flavor.category();
        let mut specificity = 0;
        for (own, actual, weight) in [
            (&self.flavor, purchase.flavor.name.as_str(), 8),
            (&self.category, category.as_str(), 4),
            (&self.zone, purchase.zone, 2),
            (&self.plan, purchase.plan, 1),
        ] {
            match own {
                Some(own) if own == actual => specificity += weight,
                Some(_) => return None,
                None => {}
            }
        }
        Some(specificity)
    }
}

fn estimate(flavor: &Flavor, gib: f64) -> f64 {
    let tier = match flavor.category() {
        Category::Basic => 1.0,
        Category::Premium => 1.5,
        Category::Enterprise => 2.0,
        Category::Dedicated => 2.5,
    };
    let gpus = flavor.gpu.as_ref().map_or(0, |gpu| gpu.count) as f64;
    (PER_VCPU * flavor.vcpus as f64 + PER_GIB * gib) * tier + PER_GPU * gpus
}

fn machine_factor(plan: &str) -> f64 {
    match plan {
        "on_demand" => ON_DEMAND_FACTOR,
        "spot" => SPOT_FACTOR,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flavor(name: &str, vcpus: u64, gib: u64) -> Flavor {
        Flavor {
            name: name.to_owned(),
            vcpus,
            ram: gib * 1024,
            ..Flavor::default()
        }
    }

    fn purchase<'a>(flavor: &'a Flavor, zone: &'a str, plan: &'a str) -> Purchase<'a> {
        Purchase {
            flavor,
            zone,
            plan,
            disk_type: "SSD",
            disk_gib: 40,
        }
    }

    fn price(prices: &Prices, flavor: &Flavor, zone: &str, plan: &str) -> f64 {
        prices.hourly(&purchase(flavor, zone, plan))
    }

    #[test]
    fn a_stopped_server_costs_less_on_demand_only() {
        let prices = Prices::parse(r#"[{"hour": 150, "diskGiBHour": {"SSD": 1.25}}]"#).expect("prices");
        let nix = flavor("nix.4c_8g", 4, 8);
        let stopped = |plan| prices.stopped_share(&purchase(&nix, "HN1", plan)) * 200.0;
        assert!((stopped("on_demand") - (50.0 + 30.0)).abs() < 1e-9);
        assert_eq!(stopped("saving_plan"), 200.0);
    }

    #[test]
    fn estimates_keep_the_order_of_tiers_and_plans() {
        let prices = Prices::default();
        let of = |name: &str, plan: &str| price(&prices, &flavor(name, 4, 8), "HN1", plan);
        assert!(of("4c_8g_enterprise", "on_demand") > of("nix.4c_8g", "on_demand"));
        assert!(of("nix.4c_8g", "on_demand") > of("4c_8g_basic", "on_demand"));
        assert!(of("nix.4c_8g", "saving_plan") < of("nix.4c_8g", "on_demand"));
        assert!(of("nix.4c_8g", "spot") > 0.0);
    }

    #[test]
    fn the_most_specific_entry_wins() {
        let text = r#"[{"vcpuHour": 100, "gibHour": 10, "diskGiBHour": {"SSD": 0}},
                       {"flavor": "nix.4c_8g", "zone": "HN2", "hour": 7}]"#;
        let prices = Prices::parse(text).expect("prices");
        let nix = flavor("nix.4c_8g", 4, 8);
        assert_eq!(price(&prices, &nix, "HN1", "on_demand"), 480.0);
        assert_eq!(price(&prices, &nix, "HN2", "on_demand"), 7.0);
    }

    #[test]
    fn prices_that_make_no_sense_are_refused_with_their_place() {
        assert!(Prices::parse("{").is_err());
        let error = Prices::parse(r#"[{}, {"hour": -1}]"#)
            .expect_err("negative")
            .to_string();
        assert!(error.contains("entry 1"), "{error}");
        assert!(Prices::parse(r#"[{"hourr": 1}]"#).is_err());
    }
}
