//! OVHcloud's public catalogue: prices, disks and GPU models of flavors.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::flavors;
use crate::client::model::Flavor;

/// The catalogue as it is served, reduced to what we use of its several megabytes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Catalog {
    locale: Locale,
    addons: Vec<Addon>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Locale {
    currency_code: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Addon {
    plan_code: String,
    product: String,
    pricings: Vec<Pricing>,
    #[serde(deserialize_with = "null_is_default")]
    blobs: Blobs,
    #[serde(deserialize_with = "null_is_default")]
    configurations: Vec<Configuration>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Pricing {
    /// In 10⁻⁸ of the currency, without tax.
    price: i64,
    mode: String,
    phase: i64,
    commitment: i64,
    capacities: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Configuration {
    name: String,
    values: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Blobs {
    #[serde(deserialize_with = "null_is_default")]
    technical: Technical,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Technical {
    #[serde(deserialize_with = "null_is_default")]
    storage: Storage,
    gpu: Option<GpuBlob>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Storage {
    disks: Vec<Disk>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Disk {
    capacity: f64,
    number: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct GpuBlob {
    model: Option<String>,
    memory: Option<GpuMemory>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct GpuMemory {
    /// In GB.
    size: f64,
}

/// What flavors cost and are made of, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PriceList {
    pub currency: String,
    plans: BTreeMap<String, Plans>,
    /// The typical ratio of list price to estimate, by which unknown flavors are estimated.
    scale: f64,
}

/// The prices of one flavor.
#[derive(Clone, Debug, Default, PartialEq)]
struct Plans {
    hourly: Option<f64>,
    hourly_3az: Option<f64>,
    /// In local zones: the regions it is for, and the price.
    hourly_local: Vec<(Vec<String>, f64)>,
    monthly: Option<f64>,
    disk_gb: Option<u32>,
    gpu_model: Option<String>,
    gpu_memory_mib: Option<u32>,
}

/// A price and where it is from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    pub hourly: f64,
    pub estimated: bool,
}

const PRICE_UNIT: f64 = 1e-8;
pub const HOURS_PER_MONTH: f64 = 730.0;
const INSTANCE: &str = "publiccloud-instance";

impl PriceList {
    /// Reads the catalogue. Classified by plan code: the interval's unit is not the same in every country.
    pub fn of(catalog: &Catalog) -> Self {
        let mut plans: BTreeMap<String, Plans> = BTreeMap::new();
        for addon in &catalog.addons {
            if addon.plan_code.starts_with("win-") || !(addon.product.is_empty() || addon.product == INSTANCE) {
                continue;
            }
            let Some((flavor, suffix)) = addon.plan_code.split_once('.') else {
                continue;
            };
            let kind = match suffix {
                "consumption" => Suffix::Hourly,
                "consumption.3AZ" => Suffix::ThreeZones,
                "monthly.postpaid" => Suffix::Monthly,
                local if local.starts_with("consumption.LZ.") => Suffix::LocalZone,
                _ => continue,
            };
            let Some(price) = addon.price() else { continue };
            let own = plans.entry(flavor.to_owned()).or_default();
            match kind {
                Suffix::Hourly => own.hourly = Some(price),
                Suffix::ThreeZones => own.hourly_3az = Some(price),
                Suffix::Monthly => own.monthly = Some(price),
                Suffix::LocalZone => own.hourly_local.push((addon.regions(), price)),
            }
            own.disk_gb = own.disk_gb.or(addon.disk_gb());
            let gpu = addon.blobs.technical.gpu.as_ref();
            own.gpu_model = own.gpu_model.take().or(gpu.and_then(|gpu| gpu.model.clone()));
            let memory = gpu.and_then(|gpu| Some((gpu.memory.as_ref()?.size * 1024.0) as u32));
            own.gpu_memory_mib = own.gpu_memory_mib.or(memory);
        }
        Self {
            currency: catalog.locale.currency_code.clone(),
            scale: scale(&plans),
            plans,
        }
    }

    /// Nothing but estimates.
    pub fn unknown() -> Self {
        Self {
            scale: 1.0,
            ..Self::default()
        }
    }

    pub fn is_known(&self) -> bool {
        !self.plans.is_empty()
    }

    /// What a flavor costs per hour when billed by the hour.
    pub fn hourly(&self, flavor: &Flavor, region: &str, three_zones: bool) -> Price {
        let known = self.plans.get(&flavor.name).and_then(|plans| {
            let local = plans
                .hourly_local
                .iter()
                .find(|(regions, _)| regions.iter().any(|own| own == region));
            if let Some((_, price)) = local {
                return Some(*price);
            }
            if three_zones {
                plans.hourly_3az.or(plans.hourly)
            } else {
                plans.hourly
            }
        });
        self.or_estimate(known, flavor)
    }

    /// What a flavor costs per hour when billed by the month.
    pub fn monthly(&self, flavor: &Flavor) -> Price {
        let known = self.plans.get(&flavor.name).and_then(|plans| plans.monthly);
        self.or_estimate(known.map(|monthly| monthly / HOURS_PER_MONTH), flavor)
    }

    /// Whether a flavor can be billed by the month; only generation 2 can, whatever else the catalogue lists.
    pub fn sells_monthly(&self, flavor: &str) -> bool {
        let listed = || self.plans.get(flavor).is_some_and(|plans| plans.monthly.is_some());
        flavors::is_monthly_family(flavor) && (!self.is_known() || listed())
    }

    pub fn disk_gb(&self, flavor: &str) -> Option<u32> {
        self.plans.get(flavor)?.disk_gb
    }

    /// Model and memory in MiB of a flavor's GPUs.
    pub fn gpu(&self, flavor: &str) -> (Option<&str>, Option<u32>) {
        let plans = self.plans.get(flavor);
        (
            plans.and_then(|plans| plans.gpu_model.as_deref()),
            plans.and_then(|plans| plans.gpu_memory_mib),
        )
    }

    fn or_estimate(&self, known: Option<f64>, flavor: &Flavor) -> Price {
        match known.filter(|price| *price > 0.0) {
            Some(hourly) => Price {
                hourly,
                estimated: false,
            },
            None => Price {
                hourly: estimate(flavor.vcpus, flavor.ram, flavor.gpus) * self.scale,
                estimated: true,
            },
        }
    }
}

enum Suffix {
    Hourly,
    ThreeZones,
    LocalZone,
    Monthly,
}

impl Addon {
    /// The plain price: no commitment, the first phase.
    fn price(&self) -> Option<f64> {
        let plain = self.pricings.iter().filter(|own| {
            own.commitment == 0
                && (own.mode.is_empty() || own.mode == "default")
                && (own.capacities.is_empty()
                    || own.capacities.iter().any(|own| own == "consumption" || own == "renew"))
        });
        let first = plain.min_by_key(|own| own.phase)?;
        Some(first.price as f64 * PRICE_UNIT)
    }

    fn regions(&self) -> Vec<String> {
        let region = self.configurations.iter().find(|own| own.name == "region");
        region.map(|own| own.values.clone()).unwrap_or_default()
    }

    fn disk_gb(&self) -> Option<u32> {
        let disks = &self.blobs.technical.storage.disks;
        let sum: f64 = disks
            .iter()
            .map(|disk| disk.capacity * f64::from(disk.number.unwrap_or(1)))
            .sum();
        (sum > 0.0).then_some(sum as u32)
    }
}

/// What a machine is worth per hour when nobody says; only the proportions matter.
fn estimate(vcpus: u32, ram_gib: u32, gpus: u32) -> f64 {
    0.02 * f64::from(vcpus) + 0.005 * f64::from(ram_gib) + 0.5 * f64::from(gpus)
}

/// The median of list price over estimate, so that known and unknown flavors can be compared.
fn scale(plans: &BTreeMap<String, Plans>) -> f64 {
    let mut ratios: Vec<f64> = plans
        .iter()
        .filter_map(|(name, plans)| {
            let built_in = flavors::built_in(name)?;
            Some(plans.hourly? / estimate(built_in.vcpus, built_in.ram, built_in.gpus))
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    ratios
        .get(ratios.len() / 2)
        .copied()
        .filter(|ratio| *ratio > 0.0)
        .unwrap_or(1.0)
}

fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn addon(code: &str, price: i64, unit: &str) -> Value {
        json!({
            "planCode": code, "product": "publiccloud-instance", "invoiceName": code,
            "pricings": [
                {"price": price * 9, "intervalUnit": unit, "mode": "savings", "phase": 1, "commitment": 12, "capacities": []},
                {"price": price, "intervalUnit": unit, "mode": "default", "phase": 1, "commitment": 0,
                 "capacities": ["consumption"], "type": "consumption"},
            ],
            "blobs": {"technical": {"storage": {"disks": [{"capacity": 50, "number": 1}]}}},
        })
    }

    fn list(addons: &[Value]) -> PriceList {
        let catalog = json!({"locale": {"currencyCode": "EUR", "subsidiary": "FR"}, "plans": [], "addons": addons});
        PriceList::of(&serde_json::from_value(catalog).expect("a catalogue"))
    }

    fn flavor(name: &str) -> Flavor {
        flavors::built_in(name).expect("built in")
    }

    #[test]
    fn prices_are_in_hundred_millionths_and_windows_and_options_are_left_out() {
        let mut option = addon("b2-7.consumption", 1, "hour");
        option["product"] = json!("publiccloud-option");
        let list = list(&[
            addon("b2-7.consumption", 7_000_000, "hour"),
            addon("win-b2-7.consumption", 9_000_000, "hour"),
            addon("b2-7.option.consumption", 1, "hour"),
            option,
        ]);
        let price = list.hourly(&flavor("b2-7"), "GRA11", false);
        assert_eq!((price.hourly * 100.0).round(), 7.0);
        assert!(!price.estimated);
        assert_eq!(list.disk_gb("b2-7"), Some(50));
        assert_eq!(list.currency, "EUR");
    }

    #[test]
    fn a_region_of_three_zones_has_its_own_plan_and_falls_back() {
        let list = list(&[
            addon("b3-8.consumption", 5_000_000, "none"),
            addon("b3-8.consumption.3AZ", 6_000_000, "none"),
            addon("b3-16.consumption", 10_000_000, "none"),
        ]);
        let hourly = |name: &str, three| (list.hourly(&flavor(name), "X", three).hourly * 100.0).round();
        assert_eq!((hourly("b3-8", true), hourly("b3-8", false)), (6.0, 5.0));
        assert_eq!(hourly("b3-16", true), 10.0);
    }

    #[test]
    fn a_month_has_730_hours_and_only_generation_2_is_sold_by_it() {
        let list = list(&[
            addon("b2-7.consumption", 7_000_000, "hour"),
            addon("b2-7.monthly.postpaid", 2_420_000_000, "month"),
            addon("t1-45.monthly.postpaid", 50_000_000_000, "month"),
        ]);
        assert!((list.monthly(&flavor("b2-7")).hourly - 24.2 / 730.0).abs() < 1e-9);
        assert!(list.sells_monthly("b2-7"));
        assert!(!list.sells_monthly("b2-15"), "the catalogue has no such plan");
        assert!(!list.sells_monthly("t1-45"), "a GPU code does not count");
        assert!(!list.sells_monthly("b3-8"));
        assert!(
            PriceList::unknown().sells_monthly("b2-15"),
            "without a catalogue the family decides"
        );
    }

    #[test]
    fn an_unknown_flavor_is_estimated_in_proportion_to_the_known() {
        let list = list(&[addon("b3-8.consumption", 4_000_000, "hour")]);
        let price = list.hourly(&flavor("b3-16"), "X", false);
        assert!(price.estimated);
        // b3-8 is estimated at 0.08 and costs half of that.
        assert!((price.hourly - 0.08).abs() < 1e-9, "{}", price.hourly);
        assert!(PriceList::unknown().hourly(&flavor("b3-8"), "X", false).hourly > 0.0);
    }
}
